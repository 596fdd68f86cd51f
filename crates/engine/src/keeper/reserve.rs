//! Room that is kept back: for a checkpoint, for cleaning, and for what takes away.
//!
//! Invariant: writes stop while so many segments are still free as a checkpoint, the cleaner and deletes need.

use std::sync::Weak;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use esker_store::{Error, Result};

use super::choose::is_tight;
use super::free::not_given_back;
use super::work::{Asking, Full, Work};
use super::{CLEAN_SEGMENTS, FULL_SHARE, IDLE, Keeper, PACED_SEGMENTS, RESCUE_SEGMENTS, TIGHT_SHARE};
use crate::checkpoint::Forecast;
use crate::commit::{Cleaner, Gate, stopped};
use crate::segments::Usage;

/// Free segments that writes leave alone beside those of a checkpoint.
const WRITES_LEAVE: u64 = 13;
/// Segments that are cleaned at most, before what leads to giving back is refused.
const GIVING_ROUNDS: u32 = 8;
/// And before what takes away is: it is always to go on.
const RESCUE_ROUNDS: u32 = 16;
/// So many segments cleaned in turn without more room are enough.
const VAIN_ROUNDS: u32 = 8;
/// With so many free segments more than where it is time to clean, and a twentieth of all, what others may need is
/// given back: so many segments at once, and taken again.
const EASE_SEGMENTS: u64 = 2;
const GIVEN_AT_ONCE: u64 = 16;
/// How long the device is not asked for blocks that it had not, if no write was refused since.
const QUIET: Duration = Duration::from_secs(30);

/// Free segments that writes leave alone on a device of so many, if a checkpoint of the whole index takes so many.
pub fn kept_back(checkpoint: u64, segments: u64) -> u64 {
    (checkpoint + WRITES_LEAVE).min(segments * 2 / 5)
}

/// What has come of looking for pieces of the last checkpoint that are to be written elsewhere.
pub(super) struct Renewed {
    /// The next checkpoint has room, as far as things have changed by now.
    pub fits: bool,
    /// There are such.
    pub any: bool,
}

impl Renewed {
    pub fn is_worth_a_checkpoint(&self) -> bool {
        self.fits && self.any
    }
}

impl Cleaner for Weak<Keeper> {
    fn wake(&self) {
        if let Some(keeper) = self.upgrade() {
            keeper.wake();
        }
    }

    fn reserve(&self) -> [u64; 2] {
        self.upgrade().map_or([0; 2], |keeper| Keeper::reserve(&keeper))
    }
}

impl Keeper {
    /// Says how many free segments each class of writes leaves alone.
    pub fn set_reserve(&self) {
        let reserve = self.reserve();
        self.parts.segments.keep_backed(self.checkpoint_segments() + WRITES_LEAVE);
        let log = &self.parts.log;
        // Until the first look the cleaner does not know what could be cleaned: what each opening let in would be too
        // much some day.
        let short = log.gate() == Gate::Open && log.segments_left() <= reserve[0];
        log.set_gate(if short { Gate::Wait } else { log.gate() }, reserve[0], reserve);
    }

    /// Free segments that writes leave alone, and that what takes away leaves alone.
    ///
    /// A checkpoint may have to write the whole index again while the last one still stands; the cleaner needs an open
    /// segment and one more; relocations need log; and an opening after a crash begins one segment of each kind. Writes
    /// leave eight more. What takes away leaves only what a checkpoint needs with the cleaning before it, and a segment
    /// of each kind: closing and opening a full store may use up some of the rest, and deletes must go on. On a device
    /// of few segments writes leave two fifths of them. Both leave what the index has grown by as well: after the next
    /// checkpoint there is to be room for another.
    pub(super) fn reserve(&self) -> [u64; 2] {
        let checkpoint = self.checkpoint_segments();
        let most = self.parts.segments.usable_segments() * 2 / 5;
        let writes = checkpoint + WRITES_LEAVE + self.held_reserve();
        let deletes = checkpoint + RESCUE_SEGMENTS + CLEAN_SEGMENTS;
        let grown = self.index_growth();
        [writes.min(most) + grown, deletes.min(most.saturating_sub(1)) + grown]
    }

    /// Segments that the next checkpoint takes and does not give back, because the index has grown since the last one.
    fn index_growth(&self) -> u64 {
        let segments = &self.parts.segments;
        // Of some spaces memory tells more than they take: what counts is how much more that is than it was.
        let before = segments.index_bytes().max(self.stored_before.load(Ordering::Relaxed));
        let grown = self.parts.objects.index_bytes().saturating_sub(before);
        ((grown + grown / 8) / segments.segment_bytes).min(segments.usable_segments() / 3)
    }

    /// What writes leave beside that while snapshots or backups hold segments: what is removed then makes nothing free,
    /// and a checkpoint that says so takes room while the one that is held stands.
    pub(super) fn held_reserve(&self) -> u64 {
        if self.holds.are_there() { self.hold_takes() } else { 0 }
    }

    /// What goes on where the device is full writes log, of which little lives: when it has taken a segment, or has
    /// come to the end of what is kept back for it, a checkpoint makes that free.
    pub(super) fn keep_deletes_going(&self, work: &mut Work, full: Full, reserve: [u64; 2]) -> Result<()> {
        let left = self.parts.log.segments_left();
        let fits = left >= self.checkpoint_segments() + RESCUE_SEGMENTS;
        let low = left < full.left || left <= reserve[1] + 2;
        let goes_on = self.parts.log.last_seq() != full.seq;
        // What was cleaned the last time is free after a checkpoint only, and a delete may be refused until then.
        // Nor are deletes that fill the open segment free before the log has left it, and none may enter another: the
        // one that it takes for that comes back with the checkpoint.
        let spare = left > self.checkpoint_segments() + RESCUE_SEGMENTS;
        let turns = left <= reserve[1] && spare && self.open_segment_is_spent() && self.parts.log.leave_segment();
        let wanted = low && fits && (goes_on || turns || !work.spent.is_empty());
        if wanted && self.renew_pieces(work, true)?.fits {
            self.checkpoint_now(work, true, &mut || ())?;
            self.free_dead(work, true)?;
            self.drop_saved_pages(work);
            // What was written instead of something else leaves a little everywhere.
            for _ in 0..GIVING_ROUNDS {
                let short = goes_on && self.parts.log.segments_left() <= reserve[1] + 2 && !self.is_tight();
                if !short || !self.clean_best(work, FULL_SHARE)? {
                    break;
                }
                self.settle(work)?;
                self.free_dead(work, true)?;
            }
            let (left, seq) = (self.parts.log.segments_left(), self.parts.log.last_seq());
            work.full_at = Some(Full { left, seq, ..full });
        }
        if let Some(full) = work.full_at
            && fits
        {
            self.keep_giving_going(work, full)?;
        }
        self.make_room_for_deletes(work)
    }

    /// What takes away is refused, or nearly: room is made until it goes on, or nothing gains any. What writers were
    /// given, what deletes changed between many checkpoints, and each closing and opening leave a little everywhere.
    fn make_room_for_deletes(&self, work: &mut Work) -> Result<()> {
        let log = &self.parts.log;
        if work.hopeless == Some(log.last_seq()) {
            return Ok(());
        }
        let (mut best_left, mut in_vain) = (log.segments_left(), 0);
        for _ in 0..RESCUE_ROUNDS {
            // After a checkpoint the index has not grown any more.
            let (left, leaves) = (log.segments_left(), self.reserve()[1]);
            if left > leaves || left <= RESCUE_SEGMENTS || self.stopping.load(Ordering::Acquire) {
                break;
            }
            let renewed = self.renew_pieces(work, false)?;
            if renewed.fits && (renewed.any || !work.spent.is_empty() || self.tail_segments(work) > 0) {
                self.write_renewed(work)?;
                if log.segments_left() > left {
                    continue;
                }
            }
            // Where a checkpoint may need the room, what is cleaned must be free without one.
            let Some(best) = self.best_of(work, TIGHT_SHARE, |usage| usage.index == 0 || !self.is_tight()) else {
                break;
            };
            self.clean_or_leave(work, best)?;
            self.settle(work)?;
            self.free_dead(work, true)?;
            in_vain = if log.segments_left() > best_left { 0 } else { in_vain + 1 };
            best_left = best_left.max(log.segments_left());
            if in_vain > VAIN_ROUNDS {
                break;
            }
        }
        // What was written for this gives no hope.
        let seq = log.last_seq();
        work.hopeless = (log.segments_left() <= self.reserve()[1]).then_some(seq);
        if let Some(full) = &mut work.full_at {
            full.seq = full.seq.max(seq);
        }
        Ok(())
    }

    /// Writes the checkpoint that [`Keeper::renew_pieces`] has found room for.
    pub(super) fn write_renewed(&self, work: &mut Work) -> Result<()> {
        self.settle(work)?;
        let left = self.parts.log.segments_left();
        self.write_now(work, true, left, &mut || ())?;
        self.free_dead(work, true)?;
        self.drop_saved_pages(work);
        Ok(())
    }

    /// Has the next checkpoint write the pieces of the last one elsewhere that would keep segments in which nothing
    /// else lives, as far as there is room and memory for them: otherwise the index takes twice its room after a few
    /// checkpoints of changes here and there. Where clients go on, until it begins and while it is written much more
    /// may change than has by now: then it writes all pieces, if it may not leave room for another.
    pub(super) fn renew_pieces(&self, work: &mut Work, clients_go_on: bool) -> Result<Renewed> {
        let (segments, left) = (&self.parts.segments, self.parts.log.segments_left());
        let room = left.saturating_sub(RESCUE_SEGMENTS) * segments.segment_bytes;
        let Forecast { written, stays } = work.saved.forecast(&self.parts);
        let whole_fits = left >= self.checkpoint_segments() + RESCUE_SEGMENTS;
        if written > room && whole_fits {
            // What is expected may be more than comes.
            return Ok(Renewed { fits: true, any: false });
        }
        if written > room {
            return Ok(Renewed { fits: false, any: false });
        }
        let is_last = left < 2 * self.checkpoint_segments() + RESCUE_SEGMENTS + CLEAN_SEGMENTS;
        let all = clients_go_on && is_last;
        let most = if all { segments.segment_bytes } else { segments.segment_bytes / 4 * 3 };
        let outdated = |usage: Usage| {
            let stay = stays.get(&usage.segment).copied().unwrap_or(0);
            (usage.once == 0 && (1..=most).contains(&stay)).then_some((stay, usage))
        };
        let mut outdated: Vec<(u64, Usage)> = self.closed(work).filter_map(outdated).collect();
        outdated.sort_unstable_by_key(|(stay, _)| *stay);
        // They come into memory for that, and leave it after the checkpoint.
        let memory = if segments.index_bytes() <= self.index_bytes { u64::MAX } else { self.index_bytes / 8 };
        // What clients are let do without another segment may change pages as well.
        let spare = if all { room - written } else { (room - written) / 2 };
        let mut needed = 0;
        outdated.retain(|(stay, _)| {
            needed += stay + stay / 8;
            needed <= spare && needed <= memory
        });
        let any = !outdated.is_empty();
        for (_, usage) in outdated {
            self.clean_or_leave(work, usage)?;
        }
        Ok(Renewed { fits: true, any })
    }

    /// Cleans a segment; one that cannot be cleaned now is left as it is.
    pub(super) fn clean_or_leave(&self, work: &mut Work, usage: Usage) -> Result<()> {
        match self.clean_segment(work, usage) {
            Err(Error::Stopped { cause }) => Err(Error::Stopped { cause }),
            Err(error) => {
                tracing::warn!(segment = usage.segment, %error, "not cleaned to make room for deletes");
                Ok(())
            }
            Ok(_) => Ok(()),
        }
    }

    /// What leads to giving back was refused: openings after crashes leave segments that were never filled, of the log
    /// and cold ones, and have come down to what it leaves to deletes. Such segments are put together until it goes on,
    /// or nothing is worth it and no more has been written.
    fn keep_giving_going(&self, work: &mut Work, full: Full) -> Result<()> {
        let log = &self.parts.log;
        let refused = std::mem::replace(&mut work.giving.refused, log.giving_refused());
        if refused == work.giving.refused || work.giving.hopeless == Some(log.last_seq()) {
            return Ok(());
        }
        for round in 0..GIVING_ROUNDS {
            // With the first, what was cleaned before is free, and the open segment of the opening can be chosen.
            let emptiest = (round > 0 && !self.is_tight()).then(|| self.emptiest(work, FULL_SHARE)).flatten();
            let cleaned = round == 0 || emptiest.map_or(Ok(false), |emptiest| self.clean_segment(work, emptiest))?;
            if !cleaned {
                break;
            }
            self.settle(work)?;
            self.checkpoint_now(work, true, &mut || ())?;
            self.free_dead(work, true)?;
            if log.segments_left() > log.giving_back_leaves() {
                break;
            }
        }
        let (left, seq) = (log.segments_left(), log.last_seq());
        work.giving.hopeless = (left <= log.giving_back_leaves()).then_some(seq);
        work.full_at = Some(Full { left, seq, ..full });
        Ok(())
    }

    /// Next to nothing lives in the log's open segment.
    fn open_segment_is_spent(&self) -> bool {
        let open = self.parts.log.open_generation();
        let used = self.parts.segments.in_use();
        used.iter().any(|usage| usage.generation == open && usage.live < self.parts.segments.segment_bytes / 8)
    }

    /// Segments that the last checkpoint may keep, beside the next ones, because it is held.
    pub(super) fn hold_takes(&self) -> u64 {
        self.checkpoint_segments() + RESCUE_SEGMENTS
    }

    /// Sees to it that what is kept back has blocks on the device, as far as the device has them: a file may be sparse,
    /// and its file system be filled by others. A small store keeps as many as its reserve would be if there were no
    /// more to be had. Where there were none, the device is asked again: once a second if writes are refused, each 30
    /// seconds otherwise, and at once where it had some the last time.
    ///
    /// # Errors
    /// [`Error::Stopped`](esker_store::Error::Stopped).
    pub(super) fn see_to_blocks(&self, work: &mut Work) -> Result<()> {
        let segments = &self.parts.segments;
        let failed = |error| self.stop_if_failed(stopped("reserving what is kept back", &error));
        // Where it had some the last time, it is asked for more before writers come to the end of them.
        let asking = &mut work.asking;
        let goes_on = asking.more > 0 && segments.free_segments() < self.low(self.reserve());
        // A file system that is asked may have to look long: if no writer was refused, it is left alone for longer.
        let asked = self.parts.log.asked();
        let pause = if asked == asking.asked { QUIET } else { IDLE };
        // The blocks that the store has given back are no sign that others have given back any: while it is at ease
        // they will do, and where it is not it takes them again first.
        if segments.bare_segments() > 0 && !self.is_at_ease(0) {
            segments.take_back(&*self.device, GIVEN_AT_ONCE).map_err(failed)?;
        }
        let asks = segments.given_segments() == 0;
        let due = asks && (!self.threaded || goes_on || asking.at.is_none_or(|at| at.elapsed() >= pause));
        if segments.bare_segments() == 0 {
            *asking = Asking::default();
        } else if due {
            (asking.at, asking.asked) = (Some(Instant::now()), asked);
            if segments.ask_again(&*self.device, asking.more).map_err(failed)? {
                asking.more = (2 * asking.more + 1).min(segments.log_segments());
                work.full_at = None;
                self.parts.log.has_grown();
            } else {
                work.asking.more = 0;
            }
        }
        segments.keep_backed(self.checkpoint_segments() + WRITES_LEAVE);
        segments.back(&*self.device).map_err(failed)
    }

    /// Gives back the blocks of free segments that are more than what is kept back, where others may need them: the
    /// device had none when it was asked. Not where the store may need them soon, nor while a snapshot or backup has it
    /// keep more. A few each time that there is nothing else to do; what the device does not take stays.
    pub(super) fn give_surplus_back(&self) {
        let segments = &self.parts.segments;
        let others_need = segments.bare_segments() > 0 && self.device.geometry().zone_bytes.is_none();
        let band = EASE_SEGMENTS + segments.usable_segments() / 20;
        if others_need
            && self.is_at_ease(band)
            && !self.holds.are_there()
            && let Err(error) = segments.give_back(&*self.device, GIVEN_AT_ONCE)
        {
            not_given_back(&error);
        }
    }

    /// Takes back what was given back, and asks the device for segments that it had no blocks for, until more than
    /// `leaves` are left, or it has none. Whether more are.
    ///
    /// # Errors
    /// [`Error::Stopped`](esker_store::Error::Stopped).
    pub(super) fn find_room(&self, leaves: u64) -> Result<bool> {
        let segments = &self.parts.segments;
        let failed = |error| self.stop_if_failed(stopped("reserving what a snapshot keeps", &error));
        if self.parts.log.segments_left() > leaves {
            return Ok(true);
        }
        segments.take_back(&*self.device, u64::MAX).map_err(failed)?;
        while self.parts.log.segments_left() <= leaves {
            if !segments.ask_again(&*self.device, 0).map_err(failed)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// More segments are free, by so many, than where it is time to clean.
    fn is_at_ease(&self, by: u64) -> bool {
        self.parts.log.segments_left() > self.low(self.reserve()) + by
    }

    /// With fewer free segments than this it is time to clean.
    pub(super) fn low(&self, reserve: [u64; 2]) -> u64 {
        reserve[0] + 2 + self.parts.segments.usable_segments() / 20
    }

    /// Segments that a checkpoint of the whole index takes at most; an eighth more for what does not fit at their ends.
    pub(super) fn checkpoint_segments(&self) -> u64 {
        let segments = &self.parts.segments;
        // What the last one has, or what is in memory by now.
        let index = segments.index_bytes().max(self.parts.objects.index_bytes());
        (index + index / 8).div_ceil(segments.segment_bytes)
    }

    /// Whether cleaning one segment after the other might take what a checkpoint needs, without which some of them do
    /// not become free.
    pub(super) fn is_tight(&self) -> bool {
        is_tight(self.parts.log.segments_left(), self.checkpoint_segments())
    }

    /// Whether writers may have to wait for the cleaner, now or soon.
    pub(super) fn is_nearly_short(&self) -> bool {
        self.is_nearly_short_with(self.parts.log.segments_left())
    }

    /// The same with so many segments left.
    pub(super) fn is_nearly_short_with(&self, left: u64) -> bool {
        left <= self.reserve()[0] + 2 * self.flying_segments() + PACED_SEGMENTS
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use esker_device::{Device, MemoryDevice};
    use esker_store::{Change, Collection, ObjectId, ObjectStore, Transaction};

    use crate::{Engine, FormatOptions, Options};

    /// A store of int keys, each with a value of 4 bytes: `objects` of them with `keys` keys, each so far from the one
    /// before it.
    fn filled(segment_bytes: u64, objects: u64, keys: u64, apart: u64) -> Engine {
        let device = Arc::new(MemoryDevice::new(256 << 20));
        Engine::format(&*device, &FormatOptions { segment_bytes, uuid: [9; 16] }).unwrap();
        let options = Options { commit_thread: false, ..Options::default() };
        let engine = Engine::open(device as Arc<dyn Device>, options).unwrap();
        let collection = Collection::from("c");
        engine.submit(Transaction::new().create_collection(&collection)).wait().unwrap();
        for number in 0..objects {
            let object = ObjectId::new(collection.clone(), format!("ints{number}"));
            for first in (0..keys).step_by(1_000) {
                let mut txn = Transaction::new();
                (first..keys.min(first + 1_000)).for_each(|key| {
                    txn.push(&object, Change::SlotSet { index: key * apart, value: "four".into() });
                });
                engine.submit(txn).wait().unwrap();
            }
        }
        engine
    }

    /// Writes the first checkpoint; its bytes, for which there was room.
    fn checked(engine: &Engine, segment_bytes: u64) -> u64 {
        let kept = engine.keeper.as_ref().unwrap().checkpoint_segments();
        engine.checkpoint().unwrap();
        let written = engine.stats().checkpoint_bytes;
        assert!(kept * segment_bytes >= written, "room for {kept} segments is kept, {written} bytes were written");
        written
    }

    /// Pages of slots take less in memory than in a checkpoint, which is what there has to be room for.
    #[test]
    fn a_checkpoint_of_packed_pages_takes_no_more_segments_than_are_kept_for_it() {
        const SEGMENT: u64 = 256 << 10;
        let engine = filled(SEGMENT, 1, 200_000, 1);
        let stats = engine.stats();
        assert!((2.0..2.5).contains(&stats.slot_index_bytes_per_key()), "{stats:?}");
        let written = checked(&engine, SEGMENT);
        assert!(written >= 200_000 * 8, "{written} bytes");
    }

    /// Scattered keys have a page each, with a header and a line in the list of pages, that take more than their slots.
    /// Counted as slots they had a quarter of the room that they need, and none in objects of less than 128.
    #[test]
    fn a_checkpoint_of_scattered_slots_takes_no_more_segments_than_are_kept_for_it() {
        for (segment_bytes, objects, keys, apart) in [
            (256 << 10, 1, 30_000, 1_000),
            (256 << 10, 1, 30_000, 100),
            (256 << 10, 300, 100, 1_000),
            (1 << 20, 300, 65, 1_000),
            // Of segments so small heads hold 8 slots each.
            (64 << 10, 300, 64, 1_000),
        ] {
            println!("{objects} objects of {keys} keys, {apart} apart, in segments of {segment_bytes} bytes");
            let engine = filled(segment_bytes, objects, keys, apart);
            let written = checked(&engine, segment_bytes);
            assert!(written >= objects * keys * 16, "{written} bytes");
        }
    }
}
