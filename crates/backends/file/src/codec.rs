//! Transactions as bytes in the journal: pure encode and decode.
//!
//! operation = kind (1), then its fields: numbers 8 bytes, names, keys and values as length (4) and bytes, an object
//! as collection and name. Format: docs/format.md#the-file-backend
//!
//! Invariants:
//! 1. Decoding what was encoded gives the same operations; guards and durability are not kept, for they have had their
//!    say.
//! 2. Decoding never panics and never allocates more than the input's length; what it gives has passed
//!    [`Transaction::check`].

use bytes::{Buf, BufMut, Bytes};
use esker_store::{Change, Collection, ObjectId, Op, Transaction};

const CREATE_COLLECTION: u8 = 1;
const REMOVE_COLLECTION: u8 = 2;
const TOUCH: u8 = 3;
const WRITE: u8 = 4;
const ZERO: u8 = 5;
const TRUNCATE: u8 = 6;
const REMOVE: u8 = 7;
const XATTR_SET: u8 = 8;
const XATTR_REMOVE: u8 = 9;
const OMAP_SET: u8 = 10;
const OMAP_REMOVE: u8 = 11;
const OMAP_REMOVE_FROM: u8 = 12;
const OMAP_REMOVE_RANGE: u8 = 13;
const OMAP_CLEAR: u8 = 14;
const SLOT_SET: u8 = 15;
const SLOT_REMOVE: u8 = 16;
const SLOT_REMOVE_RANGE: u8 = 17;
const CLONE_TO: u8 = 18;
const CLONE_RANGE: u8 = 19;
const RENAME: u8 = 20;

/// Appends `txn`'s operations: their number (4), then each.
pub fn encode(txn: &Transaction, out: &mut Vec<u8>) {
    out.put_u32_le(txn.ops.len() as u32);
    for op in &txn.ops {
        match op {
            Op::CreateCollection(collection) => {
                out.put_u8(CREATE_COLLECTION);
                put_bytes(out, collection.name());
            }
            Op::RemoveCollection(collection) => {
                out.put_u8(REMOVE_COLLECTION);
                put_bytes(out, collection.name());
            }
            Op::Object(id, change) => encode_change(id, change, out),
        }
    }
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    out.put_u32_le(bytes.len() as u32);
    out.put_slice(bytes);
}

fn put_object(out: &mut Vec<u8>, id: &ObjectId) {
    put_bytes(out, id.collection().name());
    put_bytes(out, id.name());
}

fn encode_change(id: &ObjectId, change: &Change, out: &mut Vec<u8>) {
    let mut start = |kind: u8| {
        out.put_u8(kind);
        put_object(out, id);
    };
    match change {
        Change::Touch => start(TOUCH),
        Change::Write { offset, data } => {
            start(WRITE);
            out.put_u64_le(*offset);
            put_bytes(out, data);
        }
        Change::Zero { offset, len } => {
            start(ZERO);
            out.put_u64_le(*offset);
            out.put_u64_le(*len);
        }
        Change::Truncate { size } => {
            start(TRUNCATE);
            out.put_u64_le(*size);
        }
        Change::Remove => start(REMOVE),
        Change::XattrSet { name, value } => {
            start(XATTR_SET);
            put_bytes(out, name);
            put_bytes(out, value);
        }
        Change::XattrRemove { name } => {
            start(XATTR_REMOVE);
            put_bytes(out, name);
        }
        Change::OmapSet { key, value } => {
            start(OMAP_SET);
            put_bytes(out, key);
            put_bytes(out, value);
        }
        Change::OmapRemove { key } => {
            start(OMAP_REMOVE);
            put_bytes(out, key);
        }
        Change::OmapRemoveRange { start: first, end: None } => {
            start(OMAP_REMOVE_FROM);
            put_bytes(out, first);
        }
        Change::OmapRemoveRange { start: first, end: Some(end) } => {
            start(OMAP_REMOVE_RANGE);
            put_bytes(out, first);
            put_bytes(out, end);
        }
        Change::OmapClear => start(OMAP_CLEAR),
        Change::SlotSet { index, value } => {
            start(SLOT_SET);
            out.put_u64_le(*index);
            put_bytes(out, value);
        }
        Change::SlotRemove { index } => {
            start(SLOT_REMOVE);
            out.put_u64_le(*index);
        }
        Change::SlotRemoveRange { start: first, end } => {
            start(SLOT_REMOVE_RANGE);
            out.put_u64_le(*first);
            out.put_u64_le(*end);
        }
        Change::CloneTo { to } => {
            start(CLONE_TO);
            put_object(out, to);
        }
        Change::CloneRange { to, from_offset, len, to_offset } => {
            start(CLONE_RANGE);
            put_object(out, to);
            out.put_u64_le(*from_offset);
            out.put_u64_le(*len);
            out.put_u64_le(*to_offset);
        }
        Change::Rename { to } => {
            start(RENAME);
            put_object(out, to);
        }
    }
}

/// Takes one transaction off the front of `input`. Payloads share its memory.
///
/// # Errors
/// What does not hold, in words.
pub fn decode(input: &mut Bytes) -> Result<Transaction, String> {
    let mut txn = Transaction::new();
    for _ in 0..number32(input)? {
        let kind = take(input, 1)?[0];
        let op = match kind {
            CREATE_COLLECTION => Op::CreateCollection(Collection::new(bytes(input)?)),
            REMOVE_COLLECTION => Op::RemoveCollection(Collection::new(bytes(input)?)),
            kind => {
                let id = object(input)?;
                Op::Object(id, change(kind, input)?)
            }
        };
        txn.ops.push(op);
    }
    txn.check().map_err(|error| error.to_string())?;
    Ok(txn)
}

fn take(input: &mut Bytes, len: usize) -> Result<Bytes, String> {
    if input.len() < len {
        return Err(format!("it ends {} bytes early", len - input.len()));
    }
    Ok(input.split_to(len))
}

fn number32(input: &mut Bytes) -> Result<u32, String> {
    Ok(take(input, 4)?.get_u32_le())
}

fn number(input: &mut Bytes) -> Result<u64, String> {
    Ok(take(input, 8)?.get_u64_le())
}

fn bytes(input: &mut Bytes) -> Result<Bytes, String> {
    let len = number32(input)? as usize;
    take(input, len)
}

fn object(input: &mut Bytes) -> Result<ObjectId, String> {
    let collection = Collection::new(bytes(input)?);
    Ok(ObjectId::new(collection, bytes(input)?))
}

fn change(kind: u8, input: &mut Bytes) -> Result<Change, String> {
    Ok(match kind {
        TOUCH => Change::Touch,
        WRITE => Change::Write { offset: number(input)?, data: bytes(input)? },
        ZERO => Change::Zero { offset: number(input)?, len: number(input)? },
        TRUNCATE => Change::Truncate { size: number(input)? },
        REMOVE => Change::Remove,
        XATTR_SET => Change::XattrSet { name: bytes(input)?, value: bytes(input)? },
        XATTR_REMOVE => Change::XattrRemove { name: bytes(input)? },
        OMAP_SET => Change::OmapSet { key: bytes(input)?, value: bytes(input)? },
        OMAP_REMOVE => Change::OmapRemove { key: bytes(input)? },
        OMAP_REMOVE_FROM => Change::OmapRemoveRange { start: bytes(input)?, end: None },
        OMAP_REMOVE_RANGE => Change::OmapRemoveRange { start: bytes(input)?, end: Some(bytes(input)?) },
        OMAP_CLEAR => Change::OmapClear,
        SLOT_SET => Change::SlotSet { index: number(input)?, value: bytes(input)? },
        SLOT_REMOVE => Change::SlotRemove { index: number(input)? },
        SLOT_REMOVE_RANGE => Change::SlotRemoveRange { start: number(input)?, end: number(input)? },
        CLONE_TO => Change::CloneTo { to: object(input)? },
        CLONE_RANGE => Change::CloneRange {
            to: object(input)?,
            from_offset: number(input)?,
            len: number(input)?,
            to_offset: number(input)?,
        },
        RENAME => Change::Rename { to: object(input)? },
        _ => return Err(format!("operation kind {kind} is unknown")),
    })
}

#[cfg(test)]
mod tests {
    use esker_store::model::{Generator, GeneratorOptions};

    use super::*;

    #[test]
    fn what_is_encoded_is_decoded_as_the_same() {
        let mut generator = Generator::new(11, GeneratorOptions::default());
        let mut kinds = [false; 21];
        for _ in 0..500 {
            let txn = generator.next();
            if txn.check().is_err() {
                continue;
            }
            let mut encoded = Vec::new();
            encode(&txn, &mut encoded);
            if let Some(kind) = encoded.get(4) {
                kinds[usize::from(*kind)] = true;
            }
            let mut input = Bytes::from(encoded);
            assert_eq!(decode(&mut input).unwrap().ops, txn.ops);
            assert!(input.is_empty());
        }
        assert!(kinds[1..].iter().filter(|kind| **kind).count() >= 17, "{kinds:?}");
    }

    #[test]
    fn damaged_bytes_are_an_error_or_another_transaction_never_a_panic() {
        let mut generator = Generator::new(12, GeneratorOptions { value_bytes_max: 300, ..Default::default() });
        let mut rng = fastrand::Rng::with_seed(12);
        for _ in 0..300 {
            let mut encoded = Vec::new();
            encode(&generator.next(), &mut encoded);
            let at = rng.usize(..encoded.len());
            if rng.bool() {
                encoded[at] ^= 1 << rng.u8(..8);
            } else {
                encoded.truncate(at);
            }
            if let Ok(txn) = decode(&mut Bytes::from(encoded)) {
                txn.check().unwrap();
            }
        }
    }

    #[test]
    fn the_bytes_of_a_transaction_stay_as_they_are() {
        let id = ObjectId::new("c".into(), "o");
        let txn = Transaction::new()
            .change(&id, Change::Write { offset: 258, data: "ab".into() })
            .change(&id, Change::Rename { to: ObjectId::new("d".into(), "p") });
        let mut encoded = Vec::new();
        encode(&txn, &mut encoded);
        let mut expected = vec![2, 0, 0, 0];
        expected.extend_from_slice(b"\x04\x01\0\0\0c\x01\0\0\0o\x02\x01\0\0\0\0\0\0\x02\0\0\0ab");
        expected.extend_from_slice(b"\x14\x01\0\0\0c\x01\0\0\0o\x01\0\0\0d\x01\0\0\0p");
        assert_eq!(encoded, expected);
    }
}
