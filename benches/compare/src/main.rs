//! Esker beside other stores, in one run, on one device, with the same durability.
//!
//! `run` compares embedded stores; `redis` compares servers. Both print medians with ratios and write JSON.

mod embedded;
mod keys;
mod load;
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
}

fn main() -> Result<()> {
    match Arguments::parse().command {
        Command::Run(run) => run.run(),
        Command::Redis(redis) => redis.run(),
    }
}
