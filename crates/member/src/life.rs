//! One start of a server in its chain: from its registration until a table takes it out, or its node fails.
//!
//! standing of the store → registered → node, heard by peers → [`Life::round`] … → [`Life::end`]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use esker_chain::{Heard, Incarnation, Links, Node, Place, ServerId, Standing, Table, next_table};
use esker_cluster::{Coordinator, Freshness, Progress, Renewed, Served, ServerRecord};
use esker_peers::Peers;
use esker_store::ObjectStore;

use crate::error::{Error, Result};
use crate::view::View;

/// A head that leaves waits so long, at most, for what was begun.
const SETTLE_MAX: Duration = Duration::from_millis(50);
const SETTLE_LOOK: Duration = Duration::from_millis(1);

/// A server that leaves tries so often to make the table without itself, where others change the table meanwhile.
const HAND_OVERS: u32 = 4;

/// Between the name of a chain and what tells its stores apart, in the name of a store.
const OF: char = ':';

/// What a life is begun with.
pub(crate) struct Birth<'b> {
    pub coordinator: &'b Coordinator,
    pub peers: &'b Arc<Peers>,
    pub store: &'b Arc<dyn ObjectStore>,
    pub chain: &'b str,
    pub server: ServerId,
    /// What the store is called if it has no name yet.
    pub fresh: &'b Bytes,
    pub kept_bytes_max: usize,
    pub links: Arc<dyn Links>,
}

/// A start that runs.
pub(crate) struct Life {
    coordinator: Coordinator,
    peers: Arc<Peers>,
    chain: String,
    server: ServerId,
    incarnation: Incarnation,
    pub node: Arc<Node>,
    runs: Option<JoinHandle<()>>,
    /// It has served, and is over once it does not.
    served: bool,
    /// Which table it went by last, and since when.
    stood: (u64, Instant),
    /// Since when the member behind, and the one before, have not been reached, in this version of the table.
    reached: (u64, Instant),
    heard: (u64, Instant),
    /// What is wished for makes no sense, and that was told.
    warned: bool,
}

/// What a round came to.
pub(crate) enum Round {
    /// The same life goes on.
    Goes,
    /// It goes on, and the table is to be read at once.
    Again,
    /// It is over: another is to begin.
    Over,
    /// It is over, since its node cannot go on: another is to begin later.
    Failed,
    /// It is to hand over: operators have asked for that. Then another is to begin.
    Leaves,
}

impl Life {
    /// Registers, and has peers hear the node.
    pub(crate) async fn begin(birth: Birth<'_>, served: Served) -> Result<Self> {
        let Birth { coordinator, peers, store, chain, server, fresh, kept_bytes_max, links } = birth;
        let (own, name) = (Arc::clone(store), fresh.clone());
        // It waits for the device.
        let standing = tokio::task::spawn_blocking(move || Standing::read(&*own, &name)).await;
        let standing = standing.map_err(std::io::Error::other)??;
        let served = Served { store: String::from_utf8_lossy(&standing.identity).into_owned(), ..served };
        if let Some((other, _)) = served.store.split_once(OF).filter(|(other, _)| *other != chain) {
            return Err(Error::OtherChain { chain: chain.to_owned(), other: other.to_owned() });
        }
        let incarnation = coordinator.register(chain, server, &served).await?;
        let node = Node::new(Arc::clone(store), &standing, server, incarnation, kept_bytes_max, links);
        let own = Arc::clone(&node);
        let runs = std::thread::Builder::new().name("esker-chain".into()).spawn(move || own.run())?;
        peers.join(chain, &node);
        tracing::info!(chain, %server, incarnation = incarnation.0, applied = standing.applied, "registered");
        let (coordinator, peers, chain) = (coordinator.clone(), Arc::clone(peers), chain.to_owned());
        let (served, warned, since) = (false, false, (0, Instant::now()));
        let (stood, reached, heard, runs) = (since, since, since, Some(runs));
        Ok(Self { coordinator, peers, chain, server, incarnation, node, runs, served, stood, reached, heard, warned })
    }

    /// Reads the table and goes by it, renews the lease, and tells what it is asked to.
    pub(crate) async fn round(&mut self, view: &mut View, period: Duration) -> Result<Round> {
        let (table, stamp) = self.coordinator.table(&self.chain, Freshness::Any).await?;
        let servers = self.coordinator.servers(&self.chain).await?;
        self.peers.know(&self.chain, addresses(&servers));
        view.version = table.version;
        view.peers = View::peers(&table, &servers);
        view.head = table.head().map(|head| head.server);
        view.incarnation = Some(self.incarnation);
        let node = Arc::clone(&self.node);
        let place = table.start(self.server, self.incarnation).map(|member| member.place);
        if self.served && place != Some(Place::Serving) {
            tracing::warn!(chain = self.chain, version = table.version, "this server was taken out of its chain");
            return Ok(Round::Over);
        }
        if let Some(why) = fault(&self.node, self.runs.as_ref(), period) {
            tracing::error!(chain = self.chain, why, "this server leaves its chain");
            view.trouble = Some(why);
            return Ok(Round::Failed);
        }
        if let Some((_, applied, committed, _)) = self.node.look() {
            (view.applied, view.committed) = (applied, committed);
        }
        let progress = Progress {
            applied: view.applied,
            committed: view.committed,
            copied_bytes: self.peers.copied_bytes(&self.chain),
        };
        let sent = self.node.now();
        match self.coordinator.renew(&self.chain, self.server, self.incarnation, stamp, progress).await? {
            // By the table before it goes on until then: its lease of that lasts as long as it lasts.
            Renewed::Taken if node.version() < table.version => {
                // It steps, which may wait for the store.
                let next = table.clone();
                let stepped = tokio::task::spawn_blocking(move || node.go_by_renewed(next, sent, period)).await;
                stepped.map_err(std::io::Error::other)?;
                self.served |= place == Some(Place::Serving);
            }
            Renewed::Taken => self.node.renewed(table.version, sent, period),
            Renewed::TableChanged => return Ok(Round::Again),
            Renewed::Superseded => return Err(Error::Superseded { server: self.server.0 }),
        }
        if let Some((server, version)) = self.node.in_step() {
            self.coordinator.tell_in_step(&self.chain, server, version).await?;
        }
        self.peers.tidy(&self.chain, table.version);
        if matches!(place, Some(Place::Serving | Place::Syncing)) && self.is_to_leave(&table, period).await? {
            tracing::info!(
                chain = self.chain,
                version = table.version,
                "this server leaves its chain as it is asked to"
            );
            return Ok(Round::Leaves);
        }
        // A manager is first to find that the one before is gone.
        if place == Some(Place::Serving) && self.cut_off(&table) >= period * 3 / 2 {
            tracing::warn!(
                chain = self.chain,
                "the server before this one cannot be reached: this one leaves its chain"
            );
            return Ok(Round::Leaves);
        }
        Ok(Round::Goes)
    }

    /// Whether operators have asked for what this server has to leave for, and it is the one that leaves next.
    async fn is_to_leave(&mut self, table: &Table, period: Duration) -> Result<bool> {
        if self.stood.0 != table.version {
            self.stood = (table.version, Instant::now());
        }
        let (wishes, wishes_stamp) = match self.coordinator.wishes(&self.chain).await {
            Ok(read) => read,
            // Nothing that is served rests on it.
            Err(error @ esker_cluster::Error::Damaged { .. }) => {
                if !std::mem::replace(&mut self.warned, true) {
                    tracing::warn!(chain = self.chain, %error, "what operators have asked for is not heeded");
                }
                return Ok(false);
            }
            Err(error) => return Err(error.into()),
        };
        if let Some(apart) = self.apart(table, period).filter(|apart| !wishes.apart.contains_key(apart)) {
            tracing::warn!(chain = self.chain, server = %apart, "the server behind this one cannot be reached");
            let mut next = wishes.open(table);
            next.apart.insert(apart, table.version);
            // Where another has changed them meanwhile, the next round does it.
            self.coordinator.set_wishes(&self.chain, wishes_stamp, &next).await?;
        }
        let leaver = wishes.leaver(table, self.stood.1.elapsed() >= period);
        Ok(leaver.is_some_and(|member| (member.server, member.incarnation) == (self.server, self.incarnation)))
    }

    /// The member behind this one, if that has not been reached for so long that it is to leave.
    fn apart(&mut self, table: &Table, period: Duration) -> Option<ServerId> {
        let behind = table.successor(self.server).filter(|member| member.place == Place::Serving)?;
        let now = Instant::now();
        if self.peers.reaches(&self.chain, behind.server) || self.reached.0 != table.version {
            self.reached = (table.version, now);
        }
        (now.saturating_duration_since(self.reached.1) >= period).then_some(behind.server)
    }

    /// For how long the member before this one has not been reached.
    fn cut_off(&mut self, table: &Table) -> Duration {
        let now = Instant::now();
        let before = table.predecessor(self.server);
        if before.is_none_or(|before| self.peers.reaches(&self.chain, before.server)) || self.heard.0 != table.version {
            self.heard = (table.version, now);
        }
        now.saturating_duration_since(self.heard.1)
    }

    /// Puts what the node knows into the view.
    pub(crate) fn look(&self, view: &mut View) {
        if let Some((place, applied, committed, kept_bytes)) = self.node.look() {
            (view.place, view.applied, view.committed) = (place, applied, committed);
            view.kept_bytes = kept_bytes as u64;
        }
        view.copied_bytes = self.peers.copied_bytes(&self.chain);
        view.lease_ms = self.node.lease_left().as_millis() as u64;
        // It begins with a lease: faces over a chain that answers nothing yet cannot be opened.
        let is_head = view.place == Some(Place::Serving) && view.head == Some(self.server);
        view.heads = is_head && (view.heads || view.lease_ms > 0);
    }

    /// Waits until all that was begun is acknowledged, for a short while at most: who waits for it is told so, which a
    /// head that has left cannot do. Nothing new is to come meanwhile.
    pub(crate) async fn settle(&self) {
        let until = Instant::now() + SETTLE_MAX;
        while Instant::now() < until {
            let (applied, committed) = self.node.progress();
            if applied == committed {
                return;
            }
            tokio::time::sleep(SETTLE_LOOK).await;
        }
    }

    /// Nothing is answered any more; `hands_over`: the lease is given up, and the table changed, so that others go on
    /// at once.
    pub(crate) async fn end(mut self, hands_over: bool) {
        self.node.give_up();
        if hands_over && let Err(error) = self.hand_over().await {
            tracing::warn!(chain = self.chain, %error, "others go on once the lease of this server has run out");
        }
        let (node, peers, chain, runs) =
            (Arc::clone(&self.node), Arc::clone(&self.peers), self.chain.clone(), self.runs.take());
        let ended = tokio::task::spawn_blocking(move || {
            // In this order: what begins to copy between the two is refused, or waited for.
            node.end();
            peers.leave(&chain);
            runs.map(JoinHandle::join)
        });
        if !matches!(ended.await, Ok(None | Some(Ok(())))) {
            tracing::error!(chain = self.chain, "the thread of a node panicked");
        }
    }

    async fn hand_over(&self) -> Result<()> {
        self.coordinator.give_up(&self.chain, self.server, self.incarnation).await?;
        for _ in 0..HAND_OVERS {
            if self.take_out().await? {
                break;
            }
        }
        Ok(())
    }

    /// Makes the table without this start, whose lease is given up; whether there is no more to be done. `false`:
    /// another has changed the table meanwhile.
    async fn take_out(&self) -> Result<bool> {
        let (table, stamp) = self.coordinator.table(&self.chain, Freshness::Latest).await?;
        let leases = self.coordinator.leases(&self.chain).await?;
        let Some(lease) = leases.get(&self.server).filter(|lease| lease.gave_up) else { return Ok(true) };
        if table.start(self.server, self.incarnation).is_none() {
            return Ok(true);
        }
        let heard = |member: &esker_chain::Member| {
            if member.server == self.server { Heard::Silent } else { Heard::Unsure }
        };
        let Some(next) = next_table(&table, heard, false) else { return Ok(true) };
        let standing = [(self.server, Some(lease.renewal))];
        Ok(self.coordinator.change(&self.chain, stamp, &next, &standing, &[]).await?)
    }
}

/// Why the life of this node, whose thread this is, cannot go on, if so.
fn fault(node: &Node, runs: Option<&JoinHandle<()>>, period: Duration) -> Option<String> {
    if let Some(error) = node.failure() {
        return Some(error.to_string());
    }
    if runs.is_some_and(JoinHandle::is_finished) {
        // No operation becomes durable here any more.
        return Some("the thread of its node has ended".into());
    }
    if node.is_hollow() {
        return Some("what it holds is part of a copy, and its table has it serve".into());
    }
    let since = node.syncs_since();
    (since > period).then(|| format!("a sync of its store has been under way for {} ms", since.as_millis()))
}

fn addresses(servers: &BTreeMap<ServerId, ServerRecord>) -> BTreeMap<ServerId, String> {
    servers.iter().map(|(server, record)| (*server, record.served.peer.clone())).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod tests {
    use esker_chain::{Message, Operation};
    use esker_memory::MemoryStore;

    use super::*;

    struct Alone;

    impl Links for Alone {
        fn send(&self, _: ServerId, _: Message<Operation>) {}
        fn refresh(&self) {}
        fn tell_in_step(&self, _: ServerId, _: u64) {}
        fn copy(&self, _: ServerId, _: u64, _: u64, _: Arc<dyn ObjectStore>) {}
        fn encode(&self, _: &Operation) -> Bytes {
            Bytes::new()
        }
        fn decode(&self, _: Bytes) -> esker_store::Result<Operation> {
            Err(esker_store::Error::Closed)
        }
        fn again(&self, _: ServerId) {}
    }

    #[test]
    fn a_node_whose_thread_has_panicked_ends_its_life() {
        // Failure: the server renewed its lease, and no write was acknowledged any more. Fix: its end is a fault.
        let store = Arc::new(MemoryStore::new());
        let standing = Standing::read(&*store, &"s".into()).unwrap();
        let node = Node::new(store, &standing, ServerId(1), Incarnation(1), 1 << 20, Arc::new(Alone));
        let own = Arc::clone(&node);
        let runs = std::thread::spawn(move || own.run());
        let period = Duration::from_secs(60);
        assert_eq!(fault(&node, Some(&runs), period), None);
        let panics = std::thread::spawn(|| panic!("as a step may"));
        while !panics.is_finished() {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(fault(&node, Some(&panics), period).unwrap(), "the thread of its node has ended");
        node.end();
        runs.join().unwrap();
    }
}
