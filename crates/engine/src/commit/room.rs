//! Room: who may use up how much of the device, and how fast while the cleaner can hardly keep up.
//!
//! free segments:  writes | what leads to giving back | … only what takes away … | … only the cleaner
//!
//! Invariants:
//! 1. A write is refused before anything has changed.
//! 2. What takes away goes on where writes are refused: it makes the space that they wait for.

use std::cell::Cell;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use esker_store::{Error, Result};
use parking_lot::MutexGuard;

use super::state::State;
use super::{Class, Cleaner, Gate, Log};

/// How long a write that does not fit waits for the cleaner to say so once more, or several times; one that is refused
/// meanwhile, each time.
const LOOK_AGAIN: Duration = Duration::from_secs(2);

/// How often the cleaner looks again before what leads to giving back is refused: the first look may only find that the
/// device is full.
pub const GIVING_LOOKS: u32 = 3;

/// Whether a write that did not fit for the first time then is to wait no longer.
pub fn waited_enough(full_since: Instant) -> bool {
    full_since.elapsed() >= LOOK_AGAIN
}

/// Bytes of what leads to giving back that are let in after an opening where it is refused later.
const GIVEN_AT_OPENING: u64 = 4096;

thread_local! {
    /// Whether this thread has just waited for credit: then its next write goes before those that come now.
    static WAITED: Cell<bool> = const { Cell::new(false) };
}

/// Free segments that what leads to giving back leaves alone: those of deletes, one more for these, and two that the
/// cleaner may have begun when it ends; fewer where writes do not leave so many.
fn giving_back_leaves([writes, deletes]: [u64; 2]) -> u64 {
    deletes + writes.saturating_sub(deletes).saturating_sub(4) * 3 / 4
}

impl Log {
    /// Takes bytes of the credit that writers have while the cleaner can hardly keep up; whether there was enough, and
    /// no other writer's turn.
    pub(super) fn spend(&self, len: u64) -> bool {
        let waited = WAITED.take();
        if self.is_behind(waited) {
            // Those who run would take it all before those who sleep are awake.
            return false;
        }
        let spent = self.credit.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |credit| match credit {
            i64::MAX => Some(i64::MAX),
            credit if credit > 0 => Some(credit - len as i64),
            _ => None,
        });
        spent.is_ok()
    }

    /// What was spent was not used.
    pub(super) fn unspend(&self, len: u64) {
        let add = |credit| (credit != i64::MAX).then(|| credit + len as i64);
        // Those who wait for credit sleep no longer than 10 ms at a time; waking them here would cost more.
        let _ = self.credit.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }

    /// This thread has waited for credit, or another in its place, or it has not: see [`Log::spend`].
    pub fn note_waited(&self, waited: bool) {
        WAITED.set(waited);
        let come = |expected: u64| expected.checked_sub(1);
        if waited && self.expected.fetch_update(Ordering::Relaxed, Ordering::Relaxed, come) == Ok(1) {
            // It was the last one to be waited for.
            let _state = self.state.0.lock();
            self.room.notify_all();
        }
    }

    /// So many who waited elsewhere are about to come, and go before all others until they have, or are expected no
    /// more (0).
    pub fn expect(&self, callers: u64) {
        self.expected.store(callers, Ordering::Relaxed);
    }

    /// Whether some of those are still to come.
    pub fn expects(&self) -> bool {
        self.expected.load(Ordering::Relaxed) > 0
    }

    /// Gives writers so many bytes, or with `None` as many as they like; of what they have they keep `keeps` at most.
    pub fn pace(&self, bytes: Option<i64>, keeps: i64) {
        let pace = |credit| Some(bytes.map_or(i64::MAX, |bytes| bytes.max(keeps.min(credit))));
        // The closure always gives a value.
        let _ = self.credit.fetch_update(Ordering::Relaxed, Ordering::Relaxed, pace);
        let _state = self.state.0.lock();
        self.room.notify_all();
    }

    /// Gives writers so many bytes more, if they have a credit to keep to.
    pub fn give(&self, bytes: i64) {
        let add = |credit| (credit != i64::MAX).then(|| credit + bytes);
        if self.credit.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_ok() {
            let _state = self.state.0.lock();
            self.room.notify_all();
        }
    }

    /// Whether writers have a credit to keep to.
    pub fn is_paced(&self) -> bool {
        self.credit.load(Ordering::Relaxed) != i64::MAX
    }

    /// Lets writes in or not, and says how many free segments each class leaves alone: `reserve`, of which writes may
    /// be let have some, and leave `writes`.
    pub fn set_gate(&self, gate: Gate, writes: u64, reserve: [u64; 2]) {
        self.reserve[0].store(writes, Ordering::Relaxed);
        self.reserve[1].store(reserve[1], Ordering::Relaxed);
        self.counted.iter().zip(reserve).for_each(|(counted, reserve)| counted.store(reserve, Ordering::Relaxed));
        self.giving_back_leaves.store(giving_back_leaves(reserve), Ordering::Relaxed);
        self.gate.store(gate as u8, Ordering::Relaxed);
        let _state = self.state.0.lock();
        self.room.notify_all();
    }

    /// By how much more than was counted what writes leave alone, and what takes away, is at this moment: what was
    /// added to the index since the cleaner looked may take more, and a checkpoint that is kept back for would not fit
    /// any more.
    pub(super) fn grown(&self) -> [u64; 2] {
        let now = self.keeper.get().map_or([0; 2], |keeper| keeper.reserve());
        [0, 1].map(|class| now[class].saturating_sub(self.counted[class].load(Ordering::Relaxed)))
    }

    /// Whether writes are let in.
    pub fn gate(&self) -> Gate {
        match self.gate.load(Ordering::Relaxed) {
            0 => Gate::Open,
            1 => Gate::Wait,
            _ => Gate::Full,
        }
    }

    /// There are free segments again where there were none: writers that were refused or wait may go on.
    pub fn has_grown(&self) {
        self.state.0.lock().full = false;
        self.wanted_segment.notify_all();
        self.room.notify_all();
    }

    /// Gives the log its cleaner: called when segments run short and when one was entered.
    pub fn set_keeper(&self, keeper: Box<dyn Cleaner>) {
        assert!(self.keeper.set(keeper).is_ok(), "a log has one keeper");
    }

    pub(super) fn wake_keeper(&self) {
        if self.shape.threaded
            && let Some(keeper) = self.keeper.get()
        {
            keeper.wake();
        }
    }

    /// Free segments that what leads to giving back leaves alone.
    pub fn giving_back_leaves(&self) -> u64 {
        self.giving_back_leaves.load(Ordering::Relaxed)
    }

    /// How many there are to be for so many bytes of it. The first after an opening may enter a segment of those that
    /// are left to deletes, which a delete would enter in its place: a server starts by it, and without a server there
    /// are no deletes.
    pub(super) fn giving_leaves(&self, len: u64) -> u64 {
        let first = self.given.load(Ordering::Relaxed) + len <= GIVEN_AT_OPENING;
        if first { self.reserve[1].load(Ordering::Relaxed) } else { self.giving_back_leaves() }
    }

    /// How often it was refused since the store was opened.
    pub fn giving_refused(&self) -> u64 {
        self.giving_refused.load(Ordering::Relaxed)
    }

    /// Segments that are free or readied for the log.
    pub fn segments_left(&self) -> u64 {
        let ready = self.state.0.lock().next.len() as u64;
        self.segments.free_segments() + ready
    }

    /// Bytes of these, and of what is left of the open segment.
    pub fn bytes_left(&self) -> u64 {
        let state = self.state.0.lock();
        let segments = self.segments.free_segments() + state.next.len() as u64;
        (segments + 1) * self.segments.segment_bytes - state.tail
    }

    /// A write was refused because the device is full: has the cleaner look once more, and waits until it has.
    pub fn look_again(&self, full_since: Instant) {
        let asked = self.ask_for_look();
        while self.shape.threaded && !self.is_looked(asked) && !waited_enough(full_since) {
            let mut state = self.state.0.lock();
            if state.stopping {
                return;
            }
            self.room.wait_for(&mut state, Duration::from_millis(1));
        }
    }

    /// Has the cleaner look once more; what [`Log::is_looked`] is to be asked.
    pub fn ask_for_look(&self) -> u64 {
        let Some(keeper) = self.keeper.get() else { return 0 };
        let asked = self.asked.fetch_add(1, Ordering::AcqRel) + 1;
        keeper.wake();
        asked
    }

    /// Whether the cleaner has looked since it was asked to.
    pub fn is_looked(&self, asked: u64) -> bool {
        self.looked.load(Ordering::Acquire) >= asked
    }

    /// How often a caller has asked for another look.
    pub fn asked(&self) -> u64 {
        self.asked.load(Ordering::Acquire)
    }

    /// The cleaner has looked, for all callers that had asked before it began.
    pub fn has_looked(&self, asked: u64) {
        if self.looked.fetch_max(asked, Ordering::AcqRel) < asked {
            let _state = self.state.0.lock();
            self.room.notify_all();
        }
    }

    /// Writes out what is pending, for the cleaner, which waits for no other thread.
    ///
    /// # Errors
    /// [`Error::Stopped`] with the first cause.
    pub fn make_room(&self) -> Result<()> {
        self.commit(false);
        if self.shape.threaded {
            self.nudge();
            std::thread::sleep(Duration::from_micros(200));
        }
        self.mark().failure().map_or(Ok(()), Err)
    }

    /// Waits until a reservation that was refused as busy may succeed.
    ///
    /// # Errors
    /// [`Error::Stopped`] or [`Error::Closed`] when it never will.
    pub fn wait_for_room(&self) -> Result<()> {
        if !self.shape.threaded {
            self.commit(false);
            if let Some(keeper) = self.keeper.get() {
                keeper.wake();
            }
            return match self.mark().failure() {
                Some(failure) => Err(failure),
                None => Ok(()),
            };
        }
        let began = Instant::now();
        let waited = self.wait_until_there_is_room();
        self.counters.room.add(began.elapsed());
        waited
    }

    /// Whether a write that comes now, or has `waited`, need not wait.
    pub fn has_room(&self, waited: bool) -> bool {
        let state = self.state.0.lock();
        state.stopping || !self.is_shut() && !self.is_behind(waited) && (!state.next.is_empty() || state.full)
    }

    /// Whether a write of up to a quarter of a segment that comes now, or has `waited`, is refused as busy.
    pub fn is_busy(&self, waited: bool) -> bool {
        if self.has_ready() && !self.is_shut() && !self.is_behind(waited) {
            return false;
        }
        let state = self.state.0.lock();
        let ends = state.tail > self.segments.segment_bytes / 4 * 3 && state.next.is_empty() && !state.full;
        !state.stopping && (ends || self.is_shut() || self.is_behind(waited))
    }

    /// Whether writes that do not fit into the open segment are refused for good, as of the last look.
    pub fn is_full(&self) -> bool {
        self.gate() == Gate::Full
            || !self.has_ready() && {
                let state = self.state.0.lock();
                debug_assert_eq!(self.ready.load(Ordering::Relaxed), state.next.len());
                state.full && state.next.is_empty()
            }
    }

    /// Whether a write that comes now waits for what is pending, or for the cleaner, though the store is full.
    pub fn is_busy_when_full(&self) -> bool {
        !self.has_stopped() && (self.is_over_pending() || self.gate() == Gate::Wait)
    }

    /// Whether a write of this class that comes now, or has `waited`, is refused as busy whatever it writes.
    pub fn is_busy_for(&self, class: Class, waited: bool) -> bool {
        let busy = self.is_over_pending() || class == Class::Write && (self.is_shut() || self.is_behind(waited));
        busy && !self.has_stopped()
    }

    /// Whether a segment is ready, as far as is known without the lock: one may be taken or come meanwhile.
    fn has_ready(&self) -> bool {
        self.ready.load(Ordering::Relaxed) > 0
    }

    pub(super) fn note_ready(&self, state: &State) {
        self.ready.store(state.next.len(), Ordering::Relaxed);
    }

    /// Whether others have waited for credit and go first.
    fn is_behind(&self, waited: bool) -> bool {
        !waited && self.is_paced() && (self.queued.load(Ordering::Relaxed) > 0 || self.expects())
    }

    fn is_over_pending(&self) -> bool {
        self.unwritten.0.load(Ordering::Relaxed) > self.shape.pending_bytes_max
    }

    /// Whether writes wait for what is pending, for the cleaner, or for credit.
    fn is_shut(&self) -> bool {
        self.is_over_pending() || self.gate() == Gate::Wait || self.credit.load(Ordering::Relaxed) <= 0
    }

    /// Callers that wait elsewhere for credit are in the queue of those who do here, or no more.
    pub fn queue(&self, waits: bool) {
        if waits {
            self.queued.fetch_add(1, Ordering::Relaxed);
        } else {
            self.queued.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// A write has waited so long for room elsewhere.
    pub fn note_room(&self, waited: Duration) {
        self.counters.room.add(waited);
    }

    /// Waits for a moment, and until something may have changed for those who wait for room; `presses` if some wait for
    /// room in the log.
    pub fn wait_a_moment(&self, longest: Duration, presses: bool) {
        let mut state = self.state.0.lock();
        if state.stopping {
            return;
        }
        if presses {
            self.wait_in(&mut state, longest);
        } else {
            self.room.wait_for(&mut state, longest);
        }
    }

    fn wait_in(&self, state: &mut MutexGuard<'_, State>, longest: Duration) {
        state.starved |= state.next.is_empty();
        self.nudge();
        if self.gate() == Gate::Wait || self.credit.load(Ordering::Relaxed) <= 0 {
            self.wake_keeper();
        }
        self.room.wait_for(state, longest);
    }

    fn wait_until_there_is_room(&self) -> Result<()> {
        let mut state = self.state.0.lock();
        let queues = self.is_paced();
        // A writer that finds others in the queue lets them go first.
        let mut behind = queues && self.queued.fetch_add(1, Ordering::Relaxed) > 0;
        let outcome = loop {
            if state.stopping {
                break Err(self.mark().failure().unwrap_or(Error::Closed));
            }
            if !self.is_shut() && !behind && (!state.next.is_empty() || state.full) {
                break Ok(());
            }
            self.wait_in(&mut state, Duration::from_millis(10));
            behind = false;
        };
        if queues {
            self.queued.fetch_sub(1, Ordering::Relaxed);
            WAITED.set(outcome.is_ok());
            self.room.notify_all();
        }
        outcome
    }
}
