//! The two directions of a connection: [`Input`], which one thread at a time reads, and [`Output`], which all its
//! threads send on.
//!
//! socket → (TLS) → buffer → header or payload                 parts of replies → (TLS) → socket
//!
//! Invariants:
//! 1. Payloads are slices of what was received, or were received where they stay; they are not copied again.
//! 2. What is buffered is bounded by [`WINDOW_BYTES_MAX`], beside the payload that the caller asked for.
//! 3. Of the locks of one connection the output's is taken before that of the TLS session.

use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags};
use rustls::ServerConnection;

use crate::front::certificates::names_in;

/// Bytes that are asked of the socket at once, at least and at most.
const WINDOW_BYTES_MIN: usize = 8 << 10;
const WINDOW_BYTES_MAX: usize = 256 << 10;
/// Ciphertext is read in pieces of this.
const CIPHER_BYTES: usize = 64 << 10;
/// Parts that one system call sends.
const PARTS_PER_SEND: usize = 64;

/// A connected socket. Blocking.
#[derive(Debug)]
pub(crate) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    fn read(&self, space: &mut [u8]) -> io::Result<usize> {
        loop {
            let read = match self {
                Self::Tcp(stream) => (&mut &*stream).read(space),
                Self::Unix(stream) => (&mut &*stream).read(space),
            };
            match read {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                other => return other,
            }
        }
    }

    fn write_vectored(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => (&mut &*stream).write_vectored(parts),
            Self::Unix(stream) => (&mut &*stream).write_vectored(parts),
        }
    }

    /// Writes what there is room for.
    fn write_now(&self, parts: &[IoSlice<'_>]) -> rustix::io::Result<usize> {
        let (mut none, flags) = (SendAncillaryBuffer::default(), SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        match self {
            Self::Tcp(stream) => rustix::net::sendmsg(stream, parts, &mut none, flags),
            Self::Unix(stream) => rustix::net::sendmsg(stream, parts, &mut none, flags),
        }
    }

    /// Reads what is there.
    fn read_now(&self, space: &mut [u8], flags: RecvFlags) -> rustix::io::Result<usize> {
        let flags = flags | RecvFlags::DONTWAIT;
        match self {
            Self::Tcp(stream) => rustix::net::recv(stream, space, flags),
            Self::Unix(stream) => rustix::net::recv(stream, space, flags),
        }
        .map(|(read, _)| read)
    }

    /// Reads fail with `WouldBlock` or `TimedOut` after so long; `None`: never.
    pub(crate) fn read_within(&self, time: Option<Duration>) -> io::Result<()> {
        // Zero would be refused, and means the same as very little.
        let time = time.map(|time| time.max(Duration::from_millis(1)));
        match self {
            Self::Tcp(stream) => stream.set_read_timeout(time),
            Self::Unix(stream) => stream.set_read_timeout(time),
        }
    }

    /// The same for writes.
    pub(crate) fn write_within(&self, time: Option<Duration>) -> io::Result<()> {
        let time = time.map(|time| time.max(Duration::from_millis(1)));
        match self {
            Self::Tcp(stream) => stream.set_write_timeout(time),
            Self::Unix(stream) => stream.set_write_timeout(time),
        }
    }

    /// Ends one direction or both; threads that wait for it wake.
    pub(crate) fn shutdown(&self, how: Shutdown) {
        // It may have ended already.
        let _ = match self {
            Self::Tcp(stream) => stream.shutdown(how),
            Self::Unix(stream) => stream.shutdown(how),
        };
    }
}

type Tls = Arc<Mutex<ServerConnection>>;

/// What comes from the client.
pub(crate) struct Input {
    socket: Arc<Socket>,
    output: Arc<Output>,
    tls: Option<Tls>,
    buffer: BytesMut,
    window: usize,
    cipher: Vec<u8>,
    deadline: Option<Instant>,
}

impl Input {
    pub(crate) fn new(socket: Arc<Socket>, output: Arc<Output>) -> Self {
        Self {
            socket,
            output,
            tls: None,
            buffer: BytesMut::new(),
            window: WINDOW_BYTES_MIN,
            cipher: Vec::new(),
            deadline: None,
        }
    }

    /// Everything received must be there by then, however slowly it comes; `None`: never.
    pub(crate) fn until(&mut self, deadline: Option<Instant>) -> io::Result<()> {
        self.deadline = deadline;
        if deadline.is_none() { self.socket.read_within(None) } else { Ok(()) }
    }

    fn hurry(&self) -> io::Result<()> {
        let Some(deadline) = self.deadline else { return Ok(()) };
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { self.socket.read_within(Some(left)) }
    }

    /// What is there already, without asking the socket.
    pub(crate) fn buffered(&self) -> &[u8] {
        &self.buffer
    }

    /// Whether there is more, here or at the socket.
    pub(crate) fn has_more(&self) -> bool {
        !self.buffer.is_empty() || self.socket.read_now(&mut [0], RecvFlags::PEEK).is_ok()
    }

    /// Receives what is there, as far as the socket can be asked for that. What has ended or failed is told to who
    /// waits for it.
    pub(crate) fn fill_now(&mut self) {
        if self.tls.is_some() || self.deadline.is_some() {
            return;
        }
        let len = self.buffer.len();
        self.buffer.resize(len + self.window, 0);
        let read = self.socket.read_now(&mut self.buffer[len..], RecvFlags::empty());
        self.buffer.truncate(len + read.unwrap_or(0));
    }

    /// From now on everything is encrypted. Call with an empty buffer: what was sent in the clear before must not count
    /// as encrypted.
    pub(crate) fn encrypt(&mut self, session: ServerConnection) {
        let session = Arc::new(Mutex::new(session));
        *self.output.tls.lock() = Some(Arc::clone(&session));
        self.cipher = vec![0; CIPHER_BYTES];
        self.tls = Some(session);
    }

    pub(crate) fn is_encrypted(&self) -> bool {
        self.tls.is_some()
    }

    /// Receives until `len` bytes are buffered; `false` if the client ends before.
    pub(crate) fn fill(&mut self, len: usize) -> io::Result<bool> {
        while self.buffer.len() < len {
            if self.receive(len - self.buffer.len())? == 0 {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The next `len` bytes, which must be buffered.
    pub(crate) fn take(&mut self, len: usize) -> Bytes {
        self.buffer.split_to(len).freeze()
    }

    /// The next `len` bytes as an array, without keeping the buffer in use. They must be buffered.
    pub(crate) fn header<const N: usize>(&mut self) -> [u8; N] {
        let mut header = [0; N];
        header.copy_from_slice(&self.buffer[..N]);
        bytes::Buf::advance(&mut self.buffer, N);
        header
    }

    /// The next `len` bytes, received where they stay; `None` if the client ends before.
    pub(crate) fn payload(&mut self, len: usize) -> io::Result<Option<Bytes>> {
        if self.tls.is_some() || len <= WINDOW_BYTES_MIN || self.buffer.len() >= len {
            return Ok(if self.fill(len)? { Some(self.take(len)) } else { None });
        }
        let mut payload = BytesMut::zeroed(len);
        let mut at = self.buffer.len();
        payload[..at].copy_from_slice(&self.buffer);
        self.buffer.clear();
        while at < len {
            self.hurry()?;
            match self.socket.read(&mut payload[at..])? {
                0 => return Ok(None),
                read => at += read,
            }
        }
        Ok(Some(payload.freeze()))
    }

    /// Receives `len` bytes and forgets them; `false` if the client ends before.
    pub(crate) fn skip(&mut self, mut len: u64) -> io::Result<bool> {
        loop {
            let here = len.min(self.buffer.len() as u64);
            bytes::Buf::advance(&mut self.buffer, here as usize);
            len -= here;
            if len == 0 {
                return Ok(true);
            }
            if self.receive(1)? == 0 {
                return Ok(false);
            }
        }
    }

    /// Receives what there is, waiting for the first byte; 0 at the end.
    fn receive(&mut self, missing: usize) -> io::Result<usize> {
        match self.tls.clone() {
            None => {
                self.hurry()?;
                let room = self.window.max(missing);
                let len = self.buffer.len();
                self.buffer.resize(len + room, 0);
                let read = self.socket.read(&mut self.buffer[len..]);
                self.buffer.truncate(len + *read.as_ref().unwrap_or(&0));
                let read = read?;
                self.window = if read >= self.window { self.window * 2 } else { self.window / 2 }
                    .clamp(WINDOW_BYTES_MIN, WINDOW_BYTES_MAX);
                Ok(read)
            }
            Some(tls) => self.receive_encrypted(&tls),
        }
    }

    fn receive_encrypted(&mut self, tls: &Tls) -> io::Result<usize> {
        loop {
            self.hurry()?;
            let read = self.socket.read(&mut self.cipher)?;
            if read == 0 {
                return Ok(0);
            }
            let mut session = tls.lock();
            let mut cipher = &self.cipher[..read];
            let mut got = 0;
            let mut ended = false;
            while !cipher.is_empty() {
                session.read_tls(&mut cipher)?;
                let state = match session.process_new_packets() {
                    Ok(state) => state,
                    Err(error) => {
                        drop(session);
                        // The alert tells the other side why; that it cannot be sent changes nothing.
                        let _ = self.output.flush();
                        return Err(io::Error::new(ErrorKind::InvalidData, error));
                    }
                };
                let plain = state.plaintext_bytes_to_read();
                let len = self.buffer.len();
                self.buffer.resize(len + plain, 0);
                session.reader().read_exact(&mut self.buffer[len..])?;
                got += plain;
                if state.peer_has_closed() {
                    ended = true;
                    break;
                }
            }
            let answer = session.wants_write();
            drop(session);
            if answer {
                self.output.flush()?;
            }
            if got > 0 || ended {
                return Ok(got);
            }
        }
    }

    /// The names in the client's certificate; none without one.
    pub(crate) fn peer_names(&self) -> Vec<String> {
        let Some(tls) = &self.tls else { return Vec::new() };
        let session = tls.lock();
        let certificate = session.peer_certificates().and_then(|certificates| certificates.first());
        certificate.map(|certificate| names_in(certificate)).unwrap_or_default()
    }

    /// Finishes the handshake of [`Input::encrypt`]; `false` if the client ends before.
    pub(crate) fn handshake(&mut self) -> io::Result<bool> {
        while let Some(tls) = &self.tls {
            if !tls.lock().is_handshaking() {
                return Ok(true);
            }
            let tls = Arc::clone(tls);
            self.hurry()?;
            let read = self.socket.read(&mut self.cipher)?;
            if read == 0 {
                return Ok(false);
            }
            let mut cipher = &self.cipher[..read];
            let mut session = tls.lock();
            while !cipher.is_empty() {
                session.read_tls(&mut cipher)?;
                let state = session.process_new_packets();
                let failed = match state {
                    Ok(state) => {
                        let plain = state.plaintext_bytes_to_read();
                        let len = self.buffer.len();
                        self.buffer.resize(len + plain, 0);
                        session.reader().read_exact(&mut self.buffer[len..])?;
                        None
                    }
                    Err(error) => Some(error),
                };
                if let Some(error) = failed {
                    drop(session);
                    let _ = self.output.flush();
                    return Err(io::Error::new(ErrorKind::InvalidData, error));
                }
            }
            drop(session);
            self.output.flush()?;
        }
        Ok(true)
    }
}

/// What goes to the client.
pub(super) struct Output {
    pub(crate) socket: Arc<Socket>,
    /// Held while something is sent, so that replies stay whole.
    sending: Mutex<Vec<u8>>,
    tls: Mutex<Option<Tls>>,
}

impl Output {
    pub(crate) fn new(socket: Arc<Socket>) -> Self {
        Self { socket, sending: Mutex::default(), tls: Mutex::default() }
    }

    /// Sends parts, in order and without anything between them. Blocks while the client does not read.
    pub(crate) fn send<'b>(&self, parts: impl Iterator<Item = &'b [u8]>) -> io::Result<()> {
        let mut cipher = self.sending.lock();
        let tls = self.tls.lock().clone();
        let Some(tls) = tls else { return self.send_plain(parts) };
        for mut part in parts {
            while !part.is_empty() {
                let taken = tls.lock().writer().write(part)?;
                part = &part[taken..];
                if !part.is_empty() {
                    self.send_cipher(&tls, &mut cipher)?;
                }
            }
        }
        self.send_cipher(&tls, &mut cipher)
    }

    /// The same without waiting for the client, as far as the socket takes it; what is encrypted is waited for. How
    /// many bytes went if that is not all.
    pub(crate) fn send_now<'b>(&self, parts: impl Iterator<Item = &'b [u8]>) -> io::Result<Option<usize>> {
        if self.tls.lock().is_some() {
            return self.send(parts).map(|()| None);
        }
        let _sending = self.sending.lock();
        write_parts(parts, |parts| Ok(self.socket.write_now(parts)?))
    }

    /// Sends what the TLS session wants to say by itself.
    pub(crate) fn flush(&self) -> io::Result<()> {
        self.send(std::iter::empty())
    }

    /// Says goodbye, where there is a word for it.
    pub(crate) fn close(&self) {
        let tls = self.tls.lock().clone();
        if let Some(tls) = tls {
            tls.lock().send_close_notify();
            // The connection ends now, whether the other side learns it politely or not.
            let _ = self.flush();
        }
        self.socket.shutdown(Shutdown::Both);
    }

    fn send_cipher(&self, tls: &Tls, cipher: &mut Vec<u8>) -> io::Result<()> {
        cipher.clear();
        {
            let mut session = tls.lock();
            while session.wants_write() {
                session.write_tls(cipher)?;
            }
        }
        self.send_plain(std::iter::once(&cipher[..]))
    }

    fn send_plain<'b>(&self, parts: impl Iterator<Item = &'b [u8]>) -> io::Result<()> {
        match write_parts(parts, |parts| self.socket.write_vectored(parts))? {
            None => Ok(()),
            Some(_) => Err(ErrorKind::TimedOut.into()),
        }
    }
}

/// Writes parts one after the other. How many bytes went if it would have to be waited for the rest.
fn write_parts<'b>(
    parts: impl Iterator<Item = &'b [u8]>,
    mut write: impl FnMut(&[IoSlice<'_>]) -> io::Result<usize>,
) -> io::Result<Option<usize>> {
    let mut parts = parts.filter(|part| !part.is_empty()).peekable();
    let mut all = 0;
    while parts.peek().is_some() {
        let mut slices: Vec<IoSlice<'_>> = parts.by_ref().take(PARTS_PER_SEND).map(IoSlice::new).collect();
        let mut rest = &mut slices[..];
        while !rest.is_empty() {
            match write(rest) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(sent) => {
                    all += sent;
                    IoSlice::advance_slices(&mut rest, sent);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(Some(all)),
                Err(error) => return Err(error),
            }
        }
    }
    Ok(None)
}
