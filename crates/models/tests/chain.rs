//! The model of a chain: explored whole at small bounds, and shown to find each breakage.
//!
//! Bounds are small because states multiply; `ESKER_MODEL_BOUND=large` explores what takes minutes.

use std::time::Instant;

use esker_models::chain::{ChainAction, ChainModel, ChainRule, ChainState, Flaw};
use stateright::{Checker, HasDiscoveries, Model, Path};

/// Threads of the checker.
const THREADS: usize = 2;

/// Two servers, one operation, nothing that goes wrong.
const QUIET: ChainModel = ChainModel {
    servers: 2,
    operations: 1,
    versions: 1,
    restarts: 0,
    cuts: 0,
    expiries: 0,
    kept_max: 100,
    breakage: None,
};

fn is_large() -> bool {
    std::env::var("ESKER_MODEL_BOUND").is_ok_and(|bound| bound == "large")
}

/// Explores a model to its end: no rule is broken in any state, and what is to happen sometimes does.
fn holds(what: &str, protocol: ChainModel, returns: bool) {
    let began = Instant::now();
    let checker = protocol.checker().threads(THREADS).spawn_bfs().join();
    println!(
        "{what}: {} states, {} steps deep, {} ms",
        checker.unique_state_count(),
        checker.max_depth(),
        began.elapsed().as_millis()
    );
    for rule in ChainRule::ALL {
        if let Some(path) = checker.discovery(rule.name()) {
            panic!("{what}: not so: {}, after {:?}", rule.name(), told(path));
        }
    }
    assert!(checker.is_done(), "{what}: not explored to its end");
    assert!(checker.discovery("all is done").is_some(), "{what}: nothing is ever done");
    if returns {
        assert!(checker.discovery("one has come back").is_some(), "{what}: no server ever comes back");
    }
}

fn told(path: Path<ChainState, ChainAction>) -> Vec<ChainAction> {
    path.into_actions()
}

/// The rule that is broken, and the steps to it.
fn broken(protocol: ChainModel) -> Option<(ChainRule, Vec<ChainAction>)> {
    let checker = protocol.checker().threads(1).finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    let found = ChainRule::ALL.into_iter().filter_map(|rule| Some((rule, told(checker.discovery(rule.name())?))));
    found.min_by_key(|(_, steps)| steps.len())
}

#[test]
fn what_is_acknowledged_stays_on_every_chain() {
    let two = ChainModel { operations: 2, ..QUIET };
    let three = ChainModel { servers: 3, ..QUIET };
    holds("two, all goes well", two, false);
    holds("three, all goes well", ChainModel { operations: 2, ..three }, false);
    holds("two, one is started again", ChainModel { versions: 5, restarts: 1, ..two }, true);
    holds("two, both are started again", ChainModel { versions: 7, restarts: 2, operations: 1, ..two }, true);
    holds(
        "two, a lease runs out and a connection breaks",
        ChainModel { versions: 5, expiries: 1, cuts: 1, ..two },
        false,
    );
    holds(
        "two, a lease runs out and one is started again",
        ChainModel { versions: 5, expiries: 1, restarts: 1, ..two },
        true,
    );
    holds("two, little is kept", ChainModel { versions: 5, restarts: 1, kept_max: 0, ..two }, true);
    holds(
        "two, little is kept and connections break",
        ChainModel { versions: 5, restarts: 1, cuts: 1, kept_max: 0, ..two },
        true,
    );
    holds("three, a lease runs out", ChainModel { versions: 2, expiries: 1, ..three }, false);
    holds("three, one is started again", ChainModel { versions: 2, restarts: 1, ..three }, false);
    if is_large() {
        holds("three, one is brought up", ChainModel { versions: 4, expiries: 1, ..three }, false);
        holds("two, both leases run out", ChainModel { versions: 7, expiries: 2, cuts: 1, ..two }, false);
        holds("three, one comes back", ChainModel { versions: 5, restarts: 1, ..three }, true);
        holds(
            "three, one comes back, and a lease",
            ChainModel { versions: 5, restarts: 1, expiries: 1, ..three },
            true,
        );
    }
}

#[test]
fn every_breakage_is_found() {
    let one = ChainModel { versions: 5, expiries: 1, ..QUIET };
    let cases = [
        (Flaw::AnyVersion, ChainModel { cuts: 1, ..one }),
        (Flaw::EphemeralFence, one),
        (Flaw::NoLease, one),
        (Flaw::OldStart, ChainModel { restarts: 1, ..one }),
        (Flaw::StaleServes, ChainModel { expiries: 2, ..one }),
        (Flaw::Forgets, one),
        (Flaw::OldCopy, one),
        (Flaw::NoOutcomes, one),
        (Flaw::DirtyReads, one),
        (Flaw::NotInStep, one),
    ];
    assert_eq!(cases.map(|(breakage, _)| breakage), Flaw::ALL, "each is tried");
    for (breakage, bounds) in cases {
        let (rule, steps) = broken(ChainModel { breakage: Some(breakage), ..bounds })
            .unwrap_or_else(|| panic!("{breakage:?} breaks nothing"));
        println!("{breakage:?}: not so: {}, after {} steps: {steps:?}", rule.name(), steps.len());
        assert!(broken(bounds).is_none(), "{breakage:?} is not what breaks it");
    }
}
