//! Concurrent clients that die, are told nothing, and take each other for dead: their histories are checked.
//!
//! - lists to which numbers are appended: no cycle of what overwrote, read and was overwritten (`checker`)
//! - accounts between which money is moved, closed when empty and opened again: it neither comes nor goes
//! - one row that is marked, found by an index: if one is found it is the one, and there is one in the end
//!
//! `ESKER_TRANSACTION_SEEDS` says how many seeds each is run with, `ESKER_TRANSACTION_SEED` which single one.

#![allow(clippy::unwrap_used, reason = "a test that fails")]

mod checker;
mod support;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use checker::{Anomaly, Done, Op, Outcome};
use esker_map::{Atomicity, Filter, Get, Key, MapStorage, Over, Record, Scan, Value};
use esker_transaction::{Error, Isolation, Options, Transaction, Transactions};
use support::turns::{Client, Faults, Life, Turns, run};
use support::*;

fn seeds(default: u64) -> Range<u64> {
    let number = |name: &str| std::env::var(name).ok().map(|value| value.parse::<u64>().expect(name));
    match number("ESKER_TRANSACTION_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("ESKER_TRANSACTION_SEEDS").unwrap_or(default),
    }
}

/// One run of clients over a fresh storage.
struct World {
    storage: Arc<dyn MapStorage>,
    atomicity: Atomicity,
    isolation: Isolation,
    time: Time,
    place: String,
    /// In calls of all clients: a commit takes about ten of its own, so that with a short one many are taken for dead that are not.
    expire_ms: u64,
}

impl World {
    fn options(&self) -> Options {
        Options { isolation: self.isolation, expire_ms: self.expire_ms, ..Options::default() }
    }

    fn new(storage: fn() -> Arc<dyn MapStorage>, atomicity: Atomicity, isolation: Isolation, seed: u64) -> Self {
        let time = Time::default();
        time.pass(1_000);
        let storage = storage();
        let place = format!("{atomicity:?} {isolation:?}, ESKER_TRANSACTION_SEED={seed}");
        let expire_ms = [60, 15, 30, 120][seed as usize % 4];
        let world = Self { storage, atomicity, isolation, time, place, expire_ms };
        world.whole().create_table(&table(), &schema()).unwrap();
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

fn everywhere(memory_seeds: u64, engine_seeds: u64, test: impl Fn(World, u64)) {
    for (storage, default) in [(memory as fn() -> Arc<dyn MapStorage>, memory_seeds), (engine, engine_seeds)] {
        for atomicity in ATOMICITIES {
            for isolation in [Isolation::Serializable, Isolation::Snapshot] {
                for seed in seeds(default) {
                    test(World::new(storage, atomicity, isolation, seed), seed);
                }
            }
        }
    }
}

/// What a client was told of a commit; a dead one was told nothing.
fn outcome(life: &Life, done: &Result<(), Error>) -> Outcome {
    match done {
        Ok(()) => Outcome::Committed,
        _ if life.dead.load(Ordering::SeqCst) => Outcome::Unknown,
        Err(Error::Unknown { .. }) => Outcome::Unknown,
        Err(_) => Outcome::Refused,
    }
}

const LISTS: u64 = 6;

fn list_key(list: u64) -> Key {
    key((list % 2) as i32, list as i32)
}

fn numbers(record: &Record) -> Vec<u64> {
    match record.value("y") {
        Some(Value::Text(text)) => text.split(' ').map(|number| number.parse().unwrap()).collect(),
        other => panic!("y is {other:?}"),
    }
}

fn read_list(txn: &mut Transaction, list: u64) -> Result<Vec<u64>, Error> {
    Ok(txn.get(&Get::new(&table(), list_key(list)))?.map_or(Vec::new(), |record| numbers(&record)))
}

/// All lists of a scan, empty ones too.
fn scan_lists(txn: &mut Transaction, over: Over, lists: impl Iterator<Item = u64>) -> Result<Vec<Op>, Error> {
    let mut found = BTreeMap::new();
    for record in txn.scan(&Scan::new(&table(), over))? {
        let Some(Value::Int(list)) = record.value("c") else { panic!("{record:?}") };
        found.insert(*list as u64, numbers(&record));
    }
    Ok(lists.map(|list| Op::Read(list, found.get(&list).cloned().unwrap_or_default())).collect())
}

fn append_and_read(rng: &mut fastrand::Rng, txn: &mut Transaction, next: &mut u64) -> Result<Vec<Op>, Error> {
    let mut ops = Vec::new();
    for _ in 0..rng.usize(1..=3) {
        let list = rng.u64(..LISTS);
        match rng.u8(..8) {
            0..3 => ops.push(Op::Read(list, read_list(txn, list)?)),
            3..6 => {
                let mut values = read_list(txn, list)?;
                ops.push(Op::Read(list, values.clone()));
                *next += 1;
                values.push(*next);
                ops.push(Op::Append(list, *next));
                let text = values.iter().map(u64::to_string).collect::<Vec<_>>().join(" ");
                txn.put(&table(), list_key(list), vec![("y".into(), text.into())])?;
            }
            6 => {
                let partition = list % 2;
                let over =
                    Over::Partition { key: vec![("p".into(), (partition as i32).into())], low: None, high: None };
                ops.extend(scan_lists(txn, over, (0..LISTS).filter(|list| list % 2 == partition))?);
            }
            _ => ops.extend(scan_lists(txn, Over::All, 0..LISTS)?),
        }
    }
    Ok(ops)
}

/// A history of appends and reads, the last a read of everything.
fn lists(world: &World, seed: u64, clients: usize, each: u64) -> Vec<Done> {
    let histories = run(world.clients(clients, seed), |mut client| {
        let mut history = Vec::new();
        let mut life = client.live();
        let mut next = client.number as u64 * 1_000_000;
        for _ in 0..each {
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
    let counts = std::cell::Cell::new([0u32; 4]);
    everywhere(8, 2, |world, seed| {
        let history = lists(&world, seed, 5, 30);
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

const ACCOUNTS: i32 = 6;
const MONEY: i64 = 600;

fn balance(txn: &mut Transaction, account: i32) -> Result<i64, Error> {
    Ok(txn.get(&Get::new(&table(), key(account % 2, account)))?.map_or(0, |record| x_of(&record)))
}

/// Accounts without money are closed.
fn set_balance(txn: &mut Transaction, account: i32, balance: i64) -> Result<(), Error> {
    let key = key(account % 2, account);
    if balance == 0 { txn.delete(&table(), key) } else { txn.put(&table(), key, x(balance)) }
}

fn all_money(txn: &mut Transaction) -> Result<i64, Error> {
    Ok(txn.scan(&Scan::new(&table(), Over::All))?.iter().map(x_of).sum())
}

#[test]
fn money_neither_comes_nor_goes() {
    let audits = std::cell::Cell::new(0);
    everywhere(8, 2, |world, seed| {
        let mut opening = world.whole().begin();
        set_balance(&mut opening, 0, MONEY).unwrap();
        opening.commit().unwrap();
        let seen = run(world.clients(5, seed), |mut client| {
            let mut audits = 0;
            let mut life = client.live();
            for _ in 0..30 {
                let mut txn = life.transactions.begin();
                let (from, to) = (client.rng.i32(0..ACCOUNTS), client.rng.i32(0..ACCOUNTS));
                let by_key = client.rng.bool();
                let done = if from == to {
                    let sum = if by_key {
                        (0..ACCOUNTS).map(|account| balance(&mut txn, account)).sum()
                    } else {
                        all_money(&mut txn)
                    };
                    sum.map(Some)
                } else {
                    (|| {
                        let (has, had) = (balance(&mut txn, from)?, balance(&mut txn, to)?);
                        // All of it often, so that accounts come and go.
                        let amount = if by_key { has } else { client.rng.i64(0..=has) };
                        set_balance(&mut txn, from, has - amount)?;
                        set_balance(&mut txn, to, had + amount)?;
                        Ok(None)
                    })()
                };
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
    let marked = |txn: &mut Transaction| txn.look_up(&table(), "x", &1i64.into());
    let moves = std::cell::Cell::new(0);
    everywhere(8, 2, |world, seed| {
        let mut opening = world.whole().begin();
        (0..ACCOUNTS).for_each(|c| opening.put(&table(), key(c % 2, c), x(i64::from(c == 0))).unwrap());
        opening.commit().unwrap();
        let seen = run(world.clients(4, seed), |mut client| {
            let mut moves = 0;
            let mut life = client.live();
            for _ in 0..30 {
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
        let world = World::new(memory, Atomicity::Record, Isolation::Serializable, 3);
        format!("{:?}", lists(&world, 3, 4, 20))
    };
    assert_eq!(history(), history());
}
