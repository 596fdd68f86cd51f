//! Measures integer keys: `cargo run --release -p esker-engine --example slots -- FILE KEYS BYTES [random] [once]`.
//!
//! Loads KEYS keys with values of BYTES bytes (0: of 1 to 1,024, each another), in order or with `random` not, in
//! objects of 2^20 keys as namespaces have them; but with `once` overwrites as many at random, and then as many with
//! values of any size up to 1 KiB; opens the store again with a cache of 0.1 % of the values, and gets keys at random.
//! After each of these it says how long it took and what the index takes. FILE is made, and removed at the end.

#![allow(clippy::unwrap_used, reason = "a measurement that cannot go on ends")]

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use esker_device::{Device, FileDevice, OpenMode};
use esker_engine::{Engine, FormatOptions, Options};
use esker_store::{Change, Collection, Durability, ObjectId, ObjectStore, Transaction};

/// Keys of an object.
const RANGE: u64 = 1 << 20;
/// So many keys in a transaction.
const BATCH: u64 = 64;
const BYTES_MAX: u64 = 1_024;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [path, keys, bytes, rest @ ..] = &arguments[..] else { panic!("FILE KEYS BYTES [random] [once]") };
    let is = |word: &str| rest.iter().any(|given| given == word);
    let (keys, bytes): (u64, u64) = (keys.parse().expect("KEYS"), bytes.parse().expect("BYTES"));
    let mean = if bytes == 0 { BYTES_MAX / 2 } else { bytes };
    let device: Arc<dyn Device> = {
        // Room for all three rounds without cleaning, and for checkpoints.
        let len = (keys * (2 * mean + BYTES_MAX / 2 + 3 * 64) * 3 / 2).next_multiple_of(64 << 20) + (4 << 30);
        Arc::new(FileDevice::open(path, OpenMode::Create { len }).unwrap())
    };
    Engine::format(&*device, &FormatOptions::new([8; 16])).unwrap();
    let engine = Engine::open(Arc::clone(&device), Options::default()).unwrap();
    engine.submit(Transaction::new().create_collection(&Collection::from("c"))).wait().unwrap();
    let mut rng = fastrand::Rng::with_seed(24);
    // Every key once: a step that has no divisor in common with their number.
    let step = if is("random") { (7_368_787 % keys.max(1)) | 1 } else { 1 };
    put(&engine, "load", keys, bytes, |_, nth| (u128::from(nth) * u128::from(step) % u128::from(keys)) as u64);
    if !is("once") {
        put(&engine, "overwrite", keys, bytes, |rng, _| rng.u64(..keys));
        put(&engine, "any size", keys, 0, |rng, _| rng.u64(..keys));
    }
    engine.close().unwrap();
    drop(engine);

    let cache_bytes = keys * mean / 1_000;
    let began = Instant::now();
    let options = Options { recent_bytes: 0, cache_bytes, ..Options::default() };
    let engine = Engine::open(device, options).unwrap();
    println!("opened in {:.2} s, {}", began.elapsed().as_secs_f64(), index(&engine));
    let (before, gets, began) = (engine.stats(), keys.min(1_000_000), Instant::now());
    for _ in 0..gets {
        let key = rng.u64(..keys);
        assert!(engine.slot_get(&object(key), key % RANGE).wait().unwrap().is_some(), "key {key}");
    }
    let ns = began.elapsed().as_nanos() as f64 / gets as f64;
    let after = engine.stats();
    println!(
        "get, cold: {ns:.0} ns; {:.4} device reads a get, {:.4} of them found in the cache",
        (after.device_reads - before.device_reads) as f64 / gets as f64,
        (after.cache_hits - before.cache_hits) as f64 / gets as f64,
    );
    std::fs::remove_file(path).unwrap();
}

fn object(key: u64) -> ObjectId {
    ObjectId::new(Collection::from("c"), (key / RANGE).to_be_bytes().to_vec())
}

/// Puts so many keys, which `key` names; says how long that took and what the index takes.
fn put(engine: &Engine, what: &str, keys: u64, bytes: u64, key: impl Fn(&mut fastrand::Rng, u64) -> u64) {
    let mut rng = fastrand::Rng::with_seed(7);
    let value = Bytes::from(vec![7; BYTES_MAX as usize]);
    let began = Instant::now();
    for first in (0..keys).step_by(BATCH as usize) {
        let mut txn = Transaction::with(Durability::Applied);
        for nth in first..(first + BATCH).min(keys) {
            let key = key(&mut rng, nth);
            let len = if bytes == 0 { rng.u64(1..=BYTES_MAX) } else { bytes };
            let value = value.slice(..len as usize);
            txn.push(&object(key), Change::SlotSet { index: key % RANGE, value });
        }
        engine.submit(txn).wait().unwrap();
    }
    let ns = began.elapsed().as_nanos() as f64 / keys as f64;
    println!("{what}: {ns:.0} ns a put, {}", index(engine));
}

/// What the index of slots takes.
fn index(engine: &Engine) -> String {
    let figures = engine.stats().entries().into_iter();
    let some = figures.filter(|(name, value)| name.starts_with("slot_") && value != "0");
    some.map(|(name, value)| format!("{name} {value}")).collect::<Vec<_>>().join(", ")
}
