//! Clients at full speed, not in turns, on a real Cassandra that is killed and started again under them, and then
//! paused: no history has an anomaly.
//!
//! `scripts/cassandra run cargo test -p esker-transaction --test restarts -- --ignored`: the node's folder is in
//! `ESKER_CASSANDRA_DIR`.
//!
//! Two loads at once, each in keyspaces of its own: lists to which numbers are appended, and accounts. Clients die at
//! calls of their choice besides, and begin anew with new connections.

#![allow(clippy::unwrap_used, reason = "a test that fails")]

mod checker;
mod loads;
mod support;

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use checker::{Done, Outcome};
use esker_cassandra::Place;
use esker_map::{Error as MapError, MapStorage, Over};
use esker_transaction::{Error, Isolation, Options, Transaction, Transactions};
use loads::*;
use parking_lot::Mutex;
use support::turns::Life;
use support::*;

const CLIENTS: u64 = 4;
/// After this a transaction is taken for dead: a pause of the node is longer.
const EXPIRE_MS: u64 = 1_000;
/// How long a client waits for an answer.
const TIMEOUT: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_secs(3);
/// Transactions that each load commits before the node is killed, after it is back, and after it was paused.
const UNDISTURBED: u64 = 30;
/// They take no longer.
const PATIENCE: Duration = Duration::from_secs(120);

/// The node that `scripts/cassandra run` has started.
struct Node {
    folder: PathBuf,
}

impl Node {
    fn script(&self, what: &str) {
        let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../scripts/cassandra");
        assert!(Command::new(script).arg(what).arg(&self.folder).status().unwrap().success(), "{what}");
    }

    fn signal(&self, name: &str) {
        let pid = std::fs::read_to_string(self.folder.join("pid")).unwrap();
        assert!(Command::new("kill").args(["-s", name, pid.trim()]).status().unwrap().success(), "{name}");
    }
}

/// What all clients of a load share.
struct World {
    place: Place,
    seed: u64,
    began: Instant,
    /// Goes on with every beginning and every end of a transaction.
    ticks: AtomicU64,
    committed: AtomicU64,
    stop: AtomicBool,
}

impl World {
    fn new(seed: u64) -> Self {
        let place = support::cassandra::place();
        let storage = support::cassandra::connect(&place, Duration::from_secs(20)).unwrap();
        storage.create_namespace("ns").unwrap();
        let (ticks, committed, stop) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
        let world = Self { place, seed, began: Instant::now(), ticks, committed, stop };
        world.open(storage, 0).unwrap().create_table(&table(), &schema()).unwrap();
        world
    }

    fn open(&self, storage: Arc<dyn MapStorage>, later_ms: u64) -> Result<Transactions, Error> {
        let began = self.began;
        let clock = Arc::new(move || 1_000 + later_ms + began.elapsed().as_millis() as u64);
        let options = Options { isolation: Isolation::Serializable, expire_ms: EXPIRE_MS, ..Options::default() };
        open_by(storage, clock, options)
    }

    fn tick(&self) -> u64 {
        self.ticks.fetch_add(1, Ordering::SeqCst)
    }

    fn commit(&self, txn: Transaction) -> Result<(), Error> {
        txn.commit().inspect(|()| {
            self.committed.fetch_add(1, Ordering::SeqCst);
        })
    }

    /// Waits until so many more are committed.
    fn go_on(&self) {
        let (until, began) = (self.committed.load(Ordering::SeqCst) + UNDISTURBED, Instant::now());
        while self.committed.load(Ordering::SeqCst) < until {
            assert!(began.elapsed() < PATIENCE, "too little is done to tell");
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }

    /// A client with connections of its own, as soon as there is a server to connect to. It dies at one call in 300.
    fn live(&self, rng: &mut fastrand::Rng) -> Option<Life> {
        while !self.stopped() {
            let Ok(inner) = support::cassandra::connect(&self.place, TIMEOUT) else {
                thread::sleep(Duration::from_millis(100));
                continue;
            };
            let (dead, alive) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
            let (died, lives, dice) = (Arc::clone(&dead), Arc::clone(&alive), Mutex::new(rng.fork()));
            let hook: Hook = Box::new(move |_| {
                let error = || MapError::Unknown { cause: "the client is dead".into() };
                if died.load(Ordering::SeqCst) {
                    return Fate::Refused(error());
                }
                let mut dice = dice.lock();
                if !lives.load(Ordering::SeqCst) || dice.u32(..300) > 0 {
                    return Fate::Made;
                }
                died.store(true, Ordering::SeqCst);
                if dice.bool() { Fate::Refused(error()) } else { Fate::Lost(error()) }
            });
            let atomicity = inner.capability().atomicity;
            if let Ok(transactions) = self.open(Arc::new(Tap { inner, atomicity, hook }), 0) {
                alive.store(true, Ordering::SeqCst);
                return Some(Life { transactions, dead });
            }
        }
        None
    }

    /// Clients until they are stopped, and what they return.
    fn run<'scope, T: Send + 'scope>(
        &'scope self,
        scope: &'scope thread::Scope<'scope, '_>,
        work: impl Fn(u64, &mut fastrand::Rng, &Life) -> Option<T> + Copy + Send + 'scope,
    ) -> Vec<thread::ScopedJoinHandle<'scope, Vec<T>>> {
        let client = |number| {
            scope.spawn(move || {
                let mut rng = fastrand::Rng::with_seed(self.seed ^ (number + 1) << 32);
                let mut all = Vec::new();
                while let Some(life) = self.live(&mut rng) {
                    while !self.stopped() && !life.dead.load(Ordering::SeqCst) {
                        all.extend(work(number, &mut rng, &life));
                    }
                }
                all
            })
        };
        (0..CLIENTS).map(client).collect()
    }

    /// After the dead are taken for dead: a client that nothing befalls.
    fn end(&self) -> Transactions {
        thread::sleep(Duration::from_millis(EXPIRE_MS));
        self.open(support::cassandra::connect(&self.place, Duration::from_secs(20)).unwrap(), 0).unwrap()
    }
}

/// Stops clients also if the node's part fails.
struct Stop<'a>([&'a World; 2]);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.iter().for_each(|world| world.stop.store(true, Ordering::SeqCst));
    }
}

#[test]
#[ignore = "needs a node: scripts/cassandra run"]
fn a_node_that_is_killed_or_paused_under_load_shows_no_anomaly() {
    let folder = std::env::var("ESKER_CASSANDRA_DIR").expect("the node's folder: scripts/cassandra run …").into();
    let (node, seed) = (Node { folder }, u64::from(std::process::id()));
    println!("seed {seed}");
    let (lists, bank) = (World::new(seed), World::new(seed + 1));
    let mut opening = bank.end().begin();
    set_balance(&mut opening, 0, MONEY).unwrap();
    opening.commit().unwrap();

    let next = AtomicU64::new(0);
    let append = |_, rng: &mut fastrand::Rng, life: &Life| {
        let began = lists.tick();
        let mut txn = life.transactions.begin();
        let mut number = next.fetch_add(10, Ordering::SeqCst);
        let ops = append_and_read(rng, &mut txn, &mut number).ok()?;
        let outcome = outcome(life, &lists.commit(txn));
        Some(Done { ops, outcome, began, ended: lists.tick() })
    };
    let transfer = |_, rng: &mut fastrand::Rng, life: &Life| {
        let mut txn = life.transactions.begin();
        let sum = transfer_or_audit(rng, &mut txn).ok()?;
        bank.commit(txn).ok()?;
        Some(sum)
    };
    let (mut history, moves, back) = thread::scope(|scope| {
        let (appending, moving) = (lists.run(scope, append), bank.run(scope, transfer));
        let stop = Stop([&lists, &bank]);
        [&lists, &bank].into_iter().for_each(World::go_on);
        node.script("kill");
        node.script("up");
        let back = lists.tick();
        [&lists, &bank].into_iter().for_each(World::go_on);
        node.signal("STOP");
        thread::sleep(PAUSE);
        node.signal("CONT");
        [&lists, &bank].into_iter().for_each(World::go_on);
        drop(stop);
        let history: Vec<Done> = appending.into_iter().flat_map(|client| client.join().unwrap()).collect();
        let moves: Vec<Option<i64>> = moving.into_iter().flat_map(|client| client.join().unwrap()).collect();
        (history, moves, back)
    });

    let count = |outcome| history.iter().filter(|done| done.outcome == outcome).count();
    let committed = count(Outcome::Committed);
    let after = history.iter().filter(|done| done.outcome == Outcome::Committed && done.began > back).count();
    println!(
        "lists: {committed} committed, {after} of them after the restart, {} refused, {} unknown; accounts: {} committed, {} audits",
        count(Outcome::Refused),
        count(Outcome::Unknown),
        moves.len(),
        moves.iter().flatten().count()
    );
    let mut txn = lists.end().begin();
    let ops = scan_lists(&mut txn, Over::All, 0..LISTS).unwrap();
    txn.commit().unwrap();
    history.push(Done { ops, outcome: Outcome::Committed, began: u64::MAX, ended: u64::MAX });
    let found = checker::check(&history);
    if !found.is_empty() {
        history.iter().enumerate().for_each(|(number, done)| println!("{number}: {done:?}"));
        panic!("{found:?}");
    }
    for sum in moves.into_iter().flatten() {
        assert_eq!(sum, MONEY);
    }
    assert_eq!(all_money(&mut bank.end().begin()).unwrap(), MONEY);
    // After all that dead transactions left was settled, and its traces have gone.
    let storage = support::cassandra::connect(&bank.place, Duration::from_secs(20)).unwrap();
    let late = bank.open(storage, 2_000_000).unwrap();
    late.sweep().unwrap();
    assert_eq!(all_money(&mut late.begin()).unwrap(), MONEY);
}
