//! How long opening may take decides when a checkpoint is written.

#![allow(clippy::unwrap_used, reason = "a test that fails")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use esker_device::{Device, MemoryDevice};
use esker_engine::format::{SHORT_NUMBER_END, Superblock};
use esker_engine::{Engine, FormatOptions, Options};
use esker_store::{Change, Collection, Durability, ObjectId, ObjectStore, Transaction};

fn open(recovery_time: Duration) -> Engine {
    let device = Arc::new(MemoryDevice::new(256 << 20));
    Engine::format(&*device, &FormatOptions { segment_bytes: 1 << 20, uuid: [5; 16] }).unwrap();
    let engine = Engine::open(device as Arc<dyn Device>, Options { recovery_time, ..Options::default() }).unwrap();
    engine.submit(Transaction::new().create_collection(&Collection::from("c"))).wait().unwrap();
    engine
}

fn object(name: &'static str) -> ObjectId {
    ObjectId::new(Collection::from("c"), name)
}

fn set_keys(engine: &Engine, count: u32) {
    for batch in 0..count / 100 {
        let mut txn = Transaction::with(Durability::Applied);
        for key in batch * 100..(batch + 1) * 100 {
            let key = key.wrapping_mul(2_654_435_761).to_be_bytes().to_vec().into();
            txn.push(&object("o"), Change::OmapSet { key, value: vec![1; 8].into() });
        }
        engine.submit(txn).wait().unwrap();
    }
}

#[test]
fn checkpoints_are_as_frequent_as_the_time_for_opening_asks() {
    // 200,000 keys take some 0.3 s to replay.
    for (recovery_time, least) in [(Duration::from_millis(50), 2), (Duration::from_secs(60), 0), (Duration::ZERO, 0)] {
        let engine = open(recovery_time);
        set_keys(&engine, 200_000);
        let until = Instant::now() + Duration::from_secs(20);
        while engine.stats().checkpoints < least {
            assert!(Instant::now() < until, "{} checkpoints with {recovery_time:?}", engine.stats().checkpoints);
            std::thread::sleep(Duration::from_millis(5));
        }
        if least == 0 {
            // Nor does an idle store write any: three looks of its thread.
            std::thread::sleep(Duration::from_secs(3));
            assert_eq!(engine.stats().checkpoints, 0, "{recovery_time:?}");
        }
        engine.close().unwrap();
    }
}

#[test]
fn what_takes_long_to_replay_for_its_size_counts_so() {
    let engine = open(Duration::from_millis(500));
    set_keys(&engine, 100_000);
    let before = engine.stats().checkpoints;
    // A clone is a short record, and takes a walk over all keys when it is replayed.
    for _ in 0..100 {
        let to = object("clone");
        let clone = Transaction::new().change(&object("o"), Change::CloneTo { to: to.clone() });
        engine.submit(clone).wait().unwrap();
        engine.submit(Transaction::new().change(&to, Change::Remove)).wait().unwrap();
    }
    let until = Instant::now() + Duration::from_secs(20);
    while engine.stats().checkpoints < before + 1 {
        assert!(Instant::now() < until, "{} checkpoints, {before} before the clones", engine.stats().checkpoints);
        std::thread::sleep(Duration::from_millis(5));
    }
    engine.close().unwrap();
}

/// Short headers hold numbers of 48 bits; from the first segment on that begins behind half of them all are long.
#[test]
fn sequence_numbers_go_on_behind_those_of_short_headers() {
    for first in [SHORT_NUMBER_END / 2 - 700, SHORT_NUMBER_END - 700] {
        let device = Arc::new(MemoryDevice::new(4 << 20));
        Engine::format(&*device, &FormatOptions { segment_bytes: 64 << 10, uuid: [6; 16] }).unwrap();
        let mut image = device.image();
        for block in image.chunks_mut(4096) {
            if let Ok(mut superblock) = Superblock::decode(block) {
                (superblock.end_seq, superblock.replay.seq) = (first, first);
                superblock.encode(block);
            }
        }
        let device = Arc::new(MemoryDevice::from_image(&image));
        let open = || {
            let options = Options { commit_thread: false, ..Options::default() };
            Engine::open(Arc::clone(&device) as Arc<dyn Device>, options).unwrap()
        };
        let engine = open();
        engine.submit(Transaction::new().create_collection(&Collection::from("c"))).wait().unwrap();
        for index in 0..3_000u64 {
            let value = index.to_le_bytes().to_vec().into();
            let txn = Transaction::with(Durability::Applied).change(&object("o"), Change::SlotSet { index, value });
            engine.submit(txn).wait().unwrap();
        }
        let last =
            engine.submit(Transaction::new().change(&object("o"), Change::SlotRemove { index: 7 })).wait().unwrap();
        assert_eq!(last.0, first + 3_002);
        let crashed = device.image();
        drop(engine);
        for image in [crashed, device.image()] {
            let device = Arc::new(MemoryDevice::from_image(&image));
            let engine = Engine::open(device as Arc<dyn Device>, Options::default()).unwrap();
            assert_eq!(engine.recovery().last_seq, first + 3_002);
            for index in (0..3_000u64).filter(|index| *index != 7) {
                let found = engine.slot_get(&object("o"), index).wait().unwrap();
                assert_eq!(found.as_deref(), Some(&index.to_le_bytes()[..]), "slot {index}");
            }
        }
    }
}
