//! What a device that fails or is slow does to the engine.

#![allow(clippy::unwrap_used, reason = "a test that fails")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use esker_device::{Device, Error as DeviceError, Geometry, MemoryDevice, Result as DeviceResult};
use esker_engine::{Engine, FormatOptions, Options};
use esker_store::{Change, Collection, Error, ObjectId, ObjectStore, Transaction};

const VALUE_BYTES: usize = 20_000;

/// Fails so many of the next reads or syncs; every sync takes as long as it is told.
struct Failing {
    device: MemoryDevice,
    reads: AtomicU64,
    syncs: AtomicU64,
    sync_ms: AtomicU64,
}

impl Failing {
    fn new() -> Arc<Self> {
        let device = MemoryDevice::new(4 << 20);
        Engine::format(&device, &FormatOptions { segment_bytes: 64 << 10, uuid: [3; 16] }).unwrap();
        let none = || AtomicU64::new(0);
        Arc::new(Self { device, reads: none(), syncs: none(), sync_ms: none() })
    }

    fn fails(&self, left: &AtomicU64, what: &'static str, offset: u64) -> DeviceResult<()> {
        let failing = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok();
        if !failing {
            return Ok(());
        }
        let source = std::io::Error::other("the platter is scratched");
        Err(DeviceError::Io { name: self.device.name(), what, offset, source })
    }
}

impl Device for Failing {
    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }
    fn read(&self, offset: u64, buffer: &mut [u8]) -> DeviceResult<()> {
        self.fails(&self.reads, "read", offset)?;
        self.device.read(offset, buffer)
    }
    fn write(&self, offset: u64, data: &[u8]) -> DeviceResult<()> {
        self.device.write(offset, data)
    }
    fn sync(&self) -> DeviceResult<()> {
        std::thread::sleep(Duration::from_millis(self.sync_ms.load(Ordering::Relaxed)));
        self.fails(&self.syncs, "sync", 0)?;
        self.device.sync()
    }
    fn reserve(&self, offset: u64, len: u64) -> DeviceResult<()> {
        self.device.reserve(offset, len)
    }
    fn discard(&self, offset: u64, len: u64) -> DeviceResult<()> {
        self.device.discard(offset, len)
    }
    fn name(&self) -> String {
        self.device.name()
    }
}

fn object() -> ObjectId {
    ObjectId::new(Collection::from("c"), "o")
}

fn put(engine: &Engine, index: u64) -> Result<(), Error> {
    let value = Bytes::from(vec![index as u8; VALUE_BYTES]);
    engine.submit(Transaction::new().change(&object(), Change::SlotSet { index, value })).wait().map(|_| ())
}

/// A store with more data than stays in memory: slot 0 has to be read from the device.
fn filled(device: &Arc<Failing>) -> Engine {
    let options = Options { recent_bytes: 0, cache_bytes: 0, slow_io: Duration::from_millis(5), ..Options::default() };
    let engine = Engine::open(Arc::clone(device) as Arc<dyn Device>, options).unwrap();
    engine.submit(Transaction::new().create_collection(&Collection::from("c"))).wait().unwrap();
    for index in 0..12 {
        put(&engine, index).unwrap();
    }
    engine
}

#[test]
fn a_failed_read_is_tried_once_more_and_then_is_an_error_with_its_place() {
    let device = Failing::new();
    let engine = filled(&device);
    let value = Some(Bytes::from(vec![0; VALUE_BYTES]));
    device.reads.store(1, Ordering::Relaxed);
    assert_eq!(engine.slot_get(&object(), 0).wait().unwrap(), value);
    assert_eq!(engine.stats().read_retries, 1);
    device.reads.store(2, Ordering::Relaxed);
    let error = engine.slot_get(&object(), 0).wait().unwrap_err().to_string();
    assert!(error.contains("offset"), "{error}");
    assert_eq!(engine.slot_get(&object(), 0).wait().unwrap(), value, "the device has recovered");
    put(&engine, 99).unwrap();
}

#[test]
fn a_failed_sync_stops_writing_with_the_first_cause_and_durable_data_can_be_read() {
    let device = Failing::new();
    let engine = filled(&device);
    device.syncs.store(1, Ordering::Relaxed);
    for _ in 0..2 {
        let error = put(&engine, 100).unwrap_err().to_string();
        assert!(error.contains("scratched"), "{error}");
    }
    assert!(engine.slot_get(&object(), 0).wait().unwrap().is_some());
    assert!(engine.slot_get(&object(), 11).wait().unwrap().is_some());
}

#[test]
fn slow_calls_are_counted() {
    let device = Failing::new();
    let engine = filled(&device);
    let before = engine.stats().slow_calls;
    device.sync_ms.store(20, Ordering::Relaxed);
    put(&engine, 100).unwrap();
    let stats = engine.stats();
    assert!(stats.slow_calls > before, "{stats:?}");
    assert!(stats.sync_latency.max_us >= 20_000, "{stats:?}");
}

#[test]
fn a_writer_that_comes_alone_after_a_crowd_is_not_slept_through() {
    const ROUNDS: u64 = 20;
    let device = Failing::new();
    device.sync_ms.store(2, Ordering::Relaxed);
    let options = Options { async_flush: Duration::from_secs(3600), ..Options::default() };
    let engine = Engine::open(Arc::clone(&device) as Arc<dyn Device>, options).unwrap();
    engine.submit(Transaction::new().create_collection(&Collection::from("c"))).wait().unwrap();
    let write = |index: u64| {
        let value = Bytes::from_static(b"value");
        engine.submit(Transaction::new().change(&object(), Change::SlotSet { index, value })).wait().unwrap();
    };
    let began = std::time::Instant::now();
    for _ in 0..ROUNDS {
        std::thread::scope(|scope| {
            for writer in 0..4 {
                scope.spawn(move || (0..4).for_each(|turn| write(writer * 4 + turn)));
            }
        });
        // The crowd does not come back. The commit thread must have given up on it by the time that a writer waits.
        std::thread::sleep(Duration::from_millis(5));
        write(100);
    }
    // Slept through, a write waits for a second.
    assert!(began.elapsed() < Duration::from_secs(ROUNDS / 2), "{:?}", began.elapsed());
}
