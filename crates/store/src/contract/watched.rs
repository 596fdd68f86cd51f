//! A store whose every call is watched: for faces to be stopped, failed and interleaved between any two of them.
//!
//! call → [`Watch::before`] (may refuse it) → the store → [`Watch::after`] (may lose the answer) → caller
//!
//! Invariant: without a word of the watch, the store below answers as if it stood here.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use crate::{
    Capability, Changed, Collection, CommitCursor, CommitEntry, CommitSeq, Completion, DataRun, ObjectId, ObjectStore,
    OmapScan, Result, SlotScan, Stall, Stat, Transaction, Waits, Watching,
};

/// A call on a store.
pub enum Call<'a> {
    /// A transaction; what the watch makes of it is submitted.
    Submit(&'a mut Transaction),
    /// Something read of an object; of none for lists of objects and collections.
    Read(Option<&'a ObjectId>),
}

/// Is told of calls.
pub trait Watch: Send + Sync {
    /// Before a call. An error is its answer, and the store is not asked.
    ///
    /// # Errors
    /// What the call shall answer.
    fn before(&self, call: Call<'_>) -> Result<()>;

    /// After a call. An error takes the place of its answer.
    ///
    /// # Errors
    /// What the call shall answer instead.
    fn after(&self, submit: bool) -> Result<()>;
}

/// The store, watched.
pub struct Watched {
    /// What answers.
    pub store: Arc<dyn ObjectStore>,
    /// Who is told.
    pub watch: Arc<dyn Watch>,
}

impl Watched {
    fn read_of<T>(&self, object: Option<&ObjectId>, read: impl FnOnce() -> Completion<T>) -> Completion<T> {
        if let Err(error) = self.watch.before(Call::Read(object)) {
            return Completion::ready(Err(error));
        }
        let answer = read();
        match self.watch.after(false) {
            Ok(()) => answer,
            Err(error) => Completion::ready(Err(error)),
        }
    }
}

impl ObjectStore for Watched {
    fn capability(&self) -> Capability {
        self.store.capability()
    }
    fn submit(&self, mut txn: Transaction) -> Completion<CommitSeq> {
        if let Err(error) = self.watch.before(Call::Submit(&mut txn)) {
            return Completion::ready(Err(error));
        }
        let answer = self.store.submit(txn);
        match self.watch.after(true) {
            Ok(()) => answer,
            Err(error) => Completion::ready(Err(error)),
        }
    }
    fn room(&self, stall: Stall) -> Completion<()> {
        self.store.room(stall)
    }

    fn stall(&self, waits: Waits) -> Option<Stall> {
        self.store.stall(waits)
    }
    fn watch(&self, object: &ObjectId, changed: Changed) -> Result<Box<dyn Watching>> {
        self.store.watch(object, changed)
    }
    fn notify(&self, object: &ObjectId) {
        self.store.notify(object);
    }
    fn sync(&self) -> Completion<CommitSeq> {
        self.store.sync()
    }
    fn stat(&self, object: &ObjectId) -> Completion<Option<Stat>> {
        self.read_of(Some(object), || self.store.stat(object))
    }
    fn read(&self, object: &ObjectId, range: Range<u64>) -> Completion<Bytes> {
        self.read_of(Some(object), || self.store.read(object, range))
    }
    fn extents(&self, object: &ObjectId, range: Range<u64>) -> Completion<Vec<DataRun>> {
        self.read_of(Some(object), || self.store.extents(object, range))
    }
    fn xattr(&self, object: &ObjectId, name: &[u8]) -> Completion<Option<Bytes>> {
        self.read_of(Some(object), || self.store.xattr(object, name))
    }
    fn xattrs(&self, object: &ObjectId) -> Completion<Vec<(Bytes, Bytes)>> {
        self.read_of(Some(object), || self.store.xattrs(object))
    }
    fn omap_get(&self, object: &ObjectId, key: &[u8]) -> Completion<Option<Bytes>> {
        self.read_of(Some(object), || self.store.omap_get(object, key))
    }
    fn omap_get_many(&self, object: &ObjectId, keys: &[Bytes]) -> Completion<Vec<Option<Bytes>>> {
        self.read_of(Some(object), || self.store.omap_get_many(object, keys))
    }
    fn omap_has_many(&self, object: &ObjectId, keys: &[Bytes]) -> Completion<Vec<bool>> {
        self.read_of(Some(object), || self.store.omap_has_many(object, keys))
    }
    fn omap_scan(&self, object: &ObjectId, scan: &OmapScan) -> Completion<Vec<(Bytes, Bytes)>> {
        self.read_of(Some(object), || self.store.omap_scan(object, scan))
    }
    fn slot_get(&self, object: &ObjectId, index: u64) -> Completion<Option<Bytes>> {
        self.read_of(Some(object), || self.store.slot_get(object, index))
    }
    fn slot_get_many(&self, object: &ObjectId, indexes: &[u64]) -> Completion<Vec<Option<Bytes>>> {
        self.read_of(Some(object), || self.store.slot_get_many(object, indexes))
    }
    fn slot_scan(&self, object: &ObjectId, scan: &SlotScan) -> Completion<Vec<(u64, Bytes)>> {
        self.read_of(Some(object), || self.store.slot_scan(object, scan))
    }
    fn commit_scan(
        &self,
        collection: &Collection,
        prefix: &[u8],
        after: CommitCursor,
        limit: usize,
    ) -> Completion<(Vec<CommitEntry>, Option<CommitCursor>)> {
        self.read_of(None, || self.store.commit_scan(collection, prefix, after, limit))
    }
    fn collections(&self) -> Completion<Vec<Collection>> {
        self.read_of(None, || self.store.collections())
    }
    fn list(&self, collection: &Collection, after: Option<&[u8]>, limit: usize) -> Completion<Vec<Bytes>> {
        self.read_of(None, || self.store.list(collection, after, limit))
    }
}
