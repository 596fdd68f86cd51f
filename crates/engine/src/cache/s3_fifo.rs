//! S3-FIFO: three queues in the order of arrival; a use only counts.
//!
//! miss → `SMALL` → used meanwhile? `MAIN` : gone, its hash among the ghosts
//! miss of a ghost → `MAIN` → at its end: used since the last round? once more : gone
//!
//! Source: Yang, Zhang, Qiu, Yue and Vinayak, FIFO queues are all you need for cache eviction (SOSP 2023); by bytes.

use std::hash::Hash;
use std::sync::atomic::Ordering;

use super::queues::{At, Queues, hash_of};
use super::replacement::{Evicted, Replacement};

const SMALL: usize = 0;
const MAIN: usize = 1;
const GHOSTS: usize = 0;

/// Part of the bytes that `SMALL` keeps when there is no more room.
const SMALL_PART: u64 = 10;
/// Uses that are counted.
const USES_MAX: u8 = 3;
/// Uses in `SMALL` that lead to `MAIN`.
const USES_TO_STAY: u8 = 1;

/// See the module.
pub struct S3Fifo<K, V> {
    queues: Queues<K, V>,
    ghosts: Queues<u64, ()>,
    bytes_max: u64,
}

impl<K: Copy + Eq + Hash, V> S3Fifo<K, V> {
    /// Looks at the oldest of `SMALL`: it goes, or on to `MAIN`.
    fn shift_small(&mut self, oldest: At, evicted: &mut Evicted<V>) {
        if self.queues.mark(oldest).load(Ordering::Relaxed) >= USES_TO_STAY {
            self.queues.mark(oldest).store(0, Ordering::Relaxed);
            self.queues.renew(MAIN, oldest);
            return;
        }
        let (key, value, weight) = self.queues.take(oldest);
        evicted.extend(value);
        self.ghosts.push(GHOSTS, hash_of(&key), (), weight);
        while self.ghosts.bytes(GHOSTS) > self.bytes_max - self.bytes_max / SMALL_PART {
            let Some(oldest) = self.ghosts.oldest(GHOSTS) else { break };
            self.ghosts.take(oldest);
        }
    }

    /// Weight of the ghosts in bytes.
    #[cfg(test)]
    pub fn remembered(&self) -> u64 {
        self.ghosts.bytes_in_all()
    }

    /// Looks at the oldest of `MAIN`: it goes, or stays for another round.
    fn shift_main(&mut self, oldest: At, evicted: &mut Evicted<V>) {
        match self.queues.mark(oldest).load(Ordering::Relaxed) {
            0 => evicted.extend(self.queues.take(oldest).1),
            uses => {
                self.queues.mark(oldest).store(uses - 1, Ordering::Relaxed);
                self.queues.renew(MAIN, oldest);
            }
        }
    }
}

impl<K: Copy + Eq + Hash, V> Replacement<K, V> for S3Fifo<K, V> {
    const SHARED: bool = true;

    fn new(bytes_max: u64) -> Self {
        Self { queues: Queues::default(), ghosts: Queues::default(), bytes_max }
    }

    fn queues(&self) -> &Queues<K, V> {
        &self.queues
    }

    fn queues_mut(&mut self) -> &mut Queues<K, V> {
        &mut self.queues
    }

    fn weight_max(&self) -> u64 {
        self.bytes_max
    }

    #[inline]
    fn touch_shared(&self, at: At) {
        // Readers that come together may count one use: it is a hint.
        let uses = self.queues.mark(at);
        let counted = uses.load(Ordering::Relaxed);
        if counted < USES_MAX {
            uses.store(counted + 1, Ordering::Relaxed);
        }
    }

    fn touch(&mut self, at: At) {
        self.touch_shared(at);
    }

    fn admit(&mut self, key: K, value: V, weight: u64, evicted: &mut Evicted<V>) {
        let ghost = self.ghosts.find(&hash_of(&key));
        if let Some(ghost) = ghost {
            self.ghosts.take(ghost);
        }
        while self.queues.bytes_in_all() + weight > self.bytes_max {
            match (self.queues.oldest(SMALL), self.queues.oldest(MAIN)) {
                (Some(small), None) => self.shift_small(small, evicted),
                (Some(small), _) if self.queues.bytes(SMALL) > self.bytes_max / SMALL_PART => {
                    self.shift_small(small, evicted);
                }
                (_, Some(main)) => self.shift_main(main, evicted),
                (None, None) => break,
            }
        }
        self.queues.push(if ghost.is_some() { MAIN } else { SMALL }, key, value, weight);
    }
}
