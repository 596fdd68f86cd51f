//! A letter that would have to wait comes back unheard: the thread that moves the bytes of all peers waits for none.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use bytes::Bytes;
use esker_chain::{ChainStore, Incarnation, Links, Message, Node, Operation, ServerId, Standing, Table};
use esker_memory::MemoryStore;
use esker_store::{Change, CommitSeq, Completion, Error, Forward, ObjectId, ObjectStore, Stall, Transaction, WhenBusy};
use parking_lot::{Condvar, Mutex};

const SOURCE: ServerId = ServerId(0);
const PERIOD: Duration = Duration::from_secs(3_600);
/// What has not returned by then waits.
const SOON: Duration = Duration::from_secs(10);

struct Nowhere;

impl Links for Nowhere {
    fn send(&self, _: ServerId, _: Message<Operation>) {}
    fn refresh(&self) {}
    fn tell_in_step(&self, _: ServerId, _: u64) {}
    fn copy(&self, _: ServerId, _: u64, _: u64, _: Arc<dyn ObjectStore>) {}
    fn again(&self, _: ServerId) {}

    fn encode(&self, operation: &Operation) -> Bytes {
        panic!("{operation:?} was to be put by");
    }

    fn decode(&self, message: Bytes) -> esker_store::Result<Operation> {
        panic!("{message:?} was to be taken up");
    }
}

/// A store that has to read first, and reads once it may.
#[derive(Default)]
struct Cold {
    store: MemoryStore,
    is_cold: AtomicBool,
    /// A caller waits for what is read; the reading is over.
    reading: Mutex<(bool, bool)>,
    changed: Condvar,
}

impl Cold {
    fn await_reader(&self) {
        let mut reading = self.reading.lock();
        self.changed.wait_while_for(&mut reading, |(waits, _)| !*waits, SOON);
    }

    fn warm(&self) {
        self.is_cold.store(false, Ordering::SeqCst);
        self.reading.lock().1 = true;
        self.changed.notify_all();
    }
}

impl Forward for Cold {
    fn behind(&self) -> &dyn ObjectStore {
        &self.store
    }

    fn submit(&self, txn: Transaction) -> Completion<CommitSeq> {
        if self.is_cold.load(Ordering::SeqCst) && matches!(txn.when_busy, WhenBusy::Refuse(_)) {
            return Completion::ready(Err(Error::Busy { stall: Stall::Reading { number: 1 } }));
        }
        self.store.submit(txn)
    }

    fn room(&self, _: Stall) -> Completion<()> {
        let mut reading = self.reading.lock();
        reading.0 = true;
        self.changed.notify_all();
        self.changed.wait_while(&mut reading, |(_, over)| !*over);
        Completion::ready(Ok(()))
    }
}

fn object() -> ObjectId {
    ObjectId::new("c".into(), "o")
}

/// The tail of a chain of two.
fn tail() -> (Arc<Cold>, Arc<Node>) {
    let store = Arc::new(Cold::default());
    let standing = Standing::read(&*store, &Bytes::from_static(b"store")).unwrap();
    let node = Node::new(Arc::clone(&store) as _, &standing, ServerId(1), Incarnation(1), 1 << 20, Arc::new(Nowhere));
    node.go_by(Table::first([(SOURCE, Incarnation(1)), (ServerId(1), Incarnation(1))]));
    node.renewed(1, node.now(), PERIOD);
    let made = Transaction::new().create_collection(&"c".into());
    node.try_hear(SOURCE, forward(1, made, 0)).unwrap();
    (store, node)
}

fn forward(seq: u64, txn: Transaction, committed: u64) -> Message<Operation> {
    Message::Forward { version: 1, seq, operation: Operation::of(txn), committed }
}

fn set(value: &'static str) -> Transaction {
    Transaction::new().change(&object(), Change::OmapSet { key: "k".into(), value: value.into() })
}

/// What another thread is told by the node, if it does not wait.
fn tried(node: &Arc<Node>, message: Message<Operation>) -> Result<(), Message<Operation>> {
    let ((tells, told), own) = (channel(), Arc::clone(node));
    std::thread::spawn(move || tells.send(own.try_hear(SOURCE, message)));
    told.recv_timeout(SOON).expect("it waits")
}

/// Failure: one cold key held up the letters of all peers. Cause: the store was asked to read, and waited for, once the
/// letter was taken. Fix: the store is asked first, and the letter comes back where it refuses.
#[test]
fn a_letter_whose_store_has_to_read_first_comes_back_and_has_changed_nothing() {
    let (store, node) = tail();
    store.is_cold.store(true, Ordering::SeqCst);
    let unheard = tried(&node, forward(2, set("v"), 1)).unwrap_err();
    assert_eq!((node.progress(), node.failure().is_none()), ((1, 0), true), "nothing of it was heard");
    let reader = ChainStore::new(Arc::clone(&node));
    store.warm();
    tried(&node, unheard).unwrap();
    assert_eq!(node.progress(), (2, 1));
    let (found, barrier) = reader.omap_get(&object(), b"k").into_parts();
    assert_eq!(found.unwrap().unwrap(), "v");
    let (barrier, mut cx) = (barrier.unwrap(), Context::from_waker(Waker::noop()));
    assert!(barrier.poll(&mut cx).is_pending());
    tried(&node, Message::Committed { version: 1, seq: 2 }).unwrap();
    assert!(matches!(barrier.poll(&mut cx), Poll::Ready(Ok(()))), "no place is left open");
    // One that was heard already, and one after a gap, change nothing and wait for nothing.
    for seq in [1, 2, 4] {
        tried(&node, forward(seq, set("x"), 2)).unwrap();
    }
    assert_eq!(node.progress(), (2, 2));
}

#[test]
fn a_letter_comes_back_while_a_reader_holds_its_moment() {
    let (_store, node) = tail();
    let reader = ChainStore::new(Arc::clone(&node));
    let moment = reader.moment();
    let held = moment.read();
    let unheard = tried(&node, forward(2, set("v"), 0)).unwrap_err();
    tried(&node, Message::Committed { version: 1, seq: 1 }).unwrap();
    drop(held);
    tried(&node, unheard).unwrap();
    assert_eq!(node.progress(), (2, 1));
}

/// Has another thread hear what waits for the store, as soon as it is woken.
struct Hears(Arc<Cold>, Arc<Node>);

impl Wake for Hears {
    fn wake(self: Arc<Self>) {
        self.0.is_cold.store(true, Ordering::SeqCst);
        let node = Arc::clone(&self.1);
        std::thread::spawn(move || node.hear(SOURCE, forward(3, set("later"), 2)));
        self.0.await_reader();
    }
}

/// Failure: the thread that moves the bytes of all peers waited for a step of another. Cause: it took the lock of the
/// node again once it had woken those who wait. Fix: it does not.
#[test]
fn a_letter_that_wakes_readers_does_not_wait_for_what_they_begin() {
    let (store, node) = tail();
    tried(&node, forward(2, set("v"), 1)).unwrap();
    let (_, barrier) = ChainStore::new(Arc::clone(&node)).omap_get(&object(), b"k").into_parts();
    let (barrier, waker) = (barrier.unwrap(), Waker::from(Arc::new(Hears(Arc::clone(&store), Arc::clone(&node)))));
    assert!(barrier.poll(&mut Context::from_waker(&waker)).is_pending());
    tried(&node, Message::Committed { version: 1, seq: 2 }).unwrap();
    store.warm();
    // It waits for the lock.
    assert!(node.progress().0 >= 2);
}
