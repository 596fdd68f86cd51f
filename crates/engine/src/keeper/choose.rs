//! Choice: which segment is worth cleaning, and whether a checkpoint is worth more.
//!
//! Source: Rosenblum and Ousterhout, The Design and Implementation of a Log-Structured File System (1992), section 3.5.

use esker_device::Device;
use esker_store::Result;

use super::{CHECKPOINT_SHARE, FULL_SHARE, Keeper, Work};
use crate::segments::{DamageLevel, Usage};

/// When this part of what lives was moved since writes last had room, the emptiest segment is cleaned, however young it
/// is: what counts then is how much a move gains now.
const HARD_PARTS: u64 = 8;

impl Keeper {
    /// Segments of log that the last checkpoint does not cover and that are sealed.
    pub(super) fn tail_segments(&self, work: &Work) -> u64 {
        let open = self.parts.log.open_generation();
        let tail = |usage: &&Usage| !usage.cold && (work.floor..open).contains(&usage.generation);
        self.parts.segments.in_use().iter().filter(tail).count() as u64
    }

    /// Whether a checkpoint and then cleaning what it covers writes less for each byte that becomes free than cleaning
    /// the best of what is covered already. What was just written may be the emptiest there is: it holds what the
    /// cleaner said of its moves.
    pub(super) fn tail_is_better(&self, work: &Work, best: &Usage) -> bool {
        let size = self.parts.segments.segment_bytes;
        let open = self.parts.log.open_generation();
        let (mut lives, mut gone) = (0, 0);
        for usage in self.parts.segments.in_use() {
            if !usage.cold && (work.floor..open).contains(&usage.generation) {
                lives += usage.once.min(size);
                gone += size.saturating_sub(usage.once);
            }
        }
        // The pages that changed, and a little for the superblock, the syncs and the part of the log that it ends.
        let written = u128::from(lives + work.checkpoint_bytes + size / CHECKPOINT_SHARE);
        let best_lives = (best.once + best.index).min(size);
        written * u128::from(size - best_lives) < u128::from(gone) * u128::from(best_lives)
    }

    /// Segments that could be cleaned and how much that is worth.
    pub(super) fn candidates<'a>(&'a self, work: &'a Work, share: f64) -> impl Iterator<Item = (Usage, f64)> + 'a {
        let now = self.parts.log.last_seq();
        let size = self.parts.segments.segment_bytes as f64;
        let live: u64 = self.parts.segments.in_use().iter().map(|usage| usage.once).sum();
        let hard = self.is_tight() || work.effort >= live / HARD_PARTS;
        let (open, flying, held) = (work.cold.open_segment(), self.moving.flying(), self.holds.now());
        let sealed = move |usage: &Usage| {
            let closed = if usage.cold { Some(usage.segment) != open } else { usage.generation < work.floor };
            closed
                && usage.damage == DamageLevel::None
                && !held.contains_key(&usage.generation)
                && !flying.touches(usage)
                && !work.spent.contains_key(&usage.generation)
                && !work.stuck.contains(&usage.generation)
        };
        self.parts.segments.in_use().into_iter().filter(sealed).filter_map(move |usage| {
            let lives = (usage.once + usage.index) as f64;
            let age = (now.saturating_sub(usage.age) + 1) as f64;
            let whole = if usage.cold { usage.filled as f64 } else { size };
            let used = lives / size;
            let age = if hard { 1.0 } else { age };
            (lives < share * whole).then(|| (usage, (1.0 - used) * age / (1.0 + used)))
        })
    }

    pub(super) fn best(&self, work: &Work, share: f64) -> Option<Usage> {
        self.best_of(work, share, |_| true)
    }

    /// The segment that is worth most of those that pass `which`.
    pub(super) fn best_of(&self, work: &Work, share: f64, which: impl Fn(&Usage) -> bool) -> Option<Usage> {
        let some = self.candidates(work, share).filter(|(usage, _)| which(usage));
        some.max_by(|a, b| a.1.total_cmp(&b.1)).map(|(usage, _)| usage)
    }

    pub(super) fn clean_best(&self, work: &mut Work, share: f64) -> Result<bool> {
        let Some(best) = self.best(work, share) else { return Ok(false) };
        self.clean_segment(work, best)
    }

    /// Has the device begin to read what will most likely be cleaned after this one.
    pub(super) fn read_ahead(&self, work: &Work, victim: &Usage) {
        let next = self.best_of(work, FULL_SHARE, |usage| usage.segment != victim.segment);
        let in_memory = |segment| self.parts.segments.buffer(segment).is_some_and(|buffer| buffer.from == 0);
        if let Some(next) = next.filter(|next| !in_memory(next.segment)) {
            let bytes = self.parts.segments.segment_bytes;
            self.device.will_read(next.segment * bytes, bytes);
        }
    }

    /// No more is written to a cold segment in which damage was found: what holds of it is moved like that of any
    /// other.
    pub(super) fn seal_damaged(&self, work: &mut Work) -> Result<()> {
        let open = work.cold.open_segment().and_then(|segment| self.parts.segments.usage(segment));
        if open.is_some_and(|usage| usage.damage != DamageLevel::None) {
            self.settle(work)?;
            work.cold.seal().map_err(|error| self.stop_if_failed(error))?;
        }
        Ok(())
    }

    /// A segment with damage of which what holds has not been moved yet.
    pub(super) fn damaged(&self, work: &Work) -> Option<Usage> {
        let (open, flying) = (work.cold.open_segment(), self.moving.flying());
        self.parts.segments.in_use().into_iter().find(|usage| {
            let closed = if usage.cold { Some(usage.segment) != open } else { usage.generation < work.floor };
            closed
                && usage.damage != DamageLevel::None
                && usage.live + usage.index > 0
                && !flying.touches(usage)
                && !work.spent.contains_key(&usage.generation)
                && !work.stuck.contains(&usage.generation)
        })
    }
}
