//! The seeded model test over the network, with servers that go away and come back. One seed alone:
//! `ESKER_MODEL_SEED=17 cargo test -p esker-remote --test model`.

#![allow(clippy::unwrap_used, reason = "a test that fails")]

mod support;

use esker_store::model;

#[test]
fn the_remote_store_does_what_the_model_does() {
    if let Some(seed) = std::env::var("ESKER_MODEL_SEED").ok().and_then(|seed| seed.parse().ok()) {
        return model::run(seed, 25, &support::Served);
    }
    // Each step reads everything back, by hundreds of calls.
    for seed in 0..3 {
        model::run(seed, 25, &support::Served);
    }
}
