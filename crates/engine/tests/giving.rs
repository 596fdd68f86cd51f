//! What goes on where a store is full, and what does not though a client says that it gives back.

#![allow(clippy::unwrap_used, reason = "a test that fails")]

use std::sync::Arc;

use bytes::Bytes;
use esker_device::{Device, MemoryDevice};
use esker_engine::{Engine, FormatOptions, Options};
use esker_store::{Change, Collection, Durability, Error, ObjectId, ObjectStore, Transaction};

fn open() -> Engine {
    let device = Arc::new(MemoryDevice::new(8 << 20));
    Engine::format(&*device, &FormatOptions { segment_bytes: 64 << 10, uuid: [5; 16] }).unwrap();
    let options = Options { recent_bytes: 0, cache_bytes: 0, ..Options::default() };
    let engine = Engine::open(device as Arc<dyn Device>, options).unwrap();
    engine.submit(Transaction::new().create_collection(&Collection::from("c"))).wait().unwrap();
    engine
}

fn object(name: &str) -> ObjectId {
    ObjectId::new(Collection::from("c"), name.to_owned())
}

fn applied() -> Transaction {
    Transaction::with(Durability::Applied)
}

fn set(index: u64, bytes: usize) -> Change {
    Change::SlotSet { index, value: vec![index as u8; bytes].into() }
}

/// Sets slots until the store is full; how many there are.
fn fill(engine: &Engine) -> u64 {
    let mut keys = 0;
    for bytes in [1_000, 10] {
        loop {
            match engine.submit(applied().change(&object("keys"), set(keys, bytes))).wait() {
                Ok(_) => keys += 1,
                Err(Error::Full { .. }) => break,
                Err(error) => panic!("{error}"),
            }
        }
    }
    keys
}

/// Removes everything one by one, after which there is room again.
fn all_can_be_removed(engine: &Engine, keys: u64) {
    for index in 0..keys {
        let txn = Transaction::new().change(&object("keys"), Change::SlotRemove { index });
        engine.submit(txn).wait().unwrap_or_else(|error| panic!("removing key {index} of {keys}: {error}"));
    }
    for index in 0..3_000 {
        engine.submit(applied().change(&object("keys"), set(index, 1_000))).wait().unwrap();
    }
    engine.close().unwrap();
}

#[test]
fn a_client_that_says_of_everything_that_it_gives_back_leaves_deletes_their_room() {
    for bytes in [100, 20_000] {
        let engine = open();
        let keys = fill(&engine);
        let mut flood = 0;
        let refused = loop {
            let key = Bytes::from(format!("key{flood}"));
            let change = Change::OmapSet { key, value: vec![1; bytes].into() };
            match engine.submit(applied().giving_back().change(&object("flood"), change)).wait() {
                Ok(_) => flood += 1,
                Err(error) => break error,
            }
            assert!(flood < 100_000, "it is refused some day");
        };
        assert!(matches!(refused, Error::Full { .. }), "{refused}");
        // Deletes and additions in turn: the segment that a delete enters is not filled by others.
        for index in 0..20 {
            let txn = Transaction::new().change(&object("keys"), Change::SlotRemove { index });
            engine.submit(txn).wait().unwrap();
            for number in 0..100 {
                let change =
                    Change::OmapSet { key: format!("more{index}/{number}").into(), value: vec![1; bytes].into() };
                match engine.submit(applied().giving_back().change(&object("flood"), change)).wait() {
                    Ok(_) => {}
                    Err(Error::Full { .. }) => break,
                    Err(error) => panic!("{error}"),
                }
            }
        }
        all_can_be_removed(&engine, keys);
    }
}

#[test]
fn what_others_share_does_not_go_when_it_is_removed() {
    let engine = open();
    let data: Bytes = vec![7; 500_000].into();
    for offset in 0..2 {
        let change = Change::Write { offset: offset * 30_000, data: data.slice(..30_000) };
        engine.submit(applied().change(&object("source"), change)).wait().unwrap();
    }
    for clone in 0..200 {
        let to = object(&format!("clone{clone}"));
        engine.submit(applied().change(&object("source"), Change::CloneTo { to })).wait().unwrap();
    }
    let keys = fill(&engine);
    for clone in 0..200 {
        let txn = applied().change(&object(&format!("clone{clone}")), Change::Remove);
        let write = Change::Write { offset: clone * 30_000, data: data.slice(..25_000) };
        let done = engine.submit(txn.change(&object("more"), write)).wait();
        assert!(matches!(done, Err(Error::Full { .. })), "clone {clone}: {done:?}");
    }
    all_can_be_removed(&engine, keys);
}

#[test]
fn a_clone_gives_nothing_back_unless_its_source_is_emptied() {
    let engine = open();
    for offset in 0..200 {
        let change = Change::Write { offset: offset * 1_000, data: vec![7; 500].into() };
        engine.submit(applied().change(&object("source"), change)).wait().unwrap();
    }
    let keys = fill(&engine);
    let clone = |to: &str| applied().giving_back().change(&object("source"), Change::CloneTo { to: object(to) });
    assert!(matches!(engine.submit(clone("one")).wait(), Err(Error::Full { .. })));
    let emptied = clone("two").change(&object("source"), Change::Truncate { size: 0 });
    engine.submit(emptied).wait().unwrap();
    assert_eq!(engine.read(&object("two"), 0..500).wait().unwrap(), vec![7; 500]);
    all_can_be_removed(&engine, keys);
}

#[test]
fn one_source_that_is_emptied_answers_for_one_clone_without_keys() {
    let engine = open();
    for key in 0..2_000u32 {
        let change = Change::OmapSet { key: key.to_be_bytes().to_vec().into(), value: vec![7; 100].into() };
        engine.submit(applied().change(&object("keys of one"), change)).wait().unwrap();
    }
    let data: Bytes = vec![7; 30_000].into();
    engine.submit(applied().change(&object("bytes"), Change::Write { offset: 0, data })).wait().unwrap();
    let keys = fill(&engine);
    let refused = |txn: Transaction| {
        let done = engine.submit(txn).wait();
        assert!(matches!(done, Err(Error::Full { .. })), "{done:?}");
    };
    let clone = |of: &str, to: &str| applied().giving_back().change(&object(of), Change::CloneTo { to: object(to) });
    let two = clone("bytes", "one").change(&object("bytes"), Change::CloneTo { to: object("two") });
    refused(two.change(&object("bytes"), Change::Remove));
    // What is cut off leaves the keys where they are, and has them twice.
    refused(clone("keys of one", "three").change(&object("keys of one"), Change::Truncate { size: 0 }));
    engine.submit(clone("bytes", "four").change(&object("bytes"), Change::Remove)).wait().unwrap();
    all_can_be_removed(&engine, keys);
}

#[test]
fn what_goes_counts_in_a_store_that_was_opened_full_with_clones_in_it() {
    let device = Arc::new(MemoryDevice::new(8 << 20));
    Engine::format(&*device, &FormatOptions { segment_bytes: 64 << 10, uuid: [5; 16] }).unwrap();
    let open = || {
        let options = Options { recent_bytes: 0, cache_bytes: 0, ..Options::default() };
        Engine::open(Arc::clone(&device) as Arc<dyn Device>, options).unwrap()
    };
    let engine = open();
    engine.submit(Transaction::new().create_collection(&Collection::from("c"))).wait().unwrap();
    let write = |name: &str| {
        let data: Bytes = vec![7; 30_000].into();
        engine.submit(applied().change(&object(name), Change::Write { offset: 0, data })).wait().unwrap();
    };
    ["lent", "own", "more"].into_iter().for_each(write);
    engine.submit(applied().change(&object("lent"), Change::CloneTo { to: object("clone") })).wait().unwrap();
    let keys = fill(&engine);
    engine.close().unwrap();
    drop(engine);

    let engine = open();
    // Closing it may have made a little room.
    let mut all = keys;
    while engine.submit(applied().change(&object("keys"), set(all, 10))).wait().is_ok() {
        all += 1;
    }
    let net = |gone: &str| {
        let attribute = Change::XattrSet { name: "gone".into(), value: gone.to_owned().into() };
        engine.submit(applied().change(&object(gone), Change::Remove).change(&object("more"), attribute)).wait()
    };
    let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while let Err(error) = net("own") {
        assert!(matches!(error, Error::Full { .. }) && std::time::Instant::now() < until, "{error}");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    all_can_be_removed(&engine, all);
}

/// Sets slots from `key` on until the store is full, with smaller and smaller values; how many there are then.
fn refill(engine: &Engine, mut key: u64, most: usize) -> u64 {
    for bytes in [most, 1_000, 10] {
        let mut refused = 0;
        while refused < 3 {
            match engine.submit(applied().change(&object("keys"), set(key, bytes))).wait() {
                Ok(_) => key += 1,
                Err(Error::Full { .. }) => refused += 1,
                Err(error) => panic!("{error}"),
            }
        }
    }
    key
}

#[test]
fn what_leads_to_giving_back_goes_on_after_every_crash_of_a_full_store() {
    for (segments, segment_bytes, most) in [
        (64, 64 << 10, 1_000),
        (64, 64 << 10, 20_000),
        (64, 256 << 10, 20_000),
        (256, 64 << 10, 5_000),
        (64, 256 << 10, 5_000),
    ] {
        let mut device = Arc::new(MemoryDevice::new(segments * segment_bytes));
        Engine::format(&*device, &FormatOptions { segment_bytes, uuid: [6; 16] }).unwrap();
        let mut keys = 0;
        for life in 0..40u64 {
            let options = Options { recent_bytes: 0, cache_bytes: 0, ..Options::default() };
            let engine = Engine::open(Arc::clone(&device) as Arc<dyn Device>, options).unwrap();
            engine.submit(Transaction::new().giving_back().create_collection(&"c".into())).wait().unwrap();
            let epoch = Change::OmapSet { key: "epoch".into(), value: life.to_le_bytes().to_vec().into() };
            let done = engine.submit(Transaction::new().giving_back().change(&object("server"), epoch)).wait();
            done.unwrap_or_else(|error| panic!("life {life}, {segments} segments of {segment_bytes}: {error}"));
            keys = refill(&engine, keys, most);
            let index = life * 3;
            engine.submit(Transaction::new().change(&object("keys"), Change::SlotRemove { index })).wait().unwrap();
            let left = device.snapshot();
            drop(engine);
            device = Arc::new(left);
        }
    }
}
