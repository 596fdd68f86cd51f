//! The frame of a dense page: how an item of few bytes tells a whole place.
//!
//! ```text
//! place  | offset / 8 (44 bits)          | span and flags (20 bits): the tail        |
//! item   | offset / 8 - the frame's base | (tail - the frame's) >> shift, so many bits |
//! ```
//!
//! places of a page → reach: lowest and highest offset and tail → narrowest frame that has them
//!
//! Invariants:
//! 1. An item that a frame makes is not zero, fits into the frame's width, and gives the same place back.
//! 2. A frame has no tails above the largest that a place can have: an offset of 44 bits and the bits of the tail
//!    always fit into 64.
//! 3. [`Frame::WHOLE`] has an item for every place: the place itself.
//! 4. A frame that [`Frame::wider`] makes has an item for everything that was asked for, is never narrower, and allows
//!    every tail that the old one allows. Either it has more bytes or more bits of tail than the old one, which there
//!    can be 26 times, or it was moved; and between two moves that follow each other all places of the page change.

use crate::format::{LOC_FLAG_BITS, LOC_TAIL_BITS};

/// Bytes of an item of [`Frame::WHOLE`].
pub const WIDTH_MAX: usize = 8;
/// The fewest bytes that an item takes.
pub(super) const WIDTH_MIN: usize = 2;

const TAIL_MASK: u64 = (1 << LOC_TAIL_BITS) - 1;
const FLAG_MASK: u64 = (1 << LOC_FLAG_BITS) - 1;
const OFFSET_MASK: u64 = u64::MAX >> LOC_TAIL_BITS;
/// A frame has no more offsets than this, whatever its width: that of its base is the one before its first, so that no
/// item is zero, and offsets wrap round.
const OFFSETS_MAX: u64 = OFFSET_MASK;
/// A frame is moved without being widened when the page's places take no more than this part of what it reaches.
/// With a quarter of the rest below them and three above, all of them have to change before it is moved so again.
const MOVED_SHARE: u64 = 8;

#[inline]
fn offset(raw: u64) -> u64 {
    raw >> LOC_TAIL_BITS
}

#[inline]
fn tail(raw: u64) -> u64 {
    raw & TAIL_MASK
}

/// Offsets, in units, that items of `width` bytes reach when `bits` of each are the tail; those that leave no room for
/// an offset reach none.
fn reached(width: usize, bits: u8) -> u64 {
    let bits = (8 * width as u32).saturating_sub(u32::from(bits));
    u64::MAX.checked_shr(u64::BITS - bits).unwrap_or(0)
}

/// Tails in a row, as many as there are numbers of some bits.
#[derive(Clone, Copy)]
struct Tails {
    low: u64,
    bits: u8,
    shift: u8,
}

impl Tails {
    /// The fewest that have `low` and `high`, and what lies between them; with the flags of `low` only, if these are
    /// the flags of all.
    fn between(low: u64, high: u64, one_flags: bool) -> Self {
        let shift = if one_flags { LOC_FLAG_BITS as u8 } else { 0 };
        let bits = (u64::BITS - ((high - low) >> shift).leading_zeros()) as u8;
        let tails = Self { low, bits, shift };
        // Lower ones instead of those above the largest that there is: see invariant 2.
        let step = 1 << shift;
        Self { low: low - tails.high().saturating_sub(TAIL_MASK).div_ceil(step) * step, ..tails }
    }

    fn high(self) -> u64 {
        self.low + (((1 << self.bits) - 1) << self.shift)
    }

    /// These and one more.
    fn and(self, tail: u64) -> Self {
        let one_flags = self.shift != 0 && (tail ^ self.low) & FLAG_MASK == 0;
        Self::between(self.low.min(tail), self.high().max(tail), one_flags)
    }
}

/// The lowest and highest places of a page, offsets and tails apart.
#[derive(Clone, Copy)]
pub(super) struct Reach {
    low: u64,
    high: u64,
    tails: Tails,
}

impl Reach {
    /// That of packed places; none of them is zero. `None` without any.
    pub fn of(raws: impl Iterator<Item = u64>) -> Option<Self> {
        let (mut low, mut high, mut tail_low, mut tail_high) = (u64::MAX, 0, u64::MAX, 0);
        let (mut any, mut all) = (0, u64::MAX);
        for raw in raws {
            (low, high) = (low.min(raw), high.max(raw));
            (tail_low, tail_high) = (tail_low.min(tail(raw)), tail_high.max(tail(raw)));
            (any, all) = (any | raw, all & raw);
        }
        (low <= high).then(|| {
            let tails = Tails::between(tail_low, tail_high, (any ^ all) & FLAG_MASK == 0);
            Self { low: offset(low), high: offset(high), tails }
        })
    }

    fn offsets(&self) -> u64 {
        self.high - self.low + 1
    }
}

/// What items are told against. See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    /// A packed place: the offset before the first that an item may have, and the lowest tail.
    pub base: u64,
    /// Bits of an item that are the tail.
    pub bits: u8,
    /// By how much tails are shifted: by the flags when these are all the same, else not at all.
    pub shift: u8,
}

impl Frame {
    /// Items of [`WIDTH_MAX`] bytes are the packed places themselves.
    pub const WHOLE: Self = Self { base: 0, bits: LOC_TAIL_BITS as u8, shift: 0 };

    /// The packed place of an item.
    #[inline]
    pub fn raw(self, item: u64) -> u64 {
        let tail = item & ((1 << self.bits) - 1);
        self.base.wrapping_add(item >> self.bits << LOC_TAIL_BITS).wrapping_add(tail << self.shift)
    }

    /// The item of `width` bytes for a packed place, if there is one.
    #[inline]
    pub fn item(self, raw: u64, width: usize) -> Option<u64> {
        let far = offset(raw).wrapping_sub(offset(self.base)) & OFFSET_MASK;
        // Below the frame's, or with other flags, a tail becomes larger than any.
        let tail = tail(raw).wrapping_sub(tail(self.base)).rotate_right(u32::from(self.shift));
        let item = far << self.bits | tail;
        (tail >> self.bits == 0 && item >> (8 * width - 1) <= 1 && item != 0).then_some(item)
    }

    fn has_tail(self, raw: u64) -> bool {
        tail(raw).wrapping_sub(tail(self.base)).rotate_right(u32::from(self.shift)) >> self.bits == 0
    }

    /// A frame for `reach` that allows `tails` and reaches `reached` offsets, of which there are enough with
    /// [`OFFSETS_MAX`] of them too: a quarter of those that are over lies below, since most places that come are later
    /// in the log.
    fn around(reach: &Reach, tails: Tails, reached: u64) -> Self {
        let below = ((reached.min(OFFSETS_MAX) - reach.offsets()) / 4).min(reach.low);
        let before = reach.low.wrapping_sub(1 + below);
        Self { base: before << LOC_TAIL_BITS | tails.low, bits: tails.bits, shift: tails.shift }
    }

    /// The narrowest frame that has all of `reach`, and `free` eighths of its offsets beside it; and its width.
    pub fn narrowest(reach: &Reach, free: u64) -> (usize, Self) {
        let tails = reach.tails;
        (WIDTH_MIN..WIDTH_MAX)
            .map(|width| (width, reached(width, tails.bits)))
            .find(|(_, reached)| reach.offsets() <= (reached - reached / 8 * free).min(OFFSETS_MAX))
            .map_or((WIDTH_MAX, Self::WHOLE), |(width, reached)| (width, Self::around(reach, tails, reached)))
    }

    /// The frame that follows this one of `width` when it has no item for the packed place `raw`; `reach` is that of
    /// the page with it. See invariant 4.
    pub fn wider(self, width: usize, raw: u64, reach: &Reach) -> (usize, Self) {
        let (tails, has_tail) =
            (Tails { low: tail(self.base), bits: self.bits, shift: self.shift }, self.has_tail(raw));
        let tails = if has_tail { tails } else { tails.and(tail(raw)) };
        (width..WIDTH_MAX)
            .map(|wider| (wider, reached(wider, tails.bits)))
            .find(|(wider, reached)| {
                let share = if *wider == width && has_tail { MOVED_SHARE } else { 1 };
                reach.offsets() <= (reached / share).min(OFFSETS_MAX)
            })
            .map_or((WIDTH_MAX, Self::WHOLE), |(wider, reached)| (wider, Self::around(reach, tails, reached)))
    }
}
