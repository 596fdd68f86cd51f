//! A server of the model: a replica, its store and its lease.

use esker_chain::{Clean, Incarnation, Message, Place, Replica, ServerId};

use super::bounds::{ChainModel, Flaw};

/// What a connection carries.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Parcel {
    /// A message of the protocol.
    Message(Message<u8>),
    /// A copy, begun in this version of the table: the state after this operation.
    Copy {
        /// Of the table.
        version: u64,
        /// What it is told to be the state after.
        seq: u64,
        /// The state.
        content: Vec<u8>,
    },
}

/// A copy that is being put in place.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Putting {
    /// Who has sent it.
    pub from: ServerId,
    /// In which version of the table it was begun.
    pub version: u64,
    /// What it is told to be the state after.
    pub seq: u64,
    /// The state.
    pub content: Vec<u8>,
}

/// A server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Server {
    /// Which of its starts runs.
    pub incarnation: Incarnation,
    /// The protocol.
    pub replica: Replica<u8>,
    /// The operations that its store has applied, in order.
    pub content: Vec<u8>,
    /// How many of them a power cut leaves.
    pub durable: usize,
    /// The version of the table that it has a lease under.
    pub lease: Option<u64>,
    /// The copy that takes the place of what it has.
    pub putting: Option<Putting>,
    /// A copy of what it has is to be made for this server.
    pub making: Option<ServerId>,
    /// The operations that were put by behind it.
    pub by: Vec<u8>,
}

impl Server {
    /// Whether it may answer by the table that it knows.
    pub fn has_lease(&self) -> bool {
        self.lease == Some(self.replica.table().version)
    }

    /// Whether it takes writes.
    pub fn may_decide(&self) -> bool {
        self.replica.is_head() && self.has_lease()
    }

    /// What a power cut leaves.
    pub fn lasting(&self) -> &[u8] {
        &self.content[..self.durable]
    }

    /// What a reader is told, if it is told something at once.
    pub fn read(&self, protocol: &ChainModel) -> Option<&[u8]> {
        let serves = self.replica.place() == Some(Place::Serving);
        let has_lease = self.has_lease() || protocol.breakage == Some(Flaw::NoLease);
        let clean = self.replica.clean(self.content.len() as u64) == Clean::Yes;
        let clean = clean || protocol.breakage == Some(Flaw::DirtyReads);
        (serves && has_lease && clean).then_some(&self.content)
    }
}
