//! Superblocks: found at opening, then appended to two small segments, to both.
//!
//! Invariants:
//! 1. Of each superblock there are two copies, in different segments. A segment is cleared only while the other holds
//!    the newest and the newest that names another checkpoint (unless neither has them and has room for them), and then
//!    begins with these two, so that both always have the last two checkpoints. What a crash has kept from one of them,
//!    or has rotted there, is made up for before the next one is written, and when it is found.
//! 2. A superblock is durable, twice, when [`Superblocks::write`] returns.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use esker_device::Device;
use esker_store::{Error, Result};
use parking_lot::Mutex;

use crate::format::{FORMAT_VERSION, Superblock, SuperblockError};
use crate::watch::read_readable;

/// Size of a superblock segment on a device that is not zoned, in bytes.
pub const SUPERBLOCK_SEGMENT_BYTES: u64 = 64 << 10;

/// Where the superblocks are and which one counts.
#[derive(Clone, Debug)]
pub struct FoundSuperblock {
    /// The newest valid one.
    pub superblock: Superblock,
    /// Those before it that hold, newest first, each once.
    pub older: Vec<Superblock>,
    /// Free block in each of the two superblock segments; `None` when full.
    pub free_blocks: [Option<u64>; 2],
    /// Blocks that hold neither zeros nor a valid superblock.
    pub damaged: u64,
    /// The same, until the next superblock is written.
    damaged_at_opening: u64,
    /// What the next superblock is made from says something else than this one, which stands on the device.
    goes_on_from: Option<Superblock>,
    /// Both segments were found to have, or were given, what [`FoundSuperblock::needed`] names.
    both_whole: bool,
}

/// So many checkpoints are tried at opening, the newest first.
const CHECKPOINTS_TRIED: usize = 4;

impl FoundSuperblock {
    /// The newest superblock that counts, and before it the newest that names another checkpoint.
    fn needed(&self) -> Vec<Superblock> {
        let newest = self.goes_on_from.unwrap_or(self.superblock);
        let other = self.older.iter().find(|older| older.root != newest.root);
        other.copied().into_iter().chain([newest]).collect()
    }

    /// The superblocks that opening tries, newest first: those that name different checkpoints or places where the log
    /// goes on. All of them say what the newest does of the store and of the log's end.
    ///
    /// An older checkpoint is as good as the newest where all that it needs is still there, which loading it and
    /// replaying the log after it find out: what a checkpoint frees is used again only after the next one, unless room
    /// is short.
    pub fn candidates(&self) -> Vec<Superblock> {
        let newest = self.superblock;
        let mut found: Vec<Superblock> = vec![newest];
        for older in &self.older {
            let same = |known: &Superblock| (known.root, known.replay) == (older.root, older.replay);
            let roots: BTreeSet<u64> = found.iter().map(|known| known.root).chain([older.root]).collect();
            if roots.len() <= CHECKPOINTS_TRIED && !found.iter().any(same) {
                let Superblock { root, root_generation, replay, .. } = *older;
                found.push(Superblock { root, root_generation, replay, ..newest });
            }
        }
        found
    }
}

/// The superblocks of an open store.
pub struct Superblocks {
    device: Arc<dyn Device>,
    found: Mutex<FoundSuperblock>,
    /// What the newest says, for those who must not wait for a device.
    before_kept: AtomicBool,
}

impl Superblocks {
    /// Those that were found on `device`.
    pub fn new(device: Arc<dyn Device>, found: FoundSuperblock) -> Self {
        let before_kept = AtomicBool::new(found.superblock.before_kept);
        Self { device, found: Mutex::new(found), before_kept }
    }

    /// The newest.
    pub fn newest(&self) -> Superblock {
        self.found.lock().superblock
    }

    /// Whether all that the checkpoint before the newest needs is kept.
    pub fn before_kept(&self) -> bool {
        self.before_kept.load(Ordering::Relaxed)
    }

    /// Generation from which the log is replayed by the checkpoint before the newest, if one is named.
    pub fn floor_before(&self) -> Option<u32> {
        let found = self.found.lock();
        let other = found.older.iter().filter(|older| older.root != found.superblock.root);
        other.max_by_key(|older| older.sequence).map(|older| older.replay.generation)
    }

    /// Goes on from the checkpoint that one of [`FoundSuperblock::candidates`] names, with the next superblock that is
    /// written.
    pub fn go_on_from(&self, from: &Superblock) {
        let mut found = self.found.lock();
        let same = |other: &Superblock| (other.root, other.replay) == (from.root, from.replay);
        if same(&found.superblock) {
            return;
        }
        let Some(at) = found.older.iter().position(same) else { return };
        // Those that are newer name checkpoints that do not hold.
        let named = found.older.drain(..=at).next_back();
        found.goes_on_from = named;
        let Superblock { root, root_generation, replay, .. } = *from;
        // What the checkpoint before this one needs may have been given up since the next one was named.
        found.superblock = Superblock { root, root_generation, replay, before_kept: false, ..found.superblock };
    }

    /// Appends the newest superblock with a change to both segments.
    ///
    /// # Errors
    /// [`Error::Io`]; the newest one before still counts then.
    pub fn write(&self, change: impl FnOnce(&mut Superblock)) -> Result<()> {
        let mut found = self.found.lock();
        let mut superblock = Superblock { version: FORMAT_VERSION, ..found.superblock };
        change(&mut superblock);
        // What does not hold may be a newer one, and may be read again one day: none has its number.
        superblock.sequence += 1 + std::mem::take(&mut found.damaged_at_opening);
        if !found.both_whole {
            let made_whole = self.make_whole(&mut found);
            made_whole.map_err(|error| {
                device_error("writing a superblock again that one of two segments does not have", error)
            })?;
        }
        // One that has room first: then the other may be cleared.
        let mut roomy = [0, 1];
        roomy.sort_by_key(|half| found.free_blocks[*half].is_none());
        for half in roomy {
            let appended = self.append(&mut found, half, &superblock);
            appended.map_err(|error| device_error("writing a superblock", error))?;
        }
        self.device.sync().map_err(|error| device_error("writing a superblock", error))?;
        let before = std::mem::replace(&mut found.superblock, superblock);
        found.goes_on_from = None;
        self.before_kept.store(superblock.before_kept, Ordering::Relaxed);
        if before.root != superblock.root {
            // No caller asks for older ones again.
            found.older = vec![before];
        }
        Ok(())
    }

    /// Writes a superblock to a segment, which is cleared if it has no room.
    fn append(&self, found: &mut FoundSuperblock, half: usize, next: &Superblock) -> esker_device::Result<()> {
        let block = u64::from(next.block_bytes);
        let (start, blocks) = (half as u64 * next.superblock_segment_bytes, blocks_of(next));
        let mut bytes = vec![0; block as usize];
        next.encode(&mut bytes);
        if let Some(free) = found.free_blocks[half] {
            match self.device.write(start + free * block, &bytes) {
                // A zone that was written further than what stands there tells: what stood at its end is gone.
                Err(esker_device::Error::NotSequential { .. }) => {}
                other => {
                    found.free_blocks[half] = (free + 1 < blocks).then_some(free + 1);
                    return other;
                }
            }
        }
        self.device.sync()?;
        let mut first = found.needed();
        first.push(*next);
        // Copies may have rotted since. Of two segments without room the one that lacks something is cleared first.
        if !self.missing(found, 1 - half).is_empty()
            && !self.add_missing(found, 1 - half)?
            && self.missing(found, half).is_empty()
        {
            self.begin_again(found, 1 - half, &first)?;
            self.device.sync()?;
        }
        self.begin_again(found, half, &first)
    }

    /// Clears a segment, which then begins with these superblocks.
    fn begin_again(&self, found: &mut FoundSuperblock, half: usize, first: &[Superblock]) -> esker_device::Result<()> {
        let superblock = found.superblock;
        let (block, blocks) = (superblock.block_bytes as usize, blocks_of(&superblock));
        let start = half as u64 * superblock.superblock_segment_bytes;
        self.clear(start, superblock.superblock_segment_bytes)?;
        // None stands there if this is as far as it comes.
        found.free_blocks[half] = Some(0);
        let first = &first[first.len().saturating_sub(blocks as usize)..];
        let mut bytes = vec![0; first.len() * block];
        first.iter().zip(bytes.chunks_mut(block)).for_each(|(superblock, bytes)| superblock.encode(bytes));
        self.device.write(start, &bytes)?;
        let next = first.len() as u64;
        found.free_blocks[half] = (next < blocks).then_some(next);
        Ok(())
    }

    /// Writes what is needed again where one of the two segments does not have it any more.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn mend(&self) -> Result<()> {
        let mut found = self.found.lock();
        let mended = self.make_whole(&mut found);
        mended.map_err(|error| device_error("writing a superblock again that has rotted in one of two segments", error))
    }

    /// Sees to it that both segments have what is needed, so that either may be cleared. Where each lacks something and
    /// neither has room, it is tried again with the next one that is written.
    fn make_whole(&self, found: &mut FoundSuperblock) -> esker_device::Result<()> {
        // One that has room first: then the other may be cleared.
        let mut roomy = [0, 1];
        roomy.sort_by_key(|half| found.free_blocks[*half].is_none());
        for half in roomy {
            if !self.missing(found, half).is_empty() && !self.add_missing(found, half)? {
                self.device.sync()?;
                if self.missing(found, 1 - half).is_empty() {
                    self.begin_again(found, half, &found.needed())?;
                }
            }
        }
        self.device.sync()?;
        found.both_whole = [0, 1].into_iter().all(|half| self.missing(found, half).is_empty());
        Ok(())
    }

    /// What of [`FoundSuperblock::needed`] a segment does not have.
    fn missing(&self, found: &FoundSuperblock, half: usize) -> Vec<Superblock> {
        // What cannot be read is taken for lost.
        let (area, _) = read_half(&*self.device, half as u64, &found.superblock);
        let stand =
            area.chunks(found.superblock.block_bytes as usize).filter_map(|bytes| Superblock::decode(bytes).ok());
        let stand: Vec<_> = stand.map(|superblock| (superblock.sequence, superblock.root)).collect();
        let mut needed = found.needed();
        needed.retain(|superblock| !stand.contains(&(superblock.sequence, superblock.root)));
        needed
    }

    /// Appends what a segment does not have, if it has room for that.
    fn add_missing(&self, found: &mut FoundSuperblock, half: usize) -> esker_device::Result<bool> {
        let missing = self.missing(found, half);
        let (block, blocks) = (u64::from(found.superblock.block_bytes), blocks_of(&found.superblock));
        let start = half as u64 * found.superblock.superblock_segment_bytes;
        let Some(free) = found.free_blocks[half].filter(|free| free + missing.len() as u64 <= blocks) else {
            return Ok(false);
        };
        let mut bytes = vec![0; missing.len() * block as usize];
        missing.iter().zip(bytes.chunks_mut(block as usize)).for_each(|(superblock, bytes)| superblock.encode(bytes));
        match self.device.write(start + free * block, &bytes) {
            Err(esker_device::Error::NotSequential { .. }) => return Ok(false),
            other => other?,
        }
        let next = free + missing.len() as u64;
        found.free_blocks[half] = (next < blocks).then_some(next);
        self.device.sync()?;
        Ok(true)
    }

    fn clear(&self, start: u64, len: u64) -> esker_device::Result<()> {
        // Where zones need no reset the device keeps its space: another user of the file system might take it.
        if self.device.geometry().zone_bytes.is_some() {
            self.device.discard(start, len)?;
        } else {
            self.device.write(start, &vec![0; len as usize])?;
        }
        self.device.sync()
    }
}

/// Superblocks that a segment of them has room for.
fn blocks_of(superblock: &Superblock) -> u64 {
    superblock.superblock_segment_bytes.min(1 << 20) / u64::from(superblock.block_bytes)
}

/// One of the two segments of superblocks, as the medium has it, with zeros for blocks that cannot be read, and how
/// many these are.
pub fn read_half(device: &dyn Device, half: u64, superblock: &Superblock) -> (Vec<u8>, u64) {
    let (block, start) = (superblock.block_bytes as usize, half * superblock.superblock_segment_bytes);
    let len = blocks_of(superblock) as usize * block;
    // Past the operating system's cache only aligned memory can be read to.
    let mut memory = vec![0; len + block];
    let skip = memory.as_ptr().align_offset(block).min(block);
    let area = &mut memory[skip..skip + len];
    let unread = read_readable(superblock.block_bytes, start, area, |at, bytes| device.read_medium(at, bytes));
    memory.drain(..skip);
    memory.truncate(len);
    (memory, unread)
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
    let mut valid: Vec<Superblock> = Vec::new();
    let mut free_blocks = [None; 2];
    let mut worst = SuperblockError::Empty;
    let (mut damaged, mut failed) = (0, None);
    for half in 0..2u64 {
        let mut area = vec![0; segment_bytes.min(1 << 20) as usize];
        let (mut used, mut unreadable) = (0, None);
        let whole = device.read(half * segment_bytes, &mut area).is_ok();
        for (number, bytes) in area.chunks_mut(block as usize).enumerate() {
            let number = number as u64;
            // One block that cannot be read must not hide the others: all of them stand twice.
            if !whole && let Err(error) = device.read(half * segment_bytes + number * block, bytes) {
                (used, damaged) = (number + 1, damaged + 1);
                unreadable = Some(error);
                continue;
            }
            let bytes = &*bytes;
            match Superblock::decode(bytes) {
                Ok(found) => {
                    used = number + 1;
                    valid.push(found);
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
        if let Some(error) = unreadable {
            let of = || format!("reading the superblocks of {name}");
            if failed.is_some() {
                return Err(device_error(&of(), error));
            }
            failed = Some(error);
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
    valid.sort_by_key(|superblock| std::cmp::Reverse(superblock.sequence));
    let Some(superblock) = valid.first().copied() else {
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
    // Leftovers of another store do not count, nor do second copies.
    valid.retain(|older| older.uuid == superblock.uuid && older.sequence < superblock.sequence);
    valid.dedup_by_key(|older| older.sequence);
    Ok(FoundSuperblock {
        superblock,
        older: valid,
        free_blocks,
        damaged,
        damaged_at_opening: damaged,
        goes_on_from: None,
        both_whole: false,
    })
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

/// A device's error as a store's.
pub fn device_error(what: &str, error: esker_device::Error) -> Error {
    match error {
        esker_device::Error::Io { source, .. } => Error::io(what, source),
        other => Error::io(what, std::io::Error::other(other)),
    }
}
