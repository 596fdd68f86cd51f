//! Recovery: how long opening would take now, of which checkpoints keep the log's part short.
//!
//! Invariant: what is measured decides only when a checkpoint is written, and only where threads run.

use std::time::Duration;

/// A checkpoint that large is loaded in a second, in bytes.
const LOADED_BYTES_PER_S: u64 = 800 << 20;
/// However long the checkpoint takes, one part in so many of the time is left to the log after it.
const LOG_PARTS: u32 = 4;

/// How long opening may take, and what is known of how long it takes.
pub struct RecoveryTime {
    /// At most so long; zero: no matter how long.
    pub most: Duration,
    /// Loading the checkpoint took so long when the store was opened.
    pub load: Duration,
    /// Bytes of log that were replayed then, and what replaying them takes by their operations, in nanoseconds: no
    /// checkpoint covers them yet.
    pub replayed: (u64, u64),
    /// How many times longer replaying took then than its operations tell.
    pub slowness: f64,
}

impl RecoveryTime {
    /// Whether a log that takes `tail_ns` to replay, as its operations tell, would take longer, with what is written
    /// while the next checkpoint is, than is left of the time for opening when an index of so many bytes is loaded.
    pub(super) fn is_exceeded(&self, index_bytes: u64, checkpoint_takes: Duration, tail_ns: u64) -> bool {
        let Self { most, load, slowness, .. } = self;
        if most.is_zero() {
            return false;
        }
        let loads = Duration::from_millis(index_bytes * 1000 / LOADED_BYTES_PER_S).max(*load);
        let left = most.saturating_sub(loads + checkpoint_takes).max(*most / LOG_PARTS);
        tail_ns as f64 * slowness.clamp(0.25, 8.0) >= left.as_nanos() as f64
    }
}
