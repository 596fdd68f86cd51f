//! A store made less able, for faces to show that they do with it; and what every store around another says alike.

use bytes::Bytes;

use crate::{
    Capability, Change, CommitSeq, Completion, Forward, ObjectId, ObjectStore, OmapScan, Op, SlotScan, Transaction,
};

/// A store whose transactions reach over one object only, that clones nothing, does not scan backwards, and keeps
/// objects small: what a face does on it needs no more. Other calls panic.
pub struct PerObject<S>(pub S);

impl<S: ObjectStore> Forward for PerObject<S> {
    fn behind(&self) -> &dyn ObjectStore {
        &self.0
    }

    fn capability(&self) -> Capability {
        let all = self.0.capability();
        Capability {
            backend: "lacking",
            atomic_across_objects: false,
            atomic_across_collections: false,
            clone: false,
            cheap_clone: false,
            object_bytes_max: 8 << 20,
            reverse_scans: false,
            afar: true,
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

    fn omap_scan(&self, object: &ObjectId, scan: &OmapScan) -> Completion<Vec<(Bytes, Bytes)>> {
        assert!(!scan.reverse, "a scan backwards was asked for");
        self.0.omap_scan(object, scan)
    }

    fn slot_scan(&self, object: &ObjectId, scan: &SlotScan) -> Completion<Vec<(u64, Bytes)>> {
        assert!(!scan.reverse, "a scan backwards was asked for");
        self.0.slot_scan(object, scan)
    }
}

/// All calls but `capability`, `submit` and `snapshot` of a store that stands around another, in this field of it.
#[macro_export]
macro_rules! forward_reads {
    ($store:tt) => {
        fn watch(
            &self,
            object: &$crate::ObjectId,
            changed: $crate::Changed,
        ) -> $crate::Result<Box<dyn $crate::Watching>> {
            self.$store.watch(object, changed)
        }
        fn notify(&self, object: &$crate::ObjectId) {
            self.$store.notify(object);
        }
        fn sync(&self) -> $crate::Completion<$crate::CommitSeq> {
            self.$store.sync()
        }
        fn stat(&self, object: &$crate::ObjectId) -> $crate::Completion<Option<$crate::Stat>> {
            self.$store.stat(object)
        }
        fn read(&self, object: &$crate::ObjectId, range: std::ops::Range<u64>) -> $crate::Completion<bytes::Bytes> {
            self.$store.read(object, range)
        }
        fn extents(
            &self,
            object: &$crate::ObjectId,
            range: std::ops::Range<u64>,
        ) -> $crate::Completion<Vec<$crate::DataRun>> {
            self.$store.extents(object, range)
        }
        fn xattr(&self, object: &$crate::ObjectId, name: &[u8]) -> $crate::Completion<Option<bytes::Bytes>> {
            self.$store.xattr(object, name)
        }
        fn xattrs(&self, object: &$crate::ObjectId) -> $crate::Completion<Vec<(bytes::Bytes, bytes::Bytes)>> {
            self.$store.xattrs(object)
        }
        fn omap_get(&self, object: &$crate::ObjectId, key: &[u8]) -> $crate::Completion<Option<bytes::Bytes>> {
            self.$store.omap_get(object, key)
        }
        fn omap_get_many(
            &self,
            object: &$crate::ObjectId,
            keys: &[bytes::Bytes],
        ) -> $crate::Completion<Vec<Option<bytes::Bytes>>> {
            self.$store.omap_get_many(object, keys)
        }
        fn omap_scan(
            &self,
            object: &$crate::ObjectId,
            scan: &$crate::OmapScan,
        ) -> $crate::Completion<Vec<(bytes::Bytes, bytes::Bytes)>> {
            self.$store.omap_scan(object, scan)
        }
        fn slot_get(&self, object: &$crate::ObjectId, index: u64) -> $crate::Completion<Option<bytes::Bytes>> {
            self.$store.slot_get(object, index)
        }
        fn slot_get_many(
            &self,
            object: &$crate::ObjectId,
            indexes: &[u64],
        ) -> $crate::Completion<Vec<Option<bytes::Bytes>>> {
            self.$store.slot_get_many(object, indexes)
        }
        fn slot_scan(
            &self,
            object: &$crate::ObjectId,
            scan: &$crate::SlotScan,
        ) -> $crate::Completion<Vec<(u64, bytes::Bytes)>> {
            self.$store.slot_scan(object, scan)
        }
        fn commit_scan(
            &self,
            collection: &$crate::Collection,
            prefix: &[u8],
            after: $crate::CommitCursor,
            limit: usize,
        ) -> $crate::Completion<(Vec<$crate::CommitEntry>, Option<$crate::CommitCursor>)> {
            self.$store.commit_scan(collection, prefix, after, limit)
        }
        fn collections(&self) -> $crate::Completion<Vec<$crate::Collection>> {
            self.$store.collections()
        }
        fn list(
            &self,
            collection: &$crate::Collection,
            after: Option<&[u8]>,
            limit: usize,
        ) -> $crate::Completion<Vec<bytes::Bytes>> {
            self.$store.list(collection, after, limit)
        }
    };
}
