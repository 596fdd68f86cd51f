//! Messages, clients and services, generated from the published files in the crate's folder `proto`.

#![allow(missing_docs, clippy::all, rustdoc::all)]

/// Packages one of which names types of the other, in modules as it expects them.
mod packages {
    pub mod chain {
        pub mod v1 {
            tonic::include_proto!("esker.chain.v1");
        }
    }

    pub mod store {
        pub mod v1 {
            tonic::include_proto!("esker.store.v1");
        }
    }
}

/// `esker.chain.v1`
pub use packages::chain::v1 as chain;
/// `esker.store.v1`
pub use packages::store::v1 as store;

/// `esker.log.v1`
pub mod log {
    tonic::include_proto!("esker.log.v1");
}

/// `esker.map.v1`
pub mod map {
    tonic::include_proto!("esker.map.v1");
}

/// The paths of all methods, sorted.
pub const METHODS: &[&str] = include!(concat!(env!("OUT_DIR"), "/methods.rs"));

/// All files as descriptors, for reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
