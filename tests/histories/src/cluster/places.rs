//! Places of keys and blocks that come and go: many short histories for the checker instead of a long one.

use crate::notes::now;

/// How long places are used.
const PERIOD_NS: u64 = 4_000_000_000;
/// How many there are at a time.
pub const AT_A_TIME: u64 = 4;
/// Keys of a place.
pub const KEYS: u64 = 4;
/// One of so many calls reads an old place.
const OLD: u32 = 20;

/// The places of a run.
#[derive(Clone, Copy, Debug)]
pub struct Places {
    /// When the run began, in nanoseconds of the machine's steady clock.
    begin: u64,
}

impl Places {
    /// Those of a run that begins now.
    pub fn begin() -> Self {
        Self { begin: now() }
    }

    /// How many there were so far, those in use included.
    pub fn count(&self) -> u64 {
        (now().saturating_sub(self.begin) / PERIOD_NS + 1) * AT_A_TIME
    }

    /// One that is in use, or, now and then, one that was before: then `true`.
    pub fn pick(&self, rng: &mut fastrand::Rng) -> (u64, bool) {
        let (count, old) = (self.count(), rng.u32(0..OLD) == 0);
        if old && count > AT_A_TIME {
            return (rng.u64(0..count - AT_A_TIME), true);
        }
        (count - 1 - rng.u64(0..AT_A_TIME), old)
    }
}
