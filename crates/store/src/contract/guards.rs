//! Guards: conditions on the state before the transaction.

use super::Harness;
use super::actions::*;
use crate::{Change, Compare, Condition, Error, ObjectId, ObjectStore, Transaction};

/// Whether the guard holds, tried with a transaction that changes something else.
#[track_caller]
fn holds(store: &dyn ObjectStore, object: &ObjectId, condition: Condition) -> bool {
    let txn = guarded(object, [condition.clone()]).change(object, Change::XattrRemove { name: bytes("never set") });
    match store.submit(txn).wait() {
        Ok(_) => true,
        Err(Error::GuardFailed { index: 0 }) => false,
        Err(error) => panic!("{condition:?}: {error}"),
    }
}

#[track_caller]
fn check(store: &dyn ObjectStore, object: &ObjectId, cases: impl IntoIterator<Item = (Condition, bool)>) {
    for (condition, expected) in cases {
        assert_eq!(holds(store, object, condition.clone()), expected, "{condition:?} of {object}");
    }
}

fn xattr_equals(name: &str, value: &str) -> Condition {
    Condition::XattrEquals { name: bytes(name), value: bytes(value) }
}

fn omap_equals(key: &str, value: &str) -> Condition {
    Condition::OmapEquals { key: bytes(key), value: bytes(value) }
}

fn slot_equals(index: u64, value: &str) -> Condition {
    Condition::SlotEquals { index, value: bytes(value) }
}

/// Exists and Absent.
pub fn existence_guards_hold_and_fail(harness: &dyn Harness) {
    let opened = furnished(harness);
    let store = opened.store();
    let object = object("o");
    check(store, &object, [(Condition::Exists, false), (Condition::Absent, true)]);
    change(store, &object, [Change::Touch]);
    check(store, &object, [(Condition::Exists, true), (Condition::Absent, false)]);
    change(store, &object, [Change::Remove]);
    check(store, &object, [(Condition::Exists, false), (Condition::Absent, true)]);
}

/// SizeEquals of a missing object fails, even for 0.
pub fn size_guards_need_the_object(harness: &dyn Harness) {
    let opened = furnished(harness);
    let store = opened.store();
    let object = object("o");
    check(store, &object, [(Condition::SizeEquals { size: 0 }, false)]);
    change(store, &object, [Change::Touch]);
    check(store, &object, [(Condition::SizeEquals { size: 0 }, true), (Condition::SizeEquals { size: 1 }, false)]);
    change(store, &object, [write(3, "ab")]);
    let cases = [4, 5, 6].map(|size| (Condition::SizeEquals { size }, size == 5));
    check(store, &object, cases);
}

/// XattrEquals and XattrAbsent.
pub fn xattr_guards_hold_and_fail(harness: &dyn Harness) {
    let opened = furnished(harness);
    let store = opened.store();
    let object = object("o");
    let absent = |name: &str| Condition::XattrAbsent { name: bytes(name) };
    check(store, &object, [(absent("a"), true), (xattr_equals("a", ""), false)]);
    change(store, &object, [xattr_set("a", "value"), xattr_set("empty", "")]);
    check(
        store,
        &object,
        [
            (absent("a"), false),
            (absent("b"), true),
            (absent("empty"), false),
            (xattr_equals("a", "value"), true),
            (xattr_equals("a", "valu"), false),
            (xattr_equals("a", "values"), false),
            (xattr_equals("b", "value"), false),
            (xattr_equals("b", ""), false),
            (xattr_equals("empty", ""), true),
        ],
    );
}

/// `stored OP value`, as unsigned little-endian numbers.
pub fn xattr_compare_knows_all_five_comparisons(harness: &dyn Harness) {
    let opened = furnished(harness);
    let store = opened.store();
    let object = object("o");
    for (stored, value) in [(5, 4), (5, 5), (5, 6), (256, 1), (1, 256), (u64::MAX, 1), (0, u64::MAX), (1 << 63, 1)] {
        change(store, &object, [xattr_set("n", u64::to_le_bytes(stored))]);
        let cases = [
            (Compare::Less, stored < value),
            (Compare::LessOrEqual, stored <= value),
            (Compare::Equal, stored == value),
            (Compare::GreaterOrEqual, stored >= value),
            (Compare::Greater, stored > value),
        ];
        for absent_holds in [false, true] {
            let condition = |compare| Condition::XattrCompare { name: bytes("n"), compare, value, absent_holds };
            check(store, &object, cases.map(|(compare, expected)| (condition(compare), expected)));
        }
    }
}

/// Absent: as the guard says, for a missing xattr and a missing object alike.
pub fn xattr_compare_of_an_absent_value_does_as_told(harness: &dyn Harness) {
    let opened = furnished(harness);
    let store = opened.store();
    change(store, &object("there"), [xattr_set("other", 1u64.to_le_bytes())]);
    let all = [Compare::Less, Compare::LessOrEqual, Compare::Equal, Compare::GreaterOrEqual, Compare::Greater];
    for object in [object("there"), object("missing"), object_in("no such collection", "o")] {
        for compare in all {
            for absent_holds in [false, true] {
                let condition = Condition::XattrCompare { name: bytes("n"), compare, value: 0, absent_holds };
                check(store, &object, [(condition, absent_holds)]);
            }
        }
    }
}

/// What is not 8 bytes long is no number and holds for nothing.
pub fn xattr_compare_of_another_length_fails(harness: &dyn Harness) {
    let opened = furnished(harness);
    let store = opened.store();
    let object = object("o");
    for stored in [&[][..], &[1], &[0; 7], &[0; 9], &[0; 16]] {
        change(store, &object, [xattr_set("n", stored)]);
        for compare in [Compare::Less, Compare::LessOrEqual, Compare::Equal, Compare::GreaterOrEqual, Compare::Greater]
        {
            let condition = Condition::XattrCompare { name: bytes("n"), compare, value: 0, absent_holds: true };
            check(store, &object, [(condition, false)]);
        }
    }
}

/// OmapAbsent, OmapPresent, OmapEquals.
pub fn omap_guards_hold_and_fail(harness: &dyn Harness) {
    let opened = furnished(harness);
    let store = opened.store();
    let object = object("o");
    let absent = |key: &str| Condition::OmapAbsent { key: bytes(key) };
    let present = |key: &str| Condition::OmapPresent { key: bytes(key) };
    check(store, &object, [(absent("a"), true), (present("a"), false), (omap_equals("a", ""), false)]);
    change(store, &object, [omap_set("a", "value"), omap_set("", "")]);
    let cases = [
        (absent("a"), false),
        (present("a"), true),
        (absent("b"), true),
        (present("b"), false),
        (absent(""), false),
        (present(""), true),
        (omap_equals("a", "value"), true),
        (omap_equals("a", "valuf"), false),
        (omap_equals("a", ""), false),
        (omap_equals("", ""), true),
        (omap_equals("b", ""), false),
    ];
    check(store, &object, cases);
    change(store, &object, [omap_remove("a")]);
    check(store, &object, [(absent("a"), true), (omap_equals("a", "value"), false)]);
}

/// SlotAbsent, SlotPresent, SlotEquals.
pub fn slot_guards_hold_and_fail(harness: &dyn Harness) {
    let opened = furnished(harness);
    let store = opened.store();
    let object = object("o");
    let absent = |index| Condition::SlotAbsent { index };
    let present = |index| Condition::SlotPresent { index };
    check(store, &object, [(absent(0), true), (present(0), false), (slot_equals(0, ""), false)]);
    change(store, &object, [slot_set(0, "value"), slot_set(9, ""), slot_set(u64::MAX, "last")]);
    let cases = [
        (absent(0), false),
        (present(0), true),
        (absent(1), true),
        (present(1), false),
        (slot_equals(0, "value"), true),
        (slot_equals(0, "value "), false),
        (slot_equals(1, ""), false),
        (slot_equals(9, ""), true),
        (slot_equals(u64::MAX, "last"), true),
        (absent(u64::MAX - 1), true),
    ];
    check(store, &object, cases);
    change(store, &object, [Change::SlotRemove { index: 0 }]);
    check(store, &object, [(absent(0), true), (slot_equals(0, "value"), false)]);
}

/// The first that fails, counted from 0 over all guards.
pub fn the_first_guard_that_fails_is_named(harness: &dyn Harness) {
    let opened = furnished(harness);
    let store = opened.store();
    let object = object("o");
    change(store, &object, [Change::Touch]);
    let (good, bad) = (Condition::Exists, Condition::Absent);
    for failing in 0..6 {
        let mut conditions = vec![good.clone(); 6];
        conditions[failing] = bad.clone();
        conditions[5] = bad.clone();
        let error = refusal(store, guarded(&object, conditions).change(&object, write(0, "x")));
        assert!(matches!(error, Error::GuardFailed { index } if index == failing), "{failing}: {error}");
    }
    ok(store, guarded(&object, vec![good; 6]).change(&object, write(0, "x")));
}

/// Not what the transaction itself does.
pub fn guards_see_the_state_before_the_transaction(harness: &dyn Harness) {
    let opened = furnished(harness);
    let store = opened.store();
    let object = object("o");
    let before = [
        Condition::Absent,
        Condition::XattrAbsent { name: bytes("a") },
        Condition::OmapAbsent { key: bytes("k") },
        Condition::SlotAbsent { index: 1 },
    ];
    let fill = [xattr_set("a", "1"), omap_set("k", "1"), slot_set(1, "1"), write(0, "1")];
    let txn = fill.into_iter().fold(guarded(&object, before), |txn, fills| txn.change(&object, fills));
    ok(store, txn);
    let before = [
        Condition::Exists,
        xattr_equals("a", "1"),
        omap_equals("k", "1"),
        slot_equals(1, "1"),
        Condition::SizeEquals { size: 1 },
    ];
    ok(store, guarded(&object, before).change(&object, Change::Remove).change(&object, Change::Touch));
    assert_eq!(got(store.stat(&object)), Some(crate::Stat::default()));
    let error = refusal(store, guarded(&object, [omap_equals("k", "2")]).change(&object, omap_set("k", "2")));
    assert!(matches!(error, Error::GuardFailed { index: 0 }), "{error}");
}

/// A guard's object need not be one that the transaction changes.
pub fn guards_may_look_at_other_objects(harness: &dyn Harness) {
    let opened = furnished(harness);
    let store = opened.store();
    if !joins_collections(store) {
        return;
    }
    let (lock, data) = (object_in(AWAY, "lock"), object("data"));
    change(store, &lock, [xattr_set("owner", "me")]);
    let txn = |owner| guarded(&lock, [xattr_equals("owner", owner)]).change(&data, write(0, owner));
    ok(store, txn("me"));
    let error = refused_without_change(store, txn("you"));
    assert!(matches!(error, Error::GuardFailed { index: 0 }), "{error}");
    assert_eq!(contents(store, &data), "me");
}

/// A transaction without operations only checks.
pub fn guards_alone_are_a_check(harness: &dyn Harness) {
    let opened = furnished(harness);
    let store = opened.store();
    change(store, &object("o"), [Change::Touch]);
    let before = snapshot(store);
    ok(store, guarded(&object("o"), [Condition::Exists]));
    let error = refusal(store, guarded(&object("o"), [Condition::Exists, Condition::Absent]));
    assert!(matches!(error, Error::GuardFailed { index: 1 }), "{error}");
    ok(store, guarded(&object("missing"), [Condition::Absent]));
    assert_eq!(before, snapshot(store));
}

/// A missing collection is no error for a guard; its objects are absent.
pub fn guards_on_a_missing_collection_see_no_object(harness: &dyn Harness) {
    let opened = harness.fresh();
    let store = opened.store();
    let object = object("o");
    check(store, &object, [(Condition::Absent, true), (Condition::Exists, false)]);
    let txn = guarded(&object, [Condition::Absent]).create_collection(&HOME.into());
    ok(store, txn.change(&object, write(0, "first")));
    let again = Transaction::new().guard(&object, Condition::Absent).create_collection(&HOME.into());
    let error = refusal(store, again.change(&object, write(0, "second")));
    assert!(matches!(error, Error::GuardFailed { index: 0 }), "{error}");
    assert_eq!(contents(store, &object), "first");
}

/// Where both a guard and an operation would refuse, the guard is the reason.
pub fn guards_are_decided_before_operations(harness: &dyn Harness) {
    let opened = furnished(harness);
    let store = opened.store();
    let nowhere = object_in("no such collection", "o");
    let error = refusal(store, guarded(&nowhere, [Condition::Exists]).change(&nowhere, Change::Touch));
    assert!(matches!(error, Error::GuardFailed { index: 0 }), "{error}");
}
