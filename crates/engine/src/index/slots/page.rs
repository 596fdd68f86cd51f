//! One page of slots: dense, sparse, or not in memory.

use std::ops::Range;

use super::packed::{Packed, Raws};
use super::sparse::Sparse;
use crate::format::{Loc, PAGE_SLOTS, Space, operation_bytes, slot_page_bytes};
use crate::index::{Missing, Used};

pub(super) const PAGE_BITS: u32 = PAGE_SLOTS.trailing_zeros();
const READIED: &str = "a caller that needs a cold page has it read first";
/// A dense page with fewer slots becomes sparse.
const SPARSE_MIN: usize = 24;
/// A sparse page with more slots becomes dense.
pub(super) const SPARSE_MAX: usize = 64;

#[derive(Clone)]
pub(super) enum Body {
    /// Shared with a clone of the slots until one of the two changes it.
    Dense(Packed),
    /// Of as many entries as the page has slots.
    Sparse(Sparse),
    Cold(Loc),
}

/// What the number of a page and its place take in the list of pages that a checkpoint has of an object.
const LISTED_BYTES: usize = 16;

/// What a page with so many slots takes in a checkpoint, its place in the list included.
fn stored_bytes(slots: usize) -> usize {
    if slots == 0 { 0 } else { operation_bytes(0, slot_page_bytes(slots)) as usize + LISTED_BYTES }
}

/// What a page takes. Nothing when it is not in memory.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Shape {
    pub heap_bytes: usize,
    /// In a checkpoint, at most: packed pages stand there unpacked, and each page with a header of its own.
    pub stored_bytes: usize,
    /// Bytes of an item of a dense page, 0 for others.
    pub width: usize,
}

#[derive(Clone)]
pub(super) struct Page {
    pub body: Body,
    pub count: u16,
    pub dirty: bool,
    /// It was there at the last [`Slots::clear_dirty`](super::Slots::clear_dirty).
    pub kept: bool,
    pub used: Used,
}

const _: () = assert!(size_of::<Page>() == 32, "the directory takes 32 bytes for 512 slots");

impl Page {
    pub fn new() -> Self {
        Self { body: Body::Sparse(Sparse::default()), count: 0, dirty: false, kept: false, used: Used::new() }
    }

    /// A page of these packed places, zero for an empty slot.
    pub fn of(raws: &Raws) -> Self {
        let count = raws.iter().filter(|raw| **raw != 0).count();
        let body = if count > SPARSE_MAX { Body::Dense(Packed::of(raws)) } else { Body::Sparse(Sparse::of(raws)) };
        Self { body, count: count as u16, dirty: true, ..Self::new() }
    }

    #[inline]
    pub fn get(&self, place: usize) -> u64 {
        match &self.body {
            Body::Dense(packed) => packed.get(place),
            Body::Sparse(list) => list.get(usize::from(self.count), place),
            Body::Cold(_) => unreachable!("{READIED}"),
        }
    }

    /// [`Self::set`] where that takes nothing but writing an item; else `None`, and nothing has changed.
    #[inline]
    pub fn replace(&mut self, place: usize, raw: u64) -> Option<u64> {
        let Body::Dense(packed) = &mut self.body else { return None };
        let old = if self.dirty { packed.replace(place, raw)? } else { return None };
        self.count += u16::from(old == 0);
        Some(old)
    }

    /// Sets a slot to a raw place that is not zero; the old one comes back, zero for an empty slot, with what the page
    /// took before and what it takes now.
    pub fn set(&mut self, place: usize, raw: u64) -> (u64, Shape, Shape) {
        let before = self.shape();
        let first = !std::mem::replace(&mut self.dirty, true);
        let old = match &mut self.body {
            Body::Dense(packed) if first => packed.set_first(place, raw),
            Body::Dense(packed) => packed.set(place, raw),
            Body::Sparse(list) => match list.set(usize::from(self.count), SPARSE_MAX, place, raw) {
                Some(old) => old,
                None => {
                    let mut raws = self.raws();
                    raws[place] = raw;
                    self.body = Body::Dense(Packed::of(&raws));
                    0
                }
            },
            Body::Cold(_) => unreachable!("{READIED}"),
        };
        self.count += u16::from(old == 0);
        (old, before, self.shape())
    }

    pub fn remove(&mut self, place: usize) -> u64 {
        let old = match &mut self.body {
            Body::Dense(packed) => packed.take(place),
            Body::Sparse(list) => list.take(usize::from(self.count), place),
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
    pub fn remove_range(&mut self, places: Range<usize>, mut gone: impl FnMut(usize, u64)) -> u64 {
        let before = self.count;
        let mut next = self.first_from(places.start);
        while let Some((place, raw)) = next.filter(|(place, _)| *place < places.end) {
            match &mut self.body {
                Body::Dense(packed) => packed.take(place),
                Body::Sparse(list) => list.take(usize::from(self.count), place),
                Body::Cold(_) => unreachable!("{READIED}"),
            };
            self.count -= 1;
            gone(place, raw);
            next = if place + 1 < PAGE_SLOTS { self.first_from(place + 1) } else { None };
        }
        if self.count != before {
            self.dirty = true;
            self.settle();
        }
        u64::from(before - self.count)
    }

    fn raws(&self) -> Raws {
        match &self.body {
            Body::Dense(packed) => packed.raws(),
            Body::Sparse(list) => {
                let mut raws = [0; PAGE_SLOTS];
                list.entries(usize::from(self.count)).iter().for_each(|(place, raw)| raws[usize::from(*place)] = *raw);
                raws
            }
            Body::Cold(_) => unreachable!("{READIED}"),
        }
    }

    /// Takes the body that fits the count after slots went.
    fn settle(&mut self) {
        let count = usize::from(self.count);
        match &mut self.body {
            Body::Dense(packed) if count < SPARSE_MIN => self.body = Body::Sparse(Sparse::of(&packed.raws())),
            Body::Sparse(list) => list.settle(count),
            Body::Dense(_) | Body::Cold(_) => {}
        }
    }

    /// The first filled slot at `from` or above.
    #[inline]
    pub fn first_from(&self, from: usize) -> Option<(usize, u64)> {
        match &self.body {
            Body::Dense(packed) => packed.first_from(from),
            Body::Sparse(list) => {
                let entries = list.entries(usize::from(self.count));
                let at = entries.partition_point(|entry| usize::from(entry.0) < from);
                entries.get(at).map(|(place, raw)| (usize::from(*place), *raw))
            }
            Body::Cold(_) => unreachable!("{READIED}"),
        }
    }

    /// The last filled slot at `to` or below.
    #[inline]
    pub fn last_to(&self, to: usize) -> Option<(usize, u64)> {
        match &self.body {
            Body::Dense(packed) => packed.last_to(to),
            Body::Sparse(list) => {
                let entries = list.entries(usize::from(self.count));
                let at = entries.partition_point(|entry| usize::from(entry.0) <= to);
                entries[..at].last().map(|(place, raw)| (usize::from(*place), *raw))
            }
            Body::Cold(_) => unreachable!("{READIED}"),
        }
    }

    #[inline]
    pub fn shape(&self) -> Shape {
        match &self.body {
            Body::Dense(packed) => {
                let (heap_bytes, width) = (packed.heap_bytes(), packed.width());
                // Filling a slot of it does not change its shape.
                Shape { heap_bytes, stored_bytes: stored_bytes(PAGE_SLOTS), width }
            }
            Body::Sparse(list) => {
                let heap_bytes = list.heap_bytes();
                Shape { heap_bytes, stored_bytes: stored_bytes(usize::from(self.count)), width: 0 }
            }
            Body::Cold(_) => Shape::default(),
        }
    }

    pub fn heap_bytes(&self) -> usize {
        self.shape().heap_bytes
    }

    /// Where the checkpoint has it, if it is not in memory.
    #[inline]
    pub fn cold(&self) -> Option<Loc> {
        match self.body {
            Body::Cold(loc) => Some(loc),
            _ => None,
        }
    }
}

#[inline]
pub(super) fn split(index: u64) -> (u64, usize) {
    (index >> PAGE_BITS, index as usize % PAGE_SLOTS)
}

#[inline]
pub(super) fn join(number: u64, place: usize) -> u64 {
    number << PAGE_BITS | place as u64
}

pub(super) fn missing(page: u64, loc: Loc) -> Missing {
    Missing { space: Space::Slots, page, loc }
}

#[inline]
pub(super) fn loc(raw: u64) -> Loc {
    Loc::from_raw(raw).expect("a filled slot holds a place")
}
