//! What `esker bench objects` and `esker bench log` measure, as it stands in their JSON files: one cell for each
//! backend, phase, size and number in flight.
//!
//! Invariant: fields are added, never given another meaning; [`FORMAT`] is raised if one has to be.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// Version of the JSON files.
pub const FORMAT: u32 = 1;

/// A run: all its backends under the same conditions.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Run {
    /// [`FORMAT`].
    pub format: u32,
    /// What every operation waits for: `durable`.
    pub durability: String,
    /// What "in flight" means: `threads`, each with one operation under way.
    pub in_flight: String,
    /// Seconds that a cell takes at most.
    pub seconds: f64,
    /// Seconds for which a cell that writes was written before.
    #[serde(default)]
    pub warm_up: f64,
    /// Payload that the read phases read from, in bytes.
    pub data_bytes: u64,
    /// Payload that the overwrite phases write to, in bytes.
    pub image_bytes: u64,
    /// Processors.
    pub processors: usize,
    /// Seed of contents and random choices.
    pub seed: u64,
    /// The figures.
    pub cells: Vec<Cell>,
    /// Figures that are not of this form.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tables: Vec<Table>,
    /// Plots of what was computed from the cells.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub plots: Vec<Plot>,
}

/// Figures with a title: numbers and texts.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Table {
    /// What they are of, and how they were measured.
    pub title: String,
    /// What stands in each column, with its unit.
    pub columns: Vec<String>,
    /// The rows, each as long as the columns; null where there is no figure.
    pub rows: Vec<Vec<serde_json::Value>>,
}

impl Table {
    /// A cell as people read it.
    pub fn shown(value: &serde_json::Value) -> String {
        match value {
            serde_json::Value::Null => "–".into(),
            serde_json::Value::String(text) => text.clone(),
            serde_json::Value::Number(number) if number.is_f64() => {
                let number = number.as_f64().unwrap_or(0.0);
                if number.abs() >= 100.0 { format!("{number:.0}") } else { format!("{number:.2}") }
            }
            other => other.to_string(),
        }
    }

    /// As text, columns under one another, the first to the left.
    pub fn text(&self) -> String {
        let shown: Vec<Vec<String>> = self.rows.iter().map(|row| row.iter().map(Self::shown).collect()).collect();
        let lines = || std::iter::once(&self.columns).chain(&shown);
        let mut widths = vec![0; self.columns.len()];
        for line in lines() {
            for (width, cell) in widths.iter_mut().zip(line) {
                *width = cell.chars().count().max(*width);
            }
        }
        let mut out = format!("{}\n", self.title);
        for line in lines() {
            for (number, (cell, width)) in line.iter().zip(&widths).enumerate() {
                let padding = " ".repeat(width - cell.chars().count());
                out += &if number == 0 { format!("  {cell}{padding}") } else { format!("  {padding}{cell}") };
            }
            out = out.trim_end().to_owned() + "\n";
        }
        out
    }
}

/// Lines over named places.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Plot {
    /// What is shown.
    pub title: String,
    /// What the places are.
    pub axis: String,
    /// Their names.
    pub labels: Vec<String>,
    /// What the values are.
    pub unit: String,
    /// Name, and points: the number of the place, and the value.
    pub lines: Vec<(String, Vec<(usize, f64)>)>,
}

/// What one backend did in one phase.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Cell {
    /// The backend, as its location names it, without the path.
    pub backend: String,
    /// The phase.
    pub phase: String,
    /// Bytes of an object.
    pub object_bytes: u64,
    /// Operations under way at once.
    pub in_flight: u64,
    /// Time that the phase took, in seconds.
    pub seconds: f64,
    /// Operations done.
    pub operations: u64,
    /// Payload of them, in bytes.
    pub payload_bytes: u64,
    /// Latencies.
    pub latency: Latency,
    /// Bytes that this process had written to devices (`write_bytes` of /proc/self/io); what the backend does later is
    /// not in it.
    pub device_write_bytes: Option<u64>,
    /// Syncs that the backend counts.
    pub syncs: Option<u64>,
    /// Flushes of the whole disk, those of other processes among them; none where the system does not count them.
    pub device_flushes: Option<u64>,
    /// Processor time of the whole process, in seconds.
    pub cpu_seconds: f64,
}

/// Latencies in microseconds.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub struct Latency {
    /// Mean.
    pub mean_us: f64,
    /// Median.
    pub p50_us: f64,
    /// 99 of 100 are no longer.
    pub p99_us: f64,
    /// 999 of 1,000 are no longer.
    pub p999_us: f64,
    /// The longest.
    pub max_us: f64,
}

impl Latency {
    /// Of a histogram in nanoseconds.
    pub fn of(histogram: &Histogram<u64>) -> Self {
        let at = |quantile| histogram.value_at_quantile(quantile) as f64 / 1e3;
        Self {
            mean_us: histogram.mean() / 1e3,
            p50_us: at(0.5),
            p99_us: at(0.99),
            p999_us: at(0.999),
            max_us: histogram.max() as f64 / 1e3,
        }
    }
}

impl Cell {
    /// Operations per second.
    pub fn rate(&self) -> f64 {
        self.operations as f64 / self.seconds.max(1e-9)
    }

    /// Payload in MB (10⁶ bytes) per second.
    pub fn megabytes_per_s(&self) -> f64 {
        self.payload_bytes as f64 / 1e6 / self.seconds.max(1e-9)
    }

    /// Device bytes for each byte of payload; none where nothing was to be written.
    pub fn amplification(&self) -> Option<f64> {
        let reads = self.phase.starts_with("read") || self.phase == "list";
        let written = self.device_write_bytes.filter(|_| !reads && self.payload_bytes > 0)?;
        Some(written as f64 / self.payload_bytes as f64)
    }

    /// Of a total, the part of one operation.
    pub fn each(&self, total: f64) -> f64 {
        total / self.operations.max(1) as f64
    }

    /// Whether two cells are of the same phase, size and number in flight.
    pub fn beside(&self, other: &Self) -> bool {
        (&self.phase, self.object_bytes, self.in_flight) == (&other.phase, other.object_bytes, other.in_flight)
    }
}

/// A size as people write it.
pub fn size(bytes: u64) -> String {
    match bytes {
        0 => "–".into(),
        bytes if bytes.is_multiple_of(1 << 20) => format!("{} MiB", bytes >> 20),
        bytes if bytes.is_multiple_of(1 << 10) => format!("{} KiB", bytes >> 10),
        bytes => format!("{bytes} B"),
    }
}

/// The cells as a table. Ratios are to the first backend of the run.
pub fn table(cells: &[Cell]) -> String {
    let width = cells.iter().map(|cell| cell.backend.len()).max().unwrap_or(7).max(7);
    let mut out = format!(
        "{:<14} {:>8} {:>9}  {:<width$} {:>9} {:>10} {:>6} {:>9} {:>9} {:>9} {:>9} {:>9} {:>8} {:>8} {:>8}\n",
        "phase",
        "object",
        "in flight",
        "backend",
        "MB/s",
        "ops/s",
        "ratio",
        "mean µs",
        "p50 µs",
        "p99 µs",
        "p99.9 µs",
        "max µs",
        "device/B",
        "syncs/op",
        "CPU µs"
    );
    let mut before: Option<&Cell> = None;
    for cell in cells {
        let same = before.is_some_and(|before| before.beside(cell));
        let first = cells.iter().find(|other| other.beside(cell)).unwrap_or(cell);
        let or_dash = |figure: Option<f64>| figure.map_or("–".into(), |figure| format!("{figure:.2}"));
        let (phase, object, in_flight) = if same {
            (String::new(), String::new(), String::new())
        } else {
            (cell.phase.clone(), size(cell.object_bytes), cell.in_flight.to_string())
        };
        out.push_str(&format!(
            "{phase:<14} {object:>8} {in_flight:>9}  {:<width$} {:>9.1} {:>10.0} {:>6.2} {:>9.0} {:>9.0} {:>9.0} {:>9.0} {:>9.0} {:>8} {:>8} {:>8.0}\n",
            cell.backend,
            cell.megabytes_per_s(),
            cell.rate(),
            cell.rate() / first.rate().max(1e-9),
            cell.latency.mean_us,
            cell.latency.p50_us,
            cell.latency.p99_us,
            cell.latency.p999_us,
            cell.latency.max_us,
            or_dash(cell.amplification()),
            or_dash(cell.syncs.map(|syncs| cell.each(syncs as f64))),
            cell.each(cell.cpu_seconds) * 1e6,
        ));
        before = Some(cell);
    }
    out
}
