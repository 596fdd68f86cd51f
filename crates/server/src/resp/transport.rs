//! Streams of bytes under a connection: TCP, unix sockets, TLS over TCP.
//!
//! Invariant: nothing here blocks; `WouldBlock` means that the poll will tell when to come again.

use std::io::{self, ErrorKind, Read, Write};

use mio::net::{TcpStream, UnixStream};
use mio::{Interest, Registry, Token};
use rustls::ServerConnection;

/// A connected stream.
pub(crate) enum Transport {
    Tcp(TcpStream),
    Unix(UnixStream),
    Tls(TcpStream, Box<ServerConnection>),
}

/// Bytes that arrived.
pub(crate) enum Arrived {
    /// So many, and whether there may be more at once.
    Bytes(usize, bool),
    /// None for now.
    Nothing,
    /// The other side has sent its last.
    End,
}

impl Transport {
    pub(crate) fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        // Events are edges: asking for both once costs less than asking for writing when it is needed.
        let interest = Interest::READABLE | Interest::WRITABLE;
        match self {
            Self::Tcp(stream) | Self::Tls(stream, _) => registry.register(stream, token, interest),
            Self::Unix(stream) => registry.register(stream, token, interest),
        }
    }

    /// Reads into `space`. A short read of a plain stream tells that it is drained.
    pub(crate) fn read(&mut self, space: &mut [u8]) -> io::Result<Arrived> {
        match self {
            Self::Tcp(stream) => read_plain(stream, space),
            Self::Unix(stream) => read_plain(stream, space),
            Self::Tls(stream, tls) => read_tls(stream, tls, space),
        }
    }

    /// Writes what the stream takes; 0 if it takes nothing now.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = match self {
            Self::Tcp(stream) => retry(|| stream.write(bytes)),
            Self::Unix(stream) => retry(|| stream.write(bytes)),
            Self::Tls(stream, tls) => {
                send_tls(stream, tls)?;
                let taken = tls.writer().write(bytes)?;
                send_tls(stream, tls)?;
                return Ok(taken);
            }
        };
        match written {
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(0),
            other => other,
        }
    }

    /// Sends what the stream holds itself; whether that is all.
    pub(crate) fn flush(&mut self) -> io::Result<bool> {
        match self {
            Self::Tcp(_) | Self::Unix(_) => Ok(true),
            Self::Tls(stream, tls) => {
                send_tls(stream, tls)?;
                Ok(!tls.wants_write())
            }
        }
    }

    /// Says goodbye, where the stream has a word for it.
    pub(crate) fn close(&mut self) {
        if let Self::Tls(stream, tls) = self {
            tls.send_close_notify();
            // The connection ends now, whether the other side learns it politely or not.
            let _ = send_tls(stream, tls);
        }
    }
}

fn retry<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

fn read_plain(stream: &mut impl Read, space: &mut [u8]) -> io::Result<Arrived> {
    match retry(|| stream.read(space)) {
        Ok(0) => Ok(Arrived::End),
        Ok(len) => Ok(Arrived::Bytes(len, len == space.len())),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(Arrived::Nothing),
        Err(error) => Err(error),
    }
}

fn read_tls(stream: &mut TcpStream, tls: &mut ServerConnection, space: &mut [u8]) -> io::Result<Arrived> {
    loop {
        match tls.reader().read(space) {
            Ok(0) => return Ok(Arrived::End),
            Ok(len) => return Ok(Arrived::Bytes(len, true)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(Arrived::End),
            Err(error) => return Err(error),
        }
        match retry(|| tls.read_tls(stream)) {
            Ok(0) => return Ok(Arrived::End),
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(Arrived::Nothing),
            Err(error) => return Err(error),
        }
        if let Err(error) = tls.process_new_packets() {
            // The alert tells the other side why; that it cannot be sent changes nothing.
            let _ = send_tls(stream, tls);
            return Err(io::Error::new(ErrorKind::InvalidData, error));
        }
        send_tls(stream, tls)?;
    }
}

fn send_tls(stream: &mut TcpStream, tls: &mut ServerConnection) -> io::Result<()> {
    while tls.wants_write() {
        match retry(|| tls.write_tls(stream)) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
