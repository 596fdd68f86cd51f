//! The ordered key-value stores that this backend can stand on.
//!
//! Invariant: each passes the same contract and model suites through [`crate::KeyValueStore`].

#[cfg(any(feature = "rocksdb", feature = "leveldb"))]
mod foreign;
#[cfg(feature = "leveldb")]
pub mod leveldb;
#[cfg(feature = "rocksdb")]
pub mod rocksdb;
pub mod tree;
