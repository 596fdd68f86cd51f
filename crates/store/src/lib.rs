//! The waist of Esker: N faces and M backends meet in one object-safe trait.
//!
//! face → [`Transaction`] → [`ObjectStore::submit`] → [`Completion`] (applied, then durable)
//!
//! An object has four spaces: bytes, xattrs, omap, slots. A missing object reads like an empty one;
//! [`ObjectStore::stat`] tells the difference.
//!
//! Invariants:
//! 1. A transaction is applied whole or not at all; a refused one changes nothing.
//! 2. No read and no guard shows what a power cut could take back, unless its writer asked only for
//!    [`Durability::Applied`]: the [`Completion`] of such a read carries a [`Barrier`] and waits for it.
//! 3. The `contract` feature states these semantics as tests that every backend passes unchanged.

#![forbid(unsafe_code)]

mod capability;
mod completion;
#[cfg(feature = "contract")]
pub mod contract;
mod deferred;
pub mod due;
mod error;
mod fence;
mod forward;
mod id;
mod incarnation;
pub mod limits;
mod mark;
#[cfg(feature = "contract")]
pub mod model;
pub mod names;
pub mod number;
pub mod prefix;
pub mod registry;
mod retry;
mod stall;
mod stripes;
mod transaction;
mod unsynced;

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

pub use capability::Capability;
pub use completion::{Applied, Completion, Later};
pub use deferred::{Promise, Runner, Task, deferred, promised};
pub use error::{Error, Result};
pub use fence::{Fence, Verdict};
pub use forward::Forward;
pub use id::{Collection, CommitSeq, IdHasher, ObjectId, ObjectMap};
pub use incarnation::Incarnation;
pub use mark::{Barrier, DurableMark};
pub use registry::{Directory, Registry};
pub use retry::{ATTEMPTS_MAX, Attempt, Retry, change_guarded, retried, submit_guarded};
pub use stall::{Stall, Waits};
pub use stripes::{Held, Stripes};
pub use transaction::{
    Change, CommitCursor, CommitEntry, Compare, Compression, Condition, Durability, Guard, OmapScan, Op, Order,
    SlotScan, Transaction, WhenBusy,
};
pub use unsynced::{Unsynced, Written};

/// What an object is, at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stat {
    /// Size of the bytes space, in bytes.
    pub size: u64,
    /// Number of omap keys.
    pub omap_keys: u64,
    /// Number of filled slots.
    pub slots: u64,
    /// Number of xattrs.
    pub xattrs: u64,
}

/// A run of bytes in an object that holds data; what lies between runs is a hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataRun {
    /// First byte.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
}

/// Values of an object that will be asked for soon.
#[derive(Clone, Copy, Debug)]
pub enum Soon<'a> {
    /// Those of omap keys.
    Omap(&'a [&'a [u8]]),
    /// Those of slots.
    Slots(&'a [u64]),
}

/// What is called when an object has changed. It runs on any thread, also on one that must not wait, so it waits for
/// nothing and calls no store.
pub type Changed = Arc<dyn Fn() + Send + Sync>;

/// The watching of an object. It ends when this is dropped, which waits for nothing: no call of [`Changed`] begins
/// afterwards, and one that had begun on another thread may still be running.
pub trait Watching: Send + Sync {
    /// Whether what others [notify](ObjectStore::notify) arrives now. False from when the store finds that it was cut
    /// off from the object, and in most stores from when that is gone, until it watches again, which it goes on trying:
    /// meanwhile who waits looks as often as if nothing were watched. [`Changed`] is called after each change of this
    /// while the store is open, since calls may have been missed in between.
    fn is_live(&self) -> bool;
}

/// The whole store at one moment.
pub struct Snapshot {
    /// The last commit that it shows; it shows all before it too, and none after.
    pub seq: CommitSeq,
    /// The view. Transactions are refused with [`Error::ReadOnly`].
    pub store: Arc<dyn ObjectStore>,
}

/// One opening of a store.
pub struct Session {
    /// The store, through it.
    pub store: Arc<dyn ObjectStore>,
    /// Its name: no other opening has, had or will have it.
    pub name: Bytes,
}

/// Parts of objects that are brought into memory: see [`ObjectStore::bring`].
pub trait Parts {
    /// The next part, if there is one now; the store asks again when one has come.
    fn next(&mut self) -> Option<(ObjectId, Range<u64>)>;

    /// The store is about to wait for the device.
    fn waits(&mut self) {}

    /// The part that was given as this one, counted from 0, has come: reading it waits for the device no more, unless
    /// it could not be read, or has changed.
    fn came(&mut self, number: u64);
}

/// A transactional store of objects.
///
/// Every call returns a [`Completion`], whose value is there at once or comes later: reads of what a store does not
/// have in memory, and answers from afar, are begun and not waited for. A backend that has no threads for that does its
/// work on the caller's thread before the call returns, and so does every store of this machine that changes something.
/// Submits of one caller that touch one object are done in the order of the calls. Errors arrive in
/// the completion. A read shows one moment between its call and its outcome: it may show what its caller writes before
/// that has come.
pub trait ObjectStore: Send + Sync {
    /// What this store is called and what it can do.
    fn capability(&self) -> Capability;

    /// Applies a transaction. The value, its [`CommitSeq`], is there once applied; waiting for the completion
    /// waits for what [`Transaction::durability`] asks.
    ///
    /// # Errors
    /// Every variant of [`Error`]; see there. After one of which [`Error::is_unknown`] is false nothing was applied.
    fn submit(&self, txn: Transaction) -> Completion<CommitSeq>;

    /// Ready once a submit that was refused with [`Error::Busy`] for this reason may succeed, at once if it may now;
    /// then it is to be submitted again, and may be refused again, since others want the room as well. Of a store that
    /// is full: once it has looked whether it still is. An error of the store is told by the submit.
    fn room(&self, stall: Stall) -> Completion<()> {
        let _ = stall;
        Completion::ready(Ok(()))
    }

    /// Why a writer that has waited so often had better wait than submit now: the store would refuse what it writes
    /// with [`Error::Busy`], or would if that is large; where the store is full, also because the cleaner has not
    /// looked often enough. Other writers may take the room before it comes, and a store without threads of its own
    /// never says so.
    fn stall(&self, waits: Waits) -> Option<Stall> {
        let _ = waits;
        None
    }

    /// The life of the store that answered last. It changes when the store is restarted under its user, which only one
    /// on the other side of a network can be; [`Unsynced`] tells by it whether a sync covers what was applied before.
    fn incarnation(&self) -> Incarnation {
        Incarnation::LOCAL
    }

    /// Has `changed` called after any client of the store has called [`notify`](Self::notify) with this object, this
    /// client as well, as long as what is returned lives: once for several of these calls, perhaps, and now and then
    /// for none. A change that its writer does not notify of is not told. It waits for a moment until
    /// the object is watched, and what it returns is not [live](Watching::is_live) yet where that takes longer. A hint:
    /// who waits for a change looks now and then all the same.
    ///
    /// # Errors
    /// [`Error::Unsupported`] without [`Capability::watches`]; [`Error::NoObject`]; those of a read.
    fn watch(&self, object: &ObjectId, changed: Changed) -> Result<Box<dyn Watching>> {
        let _ = (object, changed);
        Err(Error::Unsupported { backend: self.capability().backend, what: "watch objects" })
    }

    /// Tells those who [watch](Self::watch) the object, in this process and in others, that it has changed. To be
    /// called when the change can be read. A hint: the call returns at once and never fails, and those who watch may be
    /// told later, and once of several calls; the last call is not left out. Does nothing without
    /// [`Capability::watches`].
    fn notify(&self, object: &ObjectId) {
        let _ = object;
    }

    /// Opens the store once more, so that others can shut this opening out by its name.
    ///
    /// # Errors
    /// [`Error::Unsupported`] without [`Capability::sessions`]; those of opening.
    fn session(&self) -> Result<Session> {
        Err(Error::Unsupported { backend: self.capability().backend, what: "open a session" })
    }

    /// Shuts a session out for good, whether or not it has ended. What it has sent and was not answered may have been
    /// done; once the call has returned, nothing of it changes what is read or written through this store afterwards,
    /// and its own calls fail with [`Error::Stopped`].
    ///
    /// # Errors
    /// [`Error::Unsupported`] without [`Capability::sessions`]; [`Error::Invalid`]: that is no name of one; otherwise
    /// it may or may not be shut out.
    fn shut_out(&self, session: &[u8]) -> Result<()> {
        let _ = session;
        Err(Error::Unsupported { backend: self.capability().backend, what: "shut a session out" })
    }

    /// Completes when everything applied before the call is durable, whatever durability it asked for. Where
    /// [`ObjectStore::incarnation`] changes, that is what the present life of the store has applied.
    fn sync(&self) -> Completion<CommitSeq>;

    /// What the object is, or `None` if it does not exist.
    fn stat(&self, object: &ObjectId) -> Completion<Option<Stat>>;

    /// The size of an object in bytes, or `None` if it does not exist: one operation also where [`stat`](Self::stat)
    /// has to count keys by reading them.
    fn size(&self, object: &ObjectId) -> Completion<Option<u64>> {
        self.stat(object).map(|stat| stat.map(|stat| stat.size))
    }

    /// The bytes of `range`: holes are zeros, past the end is short. At most [`limits::TRANSACTION_BYTES_MAX`] bytes at
    /// once.
    fn read(&self, object: &ObjectId, range: Range<u64>) -> Completion<Bytes>;

    /// The runs of data inside `range`, in order, cut to it. Neighbouring runs are joined.
    fn extents(&self, object: &ObjectId, range: Range<u64>) -> Completion<Vec<DataRun>>;

    /// The value of an xattr.
    fn xattr(&self, object: &ObjectId, name: &[u8]) -> Completion<Option<Bytes>>;

    /// All xattrs, by name.
    fn xattrs(&self, object: &ObjectId) -> Completion<Vec<(Bytes, Bytes)>>;

    /// The value of an omap key.
    fn omap_get(&self, object: &ObjectId, key: &[u8]) -> Completion<Option<Bytes>>;

    /// The values of several omap keys, all at the same moment. [`Error::TooLarge`] if they have more than
    /// [`limits::GET_MANY_BYTES_MAX`] together.
    fn omap_get_many(&self, object: &ObjectId, keys: &[Bytes]) -> Completion<Vec<Option<Bytes>>>;

    /// Whether several omap keys are there, all at the same moment. Stores that find it out by reading values have the
    /// limit of [`ObjectStore::omap_get_many`]; the others read none.
    fn omap_has_many(&self, object: &ObjectId, keys: &[Bytes]) -> Completion<Vec<bool>> {
        self.omap_get_many(object, keys).map(|values| values.iter().map(Option::is_some).collect())
    }

    /// Omap entries in key order, all at the same moment. May return fewer than `limit` (see
    /// [`limits::SCAN_BYTES_MAX`]); it returns none only when none are left in the range.
    fn omap_scan(&self, object: &ObjectId, scan: &OmapScan) -> Completion<Vec<(Bytes, Bytes)>>;

    /// The value of a slot.
    fn slot_get(&self, object: &ObjectId, index: u64) -> Completion<Option<Bytes>>;

    /// The values of several slots, all at the same moment, with the same limit as [`ObjectStore::omap_get_many`].
    fn slot_get_many(&self, object: &ObjectId, indexes: &[u64]) -> Completion<Vec<Option<Bytes>>>;

    /// Tells the store that these values will be asked for soon, so that it may begin to bring them into memory. A
    /// hint: it returns at once, waits for nothing and keeps nothing in memory for its caller. Of many the store may
    /// heed the first only.
    fn will_get(&self, object: &ObjectId, soon: Soon<'_>) {
        let _ = (object, soon);
    }

    /// Brings parts of objects into memory that the thread that calls reads next, many under way at the same time: the
    /// call waits until all that `parts` gives have come. It is told of each as it comes, and reads it then. A hint: no
    /// answer depends on it, and the store keeps what it brought for a moment only. False, and nothing was asked of
    /// `parts`, from a store that does not do this: there several threads read faster than one.
    fn bring(&self, parts: &mut dyn Parts) -> bool {
        let _ = parts;
        false
    }

    /// Filled slots in key order, with the same rule for short answers as [`ObjectStore::omap_scan`].
    fn slot_scan(&self, object: &ObjectId, scan: &SlotScan) -> Completion<Vec<(u64, Bytes)>>;

    /// Live slots and omap entries of the objects of `collection` whose names start with `name_prefix`, in the
    /// order of the commits that last wrote them, oldest first: up to `limit` of them after `after`, and the
    /// cursor to go on from (`None` at the end). Entries that are overwritten between two calls come later again.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where [`Capability::commit_order`] is false.
    fn commit_scan(
        &self,
        collection: &Collection,
        name_prefix: &[u8],
        after: CommitCursor,
        limit: usize,
    ) -> Completion<(Vec<CommitEntry>, Option<CommitCursor>)>;

    /// The collections, in name order.
    fn collections(&self) -> Completion<Vec<Collection>>;

    /// Object names of a collection in name order, up to `limit` of those above `after`.
    ///
    /// # Errors
    /// [`Error::NoCollection`].
    fn list(&self, collection: &Collection, after: Option<&[u8]>, limit: usize) -> Completion<Vec<Bytes>>;

    /// The whole store as it is now, for scans and copies: it stays so whatever happens to the store. Everything it
    /// shows is durable. While it lives the space of what is deleted does not come back.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where the backend cannot; else those of a write of metadata.
    fn snapshot(&self) -> Result<Snapshot> {
        Err(Error::Unsupported { backend: self.capability().backend, what: "take snapshots" })
    }
}
