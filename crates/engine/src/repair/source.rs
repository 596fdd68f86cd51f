//! What was found of a store: its shape and its index, and what reads its values.

use std::sync::Arc;

use esker_device::Device;

use crate::format::Superblock;
use crate::objects::Objects;
use crate::reader::Reader;
use crate::segments::Segments;

/// What was found of a store, ready to be copied.
pub(super) struct Source {
    pub device: Arc<dyn Device>,
    pub shape: Superblock,
    pub seed: u32,
    pub segments: Arc<Segments>,
    pub reader: Arc<Reader>,
    pub objects: Arc<Objects>,
    pub torn_bytes: u64,
}
