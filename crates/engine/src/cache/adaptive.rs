//! ARC, the adaptive replacement cache, by bytes.
//!
//! miss → `ONCE` → used again → `AGAIN`; what goes leaves its hash behind, among those used once or again
//! a hash that is asked for again → its side was too small → the target for `ONCE` moves
//!
//! Source: Megiddo and Modha, ARC: A Self-Tuning, Low Overhead Replacement Cache (FAST 2003). The lists are T1, T2, B1
//! and B2 of the paper, its `p` is `once_target`; where it counts pages, bytes are counted here.
//!
//! Invariants, with c for the bytes of the cache: T1 + T2 <= c, T1 + B1 <= c, T1 + T2 + B1 + B2 <= 2c.

use std::hash::Hash;

use super::queues::{At, Queues, hash_of};
use super::replacement::{Evicted, Replacement};

const ONCE: usize = 0;
const AGAIN: usize = 1;

/// See the module.
pub struct Adaptive<K, V> {
    queues: Queues<K, V>,
    /// Hashes of keys that have gone, in the queues of the same numbers.
    ghosts: Queues<u64, ()>,
    bytes_max: u64,
    once_target: u64,
}

impl<K: Copy + Eq + Hash, V> Adaptive<K, V> {
    /// Makes room for `weight`. `again` says that the value comes from the ghosts of `AGAIN`.
    fn make_room(&mut self, weight: u64, again: bool, evicted: &mut Evicted<V>) {
        while self.queues.bytes_in_all() + weight > self.bytes_max {
            let once = self.queues.bytes(ONCE);
            let too_many = once > self.once_target || (again && once == self.once_target);
            let first = if too_many { ONCE } else { AGAIN };
            let Some((queue, oldest)) = [first, 1 - first]
                .into_iter()
                .find_map(|queue| self.queues.oldest(queue).map(|oldest| (queue, oldest)))
            else {
                break;
            };
            let (key, value, weight) = self.queues.take(oldest);
            evicted.extend(value);
            self.ghosts.push(queue, hash_of(&key), (), weight);
        }
    }

    /// What is kept and remembered: of what was used once, and of all, in bytes.
    #[cfg(test)]
    pub fn remembered(&self) -> [u64; 2] {
        let once = self.queues.bytes(ONCE) + self.ghosts.bytes(ONCE);
        [once, self.queues.bytes_in_all() + self.ghosts.bytes_in_all()]
    }

    /// Forgets the oldest ghosts of `queue` while there are more than `bytes` of them.
    fn forget(&mut self, queue: usize, bytes: u64) {
        while self.ghosts.bytes(queue) > bytes {
            let Some(oldest) = self.ghosts.oldest(queue) else { break };
            self.ghosts.take(oldest);
        }
    }
}

impl<K: Copy + Eq + Hash, V> Replacement<K, V> for Adaptive<K, V> {
    fn new(bytes_max: u64) -> Self {
        Self { queues: Queues::default(), ghosts: Queues::default(), bytes_max, once_target: 0 }
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
        self.queues.renew(AGAIN, at);
    }

    fn admit(&mut self, key: K, value: V, weight: u64, evicted: &mut Evicted<V>) {
        let Some(ghost) = self.ghosts.find(&hash_of(&key)) else {
            self.make_room(weight, false, evicted);
            self.queues.push(ONCE, key, value, weight);
            self.forget(ONCE, self.bytes_max - self.queues.bytes(ONCE));
            let others = self.queues.bytes_in_all() + self.ghosts.bytes(ONCE);
            self.forget(AGAIN, (2 * self.bytes_max).saturating_sub(others));
            return;
        };
        let side = self.ghosts.queue(ghost);
        let (here, there) = (self.ghosts.bytes(side).max(1), self.ghosts.bytes(1 - side));
        let step = (u128::from(weight) * u128::from(there) / u128::from(here)).max(u128::from(weight));
        let step = u64::try_from(step).unwrap_or(u64::MAX);
        self.once_target = match side {
            ONCE => self.once_target.saturating_add(step).min(self.bytes_max),
            _ => self.once_target.saturating_sub(step),
        };
        self.ghosts.take(ghost);
        self.make_room(weight, side == AGAIN, evicted);
        self.queues.push(AGAIN, key, value, weight);
        // A value may weigh more than its ghost did, and what made room for it left a ghost.
        self.forget(ONCE, self.bytes_max - self.queues.bytes(ONCE));
        let others = self.queues.bytes_in_all() + self.ghosts.bytes(ONCE);
        self.forget(AGAIN, (2 * self.bytes_max).saturating_sub(others));
    }
}
