//! Gathering: whether a sync is worth putting off until those whom the last one woke have come back.
//!
//! Writers that come back faster than a sync takes would otherwise split into two crowds that take turns: while one
//! is synced the other queues, and each waits for two syncs. Merged, they share every sync.
//!
//! After a sync of `S` that answered `b` waiters while `p` were already queueing, waiting for `w` gains `b (S - w)`
//! and costs `p w`; `w` is the time that the crowd took to come back, smoothed, with three deviations on top.
//!
//! Invariants:
//! 1. One writer alone is never waited for longer than it takes to come back; a wait never exceeds the sync time.
//! 2. A crowd that does not come back in time is waited for less and less.

use std::time::{Duration, Instant};

/// Weight of a new sample, as a divisor.
const SMOOTHING: f64 = 8.0;
/// What a wait in vain counts for, in waits.
const IN_VAIN: f64 = 2.0;
/// By this the estimate sinks with each sync that is not put off, so that waiting is tried again now and then.
const FORGETTING: f64 = 1.0 / 256.0;

/// What is known of syncs and of the writers' return. Times in seconds.
#[derive(Debug, Default)]
pub struct Gather {
    sync: f64,
    back: f64,
    deviation: f64,
    arrivals_before: u64,
    since: Option<Instant>,
    wait: f64,
}

impl Gather {
    /// After a sync that took `sync_time`: the number of arrivals to wait for, 0 for none. `at_cut` and `now` are the
    /// arrivals when its group was cut and now, `at` the time.
    pub fn after_sync(&mut self, at_cut: u64, now: u64, sync_time: Duration, at: Instant) -> u64 {
        let sync = sync_time.as_secs_f64();
        self.sync = if self.sync == 0.0 { sync } else { self.sync + (sync - self.sync) / SMOOTHING };
        let (answered, queueing) = (at_cut.saturating_sub(self.arrivals_before), now.saturating_sub(at_cut));
        self.arrivals_before = at_cut;
        if self.back == 0.0 {
            self.back = self.sync / 4.0;
        }
        self.wait = (self.back + 3.0 * self.deviation).min(self.sync);
        // Those who queue already pay for the wait at once, and share the gain from the next sync on.
        let crowd = (answered + queueing) as f64 / answered.max(1) as f64;
        let merged = self.back * crowd.min(2.0) < self.sync;
        let gain = answered as f64 * (self.sync - self.wait);
        if answered < 2 || (gain <= queueing as f64 * self.wait && !(merged && answered * 4 >= queueing)) {
            self.back -= self.back * FORGETTING;
            self.deviation -= self.deviation * FORGETTING;
            return 0;
        }
        self.since = Some(at);
        now + answered
    }

    /// How much longer to wait at the time `at`; zero when all are back or the time is over.
    pub fn left(&mut self, all_back: bool, at: Instant) -> Duration {
        let Some(since) = self.since else { return Duration::ZERO };
        let waited = at.saturating_duration_since(since).as_secs_f64();
        if !all_back && waited < self.wait {
            return Duration::from_secs_f64(self.wait - waited);
        }
        self.since = None;
        let in_vain = self.wait * IN_VAIN;
        let sample = if all_back { waited.min(in_vain) } else { in_vain };
        let error = sample - self.back;
        self.back += error / SMOOTHING;
        self.deviation += (error.abs() - self.deviation) / SMOOTHING;
        Duration::ZERO
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SYNC: Duration = Duration::from_millis(5);

    #[test]
    fn a_crowd_that_comes_back_is_waited_for_and_one_that_does_not_is_not() {
        let mut gather = Gather::default();
        let mut at = Instant::now();
        let mut arrivals = 16;
        for _ in 0..100 {
            assert_eq!(gather.after_sync(arrivals, arrivals, SYNC, at), arrivals + 16, "all sixteen are to come back");
            at += Duration::from_millis(1);
            assert!(!gather.left(false, at - Duration::from_micros(900)).is_zero());
            assert!(gather.left(true, at).is_zero(), "they are back");
            arrivals += 16;
        }
        // From now on nobody comes back in time.
        let mut waits = 0;
        for _ in 0..100 {
            if gather.after_sync(arrivals, arrivals, SYNC, at) != 0 {
                waits += 1;
                at += SYNC;
                assert!(gather.left(false, at).is_zero());
            }
            arrivals += 16;
        }
        assert!((1..30).contains(&waits), "{waits} waits in vain of 100");
    }

    #[test]
    fn one_writer_is_not_waited_for() {
        let mut gather = Gather::default();
        assert_eq!(gather.after_sync(1, 1, SYNC, Instant::now()), 0);
        assert_eq!(gather.after_sync(2, 2, SYNC, Instant::now()), 0);
    }

    #[test]
    fn a_long_queue_is_not_made_to_wait() {
        let mut gather = Gather::default();
        assert_eq!(gather.after_sync(2, 100, SYNC, Instant::now()), 0);
    }
}
