//! One object of the model: bytes as pages of filled and unfilled bytes, everything else as ordered maps.
//!
//! Invariant: no page lies wholly past the size, no byte past the size is filled, and an unfilled byte is 0.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;

use crate::{Change, Condition, DataRun, Stat};

/// Bytes of a page.
pub(super) const PAGE_BYTES: u64 = 4096;

/// A page: what each byte holds, and whether it is data (or a hole).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Page {
    bytes: Vec<u8>,
    filled: Vec<bool>,
}

impl Page {
    fn new() -> Self {
        Self { bytes: vec![0; PAGE_BYTES as usize], filled: vec![false; PAGE_BYTES as usize] }
    }
}

/// The four spaces of an object. Cloning shares pages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Object {
    pub size: u64,
    pub pages: BTreeMap<u64, Arc<Page>>,
    pub xattrs: BTreeMap<Bytes, Bytes>,
    pub omap: BTreeMap<Bytes, Bytes>,
    pub slots: BTreeMap<u64, Bytes>,
}

/// Cuts `offset..offset + len` at page borders: page number, offset in it, length, and how far into the range.
fn pieces(offset: u64, len: u64) -> impl Iterator<Item = (u64, usize, usize, usize)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        if at == len {
            return None;
        }
        let place = offset + at;
        let within = place % PAGE_BYTES;
        let piece = (PAGE_BYTES - within).min(len - at);
        let found = (place / PAGE_BYTES, within as usize, piece as usize, at as usize);
        at += piece;
        Some(found)
    })
}

impl Object {
    pub fn stat(&self) -> Stat {
        Stat {
            size: self.size,
            omap_keys: self.omap.len() as u64,
            slots: self.slots.len() as u64,
            xattrs: self.xattrs.len() as u64,
        }
    }

    /// Payload bytes at most: whole pages, names, keys and values.
    pub fn live_bytes(&self) -> u64 {
        let maps = self.xattrs.iter().chain(&self.omap).map(|(key, value)| key.len() + value.len()).sum::<usize>();
        let slots = self.slots.values().map(|value| 8 + value.len()).sum::<usize>();
        self.pages.len() as u64 * PAGE_BYTES + (maps + slots) as u64
    }

    pub fn write(&mut self, offset: u64, data: &[u8]) {
        for (number, within, len, at) in pieces(offset, data.len() as u64) {
            let page = Arc::make_mut(self.pages.entry(number).or_insert_with(|| Arc::new(Page::new())));
            page.bytes[within..within + len].copy_from_slice(&data[at..at + len]);
            page.filled[within..within + len].fill(true);
        }
        if !data.is_empty() {
            self.size = self.size.max(offset + data.len() as u64);
        }
    }

    /// Takes data away; the size stays.
    fn clear(&mut self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        let met: Vec<u64> = self.pages.range(start / PAGE_BYTES..=(end - 1) / PAGE_BYTES).map(|(at, _)| *at).collect();
        for number in met {
            let base = number * PAGE_BYTES;
            let from = (start.max(base) - base) as usize;
            let to = (end.min(base + PAGE_BYTES) - base) as usize;
            let Some(page) = self.pages.get_mut(&number) else { continue };
            let page = Arc::make_mut(page);
            page.bytes[from..to].fill(0);
            page.filled[from..to].fill(false);
            if !page.filled.contains(&true) {
                self.pages.remove(&number);
            }
        }
    }

    pub fn zero(&mut self, offset: u64, len: u64) {
        if len > 0 {
            self.clear(offset, offset + len);
            self.size = self.size.max(offset + len);
        }
    }

    pub fn truncate(&mut self, size: u64) {
        self.clear(size, self.size.max(size));
        self.size = size;
    }

    /// The bytes `start..end`, cut to the size.
    pub fn read(&self, start: u64, end: u64) -> Vec<u8> {
        let end = end.min(self.size);
        let mut bytes = vec![0; end.saturating_sub(start) as usize];
        for (number, within, len, at) in pieces(start, bytes.len() as u64) {
            if let Some(page) = self.pages.get(&number) {
                bytes[at..at + len].copy_from_slice(&page.bytes[within..within + len]);
            }
        }
        bytes
    }

    /// All runs of data.
    pub fn runs(&self) -> Vec<DataRun> {
        let mut runs: Vec<DataRun> = Vec::new();
        for (number, page) in &self.pages {
            let base = number * PAGE_BYTES;
            let mut at = 0;
            for part in page.filled.chunk_by(|a, b| a == b) {
                let offset = base + at;
                at += part.len() as u64;
                if !part[0] {
                    continue;
                }
                match runs.last_mut() {
                    Some(last) if last.offset + last.len == offset => last.len += part.len() as u64,
                    _ => runs.push(DataRun { offset, len: part.len() as u64 }),
                }
            }
        }
        runs
    }

    /// Copies a range of `source` over this one: first a hole, then every run of data in it.
    pub fn copy_range(&mut self, source: &Self, from_offset: u64, len: u64, to_offset: u64) {
        self.zero(to_offset, len);
        for run in source.runs() {
            let start = run.offset.max(from_offset);
            let end = (run.offset + run.len).min(from_offset + len);
            if start < end {
                self.write(to_offset + (start - from_offset), &source.read(start, end));
            }
        }
    }

    /// A change of this object alone.
    pub fn apply(&mut self, change: &Change) {
        match change {
            Change::Write { offset, data } => self.write(*offset, data),
            Change::Zero { offset, len } => self.zero(*offset, *len),
            Change::Truncate { size } => self.truncate(*size),
            Change::XattrSet { name, value } => drop(self.xattrs.insert(name.clone(), value.clone())),
            Change::XattrRemove { name } => drop(self.xattrs.remove(name)),
            Change::OmapSet { key, value } => drop(self.omap.insert(key.clone(), value.clone())),
            Change::OmapRemove { key } => drop(self.omap.remove(key)),
            Change::OmapRemoveRange { start, end } => {
                self.omap.retain(|key, _| key < start || end.as_ref().is_some_and(|end| key >= end));
            }
            Change::OmapClear => self.omap.clear(),
            Change::SlotSet { index, value } => drop(self.slots.insert(*index, value.clone())),
            Change::SlotRemove { index } => drop(self.slots.remove(index)),
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
}

/// Whether a condition holds for an object, or for none.
pub(super) fn holds(condition: &Condition, object: Option<&Object>) -> bool {
    let existing = object.is_some();
    let nothing = Object::default();
    let object = object.unwrap_or(&nothing);
    match condition {
        Condition::Exists => existing,
        Condition::Absent => !existing,
        Condition::SizeEquals { size } => existing && object.size == *size,
        Condition::XattrEquals { name, value } => object.xattrs.get(name).is_some_and(|stored| stored == value),
        Condition::XattrAbsent { name } => !object.xattrs.contains_key(name),
        Condition::XattrCompare { name, compare, value, absent_holds } => match object.xattrs.get(name) {
            None => *absent_holds,
            Some(stored) if stored.len() != 8 => false,
            Some(stored) => {
                let stored = stored.iter().rev().fold(0u64, |number, byte| number << 8 | u64::from(*byte));
                compare.holds(stored, *value)
            }
        },
        Condition::OmapAbsent { key } => !object.omap.contains_key(key),
        Condition::OmapPresent { key } => object.omap.contains_key(key),
        Condition::OmapEquals { key, value } => object.omap.get(key).is_some_and(|stored| stored == value),
        Condition::SlotAbsent { index } => !object.slots.contains_key(index),
        Condition::SlotPresent { index } => object.slots.contains_key(index),
        Condition::SlotEquals { index, value } => object.slots.get(index).is_some_and(|stored| stored == value),
    }
}
