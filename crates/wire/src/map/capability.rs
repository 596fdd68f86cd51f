//! What a storage of the map can do.

use esker_map::{Atomicity, MUTATIONS_MAX, MapCapability};

use crate::proto::map as proto;

/// What a storage can do.
pub fn encode_capability(able: MapCapability) -> proto::CapabilityResponse {
    let atomicity = match able.atomicity {
        Atomicity::Record => proto::Atomicity::Record,
        Atomicity::Partition => proto::Atomicity::Partition,
        Atomicity::Storage => proto::Atomicity::Storage,
    };
    proto::CapabilityResponse {
        storage: able.storage.into(),
        atomicity: atomicity.into(),
        indexes: able.indexes,
        filters: able.filters,
        expiry: able.expiry,
        persistent: able.persistent,
        mutations_max: MUTATIONS_MAX as u32,
    }
}

/// What a storage that is called `storage` here can do. An atomicity that is not known here is taken for the least.
pub fn decode_capability(storage: &'static str, able: &proto::CapabilityResponse) -> MapCapability {
    let atomicity = match able.atomicity() {
        proto::Atomicity::Storage => Atomicity::Storage,
        proto::Atomicity::Partition => Atomicity::Partition,
        proto::Atomicity::Record | proto::Atomicity::Unspecified => Atomicity::Record,
    };
    MapCapability {
        storage,
        atomicity,
        indexes: able.indexes,
        filters: able.filters,
        expiry: able.expiry,
        persistent: able.persistent,
    }
}
