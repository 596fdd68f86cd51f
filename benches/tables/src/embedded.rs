//! `esker-bench-tables run`: the embedded stores, in turn, on one device.
//!
//! for each round → each data set → each peer: fresh folder → write → settle → warm → read → close → delete → sync,
//! pause
//!
//! Invariants:
//! 1. Peers take turns inside a round, and start one place further on in the next, so that drift hits all alike.
//! 2. A peer begins with an empty folder and a device that has nothing left to write for the one before.
//! 3. Page cache and synced figures go to different tables.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use esker_bench_figures::progress;
use indicatif::ProgressBar;

use crate::keys::{Keys, Order};
use crate::load::Load;
use crate::peer::{Peer, Settings, Sync};
use crate::peers::Kind;
use crate::report::{Column, Report, Role};
use crate::units;

/// Which tables are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Table {
    /// Writes that no client waits for, and reads of warm data.
    PageCache,
    /// Writes that are durable when acknowledged.
    Synced,
}

impl Table {
    fn title(self) -> &'static str {
        match self {
            Self::PageCache => "page cache",
            Self::Synced => "synced",
        }
    }
}

/// A data set: size of values and number of keys.
#[derive(Clone, Copy, Debug)]
pub struct DataSet {
    value_bytes: usize,
    keys: u32,
}

fn data_set(text: &str) -> Result<DataSet> {
    let (size, keys) = text.split_once(':').unwrap_or((text, ""));
    let value_bytes = usize::try_from(units::bytes(size)?)?;
    if !(4..=32 << 20).contains(&value_bytes) {
        bail!("{text}: values are 4 bytes to 32 MiB");
    }
    let keys = match keys {
        "" => match value_bytes {
            0..256 => 1_000_000,
            256..16_384 => 200_000,
            _ => 4_000,
        },
        keys => units::count(keys)?,
    };
    if keys == 0 {
        bail!("{text}: at least one key");
    }
    Ok(DataSet { value_bytes, keys })
}

/// The arguments of `run`.
#[derive(Args, Debug)]
pub struct Run {
    /// Peers, separated by commas; all but esker-memory by default
    #[arg(long, value_enum, value_delimiter = ',')]
    peers: Vec<Kind>,
    /// Data sets of the page cache table, SIZE[:KEYS]; 1m keys of 4, 200k of 1k, 4k of 100k by default
    #[arg(long, value_parser = data_set, value_delimiter = ',', default_value = "4,1k,100k")]
    values: Vec<DataSet>,
    /// Number of keys of every data set, up to 4,294,967,295, such as 100m
    #[arg(long, value_parser = units::count)]
    keys: Option<u32>,
    /// Tables to make
    #[arg(long, value_enum, value_delimiter = ',', default_value = "page-cache,synced")]
    tables: Vec<Table>,
    /// Order in which keys are written
    #[arg(long, value_enum, default_value = "sequential")]
    order: Order,
    /// Numbers of writing threads, page cache; reads follow the first
    #[arg(long, value_delimiter = ',', default_value = "1,4")]
    writers: Vec<u32>,
    /// Numbers of reading threads
    #[arg(long, value_delimiter = ',', default_value = "1,4")]
    readers: Vec<u32>,
    /// Numbers of writing threads, synced
    #[arg(long, value_delimiter = ',', default_value = "1,16")]
    synced_writers: Vec<u32>,
    /// Sizes of values, synced
    #[arg(long, value_parser = units::bytes, value_delimiter = ',', default_value = "4,1k")]
    synced_values: Vec<u64>,
    /// Rounds; the figures are their medians
    #[arg(long, default_value_t = 3)]
    rounds: u32,
    /// Read cache of every peer, in bytes
    #[arg(long, value_parser = units::bytes, default_value = "2g")]
    cache: u64,
    /// How far Esker's writers may be ahead of the device, in bytes; its own default if not given
    #[arg(long, value_parser = units::bytes)]
    esker_pending: Option<u64>,
    /// Seconds of each measurement of reads
    #[arg(long, default_value_t = 1.0)]
    read_seconds: f64,
    /// Seconds of each measurement of synced writes
    #[arg(long, default_value_t = 1.5)]
    synced_seconds: f64,
    /// Longest time of one page cache load in seconds; what was written until then counts
    #[arg(long, default_value_t = 120.0)]
    write_seconds_max: f64,
    /// Longest time of the pass that warms caches and checks every value, in seconds
    #[arg(long, default_value_t = 30.0)]
    warm_seconds_max: f64,
    /// Pause between peers in seconds, after everything is synced
    #[arg(long, default_value_t = 0.3)]
    pause_seconds: f64,
    /// Memory touched before the first round, in bytes, so that a virtual machine's host gives it before any peer is
    /// timed; three quarters of what is available if not given
    #[arg(long, value_parser = units::bytes)]
    touch_memory: Option<u64>,
    /// Folder on the device to be measured; what is made there is deleted
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    /// Seed of keys and values
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// File for all figures as JSON
    #[arg(long)]
    json: Option<PathBuf>,
}

impl Run {
    /// Measures and reports.
    pub fn run(mut self) -> Result<()> {
        if self.peers.is_empty() {
            self.peers = Kind::DEFAULT.to_vec();
        }
        if let Some(keys) = self.keys {
            self.values.iter_mut().for_each(|set| set.keys = keys);
        }
        let mut report = Report { columns: self.peers.iter().map(|kind| column(*kind)).collect(), ..Report::default() };
        report.setup = self.setup();
        let page_cache = self.tables.contains(&Table::PageCache);
        let synced = self.tables.contains(&Table::Synced);
        let steps = if page_cache { self.values.len() * self.writers.len() } else { 0 }
            + if synced { self.synced_values.len() * self.synced_writers.len() } else { 0 };
        let bar = progress((steps * self.peers.len()) as u64 * u64::from(self.rounds));
        bar.enable_steady_tick(Duration::from_millis(500));
        bar.set_message("touching memory");
        let touched = self.touch_memory.unwrap_or_else(|| available_memory() / 4 * 3);
        report.setup.insert("touched memory bytes".into(), touched.to_string());
        touch_memory(touched);
        for round in 0..self.rounds {
            if page_cache {
                for set in &self.values {
                    for (number, writers) in self.writers.iter().enumerate() {
                        self.turns(round, &bar, |kind| {
                            self.page_cache(&mut report, &bar, kind, *set, *writers, number == 0)
                        })?;
                    }
                }
            }
            if synced {
                for value_bytes in &self.synced_values {
                    for writers in &self.synced_writers {
                        self.turns(round, &bar, |kind| {
                            self.synced(&mut report, &bar, kind, *value_bytes as usize, *writers)
                        })?;
                    }
                }
            }
        }
        bar.finish_and_clear();
        report.finish();
        report.print();
        self.json.as_ref().map_or(Ok(()), |path| report.write_json(path))
    }

    /// Every peer's turn, beginning one further on in each round.
    fn turns(&self, round: u32, bar: &ProgressBar, mut turn: impl FnMut(Kind) -> Result<()>) -> Result<()> {
        let first = round as usize % self.peers.len();
        for kind in self.peers[first..].iter().chain(&self.peers[..first]) {
            turn(*kind).with_context(|| kind.name())?;
            bar.inc(1);
        }
        Ok(())
    }

    fn load(&self, value_bytes: usize, count: u32) -> Load {
        Load { keys: Keys::new(count, self.order, self.seed), count, value_bytes, seed: self.seed }
    }

    fn page_cache(
        &self,
        report: &mut Report,
        bar: &ProgressBar,
        kind: Kind,
        set: DataSet,
        writers: u32,
        reads: bool,
    ) -> Result<()> {
        let title = Table::PageCache.title();
        let size = units::short_bytes(set.value_bytes);
        let load = self.load(set.value_bytes, set.keys);
        let say = |what: &str| bar.set_message(format!("{}, {size}: {what}", kind.name()));
        self.with_peer(kind, &load, Sync::None, |peer| {
            say("write");
            let time_max = Duration::from_secs_f64(self.write_seconds_max);
            // Runs that keep the order of keys nearly that of time, and all threads busy to the end.
            let run = (set.keys / 1_000).clamp(1, 64);
            let (reached, written) = load.write(peer, writers, run, time_max)?;
            report.add(title, &format!("{size}, write, {}", threads(writers)), kind.name(), reached.ops_per_s());
            if !reads {
                // Still proves a part of what was written.
                let some = Duration::from_secs_f64(0.2);
                return load.read_all(peer, 2, written, some).map(|_| ());
            }
            say("settle");
            peer.settle()?;
            settle_device(&self.dir)?;
            say("warm");
            load.read_all(peer, 2, written, Duration::from_secs_f64(self.warm_seconds_max))?;
            for readers in &self.readers {
                say("read");
                let reached = load.read(peer, *readers, written, Duration::from_secs_f64(self.read_seconds))?;
                let row = format!("{size}, random read, {}", threads(*readers));
                report.add(title, &row, kind.name(), reached.ops_per_s());
            }
            Ok(())
        })
    }

    fn synced(
        &self,
        report: &mut Report,
        bar: &ProgressBar,
        kind: Kind,
        value_bytes: usize,
        writers: u32,
    ) -> Result<()> {
        if !kind.is_durable() {
            return Ok(());
        }
        let title = Table::Synced.title();
        let size = units::short_bytes(value_bytes);
        let load = self.load(value_bytes, 1_000_000);
        bar.set_message(format!("{}, {size}: synced writes", kind.name()));
        self.with_peer(kind, &load, Sync::Each, |peer| {
            let time = Duration::from_secs_f64(self.synced_seconds);
            let (reached, written) = load.write(peer, writers, 1, time)?;
            report.add(title, &format!("{size}, write, {}", threads(writers)), kind.name(), reached.ops_per_s());
            load.read_all(peer, 2, written, time).map(|_| ())
        })
    }

    /// Opens a peer in a fresh folder, hands it out, closes it, deletes the folder, and lets the device come to rest.
    fn with_peer(&self, kind: Kind, load: &Load, sync: Sync, work: impl FnOnce(&dyn Peer) -> Result<()>) -> Result<()> {
        let folder = tempfile::Builder::new().prefix("esker-bench-tables-").tempdir_in(&self.dir).context("--dir")?;
        let settings = Settings {
            dir: folder.path(),
            keys: load.count,
            value_bytes: load.value_bytes,
            cache_bytes: self.cache,
            sync,
            esker_pending_bytes: self.esker_pending,
        };
        let peer = kind.open(&settings).context("open")?;
        let worked = work(&*peer);
        let closed = peer.close();
        worked.and(closed)?;
        folder.close()?;
        settle_device(&self.dir)?;
        std::thread::sleep(Duration::from_secs_f64(self.pause_seconds));
        Ok(())
    }

    fn setup(&self) -> std::collections::BTreeMap<String, String> {
        let data: Vec<String> = self
            .values
            .iter()
            .map(|set| format!("{} keys of {}", set.keys, units::short_bytes(set.value_bytes)))
            .collect();
        let mut setup = std::collections::BTreeMap::new();
        let mut say = |name: &str, value: String| setup.insert(name.to_owned(), value);
        say("data sets", data.join(", "));
        say("order", format!("{:?}", self.order).to_lowercase());
        say("rounds", self.rounds.to_string());
        say("cache bytes", self.cache.to_string());
        say("esker pending bytes", self.esker_pending.map_or_else(|| "default".into(), |bytes| bytes.to_string()));
        say("read seconds", self.read_seconds.to_string());
        say("synced seconds", self.synced_seconds.to_string());
        say("processors", std::thread::available_parallelism().map_or(0, |n| n.get()).to_string());
        say("seed", self.seed.to_string());
        setup
    }
}

fn column(kind: Kind) -> Column {
    let role = match kind {
        Kind::Esker => Role::Ours,
        kind if kind.is_rival() => Role::Rival,
        _ => Role::Scale,
    };
    Column { name: kind.name().into(), role, setup: kind.setup().into() }
}

fn threads(number: u32) -> String {
    if number == 1 { "1 thread".into() } else { format!("{number} threads") }
}

/// What the system says can be taken without swapping, in bytes; 0 if it does not say.
fn available_memory() -> u64 {
    let told = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = told.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches("kB").trim().parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

/// Takes so much memory, writes to each of its pages and gives it back.
fn touch_memory(bytes: u64) {
    const CHUNK: usize = 64 << 20;
    let chunks = usize::try_from(bytes).unwrap_or(usize::MAX) / CHUNK;
    let touched: Vec<Vec<u8>> = (0..chunks).map(|_| std::hint::black_box(vec![1; CHUNK])).collect();
    drop(touched);
}

/// Waits until the file system of `dir` has written everything, so that it is not paid for by the next.
pub fn settle_device(dir: &Path) -> Result<()> {
    let begun = Instant::now();
    rustix::fs::syncfs(File::open(dir)?).context("syncfs")?;
    if begun.elapsed() > Duration::from_secs(60) {
        eprintln!("note: the device took {:.0?} to come to rest", begun.elapsed());
    }
    Ok(())
}
