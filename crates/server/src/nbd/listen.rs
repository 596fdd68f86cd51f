//! Addresses that the server listens on, and the thread that waits for connections.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::{fmt, io};

use mio::net::{TcpListener, UnixListener};
use mio::{Events, Interest, Poll, Token, Waker};
use percent_encoding::{AsciiSet, CONTROLS, percent_encode, utf8_percent_encode};

use crate::front::listen::{self, AGAIN, Endpoint, Listening, SocketFile, is_about_one};
use crate::nbd::config::{Config, Error, Result};
use crate::nbd::stream::Socket;

/// The token of the waker; listeners have those from 0.
const WAKE: Token = Token(usize::MAX - 1);

/// What would mean something else in a URI.
pub(super) const SPECIAL: &AsciiSet =
    &CONTROLS.add(b' ').add(b'"').add(b'#').add(b'%').add(b'&').add(b'+').add(b'<').add(b'>').add(b'?');

/// An address that is listened on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// TCP.
    Tcp(SocketAddr),
    /// A unix socket.
    Unix(PathBuf),
}

impl Address {
    fn of(place: Endpoint) -> Self {
        match place {
            Endpoint::Tcp(address) => Self::Tcp(address),
            Endpoint::Unix(path) => Self::Unix(path),
        }
    }

    /// The URI of an export, for clients on this machine.
    pub fn uri(&self, export: &str) -> String {
        let export = utf8_percent_encode(export, SPECIAL);
        match self {
            Self::Tcp(address) => format!("nbd://{address}/{export}"),
            Self::Unix(path) => {
                let path = path.as_os_str().as_encoded_bytes();
                format!("nbd+unix:///{export}?socket={}", percent_encode(path, SPECIAL))
            }
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.uri(""))
    }
}

enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    fn of(socket: Listening) -> Self {
        match socket {
            Listening::Tcp(socket) => Self::Tcp(TcpListener::from_std(socket)),
            Listening::Unix(socket) => Self::Unix(UnixListener::from_std(socket)),
        }
    }
}

/// All listening sockets; a unix socket's file goes with them.
pub(super) struct Listeners {
    poll: Poll,
    listeners: Vec<(Listener, Address, Option<SocketFile>)>,
}

impl Listeners {
    /// Listens on everything that the configuration names.
    pub(crate) fn open(config: &Config) -> Result<Self> {
        let unix = config.unix_socket.as_deref().map(|path| (path, &config.unix_access));
        let bound = listen::open(&config.listen, unix, &config.passed);
        let bound = bound.map_err(|(address, source)| Error::Listen { address, source })?;
        let poll = Poll::new().map_err(|source| Error::Io { what: "make a poll", source })?;
        let mut listeners = Vec::new();
        for (number, one) in bound.into_iter().enumerate() {
            let (registry, token, readable) = (poll.registry(), Token(number), Interest::READABLE);
            let (mut listener, address) = (Listener::of(one.socket), Address::of(one.place));
            let registered = match &mut listener {
                Listener::Tcp(socket) => registry.register(socket, token, readable),
                Listener::Unix(socket) => registry.register(socket, token, readable),
            };
            registered.map_err(|source| Error::Listen { address: address.to_string(), source })?;
            listeners.push((listener, address, one.file));
        }
        Ok(Self { poll, listeners })
    }

    pub(crate) fn addresses(&self) -> Vec<Address> {
        self.listeners.iter().map(|(_, address, _)| address.clone()).collect()
    }

    /// What wakes [`Listeners::run`].
    pub(crate) fn waker(&self) -> Result<Waker> {
        Waker::new(self.poll.registry(), WAKE).map_err(|source| Error::Io { what: "make a waker", source })
    }

    /// Hands out connections until `stopping`.
    pub(crate) fn run(&mut self, stopping: &AtomicBool, mut serve: impl FnMut(Socket, String)) -> Result<()> {
        let mut events = Events::with_capacity(16);
        let mut again = false;
        while !stopping.load(Ordering::SeqCst) {
            match self.poll.poll(&mut events, again.then_some(AGAIN)) {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                other => other.map_err(|source| Error::Io { what: "wait for connections", source })?,
            }
            again = false;
            // Events are edges: each listener is asked until it has no more.
            for (listener, address, _) in &self.listeners {
                loop {
                    match accept(listener) {
                        Ok((socket, peer)) => serve(socket, peer),
                        Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                        Err(error) if is_about_one(&error) => {}
                        Err(error) => {
                            tracing::warn!(%address, %error, "cannot accept; trying again soon");
                            again = true;
                            break;
                        }
                    }
                    if stopping.load(Ordering::SeqCst) {
                        return Ok(());
                    }
                }
            }
        }
        Ok(())
    }
}

fn accept(listener: &Listener) -> io::Result<(Socket, String)> {
    match listener {
        Listener::Tcp(listener) => {
            let (stream, peer) = listener.accept()?;
            listen::tune(&stream)?;
            let stream = std::net::TcpStream::from(OwnedFd::from(stream));
            stream.set_nonblocking(false)?;
            Ok((Socket::Tcp(stream), peer.to_string()))
        }
        Listener::Unix(listener) => {
            let (stream, _) = listener.accept()?;
            let stream = std::os::unix::net::UnixStream::from(OwnedFd::from(stream));
            stream.set_nonblocking(false)?;
            Ok((Socket::Unix(stream), "unix socket".into()))
        }
    }
}
