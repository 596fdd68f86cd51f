//! What a store keeps of its part in a pair: which role it has, and with which epoch.
//!
//! start → [`Record::read`] → what this store may be · a change of role → [`Record::write`] → then it is so
//!
//! Invariants:
//! 1. A server acts on a change of its role only once that is durable here.
//! 2. The epoch of a store never becomes less, but where it is made the standby of another pair.
//!
//! Format: docs/format.md#chains

use bytes::Bytes;
use esker_chain::COLLECTION;
use esker_store::{Change, Collection, Durability, Error, ObjectId, ObjectStore, Result, Transaction};
use esker_wire::proto::chain as proto;
use prost::Message as _;

const PAIR: &[u8] = b"pair";

/// Which part a store has in its pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It decides, and answers.
    Primary,
    /// It holds what the primary holds, or is brought up to it.
    Standby,
    /// It was the primary, and another one is.
    Deposed,
}

impl Role {
    /// Its word.
    pub fn word(self) -> &'static str {
        match self {
            Self::Primary => "primary",
            Self::Standby => "standby",
            Self::Deposed => "deposed",
        }
    }

    /// As messages have it; `None`: they say nothing that is known.
    pub(crate) fn decoded(role: i32) -> Option<Self> {
        match proto::Role::try_from(role) {
            Ok(proto::Role::Primary) => Some(Self::Primary),
            Ok(proto::Role::Standby) => Some(Self::Standby),
            Ok(proto::Role::Deposed) => Some(Self::Deposed),
            Ok(proto::Role::Unspecified) | Err(_) => None,
        }
    }

    pub(crate) fn encoded(self) -> i32 {
        match self {
            Self::Primary => proto::Role::Primary as i32,
            Self::Standby => proto::Role::Standby as i32,
            Self::Deposed => proto::Role::Deposed as i32,
        }
    }
}

/// What a store keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its part.
    pub role: Role,
    /// One more with each promotion, from 1; 0: it has followed none yet.
    pub epoch: u64,
    /// Which pair: the identity of the store of its first primary; empty: none yet.
    pub pair: Bytes,
    /// Of a primary: the last version of its table.
    pub version: u64,
    /// Of a primary: nothing is acknowledged without its standby. Of a standby: that was so when it heard of it last.
    pub in_step: bool,
    /// Where the other is reached, as `HOST:PORT`; empty: not known.
    pub peer: String,
    /// Of a primary: the identity of its standby's store; empty: it has had none. Of one that was deposed: that of the
    /// new primary's; empty: not known.
    pub store: String,
    /// Of a standby: the life of the primary that all it holds came from. Of a primary: its own, which goes on over a
    /// start where nothing has changed the store in between.
    pub life: Bytes,
    /// Of a primary: where the one before it is to be told that it was deposed; empty: it was, or there is none.
    pub fences: String,
    /// Of a standby: the last operation of the primary that it has heard of.
    pub heard: u64,
    /// Of a primary that has ended as planned: the last commit of its store, which is that of this record; else 0.
    pub ended: u64,
}

fn object() -> ObjectId {
    ObjectId::new(Collection::from(COLLECTION), "pair")
}

impl Record {
    /// What a store of no pair begins with.
    pub(crate) fn new(role: Role) -> Self {
        Self {
            role,
            epoch: 0,
            pair: Bytes::new(),
            version: 0,
            in_step: false,
            peer: String::new(),
            store: String::new(),
            life: Bytes::new(),
            fences: String::new(),
            heard: 0,
            ended: 0,
        }
    }

    /// What this store keeps; `None`: it is of no pair.
    ///
    /// # Errors
    /// The store's; [`Error::Corrupt`]: it keeps what makes no sense.
    pub fn read(store: &dyn ObjectStore) -> Result<Option<Self>> {
        let Some(value) = store.xattr(&object(), PAIR).wait()? else { return Ok(None) };
        let corrupt = |what: String| Error::Corrupt { offset: 0, what: format!("the record of a pair: {what}") };
        let record = proto::PairRecord::decode(value).map_err(|error| corrupt(error.to_string()))?;
        Self::decoded(record).map(Some).ok_or_else(|| corrupt("a role that is not known".into()))
    }

    /// Keeps it; durable once this returns.
    ///
    /// # Errors
    /// The store's.
    pub(crate) fn write(&self, store: &dyn ObjectStore) -> Result<()> {
        self.submit(store, Durability::Always)
    }

    /// Keeps it, and does not wait until that is durable: for what nothing rests on.
    pub(crate) fn note(&self, store: &dyn ObjectStore) -> Result<()> {
        self.submit(store, Durability::Applied)
    }

    /// Whether its server is to heed this fence: of a higher epoch than it knows, or of the promotion that has deposed
    /// it. Of one epoch there is one primary.
    pub(crate) fn heeds(&self, fence: &proto::FenceRequest) -> bool {
        let is_same = self.role == Role::Deposed && fence.epoch == self.epoch;
        let is_ours = is_same && (self.store.is_empty() || self.store == fence.store);
        fence.pair == self.pair && (fence.epoch > self.epoch || is_ours)
    }

    /// Whether the life that it names goes on: its primary ended as planned, and nothing has changed the store since.
    /// To be asked before anything else is written.
    ///
    /// # Errors
    /// The store's.
    pub(crate) fn goes_on(&self, store: &dyn ObjectStore) -> Result<bool> {
        Ok(self.ended != 0 && self.ended == store.sync().wait()?.0)
    }

    /// What a store keeps that was a primary's until this fence.
    pub(crate) fn deposed(&self, fence: &proto::FenceRequest) -> Self {
        let peer = match (&fence.peer[..], self.role == Role::Deposed && fence.epoch == self.epoch) {
            ("", true) => self.peer.clone(),
            (new, _) => new.to_owned(),
        };
        Self {
            role: Role::Deposed,
            epoch: fence.epoch,
            peer,
            store: fence.store.clone(),
            in_step: false,
            fences: String::new(),
            ..self.clone()
        }
    }

    fn submit(&self, store: &dyn ObjectStore, durability: Durability) -> Result<()> {
        let value = Bytes::from(self.encoded().encode_to_vec());
        let keep = Change::XattrSet { name: Bytes::from_static(PAIR), value };
        let object = object();
        let txn = Transaction::with(durability).create_collection(object.collection()).change(&object, keep);
        store.submit(txn).wait().map(drop)
    }

    /// As messages have it; `None`: its role is not known.
    pub fn decoded(record: proto::PairRecord) -> Option<Self> {
        let proto::PairRecord { epoch, pair, version, in_step, peer, store, life, fences, heard, ended, .. } = record;
        let role = Role::decoded(record.role)?;
        Some(Self { role, epoch, pair, version, in_step, peer, store, life, fences, heard, ended })
    }

    /// As a message.
    pub(crate) fn encoded(&self) -> proto::PairRecord {
        let Self { role, epoch, pair, version, in_step, peer, store, life, fences, heard, ended } = self.clone();
        let role = role.encoded();
        proto::PairRecord { role, epoch, pair, version, in_step, peer, store, life, fences, heard, ended }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

    use super::*;

    #[test]
    fn a_fence_is_heeded_where_its_epoch_is_higher_and_again_from_the_same_store() {
        let fence = |epoch, store: &str| proto::FenceRequest {
            pair: "p".into(),
            epoch,
            store: store.into(),
            ..proto::FenceRequest::default()
        };
        let primary = Record { epoch: 3, pair: "p".into(), store: "its standby".into(), ..Record::new(Role::Primary) };
        assert!(primary.heeds(&fence(4, "a")) && primary.heeds(&fence(9, "b")));
        assert!(!primary.heeds(&fence(3, "a")) && !primary.heeds(&fence(2, "a")));
        assert!(!primary.heeds(&proto::FenceRequest { pair: "other".into(), ..fence(4, "a") }));
        let deposed = |store: &str| Record { role: Role::Deposed, store: store.into(), ..primary.clone() };
        assert!(deposed("a").heeds(&fence(3, "a")) && deposed("").heeds(&fence(3, "a")));
        assert!(!deposed("a").heeds(&fence(3, "b")), "of one epoch there is one primary");
        assert!(deposed("a").heeds(&fence(4, "b")) && !deposed("a").heeds(&fence(2, "a")));
    }

    #[test]
    fn what_is_kept_comes_back() {
        let store = esker_memory::MemoryStore::new();
        assert_eq!(Record::read(&store).unwrap(), None);
        for role in [Role::Primary, Role::Standby, Role::Deposed] {
            let record = Record {
                role,
                epoch: 3,
                pair: "p".into(),
                version: 9,
                in_step: role == Role::Primary,
                peer: "h:1".into(),
                store: "s".into(),
                life: "l".into(),
                fences: "h:2".into(),
                heard: 7,
                ended: 6,
            };
            record.write(&store).unwrap();
            assert_eq!(Record::read(&store).unwrap(), Some(record));
        }
        let bad = proto::PairRecord { role: 9, ..Default::default() }.encode_to_vec();
        let txn = Transaction::new()
            .change(&object(), Change::XattrSet { name: Bytes::from_static(PAIR), value: Bytes::from(bad) });
        store.submit(txn).wait().unwrap();
        assert!(matches!(Record::read(&store), Err(Error::Corrupt { .. })));
    }
}
