//! Atomicity: operations see those before them, and a refused transaction changes nothing.

use super::Harness;
use super::actions::*;
use crate::limits::{OMAP_KEY_BYTES_MAX, XATTR_VALUE_BYTES_MAX};
use crate::{Change, Condition, Error, ObjectStore, Stall, Stat, Transaction, Waits, WhenBusy};

/// Writes, zeros and truncates in a row.
pub fn operations_see_the_operations_before_them_in_bytes(harness: &dyn Harness) {
    let opened = furnished(harness);
    let store = opened.store();
    let object = object("o");
    let steps = [
        write(0, "abcdef"),
        write(2, "XX"),
        Change::Truncate { size: 5 },
        Change::Zero { offset: 0, len: 1 },
        Change::Truncate { size: 8 },
        write(7, "end"),
        Change::Zero { offset: 9, len: 3 },
    ];
    change(store, &object, steps);
    assert_eq!(contents(store, &object), "\0bXXe\0\0en\0\0\0");
    check_runs(store, &object, 0..100, &[(1, 4), (7, 2)], "");
}

/// Set, remove, set again.
pub fn operations_see_the_operations_before_them_in_xattrs(harness: &dyn Harness) {
    let opened = furnished(harness);
    let store = opened.store();
    let object = object("o");
    let remove = |name: &str| Change::XattrRemove { name: bytes(name) };
    let steps = [
        xattr_set("a", "1"),
        xattr_set("b", "1"),
        remove("a"),
        xattr_set("b", "2"),
        xattr_set("c", "1"),
        remove("c"),
        xattr_set("c", "2"),
    ];
    change(store, &object, steps);
    assert_eq!(got(store.xattrs(&object)), [(bytes("b"), bytes("2")), (bytes("c"), bytes("2"))]);
}

/// Keys set before a range removal or a clear in the same transaction go; keys set after stay.
pub fn operations_see_the_operations_before_them_in_omap(harness: &dyn Harness) {
    let opened = furnished(harness);
    let store = opened.store();
    let object = object("o");
    let steps = [
        omap_set("a", "1"),
        omap_set("b", "1"),
        omap_set("c", "1"),
        Change::OmapRemoveRange { start: bytes("b"), end: Some(bytes("c")) },
        omap_set("bb", "2"),
        omap_remove("a"),
        omap_set("c", "2"),
    ];
    change(store, &object, steps);
    assert_eq!(whole_omap(store, &object), [(bytes("bb"), bytes("2")), (bytes("c"), bytes("2"))]);
    change(store, &object, [omap_set("d", "3"), Change::OmapClear, omap_set("e", "4")]);
    assert_eq!(whole_omap(store, &object), [(bytes("e"), bytes("4"))]);
    let range = Change::OmapRemoveRange { start: bytes(""), end: None };
    change(store, &object, [omap_set("f", "5"), range, omap_set("e", "6"), omap_set("e", "7")]);
    assert_eq!(whole_omap(store, &object), [(bytes("e"), bytes("7"))]);
    assert_eq!(got(store.stat(&object)).map(|stat| stat.omap_keys), Some(1));
}

/// The same for slots.
pub fn operations_see_the_operations_before_them_in_slots(harness: &dyn Harness) {
    let opened = furnished(harness);
    let store = opened.store();
    let object = object("o");
    let steps = [
        slot_set(1, "1"),
        slot_set(2, "1"),
        slot_set(3, "1"),
        Change::SlotRemoveRange { start: 2, end: 3 },
        slot_set(4, "1"),
        Change::SlotRemove { index: 1 },
        slot_set(3, "2"),
        slot_set(1, "3"),
    ];
    change(store, &object, steps);
    assert_eq!(whole_slots(store, &object), [(1, bytes("3")), (3, bytes("2")), (4, bytes("1"))]);
    change(store, &object, [slot_set(9, "9"), Change::SlotRemoveRange { start: 0, end: u64::MAX }, slot_set(5, "5")]);
    assert_eq!(whole_slots(store, &object), [(5, bytes("5"))]);
    assert_eq!(got(store.stat(&object)).map(|stat| stat.slots), Some(1));
}

/// Objects and collections that come and go inside a transaction.
pub fn operations_see_the_operations_before_them_in_names(harness: &dyn Harness) {
    let opened = furnished(harness);
    let store = opened.store();
    if !joins_collections(store) {
        return;
    }
    let new = object_in("new", "o");
    ok(store, Transaction::new().create_collection(&"new".into()).change(&new, omap_set("k", "v")));
    assert!(exists(store, &new));
    let txn = Transaction::new().change(&new, Change::Remove).remove_collection(&"new".into());
    ok(store, txn.create_collection(&"new".into()).change(&new, Change::Touch));
    assert_eq!(got(store.stat(&new)), Some(Stat::default()));
    let txn = Transaction::new().change(&new, Change::Remove).remove_collection(&"new".into());
    let error = refused_without_change(store, txn.change(&new, Change::Touch));
    assert!(matches!(error, Error::NoCollection { .. }), "{error}");
    let txn = Transaction::new().create_collection(&"newer".into()).change(&object_in("newer", "o"), Change::Touch);
    let error = refused_without_change(store, txn.remove_collection(&"newer".into()));
    assert!(matches!(error, Error::NotEmpty { .. }), "{error}");
}

/// Several objects in several collections at once.
pub fn a_transaction_over_objects_and_collections_is_applied_whole(harness: &dyn Harness) {
    let opened = furnished(harness);
    let store = opened.store();
    if !joins_collections(store) {
        return;
    }
    let objects: Vec<_> =
        (0..20).map(|number| object_in(if number % 2 == 0 { HOME } else { AWAY }, &format!("o{number}"))).collect();
    let mut txn = Transaction::new();
    for round in 0..3 {
        for (number, object) in objects.iter().enumerate() {
            txn.push(object, slot_set(round, format!("{number}.{round}")));
            txn.push(object, write(round * 2, "ab"));
        }
    }
    ok(store, txn);
    for (number, object) in objects.iter().enumerate() {
        let expected: Vec<_> = (0..3).map(|round| (round, bytes(format!("{number}.{round}")))).collect();
        assert_eq!(whole_slots(store, object), expected);
        assert_eq!(contents(store, object), "ababab");
    }
}

/// A transaction that does a lot to what is there and to what is not, in every space.
fn busy(store: &dyn ObjectStore) -> Transaction {
    let there = object("there");
    let mut txn = Transaction::new();
    for changed in [
        write(1, "overwritten"),
        Change::Zero { offset: 0, len: 3 },
        Change::Truncate { size: 7 },
        xattr_set("a", "new"),
        Change::XattrRemove { name: bytes("b") },
        omap_set("key 1", "new"),
        omap_remove("key 2"),
        Change::OmapRemoveRange { start: bytes("a"), end: None },
        omap_set("new", "new"),
        slot_set(0, "new"),
        Change::SlotRemoveRange { start: 1, end: u64::MAX },
    ] {
        txn.push(&there, changed);
    }
    if store.capability().atomic_across_objects {
        txn.push(&object("also there"), Change::Remove);
        txn.push(&object("new"), write(0, "new"));
    }
    if store.capability().atomic_across_collections {
        txn.push(&object_in(AWAY, "new"), omap_set("k", "v"));
        txn = txn.create_collection(&"new".into()).change(&object_in("new", "o"), Change::Touch);
    }
    txn
}

#[track_caller]
fn refused(harness: &dyn Harness, spoil: impl Fn(Transaction) -> Transaction) -> Error {
    let opened = furnished(harness);
    let store = opened.store();
    change(store, &object("there"), filled());
    change(store, &object("also there"), filled());
    let error = refused_without_change(store, spoil(busy(store)));
    // The same without the fault goes through: it was the fault that refused it.
    ok(store, busy(store));
    error
}

/// A failed guard.
pub fn a_failed_guard_changes_nothing(harness: &dyn Harness) {
    let error = refused(harness, |txn| txn.guard(&object("there"), Condition::SlotAbsent { index: 0 }));
    assert!(matches!(error, Error::GuardFailed { index: 0 }), "{error}");
}

/// An object in a missing collection, as the last operation.
pub fn a_missing_collection_changes_nothing(harness: &dyn Harness) {
    if !joins_objects(harness.fresh().store()) {
        return;
    }
    let error = refused(harness, |txn| txn.change(&object_in("no such collection", "o"), Change::Touch));
    assert!(matches!(&error, Error::NoCollection { collection } if collection == "no such collection"), "{error}");
}

/// The removal of a collection that is not empty, as the last operation.
pub fn a_collection_that_is_not_empty_changes_nothing(harness: &dyn Harness) {
    if !joins_objects(harness.fresh().store()) {
        return;
    }
    let error = refused(harness, |txn| txn.remove_collection(&HOME.into()));
    assert!(matches!(&error, Error::NotEmpty { collection } if collection == HOME), "{error}");
}

/// A limit, as the last operation.
pub fn an_exceeded_limit_changes_nothing(harness: &dyn Harness) {
    let error = refused(harness, |txn| txn.change(&object("there"), omap_set(vec![b'k'; OMAP_KEY_BYTES_MAX + 1], "v")));
    assert!(matches!(error, Error::TooLarge { limit: "OMAP_KEY_BYTES_MAX", .. }), "{error}");
    let error =
        refused(harness, |txn| txn.change(&object("there"), xattr_set("x", vec![1; XATTR_VALUE_BYTES_MAX + 1])));
    assert!(matches!(error, Error::TooLarge { limit: "XATTR_VALUE_BYTES_MAX", .. }), "{error}");
}

/// Upside-down ranges and empty names.
pub fn an_invalid_operation_changes_nothing(harness: &dyn Harness) {
    let invalid = [
        (object("there"), Change::OmapRemoveRange { start: bytes("b"), end: Some(bytes("a")) }),
        (object("there"), Change::SlotRemoveRange { start: 2, end: 1 }),
        (object(""), Change::Touch),
        (object_in("", "o"), Change::Touch),
    ];
    for (target, wrong) in invalid {
        let error = refused(harness, |txn| txn.change(&target, wrong.clone()));
        assert!(matches!(error, Error::Invalid { .. }), "{wrong:?}: {error}");
    }
    let error = refused(harness, |txn| txn.create_collection(&"".into()));
    assert!(matches!(error, Error::Invalid { .. }), "{error}");
}

/// Nothing to do is no error.
pub fn an_empty_transaction_is_accepted(harness: &dyn Harness) {
    let opened = furnished(harness);
    let store = opened.store();
    let before = snapshot(store);
    ok(store, Transaction::new());
    ok(store, Transaction::with(crate::Durability::Applied));
    assert_eq!(before, snapshot(store));
}

/// Where there is room, callers that do not wait for it are served as others are.
pub fn a_transaction_that_does_not_wait_for_room_is_applied_where_there_is_some(harness: &dyn Harness) {
    let opened = furnished(harness);
    let store = opened.store();
    let object = object("o");
    let mut waited = Waits::default();
    for (index, stall) in
        [Stall::Memory, Stall::Backlog, Stall::Reading { number: 0 }, Stall::Full].into_iter().enumerate()
    {
        let index = index as u64;
        assert_eq!(store.stall(waited), None);
        assert!(store.room(stall).wait().is_ok());
        let change = Change::SlotSet { index, value: "value".into() };
        let mut txn = Transaction::new().change(&object, change);
        txn.when_busy = WhenBusy::Refuse(waited);
        store.submit(txn).wait().expect("there is room");
        assert_eq!(store.slot_get(&object, index).wait().expect("it is readable").as_deref(), Some(&b"value"[..]));
        waited.note(stall);
    }
}
