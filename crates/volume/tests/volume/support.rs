//! Stores to run volumes on.

use std::sync::Arc;

use bytes::Bytes;
use esker_device::{Device, MemoryDevice};
use esker_engine::{Engine, FormatOptions, Options};
use esker_memory::MemoryStore;
use esker_store::ObjectStore;
use esker_volume::{Durability, Image, Layout, Volumes};

/// A layout of small objects, so that little data is many of them.
pub const SMALL: Layout = Layout { object_bytes: 64 << 10, stripe_unit: 64 << 10, stripe_count: 1 };
/// The same, striped.
pub const STRIPED: Layout = Layout { object_bytes: 64 << 10, stripe_unit: 8 << 10, stripe_count: 3 };

pub fn device(bytes: u64) -> Arc<MemoryDevice> {
    let device = Arc::new(MemoryDevice::new(bytes));
    Engine::format(&*device, &FormatOptions { segment_bytes: 1 << 20, uuid: [5; 16] }).unwrap();
    device
}

pub fn engine_on(device: &Arc<MemoryDevice>) -> Arc<Engine> {
    let options = Options { recent_bytes: 0, cache_bytes: 1 << 20, ..Options::default() };
    Arc::new(Engine::open(Arc::clone(device) as Arc<dyn Device>, options).unwrap())
}

pub fn memory() -> Volumes {
    Volumes::open(Arc::new(MemoryStore::new())).unwrap()
}

pub fn engine() -> Volumes {
    Volumes::open(engine_on(&device(256 << 20)) as Arc<dyn ObjectStore>).unwrap()
}

/// Both, for what is to hold everywhere.
pub fn both() -> [Volumes; 2] {
    [memory(), engine()]
}

pub fn write(image: &Image, offset: u64, data: impl Into<Bytes>) {
    image.write(offset, data.into(), Durability::Applied).unwrap().wait().unwrap();
}

pub fn file(path: &std::path::Path) -> Arc<esker_file::FileStore> {
    Arc::new(esker_file::FileStore::open(path, esker_file::Options::default()).unwrap())
}
