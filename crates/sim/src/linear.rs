//! Linearizability: whether a history is one that a single object could have given, each call taking effect at once
//! between its beginning and its end.
//!
//! events (begin, end, call, answer) → by key, where the model is per key → a search over orders → an order, or where
//! it got stuck
//!
//! The search is Wing and Gong's with Lowe's memory, as in Porcupine. Among the calls that are not taken, one that
//! has to be taken ends first; the search takes one of those that began before that, the model says what may come of
//! it, and the rest is searched; a set of taken calls with a state is never searched twice. A call that only reads,
//! and fits, is taken at once. A call that may have done nothing, because it was not answered or because its answer
//! does not tell, is taken only where it does something: at any time between its beginning and its end, or not at
//! all, and it is tried last. A call that was not answered never ends.
//!
//! Invariants:
//! 1. `Ok` means that an order was found. A search that was given up says so ([`Fault::Undecided`]), and never passes.
//! 2. What is partitioned is judged part by part, which is the same as judging the whole if no call touches two parts.
//!
//! Source: Wing and Gong, Testing and Verifying Concurrent Objects (1993); Lowe, Testing for Linearizability (2016)

use std::collections::{BTreeMap, HashSet};
use std::fmt::{self, Debug};
use std::hash::Hash;

/// Most steps of a search through a simulated history, for each part of it. Of 107,000 parts that have an order the
/// slowest took 31,000 (20,000 seeds of keys, 20,000 of tables); giving up takes 5 to 17 s a part.
pub const SEARCH_STEPS_MAX: u64 = 5_000_000;

/// What an object does, one call after another.
pub trait Model {
    /// What the object is between two calls.
    type State: Clone + Eq + Hash + Debug;
    /// What is asked.
    type Call: Clone + PartialEq + Debug;
    /// What is answered.
    type Answer: Clone + PartialEq + Debug;

    /// The state before the first call.
    fn start(&self) -> Self::State;

    /// The states that `call` may leave, if it is answered so; none: it cannot be. Without an answer no process was
    /// told, and any will do.
    fn step(&self, state: &Self::State, call: &Self::Call, answer: Option<&Self::Answer>) -> Vec<Self::State>;

    /// Whether a call that is answered so changes nothing, in whatever state.
    fn only_reads(&self, call: &Self::Call, answer: &Self::Answer) -> bool {
        let _ = (call, answer);
        false
    }

    /// Whether a call that is answered so may have changed nothing, in whatever state: one that may leave for later
    /// what it is for. Then [`Model::step`] gives the same state, among others, in every state.
    fn may_do_nothing(&self, call: &Self::Call, answer: &Self::Answer) -> bool {
        let _ = (call, answer);
        false
    }
}

/// A model of several keys that know nothing of each other, save where a call touches more than one.
pub trait Keyed: Model {
    /// The keys that a call touches; none: all of them are, each by itself, as by a power cut.
    fn keys(&self, call: &Self::Call) -> Vec<usize>;
}

/// A call, and what came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interval<C, A> {
    /// Who called.
    pub process: usize,
    /// When. All times of a history are different.
    pub begin: u64,
    /// When it was answered; `u64::MAX`: never.
    pub end: u64,
    /// What was asked.
    pub call: C,
    /// What was answered.
    pub answer: Option<A>,
}

/// Why a history is not known to be linearizable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It is not.
    Broken(String),
    /// The search was given up after so many steps.
    Undecided(u64, String),
}

impl Fault {
    /// With the history that it is of, in the order of its beginnings.
    pub fn with<C: Debug, A: Debug>(&self, events: &[Interval<C, A>]) -> String {
        let mut all: Vec<&Interval<C, A>> = events.iter().collect();
        all.sort_by_key(|event| event.begin);
        let lines = all.into_iter().map(|Interval { process, begin, end, call, answer }| {
            let (process, end) = (*process as isize, if *end == u64::MAX { "never".into() } else { end.to_string() });
            let answer = answer.as_ref().map_or_else(|| "no answer".into(), |answer| format!("{answer:?}"));
            format!("\n    {begin} to {end}, process {process}: {call:?} -> {answer}")
        });
        format!("{self}{}", lines.collect::<String>())
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Broken(how) => write!(f, "not linearizable: {how}"),
            Self::Undecided(steps, how) => {
                write!(f, "undecided: no order was found in {steps} steps, nor that there is none; {how}")
            }
        }
    }
}

/// Calls shown of those that fit nowhere.
const SHOWN: usize = 8;

/// A set of calls, by number.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Taken(Box<[u64]>);

impl Taken {
    fn none(calls: usize) -> Self {
        Self(vec![0; calls.div_ceil(64)].into())
    }

    fn has(&self, call: usize) -> bool {
        self.0[call / 64] >> (call % 64) & 1 == 1
    }

    fn take(&mut self, call: usize) {
        self.0[call / 64] |= 1 << (call % 64);
    }

    fn with(&self, call: usize) -> Self {
        let mut with = self.clone();
        with.take(call);
        with
    }
}

/// A call as the search sees it.
struct Piece<'a, C, A> {
    event: &'a Interval<C, A>,
    /// Whether it has to be taken; else it may have done nothing.
    owed: bool,
    /// The first call that is asked and answered as this one.
    like: usize,
}

/// What is judged, in the order of the beginnings.
struct Pieces<'a, C, A>(Vec<Piece<'a, C, A>>);

impl<'a, C: Clone + PartialEq + Debug, A: Clone + PartialEq + Debug> Pieces<'a, C, A> {
    fn new<M: Model<Call = C, Answer = A>>(model: &M, events: &'a [Interval<C, A>]) -> Self {
        let mut events: Vec<&Interval<C, A>> = events.iter().collect();
        events.sort_by_key(|event| event.begin);
        let like = |one: &Interval<C, A>| {
            let first = events.iter().position(|event| event.call == one.call && event.answer == one.answer);
            first.unwrap_or_default()
        };
        let piece = |event: &&'a Interval<C, A>| {
            let owed = event.answer.as_ref().is_some_and(|answer| !model.may_do_nothing(&event.call, answer));
            Piece { event, owed, like: like(event) }
        };
        Self(events.iter().map(piece).collect())
    }

    fn owed(&self) -> usize {
        self.0.iter().filter(|piece| piece.owed).count()
    }

    /// The calls that may be next: those that began before any ended that is left and has to be taken. Those that
    /// have to be taken stand first, and among them those that ended first.
    fn next<S>(&self, place: &Place<S>) -> Vec<usize> {
        let (mut least, mut found) = (u64::MAX, Vec::new());
        for (number, piece) in self.0.iter().enumerate().skip(place.first) {
            if piece.event.begin > least {
                break;
            }
            if place.taken.has(number) {
                continue;
            }
            if piece.owed {
                least = least.min(piece.event.end);
            }
            found.push(number);
        }
        found.sort_by_key(|number| (!self.0[*number].owed, self.0[*number].event.end));
        // Of those that need not be taken, and are alike, the first to end is: the others can do later what it could.
        // But not if more is left out for it than for the other, as it began later.
        let mut kept: Vec<usize> = Vec::with_capacity(found.len());
        for number in found {
            let began = self.0[number].event.begin;
            let stands_in = |other: &usize| {
                let is_alike = !self.0[*other].owed && self.0[*other].like == self.0[number].like;
                is_alike && self.left_out(place, *other).all(|out| self.0[out].event.end < began)
            };
            if self.0[number].owed || !kept.iter().any(stands_in) {
                kept.push(number);
            }
        }
        kept
    }

    /// Those left out for good when `call` is taken: they had ended before it began, and have done nothing.
    fn left_out<S>(&self, place: &Place<S>, call: usize) -> impl Iterator<Item = usize> {
        let began = self.0[call].event.begin;
        let out = move |number: &usize| !place.taken.has(*number) && self.0[*number].event.end < began;
        (place.first..call).filter(out)
    }
}

/// A place in the search: what was taken or left out, what that came to, and where the first call stands that was
/// neither.
struct Place<S> {
    taken: Taken,
    state: S,
    first: usize,
    /// Calls among the taken that had to be.
    owed: usize,
}

/// Searches for an order of the whole history, in at most `steps_max` steps for the longest of several
/// searches, which have as many again together.
///
/// Who ended first is tried first. Where that leads astray early on, the rest of the search is spent far from any
/// order; so searches that are given up after a while are begun anew, each with another taste, before one is made to
/// the end.
///
/// # Errors
/// [`Fault::Broken`] with the calls that fit nowhere; [`Fault::Undecided`].
pub fn check<M: Model>(model: &M, events: &[Interval<M::Call, M::Answer>], steps_max: u64) -> Result<(), Fault> {
    let (pieces, at_once) = (Pieces::new(model, events), steps_max / 32);
    for taste in 0..32 {
        match search(model, &pieces, at_once, taste) {
            Err(Fault::Undecided(..)) => {}
            decided => return decided,
        }
    }
    search(model, &pieces, steps_max, 0)
}

/// A search with a taste: 0 always tries first who ended first.
fn search<M: Model>(
    model: &M,
    pieces: &Pieces<'_, M::Call, M::Answer>,
    steps_max: u64,
    taste: u64,
) -> Result<(), Fault> {
    let mut rng = fastrand::Rng::with_seed(taste);
    let (calls, owed) = (&pieces.0, pieces.owed());
    let start = Place { taken: Taken::none(calls.len()), state: model.start(), first: 0, owed: 0 };
    let mut seen: HashSet<(Taken, M::State)> = HashSet::new();
    let mut deepest: Option<(usize, Vec<usize>, M::State)> = None;
    let (mut places, mut steps) = (vec![start], 0);
    while let Some(place) = places.pop() {
        if place.owed == owed {
            return Ok(());
        }
        let mut next = pieces.next(&place);
        if taste > 0 {
            let mut tasted: Vec<(usize, usize)> = Vec::with_capacity(next.len());
            tasted.extend(next.iter().enumerate().map(|(rank, call)| (rank + rng.usize(0..4), *call)));
            tasted.sort_by_key(|(rank, _)| *rank);
            next = tasted.into_iter().map(|(_, call)| call).collect();
        }
        if deepest.as_ref().is_none_or(|(most, ..)| place.owed > *most) {
            deepest = Some((place.owed, next.clone(), place.state.clone()));
        }
        // What changes nothing and may be next may as well be next: in any order that has it later it can be moved to
        // here, unless one that would be left out for it comes before it there.
        let is_here = |call: &usize| {
            let Piece { event: Interval { call: asked, answer, .. }, owed, .. } = &calls[*call];
            let reads = *owed && answer.as_ref().is_some_and(|answer| model.only_reads(asked, answer));
            reads
                && pieces.left_out(&place, *call).next().is_none()
                && model.step(&place.state, asked, answer.as_ref()).first() == Some(&place.state)
        };
        let next = next.iter().copied().find(is_here).map_or(next, |read| vec![read]);
        // Pushed last, tried first: who ended first has the least choice.
        for call in next.into_iter().rev() {
            let Piece { event: Interval { call: asked, answer, .. }, owed, .. } = &calls[call];
            steps += 1;
            if steps > steps_max {
                return Err(Fault::Undecided(steps_max, stuck(model, pieces, deepest)));
            }
            for state in model.step(&place.state, asked, answer.as_ref()).into_iter().rev() {
                // No process can tell whether a call that need not be taken, and changes nothing, was made.
                if !owed && state == place.state {
                    continue;
                }
                let mut taken = place.taken.with(call);
                pieces.left_out(&place, call).for_each(|out| taken.take(out));
                if !seen.insert((taken.clone(), state.clone())) {
                    continue;
                }
                let mut first = place.first;
                while first < calls.len() && taken.has(first) {
                    first += 1;
                }
                places.push(Place { taken, state, first, owed: place.owed + usize::from(*owed) });
            }
        }
    }
    Err(Fault::Broken(stuck(model, pieces, deepest)))
}

/// Where a search has got stuck that came furthest here.
fn stuck<M: Model>(
    model: &M,
    pieces: &Pieces<'_, M::Call, M::Answer>,
    deepest: Option<(usize, Vec<usize>, M::State)>,
) -> String {
    let (taken, next, state) = deepest.unwrap_or((0, Vec::new(), model.start()));
    let shown: Vec<String> = next.iter().take(SHOWN).map(|call| format!("{:?}", pieces.0[*call].event)).collect();
    let (owed, fits) = (pieces.owed(), shown.join("; "));
    format!("after {taken} of {owed} calls that had to be taken, in state {state:?}, none of these fits: {fits}")
}

/// Searches for an order key by key; keys that one call touches together are judged together.
///
/// # Errors
/// As [`check`]; `steps_max` is for each part.
pub fn check_by_key<M: Keyed>(model: &M, events: &[Interval<M::Call, M::Answer>], steps_max: u64) -> Result<(), Fault> {
    let keys: Vec<Vec<usize>> = events.iter().map(|event| model.keys(&event.call)).collect();
    let mut parts = Parts::default();
    for touched in &keys {
        if let Some((first, others)) = touched.split_first() {
            parts.part(*first);
            others.iter().for_each(|other| parts.join(*first, *other));
        }
    }
    let all: Vec<usize> = parts.0.keys().copied().collect();
    let mut undecided = Ok(());
    for part in all {
        if parts.part(part) != part {
            continue;
        }
        let mut ours = Vec::new();
        for (event, touched) in events.iter().zip(&keys) {
            if touched.first().is_none_or(|key| parts.part(*key) == part) {
                ours.push(event.clone());
            }
        }
        match check(model, &ours, steps_max) {
            Ok(()) => {}
            Err(fault @ Fault::Undecided(..)) => undecided = Err(fault),
            broken => return broken,
        }
    }
    undecided
}

/// Keys that belong together: each leads to another of its part, the last to itself.
#[derive(Default)]
struct Parts(BTreeMap<usize, usize>);

impl Parts {
    fn part(&mut self, key: usize) -> usize {
        let mut at = key;
        loop {
            let next = *self.0.entry(at).or_insert(at);
            if next == at {
                return at;
            }
            at = next;
        }
    }

    fn join(&mut self, one: usize, other: usize) {
        let (one, other) = (self.part(one), self.part(other));
        self.0.insert(one.max(other), one.min(other));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers under keys: what the anomalies below are of.
    struct Numbers(usize);

    #[derive(Clone, Debug, PartialEq, Eq)]
    enum Ask {
        Write(usize, u64),
        Read(usize),
        Add(usize, u64),
        /// Compare and set.
        Swap(usize, u64, u64),
        /// Set to nothing, or left as it is.
        Sweep(usize),
        WriteBoth(u64),
        ReadBoth,
    }

    #[derive(Clone, Debug, PartialEq, Eq)]
    enum Told {
        Done,
        Number(u64),
        Both(u64, u64),
        Swapped(bool),
    }

    use Ask::{Add, Read, ReadBoth, Swap, Sweep, Write, WriteBoth};
    use Told::{Both, Done, Number, Swapped};

    impl Model for Numbers {
        type State = Vec<u64>;
        type Call = Ask;
        type Answer = Told;

        fn start(&self) -> Vec<u64> {
            vec![0; self.0]
        }

        fn step(&self, state: &Vec<u64>, call: &Ask, answer: Option<&Told>) -> Vec<Vec<u64>> {
            let mut next = state.clone();
            let told = match call {
                Write(key, number) => {
                    next[*key] = *number;
                    Done
                }
                Read(key) => Number(state[*key]),
                // Answered with what it was before.
                Add(key, number) => {
                    next[*key] += number;
                    Number(state[*key])
                }
                Swap(key, from, to) => {
                    let swaps = state[*key] == *from;
                    if swaps {
                        next[*key] = *to;
                    }
                    Swapped(swaps)
                }
                Sweep(_) if answer.is_some_and(|answer| *answer != Done) => return vec![],
                Sweep(key) => {
                    let left = next.clone();
                    next[*key] = 0;
                    return vec![left, next];
                }
                WriteBoth(number) => {
                    next.fill(*number);
                    Done
                }
                ReadBoth => Both(state[0], state[1]),
            };
            if answer.is_none_or(|answer| *answer == told) { vec![next] } else { vec![] }
        }

        fn only_reads(&self, call: &Ask, answer: &Told) -> bool {
            matches!(call, Read(_) | ReadBoth) || *answer == Swapped(false)
        }

        fn may_do_nothing(&self, call: &Ask, answer: &Told) -> bool {
            matches!((call, answer), (Sweep(_), Done))
        }
    }

    impl Keyed for Numbers {
        fn keys(&self, call: &Ask) -> Vec<usize> {
            match call {
                Write(key, _) | Read(key) | Add(key, _) | Swap(key, ..) | Sweep(key) => vec![*key],
                WriteBoth(_) | ReadBoth => vec![0, 1],
            }
        }
    }

    type Seen = Interval<Ask, Told>;

    fn event(begin: u64, end: u64, call: Ask, answer: Told) -> Seen {
        Interval { process: 0, begin, end, call, answer: Some(answer) }
    }

    fn lost(begin: u64, call: Ask) -> Seen {
        Interval { process: 0, begin, end: u64::MAX, call, answer: None }
    }

    fn holds(events: &[Seen]) -> bool {
        let (whole, parts) = (check(&Numbers(2), events, 1_000_000), check_by_key(&Numbers(2), events, 1_000_000));
        assert_eq!(whole.is_ok(), parts.is_ok(), "{events:?}");
        assert!(!matches!(whole, Err(Fault::Undecided(..))), "{events:?}");
        whole.is_ok()
    }

    #[test]
    fn right_histories_are_accepted() {
        assert!(holds(&[]));
        let check = |name: &str, events: &[Seen]| assert!(holds(events), "{name}");
        check("one after another", &[event(1, 2, Write(0, 5), Done), event(3, 4, Read(0), Number(5))]);
        check(
            "a read beside a write sees either",
            &[event(1, 6, Write(0, 5), Done), event(2, 3, Read(0), Number(0)), event(4, 5, Read(0), Number(5))],
        );
        check(
            "a write whose answer was lost was made, late",
            &[
                lost(1, Write(0, 5)),
                event(2, 3, Read(0), Number(0)),
                event(4, 5, Write(0, 6), Done),
                event(6, 7, Read(0), Number(5)),
            ],
        );
        check("or was not", &[lost(1, Write(0, 5)), event(2, 3, Read(0), Number(0)), event(4, 5, Read(0), Number(0))]);
        check(
            "two keys at once",
            &[event(1, 4, WriteBoth(3), Done), event(2, 3, ReadBoth, Both(0, 0)), event(5, 6, ReadBoth, Both(3, 3))],
        );
        check(
            "an order that is not that of the beginnings",
            &[
                event(1, 10, Add(0, 1), Number(10)),
                event(2, 9, Add(0, 10), Number(0)),
                event(11, 12, Read(0), Number(11)),
            ],
        );
    }

    #[test]
    fn anomalies_are_rejected() {
        let check = |name: &str, events: &[Seen]| assert!(!holds(events), "{name}");
        check(
            "lost update",
            &[event(1, 4, Add(0, 1), Number(0)), event(2, 5, Add(0, 1), Number(0)), event(6, 7, Read(0), Number(1))],
        );
        check(
            "stale read",
            &[event(1, 2, Write(0, 1), Done), event(3, 4, Write(0, 2), Done), event(5, 6, Read(0), Number(1))],
        );
        check("a value that no process wrote", &[event(1, 2, Write(0, 1), Done), event(3, 4, Read(0), Number(7))]);
        check("an acknowledged write that is lost", &[event(1, 2, Write(0, 1), Done), event(3, 4, Read(0), Number(0))]);
        // A write that was refused is not among the events.
        check(
            "a write that was refused, and is seen",
            &[event(1, 2, Write(0, 1), Done), event(5, 6, Read(0), Number(2))],
        );
        check("an increment that counts twice", &[event(1, 2, Add(0, 1), Number(0)), event(3, 4, Read(0), Number(2))]);
        check(
            "and one that was not answered",
            &[lost(1, Add(0, 1)), event(2, 3, Read(0), Number(1)), event(4, 5, Read(0), Number(2))],
        );
        check(
            "a comparison that holds twice",
            &[event(1, 4, Swap(0, 0, 1), Swapped(true)), event(2, 5, Swap(0, 0, 2), Swapped(true))],
        );
        check(
            "a comparison that held, and came back",
            &[
                event(1, 2, Swap(0, 0, 1), Swapped(true)),
                event(3, 4, Write(0, 2), Done),
                event(5, 6, Read(0), Number(1)),
            ],
        );
        check(
            "time that goes back between two readers",
            &[event(1, 10, Write(0, 1), Done), event(2, 3, Read(0), Number(1)), event(4, 5, Read(0), Number(0))],
        );
        check("two keys torn", &[event(1, 4, WriteBoth(1), Done), event(2, 3, ReadBoth, Both(1, 0))]);
        check("two keys torn for good", &[event(1, 2, WriteBoth(1), Done), event(3, 4, Read(1), Number(0))]);
        check("a lost write that came before it began", &[event(1, 2, Read(0), Number(5)), lost(3, Write(0, 5))]);
    }

    #[test]
    fn what_may_do_nothing_does_it_between_its_beginning_and_its_end_or_never() {
        let check = |name: &str, holds_so: bool, events: &[Seen]| assert_eq!(holds(events), holds_so, "{name}");
        let write = event(1, 2, Write(0, 5), Done);
        let read = |begin, number| event(begin, begin + 1, Read(0), Number(number));
        check("it did nothing", true, &[write.clone(), event(3, 4, Sweep(0), Done), read(5, 5), read(7, 5)]);
        check("it did something", true, &[write.clone(), event(3, 4, Sweep(0), Done), read(5, 0), read(7, 0)]);
        check("once", false, &[write.clone(), event(3, 4, Sweep(0), Done), read(5, 5), read(7, 0)]);
        check("late", true, &[write.clone(), event(3, 8, Sweep(0), Done), read(5, 5), read(7, 0)]);
        check("not before it began", false, &[write.clone(), read(3, 0), event(5, 6, Sweep(0), Done)]);
        check("not answered", true, &[write.clone(), lost(3, Sweep(0)), read(5, 5), read(7, 0)]);
        // Of two keys: what is read of the other neither keeps it from the first nor lets it come late.
        let other = |begin| event(begin, begin + 1, Read(1), Number(0));
        let sweep = event(3, 4, Sweep(0), Done);
        let both = |begin, one| event(begin, begin + 1, ReadBoth, Both(one, 0));
        check("a read of another key", true, &[write.clone(), sweep.clone(), other(5), both(7, 0)]);
        check("and once for good", false, &[write.clone(), sweep, other(5), both(7, 5), both(9, 0)]);
        // One that ends earlier than another like it, and began later, does not stand in for it.
        let both = |begin, end, one, two| event(begin, end, ReadBoth, Both(one, two));
        let sweeps = [event(3, 60, Sweep(0), Done), event(4, 6, Sweep(1), Done), event(10, 50, Sweep(0), Done)];
        let written = event(1, 2, WriteBoth(5), Done);
        check("another", true, &[&[written][..], &sweeps, &[both(5, 70, 0, 5), both(80, 81, 0, 0)]].concat());
        // Two that are the same do something twice.
        let again = event(4, 12, Write(0, 6), Done);
        let twice = [event(3, 11, Sweep(0), Done), event(3, 11, Sweep(0), Done)];
        check(
            "two",
            true,
            &[&[write.clone()][..], &twice, &[again.clone(), read(5, 0), read(7, 6), read(9, 0)]].concat(),
        );
        check("one", false, &[write, twice[0].clone(), again, read(5, 0), read(7, 6), read(9, 0)]);
    }

    #[test]
    fn many_that_may_do_nothing_do_not_keep_a_search_from_its_end() {
        // A write that has to be late, told only at the end, beside sweeps of everything.
        let mut events = vec![event(1, 100, Write(0, 1), Done)];
        events.extend((0..40).map(|n| event(2 + n, 200 + n, Sweep(n as usize % 2), Done)));
        events.extend((0..40).map(|n| lost(2 + n, Sweep(n as usize % 2))));
        events.extend((0..10).map(|n| event(50 + 2 * n, 51 + 2 * n, Write(1, n + 1), Done)));
        events.extend((0..10).map(|n| event(101 + 2 * n, 102 + 2 * n, ReadBoth, Both(1, 10))));
        assert_eq!(check(&Numbers(2), &events, 100_000), Ok(()));
        events.push(event(300, 301, ReadBoth, Both(1, 9)));
        assert!(matches!(check(&Numbers(2), &events, 100_000), Err(Fault::Broken(_))));
    }

    #[test]
    fn a_search_that_is_given_up_says_so() {
        let mut events: Vec<Seen> = (0..20).map(|n| lost(n, Write(0, n + 1))).collect();
        events.push(event(30, 31, Read(0), Number(77)));
        assert!(matches!(check(&Numbers(1), &events, 1_000), Err(Fault::Undecided(1_000, _))));
        assert!(matches!(check_by_key(&Numbers(1), &events, 1_000), Err(Fault::Undecided(1_000, _))));
    }

    /// Tries every order.
    fn by_force(events: &[Seen], taken: &mut Vec<usize>, state: &Vec<u64>) -> bool {
        let left = |taken: &[usize]| (0..events.len()).filter(|at| !taken.contains(at)).collect::<Vec<_>>();
        if left(taken).iter().all(|at| events[*at].answer.is_none()) {
            return true;
        }
        for at in left(taken) {
            if left(taken).iter().any(|other| events[*other].end < events[at].begin) {
                continue;
            }
            for next in Numbers(2).step(state, &events[at].call, events[at].answer.as_ref()) {
                taken.push(at);
                if by_force(events, taken, &next) {
                    return true;
                }
                taken.pop();
            }
        }
        false
    }

    fn ask(rng: &mut fastrand::Rng) -> Ask {
        let (key, one, other) = (rng.usize(0..2), rng.u64(0..3), rng.u64(0..3));
        match rng.u8(0..8) {
            0 => Write(key, one),
            1 => Read(key),
            2 => Add(key, one),
            3 => Swap(key, one, other),
            4 => WriteBoth(one),
            5 => ReadBoth,
            _ => Sweep(key),
        }
    }

    /// A history that happened: each call at one moment between its beginning and its end; some were not answered.
    fn simulated(rng: &mut fastrand::Rng, calls: usize) -> Vec<Seen> {
        let (mut events, mut under_way, mut state, mut now) = (Vec::new(), Vec::new(), vec![0, 0], 0);
        while events.len() < calls || !under_way.is_empty() {
            now += 1;
            if events.len() < calls && (under_way.len() < 4 && rng.bool() || under_way.is_empty()) {
                under_way.push((events.len(), false));
                events.push(lost(now, ask(rng)));
                continue;
            }
            let at = rng.usize(0..under_way.len());
            let (number, done) = under_way[at];
            let model = Numbers(2);
            if !done {
                if rng.u8(0..8) == 0 {
                    // It never happens.
                    under_way.swap_remove(at);
                    continue;
                }
                let asked = events[number].call.clone();
                let all = (0..16).flat_map(|n| [Number(n), Both(n / 4, n % 4)]);
                let all = all.chain([Done, Swapped(true), Swapped(false)]).chain((16..64).map(Number));
                let all: Vec<Told> = all.chain((0..64).flat_map(|a| (0..64).map(move |b| Both(a, b)))).collect();
                let told = all.into_iter().find(|told| !model.step(&state, &asked, Some(told)).is_empty()).unwrap();
                let mut left = model.step(&state, &asked, Some(&told));
                state = left.swap_remove(rng.usize(0..left.len()));
                events[number].answer = Some(told);
                under_way[at].1 = true;
            } else {
                under_way.swap_remove(at);
                if rng.u8(0..8) == 0 {
                    events[number].answer = None;
                } else {
                    events[number].end = now;
                }
            }
        }
        events
    }

    #[test]
    fn simulated_histories_are_accepted_and_the_search_agrees_with_force() {
        let (mut rejected, mut accepted) = (0, 0);
        for seed in 0..3_000 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let long = simulated(&mut rng, 40);
            assert!(holds(&long), "seed {seed}: {long:?}");
            let calls = rng.usize(1..7);
            let mut events = simulated(&mut rng, calls);
            assert!(by_force(&events, &mut Vec::new(), &vec![0, 0]), "seed {seed}: {events:?}");
            assert!(holds(&events), "seed {seed}: {events:?}");
            let at = rng.usize(0..events.len());
            let other = match &events[at].answer {
                Some(Number(number)) => Some(Number(rng.u64(0..number + 3))),
                Some(Both(a, b)) => Some(Both(rng.u64(0..a + 2), rng.u64(0..b + 2))),
                Some(Swapped(swapped)) => Some(Swapped(!swapped)),
                other => other.clone(),
            };
            events[at].answer = other;
            let forced = by_force(&events, &mut Vec::new(), &vec![0, 0]);
            assert_eq!(holds(&events), forced, "seed {seed}: {events:?}");
            *if forced { &mut accepted } else { &mut rejected } += 1;
        }
        assert!(rejected > 300 && accepted > 300, "{rejected} rejected, {accepted} accepted");
    }
}
