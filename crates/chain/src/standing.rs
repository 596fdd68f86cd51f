//! What a store says of itself: which one it is, and after which operation it is.
//!
//! ```text
//! object esker.chain/state: applied (8 bytes): the last operation · identity: which store this is
//!                           part: a copy is under way, and what is here counts for nothing
//! object esker.chain/by: operations that came behind the copy, until it is whole
//! ```
//!
//! Invariant: what is here is the state after operation `applied`, but where `part` stands.
//! Format: docs/format.md#chains

use bytes::Bytes;
use esker_store::limits::VALUE_BYTES_MAX;
use esker_store::number::number_from;
use esker_store::{
    Change, Collection, Compare, Condition, Durability, Error, ObjectId, ObjectStore, Result, Transaction,
};

/// The collection that is the chain's own; its faces do not see it.
pub const COLLECTION: &str = "esker.chain";
const APPLIED: &[u8] = b"applied";
const IDENTITY: &[u8] = b"identity";
const PART: &[u8] = b"part";
/// Slots of one operation that is put by: a message of the largest transaction fits in.
const PARTS: u64 = 8;

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

/// Which operation what is here is the state after.
///
/// # Errors
/// The store's; [`Error::Corrupt`] if it is none: it does not say so, or is part of a copy.
pub(crate) fn number_of(store: &dyn ObjectStore) -> Result<u64> {
    let (state, corrupt) = (state(), |what: &str| Error::Corrupt { offset: 0, what: what.to_owned() });
    if store.xattr(&state, PART).wait()?.is_some() {
        return Err(corrupt("a store of a chain that holds part of a copy"));
    }
    let value = store.xattr(&state, APPLIED).wait()?.and_then(|value| number_from(&value));
    value.ok_or_else(|| corrupt("a store of a chain without the number of its last operation"))
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

/// Operations that wait until a copy is whole, in slots.
fn by() -> ObjectId {
    ObjectId::new(Collection::from(COLLECTION), "by")
}

/// From now on what is here counts for nothing, nor what was put by; durable once this returns.
pub(crate) fn distrust(store: &dyn ObjectStore) -> Result<()> {
    let part = Change::XattrSet { name: Bytes::from_static(PART), value: Bytes::new() };
    let txn = Transaction::with(Durability::Always).change(&state(), part).change(&by(), Change::Remove);
    store.submit(txn).wait().map(drop)
}

/// Puts an operation by, as its message.
pub(crate) fn put_by(store: &dyn ObjectStore, seq: u64, message: &Bytes) -> Result<()> {
    let mut txn = Transaction::with(Durability::Applied);
    for part in 0..=message.len() / VALUE_BYTES_MAX {
        let (start, end) = (part * VALUE_BYTES_MAX, message.len().min((part + 1) * VALUE_BYTES_MAX));
        let index = seq * PARTS + part as u64;
        txn.push(&by(), Change::SlotSet { index, value: message.slice(start..end) });
    }
    store.submit(txn).into_parts().0.map(drop)
}

/// An operation that was put by.
pub(crate) fn was_put_by(store: &dyn ObjectStore, seq: u64) -> Result<Bytes> {
    let mut message = Bytes::new();
    for part in 0..PARTS {
        let value = store.slot_get(&by(), seq * PARTS + part).into_parts().0?;
        let Some(value) = value else { break };
        let is_last = value.len() < VALUE_BYTES_MAX;
        message = if message.is_empty() { value } else { [message, value].concat().into() };
        if is_last {
            return Ok(message);
        }
    }
    Err(Error::Corrupt { offset: 0, what: format!("operation {seq} of a chain was put by, and is not there whole") })
}

/// Operations up to this one are applied, and need not be kept by.
pub(crate) fn taken_by(store: &dyn ObjectStore, seq: u64) -> Result<()> {
    let taken = Change::SlotRemoveRange { start: 0, end: (seq + 1) * PARTS };
    store.submit(Transaction::with(Durability::Applied).change(&by(), taken)).into_parts().0.map(drop)
}

/// What is here is the state after operation `seq`, but for what was put by.
pub(crate) fn stand_at(store: &dyn ObjectStore, seq: u64) -> Result<()> {
    let txn = Transaction::with(Durability::Applied).change(&state(), Change::number(APPLIED, seq));
    store.submit(txn).into_parts().0.map(drop)
}

/// What is here is the state after operation `seq`, whole; durable once this returns.
pub(crate) fn trust(store: &dyn ObjectStore, seq: u64) -> Result<()> {
    let whole = Change::XattrRemove { name: Bytes::from_static(PART) };
    let txn = Transaction::with(Durability::Always).change(&state(), whole).change(&by(), Change::Remove);
    store.submit(txn.change(&state(), Change::number(APPLIED, seq))).wait().map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_that_was_put_by_comes_back_whole() {
        let store = esker_memory::MemoryStore::new();
        Standing::read(&store, &"s".into()).unwrap();
        for len in [0, 1, VALUE_BYTES_MAX - 1, VALUE_BYTES_MAX, VALUE_BYTES_MAX + 1] {
            let message: Bytes = vec![7; len].into();
            put_by(&store, 5, &message).unwrap();
            put_by(&store, 6, &"six".into()).unwrap();
            assert_eq!(was_put_by(&store, 5).unwrap(), message);
            taken_by(&store, 5).unwrap();
            assert!(matches!(was_put_by(&store, 5), Err(Error::Corrupt { .. })));
            assert_eq!(was_put_by(&store, 6).unwrap(), "six");
        }
        distrust(&store).unwrap();
        assert!(was_put_by(&store, 6).is_err());
        assert_eq!(Standing::read(&store, &"t".into()).unwrap(), Standing { identity: "s".into(), applied: None });
        trust(&store, 9).unwrap();
        assert_eq!(Standing::read(&store, &"t".into()).unwrap().applied, Some(9));
    }
}
