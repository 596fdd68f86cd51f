//! What single faults of a device cost a store that lives on: `faults story [RUNS]`, `faults single [COUNT] [FROM]`.
//!
//! - `story`: 20,000 keys of 1,000 bytes in segments of 1 MiB; one bit of a header, a superblock, a piece of the
//!   checkpoint or a record flips; then 60,000 other keys are written, and the old ones are read.
//! - `single`: an image that holds keys, a log, a table and a disk; one fault anywhere (flip, two blocks swapped, a
//!   stale block, zeros, the end cut off); then writes, cleaning, a restart; then all that was there before is read.
//!
//! Every answer is right, or an error that names damage; anything else ends the program with 1.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a measurement that fails loudly")]

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use esker_device::{Device, MemoryDevice};
use esker_engine::format::{Kind, Stream};
use esker_engine::{DumpItem, DumpOptions, Engine, FormatOptions, Options, dump};
use esker_kv::{Kv, SystemClock};
use esker_map::{DataType, Durability as MapDurability, Key, MapStorage, Mutation, Schema, TableName, Waist};
use esker_store::{Collection, Durability, Error, ObjectId, ObjectStore, OmapScan, SlotScan};
use esker_volume::Volumes;

const UUID: [u8; 16] = *b"what faults cost";
const BLOCK_BYTES: u64 = 4_096;

fn engine(device: &Arc<MemoryDevice>, options: Options) -> Result<Arc<Engine>, Error> {
    Engine::open(Arc::clone(device) as Arc<dyn Device>, options).map(Arc::new)
}

fn formatted(len: u64, segment_bytes: u64) -> Arc<MemoryDevice> {
    let device = Arc::new(MemoryDevice::new(len));
    Engine::format(&*device, &FormatOptions { segment_bytes, uuid: UUID }).unwrap();
    device
}

fn flip(device: &MemoryDevice, at: u64, bit: u8) {
    let block = at / BLOCK_BYTES * BLOCK_BYTES;
    let mut bytes = vec![0; BLOCK_BYTES as usize];
    device.read(block, &mut bytes).unwrap();
    bytes[(at - block) as usize] ^= 1 << bit;
    device.write(block, &bytes).unwrap();
}

/// Places of segment headers, superblocks, pieces of checkpoints, and records, each with its length.
fn places(device: &MemoryDevice, segment_bytes: u64) -> [Vec<(u64, u64)>; 4] {
    let (mut headers, mut pieces, mut records) = (Vec::new(), Vec::new(), Vec::new());
    let mut cold = false;
    dump(device, DumpOptions { records: true, operations: true, ..DumpOptions::default() }, &mut |item| match item {
        DumpItem::Segment(header) => {
            headers.push((header.segment * segment_bytes, 76));
            cold = header.stream == Stream::Cold;
        }
        DumpItem::Record(record, at) if !cold => records.push((at, u64::from(record.len))),
        DumpItem::Operation(op, at, _) if op.kind == Kind::Index => pieces.push((at, op.total_bytes())),
        _ => {}
    })
    .unwrap();
    let mut area = vec![0; 128 << 10];
    device.read(0, &mut area).unwrap();
    let used = |number: &usize| area[number * 4096..number * 4096 + 4096].iter().any(|byte| *byte != 0);
    let superblocks = (0..32).filter(used).map(|number| (number as u64 * BLOCK_BYTES, 132)).collect();
    [headers, superblocks, pieces, records]
}

const KINDS: [&str; 4] = ["segment header", "superblock", "piece of the checkpoint", "record"];

fn story(runs: u64) -> bool {
    const SEGMENT_BYTES: u64 = 1 << 20;
    let key = |life: &str, number: u64| format!("{life}-{number:08}");
    let value = |life: &str, number: u64| Bytes::from(format!("{life} {number:08} ").repeat(100)).slice(..1_000);
    let device = formatted(192 << 20, SEGMENT_BYTES);
    let options = || Options { recent_bytes: 4 << 20, cache_bytes: 8 << 20, ..Options::default() };
    let write = |engine: &Arc<Engine>, life: &str, count: u64| {
        let kv = Kv::open(Arc::clone(engine) as Arc<dyn ObjectStore>, Arc::new(SystemClock)).unwrap();
        let keys = kv.namespace("keys", esker_kv::Kind::Bytes).unwrap();
        let mut written = 0;
        for number in 0..count {
            written += u64::from(keys.put(key(life, number).as_bytes(), value(life, number)).wait().is_ok());
        }
        written
    };
    let first = engine(&device, options()).unwrap();
    assert_eq!(write(&first, "old", 20_000), 20_000);
    first.close().unwrap();
    drop(first);
    let places = places(&device, SEGMENT_BYTES);
    let mut rng = fastrand::Rng::with_seed(18);
    let mut bad = 0;
    for run in 0..runs {
        let kind = run as usize % 4;
        let (at, len) = places[kind][rng.usize(0..places[kind].len())];
        let (at, bit) = (at + rng.u64(0..len), rng.u8(0..8));
        let damaged = Arc::new(device.snapshot());
        flip(&damaged, at, bit);
        let opened = match engine(&damaged, options()) {
            Ok(opened) => opened,
            Err(error @ Error::Corrupt { .. }) => {
                println!("run {run}: {}, byte {at}: refused to open: {error}", KINDS[kind]);
                continue;
            }
            Err(error) => panic!("run {run}: {error}"),
        };
        let written = write(&opened, "new", 60_000);
        let kv = Kv::open(Arc::clone(&opened) as Arc<dyn ObjectStore>, Arc::new(SystemClock)).unwrap();
        let keys = kv.namespace("keys", esker_kv::Kind::Bytes).unwrap();
        let (mut right, mut named, mut wrong, mut missing) = (0, 0, 0, 0);
        for (life, count) in [("old", 20_000), ("new", 60_000)] {
            for number in 0..count {
                match keys.get(key(life, number).as_bytes()).wait() {
                    Ok(Some(found)) if found == value(life, number) => right += 1,
                    Ok(Some(_)) => wrong += 1,
                    Ok(None) => missing += 1,
                    Err(_) => named += 1,
                }
            }
        }
        bad += wrong + missing;
        let stats = opened.stats();
        println!(
            "run {run}: {}, byte {at} bit {bit}: {written} written; {right} right, {named} named, {wrong} wrong, {missing} missing; {} damaged segments left, {} checkpoints passed over",
            KINDS[kind],
            stats.damaged_segments,
            opened.recovery().checkpoints_passed_over
        );
        let _ = opened.close();
    }
    println!("story: {runs} runs, {bad} answers wrong or silently missing");
    bad == 0
}

/// All that stands in a store, entry by entry.
type Truth = BTreeMap<ObjectId, Object>;

#[derive(Default)]
struct Object {
    size: u64,
    bytes: Bytes,
    xattrs: Vec<(Bytes, Bytes)>,
    omap: Vec<(Bytes, Bytes)>,
    slots: Vec<(u64, Bytes)>,
}

fn truth(engine: &Engine) -> Truth {
    let mut all = Truth::new();
    for collection in engine.collections().wait().unwrap() {
        for name in engine.list(&collection, None, usize::MAX).wait().unwrap() {
            let id = ObjectId::new(collection.clone(), name);
            let size = engine.stat(&id).wait().unwrap().unwrap().size;
            let slots = SlotScan { range: 0..u64::MAX, reverse: false, limit: usize::MAX, keys_only: false };
            let object = Object {
                size,
                bytes: engine.read(&id, 0..size).wait().unwrap(),
                xattrs: engine.xattrs(&id).wait().unwrap(),
                omap: engine.omap_scan(&id, &OmapScan { limit: usize::MAX, ..OmapScan::default() }).wait().unwrap(),
                slots: engine.slot_scan(&id, &slots).wait().unwrap(),
            };
            all.insert(id, object);
        }
    }
    all
}

/// Right answers and named damage; what is neither, in words.
fn judge(engine: &Engine, truth: &Truth) -> Result<(u64, u64), String> {
    let (mut right, mut named) = (0, 0);
    let mut one = |what: String, answer: Result<bool, Error>| match answer {
        Ok(true) => {
            right += 1;
            Ok(())
        }
        Ok(false) => Err(what),
        Err(Error::Corrupt { .. }) => {
            named += 1;
            Ok(())
        }
        Err(error) => Err(format!("{what}: {error}")),
    };
    for (id, object) in truth {
        one(format!("{id}: size"), engine.stat(id).wait().map(|stat| stat.map(|stat| stat.size) == Some(object.size)))?;
        for (name, value) in &object.xattrs {
            one(format!("{id}: attribute"), engine.xattr(id, name).wait().map(|found| found.as_ref() == Some(value)))?;
        }
        for (key, value) in &object.omap {
            let found = engine.omap_get(id, key).wait();
            one(format!("{id}: key {}", key.escape_ascii()), found.map(|found| found.as_ref() == Some(value)))?;
        }
        for (slot, value) in &object.slots {
            let found = engine.slot_get(id, *slot).wait();
            one(format!("{id}: slot {slot}"), found.map(|found| found.as_ref() == Some(value)))?;
        }
        for at in (0..object.bytes.len()).step_by(BLOCK_BYTES as usize) {
            let end = object.bytes.len().min(at + BLOCK_BYTES as usize);
            let found = engine.read(id, at as u64..end as u64).wait();
            one(format!("{id}: data at {at}"), found.map(|found| found == object.bytes[at..end]))?;
        }
        let keys = engine.omap_scan(id, &OmapScan { limit: usize::MAX, ..OmapScan::default() }).wait();
        one(format!("{id}: scan of keys"), keys.map(|found| found == object.omap))?;
    }
    Ok((right, named))
}

/// An image with something of every face, closed, and the same some time before.
fn every_face() -> (Arc<MemoryDevice>, Vec<u8>, Truth) {
    let device = formatted(6 << 20, 64 << 10);
    let options = || Options { commit_thread: false, recent_bytes: 0, cache_bytes: 0, ..Options::default() };
    let opened = engine(&device, options()).unwrap();
    let store = || Arc::clone(&opened) as Arc<dyn ObjectStore>;
    let kv = Kv::open(store(), Arc::new(SystemClock)).unwrap();
    let (ints, bytes) =
        (kv.namespace("ints", esker_kv::Kind::Int).unwrap(), kv.namespace("bytes", esker_kv::Kind::Bytes).unwrap());
    let logs = esker_log::Logs::open(store(), esker_log::Session::new(Arc::new(|| 7), 7)).unwrap();
    let log = logs.create("events", esker_log::Options::default()).unwrap();
    let map = Waist::open(store(), Arc::new(|| 0), [3; 32]).unwrap();
    map.create_namespace("ns").unwrap();
    let table = TableName::new("ns", "t");
    let schema = Schema::new().column("p", DataType::Int).column("x", DataType::Int).partition("p").index("x");
    map.create_table(&table, &schema).unwrap();
    let volumes = Volumes::open(store()).unwrap();
    let disk = volumes.create("disk", 1 << 20, esker_volume::Layout::default(), 0).unwrap();
    let mut before = Vec::new();
    for number in 0..400u64 {
        let value = Bytes::from(format!("value {number} ").repeat(1 + number as usize % 60));
        ints.put(number * 3, value.clone()).wait().unwrap();
        bytes.put(format!("key-{:03}", number % 150).as_bytes(), value.clone()).wait().unwrap();
        log.append(value.clone()).unwrap().wait().unwrap();
        let put = Mutation::put(&table, Key::of("p", number as i32 % 90), vec![("x".into(), (number as i32).into())]);
        map.mutate(&[put], MapDurability::Applied).unwrap().wait().unwrap();
        disk.write(number * 2_000 % (900 << 10), value, Durability::Applied).unwrap().wait().unwrap();
        if number % 100 == 99 {
            disk.flush().wait().unwrap();
            opened.checkpoint().unwrap();
            opened.clean().unwrap();
            before = device.image();
        }
    }
    let clone = esker_store::Change::CloneTo { to: ObjectId::new(Collection::from("extra"), "copy") };
    let txn = esker_store::Transaction::new()
        .create_collection(&Collection::from("extra"))
        .change(&ObjectId::new(Collection::from("kv"), "bytes/bytes"), clone);
    opened.submit(txn).wait().unwrap();
    let truth = truth(&opened);
    opened.close().unwrap();
    (device, before, truth)
}

#[derive(Default)]
struct Sums {
    right: AtomicU64,
    named: AtomicU64,
    refused: AtomicU64,
    bad: AtomicU64,
}

fn single(from: u64, count: u64) -> bool {
    let (device, before, truth) = every_face();
    let image = device.image();
    println!(
        "{} objects, {} entries",
        truth.len(),
        truth.values().map(|o| o.omap.len() + o.slots.len()).sum::<usize>()
    );
    let filled: Vec<u64> = (0..image.len() as u64 / BLOCK_BYTES)
        .filter(|block| image[(block * BLOCK_BYTES) as usize..][..BLOCK_BYTES as usize].iter().any(|byte| *byte != 0))
        .collect();
    let (next, sums) = (AtomicU64::new(from), Sums::default());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= from + count || sums.bad.load(Ordering::Relaxed) > 10 {
                        return;
                    }
                    if let Err(why) = one_fault(seed, &image, &before, &filled, &truth, &sums) {
                        sums.bad.fetch_add(1, Ordering::Relaxed);
                        println!("fault {seed}: {why}");
                    }
                }
            });
        }
    });
    let load = |sum: &AtomicU64| sum.load(Ordering::Relaxed);
    println!(
        "single: {count} faults from {from}: {} answers right, {} named as damaged, {} stores refused to open, {} faults with a wrong or missing answer",
        load(&sums.right),
        load(&sums.named),
        load(&sums.refused),
        load(&sums.bad)
    );
    load(&sums.bad) == 0
}

fn one_fault(seed: u64, image: &[u8], before: &[u8], filled: &[u64], truth: &Truth, sums: &Sums) -> Result<(), String> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut bytes = image.to_vec();
    let block = |rng: &mut fastrand::Rng| (filled[rng.usize(0..filled.len())] * BLOCK_BYTES) as usize;
    let (at, len) = (block(&mut rng), BLOCK_BYTES as usize);
    let what = match rng.u8(0..5) {
        0 => {
            let byte = at + rng.usize(0..len);
            bytes[byte] ^= 1 << rng.u8(0..8);
            format!("a bit of byte {byte} flipped")
        }
        1 => {
            let other = block(&mut rng);
            let (a, b) = (bytes[at..at + len].to_vec(), bytes[other..other + len].to_vec());
            bytes[at..at + len].copy_from_slice(&b);
            bytes[other..other + len].copy_from_slice(&a);
            format!("blocks {at} and {other} swapped")
        }
        2 => {
            bytes[at..at + len].copy_from_slice(&before[at..at + len]);
            format!("block {at} stale")
        }
        3 => {
            let zeros = (512 << rng.usize(0..6)).min(bytes.len() - at);
            bytes[at..at + zeros].fill(0);
            format!("{zeros} bytes at {at} zeroed")
        }
        _ => {
            // What was cut off and made as long again: else opening says so at once.
            bytes[at..].fill(0);
            format!("all from {at} on gone")
        }
    };
    let told = |why: String| format!("{what}: {why}");
    let device = Arc::new(MemoryDevice::from_image(&bytes));
    let options = || Options {
        commit_thread: false,
        recent_bytes: if seed.is_multiple_of(2) { 0 } else { 256 << 10 },
        // Less than the store: what recent segments have of it as well is not all of the store.
        cache_bytes: 128 << 10,
        index_bytes: if seed.is_multiple_of(3) { 0 } else { u64::MAX },
        ..Options::default()
    };
    for life in 0..2 {
        let opened = match engine(&device, options()) {
            Ok(opened) => opened,
            Err(Error::Corrupt { .. } | Error::Invalid { .. }) => {
                sums.refused.fetch_add(1, Ordering::Relaxed);
                return Ok(());
            }
            Err(error) => return Err(told(format!("opening {life}: {error}"))),
        };
        let add = |(right, named): (u64, u64)| {
            sums.right.fetch_add(right, Ordering::Relaxed);
            sums.named.fetch_add(named, Ordering::Relaxed);
        };
        judge(&opened, truth).map(add).map_err(told)?;
        let id = ObjectId::new(Collection::from("life"), "object");
        let made = opened.submit(esker_store::Transaction::new().create_collection(id.collection())).wait();
        made.map_err(|error| told(error.to_string()))?;
        for number in 0..250u64 {
            let value = Bytes::from(vec![number as u8; 2_000]);
            let change = esker_store::Change::SlotSet { index: number % 60, value };
            match opened.submit(esker_store::Transaction::new().change(&id, change)).wait() {
                Ok(_) | Err(Error::Full { .. } | Error::Corrupt { .. }) => {}
                Err(error) => return Err(told(format!("writing: {error}"))),
            }
        }
        for _ in 0..6 {
            let _ = opened.clean();
        }
        let _ = opened.checkpoint();
        judge(&opened, truth).map(add).map_err(|why| told(format!("after writes and cleaning: {why}")))?;
        if life == 0 && seed.is_multiple_of(2) {
            let _ = opened.close();
        }
        // Without a close the last group may be taken for torn: it is one of the writes above.
    }
    Ok(())
}

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let what = arguments.next().unwrap_or_default();
    let mut number = |default: u64| arguments.next().and_then(|text| text.parse().ok()).unwrap_or(default);
    let held = match &what[..] {
        "story" => story(number(20)),
        "single" => {
            let count = number(20_000);
            single(number(0), count)
        }
        _ => {
            eprintln!("expected: story [RUNS], or single [COUNT] [FROM]");
            return ExitCode::from(2);
        }
    };
    if held { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
