//! How fast contents are fetched.
//!
//! bytes asked for → the time from which on the next may be → who asks waits until then
//!
//! Invariant: over any time the bytes asked for exceed rate × time by the last content at most. Time that was not used
//! is not made up for.

use std::time::{Duration, Instant};

/// A rate that is kept to.
pub(super) struct Pace {
    rate_bytes_per_s: u64,
    next: Option<Instant>,
}

impl Pace {
    /// At most so many bytes per second, at least 1.
    pub(super) fn new(rate_bytes_per_s: u64) -> Self {
        Self { rate_bytes_per_s: rate_bytes_per_s.max(1), next: None }
    }

    /// How long to wait before the next may be asked for.
    pub(super) fn left(&self, now: Instant) -> Duration {
        self.next.map_or(Duration::ZERO, |next| next.saturating_duration_since(now))
    }

    /// So many bytes are asked for now.
    pub(super) fn take(&mut self, bytes: u64, now: Instant) {
        let takes = Duration::from_secs_f64(bytes as f64 / self.rate_bytes_per_s as f64);
        let from = self.next.map_or(now, |next| next.max(now));
        self.next = Some(from.checked_add(takes).unwrap_or(from));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_taken_has_its_time_and_idle_time_is_not_made_up_for() {
        let (mut pace, start) = (Pace::new(1_000), Instant::now());
        let at = |ms| start + Duration::from_millis(ms);
        assert_eq!(pace.left(at(0)), Duration::ZERO);
        pace.take(500, at(0));
        assert_eq!(pace.left(at(100)), Duration::from_millis(400));
        pace.take(500, at(100));
        assert_eq!(pace.left(at(100)), Duration::from_millis(900));
        assert_eq!(pace.left(at(5_000)), Duration::ZERO);
        pace.take(500, at(5_000));
        assert_eq!(pace.left(at(5_000)), Duration::from_millis(500));
    }
}
