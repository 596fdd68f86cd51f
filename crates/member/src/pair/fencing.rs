//! How the primary before is told that it is none, and what it is asked first.
//!
//! ```text
//! candidate → [`Asking::fence`]: how the primary stands → refused, or fenced on the same conditions → [`Fenced`]
//! the primary → [`refusal`]: whether the conditions hold, once it answers nothing
//! ```
//!
//! Invariants:
//! 1. Without force no primary is fenced over which its standby cannot be promoted: of another life, with operations
//!    that the standby lacks and is not sent.
//! 2. No promotion has the epoch of another one that was heard of.

use esker_peers::TlsFiles;
use esker_wire::proto::chain as proto;

use crate::error::{Error, Result};
use crate::pair::calls::Calls;
use crate::pair::promotion::{Candidate, Fenced};
use crate::pair::record::{Record, Role};
use crate::pair::stand::Stand;

/// Why the primary is not fenced.
enum Unfenced {
    /// Whatever it would say.
    Refused(Error),
    /// It cannot be told, or does not heed it.
    Not(String),
}

/// A candidate that asks for its primary to be fenced.
pub(super) struct Asking<'a> {
    pub candidate: Candidate<'a>,
    /// The primary, as `HOST:PORT`.
    pub address: &'a str,
    pub tls: Option<&'a TlsFiles>,
    /// It runs, and takes what the primary keeps for it.
    pub takes: bool,
    /// Also where what it lacks is not known, or is given up.
    pub force: bool,
}

/// The epoch of a promotion of the store that is called `store`, where the primary stands like this.
fn next_epoch(own: &Record, theirs: &Record, store: &str) -> u64 {
    // Deposed by this store: the promotion that did not come to its end is tried again.
    let is_again = theirs.role == Role::Deposed && theirs.store == store;
    (own.epoch + 1).max(if is_again { theirs.epoch } else { theirs.epoch + 1 })
}

impl Asking<'_> {
    /// That a fence is of use; what it is to say beside what `fence` says already.
    fn conditions(
        &self,
        stand: &Stand,
        fence: proto::FenceRequest,
    ) -> std::result::Result<proto::FenceRequest, Unfenced> {
        let (Self { takes, force, .. }, own) = (self, self.candidate.record);
        let applied = self.candidate.check(*force).map_err(Unfenced::Refused)?;
        if *force {
            return Ok(fence);
        }
        if fence.epoch > own.epoch + 1 {
            return Err(Unfenced::Refused(Error::Promoted { epoch: stand.record.epoch }));
        }
        if stand.record.life != own.life {
            return Err(Unfenced::Refused(Error::OtherLife { cost: self.candidate.cost(applied) }));
        }
        let lacks = stand.applied.saturating_sub(applied);
        if lacks > 0 && !takes {
            return Err(Unfenced::Refused(Error::Lacks { lacks }));
        }
        let (life, own) = (own.life.clone(), Some(applied));
        Ok(proto::FenceRequest { life, applied_max: own.filter(|_| !*takes), has: own.filter(|_| *takes), ..fence })
    }

    async fn ask(&self, epoch: &mut u64, fence: proto::FenceRequest) -> std::result::Result<Fenced, Unfenced> {
        let own = self.candidate.record;
        let mut calls = Calls::connect(self.address, self.tls).await.map_err(Unfenced::Not)?;
        let stand = calls.stand().await.map_err(Unfenced::Not)?;
        let is_none = || Unfenced::Not("it is not the primary of this pair".into());
        if stand.record.pair != own.pair {
            return Err(is_none());
        }
        if stand.record.role == Role::Standby {
            *epoch = (*epoch).max(stand.record.epoch + 1);
            return Err(is_none());
        }
        *epoch = next_epoch(own, &stand.record, &fence.store);
        let (pair, epoch) = (own.pair.clone(), *epoch);
        let fence = self.conditions(&stand, proto::FenceRequest { pair, epoch, ..fence })?;
        let fenced = calls.fence(fence).await.map_err(Unfenced::Not)?;
        if Role::decoded(fenced.role) != Some(Role::Deposed) || fenced.epoch != epoch {
            return Err(is_none());
        }
        Ok(if fenced.life == own.life { Fenced::At(fenced.applied) } else { Fenced::Other })
    }

    /// Asks the primary how it stands, and fences it where that is of use; the epoch of the promotion as well. `fence`
    /// says which store is promoted, and where that is reached.
    ///
    /// # Errors
    /// As [`Candidate::check`]; without force [`Error::Promoted`], [`Error::OtherLife`], [`Error::Lacks`],
    /// [`Error::NotFenced`].
    pub(super) async fn fence(&self, fence: proto::FenceRequest) -> Result<(Fenced, u64)> {
        let applied = self.candidate.check(self.force)?;
        let mut epoch = self.candidate.record.epoch + 1;
        match self.ask(&mut epoch, fence).await {
            Ok(fenced) => Ok((fenced, epoch)),
            Err(Unfenced::Refused(error)) => Err(error),
            Err(Unfenced::Not(_)) if self.force => Ok((Fenced::Not, epoch)),
            Err(Unfenced::Not(why)) => {
                let why = format!(" ({}: {why})", self.address);
                Err(Error::NotFenced { why, cost: self.candidate.cost(applied) })
            }
        }
    }
}

/// Why a fence is refused by a server with this life, which has applied the operations up to `applied` and keeps those
/// from `first_kept` on.
pub(super) fn refusal(fence: &proto::FenceRequest, life: &[u8], applied: u64, first_kept: u64) -> Option<String> {
    if !fence.life.is_empty() && fence.life != life {
        return Some("this primary has begun anew since the standby had its state from it".into());
    }
    if fence.applied_max.is_some_and(|max| applied > max) {
        return Some(format!("this primary has applied operations up to {applied} meanwhile"));
    }
    let lacks = |has: u64| has < applied && has + 1 < first_kept;
    fence.has.filter(|has| lacks(*has)).map(|has| {
        format!(
            "the standby has operations up to {has}, and those after it are kept from {first_kept} on: it is copied"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fence_is_refused_where_the_standby_could_not_be_promoted_after_it() {
        let refused = |fence: &proto::FenceRequest| refusal(fence, b"life", 12, 8);
        let fence = proto::FenceRequest::default;
        assert_eq!(refused(&fence()), None);
        for (life, is_refused) in [("life", false), ("other", true)] {
            assert_eq!(refused(&proto::FenceRequest { life: life.into(), ..fence() }).is_some(), is_refused, "{life}");
        }
        for (max, is_refused) in [(11, true), (12, false), (13, false)] {
            assert_eq!(refused(&proto::FenceRequest { applied_max: Some(max), ..fence() }).is_some(), is_refused);
        }
        for (has, is_refused) in [(6, true), (7, false), (12, false), (13, false)] {
            assert_eq!(refused(&proto::FenceRequest { has: Some(has), ..fence() }).is_some(), is_refused, "{has}");
        }
    }

    #[test]
    fn no_promotion_has_the_epoch_of_another() {
        let own = Record { epoch: 3, ..Record::new(Role::Standby) };
        let theirs = |role, epoch, store: &str| Record { epoch, store: store.into(), ..Record::new(role) };
        assert_eq!(next_epoch(&own, &theirs(Role::Primary, 3, "own"), "own"), 4);
        assert_eq!(next_epoch(&own, &theirs(Role::Primary, 6, "own"), "own"), 7);
        assert_eq!(next_epoch(&own, &theirs(Role::Deposed, 4, "own"), "own"), 4, "tried again");
        for by in ["another", ""] {
            assert_eq!(next_epoch(&own, &theirs(Role::Deposed, 4, by), "own"), 5);
        }
    }
}
