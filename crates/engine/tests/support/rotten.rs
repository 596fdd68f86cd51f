//! Small stores of known values, and what is needed to damage them.
#![allow(dead_code, reason = "each test file uses its own part")]

use std::sync::Arc;

use bytes::Bytes;
use esker_device::{Device, MemoryDevice};
use esker_engine::format::{Loc, SegmentHeader, Stream, Superblock};
use esker_engine::{Engine, FormatOptions, Options};
use esker_store::{Change, Collection, Durability, Error, ObjectId, ObjectStore, Transaction};

pub const SEGMENT_BYTES: u64 = 64 << 10;
pub const BLOCK_BYTES: u64 = 4096;
pub const UUID: [u8; 16] = [5; 16];
pub const KEYS: u64 = 2_000;

pub fn object(name: &'static str) -> ObjectId {
    ObjectId::new(collection(), name)
}

pub fn collection() -> Collection {
    Collection::from("c")
}

pub fn value(key: u64, life: u64) -> Bytes {
    Bytes::from(format!("value {key} of life {life} ").repeat(8))
}

pub fn open(device: &Arc<MemoryDevice>) -> Result<Engine, Error> {
    let options = Options { recent_bytes: 0, cache_bytes: 0, commit_thread: false, ..Options::default() };
    Engine::open(Arc::clone(device) as Arc<dyn Device>, options)
}

pub fn change(engine: &Engine, id: &ObjectId, change: Change) {
    engine.submit(Transaction::with(Durability::Applied).change(id, change)).wait().unwrap();
}

pub fn write(engine: &Engine, id: &ObjectId, keys: std::ops::Range<u64>, life: u64) {
    keys.for_each(|key| change(engine, id, Change::SlotSet { index: key, value: value(key, life) }));
    engine.sync().wait().unwrap();
}

/// A store of `segments` segments with one collection.
pub fn fresh(segments: u64) -> (Arc<MemoryDevice>, Engine) {
    let device = Arc::new(MemoryDevice::new(segments * SEGMENT_BYTES));
    Engine::format(&*device, &FormatOptions { segment_bytes: SEGMENT_BYTES, uuid: UUID }).unwrap();
    let engine = open(&device).unwrap();
    engine.submit(Transaction::new().create_collection(&collection())).wait().unwrap();
    (device, engine)
}

/// A store whose cleaner has moved values of two objects since the last checkpoint, as a crash leaves it.
pub fn cleaned(segments: u64) -> MemoryDevice {
    let (device, engine) = fresh(segments);
    write(&engine, &object("old"), 0..KEYS, 1);
    write(&engine, &object("new"), 0..KEYS, 1);
    engine.checkpoint().unwrap();
    for key in (0..KEYS).filter(|key| key % 4 != 0) {
        change(&engine, &object("new"), Change::SlotRemove { index: key });
    }
    engine.sync().wait().unwrap();
    engine.checkpoint().unwrap();
    engine.checkpoint().unwrap();
    (0..40).take_while(|_| engine.clean().unwrap()).for_each(drop);
    engine.sync().wait().unwrap();
    assert!(engine.stats().cleaned_segments > 0);
    device.snapshot()
}

pub fn flip(device: &MemoryDevice, at: u64, bit: u8) {
    let block = at / BLOCK_BYTES * BLOCK_BYTES;
    let mut bytes = vec![0; BLOCK_BYTES as usize];
    device.read(block, &mut bytes).unwrap();
    bytes[(at - block) as usize] ^= 1 << bit;
    device.write(block, &bytes).unwrap();
}

pub fn unreadable(offset: u64) -> esker_device::Error {
    let source = std::io::Error::from_raw_os_error(5);
    esker_device::Error::Io { what: "read", name: "unreadable".into(), offset, source }
}

/// The segments of values that the cleaner moved.
pub fn cold_segments(device: &MemoryDevice, segments: u64) -> Vec<u64> {
    let cold = |segment: &u64| {
        let mut head = vec![0; BLOCK_BYTES as usize];
        device.read(segment * SEGMENT_BYTES, &mut head).unwrap();
        SegmentHeader::decode(&head, &UUID, *segment).is_some_and(|header| header.stream == Stream::Cold)
    };
    (1..segments).filter(cold).collect()
}

/// How many of the keys read right; the others must say that they are damaged.
pub fn right(engine: &Engine, id: &ObjectId, keys: std::ops::Range<u64>, life: u64) -> u64 {
    let read = |key: &u64| match engine.slot_get(id, *key).wait() {
        Ok(found) => {
            assert_eq!(found, Some(value(*key, life)), "key {key}");
            true
        }
        Err(Error::Corrupt { .. }) => false,
        Err(error) => panic!("key {key}: {error}"),
    };
    keys.filter(read).count() as u64
}

/// Where on the device these bytes stand.
pub fn place_of(device: &MemoryDevice, needle: &[u8]) -> Option<u64> {
    let mut segment = vec![0; SEGMENT_BYTES as usize];
    (1..device.geometry().len / SEGMENT_BYTES).map(|number| number * SEGMENT_BYTES).find_map(|base| {
        device.read(base, &mut segment).unwrap();
        segment.windows(needle.len()).position(|window| window == needle).map(|at| base + at as u64)
    })
}

pub fn superblock_at(device: &MemoryDevice, at: u64) -> Option<Superblock> {
    let mut block = vec![0; BLOCK_BYTES as usize];
    device.read(at, &mut block).unwrap();
    Superblock::decode(&block).ok()
}

pub fn superblocks(device: &MemoryDevice) -> Vec<Superblock> {
    (0..2 * SEGMENT_BYTES).step_by(BLOCK_BYTES as usize).filter_map(|at| superblock_at(device, at)).collect()
}

pub fn newest(device: &MemoryDevice) -> Superblock {
    superblocks(device).into_iter().max_by_key(|superblock| superblock.sequence).unwrap()
}

/// The segment that the newest checkpoint's root stands in.
pub fn segment_of_root(device: &MemoryDevice) -> u64 {
    Loc::from_raw(newest(device).root).unwrap().offset() / SEGMENT_BYTES
}

/// A copy of the device whose newest checkpoint does not hold.
pub fn without_newest_root(device: &MemoryDevice) -> Arc<MemoryDevice> {
    let image = Arc::new(device.snapshot());
    flip(&image, Loc::from_raw(newest(&image).root).unwrap().offset() + 40, 3);
    image
}
