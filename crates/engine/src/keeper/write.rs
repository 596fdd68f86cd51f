//! Writing checkpoints: when one is asked for, before one is needed, and those that snapshots and backups hold.
//!
//! Invariant: what a held checkpoint needs stays until the hold is dropped.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use esker_store::{Error, Result};

use super::work::Work;
use super::{
    CHECKPOINT_BYTES_PER_S, CLEAN_SEGMENTS, CLONES_TRIED, FULL_SHARE, Keeper, RESCUE_SEGMENTS, SHARED_SYNC_BYTES,
    SLACK_PARTS, SLACK_SEGMENTS,
};
use crate::checkpoint::CheckpointReport;
use crate::clean::RENEWALS;
use crate::format::{Loc, Role, Superblock};
use crate::segments::{DamageLevel, Usage};

/// A checkpoint whose segments stay as long as this lives.
pub struct Held {
    /// Names the checkpoint.
    pub superblock: Superblock,
    /// The segments that it may need, its own and those of the data.
    pub segments: Vec<Usage>,
    /// The one of them that the cleaner still writes.
    pub open_cold: Option<u64>,
    /// Up to where pieces of the checkpoint begin in segments, as device offsets; only of one that is held to be
    /// copied.
    pub furthest: HashMap<u64, u64>,
    keeper: Arc<Keeper>,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.keeper.holds.remove(&self.segments);
        self.keeper.wake();
    }
}

impl Keeper {
    /// Writes a checkpoint now.
    ///
    /// # Errors
    /// [`Error::Full`], [`Error::Stopped`], [`Error::Io`].
    pub fn checkpoint(&self) -> Result<()> {
        self.checkpoint_while(&mut || ())
    }

    /// The same; `during` is called after each piece that is written, as if by a writer that changes the store
    /// meanwhile.
    ///
    /// # Errors
    /// As [`Keeper::checkpoint`].
    pub fn checkpoint_while(&self, during: &mut dyn FnMut()) -> Result<()> {
        self.working(|work| {
            self.checkpoint_now(work, true, during)?;
            self.free_dead(work, true)?;
            Ok(())
        })
    }

    /// Sees to it that a checkpoint, and all that it needs, stays where it is until what this returns is dropped.
    ///
    /// # Errors
    /// As [`Keeper::checkpoint`]; [`Error::Full`] too where what is kept would be taken from what deletes need.
    pub fn hold(self: &Arc<Self>) -> Result<Held> {
        self.hold_and(|_| {
            let [_, deletes] = self.reserve();
            if !self.find_room(deletes + self.hold_takes() + 1)? {
                return Err(Error::Full { needed: self.parts.segments.segment_bytes, free: 0 });
            }
            Ok(HashMap::new())
        })
    }

    /// The same for a backup, which copies the segments, however full the store is: also tells up to where the
    /// checkpoint's pieces stand in them.
    ///
    /// # Errors
    /// As [`Keeper::checkpoint`].
    pub fn hold_to_copy(self: &Arc<Self>) -> Result<Held> {
        self.hold_and(|work| {
            let mut furthest = HashMap::new();
            for (.., loc) in work.saved.pieces_in(&(0..u64::MAX)) {
                let far = furthest.entry(self.parts.segments.segment_of(loc.offset())).or_insert(0);
                *far = loc.offset().max(*far);
            }
            Ok(furthest)
        })
    }

    fn hold_and(self: &Arc<Self>, furthest: impl FnOnce(&Work) -> Result<HashMap<u64, u64>>) -> Result<Held> {
        self.working(|work| {
            self.settle(work)?;
            let covers_all = |work: &Work| work.covered == Some(self.parts.log.last_seq());
            if !covers_all(work) {
                self.checkpoint_now(work, true, &mut || ())?;
            }
            self.free_dead(work, true)?;
            // What died since that checkpoint may just have been made free: then only a later one is whole without the
            // log.
            if !covers_all(work) {
                self.checkpoint_now(work, true, &mut || ())?;
            }
            let superblock = self.parts.superblocks.newest();
            let mut segments = self.parts.segments.in_use();
            segments.retain(|usage| usage.cold || usage.generation <= superblock.replay.generation);
            let (open_cold, furthest) = (work.cold.open_segment(), furthest(work)?);
            // Nothing is made free while the work is locked.
            self.holds.add(&segments);
            Ok(Held { superblock, segments, open_cold, furthest, keeper: Arc::clone(self) })
        })
    }

    /// Moves what little lives in the emptiest segments, so that the checkpoint that follows makes more free than it
    /// takes.
    pub(super) fn empty_the_emptiest(&self, work: &mut Work) -> Result<()> {
        let checkpoint = self.checkpoint_segments();
        let mut emptiest: Vec<Usage> = self.candidates(work, FULL_SHARE).map(|(usage, _)| usage).collect();
        emptiest.sort_unstable_by_key(|usage| usage.once + usage.index);
        let mut moved = 0;
        for usage in emptiest {
            // Small values take up to a third more as copies.
            moved += usage.once + usage.once / 3 + usage.index;
            let room = self.parts.log.segments_left() >= checkpoint + CLEAN_SEGMENTS;
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

    /// Writes one checkpoint; from then on the log is replayed from there.
    fn write_one(&self, work: &mut Work, pace: &mut dyn FnMut(u64)) -> Result<CheckpointReport> {
        work.whole = false;
        let Work { saved, cold, renew, .. } = work;
        saved.scrub = *self.scrubbed.lock();
        // The one that this one follows may not hold.
        let segments = &self.parts.segments;
        let damaged =
            segments.in_use().into_iter().filter(|usage| usage.damage != DamageLevel::None && usage.index > 0);
        let damaged: HashSet<u64> = damaged.map(|usage| usage.segment).collect();
        let stands_there = |(.., loc): &(u64, Role, Loc)| damaged.contains(&segments.segment_of(loc.offset()));
        let holds =
            *renew < RENEWALS && (damaged.is_empty() || !saved.pieces_in(&(0..u64::MAX)).iter().any(stands_there));
        let written = saved.checkpoint(&self.parts, cold, &|| holds && !self.room_is_short(), pace);
        let report = written.map_err(|error| self.stop_if_failed(error))?;
        // Nothing flies while a checkpoint is written, and it ends with a sync: all of the open cold segment stands on
        // the device.
        *self.cold_reached.lock() = work.cold.reached().unwrap_or_default();
        work.whole = true;
        work.floor_before = work.floor;
        work.kept.clear();
        work.renew = work.renew.saturating_sub(1);
        (work.floor, work.covered) = (report.generation, Some(self.parts.superblocks.newest().replay.seq));
        Ok(report)
    }

    /// What only the checkpoint before the newest needs is kept until the next one is written, but not where room is
    /// short, which the superblock says before any of it is used again.
    ///
    /// # Errors
    /// [`Error::Stopped`].
    pub(super) fn give_up_before(&self, work: &mut Work) -> Result<()> {
        if !self.room_is_short() {
            return Ok(());
        }
        if self.parts.superblocks.before_kept() {
            let written = self.parts.superblocks.write(|superblock| superblock.before_kept = false);
            let stopped = |error: Error| Error::Stopped { cause: error.to_string().into() };
            written.map_err(|error| self.stop_if_failed(stopped(error)))?;
        }
        work.saved.give_up(&self.parts);
        work.kept.clear();
        work.floor_before = work.floor;
        Ok(())
    }

    fn room_is_short(&self) -> bool {
        // Where the device had no blocks when it was asked, others may need what is kept.
        let segments = &self.parts.segments;
        self.parts.log.segments_left() * 5 < segments.usable_segments() * 2 || segments.bare_segments() > 0
    }

    /// Writes a checkpoint. Where room is short enough that a few of them, each leaving little pieces of the last in
    /// many segments, would use it up, what lives in the emptiest segments is moved first.
    pub(super) fn checkpoint_now(&self, work: &mut Work, hurry: bool, during: &mut dyn FnMut()) -> Result<()> {
        let left = self.make_room_for_one(work)?;
        self.write_now(work, hurry, left, during)
    }

    /// Readies the store for a checkpoint: what is moved is in the log. The segments left before that.
    pub(super) fn make_room_for_one(&self, work: &mut Work) -> Result<u64> {
        self.settle(work)?;
        let left = self.parts.log.segments_left();
        if left <= 2 * self.checkpoint_segments() + RESCUE_SEGMENTS {
            self.empty_the_emptiest(work)?;
        }
        Ok(left)
    }

    /// Writes a checkpoint with the room that there is: nothing goes to the log meanwhile but what others write.
    pub(super) fn write_now(&self, work: &mut Work, hurry: bool, left: u64, during: &mut dyn FnMut()) -> Result<()> {
        let (began, replay_ns) = (Instant::now(), self.parts.log.replay_ns());
        let slow = self.threaded && !hurry;
        // Near the limit writers go on meanwhile, out of the slack: with as much of it as is written of the checkpoint,
        // so that they are slowed down evenly and do not stand still for the rest of it.
        let slack = self.parts.segments.segment_bytes * SLACK_SEGMENTS;
        let paced = self.is_nearly_short_with(left);
        let expected = work.checkpoint_bytes.max(self.parts.segments.segment_bytes);
        let mut given = 0;
        // A small last checkpoint has one sync with the end of the log; that does not wait for a large one.
        let mut rest = self.parts.log.has_stopped();
        if paced {
            self.pace(true);
        }
        let mut pace = |bytes: u64| {
            during();
            if rest && bytes >= SHARED_SYNC_BYTES {
                self.parts.log.commit_rest();
                rest = false;
            }
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
        let waiting = self.waiting(work);
        let report = self.write_one(work, &mut pace)?;
        self.give_up_before(work)?;
        work.unfreed = waiting;
        self.stored_before.store(self.parts.objects.index_bytes(), Ordering::Relaxed);
        work.log_bytes = self.parts.log.appended().1;
        work.relocation_bytes = self.parts.log.appended_kinds().1;
        (work.replay_ns, work.replayed) = (replay_ns, (0, 0));
        work.checkpoint_bytes = report.bytes;
        work.effort += report.bytes + self.parts.segments.segment_bytes / 4;
        self.moving.forget_all();
        // What was cleaned as a whole and still lives cannot be moved: it is not tried again and again.
        let spent = std::mem::take(&mut work.spent);
        let segments = &self.parts.segments;
        let of = |generation: u32| segments.in_use().into_iter().find(|usage| usage.generation == generation);
        let lives = |generation: u32| of(generation).is_some_and(|usage| usage.live > 0);
        let is_shared = |generation: u32| of(generation).is_some_and(|usage| segments.sharing.is_shared(usage.segment));
        for (generation, _) in spent.into_iter().filter(|(generation, whole)| *whole && lives(*generation)) {
            let tries = work.shared_tries.entry(generation).or_default();
            *tries += 1;
            // A clone that was made meanwhile may still point there.
            if *tries >= CLONES_TRIED || !is_shared(generation) {
                work.stuck.insert(generation);
            }
        }
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
}
