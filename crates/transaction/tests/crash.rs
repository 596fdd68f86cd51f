//! A client that dies, or is told nothing, at every call that a commit makes: what it left is whole or nothing, and
//! others find out.

#![allow(clippy::unwrap_used, reason = "a test that fails")]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use esker_map::{Atomicity, Error as MapError, Get, Key, MapStorage, Over, Record, Scan, TableName, Value};
use esker_transaction::{Error, Isolation, Options, Transaction, Transactions};
use support::*;

/// What befalls the n-th call.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    /// The client is gone before it; nothing that it does after that counts.
    DeadBefore,
    /// The same after it.
    DeadAfter,
    /// It was not made, and the client is told that the outcome is unknown.
    Unmade,
    /// It was made, and the client is told that the outcome is unknown.
    Lost,
    /// It was refused.
    Refused,
}

const FAULTS: [Fault; 5] = [Fault::DeadBefore, Fault::DeadAfter, Fault::Unmade, Fault::Lost, Fault::Refused];

fn unknown() -> MapError {
    MapError::Unknown { cause: "the test said so".into() }
}

/// Meets the fault at call `at`, counted from 0.
fn faulty(inner: Arc<dyn MapStorage>, atomicity: Atomicity, fault: Fault, at: i64) -> (Arc<Tap>, Arc<AtomicI64>) {
    let calls = Arc::new(AtomicI64::new(i64::MIN));
    let counted = Arc::clone(&calls);
    let hook: Hook = Box::new(move |writes| {
        let call = counted.fetch_add(1, Ordering::SeqCst);
        match (fault, call == at) {
            (Fault::DeadBefore | Fault::DeadAfter, false) if call < at => Fate::Made,
            (Fault::DeadAfter, true) => Fate::Lost(unknown()),
            (Fault::DeadBefore | Fault::DeadAfter, _) => Fate::Refused(unknown()),
            (_, false) => Fate::Made,
            // A read has nothing that could be unknown.
            (Fault::Unmade | Fault::Refused, true) if !writes => Fate::Refused(refusal()),
            (Fault::Lost, true) if !writes => Fate::Lost(refusal()),
            (Fault::Unmade, true) => Fate::Refused(unknown()),
            (Fault::Lost, true) => Fate::Lost(unknown()),
            (Fault::Refused, true) => Fate::Refused(refusal()),
        }
    });
    (Arc::new(Tap { inner, atomicity, hook }), calls)
}

fn refusal() -> MapError {
    MapError::Invalid { what: "test", why: "no".into() }
}

/// Of partition 1 rows 1 and 2 are changed, 3 is made, 4 deleted; of partition 2 row 1 is changed; row 9 of partition 3
/// and partition 4 are read.
const BEFORE: &[(i32, i32, i64)] = &[(1, 1, 100), (1, 2, 100), (1, 4, 100), (2, 1, 100), (4, 1, 1), (4, 2, 2)];
const AFTER: &[(i32, i32, i64)] = &[(1, 1, 90), (1, 2, 110), (1, 3, 50), (2, 1, 150), (4, 1, 1), (4, 2, 2)];

fn work(txn: &mut Transaction, with_scan: bool) -> Result<(), Error> {
    let x_at = |txn: &mut Transaction, p, c| -> Result<i64, Error> {
        Ok(txn.get(&Get::new(&table(), key(p, c)))?.map_or(0, |record| x_of(&record)))
    };
    for (c, change) in [(1, -10), (2, 10)] {
        let now = x_at(txn, 1, c)?;
        txn.put(&table(), key(1, c), x(now + change))?;
    }
    txn.put(&table(), key(1, 3), x(50))?;
    txn.delete(&table(), key(1, 4))?;
    let now = x_at(txn, 2, 1)?;
    txn.put(&table(), key(2, 1), x(now + 50))?;
    x_at(txn, 3, 9)?;
    if with_scan {
        txn.scan(&Scan::partition(&table(), Key::of("p", 4)))?;
    }
    Ok(())
}

fn rows(transactions: &Transactions) -> Vec<(i32, i32, i64)> {
    // A serializable one would not read what a transaction that may be alive has prepared.
    let mut txn = transactions.begin_with(Isolation::Snapshot);
    let rows = txn.scan(&Scan::new(&table(), Over::All)).unwrap();
    txn.commit().unwrap();
    let int = |record: &Record, name| match record.value(name) {
        Some(Value::Int(value)) => *value,
        other => panic!("{name} is {other:?}"),
    };
    rows.iter().map(|record| (int(record, "p"), int(record, "c"), x_of(record))).collect()
}

/// Whether it was the last call and beyond.
fn check(
    inner: Arc<dyn MapStorage>,
    atomicity: Atomicity,
    isolation: Isolation,
    scan: bool,
    fault: Fault,
    at: i64,
) -> bool {
    let place = format!("{atomicity:?} {isolation:?} scan {scan} {fault:?} at call {at}");
    let time = Time::default();
    time.pass(1_000);
    let whole = open(Arc::new(Tap::new(Arc::clone(&inner), atomicity)), &time, options(isolation));
    make_table(&whole);
    let mut txn = whole.begin();
    BEFORE.iter().for_each(|(p, c, value)| txn.put(&table(), key(*p, *c), x(*value)).unwrap());
    txn.commit().unwrap();

    let (tap, calls) = faulty(inner, atomicity, fault, at);
    let client = open(tap, &time, options(isolation));
    let mut txn = client.begin();
    work(&mut txn, scan).unwrap();
    let id = txn.id().to_owned();
    calls.store(0, Ordering::SeqCst);
    let done = txn.commit();
    let over = calls.load(Ordering::SeqCst) <= at;
    let dead = matches!(fault, Fault::DeadBefore | Fault::DeadAfter) && !over;

    // Before the dead are taken for dead, and after.
    let early = rows(&whole);
    assert!(early == BEFORE || early == AFTER, "{place}: {early:?} after {done:?}");
    time.pass(15_000);
    let late = rows(&whole);
    let committed = late == AFTER;
    assert!(committed || late == BEFORE, "{place}: {late:?} after {done:?}");
    assert!(committed || early == BEFORE, "{place}: shown and taken back");
    match &done {
        Ok(()) => assert!(committed, "{place}: committed, and not there"),
        Err(Error::Unknown { transaction, asked_of_coordinator, .. }) => {
            assert_eq!(*transaction, id);
            assert!(fault != Fault::Refused, "{place}: {done:?}");
            if *asked_of_coordinator {
                assert_eq!(whole.outcome(&id).unwrap(), committed, "{place}");
            }
        }
        Err(error) => assert!(!committed, "{place}: {error}, and there"),
    }
    if over {
        assert!(done.is_ok(), "{place}: {done:?}");
    }
    if !dead && matches!(fault, Fault::Unmade | Fault::Lost) {
        assert!(!matches!(done, Err(Error::Unknown { .. })), "{place}: it could have found out: {done:?}");
    }
    // Nothing is in the way of the next, and no transaction is left to settle.
    let mut txn = whole.begin();
    work(&mut txn, scan).unwrap();
    txn.commit().unwrap_or_else(|error| panic!("{place}: the next one: {error}"));
    time.pass(2_000_000);
    whole.sweep().unwrap();
    // Only that of a client that was taken for dead stays.
    let left = records(&whole);
    assert!(left.is_empty() || dead && left == [(id, 6)], "{place}: records after the sweep: {left:?}");
    let sum: i64 = rows(&whole).iter().filter(|(p, _, _)| *p == 1).map(|(_, c, x)| if *c < 3 { *x } else { 0 }).sum();
    assert_eq!(sum, 200, "{place}");
    over
}

/// Isolations, and whether a range is read too.
type Ways = &'static [(Isolation, bool)];

const EVERY_WAY: Ways = &[
    (Isolation::Snapshot, false),
    (Isolation::Snapshot, true),
    (Isolation::Serializable, false),
    (Isolation::Serializable, true),
];

fn every_call(storage: fn() -> Arc<dyn MapStorage>, atomicities: &[Atomicity], ways: Ways, steps_min: i64) {
    let mut steps = 0;
    for atomicity in atomicities {
        for (isolation, scan) in ways {
            for fault in FAULTS {
                let over = (0..100).find(|at| check(storage(), *atomicity, *isolation, *scan, fault, *at));
                steps += over.expect("a commit makes fewer than 100 calls");
            }
        }
    }
    println!("{steps} steps");
    assert!(steps > steps_min, "{steps} steps");
}

#[test]
fn a_client_that_dies_at_any_call_leaves_all_or_nothing_in_memory() {
    every_call(memory, &ATOMICITIES, EVERY_WAY, 500);
}

#[test]
fn a_client_that_dies_at_any_call_leaves_all_or_nothing_on_the_engine() {
    every_call(engine, &ATOMICITIES, EVERY_WAY, 500);
}

#[test]
#[ignore = "needs a node: scripts/cassandra run"]
fn a_client_that_dies_at_any_call_of_a_snapshot_leaves_all_or_nothing_on_cassandra() {
    every_call(support::cassandra::fresh, &[Atomicity::Partition], &EVERY_WAY[..1], 30);
}

#[test]
#[ignore = "needs a node: scripts/cassandra run"]
fn a_client_that_dies_at_any_serializable_call_leaves_all_or_nothing_on_cassandra() {
    every_call(support::cassandra::fresh, &[Atomicity::Partition], &EVERY_WAY[3..], 30);
}

/// Failure: a slow client's rows were taken back, and its record put afterwards. Then one row is as before, another as
/// after.
#[test]
fn a_client_that_was_taken_for_dead_cannot_commit() {
    taken_for_dead(memory);
}

#[test]
#[ignore = "needs a node: scripts/cassandra run"]
fn a_client_that_was_taken_for_dead_cannot_commit_on_cassandra() {
    taken_for_dead(support::cassandra::fresh);
}

fn taken_for_dead(fresh: fn() -> Arc<dyn MapStorage>) {
    let storage = fresh();
    let time = Time::default();
    time.pass(1_000);
    let whole = open(Arc::new(Tap::new(Arc::clone(&storage), Atomicity::Record)), &time, Options::default());
    make_table(&whole);
    let (reader, clock, writes) = (whole.clone(), time.clone(), AtomicI64::new(0));
    let hook: Hook = Box::new(move |write| {
        // Two rows are prepared; the third write is that of the record.
        if write && writes.fetch_add(1, Ordering::SeqCst) == 2 {
            clock.pass(15_000);
            assert_eq!(reader.begin().get(&Get::new(&table(), key(1, 1))).unwrap(), None);
        }
        Fate::Made
    });
    let slow = open(Arc::new(Tap { inner: storage, atomicity: Atomicity::Record, hook }), &time, Options::default());
    let mut txn = slow.begin();
    [1, 2].into_iter().for_each(|p| txn.put(&table(), key(p, 1), x(1)).unwrap());
    let id = txn.id().to_owned();
    let done = txn.commit();
    assert!(matches!(&done, Err(error @ Error::Conflict { .. }) if error.is_retryable()), "{done:?}");
    assert_eq!(rows(&whole), []);
    assert!(!whole.outcome(&id).unwrap());
}

/// Records of transactions in the coordinator's table: id and state.
fn records(transactions: &Transactions) -> Vec<(String, i32)> {
    let state = TableName::new("coordinator", "state");
    let all = transactions.storage().scan(&Scan::new(&state, Over::All)).unwrap().records;
    let read = |record: &Record| match (record.value("tx_id"), record.value("tx_state")) {
        (Some(Value::Text(id)), Some(Value::Int(state))) => (id.clone(), *state),
        other => panic!("{other:?}"),
    };
    all.iter().map(read).filter(|(id, _)| id != "forgotten").collect()
}

/// Failure: a client stopped between preparing and deciding. Others took its rows back and a sweep forgot that; then it
/// put a committed record, and was told that it had committed what was gone. Fix: such a record is kept until its
/// client
/// has seen it.
#[test]
fn a_client_that_was_held_up_beyond_a_sweep_cannot_commit() {
    held_up(memory);
}

#[test]
#[ignore = "needs a node: scripts/cassandra run"]
fn a_client_that_was_held_up_beyond_a_sweep_cannot_commit_on_cassandra() {
    held_up(support::cassandra::fresh);
}

fn held_up(fresh: fn() -> Arc<dyn MapStorage>) {
    // Before the second row is prepared, and before the record is put.
    for held_at in [1, 2] {
        let storage = fresh();
        let time = Time::default();
        time.pass(1_000);
        let options = || Options { lifetime_ms: 100_000, ..Options::default() };
        let whole = open(Arc::new(Tap::new(Arc::clone(&storage), Atomicity::Record)), &time, options());
        make_table(&whole);
        let (reader, clock, writes) = (whole.clone(), time.clone(), AtomicI64::new(0));
        let hook: Hook = Box::new(move |write| {
            if write && writes.fetch_add(1, Ordering::SeqCst) == held_at {
                clock.pass(15_000);
                assert_eq!(reader.begin().get(&Get::new(&table(), key(1, 1))).unwrap(), None);
                clock.pass(200_001);
                reader.sweep().unwrap();
            }
            Fate::Made
        });
        // Its own clock stands still, as that of a machine that was stopped does.
        let (slow_time, atomicity) = (Time::default(), Atomicity::Record);
        slow_time.pass(1_000);
        let slow = open(Arc::new(Tap { inner: storage, atomicity, hook }), &slow_time, options());
        let mut txn = slow.begin();
        [1, 2].into_iter().for_each(|p| txn.put(&table(), key(p, 1), x(1)).unwrap());
        let id = txn.id().to_owned();
        let done = txn.commit();
        assert!(matches!(&done, Err(Error::Conflict { .. })), "held up at {held_at}: {done:?}");
        assert_eq!(rows(&whole), []);
        // It has seen it, so that the record may go.
        assert_eq!(records(&whole), [(id, 4)]);
        time.pass(200_001);
        whole.sweep().unwrap();
        assert_eq!((records(&whole), rows(&whole)), (vec![], vec![]));
    }
}

/// Failure: a transaction looked at its age when its commit began, and never again: prepared for longer than traces of
/// deleted rows stay, it committed on reads that could not be validated any more.
#[test]
fn a_transaction_that_became_too_old_while_it_was_prepared_is_refused() {
    let storage = memory();
    let time = Time::default();
    time.pass(1_000);
    let whole = open(Arc::new(Tap::new(Arc::clone(&storage), Atomicity::Record)), &time, Options::default());
    make_table(&whole);
    let (clock, writes) = (time.clone(), AtomicI64::new(0));
    let hook: Hook = Box::new(move |write| {
        if write && writes.fetch_add(1, Ordering::SeqCst) == 1 {
            clock.pass(600_001);
        }
        Fate::Made
    });
    let slow = open(Arc::new(Tap { inner: storage, atomicity: Atomicity::Record, hook }), &time, Options::default());
    let mut txn = slow.begin();
    [1, 2].into_iter().for_each(|p| txn.put(&table(), key(p, 1), x(1)).unwrap());
    let done = txn.commit();
    assert!(matches!(&done, Err(Error::Expired { age_ms: 600_001, limit_ms: 600_000 })), "{done:?}");
    assert_eq!(rows(&whole), []);
    assert_eq!(records(&whole).iter().map(|(_, state)| *state).collect::<Vec<_>>(), [4]);
}

/// Failure: asked for the outcome of a transaction whose committed record had been swept, the coordinator put an
/// aborted
/// one and said "not committed".
#[test]
fn the_outcome_of_a_commit_that_was_forgotten_is_unknown() {
    for forgotten in [false, true] {
        let time = Time::default();
        time.pass(1_000);
        let whole = open(Arc::new(Tap::new(memory(), Atomicity::Record)), &time, Options::default());
        make_table(&whole);
        let mut txn = whole.begin();
        [1, 2].into_iter().for_each(|p| txn.put(&table(), key(p, 1), x(1)).unwrap());
        let id = txn.id().to_owned();
        txn.commit().unwrap();
        assert!(whole.outcome(&id).unwrap());
        time.pass(if forgotten { 1_200_001 } else { 1_199_999 });
        whole.sweep().unwrap();
        // Asking changes nothing for those who ask later.
        for _ in 0..2 {
            match (forgotten, whole.outcome(&id)) {
                (false, Ok(true)) => {}
                (true, Err(Error::Unknown { transaction, asked_of_coordinator: false, .. })) => {
                    assert_eq!(transaction, id)
                }
                (_, other) => panic!("{forgotten}: {other:?}"),
            }
        }
        // Of one that began later nothing can have been forgotten.
        let undecided = whole.begin().id().to_owned();
        assert!(!whole.outcome(&undecided).unwrap());
    }
}

/// Failure: who meets a prepared row takes it back, though its transaction was committed and only its rows have not
/// gone forward.
#[test]
fn rows_of_a_committed_transaction_go_forward_by_whoever_comes() {
    forward_by_others(memory);
}

#[test]
#[ignore = "needs a node: scripts/cassandra run"]
fn rows_of_a_committed_transaction_go_forward_by_whoever_comes_on_cassandra() {
    forward_by_others(support::cassandra::fresh);
}

fn forward_by_others(fresh: fn() -> Arc<dyn MapStorage>) {
    for deleted in [false, true] {
        let storage = fresh();
        let time = Time::default();
        time.pass(1_000);
        let whole = open(Arc::new(Tap::new(Arc::clone(&storage), Atomicity::Record)), &time, Options::default());
        make_table(&whole);
        let mut txn = whole.begin();
        [1, 2].into_iter().for_each(|p| txn.put(&table(), key(p, 1), x(1)).unwrap());
        txn.commit().unwrap();
        let writes = AtomicI64::new(0);
        let hook: Hook = Box::new(move |write| {
            let dead = write && writes.fetch_add(1, Ordering::SeqCst) > 2;
            if dead { Fate::Refused(unknown()) } else { Fate::Made }
        });
        let dies = open(
            Arc::new(Tap { inner: Arc::clone(&storage), atomicity: Atomicity::Record, hook }),
            &time,
            Options::default(),
        );
        let mut txn = dies.begin();
        for p in [1, 2] {
            if deleted {
                txn.delete(&table(), key(p, 1)).unwrap();
            } else {
                txn.put(&table(), key(p, 1), x(2)).unwrap();
            }
        }
        txn.commit().unwrap();
        let states = || {
            let stored = storage.scan(&Scan::new(&table(), Over::All)).unwrap().records;
            stored.iter().map(|row| row.value("tx_state").cloned()).collect::<Vec<_>>()
        };
        let prepared = Some(Value::Int(if deleted { 2 } else { 1 }));
        assert_eq!(states(), [prepared.clone(), prepared], "its client died");
        let expected: &[(i32, i32, i64)] = if deleted { &[] } else { &[(1, 1, 2), (2, 1, 2)] };
        assert_eq!(rows(&whole), expected);
        let settled = Some(Value::Int(if deleted { 5 } else { 3 }));
        assert_eq!(states(), [settled.clone(), settled]);
    }
}
