//! Many threads: transactions are isolated by guards and shown whole.
//!
//! The threads are real, so a failure may need several runs to come back; the promises hold in every interleaving.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::Harness;
use super::actions::*;
use crate::{Change, Compare, Condition, Durability, Error, ObjectId, ObjectStore, OmapScan, SlotScan, Transaction};

const THREADS: usize = 4;
const ROUNDS: u64 = 40;

/// Runs `work` on several threads that start together.
fn together(work: impl Fn(usize) + Sync) {
    let start = Barrier::new(THREADS);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (start, work) = (&start, &work);
            scope.spawn(move || {
                start.wait();
                work(thread);
            });
        }
    });
}

/// Durable and asynchronous writers mixed; these tests are about isolation.
fn mixed(thread: usize) -> Transaction {
    Transaction::with(if thread.is_multiple_of(2) { Durability::Durable } else { Durability::Applied })
}

/// Whether it went through; a failed guard means that another writer was first.
#[track_caller]
fn won(store: &dyn ObjectStore, txn: Transaction) -> bool {
    match store.submit(txn).wait() {
        Ok(_) => true,
        Err(Error::GuardFailed { .. }) => false,
        Err(error) => panic!("{error}"),
    }
}

/// Create-if-absent, on objects, omap keys and slots.
pub fn one_of_many_creators_wins(harness: &dyn Harness) {
    let opened = furnished(harness);
    let store = opened.store();
    for round in 0..ROUNDS {
        let o = object(&format!("object {}", round / 3));
        let winners = AtomicUsize::new(0);
        together(|thread| {
            let (condition, change) = match round % 3 {
                0 => (Condition::Absent, write(0, [thread as u8])),
                1 => (Condition::OmapAbsent { key: bytes("k") }, omap_set("k", [thread as u8])),
                _ => (Condition::SlotAbsent { index: 5 }, slot_set(5, [thread as u8])),
            };
            if won(store, mixed(thread).guard(&o, condition).change(&o, change)) {
                winners.fetch_add(thread + 1000, Ordering::Relaxed);
            }
        });
        let sum = winners.into_inner();
        assert_eq!(sum / 1000, 1, "round {round}: {} threads created it", sum / 1000);
        let found = match round % 3 {
            0 => contents(store, &o),
            1 => got(store.omap_get(&o, b"k")).unwrap_or_default(),
            _ => got(store.slot_get(&o, 5)).unwrap_or_default(),
        };
        assert_eq!(usize::from(found[0]), sum % 1000, "round {round}: the winner's value is not there");
    }
}

/// From each value exactly one writer goes on.
pub fn one_of_many_compare_and_set_writers_wins(harness: &dyn Harness) {
    let opened = furnished(harness);
    let store = opened.store();
    let o = object("o");
    change(store, &o, [xattr_set("n", 0u64.to_le_bytes()), slot_set(0, "start")]);
    for round in 0..ROUNDS {
        let before = got(store.slot_get(&o, 0)).unwrap_or_default();
        let winners = AtomicUsize::new(0);
        together(|thread| {
            let condition = if round % 2 == 0 {
                Condition::SlotEquals { index: 0, value: before.clone() }
            } else {
                let (name, compare) = (bytes("n"), Compare::Equal);
                Condition::XattrCompare { name, compare, value: round, absent_holds: false }
            };
            let txn = mixed(thread).guard(&o, condition).change(&o, slot_set(0, format!("{round} by {thread}")));
            if won(store, txn.change(&o, xattr_set("n", (round + 1).to_le_bytes()))) {
                winners.fetch_add(1, Ordering::Relaxed);
            }
        });
        assert_eq!(winners.into_inner(), 1, "round {round}");
    }
}

/// Read, add one, write if unchanged, else again.
pub fn guarded_counters_lose_no_update(harness: &dyn Harness) {
    let opened = furnished(harness);
    let store = opened.store();
    let o = object("o");
    change(store, &o, [omap_set("n", 0u64.to_le_bytes())]);
    together(|thread| {
        for _ in 0..ROUNDS {
            loop {
                let value = got(store.omap_get(&o, b"n")).unwrap_or_default();
                let next = number(&value) + 1;
                let txn = mixed(thread).guard(&o, Condition::OmapEquals { key: bytes("n"), value });
                if won(store, txn.change(&o, omap_set("n", next.to_le_bytes()))) {
                    break;
                }
            }
        }
    });
    let value = got(store.omap_get(&o, b"n")).unwrap_or_default();
    assert_eq!(number(&value), THREADS as u64 * ROUNDS);
}

fn number(bytes: &[u8]) -> u64 {
    bytes.try_into().map_or(0, u64::from_le_bytes)
}

/// Amounts go from object to object under guards on both.
pub fn amounts_moved_between_objects_keep_their_sum(harness: &dyn Harness) {
    let opened = furnished(harness);
    let store = opened.store();
    if !joins_collections(store) {
        return;
    }
    const ACCOUNTS: usize = 5;
    let accounts: Vec<ObjectId> =
        (0..ACCOUNTS).map(|at| object_in(if at % 2 == 0 { HOME } else { AWAY }, &format!("account {at}"))).collect();
    for account in &accounts {
        change(store, account, [slot_set(0, 100u64.to_le_bytes())]);
    }
    let balance = |account: &ObjectId| got(store.slot_get(account, 0)).unwrap_or_default();
    together(|thread| {
        let mut rng = fastrand::Rng::with_seed(thread as u64);
        let mut moved = 0;
        for _ in 0..10_000 {
            if moved == ROUNDS {
                break;
            }
            let (from, to) = (rng.usize(..ACCOUNTS), rng.usize(..ACCOUNTS));
            let (has, had) = (balance(&accounts[from]), balance(&accounts[to]));
            let amount = rng.u64(..=number(&has));
            if from == to {
                continue;
            }
            let mut txn = mixed(thread);
            for (account, value) in [(&accounts[from], &has), (&accounts[to], &had)] {
                txn = txn.guard(account, Condition::SlotEquals { index: 0, value: value.clone() });
            }
            txn.push(&accounts[from], slot_set(0, (number(&has) - amount).to_le_bytes()));
            txn.push(&accounts[to], slot_set(0, (number(&had) + amount).to_le_bytes()));
            moved += u64::from(won(store, txn));
        }
        assert!(moved > 0, "thread {thread} moved nothing");
    });
    let sum: u64 = accounts.iter().map(|account| number(&balance(account))).sum();
    assert_eq!(sum, 100 * ACCOUNTS as u64);
}

/// A writer sets several keys to the same number at once; get_many never sees two numbers.
pub fn readers_never_see_half_a_transaction(harness: &dyn Harness) {
    let opened = furnished(harness);
    let store = opened.store();
    let o = object("o");
    let keys: Vec<bytes::Bytes> = (0..8).map(|key| bytes(format!("key {key}"))).collect();
    let slots: Vec<u64> = (0..8).map(|index| index * 5000).collect();
    let set = |txn: Transaction, round: u64| {
        let txn = keys.iter().fold(txn, |txn, key| txn.change(&o, omap_set(key, round.to_le_bytes())));
        let txn = slots.iter().fold(txn, |txn, index| txn.change(&o, slot_set(*index, round.to_le_bytes())));
        txn.change(&o, write(3, [round as u8; 3000]))
    };
    ok(store, set(Transaction::new(), 0));
    let done = AtomicBool::new(false);
    let one = |values: Vec<Option<bytes::Bytes>>| {
        let numbers: Vec<u64> = values.iter().map(|value| number(value.as_deref().unwrap_or(&[]))).collect();
        assert!(numbers.iter().all(|number| *number == numbers[0]), "half a transaction: {numbers:?}");
        numbers[0]
    };
    together(|thread| {
        if thread < 2 {
            for round in 1..=ROUNDS * 3 {
                ok(store, set(mixed(thread), round * 2 + thread as u64));
            }
            done.store(true, Ordering::Release);
        } else {
            while !done.load(Ordering::Acquire) {
                one(got(store.omap_get_many(&o, &keys)));
                one(got(store.slot_get_many(&o, &slots)));
                let found = got(store.read(&o, 3..3003));
                assert!(found.iter().all(|byte| *byte == found[0]), "half a write");
            }
        }
    });
    let last = one(got(store.omap_get_many(&o, &keys)));
    assert_eq!(one(got(store.slot_get_many(&o, &slots))), last);
}

/// A token moves between keys: a scan finds exactly one.
pub fn scans_show_one_moment(harness: &dyn Harness) {
    let opened = furnished(harness);
    let store = opened.store();
    let o = object("o");
    const PLACES: u64 = 50;
    change(store, &o, [omap_set(format!("{:03}", 0), "token"), slot_set(0, "token")]);
    let done = AtomicBool::new(false);
    together(|thread| {
        if thread == 0 {
            let mut rng = fastrand::Rng::with_seed(5);
            let mut at = 0;
            for _ in 0..ROUNDS * 4 {
                let next = rng.u64(..PLACES);
                let txn = mixed(1)
                    .change(&o, omap_remove(format!("{at:03}")))
                    .change(&o, Change::SlotRemove { index: at })
                    .change(&o, omap_set(format!("{next:03}"), "token"))
                    .change(&o, slot_set(next, "token"));
                ok(store, txn);
                at = next;
            }
            done.store(true, Ordering::Release);
        } else {
            while !done.load(Ordering::Acquire) {
                let reverse = thread.is_multiple_of(2);
                let scan = OmapScan { limit: 100, reverse, ..OmapScan::default() };
                assert_eq!(got(store.omap_scan(&o, &scan)).len(), 1);
                let scan = SlotScan { range: 0..PLACES, reverse, limit: 100, keys_only: false };
                assert_eq!(got(store.slot_scan(&o, &scan)).len(), 1);
                assert_eq!(got(store.stat(&o)).map(|stat| (stat.omap_keys, stat.slots)), Some((1, 1)));
            }
        }
    });
}

/// No two transactions get the same place.
pub fn commit_sequence_is_unique_across_threads(harness: &dyn Harness) {
    let opened = furnished(harness);
    let store = opened.store();
    let all = parking_lot::Mutex::new(Vec::new());
    together(|thread| {
        let mut mine = Vec::new();
        for round in 0..ROUNDS {
            let o = object(&format!("object {}", (round + thread as u64) % 3));
            mine.push(got(store.submit(mixed(thread).change(&o, slot_set(round, [thread as u8])))));
        }
        assert!(mine.is_sorted(), "thread {thread}: a later transaction got an earlier place");
        all.lock().extend(mine);
    });
    let mut all = all.into_inner();
    let count = all.len();
    all.sort();
    all.dedup();
    assert_eq!(all.len(), count, "a place in commit order was given twice");
}

/// Objects are created and removed while others read them: whole or not at all.
pub fn objects_come_and_go_under_readers(harness: &dyn Harness) {
    let opened = furnished(harness);
    let store = opened.store();
    let objects: Vec<ObjectId> = (0..3).map(|number| object(&format!("object {number}"))).collect();
    let done = AtomicUsize::new(0);
    together(|thread| {
        if thread < 2 {
            let mut rng = fastrand::Rng::with_seed(thread as u64);
            for _ in 0..ROUNDS * 2 {
                let o = &objects[rng.usize(..objects.len())];
                if rng.bool() {
                    let txn = mixed(thread).guard(o, Condition::Absent);
                    won(store, filled().into_iter().fold(txn, |txn, change| txn.change(o, change)));
                } else {
                    won(store, mixed(thread).guard(o, Condition::Exists).change(o, Change::Remove));
                }
            }
            done.fetch_add(1, Ordering::AcqRel);
        } else {
            while done.load(Ordering::Acquire) < 2 {
                for o in &objects {
                    if let Some(stat) = got(store.stat(o)) {
                        assert_eq!((stat.size, stat.omap_keys, stat.slots, stat.xattrs), (100, 3, 2, 2), "{o}");
                    }
                    let found = got(store.omap_get_many(o, &["key 1", "key 2", ""].map(bytes)));
                    let there = found.iter().filter(|value| value.is_some()).count();
                    assert!(there == 0 || there == 3, "{there} of 3 keys are there");
                }
                let listed = got(store.list(&HOME.into(), None, 10)).len();
                assert!(listed <= objects.len());
            }
        }
    });
}

/// An object that a writer is about to create, or has failed to create, is simply missing to all other clients.
pub fn objects_come_and_go_under_writers(harness: &dyn Harness) {
    let opened = furnished(harness);
    let store = opened.store();
    if !joins_objects(store) {
        return;
    }
    // All transactions want this one first, so that one waits for it while others look at what it is about to create.
    let held = object("a");
    assert!(won(store, Transaction::new().change(&held, omap_set("k", [1]))));
    together(|thread| {
        let mut state = thread as u64 + 1;
        for round in 0..ROUNDS * 100 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let o = object(&format!("comes and goes {}", (state >> 33) % 3));
            let txn = Transaction::with(Durability::Applied).change(&held, slot_set(thread as u64, [1]));
            let fails = Condition::OmapEquals { key: bytes("k"), value: bytes("else") };
            let submitted = match (state >> 40) % 3 {
                0 => store.submit(txn.change(&o, slot_set(round, [1]))).wait(),
                1 => store.submit(txn.change(&o, Change::Remove)).wait(),
                _ => match store.submit(txn.guard(&held, fails).change(&o, slot_set(round, [1]))).wait() {
                    Err(Error::GuardFailed { index: 0 }) => continue,
                    other => other,
                },
            };
            if let Err(error) = submitted {
                panic!("{error}");
            }
        }
    });
}
