//! The commit policies beside each other.
//!
//! `simulate` in virtual time, `measure` on the engine, `plot` draws what they wrote and prints it as a table.

#![forbid(unsafe_code)]

mod cell;
mod measure;
mod outcome;
mod plot;
mod report;
mod simulate;

use anyhow::Result;
use clap::{Parser, Subcommand};

/// Compares Esker's commit policies for many clients, think times and sync times.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Discrete events in virtual time, with the engine's own code for `adaptive`
    Simulate(simulate::Simulate),
    /// The engine on a file whose syncs take a chosen time
    Measure(measure::Measure),
    /// SVG plots, and tables on standard output, of what the others wrote
    Plot(plot::Plot),
}

fn main() -> Result<()> {
    match Arguments::parse().command {
        Command::Simulate(simulate) => simulate.run(),
        Command::Measure(measure) => measure.run(),
        Command::Plot(plot) => plot.run(),
    }
}
