//! Holds: the segments that snapshots and backups still read, each by its generation.
//!
//! Invariants:
//! 1. A hold keeps what was in use when it was taken, and nothing that came later.
//! 2. A segment that is held is neither cleaned for its space nor made free.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::segments::{Segments, Usage};

/// How many holds keep a segment, by its generation.
pub(super) type HeldSegments = Arc<HashMap<u32, u32>>;

#[derive(Default)]
pub(super) struct Holds {
    segments: Mutex<(u64, HeldSegments)>,
    /// Some went since the keeper asked last.
    released: AtomicBool,
}

impl Holds {
    /// What is held now.
    pub fn now(&self) -> HeldSegments {
        Arc::clone(&self.segments.lock().1)
    }

    pub fn are_there(&self) -> bool {
        self.segments.lock().0 > 0
    }

    pub fn add(&self, segments: &[Usage]) {
        let mut state = self.segments.lock();
        state.0 += 1;
        let held = Arc::make_mut(&mut state.1);
        segments.iter().for_each(|usage| *held.entry(usage.generation).or_default() += 1);
    }

    pub fn remove(&self, segments: &[Usage]) {
        let mut state = self.segments.lock();
        state.0 -= 1;
        let held = Arc::make_mut(&mut state.1);
        for usage in segments {
            if let Some(count) = held.get_mut(&usage.generation) {
                *count -= 1;
                if *count == 0 {
                    held.remove(&usage.generation);
                }
            }
        }
        self.released.store(true, Ordering::Release);
    }

    /// Whether some went since this was asked last.
    pub fn were_released(&self) -> bool {
        self.released.swap(false, Ordering::AcqRel)
    }

    /// How many there are, and the bytes of the segments that only they keep.
    pub fn figures(&self, segments: &Segments) -> (u64, u64) {
        let (count, held) = self.segments.lock().clone();
        if count == 0 {
            return (0, 0);
        }
        let only = |usage: &Usage| usage.live == 0 && usage.index == 0 && held.contains_key(&usage.generation);
        let pinned = segments.in_use().iter().filter(|usage| only(usage)).count() as u64;
        (count, pinned * segments.segment_bytes)
    }
}
