//! The four spaces of an object, as the index sees them.
//!
//! Invariant: what changes an object needs every page that [`Spaces::missing`] names in memory.

use std::collections::BTreeMap;
use std::ops::Bound;

use bytes::Bytes;

use crate::format::{Kind, Relocated, Space, WEIGHT_WHOLE, clone_range_words, each_relocated};
use crate::index::{Dropped, Extent, Extents, Loc, Missing, PageId, Slots, Tree};
use crate::segments::Segments;

/// A space whose entries take no more than this stays in its object's head, in bytes; less where segments are small.
pub const INLINE_BYTES_MAX: u64 = 1024;
/// What a slot takes there, in bytes.
pub const INLINE_SLOT_BYTES: u64 = 16;
/// A tree of fewer bytes has one page at most, which checkpoints may not write as such.
const SMALL_BYTES: usize = 2048;

/// What a page that is not in memory counts as, in bytes.
const WALKED_PAGE_BYTES: u64 = 4096;
/// Replay passes a byte of index in about so many nanoseconds, where an operation passes all of its object's.
const WALK_NS: u64 = 4;

/// See the module. A clone shares all pages until one of the two changes them.
#[derive(Clone, Default)]
pub struct Spaces {
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
    /// Some entries may point to operations that were written for another object.
    pub shares: bool,
    /// Some extents may point to operations that were written for another offset.
    pub shifted: bool,
    /// Other objects have got entries from here since the store was opened, or were found to have them.
    pub lent: bool,
}

/// What replaying an operation of an object takes for passing its entries, in nanoseconds.
pub fn walk_ns(kind: Kind, spaces: &Spaces) -> u64 {
    if kind.walks_all() { spaces.walked_bytes() * WALK_NS } else { 0 }
}

#[inline]
fn large(bytes: usize) -> usize {
    if bytes < SMALL_BYTES { 0 } else { bytes }
}

impl Spaces {
    /// The object number that operations behind the entries of object `number` have; `None` where it may be another's.
    #[inline]
    pub fn owner(&self, number: u64) -> Option<u64> {
        (!self.shares).then_some(number)
    }

    /// The offset that the payload of an extent at `offset` was written to, where that is known.
    #[inline]
    pub fn written_at(&self, offset: u64, extent: &Extent) -> Option<u64> {
        // An extent that skips more than stands before it was made by no write of this object.
        if self.shifted { None } else { Some(offset.wrapping_sub(extent.skip.into())) }
    }

    /// Whether other objects may point to what the entries point to.
    #[inline]
    pub fn counts_again(&self) -> bool {
        self.shares || self.lent
    }

    /// Runs `f` on the offset and the bytes, in 4096ths, of whatever the entries point to.
    ///
    /// # Errors
    /// [`Missing`]: a page is not in memory.
    pub fn each_place(&self, mut f: impl FnMut(u64, u64)) -> Result<(), Missing> {
        for entry in self.slots.scan(0..u64::MAX, false) {
            entry.map(|(_, loc)| f(loc.offset(), loc.span_bytes() * WEIGHT_WHOLE))?;
        }
        for entry in self.omap.scan(Bound::Unbounded, Bound::Unbounded, false) {
            entry.map(|(_, loc)| f(loc.offset(), loc.span_bytes() * WEIGHT_WHOLE))?;
        }
        for entry in self.extents.iter() {
            entry.map(|(_, extent)| f(extent.loc.offset(), u64::from(extent.len) * extent.loc.weight()))?;
        }
        Ok(())
    }

    /// Makes all index pages count as saved.
    pub fn clear_dirty(&mut self) {
        self.slots.clear_dirty();
        self.omap.clear_dirty();
        self.extents.clear_dirty();
    }

    /// Counts all entries as live, or no longer. All pages are in memory. The segments that they stand in, some of them
    /// more than once.
    pub fn account(&self, segments: &Segments, live: bool) -> Vec<u64> {
        let (mut at, mut weight) = (0, 0);
        let mut met = Vec::new();
        let flush = |at: u64, weight: u64| match (live, self.counts_again()) {
            (true, false) => segments.add_live_weight(at, weight),
            (true, true) => segments.add_again_weight(at, weight),
            (false, false) => segments.sub_live_weight(at, weight),
            (false, true) => {
                segments.sub_shared_weight(at, weight);
            }
        };
        let counted = self.each_place(|offset, more| {
            if segments.segment_of(offset) != segments.segment_of(at) {
                flush(at, weight);
                met.push(segments.segment_of(offset));
                weight = 0;
            }
            at = offset;
            weight += more;
        });
        counted.expect("what adds or removes an object has all its pages read first");
        flush(at, weight);
        met
    }

    /// Heap bytes of the index pages that are in memory and may leave it: spaces so small that checkpoints keep them
    /// beside the object's name are left out.
    #[inline]
    pub fn page_bytes(&self) -> usize {
        let slots = if self.has_few_slots() { 0 } else { self.slots.page_bytes() };
        slots + self.large_trees_bytes()
    }

    /// Bytes that the index pages which are in memory take in a checkpoint, about, those of slots at most; a space of
    /// one small page is left out.
    #[inline]
    pub fn stored_bytes(&self) -> usize {
        // Where segments are small each of the pages may be written: scattered slots have as many.
        let is_small = self.slots.page_count() <= 1 && self.has_few_slots();
        let slots = if is_small { 0 } else { self.slots.stored_bytes() };
        slots + self.large_trees_bytes()
    }

    /// So few that they may stay in the object's head.
    #[inline]
    fn has_few_slots(&self) -> bool {
        self.slots.len() * INLINE_SLOT_BYTES <= INLINE_BYTES_MAX
    }

    #[inline]
    fn large_trees_bytes(&self) -> usize {
        large(self.omap.page_bytes()) + large(self.extents.page_bytes())
    }

    /// About how many bytes of index, as checkpoints have it, a walk over all entries passes.
    pub fn walked_bytes(&self) -> u64 {
        self.stored_bytes() as u64 + self.cold_pages() * WALKED_PAGE_BYTES
    }

    /// Number of index pages that are not in memory.
    #[inline]
    pub fn cold_pages(&self) -> u64 {
        self.slots.cold_pages() + self.omap.cold_pages() + self.extents.cold_pages()
    }

    /// All pages that are not in memory.
    pub fn all_missing(&self, out: &mut Vec<Missing>) {
        self.slots.missing_in(0, u64::MAX, out);
        self.omap.missing_between(None, None, out);
        self.extents.missing_for(0, u64::MAX, out);
    }

    /// The pages that an operation on this object needs and that are not in memory. Of a clone-range that is what its
    /// source has to read; what its target has to change, see [`Extents::missing_for`].
    pub fn missing(&self, kind: Kind, argument: u64, key: &[u8], payload: &[u8], len: u64, out: &mut Vec<Missing>) {
        if self.cold_pages() == 0 {
            return;
        }
        match kind {
            Kind::CreateCollection | Kind::RemoveCollection | Kind::CreateObject | Kind::Rename | Kind::Index => {}
            Kind::XattrSet | Kind::XattrRemove => {}
            Kind::RemoveObject | Kind::Clone => self.all_missing(out),
            Kind::Write => self.extents.missing_for(argument, len, out),
            Kind::Zero => self.extents.missing_for(argument, word(payload), out),
            Kind::Truncate => self.extents.missing_for(argument, u64::MAX, out),
            Kind::OmapSet | Kind::OmapRemove => out.extend(self.omap.missing_at(key)),
            Kind::OmapRemoveRange => {
                self.omap.missing_between(Some(key), (argument == 1).then_some(payload), out);
            }
            Kind::OmapClear => self.omap.missing_between(None, None, out),
            Kind::SlotSet | Kind::SlotRemove => out.extend(self.slots.missing_at(argument)),
            Kind::SlotRemoveRange => self.slots.missing_in(argument, word(payload), out),
            Kind::CloneRange => {
                if let Some([_, from, len, _]) = clone_range_words(payload) {
                    self.extents.missing_for(from, len, out);
                }
            }
            // Decoding has ruled out that an entry is cut short.
            Kind::RelocateSlots | Kind::RelocateOmap | Kind::RelocateExtents => {
                each_relocated(kind, argument, payload, |entry| match entry {
                    Relocated::Slot(slot, _) => out.extend(self.slots.missing_at(slot)),
                    Relocated::Omap(key, _) => out.extend(self.omap.missing_at(key)),
                    Relocated::Extent { offset, len, .. } => self.extents.missing_for(offset, len.into(), out),
                });
            }
        }
        out.sort_unstable_by_key(|missing| (missing.space as u8, missing.page));
        out.dedup();
    }

    /// A missing page and those after it, in order, that are not in memory, up to `max` of them.
    pub fn missing_from(&self, missing: Missing, max: usize) -> Vec<Missing> {
        if max <= 1 {
            return vec![missing];
        }
        let mut pages = match missing.space {
            Space::Slots => self.slots.missing_after(missing.page, max),
            Space::Omap => self.omap.missing_after(missing.page as PageId, max),
            Space::Extents => self.extents.missing_after(missing.page as PageId, max),
        };
        if !pages.contains(&missing) {
            pages.push(missing);
        }
        pages
    }

    /// Numbers of all pages of a space that may have entries.
    pub fn pages(&self, space: Space) -> Vec<u64> {
        match space {
            Space::Slots => self.slots.pages().collect(),
            Space::Omap => (0..u64::from(self.omap.page_numbers())).collect(),
            Space::Extents => (0..u64::from(self.extents.page_numbers())).collect(),
        }
    }

    /// Where the last checkpoint has a page that is not in memory.
    pub fn cold_page(&self, space: Space, page: u64) -> Option<Loc> {
        match space {
            Space::Slots => self.slots.cold_page(page),
            Space::Omap => self.omap.cold_page(page as PageId),
            Space::Extents => self.extents.cold_page(page as PageId),
        }
    }

    /// Takes a page out of memory that the last checkpoint has at `loc`, unless it has changed or was just used.
    pub fn drop_page(&mut self, space: Space, page: u64, loc: Loc) -> Dropped {
        match space {
            Space::Slots => self.slots.drop_page(page, loc),
            Space::Omap => self.omap.drop_page(page as PageId, loc),
            Space::Extents => self.extents.drop_page(page as PageId, loc),
        }
    }

    /// Makes a page count as changed, if it is there and in memory.
    pub fn mark_dirty(&mut self, space: Space, page: u64) {
        match space {
            Space::Slots => self.slots.mark_dirty(page),
            Space::Omap => self.omap.mark_page_dirty(page as PageId),
            Space::Extents => self.extents.mark_page_dirty(page as PageId),
        }
    }
}

/// An 8-byte payload; 0 where it is not one, which decoding has ruled out.
pub fn word(payload: &[u8]) -> u64 {
    payload.try_into().map_or(0, u64::from_le_bytes)
}
