//! The memory backend: an [`ObjectStore`](esker_store::ObjectStore) that keeps everything in ordinary maps.
//!
//! submit → [`Transaction::check`](esker_store::Transaction::check) → lock → guards → names dry run → apply → ready
//!
//! It is the reference for the semantics of the waist: when its behaviour and another backend's differ, and the
//! contract suite does not say who is right, this one is the simplest reading of the trait's documentation.
//! Nothing here survives the process ([`Capability::persistent`](esker_store::Capability::persistent) is false).

#![forbid(unsafe_code)]

mod names;
mod object;
mod runs;
mod store;
mod watches;

pub use store::MemoryStore;
