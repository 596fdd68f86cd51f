//! Shorthand for the contract's tests: names, changes, submitting, reading, and a snapshot of everything readable.
//!
//! Invariant: nothing here decides what is right; an unexpected error panics with the place of the test that met it.

use bytes::Bytes;

use super::{Harness, Opened};
use crate::{
    Change, Collection, Condition, DataRun, Error, ObjectId, ObjectStore, OmapScan, SlotScan, Stat, Transaction,
};

/// The collection that most tests use.
pub(super) const HOME: &str = "home";
/// Another one.
pub(super) const AWAY: &str = "away";

/// A fresh store with the collections [`HOME`] and [`AWAY`].
#[track_caller]
pub(super) fn furnished(harness: &dyn Harness) -> Box<dyn Opened> {
    let opened = harness.fresh();
    // Apart, for stores that are not atomic across collections.
    ok(opened.store(), Transaction::new().create_collection(&HOME.into()));
    ok(opened.store(), Transaction::new().create_collection(&AWAY.into()));
    opened
}

/// An object of [`HOME`].
pub(super) fn object(name: &str) -> ObjectId {
    object_in(HOME, name)
}

/// An object of any collection.
pub(super) fn object_in(collection: &'static str, name: &str) -> ObjectId {
    ObjectId::new(Collection::from(collection), Bytes::copy_from_slice(name.as_bytes()))
}

/// Bytes of a literal.
pub(super) fn bytes(text: impl AsRef<[u8]>) -> Bytes {
    Bytes::copy_from_slice(text.as_ref())
}

/// A transaction of changes to one object.
pub(super) fn changes(object: &ObjectId, changes: impl IntoIterator<Item = Change>) -> Transaction {
    changes.into_iter().fold(Transaction::new(), |txn, change| txn.change(object, change))
}

/// A transaction of guards on one object.
pub(super) fn guarded(object: &ObjectId, conditions: impl IntoIterator<Item = Condition>) -> Transaction {
    conditions.into_iter().fold(Transaction::new(), |txn, condition| txn.guard(object, condition))
}

pub(super) fn write(offset: u64, data: impl AsRef<[u8]>) -> Change {
    Change::Write { offset, data: bytes(data) }
}

pub(super) fn xattr_set(name: &str, value: impl AsRef<[u8]>) -> Change {
    Change::XattrSet { name: bytes(name), value: bytes(value) }
}

pub(super) fn omap_set(key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Change {
    Change::OmapSet { key: bytes(key), value: bytes(value) }
}

pub(super) fn omap_remove(key: impl AsRef<[u8]>) -> Change {
    Change::OmapRemove { key: bytes(key) }
}

pub(super) fn slot_set(index: u64, value: impl AsRef<[u8]>) -> Change {
    Change::SlotSet { index, value: bytes(value) }
}

/// Submits and waits; anything but success is a failed test.
#[track_caller]
pub(super) fn ok(store: &dyn ObjectStore, txn: Transaction) {
    if let Err(error) = store.submit(txn).wait() {
        panic!("the transaction was refused: {error}");
    }
}

/// Changes one object and waits.
#[track_caller]
pub(super) fn change(store: &dyn ObjectStore, object: &ObjectId, changed: impl IntoIterator<Item = Change>) {
    ok(store, changes(object, changed));
}

/// Submits a transaction that has to be refused.
#[track_caller]
pub(super) fn refusal(store: &dyn ObjectStore, txn: Transaction) -> Error {
    match store.submit(txn).wait() {
        Ok(seq) => panic!("the transaction was accepted as {seq:?}, and should have been refused"),
        Err(error) => error,
    }
}

/// Submits a transaction that has to be refused and to change nothing readable.
#[track_caller]
pub(super) fn refused_without_change(store: &dyn ObjectStore, txn: Transaction) -> Error {
    let before = snapshot(store);
    let error = refusal(store, txn);
    let after = snapshot(store);
    assert!(
        before == after,
        "a refused transaction ({error}) changed something:\nbefore {before:#?}\nafter {after:#?}"
    );
    error
}

/// The value of a completion; an error is a failed test.
#[track_caller]
pub(super) fn got<T>(completion: crate::Completion<T>) -> T {
    match completion.wait() {
        Ok(value) => value,
        Err(error) => panic!("the read failed: {error}"),
    }
}

/// All bytes of an object.
#[track_caller]
pub(super) fn contents(store: &dyn ObjectStore, object: &ObjectId) -> Bytes {
    let size = got(store.stat(object)).map_or(0, |stat| stat.size);
    got(store.read(object, 0..size))
}

/// Whether an object exists.
#[track_caller]
pub(super) fn exists(store: &dyn ObjectStore, object: &ObjectId) -> bool {
    got(store.stat(object)).is_some()
}

/// The runs of data as (offset, length).
#[track_caller]
pub(super) fn runs(store: &dyn ObjectStore, object: &ObjectId, range: std::ops::Range<u64>) -> Vec<(u64, u64)> {
    got(store.extents(object, range)).into_iter().map(|DataRun { offset, len }| (offset, len)).collect()
}

/// Checks which runs of data a store tells. One that does not tell them exactly has to tell all that is not zero, in
/// order, apart, and within the range and the object.
#[track_caller]
pub(super) fn check_runs(
    store: &dyn ObjectStore,
    object: &ObjectId,
    range: std::ops::Range<u64>,
    expected: &[(u64, u64)],
    context: &str,
) {
    let told = runs(store, object, range.clone());
    if store.capability().exact_extents {
        assert_eq!(told, expected, "{context}");
        return;
    }
    let size = got(store.stat(object)).map_or(0, |stat| stat.size);
    let mut end = None;
    for (offset, len) in &told {
        assert!(*len > 0 && *offset >= range.start && offset + len <= range.end.min(size), "{told:?} {context}");
        assert!(end.is_none_or(|end| end < *offset), "{told:?} {context}");
        end = Some(offset + len);
    }
    for (offset, len) in expected {
        for (at, byte) in (*offset..).zip(got(store.read(object, *offset..offset + len))) {
            let inside = told.iter().any(|(offset, len)| (*offset..offset + len).contains(&at));
            assert!(byte == 0 || inside, "byte {at} is told as a hole: {told:?} {context}");
        }
    }
}

/// The whole omap, page by page.
#[track_caller]
pub(super) fn whole_omap(store: &dyn ObjectStore, object: &ObjectId) -> Vec<(Bytes, Bytes)> {
    let mut scan = OmapScan { limit: usize::MAX, ..OmapScan::default() };
    let mut all: Vec<(Bytes, Bytes)> = Vec::new();
    loop {
        let page = got(store.omap_scan(object, &scan));
        let Some((last, _)) = page.last() else { return all };
        scan.start = Some([&last[..], &[0]].concat().into());
        all.extend(page);
    }
}

/// All slots, page by page.
#[track_caller]
pub(super) fn whole_slots(store: &dyn ObjectStore, object: &ObjectId) -> Vec<(u64, Bytes)> {
    let mut scan = SlotScan { range: 0..u64::MAX, reverse: false, limit: usize::MAX, keys_only: false };
    let mut all: Vec<(u64, Bytes)> = Vec::new();
    loop {
        let page = got(store.slot_scan(object, &scan));
        let Some(next) = page.last().map(|(last, _)| last.checked_add(1)) else { return all };
        all.extend(page);
        let Some(next) = next else { return all };
        scan.range.start = next;
    }
}

/// Everything readable of one object. Bytes are read up to 1 MiB.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ObjectSnapshot {
    pub id: ObjectId,
    pub stat: Option<Stat>,
    pub bytes: Bytes,
    pub runs: Vec<DataRun>,
    pub xattrs: Vec<(Bytes, Bytes)>,
    pub omap: Vec<(Bytes, Bytes)>,
    pub slots: Vec<(u64, Bytes)>,
}

/// Everything readable of one object.
#[track_caller]
pub(super) fn snapshot_of(store: &dyn ObjectStore, id: &ObjectId) -> ObjectSnapshot {
    ObjectSnapshot {
        id: id.clone(),
        stat: got(store.stat(id)),
        bytes: got(store.read(id, 0..1 << 20)),
        runs: got(store.extents(id, 0..u64::MAX)),
        xattrs: got(store.xattrs(id)),
        omap: whole_omap(store, id),
        slots: whole_slots(store, id),
    }
}

/// Everything readable of a store.
#[track_caller]
pub(super) fn snapshot(store: &dyn ObjectStore) -> Vec<(Collection, Vec<ObjectSnapshot>)> {
    let collections = got(store.collections());
    collections
        .into_iter()
        .map(|collection| {
            let names = got(store.list(&collection, None, usize::MAX));
            let of = |name| snapshot_of(store, &ObjectId::new(collection.clone(), name));
            let objects = names.into_iter().map(of).collect();
            (collection, objects)
        })
        .collect()
}

/// An object with something in each space.
pub(super) fn filled() -> Vec<Change> {
    vec![
        write(3, "some bytes"),
        Change::Zero { offset: 5, len: 2 },
        Change::Truncate { size: 100 },
        xattr_set("a", "1"),
        xattr_set("b", ""),
        omap_set("key 1", "value 1"),
        omap_set("key 2", ""),
        omap_set("", "value of the empty key"),
        slot_set(0, "zero"),
        slot_set(70_000, "far"),
    ]
}

/// Says that a test is not for this backend.
pub(super) fn skip(store: &dyn ObjectStore, what: &str) {
    println!("skipped: {} cannot {what}", store.capability().backend);
}

/// Whether one transaction may touch several objects; prints that the test is skipped if not.
pub(super) fn joins_objects(store: &dyn ObjectStore) -> bool {
    let able = store.capability().atomic_across_objects;
    if !able {
        skip(store, "change several objects at once");
    }
    able
}

/// Whether one transaction may touch several collections; prints that the test is skipped if not.
pub(super) fn joins_collections(store: &dyn ObjectStore) -> bool {
    let able = joins_objects(store) && store.capability().atomic_across_collections;
    if !able {
        skip(store, "change several collections at once");
    }
    able
}
