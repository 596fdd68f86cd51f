//! What processes note of what they did and were told: the history that is checked.
//!
//! begin (before the first call) → answered · refused: it never was · killed, or no answer: it stays as unanswered
//!
//! Invariant: what may have been applied is noted before it is asked for.

use parking_lot::Mutex;

use crate::linear::Interval;

/// All notes of a run.
pub(crate) struct Diary<C, A> {
    events: Mutex<Vec<Option<Interval<C, A>>>>,
    broken: Mutex<Option<String>>,
}

impl<C, A> Default for Diary<C, A> {
    fn default() -> Self {
        Self { events: Mutex::default(), broken: Mutex::default() }
    }
}

impl<C: Clone, A: Clone> Diary<C, A> {
    /// Notes a call that begins; where it is noted.
    pub(crate) fn begin(&self, process: usize, begin: u64, call: C) -> usize {
        let mut events = self.events.lock();
        events.push(Some(Interval { process, begin, end: u64::MAX, call, answer: None }));
        events.len() - 1
    }

    /// What is asked turned out to be this.
    pub(crate) fn asks(&self, at: usize, call: C) {
        if let Some(event) = &mut self.events.lock()[at] {
            event.call = call;
        }
    }

    /// It was answered.
    pub(crate) fn end(&self, at: usize, end: u64, answer: A) {
        if let Some(event) = &mut self.events.lock()[at] {
            (event.end, event.answer) = (end, Some(answer));
        }
    }

    /// It was refused: it was not done and never will be.
    pub(crate) fn refuse(&self, at: usize) {
        self.events.lock()[at] = None;
    }

    /// Notes what is told at once.
    pub(crate) fn note(&self, process: usize, (begin, end): (u64, u64), call: C, answer: A) {
        self.events.lock().push(Some(Interval { process, begin, end, call, answer: Some(answer) }));
    }

    /// A promise is broken. The first counts.
    pub(crate) fn broken(&self, why: String) {
        self.broken.lock().get_or_insert(why);
    }

    /// The history.
    ///
    /// # Errors
    /// The first promise that was found broken.
    pub(crate) fn history(&self) -> Result<Vec<Interval<C, A>>, String> {
        match self.broken.lock().take() {
            Some(broken) => Err(broken),
            None => Ok(self.events.lock().iter().flatten().cloned().collect()),
        }
    }
}
