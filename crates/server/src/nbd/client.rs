//! A small NBD client: what measuring a server, mapping a disk and testing need. In the clear or by TLS, simple
//! replies, one thread.
//!
//! [`Place`] (of a URI) → [`Client::connect`] → [`Client::send`] … [`Client::receive`] …, or one call at a time: read,
//! write, flush
//!
//! Requests are kept until [`Client::receive`] needs the socket, so that many go out together. A caller that sends much
//! payload at once must not ask for much at the same time: the client reads no replies while it sends requests.
//!
//! Invariants:
//! 1. No length that the server tells is believed beyond what was asked for, or a limit.
//! 2. A reply belongs to a request that is under way, or the connection is over.

use std::collections::HashMap;
use std::fmt;
use std::io::{self, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use percent_encoding::{percent_decode_str, percent_encode, utf8_percent_encode};
use rustls::{ClientConnection, StreamOwned};

use crate::nbd::client_tls::Tls;
use crate::nbd::listen::{Address, SPECIAL};
use crate::nbd::wire::{self, OPTION_BYTES_MAX, Request, command, export_flag, flag, hello, option, option_reply};

/// The port of NBD where a URI names none.
const PORT: u16 = 10_809;
/// How long a host may take to answer at one of its addresses at all.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);
/// Requests of this length together are sent without waiting for more.
const SEND_BYTES: usize = 256 << 10;
/// Replies to one option that are read before the negotiation is given up.
const OPTION_REPLIES_MAX: usize = 64;
/// Bytes that are asked of the socket at once.
const WINDOW_BYTES: usize = 128 << 10;

/// Why a client cannot go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// Not the address of an export. Fix it.
    #[error(
        "address {uri:?}: {why}; expected nbd://HOST[:PORT]/EXPORT, nbds://HOST[:PORT]/EXPORT?tls-certificates=FOLDER, \
         nbd+unix:///EXPORT?socket=PATH or nbds+unix:///EXPORT?socket=PATH&tls-certificates=FOLDER"
    )]
    Uri {
        /// What was given.
        uri: String,
        /// What is wrong with it.
        why: String,
    },
    /// No server answers there. Start the server, or fix the address.
    #[error("cannot connect to {address}")]
    Connect {
        /// The address.
        address: String,
        /// The operating system's cause.
        #[source]
        source: io::Error,
    },
    /// The server refuses the export. Do what it says.
    #[error("export {export:?}: {why}")]
    Refused {
        /// The export.
        export: String,
        /// What the server says.
        why: String,
    },
    /// The connection could not be encrypted. Fix the certificates, or the address.
    #[error("cannot speak TLS with {address}")]
    Tls {
        /// The address.
        address: String,
        /// What failed.
        #[source]
        source: io::Error,
    },
    /// The connection is lost, or what comes is not the protocol. Connect again.
    #[error("connection lost")]
    Lost(#[from] io::Error),
    /// A request failed.
    #[error("{what} failed with the protocol's error {code}")]
    Failed {
        /// The request.
        what: &'static str,
        /// Of [`code`](wire::code).
        code: u32,
    },
}

type Result<T> = std::result::Result<T, ClientError>;

/// An export of a server, as a URI names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The server.
    pub address: Address,
    /// The export.
    pub export: String,
    /// How the connection is encrypted; `None`: it is not.
    pub tls: Option<Tls>,
    /// Other addresses of the host, tried where no server answers at the first.
    pub others: Vec<SocketAddr>,
}

impl Place {
    /// An export of a server, in the clear.
    pub fn new(address: Address, export: impl Into<String>) -> Self {
        Self { address, export: export.into(), tls: None, others: Vec::new() }
    }

    /// Whether a text is meant as the URI of an export, in the clear or by TLS.
    pub fn is_meant(text: &str) -> bool {
        ["nbd:", "nbds:", "nbd+unix:", "nbds+unix:"].iter().any(|scheme| text.starts_with(scheme))
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(tls) = &self.tls else { return f.write_str(&self.address.uri(&self.export)) };
        let export = utf8_percent_encode(&self.export, SPECIAL);
        let mut query = Vec::new();
        match &self.address {
            Address::Tcp(address) => write!(f, "nbds://{address}/{export}")?,
            Address::Unix(path) => {
                write!(f, "nbds+unix:///{export}")?;
                query.push(("socket", path.as_os_str().as_encoded_bytes()));
            }
        }
        query.push(("tls-hostname", tls.host.as_bytes()));
        query.extend(tls.certificates.iter().map(|folder| ("tls-certificates", folder.as_os_str().as_encoded_bytes())));
        for (number, (name, value)) in query.into_iter().enumerate() {
            write!(f, "{}{name}={}", if number == 0 { '?' } else { '&' }, percent_encode(value, SPECIAL))?;
        }
        Ok(())
    }
}

impl FromStr for Place {
    type Err = ClientError;

    fn from_str(uri: &str) -> Result<Self> {
        let bad = |why: &str| ClientError::Uri { uri: uri.to_string(), why: why.to_string() };
        let decoded = |text: &str| {
            percent_decode_str(text).decode_utf8().map(|text| text.into_owned()).map_err(|_| bad("not UTF-8"))
        };
        let (scheme, rest) = uri.split_once("://").ok_or_else(|| bad("no ://"))?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, export) = rest.split_once('/').unwrap_or((rest, ""));
        let export = decoded(export)?;
        let asked = |name: &str| {
            let value = query.split('&').filter_map(|pair| pair.split_once('=')).find(|(key, _)| *key == name);
            value.map(|(_, value)| decoded(value)).transpose()
        };
        let tls = if scheme.starts_with("nbds") {
            let of_address = match authority.rsplit_once(':') {
                Some((host, port)) if !port.ends_with(']') => host,
                _ => authority,
            };
            let of_address = if of_address.is_empty() { "localhost" } else { of_address };
            let host = asked("tls-hostname")?.unwrap_or_else(|| of_address.to_owned());
            Some(Tls { host, certificates: asked("tls-certificates")?.map(PathBuf::from) })
        } else {
            None
        };
        let mut others = Vec::new();
        let address = match scheme {
            "nbd" | "nbds" => {
                let with_port = match authority.rsplit_once(':') {
                    Some((_, port)) if !port.ends_with(']') => authority.to_string(),
                    _ => format!("{authority}:{PORT}"),
                };
                let mut found = with_port.to_socket_addrs().map_err(|error| bad(&error.to_string()))?;
                let first = found.next().ok_or_else(|| bad("the host has no address"))?;
                others.extend(found);
                Address::Tcp(first)
            }
            "nbd+unix" | "nbds+unix" => {
                Address::Unix(PathBuf::from(asked("socket")?.ok_or_else(|| bad("no socket="))?))
            }
            _ => return Err(bad("no scheme of NBD")),
        };
        Ok(Self { address, export, tls, others })
    }
}

/// A connection to the first of these addresses at which a server answers.
fn connect(addresses: &[SocketAddr]) -> io::Result<TcpStream> {
    let mut failed = io::Error::new(ErrorKind::AddrNotAvailable, "the host has no address");
    for address in addresses {
        match TcpStream::connect_timeout(address, CONNECT_WITHIN) {
            Ok(stream) => return Ok(stream),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

enum Plain {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Read for Plain {
    fn read(&mut self, space: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(space),
            Self::Unix(stream) => stream.read(space),
        }
    }
}

impl Write for Plain {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            Self::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

enum Socket {
    Plain(Plain),
    Tls(Box<StreamOwned<ClientConnection, Plain>>),
}

impl Read for Socket {
    fn read(&mut self, space: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.read(space),
            Self::Tls(stream) => stream.read(space),
        }
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.write(bytes),
            Self::Tls(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(_) => Ok(()),
            Self::Tls(stream) => stream.flush(),
        }
    }
}

/// What a request came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply<'c> {
    /// The number that [`Client::send`] gave.
    pub cookie: u64,
    /// 0, or of [`code`](wire::code).
    pub error: u32,
    /// What was read; empty for other requests.
    pub data: &'c [u8],
}

/// A connection to an export.
pub struct Client {
    socket: BufReader<Socket>,
    unsent: Vec<u8>,
    /// How much data each request under way brings.
    under_way: HashMap<u64, u32>,
    data: Vec<u8>,
    next: u64,
    size: u64,
    flags: u16,
}

impl Client {
    /// Connects to an export. The server has `within` for each step of the negotiation and, later, to take a request
    /// and for each reply; `None`: as long as it takes.
    ///
    /// # Errors
    /// [`ClientError::Connect`], [`ClientError::Tls`], [`ClientError::Refused`], [`ClientError::Lost`].
    pub fn connect(place: &Place, within: Option<Duration>) -> Result<Self> {
        let failed = |source| ClientError::Connect { address: place.address.to_string(), source };
        let mut socket = match &place.address {
            Address::Tcp(address) => {
                let all: Vec<SocketAddr> = [*address].iter().chain(&place.others).copied().collect();
                let stream = connect(&all).map_err(failed)?;
                stream.set_nodelay(true)?;
                // What stands between forgets a connection on which nothing happens for long.
                rustix::net::sockopt::set_socket_keepalive(&stream, true).map_err(io::Error::from)?;
                stream.set_read_timeout(within)?;
                stream.set_write_timeout(within)?;
                Plain::Tcp(stream)
            }
            Address::Unix(path) => {
                let stream = UnixStream::connect(path).map_err(failed)?;
                stream.set_read_timeout(within)?;
                stream.set_write_timeout(within)?;
                Plain::Unix(stream)
            }
        };
        greet(&mut socket)?;
        let socket = match &place.tls {
            None => Socket::Plain(socket),
            Some(tls) => {
                let failed = |source| ClientError::Tls { address: place.address.to_string(), source };
                ask_to_encrypt(&mut socket)?.map_err(|why| failed(io::Error::other(why)))?;
                Socket::Tls(Box::new(tls.encrypt(socket).map_err(failed)?))
            }
        };
        let mut client = Self {
            socket: BufReader::with_capacity(WINDOW_BYTES, socket),
            unsent: Vec::new(),
            under_way: HashMap::new(),
            data: Vec::new(),
            next: 1,
            size: 0,
            flags: 0,
        };
        client.choose(&place.export)?;
        Ok(client)
    }

    fn choose(&mut self, export: &str) -> Result<()> {
        let asked = [&(export.len() as u32).to_be_bytes()[..], export.as_bytes(), &[0, 0]].concat();
        wire::put_option(&mut self.unsent, option::GO, &asked);
        self.push()?;
        for _ in 0..OPTION_REPLIES_MAX {
            let (kind, data) = option_reply(&mut self.socket, option::GO)?;
            match kind {
                option_reply::ACK => return Ok(()),
                option_reply::INFO => {
                    if let Some((size, flags)) = wire::export_info(&data) {
                        (self.size, self.flags) = (size, flags);
                    }
                }
                _ => {
                    let why = String::from_utf8_lossy(&data).into_owned();
                    return Err(ClientError::Refused { export: export.to_string(), why });
                }
            }
        }
        Err(malformed("number of an option's replies").into())
    }

    /// Size of the export in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Whether it refuses writes.
    pub fn read_only(&self) -> bool {
        self.flags & export_flag::READ_ONLY != 0
    }

    /// What the server says that the export can do, of [`export_flag`](wire::export_flag).
    pub fn flags(&self) -> u16 {
        self.flags
    }

    /// How many requests are not answered.
    pub fn under_way(&self) -> usize {
        self.under_way.len()
    }

    /// Sends a request, soon; `payload` is that of a WRITE. Returns its cookie.
    ///
    /// # Errors
    /// [`ClientError::Lost`].
    pub fn send(&mut self, command: u16, flags: u16, offset: u64, len: u32, payload: &[u8]) -> Result<u64> {
        let cookie = self.next;
        self.next += 1;
        Request { flags, command, cookie, offset, len }.encode(&mut self.unsent);
        self.unsent.extend_from_slice(payload);
        self.under_way.insert(cookie, if command == command::READ { len } else { 0 });
        if self.unsent.len() >= SEND_BYTES {
            self.push()?;
        }
        Ok(cookie)
    }

    /// Sends what is kept.
    ///
    /// # Errors
    /// [`ClientError::Lost`].
    pub fn push(&mut self) -> Result<()> {
        if !self.unsent.is_empty() {
            self.socket.get_mut().write_all(&self.unsent)?;
            self.socket.get_mut().flush()?;
            self.unsent.clear();
        }
        Ok(())
    }

    /// The next reply, of whichever request.
    ///
    /// # Errors
    /// [`ClientError::Lost`], also if nothing is under way.
    pub fn receive(&mut self) -> Result<Reply<'_>> {
        if self.under_way.is_empty() {
            return Err(io::Error::new(ErrorKind::InvalidInput, "no request is under way").into());
        }
        if self.socket.buffer().is_empty() {
            self.push()?;
        }
        let header: [u8; 16] = self.bytes()?;
        let (error, cookie) = wire::simple_reply_header(&header).map_err(io::Error::other)?;
        let len = self.under_way.remove(&cookie).ok_or_else(|| malformed("cookie of a reply"))?;
        self.data.resize(if error == 0 { len as usize } else { 0 }, 0);
        self.socket.read_exact(&mut self.data)?;
        Ok(Reply { cookie, error, data: &self.data })
    }

    /// Reads, and waits for it. For connections without other requests under way, as the following.
    ///
    /// # Errors
    /// [`ClientError::Failed`], [`ClientError::Lost`].
    pub fn read(&mut self, offset: u64, len: u32) -> Result<&[u8]> {
        self.call("READ", command::READ, 0, offset, len, &[])?;
        Ok(&self.data)
    }

    /// Writes, and waits for it; with `fua` until it is durable. At most 32 MiB, as everywhere in the protocol.
    ///
    /// # Errors
    /// As [`Client::read`].
    pub fn write(&mut self, offset: u64, data: &[u8], fua: bool) -> Result<()> {
        let flags = if fua { flag::FUA } else { 0 };
        self.call("WRITE", command::WRITE, flags, offset, data.len() as u32, data)
    }

    /// Waits until everything that was answered, to whomever, is durable.
    ///
    /// # Errors
    /// As [`Client::read`].
    pub fn flush(&mut self) -> Result<()> {
        self.call("FLUSH", command::FLUSH, 0, 0, 0, &[])
    }

    /// Asks, and waits for the answer; `payload` is that of a WRITE.
    pub(super) fn call(
        &mut self,
        what: &'static str,
        command: u16,
        flags: u16,
        offset: u64,
        len: u32,
        payload: &[u8],
    ) -> Result<()> {
        self.send(command, flags, offset, len, payload)?;
        match self.receive()?.error {
            0 => Ok(()),
            code => Err(ClientError::Failed { what, code }),
        }
    }

    fn bytes<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.socket.read_exact(&mut bytes)?;
        Ok(bytes)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.send(command::DISC, 0, 0, 0, &[]);
        // The server may be gone.
        let _ = self.push();
    }
}

fn greet(socket: &mut Plain) -> Result<()> {
    let mut greeting = [0; 18];
    socket.read_exact(&mut greeting)?;
    if !wire::is_greeting(&greeting) {
        return Err(malformed("greeting").into());
    }
    Ok(socket.write_all(&u32::from(hello::FIXED_NEWSTYLE | hello::NO_ZEROES).to_be_bytes())?)
}

/// Asks the server to encrypt all that follows; why it does not, if so. Nothing is read ahead: what comes in the clear
/// behind its answer is no handshake.
fn ask_to_encrypt(socket: &mut Plain) -> Result<std::result::Result<(), String>> {
    let mut asked = Vec::new();
    wire::put_option(&mut asked, option::STARTTLS, &[]);
    socket.write_all(&asked)?;
    Ok(match option_reply(socket, option::STARTTLS)? {
        (option_reply::ACK, _) => Ok(()),
        (_, said) => Err(format!("the server does not encrypt: {}", String::from_utf8_lossy(&said))),
    })
}

/// The next reply to an option: its kind and data.
fn option_reply(socket: &mut impl Read, option: u32) -> Result<(u32, Vec<u8>)> {
    let mut header = [0; 20];
    socket.read_exact(&mut header)?;
    let (kind, len) = wire::option_reply_header(&header, option).map_err(io::Error::other)?;
    if len > OPTION_BYTES_MAX {
        return Err(malformed("length of an option's reply").into());
    }
    let mut data = vec![0; len as usize];
    socket.read_exact(&mut data)?;
    Ok((kind, data))
}

fn malformed(what: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, format!("bad {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uris_are_read_as_they_are_written() {
        for (uri, address, export) in [
            ("nbd://127.0.0.1/disk", "nbd://127.0.0.1:10809/", "disk"),
            ("nbd://127.0.0.1:7/", "nbd://127.0.0.1:7/", ""),
            ("nbd://[::1]:7/a@b", "nbd://[::1]:7/", "a@b"),
            ("nbd://[::1]/a", "nbd://[::1]:10809/", "a"),
            ("nbd+unix:///a%20b?socket=/run/x.sock", "nbd+unix:///?socket=/run/x.sock", "a b"),
            ("nbd+unix:///?socket=/a%26b", "nbd+unix:///?socket=/a%26b", ""),
            ("nbds://127.0.0.1/disk?tls-certificates=/etc/pki%20x", "nbd://127.0.0.1:10809/", "disk"),
            ("nbds://[::1]:7/a?tls-hostname=disks.example.org", "nbd://[::1]:7/", "a"),
            ("nbds+unix:///a?socket=/run/x.sock&tls-certificates=/etc", "nbd+unix:///?socket=/run/x.sock", "a"),
        ] {
            let place: Place = uri.parse().unwrap();
            assert_eq!((place.address.to_string().as_str(), place.export.as_str()), (address, export), "{uri}");
            assert_eq!(place.to_string().parse::<Place>().unwrap(), place, "{uri}");
        }
        for (uri, why) in [
            ("disk", "no ://"),
            ("http://localhost/", "no scheme"),
            ("nbd+unix:///disk", "socket="),
            ("nbds+unix:///disk?tls-certificates=/etc", "socket="),
            ("nbd://localhost:port/disk", "port"),
        ] {
            let error = uri.parse::<Place>().unwrap_err().to_string();
            assert!(error.contains(why) && error.contains(uri), "{error}");
        }
        assert!(Place::is_meant("nbds://x/") && !Place::is_meant("nbd") && !Place::is_meant("disk@nbd:"));
    }
}
