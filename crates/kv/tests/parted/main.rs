//! The tests of the face, on namespaces in partitions: on a store that can change several of them at once, so that all
//! calls work; and, in `lone`, what is left on one that cannot.

#![allow(missing_docs, clippy::unwrap_used)]

mod bounded;
#[path = "../kv/calls.rs"]
mod calls;
mod clears;
#[path = "../kv/expiry.rs"]
mod expiry;
#[path = "../kv/limits.rs"]
mod limits;
mod lone;
#[path = "../kv/model.rs"]
mod model;
#[path = "../kv/races.rs"]
mod races;
#[path = "../kv/scans.rs"]
mod scans;
#[path = "../kv/slow.rs"]
mod slow;
#[path = "../kv/support.rs"]
mod support;
#[path = "../kv/transactions.rs"]
mod transactions;

pub use support::*;

/// Namespaces lie in partitions.
pub const PARTED: bool = true;
