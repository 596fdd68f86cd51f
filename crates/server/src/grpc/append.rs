//! Many appends on one stream: applied in the order in which they come, answered when durable.
//!
//! request → applied, or failed → (tag, position, barrier) → barrier reached → answer with the tag
//!
//! All of it is done by the task that writes the stream's answers, when it asks for the next one: no append goes from
//! task to task. Barriers of a store come in the order of its commits, so that awaiting them in the order of the
//! appends delays none.
//!
//! Invariants:
//! 1. At most `in_flight_max` appends of a stream are applied and not answered: then nothing more of it is read, and
//!    HTTP/2 stops the client. So it is while the client does not read its answers.
//! 2. A stream that the client has closed is answered to its end.
//! 3. Nothing is appended to a log that the stream's user may not write; his rights are those at its begin.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use esker_store::Barrier;
use esker_wire::proto::log as proto;
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

/// An append that waits for more than its sync.
type Applying = Pin<Box<dyn Future<Output = Done> + Send>>;

/// An append that is applied, or failed.
struct Applied {
    tag: u64,
    outcome: Result<(u64, bool), Told>,
    barrier: Option<Barrier>,
    /// Who is woken when the barrier is reached, once that was asked for.
    woken: Option<Waker>,
}

impl Applied {
    fn new(tag: u64, done: Done) -> Self {
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
        Self { tag, outcome, barrier, woken: None }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Told>> {
        let Some(barrier) = &self.barrier else { return Poll::Ready(Ok(())) };
        if self.woken.as_ref().is_some_and(|woken| woken.will_wake(cx.waker())) {
            // Asked for already: a barrier keeps every waker that it is given, also the same one again.
            return barrier.state().map_or(Poll::Pending, |reached| Poll::Ready(reached.map_err(Told::from)));
        }
        let polled = barrier.poll(cx).map_err(Told::from);
        if polled.is_pending() {
            self.woken = Some(cx.waker().clone());
        }
        polled
    }

    fn answer(self, reached: Result<(), Told>) -> proto::AppendStreamResponse {
        let outcome = match self.outcome.and_then(|done| reached.map(|()| done)) {
            Ok((position, already_there)) => Outcome::Appended(proto::AppendResponse { position, already_there }),
            Err(told) => Outcome::Failed(told.into()),
        };
        proto::AppendStreamResponse { tag: self.tag, outcome: Some(outcome) }
    }
}

/// Answers `requests` from now on.
pub(crate) fn start(service: LogService, user: Arc<User>, requests: Streaming<proto::AppendRequest>) -> Answers {
    let mut stopping = service.stopping.clone();
    let stopped = Box::pin(async move { drop(stopping.wait_for(|stopping| *stopping).await) });
    let (log, applied) = (String::new(), VecDeque::new());
    Box::pin(Appending { service, user, requests, stopped, log, applying: None, applied, ended: None })
}

struct Appending {
    service: LogService,
    user: Arc<User>,
    requests: Streaming<proto::AppendRequest>,
    /// Until the server stops.
    stopped: Pin<Box<dyn Future<Output = ()> + Send>>,
    /// That the last request named.
    log: String,
    /// An append that cannot be applied at once, with its tag.
    applying: Option<(u64, Applying)>,
    /// In the order of the requests.
    applied: VecDeque<Applied>,
    /// No more requests are read; what the client is told behind the last answer.
    ended: Option<Option<Status>>,
}

impl Stream for Appending {
    type Item = Result<proto::AppendStreamResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        for _ in 0..TURN {
            if let Some(first) = this.applied.front_mut()
                && let Poll::Ready(reached) = first.poll(cx)
            {
                return Poll::Ready(this.applied.pop_front().map(|first| Ok(first.answer(reached))));
            }
            if let Some(told) = &mut this.ended
                && this.applying.is_none()
            {
                if !this.applied.is_empty() {
                    return Poll::Pending;
                }
                return Poll::Ready(told.take().map(Err));
            }
            if this.applied.len() >= this.service.in_flight_max {
                return Poll::Pending;
            }
            ready!(this.poll_request(cx));
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

impl Appending {
    /// Goes on with the next request: one more append is applied or begun, or there are no more.
    fn poll_request(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Some((tag, applying)) = &mut self.applying {
            let (tag, done) = (*tag, ready!(applying.as_mut().poll(cx)));
            self.applying = None;
            self.applied.push_back(Applied::new(tag, done));
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
        match self.service.apply_at_once(&request) {
            Some(done) => self.applied.push_back(Applied::new(tag, done)),
            None => {
                let service = self.service.clone();
                self.applying = Some((tag, Box::pin(async move { service.apply_one(request).await })));
            }
        }
    }
}
