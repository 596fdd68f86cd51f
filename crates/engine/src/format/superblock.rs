//! Superblocks: what a store is, and how far its log was known to be durable.
//!
//! They are appended, one block each, to two small segments, to both; the valid one with the highest sequence counts.
//!
//! Invariant: `end` is a lower bound: the log was durable at least so far when the superblock was written. With
//! `clean` it is the exact end.
//! Format: docs/format.md#superblock

use std::ops::Range;

use super::{DEVICE_BYTES_MAX, FORMAT_VERSION, read_u32, read_u64, write_u32, write_u64};

/// Segments that a store has for its log, at least.
pub const LOG_SEGMENTS_MIN: u64 = 2;
/// Bytes of a superblock; the rest of its block is zero.
pub const SUPERBLOCK_BYTES: usize = 132;
/// The same in format version 1, which ended after `end_seq`.
const VERSION_1_BYTES: usize = 92;

const FLAG_CLEAN: u32 = 1;
const FLAG_BEFORE_KEPT: u32 = 2;

const MAGIC: u64 = u64::from_le_bytes(*b"ESKERSUP");
/// Sequence numbers and groups above this are nonsense: they grow by one at a time.
pub const NUMBER_MAX: u64 = 1 << 62;
/// Numbers of objects from here on are nonsense as well; there are others behind them.
pub const OBJECT_NUMBER_MAX: u64 = NUMBER_MAX / 2;
/// Generations above this are nonsense: so there is always another.
pub const GENERATION_MAX: u32 = u32::MAX - (1 << 20);
/// A version above this is taken for damage, not for a newer program.
const VERSION_MAX: u32 = 1_000;

pub(super) const LAYOUT: &[(&str, usize, usize)] = &[
    ("magic", 0, 8),
    ("version", 8, 4),
    ("block_bytes", 12, 4),
    ("uuid", 16, 16),
    ("sequence", 32, 8),
    ("segment_bytes", 40, 8),
    ("superblock_segment_bytes", 48, 8),
    ("device_len", 56, 8),
    ("end_generation", 64, 4),
    ("flags", 68, 4),
    ("end_offset", 72, 8),
    ("end_seq", 80, 8),
    ("root", 88, 8),
    ("root_generation", 96, 4),
    ("replay_generation", 100, 4),
    ("replay_offset", 104, 8),
    ("replay_seq", 112, 8),
    ("replay_group", 120, 8),
    ("crc", 128, 4),
];

/// What a store is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Version of the format that it was found in. What is written has [`FORMAT_VERSION`].
    pub version: u32,
    /// Block size that groups are padded to, in bytes.
    pub block_bytes: u32,
    /// The store's random 128-bit id.
    pub uuid: [u8; 16],
    /// Grows by one with every superblock.
    pub sequence: u64,
    /// Segment size in bytes.
    pub segment_bytes: u64,
    /// Size of each of the two superblock segments at the start of the device, in bytes.
    pub superblock_segment_bytes: u64,
    /// Length of the device that the store uses, in bytes. Grows when the device has grown.
    pub device_len: u64,
    /// Generation of the segment in which the log ended.
    pub end_generation: u32,
    /// Whether the store was closed cleanly, so that the log ends exactly at `end`.
    pub clean: bool,
    /// Whether all that the checkpoint before needs is kept, for opening should the newest one not hold.
    pub before_kept: bool,
    /// Device offset at which the log ended.
    pub end_offset: u64,
    /// Sequence number of the last record before the end.
    pub end_seq: u64,
    /// The checkpoint's root, as a [`Loc`](super::Loc)'s eight bytes; 0 without a checkpoint.
    pub root: u64,
    /// Generation of the segment that the root stands in.
    pub root_generation: u32,
    /// Where the log goes on after what the checkpoint covers; without one, where it begins.
    pub replay: ReplayFrom,
}

/// A place in the log between two groups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplayFrom {
    /// Generation of the segment; 0: the start of the log, wherever that is.
    pub generation: u32,
    /// Device offset.
    pub offset: u64,
    /// Sequence number of the last record before it.
    pub seq: u64,
    /// The last group before it.
    pub group: u64,
}

/// Why a block is not a superblock that this code can use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SuperblockError {
    /// Only zeros.
    Empty,
    /// Something else stands there.
    Foreign,
    /// A superblock of a newer version.
    Newer(u32),
    /// A superblock whose checksum does not match.
    Damaged,
}

impl Superblock {
    /// Numbers of the segments that can hold log, of a device of `device_len` bytes: those before them hold
    /// superblocks. Empty on a device that is too short.
    pub fn log_segments_of(&self, device_len: u64) -> Range<u64> {
        (2 * self.superblock_segment_bytes).div_ceil(self.segment_bytes)..device_len / self.segment_bytes
    }

    /// Numbers of the segments that can hold log: [`LOG_SEGMENTS_MIN`] or more in a superblock that was decoded.
    pub fn log_segments(&self) -> Range<u64> {
        self.log_segments_of(self.device_len)
    }

    /// Writes the superblock to the start of `block`.
    pub fn encode(&self, block: &mut [u8]) {
        write_u64(block, 0, MAGIC);
        write_u32(block, 8, FORMAT_VERSION);
        write_u32(block, 12, self.block_bytes);
        block[16..32].copy_from_slice(&self.uuid);
        write_u64(block, 32, self.sequence);
        write_u64(block, 40, self.segment_bytes);
        write_u64(block, 48, self.superblock_segment_bytes);
        write_u64(block, 56, self.device_len);
        write_u32(block, 64, self.end_generation);
        let clean = if self.clean { FLAG_CLEAN } else { 0 };
        write_u32(block, 68, clean | if self.before_kept { FLAG_BEFORE_KEPT } else { 0 });
        write_u64(block, 72, self.end_offset);
        write_u64(block, 80, self.end_seq);
        write_u64(block, 88, self.root);
        write_u32(block, 96, self.root_generation);
        write_u32(block, 100, self.replay.generation);
        write_u64(block, 104, self.replay.offset);
        write_u64(block, 112, self.replay.seq);
        write_u64(block, 120, self.replay.group);
        let crc = crc32c::crc32c(&block[..128]);
        write_u32(block, 128, crc);
    }

    /// Reads a superblock from the start of `block`.
    ///
    /// # Errors
    /// [`SuperblockError`] says what stands there instead.
    pub fn decode(block: &[u8]) -> Result<Self, SuperblockError> {
        if block.len() < SUPERBLOCK_BYTES || read_u64(block, 0) != MAGIC {
            let empty = block.iter().all(|byte| *byte == 0);
            return Err(if empty { SuperblockError::Empty } else { SuperblockError::Foreign });
        }
        let version = read_u32(block, 8);
        // The checksum ends the structure. A newer version keeps these places for magic and version, and its own
        // checksum is not known here: it is refused by its number.
        let crc_at = if version == 1 { VERSION_1_BYTES - 4 } else { SUPERBLOCK_BYTES - 4 };
        if version > FORMAT_VERSION && version <= VERSION_MAX {
            // Unless all the rest is one of a version that is known: then it is the number that does not hold.
            let known = (1..=FORMAT_VERSION).any(|version| is_of_version(block, version));
            return Err(if known { SuperblockError::Damaged } else { SuperblockError::Newer(version) });
        }
        if version == 0 || version > FORMAT_VERSION || crc32c::crc32c(&block[..crc_at]) != read_u32(block, crc_at) {
            return Err(SuperblockError::Damaged);
        }
        let mut uuid = [0; 16];
        uuid.copy_from_slice(&block[16..32]);
        let superblock = Self {
            version,
            block_bytes: read_u32(block, 12),
            uuid,
            sequence: read_u64(block, 32),
            segment_bytes: read_u64(block, 40),
            superblock_segment_bytes: read_u64(block, 48),
            device_len: read_u64(block, 56),
            end_generation: read_u32(block, 64),
            clean: read_u32(block, 68) & FLAG_CLEAN != 0,
            before_kept: read_u32(block, 68) & FLAG_BEFORE_KEPT != 0,
            end_offset: read_u64(block, 72),
            end_seq: read_u64(block, 80),
            root: if version == 1 { 0 } else { read_u64(block, 88) },
            root_generation: if version == 1 { 0 } else { read_u32(block, 96) },
            replay: if version == 1 {
                ReplayFrom::default()
            } else {
                ReplayFrom {
                    generation: read_u32(block, 100),
                    offset: read_u64(block, 104),
                    seq: read_u64(block, 112),
                    group: read_u64(block, 120),
                }
            },
        };
        let block = u64::from(superblock.block_bytes);
        let sizes_hold = superblock.block_bytes.is_power_of_two()
            && (512..=1 << 16).contains(&superblock.block_bytes)
            && superblock.segment_bytes.is_power_of_two()
            && (8 * block..=1 << 30).contains(&superblock.segment_bytes)
            && (block..=1 << 40).contains(&superblock.superblock_segment_bytes)
            && superblock.superblock_segment_bytes.is_multiple_of(block)
            && superblock.device_len <= DEVICE_BYTES_MAX
            && superblock.log_segments().count() as u64 >= LOG_SEGMENTS_MIN;
        let ReplayFrom { generation, offset, seq, group } = superblock.replay;
        let numbers = [superblock.sequence, superblock.end_seq, seq, group];
        let places = [superblock.end_offset, offset];
        let generations = [superblock.end_generation, superblock.root_generation, generation];
        let sizes_hold = sizes_hold
            && numbers.iter().all(|number| *number <= NUMBER_MAX)
            && places.iter().all(|place| *place <= superblock.device_len)
            && generations.iter().all(|generation| *generation <= GENERATION_MAX);
        if sizes_hold { Ok(superblock) } else { Err(SuperblockError::Damaged) }
    }
}

/// Whether the checksum holds if the version is this one.
fn is_of_version(block: &[u8], version: u32) -> bool {
    let crc_at = if version == 1 { VERSION_1_BYTES - 4 } else { SUPERBLOCK_BYTES - 4 };
    let crc = crc32c::crc32c_append(crc32c::crc32c(&block[..8]), &version.to_le_bytes());
    crc32c::crc32c_append(crc, &block[12..crc_at]) == read_u32(block, crc_at)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Superblock {
        Superblock {
            version: FORMAT_VERSION,
            block_bytes: 4096,
            uuid: [7; 16],
            sequence: 3,
            segment_bytes: 1 << 26,
            superblock_segment_bytes: 65536,
            device_len: 1 << 40,
            end_generation: 9,
            clean: true,
            before_kept: true,
            end_offset: 123_456,
            end_seq: 77,
            root: 99 << 20,
            root_generation: 8,
            replay: ReplayFrom { generation: 7, offset: 65_536, seq: 70, group: 12 },
        }
    }

    #[test]
    fn a_superblock_survives_the_round_trip_and_no_flipped_bit_does() {
        let mut block = vec![0; 4096];
        sample().encode(&mut block);
        assert_eq!(Superblock::decode(&block), Ok(sample()));
        for bit in 0..SUPERBLOCK_BYTES * 8 {
            block[bit / 8] ^= 1 << (bit % 8);
            let error = Superblock::decode(&block).unwrap_err();
            assert!(!matches!(error, SuperblockError::Newer(_)), "bit {bit}: {error:?}");
            block[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn version_1_is_read_without_a_checkpoint() {
        let mut block = vec![0; 4096];
        sample().encode(&mut block);
        write_u32(&mut block, 8, 1);
        let crc = crc32c::crc32c(&block[..88]);
        write_u32(&mut block, 88, crc);
        block[92..].fill(0);
        let expected =
            Superblock { version: 1, root: 0, root_generation: 0, replay: ReplayFrom::default(), ..sample() };
        assert_eq!(Superblock::decode(&block), Ok(expected));
    }

    #[test]
    fn a_length_without_room_for_the_log_is_damage() {
        let mut block = vec![0; 4096];
        // Superblocks take the first segment, the log two.
        Superblock { device_len: 3 << 26, end_offset: 0, ..sample() }.encode(&mut block);
        assert!(Superblock::decode(&block).is_ok());
        for device_len in [0, 65_536, 1 << 26, (3 << 26) - 1] {
            let replay = ReplayFrom::default();
            Superblock { device_len, end_offset: 0, replay, ..sample() }.encode(&mut block);
            assert_eq!(Superblock::decode(&block), Err(SuperblockError::Damaged), "{device_len} bytes");
        }
    }

    #[test]
    fn a_newer_version_is_refused_with_its_number() {
        let mut block = vec![0; 4096];
        sample().encode(&mut block);
        write_u32(&mut block, 8, FORMAT_VERSION + 1);
        let crc = crc32c::crc32c(&block[..128]);
        write_u32(&mut block, 128, crc);
        assert_eq!(Superblock::decode(&block), Err(SuperblockError::Newer(FORMAT_VERSION + 1)));
        assert_eq!(Superblock::decode(&[0; 4096]), Err(SuperblockError::Empty));
        assert_eq!(Superblock::decode(&[1; 4096]), Err(SuperblockError::Foreign));
    }
}
