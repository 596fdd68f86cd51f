//! The slots: records under u64 numbers.

use super::Harness;
use super::actions::*;
use crate::limits::{SCAN_BYTES_MAX, SCAN_ENTRIES_MAX};
use crate::{Change, ObjectId, ObjectStore, SlotScan, Transaction};

fn scan(range: std::ops::Range<u64>) -> SlotScan {
    SlotScan { range, reverse: false, limit: 1000, keys_only: false }
}

fn indexes(store: &dyn ObjectStore, object: &ObjectId, scan: &SlotScan) -> Vec<u64> {
    got(store.slot_scan(object, scan)).into_iter().map(|(index, _)| index).collect()
}

/// Set, replace, remove; an empty value is a value.
pub fn slots_are_set_replaced_and_removed(harness: &dyn Harness) {
    let opened = furnished(harness);
    let store = opened.store();
    let object = object("o");
    change(store, &object, [slot_set(0, "zero"), slot_set(1, ""), slot_set(2, "two")]);
    change(store, &object, [slot_set(0, "another zero")]);
    assert_eq!(got(store.slot_get(&object, 0)), Some(bytes("another zero")));
    assert_eq!(got(store.slot_get(&object, 1)), Some(bytes("")));
    assert_eq!(got(store.slot_get(&object, 3)), None);
    change(store, &object, [Change::SlotRemove { index: 2 }, Change::SlotRemove { index: 99 }]);
    assert_eq!(got(store.slot_get(&object, 2)), None);
    assert_eq!(got(store.stat(&object)).map(|stat| stat.slots), Some(2));
    change(store, &object, [slot_set(2, "again")]);
    assert_eq!(got(store.slot_get(&object, 2)), Some(bytes("again")));
}

/// Dense, sparse and the very last numbers.
pub fn any_slot_number_can_be_filled(harness: &dyn Harness) {
    let opened = furnished(harness);
    let store = opened.store();
    let object = object("o");
    let mut all: Vec<u64> = (0..40).chain(1000..1100).chain((0..64).map(|bit| 1 << bit)).collect();
    all.extend([u64::MAX, u64::MAX - 1, u64::from(u32::MAX), u64::from(u32::MAX) + 1, 4095, 4096, 65_535, 65_537]);
    all.sort_unstable();
    all.dedup();
    for index in all.iter().rev() {
        change(store, &object, [slot_set(*index, index.to_le_bytes())]);
    }
    let expected: Vec<_> = all.iter().map(|index| (*index, bytes(index.to_le_bytes()))).collect();
    assert_eq!(whole_slots(store, &object), expected);
    for index in &all {
        assert_eq!(got(store.slot_get(&object, *index)), Some(bytes(index.to_le_bytes())), "slot {index}");
    }
    assert_eq!(got(store.stat(&object)).map(|stat| stat.slots), Some(all.len() as u64));
}

/// The start is in, the end is out, in both directions.
pub fn slot_scan_keeps_bounds_in_both_directions(harness: &dyn Harness) {
    let opened = furnished(harness);
    let store = opened.store();
    let object = object("o");
    let all = [1, 2, 5, 300, 70_000, 1 << 40];
    change(store, &object, all.map(|index| slot_set(index, "v")));
    let cases = [(0, 6), (1, 2), (2, 2), (3, 5), (5, 301), (6, 300), (0, 1 << 50), (70_001, 1 << 40), (9, 3)];
    for (start, end) in cases {
        for reverse in [false, true] {
            let mut expected: Vec<u64> = all.into_iter().filter(|index| (start..end).contains(index)).collect();
            if reverse {
                expected.reverse();
            }
            let scan = SlotScan { reverse, ..scan(start..end) };
            assert_eq!(indexes(store, &object, &scan), expected, "{scan:?}");
        }
    }
}

/// The limit counts from the end that the scan starts at; without values only values are missing.
pub fn slot_scan_honours_limit_and_keys_only(harness: &dyn Harness) {
    let opened = furnished(harness);
    let store = opened.store();
    let object = object("o");
    change(store, &object, (0..20).map(|index| slot_set(index * 3, index.to_string())));
    let limited = SlotScan { limit: 2, ..scan(4..50) };
    assert_eq!(got(store.slot_scan(&object, &limited)), [(6, bytes("2")), (9, bytes("3"))]);
    let backwards = SlotScan { reverse: true, ..limited.clone() };
    assert_eq!(got(store.slot_scan(&object, &backwards)), [(48, bytes("16")), (45, bytes("15"))]);
    let keys_only = SlotScan { keys_only: true, ..limited };
    assert_eq!(got(store.slot_scan(&object, &keys_only)), [(6, bytes("")), (9, bytes(""))]);
}

/// From the start, up to but without the end.
pub fn slot_remove_range_keeps_its_bounds(harness: &dyn Harness) {
    let opened = furnished(harness);
    let store = opened.store();
    let all = [0, 1, 2, 3, 100, 5000, 1 << 33];
    let cases = [(1, 3), (0, 0), (3, 3), (2, 5000), (2, 5001), (0, 1 << 33), (101, 4999), (6000, 1 << 60)];
    for (start, end) in cases {
        let object = object(&format!("{start}..{end}"));
        change(store, &object, all.map(|index| slot_set(index, "v")));
        change(store, &object, [Change::SlotRemoveRange { start, end }]);
        let expected: Vec<u64> = all.into_iter().filter(|index| !(start..end).contains(index)).collect();
        assert_eq!(indexes(store, &object, &scan(0..u64::MAX)), expected, "{start}..{end}");
        assert_eq!(got(store.stat(&object)).map(|stat| stat.slots), Some(expected.len() as u64));
    }
}

/// `u64::MAX` as an end means that the last slot is in.
pub fn the_last_slot_is_in_ranges_that_end_at_the_maximum(harness: &dyn Harness) {
    let opened = furnished(harness);
    let store = opened.store();
    let object = object("o");
    let fill = [5, u64::MAX - 1, u64::MAX];
    change(store, &object, fill.map(|index| slot_set(index, "v")));
    assert_eq!(indexes(store, &object, &scan(0..u64::MAX)), fill);
    assert_eq!(indexes(store, &object, &scan(u64::MAX..u64::MAX)), [u64::MAX]);
    assert_eq!(indexes(store, &object, &scan(0..u64::MAX - 1)), [5]);
    let backwards = SlotScan { reverse: true, limit: 2, ..scan(0..u64::MAX) };
    assert_eq!(indexes(store, &object, &backwards), [u64::MAX, u64::MAX - 1]);
    change(store, &object, [Change::SlotRemoveRange { start: 6, end: u64::MAX - 1 }]);
    assert_eq!(indexes(store, &object, &scan(0..u64::MAX)), fill);
    change(store, &object, [Change::SlotRemoveRange { start: u64::MAX, end: u64::MAX }]);
    assert_eq!(indexes(store, &object, &scan(0..u64::MAX)), [5, u64::MAX - 1]);
    change(store, &object, [slot_set(u64::MAX, "v"), Change::SlotRemoveRange { start: 6, end: u64::MAX }]);
    assert_eq!(indexes(store, &object, &scan(0..u64::MAX)), [5]);
}

/// Answers stand in the order of the questions, repeats included.
pub fn slot_get_many_answers_in_the_order_asked(harness: &dyn Harness) {
    let opened = furnished(harness);
    let store = opened.store();
    let object = object("o");
    change(store, &object, [slot_set(7, "7"), slot_set(8, ""), slot_set(u64::MAX, "last")]);
    let found = got(store.slot_get_many(&object, &[8, 6, u64::MAX, 7, 7]));
    assert_eq!(found, [Some(bytes("")), None, Some(bytes("last")), Some(bytes("7")), Some(bytes("7"))]);
    assert_eq!(got(store.slot_get_many(&object, &[])), []);
}

/// A slot is not an omap key, whatever a backend makes of it.
pub fn slots_and_omap_do_not_mix(harness: &dyn Harness) {
    let opened = furnished(harness);
    let store = opened.store();
    let object = object("o");
    let key = 1u64.to_be_bytes();
    change(store, &object, [slot_set(1, "slot"), omap_set(key, "omap"), omap_set("k", "omap")]);
    assert_eq!(got(store.slot_get(&object, 1)), Some(bytes("slot")));
    assert_eq!(got(store.omap_get(&object, &key)), Some(bytes("omap")));
    assert_eq!(whole_omap(store, &object), [(bytes(key), bytes("omap")), (bytes("k"), bytes("omap"))]);
    change(store, &object, [Change::OmapClear]);
    assert_eq!(whole_slots(store, &object), [(1, bytes("slot"))]);
    change(store, &object, [omap_set("k", "omap"), Change::SlotRemoveRange { start: 0, end: u64::MAX }]);
    assert_eq!(whole_omap(store, &object), [(bytes("k"), bytes("omap"))]);
    let stat = got(store.stat(&object));
    assert_eq!(stat.map(|stat| (stat.omap_keys, stat.slots)), Some((1, 0)));
}

/// However much is asked for.
pub fn a_slot_scan_returns_at_most_scan_entries_max(harness: &dyn Harness) {
    let opened = furnished(harness);
    let store = opened.store();
    let object = object("o");
    let count = SCAN_ENTRIES_MAX as u64 + 10;
    for start in (0..count).step_by(20_000) {
        let mut txn = Transaction::new();
        for index in start..count.min(start + 20_000) {
            txn.push(&object, Change::SlotSet { index, value: bytes("v") });
        }
        ok(store, txn);
    }
    let wanted = SlotScan { limit: usize::MAX, ..scan(0..u64::MAX) };
    assert!(indexes(store, &object, &wanted).len() <= SCAN_ENTRIES_MAX);
    let all = whole_slots(store, &object);
    assert!(all.iter().map(|(index, _)| *index).eq(0..count), "{} of {count} slots came", all.len());
}

/// A scan of more than `SCAN_BYTES_MAX` ends early, not empty, and goes on to the end, also backwards.
pub fn a_short_slot_scan_goes_on_to_the_end(harness: &dyn Harness) {
    const VALUE: usize = 1 << 20;
    let count = (SCAN_BYTES_MAX / VALUE) as u64 + 4;
    let opened = furnished(harness);
    let store = opened.store();
    let object = object("o");
    for index in 0..count {
        change(store, &object, [slot_set(index, vec![index as u8; VALUE])]);
    }
    let mut wanted = SlotScan { reverse: true, limit: usize::MAX, ..scan(0..1 << 40) };
    let (mut next, mut calls) = (count, 0);
    loop {
        let page = got(store.slot_scan(&object, &wanted));
        if page.is_empty() {
            break;
        }
        calls += 1;
        assert!((page.len() - 1) * (VALUE + 8) < SCAN_BYTES_MAX, "one call returned {} MiB", page.len());
        for (index, value) in page {
            next -= 1;
            assert_eq!(index, next);
            assert!(value.len() == VALUE && value.iter().all(|byte| *byte == index as u8), "value of slot {index}");
        }
        wanted.range.end = next;
    }
    assert_eq!(next, 0);
    assert!(calls >= 2, "{count} MiB came in one call");
}
