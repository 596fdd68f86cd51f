//! Barriers: answers wait for what they read, writes for what their durability says, and nothing else waits.
//!
//! The tests run on a store whose durable mark is moved by hand.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use esker_kv::{Completion, Durability, Entry, Kind, Kv, ManualClock, Namespace, Scan};

use crate::slow::Slow;
use crate::{NOON_MS, bytes};

/// A face on a slow store whose mark stands at everything done so far.
fn slow(kind: Kind) -> (Kv, Namespace, Arc<Slow>) {
    let store = Arc::new(Slow::new(2));
    let kv = Kv::open(store.clone(), Arc::new(ManualClock::new(NOON_MS))).unwrap();
    let ns = kv.namespace("n", kind).unwrap();
    assert_eq!(store.durable_submits.load(Ordering::SeqCst), 2, "the collection and the namespace");
    (kv, ns, store)
}

/// The value as applied, and the position that the answer waits for if it is not durable yet.
fn parts<T>(answer: Completion<T>) -> (T, Option<u64>) {
    let (value, barrier) = answer.into_parts();
    (value.unwrap(), barrier.filter(|barrier| barrier.state().is_none()).map(|barrier| barrier.position()))
}

#[test]
fn every_answer_waits_for_what_it_depends_on() {
    for kind in [Kind::Int, Kind::Bytes] {
        let (kv, ns, _store) = slow(kind);
        let (a, b) = (crate::nth(kind, 0), crate::nth(kind, 1));
        assert_eq!(parts(ns.put(&a, bytes("1"))), ((), Some(3)));
        assert_eq!(parts(ns.get(&a)), (Some(bytes("1")), Some(3)));
        assert_eq!(parts(ns.has(&a)), (true, Some(3)));
        assert_eq!(parts(ns.add(&a, bytes("2"))), (false, Some(3)));
        assert_eq!(parts(ns.compare_and_set(&a, None, bytes("2"))), (false, Some(3)));
        assert!(!parts(ns.update(&b, bytes("2"))).0);
        assert_eq!(parts(ns.len()), (1, Some(3)));
        assert_eq!(parts(ns.get_many(&[a.as_key(), b.as_key()])), (vec![Some(bytes("1")), None], Some(3)));
        assert_eq!(parts(ns.scan(&Scan::all())).1, Some(3));
        assert_eq!(parts(ns.scan(&Scan::all().keys())).1, Some(3));
        // Asynchronous, but built on what is not durable yet: the answer shows that, so it waits for it.
        let done = ns.compare_and_set_with(&a, Some(b"1"), bytes("2"), Durability::Applied);
        assert_eq!(parts(done), (true, Some(3)));
        assert_eq!(parts(ns.put_with(&b, Entry::new("x"), Durability::Applied)), ((), None));
        assert_eq!(parts(ns.remove_many(&[a.as_key(), b.as_key()])), (2, Some(4)));
        let mut txn = kv.begin(&[(&ns, a.as_key())]);
        assert_eq!(txn.get(&ns, &a).unwrap(), None);
        assert_eq!(parts(txn.commit(Durability::Durable)), ((), Some(4)), "it read what is not durable yet");
        let mut txn = kv.begin(&[(&ns, a.as_key())]);
        txn.put(&ns, &a, Entry::new("y"));
        assert_eq!(parts(txn.commit(Durability::Durable)), ((), Some(5)));
        assert_eq!(parts(ns.clear()), ((), Some(6)));
    }
}

#[test]
fn a_pipeline_of_increments_waits_for_nothing_until_its_end() {
    let (kv, ns, store) = slow(Kind::Int);
    // The mark does not move: were anything waited for, this would hang.
    let mut last = None;
    for n in 0..1_000u64 {
        let mut txn = kv.begin(&[(&ns, 7.into())]);
        let old = txn.get(&ns, 7).unwrap().map_or(0, |old| crate::number(Some(&old.value)));
        assert_eq!(old, n);
        txn.put(&ns, 7, Entry::new((old + 1).to_string()));
        last = parts(txn.commit(Durability::Durable)).1;
    }
    assert_eq!(last, Some(1_002));
    store.mark.advance(1_002);
    assert_eq!(ns.get(7).wait().unwrap(), Some(bytes("1000")));
}

#[test]
fn the_default_durability_decides_what_put_waits_for() {
    let (kv, ns, _store) = slow(Kind::Bytes);
    kv.set_default_durability(Durability::Applied);
    assert_eq!(parts(ns.put("k", bytes("v"))), ((), None));
    kv.set_default_durability(Durability::Durable);
    assert_eq!(parts(ns.put("k", bytes("v"))), ((), Some(3)));
}

#[test]
fn calls_that_change_nothing_submit_nothing() {
    let (kv, ns, store) = slow(Kind::Bytes);
    ns.put_with("k", Entry::new("v"), Durability::Applied).wait().unwrap();
    let before = store.submits.load(Ordering::SeqCst);
    assert!(!ns.add("k", bytes("w")).wait().unwrap());
    assert!(!ns.remove("absent").wait().unwrap());
    assert!(!ns.update("absent", bytes("w")).wait().unwrap());
    assert_eq!(ns.remove_many(&["absent".into()]).wait().unwrap(), 0);
    ns.put_many(&[]).wait().unwrap();
    assert_eq!(kv.expire_due(10).unwrap(), 0);
    let mut txn = kv.begin_exclusive();
    txn.get(&ns, "k").unwrap();
    txn.scan(&ns, &Scan::all()).unwrap();
    txn.commit(Durability::Durable).wait().unwrap();
    assert_eq!(store.submits.load(Ordering::SeqCst), before);
}

#[test]
fn a_failed_sync_reaches_whoever_waits() {
    let (_kv, ns, store) = slow(Kind::Bytes);
    let done = ns.put("k", bytes("v"));
    store.mark.fail(esker_store::Error::Stopped { cause: "pulled".into() });
    assert!(matches!(done.wait(), Err(esker_store::Error::Stopped { .. })));
    assert!(ns.iter(Scan::all()).next().unwrap().is_err());
    assert!(ns.insertion_iter().next().unwrap().is_err());
}
