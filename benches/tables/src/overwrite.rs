//! `esker-bench-tables overwrite`: what stays when a store of fixed size is overwritten at random for long.
//!
//! for each fill level → each store: fresh folder → load N values → settle → overwrite, a sample a second → check →
//! delete
//!
//! Invariants:
//! 1. Fill is payload that lives over the size of the device; framing, index and the engine's reserve come on top.
//! 2. All stores of a level get the same number of keys and the same choice of keys.
//! 3. Figures of a run are those of its second half; what is read back afterwards must be what was written last.

mod drive;
mod plot;
mod results;
mod theory;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};
use esker_engine::{Engine, FormatOptions};
use indicatif::{ProgressBar, ProgressStyle};

use crate::embedded::settle_device;
use crate::overwrite::drive::{Drive, End, Progress, Shape};
use crate::overwrite::results::{Results, Run, Sample};
use crate::peer::{Peer, Settings, Sync};
use crate::peers::{esker, rocksdb};
use crate::units;

/// A store that is overwritten.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Store {
    /// Esker on a file of fixed size.
    Esker,
    /// RocksDB with blob files and their garbage collection, which takes the space it likes.
    RocksdbBlob,
}

/// The arguments of `overwrite`.
#[derive(Args, Debug)]
pub struct Overwrite {
    /// Stores, separated by commas
    #[arg(long, value_enum, value_delimiter = ',', default_value = "esker,rocksdb-blob")]
    stores: Vec<Store>,
    /// Size of Esker's device file, in bytes
    #[arg(long, value_parser = units::bytes, default_value = "4g")]
    size: u64,
    /// Segment size of Esker, in bytes, a power of two
    #[arg(long, value_parser = units::bytes, default_value = "8m")]
    segment: u64,
    /// Fill levels: payload that lives, in percent of --size
    #[arg(long, value_delimiter = ',', default_value = "50,70,85,90")]
    fill: Vec<u32>,
    /// Size of values in bytes
    #[arg(long, value_parser = units::bytes, default_value = "1k")]
    value: u64,
    /// Writing threads
    #[arg(long, default_value_t = 2)]
    threads: u32,
    /// Seconds of overwriting at each level
    #[arg(long, default_value_t = 60)]
    seconds: u32,
    /// Read cache of every store in bytes; of Esker with what it keeps of the newest segments
    #[arg(long, value_parser = units::bytes, default_value = "256m")]
    cache: u64,
    /// How far Esker's writers may be ahead of the device, in bytes; its own default if not given
    #[arg(long, value_parser = units::bytes)]
    esker_pending: Option<u64>,
    /// RocksDB's blob_garbage_collection_age_cutoff, 0 to 1; each makes a column of its own
    #[arg(long, value_delimiter = ',', default_value = "0.25,1")]
    blob_gc_cutoff: Vec<f64>,
    /// RocksDB's blob_garbage_collection_force_threshold, 0 to 1
    #[arg(long, default_value_t = 1.0)]
    blob_gc_force: f64,
    /// Longest time in seconds that a write is refused because the store is full before the level is given up
    #[arg(long, default_value_t = 5.0)]
    refused_seconds: f64,
    /// Without a single write for so many seconds the program ends with an error
    #[arg(long, default_value_t = 60.0)]
    stall_seconds: f64,
    /// Longest time of reading back at random and comparing, in seconds
    #[arg(long, default_value_t = 5.0)]
    check_seconds: f64,
    /// Folder on the device to be measured; what is made there is deleted
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    /// Seed of keys and values
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// File for all samples and figures as JSON
    #[arg(long)]
    json: Option<PathBuf>,
    /// Folder for the plots
    #[arg(long)]
    plots: Option<PathBuf>,
}

/// A column: a store, and how its blob files are collected.
#[derive(Clone, Copy, Debug)]
enum Column {
    Esker,
    RocksdbBlob(rocksdb::BlobFiles),
}

impl Column {
    fn name(self) -> String {
        match self {
            Self::Esker => "esker".into(),
            Self::RocksdbBlob(files) => format!("rocksdb-blob {}", files.gc_age_cutoff),
        }
    }
}

/// An open store and where its written bytes are counted.
struct Open {
    peer: Box<dyn Peer>,
    engine: Option<Arc<Engine>>,
    /// What the process had written when it was opened.
    written_before: u64,
}

impl Overwrite {
    /// Measures and reports.
    pub fn run(self) -> Result<()> {
        ensure!(self.threads > 0 && self.value >= 16, "at least one thread, and values of at least 16 bytes");
        ensure!(self.fill.iter().all(|fill| (1..100).contains(fill)), "--fill is 1 to 99");
        ensure!(self.seconds >= 4, "--seconds is at least 4");
        ensure!(self.segment > 0 && self.size.is_multiple_of(self.segment), "--size is a multiple of --segment");
        let mut columns = Vec::new();
        for store in &self.stores {
            match store {
                Store::Esker => columns.push(Column::Esker),
                Store::RocksdbBlob => columns.extend(self.blob_gc_cutoff.iter().map(|cutoff| {
                    let gc_force_threshold = self.blob_gc_force;
                    Column::RocksdbBlob(rocksdb::BlobFiles { gc_age_cutoff: *cutoff, gc_force_threshold })
                })),
            }
        }
        let names = columns.iter().map(|column| column.name()).collect();
        let mut results = Results { setup: self.setup(), columns: names, ..Results::default() };
        // A third of the bar is loading, which cannot be foretold; the rest goes with time.
        let bar = ProgressBar::new((self.fill.len() * columns.len()) as u64 * 300);
        bar.set_style(ProgressStyle::with_template("{elapsed_precise} {bar:30} {percent} % {msg} (left: {eta})")?);
        bar.enable_steady_tick(Duration::from_millis(500));
        for fill in &self.fill {
            for column in &columns {
                let before = bar.position();
                let run = self.level(*column, *fill, &bar).with_context(|| format!("{}, {fill} %", column.name()))?;
                bar.set_position(before + 300);
                bar.suspend(|| eprintln!("{}", run.line()));
                results.runs.push(run);
                // What was measured is not lost if a later level goes wrong.
                self.json.as_ref().map_or(Ok(()), |path| results.write_json(path))?;
            }
        }
        bar.finish_and_clear();
        results.print();
        self.plots.as_ref().map_or(Ok(()), |folder| plot::all(folder, &results))
    }

    /// One store at one fill level, in a folder of its own.
    fn level(&self, column: Column, fill: u32, bar: &ProgressBar) -> Result<Run> {
        let keys =
            u32::try_from(self.size / 100 * u64::from(fill) / self.value).context("too many keys: smaller --size")?;
        ensure!(keys >= self.threads, "fewer keys than threads: larger --size");
        let shape = Shape {
            keys,
            value_bytes: usize::try_from(self.value)?,
            threads: self.threads,
            seed: self.seed,
            refused_max: Duration::from_secs_f64(self.refused_seconds),
        };
        let folder = tempfile::Builder::new().prefix("esker-bench-tables-").tempdir_in(&self.dir).context("--dir")?;
        let settings = Settings {
            dir: folder.path(),
            keys,
            value_bytes: shape.value_bytes,
            cache_bytes: self.cache,
            sync: Sync::None,
            esker_pending_bytes: self.esker_pending,
        };
        let open = self.open(column, &settings).context("open")?;
        let run = self.measure(&open, column, fill, shape, folder.path(), bar);
        let Open { peer, engine, .. } = open;
        drop(engine);
        let closed = peer.close();
        let run = run?;
        // A full store may be unable to close as it should; what it did until then counts.
        if let Err(error) = closed {
            bar.suspend(|| eprintln!("note: {}, {fill} %: close: {error:#}", column.name()));
        }
        folder.close()?;
        settle_device(&self.dir)?;
        Ok(run)
    }

    fn open(&self, column: Column, settings: &Settings<'_>) -> Result<Open> {
        let written_before = process_write_bytes()?;
        let (peer, engine) = match column {
            Column::Esker => {
                let layout = FormatOptions { segment_bytes: self.segment, ..FormatOptions::new(esker::UUID) };
                let (peer, engine) = esker::open_sized(settings, self.size, &layout)?;
                (peer, Some(engine))
            }
            Column::RocksdbBlob(files) => (rocksdb::open(settings, Some(files))?, None),
        };
        Ok(Open { peer, engine, written_before })
    }

    fn measure(
        &self,
        open: &Open,
        column: Column,
        fill: u32,
        shape: Shape,
        dir: &Path,
        bar: &ProgressBar,
    ) -> Result<Run> {
        let name = column.name();
        let mut run = Run { store: name.clone(), fill, keys: shape.keys, value_bytes: self.value, ..Run::default() };
        let mut drive = Drive::new(&*open.peer, shape);
        let mut dog = Watchdog::new(self, open, dir);
        let base = bar.position();
        bar.set_message(format!("{name}, {fill} %: load"));
        let began = Instant::now();
        let mut loaded = 0;
        let end = drive.load(|progress, _| {
            loaded = progress.ops.load(Ordering::Relaxed);
            bar.set_position(base + loaded * 100 / u64::from(shape.keys));
            dog.look(progress);
            Ok(true)
        })?;
        run.load_ops_per_s = f64::from(shape.keys) / began.elapsed().as_secs_f64();
        settle_device(dir)?;
        // Longer than Esker leaves a write that no client waits for.
        std::thread::sleep(Duration::from_millis(1_500));
        run.load_write_bytes = open.sample(dir)?.written();
        if end == End::Full {
            run.outcome = format!(
                "full: {:.1} % of the size could be loaded",
                loaded as f64 * self.value as f64 * 100.0 / self.size as f64
            );
            return Ok(run);
        }
        bar.set_message(format!("{name}, {fill} %: overwrite"));
        let mut last = open.sample(dir)?;
        run.start = last.clone();
        let mut samples = Vec::new();
        let mut dog = Watchdog::new(self, open, dir);
        let mut next = 1;
        let end = drive.overwrite(|progress, elapsed| {
            dog.look(progress);
            if elapsed.as_secs() < next {
                return Ok(true);
            }
            next = elapsed.as_secs() + 1;
            let mut sample = open.sample(dir)?;
            sample.second = elapsed.as_secs_f64();
            sample.total_ops = progress.ops.load(Ordering::Relaxed);
            sample.refused = progress.refused.load(Ordering::Relaxed);
            let latencies = progress.take_latencies()?;
            let at = |quantile: f64| latencies.value_at_quantile(quantile) as f64 / 1e3;
            (sample.p50_us, sample.p99_us, sample.p999_us) = (at(0.5), at(0.99), at(0.999));
            sample.max_us = latencies.max() as f64 / 1e3;
            sample.since(&last, &run.start, self.value);
            last = sample.clone();
            samples.push(sample);
            bar.set_position(base + 100 + 200 * elapsed.as_secs() / u64::from(self.seconds));
            Ok(elapsed.as_secs() < u64::from(self.seconds))
        })?;
        run.samples = samples;
        let half = run.samples.len() / 2;
        let stands_still = run.samples[half..].iter().all(|sample| sample.ops_per_s == 0.0);
        let full = end == End::Full || stands_still;
        run.outcome = if full { run.full_outcome() } else { "done".into() };
        bar.set_message(format!("{name}, {fill} %: check"));
        run.checked = drive.check(Duration::from_secs_f64(self.check_seconds)).context("reading back")?;
        // The figures of a store that takes nothing mean nothing.
        if !full {
            run.summarize();
        }
        Ok(run)
    }

    fn setup(&self) -> std::collections::BTreeMap<String, String> {
        let mut setup = std::collections::BTreeMap::new();
        let mut say = |name: &str, value: String| setup.insert(name.to_owned(), value);
        say("size bytes", self.size.to_string());
        say("segment bytes", self.segment.to_string());
        say("value bytes", self.value.to_string());
        say("threads", self.threads.to_string());
        say("seconds", self.seconds.to_string());
        say("cache bytes", self.cache.to_string());
        say("esker pending bytes", self.esker_pending.map_or_else(|| "default".into(), |bytes| bytes.to_string()));
        say("blob_garbage_collection_force_threshold", self.blob_gc_force.to_string());
        say("processors", std::thread::available_parallelism().map_or(0, |n| n.get()).to_string());
        say("seed", self.seed.to_string());
        say("esker", "int namespace, Durability::Applied; written: device_write_bytes + cold_write_bytes".into());
        say(
            "rocksdb-blob",
            format!(
                "{}; the number is blob_garbage_collection_age_cutoff; written: write_bytes of /proc/self/io",
                rocksdb::SETUP_BLOB
            ),
        );
        setup
    }
}

impl Open {
    /// What the store and the system tell now.
    fn sample(&self, dir: &Path) -> Result<Sample> {
        let mut sample = Sample {
            process_write_bytes: process_write_bytes()?.saturating_sub(self.written_before),
            processor_us: processor_us()?,
            disk_bytes: disk_bytes(dir),
            ..Sample::default()
        };
        if let Some(engine) = &self.engine {
            let stats = engine.stats();
            sample.engine = Some(results::EngineSample {
                log_write_bytes: stats.device_write_bytes,
                cold_write_bytes: stats.cold_write_bytes,
                copied_bytes: stats.cleaned_copy_bytes,
                live_bytes: stats.live_bytes + stats.checkpoint_bytes,
                segment_bytes: stats.segment_bytes,
                segments: stats.segments,
                free_segments: stats.free_segments,
                gate: stats.gate,
                checkpoints: stats.checkpoints,
                cleaned_segments: stats.cleaned_segments,
            });
        }
        Ok(sample)
    }
}

/// Ends the program when nothing moves any more: threads that hang cannot be ended otherwise.
struct Watchdog<'a> {
    open: &'a Open,
    dir: &'a Path,
    limit: Duration,
    ops: u64,
    moved: Instant,
}

impl<'a> Watchdog<'a> {
    fn new(arguments: &Overwrite, open: &'a Open, dir: &'a Path) -> Self {
        let limit = Duration::from_secs_f64(arguments.stall_seconds);
        Self { open, dir, limit, ops: 0, moved: Instant::now() }
    }

    fn look(&mut self, progress: &Progress) {
        let ops = progress.ops.load(Ordering::Relaxed);
        if ops != self.ops {
            (self.ops, self.moved) = (ops, Instant::now());
        } else if self.moved.elapsed() > self.limit {
            eprintln!("error: no write was answered for {:.0?}, after {ops}", self.moved.elapsed());
            if let Some(engine) = &self.open.engine {
                eprintln!("{:#?}", engine.stats());
            }
            // Nothing more can be done about files that are left behind.
            let _ = std::fs::remove_dir_all(self.dir);
            std::process::exit(1);
        }
    }
}

/// Processor time that this process has taken, in microseconds.
fn processor_us() -> Result<u64> {
    let told = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Ok(u64::try_from(told.tv_sec)? * 1_000_000 + u64::try_from(told.tv_nsec)? / 1_000)
}

/// Bytes that this process sent, or will have sent, to the device.
fn process_write_bytes() -> Result<u64> {
    let told = std::fs::read_to_string("/proc/self/io").context("/proc/self/io")?;
    let line = told.lines().find_map(|line| line.strip_prefix("write_bytes:"));
    line.and_then(|line| line.trim().parse().ok()).context("/proc/self/io has no write_bytes")
}

/// Bytes that the files of a folder take; those that vanish meanwhile count nothing.
fn disk_bytes(dir: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let Ok(entries) = std::fs::read_dir(dir) else { return 0 };
    let each = entries.flatten().filter_map(|entry| {
        let metadata = entry.metadata().ok()?;
        Some(if metadata.is_dir() { disk_bytes(&entry.path()) } else { metadata.blocks() * 512 })
    });
    each.sum()
}
