//! Copying a whole store to another of any backend: every collection, object and space, holes and sizes included.
//!
//! source → [`copy`]: transactions of bounded size, each with a mark of how far it is → target → [`verify_copy`]:
//! everything is read again from both and compared → the mark goes
//!
//! The mark stands in a collection of its own, which the target has while it is a half copy, and no longer. A copy that
//! was interrupted goes on from it.
//!
//! Invariants:
//! 1. Memory and transactions are bounded, whatever the store holds: by [`CHUNK_BYTES`], or one value where that is
//!    larger.
//! 2. A target is written to only if it is empty or a half copy of the same source.
//! 3. The mark goes only after source and target were compared in full.
//!
//! Format of the mark: docs/format.md#half-copies

mod compare;
mod mark;
mod walk;

use esker_store::{Change, Collection, Durability, ObjectId, ObjectStore, Op, Transaction};

pub use compare::verify_copy;
use mark::{COLLECTION, Mark, Place, Space};
use walk::{READ_BYTES, Runs, names, omap, slots};

use crate::{Error, Result};

/// Bytes of payload in one transaction, about; less where the target takes less.
pub const CHUNK_BYTES: u64 = 4 << 20;
/// Operations in one transaction.
const CHUNK_OPS: usize = 2_000;
/// Bytes after which the target is synced, so that an interrupted copy has not far to go again.
const SYNC_BYTES: u64 = 64 << 20;

/// How far a copy, or its comparison, is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopyProgress {
    /// Objects done.
    pub objects: u64,
    /// Objects in all.
    pub objects_total: u64,
    /// Bytes of data, keys and values done; those before an interruption are not counted.
    pub bytes: u64,
}

/// What was copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopyReport {
    /// Objects of the source.
    pub objects: u64,
    /// Bytes of data, keys and values that this run copied.
    pub bytes: u64,
    /// Transactions that this run made.
    pub transactions: u64,
    /// Whether it went on from an interrupted copy.
    pub resumed: bool,
}

/// What was compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VerifyReport {
    /// Collections.
    pub collections: u64,
    /// Objects.
    pub objects: u64,
    /// Bytes of data, keys and values.
    pub bytes: u64,
    /// CRC32C over all names, sizes, runs of data, keys and values, in order: the same for stores of the same content.
    pub crc: u32,
}

/// Copies everything in `from` to `to`, or goes on where an earlier run was interrupted. No other client may write
/// to either meanwhile. `source` names `from`, so that a half copy is gone on with from the same source only.
/// Afterwards `to` is still a half copy: [`verify_copy`] ends it.
///
/// # Errors
/// [`Error::TargetNotEmpty`], [`Error::OtherCopy`], [`Error::HalfCopy`]; [`Error::Store`] names what a store refused.
pub fn copy(
    from: &dyn ObjectStore,
    to: &dyn ObjectStore,
    source: &str,
    progress: &mut dyn FnMut(CopyProgress),
) -> Result<CopyReport> {
    if Mark::read(from)?.is_some() {
        return Err(Error::HalfCopy);
    }
    let found = Mark::read(to)?;
    let (start, resumed) = match found {
        Some(mark) if mark.source == source => (mark.place, true),
        Some(mark) => return Err(Error::OtherCopy { found: mark.source, expected: source.to_string() }),
        None => {
            if let Some(collection) = contents(to)?.first() {
                return Err(Error::TargetNotEmpty { found: collection.to_string() });
            }
            Mark { source: source.to_string(), place: Place::default() }.begin(to)?;
            (Place::default(), false)
        }
    };
    let collections = contents(from)?;
    let mut copier = Copier::new(from, to, progress);
    for collection in &collections {
        for name in names(from, collection, None) {
            name?;
            copier.shown.objects_total += 1;
        }
    }
    for collection in collections.iter().filter(|collection| **collection >= start.collection) {
        copier.collection(collection, &start)?;
    }
    copier.shown.objects = copier.shown.objects_total;
    if start.space != Space::All {
        copier.flush(Place { space: Space::All, ..start })?;
    }
    to.sync().wait()?;
    (copier.progress)(copier.shown);
    let CopyProgress { objects, bytes, .. } = copier.shown;
    Ok(CopyReport { objects, bytes, transactions: copier.transactions, resumed })
}

/// The collections of a store but that of the mark, which may be there without one.
fn contents(store: &dyn ObjectStore) -> Result<Vec<Collection>> {
    let mut collections = store.collections().wait()?;
    collections.retain(|collection| *collection != Collection::from(COLLECTION));
    Ok(collections)
}

struct Copier<'a> {
    from: &'a dyn ObjectStore,
    to: &'a dyn ObjectStore,
    progress: &'a mut dyn FnMut(CopyProgress),
    shown: CopyProgress,
    /// The transaction in the making, and bytes of payload in it.
    txn: Transaction,
    filled: u64,
    chunk_bytes: u64,
    unsynced: u64,
    transactions: u64,
}

impl<'a> Copier<'a> {
    fn new(from: &'a dyn ObjectStore, to: &'a dyn ObjectStore, progress: &'a mut dyn FnMut(CopyProgress)) -> Self {
        let chunk_bytes = CHUNK_BYTES.min(to.capability().transaction_bytes_max / 2);
        let txn = Transaction::with(Durability::Applied);
        let shown = CopyProgress::default();
        Self { from, to, progress, shown, txn, filled: 0, chunk_bytes, unsynced: 0, transactions: 0 }
    }

    /// Adds an operation, after which the copy is at `place`.
    fn push(&mut self, op: Op, bytes: u64, place: impl FnOnce() -> Place) -> Result<()> {
        self.txn.ops.push(op);
        self.filled += bytes;
        self.shown.bytes += bytes;
        if self.filled >= self.chunk_bytes || self.txn.ops.len() >= CHUNK_OPS {
            self.flush(place())?;
        }
        Ok(())
    }

    /// Submits what was gathered, with the mark at `place`.
    fn flush(&mut self, place: Place) -> Result<()> {
        let mut txn = std::mem::replace(&mut self.txn, Transaction::with(Durability::Applied));
        if !self.to.capability().atomic_across_collections && !txn.ops.is_empty() {
            // Then the mark comes later: what it does not cover is only copied again.
            self.to.submit(std::mem::replace(&mut txn, Transaction::with(Durability::Applied))).wait()?;
        }
        place.put(&mut txn);
        self.to.submit(txn).wait()?;
        self.transactions += 1;
        self.unsynced += std::mem::take(&mut self.filled);
        if self.unsynced >= SYNC_BYTES {
            self.to.sync().wait()?;
            self.unsynced = 0;
        }
        (self.progress)(self.shown);
        Ok(())
    }

    fn collection(&mut self, collection: &Collection, start: &Place) -> Result<()> {
        if start.space == Space::All {
            return Ok(());
        }
        let here = *collection == start.collection;
        if self.to.capability().atomic_across_collections {
            self.txn.ops.push(Op::CreateCollection(collection.clone()));
        } else {
            self.to.submit(Transaction::new().create_collection(collection)).wait()?;
        }
        if here && start.space != Space::Done {
            self.object(&ObjectId::new(collection.clone(), start.name.clone()), start)?;
        }
        for name in names(self.from, collection, here.then(|| start.name.clone())) {
            self.object(&ObjectId::new(collection.clone(), name?), &Place::default())?;
        }
        self.flush(Place { collection: collection.clone(), name: last_name(), space: Space::Done, at: [][..].into() })
    }

    /// Copies an object from `start` on; the default is its beginning.
    fn object(&mut self, id: &ObjectId, start: &Place) -> Result<()> {
        let Some(stat) = self.from.stat(id).wait()? else {
            return Err(Error::CopyDiffers { what: format!("{id} went away") });
        };
        let place = |space, at: &[u8]| Place {
            collection: id.collection().clone(),
            name: id.name().clone(),
            space,
            at: bytes::Bytes::copy_from_slice(at),
        };
        let op = |change| Op::Object(id.clone(), change);
        if start.space == Space::Begin {
            self.push(op(Change::Touch), 0, || place(Space::Begin, &[]))?;
            if stat.size > 0 {
                self.push(op(Change::Truncate { size: stat.size }), 0, || place(Space::Begin, &[]))?;
            }
            for (name, value) in self.from.xattrs(id).wait()? {
                let len = (name.len() + value.len()) as u64;
                // All of them again, if interrupted: they are few.
                self.push(op(Change::XattrSet { name, value }), len, || place(Space::Begin, &[]))?;
            }
        }
        if start.space <= Space::Bytes {
            let from = start.offset();
            for run in Runs::new(self.from, id, from..stat.size) {
                let run = run?;
                let (mut offset, end) = (run.offset, run.offset + run.len);
                while offset < end {
                    let data = self.from.read(id, offset..end.min(offset + READ_BYTES.min(self.chunk_bytes))).wait()?;
                    if data.is_empty() {
                        return Err(Error::CopyDiffers { what: format!("{id} became shorter") });
                    }
                    let (at, len) = (offset, data.len() as u64);
                    offset += len;
                    self.push(op(Change::Write { offset: at, data }), len, || {
                        place(Space::Bytes, &offset.to_le_bytes())
                    })?;
                }
            }
        }
        if start.space <= Space::Omap {
            let after = (start.space == Space::Omap).then(|| start.at.clone());
            for entry in omap(self.from, id, after) {
                let (key, value) = entry?;
                let (done, len) = (key.clone(), (key.len() + value.len()) as u64);
                self.push(op(Change::OmapSet { key, value }), len, || place(Space::Omap, &done))?;
            }
        }
        let after = (start.space == Space::Slots).then(|| start.offset());
        for entry in slots(self.from, id, after) {
            let (index, value) = entry?;
            let len = 8 + value.len() as u64;
            self.push(op(Change::SlotSet { index, value }), len, || place(Space::Slots, &index.to_le_bytes()))?;
        }
        self.shown.objects += 1;
        if self.to.capability().atomic_across_objects { Ok(()) } else { self.flush(place(Space::Done, &[])) }
    }
}

/// Above every object's name.
fn last_name() -> bytes::Bytes {
    vec![0xff; esker_store::limits::OBJECT_NAME_BYTES_MAX].into()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use esker_kv::{Kind, Kv, ManualClock, Scan};
    use esker_memory::MemoryStore;
    use esker_store::contract::PerObject;
    use esker_store::{CommitSeq, Completion, Error as StoreError, Forward};

    use super::*;

    /// A store that changes one object at a time, and stops after so many transactions.
    struct Stopping {
        store: PerObject<MemoryStore>,
        left: AtomicU64,
    }

    impl Forward for Stopping {
        fn behind(&self) -> &dyn ObjectStore {
            &self.store
        }

        fn submit(&self, txn: Transaction) -> Completion<CommitSeq> {
            if self.left.load(Ordering::SeqCst) == 0 {
                return Completion::ready(Err(StoreError::Closed));
            }
            self.left.fetch_sub(1, Ordering::SeqCst);
            Forward::submit(&self.store, txn)
        }
    }

    fn face(store: Arc<dyn ObjectStore>) -> Kv {
        Kv::open_in_partitions(store, Arc::new(ManualClock::new(1_000))).unwrap()
    }

    /// Failure: opening the face of keys on a half copy removed the keys in partitions that were copied, as the names
    /// of their objects sort before that of the object which says whose they are.
    #[test]
    fn a_half_copy_loses_nothing_when_keys_are_opened_on_it() {
        let from: Arc<dyn ObjectStore> = Arc::new(MemoryStore::new());
        let kv = face(Arc::clone(&from));
        for (name, kind) in [("db0", Kind::Bytes), ("numbers", Kind::Int), ("z", Kind::Bytes)] {
            let namespace = kv.namespace(name, kind).unwrap();
            for number in 0..4u64 {
                match kind {
                    Kind::Int => namespace.put(number << 20, "v").wait().unwrap(),
                    Kind::Bytes => namespace.put(&number.to_be_bytes(), "v").wait().unwrap(),
                }
            }
        }
        for transactions in 0.. {
            assert!(transactions < 1_000, "the copy does not end");
            let store = PerObject(MemoryStore::new());
            let to = Arc::new(Stopping { store, left: AtomicU64::new(transactions) });
            let ended = copy(&*from, &*to, "here", &mut |_| {}).is_ok();
            to.left.store(u64::MAX, Ordering::SeqCst);
            if Mark::read(&*to).unwrap().is_none() {
                // It had not begun.
                assert_eq!(transactions, 0);
                continue;
            }
            drop(face(Arc::clone(&to) as Arc<dyn ObjectStore>));
            copy(&*from, &*to, "here", &mut |_| {}).unwrap();
            verify_copy(&*from, &*to, &mut |_| {}).unwrap();
            let kv = face(to);
            for (name, kind) in kv.namespaces().unwrap() {
                let namespace = kv.namespace(&name, kind).unwrap();
                assert_eq!(namespace.scan(&Scan::all()).wait().unwrap().len(), 4, "{name} after {transactions}");
            }
            if ended {
                return;
            }
        }
    }
}
