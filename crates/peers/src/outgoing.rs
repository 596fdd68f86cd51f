//! What goes to one server for one chain: a queue, and the stream that empties it.
//!
//! send → queue → [`Outgoing::run`]: connect → greeting → letters … → it ends, what waits is lost → again
//!
//! Invariants:
//! 1. The queue takes letters only while there is a stream: what is sent without one is lost, as on a connection that
//!    breaks.
//! 2. Once there is a stream the node is told, and says anew where it stands.
//! 3. More than a bound of bytes that wait ends the stream.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use esker_chain::{Message, Operation, Weight};
use esker_wire::proto::chain as proto;
use esker_wire::proto::chain::letter::What;
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc};
use tokio_stream::wrappers::ReceiverStream;

use crate::letters::letter;

/// Letters that are handed to the stream before it has asked for them.
const AHEAD: usize = 16;
/// Letters are sent together up to this; the last may be longer.
const TOGETHER_BYTES: usize = 256 << 10;
/// A letter without payload takes this of the queue.
const LETTER_BYTES: usize = 64;
/// From one try to connect to the next.
const AGAIN: Duration = Duration::from_millis(50);
const AGAIN_MAX: Duration = Duration::from_secs(1);

enum Waiting {
    Message(Message<Operation>),
    Letter(proto::Letter),
}

impl Waiting {
    fn bytes(&self) -> usize {
        match self {
            Self::Message(Message::Forward { operation, .. }) => LETTER_BYTES + operation.weight(),
            _ => LETTER_BYTES,
        }
    }
}

#[derive(Default)]
struct Queue {
    letters: VecDeque<Waiting>,
    bytes: usize,
    is_open: bool,
}

/// The way to one server, for one chain.
pub(crate) struct Outgoing {
    queue: Mutex<Queue>,
    more: Notify,
    ended: AtomicBool,
    waiting_bytes_max: usize,
}

impl Outgoing {
    /// No more than `waiting_bytes_max` bytes of letters wait.
    pub(crate) fn new(waiting_bytes_max: usize) -> Arc<Self> {
        Arc::new(Self {
            queue: Mutex::default(),
            more: Notify::new(),
            ended: AtomicBool::new(false),
            waiting_bytes_max,
        })
    }

    /// Sends a message of the replica.
    pub(crate) fn send(&self, message: Message<Operation>) {
        self.push(Waiting::Message(message));
    }

    /// Sends another letter.
    pub(crate) fn post(&self, what: What) {
        self.push(Waiting::Letter(proto::Letter { what: Some(what) }));
    }

    fn push(&self, waiting: Waiting) {
        let mut queue = self.queue.lock();
        if !queue.is_open {
            return;
        }
        queue.bytes += waiting.bytes();
        if queue.bytes > self.waiting_bytes_max {
            // A server so slow is told of a new stream, and sent what it lacks.
            *queue = Queue::default();
        } else {
            queue.letters.push_back(waiting);
        }
        drop(queue);
        self.more.notify_one();
    }

    /// Ends [`Outgoing::run`].
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::SeqCst);
        *self.queue.lock() = Queue::default();
        self.more.notify_one();
    }

    /// Whether there is a stream.
    pub(crate) fn is_open(&self) -> bool {
        self.queue.lock().is_open
    }

    fn has_ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }

    /// Those that wait, as many as are sent together; `None`: the stream is to end.
    fn next(&self) -> Option<Vec<Waiting>> {
        let mut queue = self.queue.lock();
        if !queue.is_open {
            return None;
        }
        let (mut together, mut bytes) = (Vec::new(), 0);
        while bytes < TOGETHER_BYTES
            && let Some(next) = queue.letters.pop_front()
        {
            bytes += next.bytes();
            together.push(next);
        }
        queue.bytes -= bytes;
        Some(together)
    }

    /// Keeps a stream to the server. `connect` makes a client; `open` is called once there is a stream.
    pub(crate) async fn run<C>(self: Arc<Self>, hello: proto::Hello, connect: C, open: Arc<dyn Fn() + Send + Sync>)
    where
        C: AsyncFn() -> Result<proto::replication_client::ReplicationClient<tonic::transport::Channel>, String>,
    {
        let mut pause = AGAIN;
        while !self.has_ended() {
            match connect().await {
                Ok(client) => {
                    if self.stream(client, hello.clone(), &open).await {
                        pause = AGAIN;
                    }
                }
                Err(why) => tracing::debug!(server = hello.to, why, "a peer cannot be reached"),
            }
            *self.queue.lock() = Queue::default();
            if !self.has_ended() {
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(AGAIN_MAX);
            }
        }
    }

    /// One stream, until it ends; whether something was sent on it.
    async fn stream(
        &self,
        mut client: proto::replication_client::ReplicationClient<tonic::transport::Channel>,
        hello: proto::Hello,
        open: &Arc<dyn Fn() + Send + Sync>,
    ) -> bool {
        let (sender, receiver) = mpsc::channel(AHEAD);
        let to = hello.to;
        let greeting = proto::Letters { letters: vec![proto::Letter { what: Some(What::Hello(hello)) }] };
        if sender.send(greeting).await.is_err() {
            return false;
        }
        let mut answers = match client.send(ReceiverStream::new(receiver)).await {
            Ok(accepted) => accepted.into_inner(),
            Err(status) => {
                tracing::info!(server = to, %status, "a peer does not listen");
                return false;
            }
        };
        self.queue.lock().is_open = true;
        // It steps, which may wait for its store.
        let told = Arc::clone(open);
        drop(tokio::task::spawn_blocking(move || told()));
        let mut sent = false;
        'stream: loop {
            // Asked before the queue is looked at: what comes in between is told of.
            let more = self.more.notified();
            loop {
                let Some(together) = self.next() else { break 'stream };
                if together.is_empty() {
                    break;
                }
                let one = |waiting| match waiting {
                    Waiting::Message(message) => letter(message),
                    Waiting::Letter(letter) => letter,
                };
                let letters = together.into_iter().map(one).collect();
                if sender.send(proto::Letters { letters }).await.is_err() {
                    break 'stream;
                }
                sent = true;
            }
            tokio::select! {
                () = more => {}
                () = sender.closed() => break 'stream,
                ended = answers.message() => {
                    if let Err(status) = ended {
                        tracing::info!(server = to, %status, "a stream to a peer has ended");
                    }
                    break 'stream;
                }
            }
        }
        sent
    }
}
