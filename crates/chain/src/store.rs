//! A chain as a store: its head decides, all its replicas answer readers.
//!
//! read → the store below → what it saw, is it acknowledged? → at once, or once it is
//!
//! Invariant: a barrier that is handed out is one of the chain's mark; reaching it implies that the store below has
//! what it covers.

use std::ops::Range;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use esker_store::{
    Applied, Capability, Collection, CommitCursor, CommitEntry, CommitSeq, Completion, DataRun, Error, Forward, Later,
    ObjectId, ObjectStore, OmapScan, Parts, Result, SlotScan, Snapshot, Soon, Stall, Stat, Transaction, Waits,
};
use parking_lot::RwLock;

use crate::dirty::Part;
use crate::node::{Node, Serving};
use crate::standing::COLLECTION;

/// As messages name it.
const BACKEND: &str = "chain";
/// What the number of an operation takes of a transaction, in bytes.
const NUMBER_BYTES: u64 = 64;

/// A replicated store, through one of its replicas.
#[derive(Clone)]
pub struct ChainStore(Arc<Node>);

/// What a read has seen.
enum Seen {
    /// This of an object.
    Object(ObjectId, Part),
    /// Whatever there is.
    Everything,
}

/// A read that is on its way.
struct Looking<T> {
    read: Completion<T>,
    seen: Seen,
    node: Arc<Node>,
    /// How the node stood before it read.
    serving: Serving,
}

impl<T> Looking<T> {
    /// What it saw is looked up after it has seen it.
    fn answer(self) -> Applied<T> {
        let Self { read, seen, node, serving } = self;
        let (result, _) = read.into_parts();
        let last = node.dirty.last();
        let place = match &seen {
            // Nothing is open: seldom otherwise.
            _ if last <= node.mark.durable() => last,
            Seen::Object(object, part) => node.dirty.last_of(object, part),
            Seen::Everything => last,
        };
        let barrier = node.barrier(place);
        match node.check_serves(serving) {
            Ok(()) => (result, barrier),
            Err(error) => (Err(error), None),
        }
    }
}

impl<T: Send> Later<T> for Looking<T> {
    fn wait(self: Box<Self>) -> Applied<T> {
        self.answer()
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Applied<T>> {
        if self.read.poll_arrived(cx).is_pending() {
            return Poll::Pending;
        }
        let read = std::mem::replace(&mut self.read, Completion::ready(Err(Error::Closed)));
        let seen = std::mem::replace(&mut self.seen, Seen::Everything);
        Poll::Ready(Looking { read, seen, node: Arc::clone(&self.node), serving: self.serving }.answer())
    }
}

impl ChainStore {
    /// The store that this node is a replica of.
    pub fn new(node: Arc<Node>) -> Self {
        Self(node)
    }

    /// What holds this shared sees at another replica than the head what it reads as it was at one moment: meanwhile
    /// nothing is applied that the head has decided. To be held for moments.
    pub fn moment(&self) -> Arc<RwLock<()>> {
        Arc::clone(self.0.moment())
    }

    /// What is acknowledged of what `read` reads of the store below.
    fn seeing<T: Send + 'static>(
        &self,
        seen: Seen,
        read: impl FnOnce(&dyn ObjectStore) -> Completion<T>,
    ) -> Completion<T> {
        let (node, serving) = (Arc::clone(&self.0), self.0.serves());
        let looking = Looking { read: read(&*node.store), seen, node, serving };
        if looking.read.is_here() {
            let (result, barrier) = looking.answer();
            return Completion::after(result, barrier);
        }
        Completion::later(Box::new(looking))
    }

    fn any<T: Send + 'static>(
        &self,
        object: &ObjectId,
        read: impl FnOnce(&dyn ObjectStore) -> Completion<T>,
    ) -> Completion<T> {
        self.seeing(Seen::Object(object.clone(), Part::Any), read)
    }

    fn keys<T: Send + 'static>(
        &self,
        object: &ObjectId,
        part: Part,
        read: impl FnOnce(&dyn ObjectStore) -> Completion<T>,
    ) -> Completion<T> {
        self.seeing(Seen::Object(object.clone(), part), read)
    }
}

impl ObjectStore for ChainStore {
    fn capability(&self) -> Capability {
        let below = self.0.store.capability();
        Capability {
            backend: BACKEND,
            // Each operation carries its number as well.
            transaction_bytes_max: below.transaction_bytes_max - NUMBER_BYTES,
            transaction_ops_max: below.transaction_ops_max - 1,
            // A copy is made in another order than its source was.
            commit_order: false,
            watches: false,
            sessions: false,
            ..below
        }
    }

    fn submit(&self, txn: Transaction) -> Completion<CommitSeq> {
        if let Err(error) = txn.check() {
            return Completion::ready(Err(error));
        }
        let (len, max) = (txn.ops.len() as u64, self.capability().transaction_ops_max);
        if len > max {
            let (what, limit) = ("number of operations", "TRANSACTION_OPS_MAX less one, on chains");
            return Completion::ready(Err(Error::TooLarge { what, len, limit, max }));
        }
        let guarded = txn.guards.iter().map(|guard| guard.object.collection());
        if guarded.chain(txn.ops.iter().flat_map(Node::collections_of)).any(Node::is_own) {
            let why = format!("{COLLECTION:?} is the chain's own");
            return Completion::ready(Err(Error::Invalid { what: "collection", why }));
        }
        self.0.submit(txn)
    }

    fn room(&self, stall: Stall) -> Completion<()> {
        match self.0.backlog() {
            Some(backlog) if stall == Stall::Backlog => Completion::after(Ok(()), Some(backlog)),
            _ => self.0.store.room(stall),
        }
    }

    fn stall(&self, waits: Waits) -> Option<Stall> {
        self.0.backlog().map(|_| Stall::Backlog).or_else(|| self.0.store.stall(waits))
    }

    fn sync(&self) -> Completion<CommitSeq> {
        self.0.sync()
    }

    fn stat(&self, object: &ObjectId) -> Completion<Option<Stat>> {
        self.any(object, |store| store.stat(object))
    }

    fn size(&self, object: &ObjectId) -> Completion<Option<u64>> {
        self.any(object, |store| store.size(object))
    }

    fn read(&self, object: &ObjectId, range: Range<u64>) -> Completion<Bytes> {
        self.any(object, |store| store.read(object, range))
    }

    fn extents(&self, object: &ObjectId, range: Range<u64>) -> Completion<Vec<DataRun>> {
        self.any(object, |store| store.extents(object, range))
    }

    fn xattr(&self, object: &ObjectId, name: &[u8]) -> Completion<Option<Bytes>> {
        self.keys(object, Part::xattr(name), |store| store.xattr(object, name))
    }

    fn xattrs(&self, object: &ObjectId) -> Completion<Vec<(Bytes, Bytes)>> {
        self.any(object, |store| store.xattrs(object))
    }

    fn omap_get(&self, object: &ObjectId, key: &[u8]) -> Completion<Option<Bytes>> {
        self.keys(object, Part::omap([key]), |store| store.omap_get(object, key))
    }

    fn omap_get_many(&self, object: &ObjectId, keys: &[Bytes]) -> Completion<Vec<Option<Bytes>>> {
        self.keys(object, Part::omap(keys.iter().map(|key| &key[..])), |store| store.omap_get_many(object, keys))
    }

    fn omap_has_many(&self, object: &ObjectId, keys: &[Bytes]) -> Completion<Vec<bool>> {
        self.keys(object, Part::omap(keys.iter().map(|key| &key[..])), |store| store.omap_has_many(object, keys))
    }

    fn omap_scan(&self, object: &ObjectId, scan: &OmapScan) -> Completion<Vec<(Bytes, Bytes)>> {
        self.any(object, |store| store.omap_scan(object, scan))
    }

    fn slot_get(&self, object: &ObjectId, index: u64) -> Completion<Option<Bytes>> {
        self.keys(object, Part::slots([&index]), |store| store.slot_get(object, index))
    }

    fn slot_get_many(&self, object: &ObjectId, indexes: &[u64]) -> Completion<Vec<Option<Bytes>>> {
        self.keys(object, Part::slots(indexes), |store| store.slot_get_many(object, indexes))
    }

    fn will_get(&self, object: &ObjectId, soon: Soon<'_>) {
        self.0.store.will_get(object, soon);
    }

    fn bring(&self, parts: &mut dyn Parts) -> bool {
        self.0.store.bring(parts)
    }

    fn slot_scan(&self, object: &ObjectId, scan: &SlotScan) -> Completion<Vec<(u64, Bytes)>> {
        self.any(object, |store| store.slot_scan(object, scan))
    }

    fn commit_scan(
        &self,
        _: &Collection,
        _: &[u8],
        _: CommitCursor,
        _: usize,
    ) -> Completion<(Vec<CommitEntry>, Option<CommitCursor>)> {
        Completion::ready(Err(Error::Unsupported { backend: BACKEND, what: "scan in commit order" }))
    }

    fn collections(&self) -> Completion<Vec<Collection>> {
        self.seeing(Seen::Everything, |store| store.collections().map(without_own))
    }

    fn list(&self, collection: &Collection, after: Option<&[u8]>, limit: usize) -> Completion<Vec<Bytes>> {
        if Node::is_own(collection) {
            return no_such(collection);
        }
        self.seeing(Seen::Everything, |store| store.list(collection, after, limit))
    }

    fn snapshot(&self) -> Result<Snapshot> {
        let Snapshot { seq, store } = self.0.snapshot()?;
        Ok(Snapshot { seq, store: Arc::new(Faces(store)) })
    }
}

/// A snapshot without what is the chain's own.
struct Faces(Arc<dyn ObjectStore>);

impl Forward for Faces {
    fn behind(&self) -> &dyn ObjectStore {
        &*self.0
    }

    fn collections(&self) -> Completion<Vec<Collection>> {
        self.0.collections().map(without_own)
    }

    fn list(&self, collection: &Collection, after: Option<&[u8]>, limit: usize) -> Completion<Vec<Bytes>> {
        if Node::is_own(collection) { no_such(collection) } else { self.0.list(collection, after, limit) }
    }
}

fn without_own(all: Vec<Collection>) -> Vec<Collection> {
    all.into_iter().filter(|one| !Node::is_own(one)).collect()
}

fn no_such<T>(collection: &Collection) -> Completion<T> {
    Completion::ready(Err(Error::NoCollection { collection: collection.to_string() }))
}
