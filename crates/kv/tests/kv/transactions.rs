//! Transactions: reads see own writes, nothing is applied before commit, all of it at commit.

use esker_kv::{Durability, Entry, Kind, Namespace, OwnedKey, Scan, Txn};

use crate::{KINDS, NOON_MS, bytes, fresh, keys, nth};

fn shown(txn: &mut Txn<'_>, ns: &Namespace, scan: &Scan) -> Vec<(OwnedKey, String)> {
    let text = |entry: Entry| String::from_utf8(entry.value.to_vec()).unwrap();
    txn.scan(ns, scan).unwrap().into_iter().map(|(key, entry)| (key, text(entry))).collect()
}

#[test]
fn reads_see_own_writes_and_nobody_else_does_before_commit() {
    for kind in KINDS {
        let fresh = fresh();
        let ns = fresh.namespace(kind);
        let all: Vec<_> = (0..4).map(|n| nth(kind, n)).collect();
        ns.put(&all[0], bytes("old 0")).wait().unwrap();
        ns.put(&all[1], bytes("old 1")).wait().unwrap();
        let locks: Vec<_> = all.iter().map(|key| (&ns, key.as_key())).collect();

        let mut txn = fresh.kv.begin(&locks);
        assert!(txn.is_read_only());
        txn.put(&ns, &all[0], Entry::new("new 0").tagged(4));
        txn.remove(&ns, &all[1]);
        txn.put(&ns, &all[2], Entry::new("new 2"));
        txn.put(&ns, &all[3], Entry::new("dead").expiring(Some(NOON_MS)));
        assert!(!txn.is_read_only());
        let values = [Some(Entry::new("new 0").tagged(4)), None, Some(Entry::new("new 2")), None];
        assert_eq!(txn.get_many(&ns, &keys(&all)).unwrap(), values);
        for (key, value) in all.iter().zip(values.clone()) {
            assert_eq!(txn.get(&ns, key).unwrap(), value);
        }
        assert_eq!(txn.len(&ns).unwrap(), 3, "0, 2 and the expired 3");
        for (n, key) in all.iter().enumerate() {
            assert_eq!(ns.get(key).wait().unwrap(), (n < 2).then(|| bytes(format!("old {n}"))));
        }
        txn.commit(Durability::Durable).wait().unwrap();
        for (key, value) in all.iter().zip(values) {
            assert_eq!(ns.entry(key).wait().unwrap(), value);
        }
        assert_eq!(ns.len().wait().unwrap(), 3);

        let mut dropped = fresh.kv.begin(&locks);
        dropped.clear(&ns);
        drop(dropped);
        assert_eq!(ns.len().wait().unwrap(), 3);
    }
}

#[test]
fn scans_merge_the_store_with_own_writes_in_both_directions() {
    for kind in KINDS {
        let fresh = fresh();
        let ns = fresh.namespace(kind);
        for n in [1, 3, 5, 7, 9] {
            ns.put(&nth(kind, n), bytes(format!("s{n}"))).wait().unwrap();
        }
        let mut txn = fresh.kv.begin_exclusive();
        txn.put(&ns, &nth(kind, 0), Entry::new("t0"));
        txn.put(&ns, &nth(kind, 3), Entry::new("t3"));
        txn.put(&ns, &nth(kind, 4), Entry::new("t4"));
        txn.put(&ns, &nth(kind, 6), Entry::new("dead").expiring(Some(NOON_MS)));
        txn.remove(&ns, &nth(kind, 5));
        txn.remove(&ns, &nth(kind, 8));
        txn.put(&ns, &nth(kind, 10), Entry::new("t10"));
        let all: Vec<_> = [(0, 't'), (1, 's'), (3, 't'), (4, 't'), (7, 's'), (9, 's'), (10, 't')]
            .iter()
            .map(|(n, from)| (nth(kind, *n), format!("{from}{n}")))
            .collect();
        let down: Vec<_> = all.iter().rev().cloned().collect();
        assert_eq!(shown(&mut txn, &ns, &Scan::all()), all);
        assert_eq!(shown(&mut txn, &ns, &Scan::all().reversed()), down);
        for limit in 0..8 {
            assert_eq!(shown(&mut txn, &ns, &Scan::all().limited(limit)), all[..limit.min(7)]);
            assert_eq!(shown(&mut txn, &ns, &Scan::all().reversed().limited(limit)), down[..limit.min(7)]);
        }
        assert_eq!(shown(&mut txn, &ns, &Scan::range(nth(kind, 1), nth(kind, 7))), all[1..4]);
        assert_eq!(shown(&mut txn, &ns, &Scan::all().after(nth(kind, 3)).limited(2)), all[3..5]);
        assert_eq!(shown(&mut txn, &ns, &Scan::all().reversed().after(nth(kind, 4))), down[4..]);
        assert!(txn.scan(&ns, &Scan::all().keys()).unwrap().iter().all(|(_, entry)| *entry == Entry::default()));
        assert_eq!(txn.len(&ns).unwrap(), 8);
        txn.commit(Durability::Applied).wait().unwrap();
        assert_eq!(shown(&mut fresh.kv.begin(&[]), &ns, &Scan::all()), all);
    }
}

#[test]
fn what_is_written_after_a_removed_prefix_or_a_clear_stays_and_what_came_before_goes() {
    let fresh = fresh();
    let ns = fresh.namespace(Kind::Bytes);
    for key in ["a", "b", "b1", "b2", "bb1", "c"] {
        ns.put(key, bytes("s")).wait().unwrap();
    }
    let mut txn = fresh.kv.begin_exclusive();
    txn.put(&ns, "b1", Entry::new("lost"));
    txn.put(&ns, "b4", Entry::new("lost"));
    txn.remove_prefix(&ns, b"bb");
    txn.remove_prefix(&ns, b"b");
    txn.put(&ns, "b2", Entry::new("kept"));
    txn.put(&ns, "b3", Entry::new("kept"));
    let wanted = [("a", "s"), ("b2", "kept"), ("b3", "kept"), ("c", "s")];
    let wanted: Vec<_> = wanted.iter().map(|(key, value)| (OwnedKey::from(*key), (*value).to_owned())).collect();
    assert_eq!(shown(&mut txn, &ns, &Scan::all()), wanted);
    assert_eq!(shown(&mut txn, &ns, &Scan::prefix("b")), wanted[1..3]);
    assert_eq!(txn.get(&ns, "b").unwrap(), None);
    assert_eq!(txn.get(&ns, "b1").unwrap(), None);
    assert_eq!(txn.get(&ns, "b2").unwrap(), Some(Entry::new("kept")));
    assert_eq!(txn.len(&ns).unwrap(), 4);
    txn.commit(Durability::Durable).wait().unwrap();
    assert_eq!(shown(&mut fresh.kv.begin(&[]), &ns, &Scan::all()), wanted);
    assert_eq!(ns.len().wait().unwrap(), 4);

    let mut txn = fresh.kv.begin_exclusive();
    txn.put(&ns, "x", Entry::new("lost"));
    txn.clear(&ns);
    txn.put(&ns, "a", Entry::new("only"));
    txn.remove_prefix(&ns, b"z");
    assert_eq!(shown(&mut txn, &ns, &Scan::all()), [(OwnedKey::from("a"), "only".to_owned())]);
    assert_eq!((txn.len(&ns).unwrap(), txn.get(&ns, "c").unwrap()), (1, None));
    txn.commit(Durability::Durable).wait().unwrap();
    assert_eq!(ns.len().wait().unwrap(), 1);

    let mut txn = fresh.kv.begin_exclusive();
    txn.remove_prefix(&ns, b"");
    assert!(txn.is_empty(&ns).unwrap());
    txn.commit(Durability::Durable).wait().unwrap();
    assert!(ns.is_empty().wait().unwrap());
}

#[test]
fn clear_empties_every_range_of_an_int_namespace_and_the_expiry_index() {
    let fresh = fresh();
    let ns = fresh.namespace(Kind::Int);
    for key in [0, 1 << 20, 1 << 40, u64::MAX] {
        ns.put_with(key, Entry::new("v").expiring(Some(NOON_MS + 9)), Durability::Durable).wait().unwrap();
    }
    let mut txn = fresh.kv.begin_exclusive();
    txn.clear(&ns);
    txn.put(&ns, 1 << 40, Entry::new("new"));
    assert_eq!(txn.get(&ns, u64::MAX).unwrap(), None);
    assert_eq!(txn.len(&ns).unwrap(), 1);
    txn.commit(Durability::Durable).wait().unwrap();
    assert_eq!(ns.len().wait().unwrap(), 1);
    assert_eq!(ns.get(1 << 40).wait().unwrap(), Some(bytes("new")));
    assert_eq!(fresh.index_len("of int"), 0);
}

#[test]
fn one_transaction_spans_namespaces_and_reads_one_time() {
    let fresh = fresh();
    let (ints, strings) = (fresh.namespace(Kind::Int), fresh.namespace(Kind::Bytes));
    let mut txn = fresh.kv.begin(&[(&ints, 1.into()), (&strings, "one".into()), (&ints, 1.into())]);
    assert_eq!(txn.now_ms(), NOON_MS);
    fresh.clock.advance(50);
    assert_eq!(txn.now_ms(), NOON_MS);
    txn.put(&strings, "one", Entry::new("s").expiring(Some(NOON_MS + 10)));
    txn.put(&ints, 1, Entry::new("i"));
    assert!(txn.get(&strings, "one").unwrap().is_some(), "live at the transaction's time");
    txn.commit(Durability::Durable).wait().unwrap();
    assert_eq!(ints.get(1).wait().unwrap(), Some(bytes("i")));
    assert_eq!(strings.get("one").wait().unwrap(), None);
    assert_eq!(strings.len().wait().unwrap(), 1);
}

#[test]
fn rewriting_what_was_read_leaves_one_index_key() {
    for kind in KINDS {
        let fresh = fresh();
        let ns = fresh.namespace(kind);
        let key = nth(kind, 1);
        for n in 1..20 {
            let mut txn = fresh.kv.begin(&[(&ns, key.as_key())]);
            txn.get(&ns, &key).unwrap();
            txn.put(&ns, &key, Entry::new("v").expiring(Some(NOON_MS + n)));
            txn.commit(Durability::Durable).wait().unwrap();
        }
        assert_eq!(fresh.index_len(ns.name()), 1);
        fresh.clock.advance(19);
        assert_eq!(fresh.kv.expire_due(10).unwrap(), 1);
    }
}
