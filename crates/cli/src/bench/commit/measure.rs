//! One load on one map: clients with rows of their own, warmed up and then measured.
//!
//! table → rows → warm-up (a third of the time) → counters → measured time → counters → every row looked at
//!
//! Invariants:
//! 1. Where the rate is given, a latency counts from the moment when the update was due, waiting for its client
//!    included.
//! 2. Rows are read before the measured time begins; an update is one call.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use esker::Durability;
use esker::map::{Atomicity, DataType, Error, Key, MapStorage, Mutation, Schema, TableName};

use super::cell::Load;
use crate::bench::objects::outcome::Cell;
use crate::bench::objects::threads::{self, Tally};
use crate::bench::updates::{COUNTED, Rows};
use crate::exit::Failure;

/// Rows that each client updates in turn, each in a partition of its own.
pub const OWN_ROWS: u64 = 16;
/// Bytes of text in each row, beside its key and its number.
const TEXT_BYTES: usize = 64;
/// Rows of a list while loading, where lists may go over partitions.
const LIST_ROWS: u64 = 512;
/// Threads that load rows.
const FILL_THREADS: u64 = 16;
/// The longest pause after which a client looks whether time is over.
const PAUSE_MAX: Duration = Duration::from_millis(50);

/// A map that is measured.
pub struct Subject<'a> {
    /// Its name.
    pub name: &'a str,
    /// The map.
    pub map: &'a dyn MapStorage,
    /// Its table, with rows from [`fill`].
    pub table: &'a TableName,
    /// Records appended to its log so far, where they are counted.
    pub records: &'a (dyn Fn() -> Option<u64> + Sync),
    /// Syncs so far, where they are counted.
    pub syncs: &'a (dyn Fn() -> Option<u64> + Sync),
    /// The disk whose flushes are counted: its line of /proc/diskstats.
    pub device: Option<&'a str>,
}

/// What it did.
pub struct Outcome {
    /// Figures.
    pub cell: Cell,
    /// Records appended to its log.
    pub records: Option<u64>,
    /// Updates of which it did not say what became of them, or that it could not do; they are not in the figures.
    pub failed: u64,
}

/// A load for some time.
pub(super) struct Run {
    /// The load.
    pub load: Load,
    /// Clients where the rate is given.
    pub rate_clients: u64,
    /// The measured time.
    pub time: Duration,
    /// Seed of the moments at which updates are due.
    pub seed: u64,
    /// Its name in results.
    pub phase: String,
}

fn key(row: u64) -> Key {
    Key::of("p", row as i64)
}

/// Makes the table with `rows` rows, each a partition.
pub fn fill(map: &dyn MapStorage, table: &TableName, rows: u64) -> Result<(), Failure> {
    let schema = Schema::new()
        .column("p", DataType::BigInt)
        .column(COUNTED, DataType::BigInt)
        .column("v", DataType::Text)
        .partition("p");
    map.create_namespace(&table.namespace)?;
    map.create_table(table, &schema)?;
    let text = "v".repeat(TEXT_BYTES);
    let list = if map.capability().atomicity == Atomicity::Storage { LIST_ROWS } else { 1 };
    let next = AtomicU64::new(0);
    let put = || -> Result<(), Failure> {
        loop {
            let first = next.fetch_add(list, Ordering::Relaxed);
            if first >= rows {
                return Ok(());
            }
            let row = |row| {
                let values = vec![(COUNTED.into(), 0i64.into()), ("v".into(), text.as_str().into())];
                Mutation::put(table, key(row), values)
            };
            let rows: Vec<Mutation> = (first..(first + list).min(rows)).map(row).collect();
            map.mutate(&rows, Durability::Applied)?.wait()?;
        }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..FILL_THREADS).map(|_| scope.spawn(put)).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("a bench thread does not panic"))
    })
}

/// Removes what [`fill`] made.
pub fn clear(map: &dyn MapStorage, table: &TableName) -> Result<(), Failure> {
    map.drop_table(table)?;
    Ok(map.drop_namespace(&table.namespace)?)
}

impl Run {
    fn clients(&self) -> u64 {
        match self.load {
            Load::Closed(clients) => clients,
            Load::Rate(_) => self.rate_clients,
        }
    }

    /// Puts the load on a map.
    pub fn on(&self, subject: &Subject<'_>) -> Result<Outcome, Failure> {
        let clients = self.clients();
        let rows = |client: u64| {
            Mutex::new(Rows::new(subject.map, subject.table, OWN_ROWS, move |row| key(client * OWN_ROWS + row)))
        };
        let rows: Vec<_> = (0..clients).map(rows).collect();
        let failed = AtomicU64::new(0);
        let for_time = |time: Duration, seed: u64| {
            let load = threads::Load {
                syncs: subject.syncs,
                backend: subject.name,
                phase: self.phase.clone(),
                object_bytes: 0,
                in_flight: clients,
                threads: clients,
                time,
                device: subject.device,
            };
            load.run(|client, tally| {
                let mut rows = rows[client as usize].lock().expect("a client does not panic");
                let seed = seed.wrapping_mul(1_000_003).wrapping_add(client);
                self.client(&mut rows, tally, fastrand::Rng::with_seed(seed), &failed)
            })
        };
        for_time(self.time / 3, !self.seed)?;
        failed.store(0, Ordering::Relaxed);
        let before = (subject.records)();
        let cell = for_time(self.time, self.seed)?;
        let records = (subject.records)().zip(before).map(|(after, before)| after - before);
        for rows in rows {
            rows.into_inner().expect("a client does not panic").check()?;
        }
        Ok(Outcome { cell, records, failed: failed.into_inner() })
    }

    /// One client's life.
    fn client(
        &self,
        rows: &mut Rows<'_>,
        tally: &mut Tally<'_>,
        mut rng: fastrand::Rng,
        failed: &AtomicU64,
    ) -> Result<(), Failure> {
        // Where the kernel refuses, updates are late by its usual slack of 50 us.
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1_000));
        rows.all_ready()?;
        // Exponentially spread, as those of many who know nothing of each other.
        let mut pause = || match self.load {
            Load::Closed(_) => Duration::ZERO,
            Load::Rate(per_second) => {
                let mean = self.rate_clients as f64 / per_second as f64;
                Duration::from_secs_f64(-mean * (1.0 - rng.f64()).ln())
            }
        };
        let mut due = Instant::now() + pause();
        while tally.goes_on() {
            let now = Instant::now();
            let started = match self.load {
                Load::Closed(_) => now,
                Load::Rate(_) if due > now => {
                    std::thread::sleep((due - now).min(PAUSE_MAX));
                    continue;
                }
                Load::Rate(_) => due,
            };
            match rows.update() {
                Ok(()) => tally.done(started, 0),
                Err(Error::Unknown { .. } | Error::Unavailable { .. } | Error::Contended { .. }) => {
                    failed.fetch_add(1, Ordering::Relaxed);
                }
                Err(error) => return Err(error.into()),
            }
            due += pause();
        }
        Ok(())
    }
}
