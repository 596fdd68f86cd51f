//! Disks in memory, for tests of the protocol and for trying clients out. Nothing survives the process.
//!
//! Invariant: a block that was never written, or was discarded, takes no space and is told as a hole.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use parking_lot::RwLock;

use crate::nbd::export::{Done, Export, Exports, Extent, Fault, OpenError, Outcome, Piece};

const BLOCK_BYTES: u64 = 4_096;

/// A thin disk in memory.
#[derive(Debug)]
pub struct MemoryDisk {
    size: u64,
    read_only: bool,
    blocks: RwLock<BTreeMap<u64, Box<[u8]>>>,
    flushes: AtomicU64,
}

impl MemoryDisk {
    /// A disk of zeros, of `size` bytes.
    pub fn new(size: u64) -> Self {
        Self { size, read_only: false, blocks: RwLock::default(), flushes: AtomicU64::new(0) }
    }

    /// One that refuses writes.
    pub fn read_only(size: u64) -> Self {
        Self { read_only: true, ..Self::new(size) }
    }

    /// Bytes that its blocks take.
    pub fn used_bytes(&self) -> u64 {
        self.blocks.read().len() as u64 * BLOCK_BYTES
    }

    /// How often it was flushed, writes with FUA included.
    pub fn flushes(&self) -> u64 {
        self.flushes.load(Ordering::SeqCst)
    }

    fn note(&self, fua: bool) -> Outcome {
        if fua {
            self.flushes.fetch_add(1, Ordering::SeqCst);
        }
        Ok(Done::now(()))
    }

    /// The parts of a range, block by block: number, place in the block, length.
    fn parts(offset: u64, len: u64) -> impl Iterator<Item = (u64, usize, usize)> {
        let end = offset + len;
        let mut at = offset;
        std::iter::from_fn(move || {
            if at == end {
                return None;
            }
            let (block, within) = (at / BLOCK_BYTES, at % BLOCK_BYTES);
            let len = (BLOCK_BYTES - within).min(end - at);
            at += len;
            Some((block, within as usize, len as usize))
        })
    }

    fn clear(&self, offset: u64, len: u64) {
        let mut blocks = self.blocks.write();
        for (block, within, len) in Self::parts(offset, len) {
            if len as u64 == BLOCK_BYTES {
                blocks.remove(&block);
            } else if let Some(block) = blocks.get_mut(&block) {
                block[within..within + len].fill(0);
            }
        }
    }
}

impl Export for MemoryDisk {
    fn size(&self) -> u64 {
        self.size
    }

    fn read_only(&self) -> bool {
        self.read_only
    }

    fn description(&self) -> String {
        "in memory".into()
    }

    fn read(&self, offset: u64, len: u32) -> Outcome<Vec<Piece>> {
        let blocks = self.blocks.read();
        let mut pieces: Vec<Piece> = Vec::new();
        for (block, within, len) in Self::parts(offset, len.into()) {
            match (blocks.get(&block), pieces.last_mut()) {
                (Some(block), _) => pieces.push(Piece::Data(Bytes::copy_from_slice(&block[within..within + len]))),
                (None, Some(Piece::Hole(hole))) => *hole += len as u64,
                (None, _) => pieces.push(Piece::Hole(len as u64)),
            }
        }
        Ok(Done::now(pieces))
    }

    fn write(&self, offset: u64, mut data: Bytes, fua: bool) -> Outcome {
        let mut blocks = self.blocks.write();
        for (block, within, len) in Self::parts(offset, data.len() as u64) {
            let block = blocks.entry(block).or_insert_with(|| vec![0; BLOCK_BYTES as usize].into());
            block[within..within + len].copy_from_slice(&data.split_to(len));
        }
        self.note(fua)
    }

    fn zero(&self, offset: u64, len: u64, no_hole: bool, fast: bool, fua: bool) -> Outcome {
        if no_hole && fast {
            return Err(Fault::Unsupported("zeros that take space are no faster than writes".into()));
        }
        self.clear(offset, len);
        if no_hole {
            let mut blocks = self.blocks.write();
            for (block, ..) in Self::parts(offset, len) {
                blocks.entry(block).or_insert_with(|| vec![0; BLOCK_BYTES as usize].into());
            }
        }
        self.note(fua)
    }

    fn discard(&self, offset: u64, len: u64, fua: bool) -> Outcome {
        self.clear(offset, len);
        self.note(fua)
    }

    fn flush(&self) -> Outcome {
        self.note(true)
    }

    fn extents(&self, offset: u64, len: u64, limit: usize) -> Outcome<Vec<Extent>> {
        let blocks = self.blocks.read();
        let end = offset + len;
        let mut extents: Vec<Extent> = Vec::new();
        let mut at = offset;
        for block in blocks.range(offset / BLOCK_BYTES..end.div_ceil(BLOCK_BYTES)).map(|(block, _)| *block) {
            let (from, until) = ((block * BLOCK_BYTES).max(offset), ((block + 1) * BLOCK_BYTES).min(end));
            if (from > at && !extend(&mut extents, from - at, true, limit))
                || !extend(&mut extents, until - from, false, limit)
            {
                return Ok(Done::now(extents));
            }
            at = until;
        }
        if end > at {
            extend(&mut extents, end - at, true, limit);
        }
        Ok(Done::now(extents))
    }
}

/// Adds a run; `false` if that would be one too many.
fn extend(extents: &mut Vec<Extent>, len: u64, hole: bool, limit: usize) -> bool {
    if let Some(last) = extents.last_mut().filter(|last| last.hole == hole) {
        last.len += len;
        return true;
    }
    if extents.len() == limit {
        return false;
    }
    extents.push(Extent { len, hole, zero: hole });
    true
}

/// Disks in memory under names. The empty name means the first.
#[derive(Clone, Debug, Default)]
pub struct MemoryDisks(pub Vec<(String, Arc<MemoryDisk>)>);

impl Exports for MemoryDisks {
    fn list(&self) -> Result<Vec<(String, String)>, Fault> {
        Ok(self.0.iter().map(|(name, disk)| (name.clone(), disk.description())).collect())
    }

    fn resolve(&self, name: &str) -> Result<String, OpenError> {
        let first = self.0.first().filter(|_| name.is_empty());
        Ok(first.map_or(name, |(first, _)| first).to_string())
    }

    fn open(&self, name: &str) -> Result<Arc<dyn Export>, OpenError> {
        let found = self.0.iter().find(|(own, _)| own == name);
        let (_, disk) = found.ok_or_else(|| OpenError::Unknown(name.to_string()))?;
        Ok(Arc::clone(disk) as Arc<dyn Export>)
    }
}
