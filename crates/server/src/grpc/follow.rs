//! Following over a stream: what the face delivers, in messages of several deliveries, no faster than the client reads.
//!
//! written here a moment ago, and durable (by the task itself), else poll (on a thread that may wait) → a message of
//! what is there → channel of two → HTTP/2 · nothing there: until something is written · not durable yet: until it is
//!
//! A follower that waits, for the log, for a sync or for its client, holds a task and no thread.
//!
//! Invariants:
//! 1. What is held for a client is what it asked to read ahead, a message on its way, and two that wait.
//! 2. A client that is gone ends its follower, whatever that waits for.

use std::pin::Pin;
use std::time::{Duration, Instant};

use bytes::Bytes;
use esker_log::{Delivery, Follow, Follower, Log, Next, Start, StreamFollower};
use esker_wire::log as wire;
use esker_wire::proto::log as proto;
use tokio::sync::mpsc;
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use super::lags::Followed;
use super::service::LogService;
use super::status::Told;
use super::waiting::waiting;

/// Messages of a follower.
pub(crate) type Deliveries = Pin<Box<dyn Stream<Item = Result<proto::FollowResponse, Status>> + Send>>;

/// Bytes read ahead, at most.
const AHEAD_BYTES_MAX: usize = 16 << 20;
/// A message is sent when it holds so many deliveries, or about so many bytes.
const DELIVERIES_MAX: usize = 256;
const MESSAGE_BYTES: usize = 256 << 10;
/// Messages that wait for the client to read them.
const UNREAD_MAX: usize = 2;
/// How long a position that was handed out here and is not written yet is waited for before it is looked at: its
/// writer is between two steps, or has failed.
const WRITER_PATIENCE: Duration = Duration::from_millis(10);
/// Longest wait without a look, whatever the follower says.
const PATIENCE_MAX: Duration = Duration::from_secs(30);

/// A follower of a log, or of one of its streams.
enum Tracker {
    All(Follower),
    One(StreamFollower),
}

impl Tracker {
    fn open(log: &Log, start: Start, stream: Option<Bytes>, how: Follow) -> Result<Self, Told> {
        let follower = log.follow(start, how)?;
        Ok(match stream {
            None => Self::All(follower),
            Some(stream) => Self::One(log.follow_stream(stream, follower.position(), how)),
        })
    }

    /// The next delivery, if it is there; `first`: its sync is waited for.
    fn poll(&mut self, first: bool) -> Result<Option<Delivery>, Told> {
        Ok(match self {
            Self::All(follower) if first => follower.poll()?,
            // What is to be sent already does not wait for the sync of what comes next: one after another, they would
            // hold it back until the message is full.
            Self::All(follower) => follower.poll_durable()?,
            Self::One(follower) if first => follower.poll()?,
            Self::One(follower) => follower.poll_durable()?,
        })
    }

    /// What needs no look at the store, up to a message full.
    fn collect_recent(&mut self) -> Result<(Vec<proto::Delivery>, Next), Told> {
        let (handed, next) = match self {
            Self::All(follower) => follower.poll_recent(DELIVERIES_MAX, MESSAGE_BYTES)?,
            Self::One(follower) => follower.poll_recent(DELIVERIES_MAX, MESSAGE_BYTES)?,
        };
        Ok((handed.into_iter().map(wire::encode_delivery).collect(), next))
    }

    fn position(&self) -> u64 {
        match self {
            Self::All(follower) => follower.position(),
            Self::One(follower) => follower.position(),
        }
    }

    fn patience(&self) -> Duration {
        let patience = match self {
            Self::All(follower) => follower.patience(),
            Self::One(follower) => follower.patience(),
        };
        patience.min(PATIENCE_MAX)
    }

    /// What is there, up to a message full; and whether it is the end, being at `until` or at a seal.
    fn collect(&mut self, until: Option<u64>) -> Result<(Vec<proto::Delivery>, bool), Told> {
        let (mut deliveries, mut bytes) = (Vec::new(), 0);
        while deliveries.len() < DELIVERIES_MAX && bytes < MESSAGE_BYTES {
            if until.is_some_and(|until| self.position() >= until) {
                return Ok((deliveries, true));
            }
            let delivery = match self.poll(deliveries.is_empty()) {
                Ok(Some(delivery)) => delivery,
                Ok(None) => break,
                // What came before the failure is delivered first; it is met again.
                Err(_) if !deliveries.is_empty() => break,
                Err(told) => return Err(told),
            };
            let past = match (&delivery, until) {
                (Delivery::Entry(entry), Some(until)) => entry.position >= until,
                _ => false,
            };
            if past {
                return Ok((deliveries, true));
            }
            if let Delivery::Entry(entry) = &delivery {
                bytes += entry.data.len();
            }
            let end = matches!(delivery, Delivery::End { .. });
            deliveries.push(wire::encode_delivery(delivery));
            if end {
                return Ok((deliveries, true));
            }
        }
        Ok((deliveries, false))
    }
}

/// Opens a follower and starts it.
pub(crate) async fn start(service: &LogService, request: proto::FollowRequest) -> Result<Deliveries, Told> {
    let permit = service.followers.clone().try_acquire_owned();
    let Ok(permit) = permit else {
        return Err(Told::busy("too many followers: the server's followers_max is reached"));
    };
    let start = match request.start {
        Some(proto::follow_request::Start::Position(position)) => Start::Position(position),
        Some(proto::follow_request::Start::TimeMs(time)) => Start::TimeMs(time),
        Some(proto::follow_request::Start::Tail(true)) => Start::Tail,
        Some(proto::follow_request::Start::First(true)) | None => Start::First,
        Some(_) => return Err(Told::invalid("start: expected a position, a time, first = true or tail = true")),
    };
    let plain = Follow::default();
    let how = Follow {
        ahead_bytes: match request.ahead_bytes {
            0 => plain.ahead_bytes,
            bytes => AHEAD_BYTES_MAX.min(bytes as usize),
        },
        fill_after_ms: request.fill_after_ms.or(plain.fill_after_ms),
        ..plain
    };
    let (stream, until_tail, name) = (request.stream, request.until_tail, request.log.clone());
    let (tracker, log, until) = service
        .with(request.log, move |log| {
            let until = if until_tail { Some(log.tail()?.position) } else { None };
            Ok((Tracker::open(log, start, stream.clone(), how)?, log.clone(), until))
        })
        .await?;
    let followed = service.names.lags.enter(&name, &log, tracker.position());
    let (messages, unread) = mpsc::channel(UNREAD_MAX);
    let mut stopping = service.stopping.clone();
    tokio::spawn(async move {
        let _permit = permit;
        let stopped = async move { drop(stopping.wait_for(|stopping| *stopping).await) };
        tokio::select! {
            () = run(tracker, log, until, &messages, followed) => {}
            () = messages.closed() => {}
            () = stopped => {
                // A client that does not read is not waited for.
                let _ = messages.try_send(Err(Told::stopping().into()));
            }
        }
    });
    Ok(Box::pin(ReceiverStream::new(unread)))
}

async fn run(
    mut tracker: Tracker,
    log: Log,
    until: Option<u64>,
    messages: &mpsc::Sender<Result<proto::FollowResponse, Status>>,
    followed: Followed,
) {
    // Asked for before the look that it is there for.
    let mut written = None;
    // The position whose writer is waited for, and since when.
    let mut unwritten: Option<(u64, Instant)> = None;
    loop {
        // Room first: what waits for its client reads nothing.
        let Ok(room) = messages.reserve().await else { return };
        if until.is_none() {
            let before = tracker.position();
            let collected = tracker.collect_recent();
            let passed = tracker.position() > before;
            if passed {
                followed.delivered(tracker.position());
            }
            match collected {
                Err(told) => return room.send(Err(told.into())),
                Ok((deliveries, _)) if !deliveries.is_empty() => {
                    room.send(Ok(proto::FollowResponse { deliveries }));
                    continue;
                }
                // All that it has passed is of other streams. Other tasks have their turn.
                Ok((_, Next::Look)) if passed => {
                    tokio::task::yield_now().await;
                    continue;
                }
                Ok((_, Next::Await(barrier))) => match barrier.await {
                    Ok(()) => continue,
                    Err(error) => return room.send(Err(Told::from(error).into())),
                },
                Ok((_, next @ (Next::Tail | Next::Hole))) => match written.take() {
                    None => {
                        written = Some(log.listen());
                        continue;
                    }
                    Some(listener) => {
                        let patience = match next {
                            Next::Hole => {
                                let position = tracker.position();
                                let (_, since) = *unwritten.insert(
                                    unwritten.filter(|(at, _)| *at == position).unwrap_or((position, Instant::now())),
                                );
                                WRITER_PATIENCE.saturating_sub(since.elapsed())
                            }
                            _ => tracker.patience(),
                        };
                        if !patience.is_zero() && tokio::time::timeout(patience, listener).await.is_ok() {
                            continue;
                        }
                        // Nothing for so long that the tail may be another's by now, or the writer has failed.
                    }
                },
                Ok((_, Next::Look)) => {}
            }
        }
        let listener = written.take().unwrap_or_else(|| log.listen());
        let polled = waiting(move || {
            let collected = tracker.collect(until);
            Ok((tracker, collected))
        })
        .await;
        let (again, collected) = match polled {
            Ok(polled) => polled,
            Err(told) => return room.send(Err(told.into())),
        };
        tracker = again;
        match collected {
            Err(told) => return room.send(Err(told.into())),
            Ok((deliveries, end)) => {
                let none = deliveries.is_empty();
                if !none {
                    room.send(Ok(proto::FollowResponse { deliveries }));
                }
                // It may have passed entries of other streams and have nothing to send.
                followed.delivered(tracker.position());
                if end {
                    return;
                }
                if none {
                    // Woken by a write here, or to look for those of others.
                    let _ = tokio::time::timeout(tracker.patience(), listener).await;
                }
            }
        }
    }
}
