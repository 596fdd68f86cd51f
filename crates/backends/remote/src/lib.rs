//! The store of a running server, from other processes: an [`ObjectStore`](esker_store::ObjectStore) over gRPC, its map
//! as a [`MapStorage`](esker_map::MapStorage), sequencers of logs found by their address, and streams of appends to
//! logs.
//!
//! call on a thread → request → task on a small runtime → HTTP/2 → `esker serve` (the store only with `--grpc-objects`)
//! → answer → the thread goes on
//!
//! Several processes that open the same server work on one store as the faces mean it: what they must not do twice is
//! guarded in the objects.
//!
//! Invariants:
//! 1. What is answered may be shown: the server has awaited its durability.
//! 2. An answer that was lost is an [`Error::Unknown`](esker_store::Error::Unknown), of a mutation of the map
//!    [`Error::Unknown`](esker_map::Error::Unknown): whether it was applied is then not known, and a guard makes trying
//!    again safe. Reads, and transactions that ask for it ([`Transaction::once`](esker_store::Transaction::once)), are
//!    tried again here.
//!
//! Format: crates/wire/proto/esker/store/v1/objects.proto, crates/wire/proto/esker/map/v1/map.proto

#![forbid(unsafe_code)]

mod address;
mod appender;
mod call;
mod failure;
mod map;
mod once;
mod sequencer;
mod store;

pub use address::{Error, Options, Place, Result};
pub use appender::{AppendError, Appender};
pub use map::RemoteMap;
pub use sequencer::Sequencers;
pub use store::RemoteStore;
