//! An operation: what a transaction does once its guards are decided, as it goes down a chain.
//!
//! transaction → without its guards → applied here, sent on, kept until it is acknowledged from behind

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use esker_store::{Change, Op, Transaction, WhenBusy};

use crate::replica::Weight;

/// What an operation takes beside its payload, about.
const STEP_BYTES: usize = 64;

struct Parts {
    txn: Transaction,
    weight: usize,
    encoded: OnceLock<Bytes>,
}

/// What a transaction does. Cheap to clone.
#[derive(Clone)]
pub struct Operation(Arc<Parts>);

impl Operation {
    /// What this transaction does. Its guards have to be decided already, and are left out.
    pub fn of(mut txn: Transaction) -> Self {
        txn.guards.clear();
        txn.when_busy = WhenBusy::Wait;
        let weight = txn.ops.iter().map(weight_of).sum();
        Self(Arc::new(Parts { txn, weight, encoded: OnceLock::new() }))
    }

    /// The transaction.
    pub fn transaction(&self) -> &Transaction {
        &self.0.txn
    }

    /// The transaction as a message, which is made by `encode` once for all that it is sent to.
    pub fn encoded(&self, encode: impl FnOnce(&Transaction) -> Bytes) -> Bytes {
        self.0.encoded.get_or_init(|| encode(&self.0.txn)).clone()
    }

    /// An operation that came as this message.
    pub fn decoded(txn: Transaction, message: Bytes) -> Self {
        let operation = Self::of(txn);
        // It was made just now.
        let _ = operation.0.encoded.set(message);
        operation
    }
}

impl Weight for Operation {
    fn weight(&self) -> usize {
        self.0.weight
    }
}

impl std::fmt::Debug for Operation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Operation").field(&self.0.txn).finish()
    }
}

fn weight_of(op: &Op) -> usize {
    let payload = match op {
        Op::Object(_, Change::Write { data, .. }) => data.len(),
        Op::Object(_, Change::XattrSet { name, value }) => name.len() + value.len(),
        Op::Object(_, Change::OmapSet { key, value }) => key.len() + value.len(),
        Op::Object(_, Change::OmapRemove { key }) => key.len(),
        Op::Object(_, Change::SlotSet { value, .. }) => value.len(),
        _ => 0,
    };
    STEP_BYTES + payload
}

#[cfg(test)]
mod tests {
    use super::*;
    use esker_store::ObjectId;

    #[test]
    fn an_operation_weighs_what_it_carries_and_is_encoded_once() {
        let object = ObjectId::new("c".into(), "o");
        let write = Change::Write { offset: 0, data: vec![7; 1_000].into() };
        let operation = Operation::of(Transaction::new().change(&object, write).change(&object, Change::Touch));
        assert_eq!(operation.weight(), 1_000 + 2 * STEP_BYTES);
        assert_eq!(operation.encoded(|txn| txn.ops.len().to_string().into()), "2");
        assert_eq!(operation.clone().encoded(|_| "again".into()), "2");
        let decoded = Operation::decoded(operation.transaction().clone(), "as it came".into());
        assert_eq!(decoded.encoded(|_| "again".into()), "as it came");
    }
}
