//! The log's promises, on several stores and in every layout.

#![allow(clippy::unwrap_used, reason = "a test that fails")]

mod appending;
mod checking;
mod following;
mod machines;
mod promises;
mod racing;
mod space;
mod support;
mod taking_over;
mod watching;
mod zlog;

use std::sync::Arc;

use esker_memory::MemoryStore;
use esker_store::ObjectStore;
use esker_store::contract::PerObject;

/// The engine, the memory backend, which has no native slots, and one that changes one object at a time.
pub fn stores() -> Vec<(Arc<dyn ObjectStore>, &'static str)> {
    vec![
        (support::engine(), "engine"),
        (Arc::new(MemoryStore::new()), "memory"),
        (Arc::new(PerObject(MemoryStore::new())), "single objects"),
    ]
}
