//! `esker-bench-log`: durable appends to a log over the network, by 1 to 256 writers, and the time until a follower has
//! them, beside Redis Streams and Kafka.
//!
//! rounds → numbers of writers → servers, in turn, each fresh → [`cell::measure`] → medians, ratios → text, JSON, plot
//!
//! Invariants:
//! 1. Only one server runs at a time, on loopback, with its data below `--dir`, and it ends with its cell.
//! 2. Every append waits until it is durable; each writer has one under way. All servers are driven by the same code.
//! 3. The follower has to be handed everything that was acknowledged, or the run ends with an error.

#![forbid(unsafe_code)]

mod cell;
mod plot;
mod report;
mod servers;
mod target;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use esker_bench_figures::progress;

use crate::cell::{ENTRY_BYTES_MIN, Figures, Work};
use crate::report::Report;
use crate::servers::Servers;
use crate::target::Peer;

/// Before a cell is measured.
const WARM_UP: Duration = Duration::from_secs(2);
/// Between cells, after the file system was synced: what was deleted is given back to the device.
const PAUSE: Duration = Duration::from_millis(500);

/// Durable appends over the network beside other logs.
#[derive(Parser)]
struct Arguments {
    /// The esker binary
    #[arg(long, default_value = "../../target/release/esker")]
    esker: PathBuf,
    /// The redis-server binary
    #[arg(long, default_value = "redis-server")]
    redis_server: PathBuf,
    /// Folder with Kafka's jars (see README.md); without it Kafka is left out
    #[arg(long)]
    kafka: Option<PathBuf>,
    /// What is measured; ratios are to redis. Default: all, Kafka only with --kafka
    #[arg(long, value_enum, value_delimiter = ',')]
    peers: Vec<Peer>,
    /// Writers, each with one append under way
    #[arg(long, value_delimiter = ',', default_value = "1,16,64,256", value_parser = clap::value_parser!(u32).range(1..=900))]
    writers: Vec<u32>,
    /// Connections that the writers share, at most; without it each has its own
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    connections: Option<u32>,
    /// Bytes of an entry
    #[arg(long, default_value_t = 1_024, value_parser = clap::value_parser!(u64).range(ENTRY_BYTES_MIN..=1_048_576))]
    entry_bytes: u64,
    /// Seconds that are measured, after two that are not
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// Rounds; the figures are their medians
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Folder on the device to be measured; what is made there is deleted
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    /// File for all figures as JSON
    #[arg(long)]
    json: Option<PathBuf>,
    /// SVG file for a plot of the table
    #[arg(long)]
    plot: Option<PathBuf>,
    /// Measures nothing: the plot is of the table in this file, which a run has printed
    #[arg(long, value_name = "FILE", requires = "plot")]
    table: Option<PathBuf>,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    if let (Some(plot), Some(table)) = (&arguments.plot, &arguments.table) {
        let text = std::fs::read_to_string(table).with_context(|| table.display().to_string())?;
        return plot::draw(plot, &text).with_context(|| table.display().to_string());
    }
    let in_range = arguments.seconds.is_finite() && arguments.seconds > 0.0 && arguments.seconds <= 86_400.0;
    if !in_range || arguments.rounds == 0 {
        bail!("--seconds must be above 0 and at most 86400, --rounds above 0");
    }
    let mut peers = arguments.peers.clone();
    if peers.is_empty() {
        peers = vec![Peer::Redis, Peer::Esker, Peer::EskerFrames, Peer::EskerUnary];
        peers.extend(arguments.kafka.is_some().then_some(Peer::Kafka));
    }
    ensure!(!peers.contains(&Peer::Kafka) || cfg!(feature = "kafka"), "kafka: build with --features kafka");
    let servers = Servers {
        esker: arguments.esker.clone(),
        redis: arguments.redis_server.clone(),
        kafka: arguments.kafka.clone(),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let mut report = Report::new(arguments.entry_bytes, arguments.seconds, arguments.rounds, arguments.connections);
    let cells = arguments.rounds * arguments.writers.len() * peers.len();
    let bar = progress(cells as u64);
    bar.enable_steady_tick(Duration::from_millis(500));
    for round in 0..arguments.rounds {
        for writers in arguments.writers.iter().copied() {
            let mut turn = peers.clone();
            turn.rotate_left(round % peers.len());
            for peer in turn {
                bar.set_message(format!("{}, {writers} writers", peer.name()));
                let work = Work {
                    writers,
                    connections: arguments.connections.unwrap_or(writers),
                    entry_bytes: arguments.entry_bytes as usize,
                    warm_up: WARM_UP,
                    time: Duration::from_secs_f64(arguments.seconds),
                };
                let figures = one(&runtime, &servers, peer, &arguments.dir, work)
                    .with_context(|| format!("{} with {writers} writers, round {}", peer.name(), round + 1))?;
                report.add(peer, writers, figures);
                bar.inc(1);
                // What is measured so far is kept, should a later cell fail.
                arguments.json.as_ref().map_or(Ok(()), |path| report.write(path))?;
            }
        }
    }
    bar.finish_and_clear();
    let text = report.text();
    print!("{text}");
    arguments.plot.as_ref().map_or(Ok(()), |path| plot::draw(path, &text))
}

/// One cell: a fresh server, measured, and gone with its data.
fn one(runtime: &tokio::runtime::Runtime, servers: &Servers, peer: Peer, dir: &Path, work: Work) -> Result<Figures> {
    let folder = tempfile::Builder::new().prefix("esker-bench-log-").tempdir_in(dir).context("--dir")?;
    let server = servers.start(peer, folder.path())?;
    let figures = runtime.block_on(cell::measure(peer, &server, work));
    let figures = figures.with_context(|| format!("the server said:\n{}", server.said()))?;
    drop(server);
    folder.close()?;
    rustix::fs::syncfs(std::fs::File::open(dir)?)?;
    std::thread::sleep(PAUSE);
    Ok(figures)
}
