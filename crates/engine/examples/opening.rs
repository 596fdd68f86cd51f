//! Measures opening: `cargo run --release -p esker-engine --example opening -- write|log|open FILE bytes|int KEYS`.
//!
//! `write` fills a store (16 GiB, sparse) with KEYS keys of 16-byte values in random order, says `filled`, and goes on
//! overwriting them until it is killed; `write … close` ends when it is filled, and closes the store. `log …
//! OBJECTS` fills so many objects with KEYS keys each in turn, with no checkpoint by time, and ends as a crash would.
//! `open` opens the store, says how long the checkpoint and the log after it took, and closes it again; `open …
//! crash` ends as a crash would, so that the same log can be opened again.

#![allow(clippy::unwrap_used, reason = "a measurement that cannot go on ends")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use esker_device::{Device, FileDevice, OpenMode};
use esker_engine::{Engine, FormatOptions, Options};
use esker_store::{Change, Collection, Durability, ObjectId, ObjectStore, Transaction};

/// So many keys in a transaction.
const BATCH: u64 = 8;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [mode, path, kind, keys, rest @ ..] = &arguments[..] else { panic!("write|open FILE bytes|int KEYS [close]") };
    let keys: u64 = keys.parse().expect("keys as a number");
    match mode.as_str() {
        "write" => write(path, kind == "bytes", keys, !rest.is_empty()),
        "log" => {
            let objects = rest.first().and_then(|objects| objects.parse().ok());
            log(path, kind == "bytes", keys, objects.expect("OBJECTS as a number"));
        }
        _ => open(path, rest.is_empty()),
    }
}

fn change(bytes: bool, number: u64) -> Change {
    let value = Bytes::copy_from_slice(&[number as u8; 16]);
    if bytes {
        Change::OmapSet { key: format!("key:{number:012}").into(), value }
    } else {
        Change::SlotSet { index: number, value }
    }
}

fn write(path: &str, bytes: bool, keys: u64, close: bool) {
    let device = FileDevice::open(path, OpenMode::Create { len: 16 << 30 }).unwrap();
    Engine::format(&device, &FormatOptions::new([8; 16])).unwrap();
    let engine = Engine::open(Arc::new(device) as Arc<dyn Device>, Options::default()).unwrap();
    engine.submit(Transaction::new().create_collection(&Collection::from("c"))).wait().unwrap();
    let object = ObjectId::new(Collection::from("c"), "o");
    // Every key once: a step that has no divisor in common with their number.
    let step = (7_368_787 % keys.max(1)) | 1;
    let began = Instant::now();
    let mut at = 0u64;
    for batch in 0u64.. {
        let mut txn = Transaction::with(Durability::Applied);
        for _ in 0..BATCH {
            txn.push(&object, change(bytes, at));
            at = (at + step) % keys;
        }
        engine.submit(txn).wait().unwrap();
        if (batch + 1) * BATCH == keys / BATCH * BATCH {
            let rate = keys as f64 / began.elapsed().as_secs_f64();
            println!("filled, {rate:.0} keys/s");
            if close {
                let began = Instant::now();
                engine.close().unwrap();
                println!("closed in {:.3} s", began.elapsed().as_secs_f64());
                return;
            }
        }
    }
}

fn log(path: &str, bytes: bool, keys: u64, objects: u64) {
    let device = FileDevice::open(path, OpenMode::Create { len: 16 << 30 }).unwrap();
    Engine::format(&device, &FormatOptions::new([8; 16])).unwrap();
    let options = Options { recovery_time: Duration::ZERO, ..Options::default() };
    let engine = Engine::open(Arc::new(device) as Arc<dyn Device>, options).unwrap();
    engine.submit(Transaction::new().create_collection(&Collection::from("c"))).wait().unwrap();
    let ids: Vec<_> = (0..objects).map(|n| ObjectId::new(Collection::from("c"), format!("o{n}"))).collect();
    let step = (7_368_787 % keys.max(1)) | 1;
    let mut at = 0u64;
    for _ in 0..keys / BATCH {
        let numbers: Vec<u64> = (0..BATCH).map(|nth| (at + nth * step) % keys).collect();
        at = (at + BATCH * step) % keys;
        for id in &ids {
            let mut txn = Transaction::with(Durability::Applied);
            numbers.iter().for_each(|number| txn.push(id, change(bytes, *number)));
            engine.submit(txn).wait().unwrap();
        }
    }
    engine.sync().wait().unwrap();
    println!("{} checkpoints", engine.stats().checkpoints);
    std::process::exit(0);
}

fn open(path: &str, close: bool) {
    let began = Instant::now();
    let device = Arc::new(FileDevice::open(path, OpenMode::ReadWrite).unwrap()) as Arc<dyn Device>;
    let options = Options { recovery_time: Duration::ZERO, ..Options::default() };
    let engine = Engine::open(device, if close { Options::default() } else { options }).unwrap();
    let took = began.elapsed().as_secs_f64();
    let report = engine.recovery();
    println!(
        "opened in {took:.3} s: checkpoint {:.3} s, {} records ({} operations, {} MB) of log {:.3} s, {} keys",
        report.load.as_secs_f64(),
        report.records,
        report.operations,
        report.bytes / 1_000_000,
        report.replay.as_secs_f64(),
        engine.stats().slot_keys + engine.stats().omap_keys,
    );
    if !close {
        std::process::exit(0);
    }
    let began = Instant::now();
    engine.close().unwrap();
    println!("closed in {:.3} s", began.elapsed().as_secs_f64());
}
