//! Scans in key order and in insertion order.

use esker_kv::{Durability, Entry, Kind, Namespace, OwnedKey, Scan};

use crate::{KINDS, NOON_MS, bytes, fresh, nth};

fn scanned(ns: &Namespace, scan: &Scan) -> Vec<OwnedKey> {
    let found: Vec<_> = ns.scan(scan).wait().unwrap().into_iter().map(|(key, _)| key).collect();
    let iterated: Vec<_> = ns.iter(scan.clone()).map(|found| found.unwrap().0).collect();
    assert_eq!(found, iterated, "the iterator differs for {scan:?}");
    found
}

#[test]
fn ranges_and_limits_go_forward_and_backward() {
    for kind in KINDS {
        let fresh = fresh();
        let ns = fresh.namespace(kind);
        for n in (0..50).rev() {
            ns.put(&nth(kind, n), bytes(n.to_string())).wait().unwrap();
        }
        let check = |scan: Scan, wanted: Vec<u64>| {
            let wanted: Vec<_> = wanted.into_iter().map(|n| nth(kind, n)).collect();
            assert_eq!(scanned(&ns, &scan), wanted, "{scan:?}");
        };
        check(Scan::all(), (0..50).collect());
        check(Scan::all().reversed(), (0..50).rev().collect());
        check(Scan::all().limited(3), vec![0, 1, 2]);
        check(Scan::all().reversed().limited(3), vec![49, 48, 47]);
        check(Scan::all().limited(0), vec![]);
        let middle = Scan::range(nth(kind, 10), nth(kind, 20));
        check(middle.clone(), (10..20).collect());
        check(middle.clone().reversed(), (10..20).rev().collect());
        check(middle.clone().after(nth(kind, 17)), vec![18, 19]);
        check(middle.clone().reversed().after(nth(kind, 12)), vec![11, 10]);
        check(middle.clone().after(nth(kind, 3)).limited(1), vec![10]);
        check(middle.clone().after(nth(kind, 30)), vec![]);
        check(middle.clone().reversed().after(nth(kind, 3)), vec![]);
        check(middle.reversed().after(nth(kind, 30)).limited(1), vec![19]);
        check(Scan::range(nth(kind, 20), nth(kind, 10)), vec![]);
        check(Scan::range(nth(kind, 20), nth(kind, 20)), vec![]);
        check(Scan { start: Some(nth(kind, 48)), ..Scan::all() }, vec![48, 49]);
        check(Scan { end: Some(nth(kind, 2)), ..Scan::all() }, vec![0, 1]);
        let (key, entry) = ns.scan(&Scan::all().after(nth(kind, 6)).limited(1)).wait().unwrap().remove(0);
        assert_eq!((key, entry), (nth(kind, 7), Entry::new("7")));
        let keys_only = ns.scan(&Scan::all().keys()).wait().unwrap();
        assert_eq!(keys_only.len(), 50);
        assert!(keys_only.iter().all(|(_, entry)| *entry == Entry::default()));
    }
}

#[test]
fn prefixes_select_exactly_their_keys() {
    let fresh = fresh();
    let ns = fresh.namespace(Kind::Bytes);
    let all: [&[u8]; 9] = [b"", b"a", b"a\0", b"a\xff", b"a\xff\xff", b"ab", b"b", b"\xff", b"\xff\xff\x01"];
    for key in all {
        ns.put(key, bytes(key)).wait().unwrap();
    }
    for prefix in [&b""[..], b"a", b"a\xff", b"\xff", b"\xff\xff", b"abc", b"b"] {
        let mut wanted: Vec<_> =
            all.iter().filter(|key| key.starts_with(prefix)).map(|key| OwnedKey::from(*key)).collect();
        wanted.sort();
        assert_eq!(scanned(&ns, &Scan::prefix(bytes(prefix))), wanted, "{prefix:?}");
        wanted.reverse();
        assert_eq!(scanned(&ns, &Scan::prefix(bytes(prefix)).reversed()), wanted, "{prefix:?} in reverse");
    }
    let both = Scan { start: Some(OwnedKey::from("a\u{0}")), end: Some(OwnedKey::from("ab")), ..Scan::prefix("a") };
    assert_eq!(scanned(&ns, &both), [OwnedKey::from("a\0")]);
}

#[test]
fn int_scans_meet_the_ends_of_ranges_and_of_u64() {
    let fresh = fresh();
    let ns = fresh.namespace(Kind::Int);
    let edge = 1u64 << 20;
    let all = [0, edge - 1, edge, 3 * edge, 200 * edge - 1, 200 * edge, u64::MAX - 1, u64::MAX];
    for key in all {
        ns.put(key, bytes("v")).wait().unwrap();
    }
    let ints = |keys: &[u64]| keys.iter().map(|key| OwnedKey::Int(*key)).collect::<Vec<_>>();
    let mut down = all;
    down.reverse();
    assert_eq!(scanned(&ns, &Scan::all()), ints(&all));
    assert_eq!(scanned(&ns, &Scan::all().reversed()), ints(&down));
    assert_eq!(scanned(&ns, &Scan::range(edge - 1, edge + 1)), ints(&[edge - 1, edge]));
    assert_eq!(scanned(&ns, &Scan::range(1, u64::MAX)), ints(&all[1..7]));
    assert_eq!(scanned(&ns, &Scan::all().after(u64::MAX - 1)), ints(&[u64::MAX]));
    assert_eq!(scanned(&ns, &Scan::all().after(u64::MAX)), ints(&[]));
    assert_eq!(scanned(&ns, &Scan::all().reversed().after(0)), ints(&[]));
    assert_eq!(scanned(&ns, &Scan::all().reversed().after(edge)), ints(&[edge - 1, 0]));
    // Ranges that were emptied are stepped over.
    ns.remove_many(&[edge.into(), (3 * edge).into(), (200 * edge).into()]).wait().unwrap();
    assert_eq!(scanned(&ns, &Scan::all().after(edge - 1).limited(2)), ints(&[200 * edge - 1, u64::MAX - 1]));
}

#[test]
fn paging_meets_every_key_once_and_skips_the_expired() {
    for kind in KINDS {
        for reverse in [false, true] {
            let fresh = fresh();
            let ns = fresh.namespace(kind);
            for n in 0..1_300 {
                // Long runs of expired entries, longer than a page.
                let expires_ms = (n % 100 < 60).then_some(NOON_MS + 10);
                ns.put_with(&nth(kind, n), Entry::new("v").expiring(expires_ms), Durability::Durable).wait().unwrap();
            }
            fresh.clock.advance(10);
            let mut scan = Scan { reverse, ..Scan::all() }.limited(7);
            let mut met = Vec::new();
            loop {
                let page = scanned(&ns, &scan);
                assert!(page.len() <= 7);
                met.extend(page.iter().cloned());
                if page.len() < 7 {
                    break;
                }
                scan = scan.after(page[6].clone());
            }
            let mut wanted: Vec<_> = (0..1_300).filter(|n| n % 100 >= 60).map(|n| nth(kind, n)).collect();
            assert_eq!(scanned(&ns, &Scan::all().keys()), wanted);
            if reverse {
                wanted.reverse();
            }
            assert_eq!(met, wanted);
            assert_eq!(scanned(&ns, &Scan { reverse, ..Scan::all() }), wanted);
        }
    }
}

#[test]
fn insertion_order_is_the_order_of_last_writes() {
    if crate::PARTED {
        // Where keys are in partitions there is none.
        for kind in KINDS {
            let refused = fresh().namespace(kind).insertion_iter().next().unwrap();
            assert!(matches!(refused, Err(esker_kv::Error::Store(esker_store::Error::Unsupported { .. }))));
        }
        return;
    }
    for kind in KINDS {
        let mut fresh = fresh();
        let ns = fresh.namespace(kind);
        let other = fresh.kv.namespace("other", kind).unwrap();
        for n in [5, 1, 9, 3, 7] {
            ns.put(&nth(kind, n), bytes(n.to_string())).wait().unwrap();
            other.put(&nth(kind, n), bytes("other")).wait().unwrap();
        }
        ns.put(&nth(kind, 1), bytes("1 again")).wait().unwrap();
        ns.remove(&nth(kind, 3)).wait().unwrap();
        ns.put_with(&nth(kind, 2), Entry::new("gone").expiring(Some(NOON_MS)), Durability::Durable).wait().unwrap();
        let wanted = [5, 9, 7, 1].map(|n| nth(kind, n));
        for _ in 0..2 {
            let met: Vec<_> = fresh.namespace(kind).insertion_iter().map(|found| found.unwrap().0).collect();
            assert_eq!(met, wanted);
            fresh.reopen();
        }
        let many: Vec<_> = (0..2_000).map(|n| nth(kind, (n * 7) % 2_000)).collect();
        for key in &many {
            ns.put(key, bytes("v")).wait().unwrap();
        }
        let met: Vec<_> = ns.insertion_iter().map(|found| found.unwrap().0).collect();
        assert_eq!(met, many);
    }
}
