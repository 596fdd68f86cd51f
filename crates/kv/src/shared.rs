//! What all namespaces and transactions of one [`Kv`](crate::Kv) share: the store, the clock, the locks, the default.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use esker_store::{Durability, ObjectStore};

use crate::Clock;
use crate::locks::Locks;

/// What all namespaces and transactions of one [`Kv`](crate::Kv) share.
pub(crate) struct Shared {
    pub(crate) store: Arc<dyn ObjectStore>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) locks: Locks,
    pub(crate) applied_by_default: AtomicBool,
    /// Whether namespaces that are made lie in partitions.
    pub(crate) parted: bool,
}

impl Shared {
    pub(crate) fn default_durability(&self) -> Durability {
        if self.applied_by_default.load(Ordering::Relaxed) { Durability::Applied } else { Durability::Durable }
    }
}
