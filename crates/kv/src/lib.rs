//! Namespaces of keys on any [`ObjectStore`](esker_store::ObjectStore): the face of Zing Database.
//!
//! caller → [`Namespace`] (one key) or [`Txn`] (many) → stripe locks → one store transaction → `Completion`
//!
//! A namespace holds either `u64` keys, kept in slots, or byte keys, kept in an ordered omap ([`Kind`]). An
//! entry has a value, an optional expiry in unix milliseconds and a small tag that belongs to the face above.
//!
//! Invariants:
//! 1. Every change is one store transaction: an entry and its place in the expiry index come and go together.
//! 2. A change that depends on what is stored stands under a guard of it, so no update is lost, whichever process makes
//!    it. The stripe of its key, held from reading to submitting, keeps writers of one process from failing each
//!    other's guards.
//! 3. An expired entry is never returned, from the millisecond `expires_ms` on.
//! 4. What a call returns waits for the barriers of everything that it read.
//!
//! On a store that changes one object at a time a namespace lies in partitions, each an object: byte keys by their hash
//! slots, which are those of Redis Cluster (`{…}` keeps keys together), int keys by ranges of 65,536. What is all or
//! nothing is so within one partition, else refused ([`ACROSS_PARTITIONS`]); see docs/decisions/0028.
//!
//! Any number of processes may share a store, each with a [`Kv`] of its own. Between them a read of several keys in
//! several objects, and a scan that takes several calls of the store, may show writes made between its parts; their
//! clocks should agree about as well as expiries are to be exact. Format: docs/format.md#kv
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use std::sync::Arc;
//! use esker_kv::{Kind, Kv, SystemClock};
//!
//! let kv = Kv::open(Arc::new(esker_memory::MemoryStore::new()), Arc::new(SystemClock))?;
//! let users = kv.namespace("users", Kind::Bytes)?;
//! users.put("ada", "1815").wait()?;
//! assert_eq!(users.get("ada").wait()?.as_deref(), Some(&b"1815"[..]));
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

mod catalogue;
mod clock;
mod due;
mod entry;
mod error;
mod expiry;
mod few;
mod key;
mod kv;
mod layout;
mod locks;
mod many;
mod merge;
mod namespace;
mod pieces;
mod placement;
mod scan;
mod shared;
mod submit;
mod txn;

pub use clock::{Clock, ManualClock, SystemClock};
pub use entry::{Entry, Seen, TAG_MAX, VALUE_BYTES_MAX};
pub use error::{ACROSS_PARTITIONS, Error, Result};
pub use esker_store::{Barrier, Completion, Compression, Durability};
pub use key::{KEY_BYTES_MAX, Key, Kind, OwnedKey};
pub use kv::{Kv, NAMESPACE_NAME_BYTES_MAX};
pub use layout::{RANGE_KEYS, SLOTS, slot_of, slot_of_int};
pub use namespace::Namespace;
pub use scan::{InsertionIter, InsertionPage, Scan, ScanIter};
pub use txn::{ReadAhead, Txn};
