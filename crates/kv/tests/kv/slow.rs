//! A store whose durable mark is moved by hand, and in which something can happen between a read and what follows it.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use esker_memory::MemoryStore;
use esker_store::{
    Barrier, Capability, Collection, CommitCursor, CommitEntry, CommitSeq, Completion, DataRun, Durability,
    DurableMark, ObjectId, ObjectStore, OmapScan, SlotScan, Stat, Transaction,
};

/// The memory store, with a mark in front of it: whatever was written durably may be shown once the mark is there.
pub struct Slow {
    pub inner: MemoryStore,
    pub mark: Arc<DurableMark>,
    pub submits: AtomicU64,
    pub durable_submits: AtomicU64,
    /// Done once, after the next read of one key and before its answer is seen.
    pub after_get: Mutex<Option<Meanwhile>>,
}

/// What happens behind the reader's back.
pub type Meanwhile = Box<dyn FnOnce(&MemoryStore) + Send>;

impl Slow {
    /// An empty store whose first `durable` transactions are durable at once.
    pub fn new(durable: u64) -> Self {
        Self {
            inner: MemoryStore::new(),
            mark: DurableMark::new(durable, Box::new(|| {})),
            submits: AtomicU64::new(0),
            durable_submits: AtomicU64::new(0),
            after_get: Mutex::new(None),
        }
    }

    fn got<T>(&self, answer: Completion<T>) -> Completion<T> {
        let meanwhile = self.after_get.lock().unwrap().take();
        if let Some(meanwhile) = meanwhile {
            meanwhile(&self.inner);
        }
        self.behind(answer)
    }

    fn behind<T>(&self, answer: Completion<T>) -> Completion<T> {
        answer.behind(Some(Barrier::new(&self.mark, self.durable_submits.load(Ordering::SeqCst))))
    }
}

impl ObjectStore for Slow {
    fn capability(&self) -> Capability {
        self.inner.capability()
    }
    fn submit(&self, txn: Transaction) -> Completion<CommitSeq> {
        let durable = txn.durability != Durability::Applied;
        let (done, _) = self.inner.submit(txn).into_parts();
        let refused = done.is_err();
        let done = Completion::ready(done);
        if refused {
            return self.behind(done);
        }
        self.submits.fetch_add(1, Ordering::SeqCst);
        if !durable {
            return done;
        }
        self.durable_submits.fetch_add(1, Ordering::SeqCst);
        self.behind(done)
    }
    fn sync(&self) -> Completion<CommitSeq> {
        self.behind(self.inner.sync())
    }
    fn stat(&self, object: &ObjectId) -> Completion<Option<Stat>> {
        self.behind(self.inner.stat(object))
    }
    fn read(&self, object: &ObjectId, range: Range<u64>) -> Completion<Bytes> {
        self.behind(self.inner.read(object, range))
    }
    fn extents(&self, object: &ObjectId, range: Range<u64>) -> Completion<Vec<DataRun>> {
        self.behind(self.inner.extents(object, range))
    }
    fn xattr(&self, object: &ObjectId, name: &[u8]) -> Completion<Option<Bytes>> {
        self.behind(self.inner.xattr(object, name))
    }
    fn xattrs(&self, object: &ObjectId) -> Completion<Vec<(Bytes, Bytes)>> {
        self.behind(self.inner.xattrs(object))
    }
    fn omap_get(&self, object: &ObjectId, key: &[u8]) -> Completion<Option<Bytes>> {
        self.got(self.inner.omap_get(object, key))
    }
    fn omap_get_many(&self, object: &ObjectId, keys: &[Bytes]) -> Completion<Vec<Option<Bytes>>> {
        self.behind(self.inner.omap_get_many(object, keys))
    }
    fn omap_scan(&self, object: &ObjectId, scan: &OmapScan) -> Completion<Vec<(Bytes, Bytes)>> {
        self.behind(self.inner.omap_scan(object, scan))
    }
    fn slot_get(&self, object: &ObjectId, index: u64) -> Completion<Option<Bytes>> {
        self.got(self.inner.slot_get(object, index))
    }
    fn slot_get_many(&self, object: &ObjectId, indexes: &[u64]) -> Completion<Vec<Option<Bytes>>> {
        self.behind(self.inner.slot_get_many(object, indexes))
    }
    fn slot_scan(&self, object: &ObjectId, scan: &SlotScan) -> Completion<Vec<(u64, Bytes)>> {
        self.behind(self.inner.slot_scan(object, scan))
    }
    fn commit_scan(
        &self,
        collection: &Collection,
        name_prefix: &[u8],
        after: CommitCursor,
        limit: usize,
    ) -> Completion<(Vec<CommitEntry>, Option<CommitCursor>)> {
        self.behind(self.inner.commit_scan(collection, name_prefix, after, limit))
    }
    fn collections(&self) -> Completion<Vec<Collection>> {
        self.behind(self.inner.collections())
    }
    fn list(&self, collection: &Collection, after: Option<&[u8]>, limit: usize) -> Completion<Vec<Bytes>> {
        self.behind(self.inner.list(collection, after, limit))
    }
}
