//! Addresses that the gRPC server listens on, and the connections that come.
//!
//! listener → accept → a stranger's connection → the HTTP/2 server
//!
//! Invariant: accepting waits for no client: [`super::visitor`] decides which may stay.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::{fmt, io};

use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, watch};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_stream::wrappers::ReceiverStream;

use super::config::{Config, Error, Result};
use super::visitor::{Room, Visitor};
use crate::front::listen::{self, AGAIN, Endpoint, Listening, SocketFile};
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
            Self::Tcp(address) => write!(f, "grpc://{address}"),
            Self::Tls(address) => write!(f, "grpcs://{address}"),
            Self::Unix(path) => write!(f, "grpc+unix:{}", path.display()),
        }
    }
}

/// All listening sockets; a unix socket's file goes with it.
pub(super) struct Listeners {
    tcp: Vec<TcpListener>,
    unix: Vec<(UnixListener, Option<SocketFile>)>,
    addresses: Vec<Address>,
}

impl Listeners {
    /// Listens on everything that the configuration names.
    pub(crate) fn open(config: &Config, runtime: &Runtime) -> Result<Self> {
        let unix = config.unix_socket.as_deref().map(|path| (path, &config.unix_access));
        let bound = listen::open(&config.listen, unix, &config.passed);
        let bound = bound.map_err(|(address, source)| Error::Listen { address, source })?;
        let _inside = runtime.enter();
        let mut opened = Self { tcp: Vec::new(), unix: Vec::new(), addresses: Vec::new() };
        for one in bound {
            let failed = |source| Error::Listen { address: one.place.to_string(), source };
            match one.socket {
                Listening::Tcp(socket) => opened.tcp.push(TcpListener::from_std(socket).map_err(failed)?),
                Listening::Unix(socket) => {
                    opened.unix.push((UnixListener::from_std(socket).map_err(failed)?, one.file));
                }
            }
            opened.addresses.push(match one.place {
                Endpoint::Tcp(address) if config.tls.is_some() => Address::Tls(address),
                Endpoint::Tcp(address) => Address::Tcp(address),
                Endpoint::Unix(path) => Address::Unix(path),
            });
        }
        Ok(opened)
    }

    pub(crate) fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// Connections as they come, until `stopping`; those over TCP encrypted where there are certificates.
    pub(crate) fn incoming(
        self,
        room: &Room,
        certificates: Option<Arc<Certificates>>,
        stopping: &watch::Receiver<bool>,
    ) -> Incoming {
        let Self { tcp, unix, .. } = self;
        let (tcp_sender, tcp_incoming) = mpsc::channel(1);
        let (tls_sender, tls_incoming) = mpsc::channel(1);
        let (unix_sender, unix_incoming) = mpsc::channel(1);
        for listener in tcp {
            let (room, stopping) = (room.clone(), stopping.clone());
            match &certificates {
                None => tokio::spawn(accept(TcpDoor(listener), room, tcp_sender.clone(), stopping, None)),
                Some(certificates) => {
                    let (sender, plain) = mpsc::channel(1);
                    tokio::spawn(encrypt(plain, Arc::clone(certificates), tls_sender.clone()));
                    tokio::spawn(accept(TcpDoor(listener), room, sender, stopping, None))
                }
            };
        }
        for (listener, file) in unix {
            tokio::spawn(accept(UnixDoor(listener), room.clone(), unix_sender.clone(), stopping.clone(), file));
        }
        // A server without addresses of one kind waits for its end as the others do.
        tokio::spawn(stay(tcp_sender, stopping.clone()));
        tokio::spawn(stay(tls_sender, stopping.clone()));
        tokio::spawn(stay(unix_sender, stopping.clone()));
        Incoming {
            tcp: ReceiverStream::new(tcp_incoming),
            tls: ReceiverStream::new(tls_incoming),
            unix: ReceiverStream::new(unix_incoming),
        }
    }
}

/// Connections of one kind.
type Coming<S> = ReceiverStream<io::Result<S>>;

/// Connections as they come.
pub(crate) struct Incoming {
    pub(crate) tcp: Coming<Visitor<TcpStream>>,
    pub(crate) tls: Coming<TlsStream<Visitor<TcpStream>>>,
    pub(crate) unix: Coming<Visitor<UnixStream>>,
}

/// Makes the handshakes, each in a task of its own: no client waits for another's.
async fn encrypt(
    mut plain: mpsc::Receiver<io::Result<Visitor<TcpStream>>>,
    certificates: Arc<Certificates>,
    encrypted: mpsc::Sender<io::Result<TlsStream<Visitor<TcpStream>>>>,
) {
    while let Some(Ok(visitor)) = plain.recv().await {
        let (acceptor, encrypted) = (TlsAcceptor::from(certificates.current()), encrypted.clone());
        tokio::spawn(async move {
            match acceptor.accept(visitor).await {
                // A server that does not take it has ended.
                Ok(stream) => drop(encrypted.send(Ok(stream)).await),
                Err(error) => tracing::debug!(%error, "a TLS handshake failed"),
            }
        });
    }
}

async fn stay<T>(sender: mpsc::Sender<T>, mut stopping: watch::Receiver<bool>) {
    // Until the server stops, or is gone.
    let _ = stopping.wait_for(|stopping| *stopping).await;
    drop(sender);
}

/// What connections come through.
trait Door: Send + 'static {
    type Stream: Send;
    /// A stream, and where it comes from.
    fn next(&self) -> impl Future<Output = io::Result<(Self::Stream, String)>> + Send;
}

struct TcpDoor(TcpListener);
struct UnixDoor(UnixListener);

impl Door for TcpDoor {
    type Stream = TcpStream;
    async fn next(&self) -> io::Result<(TcpStream, String)> {
        let (stream, peer) = self.0.accept().await?;
        listen::tune(&stream)?;
        Ok((stream, peer.to_string()))
    }
}

impl Door for UnixDoor {
    type Stream = UnixStream;
    async fn next(&self) -> io::Result<(UnixStream, String)> {
        Ok((self.0.accept().await?.0, "unix socket".into()))
    }
}

async fn accept<D: Door + Sync>(
    door: D,
    room: Room,
    connections: mpsc::Sender<io::Result<Visitor<D::Stream>>>,
    mut stopping: watch::Receiver<bool>,
    file: Option<SocketFile>,
) {
    // Goes when accepting ends.
    let _file = file;
    loop {
        let one = async {
            loop {
                match door.next().await {
                    Ok((stream, peer)) => return room.enter(stream, peer),
                    Err(error) => {
                        tracing::debug!(%error, "cannot accept; trying again soon");
                        tokio::time::sleep(AGAIN).await;
                    }
                }
            }
        };
        let connection = tokio::select! {
            connection = one => connection,
            _ = stopping.wait_for(|stopping| *stopping) => return,
        };
        if connections.send(Ok(connection)).await.is_err() {
            return;
        }
    }
}
