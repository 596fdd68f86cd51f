//! Power cuts while all threads of an engine run, on a store that is nearly full: the cleaner copies and moves all the
//! time.
//!
//! What the threads do is not the seed's to say: a failure may not come again with the same seed.

#![allow(clippy::unwrap_used, reason = "a test that fails")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use esker_device::Device;
use esker_engine::{Engine, FormatOptions, Options, check};
use esker_sim::fault::{FaultyDevice, Image, Shape, Survival};
use esker_store::{Change, Collection, Durability, ObjectId, ObjectStore, Transaction};

const DEVICE_BYTES: u64 = 24 << 20;
const SEGMENT_BYTES: u64 = 64 << 10;
const KEYS: u64 = 29_000;
const WRITERS: u64 = 2;

/// Version that was written last, and the last that was acknowledged as durable.
#[derive(Default)]
struct Versions {
    written: AtomicU64,
    durable: AtomicU64,
}

fn object() -> ObjectId {
    ObjectId::new(Collection::from("c"), "slots")
}

fn value(key: u64, version: u64) -> Bytes {
    let mut value = vec![key as u8; 500 + (key * 7 % 300) as usize];
    value[..8].copy_from_slice(&version.to_le_bytes());
    value[8..16].copy_from_slice(&key.to_le_bytes());
    value.into()
}

fn open(device: &Arc<FaultyDevice>) -> Engine {
    Engine::open(Arc::clone(device) as Arc<dyn Device>, Options { recent_bytes: 0, ..Options::default() }).unwrap()
}

/// Overwrites until the power is gone; now and then it waits until what it has written is durable.
fn overwrite(engine: &Engine, versions: &[Versions], writer: u64, seed: u64) {
    let mut rng = fastrand::Rng::with_seed(seed * WRITERS + writer);
    let mut since = Vec::new();
    loop {
        let key = rng.u64(..KEYS / WRITERS) * WRITERS + writer;
        let version = versions[key as usize].written.load(Ordering::Relaxed) + 1;
        let waits = rng.u8(..16) == 0;
        let durability = if waits { Durability::Durable } else { Durability::Applied };
        // Written in any case: the client does not know how far it came.
        versions[key as usize].written.store(version, Ordering::Relaxed);
        let change = Change::SlotSet { index: key, value: value(key, version) };
        if engine.submit(Transaction::with(durability).change(&object(), change)).wait().is_err() {
            return;
        }
        since.push((key, version));
        if waits {
            for (key, version) in since.drain(..) {
                versions[key as usize].durable.fetch_max(version, Ordering::Relaxed);
            }
        }
    }
}

fn holds(device: &Arc<FaultyDevice>, versions: &[Versions], what: &str) -> Engine {
    let report = check(Arc::clone(device) as Arc<dyn Device>, true, &mut |_, _| {}).unwrap();
    assert_eq!(report.damaged, 0, "{what}: {report:?}");
    let engine = open(device);
    for (key, known) in versions.iter().enumerate() {
        let found = engine.slot_get(&object(), key as u64).wait().unwrap_or_else(|error| panic!("{what}: {error}"));
        let found = found.unwrap_or_else(|| panic!("{what}: key {key} is gone"));
        let version = u64::from_le_bytes(found[..8].try_into().unwrap());
        assert!(found == value(key as u64, version), "{what}: key {key} has what was never written");
        let (durable, written) = (known.durable.load(Ordering::Relaxed), known.written.load(Ordering::Relaxed));
        assert!((durable..=written).contains(&version), "{what}: key {key}: {version} not in {durable}..={written}");
        known.written.store(version, Ordering::Relaxed);
        known.durable.store(version, Ordering::Relaxed);
    }
    engine
}

#[test]
fn a_power_cut_while_copies_are_moved_loses_nothing() {
    let seed = fastrand::u64(..1 << 32);
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut device = Arc::new(FaultyDevice::new(Image::blank(Shape::plain(DEVICE_BYTES)), seed));
    Engine::format(&*device, &FormatOptions { segment_bytes: SEGMENT_BYTES, uuid: [5; 16] }).unwrap();
    let versions: Arc<Vec<Versions>> = Arc::new((0..KEYS).map(|_| Versions::default()).collect());
    let mut engine = open(&device);
    engine.submit(Transaction::new().create_collection(&Collection::from("c"))).wait().unwrap();
    for key in 0..KEYS {
        let change = Change::SlotSet { index: key, value: value(key, 0) };
        engine.submit(Transaction::with(Durability::Applied).change(&object(), change)).wait().unwrap();
    }
    engine.checkpoint().unwrap();
    let mut cleaned = 0;
    for life in 0..24u64 {
        let what = format!("seed {seed}, life {life}");
        let running = Arc::new(engine);
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let (engine, versions) = (Arc::clone(&running), Arc::clone(&versions));
                std::thread::spawn(move || overwrite(&engine, &versions, writer, seed + life))
            })
            .collect();
        std::thread::sleep(Duration::from_millis(rng.u64(20..200)));
        device.cut_power();
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        cleaned += running.stats().cleaned_segments;
        drop(running);
        let survival = [Survival::None, Survival::All, Survival::Prefix, Survival::Writes, Survival::Sectors];
        let image = device.image_after_power_cut(survival[rng.usize(..survival.len())]);
        device = Arc::new(FaultyDevice::new(image, rng.u64(..)));
        engine = holds(&device, &versions, &what);
    }
    engine.close().unwrap();
    assert!(cleaned > 200, "only {cleaned} segments were cleaned");
}
