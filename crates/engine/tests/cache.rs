//! The cache of values behind the engine, with each policy: what is replaced or removed never comes back, its bytes are
//! kept to, and what was looked for there is counted.

#![allow(clippy::unwrap_used, reason = "a test that fails")]

#[path = "support/hooked.rs"]
mod hooked;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use esker_device::{Device, MemoryDevice};
use esker_engine::{CACHE_USERS_MAX, CachePolicy, CacheUses, Engine, FormatOptions, Options};
use esker_store::{Change, Collection, Compression, Durability, ObjectId, ObjectStore, SlotScan, Transaction};
use parking_lot::{Condvar, Mutex};

use hooked::{Call, Hooked};

const SEGMENT_BYTES: u64 = 64 << 10;
const CACHE_BYTES: u64 = 100_000;

fn open(device: &Arc<MemoryDevice>, cache_policy: CachePolicy, cache_bytes: u64) -> Engine {
    let options = Options { recent_bytes: 0, cache_bytes, cache_policy, ..Options::default() };
    Engine::open(Arc::clone(device) as Arc<dyn Device>, options).unwrap()
}

fn fresh(cache_policy: CachePolicy) -> (Arc<MemoryDevice>, Engine) {
    fresh_in(cache_policy, SEGMENT_BYTES)
}

/// A store of 64 segments.
fn fresh_in(cache_policy: CachePolicy, segment_bytes: u64) -> (Arc<MemoryDevice>, Engine) {
    let device = Arc::new(MemoryDevice::new(64 * segment_bytes));
    Engine::format(&*device, &FormatOptions { segment_bytes, uuid: [4; 16] }).unwrap();
    let engine = open(&device, cache_policy, CACHE_BYTES);
    engine.submit(Transaction::new().create_collection(&Collection::from("c"))).wait().unwrap();
    (device, engine)
}

fn object() -> ObjectId {
    ObjectId::new(Collection::from("c"), "slots")
}

/// A value that says which key and version it is of.
fn value(index: u64, version: u64, len: usize) -> Bytes {
    [index.to_le_bytes(), version.to_le_bytes()].concat().into_iter().cycle().take(len.max(16)).collect()
}

fn version(index: u64, value: &[u8]) -> u64 {
    let word = |at: usize| u64::from_le_bytes(value[at..at + 8].try_into().unwrap());
    assert_eq!(word(0), index, "a value of another key");
    word(8)
}

fn set(engine: &Engine, index: u64, value: Bytes) {
    let change = Change::SlotSet { index, value };
    engine.submit(Transaction::new().change(&object(), change)).wait().unwrap();
}

#[test]
fn what_was_replaced_or_removed_never_comes_back() {
    for policy in CachePolicy::ALL {
        for seed in 0..4 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let (device, mut engine) = fresh(policy);
            let mut model: BTreeMap<u64, Bytes> = BTreeMap::new();
            let (mut hits, mut misses) = (0, 0);
            for step in 0..6_000 {
                let index = rng.u64(..150).min(rng.u64(..150));
                match rng.u32(..10) {
                    0 => {
                        let change = Change::SlotRemove { index };
                        engine.submit(Transaction::new().change(&object(), change)).wait().unwrap();
                        model.remove(&index);
                    }
                    // So much is written that segments are cleaned and used again.
                    1..4 => {
                        let value = value(index, step, rng.usize(16..4_000));
                        set(&engine, index, value.clone());
                        model.insert(index, value);
                    }
                    _ => {
                        let found = engine.slot_get(&object(), index).wait().unwrap();
                        assert!(found.as_ref() == model.get(&index), "{policy}, seed {seed}, step {step}: {index}");
                    }
                }
                if step % 500 == 0 {
                    let stats = engine.stats();
                    assert!(stats.cache_bytes <= CACHE_BYTES, "{policy}: {}", stats.cache_bytes);
                }
                if step % 2_000 == 1_999 {
                    let stats = engine.stats();
                    (hits, misses) = (hits + stats.cache_hits, misses + stats.cache_misses);
                    engine.close().unwrap();
                    drop(engine);
                    engine = open(&device, policy, CACHE_BYTES);
                }
            }
            assert!(hits > 200 && misses > 200, "{policy}, seed {seed}: {hits} hits, {misses} misses");
        }
    }
}

#[test]
fn readers_beside_a_writer_never_see_another_key_or_go_back() {
    const KEYS: u64 = 60;
    for policy in CachePolicy::ALL {
        let (_device, engine) = fresh(policy);
        (0..KEYS).for_each(|index| set(&engine, index, value(index, 1, 2_000)));
        let written: Vec<_> = (0..KEYS).map(|_| AtomicU64::new(1)).collect();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let readers: Vec<_> = (0..3)
                .map(|seed| {
                    let (engine, written, done) = (&engine, &written, &done);
                    scope.spawn(move || {
                        let mut rng = fastrand::Rng::with_seed(seed);
                        while !done.load(Ordering::Acquire) {
                            let index = rng.u64(..KEYS);
                            let at_least = written[index as usize].load(Ordering::Acquire);
                            let found = engine.slot_get(&object(), index).wait().unwrap().unwrap();
                            assert!(version(index, &found) >= at_least, "{policy}: key {index} went back");
                        }
                    })
                })
                .collect();
            let mut rng = fastrand::Rng::with_seed(9);
            for version in 2..2_000 {
                let index = rng.u64(..KEYS);
                set(&engine, index, value(index, version, rng.usize(16..4_000)));
                written[index as usize].store(version, Ordering::Release);
            }
            done.store(true, Ordering::Release);
            readers.into_iter().for_each(|reader| reader.join().unwrap());
        });
        let stats = engine.stats();
        assert!(stats.cache_bytes <= CACHE_BYTES && stats.cache_misses > 0, "{policy}");
    }
}

#[test]
fn hits_and_misses_are_counted() {
    for policy in CachePolicy::ALL {
        let (device, engine) = fresh(policy);
        (0..20).for_each(|index| set(&engine, index, value(index, 1, 1_000)));
        engine.close().unwrap();
        drop(engine);
        let engine = open(&device, policy, CACHE_BYTES);
        // Opening reads the checkpoint by the same reader.
        let opened = engine.stats();
        for round in 0..3 {
            for index in 0..20 {
                engine.slot_get(&object(), index).wait().unwrap();
            }
            let stats = engine.stats();
            let counts = (stats.cache_misses - opened.cache_misses, stats.cache_hits - opened.cache_hits);
            assert_eq!(counts, (20, 20 * round), "{policy}");
        }
        let stats = engine.stats();
        let entries: BTreeMap<_, _> = stats.entries().into_iter().collect();
        assert_eq!(
            (&*entries["cache_policy"], &entries["cache_misses"]),
            (policy.name(), &stats.cache_misses.to_string())
        );
        assert_eq!(entries["cache_bytes_max"], CACHE_BYTES.to_string());
        assert!(engine.stats().cache_bytes >= 20_000);
        drop(engine);
        // Without a cache everything is a miss.
        let engine = open(&device, policy, 0);
        let opened = engine.stats().cache_misses;
        for _ in 0..3 {
            engine.slot_get(&object(), 7).wait().unwrap();
        }
        let stats = engine.stats();
        assert_eq!((stats.cache_misses - opened, stats.cache_hits, stats.cache_bytes), (3, 0, 0), "{policy}");
    }
}

/// 64 segments; recent ones have four, and the cache eight.
fn lending(device: &Arc<MemoryDevice>, policy: CachePolicy, read_only: bool) -> Engine {
    let (recent_bytes, cache_bytes) = (4 * SEGMENT_BYTES_LENT, 8 * SEGMENT_BYTES_LENT);
    let options = Options {
        recent_bytes,
        cache_bytes,
        cache_policy: policy,
        read_only,
        scrub_bytes_per_s: 0,
        recovery_time: Duration::from_secs(3600),
        ..Options::default()
    };
    Engine::open(Arc::clone(device) as Arc<dyn Device>, options).unwrap()
}

/// Sets keys without a wait for each of them; all of them are durable in the end.
fn load(engine: &Engine, indices: std::ops::Range<u64>) {
    for index in indices.clone() {
        let change = Change::SlotSet { index, value: value(index, 1, 4_000) };
        let applied = Transaction::with(Durability::Applied).change(&object(), change);
        engine.submit(applied).wait().unwrap();
    }
    // The second is written alone: what the first has waited for has left memory then.
    set(engine, indices.start, value(indices.start, 1, 4_000));
    set(engine, indices.start, value(indices.start, 1, 4_000));
}

/// What stands in recent segments and in the cache together, and that the recent ones keep to what they are told.
fn lent(engine: &Engine) -> u64 {
    let stats = engine.stats();
    stats.buffered_segments * SEGMENT_BYTES_LENT + stats.cache_bytes
}

const SEGMENT_BYTES_LENT: u64 = 1 << 20;
/// Recent segments, the cache, what may come into it before it is looked at, and two segments that are open, not
/// written, or to come.
const LENT_MAX: u64 = (4 + 8 + 1 + 2) * SEGMENT_BYTES_LENT;

#[test]
fn recent_segments_have_what_the_cache_does_not_use() {
    const KEYS: u64 = 2_500;
    for policy in CachePolicy::ALL {
        let device = Arc::new(MemoryDevice::new(64 * SEGMENT_BYTES_LENT));
        Engine::format(&*device, &FormatOptions { segment_bytes: SEGMENT_BYTES_LENT, uuid: [4; 16] }).unwrap();
        let engine = lending(&device, policy, false);
        engine.submit(Transaction::new().create_collection(&Collection::from("c"))).wait().unwrap();
        load(&engine, 0..KEYS);
        let reads = engine.stats().device_reads;
        (0..KEYS).for_each(|index| assert!(engine.slot_get(&object(), index).wait().unwrap().is_some()));
        assert_eq!(engine.stats().device_reads, reads, "{policy}: ten segments are in memory");
        assert_eq!(engine.stats().cache_bytes, 0, "{policy}: and nothing twice");

        // Older values are read: the cache takes its memory back, and what is kept of the log is what it was.
        load(&engine, KEYS..2 * KEYS);
        for index in (0..2 * KEYS).chain(0..KEYS) {
            let found = engine.slot_get(&object(), index).wait().unwrap().unwrap();
            assert_eq!(found, value(index, 1, 4_000), "{policy}: {index}");
            assert!(lent(&engine) <= LENT_MAX, "{policy}: {} bytes at key {index}", lent(&engine));
        }
        let stats = engine.stats();
        assert!(stats.cache_bytes > 6 * SEGMENT_BYTES_LENT, "{policy}: {stats:?}");
        assert!((2..=8).contains(&stats.buffered_segments), "{policy}: {stats:?}");
        assert!(stats.recent_bytes_max <= 6 * SEGMENT_BYTES_LENT, "{policy}: {stats:?}");
    }
}

/// What replaying the log has read stays as long as there is memory, and leaves it for the cache without a writer.
#[test]
fn what_was_replayed_leaves_memory_for_what_is_read() {
    const KEYS: u64 = 5_000;
    let device = Arc::new(MemoryDevice::new(64 * SEGMENT_BYTES_LENT));
    Engine::format(&*device, &FormatOptions { segment_bytes: SEGMENT_BYTES_LENT, uuid: [4; 16] }).unwrap();
    let engine = lending(&device, CachePolicy::Clock, false);
    engine.submit(Transaction::new().create_collection(&Collection::from("c"))).wait().unwrap();
    load(&engine, 0..KEYS);
    // Not closed: all of it is replayed.
    let copy = Arc::new(MemoryDevice::new(64 * SEGMENT_BYTES_LENT));
    let mut bytes = vec![0; 64 * SEGMENT_BYTES_LENT as usize];
    device.read(0, &mut bytes).unwrap();
    copy.write(0, &bytes).unwrap();
    let reader = lending(&copy, CachePolicy::Clock, true);
    assert!(!reader.recovery().clean, "{:?}", reader.recovery());
    let opened = reader.stats();
    assert!(opened.buffered_segments >= 10, "{opened:?}");
    for index in 0..KEYS {
        let found = reader.slot_get(&object(), index).wait().unwrap().unwrap();
        assert_eq!(found, value(index, 1, 4_000), "{index}");
        assert!(lent(&reader) <= LENT_MAX, "{} bytes at key {index}", lent(&reader));
    }
    let stats = reader.stats();
    assert!(stats.buffered_segments < opened.buffered_segments, "{stats:?}");
    assert!(stats.device_reads > opened.device_reads && stats.cache_bytes > 0, "{stats:?}");
}

/// Values that clients keep, and what readers bring into the cache, do not take the same memory.
#[test]
fn what_is_lent_is_not_kept_by_values() {
    const KEYS: u64 = 500;
    const LEN: usize = 40_000;
    let device = Arc::new(MemoryDevice::new(64 * SEGMENT_BYTES_LENT));
    Engine::format(&*device, &FormatOptions { segment_bytes: SEGMENT_BYTES_LENT, uuid: [4; 16] }).unwrap();
    let options = Options {
        recent_bytes: 4 * SEGMENT_BYTES_LENT,
        cache_bytes: 8 * SEGMENT_BYTES_LENT,
        pinned_bytes_max: SEGMENT_BYTES_LENT,
        scrub_bytes_per_s: 0,
        ..Options::default()
    };
    let engine = Engine::open(Arc::clone(&device) as Arc<dyn Device>, options).unwrap();
    engine.submit(Transaction::new().create_collection(&Collection::from("c"))).wait().unwrap();
    let mut kept = Vec::new();
    for index in 0..2 * KEYS {
        // Some when they have just been written, and some that stand in older buffers.
        set(&engine, index, value(index, 1, LEN));
        for read in [index, index.saturating_sub(200)].into_iter().filter(|read| read % 13 == 0) {
            kept.push((read, engine.slot_get(&object(), read).wait().unwrap().unwrap()));
        }
    }
    for index in 0..KEYS {
        let found = engine.slot_get(&object(), index).wait().unwrap().unwrap();
        assert_eq!(found, value(index, 1, LEN), "{index}");
        let (buffers, values) = (lent(&engine), engine.stats().handed_out_bytes);
        // A segment more may be handed out of before the bound is met, and as many as are set to be recent.
        let most = LENT_MAX + (1 + 1 + 4) * SEGMENT_BYTES_LENT;
        assert!(buffers + values <= most, "{buffers} and {values} bytes at key {index}");
    }
    kept.iter().for_each(|(index, found)| assert_eq!(*found, value(*index, 1, LEN), "{index}"));
    assert!(engine.stats().cache_bytes > 6 * SEGMENT_BYTES_LENT, "{:?}", engine.stats());
}

/// Log that is not written yet is not on the device: however much readers put into the cache, its buffers stay.
#[test]
fn readers_take_no_memory_from_what_is_not_written() {
    for replayed in [false, true] {
        ahead_of_a_device_that_does_not_write(replayed);
    }
}

fn ahead_of_a_device_that_does_not_write(replayed: bool) {
    const KEYS: u64 = 5_000;
    let waits = Arc::new((Mutex::new(false), Condvar::new()));
    let hooked = |device| {
        let asked = Arc::clone(&waits);
        let before = move |call: Call| {
            if let Call::Write(_) = call {
                let mut closed = asked.0.lock();
                asked.1.wait_while(&mut closed, |closed| *closed);
            }
            Ok(())
        };
        Arc::new(Hooked { device, before })
    };
    let open = |device| {
        let options = Options {
            recent_bytes: 2 * SEGMENT_BYTES_LENT,
            cache_bytes: 8 * SEGMENT_BYTES_LENT,
            scrub_bytes_per_s: 0,
            recovery_time: Duration::from_secs(3600),
            ..Options::default()
        };
        Engine::open(device, options).unwrap()
    };
    let first = hooked(MemoryDevice::new(64 * SEGMENT_BYTES_LENT));
    Engine::format(&*first, &FormatOptions { segment_bytes: SEGMENT_BYTES_LENT, uuid: [4; 16] }).unwrap();
    let mut engine = open(Arc::clone(&first) as Arc<dyn Device>);
    engine.submit(Transaction::new().create_collection(&Collection::from("c"))).wait().unwrap();
    load(&engine, 0..KEYS);
    if replayed {
        // As after a crash; the log goes on in the middle of a segment.
        engine = open(hooked(first.device.snapshot()));
        assert!(!engine.recovery().clean);
    }
    let (done, written) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        *waits.0.lock() = true;
        scope.spawn(|| {
            // As far ahead of the device as segments are ready for it, and no further than the store is large.
            while !done.load(Ordering::Acquire) && written.load(Ordering::Acquire) < 2_000 {
                let index = KEYS + written.load(Ordering::Acquire);
                let change = Change::SlotSet { index, value: value(index, 1, 4_000) };
                let applied = Transaction::with(Durability::Applied).change(&object(), change);
                engine.submit(applied).wait().unwrap();
                written.fetch_add(1, Ordering::Release);
            }
        });
        let until = Instant::now() + Duration::from_secs(20);
        while written.load(Ordering::Acquire) < 4 * 256 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        // Nothing is asserted before writes go on: the other thread would wait for ever.
        let right = |index: &u64| {
            engine.slot_get(&object(), *index).wait().is_ok_and(|found| found == Some(value(*index, 1, 4_000)))
        };
        let wrong = (0..KEYS + written.load(Ordering::Acquire)).filter(|index| !right(index)).count();
        let stats = engine.stats();
        done.store(true, Ordering::Release);
        *waits.0.lock() = false;
        waits.1.notify_all();
        assert_eq!(wrong, 0, "{stats:?}");
        assert!(stats.cache_bytes > 6 * SEGMENT_BYTES_LENT, "{stats:?}");
        assert!(stats.buffered_segments > 4, "more than a full cache leaves them is not written: {stats:?}");
    });
}

/// However it is asked for: alone, with others, in a scan, as part of a write, or all of that write.
#[test]
fn a_value_is_in_the_cache_once() {
    const WRITE_BYTES: u64 = 50_000;
    /// A value's key and what the cache counts beside it.
    const BESIDE: u64 = 200;
    for policy in CachePolicy::ALL {
        for codec in [Compression::None, Compression::Zstd] {
            let (device, engine) = fresh_in(policy, 1 << 20);
            let data = value(1, 1, WRITE_BYTES as usize);
            let writing = Change::Write { offset: 0, data: data.clone() };
            engine.submit(Transaction::new().compress(codec).change(&object(), writing)).wait().unwrap();
            (0..20).for_each(|index| set(&engine, index, value(index, 1, 1_000)));
            engine.close().unwrap();
            drop(engine);
            let engine = open(&device, policy, 4 << 20);
            let opened = engine.stats().cache_bytes;
            for _ in 0..2 {
                for index in 0..20 {
                    engine.slot_get(&object(), index).wait().unwrap().unwrap();
                }
                let indexes: Vec<u64> = (0..20).collect();
                assert_eq!(engine.slot_get_many(&object(), &indexes).wait().unwrap().len(), 20);
                let all = SlotScan { range: 0..u64::MAX, reverse: false, limit: 100, keys_only: false };
                assert_eq!(engine.slot_scan(&object(), &all).wait().unwrap().len(), 20);
            }
            let slots = engine.stats().cache_bytes - opened;
            assert!((20_000..=20 * (1_000 + BESIDE)).contains(&slots), "{policy}, {codec}: {slots}");
            for part in [5_000..40_000, 0..WRITE_BYTES, 20_000..30_000, 0..1, 0..WRITE_BYTES] {
                let read = engine.read(&object(), part.clone()).wait().unwrap();
                assert!(read == data[part.start as usize..part.end as usize], "{policy}, {codec}: {part:?}");
            }
            let write = engine.stats().cache_bytes - opened - slots;
            assert!(write <= WRITE_BYTES + 20 * BESIDE, "{policy}, {codec}: {write}");
            assert!(write > 0, "{policy}, {codec}: neither its parts nor its head are there");
        }
    }
}

/// Hits and misses of each user, as (name, hits, misses), less those of opening, which reads pieces of the checkpoint.
fn users(engine: &Engine, opened: &[(String, CacheUses)]) -> Vec<(String, u64, u64)> {
    let since = |(name, uses): (String, CacheUses)| {
        let mut of_opening = opened.iter().filter(|(opened, _)| *opened == name).map(|(_, uses)| *uses);
        let CacheUses { hits, misses } = of_opening.next_back().unwrap_or_default();
        (name, uses.hits - hits, uses.misses - misses)
    };
    engine.cache_uses().into_iter().map(since).collect()
}

#[test]
fn each_namespace_s_hits_and_misses_are_told() {
    let (device, engine) = fresh(CachePolicy::default());
    let object = |name: &'static str| ObjectId::new(Collection::from("c"), name);
    let objects = ["red/int/1", "red/int/2", "blue/bytes", "plain"].map(object);
    for object in &objects {
        for index in 0..10 {
            let change = Change::SlotSet { index, value: value(index, 1, 100) };
            engine.submit(Transaction::new().change(object, change)).wait().unwrap();
        }
    }
    engine.close().unwrap();
    drop(engine);
    let engine = open(&device, CachePolicy::default(), CACHE_BYTES);
    let (opened, stats) = (engine.cache_uses(), engine.stats());
    for (object, rounds) in objects.iter().zip([3, 2, 4, 1]) {
        for index in (0..rounds).flat_map(|_| 0..10) {
            engine.slot_get(object, index).wait().unwrap().unwrap();
        }
    }
    let told = |name: &str, hits, misses| (name.to_string(), hits, misses);
    let expected = [told("c/red", 30, 20), told("c/blue", 30, 10), told("c", 0, 10), told("others", 0, 0)];
    assert_eq!(users(&engine, &opened), expected);
    engine.submit(Transaction::new().change(&objects[2], Change::Remove)).wait().unwrap();
    // With those of opening.
    let of_blue = |(name, uses): &(String, CacheUses)| (name == "c/blue").then_some(uses.misses);
    let before = opened.iter().find_map(of_blue).unwrap_or(0);
    let expected = [told("c/red", 30, 20), told("c", 0, 10), told("others", 30, 10 + before)];
    assert_eq!(users(&engine, &opened), expected);
    let now = engine.stats();
    assert_eq!((now.cache_hits - stats.cache_hits, now.cache_misses - stats.cache_misses), (60, 40));
}

#[test]
fn no_more_users_are_told_than_there_is_room_for() {
    let (device, engine) = fresh(CachePolicy::default());
    let objects: Vec<_> = (0..150).map(|n| ObjectId::new(Collection::from("c"), format!("n{n:03}/x"))).collect();
    for object in &objects {
        let change = Change::SlotSet { index: 1, value: value(1, 1, 100) };
        engine.submit(Transaction::new().change(object, change)).wait().unwrap();
    }
    engine.close().unwrap();
    drop(engine);
    let engine = open(&device, CachePolicy::default(), CACHE_BYTES);
    let opened = engine.cache_uses();
    for (number, object) in objects.iter().enumerate() {
        for _ in 0..if number < 120 { 1 } else { 2 } {
            engine.slot_get(object, 1).wait().unwrap().unwrap();
        }
    }
    let users = users(&engine, &opened);
    assert_eq!(users.len(), CACHE_USERS_MAX + 1);
    assert!(users[..30].iter().all(|(name, hits, misses)| &**name >= "c/n120" && (*hits, *misses) == (1, 1)));
    assert_eq!(users[CACHE_USERS_MAX], ("others".to_string(), 0, 50));
}
