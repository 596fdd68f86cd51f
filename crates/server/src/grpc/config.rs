//! Configuration of the gRPC server, and what cannot be served.

use std::hash::BuildHasher;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::front::strangers::{PATIENCE, STRANGERS_MAX};
use crate::front::{Face, Passed, TlsFiles, UnixAccess, Users, listen};

/// Longest message of the service of logs, in bytes: a batch, with room for what stands beside its data.
pub const MESSAGE_BYTES_MAX: usize = 20 << 20;
/// Longest message of the service of the map, in bytes: a row with its before-image, with room for what stands beside
/// them.
pub const MAP_MESSAGE_BYTES_MAX: usize = 40 << 20;
/// Longest message of the object service, in bytes: a transaction at its limits, with room for its encoding.
pub const OBJECT_MESSAGE_BYTES_MAX: usize = 96 << 20;

/// What the gRPC server listens on and how far it lets clients go.
#[derive(Clone, PartialEq, Eq)]
pub struct Config {
    /// TCP addresses. Port 0 picks a free one. Default: none. Other than loopback only with TLS, and then with client
    /// certificates or a token.
    pub listen: Vec<SocketAddr>,
    /// Path of a unix socket, replaced if a dead one is there. Default: none.
    pub unix_socket: Option<PathBuf>,
    /// What may connect to the unix socket. Default: what the umask leaves.
    pub unix_access: UnixAccess,
    /// Sockets that another process has bound; other than on loopback as `listen`. Default: none.
    pub passed: Vec<Passed>,
    /// Certificate and key; with them all TCP addresses speak TLS, and with authorities clients must show a
    /// certificate. Default: none.
    pub tls: Option<TlsFiles>,
    /// What clients send as `authorization: Bearer TOKEN`, over every address. Default: none is asked for.
    pub token: Option<String>,
    /// The users, where they are more than one with that token. Default: none.
    pub users: Option<Arc<Users>>,
    /// How long calls under way have to finish when the server stops. Default: 3 s.
    pub linger: Duration,
    /// Whether the objects of the store are served as well: a client that reaches them may change everything. Default:
    /// false.
    pub objects: bool,
    /// Most connections at once of clients that have made a request, with the token if there is one, 1 to 10,000; the
    /// requests of others are refused. Default: 1,024.
    pub connections_max: usize,
    /// Most connections beside those whose clients have made no such request yet, 1 to 10,000; for one more the oldest
    /// is closed. Default: 1,024.
    pub strangers_max: usize,
    /// Seconds in which a connection must make its first request, the handshakes of TLS and HTTP/2 included, from 1.
    /// Default: 10.
    pub stranger_seconds: u64,
    /// Most calls under way on a connection, 1 to 65,536; more wait with the client. Default: 1,024.
    pub calls_max: u32,
    /// Most appends of a stream that wait to be durable, 1 to 65,536; above it nothing more of the stream is read.
    /// Default: 1,024.
    pub in_flight_max: usize,
    /// Most followers of logs at once, and most scans of the map, each 1 to 65,536; others are refused. Default: 1,024.
    pub followers_max: usize,
    /// Threads that answer, 1 to 64. Default: 2.
    pub threads: usize,
    /// Most threads that wait for the store on behalf of calls, 4 to 4,096; they start when there is work for them.
    /// Default: 512.
    pub waiting_threads_max: usize,
    /// A connection that does not answer a ping for twice so long is closed. From 1 second. Default: 20 s.
    pub ping: Duration,
    /// Number of this life of the store, told with every answer of its objects: never the same after a restart.
    /// Default: drawn anew.
    pub incarnation: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: Vec::new(),
            unix_socket: None,
            unix_access: UnixAccess::default(),
            passed: Vec::new(),
            tls: None,
            token: None,
            users: None,
            linger: Duration::from_secs(3),
            objects: false,
            connections_max: 1_024,
            strangers_max: STRANGERS_MAX,
            stranger_seconds: PATIENCE.as_secs(),
            calls_max: 1_024,
            in_flight_max: 1_024,
            followers_max: 1_024,
            threads: 2,
            waiting_threads_max: 512,
            ping: Duration::from_secs(20),
            // The keys of a new state are random.
            incarnation: std::hash::RandomState::new().hash_one(std::process::id()),
        }
    }
}

impl std::fmt::Debug for Config {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // A secret: the token is not shown.
        let (listen, unix) = (&self.listen, &self.unix_socket);
        f.debug_struct("Config").field("listen", listen).field("unix_socket", unix).finish_non_exhaustive()
    }
}

/// Result of this module.
pub type Result<T> = std::result::Result<T, Error>;

/// Why the gRPC server cannot start or go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A configuration that cannot be served. Fix it.
    #[error("invalid gRPC configuration: {0}")]
    Config(String),
    /// Every client that reaches the address could read and write. Use TLS with client certificates or a token, or
    /// listen on loopback.
    #[error(
        "refusing to serve gRPC on {0} openly: give a certificate (tls_cert, tls_key), and require client certificates \
         (tls_client_ca) or a token (grpc_token_file), or listen on a loopback address or a unix socket"
    )]
    Open(SocketAddr),
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
    /// Threads could not be started, or serving failed. Stop.
    #[error("gRPC server: {what}: {why}")]
    Serve {
        /// What was tried.
        what: &'static str,
        /// The cause.
        why: String,
    },
}

impl Config {
    /// Whether it listens on addresses that machines without a certificate reach.
    pub(crate) fn is_reached_by_strangers(&self) -> bool {
        let asked = self.tls.as_ref().is_some_and(|files| files.client_authorities.is_some());
        !asked && listen::reached(&self.listen, &self.passed).any(|address| !address.ip().is_loopback())
    }

    /// Whether only users with a token or a certificate are served.
    fn is_closed(&self) -> bool {
        self.users.as_ref().is_some_and(|users| users.nobody(Face::Log).or(users.nobody(Face::Map)).is_none())
    }

    /// Checks what can be checked without opening anything.
    ///
    /// # Errors
    /// [`Error::Config`] names the key; [`Error::Open`].
    pub fn check(&self) -> Result<()> {
        let within = |key: &str, value: usize, min: usize, max: usize| {
            if (min..=max).contains(&value) {
                return Ok(());
            }
            Err(Error::Config(format!("{key} = {value} is not within {min}..={max}")))
        };
        within("connections_max", self.connections_max, 1, 10_000)?;
        within("strangers_max", self.strangers_max, 1, 10_000)?;
        within("stranger_seconds", self.stranger_seconds as usize, 1, 86_400)?;
        within("calls_max", self.calls_max as usize, 1, 65_536)?;
        within("in_flight_max", self.in_flight_max, 1, 65_536)?;
        within("followers_max", self.followers_max, 1, 65_536)?;
        within("threads", self.threads, 1, 64)?;
        within("waiting_threads_max", self.waiting_threads_max, 4, 4_096)?;
        within("ping (in seconds)", self.ping.as_secs() as usize, 1, 86_400)?;
        if self.listen.is_empty() && self.unix_socket.is_none() && self.passed.is_empty() {
            return Err(Error::Config("listen and unix_socket are both empty".into()));
        }
        if let Some(token) = &self.token
            && (token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()))
        {
            return Err(Error::Config("the token is empty, or holds something else than visible ASCII".into()));
        }
        let certain = self
            .tls
            .as_ref()
            .is_some_and(|files| files.client_authorities.is_some() || self.token.is_some() || self.is_closed());
        match listen::reached(&self.listen, &self.passed).find(|address| !address.ip().is_loopback()) {
            Some(address) if !certain => Err(Error::Open(address)),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_machines_are_served_only_encrypted_and_known() {
        let files = |ca: bool| TlsFiles {
            certificate: "c".into(),
            key: "k".into(),
            client_authorities: ca.then(|| "ca".into()),
        };
        let open = Config { listen: vec![SocketAddr::from(([0, 0, 0, 0], 7_000))], ..Config::default() };
        assert!(matches!(open.check(), Err(Error::Open(_))));
        let token = Config { token: Some("secret".into()), ..open.clone() };
        assert!(matches!(token.check(), Err(Error::Open(_))), "a token over the air is no secret");
        let encrypted = Config { tls: Some(files(false)), ..open.clone() };
        assert!(matches!(encrypted.check(), Err(Error::Open(_))));
        assert!(Config { token: Some("secret".into()), ..encrypted }.check().is_ok());
        assert!(Config { tls: Some(files(true)), ..open }.check().is_ok());
    }

    #[test]
    fn what_is_out_of_range_is_named() {
        let near = Config { listen: vec![SocketAddr::from(([127, 0, 0, 1], 0))], ..Config::default() };
        assert!(near.check().is_ok());
        let bad = Config { in_flight_max: 0, ..near.clone() };
        assert!(bad.check().unwrap_err().to_string().contains("in_flight_max = 0"));
        assert!(Config { token: Some("a b".into()), ..near.clone() }.check().is_err());
        assert!(Config { listen: Vec::new(), ..near }.check().is_err());
    }
}
