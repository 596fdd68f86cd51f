//! Record headers. A record is one transaction: this header, then its operations.
//!
//! Invariants:
//! 1. A record lies inside one segment and starts at a multiple of [`RECORD_ALIGN`].
//! 2. `group` counts the syncs: a record of group g is only written after group g - 1 was synced, so a valid
//!    record of a later group proves that an earlier one was durable.
//! 3. The last record of a synced group has no operations and the flag [`RECORD_FLAG_GROUP_END`].
//! Format: docs/format.md#record-header

use super::{NUMBER_MAX, crc, place_seed, read_u32, read_u64, write_u32, write_u64};

/// Bytes of a record header.
pub const RECORD_HEADER_BYTES: usize = 40;
/// Records and operations start at multiples of this.
pub const RECORD_ALIGN: u64 = 8;
/// The writer asked only for `Durability::Applied`.
pub const RECORD_FLAG_APPLIED: u32 = 1;
/// The record ends a group; it has no operations.
pub const RECORD_FLAG_GROUP_END: u32 = 2;

const MAGIC: u32 = u32::from_le_bytes(*b"ESKR");

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

impl RecordHeader {
    /// Writes the header to the start of `bytes`, which stands at device offset `offset`.
    pub fn encode(&self, bytes: &mut [u8], store_seed: u32, offset: u64) {
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
        len_holds.then_some(header)
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

    #[test]
    fn a_record_header_is_bound_to_its_place() {
        let header = RecordHeader { len: 48, seq: 9, group: 2, generation: 3, op_count: 0, flags: 2 };
        let mut bytes = [0; RECORD_HEADER_BYTES];
        header.encode(&mut bytes, 1, 4096);
        assert_eq!(RecordHeader::decode(&bytes, 1, 4096), Some(header));
        assert_eq!(RecordHeader::decode(&bytes, 1, 8192), None);
        assert_eq!(RecordHeader::decode(&bytes, 2, 4096), None);
        for bit in 0..RECORD_HEADER_BYTES * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(RecordHeader::decode(&bytes, 1, 4096), None, "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }
}
