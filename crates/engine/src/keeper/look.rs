//! Looking: what is to be done, for the choice, and doing it.
//!
//! blocks on the device → what has moved → what is dead is free → outlook → choice → done → writes let in or not
//!
//! Source: Rosenblum and Ousterhout, The Design and Implementation of a Log-Structured File System (1992), section 3.5.

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::time::Duration;

use esker_device::Device;
use esker_store::{Error, Result};

use super::choose::{Choice, IndexSize, Outcome, Outlook, Search, Victim, choose, let_in};
use super::work::{Full, Work};
use super::{CHECKPOINT_SHARE, FLYING_SEGMENTS, FULL_SHARE, Keeper, RESCUE_SEGMENTS, TIGHT_SHARE};
use crate::clean::learn_sharers;
use crate::commit::Gate;
use crate::segments::{DamageLevel, Usage};

/// When this part of what lives was moved since writes last had room, the emptiest segment is cleaned, however young it
/// is: what counts then is how much a move gains now.
const HARD_PARTS: u64 = 8;

/// A relocation takes about a part in so many of what a write takes.
const RELOCATION_PARTS: u64 = 16;
/// When so many bytes have to be moved for one that can be written, the device is full.
const FULL_COST: u64 = 64;

impl Keeper {
    pub(super) fn look(&self, work: &mut Work) -> Result<bool> {
        if let Some(failure) = self.parts.log.mark().failure() {
            return Err(failure);
        }
        let asked = self.parts.log.asked();
        let outcome = match self.step_locked(work) {
            Err(Error::Stopped { cause }) => Err(Error::Stopped { cause }),
            // Nothing is lost by that: it is tried again when the thread wakes.
            Err(error) => {
                tracing::warn!(%error, "checkpoint or cleaning put off");
                let reserve = self.reserve();
                let left = self.parts.log.segments_left();
                self.pace(false);
                let gate = if left > reserve[0] { Gate::Open } else { Gate::Full };
                self.parts.log.set_gate(gate, reserve[0], reserve);
                Ok(false)
            }
            done => done,
        };
        // Those who asked find what it has decided.
        self.parts.log.has_looked(asked);
        self.has_looked();
        outcome
    }

    fn step_locked(&self, work: &mut Work) -> Result<bool> {
        let log = &self.parts.log;
        self.see_to_blocks(work)?;
        // What a checkpoint takes depends on the pages in memory: all that follows is of the moment after they left.
        let index = self.index_size(work);
        let reserve = self.reserve();
        let low = self.low(reserve);
        let near = log.segments_left() <= self.checkpoint_segments() + RESCUE_SEGMENTS + FLYING_SEGMENTS / 2;
        if near || work.full_at.is_some() {
            self.settle(work)?;
        }
        self.note_failed(work)?;
        self.seal_damaged(work)?;
        // While space is short what is dead is made free as the log becomes durable by itself.
        let mut done = self.free_dead(work, near || log.segments_left() >= low)?;
        let live: u64 = self.parts.segments.in_use().iter().map(|usage| usage.once).sum();
        if self.holds.were_released() {
            // What only they kept apart from the rest may be worth cleaning.
            (work.full_at, work.effort, work.hopeless) = (None, 0, None);
        }
        let mut outlook = self.outlook(work, index, reserve[0], low, live);
        let mut choice = choose(&outlook);
        if let (Choice::StayFull { checkpoint }, Some(full)) = (choice, work.full_at) {
            self.stay_full(work, full, checkpoint, reserve)?;
            return Ok(false);
        }
        if work.full_at.take().is_some() {
            (work.effort, work.hopeless) = (0, None);
        }
        if let Choice::Look(search) = choice {
            outlook.victim = self.victim(work, &outlook, search);
            choice = choose(&outlook);
        }
        match choice {
            Choice::Checkpoint { hurry } => {
                // One that does not come to its end leaves two halves.
                if !outlook.is_short() || self.renew_pieces(work, true)?.fits {
                    self.checkpoint_now(work, hurry, &mut || ())?;
                    self.free_dead(work, true)?;
                    self.drop_saved_pages(work);
                    done = true;
                } else if let Some(best) = self.best_of(work, TIGHT_SHARE, |usage| usage.index == 0) {
                    self.clean_or_leave(work, best)?;
                    done |= self.free_dead(work, near)?;
                }
            }
            // Pieces of checkpoints, scattered, may take up what one needs: that is less than copies of values.
            Choice::Clean(_) if self.is_tight() && self.renew_pieces(work, false)?.is_worth_a_checkpoint() => {
                self.write_renewed(work)?;
                done = true;
            }
            Choice::Clean(best) => {
                done |= match self.clean_segment(work, best) {
                    // It is left aside: another one may do.
                    Err(Error::Io { .. } | Error::Corrupt { .. }) => true,
                    cleaned => cleaned?,
                };
                self.free_dead(work, near)?;
            }
            Choice::StayFull { .. } | Choice::Look(_) | Choice::Nothing => {}
        }
        if !done {
            // What was begun before may have made room.
            self.settle(work)?;
            done |= self.free_dead(work, true)?;
            self.give_surplus_back();
        }
        let left = log.segments_left();
        let (written, _) = log.appended_kinds();
        if left > reserve[0] || work.effort / FULL_COST <= written.saturating_sub(work.effort_from) {
            (work.effort, work.effort_from) = (0, written);
        }
        let entry = let_in(&Outcome {
            left,
            low,
            reserve,
            flying: self.flying_segments(),
            threaded: self.threaded,
            short: outlook.is_short(),
            done,
            may_have_more: work.asking.may_have_more(),
            effort: work.effort,
            live,
            segment_bytes: self.parts.segments.segment_bytes,
        });
        if entry.gate == Gate::Full {
            work.full_at = Some(Full { live, left, seq: log.last_seq() });
        }
        log.set_gate(entry.gate, entry.writes, reserve);
        self.pace(entry.paced);
        Ok(entry.again)
    }

    /// Has index pages leave memory as far as they can, and tells what the rest takes.
    fn index_size(&self, work: &mut Work) -> IndexSize {
        match self.drop_pages(work) {
            false => IndexSize::Fits,
            true if self.is_far_over(work) => IndexSize::FarOver,
            true => IndexSize::Over,
        }
    }

    /// What there is to be seen, but for a segment to be cleaned.
    fn outlook(&self, work: &Work, index: IndexSize, reserve: u64, low: u64, live: u64) -> Outlook {
        let (log, segments) = (&self.parts.log, &self.parts.segments);
        // A segment of log whose header is lost is passed through by every opening until a checkpoint covers it; the
        // one where replay begins needs none, because the superblock names it.
        let lost = |usage: &Usage| !usage.cold && usage.generation > work.floor && usage.damage >= DamageLevel::Header;
        let tail_bytes = self.tail_bytes(work);
        let walked_until = self.walked_until.load(Ordering::Relaxed);
        Outlook {
            left: log.segments_left(),
            total: segments.usable_segments(),
            segment_bytes: segments.segment_bytes,
            checkpoint: self.checkpoint_segments(),
            reserve,
            low,
            gone_since_full: work.full_at.map(|full| full.live.saturating_sub(live)),
            tail: self.tail_segments(work),
            tail_bytes,
            tail_changes: self.tail_changes(work),
            checkpoint_bytes: work.checkpoint_bytes,
            replay_is_long: self.replay_takes_long(work),
            index,
            index_bytes: self.index_bytes,
            renew: work.renew > 0 || segments.in_use().iter().any(lost),
            walked: self.threaded && self.since.elapsed().as_micros() as u64 <= walked_until,
            spent: !work.spent.is_empty(),
            // What the last checkpoint left so is no reason for another.
            wanted: self.waiting(work).difference(&work.unfreed).count() as u64,
            victim: Victim::Unsought,
        }
    }

    /// Segments, by generation, in which no value lives and that wait for checkpoints, two of them at most, where the
    /// device is short of blocks: dead log, and what has pieces of a checkpoint that the next one does without.
    pub(super) fn waiting(&self, work: &Work) -> HashSet<u32> {
        if self.parts.segments.bare_segments() == 0 {
            return HashSet::new();
        }
        let (open, held) = (self.parts.log.open_generation(), self.holds.now());
        // Most of the index that was written is gone, unless it is not in memory.
        let written = self.parts.segments.index_bytes();
        let gone = written <= self.index_bytes && self.parts.objects.stored_bytes() < written / 2;
        let changed = self.tail_bytes(work) > 0;
        let waits = |usage: &Usage| {
            let dead = usage.index == 0 && !usage.cold && (work.floor_before..open).contains(&usage.generation);
            let outdated = usage.index > 0 && changed && gone && usage.generation != open;
            usage.live == 0 && (dead || outdated) && !held.contains_key(&usage.generation)
        };
        let waiting = self.parts.segments.in_use().into_iter().filter(waits);
        waiting.map(|usage| usage.generation).collect()
    }

    /// The bytes of log since the last checkpoint, but those of relocations several times over.
    pub(super) fn tail_changes(&self, work: &Work) -> u64 {
        let relocated = self.parts.log.appended_kinds().1.saturating_sub(work.relocation_bytes);
        self.tail_bytes(work) + (RELOCATION_PARTS - 1) * relocated
    }

    fn tail_bytes(&self, work: &Work) -> u64 {
        self.parts.log.appended().1.saturating_sub(work.log_bytes) + work.replayed.0
    }

    /// The segment that is looked for.
    fn victim(&self, work: &Work, outlook: &Outlook, search: Search) -> Victim {
        let share = if self.is_tight() { TIGHT_SHARE } else { FULL_SHARE };
        let free_at_once = || self.best_of(work, share, |usage| usage.index == 0);
        let found = match search {
            Search::Damaged => self.damaged(work),
            Search::Best => self.best(work, FULL_SHARE),
            Search::FreeAtOnce => free_at_once(),
            Search::FreeAtOnceOrBest => free_at_once().or_else(|| self.best(work, share)),
        };
        found.map_or(Victim::None, |best| Victim::Found(best, outlook.fits() && self.tail_is_better(work, &best)))
    }

    /// Keeps what takes away going on a device that is still full.
    fn stay_full(&self, work: &mut Work, mut full: Full, checkpoint: bool, reserve: [u64; 2]) -> Result<()> {
        if checkpoint {
            self.checkpoint_now(work, true, &mut || ())?;
            self.free_dead(work, true)?;
            self.drop_saved_pages(work);
            // What was removed until then needs no other, if it has made room for what is removed next.
            let left = self.parts.log.segments_left();
            if left > reserve[1] + 2 {
                full = Full { left, seq: work.covered.unwrap_or(full.seq), ..full };
                work.full_at = Some(full);
            }
        }
        // What is removed may be worth more than what is added for it: for that, lenders are to be known.
        learn_sharers(&self.parts)?;
        self.keep_deletes_going(work, full, reserve)?;
        let reserve = self.reserve();
        self.parts.log.set_gate(Gate::Full, reserve[0], reserve);
        self.pace(false);
        Ok(())
    }

    /// Has writers keep to what there is, or not. Only a thread can be waited for.
    pub(super) fn pace(&self, paced: bool) {
        if self.threaded {
            let keeps = self.parts.segments.segment_bytes / 8;
            self.parts.log.pace(paced.then(|| self.allowance()), keeps as i64);
        }
    }

    /// Whether the log after the last checkpoint would take longer to replay, with what is written while the next one
    /// is, than is left of the time for opening when the checkpoint is loaded.
    fn replay_takes_long(&self, work: &Work) -> bool {
        let index = self.parts.segments.index_bytes().max(self.parts.objects.stored_bytes());
        let writes = match self.threaded {
            true => Duration::from_micros(self.counters.checkpoint_us.load(Ordering::Relaxed)),
            false => Duration::ZERO,
        };
        let tail = self.parts.log.replay_ns().saturating_sub(work.replay_ns) + work.replayed.1;
        self.recovery.is_exceeded(index, writes, tail)
    }

    /// Segments of log that the last checkpoint does not cover and that are sealed.
    pub(super) fn tail_segments(&self, work: &Work) -> u64 {
        let open = self.parts.log.open_generation();
        let tail = |usage: &&Usage| !usage.cold && (work.floor..open).contains(&usage.generation);
        self.parts.segments.in_use().iter().filter(tail).count() as u64
    }

    /// Whether a checkpoint and then cleaning what it covers writes less for each byte that becomes free than cleaning
    /// the best of what is covered already. What was just written may be the emptiest there is: it holds what the
    /// cleaner said of its moves.
    fn tail_is_better(&self, work: &Work, best: &Usage) -> bool {
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

    /// Segments that could be cleaned.
    pub(super) fn closed<'a>(&'a self, work: &'a Work) -> impl Iterator<Item = Usage> + 'a {
        let (open, flying, held) = (work.cold.open_segment(), self.moving.flying(), self.holds.now());
        let closed = move |usage: &Usage| {
            let closed = if usage.cold { Some(usage.segment) != open } else { usage.generation < work.floor };
            closed
                && usage.damage == DamageLevel::None
                && !held.contains_key(&usage.generation)
                && !flying.touches(usage)
                && !work.spent.contains_key(&usage.generation)
                && !work.stuck.contains(&usage.generation)
        };
        self.parts.segments.in_use().into_iter().filter(closed)
    }

    /// Segments that are worth being cleaned, and how much that is.
    pub(super) fn candidates<'a>(&'a self, work: &'a Work, share: f64) -> impl Iterator<Item = (Usage, f64)> + 'a {
        let now = self.parts.log.last_seq();
        let size = self.parts.segments.segment_bytes as f64;
        let live: u64 = self.parts.segments.in_use().iter().map(|usage| usage.once).sum();
        let hard = self.is_tight() || work.effort >= live / HARD_PARTS;
        self.closed(work).filter_map(move |usage| {
            let lives = (usage.once + usage.index) as f64;
            let age = (now.saturating_sub(usage.age) + 1) as f64;
            let whole = if usage.cold { usage.filled as f64 } else { size };
            let used = lives / size;
            let age = if hard { 1.0 } else { age };
            (lives < share * whole).then(|| (usage, (1.0 - used) * age / (1.0 + used)))
        })
    }

    /// The segment in which least lives, less than `share` of its size, though nothing may be dead in it.
    pub(super) fn emptiest(&self, work: &Work, share: f64) -> Option<Usage> {
        let most = (share * self.parts.segments.segment_bytes as f64) as u64;
        let some = self.closed(work).filter(|usage| usage.once + usage.index < most);
        some.min_by_key(|usage| usage.once + usage.index)
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
