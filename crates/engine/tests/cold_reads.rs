//! A get on a cold store takes one read of the device, since the index is in memory; counted at the device.

#![allow(clippy::unwrap_used, reason = "a test that fails")]

#[path = "support/counted.rs"]
mod counted;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use counted::Counted;
use esker_device::{Device, MemoryDevice};
use esker_engine::{Engine, FormatOptions, Options};
use esker_store::{Change, ObjectId, ObjectStore, Transaction};

fn object() -> ObjectId {
    ObjectId::new("c".into(), "ints")
}

fn value(index: u64, len: usize) -> Bytes {
    Bytes::from(index.to_le_bytes().into_iter().cycle().take(len).collect::<Vec<_>>())
}

#[test]
fn a_get_of_an_int_key_on_a_cold_store_takes_at_most_one_read_of_the_device() {
    for (keys, len) in [(60_000_u64, 4), (30_000, 100), (20_000, 1_024), (200, 100_000)] {
        let device = Arc::new(Counted::new(MemoryDevice::new(256 << 20)));
        Engine::format(&*device, &FormatOptions { segment_bytes: 1 << 20, uuid: [5; 16] }).unwrap();
        let options = Options { cache_bytes: keys * len as u64 / 1_000, recent_bytes: 0, ..Options::default() };
        let options = || Options { scrub_bytes_per_s: 0, ..options.clone() };
        let engine = Engine::open(Arc::clone(&device) as Arc<dyn Device>, options()).unwrap();
        engine.submit(Transaction::new().create_collection(&"c".into())).wait().unwrap();
        let mut rng = fastrand::Rng::with_seed(24);
        let mut order: Vec<u64> = (0..keys).collect();
        // In order, then a part of them again, so that pages of the index have places from all over the log.
        let again: Vec<u64> = (0..keys / 4).map(|_| rng.u64(..keys)).collect();
        let batch = (200_000 / len).clamp(1, 500);
        for indexes in order.chunks(batch).chain(again.chunks(batch)) {
            let mut txn = Transaction::new();
            indexes
                .iter()
                .for_each(|index| txn.push(&object(), Change::SlotSet { index: *index, value: value(*index, len) }));
            engine.submit(txn).wait().unwrap();
        }
        engine.close().unwrap();
        drop(engine);

        let engine = Engine::open(Arc::clone(&device) as Arc<dyn Device>, options()).unwrap();
        let (before, counted) = (device.reads.load(Ordering::SeqCst), engine.stats().device_reads);
        rng.shuffle(&mut order);
        for index in &order {
            assert_eq!(engine.slot_get(&object(), *index).wait().unwrap(), Some(value(*index, len)), "{index}");
        }
        let reads = device.reads.load(Ordering::SeqCst) - before;
        assert!(reads <= keys, "{reads} reads for {keys} gets of {len} bytes");
        assert!(reads >= keys * 9 / 10, "{reads} reads for {keys} gets of {len} bytes: what are they answered from?");
        assert_eq!(engine.stats().device_reads - counted, reads);
    }
}
