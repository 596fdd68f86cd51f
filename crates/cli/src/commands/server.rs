//! Commands that a running server carries out: which server, and its figures.

use std::collections::HashMap;

use clap::Args;

use super::serve;
use crate::config::Settings;
use crate::exit::Failure;
use crate::resp::Client;

/// Which server, for commands that ask one.
#[derive(Args, Clone, Debug, Default)]
pub struct ServerArguments {
    /// A running server: HOST:PORT, or the path of its unix socket
    #[arg(long, value_name = "ADDRESS")]
    pub address: Option<String>,
    /// The server's password; better in a file, since others see arguments
    #[arg(long, env = "ESKER_PASSWORD", hide_env_values = true, requires = "address")]
    password: Option<String>,
    /// File whose first line is the password
    #[arg(long, value_name = "FILE", conflicts_with = "password", requires = "address")]
    password_file: Option<String>,
}

impl ServerArguments {
    /// Connects to the server, with the password of the flags or the configuration.
    ///
    /// # Errors
    /// Names the address.
    pub fn connect(&self, settings: &Settings) -> Result<Client, Failure> {
        let mut serve = settings.serve.clone();
        if self.password.is_some() || self.password_file.is_some() {
            serve.password = self.password.clone().unwrap_or_default();
            serve.password_file = self.password_file.clone().unwrap_or_default();
        }
        let address = self.address.as_deref().ok_or_else(|| Failure::usage("no address of a server"))?;
        Client::connect(address, serve::password(&serve)?.as_deref())
    }
}

/// Figures by name, as INFO tells them.
pub struct Info(HashMap<String, String>);

impl Info {
    /// A figure; 0 if the server does not know it.
    pub fn number(&self, name: &str) -> u64 {
        self.text(name).parse().unwrap_or(0)
    }

    /// A text; empty if the server does not know it.
    pub fn text(&self, name: &str) -> &str {
        self.0.get(name).map_or("", String::as_str)
    }
}

/// The engine's figures.
///
/// # Errors
/// Those of asking.
pub fn info(client: &mut Client) -> Result<Info, Failure> {
    let text = client.call(&["INFO", "esker"])?;
    let pair = |line: &str| line.split_once(':').map(|(name, value)| (name.to_string(), value.to_string()));
    Ok(Info(text.lines().filter_map(pair).collect()))
}
