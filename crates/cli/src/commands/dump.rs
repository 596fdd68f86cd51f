//! `esker dump`: shows what stands on the device, in log order.
//!
//! Invariants:
//! 1. Nothing is written, and what comes before a damage is shown before the damage is reported.
//! 2. With `--json` every line is one object whose `item` says what it is.

use std::io::{BufWriter, Write};

use clap::Args;
use esker::engine::{DumpItem, DumpOptions};

use super::{StoreArgument, builder, json_object, quiet_pipe};
use crate::config::Settings;
use crate::exit::Failure;

/// The arguments of `esker dump`.
#[derive(Args)]
pub struct Dump {
    #[command(flatten)]
    store: StoreArgument,
    /// Show records as well as superblock and segments
    #[arg(long)]
    records: bool,
    /// Show the operations of records
    #[arg(long)]
    operations: bool,
    /// Only the segment of this generation
    #[arg(long)]
    generation: Option<u32>,
    /// At most so many records
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,
    /// One JSON object per line
    #[arg(long)]
    json: bool,
}

impl Dump {
    /// Runs the command.
    pub fn run(self, settings: &Settings) -> Result<(), Failure> {
        let options = DumpOptions {
            records: self.records || self.operations || self.limit.is_some(),
            operations: self.operations,
            generation: self.generation,
            records_max: self.limit.unwrap_or(0),
        };
        let mut out = BufWriter::with_capacity(1 << 16, std::io::stdout().lock());
        let mut failed = Ok(());
        let dumped = builder(settings).dump(&self.store.location(settings), options, &mut |item| {
            if failed.is_ok() {
                failed = quiet_pipe(if self.json { write_json(&mut out, &item) } else { write_text(&mut out, &item) });
            }
        });
        quiet_pipe(out.flush())?;
        failed?;
        Ok(dumped?)
    }
}

fn write_json(out: &mut impl Write, item: &DumpItem) -> std::io::Result<()> {
    let mut object = json_object(item.fields());
    object["item"] = item.name().into();
    writeln!(out, "{object}")
}

fn write_text(out: &mut impl Write, item: &DumpItem) -> std::io::Result<()> {
    let indent = match item {
        DumpItem::Superblock(_) | DumpItem::Segment(_) => "",
        DumpItem::Record(..) => "  ",
        DumpItem::Operation(..) => "    ",
    };
    write!(out, "{indent}{}", item.name())?;
    for (name, value) in item.fields() {
        write!(out, " {name}={value}")?;
    }
    writeln!(out)
}
