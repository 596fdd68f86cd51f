//! The log goes on while the space before it is filled with zeros: in the open segment, and in the next.

#![allow(clippy::unwrap_used, reason = "a test that fails")]

#[path = "support/hooked.rs"]
mod hooked;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use esker_device::{Device, MemoryDevice};
use esker_engine::{Engine, FormatOptions, Options};
use esker_store::{Change, Collection, Durability, ObjectId, ObjectStore, Transaction};
use hooked::{Call, Hooked};

const SEGMENT_BYTES: u64 = 8 << 20;
const VALUE_BYTES: usize = 60_000;
const ROUND_VALUES: u64 = 14;
const ROUNDS: u64 = 50;

/// What filling ahead has done: it takes its time, so that the log comes to where zeros are being written.
#[derive(Default)]
struct Told {
    opened: AtomicBool,
    pieces: AtomicU64,
    longest: AtomicU64,
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
    let told = Arc::new(Told::default());
    let before = {
        let told = Arc::clone(&told);
        move |call| {
            if let Call::Prefill(range) = call
                && told.opened.load(Ordering::Relaxed)
            {
                told.pieces.fetch_add(1, Ordering::Relaxed);
                told.longest.fetch_max(range.end - range.start, Ordering::Relaxed);
                // The log is there by now, and would have written.
                std::thread::sleep(Duration::from_millis(60));
            }
            Ok(())
        }
    };
    let device = Arc::new(Hooked { device, before });
    let options = Options { recent_bytes: 0, cache_bytes: 0, ..Options::default() };
    let open = || Engine::open(Arc::clone(&device) as Arc<dyn Device>, options.clone()).unwrap();
    let engine = open();
    told.opened.store(true, Ordering::Relaxed);
    engine.submit(Transaction::new().create_collection(&Collection::from("c"))).wait().unwrap();
    for round in 0..ROUNDS {
        // Synced often, and then much at once, but no segment in half a second: that load would be in too much of a
        // hurry.
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
    let (pieces, longest) = (told.pieces.load(Ordering::Relaxed), told.longest.load(Ordering::Relaxed));
    assert!(pieces > 2, "only {pieces} pieces were filled");
    assert!(longest < SEGMENT_BYTES, "{longest} bytes were filled in one piece");
    told.opened.store(false, Ordering::Relaxed);
    let engine = open();
    for index in 0..ROUNDS * ROUND_VALUES {
        let found = engine.slot_get(&object(), index).wait().unwrap();
        assert!(found.is_some_and(|found| found == value(index)), "value {index} is not what was written");
    }
}
