//! `esker bench map`: rows loaded, a scan of a large partition, reads and conditional updates by some clients, memory
//! and restart.
//!
//! fresh store → load (lists of rows, without waiting) → scan → reads → updates → close → opened by a process of its
//! own, which tells its memory
//!
//! Invariants:
//! 1. Updates are durable when they are counted, and each has a condition on the value that the one before it left; at
//!    the end rows are looked at.
//! 2. Restart time and memory are those of a new process, with nothing of the load left in it.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use esker::Durability;
use esker::map::{DataType, Get, Key, MapStorage, Mutation, Order, Scan, Schema, TableName, Value, Waist};
use serde_json::{Value as Json, json};

use super::updates::Rows;
use crate::bench::log::Count;
use crate::bench::objects::outcome::{Cell, FORMAT, Run, Table, table};
use crate::bench::objects::target::{Opened, Target};
use crate::bench::objects::threads::Load;
use crate::bench::objects::{device_of, save};
use crate::commands::{builder, print};
use crate::config::Settings;
use crate::exit::{Code, Failure};
use crate::progress;

/// Rows of a list while loading.
const LIST_ROWS: u64 = 1_000;
/// Rows that each client updates in turn.
const OWN_ROWS: u64 = 1_000;

/// The arguments of `esker bench map`.
#[derive(Args)]
pub struct MapBench {
    /// Backends, as locations: esker:PATH, memory:, file:PATH, rocksdb:PATH, leveldb:PATH; stores are made in new
    /// folders below PATH
    #[arg(long, value_delimiter = ',', default_value = "esker:./esker-bench-map")]
    backends: Vec<String>,
    /// Rows in all
    #[arg(long, default_value = "1m")]
    rows: Count,
    /// Rows of the one large partition, which is scanned
    #[arg(long, default_value = "100k")]
    large: Count,
    /// Rows of each other partition
    #[arg(long, default_value = "100")]
    partition_rows: Count,
    /// Bytes of text in each row, beside its key and a number
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u64).range(0..=1 << 20))]
    value_bytes: u64,
    /// Clients that read and update at once
    #[arg(long, value_delimiter = ',', default_value = "1,16", value_parser = clap::value_parser!(u64).range(1..=1_024))]
    clients: Vec<u64>,
    /// What is measured after the load
    #[arg(long, value_delimiter = ',', value_enum, default_value = "scan,read,update,restart")]
    parts: Vec<Part>,
    /// Longest time for each number of clients, in seconds
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Seed of contents and choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Also write the figures to this file, for `esker report`
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Only open this store, and print what that took: the process of its own
    #[arg(long, value_name = "LOCATION", hide = true)]
    reopen: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// All rows of the large partition, in order
    Scan,
    /// Rows by their key
    Read,
    /// Rows changed where a column has the expected value
    Update,
    /// Closing, opening, memory
    Restart,
}

fn name() -> TableName {
    TableName::new("bench", "rows")
}

fn schema() -> Schema {
    Schema::new()
        .column("p", DataType::BigInt)
        .column("c", DataType::BigInt)
        .column("n", DataType::BigInt)
        .column("v", DataType::Text)
        .partition("p")
        .clustering("c", Order::Asc)
}

/// What one pass over the large partition took.
struct Pass {
    rows: u64,
    bytes: u64,
    seconds: f64,
}

fn scan_large(map: &dyn MapStorage, expected: u64) -> Result<Pass, Failure> {
    let began = Instant::now();
    let mut scan = Scan::partition(&name(), Key::of("p", 0i64));
    let (mut rows, mut bytes) = (0, 0);
    loop {
        let page = map.scan(&scan)?;
        for record in &page.records {
            if record.value("c") != Some(&Value::BigInt(rows as i64)) {
                return Err(Failure::new(Code::Damage, format!("row {rows} of the scan is {record:?}")));
            }
            rows += 1;
            bytes += match record.value("v") {
                Some(Value::Text(text)) => 24 + text.len() as u64,
                _ => 24,
            };
        }
        scan.page = page.next;
        if scan.page.is_none() {
            break;
        }
    }
    if rows != expected {
        return Err(Failure::new(Code::Damage, format!("the scan has {rows} rows instead of {expected}")));
    }
    Ok(Pass { rows, bytes, seconds: began.elapsed().as_secs_f64() })
}

/// Memory of this process that is resident, in bytes.
fn resident() -> Result<u64, Failure> {
    let text = std::fs::read_to_string("/proc/self/status")?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kilobytes
        .map(|kilobytes| kilobytes << 10)
        .ok_or_else(|| Failure::new(Code::Failure, "/proc/self/status does not tell the resident memory"))
}

impl MapBench {
    /// Runs the command.
    pub fn run(&self, settings: &Settings) -> Result<(), Failure> {
        if let Some(location) = &self.reopen {
            return self.reopened(settings, location);
        }
        if !self.seconds.is_finite() || self.seconds <= 0.0 || self.large.0 > self.rows.0 {
            return Err(Failure::usage("--seconds must be above 0, and --large not above --rows"));
        }
        let targets = Target::parse_all(&self.backends)?;
        let mut run = Run {
            format: FORMAT,
            durability: "durable".into(),
            in_flight: "clients, each with one call under way".into(),
            seconds: self.seconds,
            warm_up: 0.0,
            data_bytes: self.rows.0 * (24 + self.value_bytes),
            image_bytes: 0,
            processors: std::thread::available_parallelism().map_or(1, |n| n.get()),
            seed: self.seed,
            cells: Vec::new(),
            tables: Vec::new(),
            plots: Vec::new(),
        };
        let mut tables = Tables::default();
        for (number, target) in targets.iter().enumerate() {
            let folder = format!("bench-map-{}-{number}", std::process::id());
            let opened = target.fresh(&folder, settings)?;
            match self.measure(target, &opened, &mut run.cells, &mut tables) {
                Ok(loaded) => self.restart(target, opened, &loaded, &mut tables)?,
                Err(failure) => {
                    // The first failure is the one to tell.
                    let _ = opened.remove();
                    return Err(failure);
                }
            }
        }
        run.tables = tables.done(self);
        if let Some(file) = &self.json {
            save(file, &run, &indicatif::ProgressBar::hidden())?;
        }
        let mut text = if run.cells.is_empty() { String::new() } else { table(&run.cells) };
        for table in &run.tables {
            text += &format!("\n{}", table.text());
        }
        print(&text)
    }

    /// Partition and clustering key of a row.
    fn key(&self, row: u64) -> (i64, i64) {
        match row.checked_sub(self.large.0) {
            None => (0, row as i64),
            Some(row) => (1 + (row / self.partition_rows.0) as i64, (row % self.partition_rows.0) as i64),
        }
    }

    fn row_key(&self, row: u64) -> Key {
        let (p, c) = self.key(row);
        Key::of("p", p).and("c", c)
    }

    fn measure(
        &self,
        target: &Target,
        opened: &Opened,
        cells: &mut Vec<Cell>,
        tables: &mut Tables,
    ) -> Result<Vec<Json>, Failure> {
        let map = opened.store.map()?;
        map.create_namespace(&name().namespace)?;
        map.create_table(&name(), &schema())?;
        let loaded = self.load(opened, &map)?;
        if self.parts.contains(&Part::Scan) {
            // The second pass tells what is left when the first has read what it needs.
            for pass in ["first", "second"] {
                let done = scan_large(&map, self.large.0)?;
                tables.scans.push(vec![
                    target.label.clone().into(),
                    pass.into(),
                    done.rows.into(),
                    (done.seconds * 1e3).into(),
                    (done.rows as f64 / done.seconds).round().into(),
                    (done.bytes as f64 / 1e6 / done.seconds).into(),
                ]);
            }
        }
        let device = device_of(target);
        for part in [Part::Read, Part::Update] {
            for clients in self.clients.iter().copied().filter(|_| self.parts.contains(&part)) {
                let load = Load {
                    syncs: &|| opened.store.syncs(),
                    backend: &target.label,
                    phase: if part == Part::Read { "get" } else { "update if" }.into(),
                    object_bytes: 0,
                    in_flight: clients,
                    threads: clients,
                    time: Duration::from_secs_f64(self.seconds),
                    device: device.as_deref(),
                };
                if part == Part::Read {
                    cells.push(self.reads(&load, &map)?);
                    continue;
                }
                let records = || opened.store.engine().map(|engine| engine.stats().records);
                let (before, cell) = (records(), self.updates(&load, &map)?);
                let each = |total: Option<u64>| total.map_or(Json::Null, |total| cell.each(total as f64).into());
                tables.updates.push(vec![
                    target.label.clone().into(),
                    clients.into(),
                    cell.rate().round().into(),
                    cell.latency.mean_us.into(),
                    cell.latency.p50_us.into(),
                    cell.latency.p99_us.into(),
                    each(records().zip(before).map(|(after, before)| after - before)),
                    each(cell.syncs),
                ]);
                cells.push(cell);
            }
        }
        Ok(loaded)
    }

    /// Puts all rows without waiting, and makes them durable.
    fn load(&self, opened: &Opened, map: &Waist) -> Result<Vec<Json>, Failure> {
        let bar = progress::count("loading", self.rows.0);
        let text = "v".repeat(self.value_bytes as usize);
        let (next, threads) = (AtomicU64::new(0), std::thread::available_parallelism().map_or(1, |n| n.get()));
        let began = Instant::now();
        let put = || -> Result<(), Failure> {
            loop {
                let first = next.fetch_add(LIST_ROWS, Ordering::Relaxed);
                if first >= self.rows.0 {
                    return Ok(());
                }
                let last = (first + LIST_ROWS).min(self.rows.0);
                let row = |row| {
                    let values = vec![("n".into(), 0i64.into()), ("v".into(), text.as_str().into())];
                    Mutation::put(&name(), self.row_key(row), values)
                };
                let list: Vec<Mutation> = (first..last).map(row).collect();
                map.mutate(&list, Durability::Applied)?.wait()?;
                bar.inc(last - first);
            }
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..threads).map(|_| scope.spawn(put)).collect();
            threads.into_iter().try_for_each(|thread| thread.join().expect("a bench thread does not panic"))
        })?;
        opened.objects.sync().wait()?;
        let seconds = began.elapsed().as_secs_f64();
        bar.finish_and_clear();
        let stats = opened.store.engine().map(|engine| engine.stats());
        let per_row = |bytes: u64| Json::from(bytes as f64 / self.rows.0 as f64);
        Ok(vec![
            self.rows.0.into(),
            (self.rows.0 as f64 / seconds).round().into(),
            stats.as_ref().map_or(Json::Null, |stats| per_row(stats.omap_index_bytes)),
            stats.as_ref().map_or(Json::Null, |stats| per_row(stats.live_bytes)),
        ])
    }

    fn rng(&self, thread: u64) -> fastrand::Rng {
        fastrand::Rng::with_seed(self.seed.wrapping_mul(1_000_003).wrapping_add(thread))
    }

    fn reads(&self, load: &Load<'_>, map: &Waist) -> Result<Cell, Failure> {
        load.run(|thread, tally| {
            let mut rng = self.rng(thread);
            while tally.goes_on() {
                let row = rng.u64(..self.rows.0);
                let get = Get::new(&name(), self.row_key(row));
                let started = Instant::now();
                let found = map.get(&get)?;
                tally.done(started, 24 + self.value_bytes);
                if found.is_none() {
                    return Err(Failure::new(Code::Damage, format!("row {row} is not there")));
                }
            }
            Ok(())
        })
    }

    fn updates(&self, load: &Load<'_>, map: &Waist) -> Result<Cell, Failure> {
        let share = (self.rows.0 / load.threads).max(1);
        let own = share.min(OWN_ROWS);
        load.run(|thread, tally| {
            // Spread over the client's share, so that clients and updates meet different partitions.
            let key = |number: u64| self.row_key((thread * share + number * (share / own)).min(self.rows.0 - 1));
            let mut rows = Rows::new(map, &name(), own, key);
            while tally.goes_on() {
                rows.ready()?;
                let started = Instant::now();
                rows.update()?;
                tally.done(started, 8);
            }
            rows.check()
        })
    }

    fn restart(&self, target: &Target, opened: Opened, loaded: &[Json], tables: &mut Tables) -> Result<(), Failure> {
        let mut row = vec![Json::from(target.label.clone())];
        row.extend_from_slice(loaded);
        if !target.on_disk() || !self.parts.contains(&Part::Restart) {
            tables.restarts.push(row);
            return opened.remove();
        }
        let began = Instant::now();
        let closed = opened.close()?;
        row.push((began.elapsed().as_secs_f64() * 1e3).into());
        let location = target.location(&closed);
        let mut command = std::process::Command::new(std::env::current_exe()?);
        command.args(["bench", "map", "--reopen", &location, "--large", &self.large.0.to_string()]);
        command.args(["--rows", &self.rows.0.to_string()]).stderr(std::process::Stdio::inherit());
        let output = command.output()?;
        if !output.status.success() {
            return Err(Failure::new(Code::Failure, "the process that opened the store again failed"));
        }
        let told: Json = serde_json::from_slice(&output.stdout).map_err(|error| {
            Failure::new(Code::Failure, format!("the process that opened the store again: {error}"))
        })?;
        for figure in ["open_ms", "first_row_ms", "resident_bytes_per_row", "scan_rows_per_s"] {
            row.push(told[figure].clone());
        }
        tables.restarts.push(row);
        Ok(())
    }

    /// What the process of its own does.
    fn reopened(&self, settings: &Settings, location: &str) -> Result<(), Failure> {
        let before = resident()?;
        let began = Instant::now();
        let store = builder(settings).create(false).open(location)?;
        let map: Arc<dyn MapStorage> = Arc::new(store.map()?);
        let open = began.elapsed();
        let opened = resident()?;
        let row = map.get(&Get::new(&name(), Key::of("p", 0i64).and("c", (self.large.0 / 2) as i64)))?;
        let first_row = began.elapsed();
        if row.is_none() {
            return Err(Failure::new(Code::Damage, "a row in the middle is not there"));
        }
        let pass = scan_large(&*map, self.large.0)?;
        store.close()?;
        let told = json!({
            "open_ms": open.as_secs_f64() * 1e3,
            "first_row_ms": first_row.as_secs_f64() * 1e3,
            "resident_bytes_per_row": opened.saturating_sub(before) as f64 / self.rows.0 as f64,
            "scan_rows_per_s": (pass.rows as f64 / pass.seconds).round(),
        });
        print(&format!("{told}\n"))
    }
}

/// Rows of the tables, as they come.
#[derive(Default)]
struct Tables {
    scans: Vec<Vec<Json>>,
    updates: Vec<Vec<Json>>,
    restarts: Vec<Vec<Json>>,
}

impl Tables {
    fn done(self, bench: &MapBench) -> Vec<Table> {
        let table = |title: String, columns: &[&str], mut rows: Vec<Vec<Json>>| {
            rows.iter_mut().for_each(|row| row.resize(columns.len(), Json::Null));
            Table { title, columns: columns.iter().map(|name| (*name).to_owned()).collect(), rows }
        };
        let tables = [
            table(
                format!("scan of a partition of {} rows, in pages", bench.large.0),
                &["backend", "pass", "rows", "ms", "rows/s", "MB/s"],
                self.scans,
            ),
            table(
                "a row changed if a column has the expected value; durable".into(),
                &["backend", "clients", "updates/s", "mean µs", "p50 µs", "p99 µs", "log records each", "syncs each"],
                self.updates,
            ),
            table(
                format!(
                    "rows of {} bytes put in lists of {LIST_ROWS} without waiting, then the store closed and opened by another process",
                    24 + bench.value_bytes
                ),
                &[
                    "backend",
                    "rows",
                    "put/s",
                    "index B/row",
                    "live B/row",
                    "close ms",
                    "open ms",
                    "first row ms",
                    "resident B/row",
                    "scan rows/s",
                ],
                self.restarts,
            ),
        ];
        tables.into_iter().filter(|table| !table.rows.is_empty()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_a_key_of_its_own() {
        #[derive(clap::Parser)]
        struct Arguments {
            #[command(flatten)]
            bench: MapBench,
        }
        let arguments = ["bench", "--rows", "1k", "--large", "300", "--partition-rows", "7"];
        let bench = <Arguments as clap::Parser>::parse_from(arguments).bench;
        let keys: std::collections::BTreeSet<_> = (0..1_000).map(|row| bench.key(row)).collect();
        assert_eq!(keys.len(), 1_000);
        assert_eq!(keys.iter().filter(|(p, _)| *p == 0).count(), 300);
    }
}
