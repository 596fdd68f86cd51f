//! Sockets that are listened on, by all protocols: bound to an address or a path, or bound by a supervisor and passed.
//!
//! addresses, path, [`Passed`] → [`open`] → [`Bound`]s, one list per protocol → its own loop accepts → [`tune`]
//!
//! Invariants:
//! 1. A socket is non-blocking before a loop gets it.
//! 2. A unix socket's file is removed by the process that made it, when its [`Bound`] is dropped; a passed one's never.

use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

use rustix::net::sockopt;

use super::unix::{self, UnixAccess};

/// When the system gives no more connections, accepting starts again after this.
pub(crate) const AGAIN: Duration = Duration::from_millis(100);
/// A client that says nothing for so long is asked by the system whether it is there still ...
const KEEPALIVE_AFTER: Duration = Duration::from_secs(300);
/// ... again after each of these, and is gone once it has not answered so often.
const KEEPALIVE_EVERY: Duration = Duration::from_secs(60);
const KEEPALIVE_TIMES: u32 = 3;

/// Where a socket listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// TCP.
    Tcp(SocketAddr),
    /// A unix socket's path; empty: it has none.
    Unix(PathBuf),
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "{address}"),
            Self::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

/// A listening socket that another process has bound, such as a supervisor that starts a server when a client comes.
/// Clones are the same socket.
#[derive(Clone, Debug)]
pub struct Passed {
    socket: Arc<Listening>,
    place: Endpoint,
}

/// Two are equal if they are the same socket of this process.
impl PartialEq for Passed {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.socket, &other.socket)
    }
}

impl Eq for Passed {}

impl Passed {
    /// A TCP socket.
    ///
    /// # Errors
    /// The system's, if it cannot tell where the socket listens; `InvalidInput` if it does not.
    pub fn tcp(socket: TcpListener) -> io::Result<Self> {
        listens(&socket)?;
        let place = Endpoint::Tcp(socket.local_addr()?);
        Ok(Self { socket: Arc::new(Listening::Tcp(socket)), place })
    }

    /// A unix socket.
    ///
    /// # Errors
    /// As [`Passed::tcp`].
    pub fn unix(socket: UnixListener) -> io::Result<Self> {
        listens(&socket)?;
        let place = Endpoint::Unix(socket.local_addr()?.as_pathname().unwrap_or(Path::new("")).to_owned());
        Ok(Self { socket: Arc::new(Listening::Unix(socket)), place })
    }

    /// Where it listens.
    pub fn place(&self) -> &Endpoint {
        &self.place
    }

    /// Its TCP address, if it has one.
    pub fn address(&self) -> Option<SocketAddr> {
        match self.place {
            Endpoint::Tcp(address) => Some(address),
            Endpoint::Unix(_) => None,
        }
    }
}

fn listens(socket: &impl AsFd) -> io::Result<()> {
    if sockopt::socket_acceptconn(socket)? {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, "it does not listen (Accept=no is what sockets are passed with)"))
}

/// All TCP addresses that a protocol is reached by.
pub(crate) fn reached<'c>(listen: &'c [SocketAddr], passed: &'c [Passed]) -> impl Iterator<Item = SocketAddr> + 'c {
    listen.iter().copied().chain(passed.iter().filter_map(Passed::address))
}

/// A socket that listens.
#[derive(Debug)]
pub(crate) enum Listening {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// A unix socket's file, removed in the end.
pub(crate) struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Another process may have removed it already.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A socket that a protocol listens on.
pub(crate) struct Bound {
    pub(crate) socket: Listening,
    pub(crate) place: Endpoint,
    /// The file of a unix socket that this process made: to be kept as long as the socket is listened on.
    pub(crate) file: Option<SocketFile>,
}

/// Where nothing can be listened on, and the system's cause.
pub(crate) type Failed = (String, io::Error);

/// Listens on these addresses, on this path, and on the sockets that were passed. Port 0 picks a free one.
pub(crate) fn open(
    listen: &[SocketAddr],
    unix: Option<(&Path, &UnixAccess)>,
    passed: &[Passed],
) -> Result<Vec<Bound>, Failed> {
    let mut all = Vec::new();
    for address in listen {
        let bound = TcpListener::bind(address).and_then(|socket| {
            socket.set_nonblocking(true)?;
            let place = Endpoint::Tcp(socket.local_addr()?);
            Ok(Bound { socket: Listening::Tcp(socket), place, file: None })
        });
        all.push(bound.map_err(|error| (address.to_string(), error))?);
    }
    if let Some((path, access)) = unix {
        let socket = unix::bind(path, access).map_err(|error| (path.display().to_string(), error))?;
        let (place, file) = (Endpoint::Unix(path.to_owned()), Some(SocketFile(path.to_owned())));
        all.push(Bound { socket: Listening::Unix(socket), place, file });
    }
    for socket in passed {
        let own = match &*socket.socket {
            Listening::Tcp(socket) => socket.try_clone().map(Listening::Tcp),
            Listening::Unix(socket) => socket.try_clone().map(Listening::Unix),
        };
        let own = own.and_then(|own| {
            match &own {
                Listening::Tcp(socket) => socket.set_nonblocking(true)?,
                Listening::Unix(socket) => socket.set_nonblocking(true)?,
            }
            Ok(Bound { socket: own, place: socket.place.clone(), file: None })
        });
        all.push(own.map_err(|error| (format!("{} (passed)", socket.place), error))?);
    }
    Ok(all)
}

/// Sets what every TCP stream has: small answers leave at once, and a client whose machine is gone does not stay for
/// ever.
pub(crate) fn tune(stream: &impl AsFd) -> io::Result<()> {
    let stream: BorrowedFd<'_> = stream.as_fd();
    sockopt::set_tcp_nodelay(stream, true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, KEEPALIVE_AFTER)?;
    sockopt::set_tcp_keepintvl(stream, KEEPALIVE_EVERY)?;
    sockopt::set_tcp_keepcnt(stream, KEEPALIVE_TIMES)?;
    Ok(())
}

/// Whether an error of accept is only about the client that wanted to connect.
pub(crate) fn is_about_one(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted, NotConnected};
    matches!(error.kind(), ConnectionAborted | ConnectionReset | Interrupted | NotConnected)
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_passed_socket_takes_clients_and_its_file_stays() {
        let folder = tempfile::tempdir().unwrap();
        let (own, theirs) = (folder.path().join("own"), folder.path().join("theirs"));
        let passed = [
            Passed::tcp(TcpListener::bind("127.0.0.1:0").unwrap()).unwrap(),
            Passed::unix(UnixListener::bind(&theirs).unwrap()).unwrap(),
        ];
        let address = passed[0].address().unwrap();
        assert_eq!(passed[1].place(), &Endpoint::Unix(theirs.clone()));
        let bound = open(&[], Some((&own, &UnixAccess::default())), &passed).unwrap();
        let (client, unix) = (TcpStream::connect(address).unwrap(), UnixStream::connect(&theirs).unwrap());
        for one in &bound[1..] {
            match &one.socket {
                Listening::Tcp(socket) => {
                    assert_eq!(socket.accept().unwrap().1, client.local_addr().unwrap());
                    assert_eq!(socket.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock);
                }
                Listening::Unix(socket) => drop(socket.accept().unwrap()),
            }
        }
        drop((unix, bound));
        assert!(theirs.exists() && !own.exists());
        // A server that is started anew on the same socket is reached as before.
        assert_eq!(open(&[], None, &passed).unwrap().len(), 2);
    }

    #[test]
    fn a_socket_that_does_not_listen_is_refused() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let socket = TcpListener::from(std::os::fd::OwnedFd::from(client));
        assert!(Passed::tcp(socket).unwrap_err().to_string().contains("does not listen"));
    }

    #[test]
    fn an_address_that_is_taken_is_named() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap();
        let (named, error) = open(&[address], None, &[]).err().unwrap();
        assert_eq!((named, error.kind()), (address.to_string(), io::ErrorKind::AddrInUse));
    }
}
