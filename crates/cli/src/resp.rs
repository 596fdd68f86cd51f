//! A client of a running server, over the Redis protocol: in the clear on this machine, by TLS elsewhere.
//!
//! Invariant: a password goes over no connection in the clear to another machine.

use std::net::ToSocketAddrs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use redis::{Client as Connector, ConnectionAddr, ConnectionInfo, RedisConnectionInfo, TlsCertificates, Value};

use crate::exit::{Code, Failure};

/// How long connecting, and each wait for an answer, may take.
const WAIT: Duration = Duration::from_secs(10);

/// How a server is reached.
#[derive(Clone, Debug, Default)]
pub struct Reach {
    /// The user; without one it is `default`.
    pub user: Option<String>,
    /// The password.
    pub password: Option<String>,
    /// TLS.
    pub tls: bool,
    /// Authorities that the server's certificate is checked with; without them those of this machine.
    pub authorities: Option<PathBuf>,
    /// The certificate chain and the key that are shown to the server.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// A connection to a server.
pub struct Client {
    address: String,
    connection: redis::Connection,
}

impl Client {
    /// Connects to `HOST:PORT`, or to a unix socket if `address` has a slash.
    ///
    /// # Errors
    /// Names the address; a file that cannot be read; a password that would go to another machine in the clear.
    pub fn connect(address: &str, reach: &Reach) -> Result<Self, Failure> {
        let failed = |error: redis::RedisError| Failure::new(Code::Failure, format!("server {address}: {error}"));
        let place = if address.contains('/') { ConnectionAddr::Unix(address.into()) } else { tcp(address, reach)? };
        let mut login = RedisConnectionInfo::default().set_skip_set_lib_name();
        if let Some(user) = &reach.user {
            login = login.set_username(user);
        }
        if let Some(password) = &reach.password {
            login = login.set_password(password);
        }
        let info: ConnectionInfo = redis::IntoConnectionInfo::into_connection_info(place).map_err(failed)?;
        let info = info.set_redis_settings(login);
        let connector = if reach.tls && !address.contains('/') {
            let read = |path: &Path| {
                std::fs::read(path).map_err(|error| Failure::usage(format!("{}: {error}", path.display())))
            };
            let identity = reach.identity.as_ref().map(|(certificate, key)| {
                Ok::<_, Failure>(redis::ClientTlsConfig { client_cert: read(certificate)?, client_key: read(key)? })
            });
            let root_cert = reach.authorities.as_deref().map(read).transpose()?;
            let certificates = TlsCertificates { client_tls: identity.transpose()?, root_cert };
            Connector::build_with_tls(info, certificates).map_err(failed)?
        } else {
            Connector::open(info).map_err(failed)?
        };
        let connection = connector.get_connection_with_timeout(WAIT).map_err(failed)?;
        let timed = connection.set_read_timeout(Some(WAIT)).and_then(|()| connection.set_write_timeout(Some(WAIT)));
        timed.map_err(failed)?;
        Ok(Self { address: address.to_string(), connection })
    }

    /// Sends a command and returns what its reply says.
    ///
    /// # Errors
    /// What the server refuses, in its words; a reply that is neither a line nor a string; a lost connection.
    pub fn call(&mut self, words: &[&str]) -> Result<String, Failure> {
        let failed = |why: String| Failure::new(Code::Failure, format!("server {}: {why}", self.address));
        let mut command = redis::Cmd::new();
        for word in words {
            command.arg(*word);
        }
        match command.query::<Value>(&mut self.connection) {
            Ok(Value::Okay) => Ok("OK".into()),
            Ok(Value::SimpleString(text)) => Ok(text),
            Ok(Value::Int(number)) => Ok(number.to_string()),
            Ok(Value::BulkString(bytes)) => {
                String::from_utf8(bytes).map_err(|_| failed("a reply that is no text".into()))
            }
            Ok(Value::VerbatimString { text, .. }) => Ok(text),
            Ok(_) => Err(failed("a reply of another kind: does a server of Esker listen there?".into())),
            Err(error) => Err(failed(match (error.code(), error.detail()) {
                (Some(code), Some(detail)) => format!("{code} {detail}"),
                _ => error.to_string(),
            })),
        }
    }
}

fn tcp(address: &str, reach: &Reach) -> Result<ConnectionAddr, Failure> {
    let wrong =
        |why: &str| Failure::usage(format!("address {address:?}: {why}; expected HOST:PORT or the path of a socket"));
    let (host, port) = address.rsplit_once(':').ok_or_else(|| wrong("no port"))?;
    let port = port.parse().map_err(|_| wrong("no number of a port"))?;
    let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
    if reach.tls {
        return Ok(ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None });
    }
    let near = || {
        let mut all = (host.as_str(), port).to_socket_addrs().ok()?;
        Some(all.all(|address| address.ip().is_loopback()))
    };
    if reach.password.is_some() && near() == Some(false) {
        return Err(Failure::usage(format!(
            "server {address}: the password is not sent to another machine in the clear: use --tls"
        )));
    }
    Ok(ConnectionAddr::Tcp(host, port))
}
