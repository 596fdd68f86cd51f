//! Configuration of the Thrift server, and what cannot be served.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use esker_kv::Kind;

use super::call::WriteMode;
use super::dirty::{DIRTY_AGE_MAX, DIRTY_AGE_MIN, DIRTY_BYTES_MAX, DIRTY_BYTES_MIN};
use super::memory::MEMORY_BYTES_MIN;
use crate::front::strangers::{PATIENCE, STRANGERS_MAX};
use crate::front::{Passed, TlsFiles, UnixAccess, Users, listen};
use crate::resp::keyspace::is_of_redis;

/// The namespace that is served if nothing else is said.
pub const NAMESPACE: &str = "zdb";

/// What the Thrift server listens on and how far it lets clients go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// TCP addresses. Port 0 picks a free one. Default: none. Other than loopback only with TLS and client
    /// certificates.
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
    /// The users: a client is the one that its certificate names. Default: none, and clients may do everything.
    pub users: Option<Arc<Users>>,
    /// How long calls under way have to finish when the server stops. Default: 3 s.
    pub linger: Duration,
    /// The namespace that is served, made if it is missing. None of those of the Redis protocol (`server`, and what
    /// begins with `db` and a number). Default: [`NAMESPACE`].
    pub namespace: String,
    /// The kind of its keys. Int keys are decimal numbers. Default: bytes.
    pub kind: Kind,
    /// When writes are acknowledged; clients may change it, for all servers with this configuration or a clone of it.
    /// Default: safe.
    pub mode: KeptMode,
    /// Most bytes of asynchronous writes that are acknowledged and not durable, 1 KiB to 1 GiB: keys and values, and
    /// [`DIRTY_KEY_BYTES`](super::DIRTY_KEY_BYTES) for each key. A write above it waits until enough is durable; one
    /// that is larger by itself is acknowledged when it is durable. Default: 64 MiB.
    pub async_bytes_max: u64,
    /// How long such a write may stay so, 10 ms to 1 h: meanwhile it is synced, and if it is older all the same none is
    /// acknowledged until it is durable. Default: 2 s.
    pub async_age_max: Duration,
    /// Most connections at once of clients that have begun a call, 1 to 10,000; the calls of others are refused.
    /// Default: 1,024.
    pub connections_max: usize,
    /// Most connections beside those whose clients have begun none yet, 1 to 10,000; for one more the oldest is closed.
    /// Default: 1,024.
    pub strangers_max: usize,
    /// Seconds in which a connection must begin its first call, the handshake of TLS included, from 1. Default: 10.
    pub stranger_seconds: u64,
    /// Seconds in which a message must be here once it has begun, and an answer be taken; else the connection is
    /// closed. From 1. Default: 60.
    pub message_seconds: u64,
    /// Memory of all clients together, in bytes, beside 32 KiB of each connection: a quarter for messages, a quarter
    /// for answers, the rest for values that are read, of which each call takes as many as it may read; at least one
    /// of each at its limit, 193 MiB. Messages and reads wait for it, answers are refused. What is read and written for
    /// other chains ([`Handle::answer`](super::Handle::answer)) has as much again; calls about keys of each chain,
    /// and of several, have a quarter, of at least 108 MiB. Default: 512 MiB.
    pub memory_bytes_max: usize,
    /// Threads that answer, up to 64, each with its own connections; 0, the default: one per processor, at most 4.
    pub threads: usize,
    /// Most threads that wait for the store on behalf of calls, 4 to 4,096; they start when there is work for them.
    /// Default: 512.
    pub waiting_threads_max: usize,
}

/// When writes are acknowledged, as clients have left it. Clones are the same one, so that it outlives a server that is
/// bound anew; it is kept in memory only.
#[derive(Clone, Debug, Default)]
pub struct KeptMode(Arc<AtomicBool>);

impl KeptMode {
    /// What holds now.
    pub fn get(&self) -> WriteMode {
        if self.0.load(Ordering::Relaxed) { WriteMode::Asynchronous } else { WriteMode::Safe }
    }

    /// What holds for writes that come from now on.
    pub fn set(&self, mode: WriteMode) {
        self.0.store(mode == WriteMode::Asynchronous, Ordering::Relaxed);
    }
}

impl From<WriteMode> for KeptMode {
    fn from(mode: WriteMode) -> Self {
        Self(Arc::new(AtomicBool::new(mode == WriteMode::Asynchronous)))
    }
}

impl PartialEq for KeptMode {
    fn eq(&self, other: &Self) -> bool {
        self.get() == other.get()
    }
}

impl Eq for KeptMode {}

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
            namespace: NAMESPACE.into(),
            kind: Kind::Bytes,
            mode: KeptMode::default(),
            async_bytes_max: 64 << 20,
            async_age_max: Duration::from_secs(2),
            connections_max: 1_024,
            strangers_max: STRANGERS_MAX,
            stranger_seconds: PATIENCE.as_secs(),
            message_seconds: 60,
            memory_bytes_max: 512 << 20,
            threads: 0,
            waiting_threads_max: 512,
        }
    }
}

/// Result of this module.
pub type Result<T> = std::result::Result<T, Error>;

/// Why the Thrift server cannot start or go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A configuration that cannot be served. Fix it.
    #[error("invalid Thrift configuration: {0}")]
    Config(String),
    /// Every machine that reaches the address could read and write. Require client certificates, or listen on loopback.
    #[error(
        "refusing to serve Thrift on {0} without client certificates: require them (tls_cert, tls_key, tls_client_ca), \
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
    /// The namespace cannot be opened; see there for what to do.
    #[error("the namespace that Thrift is to serve")]
    Kv(#[from] esker_kv::Error),
    /// Threads could not be started. Stop.
    #[error("Thrift server: {what}")]
    Threads {
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
        within("stranger_seconds", self.stranger_seconds as usize, 1, 86_400)?;
        within("message_seconds", self.message_seconds as usize, 1, 86_400)?;
        within("memory_bytes_max", self.memory_bytes_max, MEMORY_BYTES_MIN, 1 << 40)?;
        within("threads", self.threads, 0, 64)?;
        within("waiting_threads_max", self.waiting_threads_max, 4, 4_096)?;
        if !(DIRTY_BYTES_MIN..=DIRTY_BYTES_MAX).contains(&self.async_bytes_max) {
            let (found, most) = (self.async_bytes_max, DIRTY_BYTES_MAX);
            return Err(Error::Config(format!("async_bytes_max = {found} is not within {DIRTY_BYTES_MIN}..={most}")));
        }
        if !(DIRTY_AGE_MIN..=DIRTY_AGE_MAX).contains(&self.async_age_max) {
            let (found, least, most) = (self.async_age_max, DIRTY_AGE_MIN, DIRTY_AGE_MAX);
            return Err(Error::Config(format!("async_age_max = {found:?} is not within {least:?}..={most:?}")));
        }
        if is_of_redis(&self.namespace) {
            return Err(Error::Config(format!(
                "namespace {:?}: the Redis protocol keeps its own there",
                self.namespace
            )));
        }
        if self.listen.is_empty() && self.unix_socket.is_none() && self.passed.is_empty() {
            return Err(Error::Config("listen and unix_socket are both empty".into()));
        }
        let certain = self.tls.as_ref().is_some_and(|files| files.client_authorities.is_some());
        match listen::reached(&self.listen, &self.passed).find(|address| !address.ip().is_loopback()) {
            Some(address) if !certain => Err(Error::NoCertificates(address)),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_machines_are_served_only_with_client_certificates() {
        let open = Config { listen: vec![SocketAddr::from(([0, 0, 0, 0], 9_901))], ..Config::default() };
        assert!(matches!(open.check(), Err(Error::NoCertificates(_))));
        let files =
            |client_authorities| Some(TlsFiles { certificate: "c".into(), key: "k".into(), client_authorities });
        assert!(Config { tls: files(None), ..open.clone() }.check().is_err());
        assert!(Config { tls: files(Some("a".into())), ..open }.check().is_ok());
    }

    #[test]
    fn nonsense_is_named() {
        let base = Config { unix_socket: Some("s".into()), ..Config::default() };
        assert!(base.check().is_ok());
        for (config, key) in [
            (Config { connections_max: 0, ..base.clone() }, "connections_max"),
            (Config { strangers_max: 0, ..base.clone() }, "strangers_max"),
            (Config { stranger_seconds: 0, ..base.clone() }, "stranger_seconds"),
            (Config { message_seconds: 0, ..base.clone() }, "message_seconds"),
            (Config { memory_bytes_max: 1 << 20, ..base.clone() }, "memory_bytes_max"),
            (Config { threads: 65, ..base.clone() }, "threads"),
            (Config { waiting_threads_max: 0, ..base.clone() }, "waiting_threads_max"),
            (
                Config { async_bytes_max: 1_023, ..base.clone() },
                "async_bytes_max = 1023 is not within 1024..=1073741824",
            ),
            (Config { async_bytes_max: (1 << 30) + 1, ..base.clone() }, "async_bytes_max"),
            (Config { async_age_max: Duration::from_millis(9), ..base.clone() }, "9ms is not within 10ms..=3600s"),
            (Config { async_age_max: Duration::from_secs(3_601), ..base.clone() }, "async_age_max"),
            (Config { namespace: "db3.int".into(), ..base.clone() }, "db3.int"),
            (Config { namespace: "server".into(), ..base.clone() }, "server"),
            (Config { unix_socket: None, ..base }, "unix_socket"),
        ] {
            let error = config.check().unwrap_err().to_string();
            assert!(error.contains(key), "{error}");
        }
    }
}
