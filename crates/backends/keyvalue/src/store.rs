//! [`KeyValueStore`]: the waist on an ordered key-value store.
//!
//! submit → check → room in the queue → locks of the objects → guards and operations on a draft → publish → completion
//! read → see the module `reads`
//!
//! Invariants:
//! 1. Locks are taken in one order: open, names, stripes by number, then the queue. None is held over a sync, but for
//!    newstore's large writes: those sync a file of their own under the locks of their objects.
//! 2. A transaction that makes or removes collections has the names to itself.
//! 3. When [`KeyValueStore::close`] returns, nothing of the store is open and its folder is free.

use std::ops::Range;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use esker_store::limits::{OBJECT_BYTES_MAX, TRANSACTION_BYTES_MAX};
use esker_store::{
    Barrier, Capability, Change, Collection, CommitCursor, CommitEntry, CommitSeq, Completion, DataRun, Durability,
    Error, ObjectId, ObjectStore, OmapScan, Op, Result, SlotScan, Stat, Transaction,
};
use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::commit::{Commit, Figures};
use crate::draft::{Draft, State};
use crate::strips::Room;
use crate::sweep::Sweeper;

/// Locks that objects share by their hash.
const STRIPES: usize = 1_024;

/// An object store on RocksDB, LevelDB, RocksDB and files (newstore), or any [`Ordered`](crate::Ordered).
///
/// It is closed, and its folder free for another owner, by [`KeyValueStore::close`] or when it is dropped.
pub struct KeyValueStore {
    /// Calls hold it while they last; nothing is in it once the store is closed.
    open: RwLock<Option<Open>>,
    left: Mutex<Left>,
    backend: &'static str,
    persistent: bool,
}

/// What closing leaves.
#[derive(Default)]
struct Left {
    figures: Figures,
    failure: Option<Error>,
}

/// What an open store has.
pub struct Open {
    /// What all calls share.
    pub state: Arc<State>,
    /// The way of transactions to the ordered store.
    pub commit: Arc<Commit>,
    sweeper: Arc<Sweeper>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    names: RwLock<()>,
    /// Locks of objects.
    pub stripes: Box<[RwLock<()>]>,
    /// The folder's lock; after the state, so that it is let go last.
    lock: Option<std::fs::File>,
}

/// How transactions share the names.
enum Names<'a> {
    Shared { _guard: RwLockReadGuard<'a, ()> },
    Alone { _guard: RwLockWriteGuard<'a, ()> },
}

impl KeyValueStore {
    /// Starts a store on what `state` holds, after transaction `seq`.
    ///
    /// # Errors
    /// Those of starting threads.
    pub(crate) fn start(
        state: State,
        seq: u64,
        applied_flush: Duration,
        backend: &'static str,
        lock: Option<std::fs::File>,
    ) -> std::io::Result<Self> {
        let state = Arc::new(state);
        let commit = Commit::new(Arc::clone(&state), seq, applied_flush);
        let sweeper = Arc::new(Sweeper::default());
        // What died before the last close is swept now.
        sweeper.wake();
        let open = Open {
            state: Arc::clone(&state),
            commit: Arc::clone(&commit),
            sweeper: Arc::clone(&sweeper),
            threads: Mutex::default(),
            names: RwLock::new(()),
            stripes: (0..STRIPES).map(|_| RwLock::new(())).collect(),
            lock,
        };
        let persistent = state.store.persistent();
        // Before the threads, so that they are ended if one of them does not start.
        let store = Self { open: RwLock::new(Some(open)), left: Mutex::default(), backend, persistent };
        let spawn = |name: &str, run: Box<dyn FnOnce() + Send>| {
            let thread = std::thread::Builder::new().name(name.into()).spawn(run)?;
            if let Some(open) = &*store.open.read() {
                open.threads.lock().push(thread);
            }
            std::io::Result::Ok(())
        };
        let (committer, its_sweeper) = (Arc::clone(&commit), Arc::clone(&sweeper));
        spawn("esker-kv-commit", Box::new(move || committer.run(&|| its_sweeper.wake())))?;
        spawn("esker-kv-sweep", Box::new(move || sweeper.run(&state, &commit)))?;
        Ok(store)
    }

    /// Figures from when the store was opened to now, or to when it was closed.
    pub fn figures(&self) -> Figures {
        // `left` after `open`, as in `close`.
        match &*self.open.read() {
            Some(open) => open.commit.figures(),
            None => self.left.lock().figures,
        }
    }

    /// Makes everything durable and lets go of the database and the folder. Calls under way are waited for; later ones
    /// are answered with [`Error::Closed`]. Does nothing the second time. Dropping the store does the same but cannot
    /// tell of a failure.
    ///
    /// # Errors
    /// The failure that stopped the store, if there was one.
    pub fn close(&self) -> Result<()> {
        if let Some(open) = &*self.open.read() {
            open.end();
        }
        let mut slot = self.open.write();
        if let Some(open) = slot.take() {
            let mut left = self.left.lock();
            left.figures = open.commit.figures();
            left.failure = open.commit.mark().failure();
            open.let_go();
        }
        drop(slot);
        self.left.lock().failure.clone().map_or(Ok(()), Err)
    }

    fn with<R>(&self, call: impl FnOnce(&Open) -> Completion<R>) -> Completion<R> {
        match &*self.open.read() {
            Some(open) => call(open),
            None => Completion::ready(Err(Error::Closed)),
        }
    }
}

impl Open {
    /// Writes what waits and ends the threads.
    fn end(&self) {
        self.sweeper.end();
        self.commit.close();
        for thread in self.threads.lock().drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread of the key-value backend panicked");
            }
        }
    }

    /// Closes the database, then frees the folder.
    fn let_go(self) {
        let Self { state, commit, lock, .. } = self;
        drop(commit);
        // A caller that waits for durability may be about to wake the commit thread, and holds it for that moment.
        while Arc::strong_count(&state) > 1 {
            std::thread::sleep(Duration::from_micros(100));
        }
        drop(state);
        drop(lock);
    }

    /// The number of an object's lock.
    pub fn stripe(&self, object: &ObjectId) -> usize {
        object.hash64() as usize % STRIPES
    }

    /// The barrier that readers of what waits for `position` wait for.
    pub fn barrier(&self, position: u64) -> Option<Barrier> {
        let mark = self.commit.mark();
        (mark.durable() < position).then(|| Barrier::new(mark, position))
    }

    fn transact(&self, txn: Transaction) -> Completion<CommitSeq> {
        if let Err(error) = txn.check().and_then(|()| self.commit.wait_for_room()) {
            return Completion::ready(Err(error));
        }
        let durable = txn.durability != Durability::Applied;
        let mut stripes: Vec<usize> = txn.guards.iter().map(|guard| self.stripe(&guard.object)).collect();
        let mut alone = false;
        for op in &txn.ops {
            let Op::Object(object, change) = op else {
                alone = true;
                continue;
            };
            let stripe = self.stripe(object);
            if stripes.last() != Some(&stripe) {
                stripes.push(stripe);
            }
            if let Change::CloneTo { to } | Change::CloneRange { to, .. } | Change::Rename { to } = change {
                stripes.push(self.stripe(to));
            }
        }
        stripes.sort_unstable();
        stripes.dedup();
        let _names = if alone {
            Names::Alone { _guard: self.names.write() }
        } else {
            Names::Shared { _guard: self.names.read() }
        };
        let _locks: Vec<_> = stripes.into_iter().map(|stripe| self.stripes[stripe].write()).collect();
        let mut draft = Draft::new(&self.state);
        let held = txn.guards.iter().enumerate().try_for_each(|(index, guard)| {
            if draft.holds(&guard.object, &guard.condition)? { Ok(()) } else { Err(Error::GuardFailed { index }) }
        });
        let guarded = draft.seen();
        let mut room = Room::default();
        let done = held.and_then(|()| txn.ops.into_iter().try_for_each(|op| draft.apply(op, &mut room)));
        let seen = draft.seen();
        if let Err(error) = done {
            // What refused it is something that it saw.
            return Completion::after(Err(error), self.barrier(seen));
        }
        let outcome = draft.finish();
        if outcome.changed.is_empty() {
            return Completion::after(Ok(CommitSeq(self.commit.seq())), self.barrier(seen));
        }
        match self.commit.publish(outcome, durable, seen) {
            Ok(seq) => {
                let position = if durable { seq } else { guarded };
                Completion::after(Ok(CommitSeq(seq)), self.barrier(position))
            }
            Err(error) => Completion::ready(Err(error)),
        }
    }
}

impl Drop for KeyValueStore {
    fn drop(&mut self) {
        if let Err(error) = self.close() {
            tracing::error!(%error, "closing the store failed");
        }
    }
}

impl std::fmt::Debug for KeyValueStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KeyValueStore").field("backend", &self.backend).finish_non_exhaustive()
    }
}

impl ObjectStore for KeyValueStore {
    fn capability(&self) -> Capability {
        Capability {
            backend: self.backend,
            atomic_across_objects: true,
            atomic_across_collections: true,
            native_slots: false,
            commit_order: false,
            clone: true,
            cheap_clone: false,
            persistent: self.persistent,
            compresses: false,
            transaction_bytes_max: TRANSACTION_BYTES_MAX as u64,
            transaction_ops_max: esker_store::limits::TRANSACTION_OPS_MAX as u64,
            object_bytes_max: OBJECT_BYTES_MAX,
            exact_extents: true,
            reverse_scans: true,
            watches: false,
            sessions: false,
            afar: false,
        }
    }

    fn submit(&self, txn: Transaction) -> Completion<CommitSeq> {
        self.with(|open| open.transact(txn))
    }

    fn sync(&self) -> Completion<CommitSeq> {
        self.with(Open::sync)
    }

    fn stat(&self, object: &ObjectId) -> Completion<Option<Stat>> {
        self.with(|open| open.stat(object))
    }

    fn read(&self, object: &ObjectId, range: Range<u64>) -> Completion<Bytes> {
        self.with(|open| open.read(object, range))
    }

    fn extents(&self, object: &ObjectId, range: Range<u64>) -> Completion<Vec<DataRun>> {
        self.with(|open| open.extents(object, range))
    }

    fn xattr(&self, object: &ObjectId, name: &[u8]) -> Completion<Option<Bytes>> {
        self.with(|open| open.xattr(object, name))
    }

    fn xattrs(&self, object: &ObjectId) -> Completion<Vec<(Bytes, Bytes)>> {
        self.with(|open| open.xattrs(object))
    }

    fn omap_get(&self, object: &ObjectId, key: &[u8]) -> Completion<Option<Bytes>> {
        self.with(|open| open.omap_get(object, key))
    }

    fn omap_get_many(&self, object: &ObjectId, keys: &[Bytes]) -> Completion<Vec<Option<Bytes>>> {
        self.with(|open| open.omap_get_many(object, keys))
    }

    fn omap_scan(&self, object: &ObjectId, scan: &OmapScan) -> Completion<Vec<(Bytes, Bytes)>> {
        self.with(|open| open.omap_scan(object, scan))
    }

    fn slot_get(&self, object: &ObjectId, index: u64) -> Completion<Option<Bytes>> {
        self.with(|open| open.slot_get(object, index))
    }

    fn slot_get_many(&self, object: &ObjectId, indexes: &[u64]) -> Completion<Vec<Option<Bytes>>> {
        self.with(|open| open.slot_get_many(object, indexes))
    }

    fn slot_scan(&self, object: &ObjectId, scan: &SlotScan) -> Completion<Vec<(u64, Bytes)>> {
        self.with(|open| open.slot_scan(object, scan))
    }

    fn commit_scan(
        &self,
        _collection: &Collection,
        _name_prefix: &[u8],
        _after: CommitCursor,
        _limit: usize,
    ) -> Completion<(Vec<CommitEntry>, Option<CommitCursor>)> {
        Completion::ready(Err(Error::Unsupported { backend: self.backend, what: "scan in commit order" }))
    }

    fn collections(&self) -> Completion<Vec<Collection>> {
        self.with(Open::collections)
    }

    fn list(&self, collection: &Collection, after: Option<&[u8]>, limit: usize) -> Completion<Vec<Bytes>> {
        self.with(|open| open.list(collection, after, limit))
    }
}
