//! The contract and the model test on the engine, on a device in memory.

#![allow(clippy::unwrap_used, reason = "a test that fails")]

use std::sync::Arc;

use esker_device::{Device, MemoryDevice};
use esker_engine::{Engine, FormatOptions, Options};
use esker_store::ObjectStore;
use esker_store::contract::{Harness, Opened};

/// Stores on fresh memory devices. Small buffers, so that reads come from the device as well.
struct OnMemory {
    zoned: bool,
}

struct Store {
    device: Arc<MemoryDevice>,
    engine: Option<Engine>,
}

fn open(device: &Arc<MemoryDevice>) -> Engine {
    let options = Options { recent_bytes: 0, cache_bytes: 1 << 20, ..Options::default() };
    Engine::open(Arc::clone(device) as Arc<dyn Device>, options).unwrap()
}

impl Harness for OnMemory {
    fn fresh(&self) -> Box<dyn Opened> {
        let len = 4 << 30;
        let device = if self.zoned { MemoryDevice::zoned(len, 8 << 20) } else { MemoryDevice::new(len) };
        let device = Arc::new(device);
        Engine::format(&*device, &FormatOptions::new([3; 16])).unwrap();
        let engine = Some(open(&device));
        Box::new(Store { device, engine })
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
        self.engine = Some(open(&self.device));
    }
}

mod plain {
    esker_store::contract_suite!(super::OnMemory { zoned: false });
}

mod zoned {
    esker_store::contract_suite!(super::OnMemory { zoned: true });
}
