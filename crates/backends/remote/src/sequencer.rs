//! Sequencers of other processes: positions over the network, asked for in batches.
//!
//! threads that append → queue → one message for all that wait → stream → answers in order → each thread its own
//!
//! While a message is under way the next one gathers: one caller waits for one round trip, many share them.
//!
//! Invariants:
//! 1. A sequencer that is silent for the lease is given up: all that wait on it get [`Error::NoSequencer`], and the
//!    next call connects anew.
//! 2. An answer that comes too late is of no harm: its position is a hole.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use esker_log::{Connect, Error, Result, Sequencer, Tail, Token};
use esker_wire::proto::log as proto;
use esker_wire::proto::log::given::Given;
use esker_wire::proto::log::sequencer_client::SequencerClient;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Request;

use crate::address::{Options, Place, Tokened, ask, channel, runtime};
use crate::failure;

/// Wants in one message, at most.
const BATCH_MAX: usize = 1_024;
/// Messages under way, at most.
const UNDER_WAY_MAX: usize = 4;
/// Callers that wait to be sent, at most.
const QUEUE_MAX: usize = 65_536;

/// Finds sequencers by the address that a log's view names: `HOST:PORT`, `grpc://HOST:PORT` or `grpc+unix:PATH`.
#[derive(Clone, Debug)]
pub struct Sequencers {
    options: Options,
    lease: Duration,
}

impl Sequencers {
    /// Sequencers that are reached with `options`, and given up when silent for `lease`.
    pub fn new(options: Options, lease: Duration) -> Self {
        Self { options: Options { timeout: lease, ..options }, lease }
    }
}

impl Connect for Sequencers {
    fn connect(&self, address: &str) -> Result<Arc<dyn Sequencer>> {
        let failed = |why: String| Error::NoSequencer { log: String::new(), why: format!("{address}: {why}") };
        let place: Place = address.parse().map_err(|error: crate::Error| failed(error.to_string()))?;
        let channel = channel(&place, &self.options).map_err(|error| match error {
            // It does not mean that no sequencer answers there.
            crate::Error::Option { what, why } => Error::Invalid { what, why: format!("{address}: {why}") },
            error => failed(error.to_string()),
        })?;
        let client = SequencerClient::new(channel);
        let (asks, asked) = mpsc::channel(QUEUE_MAX);
        let runtime = runtime().map_err(|error| failed(error.to_string()))?;
        runtime.spawn(exchange(client.clone(), asked));
        Ok(Arc::new(Remote { client, asks, lease: self.lease, address: address.to_owned() }))
    }
}

/// A caller that waits.
struct Ask {
    want: proto::Want,
    answer: SyncSender<proto::Given>,
}

struct Remote {
    client: SequencerClient<Tokened>,
    asks: mpsc::Sender<Ask>,
    lease: Duration,
    address: String,
}

impl Remote {
    fn none(&self, log: u64, why: impl std::fmt::Display) -> Error {
        Error::NoSequencer { log: format!("{log:#x}"), why: format!("{}: {why}", self.address) }
    }
}

impl Sequencer for Remote {
    fn next(&self, log: u64, epoch: u64, count: u32, expected: Option<u64>) -> Result<Token> {
        let (answer, answered) = sync_channel(1);
        let ask = Ask { want: proto::Want { log, epoch, count, expected }, answer };
        self.asks.try_send(ask).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => self.none(log, "too many callers wait for it"),
            mpsc::error::TrySendError::Closed(_) => self.none(log, "the connection is lost"),
        })?;
        let given = answered.recv_timeout(self.lease).map_err(|error| match error {
            RecvTimeoutError::Timeout => self.none(log, format_args!("silent for {:?}", self.lease)),
            RecvTimeoutError::Disconnected => self.none(log, "the connection is lost"),
        })?;
        match given.given {
            Some(Given::Position(position)) => Ok(Token { epoch: given.epoch, position }),
            Some(Given::NotTail(tail)) => Err(Error::NotTail { expected: expected.unwrap_or(tail), tail }),
            Some(Given::Invalid(why)) => Err(Error::Invalid { what: "question to the sequencer", why }),
            Some(Given::Refused(why)) => Err(self.none(log, why)),
            None => Err(self.none(log, "its answer makes no sense")),
        }
    }

    fn tail(&self, log: u64, epoch: u64) -> Result<Tail> {
        let (mut client, lease) = (self.client.clone(), self.lease);
        let asked = ask(async move {
            let mut request = Request::new(proto::SequencerTailRequest { log, epoch });
            request.set_timeout(lease);
            tokio::time::timeout(lease, client.tail(request)).await
        });
        match asked {
            Ok(Ok(Ok(answer))) => {
                let answer = answer.into_inner();
                Ok(Tail { epoch: answer.epoch, position: answer.position })
            }
            Ok(Ok(Err(status))) => Err(self.none(log, failure::text(&status))),
            Ok(Err(_)) => Err(self.none(log, format_args!("silent for {lease:?}"))),
            Err(error) => Err(self.none(log, error)),
        }
    }
}

/// Sends what is asked and hands out the answers, until the connection is lost or no caller asks any more. Callers that
/// wait then are told by the end of their channel.
async fn exchange(mut client: SequencerClient<Tokened>, mut asked: mpsc::Receiver<Ask>) {
    let (messages, outgoing) = mpsc::channel(UNDER_WAY_MAX);
    let mut under_way: VecDeque<Vec<SyncSender<proto::Given>>> = VecDeque::new();
    let Ok(answers) = client.next(Request::new(ReceiverStream::new(outgoing))).await else { return };
    let mut answers = answers.into_inner();
    let mut waiting = Vec::new();
    loop {
        tokio::select! {
            answer = answers.message(), if !under_way.is_empty() => {
                let (Ok(Some(answer)), Some(callers)) = (answer, under_way.pop_front()) else { return };
                if answer.given.len() != callers.len() {
                    return;
                }
                for (given, caller) in answer.given.into_iter().zip(callers) {
                    // One that has given up leaves a hole.
                    let _ = caller.send(given);
                }
            }
            count = asked.recv_many(&mut waiting, BATCH_MAX), if under_way.len() < UNDER_WAY_MAX => {
                if count == 0 {
                    return;
                }
                let (wants, callers) = waiting.drain(..).map(|ask: Ask| (ask.want, ask.answer)).unzip();
                if messages.send(proto::NextRequest { wants }).await.is_err() {
                    return;
                }
                under_way.push_back(callers);
            }
        }
    }
}
