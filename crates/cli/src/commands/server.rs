//! Commands that a running server carries out: which server, and its figures.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use indicatif::ProgressBar;

use super::serve;
use crate::config::Settings;
use crate::exit::Failure;
use crate::resp::{Client, Reach};

/// The variable of the environment with the password of a server, where no flag gives one.
pub const PASSWORD_VARIABLE: &str = "ESKER_PASSWORD";

/// How often a server is asked how far it is.
const POLL: Duration = Duration::from_millis(100);

/// The password in the environment.
pub fn password_from_environment() -> Option<String> {
    std::env::var(PASSWORD_VARIABLE).ok().filter(|password| !password.is_empty())
}

/// How a running server is reached, and as which user.
#[derive(Args, Clone, Debug, Default)]
pub struct Credentials {
    /// The user to log in as; without it the server's default user
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    /// The password; better in a file or in ESKER_PASSWORD, since others see arguments
    #[arg(long, value_name = "PASSWORD")]
    password: Option<String>,
    /// File whose first line is the password
    #[arg(long, value_name = "FILE", conflicts_with = "password")]
    password_file: Option<String>,
    /// Speak TLS with the server
    #[arg(long)]
    tls: bool,
    /// Authorities (PEM) that the server's certificate is checked with; without them those of this machine
    #[arg(long, value_name = "FILE", requires = "tls")]
    ca: Option<PathBuf>,
    /// Certificate chain (PEM) to show to the server
    #[arg(long, value_name = "FILE", requires_all = ["tls", "key"])]
    cert: Option<PathBuf>,
    /// The certificate's private key (PEM)
    #[arg(long, value_name = "FILE", requires = "cert")]
    key: Option<PathBuf>,
}

impl Credentials {
    /// Connects to the server, with the password of the flags, the environment or the configuration.
    ///
    /// # Errors
    /// Names the address, or the file.
    pub fn connect(&self, address: &str, settings: &Settings) -> Result<Client, Failure> {
        let mut serve = settings.serve.clone();
        let from_environment = || password_from_environment().filter(|_| self.password_file.is_none());
        let given = self.password.clone().or_else(from_environment);
        if given.is_some() || self.password_file.is_some() {
            serve.password = given.unwrap_or_default();
            serve.password_file = self.password_file.clone().unwrap_or_default();
        }
        let reach = Reach {
            user: self.user.clone(),
            password: serve::password(&serve)?,
            tls: self.tls,
            authorities: self.ca.clone(),
            identity: self.cert.clone().zip(self.key.clone()),
        };
        Client::connect(address, &reach)
    }
}

/// Which server, for commands that ask one.
#[derive(Args, Clone, Debug, Default)]
pub struct ServerArguments {
    /// A running server: HOST:PORT, or the path of its unix socket
    #[arg(long, value_name = "ADDRESS")]
    pub address: Option<String>,
    #[command(flatten)]
    credentials: Credentials,
}

impl ServerArguments {
    /// Connects to the server that the flag names.
    ///
    /// # Errors
    /// Those of [`Credentials::connect`].
    pub fn connect(&self, settings: &Settings) -> Result<Client, Failure> {
        let address = self.address.as_deref().ok_or_else(|| Failure::usage("no address of a server"))?;
        self.credentials.connect(address, settings)
    }

    /// The same, or else to the first address that the configuration listens on.
    ///
    /// # Errors
    /// Those of [`Credentials::connect`].
    pub fn connect_anyway(&self, settings: &Settings) -> Result<Client, Failure> {
        let configured = settings.serve.listen.first().cloned();
        let address = self.address.clone().or(configured).ok_or_else(|| Failure::usage("no address of a server"))?;
        self.credentials.connect(&address, settings)
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

/// Shows how far the server is with what it does in the background, by the name that it has in INFO, until it is done.
///
/// # Errors
/// Those of asking.
pub fn follow(client: &mut Client, name: &str, bar: &ProgressBar) -> Result<(), Failure> {
    loop {
        let info = info(client)?;
        if info.number(&format!("{name}_in_progress")) == 0 {
            bar.finish_and_clear();
            return Ok(());
        }
        bar.set_length(info.number(&format!("{name}_total")));
        bar.set_position(info.number(&format!("{name}_done")));
        std::thread::sleep(POLL);
    }
}
