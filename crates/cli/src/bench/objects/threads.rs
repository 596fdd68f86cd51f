//! Threads that load a store, and what is measured of them: what all benches over backends share.
//!
//! [`Load::run`]: threads start together → each does its work until the time is over → histograms, counters → [`Cell`]
//!
//! Invariants:
//! 1. All threads start at one moment, and the clock with them; counters are read before it and after the last has
//!    ended.
//! 2. One thread's failure ends them all, and is what the run returns.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use super::outcome::{Cell, Latency};
use crate::exit::{Code, Failure};

/// A load on an open store.
pub struct Load<'a> {
    /// Tells how many syncs there were so far, where they are counted.
    pub syncs: &'a (dyn Fn() -> Option<u64> + Sync),
    /// Name of the backend in results.
    pub backend: &'a str,
    /// What is done.
    pub phase: String,
    /// Bytes of an object.
    pub object_bytes: u64,
    /// Operations under way at once.
    pub in_flight: u64,
    /// Threads.
    pub threads: u64,
    /// Longest time.
    pub time: Duration,
    /// Where the device's flushes are counted: its line of /proc/diskstats.
    pub device: Option<&'a str>,
}

/// What one thread has done.
pub struct Tally<'a> {
    latencies: Histogram<u64>,
    payload_bytes: u64,
    began: Instant,
    time: Duration,
    failed: &'a AtomicBool,
}

impl Tally<'_> {
    /// Whether to go on.
    pub fn goes_on(&self) -> bool {
        self.began.elapsed() < self.time && !self.failed.load(Ordering::Relaxed)
    }

    /// Notes an operation that began at `started`, is done now, and was of so many bytes.
    pub fn done(&mut self, started: Instant, bytes: u64) {
        self.latencies.saturating_record(started.elapsed().as_nanos() as u64);
        self.payload_bytes += bytes;
    }
}

/// What was counted before and after.
struct Counters {
    write_bytes: Option<u64>,
    flushes: Option<u64>,
    syncs: Option<u64>,
    cpu_seconds: f64,
}

impl Counters {
    fn read(load: &Load<'_>) -> Self {
        let cpu = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        Self {
            write_bytes: own_write_bytes(),
            flushes: load.device.and_then(device_flushes),
            syncs: (load.syncs)(),
            cpu_seconds: cpu.tv_sec as f64 + cpu.tv_nsec as f64 / 1e9,
        }
    }
}

fn own_write_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/io").ok()?;
    text.lines().find_map(|line| line.strip_prefix("write_bytes: "))?.trim().parse().ok()
}

/// Flushes of a device since the machine started: the 18th figure behind its name.
fn device_flushes(device: &str) -> Option<u64> {
    let text = std::fs::read_to_string("/proc/diskstats").ok()?;
    let line = text.lines().find(|line| line.split_whitespace().take(2).eq(device.split(':')))?;
    line.split_whitespace().nth(18)?.parse().ok()
}

impl Load<'_> {
    /// Runs `work` in each thread, which is told its number.
    pub fn run(&self, work: impl Fn(u64, &mut Tally<'_>) -> Result<(), Failure> + Sync) -> Result<Cell, Failure> {
        let failed = AtomicBool::new(false);
        let start = Barrier::new(self.threads as usize + 1);
        let (before, began, results) = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..self.threads)
                .map(|thread| {
                    let (start, failed, work) = (&start, &failed, &work);
                    scope.spawn(move || {
                        start.wait();
                        let done = self.thread(thread, failed, work);
                        if done.is_err() {
                            failed.store(true, Ordering::Relaxed);
                        }
                        done
                    })
                })
                .collect();
            let before = Counters::read(self);
            let began = Instant::now();
            start.wait();
            let done = threads.into_iter().map(|thread| thread.join().expect("a bench thread does not panic"));
            let results: Vec<Result<(Histogram<u64>, u64), Failure>> = done.collect();
            (before, began, results)
        });
        let seconds = began.elapsed().as_secs_f64();
        let after = Counters::read(self);
        let (mut latencies, mut payload_bytes) = (histogram()?, 0);
        for result in results {
            let (done, bytes) = result?;
            // Adding histograms of equal bounds cannot fail.
            let _ = latencies.add(&done);
            payload_bytes += bytes;
        }
        let between = |before: Option<u64>, after: Option<u64>| Some(after?.saturating_sub(before?));
        Ok(Cell {
            backend: self.backend.to_string(),
            phase: self.phase.clone(),
            object_bytes: self.object_bytes,
            in_flight: self.in_flight,
            seconds,
            operations: latencies.len(),
            payload_bytes,
            latency: Latency::of(&latencies),
            device_write_bytes: between(before.write_bytes, after.write_bytes),
            syncs: between(before.syncs, after.syncs),
            // A figure that has never moved is of a device whose flushes the kernel does not count.
            device_flushes: between(before.flushes, after.flushes.filter(|flushes| *flushes > 0)),
            cpu_seconds: after.cpu_seconds - before.cpu_seconds,
        })
    }

    fn thread(
        &self,
        thread: u64,
        failed: &AtomicBool,
        work: impl Fn(u64, &mut Tally<'_>) -> Result<(), Failure>,
    ) -> Result<(Histogram<u64>, u64), Failure> {
        let (latencies, began) = (histogram()?, Instant::now());
        let mut tally = Tally { latencies, payload_bytes: 0, began, time: self.time, failed };
        work(thread, &mut tally)?;
        Ok((tally.latencies, tally.payload_bytes))
    }
}

fn histogram() -> Result<Histogram<u64>, Failure> {
    Histogram::new_with_bounds(1, 600_000_000_000, 3).map_err(|error| Failure::new(Code::Failure, error.to_string()))
}
