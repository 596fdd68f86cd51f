//! Whether a standby may take the place of its primary, and what that costs.
//!
//! what its store says, what the primary has answered → [`Candidate::decide`] → [`Promotion`], or why not
//!
//! Invariants:
//! 1. A store that holds part of a copy is never promoted, whatever the operator insists on.
//! 2. Numbers of operations are compared within one life of the primary only: in another they count other operations.

use crate::error::{Error, Result};
use crate::pair::record::{Record, Role};

/// A store that is to be promoted.
pub struct Candidate<'c> {
    /// What it keeps.
    pub record: &'c Record,
    /// The last operation that it has applied; `None`: what it holds is part of a copy.
    pub applied: Option<u64>,
}

/// What the primary before has said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fenced {
    /// It answers no more, and has applied the operations up to this one.
    At(u64),
    /// It answers no more, and is of another life than what the candidate holds: their numbers do not compare.
    Other,
    /// It was not told: it cannot be reached, or was not to be.
    Not,
}

/// A promotion that may be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Promotion {
    /// The epoch that begins with it.
    pub epoch: u64,
    /// How many operations of the primary it gives up; `None`: not known.
    pub lacks: Option<u64>,
    /// What it costs, for the operator.
    pub told: String,
}

impl Candidate<'_> {
    /// That it is a standby which holds a state; `force`: or a primary before, which holds all that it acknowledged.
    ///
    /// # Errors
    /// [`Error::NotStandby`], [`Error::Part`]; [`Error::WasPrimary`]: without `force`.
    pub fn check(&self, force: bool) -> Result<u64> {
        let (role, epoch) = (self.record.role, self.record.epoch);
        match role {
            Role::Primary => return Err(Error::NotStandby { role, epoch }),
            Role::Deposed if !force => return Err(Error::WasPrimary { epoch }),
            Role::Standby | Role::Deposed => {}
        }
        let applied = self.applied.filter(|_| !self.record.pair.is_empty());
        applied.ok_or_else(|| Error::Part { peer: self.record.peer.clone() })
    }

    /// The promotion, with which this epoch begins; `force`: also where the primary was not told, has more, or is of
    /// another life.
    ///
    /// # Errors
    /// As [`Candidate::check`]; [`Error::Lacks`], [`Error::OtherLife`], [`Error::NotFenced`]: without `force`.
    pub fn decide(&self, fenced: Fenced, epoch: u64, force: bool) -> Result<Promotion> {
        let applied = self.check(force)?;
        let (lacks, told) = match fenced {
            Fenced::At(theirs) => {
                let lacks = theirs.saturating_sub(applied);
                if lacks > 0 && !force {
                    return Err(Error::Lacks { lacks });
                }
                let told = match lacks {
                    0 => "the primary before answers no more, and this one has everything that it had".to_owned(),
                    _ => format!("the primary before answers no more, and had {lacks} operations that are given up"),
                };
                (Some(lacks), told)
            }
            Fenced::Other if !force => return Err(Error::OtherLife { cost: self.cost(applied) }),
            Fenced::Other => (None, format!("the one before answers no more, but: {}", self.cost(applied))),
            Fenced::Not if !force => return Err(Error::NotFenced { why: String::new(), cost: self.cost(applied) }),
            Fenced::Not => (None, self.cost(applied)),
        };
        Ok(Promotion { epoch, lacks, told })
    }

    /// What it may cost where what the primary has is not known.
    pub(super) fn cost(&self, applied: u64) -> String {
        let Record { in_step, heard, .. } = *self.record;
        if self.record.role == Role::Deposed {
            return "this store was the primary's, and has everything that it acknowledged: what the server that was \
                    promoted over it has acknowledged since is lost"
                .into();
        }
        if in_step {
            return "it was in step with a synchronous primary: no acknowledged write is lost, unless that primary was \
                    told since then to go on without it"
                .into();
        }
        let known = match heard.saturating_sub(applied) {
            0 => "it has everything that it has heard of".to_owned(),
            lacks => format!("it lacks {lacks} operations that it has heard of"),
        };
        format!("{known} (the primary was at {heard} then, this one is at {applied}): what was written later is lost")
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

    use super::*;

    fn standby(in_step: bool) -> Record {
        Record { epoch: 4, pair: "p".into(), in_step, heard: 12, ..Record::new(Role::Standby) }
    }

    #[test]
    fn part_of_a_copy_is_never_promoted() {
        for fenced in [Fenced::At(0), Fenced::Other, Fenced::Not] {
            let candidate = Candidate { record: &standby(true), applied: None };
            assert!(matches!(candidate.decide(fenced, 5, true), Err(Error::Part { .. })));
            // Nor a store that has followed none.
            let record = Record::new(Role::Standby);
            let candidate = Candidate { record: &record, applied: Some(0) };
            assert!(matches!(candidate.decide(fenced, 5, true), Err(Error::Part { .. })));
            let record = Record { role: Role::Deposed, ..standby(false) };
            let candidate = Candidate { record: &record, applied: None };
            assert!(matches!(candidate.decide(fenced, 5, true), Err(Error::Part { .. })));
        }
    }

    #[test]
    fn only_a_standby_is_promoted_and_by_force_a_primary_before() {
        let record = Record { role: Role::Primary, ..standby(false) };
        let candidate = Candidate { record: &record, applied: Some(12) };
        assert!(matches!(candidate.decide(Fenced::At(12), 5, true), Err(Error::NotStandby { .. })));
        let record = Record { role: Role::Deposed, ..standby(false) };
        let candidate = Candidate { record: &record, applied: Some(12) };
        for fenced in [Fenced::Not, Fenced::Other] {
            assert!(matches!(candidate.decide(fenced, 5, false), Err(Error::WasPrimary { epoch: 4 })));
            let again = candidate.decide(fenced, 5, true).unwrap();
            assert_eq!((again.epoch, again.lacks), (5, None));
            assert!(again.told.contains("has everything that it acknowledged"), "{}", again.told);
        }
    }

    #[test]
    fn what_is_lacked_of_another_life_is_not_known() {
        let record = standby(false);
        let candidate = Candidate { record: &record, applied: Some(12) };
        let refused = candidate.decide(Fenced::Other, 5, false).unwrap_err();
        assert!(matches!(&refused, Error::OtherLife { cost } if cost.contains("at 12")), "{refused}");
        assert!(refused.to_string().contains("--force"), "{refused}");
        assert_eq!(candidate.decide(Fenced::Other, 5, true).unwrap().lacks, None);
    }

    #[test]
    fn what_it_costs_is_told_and_insisted_on() {
        let record = standby(false);
        let candidate = |applied| Candidate { record: &record, applied: Some(applied) };
        let whole = candidate(12).decide(Fenced::At(12), 5, false).unwrap();
        assert_eq!((whole.epoch, whole.lacks), (5, Some(0)));
        assert!(matches!(candidate(9).decide(Fenced::At(12), 5, false), Err(Error::Lacks { lacks: 3 })));
        assert_eq!(candidate(9).decide(Fenced::At(12), 5, true).unwrap().lacks, Some(3));
        assert!(matches!(candidate(9).decide(Fenced::Not, 5, false), Err(Error::NotFenced { .. })));
        let forced = candidate(9).decide(Fenced::Not, 5, true).unwrap();
        assert_eq!((forced.epoch, forced.lacks), (5, None));
        assert!(forced.told.contains("lacks 3"), "{}", forced.told);
        let in_step = standby(true);
        let forced = Candidate { record: &in_step, applied: Some(9) }.decide(Fenced::Not, 5, true).unwrap();
        assert!(forced.told.contains("no acknowledged write is lost"), "{}", forced.told);
    }
}
