//! Hands: copies are written, made durable, and get their places in a thread of its own, while the keeper gathers the
//! next ones.
//!
//! gathered → [`Moving::hand`](super::moving::Moving::hand) → written → one sync, for the copies and for the log of the
//! batch before → relocations → index
//!
//! Invariant: who moves never waits for the keeper's work.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;

use esker_store::{Error, Result};

use super::moving::{Job, Origin};
use super::rests::Rests;
use super::work::Work;
use super::{FLYING_SEGMENTS, Keeper, READS_TRIED};
use crate::clean::{Batch, Mover};
use crate::cold::Writes;
use crate::segments::Usage;

/// The mover of one segment's copies.
pub(super) struct Hands<'a> {
    keeper: &'a Keeper,
    from: Origin,
    rests: Option<&'a Rests>,
}

impl Mover for Hands<'_> {
    fn copied(&self, bytes: u64) {
        self.keeper.moving.note_gathered(bytes);
    }

    fn rest(&self) {
        if let Some(rests) = self.rests {
            let (moving, counters) = (&self.keeper.moving, &self.keeper.counters);
            let rested = rests.after_work(|| moving.worked(), || self.keeper.is_awaited());
            counters.rested_us.fetch_add(rested.as_micros() as u64, Ordering::Relaxed);
        }
    }

    fn rests(&self) -> bool {
        self.rests.is_some()
    }

    fn hand(&self, batch: Batch, copies: Writes) -> Result<()> {
        let job = Job { batch, copies, from: self.from };
        match if self.keeper.threaded { self.keeper.moving.hand(job) } else { Some(job) } {
            Some(job) => self.keeper.move_batch(job).map(|_| ()),
            None => Ok(()),
        }
    }

    fn wait(&self) -> Result<()> {
        self.keeper.moving.wait();
        // What could not be moved of another segment is for the next look.
        self.keeper.moving.take_failure(self.from.victim).map_or(Ok(()), Err)
    }
}

impl Keeper {
    /// What moves the copies of a segment that is about to be cleaned.
    pub(super) fn mover<'a>(&'a self, work: &Work, victim: &Usage, rests: Option<&'a Rests>) -> Hands<'a> {
        let segment_bytes = self.parts.segments.segment_bytes;
        let from = Origin {
            victim: victim.generation,
            oldest: work.cold.open_generation().unwrap_or(0),
            lives: (victim.once + victim.index).clamp(segment_bytes / 64, segment_bytes),
            len: segment_bytes,
        };
        Hands { keeper: self, from, rests }
    }

    /// The life of the thread that moves. After a panic nothing moves any more, and the keeper is told so.
    pub fn run_moving(&self) {
        self.moving.begin();
        let ran = catch_unwind(AssertUnwindSafe(|| self.move_until_ended()));
        if let Err(panic) = ran {
            let panicked = Error::panicked("the thread that moves copies", &*panic);
            self.parts.log.stop_for(panicked.clone());
            self.moving.break_off(panicked);
        }
    }

    fn move_until_ended(&self) {
        while let Some(job) = self.moving.take() {
            let outcome = self.move_batch(job);
            let gained = *outcome.as_ref().unwrap_or(&0);
            let idle = self.moving.moved(outcome);
            if self.parts.log.is_paced() {
                // After a checkpoint there is less than there should be: then they get half of what is gained.
                self.parts.log.pace(Some(self.allowance().max(gained as i64 / 2)), 0);
            }
            if idle {
                // What it has emptied can be made free.
                self.wake();
            }
        }
    }

    /// Bytes that writers may take: what is left above the reserve, and what is about to become free, but for as much
    /// as that takes on its way.
    pub(super) fn allowance(&self) -> i64 {
        let flying = self.flying_segments();
        let kept = (self.reserve()[0] + flying + flying / 2) * self.parts.segments.segment_bytes;
        let left = self.parts.log.bytes_left() + self.open_cold_room.load(Ordering::Relaxed) + self.moving.promised();
        left as i64 - kept as i64
    }

    /// Segments that are being moved when there is much to clean.
    pub(super) fn flying_segments(&self) -> u64 {
        FLYING_SEGMENTS.min(self.parts.segments.usable_segments() / 64)
    }

    /// The bytes that become free besides what was copied.
    fn move_batch(&self, mut job: Job) -> Result<u64> {
        let (log, from, copied) = (&self.parts.log, job.from, job.batch.bytes);
        job.copies.write(&*self.device, &self.cold_counters).map_err(|error| self.stop_if_failed(error))?;
        // Log and copies stand on one device: one sync is for both.
        log.commit(true);
        log.mark().failure().map_or(Ok(()), Err)?;
        self.count_move();
        let logged = job.batch.relocate(&self.parts, self.seed, &mut || self.moving.note_worked());
        self.count_move();
        logged.map_err(|error| self.stop_if_failed(error))?;
        Ok(copied * (self.parts.segments.segment_bytes - from.lives) / from.lives)
    }

    /// Waits until all copies have their places.
    ///
    /// # Errors
    /// [`Error::Stopped`].
    pub(super) fn settle(&self, work: &mut Work) -> Result<()> {
        self.moving.wait();
        self.note_failed(work)
    }

    /// What could not be moved is known from now on.
    pub(super) fn note_failed(&self, work: &mut Work) -> Result<()> {
        for (victim, error) in self.moving.take_failed() {
            match self.could_not_clean(work, victim, error) {
                Err(Error::Stopped { cause }) => return Err(Error::Stopped { cause }),
                Err(error) => {
                    // Not before the next checkpoint.
                    work.spent.insert(victim, false);
                    tracing::warn!(generation = victim, %error, "copies were not moved");
                }
                Ok(()) => {}
            }
        }
        Ok(())
    }

    /// What was moved of a segment is moved, the rest stays.
    pub(super) fn could_not_clean(&self, work: &mut Work, victim: u32, error: Error) -> Result<()> {
        match error {
            // The next checkpoint frees what it can.
            Error::Full { .. } => {
                work.spent.insert(victim, false);
                return Ok(());
            }
            // It is no fault of the segment that memory is short.
            Error::Io { ref source, .. } if source.kind() == std::io::ErrorKind::OutOfMemory => {
                work.spent.insert(victim, false);
                tracing::warn!(generation = victim, %error, "not cleaned now");
                return Err(error);
            }
            Error::Corrupt { .. } => {
                // A page of the index is damaged: this segment is not tried again and again, but when the store is
                // opened the next time.
                work.stuck.insert(victim);
                tracing::error!(generation = victim, %error, "damage found while cleaning");
            }
            Error::Io { .. } => {
                // Something could not be read, maybe only now: it is tried again after the next checkpoint.
                let failed = work.unread.entry(victim).or_default();
                *failed += 1;
                if *failed < READS_TRIED {
                    work.spent.insert(victim, false);
                } else {
                    work.stuck.insert(victim);
                }
                tracing::error!(generation = victim, %error, tried = *failed, "not all could be read while cleaning");
            }
            _ => drop(work.spent.remove(&victim)),
        }
        Err(self.stop_if_failed(error))
    }
}
