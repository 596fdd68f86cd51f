//! `esker stat`: the figures of a running server, as rates.
//!
//! INFO server esker → [`Sample`] → the difference of two, divided by the time between them → a line of a table, or
//! JSON
//!
//! With `--stages` a block of lines instead: how long each stage took, and what the written bytes were.
//!
//! Invariants:
//! 1. Without `--interval` the rates are those since the server was started.
//! 2. A figure that the server does not know is 0, and a counter that went back (the server was restarted) gives no
//!    rate.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use clap::Args;
use esker::engine::Histogram;

use super::server::Credentials;
use super::{print, serve};
use crate::config::Settings;
use crate::exit::{Code, Failure};

/// Lines between two headings of the table.
const HEADING_LINES: u64 = 20;

/// The arguments of `esker stat`.
#[derive(Args)]
pub struct Stat {
    /// The server: HOST:PORT, or the path of its unix socket; without it the first address that the configuration
    /// listens on
    address: Option<String>,
    /// Show what happened in each interval, such as 1s, until interrupted; without it, averages since the server was
    /// started
    #[arg(long, short, value_name = "TIME")]
    interval: Option<esker::Period>,
    /// End after so many intervals
    #[arg(long, short = 'n', requires = "interval", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    #[command(flatten)]
    credentials: Credentials,
    /// Show how long each stage of writes and reads took, and what the written bytes were, instead of the table
    #[arg(long)]
    stages: bool,
    /// One JSON object per interval
    #[arg(long)]
    json: bool,
}

impl Stat {
    /// Runs the command.
    pub fn run(self, settings: Settings) -> Result<(), Failure> {
        let configured = settings.serve.listen.first().cloned();
        let address = self.address.clone().or(configured).ok_or_else(|| Failure::usage("no address of a server"))?;
        let interval = self.interval.map(|interval| interval.0);
        if interval.is_some_and(|interval| interval.is_zero()) {
            return Err(Failure::usage("an interval of 0: expected a time such as 1s"));
        }
        let mut client = self.credentials.connect(&address, &settings)?;
        let mut take = || Sample::parse(&client.call(&["INFO", "server", "esker", serve::STAGES_SECTION])?, &address);
        let Some(interval) = interval else {
            let now = take()?;
            let elapsed = Duration::from_secs(now.get("uptime_in_seconds").max(1));
            return self.show(0, &Figures::between(&Sample::default(), &now, elapsed));
        };
        let (mut before, mut taken) = (take()?, Instant::now());
        for line in 0..self.count.unwrap_or(u64::MAX) {
            std::thread::sleep(interval);
            let (now, at) = (take()?, Instant::now());
            self.show(line, &Figures::between(&before, &now, at - taken))?;
            (before, taken) = (now, at);
        }
        Ok(())
    }

    fn show(&self, line: u64, figures: &Figures) -> Result<(), Failure> {
        if self.json {
            return print(&format!("{}\n", figures.json()));
        }
        if self.stages {
            return print(&figures.stage_lines());
        }
        let mut text = String::new();
        if line.is_multiple_of(HEADING_LINES) {
            COLUMNS.iter().for_each(|(name, width, _)| text.push_str(&format!("{name:>width$}")));
            text.push('\n');
        }
        COLUMNS.iter().for_each(|(_, width, cell)| text.push_str(&format!("{:>width$}", cell(figures))));
        text.push('\n');
        print(&text)
    }
}

/// What INFO said at one moment.
#[derive(Default)]
struct Sample(HashMap<String, String>);

impl Sample {
    fn parse(info: &str, address: &str) -> Result<Self, Failure> {
        let lines = info.lines().filter_map(|line| line.split_once(':'));
        let sample = Self(lines.map(|(key, value)| (key.to_string(), value.trim().to_string())).collect());
        if !sample.0.contains_key("segment_bytes") {
            let why = "tells no figures of an engine: its store is in memory, or it is no Esker server";
            return Err(Failure::new(Code::Failure, format!("the server at {address} {why}")));
        }
        Ok(sample)
    }

    fn histogram(&self, stage: &str) -> Option<Histogram> {
        self.0.get(&format!("{stage}_histogram"))?.parse().ok()
    }

    fn get(&self, name: &str) -> u64 {
        self.0.get(name).and_then(|value| value.parse().ok()).unwrap_or(0)
    }
}

/// What happened between two samples, and how things stand at the second.
struct Figures {
    transactions_per_s: f64,
    log_bytes_per_s: f64,
    device_write_bytes_per_s: f64,
    syncs_per_s: f64,
    records_per_sync: f64,
    write_amplification: f64,
    cache_hits_per_s: f64,
    cache_hit_share: f64,
    free_segments: u64,
    segments: u64,
    gate: &'static str,
    read_us: [u64; 2],
    write_us: [u64; 2],
    sync_us: [u64; 2],
    checkpoints: u64,
    checkpoint_ms: f64,
    cleaned_segments: u64,
    cleaned_copy_bytes_per_s: f64,
    freed_segments: u64,
    swept_rows: u64,
    slot_keys: u64,
    slot_index_bytes: u64,
    /// Bytes per second by kind, as [`KINDS`] names them.
    bytes_per_s: [f64; KINDS.len()],
    compressed_kept: u64,
    compressed_refused: u64,
    compression_ratio: f64,
    /// The stages that the server told of, and the times of the interval.
    stages: Vec<(&'static str, Histogram)>,
    elapsed_s: f64,
}

/// What bytes are written for: name, and the figure of INFO.
const KINDS: [(&str, &str); 6] = [
    ("payload", "payload_bytes"),
    ("headers", "header_bytes"),
    ("padding", "padding_bytes"),
    ("relocations", "relocation_bytes"),
    ("moved", "cleaned_copy_bytes"),
    ("checkpoints", "checkpoint_all_bytes"),
];

/// The stages, in the order in which a write, then a read passes them.
const STAGES: [&str; 13] = [
    "prepare",
    "apply",
    "room",
    "queue",
    "write",
    "sync",
    "wake",
    "lookup",
    "device_read",
    "verify",
    "decompress",
    "clean",
    "checkpoint",
];

impl Figures {
    fn between(before: &Sample, now: &Sample, elapsed: Duration) -> Self {
        let seconds = elapsed.as_secs_f64().max(1e-6);
        let more = |name: &str| now.get(name).saturating_sub(before.get(name));
        let rate = |count: u64| count as f64 / seconds;
        let part = |count: u64, of: u64| if of == 0 { 0.0 } else { count as f64 / of as f64 };
        let written = more("device_write_bytes") + more("cold_write_bytes");
        let syncs = more("syncs");
        let hits = more("cache_hits");
        let pair = |name: &str| ["p50", "p99"].map(|rank| now.get(&format!("{name}_{rank}_us")));
        Self {
            transactions_per_s: rate(more("records")),
            log_bytes_per_s: rate(more("record_bytes")),
            device_write_bytes_per_s: rate(written),
            syncs_per_s: rate(syncs),
            records_per_sync: part(more("records"), more("syncs")),
            write_amplification: part(written, more("record_bytes")),
            cache_hits_per_s: rate(hits),
            cache_hit_share: part(hits, hits + more("cache_misses")),
            free_segments: now.get("free_segments"),
            segments: now.get("segments"),
            // As the engine's gate counts.
            gate: match now.get("gate") {
                0 => "open",
                1 => "wait",
                _ => "full",
            },
            read_us: pair("device_read"),
            write_us: pair("device_write"),
            sync_us: pair("sync"),
            checkpoints: more("checkpoints"),
            checkpoint_ms: now.get("checkpoint_us") as f64 / 1e3,
            cleaned_segments: more("cleaned_segments"),
            cleaned_copy_bytes_per_s: rate(more("cleaned_copy_bytes")),
            freed_segments: more("freed_segments"),
            swept_rows: more("map_swept_rows"),
            slot_keys: now.get("slot_keys"),
            slot_index_bytes: now.get("slot_index_bytes"),
            bytes_per_s: KINDS.map(|(_, figure)| rate(more(figure))),
            compressed_kept: more("compressed_kept"),
            compressed_refused: more("compressed_refused"),
            compression_ratio: match more("compressed_raw_bytes") {
                0 => 1.0,
                raw => part(more("compressed_stored_bytes"), raw),
            },
            stages: STAGES
                .iter()
                .filter_map(|stage| {
                    Some((*stage, now.histogram(stage)?.since(&before.histogram(stage).unwrap_or_default())))
                })
                .collect(),
            elapsed_s: elapsed.as_secs_f64(),
        }
    }

    /// A line for each stage, and one for the bytes.
    fn stage_lines(&self) -> String {
        let mut text =
            format!("{:<12}{:>9}{:>9}{:>9}{:>9}{:>9}\n", "stage", "timed", "p50 us", "p99 us", "p99.9", "max ever");
        for (stage, times) in &self.stages {
            let us = |ns: u64| short(ns as f64 / 1e3);
            let [p50, p99, p999] = [500, 990, 999].map(|permille| us(times.at_most_permille_ns(permille)));
            let (timed, max) = (times.count(), us(times.max_ns));
            text += &format!("{stage:<12}{timed:>9}{p50:>9}{p99:>9}{p999:>9}{max:>9}\n");
        }
        text += "bytes/s    ";
        for ((kind, _), rate) in KINDS.iter().zip(self.bytes_per_s) {
            text += &format!("  {kind} {}", short(rate));
        }
        text + &format!(
            "\ncompression  kept {} refused {} ratio {:.3}\n\n",
            self.compressed_kept, self.compressed_refused, self.compression_ratio
        )
    }

    fn json(&self) -> serde_json::Value {
        let round = |value: f64| (value * 1e3).round() / 1e3;
        let bytes: serde_json::Map<_, _> = KINDS
            .iter()
            .zip(self.bytes_per_s)
            .map(|((kind, _), rate)| (kind.to_string(), round(rate).into()))
            .collect();
        let times = |times: &Histogram| {
            serde_json::json!({
                "timed": times.count(),
                "p50_ns": times.at_most_ns(50),
                "p99_ns": times.at_most_ns(99),
                "p999_ns": times.at_most_permille_ns(999),
            })
        };
        let stages: serde_json::Map<_, _> =
            self.stages.iter().map(|(stage, histogram)| (stage.to_string(), times(histogram))).collect();
        serde_json::json!({
            "bytes_per_s": bytes,
            "stages": stages,
            "compressed_kept": self.compressed_kept,
            "compressed_refused": self.compressed_refused,
            "compression_ratio": round(self.compression_ratio),
            "elapsed_s": round(self.elapsed_s),
            "transactions_per_s": round(self.transactions_per_s),
            "log_bytes_per_s": round(self.log_bytes_per_s),
            "device_write_bytes_per_s": round(self.device_write_bytes_per_s),
            "syncs_per_s": round(self.syncs_per_s),
            "records_per_sync": round(self.records_per_sync),
            "write_amplification": round(self.write_amplification),
            "cache_hits_per_s": round(self.cache_hits_per_s),
            "cache_hit_share": round(self.cache_hit_share),
            "free_segments": self.free_segments,
            "segments": self.segments,
            "gate": self.gate,
            "device_read_p50_us": self.read_us[0],
            "device_read_p99_us": self.read_us[1],
            "device_write_p50_us": self.write_us[0],
            "device_write_p99_us": self.write_us[1],
            "sync_p50_us": self.sync_us[0],
            "sync_p99_us": self.sync_us[1],
            "checkpoints": self.checkpoints,
            "checkpoint_ms": round(self.checkpoint_ms),
            "cleaned_segments": self.cleaned_segments,
            "cleaned_copy_bytes_per_s": round(self.cleaned_copy_bytes_per_s),
            "freed_segments": self.freed_segments,
            "map_swept_rows": self.swept_rows,
            "slot_keys": self.slot_keys,
            "slot_index_bytes": self.slot_index_bytes,
        })
    }
}

/// A column: its heading, its width and its text.
type Column = (&'static str, usize, fn(&Figures) -> String);

/// The table; times are in microseconds, 50th/99th percentile since the server was started.
const COLUMNS: &[Column] = &[
    ("txn/s", 8, |figures| short(figures.transactions_per_s)),
    ("log/s", 8, |figures| short(figures.log_bytes_per_s)),
    ("device/s", 9, |figures| short(figures.device_write_bytes_per_s)),
    ("sync/s", 8, |figures| short(figures.syncs_per_s)),
    ("rec/sync", 9, |figures| format!("{:.1}", figures.records_per_sync)),
    ("wamp", 6, |figures| format!("{:.2}", figures.write_amplification)),
    ("hit/s", 8, |figures| short(figures.cache_hits_per_s)),
    ("hit%", 5, |figures| format!("{:.0}", figures.cache_hit_share * 100.0)),
    ("free", 12, |figures| format!("{}/{}", figures.free_segments, figures.segments)),
    ("gate", 6, |figures| figures.gate.to_string()),
    ("read us", 12, |figures| ranks(figures.read_us)),
    ("write us", 12, |figures| ranks(figures.write_us)),
    ("sync us", 12, |figures| ranks(figures.sync_us)),
    ("ckpt", 5, |figures| figures.checkpoints.to_string()),
    ("ckpt ms", 9, |figures| format!("{:.1}", figures.checkpoint_ms)),
    ("cleaned", 8, |figures| figures.cleaned_segments.to_string()),
    ("copy/s", 8, |figures| short(figures.cleaned_copy_bytes_per_s)),
    ("freed", 6, |figures| figures.freed_segments.to_string()),
    ("swept", 7, |figures| short(figures.swept_rows as f64)),
    ("ints", 8, |figures| short(figures.slot_keys as f64)),
    ("B/int", 6, |figures| format!("{:.1}", figures.slot_index_bytes as f64 / figures.slot_keys.max(1) as f64)),
];

fn ranks([middle, high]: [u64; 2]) -> String {
    format!("{}/{}", short(middle as f64), short(high as f64))
}

/// A figure in five characters or so: 12.3k, 4.56m (powers of 1,000).
fn short(value: f64) -> String {
    const UNITS: &[&str] = &["", "k", "m", "g", "t"];
    let (mut value, mut unit) = (value, 0);
    while value >= 1e3 && unit + 1 < UNITS.len() {
        value /= 1e3;
        unit += 1;
    }
    let digits = match value {
        _ if value == value.trunc() && unit == 0 => 0,
        ..10.0 => 2,
        10.0..100.0 => 1,
        _ => 0,
    };
    format!("{value:.digits$}{}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(lines: &str) -> Sample {
        Sample::parse(&format!("# Esker\r\nsegment_bytes:65536\r\n{lines}"), "here").unwrap()
    }

    #[test]
    fn rates_are_differences_over_time_and_a_counter_that_went_back_gives_none() {
        let before = sample("records:100\r\nrecord_bytes:1000\r\nsyncs:10\r\ncold_write_bytes:0\r\ncheckpoints:5\r\n");
        let now = sample(
            "records:300\r\nrecord_bytes:3000\r\nsyncs:20\r\ndevice_write_bytes:6000\r\ncold_write_bytes:2000\r\ncheckpoints:1\r\ngate:1\r\nsync_p99_us:70\r\nslot_keys:1000\r\nslot_index_bytes:2300\r\n",
        );
        let figures = Figures::between(&before, &now, Duration::from_secs(2));
        let json = figures.json();
        assert_eq!(json["transactions_per_s"], 100.0);
        assert_eq!(json["log_bytes_per_s"], 1000.0);
        assert_eq!(json["device_write_bytes_per_s"], 4000.0);
        assert_eq!(json["records_per_sync"], 20.0);
        assert_eq!(json["write_amplification"], 4.0);
        assert_eq!(json["checkpoints"], 0);
        assert_eq!(json["gate"], "wait");
        assert_eq!(json["sync_p99_us"], 70);
        assert_eq!(json["cache_hit_share"], 0.0);
        assert_eq!(json["slot_keys"], 1000);
        assert_eq!(json["slot_index_bytes"], 2300);
        assert_eq!(COLUMNS.last().map(|(name, _, cell)| (*name, cell(&figures))), Some(("B/int", "2.3".to_string())));
    }

    #[test]
    fn stages_show_the_times_of_the_interval() {
        let before = sample("sync_histogram:max_ns=900 le_ns=100:5,900:1\r\npayload_bytes:1000\r\n");
        let now = sample(
            "sync_histogram:max_ns=5000 le_ns=100:5,900:1,6000:4\r\npayload_bytes:5000\r\nclean_histogram:?\r\n",
        );
        let figures = Figures::between(&before, &now, Duration::from_secs(2));
        let json = figures.json();
        assert_eq!(json["stages"]["sync"]["timed"], 4);
        assert_eq!(json["stages"]["sync"]["p50_ns"], 5_000);
        assert_eq!(json["stages"].as_object().unwrap().len(), 1, "what does not parse is left out");
        assert_eq!(json["bytes_per_s"]["payload"], 2_000.0);
        let lines = figures.stage_lines();
        assert!(lines.contains("sync") && lines.contains("payload 2.00k"), "{lines}");
    }

    #[test]
    fn figures_are_short() {
        for (value, expected) in [
            (0.0, "0"),
            (7.0, "7"),
            (7.25, "7.25"),
            (999.0, "999"),
            (1234.0, "1.23k"),
            (5.6e7, "56.0m"),
            (1e15, "1000t"),
        ] {
            assert_eq!(short(value), expected);
        }
    }

    #[test]
    fn a_server_without_an_engine_is_told_so() {
        let refused = Sample::parse("# Server\r\nredis_version:7\r\n", "here:1").err().unwrap();
        assert!(refused.to_string().contains("here:1"), "{refused}");
    }
}
