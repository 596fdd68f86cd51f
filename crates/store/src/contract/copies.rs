//! Clone, clone-range and rename. Where [`Capability::clone`](crate::Capability::clone) is false, these are refused
//! and change nothing, and the other tests here are skipped.

use super::actions::*;
use super::{Harness, Opened};
use crate::{Change, Error, ObjectId, ObjectStore, Transaction};

/// A store that can clone within (and, if asked for, across) collections; prints that the test is skipped if not.
#[track_caller]
fn cloning(harness: &dyn Harness, across: bool) -> Option<Box<dyn Opened>> {
    let opened = furnished(harness);
    let store = opened.store();
    if !store.capability().clone {
        skip(store, "clone or rename");
        return None;
    }
    let joins = if across { joins_collections(store) } else { joins_objects(store) };
    joins.then_some(opened)
}

fn clone_to(to: &ObjectId) -> Change {
    Change::CloneTo { to: to.clone() }
}

fn rename_to(to: &ObjectId) -> Change {
    Change::Rename { to: to.clone() }
}

fn clone_range(to: &ObjectId, from_offset: u64, len: u64, to_offset: u64) -> Change {
    Change::CloneRange { to: to.clone(), from_offset, len, to_offset }
}

#[track_caller]
fn assert_same(store: &dyn ObjectStore, a: &ObjectId, b: &ObjectId) {
    let mut found = snapshot_of(store, b);
    found.id = a.clone();
    assert_eq!(snapshot_of(store, a), found, "{a} and {b} differ");
}

/// Bytes with their holes, xattrs, omap, slots.
pub fn clone_copies_all_four_spaces(harness: &dyn Harness) {
    let Some(opened) = cloning(harness, false) else { return };
    let store = opened.store();
    let (source, copy) = (object("source"), object("copy"));
    change(store, &source, filled());
    let before = snapshot_of(store, &source);
    change(store, &source, [clone_to(&copy)]);
    assert_eq!(snapshot_of(store, &source), before, "cloning changed the source");
    assert_same(store, &source, &copy);
    assert_eq!(got(store.list(&HOME.into(), None, 10)), ["copy", "source"].map(bytes));
    let (source, copy) = (object("empty source"), object("empty copy"));
    change(store, &source, [Change::Touch]);
    change(store, &source, [clone_to(&copy)]);
    assert_eq!(got(store.stat(&copy)), Some(crate::Stat::default()));
}

/// Changing or removing one does not show in the other.
pub fn a_clone_and_its_source_live_apart(harness: &dyn Harness) {
    let Some(opened) = cloning(harness, false) else { return };
    let store = opened.store();
    for changes_source in [false, true] {
        let (source, copy) = (object(&format!("source {changes_source}")), object(&format!("copy {changes_source}")));
        change(store, &source, filled());
        change(store, &source, [clone_to(&copy)]);
        let (changed, kept) = if changes_source { (&source, &copy) } else { (&copy, &source) };
        let before = snapshot_of(store, kept);
        let steps = [
            write(4, "changed"),
            Change::Truncate { size: 9 },
            xattr_set("a", "changed"),
            omap_set("key 1", "changed"),
            omap_remove("key 2"),
            slot_set(0, "changed"),
            Change::SlotRemove { index: 70_000 },
        ];
        change(store, changed, steps);
        assert_eq!(snapshot_of(store, kept), before);
        assert_eq!(got(store.omap_get(changed, b"key 1")), Some(bytes("changed")));
        change(store, changed, [Change::Remove]);
        assert_eq!(snapshot_of(store, kept), before);
    }
}

/// Nothing of the old target stays.
pub fn clone_replaces_what_the_target_held(harness: &dyn Harness) {
    let Some(opened) = cloning(harness, false) else { return };
    let store = opened.store();
    let (source, copy) = (object("source"), object("copy"));
    change(store, &source, [write(0, "s"), omap_set("source", "s"), slot_set(1, "s")]);
    change(store, &copy, filled());
    change(store, &source, [clone_to(&copy)]);
    assert_same(store, &source, &copy);
    change(store, &copy, [Change::Truncate { size: 50 }]);
    assert_eq!(contents(store, &copy)[1..], [0; 49], "old bytes of the target came back");
}

/// Another collection is no obstacle.
pub fn clone_goes_to_another_collection(harness: &dyn Harness) {
    let Some(opened) = cloning(harness, true) else { return };
    let store = opened.store();
    let (source, copy) = (object("o"), object_in(AWAY, "o"));
    change(store, &source, filled());
    change(store, &source, [clone_to(&copy)]);
    assert_same(store, &source, &copy);
    change(store, &source, [Change::Remove]);
    ok(store, Transaction::new().remove_collection(&HOME.into()));
    assert_eq!(got(store.omap_get(&copy, b"key 1")), Some(bytes("value 1")));
}

/// Onto itself, nothing changes.
pub fn an_object_cloned_onto_itself_stays(harness: &dyn Harness) {
    let Some(opened) = cloning(harness, false) else { return };
    let store = opened.store();
    change(store, &object("o"), filled());
    let before = snapshot(store);
    change(store, &object("o"), [clone_to(&object("o"))]);
    assert_eq!(snapshot(store), before);
}

/// Data as data, holes as holes, over whatever the target had there.
pub fn clone_range_copies_data_and_holes(harness: &dyn Harness) {
    let Some(opened) = cloning(harness, false) else { return };
    let store = opened.store();
    let (source, target) = (object("source"), object("target"));
    change(store, &source, [write(10, "abcdef"), write(20, "ghij"), xattr_set("x", "source")]);
    change(store, &target, [write(0, "................................"), xattr_set("x", "target")]);
    change(store, &source, [clone_range(&target, 13, 9, 5)]);
    assert_eq!(contents(store, &target), ".....def\0\0\0\0gh..................");
    assert_eq!(runs(store, &target, 0..100), [(0, 8), (12, 20)]);
    assert_eq!(got(store.xattr(&target, b"x")), Some(bytes("target")), "only bytes are copied");
    change(store, &source, [write(13, "QQQ"), Change::Truncate { size: 0 }]);
    assert_eq!(contents(store, &target), ".....def\0\0\0\0gh..................");
}

/// What lies past the source's end is a hole in the target.
pub fn clone_range_past_the_end_reads_as_zeros(harness: &dyn Harness) {
    let Some(opened) = cloning(harness, false) else { return };
    let store = opened.store();
    let (source, target) = (object("source"), object("target"));
    change(store, &source, [write(0, "abc")]);
    change(store, &target, [write(0, "..........")]);
    change(store, &source, [clone_range(&target, 1, 5, 2)]);
    assert_eq!(contents(store, &target), "..bc\0\0\0...");
    change(store, &source, [clone_range(&target, 100, 3, 8)]);
    assert_eq!(contents(store, &target), "..bc\0\0\0.\0\0\0");
    assert_eq!(runs(store, &target, 0..100), [(0, 4), (7, 1)]);
}

/// A missing target is made; the target grows to the end of the range, holes included; an empty range only makes it.
pub fn clone_range_creates_and_grows_its_target(harness: &dyn Harness) {
    let Some(opened) = cloning(harness, false) else { return };
    let store = opened.store();
    let source = object("source");
    change(store, &source, [write(0, "abc"), Change::Truncate { size: 10 }]);
    change(store, &source, [clone_range(&object("grown"), 1, 6, 4)]);
    assert_eq!(contents(store, &object("grown")), "\0\0\0\0bc\0\0\0\0");
    assert_eq!(runs(store, &object("grown"), 0..100), [(4, 2)]);
    change(store, &source, [clone_range(&object("made"), 1, 0, 4)]);
    assert_eq!(got(store.stat(&object("made"))), Some(crate::Stat::default()));
}

/// The source is what it was before the copy, whichever way the ranges overlap.
pub fn clone_range_may_overlap_itself(harness: &dyn Harness) {
    let Some(opened) = cloning(harness, false) else { return };
    let store = opened.store();
    for (from, len, to, expected) in [
        (0, 6, 2, "ababcdefij"),
        (2, 6, 0, "cdefghghij"),
        (0, 10, 5, "abcdeabcdefghij"),
        (3, 4, 3, "abcdefghij"),
        (8, 4, 0, "ij\0\0efghij"),
    ] {
        let object = object(&format!("{from} {len} {to}"));
        change(store, &object, [write(0, "abcdefghij")]);
        change(store, &object, [clone_range(&object, from, len, to)]);
        assert_eq!(contents(store, &object), expected, "{len} from {from} to {to}");
    }
}

/// Shared data stays as long as one of its owners.
pub fn clone_of_a_clone_outlives_both(harness: &dyn Harness) {
    let Some(mut opened) = cloning(harness, false) else { return };
    let (a, b, c) = (object("a"), object("b"), object("c"));
    let store = opened.store();
    let large: Vec<u8> = (0..100_000u32).map(|at| (at * 7 / 3) as u8).collect();
    change(store, &a, filled());
    change(store, &a, [write(50, &large)]);
    change(store, &a, [clone_to(&b)]);
    change(store, &b, [clone_to(&c)]);
    let before = snapshot_of(store, &c);
    change(store, &a, [Change::Remove]);
    change(store, &b, [write(50, vec![0; 100_000]), Change::Remove]);
    assert_eq!(snapshot_of(store, &c), before);
    assert!(contents(store, &c)[50..] == large);
    if store.capability().persistent {
        opened.reopen();
        assert_eq!(snapshot_of(opened.store(), &c), before);
    }
}

/// The object goes on under its new name, and the old name is free.
pub fn rename_keeps_everything(harness: &dyn Harness) {
    let Some(opened) = cloning(harness, false) else { return };
    let store = opened.store();
    let (old, new) = (object("old"), object("new"));
    change(store, &old, filled());
    let mut before = snapshot_of(store, &old);
    before.id = new.clone();
    change(store, &old, [rename_to(&new)]);
    assert!(!exists(store, &old));
    assert_eq!(snapshot_of(store, &new), before);
    assert_eq!(got(store.list(&HOME.into(), None, 10)), [bytes("new")]);
    change(store, &old, [write(0, "another")]);
    assert_eq!(snapshot_of(store, &new), before);
    assert_eq!(contents(store, &old), "another");
}

/// Into another collection.
pub fn rename_goes_to_another_collection(harness: &dyn Harness) {
    let Some(opened) = cloning(harness, true) else { return };
    let store = opened.store();
    let (old, new) = (object("o"), object_in(AWAY, "o"));
    change(store, &old, filled());
    ok(store, changes(&old, [rename_to(&new)]).remove_collection(&HOME.into()));
    assert_eq!(got(store.collections()), [AWAY.into()]);
    assert_eq!(got(store.omap_get(&new, b"key 1")), Some(bytes("value 1")));
}

/// `Error::Invalid`, also onto itself.
pub fn rename_onto_an_object_is_refused(harness: &dyn Harness) {
    let Some(opened) = cloning(harness, false) else { return };
    let store = opened.store();
    change(store, &object("a"), filled());
    change(store, &object("b"), [Change::Touch]);
    for to in ["b", "a"] {
        let txn = changes(&object("a"), [write(0, "changed"), rename_to(&object(to))]);
        let error = refused_without_change(store, txn);
        assert!(matches!(error, Error::Invalid { .. }), "onto {to}: {error}");
    }
    // Free once it is removed, in the same transaction too.
    ok(store, changes(&object("b"), [Change::Remove]).change(&object("a"), rename_to(&object("b"))));
    assert_eq!(got(store.omap_get(&object("b"), b"key 1")), Some(bytes("value 1")));
}

/// `Error::NoObject` names it.
pub fn a_missing_source_refuses_the_transaction(harness: &dyn Harness) {
    let Some(opened) = cloning(harness, false) else { return };
    let store = opened.store();
    change(store, &object("there"), filled());
    let missing = object("missing");
    for from_missing in [
        clone_to(&object("there")),
        clone_to(&object("new")),
        clone_to(&missing),
        clone_range(&object("there"), 0, 1, 0),
        clone_range(&object("new"), 0, 0, 0),
        rename_to(&object("new")),
    ] {
        let txn = changes(&object("there"), [write(0, "changed")]).change(&missing, from_missing.clone());
        let error = refused_without_change(store, txn);
        assert!(matches!(&error, Error::NoObject { object } if *object == missing.to_string()), "{error}");
        let txn = changes(&object("there"), [Change::Remove]).change(&object("there"), from_missing);
        let error = refused_without_change(store, txn);
        assert!(matches!(error, Error::NoObject { .. }), "{error}");
    }
}

/// `Error::NoCollection` names it.
pub fn a_missing_target_collection_refuses_the_transaction(harness: &dyn Harness) {
    let Some(opened) = cloning(harness, true) else { return };
    let store = opened.store();
    change(store, &object("there"), filled());
    let to = object_in("no such collection", "o");
    for copies in [clone_to(&to), clone_range(&to, 0, 1, 0), rename_to(&to)] {
        let error = refused_without_change(store, changes(&object("there"), [write(0, "changed"), copies]));
        assert!(matches!(&error, Error::NoCollection { collection } if collection == "no such collection"), "{error}");
    }
}

/// Sources and targets made by the same transaction.
pub fn copies_see_the_operations_before_them(harness: &dyn Harness) {
    let Some(opened) = cloning(harness, false) else { return };
    let store = opened.store();
    let (a, b, c) = (object("a"), object("b"), object("c"));
    let txn = changes(&a, [write(0, "first"), omap_set("k", "1"), clone_to(&b), write(0, "later"), omap_set("k", "2")]);
    let txn = txn.change(&b, rename_to(&c)).change(&c, slot_set(1, "c")).change(&a, clone_range(&c, 0, 2, 3));
    ok(store, txn);
    assert!(!exists(store, &b));
    assert_eq!(contents(store, &a), "later");
    assert_eq!(contents(store, &c), "firla");
    assert_eq!(whole_omap(store, &c), [(bytes("k"), bytes("1"))]);
    assert_eq!(whole_slots(store, &c), [(1, bytes("c"))]);
    assert_eq!(whole_slots(store, &a), []);
}

/// Random writes, holes and range clones over three objects, against buffers.
pub fn random_clones_match_plain_buffers(harness: &dyn Harness) {
    let Some(opened) = cloning(harness, false) else { return };
    let store = opened.store();
    for seed in 0..4u64 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let objects = [0, 1, 2].map(|number| object(&format!("seed {seed} object {number}")));
        let mut plain: [Vec<u8>; 3] = Default::default();
        for object in &objects {
            change(store, object, [Change::Touch]);
        }
        for step in 0..80u8 {
            let (from, to) = (rng.usize(..3), rng.usize(..3));
            let (offset, to_offset, len) = (rng.usize(..9000), rng.usize(..9000), rng.usize(1..6000));
            match rng.u8(..6) {
                0..=2 => {
                    let mut part = vec![0; len];
                    let end = plain[from].len().min(offset + len);
                    if offset < end {
                        part[..end - offset].copy_from_slice(&plain[from][offset..end]);
                    }
                    put(&mut plain[to], to_offset, &part);
                    let copies = clone_range(&objects[to], offset as u64, len as u64, to_offset as u64);
                    change(store, &objects[from], [copies]);
                }
                3 => {
                    plain[to] = plain[from].clone();
                    change(store, &objects[from], [clone_to(&objects[to])]);
                }
                _ => {
                    put(&mut plain[to], offset, &vec![step + 1; len]);
                    change(store, &objects[to], [write(offset as u64, vec![step + 1; len])]);
                }
            }
            for (object, plain) in objects.iter().zip(&plain) {
                assert!(contents(store, object) == *plain, "seed {seed}, step {step}: {object} differs");
            }
        }
    }
}

fn put(plain: &mut Vec<u8>, offset: usize, data: &[u8]) {
    if plain.len() < offset + data.len() {
        plain.resize(offset + data.len(), 0);
    }
    plain[offset..offset + data.len()].copy_from_slice(data);
}

/// Where the capability is missing: `Error::Unsupported`, and nothing changed.
pub fn copies_that_cannot_be_made_are_refused(harness: &dyn Harness) {
    let opened = furnished(harness);
    let store = opened.store();
    if store.capability().clone {
        println!("skipped: {} can clone and rename", store.capability().backend);
        return;
    }
    change(store, &object("there"), filled());
    let to = object("new");
    for copies in [clone_to(&to), clone_range(&to, 0, 1, 0), rename_to(&to)] {
        let error = refused_without_change(store, changes(&object("there"), [write(0, "changed"), copies]));
        assert!(matches!(error, Error::Unsupported { .. }), "{error}");
    }
}
