//! Which bytes of an object stand where: byte offset → extent.
//!
//! An extent says that `len` bytes of the object are in the payload of the operation at `loc`, from byte `skip` of
//! that payload on. Writing over part of an extent leaves its other parts in place, with a larger `skip` for what
//! comes after; nothing is joined again. Bytes in no extent are a hole and read as zeros.
//!
//! Invariants:
//! 1. Extents do not overlap and are not empty.
//! 2. Every byte that leaves the map is reported once: with the place it had, in pieces.
//! 3. No extent reaches past `u64::MAX`.
//! 4. A writer that changes extents has seen to it that no page it needs is cold ([`Extents::missing_for`]).

use std::ops::{Bound, Range};

use super::tree::{Kept, PageId, SavedLeaf, SavedPage, Tree};
use super::{Dropped, Missing};
use crate::format::{Loc, Space};

/// `len` bytes of an object. Its offset in the object is the key it is kept under.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Where the operation with the bytes stands.
    pub loc: Loc,
    /// Length in bytes; never zero.
    pub len: u32,
    /// First byte within the operation's payload.
    pub skip: u32,
}

impl Kept for Extent {
    const SPACE: Space = Space::Extents;
}

/// The extents of one object. See the module. A clone shares all pages until one of the two changes them.
#[derive(Clone, Default)]
pub struct Extents {
    tree: Tree<Extent>,
}

/// Whether the extents of a page are such and do not overlap.
#[must_use]
pub fn hold(page: &SavedLeaf<Extent>) -> bool {
    let mut end = 0;
    page.entries().all(|(key, extent)| {
        let offset = offset_of(key);
        let holds = key.len() == 8 && offset >= end && extent.len > 0 && extent.skip.checked_add(extent.len).is_some();
        let next = offset.checked_add(u64::from(extent.len));
        end = next.unwrap_or(u64::MAX);
        holds && next.is_some()
    })
}

/// The offset that a key stands for.
#[must_use]
pub fn offset_of(key: &[u8]) -> u64 {
    key.iter().fold(0, |offset, byte| offset << 8 | u64::from(*byte))
}

impl Extents {
    /// Number of extents.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.tree.len()
    }

    #[cfg(test)]
    /// Nothing but a hole.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tree.is_empty()
    }

    /// Memory the extents hold, in bytes, themselves included.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.tree.memory_bytes()
    }

    /// Heap bytes of the pages that are in memory.
    #[inline]
    #[must_use]
    pub fn page_bytes(&self) -> usize {
        self.tree.page_bytes()
    }

    /// Number of pages that are not in memory.
    #[inline]
    #[must_use]
    pub fn cold_pages(&self) -> u64 {
        self.tree.cold_pages()
    }

    /// The pages that a change of `len` bytes at `offset` needs and that are not in memory.
    pub fn missing_for(&self, offset: u64, len: u64, out: &mut Vec<Missing>) {
        let (first, end) = (offset.saturating_sub(1), offset.saturating_add(len));
        self.tree.missing_between(Some(&first.to_be_bytes()), Some(&end.to_be_bytes()), out);
    }

    /// See [`Tree::missing_after`].
    pub fn missing_after(&self, id: PageId, max: usize) -> Vec<Missing> {
        self.tree.missing_after(id, max)
    }

    /// The end of the last extent: the first offset with nothing but a hole behind it; `u64::MAX` if its page is not
    /// in memory.
    #[must_use]
    pub fn end(&self) -> u64 {
        match self.tree.last() {
            Some((key, extent)) => offset_of(key) + u64::from(extent.len),
            None if !self.tree.is_empty() => u64::MAX,
            None => 0,
        }
    }

    /// Puts `len` bytes at `offset` of the object, found in the operation at `loc` from byte `skip` of its payload
    /// on. What they cover is punched out first, `freed` is told the place and bytes of each piece.
    ///
    /// # Panics
    /// When `offset + len` or `skip + len` overflows.
    pub fn write(&mut self, offset: u64, len: u32, loc: Loc, skip: u32, freed: impl FnMut(Loc, u32)) {
        assert!(offset.checked_add(len.into()).is_some(), "extent at {offset} with {len} bytes");
        assert!(skip.checked_add(len).is_some(), "extent skips {skip} of a payload and has {len} bytes");
        if len == 0 {
            return;
        }
        let mut freed = freed;
        let extent = Extent { loc, len, skip };
        // The two common cases first: behind the end, and the same blocks again.
        if offset < self.end() {
            if let Some(old) = self.tree.get_mut(&offset.to_be_bytes()).filter(|old| old.len == len) {
                freed(old.loc, len);
                *old = extent;
                return;
            }
            self.punch(offset, len.into(), freed);
        }
        self.tree.insert(&offset.to_be_bytes(), extent);
    }

    /// Makes a hole of `len` bytes at `offset`, cut at `u64::MAX`; `freed` is told the place and bytes of each piece.
    pub fn punch(&mut self, offset: u64, len: u64, mut freed: impl FnMut(Loc, u32)) {
        let end = offset.saturating_add(len);
        if offset >= end {
            return;
        }
        let Some((start, extent)) = self.floor(end - 1) else { return };
        let extent_end = start + u64::from(extent.len);
        if extent_end <= offset {
            return;
        }
        // The last extent to lose bytes began before the hole: it is the only one. It keeps its start, and its end
        // when that is behind the hole.
        if start < offset {
            freed(extent.loc, (extent_end.min(end) - offset) as u32);
            self.put(start, offset, start, extent);
            if extent_end > end {
                self.put(end, extent_end, start, extent);
            }
            return;
        }
        // It began in the hole: it keeps its end.
        if extent_end > end {
            self.tree.remove(&start.to_be_bytes());
            self.put(end, extent_end, start, extent);
            freed(extent.loc, (end - start) as u32);
        }
        // Another one may reach in from the left.
        if let Some((start, extent)) = offset.checked_sub(1).and_then(|last| self.floor(last)) {
            let extent_end = start + u64::from(extent.len);
            if extent_end > offset {
                freed(extent.loc, (extent_end - offset) as u32);
                self.put(start, offset, start, extent);
            }
        }
        self.tree.remove_range(&offset.to_be_bytes(), Some(&end.to_be_bytes()), |_, extent| {
            freed(extent.loc, extent.len);
        });
    }

    /// Takes out every byte from `size` on; `freed` is told the place and bytes of each piece.
    pub fn truncate(&mut self, size: u64, freed: impl FnMut(Loc, u32)) {
        self.punch(size, u64::MAX - size, freed);
    }

    #[cfg(test)]
    /// Takes out everything; `freed` is told the place and bytes of each extent.
    pub fn clear(&mut self, mut freed: impl FnMut(Loc, u32)) {
        self.iter().flatten().for_each(|(_, extent)| freed(extent.loc, extent.len));
        self.tree.clear();
    }

    /// The extents that have bytes of `range`, ascending, cut to it, each with its offset in the object, up to a page
    /// that is not in memory.
    pub fn lookup(&self, range: Range<u64>) -> impl Iterator<Item = Result<(u64, Extent), Missing>> + '_ {
        let entries = self.tree.scan_from_floor(&range.start.to_be_bytes());
        let entries = entries.map(|entry| entry.map(|(key, extent)| (offset_of(key), extent)));
        // Only the first can end before the range.
        let first = range.start;
        let inside =
            entries.skip_while(move |entry| matches!(entry, Ok((at, extent)) if at + u64::from(extent.len) <= first));
        // An empty range may stand within an extent, of which nothing is left then.
        let ends = move |at: u64| at >= range.end || range.start >= range.end;
        inside.take_while(move |entry| !matches!(entry, Ok((at, _)) if ends(*at))).map(move |entry| {
            let (start, extent) = entry?;
            let cut_start = start.max(range.start);
            let cut_end = (start + u64::from(extent.len)).min(range.end);
            let skip = extent.skip + (cut_start - start) as u32;
            Ok((cut_start, Extent { loc: extent.loc, len: (cut_end - cut_start) as u32, skip }))
        })
    }

    /// All extents, ascending, each with its offset in the object, up to a page that is not in memory.
    pub fn iter(&self) -> impl Iterator<Item = Result<(u64, Extent), Missing>> + '_ {
        let all = self.tree.scan(Bound::Unbounded, Bound::Unbounded, false);
        all.map(|entry| entry.map(|(key, extent)| (offset_of(key), extent)))
    }

    /// The stretches of `range` that have data, ascending, each as offset and length in bytes; neighbours are one.
    /// Between them are holes.
    ///
    /// # Errors
    /// [`Missing`]: a page that is needed is not in memory.
    pub fn runs(&self, range: Range<u64>) -> Result<Vec<(u64, u64)>, Missing> {
        let mut runs: Vec<(u64, u64)> = Vec::new();
        for entry in self.lookup(range) {
            let (start, extent) = entry?;
            match runs.last_mut() {
                Some((offset, len)) if *offset + *len == start => *len += u64::from(extent.len),
                _ => runs.push((start, extent.len.into())),
            }
        }
        Ok(runs)
    }

    /// Numbers of the index pages that changed since [`Self::clear_dirty`]; freed ones too.
    pub fn dirty_pages(&self) -> impl Iterator<Item = PageId> + '_ {
        self.tree.dirty_pages()
    }

    /// Makes one index page count as changed, if it is in use.
    pub fn mark_page_dirty(&mut self, id: PageId) {
        self.tree.mark_page_dirty(id);
    }

    /// Makes every index page clean.
    pub fn clear_dirty(&mut self) {
        self.tree.clear_dirty();
    }

    /// Where the last checkpoint has an index page that is not in memory.
    #[must_use]
    pub fn cold_page(&self, id: PageId) -> Option<Loc> {
        self.tree.cold_page(id)
    }

    /// See [`Tree::drop_page`].
    pub fn drop_page(&mut self, id: PageId, loc: Loc) -> Dropped {
        self.tree.drop_page(id, loc)
    }

    /// See [`Tree::restore`].
    pub fn restore(&mut self, id: PageId, at: Loc, saved: SavedLeaf<Extent>) -> bool {
        hold(&saved) && self.tree.restore(id, at, saved)
    }

    /// The extents of an index page, which is in memory, ascending, each with its offset in the object; none when it is
    /// free.
    pub fn page_extents(&self, id: PageId) -> impl Iterator<Item = (u64, Extent)> + '_ {
        self.tree.page_entries(id).map(|(key, extent)| (offset_of(key), extent))
    }

    /// One more than the highest number of an index page.
    #[must_use]
    pub fn page_numbers(&self) -> PageId {
        self.tree.page_numbers()
    }

    /// Extents of index pages that were saved with their numbers, see [`Tree::from_leaves`]. `None` unless they fit
    /// together; each page alone has to be looked at by [`hold`] before.
    #[must_use]
    pub fn from_pages(mut saved: Vec<(PageId, SavedPage<Extent>)>, numbers: PageId) -> Option<Self> {
        saved.sort_by(|(_, a), (_, b)| a.ends().0.cmp(b.ends().0));
        let mut end = 0;
        for (_, page) in &saved {
            let (first, last, extent) = page.ends();
            if offset_of(first) < end {
                return None;
            }
            end = offset_of(last).checked_add(extent.len.into())?;
        }
        Some(Self { tree: Tree::from_leaves(saved, numbers)? })
    }

    /// The last extent that begins at `offset` or before, and its own offset.
    fn floor(&self, offset: u64) -> Option<(u64, Extent)> {
        self.tree.floor(&offset.to_be_bytes()).map(|(key, extent)| (offset_of(key), extent))
    }

    /// Keeps the part `from..until` of an extent that starts at `start`.
    fn put(&mut self, from: u64, until: u64, start: u64, extent: Extent) {
        let skip = extent.skip + (from - start) as u32;
        self.tree.insert(&from.to_be_bytes(), Extent { loc: extent.loc, len: (until - from) as u32, skip });
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    const SPACE: usize = 3_000;

    type Model = Vec<Option<(Loc, u32)>>;

    /// Empties part of the model and adds up what was there.
    fn punch(model: &mut Model, range: Range<usize>) -> BTreeMap<Loc, u64> {
        let mut freed = BTreeMap::new();
        for byte in &mut model[range] {
            if let Some((loc, _)) = byte.take() {
                *freed.entry(loc).or_insert(0) += 1;
            }
        }
        freed
    }

    fn check(extents: &Extents, model: &Model, range: Range<usize>) {
        let wide = range.start as u64..range.end as u64;
        let mut found: Model = vec![None; SPACE];
        let mut last_end = wide.start;
        for (offset, extent) in extents.lookup(wide.clone()).map(Result::unwrap) {
            assert!(extent.len > 0 && offset >= last_end, "extents are in order and do not overlap");
            last_end = offset + u64::from(extent.len);
            for byte in 0..extent.len {
                found[offset as usize + byte as usize] = Some((extent.loc, extent.skip + byte));
            }
        }
        assert!(last_end <= wide.end.max(wide.start), "cut to the range");
        assert_eq!(found[range.clone()], model[range.clone()]);
        let mut expected: Vec<(u64, u64)> = vec![];
        for at in range.filter(|at| model[*at].is_some()) {
            match expected.last_mut() {
                Some((offset, len)) if *offset + *len == at as u64 => *len += 1,
                _ => expected.push((at as u64, 1)),
            }
        }
        assert_eq!(extents.runs(wide), Ok(expected));
    }

    fn run(seed: u64) {
        let mut rng = fastrand::Rng::with_seed(seed);
        let (mut extents, mut model): (_, Model) = (Extents::default(), vec![None; SPACE]);
        let block = [1, 1, 64][rng.usize(..3)];
        for step in 0..1_500_u64 {
            let (a, b) = (rng.usize(..=SPACE / block) * block, rng.usize(..=SPACE / block) * block);
            let b = if rng.bool() { (a + rng.usize(..200) / block * block).min(SPACE) } else { b };
            let range = a.min(b)..a.max(b);
            let (offset, len) = (range.start as u64, range.len() as u64);
            let mut freed = BTreeMap::new();
            let mut note = |loc, bytes: u32| {
                assert!(bytes > 0);
                *freed.entry(loc).or_insert(0) += u64::from(bytes);
            };
            let expected = match rng.u32(..100) {
                0..70 => {
                    let (loc, skip) = (Loc::new(step * 8, 8, 0), rng.u32(..1_000));
                    extents.write(offset, len as u32, loc, skip, &mut note);
                    let expected = punch(&mut model, range.clone());
                    for (at, nth) in range.zip(skip..) {
                        model[at] = Some((loc, nth));
                    }
                    expected
                }
                70..85 => {
                    extents.punch(offset, len, &mut note);
                    punch(&mut model, range)
                }
                85..87 => {
                    extents.truncate(offset, &mut note);
                    punch(&mut model, range.start..SPACE)
                }
                87 if step % 10 == 0 => {
                    extents.clear(&mut note);
                    punch(&mut model, 0..SPACE)
                }
                _ => {
                    check(&extents, &model, range);
                    BTreeMap::new()
                }
            };
            assert_eq!(freed, expected, "seed {seed} step {step}");
        }
        check(&extents, &model, 0..SPACE);
        assert_eq!(extents.count(), extents.iter().count() as u64);
        assert_eq!(extents.end(), model.iter().rposition(Option::is_some).map_or(0, |at| at as u64 + 1));
    }

    #[test]
    fn every_byte_is_found_where_it_was_written_last_and_freed_once() {
        for seed in 0..40 {
            println!("seed {seed}");
            run(seed);
        }
    }

    #[test]
    fn extents_at_the_end_of_the_offset_space_hold() {
        let (mut extents, loc) = (Extents::default(), Loc::new(64, 4096, 0));
        extents.write(u64::MAX - 4096, 4096, loc, 0, |_, _| ());
        assert_eq!(extents.end(), u64::MAX);
        assert_eq!(extents.runs(0..u64::MAX), Ok(vec![(u64::MAX - 4096, 4096)]));
        let mut freed = 0;
        extents.truncate(u64::MAX - 96, |_, bytes| freed += bytes);
        assert_eq!((freed, extents.end(), extents.count()), (96, u64::MAX - 96, 1));
        extents.punch(0, u64::MAX, |_, bytes| freed += bytes);
        assert_eq!((freed, extents.is_empty()), (4096, true));
    }

    #[test]
    fn a_full_overwrite_of_the_same_blocks_keeps_the_count() {
        let mut extents = Extents::default();
        for round in 0..3_u64 {
            let mut freed = 0;
            for nth in 0..10_000_u64 {
                let loc = Loc::new((round * 10_000 + nth) * 8, 4096, 0);
                extents.write(nth * 4096, 4096, loc, 0, |_, bytes| freed += bytes);
            }
            assert_eq!((extents.count(), freed), (10_000, if round == 0 { 0 } else { 10_000 * 4096 }));
        }
        assert!(extents.memory_bytes() < 10_000 * 32, "{} bytes for 24 each", extents.memory_bytes());
    }
}
