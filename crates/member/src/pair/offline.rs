//! A store of a pair that no server has open: what it may be started as, and its promotion.
//!
//! record, settings → [`Start::of`] → as a primary, as a standby, or refused
//! operator → [`promote`]: the primary is asked, then fenced → the record says that this store is the primary's

use esker_chain::{COLLECTION, Standing};
use esker_peers::TlsFiles;
use esker_store::{Collection, ObjectStore};
use esker_wire::proto::chain as proto;

use crate::error::{Error, Result};
use crate::pair::fencing::Asking;
use crate::pair::promotion::{Candidate, Promotion};
use crate::pair::record::{Record, Role};

/// What a store is started as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Start {
    /// As the primary that its record says it is, or the first of a pair.
    Primary(Record),
    /// As a standby; of a store that is a primary's still only where the other was promoted over it.
    Standby(Record),
}

impl Start {
    /// What this store may be: `follow` another, or be the primary; `replaces`: what was never of the pair may go.
    ///
    /// # Errors
    /// [`Error::Deposed`], [`Error::IsStandby`], [`Error::Holds`]; [`Error::Store`].
    pub fn of(store: &dyn ObjectStore, follow: Option<&str>, replaces: bool) -> Result<Self> {
        let record = Record::read(store)?;
        let Some(address) = follow else {
            let record = record.unwrap_or_else(|| Record::new(Role::Primary));
            return refuse_other_roles(&record).map(|()| Self::Primary(record));
        };
        if let Some(record) = record {
            return Ok(Self::Standby(record));
        }
        let own = Collection::from(COLLECTION);
        if !replaces && store.collections().wait()?.iter().any(|collection| *collection != own) {
            return Err(Error::Holds { address: address.to_owned() });
        }
        Ok(Self::Standby(Record::new(Role::Standby)))
    }
}

fn refuse_other_roles(record: &Record) -> Result<()> {
    match record.role {
        Role::Primary => Ok(()),
        Role::Standby => Err(Error::IsStandby { peer: record.peer.clone() }),
        Role::Deposed => Err(Error::Deposed { epoch: record.epoch, by: record.peer.clone() }),
    }
}

/// That a server may serve this store without a standby, and without telling any.
///
/// A primary's that has a standby, or has one before it still to tell, is not: it could not be fenced, nor fence.
///
/// # Errors
/// [`Error::Deposed`], [`Error::IsStandby`], [`Error::Part`], [`Error::InStep`], [`Error::Paired`]; [`Error::Store`].
pub fn check_alone(store: &dyn ObjectStore) -> Result<()> {
    let Some(record) = Record::read(store)? else { return Ok(()) };
    refuse_other_roles(&record)?;
    if Standing::read(store, &record.pair)?.applied.is_none() {
        return Err(Error::Part { peer: record.peer });
    }
    match &record {
        Record { in_step: true, .. } => Err(Error::InStep),
        Record { store, fences, .. } if store.is_empty() && fences.is_empty() => Ok(()),
        Record { peer, fences, .. } => {
            let peer = if peer.is_empty() { fences } else { peer };
            Err(Error::Paired { peer: peer.clone() })
        }
    }
}

/// Ends the pair of a primary's store, which no server has open: it waits for no standby, and tells none before it. As
/// the primary of a pair again it is copied to a standby as a whole. Whether writes waited for its standby.
///
/// # Errors
/// [`Error::Deposed`], [`Error::IsStandby`]; [`Error::Store`].
pub fn dissolve(store: &dyn ObjectStore) -> Result<bool> {
    let Some(record) = Record::read(store)? else { return Ok(false) };
    refuse_other_roles(&record)?;
    let was_in_step = record.in_step;
    // Where the other is stays: as the primary of a pair again it asks that first.
    let (store_before, fences) = (String::new(), String::new());
    Record { in_step: false, store: store_before, fences, ended: 0, ..record }.write(store)?;
    Ok(was_in_step)
}

/// The record of a store that is promoted. `fences`: where the primary before is still to be told.
pub(super) fn promoted(record: &Record, promotion: &Promotion, fences: &str) -> Record {
    Record {
        epoch: promotion.epoch,
        pair: record.pair.clone(),
        version: record.version,
        fences: fences.to_owned(),
        ..Record::new(Role::Primary)
    }
}

/// Makes the store of a standby, which no server has open, a primary's. Its primary, at `fence` or where it was, is
/// told to answer no more; with `force` also where it cannot be told, has more than this store, or is of another life,
/// and also a store that was a primary's until another was promoted over it.
///
/// # Errors
/// [`Error::NotStandby`], [`Error::Part`], [`Error::WasPrimary`], [`Error::Promoted`], [`Error::OtherLife`],
/// [`Error::Lacks`], [`Error::NotFenced`]; [`Error::Store`].
pub async fn promote(
    store: &dyn ObjectStore,
    fence: Option<&str>,
    tls: Option<&TlsFiles>,
    force: bool,
) -> Result<Promotion> {
    let record = Record::read(store)?.ok_or(Error::NotStandby { role: Role::Primary, epoch: 0 })?;
    let standing = Standing::read(store, &record.pair)?;
    let store_name = String::from_utf8_lossy(&standing.identity).into_owned();
    let address = fence.unwrap_or(&record.peer);
    let asking = Asking {
        candidate: Candidate { record: &record, applied: standing.applied },
        address,
        tls,
        takes: false,
        force,
    };
    let told = proto::FenceRequest { store: store_name, ..Default::default() };
    let (fenced, epoch) = asking.fence(told).await?;
    let promotion = asking.candidate.decide(fenced, epoch, force)?;
    // Also where it was told: not where its clients find the new primary, which only that one knows.
    promoted(&record, &promotion, address).write(store)?;
    Ok(promotion)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

    use esker_memory::MemoryStore;
    use esker_store::Transaction;

    use super::*;

    fn store(role: Role, in_step: bool) -> MemoryStore {
        let store = MemoryStore::new();
        let record = Record { epoch: 2, peer: "h:1".into(), pair: "p".into(), in_step, ..Record::new(role) };
        record.write(&store).unwrap();
        store
    }

    #[test]
    fn a_store_is_started_only_as_what_it_is() {
        let (primary, standby) = (store(Role::Primary, false), store(Role::Standby, false));
        let deposed = store(Role::Deposed, false);
        assert!(matches!(Start::of(&primary, None, false), Ok(Start::Primary(_))));
        assert!(matches!(Start::of(&standby, None, false), Err(Error::IsStandby { peer }) if peer == "h:1"));
        let refused = Start::of(&deposed, None, false).unwrap_err();
        assert!(matches!(&refused, Error::Deposed { epoch: 2, by } if by == "h:1"));
        assert!(refused.to_string().contains("esker serve --follow grpc://h:1"), "{refused}");
        for store in [&primary, &standby, &deposed] {
            assert!(matches!(Start::of(store, Some("h:1"), false), Ok(Start::Standby(_))));
        }
        for store in [&standby, &deposed, &store(Role::Primary, true)] {
            assert!(check_alone(store).is_err());
        }
        assert!(check_alone(&primary).is_ok() && check_alone(&MemoryStore::new()).is_ok());
    }

    #[test]
    fn a_lone_server_takes_a_pair_only_once_that_is_dissolved() {
        let (store, in_step) = (store(Role::Primary, false), store(Role::Primary, true));
        assert!(matches!(check_alone(&in_step), Err(Error::InStep)));
        assert!(dissolve(&in_step).unwrap());
        check_alone(&in_step).unwrap();
        let record = Record::read(&store).unwrap().unwrap();
        let followed = Record { store: "its standby".into(), ..record.clone() };
        let fences = Record { fences: "h:2".into(), ..record };
        for record in [followed, fences] {
            record.write(&store).unwrap();
            let refused = check_alone(&store).unwrap_err();
            assert!(refused.to_string().contains("esker standby release --store"), "{refused}");
            assert!(!dissolve(&store).unwrap());
            check_alone(&store).unwrap();
        }
        for role in [Role::Standby, Role::Deposed] {
            assert!(dissolve(&self::store(role, false)).is_err());
        }
    }

    #[test]
    fn data_that_was_never_of_the_pair_is_replaced_only_where_that_is_asked_for() {
        let store = MemoryStore::new();
        assert!(matches!(Start::of(&store, Some("h:1"), false), Ok(Start::Standby(_))));
        store.submit(Transaction::new().create_collection(&"data".into())).wait().unwrap();
        assert!(matches!(Start::of(&store, Some("h:1"), false), Err(Error::Holds { .. })));
        assert!(matches!(Start::of(&store, Some("h:1"), true), Ok(Start::Standby(_))));
    }

    fn run(store: &MemoryStore, force: bool) -> Result<Promotion> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(promote(store, Some("127.0.0.1:1"), None, force))
    }

    #[test]
    fn a_primary_that_cannot_be_told_takes_force() {
        let store = store(Role::Standby, false);
        Standing::read(&store, &"p".into()).unwrap();
        assert!(matches!(run(&store, false), Err(Error::NotFenced { why, .. }) if why.contains("127.0.0.1:1")));
        assert_eq!(Record::read(&store).unwrap().unwrap().role, Role::Standby);
        assert_eq!(run(&store, true).unwrap().epoch, 3);
        let record = Record::read(&store).unwrap().unwrap();
        assert_eq!((record.role, record.epoch, &record.fences[..]), (Role::Primary, 3, "127.0.0.1:1"));
        assert!(matches!(run(&store, true), Err(Error::NotStandby { .. })), "it is the primary already");
    }
}
