//! What the members of one process share: the coordinator's session, the way to peers, the manager.
//!
//! [`Host::start`] → [`Member::join`](crate::Member::join), once for each chain → members stop → [`Host::stop`]
//!
//! Invariant: it outlasts its members, which hand over by what is here.

use std::sync::Arc;
use std::time::Duration;

use esker_chain::ServerId;
use esker_cluster::{Coordinator, Location, Manager, Options, Seen, Slots};
use esker_peers::Peers;
use parking_lot::Mutex;
use tokio::runtime::{Handle, Runtime};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::error::Result;
use crate::moving::{Answer, Asks, CHANGE, Desk, IsOver, MoveCalls, Takes, routes};

/// What is under way at the end is waited for so long.
const END: Duration = Duration::from_secs(1);

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
    desk: Arc<Desk>,
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
        let desk = Desk::new(&config.peers.cluster);
        let peers = Arc::new(Peers::bind_beside(config.peers.clone(), routes(&desk))?);
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
        Ok(Arc::new(Self { config, coordinator, peers, desk, seen, stop, runs, runtime }))
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
        self.desk.set(chain, taker);
    }

    /// The head of a chain, as it was seen last, to be asked by a thread that may wait, until it `is_over`.
    ///
    /// # Errors
    /// Why it cannot be.
    pub fn calls(&self, chain: &str, is_over: IsOver) -> Answer<MoveCalls> {
        let seen = self.seen();
        let of = seen.as_ref().and_then(|seen| seen.chains.get(chain)).ok_or_else(|| format!("no chain {chain}"))?;
        let head = of.table.head().ok_or_else(|| format!("the chain {chain} has no head"))?;
        let record = of.servers.get(&head.server).ok_or_else(|| format!("where server {} is", head.server))?;
        let (address, tls) = (&record.served.peer, self.config.peers.tls.as_ref());
        let runs = (&self.runtime, is_over);
        let called = MoveCalls::connect(runs, address, tls, (&self.config.peers.cluster, chain));
        called.map_err(|why| format!("server {}, which heads the chain {chain}: {why}", head.server))
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
        self.peers.stop();
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.stop();
    }
}
