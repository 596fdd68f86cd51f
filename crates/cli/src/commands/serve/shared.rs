//! What the servers of `esker serve` share: addresses as people write them, certificates, users, failures as exit
//! codes.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use esker_server::front::{TlsFiles, UnixAccess, Users};
use esker_server::resp::Error;

use crate::config::ServeSettings;
use crate::exit::{Code, Failure};

/// Shortest and longest time to drain.
const DRAIN_MIN: Duration = Duration::from_secs(1);
const DRAIN_MAX: Duration = Duration::from_secs(3_600);

/// What all protocols are given.
pub struct Front {
    /// Certificate and key, with the authorities of clients.
    pub tls: Option<TlsFiles>,
    /// Who may connect to unix sockets.
    pub unix: UnixAccess,
    /// The users of the file, if there is one.
    pub users: Option<Arc<Users>>,
    /// How long clients have to take what is under way at the end.
    pub linger: Duration,
}

impl Front {
    /// What the settings say, with the users read.
    pub fn of(settings: &ServeSettings) -> Result<Self, Failure> {
        let path = |text: &str| (!text.is_empty()).then(|| PathBuf::from(text));
        let tls = match (path(&settings.tls_cert), path(&settings.tls_key)) {
            (Some(certificate), Some(key)) => {
                Some(TlsFiles { certificate, key, client_authorities: path(&settings.tls_client_ca) })
            }
            (None, None) => None,
            _ => return Err(Failure::usage("tls_cert and tls_key are only of use together")),
        };
        let mode = settings.unix_socket_mode.as_str();
        let octal = |mode: &str| {
            let number = u32::from_str_radix(mode, 8).ok().filter(|mode| *mode <= 0o777);
            number.ok_or_else(|| Failure::usage(format!("unix_socket_mode = {mode:?}: expected octal such as 660")))
        };
        let mode = if mode.is_empty() { None } else { Some(octal(mode)?) };
        let group = Some(settings.unix_socket_group.clone()).filter(|group| !group.is_empty());
        let linger = settings.drain.0.0;
        if !(DRAIN_MIN..=DRAIN_MAX).contains(&linger) {
            return Err(Failure::usage(format!("drain = {}: expected 1s to 1h", settings.drain.0)));
        }
        let users = match path(&settings.users_file) {
            None => None,
            Some(file) => {
                let (password, token) = (password(settings)?, token(&settings.grpc_token_file)?);
                let users = Users::open(&file, password.as_deref(), token.as_deref());
                Some(users.map_err(|error| Failure::of(Code::Usage, &error))?)
            }
        };
        Ok(Self { tls, unix: UnixAccess { mode, group }, users, linger })
    }

    /// The files for a protocol that has authorities of its own, `none`, or the same as all.
    pub fn tls_for(&self, authorities: &str) -> Option<TlsFiles> {
        let tls = self.tls.clone()?;
        let client_authorities = match authorities {
            "" => tls.client_authorities,
            "none" => None,
            file => Some(PathBuf::from(file)),
        };
        Some(TlsFiles { client_authorities, ..tls })
    }
}

/// The first line of the file that a setting names.
fn first_line(setting: &str, file: &str) -> Result<String, Failure> {
    let text = std::fs::read_to_string(file).map_err(|error| Failure::usage(format!("{setting} {file}: {error}")))?;
    match text.lines().next() {
        Some(line) if !line.is_empty() => Ok(line.to_string()),
        _ => Err(Failure::usage(format!("{setting} {file}: its first line is empty"))),
    }
}

/// The password that clients give, from the setting or the first line of the file that it names.
pub fn password(settings: &ServeSettings) -> Result<Option<String>, Failure> {
    match (settings.password.as_str(), settings.password_file.as_str()) {
        ("", "") => Ok(None),
        (password, "") => Ok(Some(password.to_string())),
        ("", file) => first_line("password file", file).map(Some),
        _ => Err(Failure::usage("password and password_file are both given; one is enough")),
    }
}

/// The token in the first line of a file; none where no file is named.
pub fn token(file: &str) -> Result<Option<String>, Failure> {
    if file.is_empty() { Ok(None) } else { first_line("token file", file).map(Some) }
}

/// Addresses as they are written, looked up.
pub fn addresses(texts: &[String]) -> Result<Vec<SocketAddr>, Failure> {
    let mut addresses = Vec::new();
    for text in texts {
        let found = text.to_socket_addrs().map_err(|error| {
            Failure::usage(format!(
                "address {text:?}: {error}; expected HOST:PORT such as 127.0.0.1:6379 or [::1]:6379"
            ))
        })?;
        addresses.extend(found);
    }
    Ok(addresses)
}

pub(super) fn failure(error: Error) -> Failure {
    match error {
        Error::Kv(error) => error.into(),
        Error::Store(error) => error.into(),
        Error::Config(_) | Error::NoPassword(_) | Error::Tls { .. } => Failure::of(Code::Usage, &error),
        error => Failure::of(Code::Failure, &error),
    }
}
