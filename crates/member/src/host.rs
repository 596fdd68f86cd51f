//! What the members of one process share: the coordinator's session, the way to peers, the manager.
//!
//! [`Host::start`] → [`Member::join`](crate::Member::join), once for each chain → members stop → [`Host::stop`]
//!
//! Invariant: it outlasts its members, which hand over by what is here.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use esker_chain::ServerId;
use esker_cluster::{Coordinator, Instance, Location, Manager, Options, Seen, Slots};
use esker_peers::Peers;
use parking_lot::Mutex;
use tokio::runtime::{Handle, Runtime};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tonic::service::Routes;

use crate::asking::{self, AnswersKeys, KeyCalls, Unanswered};
use crate::desk::Desk;
use crate::error::Result;
use crate::messages::{AskKeysRequest, AskKeysResponse};
use crate::moving::{self, Answer, Asks, CHANGE, IsOver, MoveCalls, Takes};

/// What is under way at the end is waited for so long.
const END: Duration = Duration::from_secs(1);

/// Instances of a service are looked at so often.
const ANNOUNCE: Duration = Duration::from_secs(1);

/// Tells which instances of a service this server is.
pub type Wanted = Arc<dyn Fn() -> BTreeSet<Instance> + Send + Sync>;

/// Instances that stand for as long as this is there, and no longer than the session.
pub struct Announced(JoinHandle<()>);

impl Drop for Announced {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// What a process is in its cluster.
#[derive(Clone, Debug)]
pub struct HostConfig {
    /// The coordinator.
    pub location: Location,
    /// This server's number: the same for as long as it keeps its stores.
    pub server: ServerId,
    /// How long a lease lasts; a server answers for half of it after each renewal. The same for all servers.
    pub period: Duration,
    /// Where peers are listened to, and by which certificates.
    pub peers: esker_peers::Config,
}

/// A process among the servers of its cluster.
pub struct Host {
    pub(crate) config: HostConfig,
    pub(crate) coordinator: Coordinator,
    pub(crate) peers: Arc<Peers>,
    takers: Arc<Desk<dyn Takes>>,
    answers: Arc<Desk<dyn AnswersKeys>>,
    key_calls: Arc<KeyCalls>,
    seen: watch::Receiver<Option<Arc<Seen>>>,
    stop: watch::Sender<bool>,
    /// `None` once it has stopped.
    runs: Mutex<Option<(Runtime, JoinHandle<()>)>>,
    runtime: Handle,
}

impl Host {
    /// Listens to peers, and manages chains once the coordinator answers.
    ///
    /// # Errors
    /// [`Error::Peers`](crate::Error::Peers), [`Error::Io`](crate::Error::Io).
    pub fn start(config: HostConfig) -> Result<Arc<Self>> {
        let cluster = &config.peers.cluster;
        let (takers, answers) = (Desk::new(cluster), Desk::new(cluster));
        let routes = Routes::default().add_service(moving::service(&takers)).add_service(asking::service(&answers));
        let key_calls = KeyCalls::new(cluster, config.peers.tls.as_ref());
        let peers = Arc::new(Peers::bind_beside(config.peers.clone(), routes)?);
        let runs = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("esker-cluster")
            .enable_all()
            .build()?;
        let options = Options { session: config.period, call: config.period / 2 };
        let coordinator = Coordinator::new(config.location.clone(), options);
        let manager = Manager::new(coordinator.clone(), config.server, config.period);
        let (seen, (stop, stopping)) = (manager.seen(), watch::channel(false));
        let managing = runs.spawn(manager.run(stopping));
        let runtime = runs.handle().clone();
        let runs = Mutex::new(Some((runs, managing)));
        Ok(Arc::new(Self { config, coordinator, peers, takers, answers, key_calls, seen, stop, runs, runtime }))
    }

    /// This server's number.
    pub fn server(&self) -> ServerId {
        self.config.server
    }

    /// Where peers are listened to.
    pub fn peer_address(&self) -> std::net::SocketAddr {
        self.peers.address()
    }

    /// The chains of the cluster, as they were seen last; `None`: they were not yet.
    pub fn seen(&self) -> Option<Arc<Seen>> {
        self.seen.borrow().clone()
    }

    /// From now on this one takes slots of keys that come to the chain, which this server heads; `None`: none does.
    pub fn set_taker(&self, chain: &str, taker: Option<Arc<dyn Takes>>) {
        self.takers.set(chain, taker);
    }

    /// From now on this one answers for keys of the chain, which this server heads; `None`: none does.
    pub fn set_answers(&self, chain: &str, answers: Option<Arc<dyn AnswersKeys>>) {
        self.answers.set(chain, answers);
    }

    /// Has the instances that `wanted` tells stand below the node of a service with the coordinator. Once what is
    /// returned is dropped they are followed no more; they are gone with the session.
    pub fn announce(&self, service: &str, wanted: Wanted) -> Announced {
        let (coordinator, service) = (self.coordinator.clone(), service.to_owned());
        Announced(self.runtime.spawn(async move {
            let (mut before, mut last_why) = (BTreeSet::new(), String::new());
            loop {
                let now = wanted();
                match coordinator.announce(&service, &now, &before).await {
                    Ok(()) => {
                        last_why.clear();
                        before = now;
                    }
                    Err(error) => {
                        let why = error.to_string();
                        if why != last_why {
                            tracing::warn!(service, why, "this server is not registered as an instance of the service");
                            last_why = why;
                        }
                        // Which of them stand is not known.
                        before.extend(now);
                    }
                }
                tokio::time::sleep(ANNOUNCE).await;
            }
        }))
    }

    /// Where peers reach the head of a chain, as it was seen last.
    fn head(&self, chain: &str) -> Answer<(ServerId, String)> {
        let seen = self.seen();
        let of = seen.as_ref().and_then(|seen| seen.chains.get(chain)).ok_or_else(|| format!("no chain {chain}"))?;
        let head = of.table.head().ok_or_else(|| format!("the chain {chain} has no head"))?.server;
        let record = of.servers.get(&head).ok_or_else(|| format!("where server {head} is"))?;
        Ok((head, record.served.peer.clone()))
    }

    /// Asks the head of a chain, as it was seen last, on behalf of a client, once. `chain` and `cluster` of the request
    /// are filled in.
    ///
    /// # Errors
    /// [`Unanswered`].
    pub fn ask_keys(
        &self,
        chain: &str,
        request: AskKeysRequest,
    ) -> impl Future<Output = std::result::Result<AskKeysResponse, Unanswered>> + Send + use<> {
        let (head, calls, chain) = (self.head(chain), Arc::clone(&self.key_calls), chain.to_owned());
        async move {
            let (_, address) = head.map_err(Unanswered::NotAsked)?;
            calls.ask(&address, &chain, request).await
        }
    }

    /// The head of a chain, as it was seen last, to be asked by a thread that may wait, until it `is_over`.
    ///
    /// # Errors
    /// Why it cannot be.
    pub fn calls(&self, chain: &str, is_over: IsOver) -> Answer<MoveCalls> {
        let (head, address) = self.head(chain)?;
        let (runs, tls) = ((&self.runtime, is_over), self.config.peers.tls.as_ref());
        let called = MoveCalls::connect(runs, &address, tls, (&self.config.peers.cluster, chain));
        called.map_err(|why| format!("server {head}, which heads the chain {chain}: {why}"))
    }

    /// Changes the slots that chains share, by a thread that may wait, until it `is_over`: see
    /// [`Coordinator::change_slots`].
    ///
    /// # Errors
    /// Those of [`Coordinator::change_slots`]; that there is no answer.
    pub fn change_slots(
        &self,
        change: impl Fn(&Slots) -> Option<Slots> + Send + Sync + 'static,
        is_over: IsOver,
    ) -> Answer<Slots> {
        let (asks, coordinator) = (Asks { runtime: self.runtime.clone(), is_over }, self.coordinator.clone());
        asks.wait(CHANGE, async move { coordinator.change_slots(change).await.map_err(|error| error.to_string()) })
    }

    /// Bytes in a second that copies for this server, and keys that it sends to other chains, may take; 0: no bound.
    pub fn copy_bytes_per_s(&self) -> u64 {
        self.config.peers.copy_bytes_per_s
    }

    pub(crate) fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// Ends what its members have used: they have stopped. Does nothing the second time.
    pub fn stop(&self) {
        let Some((runtime, managing)) = self.runs.lock().take() else { return };
        // It may have ended by itself.
        let _ = self.stop.send(true);
        if runtime.block_on(async { tokio::time::timeout(END, managing).await }).is_err() {
            tracing::info!("the office of the manager ends with its session");
        }
        runtime.shutdown_timeout(END);
        self.key_calls.stop();
        self.peers.stop();
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.stop();
    }
}
