//! `esker scrub`: reads and verifies everything that stands on a store's device, once, or has a running server do so.
//!
//! a store that no server has open → opened read-only → read past the operating system's cache
//! a server → ESKER.SCRUB → INFO
//! until it is done → its report
//!
//! Invariant: exit code 0 means that everything which something points to holds; damage is exit code 4.

use clap::Args;

use super::check::{Found, parse};
use super::server::{self, ServerArguments};
use super::{StoreArgument, builder};
use crate::config::Settings;
use crate::exit::Failure;
use crate::progress;

/// The arguments of `esker scrub`.
#[derive(Args)]
#[command(
    after_help = "A check reads what the index points to; a scrub reads the device, from the medium and not from memory, and so finds \
what has rotted behind a cache as well. A running server scrubs by itself, at the rate of the setting store.scrub; INFO esker and \
esker stat tell how far it is, and\n  redis-cli CONFIG SET scrub 0\npauses it."
)]
pub struct Scrub {
    #[command(flatten)]
    store: StoreArgument,
    #[command(flatten)]
    server: ServerArguments,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

impl Scrub {
    /// Runs the command.
    pub fn run(self, settings: &Settings) -> Result<(), Failure> {
        if self.server.address.is_some() && self.store.given().is_some() {
            return Err(Failure::usage("--store and --address exclude each other: a server scrubs its own store"));
        }
        let found = if self.server.address.is_some() { self.ask(settings)? } else { self.read(settings)? };
        found.tell(self.json)
    }

    /// Opens the store and reads it here.
    fn read(&self, settings: &Settings) -> Result<Found, Failure> {
        let bar = progress::bytes("scrubbing", 0);
        let report = builder(settings).scrub(&self.store.location(settings), &mut |done, total| {
            bar.set_length(total);
            bar.set_position(done);
            true
        })?;
        bar.finish_and_clear();
        Ok(Found::of(report.entries(), &report.damage, report.damaged))
    }

    /// Has a server scrub its store.
    fn ask(&self, settings: &Settings) -> Result<Found, Failure> {
        let mut client = self.server.connect(settings)?;
        client.call(&["ESKER.SCRUB"])?;
        server::follow(&mut client, "scrub_once", &progress::bytes("scrubbing", 0))?;
        parse(&client.call(&["ESKER.SCRUB", "STATUS"])?)
    }
}
