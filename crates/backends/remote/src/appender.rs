//! Many appends under way on one stream of a server: what gathers while a frame is being sent goes with the next.
//!
//! append → gathered → room on the connection: a frame of what is there → answers, one for many
//! → each append its own
//!
//! No append waits for more to come: one alone is sent alone. But the tasks that are ready to append on the same thread
//! have their turn before a frame is made.
//!
//! Invariants:
//! 1. At most `in_flight_max` appends are gathered or under way; more wait for room.
//! 2. Appends are applied in the order in which they had room.
//! 3. When the stream ends, all that are under way are told that they may or may not be there, and later ones that they
//!    are not.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use esker_log::Record;
use esker_wire::log::{APPENDS_MAX, encode_record};
use esker_wire::proto::log as proto;
use esker_wire::proto::log::answered::Outcome as Each;
use esker_wire::proto::log::append_stream_response::Outcome;
use esker_wire::proto::log::log_client::LogClient;
use parking_lot::Mutex;
use prost::Message as _;
use tokio::sync::{Semaphore, oneshot};
use tokio_stream::Stream;
use tonic::client::GrpcService;
use tonic::codegen::{Body, Bytes, StdError};
use tonic::{Code, Status, Streaming};

/// Bytes of a frame's entries, at most, where it holds more than one.
const FRAME_BYTES: usize = 1 << 20;

/// Why an append has no position.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AppendError {
    /// The server says that it failed, and how: see the errors in `log.proto`.
    #[error("{message}")]
    Failed {
        /// The gRPC status code.
        code: Code,
        /// The name of the error.
        error: String,
        /// The server's words.
        message: String,
        /// The position that it is about.
        position: Option<u64>,
    },
    /// The stream ended before the answer: the entry may or may not be there.
    #[error("the stream of appends ended before the answer: {0}")]
    Lost(String),
    /// The stream had ended before: the entry is not there.
    #[error("the stream of appends has ended: {0}")]
    Ended(String),
}

type Answer = oneshot::Sender<Result<u64, AppendError>>;

#[derive(Default)]
struct State {
    /// To be sent, and the bytes of each.
    gathered: VecDeque<(proto::Record, usize, Answer)>,
    /// Sent, by tag from `first` on; what was answered is `None`.
    under_way: VecDeque<Option<Answer>>,
    first: u64,
    /// Who sends, when there is nothing to be sent.
    sender: Option<Waker>,
    /// There are no more appenders.
    closed: bool,
    /// Why the stream has ended.
    ended: Option<String>,
}

struct Shared {
    state: Mutex<State>,
    room: Semaphore,
    /// Appends in a frame, at most; 0: the server takes none.
    appends_max: AtomicUsize,
}

/// Appends to a log, many under way on one stream. Cloning gives another handle of the same stream, which ends when all
/// of them are gone.
#[derive(Clone)]
pub struct Appender {
    open: Arc<Open>,
}

impl Appender {
    /// Opens a stream of appends to `log`, of which at most `in_flight_max` (from 1) are under way. It is served by
    /// tasks of the runtime that this is called on.
    ///
    /// # Errors
    /// What the server answers to the call.
    pub async fn open<T>(mut client: LogClient<T>, log: &str, in_flight_max: usize) -> Result<Self, Status>
    where
        T: GrpcService<tonic::body::Body>,
        T::Error: Into<StdError>,
        T::ResponseBody: Body<Data = Bytes> + Send + 'static,
        <T::ResponseBody as Body>::Error: Into<StdError> + Send,
    {
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            room: Semaphore::new(in_flight_max.clamp(1, Semaphore::MAX_PERMITS)),
            appends_max: AtomicUsize::new(0),
        });
        let open = Arc::new(Open(Arc::clone(&shared)));
        let frames = Frames { shared: Arc::clone(&shared), log: log.to_owned(), others_had_their_turn: false };
        let answers = client.append_stream(frames).await?;
        let told = answers.metadata().get(APPENDS_MAX).and_then(|told| told.to_str().ok()?.parse().ok());
        shared.appends_max.store(told.unwrap_or(0), Ordering::Relaxed);
        tokio::spawn(read(shared, answers.into_inner()));
        Ok(Self { open })
    }

    /// Appends an entry; its position, when it is durable. Waits for room first. An append whose future is dropped
    /// after that is made all the same.
    ///
    /// # Errors
    /// What the server says of this append, or that the stream has ended.
    pub async fn append(&self, record: Record) -> Result<u64, AppendError> {
        let shared = &self.open.0;
        if let Ok(room) = shared.room.acquire().await {
            // It is free again when the append is answered.
            room.forget();
        }
        let (answer, answered) = oneshot::channel();
        let sender = {
            let mut state = shared.state.lock();
            if let Some(why) = &state.ended {
                return Err(AppendError::Ended(why.clone()));
            }
            let record = encode_record(record);
            let bytes = record.encoded_len();
            state.gathered.push_back((record, bytes, answer));
            state.sender.take()
        };
        if let Some(sender) = sender {
            sender.wake();
        }
        // Whatever ends the stream answers first.
        answered.await.unwrap_or_else(|_| Err(AppendError::Lost("it was not answered".into())))
    }
}

/// Ends the stream when the last handle is gone.
struct Open(Arc<Shared>);

impl Drop for Open {
    fn drop(&mut self) {
        let sender = {
            let mut state = self.0.state.lock();
            state.closed = true;
            state.sender.take()
        };
        if let Some(sender) = sender {
            sender.wake();
        }
    }
}

/// Requests as the connection has room for them.
struct Frames {
    shared: Arc<Shared>,
    /// Empty once it was named.
    log: String,
    others_had_their_turn: bool,
}

impl Stream for Frames {
    type Item = proto::AppendRequest;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<proto::AppendRequest>> {
        let this = &mut *self;
        let mut state = this.shared.state.lock();
        if state.gathered.is_empty() {
            if state.closed || state.ended.is_some() {
                return Poll::Ready(None);
            }
            this.others_had_their_turn = false;
            state.sender = Some(cx.waker().clone());
            return Poll::Pending;
        }
        if !std::mem::replace(&mut this.others_had_their_turn, true) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        this.others_had_their_turn = false;
        let max = this.shared.appends_max.load(Ordering::Relaxed);
        let tag = state.first + state.under_way.len() as u64;
        let (mut records, mut bytes) = (Vec::with_capacity(state.gathered.len().min(max.max(1))), 0);
        // One that is too large goes alone, and takes no other with it.
        while records.len() < max.max(1)
            && let Some((record, length, answer)) =
                state.gathered.pop_front_if(|(_, length, _)| records.is_empty() || bytes + *length <= FRAME_BYTES)
        {
            bytes += length;
            records.push(record);
            state.under_way.push_back(Some(answer));
        }
        drop(state);
        let log = std::mem::take(&mut this.log);
        // One that goes alone has the short shape, and so has its answer.
        let record = if records.len() == 1 { records.pop() } else { None };
        Poll::Ready(Some(proto::AppendRequest { log, record, tag, records, ..Default::default() }))
    }
}

async fn read(shared: Arc<Shared>, mut answers: Streaming<proto::AppendStreamResponse>) {
    // Also when the task is dropped with its runtime, or panics: no append waits for ever.
    let mut ending = Ending { shared, why: "its runtime was shut down".to_owned() };
    ending.why = loop {
        match answers.message().await {
            Ok(Some(answer)) => ending.shared.answered(answer),
            Ok(None) => break "the server has ended it".to_owned(),
            Err(status) => break format!("{:?}: {}", status.code(), status.message()),
        }
    };
}

/// Tells all appends that the stream has ended, when it is dropped.
struct Ending {
    shared: Arc<Shared>,
    why: String,
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.shared.end(&self.why);
    }
}

fn failed(failure: proto::Failure) -> AppendError {
    let code = Code::from_i32(i32::try_from(failure.code).unwrap_or(i32::MAX));
    AppendError::Failed { code, error: failure.error, message: failure.message, position: failure.position }
}

impl Shared {
    fn answered(&self, answer: proto::AppendStreamResponse) {
        match answer.outcome {
            Some(Outcome::Appended(done)) => self.tell(answer.tag, 1, |_| Ok(done.position)),
            Some(Outcome::Failed(failure)) => self.tell(answer.tag, 1, |_| Err(failed(failure.clone()))),
            None => {}
        }
        for proto::Answered { tag, count, outcome } in answer.answered {
            match outcome {
                Some(Each::Appended(done)) => self.tell(tag, count, |place| Ok(done.position.wrapping_add(place))),
                Some(Each::Failed(failure)) => self.tell(tag, count, |_| Err(failed(failure.clone()))),
                None => {}
            }
        }
    }

    /// Tells so many appends from `tag` on what became of each.
    fn tell(&self, tag: u64, count: u32, outcome: impl Fn(u64) -> Result<u64, AppendError>) {
        let mut told = Vec::new();
        {
            let mut state = self.state.lock();
            let Some(from) = tag.checked_sub(state.first).and_then(|from| usize::try_from(from).ok()) else { return };
            let waiting = state.under_way.iter_mut().skip(from).take(count as usize).enumerate();
            told.extend(waiting.filter_map(|(place, answer)| Some((place as u64, answer.take()?))));
            while state.under_way.front().is_some_and(Option::is_none) {
                state.under_way.pop_front();
                state.first += 1;
            }
        }
        self.room.add_permits(told.len());
        for (place, answer) in told {
            // One that has given up is not told.
            let _ = answer.send(outcome(place));
        }
    }

    fn end(&self, why: &str) {
        let (gathered, under_way, sender) = {
            let mut state = self.state.lock();
            state.ended = Some(why.to_owned());
            (std::mem::take(&mut state.gathered), std::mem::take(&mut state.under_way), state.sender.take())
        };
        // Those who wait for room are told as well.
        self.room.close();
        for answer in under_way.into_iter().flatten() {
            let _ = answer.send(Err(AppendError::Lost(why.to_owned())));
        }
        for (.., answer) in gathered {
            let _ = answer.send(Err(AppendError::Ended(why.to_owned())));
        }
        if let Some(sender) = sender {
            sender.wake();
        }
    }
}
