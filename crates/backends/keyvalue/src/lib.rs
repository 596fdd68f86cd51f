//! The key-value backend: an [`ObjectStore`](esker_store::ObjectStore) on an ordered key-value store: RocksDB, LevelDB,
//! or RocksDB with files for large data (newstore).
//!
//! submit → guards and operations on a draft → overlay (applied) → commit thread: many transactions, one batch, one
//! sync → store
//!
//! The four spaces of an object are ranges of keys (see the module `keys`). Bytes are cut into strips, so that a small
//! write touches one; a store without strips keeps them in one value, which is what strips are measured against. Why it
//! is so: docs/decisions/0007-keyvalue-backend.md.
//!
//! Invariants:
//! 1. After a crash the state is that after a prefix of commit order which holds every durable commit.
//! 2. The engines see batches in commit order, from one thread; reads go to them from any.
//!
//! Source: Ceph's KeyValueStore on LevelDB (2013) and NewStore (2015).

#![deny(unsafe_code)]
// Without an engine there is no foreign code.
#![cfg_attr(not(any(feature = "rocksdb", feature = "leveldb")), forbid(unsafe_code))]

mod commit;
mod draft;
#[cfg_attr(any(feature = "rocksdb", feature = "leveldb"), allow(unsafe_code, reason = "bindings to C interfaces"))]
mod engines;
mod error;
mod files;
mod keys;
mod open;
mod ops;
mod ordered;
mod overlay;
mod reads;
mod records;
mod store;
mod strip;
mod strips;
mod sweep;

pub use commit::Figures;
pub use engines::tree::Tree;
pub use error::{Error, Result};
pub use open::{FORMAT_VERSION, KIND_FILE, Kind, Options, STRIP_BYTES_MAX, STRIP_BYTES_MIN, kind_of};
pub use ordered::{Batch, Cursor, Entry, Ordered};
pub use store::KeyValueStore;
pub use strip::StripLen;
