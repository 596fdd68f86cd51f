//! Opening: finds the superblock, follows the chain of segments, and replays the log.
//!
//! superblocks → segment headers → chain by generation → records → index
//!
//! A record that does not hold is either the torn end of the log or damage. Groups tell which: a record of group
//! g + 1 is written only after group g was synced. So with the log good up to group g, a valid record further on
//! proves damage if its group is so late that the bad one must have been durable; else the bad one belongs to the
//! last, unsynced group, and the log ends there.
//!
//! Invariants:
//! 1. What is applied is a prefix of the log.
//! 2. The log is never found to end before the point that the superblock says was durable: that is damage.
//! 3. Nothing is allocated by a length found on the device before its checksum held.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use esker_device::Device;
use esker_store::{Error, Result};

use crate::format::{
    OpHeader, RECORD_ALIGN, RECORD_HEADER_BYTES, RecordHeader, SegmentHeader, Superblock, SuperblockError, round_up,
    store_seed, verify_payload,
};
use crate::reader::device_error;
use crate::segments::SegmentBuffer;

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

/// Size of a superblock segment on a device that is not zoned, in bytes.
pub const SUPERBLOCK_SEGMENT_BYTES: u64 = 64 << 10;

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

fn refuse(name: &str, why: &str) -> Error {
    Error::Invalid { what: "store", why: format!("{name} {why}") }
}

/// One segment of the log.
#[derive(Clone, Copy, Debug)]
pub struct ChainLink {
    /// Its header.
    pub header: SegmentHeader,
    /// Offset in the segment at which the log leaves it, where the next segment says so.
    pub end: Option<u64>,
}

/// The segments that hold the log, oldest first, and those that may hold a continuation whose header is lost.
#[derive(Debug)]
pub struct Chain {
    /// The log's segments.
    pub links: Vec<ChainLink>,
    /// Segments without a valid header whose second block is not zero.
    pub headless: Vec<u64>,
    /// The highest generation seen in any header.
    pub generation_max: u32,
}

/// Reads all segment headers and links them.
///
/// # Errors
/// [`Error::Corrupt`] when a segment that the log passes through has no valid header.
pub fn find_chain(device: &dyn Device, superblock: &Superblock) -> Result<Chain> {
    let segment_bytes = superblock.segment_bytes;
    let block = u64::from(superblock.block_bytes);
    let mut headers: HashMap<u32, SegmentHeader> = HashMap::new();
    let mut headless = Vec::new();
    let mut start = vec![0; 2 * block as usize];
    for segment in first_segment(superblock)..superblock.device_len / segment_bytes {
        let offset = segment * segment_bytes;
        let read = device.read(offset, &mut start);
        read.map_err(|error| device_error(&format!("reading the header of segment {segment} at {offset}"), error))?;
        match SegmentHeader::decode(&start, &superblock.uuid, segment) {
            Some(header) => {
                headers.insert(header.generation, header);
            }
            None if start.iter().any(|byte| *byte != 0) => headless.push(segment),
            None => {}
        }
    }
    let generation_max = headers.keys().copied().max().unwrap_or(0);
    let mut links = Vec::new();
    let mut next = (generation_max > 0).then_some((generation_max, None));
    while let Some((generation, end)) = next {
        let Some(header) = headers.get(&generation) else {
            return Err(Error::Corrupt {
                offset: 0,
                what: format!(
                    "the header of the segment with generation {generation} is lost; the log passes through it"
                ),
            });
        };
        links.push(ChainLink { header: *header, end });
        let before = header.previous_generation;
        if before >= generation {
            return Err(Error::Corrupt {
                offset: header.segment * segment_bytes,
                what: format!("segment generation {generation} claims to follow generation {before}"),
            });
        }
        next = (before > 0).then(|| (before, Some(header.previous_end % segment_bytes)));
    }
    links.reverse();
    Ok(Chain { links, headless, generation_max })
}

/// First segment that holds log: the superblocks come before it.
pub fn first_segment(superblock: &Superblock) -> u64 {
    round_up(2 * superblock.superblock_segment_bytes, superblock.segment_bytes) / superblock.segment_bytes
}

/// Where the log ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct End {
    /// Generation of the last segment.
    pub generation: u32,
    /// Its number.
    pub segment: u64,
    /// Offset in it after the last good record.
    pub offset: u64,
    /// Last sequence number.
    pub seq: u64,
    /// Group of the last record.
    pub group: u64,
    /// Whether the last record ended its group.
    pub group_ended: bool,
    /// Whether only zeros follow in the segment.
    pub clean_after: bool,
}

/// What opening did.
#[derive(Clone, Copy, Debug, Default)]
pub struct RecoveryReport {
    /// Segments replayed.
    pub segments: u64,
    /// Transactions replayed.
    pub records: u64,
    /// Operations replayed.
    pub operations: u64,
    /// Bytes of log read.
    pub bytes: u64,
    /// Bytes of a torn last group that were cut off.
    pub torn_bytes: u64,
    /// Whether the store had been closed cleanly.
    pub clean: bool,
    /// Blocks among the superblocks that do not hold; another copy was used.
    pub damaged_superblocks: u64,
    /// How long it took.
    pub elapsed: Duration,
}

/// Receives the log in order.
pub trait Replay {
    /// A segment was read; its buffer may be kept. Called before the records in it.
    fn segment(&mut self, header: &SegmentHeader, buffer: &Arc<SegmentBuffer>);
    /// A record whose operations all hold. `offset` is its place on the device, `operations` the bytes after its header.
    ///
    /// # Errors
    /// [`Error::Corrupt`] when it makes no sense after what came before.
    fn record(&mut self, header: &RecordHeader, offset: u64, operations: &[u8]) -> Result<()>;
}

/// Walks the operations of a record's body, verifying each: `f(header, operation bytes, device offset)`.
///
/// # Errors
/// [`Error::Corrupt`] for the first that does not hold; errors of `f`.
pub fn each_operation(
    record: &RecordHeader,
    offset: u64,
    operations: &[u8],
    store_seed: u32,
    mut f: impl FnMut(&OpHeader, &[u8], u64) -> Result<()>,
) -> Result<()> {
    let bad = |offset: u64, what: &str| Error::Corrupt { offset, what: what.into() };
    let mut rest = operations;
    let mut at = offset + RECORD_HEADER_BYTES as u64;
    for _ in 0..record.op_count {
        let header = OpHeader::decode(rest, store_seed, record.generation, at)
            .ok_or_else(|| bad(at, "operation header checksum mismatch"))?;
        let total = header.total_bytes() as usize;
        if total > rest.len() || !verify_payload(&header, rest) {
            return Err(bad(at, "payload checksum mismatch"));
        }
        f(&header, &rest[..total], at)?;
        rest = &rest[total..];
        at += total as u64;
    }
    if rest.is_empty() { Ok(()) } else { Err(bad(at, "record is longer than its operations")) }
}

/// Walks the log and finds its end.
pub struct Walk<'a> {
    device: &'a dyn Device,
    superblock: &'a Superblock,
    seed: u32,
    end: End,
    report: RecoveryReport,
}

enum Parsed {
    Record(RecordHeader),
    Bad,
}

impl<'a> Walk<'a> {
    /// A walk over the log of this store.
    pub fn new(device: &'a dyn Device, found: &'a FoundSuperblock) -> Self {
        let report = RecoveryReport {
            clean: found.superblock.clean,
            damaged_superblocks: found.damaged,
            ..RecoveryReport::default()
        };
        let superblock = &found.superblock;
        Self {
            device,
            superblock,
            seed: store_seed(&superblock.uuid),
            end: End { group_ended: true, ..End::default() },
            report,
        }
    }

    /// Replays the whole chain. `progress(done, total)` is told bytes.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for damage, with its place; [`Error::Io`].
    pub fn run(
        mut self,
        chain: &Chain,
        replay: &mut dyn Replay,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<(End, RecoveryReport)> {
        let began = Instant::now();
        let total = chain.links.len() as u64 * self.superblock.segment_bytes;
        for (number, link) in chain.links.iter().enumerate() {
            progress(number as u64 * self.superblock.segment_bytes, total);
            if !self.segment(chain, number, link, replay)? {
                break;
            }
        }
        progress(total, total);
        let known = self.superblock;
        if self.end.seq < known.end_seq {
            return Err(Error::Corrupt {
                offset: known.end_offset,
                what: format!(
                    "the log ends after sequence number {}, but was durable up to {} at device offset {}",
                    self.end.seq, known.end_seq, known.end_offset
                ),
            });
        }
        self.report.elapsed = began.elapsed();
        Ok((self.end, self.report))
    }

    /// Replays one segment; false if the log ends in it.
    fn segment(&mut self, chain: &Chain, number: usize, link: &ChainLink, replay: &mut dyn Replay) -> Result<bool> {
        let base = link.header.segment * self.superblock.segment_bytes;
        let block = u64::from(self.superblock.block_bytes);
        let len = self.superblock.segment_bytes as usize;
        let mut buffer = SegmentBuffer::new(len).map_err(|error| Error::io("allocating a segment buffer", error))?;
        let bytes = buffer.whole_mut();
        let read = self.device.read(base, bytes);
        read.map_err(|error| device_error(&format!("reading segment {} at {base}", link.header.segment), error))?;
        self.report.segments += 1;
        let buffer = Arc::new(buffer);
        replay.segment(&link.header, &buffer);
        // SAFETY: the buffer was filled above and nobody writes it while the log is replayed.
        let bytes = unsafe { buffer.range(0, len) };
        let stop = link.end.unwrap_or(len as u64).min(len as u64);
        let mut at = block;
        self.end.generation = link.header.generation;
        self.end.segment = link.header.segment;
        self.end.offset = at;
        while at < stop {
            match self.parse(bytes, base, at, link.header.generation) {
                Parsed::Record(header) => {
                    if header.ends_group() {
                        self.end.group_ended = true;
                    } else {
                        let body = &bytes[at as usize + RECORD_HEADER_BYTES..at as usize + header.len as usize];
                        replay.record(&header, base + at, body)?;
                        self.end.group_ended = false;
                        self.report.records += 1;
                        self.report.operations += u64::from(header.op_count);
                    }
                    self.end.seq = header.seq;
                    self.end.group = header.group;
                    at += u64::from(header.len);
                    self.end.offset = at;
                    self.report.bytes += u64::from(header.len);
                }
                Parsed::Bad => {
                    let next_block = round_up(at, block);
                    let padded = bytes[at as usize..(next_block as usize).min(len)].iter().all(|byte| *byte == 0);
                    if next_block > at && next_block < stop && padded {
                        at = next_block;
                        continue;
                    }
                    if link.end.is_some() && padded && next_block >= stop {
                        break;
                    }
                    self.classify(chain, number, bytes, base, at)?;
                    self.end.clean_after = bytes[self.end.offset as usize..].iter().all(|byte| *byte == 0);
                    if !self.end.clean_after {
                        let after = &bytes[at as usize..];
                        let last = after.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
                        self.report.torn_bytes += last as u64;
                    }
                    return Ok(false);
                }
            }
        }
        self.end.clean_after = link.end.is_none();
        Ok(true)
    }

    fn parse(&self, bytes: &[u8], base: u64, at: u64, generation: u32) -> Parsed {
        let rest = &bytes[at as usize..];
        let Some(header) = RecordHeader::decode(rest, self.seed, base + at) else { return Parsed::Bad };
        if header.generation != generation || header.len as usize > rest.len() {
            return Parsed::Bad;
        }
        // A group end repeats the sequence number of the last record; all else grows.
        let in_order = if header.ends_group() { header.seq >= self.end.seq } else { header.seq > self.end.seq };
        if !in_order || header.group < self.end.group {
            return Parsed::Bad;
        }
        let body = &rest[RECORD_HEADER_BYTES..header.len as usize];
        match each_operation(&header, base + at, body, self.seed, |_, _, _| Ok(())) {
            Ok(()) => Parsed::Record(header),
            Err(_) => Parsed::Bad,
        }
    }

    /// The record at `at` does not hold: torn end or damage?
    fn classify(&self, chain: &Chain, number: usize, bytes: &[u8], base: u64, at: u64) -> Result<()> {
        // A later record of this group or a later one proves that the bad one had been durable.
        let proves_damage = self.end.group + 1 + u64::from(self.end.group_ended);
        let damage = |proof: u64, group: u64| {
            Err(Error::Corrupt {
                offset: base + at,
                what: format!(
                    "the record after sequence number {} (group {}) does not hold, but a later one at device offset {proof} (group {group}) does",
                    self.end.seq, self.end.group
                ),
            })
        };
        if let Some((proof, group)) = self.later_group(bytes, base, at + RECORD_ALIGN, proves_damage) {
            return damage(proof, group);
        }
        let later = chain.links[number + 1..].iter().map(|link| link.header.segment);
        let mut segment_bytes = Vec::new();
        for segment in later.chain(chain.headless.iter().copied()) {
            let base = segment * self.superblock.segment_bytes;
            segment_bytes.resize(self.superblock.segment_bytes as usize, 0);
            let read = self.device.read(base, &mut segment_bytes);
            read.map_err(|error| device_error(&format!("reading segment {segment} at {base}"), error))?;
            let start = u64::from(self.superblock.block_bytes);
            if let Some((proof, group)) = self.later_group(&segment_bytes, base, start, proves_damage) {
                return damage(proof, group);
            }
        }
        Ok(())
    }

    /// A valid record of a group at or after `group`, at a multiple of the record alignment from `from` on.
    fn later_group(&self, bytes: &[u8], base: u64, from: u64, group: u64) -> Option<(u64, u64)> {
        let align = RECORD_ALIGN as usize;
        let from = round_up(from, RECORD_ALIGN) as usize;
        (from..bytes.len().saturating_sub(RECORD_HEADER_BYTES)).step_by(align).find_map(|at| {
            let header = RecordHeader::decode(&bytes[at..], self.seed, base + at as u64)?;
            (header.group >= group && header.generation >= self.end.generation)
                .then_some((base + at as u64, header.group))
        })
    }
}
