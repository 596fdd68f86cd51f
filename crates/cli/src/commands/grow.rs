//! `esker grow`: a store takes in the space that its file or block device has gained.
//!
//! a file that no server has open → lengthened → opened and closed; a running server → ESKER.GROW → INFO until it is
//! done
//!
//! Invariant: nothing is ever made shorter.

use std::time::Duration;

use clap::Args;

use super::server::ServerArguments;
use super::{builder, print};
use crate::config::Settings;
use crate::exit::{Code, Failure};

/// The arguments of `esker grow`.
#[derive(Args)]
#[command(
    after_help = "A running server takes in new space without a stop: make its file or block device longer first (truncate -s 20G \
data/store.esker, lvextend, …), then run\n  esker grow --address HOST:PORT\nA store that no server has open:\n  esker grow STORE --size 20g"
)]
pub struct Grow {
    /// The store: a folder, a file or a block device that no server has open
    #[arg(required_unless_present = "address", conflicts_with = "address")]
    store: Option<String>,
    /// Make the store's file so long first, such as 20g
    #[arg(long, requires = "store")]
    size: Option<esker::ByteSize>,
    #[command(flatten)]
    server: ServerArguments,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

impl Grow {
    /// Runs the command.
    pub fn run(self, settings: &Settings) -> Result<(), Failure> {
        let (added, bytes) = match &self.store {
            Some(store) => {
                let builder = builder(settings).create(false).expire_interval(Duration::ZERO);
                let report = builder.grow(store, self.size.map(|size| size.0))?;
                (report.added_segments, report.after_bytes)
            }
            None => self.ask(settings)?,
        };
        if self.json {
            let result = serde_json::json!({ "added_segments": added, "device_bytes": bytes });
            return print(&format!("{result:#}\n"));
        }
        print(&format!("{added} segments more; the store uses {bytes} bytes\n"))
    }

    fn ask(&self, settings: &Settings) -> Result<(u64, u64), Failure> {
        let mut client = self.server.connect(settings)?;
        client.call(&["ESKER.GROW"])?;
        loop {
            let info = super::server::info(&mut client)?;
            if info.number("grow_in_progress") == 0 {
                let status = info.text("grow_last_status");
                if status != "ok" {
                    return Err(Failure::new(Code::Failure, format!("the server could not grow: {status}")));
                }
                return Ok((info.number("grow_added_segments"), info.number("grow_device_bytes")));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
