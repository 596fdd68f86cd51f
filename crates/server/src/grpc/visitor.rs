//! A connection from its acceptance to its end: a stranger's first, for a short time, and a known client's after its
//! first request that was let through.
//!
//! accept → [`Visitor`] with a place among the strangers → TLS, HTTP/2 → request → the token → [`Standing::admit`] → a
//! place among the known
//!
//! Invariants:
//! 1. Never more than `connections_max` connections are known, and no stranger takes one of those places.
//! 2. A stranger whose time is over, or who has to make room, is neither read from nor written to: its connection ends.
//! One that does not read what it is sent is met by the writes.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Instant;

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::Sleep;
use tonic::transport::server::Connected;

use super::status::Told;
use crate::front::audit;
use crate::front::strangers::{Stranger, Strangers};

/// Who may be connected.
#[derive(Clone)]
pub(crate) struct Room {
    strangers: Arc<Strangers>,
    known: Arc<Semaphore>,
    connections_max: usize,
}

impl Room {
    pub(crate) fn new(strangers: Arc<Strangers>, connections_max: usize) -> Self {
        Self { strangers, known: Arc::new(Semaphore::new(connections_max)), connections_max }
    }

    /// Connections of known clients.
    pub(crate) fn known(&self) -> usize {
        self.connections_max - self.known.available_permits().min(self.connections_max)
    }

    /// Most of them.
    pub(crate) fn known_max(&self) -> usize {
        self.connections_max
    }

    /// Connections of strangers.
    pub(crate) fn strangers(&self) -> usize {
        self.strangers.len()
    }

    /// Strangers that had to make room, or took too long.
    pub(crate) fn sent_away(&self) -> u64 {
        self.strangers.sent_away()
    }

    /// Lets a connection in, as a stranger's.
    pub(crate) fn enter<S>(&self, stream: S, peer: String) -> Visitor<S> {
        let (end, ended) = oneshot::channel();
        let stranger = self.strangers.enter(Instant::now(), move || {
            // One that is gone already needs no end.
            let _ = end.send(());
        });
        let deadline = Box::pin(tokio::time::sleep_until(stranger.until().into()));
        let standing = Arc::new(Standing {
            place: Mutex::new(Place::Stranger(stranger)),
            room: self.clone(),
            peer,
            names: OnceLock::new(),
        });
        Visitor { stream, standing, limit: Some(Limit { ended, deadline }) }
    }
}

enum Place {
    Stranger(Stranger),
    Known { _permit: OwnedSemaphorePermit },
}

/// How a connection's client stands with the server; all its requests carry it.
pub(crate) struct Standing {
    place: Mutex<Place>,
    room: Room,
    /// Where it comes from.
    peer: String,
    /// The names in its certificate.
    names: OnceLock<Vec<String>>,
}

impl Standing {
    /// The client has shown that it is this user's, who may be served.
    ///
    /// # Errors
    /// Busy, with the limit, if as many are connected as may be: nothing was looked at.
    pub(crate) fn admit(&self, user: &str) -> Result<(), Told> {
        let mut place = self.place.lock();
        if let Place::Stranger(_) = &*place {
            let permit = Arc::clone(&self.room.known).try_acquire_owned().map_err(|_| {
                let max = self.room.connections_max;
                tracing::warn!(max, "a client is refused: too many connections (connections_max)");
                Told::busy(format!("{max} connections are open (connections_max): try again later"))
            })?;
            *place = Place::Known { _permit: permit };
            audit::login(&self.peer, user);
        }
        Ok(())
    }

    /// Where the client comes from.
    pub(crate) fn peer(&self) -> &str {
        &self.peer
    }

    /// The names in its certificate, read by the first call.
    pub(crate) fn names(&self, read: impl FnOnce() -> Vec<String>) -> &[String] {
        self.names.get_or_init(read)
    }

    fn is_known(&self) -> bool {
        matches!(&*self.place.lock(), Place::Known { .. })
    }

    /// Whether it is a stranger's still; then it notes that its time is over.
    fn is_late(&self) -> bool {
        match &*self.place.lock() {
            Place::Stranger(stranger) => {
                stranger.took_too_long();
                true
            }
            Place::Known { .. } => false,
        }
    }
}

struct Limit {
    /// Resolves to an error once the client is known.
    ended: oneshot::Receiver<()>,
    deadline: Pin<Box<Sleep>>,
}

/// A connection.
pub(crate) struct Visitor<S> {
    stream: S,
    standing: Arc<Standing>,
    /// While it may be a stranger's.
    limit: Option<Limit>,
}

impl<S> Visitor<S> {
    /// An error once a stranger has to go.
    fn poll_limit(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        let Some(limit) = &mut self.limit else { return Ok(()) };
        match Pin::new(&mut limit.ended).poll(cx) {
            // It may have become known just now.
            Poll::Ready(Ok(())) if self.standing.is_known() => self.limit = None,
            Poll::Ready(Ok(())) => {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "made room for another (strangers_max)"));
            }
            Poll::Ready(Err(_)) => self.limit = None,
            Poll::Pending if limit.deadline.as_mut().poll(cx).is_pending() => {}
            Poll::Pending if self.standing.is_late() => {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "no request in time (stranger_seconds)"));
            }
            Poll::Pending => self.limit = None,
        }
        Ok(())
    }
}

impl<S> Connected for Visitor<S> {
    type ConnectInfo = Arc<Standing>;
    fn connect_info(&self) -> Self::ConnectInfo {
        Arc::clone(&self.standing)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Visitor<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.poll_limit(cx)?;
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Visitor<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_limit(cx)?;
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_limit(cx)?;
        Pin::new(&mut self.stream).poll_flush(cx)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_limit(cx)?;
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }
    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
