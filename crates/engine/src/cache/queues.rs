//! Queues of weighed values that are found by key: what every policy of this folder is made of.
//!
//! key → place → node (value, weight, mark) → its queue, from the newest to the oldest
//!
//! Invariants:
//! 1. A key has one node, and a node stands in one queue.
//! 2. A queue's bytes are the sum of the weights of its nodes.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::atomic::AtomicU8;

/// Queues of one [`Queues`].
pub const QUEUES: usize = 3;
const NONE: u32 = u32::MAX;

/// Hashes numbers: those of places and segments, which no client chooses. The same in every run.
#[derive(Clone)]
pub struct Mixer(u64);

impl Default for Mixer {
    fn default() -> Self {
        Self(0x243F_6A88_85A3_08D3)
    }
}

impl BuildHasher for Mixer {
    type Hasher = Self;

    #[inline]
    fn build_hasher(&self) -> Self {
        self.clone()
    }
}

impl Hasher for Mixer {
    #[inline]
    fn write_u64(&mut self, word: u64) {
        let wide = u128::from(self.0 ^ word) * 0x9E37_79B9_7F4A_7C15;
        self.0 = wide as u64 ^ (wide >> 64) as u64;
    }

    #[inline]
    fn write_u32(&mut self, word: u32) {
        self.write_u64(u64::from(word));
    }

    #[inline]
    fn write_usize(&mut self, word: usize) {
        self.write_u64(word as u64);
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}

/// A key's hash.
#[inline]
pub fn hash_of<K: Hash>(key: &K) -> u64 {
    Mixer::default().hash_one(key)
}

/// Where a node stands; until it is taken out.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct At(u32);

struct Node<K, V> {
    key: K,
    /// `None` in a node that is free.
    value: Option<V>,
    weight: u64,
    queue: u8,
    mark: AtomicU8,
    newer: u32,
    older: u32,
}

#[derive(Clone, Copy)]
struct Ends {
    newest: u32,
    oldest: u32,
    bytes: u64,
}

/// The queues, numbered from 0.
pub struct Queues<K, V> {
    places: HashMap<K, u32, Mixer>,
    nodes: Vec<Node<K, V>>,
    free: Vec<u32>,
    ends: [Ends; QUEUES],
}

impl<K, V> Default for Queues<K, V> {
    fn default() -> Self {
        let ends = [Ends { newest: NONE, oldest: NONE, bytes: 0 }; QUEUES];
        Self { places: HashMap::default(), nodes: Vec::new(), free: Vec::new(), ends }
    }
}

impl<K: Copy + Eq + Hash, V> Queues<K, V> {
    /// Where `key` stands.
    #[inline]
    pub fn find(&self, key: &K) -> Option<At> {
        self.places.get(key).map(|place| At(*place))
    }

    /// The key there.
    pub fn key(&self, at: At) -> &K {
        &self.nodes[at.0 as usize].key
    }

    /// The value there; `None` once it was taken out.
    #[inline]
    pub fn value(&self, at: At) -> Option<&V> {
        self.nodes[at.0 as usize].value.as_ref()
    }

    /// Puts another value of the same weight there, and returns the one before.
    pub fn swap(&mut self, at: At, value: V) -> Option<V> {
        self.nodes[at.0 as usize].value.replace(value)
    }

    /// The weight there, in bytes.
    pub fn weight(&self, at: At) -> u64 {
        self.nodes[at.0 as usize].weight
    }

    /// The number of the queue that it stands in.
    pub fn queue(&self, at: At) -> usize {
        usize::from(self.nodes[at.0 as usize].queue)
    }

    /// What the policy has noted there; 0 at first.
    #[inline]
    pub fn mark(&self, at: At) -> &AtomicU8 {
        &self.nodes[at.0 as usize].mark
    }

    /// The oldest of a queue.
    pub fn oldest(&self, queue: usize) -> Option<At> {
        let oldest = self.ends[queue].oldest;
        (oldest != NONE).then_some(At(oldest))
    }

    /// Weight of a queue in bytes.
    pub fn bytes(&self, queue: usize) -> u64 {
        self.ends[queue].bytes
    }

    /// Weight of all queues in bytes.
    pub fn bytes_in_all(&self) -> u64 {
        self.ends.iter().map(|ends| ends.bytes).sum()
    }

    /// Nodes in all queues.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Puts a key at the newest end of a queue; what stands there under it goes.
    pub fn push(&mut self, queue: usize, key: K, value: V, weight: u64) -> At {
        let node = Node { key, value: Some(value), weight, queue: 0, mark: AtomicU8::new(0), newer: NONE, older: NONE };
        let place = match self.free.pop() {
            Some(place) => {
                self.nodes[place as usize] = node;
                place
            }
            None => {
                self.nodes.push(node);
                self.nodes.len() as u32 - 1
            }
        };
        if let Some(before) = self.places.insert(key, place) {
            self.unlink(before);
            self.nodes[before as usize].value = None;
            self.free.push(before);
        }
        self.link(queue, place);
        At(place)
    }

    /// Moves a node to the newest end of a queue, from wherever it stands.
    pub fn renew(&mut self, queue: usize, at: At) {
        if self.ends[queue].newest != at.0 {
            self.unlink(at.0);
            self.link(queue, at.0);
        }
    }

    /// Takes a node out: its key, value and weight.
    pub fn take(&mut self, at: At) -> (K, Option<V>, u64) {
        self.unlink(at.0);
        self.free.push(at.0);
        let node = &mut self.nodes[at.0 as usize];
        let (key, value, weight) = (node.key, node.value.take(), node.weight);
        self.places.remove(&key);
        (key, value, weight)
    }

    fn link(&mut self, queue: usize, place: u32) {
        let ends = &mut self.ends[queue];
        let older = std::mem::replace(&mut ends.newest, place);
        if older == NONE {
            ends.oldest = place;
        } else {
            self.nodes[older as usize].newer = place;
        }
        let node = &mut self.nodes[place as usize];
        (node.queue, node.newer, node.older) = (queue as u8, NONE, older);
        self.ends[queue].bytes += node.weight;
    }

    fn unlink(&mut self, place: u32) {
        let node = &self.nodes[place as usize];
        let (queue, weight, newer, older) = (usize::from(node.queue), node.weight, node.newer, node.older);
        match newer {
            NONE => self.ends[queue].newest = older,
            newer => self.nodes[newer as usize].older = older,
        }
        match older {
            NONE => self.ends[queue].oldest = newer,
            older => self.nodes[older as usize].newer = newer,
        }
        self.ends[queue].bytes -= weight;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    #[test]
    fn queues_are_what_lists_are() {
        for seed in 0..20 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let mut queues = Queues::default();
            let mut lists: [VecDeque<(u64, u64)>; QUEUES] = Default::default();
            for step in 0..2_000 {
                let (key, queue) = (rng.u64(..40), rng.usize(..QUEUES));
                let stands = lists.iter().enumerate().find_map(|(list, keys)| {
                    keys.iter().position(|(listed, _)| *listed == key).map(|place| (list, place))
                });
                match (queues.find(&key), stands) {
                    (None, None) => {
                        let weight = rng.u64(..100);
                        queues.push(queue, key, key + 1, weight);
                        lists[queue].push_front((key, weight));
                    }
                    (Some(at), Some((list, place))) => {
                        assert_eq!((queues.queue(at), queues.value(at)), (list, Some(&(key + 1))), "{seed} {step}");
                        let (_, weight) = lists[list].remove(place).unwrap();
                        assert_eq!(queues.weight(at), weight);
                        if rng.bool() {
                            queues.renew(queue, at);
                            lists[queue].push_front((key, weight));
                        } else {
                            assert_eq!(queues.take(at), (key, Some(key + 1), weight), "{seed} {step}");
                        }
                    }
                    (found, stands) => panic!("{seed} {step}: {} and {stands:?}", found.is_some()),
                }
                for (queue, list) in lists.iter().enumerate() {
                    let oldest = queues.oldest(queue).map(|at| *queues.key(at));
                    assert_eq!(oldest, list.back().map(|(key, _)| *key), "{seed} {step}");
                    assert_eq!(queues.bytes(queue), list.iter().map(|(_, weight)| weight).sum::<u64>());
                }
                assert_eq!(queues.len(), lists.iter().map(VecDeque::len).sum::<usize>());
            }
        }
    }
}
