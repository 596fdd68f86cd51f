//! A connection from its acceptance to its end: one call after the other.
//!
//! accept → a stranger → TLS → head of the first call → a place among the known → [`Decoder`] → the
//! service → answer
//!
//! Invariants:
//! 1. Calls are answered in their order, one at a time; what is not read yet waits with the client.
//! 2. A message or an answer of more than [`OWN_BYTES`] holds memory of the server's, a message as much as has come of
//!    it and as much again, and not for longer than `message_seconds`. What a call may read has memory before it is
//!    read, until its answer is made; see [`spread`].
//! 3. A stranger holds no more than [`OWN_BYTES`].

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch};
use tokio::time::{timeout, timeout_at};

use super::call::{Asked, Procedure};
use super::config::Config;
use super::counts::ThriftCounts;
use super::decode::{Decoded, Decoder, Message};
use super::encode::{Exception, ExceptionKind, Given, encode};
use super::guest::Guest;
use super::memory::{HeldMemory, MessageMemory, ThriftMemory};
use super::service::KeyService;
use super::shape::{MessageKind, Shape};
use super::shares::Shares;
use super::spread::{self, Means};
use crate::front::audit;
use crate::front::strangers::Stranger;

/// Bytes that are read at once, or more of a long message.
const READ_BYTES: usize = 16 << 10;
/// Bytes that each connection may hold by itself, of what it has sent and of what it is sent.
const OWN_BYTES: usize = 2 * READ_BYTES;
/// How long what a client still sends is passed over when it was told why its connection ends, and how many bytes: else
/// the system would take back what it was told.
const PARTING: Duration = Duration::from_secs(2);
const PARTING_BYTES_MAX: u64 = 64 << 20;

/// What all connections share.
pub(super) struct Common {
    pub(super) config: Config,
    pub(super) service: Arc<KeyService>,
    pub(super) counts: Arc<ThriftCounts>,
    /// Places of known clients.
    pub(super) known: Arc<Semaphore>,
    pub(super) memory: Arc<ThriftMemory>,
    /// That of calls in a cluster of several chains, beside it.
    pub(super) shares: Arc<Shares>,
    /// That of calls which servers of other chains pass on: theirs have memory there, and neither waits for the other.
    pub(super) passed_on: ThriftMemory,
    /// Those of them that have begun.
    pub(super) under_way: UnderWay,
}

/// Calls that have begun and not ended.
#[derive(Default)]
pub(super) struct UnderWay(watch::Sender<usize>);

/// One of them.
pub(super) struct Begun<'c>(&'c UnderWay);

impl UnderWay {
    /// One begins; it ends with what is returned.
    pub(super) fn begin(&self) -> Begun<'_> {
        self.0.send_modify(|count| *count += 1);
        Begun(self)
    }

    /// Waits until none is.
    pub(super) async fn ended(&self) {
        // The sender is here.
        let _ = self.0.subscribe().wait_for(|count| *count == 0).await;
    }
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        self.0.0.send_modify(|count| *count -= 1);
    }
}

/// A stranger's place, and what ends it.
pub(super) struct Stay {
    pub(super) stranger: Stranger,
    pub(super) ended: oneshot::Receiver<()>,
}

impl Stay {
    /// Does something for as long as a stranger may stay.
    ///
    /// # Errors
    /// It had to make room, or its time is over.
    pub(super) async fn within<T>(&mut self, work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
        let until = self.stranger.until().into();
        tokio::select! {
            done = work => done,
            _ = &mut self.ended => Err(io::Error::new(io::ErrorKind::TimedOut, "made room for another (strangers_max)")),
            () = tokio::time::sleep_until(until) => {
                self.stranger.took_too_long();
                Err(io::Error::new(io::ErrorKind::TimedOut, "no call in time (stranger_seconds)"))
            }
        }
    }
}

/// A connection.
pub(super) struct Conversation<S> {
    common: Arc<Common>,
    stream: S,
    guest: Guest,
    /// While it is a stranger's.
    place: Option<Stay>,
    known: Option<OwnedSemaphorePermit>,
    decoder: Decoder,
    input: BytesMut,
    memory: MessageMemory,
    stopping: watch::Receiver<bool>,
}

/// Whether a connection goes on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Then {
    GoesOn,
    Ends,
    /// There was no memory for its message in time.
    HasNoMemory,
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Conversation<S> {
    pub(super) fn new(
        common: &Arc<Common>,
        stream: S,
        guest: Guest,
        place: Stay,
        stopping: watch::Receiver<bool>,
    ) -> Self {
        let (input, memory) = (BytesMut::new(), MessageMemory::default());
        let (common, place, decoder) = (Arc::clone(common), Some(place), Decoder::new());
        Self { common, stream, guest, place, known: None, decoder, input, memory, stopping }
    }

    /// Answers calls until the client goes, or has to.
    ///
    /// # Errors
    /// Why it broke off.
    pub(super) async fn run(mut self) -> io::Result<()> {
        // When the message that is read began.
        let mut since = None;
        loop {
            let decoded = self.decoder.next(&self.input);
            if self.known.is_none()
                && (self.decoder.has_begun() || matches!(decoded, Ok(Decoded::Message(_))))
                && let Err(exception) = self.admit()
            {
                let message = if let Ok(Decoded::Message(message)) = &decoded { Some(message) } else { None };
                return self.part(message, &exception).await;
            }
            match decoded {
                Ok(Decoded::Message(message)) => {
                    since = None;
                    if self.answer(message).await? == Then::Ends {
                        break;
                    }
                }
                Ok(Decoded::Busy) => tokio::task::yield_now().await,
                Ok(Decoded::Nothing(len)) => self.input.advance(len),
                Ok(Decoded::More(more)) => {
                    if !self.input.is_empty() {
                        since.get_or_insert_with(Instant::now);
                    }
                    match self.read(more, since).await? {
                        Then::GoesOn => {}
                        Then::Ends => break,
                        Then::HasNoMemory => {
                            let why = "other clients hold the memory for messages (thrift_memory): try again later";
                            return self.part(None, &Exception::internal(why)).await;
                        }
                    }
                }
                Err(malformed) => {
                    self.common.counts.malformed.fetch_add(1, Ordering::Relaxed);
                    tracing::debug!(peer = self.guest.peer(), %malformed, "a Thrift message is malformed");
                    let exception = Exception::new(ExceptionKind::ProtocolError, malformed.to_string());
                    return self.part(None, &exception).await;
                }
            }
        }
        timeout(self.patience(), self.stream.shutdown()).await.unwrap_or(Ok(()))
    }

    fn patience(&self) -> Duration {
        Duration::from_secs(self.common.config.message_seconds)
    }

    /// Takes the client for a known one.
    fn admit(&mut self) -> Result<(), Exception> {
        let user = self.guest.user()?;
        let permit = Arc::clone(&self.common.known).try_acquire_owned().map_err(|_| {
            let max = self.common.config.connections_max;
            self.common.counts.refused.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(max, "a client is refused: too many connections (thrift_connections)");
            Exception::internal(format!("{max} connections are open (thrift_connections): try again later"))
        })?;
        (self.known, self.place) = (Some(permit), None);
        if let Some(user) = user {
            audit::login(self.guest.peer(), user.name());
        }
        Ok(())
    }

    /// Reads some of the bytes that are missing, of the message that began at `since`.
    async fn read(&mut self, more: usize, since: Option<Instant>) -> io::Result<Then> {
        // Of a long message as much again as has come: who sends nothing holds nothing.
        let wanted = more.min(self.input.len()).max(READ_BYTES);
        let until = since.map(|since| since + self.patience());
        let late = || io::Error::new(io::ErrorKind::TimedOut, "a message took too long (message_seconds)");
        let beside = (self.input.len() + wanted).saturating_sub(OWN_BYTES);
        if !self.memory.has(beside) {
            let left = until.map_or(self.patience(), |until| until.saturating_duration_since(Instant::now()));
            let taking = timeout(left, self.memory.take(beside, &self.common.memory)).await;
            if taking.is_err() || !self.memory.has(beside) {
                return Ok(Then::HasNoMemory);
            }
        }
        self.input.reserve(wanted);
        let is_idle = since.is_none();
        let (stream, input, stopping) = (&mut self.stream, &mut self.input, &mut self.stopping);
        let had = input.len();
        let reading = async {
            // No further than is counted.
            let mut limited = stream.take(wanted as u64);
            let reading = limited.read_buf(input);
            match until {
                None => reading.await,
                Some(until) => timeout_at(until.into(), reading).await.unwrap_or_else(|_| Err(late())),
            }
        };
        let reading = async {
            tokio::select! {
                read = reading => read.map(Some),
                // Nothing is under way.
                _ = stopping.wait_for(|stopping| *stopping), if is_idle => Ok(None),
            }
        };
        let read = match &mut self.place {
            Some(place) => place.within(reading).await,
            None => reading.await,
        };
        match read? {
            Some(0) if had > 0 => Err(io::ErrorKind::UnexpectedEof.into()),
            None | Some(0) => Ok(Then::Ends),
            Some(_) => Ok(Then::GoesOn),
        }
    }

    /// Takes a whole message away, does what it says, and answers it.
    async fn answer(&mut self, message: Message) -> io::Result<Then> {
        let began = Instant::now();
        let bytes = self.input.split_to(message.len).freeze();
        let method = message.method(&bytes).to_vec();
        let procedure = Procedure::of(&method);
        let answer = match message.kind {
            MessageKind::Call | MessageKind::Oneway => self.call(procedure, &message, &bytes).await,
            kind => {
                let why = format!("a message of kind {} is no call", kind.number());
                Err(Exception::new(ExceptionKind::InvalidMessageType, why))
            }
        };
        let (shape, sequence, kind) = (message.shape, message.sequence, message.kind);
        // What came is done with; a long message's memory is given back.
        drop((message, bytes));
        self.memory = MessageMemory::default();
        if self.input.capacity() > OWN_BYTES {
            self.input = BytesMut::from(&self.input[..]);
        }
        let answer = self.hold(answer);
        self.common.counts.note(procedure, began.elapsed(), answer.is_err());
        if kind == MessageKind::Oneway {
            return Ok(Then::GoesOn);
        }
        let (encoded, held) = match answer {
            // What was read is let go, with its memory, before what it was made into is sent.
            Ok((given, _read, held)) => (encode(shape, &method, sequence, &Ok(given)), held),
            Err(exception) => (encode(shape, &method, sequence, &Err(exception)), HeldMemory::new()),
        };
        self.write(encoded).await?;
        drop(held);
        let ends = matches!(kind, MessageKind::Reply | MessageKind::Exception) || *self.stopping.borrow();
        Ok(if ends { Then::Ends } else { Then::GoesOn })
    }

    async fn call(
        &mut self,
        procedure: Option<Procedure>,
        message: &Message,
        bytes: &bytes::Bytes,
    ) -> Result<(Given, HeldMemory), Exception> {
        let common = &self.common;
        let service = Arc::clone(&common.service);
        let procedure = procedure.ok_or_else(|| {
            let name = String::from_utf8_lossy(message.method(bytes)).into_owned();
            Exception::new(ExceptionKind::UnknownMethod, format!("there is no method {name:?}"))
        })?;
        let asked = Asked::of(procedure, message, bytes, service.kind())?;
        self.guest.permit(service.name(), &asked)?;
        let (counts, memory, shares) =
            (Arc::clone(&common.counts), Arc::clone(&common.memory), Arc::clone(&common.shares));
        let (patience, stopping) = (self.patience(), self.stopping.clone());
        let means = Means { service, counts, memory, shares, patience, stopping };
        spread::run(means, asked, (bytes.len(), &mut self.memory)).await
    }

    /// Memory for a long answer, beside that of what was read for it.
    fn hold(
        &self,
        answer: Result<(Given, HeldMemory), Exception>,
    ) -> Result<(Given, HeldMemory, HeldMemory), Exception> {
        let (given, read) = answer?;
        let bytes = given.payload_bytes();
        let held = if bytes <= OWN_BYTES { HeldMemory::new() } else { vec![self.common.memory.to_answer(bytes)?] };
        Ok((given, read, held))
    }

    /// Tells the client why its connection ends, and ends it. A stranger has no longer for that than he had before.
    async fn part(&mut self, message: Option<&Message>, exception: &Exception) -> io::Result<()> {
        let mut place = self.place.take();
        let parting = async {
            self.tell(message, exception).await?;
            let (stream, mut rest) = (&mut self.stream, [0; 4 << 10]);
            let passing_over = async {
                stream.shutdown().await?;
                let mut left = stream.take(PARTING_BYTES_MAX);
                while left.read(&mut rest).await? > 0 {}
                Ok(())
            };
            timeout(PARTING, passing_over).await.unwrap_or(Ok(()))
        };
        match &mut place {
            Some(place) => place.within(parting).await,
            None => parting.await,
        }
    }

    /// Tells the client of an error, after which the connection ends: in answer to this message, or to what has begun.
    async fn tell(&mut self, message: Option<&Message>, exception: &Exception) -> io::Result<()> {
        let answer = Err(exception.clone());
        let told = match message {
            Some(message) if message.kind == MessageKind::Oneway => None,
            Some(message) => Some(encode(message.shape, message.method(&self.input), message.sequence, &answer)),
            None => {
                let begun = self.decoder.begun(&self.input);
                let shape: Option<Shape> = self.decoder.shape();
                match (shape, begun) {
                    (_, Some((_, MessageKind::Oneway, _))) | (None, _) => None,
                    (Some(shape), Some((method, _, sequence))) => Some(encode(shape, method, sequence, &answer)),
                    (Some(shape), None) => Some(encode(shape, b"", 0, &answer)),
                }
            }
        };
        match told {
            Some(told) => self.write(told).await,
            None => Ok(()),
        }
    }

    async fn write(&mut self, bytes: Vec<u8>) -> io::Result<()> {
        let patience = self.patience();
        let stream = &mut self.stream;
        let writing = async {
            stream.write_all(&bytes).await?;
            stream.flush().await
        };
        let late = || io::Error::new(io::ErrorKind::TimedOut, "an answer is not taken (message_seconds)");
        timeout(patience, writing).await.unwrap_or_else(|_| Err(late()))
    }
}
