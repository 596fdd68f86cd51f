//! Omap keys and slots as one thing: ordered keys with values.
//!
//! Invariant: no operation that is made here names a key that the object did not hold or that the source does not hold,
//! so that none exceeds the longest key.

use bytes::Bytes;
use esker_store::{Change, ObjectId, ObjectStore, OmapScan, Result, SlotScan, prefix};

/// What an entry takes beside its key and value, so that many empty ones do not count as nothing.
pub(super) const ENTRY_BYTES: u64 = 16;

/// The key of an ordered space.
pub(super) trait Keyed: Ord + Clone {
    /// Entries `above < key <= to` in order, up to `limit`; none only if there are none.
    fn scan(
        store: &dyn ObjectStore,
        object: &ObjectId,
        above: Option<&Self>,
        to: Option<&Self>,
        limit: usize,
        keys_only: bool,
    ) -> Result<Vec<(Self, Bytes)>>;

    /// Gives the key's bytes to `to`.
    fn with_bytes(&self, to: impl FnMut(&[u8]));

    /// Sets the entry.
    fn set(self, value: Bytes) -> Change;

    /// Removes the entry.
    fn remove(self) -> Change;

    /// Removes `first <= key < end`, and perhaps `end` as well; without `end`, all from `first`.
    fn remove_range(first: Self, end: Option<Self>) -> Change;

    /// About the bytes that the entry takes.
    fn entry_bytes(&self, value: &Bytes) -> u64 {
        let mut len = value.len() as u64 + ENTRY_BYTES;
        self.with_bytes(|bytes| len += bytes.len() as u64);
        len
    }
}

impl Keyed for Bytes {
    fn scan(
        store: &dyn ObjectStore,
        object: &ObjectId,
        above: Option<&Self>,
        to: Option<&Self>,
        limit: usize,
        keys_only: bool,
    ) -> Result<Vec<(Self, Bytes)>> {
        let just_above = |key: Option<&Self>| key.map(|key| prefix::just_above(key));
        let scan = OmapScan { start: just_above(above), end: just_above(to), reverse: false, limit, keys_only };
        store.omap_scan(object, &scan).wait()
    }

    fn with_bytes(&self, mut to: impl FnMut(&[u8])) {
        to(self);
    }

    fn set(self, value: Bytes) -> Change {
        Change::OmapSet { key: self, value }
    }

    fn remove(self) -> Change {
        Change::OmapRemove { key: self }
    }

    fn remove_range(first: Self, end: Option<Self>) -> Change {
        Change::OmapRemoveRange { start: first, end }
    }
}

impl Keyed for u64 {
    fn scan(
        store: &dyn ObjectStore,
        object: &ObjectId,
        above: Option<&Self>,
        to: Option<&Self>,
        limit: usize,
        keys_only: bool,
    ) -> Result<Vec<(Self, Bytes)>> {
        let to = to.copied().unwrap_or(u64::MAX);
        let start = match above {
            None => 0,
            Some(&above) if above >= to => return Ok(Vec::new()),
            Some(above) => above + 1,
        };
        let scan = SlotScan { range: start..to.saturating_add(1), reverse: false, limit, keys_only };
        let mut found = store.slot_scan(object, &scan).wait()?;
        // A range that ends at the last slot includes it.
        found.truncate(found.partition_point(|(index, _)| *index <= to));
        Ok(found)
    }

    fn with_bytes(&self, mut to: impl FnMut(&[u8])) {
        to(&self.to_le_bytes());
    }

    fn set(self, value: Bytes) -> Change {
        Change::SlotSet { index: self, value }
    }

    fn remove(self) -> Change {
        Change::SlotRemove { index: self }
    }

    fn remove_range(first: Self, end: Option<Self>) -> Change {
        Change::SlotRemoveRange { start: first, end: end.unwrap_or(u64::MAX) }
    }
}
