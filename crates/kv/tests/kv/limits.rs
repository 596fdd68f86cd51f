//! Limits are errors that name them, and nothing is changed.

use esker_kv::{Completion, Durability, Entry, Error, KEY_BYTES_MAX, Key, Kind, OwnedKey, Scan, VALUE_BYTES_MAX};
use esker_store::Error as StoreError;

use crate::{KINDS, bytes, fresh, nth};

fn limit_of<T: std::fmt::Debug>(answer: Result<T, StoreError>) -> &'static str {
    match answer {
        Err(StoreError::TooLarge { limit, .. }) => limit,
        other => panic!("wanted TooLarge, got {other:?}"),
    }
}

#[test]
fn too_long_a_key_names_the_limit_in_every_call() {
    let fresh = fresh();
    let ns = fresh.namespace(Kind::Bytes);
    let longest = vec![b'k'; KEY_BYTES_MAX];
    ns.put(&longest, bytes("v")).wait().unwrap();
    assert_eq!(ns.get(&longest).wait().unwrap(), Some(bytes("v")));
    let long = vec![b'k'; KEY_BYTES_MAX + 1];
    let one = [Key::from(&long)];
    let answers = [
        limit_of(ns.get(&long).wait()),
        limit_of(ns.put(&long, bytes("v")).wait()),
        limit_of(ns.put_with(&long, Entry::new("v"), Durability::Applied).wait()),
        limit_of(ns.remove(&long).wait()),
        limit_of(ns.has(&long).wait()),
        limit_of(ns.add(&long, bytes("v")).wait()),
        limit_of(ns.update(&long, bytes("v")).wait()),
        limit_of(ns.compare_and_set(&long, None, bytes("v")).wait()),
        limit_of(ns.expire_at(&long, None).wait()),
        limit_of(ns.get_many(&one).wait()),
        limit_of(ns.put_many(&[(one[0], bytes("v"))]).wait()),
        limit_of(ns.remove_many(&one).wait()),
    ];
    assert!(answers.iter().all(|limit| *limit == "esker_kv::KEY_BYTES_MAX"), "{answers:?}");
    assert_eq!(ns.len().wait().unwrap(), 1);
}

#[test]
fn too_large_a_value_names_the_limit_in_every_call() {
    for kind in KINDS {
        let fresh = fresh();
        let ns = fresh.namespace(kind);
        let key = nth(kind, 1);
        let large = bytes(vec![7; VALUE_BYTES_MAX + 1]);
        let answers = [
            limit_of(ns.put(&key, large.clone()).wait()),
            limit_of(ns.put_with(&key, Entry::new(large.clone()), Durability::Applied).wait()),
            limit_of(ns.add(&key, large.clone()).wait()),
            limit_of(ns.update(&key, large.clone()).wait()),
            limit_of(ns.compare_and_set(&key, None, large.clone()).wait()),
            limit_of(ns.put_many(&[(key.as_key(), large.clone())]).wait()),
        ];
        assert!(answers.iter().all(|limit| *limit == "esker_kv::VALUE_BYTES_MAX"), "{answers:?}");
        assert_eq!(ns.len().wait().unwrap(), 0);
        let largest = large.slice(1..);
        ns.put_with(&key, Entry::new(largest.clone()).expiring(Some(u64::MAX)), Durability::Durable).wait().unwrap();
        assert_eq!(ns.get(&key).wait().unwrap(), Some(largest));
    }
}

#[test]
fn keys_of_the_other_kind_are_refused() {
    let fresh = fresh();
    let (ints, strings) = (fresh.namespace(Kind::Int), fresh.namespace(Kind::Bytes));
    let invalid = |answer: Completion<()>| matches!(answer.wait(), Err(StoreError::Invalid { what: "key", .. }));
    assert!(invalid(ints.put("7", bytes("v"))));
    assert!(invalid(strings.put(7, bytes("v"))));
    assert!(ints.scan(&Scan::prefix("7")).wait().is_err());
    assert!(ints.iter(Scan { start: Some(OwnedKey::from("7")), ..Scan::all() }).next().unwrap().is_err());
    assert!(strings.scan(&Scan { end: Some(OwnedKey::Int(7)), ..Scan::all() }).wait().is_err());
    assert!(strings.scan(&Scan::all().after(7)).wait().is_err());
    assert!(ints.is_empty().wait().unwrap() && strings.is_empty().wait().unwrap());
}

#[test]
fn a_transaction_with_a_write_that_cannot_be_applies_nothing_and_says_why() {
    let fresh = fresh();
    let ints = fresh.namespace(Kind::Int);
    let ns = fresh.namespace(Kind::Bytes);
    let long = vec![b'k'; KEY_BYTES_MAX + 1];
    let large = Entry::new(vec![7; VALUE_BYTES_MAX + 1]);
    let commit = |write: &dyn Fn(&mut esker_kv::Txn<'_>)| {
        let mut txn = fresh.kv.begin(&[]);
        txn.put(&ns, "good", Entry::new("v"));
        write(&mut txn);
        txn.put(&ns, "also good", Entry::new("v"));
        txn.commit(Durability::Durable).wait()
    };
    assert_eq!(limit_of(commit(&|txn| txn.put(&ns, &long, Entry::new("v")))), "esker_kv::KEY_BYTES_MAX");
    assert_eq!(limit_of(commit(&|txn| txn.remove(&ns, &long))), "esker_kv::KEY_BYTES_MAX");
    assert_eq!(limit_of(commit(&|txn| txn.remove_prefix(&ns, &long))), "esker_kv::KEY_BYTES_MAX");
    assert_eq!(limit_of(commit(&|txn| txn.put(&ns, "k", large.clone()))), "esker_kv::VALUE_BYTES_MAX");
    for answer in [
        commit(&|txn| txn.put(&ns, 7, Entry::new("v"))),
        commit(&|txn| txn.put(&ns, "k", Entry::new("v").tagged(16))),
        commit(&|txn| txn.remove_prefix(&ints, b"k")),
        commit(&|txn| txn.remove_prefix(&ints, b"")),
    ] {
        assert!(matches!(answer, Err(StoreError::Invalid { .. })), "{answer:?}");
    }
    assert!(ns.is_empty().wait().unwrap());
}

#[test]
fn names_of_namespaces_are_checked() {
    let fresh = fresh();
    for name in ["", "a/b", "/", &"n".repeat(129)] {
        let answer = fresh.kv.namespace(name, Kind::Int);
        assert!(matches!(answer, Err(Error::InvalidName { .. })), "{name:?}: {answer:?}");
    }
    for name in ["n", "ünï\0 code", &"n".repeat(128)] {
        for kind in KINDS {
            let ns = fresh.kv.namespace(name, kind).unwrap();
            ns.put(&nth(kind, 1), bytes("v")).wait().unwrap();
            fresh.kv.remove_namespace(name).unwrap();
        }
    }
}
