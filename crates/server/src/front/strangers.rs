//! Connections whose clients have not shown yet that they may be served: few, for a short time, and apart from the
//! places of clients that have.
//!
//! accept → [`Strangers::enter`] → handshake, first request → [`Stranger`] is dropped: the client is known, or gone
//!
//! Invariants:
//! 1. There are never more strangers than `max`: for one more, the one that has been here longest is sent away. So a
//!    client that says at once who it is gets in, however many others say nothing.
//! 2. A stranger takes no place of a known client.
//! 3. Ending a stranger's connection is done outside the lock.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Strangers that a protocol lets in at once, if its configuration says nothing else.
pub const STRANGERS_MAX: usize = 1_024;
/// How long a stranger may take to become known, if the configuration says nothing else.
pub const PATIENCE: Duration = Duration::from_secs(10);

type End = Box<dyn FnOnce() + Send>;

/// The strangers of a protocol.
pub(crate) struct Strangers {
    max: usize,
    patience: Duration,
    inside: Mutex<BTreeMap<u64, End>>,
    entered: AtomicU64,
    sent_away: AtomicU64,
}

/// A place among the strangers; dropping it gives it back.
pub(crate) struct Stranger {
    strangers: Arc<Strangers>,
    number: u64,
    until: Instant,
}

impl Strangers {
    /// Lets in up to `max` at once (at least 1), each for `patience`.
    pub(crate) fn new(max: usize, patience: Duration) -> Arc<Self> {
        let (entered, sent_away) = (AtomicU64::new(0), AtomicU64::new(0));
        Arc::new(Self { max: max.max(1), patience, inside: Mutex::default(), entered, sent_away })
    }

    /// Lets one in. `end` has to end its connection soon, and is called if it must make room for another.
    pub(crate) fn enter(self: &Arc<Self>, now: Instant, end: impl FnOnce() + Send + 'static) -> Stranger {
        let number = self.entered.fetch_add(1, Ordering::Relaxed);
        let mut inside = self.inside.lock();
        let longest = if inside.len() < self.max { None } else { inside.pop_first() };
        inside.insert(number, Box::new(end));
        drop(inside);
        if let Some((_, end)) = longest {
            self.sent_away.fetch_add(1, Ordering::Relaxed);
            end();
        }
        Stranger { strangers: Arc::clone(self), number, until: now + self.patience }
    }

    /// Strangers now.
    pub(crate) fn len(&self) -> usize {
        self.inside.lock().len()
    }

    /// Strangers that had to make room, or took too long.
    pub(crate) fn sent_away(&self) -> u64 {
        self.sent_away.load(Ordering::Relaxed)
    }
}

impl Stranger {
    /// When its time is over.
    pub(crate) fn until(&self) -> Instant {
        self.until
    }

    /// Notes that its time was over before it was known.
    pub(crate) fn took_too_long(&self) {
        self.strangers.sent_away.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        // What ends it is dropped outside the lock.
        let end = self.strangers.inside.lock().remove(&self.number);
        drop(end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_comes_gets_in_and_the_one_that_was_here_longest_goes() {
        let strangers = Strangers::new(2, Duration::from_secs(10));
        let ended = Arc::new(Mutex::new(Vec::new()));
        let enter = |name: &'static str| {
            let ended = Arc::clone(&ended);
            strangers.enter(Instant::now(), move || ended.lock().push(name))
        };
        let (a, b) = (enter("a"), enter("b"));
        assert_eq!(strangers.len(), 2);
        let c = enter("c");
        assert_eq!((strangers.len(), &ended.lock()[..]), (2, &["a"][..]));
        // It is known, or gone: its place is free, and it is not ended any more.
        drop(b);
        let d = enter("d");
        assert_eq!((strangers.len(), &ended.lock()[..]), (2, &["a"][..]));
        drop(a);
        assert_eq!(strangers.len(), 2);
        drop((c, d));
        assert_eq!((strangers.len(), strangers.sent_away()), (0, 1));
    }
}
