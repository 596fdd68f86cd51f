//! A store in memory whose transactions become durable only when the test says so, and in which something else is done
//! between two reads.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use esker_memory::MemoryStore;
use esker_store::{
    Barrier, Capability, Collection, CommitCursor, CommitEntry, CommitSeq, Completion, DataRun, Durability,
    DurableMark, ObjectId, ObjectStore, OmapScan, SlotScan, Stat, Transaction,
};

/// The store. While it is held, transactions are applied and do not become durable.
pub struct Held {
    store: Arc<MemoryStore>,
    mark: Arc<DurableMark>,
    submitted: AtomicU64,
    held: AtomicBool,
    before_xattr: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Held {
    pub fn new() -> Arc<Self> {
        let mark = DurableMark::new(0, Box::new(|| {}));
        let (submitted, held) = (AtomicU64::new(0), AtomicBool::new(false));
        Arc::new(Self { store: Arc::new(MemoryStore::new()), mark, submitted, held, before_xattr: Mutex::default() })
    }

    /// Does something once, before the next read of an xattr.
    pub fn before_xattr(&self, hook: impl FnOnce() + Send + 'static) {
        *self.before_xattr.lock().unwrap() = Some(Box::new(hook));
    }

    /// What was applied, durable or not.
    pub fn below(&self) -> Arc<MemoryStore> {
        Arc::clone(&self.store)
    }

    /// From now on nothing becomes durable, until it is released or the test ends: a server stops only when its appends
    /// are answered, so a test that fails would wait for it for ever.
    #[must_use]
    pub fn hold(self: &Arc<Self>) -> Holding {
        self.held.store(true, Ordering::SeqCst);
        Holding(Arc::clone(self))
    }

    /// One more of what was submitted is durable.
    pub fn release_one(&self) {
        self.mark.advance(self.mark.durable() + 1);
    }

    /// All that was submitted is durable, and all that will be.
    pub fn release(&self) {
        self.held.store(false, Ordering::SeqCst);
        self.mark.advance(self.submitted.load(Ordering::SeqCst));
    }
}

/// Releases what is held, at the end of a test that failed too.
pub struct Holding(Arc<Held>);

impl Drop for Holding {
    fn drop(&mut self) {
        self.0.release();
    }
}

impl ObjectStore for Held {
    fn capability(&self) -> Capability {
        self.store.capability()
    }
    fn submit(&self, txn: Transaction) -> Completion<CommitSeq> {
        let durable = txn.durability != Durability::Applied;
        let (outcome, _) = self.store.submit(txn).into_parts();
        let position = self.submitted.fetch_add(1, Ordering::SeqCst) + 1;
        if !self.held.load(Ordering::SeqCst) {
            self.mark.advance(position);
        }
        let barrier = (durable && outcome.is_ok()).then(|| Barrier::new(&self.mark, position));
        Completion::after(outcome, barrier)
    }
    fn sync(&self) -> Completion<CommitSeq> {
        self.store.sync()
    }
    fn stat(&self, object: &ObjectId) -> Completion<Option<Stat>> {
        self.store.stat(object)
    }
    fn read(&self, object: &ObjectId, range: Range<u64>) -> Completion<Bytes> {
        self.store.read(object, range)
    }
    fn extents(&self, object: &ObjectId, range: Range<u64>) -> Completion<Vec<DataRun>> {
        self.store.extents(object, range)
    }
    fn xattr(&self, object: &ObjectId, name: &[u8]) -> Completion<Option<Bytes>> {
        let hook = self.before_xattr.lock().unwrap().take();
        if let Some(hook) = hook {
            hook();
        }
        self.store.xattr(object, name)
    }
    fn xattrs(&self, object: &ObjectId) -> Completion<Vec<(Bytes, Bytes)>> {
        self.store.xattrs(object)
    }
    fn omap_get(&self, object: &ObjectId, key: &[u8]) -> Completion<Option<Bytes>> {
        self.store.omap_get(object, key)
    }
    fn omap_get_many(&self, object: &ObjectId, keys: &[Bytes]) -> Completion<Vec<Option<Bytes>>> {
        self.store.omap_get_many(object, keys)
    }
    fn omap_scan(&self, object: &ObjectId, scan: &OmapScan) -> Completion<Vec<(Bytes, Bytes)>> {
        self.store.omap_scan(object, scan)
    }
    fn slot_get(&self, object: &ObjectId, index: u64) -> Completion<Option<Bytes>> {
        // What was written a moment ago may be shown when it is durable.
        let barrier = Barrier::new(&self.mark, self.submitted.load(Ordering::SeqCst));
        self.store.slot_get(object, index).behind(Some(barrier))
    }
    fn slot_get_many(&self, object: &ObjectId, indexes: &[u64]) -> Completion<Vec<Option<Bytes>>> {
        self.store.slot_get_many(object, indexes)
    }
    fn slot_scan(&self, object: &ObjectId, scan: &SlotScan) -> Completion<Vec<(u64, Bytes)>> {
        self.store.slot_scan(object, scan)
    }
    fn commit_scan(
        &self,
        collection: &Collection,
        prefix: &[u8],
        after: CommitCursor,
        limit: usize,
    ) -> Completion<(Vec<CommitEntry>, Option<CommitCursor>)> {
        self.store.commit_scan(collection, prefix, after, limit)
    }
    fn collections(&self) -> Completion<Vec<Collection>> {
        self.store.collections()
    }
    fn list(&self, collection: &Collection, after: Option<&[u8]>, limit: usize) -> Completion<Vec<Bytes>> {
        self.store.list(collection, after, limit)
    }
}
