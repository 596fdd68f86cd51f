//! Samples, what they come to, and how they are told.
//!
//! samples, one a second → [`Run::summarize`] → second half: medians, written over payload → table, JSON
//!
//! Invariants:
//! 1. Write amplification is a quotient of sums, never a median of quotients: cleaning and flushing come in bursts.
//! 2. The worst stall is that of the whole run.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufWriter;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;

use super::theory;
use crate::report::print_aligned;
use crate::units::short;

/// What Esker's engine told; counters count since it was opened.
#[derive(Clone, Debug, Default, Serialize)]
pub struct EngineSample {
    /// Bytes of log written.
    pub log_write_bytes: u64,
    /// Bytes of copies and checkpoints written.
    pub cold_write_bytes: u64,
    /// Bytes that cleaning copied.
    pub copied_bytes: u64,
    /// Bytes that objects point to, framing included, and those of the last checkpoint.
    pub live_bytes: u64,
    /// Segment size.
    pub segment_bytes: u64,
    /// Segments.
    pub segments: u64,
    /// Of those, free.
    pub free_segments: u64,
    /// 0: writes are let in; 1: they wait; 2: refused.
    pub gate: u64,
    /// Checkpoints written.
    pub checkpoints: u64,
    /// Segments cleaned.
    pub cleaned_segments: u64,
}

impl EngineSample {
    /// What lives, framing and index included, over the segments in use.
    pub fn utilisation(&self) -> f64 {
        let used = (self.segments - self.free_segments) * self.segment_bytes;
        self.live_bytes as f64 / used.max(1) as f64
    }
}

/// One second.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Sample {
    /// When it was taken, in seconds of overwriting.
    pub second: f64,
    /// Calls since the start.
    pub total_ops: u64,
    /// Attempts refused since the start.
    pub refused: u64,
    /// Calls per second since the last sample.
    pub ops_per_s: f64,
    /// Latencies of the calls that ended in this second, in microseconds.
    pub p50_us: f64,
    /// 99 of 100 took at most this.
    pub p99_us: f64,
    /// 999 of 1,000 took at most this.
    pub p999_us: f64,
    /// The slowest.
    pub max_us: f64,
    /// Bytes written in this second over bytes of payload in it; 0 without any.
    pub amplification: f64,
    /// The same since the start of overwriting.
    pub total_amplification: f64,
    /// `write_bytes` of the process since the store was opened.
    pub process_write_bytes: u64,
    /// Processor time of the process, in microseconds.
    pub processor_us: u64,
    /// Bytes that the store's files take.
    pub disk_bytes: u64,
    /// What Esker's engine told.
    pub engine: Option<EngineSample>,
}

impl Sample {
    /// Bytes written to the device since the store was opened: by the engine's count, else by the system's.
    pub fn written(&self) -> u64 {
        self.engine.as_ref().map_or(self.process_write_bytes, |e| e.log_write_bytes + e.cold_write_bytes)
    }

    /// Works out what belongs to the time since `last` and since `start`.
    pub fn since(&mut self, last: &Self, start: &Self, value_bytes: u64) {
        self.ops_per_s = (self.total_ops - last.total_ops) as f64 / (self.second - last.second).max(1e-9);
        self.amplification = self.amplification_since(last, value_bytes);
        self.total_amplification = self.amplification_since(start, value_bytes);
    }

    fn amplification_since(&self, before: &Self, value_bytes: u64) -> f64 {
        let payload = (self.total_ops - before.total_ops) * value_bytes;
        if payload == 0 { 0.0 } else { (self.written() - before.written()) as f64 / payload as f64 }
    }
}

/// The second half of a run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Summary {
    /// Median of the seconds.
    pub ops_per_s: f64,
    /// The slowest second.
    pub ops_per_s_min: f64,
    /// Median of the seconds.
    pub p50_us: f64,
    /// Median of the seconds.
    pub p99_us: f64,
    /// Median of the seconds. Says little of stalls: they are long and few.
    pub p999_us: f64,
    /// The slowest call of the whole run.
    pub stall_us: f64,
    /// Processor time of the whole process for a call, in microseconds.
    pub processor_us: f64,
    /// Bytes written over bytes of payload.
    pub amplification: f64,
    /// The same by `write_bytes` of the process.
    pub process_amplification: f64,
    /// Files' bytes over payload that lives, the most of all seconds.
    pub space: f64,
    /// How often the live data was overwritten in the whole run.
    pub turnover: f64,
    /// Esker: bytes of log, of copies, and of other cold writes (checkpoints, padding), each over payload.
    pub parts: Option<[f64; 3]>,
    /// Esker: what lives, framing and index included, over the segments in use: the utilisation that cleaning meets.
    pub utilisation: Option<f64>,
    /// Esker: what theory says for that utilisation, framing included.
    pub theory: Option<f64>,
    /// Esker: free segments, the median and the least.
    pub free_segments: Option<[f64; 2]>,
    /// Attempts refused in the whole run.
    pub refused: u64,
}

/// One store at one fill level.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Run {
    /// The store.
    pub store: String,
    /// Payload that lives, in percent of the size.
    pub fill: u32,
    /// Number of keys.
    pub keys: u32,
    /// Size of values.
    pub value_bytes: u64,
    /// How it ended: `done`, or when it was full.
    pub outcome: String,
    /// Loading, calls per second.
    pub load_ops_per_s: f64,
    /// Bytes written until the end of loading.
    pub load_write_bytes: u64,
    /// Values read back and found right at the end.
    pub checked: u64,
    /// Before overwriting.
    pub start: Sample,
    /// One a second.
    pub samples: Vec<Sample>,
    /// Of the second half; none if there were not enough seconds.
    pub summary: Option<Summary>,
}

impl Run {
    /// Works out the summary.
    pub fn summarize(&mut self) {
        let half = self.samples.len() / 2;
        let (Some(middle), Some(last)) = (half.checked_sub(1).and_then(|at| self.samples.get(at)), self.samples.last())
        else {
            return;
        };
        let second_half = &self.samples[half..];
        let over = |figure: fn(&Sample) -> f64| median(second_half.iter().map(figure));
        let payload = (last.total_ops - middle.total_ops).max(1) as f64 * self.value_bytes as f64;
        let live = f64::from(self.keys) * self.value_bytes as f64;
        let process = last.process_write_bytes - middle.process_write_bytes;
        let mut summary = Summary {
            ops_per_s: over(|s| s.ops_per_s),
            ops_per_s_min: second_half.iter().map(|s| s.ops_per_s).fold(f64::INFINITY, f64::min),
            p50_us: over(|s| s.p50_us),
            p99_us: over(|s| s.p99_us),
            p999_us: over(|s| s.p999_us),
            stall_us: self.samples.iter().map(|s| s.max_us).fold(0.0, f64::max),
            processor_us: (last.processor_us - middle.processor_us) as f64
                / (last.total_ops - middle.total_ops).max(1) as f64,
            amplification: last.amplification_since(middle, self.value_bytes),
            process_amplification: process as f64 / payload,
            space: self.samples.iter().map(|s| s.disk_bytes).max().unwrap_or(0) as f64 / live,
            turnover: last.total_ops as f64 / f64::from(self.keys),
            refused: last.refused,
            ..Summary::default()
        };
        if let (Some(before), Some(after)) = (&middle.engine, &last.engine) {
            let copied = after.copied_bytes - before.copied_bytes;
            let cold = after.cold_write_bytes - before.cold_write_bytes;
            let parts = [after.log_write_bytes - before.log_write_bytes, copied, cold.saturating_sub(copied)];
            summary.parts = Some(parts.map(|bytes| bytes as f64 / payload));
            let engines = || second_half.iter().filter_map(|s| s.engine.as_ref());
            let utilisation = median(engines().map(EngineSample::utilisation));
            let framing = median(engines().map(|e| e.live_bytes as f64 / live));
            summary.utilisation = Some(utilisation);
            summary.theory = Some(framing * theory::write_amplification(utilisation));
            let free = median(engines().map(|e| e.free_segments as f64));
            let least = engines().map(|e| e.free_segments).min().unwrap_or(0);
            summary.free_segments = Some([free, least as f64]);
        }
        self.summary = Some(summary);
    }

    /// When the store began to refuse everything, and what lived in it then.
    pub fn full_outcome(&self) -> String {
        let working = self.samples.iter().rev().find(|sample| sample.ops_per_s > 0.0);
        let written = working.map_or(0.0, |sample| sample.total_ops as f64 / f64::from(self.keys));
        let engine = working.unwrap_or(&self.start).engine.as_ref();
        let lives = engine.map_or_else(String::new, |e| format!(", utilisation {:.3}", e.utilisation()));
        format!("full after {:.1} % overwritten{lives}", written * 100.0)
    }

    /// One line for the terminal.
    pub fn line(&self) -> String {
        let Some(s) = &self.summary else { return format!("{}, {} %: {}", self.store, self.fill, self.outcome) };
        format!(
            "{}, {} %: {}/s, written {:.2}x, p99.9 {}, worst {}, {} checked, {}",
            self.store,
            self.fill,
            short(s.ops_per_s),
            s.amplification,
            time(s.p999_us),
            time(s.stall_us),
            self.checked,
            self.outcome
        )
    }
}

/// Everything that was measured.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Results {
    /// How the run was set up.
    pub setup: BTreeMap<String, String>,
    /// Names of the stores in order; the first is the numerator of every ratio.
    pub columns: Vec<String>,
    /// All runs.
    pub runs: Vec<Run>,
}

impl Results {
    /// Fill levels in order.
    pub fn fills(&self) -> Vec<u32> {
        let mut fills: Vec<u32> = self.runs.iter().map(|run| run.fill).collect();
        fills.sort_unstable();
        fills.dedup();
        fills
    }

    /// A store's run at a fill level.
    pub fn run(&self, store: &str, fill: u32) -> Option<&Run> {
        self.runs.iter().find(|run| run.store == store && run.fill == fill)
    }

    /// Prints the tables in Markdown.
    pub fn print(&self) {
        println!("\n## Overwriting at random: medians of the second half; ratio is {} to it\n", self.columns[0]);
        let head = [
            "fill", "store", "ops/s", "ratio", "least", "cpu", "p50", "p99", "p99.9", "worst", "written", "theory",
            "space", "turns", "end",
        ];
        let mut lines = vec![head.map(str::to_owned).to_vec()];
        for fill in self.fills() {
            let first = self.run(&self.columns[0], fill).and_then(|run| run.summary.as_ref());
            for run in self.columns.iter().filter_map(|store| self.run(store, fill)) {
                let mut line = vec![format!("{fill} %"), run.store.clone()];
                if let Some(s) = &run.summary {
                    let ratio = first.map(|first| format!("{:.2}x", first.ops_per_s / s.ops_per_s.max(1e-9)));
                    let theory = theory::write_amplification(f64::from(fill) / 100.0);
                    line.extend([short(s.ops_per_s), ratio.unwrap_or_default(), short(s.ops_per_s_min)]);
                    line.push(time(s.processor_us));
                    line.extend([time(s.p50_us), time(s.p99_us), time(s.p999_us), time(s.stall_us)]);
                    line.extend([format!("{:.2}", s.amplification), format!("{theory:.2}")]);
                    line.extend([format!("{:.2}", s.space), format!("{:.1}", s.turnover)]);
                }
                line.resize(head.len() - 1, String::new());
                line.push(run.outcome.clone());
                lines.push(line);
            }
        }
        print_aligned(&lines);
        self.print_engine();
        println!("\nSet up:");
        for (name, value) in &self.setup {
            println!("- {name}: {value}");
        }
    }

    /// What Esker wrote, and what theory says for the utilisation that its cleaner meets.
    fn print_engine(&self) {
        let head = [
            "fill",
            "written",
            "log",
            "copies",
            "other",
            "by system",
            "utilisation",
            "theory",
            "written/theory",
            "free",
            "least free",
        ];
        let mut lines = vec![head.map(str::to_owned).to_vec()];
        for run in &self.runs {
            let Some(s) = &run.summary else { continue };
            let (Some(parts), Some(utilisation), Some(theory), Some(free)) =
                (s.parts, s.utilisation, s.theory, s.free_segments)
            else {
                continue;
            };
            let mut line = vec![format!("{} %", run.fill), format!("{:.2}", s.amplification)];
            line.extend(parts.map(|part| format!("{part:.2}")));
            line.extend([
                format!("{:.2}", s.process_amplification),
                format!("{utilisation:.3}"),
                format!("{theory:.2}"),
            ]);
            line.extend([
                format!("{:.2}", s.amplification / theory),
                format!("{:.0}", free[0]),
                format!("{:.0}", free[1]),
            ]);
            lines.push(line);
        }
        if lines.len() > 1 {
            println!("\n## What Esker wrote over payload; theory for what lives in the segments in use\n");
            print_aligned(&lines);
        }
    }

    /// Writes everything as JSON.
    pub fn write_json(&self, path: &Path) -> Result<()> {
        let context = || format!("{}", path.display());
        let file = BufWriter::new(File::create(path).with_context(context)?);
        serde_json::to_writer(file, self).with_context(context)
    }
}

/// The median, or 0 where there is no value.
fn median(values: impl Iterator<Item = f64>) -> f64 {
    esker_bench_figures::median(values).unwrap_or(0.0)
}

/// A time for a table.
pub fn time(us: f64) -> String {
    match us {
        us if us >= 999_500.0 => format!("{:.2} s", us / 1e6),
        us if us >= 99_950.0 => format!("{:.0} ms", us / 1e3),
        us if us >= 999.5 => format!("{:.1} ms", us / 1e3),
        us => format!("{us:.1} us"),
    }
}
