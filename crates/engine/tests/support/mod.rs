//! Engines on fresh memory devices, for the suites that every backend passes.
//!
//! Small buffers, so that reads come from the device as well.

use std::sync::Arc;

use esker_device::{Device, MemoryDevice};
use esker_engine::{CachePolicy, CompressOptions, Engine, FormatOptions, Options};
use esker_store::contract::{Harness, Opened};
use esker_store::{Compression, ObjectStore};

/// Makes engines on memory devices of `len` bytes, a zone a segment if `zoned`.
pub struct OnMemory {
    pub len: u64,
    pub segment_bytes: u64,
    pub zoned: bool,
    /// Budget for index pages.
    pub index_bytes: u64,
    pub compress: CompressOptions,
    pub cache_policy: CachePolicy,
}

struct Store {
    device: Arc<MemoryDevice>,
    options: Options,
    engine: Option<Engine>,
}

/// Compresses whatever it may, in small units, and keeps all that got smaller.
#[allow(dead_code, reason = "not every suite that uses this file has a variant with compression")]
pub fn eager(default: Compression) -> CompressOptions {
    CompressOptions { default, bytes_min: 1, unit_bytes: 4 << 10, ratio_max: 1.0 }
}

fn open(device: &Arc<MemoryDevice>, options: &Options) -> Engine {
    Engine::open(Arc::clone(device) as Arc<dyn Device>, options.clone()).unwrap()
}

impl Harness for OnMemory {
    fn fresh(&self) -> Box<dyn Opened> {
        let zone_bytes = self.segment_bytes.min(8 << 20);
        let device = if self.zoned { MemoryDevice::zoned(self.len, zone_bytes) } else { MemoryDevice::new(self.len) };
        let device = Arc::new(device);
        Engine::format(&*device, &FormatOptions { segment_bytes: self.segment_bytes, uuid: [3; 16] }).unwrap();
        let Self { index_bytes, compress, cache_policy, .. } = *self;
        let memory = Options { recent_bytes: 0, cache_bytes: 1 << 20, index_bytes, ..Options::default() };
        let options = Options { compress, cache_policy, ..memory };
        let engine = Some(open(&device, &options));
        Box::new(Store { device, options, engine })
    }
}

impl Opened for Store {
    fn store(&self) -> &dyn ObjectStore {
        self.engine.as_ref().unwrap()
    }

    fn reopen(&mut self) {
        let engine = self.engine.take().unwrap();
        engine.close().unwrap();
        drop(engine);
        self.engine = Some(open(&self.device, &self.options));
    }
}
