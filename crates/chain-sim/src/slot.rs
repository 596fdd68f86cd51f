//! A replica on its server: the store, which outlasts starts, and the present start.
//!
//! [`Slot`] → [`Life`]: replica, lease, what waits → over → the next life
//!
//! Invariant: what belongs to a life carries its number, so that nothing of it reaches the next.

use std::collections::BTreeMap;
use std::rc::Rc;

use esker_chain::{Incarnation, Lease, Message, Replica};

use crate::disk::Disk;
use crate::operation::Write;
use crate::setting::Micros;

/// What a stream carries.
#[derive(Clone, Debug)]
pub enum Parcel {
    /// A message of the protocol.
    Message(Message<Write>),
    /// A copy is offered.
    Copy(Offer),
}

/// A copy that is offered: the state of a store after operation `seq`.
#[derive(Clone, Debug)]
pub struct Offer {
    /// Unique in the run.
    pub number: u64,
    /// In which version of the table.
    pub version: u64,
    /// After which operation.
    pub seq: u64,
    /// What the store held.
    pub content: Rc<Vec<u32>>,
}

/// A client that is answered once an operation is acknowledged.
#[derive(Clone, Copy, Debug)]
pub struct Waiting {
    /// That operation.
    pub seq: u64,
    /// The client.
    pub client: usize,
    /// Which of its calls.
    pub call: u64,
    /// What it is told then.
    pub answer: Answer,
}

/// What a client is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The write is acknowledged, as this number of its key.
    Done(u32),
    /// The last write of the key is another than was to be followed.
    Refused(u32),
    /// The last write of the key.
    Value(u32),
    /// Nothing was done: ask elsewhere.
    Elsewhere,
    /// It may have been done.
    Unknown,
}

/// A copy that is pulled.
#[derive(Clone, Debug)]
pub struct Pull {
    /// Of which slot.
    pub from: usize,
    /// What.
    pub offer: Offer,
    /// Parts that are still to come.
    pub parts: u32,
}

/// A start of a replica.
#[derive(Debug)]
pub struct Life {
    /// Which start.
    pub incarnation: Incarnation,
    /// The protocol.
    pub replica: Replica<Write>,
    /// Of this server.
    pub lease: Lease,
    /// It has served.
    pub served: bool,
    /// Applied, and no sync has begun since.
    pub unsynced: Option<u64>,
    /// A sync is under way.
    pub syncing: bool,
    /// Acknowledged, and told those who wait.
    pub settled: u64,
    /// As a node's: what is begun before says nothing of what is here.
    pub round: u64,
    /// It takes no part any more.
    pub failed: bool,
    /// Clients that wait.
    pub waiting: Vec<Waiting>,
    /// The last operation that changes each key and is not acknowledged.
    pub dirty: BTreeMap<usize, u64>,
    /// A copy that is pulled.
    pub pull: Option<Pull>,
    /// What was put by behind it.
    pub by: Vec<Write>,
    /// The copy that was made, and is offered in the step that is under way.
    pub made: Option<Vec<u32>>,
    /// Copies that are offered: to which slot, and when it last asked.
    pub offered: BTreeMap<u64, (usize, Micros)>,
    /// When the renewal that is under way was sent, by the server's clock.
    pub sent: Micros,
}

impl Life {
    /// A start whose store stands so.
    pub fn new(incarnation: Incarnation, replica: Replica<Write>) -> Self {
        Self {
            incarnation,
            replica,
            lease: Lease::default(),
            served: false,
            unsynced: None,
            syncing: false,
            settled: 0,
            round: 0,
            failed: false,
            waiting: Vec::new(),
            dirty: BTreeMap::new(),
            pull: None,
            by: Vec::new(),
            made: None,
            offered: BTreeMap::new(),
            sent: 0,
        }
    }
}

/// A replica's place on its server.
#[derive(Debug, Default)]
pub struct Slot {
    /// Of which chain.
    pub chain: usize,
    /// On which server.
    pub server: usize,
    /// Its store.
    pub disk: Disk,
    /// The present start, once it has registered.
    pub life: Option<Life>,
    /// Grows with each life that begins or ends.
    pub number: u64,
    /// The last call of the coordinator.
    pub call: u64,
    /// That call is under way.
    pub calling: bool,
    /// A round is due as soon as the call has ended.
    pub again: bool,
    /// The round that is due next: others that are due count for nothing.
    pub timer: u64,
    /// The coordinator was found to have given its number to another start.
    pub superseded: bool,
}
