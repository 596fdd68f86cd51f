//! Segment headers: the first block of each segment, written when the log enters it.
//!
//! Invariants:
//! 1. Generations grow along the log and are never used twice, so whatever stands in a segment from an earlier
//!    life fails its checksums.
//! 2. `previous_generation` and `previous_end` link the segments to one chain; what follows `previous_end` in
//!    the previous segment is not part of the log.
//! Format: docs/format.md#segment-header

use super::{FORMAT_VERSION, GENERATION_MAX, NUMBER_MAX, crc, read_u32, read_u64, write_u32, write_u64};

/// Bytes of a segment header; the rest of its block is zero.
pub const SEGMENT_HEADER_BYTES: usize = 76;

const MAGIC: u64 = u64::from_le_bytes(*b"ESKERSEG");

pub(super) const LAYOUT: &[(&str, usize, usize)] = &[
    ("magic", 0, 8),
    ("version", 8, 4),
    ("generation", 12, 4),
    ("uuid", 16, 16),
    ("segment", 32, 8),
    ("previous_end", 40, 8),
    ("first_seq", 48, 8),
    ("group", 56, 8),
    ("previous_generation", 64, 4),
    ("stream", 68, 4),
    ("crc", 72, 4),
];

/// What a segment holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stream {
    /// Log: transactions in commit order, replayed at opening.
    #[default]
    Log,
    /// What the cleaner has moved, and checkpoints. Never replayed: the index alone says what counts.
    Cold,
}

/// The start of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentHeader {
    /// Place of this segment in the log, counted from 1.
    pub generation: u32,
    /// The store's id.
    pub uuid: [u8; 16],
    /// Number of the segment on the device: it starts at `segment * segment_bytes`.
    pub segment: u64,
    /// Device offset at which the log left the previous segment; 0 for the first.
    pub previous_end: u64,
    /// Sequence number that the first record of the segment will have; of a cold segment, the last one when it was
    /// begun.
    pub first_seq: u64,
    /// The group that was open when the segment was entered.
    pub group: u64,
    /// Generation of the segment before; 0 for the first.
    pub previous_generation: u32,
    /// What the segment holds.
    pub stream: Stream,
}

impl SegmentHeader {
    /// Writes the header to the start of `block`.
    pub fn encode(&self, block: &mut [u8]) {
        write_u64(block, 0, MAGIC);
        write_u32(block, 8, FORMAT_VERSION);
        write_u32(block, 12, self.generation);
        block[16..32].copy_from_slice(&self.uuid);
        write_u64(block, 32, self.segment);
        write_u64(block, 40, self.previous_end);
        write_u64(block, 48, self.first_seq);
        write_u64(block, 56, self.group);
        write_u32(block, 64, self.previous_generation);
        write_u32(block, 68, u32::from(self.stream == Stream::Cold));
        let crc = crc::crc32c(&block[..72]);
        write_u32(block, 72, crc);
    }

    /// Reads the header of segment number `segment` of the store `uuid`; `None` if something else stands there.
    pub fn decode(block: &[u8], uuid: &[u8; 16], segment: u64) -> Option<Self> {
        if block.len() < SEGMENT_HEADER_BYTES
            || read_u64(block, 0) != MAGIC
            || !(1..=FORMAT_VERSION).contains(&read_u32(block, 8))
            || crc::crc32c(&block[..72]) != read_u32(block, 72)
            || block[16..32] != uuid[..]
            || read_u64(block, 32) != segment
            || !(1..=GENERATION_MAX).contains(&read_u32(block, 12))
            || read_u64(block, 48) > NUMBER_MAX + 1
            || read_u64(block, 56) > NUMBER_MAX + 1
        {
            return None;
        }
        Some(Self {
            generation: read_u32(block, 12),
            uuid: *uuid,
            segment,
            previous_end: read_u64(block, 40),
            first_seq: read_u64(block, 48),
            group: read_u64(block, 56),
            previous_generation: read_u32(block, 64),
            stream: match read_u32(block, 68) {
                0 => Stream::Log,
                1 => Stream::Cold,
                _ => return None,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_survives_the_round_trip_and_no_flipped_bit_does() {
        let header = SegmentHeader {
            generation: 5,
            uuid: [3; 16],
            segment: 12,
            previous_end: 800,
            first_seq: 1000,
            group: 44,
            previous_generation: 4,
            stream: Stream::Cold,
        };
        let mut block = vec![0; 512];
        header.encode(&mut block);
        assert_eq!(SegmentHeader::decode(&block, &[3; 16], 12), Some(header));
        assert_eq!(SegmentHeader::decode(&block, &[3; 16], 13), None);
        assert_eq!(SegmentHeader::decode(&block, &[4; 16], 12), None);
        for bit in 0..SEGMENT_HEADER_BYTES * 8 {
            block[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(SegmentHeader::decode(&block, &[3; 16], 12), None, "bit {bit}");
            block[bit / 8] ^= 1 << (bit % 8);
        }
    }
}
