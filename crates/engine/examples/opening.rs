//! Measures opening: `cargo run --release -p esker-engine --example opening -- write|open FILE bytes|int KEYS`.
//!
//! `write` fills a store (16 GiB, sparse) with KEYS keys of 16-byte values in random order, says `filled`, and goes on
//! overwriting them until it is killed; `write … close` ends when it is filled, and closes the store. `open` opens it,
//! says how long the checkpoint and the log after it took, and closes it again.

#![allow(clippy::unwrap_used, reason = "a measurement that cannot go on ends")]

use std::sync::Arc;
use std::time::Instant;

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
        _ => open(path),
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

fn open(path: &str) {
    let began = Instant::now();
    let device = Arc::new(FileDevice::open(path, OpenMode::ReadWrite).unwrap()) as Arc<dyn Device>;
    let engine = Engine::open(device, Options::default()).unwrap();
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
    let began = Instant::now();
    engine.close().unwrap();
    println!("closed in {:.3} s", began.elapsed().as_secs_f64());
}
