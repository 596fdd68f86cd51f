//! Record headers. A record is one transaction: this header, then its operations.
//!
//! There are two forms, which say the same: the short one of what nearly every transaction is, few operations and not
//! many bytes, and the long one of all else, and of what ends a group.
//!
//! Invariants:
//! 1. A record lies inside one segment and starts at a multiple of [`RECORD_ALIGN`].
//! 2. `group` counts the syncs: a record of group g is only written after group g - 1 was synced, so a valid
//!    record of a later group proves that an earlier one was durable.
//! 3. The last record of a synced group has no operations and the flag [`RECORD_FLAG_GROUP_END`].
//! 4. Decoding tells the form by the first byte; in memory [`RECORD_FLAG_SHORT`] says which it is.
//! Format: docs/format.md#record-header

use super::{NUMBER_MAX, crc, place_seed, read_u32, read_u64, write_u32, write_u64};

/// Bytes of a long record header.
pub const RECORD_HEADER_BYTES: usize = 40;
/// Bytes of a short one: no record takes fewer.
pub const SHORT_RECORD_HEADER_BYTES: usize = 24;
/// Records and operations start at multiples of this.
pub const RECORD_ALIGN: u64 = 8;
/// The writer asked only for `Durability::Applied`.
pub const RECORD_FLAG_APPLIED: u32 = 1;
/// The record ends a group; it has no operations.
pub const RECORD_FLAG_GROUP_END: u32 = 2;
/// The header is short. Stands nowhere on the device.
pub const RECORD_FLAG_SHORT: u32 = 1 << 31;
/// Sequence numbers and groups from here on do not stand in short headers. At a million transactions per second they
/// are reached after nine years.
pub const SHORT_NUMBER_END: u64 = 1 << 48;

const MAGIC: u32 = u32::from_le_bytes(*b"ESKR");
const SHORT_MAGIC: u8 = 0xE5;
/// Of the byte that counts the operations of a short record: the writer asked only for applied.
const SHORT_APPLIED: u8 = 1 << 7;
/// More operations need a long header.
const SHORT_OPS_MAX: usize = 127;
/// So does a longer record, in bytes.
const SHORT_BYTES_MAX: u64 = u16::MAX as u64 * RECORD_ALIGN;

pub(super) const LAYOUT: &[(&str, usize, usize)] = &[
    ("magic", 0, 4),
    ("len", 4, 4),
    ("seq", 8, 8),
    ("group", 16, 8),
    ("generation", 24, 4),
    ("op_count", 28, 4),
    ("flags", 32, 4),
    ("crc", 36, 4),
];

pub(super) const SHORT_LAYOUT: &[(&str, usize, usize)] = &[
    ("magic", 0, 1),
    ("operations", 1, 1),
    ("units", 2, 2),
    ("generation", 4, 4),
    ("seq", 8, 6),
    ("group", 14, 6),
    ("crc", 20, 4),
];

/// The start of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHeader {
    /// Bytes of the record with this header, a multiple of [`RECORD_ALIGN`].
    pub len: u32,
    /// Its place in commit order. A group end repeats the last record's.
    pub seq: u64,
    /// The group that it is part of.
    pub group: u64,
    /// Generation of the segment that it stands in.
    pub generation: u32,
    /// Number of operations that follow.
    pub op_count: u32,
    /// `RECORD_FLAG_*`.
    pub flags: u32,
}

/// Bytes of a record of so many operations, which take `operations` bytes: with a short header if it `may_be_short` and
/// fits.
pub fn record_bytes(may_be_short: bool, op_count: usize, operations: u64) -> u64 {
    let short = operations + SHORT_RECORD_HEADER_BYTES as u64;
    if may_be_short && fits_short(op_count, short) { short } else { operations + RECORD_HEADER_BYTES as u64 }
}

/// `RECORD_FLAG_SHORT` for a record of this length, which [`record_bytes`] gave, else 0.
pub fn short_flag(may_be_short: bool, op_count: usize, len: u64) -> u32 {
    if may_be_short && fits_short(op_count, len) { RECORD_FLAG_SHORT } else { 0 }
}

/// What is too long with a short header is so with a long one, so that the length alone tells which it has.
fn fits_short(op_count: usize, len: u64) -> bool {
    op_count <= SHORT_OPS_MAX && len <= SHORT_BYTES_MAX
}

impl RecordHeader {
    /// Writes the header to the start of `bytes`, which stands at device offset `offset`.
    ///
    /// # Panics
    /// In debug builds, when a short one does not hold what it is to.
    pub fn encode(&self, bytes: &mut [u8], store_seed: u32, offset: u64) {
        if self.is_short() {
            return self.encode_short(bytes, store_seed, offset);
        }
        write_u32(bytes, 0, MAGIC);
        write_u32(bytes, 4, self.len);
        write_u64(bytes, 8, self.seq);
        write_u64(bytes, 16, self.group);
        write_u32(bytes, 24, self.generation);
        write_u32(bytes, 28, self.op_count);
        write_u32(bytes, 32, self.flags);
        let crc = crc::crc32c_append(place_seed(store_seed, self.generation, offset), &bytes[..36]);
        write_u32(bytes, 36, crc);
    }

    /// Reads the header at the start of `bytes`, which stands at device offset `offset`; `None` unless it is
    /// whole, belongs there, and its length is possible.
    pub fn decode(bytes: &[u8], store_seed: u32, offset: u64) -> Option<Self> {
        if bytes.first() == Some(&SHORT_MAGIC) {
            return Self::decode_short(bytes, store_seed, offset);
        }
        if bytes.len() < RECORD_HEADER_BYTES || read_u32(bytes, 0) != MAGIC {
            return None;
        }
        let generation = read_u32(bytes, 24);
        let crc = crc::crc32c_append(place_seed(store_seed, generation, offset), &bytes[..36]);
        if crc != read_u32(bytes, 36) || read_u64(bytes, 8) > NUMBER_MAX || read_u64(bytes, 16) > NUMBER_MAX {
            return None;
        }
        let header = Self {
            len: read_u32(bytes, 4),
            seq: read_u64(bytes, 8),
            group: read_u64(bytes, 16),
            generation,
            op_count: read_u32(bytes, 28),
            flags: read_u32(bytes, 32),
        };
        let len_holds =
            header.len as usize >= RECORD_HEADER_BYTES && u64::from(header.len).is_multiple_of(RECORD_ALIGN);
        (len_holds && !header.is_short()).then_some(header)
    }

    fn encode_short(&self, bytes: &mut [u8], store_seed: u32, offset: u64) {
        debug_assert!(fits_short(self.op_count as usize, self.len.into()), "{self:?}");
        debug_assert!(self.seq.max(self.group) < SHORT_NUMBER_END, "{self:?}");
        bytes[0] = SHORT_MAGIC;
        bytes[1] = self.op_count as u8 | if self.applied_only() { SHORT_APPLIED } else { 0 };
        bytes[2..4].copy_from_slice(&((u64::from(self.len) / RECORD_ALIGN) as u16).to_le_bytes());
        write_u32(bytes, 4, self.generation);
        bytes[8..14].copy_from_slice(&self.seq.to_le_bytes()[..6]);
        bytes[14..20].copy_from_slice(&self.group.to_le_bytes()[..6]);
        let crc = crc::crc32c_append(place_seed(store_seed, self.generation, offset), &bytes[..20]);
        write_u32(bytes, 20, crc);
    }

    fn decode_short(bytes: &[u8], store_seed: u32, offset: u64) -> Option<Self> {
        let bytes = bytes.get(..SHORT_RECORD_HEADER_BYTES)?;
        let generation = read_u32(bytes, 4);
        let crc = crc::crc32c_append(place_seed(store_seed, generation, offset), &bytes[..20]);
        let number = |at: usize| read_u64(bytes, at) & (SHORT_NUMBER_END - 1);
        let header = Self {
            len: u32::from(u16::from_le_bytes([bytes[2], bytes[3]])) * RECORD_ALIGN as u32,
            seq: number(8),
            group: number(14),
            generation,
            op_count: u32::from(bytes[1] & !SHORT_APPLIED),
            flags: RECORD_FLAG_SHORT | if bytes[1] & SHORT_APPLIED != 0 { RECORD_FLAG_APPLIED } else { 0 },
        };
        (crc == read_u32(bytes, 20) && header.len as usize >= SHORT_RECORD_HEADER_BYTES).then_some(header)
    }

    /// The generation that something which may be a record header says of itself, which is not verified.
    pub(crate) fn claimed_generation(bytes: &[u8]) -> Option<u32> {
        match bytes {
            [SHORT_MAGIC, ..] if bytes.len() >= SHORT_RECORD_HEADER_BYTES => Some(read_u32(bytes, 4)),
            _ if bytes.len() >= RECORD_HEADER_BYTES && read_u32(bytes, 0) == MAGIC => Some(read_u32(bytes, 24)),
            _ => None,
        }
    }

    /// Bytes of the header: where the record's operations begin.
    pub fn header_bytes(&self) -> usize {
        if self.is_short() { SHORT_RECORD_HEADER_BYTES } else { RECORD_HEADER_BYTES }
    }

    fn is_short(&self) -> bool {
        self.flags & RECORD_FLAG_SHORT != 0
    }

    /// Whether the record ends a group.
    pub fn ends_group(&self) -> bool {
        self.flags & RECORD_FLAG_GROUP_END != 0
    }

    /// Whether the writer asked only for `Durability::Applied`.
    pub fn applied_only(&self) -> bool {
        self.flags & RECORD_FLAG_APPLIED != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip(header: RecordHeader, len: usize) {
        let mut bytes = vec![0xff; len];
        header.encode(&mut bytes, 1, 4096);
        assert_eq!((RecordHeader::decode(&bytes, 1, 4096), header.header_bytes()), (Some(header), len));
        assert_eq!(RecordHeader::claimed_generation(&bytes), Some(header.generation));
        assert_eq!(RecordHeader::decode(&bytes, 1, 8192), None);
        assert_eq!(RecordHeader::decode(&bytes, 2, 4096), None);
        assert_eq!(RecordHeader::decode(&bytes[..len - 1], 1, 4096), None);
        for bit in 0..len * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(RecordHeader::decode(&bytes, 1, 4096), None, "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn a_record_header_is_bound_to_its_place() {
        let header = RecordHeader { len: 48, seq: 9, group: 2, generation: 3, op_count: 0, flags: 2 };
        round_trip(header, RECORD_HEADER_BYTES);
        let (seq, group) = (SHORT_NUMBER_END - 1, SHORT_NUMBER_END - 2);
        let short =
            RecordHeader { seq, group, generation: u32::MAX, op_count: 127, flags: RECORD_FLAG_SHORT, ..header };
        round_trip(short, SHORT_RECORD_HEADER_BYTES);
        let largest = RecordHeader { len: SHORT_BYTES_MAX as u32, flags: RECORD_FLAG_SHORT | 1, ..short };
        round_trip(largest, SHORT_RECORD_HEADER_BYTES);
    }

    #[test]
    fn the_length_of_a_record_tells_whether_its_header_is_short() {
        let edge = SHORT_BYTES_MAX - SHORT_RECORD_HEADER_BYTES as u64;
        for operations in [0, 8, edge - 8, edge, edge + 8, edge + 16, 1 << 30] {
            for (op_count, may) in [(1, true), (127, true), (128, true), (1, false)] {
                let len = record_bytes(may, op_count, operations);
                let flags = short_flag(may, op_count, len);
                let header = RecordHeader { len: 0, seq: 0, group: 0, generation: 0, op_count: 0, flags };
                assert_eq!(len - header.header_bytes() as u64, operations, "{operations} bytes, {op_count}, {may}");
                assert_eq!(header.is_short(), may && op_count <= 127 && operations <= edge, "{operations} bytes");
            }
        }
    }
}
