//! Recovery: how long opening would take now, of which checkpoints keep the log's part short.
//!
//! Invariant: what is measured decides only when a checkpoint is written, and only where threads run.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::{Keeper, Work};

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

impl Keeper {
    /// Whether the log after the last checkpoint would take longer to replay, with what is written while the next one
    /// is, than is left of the time for opening when the checkpoint is loaded.
    pub(super) fn replay_takes_long(&self, work: &Work) -> bool {
        let RecoveryTime { most, load, slowness, .. } = &self.recovery;
        if most.is_zero() {
            return false;
        }
        let index = self.parts.segments.index_bytes().max(self.parts.objects.page_bytes());
        let loads = Duration::from_millis(index * 1000 / LOADED_BYTES_PER_S).max(*load);
        let writes = match self.threaded {
            true => Duration::from_micros(self.counters.checkpoint_us.load(Ordering::Relaxed)),
            false => Duration::ZERO,
        };
        let left = most.saturating_sub(loads + writes).max(*most / LOG_PARTS);
        let tail = self.parts.log.replay_ns().saturating_sub(work.replay_ns) + work.replayed.1;
        tail as f64 * slowness.clamp(0.25, 8.0) >= left.as_nanos() as f64
    }
}
