//! The object table over the index: names to objects, and what each operation does to one.
//!
//! submit and recovery → [`ObjectState::apply`], the one place where an operation changes an object
//!
//! Invariants:
//! 1. An object is in the table exactly if it exists, save while the transaction that creates or removes it holds
//!    its lock (`number == 0` then means absent; `unlinked` that the entry has left the table for good).
//! 2. Names are added and removed under the names' write lock, which is taken before any object's lock.
//! 3. Several objects are locked in the order of their ids.
//! 4. The live bytes of every segment are the sum over all objects of what their entries point to. What is pointed to
//!    anew is counted before what no longer is, so that a segment never counts as dead for a moment.
//! 5. A checkpoint sees every object as it was at the checkpoint's cut: the writer that changes one first after the cut
//!    leaves what it was ([`Objects::enter`]).

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::{Bound, Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering};

use bytes::Bytes;
use esker_store::{Collection, ObjectId, ObjectMap, Stat};
use parking_lot::{Mutex, RwLock};

use crate::format::{Kind, Relocated, WEIGHT_WHOLE, each_relocated};
use crate::index::{Extent, Loc};
use crate::segments::{Lsn, Segments};
pub use crate::spaces::Spaces;
use crate::spaces::word;

const SHARDS: usize = 16;

/// An object's head and its row of the table take about so many bytes of a checkpoint.
const HEAD_BYTES: u64 = 96;

/// One object.
pub struct Object {
    /// Its name.
    pub id: ObjectId,
    /// Its four spaces.
    pub state: RwLock<ObjectState>,
}

impl Object {
    /// Its number and its spaces as they are now; the pages are shared with it until one of the two changes them.
    pub fn numbered_spaces(&self) -> (u64, Spaces) {
        let state = self.state.read();
        (state.number, state.spaces.clone())
    }
}

/// An object: what it holds, and how far its changes reach in the log.
#[derive(Default)]
pub struct ObjectState {
    /// The number that records know it by; 0 if it does not exist.
    pub number: u64,
    /// The entry has left the table: look the name up again.
    pub unlinked: bool,
    /// What it holds.
    pub spaces: Spaces,
    /// Heap bytes of its pages, and bytes that they take in a checkpoint, as the table has counted them.
    counted: [usize; 2],
    /// The last epoch in which it was changed; 0 for none since it was loaded.
    pub touched: u32,
    /// The last epoch whose state a checkpoint has taken.
    pub captured: u32,
    /// End of the last change that a reader has to wait for.
    pub changed_lsn: Lsn,
    /// End of the last change that took something away, so that its absence has to be waited for.
    pub removed_lsn: Lsn,
    /// End of the last change of the attributes.
    pub xattr_lsn: Lsn,
    /// End of the last clone, clone-range or rename to here: what it brought stands elsewhere, and may be durable
    /// there.
    pub copied_lsn: Lsn,
}

/// So many raw bytes of an extent at this place, in 4096ths of what they take.
fn weight_of(loc: Loc, bytes: u32) -> u64 {
    u64::from(bytes) * loc.weight()
}

/// An object no longer points to a place, where others may point to; how much of that counts less often now, in 4096ths
/// of a byte.
#[inline]
fn gone(segments: &Segments, shared: bool, loc: Loc, weight: u64) -> u64 {
    if shared {
        return segments.sub_shared_weight(loc.offset(), weight);
    }
    segments.sub_live_weight(loc.offset(), weight);
    0
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
    /// Length of the payload in bytes, once decompressed.
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
    pub fn reset(&mut self, segments: &Segments) {
        let number = std::mem::take(&mut self.number);
        self.replace(number, Spaces::default(), segments);
    }

    /// Replaces all spaces.
    pub fn put(&mut self, spaces: Spaces, segments: &Segments) {
        self.replace(self.number, spaces, segments);
    }

    /// Replaces all spaces, which were those of object `number`.
    fn replace(&mut self, number: u64, spaces: Spaces, segments: &Segments) {
        let met = spaces.account(segments, true);
        let shares = spaces.shares;
        let before = std::mem::replace(&mut self.spaces, spaces);
        let left = before.account(segments, false);
        // The object's lock is held: no thread looks between the two.
        if before.shares {
            segments.sharing.remove(number, left);
        }
        if shares {
            segments.sharing.note(self.number, met);
        }
    }

    /// What another object holds from now on that was this one: its number, spaces and history.
    pub fn move_to(&mut self, other: &mut Self) {
        other.number = std::mem::take(&mut self.number);
        other.spaces = std::mem::take(&mut self.spaces);
        (other.touched, other.captured) = (self.touched, self.captured);
        let counted = std::mem::take(&mut self.counted);
        other.counted.iter_mut().zip(counted).for_each(|(all, more)| *all += more);
        (self.touched, self.captured) = (0, 0);
        other.removed_at_least(self.changed_lsn.max(self.removed_lsn).max(self.xattr_lsn));
        other.copied_lsn = other.copied_lsn.max(self.copied_lsn);
    }

    /// Takes `parts` of some object's bytes, whose extents may be `shifted`, over `offset..offset + len` of this one:
    /// what is in no part is a hole.
    pub fn take_range(
        &mut self,
        (parts, shifted): (&[(u64, Extent)], bool),
        from: u64,
        len: u64,
        to: u64,
        readers_wait_to: Lsn,
        segments: &Segments,
    ) {
        if len == 0 {
            return;
        }
        // Counted before anything is given up: source and target may be one object, and a segment of which nothing
        // counts for a moment would be made free.
        for (_, extent) in parts {
            segments.add_again_weight(extent.loc.offset(), u64::from(extent.len) * extent.loc.weight());
        }
        let met = parts.iter().map(|(_, extent)| segments.segment_of(extent.loc.offset()));
        segments.sharing.note(self.number, met);
        let shared = self.spaces.counts_again();
        self.spaces.extents.punch(to, len, |loc, bytes| {
            gone(segments, shared, loc, weight_of(loc, bytes));
        });
        for (offset, extent) in parts {
            self.spaces.extents.write(to + (offset - from), extent.len, extent.loc, extent.skip, |_, _| ());
        }
        self.spaces.size = self.spaces.size.max(to + len);
        self.spaces.shares = true;
        self.spaces.shifted |= shifted || from != to;
        self.changed_lsn = self.changed_lsn.max(readers_wait_to);
        self.copied_lsn = self.copied_lsn.max(readers_wait_to);
    }

    /// Makes readers of everything wait for `lsn`: it came here from another object or name.
    pub fn copied_at_least(&mut self, lsn: Lsn) {
        self.copied_lsn = self.copied_lsn.max(lsn);
        self.removed_at_least(lsn);
    }

    /// Makes readers of whatever is missing wait for `lsn`.
    pub fn removed_at_least(&mut self, lsn: Lsn) {
        self.removed_lsn = self.removed_lsn.max(lsn);
        self.xattr_lsn = self.xattr_lsn.max(lsn);
        self.changed_lsn = self.changed_lsn.max(lsn);
    }

    /// Does what the operation says; no page it needs is missing ([`Spaces::missing`]). `readers_wait_to` is the log
    /// position that readers have to wait for, or 0 if the writer asked only for applied. Names, clones and renames are
    /// the caller's.
    pub fn apply(&mut self, step: &Step<'_>, readers_wait_to: Lsn, segments: &Segments) {
        let shared = self.spaces.counts_again();
        let cut = |loc: Loc, bytes: u32| {
            gone(segments, shared, loc, weight_of(loc, bytes));
        };
        let gone = |loc: Loc| {
            gone(segments, shared, loc, loc.span_bytes() * WEIGHT_WHOLE);
        };
        let new = |loc: Loc| segments.add_live(loc.offset(), loc.span_bytes());
        match step.kind {
            Kind::CreateCollection | Kind::RemoveCollection | Kind::CreateObject => {}
            Kind::Clone | Kind::CloneRange | Kind::Rename | Kind::Index => {}
            Kind::RemoveObject => {
                self.reset(segments);
                self.removed_lsn = self.removed_lsn.max(readers_wait_to);
                self.xattr_lsn = self.xattr_lsn.max(readers_wait_to);
            }
            Kind::Write => {
                let len = u64::from(step.payload_len);
                if len > 0 {
                    self.spaces.extents.write(step.argument, step.payload_len, step.loc, 0, cut);
                    segments.add_live_part(step.loc, len);
                    self.spaces.size = self.spaces.size.max(step.argument + len);
                }
            }
            Kind::Zero => {
                let len = word(step.payload);
                self.spaces.extents.punch(step.argument, len, cut);
                if len > 0 {
                    self.spaces.size = self.spaces.size.max(step.argument.saturating_add(len));
                }
            }
            Kind::Truncate => {
                if step.argument < self.spaces.size {
                    self.spaces.extents.truncate(step.argument, cut);
                }
                self.spaces.size = step.argument;
            }
            Kind::XattrSet => {
                self.spaces.xattrs.insert(Bytes::copy_from_slice(step.key), Bytes::copy_from_slice(step.payload));
                self.xattr_lsn = self.xattr_lsn.max(readers_wait_to);
            }
            Kind::XattrRemove => {
                self.spaces.xattrs.remove(step.key);
                self.xattr_lsn = self.xattr_lsn.max(readers_wait_to);
            }
            Kind::OmapSet => {
                new(step.loc);
                self.spaces.omap.insert(step.key, step.loc).map(gone);
            }
            Kind::OmapRemove => {
                self.spaces.omap.remove(step.key).map(gone);
                self.removed_lsn = self.removed_lsn.max(readers_wait_to);
            }
            Kind::OmapRemoveRange => {
                let end = (step.argument == 1).then_some(step.payload);
                self.spaces.omap.remove_range(step.key, end, |_, loc| gone(loc));
                self.removed_lsn = self.removed_lsn.max(readers_wait_to);
            }
            Kind::OmapClear => {
                let all = self.spaces.omap.scan(Bound::Unbounded, Bound::Unbounded, false);
                all.flatten().for_each(|(_, loc)| gone(loc));
                self.spaces.omap.clear();
                self.removed_lsn = self.removed_lsn.max(readers_wait_to);
            }
            Kind::SlotSet => {
                new(step.loc);
                self.spaces.slots.set(step.argument, step.loc).map(gone);
            }
            Kind::SlotRemove => {
                self.spaces.slots.remove(step.argument).map(gone);
                self.removed_lsn = self.removed_lsn.max(readers_wait_to);
            }
            Kind::SlotRemoveRange => {
                self.spaces.slots.remove_range(step.argument, word(step.payload), |_, loc| gone(loc));
                self.removed_lsn = self.removed_lsn.max(readers_wait_to);
            }
            Kind::RelocateSlots | Kind::RelocateOmap | Kind::RelocateExtents => {
                // The values are the same as before: no reader has to wait for them.
                self.relocate(step, segments);
                return;
            }
        }
        self.changed_lsn = self.changed_lsn.max(readers_wait_to);
    }

    /// Points moved values to their new places.
    fn relocate(&mut self, step: &Step<'_>, segments: &Segments) {
        let spaces = &mut self.spaces;
        let (number, mut noted) = (self.number, None);
        let mut share = |loc: Loc, shares: bool| {
            let segment = Some(segments.segment_of(loc.offset()));
            if shares && noted != segment {
                segments.sharing.note(number, segment);
                noted = segment;
            }
        };
        let again = spaces.counts_again();
        // Decoding has ruled out that an entry is cut short; a place that is none is passed over.
        each_relocated(step.kind, step.argument, step.payload, |entry| match entry {
            Relocated::Slot(slot, place) => {
                if let Some(loc) = Loc::from_raw(place) {
                    share(loc, spaces.shares);
                    segments.add_live(loc.offset(), loc.span_bytes());
                    let old = spaces.slots.set(slot, loc);
                    let whole = |old: Loc| gone(segments, again, old, old.span_bytes() * WEIGHT_WHOLE);
                    segments.move_again_weight(loc.offset(), old.map_or(0, whole));
                }
            }
            Relocated::Omap(key, place) => {
                if let Some(loc) = Loc::from_raw(place) {
                    share(loc, spaces.shares);
                    segments.add_live(loc.offset(), loc.span_bytes());
                    let old = spaces.omap.insert(key, loc);
                    let whole = |old: Loc| gone(segments, again, old, old.span_bytes() * WEIGHT_WHOLE);
                    segments.move_again_weight(loc.offset(), old.map_or(0, whole));
                }
            }
            Relocated::Extent { offset, place, len, skip } => {
                if let Some(loc) = Loc::from_raw(place) {
                    share(loc, spaces.shares);
                    segments.add_live_part(loc, len.into());
                    let mut moved = 0;
                    let cut = |loc: Loc, bytes: u32| moved += gone(segments, again, loc, weight_of(loc, bytes));
                    spaces.extents.write(offset, len, loc, skip, cut);
                    segments.move_again_weight(loc.offset(), moved);
                }
            }
        });
    }

    /// What `stat` tells.
    pub fn stat(&self) -> Option<Stat> {
        self.exists().then(|| Stat {
            size: self.spaces.size,
            omap_keys: self.spaces.omap.len(),
            slots: self.spaces.slots.len(),
            xattrs: self.spaces.xattrs.len() as u64,
        })
    }

    /// Bytes of memory that the index of this object takes: slots, omap, extents and attributes apart.
    pub fn memory_bytes(&self) -> [u64; 4] {
        let spaces = &self.spaces;
        let xattrs = spaces.xattrs.iter().map(|(name, value)| (name.len() + value.len() + 96) as u64).sum();
        let bytes = [spaces.slots.memory_bytes(), spaces.omap.memory_bytes(), spaces.extents.memory_bytes()];
        [bytes[0] as u64, bytes[1] as u64, bytes[2] as u64, xattrs]
    }
}

impl Deref for ObjectState {
    type Target = Spaces;

    fn deref(&self) -> &Spaces {
        &self.spaces
    }
}

impl DerefMut for ObjectState {
    fn deref_mut(&mut self) -> &mut Spaces {
        &mut self.spaces
    }
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
    /// Objects by number.
    numbers: RwLock<HashMap<u64, Arc<Object>>>,
    /// Numbers of the objects that changed in each epoch, the two last by parity.
    touched: [Mutex<Vec<u64>>; 2],
    /// Collections made (true) and removed, and in which epoch, since the last checkpoint's cut. Changed under the
    /// names' write lock.
    collections_changed: Mutex<Vec<(Collection, bool, u32)>>,
    /// What objects were at the last checkpoint's cut that have changed since and that it has not taken yet.
    saved: Mutex<HashMap<u64, (ObjectId, Spaces)>>,
    shards: [RwLock<ObjectMap<Arc<Object>>>; SHARDS],
    /// Heap bytes of all index pages in memory; what clones share counts for each.
    page_bytes: AtomicI64,
    /// Bytes that these take in a checkpoint, about.
    stored_bytes: AtomicI64,
    pages_read: AtomicU64,
    /// Calls that need many pages at once and have not got them all yet.
    gathering: AtomicUsize,
}

/// A call that needs many pages at once: while it lives no page leaves memory, or it would never have them all.
pub struct Gathering<'a>(&'a Objects);

impl Drop for Gathering<'_> {
    fn drop(&mut self) {
        self.0.gathering.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Default for Objects {
    fn default() -> Self {
        static TABLES: AtomicU64 = AtomicU64::new(1);
        let table = TABLES.fetch_add(1, Ordering::Relaxed);
        Self {
            table,
            names: RwLock::default(),
            numbers: RwLock::default(),
            touched: Default::default(),
            collections_changed: Mutex::default(),
            saved: Mutex::default(),
            shards: Default::default(),
            page_bytes: AtomicI64::new(0),
            stored_bytes: AtomicI64::new(0),
            pages_read: AtomicU64::new(0),
            gathering: AtomicUsize::new(0),
        }
    }
}

impl Drop for Objects {
    fn drop(&mut self) {
        // Threads may remember objects for as long as they live: they must not keep the index with them.
        self.for_each(|object| {
            let mut state = object.state.write();
            state.number = 0;
            state.spaces = Spaces::default();
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

    /// The object of this number.
    pub fn numbered(&self, number: u64) -> Option<Arc<Object>> {
        self.numbers.read().get(&number).cloned()
    }

    /// Gives an object its number, or takes the number back.
    pub fn set_number(&self, number: u64, object: Option<&Arc<Object>>) {
        let mut numbers = self.numbers.write();
        match object {
            Some(object) => numbers.insert(number, Arc::clone(object)),
            None => numbers.remove(&number),
        };
    }

    /// Before an object changes in an epoch of checkpoints: notes that it does, and keeps what it was if the
    /// checkpoint that is being written has not taken it yet.
    #[inline]
    pub fn enter(&self, id: &ObjectId, state: &mut ObjectState, epoch: u32) {
        if state.touched != epoch {
            self.enter_slowly(id, state, epoch);
        }
    }

    #[cold]
    fn enter_slowly(&self, id: &ObjectId, state: &mut ObjectState, epoch: u32) {
        if state.number == 0 {
            // It is being made: `touch` notes its number once it has one.
            return;
        }
        if state.touched != 0 && state.touched + 1 == epoch && state.captured != state.touched {
            self.saved.lock().insert(state.number, (id.clone(), state.spaces.clone()));
            state.spaces.clear_dirty();
        }
        state.touched = epoch;
        self.note(state.number, epoch);
    }

    /// Notes that an object changes in this epoch: one that is being made, before its record is filled.
    pub fn note(&self, number: u64, epoch: u32) {
        self.touched[epoch as usize % 2].lock().push(number);
    }

    /// Notes that a collection is made or removed in this epoch. The caller holds the names' write lock.
    pub fn note_collection(&self, collection: &Collection, made: bool, epoch: u32) {
        self.collections_changed.lock().push((collection.clone(), made, epoch));
    }

    /// The collections as they were when `epoch` ended.
    pub fn collections_at(&self, epoch: u32) -> Vec<Vec<u8>> {
        let names = self.names.read();
        let mut collections: BTreeSet<&Collection> = names.keys().collect();
        let changed = self.collections_changed.lock();
        for (collection, made, _) in changed.iter().rev().filter(|(_, _, changed)| *changed > epoch) {
            if *made {
                collections.remove(collection);
            } else {
                collections.insert(collection);
            }
        }
        collections.into_iter().map(|collection| collection.name().to_vec()).collect()
    }

    /// A checkpoint has the collections as they were when `epoch` ended.
    pub fn collections_saved(&self, epoch: u32) {
        self.collections_changed.lock().retain(|(_, _, changed)| *changed > epoch);
    }

    /// Takes the numbers of the objects that changed in an epoch that has ended, some more than once.
    pub fn take_touched(&self, epoch: u32) -> Vec<u64> {
        std::mem::take(&mut *self.touched[epoch as usize % 2].lock())
    }

    /// The numbers of the objects that have changed in an epoch that goes on, each once.
    pub fn touched_so_far(&self, epoch: u32) -> Vec<u64> {
        let mut touched = self.touched[epoch as usize % 2].lock().clone();
        touched.sort_unstable();
        touched.dedup();
        touched
    }

    /// For a checkpoint whose cut ended `epoch`: what the object was then, its pages that changed since the
    /// checkpoint before marked; `None` if it did not exist. Asked once for each object that changed.
    pub fn capture(&self, number: u64, epoch: u32) -> Option<(ObjectId, Spaces)> {
        loop {
            // One that was removed or renamed since the cut has left what it was.
            let object = self.numbered(number);
            let Some(object) = object else {
                // Or it is just being made: the writer that makes it holds the names.
                let names = self.names.read();
                if self.numbered(number).is_some() {
                    continue;
                }
                drop(names);
                return self.saved.lock().remove(&number);
            };
            let mut state = object.state.write();
            if let Some(saved) = self.saved.lock().remove(&number) {
                return Some(saved);
            }
            if state.number != number {
                // Renamed or removed between the two looks.
                continue;
            }
            if state.touched > epoch {
                // It was made after the cut.
                return None;
            }
            state.captured = epoch;
            let spaces = state.spaces.clone();
            state.spaces.clear_dirty();
            return Some((object.id.clone(), spaces));
        }
    }

    /// For a checkpoint that did not come to an object: the next one takes it as it is then. Whether its pages no
    /// longer tell what changed, because a writer had left behind what it was.
    pub fn put_off(&self, number: u64, epoch: u32) -> bool {
        if let Some(object) = self.numbered(number) {
            let mut state = object.state.write();
            if state.number == number && state.touched <= epoch {
                state.touched = epoch + 1;
            }
        }
        self.saved.lock().remove(&number).is_some()
    }

    /// Counts the index pages of an object that may have changed.
    #[inline]
    pub fn count(&self, state: &mut ObjectState) {
        let now = [state.spaces.page_bytes(), state.spaces.stored_bytes()];
        if now != state.counted {
            for ((all, now), before) in [&self.page_bytes, &self.stored_bytes].into_iter().zip(now).zip(state.counted) {
                all.fetch_add(now as i64 - before as i64, Ordering::Relaxed);
            }
            state.counted = now;
        }
    }

    /// Heap bytes of all index pages in memory.
    pub fn page_bytes(&self) -> u64 {
        self.page_bytes.load(Ordering::Relaxed).max(0) as u64
    }

    /// Bytes that all index pages in memory take in a checkpoint, about: more than in memory where they are packed.
    pub fn stored_bytes(&self) -> u64 {
        self.stored_bytes.load(Ordering::Relaxed).max(0) as u64
    }

    /// Notes that pages came back into memory.
    pub fn pages_read(&self, pages: u64) {
        self.pages_read.fetch_add(pages, Ordering::Relaxed);
    }

    /// Has no page leave memory until what this returns is dropped.
    pub fn gather(&self) -> Gathering<'_> {
        self.gathering.fetch_add(1, Ordering::AcqRel);
        Gathering(self)
    }

    /// Whether a caller needs pages to stay: see [`Objects::gather`].
    pub fn is_gathering(&self) -> bool {
        self.gathering.load(Ordering::Acquire) > 0
    }

    /// Pages that came back into memory.
    pub fn page_reads(&self) -> u64 {
        self.pages_read.load(Ordering::Relaxed)
    }

    /// About what a checkpoint of everything takes for this, in bytes: pages, and a head for each object.
    pub fn index_bytes(&self) -> u64 {
        self.stored_bytes() + self.numbers.read().len() as u64 * HEAD_BYTES
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
