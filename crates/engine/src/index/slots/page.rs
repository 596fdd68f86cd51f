//! One page of slots: dense, sparse, or not in memory.

use std::ops::Range;

use triomphe::Arc;

use crate::format::{Loc, PAGE_SLOTS, Space};
use crate::index::{Missing, Used};

pub(super) const PAGE_BITS: u32 = PAGE_SLOTS.trailing_zeros();
const READIED: &str = "a caller that needs a cold page has it read first";
/// A dense page with fewer slots becomes sparse.
const SPARSE_MIN: usize = 24;
/// A sparse page with more slots becomes dense.
pub(super) const SPARSE_MAX: usize = 64;

/// Shared with a clone of the slots until one of the two changes it.
#[derive(Clone)]
pub(super) enum Body {
    /// Zero is an empty slot.
    Dense(Arc<[u64; PAGE_SLOTS]>),
    Sparse(Vec<(u16, u64)>),
    Cold(Loc),
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

impl Page {
    pub const fn new() -> Self {
        Self { body: Body::Sparse(Vec::new()), count: 0, dirty: false, kept: false, used: Used::new() }
    }

    #[inline]
    pub fn get(&self, place: usize) -> u64 {
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
    pub fn set(&mut self, place: usize, raw: u64) -> u64 {
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
                        if list.len() == SPARSE_MAX {
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

    pub fn remove(&mut self, place: usize) -> u64 {
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
    pub fn remove_range(&mut self, places: Range<usize>, mut gone: impl FnMut(usize, u64)) -> u64 {
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
    pub fn first_from(&self, from: usize) -> Option<(usize, u64)> {
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
    pub fn last_to(&self, to: usize) -> Option<(usize, u64)> {
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

    #[inline]
    pub fn heap_bytes(&self) -> usize {
        match &self.body {
            Body::Dense(_) => PAGE_SLOTS * size_of::<u64>(),
            Body::Sparse(list) => list.capacity() * size_of::<(u16, u64)>(),
            Body::Cold(_) => 0,
        }
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
