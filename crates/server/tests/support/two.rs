//! Two servers, each with a store of its own, as heads of two chains that share the keys of a cluster.

use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arc_swap::ArcSwap;
use esker_kv::{Kind, SLOTS, SystemClock};
use esker_memory::MemoryStore;
use esker_server::resp::{
    Closed, Cluster, ClusterNode, ClusterView, Config, Moving, NoEngineInfo, SlotEpoch, SlotRange, SlotRecords,
    SlotState,
};
use esker_store::{CommitSeq, Completion, Error, Forward, ObjectId, ObjectStore, Transaction};
use parking_lot::Mutex;

use super::{Client, Running, config};

/// What a server knows of the cluster of two chains, of which the first keeps all slots at first.
pub struct Known {
    pub own: usize,
    ports: ArcSwap<[u16; 2]>,
    /// Not: what the first chain keeps is not the concern of this one, which is by itself.
    pub shares: AtomicBool,
    /// Not: its store answers nothing; and how often it was asked all the same.
    pub has_head: AtomicBool,
    pub refused: AtomicU64,
    /// The server that tells records.
    number: AtomicU64,
    /// Held: what is written waits; and how many writes do.
    pub writing: Mutex<()>,
    pub waiting: AtomicU64,
    making: Mutex<()>,
    pub records: ArcSwap<SlotRecords>,
    pub view: ArcSwap<ClusterView>,
}

/// The chain that keeps a slot, as the server of this one knows it, and since which epoch.
pub fn kept(own: usize, slot: u16, records: &SlotRecords) -> (usize, u64) {
    let known = records.get(&slot).map(|record| match record.state {
        SlotState::Leaving => (own, record.epoch - 1),
        SlotState::Coming => (1 - own, record.epoch - 1),
        SlotState::Here => (own, record.epoch),
        SlotState::Gone => (1 - own, record.epoch),
    });
    known.unwrap_or((0, 0))
}

impl Known {
    fn new(own: usize) -> Self {
        let (ports, records) = (ArcSwap::from_pointee([1, 1]), ArcSwap::default());
        let view = ArcSwap::from_pointee(Self::made(own, [1, 1], true, &SlotRecords::new()));
        Self {
            own,
            ports,
            shares: AtomicBool::new(true),
            has_head: AtomicBool::new(true),
            refused: AtomicU64::new(0),
            number: AtomicU64::new(0),
            writing: Mutex::default(),
            waiting: AtomicU64::new(0),
            making: Mutex::default(),
            records,
            view,
        }
    }

    fn made(own: usize, ports: [u16; 2], shares: bool, records: &SlotRecords) -> ClusterView {
        let node = |index: usize| ClusterNode {
            id: format!("{:040x}", 0xa0 + index),
            host: "127.0.0.1".into(),
            port: ports[index],
            tls_port: None,
            is_up: true,
        };
        if !shares {
            let alone = SlotRange { first: 0, last: SLOTS as u16 - 1, head: Some(own), replicas: Vec::new(), epoch: 0 };
            let ranges = if records.is_empty() { vec![alone] } else { Vec::new() };
            return ClusterView::new(1, &node(own).id, vec![node(0), node(1)], ranges).unwrap().among_others();
        }
        let range = |slot: u16| {
            let (head, epoch) = kept(own, slot, records);
            SlotRange { first: slot, last: slot, head: Some(head), replicas: Vec::new(), epoch }
        };
        let ranges = (0..SLOTS as u16).map(range).collect();
        ClusterView::new(1, &node(own).id, vec![node(0), node(1)], ranges).unwrap().sharing()
    }

    fn make(&self) {
        // No view of what was known before comes after one of what is known by then.
        let _alone = self.making.lock();
        let shares = self.shares.load(Ordering::SeqCst);
        self.view.store(Arc::new(Self::made(self.own, **self.ports.load(), shares, &self.records.load())));
    }

    /// It is seen to share the slots, or not to.
    pub fn share(&self, shares: bool) {
        self.shares.store(shares, Ordering::SeqCst);
        self.make();
    }
}

impl Cluster for Known {
    fn view(&self) -> Arc<ClusterView> {
        self.view.load_full()
    }

    fn begin(&self) -> u64 {
        self.number.fetch_add(1, Ordering::SeqCst) + 1
    }

    fn tell(&self, number: u64, records: &Arc<SlotRecords>) {
        if number != self.number.load(Ordering::SeqCst) {
            return;
        }
        self.records.store(Arc::clone(records));
        self.make();
    }
}

/// The heads of the chains.
pub struct Two {
    pub servers: Vec<Running>,
    pub known: Vec<Arc<Known>>,
    thrift: Option<(String, Kind)>,
}

/// A chain's store, which answers nothing while it has no head.
struct Headed {
    store: Arc<MemoryStore>,
    known: Arc<Known>,
}

impl Headed {
    fn look(&self) -> Result<(), Error> {
        if self.known.has_head.load(Ordering::SeqCst) {
            return Ok(());
        }
        self.known.refused.fetch_add(1, Ordering::SeqCst);
        Err(Error::NotServing { cause: "the lease has run out".into() })
    }
}

impl Forward for Headed {
    fn behind(&self) -> &dyn ObjectStore {
        &*self.store
    }

    fn before(&self, _object: Option<&ObjectId>) -> Result<(), Error> {
        self.look()
    }

    fn submit(&self, txn: Transaction) -> Completion<CommitSeq> {
        match self.look() {
            Ok(()) => {
                self.known.waiting.fetch_add(1, Ordering::SeqCst);
                drop(self.known.writing.lock());
                self.known.waiting.fetch_sub(1, Ordering::SeqCst);
                self.store.submit(txn)
            }
            Err(error) => Completion::ready(Err(error)),
        }
    }
}

fn server(own: usize, store: Arc<MemoryStore>, thrift: Option<(String, Kind)>) -> (Running, Arc<Known>) {
    let known = Arc::new(Known::new(own));
    let cluster = Some(Arc::clone(&known) as Arc<dyn Cluster>);
    let config = Config { cluster, int_databases: vec![1], thrift_namespace: thrift, ..config() };
    let seen = Arc::new(Headed { store: Arc::clone(&store), known: Arc::clone(&known) });
    (Running::start_over(store, seen, config, Arc::new(SystemClock), Arc::new(NoEngineInfo)), known)
}

impl Two {
    pub fn start() -> Self {
        Self::serving(None)
    }

    /// This namespace is served by Thrift as well.
    pub fn serving(thrift: Option<(String, Kind)>) -> Self {
        let (servers, known) = (0..2).map(|own| server(own, Arc::new(MemoryStore::new()), thrift.clone())).unzip();
        let two = Self { servers, known, thrift };
        two.meet();
        two
    }

    /// Each knows where the other is.
    fn meet(&self) {
        let ports = [0, 1].map(|index| self.servers[index].address().port());
        for known in &self.known {
            known.ports.store(Arc::new(ports));
            known.make();
        }
    }

    /// Another head takes over, with what the chain holds.
    pub fn fail_over(&mut self, index: usize) {
        let (before, told) = (self.servers.remove(index), self.known.remove(index));
        let (after, known) = server(index, before.stop(), self.thrift.clone());
        known.share(told.shares.load(Ordering::SeqCst));
        self.servers.insert(index, after);
        self.known.insert(index, known);
        self.meet();
    }

    pub fn moving(&self, index: usize) -> Moving {
        self.servers[index].handle.moving()
    }

    pub fn client(&self, index: usize) -> Client<TcpStream> {
        self.servers[index].client()
    }

    pub fn moved(&self, slot: u16, to: usize) -> String {
        format!("-MOVED {slot} 127.0.0.1:{}\r\n", self.servers[to].address().port())
    }

    /// Has slots gathered, and the move begun.
    pub fn begin(&self, from: usize, slots: &[SlotEpoch]) -> u64 {
        static CALLED: AtomicU64 = AtomicU64::new(1);
        let called = CALLED.fetch_add(1, Ordering::SeqCst);
        let numbers: Vec<u16> = slots.iter().map(|(slot, _)| *slot).collect();
        self.moving(from).gather(&numbers, &|| true).unwrap();
        let serves = self.moving(from).thrift();
        self.moving(1 - from).begin(called, (name(from), &serves), slots).unwrap();
        called
    }

    pub fn put(&self, from: usize, called: u64, closed: &Closed) -> u64 {
        let to = self.moving(1 - from);
        self.moving(from).read(closed, &mut |first, parts| to.put(called, first, &parts)).unwrap()
    }

    /// Slots go to the other chain, each in this epoch.
    pub fn go(&self, from: usize, slots: &[SlotEpoch]) {
        let called = self.begin(from, slots);
        let closed = self.moving(from).close(slots, name(1 - from)).unwrap();
        self.put(from, called, &closed);
        assert!(self.moving(1 - from).take(called, slots).unwrap());
        self.moving(from).give(&closed).unwrap();
        self.moving(from).end_gathering();
    }
}

pub fn name(index: usize) -> &'static str {
    ["a", "b"][index]
}
