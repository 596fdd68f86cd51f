//! `formats_stay_readable`: a small store of every format version is opened, read and checked.
//!
//! A fixture is written by the version of the code that had that format, with `ESKER_WRITE_FIXTURE=FILE cargo test -p
//! esker-engine --test fixtures`, and never changed again.

#![allow(clippy::unwrap_used, reason = "a test that fails")]

use std::sync::Arc;

use bytes::Bytes;
use esker_device::{Device, MemoryDevice};
use esker_engine::{Engine, FormatOptions, Options, check};
use esker_store::{Change, Collection, Compression, Durability, ObjectId, ObjectStore, Transaction};

fn object(name: &'static str) -> ObjectId {
    ObjectId::new(Collection::from("fixtures"), name)
}

fn value(key: u64) -> Bytes {
    Bytes::from(format!("value {key} ").repeat(1 + key as usize % 9))
}

/// What every fixture holds.
fn fill(engine: &Engine) {
    engine.submit(Transaction::new().create_collection(&Collection::from("fixtures"))).wait().unwrap();
    for key in 0..200u64 {
        let omap_key = Bytes::from(format!("key {key:03}"));
        let txn = Transaction::with(Durability::Applied)
            .change(&object("slots"), Change::SlotSet { index: key * 3, value: value(key) })
            .change(&object("omap"), Change::OmapSet { key: omap_key, value: value(key) });
        engine.submit(txn).wait().unwrap();
    }
    let data = Bytes::from(vec![7; 9_000]);
    let txn = Transaction::new()
        .change(&object("bytes"), Change::Write { offset: 5_000, data })
        .change(&object("bytes"), Change::Zero { offset: 6_000, len: 1_000 })
        .change(&object("bytes"), Change::XattrSet { name: "epoch".into(), value: "17".into() })
        .change(&object("slots"), Change::SlotRemove { index: 30 });
    engine.submit(txn).wait().unwrap();
}

/// What fixtures hold from version 3 on.
fn fill_compressed(engine: &Engine) {
    for (at, hint) in [Compression::Lz4, Compression::Zstd].into_iter().enumerate() {
        let at = at as u64;
        let txn = Transaction::new()
            .compress(hint)
            .change(&object("packed"), Change::SlotSet { index: at, value: text(3_000) })
            .change(&object("packed"), Change::OmapSet { key: Bytes::from(vec![at as u8]), value: text(700) })
            .change(&object("packed"), Change::Write { offset: at * 200_000, data: text(150_000) });
        engine.submit(txn).wait().unwrap();
    }
    let hole = Change::Zero { offset: 210_000, len: 1_000 };
    engine.submit(Transaction::new().change(&object("packed"), hole)).wait().unwrap();
}

/// What fixtures of versions 4 to 6 hold that were left by a crash after the cleaner had moved values: of each space
/// every third is overwritten, and where the rest is now stands in the log alone.
fn fill_moved(engine: &Engine) {
    for round in 0..2 {
        for key in (0..600).filter(|key| round == 0 || key % 3 == 0) {
            let txn = Transaction::with(Durability::Applied)
                .change(&object("moved"), Change::SlotSet { index: key * 7, value: moved(key, round) })
                .change(&object("moved"), Change::OmapSet { key: omap_key(key), value: moved(key, round) })
                .change(&object("moved"), Change::Write { offset: key * 1_000, data: moved(key, round) });
            engine.submit(txn).wait().unwrap();
        }
    }
    engine.checkpoint().unwrap();
    while engine.stats().cleaned_copy_bytes == 0 {
        assert!(engine.clean().unwrap(), "there is something to clean");
    }
    engine.submit(Transaction::new().change(&object("moved"), Change::SlotRemove { index: 0 })).wait().unwrap();
}

fn moved(key: u64, round: u64) -> Bytes {
    Bytes::from(format!("{key} of round {round} ").repeat(8))
}

fn omap_key(key: u64) -> Bytes {
    Bytes::from(format!("moved {key}"))
}

fn verify_moved(engine: &Engine) {
    for key in 0..600 {
        let expected = moved(key, u64::from(key % 3 == 0));
        let slot = engine.slot_get(&object("moved"), key * 7).wait().unwrap();
        assert_eq!(slot, (key != 0).then(|| expected.clone()), "slot {key}");
        assert_eq!(engine.omap_get(&object("moved"), &omap_key(key)).wait().unwrap(), Some(expected.clone()));
        let at = key * 1_000;
        assert_eq!(engine.read(&object("moved"), at..at + expected.len() as u64).wait().unwrap(), expected, "at {at}");
    }
}

fn text(len: usize) -> Bytes {
    let text: String = (0..len / 7 + 1).map(|line| format!("line {line}\n")).collect();
    Bytes::from(text).slice(..len)
}

fn verify_compressed(engine: &Engine) {
    for at in 0..2 {
        assert_eq!(engine.slot_get(&object("packed"), at).wait().unwrap(), Some(text(3_000)));
        assert_eq!(engine.omap_get(&object("packed"), &[at as u8]).wait().unwrap(), Some(text(700)));
    }
    let mut expected = vec![0; 350_000];
    expected[..150_000].copy_from_slice(&text(150_000));
    expected[200_000..].copy_from_slice(&text(150_000));
    expected[210_000..211_000].fill(0);
    assert!(engine.read(&object("packed"), 0..400_000).wait().unwrap() == expected);
}

fn verify(engine: &Engine) {
    for key in 0..200u64 {
        let expected = (key != 10).then(|| value(key));
        assert_eq!(engine.slot_get(&object("slots"), key * 3).wait().unwrap(), expected, "slot {key}");
        let found = engine.omap_get(&object("omap"), format!("key {key:03}").as_bytes()).wait().unwrap();
        assert_eq!(found, Some(value(key)), "key {key}");
    }
    let mut expected = vec![0; 14_000];
    expected[5_000..].fill(7);
    expected[6_000..7_000].fill(0);
    assert_eq!(engine.read(&object("bytes"), 0..20_000).wait().unwrap(), expected);
    assert_eq!(engine.xattr(&object("bytes"), b"epoch").wait().unwrap(), Some(Bytes::from("17")));
}

/// Writes to a store that another version has written, in the same segments, and cuts it off: what stands there is in
/// two forms from then on.
fn go_on(device: &Arc<MemoryDevice>, name: &str) {
    let open = || {
        let options = Options { commit_thread: false, ..Options::default() };
        Engine::open(Arc::clone(device) as Arc<dyn Device>, options).unwrap_or_else(|error| panic!("{name}: {error}"))
    };
    let newer = |key: u64| Bytes::from(format!("newer {key}"));
    let holds = |engine: &Engine| {
        for key in (0..200).filter(|key| *key != 10) {
            let expected = if key % 2 == 0 { newer(key) } else { value(key) };
            let slot = engine.slot_get(&object("slots"), key * 3).wait().unwrap();
            assert_eq!(slot, Some(expected), "{name}, slot {key}");
            let found = engine.omap_get(&object("omap"), format!("key {key:03}").as_bytes()).wait().unwrap();
            assert_eq!(found, Some(if key % 3 == 0 { newer(key) } else { value(key) }), "{name}, key {key}");
        }
    };
    let engine = open();
    for key in (0..200).filter(|key| *key != 10) {
        let omap_key = Bytes::from(format!("key {key:03}"));
        let mut txn = Transaction::with(Durability::Applied);
        if key % 2 == 0 {
            txn = txn.change(&object("slots"), Change::SlotSet { index: key * 3, value: newer(key) });
        }
        if key % 3 == 0 {
            txn = txn.change(&object("omap"), Change::OmapSet { key: omap_key, value: newer(key) });
        }
        engine.submit(txn).wait().unwrap();
    }
    engine.submit(Transaction::new().change(&object("slots"), Change::SlotRemove { index: 1 })).wait().unwrap();
    let image = device.image();
    drop(engine);
    let crashed = Arc::new(MemoryDevice::from_image(&image));
    let report = check(Arc::clone(&crashed) as Arc<dyn Device>, true, &mut |_, _| {}).unwrap();
    assert_eq!((report.damage.len(), report.version), (0, 6), "{name}");
    let options = Options { commit_thread: false, ..Options::default() };
    let engine = Engine::open(Arc::clone(&crashed) as Arc<dyn Device>, options).unwrap();
    holds(&engine);
    let folder = tempfile::tempdir().unwrap();
    engine.backup(folder.path(), &mut |_, _| ()).unwrap();
    engine.compact(&mut |_, _| true).unwrap();
    holds(&engine);
    let scrubbed = engine.scrub_once(&mut |_, _| true).unwrap();
    assert_eq!(scrubbed.damage.len(), 0, "{name}");
    engine.close().unwrap();
    drop(engine);
    let engine = Engine::open(crashed as Arc<dyn Device>, Options::default()).unwrap();
    holds(&engine);
}

#[test]
fn formats_stay_readable() {
    if let Some(file) = std::env::var_os("ESKER_WRITE_FIXTURE") {
        // With room enough that no checkpoint comes after the moves.
        let device = Arc::new(MemoryDevice::new(4 << 20));
        Engine::format(&*device, &FormatOptions { segment_bytes: 256 << 10, uuid: *b"esker's fixtures" }).unwrap();
        // Without threads nothing but `fill_moved` cleans and writes checkpoints.
        let options = Options { commit_thread: false, ..Options::default() };
        let engine = Engine::open(Arc::clone(&device) as Arc<dyn Device>, options).unwrap();
        fill(&engine);
        fill_compressed(&engine);
        if file.to_string_lossy().ends_with("-moved.image") {
            fill_moved(&engine);
            std::fs::write(file, device.image()).unwrap();
        } else {
            engine.close().unwrap();
            std::fs::write(file, device.image()).unwrap();
        }
    }
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let mut versions = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let compressed = !["v1.image", "v2.image"].iter().any(|old| path.ends_with(old));
        let moves = path.to_string_lossy().ends_with("-moved.image");
        let name = path.display().to_string();
        let image = std::fs::read(path).unwrap();
        let device = Arc::new(MemoryDevice::from_image(&image));
        let report = check(Arc::clone(&device) as Arc<dyn Device>, true, &mut |_, _| {}).unwrap();
        assert_eq!(report.damage, vec![]);
        // Twice: the second opening reads what this version has written.
        for opening in 0..2 {
            let engine = Engine::open(Arc::clone(&device) as Arc<dyn Device>, Options::default()).unwrap();
            if moves && opening == 0 {
                // One that removes a slot, and relocations in each space.
                assert!(engine.recovery().operations > 3, "{name}: {:?}", engine.recovery());
            }
            verify(&engine);
            if compressed {
                verify_compressed(&engine);
            }
            if moves {
                verify_moved(&engine);
            }
            engine.close().unwrap();
        }
        go_on(&device, &name);
        versions += 1;
    }
    assert_eq!(versions, 9);
}
