//! The cache of values that were read from the device: bounded by bytes, replaced by the policy that is chosen.
//!
//! key → part → value, or a miss → the caller reads and inserts → the policy says what goes
//!
//! `clock` is the crate `quick_cache`; the other policies stand in this folder, on queues that they share. What they
//! cost and gain: docs/measurements/cache. Why these: docs/decisions/0032-cache-policy.md.
//!
//! Invariants:
//! 1. Values never weigh more than the cache's bytes together; one that is heavier than its part takes is not kept.
//! 2. What is found under a key is what was inserted last under it.

mod adaptive;
mod clock;
mod lru;
mod queues;
mod replacement;
mod s3_fifo;
mod shards;
#[cfg(test)]
mod tests;
mod tiny_lfu;

use std::fmt;
use std::hash::Hash;
use std::str::FromStr;

use adaptive::Adaptive;
use clock::Quick;
use lru::Lru;
use s3_fifo::S3Fifo;
use shards::Shards;
use tiny_lfu::TinyLfu;

/// Which values stay when a cache is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum CachePolicy {
    /// CLOCK with a hot and a cold part and hashes of what has gone, after CLOCK-Pro and S3-FIFO. The default.
    #[default]
    Clock,
    /// What was not used for longest goes. A scan takes the place of everything.
    Lru,
    /// ARC: what was used once and what was used again are kept apart, and their shares follow the misses.
    Arc,
    /// S3-FIFO: what is not used again soon after it came goes first.
    S3Fifo,
    /// W-TinyLFU: what comes stays only if it is asked for more often than what would go for it.
    TinyLfu,
}

/// A policy's text is not understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CachePolicyError {
    found: String,
}

impl fmt::Display for CachePolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = CachePolicy::ALL.map(CachePolicy::name);
        let (last, first) = names.split_last().unwrap_or((&"", &[]));
        write!(f, "cache policy {:?}: expected {} or {last}", self.found, first.join(", "))
    }
}

impl std::error::Error for CachePolicyError {}

impl CachePolicy {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Clock, Self::Lru, Self::Arc, Self::S3Fifo, Self::TinyLfu];

    /// Its name in settings.
    pub fn name(self) -> &'static str {
        match self {
            Self::Clock => "clock",
            Self::Lru => "lru",
            Self::Arc => "arc",
            Self::S3Fifo => "s3-fifo",
            Self::TinyLfu => "w-tinylfu",
        }
    }
}

impl fmt::Display for CachePolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for CachePolicy {
    type Err = CachePolicyError;

    fn from_str(text: &str) -> Result<Self, CachePolicyError> {
        let named = Self::ALL.into_iter().find(|policy| policy.name() == text);
        named.ok_or_else(|| CachePolicyError { found: text.into() })
    }
}

/// What a value takes of the cache.
pub trait Weigh {
    /// In bytes, with what the cache itself needs for it.
    fn weight(&self) -> u64;
}

enum Chosen<K, V> {
    Clock(Quick<K, V>),
    Lru(Shards<Lru<K, V>>),
    Arc(Shards<Adaptive<K, V>>),
    S3Fifo(Shards<S3Fifo<K, V>>),
    TinyLfu(Shards<TinyLfu<K, V>>),
}

/// Says the same to each that may be chosen: no call goes through a table.
macro_rules! each {
    ($chosen:expr, $cache:ident => $call:expr) => {
        match $chosen {
            Chosen::Clock($cache) => $call,
            Chosen::Lru($cache) => $call,
            Chosen::Arc($cache) => $call,
            Chosen::S3Fifo($cache) => $call,
            Chosen::TinyLfu($cache) => $call,
        }
    };
}

/// A part has at least so many bytes, if the cache has: a value heavier than its part is not kept.
const PART_BYTES_MIN: u64 = 256 << 10;
/// Shards for each processor.
const PROCESSOR_PARTS: usize = 4;

/// How many parts a cache of so many bytes has: a power of two.
fn parts_of(bytes_max: u64, processors: usize) -> usize {
    let fit = (bytes_max / PART_BYTES_MIN).clamp(1, 1 << 12);
    (PROCESSOR_PARTS * processors).next_power_of_two().min(1 << fit.ilog2())
}

/// A cache that any number of threads use.
pub struct Cache<K, V> {
    chosen: Chosen<K, V>,
    policy: CachePolicy,
    bytes_max: u64,
}

impl<K: Copy + Eq + Hash, V: Weigh + Clone> Cache<K, V> {
    /// For values of at most `bytes_max` bytes together, by their [`Weigh::weight`].
    pub fn new(policy: CachePolicy, bytes_max: u64) -> Self {
        let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self::in_parts(policy, bytes_max, parts_of(bytes_max, processors))
    }

    /// The same in `parts` parts, a power of two.
    fn in_parts(policy: CachePolicy, bytes_max: u64, parts: usize) -> Self {
        let chosen = match policy {
            CachePolicy::Clock => Chosen::Clock(Quick::new(bytes_max, parts)),
            CachePolicy::Lru => Chosen::Lru(Shards::new(bytes_max, parts)),
            CachePolicy::Arc => Chosen::Arc(Shards::new(bytes_max, parts)),
            CachePolicy::S3Fifo => Chosen::S3Fifo(Shards::new(bytes_max, parts)),
            CachePolicy::TinyLfu => Chosen::TinyLfu(Shards::new(bytes_max, parts)),
        };
        Self { chosen, policy, bytes_max }
    }

    /// Which values stay.
    pub fn policy(&self) -> CachePolicy {
        self.policy
    }

    /// The most that its values may weigh, in bytes.
    pub fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    /// What its values weigh, in bytes.
    pub fn bytes(&self) -> u64 {
        each!(&self.chosen, cache => cache.bytes())
    }

    /// The value of `key`, which is used now.
    #[inline]
    pub fn get(&self, key: &K) -> Option<V> {
        each!(&self.chosen, cache => cache.get(key))
    }

    /// Whether `key` has a value; that is no use of it.
    pub fn contains(&self, key: &K) -> bool {
        each!(&self.chosen, cache => cache.contains(key))
    }

    /// Gives `key` this value. Whether it is kept is the policy's; the one before is not found any more.
    pub fn insert(&self, key: K, value: V) {
        let weight = value.weight();
        each!(&self.chosen, cache => cache.insert(key, value, weight));
    }

    /// Takes the value of `key` out.
    pub fn remove(&self, key: &K) -> Option<V> {
        each!(&self.chosen, cache => cache.remove(key))
    }
}
