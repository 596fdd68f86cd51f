//! Damage in a store that lives on: what rotted costs what stood on it and no more, says so, and is found before a
//! reader finds it.

#![allow(clippy::unwrap_used, reason = "a test that fails")]

#[path = "support/hooked.rs"]
mod hooked;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use esker_device::{Device, MemoryDevice};
use esker_engine::format::{SegmentHeader, Stream};
use esker_engine::{Engine, FormatOptions, Options, check};
use esker_store::{Change, Collection, Durability, Error, ObjectId, ObjectStore, Transaction};
use hooked::{Call, Hooked};

const SEGMENT_BYTES: u64 = 64 << 10;
const SEGMENTS: u64 = 96;
const UUID: [u8; 16] = [5; 16];
const KEYS: u64 = 2_000;

fn object(name: &'static str) -> ObjectId {
    ObjectId::new(Collection::from("c"), name)
}

fn value(key: u64, life: u64) -> Bytes {
    Bytes::from(format!("value {key} of life {life} ").repeat(8))
}

fn options() -> Options {
    Options { recent_bytes: 0, cache_bytes: 0, commit_thread: false, ..Options::default() }
}

fn open(device: &Arc<MemoryDevice>) -> Result<Engine, Error> {
    Engine::open(Arc::clone(device) as Arc<dyn Device>, options())
}

fn write(engine: &Engine, id: &ObjectId, keys: std::ops::Range<u64>, life: u64) {
    for key in keys {
        let omap = Bytes::from(format!("key {key:05}"));
        let txn = Transaction::with(Durability::Applied)
            .change(id, Change::SlotSet { index: key, value: value(key, life) })
            .change(id, Change::OmapSet { key: omap, value: value(key, life) });
        engine.submit(txn).wait().unwrap();
    }
    engine.sync().wait().unwrap();
}

/// A store with an object of many keys, closed.
fn sample() -> Arc<MemoryDevice> {
    let device = Arc::new(MemoryDevice::new(SEGMENTS * SEGMENT_BYTES));
    Engine::format(&*device, &FormatOptions { segment_bytes: SEGMENT_BYTES, uuid: UUID }).unwrap();
    let engine = open(&device).unwrap();
    engine.submit(Transaction::new().create_collection(&Collection::from("c"))).wait().unwrap();
    write(&engine, &object("old"), 0..KEYS, 1);
    engine.close().unwrap();
    device
}

fn flip(device: &MemoryDevice, at: u64, bit: u8) {
    let block = at / 4096 * 4096;
    let mut bytes = vec![0; 4096];
    device.read(block, &mut bytes).unwrap();
    bytes[(at - block) as usize] ^= 1 << bit;
    device.write(block, &bytes).unwrap();
}

fn header(device: &MemoryDevice, segment: u64) -> Option<SegmentHeader> {
    let mut head = vec![0; 4096];
    device.read(segment * SEGMENT_BYTES, &mut head).unwrap();
    SegmentHeader::decode(&head, &UUID, segment)
}

/// How many keys are right; the rest must say that they are damaged.
fn right(engine: &Engine, id: &ObjectId, keys: std::ops::Range<u64>, life: u64) -> (u64, u64) {
    let (mut right, mut named) = (0, 0);
    for key in keys {
        let slot = engine.slot_get(id, key).wait();
        let omap = engine.omap_get(id, format!("key {key:05}").as_bytes()).wait();
        for found in [slot, omap] {
            match found {
                Ok(found) => {
                    assert_eq!(found, Some(value(key, life)), "key {key} of {id}");
                    right += 1;
                }
                Err(Error::Corrupt { .. }) => named += 1,
                Err(error) => panic!("key {key} of {id}: {error}"),
            }
        }
    }
    (right, named)
}

/// Failure: one flipped bit in a segment's header, and after 60,000 writes hundreds of answers were other keys' values.
/// Cause: the segment had no generation, counted as free, and was written. Fix: the checkpoint's table of segments.
#[test]
fn a_lost_header_costs_nothing() {
    let device = sample();
    let expected = 2 * KEYS;
    let in_use: Vec<u64> = (1..SEGMENTS).filter(|segment| header(&device, *segment).is_some()).collect();
    assert!(in_use.len() > 8, "{in_use:?}");
    for segment in in_use {
        let damaged = Arc::new(device.snapshot());
        flip(&damaged, segment * SEGMENT_BYTES + 20, 3);
        let engine = open(&damaged).unwrap();
        assert_eq!(right(&engine, &object("old"), 0..KEYS, 1), (expected, 0), "segment {segment}");
        let lost = engine.stats().damaged_segments;
        let report = engine.check(true, &mut |_, _| ()).unwrap();
        assert_eq!(report.damaged, lost, "segment {segment}: {:?}", report.damage);
        // The rest of the device is written over twice.
        for life in 0..4 {
            write(&engine, &object("new"), 0..KEYS * 3 / 2, life);
            engine.checkpoint().unwrap();
            while engine.clean().unwrap() {}
            assert_eq!(right(&engine, &object("old"), 0..KEYS, 1), (expected, 0), "segment {segment}, life {life}");
        }
        assert_eq!(right(&engine, &object("new"), 0..KEYS * 3 / 2, 3), (expected * 3 / 2, 0), "segment {segment}");
        // What stood there was moved, and the segment is whole again or free.
        engine.checkpoint().unwrap();
        assert_eq!(engine.stats().damaged_segments, 0, "segment {segment}");
        engine.close().unwrap();
        drop(engine);
        let report = check(Arc::clone(&damaged) as Arc<dyn Device>, true, &mut |_, _| ()).unwrap();
        assert_eq!(report.damage, vec![], "segment {segment}");
    }
}

#[test]
fn a_damaged_segment_is_left_alone_but_for_what_holds() {
    let device = sample();
    let victim =
        (1..SEGMENTS).find(|segment| header(&device, *segment).is_some_and(|header| header.stream == Stream::Log));
    let base = victim.unwrap() * SEGMENT_BYTES;
    // A record's header, an operation's header, a payload, and the segment's header as well.
    for at in [20, 4096 + 9, 20_000, 30_011, 40_022] {
        flip(&device, base + at, 2);
    }
    let engine = open(&device).unwrap();
    let (served, named) = right(&engine, &object("old"), 0..KEYS, 1);
    assert!((1..=5).contains(&named) && served + named == 2 * KEYS, "{served} right, {named} named");
    engine.checkpoint().unwrap();
    while engine.clean().unwrap() {}
    assert_eq!(right(&engine, &object("old"), 0..KEYS, 1), (served, named));
    let stats = engine.stats();
    assert_eq!((stats.damaged_segments, stats.lost_values), (1, named));
    // What cannot be moved is not looked at again and again, nor counted.
    for _ in 0..5 {
        engine.checkpoint().unwrap();
        while engine.clean().unwrap() {}
    }
    assert_eq!(engine.stats().lost_values, named);
    // Only what is lost is still there; new values take its place, and the segment is free.
    let live = engine.check(false, &mut |_, _| ()).unwrap().live_bytes;
    write(&engine, &object("old"), 0..KEYS, 2);
    engine.checkpoint().unwrap();
    engine.checkpoint().unwrap();
    while engine.clean().unwrap() {}
    assert_eq!(engine.stats().damaged_segments, 0, "{live} bytes were live");
    assert_eq!(right(&engine, &object("old"), 0..KEYS, 2), (2 * KEYS, 0));
}

#[test]
fn scrubbing_finds_what_no_reader_has_met_and_the_cleaner_saves_the_rest() {
    let device = sample();
    let engine = open(&device).unwrap();
    let whole = engine.scrub_once(&mut |_, _| true).unwrap();
    assert_eq!((whole.damaged, whole.dead, whole.damaged_superblocks), (0, 0, 0), "{:?}", whole.damage);
    assert!(whole.operations >= 2 * KEYS && whole.bytes > KEYS * 400, "{whole:?}");
    let image = device.image();
    let found = |text: &str| image.windows(text.len()).position(|window| window == text.as_bytes()).unwrap() as u64;
    let places = [found("value 17 of life"), found("value 1203 of life")];
    for (number, at) in places.into_iter().enumerate() {
        flip(&device, at, 1);
        let report = engine.scrub_once(&mut |_, _| true).unwrap();
        assert_eq!(report.damaged, number as u64 + 1, "{:?}", report.damage);
    }
    let named: Vec<String> = engine.scrub_found().iter().map(|damage| damage.what.clone()).collect();
    assert!(
        ["slot 17 of c/old", "slot 1203 of c/old"].iter().all(|name| named.iter().any(|what| what.contains(name))),
        "{named:?}"
    );
    assert_eq!(engine.scrub_status().damaged, 3);
    while engine.clean().unwrap() {}
    engine.checkpoint().unwrap();
    while engine.clean().unwrap() {}
    assert_eq!(right(&engine, &object("old"), 0..KEYS, 1), (2 * KEYS - 2, 2));
    // Each stands alone now: nothing else is in its segment.
    let check = engine.check(true, &mut |_, _| ()).unwrap();
    assert_eq!(check.damaged, 2 + check.damaged_segments, "{:?}", check.damage);
}

#[test]
fn a_damaged_piece_of_the_checkpoint_is_found_and_written_again() {
    let device = sample();
    let engine = open(&device).unwrap();
    engine.checkpoint().unwrap();
    let options = esker_engine::DumpOptions { operations: true, ..Default::default() };
    let mut found = 0;
    for round in 0..12 {
        let mut pieces = Vec::new();
        esker_engine::dump(&*device, options, &mut |item| {
            if let esker_engine::DumpItem::Operation(op, at, _) = item
                && op.kind == esker_engine::format::Kind::Index
                && op.payload_len > 100
            {
                pieces.push(at);
            }
        })
        .unwrap();
        // Of the newest checkpoint, or of one before it, whose pieces may not count any more.
        let at = pieces[pieces.len() - 1 - round % pieces.len()];
        flip(&device, at + 60, 1);
        found += engine.scrub_once(&mut |_, _| true).unwrap().damaged;
        engine.clean().unwrap();
        engine.checkpoint().unwrap();
    }
    assert!(found > 2, "{found}");
    let last = engine.scrub_once(&mut |_, _| true).unwrap();
    assert_eq!(last.damaged, 0, "{:?}", last.damage);
    engine.close().unwrap();
    drop(engine);
    let engine = open(&device).unwrap();
    assert_eq!(engine.recovery().checkpoints_passed_over, 0);
    assert_eq!(right(&engine, &object("old"), 0..KEYS, 1), (2 * KEYS, 0));
}

#[test]
fn a_scrubber_goes_on_after_a_restart_and_stops_when_it_is_told_to() {
    let device = sample();
    let open = |rate, after| {
        let options = Options { scrub_bytes_per_s: rate, scrub_after: after, ..Options::default() };
        Engine::open(Arc::clone(&device) as Arc<dyn Device>, options).unwrap()
    };
    let until = |engine: &Engine, what: &str, holds: &dyn Fn(esker_engine::ScrubStatus) -> bool| {
        let began = Instant::now();
        while !holds(engine.scrub_status()) {
            assert!(began.elapsed() < Duration::from_secs(60), "{what}: {:?}", engine.scrub_status());
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    let engine = open(2 << 20, Duration::ZERO);
    until(&engine, "it begins", &|status| status.running && status.next_segment > 3);
    engine.set_scrub_rate(0);
    std::thread::sleep(Duration::from_millis(300));
    let paused = engine.scrub_status();
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(engine.scrub_status().read_bytes, paused.read_bytes, "it reads though it is paused");
    assert!(paused.running && paused.done_bytes < paused.total_bytes, "{paused:?}");
    let began = Instant::now();
    engine.close().unwrap();
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    drop(engine);
    // It goes on where it was, and then the round has ended.
    let engine = open(0, Duration::ZERO);
    assert_eq!((engine.scrub_status().next_segment, engine.scrub_status().rounds), (paused.next_segment, 0));
    engine.set_scrub_rate(1 << 40);
    until(&engine, "it ends", &|status| status.rounds == 1);
    let status = engine.scrub_status();
    assert!(status.read_bytes < status.total_bytes && !status.running, "{status:?}");
    engine.close().unwrap();
    drop(engine);
    assert_eq!(open(0, Duration::ZERO).scrub_status().rounds, 1);
}

#[test]
fn a_call_that_has_not_come_back_is_seen_while_it_hangs() {
    let device = sample();
    let hangs = Arc::new(AtomicBool::new(false));
    let before = {
        let hangs = Arc::clone(&hangs);
        move |call| {
            while matches!(call, Call::Read(_)) && hangs.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(5));
            }
            Ok(())
        }
    };
    let device = Arc::new(Hooked { device: device.snapshot(), before });
    let options = Options { slow_io: Duration::from_millis(50), scrub_bytes_per_s: 0, ..options() };
    let engine = Arc::new(Engine::open(Arc::clone(&device) as Arc<dyn Device>, options).unwrap());
    assert_eq!(engine.stats().hanging_calls, 0);
    hangs.store(true, Ordering::SeqCst);
    let reader = {
        let engine = Arc::clone(&engine);
        std::thread::spawn(move || engine.slot_get(&object("old"), 3).wait())
    };
    let began = Instant::now();
    while engine.stats().hanging_calls == 0 {
        assert!(began.elapsed() < Duration::from_secs(30), "the call is not seen");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(engine.stats().oldest_call_ms >= 50);
    assert!(!reader.is_finished());
    hangs.store(false, Ordering::SeqCst);
    assert_eq!(reader.join().unwrap().unwrap(), Some(value(3, 1)));
    assert_eq!(engine.stats().hanging_calls, 0);
}
