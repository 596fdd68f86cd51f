//! The scrubber's state: its rate, how far it is, and what it has found.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::check::Damage;

/// The scrubber sleeps at most so long at a time.
const NAP: Duration = Duration::from_millis(100);

/// How far the scrubber is.
#[derive(Clone, Copy, Debug, Default)]
pub struct ScrubStatus {
    /// Bytes per second; 0: off or paused.
    pub rate: u64,
    /// Whether a round is under way.
    pub running: bool,
    /// Rounds that came to their end, since the store was formatted.
    pub rounds: u64,
    /// Bytes of this round that were read, and in all.
    pub done_bytes: u64,
    /// See above.
    pub total_bytes: u64,
    /// The segment that is looked at next, or now.
    pub next_segment: u64,
    /// Seconds that are left of it at this rate; 0 if it stands still.
    pub left_s: u64,
    /// Places that do not hold and that something points to, since the store was opened.
    pub damaged: u64,
    /// Bytes read since then.
    pub read_bytes: u64,
}

impl ScrubStatus {
    /// All figures by name, as INFO shows them.
    pub fn entries(&self) -> [(&'static str, u64); 9] {
        [
            ("scrub_rate", self.rate),
            ("scrub_running", self.running.into()),
            ("scrub_rounds", self.rounds),
            ("scrub_done_bytes", self.done_bytes),
            ("scrub_total_bytes", self.total_bytes),
            ("scrub_next_segment", self.next_segment),
            ("scrub_left_s", self.left_s),
            ("scrub_damaged", self.damaged),
            ("scrub_read_bytes", self.read_bytes),
        ]
    }
}

/// The scrubber's state.
#[derive(Default)]
pub(crate) struct Scrub {
    pub(super) rate: AtomicU64,
    pub(super) running: AtomicBool,
    pub(super) rounds: AtomicU64,
    /// The segment that is looked at next.
    pub(super) next: AtomicU64,
    pub(super) done_bytes: AtomicU64,
    pub(super) total_bytes: AtomicU64,
    pub(super) damaged: AtomicU64,
    pub(super) read_bytes: AtomicU64,
    pub(super) found: Mutex<Vec<Damage>>,
    stopped: Mutex<bool>,
    pub(super) changed: Condvar,
}

impl Scrub {
    /// A scrubber at a rate in bytes per second, that goes on where a checkpoint says.
    pub(crate) fn new(rate: u64, (rounds, next): (u64, u64)) -> Self {
        let scrub = Self::default();
        scrub.rate.store(rate, Ordering::Relaxed);
        scrub.rounds.store(rounds, Ordering::Relaxed);
        scrub.next.store(next, Ordering::Relaxed);
        scrub
    }

    /// Where it has come to, for a checkpoint.
    pub(crate) fn place(&self) -> (u64, u64) {
        (self.rounds.load(Ordering::Relaxed), self.next.load(Ordering::Relaxed))
    }

    /// Ends the thread.
    pub(crate) fn stop(&self) {
        *self.stopped.lock() = true;
        self.changed.notify_all();
    }

    /// Sleeps; false when it is to end.
    pub(super) fn sleep(&self, time: Duration) -> bool {
        let mut stopped = self.stopped.lock();
        if !*stopped {
            self.changed.wait_for(&mut stopped, time);
        }
        !*stopped
    }

    /// Waits until so many bytes may have been read since `began`, and as long as the rate is 0; false when it is to
    /// end.
    pub(super) fn pace(&self, bytes: u64) -> bool {
        let began = Instant::now();
        loop {
            let rate = self.rate.load(Ordering::Relaxed);
            let takes = match rate {
                0 => Duration::MAX,
                rate => Duration::from_secs_f64(bytes as f64 / rate as f64),
            };
            let Some(left) = takes.checked_sub(began.elapsed()).filter(|left| !left.is_zero()) else {
                return !*self.stopped.lock();
            };
            if !self.sleep(left.min(NAP)) {
                return false;
            }
        }
    }

    pub(super) fn status(&self) -> ScrubStatus {
        let load = |figure: &AtomicU64| figure.load(Ordering::Relaxed);
        let (rate, done_bytes, total_bytes) = (load(&self.rate), load(&self.done_bytes), load(&self.total_bytes));
        let running = self.running.load(Ordering::Relaxed);
        let left = if running { total_bytes.saturating_sub(done_bytes) } else { 0 };
        ScrubStatus {
            rate,
            running,
            rounds: load(&self.rounds),
            done_bytes,
            total_bytes,
            next_segment: load(&self.next),
            left_s: left.checked_div(rate).unwrap_or(0),
            damaged: load(&self.damaged),
            read_bytes: load(&self.read_bytes),
        }
    }
}
