//! Where the log goes on after opening: in its last segment, or in a new one.
//!
//! end of the replayed log → synced → cleared if it is torn → segment → superblock → log and its threads
//!
//! Invariant: what was replayed is durable before anything is written behind it.

use std::sync::Arc;

use esker_device::Device;
use esker_store::{DurableMark, Error, Result};

use super::Options;
use crate::buffer::SegmentBuffer;
use crate::commit::{Log, LogEnd, LogShape};
use crate::engine::Engine;
use crate::format::{
    RECORD_FLAG_GROUP_END, RECORD_HEADER_BYTES, RecordHeader, ReplayFrom, SegmentHeader, Stream, Superblock, round_up,
};
use crate::recover::{Chain, End};
use crate::segments::Lsn;
use crate::superblocks::device_error;

/// More segments than this are never open or ready at a time.
const GENERATIONS_IN_FLIGHT: u32 = 16;

impl Engine {
    /// Readies the end of the log for appending.
    pub(super) fn start_log(
        &mut self,
        chain: &Chain,
        end: End,
        last: Option<Arc<SegmentBuffer>>,
        base_lsn: Lsn,
        options: &Options,
    ) -> Result<()> {
        let superblock = self.superblocks.newest();
        let block = u64::from(superblock.block_bytes);
        let segment_bytes = superblock.segment_bytes;
        let (device, clean) = (&*self.device, self.recovery.clean);
        let tail = round_up(end.offset, block);
        // Without a free segment the last one has to do, even if it has room for nothing but the end of a group.
        let needed = if self.segments.free_segments() == 0 { u64::from(!end.group_ended) } else { 2 };
        let room = tail + needed * block <= segment_bytes;
        let last_link =
            chain.links.last().filter(|link| end.generation > 0 && link.header.generation == end.generation);
        // What a torn end has left can be cleared, which costs a write of what is left of the segment: a device that is
        // nearly full must not lose a segment with every crash.
        let scarce = self.segments.free_segments() <= self.segments.usable_segments() * 2 / 5;
        let zoned = device.geometry().zone_bytes.is_some();
        // Where the header is lost, the next opening would have to do without it again.
        let header_lost = chain.begin_lost && chain.links.len() == 1;
        let mut goes_on = last_link.is_some()
            && !header_lost
            && (end.clean_after || scarce && !zoned)
            && room
            && (!zoned || (clean && end.group_ended));
        if goes_on {
            // A crash may have taken back what was reserved of it: to run out of space in the middle would stop the
            // log.
            match device.reserve(end.segment * segment_bytes, segment_bytes) {
                Err(esker_device::Error::NoSpace { .. }) => goes_on = false,
                other => other.map_err(|error| device_error("reserving the log's last segment", error))?,
            }
        }
        let mut begins_after = end;
        if !goes_on
            && let Some(link) = last_link
            && end.offset == block
            && end.generation != superblock.replay.generation
            && link.header.previous_generation != 0
        {
            // Nothing came into it: it is begun again, in place of another.
            begins_after.generation = link.header.previous_generation;
            begins_after.segment = self.segments.segment_of(link.header.previous_end);
            begins_after.offset = self.segments.within(link.header.previous_end);
            self.segments.take(end.segment);
            self.segments.release(end.segment, true);
        }
        if goes_on && !end.clean_after {
            self.clear_torn_end(end, last.as_deref(), tail)?;
        }
        // Headers of the segments that were being opened may be lost: their generations must not come back.
        let known = clean && chain.headless.is_empty() && !chain.begin_lost;
        let generation_max = chain.generation_max + if known { 0 } else { GENERATIONS_IN_FLIGHT };
        let mut log_end = match last {
            Some(buffer) if goes_on => LogEnd {
                segment: end.segment,
                generation: end.generation,
                buffer,
                base_lsn,
                tail,
                start: tail,
                seq: end.seq,
                group: end.group + 1,
                generation_max,
            },
            _ => match self.new_segment(chain, generation_max + 1, begins_after, base_lsn, &superblock) {
                Ok(log_end) => log_end,
                Err(Error::Full { .. }) => {
                    // Nothing can be appended after a torn end without a segment: what is there can be read.
                    self.full_since_open = true;
                    return Ok(());
                }
                Err(error) => return Err(error),
            },
        };
        if !end.group_ended {
            // The last group was cut short; it is durable now, and its end must say so before a later group begins.
            self.end_group(&mut log_end, end, block)?;
        }
        self.segments.take(log_end.segment);
        self.segments.set_end(log_end.segment, u64::MAX);
        let shape = LogShape {
            uuid: superblock.uuid,
            seed: self.seed,
            block_bytes: block,
            pending_bytes_max: options.pending_bytes_max,
            threaded: options.commit_thread,
            async_flush: options.async_flush,
        };
        let offset = log_end.segment * segment_bytes + log_end.tail;
        let generation = log_end.generation;
        self.superblocks.write(|superblock| {
            begin_in(superblock, log_end.segment, generation);
            end_at(superblock, false, generation, offset, end.seq);
        })?;
        let durable = log_end.base_lsn + log_end.tail;
        let log = Log::new(
            Arc::clone(&self.device) as Arc<dyn Device>,
            shape,
            Arc::clone(&self.segments),
            log_end,
            options.policy,
        );
        let log = Arc::new(log);
        let weak = Arc::downgrade(&log);
        let threaded = options.commit_thread;
        let nudge = move || {
            if let Some(log) = weak.upgrade() {
                if threaded { log.nudge_for_waiter() } else { log.commit(true) }
            }
        };
        self.mark = if threaded {
            let weak = Arc::downgrade(&log);
            let commit = move || weak.upgrade().is_some_and(|log| log.commit_alone());
            DurableMark::with_commit(durable, Box::new(nudge), Box::new(commit))
        } else {
            DurableMark::new(durable, Box::new(nudge))
        };
        log.set_mark(Arc::clone(&self.mark));
        // Before the threads: what was started is ended with it, should one of them not start.
        self.log = Some(Arc::clone(&log));
        if threaded {
            self.spawn("esker-commit", &log, Log::run)?;
            self.spawn("esker-prepare", &log, Log::run_preparer)?;
        }
        Ok(())
    }

    /// A new segment for the log to go on in, its header written and durable.
    fn new_segment(
        &self,
        chain: &Chain,
        generation: u32,
        end: End,
        base_lsn: Lsn,
        superblock: &Superblock,
    ) -> Result<LogEnd> {
        let segment_bytes = superblock.segment_bytes;
        let block = u64::from(superblock.block_bytes);
        let full = Error::Full { needed: segment_bytes, free: 0 };
        let (segment, offset) = loop {
            let taken = self.segments.take_reserved(&*self.device, false);
            let segment = taken.map_err(|error| device_error("reserving a segment", error))?.ok_or(full.clone())?;
            let offset = segment * segment_bytes;
            if !chain.headless.contains(&segment) && self.device.geometry().zone_bytes.is_none() {
                break (segment, offset);
            }
            // This gives its blocks back.
            match self.device.discard(offset, segment_bytes) {
                // A hole may need blocks itself: another segment may do.
                Err(esker_device::Error::NoSpace { .. }) => {
                    self.segments.set_bare(segment);
                    continue;
                }
                cleared => cleared.map_err(|error| device_error("clearing a segment", error))?,
            }
            match self.device.reserve(offset, segment_bytes) {
                Err(esker_device::Error::NoSpace { .. }) => self.segments.set_bare(segment),
                other => {
                    other.map_err(|error| device_error("reserving a segment", error))?;
                    break (segment, offset);
                }
            }
        };
        self.device.prefill(offset, segment_bytes).map_err(|error| device_error("filling a segment ahead", error))?;
        let group = end.group + 1;
        let header = SegmentHeader {
            generation,
            uuid: superblock.uuid,
            segment,
            previous_end: if end.generation == 0 { 0 } else { end.segment * segment_bytes + end.offset },
            first_seq: end.seq + 1,
            group,
            previous_generation: end.generation,
            stream: Stream::Log,
        };
        let mut buffer = self.segments.new_buffer().map_err(|error| Error::io("allocating a segment buffer", error))?;
        header.encode(&mut buffer.whole_mut()[..block as usize]);
        let head = &buffer.whole_mut()[..block as usize];
        self.device.write(offset, head).map_err(|error| device_error("writing a segment header", error))?;
        self.device.sync().map_err(|error| device_error("syncing a segment header", error))?;
        let base_lsn = if end.generation == 0 { base_lsn } else { base_lsn + segment_bytes };
        let buffer = Arc::new(buffer);
        self.segments.place(segment, generation, base_lsn, end.seq, false);
        self.segments.publish_buffer(segment, Arc::clone(&buffer));
        Ok(LogEnd {
            segment,
            generation,
            buffer,
            base_lsn,
            tail: block,
            start: block,
            seq: end.seq,
            group,
            generation_max: generation,
        })
    }

    /// Writes the end of a group that a crash cut short.
    fn end_group(&self, log_end: &mut LogEnd, end: End, block: u64) -> Result<()> {
        let header = RecordHeader {
            len: RECORD_HEADER_BYTES as u32,
            seq: end.seq,
            group: end.group,
            generation: log_end.generation,
            op_count: 0,
            flags: RECORD_FLAG_GROUP_END,
        };
        let offset = log_end.segment * self.segments.segment_bytes + log_end.tail;
        // SAFETY: the log is not running yet: no other thread writes this buffer, and nothing in the index points here.
        let bytes = unsafe { log_end.buffer.range_mut(log_end.tail as usize, block as usize) };
        bytes.fill(0);
        header.encode(bytes, self.seed, offset);
        self.device.write(offset, bytes).map_err(|error| device_error("ending a group", error))?;
        self.device.sync().map_err(|error| device_error("ending a group", error))?;
        log_end.tail += block;
        log_end.start = log_end.tail;
        Ok(())
    }
}

/// Says in a superblock where the log begins, if nothing says yet where it goes on after a checkpoint.
pub(super) fn begin_in(superblock: &mut Superblock, segment: u64, generation: u32) {
    if superblock.replay.generation == 0 {
        let offset = segment * superblock.segment_bytes + u64::from(superblock.block_bytes);
        superblock.replay = ReplayFrom { generation, offset, ..ReplayFrom::default() };
    }
}

/// Says in a superblock where the log ends.
pub(super) fn end_at(superblock: &mut Superblock, clean: bool, generation: u32, offset: u64, seq: u64) {
    superblock.clean = clean;
    superblock.end_generation = generation;
    superblock.end_offset = offset;
    superblock.end_seq = seq;
}
