//! Checkpoints, cleaning, clones and a full device, on a device in memory.

#![allow(clippy::unwrap_used, reason = "a test that fails")]

#[path = "support/counted.rs"]
mod counted;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use counted::Counted;
use esker_device::{Device, MemoryDevice};
use esker_engine::{Engine, FormatOptions, Options, check};
use esker_store::{
    Change, Collection, CommitCursor, CommitEntry, Durability, Error, ObjectId, ObjectStore, Transaction,
};

fn device(bytes: u64) -> Arc<MemoryDevice> {
    let device = Arc::new(MemoryDevice::new(bytes));
    Engine::format(&*device, &FormatOptions { segment_bytes: 64 << 10, uuid: [5; 16] }).unwrap();
    device
}

fn open(device: &Arc<MemoryDevice>) -> Engine {
    Engine::open(Arc::clone(device) as Arc<dyn Device>, Options { recent_bytes: 0, ..Options::default() }).unwrap()
}

fn object(name: &'static str) -> ObjectId {
    ObjectId::new(Collection::from("c"), name)
}

fn submit(engine: &Engine, txn: Transaction) {
    engine.submit(txn).wait().unwrap();
}

fn start(engine: &Engine) {
    submit(engine, Transaction::new().create_collection(&Collection::from("c")));
}

fn value(key: u64, version: u64) -> Bytes {
    let mut value = vec![key as u8; 500 + (key * 7 % 300) as usize];
    value[..8].copy_from_slice(&version.to_le_bytes());
    value.into()
}

fn set(engine: &Engine, key: u64, version: u64) -> Result<(), Error> {
    let txn = Transaction::with(Durability::Applied)
        .change(&object("slots"), Change::SlotSet { index: key, value: value(key, version) });
    engine.submit(txn).wait().map(|_| ())
}

#[test]
fn overwritten_space_comes_back_while_serving() {
    let device = device(8 << 20);
    let engine = open(&device);
    start(&engine);
    // Thirty times the device, with a third of it alive.
    let keys = 4_000;
    let mut rng = fastrand::Rng::with_seed(1);
    let mut versions = vec![0; keys as usize];
    for round in 1..=400_000u64 {
        let key = rng.u64(..keys);
        set(&engine, key, round).unwrap();
        versions[key as usize] = round;
    }
    let stats = engine.stats();
    assert!(stats.cleaned_segments > 100 && stats.checkpoints > 3, "{stats:?}");
    let verify = |engine: &Engine| {
        for (key, version) in versions.iter().enumerate().filter(|(_, version)| **version > 0) {
            let found = engine.slot_get(&object("slots"), key as u64).wait().unwrap();
            assert!(found == Some(value(key as u64, *version)), "key {key}");
        }
    };
    verify(&engine);
    engine.close().unwrap();
    drop(engine);
    let report = check(Arc::clone(&device) as Arc<dyn Device>, true, &mut |_, _| {}).unwrap();
    assert_eq!((report.damage, report.records), (vec![], 0));
    verify(&open(&device));
}

#[test]
fn a_nearly_full_store_of_many_segments_takes_overwrites() {
    let device = device(24 << 20);
    let engine = open(&device);
    start(&engine);
    let keys = 29_500;
    let mut versions: Vec<u64> = vec![0; keys as usize];
    (0..keys).for_each(|key| set(&engine, key, 0).unwrap());
    let stats = engine.stats();
    let used = stats.live_bytes as f64 / (24 << 20) as f64;
    assert!((0.78..0.84).contains(&used), "{used} of the device lives");
    let mut rng = fastrand::Rng::with_seed(3);
    for round in 1..=60_000u64 {
        let key = rng.u64(..keys);
        // A seventh of it is dead: there is always room to be had.
        set(&engine, key, round).unwrap_or_else(|error| panic!("round {round}: {error}: {:?}", engine.stats()));
        versions[key as usize] = round;
    }
    for (key, version) in versions.iter().enumerate() {
        let found = engine.slot_get(&object("slots"), key as u64).wait().unwrap();
        assert!(found == Some(value(key as u64, *version)), "key {key}");
    }
    engine.close().unwrap();
    let report = check(Arc::clone(&device) as Arc<dyn Device>, true, &mut |_, _| {}).unwrap();
    assert_eq!(report.damaged, 0, "{report:?}");
}

#[test]
fn full_device_recovers() {
    let device = device(6 << 20);
    let mut engine = open(&device);
    start(&engine);
    for round in 0..20u64 {
        let mut written = 0;
        let error = loop {
            match set(&engine, written, round) {
                Ok(()) => written += 1,
                Err(error) => break error,
            }
        };
        assert!(matches!(error, Error::Full { .. }), "round {round}: {error}");
        assert!(written > 4_000, "round {round}: {written} values");
        for key in 0..written {
            let found = engine.slot_get(&object("slots"), key).wait().unwrap();
            assert!(found == Some(value(key, round)), "round {round} key {key}");
        }
        if round % 3 == 0 {
            engine.close().unwrap();
            drop(engine);
            engine = open(&device);
        }
        submit(&engine, Transaction::new().change(&object("slots"), Change::Remove));
    }
}

/// A copy of a value of a few bytes takes more than the value: cleaning a store that is full of them must not fill it
/// further, nor keep its keys from being removed.
#[test]
fn a_store_full_of_tiny_values_can_be_emptied_and_filled_again() {
    for (batch, by_slot) in [(1, true), (16, true), (1_000, true), (1, false), (100, false)] {
        let set = |key: u64, value: Bytes| match by_slot {
            true => Change::SlotSet { index: key, value },
            false => Change::OmapSet { key: key.to_be_bytes().to_vec().into(), value },
        };
        let remove = |key: u64| match by_slot {
            true => Change::SlotRemove { index: key },
            false => Change::OmapRemove { key: key.to_be_bytes().to_vec().into() },
        };
        let get = |engine: &Engine, key: u64| match by_slot {
            true => engine.slot_get(&object("slots"), key).wait().unwrap(),
            false => engine.omap_get(&object("slots"), &key.to_be_bytes()).wait().unwrap(),
        };
        let device = device(6 << 20);
        let mut engine = open(&device);
        start(&engine);
        let mut rng = fastrand::Rng::with_seed(batch);
        let mut first = 0;
        for round in 0..6u32 {
            let mut keys: Vec<u64> = Vec::new();
            let tiny = |key: u64| Bytes::copy_from_slice(&(key as u32 ^ round).to_le_bytes());
            loop {
                let mut txn = Transaction::with(Durability::Applied);
                let next = keys.len() as u64..keys.len() as u64 + batch;
                next.clone().for_each(|key| txn.push(&object("slots"), set(key, tiny(key))));
                match engine.submit(txn).wait() {
                    Ok(_) => keys.extend(next),
                    Err(Error::Full { .. }) => break,
                    Err(error) => panic!("batch {batch}, round {round}: {error}"),
                }
            }
            first = if round == 0 { keys.len() } else { first };
            assert!(keys.len() * 5 > first * 4, "batch {batch}, round {round}: {} keys, {first} at first", keys.len());
            // One in ten, here and there, while the cleaner does what it can; and then all.
            rng.shuffle(&mut keys);
            for (at, key) in keys.iter().enumerate() {
                if at == keys.len() / 10 {
                    if round % 2 == 1 {
                        engine.close().unwrap();
                        drop(engine);
                        engine = open(&device);
                    }
                    for key in &keys[at..] {
                        assert_eq!(get(&engine, *key), Some(tiny(*key)));
                    }
                }
                let txn = Transaction::with(Durability::Applied).change(&object("slots"), remove(*key));
                let removed = engine.submit(txn).wait();
                removed.unwrap_or_else(|error| panic!("batch {batch}, round {round}, {at} of {}: {error}", keys.len()));
            }
        }
    }
}

#[test]
fn a_clone_costs_no_payload_and_lives_apart() {
    let device = device(64 << 20);
    let engine = open(&device);
    start(&engine);
    for at in 0..160u64 {
        let data = Bytes::from(vec![at as u8; 50_000]);
        submit(&engine, Transaction::new().change(&object("a"), Change::Write { offset: at * 50_000, data }));
    }
    for key in 0..20_000u64 {
        let txn = Transaction::with(Durability::Applied);
        let key = Bytes::from(format!("key{key:08}"));
        submit(&engine, txn.change(&object("a"), Change::OmapSet { key, value: Bytes::from_static(b"value") }));
    }
    engine.sync().wait().unwrap();
    let before = engine.stats();
    submit(&engine, Transaction::new().change(&object("a"), Change::CloneTo { to: object("b") }));
    let after = engine.stats();
    assert!(after.device_write_bytes - before.device_write_bytes <= 8192, "{before:?} {after:?}");
    submit(&engine, Transaction::new().change(&object("a"), Change::Remove));
    // The cleaner moves what only the copy has left, and frees what no object has.
    engine.compact(&mut |_, _| true).unwrap();
    let read = |engine: &Engine| {
        let bytes = engine.read(&object("b"), 0..8_000_000).wait().unwrap();
        assert!(bytes.chunks(50_000).zip(0u64..).all(|(chunk, at)| chunk.iter().all(|byte| *byte == at as u8)));
        assert_eq!(engine.stat(&object("b")).wait().unwrap().unwrap().omap_keys, 20_000);
        assert!(engine.omap_get(&object("b"), b"key00012345").wait().unwrap().is_some());
    };
    read(&engine);
    engine.close().unwrap();
    drop(engine);
    let engine = open(&device);
    read(&engine);
    submit(&engine, Transaction::new().change(&object("b"), Change::Remove));
    engine.checkpoint().unwrap();
    assert_eq!(engine.stats().live_bytes, 0, "nothing is left of either");
}

#[test]
fn a_compaction_beside_clients_gives_space_back_and_keeps_what_they_write() {
    const KEYS: u64 = 20_000;
    let device = device(48 << 20);
    let engine = Arc::new(open(&device));
    start(&engine);
    // Three quarters of each segment are dead.
    (0..KEYS).for_each(|key| set(&engine, key, 1).unwrap());
    (0..KEYS).filter(|key| key % 4 > 0).for_each(|key| set(&engine, key, 2).unwrap());
    engine.checkpoint().unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = (0..2)
        .map(|part| {
            let (engine, stop) = (Arc::clone(&engine), Arc::clone(&stop));
            std::thread::spawn(move || {
                let mut version = 2;
                while !stop.load(Ordering::Relaxed) {
                    version += 1;
                    // No other thread writes these.
                    (part * 50..part * 50 + 50).for_each(|key| set(&engine, key, version).unwrap());
                }
                version
            })
        })
        .collect();
    let operator = {
        let (engine, stop) = (Arc::clone(&engine), Arc::clone(&stop));
        std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                // For each of them the compaction that rests is awaited.
                engine.checkpoint().unwrap();
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
        })
    };
    let before = engine.stats();
    let mut told = 0;
    engine
        .compact_beside_clients(&mut |done, total| {
            told = told.max(done);
            assert!(done <= total);
            true
        })
        .unwrap();
    let after = engine.stats();
    assert!(told > 0 && after.cleaned_segments > before.cleaned_segments, "{before:?} {after:?}");
    assert!(after.compact_rested_us > before.compact_rested_us + 1_000, "it rests beside them: {after:?}");
    engine.compact(&mut |_, _| true).unwrap();
    assert_eq!(engine.stats().compact_rested_us, after.compact_rested_us, "where it is not asked to, it does not");
    stop.store(true, Ordering::Relaxed);
    operator.join().unwrap();
    let versions: Vec<u64> = writers.into_iter().map(|writer| writer.join().unwrap()).collect();
    for key in 0..KEYS {
        let version = match key {
            0..100 => versions[(key / 50) as usize],
            _ if key % 4 > 0 => 2,
            _ => 1,
        };
        assert!(engine.slot_get(&object("slots"), key).wait().unwrap() == Some(value(key, version)), "key {key}");
    }
}

#[test]
fn the_log_the_cleaner_and_checkpoints_write_past_the_page_cache() {
    let direct = Arc::new(Counted::new(MemoryDevice::new(32 << 20)));
    Engine::format(&*direct, &FormatOptions { segment_bytes: 64 << 10, uuid: [5; 16] }).unwrap();
    direct.unaligned.store(0, Ordering::Relaxed);
    let engine = Engine::open(Arc::clone(&direct) as Arc<dyn Device>, Options::default()).unwrap();
    start(&engine);
    for version in 1..4 {
        (0..10_000).filter(|key| key % 3 > 0 || version == 1).for_each(|key| set(&engine, key, version).unwrap());
    }
    // Larger than what gathers for a write otherwise.
    let data = Bytes::from(vec![7; 10 << 10]);
    submit(&engine, Transaction::new().change(&object("large"), Change::Write { offset: 0, data }));
    let before = engine.stats();
    engine.compact(&mut |_, _| true).unwrap();
    let after = engine.stats();
    assert!(after.cold_write_bytes > before.cold_write_bytes + (1 << 20), "{after:?}");
    assert!(direct.long.load(Ordering::Relaxed) > 20);
    assert_eq!(direct.unaligned.load(Ordering::Relaxed), 0);
}

/// Reads ahead of the operating system, of megabytes, held up what clients read and synced.
#[test]
fn a_compaction_beside_clients_reads_little_at_a_time_and_past_the_page_cache() {
    const SEGMENT_BYTES: u64 = 1 << 20;
    let device = Arc::new(Counted::new(MemoryDevice::new(64 << 20)));
    Engine::format(&*device, &FormatOptions { segment_bytes: SEGMENT_BYTES, uuid: [5; 16] }).unwrap();
    let options = Options { recent_bytes: 0, scrub_bytes_per_s: 0, ..Options::default() };
    let engine = Engine::open(Arc::clone(&device) as Arc<dyn Device>, options).unwrap();
    start(&engine);
    let half_dead = |version| {
        (0..10_000).filter(|key| key % 2 > 0 || version == 1).for_each(|key| set(&engine, key, version).unwrap());
        engine.checkpoint().unwrap();
    };
    let read = || device.medium.load(Ordering::SeqCst);
    (1..3).for_each(half_dead);
    let before = engine.stats();
    engine.compact_beside_clients(&mut |_, _| true).unwrap();
    let after = engine.stats();
    let cleaned = after.cleaned_segments - before.cleaned_segments;
    assert!(cleaned > 3 && read() >= (cleaned - 2) * SEGMENT_BYTES, "{} bytes, {after:?}", read());
    assert_eq!(device.medium_longest.load(Ordering::SeqCst), 256 << 10);
    // Where it does not rest it is faster through the page cache, which reads ahead.
    let before = read();
    (3..5).for_each(half_dead);
    engine.compact(&mut |_, _| true).unwrap();
    assert_eq!(read(), before);
    // What the medium has lost, and the page cache still holds, is moved from there.
    (5..7).for_each(half_dead);
    device.medium_rots.store(true, Ordering::SeqCst);
    let before = engine.stats();
    engine.compact_beside_clients(&mut |_, _| true).unwrap();
    let after = engine.stats();
    assert!(after.cleaned_segments > before.cleaned_segments + 2 && after.damaged_segments == 0, "{after:?}");
    for key in 0..10_000 {
        let version = if key % 2 > 0 { 6 } else { 1 };
        assert!(engine.slot_get(&object("slots"), key).wait().unwrap() == Some(value(key, version)), "key {key}");
    }
}

#[test]
fn a_store_that_is_closed_meanwhile_ends_its_compaction() {
    let device = device(16 << 20);
    let engine = open(&device);
    start(&engine);
    (0..8_000).for_each(|key| set(&engine, key, 1).unwrap());
    (0..8_000).filter(|key| key % 2 > 0).for_each(|key| set(&engine, key, 2).unwrap());
    let ended = engine.compact(&mut |_, total| {
        assert!(total > 1, "there is something to clean");
        engine.close().unwrap();
        true
    });
    assert!(matches!(ended, Err(Error::Closed)), "{ended:?}");
    drop(engine);
    let engine = open(&device);
    for key in 0..8_000 {
        let found = engine.slot_get(&object("slots"), key).wait().unwrap();
        assert!(found == Some(value(key, 1 + key % 2)), "key {key}");
    }
}

#[test]
fn reads_go_on_while_everything_is_moved() {
    let device = device(16 << 20);
    let engine = Arc::new(open(&device));
    start(&engine);
    (0..8_000).for_each(|key| set(&engine, key, 1).unwrap());
    let stop = Arc::new(AtomicBool::new(false));
    let readers: Vec<_> = (0..2)
        .map(|seed| {
            let (engine, stop) = (Arc::clone(&engine), Arc::clone(&stop));
            std::thread::spawn(move || {
                let mut rng = fastrand::Rng::with_seed(seed);
                while !stop.load(Ordering::Relaxed) {
                    let key = rng.u64(..8_000);
                    let found = engine.slot_get(&object("slots"), key).wait().unwrap().unwrap();
                    let version = u64::from_le_bytes(found[..8].try_into().unwrap());
                    assert!(found == value(key, version), "key {key}");
                }
            })
        })
        .collect();
    let mut rng = fastrand::Rng::with_seed(9);
    for round in 2..60_000u64 {
        set(&engine, rng.u64(..8_000), round).unwrap();
        if round % 4_000 == 0 {
            engine.checkpoint().unwrap();
            engine.clean().unwrap();
        }
    }
    stop.store(true, Ordering::Relaxed);
    readers.into_iter().for_each(|reader| reader.join().unwrap());
    assert!(engine.stats().cleaned_segments > 0);
}

#[test]
fn a_scan_in_commit_order_misses_nothing_while_everything_is_moved() {
    let device = device(16 << 20);
    let engine = Arc::new(open(&device));
    start(&engine);
    (0..8_000).for_each(|key| set(&engine, key, 1).unwrap());
    let stop = Arc::new(AtomicBool::new(false));
    let scanner = {
        let (engine, stop) = (Arc::clone(&engine), Arc::clone(&stop));
        std::thread::spawn(move || {
            let mut scans = 0;
            while scans == 0 || !stop.load(Ordering::Relaxed) {
                let (mut after, mut found) = (CommitCursor::default(), Vec::new());
                loop {
                    let (entries, next) = engine.commit_scan(&Collection::from("c"), b"", after, 2_000).wait().unwrap();
                    found.extend(entries.iter().filter_map(|entry| match entry {
                        CommitEntry::Slot(_, slot, _) if *slot < 4_000 => Some(*slot),
                        _ => None,
                    }));
                    match next {
                        Some(next) => after = next,
                        None => break,
                    }
                }
                // These are never overwritten: each is there once, in the order in which they were written.
                assert!(found.into_iter().eq(0..4_000), "scan {scans}");
                scans += 1;
            }
        })
    };
    let mut rng = fastrand::Rng::with_seed(9);
    for round in 2..30_000u64 {
        set(&engine, rng.u64(4_000..8_000), round).unwrap();
        if round % 500 == 0 {
            engine.checkpoint().unwrap();
            engine.clean().unwrap();
        }
    }
    stop.store(true, Ordering::Relaxed);
    scanner.join().unwrap();
    assert!(engine.stats().cleaned_segments > 0);
}

#[test]
fn a_device_that_has_grown_is_used_whole() {
    let small = device(4 << 20);
    let engine = open(&small);
    start(&engine);
    let mut written = 0;
    while set(&engine, written, 7).is_ok() {
        written += 1;
    }
    engine.close().unwrap();
    drop(engine);
    let mut image = small.image();
    image.resize(8 << 20, 0);
    let large = Arc::new(MemoryDevice::from_image(&image));
    let engine = open(&large);
    for key in written..written + 4_000 {
        set(&engine, key, 7).unwrap();
    }
    for key in 0..written + 4_000 {
        assert!(engine.slot_get(&object("slots"), key).wait().unwrap() == Some(value(key, 7)), "key {key}");
    }
}

#[test]
fn every_flipped_byte_of_a_small_store_is_told_or_harmless() {
    let device = device(2 << 20);
    let engine = open(&device);
    start(&engine);
    (0..60).for_each(|key| set(&engine, key, 1).unwrap());
    engine.checkpoint().unwrap();
    (0..30).for_each(|key| set(&engine, key, 2).unwrap());
    submit(&engine, Transaction::new().change(&object("slots"), Change::CloneTo { to: object("copy") }));
    engine.clean().unwrap();
    engine.close().unwrap();
    drop(engine);
    let image = device.image();
    let (mut told, mut harmless) = (0, 0);
    let used = (0..image.len()).filter(|at| image[*at] != 0);
    // Every byte of headers, superblocks and checkpoint pieces is in some sample of this stride; all of them by a full
    // run.
    let stride = if std::env::var_os("ESKER_FLIP_ALL").is_some() { 1 } else { 23 };
    for at in used.step_by(stride) {
        let mut image = image.clone();
        image[at] ^= 1 << (at % 8);
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::from_image(&image));
        let options = Options { read_only: true, ..Options::default() };
        let engine = match Engine::open(device, options) {
            Err(Error::Corrupt { .. } | Error::Invalid { .. }) => {
                told += 1;
                continue;
            }
            Err(other) => panic!("byte {at}: {other}"),
            Ok(engine) => engine,
        };
        let mut damaged = false;
        for (name, key) in ["slots", "copy"].into_iter().flat_map(|name| (0..60).map(move |key| (name, key))) {
            let version = if key < 30 { 2 } else { 1 };
            match engine.slot_get(&object(name), key).wait() {
                Ok(found) => assert!(found == Some(value(key, version)), "byte {at}, {name} {key}: wrong data"),
                Err(Error::Corrupt { .. }) => damaged = true,
                Err(other) => panic!("byte {at}, {name} {key}: {other}"),
            }
        }
        let report = engine.check(true, &mut |_, _| {}).unwrap();
        assert!(!damaged || report.damaged > 0, "byte {at}: reading tells of damage, the check does not");
        if damaged { told += 1 } else { harmless += 1 }
    }
    println!("{told} told, {harmless} harmless");
    assert!(told > 100);
}

/// What a checkpoint of many small objects was expected to write was several times what it writes: none was begun, and
/// the store was full, though two thirds of it was dead.
#[test]
fn many_small_objects_are_overwritten_for_ever_where_a_third_lives() {
    let device = device(24 << 20);
    let engine = open(&device);
    start(&engine);
    let objects = 4_000;
    let id = |number: u64| ObjectId::new(Collection::from("c"), number.to_be_bytes().to_vec());
    let mut rng = fastrand::Rng::with_seed(5);
    let mut versions = vec![0u8; objects as usize];
    for write in 0..30_000u64 {
        let number = if write < objects { write } else { rng.u64(..objects) };
        let version = versions[number as usize].wrapping_add(1);
        let data = Bytes::from(vec![version; 2_000]);
        let txn = Transaction::with(Durability::Applied).change(&id(number), Change::Write { offset: 0, data });
        engine.submit(txn).wait().unwrap_or_else(|error| panic!("write {write}: {error}: {:?}", engine.stats()));
        versions[number as usize] = version;
    }
    for number in 0..objects {
        let found = engine.read(&id(number), 0..2_000).wait().unwrap();
        assert_eq!(found, vec![versions[number as usize]; 2_000], "object {number}");
    }
}
