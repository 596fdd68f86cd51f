//! [`KeyValueStore`]: the waist on an ordered key-value store.
//!
//! submit → check → room in the queue → locks of the objects → guards and operations on a draft → publish → completion
//! read → lock of the object, shared → draft without changes → value, and a barrier if it shows what is not yet durable
//!
//! Invariants:
//! 1. Locks are taken in one order: names, stripes by number, then the queue. None is held over a sync.
//! 2. A transaction that makes or removes collections has the names to itself.

use std::ops::Range;
use std::sync::Arc;
use std::thread::JoinHandle;

use bytes::Bytes;
use esker_store::limits::{SCAN_BYTES_MAX, SCAN_ENTRIES_MAX, TRANSACTION_BYTES_MAX};
use esker_store::{
    Barrier, Capability, Change, Collection, CommitCursor, CommitEntry, CommitSeq, Completion, DataRun, Durability,
    Error, ObjectId, ObjectStore, OmapScan, Op, Result, SlotScan, Stat, Transaction,
};
use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::commit::{Commit, Figures};
use crate::draft::{Draft, State};
use crate::keys::{self, Tag};
use crate::records::Head;
use crate::strips::Room;
use crate::sweep::Sweeper;

/// Locks that objects share by their hash.
const STRIPES: usize = 1_024;

/// An object store on RocksDB, LevelDB, RocksDB and files (newstore), or any [`Ordered`](crate::Ordered).
///
/// It is closed by [`KeyValueStore::close`] or when it is dropped; its folder is free for another owner once it is dropped.
pub struct KeyValueStore {
    state: Arc<State>,
    commit: Arc<Commit>,
    sweeper: Arc<Sweeper>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    names: RwLock<()>,
    stripes: Box<[RwLock<()>]>,
    backend: &'static str,
    /// The folder's lock; after the state, so that it is let go last.
    _lock: Option<std::fs::File>,
}

/// How transactions share the names.
enum Names<'a> {
    Shared { _guard: RwLockReadGuard<'a, ()> },
    Alone { _guard: RwLockWriteGuard<'a, ()> },
}

impl KeyValueStore {
    /// Starts a store on what `state` holds, after transaction `seq`.
    ///
    /// # Errors
    /// Those of starting threads.
    pub(crate) fn start(
        state: State,
        seq: u64,
        applied_flush: std::time::Duration,
        backend: &'static str,
        lock: Option<std::fs::File>,
    ) -> std::io::Result<Self> {
        let state = Arc::new(state);
        let commit = Commit::new(Arc::clone(&state), seq, applied_flush);
        let sweeper = Arc::new(Sweeper::default());
        // What died before the last close is swept now.
        sweeper.wake();
        let store = Self {
            state: Arc::clone(&state),
            commit: Arc::clone(&commit),
            sweeper: Arc::clone(&sweeper),
            threads: Mutex::default(),
            names: RwLock::new(()),
            stripes: (0..STRIPES).map(|_| RwLock::new(())).collect(),
            backend,
            _lock: lock,
        };
        let spawn = |name: &str, run: Box<dyn FnOnce() + Send>| {
            let thread = std::thread::Builder::new().name(name.into()).spawn(run)?;
            store.threads.lock().push(thread);
            std::io::Result::Ok(())
        };
        let (committer, its_sweeper) = (Arc::clone(&commit), Arc::clone(&sweeper));
        spawn("esker-kv-commit", Box::new(move || committer.run(&its_sweeper)))?;
        spawn("esker-kv-sweep", Box::new(move || sweeper.run(&state, &commit)))?;
        Ok(store)
    }

    /// Figures since the store was opened.
    pub fn figures(&self) -> Figures {
        self.commit.figures()
    }

    /// Makes everything durable and refuses further transactions. Does nothing the second time. Dropping the store does the
    /// same but cannot tell of a failure.
    ///
    /// # Errors
    /// The failure that stopped the store, if there was one.
    pub fn close(&self) -> Result<()> {
        self.sweeper.end();
        self.commit.close();
        for thread in self.threads.lock().drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread of the key-value backend panicked");
            }
        }
        self.commit.mark().failure().map_or(Ok(()), Err)
    }

    fn stripe(&self, object: &ObjectId) -> usize {
        object.hash64() as usize % STRIPES
    }

    /// The barrier that readers of what waits for `position` wait for.
    fn barrier(&self, position: u64) -> Option<Barrier> {
        let mark = self.commit.mark();
        (mark.durable() < position).then(|| Barrier::new(mark, position))
    }

    fn transact(&self, txn: Transaction) -> Completion<CommitSeq> {
        if let Err(error) = txn.check().and_then(|()| self.commit.wait_for_room()) {
            return Completion::ready(Err(error));
        }
        let durable = txn.durability == Durability::Durable;
        let mut stripes: Vec<usize> = txn.guards.iter().map(|guard| self.stripe(&guard.object)).collect();
        let mut alone = false;
        for op in &txn.ops {
            let Op::Object(object, change) = op else {
                alone = true;
                continue;
            };
            let stripe = self.stripe(object);
            if stripes.last() != Some(&stripe) {
                stripes.push(stripe);
            }
            if let Change::CloneTo { to } | Change::CloneRange { to, .. } | Change::Rename { to } = change {
                stripes.push(self.stripe(to));
            }
        }
        stripes.sort_unstable();
        stripes.dedup();
        let _names = if alone {
            Names::Alone { _guard: self.names.write() }
        } else {
            Names::Shared { _guard: self.names.read() }
        };
        let _locks: Vec<_> = stripes.into_iter().map(|stripe| self.stripes[stripe].write()).collect();
        let mut draft = Draft::new(&self.state);
        let held = txn.guards.iter().enumerate().try_for_each(|(index, guard)| {
            if draft.holds(&guard.object, &guard.condition)? { Ok(()) } else { Err(Error::GuardFailed { index }) }
        });
        let guarded = draft.seen();
        let mut room = Room::default();
        let done = held.and_then(|()| txn.ops.into_iter().try_for_each(|op| draft.apply(op, &mut room)));
        let seen = draft.seen();
        if let Err(error) = done {
            // What refused it is something that it saw.
            return Completion::after(Err(error), self.barrier(seen));
        }
        let outcome = draft.finish();
        if outcome.changed.is_empty() {
            return Completion::after(Ok(CommitSeq(self.commit.seq())), self.barrier(seen));
        }
        match self.commit.publish(outcome, durable) {
            Ok(seq) => {
                let position = if durable { seq } else { guarded };
                Completion::after(Ok(CommitSeq(seq)), self.barrier(position))
            }
            Err(error) => Completion::ready(Err(error)),
        }
    }

    fn shown<R>(&self, found: Result<R>, seen: u64) -> Completion<R> {
        Completion::after(found, self.barrier(seen))
    }

    /// Looks at an object; a missing one looks like `R::default()`.
    fn look<R: Default>(
        &self,
        object: &ObjectId,
        only_spaces: bool,
        look: impl FnOnce(&Draft<'_>, Head) -> Result<R>,
    ) -> Completion<R> {
        let _lock = self.stripes[self.stripe(object)].read();
        let draft = Draft::new(&self.state);
        let found = match draft.head(object, only_spaces) {
            Ok(Some(head)) => look(&draft, head),
            Ok(None) => Ok(R::default()),
            Err(error) => Err(error),
        };
        self.shown(found, draft.seen())
    }
}

impl Drop for KeyValueStore {
    fn drop(&mut self) {
        if let Err(error) = self.close() {
            tracing::error!(%error, "closing the store failed");
        }
    }
}

impl std::fmt::Debug for KeyValueStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KeyValueStore").field("backend", &self.backend).finish_non_exhaustive()
    }
}

/// Gathers what a scan returns, within its limits.
struct Gathered<K> {
    entries: Vec<(K, Bytes)>,
    bytes: usize,
    limit: usize,
    keys_only: bool,
}

impl<K> Gathered<K> {
    fn new(limit: usize, keys_only: bool) -> Self {
        Self { entries: Vec::new(), bytes: 0, limit: limit.min(SCAN_ENTRIES_MAX), keys_only }
    }

    /// Takes an entry; whether there is room for more.
    fn take(&mut self, key: K, key_len: usize, value: &[u8]) -> bool {
        let value = if self.keys_only { Bytes::new() } else { Bytes::copy_from_slice(value) };
        self.bytes += key_len + value.len();
        self.entries.push((key, value));
        self.entries.len() < self.limit && self.bytes < SCAN_BYTES_MAX
    }
}

impl ObjectStore for KeyValueStore {
    fn capability(&self) -> Capability {
        Capability {
            backend: self.backend,
            atomic_across_objects: true,
            atomic_across_collections: true,
            native_slots: false,
            commit_order: false,
            clone: true,
            cheap_clone: false,
            persistent: self.state.store.persistent(),
            compresses: false,
            transaction_bytes_max: TRANSACTION_BYTES_MAX as u64,
        }
    }

    fn submit(&self, txn: Transaction) -> Completion<CommitSeq> {
        self.transact(txn)
    }

    fn sync(&self) -> Completion<CommitSeq> {
        let seq = self.commit.seq();
        if let Some(failure) = self.commit.mark().failure() {
            return Completion::ready(Err(failure));
        }
        Completion::after(Ok(CommitSeq(seq)), self.barrier(seq))
    }

    fn stat(&self, object: &ObjectId) -> Completion<Option<Stat>> {
        self.look(object, false, |_, head| Ok(Some(head.stat)))
    }

    fn read(&self, object: &ObjectId, range: Range<u64>) -> Completion<Bytes> {
        if range.start > range.end {
            let why = format!("{}..{} ends before it starts", range.start, range.end);
            return Completion::ready(Err(Error::Invalid { what: "byte range", why }));
        }
        self.look(object, false, |draft, head| {
            let end = range.end.min(head.stat.size);
            let (len, max) = (end.saturating_sub(range.start), TRANSACTION_BYTES_MAX as u64);
            if len > max {
                return Err(Error::TooLarge { what: "read", len, limit: "TRANSACTION_BYTES_MAX", max });
            }
            draft.read_bytes(head.bytes, range.start, end)
        })
    }

    fn extents(&self, object: &ObjectId, range: Range<u64>) -> Completion<Vec<DataRun>> {
        self.look(object, false, |draft, head| draft.data_runs(head.bytes, range.start, range.end.min(head.stat.size)))
    }

    fn xattr(&self, object: &ObjectId, name: &[u8]) -> Completion<Option<Bytes>> {
        self.look(object, true, |draft, head| draft.get(&keys::entry(Tag::Xattrs, head.xattrs, name)))
    }

    fn xattrs(&self, object: &ObjectId) -> Completion<Vec<(Bytes, Bytes)>> {
        self.look(object, true, |draft, head| {
            let (start, end) = (keys::entry(Tag::Xattrs, head.xattrs, &[]), keys::space_end(Tag::Xattrs, head.xattrs));
            let mut found = Vec::new();
            draft.scan(&start, &end, false, &mut |key, value| {
                found.push((Bytes::copy_from_slice(keys::rest(key)), Bytes::copy_from_slice(value)));
                Ok(true)
            })?;
            Ok(found)
        })
    }

    fn omap_get(&self, object: &ObjectId, key: &[u8]) -> Completion<Option<Bytes>> {
        self.look(object, true, |draft, head| draft.get(&keys::entry(Tag::Omap, head.omap, key)))
    }

    fn omap_get_many(&self, object: &ObjectId, keys: &[Bytes]) -> Completion<Vec<Option<Bytes>>> {
        self.look(object, true, |draft, head| {
            keys.iter().map(|key| draft.get(&keys::entry(Tag::Omap, head.omap, key))).collect()
        })
        .map(|found: Vec<_>| if found.is_empty() { vec![None; keys.len()] } else { found })
    }

    fn omap_scan(&self, object: &ObjectId, scan: &OmapScan) -> Completion<Vec<(Bytes, Bytes)>> {
        self.look(object, true, |draft, head| {
            let start = keys::entry(Tag::Omap, head.omap, scan.start.as_deref().unwrap_or_default());
            let end = match &scan.end {
                Some(end) => keys::entry(Tag::Omap, head.omap, end),
                None => keys::space_end(Tag::Omap, head.omap),
            };
            let mut found = Gathered::new(scan.limit, scan.keys_only);
            if found.limit > 0 {
                draft.scan(&start, &end, scan.reverse, &mut |key, value| {
                    let key = Bytes::copy_from_slice(keys::rest(key));
                    let len = key.len();
                    Ok(found.take(key, len, value))
                })?;
            }
            Ok(found.entries)
        })
    }

    fn slot_get(&self, object: &ObjectId, index: u64) -> Completion<Option<Bytes>> {
        self.look(object, true, |draft, head| draft.get(&keys::numbered(Tag::Slots, head.slots, index)))
    }

    fn slot_get_many(&self, object: &ObjectId, indexes: &[u64]) -> Completion<Vec<Option<Bytes>>> {
        self.look(object, true, |draft, head| {
            indexes.iter().map(|index| draft.get(&keys::numbered(Tag::Slots, head.slots, *index))).collect()
        })
        .map(|found: Vec<_>| if found.is_empty() { vec![None; indexes.len()] } else { found })
    }

    fn slot_scan(&self, object: &ObjectId, scan: &SlotScan) -> Completion<Vec<(u64, Bytes)>> {
        self.look(object, true, |draft, head| {
            let start = keys::numbered(Tag::Slots, head.slots, scan.range.start);
            let end = match scan.range.end {
                u64::MAX => keys::space_end(Tag::Slots, head.slots),
                end => keys::numbered(Tag::Slots, head.slots, end),
            };
            let mut found = Gathered::new(scan.limit, scan.keys_only);
            if found.limit > 0 {
                draft.scan(&start, &end, scan.reverse, &mut |key, value| {
                    let index = keys::rest_number(key).ok_or_else(|| crate::records::corrupt("slot", key))?;
                    Ok(found.take(index, 8, value))
                })?;
            }
            Ok(found.entries)
        })
    }

    fn commit_scan(
        &self,
        _collection: &Collection,
        _name_prefix: &[u8],
        _after: CommitCursor,
        _limit: usize,
    ) -> Completion<(Vec<CommitEntry>, Option<CommitCursor>)> {
        Completion::ready(Err(Error::Unsupported { backend: self.backend, what: "scan in commit order" }))
    }

    fn collections(&self) -> Completion<Vec<Collection>> {
        let draft = Draft::new(&self.state);
        let mut found = Vec::new();
        let scanned = draft.scan(b"c", b"d", false, &mut |key, _| {
            found.push(Collection::new(Bytes::copy_from_slice(&key[1..])));
            Ok(true)
        });
        self.shown(scanned.map(|()| found), draft.seen())
    }

    fn list(&self, collection: &Collection, after: Option<&[u8]>, limit: usize) -> Completion<Vec<Bytes>> {
        let draft = Draft::new(&self.state);
        let found = (|| {
            if !draft.has_collection(collection)? {
                return Err(Error::NoCollection { collection: collection.to_string() });
            }
            let prefix = keys::names(collection);
            let start = after.map_or_else(|| prefix.clone(), |after| keys::next(&[&prefix[..], after].concat()));
            let limit = limit.min(SCAN_ENTRIES_MAX);
            let mut found = Vec::new();
            if limit > 0 {
                draft.scan(&start, &keys::after_all(&prefix), false, &mut |key, _| {
                    found.push(Bytes::copy_from_slice(&key[prefix.len()..]));
                    Ok(found.len() < limit)
                })?;
            }
            Ok(found)
        })();
        self.shown(found, draft.seen())
    }
}
