//! The seeded model test on the engine, with reopening. One seed alone: `ESKER_MODEL_SEED=17 cargo test -p esker-engine --test model`.

#![allow(clippy::unwrap_used, reason = "a test that fails")]

use std::sync::Arc;

use esker_device::{Device, MemoryDevice};
use esker_engine::{Engine, FormatOptions, Options};
use esker_store::ObjectStore;
use esker_store::contract::{Harness, Opened};
use esker_store::model;

const SEGMENT_BYTES: u64 = 4 << 20;

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
        let len = 1 << 30;
        let device = if self.zoned { MemoryDevice::zoned(len, SEGMENT_BYTES) } else { MemoryDevice::new(len) };
        let device = Arc::new(device);
        Engine::format(&*device, &FormatOptions { segment_bytes: SEGMENT_BYTES, uuid: [4; 16] }).unwrap();
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

#[test]
fn the_engine_does_what_the_model_does() {
    if let Some(seed) = std::env::var("ESKER_MODEL_SEED").ok().and_then(|seed| seed.parse().ok()) {
        return model::run(seed, 60, &OnMemory { zoned: false });
    }
    for seed in 0..100 {
        model::run(seed, 60, &OnMemory { zoned: seed % 4 == 3 });
    }
}

#[test]
fn a_long_run_does_what_the_model_does() {
    model::run(1000, 700, &OnMemory { zoned: false });
}
