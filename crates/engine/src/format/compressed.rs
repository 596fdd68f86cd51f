//! Compressed payloads: units of raw bytes, each compressed by itself, behind a table of their lengths.
//!
//! header (12 bytes) → length of each unit (4 bytes) → units
//!
//! A unit is [`Compressed::unit_bytes`] of raw bytes, the last one what is left. So a small read of a large value finds
//! its unit by the table and decompresses that unit alone. The operation's checksums cover what is stored and are
//! verified before anything here is looked at; what they cannot rule out (a program that wrote nonsense) is told here.
//!
//! Invariants:
//! 1. A decoded table accounts for every byte of the payload, and each unit is stored in no more bytes than it has.
//! 2. Nothing larger than [`RAW_BYTES_MAX`] is allocated, and nothing before the table was found to hold.
//! Format: docs/format.md#compressed-payloads

use std::ops::Range;

pub use esker_compress::Codec;

use super::{Kind, Loc, OP_FLAG_COMPRESSED, OpHeader, read_u32, write_u32};

/// Bytes of the header.
pub const COMPRESSED_HEADER_BYTES: usize = 12;
/// Largest raw length of a payload that is compressed, in bytes (16 MiB). A larger one stands as it is.
pub const RAW_BYTES_MAX: usize = 16 << 20;
/// Smallest and largest unit, in bytes; a power of two.
pub const UNIT_BYTES_MIN: u32 = 4 << 10;
/// See [`UNIT_BYTES_MIN`].
pub const UNIT_BYTES_MAX: u32 = 1 << 20;

/// In the table: the unit stands there as it is.
const STANDS_RAW: u32 = 1 << 31;

pub(super) const LAYOUT: &[(&str, usize, usize)] =
    &[("codec", 0, 1), ("reserved", 1, 3), ("unit_bytes", 4, 4), ("raw_len", 8, 4)];

/// A compressed payload's header and table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compressed {
    /// How units are compressed that do not stand raw.
    pub codec: Codec,
    /// Raw bytes of a unit.
    pub unit_bytes: u32,
    /// Raw bytes in all.
    pub raw_len: u32,
    /// Where in the payload each unit starts, and the end of the last; whether it stands raw.
    units: Vec<(u32, bool)>,
}

impl Compressed {
    /// Bytes of header and table of the payload that starts with `bytes`; `None` if it is none.
    pub fn head_bytes(bytes: &[u8]) -> Option<usize> {
        let bytes = bytes.get(..COMPRESSED_HEADER_BYTES)?;
        let (unit_bytes, raw_len) = (read_u32(bytes, 4), read_u32(bytes, 8));
        let holds = Codec::from_stored(bytes[0]).is_some()
            && bytes[1..4] == [0; 3]
            && unit_bytes.is_power_of_two()
            && (UNIT_BYTES_MIN..=UNIT_BYTES_MAX).contains(&unit_bytes)
            && (1..=RAW_BYTES_MAX as u32).contains(&raw_len);
        holds.then(|| COMPRESSED_HEADER_BYTES + raw_len.div_ceil(unit_bytes) as usize * 4)
    }

    /// Reads header and table of a payload of `payload_len` bytes, given at least those.
    pub fn decode(bytes: &[u8], payload_len: usize) -> Option<Self> {
        let head_bytes = Self::head_bytes(bytes)?;
        let (head, table) = bytes.get(..head_bytes)?.split_at(COMPRESSED_HEADER_BYTES);
        let codec = Codec::from_stored(head[0])?;
        let (unit_bytes, raw_len) = (read_u32(head, 4), read_u32(head, 8));
        let mut at = u32::try_from(head_bytes).ok()?;
        let mut units = Vec::with_capacity(table.len() / 4 + 1);
        for (number, len) in table.chunks_exact(4).enumerate() {
            let word = read_u32(len, 0);
            let (len, raw) = (word & !STANDS_RAW, word & STANDS_RAW != 0);
            let unit_len = unit_bytes.min(raw_len - number as u32 * unit_bytes);
            if len == 0 || len > unit_len || (raw && len != unit_len) {
                return None;
            }
            units.push((at, raw));
            at = at.checked_add(len)?;
        }
        units.push((at, false));
        (at as usize == payload_len).then_some(Self { codec, unit_bytes, raw_len, units })
    }

    /// The units that hold these raw bytes, which are some and within the value.
    pub fn units_of(&self, range: Range<u32>) -> Range<u32> {
        range.start / self.unit_bytes..range.end.div_ceil(self.unit_bytes)
    }

    /// The raw bytes of these units.
    pub fn raw_range(&self, units: Range<u32>) -> Range<u32> {
        units.start * self.unit_bytes..(units.end.saturating_mul(self.unit_bytes)).min(self.raw_len)
    }

    /// Where in the payload these units stand.
    pub fn stored_range(&self, units: Range<u32>) -> Range<u32> {
        self.units[units.start as usize].0..self.units[units.end as usize].0
    }

    /// Number of units.
    pub fn unit_count(&self) -> u32 {
        self.units.len() as u32 - 1
    }

    /// Fills `raw`, as long as the unit is, from the unit's stored bytes; false if they do not hold it.
    #[must_use]
    pub fn unpack_unit(&self, unit: u32, stored: &[u8], raw: &mut [u8]) -> bool {
        if !self.units[unit as usize].1 {
            return esker_compress::decompress(self.codec, stored, raw);
        }
        let fits = stored.len() == raw.len();
        if fits {
            raw.copy_from_slice(stored);
        }
        fits
    }

    /// The raw bytes of some units, whose stored bytes are `stored`.
    pub fn unpack(&self, units: Range<u32>, stored: &[u8]) -> Option<Vec<u8>> {
        let (raw_range, base) = (self.raw_range(units.clone()), self.stored_range(units.clone()).start);
        let mut raw = vec![0; raw_range.len()];
        for (unit, raw) in units.zip(raw.chunks_mut(self.unit_bytes as usize)) {
            let range = self.stored_range(unit..unit + 1);
            let stored = stored.get((range.start - base) as usize..(range.end - base) as usize)?;
            if !self.unpack_unit(unit, stored, raw) {
                return None;
            }
        }
        Some(raw)
    }

    /// A payload of some of the units of `payload`, as they stand there.
    pub fn cut(&self, units: Range<u32>, payload: &[u8]) -> Vec<u8> {
        let stored = self.stored_range(units.clone());
        let stored = &payload[stored.start as usize..stored.end as usize];
        let mut cut = Vec::with_capacity(COMPRESSED_HEADER_BYTES + units.len() * 4 + stored.len());
        push_header(&mut cut, self.codec, self.unit_bytes, self.raw_range(units.clone()).len() as u32);
        for unit in units {
            let (len, raw) = (self.stored_range(unit..unit + 1).len() as u32, self.units[unit as usize].1);
            cut.extend_from_slice(&(len | if raw { STANDS_RAW } else { 0 }).to_le_bytes());
        }
        cut.extend_from_slice(stored);
        cut
    }
}

fn push_header(out: &mut Vec<u8>, codec: Codec, unit_bytes: u32, raw_len: u32) {
    out.extend_from_slice(&[codec as u8, 0, 0, 0]);
    out.extend_from_slice(&unit_bytes.to_le_bytes());
    out.extend_from_slice(&raw_len.to_le_bytes());
}

/// Compresses a payload in units of `unit_bytes`; `None` if that takes more than `bytes_max`, table included, or the
/// payload is empty or above [`RAW_BYTES_MAX`].
///
/// # Panics
/// When `unit_bytes` is no power of two or out of its range.
pub fn compress_payload(codec: Codec, unit_bytes: u32, raw: &[u8], bytes_max: usize) -> Option<Vec<u8>> {
    assert!(unit_bytes.is_power_of_two() && (UNIT_BYTES_MIN..=UNIT_BYTES_MAX).contains(&unit_bytes), "{unit_bytes}");
    if raw.is_empty() || raw.len() > RAW_BYTES_MAX {
        return None;
    }
    let units = raw.len().div_ceil(unit_bytes as usize);
    let head = COMPRESSED_HEADER_BYTES + units * 4;
    let mut out = Vec::with_capacity(bytes_max.min(raw.len() + head));
    push_header(&mut out, codec, unit_bytes, raw.len() as u32);
    out.resize(head, 0);
    for (number, unit) in raw.chunks(unit_bytes as usize).enumerate() {
        let len = match esker_compress::compress(codec, unit, unit.len(), &mut out) {
            Some(len) => len as u32,
            None => {
                out.extend_from_slice(unit);
                unit.len() as u32 | STANDS_RAW
            }
        };
        if out.len() > bytes_max {
            return None;
        }
        write_u32(&mut out, COMPRESSED_HEADER_BYTES + number * 4, len);
    }
    Some(out)
}

/// How many raw bytes the payload of an operation stands for; `None` if it says nonsense.
pub fn raw_len(header: &OpHeader, payload: &[u8]) -> Option<u32> {
    if header.flags & OP_FLAG_COMPRESSED == 0 {
        return u32::try_from(payload.len()).ok();
    }
    let may_be = matches!(header.kind, Kind::Write | Kind::OmapSet | Kind::SlotSet);
    let decoded = Compressed::decode(payload, payload.len()).filter(|_| may_be)?;
    Some(decoded.raw_len)
}

/// The place of an operation at device offset `offset` that takes `len` bytes there: of a compressed write its flags
/// say about how much of each raw byte is stored.
pub fn place_of(header: &OpHeader, payload: &[u8], offset: u64, len: u64) -> Loc {
    let flags = match raw_len(header, payload) {
        Some(raw) if header.kind == Kind::Write && header.flags & OP_FLAG_COMPRESSED != 0 => {
            Loc::compressed_flags(payload.len() as u64, raw.into())
        }
        _ => 0,
    };
    Loc::new(offset, len, flags)
}

/// Decompresses a whole payload; `None` if it says nonsense.
pub fn decompress_payload(payload: &[u8]) -> Option<Vec<u8>> {
    let decoded = Compressed::decode(payload, payload.len())?;
    let units = 0..decoded.unit_count();
    let stored = decoded.stored_range(units.clone()).start as usize;
    decoded.unpack(units, &payload[stored..])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mixed(rng: &mut fastrand::Rng, len: usize) -> Vec<u8> {
        let mut raw = Vec::with_capacity(len);
        while raw.len() < len {
            match rng.u8(..3) {
                0 => raw.extend(std::iter::repeat_with(|| rng.u8(..)).take(1_000)),
                1 => raw.extend(std::iter::repeat_n(7, 3_000)),
                _ => raw.extend(b"{\"name\":\"esker\",\"bytes\":17}".repeat(100)),
            }
        }
        raw.truncate(len);
        raw
    }

    #[test]
    fn any_part_of_a_payload_comes_back() {
        for seed in 0..300 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let len = rng.usize(1..200_000);
            let raw = mixed(&mut rng, len);
            let codec = if rng.bool() { Codec::Lz4 } else { Codec::Zstd };
            let unit_bytes = UNIT_BYTES_MIN << rng.u8(..6);
            let payload = compress_payload(codec, unit_bytes, &raw, usize::MAX).unwrap();
            assert_eq!(decompress_payload(&payload).unwrap(), raw, "seed {seed}");
            let decoded = Compressed::decode(&payload, payload.len()).unwrap();
            let start = rng.u32(..raw.len() as u32);
            let end = rng.u32(start + 1..=raw.len() as u32);
            let units = decoded.units_of(start..end);
            let range = decoded.raw_range(units.clone());
            assert!(range.start <= start && end <= range.end, "seed {seed}");
            let stored = decoded.stored_range(units.clone());
            let part = decoded.unpack(units.clone(), &payload[stored.start as usize..stored.end as usize]).unwrap();
            assert_eq!(part, raw[range.start as usize..range.end as usize], "seed {seed}");
            let cut = decoded.cut(units, &payload);
            assert_eq!(decompress_payload(&cut).unwrap(), part, "seed {seed}: units moved as they stand");
        }
    }

    #[test]
    fn random_bytes_are_refused_below_their_length() {
        let mut rng = fastrand::Rng::with_seed(3);
        let raw: Vec<u8> = std::iter::repeat_with(|| rng.u8(..)).take(100_000).collect();
        assert_eq!(compress_payload(Codec::Lz4, 64 << 10, &raw, 87_500), None);
        let payload = compress_payload(Codec::Zstd, 64 << 10, &raw, usize::MAX).unwrap();
        assert_eq!(payload.len(), raw.len() + 12 + 8, "both units stand raw");
        assert_eq!(decompress_payload(&payload).unwrap(), raw);
    }

    #[test]
    fn nonsense_is_told_and_allocates_no_more_than_the_limit() {
        let payload = compress_payload(Codec::Lz4, 4 << 10, &[5; 20_000], usize::MAX).unwrap();
        let check = |at: usize, word: u32| {
            let mut bad = payload.clone();
            bad[at..at + 4].copy_from_slice(&word.to_le_bytes());
            assert_eq!(decompress_payload(&bad), None, "{word:#x} at {at}");
        };
        check(0, 0);
        check(0, 3);
        check(0, 0x101);
        for unit_bytes in [0, 1, 4097, 2 << 10, 2 << 20, u32::MAX] {
            check(4, unit_bytes);
        }
        for raw_len in [0, 19_999, 20_481, RAW_BYTES_MAX as u32 + 1, u32::MAX] {
            check(8, raw_len);
        }
        for len in [0, 1, 4097, STANDS_RAW, STANDS_RAW | 17, u32::MAX] {
            check(12, len);
        }
        for end in 0..payload.len() {
            assert_eq!(decompress_payload(&payload[..end]), None, "cut off at {end}");
        }
        assert_eq!(decompress_payload(&[&payload[..], &[0]].concat()), None, "one byte that no unit has");
    }

    #[test]
    fn a_flag_on_a_kind_that_has_no_values_is_nonsense() {
        let payload = compress_payload(Codec::Lz4, 4 << 10, &[5; 20_000], usize::MAX).unwrap();
        let header = |kind, flags| OpHeader {
            kind,
            flags,
            key_len: 0,
            payload_len: payload.len() as u32,
            object: 1,
            argument: 0,
            payload_crc: 0,
        };
        assert_eq!(raw_len(&header(Kind::Write, OP_FLAG_COMPRESSED), &payload), Some(20_000));
        assert_eq!(raw_len(&header(Kind::XattrSet, OP_FLAG_COMPRESSED), &payload), None);
        assert_eq!(raw_len(&header(Kind::XattrSet, 0), &payload), Some(payload.len() as u32));
    }
}
