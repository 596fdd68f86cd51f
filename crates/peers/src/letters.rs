//! Messages of replicas as letters and back.
//!
//! Invariant: an operation is encoded once for all that it is sent to, and goes on as it came.

use esker_chain::{Message, Operation};
use esker_store::Transaction;
use esker_wire::proto::chain as proto;
use esker_wire::proto::chain::letter::What;
use esker_wire::proto::store::SubmitRequest;
use esker_wire::store::{decode_transaction, encode_transaction};
use prost::Message as _;

use bytes::Bytes;

/// An operation as a message of its own.
pub fn encoded(operation: &Operation) -> Bytes {
    operation.encoded(|txn: &Transaction| encode_transaction(txn.clone()).encode_to_vec().into())
}

/// The operation that a message is.
///
/// # Errors
/// What is wrong with it.
pub fn decoded(message: Bytes) -> Result<Operation, String> {
    let request = SubmitRequest::decode(message.clone()).map_err(|error| error.to_string())?;
    let txn = decode_transaction(request).map_err(|error| error.to_string())?;
    txn.check().map_err(|error| error.to_string())?;
    Ok(Operation::decoded(txn, message))
}

/// A message as a letter.
pub fn letter(message: Message<Operation>) -> proto::Letter {
    let what = match message {
        Message::Begin { version, committed } => What::Begin(proto::Begin { version, committed }),
        Message::At { version, applied } => What::At(proto::At { version, applied }),
        Message::Forward { version, seq, operation, committed } => {
            let operation = encoded(&operation);
            What::Forward(proto::Forward { version, seq, operation, committed })
        }
        Message::Ack { version, seq } => What::Ack(proto::Ack { version, seq }),
        Message::Committed { version, seq } => What::Committed(proto::Committed { version, seq }),
    };
    proto::Letter { what: Some(what) }
}

/// The message that a letter is.
///
/// # Errors
/// What is wrong with it; also where it is none of a replica's.
pub fn message(what: What) -> Result<Message<Operation>, String> {
    Ok(match what {
        What::Begin(proto::Begin { version, committed }) => Message::Begin { version, committed },
        What::At(proto::At { version, applied }) => Message::At { version, applied },
        What::Forward(proto::Forward { version, seq, operation, committed }) => {
            Message::Forward { version, seq, operation: decoded(operation)?, committed }
        }
        What::Ack(proto::Ack { version, seq }) => Message::Ack { version, seq },
        What::Committed(proto::Committed { version, seq }) => Message::Committed { version, seq },
        What::Hello(_) => return Err("a second greeting".into()),
        What::Copy(_) => return Err("a copy is no message of a replica".into()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use esker_store::{Change, ObjectId};

    #[test]
    fn messages_come_back_as_they_were() {
        let object = ObjectId::new("c".into(), "o");
        let txn = Transaction::new().change(&object, Change::OmapSet { key: "k".into(), value: "v".into() });
        let forward = Message::Forward { version: 3, seq: 9, operation: Operation::of(txn.clone()), committed: 7 };
        let Message::Forward { version: 3, seq: 9, operation, committed: 7 } =
            message(letter(forward).what.unwrap()).unwrap()
        else {
            panic!("another message")
        };
        assert_eq!(operation.transaction(), &txn);
        for applied in [None, Some(0), Some(5)] {
            let there = message(letter(Message::At { version: 1, applied }).what.unwrap()).unwrap();
            assert!(matches!(there, Message::At { version: 1, applied: found } if found == applied));
        }
        let bad = What::Forward(proto::Forward { operation: "no message".into(), ..Default::default() });
        assert!(message(bad).is_err());
    }
}
