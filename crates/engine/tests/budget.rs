//! The index's memory budget: pages leave memory and come back, and nothing can be told by it but the time it takes.

#![allow(clippy::unwrap_used, reason = "a test that fails")]

mod support;

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use esker_device::{Device, MemoryDevice};
use esker_engine::{CachePolicy, CompressOptions, Engine, FormatOptions, Options, check};
use esker_store::{
    Change, Collection, Condition, Durability, Error, ObjectId, ObjectStore, OmapScan, SlotScan, Transaction, model,
};
use support::OnMemory;

fn device(bytes: u64) -> Arc<MemoryDevice> {
    let device = Arc::new(MemoryDevice::new(bytes));
    Engine::format(&*device, &FormatOptions { segment_bytes: 1 << 20, uuid: [6; 16] }).unwrap();
    device
}

fn open(device: &Arc<MemoryDevice>, index_bytes: u64) -> Engine {
    let options = Options { recent_bytes: 0, cache_bytes: 1 << 20, index_bytes, ..Options::default() };
    Engine::open(Arc::clone(device) as Arc<dyn Device>, options).unwrap()
}

fn object(name: &'static str) -> ObjectId {
    ObjectId::new(Collection::from("c"), name)
}

fn submit(engine: &Engine, txn: Transaction) {
    engine.submit(txn).wait().unwrap();
}

fn key(number: u64) -> Bytes {
    Bytes::from(format!("a key that takes some room in its page {number:08}"))
}

fn value(number: u64, version: u64) -> Bytes {
    Bytes::from(format!("{number} {version}"))
}

/// Fills three objects, one of each space, with `count` entries.
fn fill(engine: &Engine, count: u64) {
    submit(engine, Transaction::new().create_collection(&Collection::from("c")));
    for chunk in (0..count).collect::<Vec<_>>().chunks(500) {
        let mut txn = Transaction::new();
        for number in chunk {
            txn.push(&object("slots"), Change::SlotSet { index: number * 3, value: value(*number, 0) });
            txn.push(&object("omap"), Change::OmapSet { key: key(*number), value: value(*number, 0) });
            // Every other place, so that nothing joins.
            txn.push(&object("bytes"), Change::Write { offset: number * 64, data: value(*number, 0) });
        }
        submit(engine, txn);
    }
}

fn verify(engine: &Engine, number: u64, version: u64) {
    let expected = value(number, version);
    assert_eq!(engine.slot_get(&object("slots"), number * 3).wait().unwrap().as_ref(), Some(&expected), "{number}");
    assert_eq!(engine.omap_get(&object("omap"), &key(number)).wait().unwrap().as_ref(), Some(&expected), "{number}");
    let range = number * 64..number * 64 + expected.len() as u64;
    assert_eq!(engine.read(&object("bytes"), range).wait().unwrap(), expected, "{number}");
}

#[test]
fn the_index_keeps_to_its_budget_while_it_is_read_and_written() {
    let count = 120_000;
    let budget = 2 << 20;
    let device = device(512 << 20);
    let engine = open(&device, budget);
    fill(&engine, count);
    let mut rng = fastrand::Rng::with_seed(3);
    let mut versions = BTreeMap::new();
    let mut most = 0;
    for step in 1..=6_000u64 {
        let number = rng.u64(..count);
        if step % 4 == 0 {
            let txn = Transaction::new()
                .change(&object("slots"), Change::SlotSet { index: number * 3, value: value(number, step) })
                .change(&object("omap"), Change::OmapSet { key: key(number), value: value(number, step) })
                .change(&object("bytes"), Change::Zero { offset: number * 64, len: 60 })
                .change(&object("bytes"), Change::Write { offset: number * 64, data: value(number, step) });
            submit(&engine, txn);
            versions.insert(number, step);
        } else {
            verify(&engine, number, versions.get(&number).copied().unwrap_or(0));
        }
        if step % 500 == 0 {
            // The cleaner's thread comes a little later.
            let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
            while engine.stats().index_page_bytes > budget && std::time::Instant::now() < deadline {
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
            most = most.max(engine.stats().index_page_bytes);
        }
    }
    assert!(most <= budget, "{most} bytes of index pages, {budget} are allowed");
    let stats = engine.stats();
    assert!(stats.index_pages_dropped > 1_000 && stats.index_page_reads > 1_000, "{stats:?}");
    engine.close().unwrap();
    drop(engine);
    let report = check(Arc::clone(&device) as Arc<dyn Device>, true, &mut |_, _| ()).unwrap();
    assert_eq!((report.damaged, report.entries), (0, 3 * count), "{report}");
    // Opened again within the budget, and with everything there.
    let engine = open(&device, budget);
    assert!(engine.stats().index_page_bytes <= budget + budget / 4, "{} bytes", engine.stats().index_page_bytes);
    for number in (0..count).step_by(97) {
        verify(&engine, number, versions.get(&number).copied().unwrap_or(0));
    }
}

#[test]
fn every_call_finds_what_it_needs_when_no_page_is_in_memory() {
    let count = 4_000;
    let device = device(64 << 20);
    let engine = open(&device, u64::MAX);
    fill(&engine, count);
    let cold = || {
        engine.checkpoint().unwrap();
        // What was used since the last look leaves at the second.
        engine.drop_index_pages();
        engine.drop_index_pages();
        let stats = engine.stats();
        assert!(stats.index_cold_pages > 50, "{} pages", stats.index_cold_pages);
        stats.index_page_reads
    };
    cold();
    let scan = OmapScan { limit: usize::MAX, ..OmapScan::default() };
    let all = engine.omap_scan(&object("omap"), &scan).wait().unwrap();
    assert_eq!(all.len() as u64, count.min(esker_store::limits::SCAN_ENTRIES_MAX as u64));
    cold();
    let last =
        engine.slot_scan(&object("slots"), &SlotScan { range: 0..u64::MAX, reverse: true, limit: 3, keys_only: false });
    assert_eq!(last.wait().unwrap()[2], ((count - 3) * 3, value(count - 3, 0)));
    let before = cold();
    verify(&engine, 17, 0);
    assert!(
        (3..=6).contains(&(engine.stats().index_page_reads - before)),
        "one page of each space, perhaps one beside"
    );
    cold();
    assert_eq!(engine.extents(&object("bytes"), 0..1 << 40).wait().unwrap().len() as u64, count);
    cold();
    // A guard, a removal of all of a leaf, and what falls beside it, in one transaction.
    let mut txn = Transaction::new()
        .guard(&object("omap"), Condition::OmapPresent { key: key(100) })
        .guard(&object("slots"), Condition::SlotEquals { index: 300, value: value(100, 0) });
    for number in 100..300 {
        txn.push(&object("omap"), Change::OmapRemove { key: key(number) });
    }
    txn.push(&object("omap"), Change::OmapSet { key: key(200), value: value(200, 5) });
    txn.push(&object("slots"), Change::SlotRemoveRange { start: 300, end: 900 });
    txn.push(&object("bytes"), Change::Zero { offset: 6_400, len: 12_800 });
    submit(&engine, txn);
    cold();
    let guard = Transaction::new()
        .guard(&object("omap"), Condition::OmapPresent { key: key(150) })
        .change(&object("new"), Change::Touch);
    assert!(matches!(engine.submit(guard).wait(), Err(Error::GuardFailed { index: 0 })));
    cold();
    for name in ["slots", "omap", "bytes"] {
        // A copy that is changed at once, under a name that is then changed.
        let (copy, moved) = (object("copy"), ObjectId::new(Collection::from("c"), format!("{name}2")));
        let txn = Transaction::new()
            .change(&object(name), Change::CloneTo { to: copy.clone() })
            .change(&copy, Change::OmapRemove { key: key(0) })
            .change(&copy, Change::SlotSet { index: 3, value: value(1, 9) })
            .change(&copy, Change::Rename { to: moved.clone() })
            .change(&moved, Change::Truncate { size: 1_000 });
        submit(&engine, txn);
        cold();
    }
    // Names that go back and forth cost no more than their number.
    let (one, other) = (object("slots"), object("elsewhere"));
    let back_and_forth = (0..200).fold(Transaction::new(), |txn, nth| {
        let (from, to) = if nth % 2 == 0 { (&one, &other) } else { (&other, &one) };
        txn.change(from, Change::Rename { to: to.clone() }).change(to, Change::SlotRemove { index: nth * 3 + 1 })
    });
    submit(&engine, back_and_forth);
    cold();
    let txn = Transaction::new().change(
        &object("bytes"),
        Change::CloneRange { to: object("bytes2"), from_offset: 100_000, len: 50_000, to_offset: 77 },
    );
    submit(&engine, txn);
    cold();
    let report = engine.check(true, &mut |_, _| ()).unwrap();
    assert_eq!(report.damaged, 0, "{report}");
    while engine.clean().unwrap() {
        cold();
    }
    verify(&engine, 99, 0);
    verify(&engine, 300, 0);
    assert_eq!(engine.omap_get(&object("omap"), &key(199)).wait().unwrap(), None);
    assert_eq!(engine.omap_get(&object("omap"), &key(200)).wait().unwrap(), Some(value(200, 5)));
    assert_eq!(engine.read(&object("bytes2"), 77..77 + 64).wait().unwrap().len(), 64);
    cold();
    submit(
        &engine,
        Transaction::new().change(&object("omap"), Change::OmapClear).change(&object("slots"), Change::Remove),
    );
    cold();
    drop(engine);
    let report = check(Arc::clone(&device) as Arc<dyn Device>, true, &mut |_, _| ()).unwrap();
    assert_eq!(report.damaged, 0, "{report}");
}

#[test]
fn a_damaged_page_is_an_error_with_its_place_and_spoils_nothing_else() {
    let device = device(64 << 20);
    let engine = open(&device, u64::MAX);
    fill(&engine, 4_000);
    engine.close().unwrap();
    drop(engine);
    let engine = open(&device, 0);
    let cold = engine.stats().index_cold_pages;
    assert!(cold > 50, "{cold} pages");
    // Whatever stands behind the log is the checkpoint: one flip in every 8 KiB of it.
    let mut block = [0; 4096];
    for at in (0..64 << 20).step_by(8 << 10) {
        device.read(at, &mut block).unwrap();
        block[100] ^= 1;
        device.write(at, &block).unwrap();
    }
    let (mut lost, mut there) = (0, 0);
    for number in 0..4_000 {
        match engine.slot_get(&object("slots"), number * 3).wait() {
            Ok(found) => {
                assert_eq!(found, Some(value(number, 0)));
                there += 1;
            }
            Err(Error::Corrupt { offset, .. }) => {
                assert!(offset > 0);
                lost += 1;
            }
            Err(other) => panic!("{other}"),
        }
    }
    assert!(lost > 0 && there > 0, "{lost} lost, {there} there");
}

#[test]
fn the_engine_does_what_the_model_does_without_memory_for_its_index() {
    let harness = OnMemory {
        len: 1 << 30,
        segment_bytes: 4 << 20,
        zoned: false,
        index_bytes: 0,
        compress: CompressOptions::default(),
        cache_policy: CachePolicy::default(),
    };
    for seed in 3_000..3_030 {
        model::run(seed, 60, &harness);
    }
}

#[test]
fn a_full_store_keeps_to_its_budget_while_it_is_read() {
    let budget = 1 << 20;
    let device = device(32 << 20);
    let engine = open(&device, budget);
    submit(&engine, Transaction::new().create_collection(&Collection::from("c")));
    let mut keys = 0;
    loop {
        let change = Change::OmapSet { key: key(keys), value: vec![1; 40].into() };
        match engine.submit(Transaction::with(Durability::Applied).change(&object("omap"), change)).wait() {
            Ok(_) => keys += 1,
            Err(Error::Full { .. }) => break,
            Err(error) => panic!("{error}"),
        }
    }
    for round in 0..3 {
        for number in 0..keys {
            assert!(engine.omap_get(&object("omap"), &key(number)).wait().unwrap().is_some(), "{number}");
            let bytes = engine.stats().index_page_bytes;
            // A quarter more, two MiB, and the pages of the call itself.
            assert!(bytes <= budget + budget / 4 + (3 << 20), "{bytes} bytes of index after {number} of round {round}");
        }
    }
    // Cleaning may have made some room meanwhile: it is filled again.
    let refused = (keys..keys + 10_000).any(|number| {
        let change = Change::OmapSet { key: key(number), value: vec![1; 4_000].into() };
        match engine.submit(Transaction::new().change(&object("omap"), change)).wait() {
            Ok(_) => false,
            Err(Error::Full { .. }) => true,
            Err(error) => panic!("{error}"),
        }
    });
    assert!(refused, "a store of 32 MiB has taken more than it holds");
    let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while engine.stats().index_page_bytes > budget {
        assert!(std::time::Instant::now() < until, "{:?}", engine.stats());
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert!(keys > 50_000, "{keys} keys are more than the budget holds");
}

#[test]
fn writers_wait_for_memory_rather_than_take_more() {
    let budget = 1 << 20;
    let device = device(512 << 20);
    let engine = open(&device, budget);
    submit(&engine, Transaction::new().create_collection(&Collection::from("c")));
    let most = std::sync::atomic::AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..2u64 {
            let (engine, most) = (&engine, &most);
            scope.spawn(move || {
                let mut rng = fastrand::Rng::with_seed(thread);
                for step in 0..60_000u64 {
                    let change = Change::OmapSet { key: key(rng.u64(..1 << 40)), value: vec![1; 8].into() };
                    let done = engine.submit(Transaction::with(Durability::Applied).change(&object("omap"), change));
                    done.wait().unwrap();
                    if step % 100 == 0 {
                        most.fetch_max(engine.stats().index_page_bytes, std::sync::atomic::Ordering::Relaxed);
                    }
                }
            });
        }
    });
    let most = most.into_inner();
    assert!(most <= budget + budget / 4 + (3 << 20), "{most} bytes of index pages");
}
