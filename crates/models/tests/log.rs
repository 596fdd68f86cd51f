//! The model of the shared log: explored whole at small bounds, and shown to find each breakage.
//!
//! Bounds are small because states multiply; `ESKER_MODEL_BOUND=large` explores what takes minutes.

use std::time::Instant;

use esker_models::log::{Action, Breakage, Protocol, Rule, Shape, State};
use stateright::{Checker, HasDiscoveries, Model, Path};

/// Threads of the checker.
const THREADS: usize = 2;

/// Explores a model to its end: no rule is broken in any state.
fn holds(what: &str, protocol: Protocol) {
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
            panic!("{what}: not so: {}, after {}", rule.name(), told(path).join(", "));
        }
    }
    assert!(checker.is_done(), "{what}: not explored to its end");
    assert!(checker.unique_state_count() > 1_000, "{what}: there is nothing to explore");
}

/// The steps of a path, each with the process that takes it.
fn told(path: Path<State, Action>) -> Vec<String> {
    let steps = path.into_vec().into_iter().filter_map(|(state, action)| Some((state, action?)));
    let told = steps.map(|(state, action)| {
        let step = |process: u8| {
            let step = format!("{:?}", state.processes[usize::from(process)].map(|process| process.step));
            step.trim_start_matches("Some(").split(['(', ')']).next().unwrap_or_default().to_owned()
        };
        match action {
            Action::Begin(process, begun) => format!("{process} begins {begun:?}"),
            Action::Step(process) => format!("{process} {}", step(process)),
            Action::LoseAnswer(process) => format!("{process} {} without an answer", step(process)),
            Action::LoseRequest(process) => format!("{process} {} that is lost", step(process)),
            Action::Restart(process) => format!("{process} is started again"),
        }
    });
    told.collect()
}

/// The rule that is broken, and the steps to it, if there are any with fewer than `below` steps.
fn broken(protocol: Protocol, below: Option<usize>) -> Option<(Rule, Vec<String>)> {
    // One thread goes breadth first, so that a bound of the depth cuts nothing off that is nearer. A state that is n
    // steps away has depth n + 1.
    let checker = protocol.checker().threads(1).finish_when(HasDiscoveries::AnyFailures);
    let checker = below.into_iter().fold(checker, |checker, below| checker.target_max_depth(below + 1));
    let checker = checker.spawn_bfs().join();
    let found = Rule::ALL.into_iter().filter_map(|rule| Some((rule, told(checker.discovery(rule.name())?))));
    found.min_by_key(|(_, steps)| steps.len())
}

/// Finds the shortest way to break a rule, and says its steps.
fn is_found(protocol: Protocol, expected: &[Rule]) {
    let breakage = protocol.breakage;
    let began = Instant::now();
    // The checker goes on for a while after it found something, and tells the last that it found.
    let mut shortest = broken(protocol, None);
    while let Some((_, steps)) = &shortest
        && let Some(shorter) = broken(protocol, Some(steps.len()))
    {
        shortest = Some(shorter);
    }
    let Some((rule, steps)) = shortest else { panic!("{breakage:?} is not found") };
    let (count, elapsed) = (steps.len(), began.elapsed().as_millis());
    println!("{breakage:?}: not so: {}, after {count} steps ({elapsed} ms): {}", rule.name(), steps.join(", "));
    assert!(expected.contains(&rule), "{breakage:?} was expected to break {expected:?}, not {rule:?}");
    let sound = broken(Protocol { breakage: None, ..protocol }, Some(count + 1));
    assert_eq!(sound, None, "as far, without {breakage:?}");
}

fn large() -> bool {
    std::env::var("ESKER_MODEL_BOUND").is_ok_and(|bound| bound == "large")
}

/// Every process writes and takes over from every other.
fn racing() -> Protocol {
    Protocol { appends: 1, epochs: 3, positions: 3, ..Protocol::default() }
}

/// A sequencer hands out positions to all, and another takes over.
fn sequencer() -> Protocol {
    Protocol { named: true, appends: 1, epochs: 3, positions: 3, ..Protocol::default() }
}

#[test]
fn writers_that_depose_each_other_lose_nothing() {
    holds("three racing", Protocol { processes: 3, tails: true, ..racing() });
    holds(
        "racing, two entries each",
        Protocol { appends: 2, epochs: 4, positions: 4, reads: true, tails: true, ..racing() },
    );
}

#[test]
fn a_sequencer_that_is_deposed_or_started_again_harms_nothing() {
    holds("sequencers", Protocol { restarts: 1, tails: true, ..sequencer() });
}

#[test]
fn readers_that_fill_agree_with_writers_that_come_late() {
    holds("filling", Protocol { reads: true, restarts: 1, positions: 2, ..sequencer() });
}

#[test]
fn changes_of_shape_lose_nothing() {
    let shape = Shape { width: 2, slots: 2 };
    holds("reshaping", Protocol { appends: 2, shape, reshapes: 1, epochs: 4, tails: true, ..racing() });
    holds("reshaping by a sequencer", Protocol { reshapes: 1, epochs: 4, tails: true, ..sequencer() });
    holds("reshaping while others fill", Protocol { reshapes: 1, reads: true, positions: 2, ..sequencer() });
}

#[test]
fn what_is_acknowledged_stands_below_where_the_log_is_closed() {
    holds("closing", Protocol { seals: true, reads: true, tails: true, ..racing() });
    holds("closing with a sequencer", Protocol { seals: true, tails: true, restarts: 1, ..sequencer() });
}

#[test]
fn lost_answers_leave_an_entry_at_one_position() {
    holds("losing answers", Protocol { losses: 1, appends: 2, reads: true, ..racing() });
    holds("losing answers with a sequencer", Protocol { losses: 1, reads: true, positions: 2, ..sequencer() });
}

#[test]
fn the_large_bound_holds() {
    if !large() {
        return println!("not explored: set ESKER_MODEL_BOUND=large");
    }
    let shape = Shape { width: 2, slots: 2 };
    holds("large: three and a sequencer", Protocol { processes: 3, tails: true, ..sequencer() });
    holds(
        "large: filling, with a change of shape",
        Protocol { reshapes: 1, reads: true, restarts: 1, positions: 2, ..sequencer() },
    );
    holds(
        "large: two entries each, losing answers, reshaping",
        Protocol {
            appends: 2,
            epochs: 5,
            positions: 4,
            shape,
            reads: true,
            tails: true,
            reshapes: 1,
            losses: 1,
            ..racing()
        },
    );
    holds(
        "large: two entries each, with a sequencer",
        Protocol { appends: 2, reads: true, restarts: 1, positions: 3, ..sequencer() },
    );
}

#[test]
fn a_write_without_a_guard_of_the_epoch_is_found() {
    let breakage = Some(Breakage::NoEpochGuard);
    is_found(Protocol { breakage, tails: true, ..racing() }, &[Rule::TailStays, Rule::NothingLost]);
}

#[test]
fn filling_over_what_is_written_is_found() {
    let breakage = Some(Breakage::FillOverWritten);
    is_found(Protocol { breakage, reads: true, ..racing() }, &[Rule::OneValue, Rule::NothingLost]);
}

#[test]
fn a_seal_that_does_not_ask_for_the_highest_position_is_found() {
    let breakage = Some(Breakage::SealWithoutMax);
    is_found(Protocol { breakage, tails: true, appends: 2, ..racing() }, &[Rule::TailStays]);
}

#[test]
fn a_sequencer_that_hands_out_again_after_a_restart_is_found() {
    let breakage = Some(Breakage::SequencerReuses);
    is_found(Protocol { breakage, tails: true, restarts: 1, ..sequencer() }, &[Rule::TailStays]);
}

#[test]
fn writing_over_what_is_written_is_found() {
    let breakage = Some(Breakage::WriteOverWritten);
    is_found(
        Protocol { breakage, reads: true, ..sequencer() },
        &[Rule::OneValue, Rule::NothingLost, Rule::ReadersAgree],
    );
}

#[test]
fn taking_over_without_sealing_is_found() {
    let breakage = Some(Breakage::TakeOverWithoutSeal);
    is_found(Protocol { breakage, tails: true, ..racing() }, &[Rule::TailStays, Rule::NothingLost]);
}

#[test]
fn filling_under_whatever_epoch_is_newest_is_found() {
    let breakage = Some(Breakage::FillUnderNewest);
    let bounds = Protocol { appends: 1, reads: true, reshapes: 1, restarts: 1, positions: 2, ..sequencer() };
    is_found(Protocol { breakage, ..bounds }, &[Rule::OneValue, Rule::ReadersAgree, Rule::NothingLost]);
}

#[test]
fn a_change_of_shape_under_the_epoch_of_its_seal_is_found() {
    // A writer that met the raised epoch before the new shape was published takes a position under it, and writes to
    // the old place.
    let breakage = Some(Breakage::PublishUnderSeal);
    is_found(Protocol { breakage, reshapes: 1, ..sequencer() }, &[Rule::NothingLost]);
}

#[test]
fn a_view_that_is_replaced_whatever_it_is_by_now_is_found() {
    let breakage = Some(Breakage::ViewWithoutCompare);
    let bounds = Protocol { reshapes: 1, epochs: 4, tails: true, ..racing() };
    is_found(Protocol { breakage, ..bounds }, &[Rule::TailStays, Rule::NothingLost, Rule::ReadersAgree]);
}

#[test]
fn a_lost_answer_that_is_not_looked_after_is_found() {
    let breakage = Some(Breakage::RetryElsewhere);
    is_found(Protocol { breakage, losses: 1, ..racing() }, &[Rule::Once]);
}
