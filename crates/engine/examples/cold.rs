//! Measures reads of values that are not in memory: `cargo run --release -p esker-engine --example cold -- FILE
//! [VALUES]`.
//!
//! Makes a store of VALUES (200,000) values of 4,000 bytes in FILE, drops it from the page cache, and reads a hundred
//! values at random places, many times: one after the other, and by one call. Prints the medians, and their ratio.

#![allow(clippy::unwrap_used, reason = "a measurement that cannot go on ends")]

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use esker_device::{Device, FileDevice, OpenMode};
use esker_engine::{Engine, FormatOptions, Options};
use esker_store::{Change, Collection, Durability, ObjectId, ObjectStore, Transaction};
use rustix::fs::{Advice, fadvise};

const VALUE_BYTES: usize = 4_000;
const TOGETHER: usize = 100;
const ROUNDS: usize = 21;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [path, rest @ ..] = &arguments[..] else { panic!("FILE [VALUES]") };
    let values: u64 = rest.first().map_or(200_000, |values| values.parse().expect("VALUES as a number"));
    let device = FileDevice::open(path, OpenMode::Create { len: values * 6_000 + (1 << 30) }).unwrap();
    Engine::format(&device, &FormatOptions::new([8; 16])).unwrap();
    let device = Arc::new(device) as Arc<dyn Device>;
    let object = ObjectId::new(Collection::from("c"), "o");
    let engine = Engine::open(Arc::clone(&device), Options::default()).unwrap();
    engine.submit(Transaction::new().create_collection(&Collection::from("c"))).wait().unwrap();
    for first in (0..values).step_by(64) {
        let mut txn = Transaction::with(Durability::Applied);
        for index in first..values.min(first + 64) {
            txn.push(&object, Change::SlotSet { index, value: Bytes::from(vec![index as u8; VALUE_BYTES]) });
        }
        engine.submit(txn).wait().unwrap();
    }
    drop(engine);
    // Nothing is kept in memory, and nothing is read by the scrubber.
    let options = Options { recent_bytes: 0, cache_bytes: 0, scrub_bytes_per_s: 0, ..Options::default() };
    let engine = Engine::open(device, options).unwrap();
    let file = std::fs::File::open(path).unwrap();
    let mut rng = fastrand::Rng::with_seed(1);
    let (mut alone, mut together) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let cold = || fadvise(&file, 0, None, Advice::DontNeed).unwrap();
        let wanted: Vec<u64> = (0..TOGETHER).map(|_| rng.u64(..values)).collect();
        cold();
        let began = Instant::now();
        for index in &wanted {
            assert_eq!(engine.slot_get(&object, *index).wait().unwrap().unwrap().len(), VALUE_BYTES);
        }
        alone.push(began.elapsed());
        let wanted: Vec<u64> = (0..TOGETHER).map(|_| rng.u64(..values)).collect();
        cold();
        let began = Instant::now();
        let found = engine.slot_get_many(&object, &wanted).wait().unwrap();
        together.push(began.elapsed());
        assert!(found.iter().all(|value| value.as_ref().is_some_and(|value| value.len() == VALUE_BYTES)));
    }
    let median = |times: &mut Vec<std::time::Duration>| {
        times.sort_unstable();
        times[times.len() / 2].as_secs_f64() * 1e3
    };
    let (alone, together) = (median(&mut alone), median(&mut together));
    println!(
        "{TOGETHER} values of {VALUE_BYTES} bytes, not in memory, median of {ROUNDS}: one after the other {alone:.2} ms, \
         together {together:.2} ms, {:.1} times as fast",
        alone / together
    );
}
