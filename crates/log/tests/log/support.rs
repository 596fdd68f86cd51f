//! Stores, layouts and clocks for the tests.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use esker_device::MemoryDevice;
use esker_engine::{Engine, FormatOptions, Options as EngineOptions};
use esker_log::{Layout, Log, Logs, Options, Session};
use esker_store::ObjectStore;

/// A clock that the test sets.
#[derive(Clone, Default)]
pub struct Time(Arc<AtomicU64>);

impl Time {
    pub fn pass(&self, ms: u64) {
        self.0.fetch_add(ms, Ordering::SeqCst);
    }

    pub fn clock(&self) -> esker_log::Clock {
        let time = self.clone();
        Arc::new(move || 1_000_000 + time.0.load(Ordering::SeqCst))
    }
}

pub fn engine() -> Arc<dyn ObjectStore> {
    let device = Arc::new(MemoryDevice::new(512 << 20));
    Engine::format(&*device, &FormatOptions { segment_bytes: 8 << 20, uuid: [7; 16] }).unwrap();
    Arc::new(Engine::open(device, EngineOptions::default()).unwrap())
}

/// Calls `test` with every layout on every store that these tests are for.
pub fn everywhere(test: impl Fn(Arc<dyn ObjectStore>, Layout)) {
    for (layout, name) in Layout::ALL {
        for (store, backend) in crate::stores() {
            println!("layout {name} on {backend}");
            test(store, layout);
        }
    }
}

/// Another process on the same store, as far as logs can tell.
pub fn session(store: &Arc<dyn ObjectStore>, nonce: u64, time: &Time) -> Logs {
    Logs::open(Arc::clone(store), Session::new(time.clock(), nonce)).unwrap()
}

/// Small stripes, so that every test crosses several.
pub fn options(layout: Layout) -> Options {
    Options { layout, width: 3, slots: 4, inline_bytes_max: 16, ..Options::default() }
}

pub fn log(store: &Arc<dyn ObjectStore>, layout: Layout) -> (Logs, Log) {
    let logs = session(store, 1, &Time::default());
    let log = logs.create("test", options(layout)).unwrap();
    (logs, log)
}

pub fn append(log: &Log, data: impl Into<Vec<u8>>) -> u64 {
    log.append(data.into()).unwrap().wait().unwrap()
}

/// Everything in the log holds together.
pub fn sound(log: &Log) -> esker_log::Checked {
    let checked = log.check(true, |_, _| true).unwrap();
    assert_eq!(checked.problems, Vec::<String>::new());
    checked
}
