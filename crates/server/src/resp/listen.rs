//! Addresses that the server listens on.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::{fmt, io};

use mio::net::{TcpListener, UnixListener};
use mio::{Interest, Registry, Token};
use rustls::ServerConnection;

use crate::front::tls::Certificates;
use crate::front::unix;
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
        let failed = |address: String| move |source| Error::Listen { address, source };
        let mut listeners = Vec::new();
        for address in &config.listen {
            let socket = TcpListener::bind(*address).map_err(failed(address.to_string()))?;
            let address = socket.local_addr().map_err(failed(address.to_string()))?;
            listeners.push(Self { socket: Socket::Tcp(socket), address: Address::Tcp(address) });
        }
        if let Some(files) = &config.tls {
            let tls = Arc::new(Certificates::open(files, &[])?);
            for address in &config.tls_listen {
                let socket = TcpListener::bind(*address).map_err(failed(address.to_string()))?;
                let address = socket.local_addr().map_err(failed(address.to_string()))?;
                listeners.push(Self { socket: Socket::Tls(socket, Arc::clone(&tls)), address: Address::Tls(address) });
            }
        }
        if let Some(path) = &config.unix_socket {
            let socket = unix::bind(path, &config.unix_access).map_err(failed(path.display().to_string()))?;
            let socket = UnixListener::from_std(socket);
            listeners.push(Self { socket: Socket::Unix(socket), address: Address::Unix(path.clone()) });
        }
        Ok(listeners)
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
                stream.set_nodelay(true)?;
                // A client whose machine is gone would stay for ever.
                rustix::net::sockopt::set_socket_keepalive(&stream, true)?;
                let local = stream.local_addr()?.to_string();
                (Transport::Tcp(stream), address.to_string(), local)
            }
            Socket::Tls(socket, tls) => {
                let (stream, address) = socket.accept()?;
                stream.set_nodelay(true)?;
                // A client whose machine is gone would stay for ever.
                rustix::net::sockopt::set_socket_keepalive(&stream, true)?;
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

impl Drop for Listener {
    fn drop(&mut self) {
        if let Address::Unix(path) = &self.address {
            // Somebody may have removed it already.
            let _ = std::fs::remove_file(path);
        }
    }
}
