//! When everything was durable last, as far as SAVE and BGSAVE asked for it.
//!
//! SAVE → sync → [`Saves::began`] → the barrier is reached, or fails → [`Saves::last`]
//!
//! Invariant: the time of a save is told once it is done, and a save that failed is told as failed.

use esker_kv::Barrier;
use parking_lot::Mutex;

/// The last save, and the one that is under way.
pub(crate) struct Saves(Mutex<State>);

struct State {
    saved_s: u64,
    failed: bool,
    under_way: Option<(Barrier, u64)>,
}

/// What is told of saves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Saved {
    /// Unix seconds at which the last that succeeded was asked for; of the start, before any.
    pub(crate) saved_s: u64,
    /// Whether the last that ended failed.
    pub(crate) failed: bool,
    /// Whether one is under way.
    pub(crate) under_way: bool,
}

impl Saves {
    pub(crate) fn new(now_s: u64) -> Self {
        Self(Mutex::new(State { saved_s: now_s, failed: false, under_way: None }))
    }

    /// Notes a save that was asked for at `now_s` and is done when the barrier is reached; at once without one.
    pub(crate) fn began(&self, barrier: Option<Barrier>, now_s: u64) {
        let mut state = self.0.lock();
        state.look();
        match barrier {
            Some(barrier) => state.under_way = Some((barrier, now_s)),
            None => (state.saved_s, state.failed) = (now_s, false),
        }
    }

    /// Notes one that was refused.
    pub(crate) fn refused(&self) {
        self.0.lock().failed = true;
    }

    /// How saves stand.
    pub(crate) fn last(&self) -> Saved {
        let mut state = self.0.lock();
        state.look();
        Saved { saved_s: state.saved_s, failed: state.failed, under_way: state.under_way.is_some() }
    }
}

impl State {
    /// Notes the end of the one that is under way.
    fn look(&mut self) {
        let Some((barrier, asked_s)) = &self.under_way else { return };
        match barrier.state() {
            None => return,
            Some(Ok(())) => (self.saved_s, self.failed) = (*asked_s, false),
            Some(Err(_)) => self.failed = true,
        }
        self.under_way = None;
    }
}

#[cfg(test)]
mod tests {
    use esker_store::DurableMark;

    use super::*;

    #[test]
    fn a_save_is_told_when_it_is_done_and_as_failed_when_it_failed() {
        let mark = DurableMark::new(0, Box::new(|| {}));
        let saves = Saves::new(10);
        let is = |saved_s, failed, under_way| assert_eq!(saves.last(), Saved { saved_s, failed, under_way });
        is(10, false, false);
        saves.began(Some(Barrier::new(&mark, 5)), 20);
        is(10, false, true);
        mark.advance(5);
        is(20, false, false);
        saves.began(None, 30);
        is(30, false, false);
        saves.began(Some(Barrier::new(&mark, 6)), 40);
        mark.fail(esker_store::Error::Stopped { cause: "disk gone".into() });
        is(30, true, false);
    }
}
