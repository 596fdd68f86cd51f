//! `esker bench kv`: a load on the key-value face inside this process, with latencies.
//!
//! fill (every key once) → mix (random reads and writes) → ops/s and percentiles per operation
//!
//! Invariants:
//! 1. The same arguments give the same sequence of operations per thread; only times differ.
//! 2. The latency of a put is that of its acknowledgement: until durable with `safe`, until applied with `async`.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use esker::kv::{Entry, Key, Kind, Namespace};
use esker::{Bytes, Durability};
use hdrhistogram::Histogram;
use indicatif::ProgressBar;

use crate::commands::{StoreArgument, builder, json_object, print};
use crate::config::Settings;
use crate::exit::Failure;
use crate::progress;

/// The store of a run that named none; it is removed afterwards.
const SCRATCH: &str = "./esker-bench-data";
/// The namespaces that are loaded.
const NAMESPACES: (&str, &str) = ("bench-int", "bench-bytes");

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Safety {
    /// A put is acknowledged when it is durable
    Safe,
    /// A put is acknowledged when it is applied
    Async,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum KeyKind {
    /// u64 keys on slots
    Int,
    /// Ordered byte keys of 16 digits
    Bytes,
}

/// The arguments of `esker bench kv`.
#[derive(Args)]
pub struct KvBench {
    #[command(flatten)]
    store: StoreArgument,
    /// Number of keys
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    keys: u64,
    /// Value size in bytes
    #[arg(long, default_value_t = 100)]
    value_bytes: usize,
    /// Threads
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=1024))]
    threads: u64,
    /// Operations of the mix, over all threads
    #[arg(long, default_value_t = 1_000_000)]
    ops: u64,
    /// Reads in the mix, in percent
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u8).range(0..=100))]
    reads: u8,
    /// When a put counts as done
    #[arg(long, value_enum, default_value = "safe")]
    durability: Safety,
    /// Puts that one thread may have unacknowledged, from 1
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=65_536))]
    in_flight: u64,
    /// Kind of keys
    #[arg(long, value_enum, default_value = "int")]
    kind: KeyKind,
    /// Seed of the random choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Leave out the fill: the keys are there from an earlier run on the same store
    #[arg(long)]
    no_fill: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

impl KvBench {
    /// Runs the command.
    pub fn run(self, settings: &Settings) -> Result<(), Failure> {
        let scratch = self.store.given().is_none().then(|| PathBuf::from(SCRATCH));
        if scratch.as_ref().is_some_and(|folder| folder.exists()) {
            return Err(Failure::usage(format!("{SCRATCH} exists already; remove it or name a store with --store")));
        }
        let location = self.store.given().unwrap_or(SCRATCH).to_string();
        let result = (|| {
            let store = builder(settings).open(&location)?;
            let result = self.measure(&store);
            store.close()?;
            result
        })();
        if let Some(folder) = scratch {
            std::fs::remove_dir_all(folder)?;
        }
        result
    }
}

/// Latencies of one kind of operation, in nanoseconds.
struct Latencies(Histogram<u64>);

impl Latencies {
    fn new() -> Result<Self, Failure> {
        Histogram::new_with_bounds(1, 600_000_000_000, 3)
            .map(Self)
            .map_err(|error| Failure::new(crate::exit::Code::Failure, error.to_string()))
    }

    fn record(&mut self, started: Instant) {
        self.0.saturating_record(started.elapsed().as_nanos() as u64);
    }
}

struct Phase {
    name: &'static str,
    elapsed: Duration,
    puts: Latencies,
    gets: Latencies,
}

/// What one thread does in one phase.
struct Work {
    keys: std::ops::Range<u64>,
    ops: u64,
    reads_percent: u8,
    random: Option<fastrand::Rng>,
}

impl KvBench {
    fn measure(&self, store: &esker::Store) -> Result<(), Failure> {
        let kv = store.kv()?;
        let namespace = match self.kind {
            KeyKind::Int => kv.namespace(NAMESPACES.0, Kind::Int)?,
            KeyKind::Bytes => kv.namespace(NAMESPACES.1, Kind::Bytes)?,
        };
        let mut phases = Vec::new();
        if !self.no_fill {
            let share = self.keys.div_ceil(self.threads);
            let work = |thread: u64| {
                let keys = (thread * share).min(self.keys)..((thread + 1) * share).min(self.keys);
                Work { ops: keys.end - keys.start, keys, reads_percent: 0, random: None }
            };
            phases.push(self.phase("fill", &namespace, self.keys, work)?);
        }
        if self.ops > 0 {
            let share = self.ops.div_ceil(self.threads);
            let work = |thread: u64| Work {
                keys: 0..self.keys,
                ops: share.min(self.ops.saturating_sub(thread * share)),
                reads_percent: self.reads,
                random: Some(fastrand::Rng::with_seed(self.seed.wrapping_mul(1_000_003).wrapping_add(thread))),
            };
            phases.push(self.phase("mix", &namespace, self.ops, work)?);
        }
        self.report(store, &phases)
    }

    fn phase(
        &self,
        name: &'static str,
        namespace: &Namespace,
        total: u64,
        work: impl Fn(u64) -> Work,
    ) -> Result<Phase, Failure> {
        let bar = progress::count(name, total);
        let done = AtomicU64::new(0);
        let started = Instant::now();
        let results: Vec<Result<(Latencies, Latencies), Failure>> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..self.threads)
                .map(|thread| {
                    let (work, done, bar) = (work(thread), &done, &bar);
                    scope.spawn(move || self.drive(namespace, work, done, bar))
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().expect("a bench thread does not panic")).collect()
        });
        let elapsed = started.elapsed();
        bar.finish_and_clear();
        let mut phase = Phase { name, elapsed, puts: Latencies::new()?, gets: Latencies::new()? };
        for result in results {
            let (puts, gets) = result?;
            // Adding histograms of equal bounds cannot fail.
            let _ = phase.puts.0.add(&puts.0);
            let _ = phase.gets.0.add(&gets.0);
        }
        Ok(phase)
    }

    fn drive(
        &self,
        namespace: &Namespace,
        mut work: Work,
        done: &AtomicU64,
        bar: &ProgressBar,
    ) -> Result<(Latencies, Latencies), Failure> {
        let (mut puts, mut gets) = (Latencies::new()?, Latencies::new()?);
        let durability = match self.durability {
            Safety::Safe => Durability::Durable,
            Safety::Async => Durability::Applied,
        };
        let mut value = vec![0u8; self.value_bytes];
        fastrand::Rng::with_seed(self.seed).fill(&mut value);
        let value = Bytes::from(value);
        let mut waiting = VecDeque::with_capacity(self.in_flight as usize);
        let mut name = [b'0'; 16];
        for number in 0..work.ops {
            let (index, reads) = match &mut work.random {
                Some(random) => (random.u64(work.keys.clone()), random.u8(0..100) < work.reads_percent),
                None => (work.keys.start + number, false),
            };
            let key = match self.kind {
                KeyKind::Int => Key::Int(index),
                KeyKind::Bytes => {
                    digits(index, &mut name);
                    Key::Bytes(&name)
                }
            };
            let started = Instant::now();
            if reads {
                namespace.get(key).wait()?;
                gets.record(started);
            } else {
                let entry = Entry { value: value.clone(), expires_ms: None, tag: 0 };
                waiting.push_back((started, namespace.put_with(key, entry, durability)));
                if waiting.len() >= self.in_flight as usize {
                    acknowledge(&mut waiting, &mut puts)?;
                }
            }
            if number % 1_024 == 1_023 {
                bar.set_position(done.fetch_add(1_024, Ordering::Relaxed) + 1_024);
            }
        }
        while !waiting.is_empty() {
            acknowledge(&mut waiting, &mut puts)?;
        }
        Ok((puts, gets))
    }

    fn report(&self, store: &esker::Store, phases: &[Phase]) -> Result<(), Failure> {
        let stats = store.engine().map(|engine| engine.stats().entries()).unwrap_or_default();
        if self.json {
            let phases: Vec<_> = phases.iter().map(Phase::json).collect();
            let result = serde_json::json!({
                "keys": self.keys, "value_bytes": self.value_bytes, "threads": self.threads, "reads_percent": self.reads,
                "in_flight": self.in_flight, "seed": self.seed,
                "durability": format!("{:?}", self.durability).to_lowercase(),
                "kind": format!("{:?}", self.kind).to_lowercase(),
                "phases": phases, "stats": json_object(stats),
            });
            return print(&format!("{result:#}\n"));
        }
        let mut out = format!(
            "{} {:?} keys, {} B values, {} threads × {} in flight, {:?}\n",
            self.keys, self.kind, self.value_bytes, self.threads, self.in_flight, self.durability
        )
        .to_lowercase();
        out.push_str(
            "phase  op           count        ops/s      p50 µs      p90 µs      p99 µs    p99.9 µs      max µs\n",
        );
        for phase in phases {
            for (name, latencies) in [("put", &phase.puts), ("get", &phase.gets)] {
                if !latencies.0.is_empty() {
                    out.push_str(&phase.line(name, latencies));
                }
            }
        }
        print(&out)
    }
}

/// Waits for the oldest put.
fn acknowledge(waiting: &mut VecDeque<(Instant, esker::Completion<()>)>, puts: &mut Latencies) -> Result<(), Failure> {
    if let Some((started, completion)) = waiting.pop_front() {
        completion.wait()?;
        puts.record(started);
    }
    Ok(())
}

/// Writes `number` with leading zeros.
fn digits(mut number: u64, name: &mut [u8; 16]) {
    for digit in name.iter_mut().rev() {
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
    }
}

impl Phase {
    fn rate(&self, latencies: &Latencies) -> f64 {
        latencies.0.len() as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }

    fn line(&self, name: &str, latencies: &Latencies) -> String {
        let micros = |nanos: u64| nanos as f64 / 1_000.0;
        let at = |quantile| micros(latencies.0.value_at_quantile(quantile));
        format!(
            "{:<6} {name:<4} {:>13} {:>12.0} {:>11.1} {:>11.1} {:>11.1} {:>11.1} {:>11.1}\n",
            self.name,
            latencies.0.len(),
            self.rate(latencies),
            at(0.5),
            at(0.9),
            at(0.99),
            at(0.999),
            micros(latencies.0.max())
        )
    }

    fn json(&self) -> serde_json::Value {
        let figures = |latencies: &Latencies| {
            let at = |quantile| latencies.0.value_at_quantile(quantile);
            serde_json::json!({
                "count": latencies.0.len(), "ops_per_s": self.rate(latencies), "mean_ns": latencies.0.mean(),
                "p50_ns": at(0.5), "p90_ns": at(0.9), "p99_ns": at(0.99), "p999_ns": at(0.999), "max_ns": latencies.0.max(),
            })
        };
        serde_json::json!({
            "phase": self.name, "seconds": self.elapsed.as_secs_f64(),
            "put": figures(&self.puts), "get": figures(&self.gets),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_keys_sort_like_their_numbers() {
        let name = |number| {
            let mut name = [0; 16];
            digits(number, &mut name);
            name
        };
        assert_eq!(&name(42), b"0000000000000042");
        assert!(name(99) < name(100));
    }
}
