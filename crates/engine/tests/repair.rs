//! Repair: every structure damaged in turn, and the repaired store compared with the undamaged one.

#![allow(clippy::unwrap_used, reason = "a test that fails")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use esker_device::{Device, MemoryDevice};
use esker_engine::format::{Kind, SHORT_OP_HEADER_BYTES, SHORT_RECORD_HEADER_BYTES};
use esker_engine::{
    DumpItem, DumpOptions, Engine, FormatOptions, Level, Lost, Options, RepairHooks, RepairReport, What, dump, repair,
    shape,
};
use esker_store::model::{Generator, GeneratorOptions};
use esker_store::{
    Change, Collection, CommitCursor, CommitEntry, Error, ObjectId, ObjectStore, OmapScan, Op, SlotScan, Transaction,
};

const SEGMENT_BYTES: u64 = 64 << 10;
const DEVICE_BYTES: u64 = 8 << 20;
const SUPERBLOCKS: std::ops::Range<u64> = 0..128 << 10;

/// A store with all kinds of content, and every value that was ever written to a slot or key of a number or name.
struct Sample {
    device: MemoryDevice,
    ever: BTreeSet<(Vec<u8>, Bytes)>,
}

fn slot_key(slot: u64) -> Vec<u8> {
    format!("slot {slot}").into_bytes()
}

fn omap_key(key: &[u8]) -> Vec<u8> {
    [b"key ", key].concat()
}

fn options(read_only: bool) -> Options {
    Options { recent_bytes: 0, cache_bytes: 1 << 20, read_only, commit_thread: false, ..Options::default() }
}

fn open(device: &MemoryDevice, read_only: bool) -> Result<Engine, Error> {
    Engine::open(Arc::new(device.snapshot()), options(read_only))
}

/// Transactions of a seed, with checkpoints, cleaning and restarts in between; at the end closed or just left.
fn sample(seed: u64, close: bool) -> Sample {
    let device = Arc::new(MemoryDevice::new(DEVICE_BYTES));
    Engine::format(&*device, &FormatOptions { segment_bytes: SEGMENT_BYTES, uuid: [7; 16] }).unwrap();
    let made = GeneratorOptions { transaction_bytes_max: 30 << 10, value_bytes_max: 20 << 10, ..Default::default() };
    let mut generator = Generator::new(seed, made);
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut engine = Engine::open(Arc::clone(&device) as Arc<dyn Device>, options(false)).unwrap();
    let mut ever = BTreeSet::new();
    // An object that has pages of its own in every space, and a write with many checksums.
    let large = ObjectId::new(Collection::from("large"), "object");
    engine.submit(Transaction::new().create_collection(large.collection())).wait().unwrap();
    let mut put = |engine: &Engine, from: u64, to: u64| {
        for at in from..to {
            let value = Bytes::from(format!("value {at} of the large object"));
            let key = Bytes::from(format!("key {at}"));
            ever.insert((slot_key(at), value.clone()));
            ever.insert((omap_key(&key), value.clone()));
            let txn = Transaction::new()
                .change(&large, Change::SlotSet { index: at, value: value.clone() })
                .change(&large, Change::OmapSet { key, value: value.clone() })
                .change(&large, Change::Write { offset: at * 100, data: value });
            engine.submit(txn).wait().unwrap();
        }
    };
    put(&engine, 0, 300);
    let wide = Bytes::from((0..40_000u32).flat_map(u32::to_le_bytes).take(60_000 / 4 * 4).collect::<Vec<u8>>());
    let _ = engine
        .submit(Transaction::new().change(&large, Change::Write { offset: 1 << 30, data: wide.slice(..50_000) }))
        .wait();
    for step in 0..300 {
        let txn = generator.next();
        for op in &txn.ops {
            match op {
                Op::Object(_, Change::SlotSet { index, value }) => ever.insert((slot_key(*index), value.clone())),
                Op::Object(_, Change::OmapSet { key, value }) => ever.insert((omap_key(key), value.clone())),
                _ => false,
            };
        }
        let _ = engine.submit(txn).wait();
        if step % 60 == 50 {
            engine.checkpoint().unwrap();
        }
        if step % 25 == 0 {
            engine.clean().unwrap();
        }
        if rng.u8(..100) == 0 {
            engine.close().unwrap();
            engine = Engine::open(Arc::clone(&device) as Arc<dyn Device>, options(false)).unwrap();
        }
    }
    engine.sync().wait().unwrap();
    if close {
        engine.close().unwrap();
    }
    let device = device.snapshot();
    Sample { device, ever }
}

/// What an object shows.
#[derive(Debug, Default, PartialEq, Eq)]
struct Shown {
    size: u64,
    xattrs: BTreeMap<Bytes, Bytes>,
    omap: BTreeMap<Bytes, Bytes>,
    slots: BTreeMap<u64, Bytes>,
    /// Runs of bytes, joined.
    bytes: Vec<(u64, Vec<u8>)>,
}

type All = (Vec<Collection>, BTreeMap<ObjectId, Shown>);

fn show(store: &dyn ObjectStore) -> All {
    let collections = store.collections().wait().unwrap();
    let mut all = BTreeMap::new();
    for collection in &collections {
        for name in store.list(collection, None, 60_000).wait().unwrap() {
            let id = ObjectId::new(collection.clone(), name);
            let stat = store.stat(&id).wait().unwrap().unwrap();
            let mut shown = Shown { size: stat.size, ..Shown::default() };
            shown.xattrs = store.xattrs(&id).wait().unwrap().into_iter().collect();
            let scan = OmapScan { limit: 60_000, ..OmapScan::default() };
            shown.omap = store.omap_scan(&id, &scan).wait().unwrap().into_iter().collect();
            let scan = SlotScan { range: 0..u64::MAX, reverse: false, limit: 60_000, keys_only: false };
            shown.slots = store.slot_scan(&id, &scan).wait().unwrap().into_iter().collect();
            assert_eq!((shown.omap.len() as u64, shown.slots.len() as u64), (stat.omap_keys, stat.slots));
            for run in store.extents(&id, 0..u64::MAX).wait().unwrap() {
                let data = store.read(&id, run.offset..run.offset + run.len).wait().unwrap();
                match shown.bytes.last_mut() {
                    Some((at, before)) if *at + before.len() as u64 == run.offset => before.extend_from_slice(&data),
                    _ => shown.bytes.push((run.offset, data.to_vec())),
                }
            }
            all.insert(id, shown);
        }
    }
    (collections, all)
}

fn order(store: &dyn ObjectStore, collection: &Collection) -> Vec<CommitEntry> {
    let (mut entries, mut after) = (Vec::new(), CommitCursor(0, 0));
    loop {
        let (page, next) = store.commit_scan(collection, b"", after, 500).wait().unwrap();
        entries.extend(page);
        match next {
            Some(next) => after = next,
            None => return entries,
        }
    }
}

/// Repairs into a fresh device.
fn repaired(damaged: &MemoryDevice) -> Result<(RepairReport, Vec<Lost>, Engine), Error> {
    let from = Arc::new(damaged.snapshot()) as Arc<dyn Device>;
    let before = damaged.image();
    let to = Arc::new(MemoryDevice::new(2 * DEVICE_BYTES));
    let to_dyn = Arc::clone(&to) as Arc<dyn Device>;
    let mut lost = Vec::new();
    let hooks = RepairHooks {
        lost: &mut |loss| lost.push(loss.clone()),
        progress: &mut |_, _, _| (),
        mark: &|_, _| None,
        lengthen: &mut || false,
    };
    let report = repair(&from, &to_dyn, [8; 16], hooks)?;
    assert_eq!(report.lost, lost.len() as u64);
    assert!(damaged.image() == before, "the damaged store was written to");
    Ok((report, lost, open(&to, true)?))
}

/// Whether a loss that names an object names this thing of it.
fn is_named(lost: &[Lost], id: &ObjectId, is: impl Fn(&What) -> bool) -> bool {
    lost.iter().any(|loss| {
        let part = matches!(loss.what, What::Part(_) | What::Transaction(_));
        loss.object.as_ref() == Some(id) && (part || is(&loss.what))
    })
}

/// Compares with the undamaged store: what differs must be named, and what is there must have been written there at
/// some time.
fn compare(seed: u64, what: &str, sample: &Sample, report: &RepairReport, lost: &[Lost], found: &Engine) -> usize {
    let expected = show(&open(&sample.device, true).unwrap());
    let found = show(found);
    let fail = |why: String| -> ! {
        let lost: Vec<String> = lost.iter().take(20).map(ToString::to_string).collect();
        panic!("seed {seed}, damaged {what}, {report:?}: {why}\nlost: {lost:#?}")
    };
    // A loss of which repair does not know whose it was, and a search without superblocks, may have changed anything.
    let wiped_end = what == "round 5";
    let vague = report.level >= Level::Searched
        || wiped_end && !report.end_known
        || report.torn_bytes > 0
        || lost.iter().any(|loss| loss.object.is_none() && !matches!(loss.what, What::Slot(_)));
    let mut differences = 0;
    let mut differs = |named: bool, why: String| {
        differences += 1;
        if !named && !vague {
            fail(why);
        }
    };
    if expected.0 != found.0 {
        differs(false, format!("collections {:?} and {:?}", expected.0, found.0));
    }
    for id in expected.1.keys().chain(found.1.keys()).collect::<BTreeSet<_>>() {
        let (Some(a), Some(b)) = (expected.1.get(id), found.1.get(id)) else {
            differs(false, format!("{id} is in one of them only"));
            continue;
        };
        if a.size != b.size {
            differs(is_named(lost, id, |_| false), format!("size of {id}: {} and {}", a.size, b.size));
        }
        if a.bytes != b.bytes {
            differs(is_named(lost, id, |what| matches!(what, What::Bytes { .. })), format!("bytes of {id}"));
        }
        for name in a.xattrs.keys().chain(b.xattrs.keys()).collect::<BTreeSet<_>>() {
            if a.xattrs.get(name) != b.xattrs.get(name) {
                differs(is_named(lost, id, |what| *what == What::Xattr(name.clone())), format!("xattr of {id}"));
            }
        }
        for slot in a.slots.keys().chain(b.slots.keys()).collect::<BTreeSet<_>>() {
            if a.slots.get(slot) != b.slots.get(slot) {
                differs(is_named(lost, id, |what| *what == What::Slot(*slot)), format!("slot {slot} of {id}"));
            }
        }
        for key in a.omap.keys().chain(b.omap.keys()).collect::<BTreeSet<_>>() {
            if a.omap.get(key) != b.omap.get(key) {
                differs(is_named(lost, id, |what| *what == What::OmapKey(key.clone())), format!("key of {id}"));
            }
        }
    }
    for (id, shown) in &found.1 {
        for (slot, value) in &shown.slots {
            if !sample.ever.contains(&(slot_key(*slot), value.clone())) {
                fail(format!("slot {slot} of {id} holds what was never written there"));
            }
        }
        for (key, value) in &shown.omap {
            if !sample.ever.contains(&(omap_key(key), value.clone())) {
                fail(format!("key {key:?} of {id} holds what was never written there"));
            }
        }
    }
    differences
}

fn flip(device: &MemoryDevice, offset: u64) {
    let block = offset / 4096 * 4096;
    let mut bytes = vec![0; 4096];
    device.read(block, &mut bytes).unwrap();
    bytes[(offset - block) as usize] ^= 0x40;
    device.write(block, &bytes).unwrap();
}

fn wipe(device: &MemoryDevice, range: std::ops::Range<u64>) {
    device.write(range.start, &vec![0xa5; (range.end - range.start) as usize]).unwrap();
}

/// Where structures stand, by what they are.
fn places(device: &MemoryDevice) -> BTreeMap<&'static str, Vec<u64>> {
    let mut places: BTreeMap<&'static str, Vec<u64>> = BTreeMap::new();
    let options = DumpOptions { records: true, operations: true, ..DumpOptions::default() };
    dump(device, options, &mut |item| match item {
        DumpItem::Superblock(_) => {}
        DumpItem::Segment(header) => {
            places.entry("segment header").or_default().push(header.segment * SEGMENT_BYTES + 20)
        }
        DumpItem::Record(_, offset) => places.entry("record header").or_default().push(offset + 9),
        DumpItem::Operation(header, offset, _) => {
            if header.kind == Kind::Index {
                let role = ["root", "table", "head", "list", "list", "list", "page", "page", "page"];
                let role = role[(header.argument >> 56) as usize];
                places.entry(role).or_default().push(offset + header.payload_start() as u64 + 3);
            } else {
                places.entry("operation header").or_default().push(offset + 9);
                if header.payload_len > 0 {
                    let middle = u64::from(header.payload_len) / 2;
                    places.entry("payload").or_default().push(offset + header.payload_start() as u64 + middle);
                }
            }
        }
    })
    .unwrap();
    places
}

#[test]
fn an_undamaged_store_is_copied_whole_and_in_commit_order() {
    for seed in 0..4 {
        let sample = sample(seed, seed % 2 == 0);
        let (report, lost, found) = repaired(&sample.device).unwrap();
        assert_eq!((report.level, &lost[..]), (Level::Opened, &[][..]), "seed {seed}");
        assert_eq!(compare(seed, "nothing", &sample, &report, &lost, &found), 0);
        let before = open(&sample.device, true).unwrap();
        let large = Collection::from("large");
        assert_eq!(order(&before, &large), order(&found, &large), "seed {seed}");
        for collection in before.collections().wait().unwrap() {
            let objects = |entries: Vec<CommitEntry>| -> BTreeMap<ObjectId, Vec<CommitEntry>> {
                let mut by: BTreeMap<ObjectId, Vec<CommitEntry>> = BTreeMap::new();
                for entry in entries {
                    let (CommitEntry::Slot(id, ..) | CommitEntry::Omap(id, ..)) = &entry;
                    by.entry(id.clone()).or_default().push(entry);
                }
                by
            };
            let (a, b) = (objects(order(&before, &collection)), objects(order(&found, &collection)));
            assert!(a == b, "seed {seed}: order in {collection}");
        }
    }
}

/// One flipped bit in one structure, many times: nothing but what is named differs.
#[test]
fn what_is_not_named_as_lost_is_equal_whatever_is_damaged() {
    for seed in 10..14 {
        let sample = sample(seed, seed % 2 == 0);
        let mut rng = fastrand::Rng::with_seed(seed);
        let places = places(&sample.device);
        for kind in
            ["segment header", "record header", "operation header", "payload", "root", "table", "head", "list", "page"]
        {
            let of_kind = places.get(kind).unwrap_or_else(|| panic!("seed {seed}: no {kind} on the device"));
            for _ in 0..8 {
                let offset = of_kind[rng.usize(..of_kind.len())];
                let damaged = sample.device.snapshot();
                flip(&damaged, offset);
                let (report, lost, found) =
                    repaired(&damaged).unwrap_or_else(|error| panic!("seed {seed}, {kind} at {offset}: {error}"));
                let differences = compare(seed, &format!("{kind} at {offset}"), &sample, &report, &lost, &found);
                assert!(
                    differences == 0 || !lost.is_empty() || report.level >= Level::Searched,
                    "seed {seed}: {kind} at {offset}"
                );
            }
        }
    }
}

#[test]
fn a_damaged_payload_costs_its_value_and_nothing_else() {
    let seed = 20;
    let sample = sample(seed, true);
    let engine = open(&sample.device, true).unwrap();
    let large = ObjectId::new(Collection::from("large"), "object");
    let value = engine.slot_get(&large, 77).wait().unwrap().unwrap();
    let image = sample.device.image();
    let damaged = sample.device.snapshot();
    let hits: Vec<usize> = (0..image.len() - value.len()).filter(|at| image[*at..].starts_with(&value)).collect();
    assert!(hits.len() >= 3);
    hits.iter().for_each(|at| flip(&damaged, *at as u64));
    let (report, lost, found) = repaired(&damaged).unwrap();
    compare(seed, "value 77", &sample, &report, &lost, &found);
    let whats: Vec<&What> = lost.iter().map(|loss| &loss.what).collect();
    for what in [What::Slot(77), What::OmapKey("key 77".into()), What::Bytes { offset: 7700, len: value.len() as u64 }]
    {
        assert!(whats.contains(&&what), "{what:?} is not in {whats:?}");
    }
    assert!(lost.iter().all(|loss| loss.object.as_ref() == Some(&large)), "{lost:?}");
    assert_eq!(found.slot_get(&large, 77).wait().unwrap(), None);
    assert!(found.slot_get(&large, 78).wait().unwrap().is_some());
}

/// Superblocks gone: the checkpoint is searched for. Roots gone as well: everything is put in order again.
#[test]
fn without_superblocks_and_without_checkpoints_nothing_that_holds_is_lost() {
    for seed in 30..36 {
        let sample = sample(seed, seed % 2 == 0);
        let places = places(&sample.device);
        let damaged = sample.device.snapshot();
        wipe(&damaged, SUPERBLOCKS);
        assert_eq!(shape(&damaged).unwrap().segment_bytes, SEGMENT_BYTES);
        let (report, lost, found) = repaired(&damaged).unwrap();
        assert_eq!((report.level, lost.len()), (Level::Searched, 0), "seed {seed}: {lost:?}");
        let differences = compare(seed, "superblocks", &sample, &report, &lost, &found);
        assert_eq!(differences, 0, "seed {seed}");
        for root in &places["root"] {
            flip(&damaged, *root);
        }
        let (report, lost, found) = repaired(&damaged).unwrap();
        assert_eq!(report.level, Level::Rebuilt, "seed {seed}");
        assert!(report.level.may_bring_back());
        compare(seed, "superblocks and roots", &sample, &report, &lost, &found);
        // Values that no client removed are all there.
        let (_, expected) = show(&open(&sample.device, true).unwrap());
        let large = ObjectId::new(Collection::from("large"), "object");
        let (_, found) = show(&found);
        assert_eq!(found[&large], expected[&large], "seed {seed}: {lost:?}");
    }
}

#[test]
fn what_is_no_store_or_a_newer_one_is_refused() {
    let refused = |device: &MemoryDevice, expected: &str| {
        let error = repaired(device).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        let error = shape(device).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    };
    let blank = MemoryDevice::new(DEVICE_BYTES);
    refused(&blank, "not an Esker store");
    wipe(&blank, 0..1 << 20);
    refused(&blank, "not an Esker store");
    let sample = sample(40, true);
    let mut block = vec![0; 4096];
    sample.device.read(0, &mut block).unwrap();
    block[8] = 99;
    // With a changed number alone the block is a damaged one of a known version, and others stand beside it.
    let damaged = sample.device.snapshot();
    damaged.write(0, &block).unwrap();
    assert_eq!(repaired(&damaged).unwrap().0.level, Level::Opened);
    let crc = crc32c::crc32c(&block[..200]);
    block[200..204].copy_from_slice(&crc.to_le_bytes());
    block[128..132].fill(7);
    sample.device.write(0, &block).unwrap();
    refused(&sample.device, "format version 99");
}

/// Repair must return, whatever stands on the device: random damage in many places at once.
#[test]
fn any_damage_ends_in_a_repaired_store_or_an_error() {
    for seed in 50..56 {
        let sample = sample(seed, seed % 2 == 0);
        let mut rng = fastrand::Rng::with_seed(seed);
        for round in 0..6 {
            let damaged = sample.device.snapshot();
            for _ in 0..1 << (2 * round) {
                flip(&damaged, rng.u64(..DEVICE_BYTES));
            }
            if round == 5 {
                let from = rng.u64(..DEVICE_BYTES / 4096 / 2) * 4096;
                wipe(&damaged, from..from + DEVICE_BYTES / 4);
            }
            if let Ok((report, lost, found)) = repaired(&damaged) {
                compare(seed, &format!("round {round}"), &sample, &report, &lost, &found);
            }
        }
    }
}

/// Old values in a checkpoint, new ones in the log after it, and more log after these.
fn overwritten() -> (MemoryDevice, ObjectId) {
    let device = Arc::new(MemoryDevice::new(DEVICE_BYTES));
    Engine::format(&*device, &FormatOptions { segment_bytes: SEGMENT_BYTES, uuid: [7; 16] }).unwrap();
    let engine = Engine::open(Arc::clone(&device) as Arc<dyn Device>, options(false)).unwrap();
    let id = ObjectId::new(Collection::from("c"), "o");
    engine.submit(Transaction::new().create_collection(id.collection())).wait().unwrap();
    for round in ["old", "new"] {
        for change in [
            Change::SlotSet { index: 5, value: format!("{round} value of a slot").into() },
            Change::OmapSet { key: "k".into(), value: format!("{round} value of a key").into() },
            Change::Write { offset: 100, data: format!("{round} value of bytes").into() },
            Change::XattrSet { name: "x".into(), value: format!("{round} value of an attribute").into() },
        ] {
            engine.submit(Transaction::new().change(&id, change)).wait().unwrap();
        }
        if round == "old" {
            engine.checkpoint().unwrap();
        }
    }
    for index in 10..20 {
        let value = Bytes::from_static(b"later");
        engine.submit(Transaction::new().change(&id, Change::SlotSet { index, value })).wait().unwrap();
    }
    (device.snapshot(), id)
}

fn place_of(device: &MemoryDevice, text: &str) -> u64 {
    let image = device.image();
    image.windows(text.len()).position(|window| window == text.as_bytes()).unwrap() as u64
}

/// A new value that does not hold must not bring the old one back, and is named.
#[test]
fn what_a_damaged_write_replaced_is_not_shown_in_its_stead() {
    let (device, id) = overwritten();
    for (text, expected) in [
        ("new value of a slot", What::Slot(5)),
        ("new value of a key", What::OmapKey("k".into())),
        ("new value of bytes", What::Bytes { offset: 100, len: 18 }),
        ("new value of an attribute", What::Xattr("x".into())),
    ] {
        let damaged = device.snapshot();
        flip(&damaged, place_of(&device, text));
        assert!(open(&damaged, true).is_err(), "{text}");
        let (report, lost, found) = repaired(&damaged).unwrap();
        assert_eq!(report.level, Level::Replayed, "{text}");
        let whats: Vec<&What> = lost.iter().map(|loss| &loss.what).collect();
        assert_eq!(whats, [&expected], "{text}: {lost:?}");
        assert_eq!(lost[0].object.as_ref(), Some(&id));
        let shown = &show(&found).1[&id];
        let left = [
            shown.slots.contains_key(&5),
            shown.omap.contains_key(&b"k"[..]),
            !shown.bytes.is_empty(),
            shown.xattrs.contains_key(&b"x"[..]),
        ];
        assert_eq!(left.iter().filter(|left| !**left).count(), 1, "{text}: {shown:?}");
        assert_eq!((shown.slots.contains_key(&19), shown.size), (true, 118), "{text}");
    }
}

/// Repair cannot tell what an operation was about if its header does not hold: it names the transaction.
#[test]
fn a_transaction_that_cannot_be_read_is_named() {
    let (device, id) = overwritten();
    let (operation, record) = (SHORT_OP_HEADER_BYTES as u64, SHORT_RECORD_HEADER_BYTES as u64);
    for before in [operation, operation + record] {
        let damaged = device.snapshot();
        // The header of the operation, and that of the record before it.
        flip(&damaged, place_of(&device, "new value of a slot") - before + 9);
        let (report, lost, found) = repaired(&damaged).unwrap();
        assert_eq!(report.level, Level::Replayed);
        assert_eq!(lost.len(), 1, "{lost:?}");
        assert!(matches!(lost[0].what, What::Transaction(_)), "{lost:?}");
        let expected = if before == operation { "old value of a slot" } else { "new value of a slot" };
        assert_eq!(show(&found).1[&id].slots[&5], expected.as_bytes());
        assert!(found.slot_get(&id, 19).wait().unwrap().is_some());
    }
}

#[test]
fn an_older_checkpoint_and_the_log_after_it_stand_in_for_a_damaged_one() {
    let device = Arc::new(MemoryDevice::new(DEVICE_BYTES));
    Engine::format(&*device, &FormatOptions { segment_bytes: SEGMENT_BYTES, uuid: [7; 16] }).unwrap();
    let engine = Engine::open(Arc::clone(&device) as Arc<dyn Device>, options(false)).unwrap();
    let id = ObjectId::new(Collection::from("c"), "o");
    engine.submit(Transaction::new().create_collection(id.collection())).wait().unwrap();
    for index in 0..300 {
        let value = Bytes::from(format!("value {index}"));
        engine.submit(Transaction::new().change(&id, Change::SlotSet { index, value })).wait().unwrap();
        if index % 100 == 50 {
            engine.checkpoint().unwrap();
        }
    }
    let expected = show(&engine);
    let sample = device.snapshot();
    let places = places(&sample);
    for kind in ["root", "table", "head", "page", "list"] {
        let damaged = sample.snapshot();
        flip(&damaged, *places[kind].last().unwrap());
        let opened = open(&damaged, true).unwrap();
        assert_eq!(opened.recovery().checkpoints_passed_over, 1, "{kind}");
        assert!(show(&opened) == expected, "{kind}");
        drop(opened);
        let (report, lost, found) = repaired(&damaged).unwrap();
        assert_eq!((report.level, &lost[..]), (Level::Opened, &[][..]), "{kind}");
        assert!(show(&found) == expected, "{kind}");
        // Opened to be written, it has a whole checkpoint again.
        let damaged = Arc::new(damaged);
        drop(Engine::open(Arc::clone(&damaged) as Arc<dyn Device>, options(false)).unwrap());
        let again = open(&damaged, true).unwrap();
        assert_eq!(again.recovery().checkpoints_passed_over, 0, "{kind}");
        assert!(show(&again) == expected, "{kind}");
    }
    drop(engine);
}
