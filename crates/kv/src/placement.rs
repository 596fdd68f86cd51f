//! Placement: which objects hold a namespace's entries, and how an entry is read, written and counted there.
//!
//! int:    slots of `<ns>/int/<be64 of key >> 20>`, index = low 20 bits of the key
//! bytes:  omap of `<ns>/bytes`
//! expiry: omap of `<ns>/expiry`, be64(expires_ms) ++ key (int keys as be64) → empty
//!
//! Invariants:
//! 1. Names of namespaces hold no `/`, so no two namespaces share an object.
//! 2. Every range object that was ever written is known here: it becomes known before its first write is submitted.
//!    It stays known after a clear, so that reads still ask the store and learn its barrier.
//! 3. Every stored entry with an expiry has its key in the expiry index; the index may hold more (see `expiry`).

use std::collections::BTreeMap;
use std::sync::OnceLock;

use bytes::Bytes;
use esker_store::{
    Barrier, Change, Collection, Completion, Condition, Guard, ObjectId, ObjectStore, Result, Transaction,
};
use parking_lot::RwLock;

use crate::{Key, Kind};

/// Keys of one range object, as a power of two.
pub(crate) const RANGE_BITS: u32 = 20;
/// Ranges whose ids are found without a lock: the first 134 million keys.
const LOW_RANGES: usize = 128;
/// Names asked for per call when ranges are listed.
const LIST_NAMES: usize = 4_096;

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
}

impl Placement {
    /// The objects of namespace `name`; for one that exists already, [`Placement::load`] must follow.
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
        }
    }

    /// Finds the range objects that exist.
    pub(crate) fn load(&self, store: &dyn ObjectStore) -> Result<()> {
        let mut after = self.prefix.clone();
        loop {
            let names = store.list(&self.collection, Some(&after), LIST_NAMES).wait()?;
            let Some(last) = names.last() else { return Ok(()) };
            after = last.clone();
            for name in &names {
                if !name.starts_with(&self.prefix) {
                    return Ok(());
                }
                if let Some(range) = self.range_of(name) {
                    self.range(range);
                }
            }
        }
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

    /// The object of a range, which becomes known if it was not.
    fn range(&self, range: u64) -> ObjectId {
        let make = || {
            let mut name = Vec::with_capacity(self.prefix.len() + 8);
            name.extend_from_slice(&self.prefix);
            name.extend_from_slice(&range.to_be_bytes());
            ObjectId::new(self.collection.clone(), name)
        };
        if let Some(cell) = self.low.get(range as usize) {
            return cell.get_or_init(make).clone();
        }
        if let Some(id) = self.high.read().get(&range) {
            return id.clone();
        }
        self.high.write().entry(range).or_insert_with(make).clone()
    }

    /// Calls `f` with the object of a range, if it is known.
    fn with_range<T>(&self, range: u64, f: impl FnOnce(&ObjectId) -> T) -> Option<T> {
        if let Some(cell) = self.low.get(range as usize) {
            return cell.get().map(f);
        }
        let id = self.high.read().get(&range).cloned()?;
        Some(f(&id))
    }

    /// The lowest known range of `first..=last`, or the highest.
    pub(crate) fn next_range(&self, first: u64, last: u64, reverse: bool) -> Option<(u64, ObjectId)> {
        let low_end = self.low.len() as u64;
        let low = |range: u64| Some((range, self.low.get(range as usize)?.get()?.clone()));
        let mut in_low = first..last.saturating_add(1).min(low_end);
        let high = |high: &BTreeMap<u64, ObjectId>| {
            let mut ranges = high.range(first.max(low_end)..=last);
            let found = if reverse { ranges.next_back() } else { ranges.next() };
            found.map(|(range, id)| (*range, id.clone()))
        };
        let in_high = || if last < low_end { None } else { high(&self.high.read()) };
        if reverse { in_high().or_else(|| in_low.rev().find_map(low)) } else { in_low.find_map(low).or_else(in_high) }
    }

    /// All objects that may hold entries.
    pub(crate) fn objects(&self, kind: Kind) -> Vec<ObjectId> {
        match kind {
            Kind::Bytes => vec![self.bytes.clone()],
            Kind::Int => {
                let low = self.low.iter().filter_map(|cell| cell.get().cloned());
                low.chain(self.high.read().values().cloned()).collect()
            }
        }
    }

    /// The stored bytes of a key.
    pub(crate) fn get(&self, store: &dyn ObjectStore, key: Key<'_>) -> Completion<Option<Bytes>> {
        match key {
            Key::Int(key) => {
                let (range, index) = split(key);
                let answer = self.with_range(range, |object| store.slot_get(object, index));
                answer.unwrap_or_else(|| Completion::ready(Ok(None)))
            }
            Key::Bytes(key) => store.omap_get(&self.bytes, key),
        }
    }

    /// The stored bytes of several keys of one kind: all at one moment, if they are of one object.
    pub(crate) fn get_many(
        &self,
        store: &dyn ObjectStore,
        kind: Kind,
        keys: &[Key<'_>],
    ) -> (Result<Vec<Option<Bytes>>>, Option<Barrier>) {
        if kind == Kind::Bytes {
            let keys: Vec<Bytes> = keys
                .iter()
                .filter_map(|key| match key {
                    Key::Bytes(key) => Some(Bytes::copy_from_slice(key)),
                    Key::Int(_) => None,
                })
                .collect();
            return store.omap_get_many(&self.bytes, &keys).into_parts();
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
        let mut found = vec![None; keys.len()];
        let mut barrier = None;
        for (range, (places, indexes)) in by_range {
            let Some(answer) = self.with_range(range, |object| store.slot_get_many(object, &indexes)) else { continue };
            let (values, behind) = answer.into_parts();
            barrier = Barrier::later(barrier, behind);
            match values {
                Ok(values) => places.into_iter().zip(values).for_each(|(at, value)| found[at] = value),
                Err(error) => return (Err(error), barrier),
            }
        }
        (Ok(found), barrier)
    }

    /// Adds the writing of an entry.
    pub(crate) fn set(&self, txn: &mut Transaction, key: Key<'_>, stored: Bytes) {
        match key {
            Key::Int(key) => {
                let (range, index) = split(key);
                txn.push(&self.range(range), Change::SlotSet { index, value: stored });
            }
            Key::Bytes(key) => {
                txn.push(&self.bytes, Change::OmapSet { key: Bytes::copy_from_slice(key), value: stored });
            }
        }
    }

    /// Adds the removal of an entry.
    pub(crate) fn remove(&self, txn: &mut Transaction, key: Key<'_>) {
        match key {
            Key::Int(key) => {
                let (range, index) = split(key);
                // A range that was never written holds nothing to remove.
                self.with_range(range, |object| txn.push(object, Change::SlotRemove { index }));
            }
            Key::Bytes(key) => txn.push(&self.bytes, Change::OmapRemove { key: Bytes::copy_from_slice(key) }),
        }
    }

    /// Adds a guard that the key holds exactly these stored bytes.
    pub(crate) fn guard(&self, txn: &mut Transaction, key: Key<'_>, stored: Option<Bytes>) {
        let (object, condition) = match key {
            Key::Int(key) => {
                let (range, index) = split(key);
                let condition = match stored {
                    Some(value) => Condition::SlotEquals { index, value },
                    None => Condition::SlotAbsent { index },
                };
                (self.range(range), condition)
            }
            Key::Bytes(key) => {
                let key = Bytes::copy_from_slice(key);
                let condition = match stored {
                    Some(value) => Condition::OmapEquals { key, value },
                    None => Condition::OmapAbsent { key },
                };
                (self.bytes.clone(), condition)
            }
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

    /// Adds the removal of everything.
    pub(crate) fn clear(&self, txn: &mut Transaction, kind: Kind) {
        for object in self.objects(kind) {
            txn.push(&object, Change::Remove);
        }
        txn.push(&self.expiry, Change::Remove);
    }

    /// How many entries are stored.
    pub(crate) fn len(&self, store: &dyn ObjectStore, kind: Kind) -> (Result<u64>, Option<Barrier>) {
        let mut barrier = None;
        let mut len = 0;
        for object in self.objects(kind) {
            let (stat, behind) = store.stat(&object).into_parts();
            barrier = Barrier::later(barrier, behind);
            match stat {
                Ok(stat) => len += stat.map_or(0, |stat| stat.slots + stat.omap_keys),
                Err(error) => return (Err(error), barrier),
            }
        }
        (Ok(len), barrier)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_ranges_are_found_in_order_across_the_low_table_and_beyond() {
        let placement = Placement::new(&"kv".into(), "n", Kind::Int);
        for range in [0, 5, 127, 128, 9_000, u64::MAX >> RANGE_BITS] {
            placement.range(range);
        }
        let last = u64::MAX >> RANGE_BITS;
        let walk = |reverse: bool| {
            let (mut first, mut end, mut seen) = (0, last, vec![]);
            while let Some((range, id)) = placement.next_range(first, end, reverse) {
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
        let mut all = vec![0, 5, 127, 128, 9_000, last];
        assert_eq!(walk(false), all);
        all.reverse();
        assert_eq!(walk(true), all);
        assert_eq!(placement.next_range(6, 126, false), None);
        assert_eq!(placement.next_range(200, 300, true), None);
    }
}
