//! The binding: C declarations, a cluster and its pools, compound operations, watches.

mod cluster;
mod library;
mod operation;
mod watch;

pub use cluster::{Cluster, ConnectError, Pool, flags};
pub use operation::{Compare, Failed, Found, Read, Write};
pub use watch::{Ear, Heard, Watch};
