//! Configuration of the NBD server, and what cannot be served.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::front::{Passed, TlsFiles, UnixAccess, Users, listen};

/// Longest payload of a READ or WRITE, in bytes; told to clients as the largest block.
pub const PAYLOAD_BYTES_MAX: u32 = 32 << 20;

/// When a connection must be encrypted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TlsMode {
    /// Everything before STARTTLS is refused with the protocol's error.
    #[default]
    Required,
    /// Clients choose.
    Allowed,
}

/// What the NBD server listens on and how far it lets clients go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// TCP addresses. Port 0 picks a free one. Default: none. Other than loopback only where client certificates are
    /// required.
    pub listen: Vec<SocketAddr>,
    /// Path of a unix socket, replaced if a dead one is there. Default: none.
    pub unix_socket: Option<PathBuf>,
    /// What may connect to the unix socket. Default: what the umask leaves.
    pub unix_access: UnixAccess,
    /// Sockets that another process has bound; other than on loopback as `listen`. Default: none.
    pub passed: Vec<Passed>,
    /// Certificate and key for STARTTLS; with authorities clients must show a certificate. Default: none, and no TLS.
    pub tls: Option<TlsFiles>,
    /// The users: a client is the one that its certificate names. Default: none, and clients may use every disk.
    pub users: Option<Arc<Users>>,
    /// How long connections have to finish what is under way when the server stops; twice so long at most. Default: 3
    /// s.
    pub linger: Duration,
    /// Whether connections must be encrypted, where `tls` is given; a unix socket never needs it. Default: required.
    pub tls_mode: TlsMode,
    /// Most clients attached at once, 1 to 10,000; others are refused. Default: 256.
    pub connections_max: usize,
    /// Most connections beside those that negotiate still, 1 to 10,000; for one more the oldest is closed. Each takes a
    /// thread. Default: 64.
    pub strangers_max: usize,
    /// Most requests of a connection that are under way, 1 to 65,536; above it nothing more of it is read. Default:
    /// 1,024.
    pub in_flight_max: usize,
    /// Most payload of requests under way on a connection, in bytes, at least [`PAYLOAD_BYTES_MAX`]; above it nothing
    /// more of it is read. Default: 64 MiB.
    pub in_flight_bytes_max: usize,
    /// Threads that one connection may use, 2 to 64; they start when there is work for them. Default: 8.
    pub threads_per_connection: usize,
    /// Seconds in which the negotiation must be over, from 1. Default: 10.
    pub negotiation_seconds: u64,
    /// Exports whose writes are answered only when durable; `*` means all. Default: none.
    pub durable: Vec<String>,
    /// Whether a connection is cut, rather than a request answered with an error, where the store takes no part any
    /// more or the outcome is not known: clients that connect again send it again, which another server answers.
    /// Default: no.
    pub cut_when_gone: bool,
    /// Exports that refuse writes; `*` means all. Default: none.
    pub read_only: Vec<String>,
    /// Exports that are written without their exclusive lock, for clients that share a disk over several servers (a
    /// cluster's file system); `*` means all. Default: none.
    pub unlocked: Vec<String>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: Vec::new(),
            unix_socket: None,
            unix_access: UnixAccess::default(),
            passed: Vec::new(),
            tls: None,
            users: None,
            linger: Duration::from_secs(3),
            tls_mode: TlsMode::default(),
            connections_max: 256,
            strangers_max: 64,
            in_flight_max: 1_024,
            in_flight_bytes_max: 64 << 20,
            threads_per_connection: 8,
            negotiation_seconds: 10,
            durable: Vec::new(),
            cut_when_gone: false,
            read_only: Vec::new(),
            unlocked: Vec::new(),
        }
    }
}

/// Result of this module.
pub type Result<T> = std::result::Result<T, Error>;

/// Why the NBD server cannot start or go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A configuration that cannot be served. Fix it.
    #[error("invalid NBD configuration: {0}")]
    Config(String),
    /// Every client that reaches the address could read and write. Require client certificates, or listen on loopback.
    #[error(
        "refusing to serve disks on {0} without client certificates: require them (tls_cert, tls_key, tls_client_ca), \
         or listen on a loopback address or a unix socket"
    )]
    NoCertificates(SocketAddr),
    /// The address cannot be listened on. Choose another, or stop who has it.
    #[error("cannot listen on {address}")]
    Listen {
        /// The address or path.
        address: String,
        /// The operating system's cause.
        #[source]
        source: std::io::Error,
    },
    /// The TLS files cannot be used. Fix them.
    #[error("{0}")]
    Tls(String),
    /// Waiting for connections failed. Stop.
    #[error("NBD listener: {what}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// The operating system's cause.
        #[source]
        source: std::io::Error,
    },
}

impl Config {
    /// Checks what can be checked without opening anything.
    ///
    /// # Errors
    /// [`Error::Config`] names the key; [`Error::NoCertificates`].
    pub fn check(&self) -> Result<()> {
        let within = |key: &str, value: usize, min: usize, max: usize| {
            if (min..=max).contains(&value) {
                return Ok(());
            }
            Err(Error::Config(format!("{key} = {value} is not within {min}..={max}")))
        };
        within("connections_max", self.connections_max, 1, 10_000)?;
        within("strangers_max", self.strangers_max, 1, 10_000)?;
        within("in_flight_max", self.in_flight_max, 1, 65_536)?;
        within("in_flight_bytes_max", self.in_flight_bytes_max, PAYLOAD_BYTES_MAX as usize, 1 << 40)?;
        within("threads_per_connection", self.threads_per_connection, 2, 64)?;
        within("negotiation_seconds", self.negotiation_seconds as usize, 1, 86_400)?;
        if self.listen.is_empty() && self.unix_socket.is_none() && self.passed.is_empty() {
            return Err(Error::Config("listen and unix_socket are both empty".into()));
        }
        let certain = self.tls_mode == TlsMode::Required
            && self.tls.as_ref().is_some_and(|files| files.client_authorities.is_some());
        match listen::reached(&self.listen, &self.passed).find(|address| !address.ip().is_loopback()) {
            Some(address) if !certain => Err(Error::NoCertificates(address)),
            _ => Ok(()),
        }
    }

    /// Whether `name` is in one of the lists of exports.
    pub(crate) fn names(list: &[String], name: &str) -> bool {
        list.iter().any(|entry| entry == "*" || entry == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_machines_are_served_only_with_client_certificates() {
        let open = Config { listen: vec![SocketAddr::from(([0, 0, 0, 0], 10_809))], ..Config::default() };
        assert!(matches!(open.check(), Err(Error::NoCertificates(_))));
        let files =
            |client_authorities| Some(TlsFiles { certificate: "c".into(), key: "k".into(), client_authorities });
        assert!(Config { tls: files(None), ..open.clone() }.check().is_err());
        assert!(Config { tls: files(Some("a".into())), ..open.clone() }.check().is_ok());
        assert!(
            Config { tls: files(Some("a".into())), tls_mode: TlsMode::Allowed, ..open }.check().is_err(),
            "a client that does not encrypt shows no certificate"
        );
    }

    #[test]
    fn nonsense_is_named() {
        let base = Config { unix_socket: Some("s".into()), ..Config::default() };
        assert!(base.check().is_ok());
        for (config, key) in [
            (Config { connections_max: 0, ..base.clone() }, "connections_max"),
            (Config { strangers_max: 0, ..base.clone() }, "strangers_max"),
            (Config { in_flight_max: 0, ..base.clone() }, "in_flight_max"),
            (Config { in_flight_bytes_max: 1 << 20, ..base.clone() }, "in_flight_bytes_max"),
            (Config { threads_per_connection: 1, ..base.clone() }, "threads_per_connection"),
            (Config { negotiation_seconds: 0, ..base.clone() }, "negotiation_seconds"),
            (Config { unix_socket: None, ..base }, "unix_socket"),
        ] {
            let error = config.check().unwrap_err().to_string();
            assert!(error.contains(key), "{error}");
        }
    }
}
