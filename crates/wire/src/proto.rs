//! Messages, clients and services, generated from the published files in the crate's folder `proto`.

#![allow(missing_docs, clippy::all, rustdoc::all)]

/// `esker.log.v1`
pub mod log {
    tonic::include_proto!("esker.log.v1");
}

/// `esker.map.v1`
pub mod map {
    tonic::include_proto!("esker.map.v1");
}

/// `esker.store.v1`
pub mod store {
    tonic::include_proto!("esker.store.v1");
}

/// The paths of all methods, sorted.
pub const METHODS: &[&str] = include!(concat!(env!("OUT_DIR"), "/methods.rs"));

/// All files as descriptors, for reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
