//! `esker password`, `esker token`: what stands in the users file for a password or a token.

use std::io::{BufRead, IsTerminal};

use clap::Args;

use super::{print, tell};
use crate::exit::Failure;

/// The arguments of `esker password`.
#[derive(Args)]
#[command(
    after_help = "Reads the password from stdin, up to the end of the line, and prints its hash for `passwords` of the users file."
)]
pub struct Password {}

impl Password {
    /// Runs the command.
    pub fn run(self) -> Result<(), Failure> {
        let stdin = std::io::stdin();
        if stdin.is_terminal() {
            eprint!("password (shown as you type): ");
        }
        let mut line = String::new();
        stdin.lock().read_line(&mut line)?;
        let password = line.trim_end_matches(['\n', '\r']);
        if password.is_empty() {
            return Err(Failure::usage("the password is empty"));
        }
        let hash = esker_server::front::hash_password(password.as_bytes()).map_err(Failure::usage)?;
        print(&format!("{hash}\n"))
    }
}

/// The arguments of `esker token`.
#[derive(Args)]
#[command(after_help = "Prints a new token for a client of gRPC, and its hash for `tokens` of the users file.")]
pub struct Token {
    /// Print them as JSON
    #[arg(long)]
    json: bool,
}

impl Token {
    /// Runs the command.
    pub fn run(self) -> Result<(), Failure> {
        let (token, hash) = esker_server::front::token()?;
        let value = serde_json::json!({ "token": token, "hash": hash });
        tell(self.json, &value, &format!("token  {token}\nhash   {hash}\n"))
    }
}
