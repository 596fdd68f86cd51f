//! Many appends on one stream: applied in the order in which they come, answered when durable.
//!
//! request, or frame of many → applied, or failed → (tags, positions, barrier) → barrier reached → answer with
//! tags: of what came in frames one for all that is reached
//!
//! All of it is done by the task that writes the stream's answers, when it asks for the next one: no append goes from
//! task to task. Barriers of a store come in the order of its commits, so that awaiting them in the order of the
//! appends delays none.
//!
//! Invariants:
//! 1. At most `in_flight_max` appends of a stream are applied and not answered, and one message is held that is not
//!    applied, or in part: then nothing more of it is read, and HTTP/2 stops the client. So it is while the client does
//!    not read its answers.
//! 2. A stream that the client has closed is answered to its end.
//! 3. Nothing is appended to a log that the stream's user may not write; his rights are those at its begin.
//! 4. Appends of a frame fail one by one: what befalls one of them changes no other's outcome.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use bytes::Bytes;
use esker_log::{BATCH_BYTES_MAX, BATCH_MAX, Record, STREAMS_MAX};
use esker_store::Barrier;
use esker_wire::log::{decode_durability, decode_record};
use esker_wire::proto::log as proto;
use esker_wire::proto::log::answered::Outcome as Each;
use esker_wire::proto::log::append_stream_response::Outcome;
use tokio_stream::Stream;
use tonic::{Status, Streaming};

use super::caller::{Access, may};
use super::service::{Done, LogService};
use super::status::Told;
use crate::front::users::{Face, User};

/// Answers of a stream of appends.
pub(crate) type Answers = Pin<Box<dyn Stream<Item = Result<proto::AppendStreamResponse, Status>> + Send>>;

/// Appends of one stream that are applied before other tasks have their turn.
const TURN: usize = 64;
/// Appends of a frame that are applied at a time, and about the bytes of their data.
const PORTION: usize = TURN;
const PORTION_BYTES: usize = 256 << 10;
/// What one message answers, at most, counted in runs of appends that can be told together.
const ANSWERED_MAX: usize = 256;

/// Appends that wait for more than their sync.
type Applying = Pin<Box<dyn Future<Output = Vec<(usize, Done)>> + Send>>;

/// Appends that are applied, or failed.
struct Applied {
    /// Of the first; those of the others count on, and so do their positions.
    tag: u64,
    count: usize,
    /// Whether they came in a frame.
    framed: bool,
    outcome: Result<(u64, bool), Told>,
    barrier: Option<Barrier>,
    /// Who is woken when the barrier is reached, once that was asked for.
    woken: Option<Waker>,
}

impl Applied {
    fn new((tag, count): (u64, usize), framed: bool, done: Done) -> Self {
        let (outcome, barrier) = match done {
            Ok(completion) => {
                let (outcome, barrier) = completion.into_parts();
                (outcome.map_err(Told::from), barrier)
            }
            Err(told) => (Err(told), None),
        };
        if let Some(barrier) = &barrier
            && barrier.state().is_none()
        {
            // One more client that waits for a sync.
            barrier.want_for(1);
        }
        Self { tag, count, framed, outcome, barrier, woken: None }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Told>> {
        let Some(barrier) = &self.barrier else { return Poll::Ready(Ok(())) };
        if self.woken.as_ref().is_some_and(|woken| woken.will_wake(cx.waker())) {
            // Asked for already: a barrier keeps every waker that it is given, also the same one again.
            return self.state().map_or(Poll::Pending, Poll::Ready);
        }
        let polled = barrier.poll(cx).map_err(Told::from);
        if polled.is_pending() {
            self.woken = Some(cx.waker().clone());
        }
        polled
    }

    /// Whether the barrier is reached; `None` if it is not.
    fn state(&self) -> Option<Result<(), Told>> {
        let Some(barrier) = &self.barrier else { return Some(Ok(())) };
        Some(barrier.state()?.map_err(Told::from))
    }

    /// What came of it, once the barrier was reached.
    fn finish(self, reached: Result<(), Told>) -> Result<proto::AppendResponse, Told> {
        let done = self.outcome.and_then(|done| reached.map(|()| done));
        done.map(|(position, already_there)| proto::AppendResponse { position, already_there })
    }
}

/// Appends that came in one message.
struct Frame {
    /// Of the next.
    tag: u64,
    log: String,
    records: std::vec::IntoIter<proto::Record>,
    writer: Option<proto::WriterNumber>,
    applied_only: bool,
}

impl Frame {
    /// Refuses what is no frame, or too large a one.
    fn check(request: &proto::AppendRequest) -> Result<(), Told> {
        if request.record.is_some() {
            return Err(Told::invalid("a request has a record, or a frame of records, and not both"));
        }
        if request.records.len() > BATCH_MAX {
            let count = request.records.len();
            return Err(Told::invalid(format!("a frame of {count} appends, expected 1 to {BATCH_MAX} (BATCH_MAX)")));
        }
        // A name takes some 30 bytes beside its own: however many come in a few bytes each, that is not held.
        let names = || request.records.iter().flat_map(|record| &record.streams);
        if names().count() > STREAMS_MAX * BATCH_MAX {
            let count = names().count();
            return Err(Told::invalid(format!(
                "a frame with {count} names of streams, expected {STREAMS_MAX} for each append"
            )));
        }
        let data: usize = request.records.iter().map(|record| record.data.len()).sum();
        let bytes = data + names().map(Bytes::len).sum::<usize>();
        if bytes > BATCH_BYTES_MAX {
            let why = format!("a frame of {bytes} bytes, which exceed BATCH_BYTES_MAX = {BATCH_BYTES_MAX}");
            return Err(Told::invalid(why));
        }
        Ok(())
    }

    /// The next appends, up to `room` of them and a portion.
    fn portion(&mut self, room: usize) -> Vec<Record> {
        let (mut portion, mut bytes) = (Vec::with_capacity(room.min(PORTION).min(self.records.len())), 0);
        while portion.len() < room.min(PORTION)
            && bytes < PORTION_BYTES
            && let Some(record) = self.records.next()
        {
            bytes += record.data.len();
            portion.push(decode_record(Some(record)));
        }
        portion
    }
}

/// Answers `requests` from now on.
pub(crate) fn start(service: LogService, user: Arc<User>, requests: Streaming<proto::AppendRequest>) -> Answers {
    let mut stopping = service.stopping.clone();
    let stopped = Box::pin(async move { drop(stopping.wait_for(|stopping| *stopping).await) });
    Box::pin(Appending {
        service,
        user,
        requests,
        stopped,
        log: String::new(),
        frame: None,
        applying: None,
        applied: VecDeque::new(),
        in_flight: 0,
        ended: None,
    })
}

struct Appending {
    service: LogService,
    user: Arc<User>,
    requests: Streaming<proto::AppendRequest>,
    /// Until the server stops.
    stopped: Pin<Box<dyn Future<Output = ()> + Send>>,
    /// That the last request named.
    log: String,
    /// What is left of a frame.
    frame: Option<Frame>,
    /// Appends that cannot be applied at once, the tag of the first, and whether they came in a frame.
    applying: Option<(u64, bool, Applying)>,
    /// In the order of the requests.
    applied: VecDeque<Applied>,
    /// Appends in it.
    in_flight: usize,
    /// No more requests are read; what the client is told behind the last answer.
    ended: Option<Option<Status>>,
}

impl Stream for Appending {
    type Item = Result<proto::AppendStreamResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        let mut turn = 0;
        while turn < TURN {
            if let Some(first) = this.applied.front_mut()
                && let Poll::Ready(reached) = first.poll(cx)
            {
                return Poll::Ready(this.answer(reached).map(Ok));
            }
            if let Some(told) = &mut this.ended
                && this.applying.is_none()
                && this.frame.is_none()
            {
                if !this.applied.is_empty() {
                    return Poll::Pending;
                }
                return Poll::Ready(told.take().map(Err));
            }
            if this.in_flight >= this.service.in_flight_max {
                return Poll::Pending;
            }
            let before = this.in_flight;
            ready!(this.poll_request(cx));
            turn += (this.in_flight - before).max(1);
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

impl Appending {
    /// The answer of the first that is applied, whose barrier was reached, and of those behind it that were reached
    /// too, if they came in frames.
    fn answer(&mut self, reached: Result<(), Told>) -> Option<proto::AppendStreamResponse> {
        let first = self.take()?;
        if !first.framed {
            let tag = first.tag;
            let outcome = first.finish(reached).map_or_else(|told| Outcome::Failed(told.into()), Outcome::Appended);
            return Some(proto::AppendStreamResponse { tag, outcome: Some(outcome), answered: Vec::new() });
        }
        let mut answered = Vec::new();
        tell(&mut answered, first, reached);
        while answered.len() < ANSWERED_MAX
            && let Some(reached) = self.applied.front().filter(|next| next.framed).and_then(Applied::state)
            && let Some(next) = self.take()
        {
            tell(&mut answered, next, reached);
        }
        Some(proto::AppendStreamResponse { answered, ..Default::default() })
    }

    fn take(&mut self) -> Option<Applied> {
        let first = self.applied.pop_front()?;
        self.in_flight -= first.count;
        Some(first)
    }

    /// Notes what appends came to, whose tags count on from `tag`.
    fn note(&mut self, mut tag: u64, framed: bool, all: Vec<(usize, Done)>) {
        for (count, done) in all {
            self.in_flight += count;
            self.applied.push_back(Applied::new((tag, count), framed, done));
            tag = tag.wrapping_add(count as u64);
        }
    }

    /// Goes on with the next request: more of it is applied or begun, or there are no more.
    fn poll_request(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Some((tag, framed, applying)) = &mut self.applying {
            let (tag, framed, all) = (*tag, *framed, ready!(applying.as_mut().poll(cx)));
            self.applying = None;
            self.note(tag, framed, all);
            return Poll::Ready(());
        }
        if self.frame.is_some() {
            self.go_on();
            return Poll::Ready(());
        }
        if self.stopped.as_mut().poll(cx).is_ready() {
            self.ended = Some(Some(Told::stopping().into()));
            return Poll::Ready(());
        }
        match ready!(Pin::new(&mut self.requests).poll_next(cx)) {
            Some(Ok(request)) => self.begin(request),
            None => self.ended = Some(None),
            // What is under way is still answered, should the client be there to hear it.
            Some(Err(status)) => self.ended = Some(Some(status)),
        }
        Poll::Ready(())
    }

    fn begin(&mut self, mut request: proto::AppendRequest) {
        if request.log.is_empty() {
            request.log.clone_from(&self.log);
        } else if request.log != self.log {
            if let Err(denied) = may(&self.user, "", Face::Log, &request.log, Access::Write) {
                self.ended = Some(Some(denied));
                return;
            }
            self.log.clone_from(&request.log);
        }
        let tag = request.tag;
        if !request.records.is_empty() {
            match Frame::check(&request) {
                Ok(()) => {
                    let proto::AppendRequest { log, records, writer, applied_only, .. } = request;
                    self.frame = Some(Frame { tag, log, records: records.into_iter(), writer, applied_only });
                    self.go_on();
                }
                Err(told) => self.note(tag, true, vec![(request.records.len(), Err(told))]),
            }
            return;
        }
        match self.service.apply_at_once(&request) {
            Some(done) => self.note(tag, false, vec![(1, done)]),
            None => {
                let service = self.service.clone();
                let applying = Box::pin(async move { vec![(1, service.apply_one(request).await)] });
                self.applying = Some((tag, false, applying));
            }
        }
    }

    /// Applies, or begins, the next portion of the frame.
    fn go_on(&mut self) {
        let Some(frame) = &mut self.frame else { return };
        let portion = frame.portion(self.service.in_flight_max - self.in_flight);
        let (tag, count, writer) = (frame.tag, portion.len() as u64, frame.writer.clone());
        let (log, durability) = (frame.log.clone(), decode_durability(frame.applied_only));
        frame.tag = tag.wrapping_add(count);
        if let Some(writer) = &mut frame.writer {
            writer.number = writer.number.saturating_add(count);
        }
        if frame.records.len() == 0 {
            self.frame = None;
        }
        let at_once = if writer.is_none() { self.service.apply_each_at_once(&log, &portion, durability) } else { None };
        match at_once {
            Some(all) => self.note(tag, true, all),
            None => {
                let service = self.service.clone();
                let applying = async move { service.apply_each(log, portion, writer, durability).await };
                self.applying = Some((tag, true, Box::pin(applying)));
            }
        }
    }
}

/// Adds what appends of a frame came to: to the last that is told where it goes on with that.
fn tell(answered: &mut Vec<proto::Answered>, applied: Applied, reached: Result<(), Told>) {
    let (tag, count) = (applied.tag, applied.count as u32);
    let outcome = applied.finish(reached).map_or_else(|told| Each::Failed(told.into()), Each::Appended);
    if let Some(last) = answered.last_mut()
        && last.tag.wrapping_add(last.count.into()) == tag
        && goes_on(last, &outcome)
    {
        last.count += count;
        return;
    }
    answered.push(proto::Answered { tag, count, outcome: Some(outcome) });
}

/// Whether `next` is what `last` says of the append behind it.
fn goes_on(last: &proto::Answered, next: &Each) -> bool {
    match (&last.outcome, next) {
        (Some(Each::Appended(last_is)), Each::Appended(next)) => {
            last_is.position + u64::from(last.count) == next.position && last_is.already_there == next.already_there
        }
        (Some(Each::Failed(last)), Each::Failed(next)) => last == next,
        _ => false,
    }
}
