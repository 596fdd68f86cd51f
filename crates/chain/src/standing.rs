//! What a store says of itself: which one it is, and after which operation it is.
//!
//! ```text
//! object esker.chain/state: applied (8 bytes): the last operation · identity: which store this is
//!                           part: a copy is under way, and what is here counts for nothing
//! ```
//!
//! Invariant: what is here is the state after operation `applied`, but where `part` stands.
//! Format: docs/format.md#chains

use bytes::Bytes;
use esker_store::number::number_from;
use esker_store::{
    Change, Collection, Compare, Condition, Durability, Error, ObjectId, ObjectStore, Result, Transaction,
};

/// The collection that is the chain's own; its faces do not see it.
pub const COLLECTION: &str = "esker.chain";
const APPLIED: &[u8] = b"applied";
const IDENTITY: &[u8] = b"identity";
const PART: &[u8] = b"part";

/// What stands in a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Which store this is.
    pub identity: Bytes,
    /// The last operation that it has applied; `None`: what it holds is part of a copy.
    pub applied: Option<u64>,
}

impl Standing {
    /// What a store says of itself, durably; one that says nothing yet is called `fresh` from now on, and is taken for
    /// the state before the first operation, whatever it holds.
    ///
    /// # Errors
    /// The store's; [`Error::Corrupt`] if it holds a number of another length, or no name.
    pub fn read(store: &dyn ObjectStore, fresh: &Bytes) -> Result<Self> {
        let state = state();
        let corrupt = |what: String| Error::Corrupt { offset: 0, what };
        if let Some(value) = store.xattr(&state, APPLIED).wait()? {
            let applied = number_from(&value)
                .ok_or_else(|| corrupt(format!("number of the last operation: {} bytes instead of 8", value.len())))?;
            let identity = store.xattr(&state, IDENTITY).wait()?;
            let identity = identity.ok_or_else(|| corrupt("a store of a chain without its identity".into()))?;
            let is_part = store.xattr(&state, PART).wait()?.is_some();
            store.sync().wait()?;
            return Ok(Self { identity, applied: (!is_part).then_some(applied) });
        }
        let mut txn = Transaction::with(Durability::Always).create_collection(state.collection());
        txn.push(&state, Change::number(APPLIED, 0));
        txn.push(&state, Change::XattrSet { name: Bytes::from_static(IDENTITY), value: fresh.clone() });
        store.submit(txn).wait()?;
        Ok(Self { identity: fresh.clone(), applied: Some(0) })
    }
}

fn state() -> ObjectId {
    ObjectId::new(Collection::from(COLLECTION), "state")
}

/// The transaction, which also says that it is operation `seq`, and is refused where that is not the next.
pub(crate) fn numbered(mut txn: Transaction, seq: u64) -> Transaction {
    let state = state();
    txn.push_guard(&state, Condition::compare(APPLIED, Compare::Equal, seq - 1, false));
    txn.push(&state, Change::number(APPLIED, seq));
    txn
}

/// From now on what is here counts for nothing; durable once this returns.
pub(crate) fn distrust(store: &dyn ObjectStore) -> Result<()> {
    let part = Change::XattrSet { name: Bytes::from_static(PART), value: Bytes::new() };
    store.submit(Transaction::with(Durability::Always).change(&state(), part)).wait().map(drop)
}

/// What is here is the state after operation `seq`, whole; durable once this returns.
pub(crate) fn trust(store: &dyn ObjectStore, seq: u64) -> Result<()> {
    let whole = Change::XattrRemove { name: Bytes::from_static(PART) };
    let txn = Transaction::with(Durability::Always).change(&state(), whole);
    store.submit(txn.change(&state(), Change::number(APPLIED, seq))).wait().map(drop)
}
