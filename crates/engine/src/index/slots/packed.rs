//! The places of a dense page, packed: 512 items of 2 to 8 bytes each, as few as hold the page's places.
//!
//! get: item → frame → place   set: place → item, or a frame that has one and the page packed anew
//!
//! Invariants:
//! 1. An item of zero is an empty slot.
//! 2. Items that a clone shares do not change: what changes them has its own first.
//! 3. A page gets narrower by [`Packed::set_first`] only, or by being made anew: see the frame for why no order of
//!    changes packs a page again and again.
//!
//! Source: Goldstein, Ramakrishnan, Shaft, Compressing Relations and Indexes (1998): frame of reference.

use triomphe::Arc;

use super::frame::{Frame, Reach, WIDTH_MIN};
use crate::format::PAGE_SLOTS;

/// Whether a page may get narrower is asked of one place in so many before it is asked of all.
const SAMPLE_STEP: usize = 32;

/// Packed places, zero for an empty slot.
pub(super) type Raws = [u64; PAGE_SLOTS];

type Items<const W: usize> = [[u8; W]; PAGE_SLOTS];

/// The items by their width, and the parts of their frame. All in 24 bytes, one of which says which width it is.
#[derive(Clone)]
pub(super) enum Packed {
    W2 { bits: u8, shift: u8, base: u64, items: Arc<Items<2>> },
    W3 { bits: u8, shift: u8, base: u64, items: Arc<Items<3>> },
    W4 { bits: u8, shift: u8, base: u64, items: Arc<Items<4>> },
    W5 { bits: u8, shift: u8, base: u64, items: Arc<Items<5>> },
    W6 { bits: u8, shift: u8, base: u64, items: Arc<Items<6>> },
    W7 { bits: u8, shift: u8, base: u64, items: Arc<Items<7>> },
    W8 { bits: u8, shift: u8, base: u64, items: Arc<Items<8>> },
}

/// Runs an expression on the items, whatever their width.
macro_rules! with_items {
    ($packed:expr, |$items:ident| $run:expr) => {
        with_items!($packed, |$items| $run, W2 W3 W4 W5 W6 W7 W8)
    };
    ($packed:expr, |$items:ident| $run:expr, $($width:ident)*) => {
        match $packed {
            $(Packed::$width { items: $items, .. } => $run,)*
        }
    };
}

#[inline]
fn number<const W: usize>(item: &[u8; W]) -> u64 {
    let mut bytes = [0; 8];
    bytes[..W].copy_from_slice(item);
    u64::from_le_bytes(bytes)
}

#[inline]
fn put<const W: usize>(at: &mut [u8; W], item: u64) {
    at.copy_from_slice(&item.to_le_bytes()[..W]);
}

/// The place of an item, zero for none.
#[inline]
fn raw(frame: Frame, item: u64) -> u64 {
    if item == 0 { 0 } else { frame.raw(item) }
}

fn unpacked<const W: usize>(frame: Frame, items: &Items<W>) -> Raws {
    let mut raws = [0; PAGE_SLOTS];
    raws.iter_mut().zip(items).for_each(|(at, item)| *at = raw(frame, number(item)));
    raws
}

fn packed<const W: usize>(frame: Frame, raws: &Raws) -> Arc<Items<W>> {
    let mut items = [[0; W]; PAGE_SLOTS];
    for (at, raw) in items.iter_mut().zip(raws).filter(|(_, raw)| **raw != 0) {
        put(at, frame.item(*raw, W).expect("the frame was made for what is on the page"));
    }
    Arc::new(items)
}

fn reach(raws: &Raws) -> Option<Reach> {
    Reach::of(raws.iter().copied().filter(|raw| *raw != 0))
}

impl Packed {
    /// These places, in the narrowest items that hold them.
    pub fn of(raws: &Raws) -> Self {
        let (width, frame) = reach(raws).map_or((WIDTH_MIN, Frame::WHOLE), |reach| Frame::narrowest(&reach, 0));
        Self::with(width, frame, raws)
    }

    fn with(width: usize, Frame { base, bits, shift }: Frame, raws: &Raws) -> Self {
        let frame = Frame { base, bits, shift };
        match width {
            2 => Self::W2 { bits, shift, base, items: packed(frame, raws) },
            3 => Self::W3 { bits, shift, base, items: packed(frame, raws) },
            4 => Self::W4 { bits, shift, base, items: packed(frame, raws) },
            5 => Self::W5 { bits, shift, base, items: packed(frame, raws) },
            6 => Self::W6 { bits, shift, base, items: packed(frame, raws) },
            7 => Self::W7 { bits, shift, base, items: packed(frame, raws) },
            _ => Self::W8 { bits, shift, base, items: packed(frame, raws) },
        }
    }

    /// Bytes of an item.
    #[inline]
    pub fn width(&self) -> usize {
        with_items!(self, |items| items[0].len())
    }

    #[inline]
    fn frame(&self) -> Frame {
        let (Self::W2 { bits, shift, base, .. }
        | Self::W3 { bits, shift, base, .. }
        | Self::W4 { bits, shift, base, .. }
        | Self::W5 { bits, shift, base, .. }
        | Self::W6 { bits, shift, base, .. }
        | Self::W7 { bits, shift, base, .. }
        | Self::W8 { bits, shift, base, .. }) = self;
        Frame { base: *base, bits: *bits, shift: *shift }
    }

    /// What the items take of the heap, in bytes, with the count of those that share them.
    #[inline]
    pub fn heap_bytes(&self) -> usize {
        self.width() * PAGE_SLOTS + size_of::<usize>()
    }

    /// Zero for an empty slot.
    #[inline]
    pub fn get(&self, place: usize) -> u64 {
        raw(self.frame(), with_items!(self, |items| number(&items[place])))
    }

    /// All places.
    pub fn raws(&self) -> Raws {
        let frame = self.frame();
        with_items!(self, |items| unpacked(frame, items))
    }

    /// Sets a slot where there is an item for the place and nothing shares the items; the old place comes back, zero
    /// for an empty slot. Else `None`, and nothing has changed.
    #[inline]
    pub fn replace(&mut self, place: usize, new: u64) -> Option<u64> {
        let frame = self.frame();
        let item = frame.item(new, self.width())?;
        let old = with_items!(self, |items| {
            let at = &mut Arc::get_mut(items)?[place];
            let old = number(at);
            put(at, item);
            old
        });
        Some(raw(frame, old))
    }

    /// Sets a slot to a packed place; the old one comes back, zero for an empty slot.
    pub fn set(&mut self, place: usize, new: u64) -> u64 {
        if let Some(old) = self.replace(place, new) {
            return old;
        }
        let (frame, width) = (self.frame(), self.width());
        if frame.item(new, width).is_some() {
            with_items!(self, |items| {
                Arc::make_mut(items);
            });
            return self.replace(place, new).expect("there is an item for it, and nothing shares the items now");
        }
        let mut raws = self.raws();
        let old = std::mem::replace(&mut raws[place], new);
        let (width, frame) = reach(&raws).map_or((width, frame), |reach| frame.wider(width, new, &reach));
        *self = Self::with(width, frame, &raws);
        old
    }

    /// [`Self::set`], and a look whether fewer bytes now hold the page: for the first change after a checkpoint. A
    /// width is left only when an eighth of what the narrower one reaches would be free, so that most pages which are
    /// about to outgrow it stay.
    pub fn set_first(&mut self, place: usize, new: u64) -> u64 {
        let width = self.width();
        if width == WIDTH_MIN {
            return self.set(place, new);
        }
        // A few of the places say for most pages that they need what they have.
        let some = (0..PAGE_SLOTS).step_by(SAMPLE_STEP).filter(|at| *at != place).map(|at| self.get(at));
        let some = Reach::of(some.chain([new]).filter(|raw| *raw != 0));
        if some.is_none_or(|reach| Frame::narrowest(&reach, 1).0 >= width) {
            return self.set(place, new);
        }
        let mut raws = self.raws();
        let old = std::mem::replace(&mut raws[place], new);
        match reach(&raws).map(|reach| Frame::narrowest(&reach, 1)) {
            Some((narrower, frame)) if narrower < width => {
                *self = Self::with(narrower, frame, &raws);
                old
            }
            _ => self.set(place, new),
        }
    }

    /// Empties a slot and says what it held.
    pub fn take(&mut self, place: usize) -> u64 {
        let old = self.get(place);
        if old != 0 {
            with_items!(self, |items| put(&mut Arc::make_mut(items)[place], 0));
        }
        old
    }

    /// The first filled slot at `from` or above.
    #[inline]
    pub fn first_from(&self, from: usize) -> Option<(usize, u64)> {
        let (after, item) =
            with_items!(self, |items| { items[from..].iter().map(number).enumerate().find(|(_, item)| *item != 0)? });
        Some((from + after, raw(self.frame(), item)))
    }

    /// The last filled slot at `to` or below.
    #[inline]
    pub fn last_to(&self, to: usize) -> Option<(usize, u64)> {
        let (at, item) =
            with_items!(self, |items| { items[..=to].iter().map(number).enumerate().rfind(|(_, item)| *item != 0)? });
        Some((at, raw(self.frame(), item)))
    }
}

#[cfg(test)]
mod tests;
