//! Superblocks: found at opening, then appended to two small segments in turn.
//!
//! Invariants:
//! 1. The newest superblock is never in the segment that is cleared: they take turns.
//! 2. A superblock is durable when [`Superblocks::write`] returns.

use std::sync::Arc;

use esker_device::Device;
use esker_store::{Error, Result};
use parking_lot::Mutex;

use crate::format::{Superblock, SuperblockError, round_up};

/// Size of a superblock segment on a device that is not zoned, in bytes.
pub const SUPERBLOCK_SEGMENT_BYTES: u64 = 64 << 10;

/// Where the superblocks are and which one counts.
#[derive(Clone, Debug)]
pub struct FoundSuperblock {
    /// The newest valid one.
    pub superblock: Superblock,
    /// Free block in each of the two superblock segments; `None` when full.
    pub free_blocks: [Option<u64>; 2],
    /// Blocks that hold neither zeros nor a valid superblock.
    pub damaged: u64,
}

/// The superblocks of an open store.
pub struct Superblocks {
    device: Arc<dyn Device>,
    found: Mutex<FoundSuperblock>,
}

impl Superblocks {
    /// Those that were found on `device`.
    pub fn new(device: Arc<dyn Device>, found: FoundSuperblock) -> Self {
        Self { device, found: Mutex::new(found) }
    }

    /// The newest.
    pub fn newest(&self) -> Superblock {
        self.found.lock().superblock
    }

    /// Appends the newest superblock with a change to the half that does not hold it.
    ///
    /// # Errors
    /// [`Error::Io`]; the newest one before still counts then.
    pub fn write(&self, change: impl FnOnce(&mut Superblock)) -> Result<()> {
        let mut found = self.found.lock();
        let mut superblock = found.superblock;
        change(&mut superblock);
        superblock.sequence += 1;
        let block = u64::from(superblock.block_bytes);
        let segment_bytes = superblock.superblock_segment_bytes;
        let half = (superblock.sequence + 1) % 2;
        let start = half * segment_bytes;
        let failed = |error| device_error("writing a superblock", error);
        let free = match found.free_blocks[half as usize] {
            Some(free) => free,
            None => {
                // Where zones need no reset its space is kept: somebody else might take it.
                if self.device.geometry().zone_bytes.is_some() {
                    self.device.discard(start, segment_bytes).map_err(failed)?;
                } else {
                    let zeros = vec![0; segment_bytes as usize];
                    self.device.write(start, &zeros).map_err(failed)?;
                }
                self.device.sync().map_err(failed)?;
                0
            }
        };
        let mut bytes = vec![0; block as usize];
        superblock.encode(&mut bytes);
        self.device.write(start + free * block, &bytes).map_err(failed)?;
        self.device.sync().map_err(failed)?;
        let blocks = segment_bytes.min(1 << 20) / block;
        found.free_blocks[half as usize] = (free + 1 < blocks).then_some(free + 1);
        found.superblock = superblock;
        Ok(())
    }
}

/// Finds the newest superblock.
///
/// # Errors
/// [`Error::Invalid`] says what stands there instead: nothing, something foreign, a newer version, or damage.
pub fn find_superblock(device: &dyn Device) -> Result<FoundSuperblock> {
    let geometry = device.geometry();
    let block = u64::from(geometry.block_bytes);
    let segment_bytes = geometry.zone_bytes.unwrap_or(SUPERBLOCK_SEGMENT_BYTES);
    let name = device.name();
    if geometry.len < 2 * segment_bytes {
        return Err(Error::Invalid {
            what: "store",
            why: format!("{name} is {} bytes long, too short for a store: truncated?", geometry.len),
        });
    }
    let mut newest: Option<Superblock> = None;
    let mut free_blocks = [None; 2];
    let mut worst = SuperblockError::Empty;
    let mut damaged = 0;
    for half in 0..2u64 {
        let mut area = vec![0; segment_bytes.min(1 << 20) as usize];
        let read = device.read(half * segment_bytes, &mut area);
        read.map_err(|error| device_error(&format!("reading the superblocks of {name}"), error))?;
        let mut used = 0;
        for (number, bytes) in area.chunks(block as usize).enumerate() {
            let number = number as u64;
            match Superblock::decode(bytes) {
                Ok(found) => {
                    used = number + 1;
                    if newest.is_none_or(|newest| found.sequence > newest.sequence) {
                        newest = Some(found);
                    }
                }
                Err(SuperblockError::Empty) => {}
                Err(error) => {
                    used = number + 1;
                    damaged += 1;
                    if !matches!(worst, SuperblockError::Newer(_)) {
                        worst = error;
                    }
                }
            }
        }
        let blocks = area.len() as u64 / block;
        free_blocks[half as usize] = (used < blocks).then_some(used);
    }
    // A newer version anywhere means that a newer program has written here: its superblock counts, not an older one.
    if let SuperblockError::Newer(version) = worst {
        return Err(refuse(
            &name,
            &format!("has format version {version}; this program knows up to {}", crate::format::FORMAT_VERSION),
        ));
    }
    let Some(superblock) = newest else {
        return Err(match worst {
            SuperblockError::Damaged => Error::Corrupt { offset: 0, what: format!("no superblock of {name} holds") },
            SuperblockError::Foreign => refuse(&name, "is not an Esker store: it holds something else"),
            _ => refuse(&name, "is not an Esker store: it was never formatted"),
        });
    };
    let long_enough = geometry.len >= superblock.device_len;
    if !long_enough {
        return Err(refuse(
            &name,
            &format!("is truncated: {} bytes long, formatted with {}", geometry.len, superblock.device_len),
        ));
    }
    if superblock.superblock_segment_bytes != segment_bytes || u64::from(superblock.block_bytes) != block {
        return Err(refuse(&name, "was formatted on a device of another shape (block or zone size)"));
    }
    Ok(FoundSuperblock { superblock, free_blocks, damaged })
}

/// Length of `device` that the store on it uses, in bytes.
///
/// # Errors
/// As for opening, where there is no store.
pub fn used_bytes(device: &dyn Device) -> Result<u64> {
    Ok(find_superblock(device)?.superblock.device_len)
}

fn refuse(name: &str, why: &str) -> Error {
    Error::Invalid { what: "store", why: format!("{name} {why}") }
}

/// First segment that holds log: the superblocks come before it.
pub fn first_segment(superblock: &Superblock) -> u64 {
    round_up(2 * superblock.superblock_segment_bytes, superblock.segment_bytes) / superblock.segment_bytes
}

/// A device's error as a store's.
pub fn device_error(what: &str, error: esker_device::Error) -> Error {
    match error {
        esker_device::Error::Io { source, .. } => Error::io(what, source),
        other => Error::io(what, std::io::Error::other(other)),
    }
}
