//! The seeded model test on the file backend, with reopening. One seed alone: `ESKER_MODEL_SEED=17 cargo test -p
//! esker-file --test model`.

#![allow(clippy::unwrap_used, reason = "a test that fails")]

mod support;

use esker_store::model;
use support::OnFolder;

#[test]
fn the_store_does_what_the_model_does() {
    if let Some(seed) = std::env::var("ESKER_MODEL_SEED").ok().and_then(|seed| seed.parse().ok()) {
        return model::run(seed, 60, &OnFolder);
    }
    for seed in 0..40 {
        model::run(seed, 60, &OnFolder);
    }
}

#[test]
fn a_long_run_does_what_the_model_does() {
    model::run(1000, 700, &OnFolder);
}
