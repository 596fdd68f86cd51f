//! The omap: ordered byte keys.

use bytes::Bytes;

use super::Harness;
use super::actions::*;
use crate::limits::{GET_MANY_BYTES_MAX, SCAN_BYTES_MAX, VALUE_BYTES_MAX};
use crate::{Change, ObjectId, ObjectStore, OmapScan};

fn keys(store: &dyn ObjectStore, object: &ObjectId, scan: &OmapScan) -> Vec<String> {
    let entries = got(store.omap_scan(object, scan));
    entries.iter().map(|(key, _)| String::from_utf8_lossy(key).into_owned()).collect()
}

/// Set, replace, remove.
pub fn omap_keys_are_set_replaced_and_removed(harness: &dyn Harness) {
    let opened = furnished(harness);
    let store = opened.store();
    let object = object("o");
    change(store, &object, [omap_set("a", "1"), omap_set("b", "2")]);
    change(store, &object, [omap_set("a", "replaced by something longer")]);
    assert_eq!(got(store.omap_get(&object, b"a")), Some(bytes("replaced by something longer")));
    change(store, &object, [omap_remove("a"), omap_remove("never")]);
    assert_eq!(got(store.omap_get(&object, b"a")), None);
    assert_eq!(got(store.omap_get(&object, b"b")), Some(bytes("2")));
    change(store, &object, [omap_set("a", "again")]);
    assert_eq!(got(store.omap_get(&object, b"a")), Some(bytes("again")));
    assert_eq!(got(store.stat(&object)).map(|stat| stat.omap_keys), Some(2));
}

/// The empty key is a key, the empty value a value.
pub fn empty_keys_and_values_are_kept(harness: &dyn Harness) {
    let opened = furnished(harness);
    let store = opened.store();
    let object = object("o");
    change(store, &object, [omap_set("", "of the empty key"), omap_set("empty", "")]);
    assert_eq!(got(store.omap_get(&object, b"")), Some(bytes("of the empty key")));
    assert_eq!(got(store.omap_get(&object, b"empty")), Some(bytes("")));
    assert_eq!(got(store.omap_get(&object, b"em")), None);
    assert_eq!(whole_omap(store, &object), [(bytes(""), bytes("of the empty key")), (bytes("empty"), bytes(""))]);
    change(store, &object, [omap_remove("")]);
    assert_eq!(whole_omap(store, &object), [(bytes("empty"), bytes(""))]);
}

/// Order is that of bytes: unsigned, shorter first.
pub fn omap_keys_are_ordered_as_bytes(harness: &dyn Harness) {
    let opened = furnished(harness);
    let store = opened.store();
    let object = object("o");
    let mut rng = fastrand::Rng::with_seed(11);
    let mut expected: Vec<(Bytes, Bytes)> = Vec::new();
    for number in 0..300u32 {
        let key: Vec<u8> = (0..rng.usize(..6)).map(|_| [0, 1, 0x7f, 0x80, 0xff][rng.usize(..5)]).collect();
        expected.retain(|(other, _)| *other != key);
        expected.push((key.clone().into(), bytes(number.to_le_bytes())));
        change(store, &object, [omap_set(key, number.to_le_bytes())]);
    }
    expected.sort();
    assert_eq!(whole_omap(store, &object), expected);
    let mut backwards = got(store.omap_scan(&object, &OmapScan { reverse: true, limit: 1000, ..OmapScan::default() }));
    backwards.reverse();
    assert_eq!(backwards, expected);
}

/// The start is in, the end is out, in both directions.
pub fn omap_scan_keeps_bounds_in_both_directions(harness: &dyn Harness) {
    let opened = furnished(harness);
    let store = opened.store();
    let object = object("o");
    change(store, &object, ["a", "b", "bb", "c", "d"].map(|key| omap_set(key, "v")));
    let cases: [(Option<&str>, Option<&str>, &[&str]); 8] = [
        (None, None, &["a", "b", "bb", "c", "d"]),
        (Some("b"), None, &["b", "bb", "c", "d"]),
        (Some("b\0"), None, &["bb", "c", "d"]),
        (None, Some("c"), &["a", "b", "bb"]),
        (Some("b"), Some("c"), &["b", "bb"]),
        (Some("aa"), Some("cc"), &["b", "bb", "c"]),
        (Some("e"), None, &[]),
        (Some(""), Some("a"), &[]),
    ];
    for (start, end, expected) in cases {
        for reverse in [false, true] {
            let scan = OmapScan { start: start.map(bytes), end: end.map(bytes), reverse, limit: 100, keys_only: false };
            let mut expected = expected.to_vec();
            if reverse {
                expected.reverse();
            }
            assert_eq!(keys(store, &object, &scan), expected, "{scan:?}");
        }
    }
}

/// The limit counts from the end that the scan starts at; without values only values are missing.
pub fn omap_scan_honours_limit_and_keys_only(harness: &dyn Harness) {
    let opened = furnished(harness);
    let store = opened.store();
    let object = object("o");
    change(store, &object, (0..20).map(|number| omap_set(format!("k{number:02}"), format!("v{number}"))));
    let scan = OmapScan { limit: 3, ..OmapScan::default() };
    assert_eq!(keys(store, &object, &scan), ["k00", "k01", "k02"]);
    assert_eq!(keys(store, &object, &OmapScan { reverse: true, ..scan.clone() }), ["k19", "k18", "k17"]);
    let bounded = OmapScan { start: Some(bytes("k05")), end: Some(bytes("k08")), limit: 2, ..OmapScan::default() };
    assert_eq!(keys(store, &object, &bounded), ["k05", "k06"]);
    assert_eq!(keys(store, &object, &OmapScan { reverse: true, ..bounded }), ["k07", "k06"]);
    let found = got(store.omap_scan(&object, &OmapScan { keys_only: true, ..scan.clone() }));
    assert_eq!(found, [(bytes("k00"), bytes("")), (bytes("k01"), bytes("")), (bytes("k02"), bytes(""))]);
    assert_eq!(got(store.omap_scan(&object, &scan))[2], (bytes("k02"), bytes("v2")));
}

/// A range that is empty or upside down finds nothing and harms nothing.
pub fn omap_scan_of_an_empty_range_is_empty(harness: &dyn Harness) {
    let opened = furnished(harness);
    let store = opened.store();
    let object = object("o");
    change(store, &object, ["a", "b", "c"].map(|key| omap_set(key, "v")));
    for (start, end) in [("b", "b"), ("c", "a")] {
        for reverse in [false, true] {
            let (start, end) = (Some(bytes(start)), Some(bytes(end)));
            let scan = OmapScan { start, end, reverse, limit: 10, keys_only: false };
            assert_eq!(got(store.omap_scan(&object, &scan)), [], "{scan:?}");
        }
    }
}

/// From the start, up to but without the end; without an end, all.
pub fn omap_remove_range_keeps_its_bounds(harness: &dyn Harness) {
    let opened = furnished(harness);
    let store = opened.store();
    let cases: [(&str, Option<&str>, &[&str]); 7] = [
        ("b", Some("d"), &["", "a", "d", "e"]),
        ("b", None, &["", "a"]),
        ("", None, &[]),
        ("", Some("a"), &["a", "b", "c", "d", "e"]),
        ("c", Some("c"), &["", "a", "b", "c", "d", "e"]),
        ("aa", Some("cc"), &["", "a", "d", "e"]),
        ("f", Some("g"), &["", "a", "b", "c", "d", "e"]),
    ];
    for (number, (start, end, expected)) in cases.into_iter().enumerate() {
        let object = object(&format!("object {number}"));
        change(store, &object, ["", "a", "b", "c", "d", "e"].map(|key| omap_set(key, "v")));
        change(store, &object, [Change::OmapRemoveRange { start: bytes(start), end: end.map(bytes) }]);
        let scan = OmapScan { limit: 100, ..OmapScan::default() };
        assert_eq!(keys(store, &object, &scan), expected, "{start:?}..{end:?}");
        assert_eq!(got(store.stat(&object)).map(|stat| stat.omap_keys), Some(expected.len() as u64));
    }
}

/// Clear empties the omap and leaves the object and its other spaces.
pub fn omap_clear_takes_all_keys_and_nothing_else(harness: &dyn Harness) {
    let opened = furnished(harness);
    let store = opened.store();
    let object = object("o");
    change(store, &object, filled());
    let before = snapshot_of(store, &object);
    change(store, &object, [Change::OmapClear]);
    let after = snapshot_of(store, &object);
    assert_eq!(after.omap, []);
    assert_eq!(after.slots, before.slots);
    assert_eq!((after.xattrs, after.bytes, after.runs), (before.xattrs, before.bytes, before.runs));
    change(store, &object, [omap_set("new", "v")]);
    assert_eq!(whole_omap(store, &object), [(bytes("new"), bytes("v"))]);
}

/// Answers stand in the order of the questions, repeats included.
pub fn omap_get_many_answers_in_the_order_asked(harness: &dyn Harness) {
    let opened = furnished(harness);
    let store = opened.store();
    let object = object("o");
    change(store, &object, [omap_set("a", "1"), omap_set("b", "2"), omap_set("c", "")]);
    let found = got(store.omap_get_many(&object, &["c", "never", "a", "b", "a"].map(bytes)));
    assert_eq!(found, [Some(bytes("")), None, Some(bytes("1")), Some(bytes("2")), Some(bytes("1"))]);
    assert_eq!(got(store.omap_get_many(&object, &[])), []);
    // Whether they are there, in the same order.
    let asked = ["c", "never", "a", "", "a"].map(bytes);
    assert_eq!(got(store.omap_has_many(&object, &asked)), [true, false, true, false, true]);
    assert_eq!(got(store.omap_has_many(&object, &[])), []);
    change(store, &object, [Change::OmapRemove { key: bytes("a") }]);
    assert_eq!(got(store.omap_has_many(&object, &asked)), [true, false, false, false, false]);
    assert_eq!(got(store.omap_has_many(&super::actions::object("never made"), &asked[..2])), [false, false]);
}

/// Values that are too many for one answer are refused by name, before they are all gathered.
pub fn omap_get_many_refuses_what_is_too_much_together(harness: &dyn Harness) {
    let opened = furnished(harness);
    let store = opened.store();
    let object = object("o");
    let value = VALUE_BYTES_MAX / 2;
    change(
        store,
        &object,
        [omap_set("large", vec![7; value]), Change::SlotSet { index: 5, value: vec![7; value].into() }],
    );
    let most = GET_MANY_BYTES_MAX / value;
    let keys = vec![bytes("large"); most + 1];
    assert_eq!(got(store.omap_get_many(&object, &keys[..2])).len(), 2);
    let asked = [store.omap_get_many(&object, &keys).wait(), store.slot_get_many(&object, &vec![5; most + 1]).wait()];
    for answer in asked {
        let says = answer.err().map(|error| error.to_string());
        assert!(says.as_ref().is_some_and(|says| says.contains("GET_MANY_BYTES_MAX")), "{says:?}");
    }
}

/// A scan of more than `SCAN_BYTES_MAX` ends early, not empty, and goes on to the end.
pub fn a_short_omap_scan_goes_on_to_the_end(harness: &dyn Harness) {
    const VALUE: usize = 1 << 20;
    let count = SCAN_BYTES_MAX / VALUE + 4;
    let opened = furnished(harness);
    let store = opened.store();
    let object = object("o");
    for number in 0..count {
        change(store, &object, [omap_set(format!("key {number:03}"), vec![number as u8; VALUE])]);
    }
    let mut scan = OmapScan { limit: usize::MAX, ..OmapScan::default() };
    let mut found = 0;
    let mut calls = 0;
    loop {
        let page = got(store.omap_scan(&object, &scan));
        let Some((last, last_value)) = page.last() else { break };
        calls += 1;
        let bytes: usize = page.iter().map(|(key, value)| key.len() + value.len()).sum();
        assert!(bytes - last.len() - last_value.len() < SCAN_BYTES_MAX, "one call returned {bytes} bytes");
        scan.start = Some([&last[..], &[0]].concat().into());
        for (key, value) in page {
            assert_eq!(key, format!("key {found:03}"));
            assert!(value.len() == VALUE && value.iter().all(|byte| *byte == found as u8), "value of key {found}");
            found += 1;
        }
    }
    assert_eq!(found, count);
    assert!(calls >= 2, "{count} MiB came in one call");
}
