//! The seeded model test on a real cluster. One seed alone: `ESKER_MODEL_SEED=17`.
//!
//! CEPH_CONF names the configuration of a cluster with a pool `bench`.

#![cfg(feature = "librados")]

mod support;

use esker_store::contract::Harness;
use esker_store::model;

#[test]
fn the_store_does_what_the_model_does() {
    if let Some(seed) = std::env::var("ESKER_MODEL_SEED").ok().and_then(|seed| seed.parse().ok()) {
        return model::run(seed, 60, &support::Rados);
    }
    println!("{:#?}", support::Rados.fresh().store().capability());
    for seed in 0..30 {
        model::run(seed, 60, &support::Rados);
    }
}
