//! Going over a store piece by piece: names, runs of data, ordered keys, slots, never more at once than one answer.
//!
//! Invariant: a walk ends with what was there when its last page was read; no other client may write meanwhile.

use std::collections::VecDeque;
use std::ops::Range;

use bytes::Bytes;
use esker_store::{Collection, DataRun, ObjectId, ObjectStore, OmapScan, SlotScan, prefix};

use crate::Result;

/// Bytes that are read at once.
pub const READ_BYTES: u64 = 1 << 20;
/// Entries that are asked for at once.
const PAGE_ENTRIES: usize = 1_000;
/// The span in which runs of data are looked for at first, in bytes; it grows where there are few.
const SPAN_BYTES: u64 = 64 << 20;
/// More runs than this make the next span smaller.
const RUNS_WANTED: usize = 10_000;

/// Names of the objects of a collection above `after`, in order.
pub fn names(
    store: &dyn ObjectStore,
    collection: &Collection,
    after: Option<Bytes>,
) -> impl Iterator<Item = Result<Bytes>> {
    prefix::names(store, collection, b"", after.as_deref()).map(|name| Ok(name?))
}

/// Omap entries above `after`, in order.
pub fn omap(
    store: &dyn ObjectStore,
    id: &ObjectId,
    after: Option<Bytes>,
) -> impl Iterator<Item = Result<(Bytes, Bytes)>> {
    let start = after.map(|after| prefix::just_above(&after));
    let scan = OmapScan { start, limit: PAGE_ENTRIES, ..OmapScan::default() };
    prefix::omap(store, id, scan).map(|entry| Ok(entry?))
}

/// Filled slots above `after`, in order.
pub fn slots(store: &dyn ObjectStore, id: &ObjectId, after: Option<u64>) -> impl Iterator<Item = Result<(u64, Bytes)>> {
    let slots = prefix::pages(move |last: Option<&(u64, Bytes)>| {
        let start = match last.map(|(index, _)| *index).or(after) {
            None => 0,
            Some(u64::MAX) => return Ok(Vec::new()),
            Some(index) => index + 1,
        };
        let scan = SlotScan { range: start..u64::MAX, reverse: false, limit: PAGE_ENTRIES, keys_only: false };
        store.slot_scan(id, &scan).wait()
    });
    prefix::each(slots).map(|slot| Ok(slot?))
}

/// The runs of data of an object, in order. A run may come in several pieces that touch.
pub struct Runs<'a> {
    store: &'a dyn ObjectStore,
    id: ObjectId,
    left: Range<u64>,
    span: u64,
    found: VecDeque<DataRun>,
}

impl<'a> Runs<'a> {
    /// The runs inside `range`.
    pub fn new(store: &'a dyn ObjectStore, id: &ObjectId, range: Range<u64>) -> Self {
        Self { store, id: id.clone(), left: range, span: SPAN_BYTES, found: VecDeque::new() }
    }

    fn look(&mut self) -> Result<()> {
        let end = self.left.end.min(self.left.start.saturating_add(self.span));
        self.found = self.store.extents(&self.id, self.left.start..end).wait()?.into();
        self.left.start = end;
        // Far holes are passed in few steps, and many small runs are not all held at once.
        if self.found.len() > RUNS_WANTED {
            self.span = (self.span / 2).max(READ_BYTES);
        } else if self.found.len() < RUNS_WANTED / 4 {
            self.span = self.span.saturating_mul(2);
        }
        Ok(())
    }
}

impl Iterator for Runs<'_> {
    type Item = Result<DataRun>;

    fn next(&mut self) -> Option<Result<DataRun>> {
        while self.found.is_empty() && self.left.start < self.left.end {
            if let Err(error) = self.look() {
                self.left.start = self.left.end;
                return Some(Err(error));
            }
        }
        self.found.pop_front().map(Ok)
    }
}
