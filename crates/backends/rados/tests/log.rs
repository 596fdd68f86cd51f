//! The whole suite of the log's face, on a real cluster.
//!
//! CEPH_CONF names the configuration of a cluster with a pool `bench`.

#![cfg(feature = "librados")]
#![allow(clippy::unwrap_used, reason = "a test that fails")]

#[path = "../../../log/tests/log/appending.rs"]
mod appending;
#[path = "../../../log/tests/log/checking.rs"]
mod checking;
#[path = "support/mod.rs"]
mod cluster;
#[path = "../../../log/tests/log/following.rs"]
mod following;
#[path = "../../../log/tests/log/machines.rs"]
mod machines;
#[path = "../../../log/tests/log/promises.rs"]
mod promises;
#[path = "../../../log/tests/log/racing.rs"]
mod racing;
#[path = "../../../log/tests/log/space.rs"]
mod space;
#[path = "../../../log/tests/log/support.rs"]
mod support;
#[path = "../../../log/tests/log/taking_over.rs"]
mod taking_over;
#[path = "../../../log/tests/log/watching.rs"]
mod watching;
#[path = "../../../log/tests/log/zlog/mod.rs"]
mod zlog;

use std::sync::Arc;

use esker_store::ObjectStore;

/// A store of its own on the cluster.
pub fn stores() -> Vec<(Arc<dyn ObjectStore>, &'static str)> {
    vec![(Arc::new(cluster::store(&cluster::namespace())), "rados")]
}
