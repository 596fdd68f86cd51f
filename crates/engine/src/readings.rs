//! What is read for writers that do not wait for it: index pages, and values that guards look at.
//!
//! submit, refused → [`Readings::begin`] → a thread of the reading pool reads → dropped → who waits is answered
//!                → [`Readings::end_of`] → completion → submitted again
//!
//! Invariants:
//! 1. A writer that waits for a reading is answered once it has ended, however it ends.
//! 2. No writer waits for what is read for another.

use std::collections::HashMap;
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
    /// By number, with those who wait for it.
    under_way: HashMap<u64, Vec<Promise<()>>>,
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
        let told = self.all.0.lock().under_way.remove(&self.number);
        // Outside the lock: they may come back at once.
        answer(told.unwrap_or_default());
    }
}

/// Work whose outcome no writer waits for, but for its end.
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
    /// Work that reads, for a pool, and its number.
    pub fn begin(self: &Arc<Self>, read: impl FnOnce() + Send + 'static) -> (u64, Arc<dyn Task>) {
        let mut state = self.0.lock();
        state.begun += 1;
        let number = state.begun;
        state.under_way.insert(number, Vec::new());
        drop(state);
        let reading = Reading { all: Arc::clone(self), number };
        let work = move || {
            let _reading = reading;
            read();
        };
        (number, Arc::new(Reads(Mutex::new(Some(Box::new(work))))))
    }

    /// Ready when it has ended.
    pub fn end_of(&self, number: u64) -> Completion<()> {
        let mut state = self.0.lock();
        let Some(waiting) = state.under_way.get_mut(&number) else { return Completion::ready(Ok(())) };
        let (promise, completion) = promised("what a writer has to have read");
        waiting.push(promise);
        completion
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::task::{Context, Waker};

    use super::*;

    #[test]
    fn who_waits_is_answered_once_its_own_reading_has_ended_however_it_ends() {
        let is_told =
            |waits: &mut Completion<()>| waits.poll_arrived(&mut Context::from_waker(Waker::noop())).is_ready();
        let readings = Arc::new(Readings::default());
        assert!(readings.end_of(1).is_here());
        let ((first, slow), (second, quick)) = (readings.begin(|| ()), readings.begin(|| ()));
        let (mut waits, mut other) = (readings.end_of(first), readings.end_of(second));
        quick.run();
        assert!(is_told(&mut other) && !is_told(&mut waits) && readings.end_of(second).is_here());
        slow.run();
        assert!(is_told(&mut waits));
        // One that is never run has ended as well, and so has one that panicked.
        let (never, unrun) = readings.begin(|| ());
        let mut waits = readings.end_of(never);
        assert!(!is_told(&mut waits));
        drop(unrun);
        assert!(is_told(&mut waits));
        let (panics, panicking) = readings.begin(|| panic!("on purpose"));
        let mut waits = readings.end_of(panics);
        assert!(!is_told(&mut waits));
        assert!(catch_unwind(AssertUnwindSafe(|| panicking.run())).is_err());
        assert!(is_told(&mut waits) && readings.0.lock().under_way.is_empty());
    }
}
