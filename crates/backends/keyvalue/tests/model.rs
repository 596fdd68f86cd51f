//! The seeded model test on every kind of this build, with reopening. One seed alone: `ESKER_MODEL_SEED=17`.

#![allow(clippy::unwrap_used, reason = "a test that fails")]

mod support;

use esker_keyvalue::StripLen;
use esker_store::model;

#[test]
fn every_kind_does_what_the_model_does() {
    let only: Option<u64> = std::env::var("ESKER_MODEL_SEED").ok().and_then(|seed| seed.parse().ok());
    for (number, strip) in [StripLen::Bytes(512), StripLen::Bytes(4096), StripLen::None].into_iter().enumerate() {
        for (name, harness) in support::harnesses(strip) {
            let seeds = if name.starts_with("tree") { 60 } else { 12 };
            let first = 1_000 * number as u64;
            for seed in only.map_or(first..first + seeds, |seed| seed..seed + 1) {
                println!("{name}, seed {seed}");
                model::run(seed, 60, &*harness);
            }
        }
    }
}

#[test]
fn a_long_run_does_what_the_model_does() {
    for (name, harness) in support::harnesses(StripLen::Bytes(4096)) {
        println!("{name}");
        model::run(77_000, 400, &*harness);
    }
}
