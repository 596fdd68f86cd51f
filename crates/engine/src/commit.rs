//! Group commit: turns submitted transactions into one append and one sync.
//!
//! submit → [`Log::reserve`] (a range of the open group) → encode in place → drop the [`Reservation`]
//! commit thread → cut the group → wait for its writers → append → sync → durable mark → completions
//!
//! A reservation takes the log's lock for as long as it takes to move three counters. Everything that costs
//! (checksums, copying, index changes) is done by the submitting thread outside of it. The commit thread cuts the
//! group under the same lock, waits until the group's writers have finished their copies, writes it out from the
//! segment's buffer, syncs once, and moves the mark, which wakes all waiters with one call.
//! Whoever waits alone while the commit thread sleeps does the same in its own thread ([`Log::commit_alone`]).
//!
//! Invariants:
//! 1. Sequence numbers, log positions and the order of reservations agree.
//! 2. A record of group g + 1 is written only after the sync of group g has returned. A group lies in one segment.
//! 3. No lock is held over device I/O, except the one that keeps a second committer out.
//! 4. After a failed write or sync nothing is written any more; the first cause answers every waiter.
//!
//! Tried and rejected: a buffer per record and a vectored write (slow below 1 KiB: one segment of the vector each);
//! copying under the log's lock (serialises large values).
//! Source: Apollo Storage, Group Commit Log (2017).

mod fill;
mod prepare;
mod reserve;
mod room;
mod thread;

pub use reserve::{Refused, Reservation, record_header};
pub use room::{Class, Gate};

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::thread::Thread;
use std::time::{Duration, Instant};

use esker_device::Device;
use esker_store::{DurableMark, Error, Result};
use parking_lot::{Condvar, Mutex, RwLock};

use self::fill::Fill;
use crate::buffer::SegmentBuffer;
use crate::format::{
    RECORD_FLAG_GROUP_END, RECORD_HEADER_BYTES, RecordHeader, ReplayFrom, SegmentHeader, Stream, round_up,
};
use crate::gather::Gather;
use crate::policy::CommitPolicy;
use crate::segments::{Lsn, Segments};
use crate::stages::Times;

/// The commit thread appends without a sync when so many bytes are pending.
const APPEND_BYTES: u64 = 1 << 20;
/// One device write is at most so many bytes, so that readers of the device are not held up.
const WRITE_BYTES_MAX: usize = 8 << 20;
/// Under a load that fills a segment faster than this, several are readied ahead.
const HURRY: Duration = Duration::from_millis(500);

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
    /// Whether a commit thread and a preparing thread serve the log; else whoever waits commits.
    pub threaded: bool,
    /// Longest time that a record which nobody waits for stays unsynced.
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

struct State {
    segment: u64,
    generation: u32,
    generation_max: u32,
    buffer: Arc<SegmentBuffer>,
    base_lsn: Lsn,
    start: u64,
    tail: u64,
    seq: u64,
    group: u64,
    group_open: bool,
    epoch: u32,
    parity: usize,
    next: VecDeque<Ready>,
    /// What stands before, as an offset in the open segment, need not be filled ahead any more.
    filled: u64,
    entered: Option<Instant>,
    hurried: bool,
    /// Somebody waits for the next segment.
    starved: bool,
    full: bool,
    stopping: bool,
    sealed: VecDeque<Piece>,
    oldest_unsynced: Option<Instant>,
    records: u64,
    record_bytes: u64,
    payload_bytes: u64,
    relocation_bytes: u64,
    replay_ns: u64,
}

/// A segment that is ready for the log.
struct Ready {
    segment: u64,
    buffer: Arc<SegmentBuffer>,
    /// What stands before, as an offset in it, need not be filled ahead any more.
    filled: u64,
}

struct Piece {
    buffer: Arc<SegmentBuffer>,
    buffer_start: u64,
    device_offset: u64,
    lsn: Lsn,
    len: u64,
    /// It ends a group: sync before anything else is written.
    ends_group: bool,
}

impl Piece {
    fn end(&self) -> Lsn {
        self.lsn + self.len
    }
}

#[repr(align(64))]
struct Padded(AtomicUsize);

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

/// The end of the log that is being written.
pub struct Log {
    device: Arc<dyn Device>,
    shape: LogShape,
    segments: Arc<Segments>,
    state: Mutex<State>,
    room: Condvar,
    wanted_segment: Condvar,
    fill: Fill,
    filling: [Padded; 2],
    unwritten: AtomicU64,
    committing: Mutex<()>,
    policy: RwLock<CommitPolicy>,
    applied: AtomicBool,
    /// Whether a sync is sent as soon as somebody waits and the device is free.
    at_once: AtomicBool,
    parked: AtomicBool,
    /// While the commit thread gathers: how many arrivals at the mark it waits for; else 0.
    gather_to: AtomicU64,
    gather: Mutex<Gather>,
    /// Arrivals at the mark when a group was cut last.
    arrived: AtomicU64,
    /// See [`Gate`].
    gate: AtomicU8,
    /// Free segments that writes leave alone, and that writes which take away leave alone.
    reserve: [AtomicU64; 2],
    /// While the cleaner can hardly keep up: bytes that writers may still take. `i64::MAX` otherwise.
    credit: AtomicI64,
    /// Writers that wait for credit.
    queued: AtomicU64,
    /// How often a refused write has asked the cleaner to look again, and up to which of these it has.
    asked: AtomicU64,
    looked: AtomicU64,
    /// Wakes the cleaner, or without threads cleans at once.
    keeper: OnceLock<Box<dyn Fn() + Send + Sync>>,
    thread: OnceLock<Thread>,
    mark: OnceLock<Arc<DurableMark>>,
    /// What the commit thread has done.
    pub counters: LogCounters,
}

impl Log {
    /// A log that goes on at `end`. Call [`Log::set_mark`] before use.
    pub fn new(
        device: Arc<dyn Device>,
        shape: LogShape,
        segments: Arc<Segments>,
        end: LogEnd,
        policy: CommitPolicy,
    ) -> Self {
        let state = State {
            segment: end.segment,
            generation: end.generation,
            generation_max: end.generation_max,
            buffer: end.buffer,
            base_lsn: end.base_lsn,
            start: end.start,
            tail: end.tail,
            seq: end.seq,
            group: end.group,
            group_open: false,
            epoch: 1,
            parity: 0,
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
        };
        Self {
            device,
            shape,
            segments,
            state: Mutex::new(state),
            room: Condvar::new(),
            wanted_segment: Condvar::new(),
            fill: Fill::default(),
            filling: [Padded(AtomicUsize::new(0)), Padded(AtomicUsize::new(0))],
            unwritten: AtomicU64::new(0),
            committing: Mutex::new(()),
            policy: RwLock::new(policy),
            applied: AtomicBool::new(policy.acknowledges_applied()),
            at_once: AtomicBool::new(policy.syncs_at_once()),
            parked: AtomicBool::new(false),
            gather_to: AtomicU64::new(0),
            gather: Mutex::default(),
            arrived: AtomicU64::new(0),
            gate: AtomicU8::new(Gate::Open as u8),
            reserve: [AtomicU64::new(0), AtomicU64::new(0)],
            credit: AtomicI64::new(i64::MAX),
            queued: AtomicU64::new(0),
            asked: AtomicU64::new(0),
            looked: AtomicU64::new(0),
            keeper: OnceLock::new(),
            thread: OnceLock::new(),
            mark: OnceLock::new(),
            counters: LogCounters::default(),
        }
    }

    /// Gives the log its mark, which must stand at the log's current position.
    pub fn set_mark(&self, mark: Arc<DurableMark>) {
        assert!(self.mark.set(mark).is_ok(), "a log has one mark");
    }

    /// The durable mark.
    pub fn mark(&self) -> &Arc<DurableMark> {
        self.mark.get().expect("set_mark is called before the log is used")
    }

    /// The policy in force.
    pub fn policy(&self) -> CommitPolicy {
        *self.policy.read()
    }

    /// Whether the policy in force acknowledges before the sync, see [`CommitPolicy`].
    pub fn acknowledges_applied(&self) -> bool {
        self.applied.load(Ordering::Relaxed)
    }

    /// Changes the policy; the next group obeys it.
    pub fn set_policy(&self, policy: CommitPolicy) {
        let mut current = self.policy.write();
        *current = policy;
        self.applied.store(policy.acknowledges_applied(), Ordering::Relaxed);
        self.at_once.store(policy.syncs_at_once(), Ordering::Relaxed);
        self.gather_to.store(0, Ordering::Relaxed);
        drop(current);
        self.nudge();
    }

    /// Current end of the log.
    pub fn end(&self) -> Lsn {
        let state = self.state.lock();
        state.base_lsn + state.tail
    }

    /// Sequence number of the last record.
    pub fn last_seq(&self) -> u64 {
        self.state.lock().seq
    }

    /// Records and their bytes since opening.
    pub fn appended(&self) -> (u64, u64) {
        let state = self.state.lock();
        (state.records, state.record_bytes)
    }

    /// How long replaying these records will take, as far as their operations tell, in nanoseconds.
    pub fn replay_ns(&self) -> u64 {
        self.state.lock().replay_ns
    }

    /// Of those bytes: keys and payloads of transactions; the cleaner's records.
    pub fn appended_kinds(&self) -> (u64, u64) {
        let state = self.state.lock();
        (state.payload_bytes, state.relocation_bytes)
    }

    /// Generation and device offset of the end, and the last sequence number: for the superblock of a clean stop.
    pub fn clean_end(&self) -> (u32, u64, u64) {
        let state = self.state.lock();
        (state.generation, state.segment * self.segments.segment_bytes + state.tail, state.seq)
    }

    /// Generation of the open segment.
    pub fn open_generation(&self) -> u32 {
        self.state.lock().generation
    }

    /// Stops the log with this cause, as a failed write would.
    pub fn stop_for(&self, error: Error) {
        self.fail(error);
    }

    /// The epoch of checkpoints that records are written in.
    pub fn epoch(&self) -> u32 {
        self.state.lock().epoch
    }

    /// The last group that has ended.
    pub fn last_group(&self) -> u64 {
        self.state.lock().group - 1
    }

    /// Generation of the open segment, and the offset in it up to which groups have been cut and written.
    /// Everything before it is on the device, though perhaps not synced.
    pub fn written_end(&self) -> (u32, u64) {
        // Between two commits whatever was cut has been written.
        let _between_commits = self.committing.lock();
        let state = self.state.lock();
        (state.generation, state.start)
    }

    /// As [`Log::written_end`], without what was sealed since and is not on the device yet.
    pub fn reached(&self) -> (u32, u64) {
        let _between_commits = self.committing.lock();
        let state = self.state.lock();
        match state.sealed.front() {
            None => (state.generation, state.start),
            Some(sealed) => {
                let segment = self.segments.segment_of(sealed.device_offset);
                (self.segments.generation(segment), self.segments.within(sealed.device_offset))
            }
        }
    }

    /// A generation for a segment that is not of the log.
    pub fn next_generation(&self) -> u32 {
        let mut state = self.state.lock();
        state.generation_max += 1;
        state.generation_max
    }

    /// Ends the open group, makes everything durable, and says where the log goes on and which epoch has ended there:
    /// every transaction is of that epoch or earlier exactly if it stands before that place. A log that has stopped
    /// taking records is written and not synced: its end is durable after the next [`Log::commit`].
    ///
    /// # Errors
    /// [`Error::Stopped`] with the first cause.
    pub fn end_epoch(&self) -> Result<EpochEnd> {
        let committing = self.committing.lock();
        let mut ended = None;
        let last = {
            let mut state = self.state.lock();
            if state.stopping {
                // No group follows this one: nothing is written behind it that its sync would have to come before.
                self.end_group(&mut state);
            }
            state.stopping
        };
        let done = self.append_and_sync(!last, true, |state| {
            let from = ReplayFrom {
                generation: state.generation,
                offset: state.segment * self.segments.segment_bytes + state.tail,
                seq: state.seq,
                group: state.group - 1,
            };
            ended = Some(EpochEnd { from, epoch: state.epoch, last });
            state.epoch += 1;
        });
        if let Err(error) = done {
            self.fail(error.clone());
            return Err(error);
        }
        drop(committing);
        Ok(ended.expect("the group was cut"))
    }

    /// Writes the record that ends the open group, if there is one. `reserve` keeps two blocks free for it.
    fn end_group(&self, state: &mut State) {
        if !state.group_open {
            return;
        }
        let start = state.tail;
        let device_offset = state.segment * self.segments.segment_bytes + start;
        let header = RecordHeader {
            len: RECORD_HEADER_BYTES as u32,
            seq: state.seq,
            group: state.group,
            generation: state.generation,
            op_count: 0,
            flags: RECORD_FLAG_GROUP_END,
        };
        // SAFETY: beyond `tail`, which is guarded by the lock that the state comes from: given to nobody yet.
        let bytes = unsafe { state.buffer.range_mut(start as usize, RECORD_HEADER_BYTES) };
        header.encode(bytes, self.shape.seed, device_offset);
        state.tail += RECORD_HEADER_BYTES as u64;
        state.group += 1;
        state.group_open = false;
    }

    /// Seals the open segment with its group and opens the next.
    fn enter_segment(&self, state: &mut State, Ready { segment, buffer, filled }: Ready) {
        let block = self.shape.block_bytes;
        self.end_group(state);
        let end = round_up(state.tail, block);
        // SAFETY: nothing beyond `tail` has been given to anybody, and the lock that guards `tail` is held.
        unsafe { state.buffer.range_mut(state.tail as usize, (end - state.tail) as usize) }.fill(0);
        if end > state.start {
            state.sealed.push_back(Piece {
                buffer: Arc::clone(&state.buffer),
                buffer_start: state.start,
                device_offset: state.segment * self.segments.segment_bytes + state.start,
                lsn: state.base_lsn + state.start,
                len: end - state.start,
                ends_group: true,
            });
        }
        self.segments.set_end(state.segment, state.tail);
        let generation = state.generation_max + 1;
        let header = SegmentHeader {
            generation,
            uuid: self.shape.uuid,
            segment,
            previous_end: state.segment * self.segments.segment_bytes + state.tail,
            first_seq: state.seq + 1,
            group: state.group,
            previous_generation: state.generation,
            stream: Stream::Log,
        };
        // SAFETY: the buffer is fresh: nobody else reads or writes it yet.
        let block_bytes = unsafe { buffer.range_mut(0, block as usize) };
        block_bytes.fill(0);
        header.encode(block_bytes);
        if self.shape.threaded {
            let now = Instant::now();
            state.hurried = state.entered.replace(now).is_some_and(|before| now - before < HURRY);
        }
        state.base_lsn += self.segments.segment_bytes;
        state.segment = segment;
        state.generation = generation;
        state.generation_max = generation;
        state.buffer = buffer;
        state.start = 0;
        state.tail = block;
        state.filled = filled;
        self.segments.place(segment, generation, state.base_lsn, state.seq, false);
        self.segments.publish_buffer(segment, Arc::clone(&state.buffer));
    }

    /// Appends what is pending and, with `sync`, makes it durable. Returns once the mark has moved.
    pub fn commit(&self, sync: bool) {
        let committing = self.committing.lock();
        let prepared = if self.shape.threaded { Ok(()) } else { self.prepare_segment() };
        if let Err(error) = prepared.and_then(|()| self.append_and_sync(sync, true, |_| ())) {
            self.fail(error);
        }
        drop(committing);
    }

    fn fail(&self, error: Error) {
        tracing::error!(%error, "the log stopped");
        self.mark().fail(error);
        self.state.lock().stopping = true;
        self.room.notify_all();
        self.wanted_segment.notify_all();
    }

    /// With `gathers` the next group may be waited for: only where the commit thread looks at the time meanwhile. After
    /// a panic nobody knows what of the group is written.
    ///
    /// # Errors
    /// [`Error::Stopped`]: the caller stops the log.
    fn append_and_sync(&self, sync: bool, gathers: bool, at_cut: impl FnOnce(&mut State)) -> Result<()> {
        let append = || self.append_and_sync_once(sync, gathers, at_cut);
        catch_unwind(AssertUnwindSafe(append)).unwrap_or_else(|panic| Err(Error::panicked("writing the log", &*panic)))
    }

    fn append_and_sync_once(&self, sync: bool, gathers: bool, at_cut: impl FnOnce(&mut State)) -> Result<()> {
        if let Some(failure) = self.mark().failure() {
            return Err(failure);
        }
        let began = Instant::now();
        let (pieces, end, parity) = self.cut(sync, at_cut);
        let arrivals = self.mark().arrivals();
        self.arrived.store(arrivals, Ordering::Relaxed);
        // Writers of this group are between reserving and finishing their copy: a matter of microseconds.
        let mut spins = 0u32;
        while self.filling[parity].0.load(Ordering::Acquire) != 0 {
            spins += 1;
            if spins < 64 { std::hint::spin_loop() } else { std::thread::yield_now() }
        }
        if let Some(failure) = self.mark().failure() {
            // One of them has panicked: its record must not come to the device.
            return Err(failure);
        }
        for piece in &pieces {
            self.write_piece(piece)?;
            if piece.ends_group {
                self.sync_to(piece.end())?;
            }
        }
        if sync {
            self.device.sync().map_err(|error| stopped("syncing the log", &error))?;
            self.counters.syncs.fetch_add(1, Ordering::Relaxed);
            if gathers && self.shape.threaded && self.policy() == CommitPolicy::Adaptive {
                let now = Instant::now();
                let to = self.gather.lock().after_sync(arrivals, self.mark().arrivals(), now - began, now);
                self.gather_to.store(to, Ordering::Relaxed);
            }
            self.advance(end);
        }
        self.segments.evict_buffers(end);
        Ok(())
    }

    fn sync_to(&self, end: Lsn) -> Result<()> {
        self.device.sync().map_err(|error| stopped("syncing the log", &error))?;
        self.counters.syncs.fetch_add(1, Ordering::Relaxed);
        self.advance(end);
        Ok(())
    }

    fn advance(&self, end: Lsn) {
        let began = Instant::now();
        self.mark().advance(end);
        self.counters.wake.add(began.elapsed());
    }

    /// Ends the open group (with `sync`) or only pads it to a block, and takes what has to be written.
    fn cut(&self, sync: bool, at_cut: impl FnOnce(&mut State)) -> (Vec<Piece>, Lsn, usize) {
        let block = self.shape.block_bytes;
        let mut state = self.state.lock();
        if sync {
            self.end_group(&mut state);
        }
        let end = round_up(state.tail, block);
        // SAFETY: nothing beyond `tail` has been given to anybody, and the lock that guards `tail` is held.
        unsafe { state.buffer.range_mut(state.tail as usize, (end - state.tail) as usize) }.fill(0);
        state.tail = end;
        let mut pieces: Vec<Piece> = state.sealed.drain(..).collect();
        if end > state.start {
            pieces.push(Piece {
                buffer: Arc::clone(&state.buffer),
                buffer_start: state.start,
                device_offset: state.segment * self.segments.segment_bytes + state.start,
                lsn: state.base_lsn + state.start,
                len: end - state.start,
                ends_group: false,
            });
        }
        state.start = end;
        if sync && let Some(oldest) = state.oldest_unsynced.take() {
            self.counters.queue.add(oldest.elapsed());
        }
        let parity = state.parity;
        state.parity ^= 1;
        self.unwritten.store(0, Ordering::Relaxed);
        self.room.notify_all();
        if sync {
            self.mark().cut(state.base_lsn + end);
        }
        at_cut(&mut state);
        (pieces, state.base_lsn + end, parity)
    }

    fn write_piece(&self, piece: &Piece) -> Result<()> {
        self.wait_for_fill(piece.end());
        // SAFETY: the group was cut and all its writers have finished.
        let bytes = unsafe { piece.buffer.range(piece.buffer_start as usize, piece.len as usize) };
        let mut offset = piece.device_offset;
        for part in bytes.chunks(WRITE_BYTES_MAX) {
            self.device.write(offset, part).map_err(|error| stopped("appending to the log", &error))?;
            offset += part.len() as u64;
            self.counters.writes.fetch_add(1, Ordering::Relaxed);
            self.counters.written_bytes.fetch_add(part.len() as u64, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// The error that stops the log: what failed and why.
pub fn stopped(what: &str, error: &esker_device::Error) -> Error {
    let mut cause = format!("{what}: {error}");
    let mut source = std::error::Error::source(error);
    while let Some(inner) = source {
        cause.push_str(&format!(": {inner}"));
        source = inner.source();
    }
    Error::Stopped { cause: cause.into() }
}
