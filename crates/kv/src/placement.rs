//! Placement: which objects hold a namespace's entries, and how an entry is read, written and counted there.
//!
//! Whole:
//! int:    slots of `<ns>/int/<be64 of key >> 20>`, index = low 20 bits of the key
//! bytes:  omap of `<ns>/bytes`
//! expiry: omap of `<ns>/expiry`, be64(expires_ms) ++ key (int keys as be64) → empty
//!
//! In partitions, `<ns>/parts/<be64 of id>/<be64 of partition>`, a range of int keys being one:
//! int:    slots, index = low bits of the key
//! bytes:  omap, `e` ++ key; of a companion `f` ++ key
//! expiry: omap, `x` ++ be64(expires_ms) ++ key (int keys as be64) → empty
//!
//! Invariants:
//! 1. Names of namespaces hold no `/`, so no two namespaces share an object, but for a companion and its namespace.
//! 2. Which range objects there are only the store knows, since other processes make some too; ids are kept here to
//!    save making them again, and say nothing about what there is.
//! 3. Every stored entry with an expiry has its key in the expiry index; the index may hold more (see `expiry`).

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use esker_store::prefix::{just_above, prefix_end};
use esker_store::{
    Barrier, Change, Collection, Completion, Condition, Guard, ObjectId, ObjectStore, OmapScan, Op, Result, Soon,
    Transaction,
};
use parking_lot::RwLock;
use smallvec::SmallVec;

use crate::layout::{Layout, WHOLE_RANGE_BITS, partition_of, slot_of};
use crate::many::{self, Asked, FIRST_KEYS, Places};
use crate::pieces::Pieces;
use crate::{Key, Kind, OwnedKey};

/// Ranges of int keys, and partitions of byte keys, whose ids are found without a lock. Where int keys lie whole these
/// are the ranges of the first 134 million of them, in partitions those of the first 8 million.
const LOW_RANGES: usize = 128;
/// Ranges above those whose ids are kept.
const HIGH_RANGES_MAX: usize = 65_536;
/// Names asked for per call when ranges are listed.
const LIST_NAMES: usize = 4_096;
/// Names asked for when the highest range is looked for: with fewer the last of them is it.
const REVERSE_NAMES: usize = 256;

/// What the keys of entries begin with in a partition.
const ENTRIES: u8 = b'e';
/// What those of a companion begin with.
const COMPANION: u8 = b'f';
/// What places in the expiry index begin with in a partition.
const EXPIRIES: u8 = b'x';

/// The objects of one namespace.
pub(crate) struct Placement {
    collection: Collection,
    kind: Kind,
    layout: Layout,
    /// What its keys begin with in a partition: [`ENTRIES`] or [`COMPANION`].
    lead: u8,
    /// `<ns>/int/`, `<ns>/bytes` or `<ns>/parts/<id>/`: what commit-order scans select by.
    prefix: Bytes,
    /// Bits of an int key within its range.
    range_bits: u32,
    /// `<ns>/bytes`; unused by int namespaces, and in partitions.
    bytes: ObjectId,
    /// `<ns>/expiry`; unused in partitions.
    expiry: ObjectId,
    low: Box<[OnceLock<ObjectId>]>,
    high: RwLock<BTreeMap<u64, ObjectId>>,
    /// Whether `bytes` was there when it was last written to; other processes may have removed it since.
    made: AtomicBool,
}

/// What the objects in partitions of a namespace's names begin with.
pub(crate) fn parts(name: &str) -> Vec<u8> {
    format!("{name}/parts/").into_bytes()
}

/// The namespace and the id of a partition's name.
pub(crate) fn id_in(name: &[u8]) -> Option<(String, u64)> {
    let slash = name.iter().position(|byte| *byte == b'/')?;
    let (namespace, rest) = name.split_at(slash);
    let id = rest.strip_prefix(b"/parts/")?.first_chunk::<8>()?;
    Some((String::from_utf8(namespace.to_vec()).ok()?, u64::from_be_bytes(*id)))
}

/// The key of an entry of byte keys in a partition.
fn led(lead: u8, key: &[u8]) -> Bytes {
    [&[lead], key].concat().into()
}

/// Keys by their partitions or ranges: where each stands among all, and what it is called there.
type ByPartition<T> = BTreeMap<u64, (Vec<usize>, Vec<T>)>;

fn by_partition<T>(keys: impl Iterator<Item = (u64, T)>) -> ByPartition<T> {
    let mut all = ByPartition::new();
    for (at, (partition, key)) in keys.enumerate() {
        let (places, keys) = all.entry(partition).or_default();
        places.push(at);
        keys.push(key);
    }
    all
}

impl Placement {
    /// The objects of namespace `name`.
    pub(crate) fn new(collection: &Collection, name: &str, kind: Kind, layout: Layout) -> Self {
        let named = |suffix: &str| ObjectId::new(collection.clone(), format!("{name}/{suffix}").into_bytes());
        let (prefix, low_ranges, range_bits) = match (kind, layout) {
            (Kind::Int, Layout::Whole) => (format!("{name}/int/").into(), LOW_RANGES, WHOLE_RANGE_BITS),
            (Kind::Bytes, Layout::Whole) => (format!("{name}/bytes").into(), 0, WHOLE_RANGE_BITS),
            (_, Layout::Parted { id, bits }) => {
                let prefix = [&parts(name)[..], &id.to_be_bytes(), b"/"].concat().into();
                (prefix, LOW_RANGES, bits)
            }
        };
        Self {
            collection: collection.clone(),
            kind,
            layout,
            lead: ENTRIES,
            prefix,
            range_bits: range_bits.into(),
            bytes: named("bytes"),
            expiry: named("expiry"),
            low: (0..low_ranges).map(|_| OnceLock::new()).collect(),
            high: RwLock::default(),
            made: AtomicBool::new(false),
        }
    }

    /// Those of its companion, in the same objects.
    pub(crate) fn companion(&self, name: &str) -> Self {
        Self { lead: COMPANION, ..Self::new(&self.collection, name, self.kind, self.layout) }
    }

    pub(crate) fn layout(&self) -> Layout {
        self.layout
    }

    pub(crate) fn is_parted(&self) -> bool {
        self.layout.is_parted()
    }

    /// The objects that no count of ranges tells of, where it lies whole.
    pub(crate) fn uncounted(&self) -> [ObjectId; 2] {
        [self.bytes.clone(), self.expiry.clone()]
    }

    /// A number that is another for each namespace.
    pub(crate) fn seed(&self) -> u64 {
        self.bytes.hash64() ^ u64::from(self.lead)
    }

    /// The range that an int key is in, and its slot there.
    pub(crate) fn split(&self, key: u64) -> (u64, u64) {
        (key >> self.range_bits, key & ((1 << self.range_bits) - 1))
    }

    /// The key in this slot of this range.
    pub(crate) fn join(&self, range: u64, index: u64) -> u64 {
        range << self.range_bits | index
    }

    /// Int keys of a range.
    pub(crate) fn range_len(&self) -> u64 {
        1 << self.range_bits
    }

    /// The partition of a byte key: 0 where all are in one object.
    fn partition(&self, key: &[u8]) -> u64 {
        let Layout::Parted { bits, .. } = self.layout else { return 0 };
        if self.lead == ENTRIES {
            return partition_of(slot_of(key), bits);
        }
        // Of a companion, the number that its keys begin with says it.
        let number = key.first_chunk::<8>().map_or(0, |number| u64::from_be_bytes(*number));
        number & ((1 << bits) - 1)
    }

    /// Bits of the numbers of partitions of byte keys.
    pub(crate) fn partition_bits(&self) -> Option<u32> {
        match (self.kind, self.layout) {
            (Kind::Bytes, Layout::Parted { bits, .. }) => Some(bits.into()),
            _ => None,
        }
    }

    /// What tells the object of a key from those of others.
    pub(crate) fn part_of(&self, key: Key<'_>) -> u64 {
        match key {
            Key::Int(key) => self.split(key).0,
            Key::Bytes(key) => self.partition(key),
        }
    }

    /// Calls `f` with the object of a byte key.
    fn with_object<T>(&self, key: &[u8], f: impl FnOnce(&ObjectId) -> T) -> T {
        if self.is_parted() { self.with_range(self.partition(key), f) } else { f(&self.bytes) }
    }

    /// The object of a key.
    pub(crate) fn object(&self, key: Key<'_>) -> ObjectId {
        match key {
            Key::Int(key) => self.range(self.split(key).0),
            Key::Bytes(key) => self.with_object(key, ObjectId::clone),
        }
    }

    /// The omap key of a byte key.
    fn omap_key(&self, key: Bytes) -> Bytes {
        if self.is_parted() { led(self.lead, &key) } else { key }
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
        if kind == Kind::Bytes && !self.is_parted() {
            return Ok(vec![self.bytes.clone()]);
        }
        if let Some(bits) = self.partition_bits() {
            // Those that are missing are empty.
            return Ok((0..1 << bits).map(|partition| self.range(partition)).collect());
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
                let (range, index) = self.split(key);
                self.with_range(range, |object| store.slot_get(object, index))
            }
            Key::Bytes(key) if self.is_parted() => {
                self.with_object(key, |object| store.omap_get(object, &led(self.lead, key)))
            }
            Key::Bytes(key) => store.omap_get(&self.bytes, key),
        }
    }

    /// The stored bytes of several keys of one kind: all at one moment, if they are of one object. Where they are in
    /// partitions these are asked in turns, else all at once; the first turn asks for `first` keys.
    pub(crate) fn get_many(
        &self,
        store: &Arc<dyn ObjectStore>,
        kind: Kind,
        keys: &[Key<'_>],
        first: usize,
    ) -> Completion<Vec<Option<Bytes>>> {
        let asked = match kind {
            Kind::Bytes => {
                let keys = keys.iter().filter_map(|key| if let Key::Bytes(key) = *key { Some(key) } else { None });
                if !self.is_parted() {
                    let mut pieces = Pieces::default();
                    let keys: SmallVec<[Bytes; 16]> = keys.map(|key| pieces.of(key, &[])).collect();
                    return store.omap_get_many(&self.bytes, &keys);
                }
                let parts = by_partition(keys.map(|key| (self.partition(key), led(self.lead, key))));
                self.asked(parts, Places::Omap)
            }
            Kind::Int => {
                let keys = keys.iter().filter_map(|key| if let Key::Int(key) = *key { Some(key) } else { None });
                self.asked(by_partition(keys.map(|key| self.split(key))), Places::Slots)
            }
        };
        many::values(store, keys.len(), asked, if self.is_parted() { first } else { usize::MAX })
    }

    /// As [`Placement::get_many`], of keys that are owned, whose memory is shared and not copied.
    pub(crate) fn get_owned<'k>(
        &self,
        store: &Arc<dyn ObjectStore>,
        kind: Kind,
        keys: impl Iterator<Item = &'k OwnedKey>,
    ) -> Completion<Vec<Option<Bytes>>> {
        if kind == Kind::Bytes && !self.is_parted() {
            let keys: SmallVec<[Bytes; 16]> = keys.filter_map(|key| key.as_bytes().cloned()).collect();
            return store.omap_get_many(&self.bytes, &keys);
        }
        self.get_many(store, kind, &keys.map(OwnedKey::as_key).collect::<Vec<_>>(), FIRST_KEYS)
    }

    /// Whether something is stored under several keys of one kind.
    pub(crate) fn has_owned<'k>(
        &self,
        store: &Arc<dyn ObjectStore>,
        kind: Kind,
        keys: impl Iterator<Item = &'k OwnedKey>,
    ) -> Completion<Vec<bool>> {
        if kind == Kind::Bytes && !self.is_parted() {
            let keys: SmallVec<[Bytes; 16]> = keys.filter_map(|key| key.as_bytes().cloned()).collect();
            return store.omap_has_many(&self.bytes, &keys);
        }
        self.get_owned(store, kind, keys).map(|values| values.iter().map(Option::is_some).collect())
    }

    fn asked<K>(&self, parts: ByPartition<K>, places: impl Fn(Vec<K>) -> Places) -> Vec<Asked> {
        let asked = |(range, (at, keys))| Asked { object: self.range(range), places: places(keys), at };
        parts.into_iter().map(asked).collect()
    }

    /// Tells the store that these keys of one kind will be read soon.
    pub(crate) fn will_get(&self, store: &dyn ObjectStore, kind: Kind, keys: &[Key<'_>]) {
        if kind == Kind::Bytes {
            let keys = keys.iter().filter_map(|key| if let Key::Bytes(key) = *key { Some(key) } else { None });
            if !self.is_parted() {
                return store.will_get(&self.bytes, Soon::Omap(&keys.collect::<Vec<_>>()));
            }
            for (partition, (_, keys)) in by_partition(keys.map(|key| (self.partition(key), led(self.lead, key)))) {
                let keys: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
                self.with_range(partition, |object| store.will_get(object, Soon::Omap(&keys)));
            }
            return;
        }
        let places = keys.iter().filter_map(|key| if let Key::Int(key) = *key { Some(self.split(key)) } else { None });
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
                let (range, index) = self.split(key);
                txn.ops.push(Op::Object(self.range(range), Change::SlotSet { index, value: stored }));
            }
            OwnedKey::Bytes(key) if self.is_parted() => self.with_object(&key, |object| {
                txn.push(object, Change::OmapSet { key: led(self.lead, &key), value: stored });
            }),
            OwnedKey::Bytes(key) => txn.push(&self.bytes, Change::OmapSet { key, value: stored }),
        }
    }

    /// Adds the removal of an entry.
    pub(crate) fn remove(&self, txn: &mut Transaction, key: impl Into<OwnedKey>) {
        match key.into() {
            OwnedKey::Int(key) => {
                let (range, index) = self.split(key);
                self.with_range(range, |object| txn.push(object, Change::SlotRemove { index }));
            }
            OwnedKey::Bytes(key) if self.is_parted() => self.with_object(&key, |object| {
                txn.push(object, Change::OmapRemove { key: led(self.lead, &key) });
            }),
            OwnedKey::Bytes(key) => txn.push(&self.bytes, Change::OmapRemove { key }),
        }
    }

    /// Adds a guard that the key holds exactly these stored bytes.
    pub(crate) fn guard(&self, txn: &mut Transaction, key: impl Into<OwnedKey>, stored: Option<Bytes>) {
        let key = key.into();
        let object = self.object(key.as_key());
        let condition = match key {
            OwnedKey::Int(key) => Condition::slot_is(self.split(key).1, stored),
            OwnedKey::Bytes(key) => Condition::omap_is(self.omap_key(key), stored),
        };
        txn.guards.push(Guard { object, condition });
    }

    /// Adds the guard that the store holds something under a key.
    pub(crate) fn guard_present(&self, txn: &mut Transaction, key: impl Into<OwnedKey>) {
        let key = key.into();
        let object = self.object(key.as_key());
        let condition = match key {
            OwnedKey::Int(key) => Condition::SlotPresent { index: self.split(key).1 },
            OwnedKey::Bytes(key) => Condition::OmapPresent { key: self.omap_key(key) },
        };
        txn.guards.push(Guard { object, condition });
    }

    /// An entry's place in the expiry index.
    fn with_index_place<T>(&self, key: Key<'_>, expires_ms: u64, f: impl FnOnce(&ObjectId, Bytes) -> T) -> T {
        let place = key.index_key(expires_ms);
        if self.is_parted() { f(&self.object(key), led(EXPIRIES, &place)) } else { f(&self.expiry, place) }
    }

    /// Adds an entry's place in the expiry index.
    pub(crate) fn index_set(&self, txn: &mut Transaction, key: Key<'_>, expires_ms: u64) {
        let set = |object: &ObjectId, key| txn.push(object, Change::OmapSet { key, value: Bytes::new() });
        self.with_index_place(key, expires_ms, set);
    }

    /// Removes a place in the expiry index.
    pub(crate) fn index_remove(&self, txn: &mut Transaction, key: Key<'_>, expires_ms: u64) {
        self.with_index_place(key, expires_ms, |object, key| txn.push(object, Change::OmapRemove { key }));
    }

    /// Puts an entry's place in the expiry index where another was.
    pub(crate) fn index_replace(&self, txn: &mut Transaction, key: Key<'_>, old: Option<u64>, new: Option<u64>) {
        if old != new {
            old.into_iter().for_each(|at| self.index_remove(txn, key, at));
            new.into_iter().for_each(|at| self.index_set(txn, key, at));
        }
    }

    /// The objects that expiry indexes stand in.
    pub(crate) fn indexes(&self, store: &dyn ObjectStore, barrier: &mut Option<Barrier>) -> Result<Vec<ObjectId>> {
        if self.is_parted() { self.objects(store, self.kind, barrier) } else { Ok(vec![self.expiry.clone()]) }
    }

    /// As [`Placement::indexes`], of these objects' entries.
    pub(crate) fn indexes_of(&self, objects: &[ObjectId]) -> Vec<ObjectId> {
        if self.is_parted() { objects.to_vec() } else { vec![self.expiry.clone()] }
    }

    /// At most `limit` places of an index behind `after` that are due, oldest first; none only where there are none.
    pub(crate) fn due(
        &self,
        store: &dyn ObjectStore,
        index: &ObjectId,
        now_ms: u64,
        after: Option<&Bytes>,
        limit: usize,
    ) -> Completion<Vec<Bytes>> {
        if !self.is_parted() {
            return esker_store::due::due(store, index, now_ms, after.map(|after| &after[..]), limit);
        }
        let end = match now_ms.checked_add(1) {
            Some(end) => Some(led(EXPIRIES, &end.to_be_bytes())),
            None => prefix_end(&[EXPIRIES]),
        };
        let start = after.map_or(Bytes::from_static(&[EXPIRIES]), |after| just_above(&led(EXPIRIES, after)));
        let scan = OmapScan { start: Some(start), end, limit, keys_only: true, reverse: false };
        store.omap_scan(index, &scan).map(|found| found.into_iter().map(|(place, _)| place.slice(1..)).collect())
    }

    /// Removes a place that [`Placement::due`] told from its index.
    pub(crate) fn forget_due(&self, txn: &mut Transaction, index: &ObjectId, place: &Bytes) {
        let key = if self.is_parted() { led(EXPIRIES, place) } else { place.clone() };
        txn.push(index, Change::OmapRemove { key });
    }

    /// What scans an object for byte keys.
    pub(crate) fn omap_scan(&self, start: Bytes, end: Option<Bytes>) -> OmapScan {
        let (start, end) = if self.is_parted() {
            let end = end.map_or_else(|| prefix_end(&[self.lead]), |end| Some(led(self.lead, &end)));
            (led(self.lead, &start), end)
        } else {
            (start, end)
        };
        OmapScan { start: Some(start), end, ..OmapScan::default() }
    }

    /// The byte key of an omap key that such a scan found.
    pub(crate) fn byte_key(&self, found: Bytes) -> OwnedKey {
        OwnedKey::Bytes(if self.is_parted() { found.slice(1..) } else { found })
    }

    /// The objects in which byte keys from `start` on and below `end` may stand.
    pub(crate) fn objects_between(
        &self,
        store: &dyn ObjectStore,
        start: &Bytes,
        end: Option<&Bytes>,
        barrier: &mut Option<Barrier>,
    ) -> Result<Vec<ObjectId>> {
        if self.lead == COMPANION
            && let Some(number) = start.first_chunk::<8>()
            && end.is_some_and(|end| end.starts_with(&number[..]) || prefix_end(&number[..]).as_ref() == Some(end))
        {
            // All of one number.
            return Ok(vec![self.with_object(&number[..], ObjectId::clone)]);
        }
        self.objects(store, self.kind, barrier)
    }

    /// Adds the removal of a range of byte keys.
    pub(crate) fn remove_range(
        &self,
        txn: &mut Transaction,
        store: &dyn ObjectStore,
        (start, end): (Bytes, Option<Bytes>),
        barrier: &mut Option<Barrier>,
    ) -> Result<()> {
        let objects = self.objects_between(store, &start, end.as_ref(), barrier)?;
        let scan = self.omap_scan(start, end);
        for object in objects {
            let start = scan.start.clone().unwrap_or_default();
            txn.push(&object, Change::OmapRemoveRange { start, end: scan.end.clone() });
        }
        Ok(())
    }

    /// Whether entries of this namespace stand in an object: not only their places in an index.
    pub(crate) fn is_entries(&self, object: &ObjectId) -> bool {
        object.name().starts_with(&self.prefix)
    }

    /// Adds the removal of everything that stands in these objects.
    pub(crate) fn clear(&self, txn: &mut Transaction, objects: &[ObjectId]) {
        for object in objects {
            // An object in partitions stays: a write that meets none goes to make it.
            let changes = match self.kind {
                _ if !self.is_parted() => [Some(Change::Remove), None],
                Kind::Bytes if self.lead == COMPANION => {
                    let OmapScan { start, end, .. } = self.omap_scan(Bytes::new(), None);
                    [Some(Change::OmapRemoveRange { start: start.unwrap_or_default(), end }), None]
                }
                Kind::Bytes => {
                    let OmapScan { start, end, .. } = self.omap_scan(Bytes::new(), None);
                    let expiries = Change::OmapRemoveRange {
                        start: Bytes::from_static(&[EXPIRIES]),
                        end: prefix_end(&[EXPIRIES]),
                    };
                    [Some(Change::OmapRemoveRange { start: start.unwrap_or_default(), end }), Some(expiries)]
                }
                Kind::Int => {
                    let slots = Change::SlotRemoveRange { start: 0, end: self.range_len() };
                    [Some(slots), Some(Change::OmapClear)]
                }
            };
            changes.into_iter().flatten().for_each(|change| txn.push(object, change));
        }
        if !self.is_parted() {
            txn.push(&self.expiry, Change::Remove);
        }
    }

    /// How many entries are stored: in partitions counted one after the other.
    pub(crate) fn len(&self, store: &dyn ObjectStore, kind: Kind) -> (Result<u64>, Option<Barrier>) {
        let mut barrier = None;
        let len = self.count(store, kind, &mut barrier);
        (len, barrier)
    }

    fn count(&self, store: &dyn ObjectStore, kind: Kind, barrier: &mut Option<Barrier>) -> Result<u64> {
        let mut len = 0;
        for object in self.objects(store, kind, barrier)? {
            len += match (self.is_parted(), kind) {
                (true, Kind::Bytes) => self.count_led(store, &object, barrier)?,
                (true, Kind::Int) => store.stat(&object).applied(barrier)?.map_or(0, |stat| stat.slots),
                (false, _) => {
                    let stat = store.stat(&object).applied(barrier)?;
                    stat.map_or(0, |stat| stat.slots + stat.omap_keys)
                }
            };
        }
        Ok(len)
    }

    /// Counts the entries of one object by reading their keys.
    fn count_led(&self, store: &dyn ObjectStore, object: &ObjectId, barrier: &mut Option<Barrier>) -> Result<u64> {
        let mut scan = OmapScan { keys_only: true, limit: LIST_NAMES, ..self.omap_scan(Bytes::new(), None) };
        let mut len = 0;
        loop {
            let page = store.omap_scan(object, &scan).applied(barrier)?;
            let Some((last, _)) = page.last() else { return Ok(len) };
            len += page.len() as u64;
            scan.start = Some(just_above(last));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_found_in_order_both_ways_however_many_there_are() {
        let store = esker_memory::MemoryStore::new();
        let placement = Placement::new(&"kv".into(), "n", Kind::Int, Layout::Whole);
        let last = u64::MAX >> WHOLE_RANGE_BITS;
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
