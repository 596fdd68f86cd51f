//! What librados 16.2 does with compound operations, on a real cluster: what the mapping of the waist builds on.
//!
//! CEPH_CONF names the configuration of a cluster with a pool `bench`; without it there is nothing to ask, and each
//! test says so.

#![cfg(feature = "librados")]
#![allow(clippy::unwrap_used, reason = "a test that fails")]

use std::ffi::{CStr, CString};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, OnceLock};

use esker_rados::{Cluster, Compare, Failed, Found, Pool, Read, Write, flags};

const NOT_THERE: i32 = 2;
const THERE: i32 = 17;
const CANCELED: i32 = 125;

/// The pool, if there is a cluster.
fn pool() -> Option<Pool> {
    static CLUSTER: OnceLock<Option<Arc<Cluster>>> = OnceLock::new();
    let cluster = CLUSTER.get_or_init(|| {
        let Some(file) = std::env::var_os("CEPH_CONF") else {
            eprintln!("skipped: CEPH_CONF names no cluster");
            return None;
        };
        Some(Cluster::connect(None, Some(&PathBuf::from(file)), &[("rados_osd_op_timeout", "30")]).unwrap())
    });
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let namespace = format!("facts-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
    Some(cluster.as_ref()?.pool("bench", &namespace).unwrap())
}

fn write(pool: &Pool, object: &CStr, parts: impl FnOnce(&mut Write)) -> Result<u64, Failed> {
    let mut op = Write::new();
    parts(&mut op);
    operate(pool, object, op)
}

fn operate(pool: &Pool, object: &CStr, op: Write) -> Result<u64, Failed> {
    let (told, waits) = channel();
    pool.write(object, op, flags::FULL_TRY, move |outcome| told.send(outcome).unwrap());
    waits.recv().unwrap()
}

fn read(pool: &Pool, object: &CStr, parts: impl FnOnce(&mut Read)) -> Result<Found, Failed> {
    let mut op = Read::new();
    parts(&mut op);
    let (told, waits) = channel();
    pool.read(object, op, move |outcome| told.send(outcome).unwrap());
    waits.recv().unwrap()
}

fn code<T: std::fmt::Debug>(outcome: Result<T, Failed>) -> i32 {
    outcome.unwrap_err().code
}

fn size(pool: &Pool, object: &CStr) -> u64 {
    read(pool, object, |op| op.stat()).unwrap().size
}

fn omap(pool: &Pool, object: &CStr) -> Vec<(Vec<u8>, Vec<u8>)> {
    read(pool, object, |op| op.omap(c"", 1_024)).unwrap().omap
}

#[test]
fn an_omap_value_that_is_not_there_compares_as_an_empty_one() {
    let Some(pool) = pool() else { return };
    write(&pool, c"o", |op| op.set_omap(&[(b"key", b"\x01value")])).unwrap();
    let absent = |key: &[u8]| write(&pool, c"o", |op| op.compare_omap(key, Compare::Equal, b""));
    let present = |key: &[u8]| write(&pool, c"o", |op| op.compare_omap(key, Compare::Greater, b""));
    absent(b"none").unwrap();
    present(b"key").unwrap();
    assert_eq!(absent(b"key").unwrap_err(), Failed { code: CANCELED, guard: Some(0) });
    assert_eq!(code(present(b"none")), CANCELED);
    write(&pool, c"o", |op| op.compare_omap(b"key", Compare::Equal, b"\x01value")).unwrap();
    // Bytes compare as signed characters: what begins with 0x80 is less than nothing.
    write(&pool, c"o", |op| op.set_omap(&[(b"high", b"\x80")])).unwrap();
    let less = write(&pool, c"o", |op| op.compare_omap(b"high", Compare::Less, b"\x01"));
    assert!(less.is_ok(), "{less:?}");
}

#[test]
fn an_omap_guard_that_fails_is_told_by_its_number_and_changes_nothing() {
    let Some(pool) = pool() else { return };
    write(&pool, c"o", |op| op.set_omap(&[(b"a", b"1"), (b"b", b"2")])).unwrap();
    let failed = write(&pool, c"o", |op| {
        op.compare_omap(b"a", Compare::Equal, b"1");
        op.compare_omap(b"b", Compare::Equal, b"other");
        op.compare_omap(b"a", Compare::Equal, b"other");
        op.set_omap(&[(b"a", b"changed")]);
        op.write(0, b"changed");
    });
    assert_eq!(failed.unwrap_err(), Failed { code: CANCELED, guard: Some(1) });
    assert_eq!(omap(&pool, c"o"), [(b"a".to_vec(), b"1".to_vec()), (b"b".to_vec(), b"2".to_vec())]);
    assert_eq!(size(&pool, c"o"), 0);
}

#[test]
fn an_xattr_guard_has_its_argument_on_the_left_and_is_named_by_a_mark_behind_it() {
    let Some(pool) = pool() else { return };
    let number = |value: u64| [&[0][..], &value.to_be_bytes()].concat();
    write(&pool, c"o", |op| op.set_xattr(c"epoch", &number(5))).unwrap();
    let holds =
        |value: u64, compare| write(&pool, c"o", |op| op.compare_xattr(c"epoch", compare, &number(value))).is_ok();
    assert!(holds(5, Compare::Equal) && !holds(4, Compare::Equal) && holds(4, Compare::NotEqual));
    // 6 is greater than what is stored.
    assert!(holds(6, Compare::Greater) && !holds(5, Compare::Greater) && !holds(4, Compare::Greater));
    assert!(holds(5, Compare::AtLeast) && holds(6, Compare::AtLeast) && !holds(4, Compare::AtLeast));
    assert!(holds(4, Compare::Less) && !holds(5, Compare::Less) && holds(5, Compare::AtMost));
    // One that is not there compares as empty.
    let none = |compare| write(&pool, c"o", |op| op.compare_xattr(c"none", compare, &number(1))).is_ok();
    assert!(none(Compare::Greater) && none(Compare::AtLeast) && none(Compare::NotEqual));
    assert!(!none(Compare::Equal) && !none(Compare::Less));
    // Nothing tells which of them has failed, but what comes behind it is not looked at: a mark does.
    for fails in 0..6 {
        let value = |guard: usize| number(if guard == fails { 7 } else { 5 });
        let absent: &[u8] = if fails == 2 { b"other" } else { b"" };
        let guards = |op: &mut Write| {
            op.compare_omap(b"none", Compare::Equal, b"");
            op.compare_xattr(c"epoch", Compare::Equal, &value(1));
            op.compare_omap(b"none", Compare::Equal, absent);
            op.compare_xattr(c"epoch", Compare::Equal, &value(3));
            op.compare_xattr(c"epoch", Compare::Equal, &value(4));
            op.compare_omap(b"none", Compare::Equal, b"");
        };
        let mut op = Write::marked_by(b"\x00");
        guards(&mut op);
        let marked = operate(&pool, c"o", op);
        let unmarked = write(&pool, c"o", guards);
        match fails {
            0 | 5 => assert!(marked.is_ok() && unmarked.is_ok(), "{marked:?} {unmarked:?}"),
            2 => assert_eq!((marked, unmarked), (Err(told(2)), Err(told(2)))),
            _ => assert_eq!((marked, unmarked), (Err(told(fails)), Err(Failed { guard: None, ..told(0) }))),
        }
    }
}

fn told(guard: usize) -> Failed {
    Failed { code: CANCELED, guard: Some(guard) }
}

#[test]
fn a_guard_on_an_object_that_is_not_there_fails_and_makes_nothing() {
    let Some(pool) = pool() else { return };
    assert_eq!(code(write(&pool, c"o", |op| op.assert_exists())), NOT_THERE);
    assert_eq!(code(write(&pool, c"o", |op| op.compare_omap(b"k", Compare::Equal, b""))), NOT_THERE);
    // Also behind what makes it: guards read the object as it was.
    let made_first = |guard: fn(&mut Write)| {
        write(&pool, c"o", |op| {
            op.create(false);
            guard(op);
            op.set_xattr(c"a", b"1");
        })
    };
    assert_eq!(code(made_first(|op| op.compare_xattr(c"a", Compare::NotEqual, b"1"))), NOT_THERE);
    assert_eq!(code(read(&pool, c"o", |op| op.stat())), NOT_THERE);
    write(&pool, c"o", |op| op.create(true)).unwrap();
    assert_eq!(code(write(&pool, c"o", |op| op.create(true))), THERE);
    write(&pool, c"o", |op| op.create(false)).unwrap();
}

#[test]
fn what_takes_away_from_an_object_that_is_not_there() {
    let Some(pool) = pool() else { return };
    assert_eq!(code(write(&pool, c"o", |op| op.remove())), NOT_THERE);
    // These do nothing, and say nothing of it, or say that it is not there; none makes the object.
    for (what, outcome) in [
        ("xattr", write(&pool, c"o", |op| op.remove_xattr(c"a"))),
        ("keys", write(&pool, c"o", |op| op.remove_omap(&[b"a"]))),
        ("range", write(&pool, c"o", |op| op.remove_omap_range(b"a", b"b"))),
        ("zero", write(&pool, c"o", |op| op.zero(0, 10))),
        ("truncate", write(&pool, c"o", |op| op.truncate(10))),
    ] {
        assert!(outcome.is_ok() || code(outcome) == NOT_THERE, "{what}: {outcome:?}");
        assert_eq!(code(read(&pool, c"o", |op| op.stat())), NOT_THERE, "{what}");
    }
    write(&pool, c"o", |op| {
        op.create(false);
        op.truncate(10);
    })
    .unwrap();
    assert_eq!(size(&pool, c"o"), 10);
}

#[test]
fn zero_at_the_end_truncates_and_a_zero_that_is_written_grows() {
    let Some(pool) = pool() else { return };
    write(&pool, c"o", |op| op.write(0, &[7; 100])).unwrap();
    write(&pool, c"o", |op| op.zero(50, 20)).unwrap();
    assert_eq!(size(&pool, c"o"), 100);
    write(&pool, c"o", |op| op.zero(80, 20)).unwrap();
    let cut = size(&pool, c"o");
    assert!([80, 100].contains(&cut), "{cut}");
    write(&pool, c"o", |op| {
        op.zero(80, 40);
        op.write(119, b"\0");
    })
    .unwrap();
    assert_eq!(size(&pool, c"o"), 120);
    let data = read(&pool, c"o", |op| op.data(0, 1_000)).unwrap().data;
    let wanted = [&[7; 50][..], &[0; 20], &[7; 10], &[0; 40]].concat();
    assert_eq!(data, wanted);
    // A new object too: one that a write of nothing makes larger keeps the checksum of what it was, and the OSD takes
    // it for damaged when it is read.
    write(&pool, c"new", |op| {
        op.create(true);
        op.zero(182, 452);
        op.write(633, b"\0");
    })
    .unwrap();
    assert_eq!(read(&pool, c"new", |op| op.data(0, 1_000)).unwrap().data, [0; 634]);
}

#[test]
fn ranges_of_keys_go_and_listings_end_at_1024_with_a_word_that_there_are_more() {
    let Some(pool) = pool() else { return };
    let keys: Vec<_> = (0..1_500u32).map(|number| format!("{number:04}").into_bytes()).collect();
    write(&pool, c"o", |op| op.set_omap(&keys.iter().map(|key| (&key[..], &b"v"[..])).collect::<Vec<_>>())).unwrap();
    let first = read(&pool, c"o", |op| op.omap(c"", 5_000)).unwrap();
    assert!(first.more && first.omap.len() == 1_024, "{}", first.omap.len());
    let after = CString::new(first.omap.last().unwrap().0.clone()).unwrap();
    let rest = read(&pool, c"o", |op| op.omap(&after, 5_000)).unwrap();
    assert!(!rest.more && rest.omap.len() == 476);
    write(&pool, c"o", |op| op.remove_omap_range(b"0010", b"1490")).unwrap();
    let left: Vec<_> = omap(&pool, c"o").into_iter().map(|(key, _)| key).collect();
    assert_eq!(left, keys[..10].iter().chain(&keys[1_490..]).cloned().collect::<Vec<_>>());
    let asked = read(&pool, c"o", |op| op.omap_keys(&[b"0003", b"none", b"1499"])).unwrap().omap;
    assert_eq!(asked.into_iter().map(|(key, _)| key).collect::<Vec<_>>(), [b"0003", b"1499"]);
    // Under inverted keys the first is the last position.
    let inverted = |position: u64| (u64::MAX - position).to_be_bytes();
    for position in [3, 1, 2] {
        write(&pool, c"log", |op| op.set_omap(&[(&inverted(position), b"entry")])).unwrap();
    }
    assert_eq!(read(&pool, c"log", |op| op.omap(c"", 1)).unwrap().omap[0].0, inverted(3));
}

/// A transaction has to be folded to its net effect before it is sent.
#[test]
fn a_range_that_is_removed_behind_a_key_of_the_same_operation_may_miss_it() {
    let Some(pool) = pool() else { return };
    write(&pool, c"o", |op| op.set_omap(&[(b"a", b"1")])).unwrap();
    write(&pool, c"o", |op| {
        op.set_omap(&[(b"b", b"2")]);
        op.remove_omap_range(b"a", b"c");
    })
    .unwrap();
    let left: Vec<_> = omap(&pool, c"o").into_iter().map(|(key, _)| key).collect();
    assert!(left.is_empty() || left == [b"b"], "{left:?}");
    println!("left behind: {left:?}");
    // The other way round both do as they say.
    write(&pool, c"o", |op| {
        op.remove_omap_range(b"a", b"c");
        op.set_omap(&[(b"b", b"3")]);
    })
    .unwrap();
    assert_eq!(omap(&pool, c"o"), [(b"b".to_vec(), b"3".to_vec())]);
}

#[test]
fn versions_are_those_of_own_operations_and_guard_the_next() {
    let Some(pool) = pool() else { return };
    let first = write(&pool, c"o", |op| op.write(0, b"one")).unwrap();
    let second = write(&pool, c"o", |op| op.write(0, b"two")).unwrap();
    assert!(second > first && read(&pool, c"o", |op| op.stat()).unwrap().version == second);
    let stale = write(&pool, c"o", |op| {
        op.assert_version(first);
        op.write(0, b"late");
    });
    // Behind what is there it is EOVERFLOW, before it ERANGE.
    assert!([34, 75].contains(&code(stale)), "{stale:?}");
    write(&pool, c"o", |op| {
        op.assert_version(second);
        op.write(0, b"now");
    })
    .unwrap();
    assert_eq!(read(&pool, c"o", |op| op.data(0, 10)).unwrap().data, b"now");
}

#[test]
fn xattrs_are_listed_with_their_bytes_and_many_operations_are_under_way_at_once() {
    let Some(pool) = pool() else { return };
    write(&pool, c"o", |op| {
        op.set_xattr(c"b", b"\x00\x01");
        op.set_xattr(c"a", b"");
    })
    .unwrap();
    let found = read(&pool, c"o", |op| op.xattrs()).unwrap().xattrs;
    assert_eq!(found, [(b"a".to_vec(), vec![]), (b"b".to_vec(), vec![0, 1])]);
    let (told, waits) = channel();
    for number in 0..200u32 {
        let (told, mut op) = (told.clone(), Write::new());
        op.append(&number.to_be_bytes());
        let object = CString::new(format!("many{}", number % 7)).unwrap();
        pool.write(&object, op, 0, move |outcome| told.send(outcome).unwrap());
    }
    assert!((0..200).all(|_| waits.recv().unwrap().is_ok()));
    // In the order of their calls, object by object.
    let data = read(&pool, c"many3", |op| op.data(0, 1 << 20)).unwrap().data;
    let wanted: Vec<u8> = (0..200u32).filter(|number| number % 7 == 3).flat_map(u32::to_be_bytes).collect();
    assert_eq!(data, wanted);
}

#[test]
fn what_cannot_be_reached_is_named() {
    let Some(file) = std::env::var_os("CEPH_CONF") else { return };
    let file = PathBuf::from(file);
    let cluster = Cluster::connect(None, Some(&file), &[]).unwrap();
    let error = cluster.pool("no-such-pool", "").err().unwrap();
    assert!(error.to_string().contains("no-such-pool") && error.to_string().contains("os error 2"), "{error}");
    let error = Cluster::connect(None, Some(&file), &[("no_such_setting", "1")]).err().unwrap();
    assert!(error.to_string().contains("no_such_setting"), "{error}");
    let error = Cluster::connect(None, Some(&PathBuf::from("/nowhere/ceph.conf")), &[]).err().unwrap();
    assert!(error.to_string().contains("/nowhere/ceph.conf"), "{error}");
    // No monitor: an error, and no wait for ever.
    let settings = [("mon_host", "v2:127.0.0.1:1"), ("client_mount_timeout", "2")];
    let error = Cluster::connect(None, Some(&file), &settings).err().unwrap();
    assert!(error.to_string().contains("connecting"), "{error}");
}
