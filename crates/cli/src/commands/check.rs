//! `esker check`: walks a store without changing it.
//!
//! Invariant: exit code 0 means that everything which was looked at holds; damage is exit code 4.

use clap::Args;

use super::{StoreArgument, builder, json_object, print};
use crate::config::Settings;
use crate::exit::{Code, Failure};
use crate::progress;

/// The arguments of `esker check`.
#[derive(Args)]
pub struct Check {
    #[command(flatten)]
    store: StoreArgument,
    /// Only what opening reads, not every value
    #[arg(long)]
    quick: bool,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

impl Check {
    /// Runs the command.
    pub fn run(self, settings: &Settings) -> Result<(), Failure> {
        let bar = progress::count("checking", 0);
        let report = builder(settings).check(&self.store.location(settings), !self.quick, &mut |done, total| {
            bar.set_length(total);
            bar.set_position(done);
        })?;
        bar.finish_and_clear();
        if self.json {
            print(&format!("{:#}\n", json_object(report.entries())))?;
        } else {
            print(&format!("{report}"))?;
        }
        if report.damaged == 0 {
            return Ok(());
        }
        let mut text = format!("{} places do not hold", report.damaged);
        for damage in &report.damage {
            text.push_str(&format!("\n  device offset {}: {}", damage.offset, damage.what));
        }
        Err(Failure::new(Code::Damage, text))
    }
}
