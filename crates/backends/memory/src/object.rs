//! One object: its four spaces, what a guard sees of it, and what each change does to it.
//!
//! Invariant: every slot and omap entry carries its place in commit order, and no two of a store share one.

use std::collections::BTreeMap;

use bytes::Bytes;
use esker_store::{Change, Condition, Stat};

use crate::runs::Runs;

/// A value and its place in commit order.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The value.
    pub value: Bytes,
    /// Counted by the store over all entries written, from 1.
    pub order: u64,
}

/// The four spaces. Cloning shares payloads.
#[derive(Clone, Debug, Default)]
pub struct Object {
    /// Bytes.
    pub bytes: Runs,
    /// Extended attributes.
    pub xattrs: BTreeMap<Bytes, Bytes>,
    /// Ordered keys.
    pub omap: BTreeMap<Bytes, Entry>,
    /// Numbered records.
    pub slots: BTreeMap<u64, Entry>,
}

/// Whether `condition` holds for an object, or for none.
pub fn holds(condition: &Condition, object: Option<&Object>) -> bool {
    let xattr = |name: &Bytes| object.and_then(|object| object.xattrs.get(name));
    let omap = |key: &Bytes| object.and_then(|object| object.omap.get(key)).map(|entry| &entry.value);
    let slot = |index: &u64| object.and_then(|object| object.slots.get(index)).map(|entry| &entry.value);
    match condition {
        Condition::Exists => object.is_some(),
        Condition::Absent => object.is_none(),
        Condition::XattrEquals { name, value } => xattr(name) == Some(value),
        Condition::XattrAbsent { name } => xattr(name).is_none(),
        Condition::XattrCompare { name, compare, value, absent_holds } => match xattr(name) {
            None => *absent_holds,
            Some(stored) => {
                <[u8; 8]>::try_from(&stored[..]).is_ok_and(|stored| compare.holds(u64::from_le_bytes(stored), *value))
            }
        },
        Condition::OmapAbsent { key } => omap(key).is_none(),
        Condition::OmapPresent { key } => omap(key).is_some(),
        Condition::OmapEquals { key, value } => omap(key) == Some(value),
        Condition::SlotAbsent { index } => slot(index).is_none(),
        Condition::SlotPresent { index } => slot(index).is_some(),
        Condition::SlotEquals { index, value } => slot(index) == Some(value),
        Condition::SizeEquals { size } => object.is_some_and(|object| object.bytes.size() == *size),
    }
}

impl Object {
    /// What the object is.
    pub fn stat(&self) -> Stat {
        Stat {
            size: self.bytes.size(),
            omap_keys: self.omap.len() as u64,
            slots: self.slots.len() as u64,
            xattrs: self.xattrs.len() as u64,
        }
    }

    /// Does what `change` says inside this object; changes that involve names or other objects do nothing here.
    /// `order` counts the entries that a store has written.
    pub fn apply(&mut self, change: Change, order: &mut u64) {
        match change {
            Change::Write { offset, data } => self.bytes.write(offset, data),
            Change::Zero { offset, len } => self.bytes.zero(offset, len),
            Change::Truncate { size } => self.bytes.truncate(size),
            Change::XattrSet { name, value } => {
                self.xattrs.insert(name, value);
            }
            Change::XattrRemove { name } => {
                self.xattrs.remove(&name);
            }
            Change::OmapSet { key, value } => {
                *order += 1;
                self.omap.insert(own(key), Entry { value: own(value), order: *order });
            }
            Change::OmapRemove { key } => {
                self.omap.remove(&key);
            }
            Change::OmapRemoveRange { start, end } => {
                let mut taken = self.omap.split_off(&start);
                if let Some(end) = end {
                    self.omap.append(&mut taken.split_off(&end));
                }
            }
            Change::OmapClear => self.omap.clear(),
            Change::SlotSet { index, value } => {
                *order += 1;
                self.slots.insert(index, Entry { value: own(value), order: *order });
            }
            Change::SlotRemove { index } => {
                self.slots.remove(&index);
            }
            Change::SlotRemoveRange { start, end } => {
                let mut taken = self.slots.split_off(&start);
                if end != u64::MAX {
                    self.slots.append(&mut taken.split_off(&end));
                }
            }
            Change::Touch
            | Change::Remove
            | Change::CloneTo { .. }
            | Change::CloneRange { .. }
            | Change::Rename { .. } => {}
        }
    }

    /// A copy whose entries were written now: they keep their order among themselves.
    pub fn copy(&self, order: &mut u64) -> Self {
        let mut copy = self.clone();
        let mut entries: Vec<&mut Entry> = copy.omap.values_mut().chain(copy.slots.values_mut()).collect();
        entries.sort_unstable_by_key(|entry| entry.order);
        for entry in entries {
            *order += 1;
            entry.order = *order;
        }
        copy
    }
}

/// Longest key or value that is copied: what it is a piece of may be many times as long, also where no other piece of
/// that is left.
const COPIED_BYTES_MAX: usize = 4 << 10;

/// What is kept, without the rest of the memory that it came in.
fn own(bytes: Bytes) -> Bytes {
    if bytes.len() > COPIED_BYTES_MAX { bytes } else { Bytes::copy_from_slice(&bytes) }
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;

    use super::*;

    // Failure: the last piece of a chunk was kept with it, a thousand bytes for a few. Cause: no other piece was left,
    // and it was taken for memory of its own.
    #[test]
    fn what_is_kept_keeps_nothing_of_the_memory_that_it_came_in() {
        let mut chunk = BytesMut::with_capacity(1_024);
        let mut piece = || {
            chunk.extend_from_slice(b"piece");
            chunk.split().freeze()
        };
        let pieces = [piece(), piece(), piece(), piece()];
        drop(chunk);
        let within = pieces[0].as_ptr()..pieces[3].as_ptr_range().end;
        let [a, b, c, d] = pieces;
        let mut object = Object::default();
        for change in [Change::OmapSet { key: a, value: b }, Change::SlotSet { index: 1, value: c }] {
            object.apply(change, &mut 0);
        }
        object.apply(Change::OmapSet { key: "last".into(), value: d }, &mut 0);
        let keys = object.omap.keys().map(|key| key.as_ptr());
        let values = object.omap.values().chain(object.slots.values()).map(|entry| entry.value.as_ptr());
        assert!(keys.chain(values).all(|at| !within.contains(&at)));
    }
}
