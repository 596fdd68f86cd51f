//! Addresses that the Thrift server listens on, and the connections that come.
//!
//! listener → accept → a stranger, in a task of its own at a worker → TLS, where there is a certificate →
//! [`Conversation`]
//!
//! Invariant: accepting waits for no client.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;
use std::{fmt, io};

use rustls::pki_types::CertificateDer;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_rustls::TlsAcceptor;

use super::config::{Config, Error, Result};
use super::connection::{Common, Conversation, Stay};
use super::guest::Guest;
use super::workers::Crew;
use crate::front::certificates::names_in;
use crate::front::listen::{self, AGAIN, Endpoint, Listening, SocketFile};
use crate::front::strangers::Strangers;
use crate::front::tls::Certificates;

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
            Self::Tcp(address) => write!(f, "thrift://{address}"),
            Self::Tls(address) => write!(f, "thrifts://{address}"),
            Self::Unix(path) => write!(f, "thrift+unix:{}", path.display()),
        }
    }
}

/// A socket; a unix socket's file goes with it.
enum ThriftDoor {
    Tcp(TcpListener),
    Unix { listener: UnixListener, _file: Option<SocketFile> },
}

/// All listening sockets.
pub(super) struct ThriftDoors {
    doors: Vec<ThriftDoor>,
    addresses: Vec<Address>,
}

/// What connections are made from.
#[derive(Clone)]
pub(super) struct Hall {
    pub(super) common: Arc<Common>,
    pub(super) strangers: Arc<Strangers>,
    pub(super) certificates: Option<Arc<Certificates>>,
    pub(super) stopping: watch::Receiver<bool>,
    pub(super) crew: Arc<Crew>,
    /// Held by every connection: it closes when the last has ended.
    pub(super) open: mpsc::Sender<()>,
}

impl ThriftDoors {
    /// Listens on everything that the configuration names.
    pub(super) fn open(config: &Config, runtime: &Runtime) -> Result<Self> {
        let unix = config.unix_socket.as_deref().map(|path| (path, &config.unix_access));
        let bound = listen::open(&config.listen, unix, &config.passed);
        let bound = bound.map_err(|(address, source)| Error::Listen { address, source })?;
        let _inside = runtime.enter();
        let mut opened = Self { doors: Vec::new(), addresses: Vec::new() };
        for one in bound {
            let failed = |source| Error::Listen { address: one.place.to_string(), source };
            opened.doors.push(match one.socket {
                Listening::Tcp(socket) => ThriftDoor::Tcp(TcpListener::from_std(socket).map_err(failed)?),
                Listening::Unix(socket) => {
                    let listener = UnixListener::from_std(socket).map_err(failed)?;
                    ThriftDoor::Unix { listener, _file: one.file }
                }
            });
            opened.addresses.push(match one.place {
                Endpoint::Tcp(address) if config.tls.is_some() => Address::Tls(address),
                Endpoint::Tcp(address) => Address::Tcp(address),
                Endpoint::Unix(path) => Address::Unix(path),
            });
        }
        Ok(opened)
    }

    pub(super) fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// Serves connections as they come, until the server stops.
    pub(super) fn serve(self, hall: &Hall) {
        for door in self.doors {
            let hall = hall.clone();
            tokio::spawn(async move {
                let mut stopping = hall.stopping.clone();
                tokio::select! {
                    () = door.accept(&hall) => {}
                    // One that is gone stops as well.
                    _ = stopping.wait_for(|stopping| *stopping) => {}
                }
            });
        }
    }
}

impl ThriftDoor {
    async fn accept(&self, hall: &Hall) {
        loop {
            let accepted = match self {
                Self::Tcp(listener) => match listener.accept().await {
                    Ok((stream, peer)) => listen::tune(&stream)
                        .and_then(|()| stream.into_std())
                        .map(|stream| hall.greet_tcp(stream, peer.to_string())),
                    Err(error) => Err(error),
                },
                Self::Unix { listener, .. } => match listener.accept().await {
                    Ok((stream, _)) => stream.into_std().map(|stream| hall.greet_unix(stream)),
                    Err(error) => Err(error),
                },
            };
            if let Err(error) = accepted
                && !listen::is_about_one(&error)
            {
                tracing::debug!(%error, "cannot accept; trying again soon");
                tokio::time::sleep(AGAIN).await;
            }
        }
    }
}

impl Hall {
    fn enter(&self) -> Stay {
        self.common.counts.accepted.fetch_add(1, Ordering::Relaxed);
        let (end, ended) = oneshot::channel();
        let stranger = self.strangers.enter(Instant::now(), move || {
            // One that is gone already needs no end.
            let _ = end.send(());
        });
        Stay { stranger, ended }
    }

    /// The socket goes over to the event loop of a worker.
    fn greet_tcp(&self, stream: std::net::TcpStream, peer: String) {
        let (hall, mut place) = (self.clone(), self.enter());
        self.crew.place().serve(move || async move {
            let stream = match TcpStream::from_std(stream) {
                Ok(stream) => stream,
                Err(error) => return tracing::debug!(peer, %error, "a Thrift connection cannot be served"),
            };
            let Some(certificates) = &hall.certificates else {
                return hall.converse(stream, peer, Vec::new(), place).await;
            };
            let acceptor = TlsAcceptor::from(certificates.current());
            match place.within(async { acceptor.accept(stream).await }).await {
                Ok(stream) => {
                    let shown: Option<&[CertificateDer<'_>]> = stream.get_ref().1.peer_certificates();
                    let names = shown.and_then(<[_]>::first).map(|first| names_in(first)).unwrap_or_default();
                    hall.converse(stream, peer, names, place).await;
                }
                Err(error) => tracing::debug!(peer, %error, "a TLS handshake failed"),
            }
        });
    }

    fn greet_unix(&self, stream: std::os::unix::net::UnixStream) {
        let (hall, place, peer) = (self.clone(), self.enter(), "unix socket");
        self.crew.place().serve(move || async move {
            match UnixStream::from_std(stream) {
                Ok(stream) => hall.converse(stream, peer.into(), Vec::new(), place).await,
                Err(error) => tracing::debug!(peer, %error, "a Thrift connection cannot be served"),
            }
        });
    }

    async fn converse<S>(&self, stream: S, peer: String, names: Vec<String>, place: Stay)
    where
        S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send,
    {
        let _open = self.open.clone();
        let guest = Guest::new(self.common.config.users.as_ref(), peer.clone(), names);
        let connection = Conversation::new(&self.common, stream, guest, place, self.stopping.clone());
        let ended: io::Result<()> = connection.run().await;
        if let Err(error) = ended {
            tracing::debug!(peer, %error, "a Thrift connection broke off");
        }
    }
}
