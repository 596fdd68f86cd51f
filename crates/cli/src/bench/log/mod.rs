//! `esker bench log`: the three layouts of the log on several backends, and what else is to be known of its speed.
//!
//! parts (append, tokens, network, takeover, open, trim) × backends → cells and tables → text, JSON → `esker report`
//!
//! Appends are durable. "In flight" are appends that are applied and wait to be durable, spread over a few threads, for
//! all backends and layouts the same; layouts take turns, so that what changes on the machine meets all of them. The
//! sequential rate of the disk is measured in the same run.
//!
//! Invariants:
//! 1. All cells of a run are driven by the same code with the same arguments; every store is fresh for its cell.
//! 2. A latency is from the call to the moment when its thread knows the entry to be durable, which it learns in order.

mod parts;
mod processes;
mod raw;

use std::collections::VecDeque;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use esker::ByteSize;
use esker::log::{Completion, ENTRY_BYTES_MAX, Layout, Log, Options};
use serde_json::Value;

use self::raw::Rates;
use crate::bench::objects::load::Contents;
use crate::bench::objects::outcome::{Cell, FORMAT, Plot, Run, Table, size, table};
use crate::bench::objects::target::{Opened, Target};
use crate::bench::objects::threads::{Load, Tally};
use crate::bench::objects::{device_of, save};
use crate::commands::print;
use crate::config::Settings;
use crate::exit::Failure;
use crate::progress;

/// What was published of the three layouts in RADOS and its bytes: entry size, second to first.
const PUBLISHED: [(u64, f64); 3] = [(256, 1.36), (4 << 10, 2.45), (32 << 10, 10.3)];
/// And of the third to the second: "nearly 2x", whatever the size.
const PUBLISHED_SLOTS: f64 = 2.0;

/// Entries of a batch that fills a log, at most, and their bytes.
const FILL_BATCH: usize = 1_024;
const FILL_BATCH_BYTES: usize = 1 << 20;

/// The arguments of `esker bench log`.
#[derive(Args)]
pub struct LogBench {
    /// Backends, as locations: esker:PATH, memory:, file:PATH, rocksdb:PATH, leveldb:PATH, newstore:PATH; stores are
    /// made in new folders below PATH
    #[arg(long, value_delimiter = ',', default_value = "esker:./esker-bench-log")]
    backends: Vec<String>,
    /// What is measured
    #[arg(long, value_delimiter = ',', value_enum, default_value = "append,tokens,takeover")]
    parts: Vec<Part>,
    /// Layouts that are compared: omap (v1), stream (v2), slots (v3)
    #[arg(long, value_delimiter = ',', default_value = "omap,stream,slots")]
    layouts: Vec<Layout>,
    /// Entry sizes, up to 8m
    #[arg(long, value_delimiter = ',', default_value = "256,1k,4k,16k,32k,64k,128k")]
    sizes: Vec<ByteSize>,
    /// Appends under way at once
    #[arg(long, value_delimiter = ',', default_value = "64", value_parser = clap::value_parser!(u64).range(1..=65_536))]
    in_flight: Vec<u64>,
    /// Threads that the appends under way are spread over
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=1_024))]
    threads: u64,
    /// Longest time for each cell of the table, in seconds
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Appends for so many seconds before a cell is measured: the memory that a store fills at its start it then uses
    /// again
    #[arg(long, default_value_t = 1.0)]
    warm_up: f64,
    /// Objects that positions go round
    #[arg(long, default_value_t = Options::default().width)]
    width: u32,
    /// Positions per object
    #[arg(long, default_value_t = Options::default().slots)]
    slots: u32,
    /// Layout stream: entries up to this stand in the omap
    #[arg(long, default_value = "4k")]
    inline_bytes: ByteSize,
    /// Space of the disk that its sequential rate is measured on; 0 leaves that out
    #[arg(long, default_value = "1g")]
    raw: ByteSize,
    /// Part open: entries of the log that is opened
    #[arg(long, default_value = "10m")]
    open: Count,
    /// Part trim: bytes that are trimmed away
    #[arg(long, default_value = "10g")]
    trim: ByteSize,
    /// Part takeover: how often a sequencer is killed; 0 leaves that out
    #[arg(long, default_value_t = 10)]
    deaths: usize,
    /// Seed of contents
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Also write the figures to this file, for `esker report`
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Durable appends of each size, by layout
    Append,
    /// Positions that the sequencer hands out, in this process
    Tokens,
    /// Positions that a process `esker log sequencer` hands out over loopback
    Network,
    /// Taking over from another session, and from a sequencer process that is killed
    Takeover,
    /// Opening a store with a long log
    Open,
    /// Trimming while appends go on
    Trim,
}

/// A number of things: digits and an optional `k` or `m` (thousands, millions).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count(pub u64);

impl FromStr for Count {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (digits, factor) = match text.as_bytes().last() {
            Some(b'k') => (&text[..text.len() - 1], 1_000),
            Some(b'm') => (&text[..text.len() - 1], 1_000_000),
            _ => (text, 1),
        };
        let number = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(factor));
        number
            .filter(|number| *number > 0)
            .map(Self)
            .ok_or_else(|| format!("{text:?}: expected a number such as 500k or 10m"))
    }
}

impl LogBench {
    fn options(&self, layout: Layout, entry_bytes: u64) -> Options {
        Options {
            layout,
            width: self.width,
            slots: self.slots,
            entry_bytes_max: (entry_bytes as u32).max(1 << 20),
            inline_bytes_max: self.inline_bytes.0 as u32,
            ..Options::default()
        }
    }

    fn check(&self) -> Result<(), Failure> {
        let sizes = || self.sizes.iter().map(|size| size.0);
        if sizes().any(|bytes| bytes == 0 || bytes > ENTRY_BYTES_MAX.into()) {
            return Err(Failure::usage(format!("--sizes: expected 1 to {ENTRY_BYTES_MAX} bytes (ENTRY_BYTES_MAX)")));
        }
        if !self.warm_up.is_finite() || self.warm_up < 0.0 {
            return Err(Failure::usage("--warm-up must be 0 or more"));
        }
        if !self.seconds.is_finite() || self.seconds <= 0.0 || (1..raw::CHUNK_BYTES).contains(&self.raw.0) {
            return Err(Failure::usage(format!(
                "--seconds must be above 0, and --raw 0 or at least {}",
                raw::CHUNK_BYTES
            )));
        }
        Ok(())
    }

    /// Runs the command.
    pub fn run(&self, settings: &Settings) -> Result<(), Failure> {
        self.check()?;
        let targets = Target::parse_all(&self.backends)?;
        let mut run = Run {
            format: FORMAT,
            durability: "durable".into(),
            in_flight: format!("appends, by {} threads", self.threads),
            seconds: self.seconds,
            warm_up: self.warm_up,
            data_bytes: 0,
            image_bytes: 0,
            processors: std::thread::available_parallelism().map_or(1, |n| n.get()),
            seed: self.seed,
            cells: Vec::new(),
            tables: Vec::new(),
            plots: Vec::new(),
        };
        for part in Part::value_variants().iter().filter(|part| self.parts.contains(part)) {
            match part {
                Part::Append => self.appends(&targets, settings, &mut run)?,
                Part::Tokens => run.tables.push(self.tokens(&targets, settings)?),
                Part::Network => run.tables.push(self.network(&targets, settings)?),
                Part::Takeover => {
                    run.tables.push(self.takeover(&targets, settings)?);
                    if self.deaths > 0 {
                        run.tables.push(self.death(&targets, settings)?);
                    }
                }
                Part::Open => run.tables.push(self.opening(&targets, settings)?),
                Part::Trim => run.tables.push(self.trimming(&targets, settings)?),
            }
            if let Some(file) = &self.json {
                save(file, &run, &indicatif::ProgressBar::hidden())?;
            }
        }
        let mut text = if run.cells.is_empty() { String::new() } else { table(&run.cells) };
        for table in &run.tables {
            text += &format!("\n{}", table.text());
        }
        print(&text)
    }

    fn appends(&self, targets: &[Target], settings: &Settings, run: &mut Run) -> Result<(), Failure> {
        let largest = self.sizes.iter().map(|size| size.0).max().unwrap_or(1);
        let contents = Contents::new(largest, self.seed);
        let cells = self.sizes.len() * self.in_flight.len();
        let bar = progress::count("cells", (cells * targets.len() * self.layouts.len()) as u64);
        let mut rates = Rates::default();
        for entry in self.sizes.iter().map(|size| size.0) {
            for in_flight in self.in_flight.iter().copied() {
                for target in targets {
                    if self.raw.0 > 0 {
                        rates.measure(target, entry * in_flight, self.raw.0, self.seconds)?;
                    }
                    for layout in self.layouts.iter().copied() {
                        let opened = target.fresh(&self.name("append", run.cells.len()), settings)?;
                        let cell = self.append(target, &opened, layout, entry, in_flight, &contents);
                        // The store goes even if the cell failed; its error is the one that counts.
                        let removed = opened.remove();
                        run.cells.push(cell?);
                        removed?;
                        bar.inc(1);
                    }
                }
            }
            if let Some(file) = &self.json {
                save(file, run, &bar)?;
            }
        }
        bar.finish_and_clear();
        let ratios = self.ratios(targets, &run.cells, &rates);
        run.plots.extend(self.plots(&ratios));
        run.tables.push(ratio_table(&ratios));
        Ok(())
    }

    /// The name of a fresh store's folder.
    fn name(&self, part: &str, number: usize) -> String {
        format!("bench-log-{}-{part}-{number}", std::process::id())
    }

    fn append(
        &self,
        target: &Target,
        opened: &Opened,
        layout: Layout,
        entry: u64,
        in_flight: u64,
        contents: &Contents,
    ) -> Result<Cell, Failure> {
        let log = opened.store.logs()?.create("bench", self.options(layout, entry))?;
        // So that the first append of the measured does not take the log over.
        log.append("first")?.wait()?;
        let device = device_of(target);
        let threads = self.threads.min(in_flight);
        let load = Load {
            syncs: &|| opened.store.syncs(),
            backend: &format!("{} {layout}", target.label),
            phase: "append".into(),
            object_bytes: entry,
            in_flight,
            threads,
            time: Duration::from_secs_f64(self.seconds),
            device: device.as_deref(),
        };
        let next = AtomicU64::new(0);
        let work = |thread, tally: &mut Tally<'_>| {
            let own = in_flight / threads + u64::from(thread < in_flight % threads);
            let mut under_way: VecDeque<(Instant, Completion<u64>)> = VecDeque::with_capacity(own as usize);
            loop {
                let goes_on = tally.goes_on();
                if under_way.len() as u64 >= own || !goes_on {
                    let Some((started, done)) = under_way.pop_front() else { return Ok(()) };
                    done.wait()?;
                    tally.done(started, entry);
                    continue;
                }
                let data = contents.part(next.fetch_add(1, Ordering::Relaxed), entry);
                let started = Instant::now();
                under_way.push_back((started, log.append(data)?));
            }
        };
        if self.warm_up > 0.0 {
            let time = Duration::from_secs_f64(self.warm_up);
            Load { time, phase: String::new(), ..load }.run(work)?;
        }
        load.run(work)
    }

    fn ratios(&self, targets: &[Target], cells: &[Cell], rates: &Rates) -> Vec<Ratio> {
        let mut all = Vec::new();
        for target in targets {
            for entry in self.sizes.iter().map(|size| size.0) {
                for in_flight in self.in_flight.iter().copied() {
                    let of = |layout: Layout| {
                        let backend = format!("{} {layout}", target.label);
                        let same = |cell: &&Cell| {
                            (&cell.backend, cell.object_bytes, cell.in_flight) == (&backend, entry, in_flight)
                        };
                        cells.iter().find(same)
                    };
                    let rate = |layout| of(layout).map(Cell::rate);
                    let raw = rates.of(target, entry * in_flight);
                    all.push(Ratio {
                        backend: target.label.clone(),
                        entry,
                        in_flight,
                        rates: [rate(Layout::Omap), rate(Layout::Stream), rate(Layout::Slots)],
                        slots_mb_s: of(Layout::Slots).map(Cell::megabytes_per_s),
                        stream_mb_s: raw.map(|raw| raw.stream / 1e6),
                        groups_mb_s: raw.map(|raw| raw.groups / 1e6),
                        fresh_mb_s: raw.map(|raw| raw.fresh / 1e6),
                    });
                }
            }
        }
        all
    }

    fn plots(&self, ratios: &[Ratio]) -> Vec<Plot> {
        let mut sizes: Vec<u64> = ratios.iter().map(|ratio| ratio.entry).collect();
        sizes.sort_unstable();
        sizes.dedup();
        let place = |entry: u64| sizes.iter().position(|bytes| *bytes == entry);
        let mut plots = Vec::new();
        for in_flight in self.in_flight.iter().copied() {
            for (title, newer, older, published) in [
                ("stream over omap (v2/v1)", 1, 0, PUBLISHED.to_vec()),
                ("slots over stream (v3/v2)", 2, 1, sizes.iter().map(|bytes| (*bytes, PUBLISHED_SLOTS)).collect()),
            ] {
                let mut lines: Vec<(String, Vec<(usize, f64)>)> = Vec::new();
                for ratio in ratios.iter().filter(|ratio| ratio.in_flight == in_flight) {
                    let Some(point) = ratio.between(newer, older).zip(place(ratio.entry)) else { continue };
                    let point = (point.1, point.0);
                    match lines.iter_mut().find(|(backend, _)| *backend == ratio.backend) {
                        Some((_, points)) => points.push(point),
                        None => lines.push((ratio.backend.clone(), vec![point])),
                    }
                }
                if lines.is_empty() {
                    continue;
                }
                let published =
                    published.into_iter().filter_map(|(bytes, ratio)| Some((place(bytes)?, ratio))).collect();
                lines.push(("published".into(), published));
                plots.push(Plot {
                    title: format!("{title}, {in_flight} in flight"),
                    axis: "entry size".into(),
                    labels: sizes.iter().map(|bytes| size(*bytes)).collect(),
                    unit: "ratio of appends per second".into(),
                    lines,
                });
            }
        }
        plots
    }
}

/// The layouts beside each other, for one backend, entry size and number in flight.
struct Ratio {
    backend: String,
    entry: u64,
    in_flight: u64,
    /// Appends per second: omap, stream, slots.
    rates: [Option<f64>; 3],
    slots_mb_s: Option<f64>,
    stream_mb_s: Option<f64>,
    groups_mb_s: Option<f64>,
    fresh_mb_s: Option<f64>,
}

impl Ratio {
    fn between(&self, newer: usize, older: usize) -> Option<f64> {
        Some(self.rates[newer]? / self.rates[older].filter(|rate| *rate > 0.0)?)
    }
}

fn ratio_table(ratios: &[Ratio]) -> Table {
    let columns = [
        "backend",
        "entry",
        "in flight",
        "omap/s",
        "stream/s",
        "slots/s",
        "v2/v1",
        "published",
        "v3/v2",
        "published",
        "slots MB/s",
        "disk MB/s",
        "of it",
        "disk in groups MB/s",
        "of it",
        "first time MB/s",
        "of it",
    ];
    let rows = ratios.iter().map(|ratio| {
        let published = PUBLISHED.iter().find(|(bytes, _)| *bytes == ratio.entry).map(|(_, ratio)| *ratio);
        let of = |disk: Option<f64>| Some(ratio.slots_mb_s? / disk.filter(|rate| *rate > 0.0)?);
        let figure = |figure: Option<f64>| figure.map_or(Value::Null, Value::from);
        vec![
            ratio.backend.clone().into(),
            size(ratio.entry).into(),
            ratio.in_flight.into(),
            figure(ratio.rates[0].map(f64::round)),
            figure(ratio.rates[1].map(f64::round)),
            figure(ratio.rates[2].map(f64::round)),
            figure(ratio.between(1, 0)),
            figure(published),
            figure(ratio.between(2, 1)),
            figure(Some(PUBLISHED_SLOTS)),
            figure(ratio.slots_mb_s),
            figure(ratio.stream_mb_s),
            figure(of(ratio.stream_mb_s)),
            figure(ratio.groups_mb_s),
            figure(of(ratio.groups_mb_s)),
            figure(ratio.fresh_mb_s),
            figure(of(ratio.fresh_mb_s)),
        ]
    });
    Table {
        title: "layouts beside each other, what was published of them, and the disk written in order: in large pieces, in pieces of all entries in flight with a sync after each, and so on space that was reserved and never written, as a segment is the first time".into(),
        columns: columns.map(str::to_owned).to_vec(),
        rows: rows.collect(),
    }
}

/// A row of a table: a text, then figures.
fn row(name: &str, figures: impl IntoIterator<Item = Value>) -> Vec<Value> {
    std::iter::once(Value::from(name)).chain(figures).collect()
}

/// Appends `count` entries of `data` without waiting, in batches where the backend takes them, and makes them durable.
fn fill(log: &Log, opened: &Opened, data: &esker::Bytes, count: u64, what: &'static str) -> Result<(), Failure> {
    let alone = log.options().width > 1 && !opened.objects.capability().atomic_across_objects;
    let batch = if alone { 1 } else { (FILL_BATCH_BYTES / data.len().max(1)).clamp(1, FILL_BATCH) };
    let records: Vec<esker::log::Record> = (0..batch).map(|_| data.clone().into()).collect();
    let bar = progress::count(what, count);
    let mut done = 0;
    while done < count {
        let take = (count - done).min(batch as u64);
        log.append_with(&records[..take as usize], esker::Durability::Applied)?.wait()?;
        done += take;
        bar.set_position(done);
    }
    opened.objects.sync().wait()?;
    bar.finish_and_clear();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_read_in_thousands_and_millions() {
        for (text, expected) in
            [("7", Some(7)), ("500k", Some(500_000)), ("10m", Some(10_000_000)), ("0", None), ("k", None), ("", None)]
        {
            assert_eq!(text.parse::<Count>().ok().map(|count| count.0), expected, "{text}");
        }
    }

    #[test]
    fn ratios_stand_beside_what_was_published() {
        let ratio = |entry, rates| Ratio {
            backend: "b".into(),
            entry,
            in_flight: 64,
            rates,
            slots_mb_s: Some(50.0),
            stream_mb_s: Some(100.0),
            groups_mb_s: None,
            fresh_mb_s: Some(80.0),
        };
        let ratios = [ratio(256, [Some(10.0), Some(20.0), Some(30.0)]), ratio(512, [None, Some(0.0), Some(1.0)])];
        let table = ratio_table(&ratios);
        assert!(table.rows.iter().all(|row| row.len() == table.columns.len()));
        let first: Vec<String> = table.rows[0].iter().map(Table::shown).collect();
        assert_eq!(first[6..], ["2.00", "1.36", "1.50", "2.00", "50.00", "100", "0.50", "–", "–", "80.00", "0.62"]);
        assert_eq!(
            (&table.rows[1][6], &table.rows[1][8]),
            (&Value::Null, &Value::Null),
            "nothing is divided by nothing"
        );
    }
}
