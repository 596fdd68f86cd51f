//! Changes of what several processes share: read, decide, write under guards, and again if others were faster.
//!
//! [`Retry`] → an attempt → [`Error::GuardFailed`] → [`Retry::again`] waits a little → the next attempt …
//! [`Error::Contended`]
//!
//! Invariant: waits grow, so that those who lose a race leave room for those who are about to finish theirs; none is
//! longer than [`WAIT_MAX`].

use std::time::Duration;

use crate::{Completion, Error, ObjectStore, Result, Transaction};

/// How often a change is tried.
pub const ATTEMPTS_MAX: u32 = 1_000;
/// Attempts that follow each other at once.
const AT_ONCE: u32 = 4;
/// First wait, and longest.
const WAIT: Duration = Duration::from_micros(20);
const WAIT_MAX: Duration = Duration::from_millis(5);

/// The attempts at one change.
#[derive(Debug, Default)]
pub struct Retry {
    made: u32,
    begun: bool,
}

impl Retry {
    /// To be called when an attempt failed because others were faster.
    ///
    /// # Errors
    /// [`Error::Contended`] about `what` after [`ATTEMPTS_MAX`] attempts.
    pub fn again(&mut self, what: impl FnOnce() -> String) -> Result<()> {
        self.made += 1;
        if self.made >= ATTEMPTS_MAX {
            return Err(Error::Contended { what: what(), attempts: self.made });
        }
        match self.made.checked_sub(AT_ONCE) {
            None => std::thread::yield_now(),
            Some(longer) => std::thread::sleep((WAIT * (1 << longer.min(10))).min(WAIT_MAX)),
        }
        Ok(())
    }

    /// To be called before each attempt, the first too, where one ends in several ways: each but the first is [one
    /// more](Retry::again).
    ///
    /// # Errors
    /// As [`Retry::again`].
    pub fn attempt(&mut self, what: impl FnOnce() -> String) -> Result<()> {
        if std::mem::replace(&mut self.begun, true) { self.again(what) } else { Ok(()) }
    }
}

/// Submits and waits: the guard that did not hold, or `None` if it was applied.
///
/// # Errors
/// Those of [`ObjectStore::submit`] save [`Error::GuardFailed`].
pub fn submit_guarded(store: &dyn ObjectStore, txn: Transaction) -> Result<Option<usize>> {
    match store.submit(txn).wait() {
        Ok(_) => Ok(None),
        Err(Error::GuardFailed { index }) => Ok(Some(index)),
        Err(error) => Err(error),
    }
}

/// Reads, decides and writes until it holds: `attempt` reads what it needs anew each time, and returns what is to be
/// submitted with what the change then returns, or that nothing is to be done. What it submits stands under guards of
/// all that it read.
///
/// # Errors
/// Those of `attempt`; [`Error::Contended`] about `what`; those of [`ObjectStore::submit`] save [`Error::GuardFailed`].
pub fn change_guarded<T, E: From<Error>>(
    store: &dyn ObjectStore,
    what: impl Fn() -> String,
    mut attempt: impl FnMut() -> std::result::Result<Attempt<T>, E>,
) -> std::result::Result<T, E> {
    let mut retry = Retry::default();
    loop {
        let (txn, value) = match attempt()? {
            Attempt::Nothing(value) => return Ok(value),
            Attempt::Submit(txn, value) => (txn, value),
        };
        if submit_guarded(store, txn)?.is_none() {
            return Ok(value);
        }
        retry.again(&what)?;
    }
}

/// Makes attempts until one is not refused by a guard; what each has read, the answer waits for.
pub fn retried<T>(what: impl Fn() -> String, mut attempt: impl FnMut() -> Completion<T>) -> Completion<T> {
    let (mut retry, mut barrier) = (Retry::default(), None);
    loop {
        let mut done = attempt().applied(&mut barrier);
        if let Err(Error::GuardFailed { .. }) = done {
            match retry.again(&what) {
                Ok(()) => continue,
                Err(error) => done = Err(error),
            }
        }
        return Completion::after(done, barrier);
    }
}

/// What an attempt at a change came to.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "one is made for each attempt, and taken apart at once")]
pub enum Attempt<T> {
    /// It is as it should be.
    Nothing(T),
    /// This changes it, if its guards hold; then the value is the answer.
    Submit(Transaction, T),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_end_with_an_error_that_names_what_was_tried() {
        let mut retry = Retry { made: ATTEMPTS_MAX - 2, begun: true };
        retry.again(|| "a row".into()).unwrap();
        let Err(Error::Contended { what, attempts }) = retry.again(|| "a row".into()) else { panic!("no end") };
        assert_eq!((what.as_str(), attempts), ("a row", ATTEMPTS_MAX));
    }

    #[test]
    fn the_first_attempt_is_none_too_many() {
        let mut retry = Retry::default();
        let made = (0..).take_while(|_| retry.attempt(|| "a row".into()).is_ok()).count();
        assert_eq!((made as u32, retry.made), (ATTEMPTS_MAX, ATTEMPTS_MAX));
    }
}
