//! Keys and tables under killed, paused and unanswered processes, and servers that restart; and that the checks find
//! what breaks them.

use esker_sim::outcome::Outcome;
use esker_sim::{kvs, maps};

type Run = fn(u64, Option<kvs::Sabotage>) -> Result<Outcome, String>;

fn hold(kind: &str, run: Run) {
    for seed in 0..300 {
        if let Err(broken) = run(seed, None) {
            panic!("seed {seed}: {broken}\nrepeat: cargo run --release -p esker-sim -- --seed {seed} --kind {kind}");
        }
    }
    for seed in 500..520 {
        assert_eq!(run(seed, None), run(seed, None), "seed {seed}");
    }
}

#[test]
fn histories_of_keys_hold_and_the_same_seed_gives_the_same_calls() {
    hold("kv", kvs::run);
}

#[test]
fn histories_of_tables_hold_and_the_same_seed_gives_the_same_calls() {
    hold("map", maps::run);
}

fn found(breakage: kvs::Sabotage, run: Run) {
    let found = (0..3_000).find_map(|seed| run(seed, Some(breakage)).err().map(|broken| (seed, broken)));
    let Some((seed, broken)) = found else { panic!("{breakage:?} was not found in 3000 seeds") };
    println!("{breakage:?}: first found by seed {seed}: {broken}");
}

#[test]
fn every_breakage_of_keys_is_found() {
    kvs::Sabotage::OF_KEYS.into_iter().for_each(|breakage| found(breakage, kvs::run));
}

#[test]
fn every_breakage_of_tables_is_found() {
    kvs::Sabotage::OF_TABLES.into_iter().for_each(|breakage| found(breakage, maps::run));
}
