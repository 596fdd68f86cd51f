//! What all structures share: the format's version, seeds of checksums, and numbers as they stand in fields.
//!
//! Invariant: numbers are little-endian and of a fixed width.

use super::crc;

/// Version of the format that this code writes, and the newest that it opens. It opens version 1 as well, which had no
/// checkpoints, version 2, which had no compressed payloads, version 3, whose checkpoints had no table of segments and
/// whose superblocks stood once each, version 4, whose relocations were not packed, and version 5, whose headers were
/// all long.
pub const FORMAT_VERSION: u32 = 6;

/// The number that all checksums of a store start from, made of its 128-bit id.
pub fn store_seed(uuid: &[u8; 16]) -> u32 {
    crc::crc32c(uuid)
}

/// Checksum seed of what stands at device offset `offset` in the segment of this generation.
pub fn place_seed(store_seed: u32, generation: u32, offset: u64) -> u32 {
    let mut place = [0u8; 12];
    place[..4].copy_from_slice(&generation.to_le_bytes());
    place[4..].copy_from_slice(&offset.to_le_bytes());
    crc::crc32c_append(store_seed, &place)
}

/// `len` rounded up to a multiple of `align`, a power of two.
pub const fn round_up(len: u64, align: u64) -> u64 {
    (len + align - 1) & !(align - 1)
}

pub(crate) fn read_u32(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(word)
}

pub(crate) fn read_u64(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

pub(crate) fn write_u32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

pub(crate) fn write_u64(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
}
