//! The crate `quick_cache`: CLOCK with a hot part, a cold part and hashes of what has gone.
//!
//! It does its own locking, in parts as the others; a use only counts, under a part's lock for reading.

use std::hash::Hash;

use quick_cache::sync::{Cache as QuickCache, DefaultLifecycle};
use quick_cache::{DefaultHashBuilder, OptionsBuilder, Weighter};

/// What a value weighs, about: how much is remembered of those that have gone depends on it.
const VALUE_BYTES: u64 = 1 << 10;
/// `quick_cache` takes fewer parts where it expects fewer values in each.
const PART_VALUES_MIN: usize = 32;

/// A value beside its weight in bytes.
#[derive(Clone)]
struct Weighed<V>(V, u64);

#[derive(Clone)]
struct ByWeight;

impl<K, V> Weighter<K, Weighed<V>> for ByWeight {
    fn weight(&self, _: &K, value: &Weighed<V>) -> u64 {
        value.1
    }
}

/// See the module.
pub struct Quick<K, V>(QuickCache<K, Weighed<V>, ByWeight>);

impl<K: Eq + Hash, V: Clone> Quick<K, V> {
    /// For `bytes_max` bytes in `parts` parts, a power of two.
    pub fn new(bytes_max: u64, parts: usize) -> Self {
        let values = usize::try_from(bytes_max / VALUE_BYTES).unwrap_or(usize::MAX).min(1 << 20);
        // It rounds the share of each part up.
        let share = bytes_max / parts as u64;
        let options = OptionsBuilder::new()
            .estimated_items_capacity(values.max(parts * PART_VALUES_MIN))
            .weight_capacity(share * parts as u64)
            .shards(parts)
            .build()
            .unwrap_or_else(|error| unreachable!("everything that has no default is given: {error}"));
        let (hasher, lifecycle) = (DefaultHashBuilder::default(), DefaultLifecycle::default());
        Self(QuickCache::with_options(options, ByWeight, hasher, lifecycle))
    }

    /// The value of `key`, which is used now.
    #[inline]
    pub fn get(&self, key: &K) -> Option<V> {
        self.0.get(key).map(|value| value.0)
    }

    /// Whether `key` has a value; that is no use of it.
    pub fn contains(&self, key: &K) -> bool {
        self.0.contains_key(key)
    }

    /// Gives `key` this value of so many bytes. It may not be kept; the one before never is.
    pub fn insert(&self, key: K, value: V, weight: u64) {
        self.0.insert(key, Weighed(value, weight));
    }

    /// Takes the value of `key` out.
    pub fn remove(&self, key: &K) -> Option<V> {
        self.0.remove(key).map(|(_, value)| value.0)
    }

    /// Weight of all values in bytes.
    pub fn bytes(&self) -> u64 {
        self.0.weight()
    }
}
