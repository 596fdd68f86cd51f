//! LRU: the value that was not used for longest goes.

use std::hash::Hash;

use super::queues::{At, Queues};
use super::replacement::{Evicted, Replacement};

const ALL: usize = 0;

/// See the module.
pub struct Lru<K, V> {
    queues: Queues<K, V>,
    bytes_max: u64,
}

impl<K: Copy + Eq + Hash, V> Replacement<K, V> for Lru<K, V> {
    fn new(bytes_max: u64) -> Self {
        Self { queues: Queues::default(), bytes_max }
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

    fn touch(&mut self, at: At) {
        self.queues.renew(ALL, at);
    }

    fn admit(&mut self, key: K, value: V, weight: u64, evicted: &mut Evicted<V>) {
        while self.queues.bytes(ALL) + weight > self.bytes_max {
            let Some(oldest) = self.queues.oldest(ALL) else { break };
            evicted.extend(self.queues.take(oldest).1);
        }
        self.queues.push(ALL, key, value, weight);
    }
}
