//! What a log consists of: its shape, where it goes on, what its lock guards, and what it counts.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use crate::buffer::SegmentBuffer;
use crate::format::ReplayFrom;
use crate::segments::Lsn;
use crate::stages::Times;

/// What the log needs to know of its store.
#[derive(Clone, Copy, Debug)]
pub struct LogShape {
    /// The store's id.
    pub uuid: [u8; 16],
    /// Seed of all checksums.
    pub seed: u32,
    /// Groups are padded to this, in bytes.
    pub block_bytes: u64,
    /// Bytes reserved but not yet written, above which writers wait.
    pub pending_bytes_max: u64,
    /// Whether a commit thread and a preparing thread serve the log; else a waiting writer commits.
    pub threaded: bool,
    /// Longest time that a record which no writer waits for stays unsynced.
    pub async_flush: Duration,
}

/// Where an epoch of checkpoints ended.
#[derive(Clone, Copy, Debug)]
pub struct EpochEnd {
    /// Where the log goes on.
    pub from: ReplayFrom,
    /// The epoch.
    pub epoch: u32,
    /// The log goes no further: it takes no records any more.
    pub last: bool,
}

/// Where the log goes on after opening.
pub struct LogEnd {
    /// The open segment's number, generation and buffer, and the offset in it where the log goes on.
    pub segment: u64,
    /// Its generation.
    pub generation: u32,
    /// Its buffer, holding what is in the log so far.
    pub buffer: Arc<SegmentBuffer>,
    /// Log position of the segment's start.
    pub base_lsn: Lsn,
    /// Offset in the segment: everything before is on the device.
    pub tail: u64,
    /// Offset in the segment from which the buffer still has to be written (below `tail` for a fresh header).
    pub start: u64,
    /// Last sequence number used.
    pub seq: u64,
    /// Group of the next record.
    pub group: u64,
    /// The highest generation ever used.
    pub generation_max: u32,
}

/// Counters of the commit thread.
#[derive(Default)]
pub struct LogCounters {
    /// Syncs of the device.
    pub syncs: AtomicU64,
    /// Device writes.
    pub writes: AtomicU64,
    /// Bytes written to the device, pads and headers included.
    pub written_bytes: AtomicU64,
    /// How long writers waited for room.
    pub room: Times,
    /// How long the oldest record of a group waited until the group was cut.
    pub queue: Times,
    /// How long it took to wake those who waited for a sync.
    pub wake: Times,
}

/// What the log's lock guards.
pub(super) struct State {
    pub segment: u64,
    pub generation: u32,
    pub generation_max: u32,
    pub buffer: Arc<SegmentBuffer>,
    pub base_lsn: Lsn,
    pub start: u64,
    pub tail: u64,
    /// Where `tail` was when the store was opened, in the segment that was open then.
    pub opened_at: u64,
    pub seq: u64,
    pub group: u64,
    pub group_open: bool,
    pub epoch: u32,
    pub next: VecDeque<Ready>,
    /// What stands before, as an offset in the open segment, need not be filled ahead any more.
    pub filled: u64,
    pub entered: Option<Instant>,
    pub hurried: bool,
    /// A writer waits for the next segment.
    pub starved: bool,
    pub full: bool,
    pub stopping: bool,
    pub sealed: VecDeque<Piece>,
    pub oldest_unsynced: Option<Instant>,
    pub records: u64,
    pub record_bytes: u64,
    pub payload_bytes: u64,
    pub relocation_bytes: u64,
    pub replay_ns: u64,
}

impl State {
    pub fn new(end: LogEnd) -> Self {
        Self {
            segment: end.segment,
            generation: end.generation,
            generation_max: end.generation_max,
            buffer: end.buffer,
            base_lsn: end.base_lsn,
            start: end.start,
            tail: end.tail,
            opened_at: end.tail,
            seq: end.seq,
            group: end.group,
            group_open: false,
            epoch: 1,
            next: VecDeque::new(),
            filled: 0,
            entered: None,
            hurried: false,
            starved: false,
            full: false,
            stopping: false,
            sealed: VecDeque::new(),
            oldest_unsynced: None,
            records: 0,
            record_bytes: 0,
            payload_bytes: 0,
            relocation_bytes: 0,
            replay_ns: 0,
        }
    }
}

/// A segment that is ready for the log.
pub(super) struct Ready {
    pub segment: u64,
    pub buffer: Arc<SegmentBuffer>,
    /// What stands before, as an offset in it, need not be filled ahead any more.
    pub filled: u64,
}

/// A part of a segment's buffer that was cut and is to be written.
pub(super) struct Piece {
    pub buffer: Arc<SegmentBuffer>,
    pub buffer_start: u64,
    pub device_offset: u64,
    pub lsn: Lsn,
    pub len: u64,
    /// It ends a group: sync before anything else is written.
    pub ends_group: bool,
}

impl Piece {
    pub fn end(&self) -> Lsn {
        self.lsn + self.len
    }
}
