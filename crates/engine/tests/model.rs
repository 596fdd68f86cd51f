//! The seeded model test on the engine, with reopening. One seed alone: `ESKER_MODEL_SEED=17 cargo test -p esker-engine
//! --test model`.

#![allow(clippy::unwrap_used, reason = "a test that fails")]

mod support;

use esker_engine::{CachePolicy, CompressOptions};
use esker_store::{Compression, model};
use support::{OnMemory, eager};

fn harness(seed: u64) -> OnMemory {
    // Transactions come with hints at random; half of the seeds compress even the smallest.
    let compress = if seed.is_multiple_of(2) { eager(Compression::None) } else { CompressOptions::default() };
    let cache_policy = CachePolicy::ALL[seed as usize % CachePolicy::ALL.len()];
    let zoned = seed % 4 == 3;
    OnMemory { len: 1 << 30, segment_bytes: 4 << 20, zoned, index_bytes: u64::MAX, compress, cache_policy }
}

#[test]
fn the_engine_does_what_the_model_does() {
    if let Some(seed) = std::env::var("ESKER_MODEL_SEED").ok().and_then(|seed| seed.parse().ok()) {
        return model::run(seed, 60, &harness(seed));
    }
    for seed in 0..100 {
        model::run(seed, 60, &harness(seed));
    }
}

#[test]
fn a_long_run_does_what_the_model_does() {
    model::run(1000, 700, &harness(1000));
}
