//! Placement: which objects hold a namespace's entries, and how an entry is read, written and counted there.
//!
//! int:    slots of `<ns>/int/<be64 of key >> 20>`, index = low 20 bits of the key
//! bytes:  omap of `<ns>/bytes`
//! expiry: omap of `<ns>/expiry`, be64(expires_ms) ++ key (int keys as be64) → empty
//!
//! Invariants:
//! 1. Names of namespaces hold no `/`, so no two namespaces share an object.
//! 2. Which range objects there are only the store knows, since other processes make some too; ids are kept here to
//!    save making them again, and say nothing about what there is.
//! 3. Every stored entry with an expiry has its key in the expiry index; the index may hold more (see `expiry`).

use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use esker_store::{
    Barrier, Change, Collection, Completion, Condition, Guard, ObjectId, ObjectStore, Op, Result, Soon, Transaction,
};
use parking_lot::RwLock;

use crate::{Key, Kind, OwnedKey};

/// Keys of one range object, as a power of two.
pub(crate) const RANGE_BITS: u32 = 20;
/// Ranges whose ids are found without a lock: the first 134 million keys.
const LOW_RANGES: usize = 128;
/// Ranges above those whose ids are kept.
const HIGH_RANGES_MAX: usize = 65_536;
/// Names asked for per call when ranges are listed.
const LIST_NAMES: usize = 4_096;
/// Names asked for when the highest range is looked for: with fewer the last of them is it.
const REVERSE_NAMES: usize = 256;

/// The range that an int key is in, and its slot there.
pub(crate) fn split(key: u64) -> (u64, u64) {
    (key >> RANGE_BITS, key & ((1 << RANGE_BITS) - 1))
}

/// The key in this slot of this range.
pub(crate) fn join(range: u64, index: u64) -> u64 {
    range << RANGE_BITS | index
}

/// The objects of one namespace.
pub(crate) struct Placement {
    collection: Collection,
    /// `<ns>/int/` or `<ns>/bytes`: what commit-order scans select by.
    prefix: Bytes,
    /// `<ns>/bytes`; unused by int namespaces.
    pub(crate) bytes: ObjectId,
    /// `<ns>/expiry`.
    pub(crate) expiry: ObjectId,
    low: Box<[OnceLock<ObjectId>]>,
    high: RwLock<BTreeMap<u64, ObjectId>>,
    /// Whether `bytes` was there when it was last written to; other processes may have removed it since.
    made: AtomicBool,
}

impl Placement {
    /// The objects of namespace `name`.
    pub(crate) fn new(collection: &Collection, name: &str, kind: Kind) -> Self {
        let named = |suffix: &str| ObjectId::new(collection.clone(), format!("{name}/{suffix}").into_bytes());
        let (prefix, low_ranges) = match kind {
            Kind::Int => ("int/", LOW_RANGES),
            Kind::Bytes => ("bytes", 0),
        };
        Self {
            collection: collection.clone(),
            prefix: format!("{name}/{prefix}").into(),
            bytes: named("bytes"),
            expiry: named("expiry"),
            low: (0..low_ranges).map(|_| OnceLock::new()).collect(),
            high: RwLock::default(),
            made: AtomicBool::new(false),
        }
    }

    /// Whether the object of byte keys was there when it was last written to.
    pub(crate) fn is_made(&self) -> bool {
        self.made.load(Ordering::Relaxed)
    }

    /// Notes that the object of byte keys is there.
    pub(crate) fn note_made(&self) {
        if !self.is_made() {
            self.made.store(true, Ordering::Relaxed);
        }
    }

    /// Notes that the object of byte keys may be gone.
    pub(crate) fn forget_made(&self) {
        self.made.store(false, Ordering::Relaxed);
    }

    pub(crate) fn collection(&self) -> &Collection {
        &self.collection
    }

    pub(crate) fn prefix(&self) -> &Bytes {
        &self.prefix
    }

    /// The range that an object of this namespace's name holds.
    pub(crate) fn range_of(&self, name: &[u8]) -> Option<u64> {
        Some(u64::from_be_bytes(name.strip_prefix(&self.prefix[..])?.try_into().ok()?))
    }

    fn range_name(&self, range: u64) -> Vec<u8> {
        let mut name = Vec::with_capacity(self.prefix.len() + 8);
        name.extend_from_slice(&self.prefix);
        name.extend_from_slice(&range.to_be_bytes());
        name
    }

    /// The object of a range.
    fn range(&self, range: u64) -> ObjectId {
        self.with_range(range, ObjectId::clone)
    }

    /// Calls `f` with the object of a range.
    fn with_range<T>(&self, range: u64, f: impl FnOnce(&ObjectId) -> T) -> T {
        let make = || ObjectId::new(self.collection.clone(), self.range_name(range));
        if let Some(cell) = self.low.get(range as usize) {
            return f(cell.get_or_init(make));
        }
        if let Some(id) = self.high.read().get(&range) {
            return f(id);
        }
        let id = make();
        let mut high = self.high.write();
        // Those who ask may ask for any: only so many are kept.
        if high.len() < HIGH_RANGES_MAX {
            high.insert(range, id.clone());
        }
        drop(high);
        f(&id)
    }

    /// Names of this namespace's ranges from `first` on, in order, at most `limit`; with what showing them waits for.
    fn ranges_from(
        &self,
        store: &dyn ObjectStore,
        first: u64,
        limit: usize,
        barrier: &mut Option<Barrier>,
    ) -> Result<Vec<u64>> {
        let after = first.checked_sub(1).map_or_else(|| self.prefix.to_vec(), |before| self.range_name(before));
        let names = store.list(&self.collection, Some(&after), limit).applied(barrier)?;
        let ours = names.iter().take_while(|name| name.starts_with(&self.prefix));
        Ok(ours.filter_map(|name| self.range_of(name)).collect())
    }

    /// The lowest range of `first..=last` that has an object, or the highest.
    pub(crate) fn next_range(
        &self,
        store: &dyn ObjectStore,
        (first, last): (u64, u64),
        reverse: bool,
        barrier: &mut Option<Barrier>,
    ) -> Result<Option<(u64, ObjectId)>> {
        let found = if reverse {
            self.highest_range(store, first, last, barrier)?
        } else {
            self.ranges_from(store, first, 1, barrier)?.first().copied().filter(|range| *range <= last)
        };
        Ok(found.map(|range| (range, self.range(range))))
    }

    fn highest_range(
        &self,
        store: &dyn ObjectStore,
        first: u64,
        last: u64,
        barrier: &mut Option<Barrier>,
    ) -> Result<Option<u64>> {
        let page = self.ranges_from(store, first, REVERSE_NAMES, barrier)?;
        let Some(mut highest) = page.iter().copied().take_while(|range| *range <= last).last() else {
            return Ok(None);
        };
        if page.len() < REVERSE_NAMES || page.last().is_some_and(|range| *range > last) {
            return Ok(Some(highest));
        }
        // Names are listed upwards only, and there are many: look where none follows.
        let mut end = last;
        while highest < end {
            let middle = highest + (end - highest).div_ceil(2);
            match self.ranges_from(store, middle, 1, barrier)?.first() {
                Some(range) if *range <= last => highest = *range,
                _ => end = middle - 1,
            }
        }
        Ok(Some(highest))
    }

    /// All objects that may hold entries, as listed now.
    pub(crate) fn objects(
        &self,
        store: &dyn ObjectStore,
        kind: Kind,
        barrier: &mut Option<Barrier>,
    ) -> Result<Vec<ObjectId>> {
        if kind == Kind::Bytes {
            return Ok(vec![self.bytes.clone()]);
        }
        let mut all = Vec::new();
        let mut first = Some(0);
        while let Some(from) = first {
            let page = self.ranges_from(store, from, LIST_NAMES, barrier)?;
            first = page.last().filter(|_| page.len() == LIST_NAMES).and_then(|last| last.checked_add(1));
            all.extend(page.into_iter().map(|range| self.range(range)));
        }
        Ok(all)
    }

    /// The stored bytes of a key.
    pub(crate) fn get(&self, store: &dyn ObjectStore, key: Key<'_>) -> Completion<Option<Bytes>> {
        match key {
            Key::Int(key) => {
                let (range, index) = split(key);
                self.with_range(range, |object| store.slot_get(object, index))
            }
            Key::Bytes(key) => store.omap_get(&self.bytes, key),
        }
    }

    /// The stored bytes of several keys of one kind: all at one moment, if they are of one object. All reads are begun
    /// when this returns.
    pub(crate) fn get_many(
        &self,
        store: &dyn ObjectStore,
        kind: Kind,
        keys: &[Key<'_>],
    ) -> Completion<Vec<Option<Bytes>>> {
        if kind == Kind::Bytes {
            let keys: Vec<Bytes> = keys
                .iter()
                .filter_map(|key| match key {
                    Key::Bytes(key) => Some(Bytes::copy_from_slice(key)),
                    Key::Int(_) => None,
                })
                .collect();
            return store.omap_get_many(&self.bytes, &keys);
        }
        let mut by_range: BTreeMap<u64, (Vec<usize>, Vec<u64>)> = BTreeMap::new();
        for (at, key) in keys.iter().enumerate() {
            if let Key::Int(key) = key {
                let (range, index) = split(*key);
                let (places, indexes) = by_range.entry(range).or_default();
                places.push(at);
                indexes.push(index);
            }
        }
        let (mut begun, mut all_places) = (Vec::with_capacity(by_range.len()), Vec::with_capacity(by_range.len()));
        for (range, (places, indexes)) in by_range {
            begun.push(self.with_range(range, |object| store.slot_get_many(object, &indexes)));
            all_places.push(places);
        }
        let len = keys.len();
        Completion::all(begun).map(move |by_range| {
            let mut found = vec![None; len];
            for (places, values) in all_places.into_iter().zip(by_range) {
                places.into_iter().zip(values).for_each(|(at, value)| found[at] = value);
            }
            found
        })
    }

    /// Tells the store that these keys of one kind will be read soon.
    pub(crate) fn will_get(&self, store: &dyn ObjectStore, kind: Kind, keys: &[Key<'_>]) {
        if kind == Kind::Bytes {
            let keys = keys.iter().filter_map(|key| if let Key::Bytes(key) = *key { Some(key) } else { None });
            let keys: Vec<&[u8]> = keys.collect();
            return store.will_get(&self.bytes, Soon::Omap(&keys));
        }
        let places = keys.iter().filter_map(|key| if let Key::Int(key) = *key { Some(split(key)) } else { None });
        let mut places: Vec<(u64, u64)> = places.collect();
        places.sort_unstable();
        for part in places.chunk_by(|one, next| one.0 == next.0) {
            let indexes: Vec<u64> = part.iter().map(|(_, index)| *index).collect();
            self.with_range(part[0].0, |object| store.will_get(object, Soon::Slots(&indexes)));
        }
    }

    /// Adds the writing of an entry.
    pub(crate) fn set(&self, txn: &mut Transaction, key: impl Into<OwnedKey>, stored: Bytes) {
        match key.into() {
            OwnedKey::Int(key) => {
                let (range, index) = split(key);
                txn.ops.push(Op::Object(self.range(range), Change::SlotSet { index, value: stored }));
            }
            OwnedKey::Bytes(key) => txn.push(&self.bytes, Change::OmapSet { key, value: stored }),
        }
    }

    /// Adds the removal of an entry.
    pub(crate) fn remove(&self, txn: &mut Transaction, key: impl Into<OwnedKey>) {
        match key.into() {
            OwnedKey::Int(key) => {
                let (range, index) = split(key);
                self.with_range(range, |object| txn.push(object, Change::SlotRemove { index }));
            }
            OwnedKey::Bytes(key) => txn.push(&self.bytes, Change::OmapRemove { key }),
        }
    }

    /// Adds a guard that the key holds exactly these stored bytes.
    pub(crate) fn guard(&self, txn: &mut Transaction, key: impl Into<OwnedKey>, stored: Option<Bytes>) {
        let (object, condition) = match key.into() {
            OwnedKey::Int(key) => {
                let (range, index) = split(key);
                (self.range(range), Condition::slot_is(index, stored))
            }
            OwnedKey::Bytes(key) => (self.bytes.clone(), Condition::omap_is(key, stored)),
        };
        txn.guards.push(Guard { object, condition });
    }

    /// Adds the guard that the store holds something under a key.
    pub(crate) fn guard_present(&self, txn: &mut Transaction, key: Key<'_>) {
        let (object, condition) = match key {
            Key::Int(key) => {
                let (range, index) = split(key);
                (self.range(range), Condition::SlotPresent { index })
            }
            Key::Bytes(key) => (self.bytes.clone(), Condition::OmapPresent { key: Bytes::copy_from_slice(key) }),
        };
        txn.guards.push(Guard { object, condition });
    }

    /// Adds an entry's place in the expiry index.
    pub(crate) fn index_set(&self, txn: &mut Transaction, key: Key<'_>, expires_ms: u64) {
        txn.push(&self.expiry, Change::OmapSet { key: key.index_key(expires_ms), value: Bytes::new() });
    }

    /// Removes a place in the expiry index.
    pub(crate) fn index_remove(&self, txn: &mut Transaction, key: Key<'_>, expires_ms: u64) {
        txn.push(&self.expiry, Change::OmapRemove { key: key.index_key(expires_ms) });
    }

    /// Whether entries of this namespace stand in an object: not only their places in an index.
    pub(crate) fn is_entries(&self, object: &ObjectId) -> bool {
        object.name().starts_with(&self.prefix)
    }

    /// Adds the removal of everything that stands in these objects.
    pub(crate) fn clear(&self, txn: &mut Transaction, objects: &[ObjectId]) {
        for object in objects {
            txn.push(object, Change::Remove);
        }
        txn.push(&self.expiry, Change::Remove);
    }

    /// How many entries are stored.
    pub(crate) fn len(&self, store: &dyn ObjectStore, kind: Kind) -> (Result<u64>, Option<Barrier>) {
        let mut barrier = None;
        let len = self.count(store, kind, &mut barrier);
        (len, barrier)
    }

    fn count(&self, store: &dyn ObjectStore, kind: Kind, barrier: &mut Option<Barrier>) -> Result<u64> {
        let mut len = 0;
        for object in self.objects(store, kind, barrier)? {
            let stat = store.stat(&object).applied(barrier)?;
            len += stat.map_or(0, |stat| stat.slots + stat.omap_keys);
        }
        Ok(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_found_in_order_both_ways_however_many_there_are() {
        let store = esker_memory::MemoryStore::new();
        let placement = Placement::new(&"kv".into(), "n", Kind::Int);
        let last = u64::MAX >> RANGE_BITS;
        let mut all: Vec<u64> = vec![0, 5, 127, 128, 9_000, last];
        all.extend((0..2 * REVERSE_NAMES as u64).map(|range| 20_000 + 3 * range));
        all.sort_unstable();
        let mut txn = Transaction::new().create_collection(&"kv".into());
        for range in &all {
            txn.push(&placement.range(*range), Change::Touch);
        }
        // Neighbours in the list of names.
        for name in ["n/expiry", "n/int", "n/int0", "n2/int/12345678", "n/inu"] {
            txn.push(&ObjectId::new("kv".into(), name), Change::Touch);
        }
        store.submit(txn).wait().unwrap();
        let next = |span, reverse| placement.next_range(&store, span, reverse, &mut None).unwrap();
        let walk = |reverse: bool| {
            let (mut first, mut end, mut seen) = (0, last, vec![]);
            while let Some((range, id)) = next((first, end), reverse) {
                assert_eq!(placement.range_of(id.name()), Some(range));
                seen.push(range);
                if reverse {
                    let Some(below) = range.checked_sub(1) else { break };
                    end = below;
                } else {
                    first = range + 1;
                    if first > end {
                        break;
                    }
                }
            }
            seen
        };
        assert_eq!(walk(false), all);
        all.reverse();
        assert_eq!(walk(true), all);
        assert_eq!(next((6, 126), false), None);
        assert_eq!(next((200, 300), true), None);
        assert_eq!(placement.objects(&store, Kind::Int, &mut None).unwrap().len(), all.len());
    }
}
