//! Striping: which bytes of which data object hold which bytes of an image.
//!
//! image offset → stripe unit → object set, object in it, row in that → (object number, offset in the object)
//!
//! The image is cut into stripe units; they go round over `stripe_count` objects until these are full, then the next
//! set of objects follows. With a count of 1 an object holds a plain run of the image.
//!
//! Invariants:
//! 1. Inside one object the image offset grows with the object offset; so what lies below an image size is a prefix of
//!    the object.
//! 2. A layout passed [`Layout::check`] before anything is computed with it.
//! Source: file layouts of Ceph (`doc/dev/file-striping`).

use std::collections::BTreeMap;

use crate::{Error, Result};

/// Smallest data object, in bytes (64 KiB).
pub const OBJECT_BYTES_MIN: u64 = 64 << 10;
/// Largest data object, in bytes (16 MiB).
pub const OBJECT_BYTES_MAX: u64 = 16 << 20;
/// Data object of an image that says nothing else, in bytes (4 MiB).
pub const OBJECT_BYTES_DEFAULT: u64 = 4 << 20;
/// Smallest stripe unit, in bytes (4 KiB).
pub const STRIPE_UNIT_BYTES_MIN: u64 = 4 << 10;
/// Most objects that one stripe goes over.
pub const STRIPE_COUNT_MAX: u64 = 64;
/// Largest image, in bytes (16 PiB).
pub const IMAGE_BYTES_MAX: u64 = 1 << 54;

/// How an image is cut into objects. Fixed for its life; a clone has its parent's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Bytes of a data object: a power of two from [`OBJECT_BYTES_MIN`] to [`OBJECT_BYTES_MAX`]; 4 MiB by default.
    pub object_bytes: u64,
    /// Bytes of a stripe unit: a power of two from [`STRIPE_UNIT_BYTES_MIN`] to `object_bytes`, which is the default.
    pub stripe_unit: u64,
    /// Objects that a stripe goes over, 1 to [`STRIPE_COUNT_MAX`]; 1 by default.
    pub stripe_count: u64,
}

impl Default for Layout {
    fn default() -> Self {
        Self { object_bytes: OBJECT_BYTES_DEFAULT, stripe_unit: OBJECT_BYTES_DEFAULT, stripe_count: 1 }
    }
}

/// A run of bytes that is one run in the image and one run in an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) object: u64,
    pub(crate) object_offset: u64,
    pub(crate) image_offset: u64,
    pub(crate) len: u64,
}

impl Layout {
    /// Checks the bounds that the fields name.
    ///
    /// # Errors
    /// [`Error::Invalid`] names the field and its limit.
    pub fn check(&self) -> Result<()> {
        let invalid = |what, why| Err(Error::Invalid { what, why });
        let Self { object_bytes, stripe_unit, stripe_count } = *self;
        if !object_bytes.is_power_of_two() || !(OBJECT_BYTES_MIN..=OBJECT_BYTES_MAX).contains(&object_bytes) {
            let why = format!("{object_bytes} is no power of two from {OBJECT_BYTES_MIN} to {OBJECT_BYTES_MAX}");
            return invalid("object size", why);
        }
        if !stripe_unit.is_power_of_two() || !(STRIPE_UNIT_BYTES_MIN..=object_bytes).contains(&stripe_unit) {
            let why = format!("{stripe_unit} is no power of two from {STRIPE_UNIT_BYTES_MIN} to {object_bytes}");
            return invalid("stripe unit", why);
        }
        if !(1..=STRIPE_COUNT_MAX).contains(&stripe_count) {
            return invalid("stripe count", format!("{stripe_count} is not from 1 to {STRIPE_COUNT_MAX}"));
        }
        Ok(())
    }

    /// Bytes of the image that one set of objects holds.
    pub(crate) fn set_bytes(&self) -> u64 {
        self.object_bytes * self.stripe_count
    }

    /// The runs of `len` bytes from `offset`, in image order. Runs that go on in the same object are one.
    pub(crate) fn pieces(&self, offset: u64, len: u64) -> Vec<Piece> {
        let end = offset + len;
        let mut pieces: Vec<Piece> = Vec::new();
        let mut at = offset;
        while at < end {
            let (unit, inside) = (at / self.stripe_unit, at % self.stripe_unit);
            let (row, position) = (unit / self.stripe_count, unit % self.stripe_count);
            let rows = self.object_bytes / self.stripe_unit;
            let object = (row / rows) * self.stripe_count + position;
            let object_offset = (row % rows) * self.stripe_unit + inside;
            let len = (self.stripe_unit - inside).min(end - at);
            match pieces.last_mut() {
                Some(last) if last.object == object && last.object_offset + last.len == object_offset => {
                    last.len += len
                }
                _ => pieces.push(Piece { object, object_offset, image_offset: at, len }),
            }
            at += len;
        }
        pieces
    }

    /// The runs of `len` bytes from `offset` by object, neighbouring runs of an object joined: offset in it and length.
    pub(crate) fn by_object(&self, offset: u64, len: u64) -> BTreeMap<u64, Vec<(u64, u64)>> {
        let mut objects: BTreeMap<u64, Vec<(u64, u64)>> = BTreeMap::new();
        for piece in self.pieces(offset, len) {
            let runs = objects.entry(piece.object).or_default();
            match runs.last_mut() {
                Some((start, len)) if *start + *len == piece.object_offset => *len += piece.len,
                _ => runs.push((piece.object_offset, piece.len)),
            }
        }
        objects
    }

    /// The runs of the image that `len` bytes of `object` from `object_offset` are.
    pub(crate) fn image_runs(&self, object: u64, object_offset: u64, len: u64) -> Vec<(u64, u64)> {
        let (set, position) = (object / self.stripe_count, object % self.stripe_count);
        let rows = self.object_bytes / self.stripe_unit;
        let mut runs: Vec<(u64, u64)> = Vec::new();
        let (mut at, end) = (object_offset, object_offset + len);
        while at < end {
            let row = set * rows + at / self.stripe_unit;
            let offset = (row * self.stripe_count + position) * self.stripe_unit + at % self.stripe_unit;
            let len = (self.stripe_unit - at % self.stripe_unit).min(end - at);
            match runs.last_mut() {
                Some((start, run)) if *start + *run == offset => *run += len,
                _ => runs.push((offset, len)),
            }
            at += len;
        }
        runs
    }

    /// How many first bytes of `object` lie below `size` of the image.
    pub(crate) fn prefix(&self, object: u64, size: u64) -> u64 {
        let (set, position) = (object / self.stripe_count, object % self.stripe_count);
        let start = u128::from(set) * u128::from(self.set_bytes());
        let inside = u128::from(size).saturating_sub(start).min(u128::from(self.set_bytes())) as u64;
        let stripe = self.stripe_unit * self.stripe_count;
        let rest = (inside % stripe).saturating_sub(position * self.stripe_unit).min(self.stripe_unit);
        inside / stripe * self.stripe_unit + rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYOUTS: [(u64, u64); 4] = [(64 << 10, 1), (16 << 10, 1), (4 << 10, 3), (64 << 10, 4)];

    #[test]
    fn every_byte_has_one_place_and_the_way_back_finds_it() {
        for (stripe_unit, stripe_count) in LAYOUTS {
            let layout = Layout { object_bytes: 64 << 10, stripe_unit, stripe_count };
            layout.check().unwrap();
            let mut seen = std::collections::BTreeSet::new();
            for (offset, len) in [(0, 700_000), (700_000, 100_001)] {
                let mut at = offset;
                for piece in layout.pieces(offset, len) {
                    assert_eq!(piece.image_offset, at, "{layout:?}");
                    at += piece.len;
                    assert!(piece.object_offset + piece.len <= layout.object_bytes);
                    assert!(seen.insert((piece.object, piece.object_offset)), "{layout:?}: two bytes in one place");
                    let back = layout.image_runs(piece.object, piece.object_offset, piece.len);
                    assert_eq!(back, [(piece.image_offset, piece.len)], "{layout:?}");
                }
                assert_eq!(at, offset + len);
            }
        }
    }

    #[test]
    fn what_lies_below_a_size_is_a_prefix_of_each_object() {
        for (stripe_unit, stripe_count) in LAYOUTS {
            let layout = Layout { object_bytes: 64 << 10, stripe_unit, stripe_count };
            for size in [0, 1, 4_095, 4_096, 65_537, 200_000, 262_144, 262_145, 777_777] {
                let mut expected: BTreeMap<u64, u64> = BTreeMap::new();
                for piece in layout.pieces(0, size) {
                    *expected.entry(piece.object).or_default() += piece.len;
                }
                for object in 0..32 {
                    let want = expected.get(&object).copied().unwrap_or(0);
                    assert_eq!(layout.prefix(object, size), want, "{layout:?}, object {object}, size {size}");
                }
            }
        }
    }

    #[test]
    fn layouts_out_of_bounds_are_refused_by_name() {
        for (layout, named) in [
            (Layout { object_bytes: 3 << 20, ..Layout::default() }, "object size"),
            (Layout { object_bytes: 32 << 20, ..Layout::default() }, "object size"),
            (Layout { stripe_unit: 8 << 20, ..Layout::default() }, "stripe unit"),
            (Layout { stripe_unit: 0, ..Layout::default() }, "stripe unit"),
            (Layout { stripe_count: 0, ..Layout::default() }, "stripe count"),
            (Layout { stripe_count: 65, ..Layout::default() }, "stripe count"),
        ] {
            let error = layout.check().unwrap_err().to_string();
            assert!(error.contains(named), "{error}");
        }
    }
}
