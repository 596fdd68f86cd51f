//! What Esker's processes say to one another over gRPC: the published `.proto` files, and the types of the store, the
//! log and the map as messages and back.
//!
//! caller → a face's type → `encode_…` → message → network → `decode_…` → a face's type → callee
//!
//! For each type both directions stand beside each other, and a test takes generated values there and back.
//! `encode_…` cannot fail; `decode_…` checks what the network brings.
//!
//! Invariants:
//! 1. What was encoded decodes to what it was, save for what its decoder says that it leaves out.
//! 2. A message that makes no sense gives an [`Error`] that names the field: never a panic, never a guess.
//! 3. Decoding looks at numbers within a message (places in lists, counts, depths, lengths of names) before it takes
//!    memory by them. What a message takes before it is decoded is bounded by its length, which its reader limits.
//!
//! Format: crates/wire/proto/esker/store/v1/objects.proto, crates/wire/proto/esker/map/v1/map.proto,
//! crates/wire/proto/esker/log/v1/log.proto, crates/wire/proto/esker/chain/v1/replication.proto,
//! crates/wire/proto/esker/chain/v1/pair.proto, crates/wire/proto/esker/chain/v1/moving.proto,
//! crates/wire/proto/esker/chain/v1/keys.proto

#![forbid(unsafe_code)]

mod durability;
mod error;
mod kept;
pub mod log;
pub mod map;
mod named;
pub mod proto;
pub mod store;

pub use error::{Error, Result};
pub use named::Named;
