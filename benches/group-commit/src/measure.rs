//! The policies on the engine: client threads, each with one durable put at a time.
//!
//! Every run has a fresh store in a fresh file. Rounds go over all cells and policies before any is measured again, so
//! that a busy moment of the machine does not fall on one policy's runs alone.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bytes::Bytes;
use clap::Args;
use esker_bench_figures::progress;
use esker_device::{FileDevice, OpenMode, SlowDevice};
use esker_engine::{CommitPolicy, Engine, FormatOptions, Options};
use esker_store::{Change, Collection, Durability, ObjectId, ObjectStore, Transaction};
use hdrhistogram::Histogram;

use crate::cell::{Cell, Grid};
use crate::outcome::{Figures, Outcome, Results, Source};
use crate::report;

const FULL: [&[u64]; 3] = [&[1, 16, 256], &[0, 500, 2_000, 10_000], &[100, 1_000, 5_000, 20_000]];
const QUICK: [&[u64]; 3] = [&[1, 8, 64], &[0, 1_000], &[1_000, 5_000]];
/// Long enough for the puts of the fastest cell; the file is sparse.
const FILE_BYTES: u64 = 4 << 30;
const SEGMENT_BYTES: u64 = 16 << 20;
const VALUE_BYTES: usize = 100;

/// Arguments of `measure`.
#[derive(Args)]
pub struct Measure {
    #[command(flatten)]
    grid: Grid,
    /// Folder on the device to measure on; what is made there is deleted
    #[arg(long)]
    dir: PathBuf,
    /// Rounds of syncing and thinking that a run takes at least
    #[arg(long, default_value_t = 25)]
    rounds: u64,
    /// Seconds that a run takes at least
    #[arg(long, default_value_t = 0.25)]
    seconds: f64,
    /// Where to write the figures
    #[arg(long)]
    json: Option<PathBuf>,
}

impl Measure {
    /// Measures the grid, prints the table, writes the file.
    pub fn run(&self) -> Result<()> {
        std::fs::create_dir_all(&self.dir).with_context(|| self.dir.display().to_string())?;
        let policies = self.grid.policies();
        let cells = self.grid.cells(FULL, QUICK);
        let runs = if self.grid.quick { 1 } else { self.grid.runs.max(1) };
        let bar = progress(cells.len() as u64 * policies.len() as u64 * runs);
        let mut all = vec![Vec::new(); cells.len() * policies.len()];
        let mut results = Results { source: Source::Measured, outcomes: Vec::new() };
        let mut worst = 0.0f64;
        for run in 0..runs {
            let mut figures = all.iter_mut();
            for cell in &cells {
                let rounds = Duration::from_micros(self.rounds * cell.round_us());
                // Where the rate is given there are fewer puts to average over.
                let seconds = self.seconds * if cell.load.paced { 3.0 } else { 1.0 };
                let time = rounds.max(Duration::from_secs_f64(seconds));
                for policy in &policies {
                    let (measured, sync_us) = measure(&self.dir, *cell, *policy, time, self.grid.seed + run)?;
                    figures.next().expect("one per cell and policy").push(measured);
                    if cell.disk.cycle_us() > 0 && !policy.acknowledges_applied() {
                        worst = worst.max(sync_us - cell.disk.cycle_us() as f64);
                    }
                    bar.inc(1);
                }
            }
            results = medians(&cells, &policies, &all);
            // An operator who breaks off a long measurement has what is done.
            if let Some(path) = &self.json {
                results.save(path)?;
            }
        }
        bar.finish_and_clear();
        print!("{}", report::tables(&results));
        println!("\nSyncs took at most {worst:.0} us longer than they were told to, in the mean of a run.");
        Ok(())
    }
}

/// Of figures in the order of cells, and within a cell of policies.
fn medians(cells: &[Cell], policies: &[CommitPolicy], figures: &[Vec<Figures>]) -> Results {
    let places = cells.iter().flat_map(|cell| policies.iter().map(move |policy| (cell, policy)));
    let outcomes = places.zip(figures).map(|((cell, policy), runs)| Outcome::of(*cell, policy.to_string(), runs));
    Results { source: Source::Measured, outcomes: outcomes.collect() }
}

const WARMING: u8 = 0;
const MEASURING: u8 = 1;
const OVER: u8 = 2;

/// One run: its figures, and the mean time of a sync in microseconds.
fn measure(dir: &Path, cell: Cell, policy: CommitPolicy, time: Duration, seed: u64) -> Result<(Figures, f64)> {
    let folder = tempfile::Builder::new().prefix("esker-bench-group-commit-").tempdir_in(dir)?;
    let file = FileDevice::open(folder.path().join("store.esker"), OpenMode::Create { len: FILE_BYTES })?;
    Engine::format(&file, &FormatOptions { segment_bytes: SEGMENT_BYTES, ..FormatOptions::new(*b"esker-bench-comm") })?;
    let device = Arc::new(SlowDevice::new(file, cell.disk.pace()));
    let options = Options {
        recent_bytes: 4 * SEGMENT_BYTES,
        cache_bytes: 1 << 20,
        pending_bytes_max: SEGMENT_BYTES,
        policy: CommitPolicy::Batch,
        ..Options::default()
    };
    let engine = Engine::open(Arc::clone(&device) as Arc<dyn esker_device::Device>, options)?;
    let objects = make_objects(&engine, cell.load.clients)?;
    engine.set_policy(policy);
    let phase = AtomicU8::new(WARMING);
    let mut latencies = Figures::histogram();
    let mut taken = (0.0, 0);
    std::thread::scope(|scope| -> Result<()> {
        let clients: Vec<_> = objects
            .iter()
            .enumerate()
            .map(|(number, object)| {
                let rng = fastrand::Rng::with_seed(seed << 32 | number as u64);
                let (engine, phase) = (&engine, &phase);
                scope.spawn(move || client(engine, object, cell, rng, phase))
            })
            .collect();
        std::thread::sleep(time / 3);
        let (began, syncs) = (Instant::now(), device.syncs());
        phase.store(MEASURING, Ordering::Relaxed);
        sleep_until(began + time);
        phase.store(OVER, Ordering::Relaxed);
        taken = (began.elapsed().as_secs_f64(), device.syncs() - syncs);
        for client in clients {
            latencies.add(client.join().expect("clients do not panic")?)?;
        }
        Ok(())
    })?;
    let sync_us = device.mean_sync().as_nanos() as f64 / 1e3;
    engine.close()?;
    Ok((Figures::new(&latencies, taken.0, taken.1), sync_us))
}

fn sleep_until(end: Instant) {
    std::thread::sleep(end.saturating_duration_since(Instant::now()));
}

/// An object for each client, so that clients do not meet at anything but the log.
fn make_objects(engine: &Engine, clients: u64) -> Result<Vec<ObjectId>> {
    let collection = Collection::new(Bytes::from_static(b"bench"));
    let objects: Vec<_> =
        (0..clients).map(|client| ObjectId::new(collection.clone(), format!("client {client}"))).collect();
    let mut transaction = Transaction::with(Durability::Durable).create_collection(&collection);
    for object in &objects {
        transaction.push(object, Change::Touch);
    }
    engine.submit(transaction).wait()?;
    Ok(objects)
}

/// A client's life: its latencies in nanoseconds, of the puts acknowledged while measuring.
fn client(
    engine: &Engine,
    object: &ObjectId,
    cell: Cell,
    mut rng: fastrand::Rng,
    phase: &AtomicU8,
) -> Result<Histogram<u64>> {
    // Where the kernel refuses, think times are longer by its usual slack of 50 us.
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1_000));
    let load = cell.load;
    let mut latencies = Figures::histogram();
    let value = Bytes::from(vec![rng.u8(..); VALUE_BYTES]);
    let mut due = Instant::now() + Duration::from_nanos(rng.u64(0..=load.think_us * 1_000 + 100_000));
    let mut index = 0;
    loop {
        // Time over ends a sleep, too, or the slowest client would hold up the rest.
        while due > Instant::now() {
            if phase.load(Ordering::Relaxed) == OVER {
                return Ok(latencies);
            }
            sleep_until(due.min(Instant::now() + Duration::from_millis(50)));
        }
        for _ in 0..load.puts {
            index = (index + 1) % 1_024;
            let change = Change::SlotSet { index, value: value.clone() };
            let transaction = Transaction::with(Durability::Durable).change(object, change);
            let began = Instant::now();
            engine.submit(transaction).wait()?;
            let took = began.elapsed();
            match phase.load(Ordering::Relaxed) {
                OVER => return Ok(latencies),
                MEASURING => latencies.saturating_record(took.as_nanos() as u64),
                _ => {}
            }
        }
        let think = Duration::from_nanos(load.spread.sample_ns(load.think_us, &mut rng));
        due = if load.paced { due + think } else { Instant::now() + think };
    }
}
