//! What is written to the target, gathered into transactions.
//!
//! operations in order → a transaction, until it is large enough → submitted, applied
//!
//! Invariant: a transaction is within what the store takes, unless one operation alone is not.

use esker_store::{Change, Durability, ObjectStore, Op, Result, Transaction};

/// A transaction is submitted once it holds so many bytes.
const TRANSACTION_BYTES: u64 = 4 << 20;
/// What an operation takes in a transaction beside names, keys and payload, at most.
const OP_BYTES: u64 = 64;
/// Most operations of a transaction.
const TRANSACTION_OPS_MAX: u64 = 4_096;

/// Writes to one store, in order.
pub(super) struct Writing<'a> {
    target: &'a dyn ObjectStore,
    txn: Transaction,
    bytes: u64,
    /// What is gathered and what is written in one piece stays below it: half of what the store takes, since stores
    /// count what they add to it as well.
    bytes_max: u64,
    ops_max: u64,
    across_objects: bool,
    across_collections: bool,
    removed: u64,
}

fn change_bytes(change: &Change) -> usize {
    match change {
        Change::Write { data, .. } => data.len(),
        Change::XattrSet { name, value } => name.len() + value.len(),
        Change::XattrRemove { name } => name.len(),
        Change::OmapSet { key, value } => key.len() + value.len(),
        Change::OmapRemove { key } => key.len(),
        Change::OmapRemoveRange { start, end } => start.len() + end.as_ref().map_or(0, |end| end.len()),
        Change::SlotSet { value, .. } => 8 + value.len(),
        Change::CloneTo { to } | Change::CloneRange { to, .. } | Change::Rename { to } => {
            to.name().len() + to.collection().name().len()
        }
        _ => 16,
    }
}

/// About the bytes of a transaction that the operation takes.
fn op_bytes(op: &Op) -> u64 {
    let bytes = match op {
        Op::CreateCollection(collection) | Op::RemoveCollection(collection) => collection.name().len(),
        Op::Object(object, change) => object.name().len() + object.collection().name().len() + change_bytes(change),
    };
    bytes as u64 + OP_BYTES
}

fn takes_away(op: &Op) -> bool {
    match op {
        Op::CreateCollection(_) => false,
        Op::RemoveCollection(_) => true,
        Op::Object(_, change) => !change.creates() || matches!(change, Change::Zero { .. }),
    }
}

impl<'a> Writing<'a> {
    /// Nothing is written yet.
    pub(super) fn new(target: &'a dyn ObjectStore) -> Self {
        let capability = target.capability();
        Self {
            target,
            txn: Transaction::with(Durability::Applied),
            bytes: 0,
            bytes_max: (capability.transaction_bytes_max / 2).max(1),
            ops_max: capability.transaction_ops_max.clamp(1, TRANSACTION_OPS_MAX),
            across_objects: capability.atomic_across_objects,
            across_collections: capability.atomic_across_collections,
            removed: 0,
        }
    }

    /// How many operations took something away: an object, a collection, an entry or a run of some.
    pub(super) fn removed(&self) -> u64 {
        self.removed
    }

    /// Whether one transaction may hold both.
    fn go_together(&self, one: &Op, other: &Op) -> bool {
        let named = |op: &Op| match op {
            Op::CreateCollection(collection) | Op::RemoveCollection(collection) => (collection.clone(), None),
            Op::Object(object, _) => (object.collection().clone(), Some(object.clone())),
        };
        if self.across_objects && self.across_collections {
            return true;
        }
        let (one, other) = (named(one), named(other));
        (self.across_objects || one.1 == other.1) && (self.across_collections || one.0 == other.0)
    }

    /// Adds an operation; bytes in pieces, where they are more than the store takes at once. Tells whether a
    /// transaction was submitted.
    pub(super) fn push(&mut self, op: Op) -> Result<bool> {
        let Op::Object(object, Change::Write { mut offset, mut data }) = op else { return self.one(op) };
        let (piece, mut submitted) = (self.bytes_max as usize, false);
        while data.len() > piece {
            let first = Change::Write { offset, data: data.split_to(piece) };
            submitted |= self.one(Op::Object(object.clone(), first))?;
            offset += piece as u64;
        }
        Ok(self.one(Op::Object(object, Change::Write { offset, data }))? || submitted)
    }

    fn one(&mut self, op: Op) -> Result<bool> {
        let bytes = op_bytes(&op);
        let apart = self.txn.ops.last().is_some_and(|last| !self.go_together(last, &op));
        let mut submitted = false;
        if apart || self.bytes + bytes > self.bytes_max || self.txn.ops.len() as u64 >= self.ops_max {
            submitted = self.submit()?;
        }
        self.removed += u64::from(takes_away(&op));
        self.txn.ops.push(op);
        self.bytes += bytes;
        if self.bytes >= TRANSACTION_BYTES {
            submitted |= self.submit()?;
        }
        Ok(submitted)
    }

    /// Submits what was gathered, and waits until it is applied. Tells whether there was anything.
    pub(super) fn submit(&mut self) -> Result<bool> {
        if self.txn.ops.is_empty() {
            return Ok(false);
        }
        let txn = std::mem::replace(&mut self.txn, Transaction::with(Durability::Applied));
        self.bytes = 0;
        self.target.submit(txn).wait()?;
        Ok(true)
    }
}
