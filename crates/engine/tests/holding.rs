//! Snapshots beside the cleaner: they keep what was there when they were made, and nothing that came later.

#![allow(clippy::unwrap_used, reason = "a test that fails")]

use std::sync::Arc;

use bytes::Bytes;
use esker_device::{Device, MemoryDevice};
use esker_engine::{Engine, FormatOptions, Options, check};
use esker_store::{Change, Collection, CommitSeq, Durability, Error, ObjectId, ObjectStore, Transaction};

const SEGMENT_BYTES: u64 = 64 << 10;

fn device(bytes: u64) -> Arc<MemoryDevice> {
    let device = Arc::new(MemoryDevice::new(bytes));
    Engine::format(&*device, &FormatOptions { segment_bytes: SEGMENT_BYTES, uuid: [5; 16] }).unwrap();
    device
}

fn open(device: &Arc<MemoryDevice>) -> Engine {
    let options = Options { recent_bytes: 0, cache_bytes: 0, ..Options::default() };
    Engine::open(Arc::clone(device) as Arc<dyn Device>, options).unwrap()
}

fn object() -> ObjectId {
    ObjectId::new(Collection::from("c"), "o")
}

fn start(engine: &Engine) {
    engine.submit(Transaction::new().create_collection(&Collection::from("c"))).wait().unwrap();
}

fn value(key: u64, version: u64) -> Bytes {
    let mut value = vec![key as u8; 700 + (key * 7 % 300) as usize];
    value[..8].copy_from_slice(&version.to_le_bytes());
    value.into()
}

fn set(engine: &Engine, key: u64, version: u64) -> Result<CommitSeq, Error> {
    let change = Change::SlotSet { index: key, value: value(key, version) };
    engine.submit(Transaction::with(Durability::Applied).change(&object(), change)).wait()
}

fn shows(store: &dyn ObjectStore, keys: u64, version: impl Fn(u64) -> u64) {
    for key in 0..keys {
        let found = store.slot_get(&object(), key).wait().unwrap();
        assert!(found == Some(value(key, version(key))), "key {key}");
    }
}

/// Waits for what the cleaner does in its own time.
fn soon(what: &str, mut holds: impl FnMut() -> bool) {
    let end = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while !holds() {
        assert!(std::time::Instant::now() < end, "not so: {what}");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

#[test]
fn what_is_overwritten_under_a_snapshot_comes_back_meanwhile() {
    let device = device(16 << 20);
    let engine = open(&device);
    start(&engine);
    // A quarter of the device lives, and stays beside the snapshot; ten times the device is written.
    let keys = 4_000;
    for key in 0..keys {
        set(&engine, key, 0).unwrap();
    }
    let (_, view) = engine.view(1 << 20, 1 << 20).unwrap();
    for round in 1..=50 {
        for key in 0..keys {
            set(&engine, key, round).unwrap_or_else(|error| panic!("round {round}, key {key}: {error}"));
        }
        assert_eq!(engine.stats().snapshots, 1);
    }
    let pinned = engine.stats().pinned_bytes;
    assert!((3 << 20..=6 << 20).contains(&pinned), "{pinned} bytes are pinned");
    shows(&view, keys, |_| 0);
    shows(&engine, keys, |_| 50);
    drop(view);
    soon("what the snapshot kept is free again", || {
        let stats = engine.stats();
        (stats.snapshots, stats.pinned_bytes) == (0, 0) && set(&engine, 0, 51).is_ok()
    });
    for key in 0..keys {
        set(&engine, key, 51).unwrap();
    }
    engine.close().unwrap();
    let report = check(device, true, &mut |_, _| ()).unwrap();
    assert_eq!(report.damaged, 0, "{report:?}");
}

#[test]
fn a_thousand_snapshots_live_at_once_and_each_shows_its_own() {
    let device = device(64 << 20);
    let engine = open(&device);
    start(&engine);
    let keys = 100;
    for key in 0..keys {
        set(&engine, key, 0).unwrap();
    }
    let mut views = Vec::new();
    let mut rng = fastrand::Rng::with_seed(7);
    let mut versions = vec![0; keys as usize];
    for round in 1..=1_000 {
        for _ in 0..10 {
            let key = rng.u64(..keys);
            set(&engine, key, round).unwrap_or_else(|error| panic!("round {round}: {error}"));
            versions[key as usize] = round;
        }
        views.push((engine.view(1 << 20, 1 << 20).unwrap().1, versions.clone()));
    }
    assert_eq!(engine.stats().snapshots, 1_000);
    while !views.is_empty() {
        let (view, versions) = views.swap_remove(rng.usize(..views.len()));
        shows(&view, keys, |key| versions[key as usize]);
    }
    shows(&engine, keys, |key| versions[key as usize]);
    assert_eq!(engine.stats().snapshots, 0);
    // All that they kept is there for others.
    for round in 0..400u64 {
        for key in 0..keys {
            set(&engine, key, round).unwrap();
        }
    }
    engine.close().unwrap();
    let report = check(device, true, &mut |_, _| ()).unwrap();
    assert_eq!(report.damaged, 0, "{report:?}");
}

#[test]
fn a_store_that_a_snapshot_fills_is_emptied_and_goes_on_when_it_is_dropped() {
    let device = device(8 << 20);
    let engine = open(&device);
    start(&engine);
    let mut keys = 5_000;
    for key in 0..keys {
        set(&engine, key, 0).unwrap();
    }
    let (_, view) = engine.view(1 << 20, 1 << 20).unwrap();
    while set(&engine, keys, 0).is_ok() {
        keys += 1;
    }
    let refused = engine.view(1 << 20, 1 << 20).map(|_| ());
    assert!(keys > 5_500 && refused.is_ok() || matches!(refused, Err(Error::Full { .. })), "{keys} keys, {refused:?}");
    let remove = |key| {
        let txn = Transaction::new().change(&object(), Change::SlotRemove { index: key });
        engine.submit(txn).wait().unwrap_or_else(|error| panic!("removing key {key} of {keys}: {error}"));
    };
    (0..4_000).for_each(remove);
    shows(&view, 5_000, |_| 0);
    (4_000..keys).for_each(remove);
    shows(&view, 5_000, |_| 0);
    drop(view);
    soon("there is room again", || set(&engine, 0, 1).is_ok());
    for key in 0..5_000 {
        set(&engine, key, 2).unwrap_or_else(|error| panic!("key {key} of {keys}: {error}"));
    }
    engine.close().unwrap();
}

#[test]
fn snapshots_of_a_nearly_full_store_leave_deletes_their_room() {
    let device = device(8 << 20);
    let engine = open(&device);
    start(&engine);
    let mut keys = 0;
    while set(&engine, keys, 0).is_ok() {
        keys += 1;
    }
    let mut views = Vec::new();
    let refused = loop {
        match engine.view(1 << 20, 1 << 20) {
            Ok((_, view)) => views.push(view),
            Err(error) => break error,
        }
        let change = Change::SlotRemove { index: views.len() as u64 };
        engine.submit(Transaction::new().change(&object(), change)).wait().unwrap();
        assert!(views.len() < 1_000, "snapshots of a full store are refused some day");
    };
    assert!(matches!(refused, Error::Full { .. }), "{refused}");
    for key in 0..keys {
        let txn = Transaction::new().change(&object(), Change::SlotRemove { index: key });
        engine.submit(txn).wait().unwrap_or_else(|error| panic!("removing key {key} of {keys}: {error}"));
    }
    views.clear();
    soon("there is room again", || set(&engine, 0, 1).is_ok());
    engine.close().unwrap();
}

#[test]
fn what_a_snapshot_keeps_does_not_go_when_it_is_written_smaller() {
    let device = device(8 << 20);
    let engine = open(&device);
    start(&engine);
    let put = |key: u64, bytes: usize| {
        let change = Change::SlotSet { index: key, value: vec![key as u8; bytes].into() };
        engine.submit(Transaction::with(Durability::Applied).change(&object(), change)).wait()
    };
    let mut keys = 0;
    while engine.stats().free_segments > 64 {
        put(keys, 4_000).unwrap();
        keys += 1;
    }
    let (_, view) = engine.view(1 << 20, 1 << 20).unwrap();
    let mut all = keys;
    while put(all, 4_000).is_ok() {
        all += 1;
    }
    // All that the snapshot keeps, one by one for something smaller, until that is refused.
    let smaller = (0..keys).take_while(|key| put(*key, 1_900).is_ok()).count() as u64;
    for key in smaller..all {
        let txn = Transaction::new().change(&object(), Change::SlotRemove { index: key });
        engine.submit(txn).wait().unwrap_or_else(|error| panic!("removing key {key} of {all}, {smaller}: {error}"));
    }
    drop(view);
    soon("there is room again", || put(0, 4_000).is_ok());
    engine.close().unwrap();
}
