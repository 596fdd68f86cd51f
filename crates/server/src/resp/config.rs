//! Configuration of the Redis-protocol server, and what cannot be served.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use esker_kv::{Compression, Kind, VALUE_BYTES_MAX};

use crate::front::strangers::PATIENCE;
use crate::front::{Face, Passed, TlsError, TlsFiles, UnixAccess, Users, listen};
use crate::resp::cluster::Cluster;
use crate::resp::moment::Moment;

/// Number of databases that SELECT knows.
pub const DATABASES: usize = 16;

/// What the server listens on and how far it lets clients go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// TCP addresses. Port 0 picks a free one. Default: 127.0.0.1:6379. Only loopback without a password.
    pub listen: Vec<SocketAddr>,
    /// TCP addresses that speak TLS; needs `tls`. Default: none. Only loopback without a password.
    pub tls_listen: Vec<SocketAddr>,
    /// Certificate and key for `tls_listen`. Default: none.
    pub tls: Option<TlsFiles>,
    /// Path of a unix socket, replaced if a dead one is there. Default: none.
    pub unix_socket: Option<PathBuf>,
    /// What may connect to the unix socket. Default: what the umask leaves.
    pub unix_access: UnixAccess,
    /// Sockets that another process has bound. Default: none. Only on loopback without a password.
    pub passed: Vec<Passed>,
    /// The same, where clients speak TLS; needs `tls`, and TCP. Default: none.
    pub tls_passed: Vec<Passed>,
    /// Whether no client is served: then nothing is listened on. Default: false.
    pub off: bool,
    /// Password that clients give with AUTH or HELLO, for the user `default`. Default: none.
    pub password: Option<String>,
    /// The users, where they are more than `default` with that password. Default: none.
    pub users: Option<Arc<Users>>,
    /// Event loops, each on its own thread: 1 to 64; 0 is one less than there are processors,
    /// from 1 to 4. Default: 0.
    pub threads: usize,
    /// Threads that run commands where the store is on the other side of a network, 1 to 1,024: so many wait for it at
    /// once, beside reads. Default: 64.
    pub afar_threads: usize,
    /// Most clients at once, those that have not given the password, or over TLS sent a command, left aside.
    /// Default: 10,000.
    pub clients_max: usize,
    /// Most of those others; for one more the oldest is disconnected. Default: 4,096.
    pub strangers_max: usize,
    /// Seconds in which they have to, 1 to 86,400. Default: 10.
    pub stranger_seconds: u64,
    /// How long replies under way may take to be taken when the server stops. Default: 3 s.
    pub linger: Duration,
    /// Seconds without a byte from a client after which it is disconnected; 0: never. Default: 0.
    pub idle_seconds: u64,
    /// Longest argument of a command, in bytes: at most the largest value of the store. Default: that.
    pub arg_bytes_max: usize,
    /// Longest command, in bytes with its framing; also the most that MULTI queues. Default: 64 MiB.
    pub command_bytes_max: usize,
    /// Unread replies, in bytes, above which no further command of a client is read. Default: 1 MiB.
    pub output_bytes_soft: usize,
    /// Unread replies, in bytes, above which a client is disconnected: what a single reply may take. Default: 256 MiB.
    pub output_bytes_max: usize,
    /// Memory held for all clients together, in bytes: commands that are not whole or wait, queued ones, replies. Above
    /// it those who hold most are disconnected. From 1 MiB. Default: 1 GiB.
    pub clients_bytes_max: usize,
    /// Databases, 0 to 15, in which a key that is a plain u64 is kept in slots. Default: none. Fixed per database once
    /// it holds keys.
    pub int_databases: Vec<u8>,
    /// The namespace that is served by Thrift beside the databases, and the kind of its keys: it goes with the slots of
    /// its keys, which are ranges of 65,536 where they are numbers, else as those of the databases. Default: none.
    pub thrift_namespace: Option<(String, Kind)>,
    /// Compression of values that are written to the databases from now on; `None` leaves each as it was. Default:
    /// `None`.
    pub compression: Option<Compression>,
    /// The cluster that the server is a node of: keys of other nodes' slots are redirected to them. Default: none, then
    /// all keys are served here.
    pub cluster: Option<Arc<dyn Cluster>>,
    /// The store takes no writes, being that of a replica of a chain, and reads of it are as strong as those at its
    /// head: clients that have sent READONLY are answered here where the cluster says that this node keeps a replica of
    /// the slots. A command that reads its keys several times holds this shared, so that nothing is applied meanwhile.
    /// Default: none.
    pub reading: Option<Moment>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: vec![SocketAddr::from(([127, 0, 0, 1], 6379))],
            tls_listen: Vec::new(),
            tls: None,
            unix_socket: None,
            unix_access: UnixAccess::default(),
            passed: Vec::new(),
            tls_passed: Vec::new(),
            off: false,
            password: None,
            users: None,
            threads: 0,
            afar_threads: 64,
            clients_max: 10_000,
            strangers_max: 4_096,
            stranger_seconds: PATIENCE.as_secs(),
            linger: Duration::from_secs(3),
            idle_seconds: 0,
            arg_bytes_max: VALUE_BYTES_MAX,
            command_bytes_max: 64 << 20,
            output_bytes_soft: 1 << 20,
            output_bytes_max: 256 << 20,
            clients_bytes_max: 1 << 30,
            int_databases: Vec::new(),
            thrift_namespace: None,
            compression: None,
            cluster: None,
            reading: None,
        }
    }
}

/// Result of this module.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a server cannot start or go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A configuration that cannot be served. Fix it.
    #[error("invalid server configuration: {0}")]
    Config(String),
    /// Without a password every client that reaches the address could read and write. Set one, or listen on loopback.
    #[error("refusing to listen on {0} without a password: set one, or listen on a loopback address")]
    NoPassword(SocketAddr),
    /// The address cannot be listened on. Choose another, or stop who has it.
    #[error("cannot listen on {address}")]
    Listen {
        /// The address or path.
        address: String,
        /// The operating system's cause.
        #[source]
        source: std::io::Error,
    },
    /// A TLS file cannot be used. Fix it.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// Waiting for sockets failed. Stop.
    #[error("event loop: {what}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// The operating system's cause.
        #[source]
        source: std::io::Error,
    },
    /// The key-value face refused; see there.
    #[error(transparent)]
    Kv(#[from] esker_kv::Error),
    /// The store refused; see there.
    #[error(transparent)]
    Store(#[from] esker_store::Error),
}

impl Config {
    /// The users: those given, else `default` with the password.
    pub(crate) fn users(&self) -> Arc<Users> {
        self.users.clone().unwrap_or_else(|| Users::alone(self.password.as_deref(), None))
    }

    /// An address that other machines reach.
    fn reached_by_others(&self) -> Option<SocketAddr> {
        let (plain, tls) =
            (listen::reached(&self.listen, &self.passed), listen::reached(&self.tls_listen, &self.tls_passed));
        plain.chain(tls).find(|address| !address.ip().is_loopback())
    }

    /// Whether it listens on addresses that other machines reach.
    pub(crate) fn is_reached_by_others(&self) -> bool {
        self.reached_by_others().is_some()
    }

    /// Checks what can be checked without opening anything.
    ///
    /// # Errors
    /// [`Error::Config`] names the key; [`Error::NoPassword`].
    pub fn check(&self) -> Result<()> {
        let refuse = |why: String| Err(Error::Config(why));
        let passed = !self.passed.is_empty() || !self.tls_passed.is_empty();
        let listens = !self.listen.is_empty() || !self.tls_listen.is_empty() || self.unix_socket.is_some() || passed;
        if listens == self.off {
            let off = "off, and yet there are addresses to listen on";
            let on = "listen, tls_listen and unix_socket are all empty";
            return refuse(if self.off { off.into() } else { on.into() });
        }
        if (!self.tls_listen.is_empty() || !self.tls_passed.is_empty()) && self.tls.is_none() {
            return refuse("tls_listen needs a certificate and key in tls".into());
        }
        if let Some(socket) = self.tls_passed.iter().find(|socket| socket.address().is_none()) {
            return refuse(format!("TLS is not served on the unix socket {}", socket.place()));
        }
        if self.threads > 64 {
            return refuse(format!("threads = {} is above 64", self.threads));
        }
        if !(1..=1_024).contains(&self.afar_threads) {
            return refuse(format!("afar_threads = {} is not within 1..=1024", self.afar_threads));
        }
        if self.strangers_max == 0 || !(1..=86_400).contains(&self.stranger_seconds) {
            return refuse("strangers_max must be at least 1, stranger_seconds 1 to 86400".into());
        }
        if self.clients_bytes_max < 1 << 20 {
            return refuse("clients_bytes_max must be at least 1 MiB".into());
        }
        if self.clients_max == 0 {
            return refuse("clients_max must be at least 1".into());
        }
        if self.arg_bytes_max == 0 || self.arg_bytes_max > VALUE_BYTES_MAX {
            return refuse(format!("arg_bytes_max = {} is not within 1..={VALUE_BYTES_MAX}", self.arg_bytes_max));
        }
        if self.command_bytes_max < 1_024 || self.command_bytes_max > 1 << 30 {
            return refuse(format!("command_bytes_max = {} is not within 1 KiB..=1 GiB", self.command_bytes_max));
        }
        if self.output_bytes_max < self.output_bytes_soft {
            return refuse("output_bytes_max is below output_bytes_soft".into());
        }
        if let Some(index) = self.int_databases.iter().find(|index| usize::from(**index) >= DATABASES) {
            return refuse(format!("int_databases holds {index}, but databases are 0 to {}", DATABASES - 1));
        }
        if self.password.as_deref() == Some("") {
            return refuse("password is empty".into());
        }
        let closed = self.users.as_ref().is_some_and(|users| users.nobody(Face::Kv).is_none());
        match self.reached_by_others() {
            Some(address) if self.password.is_none() && !closed => Err(Error::NoPassword(address)),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_password_only_loopback_is_served() {
        let open = Config { listen: vec![SocketAddr::from(([0, 0, 0, 0], 6379))], ..Config::default() };
        assert!(matches!(open.check(), Err(Error::NoPassword(_))));
        assert!(Config { password: Some("x".into()), ..open }.check().is_ok());
        assert!(Config::default().check().is_ok());
    }

    #[test]
    fn nonsense_is_named() {
        let check = |config: Config, key: &str| {
            let error = config.check().unwrap_err().to_string();
            assert!(error.contains(key), "{error}");
        };
        check(Config { int_databases: vec![16], ..Config::default() }, "int_databases");
        check(Config { threads: 65, ..Config::default() }, "threads");
        check(Config { tls_listen: vec![SocketAddr::from(([127, 0, 0, 1], 1))], ..Config::default() }, "tls_listen");
        check(Config { arg_bytes_max: usize::MAX, ..Config::default() }, "arg_bytes_max");
        check(Config { password: Some(String::new()), ..Config::default() }, "password");
    }
}
