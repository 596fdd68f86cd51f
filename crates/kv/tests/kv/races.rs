//! Races: one winner, no lost update, all or nothing, no deadlock.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, mpsc};
use std::thread;
use std::time::Duration;

use esker_kv::{Durability, Entry, Key, Kind, Kv, ManualClock, Scan};
use esker_store::{Change, Collection, ObjectId, ObjectStore, Transaction};

use crate::slow::Slow;
use crate::{KINDS, NOON_MS, bytes, fresh, keys, nth, number};

const THREADS: u64 = 4;

#[test]
fn of_many_adds_one_wins() {
    for kind in KINDS {
        let fresh = fresh();
        let ns = fresh.namespace(kind);
        for round in 0..200 {
            let key = nth(kind, round);
            let (start, winners) = (Barrier::new(THREADS as usize), AtomicU64::new(0));
            thread::scope(|scope| {
                for me in 0..THREADS {
                    let (ns, key, start, winners) = (&ns, &key, &start, &winners);
                    scope.spawn(move || {
                        start.wait();
                        if ns.add(key, bytes(me.to_string())).wait().unwrap() {
                            winners.fetch_add(1 + (me << 32), Ordering::SeqCst);
                        }
                    });
                }
            });
            let winners = winners.into_inner();
            assert_eq!(winners as u32, 1, "round {round}");
            assert_eq!(number(ns.get(&key).wait().unwrap().as_deref()), winners >> 32);
        }
    }
}

#[test]
fn compare_and_set_loses_no_update() {
    for kind in KINDS {
        let fresh = fresh();
        let ns = fresh.namespace(kind);
        let key = nth(kind, 1);
        ns.put(&key, bytes("0")).wait().unwrap();
        thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    for _ in 0..500 {
                        loop {
                            let old = ns.get(&key).wait().unwrap().unwrap();
                            let new = bytes((number(Some(&old)) + 1).to_string());
                            if ns.compare_and_set(&key, Some(&old), new).wait().unwrap() {
                                break;
                            }
                        }
                    }
                });
            }
        });
        assert_eq!(number(ns.get(&key).wait().unwrap().as_deref()), THREADS * 500);
    }
}

#[test]
fn exclusive_and_shared_transactions_lose_no_increment_and_see_no_half() {
    for kind in KINDS {
        let fresh = fresh();
        let ns = fresh.namespace(kind);
        // Two counters that are always raised together, in transactions over both or over everything.
        let pair = [nth(kind, 1), nth(kind, 2)];
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            let adders: Vec<_> = (0..THREADS)
                .map(|me| {
                    let (kv, ns, pair) = (&fresh.kv, &ns, &pair);
                    scope.spawn(move || {
                        for _ in 0..500 {
                            let mut locks = [(ns, pair[0].as_key()), (ns, pair[1].as_key())];
                            if me == 1 {
                                locks.reverse();
                            }
                            let mut txn = if me == 0 { kv.begin_exclusive() } else { kv.begin(&locks) };
                            for key in pair {
                                let old = number(txn.get(ns, key).unwrap().as_ref().map(|old| &old.value[..]));
                                txn.put(ns, key, Entry::new((old + 1).to_string()));
                            }
                            txn.commit(Durability::Durable).wait().unwrap();
                        }
                    })
                })
                .collect();
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let both = ns.get_many(&keys(&pair)).wait().unwrap();
                    assert_eq!(both[0], both[1], "half a transaction was seen");
                    let mut txn = fresh.kv.begin_exclusive();
                    let still = [0, 1].map(|_| txn.scan(&ns, &Scan::all()).unwrap());
                    assert_eq!(still[0], still[1], "something moved under an exclusive transaction");
                }
            });
            adders.into_iter().for_each(|adder| adder.join().unwrap());
            stop.store(true, Ordering::Relaxed);
        });
        for key in &pair {
            assert_eq!(number(ns.get(key).wait().unwrap().as_deref()), THREADS * 500);
        }
    }
}

#[test]
fn put_many_is_seen_whole_or_not_at_all() {
    for kind in KINDS {
        let fresh = fresh();
        let ns = fresh.namespace(kind);
        let owned: Vec<_> = (0..8).map(|n| nth(kind, n)).collect();
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            let writers: Vec<_> = (0..2)
                .map(|me| {
                    let (ns, owned) = (&ns, &owned);
                    scope.spawn(move || {
                        for round in 0..300 {
                            let value = bytes(format!("{me}:{round}"));
                            let mut entries: Vec<_> = owned.iter().map(|key| (key.as_key(), value.clone())).collect();
                            if me == 1 {
                                entries.reverse();
                            }
                            ns.put_many(&entries).wait().unwrap();
                        }
                    })
                })
                .collect();
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let seen = ns.get_many(&keys(&owned)).wait().unwrap();
                    assert!(seen.iter().all(|value| *value == seen[0]), "{seen:?}");
                }
            });
            writers.into_iter().for_each(|writer| writer.join().unwrap());
            stop.store(true, Ordering::Relaxed);
        });
    }
}

#[test]
fn expiring_in_the_background_takes_nothing_that_was_written_anew() {
    for kind in KINDS {
        let fresh = fresh();
        let ns = fresh.namespace(kind);
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    fresh.kv.expire_due(16).unwrap();
                }
            });
            for round in 0..2_000 {
                let key = nth(kind, round % 5);
                let due = Entry::new("due").expiring(Some(NOON_MS - round));
                ns.put_with(&key, due, Durability::Applied).wait().unwrap();
                assert_eq!(ns.get(&key).wait().unwrap(), None);
                // Under another key's stripe, as a face with compound keys does it.
                let mut txn = fresh.kv.begin(&[(&ns, nth(kind, 99).as_key())]);
                txn.put(&ns, &key, Entry::new("new"));
                txn.commit(Durability::Applied).wait().unwrap();
                assert_eq!(ns.get(&key).wait().unwrap(), Some(bytes("new")), "round {round}");
            }
            stop.store(true, Ordering::Relaxed);
        });
        assert_eq!(ns.len().wait().unwrap(), 5);
    }
}

#[test]
fn transactions_over_random_keys_do_not_deadlock_and_keep_the_sum() {
    let fresh = fresh();
    let ns = fresh.namespace(Kind::Int);
    const ACCOUNTS: u64 = 12;
    for key in 0..ACCOUNTS {
        ns.put(key, bytes("1000")).wait().unwrap();
    }
    let seed = 41;
    thread::scope(|scope| {
        for me in 0..THREADS {
            let (kv, ns) = (&fresh.kv, &ns);
            scope.spawn(move || {
                let mut rng = fastrand::Rng::with_seed(seed + me);
                for _ in 0..1_000 {
                    let (from, to) = (rng.u64(..ACCOUNTS), rng.u64(..ACCOUNTS));
                    if from == to {
                        continue;
                    }
                    let mut txn = kv.begin(&[(ns, Key::Int(from)), (ns, Key::Int(to))]);
                    for (key, up) in [(from, false), (to, true)] {
                        let old = number(txn.get(ns, key).unwrap().as_ref().map(|old| &old.value[..]));
                        let new = if up { old.wrapping_add(1) } else { old.wrapping_sub(1) };
                        txn.put(ns, key, Entry::new(new.to_string()));
                    }
                    txn.commit(Durability::Durable).wait().unwrap();
                }
            });
        }
    });
    let sum = (0..ACCOUNTS).fold(0u64, |sum, key| sum.wrapping_add(number(ns.get(key).wait().unwrap().as_deref())));
    assert_eq!(sum, ACCOUNTS * 1_000, "seed {seed}");
}

#[test]
fn an_entry_written_between_the_look_and_the_removal_is_not_expired() {
    for kind in KINDS {
        let store = Arc::new(Slow::new(u64::MAX));
        let kv = Kv::open(store.clone(), Arc::new(ManualClock::new(NOON_MS))).unwrap();
        let ns = kv.namespace("n", kind).unwrap();
        let key = if kind == Kind::Int { Key::Int(7) } else { Key::from("k") };
        ns.put_with(key, Entry::new("due").expiring(Some(NOON_MS)), Durability::Durable).wait().unwrap();
        *store.after_get.lock().unwrap() = Some(Box::new(move |inner| {
            let (suffix, change) = match kind {
                Kind::Int => (&b"n/int/\0\0\0\0\0\0\0\0"[..], Change::SlotSet { index: 7, value: bytes("\0new") }),
                Kind::Bytes => (&b"n/bytes"[..], Change::OmapSet { key: bytes("k"), value: bytes("\0new") }),
            };
            let object = ObjectId::new(Collection::from("kv"), suffix);
            inner.submit(Transaction::new().change(&object, change)).wait().unwrap();
        }));
        assert_eq!(kv.expire_due(10).unwrap(), 0);
        assert_eq!(ns.get(key).wait().unwrap(), Some(bytes("new")));
    }
}

#[test]
fn a_put_waits_for_a_dependent_write_of_its_key() {
    for kind in KINDS {
        let store = Arc::new(Slow::new(u64::MAX));
        let kv = Kv::open(store.clone(), Arc::new(ManualClock::new(NOON_MS))).unwrap();
        let ns = kv.namespace("n", kind).unwrap();
        let key = nth(kind, 1);
        ns.put(&key, bytes("old")).wait().unwrap();
        let (done, put) = mpsc::channel();
        *store.after_get.lock().unwrap() = Some(Box::new({
            let (ns, key) = (ns.clone(), key.clone());
            move |_| {
                let (out, inside) = mpsc::channel();
                let putter = thread::spawn(move || {
                    ns.put(&key, bytes("put")).wait().unwrap();
                    // The test listens no more if the put had to wait, as it should.
                    let _ = out.send(());
                });
                assert!(inside.recv_timeout(Duration::from_millis(50)).is_err(), "the put went in between");
                done.send(putter).unwrap();
            }
        }));
        assert!(ns.compare_and_set(&key, Some(b"old"), bytes("new")).wait().unwrap());
        put.recv_timeout(Duration::from_secs(10)).unwrap().join().unwrap();
        assert_eq!(ns.get(&key).wait().unwrap(), Some(bytes("put")));
    }
}
