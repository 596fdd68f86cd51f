//! What the store should hold: collections and objects in the plainest form, and what a transaction does to them.
//!
//! transaction → tried on a copy → the new state, or why it is refused
//!
//! Written apart from the model in `esker-store` on purpose: the two and the memory backend are compared in tests.
//!
//! Invariant: a state never changes; objects are shared between states until one of them changes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use esker_store::{Change, Collection, CommitEntry, DataRun, Error, ObjectId, Op, Transaction};

/// A value and its place in commit order.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The value.
    pub value: Bytes,
    /// Counted over all entries ever written. Not part of what makes two entries equal.
    pub order: u64,
    /// It came with a clone: stores order a copy's entries by their own rules, as new or as their originals.
    pub copied: bool,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.value == other.value
    }
}

/// One object.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModelObject {
    /// The bytes, holes as zeros.
    pub bytes: Vec<u8>,
    /// Which of them are data and not hole.
    pub filled: Vec<bool>,
    /// Extended attributes.
    pub xattrs: BTreeMap<Bytes, Bytes>,
    /// Ordered keys.
    pub omap: BTreeMap<Bytes, Entry>,
    /// Numbered records.
    pub slots: BTreeMap<u64, Entry>,
}

/// A state of the whole store.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModelState {
    /// The collections that exist.
    pub collections: BTreeSet<Collection>,
    /// The objects that exist.
    pub objects: BTreeMap<ObjectId, Arc<ModelObject>>,
}

/// Why a transaction is refused for what it names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The source of a copy or rename is missing.
    NoObject(ObjectId),
    /// The collection of an object to be made is missing.
    NoCollection(Collection),
    /// A collection to be removed holds objects.
    NotEmpty(Collection),
    /// A rename onto an object.
    Exists(ObjectId),
}

impl Refusal {
    /// Whether the store's error says the same.
    pub fn is(&self, error: &Error) -> bool {
        match (self, error) {
            (Self::NoObject(id), Error::NoObject { object }) => *object == id.to_string(),
            (Self::NoCollection(name), Error::NoCollection { collection })
            | (Self::NotEmpty(name), Error::NotEmpty { collection }) => *collection == name.to_string(),
            (Self::Exists(_), Error::Invalid { .. }) => true,
            _ => false,
        }
    }
}

impl ModelObject {
    fn grow(&mut self, end: usize) {
        let size = self.bytes.len().max(end);
        self.resize(size);
    }

    fn resize(&mut self, size: usize) {
        self.bytes.resize(size, 0);
        self.filled.resize(size, false);
    }

    fn write(&mut self, offset: usize, data: &[u8]) {
        if !data.is_empty() {
            self.grow(offset + data.len());
            self.bytes[offset..offset + data.len()].copy_from_slice(data);
            self.filled[offset..offset + data.len()].fill(true);
        }
    }

    fn zero(&mut self, offset: usize, len: usize) {
        if len > 0 {
            self.grow(offset + len);
            self.bytes[offset..offset + len].fill(0);
            self.filled[offset..offset + len].fill(false);
        }
    }

    /// Copies a range of `source`, holes and what lies past its end as holes.
    fn copy_range(&mut self, source: &Self, from: usize, len: usize, to: usize) {
        self.zero(to, len);
        for at in from..(from + len).min(source.bytes.len()) {
            if source.filled[at] {
                self.bytes[to + at - from] = source.bytes[at];
                self.filled[to + at - from] = true;
            }
        }
    }

    /// The runs of data.
    pub fn runs(&self) -> Vec<DataRun> {
        let mut runs = Vec::new();
        let mut offset = 0;
        for part in self.filled.chunk_by(|a, b| a == b) {
            let len = part.len() as u64;
            if part[0] {
                runs.push(DataRun { offset, len });
            }
            offset += len;
        }
        runs
    }

    /// Payload bytes, with something for each entry; at least what a store has to keep. Keys and attributes stand in
    /// the index as well.
    pub fn weight(&self) -> u64 {
        let data: u64 = self.runs().iter().map(|run| run.len + 64).sum();
        let omap: usize = self.omap.iter().map(|(key, entry)| 2 * key.len() + entry.value.len() + 64).sum();
        let xattrs: usize = self.xattrs.iter().map(|(name, value)| 2 * (name.len() + value.len()) + 64).sum();
        let slots: usize = self.slots.values().map(|entry| entry.value.len() + 64).sum();
        data + (omap + xattrs + slots) as u64 + 128
    }

    /// A change of this object alone.
    fn apply(&mut self, change: &Change, order: &mut u64) {
        match change {
            Change::Write { offset, data } => self.write(*offset as usize, data),
            Change::Zero { offset, len } => self.zero(*offset as usize, *len as usize),
            Change::Truncate { size } => self.resize(*size as usize),
            Change::XattrSet { name, value } => {
                self.xattrs.insert(name.clone(), value.clone());
            }
            Change::XattrRemove { name } => {
                self.xattrs.remove(name);
            }
            Change::OmapSet { key, value } => {
                *order += 1;
                self.omap.insert(key.clone(), Entry { value: value.clone(), order: *order, copied: false });
            }
            Change::OmapRemove { key } => {
                self.omap.remove(key);
            }
            Change::OmapRemoveRange { start, end } => {
                self.omap.retain(|key, _| key < start || end.as_ref().is_some_and(|end| key >= end));
            }
            Change::OmapClear => self.omap.clear(),
            Change::SlotSet { index, value } => {
                *order += 1;
                self.slots.insert(*index, Entry { value: value.clone(), order: *order, copied: false });
            }
            Change::SlotRemove { index } => {
                self.slots.remove(index);
            }
            Change::SlotRemoveRange { start, end } => {
                self.slots.retain(|index, _| index < start || (index >= end && *end != u64::MAX));
            }
            Change::Touch
            | Change::Remove
            | Change::CloneTo { .. }
            | Change::CloneRange { .. }
            | Change::Rename { .. } => {}
        }
    }

    /// A copy, its entries written now, in the order that they have among themselves.
    fn copy(&self, order: &mut u64) -> Self {
        let mut copy = self.clone();
        let mut entries: Vec<&mut Entry> = copy.omap.values_mut().chain(copy.slots.values_mut()).collect();
        entries.sort_unstable_by_key(|entry| entry.order);
        for entry in entries {
            *order += 1;
            entry.order = *order;
            entry.copied = true;
        }
        copy
    }
}

impl ModelState {
    /// The state after a transaction whose guards hold. `order` counts the entries ever written.
    ///
    /// # Errors
    /// The [`Refusal`]; nothing has changed then.
    pub fn after(&self, txn: &Transaction, order: &mut u64) -> Result<Self, Refusal> {
        let mut state = self.clone();
        for op in &txn.ops {
            match op {
                Op::CreateCollection(collection) => {
                    state.collections.insert(collection.clone());
                }
                Op::RemoveCollection(collection) => {
                    if state.objects.keys().any(|id| id.collection() == collection) {
                        return Err(Refusal::NotEmpty(collection.clone()));
                    }
                    state.collections.remove(collection);
                }
                Op::Object(id, change) => state.change(id, change, order)?,
            }
        }
        Ok(state)
    }

    /// Payload bytes of all objects, see [`ModelObject::weight`].
    pub fn weight(&self) -> u64 {
        self.objects.values().map(|object| object.weight()).sum()
    }

    /// The slots and omap entries of a collection in commit order.
    pub fn commit_order(&self, collection: &Collection) -> Vec<CommitEntry> {
        let mut entries = Vec::new();
        for (id, object) in self.objects.iter().filter(|(id, _)| id.collection() == collection) {
            let omap = object.omap.iter();
            entries.extend(
                omap.map(|(key, entry)| (entry.order, CommitEntry::Omap(id.clone(), key.clone(), entry.value.clone()))),
            );
            let slots = object.slots.iter();
            entries.extend(
                slots.map(|(index, entry)| (entry.order, CommitEntry::Slot(id.clone(), *index, entry.value.clone()))),
            );
        }
        entries.sort_unstable_by_key(|(order, _)| *order);
        entries.into_iter().map(|(_, entry)| entry).collect()
    }

    /// Whether the entry came with a clone and was not written since.
    pub fn is_copied(&self, entry: &CommitEntry) -> bool {
        let object = |id: &ObjectId| self.objects.get(id);
        match entry {
            CommitEntry::Slot(id, index, _) => object(id).and_then(|object| object.slots.get(index)),
            CommitEntry::Omap(id, key, _) => object(id).and_then(|object| object.omap.get(key)),
        }
        .is_some_and(|entry| entry.copied)
    }

    fn source(&self, id: &ObjectId) -> Result<Arc<ModelObject>, Refusal> {
        self.objects.get(id).cloned().ok_or_else(|| Refusal::NoObject(id.clone()))
    }

    fn make(&mut self, id: &ObjectId) -> Result<&mut ModelObject, Refusal> {
        if !self.objects.contains_key(id) && !self.collections.contains(id.collection()) {
            return Err(Refusal::NoCollection(id.collection().clone()));
        }
        Ok(Arc::make_mut(self.objects.entry(id.clone()).or_default()))
    }

    fn change(&mut self, id: &ObjectId, change: &Change, order: &mut u64) -> Result<(), Refusal> {
        match change {
            Change::Remove => {
                self.objects.remove(id);
            }
            Change::CloneTo { to } => {
                let source = self.source(id)?;
                // Onto itself nothing changes, commit order included.
                if to != id {
                    *self.make(to)? = source.copy(order);
                }
            }
            Change::CloneRange { to, from_offset, len, to_offset } => {
                let source = self.source(id)?;
                self.make(to)?.copy_range(&source, *from_offset as usize, *len as usize, *to_offset as usize);
            }
            Change::Rename { to } => {
                let object = self.source(id)?;
                if self.objects.contains_key(to) {
                    return Err(Refusal::Exists(to.clone()));
                }
                self.make(to)?;
                self.objects.remove(id);
                self.objects.insert(to.clone(), object);
            }
            Change::XattrRemove { .. }
            | Change::OmapRemove { .. }
            | Change::OmapRemoveRange { .. }
            | Change::OmapClear
            | Change::SlotRemove { .. }
            | Change::SlotRemoveRange { .. }
            | Change::Truncate { size: 0 } => {
                if let Some(object) = self.objects.get_mut(id) {
                    Arc::make_mut(object).apply(change, order);
                }
            }
            Change::Touch
            | Change::Write { .. }
            | Change::Zero { .. }
            | Change::Truncate { .. }
            | Change::XattrSet { .. }
            | Change::OmapSet { .. }
            | Change::SlotSet { .. } => self.make(id)?.apply(change, order),
        }
        Ok(())
    }
}

/// Where two states first differ, in words.
pub fn difference(expected: &ModelState, found: &ModelState) -> Option<String> {
    if expected.collections != found.collections {
        return Some(format!("collections {:?}, expected {:?}", found.collections, expected.collections));
    }
    let ids: BTreeSet<&ObjectId> = expected.objects.keys().chain(found.objects.keys()).collect();
    for id in ids {
        let (expected, found) = match (expected.objects.get(id), found.objects.get(id)) {
            (Some(expected), Some(found)) => (expected, found),
            (Some(_), None) => return Some(format!("{id} is missing")),
            (None, Some(_)) => return Some(format!("{id} should not exist")),
            (None, None) => continue,
        };
        if expected.bytes != found.bytes {
            let at = expected.bytes.iter().zip(&found.bytes).position(|(a, b)| a != b);
            let (len, found_len) = (expected.bytes.len(), found.bytes.len());
            return Some(format!("{id}: bytes differ at {at:?}; {found_len} bytes long, expected {len}"));
        }
        if expected.filled != found.filled {
            return Some(format!("{id}: extents {:?}, expected {:?}", found.runs(), expected.runs()));
        }
        if let Some(at) = first_difference(&expected.xattrs, &found.xattrs) {
            return Some(format!("{id}: xattr {at:?} differs"));
        }
        if let Some(at) = first_difference(&expected.omap, &found.omap) {
            return Some(format!("{id}: omap key {at:?} differs"));
        }
        if let Some(at) = first_difference(&expected.slots, &found.slots) {
            return Some(format!("{id}: slot {at} differs"));
        }
    }
    None
}

fn first_difference<'m, K: Ord, V: PartialEq>(a: &'m BTreeMap<K, V>, b: &'m BTreeMap<K, V>) -> Option<&'m K> {
    a.keys().chain(b.keys()).find(|key| a.get(key) != b.get(key))
}
