//! A store that does something else just before one of its calls: another handle's change at the worst moment, or the
//! end of the process.
//!
//! [`Hooked::before`] arms one hook; the first call that it asks for disarms it and runs it, so that what it does
//! itself meets none.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use bytes::Bytes;
use esker_store::{
    Capability, Collection, CommitCursor, CommitEntry, CommitSeq, Completion, DataRun, Error, ObjectId, ObjectStore,
    OmapScan, SlotScan, Stat, Transaction,
};
use parking_lot::Mutex;

/// A call of the store.
pub enum Call<'c> {
    Submit,
    Sync,
    Scan(&'c ObjectId),
    Read(&'c ObjectId),
}

type Asks = Box<dyn Fn(&Call<'_>) -> bool + Send>;
type Does = Box<dyn FnOnce() + Send>;

pub struct Hooked {
    store: Arc<dyn ObjectStore>,
    hook: Mutex<Option<(Asks, Does)>>,
    /// So many submits go through; those after them fail, as they do when a process is gone.
    submits_left: AtomicI64,
}

impl Hooked {
    pub fn over(store: Arc<dyn ObjectStore>) -> Arc<Self> {
        Arc::new(Self { store, hook: Mutex::default(), submits_left: AtomicI64::new(i64::MAX) })
    }

    /// Runs `does` just before the next call that `asks` is for.
    pub fn before(&self, asks: impl Fn(&Call<'_>) -> bool + Send + 'static, does: impl FnOnce() + Send + 'static) {
        *self.hook.lock() = Some((Box::new(asks), Box::new(does)));
    }

    /// Lets so many more submits through.
    pub fn dies_after(&self, submits: i64) {
        self.submits_left.store(submits, Ordering::SeqCst);
    }

    /// Whether no hook waits.
    pub fn ran(&self) -> bool {
        self.hook.lock().is_none()
    }

    fn meet(&self, call: &Call<'_>) {
        let mut hook = self.hook.lock();
        if !hook.as_ref().is_some_and(|(asks, _)| asks(call)) {
            return;
        }
        let taken = hook.take();
        drop(hook);
        if let Some((_, does)) = taken {
            does();
        }
    }
}

impl ObjectStore for Hooked {
    fn capability(&self) -> Capability {
        self.store.capability()
    }
    fn submit(&self, txn: Transaction) -> Completion<CommitSeq> {
        self.meet(&Call::Submit);
        if self.submits_left.fetch_sub(1, Ordering::SeqCst) <= 0 {
            return Completion::ready(Err(Error::Closed));
        }
        self.store.submit(txn)
    }
    fn sync(&self) -> Completion<CommitSeq> {
        self.meet(&Call::Sync);
        self.store.sync()
    }
    fn stat(&self, object: &ObjectId) -> Completion<Option<Stat>> {
        self.store.stat(object)
    }
    fn read(&self, object: &ObjectId, range: Range<u64>) -> Completion<Bytes> {
        self.meet(&Call::Read(object));
        self.store.read(object, range)
    }
    fn extents(&self, object: &ObjectId, range: Range<u64>) -> Completion<Vec<DataRun>> {
        self.store.extents(object, range)
    }
    fn xattr(&self, object: &ObjectId, name: &[u8]) -> Completion<Option<Bytes>> {
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
        self.meet(&Call::Scan(object));
        self.store.omap_scan(object, scan)
    }
    fn slot_get(&self, object: &ObjectId, index: u64) -> Completion<Option<Bytes>> {
        self.store.slot_get(object, index)
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
