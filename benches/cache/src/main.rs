//! Which values a cache should keep: hit ratios and processor time of the policies, on traces made from a seed.
//!
//! trace → each cache, one use after the other: found, or put in → share that was found, processor time per use
//!
//! The first part of a trace only fills the cache and is not counted. Values are not there, only what they are said to
//! weigh: processor time is that of the cache, not of reading. Tables go to stdout, figures as JSON to `--json`.

mod caches;
mod traces;

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

use caches::{Compared, names};
use traces::{Kind, mixed_weight, trace};

/// What a value weighs where all weigh the same: 1 KiB and what the engine counts beside it.
const WEIGHT: u32 = 1_024 + 128;

/// Compares policies of caches.
#[derive(Parser)]
struct Arguments {
    /// Keys that there are
    #[arg(long, default_value_t = 500_000)]
    keys: u32,
    /// Uses of a trace
    #[arg(long, default_value_t = 2_000_000)]
    uses: usize,
    /// Sizes of the cache, in percent of the data
    #[arg(long, value_delimiter = ',', default_value = "0.1,1,10")]
    sizes: Vec<f64>,
    /// Skews of the Zipf traces
    #[arg(long, value_delimiter = ',', default_value = "0.7,0.9,1.0,1.2")]
    zipf: Vec<f64>,
    /// Numbers of threads
    #[arg(long, value_delimiter = ',', default_value = "1,2")]
    threads: Vec<usize>,
    /// Only these caches; all by default
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Values weigh from 256 bytes to 64 KiB, not 1 KiB each
    #[arg(long)]
    mixed: bool,
    /// Seed of the traces
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Write the figures to this file, as JSON
    #[arg(long)]
    json: Option<PathBuf>,
}

/// One run.
#[derive(Serialize)]
struct Run {
    cache: String,
    trace: String,
    size_percent: f64,
    threads: usize,
    /// Share of uses that found their value.
    hit_ratio: f64,
    /// Processor time of all threads per use.
    cpu_ns: f64,
    /// Uses per second of all threads together.
    uses_per_s: f64,
    /// The most that the cache held when it was looked at, of what it may hold.
    fullest: f64,
}

fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Uses are counted in steps of so many, after each of which the cache's bytes are looked at.
const STEP: usize = 1 << 16;

/// Uses of one thread: those of `uses` whose number leaves `thread` when divided by `threads`. What was found.
fn use_all(cache: &Compared, uses: &[u32], (thread, threads): (usize, usize), weight: fn(u32) -> u32) -> u64 {
    let own = uses.iter().skip(thread).step_by(threads);
    own.map(|key| u64::from(cache.found(*key, weight(*key)))).sum()
}

fn measure(name: &str, uses: &[u32], bytes: u64, threads: usize, weight: fn(u32) -> u32) -> Result<Run> {
    let cache = Compared::named(name, bytes).with_context(|| format!("there is no cache {name:?}"))?;
    let (warm_up, counted) = uses.split_at(uses.len() / 4);
    use_all(&cache, warm_up, (0, 1), weight);
    let (found, cpu_ns, fullest) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let began = Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (cache, found, cpu_ns, fullest) = (&cache, &found, &cpu_ns, &fullest);
            scope.spawn(move || {
                for step in counted.chunks(STEP) {
                    let began = cpu_time();
                    let hits = use_all(cache, step, (thread, threads), weight);
                    cpu_ns.fetch_add((cpu_time() - began).as_nanos() as u64, Ordering::Relaxed);
                    found.fetch_add(hits, Ordering::Relaxed);
                    fullest.fetch_max(cache.bytes(), Ordering::Relaxed);
                }
            });
        }
    });
    let elapsed = began.elapsed();
    let uses = counted.len() as f64;
    Ok(Run {
        cache: name.into(),
        trace: String::new(),
        size_percent: 0.0,
        threads,
        hit_ratio: found.into_inner() as f64 / uses,
        cpu_ns: cpu_ns.into_inner() as f64 / uses,
        uses_per_s: uses / elapsed.as_secs_f64(),
        fullest: fullest.into_inner() as f64 / bytes as f64,
    })
}

/// A table: a line for each trace, a column for each cache.
fn table(title: &str, runs: &[&Run], names: &[String], show: impl Fn(&Run) -> String) -> String {
    let mut lines = format!("\n{title}\n\n| trace | {} |\n|---|{}\n", names.join(" | "), "--:|".repeat(names.len()));
    let mut traces: Vec<&str> = Vec::new();
    for run in runs {
        if !traces.contains(&&*run.trace) {
            traces.push(&run.trace);
        }
    }
    for trace in traces {
        let cells = names.iter().map(|name| {
            let run = runs.iter().find(|run| run.trace == trace && run.cache == *name);
            run.map_or_else(String::new, |run| show(run))
        });
        lines += &format!("| {trace} | {} |\n", cells.collect::<Vec<_>>().join(" | "));
    }
    lines
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    ensure!(arguments.keys > 0 && arguments.uses > 0, "--keys and --uses are at least 1");
    ensure!(arguments.threads.iter().all(|threads| *threads > 0), "--threads is at least 1");
    let names = if arguments.only.is_empty() { names() } else { arguments.only.clone() };
    let weight: fn(u32) -> u32 = if arguments.mixed { mixed_weight } else { |_| WEIGHT };
    let data: u64 = (0..arguments.keys).map(|key| u64::from(weight(key))).sum();
    let zipfs = arguments.zipf.iter().flat_map(|skew| [false, true].map(|scans| Kind::Zipf { skew: *skew, scans }));
    let kinds = zipfs.chain([Kind::Loop { thousandths: 20 }]);
    let mut runs = Vec::new();
    for kind in kinds {
        let uses = trace(kind, arguments.keys, arguments.uses, arguments.seed);
        for size_percent in &arguments.sizes {
            let bytes = (data as f64 * size_percent / 100.0) as u64;
            for threads in &arguments.threads {
                for name in &names {
                    let run = measure(name, &uses, bytes, *threads, weight)?;
                    runs.push(Run { trace: kind.to_string(), size_percent: *size_percent, ..run });
                }
            }
        }
        eprintln!("{kind}");
    }
    for size_percent in &arguments.sizes {
        for threads in &arguments.threads {
            let these: Vec<&Run> =
                runs.iter().filter(|run| run.size_percent == *size_percent && run.threads == *threads).collect();
            let of = format!("cache of {size_percent} % of the data, threads: {threads}");
            let hits = |run: &Run| format!("{:.1}", run.hit_ratio * 100.0);
            print!("{}", table(&format!("Found, in percent; {of}"), &these, &names, hits));
            let cpu = |run: &Run| format!("{:.0}", run.cpu_ns);
            print!("{}", table(&format!("Processor time per use, in ns; {of}"), &these, &names, cpu));
        }
    }
    println!("\nFullest, in percent of what a cache may hold:\n");
    for name in &names {
        let fullest = runs.iter().filter(|run| run.cache == *name).map(|run| run.fullest).fold(0.0, f64::max);
        println!("- {name}: {:.2}", fullest * 100.0);
    }
    if let Some(path) = &arguments.json {
        std::fs::write(path, serde_json::to_string_pretty(&runs)?).with_context(|| path.display().to_string())?;
    }
    Ok(())
}
