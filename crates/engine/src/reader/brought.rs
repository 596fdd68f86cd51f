//! What was read ahead of its reader, for a moment.
//!
//! reads that a caller will do next → from the device, many at once → [`Brought`] → each reader takes its own
//!
//! Invariants:
//! 1. What is here was read in the life of the segment that its reader asks for, or is found not to be by its reader,
//!    which verifies it as what it reads itself.
//! 2. It is bounded, in places and in memory: the oldest goes, and is read again by its reader. What is taken by no
//!    reader goes so.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};

use esker_device::Blocks;
use parking_lot::Mutex;

/// Places at most.
const PLACES_MAX: usize = 1_024;
/// Bytes of memory at most.
const BYTES_MAX: usize = 16 << 20;

/// Where something stands on the device, and in which life of its segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Device offset.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
    /// Of the segment.
    pub generation: u32,
}

/// See the module.
#[derive(Default)]
pub struct Brought {
    held: Mutex<Held>,
    count: AtomicUsize,
}

#[derive(Default)]
struct Held {
    places: VecDeque<(Place, Blocks)>,
    /// Of memory.
    bytes: usize,
}

impl Brought {
    /// Keeps what was read.
    pub fn put(&self, place: Place, blocks: Blocks) {
        let mut dropped = Vec::new();
        let mut held = self.held.lock();
        held.bytes += blocks.memory_bytes();
        held.places.push_back((place, blocks));
        while held.places.len() > PLACES_MAX || held.bytes > BYTES_MAX {
            let Some(oldest) = held.places.pop_front() else { break };
            held.bytes -= oldest.1.memory_bytes();
            dropped.push(oldest);
        }
        self.count.store(held.places.len(), Ordering::Release);
        drop(held);
        drop(dropped);
    }

    /// What was read there, if it is still here: once.
    #[inline]
    pub fn take(&self, place: Place) -> Option<Blocks> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let mut held = self.held.lock();
        let at = held.places.iter().position(|(here, _)| *here == place)?;
        let (_, blocks) = held.places.remove(at)?;
        held.bytes -= blocks.memory_bytes();
        self.count.store(held.places.len(), Ordering::Release);
        Some(blocks)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use esker_device::BlockPool;

    use super::*;

    #[test]
    fn each_is_taken_once_in_its_life_and_the_oldest_go() {
        let (pool, brought) = (Arc::new(BlockPool::default()), Brought::default());
        let place = |number: u64| Place { offset: number * 4096, len: 4096, generation: 3 };
        let put = |place: Place| brought.put(place, pool.take(place.offset, place.len, 1 << 40).unwrap());
        (0..4).map(place).for_each(put);
        assert!(brought.take(Place { generation: 4, ..place(1) }).is_none());
        assert!(brought.take(Place { len: 4095, ..place(1) }).is_none());
        assert!(brought.take(place(1)).is_some());
        assert!(brought.take(place(1)).is_none());
        (10..10 + PLACES_MAX as u64).map(place).for_each(put);
        assert!(brought.take(place(0)).is_none());
        assert!(brought.take(place(10)).is_some());
        let large = |number: u64| Place { offset: number << 20, len: 1 << 20, generation: 3 };
        (1..=15).map(large).for_each(put);
        assert!(brought.take(place(11)).is_none());
        assert!(brought.take(large(15)).is_some());
    }
}
