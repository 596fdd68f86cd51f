//! `esker check`: walks a store without changing it.
//!
//! Invariant: exit code 0 means that every byte which was looked at holds; damage is exit code 4.

use clap::Args;

use super::{StoreArgument, builder, json_object, print};
use crate::config::Settings;
use crate::exit::Failure;
use crate::progress;

/// The arguments of `esker check`.
#[derive(Args)]
pub struct Check {
    #[command(flatten)]
    store: StoreArgument,
    /// Only superblocks and segment headers, not every record and payload
    #[arg(long)]
    quick: bool,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

impl Check {
    /// Runs the command.
    pub fn run(self, settings: &Settings) -> Result<(), Failure> {
        let bar = progress::bytes("checking", 0);
        let report = builder(settings).check(&self.store.location(settings), !self.quick, &mut |done, total| {
            bar.set_length(total);
            bar.set_position(done);
        })?;
        bar.finish_and_clear();
        if self.json {
            return print(&format!("{:#}\n", json_object(report.entries())));
        }
        print(&format!("{report}"))
    }
}
