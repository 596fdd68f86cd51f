//! Walking slots in order, page by page.
//!
//! Invariant: a page that is not in memory is told once, and ends the scan.

use std::ops::Range;

use super::page::{PAGE_BITS, join, loc, missing, split};
use super::{Slots, last_of};
use crate::format::{Loc, PAGE_SLOTS};
use crate::index::Missing;

/// Filled slots in order. See [`Slots::scan`].
pub struct SlotsScan<'a> {
    slots: &'a Slots,
    /// First and last index still to look at.
    rest: Option<(u64, u64)>,
    reverse: bool,
}

impl Slots {
    /// The filled slots of `range`, ascending, or descending when `reverse`, up to a page that is not in memory.
    #[must_use]
    pub fn scan(&self, range: Range<u64>, reverse: bool) -> SlotsScan<'_> {
        SlotsScan { slots: self, rest: last_of(&range).map(|last| (range.start, last)), reverse }
    }
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
