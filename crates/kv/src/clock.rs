//! Clocks: where this crate learns the time, so that tests and simulation own it.
//!
//! Invariants:
//! 1. Nothing else in this crate reads a clock, and each call reads it once at most; a scan reads it for each page, and
//!    once more behind each look at an expiry index.
//! 2. What a [`Kv`](crate::Kv) takes for the time never goes back: what it has hidden as expired it does not show
//!    again. Two processes agree as well as their clocks do: one may still show what the other hides for as long as
//!    their clocks differ.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// A source of wall-clock time.
pub trait Clock: Send + Sync {
    /// Milliseconds since the unix epoch.
    fn now_ms(&self) -> u64;
}

/// The operating system's clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "the one place that owns the real clock")]
    fn now_ms(&self) -> u64 {
        // A clock set before 1970 reads as 0: nothing expires then, which loses no data.
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
    }
}

/// What passes of the clock behind between two calls, after it has stepped back, is a step itself if it is longer.
const PASSED_MAX_MS: u64 = 60_000;

/// A clock that never goes back: where the one behind does, it goes on at half speed until that has caught up. (If it
/// stood
/// still, nothing would expire for as long as the step was wide.)
pub(crate) struct Steady {
    behind: Arc<dyn Clock>,
    /// The highest time shown.
    highest: AtomicU64,
    /// After a step back: the time of the one behind up to which `highest` was raised. 0 without a step.
    stepped: AtomicU64,
}

impl Steady {
    pub(crate) fn new(behind: Arc<dyn Clock>) -> Self {
        Self { behind, highest: AtomicU64::new(0), stepped: AtomicU64::new(0) }
    }

    /// The time while the clock behind says `now_ms`, which is before the highest shown.
    fn slowed(&self, now_ms: u64) -> u64 {
        let (seen, relaxed) = (self.stepped.load(Ordering::Relaxed), Ordering::Relaxed);
        if seen == 0 || now_ms < seen || now_ms - seen > PASSED_MAX_MS {
            // It has stepped just now. Steps are not time that passes, nor is what passes while no caller asks.
            let _ = self.stepped.compare_exchange(seen, now_ms.max(1), relaxed, relaxed);
            return self.highest.load(relaxed);
        }
        let passed = (now_ms - seen) / 2;
        // Only one caller accounts for what has passed.
        if passed > 0 && self.stepped.compare_exchange(seen, seen + 2 * passed, relaxed, relaxed).is_ok() {
            return self.highest.fetch_add(passed, relaxed) + passed;
        }
        self.highest.load(relaxed)
    }
}

impl Clock for Steady {
    fn now_ms(&self) -> u64 {
        let now_ms = self.behind.now_ms();
        // Mostly it is the same millisecond still: then nothing is written that other processors have to fetch.
        match self.highest.load(Ordering::Relaxed) {
            highest if now_ms > highest => {
                if self.stepped.load(Ordering::Relaxed) != 0 {
                    self.stepped.store(0, Ordering::Relaxed);
                }
                self.highest.fetch_max(now_ms, Ordering::Relaxed).max(now_ms)
            }
            highest if now_ms == highest => highest,
            _ => self.slowed(now_ms),
        }
    }
}

/// A clock that stands still until it is moved.
#[derive(Debug, Default)]
pub struct ManualClock(AtomicU64);

impl ManualClock {
    /// A clock at `ms` unix milliseconds.
    pub fn new(ms: u64) -> Self {
        Self(AtomicU64::new(ms))
    }

    /// Moves the clock to `ms`, forward or back.
    pub fn set(&self, ms: u64) {
        self.0.store(ms, Ordering::SeqCst);
    }

    /// Moves the clock on by `ms`.
    pub fn advance(&self, ms: u64) {
        self.0.fetch_add(ms, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now_ms(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}
