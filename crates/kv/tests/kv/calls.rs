//! Every call on one key and on several, on both kinds of namespace; namespaces themselves; restart.

use esker_kv::{Durability, Entry, Error, Kind};

use crate::{KINDS, NOON_MS, bytes, fresh, keys, nth};

#[test]
fn single_key_calls_do_what_they_say() {
    for kind in KINDS {
        let fresh = fresh();
        let ns = fresh.namespace(kind);
        let key = nth(kind, 3);
        assert_eq!(ns.get(&key).wait().unwrap(), None);
        assert!(!ns.has(&key).wait().unwrap());
        assert!(!ns.remove(&key).wait().unwrap());
        assert!(!ns.update(&key, bytes("no")).wait().unwrap());
        assert_eq!(ns.get(&key).wait().unwrap(), None);

        assert!(ns.add(&key, bytes("a")).wait().unwrap());
        assert!(!ns.add(&key, bytes("b")).wait().unwrap());
        assert_eq!(ns.get(&key).wait().unwrap(), Some(bytes("a")));
        assert!(ns.update(&key, bytes("c")).wait().unwrap());
        ns.put(&key, bytes("")).wait().unwrap();
        assert_eq!(ns.get(&key).wait().unwrap(), Some(bytes("")), "an empty value is a value");
        assert!(ns.has(&key).wait().unwrap());

        let entry = Entry::new("tagged").tagged(9).expiring(Some(NOON_MS + 5));
        ns.put_with(&key, entry.clone(), Durability::Applied).wait().unwrap();
        assert_eq!(ns.entry(&key).wait().unwrap(), Some(entry.clone()));
        assert!(ns.update(&key, bytes("kept")).wait().unwrap());
        assert_eq!(ns.entry(&key).wait().unwrap(), Some(Entry { value: bytes("kept"), ..entry }));
        ns.put(&key, bytes("plain")).wait().unwrap();
        assert_eq!(ns.entry(&key).wait().unwrap(), Some(Entry::new("plain")));

        assert!(ns.remove(&key).wait().unwrap());
        assert!(!ns.remove(&key).wait().unwrap());
        assert_eq!(ns.entry(&key).wait().unwrap(), None);
        assert!(ns.is_empty().wait().unwrap());
    }
}

#[test]
fn compare_and_set_writes_only_over_what_was_expected() {
    for kind in KINDS {
        let fresh = fresh();
        let ns = fresh.namespace(kind);
        let key = nth(kind, 1);
        assert!(!ns.compare_and_set(&key, Some(b"x"), bytes("1")).wait().unwrap());
        assert!(ns.compare_and_set(&key, None, bytes("1")).wait().unwrap());
        assert!(!ns.compare_and_set(&key, None, bytes("2")).wait().unwrap());
        assert!(!ns.compare_and_set(&key, Some(b"2"), bytes("3")).wait().unwrap());
        assert!(ns.compare_and_set(&key, Some(b"1"), bytes("")).wait().unwrap());
        assert!(!ns.compare_and_set(&key, None, bytes("4")).wait().unwrap(), "empty is not absent");
        assert_eq!(ns.get(&key).wait().unwrap(), Some(bytes("")));
    }
}

#[test]
fn many_key_calls_keep_order_and_count() {
    for kind in KINDS {
        let fresh = fresh();
        let ns = fresh.namespace(kind);
        let owned: Vec<_> = (0..20).map(|n| nth(kind, n)).collect();
        let entries: Vec<_> = owned.iter().take(10).map(|key| (key.as_key(), bytes(format!("{key:?}")))).collect();
        ns.put_many(&entries).wait().unwrap();
        let found = ns.get_many(&keys(&owned)).wait().unwrap();
        for (at, value) in found.iter().enumerate() {
            assert_eq!(*value, (at < 10).then(|| bytes(format!("{:?}", owned[at]))));
        }
        assert_eq!(ns.len().wait().unwrap(), 10);
        ns.put_many(&[(owned[0].as_key(), bytes("first")), (owned[0].as_key(), bytes("last"))]).wait().unwrap();
        assert_eq!(ns.get(&owned[0]).wait().unwrap(), Some(bytes("last")));
        // One key twice, and absent ones: counted once, and not at all.
        let gone = [owned[2].as_key(), owned[15].as_key(), owned[2].as_key(), owned[3].as_key()];
        assert_eq!(ns.remove_many(&gone).wait().unwrap(), 2);
        assert_eq!(ns.remove_many(&gone).wait().unwrap(), 0);
        assert_eq!(ns.len().wait().unwrap(), 8);
        assert_eq!(ns.get_many(&[]).wait().unwrap(), vec![]);
        ns.put_many(&[]).wait().unwrap();
        assert_eq!(ns.remove_many(&[]).wait().unwrap(), 0);
        ns.clear().wait().unwrap();
        assert_eq!(ns.len().wait().unwrap(), 0);
        assert_eq!(ns.get(&owned[5]).wait().unwrap(), None);
        ns.put(&owned[5], bytes("again")).wait().unwrap();
        assert_eq!(ns.len().wait().unwrap(), 1);
    }
}

#[test]
fn a_refused_put_many_changes_nothing() {
    for kind in KINDS {
        let fresh = fresh();
        let ns = fresh.namespace(kind);
        let (good, bad) = (nth(kind, 1), bytes(vec![0; esker_kv::VALUE_BYTES_MAX + 1]));
        let refused = ns.put_many(&[(good.as_key(), bytes("x")), (nth(kind, 2).as_key(), bad)]).wait();
        assert!(matches!(refused, Err(esker_store::Error::TooLarge { .. })), "{refused:?}");
        assert_eq!(ns.len().wait().unwrap(), 0);
    }
}

#[test]
fn int_keys_reach_from_0_over_range_boundaries_to_u64_max() {
    let mut fresh = fresh();
    let edge = 1 << 20;
    let far = 128 * edge;
    let all = [0, 1, edge - 1, edge, edge + 1, far - 1, far, u64::MAX - edge, u64::MAX - 1, u64::MAX];
    let ns = fresh.namespace(Kind::Int);
    for key in all {
        ns.put(key, bytes(key.to_string())).wait().unwrap();
    }
    for _ in 0..2 {
        let ns = fresh.namespace(Kind::Int);
        for key in all {
            assert_eq!(ns.get(key).wait().unwrap(), Some(bytes(key.to_string())));
        }
        assert_eq!(ns.get(2).wait().unwrap(), None);
        assert_eq!(ns.len().wait().unwrap(), all.len() as u64);
        fresh.reopen();
    }
}

#[test]
fn namespaces_are_apart_and_survive_restart() {
    let mut fresh = fresh();
    let one = fresh.kv.namespace("one", Kind::Int).unwrap();
    let two = fresh.kv.namespace("two", Kind::Bytes).unwrap();
    let tow = fresh.kv.namespace("tw", Kind::Bytes).unwrap();
    one.put(7, bytes("seven")).wait().unwrap();
    two.put("o", bytes("two")).wait().unwrap();
    tow.put("o", bytes("tw")).wait().unwrap();
    fresh.reopen();
    let names: Vec<_> = fresh.kv.namespaces().unwrap();
    assert_eq!(names, [("one".into(), Kind::Int), ("tw".into(), Kind::Bytes), ("two".into(), Kind::Bytes)]);
    let two = fresh.kv.namespace("two", Kind::Bytes).unwrap();
    assert_eq!(two.get("o").wait().unwrap(), Some(bytes("two")));
    assert_eq!(fresh.kv.namespace("one", Kind::Int).unwrap().get(7).wait().unwrap(), Some(bytes("seven")));
    two.clear().wait().unwrap();
    assert_eq!(fresh.kv.namespace("tw", Kind::Bytes).unwrap().len().wait().unwrap(), 1);
    assert_eq!((two.name(), two.kind()), ("two", Kind::Bytes));
}

#[test]
fn a_namespace_keeps_its_kind() {
    let mut fresh = fresh();
    fresh.kv.namespace("n", Kind::Int).unwrap();
    for _ in 0..2 {
        let wrong = fresh.kv.namespace("n", Kind::Bytes);
        assert!(matches!(wrong, Err(Error::WrongKind { found: Kind::Int, wanted: Kind::Bytes, .. })), "{wrong:?}");
        fresh.reopen();
    }
}

#[test]
fn a_removed_namespace_is_gone_with_its_entries_and_its_name_is_free() {
    for kind in KINDS {
        let mut fresh = fresh();
        let old = fresh.kv.namespace("n", kind).unwrap();
        for n in 0..10 {
            let entry = Entry::new("v").expiring(Some(NOON_MS + 1));
            old.put_with(&nth(kind, n), entry, Durability::Durable).wait().unwrap();
        }
        fresh.kv.remove_namespace("n").unwrap();
        assert!(matches!(fresh.kv.remove_namespace("n"), Err(Error::NoNamespace { .. })));
        assert_eq!(fresh.kv.namespaces().unwrap(), vec![]);
        assert!(old.get(&nth(kind, 1)).wait().is_err());
        assert!(old.put(&nth(kind, 1), bytes("lost")).wait().is_err());
        assert!(old.len().wait().is_err());
        assert!(fresh.kv.begin(&[]).get(&old, &nth(kind, 1)).is_err());
        for _ in 0..2 {
            let other = if kind == Kind::Int { Kind::Bytes } else { Kind::Int };
            assert_eq!(fresh.kv.namespace("n", other).unwrap().len().wait().unwrap(), 0);
            fresh.kv.remove_namespace("n").unwrap();
            assert_eq!(fresh.kv.namespace("n", kind).unwrap().len().wait().unwrap(), 0);
            fresh.kv.remove_namespace("n").unwrap();
            fresh.reopen();
        }
    }
}

#[test]
fn the_default_durability_is_safe_and_can_be_switched() {
    let fresh = fresh();
    assert_eq!(fresh.kv.default_durability(), Durability::Durable);
    fresh.kv.clone().set_default_durability(Durability::Applied);
    assert_eq!(fresh.kv.default_durability(), Durability::Applied);
}
