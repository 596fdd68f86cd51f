//! Tests of the key-value face on the memory backend, one file per promise or group of calls.
//!
//! Every test makes its own store with [`fresh`]; those that restart open a second `Kv` on the same store.

#![allow(missing_docs, clippy::unwrap_used)]

mod barriers;
mod calls;
mod compression;
mod expiry;
mod limits;
mod model;
mod races;
mod scans;
mod several;
mod slow;
mod support;
mod transactions;

pub use support::*;

/// Namespaces lie whole.
pub const PARTED: bool = false;
