//! How long something took, counted by powers of two of microseconds.
//!
//! Invariant: noting takes no lock and no memory.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::Value;

/// Up to 17 s; what took longer counts there.
const BUCKETS: usize = 25;

/// Times, from the start of the process on.
#[derive(Default)]
pub(crate) struct Times {
    micros: AtomicU64,
    buckets: [AtomicU64; BUCKETS],
}

impl Times {
    /// Something took so long.
    pub(crate) fn note(&self, took: Duration) {
        let micros = took.as_micros() as u64;
        let bucket = (u64::BITS - micros.leading_zeros()) as usize;
        self.buckets[bucket.min(BUCKETS - 1)].fetch_add(1, Ordering::Relaxed);
        self.micros.fetch_add(micros, Ordering::Relaxed);
    }

    /// What was noted, as a figure tells it.
    pub(crate) fn value(&self) -> Value {
        let end = |power: usize| (1u64 << power) as f64 / 1e6;
        let buckets = self.buckets.iter().enumerate();
        let buckets = buckets.map(|(power, count)| (end(power), count.load(Ordering::Relaxed))).collect();
        Value::Summed(buckets, self.micros.load(Ordering::Relaxed) as f64 / 1e6)
    }
}
