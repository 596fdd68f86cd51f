//! A store made less able, for faces to show that they do with it.

use std::ops::Range;

use bytes::Bytes;

use crate::{
    Capability, Change, Collection, CommitCursor, CommitEntry, CommitSeq, Completion, DataRun, ObjectId, ObjectStore,
    OmapScan, Op, SlotScan, Stat, Transaction,
};

/// A store whose transactions reach over one object only, and that clones nothing: what a face does on it needs no more. Other
/// transactions panic.
pub struct PerObject<S>(pub S);

impl<S: ObjectStore> ObjectStore for PerObject<S> {
    fn capability(&self) -> Capability {
        let all = self.0.capability();
        Capability {
            backend: "lacking",
            atomic_across_objects: false,
            atomic_across_collections: false,
            clone: false,
            cheap_clone: false,
            ..all
        }
    }
    fn submit(&self, txn: Transaction) -> Completion<CommitSeq> {
        let mut objects: Vec<_> = txn.guards.iter().map(|guard| guard.object.clone()).collect();
        for op in &txn.ops {
            if let Op::Object(object, change) = op {
                objects.push(object.clone());
                assert!(
                    !matches!(change, Change::CloneTo { .. } | Change::CloneRange { .. } | Change::Rename { .. }),
                    "a clone was asked for"
                );
            }
        }
        objects.sort();
        objects.dedup();
        assert!(objects.len() <= 1, "one transaction over {objects:?}");
        self.0.submit(txn)
    }
    fn sync(&self) -> Completion<CommitSeq> {
        self.0.sync()
    }
    fn stat(&self, object: &ObjectId) -> Completion<Option<Stat>> {
        self.0.stat(object)
    }
    fn read(&self, object: &ObjectId, range: Range<u64>) -> Completion<Bytes> {
        self.0.read(object, range)
    }
    fn extents(&self, object: &ObjectId, range: Range<u64>) -> Completion<Vec<DataRun>> {
        self.0.extents(object, range)
    }
    fn xattr(&self, object: &ObjectId, name: &[u8]) -> Completion<Option<Bytes>> {
        self.0.xattr(object, name)
    }
    fn xattrs(&self, object: &ObjectId) -> Completion<Vec<(Bytes, Bytes)>> {
        self.0.xattrs(object)
    }
    fn omap_get(&self, object: &ObjectId, key: &[u8]) -> Completion<Option<Bytes>> {
        self.0.omap_get(object, key)
    }
    fn omap_get_many(&self, object: &ObjectId, keys: &[Bytes]) -> Completion<Vec<Option<Bytes>>> {
        self.0.omap_get_many(object, keys)
    }
    fn omap_scan(&self, object: &ObjectId, scan: &OmapScan) -> Completion<Vec<(Bytes, Bytes)>> {
        self.0.omap_scan(object, scan)
    }
    fn slot_get(&self, object: &ObjectId, index: u64) -> Completion<Option<Bytes>> {
        self.0.slot_get(object, index)
    }
    fn slot_get_many(&self, object: &ObjectId, indexes: &[u64]) -> Completion<Vec<Option<Bytes>>> {
        self.0.slot_get_many(object, indexes)
    }
    fn slot_scan(&self, object: &ObjectId, scan: &SlotScan) -> Completion<Vec<(u64, Bytes)>> {
        self.0.slot_scan(object, scan)
    }
    fn commit_scan(
        &self,
        collection: &Collection,
        prefix: &[u8],
        after: CommitCursor,
        limit: usize,
    ) -> Completion<(Vec<CommitEntry>, Option<CommitCursor>)> {
        self.0.commit_scan(collection, prefix, after, limit)
    }
    fn collections(&self) -> Completion<Vec<Collection>> {
        self.0.collections()
    }
    fn list(&self, collection: &Collection, after: Option<&[u8]>, limit: usize) -> Completion<Vec<Bytes>> {
        self.0.list(collection, after, limit)
    }
}
