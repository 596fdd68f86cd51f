//! The binding: C declarations, a cluster and its pools, compound operations.

mod cluster;
mod library;
mod operation;

pub use cluster::{Cluster, ConnectError, Pool, flags};
pub use operation::{Compare, Failed, Found, Read, Write};
