//! What peers send: letters for nodes, and questions about copies.
//!
//! stream → greeting → [`Node::try_hear`] for each letter, one after the other
//!                   ↳ what would have to wait, and what comes behind it: a thread → [`Node::hear`]
//!
//! Invariant: letters of a stream are heard in their order.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use esker_chain::{Message, Operation, ServerId, Weight};
use esker_wire::proto::chain as proto;
use esker_wire::proto::chain::letter::What;
use esker_wire::proto::chain::replication_server::{Replication, ReplicationServer};
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::service::{InterceptorLayer, Routes};
use tonic::transport::{Server, ServerTlsConfig};
use tonic::{Code, Request, Response, Status, Streaming};

use crate::hub::{Hub, Stream};
use crate::letters::message;
use crate::pulling::Offer;
use crate::reach::{ALIVE_EVERY, MESSAGE_BYTES_MAX, WINDOW_BYTES};
use crate::unheard::{Receiver, Sender, channel};
use crate::visitors::{self, Room};
use crate::{Error, Result};

/// Letters that have come on a stream and that the node has not heard: batches, and bytes.
const UNHEARD: usize = 64;
const UNHEARD_BYTES: u32 = 64 << 20;
/// A letter without payload takes this of them.
const LETTER_BYTES: usize = 64;
/// From a copy that failed to the next, and from one that was not begun.
const PAUSE: Duration = Duration::from_secs(2);
const SOON: Duration = Duration::from_millis(50);
/// Streams and calls of one connection at the same time.
const STREAMS_MAX: u32 = 256;
/// Handshakes that are not finished by then are ended.
const HANDSHAKE: Duration = Duration::from_secs(5);

/// The service.
pub(crate) struct Service(Weak<Hub>);

impl Service {
    pub(crate) fn new(hub: Weak<Hub>) -> Self {
        Self(hub)
    }

    fn hub(&self) -> std::result::Result<Arc<Hub>, Status> {
        self.0.upgrade().ok_or_else(|| Status::unavailable("this server has stopped"))
    }
}

/// Serves on this socket, and what is beside it, until it is to stop.
pub(crate) fn start(
    runtime: &Runtime,
    socket: std::net::TcpListener,
    tls: Option<ServerTlsConfig>,
    (service, beside): (Service, Routes),
    mut stopping: watch::Receiver<bool>,
) -> Result<()> {
    let _inside = runtime.enter();
    let listener = tokio::net::TcpListener::from_std(socket)?;
    let mut server = Server::builder()
        .http2_keepalive_interval(Some(ALIVE_EVERY))
        .http2_keepalive_timeout(Some(ALIVE_EVERY))
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        .max_concurrent_streams(STREAMS_MAX);
    if let Some(tls) = tls {
        let bad = |error: tonic::transport::Error| Error::Io(std::io::Error::other(error));
        server = server.tls_config(tls.timeout(HANDSHAKE)).map_err(bad)?;
    }
    let service = ReplicationServer::new(service);
    let service = service.max_decoding_message_size(MESSAGE_BYTES_MAX).max_encoding_message_size(MESSAGE_BYTES_MAX);
    let mut server = server.layer(InterceptorLayer::new(visitors::admit));
    let serving = server.add_routes(beside.add_service(service)).serve_with_incoming_shutdown(
        visitors::incoming(listener, Room::new()),
        async move {
            // Or what tells is gone.
            let _ = stopping.wait_for(|stopping| *stopping).await;
        },
    );
    runtime.spawn(async move {
        if let Err(error) = serving.await {
            tracing::error!(%error, "peers are not listened to any more");
        }
    });
    Ok(())
}

/// So many letters that come together are heard where they come at most: more are worth a thread of their own.
const AT_ONCE: usize = 16;

/// What a letter is.
enum Heard {
    Message(Message<Operation>),
    Copy(proto::Copy),
}

impl Heard {
    fn bytes(&self) -> usize {
        match self {
            Self::Message(Message::Forward { operation, .. }) => LETTER_BYTES + operation.weight(),
            _ => LETTER_BYTES,
        }
    }
}

/// A stream of letters of one peer, to the node of one chain.
struct Hearing {
    hub: Weak<Hub>,
    chain: String,
    from: ServerId,
    stream: Stream,
    /// Its number: there may be a later one.
    own: u64,
    /// Letters that came together, and that the thread has not heard.
    behind: AtomicUsize,
}

impl Hearing {
    /// Has the node hear what waits for nothing; the rest, and that none is to follow it here.
    fn try_hear(&self, letters: VecDeque<Heard>) -> std::result::Result<VecDeque<Heard>, Status> {
        let gone = || Status::aborted("the letters are not heard any more");
        if self.behind.load(Ordering::SeqCst) > 0 || letters.len() > AT_ONCE {
            return Ok(letters);
        }
        let hub = self.hub.upgrade().ok_or_else(gone)?;
        let (node, last) = (hub.node(&self.chain), self.stream.try_lock());
        let (Some(node), Some(last)) = (node, last) else { return Ok(letters) };
        if *last != self.own {
            return Err(gone());
        }
        let mut rest = letters;
        while let Some(next) = rest.pop_front() {
            let unheard = match next {
                Heard::Message(message) => node.try_hear(self.from, message).map_err(Heard::Message).err(),
                copy @ Heard::Copy(_) => Some(copy),
            };
            if let Some(unheard) = unheard {
                rest.push_front(unheard);
                break;
            }
        }
        Ok(rest)
    }

    /// Hears, or passes on, until the stream ends; that ends its thread.
    async fn take(
        &self,
        mut letters: Streaming<proto::Letters>,
        unheard: Sender<VecDeque<Heard>>,
    ) -> std::result::Result<(), Status> {
        while let Some(together) = letters.message().await? {
            let together = together.letters.into_iter().map(heard).collect::<std::result::Result<_, _>>()?;
            let rest = self.try_hear(together)?;
            if rest.is_empty() {
                continue;
            }
            self.behind.fetch_add(1, Ordering::SeqCst);
            let bytes = rest.iter().map(Heard::bytes).sum();
            if !unheard.send(rest, bytes).await {
                return Err(Status::aborted("the letters are not heard any more"));
            }
        }
        Ok(())
    }

    /// Has the node hear letters, in order, until there is another stream of the same peer.
    fn hear(&self, mut unheard: Receiver<VecDeque<Heard>>) {
        while let Some(mut together) = unheard.next() {
            let Some(hub) = self.hub.upgrade() else { return };
            let last = self.stream.lock();
            if *last != self.own {
                return;
            }
            let node = hub.node(&self.chain);
            for one in together.letters.drain(..) {
                let Some(node) = &node else { break };
                match one {
                    Heard::Message(message) => node.hear(self.from, message),
                    Heard::Copy(proto::Copy { version, seq, copy }) => {
                        let offer = Offer { chain: self.chain.clone(), from: self.from, version, seq, copy };
                        hub.pulling.begin(Arc::clone(node), offer);
                    }
                }
            }
            drop(last);
            self.behind.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

fn heard(letter: proto::Letter) -> std::result::Result<Heard, Status> {
    match letter.what {
        None => Err(Status::invalid_argument("Letter.what: it says nothing")),
        Some(What::Copy(copy)) => Ok(Heard::Copy(copy)),
        Some(what) => message(what).map(Heard::Message).map_err(Status::invalid_argument),
    }
}

#[tonic::async_trait]
impl Replication for Service {
    type SendStream = ReceiverStream<std::result::Result<proto::Sent, Status>>;

    async fn send(
        &self,
        request: Request<Streaming<proto::Letters>>,
    ) -> std::result::Result<Response<Self::SendStream>, Status> {
        let hub = self.hub()?;
        let mut letters = request.into_inner();
        let first = letters.message().await?.and_then(|mut together| together.letters.pop());
        let Some(What::Hello(hello)) = first.and_then(|letter| letter.what) else {
            return Err(Status::invalid_argument("Letter.hello: a stream begins with whose it is"));
        };
        let here = (&hub.cluster, hub.me.0);
        if (&hello.cluster, hello.to) != here {
            let why = format!(
                "Hello: this is server {} of the cluster {:?}, and not server {} of {:?}",
                here.1, here.0, hello.to, hello.cluster
            );
            return Err(Status::failed_precondition(why));
        }
        let (sender, unheard) = channel(UNHEARD, UNHEARD_BYTES);
        let (chain, from) = (hello.chain, ServerId(hello.from));
        let (answer, answers) = mpsc::channel(1);
        let taking = move || {
            // Waits for what is heard of a stream before.
            let (stream, own) = hub.stream(&chain, from);
            Arc::new(Hearing { hub: Arc::downgrade(&hub), chain, from, stream, own, behind: AtomicUsize::new(0) })
        };
        let hearing = tokio::task::spawn_blocking(taking).await.map_err(|error| Status::internal(error.to_string()))?;
        let hears = Arc::clone(&hearing);
        std::thread::Builder::new()
            .name("esker-letters".into())
            .spawn(move || hears.hear(unheard))
            .map_err(|error| Status::resource_exhausted(error.to_string()))?;
        tokio::spawn(async move {
            let ended = tokio::select! {
                ended = hearing.take(letters, sender) => ended,
                () = answer.closed() => return,
            };
            if let Err(status) = ended {
                if status.code() == Code::InvalidArgument {
                    tracing::error!(%from, %status, "a letter makes no sense; its stream is ended");
                }
                // The peer may be gone.
                let _ = answer.send(Err(status)).await;
            }
        });
        Ok(Response::new(ReceiverStream::new(answers)))
    }

    async fn pages(
        &self,
        request: Request<proto::PagesRequest>,
    ) -> std::result::Result<Response<proto::PagesResponse>, Status> {
        let (hub, request) = (self.hub()?, request.into_inner());
        waiting(move || hub.copies.pages(request)).await
    }

    async fn content(
        &self,
        request: Request<proto::ContentRequest>,
    ) -> std::result::Result<Response<proto::ContentResponse>, Status> {
        let (hub, request) = (self.hub()?, request.into_inner());
        waiting(move || hub.copies.content(request)).await
    }

    async fn end_copy(
        &self,
        request: Request<proto::EndCopyRequest>,
    ) -> std::result::Result<Response<proto::EndCopyResponse>, Status> {
        let (hub, request) = (self.hub()?, request.into_inner());
        hub.copies.end(request.copy);
        if request.failed {
            let pause = if request.refused { SOON } else { PAUSE };
            hub.begin_later(request.chain, ServerId(request.server), pause);
        }
        Ok(Response::new(proto::EndCopyResponse {}))
    }
}

/// On a thread that may wait for the store.
async fn waiting<T: Send + 'static>(
    work: impl FnOnce() -> std::result::Result<T, Status> + Send + 'static,
) -> std::result::Result<Response<T>, Status> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| Status::internal(error.to_string()))?.map(Response::new)
}
