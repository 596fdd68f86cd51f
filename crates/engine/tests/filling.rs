//! The log goes on while the space before it is filled with zeros: in the open segment, and in the next.

#![allow(clippy::unwrap_used, reason = "a test that fails")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use esker_device::{Device, Geometry, MemoryDevice, Result as DeviceResult};
use esker_engine::{Engine, FormatOptions, Options};
use esker_store::{Change, Collection, Durability, ObjectId, ObjectStore, Transaction};

const SEGMENT_BYTES: u64 = 8 << 20;
const VALUE_BYTES: usize = 60_000;
const ROUND_VALUES: u64 = 14;
const ROUNDS: u64 = 50;

/// Takes its time to fill: the log comes to where zeros are being written.
struct Slow {
    device: MemoryDevice,
    opened: AtomicBool,
    pieces: AtomicU64,
    longest: AtomicU64,
}

impl Device for Slow {
    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }
    fn read(&self, offset: u64, buffer: &mut [u8]) -> DeviceResult<()> {
        self.device.read(offset, buffer)
    }
    fn write(&self, offset: u64, data: &[u8]) -> DeviceResult<()> {
        self.device.write(offset, data)
    }
    fn sync(&self) -> DeviceResult<()> {
        self.device.sync()
    }
    fn reserve(&self, offset: u64, len: u64) -> DeviceResult<()> {
        self.device.reserve(offset, len)
    }
    fn prefill(&self, offset: u64, len: u64) -> DeviceResult<()> {
        if self.opened.load(Ordering::Relaxed) {
            self.pieces.fetch_add(1, Ordering::Relaxed);
            self.longest.fetch_max(len, Ordering::Relaxed);
            // The log is there by now, and would have written.
            std::thread::sleep(Duration::from_millis(60));
        }
        // Zeros, whatever stood there: a file would leave alone what was written before.
        self.device.write(offset, &vec![0; len as usize])
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

fn value(index: u64) -> Bytes {
    let mut value = vec![index as u8 | 1; VALUE_BYTES];
    value[..8].copy_from_slice(&index.to_le_bytes());
    value.into()
}

fn put(engine: &Engine, index: u64, value: impl Into<Bytes>, durability: Durability) {
    let change = Change::SlotSet { index, value: value.into() };
    engine.submit(Transaction::with(durability).change(&object(), change)).wait().unwrap();
}

#[test]
fn the_log_goes_on_while_the_space_before_it_is_filled() {
    let device = MemoryDevice::new(256 << 20);
    Engine::format(&device, &FormatOptions { segment_bytes: SEGMENT_BYTES, uuid: [5; 16] }).unwrap();
    let none = || AtomicU64::new(0);
    let device = Arc::new(Slow { device, opened: AtomicBool::new(false), pieces: none(), longest: none() });
    let options = Options { recent_bytes: 0, cache_bytes: 0, ..Options::default() };
    let open = || Engine::open(Arc::clone(&device) as Arc<dyn Device>, options.clone()).unwrap();
    let engine = open();
    device.opened.store(true, Ordering::Relaxed);
    engine.submit(Transaction::new().create_collection(&Collection::from("c"))).wait().unwrap();
    for round in 0..ROUNDS {
        // Synced often, and then much at once, but no segment in half a second: that load would be in too much of a hurry.
        for _ in 0..40 {
            put(&engine, ROUNDS * ROUND_VALUES, &b"small"[..], Durability::Durable);
            std::thread::sleep(Duration::from_millis(2));
        }
        for index in 0..ROUND_VALUES {
            let index = round * ROUND_VALUES + index;
            put(&engine, index, value(index), Durability::Applied);
        }
    }
    engine.close().unwrap();
    let (pieces, longest) = (device.pieces.load(Ordering::Relaxed), device.longest.load(Ordering::Relaxed));
    assert!(pieces > 2, "only {pieces} pieces were filled");
    assert!(longest < SEGMENT_BYTES, "{longest} bytes were filled in one piece");
    device.opened.store(false, Ordering::Relaxed);
    let engine = open();
    for index in 0..ROUNDS * ROUND_VALUES {
        let found = engine.slot_get(&object(), index).wait().unwrap();
        assert!(found.is_some_and(|found| found == value(index)), "value {index} is not what was written");
    }
}
