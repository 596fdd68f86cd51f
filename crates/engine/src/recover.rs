//! Opening: finds the superblock, follows the chain of segments, and replays the log.
//!
//! superblocks → segment headers → chain by generation → records → index
//!
//! A record that does not hold is either the torn end of the log or damage. What is known tells which: the log went on
//! to where a later segment's header says that it left this one, and to where a superblock says that it was durable;
//! what does not hold before is damage, whatever stands after it. Groups tell the rest: a record of group g + 1 is
//! written only after group g was synced. So with the log good up to group g, a valid record further on proves damage
//! if its group is so late that the bad one must have been durable; else the bad one belongs to the last, unsynced
//! group, and the log ends there.
//!
//! Invariants:
//! 1. What is applied is a prefix of the log.
//! 2. The log is never found to end before the point that the superblock says was durable: that is damage.
//! 3. No record is passed over: sequence numbers and groups go on without a gap.
//! 4. Nothing is allocated by a length found on the device before its checksum held.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use esker_device::Device;
use esker_store::{Error, Result};

use crate::buffer::SegmentBuffer;
use crate::format::{
    OpHeader, RECORD_ALIGN, RECORD_HEADER_BYTES, RecordHeader, SHORT_RECORD_HEADER_BYTES, SegmentHeader, Stream,
    Superblock, round_up, store_seed,
};
use crate::reader::each_operation;
use crate::superblocks::device_error;

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
    /// The highest generation in any header, or that the superblock names.
    pub generation_max: u32,
    /// Segments with a valid header that are not replayed: log that a checkpoint covers, and cold ones. Nothing may
    /// point to them any more.
    pub others: Vec<SegmentHeader>,
    /// The header of the first link is lost.
    pub begin_lost: bool,
}

/// What stands in the first blocks of all segments.
#[derive(Debug)]
pub struct Headers {
    /// Headers that hold, by segment.
    pub known: Vec<SegmentHeader>,
    /// Segments without one whose first two blocks are not zero, by number.
    pub headless: Vec<u64>,
}

impl Headers {
    /// Whether anything stands in the first blocks of a segment: nothing does in one that was given back to the device.
    pub fn stands_in(&self, segment: u64) -> bool {
        self.known.binary_search_by_key(&segment, |header| header.segment).is_ok()
            || self.headless.binary_search(&segment).is_ok()
    }
}

/// Reads all segment headers.
///
/// # Errors
/// [`Error::Io`].
pub fn find_headers(device: &dyn Device, superblock: &Superblock) -> Result<Headers> {
    let segment_bytes = superblock.segment_bytes;
    let mut start = vec![0; 2 * superblock.block_bytes as usize];
    let mut headers = Headers { known: Vec::new(), headless: Vec::new() };
    for segment in superblock.log_segments() {
        let offset = segment * segment_bytes;
        let read = device.read(offset, &mut start);
        read.map_err(|error| device_error(&format!("reading the header of segment {segment} at {offset}"), error))?;
        match SegmentHeader::decode(&start, &superblock.uuid, segment) {
            Some(header) => headers.known.push(header),
            None if start.iter().any(|byte| *byte != 0) => headers.headless.push(segment),
            None => {}
        }
    }
    Ok(headers)
}

/// Links the segments that are to be replayed after what the checkpoint of `superblock` covers.
///
/// The first of them is known from the superblock, so that its header may be lost.
///
/// # Errors
/// [`Error::Corrupt`] when another segment that the log passes through has no valid header.
pub fn find_chain(found: &Headers, superblock: &Superblock) -> Result<Chain> {
    let segment_bytes = superblock.segment_bytes;
    let replay = superblock.replay;
    let (mut headers, mut others): (HashMap<u32, SegmentHeader>, _) = (HashMap::new(), Vec::new());
    // Where no superblock says where the log begins, as older programs left it, that is where the first one after its
    // beginning says that it had come to, if no header says otherwise.
    let (begins_with, begins_at) = match replay.generation {
        0 => (superblock.end_generation, superblock.end_offset),
        generation => (generation, replay.offset),
    };
    let begins_in = begins_at / segment_bytes;
    for header in &found.known {
        if header.stream == Stream::Cold && (header.segment, header.generation) == (begins_in, begins_with) {
            // The superblock knows that the log goes on there: this header counts as lost.
        } else if header.stream == Stream::Cold || header.generation < replay.generation {
            others.push(*header);
        } else {
            headers.insert(header.generation, *header);
        }
    }
    let on_device = superblock.log_segments();
    let begin_lost = begins_with != 0
        && on_device.contains(&begins_in)
        && !headers.contains_key(&begins_with)
        && (superblock.root != 0 || found.stands_in(begins_in) || replay.generation != 0 && !headers.is_empty())
        && (replay.generation != 0 || !headers.keys().any(|generation| *generation < begins_with))
        && !found.known.iter().any(|header| header.segment == begins_in && header.generation > begins_with);
    if begin_lost {
        // Of it only the segment and the generation count here.
        let begin = SegmentHeader {
            generation: begins_with,
            uuid: superblock.uuid,
            segment: begins_in,
            previous_end: 0,
            first_seq: 0,
            group: replay.group,
            previous_generation: 0,
            stream: Stream::Log,
        };
        headers.insert(begins_with, begin);
    }
    let last = headers.keys().copied().max().unwrap_or(replay.generation);
    let named = superblock.root_generation.max(superblock.end_generation);
    let generation_max = others.iter().map(|header| header.generation).max().unwrap_or(0).max(last).max(named);
    let mut links = Vec::new();
    let mut next = (last > 0).then_some((last, None));
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
        let more = before > 0 && generation > replay.generation;
        next = more.then(|| (before, Some(header.previous_end % segment_bytes)));
    }
    links.reverse();
    let begins = links.first().map_or(0, |link: &ChainLink| link.header.generation);
    if replay.generation != 0 && begins != replay.generation {
        return Err(Error::Corrupt {
            offset: replay.offset,
            what: format!("the log goes on with generation {begins}, not where the checkpoint ends"),
        });
    }
    Ok(Chain { links, headless: found.headless.clone(), generation_max, others, begin_lost })
}

/// The generation that the records of a segment have whose header is lost, and whether they are those of a cold one.
pub fn generation_of(bytes: &[u8], base: u64, block: u64, seed: u32) -> Option<(u32, bool)> {
    let decode = |at: usize| lone_record(bytes, at, base, seed);
    let mut found = (round_up(block, RECORD_ALIGN) as usize..bytes.len()).step_by(RECORD_ALIGN as usize);
    // Records of cold segments have no number of their own.
    found.find_map(decode).map(|record| (record.generation, record.seq == 0 && record.group == 0))
}

/// The record at offset `at` of a segment, where nothing says that there is one: of what may be a short header the
/// first operation holds too, since the bytes of anything have its first byte now and then.
fn lone_record(bytes: &[u8], at: usize, base: u64, seed: u32) -> Option<RecordHeader> {
    let record = RecordHeader::decode(&bytes[at..], seed, base + at as u64)?;
    let operations = at + record.header_bytes();
    let holds =
        || OpHeader::decode(bytes.get(operations..)?, seed, record.generation, base + operations as u64).map(|_| ());
    (record.header_bytes() == RECORD_HEADER_BYTES || holds().is_some()).then_some(record)
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
    /// Last sequence number of the log.
    pub last_seq: u64,
    /// Whether the store had been closed cleanly.
    pub clean: bool,
    /// Blocks among the superblocks that do not hold; another copy was used.
    pub damaged_superblocks: u64,
    /// Checkpoints that do not hold: an older one and the log after it were used.
    pub checkpoints_passed_over: u64,
    /// Segments in use whose headers do not hold.
    pub damaged_segments: u64,
    /// How long loading the checkpoint took, and replaying the log after it.
    pub load: Duration,
    /// See [`RecoveryReport::load`].
    pub replay: Duration,
    /// How long replaying took all threads together, without what they waited for one another: about what it takes one.
    pub replay_work: Duration,
    /// How long replaying was to be expected to take by its operations, in nanoseconds.
    pub replay_ns: u64,
    /// How long it took in all.
    pub elapsed: Duration,
}

/// Receives the log in order.
pub trait Replay {
    /// A segment was read; its buffer may be kept. Called before the records in it.
    fn segment(&mut self, header: &SegmentHeader, buffer: &Arc<SegmentBuffer>);
    /// A record whose operations all hold. `offset` is its place on the device, `operations` the bytes after its
    /// header.
    ///
    /// # Errors
    /// [`Error::Corrupt`] when it, or a record before it, makes no sense after what came before.
    fn record(&mut self, header: &RecordHeader, offset: u64, operations: &[u8]) -> Result<()>;
    /// Waits until everything that was received is done.
    ///
    /// # Errors
    /// As [`Replay::record`], for any of the records so far.
    fn settle(&mut self) -> Result<()>;
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
    pub fn new(device: &'a dyn Device, superblock: &'a Superblock, damaged_superblocks: u64) -> Self {
        let report = RecoveryReport { clean: superblock.clean, damaged_superblocks, ..RecoveryReport::default() };
        Self {
            device,
            superblock,
            seed: store_seed(&superblock.uuid),
            end: End {
                group_ended: true,
                seq: superblock.replay.seq,
                group: superblock.replay.group,
                ..End::default()
            },
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
        let mut walked = Ok(true);
        for (number, link) in chain.links.iter().enumerate() {
            progress(number as u64 * self.superblock.segment_bytes, total);
            walked = self.segment(chain, number, link, replay);
            if !matches!(walked, Ok(true)) {
                break;
            }
        }
        // What is wrong with an operation before the place where the walk has ended is said first.
        replay.settle()?;
        let goes_on = walked?;
        progress(total, total);
        let known = self.superblock;
        if goes_on && !known.clean {
            // What the last segment says ends where it ends. If the log went on, the next header is lost.
            let beyond = self.end.group + 1 + u64::from(self.end.group_ended);
            if let Some((proof, group)) = self.later_group_in(chain.headless.iter().copied(), beyond)? {
                return Err(Error::Corrupt {
                    offset: proof / known.segment_bytes * known.segment_bytes,
                    what: format!(
                        "no segment follows the record with sequence number {} (group {}), but there is a later one at device offset {proof} (group {group})",
                        self.end.seq, self.end.group
                    ),
                });
            }
        }
        if let Some((proof, group)) = self.beyond_in_known_end()? {
            return Err(Error::Corrupt {
                offset: proof / known.segment_bytes * known.segment_bytes,
                what: format!(
                    "the header of the segment with generation {} is lost; the log had come to it and goes on there after sequence number {}, at device offset {proof} (group {group})",
                    known.end_generation, self.end.seq
                ),
            });
        }
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
        self.report.replay = self.report.elapsed;
        self.report.replay_work = self.report.elapsed;
        self.report.last_seq = self.end.seq;
        Ok((self.end, self.report))
    }

    /// Replays one segment; false if the log ends in it.
    fn segment(&mut self, chain: &Chain, number: usize, link: &ChainLink, replay: &mut dyn Replay) -> Result<bool> {
        let base = link.header.segment * self.superblock.segment_bytes;
        let block = u64::from(self.superblock.block_bytes);
        let len = self.superblock.segment_bytes as usize;
        let mut buffer = SegmentBuffer::new(len).map_err(|error| Error::io("allocating a segment buffer", error))?;
        let known = self.superblock;
        let at = if known.replay.generation == link.header.generation {
            known.replay.offset.saturating_sub(base).clamp(block, len as u64)
        } else {
            block
        };
        // What the checkpoint covers is not read here, and verified when it is.
        buffer.begins_at(at as usize);
        let exact_end = (known.clean && known.end_generation == link.header.generation && link.end.is_none())
            .then(|| known.end_offset.saturating_sub(base).min(len as u64));
        let read_to = exact_end.map_or(len, |end| round_up(end, block) as usize).max(at as usize);
        let read = self.device.read(base + at, &mut buffer.whole_mut()[at as usize..read_to]);
        read.map_err(|error| device_error(&format!("reading segment {} at {base}", link.header.segment), error))?;
        if number > 0 && (link.header.first_seq, link.header.group) != (self.end.seq + 1, self.end.group + 1) {
            // The header was written when the log left the segment before, all of it durable.
            return Err(Error::Corrupt {
                offset: base,
                what: format!(
                    "segment {} begins after sequence number {} and group {}; before it the log goes to {} and {}",
                    link.header.segment,
                    link.header.first_seq.saturating_sub(1),
                    link.header.group.saturating_sub(1),
                    self.end.seq,
                    self.end.group
                ),
            });
        }
        self.report.segments += 1;
        let buffer = Arc::new(buffer);
        replay.segment(&link.header, &buffer);
        // SAFETY: the buffer was filled above and no thread writes it while the log is replayed.
        let bytes = unsafe { buffer.range(0, len) };
        let stop = link.end.unwrap_or(len as u64).min(len as u64);
        self.end.generation = link.header.generation;
        self.end.segment = link.header.segment;
        self.end.offset = at;
        if let Some(end) = exact_end {
            // It ends exactly there, whatever a former use of the segment has left behind.
            if at > end {
                return Err(Error::Corrupt { offset: base + end, what: "the log ends before its checkpoint".into() });
            }
            return self.records(chain, number, link, bytes, at..end, true, replay);
        }
        self.records(chain, number, link, bytes, at..stop, false, replay)
    }

    /// Replays the records of a segment in a range, whose end is certain with `exact`; false if the log ends before.
    #[expect(clippy::too_many_arguments, reason = "the second half of `segment`, which is the one call site")]
    fn records(
        &mut self,
        chain: &Chain,
        number: usize,
        link: &ChainLink,
        bytes: &[u8],
        range: std::ops::Range<u64>,
        exact: bool,
        replay: &mut dyn Replay,
    ) -> Result<bool> {
        let (mut at, stop) = (range.start, range.end);
        let base = link.header.segment * self.superblock.segment_bytes;
        let block = u64::from(self.superblock.block_bytes);
        let len = bytes.len();
        while at < stop {
            match self.parse(bytes, base, at, link.header.generation) {
                Parsed::Record(header) => {
                    if header.ends_group() {
                        self.end.group_ended = true;
                    } else {
                        let body = &bytes[at as usize + header.header_bytes()..at as usize + header.len as usize];
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
                    if (link.end.is_some() || exact) && padded && next_block >= stop {
                        break;
                    }
                    if link.end.is_some() || exact {
                        // A header is written only when the log before it is durable, up to where it says that it left
                        // it.
                        let known = if exact { "the store was closed" } else { "the next segment was begun" };
                        return Err(Error::Corrupt {
                            offset: base + at,
                            what: format!(
                                "the record after sequence number {} (group {}) does not hold, but the log went on to device offset {} before {known}",
                                self.end.seq,
                                self.end.group,
                                base + stop
                            ),
                        });
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
        // A group end repeats the sequence number of the last record; all else grows, by one, so that none is passed
        // over.
        let seq = self.end.seq + u64::from(!header.ends_group());
        let group = self.end.group + u64::from(self.end.group_ended);
        if (header.seq, header.group) != (seq, group) || header.ends_group() && self.end.group_ended {
            return Parsed::Bad;
        }
        let body = &rest[header.header_bytes()..header.len as usize];
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
        match self.later_group_in(later.chain(chain.headless.iter().copied()), proves_damage)? {
            Some((proof, group)) => damage(proof, group),
            None => Ok(()),
        }
    }

    /// A record that goes on with the log in the segment that the superblock says it had come to, where that has no
    /// header any more: its place and its group. That header was durable before the superblock was written, so that
    /// one record is enough, whatever its group.
    ///
    /// # Errors
    /// [`Error::Io`].
    fn beyond_in_known_end(&self) -> Result<Option<(u64, u64)>> {
        let known = self.superblock;
        if known.clean || self.end.generation >= known.end_generation {
            return Ok(None);
        }
        let base = known.end_offset / known.segment_bytes * known.segment_bytes;
        let mut bytes = vec![0; known.segment_bytes as usize];
        let read = self.device.read(base, &mut bytes);
        read.map_err(|error| device_error(&format!("reading the segment at {base}"), error))?;
        let at = u64::from(known.block_bytes);
        Ok(match self.parse(&bytes, base, at, known.end_generation) {
            // The end of a group that a crash had cut short says nothing new; the search for later groups finds what
            // follows it.
            Parsed::Record(header) if !header.ends_group() => Some((base + at, header.group)),
            _ => None,
        })
    }

    /// As [`Walk::later_group`], in segments from their beginning on.
    ///
    /// # Errors
    /// [`Error::Io`].
    fn later_group_in(&self, segments: impl Iterator<Item = u64>, group: u64) -> Result<Option<(u64, u64)>> {
        let mut segment_bytes = Vec::new();
        for segment in segments {
            let base = segment * self.superblock.segment_bytes;
            segment_bytes.resize(self.superblock.segment_bytes as usize, 0);
            let read = self.device.read(base, &mut segment_bytes);
            read.map_err(|error| device_error(&format!("reading segment {segment} at {base}"), error))?;
            let start = u64::from(self.superblock.block_bytes);
            let found = self.later_group(&segment_bytes, base, start, group);
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// A valid record of a group at or after `group`, at a multiple of the record alignment from `from` on.
    fn later_group(&self, bytes: &[u8], base: u64, from: u64, group: u64) -> Option<(u64, u64)> {
        let align = RECORD_ALIGN as usize;
        let from = round_up(from, RECORD_ALIGN) as usize;
        (from..bytes.len().saturating_sub(SHORT_RECORD_HEADER_BYTES)).step_by(align).find_map(|at| {
            let header = lone_record(bytes, at, base, self.seed)?;
            (header.group >= group && header.generation >= self.end.generation)
                .then_some((base + at as u64, header.group))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{Kind, OP_FLAG_SHORT, checksum_payload, encode_operation, short_flag};

    /// The first byte of a short header stands in one of 256 places of anything: by itself it proves nothing, or a torn
    /// end would be taken for damage.
    #[test]
    fn a_short_header_alone_is_no_record() {
        let (base, seed, at) = (1 << 20, 7, 64);
        let mut bytes = vec![0xE5; 256];
        let flags = short_flag(true, 1, 48);
        let record = RecordHeader { len: 48, seq: 9, group: 4, generation: 3, op_count: 1, flags };
        record.encode(&mut bytes[at..], seed, base + at as u64);
        assert!(RecordHeader::decode(&bytes[at..], seed, base + at as u64).is_some());
        assert_eq!(lone_record(&bytes, at, base, seed), None);
        let header = OpHeader {
            kind: Kind::SlotSet,
            flags: OP_FLAG_SHORT,
            key_len: 0,
            payload_len: 0,
            object: 3,
            argument: 7,
            payload_crc: 0,
        };
        let operation = at + record.header_bytes();
        let (sums, place) = (checksum_payload(b"abcd"), base + operation as u64);
        encode_operation(header, b"", b"abcd", &sums, &mut bytes[operation..], seed, 3, place);
        assert_eq!(lone_record(&bytes, at, base, seed), Some(record));
        // At the end of what was read.
        assert_eq!(lone_record(&bytes[..operation], at, base, seed), None);
    }
}
