//! Transactions that are applied once although their answers are lost, as the client of a far server sends them: see
//! `once.rs` there.
//!
//! transaction → the client's number, guarded to be higher than the last, set with it → no answer: again, the same ·
//! refused by that guard → was it this number? then it was applied · refused otherwise after a lost answer → the next
//! number by itself, so that what was lost never is
//!
//! Invariant: a number is one transaction's only.

use bytes::Bytes;
use esker_store::{Change, Collection, CommitSeq, Compare, Condition, Error, Guard, ObjectId, Op, Transaction};

/// Attempts of one transaction.
pub(crate) const TRIES: u32 = 5;

/// Where clients keep their numbers.
pub(crate) fn collection() -> Collection {
    Collection::from("operations")
}

/// A client's numbers.
#[derive(Clone, Debug)]
pub(crate) struct Lane {
    pub object: ObjectId,
    /// Of its last operation.
    pub number: u64,
}

/// What a lane holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Looked {
    /// The operation's number: it was applied, and is durable as far as this.
    Applied(CommitSeq),
    /// The number behind it: it never will be applied.
    Fenced,
    /// Neither.
    Gone,
}

fn name() -> Bytes {
    Bytes::from_static(b"l")
}

impl Lane {
    /// The lane of a client that has none yet, and what makes it.
    pub(crate) fn new(client: u64) -> (Self, Transaction) {
        let object = ObjectId::new(collection(), format!("operations/{client}").into_bytes());
        let lane = Self { object, number: 0 };
        let make = Transaction::new().guard(&lane.object, Condition::Absent).change(&lane.object, lane.put(0));
        (lane, make)
    }

    fn put(&self, number: u64) -> Change {
        Change::XattrSet { name: name(), value: Bytes::copy_from_slice(&number.to_le_bytes()) }
    }

    fn is_below(&self, value: u64) -> Guard {
        let condition = Condition::XattrCompare { name: name(), compare: Compare::Less, value, absent_holds: false };
        Guard { object: self.object.clone(), condition }
    }

    /// A transaction under the lane's number.
    pub(crate) fn numbered(&self, txn: &Transaction) -> Transaction {
        let mut numbered = Transaction { once: false, ..txn.clone() };
        numbered.guards.insert(0, self.is_below(self.number));
        numbered.ops.push(Op::Object(self.object.clone(), self.put(self.number)));
        numbered
    }

    /// What keeps operation `number` from being applied later.
    pub(crate) fn fence(&mut self, number: u64) -> Transaction {
        self.number = number + 1;
        let mut txn = Transaction::new();
        txn.guards.push(self.is_below(number));
        txn.change(&self.object, self.put(self.number))
    }

    /// What an answer says of operation `number`.
    pub(crate) fn looked(&self, stored: Option<Bytes>, number: u64) -> Looked {
        let held = stored.and_then(|stored| Some(u64::from_le_bytes(stored[..].try_into().ok()?)));
        match held {
            Some(held) if held == number => Looked::Applied(CommitSeq::default()),
            Some(held) if held == number + 1 => Looked::Fenced,
            _ => Looked::Gone,
        }
    }

    /// The name of its number.
    pub(crate) fn xattr(&self) -> Bytes {
        name()
    }
}

/// A refusal as the sender of the transaction without a number knows it.
pub(crate) fn unnumbered(error: Error) -> Error {
    match error {
        Error::GuardFailed { index } => Error::GuardFailed { index: index.saturating_sub(1) },
        error => error,
    }
}
