//! What opening, cloning and filling up cost the engine, on a real file.
//!
//! - `open`: how long opening takes as history grows, after a clean stop and after a crash with always the same tail.
//! - `clone`: time and bytes written of cloning a large object and a large omap.
//! - `fill`: fills the device, reads, deletes, opens again, and starts over.
//!
//! Figures go to stdout, as JSON with `--json`, and `open` draws a plot with `--plot`. The file is on the disk of
//! `--folder`, opened past the page cache where the file system can.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use clap::{Parser, Subcommand};
use esker_bench_figures::{BAND, colour, drawn, heading, plain, progress};
use esker_device::{Device, FileDevice, OpenMode};
use esker_engine::{Engine, FormatOptions, Options};
use esker_store::{Change, Collection, Durability, Error, ObjectId, ObjectStore, Transaction};
use plotters::prelude::*;
use serde::Serialize;

/// Measures the engine on a file.
#[derive(Parser)]
struct Arguments {
    /// Folder for the store's file, which is removed at the end
    #[arg(long, default_value = ".")]
    folder: PathBuf,
    /// Write the figures to this file, as JSON
    #[arg(long)]
    json: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Opening time while history grows
    Open {
        /// Keys that are overwritten again and again
        #[arg(long, default_value_t = 200_000)]
        keys: u64,
        /// How often all keys are overwritten
        #[arg(long, default_value_t = 20)]
        rounds: u64,
        /// Overwrites after the last checkpoint, before the crash
        #[arg(long, default_value_t = 100_000)]
        tail: u64,
        /// Draw the plot to this file
        #[arg(long)]
        plot: Option<PathBuf>,
    },
    /// Cloning a large object and a large omap
    Clone {
        /// Bytes of the object, in writes of 1 MiB
        #[arg(long, default_value_t = 1 << 30)]
        bytes: u64,
        /// Keys of the omap
        #[arg(long, default_value_t = 1_000_000)]
        keys: u64,
    },
    /// Fill the device, read, delete, open again
    Fill {
        /// Rounds
        #[arg(long, default_value_t = 20)]
        rounds: u64,
        /// Length of the device in bytes
        #[arg(long, default_value_t = 256 << 20)]
        len: u64,
    },
}

/// One opening.
#[derive(Clone, Copy, Debug, Serialize)]
struct Opening {
    history_mib: f64,
    clean_ms: f64,
    crash_ms: f64,
    replayed: u64,
}

#[derive(Debug, Serialize)]
struct Cloning {
    what: &'static str,
    entries: u64,
    clone_ms: f64,
    written_bytes: u64,
    checkpoint_bytes: u64,
}

#[derive(Debug, Serialize)]
struct Filling {
    round: u64,
    values: u64,
    fill_s: f64,
    full_after_bytes: u64,
    open_ms: f64,
}

/// A store's file, removed when this goes.
struct Place(PathBuf);

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let place = Place(arguments.folder.join(format!("esker-bench-{}.esker", std::process::id())));
    let figures = match arguments.command {
        Command::Open { keys, rounds, tail, plot } => {
            let openings = openings(&place.0, keys, rounds, tail)?;
            if let Some(plot) = plot {
                draw(&plot, &openings, tail)?;
            }
            serde_json::to_string_pretty(&openings)?
        }
        Command::Clone { bytes, keys } => serde_json::to_string_pretty(&clones(&place.0, bytes, keys)?)?,
        Command::Fill { rounds, len } => serde_json::to_string_pretty(&fills(&place.0, rounds, len)?)?,
    };
    if let Some(json) = arguments.json {
        std::fs::write(&json, figures).with_context(|| json.display().to_string())?;
    }
    Ok(())
}

fn made(path: &Path, len: u64) -> Result<Arc<dyn Device>> {
    let file = std::fs::File::create(path).with_context(|| path.display().to_string())?;
    file.set_len(len)?;
    let device: Arc<dyn Device> = Arc::new(FileDevice::open(path, OpenMode::ReadWrite)?);
    let segment_bytes = (64 << 20).min((len / 64).next_power_of_two());
    Engine::format(&*device, &FormatOptions { segment_bytes, uuid: [7; 16] })?;
    Ok(device)
}

fn id(name: &'static str) -> ObjectId {
    ObjectId::new(Collection::from("bench"), name)
}

fn opened(device: &Arc<dyn Device>) -> Result<(Engine, Duration)> {
    let began = Instant::now();
    let engine = Engine::open(Arc::clone(device), Options::default())?;
    Ok((engine, began.elapsed()))
}

fn set(engine: &Engine, slot: u64, value: &Bytes) -> esker_store::Result<()> {
    let change = Change::SlotSet { index: slot, value: value.clone() };
    engine.submit(Transaction::with(Durability::Applied).change(&id("slots"), change)).wait().map(drop)
}

/// Overwrites the same keys, and opens after each round: once after a clean stop, and once from a copy of the device
/// as a crash would leave it, with `tail` overwrites after the last checkpoint.
fn openings(path: &Path, keys: u64, rounds: u64, tail: u64) -> Result<Vec<Opening>> {
    let value = Bytes::from(vec![7; 100]);
    let device = made(path, keys * 2_000 + (2 << 30))?;
    let (mut engine, _) = opened(&device)?;
    engine.submit(Transaction::new().create_collection(&Collection::from("bench"))).wait()?;
    let bar = progress(rounds).with_message("rounds");
    let mut rng = fastrand::Rng::with_seed(1);
    let mut history = 0u64;
    let mut openings = Vec::new();
    println!("{:>12} {:>10} {:>10} {:>10}", "history MiB", "clean ms", "crash ms", "replayed");
    for _ in 0..rounds {
        for _ in 0..keys {
            set(&engine, rng.u64(..keys), &value)?;
        }
        engine.sync().wait()?;
        engine.checkpoint()?;
        for _ in 0..tail {
            set(&engine, rng.u64(..keys), &value)?;
        }
        engine.sync().wait()?;
        history += (keys + tail) * (value.len() as u64 + 80);
        // What stands on the device now is what a crash would leave: a second engine opens it read-only.
        let began = Instant::now();
        let crashed = Engine::open(Arc::clone(&device), Options { read_only: true, ..Options::default() })?;
        let crash = began.elapsed();
        let replayed = crashed.recovery().records;
        drop(crashed);
        engine.close()?;
        drop(engine);
        let clean;
        (engine, clean) = opened(&device)?;
        ensure!(engine.recovery().records == 0, "a clean stop opens without replay");
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let opening = Opening {
            history_mib: history as f64 / f64::from(1 << 20),
            clean_ms: ms(clean),
            crash_ms: ms(crash),
            replayed,
        };
        bar.suspend(|| {
            let Opening { history_mib, clean_ms, crash_ms, replayed } = opening;
            println!("{history_mib:>12.0} {clean_ms:>10.1} {crash_ms:>10.1} {replayed:>10}");
        });
        openings.push(opening);
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(openings)
}

fn draw(path: &Path, openings: &[Opening], tail: u64) -> Result<()> {
    let area = SVGBackend::new(path, (720, 420)).into_drawing_area();
    drawn(area.fill(&WHITE))?;
    let (top, below) = area.split_vertically(BAND);
    let title = format!("opening while history grows, {tail} overwrites after the last checkpoint");
    let series = [
        ("after a crash", colour(0), (|opening: &Opening| opening.crash_ms) as fn(&Opening) -> f64),
        ("after a clean stop", colour(1), |opening: &Opening| opening.clean_ms),
    ];
    heading(&top, &title, &series.map(|(name, colour, _)| (name, colour)), 150)?;
    let history = openings.iter().map(|opening| opening.history_mib).fold(1.0, f64::max);
    let most = openings.iter().map(|opening| opening.clean_ms.max(opening.crash_ms)).fold(1.0, f64::max) * 1.2;
    let mut chart = drawn(
        ChartBuilder::on(&below)
            .margin(12)
            .x_label_area_size(40)
            .y_label_area_size(56)
            .build_cartesian_2d(0.0..history * 1.02, 0.0..most),
    )?;
    let mut mesh = chart.configure_mesh();
    plain(&mut mesh);
    drawn(mesh.x_desc("written since the store was made, MiB").y_desc("opening, ms").draw())?;
    for (_, colour, of) in series {
        let points: Vec<(f64, f64)> = openings.iter().map(|opening| (opening.history_mib, of(opening))).collect();
        drawn(chart.draw_series(LineSeries::new(points.clone(), colour.stroke_width(2))))?;
        drawn(chart.draw_series(points.into_iter().map(|at| Circle::new(at, 3, colour.filled()))))?;
    }
    drawn(area.present())
}

fn clones(path: &Path, bytes: u64, keys: u64) -> Result<Vec<Cloning>> {
    let device = made(path, bytes * 2 + keys * 400 + (1 << 30))?;
    let (engine, _) = opened(&device)?;
    engine.submit(Transaction::new().create_collection(&Collection::from("bench"))).wait()?;
    let bar = progress(bytes / (1 << 20) + keys / 1_000).with_message("filling");
    for at in (0..bytes).step_by(1 << 20) {
        let data = Bytes::from(vec![at as u8; 1 << 20]);
        let txn = Transaction::with(Durability::Applied).change(&id("bytes"), Change::Write { offset: at, data });
        engine.submit(txn).wait()?;
        bar.inc(1);
    }
    for chunk in 0..keys / 1_000 {
        let mut txn = Transaction::with(Durability::Applied);
        for key in chunk * 1_000..(chunk + 1) * 1_000 {
            let change = Change::OmapSet { key: format!("key{key:012}").into(), value: Bytes::from_static(b"value") };
            txn.push(&id("omap"), change);
        }
        engine.submit(txn).wait()?;
        bar.inc(1);
    }
    bar.finish_and_clear();
    engine.sync().wait()?;
    engine.checkpoint()?;
    let mut cloned = Vec::new();
    for (what, name, entries) in [("bytes", "bytes", bytes >> 20), ("omap", "omap", keys)] {
        let written = |engine: &Engine| {
            let stats = engine.stats();
            (stats.device_write_bytes, stats.device_write_bytes + stats.cold_write_bytes)
        };
        let copy = ObjectId::new(Collection::from("bench"), format!("copy of {name}"));
        let before = written(&engine);
        let began = Instant::now();
        engine.submit(Transaction::new().change(&id(name), Change::CloneTo { to: copy })).wait()?;
        let took = began.elapsed();
        let after = written(&engine);
        engine.checkpoint()?;
        let cloning = Cloning {
            what,
            entries,
            clone_ms: took.as_secs_f64() * 1e3,
            written_bytes: after.0 - before.0,
            checkpoint_bytes: written(&engine).1 - after.1,
        };
        println!("{cloning:?}");
        cloned.push(cloning);
    }
    engine.close()?;
    Ok(cloned)
}

fn fills(path: &Path, rounds: u64, len: u64) -> Result<Vec<Filling>> {
    let device = made(path, len)?;
    let (mut engine, _) = opened(&device)?;
    engine.submit(Transaction::new().create_collection(&Collection::from("bench"))).wait()?;
    let bar = progress(rounds).with_message("rounds");
    let mut filled = Vec::new();
    for round in 0..rounds {
        let began = Instant::now();
        let value = |slot: u64| Bytes::from(vec![(slot * 31 + round) as u8; 3_000 + (slot % 1_000) as usize]);
        let mut values = 0;
        loop {
            match set(&engine, values, &value(values)) {
                Ok(()) => values += 1,
                Err(Error::Full { .. }) => break,
                Err(error) => return Err(error.into()),
            }
        }
        let fill_s = began.elapsed().as_secs_f64();
        engine.sync().wait()?;
        engine.close()?;
        drop(engine);
        let open;
        (engine, open) = opened(&device)?;
        let mut bytes = 0;
        for slot in 0..values {
            let found = engine.slot_get(&id("slots"), slot).wait()?;
            ensure!(found.as_ref() == Some(&value(slot)), "round {round}: slot {slot} is not what was written");
            bytes += value(slot).len() as u64;
        }
        engine.submit(Transaction::new().change(&id("slots"), Change::Remove)).wait()?;
        let open_ms = open.as_secs_f64() * 1e3;
        let filling = Filling { round, values, fill_s, full_after_bytes: bytes, open_ms };
        bar.suspend(|| println!("{filling:?}"));
        filled.push(filling);
        bar.inc(1);
    }
    bar.finish_and_clear();
    engine.close()?;
    Ok(filled)
}
