//! A map from integers to places, eight bytes for each: slots keep no keys.
//!
//! ```text
//! slot index → page index / 512 → place index % 512
//! directory:  low    [Page]              pages 0, 1, 2 … while these are reasonably filled
//!             high   page number → Page  all other pages
//! page:       dense  [Loc; 512], 4 KiB
//!             sparse sorted (place, Loc), up to 64 of them, so that scattered slots do not cost 4 KiB each
//!             cold   not in memory: where the last checkpoint has it
//! ```
//!
//! Invariants:
//! 1. A page in `high` has a number of at least `low.len()` and is not empty; a page in `low` may be empty, the
//!    last one is not.
//! 2. `low` grows to a page only when its number is at most `2 * pages + 16`, so that empty pages in it are fewer
//!    than filled ones when it grows.
//! 3. A dense page has at least `SPARSE_MIN` slots, a sparse one at most [`Slots::SPARSE_MAX`].
//! 4. Every page that changed since [`Slots::clear_dirty`] is dirty, or stands in `emptied` when it is gone and had
//!    slots then; a page that came and went in between is not remembered.
//! 5. Whoever changes slots has seen to it that their pages are not cold ([`Slots::missing_at`]).
//! 6. All pages of `low` before `low_first` are empty: what is trimmed at the start costs no search.
//!
//! Ranges are `start <= index < end`, except that an end of `u64::MAX` includes that slot.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use triomphe::Arc;

use super::{Dropped, Missing, Used};
use crate::format::{Loc, PAGE_SLOTS, Space};

const PAGE_BITS: u32 = PAGE_SLOTS.trailing_zeros();
const READIED: &str = "whoever needs a cold page has it read first";
/// A dense page with fewer slots becomes sparse.
const SPARSE_MIN: usize = 24;
/// What an entry of a `BTreeMap` or `BTreeSet` takes beyond its own size, on average: its nodes are two thirds full.
const NODE_SLACK_BYTES: usize = 24;

/// Shared with a clone of the slots until one of the two changes it.
#[derive(Clone)]
enum Body {
    /// Zero is an empty slot.
    Dense(Arc<[u64; PAGE_SLOTS]>),
    Sparse(Vec<(u16, u64)>),
    Cold(Loc),
}

#[derive(Clone)]
struct Page {
    body: Body,
    count: u16,
    dirty: bool,
    /// It was there at the last [`Slots::clear_dirty`].
    kept: bool,
    used: Used,
}

impl Page {
    const fn new() -> Self {
        Self { body: Body::Sparse(Vec::new()), count: 0, dirty: false, kept: false, used: Used::new() }
    }

    #[inline]
    fn get(&self, place: usize) -> u64 {
        match &self.body {
            Body::Dense(raws) => raws[place],
            Body::Sparse(list) => {
                list.binary_search_by_key(&(place as u16), |slot| slot.0).map_or(0, |found| list[found].1)
            }
            Body::Cold(_) => unreachable!("{READIED}"),
        }
    }

    /// Sets a slot to a raw place that is not zero; the old one comes back, zero for an empty slot.
    #[inline]
    fn set(&mut self, place: usize, raw: u64) -> u64 {
        self.dirty = true;
        let old = match &mut self.body {
            Body::Dense(raws) => std::mem::replace(&mut Arc::make_mut(raws)[place], raw),
            Body::Sparse(list) => {
                let above_all = list.last().is_none_or(|last| usize::from(last.0) < place);
                let found =
                    if above_all { Err(list.len()) } else { list.binary_search_by_key(&(place as u16), |slot| slot.0) };
                match found {
                    Ok(found) => std::mem::replace(&mut list[found].1, raw),
                    Err(at) => {
                        if list.len() == Slots::SPARSE_MAX {
                            self.make_dense()[place] = raw;
                        } else {
                            if list.len() == list.capacity() {
                                list.reserve_exact(list.len().max(1));
                            }
                            list.insert(at, (place as u16, raw));
                        }
                        0
                    }
                }
            }
            Body::Cold(_) => unreachable!("{READIED}"),
        };
        self.count += u16::from(old == 0);
        old
    }

    fn remove(&mut self, place: usize) -> u64 {
        let old = match &mut self.body {
            Body::Dense(raws) if raws[place] == 0 => 0,
            Body::Dense(raws) => std::mem::take(&mut Arc::make_mut(raws)[place]),
            Body::Sparse(list) => match list.binary_search_by_key(&(place as u16), |slot| slot.0) {
                Ok(found) => list.remove(found).1,
                Err(_) => 0,
            },
            Body::Cold(_) => unreachable!("{READIED}"),
        };
        if old != 0 {
            self.dirty = true;
            self.count -= 1;
            self.settle();
        }
        old
    }

    /// Empties the slots at `places` and calls `gone` for each.
    fn remove_range(&mut self, places: Range<usize>, mut gone: impl FnMut(usize, u64)) -> u64 {
        let before = self.count;
        match &mut self.body {
            Body::Dense(raws) => {
                let raws = Arc::make_mut(raws);
                for place in places {
                    let raw = std::mem::take(&mut raws[place]);
                    if raw != 0 {
                        self.count -= 1;
                        gone(place, raw);
                    }
                }
            }
            Body::Sparse(list) => {
                let start = list.partition_point(|slot| usize::from(slot.0) < places.start);
                let end = list.partition_point(|slot| usize::from(slot.0) < places.end);
                list.drain(start..end).for_each(|(place, raw)| gone(usize::from(place), raw));
                self.count = list.len() as u16;
            }
            Body::Cold(_) => unreachable!("{READIED}"),
        }
        if self.count != before {
            self.dirty = true;
            self.settle();
        }
        u64::from(before - self.count)
    }

    fn make_dense(&mut self) -> &mut [u64; PAGE_SLOTS] {
        let mut raws = [0; PAGE_SLOTS];
        if let Body::Sparse(list) = &self.body {
            list.iter().for_each(|(place, raw)| raws[usize::from(*place)] = *raw);
        }
        self.body = Body::Dense(Arc::new(raws));
        match &mut self.body {
            Body::Dense(raws) => Arc::make_mut(raws),
            Body::Sparse(_) | Body::Cold(_) => unreachable!("the body was just made dense"),
        }
    }

    /// Takes the body that fits the count after slots went.
    fn settle(&mut self) {
        let count = usize::from(self.count);
        match &mut self.body {
            Body::Dense(raws) if count < SPARSE_MIN => {
                let mut list = Vec::with_capacity(count);
                list.extend(raws.iter().zip(0u16..).filter(|(raw, _)| **raw != 0).map(|(raw, place)| (place, *raw)));
                self.body = Body::Sparse(list);
            }
            Body::Sparse(list) if list.capacity() > 4 * count => list.shrink_to_fit(),
            _ => {}
        }
    }

    /// The first filled slot at `from` or above.
    #[inline]
    fn first_from(&self, from: usize) -> Option<(usize, u64)> {
        match &self.body {
            Body::Dense(raws) => {
                let at = raws[from..].iter().position(|raw| *raw != 0)?;
                Some((from + at, raws[from + at]))
            }
            Body::Sparse(list) => {
                let at = list.partition_point(|slot| usize::from(slot.0) < from);
                list.get(at).map(|(place, raw)| (usize::from(*place), *raw))
            }
            Body::Cold(_) => unreachable!("{READIED}"),
        }
    }

    /// The last filled slot at `to` or below.
    #[inline]
    fn last_to(&self, to: usize) -> Option<(usize, u64)> {
        match &self.body {
            Body::Dense(raws) => {
                let at = raws[..=to].iter().rposition(|raw| *raw != 0)?;
                Some((at, raws[at]))
            }
            Body::Sparse(list) => {
                let at = list.partition_point(|slot| usize::from(slot.0) <= to);
                list[..at].last().map(|(place, raw)| (usize::from(*place), *raw))
            }
            Body::Cold(_) => unreachable!("{READIED}"),
        }
    }

    fn heap_bytes(&self) -> usize {
        match &self.body {
            Body::Dense(_) => PAGE_SLOTS * size_of::<u64>(),
            Body::Sparse(list) => list.capacity() * size_of::<(u16, u64)>(),
            Body::Cold(_) => 0,
        }
    }

    /// Where the checkpoint has it, if it is not in memory.
    #[inline]
    fn cold(&self) -> Option<Loc> {
        match self.body {
            Body::Cold(loc) => Some(loc),
            _ => None,
        }
    }
}

/// The map. See the module. A clone shares its dense pages with its original until one of the two changes them.
#[derive(Default)]
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
    low_first: usize,
}

impl Clone for Slots {
    fn clone(&self) -> Self {
        let (low, high) = (self.low.clone(), self.high.clone());
        // Copied lists have no slack.
        let page_bytes = low.iter().chain(high.values()).map(Page::heap_bytes).sum();
        Self { low, high, emptied: self.emptied.clone(), page_bytes, ..*self }
    }
}

fn split(index: u64) -> (u64, usize) {
    (index >> PAGE_BITS, index as usize % PAGE_SLOTS)
}

fn join(number: u64, place: usize) -> u64 {
    number << PAGE_BITS | place as u64
}

/// The last index of a range; `None` for an empty one.
fn last_of(range: &Range<u64>) -> Option<u64> {
    let last = if range.end == u64::MAX { u64::MAX } else { range.end.checked_sub(1)? };
    (range.start <= last).then_some(last)
}

fn missing(page: u64, loc: Loc) -> Missing {
    Missing { space: Space::Slots, page, loc }
}

fn loc(raw: u64) -> Loc {
    Loc::from_raw(raw).expect("a filled slot holds a place")
}

impl Slots {
    /// A sparse page with more slots becomes dense.
    pub const SPARSE_MAX: usize = 64;

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

    /// Number of pages that are not in memory.
    #[inline]
    #[must_use]
    pub fn cold_pages(&self) -> u64 {
        self.cold
    }

    /// Memory the slots hold, in bytes, themselves included. Exact but for the pages outside the dense directory,
    /// where the slack of the map's nodes is an average.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        size_of::<Self>()
            + self.low.capacity() * size_of::<Page>()
            + self.page_bytes
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
                // What follows is in memory: whoever scans comes back when it is not.
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
        let before = page.heap_bytes();
        let old = page.set(place, loc.raw());
        let after = page.heap_bytes();
        self.page_bytes = self.page_bytes - before + after;
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
        let before = page.heap_bytes();
        let old = Loc::from_raw(page.remove(place))?;
        let emptied = page.count == 0;
        self.page_bytes = self.page_bytes - before + page.heap_bytes();
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
            let before = page.heap_bytes();
            self.len -= page.remove_range(from..until, |place, raw| gone(join(number, place), loc(raw)));
            self.page_bytes = self.page_bytes - before + page.heap_bytes();
            if page.count == 0 {
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

    /// The filled slots of `range`, ascending, or descending when `reverse`, up to a page that is not in memory.
    #[must_use]
    pub fn scan(&self, range: Range<u64>, reverse: bool) -> SlotsScan<'_> {
        SlotsScan { slots: self, rest: last_of(&range).map(|last| (range.start, last)), reverse }
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
        let freed = page.heap_bytes();
        page.body = Body::Cold(loc);
        self.page_bytes -= freed;
        self.cold += 1;
        freed
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
    pub fn restore(&mut self, number: u64, at: Loc, slots: &[(u64, Loc)]) -> bool {
        let Some(page) = self.page_mut(number).filter(|page| page.cold() == Some(at)) else { return true };
        let mut whole = Page::new();
        for (index, loc) in slots {
            whole.set(split(*index).1, loc.raw());
        }
        if whole.count != page.count {
            return false;
        }
        page.body = whole.body;
        page.used.note();
        let bytes = page.heap_bytes();
        self.page_bytes += bytes;
        self.cold -= 1;
        true
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
        self.page_bytes -= page.heap_bytes();
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

/// Filled slots in order. See [`Slots::scan`].
pub struct SlotsScan<'a> {
    slots: &'a Slots,
    /// First and last index still to look at.
    rest: Option<(u64, u64)>,
    reverse: bool,
}

impl Iterator for SlotsScan<'_> {
    type Item = Result<(u64, Loc), Missing>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let (first, last) = self.rest?;
            let (number, place) = split(if self.reverse { last } else { first });
            let page = self.slots.page(number);
            if let Some(page) = page {
                page.used.note();
                if let Some(loc) = page.cold() {
                    self.rest = None;
                    return Some(Err(missing(number, loc)));
                }
            }
            let found = match page {
                Some(page) if self.reverse => page.last_to(place),
                Some(page) => page.first_from(place),
                None => None,
            };
            let Some((place, raw)) = found else {
                self.rest = if self.reverse {
                    let before = number.checked_sub(1).and_then(|number| self.slots.page_to(number));
                    before.map(|number| (first, join(number, PAGE_SLOTS - 1)))
                } else {
                    let after = number.checked_add(1).and_then(|number| self.slots.page_from(number));
                    after.filter(|number| *number <= last >> PAGE_BITS).map(|number| (join(number, 0), last))
                }
                .filter(|(first, last)| first <= last);
                continue;
            };
            let index = join(number, place);
            if index < first || index > last {
                self.rest = None;
                return None;
            }
            self.rest = if self.reverse {
                index.checked_sub(1).map(|last| (first, last))
            } else {
                index.checked_add(1).map(|first| (first, last))
            }
            .filter(|(first, last)| first <= last);
            return Some(Ok((index, loc(raw))));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Model = BTreeMap<u64, Loc>;

    impl Slots {
        fn check(&self) {
            assert!(self.low.last().is_none_or(|page| page.count > 0));
            assert!(self.high.iter().all(|(number, page)| *number >= self.low.len() as u64 && page.count > 0));
            assert!(self.low_first <= self.low.len() && self.low[..self.low_first].iter().all(|page| page.count == 0));
            let low = self.low.iter().filter(|page| page.count > 0).count() as u64;
            assert_eq!(self.pages, low + self.high.len() as u64);
            let mut len = 0;
            for page in self.low.iter().chain(self.high.values()) {
                let count = match &page.body {
                    Body::Dense(raws) => raws.iter().filter(|raw| **raw != 0).count(),
                    Body::Cold(_) => usize::from(page.count),
                    Body::Sparse(list) => {
                        assert!(list.is_sorted_by(|a, b| a.0 < b.0) && list.len() <= Slots::SPARSE_MAX);
                        list.len()
                    }
                };
                assert_eq!(count, usize::from(page.count));
                len += count as u64;
            }
            assert_eq!(len, self.len);
            let pages = || self.low.iter().chain(self.high.values());
            assert_eq!(pages().map(Page::heap_bytes).sum::<usize>(), self.page_bytes);
            assert_eq!(pages().filter(|page| page.cold().is_some()).count() as u64, self.cold);
        }
    }

    /// Pages as they were saved last.
    type Saved = BTreeMap<u64, Vec<(u64, Loc)>>;

    fn bring(slots: &mut Slots, saved: &Saved, missing: &[Missing]) {
        for missing in missing {
            assert_eq!(missing.loc, place_of(missing.page));
            assert!(slots.restore(missing.page, missing.loc, &saved[&missing.page]), "page {}", missing.page);
        }
    }

    fn look<R>(slots: &mut Slots, saved: &Saved, f: impl Fn(&Slots) -> Result<R, Missing>) -> R {
        loop {
            match f(slots) {
                Ok(found) => return found,
                Err(missing) => bring(slots, saved, &[missing]),
            }
        }
    }

    fn place_of(number: u64) -> Loc {
        Loc::new(number % (1 << 30) * 4096, 64, 0)
    }

    fn a_loc(n: u64) -> Loc {
        Loc::new(n * 8, 64, 0)
    }

    fn index(rng: &mut fastrand::Rng, shape: u32) -> u64 {
        match shape {
            0 => rng.u64(..3_000),
            1 => rng.u64(..100) * 512 + rng.u64(..3),
            2 => u64::MAX - rng.u64(..3_000),
            3 => rng.u64(..) >> rng.u32(..64),
            4 => rng.u64(..40_000),
            _ => [rng.u64(..800), (1 << 40) + rng.u64(..800), u64::MAX - rng.u64(..10)][rng.usize(..3)],
        }
    }

    fn run(seed: u64, shape: u32) {
        let mut rng = fastrand::Rng::with_seed(seed);
        let (mut slots, mut model, mut saved) = (Slots::new(), Model::new(), Saved::new());
        let mut dropped = 0;
        let mut kept = (Slots::new(), Model::new());
        for step in 0..8_000_u64 {
            let growing = step / 2_000 % 2 == 0;
            let at = index(&mut rng, shape);
            let inside =
                |range: &Range<u64>, index: u64| index >= range.start && (index < range.end || range.end == u64::MAX);
            let choice = rng.u32(..100);
            if choice < 85 {
                let missing = slots.missing_at(at);
                bring(&mut slots, &saved, missing.as_slice());
            }
            match choice {
                0..70 if growing => assert_eq!(slots.set(at, a_loc(step)), model.insert(at, a_loc(step))),
                0..70 => assert_eq!(slots.remove(at), model.remove(&at)),
                70..80 => assert_eq!(slots.set(at, a_loc(step)), model.insert(at, a_loc(step))),
                80..85 => assert_eq!(slots.remove(at), model.remove(&at)),
                85..95 => assert_eq!(look(&mut slots, &saved, |slots| slots.get(at)), model.get(&at).copied()),
                95 if step % 4 == 0 => {
                    let end = if step % 24 == 0 { u64::MAX } else { index(&mut rng, shape) };
                    let range = at..end;
                    let expected: Vec<_> =
                        model.iter().filter(|(index, _)| inside(&range, **index)).map(|(i, loc)| (*i, *loc)).collect();
                    let (mut gone, mut missing) = (vec![], vec![]);
                    slots.missing_in(range.start, range.end, &mut missing);
                    bring(&mut slots, &saved, &missing);
                    let count = slots.remove_range(range.start, range.end, |index, loc| gone.push((index, loc)));
                    assert_eq!((count, &gone), (expected.len() as u64, &expected));
                    expected.iter().for_each(|(index, _)| assert!(model.remove(index).is_some()));
                }
                96 if step % 50 == 0 => {
                    slots.clear();
                    model.clear();
                }
                97 => {
                    for number in slots.dirty_pages() {
                        saved.insert(number, slots.page_slots(number).collect::<Vec<_>>());
                    }
                    slots.clear_dirty();
                    assert_eq!(slots.dirty_pages().next(), None);
                    let all: Model = saved.values().flatten().copied().collect();
                    assert!(all == model, "changed pages alone have all slots");
                    // What was cloned before has not changed since.
                    let (clone, then) = &kept;
                    clone.check();
                    let whole = |slots: &mut Slots, saved: &Saved| {
                        let mut missing = vec![];
                        slots.missing_in(0, u64::MAX, &mut missing);
                        bring(slots, saved, &missing);
                    };
                    assert!(clone.scan(0..u64::MAX, false).eq(then.iter().map(|(index, loc)| Ok((*index, *loc)))));
                    whole(&mut slots, &saved);
                    kept = (slots.clone(), model.clone());
                    for number in saved.keys().filter(|_| step % 3 == 0) {
                        // The first look only finds that it was used.
                        slots.drop_page(*number, place_of(*number));
                        dropped += u64::from(slots.drop_page(*number, place_of(*number)) != Dropped::Stays);
                    }
                }
                _ => {
                    let range = at..if step % 5 == 0 { u64::MAX } else { index(&mut rng, shape) };
                    let mut expected: Vec<_> =
                        model.iter().filter(|(index, _)| inside(&range, **index)).map(|(i, loc)| (*i, *loc)).collect();
                    let scan = |slots: &Slots, reverse: bool| -> Result<Vec<_>, Missing> {
                        slots.scan(range.clone(), reverse).collect()
                    };
                    assert!(look(&mut slots, &saved, |slots| scan(slots, false)) == expected, "{range:?}");
                    expected.reverse();
                    assert!(look(&mut slots, &saved, |slots| scan(slots, true)) == expected, "{range:?} reverse");
                }
            }
            assert_eq!(slots.len(), model.len() as u64);
            if step % 100 == 0 {
                slots.check();
            }
        }
        slots.check();
        assert!(dropped > 0, "seed {seed} shape {shape}: no page left memory");
        let mut missing = vec![];
        slots.missing_in(0, u64::MAX, &mut missing);
        bring(&mut slots, &saved, &missing);
        slots.remove_range(0, u64::MAX, |_, _| ());
        slots.clear_dirty();
        slots.check();
        assert!(slots.is_empty() && slots.memory_bytes() == size_of::<Slots>(), "{}", slots.memory_bytes());
    }

    #[test]
    fn slots_answer_like_an_ordered_map() {
        for shape in 0..6 {
            for seed in 0..4 {
                println!("seed {seed} shape {shape}");
                run(seed, shape);
            }
        }
    }

    #[test]
    fn a_slot_of_a_filled_range_takes_at_most_8_1_bytes_in_any_order_of_filling() {
        let len = 1_000_000_u64;
        for step in [1, len - 1, 387_420_489] {
            let mut slots = Slots::new();
            for nth in 0..len {
                assert_eq!(slots.set(nth * step % len, a_loc(nth)), None);
            }
            slots.check();
            assert_eq!((slots.len(), slots.high.len()), (len, 0), "step {step}");
            let bytes = slots.memory_bytes() as f64 / len as f64;
            assert!(bytes <= 8.1, "step {step}: {bytes} bytes a slot");
        }
    }

    #[test]
    fn scattered_slots_do_not_take_a_dense_page_each() {
        let mut slots = Slots::new();
        for nth in 0..10_000_u64 {
            slots.set(nth << 30, a_loc(nth));
        }
        let bytes = slots.memory_bytes() / 10_000;
        assert!(bytes <= 100, "{bytes} bytes a slot");
    }
}
