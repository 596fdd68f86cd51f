//! What a power cut takes back of an object, on top of what the object is.
//!
//! call, asked durable or only applied → a version more · shown or acknowledged as durable → what is before it stays ·
//! power cut → one of the versions that are left
//!
//! A store keeps a prefix of what it has applied: all that is durable, and perhaps more (promises 1, 2 and 5). So a
//! state here is the list of versions since the last that is known to be durable, and a power cut leaves any of them.
//!
//! Invariants:
//! 1. There is always a version; the first survives every power cut.
//! 2. A version whose writer asked for durability is durable once any process was shown what it wrote.

use crate::linear::{Keyed, Model};

/// A model that says which of its parts a call shows.
pub trait Parted: Model {
    /// The parts that an answer shows of what was there.
    fn shown(&self, call: &Self::Call, answer: &Self::Answer) -> Vec<usize>;

    /// Whether a part is the same in two states.
    fn same(&self, part: usize, one: &Self::State, other: &Self::State) -> bool;

    /// The parts that a call touches at all: what is judged together.
    fn touched(&self, call: &Self::Call) -> Vec<usize>;
}

/// How a call is to last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Lasts {
    /// Acknowledged when durable.
    Durably,
    /// Acknowledged when applied.
    UntilPowerLoss,
}

/// What happens to an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Deed<C> {
    /// A call.
    Ask(C, Lasts),
    /// Power was lost: what was not durable may be gone.
    PowerLoss,
    /// Everything was made durable.
    Stop,
}

/// The versions of an object since the last that is known to be durable, each with how it was to last.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Versions<S>(Vec<(S, Lasts)>);

/// A model under power cuts.
pub struct Lasting<M>(pub M);

impl<M: Parted> Lasting<M> {
    /// The first version that has to stay, once what the call looks at was shown.
    fn shown(&self, versions: &[(M::State, Lasts)], call: &M::Call, answer: &M::Answer) -> usize {
        let Some((now, _)) = versions.last() else { return 0 };
        let of_part = |part: usize| {
            // Where it was last written.
            let others = versions.iter().rposition(|(version, _)| !self.0.same(part, version, now));
            let written = others.map_or(0, |other| other + 1);
            if versions[written].1 == Lasts::Durably { written } else { 0 }
        };
        self.0.shown(call, answer).into_iter().map(of_part).max().unwrap_or(0)
    }
}

impl<M: Parted> Model for Lasting<M> {
    type State = Versions<M::State>;
    type Call = Deed<M::Call>;
    type Answer = M::Answer;

    fn start(&self) -> Self::State {
        Versions(vec![(self.0.start(), Lasts::Durably)])
    }

    fn step(&self, state: &Self::State, act: &Self::Call, answer: Option<&M::Answer>) -> Vec<Self::State> {
        let versions = &state.0;
        let Some((now, _)) = versions.last() else { return Vec::new() };
        let (call, lasts) = match act {
            Deed::Ask(call, lasts) => (call, *lasts),
            Deed::Stop => return vec![Versions(vec![(now.clone(), Lasts::Durably)])],
            Deed::PowerLoss => {
                // The last first: mostly it is nothing that is lost.
                let mut left: Vec<Self::State> = Vec::new();
                for (version, _) in versions.iter().rev() {
                    let version = Versions(vec![(version.clone(), Lasts::Durably)]);
                    if !left.contains(&version) {
                        left.push(version);
                    }
                }
                return left;
            }
        };
        let after = self.0.step(now, call, answer);
        let shown = answer.map_or(0, |answer| self.shown(versions, call, answer));
        let next = |after: M::State| {
            if after == *now {
                return Versions(versions[shown..].to_vec());
            }
            if answer.is_some() && lasts == Lasts::Durably {
                return Versions(vec![(after, lasts)]);
            }
            let mut next = versions[shown..].to_vec();
            next.push((after, lasts));
            Versions(next)
        };
        after.into_iter().map(next).collect()
    }

    // That a read shows something, and so keeps it, is told by the state that it leaves.
    fn only_reads(&self, act: &Self::Call, answer: &M::Answer) -> bool {
        matches!(act, Deed::Ask(call, _) if self.0.only_reads(call, answer))
    }

    fn may_do_nothing(&self, act: &Self::Call, answer: &M::Answer) -> bool {
        matches!(act, Deed::Ask(call, _) if self.0.may_do_nothing(call, answer))
    }
}

impl<M: Parted> Keyed for Lasting<M> {
    fn keys(&self, act: &Self::Call) -> Vec<usize> {
        match act {
            Deed::Ask(call, _) => self.0.touched(call),
            Deed::PowerLoss | Deed::Stop => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linear::{Interval, check, check_by_key};

    /// Two numbers.
    struct Pair;

    #[derive(Clone, Debug, PartialEq)]
    enum Ask {
        Write(usize, u32),
        Read(usize),
    }

    impl Model for Pair {
        type State = [u32; 2];
        type Call = Ask;
        type Answer = u32;

        fn start(&self) -> [u32; 2] {
            [0; 2]
        }

        fn step(&self, state: &[u32; 2], call: &Ask, answer: Option<&u32>) -> Vec<[u32; 2]> {
            match call {
                Ask::Write(at, number) => {
                    let mut next = *state;
                    next[*at] = *number;
                    vec![next]
                }
                Ask::Read(at) if answer.is_none_or(|answer| *answer == state[*at]) => vec![*state],
                Ask::Read(_) => vec![],
            }
        }
    }

    impl Parted for Pair {
        fn shown(&self, call: &Ask, _: &u32) -> Vec<usize> {
            match call {
                Ask::Read(at) => vec![*at],
                Ask::Write(..) => vec![],
            }
        }

        fn same(&self, part: usize, one: &[u32; 2], other: &[u32; 2]) -> bool {
            one[part] == other[part]
        }

        fn touched(&self, call: &Ask) -> Vec<usize> {
            match call {
                Ask::Read(at) | Ask::Write(at, _) => vec![*at],
            }
        }
    }

    #[test]
    fn a_power_cut_takes_back_what_was_not_durable_and_nothing_else() {
        use Lasts::{Durably, UntilPowerLoss};
        let history = |acts: &[(Deed<Ask>, Option<u32>)]| -> Vec<Interval<Deed<Ask>, u32>> {
            let event = |(at, (call, answer)): (usize, &(Deed<Ask>, Option<u32>))| {
                let begin = at as u64 * 2;
                let end = if answer.is_some() { begin + 1 } else { u64::MAX };
                Interval { process: 0, begin, end, call: call.clone(), answer: *answer }
            };
            acts.iter().enumerate().map(event).collect()
        };
        let write = |at, number, lasts| (Deed::Ask(Ask::Write(at, number), lasts), Some(0));
        let lost = |at, number, lasts| (Deed::Ask(Ask::Write(at, number), lasts), None);
        let read = |at, number| (Deed::Ask(Ask::Read(at), Durably), Some(number));
        let (cut, stop) = ((Deed::PowerLoss, Some(0)), (Deed::Stop, Some(0)));
        let whole = |acts: &[_]| check(&Lasting(Pair), &history(acts), 10_000).is_ok();
        let by_key = |acts: &[_]| check_by_key(&Lasting(Pair), &history(acts), 10_000).is_ok();
        let check = |acts: &[_], expected: bool| {
            assert_eq!(whole(acts), expected, "{acts:?}");
            assert!(by_key(acts) || !expected, "{acts:?}");
        };
        check(&[write(0, 1, UntilPowerLoss), cut.clone(), read(0, 0)], true);
        check(&[write(0, 1, UntilPowerLoss), cut.clone(), read(0, 1)], true);
        check(&[write(0, 1, UntilPowerLoss), read(0, 0)], false);
        check(&[write(0, 1, UntilPowerLoss), stop, cut.clone(), read(0, 0)], false);
        check(&[write(0, 1, Durably), cut.clone(), read(0, 0)], false);
        // What was applied before what is durable is durable.
        check(&[write(0, 1, UntilPowerLoss), write(1, 2, Durably), cut.clone(), read(0, 0)], false);
        // And what was applied after what was taken back is gone.
        let both = [write(0, 1, UntilPowerLoss), write(1, 2, UntilPowerLoss), cut.clone()];
        check(&[&both[..], &[read(0, 0), read(1, 2)]].concat(), false);
        check(&[&both[..], &[read(0, 1), read(1, 0)]].concat(), true);
        // What was taken back does not come again.
        check(&[write(0, 1, UntilPowerLoss), cut.clone(), read(0, 0), cut.clone(), read(0, 1)], false);
        // Shown is durable, if its writer asked for that.
        check(&[lost(0, 1, Durably), read(0, 1), cut.clone(), read(0, 0)], false);
        check(&[lost(0, 1, UntilPowerLoss), read(0, 1), cut.clone(), read(0, 0)], true);
        check(&[lost(0, 1, Durably), read(0, 1), write(0, 3, UntilPowerLoss), cut.clone(), read(0, 1)], true);
        check(&[lost(0, 1, Durably), read(1, 0), cut, read(0, 0)], true);
    }
}
