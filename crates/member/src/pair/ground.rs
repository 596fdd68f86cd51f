//! What the lives of a server of a pair stand on, and a node that runs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use esker_chain::{Incarnation, Links, Node, ServerId, Standing};
use esker_cluster::Served;
use esker_peers::{Asked, Peers};
use esker_store::ObjectStore;
use parking_lot::Mutex;

use crate::error::Result;

/// The one chain of a pair.
pub(crate) const CHAIN: &str = "main";
/// As greetings name it: no root of a coordinator begins so.
pub(crate) const CLUSTER: &str = "pair";

/// When a primary acknowledges a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Once it is durable here.
    Async,
    /// Once it is durable here and at the standby, from when that is in step.
    Sync,
}

/// What a server of a pair is.
#[derive(Clone, Debug)]
pub struct PairConfig {
    /// As the primary.
    pub mode: Mode,
    /// As the standby of the primary that listens for peers at this `HOST:PORT`; `None`: as the primary.
    pub follow: Option<String>,
    /// A standby may put what the primary holds in the place of what was never of the pair.
    pub replaces: bool,
    /// Where peers are listened to, and by which certificates; the cluster and the number are put in.
    pub peers: esker_peers::Config,
    /// Where others reach this server; the store's name is put in.
    pub served: Served,
    /// What the store is called if it has no name yet: as no other store is.
    pub fresh: Bytes,
    /// Bytes of operations that are kept for a standby that is slow or away.
    pub kept_bytes_max: usize,
    /// By which starts are told apart: as no other process has it.
    pub seed: u64,
}

/// What a life stands on.
pub(crate) struct Ground {
    pub store: Arc<dyn ObjectStore>,
    pub peers: Arc<Peers>,
    /// The number by which this process is sent letters.
    pub me: ServerId,
    pub config: PairConfig,
    pub asked: Arc<dyn Asked>,
    pub random: Mutex<fastrand::Rng>,
}

impl Ground {
    /// A number that no other start has.
    pub(crate) fn number(&self) -> u64 {
        self.random.lock().u64(1..)
    }

    /// Letters go to this server, and not to the one before any more.
    pub(crate) fn face(&self, before: Option<ServerId>, server: ServerId, address: &str) {
        before.filter(|before| *before != server).into_iter().for_each(|before| self.peers.forget(CHAIN, before));
        self.peers.know(CHAIN, BTreeMap::from([(server, address.to_owned())]));
    }
}

/// A node with the thread that makes durable what it applies.
pub(crate) struct Running {
    pub node: Arc<Node>,
    runs: JoinHandle<()>,
}

impl Running {
    /// A node that hears letters.
    pub(crate) fn begin(ground: &Ground, standing: &Standing, start: Incarnation) -> Result<Self> {
        let links: Arc<dyn Links> = ground.peers.links(CHAIN, Arc::clone(&ground.asked));
        let node =
            Node::new(Arc::clone(&ground.store), standing, ground.me, start, ground.config.kept_bytes_max, links);
        let own = Arc::clone(&node);
        let runs = std::thread::Builder::new().name("esker-chain".into()).spawn(move || own.run())?;
        ground.peers.join(CHAIN, &node);
        Ok(Self { node, runs })
    }

    /// Waits, up to `within`, until the one behind has everything.
    pub(crate) fn settle(&self, within: Duration) {
        let until = std::time::Instant::now() + within;
        while std::time::Instant::now() < until {
            if self.node.acked().is_some_and(|acked| acked >= self.node.progress().0) {
                return;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Nothing is answered or written by it any more, once this returns.
    pub(crate) fn end(self, ground: &Ground) {
        self.node.give_up();
        // In this order: what begins to copy between the two is refused, or waited for.
        self.node.end();
        ground.peers.leave(CHAIN);
        if self.runs.join().is_err() {
            tracing::error!("the thread of a node panicked");
        }
    }
}
