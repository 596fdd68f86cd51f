//! A map from integers to places, two to eight bytes for each: slots keep no keys.
//!
//! ```text
//! slot index → page index / 512 → place index % 512
//! directory:  low    [Page]              pages 0, 1, 2 … while these are reasonably filled
//!             high   page number → Page  all other pages
//! page:       dense  512 items of as many bytes as its places need, 1 to 4 KiB (see `packed`)
//!             sparse sorted (place, Loc), up to 64 of them, so that scattered slots do not cost a dense page each
//!             cold   not in memory: where the last checkpoint has it
//! ```
//!
//! Invariants:
//! 1. A page in `high` has a number of at least `low.len()` and is not empty; a page in `low` may be empty, the
//!    last one is not.
//! 2. `low` grows to a page only when its number is at most `2 * pages + 16`, so that empty pages in it are fewer
//!    than filled ones when it grows.
//! 3. A dense page has at least `SPARSE_MIN` slots, a sparse one at most `SPARSE_MAX`.
//! 4. Every page that changed since [`Slots::clear_dirty`] is dirty, or stands in `emptied` when it is gone and had
//!    slots then; a page that came and went in between is not remembered.
//! 5. A writer that changes slots has seen to it that their pages are not cold ([`Slots::missing_at`]).
//! 6. `page_bytes`, `stored_bytes` and `widths` are what the pages add up to after every call: the budget is charged
//!    with that.
//! 7. All pages of `low` before `low_first` are empty: what is trimmed at the start costs no search.
//!
//! Ranges are `start <= index < end`, except that an end of `u64::MAX` includes that slot.

mod frame;
mod packed;
mod page;
mod scan;
mod sparse;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

pub use self::frame::WIDTH_MAX as SLOT_WIDTH_MAX;
use self::packed::Raws;
use self::page::{Body, Page, Shape, join, loc, missing, split};
use super::{Dropped, Missing};
use crate::format::{Loc, PAGE_SLOTS};

/// What an entry of a `BTreeMap` or `BTreeSet` takes beyond its own size, on average: its nodes are two thirds full.
const NODE_SLACK_BYTES: usize = 24;

/// The map. See the module. A clone shares its dense pages with its original until one of the two changes them.
#[derive(Clone, Default)]
pub struct Slots {
    low: Vec<Page>,
    high: BTreeMap<u64, Page>,
    emptied: BTreeSet<u64>,
    /// Filled slots.
    len: u64,
    /// Pages with a filled slot.
    pages: u64,
    /// Pages that are not in memory.
    cold: u64,
    /// Heap bytes of all pages.
    page_bytes: usize,
    /// What these take in a checkpoint, at most.
    stored_bytes: usize,
    /// Dense pages by the bytes of their items; none before the first, since most objects have no such page.
    widths: Option<Box<[u64; SLOT_WIDTH_MAX + 1]>>,
    low_first: usize,
}

/// A page of slots that was made apart, on its way into [`Slots`].
pub struct SlotPage(Page);

impl SlotPage {
    /// The page of these slots, which are all of one page; of a slot that is there twice the last place counts.
    #[must_use]
    pub fn of(slots: &[(u64, Loc)]) -> Self {
        let mut raws: Raws = [0; PAGE_SLOTS];
        slots.iter().for_each(|(index, loc)| raws[split(*index).1] = loc.raw());
        Self(Page::of(&raws))
    }

    /// What it takes of the heap, in bytes.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        self.0.heap_bytes()
    }
}

/// The last index of a range; `None` for an empty one.
fn last_of(range: &Range<u64>) -> Option<u64> {
    let last = if range.end == u64::MAX { u64::MAX } else { range.end.checked_sub(1)? };
    (range.start <= last).then_some(last)
}

impl Slots {
    /// No slot is filled; takes no heap memory.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            low: Vec::new(),
            high: BTreeMap::new(),
            emptied: BTreeSet::new(),
            len: 0,
            pages: 0,
            cold: 0,
            page_bytes: 0,
            stored_bytes: 0,
            widths: None,
            low_first: 0,
        }
    }

    /// Number of filled slots; exact.
    #[inline]
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// No slot is filled.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Heap bytes of the pages that are in memory.
    #[inline]
    #[must_use]
    pub fn page_bytes(&self) -> usize {
        self.page_bytes
    }

    /// Bytes that the pages which are in memory take in a checkpoint, at most, each as an operation of its own and in
    /// the list of them. More than in memory, where they are packed.
    #[inline]
    #[must_use]
    pub fn stored_bytes(&self) -> usize {
        self.stored_bytes
    }

    /// Number of pages with a filled slot.
    #[inline]
    #[must_use]
    pub fn page_count(&self) -> u64 {
        self.pages
    }

    /// Number of pages that are not in memory.
    #[inline]
    #[must_use]
    pub fn cold_pages(&self) -> u64 {
        self.cold
    }

    /// Number of dense pages of each width: at index `n`, those that take `n` bytes for each of their slots.
    #[must_use]
    pub fn widths(&self) -> [u64; SLOT_WIDTH_MAX + 1] {
        self.widths.as_deref().copied().unwrap_or_default()
    }

    /// Number of pages in memory that are lists of few slots.
    #[must_use]
    pub fn sparse_pages(&self) -> u64 {
        self.pages - self.cold - self.widths().iter().sum::<u64>()
    }

    /// Memory the slots hold, in bytes, themselves included. Exact but for the pages outside the dense directory,
    /// where the slack of the map's nodes is an average.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        size_of::<Self>()
            + self.low.capacity() * size_of::<Page>()
            + self.page_bytes
            + self.widths.as_deref().map_or(0, size_of_val)
            + self.high.len() * (size_of::<(u64, Page)>() + NODE_SLACK_BYTES)
            + self.emptied.len() * (size_of::<u64>() + NODE_SLACK_BYTES)
    }

    /// The place in slot `index`.
    ///
    /// # Errors
    /// [`Missing`]: its page is not in memory.
    #[inline]
    pub fn get(&self, index: u64) -> Result<Option<Loc>, Missing> {
        let (number, place) = split(index);
        let Some(page) = self.page(number) else { return Ok(None) };
        page.used.note();
        match page.cold() {
            None => Ok(Loc::from_raw(page.get(place))),
            Some(loc) => Err(missing(number, loc)),
        }
    }

    /// The page of slot `index`, if it is not in memory.
    #[inline]
    #[must_use]
    pub fn missing_at(&self, index: u64) -> Option<Missing> {
        let number = split(index).0;
        Some(missing(number, self.page(number)?.cold()?))
    }

    /// The pages of `start <= index < end` (see the module) that are not in memory.
    pub fn missing_in(&self, start: u64, end: u64, out: &mut Vec<Missing>) {
        let Some(last) = last_of(&(start..end)).filter(|_| self.cold > 0) else { return };
        let mut next = self.page_from(split(start).0);
        while let Some(number) = next.filter(|number| *number <= split(last).0) {
            out.extend(self.page(number).and_then(Page::cold).map(|loc| missing(number, loc)));
            next = self.page_from(number + 1);
        }
    }

    /// The pages from `number` on that are not in memory, up to `max` of them.
    pub fn missing_after(&self, number: u64, max: usize) -> Vec<Missing> {
        let mut found = Vec::new();
        let mut next = self.page_from(number);
        while let Some(number) = next.filter(|_| found.len() < max) {
            match self.page(number).and_then(Page::cold) {
                Some(loc) => found.push(missing(number, loc)),
                // What follows is in memory: the scan comes back when it is not.
                None => break,
            }
            next = self.page_from(number + 1);
        }
        found
    }

    /// Fills slot `index` and says what it held.
    #[inline]
    pub fn set(&mut self, index: u64, loc: Loc) -> Option<Loc> {
        let (number, place) = split(index);
        let page = match usize::try_from(number).ok().and_then(|number| self.low.get_mut(number)) {
            Some(page) if page.count > 0 => page,
            _ => self.page_to_fill(number),
        };
        let old = match page.replace(place, loc.raw()) {
            Some(old) => old,
            None => {
                let (old, before, after) = page.set(place, loc.raw());
                self.reshaped(before, after);
                old
            }
        };
        self.len += u64::from(old == 0);
        Loc::from_raw(old)
    }

    /// Empties slot `index` and says what it held.
    pub fn remove(&mut self, index: u64) -> Option<Loc> {
        let (number, place) = split(index);
        let page = match usize::try_from(number).ok().and_then(|number| self.low.get_mut(number)) {
            Some(page) => page,
            None => self.high.get_mut(&number)?,
        };
        let before = page.shape();
        let old = Loc::from_raw(page.remove(place))?;
        let (after, emptied) = (page.shape(), page.count == 0);
        self.reshaped(before, after);
        self.len -= 1;
        if emptied {
            self.page_emptied(number);
            self.trim();
        }
        Some(old)
    }

    /// Empties the slots `start <= index < end` (an end of `u64::MAX` includes that slot), calls `gone` for each filled
    /// one in order, and returns how many there were.
    pub fn remove_range(&mut self, start: u64, end: u64, mut gone: impl FnMut(u64, Loc)) -> u64 {
        let Some(last) = last_of(&(start..end)) else { return 0 };
        let ((first_number, first_place), (last_number, last_place)) = (split(start), split(last));
        let before = self.len;
        let mut next = self.page_from(first_number);
        while let Some(number) = next.filter(|number| *number <= last_number) {
            let from = if number == first_number { first_place } else { 0 };
            let until = if number == last_number { last_place + 1 } else { PAGE_SLOTS };
            let page = match usize::try_from(number).ok().and_then(|number| self.low.get_mut(number)) {
                Some(page) => page,
                None => self.high.get_mut(&number).expect("the page was just found"),
            };
            let before = page.shape();
            self.len -= page.remove_range(from..until, |place, raw| gone(join(number, place), loc(raw)));
            let (after, emptied) = (page.shape(), page.count == 0);
            self.reshaped(before, after);
            if emptied {
                self.page_emptied(number);
            }
            next = self.page_from(number + 1);
        }
        self.trim();
        before - self.len
    }

    #[cfg(test)]
    /// Empties all slots. Their pages become dirty.
    pub fn clear(&mut self) {
        let mut emptied = std::mem::take(&mut self.emptied);
        let low = self.low.iter().zip(0u64..).map(|(page, number)| (number, page));
        let pages = low.chain(self.high.iter().map(|(number, page)| (*number, page)));
        emptied.extend(pages.filter(|(_, page)| page.kept).map(|(number, _)| number));
        *self = Self { emptied, ..Self::new() };
    }

    /// Numbers of the pages that changed since [`Self::clear_dirty`]; those without any slot left too. Not sorted.
    pub fn dirty_pages(&self) -> impl Iterator<Item = u64> + '_ {
        let low =
            self.low.iter().zip(0u64..).filter(|(page, _)| page.dirty && page.count > 0).map(|(_, number)| number);
        let high = self.high.iter().filter(|(_, page)| page.dirty).map(|(number, _)| *number);
        low.chain(high).chain(self.emptied.iter().copied())
    }

    /// Makes every page clean.
    pub fn clear_dirty(&mut self) {
        for page in self.low.iter_mut().chain(self.high.values_mut()) {
            (page.dirty, page.kept) = (false, page.count > 0);
        }
        self.emptied.clear();
    }

    /// Numbers of all pages with a filled slot, ascending.
    pub fn pages(&self) -> impl Iterator<Item = u64> + '_ {
        let low = self.low.iter().zip(0u64..).filter(|(page, _)| page.count > 0).map(|(_, number)| number);
        low.chain(self.high.keys().copied())
    }

    /// Where the last checkpoint has a page that is not in memory.
    #[must_use]
    pub fn cold_page(&self, number: u64) -> Option<Loc> {
        self.page(number)?.cold()
    }

    /// Takes a page out of memory that stands at `loc`, whatever happened to it.
    pub fn let_go(&mut self, number: u64, loc: Loc) -> usize {
        let Some(page) = self.page_mut(number).filter(|page| page.count > 0 && page.cold().is_none()) else { return 0 };
        let before = page.shape();
        page.body = Body::Cold(loc);
        self.reshaped(before, Shape::default());
        self.cold += 1;
        before.heap_bytes
    }

    /// Takes a page out of memory that the last checkpoint has at `loc`, unless it has changed or was just used.
    pub fn drop_page(&mut self, number: u64, loc: Loc) -> Dropped {
        match self.page_mut(number) {
            Some(page) if page.dirty || page.count == 0 || page.cold().is_some() => Dropped::Stays,
            Some(page) if page.used.take() => Dropped::Used,
            Some(_) => Dropped::Freed(self.let_go(number, loc)),
            None => Dropped::Stays,
        }
    }

    /// Puts back a page that left memory; whether it holds what it held then. Nothing happens when it is there again.
    pub fn restore(&mut self, number: u64, at: Loc, whole: SlotPage) -> bool {
        let Some(page) = self.page_mut(number).filter(|page| page.cold() == Some(at)) else { return true };
        if whole.0.count != page.count {
            return false;
        }
        page.body = whole.0.body;
        page.used.note();
        let after = page.shape();
        self.reshaped(Shape::default(), after);
        self.cold -= 1;
        true
    }

    /// Adds a page, all of whose slots are empty so far.
    pub fn add(&mut self, number: u64, whole: SlotPage) {
        let count = whole.0.count;
        debug_assert!(self.page(number).is_none_or(|page| page.count == 0), "page {number} has slots");
        if count > 0 {
            let page = self.page_to_fill(number);
            (page.body, page.count, page.dirty) = (whole.0.body, count, true);
            let after = page.shape();
            self.reshaped(Shape::default(), after);
            self.len += u64::from(count);
        }
    }

    /// Counts what a page takes now instead of before.
    #[cold]
    fn reshaped(&mut self, before: Shape, after: Shape) {
        self.page_bytes = self.page_bytes - before.heap_bytes + after.heap_bytes;
        self.stored_bytes = self.stored_bytes - before.stored_bytes + after.stored_bytes;
        if before.width != after.width {
            let widths = self.widths.get_or_insert_default();
            widths[after.width] += 1;
            widths[before.width] -= u64::from(before.width > 0);
            widths[0] = 0;
            if widths.iter().all(|pages| *pages == 0) {
                self.widths = None;
            }
        }
    }

    /// The filled slots of page `number`, which is in memory, ascending: slots `number * PAGE_SLOTS` and on.
    pub fn page_slots(&self, number: u64) -> impl Iterator<Item = (u64, Loc)> + '_ {
        let mut from = 0;
        let page = self.page(number);
        std::iter::from_fn(move || {
            let (place, raw) = page.filter(|_| from < PAGE_SLOTS)?.first_from(from)?;
            from = place + 1;
            Some((join(number, place), loc(raw)))
        })
    }

    /// Makes one page count as changed, if it is there and in memory.
    pub fn mark_dirty(&mut self, number: u64) {
        if let Some(page) = self.page_mut(number).filter(|page| page.count > 0 && page.cold().is_none()) {
            page.dirty = true;
        }
    }

    fn page_mut(&mut self, number: u64) -> Option<&mut Page> {
        match usize::try_from(number).ok().and_then(|number| self.low.get_mut(number)) {
            Some(page) => Some(page),
            None => self.high.get_mut(&number),
        }
    }

    #[inline]
    fn page(&self, number: u64) -> Option<&Page> {
        match usize::try_from(number).ok().and_then(|number| self.low.get(number)) {
            Some(page) => Some(page),
            None => self.high.get(&number),
        }
    }

    /// The first page with a filled slot that has this number or a higher one.
    fn page_from(&self, number: u64) -> Option<u64> {
        let from = usize::try_from(number).unwrap_or(usize::MAX).max(self.low_first);
        let found = self.low.get(from..).and_then(|pages| pages.iter().position(|page| page.count > 0));
        match found {
            Some(after) => Some((from + after) as u64),
            None => self.high.range(number..).next().map(|(number, _)| *number),
        }
    }

    /// The last page with a filled slot that has this number or a lower one.
    fn page_to(&self, number: u64) -> Option<u64> {
        if let Some((number, _)) = self.high.range(..=number).next_back() {
            return Some(*number);
        }
        let end = self.low.len().min(usize::try_from(number).unwrap_or(usize::MAX).saturating_add(1));
        let pages = self.low.get(self.low_first..end)?;
        pages.iter().rposition(|page| page.count > 0).map(|found| (self.low_first + found) as u64)
    }

    /// A page for a first slot, or one of `high`: made when it is not there, in the part of the directory it
    /// belongs to.
    #[cold]
    #[inline(never)]
    fn page_to_fill(&mut self, number: u64) -> &mut Page {
        let is_low = |slots: &Self| number < slots.low.len() as u64;
        if is_low(self) || !self.high.contains_key(&number) {
            self.pages += 1;
            let page = Page { kept: self.emptied.remove(&number), ..Page::new() };
            if is_low(self) {
                self.low[number as usize] = page;
                self.low_first = self.low_first.min(number as usize);
            } else {
                self.high.insert(number, page);
            }
            self.grow_low();
        }
        if is_low(self) { &mut self.low[number as usize] } else { self.high.entry(number).or_insert(Page::new()) }
    }

    /// Moves pages to the dense directory as far as it would be reasonably filled.
    fn grow_low(&mut self) {
        let limit = 2 * self.pages + 16;
        let Some(last) = self.high.range(..=limit).next_back().map(|(number, _)| *number) else { return };
        let len = last as usize + 1;
        if len > self.low.capacity() {
            self.low.reserve_exact((len - self.low.len()).max(self.low.len() / 4));
        }
        self.low.resize_with(len, Page::new);
        while let Some(entry) = self.high.first_entry().filter(|entry| *entry.key() <= last) {
            let (number, page) = entry.remove_entry();
            self.low[number as usize] = page;
            self.low_first = self.low_first.min(number as usize);
        }
    }

    /// Takes out a page that has no slots any more.
    fn page_emptied(&mut self, number: u64) {
        self.pages -= 1;
        let page = match usize::try_from(number).ok().and_then(|number| self.low.get_mut(number)) {
            Some(page) => std::mem::replace(page, Page::new()),
            None => self.high.remove(&number).unwrap_or(Page::new()),
        };
        self.reshaped(page.shape(), Shape::default());
        if page.kept {
            self.emptied.insert(number);
        }
        while self.low.get(self.low_first).is_some_and(|page| page.count == 0) {
            self.low_first += 1;
        }
    }

    /// Gives back the end of the dense directory when it is empty.
    fn trim(&mut self) {
        while self.low.last().is_some_and(|page| page.count == 0) {
            self.low.pop();
        }
        self.low_first = self.low_first.min(self.low.len());
        if self.low.capacity() > 4 * self.low.len() {
            self.low.shrink_to(2 * self.low.len());
        }
    }
}

#[cfg(test)]
mod tests;
