//! Concurrent clients that die, are told nothing, and take each other for dead: their histories are checked.
//!
//! - lists to which numbers are appended: no cycle of what overwrote, read and was overwritten (`checker`)
//! - accounts between which money is moved, closed when empty and opened again: it neither comes nor goes
//! - one row that is marked, found by an index: if one is found it is the one, and there is one in the end
//!
//! Those on Cassandra need `scripts/cassandra run cargo test -p esker-transaction -- --ignored`.
//! `ESKER_TRANSACTION_SEEDS` says how many seeds each is run with, `ESKER_TRANSACTION_SEED` which single one.

#![allow(clippy::unwrap_used, reason = "a test that fails")]

mod checker;
mod loads;
mod support;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use checker::{Anomaly, Done, Outcome};
use esker_map::{Atomicity, Filter, MapStorage, Over, Scan, Value};
use esker_transaction::{Error, Isolation, Options, Transaction, Transactions};
use loads::*;
use support::turns::{Client, Faults, Turns, run};
use support::*;

fn seeds(default: Range<u64>) -> Range<u64> {
    let number = |name: &str| std::env::var(name).ok().map(|value| value.parse::<u64>().expect(name));
    match number("ESKER_TRANSACTION_SEED") {
        Some(seed) => seed..seed + 1,
        None => number("ESKER_TRANSACTION_SEEDS").map_or(default, |count| 0..count),
    }
}

/// One run of clients over a fresh storage.
struct World {
    storage: Arc<dyn MapStorage>,
    atomicity: Atomicity,
    isolation: Isolation,
    time: Time,
    place: String,
    /// In calls of all clients: a commit takes about ten of its own, so that with a short one many are taken for dead
    /// that are not.
    expire_ms: u64,
    /// Transactions of each client.
    each: u64,
}

impl World {
    fn options(&self) -> Options {
        Options { isolation: self.isolation, expire_ms: self.expire_ms, ..Options::default() }
    }

    fn new(at: &Where, atomicity: Atomicity, isolation: Isolation, seed: u64) -> Self {
        let time = Time::default();
        time.pass(1_000);
        let (storage, each) = ((at.storage)(), at.each);
        let place = format!("{atomicity:?} {isolation:?}, ESKER_TRANSACTION_SEED={seed}");
        let expire_ms = [60, 15, 30, 120][seed as usize % 4];
        let world = Self { storage, atomicity, isolation, time, place, expire_ms, each };
        make_table(&world.whole());
        world
    }

    /// Transactions that nothing befalls.
    fn whole(&self) -> Transactions {
        open(Arc::new(Tap::new(Arc::clone(&self.storage), self.atomicity)), &self.time, self.options())
    }

    fn clients(&self, count: usize, seed: u64) -> Vec<Client> {
        let turns = Turns::new(count, seed, &self.time);
        let client = |number| Client {
            number,
            rng: fastrand::Rng::with_seed(seed ^ (number as u64 + 1) << 32),
            turns: Arc::clone(&turns),
            storage: Arc::clone(&self.storage),
            atomicity: self.atomicity,
            faults: if seed.is_multiple_of(4) {
                Faults { dies: 0, unknown: 0 }
            } else {
                Faults { dies: 60, unknown: 40 }
            },
            options: self.options(),
        };
        (0..count).map(client).collect()
    }

    /// After the dead are taken for dead.
    fn end(&self) -> Transactions {
        self.time.pass(1_000);
        self.whole()
    }
}

/// Where histories are made.
struct Where {
    storage: fn() -> Arc<dyn MapStorage>,
    atomicities: &'static [Atomicity],
    seeds: Range<u64>,
    /// Transactions of each client.
    each: u64,
}

const HERE: [Where; 2] = [
    Where { storage: memory, atomicities: &ATOMICITIES, seeds: 0..8, each: 30 },
    Where { storage: engine, atomicities: &ATOMICITIES, seeds: 0..2, each: 30 },
];
/// Short, as a call takes milliseconds; a seed with faults. At full speed, with the node killed: `restarts`.
const CASSANDRA: [Where; 1] =
    [Where { storage: support::cassandra::fresh, atomicities: &[Atomicity::Partition], seeds: 1..2, each: 12 }];

fn everywhere(places: &[Where], test: impl Fn(World, u64)) {
    for place in places {
        for atomicity in place.atomicities {
            for isolation in [Isolation::Serializable, Isolation::Snapshot] {
                for seed in seeds(place.seeds.clone()) {
                    test(World::new(place, *atomicity, isolation, seed), seed);
                }
            }
        }
    }
}

/// A history of appends and reads, the last a read of everything.
fn lists(world: &World, seed: u64, clients: usize) -> Vec<Done> {
    let histories = run(world.clients(clients, seed), |mut client| {
        let mut history = Vec::new();
        let mut life = client.live();
        let mut next = client.number as u64 * 1_000_000;
        for _ in 0..world.each {
            let began = client.turns.step();
            let mut txn = life.transactions.begin();
            let done = append_and_read(&mut client.rng, &mut txn, &mut next);
            if let Ok(ops) = done {
                let outcome = outcome(&life, &txn.commit());
                history.push(Done { ops, outcome, began, ended: client.turns.step() });
            }
            if life.dead.load(Ordering::SeqCst) {
                life = client.live();
            }
        }
        history
    });
    let mut history: Vec<Done> = histories.into_iter().flatten().collect();
    let mut txn = world.end().begin();
    let ops = scan_lists(&mut txn, Over::All, 0..LISTS).unwrap();
    txn.commit().unwrap();
    history.push(Done { ops, outcome: Outcome::Committed, began: u64::MAX, ended: u64::MAX });
    history
}

#[test]
fn histories_of_lists_have_no_anomaly_but_write_skew_in_snapshots() {
    check_lists(&HERE);
}

#[test]
#[ignore = "needs a node: scripts/cassandra run"]
fn histories_of_lists_have_no_anomaly_but_write_skew_in_snapshots_on_cassandra() {
    check_lists(&CASSANDRA);
}

fn check_lists(places: &[Where]) {
    let counts = std::cell::Cell::new([0u32; 4]);
    everywhere(places, |world, seed| {
        let history = lists(&world, seed, 5);
        let mut found = checker::check(&history);
        let mut count = counts.get();
        if world.isolation == Isolation::Snapshot {
            found.retain(|anomaly| {
                let allowed = matches!(anomaly, Anomaly::G2(_) | Anomaly::Realtime(_));
                count[3] += u32::from(allowed);
                !allowed
            });
        }
        for done in &history {
            count[done.outcome as usize] += 1;
        }
        counts.set(count);
        if !found.is_empty() {
            for (number, done) in history.iter().enumerate() {
                println!("{number}: {done:?}");
            }
            panic!("{}: {found:?}", world.place);
        }
    });
    let [committed, refused, unknown, skews] = counts.get();
    println!(
        "{committed} committed, {refused} refused, {unknown} unknown; {skews} histories of snapshots with write skew"
    );
    assert!(committed > refused / 4, "{committed} committed, {refused} refused");
}

#[test]
fn money_neither_comes_nor_goes() {
    check_money(&HERE);
}

#[test]
#[ignore = "needs a node: scripts/cassandra run"]
fn money_neither_comes_nor_goes_on_cassandra() {
    check_money(&CASSANDRA);
}

fn check_money(places: &[Where]) {
    let audits = std::cell::Cell::new(0);
    everywhere(places, |world, seed| {
        let mut opening = world.whole().begin();
        set_balance(&mut opening, 0, MONEY).unwrap();
        opening.commit().unwrap();
        let seen = run(world.clients(5, seed), |mut client| {
            let mut audits = 0;
            let mut life = client.live();
            for _ in 0..world.each {
                let mut txn = life.transactions.begin();
                let done = transfer_or_audit(&mut client.rng, &mut txn);
                if let Ok(sum) = done
                    && txn.commit().is_ok()
                    && let Some(sum) = sum
                {
                    audits += 1;
                    assert_eq!(sum, MONEY, "{}", world.place);
                }
                if life.dead.load(Ordering::SeqCst) {
                    life = client.live();
                }
            }
            audits
        });
        audits.set(audits.get() + seen.iter().sum::<i32>());
        let end = world.end();
        let mut txn = end.begin();
        assert_eq!(all_money(&mut txn).unwrap(), MONEY, "{}", world.place);
        txn.commit().unwrap();
        // Settled is settled, also after all traces have gone.
        world.time.pass(2_000_000);
        end.sweep().unwrap();
        assert_eq!(all_money(&mut end.begin()).unwrap(), MONEY, "{}", world.place);
    });
    println!("{} audits", audits.get());
    assert!(audits.get() > 0);
}

#[test]
fn a_mark_that_is_found_by_an_index_is_the_only_one() {
    check_mark(&HERE);
}

#[test]
#[ignore = "needs a node: scripts/cassandra run"]
fn a_mark_that_is_found_by_an_index_is_the_only_one_on_cassandra() {
    check_mark(&CASSANDRA);
}

fn check_mark(places: &[Where]) {
    let marked = |txn: &mut Transaction| txn.look_up(&table(), "x", &1i64.into());
    let moves = std::cell::Cell::new(0);
    everywhere(places, |world, seed| {
        let mut opening = world.whole().begin();
        (0..ACCOUNTS).for_each(|c| opening.put(&table(), key(c % 2, c), x(i64::from(c == 0))).unwrap());
        opening.commit().unwrap();
        let seen = run(world.clients(4, seed), |mut client| {
            let mut moves = 0;
            let mut life = client.live();
            for _ in 0..world.each {
                let mut txn = life.transactions.begin();
                let to = client.rng.i32(0..ACCOUNTS);
                let done = (|| {
                    let rows = marked(&mut txn)?;
                    for row in &rows {
                        let Some(Value::Int(c)) = row.value("c") else { panic!("{row:?}") };
                        txn.put(&table(), key(c % 2, *c), x(0))?;
                    }
                    if !rows.is_empty() {
                        txn.put(&table(), key(to % 2, to), x(1))?;
                    }
                    Ok::<_, Error>(rows.len())
                })();
                if let Ok(found) = done
                    && txn.commit().is_ok()
                {
                    moves += found;
                    assert!(found <= 1, "{found} found: {}", world.place);
                }
                if life.dead.load(Ordering::SeqCst) {
                    life = client.live();
                }
            }
            moves
        });
        moves.set(moves.get() + seen.iter().sum::<usize>());
        let one = Filter::Compare("x".into(), esker_map::Compare::Equal, 1i64.into());
        let all = Scan { filter: one, ..Scan::new(&table(), Over::All) };
        let mut txn = world.end().begin();
        assert_eq!(txn.scan(&all).unwrap().len(), 1, "{}", world.place);
        assert_eq!(marked(&mut txn).unwrap().len(), 1, "{}", world.place);
        txn.commit().unwrap();
    });
    println!("{} moves", moves.get());
    assert!(moves.get() > 0);
}

#[test]
fn the_same_seed_gives_the_same_history() {
    let history = || {
        let world = World::new(&HERE[0], Atomicity::Record, Isolation::Serializable, 3);
        format!("{:?}", lists(&world, 3, 4))
    };
    assert_eq!(history(), history());
}
