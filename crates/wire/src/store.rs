//! The store's types as messages and back: what `esker.store.v1.Objects` is asked and what it answers.
//!
//! transaction → `SubmitRequest` · read → its request → answer · error → status with a `StoreError`
//!
//! Format: crates/wire/proto/esker/store/v1/objects.proto

mod answers;
mod capability;
mod failure;
mod object;
mod requests;
mod transaction;

pub use answers::*;
pub use capability::{decode_capability, encode_capability};
pub use failure::{ERROR, decode_error, decode_status, encode_error, encode_status, is_told, name_error};
pub use object::{decode_object, encode_object};
pub use requests::*;
pub use transaction::{decode_transaction, encode_transaction};

/// Metadata of every answer: the life of the store that gave it, a decimal number.
pub const INCARNATION: &str = "esker-incarnation";
