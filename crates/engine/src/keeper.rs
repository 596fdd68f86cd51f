//! The keeper: decides when to write a checkpoint and what to clean, frees segments, and lets writes in or not.
//!
//! ```text
//! a segment was entered → wake → free what nothing points to → checkpoint due? → space short? clean the best → gate
//! ```
//!
//! A segment is free again when no entry points to it, no piece of the last checkpoint stands in it, the log that made
//! it so is durable, and whoever may still be reading it has finished.
//!
//! The best segment is the one with the highest `(1 - u) age / (1 + u)`, u being the part of it that lives: cleaning
//! it costs reading it once and writing u of it, and what is old is likely to stay.
//!
//! Invariants:
//! 1. One thread at a time does this work; another moves what it has copied.
//! 2. Writes stop while so many segments are still free as a checkpoint, the cleaner and deletes need.
//!
//! Source: Rosenblum and Ousterhout, The Design and Implementation of a Log-Structured File System (1992), section 3.5.

mod grow;
mod moving;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use esker_device::Device;
use esker_store::{Error, Result};
use parking_lot::{Condvar, Mutex};

pub use grow::GrowReport;

use crate::checkpoint::{Parts, Saved};
use crate::clean::Clean;
use crate::cold::{Cold, ColdCounters};
use crate::commit::{Gate, stopped};
use crate::evict::Hand;
use crate::format::Superblock;
use crate::segments::Usage;
use crate::stages::Times;
use moving::Moving;

/// A checkpoint is due when so many bytes of log have gathered, or so many times the last checkpoint's bytes.
const CHECKPOINT_LOG_BYTES: u64 = 256 << 20;
const CHECKPOINT_LOG_FACTOR: u64 = 8;
/// What a checkpoint costs beside its pages, as a part of a segment.
const CHECKPOINT_SHARE: u64 = 2;
/// A checkpoint is written at most this fast, unless space is short, in bytes per second.
const CHECKPOINT_BYTES_PER_S: u64 = 256 << 20;
/// A segment that lives by more than this is not worth cleaning: of log all of it counts, because headers and gaps go
/// when it is cleaned, of a cold segment what was put into it, because it would be as full again.
const FULL_SHARE: f64 = 0.95;
/// When so many bytes have to be moved for one that can be written, the device is full.
const FULL_COST: u64 = 32;
/// With no more segments left than this above the reserve and what is being moved, writers get what cleaning makes free.
const PACED_SEGMENTS: u64 = 2;
/// Segments that writers get while a checkpoint is written then, and in how many parts.
const SLACK_SEGMENTS: u64 = 1;
const SLACK_PARTS: u64 = 64;
/// Before a checkpoint on a device that is nearly full, segments are emptied: one for the copies and one for the log that
/// says so must be left beside what the checkpoint takes.
const RESCUE_SEGMENTS: u64 = 2;
/// So many segments are being moved at most; with half as many left beside what a checkpoint needs they are awaited.
const FLYING_SEGMENTS: u64 = 4;
/// How long the thread sleeps when nothing wakes it.
const IDLE: Duration = Duration::from_secs(1);
/// How long the cleaner leaves everything in place after somebody has walked part of the log.
const WALK: Duration = Duration::from_secs(5);
/// Free segments that keep their blocks, ready to be written again without a change of the file; where few are free, all do.
const WARM_SEGMENTS: u64 = 8;
/// With more changed pages than the budget allows a checkpoint is due when the budget's bytes divided by this have been
/// written: what changes a page of 4 KiB takes about a hundred bytes of log.
const CROWDED_LOG_SHARE: u64 = 64;
/// How often the thread is woken at most because the index takes more than its budget, in microseconds.
const CROWDED_WAKE_US: u64 = 5_000;
/// The least budget for index pages, in bytes.
pub const INDEX_BYTES_MIN: u64 = 1 << 20;

/// What the keeper has done.
#[derive(Default)]
pub struct KeeperCounters {
    /// Checkpoints written.
    pub checkpoints: AtomicU64,
    /// Bytes of the last checkpoint that had changed.
    pub checkpoint_bytes: AtomicU64,
    /// Bytes of all checkpoints that had changed.
    pub checkpoint_all_bytes: AtomicU64,
    /// How long the last checkpoint took, in microseconds.
    pub checkpoint_us: AtomicU64,
    /// How long checkpoints took.
    pub checkpoint_times: Times,
    /// How long cleaning a segment took.
    pub clean_times: Times,
    /// Segments cleaned.
    pub cleaned: AtomicU64,
    /// Bytes copied by cleaning.
    pub copied_bytes: AtomicU64,
    /// Segments made free.
    pub freed: AtomicU64,
    /// Index pages that have left memory.
    pub pages_dropped: AtomicU64,
    /// Segments that hold operations which do not hold, so that they cannot be cleaned.
    pub damaged: AtomicU64,
}

struct Work {
    cold: Cold,
    saved: Saved,
    /// Generation from which the log is replayed.
    floor: u32,
    /// The log's last sequence number at the last checkpoint.
    covered: Option<u64>,
    /// Bytes of log at the last checkpoint.
    log_bytes: u64,
    checkpoint_bytes: u64,
    /// Segments, by generation, that were cleaned and wait for the next checkpoint, and whether as a whole.
    spent: HashMap<u32, bool>,
    /// Segments, by generation, that nothing points to, and the end of the log that says so.
    dying: HashMap<u32, u64>,
    /// Segments, by generation, that hold something which cannot be moved.
    stuck: HashSet<u32>,
    /// Bytes that were moved since writes last had to wait, and the bytes of transactions until then.
    effort: u64,
    effort_from: u64,
    /// Bytes that lived when the device was found to be full.
    full_at: Option<u64>,
    /// What `saved` says stands in the checkpoint that the superblock names.
    whole: bool,
    /// Which page is asked next to leave memory.
    hand: Hand,
    /// Where segments are read to be cleaned.
    scratch: Vec<u8>,
}

/// A checkpoint whose segments stay as long as this lives.
pub struct Held {
    /// Names the checkpoint.
    pub superblock: Superblock,
    /// The segments that it may need, its own and those of the data.
    pub segments: Vec<Usage>,
    /// The one of them that the cleaner still writes.
    pub open_cold: Option<u64>,
    keeper: Arc<Keeper>,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.keeper.held.fetch_sub(1, Ordering::AcqRel);
        self.keeper.wake();
    }
}

/// See the module.
pub struct Keeper {
    parts: Parts,
    device: Arc<dyn Device>,
    seed: u32,
    threaded: bool,
    index_bytes: u64,
    /// When the thread was last woken because the index takes more than its budget, in microseconds of `since`.
    crowded_at: AtomicU64,
    work: Mutex<Work>,
    moving: Moving,
    woken: Mutex<bool>,
    waking: Condvar,
    stopping: AtomicBool,
    /// Grows whenever entries get new places.
    moves: AtomicU64,
    /// The cold segment that is being written; `u64::MAX` for none.
    open_cold: Arc<AtomicU64>,
    open_cold_room: Arc<AtomicU64>,
    /// Until then nothing is moved unless space is short, for somebody who walks the log; in microseconds of `since`.
    walked_until: AtomicU64,
    since: Instant,
    /// While this is not zero no segment is made free: somebody copies segments.
    held: AtomicU64,
    cold_counters: Arc<ColdCounters>,
    /// What was done.
    pub counters: KeeperCounters,
}

impl Keeper {
    /// A keeper that goes on from what the last checkpoint holds.
    pub fn new(
        parts: Parts,
        device: Arc<dyn Device>,
        seed: u32,
        cold: Cold,
        saved: Saved,
        threaded: bool,
        index_bytes: u64,
    ) -> Self {
        let superblock = parts.superblocks.newest();
        let cold_counters = Arc::clone(&cold.counters);
        let (open_cold, open_cold_room) = (Arc::clone(&cold.writes), Arc::clone(&cold.room));
        let covered = (superblock.root != 0).then_some(superblock.replay.seq);
        let work = Work {
            cold,
            saved,
            floor: superblock.replay.generation.max(1),
            covered,
            log_bytes: 0,
            checkpoint_bytes: 0,
            spent: HashMap::new(),
            dying: HashMap::new(),
            stuck: HashSet::new(),
            effort: 0,
            effort_from: 0,
            full_at: None,
            whole: true,
            hand: Hand::default(),
            scratch: Vec::new(),
        };
        Self {
            parts,
            device,
            seed,
            threaded,
            index_bytes: index_bytes.max(INDEX_BYTES_MIN),
            crowded_at: AtomicU64::new(0),
            work: Mutex::new(work),
            moving: Moving::default(),
            woken: Mutex::new(false),
            waking: Condvar::new(),
            stopping: AtomicBool::new(false),
            moves: AtomicU64::new(0),
            open_cold,
            open_cold_room,
            walked_until: AtomicU64::new(0),
            since: Instant::now(),
            held: AtomicU64::new(0),
            cold_counters,
            counters: KeeperCounters::default(),
        }
    }

    /// Counters of the cold writer.
    pub fn cold(&self) -> &ColdCounters {
        &self.cold_counters
    }

    /// Has the thread look what is to be done; without threads it is done at once.
    pub fn wake(&self) {
        if self.stopping.load(Ordering::Acquire) {
            // A snapshot may outlive the store: what is closed is not written any more.
            return;
        }
        if !self.threaded {
            // What goes wrong stops the log, which tells everybody. Whoever is inside a checkpoint cannot begin another.
            if let Some(mut work) = self.work.try_lock() {
                let _ = self.look(&mut work);
            }
            return;
        }
        *self.woken.lock() = true;
        self.waking.notify_one();
    }

    /// The thread's life. Should it panic, the log stops: without a keeper writers would wait for ever.
    pub fn run(&self) {
        let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.run_until_stopped()));
        if ran.is_err() {
            self.parts.log.stop_for(Error::Stopped { cause: "the cleaner panicked".into() });
        }
    }

    fn run_until_stopped(&self) {
        while !self.stopping.load(Ordering::Acquire) {
            match self.step() {
                Ok(true) => continue,
                Ok(false) => {}
                Err(_) => return,
            }
            let mut woken = self.woken.lock();
            if !*woken && !self.stopping.load(Ordering::Acquire) {
                self.waking.wait_for(&mut woken, IDLE);
            }
            *woken = false;
        }
    }

    /// Somebody walks the log in order: for a while nothing is moved unless writes would have to wait.
    pub fn a_walk_goes_on(&self) {
        let until = (self.since.elapsed() + WALK).as_micros() as u64;
        self.walked_until.fetch_max(until, Ordering::Relaxed);
    }

    /// A number that grows whenever entries get new places; odd while they do.
    pub fn moves(&self) -> u64 {
        self.moves.load(Ordering::Acquire)
    }

    /// Whether more may come into this cold segment.
    pub fn writes(&self, segment: u64) -> bool {
        self.open_cold.load(Ordering::Acquire) == segment
    }

    /// Runs `f` while the cleaner waits.
    pub fn while_nothing_moves<R>(&self, f: impl FnOnce() -> R) -> R {
        let mut work = self.work.lock();
        // What goes wrong there is for the cleaner to tell.
        let _ = self.settle(&mut work);
        f()
    }

    /// Entries get new places, or have got them.
    fn count_move(&self) {
        self.moves.fetch_add(1, Ordering::AcqRel);
    }

    /// Ends the thread's work and writes a last checkpoint, if anything has changed since the last.
    ///
    /// # Errors
    /// [`Error::Full`], [`Error::Stopped`].
    pub fn close(&self) -> Result<()> {
        self.stopping.store(true, Ordering::Release);
        *self.woken.lock() = true;
        self.waking.notify_one();
        let mut work = self.work.lock();
        let closed = self.settle(&mut work).and_then(|()| {
            if work.covered == Some(self.parts.log.last_seq()) || self.parts.log.mark().failure().is_some() {
                return Ok(());
            }
            self.checkpoint_now(&mut work, true, &mut || ())
        });
        self.moving.end();
        closed
    }

    /// The last sequence number if a checkpoint covers it.
    pub fn covered(&self, seq: u64) -> Option<u64> {
        self.work.lock().covered.filter(|covered| *covered == seq)
    }

    /// Says how many free segments each class of writes leaves alone.
    pub fn set_reserve(&self) {
        let reserve = self.reserve();
        self.parts.log.set_gate(self.parts.log.gate(), reserve);
    }

    /// Free segments that writes leave alone, and that what takes away leaves alone.
    ///
    /// A checkpoint may have to write the whole index again while the last one still stands; the cleaner needs an open
    /// segment and one more; relocations need log; and an opening after a crash begins one segment of each kind. Writes leave
    /// four more. What takes away leaves only what a checkpoint needs with the cleaning before it, and a segment of each kind:
    /// closing and opening a full store may use up some of the rest, and deletes must go on. On a device of few segments
    /// writes leave two fifths of them.
    fn reserve(&self) -> [u64; 2] {
        let checkpoint = self.checkpoint_segments();
        let most = self.parts.segments.log_segments() * 2 / 5;
        let writes = (checkpoint + 8).min(most);
        [writes, (checkpoint + RESCUE_SEGMENTS + 2).min(writes.saturating_sub(1))]
    }

    /// With fewer free segments than this it is time to clean.
    fn low(&self, reserve: [u64; 2]) -> u64 {
        reserve[0] + 2 + self.parts.segments.log_segments() / 20
    }

    /// Segments that a checkpoint of the whole index takes at most; an eighth more for what does not fit at their ends.
    fn checkpoint_segments(&self) -> u64 {
        let segments = &self.parts.segments;
        // What the last one has, or what is in memory by now.
        let index = segments.index_bytes().max(self.parts.objects.page_bytes());
        (index + index / 8).div_ceil(segments.segment_bytes)
    }

    /// Writes a checkpoint now.
    ///
    /// # Errors
    /// [`Error::Full`], [`Error::Stopped`], [`Error::Io`].
    pub fn checkpoint(&self) -> Result<()> {
        self.checkpoint_while(&mut || ())
    }

    /// The same; `during` is called after each piece that is written, as if by somebody who changes the store meanwhile.
    ///
    /// # Errors
    /// As [`Keeper::checkpoint`].
    pub fn checkpoint_while(&self, during: &mut dyn FnMut()) -> Result<()> {
        let mut work = self.work.lock();
        self.checkpoint_now(&mut work, true, during)?;
        self.free_dead(&mut work, true)?;
        Ok(())
    }

    /// Sees to it that a checkpoint, and all that it needs, stays where it is until what this returns is dropped.
    ///
    /// # Errors
    /// As [`Keeper::checkpoint`].
    pub fn hold(self: &Arc<Self>) -> Result<Held> {
        let mut work = self.work.lock();
        self.settle(&mut work)?;
        let covers_all = |work: &Work| work.covered == Some(self.parts.log.last_seq());
        if !covers_all(&work) {
            self.checkpoint_now(&mut work, true, &mut || ())?;
        }
        self.free_dead(&mut work, true)?;
        self.held.fetch_add(1, Ordering::AcqRel);
        // What died since that checkpoint may just have been made free: then only a later one is whole without the log.
        if !covers_all(&work)
            && let Err(error) = self.checkpoint_now(&mut work, true, &mut || ())
        {
            self.held.fetch_sub(1, Ordering::AcqRel);
            return Err(error);
        }
        let superblock = self.parts.superblocks.newest();
        let mut segments = self.parts.segments.in_use();
        segments.retain(|usage| usage.cold || usage.generation <= superblock.replay.generation);
        Ok(Held { superblock, segments, open_cold: work.cold.open_segment(), keeper: Arc::clone(self) })
    }

    /// Cleans the segment that is worth most; whether there was one.
    ///
    /// # Errors
    /// [`Error::Full`], [`Error::Stopped`], [`Error::Io`].
    pub fn clean(&self) -> Result<bool> {
        let mut work = self.work.lock();
        if self.held.load(Ordering::Acquire) > 0 {
            // Nothing would be made free by it.
            return Ok(false);
        }
        let cleaned = if self.is_tight() && self.best(&work, FULL_SHARE).is_some() {
            self.checkpoint_now(&mut work, true, &mut || ())?;
            true
        } else {
            self.clean_best(&mut work, FULL_SHARE)?
        };
        self.settle(&mut work)?;
        self.free_dead(&mut work, true)?;
        Ok(cleaned)
    }

    /// Cleans all segments that hold anything dead. `progress(done, total)` is told segments; it returns false to stop.
    ///
    /// # Errors
    /// [`Error::Full`], [`Error::Stopped`], [`Error::Io`].
    pub fn compact(&self, progress: &mut dyn FnMut(u64, u64) -> bool) -> Result<()> {
        if self.held.load(Ordering::Acquire) > 0 {
            let why = "a snapshot or a backup keeps all segments: nothing would be made free".into();
            return Err(Error::Invalid { what: "compaction", why });
        }
        self.checkpoint()?;
        let share = FULL_SHARE;
        let newest = self.parts.segments.in_use().iter().map(|usage| usage.generation).max().unwrap_or(0);
        let left = || {
            let work = self.work.lock();
            self.candidates(&work, share).filter(|(usage, _)| usage.generation <= newest).count() as u64
        };
        let total = left();
        let mut more = progress(0, total);
        while more && self.held.load(Ordering::Acquire) == 0 {
            let mut work = self.work.lock();
            let best = self.best(&work, share).filter(|usage| usage.generation <= newest);
            let Some(best) = best else { break };
            self.clean_segment(&mut work, best)?;
            self.free_dead(&mut work, false)?;
            if self.parts.log.segments_left() <= self.reserve()[0] {
                self.checkpoint_now(&mut work, true, &mut || ())?;
                self.free_dead(&mut work, true)?;
            }
            drop(work);
            more = progress(total - left().min(total), total);
        }
        self.checkpoint()
    }

    /// One look at what is to be done; whether anything was.
    fn step(&self) -> Result<bool> {
        self.look(&mut self.work.lock())
    }

    fn look(&self, work: &mut Work) -> Result<bool> {
        if let Some(failure) = self.parts.log.mark().failure() {
            return Err(failure);
        }
        let asked = self.parts.log.asked();
        let outcome = self.step_locked(work);
        self.parts.log.has_looked(asked);
        match outcome {
            Err(Error::Stopped { cause }) => Err(Error::Stopped { cause }),
            // Nothing is lost by that: it is tried again when the thread wakes.
            Err(error) => {
                tracing::warn!(%error, "checkpoint or cleaning put off");
                let reserve = self.reserve();
                let left = self.parts.log.segments_left();
                self.pace(false);
                self.parts.log.set_gate(if left > reserve[0] { Gate::Open } else { Gate::Full }, reserve);
                Ok(false)
            }
            done => done,
        }
    }

    fn step_locked(&self, work: &mut Work) -> Result<bool> {
        let log = &self.parts.log;
        let reserve = self.reserve();
        let total = self.parts.segments.log_segments();
        let low = self.low(reserve);
        let near = log.segments_left() <= self.checkpoint_segments() + RESCUE_SEGMENTS + FLYING_SEGMENTS / 2;
        if near || work.full_at.is_some() {
            self.settle(work)?;
        }
        self.note_failed(work)?;
        // While space is short what is dead is made free as the log becomes durable by itself.
        let mut done = self.free_dead(work, near || log.segments_left() >= low)?;
        let live: u64 = self.parts.segments.in_use().iter().map(|usage| usage.live).sum();
        if let Some(full_at) = work.full_at {
            // All that could be gained was: only what goes from now on makes room.
            let gone = full_at.saturating_sub(live) >= self.parts.segments.segment_bytes / 2;
            if !gone && log.segments_left() <= reserve[0] {
                log.set_gate(Gate::Full, reserve);
                self.pace(false);
                return Ok(false);
            }
            work.full_at = None;
            work.effort = 0;
        }
        let (_, appended) = log.appended();
        let tail = self.tail_segments(work);
        let tail_bytes = appended.saturating_sub(work.log_bytes);
        // What is left above the budget has changed: a checkpoint makes it fit to leave.
        let crowded = self.drop_pages(work) && tail_bytes >= self.index_bytes / CROWDED_LOG_SHARE;
        let due = crowded
            || tail_bytes >= CHECKPOINT_LOG_BYTES.max(CHECKPOINT_LOG_FACTOR * work.checkpoint_bytes)
                && tail_bytes >= 4 * self.parts.segments.segment_bytes;
        let held = self.held.load(Ordering::Acquire) > 0;
        // While segments are held a checkpoint frees nothing either: it leaves the reserve alone.
        let due = due && !(held && log.segments_left() <= reserve[0]);
        let short = log.segments_left() < low;
        let walked =
            self.threaded && self.since.elapsed().as_micros() as u64 <= self.walked_until.load(Ordering::Relaxed);
        let short = short && !(walked && log.segments_left() > reserve[0]);
        // While segments are held cleaning only takes space.
        let short = short && !held;
        // Where a checkpoint might not find what it needs, segments are cleaned that are free as soon as they are clean.
        let tight = self.is_tight();
        let best = match short {
            true if tight && log.segments_left() > RESCUE_SEGMENTS => {
                let at_once = self.best_of(work, FULL_SHARE, |usage| usage.index == 0);
                let nothing_to_cover = tail == 0 && work.spent.is_empty();
                at_once.or_else(|| self.best(work, FULL_SHARE).filter(|_| nothing_to_cover))
            }
            true => self.best(work, FULL_SHARE),
            false => None,
        };
        let pays = !tight && best.is_some_and(|best| self.tail_is_better(work, &best));
        let long_tail = tail >= 2.max(total / 8) && !tight || pays;
        if due
            || (short && tail > 0 && (best.is_none() || long_tail))
            || (short && best.is_none() && !work.spent.is_empty())
        {
            self.checkpoint_now(work, short, &mut || ())?;
            self.free_dead(work, true)?;
            done = true;
        } else if let Some(best) = best {
            done |= self.clean_segment(work, best)?;
            self.free_dead(work, near)?;
        }
        if !done {
            // What was begun before may have made room.
            self.settle(work)?;
            done |= self.free_dead(work, true)?;
        }
        let left = log.segments_left();
        let (written, _) = log.appended_kinds();
        if left > reserve[0] || work.effort / FULL_COST <= written.saturating_sub(work.effort_from) {
            (work.effort, work.effort_from) = (0, written);
        }
        // There was room enough to leave all in place when this look began: the next one will not.
        let missed = !short && !held && !done;
        let unhindered = left > reserve[0] + 2 * self.flying_segments() + PACED_SEGMENTS || !done;
        // Who gets only what cleaning gains needs no more to be kept back than what takes away, and a little.
        let flows = self.threaded && !unhindered && self.flying_segments() > 0;
        let kept = if flows { [reserve[0].min(reserve[1] + 1), reserve[1]] } else { reserve };
        let gate = if left > kept[0] {
            Gate::Open
        } else if missed || done && work.effort <= live + 4 * self.parts.segments.segment_bytes {
            Gate::Wait
        } else {
            // Everything that lives was moved once and next to nothing could be written for it, or nothing is worth it:
            // there is no more room to be had. (While segments are held that is not known.)
            work.full_at = (self.held.load(Ordering::Acquire) == 0).then_some(live);
            Gate::Full
        };
        log.set_gate(gate, kept);
        self.pace(!unhindered);
        Ok(done && left < low || missed && gate == Gate::Wait)
    }

    /// Has index pages leave memory as the budget asks; whether it is still exceeded.
    fn drop_pages(&self, work: &mut Work) -> bool {
        let objects = &self.parts.objects;
        if objects.page_bytes() > self.index_bytes && work.whole {
            let dropped = work.hand.sweep(&work.saved, objects, self.index_bytes - self.index_bytes / 8);
            self.counters.pages_dropped.fetch_add(dropped, Ordering::Relaxed);
        }
        objects.page_bytes() > self.index_bytes
    }

    /// Has all index pages leave memory that can, whatever the budget. How many left.
    pub fn drop_all_pages(&self) -> u64 {
        let mut work = self.work.lock();
        let work = &mut *work;
        if !work.whole {
            return 0;
        }
        let dropped = work.hand.sweep(&work.saved, &self.parts.objects, 0);
        self.counters.pages_dropped.fetch_add(dropped, Ordering::Relaxed);
        dropped
    }

    /// Wakes the thread if the index takes more than its budget.
    #[inline]
    pub fn index_has_grown(&self) {
        if self.threaded && self.parts.objects.page_bytes() > self.index_bytes {
            // Not at every call, in case nothing can leave.
            let now = self.since.elapsed().as_micros() as u64;
            let before = self.crowded_at.load(Ordering::Relaxed);
            if now.saturating_sub(before) >= CROWDED_WAKE_US {
                self.crowded_at.store(now, Ordering::Relaxed);
                self.wake();
            }
        }
    }

    /// Has writers keep to what there is, or not. Only a thread can be waited for.
    fn pace(&self, paced: bool) {
        if self.threaded {
            let keeps = self.parts.segments.segment_bytes / 8;
            self.parts.log.pace(paced.then(|| self.allowance()), keeps as i64);
        }
    }

    /// Segments of log that the last checkpoint does not cover and that are sealed.
    fn tail_segments(&self, work: &Work) -> u64 {
        let open = self.parts.log.open_generation();
        let tail = |usage: &&Usage| !usage.cold && (work.floor..open).contains(&usage.generation);
        self.parts.segments.in_use().iter().filter(tail).count() as u64
    }

    /// Whether a checkpoint and then cleaning what it covers writes less for each byte that becomes free than cleaning the
    /// best of what is covered already. What was just written may be the emptiest there is: it holds what the cleaner said of
    /// its moves.
    fn tail_is_better(&self, work: &Work, best: &Usage) -> bool {
        let size = self.parts.segments.segment_bytes;
        let open = self.parts.log.open_generation();
        let (mut lives, mut gone) = (0, 0);
        for usage in self.parts.segments.in_use() {
            if !usage.cold && (work.floor..open).contains(&usage.generation) {
                lives += usage.live.min(size);
                gone += size.saturating_sub(usage.live);
            }
        }
        // The pages that changed, and a little for the superblock, the syncs and the part of the log that it ends.
        let written = u128::from(lives + work.checkpoint_bytes + size / CHECKPOINT_SHARE);
        let best_lives = (best.live + best.index).min(size);
        written * u128::from(size - best_lives) < u128::from(gone) * u128::from(best_lives)
    }

    /// Whether cleaning one segment after the other might take what a checkpoint needs, without which some of them do not become free.
    fn is_tight(&self) -> bool {
        self.parts.log.segments_left() <= self.checkpoint_segments() + RESCUE_SEGMENTS + 1
    }

    /// Moves what little lives in the emptiest segments, so that the checkpoint that follows makes more free than it takes.
    fn empty_the_emptiest(&self, work: &mut Work) -> Result<()> {
        let checkpoint = self.checkpoint_segments();
        let mut emptiest: Vec<Usage> = self.candidates(work, FULL_SHARE).map(|(usage, _)| usage).collect();
        emptiest.sort_unstable_by_key(|usage| usage.live + usage.index);
        let mut moved = 0;
        for usage in emptiest {
            moved += usage.live + usage.index;
            let room = self.parts.log.segments_left() >= checkpoint + RESCUE_SEGMENTS;
            if moved > self.parts.segments.segment_bytes || !room {
                break;
            }
            match self.clean_segment(work, usage) {
                Ok(true) => {}
                Ok(false) => break,
                Err(Error::Stopped { cause }) => return Err(Error::Stopped { cause }),
                // One that cannot be read stays as it is; the checkpoint does not need it.
                Err(error) => tracing::warn!(segment = usage.segment, %error, "not emptied before a checkpoint"),
            }
        }
        self.settle(work)?;
        self.free_dead(work, true).map(|_| ())
    }

    /// Writes a checkpoint. Where room is short enough that a few of them, each leaving little pieces of the last in many
    /// segments, would use it up, what lives in the emptiest segments is moved first.
    fn checkpoint_now(&self, work: &mut Work, hurry: bool, during: &mut dyn FnMut()) -> Result<()> {
        self.settle(work)?;
        let left = self.parts.log.segments_left();
        if left <= 2 * self.checkpoint_segments() + RESCUE_SEGMENTS && self.held.load(Ordering::Acquire) == 0 {
            self.empty_the_emptiest(work)?;
        }
        let began = Instant::now();
        let slow = self.threaded && !hurry;
        // Near the limit writers go on meanwhile, out of the slack: with as much of it as is written of the checkpoint, so that they
        // are slowed down evenly and do not stand still for the rest of it.
        let slack = self.parts.segments.segment_bytes * SLACK_SEGMENTS;
        let paced = left <= self.reserve()[0] + 2 * self.flying_segments() + PACED_SEGMENTS;
        let expected = work.checkpoint_bytes.max(self.parts.segments.segment_bytes);
        let mut given = 0;
        if paced {
            self.pace(true);
        }
        let mut pace = |bytes: u64| {
            during();
            let due = (u128::from(slack) * u128::from(bytes.min(expected)) / u128::from(expected)) as u64;
            if paced && due >= given + slack / SLACK_PARTS {
                self.parts.log.give((due - given) as i64);
                given = due;
            }
            let due = Duration::from_micros(bytes * 1_000_000 / CHECKPOINT_BYTES_PER_S);
            if slow && let Some(ahead) = due.checked_sub(began.elapsed()).filter(|ahead| ahead.as_millis() > 0) {
                std::thread::sleep(ahead);
            }
        };
        work.whole = false;
        let Work { saved, cold, .. } = work;
        let written = saved.checkpoint(&self.parts, cold, &mut pace);
        let report = written.map_err(|error| self.stop_if_failed(error))?;
        work.whole = true;
        (work.floor, work.covered) = (report.generation, Some(self.parts.superblocks.newest().replay.seq));
        work.log_bytes = self.parts.log.appended().1;
        work.checkpoint_bytes = report.bytes;
        work.effort += report.bytes + self.parts.segments.segment_bytes / 4;
        self.moving.forget_all();
        // What was cleaned as a whole and still lives cannot be moved: it is not tried again and again.
        let spent = std::mem::take(&mut work.spent);
        let lives = |generation: u32| {
            self.parts.segments.in_use().iter().any(|usage| usage.generation == generation && usage.live > 0)
        };
        work.stuck
            .extend(spent.into_iter().filter(|(generation, whole)| *whole && lives(*generation)).map(|spent| spent.0));
        let took = began.elapsed();
        self.counters.checkpoints.fetch_add(1, Ordering::Relaxed);
        self.counters.checkpoint_bytes.store(report.bytes, Ordering::Relaxed);
        self.counters.checkpoint_all_bytes.fetch_add(report.bytes, Ordering::Relaxed);
        self.counters.checkpoint_times.add(took);
        self.counters.checkpoint_us.store(took.as_micros() as u64, Ordering::Relaxed);
        tracing::debug!(
            objects = report.objects,
            pages = report.pages,
            bytes = report.bytes,
            elapsed_ms = took.as_millis() as u64,
            "checkpoint"
        );
        Ok(())
    }

    /// A failed write or sync stops the log; a failed read or a want of room does not.
    fn stop_if_failed(&self, error: Error) -> Error {
        if matches!(error, Error::Stopped { .. }) && self.parts.log.mark().failure().is_none() {
            self.parts.log.stop_for(error.clone());
        }
        error
    }

    /// Segments that could be cleaned and how much that is worth.
    fn candidates<'a>(&'a self, work: &'a Work, share: f64) -> impl Iterator<Item = (Usage, f64)> + 'a {
        let now = self.parts.log.last_seq();
        let size = self.parts.segments.segment_bytes as f64;
        let (open, flying) = (work.cold.open_segment(), self.moving.flying());
        let sealed = move |usage: &Usage| {
            let closed = if usage.cold { Some(usage.segment) != open } else { usage.generation < work.floor };
            closed
                && !flying.touches(usage)
                && !work.spent.contains_key(&usage.generation)
                && !work.stuck.contains(&usage.generation)
        };
        self.parts.segments.in_use().into_iter().filter(sealed).filter_map(move |usage| {
            let lives = (usage.live + usage.index) as f64;
            let age = (now.saturating_sub(usage.age) + 1) as f64;
            let whole = if usage.cold { usage.filled as f64 } else { size };
            let used = lives / size;
            (lives < share * whole).then(|| (usage, (1.0 - used) * age / (1.0 + used)))
        })
    }

    fn best(&self, work: &Work, share: f64) -> Option<Usage> {
        self.best_of(work, share, |_| true)
    }

    /// The segment that is worth most of those that pass `which`.
    fn best_of(&self, work: &Work, share: f64, which: impl Fn(&Usage) -> bool) -> Option<Usage> {
        let some = self.candidates(work, share).filter(|(usage, _)| which(usage));
        some.max_by(|a, b| a.1.total_cmp(&b.1)).map(|(usage, _)| usage)
    }

    fn clean_best(&self, work: &mut Work, share: f64) -> Result<bool> {
        let Some(best) = self.best(work, share) else { return Ok(false) };
        self.clean_segment(work, best)
    }

    /// Has the device begin to read what will most likely be cleaned after this one.
    fn read_ahead(&self, work: &Work, victim: &Usage) {
        let next = self.best_of(work, FULL_SHARE, |usage| usage.segment != victim.segment);
        if let Some(next) = next.filter(|next| self.parts.segments.whole_buffer(next.segment).is_none()) {
            let bytes = self.parts.segments.segment_bytes;
            self.device.will_read(next.segment * bytes, bytes);
        }
    }

    /// Cleans a segment; false without room for the copies.
    fn clean_segment(&self, work: &mut Work, victim: Usage) -> Result<bool> {
        let mover = self.mover(work, &victim);
        self.read_ahead(work, &victim);
        let mut clean = Clean {
            parts: &self.parts,
            device: &*self.device,
            seed: self.seed,
            cold: &mut work.cold,
            saved: &mut work.saved,
            scratch: &mut work.scratch,
            mover: &mover,
        };
        let began = Instant::now();
        let outcome = clean.segment(victim);
        self.counters.clean_times.add(began.elapsed());
        let cleaned = match outcome {
            Err(error) => {
                // Copies that nothing will point to are written all the same, before their segment can be made free.
                self.moving.wait();
                work.cold.write_batch().map_err(|error| self.stop_if_failed(error))?;
                return self.could_not_clean(work, victim.generation, error).map(|()| false);
            }
            Ok(cleaned) => cleaned,
        };
        work.spent.insert(victim.generation, true);
        work.effort += cleaned.copied_bytes;
        self.counters.cleaned.fetch_add(1, Ordering::Relaxed);
        self.counters.copied_bytes.fetch_add(cleaned.copied_bytes, Ordering::Relaxed);
        if cleaned.damaged > 0 {
            self.moving.wait();
        }
        // A batch that a crash has torn is none: nothing points there.
        let lives = self.parts.segments.usage(victim.segment).is_some_and(|usage| usage.live > 0);
        if cleaned.damaged > 0 && lives {
            self.counters.damaged.fetch_add(1, Ordering::Relaxed);
            tracing::error!(segment = victim.segment, operations = cleaned.damaged, "damage found while cleaning");
        }
        Ok(true)
    }

    /// Makes segments free that nothing points to, if the log that says so is durable, or after it was made so with `sync`.
    /// Whether there was one.
    fn free_dead(&self, work: &mut Work, sync: bool) -> Result<bool> {
        let (open, flying) = (work.cold.open_segment(), self.moving.flying());
        let mut dead: Vec<Usage> = self
            .parts
            .segments
            .in_use()
            .into_iter()
            .filter(|usage| usage.live == 0 && usage.index == 0 && !flying.touches(usage))
            .filter(|usage| if usage.cold { Some(usage.segment) != open } else { usage.generation < work.floor })
            .collect();
        if dead.is_empty() || self.held.load(Ordering::Acquire) > 0 {
            return Ok(false);
        }
        // What emptied them must be durable, or a power cut would bring back entries that point there.
        if sync || !self.threaded {
            self.parts.log.commit(true);
        } else {
            let (end, durable) = (self.parts.log.end(), self.parts.log.mark().durable());
            dead.retain(|usage| *work.dying.entry(usage.generation).or_insert(end) <= durable);
        }
        if let Some(failure) = self.parts.log.mark().failure() {
            return Err(failure);
        }
        if dead.is_empty() {
            return Ok(false);
        }
        self.parts.segments.wait_for_readers();
        for usage in &dead {
            let warm = self.device_keeps(usage.segment)?;
            work.spent.remove(&usage.generation);
            work.dying.remove(&usage.generation);
            self.moving.forget(usage.generation);
            self.parts.segments.release(usage.segment, warm);
            self.counters.freed.fetch_add(1, Ordering::Relaxed);
        }
        Ok(true)
    }

    /// Gives a free segment's blocks back, unless it is one of a few that are kept for what comes next.
    fn device_keeps(&self, segment: u64) -> Result<bool> {
        let zoned = self.device.geometry().zone_bytes.is_some();
        if zoned || self.parts.segments.free_segments() < self.low(self.reserve()).max(WARM_SEGMENTS) {
            return Ok(true);
        }
        let bytes = self.parts.segments.segment_bytes;
        let discarded = self.device.discard(segment * bytes, bytes);
        discarded.map_err(|error| self.stop_if_failed(stopped("discarding a segment", &error)))?;
        Ok(false)
    }
}
