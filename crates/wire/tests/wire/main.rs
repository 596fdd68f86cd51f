//! Types of the store, the map and the log as messages, over bytes, and back; and messages that make no sense.
//!
//! generated value → message → bytes → message → value, which must be the same

mod log;
mod malformed;
mod map;
mod store;

use bytes::Bytes;
use proptest::prelude::*;
use prost::Message;

/// A message as it arrives at the other side.
fn sent<M: Message + Default>(message: &M) -> M {
    M::decode(&message.encode_to_vec()[..]).expect("what was encoded is a message")
}

fn bytes() -> impl Strategy<Value = Bytes> {
    prop::collection::vec(any::<u8>(), 0..12).prop_map(Bytes::from)
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof!["[a-z]{0,6}", any::<String>()]
}
