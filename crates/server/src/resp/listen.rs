//! Addresses that the server listens on.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::{fmt, io};

use mio::net::{TcpListener, UnixListener};
use mio::{Interest, Registry, Token};
use rustls::ServerConnection;

use crate::front::listen::{self, Bound, Endpoint, Listening, SocketFile};
use crate::front::tls::Certificates;
use crate::resp::config::{Config, Error, Result};
use crate::resp::transport::Transport;

/// An address that is listened on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// Plain TCP.
    Tcp(SocketAddr),
    /// TLS over TCP.
    Tls(SocketAddr),
    /// A unix socket.
    Unix(PathBuf),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "{address}"),
            Self::Tls(address) => write!(f, "{address} (TLS)"),
            Self::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

enum Socket {
    Tcp(TcpListener),
    Tls(TcpListener, Arc<Certificates>),
    Unix(UnixListener),
}

/// A listening socket; a unix socket's file goes with it.
pub(crate) struct Listener {
    socket: Socket,
    pub(crate) address: Address,
    _file: Option<SocketFile>,
}

/// A stream that was accepted, with the addresses of both ends.
pub(crate) struct Accepted {
    pub(crate) transport: Transport,
    pub(crate) address: String,
    pub(crate) local_address: String,
}

impl Listener {
    /// Listens on everything that the configuration names.
    pub(crate) fn open_all(config: &Config) -> Result<Vec<Self>> {
        let failed = |(address, source): listen::Failed| Error::Listen { address, source };
        let unix = config.unix_socket.as_deref().map(|path| (path, &config.unix_access));
        let plain = listen::open(&config.listen, unix, &config.passed).map_err(failed)?;
        let mut listeners: Vec<Self> = plain.into_iter().map(|bound| Self::of(bound, None)).collect();
        if let Some(files) = &config.tls {
            let tls = Arc::new(Certificates::open(files, &[])?);
            let encrypted = listen::open(&config.tls_listen, None, &config.tls_passed).map_err(failed)?;
            listeners.extend(encrypted.into_iter().map(|bound| Self::of(bound, Some(&tls))));
        }
        Ok(listeners)
    }

    fn of(bound: Bound, tls: Option<&Arc<Certificates>>) -> Self {
        let Bound { socket, place, file } = bound;
        let address = match (place, tls) {
            (Endpoint::Tcp(address), None) => Address::Tcp(address),
            (Endpoint::Tcp(address), Some(_)) => Address::Tls(address),
            (Endpoint::Unix(path), _) => Address::Unix(path),
        };
        let socket = match (socket, tls) {
            (Listening::Tcp(socket), None) => Socket::Tcp(TcpListener::from_std(socket)),
            (Listening::Tcp(socket), Some(tls)) => Socket::Tls(TcpListener::from_std(socket), Arc::clone(tls)),
            (Listening::Unix(socket), _) => Socket::Unix(UnixListener::from_std(socket)),
        };
        Self { socket, address, _file: file }
    }

    /// What its TLS connections are made from.
    pub(crate) fn tls(&self) -> Option<&Arc<Certificates>> {
        match &self.socket {
            Socket::Tls(_, tls) => Some(tls),
            Socket::Tcp(_) | Socket::Unix(_) => None,
        }
    }

    pub(crate) fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        match &mut self.socket {
            Socket::Tcp(socket) | Socket::Tls(socket, _) => registry.register(socket, token, Interest::READABLE),
            Socket::Unix(socket) => registry.register(socket, token, Interest::READABLE),
        }
    }

    pub(crate) fn deregister(&mut self, registry: &Registry) -> io::Result<()> {
        match &mut self.socket {
            Socket::Tcp(socket) | Socket::Tls(socket, _) => registry.deregister(socket),
            Socket::Unix(socket) => registry.deregister(socket),
        }
    }

    /// The next connection. `WouldBlock` if there is none.
    pub(crate) fn accept(&self) -> io::Result<Accepted> {
        let (transport, address, local_address) = match &self.socket {
            Socket::Tcp(socket) => {
                let (stream, address) = socket.accept()?;
                listen::tune(&stream)?;
                let local = stream.local_addr()?.to_string();
                (Transport::Tcp(stream), address.to_string(), local)
            }
            Socket::Tls(socket, tls) => {
                let (stream, address) = socket.accept()?;
                listen::tune(&stream)?;
                let local = stream.local_addr()?.to_string();
                let tls = ServerConnection::new(tls.current()).map_err(io::Error::other)?;
                (Transport::Tls(stream, Box::new(tls)), address.to_string(), local)
            }
            Socket::Unix(socket) => {
                let (stream, _) = socket.accept()?;
                let path = self.address.to_string();
                (Transport::Unix(stream), format!("{path}:0"), format!("{path}:0"))
            }
        };
        Ok(Accepted { transport, address, local_address })
    }
}
