//! What is read for writers that do not wait for it: index pages, and values that guards look at.
//!
//! submit, refused → [`Readings::begin`] → a thread of the reading pool reads → dropped → those who wait are answered
//!                → [`Readings::all`] → completion → submitted again
//!
//! Invariant: who waits is answered once all has ended that was begun before, however it ends.

use std::collections::BTreeSet;
use std::sync::Arc;

use esker_store::{Completion, Promise, Task, promised};
use parking_lot::Mutex;

use crate::rooms::answer;

/// So often a writer is refused for what has to be read; then it reads on its own thread. Each time all is read that it
/// is known to need: pages of what guards look at, values for them, pages of what it changes.
pub const READINGS_MAX: u32 = 4;

#[derive(Default)]
struct State {
    begun: u64,
    under_way: BTreeSet<u64>,
    /// Each with how many had begun when it came.
    waiting: Vec<(u64, Promise<()>)>,
}

/// See the module.
#[derive(Default)]
pub struct Readings(Mutex<State>);

/// One that is under way, until it is dropped.
struct Reading {
    all: Arc<Readings>,
    number: u64,
}

impl Drop for Reading {
    fn drop(&mut self) {
        let told: Vec<_> = {
            let mut state = self.all.0.lock();
            state.under_way.remove(&self.number);
            let oldest = state.under_way.first().copied().unwrap_or(u64::MAX);
            state.waiting.extract_if(.., |(begun, promise)| *begun < oldest || !promise.is_wanted()).collect()
        };
        // Outside the lock: they may come back at once.
        answer(told.into_iter().map(|(_, promise)| promise).collect());
    }
}

/// Work of which nobody waits for the outcome itself.
struct Reads(Mutex<Option<Box<dyn FnOnce() + Send>>>);

impl Task for Reads {
    fn run(&self) {
        let work = self.0.lock().take();
        work.into_iter().for_each(|work| work());
    }

    fn is_begun(&self) -> bool {
        self.0.lock().is_none()
    }
}

impl Readings {
    /// Work that reads, for a pool: those who come from now on wait for it.
    pub fn begin(self: &Arc<Self>, read: impl FnOnce() + Send + 'static) -> Arc<dyn Task> {
        let mut state = self.0.lock();
        state.begun += 1;
        let number = state.begun;
        state.under_way.insert(number);
        drop(state);
        let reading = Reading { all: Arc::clone(self), number };
        let work = move || {
            let _reading = reading;
            read();
        };
        Arc::new(Reads(Mutex::new(Some(Box::new(work)))))
    }

    /// Ready when all has ended that was begun until now.
    pub fn all(&self) -> Completion<()> {
        let mut state = self.0.lock();
        if state.under_way.is_empty() {
            return Completion::ready(Ok(()));
        }
        let (promise, completion) = promised("what a writer has to have read");
        let begun = state.begun;
        state.waiting.push((begun, promise));
        completion
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::task::{Context, Waker};

    use super::*;

    #[test]
    fn who_waits_is_answered_once_what_was_begun_before_has_ended_and_not_by_what_came_later() {
        let is_told =
            |waits: &mut Completion<()>| waits.poll_arrived(&mut Context::from_waker(Waker::noop())).is_ready();
        let readings = Arc::new(Readings::default());
        assert!(readings.all().is_here());
        let (first, second) = (readings.begin(|| ()), readings.begin(|| ()));
        let mut waits = readings.all();
        let third = readings.begin(|| ());
        second.run();
        third.run();
        assert!(!is_told(&mut waits), "the first has not ended");
        let later = readings.begin(|| ());
        first.run();
        assert!(is_told(&mut waits));
        let mut waits = readings.all();
        assert!(!is_told(&mut waits));
        // One that is never run has ended as well, and so has one that panicked.
        drop(later);
        assert!(is_told(&mut waits) && readings.0.lock().waiting.is_empty());
        let panics = readings.begin(|| panic!("on purpose"));
        let mut waits = readings.all();
        assert!(!is_told(&mut waits));
        assert!(catch_unwind(AssertUnwindSafe(|| panics.run())).is_err());
        assert!(is_told(&mut waits));
    }
}
