//! The seeded model test on the engine, with reopening. One seed alone: `ESKER_MODEL_SEED=17 cargo test -p esker-engine --test model`.

#![allow(clippy::unwrap_used, reason = "a test that fails")]

mod support;

use esker_store::model;
use support::OnMemory;

fn harness(zoned: bool) -> OnMemory {
    OnMemory { len: 1 << 30, segment_bytes: 4 << 20, zoned, index_bytes: u64::MAX }
}

#[test]
fn the_engine_does_what_the_model_does() {
    if let Some(seed) = std::env::var("ESKER_MODEL_SEED").ok().and_then(|seed| seed.parse().ok()) {
        return model::run(seed, 60, &harness(false));
    }
    for seed in 0..100 {
        model::run(seed, 60, &harness(seed % 4 == 3));
    }
}

#[test]
fn a_long_run_does_what_the_model_does() {
    model::run(1000, 700, &harness(false));
}
