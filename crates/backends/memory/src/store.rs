//! [`MemoryStore`]: one lock over ordinary maps; every completion is ready at once.
//!
//! Invariants:
//! 1. A transaction is checked, guarded and tried over names before anything changes; after that nothing fails.
//! 2. Everything happens under one lock, so every call shows one moment and commit order is lock order.

use std::ops::{Bound, Range};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use esker_store::limits::{OBJECT_BYTES_MAX, SCAN_BYTES_MAX, SCAN_ENTRIES_MAX, TRANSACTION_BYTES_MAX, Together};
use esker_store::{
    Capability, Change, Changed, Collection, CommitCursor, CommitEntry, CommitSeq, Completion, DataRun, Error,
    ObjectId, ObjectStore, OmapScan, Op, Result, SlotScan, Snapshot, Stat, Transaction, Watching,
};
use parking_lot::RwLock;

use crate::names::{Collections, try_names};
use crate::object::{Object, holds};
use crate::watches::{Watched, Watches};

/// An object store in memory: everything is readable at once and gone with the process.
#[derive(Debug, Default)]
pub struct MemoryStore {
    state: RwLock<State>,
    /// It is a snapshot.
    read_only: bool,
    watches: Arc<Watches>,
}

/// A watching of this store.
struct Watch {
    watches: Arc<Watches>,
    number: u64,
    watched: Arc<Watched>,
}

impl Watching for Watch {
    fn is_live(&self) -> bool {
        self.watched.live.load(Ordering::SeqCst)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.watches.remove(self.number);
    }
}

#[derive(Clone, Debug, Default)]
struct State {
    collections: Collections,
    /// Transactions applied.
    seq: u64,
    /// Slot and omap entries written: the last place in commit order.
    order: u64,
}

impl MemoryStore {
    /// An empty store.
    pub fn new() -> Self {
        Self::default()
    }

    /// Looks at an object; a missing one looks like an empty one.
    fn look<R>(&self, id: &ObjectId, look: impl FnOnce(&Object) -> R) -> Completion<R> {
        let state = self.state.read();
        let empty = Object::default();
        Completion::ready(Ok(look(state.object(id).unwrap_or(&empty))))
    }
}

impl State {
    fn object(&self, id: &ObjectId) -> Option<&Object> {
        self.collections.get(id.collection())?.get(id.name())
    }

    fn take(&mut self, id: &ObjectId) -> Option<Object> {
        self.collections.get_mut(id.collection())?.remove(id.name())
    }

    fn put(&mut self, id: &ObjectId, object: Object) {
        let collection = self.collections.get_mut(id.collection()).expect("the dry run found the collection");
        collection.insert(id.name().clone(), object);
    }

    fn transact(&mut self, txn: Transaction) -> Result<CommitSeq> {
        let failed = txn.guards.iter().position(|guard| !holds(&guard.condition, self.object(&guard.object)));
        if let Some(index) = failed {
            return Err(Error::GuardFailed { index });
        }
        try_names(&self.collections, &txn.ops)?;
        for op in txn.ops {
            self.apply(op);
        }
        self.seq += 1;
        Ok(CommitSeq(self.seq))
    }

    /// Applies an operation that the dry run has let through.
    fn apply(&mut self, op: Op) {
        match op {
            Op::CreateCollection(collection) => {
                self.collections.entry(collection).or_default();
            }
            Op::RemoveCollection(collection) => {
                self.collections.remove(&collection);
            }
            Op::Object(id, Change::Remove) => {
                self.take(&id);
            }
            Op::Object(id, Change::Rename { to }) => {
                let object = self.take(&id).expect("the dry run found the source");
                self.put(&to, object);
            }
            Op::Object(id, Change::CloneTo { to }) => {
                // An object is its own copy already.
                if id != to {
                    let order = &mut self.order;
                    let source = self.collections.get(id.collection()).and_then(|objects| objects.get(id.name()));
                    let copy = source.expect("the dry run found the source").copy(order);
                    self.put(&to, copy);
                }
            }
            Op::Object(id, Change::CloneRange { to, from_offset, len, to_offset }) => {
                let source = self.object(&id).expect("the dry run found the source").bytes.clone();
                let mut target = self.take(&to).unwrap_or_default();
                target.bytes.copy_from(&source, from_offset, len, to_offset);
                self.put(&to, target);
            }
            Op::Object(id, change) => {
                let Some(collection) = self.collections.get_mut(id.collection()) else { return };
                if change.creates() {
                    collection.entry(id.name().clone()).or_default().apply(change, &mut self.order);
                } else if let Some(object) = collection.get_mut(id.name()) {
                    object.apply(change, &mut self.order);
                }
            }
        }
    }
}

/// Takes entries up to `limit` and to the limits on scans.
fn take<K>(
    entries: impl Iterator<Item = (K, Bytes)>,
    key_len: impl Fn(&K) -> usize,
    limit: usize,
    keys_only: bool,
) -> Vec<(K, Bytes)> {
    let mut taken = Vec::new();
    let mut bytes = 0;
    for (key, value) in entries.take(limit.min(SCAN_ENTRIES_MAX)) {
        let value = if keys_only { Bytes::new() } else { value };
        bytes += key_len(&key) + value.len();
        taken.push((key, value));
        if bytes >= SCAN_BYTES_MAX {
            break;
        }
    }
    taken
}

/// An iterator in either direction.
fn directed<'a, T: 'a>(
    iter: impl DoubleEndedIterator<Item = T> + 'a,
    reverse: bool,
) -> Box<dyn Iterator<Item = T> + 'a> {
    if reverse { Box::new(iter.rev()) } else { Box::new(iter) }
}

impl ObjectStore for MemoryStore {
    fn capability(&self) -> Capability {
        Capability {
            backend: "memory",
            atomic_across_objects: true,
            atomic_across_collections: true,
            native_slots: true,
            commit_order: true,
            clone: true,
            cheap_clone: true,
            persistent: false,
            compresses: false,
            transaction_bytes_max: TRANSACTION_BYTES_MAX as u64,
            transaction_ops_max: esker_store::limits::TRANSACTION_OPS_MAX as u64,
            object_bytes_max: OBJECT_BYTES_MAX,
            exact_extents: true,
            reverse_scans: true,
            watches: true,
            sessions: false,
            afar: false,
        }
    }

    fn submit(&self, txn: Transaction) -> Completion<CommitSeq> {
        if self.read_only {
            return Completion::ready(Err(Error::ReadOnly));
        }
        let changed = if self.watches.is_empty() { Vec::new() } else { txn.objects_changed() };
        let outcome = txn.check().and_then(|()| self.state.write().transact(txn));
        if outcome.is_ok() && !changed.is_empty() {
            let state = self.state.read();
            let turned = self.watches.turned(&changed, |object| state.object(object).is_some());
            drop(state);
            turned.iter().for_each(|watched| watched.call());
        }
        Completion::ready(outcome)
    }

    fn watch(&self, object: &ObjectId, changed: Changed) -> Result<Box<dyn Watching>> {
        let state = self.state.read();
        if state.object(object).is_none() {
            return Err(Error::NoObject { object: object.to_string() });
        }
        let (number, watched) = self.watches.add(object, changed);
        drop(state);
        Ok(Box::new(Watch { watches: Arc::clone(&self.watches), number, watched }))
    }

    fn notify(&self, object: &ObjectId) {
        self.watches.notify(object);
    }

    fn sync(&self) -> Completion<CommitSeq> {
        Completion::ready(Ok(CommitSeq(self.state.read().seq)))
    }

    fn stat(&self, object: &ObjectId) -> Completion<Option<Stat>> {
        Completion::ready(Ok(self.state.read().object(object).map(Object::stat)))
    }

    fn read(&self, object: &ObjectId, range: Range<u64>) -> Completion<Bytes> {
        if range.start > range.end {
            let why = format!("{}..{} ends before it starts", range.start, range.end);
            return Completion::ready(Err(Error::Invalid { what: "byte range", why }));
        }
        let max = TRANSACTION_BYTES_MAX as u64;
        self.look(object, |object| {
            let len = range.end.min(object.bytes.size()).saturating_sub(range.start);
            if len > max {
                return Err(Error::TooLarge { what: "read", len, limit: "TRANSACTION_BYTES_MAX", max });
            }
            Ok(object.bytes.read(range))
        })
        .then(|found| found.and_then(|bytes| bytes))
    }

    fn extents(&self, object: &ObjectId, range: Range<u64>) -> Completion<Vec<DataRun>> {
        self.look(object, |object| object.bytes.data(range))
    }

    fn xattr(&self, object: &ObjectId, name: &[u8]) -> Completion<Option<Bytes>> {
        self.look(object, |object| object.xattrs.get(name).cloned())
    }

    fn xattrs(&self, object: &ObjectId) -> Completion<Vec<(Bytes, Bytes)>> {
        self.look(object, |object| object.xattrs.iter().map(|(name, value)| (name.clone(), value.clone())).collect())
    }

    fn omap_get(&self, object: &ObjectId, key: &[u8]) -> Completion<Option<Bytes>> {
        self.look(object, |object| object.omap.get(key).map(|entry| entry.value.clone()))
    }

    fn omap_get_many(&self, object: &ObjectId, keys: &[Bytes]) -> Completion<Vec<Option<Bytes>>> {
        self.look(object, |object| {
            keys.iter().map(|key| object.omap.get(key).map(|entry| entry.value.clone())).collect()
        })
        .then(|found: Result<Vec<_>>| Together::gather(found?.into_iter().map(Ok)))
    }

    fn omap_scan(&self, object: &ObjectId, scan: &OmapScan) -> Completion<Vec<(Bytes, Bytes)>> {
        self.look(object, |object| {
            if matches!((&scan.start, &scan.end), (Some(start), Some(end)) if start >= end) {
                return Vec::new();
            }
            let start = scan.start.as_ref().map_or(Bound::Unbounded, Bound::Included);
            let end = scan.end.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
            let entries = directed(object.omap.range::<Bytes, _>((start, end)), scan.reverse);
            let entries = entries.map(|(key, entry)| (key.clone(), entry.value.clone()));
            take(entries, Bytes::len, scan.limit, scan.keys_only)
        })
    }

    fn slot_get(&self, object: &ObjectId, index: u64) -> Completion<Option<Bytes>> {
        self.look(object, |object| object.slots.get(&index).map(|entry| entry.value.clone()))
    }

    fn slot_get_many(&self, object: &ObjectId, indexes: &[u64]) -> Completion<Vec<Option<Bytes>>> {
        self.look(object, |object| {
            indexes.iter().map(|index| object.slots.get(index).map(|entry| entry.value.clone())).collect()
        })
        .then(|found: Result<Vec<_>>| Together::gather(found?.into_iter().map(Ok)))
    }

    fn slot_scan(&self, object: &ObjectId, scan: &SlotScan) -> Completion<Vec<(u64, Bytes)>> {
        self.look(object, |object| {
            let Range { start, end } = scan.range;
            let end = if end == u64::MAX { Bound::Included(end) } else { Bound::Excluded(end) };
            if matches!(end, Bound::Excluded(end) if start >= end) {
                return Vec::new();
            }
            let entries = directed(object.slots.range((Bound::Included(start), end)), scan.reverse);
            let entries = entries.map(|(index, entry)| (*index, entry.value.clone()));
            take(entries, |_| 8, scan.limit, scan.keys_only)
        })
    }

    fn commit_scan(
        &self,
        collection: &Collection,
        name_prefix: &[u8],
        after: CommitCursor,
        limit: usize,
    ) -> Completion<(Vec<CommitEntry>, Option<CommitCursor>)> {
        enum Key<'a> {
            Omap(&'a Bytes),
            Slot(u64),
        }
        let state = self.state.read();
        let mut found = Vec::new();
        if let Some(objects) = state.collections.get(collection) {
            let named = objects.range::<[u8], _>((Bound::Included(name_prefix), Bound::Unbounded));
            for (name, object) in named.take_while(|(name, _)| name.starts_with(name_prefix)) {
                let omap = object.omap.iter().map(|(key, entry)| (entry, Key::Omap(key)));
                let slots = object.slots.iter().map(|(index, entry)| (entry, Key::Slot(*index)));
                let later = omap.chain(slots).filter(|(entry, _)| entry.order > after.0);
                found.extend(later.map(|(entry, key)| (entry, name, key)));
            }
        }
        found.sort_unstable_by_key(|(entry, ..)| entry.order);
        let total = found.len();
        let mut last = after;
        let mut bytes = 0;
        let mut entries = Vec::new();
        for (entry, name, key) in found.into_iter().take(limit.min(SCAN_ENTRIES_MAX)) {
            let id = ObjectId::new(collection.clone(), name.clone());
            bytes += entry.value.len() + if let Key::Omap(key) = key { key.len() } else { 8 };
            last = CommitCursor(entry.order, 0);
            entries.push(match key {
                Key::Omap(key) => CommitEntry::Omap(id, key.clone(), entry.value.clone()),
                Key::Slot(index) => CommitEntry::Slot(id, index, entry.value.clone()),
            });
            if bytes >= SCAN_BYTES_MAX {
                break;
            }
        }
        let more = entries.len() < total;
        Completion::ready(Ok((entries, more.then_some(last))))
    }

    fn collections(&self) -> Completion<Vec<Collection>> {
        Completion::ready(Ok(self.state.read().collections.keys().cloned().collect()))
    }

    fn list(&self, collection: &Collection, after: Option<&[u8]>, limit: usize) -> Completion<Vec<Bytes>> {
        let state = self.state.read();
        let Some(objects) = state.collections.get(collection) else {
            return Completion::ready(Err(Error::NoCollection { collection: collection.to_string() }));
        };
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        let names = objects.range::<[u8], _>((start, Bound::Unbounded)).map(|(name, _)| name.clone());
        Completion::ready(Ok(names.take(limit.min(SCAN_ENTRIES_MAX)).collect()))
    }

    /// Copies the maps; payload is shared.
    fn snapshot(&self) -> Result<Snapshot> {
        let state = self.state.read().clone();
        let seq = CommitSeq(state.seq);
        Ok(Snapshot {
            seq,
            store: Arc::new(Self { state: RwLock::new(state), read_only: true, watches: Arc::default() }),
        })
    }
}
