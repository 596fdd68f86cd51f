//! The model of a chain: explored whole at small bounds, and shown to find each breakage.
//!
//! Bounds are small because states multiply; `ESKER_MODEL_BOUND=large` explores what takes minutes.

use std::time::Instant;

use esker_models::chain::{Action, Breakage, Protocol, Rule, State};
use stateright::{Checker, HasDiscoveries, Model, Path};

/// Threads of the checker.
const THREADS: usize = 2;

/// Two servers, one operation, nothing that goes wrong.
const QUIET: Protocol =
    Protocol { servers: 2, operations: 1, versions: 1, restarts: 0, cuts: 0, expiries: 0, breakage: None };

fn is_large() -> bool {
    std::env::var("ESKER_MODEL_BOUND").is_ok_and(|bound| bound == "large")
}

/// Explores a model to its end: no rule is broken in any state, and what is to happen sometimes does.
fn holds(what: &str, protocol: Protocol, returns: bool) {
    let began = Instant::now();
    let checker = protocol.checker().threads(THREADS).spawn_bfs().join();
    println!(
        "{what}: {} states, {} steps deep, {} ms",
        checker.unique_state_count(),
        checker.max_depth(),
        began.elapsed().as_millis()
    );
    for rule in Rule::ALL {
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

fn told(path: Path<State, Action>) -> Vec<Action> {
    path.into_actions()
}

/// The rule that is broken, and the steps to it.
fn broken(protocol: Protocol) -> Option<(Rule, Vec<Action>)> {
    let checker = protocol.checker().threads(1).finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    let found = Rule::ALL.into_iter().filter_map(|rule| Some((rule, told(checker.discovery(rule.name())?))));
    found.min_by_key(|(_, steps)| steps.len())
}

#[test]
fn quiet() {
    holds("quiet", QUIET, false);
    holds("three servers, two operations", Protocol { servers: 3, operations: 2, ..QUIET }, false);
}

#[test]
fn explore() {
    let two = Protocol { operations: 2, ..QUIET };
    let three = Protocol { servers: 3, operations: 1, ..QUIET };
    holds("two, one restarts", Protocol { versions: 5, restarts: 1, ..two }, true);
    holds("two, a lease, a cut", Protocol { versions: 5, expiries: 1, cuts: 1, ..two }, false);
    holds("two, a lease, a restart", Protocol { versions: 5, expiries: 1, restarts: 1, ..two }, true);
    holds("three, a lease", Protocol { versions: 3, expiries: 1, ..three }, false);
    holds("three, a restart", Protocol { versions: 3, restarts: 1, ..three }, false);
}

#[test]
fn breakages() {
    let bounds = Protocol { operations: 2, versions: 6, restarts: 1, expiries: 2, cuts: 1, ..QUIET };
    for breakage in Breakage::ALL {
        let began = Instant::now();
        let found = broken(Protocol { breakage: Some(breakage), ..bounds });
        println!("{breakage:?}: {found:?} {} ms", began.elapsed().as_millis());
    }
}
