//! What stands on a damaged device: superblocks, or failing these the shape that the segment headers tell; the headers.
//!
//! Invariant: a device that cannot be read in places is read around them, block by block.

use std::collections::HashMap;

use esker_device::Device;
use esker_store::{Error, Result};

use crate::format::{FORMAT_VERSION, ReplayFrom, SegmentHeader, Superblock, SuperblockError, read_u32, read_u64};
use crate::superblocks::SUPERBLOCK_SEGMENT_BYTES;

/// The smallest segment: headers stand at multiples of this.
const SEGMENT_BYTES_MIN: u64 = 64 << 10;
/// Versions above this are damage.
const VERSION_MAX: u32 = 1_000;

/// The superblocks of a device that hold, newest first; one that was made up from headers if none does.
pub struct Shapes {
    /// At least one.
    pub superblocks: Vec<Superblock>,
    /// Whether these are superblocks, and not made up.
    pub real: bool,
    /// Length that the store used, in bytes; the device may be shorter by now.
    pub recorded_len: u64,
}

impl Shapes {
    /// The newest.
    pub fn newest(&self) -> &Superblock {
        &self.superblocks[0]
    }
}

/// Fills `bytes` from `offset`; blocks that cannot be read are zeros. How many there were.
pub fn read_around(device: &dyn Device, offset: u64, bytes: &mut [u8]) -> u64 {
    if device.read(offset, bytes).is_ok() {
        return 0;
    }
    let block = device.geometry().block_bytes as usize;
    let mut bad = 0;
    for (number, part) in bytes.chunks_mut(block).enumerate() {
        if device.read(offset + (number * block) as u64, part).is_err() {
            part.fill(0);
            bad += 1;
        }
    }
    bad
}

fn refuse(device: &dyn Device, why: &str) -> Error {
    Error::Invalid { what: "store", why: format!("{} {why}", device.name()) }
}

fn newer(device: &dyn Device, version: u32) -> Error {
    refuse(device, &format!("has format version {version}; this program knows up to {FORMAT_VERSION}"))
}

/// Finds the superblocks, or a shape.
///
/// # Errors
/// [`Error::Invalid`] when a newer program wrote there, or nothing of a store is there.
pub fn shapes(device: &dyn Device) -> Result<Shapes> {
    let geometry = device.geometry();
    let block = u64::from(geometry.block_bytes);
    let area = geometry.zone_bytes.unwrap_or(SUPERBLOCK_SEGMENT_BYTES);
    let (mut superblocks, mut recorded_len) = (Vec::new(), 0);
    for half in 0..2 {
        let mut bytes = vec![0; area.min(1 << 20).min(geometry.len.saturating_sub(half * area)) as usize];
        read_around(device, half * area, &mut bytes);
        for bytes in bytes.chunks(block as usize) {
            match Superblock::decode(bytes) {
                Ok(found) if u64::from(found.block_bytes) == block && found.superblock_segment_bytes == area => {
                    recorded_len = recorded_len.max(found.device_len);
                    superblocks.push(Superblock { device_len: found.device_len.min(geometry.len), ..found });
                }
                Err(SuperblockError::Newer(version)) => return Err(newer(device, version)),
                _ => {}
            }
        }
    }
    superblocks.sort_by_key(|superblock| std::cmp::Reverse(superblock.sequence));
    // Leftovers of another store do not count.
    if let Some(uuid) = superblocks.first().map(|newest| newest.uuid) {
        superblocks.retain(|superblock| superblock.uuid == uuid);
        return Ok(Shapes { superblocks, real: true, recorded_len });
    }
    Ok(Shapes { superblocks: vec![made_up(device, area)?], real: false, recorded_len: geometry.len })
}

/// A superblock for a store that has none left: shape and id as most segment headers tell them.
fn made_up(device: &dyn Device, area: u64) -> Result<Superblock> {
    let geometry = device.geometry();
    let mut votes: HashMap<([u8; 16], u64), u64> = HashMap::new();
    let mut head = vec![0; geometry.block_bytes as usize];
    for offset in (SEGMENT_BYTES_MIN..geometry.len).step_by(SEGMENT_BYTES_MIN as usize) {
        if device.read(offset, &mut head).is_err() || &head[..8] != b"ESKERSEG" {
            continue;
        }
        let version = read_u32(&head, 8);
        if version > FORMAT_VERSION && version <= VERSION_MAX {
            return Err(newer(device, version));
        }
        let mut uuid = [0; 16];
        uuid.copy_from_slice(&head[16..32]);
        let segment = read_u64(&head, 32);
        let whole = SegmentHeader::decode(&head, &uuid, segment).is_some();
        if let Some(segment_bytes) = offset.checked_div(segment).filter(|bytes| whole && bytes * segment == offset)
            && segment_bytes.is_power_of_two()
            && (SEGMENT_BYTES_MIN..=1 << 30).contains(&segment_bytes)
        {
            *votes.entry((uuid, segment_bytes)).or_default() += 1;
        }
    }
    let most = votes.into_iter().max_by_key(|(key, count)| (*count, *key));
    let ((uuid, segment_bytes), _) = most
        .ok_or_else(|| refuse(device, "is not an Esker store: no superblock and no segment header of one is on it"))?;
    Ok(Superblock {
        version: FORMAT_VERSION,
        block_bytes: geometry.block_bytes,
        uuid,
        sequence: 0,
        segment_bytes,
        superblock_segment_bytes: area,
        device_len: geometry.len,
        end_generation: 0,
        clean: false,
        before_kept: false,
        end_offset: 0,
        end_seq: 0,
        root: 0,
        root_generation: 0,
        replay: ReplayFrom::default(),
    })
}

/// The headers of a device's segments, and the segments without one that hold something.
pub struct FoundHeaders {
    /// By generation.
    pub known: Vec<SegmentHeader>,
    /// Segments.
    pub headless: Vec<u64>,
}

/// Reads all segment headers.
pub fn headers(device: &dyn Device, shape: &Superblock) -> FoundHeaders {
    let mut found = FoundHeaders { known: Vec::new(), headless: Vec::new() };
    let mut start = vec![0; 2 * shape.block_bytes as usize];
    // Segments behind the recorded length count as well: the store may have grown since.
    for segment in shape.log_segments_of(device.geometry().len) {
        read_around(device, segment * shape.segment_bytes, &mut start);
        match SegmentHeader::decode(&start, &shape.uuid, segment) {
            Some(header) => found.known.push(header),
            None if start.iter().any(|byte| *byte != 0) => found.headless.push(segment),
            None => {}
        }
    }
    found.known.sort_unstable_by_key(|header| header.generation);
    found.known.dedup_by_key(|header| header.generation);
    found
}
