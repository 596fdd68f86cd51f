//! A member that is brought up shows nothing that its source waits for still.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use esker_chain::{
    ChainStore, Copying, Incarnation, Links, Member, Message, Node, Operation, Place, ServerId, Standing, Table,
};
use esker_memory::MemoryStore;
use esker_store::{Change, ObjectId, ObjectStore, Transaction};
use parking_lot::Mutex;

/// All that is sent is lost. Operations that are put by are kept here, and their places are their messages.
#[derive(Default)]
struct Nowhere(Mutex<Vec<Operation>>);

impl Links for Nowhere {
    fn send(&self, _: ServerId, _: Message<Operation>) {}
    fn refresh(&self) {}
    fn tell_in_step(&self, _: ServerId, _: u64) {}
    fn copy(&self, _: ServerId, _: u64, _: u64, _: Arc<dyn ObjectStore>) {}
    fn again(&self, _: ServerId) {}

    fn encode(&self, operation: &Operation) -> Bytes {
        let mut all = self.0.lock();
        all.push(operation.clone());
        vec![all.len() as u8 - 1].into()
    }

    fn decode(&self, message: Bytes) -> esker_store::Result<Operation> {
        Ok(self.0.lock()[usize::from(message[0])].clone())
    }
}

/// Server 0 serves, and server 1 stands so.
fn table(version: u64, place: Place) -> Table {
    let member = |server, place, since| Member { server: ServerId(server), incarnation: Incarnation(1), place, since };
    Table { version, members: vec![member(0, Place::Serving, 1), member(1, place, version)] }
}

#[test]
fn what_came_with_a_copy_is_shown_once_it_is_acknowledged() {
    let (source, period) = (ServerId(0), Duration::from_secs(3_600));
    let store: Arc<dyn ObjectStore> = Arc::new(MemoryStore::new());
    let standing = Standing::read(&*store, &Bytes::from_static(b"store")).unwrap();
    let node =
        Node::new(Arc::clone(&store), &standing, ServerId(1), Incarnation(1), 1 << 20, Arc::<Nowhere>::default());
    node.go_by(table(1, Place::Syncing));
    assert_eq!(node.copying(source, 1, 7), Copying::Begins);
    // The copy: operation 7 was the last, and its writer waits.
    let object = ObjectId::new("c".into(), "o");
    let set = Change::OmapSet { key: Bytes::from_static(b"k"), value: Bytes::from_static(b"v") };
    store.submit(Transaction::new().create_collection(&"c".into()).change(&object, set)).wait().unwrap();
    node.copied(source, 1, 7).unwrap();
    node.go_by(table(2, Place::Serving));
    node.renewed(2, node.now(), period);
    let read = ChainStore::new(Arc::clone(&node)).omap_get(&object, b"k");
    let (found, barrier) = read.into_parts();
    assert_eq!(found.unwrap(), Some(Bytes::from_static(b"v")));
    let barrier = barrier.expect("a reader waits for what may not be acknowledged");
    let mut cx = Context::from_waker(Waker::noop());
    assert!(barrier.poll(&mut cx).is_pending());
    node.hear(source, Message::Committed { version: 2, seq: 6 });
    assert!(barrier.poll(&mut cx).is_pending());
    node.hear(source, Message::Committed { version: 2, seq: 7 });
    assert!(matches!(barrier.poll(&mut cx), Poll::Ready(Ok(()))));
    let (_, barrier) = ChainStore::new(node).omap_get(&object, b"k").into_parts();
    assert!(barrier.is_none(), "nothing is open any more");
}

#[test]
fn what_is_acknowledged_before_a_copy_is_whole_is_shown_though_nothing_comes_after_it() {
    let (source, period) = (ServerId(0), Duration::from_secs(3_600));
    let store: Arc<dyn ObjectStore> = Arc::new(MemoryStore::new());
    let standing = Standing::read(&*store, &Bytes::from_static(b"store")).unwrap();
    let links = Arc::<Nowhere>::default();
    let node = Node::new(Arc::clone(&store), &standing, ServerId(1), Incarnation(1), 1 << 20, links);
    node.go_by(table(1, Place::Syncing));
    assert_eq!(node.copying(source, 1, 7), Copying::Begins);
    node.hear(source, forward(8, "eight"));
    // Its head does not wait for it yet.
    node.hear(source, Message::Committed { version: 1, seq: 8 });
    node.copied(source, 1, 7).unwrap();
    node.go_by(table(2, Place::Serving));
    node.renewed(2, node.now(), period);
    node.hear(source, Message::Begin { version: 2, committed: 8 });
    let (found, barrier) = ChainStore::new(node).omap_get(&ObjectId::new("c".into(), "o"), b"k").into_parts();
    assert_eq!(found.unwrap(), Some(Bytes::from_static(b"eight")));
    assert!(barrier.is_none_or(|barrier| barrier.poll(&mut Context::from_waker(Waker::noop())).is_ready()));
}

fn forward(seq: u64, value: &'static str) -> Message<Operation> {
    let change = Change::OmapSet { key: "k".into(), value: value.into() };
    let txn = Transaction::new().create_collection(&"c".into()).change(&ObjectId::new("c".into(), "o"), change);
    Message::Forward { version: 1, seq, operation: Operation::of(txn), committed: 0 }
}

#[test]
fn what_comes_while_a_copy_is_under_way_is_applied_behind_it() {
    let source = ServerId(0);
    let store: Arc<dyn ObjectStore> = Arc::new(MemoryStore::new());
    let standing = Standing::read(&*store, &Bytes::from_static(b"store")).unwrap();
    let links = Arc::<Nowhere>::default();
    let node = Node::new(Arc::clone(&store), &standing, ServerId(1), Incarnation(1), 1 << 20, Arc::clone(&links) as _);
    node.go_by(table(1, Place::Syncing));
    node.hear(source, forward(6, "before the copy was asked for"));
    assert_eq!(node.copying(source, 1, 7), Copying::Begins);
    for (seq, value) in [(7, "in the copy"), (8, "eight"), (9, "nine"), (11, "after a gap"), (8, "again")] {
        node.hear(source, forward(seq, value));
    }
    assert_eq!(links.0.lock().len(), 2, "two are put by");
    let standing = Standing::read(&*store, &Bytes::new()).unwrap();
    assert_eq!(standing.applied, None, "a power cut now leaves nothing to build on");
    // The table changes, and not who brings it up.
    let mut next = table(2, Place::Syncing);
    next.members[1].since = 1;
    node.go_by(next);
    node.copied(source, 1, 7).unwrap();
    assert_eq!(node.progress().0, 9);
    let object = ObjectId::new("c".into(), "o");
    assert_eq!(store.omap_get(&object, b"k").wait().unwrap().unwrap(), "nine");
    assert_eq!(Standing::read(&*store, &Bytes::new()).unwrap().applied, Some(9));
    // What it holds already it does not give up.
    assert_eq!((node.copying(source, 2, 9), node.copying(source, 1, 12)), (Copying::Here, Copying::Refused));
    assert_eq!(node.copying(source, 2, 12), Copying::Begins);
    node.copy_failed();
    node.copied(source, 2, 12).unwrap();
    assert_eq!(Standing::read(&*store, &Bytes::new()).unwrap().applied, None, "it was given up");
}
