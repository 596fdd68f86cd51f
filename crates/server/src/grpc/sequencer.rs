//! The service `esker.log.v1.Sequencer`: positions of the logs that this process leads.
//!
//! batch of wants → leader of each log → counter → batch of answers, in order
//!
//! Invariant: what is handed out is under the epoch that this process sealed; whether that is still the log's is
//! decided by the store, at each write.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use esker_log::{BATCH_MAX, Leader};
use esker_wire::proto::log as proto;
use esker_wire::proto::log::given::Given;
use esker_wire::proto::log::sequencer_server::Sequencer;
use event_listener::{Event, Listener};
use parking_lot::RwLock;
use tokio::sync::mpsc;
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

/// Batches that wait for their client to read them.
const UNREAD_MAX: usize = 16;

/// The logs that a process hands out positions of. Cloning gives the same ones.
#[derive(Clone, Debug, Default)]
pub struct Sequencers {
    leaders: Arc<RwLock<HashMap<u64, Arc<Leader>>>>,
    outdated: Arc<Event>,
}

impl Sequencers {
    /// Hands out positions of log `log` (its id) from now on.
    pub fn lead(&self, log: u64, leader: Arc<Leader>) {
        self.leaders.write().insert(log, leader);
    }

    /// Hands out no more positions of log `log`.
    pub fn stop(&self, log: u64) {
        self.leaders.write().remove(&log);
    }

    /// Waits up to `timeout` for a caller who knows of a newer epoch than is handed out under here: it is time to take
    /// over anew.
    pub fn wait_outdated(&self, timeout: Duration) {
        self.outdated.listen().wait_timeout(timeout);
    }

    /// The leader, if it knows of the epoch that the caller knows of.
    fn leader(&self, log: u64, epoch: u64) -> Result<Arc<Leader>, String> {
        let leaders = self.leaders.read();
        let leader = leaders.get(&log).ok_or_else(|| format!("log {log:#x} is not led here"))?;
        if leader.epoch() < epoch {
            self.outdated.notify(usize::MAX);
            return Err(format!("log {log:#x} is led here at epoch {}, which {epoch} has deposed", leader.epoch()));
        }
        Ok(Arc::clone(leader))
    }

    fn give(&self, want: &proto::Want) -> proto::Given {
        let refused = |why| proto::Given { given: Some(Given::Refused(why)), epoch: 0 };
        let leader = match self.leader(want.log, want.epoch) {
            Ok(leader) => leader,
            Err(why) => return refused(why),
        };
        let epoch = leader.epoch();
        if want.count == 0 || want.count as usize > BATCH_MAX {
            let why = format!("count {}: expected 1 to {BATCH_MAX} (BATCH_MAX)", want.count);
            return proto::Given { given: Some(Given::Invalid(why)), epoch };
        }
        let given = match leader.next(want.count, want.expected) {
            Ok(token) => Given::Position(token.position),
            Err(esker_log::Error::NotTail { tail, .. }) => Given::NotTail(tail),
            Err(error) => Given::Invalid(error.to_string()),
        };
        proto::Given { given: Some(given), epoch }
    }
}

#[tonic::async_trait]
impl Sequencer for Sequencers {
    type NextStream = Pin<Box<dyn Stream<Item = Result<proto::NextResponse, Status>> + Send>>;

    async fn next(
        &self,
        request: Request<Streaming<proto::NextRequest>>,
    ) -> Result<Response<Self::NextStream>, Status> {
        let mut requests = request.into_inner();
        let (answers, unread) = mpsc::channel(UNREAD_MAX);
        let sequencers = self.clone();
        tokio::spawn(async move {
            loop {
                let batch = match requests.message().await {
                    Ok(Some(batch)) if batch.wants.len() <= BATCH_MAX => batch,
                    Ok(Some(batch)) => {
                        let why = format!("{} wants at once: expected at most {BATCH_MAX}", batch.wants.len());
                        // A client that is gone has nothing to be told.
                        let _ = answers.send(Err(Status::invalid_argument(why))).await;
                        return;
                    }
                    Ok(None) | Err(_) => return,
                };
                let given = batch.wants.iter().map(|want| sequencers.give(want)).collect();
                if answers.send(Ok(proto::NextResponse { given })).await.is_err() {
                    return;
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(unread))))
    }

    async fn tail(
        &self,
        request: Request<proto::SequencerTailRequest>,
    ) -> Result<Response<proto::SequencerTailResponse>, Status> {
        let request = request.into_inner();
        let leader = self.leader(request.log, request.epoch).map_err(Status::unavailable)?;
        let tail = leader.tail();
        Ok(Response::new(proto::SequencerTailResponse { position: tail.position, epoch: tail.epoch }))
    }
}
