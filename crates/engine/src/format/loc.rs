//! Where an operation's bytes stand on the device, in eight bytes.
//!
//! ```text
//! 63                      20 19             4 3    0
//! | offset / 8 (44 bits)    | span (16 bits) | flags |
//! ```
//!
//! The span says how many bytes one read from `offset` needs to get the whole item. It is a small float, rounded
//! up: 4 bits of exponent, 12 bits of mantissa, in units of 8 bytes; so it is exact up to 64 KiB and over by less
//! than 0.025 % above.
//!
//! Invariants:
//! 1. The span field is never zero, so no `Loc` is zero and `Option<Loc>` takes eight bytes.
//! 2. `span_bytes()` is never less than what was asked for. It may reach past the end of the device or segment:
//!    the reader cuts it there.
//! 3. Locs are ordered by offset.

use std::fmt;
use std::num::NonZeroU64;

/// Offsets and spans are multiples of this many bytes.
pub const LOC_UNIT_BYTES: u64 = 8;
/// Largest device a [`Loc`] can point into, in bytes (128 TiB).
pub const DEVICE_BYTES_MAX: u64 = LOC_UNIT_BYTES << OFFSET_BITS;
/// Largest span of a [`Loc`], in bytes (1 GiB less 128 KiB).
pub const SPAN_BYTES_MAX: u64 = (((2 << MANTISSA_BITS) - 1) << (EXPONENT_MAX - 1)) * LOC_UNIT_BYTES;
/// Bits of [`Loc::raw`] below the offset: span and flags.
pub const LOC_TAIL_BITS: u32 = SPAN_BITS + FLAG_BITS;
/// The lowest of them are the flags.
pub const LOC_FLAG_BITS: u32 = FLAG_BITS;
/// Largest value of the flags of a [`Loc`].
pub const LOC_FLAGS_MAX: u8 = 15;
/// [`Loc::weight`] of what is not compressed: the unit in which live bytes are counted is a byte divided by this.
pub const WEIGHT_WHOLE: u64 = 4096;

/// Weights of the classes of compressed extents; each is at most the part that is stored of a raw byte, in 4096ths:
/// what counts for more than it takes would keep its segment from ever being cleaned. The last is what the best codec
/// comes to.
const WEIGHTS: [u64; 8] = [WEIGHT_WHOLE, 3328, 2458, 1638, 1024, 512, 160, 1];

const OFFSET_BITS: u32 = 44;
const SPAN_BITS: u32 = 16;
const FLAG_BITS: u32 = 4;
const MANTISSA_BITS: u32 = 12;
const EXPONENT_MAX: u64 = 15;
const MANTISSA_MASK: u64 = (1 << MANTISSA_BITS) - 1;
const SPAN_MASK: u64 = (1 << SPAN_BITS) - 1;

/// A place on the device: offset, bytes to read, four flags. See the module for the layout.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Loc(NonZeroU64);

impl Loc {
    /// The place at device offset `offset` (bytes) whose item is read whole with `span_bytes` bytes; `flags` is
    /// kept as given. A span of 0 becomes one unit.
    ///
    /// # Panics
    /// When `offset` is no multiple of [`LOC_UNIT_BYTES`] or not below [`DEVICE_BYTES_MAX`], `span_bytes` is above
    /// [`SPAN_BYTES_MAX`], or `flags` is above [`LOC_FLAGS_MAX`].
    #[inline]
    #[must_use]
    pub fn new(offset: u64, span_bytes: u64, flags: u8) -> Self {
        assert!(offset.is_multiple_of(LOC_UNIT_BYTES) && offset < DEVICE_BYTES_MAX, "loc offset {offset}");
        assert!(span_bytes <= SPAN_BYTES_MAX, "loc span {span_bytes} is above SPAN_BYTES_MAX");
        assert!(flags <= LOC_FLAGS_MAX, "loc flags {flags} are above LOC_FLAGS_MAX");
        let span = encode_span(span_bytes.div_ceil(LOC_UNIT_BYTES).max(1));
        let raw = (offset / LOC_UNIT_BYTES) << (SPAN_BITS + FLAG_BITS) | span << FLAG_BITS | u64::from(flags);
        Self(NonZeroU64::new(raw).expect("a span is never zero"))
    }

    /// Device offset of the item, in bytes.
    #[inline]
    #[must_use]
    pub fn offset(self) -> u64 {
        (self.0.get() >> (SPAN_BITS + FLAG_BITS)) * LOC_UNIT_BYTES
    }

    /// How many bytes to read from [`Self::offset`] to get the whole item; at least what was asked for.
    #[inline]
    #[must_use]
    pub fn span_bytes(self) -> u64 {
        decode_span((self.0.get() >> FLAG_BITS) & SPAN_MASK) * LOC_UNIT_BYTES
    }

    /// The four flags.
    #[inline]
    #[must_use]
    pub fn flags(self) -> u8 {
        (self.0.get() & u64::from(LOC_FLAGS_MAX)) as u8
    }

    /// The same place with other flags.
    ///
    /// # Panics
    /// When `flags` is above [`LOC_FLAGS_MAX`].
    #[inline]
    #[must_use]
    pub fn with_flags(self, flags: u8) -> Self {
        assert!(flags <= LOC_FLAGS_MAX, "loc flags {flags} are above LOC_FLAGS_MAX");
        let raw = self.0.get() & !u64::from(LOC_FLAGS_MAX) | u64::from(flags);
        Self(NonZeroU64::new(raw).expect("a span is never zero"))
    }

    /// Flags of the place of a write of which `stored_len` of `raw_len` bytes are stored, compressed: a class in the
    /// upper three bits, never 0.
    #[must_use]
    pub fn compressed_flags(stored_len: u64, raw_len: u64) -> u8 {
        let part = stored_len * WEIGHT_WHOLE / raw_len.max(1);
        let class = (1..WEIGHTS.len()).find(|class| WEIGHTS[*class] <= part).unwrap_or(WEIGHTS.len() - 1);
        (class as u8) << 1
    }

    /// Whether an extent's place is one of a compressed write. Of other places this says nothing.
    #[inline]
    #[must_use]
    pub fn is_compressed(self) -> bool {
        self.flags() >> 1 != 0
    }

    /// How many 4096ths of a stored byte a raw byte of an extent at this place counts for. It depends on the place
    /// alone, so that an extent's parts always count for as much as the whole.
    #[inline]
    #[must_use]
    pub fn weight(self) -> u64 {
        WEIGHTS[usize::from(self.flags() >> 1)]
    }

    /// The packed form: never zero.
    #[inline]
    #[must_use]
    pub fn raw(self) -> u64 {
        self.0.get()
    }

    /// The place of a packed form; `None` when its span is zero, which no `Loc` has.
    #[inline]
    #[must_use]
    pub fn from_raw(raw: u64) -> Option<Self> {
        if (raw >> FLAG_BITS) & SPAN_MASK == 0 { None } else { NonZeroU64::new(raw).map(Self) }
    }
}

impl fmt::Debug for Loc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Loc({:#x}+{}/{:x})", self.offset(), self.span_bytes(), self.flags())
    }
}

/// Exponent 0: the mantissa itself. Exponent `e`: `(4096 + mantissa) << (e - 1)`. Rounds up.
#[inline]
fn encode_span(units: u64) -> u64 {
    if units <= MANTISSA_MASK {
        return units;
    }
    let shift = u64::from(u64::BITS - 1 - units.leading_zeros()) - u64::from(MANTISSA_BITS);
    let rounded = (units + (1 << shift) - 1) >> shift;
    // A mantissa that rounds up to 8192 carries into the exponent, which is what the next larger float is.
    ((shift + 1) << MANTISSA_BITS) + (rounded - (1 << MANTISSA_BITS))
}

#[inline]
fn decode_span(span: u64) -> u64 {
    let (exponent, mantissa) = (span >> MANTISSA_BITS, span & MANTISSA_MASK);
    if exponent == 0 { mantissa } else { (mantissa | 1 << MANTISSA_BITS) << (exponent - 1) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(offset: u64, span_bytes: u64, flags: u8) {
        let loc = Loc::new(offset, span_bytes, flags);
        assert_eq!((loc.offset(), loc.flags()), (offset, flags), "span {span_bytes}");
        let over = loc.span_bytes().checked_sub(span_bytes).expect("a span covers what was asked for");
        assert!(over < 8 || over * 4000 < span_bytes || span_bytes == 0, "span {span_bytes} over by {over}");
        assert_eq!(Loc::from_raw(loc.raw()), Some(loc));
        assert_eq!(Loc::new(offset, loc.span_bytes(), flags), loc, "a decoded span is exact");
    }

    #[test]
    fn every_loc_comes_back_and_spans_cover_what_was_asked() {
        let seed = 0x10c;
        let mut rng = fastrand::Rng::with_seed(seed);
        for step in 0..200_000 {
            let offset = (rng.u64(..) >> rng.u32(17..64)) & !7;
            let span_bytes = (rng.u64(..) >> rng.u32(34..64)).min(SPAN_BYTES_MAX);
            assert!(offset < DEVICE_BYTES_MAX, "seed {seed} step {step}");
            check(offset, span_bytes, rng.u8(..=15));
        }
        for span_bytes in [0, 1, 7, 8, 9, 32_760, 32_761, 65_528, 65_536, 65_537, SPAN_BYTES_MAX - 1, SPAN_BYTES_MAX] {
            check(0, span_bytes, 0);
            check(DEVICE_BYTES_MAX - 8, span_bytes, 15);
        }
    }

    #[test]
    fn option_of_loc_takes_eight_bytes_and_locs_sort_by_offset() {
        assert_eq!(size_of::<Option<Loc>>(), 8);
        assert_eq!(Loc::from_raw(0), None);
        assert_eq!(Loc::from_raw(5 << 20 | 3), None, "no span");
        assert!(Loc::new(8, 1 << 20, 15) < Loc::new(16, 8, 0));
        let loc = Loc::new(4096, 100, 3);
        assert_eq!((loc.with_flags(9).flags(), loc.with_flags(9).offset(), loc.with_flags(3)), (9, 4096, loc));
    }

    #[test]
    #[should_panic(expected = "SPAN_BYTES_MAX")]
    fn a_span_above_the_limit_is_refused() {
        let _ = Loc::new(0, SPAN_BYTES_MAX + 1, 0);
    }
}
