//! What a store can do.

use esker_store::{Capability, limits};

use crate::proto::store as proto;

/// What a store can do. Watching and sessions are not told: they are not served. Nor is where it is: for who is told of
/// it, it is behind this.
pub fn encode_capability(able: Capability) -> proto::CapabilityResponse {
    proto::CapabilityResponse {
        backend: able.backend.into(),
        atomic_across_objects: able.atomic_across_objects,
        atomic_across_collections: able.atomic_across_collections,
        native_slots: able.native_slots,
        commit_order: able.commit_order,
        clone: able.clone,
        cheap_clone: able.cheap_clone,
        persistent: able.persistent,
        compresses: able.compresses,
        transaction_bytes_max: able.transaction_bytes_max,
        object_bytes_max: Some(able.object_bytes_max),
        exact_extents: Some(able.exact_extents),
        reverse_scans: Some(able.reverse_scans),
    }
}

/// What a store that is called `backend` here can do; it is behind a network. Limits are at most those of all stores.
pub fn decode_capability(backend: &'static str, able: &proto::CapabilityResponse) -> Capability {
    Capability {
        backend,
        atomic_across_objects: able.atomic_across_objects,
        atomic_across_collections: able.atomic_across_collections,
        native_slots: able.native_slots,
        commit_order: able.commit_order,
        clone: able.clone,
        cheap_clone: able.cheap_clone,
        persistent: able.persistent,
        compresses: able.compresses,
        transaction_bytes_max: able.transaction_bytes_max.min(limits::TRANSACTION_BYTES_MAX as u64),
        transaction_ops_max: limits::TRANSACTION_OPS_MAX as u64,
        object_bytes_max: able.object_bytes_max.unwrap_or(u64::MAX).min(limits::OBJECT_BYTES_MAX),
        exact_extents: able.exact_extents.unwrap_or(true),
        reverse_scans: able.reverse_scans.unwrap_or(true),
        watches: false,
        sessions: false,
        afar: true,
    }
}
