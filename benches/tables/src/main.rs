//! Esker beside other stores, in one run, on one device, with the same durability.
//!
//! `run` compares embedded stores; `redis` compares servers; `overwrite` looks at what stays when the store is full of
//! old values. All print medians with ratios and write JSON.

mod embedded;
mod keys;
mod load;
mod overwrite;
mod peer;
mod peers;
mod redis;
mod report;
mod units;

use anyhow::Result;
use clap::{Parser, Subcommand};

/// Compares Esker with LevelDB, Kyoto Cabinet, RocksDB, LMDB and Redis.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Embedded stores: page cache writes, warm reads, synced writes
    Run(embedded::Run),
    /// Servers: Redis and `esker serve` under redis-benchmark
    Redis(redis::Redis),
    /// The steady state under uniform random overwrite: throughput, latency and write amplification by fill level
    Overwrite(overwrite::Overwrite),
}

fn main() -> Result<()> {
    match Arguments::parse().command {
        Command::Run(run) => run.run(),
        Command::Redis(redis) => redis.run(),
        Command::Overwrite(overwrite) => overwrite.run(),
    }
}
