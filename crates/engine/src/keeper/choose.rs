//! Choice: what the keeper does next, from what it has looked at, and whether writes are let in afterwards.
//!
//! ```text
//! found full, and next to nothing has gone since → only what takes away goes on
//! much log, too large an index, damage           → checkpoint
//! others need the space of what is dead          → checkpoint
//! few segments left                              → clean the best, or a checkpoint where that gains more
//! enough left                                    → clean what is damaged, or nothing
//! ```
//!
//! Invariant: nothing is looked at or changed here: one outlook always gives the same choice.

use super::{CLEAN_SEGMENTS, PACED_SEGMENTS, RESCUE_SEGMENTS};
use crate::commit::Gate;
use crate::segments::Usage;

/// A checkpoint is due when so many bytes of log have gathered, or so many times the last checkpoint's bytes.
const CHECKPOINT_LOG_BYTES: u64 = 256 << 20;
const CHECKPOINT_LOG_FACTOR: u64 = 8;
/// With more changed pages than the budget allows a checkpoint is due when the budget's bytes divided by this have been
/// written: what changes a page of 4 KiB takes fifty bytes of log or more, and of relocations a few, which count for
/// more (see [`Outlook::tail_changes`]).
const CROWDED_LOG_SHARE: u64 = 128;
/// Where others need space, a checkpoint is due for so many dead segments, and for this part of all.
const WANTED_MIN: u64 = 2;
const WANTED_PARTS: u64 = 8;
/// So many segments less writes leave alone while they get what cleaning gains.
const FLOW_SEGMENTS: u64 = 4;

/// What the keeper has looked at when it chooses.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outlook {
    /// Segments that are free or readied for the log, and all that can be used.
    pub left: u64,
    pub total: u64,
    pub segment_bytes: u64,
    /// Segments that a checkpoint takes at most, that writes leave alone, and below which it is time to clean.
    pub checkpoint: u64,
    pub reserve: u64,
    pub low: u64,
    /// Bytes that have gone since the device was found to be full, if it was.
    pub gone_since_full: Option<u64>,
    /// Sealed segments of log that no checkpoint covers, and the bytes that were written since the last one.
    pub tail: u64,
    pub tail_bytes: u64,
    /// The same bytes, but those of relocations several times over: an entry of a few bytes may change a page of the
    /// index as well as a write does.
    pub tail_changes: u64,
    /// Bytes of the last checkpoint.
    pub checkpoint_bytes: u64,
    /// Replaying the tail would take longer than opening may.
    pub replay_is_long: bool,
    /// The index against its budget, and that budget in bytes.
    pub index: IndexSize,
    pub index_bytes: u64,
    /// Damage is to be covered by a checkpoint.
    pub renew: bool,
    /// A reader walks the log.
    pub walked: bool,
    /// Segments were cleaned that only a checkpoint makes free.
    pub spent: bool,
    /// Segments that have come to hold no values since the last checkpoint, only log and pieces of checkpoints that the
    /// next one does without, on a device that had no blocks when the log asked for some: others there may need them.
    pub wanted: u64,
    pub victim: Victim,
}

/// What index pages take, when those that can have left memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IndexSize {
    /// No more than their budget.
    Fits,
    /// More than it: what is left has changed.
    Over,
    /// So much more that calls wait.
    FarOver,
}

/// Which segment there is to be cleaned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Victim {
    /// The keeper has not looked.
    Unsought,
    None,
    /// This one; and whether a checkpoint and then cleaning what it covers writes less for what it gains.
    Found(Usage, bool),
}

/// Which segments are looked at for one to be cleaned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Search {
    /// Those with damage.
    Damaged,
    /// All, for the one that is worth most.
    Best,
    /// Those without pieces of the checkpoint: they are free as soon as they are clean.
    FreeAtOnce,
    /// These, and if there is none, all.
    FreeAtOnceOrBest,
}

/// What comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    /// The device is still full: what takes away is kept going, after a checkpoint if index pages have to leave.
    StayFull {
        checkpoint: bool,
    },
    Checkpoint {
        hurry: bool,
    },
    /// Look for a segment to be cleaned, and choose again.
    Look(Search),
    Clean(Usage),
    Nothing,
}

/// Whether cleaning one segment after the other might take what a checkpoint needs, without which some of them do not
/// become free.
pub(super) fn is_tight(left: u64, checkpoint: u64) -> bool {
    left < checkpoint + RESCUE_SEGMENTS + CLEAN_SEGMENTS
}

impl Outlook {
    /// All that could be gained was: only what goes from now on makes room.
    fn is_still_full(&self) -> bool {
        self.gone_since_full.is_some_and(|gone| gone < self.segment_bytes / 2) && self.left <= self.reserve
    }

    fn is_tight(&self) -> bool {
        is_tight(self.left, self.checkpoint)
    }

    /// A checkpoint finds what it needs.
    pub fn fits(&self) -> bool {
        self.left >= self.checkpoint + RESCUE_SEGMENTS
    }

    /// It is time to clean; for a reader that walks the log it is put off while writes need not wait.
    pub fn is_short(&self) -> bool {
        self.left < self.low && !(self.walked && self.left > self.reserve)
    }

    /// The index takes more than its budget, and what is above it has changed: a checkpoint makes it fit to leave.
    fn is_crowded(&self) -> bool {
        match self.index {
            IndexSize::Fits => false,
            IndexSize::Over => self.tail_changes >= self.index_bytes / CROWDED_LOG_SHARE,
            IndexSize::FarOver => self.tail_bytes >= 1,
        }
    }

    /// A checkpoint is due, however many segments are left.
    fn is_checkpoint_due(&self) -> bool {
        let long = self.tail_bytes >= CHECKPOINT_LOG_BYTES.max(CHECKPOINT_LOG_FACTOR * self.checkpoint_bytes)
            && self.tail_bytes >= 4 * self.segment_bytes;
        self.is_crowded() || self.replay_is_long || long || self.renew && !self.is_tight()
    }

    /// Others get back what is dead, though this store has room enough.
    fn gives_back(&self) -> bool {
        !self.is_short() && !self.is_tight() && self.wanted >= WANTED_MIN.max(self.total / WANTED_PARTS)
    }

    /// Which segments are worth a look.
    fn search(&self) -> Option<Search> {
        let nothing_to_cover = self.tail == 0 && !self.spent;
        match self.is_short() {
            // What holds of a damaged segment is moved before it may rot as well.
            false if !self.is_tight() && !self.walked && self.left > self.reserve + 1 => Some(Search::Damaged),
            false => None,
            // While a checkpoint still finds what it needs, that comes first: cleaning might take it.
            true if self.is_tight() && self.fits() && !nothing_to_cover => None,
            // Where it might not, segments are cleaned that are free as soon as they are clean.
            true if self.is_tight() && self.left > RESCUE_SEGMENTS && nothing_to_cover => {
                Some(Search::FreeAtOnceOrBest)
            }
            true if self.is_tight() && self.left > RESCUE_SEGMENTS => Some(Search::FreeAtOnce),
            true => Some(Search::Best),
        }
    }
}

/// What comes next.
pub(super) fn choose(outlook: &Outlook) -> Choice {
    let hurry = outlook.is_short() || outlook.index == IndexSize::FarOver;
    if outlook.is_still_full() {
        // What deletes and the cleaner change stays in memory as well, and the cleaner has changed much before it finds
        // the device full.
        return Choice::StayFull { checkpoint: outlook.fits() && outlook.is_crowded() };
    }
    if outlook.is_checkpoint_due() || outlook.gives_back() {
        return Choice::Checkpoint { hurry };
    }
    let (best, tail_is_better) = match (outlook.victim, outlook.search()) {
        (Victim::Unsought, Some(search)) => return Choice::Look(search),
        (Victim::Unsought | Victim::None, _) => (None, false),
        (Victim::Found(best, tail_is_better), _) => (Some(best), tail_is_better),
    };
    // Dead segments of the tail are made free by a checkpoint only: while one finds room, it is not put off.
    let pays = outlook.fits() && tail_is_better;
    let long_tail = outlook.tail >= 2.max(outlook.total / 8) && !outlook.is_tight() || pays;
    let covers = outlook.tail > 0 && (best.is_none() || long_tail) || outlook.spent && best.is_none();
    match best {
        _ if outlook.is_short() && covers => Choice::Checkpoint { hurry },
        Some(best) => Choice::Clean(best),
        None => Choice::Nothing,
    }
}

/// What has come of a look.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outcome {
    /// Segments that are left, below which it is time to clean, and that each class of writes leaves alone.
    pub left: u64,
    pub low: u64,
    pub reserve: [u64; 2],
    /// Segments that are being moved when there is much to clean.
    pub flying: u64,
    pub threaded: bool,
    /// It was time to clean when the look began.
    pub short: bool,
    /// Anything was done.
    pub done: bool,
    /// The device had blocks when it was last asked for what it had not, and may have more.
    pub may_have_more: bool,
    /// Bytes that were moved since writes last had room, and bytes that live.
    pub effort: u64,
    pub live: u64,
    pub segment_bytes: u64,
}

/// Whether writes are let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub gate: Gate,
    /// Free segments that writes leave alone.
    pub writes: u64,
    /// Writers keep to what there is.
    pub paced: bool,
    /// The keeper looks again at once.
    pub again: bool,
}

/// Whether writes are let in after a look, and whether another one follows.
pub(super) fn let_in(outcome: &Outcome) -> Entry {
    let Outcome { left, reserve, flying, done, .. } = *outcome;
    // There was room enough to leave all in place when the look began: the next one will not.
    // Nor is it known that there is no more room while the device had blocks whenever it was asked.
    let missed = !outcome.short && !done || outcome.may_have_more;
    let near = left <= reserve[0] + 2 * flying + PACED_SEGMENTS;
    // Writers that get only what cleaning gains need no more to be kept back than what takes away, and a little. Nor
    // do they when nothing is worth cleaning any more: they came down to here by that, and what they overwrite from
    // here on is worth it again.
    let flows = outcome.threaded && near && flying > 0;
    // What is left is for deletes and what leads to them, and for the segments that the cleaner has begun when it
    // ends.
    let leaves = reserve[1] + (reserve[0] - reserve[1]).saturating_sub(FLOW_SEGMENTS).max(1);
    let writes = if flows { reserve[0].min(leaves) } else { reserve[0] };
    let gate = if left > writes {
        Gate::Open
    } else if missed || done && outcome.effort <= outcome.live + 4 * outcome.segment_bytes {
        Gate::Wait
    } else {
        // Everything that lives was moved once and next to nothing could be written for it, or nothing is worth it:
        // there is no more room to be had.
        Gate::Full
    };
    let again = done && left < outcome.low || missed && gate == Gate::Wait;
    Entry { gate, writes, paced: near && done, again }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segments::DamageLevel;

    const SEGMENT_BYTES: u64 = 1 << 20;

    const BEST: Usage = Usage {
        segment: 9,
        generation: 5,
        cold: false,
        age: 1,
        live: 1000,
        once: 1000,
        index: 0,
        filled: 0,
        end: SEGMENT_BYTES,
        damage: DamageLevel::None,
    };
    const FOUND: Victim = Victim::Found(BEST, false);
    const TAIL_IS_BETTER: Victim = Victim::Found(BEST, true);

    /// A store with room: 80 segments of 100 are left, a checkpoint takes 3, writes leave 15, cleaning begins at 22.
    const CALM: Outlook = Outlook {
        left: 80,
        total: 100,
        segment_bytes: SEGMENT_BYTES,
        checkpoint: 3,
        reserve: 15,
        low: 22,
        gone_since_full: None,
        tail: 1,
        tail_bytes: SEGMENT_BYTES,
        tail_changes: SEGMENT_BYTES,
        checkpoint_bytes: 2 << 20,
        replay_is_long: false,
        index: IndexSize::Fits,
        index_bytes: 256 << 20,
        renew: false,
        walked: false,
        spent: false,
        wanted: 0,
        victim: Victim::None,
    };
    /// The same with 20 left, and with 4, where a checkpoint of the whole index does not fit.
    const SHORT: Outlook = Outlook { left: 20, ..CALM };
    const TIGHT: Outlook = Outlook { left: 4, ..CALM };
    const FULL: Outlook = Outlook { left: 15, gone_since_full: Some(0), ..CALM };

    #[test]
    fn each_outlook_has_its_choice() {
        let sought = Victim::Unsought;
        let at_ease = Choice::Checkpoint { hurry: false };
        let at_once = Choice::Checkpoint { hurry: true };
        let half = SEGMENT_BYTES / 2;
        let rows: &[(&str, Outlook, Choice)] = &[
            // With room.
            ("nothing to do", CALM, Choice::Nothing),
            ("damage is looked for", Outlook { victim: sought, ..CALM }, Choice::Look(Search::Damaged)),
            ("and moved", Outlook { victim: FOUND, ..CALM }, Choice::Clean(BEST)),
            ("and moved though the tail gains more", Outlook { victim: TAIL_IS_BETTER, ..CALM }, Choice::Clean(BEST)),
            ("but not for a walk", Outlook { victim: sought, walked: true, ..CALM }, Choice::Nothing),
            ("nor near the reserve", Outlook { victim: sought, left: 16, low: 16, ..CALM }, Choice::Nothing),
            (
                "one more left is enough",
                Outlook { victim: sought, left: 17, low: 16, ..CALM },
                Choice::Look(Search::Damaged),
            ),
            ("nor where it is tight", Outlook { victim: sought, low: 0, reserve: 0, ..TIGHT }, Choice::Nothing),
            ("a long tail alone", Outlook { tail: 90, ..CALM }, Choice::Nothing),
            // A checkpoint, whatever is left.
            ("much log", Outlook { tail_bytes: 256 << 20, ..CALM }, at_ease),
            ("not quite as much", Outlook { tail_bytes: (256 << 20) - 1, ..CALM }, Choice::Nothing),
            (
                "little beside the last",
                Outlook { tail_bytes: 256 << 20, checkpoint_bytes: 33 << 20, ..CALM },
                Choice::Nothing,
            ),
            (
                "little beside a segment",
                Outlook { tail_bytes: 256 << 20, segment_bytes: 65 << 20, ..CALM },
                Choice::Nothing,
            ),
            ("four segments", Outlook { tail_bytes: 256 << 20, segment_bytes: 64 << 20, ..CALM }, at_ease),
            ("a long replay", Outlook { replay_is_long: true, ..CALM }, at_ease),
            ("no look before one that is due", Outlook { replay_is_long: true, victim: sought, ..CALM }, at_ease),
            ("in a hurry if segments are short", Outlook { replay_is_long: true, ..SHORT }, at_once),
            ("a crowded index", Outlook { index: IndexSize::Over, tail_changes: 2 << 20, ..CALM }, at_ease),
            (
                "with too little log",
                Outlook { index: IndexSize::Over, tail_changes: (2 << 20) - 1, ..CALM },
                Choice::Nothing,
            ),
            ("calls wait", Outlook { index: IndexSize::FarOver, tail_bytes: 1, ..CALM }, at_once),
            (
                "for what no checkpoint helps",
                Outlook { index: IndexSize::FarOver, tail_bytes: 0, ..CALM },
                Choice::Nothing,
            ),
            ("others need what is dead", Outlook { wanted: 12, ..CALM }, at_ease),
            ("not for a little of it", Outlook { wanted: 11, ..CALM }, Choice::Nothing),
            ("nor for one of a few", Outlook { wanted: 1, total: 8, left: 8, low: 4, ..CALM }, Choice::Nothing),
            ("two of a few", Outlook { wanted: 2, total: 8, left: 8, low: 4, checkpoint: 1, ..CALM }, at_ease),
            ("damage", Outlook { renew: true, ..CALM }, at_ease),
            ("damage where it is tight", Outlook { renew: true, victim: FOUND, ..TIGHT }, Choice::Clean(BEST)),
            // Few segments are left.
            ("the best is looked for", Outlook { victim: sought, ..SHORT }, Choice::Look(Search::Best)),
            ("and cleaned", Outlook { victim: FOUND, ..SHORT }, Choice::Clean(BEST)),
            ("at the limit there is enough", Outlook { left: 22, ..CALM }, Choice::Nothing),
            ("below it there is not", Outlook { left: 21, ..CALM }, at_once),
            ("none, but a tail", SHORT, at_once),
            ("none, but some are spent", Outlook { tail: 0, spent: true, ..SHORT }, at_once),
            ("none, and nothing to cover", Outlook { tail: 0, ..SHORT }, Choice::Nothing),
            ("a tail of an eighth", Outlook { tail: 12, victim: FOUND, ..SHORT }, at_once),
            ("a shorter one", Outlook { tail: 11, victim: FOUND, ..SHORT }, Choice::Clean(BEST)),
            ("of few segments two", Outlook { tail: 2, total: 8, victim: FOUND, ..SHORT }, at_once),
            ("one that gains more", Outlook { victim: TAIL_IS_BETTER, ..SHORT }, at_once),
            ("none that could", Outlook { tail: 0, victim: TAIL_IS_BETTER, ..SHORT }, Choice::Clean(BEST)),
            ("spent, and one to clean", Outlook { tail: 0, spent: true, victim: FOUND, ..SHORT }, Choice::Clean(BEST)),
            ("a walk puts it off", Outlook { walked: true, ..SHORT }, Choice::Nothing),
            (
                "not where writes wait",
                Outlook { walked: true, left: 15, victim: sought, ..SHORT },
                Choice::Look(Search::Best),
            ),
            // Where cleaning might take what a checkpoint needs, and where it has.
            ("a checkpoint while it fits", Outlook { left: 5, victim: sought, ..CALM }, at_once),
            (
                "nothing to cover",
                Outlook { left: 7, tail: 0, victim: sought, ..CALM },
                Choice::Look(Search::FreeAtOnceOrBest),
            ),
            ("nor where it is not tight", Outlook { left: 8, victim: sought, ..CALM }, Choice::Look(Search::Best)),
            ("what is free at once", Outlook { victim: sought, ..TIGHT }, Choice::Look(Search::FreeAtOnce)),
            (
                "spent ones are to be covered",
                Outlook { victim: sought, tail: 0, spent: true, ..TIGHT },
                Choice::Look(Search::FreeAtOnce),
            ),
            (
                "any, if nothing is",
                Outlook { victim: sought, tail: 0, ..TIGHT },
                Choice::Look(Search::FreeAtOnceOrBest),
            ),
            ("any, with two left", Outlook { victim: sought, left: 2, ..TIGHT }, Choice::Look(Search::Best)),
            ("or nothing to cover", Outlook { victim: sought, left: 2, tail: 0, ..TIGHT }, Choice::Look(Search::Best)),
            ("a long tail waits", Outlook { tail: 90, victim: FOUND, ..TIGHT }, Choice::Clean(BEST)),
            ("one that gains more, while it fits", Outlook { left: 5, victim: TAIL_IS_BETTER, ..TIGHT }, at_once),
            ("and when it does not", Outlook { left: 4, victim: TAIL_IS_BETTER, ..TIGHT }, Choice::Clean(BEST)),
            ("none: it is tried all the same", TIGHT, at_once),
            // Found full before.
            ("still full", FULL, Choice::StayFull { checkpoint: false }),
            ("whatever is due", Outlook { replay_is_long: true, ..FULL }, Choice::StayFull { checkpoint: false }),
            ("calls wait there", Outlook { index: IndexSize::FarOver, ..FULL }, Choice::StayFull { checkpoint: true }),
            (
                "a crowded index there",
                Outlook { index: IndexSize::Over, tail_changes: 2 << 20, ..FULL },
                Choice::StayFull { checkpoint: true },
            ),
            (
                "that a checkpoint would not help much",
                Outlook { index: IndexSize::Over, tail_changes: (2 << 20) - 1, ..FULL },
                Choice::StayFull { checkpoint: false },
            ),
            (
                "whose checkpoint finds no room",
                Outlook { index: IndexSize::Over, tail_changes: 2 << 20, left: 4, ..FULL },
                Choice::StayFull { checkpoint: false },
            ),
            (
                "and wait",
                Outlook { index: IndexSize::FarOver, left: 4, ..FULL },
                Choice::StayFull { checkpoint: false },
            ),
            (
                "almost half a segment has gone",
                Outlook { gone_since_full: Some(half - 1), ..FULL },
                Choice::StayFull { checkpoint: false },
            ),
            (
                "half a segment has gone",
                Outlook { gone_since_full: Some(half), victim: sought, ..FULL },
                Choice::Look(Search::Best),
            ),
            ("it has grown", Outlook { left: 16, victim: sought, ..FULL }, Choice::Look(Search::Best)),
        ];
        for (name, outlook, choice) in rows {
            assert_eq!(choose(outlook), *choice, "{name}: {outlook:?}");
        }
    }

    #[test]
    fn writes_are_let_in_while_there_is_room_or_may_be() {
        let reserve = [15, 7];
        let after = Outcome {
            left: 40,
            low: 22,
            reserve,
            flying: 4,
            threaded: true,
            short: false,
            done: false,
            may_have_more: false,
            effort: 0,
            live: 10 << 20,
            segment_bytes: SEGMENT_BYTES,
        };
        let open = Entry { gate: Gate::Open, writes: 15, paced: false, again: false };
        let flows = Entry { writes: 11, paced: true, again: true, ..open };
        let ends = Entry { writes: 11, ..open };
        let cleaned = Outcome { short: true, done: true, left: 20, ..after };
        let tired = Outcome { effort: (14 << 20) + 1, left: 11, ..cleaned };
        let rows: &[(&str, Outcome, Entry)] = &[
            ("with room", after, open),
            ("more was made", Outcome { done: true, ..after }, open),
            (
                "enough, but little above the reserve",
                Outcome { done: true, left: 25, ..after },
                Entry { again: false, ..flows },
            ),
            ("short: they get what is gained", cleaned, flows),
            ("no longer short", Outcome { left: 22, ..cleaned }, Entry { again: false, ..flows }),
            (
                "without threads they are not slowed",
                Outcome { threaded: false, ..cleaned },
                Entry { writes: 15, ..flows },
            ),
            ("nor where nothing flies", Outcome { flying: 0, left: 17, ..cleaned }, Entry { writes: 15, ..flows }),
            (
                "a small reserve keeps one",
                Outcome { reserve: [9, 7], left: 9, ..cleaned },
                Entry { writes: 8, ..flows },
            ),
            ("at what is kept they wait", Outcome { left: 11, ..cleaned }, Entry { gate: Gate::Wait, ..flows }),
            ("all was moved once", tired, Entry { gate: Gate::Full, ..flows }),
            ("not quite", Outcome { effort: 14 << 20, ..tired }, Entry { gate: Gate::Wait, ..flows }),
            ("the device may have more", Outcome { may_have_more: true, ..tired }, Entry { gate: Gate::Wait, ..flows }),
            ("nothing is worth it", Outcome { done: false, left: 11, ..cleaned }, Entry { gate: Gate::Full, ..ends }),
            ("while writers came to less", Outcome { done: false, left: 12, ..cleaned }, ends),
            (
                "without threads they did not",
                Outcome { done: false, left: 15, threaded: false, ..cleaned },
                Entry { gate: Gate::Full, ..open },
            ),
            (
                "the keeper has not tried",
                Outcome { left: 11, ..after },
                Entry { gate: Gate::Wait, again: true, ..ends },
            ),
        ];
        for (name, outcome, entry) in rows {
            assert_eq!(let_in(outcome), *entry, "{name}: {outcome:?}");
        }
    }
}
