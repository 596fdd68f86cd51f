//! Commit order: live slots and omap entries in the order of the commits that last wrote them.

use super::actions::*;
use super::{Harness, Opened};
use crate::{Change, Collection, CommitCursor, CommitEntry, Error, ObjectId, ObjectStore};

#[track_caller]
fn ordered(harness: &dyn Harness) -> Option<Box<dyn Opened>> {
    let opened = furnished(harness);
    let able = opened.store().capability().commit_order;
    if !able {
        skip(opened.store(), "scan in commit order");
    }
    able.then_some(opened)
}

/// All entries, in answers of at most `limit`.
#[track_caller]
fn all(store: &dyn ObjectStore, collection: &str, prefix: &str, limit: usize) -> Vec<CommitEntry> {
    let collection = Collection::new(bytes(collection));
    let mut after = CommitCursor::default();
    let mut found = Vec::new();
    loop {
        let (entries, next) = got(store.commit_scan(&collection, prefix.as_bytes(), after, limit));
        assert!(entries.len() <= limit, "{} entries with a limit of {limit}", entries.len());
        found.extend(entries);
        let Some(next) = next else { return found };
        assert!(next > after, "the cursor stands still at {next:?}");
        after = next;
    }
}

fn slot(object: &ObjectId, index: u64, value: impl AsRef<[u8]>) -> CommitEntry {
    CommitEntry::Slot(object.clone(), index, bytes(value))
}

fn omap(object: &ObjectId, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> CommitEntry {
    CommitEntry::Omap(object.clone(), bytes(key), bytes(value))
}

/// Over several objects and both spaces, not in key order.
pub fn commit_scan_gives_entries_in_commit_order(harness: &dyn Harness) {
    let Some(opened) = ordered(harness) else { return };
    let store = opened.store();
    let (a, b) = (object("a"), object("b"));
    assert_eq!(all(store, HOME, "", 10), []);
    change(store, &b, [slot_set(9, "1")]);
    change(store, &a, [omap_set("z", "2")]);
    change(store, &b, [omap_set("a", "3"), write(0, "no entry"), xattr_set("no", "entry")]);
    change(store, &a, [slot_set(1, "")]);
    change(store, &b, [slot_set(0, "5")]);
    let expected = [slot(&b, 9, "1"), omap(&a, "z", "2"), omap(&b, "a", "3"), slot(&a, 1, ""), slot(&b, 0, "5")];
    assert_eq!(all(store, HOME, "", 100), expected);
}

/// An entry stands where it was last written, once.
pub fn overwritten_entries_come_later(harness: &dyn Harness) {
    let Some(opened) = ordered(harness) else { return };
    let store = opened.store();
    let o = object("o");
    change(store, &o, [slot_set(1, "one")]);
    change(store, &o, [slot_set(2, "two")]);
    change(store, &o, [omap_set("k", "three")]);
    change(store, &o, [slot_set(1, "four")]);
    change(store, &o, [omap_set("k", "five")]);
    change(store, &o, [slot_set(3, "six"), slot_set(3, "seven")]);
    let expected = [slot(&o, 2, "two"), slot(&o, 1, "four"), omap(&o, "k", "five"), slot(&o, 3, "seven")];
    assert_eq!(all(store, HOME, "", 100), expected);
    // Writing the same value again is a write.
    change(store, &o, [slot_set(2, "two")]);
    assert_eq!(all(store, HOME, "", 100).last(), Some(&slot(&o, 2, "two")));
}

/// Neither removed entries nor those of removed objects, also after these were made again.
pub fn removed_entries_do_not_come(harness: &dyn Harness) {
    let Some(opened) = ordered(harness) else { return };
    let store = opened.store();
    let (o, gone) = (object("o"), object("gone"));
    for index in 0..5 {
        change(store, &o, [slot_set(index, "v")]);
        change(store, &o, [omap_set(format!("k{index}"), "v")]);
        change(store, &gone, [slot_set(index, "v")]);
    }
    change(store, &o, [Change::SlotRemove { index: 0 }, omap_remove("k0")]);
    change(store, &o, [Change::SlotRemoveRange { start: 3, end: u64::MAX }]);
    change(store, &o, [Change::OmapRemoveRange { start: bytes("k3"), end: None }]);
    change(store, &gone, [Change::Remove]);
    let mut expected = vec![slot(&o, 1, "v"), omap(&o, "k1", "v"), slot(&o, 2, "v"), omap(&o, "k2", "v")];
    assert_eq!(all(store, HOME, "", 100), expected);
    change(store, &gone, [slot_set(4, "again")]);
    expected.push(slot(&gone, 4, "again"));
    assert_eq!(all(store, HOME, "", 100), expected);
    change(store, &o, [Change::OmapClear]);
    expected.retain(|entry| !matches!(entry, CommitEntry::Omap(..)));
    assert_eq!(all(store, HOME, "", 100), expected);
}

/// Any limit gives the same entries.
pub fn commit_scan_pages_with_its_cursor(harness: &dyn Harness) {
    let Some(opened) = ordered(harness) else { return };
    let store = opened.store();
    let objects = [object("a"), object("b"), object("c")];
    let mut expected = Vec::new();
    for number in 0..40u64 {
        let o = &objects[(number * 7 % 3) as usize];
        if number % 3 == 0 {
            change(store, o, [omap_set(format!("k{}", 100 - number), number.to_string())]);
            expected.push(omap(o, format!("k{}", 100 - number), number.to_string()));
        } else {
            change(store, o, [slot_set(100 - number, number.to_string())]);
            expected.push(slot(o, 100 - number, number.to_string()));
        }
    }
    for limit in [1, 2, 7, 39, 40, 41, usize::MAX] {
        assert_eq!(all(store, HOME, "", limit), expected, "limit {limit}");
    }
}

/// Between two answers an entry may move to the end; then it comes again, and none is missed.
pub fn commit_scan_sees_what_was_overwritten_between_pages_again(harness: &dyn Harness) {
    let Some(opened) = ordered(harness) else { return };
    let store = opened.store();
    let o = object("o");
    for index in 0..4 {
        change(store, &o, [slot_set(index, "old")]);
    }
    let (first, next) = got(store.commit_scan(&HOME.into(), b"", CommitCursor::default(), 2));
    assert_eq!(first, [slot(&o, 0, "old"), slot(&o, 1, "old")]);
    change(store, &o, [slot_set(0, "new")]);
    change(store, &o, [slot_set(3, "new")]);
    change(store, &o, [slot_set(9, "new")]);
    let next = next.expect("more entries are there");
    let (rest, _) = got(store.commit_scan(&HOME.into(), b"", next, 100));
    assert_eq!(rest, [slot(&o, 2, "old"), slot(&o, 0, "new"), slot(&o, 3, "new"), slot(&o, 9, "new")]);
}

/// Only objects of the collection whose names start so.
pub fn commit_scan_keeps_to_its_collection_and_prefix(harness: &dyn Harness) {
    let Some(opened) = ordered(harness) else { return };
    let store = opened.store();
    let names = ["a", "ab", "abc", "b", "ac"];
    for name in names {
        change(store, &object(name), [slot_set(0, name)]);
        change(store, &object_in(AWAY, name), [slot_set(0, "away")]);
    }
    for prefix in ["", "a", "ab", "abc", "abcd", "b", "c"] {
        let starting = names.into_iter().filter(|name| name.starts_with(prefix));
        let expected: Vec<_> = starting.map(|name| slot(&object(name), 0, name)).collect();
        assert_eq!(all(store, HOME, prefix, 100), expected, "prefix {prefix:?}");
    }
    assert_eq!(all(store, AWAY, "ab", 100).len(), 2);
}

/// Entries of one transaction may come in several answers.
pub fn commit_scan_of_large_transactions_keeps_its_limit(harness: &dyn Harness) {
    let Some(opened) = ordered(harness) else { return };
    let store = opened.store();
    let o = object("o");
    change(store, &o, (0..10).map(|index| slot_set(index, "first")));
    change(store, &o, (10..20).map(|index| slot_set(index, "second")));
    for limit in [1, 3, 10, 100] {
        let found = all(store, HOME, "", limit);
        let index = |entry: &CommitEntry| if let CommitEntry::Slot(_, index, _) = entry { *index } else { u64::MAX };
        let mut indexes: Vec<u64> = found.iter().map(index).collect();
        assert!(indexes.len() == 20 && indexes[..10].iter().all(|index| *index < 10), "limit {limit}: {indexes:?}");
        indexes.sort_unstable();
        assert!(indexes.into_iter().eq(0..20), "limit {limit}: entries are missing or double");
    }
}

/// Where the capability is missing: `Error::Unsupported`.
pub fn commit_scan_is_refused_where_it_is_missing(harness: &dyn Harness) {
    let opened = furnished(harness);
    let store = opened.store();
    if store.capability().commit_order {
        println!("skipped: {} can scan in commit order", store.capability().backend);
        return;
    }
    let error = store.commit_scan(&HOME.into(), b"", CommitCursor::default(), 10).wait();
    assert!(matches!(error, Err(Error::Unsupported { .. })), "{error:?}");
}
