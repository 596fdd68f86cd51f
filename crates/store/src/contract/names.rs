//! Collections and objects: how they come, how they go, how they are listed.

use super::Harness;
use super::actions::*;
use crate::{Change, Collection, Error, ObjectId, Stat, Transaction};

/// Collections come in name order, and creating one that exists does nothing.
pub fn collections_are_created_once_and_listed_in_name_order(harness: &dyn Harness) {
    let opened = harness.fresh();
    let store = opened.store();
    assert_eq!(got(store.collections()), []);
    for name in ["m", "a", "z", "m", "aa"] {
        ok(store, Transaction::new().create_collection(&name.into()));
    }
    assert_eq!(got(store.collections()), ["a", "aa", "m", "z"].map(Collection::from));
    let object = object_in("m", "o");
    change(store, &object, [Change::Touch]);
    ok(store, Transaction::new().create_collection(&"m".into()));
    assert!(exists(store, &object), "creating an existing collection again took its objects");
}

/// A collection that holds an object is refused, and goes when the object is gone.
pub fn a_collection_is_removed_only_when_it_is_empty(harness: &dyn Harness) {
    let opened = furnished(harness);
    let store = opened.store();
    change(store, &object("o"), [Change::Touch]);
    let error = refused_without_change(store, Transaction::new().remove_collection(&HOME.into()));
    assert!(matches!(&error, Error::NotEmpty { collection } if collection == HOME), "{error}");
    change(store, &object("o"), [Change::Remove]);
    ok(store, Transaction::new().remove_collection(&HOME.into()));
    assert_eq!(got(store.collections()), [Collection::from(AWAY)]);
    let error = store.list(&HOME.into(), None, 10).wait().expect_err("the collection is gone");
    assert!(matches!(&error, Error::NoCollection { collection } if collection == HOME), "{error}");
}

/// Removing what is not there is not an error.
pub fn removing_a_missing_collection_does_nothing(harness: &dyn Harness) {
    let opened = furnished(harness);
    let store = opened.store();
    let before = snapshot(store);
    ok(store, Transaction::new().remove_collection(&"never".into()));
    assert_eq!(before, snapshot(store));
}

/// Every change that adds makes a missing object.
pub fn whatever_adds_creates_the_object(harness: &dyn Harness) {
    let opened = furnished(harness);
    let store = opened.store();
    let adding = [
        ("touch", Change::Touch, Stat::default()),
        ("write", write(2, "ab"), Stat { size: 4, ..Stat::default() }),
        ("empty write", write(7, ""), Stat::default()),
        ("zero", Change::Zero { offset: 2, len: 3 }, Stat { size: 5, ..Stat::default() }),
        ("empty zero", Change::Zero { offset: 9, len: 0 }, Stat::default()),
        ("truncate", Change::Truncate { size: 6 }, Stat { size: 6, ..Stat::default() }),
        ("xattr", xattr_set("x", "1"), Stat { xattrs: 1, ..Stat::default() }),
        ("omap", omap_set("k", "v"), Stat { omap_keys: 1, ..Stat::default() }),
        ("slot", slot_set(4, "v"), Stat { slots: 1, ..Stat::default() }),
    ];
    for (name, adds, stat) in adding {
        assert_eq!(got(store.stat(&object(name))), None, "{name}");
        change(store, &object(name), [adds]);
        assert_eq!(got(store.stat(&object(name))), Some(stat), "{name}");
    }
}

/// Every change that takes away leaves a missing object missing, even in a missing collection.
pub fn whatever_takes_away_from_a_missing_object_does_nothing(harness: &dyn Harness) {
    let opened = furnished(harness);
    let store = opened.store();
    let taking = [
        Change::Remove,
        Change::Truncate { size: 0 },
        Change::XattrRemove { name: bytes("x") },
        omap_remove("k"),
        Change::OmapRemoveRange { start: bytes(""), end: None },
        Change::OmapClear,
        Change::SlotRemove { index: 3 },
        Change::SlotRemoveRange { start: 0, end: u64::MAX },
    ];
    let before = snapshot(store);
    for takes in taking {
        for object in [object("missing"), object_in("no such collection", "missing")] {
            change(store, &object, [takes.clone()]);
            assert_eq!(got(store.stat(&object)), None, "{takes:?}");
        }
    }
    assert_eq!(before, snapshot(store));
}

/// An object is only made in a collection that exists, or that the same transaction makes.
pub fn an_object_needs_its_collection(harness: &dyn Harness) {
    let opened = harness.fresh();
    let store = opened.store();
    let object = object("o");
    for adds in [Change::Touch, write(0, "x"), Change::Truncate { size: 1 }, omap_set("k", "v"), slot_set(0, "v")] {
        let error = refused_without_change(store, changes(&object, [adds.clone()]));
        assert!(matches!(&error, Error::NoCollection { collection } if collection == HOME), "{adds:?}: {error}");
    }
    ok(store, Transaction::new().create_collection(&HOME.into()).change(&object, write(0, "x")));
    assert_eq!(contents(store, &object), "x");
}

/// All reads of a missing object answer as for an empty one; only stat tells.
pub fn a_missing_object_reads_like_an_empty_one(harness: &dyn Harness) {
    let opened = furnished(harness);
    let store = opened.store();
    change(store, &object("empty"), [Change::Touch]);
    assert_eq!(got(store.stat(&object("empty"))), Some(Stat::default()));
    for object in [object("empty"), object("missing"), object_in("no such collection", "missing")] {
        assert_eq!(got(store.read(&object, 0..100)), "");
        assert_eq!(got(store.extents(&object, 0..100)), []);
        assert_eq!(got(store.xattr(&object, b"x")), None);
        assert_eq!(got(store.xattrs(&object)), []);
        assert_eq!(got(store.omap_get(&object, b"k")), None);
        assert_eq!(got(store.omap_get_many(&object, &[bytes("k"), bytes("l")])), [None, None]);
        assert_eq!(whole_omap(store, &object), []);
        assert_eq!(got(store.slot_get(&object, 0)), None);
        assert_eq!(got(store.slot_get_many(&object, &[0, u64::MAX])), [None, None]);
        assert_eq!(whole_slots(store, &object), []);
    }
    assert!(!exists(store, &object("missing")));
}

/// Stat follows what is added, overwritten and removed.
pub fn stat_counts_all_four_spaces(harness: &dyn Harness) {
    let opened = furnished(harness);
    let store = opened.store();
    let object = object("o");
    change(store, &object, filled());
    let stat = Stat { size: 100, omap_keys: 3, slots: 2, xattrs: 2 };
    assert_eq!(got(store.stat(&object)), Some(stat));
    change(store, &object, filled());
    assert_eq!(got(store.stat(&object)), Some(stat), "overwriting counted twice");
    change(store, &object, [omap_remove("key 1"), omap_remove("never"), Change::SlotRemove { index: 0 }]);
    change(store, &object, [Change::XattrRemove { name: bytes("a") }, Change::Truncate { size: 7 }]);
    assert_eq!(got(store.stat(&object)), Some(Stat { size: 7, omap_keys: 2, slots: 1, xattrs: 1 }));
}

/// Paging by name gives every object once, in order.
pub fn list_pages_in_name_order(harness: &dyn Harness) {
    let opened = furnished(harness);
    let store = opened.store();
    let mut names: Vec<String> = (0..57).map(|number| format!("object {}", number * 7919 % 1000)).collect();
    for name in &names {
        change(store, &object(name), [Change::Touch]);
        change(store, &object_in(AWAY, "elsewhere"), [Change::Touch]);
    }
    names.sort();
    for limit in [1, 2, 10, 57, 1000] {
        let mut found: Vec<bytes::Bytes> = Vec::new();
        loop {
            let page = got(store.list(&HOME.into(), found.last().map(|name| &name[..]), limit));
            assert!(page.len() <= limit, "{} names with a limit of {limit}", page.len());
            if page.is_empty() {
                break;
            }
            found.extend(page);
        }
        assert_eq!(found, names, "limit {limit}");
    }
    // A name to go on from need not exist.
    assert_eq!(got(store.list(&HOME.into(), Some(b"object 1!"), 1)).len(), 1);
    assert_eq!(got(store.list(&HOME.into(), Some(b"zzz"), 10)), Vec::<bytes::Bytes>::new());
}

/// Names are bytes, not text: zeros, 0xff and prefixes of each other are told apart and ordered.
pub fn names_may_hold_any_bytes(harness: &dyn Harness) {
    let opened = harness.fresh();
    let store = opened.store();
    let names: Vec<bytes::Bytes> =
        [&[0][..], &[0, 0], &[0, 1], &[1], b"/", b"a", b"a\0", b"a/", &[0xff], &[0xff, 0xff]]
            .into_iter()
            .map(bytes)
            .collect();
    for collection in names.iter().rev() {
        ok(store, Transaction::new().create_collection(&Collection::new(collection.clone())));
        for name in names.iter().rev() {
            let id = ObjectId::new(Collection::new(collection.clone()), name.clone());
            change(store, &id, [xattr_set("me", [collection, &b"|"[..], name].concat())]);
        }
    }
    assert_eq!(got(store.collections()), names.iter().cloned().map(Collection::new).collect::<Vec<_>>());
    for collection in &names {
        assert_eq!(got(store.list(&Collection::new(collection.clone()), None, 100)), names);
        for name in &names {
            let id = ObjectId::new(Collection::new(collection.clone()), name.clone());
            let expected = bytes([collection, &b"|"[..], name].concat());
            assert_eq!(got(store.xattr(&id, b"me")), Some(expected));
        }
    }
}

/// Collections are apart.
pub fn the_same_name_in_two_collections_is_two_objects(harness: &dyn Harness) {
    let opened = furnished(harness);
    let store = opened.store();
    change(store, &object_in(HOME, "o"), [write(0, "home")]);
    change(store, &object_in(AWAY, "o"), [write(0, "away")]);
    change(store, &object_in(HOME, "o"), [Change::Remove]);
    assert_eq!(contents(store, &object_in(AWAY, "o")), "away");
    assert!(!exists(store, &object_in(HOME, "o")));
}

/// A removed object leaves nothing behind for the next one of its name.
pub fn remove_takes_all_four_spaces(harness: &dyn Harness) {
    let opened = furnished(harness);
    let store = opened.store();
    let object = object("o");
    change(store, &object, filled());
    change(store, &object, [Change::Remove]);
    assert!(!exists(store, &object));
    assert_eq!(got(store.list(&HOME.into(), None, 10)), Vec::<bytes::Bytes>::new());
    change(store, &object, [Change::Touch]);
    assert_eq!(got(store.stat(&object)), Some(Stat::default()));
    assert_eq!(snapshot_of(store, &object).omap, []);
    assert_eq!(snapshot_of(store, &object).slots, []);
    change(store, &object, [Change::Truncate { size: 20 }]);
    assert_eq!(contents(store, &object), vec![0; 20], "old bytes came back");
}

/// Remove and recreate inside one transaction: only what came after is there.
pub fn remove_and_recreate_in_one_transaction_leaves_a_new_object(harness: &dyn Harness) {
    let opened = furnished(harness);
    let store = opened.store();
    let object = object("o");
    change(store, &object, filled());
    let again = [Change::Remove, write(1, "n"), omap_set("new", "n"), slot_set(9, "n"), xattr_set("new", "n")];
    change(store, &object, again);
    let found = snapshot_of(store, &object);
    assert_eq!(found.bytes, "\0n");
    assert_eq!(found.omap, [(bytes("new"), bytes("n"))]);
    assert_eq!(found.slots, [(9, bytes("n"))]);
    assert_eq!(found.xattrs, [(bytes("new"), bytes("n"))]);
}

/// Create and remove inside one transaction, also of a collection.
pub fn an_object_created_and_removed_in_one_transaction_leaves_nothing(harness: &dyn Harness) {
    let opened = furnished(harness);
    let store = opened.store();
    let before = snapshot(store);
    change(store, &object("o"), filled().into_iter().chain([Change::Remove]));
    assert_eq!(before, snapshot(store));
    change(store, &object("o"), [Change::Touch, Change::Remove, Change::OmapClear, Change::Remove]);
    assert_eq!(before, snapshot(store));
    if !joins_objects(store) {
        return;
    }
    let there = "there for a moment";
    let txn = Transaction::new().create_collection(&there.into()).change(&object_in(there, "o"), write(0, "x"));
    ok(store, txn.change(&object_in(there, "o"), Change::Remove).remove_collection(&there.into()));
    assert_eq!(before, snapshot(store));
}
