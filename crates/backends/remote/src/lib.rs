//! The store of a running server, from other processes: an [`ObjectStore`](esker_store::ObjectStore) over gRPC, its map
//! as a [`MapStorage`](esker_map::MapStorage), and sequencers of logs found by their address.
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
//! Format: crates/server/proto/esker/store/v1/objects.proto, crates/server/proto/esker/map/v1/map.proto

#![forbid(unsafe_code)]

mod address;
mod call;
mod decode;
mod encode;
mod map;
mod once;
mod sequencer;
mod store;

/// Messages and services, generated from the server's published files.
pub(crate) mod proto {
    #![allow(missing_docs, clippy::all, rustdoc::all, unreachable_pub)]

    pub(crate) mod log {
        tonic::include_proto!("esker.log.v1");
    }

    pub(crate) mod map {
        tonic::include_proto!("esker.map.v1");
    }

    pub(crate) mod store {
        tonic::include_proto!("esker.store.v1");
    }
}

pub use address::{Error, Options, Place, Result};
pub use map::RemoteMap;
pub use sequencer::Sequencers;
pub use store::RemoteStore;
