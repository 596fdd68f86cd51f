//! Connections to the port of peers: a stranger's at first, for a short time, and a peer's once a request has come.
//!
//! accept → [`Room::enter`]: among the strangers → TLS, HTTP/2 → request: [`admit`] → among the known
//!
//! Over TLS a request comes only from a client that has shown its certificate.
//!
//! Invariants:
//! 1. There are never more than [`STRANGERS_MAX`] strangers: for one more, the oldest is ended. So a peer that says at
//!    once who it is gets in, however many strangers say nothing; not while so many come anew within its handshake.
//! 2. There are never more than [`CONNECTIONS_MAX`] known connections, and no stranger takes one of their places.
//! 3. Accepting waits for no client; where the system gives no more connections, it waits before it tries again.

use std::collections::BTreeMap;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::time::Sleep;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::Connected;
use tonic::{Request, Status};

/// Connections on which no request has come yet.
pub const STRANGERS_MAX: usize = 64;
/// Connections of peers.
pub const CONNECTIONS_MAX: usize = 256;
/// How long a stranger has for its first request.
const PATIENCE: Duration = Duration::from_secs(5);
/// From an error of accepting to the next try.
const AGAIN: Duration = Duration::from_millis(100);

/// Who may be connected.
pub(crate) struct Room {
    /// What ends each, in the order of their numbers.
    strangers: Mutex<BTreeMap<u64, oneshot::Sender<()>>>,
    entered: AtomicU64,
    known: Arc<Semaphore>,
}

impl Room {
    pub(crate) fn new() -> Arc<Self> {
        let known = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        Arc::new(Self { strangers: Mutex::default(), entered: AtomicU64::new(0), known })
    }

    /// Lets a connection in, as a stranger's.
    fn enter(self: &Arc<Self>, stream: TcpStream) -> Visitor {
        let (end, ended) = oneshot::channel();
        let number = self.entered.fetch_add(1, Ordering::Relaxed);
        let mut strangers = self.strangers.lock();
        let oldest = if strangers.len() < STRANGERS_MAX { None } else { strangers.pop_first() };
        strangers.insert(number, end);
        drop(strangers);
        if let Some((_, end)) = oldest {
            // It may have gone just now.
            let _ = end.send(());
        }
        let standing = Arc::new(Standing { room: Arc::clone(self), number, known: OnceLock::new() });
        Visitor {
            stream,
            standing,
            limit: Some(Limit { ended, deadline: Box::pin(tokio::time::sleep(PATIENCE)), is_over: false }),
        }
    }

    fn leave(&self, number: u64) {
        let end = self.strangers.lock().remove(&number);
        // It wakes the connection: outside the lock.
        drop(end);
    }
}

/// How a connection stands; all its requests carry it.
pub(crate) struct Standing {
    room: Arc<Room>,
    number: u64,
    /// The place of a known connection.
    known: OnceLock<OwnedSemaphorePermit>,
}

impl Standing {
    /// A request has come: the connection is known. `false`: as many are as may be.
    fn admit(&self) -> bool {
        if self.known.get().is_some() {
            return true;
        }
        let Ok(place) = Arc::clone(&self.room.known).try_acquire_owned() else { return false };
        // Another request may have been as fast.
        let _ = self.known.set(place);
        self.room.leave(self.number);
        true
    }
}

impl Drop for Standing {
    fn drop(&mut self) {
        self.room.leave(self.number);
    }
}

/// Lets a request through, whose connection is known from then on.
pub(crate) fn admit(request: Request<()>) -> Result<Request<()>, Status> {
    let standing = request.extensions().get::<Arc<Standing>>();
    if standing.is_none_or(|standing| standing.admit()) {
        return Ok(request);
    }
    tracing::warn!(max = CONNECTIONS_MAX, "a peer is refused: too many connections");
    Err(Status::resource_exhausted(format!("{CONNECTIONS_MAX} connections of peers are open")))
}

/// While a connection may be a stranger's.
struct Limit {
    ended: oneshot::Receiver<()>,
    deadline: Pin<Box<Sleep>>,
    is_over: bool,
}

/// A connection.
pub(crate) struct Visitor {
    stream: TcpStream,
    standing: Arc<Standing>,
    limit: Option<Limit>,
}

impl Visitor {
    /// An error once a stranger has to go.
    fn poll_limit(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        let Some(limit) = &mut self.limit else { return Ok(()) };
        limit.is_over = limit.is_over
            || Pin::new(&mut limit.ended).poll(cx).is_ready() | limit.deadline.as_mut().poll(cx).is_ready();
        let is_over = limit.is_over;
        if self.standing.known.get().is_some() {
            self.limit = None;
        } else if is_over {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "no request in time, or before too many others came"));
        }
        Ok(())
    }
}

impl Connected for Visitor {
    type ConnectInfo = Arc<Standing>;
    fn connect_info(&self) -> Self::ConnectInfo {
        Arc::clone(&self.standing)
    }
}

impl AsyncRead for Visitor {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.poll_limit(cx)?;
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Visitor {
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

/// Connections as they come, for as long as they are taken.
pub(crate) fn incoming(accept: impl Accept, room: Arc<Room>) -> ReceiverStream<io::Result<Visitor>> {
    let (sender, incoming) = mpsc::channel(1);
    tokio::spawn(async move {
        loop {
            let accepted = tokio::select! {
                accepted = accept.accept() => accepted,
                () = sender.closed() => return,
            };
            match accepted {
                Ok(stream) => {
                    if sender.send(Ok(room.enter(stream))).await.is_err() {
                        return;
                    }
                }
                Err(error) => {
                    tracing::debug!(%error, "a peer cannot be let in; trying again soon");
                    tokio::time::sleep(AGAIN).await;
                }
            }
        }
    });
    ReceiverStream::new(incoming)
}

/// What gives connections.
pub(crate) trait Accept: Send + Sync + 'static {
    fn accept(&self) -> impl Future<Output = io::Result<TcpStream>> + Send;
}

impl Accept for tokio::net::TcpListener {
    async fn accept(&self) -> io::Result<TcpStream> {
        let (stream, _) = Self::accept(self).await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod tests {
    use super::*;

    /// A process without descriptors.
    struct Exhausted(Arc<AtomicU64>);

    impl Accept for Exhausted {
        async fn accept(&self) -> io::Result<TcpStream> {
            self.0.fetch_add(1, Ordering::SeqCst);
            Err(io::Error::other("too many open files"))
        }
    }

    #[test]
    fn where_there_are_no_descriptors_accepting_waits_before_it_tries_again() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let tries = Arc::new(AtomicU64::new(0));
        let room = Room::new();
        runtime.block_on(async {
            let incoming = incoming(Exhausted(Arc::clone(&tries)), room);
            tokio::time::sleep(AGAIN * 3).await;
            drop(incoming);
        });
        assert!((2..=4).contains(&tries.load(Ordering::SeqCst)), "{tries:?}");
    }
}
