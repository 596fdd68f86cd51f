//! The object table over the index: names to objects, and what each operation does to one.
//!
//! submit and recovery → [`ObjectState::apply`], the one place where an operation changes an object
//!
//! Invariants:
//! 1. An object is in the table exactly if it exists, save while the transaction that creates or removes it holds
//!    its lock (`number == 0` then means absent; `unlinked` that the entry has left the table for good).
//! 2. Names are added and removed under the names' write lock, which is taken before any object's lock.
//! 3. Several objects are locked in the order of their ids.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use esker_store::{Collection, ObjectId, ObjectMap, Stat};
use parking_lot::RwLock;

use crate::format::Kind;
use crate::index::{Extents, Loc, Slots, Tree};
use crate::segments::Lsn;

const SHARDS: usize = 16;

/// One object.
pub struct Object {
    /// Its name.
    pub id: ObjectId,
    /// Its four spaces.
    pub state: RwLock<ObjectState>,
}

/// The four spaces of an object, as the index sees them, and how far its changes reach in the log.
#[derive(Default)]
pub struct ObjectState {
    /// The number that records know it by; 0 if it does not exist.
    pub number: u64,
    /// The entry has left the table: look the name up again.
    pub unlinked: bool,
    /// Size of the bytes space.
    pub size: u64,
    /// Where the bytes are.
    pub extents: Extents,
    /// Attributes, values in memory.
    pub xattrs: BTreeMap<Bytes, Bytes>,
    /// Ordered keys to places.
    pub omap: Tree<Loc>,
    /// Numbers to places.
    pub slots: Slots,
    /// End of the last change that a reader has to wait for.
    pub changed_lsn: Lsn,
    /// End of the last change that took something away, so that its absence has to be waited for.
    pub removed_lsn: Lsn,
    /// End of the last change of the attributes.
    pub xattr_lsn: Lsn,
}

/// One operation as the index sees it.
pub struct Step<'a> {
    /// What it does.
    pub kind: Kind,
    /// See [`Kind`].
    pub argument: u64,
    /// See [`Kind`].
    pub key: &'a [u8],
    /// See [`Kind`]; only looked at where the index needs it.
    pub payload: &'a [u8],
    /// Length of the payload in bytes.
    pub payload_len: u32,
    /// Where the operation stands.
    pub loc: Loc,
}

impl ObjectState {
    /// Whether the object exists.
    pub fn exists(&self) -> bool {
        self.number != 0
    }

    /// Empties all spaces; the object is absent then.
    pub fn reset(&mut self) {
        self.number = 0;
        self.size = 0;
        self.extents = Extents::default();
        self.xattrs.clear();
        self.omap = Tree::new();
        self.slots = Slots::default();
    }

    /// Makes readers of whatever is missing wait for `lsn`.
    pub fn removed_at_least(&mut self, lsn: Lsn) {
        self.removed_lsn = self.removed_lsn.max(lsn);
        self.xattr_lsn = self.xattr_lsn.max(lsn);
        self.changed_lsn = self.changed_lsn.max(lsn);
    }

    /// Does what the operation says. `readers_wait_to` is the log position that readers have to wait for, or 0 if
    /// the writer asked only for applied.
    pub fn apply(&mut self, step: &Step<'_>, readers_wait_to: Lsn) {
        match step.kind {
            Kind::CreateCollection | Kind::RemoveCollection | Kind::CreateObject => {}
            Kind::RemoveObject => {
                self.reset();
                self.removed_lsn = self.removed_lsn.max(readers_wait_to);
                self.xattr_lsn = self.xattr_lsn.max(readers_wait_to);
            }
            Kind::Write => {
                let len = u64::from(step.payload_len);
                if len > 0 {
                    self.extents.write(step.argument, step.payload_len, step.loc, 0, |_, _| {});
                    self.size = self.size.max(step.argument + len);
                }
            }
            Kind::Zero => {
                let len = word(step.payload);
                self.extents.punch(step.argument, len, |_, _| {});
                if len > 0 {
                    self.size = self.size.max(step.argument.saturating_add(len));
                }
            }
            Kind::Truncate => {
                if step.argument < self.size {
                    self.extents.truncate(step.argument, |_, _| {});
                }
                self.size = step.argument;
            }
            Kind::XattrSet => {
                self.xattrs.insert(Bytes::copy_from_slice(step.key), Bytes::copy_from_slice(step.payload));
                self.xattr_lsn = self.xattr_lsn.max(readers_wait_to);
            }
            Kind::XattrRemove => {
                self.xattrs.remove(step.key);
                self.xattr_lsn = self.xattr_lsn.max(readers_wait_to);
            }
            Kind::OmapSet => {
                self.omap.insert(step.key, step.loc);
            }
            Kind::OmapRemove => {
                self.omap.remove(step.key);
                self.removed_lsn = self.removed_lsn.max(readers_wait_to);
            }
            Kind::OmapRemoveRange => {
                let end = (step.argument == 1).then_some(step.payload);
                self.omap.remove_range(step.key, end, |_, _| {});
                self.removed_lsn = self.removed_lsn.max(readers_wait_to);
            }
            Kind::OmapClear => {
                self.omap.clear();
                self.removed_lsn = self.removed_lsn.max(readers_wait_to);
            }
            Kind::SlotSet => {
                self.slots.set(step.argument, step.loc);
            }
            Kind::SlotRemove => {
                self.slots.remove(step.argument);
                self.removed_lsn = self.removed_lsn.max(readers_wait_to);
            }
            Kind::SlotRemoveRange => {
                self.slots.remove_range(step.argument, word(step.payload), |_, _| {});
                self.removed_lsn = self.removed_lsn.max(readers_wait_to);
            }
        }
        self.changed_lsn = self.changed_lsn.max(readers_wait_to);
    }

    /// What `stat` tells.
    pub fn stat(&self) -> Option<Stat> {
        self.exists().then(|| Stat {
            size: self.size,
            omap_keys: self.omap.len(),
            slots: self.slots.len(),
            xattrs: self.xattrs.len() as u64,
        })
    }

    /// Bytes of memory that the index of this object takes: slots, omap, extents and attributes apart.
    pub fn memory_bytes(&self) -> [u64; 4] {
        let xattrs = self.xattrs.iter().map(|(name, value)| (name.len() + value.len() + 96) as u64).sum();
        [self.slots.memory_bytes() as u64, self.omap.memory_bytes() as u64, self.extents.memory_bytes() as u64, xattrs]
    }
}

/// An 8-byte payload; 0 where it is not one, which decoding has ruled out.
pub fn word(payload: &[u8]) -> u64 {
    payload.try_into().map_or(0, u64::from_le_bytes)
}

/// The names: collections and, in each, objects by name.
pub type Names = BTreeMap<Collection, BTreeMap<Bytes, Arc<Object>>>;

/// Objects that a thread has looked at last, so that the next look takes no lock of the table.
const SEEN: usize = 8;

struct Seen {
    table: u64,
    object: Arc<Object>,
}

thread_local! {
    static LAST_SEEN: RefCell<[Option<Seen>; SEEN]> = const { RefCell::new([const { None }; SEEN]) };
}

/// All objects of a store.
pub struct Objects {
    /// Tells this table from others in what threads remember.
    table: u64,
    /// The ordered names. The write lock is held by transactions that add or remove any.
    pub names: RwLock<Names>,
    shards: [RwLock<ObjectMap<Arc<Object>>>; SHARDS],
}

impl Default for Objects {
    fn default() -> Self {
        static TABLES: AtomicU64 = AtomicU64::new(1);
        let table = TABLES.fetch_add(1, Ordering::Relaxed);
        Self { table, names: RwLock::default(), shards: Default::default() }
    }
}

impl Drop for Objects {
    fn drop(&mut self) {
        // Threads may remember objects for as long as they live: they must not keep the index with them.
        self.for_each(|object| {
            let mut state = object.state.write();
            state.reset();
            state.unlinked = true;
        });
    }
}

impl Objects {
    fn shard(&self, id: &ObjectId) -> &RwLock<ObjectMap<Arc<Object>>> {
        &self.shards[(id.hash64() >> 60) as usize % SHARDS]
    }

    /// The object of this name.
    pub fn get(&self, id: &ObjectId) -> Option<Arc<Object>> {
        self.with(id, |object| object.cloned())
    }

    /// Runs `f` on the object of this name. It may have left the table meanwhile: its state says so. `f` must not
    /// look at another object.
    pub fn with<R>(&self, id: &ObjectId, f: impl FnOnce(Option<&Arc<Object>>) -> R) -> R {
        LAST_SEEN.with_borrow_mut(|seen| {
            let place = &mut seen[(id.hash64() >> 32) as usize % SEEN];
            let known = place.as_ref().is_some_and(|seen| seen.table == self.table && seen.object.id == *id);
            if !known {
                let Some(object) = self.shard(id).read().get(id).cloned() else { return f(None) };
                *place = Some(Seen { table: self.table, object });
            }
            f(place.as_ref().map(|seen| &seen.object))
        })
    }

    /// Forgets what this thread remembers of a name, because it has left the table.
    pub fn forget(&self, id: &ObjectId) {
        LAST_SEEN.with_borrow_mut(|seen| seen[(id.hash64() >> 32) as usize % SEEN] = None);
    }

    /// The object of this name, or a new absent one. The caller holds the names' write lock.
    pub fn get_or_insert(&self, id: &ObjectId) -> Arc<Object> {
        let mut shard = self.shard(id).write();
        let make = || Arc::new(Object { id: id.clone(), state: RwLock::default() });
        Arc::clone(shard.entry(id.clone()).or_insert_with(make))
    }

    /// Takes an absent object out of the table. The caller holds the names' write lock and the object's.
    pub fn unlink(&self, id: &ObjectId, state: &mut ObjectState) {
        state.unlinked = true;
        self.shard(id).write().remove(id);
    }

    /// Number of objects.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.read().len()).sum()
    }

    /// Runs `f` on every object.
    pub fn for_each(&self, mut f: impl FnMut(&Arc<Object>)) {
        for shard in &self.shards {
            let objects: Vec<_> = shard.read().values().cloned().collect();
            objects.iter().for_each(&mut f);
        }
    }
}
