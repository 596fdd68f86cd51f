//! The policies in virtual time: discrete events, the engine's own [`Gather`] for `adaptive`.
//!
//! ready → arrive → group → sync → acknowledged → think → ready
//!
//! The commit thread is modelled as it is written (`Log::next_step`): it looks when a client arrives, when a sync ends,
//! and when the time that it sleeps for is over. Putting a record in costs `handling` of one processor that all clients
//! share, so that the clients that a sync woke come back one after the other.
//!
//! Invariants:
//! 1. The same seed gives the same figures.
//! 2. Time only moves with events; nothing looks at a clock.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;
use esker_bench_figures::progress;
use esker_engine::CommitPolicy;
use esker_engine::gather::Gather;
use hdrhistogram::Histogram;

use crate::cell::{Cell, Disk, Grid};
use crate::outcome::{Figures, Outcome, Results, Source};
use crate::report;

const FULL: [&[u64]; 3] = [
    &[1, 2, 4, 8, 16, 32, 64, 128, 256],
    &[0, 200, 500, 1_000, 2_000, 5_000, 10_000],
    &[100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000],
];
const QUICK: [&[u64]; 3] = [&[1, 4, 16, 64, 256], &[0, 1_000, 10_000], &[100, 1_000, 5_000, 20_000]];
/// A run is at least so many rounds of syncing and thinking, and at least so long.
const ROUNDS: u64 = 200;
const RUN: Duration = Duration::from_millis(500);

/// Arguments of `simulate`.
#[derive(Args)]
pub struct Simulate {
    #[command(flatten)]
    grid: Grid,
    /// Processor time of one put, in microseconds
    #[arg(long, default_value_t = 3.0)]
    handling: f64,
    /// Time that the commit thread takes to wake, in microseconds
    #[arg(long, default_value_t = 0.0)]
    wake: f64,
    /// Where to write the figures
    #[arg(long)]
    json: Option<PathBuf>,
}

impl Simulate {
    /// Simulates the grid, prints the table, writes the file.
    pub fn run(&self) -> Result<()> {
        let policies = self.grid.policies();
        let cells = self.grid.cells(FULL, QUICK);
        let bar = progress(cells.len() as u64 * policies.len() as u64 * self.grid.runs);
        let mut outcomes = Vec::new();
        for cell in &cells {
            for policy in &policies {
                let mut runs = Vec::new();
                for run in 0..self.grid.runs.max(1) {
                    let rng = fastrand::Rng::with_seed(self.grid.seed + run);
                    runs.push(World::new(*cell, *policy, [self.handling, self.wake], rng).run());
                    bar.inc(1);
                }
                outcomes.push(Outcome::of(*cell, policy.to_string(), &runs));
            }
        }
        bar.finish_and_clear();
        let results = Results { source: Source::Simulated, outcomes };
        if let Some(path) = &self.json {
            results.save(path)?;
        }
        print!("{}", report::tables(&results));
        Ok(())
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A client has thought.
    Ready(usize),
    /// Its record is in the group.
    Arrive(usize),
    /// The sync is done.
    Synced,
    /// The commit thread has slept.
    Look,
}

struct Client {
    /// When it should begin, where the rate is fixed.
    due: u64,
    /// Puts left until it thinks.
    puts_left: u64,
    /// When the put in progress began.
    began: u64,
}

struct World {
    cell: Cell,
    policy: CommitPolicy,
    handling: u64,
    wake: u64,
    rng: fastrand::Rng,
    /// Only the differences to it matter.
    epoch: Instant,
    now: u64,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    numbered: u64,
    clients: Vec<Client>,
    processor_free: u64,
    queued: Vec<usize>,
    in_sync: Vec<usize>,
    syncing: bool,
    asked: u64,
    began: u64,
    first_waiter: Option<u64>,
    oldest_unsynced: Option<u64>,
    arrivals: u64,
    at_cut: u64,
    gather: Gather,
    gather_to: u64,
    warm: u64,
    syncs: u64,
    latencies: Histogram<u64>,
}

impl World {
    fn new(cell: Cell, policy: CommitPolicy, times_us: [f64; 2], rng: fastrand::Rng) -> Self {
        let [handling, wake] = times_us.map(|us| (us * 1e3) as u64);
        let clients = (0..cell.load.clients).map(|_| Client { due: 0, puts_left: cell.load.puts, began: 0 });
        Self {
            cell,
            policy,
            handling,
            wake,
            rng,
            epoch: Instant::now(),
            now: 0,
            events: BinaryHeap::new(),
            numbered: 0,
            clients: clients.collect(),
            processor_free: 0,
            queued: Vec::new(),
            in_sync: Vec::new(),
            syncing: false,
            asked: 0,
            began: 0,
            first_waiter: None,
            oldest_unsynced: None,
            arrivals: 0,
            at_cut: 0,
            gather: Gather::default(),
            gather_to: 0,
            warm: 0,
            syncs: 0,
            latencies: Figures::histogram(),
        }
    }

    fn run(mut self) -> Figures {
        // Where the rate is given there are fewer puts to average over.
        let rounds = ROUNDS * if self.cell.load.paced { 10 } else { 1 };
        let length = (rounds * self.cell.round_us() * 1_000).max(RUN.as_nanos() as u64);
        self.warm = length / 4;
        let end = self.warm + length;
        let load = self.cell.load;
        for client in 0..self.clients.len() {
            // Strangers at first: they begin spread over a round.
            let at = self.rng.u64(0..=load.think_us * 1_000 + 100_000);
            self.clients[client].due = at;
            self.at(at, Event::Ready(client));
        }
        while let Some(Reverse((at, _, event))) = self.events.pop() {
            if at > end {
                break;
            }
            self.now = at;
            match event {
                Event::Ready(client) => {
                    self.clients[client].began = at;
                    self.processor_free = self.processor_free.max(at) + self.handling;
                    self.at(self.processor_free, Event::Arrive(client));
                }
                Event::Arrive(client) => self.arrive(client),
                Event::Synced => self.synced(),
                Event::Look => self.look(),
            }
        }
        Figures::new(&self.latencies, (end - self.warm) as f64 / 1e9, self.syncs)
    }

    fn at(&mut self, at: u64, event: Event) {
        self.numbered += 1;
        self.events.push(Reverse((at, self.numbered, event)));
    }

    fn instant(&self, at: u64) -> Instant {
        self.epoch + Duration::from_nanos(at)
    }

    fn arrive(&mut self, client: usize) {
        self.oldest_unsynced.get_or_insert(self.now);
        if self.policy.acknowledges_applied() {
            self.acknowledge(client);
            return self.nudge();
        }
        self.arrivals += 1;
        self.queued.push(client);
        if self.gather_to == 0 || self.arrivals >= self.gather_to {
            self.nudge();
        }
    }

    /// Wakes the commit thread, if it sleeps.
    fn nudge(&mut self) {
        if self.syncing {
            return;
        }
        if self.wake > 0 { self.at(self.now + self.wake, Event::Look) } else { self.look() }
    }

    /// The client has its answer and goes on.
    fn acknowledge(&mut self, client: usize) {
        let load = self.cell.load;
        let now = self.now;
        let state = &mut self.clients[client];
        if now >= self.warm {
            self.latencies.saturating_record(now - state.began);
        }
        state.puts_left -= 1;
        if state.puts_left > 0 {
            return self.at(now, Event::Ready(client));
        }
        state.puts_left = load.puts;
        let think = load.spread.sample_ns(load.think_us, &mut self.rng);
        let ready = if load.paced {
            state.due += think;
            state.due.max(now)
        } else {
            now + think
        };
        self.at(ready, Event::Ready(client));
    }

    /// The commit thread decides what to do.
    fn look(&mut self) {
        if self.syncing {
            return;
        }
        let mut left = Duration::ZERO;
        if self.gather_to > 0 {
            left = self.gather.left(self.arrivals >= self.gather_to, self.instant(self.now));
            if left.is_zero() {
                self.gather_to = 0;
            }
        }
        let mut sleep = (!left.is_zero()).then_some(left.as_nanos() as u64);
        if self.queued.is_empty() {
            self.first_waiter = None;
        } else {
            let since = *self.first_waiter.get_or_insert(self.now);
            let window = match self.policy {
                CommitPolicy::Group { window } => window.as_nanos() as u64,
                _ => 0,
            };
            let waited = self.now - since;
            if waited < window {
                sleep = Some(window - waited);
            } else if left.is_zero() {
                self.first_waiter = None;
                return self.begin_sync();
            }
        }
        if let (CommitPolicy::Periodic { interval }, Some(oldest)) = (self.policy, self.oldest_unsynced) {
            let age = self.now - oldest;
            if age >= interval.as_nanos() as u64 {
                return self.begin_sync();
            }
            if age == 0 {
                sleep = Some(interval.as_nanos() as u64);
            }
        }
        if let Some(sleep) = sleep {
            self.at(self.now + sleep.max(1) + self.wake, Event::Look);
        }
    }

    fn begin_sync(&mut self) {
        self.in_sync = std::mem::take(&mut self.queued);
        self.oldest_unsynced = None;
        self.syncing = true;
        self.asked = self.now;
        self.at_cut = self.arrivals;
        let end = match self.cell.disk {
            Disk::Takes(us) => self.now + us * 1_000,
            Disk::Limited { per_second, takes_us } => {
                let first = self.began == 0;
                self.began = if first { self.now } else { self.now.max(self.began + 1_000_000_000 / per_second) };
                self.began + takes_us * 1_000
            }
            // Nothing is known of it here: as fast as a sync gets.
            Disk::Own => self.now + 100_000,
        };
        self.at(end, Event::Synced);
    }

    fn synced(&mut self) {
        self.syncing = false;
        if self.now >= self.warm {
            self.syncs += 1;
        }
        if self.policy == CommitPolicy::Adaptive {
            let took = Duration::from_nanos(self.now - self.asked);
            self.gather_to = self.gather.after_sync(self.at_cut, self.arrivals, took, self.instant(self.now));
        }
        for client in std::mem::take(&mut self.in_sync) {
            self.acknowledge(client);
        }
        self.look();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::{Load, Spread};

    fn figures(clients: u64, think_us: u64, policy: &str) -> Figures {
        let load = Load { clients, puts: 1, think_us, spread: Spread::Fixed, paced: false };
        let cell = Cell { disk: Disk::Takes(5_000), load };
        World::new(cell, policy.parse().unwrap(), [3.0, 0.0], fastrand::Rng::with_seed(1)).run()
    }

    #[test]
    fn one_client_pays_one_sync() {
        for policy in ["adaptive", "batch"] {
            let figures = figures(1, 0, policy);
            assert!((figures.mean_us - 5_003.0).abs() < 10.0, "{policy}: {figures:?}");
        }
        assert!((figures(1, 0, "group:5ms").mean_us - 10_003.0).abs() < 20.0);
    }

    #[test]
    fn batch_splits_a_crowd_in_two_and_adaptive_does_not() {
        let batch = figures(32, 0, "batch");
        assert!((15.0..17.0).contains(&batch.per_sync), "{batch:?}");
        let adaptive = figures(32, 0, "adaptive");
        assert!(adaptive.per_sync > 31.0 && adaptive.mean_us < 0.53 * batch.mean_us, "{adaptive:?}");
    }

    #[test]
    fn the_same_seed_gives_the_same_figures() {
        let (a, b) = (figures(16, 1_000, "adaptive"), figures(16, 1_000, "adaptive"));
        assert_eq!((a.per_second, a.mean_us), (b.per_second, b.mean_us));
    }
}
