//! What this server has of others: nodes that hear letters, ways that letters go, copies.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use esker_chain::{Node, ServerId};
use esker_wire::proto::chain as proto;
use parking_lot::{Mutex, RwLock};

use crate::copies::Copies;
use crate::outgoing::Outgoing;
use crate::pulling::Pulling;
use crate::reach::Reach;

/// What peers ask, and nodes send.
pub(crate) struct Hub {
    /// The cluster: servers of another are not listened to.
    pub(crate) cluster: String,
    /// This server.
    pub(crate) me: ServerId,
    pub(crate) reach: Arc<Reach>,
    pub(crate) copies: Copies,
    pub(crate) pulling: Pulling,
    /// Letters that wait for one server take no more than this.
    waiting_bytes_max: usize,
    ways: Mutex<HashMap<(String, ServerId), Arc<Outgoing>>>,
    nodes: RwLock<HashMap<String, Arc<Node>>>,
    /// The last stream of each peer and chain, whose letters are heard.
    streams: Mutex<HashMap<(String, ServerId), Stream>>,
}

/// Which stream of a peer is heard: locked while a letter is.
pub(crate) type Stream = Arc<Mutex<u64>>;

impl Hub {
    pub(crate) fn new(
        cluster: String,
        me: ServerId,
        reach: Arc<Reach>,
        (waiting_bytes_max, copy_bytes_per_s): (usize, u64),
    ) -> Self {
        let pulling = Pulling::new(Arc::clone(&reach), me, copy_bytes_per_s);
        let (copies, ways, nodes) = (Copies::default(), Mutex::default(), RwLock::default());
        Self { cluster, me, reach, copies, pulling, waiting_bytes_max, ways, nodes, streams: Mutex::default() }
    }

    /// From now on this node hears what is sent for the chain.
    pub(crate) fn join(&self, chain: &str, node: &Arc<Node>) {
        self.nodes.write().insert(chain.to_owned(), Arc::clone(node));
    }

    /// No node hears what is sent for the chain, and no copy is pulled for it; waits until that is so.
    pub(crate) fn leave(&self, chain: &str) {
        self.nodes.write().remove(chain);
        self.copies.forget(chain);
        self.pulling.stop(chain);
    }

    /// A new stream of a peer: those before it are not heard any more. Its number is the second.
    pub(crate) fn stream(&self, chain: &str, from: ServerId) -> (Stream, u64) {
        let stream = Arc::clone(self.streams.lock().entry((chain.to_owned(), from)).or_default());
        // Waits for the letter that is heard.
        let mut last = stream.lock();
        *last += 1;
        let own = *last;
        drop(last);
        (stream, own)
    }

    /// The node of this chain.
    pub(crate) fn node(&self, chain: &str) -> Option<Arc<Node>> {
        self.nodes.read().get(chain).cloned()
    }

    /// The node of this chain tells this server anew where it stands.
    pub(crate) fn begin_anew(&self, chain: &str, server: ServerId) {
        if let Some(node) = self.node(chain) {
            node.reconnected(server);
        }
    }

    /// The same, after a pause: what has failed is not tried again at once.
    pub(crate) fn begin_later(self: &Arc<Self>, chain: String, server: ServerId, pause: Duration) {
        let own = Arc::downgrade(self);
        self.reach.runtime.spawn(async move {
            tokio::time::sleep(pause).await;
            // It steps, which may wait for its store.
            let begun = tokio::task::spawn_blocking(move || own.upgrade().map(|hub| hub.begin_anew(&chain, server)));
            drop(begun.await);
        });
    }

    /// Ends the way to a server that does not come back under its number.
    pub(crate) fn forget(&self, chain: &str, to: ServerId) {
        let way = self.ways.lock().remove(&(chain.to_owned(), to));
        way.into_iter().for_each(|way| way.end());
        self.streams.lock().remove(&(chain.to_owned(), to));
    }

    /// Ends everything.
    pub(crate) fn stop(&self) {
        for (_, way) in self.ways.lock().drain() {
            way.end();
        }
        let chains: Vec<_> = self.nodes.read().keys().cloned().collect();
        for chain in chains {
            self.leave(&chain);
        }
    }

    /// The way to a server for a chain.
    pub(crate) fn way(self: &Arc<Self>, chain: &str, to: ServerId) -> Arc<Outgoing> {
        let mut ways = self.ways.lock();
        if let Some(way) = ways.get(&(chain.to_owned(), to)) {
            return Arc::clone(way);
        }
        let way = Outgoing::new(self.waiting_bytes_max);
        ways.insert((chain.to_owned(), to), Arc::clone(&way));
        let hello = proto::Hello { cluster: self.cluster.clone(), chain: chain.to_owned(), from: self.me.0, to: to.0 };
        let (reach, own, chain) = (Arc::clone(&self.reach), Arc::downgrade(self), chain.to_owned());
        let of = chain.clone();
        let connect = async move || reach.connect(&of, to).await;
        let open = move || {
            if let Some(hub) = own.upgrade() {
                hub.begin_anew(&chain, to);
            }
        };
        self.reach.runtime.spawn(Arc::clone(&way).run(hello, connect, Arc::new(open)));
        way
    }
}
