//! The caches that are compared: the engine's with each policy, and crates by themselves.

use std::hash::Hash;

use esker_engine::CachePolicy;
use esker_engine::cache::{Cache, Weigh};

/// A key as the engine has them: a place and the generation of its segment.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Place(u64, u32);

/// A key's place.
pub fn place(key: u32) -> Place {
    Place(u64::from(key) << 10, 7)
}

/// What is kept: whose it is and what it is said to weigh.
#[derive(Clone, Copy)]
pub struct Value {
    key: u32,
    weight: u32,
}

impl Weigh for Value {
    fn weight(&self) -> u64 {
        u64::from(self.weight)
    }
}

/// Tells `quick_cache` what a value weighs.
#[derive(Clone)]
pub struct ByWeight;

impl quick_cache::Weighter<Place, Value> for ByWeight {
    fn weight(&self, _: &Place, value: &Value) -> u64 {
        value.weight()
    }
}

/// One of the caches.
pub enum Compared {
    /// The engine's.
    Engine(Cache<Place, Value>),
    /// `quick_cache` as the engine had it.
    Quick(quick_cache::sync::Cache<Place, Value, ByWeight>),
    /// `foyer-memory`.
    Foyer(foyer_memory::Cache<Place, Value>),
    /// `moka`.
    Moka(moka::sync::Cache<Place, Value>),
}

/// The names of all, the engine's first.
pub fn names() -> Vec<String> {
    let ours = CachePolicy::ALL.map(|policy| policy.to_string());
    let theirs = ["quick_cache", "foyer lru", "foyer s3-fifo", "foyer lfu", "foyer sieve", "moka lru", "moka tinylfu"];
    ours.into_iter().chain(theirs.map(str::to_string)).collect()
}

impl Compared {
    /// The cache of that name, for `bytes` bytes; `None` if there is none.
    pub fn named(name: &str, bytes: u64) -> Option<Self> {
        if let Ok(policy) = name.parse::<CachePolicy>() {
            return Some(Self::Engine(Cache::new(policy, bytes)));
        }
        let foyer = |config: foyer_memory::EvictionConfig| {
            let builder = foyer_memory::CacheBuilder::new(bytes as usize).with_shards(shards(bytes));
            let weighed = builder.with_weighter(|_: &Place, value: &Value| value.weight as usize);
            Self::Foyer(weighed.with_eviction_config(config).build())
        };
        let moka = |policy| {
            let builder = moka::sync::Cache::builder().max_capacity(bytes).eviction_policy(policy);
            Self::Moka(builder.weigher(|_: &Place, value: &Value| value.weight).build())
        };
        Some(match name {
            "quick_cache" => {
                let values = (bytes / 1024).clamp(64, 1 << 20) as usize;
                Self::Quick(quick_cache::sync::Cache::with_weighter(values, bytes.max(1), ByWeight))
            }
            "foyer lru" => foyer(foyer_memory::LruConfig::default().into()),
            "foyer s3-fifo" => foyer(foyer_memory::S3FifoConfig::default().into()),
            "foyer lfu" => foyer(foyer_memory::LfuConfig::default().into()),
            "foyer sieve" => foyer(foyer_memory::SieveConfig.into()),
            "moka lru" => moka(moka::policy::EvictionPolicy::lru()),
            "moka tinylfu" => moka(moka::policy::EvictionPolicy::tiny_lfu()),
            _ => return None,
        })
    }

    /// Uses a key: its value is found, or put in. Whether it was found.
    #[inline]
    pub fn found(&self, key: u32, weight: u32) -> bool {
        let place = place(key);
        let found = match self {
            Self::Engine(cache) => cache.get(&place),
            Self::Quick(cache) => cache.get(&place),
            Self::Foyer(cache) => cache.get(&place).map(|entry| *entry.value()),
            Self::Moka(cache) => cache.get(&place),
        };
        if let Some(value) = found {
            assert_eq!(value.key, key, "a value of another key");
            return true;
        }
        let value = Value { key, weight };
        match self {
            Self::Engine(cache) => cache.insert(place, value),
            Self::Quick(cache) => cache.insert(place, value),
            Self::Foyer(cache) => drop(cache.insert(place, value)),
            Self::Moka(cache) => cache.insert(place, value),
        }
        false
    }

    /// What its values weigh, in bytes.
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Engine(cache) => cache.bytes(),
            Self::Quick(cache) => cache.weight(),
            Self::Foyer(cache) => cache.usage() as u64,
            Self::Moka(cache) => cache.weighted_size(),
        }
    }
}

/// As many as the engine's has on two processors.
fn shards(bytes: u64) -> usize {
    let fit = (bytes / (256 << 10)).max(1);
    (1_usize << fit.ilog2()).min(8)
}
