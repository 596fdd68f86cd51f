//! Records histories: real processes work on the faces of a real server over `grpc://`, or of a store on Ceph, while
//! the server or the OSD is killed, processes are paused and answers are dropped.
//!
//! `histories record` → server and proxy, or Ceph; clients (this program again, as `histories client`) → notes of
//! each process → one file for each face, one line of JSON for each call → `tests/porcupine` says whether the lines
//! are linearizable
//!
//! `histories cluster`, of a replicated chain: threads that speak the Redis protocol → the same lines
//!
//! Invariants:
//! 1. The begin of a call stands in its file before the call is made, and its end is taken after the answer: what did
//!    not overlap is ordered.
//! 2. What a client was not told stays open. Nothing is noted as refused or as an error that may have been applied.

#![forbid(unsafe_code)]

mod client;
mod cluster;
mod compare;
mod ground;
mod notes;
mod proxy;
mod record;
mod server;
mod terms;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Records histories of real processes for a checker of linearizability.
#[derive(Parser)]
#[command(name = "histories", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Starts a server and clients, does faults to them, and writes what happened.
    Record(record::Settings),
    /// Works on the keys of a cluster that runs, and writes what happened.
    Cluster(cluster::ClusterSettings),
    /// Says whether stores that no server has open hold the same.
    Compare(compare::CompareSettings),
    /// One client: what `record` starts.
    #[command(hide = true)]
    Client(client::Role),
}

fn main() -> ExitCode {
    let done = match Arguments::parse().command {
        Command::Record(settings) => record::record(&settings),
        Command::Cluster(settings) => cluster::record(&settings),
        Command::Compare(settings) => compare::compare(&settings),
        Command::Client(role) => client::play(role),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("histories: {error}");
            ExitCode::FAILURE
        }
    }
}
