//! Addresses that the server listens on, and the thread that waits for connections.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use std::{fmt, io};

use mio::net::{TcpListener, UnixListener};
use mio::{Events, Interest, Poll, Token, Waker};
use percent_encoding::{AsciiSet, CONTROLS, percent_encode, utf8_percent_encode};

use crate::front::unix;
use crate::nbd::config::{Config, Error, Result};
use crate::nbd::stream::Socket;

/// The token of the waker; listeners have those from 0.
const WAKE: Token = Token(usize::MAX - 1);
/// After a failure that is not about one client, accepting starts again after this.
const AGAIN: Duration = Duration::from_millis(100);

/// What would mean something else in a URI.
const SPECIAL: &AsciiSet =
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

/// All listening sockets; a unix socket's file goes with them.
pub(super) struct Listeners {
    poll: Poll,
    listeners: Vec<(Listener, Address)>,
}

impl Listeners {
    /// Listens on everything that the configuration names.
    pub(crate) fn open(config: &Config) -> Result<Self> {
        let failed = |address: String| move |source| Error::Listen { address, source };
        let poll = Poll::new().map_err(|source| Error::Io { what: "make a poll", source })?;
        let mut opened = Self { poll, listeners: Vec::new() };
        for address in &config.listen {
            let mut socket = TcpListener::bind(*address).map_err(failed(address.to_string()))?;
            let address = socket.local_addr().map_err(failed(address.to_string()))?;
            opened
                .poll
                .registry()
                .register(&mut socket, Token(opened.listeners.len()), Interest::READABLE)
                .map_err(failed(address.to_string()))?;
            opened.listeners.push((Listener::Tcp(socket), Address::Tcp(address)));
        }
        if let Some(path) = &config.unix_socket {
            let failed = || failed(path.display().to_string());
            let socket = unix::bind(path, &config.unix_access).map_err(failed())?;
            let socket = UnixListener::from_std(socket);
            opened.listeners.push((Listener::Unix(socket), Address::Unix(path.clone())));
            let at = Token(opened.listeners.len() - 1);
            if let Some((Listener::Unix(socket), _)) = opened.listeners.last_mut() {
                opened.poll.registry().register(socket, at, Interest::READABLE).map_err(failed())?;
            }
        }
        Ok(opened)
    }

    pub(crate) fn addresses(&self) -> Vec<Address> {
        self.listeners.iter().map(|(_, address)| address.clone()).collect()
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
            for (listener, address) in &self.listeners {
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

impl Drop for Listeners {
    fn drop(&mut self) {
        for (_, address) in &self.listeners {
            if let Address::Unix(path) = address {
                // Somebody may have removed it already.
                let _ = std::fs::remove_file(path);
            }
        }
    }
}

fn accept(listener: &Listener) -> io::Result<(Socket, String)> {
    match listener {
        Listener::Tcp(listener) => {
            let (stream, peer) = listener.accept()?;
            stream.set_nodelay(true)?;
            let stream = std::net::TcpStream::from(OwnedFd::from(stream));
            // A client whose machine is gone would stay for ever.
            rustix::net::sockopt::set_socket_keepalive(&stream, true)?;
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

/// Whether an error of accept is only about the client that wanted to connect.
fn is_about_one(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset | ErrorKind::Interrupted | ErrorKind::NotConnected
    )
}
