//! Names and other words that keys and payloads hold.
//!
//! Format: docs/format.md#operation-header

use esker_store::limits::OBJECT_NAME_BYTES_MAX;
use esker_store::{Collection, ObjectId};
use smallvec::SmallVec;

use super::{read_u64, write_u64};

/// Collection and name in one key: length of the collection's name (1 byte), that name, and the object's.
pub fn encode_name(id: &ObjectId) -> SmallVec<[u8; 64]> {
    let collection = id.collection().name();
    let mut key = SmallVec::with_capacity(1 + collection.len() + id.name().len());
    key.push(collection.len() as u8);
    key.extend_from_slice(collection);
    key.extend_from_slice(id.name());
    key
}

/// The name that a key holds.
pub fn decode_name(key: &[u8]) -> Option<ObjectId> {
    let (len, names) = key.split_first()?;
    let (collection, name) = names.split_at_checked(usize::from(*len))?;
    if name.len() > OBJECT_NAME_BYTES_MAX {
        return None;
    }
    Some(ObjectId::new(Collection::new(collection.to_vec()), name.to_vec()))
}

/// Target, first byte of the source, length and first byte of the target of a
/// [`Kind::CloneRange`](super::Kind::CloneRange).
pub fn clone_range_words(payload: &[u8]) -> Option<[u64; 4]> {
    (payload.len() == 32).then(|| [0, 8, 16, 24].map(|at| read_u64(payload, at)))
}

/// The payload that holds these words, see [`clone_range_words`].
pub fn clone_range_payload(words: [u64; 4]) -> [u8; 32] {
    let mut payload = [0; 32];
    for (nth, word) in words.into_iter().enumerate() {
        write_u64(&mut payload, 8 * nth, word);
    }
    payload
}
