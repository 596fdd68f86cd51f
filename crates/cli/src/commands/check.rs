//! `esker check`: walks a store without changing it, or has a running server do so while it serves.
//!
//! a store that no server has open → opened read-only → walked; a server → ESKER.CHECK → INFO until it is done → its
//! report
//!
//! Invariant: exit code 0 means that everything which was looked at holds; damage is exit code 4.

use clap::Args;
use esker::engine::Damage;

use super::server::{self, ServerArguments};
use super::{StoreArgument, builder, json_object, print};
use crate::config::Settings;
use crate::exit::{Code, Failure};
use crate::progress;

/// The arguments of `esker check`.
#[derive(Args)]
#[command(
    after_help = "Without --address this command opens the store, so no server may have it open. With it the server checks its own store \
while it serves: what changes meanwhile is checked as it is when its turn comes. What a server finds can be read again with\n  \
redis-cli ESKER.CHECK STATUS"
)]
pub struct Check {
    #[command(flatten)]
    store: StoreArgument,
    #[command(flatten)]
    server: ServerArguments,
    /// Only what opening reads, not every value
    #[arg(long)]
    quick: bool,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

/// A report's figures, and its damage as lines for people.
pub(super) struct Found {
    pub figures: Vec<(String, String)>,
    pub damage: Vec<String>,
    pub damaged: u64,
}

impl Found {
    /// The report of work done in this process: its figures, and where there is damage.
    pub fn of(figures: Vec<(&'static str, String)>, damage: &[Damage], damaged: u64) -> Self {
        Self {
            figures: figures.into_iter().map(|(name, value)| (name.to_string(), value)).collect(),
            damage: damage.iter().map(|damage| format!("{}: {}", damage.offset, damage.what)).collect(),
            damaged,
        }
    }

    /// Prints the report; damage is a failure that names it.
    pub fn tell(self, json: bool) -> Result<(), Failure> {
        let found = self;
        if json {
            let figures = found.figures.iter().map(|(name, value)| (&name[..], value.clone()));
            print(&format!("{:#}\n", json_object(figures)))?;
        } else {
            let lines = found.figures.iter().map(|(name, value)| format!("{name:>20}  {value}\n"));
            print(&lines.collect::<String>())?;
        }
        if found.damaged == 0 {
            return Ok(());
        }
        let mut text = format!("{} places do not hold", found.damaged);
        for damage in &found.damage {
            text.push_str("\n  device offset ");
            text.push_str(damage);
        }
        Err(Failure::new(Code::Damage, text))
    }
}

impl Check {
    /// Runs the command.
    pub fn run(self, settings: &Settings) -> Result<(), Failure> {
        if self.server.address.is_some() && self.store.given().is_some() {
            return Err(Failure::usage("--store and --address exclude each other: a server checks its own store"));
        }
        let found = if self.server.address.is_some() { self.ask(settings)? } else { self.walk(settings)? };
        found.tell(self.json)
    }

    /// Opens the store and checks it here.
    fn walk(&self, settings: &Settings) -> Result<Found, Failure> {
        let bar = progress::count("checking", 0);
        let report = builder(settings).check(&self.store.location(settings), !self.quick, &mut |done, total| {
            bar.set_length(total);
            bar.set_position(done);
        })?;
        bar.finish_and_clear();
        Ok(Found::of(report.entries(), &report.damage, report.damaged))
    }

    /// Has a server check its store.
    fn ask(&self, settings: &Settings) -> Result<Found, Failure> {
        let mut client = self.server.connect(settings)?;
        client.call(&["ESKER.CHECK", if self.quick { "QUICK" } else { "DEEP" }])?;
        server::follow(&mut client, "check", &progress::count("checking", 0))?;
        parse(&client.call(&["ESKER.CHECK", "STATUS"])?)
    }
}

/// A report as the server tells it.
pub(super) fn parse(text: &str) -> Result<Found, Failure> {
    let mut found = Found { figures: Vec::new(), damage: Vec::new(), damaged: 0 };
    for line in text.lines() {
        match line.split_once(' ') {
            Some(("status", "ok")) => {}
            Some(("status", why)) => return Err(Failure::new(Code::Failure, format!("it failed: {why}"))),
            Some(("damage", place)) => found.damage.push(place.replacen(' ', ": ", 1)),
            Some((name, value)) => {
                if name == "damaged" {
                    found.damaged = value.parse().unwrap_or(u64::MAX);
                }
                found.figures.push((name.to_string(), value.to_string()));
            }
            None => {}
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_servers_report_is_read_with_its_damage() {
        let found = parse("status ok\ndeep true\ndamaged 1\ndamage 4096 slot 1 of c/o: payload\n").unwrap();
        assert_eq!((found.damaged, &found.damage[..]), (1, &["4096: slot 1 of c/o: payload".to_string()][..]));
        assert_eq!(found.figures.len(), 2);
        assert!(parse("status the device failed\n").is_err_and(|failure| failure.to_string().contains("device")));
    }
}
