//! `esker reload`: a running server takes its certificates, passwords, tokens, users and the mode of Thrift anew.

use clap::Args;

use super::print;
use super::server::ServerArguments;
use crate::config::Settings;
use crate::exit::Failure;

/// The arguments of `esker reload`.
#[derive(Args)]
#[command(
    after_help = "As a signal SIGHUP does. Connections that are open stay so; what cannot be read changes nothing. \
                  thrift_mode counts where the configuration file says another than when it was last read, and no flag \
                  does."
)]
pub struct Reload {
    #[command(flatten)]
    server: ServerArguments,
}

impl Reload {
    /// Runs the command.
    pub fn run(self, settings: &Settings) -> Result<(), Failure> {
        self.server.connect_anyway(settings)?.call(&["ESKER.RELOAD"])?;
        print("taken anew: certificates, passwords, tokens, users, thrift_mode\n")
    }
}
