//! The bytes space: writes at any alignment, holes, sizes.

use super::Harness;
use super::actions::*;
use crate::{Change, Error};

/// Odd offsets and lengths, small and large, inside and across blocks.
pub fn a_write_is_read_back_at_any_offset(harness: &dyn Harness) {
    let opened = furnished(harness);
    let store = opened.store();
    for (number, (offset, len)) in [
        (0u64, 1usize),
        (1, 1),
        (511, 2),
        (4095, 2),
        (4096, 4096),
        (4097, 4095),
        (3, 8192),
        (65_535, 70_001),
        (1_000_003, 300_007),
    ]
    .into_iter()
    .enumerate()
    {
        let object = object(&format!("object {number}"));
        let data: Vec<u8> = (0..len).map(|at| (at * 31 + at / 256 + 1) as u8).collect();
        change(store, &object, [write(offset, &data)]);
        let end = offset + len as u64;
        assert_eq!(got(store.stat(&object)).map(|stat| stat.size), Some(end));
        assert!(got(store.read(&object, offset..end)) == data, "write of {len} at {offset}");
        let middle = len / 3..len - len / 4;
        let range = offset + middle.start as u64..offset + middle.end as u64;
        assert!(got(store.read(&object, range)) == data[middle], "part of a write of {len} at {offset}");
        check_runs(store, &object, 0..u64::MAX, &[(offset, len as u64)], "");
    }
}

/// Later writes lie over earlier ones, whichever way they overlap.
pub fn overlapping_writes_leave_the_newest_bytes(harness: &dyn Harness) {
    let opened = furnished(harness);
    let store = opened.store();
    let object = object("o");
    change(store, &object, [write(0, "aaaaaaaaaa")]);
    change(store, &object, [write(3, "bbb")]);
    assert_eq!(contents(store, &object), "aaabbbaaaa");
    change(store, &object, [write(8, "cccc")]);
    assert_eq!(contents(store, &object), "aaabbbaacccc");
    change(store, &object, [write(2, "dd")]);
    assert_eq!(contents(store, &object), "aaddbbaacccc");
    change(store, &object, [write(0, "eeeeeeeeeeee")]);
    assert_eq!(contents(store, &object), "eeeeeeeeeeee");
    change(store, &object, [write(1, "f"), write(1, "g"), write(0, "hhh"), write(2, "i")]);
    assert_eq!(contents(store, &object), "hhieeeeeeeee");
}

/// Nothing is stored in the gap, and it reads as zeros.
pub fn a_gap_before_a_write_is_a_hole(harness: &dyn Harness) {
    let opened = furnished(harness);
    let store = opened.store();
    let object = object("o");
    change(store, &object, [write(10_000, "ab")]);
    change(store, &object, [write(2, "cd")]);
    let mut expected = vec![0; 10_002];
    expected[2..4].copy_from_slice(b"cd");
    expected[10_000..].copy_from_slice(b"ab");
    assert!(contents(store, &object) == expected);
    check_runs(store, &object, 0..20_000, &[(2, 2), (10_000, 2)], "");
    assert_eq!(got(store.read(&object, 3..6)), "d\0\0");
    assert_eq!(got(store.read(&object, 9_998..10_001)), "\0\0a");
    assert_eq!(got(store.read(&object, 500..504)), "\0\0\0\0");
}

/// Reads are cut at the size.
pub fn reading_past_the_end_is_short(harness: &dyn Harness) {
    let opened = furnished(harness);
    let store = opened.store();
    let object = object("o");
    change(store, &object, [write(0, "0123456789")]);
    for (range, expected) in [
        (0..10, "0123456789"),
        (0..11, "0123456789"),
        (8..1_000_000, "89"),
        (8..u64::MAX, "89"),
        (10..20, ""),
        (11..20, ""),
        (u64::MAX - 1..u64::MAX, ""),
        (4..4, ""),
        (0..0, ""),
    ] {
        assert_eq!(got(store.read(&object, range.clone())), expected, "{range:?}");
    }
    check_runs(store, &object, 4..u64::MAX, &[(4, 6)], "");
    check_runs(store, &object, 10..u64::MAX, &[], "");
}

/// Writing nothing, and zeroing nothing, changes no size.
pub fn an_empty_write_only_creates(harness: &dyn Harness) {
    let opened = furnished(harness);
    let store = opened.store();
    let object = object("o");
    change(store, &object, [write(100, "")]);
    assert_eq!(got(store.stat(&object)).map(|stat| stat.size), Some(0));
    change(store, &object, [Change::Zero { offset: 100, len: 0 }]);
    assert_eq!(got(store.stat(&object)).map(|stat| stat.size), Some(0));
    change(store, &object, [write(0, "abc"), write(1, ""), Change::Zero { offset: 1, len: 0 }, write(50, "")]);
    assert_eq!(contents(store, &object), "abc");
    check_runs(store, &object, 0..100, &[(0, 3)], "");
}

/// Zero takes data away, reads as zeros, and grows the object like a write.
pub fn zero_punches_a_hole_and_grows(harness: &dyn Harness) {
    let opened = furnished(harness);
    let store = opened.store();
    let object = object("o");
    change(store, &object, [write(0, "abcdefghij")]);
    change(store, &object, [Change::Zero { offset: 3, len: 4 }]);
    assert_eq!(contents(store, &object), "abc\0\0\0\0hij");
    check_runs(store, &object, 0..100, &[(0, 3), (7, 3)], "");
    change(store, &object, [Change::Zero { offset: 9, len: 4 }]);
    assert_eq!(contents(store, &object), "abc\0\0\0\0hi\0\0\0\0");
    check_runs(store, &object, 0..100, &[(0, 3), (7, 2)], "");
    change(store, &object, [Change::Zero { offset: 20, len: 5 }]);
    assert_eq!(got(store.stat(&object)).map(|stat| stat.size), Some(25));
    change(store, &object, [Change::Zero { offset: 0, len: 25 }]);
    assert_eq!(contents(store, &object), vec![0; 25]);
    check_runs(store, &object, 0..100, &[], "");
    change(store, &object, [write(4, "x")]);
    check_runs(store, &object, 0..100, &[(4, 1)], "");
}

/// What was cut off does not come back when the object grows again, by any way.
pub fn truncate_cuts_and_what_comes_back_is_zeros(harness: &dyn Harness) {
    let opened = furnished(harness);
    let store = opened.store();
    let grow = [
        ("truncate", Change::Truncate { size: 12 }, "abc\0\0\0\0\0\0\0\0\0"),
        ("write", write(8, "XX"), "abc\0\0\0\0\0XX"),
        ("zero", Change::Zero { offset: 5, len: 3 }, "abc\0\0\0\0\0"),
    ];
    for together in [false, true] {
        for (name, grows, expected) in grow.clone() {
            let object = object(&format!("{name} {together}"));
            change(store, &object, [write(0, "abcdefghij")]);
            if together {
                change(store, &object, [Change::Truncate { size: 3 }, grows]);
            } else {
                change(store, &object, [Change::Truncate { size: 3 }]);
                assert_eq!(contents(store, &object), "abc");
                assert_eq!(got(store.read(&object, 2..10)), "c");
                change(store, &object, [grows]);
            }
            assert_eq!(contents(store, &object), expected, "{name}, together: {together}");
        }
    }
    let object = object("to nothing");
    change(store, &object, [write(0, "abc"), omap_set("k", "v")]);
    change(store, &object, [Change::Truncate { size: 0 }]);
    assert!(exists(store, &object), "truncating to 0 removed the object");
    assert_eq!(got(store.stat(&object)).map(|stat| (stat.size, stat.omap_keys)), Some((0, 1)));
    check_runs(store, &object, 0..100, &[], "");
}

/// Growing by truncate stores nothing.
pub fn truncate_up_adds_a_hole(harness: &dyn Harness) {
    let opened = furnished(harness);
    let store = opened.store();
    let object = object("o");
    change(store, &object, [write(0, "ab"), Change::Truncate { size: 9000 }]);
    assert_eq!(got(store.stat(&object)).map(|stat| stat.size), Some(9000));
    check_runs(store, &object, 0..10_000, &[(0, 2)], "");
    assert_eq!(got(store.read(&object, 0..4)), "ab\0\0");
    assert_eq!(got(store.read(&object, 8990..9010)), vec![0; 10]);
    change(store, &object, [Change::Truncate { size: 9000 }]);
    check_runs(store, &object, 0..10_000, &[(0, 2)], "");
}

/// Runs that touch are told as one, whatever wrote them, and cut to the range asked for.
pub fn extents_are_joined_and_cut_to_the_range(harness: &dyn Harness) {
    let opened = furnished(harness);
    let store = opened.store();
    let object = object("o");
    change(store, &object, [write(10, "aaaaa")]);
    change(store, &object, [write(15, "bbbbb")]);
    change(store, &object, [write(30, "ccccc"), write(12, "dd"), write(35, "e")]);
    check_runs(store, &object, 0..u64::MAX, &[(10, 10), (30, 6)], "");
    check_runs(store, &object, 12..33, &[(12, 8), (30, 3)], "");
    check_runs(store, &object, 20..30, &[], "");
    check_runs(store, &object, 19..31, &[(19, 1), (30, 1)], "");
    check_runs(store, &object, 12..12, &[], "");
    check_runs(store, &object, 14..16, &[(14, 2)], "");
}

/// Zeros that were written are not a hole.
pub fn written_zeros_are_data(harness: &dyn Harness) {
    let opened = furnished(harness);
    let store = opened.store();
    let object = object("o");
    change(store, &object, [write(5, vec![0; 5000])]);
    check_runs(store, &object, 0..10_000, &[(5, 5000)], "");
}

/// Random writes, zeros and truncates, against a buffer.
pub fn random_overlaps_match_a_plain_buffer(harness: &dyn Harness) {
    let opened = furnished(harness);
    let store = opened.store();
    for seed in 0..6u64 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let object = object(&format!("seed {seed}"));
        let mut plain: Vec<Option<u8>> = Vec::new();
        for step in 0..60u8 {
            let offset = rng.usize(..6000);
            let len = if rng.u8(..5) == 0 { rng.usize(1..6000) } else { rng.usize(1..50) };
            let end = offset + len;
            let action = rng.u8(..6);
            if action < 5 && plain.len() < end {
                plain.resize(end, None);
            }
            let made = match action {
                0..=3 => {
                    plain[offset..end].fill(Some(step + 1));
                    write(offset as u64, vec![step + 1; len])
                }
                4 => {
                    plain[offset..end].fill(None);
                    Change::Zero { offset: offset as u64, len: len as u64 }
                }
                _ => {
                    plain.resize(end, None);
                    Change::Truncate { size: end as u64 }
                }
            };
            change(store, &object, [made.clone()]);
            let expected: Vec<u8> = plain.iter().map(|byte| byte.unwrap_or(0)).collect();
            assert!(contents(store, &object) == expected, "seed {seed}, step {step}: bytes differ after {made:?}");
            let mut at = 0;
            let mut expected = Vec::new();
            for part in plain.chunk_by(|a, b| a.is_some() == b.is_some()) {
                if part[0].is_some() {
                    expected.push((at, part.len() as u64));
                }
                at += part.len() as u64;
            }
            check_runs(store, &object, 0..u64::MAX, &expected, &format!("seed {seed}, step {step}: after {made:?}"));
        }
    }
}

/// Far offsets cost nothing and are read back.
pub fn objects_are_sparse_up_to_the_largest_offset(harness: &dyn Harness) {
    let opened = furnished(harness);
    let store = opened.store();
    let object = object("o");
    let max = store.capability().object_bytes_max;
    change(store, &object, [write(max - 3, "end"), write(0, "begin")]);
    assert_eq!(got(store.stat(&object)).map(|stat| stat.size), Some(max));
    check_runs(store, &object, 0..u64::MAX, &[(0, 5), (max - 3, 3)], "");
    assert_eq!(got(store.read(&object, max - 5..max)), "\0\0end");
    change(store, &object, [Change::Zero { offset: 2, len: max - 4 }]);
    check_runs(store, &object, 0..u64::MAX, &[(0, 2), (max - 2, 2)], "");
    change(store, &object, [Change::Truncate { size: 4 }]);
    assert_eq!(contents(store, &object), "be\0\0");
}

/// A range that ends before it starts is an error or empty, and harms nothing.
#[expect(clippy::reversed_empty_ranges, reason = "that is what is tested")]
pub fn a_reversed_read_is_no_panic(harness: &dyn Harness) {
    let opened = furnished(harness);
    let store = opened.store();
    let object = object("o");
    change(store, &object, [write(0, "0123456789")]);
    match store.read(&object, 7..3).wait() {
        Ok(found) => assert_eq!(found, ""),
        Err(error) => assert!(matches!(error, Error::Invalid { .. }), "{error}"),
    }
    if let Ok(found) = store.extents(&object, 7..3).wait() {
        assert_eq!(found, []);
    }
    assert_eq!(contents(store, &object), "0123456789");
}
