//! Many appends on one stream: applied in the order in which they come, answered when durable.
//!
//! request → applied, or failed → (tag, position, barrier) → barrier awaited → answer with the tag
//!
//! One task reads and applies, one awaits and answers. Barriers of a store come in the order of its commits, so that awaiting them in the order
//! of the appends costs nobody time.
//!
//! Invariants:
//! 1. At most `in_flight_max` appends of a stream are applied and not answered: then nothing more of it is read, and HTTP/2 stops the client.
//! 2. A stream that the client has closed is answered to its end.

use std::pin::Pin;
use std::sync::Arc;

use esker_store::Barrier;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use super::log::LogService;
use super::proto::log as proto;
use super::proto::log::append_stream_response::Outcome;
use super::status::Told;
use super::waiting::reached;

/// Answers of a stream of appends.
pub(crate) type Answers = Pin<Box<dyn Stream<Item = Result<proto::AppendStreamResponse, Status>> + Send>>;

/// Answers that wait for the client to read them.
const UNREAD_MAX: usize = 64;

struct Applied {
    tag: u64,
    outcome: Result<(u64, bool), Told>,
    barrier: Option<Barrier>,
    under_way: OwnedSemaphorePermit,
}

/// Answers `requests` from now on.
pub(crate) fn start(service: LogService, requests: Streaming<proto::AppendRequest>) -> Answers {
    let (answers, answered) = mpsc::channel(UNREAD_MAX);
    // Never full: the semaphore comes before it.
    let (applied, to_await) = mpsc::channel(service.in_flight_max);
    tokio::spawn(read(service, requests, applied, answers.clone()));
    tokio::spawn(answer(to_await, answers));
    Box::pin(ReceiverStream::new(answered))
}

type Responses = mpsc::Sender<Result<proto::AppendStreamResponse, Status>>;

async fn read(
    service: LogService,
    mut requests: Streaming<proto::AppendRequest>,
    applied: mpsc::Sender<Applied>,
    answers: Responses,
) {
    let room = Arc::new(Semaphore::new(service.in_flight_max));
    let mut stopping = service.stopping.clone();
    let mut log = String::new();
    let ended = loop {
        let Ok(under_way) = Arc::clone(&room).acquire_owned().await else { return };
        let message = tokio::select! {
            message = requests.message() => message,
            _ = stopping.wait_for(|stopping| *stopping) => break Some(Told::stopping().into()),
            () = answers.closed() => return,
        };
        let mut request = match message {
            Ok(Some(request)) => request,
            Ok(None) => break None,
            // What is under way is still answered, should the client be there to hear it.
            Err(status) => break Some(status),
        };
        if request.log.is_empty() {
            request.log.clone_from(&log);
        } else if request.log != log {
            log.clone_from(&request.log);
        }
        let tag = request.tag;
        let (outcome, barrier) = match service.apply_one(request).await {
            Ok(completion) => {
                let (outcome, barrier) = completion.into_parts();
                (outcome.map_err(Told::from), barrier)
            }
            Err(told) => (Err(told), None),
        };
        if applied.send(Applied { tag, outcome, barrier, under_way }).await.is_err() {
            return;
        }
    };
    drop(applied);
    // Only when all are back has everything been answered.
    let _all = room.acquire_many(service.in_flight_max as u32).await;
    if let Some(status) = ended {
        // A client that is gone has nothing to be told.
        let _ = answers.send(Err(status)).await;
    }
}

async fn answer(mut to_await: mpsc::Receiver<Applied>, answers: Responses) {
    while let Some(Applied { tag, outcome, barrier, under_way }) = to_await.recv().await {
        let outcome = match outcome {
            Ok(done) => reached(barrier).await.map(|()| done),
            Err(told) => Err(told),
        };
        let outcome = match outcome {
            Ok((position, already_there)) => Outcome::Appended(proto::AppendResponse { position, already_there }),
            Err(told) => Outcome::Failed(told.into()),
        };
        if answers.send(Ok(proto::AppendStreamResponse { tag, outcome: Some(outcome) })).await.is_err() {
            return;
        }
        drop(under_way);
    }
}
