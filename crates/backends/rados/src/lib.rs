//! Objects on Ceph RADOS, through the system's librados.
//!
//! `Cluster` → `Pool` → a compound operation: `Write`, `Read` → `Pool::write`, `Pool::read` → told by a
//! thread of librados
//!
//! A compound operation is done on one object, whole or not at all: its guards see the object as it was before. That is
//! what a shared log, keys and disks need of a store; no class has to be loaded into the OSDs.
//!
//! Invariants:
//! 1. A call does not wait: what comes of it is told later, once.
//! 2. What an operation points to lives until it is told.
//!
//! What librados 16.2 does with these operations is in the tests beside this crate (`tests/facts.rs`), which run on a
//! real cluster.

#![deny(unsafe_code)]
#![cfg_attr(not(feature = "librados"), forbid(unsafe_code))]

#[cfg(feature = "librados")]
#[allow(unsafe_code, reason = "a binding to a C library")]
mod native;

#[cfg(feature = "librados")]
pub use native::{Cluster, Compare, ConnectError, Failed, Found, Pool, Read, Write, flags};
