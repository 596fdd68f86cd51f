//! A cache in parts, each with a lock, a share of the bytes and a policy of its own.
//!
//! key → hash → part → lock: for reading where a use only counts, else for writing → policy
//!
//! Invariants:
//! 1. A part never keeps more than its share, so the cache never keeps more than its bytes.
//! 2. Values are dropped when no lock is held.

use std::hash::Hash;
use std::mem::size_of;

use parking_lot::RwLock;

use super::queues::hash_of;
use super::replacement::{Evicted, Replacement};

/// Each on cache lines of its own: readers of one part do not slow down those of the next.
#[repr(align(128))]
struct Part<R>(RwLock<R>);

/// See the module.
pub struct Shards<R> {
    parts: Box<[Part<R>]>,
}

impl<R> Shards<R> {
    /// For `bytes_max` bytes in `parts` parts, a power of two.
    pub fn new<K, V>(bytes_max: u64, parts: usize) -> Self
    where
        R: Replacement<K, V>,
    {
        debug_assert!(parts.is_power_of_two() && size_of::<Part<R>>() >= 128);
        let part = || Part(RwLock::new(R::new(bytes_max / parts as u64)));
        Self { parts: (0..parts).map(|_| part()).collect() }
    }

    #[inline]
    fn part_of<K: Hash>(&self, key: &K) -> &RwLock<R> {
        // Bits that neither tables nor the sketch look at: they are alike within a part.
        let number = (hash_of(key) >> 32) as usize & (self.parts.len() - 1);
        &self.parts[number].0
    }

    /// The value of `key`, which is used now.
    #[inline]
    pub fn get<K: Copy + Eq + Hash, V: Clone>(&self, key: &K) -> Option<V>
    where
        R: Replacement<K, V>,
    {
        if R::SHARED {
            let part = self.part_of(key).read();
            let at = part.queues().find(key)?;
            part.touch_shared(at);
            return part.queues().value(at).cloned();
        }
        let mut part = self.part_of(key).write();
        let at = part.queues().find(key)?;
        part.touch(at);
        part.queues().value(at).cloned()
    }

    /// Whether `key` has a value; that is no use of it.
    pub fn contains<K: Copy + Eq + Hash, V>(&self, key: &K) -> bool
    where
        R: Replacement<K, V>,
    {
        self.part_of(key).read().queues().find(key).is_some()
    }

    /// Gives `key` this value of so many bytes. It may not be kept; the one before never is.
    pub fn insert<K: Copy + Eq + Hash, V>(&self, key: K, value: V, weight: u64)
    where
        R: Replacement<K, V>,
    {
        let mut evicted = Evicted::new();
        let mut part = self.part_of(&key).write();
        match part.queues().find(&key) {
            Some(at) if part.queues().weight(at) == weight => {
                evicted.extend(part.queues_mut().swap(at, value));
                part.touch(at);
            }
            there => {
                if let Some(at) = there {
                    evicted.extend(part.queues_mut().take(at).1);
                }
                if weight <= part.weight_max() {
                    part.admit(key, value, weight, &mut evicted);
                } else {
                    evicted.push(value);
                }
            }
        }
        drop(part);
    }

    /// Takes the value of `key` out.
    pub fn remove<K: Copy + Eq + Hash, V>(&self, key: &K) -> Option<V>
    where
        R: Replacement<K, V>,
    {
        let mut part = self.part_of(key).write();
        let at = part.queues().find(key)?;
        part.queues_mut().take(at).1
    }

    /// Weight of all values in bytes.
    pub fn bytes<K: Copy + Eq + Hash, V>(&self) -> u64
    where
        R: Replacement<K, V>,
    {
        self.parts.iter().map(|part| part.0.read().queues().bytes_in_all()).sum()
    }
}
