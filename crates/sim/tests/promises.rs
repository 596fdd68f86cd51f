//! The promises under simulated crashes, and that a seed is a whole description of a run.

#![allow(clippy::unwrap_used, reason = "a test that fails")]

use esker_sim::crash::run;

#[test]
fn promises_hold_under_power_loss_at_any_io() {
    for seed in 0..300 {
        if let Err(broken) = run(seed) {
            panic!("seed {seed}: {broken}\nrepeat: cargo run --release -p esker-sim -- --seed {seed}");
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    let mut traces = std::collections::BTreeSet::new();
    for seed in 1000..1020 {
        let first = run(seed).unwrap();
        assert_eq!(first, run(seed).unwrap(), "seed {seed}");
        traces.insert(first.trace);
    }
    assert_eq!(traces.len(), 20, "different seeds give different traces");
}
