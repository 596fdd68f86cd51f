//! Nodes in one process, and what connects them.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![allow(dead_code, reason = "each test file uses its own part")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use esker_chain::{ChainStore, Incarnation, Links, Message, Node, Operation, ServerId, Standing, Table};
use esker_store::ObjectStore;
use parking_lot::RwLock;

/// Leases of these tests, where none is to run out.
pub const PERIOD: Duration = Duration::from_secs(3_600);

/// Of operations, for one that is brought up.
pub const KEPT_BYTES_MAX: usize = 1 << 20;

type Letter = (ServerId, Message<Operation>);

/// Every node's box of what was sent to it.
#[derive(Default)]
pub struct Net {
    boxes: RwLock<Vec<Sender<Letter>>>,
    /// Servers whose letters are lost, both ways.
    cut: RwLock<Vec<ServerId>>,
    /// Servers whose own letters are.
    mute: RwLock<Vec<ServerId>>,
}

/// One node's way into the net.
struct Line {
    me: ServerId,
    net: Arc<Net>,
}

impl Links for Line {
    fn send(&self, to: ServerId, message: Message<Operation>) {
        let cut = self.net.cut.read();
        if !cut.contains(&to) && !cut.contains(&self.me) && !self.net.mute.read().contains(&self.me) {
            // A node that has ended reads nothing.
            let _ = self.net.boxes.read()[to.0 as usize].send((self.me, message));
        }
    }

    fn refresh(&self) {}

    fn tell_in_step(&self, _: ServerId, _: u64) {}

    fn again(&self, _: ServerId) {}

    fn encode(&self, operation: &Operation) -> Bytes {
        panic!("{operation:?} was to be put by");
    }

    fn decode(&self, message: Bytes) -> esker_store::Result<Operation> {
        panic!("{message:?} was to be taken up");
    }

    fn copy(&self, to: ServerId, _: u64, seq: u64, _: Arc<dyn ObjectStore>) {
        panic!("server {to} was to be sent a copy of the state after {seq}");
    }
}

/// A node with its threads; they end when this is dropped.
pub struct Running {
    pub node: Arc<Node>,
    pub store: ChainStore,
    ended: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::SeqCst);
        self.node.end();
        for thread in self.threads.drain(..) {
            let ended = thread.join();
            if !std::thread::panicking() {
                ended.unwrap();
            }
        }
    }
}

fn serve(node: &Node, letters: &Receiver<Letter>, ended: &AtomicBool) {
    while !ended.load(Ordering::SeqCst) {
        if let Ok((from, message)) = letters.recv_timeout(Duration::from_millis(20)) {
            node.hear(from, message);
        }
    }
}

/// Nodes of a chain, over these stores, from head to tail.
pub struct Chain {
    pub net: Arc<Net>,
    pub table: Table,
    pub nodes: Vec<Running>,
}

impl Chain {
    pub fn over(stores: Vec<Arc<dyn ObjectStore>>) -> Self {
        let net = Arc::new(Net::default());
        let table = Table::first((0..stores.len()).map(|number| (ServerId(number as u32), Incarnation(1))));
        let mut receivers = Vec::new();
        for _ in &stores {
            let (sender, receiver) = channel();
            net.boxes.write().push(sender);
            receivers.push(receiver);
        }
        let nodes = stores.into_iter().zip(receivers).enumerate();
        let nodes = nodes.map(|(number, (store, letters))| {
            let me = ServerId(number as u32);
            let links = Arc::new(Line { me, net: Arc::clone(&net) });
            let standing = Standing::read(&*store, &Bytes::from(format!("store {number}"))).unwrap();
            let node = Node::new(store, &standing, me, Incarnation(1), KEPT_BYTES_MAX, links);
            let ended = Arc::new(AtomicBool::new(false));
            let (runs, hears, over) = (Arc::clone(&node), Arc::clone(&node), Arc::clone(&ended));
            let threads = vec![
                std::thread::spawn(move || runs.run()),
                std::thread::spawn(move || serve(&hears, &letters, &over)),
            ];
            Running { store: ChainStore::new(Arc::clone(&node)), node, ended, threads }
        });
        let chain = Self { net: Arc::clone(&net), table, nodes: nodes.collect() };
        chain.go_by(&chain.table.clone());
        chain
    }

    /// All nodes go by this table, and have a lease under it, but those that are cut off.
    pub fn go_by(&self, table: &Table) {
        // The tail first: who sends has to be heard.
        for (number, running) in self.nodes.iter().enumerate().rev() {
            if !self.net.cut.read().contains(&ServerId(number as u32)) {
                running.node.go_by(table.clone());
                running.node.renewed(table.version, running.node.now(), PERIOD);
            }
        }
    }

    /// What this server sends, and what is sent to it, is lost.
    pub fn cut(&self, number: usize) {
        self.net.cut.write().push(ServerId(number as u32));
    }

    /// What this server sends is lost.
    pub fn mute(&self, number: usize) {
        self.net.mute.write().push(ServerId(number as u32));
    }

    /// Nothing is lost any more.
    pub fn heal(&self) {
        self.net.cut.write().clear();
        self.net.mute.write().clear();
    }

    pub fn store(&self, number: usize) -> &ChainStore {
        &self.nodes[number].store
    }
}

/// Waits for what must come.
pub fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < Duration::from_secs(20), "{what}: not yet");
        std::thread::sleep(Duration::from_millis(2));
    }
}
