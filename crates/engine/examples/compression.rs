//! Measures compression by hint: `cargo run --release -p esker-engine --example compression -- FOLDER [MIB]`.
//!
//! For values of 100 KiB that look like JSON, and for random ones: how fast one thread puts them (acknowledged when
//! applied, one sync at the end), how fast it gets them from the page cache of the system, and 4 KiB of them at a time;
//! the engine's own cache is too small to help. One line per content and codec.

#![allow(clippy::unwrap_used, reason = "a measurement that cannot go on ends")]

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use esker_device::{Device, FileDevice, OpenMode};
use esker_engine::{Engine, FormatOptions, Options};
use esker_store::{Change, Collection, Compression, Durability, ObjectId, ObjectStore, Transaction};

const VALUE_BYTES: usize = 100 << 10;
const PART_BYTES: u64 = 4 << 10;

fn json(rng: &mut fastrand::Rng) -> Bytes {
    let mut text = String::with_capacity(VALUE_BYTES + 200);
    while text.len() < VALUE_BYTES {
        let (id, user, at, amount) =
            (rng.u64(..), rng.u32(..100_000), 1_700_000_000_000 + rng.u64(..1 << 36), rng.u32(..9_999));
        let state = ["open", "paid", "sent", "returned"][rng.usize(..4)];
        text += &format!(
            "{{\"id\":\"{id:016x}\",\"user\":{user},\"created_at\":{at},\"amount\":{amount}.50,\"currency\":\"EUR\",\"state\":\"{state}\",\"tags\":[\"a{}\",\"b{}\"]}},",
            rng.u8(..20),
            rng.u8(..20),
        );
    }
    text.truncate(VALUE_BYTES);
    text.into()
}

fn random(rng: &mut fastrand::Rng) -> Bytes {
    let mut value = vec![0; VALUE_BYTES];
    rng.fill(&mut value);
    value.into()
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().expect("a folder for the store");
    let mib: u64 = arguments.next().map_or(512, |mib| mib.parse().expect("MiB as a number"));
    let count = (mib << 20) / VALUE_BYTES as u64;
    println!("{count} values of 100 KiB, one thread, page cache; MB are 10^6 raw bytes");
    println!(
        "content codec  stored/raw  prepare us  put MB/s  decompress us  get MB/s  get 4 KiB/s  device bytes per 4 KiB"
    );
    for (content, make) in [("json", json as fn(&mut fastrand::Rng) -> Bytes), ("random", random)] {
        let mut rng = fastrand::Rng::with_seed(1);
        let values: Vec<Bytes> = (0..64).map(|_| make(&mut rng)).collect();
        for (codec, name) in Compression::ALL {
            let path = format!("{folder}/compression-{content}-{name}.esker");
            let line = run(&path, count, &values, codec);
            std::fs::remove_file(&path).unwrap();
            println!("{content:<7} {name:<5} {line}");
        }
    }
}

fn run(path: &str, count: u64, values: &[Bytes], codec: Compression) -> String {
    let len = (count * VALUE_BYTES as u64 * 2).max(1 << 30).next_multiple_of(64 << 20);
    let device = FileDevice::open(path, OpenMode::Create { len }).unwrap();
    Engine::format(&device, &FormatOptions::new([8; 16])).unwrap();
    let device = Arc::new(device) as Arc<dyn Device>;
    let object = ObjectId::new(Collection::from("c"), "o");
    let raw = (count * VALUE_BYTES as u64) as f64;
    let engine = Engine::open(Arc::clone(&device), Options::default()).unwrap();
    engine.submit(Transaction::new().create_collection(&Collection::from("c"))).wait().unwrap();
    let began = Instant::now();
    for at in 0..count {
        let data = values[at as usize % values.len()].clone();
        let change = Change::Write { offset: at * VALUE_BYTES as u64, data };
        engine.submit(Transaction::with(Durability::Applied).compress(codec).change(&object, change)).wait().unwrap();
    }
    engine.sync().wait().unwrap();
    let put = raw / began.elapsed().as_secs_f64() / 1e6;
    let stored = engine.stats().record_bytes as f64 / raw;
    let prepare = median_us(&engine, "prepare");
    engine.close().unwrap();
    drop(engine);
    // Room for the heads of values, hardly any for values.
    let options = Options { cache_bytes: 8 << 20, recent_bytes: 0, ..Options::default() };
    let engine = Engine::open(device, options).unwrap();
    let mut rng = fastrand::Rng::with_seed(2);
    let read = |at: u64, len: u64| engine.read(&object, at..at + len).wait().unwrap();
    let began = Instant::now();
    for _ in 0..count {
        assert_eq!(read(rng.u64(..count) * VALUE_BYTES as u64, VALUE_BYTES as u64).len(), VALUE_BYTES);
    }
    let get = raw / began.elapsed().as_secs_f64() / 1e6;
    let decompress = median_us(&engine, "decompress");
    let (began, before) = (Instant::now(), engine.stats().device_read_bytes);
    let parts = 20_000;
    for _ in 0..parts {
        let at = rng.u64(..count * VALUE_BYTES as u64 / PART_BYTES) * PART_BYTES;
        assert_eq!(read(at, PART_BYTES).len() as u64, PART_BYTES);
    }
    let rate = parts as f64 / began.elapsed().as_secs_f64();
    let bytes = (engine.stats().device_read_bytes - before) / parts;
    format!("{stored:>10.3} {prepare:>11.0} {put:>9.0} {decompress:>14.0} {get:>9.0} {rate:>12.0} {bytes:>10}")
}

/// Half of the calls that were timed took no more than this.
fn median_us(engine: &Engine, stage: &str) -> f64 {
    let stages = engine.stages();
    stages.iter().find(|(name, _)| *name == stage).map_or(0.0, |(_, times)| times.at_most_ns(50) as f64 / 1e3)
}
