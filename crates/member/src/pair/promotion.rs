//! Whether a standby may take the place of its primary, and what that costs.
//!
//! what its store says, what the primary has answered → [`Candidate::decide`] → [`Promotion`], or why not
//!
//! Invariant: a store that holds part of a copy is never promoted, whatever the operator insists on.

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
    /// That it is a standby which holds a state.
    ///
    /// # Errors
    /// [`Error::NotStandby`], [`Error::Part`].
    pub fn check(&self) -> Result<u64> {
        if self.record.role != Role::Standby {
            return Err(Error::NotStandby { role: self.record.role, epoch: self.record.epoch });
        }
        let applied = self.applied.filter(|_| !self.record.pair.is_empty());
        applied.ok_or_else(|| Error::Part { peer: self.record.peer.clone() })
    }

    /// The promotion; `force`: also where the primary was not told, or has more.
    ///
    /// # Errors
    /// [`Error::NotStandby`], [`Error::Part`]; [`Error::Lacks`], [`Error::NotFenced`]: without `force`.
    pub fn decide(&self, fenced: Fenced, force: bool) -> Result<Promotion> {
        let applied = self.check()?;
        let epoch = self.record.epoch + 1;
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
            Fenced::Not if !force => return Err(Error::NotFenced { why: String::new(), cost: self.cost(applied) }),
            Fenced::Not => (None, self.cost(applied)),
        };
        Ok(Promotion { epoch, lacks, told })
    }

    /// What it may cost where the primary is not asked.
    fn cost(&self, applied: u64) -> String {
        let Record { in_step, heard, .. } = *self.record;
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
        for fenced in [Fenced::At(0), Fenced::Not] {
            let candidate = Candidate { record: &standby(true), applied: None };
            assert!(matches!(candidate.decide(fenced, true), Err(Error::Part { .. })));
            // Nor a store that has followed none.
            let record = Record::new(Role::Standby);
            let candidate = Candidate { record: &record, applied: Some(0) };
            assert!(matches!(candidate.decide(fenced, true), Err(Error::Part { .. })));
        }
    }

    #[test]
    fn only_a_standby_is_promoted() {
        for role in [Role::Primary, Role::Deposed] {
            let record = Record { role, ..standby(false) };
            let candidate = Candidate { record: &record, applied: Some(12) };
            assert!(matches!(candidate.decide(Fenced::At(12), true), Err(Error::NotStandby { .. })));
        }
    }

    #[test]
    fn what_it_costs_is_told_and_insisted_on() {
        let record = standby(false);
        let candidate = |applied| Candidate { record: &record, applied: Some(applied) };
        let whole = candidate(12).decide(Fenced::At(12), false).unwrap();
        assert_eq!((whole.epoch, whole.lacks), (5, Some(0)));
        assert!(matches!(candidate(9).decide(Fenced::At(12), false), Err(Error::Lacks { lacks: 3 })));
        assert_eq!(candidate(9).decide(Fenced::At(12), true).unwrap().lacks, Some(3));
        assert!(matches!(candidate(9).decide(Fenced::Not, false), Err(Error::NotFenced { .. })));
        let forced = candidate(9).decide(Fenced::Not, true).unwrap();
        assert_eq!((forced.epoch, forced.lacks), (5, None));
        assert!(forced.told.contains("lacks 3"), "{}", forced.told);
        let in_step = standby(true);
        let forced = Candidate { record: &in_step, applied: Some(9) }.decide(Fenced::Not, true).unwrap();
        assert!(forced.told.contains("no acknowledged write is lost"), "{}", forced.told);
    }
}
