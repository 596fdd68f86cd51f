//! Objects on Ceph RADOS, through the system's librados.
//!
//! `Cluster` → `Pool` → `RadosStore` → an operation for each transaction: `Write`, `Read` → told by a thread of
//! librados
//!
//! A compound operation is done on one object, whole or not at all: its guards see the object as it was before. That is
//! what a shared log, keys and disks need of a store; no class has to be loaded into the OSDs.
//!
//! Invariants:
//! 1. A transaction shows by one operation on its object, or not at all.
//! 2. What an operation points to lives until it is told.
//!
//! What librados 16.2 does with these operations is in the tests beside this crate (`tests/facts.rs`), which run on a
//! real cluster; why names and new objects are kept as they are in docs/decisions/0027-rados-operations.md.

#![deny(unsafe_code)]
#![cfg_attr(not(feature = "librados"), forbid(unsafe_code))]

#[cfg(feature = "librados")]
mod change;
#[cfg(feature = "librados")]
mod connect;
#[cfg(feature = "librados")]
mod encode;
#[cfg(feature = "librados")]
mod entries;
#[cfg(feature = "librados")]
mod fold;
#[cfg(feature = "librados")]
mod fullness;
#[cfg(feature = "librados")]
mod link;
#[cfg(feature = "librados")]
mod names;
#[cfg(feature = "librados")]
#[allow(unsafe_code, reason = "a binding to a C library")]
mod native;
#[cfg(feature = "librados")]
mod notices;
#[cfg(feature = "librados")]
mod options;
#[cfg(feature = "librados")]
mod reads;
#[cfg(feature = "librados")]
mod store;
#[cfg(feature = "librados")]
mod submits;

#[cfg(feature = "librados")]
pub use options::{DataPool, NAME_BYTES_MAX, OpenError, Options};
#[cfg(feature = "librados")]
pub use store::RadosStore;

#[cfg(feature = "librados")]
pub use native::{Cluster, Compare, ConnectError, Ear, Failed, Found, Heard, Pool, Read, Watch, Write, flags};
