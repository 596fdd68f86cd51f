//! `esker completions`: the script that teaches a shell to complete this program's arguments.

use clap::Args;
use clap_complete::Shell;

use crate::exit::Failure;

/// Prints a completion script, for example `esker completions bash > /etc/bash_completion.d/esker`.
#[derive(Args)]
pub struct Completions {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

impl Completions {
    /// Runs the command.
    pub fn run(self, mut program: clap::Command) -> Result<(), Failure> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut program, "esker", &mut script);
        super::print(&String::from_utf8_lossy(&script))
    }
}
