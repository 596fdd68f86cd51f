//! The memory of recent segments: how much there is, and which buffers stand in it.

use std::collections::VecDeque;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

use parking_lot::Mutex;

use crate::buffer::SegmentBuffer;

/// So many buffers that are not needed are kept for segments to come, whatever memory is set.
const SPARES_MAX: usize = 2;

/// The budget, and what is kept.
pub struct Recent {
    /// Memory that is set for recent segments.
    pub bytes: u64,
    /// Memory of the cache that nothing is in.
    pub lent_bytes: AtomicU64,
    /// Below this the log is written, as far as told.
    pub written: AtomicU64,
    /// So many spare ones are kept whatever else there is.
    pub spares_max: usize,
    /// What is in memory.
    pub kept: Mutex<RecentBuffers>,
}

/// The buffers that are in memory.
#[derive(Default)]
pub struct RecentBuffers {
    /// Segments with a buffer, the oldest first.
    pub recent: VecDeque<u64>,
    /// Of these, the newest that came to stand in lent memory while a value kept them.
    pub draining: VecDeque<u64>,
    /// Buffers for segments to come, ...
    pub spare: Vec<SegmentBuffer>,
    /// ... and when the last of them came or was taken.
    pub turned: Option<Instant>,
}

impl Recent {
    /// With so many bytes for segments of `segment_bytes`.
    pub fn new(bytes: u64, segment_bytes: u64) -> Self {
        let spares_max = usize::try_from(bytes / segment_bytes).unwrap_or(usize::MAX).min(SPARES_MAX);
        Self { bytes, lent_bytes: AtomicU64::new(0), written: AtomicU64::new(0), spares_max, kept: Mutex::default() }
    }
}
