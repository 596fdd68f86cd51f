//! Limits: what is at a limit goes in and comes out; what is one over is refused by the limit's name.

use super::Harness;
use super::actions::*;
use crate::limits::*;
use crate::{Change, Collection, Compare, Condition, Error, ObjectId, ObjectStore, Transaction};

/// One over: refused by this limit, nothing changed.
#[track_caller]
fn over(store: &dyn ObjectStore, limit: &str, txn: Transaction) {
    match refused_without_change(store, txn) {
        Error::TooLarge { limit: named, len, max, .. } => {
            assert_eq!(named, limit);
            assert!(len > max, "{limit}: {len} is not over {max}");
        }
        error => panic!("{limit}: {error}"),
    }
}

/// `COLLECTION_BYTES_MAX`.
pub fn collection_names_are_limited(harness: &dyn Harness) {
    let opened = harness.fresh();
    let store = opened.store();
    let longest = Collection::new(vec![b'c'; COLLECTION_BYTES_MAX]);
    ok(store, Transaction::new().create_collection(&longest));
    let object = ObjectId::new(longest.clone(), "o");
    change(store, &object, [write(0, "x")]);
    assert_eq!(got(store.collections()), [longest]);
    assert_eq!(contents(store, &object), "x");
    let longer = Collection::new(vec![b'c'; COLLECTION_BYTES_MAX + 1]);
    over(store, "COLLECTION_BYTES_MAX", Transaction::new().create_collection(&longer));
    over(store, "COLLECTION_BYTES_MAX", Transaction::new().remove_collection(&longer));
    over(store, "COLLECTION_BYTES_MAX", changes(&ObjectId::new(longer, "o"), [Change::Remove]));
}

/// `OBJECT_NAME_BYTES_MAX`.
pub fn object_names_are_limited(harness: &dyn Harness) {
    let opened = furnished(harness);
    let store = opened.store();
    let named = |len: usize| ObjectId::new(HOME.into(), vec![b'n'; len]);
    change(store, &named(OBJECT_NAME_BYTES_MAX), filled());
    assert_eq!(got(store.list(&HOME.into(), None, 10)), [named(OBJECT_NAME_BYTES_MAX).name().clone()]);
    assert_eq!(got(store.omap_get(&named(OBJECT_NAME_BYTES_MAX), b"key 1")), Some(bytes("value 1")));
    over(store, "OBJECT_NAME_BYTES_MAX", changes(&named(OBJECT_NAME_BYTES_MAX + 1), [Change::Touch]));
}

/// `OMAP_KEY_BYTES_MAX`.
pub fn omap_keys_are_limited(harness: &dyn Harness) {
    let opened = furnished(harness);
    let store = opened.store();
    let object = object("o");
    let key = |last: u8| [&vec![b'k'; OMAP_KEY_BYTES_MAX - 1][..], &[last]].concat();
    change(store, &object, [omap_set(key(2), "2"), omap_set(key(1), "1"), omap_set(key(3), "3")]);
    assert_eq!(got(store.omap_get(&object, &key(2))), Some(bytes("2")));
    change(store, &object, [Change::OmapRemoveRange { start: bytes(key(2)), end: Some(bytes(key(3))) }]);
    assert_eq!(whole_omap(store, &object), [(bytes(key(1)), bytes("1")), (bytes(key(3)), bytes("3"))]);
    let long = vec![b'k'; OMAP_KEY_BYTES_MAX + 1];
    over(store, "OMAP_KEY_BYTES_MAX", changes(&object, [omap_set(&long, "v")]));
    over(store, "OMAP_KEY_BYTES_MAX", changes(&object, [omap_remove(&long)]));
    let range = Change::OmapRemoveRange { start: bytes(""), end: Some(bytes(&long)) };
    over(store, "OMAP_KEY_BYTES_MAX", changes(&object, [range]));
}

/// `XATTR_NAME_BYTES_MAX`.
pub fn xattr_names_are_limited(harness: &dyn Harness) {
    let opened = furnished(harness);
    let store = opened.store();
    let object = object("o");
    let longest = "x".repeat(XATTR_NAME_BYTES_MAX);
    change(store, &object, [xattr_set(&longest, "v")]);
    assert_eq!(got(store.xattr(&object, longest.as_bytes())), Some(bytes("v")));
    over(store, "XATTR_NAME_BYTES_MAX", changes(&object, [xattr_set(&format!("{longest}x"), "v")]));
}

/// `XATTR_VALUE_BYTES_MAX`.
pub fn xattr_values_are_limited(harness: &dyn Harness) {
    let opened = furnished(harness);
    let store = opened.store();
    let object = object("o");
    let largest = vec![7; XATTR_VALUE_BYTES_MAX];
    change(store, &object, [xattr_set("x", &largest)]);
    assert!(got(store.xattr(&object, b"x")).is_some_and(|value| value == largest));
    over(store, "XATTR_VALUE_BYTES_MAX", changes(&object, [xattr_set("x", vec![7; XATTR_VALUE_BYTES_MAX + 1])]));
}

/// `VALUE_BYTES_MAX`, one over.
pub fn values_and_writes_are_limited(harness: &dyn Harness) {
    let opened = furnished(harness);
    let store = opened.store();
    let object = object("o");
    let value = vec![7; VALUE_BYTES_MAX + 1];
    over(store, "VALUE_BYTES_MAX", changes(&object, [omap_set("k", &value)]));
    over(store, "VALUE_BYTES_MAX", changes(&object, [slot_set(0, &value)]));
    over(store, "VALUE_BYTES_MAX", changes(&object, [write(0, &value)]));
}

/// `VALUE_BYTES_MAX`, or what this backend's transactions can hold.
pub fn a_value_at_the_limit_is_stored(harness: &dyn Harness) {
    let opened = furnished(harness);
    let store = opened.store();
    let object = object("o");
    let room = usize::try_from(store.capability().transaction_bytes_max).unwrap_or(usize::MAX) / 2;
    let len = VALUE_BYTES_MAX.min(room);
    let mut rng = fastrand::Rng::with_seed(3);
    let mut value = vec![0; len];
    rng.fill(&mut value);
    change(store, &object, [omap_set("k", &value)]);
    change(store, &object, [slot_set(5, &value)]);
    change(store, &object, [write(12_345, &value)]);
    assert!(got(store.omap_get(&object, b"k")).is_some_and(|found| found == value), "omap value of {len} bytes");
    assert!(got(store.slot_get(&object, 5)).is_some_and(|found| found == value), "slot of {len} bytes");
    assert!(got(store.read(&object, 12_345..12_345 + len as u64)) == value, "write of {len} bytes");
    let middle = len / 2 - 1..len / 2 + 5;
    let range = 12_345 + middle.start as u64..12_345 + middle.end as u64;
    assert_eq!(got(store.read(&object, range)), value[middle]);
}

/// `OBJECT_BYTES_MAX`.
pub fn object_offsets_are_limited(harness: &dyn Harness) {
    let opened = furnished(harness);
    let store = opened.store();
    let object = object("o");
    let name = "OBJECT_BYTES_MAX";
    over(store, name, changes(&object, [write(OBJECT_BYTES_MAX, "x")]));
    over(store, name, changes(&object, [write(u64::MAX, "x")]));
    over(store, name, changes(&object, [Change::Zero { offset: 1, len: OBJECT_BYTES_MAX }]));
    over(store, name, changes(&object, [Change::Zero { offset: u64::MAX, len: u64::MAX }]));
    over(store, name, changes(&object, [Change::Truncate { size: OBJECT_BYTES_MAX + 1 }]));
    let clone = |from_offset, len, to_offset| Change::CloneRange { to: object.clone(), from_offset, len, to_offset };
    over(store, name, changes(&object, [clone(OBJECT_BYTES_MAX, 1, 0)]));
    over(store, name, changes(&object, [clone(0, 1, OBJECT_BYTES_MAX)]));
    over(store, name, changes(&object, [clone(u64::MAX, u64::MAX, 0)]));
    let max = store.capability().object_bytes_max;
    if max < OBJECT_BYTES_MAX {
        let error = refused_without_change(store, changes(&object, [write(max, "x")]));
        assert!(matches!(error, Error::TooLarge { max: said, .. } if said == max), "{error}");
    }
    change(store, &object, [Change::Truncate { size: max }, write(max - 1, "x")]);
    change(store, &object, [Change::Zero { offset: 0, len: max }]);
    assert_eq!(got(store.stat(&object)).map(|stat| stat.size), Some(max));
    check_runs(store, &object, 0..u64::MAX, &[], "");
}

/// `TRANSACTION_BYTES_MAX` over all; and what the backend says that it takes, it takes.
pub fn transactions_are_limited_in_bytes(harness: &dyn Harness) {
    let opened = furnished(harness);
    let store = opened.store();
    let object = object("o");
    let half = vec![7; TRANSACTION_BYTES_MAX / 2];
    over(store, "TRANSACTION_BYTES_MAX", changes(&object, [slot_set(0, &half), slot_set(1, &half), slot_set(2, "x")]));
    let max = usize::try_from(store.capability().transaction_bytes_max).unwrap_or(usize::MAX);
    assert!(max <= TRANSACTION_BYTES_MAX, "{} takes more than TRANSACTION_BYTES_MAX", store.capability().backend);
    let names = object.name().len() + HOME.len();
    let first = (max / 2).min(VALUE_BYTES_MAX);
    let second = (max - first - 2 * names - 2 * "k".len()).min(VALUE_BYTES_MAX);
    change(store, &object, [omap_set("k", vec![1; first]), omap_set("l", vec![2; second])]);
    let lens: Vec<usize> = whole_omap(store, &object).iter().map(|(_, value)| value.len()).collect();
    assert_eq!(lens, [first, second]);
}

/// Operations of a transaction of which none is joined with another, at most.
const UNJOINED_MAX: usize = 20_000;

/// `TRANSACTION_OPS_MAX` over all; and what the backend says that it takes, it takes.
pub fn transactions_are_limited_in_operations(harness: &dyn Harness) {
    let opened = furnished(harness);
    let store = opened.store();
    let object = object("o");
    let mut txn = Transaction::new();
    let touches = |count| std::iter::repeat_n(crate::Op::Object(object.clone(), Change::Touch), count).collect();
    let max = usize::try_from(store.capability().transaction_ops_max).unwrap_or(usize::MAX);
    assert!((1..=TRANSACTION_OPS_MAX).contains(&max), "{max} operations");
    txn.ops = touches(max);
    ok(store, txn.clone());
    assert!(exists(store, &object));
    // None of these makes another needless, and each guard counts too. Of a backend that takes the most of all, a part
    // of that is enough.
    let count = max.min(UNJOINED_MAX);
    let mut unjoined = Transaction::new();
    for index in 0..count as u64 {
        match index % 4 {
            0 | 1 => unjoined = unjoined.guard(&object, Condition::SlotAbsent { index }),
            2 => unjoined.push(&object, slot_set(index, "v")),
            _ => unjoined.push(&object, Change::SlotRemoveRange { start: index << 32, end: (index << 32) + 2 }),
        }
    }
    ok(store, unjoined);
    assert_eq!(whole_slots(store, &object).len(), (count + 1) / 4);
    let mut guards = Transaction::new();
    for index in 1..count as u64 {
        let name = bytes(format!("x{index}"));
        let less = Condition::XattrCompare { name, compare: Compare::Less, value: 9, absent_holds: true };
        guards = guards.guard(&object, less);
    }
    ok(store, guards.change(&object, write(0, "x")));
    txn.ops = touches(TRANSACTION_OPS_MAX);
    txn.push(&object, Change::Remove);
    over(store, "TRANSACTION_OPS_MAX", txn);
}

/// A read of more than `TRANSACTION_BYTES_MAX` bytes is refused; what lies past the end does not count.
pub fn reads_are_limited(harness: &dyn Harness) {
    let opened = furnished(harness);
    let store = opened.store();
    let object = object("o");
    let max = TRANSACTION_BYTES_MAX as u64;
    change(store, &object, [write(3, "abc")]);
    assert_eq!(got(store.read(&object, 0..u64::MAX)), "\0\0\0abc");
    change(store, &object, [Change::Truncate { size: max + 10 }]);
    assert_eq!(got(store.read(&object, 3..max + 3)).len() as u64, max);
    let error = store.read(&object, 0..max + 1).wait().expect_err("more than TRANSACTION_BYTES_MAX at once");
    assert!(matches!(error, Error::TooLarge { limit: "TRANSACTION_BYTES_MAX", .. }), "{error}");
}

/// Guards count and are checked like operations.
pub fn guards_are_limited_too(harness: &dyn Harness) {
    let opened = furnished(harness);
    let store = opened.store();
    let long = vec![b'k'; OMAP_KEY_BYTES_MAX + 1];
    over(store, "OMAP_KEY_BYTES_MAX", guarded(&object("o"), [Condition::OmapAbsent { key: bytes(&long) }]));
    let name = bytes("x".repeat(XATTR_NAME_BYTES_MAX + 1));
    over(store, "XATTR_NAME_BYTES_MAX", guarded(&object("o"), [Condition::XattrAbsent { name }]));
    let value = bytes(vec![7; VALUE_BYTES_MAX + 1]);
    over(store, "VALUE_BYTES_MAX", guarded(&object("o"), [Condition::SlotEquals { index: 0, value }]));
    let half = bytes(vec![7; VALUE_BYTES_MAX]);
    let condition = Condition::SlotEquals { index: 0, value: half };
    let many = GUARDS_BYTES_MAX / VALUE_BYTES_MAX + 1;
    over(store, "GUARDS_BYTES_MAX", guarded(&object("o"), std::iter::repeat_n(condition, many)));
    let named = ObjectId::new(HOME.into(), vec![b'n'; OBJECT_NAME_BYTES_MAX + 1]);
    over(store, "OBJECT_NAME_BYTES_MAX", guarded(&named, [Condition::Absent]));
}
