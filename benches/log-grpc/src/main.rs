//! `esker-log-grpc`: durable appends to a log over the network, by 1 to 256 writers, and the time until a follower has them, beside Redis Streams and Kafka.
//!
//! rounds → numbers of writers → servers, in turn, each fresh → [`cell::measure`] → medians, ratios → text, JSON
//!
//! Invariants:
//! 1. Only one server runs at a time, on loopback, with its data below `--dir`, and it ends with its cell.
//! 2. Every append waits until it is durable; each writer has one under way. All servers are driven by the same code.
//! 3. The follower has to be handed everything that was acknowledged, or the run ends with an error.

#![forbid(unsafe_code)]

mod cell;
mod report;
mod servers;
mod target;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Parser;

use crate::cell::Work;
use crate::report::Report;
use crate::servers::Servers;
use crate::target::Peer;

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
    /// What is measured; ratios are to redis
    #[arg(long, value_enum, value_delimiter = ',')]
    peers: Vec<Peer>,
    /// Writers, each with a connection of its own and one append under way
    #[arg(long, value_delimiter = ',', default_value = "1,16,64,256", value_parser = clap::value_parser!(u64).range(1..=900))]
    writers: Vec<u64>,
    /// Bytes of an entry, at least 16
    #[arg(long, default_value_t = 1_024, value_parser = clap::value_parser!(u64).range(16..=1_048_576))]
    entry_bytes: u64,
    /// Seconds that are measured, after one that is not
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
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    if !arguments.seconds.is_finite() || arguments.seconds <= 0.0 || arguments.rounds == 0 {
        bail!("--seconds and --rounds must be above 0");
    }
    let mut peers = arguments.peers.clone();
    if peers.is_empty() {
        peers = vec![Peer::Redis, Peer::Esker, Peer::EskerUnary];
        peers.extend(arguments.kafka.is_some().then_some(Peer::Kafka));
    }
    let servers = Servers {
        esker: arguments.esker.clone(),
        redis: arguments.redis_server.clone(),
        kafka: arguments.kafka.clone(),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let mut report = Report::new(arguments.entry_bytes, arguments.seconds, arguments.rounds);
    for round in 0..arguments.rounds {
        for writers in &arguments.writers {
            let mut turn = peers.clone();
            let first = round % turn.len();
            turn.rotate_left(first);
            for peer in turn {
                let folder = tempfile::Builder::new().prefix("esker-log-grpc-").tempdir_in(&arguments.dir)?;
                let server = servers.start(peer, folder.path()).with_context(|| format!("starting {peer:?}"))?;
                let work = Work {
                    writers: *writers,
                    entry_bytes: arguments.entry_bytes as usize,
                    warm_up: Duration::from_secs(1),
                    time: Duration::from_secs_f64(arguments.seconds),
                };
                let figures = runtime
                    .block_on(cell::measure(peer, server.address, work))
                    .with_context(|| format!("{peer:?} with {writers} writers"))?;
                eprintln!("round {round}: {peer:?}, {writers} writers: {:.0}/s", figures.rate);
                report.add(peer, *writers, figures);
                drop(server);
                folder.close()?;
            }
        }
        // What is measured so far is kept, should a later cell fail.
        arguments.json.as_ref().map_or(Ok(()), |path| report.write(path))?;
    }
    print!("{}", report.text());
    Ok(())
}
