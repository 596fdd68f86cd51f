//! A store on a device that becomes longer while it is open.

#![allow(clippy::unwrap_used, reason = "a test that fails")]

use std::sync::Arc;

use bytes::Bytes;
use esker_device::{Device, FileDevice, MemoryDevice, OpenMode};
use esker_engine::{Engine, FormatOptions, Options, check};
use esker_store::{Change, Collection, Error, ObjectId, ObjectStore, Transaction};

const SEGMENT_BYTES: u64 = 64 << 10;
const SHORT: u64 = 1 << 20;
const LONG: u64 = 3 << 20;

fn object() -> ObjectId {
    ObjectId::new(Collection::from("c"), "o")
}

fn value(index: u64) -> Bytes {
    Bytes::from(vec![index as u8; 3000])
}

fn open(device: &Arc<dyn Device>, commit_thread: bool) -> Engine {
    let options = Options { recent_bytes: 0, cache_bytes: 1 << 20, commit_thread, ..Options::default() };
    let engine = Engine::open(Arc::clone(device), options).unwrap();
    engine.submit(Transaction::new().create_collection(&Collection::from("c"))).wait().unwrap();
    engine
}

fn put(engine: &Engine, index: u64) -> Result<(), Error> {
    let change = Change::SlotSet { index, value: value(index) };
    engine.submit(Transaction::new().change(&object(), change)).wait().map(drop)
}

/// Writes until the store is full; the first slot that was refused.
fn fill(engine: &Engine, from: u64) -> u64 {
    for index in from.. {
        match put(engine, index) {
            Ok(()) => {}
            Err(Error::Full { .. }) => return index,
            Err(error) => panic!("slot {index}: {error}"),
        }
    }
    unreachable!()
}

fn verify(engine: &Engine, to: u64) {
    assert_eq!(engine.stat(&object()).wait().unwrap().unwrap().slots, to);
    for index in 0..to {
        assert_eq!(engine.slot_get(&object(), index).wait().unwrap(), Some(value(index)), "slot {index}");
    }
}

fn format(device: &dyn Device) {
    Engine::format(device, &FormatOptions { segment_bytes: SEGMENT_BYTES, uuid: [5; 16] }).unwrap();
}

/// Full, longer, grown: writes go on in the same engine, several times, and all of it is there after closing.
fn a_full_store_grows(device: Arc<dyn Device>, lengthen: &dyn Fn(u64), commit_thread: bool) {
    format(&*device);
    let engine = open(&device, commit_thread);
    let mut end = fill(&engine, 0);
    assert!(end > 60, "{end}");
    assert_eq!(engine.grow().unwrap().added_segments, 0);
    assert!(matches!(put(&engine, end), Err(Error::Full { .. })));
    for step in 1..=4 {
        let len = SHORT + step * (LONG - SHORT) / 4;
        lengthen(len);
        let report = engine.grow().unwrap();
        assert_eq!((report.after_bytes, report.added_segments), (len, (LONG - SHORT) / 4 / SEGMENT_BYTES));
        let more = fill(&engine, end);
        assert!(more > end + 50, "step {step}: {end} to {more}");
        end = more;
        verify(&engine, end);
    }
    assert_eq!(engine.stats().segments, LONG / SEGMENT_BYTES - 2);
    engine.close().unwrap();
    drop(engine);
    let report = check(Arc::clone(&device), true, &mut |_, _| ()).unwrap();
    assert_eq!(report.damaged, 0, "{:?}", report.damage);
    verify(&open(&device, commit_thread), end);
}

#[test]
fn a_full_store_grows_without_being_opened_again() {
    for commit_thread in [true, false] {
        for zoned in [false, true] {
            let device = if zoned { MemoryDevice::zoned(SHORT, SEGMENT_BYTES) } else { MemoryDevice::new(SHORT) };
            let device = Arc::new(device);
            let longer = Arc::clone(&device);
            a_full_store_grows(device, &|len| longer.lengthen(len), commit_thread);
        }
    }
}

#[test]
fn a_file_that_was_lengthened_is_used() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("device");
    let device = Arc::new(FileDevice::open(&path, OpenMode::Create { len: SHORT }).unwrap());
    let lengthen = |len| std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(len).unwrap();
    a_full_store_grows(device, &lengthen, true);
}

#[test]
fn growing_wakes_writers_while_it_goes_on() {
    let device = Arc::new(MemoryDevice::new(SHORT));
    format(&*device);
    let engine = open(&(Arc::clone(&device) as Arc<dyn Device>), true);
    let written = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut index = 0;
            // Refused writes are tried again, as a patient client would.
            while index < 350 {
                match put(&engine, index) {
                    Ok(()) => index += 1,
                    Err(Error::Full { .. }) => std::thread::yield_now(),
                    Err(error) => panic!("slot {index}: {error}"),
                }
            }
            index
        });
        for step in 1..=16 {
            std::thread::sleep(std::time::Duration::from_millis(10));
            device.lengthen(SHORT + step * (LONG - SHORT) / 16);
            engine.grow().unwrap();
        }
        writer.join().unwrap()
    });
    verify(&engine, written);
}

/// The new length stands in a superblock before anything stands behind the old end: a power cut at any time around the
/// growth leaves a store that opens with everything that was acknowledged.
#[test]
fn what_was_written_around_the_growth_survives_power_loss() {
    let device = Arc::new(MemoryDevice::new(SHORT));
    let device_dyn = Arc::clone(&device) as Arc<dyn Device>;
    format(&*device);
    let engine = open(&device_dyn, false);
    let full = fill(&engine, 0);
    device.lengthen(LONG);
    device.refresh_len().unwrap();
    // Leftovers of another life behind the old end must not matter.
    for segment in SHORT / SEGMENT_BYTES..LONG / SEGMENT_BYTES {
        let mut old = vec![0; SEGMENT_BYTES as usize];
        device.read((segment - SHORT / SEGMENT_BYTES + 2) * SEGMENT_BYTES, &mut old).unwrap();
        device.write(segment * SEGMENT_BYTES, &old).unwrap();
    }
    let survives = |to: u64| {
        // What is on the device now, as after a power cut: opened to read, and to write.
        for read_only in [true, false] {
            let cut = Arc::new(device.snapshot()) as Arc<dyn Device>;
            let options = Options { read_only, ..Options::default() };
            verify(&Engine::open(cut, options).unwrap(), to);
        }
    };
    survives(full);
    engine.grow().unwrap();
    survives(full);
    for index in full..full + 400 {
        put(&engine, index).unwrap();
        if index % 20 == 0 {
            survives(index + 1);
        }
    }
    survives(full + 400);
}

#[test]
fn a_store_that_is_only_read_does_not_grow() {
    let device = Arc::new(MemoryDevice::new(SHORT));
    format(&*device);
    device.lengthen(LONG);
    let options = Options { read_only: true, ..Options::default() };
    let engine = Engine::open(device, options).unwrap();
    assert!(matches!(engine.grow(), Err(Error::ReadOnly)));
}
