//! `esker bench`: loads on the faces of Esker and on the backends under them, and what became of them; `esker report`
//! draws it. One file or folder each: `kv`, `objects`, `log`, `map`, and `commit` for the commit policies.
//!
//! arguments → stores, or servers → load with latencies → table on stdout, figures as JSON → page of plots
//!
//! Invariant: a load writes to the stores that its arguments name, or to a folder that it makes and removes.

mod commit;
mod kv;
mod log;
mod map;
mod objects;
pub mod report;
mod updates;

use clap::{Args, Subcommand};

use crate::config::Settings;
use crate::exit::Failure;

/// The arguments of `esker bench`.
#[derive(Args)]
pub struct Bench {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Load the key-value face: fill all keys, then a mix of reads and writes
    Kv(kv::KvBench),
    /// Load the objects of several backends in turn: writes, reads, overwrites, omap, names
    Objects(objects::ObjectsBench),
    /// Load the shared log: its layouts on several backends, its sequencer, opening, trimming
    Log(log::LogBench),
    /// Load the map: rows, a scan of a large partition, reads, conditional updates, memory and restart
    Map(map::MapBench),
    /// Compare the commit policies by conditional updates of the map: closed loops and given rates, on the disk and on
    /// slower ones
    Commit(commit::CommitBench),
}

impl Bench {
    /// Runs the command.
    pub fn run(self, settings: &Settings) -> Result<(), Failure> {
        match self.what {
            What::Kv(bench) => bench.run(settings),
            What::Objects(bench) => bench.run(settings),
            What::Log(bench) => bench.run(settings),
            What::Map(bench) => bench.run(settings),
            What::Commit(bench) => bench.run(),
        }
    }
}
