//! W-TinyLFU: a small window in the order of use, and a main part that only takes in what is asked for more often than
//! what would go for it.
//!
//! miss → `WINDOW` → its oldest against the oldest of `PROBATION`, by the [`Sketch`] → one stays, the other goes
//! `PROBATION` → used → `PROTECTED` → its oldest, when it is too long → `PROBATION`
//!
//! Source: Einziger, Friedman and Manes, TinyLFU: A Highly Efficient Cache Admission Policy (ACM TOS 2017); by bytes,
//! the window of a fixed share.

use std::hash::Hash;

use super::queues::{At, Queues, hash_of};
use super::replacement::{Evicted, Replacement};

const WINDOW: usize = 0;
const PROBATION: usize = 1;
const PROTECTED: usize = 2;

/// Part of the bytes that is the window.
const WINDOW_PART: u64 = 100;

/// See the module.
pub struct TinyLfu<K, V> {
    queues: Queues<K, V>,
    sketch: Sketch,
    window_max: u64,
    main_max: u64,
}

impl<K: Copy + Eq + Hash, V> TinyLfu<K, V> {
    fn uses(&self, at: At) -> u8 {
        self.sketch.uses(hash_of(self.queues.key(at)))
    }

    /// Takes `candidate`, of the window, over into the main part, or out.
    fn contest(&mut self, candidate: At, evicted: &mut Evicted<V>) {
        let (weight, uses) = (self.queues.weight(candidate), self.uses(candidate));
        while self.queues.bytes(PROBATION) + self.queues.bytes(PROTECTED) + weight > self.main_max {
            let victim = self.queues.oldest(PROBATION).or_else(|| self.queues.oldest(PROTECTED));
            match victim {
                Some(victim) if uses > self.uses(victim) => evicted.extend(self.queues.take(victim).1),
                _ => {
                    evicted.extend(self.queues.take(candidate).1);
                    return;
                }
            }
        }
        self.queues.renew(PROBATION, candidate);
    }
}

impl<K: Copy + Eq + Hash, V> Replacement<K, V> for TinyLfu<K, V> {
    fn new(bytes_max: u64) -> Self {
        let window_max = bytes_max / WINDOW_PART;
        Self { queues: Queues::default(), sketch: Sketch::default(), window_max, main_max: bytes_max - window_max }
    }

    fn queues(&self) -> &Queues<K, V> {
        &self.queues
    }

    fn queues_mut(&mut self) -> &mut Queues<K, V> {
        &mut self.queues
    }

    fn weight_max(&self) -> u64 {
        self.main_max
    }

    fn touch(&mut self, at: At) {
        self.sketch.note(hash_of(self.queues.key(at)));
        if self.queues.queue(at) == WINDOW {
            return self.queues.renew(WINDOW, at);
        }
        self.queues.renew(PROTECTED, at);
        while self.queues.bytes(PROTECTED) > self.main_max / 5 * 4 {
            let Some(oldest) = self.queues.oldest(PROTECTED) else { break };
            self.queues.renew(PROBATION, oldest);
        }
    }

    fn admit(&mut self, key: K, value: V, weight: u64, evicted: &mut Evicted<V>) {
        self.sketch.reserve(self.queues.len() + 1);
        self.sketch.note(hash_of(&key));
        // One that is heavier than the window does not push out what is there.
        if weight > self.window_max {
            let at = self.queues.push(WINDOW, key, value, weight);
            return self.contest(at, evicted);
        }
        self.queues.push(WINDOW, key, value, weight);
        while self.queues.bytes(WINDOW) > self.window_max {
            let Some(oldest) = self.queues.oldest(WINDOW) else { break };
            self.contest(oldest, evicted);
        }
    }
}

/// Rows of a block, of as many counters each.
const ROWS: usize = 4;
const ROW_COUNTERS: usize = 16;
const BLOCK_COUNTERS: usize = ROWS * ROW_COUNTERS;
/// Entries that share a block.
const BLOCK_ENTRIES: usize = 4;
/// Where counters stop.
const COUNT_MAX: u8 = 15;
/// All counters are halved after so many uses for each entry.
const SAMPLE: usize = 10;

/// How often keys were used lately, about: a count-min sketch that forgets. A hash's four counters stand in one cache
/// line.
struct Sketch {
    counters: Vec<u8>,
    noted: usize,
}

impl Default for Sketch {
    fn default() -> Self {
        Self { counters: vec![0; BLOCK_COUNTERS], noted: 0 }
    }
}

impl Sketch {
    fn blocks(&self) -> usize {
        self.counters.len() / BLOCK_COUNTERS
    }

    /// Grows until it is for so many entries. A hash keeps its counts: the halves begin alike.
    fn reserve(&mut self, entries: usize) {
        while self.blocks() * BLOCK_ENTRIES < entries {
            self.counters.extend_from_within(..);
        }
    }

    fn places(&self, hash: u64) -> [usize; ROWS] {
        let block = (hash as usize & (self.blocks() - 1)) * BLOCK_COUNTERS;
        // The upper bits, which do not choose the block.
        std::array::from_fn(|row| block + row * ROW_COUNTERS + (hash >> (48 + 4 * row)) as usize % ROW_COUNTERS)
    }

    fn uses(&self, hash: u64) -> u8 {
        self.places(hash).map(|place| self.counters[place]).into_iter().min().unwrap_or(0)
    }

    fn note(&mut self, hash: u64) {
        for place in self.places(hash) {
            let counter = &mut self.counters[place];
            *counter = (*counter + 1).min(COUNT_MAX);
        }
        self.noted += 1;
        if self.noted >= SAMPLE * BLOCK_ENTRIES * self.blocks() {
            self.counters.iter_mut().for_each(|counter| *counter /= 2);
            self.noted /= 2;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sketch_counts_and_forgets() {
        let mut sketch = Sketch::default();
        sketch.reserve(10_000);
        for key in 0..1_000_u64 {
            for _ in 0..key % 10 {
                sketch.note(hash_of(&key));
            }
        }
        let above = (0..1_000_u64).filter(|key| u64::from(sketch.uses(hash_of(key))) > key % 10).count();
        assert!((0..1_000_u64).all(|key| u64::from(sketch.uses(hash_of(&key))) >= key % 10), "never below");
        assert!(above < 50, "{above} of 1000 are above");
        sketch.reserve(40_000);
        assert!((0..1_000_u64).all(|key| u64::from(sketch.uses(hash_of(&key))) >= key % 10), "kept when it grows");
        for other in 1_000..2_000_000_u64 {
            sketch.note(hash_of(&other));
        }
        // What was used nine times long ago counts no more than what is used now and then.
        let nines = (0..1_000_u64).filter(|key| key % 10 == 9);
        let mean = nines.map(|key| f64::from(sketch.uses(hash_of(&key)))).sum::<f64>() / 100.0;
        let strangers =
            (3_000_000..3_000_100_u64).map(|key| f64::from(sketch.uses(hash_of(&key)))).sum::<f64>() / 100.0;
        assert!((mean - strangers).abs() < 2.0, "{mean} and {strangers}");
    }
}
