//! Group commit: turns submitted transactions into one append and one sync.
//!
//! submit → [`Log::reserve`] (a range of the open group) → encode in place → drop the [`Reservation`]
//! commit thread → cut the group → wait for its writers → append → sync → durable mark → completions
//!
//! A reservation takes the log's lock for as long as it takes to move three counters. Everything that costs
//! (checksums, copying, index changes) is done by the submitting thread outside of it. The commit thread cuts the
//! group under the same lock, waits until the group's writers have finished their copies, writes it out from the
//! segment's buffer, syncs once, and moves the mark, which wakes all waiters with one call.
//! A writer that waits alone while the commit thread sleeps does the same in its own thread ([`Log::commit_alone`]).
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
mod gate;
mod prepare;
mod reserve;
mod room;
mod state;
mod thread;
mod write;

pub use gate::{Class, Cleaner, Gate};
pub use reserve::{Refused, Reservation, record_header};
pub use room::{GIVING_LOOKS, waited_enough};
pub use state::{EpochEnd, LogCounters, LogEnd, LogShape};

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::Thread;
use std::time::Duration;

use esker_device::Device;
use esker_store::{Durability, DurableMark, Error};
use parking_lot::{Condvar, Mutex, RwLock};

use self::fill::Fill;
use self::state::State;
use crate::format::SHORT_NUMBER_END;
use crate::gather::Gather;
use crate::policy::CommitPolicy;
use crate::segments::{Lsn, Segments};

/// The commit thread appends without a sync when so many bytes are pending.
const APPEND_BYTES: u64 = 1 << 20;
/// Under a load that fills a segment faster than this, several are readied ahead.
const HURRY: Duration = Duration::from_millis(500);

/// What writers change with every record, apart from what they only look at: two cache lines, since some processors
/// fetch them in pairs.
#[repr(align(128))]
struct Padded<T>(T);

/// The end of the log that is being written.
pub struct Log {
    device: Arc<dyn Device>,
    shape: LogShape,
    segments: Arc<Segments>,
    /// See [`Log::has_short_headers`].
    short_headers: AtomicBool,
    state: Padded<Mutex<State>>,
    /// As `state` has it, for those who only ask: the log takes no records any more; so many segments are ready.
    stopping: AtomicBool,
    ready: AtomicUsize,
    room: Condvar,
    wanted_segment: Condvar,
    fill: Fill,
    /// Bytes that were given and not cut. Changed under the lock of `state`.
    unwritten: Padded<AtomicU64>,
    committing: Mutex<()>,
    policy: RwLock<CommitPolicy>,
    applied: AtomicBool,
    /// Whether a sync is sent as soon as a caller waits and the device is free.
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
    /// What these were by what the index took when the cleaner looked.
    counted: [AtomicU64; 2],
    /// Free segments that what leads to giving back leaves alone.
    giving_back_leaves: AtomicU64,
    /// Bytes of it that were let in since the store was opened.
    given: AtomicU64,
    /// How often it was refused.
    giving_refused: AtomicU64,
    /// While the cleaner can hardly keep up: bytes that writers may still take. `i64::MAX` otherwise.
    credit: AtomicI64,
    /// Writers that wait for credit.
    queued: AtomicU64,
    /// Those who waited for it elsewhere, were told that there is some, and have not come yet: they go first, too.
    expected: AtomicU64,
    /// How often a refused write has asked the cleaner to look again, and up to which of these it has.
    asked: AtomicU64,
    looked: AtomicU64,
    /// Wakes the cleaner, or without threads cleans at once.
    keeper: OnceLock<Box<dyn Cleaner>>,
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
        Self {
            device,
            shape,
            segments,
            short_headers: AtomicBool::new(are_low(end.seq, end.group)),
            state: Padded(Mutex::new(State::new(end))),
            stopping: AtomicBool::new(false),
            ready: AtomicUsize::new(0),
            room: Condvar::new(),
            wanted_segment: Condvar::new(),
            fill: Fill::default(),
            unwritten: Padded(AtomicU64::new(0)),
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
            counted: [AtomicU64::new(0), AtomicU64::new(0)],
            giving_back_leaves: AtomicU64::new(0),
            given: AtomicU64::new(0),
            giving_refused: AtomicU64::new(0),
            credit: AtomicI64::new(i64::MAX),
            queued: AtomicU64::new(0),
            expected: AtomicU64::new(0),
            asked: AtomicU64::new(0),
            looked: AtomicU64::new(0),
            keeper: OnceLock::new(),
            thread: OnceLock::new(),
            mark: OnceLock::new(),
            counters: LogCounters::default(),
        }
    }

    /// Whether records may have short headers: their numbers are far from what these hold. A caller that was told so
    /// may go on as long as it likes: no log gets from half of these numbers to their end meanwhile.
    pub fn has_short_headers(&self) -> bool {
        self.short_headers.load(Ordering::Relaxed)
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

    /// Whether a write of this durability is acknowledged, and shown to readers, before the sync: see [`CommitPolicy`].
    pub fn is_applied_only(&self, durability: Durability) -> bool {
        match durability {
            Durability::Applied => true,
            Durability::Durable => self.applied.load(Ordering::Relaxed),
            Durability::Always => false,
        }
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
        let state = self.state.0.lock();
        state.base_lsn + state.tail
    }

    /// Sequence number of the last record.
    pub fn last_seq(&self) -> u64 {
        self.state.0.lock().seq
    }

    /// Records and their bytes since opening.
    pub fn appended(&self) -> (u64, u64) {
        let state = self.state.0.lock();
        (state.records, state.record_bytes)
    }

    /// How long replaying these records will take, as far as their operations tell, in nanoseconds.
    pub fn replay_ns(&self) -> u64 {
        self.state.0.lock().replay_ns
    }

    /// Of those bytes: keys and payloads of transactions; the cleaner's records.
    pub fn appended_kinds(&self) -> (u64, u64) {
        let state = self.state.0.lock();
        (state.payload_bytes, state.relocation_bytes)
    }

    /// Generation and device offset of the end, and the last sequence number: for the superblock of a clean stop.
    pub fn clean_end(&self) -> (u32, u64, u64) {
        let state = self.state.0.lock();
        (state.generation, state.segment * self.segments.segment_bytes + state.tail, state.seq)
    }

    /// Generation of the open segment.
    pub fn open_generation(&self) -> u32 {
        self.state.0.lock().generation
    }

    /// Stops the log with this cause, as a failed write would.
    pub fn stop_for(&self, error: Error) {
        self.fail(error);
    }

    /// The epoch of checkpoints that records are written in.
    pub fn epoch(&self) -> u32 {
        self.state.0.lock().epoch
    }

    /// The last group that has ended.
    pub fn last_group(&self) -> u64 {
        self.state.0.lock().group - 1
    }

    /// Generation of a segment of the log, and the offset in it, up to which groups are written: of the first that was
    /// sealed and is not on the device yet, else of the open one. Waits for a commit that is under way.
    pub fn reached(&self) -> (u32, u64) {
        let _between_commits = self.committing.lock();
        let state = self.state.0.lock();
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
        let mut state = self.state.0.lock();
        state.generation_max += 1;
        state.generation_max
    }
}

/// Whether these numbers of a record are far from those that need a long header.
fn are_low(seq: u64, group: u64) -> bool {
    seq.max(group) < SHORT_NUMBER_END / 2
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
