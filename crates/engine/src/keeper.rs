//! The keeper: decides when to write a checkpoint and what to clean, frees segments, and lets writes in or not.
//!
//! ```text
//! a segment was entered → wake → look → free what nothing points to → choose → checkpoint, or clean the best → gate
//! ```
//!
//! A segment is free again when no entry points to it, no piece of the last two checkpoints stands in it, the log that
//! made it so is durable, both checkpoints cover it if it is log, and readers of it have finished. With less than two
//! fifths of the segments free only the newest checkpoint is kept.
//!
//! The best segment is the one with the highest `(1 - u) age / (1 + u)`, u being the part of it that lives: cleaning
//! it costs reading it once and writing u of it, and what is old is likely to stay.
//!
//! Invariants:
//! 1. One thread at a time does this work; another moves what it has copied.
//! 2. Writes stop while so many segments are still free as a checkpoint, the cleaner and deletes need.
//!
//! Source: Rosenblum and Ousterhout, The Design and Implementation of a Log-Structured File System (1992), section 3.5.

mod budget;
mod choose;
mod free;
mod grow;
mod hands;
mod holds;
mod look;
mod moving;
mod recovery;
mod reserve;
mod rests;
mod work;
mod write;

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use esker_device::Device;
use esker_store::{Error, Result};
use parking_lot::{Condvar, Mutex, MutexGuard};

pub use budget::CrowdedSince;
pub use grow::GrowReport;
pub use recovery::RecoveryTime;
pub use reserve::kept_back;
pub use write::Held;

use self::holds::Holds;
use self::moving::Moving;
use self::rests::Rests;
use self::work::Work;
use crate::checkpoint::{Parts, Saved};
use crate::clean::Clean;
use crate::cold::{Cold, ColdCounters, Unwritten};
use crate::commit::Gate;
use crate::format::{Loc, Role};
use crate::segments::{DamageLevel, Usage};
use crate::stages::Times;

/// What a checkpoint costs beside its pages, as a part of a segment.
const CHECKPOINT_SHARE: u64 = 2;
/// A checkpoint is written at most this fast, unless space is short, in bytes per second.
const CHECKPOINT_BYTES_PER_S: u64 = 256 << 20;
/// A segment that lives by more than this is not worth cleaning: of log all of it counts, because headers and gaps go
/// when it is cleaned, of a cold segment what was put into it, because it would be as full again.
const FULL_SHARE: f64 = 0.95;
/// And so where a checkpoint might not find what it needs: what the log says of its copies takes room until the next
/// one.
const TIGHT_SHARE: f64 = 0.8;
/// With no more segments left than this above the reserve and what is being moved, writers get what cleaning makes
/// free.
const PACED_SEGMENTS: u64 = 2;
/// Segments that writers get while a checkpoint is written then, and in how many parts.
const SLACK_SEGMENTS: u64 = 1;
const SLACK_PARTS: u64 = 64;
/// When so much of a last checkpoint is written, the end of the log does not wait for the rest of it to be synced.
const SHARED_SYNC_BYTES: u64 = 4 << 20;
/// Before a checkpoint on a device that is nearly full, segments are emptied: one for the copies and one for the log
/// that says so must be left beside what the checkpoint takes.
const RESCUE_SEGMENTS: u64 = 2;
/// So many segments the cleaning of one may begin: two for copies, which take more than the values if these are small,
/// and one of log.
const CLEAN_SEGMENTS: u64 = 3;
/// So many segments are being moved at most; with half as many left beside what a checkpoint needs they are awaited.
const FLYING_SEGMENTS: u64 = 4;
/// So often a segment is tried to be cleaned, with a checkpoint between, if something that it takes cannot be read.
const READS_TRIED: u32 = 3;
/// And so often if clones were made of what it holds while it was cleaned.
const CLONES_TRIED: u32 = 100;
/// How long the thread sleeps when nothing wakes it.
const IDLE: Duration = Duration::from_secs(1);
/// How long the cleaner leaves everything in place after a caller has walked part of the log.
const WALK: Duration = Duration::from_secs(5);
/// Free segments that keep their blocks, ready to be written again without a change of the file; where few are free,
/// all do, until the device has no blocks for others (see `give_surplus_back`).
const WARM_SEGMENTS: u64 = 8;
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
    /// Values that the cleaner has found not to hold.
    pub lost: AtomicU64,
    /// How long compactions have rested beside clients, in microseconds.
    pub rested_us: AtomicU64,
}

/// See the module.
pub struct Keeper {
    parts: Parts,
    device: Arc<dyn Device>,
    seed: u32,
    threaded: bool,
    index_bytes: u64,
    recovery: RecoveryTime,
    /// When the thread was last woken because the index takes more than its budget, in microseconds of `since`.
    crowded_at: AtomicU64,
    work: Mutex<Work>,
    /// Callers that wait for the work, but for the thread.
    waiting_for_work: AtomicU64,
    moving: Moving,
    woken: Mutex<bool>,
    waking: Condvar,
    stopping: AtomicBool,
    /// Grows whenever entries get new places.
    moves: AtomicU64,
    /// The cold segment that is being written; `u64::MAX` for none.
    open_cold: Arc<AtomicU64>,
    unwritten: Unwritten,
    open_cold_room: Arc<AtomicU64>,
    /// How often the thread has looked what is to be done.
    looks: AtomicU64,
    /// What the index took, as objects tell, at the last checkpoint since opening.
    stored_before: AtomicU64,
    /// Bytes of index pages after the last checkpoint if none could leave though nothing was written beside it; else 0.
    index_stays: AtomicU64,
    pages_left: Mutex<()>,
    pages_leave: Condvar,
    /// Until then nothing is moved unless space is short, for a caller that walks the log; in microseconds of `since`.
    walked_until: AtomicU64,
    since: Instant,
    /// Generation of the cold segment that was open at the last checkpoint, and up to where it was written then.
    cold_reached: Mutex<(u32, u64)>,
    /// How far the scrubber has come: what the next checkpoint says.
    scrubbed: Mutex<(u64, u64)>,
    holds: Holds,
    cold_counters: Arc<ColdCounters>,
    /// What was done.
    pub counters: KeeperCounters,
}

impl Keeper {
    /// A keeper that goes on from what the last checkpoint holds. With `kept`, segments of these generations, and the
    /// log, are kept for the checkpoint before it until the next one.
    #[expect(clippy::too_many_arguments, reason = "one call site, which wires the engine together")]
    pub fn new(
        parts: Parts,
        device: Arc<dyn Device>,
        seed: u32,
        cold: Cold,
        (saved, kept): (Saved, Option<HashSet<u32>>),
        threaded: bool,
        index_bytes: u64,
        recovery: RecoveryTime,
    ) -> Self {
        let superblock = parts.superblocks.newest();
        let cold_counters = Arc::clone(&cold.counters);
        let (open_cold, open_cold_room) = (Arc::clone(&cold.writes), Arc::clone(&cold.room));
        let unwritten = Arc::clone(&cold.unwritten);
        let scrubbed = saved.scrub;
        // After falling back the other one is the newer, which does not hold.
        let before = parts.superblocks.floor_before().unwrap_or(superblock.replay.generation);
        let kept = kept.map(|kept| (kept, before));
        let work = Work::new(cold, saved, &superblock, kept, recovery.replayed);
        Self {
            parts,
            device,
            seed,
            threaded,
            index_bytes: index_bytes.max(INDEX_BYTES_MIN),
            recovery,
            crowded_at: AtomicU64::new(0),
            work: Mutex::new(work),
            waiting_for_work: AtomicU64::new(0),
            moving: Moving::default(),
            woken: Mutex::new(false),
            waking: Condvar::new(),
            stopping: AtomicBool::new(false),
            stored_before: AtomicU64::new(0),
            moves: AtomicU64::new(0),
            open_cold,
            unwritten,
            open_cold_room,
            looks: AtomicU64::new(0),
            index_stays: AtomicU64::new(0),
            pages_left: Mutex::new(()),
            pages_leave: Condvar::new(),
            walked_until: AtomicU64::new(0),
            since: Instant::now(),
            cold_reached: Mutex::default(),
            scrubbed: Mutex::new(scrubbed),
            holds: Holds::default(),
            cold_counters,
            counters: KeeperCounters::default(),
        }
    }

    /// Snapshots and backups that hold segments, and the bytes of segments that nothing else keeps.
    pub fn holds(&self) -> (u64, u64) {
        self.holds.figures(&self.parts.segments)
    }

    /// Whether a snapshot or backup keeps a segment, whatever is removed in it.
    pub fn is_held(&self, segment: u64) -> bool {
        self.holds.are_there() && self.holds.now().contains_key(&self.parts.segments.generation(segment))
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
            // What goes wrong stops the log, which tells all callers. A thread that is inside a checkpoint cannot begin
            // another.
            if let Some(mut work) = self.work.try_lock() {
                let _ = self.guarded(&mut work, |work| self.look(work));
            }
            return;
        }
        *self.woken.lock() = true;
        self.waking.notify_one();
    }

    /// The thread's life.
    pub fn run(&self) {
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

    /// A caller walks the log in order: for a while the cleaner moves nothing unless writes would have to wait.
    pub fn a_walk_goes_on(&self) {
        let until = (self.since.elapsed() + WALK).as_micros() as u64;
        self.walked_until.fetch_max(until, Ordering::Relaxed);
    }

    /// A number that grows whenever entries get new places; odd while they do.
    pub fn moves(&self) -> u64 {
        self.moves.load(Ordering::Acquire)
    }

    /// Whether something may still be written to this cold segment: more, or what was queued for it.
    pub fn writes(&self, segment: u64) -> bool {
        let generation = self.parts.segments.generation(segment);
        self.open_cold.load(Ordering::Acquire) == segment
            || self.unwritten.lock().iter().any(|oldest| generation >= *oldest)
    }

    /// Up to where the open cold segment of this generation was written when the last checkpoint was, as an offset in
    /// it.
    pub fn cold_reached(&self, generation: u32) -> u64 {
        let (open, end) = *self.cold_reached.lock();
        if open == generation { end } else { 0 }
    }

    /// Runs `f` while the cleaner waits.
    pub fn while_nothing_moves<R>(&self, f: impl FnOnce() -> R) -> R {
        let mut work = self.lock_work();
        // What goes wrong there is for the cleaner to tell.
        let _ = self.settle(&mut work);
        f()
    }

    /// Notes how far the scrubber has come.
    pub fn note_scrubbed(&self, place: (u64, u64)) {
        *self.scrubbed.lock() = place;
    }

    /// Damage was found in a segment. Where the checkpoint before the newest needs it, that may not hold any more, and
    /// another checkpoint is written.
    pub fn note_damage(&self, usage: &Usage) {
        let mut work = self.lock_work();
        let base = usage.segment * self.parts.segments.segment_bytes;
        let range = base..base + self.parts.segments.segment_bytes;
        let replayed = !usage.cold && (work.floor_before..work.floor).contains(&usage.generation);
        if replayed || work.kept.contains(&usage.generation) || work.saved.has_retired_in(&range) {
            work.renew = work.renew.max(1);
        }
    }

    /// The pieces of the last checkpoint that begin in a range of the device, with the numbers of their objects.
    pub fn pieces_in(&self, range: &std::ops::Range<u64>) -> Vec<(u64, Role, Loc)> {
        self.lock_work().saved.pieces_in(range)
    }

    /// Entries get new places, or have got them.
    fn count_move(&self) {
        self.moves.fetch_add(1, Ordering::AcqRel);
    }

    /// Ends the threads' work: what was being moved is in the log, and what a last checkpoint needs moved is too.
    /// Before the log stops.
    ///
    /// # Errors
    /// [`Error::Full`], [`Error::Stopped`].
    pub fn end(&self) -> Result<()> {
        self.stopping.store(true, Ordering::Release);
        *self.woken.lock() = true;
        self.waking.notify_one();
        let ended = match self.parts.log.mark().failure() {
            Some(_) => Ok(()),
            None => self.working(|work| {
                self.settle(work)?;
                if self.is_covered(work) { Ok(()) } else { self.make_room_for_one(work).map(drop) }
            }),
        };
        self.moving.end();
        ended
    }

    /// Writes a last checkpoint, if anything has changed since the last. The log has stopped taking records: the
    /// superblock that names the checkpoint says that the stop was clean.
    ///
    /// # Errors
    /// [`Error::Full`], [`Error::Stopped`].
    pub fn last_checkpoint(&self) -> Result<()> {
        self.working(|work| {
            self.settle(work)?;
            if self.is_covered(work) {
                return Ok(());
            }
            let left = self.parts.log.segments_left();
            self.write_now(work, true, left, &mut || ())?;
            // After one that takes the place of a damaged one there is another, so that two hold.
            if work.renew == 0 || self.is_tight() {
                return Ok(());
            }
            self.write_now(work, true, left, &mut || ())
        })
    }

    /// Whether the last checkpoint has all that there is.
    fn is_covered(&self, work: &Work) -> bool {
        let same = work.saved.scrub == *self.scrubbed.lock() && work.renew == 0;
        same && work.covered == Some(self.parts.log.last_seq())
    }

    /// The last sequence number if a checkpoint covers it.
    pub fn covered(&self, seq: u64) -> Option<u64> {
        self.lock_work().covered.filter(|covered| *covered == seq)
    }

    /// Cleans the segment that is worth most; whether there was one.
    ///
    /// # Errors
    /// [`Error::Full`], [`Error::Stopped`], [`Error::Io`].
    pub fn clean(&self) -> Result<bool> {
        self.working(|work| {
            self.seal_damaged(work)?;
            let damaged = self.damaged(work);
            let cleaned = if let Some(damaged) = damaged.filter(|_| !self.is_tight()) {
                self.clean_segment(work, damaged)?
            } else if self.is_tight() && self.best(work, FULL_SHARE).is_some() {
                self.checkpoint_now(work, true, &mut || ())?;
                true
            } else {
                self.clean_best(work, FULL_SHARE)?
            };
            self.settle(work)?;
            self.free_dead(work, true)?;
            Ok(cleaned)
        })
    }

    /// Cleans all segments that hold anything dead. `progress(done, total)` is told segments; it returns false to stop.
    /// One that cannot be cleaned does not keep it from the others. With `beside_others` it rests while other threads
    /// of the process work: see [`Rests`].
    ///
    /// # Errors
    /// [`Error::Full`], [`Error::Stopped`], [`Error::Io`]; [`Error::Closed`] if the store is closed meanwhile.
    pub fn compact(&self, beside_others: bool, progress: &mut dyn FnMut(u64, u64) -> bool) -> Result<()> {
        let rests = (beside_others && self.threaded).then(Rests::default);
        self.checkpoint()?;
        let share = FULL_SHARE;
        let newest = self.parts.segments.in_use().iter().map(|usage| usage.generation).max().unwrap_or(0);
        let left = || {
            let work = self.lock_work();
            self.candidates(&work, share).filter(|(usage, _)| usage.generation <= newest).count() as u64
        };
        let total = left();
        let mut failed = None;
        let mut more = progress(0, total);
        while more {
            let found = self.working(|work| {
                if self.stopping.load(Ordering::Acquire) {
                    return Err(Error::Closed);
                }
                let best = self.best(work, share).filter(|usage| usage.generation <= newest);
                let Some(best) = best else { return Ok(false) };
                match self.clean_segment_resting(work, best, rests.as_ref()) {
                    Err(error @ (Error::Io { .. } | Error::Corrupt { .. })) => drop(failed.get_or_insert(error)),
                    cleaned => drop(cleaned?),
                }
                self.free_dead(work, false)?;
                if self.parts.log.segments_left() <= self.reserve()[0] {
                    self.checkpoint_now(work, true, &mut || ())?;
                    self.free_dead(work, true)?;
                }
                Ok(true)
            })?;
            more = found && progress(total - left().min(total), total);
        }
        self.checkpoint()?;
        failed.map_or(Ok(()), Err)
    }

    /// One look at what is to be done; whether anything was.
    fn step(&self) -> Result<bool> {
        // Who has the work looks whether this is urgent: see `is_awaited`.
        self.guarded(&mut self.work.lock(), |work| self.look(work))
    }

    /// Runs `f` on the work, which no other thread has meanwhile. A panic stops the log before another thread has it:
    /// no thread goes on with what was half done then.
    ///
    /// # Errors
    /// [`Error::Stopped`] after a panic, and where the log has stopped already; else those of `f`.
    fn working<R>(&self, f: impl FnOnce(&mut Work) -> Result<R>) -> Result<R> {
        self.guarded(&mut self.lock_work(), f)
    }

    fn lock_work(&self) -> MutexGuard<'_, Work> {
        self.waiting_for_work.fetch_add(1, Ordering::Relaxed);
        let work = self.work.lock();
        self.waiting_for_work.fetch_sub(1, Ordering::Relaxed);
        work
    }

    /// Whether what is done with the work is awaited: by callers that need it, or by writers for what it or the thread
    /// makes free. What else the thread would do waits for the end of the segment.
    fn is_awaited(&self) -> bool {
        let log = &self.parts.log;
        let waits = log.gate() != Gate::Open || log.is_paced() || self.is_nearly_short() || self.is_crowded();
        let ends = self.stopping.load(Ordering::Acquire) || log.mark().failure().is_some();
        waits || ends || self.waiting_for_work.load(Ordering::Relaxed) > 0
    }

    fn guarded<R>(&self, work: &mut Work, f: impl FnOnce(&mut Work) -> Result<R>) -> Result<R> {
        if let Some(failure) = self.parts.log.mark().failure() {
            return Err(failure);
        }
        catch_unwind(AssertUnwindSafe(|| f(work))).unwrap_or_else(|panic| {
            let panicked = Error::panicked("writing a checkpoint or cleaning", &*panic);
            self.parts.log.stop_for(panicked.clone());
            Err(panicked)
        })
    }

    /// A failed write or sync stops the log; a failed read or a want of room does not.
    fn stop_if_failed(&self, error: Error) -> Error {
        if matches!(error, Error::Stopped { .. }) && self.parts.log.mark().failure().is_none() {
            self.parts.log.stop_for(error.clone());
        }
        error
    }

    /// Cleans a segment; false without room for the copies.
    fn clean_segment(&self, work: &mut Work, victim: Usage) -> Result<bool> {
        self.clean_segment_resting(work, victim, None)
    }

    fn clean_segment_resting(&self, work: &mut Work, victim: Usage, rests: Option<&Rests>) -> Result<bool> {
        if let Some(rests) = rests {
            rests.begin(self.moving.worked());
        }
        let mover = self.mover(work, &victim, rests);
        if rests.is_none() {
            self.read_ahead(work, &victim);
        }
        let mut clean = Clean {
            parts: &self.parts,
            device: &*self.device,
            seed: self.seed,
            cold: &mut work.cold,
            saved: &mut work.saved,
            scratch: &mut work.scratch,
            mover: &mover,
            renew: &mut work.renew,
        };
        let began = Instant::now();
        let outcome = clean.segment(victim);
        if let Some(rests) = rests {
            rests.end(self.moving.worked());
        }
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
        work.unread.remove(&victim.generation);
        work.effort += cleaned.copied_bytes;
        self.counters.cleaned.fetch_add(1, Ordering::Relaxed);
        self.counters.copied_bytes.fetch_add(cleaned.copied_bytes, Ordering::Relaxed);
        if cleaned.damaged > 0 {
            self.moving.wait();
        }
        // A batch that a crash has torn is none: nothing points there.
        let lives = self.parts.segments.usage(victim.segment).is_some_and(|usage| usage.live > 0);
        if cleaned.damaged > 0 && lives {
            self.parts.segments.note_damage(victim.segment, victim.generation, DamageLevel::Part);
            self.counters.lost.fetch_add(cleaned.damaged, Ordering::Relaxed);
            tracing::error!(segment = victim.segment, values = cleaned.damaged, "damage found while cleaning");
            for lost in &cleaned.lost {
                tracing::error!(offset = lost.offset, what = lost.what, "lost");
            }
        }
        Ok(true)
    }
}
