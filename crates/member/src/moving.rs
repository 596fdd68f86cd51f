//! What the head of one chain asks that of another while slots of keys go from one to the other.
//!
//! ```text
//! head that gives → connection to the other chain's head → [`MoveCalls`] → service → [`Takes`] of that chain
//! ```
//!
//! Invariant: each call ends in time.

use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use esker_peers::TlsFiles;
use esker_wire::proto::chain as proto;
use esker_wire::proto::chain::moving_client::MovingClient;
use esker_wire::proto::chain::moving_server::{Moving, MovingServer};
use tokio::runtime::Handle;
use tonic::transport::Channel;
use tonic::{Request, Response, Status};

use crate::desk::Desk;

/// Longest message, in bytes: a part of the keys, of which one may be as large as a value can be.
const MESSAGE_BYTES_MAX: usize = 96 << 20;
/// A connection that is not there by then does not come.
const CONNECT: Duration = Duration::from_secs(2);
/// The other chain goes through all its keys.
const BEGIN: Duration = Duration::from_secs(600);
/// The coordinator has taken a change.
pub(crate) const CHANGE: Duration = Duration::from_secs(10);
/// Any other answer: slots are closed meanwhile.
const CALL: Duration = Duration::from_secs(3);
/// Who waits looks so often whether it has a use for the answer still.
const LOOK: Duration = Duration::from_millis(50);

/// A refusal, in words for the log of the other side.
pub type Answer<T> = Result<T, String>;

/// What takes slots for a chain that this server heads.
pub trait Takes: Send + Sync + 'static {
    /// These slots will come.
    ///
    /// # Errors
    /// Why they cannot.
    fn begin(&self, request: proto::BeginMoveRequest) -> Answer<()>;

    /// Keys of them.
    ///
    /// # Errors
    /// Why they are not put.
    fn put(&self, request: proto::PutKeysRequest) -> Answer<()>;

    /// All keys of these slots were put; false: they are to be put again.
    ///
    /// # Errors
    /// Why it is not known that they are taken.
    fn take(&self, request: proto::TakeSlotsRequest) -> Answer<bool>;

    /// Which of these slots the chain keeps; the others it never will by what was begun before.
    ///
    /// # Errors
    /// Why that is not known.
    fn settle(&self, request: proto::SettleEachSlotRequest) -> Answer<Vec<u32>>;
}

struct Service(Weak<Desk<dyn Takes>>);

/// The calls, which this desk answers for as long as it is there.
pub(crate) fn service(desk: &Arc<Desk<dyn Takes>>) -> MovingServer<impl Moving + use<>> {
    MovingServer::new(Service(Arc::downgrade(desk))).max_decoding_message_size(MESSAGE_BYTES_MAX)
}

impl Service {
    fn desk(&self) -> Result<Arc<Desk<dyn Takes>>, Status> {
        self.0.upgrade().ok_or_else(|| Status::unavailable("this server has stopped"))
    }

    async fn answer<T: Send + 'static>(
        &self,
        chain: &str,
        ask: impl FnOnce(&dyn Takes) -> Answer<T> + Send + 'static,
    ) -> Result<T, Status> {
        let taker = self.desk()?.of(chain)?;
        // It waits for the store.
        let answered = tokio::task::spawn_blocking(move || ask(&*taker)).await;
        answered.map_err(|error| Status::internal(error.to_string()))?.map_err(Status::failed_precondition)
    }
}

#[tonic::async_trait]
impl Moving for Service {
    async fn begin_move(
        &self,
        request: Request<proto::BeginMoveRequest>,
    ) -> Result<Response<proto::BeginMoveResponse>, Status> {
        let request = request.into_inner();
        self.desk()?.check(&request.cluster)?;
        self.answer(&request.chain.clone(), move |taker| taker.begin(request)).await?;
        Ok(Response::new(proto::BeginMoveResponse {}))
    }

    async fn put_keys(
        &self,
        request: Request<proto::PutKeysRequest>,
    ) -> Result<Response<proto::PutKeysResponse>, Status> {
        let request = request.into_inner();
        self.answer(&request.chain.clone(), move |taker| taker.put(request)).await?;
        Ok(Response::new(proto::PutKeysResponse {}))
    }

    async fn take_slots(
        &self,
        request: Request<proto::TakeSlotsRequest>,
    ) -> Result<Response<proto::TakeSlotsResponse>, Status> {
        let request = request.into_inner();
        let taken = self.answer(&request.chain.clone(), move |taker| taker.take(request)).await?;
        Ok(Response::new(proto::TakeSlotsResponse { taken }))
    }

    async fn settle_each_slot(
        &self,
        request: Request<proto::SettleEachSlotRequest>,
    ) -> Result<Response<proto::SettleEachSlotResponse>, Status> {
        let request = request.into_inner();
        self.desk()?.check(&request.cluster)?;
        let slots = self.answer(&request.chain.clone(), move |taker| taker.settle(request)).await?;
        Ok(Response::new(proto::SettleEachSlotResponse { slots }))
    }
}

/// Says whether who asks has no use for an answer any more.
pub type IsOver = Arc<dyn Fn() -> bool + Send + Sync>;

/// The head of another chain, asked by a thread that may wait.
pub struct MoveCalls {
    client: MovingClient<Channel>,
    asks: Asks,
    cluster: String,
    chain: String,
}

/// How a thread waits for what the runtime does: no longer than it has a use for it, and not beyond the runtime's end.
pub(crate) struct Asks {
    pub(crate) runtime: Handle,
    pub(crate) is_over: IsOver,
}

impl Asks {
    pub(crate) fn wait<T: Send + 'static>(
        &self,
        time: Duration,
        work: impl Future<Output = Answer<T>> + Send + 'static,
    ) -> Answer<T> {
        let (tell, told) = std::sync::mpsc::channel();
        let task = self.runtime.spawn(async move {
            // Where none waits any more it is not needed.
            let _ = tell.send(work.await);
        });
        let until = Instant::now() + time;
        loop {
            match told.recv_timeout(LOOK) {
                Ok(answer) => return answer,
                Err(RecvTimeoutError::Disconnected) => return Err("this server stops".into()),
                Err(RecvTimeoutError::Timeout) => {}
            }
            if (self.is_over)() || Instant::now() >= until {
                task.abort();
                return Err(format!("no answer within {} s", time.as_secs()));
            }
        }
    }
}

/// What a call came to, in words where it failed.
fn answered<T>(answer: Result<Response<T>, Status>) -> Answer<T> {
    answer.map(Response::into_inner).map_err(|status| status.message().to_owned())
}

impl MoveCalls {
    /// What listens for peers at `HOST:PORT`, and heads this chain.
    ///
    /// # Errors
    /// Why it cannot be reached.
    pub(crate) fn connect(
        (runtime, is_over): (&Handle, IsOver),
        address: &str,
        tls: Option<&TlsFiles>,
        (cluster, chain): (&str, &str),
    ) -> Answer<Self> {
        let asks = Asks { runtime: runtime.clone(), is_over };
        let (address, tls) = (address.to_owned(), tls.cloned());
        let channel = asks.wait(CONNECT, async move { esker_peers::connect(&address, tls.as_ref()).await })?;
        let client = MovingClient::new(channel).max_encoding_message_size(MESSAGE_BYTES_MAX);
        Ok(Self { client, asks, cluster: cluster.to_owned(), chain: chain.to_owned() })
    }

    /// See [`Takes::begin`].
    ///
    /// # Errors
    /// What the other side says; that it does not answer.
    pub fn begin(&mut self, (from, thrift): (&str, &str), called: u64, slots: Vec<proto::SlotEpoch>) -> Answer<()> {
        let (chain, cluster) = (self.chain.clone(), self.cluster.clone());
        let (from, thrift) = (from.to_owned(), thrift.to_owned());
        let request = proto::BeginMoveRequest { chain, cluster, from, thrift, r#move: called, slots };
        let mut client = self.client.clone();
        self.asks.wait(BEGIN, async move { answered(client.begin_move(request).await) }).map(drop)
    }

    /// See [`Takes::put`].
    ///
    /// # Errors
    /// What the other side says; that it does not answer.
    pub fn put(&mut self, called: u64, first: bool, parts: Vec<proto::KeyPart>) -> Answer<()> {
        let request = proto::PutKeysRequest { chain: self.chain.clone(), r#move: called, first, parts };
        let mut client = self.client.clone();
        self.asks.wait(CALL, async move { answered(client.put_keys(request).await) }).map(drop)
    }

    /// See [`Takes::take`].
    ///
    /// # Errors
    /// What the other side says; that it does not answer.
    pub fn take(&mut self, called: u64, slots: Vec<proto::SlotEpoch>) -> Answer<bool> {
        let request = proto::TakeSlotsRequest { chain: self.chain.clone(), r#move: called, slots };
        let mut client = self.client.clone();
        Ok(self.asks.wait(CALL, async move { answered(client.take_slots(request).await) })?.taken)
    }

    /// See [`Takes::settle`].
    ///
    /// # Errors
    /// What the other side says; that it does not answer.
    pub fn settle(&mut self, slots: Vec<proto::SlotEpoch>) -> Answer<Vec<u32>> {
        let request = proto::SettleEachSlotRequest { chain: self.chain.clone(), cluster: self.cluster.clone(), slots };
        let mut client = self.client.clone();
        Ok(self.asks.wait(CALL, async move { answered(client.settle_each_slot(request).await) })?.slots)
    }
}
