//! A sparse store on a file system that is full, because of the store itself or of others: it is cleaned, can be
//! emptied and opened, and goes on when there is room again.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use esker_device::{Device, Geometry, MemoryDevice, Result};
use esker_engine::{Engine, FormatOptions, Options};
use esker_store::{Change, Collection, Durability, Error, ObjectId, ObjectStore, Transaction};
use parking_lot::Mutex;

const SEGMENT_BYTES: u64 = 64 << 10;
/// Far more than the file system has room for.
const SEGMENTS: u64 = 2_000;
const VALUE_BYTES: usize = 6_000;

/// A sparse file on a file system with room for so many segments.
struct Thin {
    device: MemoryDevice,
    room: AtomicU64,
    taken: Mutex<HashSet<u64>>,
    /// A hole takes blocks as well, for what says where it is.
    holes_take_room: AtomicBool,
}

impl Thin {
    fn new(room: u64) -> Arc<Self> {
        let device = MemoryDevice::new(SEGMENTS * SEGMENT_BYTES);
        let (room, holes_take_room) = (AtomicU64::new(room), AtomicBool::new(false));
        let thin = Self { device, room, taken: Mutex::default(), holes_take_room };
        Engine::format(&thin, &FormatOptions { segment_bytes: SEGMENT_BYTES, uuid: [5; 16] }).unwrap();
        Arc::new(thin)
    }

    fn taken(&self) -> u64 {
        self.taken.lock().len() as u64
    }

    /// As a crash leaves it now, with no more room than is taken.
    fn crashed_full(&self) -> Arc<Self> {
        self.crashed_with(self.taken.lock().clone())
    }

    /// As a crash leaves it now, with blocks for these segments only.
    fn crashed_with(&self, taken: HashSet<u64>) -> Arc<Self> {
        Arc::new(Self {
            device: self.device.snapshot(),
            room: AtomicU64::new(taken.len() as u64),
            taken: Mutex::new(taken),
            holes_take_room: AtomicBool::new(false),
        })
    }

    /// Segments in which something stands.
    fn written(&self) -> HashSet<u64> {
        let mut bytes = vec![0; SEGMENT_BYTES as usize];
        let mut stands = |segment: &u64| {
            self.device.read(segment * SEGMENT_BYTES, &mut bytes).unwrap();
            bytes.iter().any(|byte| *byte != 0)
        };
        (0..SEGMENTS).filter(|segment| stands(segment)).collect()
    }

    fn furthest(&self) -> u64 {
        self.taken.lock().iter().copied().max().unwrap_or(0)
    }

    fn take(&self, offset: u64, len: u64) -> Result<()> {
        let mut taken = self.taken.lock();
        for segment in offset / SEGMENT_BYTES..(offset + len).div_ceil(SEGMENT_BYTES) {
            if !taken.contains(&segment) && taken.len() as u64 >= self.room.load(Ordering::Relaxed) {
                return Err(esker_device::Error::NoSpace { name: self.name(), offset, len });
            }
            taken.insert(segment);
        }
        Ok(())
    }
}

impl Device for Thin {
    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        self.device.read(offset, buffer)
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.take(offset, data.len() as u64)?;
        self.device.write(offset, data)
    }

    fn sync(&self) -> Result<()> {
        self.device.sync()
    }

    fn reserve(&self, offset: u64, len: u64) -> Result<()> {
        self.take(offset, len)
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        let range = offset / SEGMENT_BYTES..(offset + len) / SEGMENT_BYTES;
        if self.holes_take_room.load(Ordering::Relaxed) {
            return Err(esker_device::Error::NoSpace { name: self.name(), offset, len });
        }
        self.taken.lock().retain(|segment| !range.contains(segment));
        self.device.discard(offset, len)
    }

    fn name(&self) -> String {
        "thin".into()
    }
}

fn open(device: &Arc<Thin>) -> Engine {
    let options = Options { recent_bytes: 0, cache_bytes: 0, ..Options::default() };
    Engine::open(Arc::clone(device) as Arc<dyn Device>, options).unwrap()
}

fn object() -> ObjectId {
    ObjectId::new(Collection::from("c"), "o")
}

fn value(key: u64, life: u64) -> Bytes {
    let mut value = vec![key as u8; VALUE_BYTES];
    value[..8].copy_from_slice(&life.to_le_bytes());
    value.into()
}

fn try_put(engine: &Engine, key: u64, life: u64) -> std::result::Result<(), Error> {
    let change = Change::SlotSet { index: key, value: value(key, life) };
    engine.submit(Transaction::with(Durability::Applied).change(&object(), change)).wait().map(drop)
}

fn made(device: &Arc<Thin>) -> Engine {
    let engine = open(device);
    engine.submit(Transaction::new().create_collection(&Collection::from("c"))).wait().unwrap();
    engine
}

fn all_right(engine: &Engine, keys: u64, life: impl Fn(u64) -> Option<u64>) {
    for key in 0..keys {
        let found = engine.slot_get(&object(), key).wait().unwrap();
        assert_eq!(found, life(key).map(|life| value(key, life)), "key {key}");
    }
}

fn wait_until(what: &str, mut is: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(30);
    while !is() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Writes until it is refused; which keys were written last.
fn fill(engine: &Engine, mut key: u64, life: u64) -> u64 {
    loop {
        match try_put(engine, key, life) {
            Ok(()) => key += 1,
            Err(Error::Full { .. }) => return key,
            Err(error) => panic!("key {key}: {error}"),
        }
        assert!(key < SEGMENTS * SEGMENT_BYTES / VALUE_BYTES as u64, "it is never full");
    }
}

/// Failure: 109 MiB of a file system filled with small values and emptied again; others there got 29 MB of it. Cause:
/// what was dead waited for a checkpoint, as log or as pieces of the last one in every other segment, and none was due,
/// since the store itself had room enough. Fix: where the file system had no blocks when it was asked, one is.
#[test]
fn others_get_back_what_is_dead_though_the_store_has_room_enough() {
    for closed in [true, false] {
        let mut device = Thin::new(200);
        let mut engine = made(&device);
        let key = |number: u64| Bytes::from(format!("{number:0200}"));
        let mut rng = fastrand::Rng::with_seed(7);
        let put = |engine: &Engine, number: u64| {
            let change = Change::OmapSet { key: key(number), value: Bytes::from(vec![9; 400]) };
            engine.submit(Transaction::with(Durability::Applied).change(&object(), change)).wait()
        };
        let keys = (0..).find(|number| matches!(put(&engine, *number), Err(Error::Full { .. }))).unwrap();
        // In any order, so that what is written of the index stands everywhere.
        for _ in 0..2 * keys {
            let _ = put(&engine, rng.u64(..keys));
        }
        if closed {
            engine.close().unwrap();
        } else {
            device = device.crashed_full();
        }
        engine = open(&device);
        engine.submit(Transaction::new().change(&object(), Change::Remove)).wait().unwrap();
        // It was 127 of 200.
        wait_until("it keeps what is dead", || device.taken() <= 90);
    }
}

/// Failure: a store of many small objects wrote a checkpoint at every look while others had the file system full.
/// Cause: pieces of checkpoints that live counted as such as the next does without. Fix: what one checkpoint did not
/// make free is no reason for the next.
#[test]
fn what_no_checkpoint_makes_free_leads_to_none() {
    let device = Thin::new(400);
    let engine = made(&device);
    // Thousands of objects, of which nothing but their names stands in pieces of the index.
    for number in 0..20_000 {
        let object = ObjectId::new(Collection::from("c"), format!("{number:0200}"));
        engine.submit(Transaction::with(Durability::Applied).change(&object, Change::Touch)).wait().unwrap();
    }
    engine.checkpoint().unwrap();
    engine.checkpoint().unwrap();
    // The file system is full, and the store finds that out.
    let filled = fill(&engine, 0, 1);
    (0..filled).for_each(|key| remove(&engine, key));
    wait_until("the device was not asked", || engine.stats().bare_segments > 0);
    wait_until("there is no room for a checkpoint", || engine.checkpoint().is_ok());
    let before = engine.stats().checkpoints;
    let until = Instant::now() + Duration::from_secs(6);
    let mut writes = 0;
    while Instant::now() < until {
        engine.submit(Transaction::new().change(&object(), Change::Touch)).wait().unwrap();
        let change = Change::OmapSet { key: "k".into(), value: "v".into() };
        engine.submit(Transaction::new().change(&object(), change)).wait().unwrap();
        writes += 2;
        std::thread::sleep(Duration::from_millis(25));
    }
    let made = engine.stats().checkpoints - before;
    assert!(made <= 2, "{made} checkpoints for {writes} small writes");
}

/// Failure: after a few hundred overwrites of little data every write and delete was refused for good, and nothing was
/// cleaned. Cause: segments that the file system has no blocks for counted as free. Fix: they do not.
#[test]
fn overwriting_goes_on_where_the_file_system_has_less_room_than_the_device() {
    for (room, keys) in [(24, 60), (100, 500), (300, 1_800)] {
        let device = Thin::new(room);
        let engine = made(&device);
        let mut rng = fastrand::Rng::with_seed(room);
        let mut lives = vec![None; keys as usize];
        for life in 0..room * 60 {
            let key = rng.u64(0..keys);
            try_put(&engine, key, life).unwrap_or_else(|error| panic!("room {room}, write {life}: {error}"));
            lives[key as usize] = Some(life);
        }
        let stats = engine.stats();
        assert!(stats.bare_segments > 0 && stats.cleaned_segments > 0, "room {room}");
        assert!(stats.free_segments < room, "room {room}: {} are free", stats.free_segments);
        all_right(&engine, keys, |key| lives[key as usize]);
        drop(engine);
        let engine = open(&device);
        all_right(&engine, keys, |key| lives[key as usize]);
        for life in 0..room * 20 {
            try_put(&engine, life % keys, life).unwrap_or_else(|error| panic!("room {room}, write {life}: {error}"));
        }
    }
}

#[test]
fn a_store_that_has_filled_its_file_system_can_be_emptied_and_filled_again() {
    let device = Thin::new(100);
    let mut engine = made(&device);
    let mut filled = Vec::new();
    for life in 0..6 {
        let keys = fill(&engine, 0, life);
        // Reads as it was, also after it was opened again, and still refuses.
        if life % 2 == 1 {
            drop(engine);
            engine = open(&device);
        }
        all_right(&engine, keys, |_| Some(life));
        for key in 0..keys {
            let change = Change::SlotRemove { index: key };
            let removed = engine.submit(Transaction::with(Durability::Applied).change(&object(), change)).wait();
            removed.unwrap_or_else(|error| panic!("life {life}, key {key} of {keys}: {error}"));
        }
        filled.push(keys);
    }
    // More than half of it was used, the last time as well as the first.
    let half = 50 * SEGMENT_BYTES / VALUE_BYTES as u64;
    assert!(filled.iter().all(|keys| *keys > half && *keys * 5 > filled[0] * 4), "{filled:?}");
}

/// Failure: a store that was opened on a full file system, and then emptied, kept every block for as long as nothing
/// was written. Cause: it learned of one segment a second that it had no blocks, and took all others for free. Fix:
/// what it wants to keep back it asks for until it has it.
#[test]
fn what_is_removed_after_an_opening_is_given_back_to_the_file_system() {
    let device = Thin::new(100);
    let engine = made(&device);
    fill(&engine, 0, 1);
    let device = device.crashed_full();
    drop(engine);
    assert!(device.taken() > 95);
    let engine = open(&device);
    engine.submit(Transaction::new().change(&object(), Change::Remove)).wait().unwrap();
    wait_until("the file system gets nothing back", || device.taken() < 60);
    fill(&engine, 0, 2);
}

/// Failure: of a file system with room for 27 segments an emptied store kept 20, so that others could not get a third
/// of it. Cause: the blocks of whatever had become free stayed, up to where cleaning begins. Fix: beyond what is kept
/// back they are given back, where the file system had none when it was asked.
#[test]
fn of_a_small_file_system_an_emptied_store_keeps_only_its_reserve() {
    let device = Thin::new(27);
    let engine = made(&device);
    let empty = || engine.submit(Transaction::new().change(&object(), Change::Remove)).wait().unwrap();
    let alone = fill(&engine, 0, 0);
    for life in 1..4 {
        empty();
        wait_until("it keeps more than its reserve", || device.taken() <= 15);
        // Others take a third, and the store is used beside them.
        device.room.store(18, Ordering::Relaxed);
        let beside = fill(&engine, 0, life);
        assert!(beside < alone, "{beside} beside others, {alone} alone");
        all_right(&engine, beside, |_| Some(life));
        // They give it back, and it is the store's again.
        device.room.store(27, Ordering::Relaxed);
        wait_until("what others gave back is not used", || fill(&engine, beside, life) * 5 > alone * 4);
    }
}

#[test]
fn a_store_that_cannot_give_blocks_back_keeps_them_and_goes_on() {
    let device = Thin::new(27);
    let engine = made(&device);
    let filled = fill(&engine, 0, 0);
    device.holes_take_room.store(true, Ordering::Relaxed);
    let (looked, until) = (engine.stats().checkpoints, Instant::now() + Duration::from_secs(4));
    engine.submit(Transaction::new().change(&object(), Change::Remove)).wait().unwrap();
    while Instant::now() < until {
        try_put(&engine, 0, 1).unwrap();
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(engine.stats().checkpoints > looked && device.taken() > 20, "{} taken", device.taken());
    device.holes_take_room.store(false, Ordering::Relaxed);
    wait_until("it keeps more than its reserve", || device.taken() <= 15);
    assert!(fill(&engine, 0, 2) * 5 > filled * 4);
}

/// What the store has given back itself is no sign that others have: it asked for more, was given its own, and took
/// all that it had no blocks for as free.
#[test]
fn blocks_that_were_given_back_are_not_taken_for_those_of_others() {
    for held in [false, true] {
        let device = Thin::new(60);
        let options = Options { recent_bytes: 0, cache_bytes: 0, commit_thread: false, ..Options::default() };
        let engine = Engine::open(Arc::clone(&device) as Arc<dyn Device>, options).unwrap();
        engine.submit(Transaction::new().create_collection(&Collection::from("c"))).wait().unwrap();
        let snapshot = held.then(|| engine.snapshot().unwrap());
        let keys = fill(&engine, 0, 0);
        engine.submit(Transaction::new().change(&object(), Change::Remove)).wait().unwrap();
        let mut given = u64::MAX;
        for life in 0..keys * 4 {
            try_put(&engine, life % (keys / 4), life).unwrap();
            engine.sync().wait().unwrap();
            // Two hold the superblocks.
            let stats = engine.stats();
            let usable = stats.segments - stats.bare_segments;
            assert!(usable <= 58, "{usable} segments are used or free after {life} writes, held {held}");
            given = given.min(device.taken());
        }
        assert!(given < 55, "nothing was given back, held {held}");
        drop(snapshot);
    }
}

#[test]
fn what_others_take_of_the_file_system_is_missed_and_comes_back() {
    let device = Thin::new(400);
    let engine = made(&device);
    let keys = 300;
    (0..keys).for_each(|key| try_put(&engine, key, 0).unwrap());
    engine.sync().wait().unwrap();
    wait_until("what is kept back is not reserved", || device.taken() >= keys * VALUE_BYTES as u64 / SEGMENT_BYTES + 8);
    // Others take all the rest.
    device.room.store(device.taken(), Ordering::Relaxed);
    let filled = fill(&engine, keys, 1);
    all_right(&engine, filled, |key| Some(u64::from(key >= keys)));
    // It can be opened, and emptied by half, which makes room.
    drop(engine);
    let engine = open(&device);
    for key in (0..filled).filter(|key| key % 2 == 0) {
        let change = Change::SlotRemove { index: key };
        engine.submit(Transaction::with(Durability::Applied).change(&object(), change)).wait().unwrap();
    }
    (0..filled / 8).for_each(|at| try_put(&engine, 2 * at, 2).unwrap());
    fill(&engine, filled, 3);
    // Others give it back: then all of it can be used, without a restart.
    device.room.store(400, Ordering::Relaxed);
    wait_until("room is not found", || try_put(&engine, 1 << 20, 4).is_ok());
    let before = Instant::now();
    let more = 300 * SEGMENT_BYTES / VALUE_BYTES as u64 / 2;
    for key in 0..more {
        wait_until("room that was given back is not used", || try_put(&engine, (1 << 21) + key, 4).is_ok());
    }
    println!("{} segments taken after {:?}", device.taken(), before.elapsed());
    assert!(device.taken() > 200);
}

fn remove(engine: &Engine, key: u64) {
    let change = Change::SlotRemove { index: key };
    engine.submit(Transaction::with(Durability::Applied).change(&object(), change)).wait().unwrap();
}

/// Failure: a store that was opened on a full file system took no write and no delete. Cause: what had blocks stood
/// behind hundreds of segments that had none, and was not looked for. Fix: all are, those first in which something
/// stands.
#[test]
fn a_store_whose_blocks_stand_far_back_on_the_device_opens_on_a_full_file_system() {
    let device = Thin::new(400);
    let engine = made(&device);
    let keys = 200;
    let mut life = 0;
    while device.furthest() < 700 {
        assert!(life < 400, "the log has come to segment {}", device.furthest());
        (0..keys).for_each(|key| try_put(&engine, key, life).unwrap());
        engine.checkpoint().unwrap();
        life += 1;
    }
    assert!(device.taken() < 200, "{} segments are taken", device.taken());
    let left = device.crashed_full();
    drop(engine);
    for (how, mut image) in [("left", left), ("closed", device.crashed_full())] {
        // Each life leaves a torn end, or none, and takes what it needs of what there is.
        for restart in 0..12 {
            let engine = open(&image);
            all_right(&engine, keys, |key| Some(if key < restart { life + key } else { life - 1 }));
            remove(&engine, 1_000);
            try_put(&engine, restart, life + restart).unwrap_or_else(|error| panic!("{how}, {restart}: {error}"));
            engine.sync().wait().unwrap();
            image = image.crashed_full();
        }
        let engine = open(&image);
        (0..keys).for_each(|key| remove(&engine, key));
        (0..keys).for_each(|key| try_put(&engine, key, 1).unwrap());
    }
}

/// The same, of segments that were reserved and never written, as those that are kept back are.
#[test]
fn blocks_that_nothing_stands_in_are_found_behind_a_thousand_holes() {
    let device = Thin::new(400);
    let engine = made(&device);
    (0..20).for_each(|key| try_put(&engine, key, 0).unwrap());
    engine.checkpoint().unwrap();
    engine.sync().wait().unwrap();
    let mut taken = device.written();
    taken.extend(1_500..1_540);
    let image = device.crashed_with(taken);
    let engine = open(&image);
    for life in 1..20 {
        (0..20)
            .for_each(|key| try_put(&engine, key, life).unwrap_or_else(|error| panic!("life {life}, {key}: {error}")));
    }
    all_right(&engine, 20, |_| Some(19));
}

/// Failure: a store took no writes although segments with blocks were free. Cause: the one that the log had come to had
/// none left, after a crash. Fix: it goes on in another.
#[test]
fn a_last_segment_that_a_crash_took_the_blocks_of_is_left() {
    let device = Thin::new(400);
    let engine = made(&device);
    try_put(&engine, 1, 0).unwrap();
    engine.sync().wait().unwrap();
    let mut taken = device.written();
    // All that stands on the device is the log's first segment, beside the superblocks.
    let last = taken.iter().copied().max().unwrap();
    taken.extend(last + 1..last + 20);
    taken.remove(&last);
    let image = device.crashed_with(taken);
    let engine = open(&image);
    all_right(&engine, 2, |key| (key == 1).then_some(0));
    try_put(&engine, 2, 1).unwrap();
    all_right(&engine, 3, |key| key.checked_sub(1));
}
