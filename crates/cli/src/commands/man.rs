//! `esker man`: the manual pages of this program and of each of its commands.

use std::path::PathBuf;

use clap::Args;

use crate::exit::{Code, Failure};

/// Writes the manual pages, `esker.1`, `esker-serve.1` and so on, for example `esker man /usr/local/share/man/man1`.
#[derive(Args)]
pub struct Man {
    /// Where the pages go; made if it does not exist
    folder: PathBuf,
}

impl Man {
    /// Runs the command.
    pub fn run(self, program: clap::Command) -> Result<(), Failure> {
        let written =
            std::fs::create_dir_all(&self.folder).and_then(|()| clap_mangen::generate_to(program, &self.folder));
        written.map_err(|error| Failure::of(Code::Failure, &error).within(self.folder.display()))
    }
}
