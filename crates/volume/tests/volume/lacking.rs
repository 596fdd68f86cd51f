//! A backend that is not atomic across objects and clones nothing: what works, and what is refused by name.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use esker_memory::MemoryStore;
use esker_store::{
    Capability, Collection, CommitCursor, CommitEntry, CommitSeq, Completion, DataRun, Error as StoreError, ObjectId,
    ObjectStore, OmapScan, Op, SlotScan, Stat, Transaction,
};
use esker_volume::{Durability, Error, Volumes};
use fastrand::Rng;

use crate::support::{SMALL, write};

/// Memory that takes transactions of one object only.
struct Lacking(MemoryStore);

impl ObjectStore for Lacking {
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
                    !matches!(change, esker_store::Change::CloneTo { .. } | esker_store::Change::CloneRange { .. }),
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

#[test]
fn what_a_backend_cannot_do_is_refused_by_name_and_the_rest_works() {
    let volumes = Volumes::open(Arc::new(Lacking(MemoryStore::new()))).unwrap();
    let abilities = volumes.abilities();
    assert!(!abilities.atomic_writes && !abilities.snapshots && !abilities.persistent);
    let image = volumes.create("disk", 1 << 20, SMALL, 0).unwrap();
    let unsupported = |result: Result<(), Error>, what: &str| match result {
        Err(Error::Store(error @ StoreError::Unsupported { .. })) => {
            let text = error.to_string();
            assert!(text.starts_with("lacking cannot ") && text.contains(what), "{text}");
        }
        other => panic!("{other:?}"),
    };
    unsupported(image.snapshot_create("s", 0).map(drop), "snapshots");
    unsupported(image.lock("me").map(drop), "exclusive lock");
    unsupported(image.take_over("me").map(drop), "exclusive lock");
    unsupported(volumes.clone_image("disk", "s", "child", 0).map(drop), "clones");

    let mut model = vec![0u8; 1 << 20];
    let mut rng = Rng::with_seed(5);
    for _ in 0..300 {
        let offset = rng.u64(..1 << 20);
        let len = rng.u64(..=(200_000).min((1 << 20) - offset));
        let range = offset as usize..(offset + len) as usize;
        if rng.u8(..3) == 0 {
            image.discard(offset, len, Durability::Applied).unwrap().wait().unwrap();
            model[range].fill(0);
        } else {
            let byte = rng.u8(1..);
            write(&image, offset, vec![byte; len as usize]);
            model[range].fill(byte);
        }
    }
    assert!(image.read_bytes(0, 1 << 20).unwrap() == model);
    image.resize(100_000, true).unwrap();
    image.resize(1 << 20, false).unwrap();
    model[100_000..].fill(0);
    assert!(image.read_bytes(0, 1 << 20).unwrap() == model);
    volumes.rename("disk", "disc").unwrap();
    volumes.remove("disc").unwrap();
    assert!(volumes.work(&mut |_, _| true).unwrap());
    let left = volumes.store().list(&"volume".into(), None, 10).wait().unwrap();
    assert_eq!(left, ["directory"]);
}
