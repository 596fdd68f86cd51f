//! The contract of the waist on a real cluster.
//!
//! CEPH_CONF names the configuration of a cluster with a pool `bench`.

#![cfg(feature = "librados")]

mod support;

esker_store::contract_suite!(support::Rados);
