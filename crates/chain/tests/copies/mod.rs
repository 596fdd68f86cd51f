//! Stores with histories, and whether two of them hold the same.

use std::sync::Arc;

use bytes::Bytes;
use esker_device::{Device, MemoryDevice};
use esker_engine::{Engine, FormatOptions, Options};
use esker_memory::MemoryStore;
use esker_store::model::Generator;
use esker_store::{
    Change, Collection, Durability, Error, ObjectId, ObjectStore, OmapScan, SlotScan, Transaction, prefix,
};
use fastrand::Rng;

pub type Store = Arc<dyn ObjectStore>;

pub fn memory() -> Store {
    Arc::new(MemoryStore::new())
}

/// An engine on a memory device, with so little room for index pages that reads come from the device as well.
pub fn engine(device_bytes: u64, segment_bytes: u64) -> Store {
    let device = Arc::new(MemoryDevice::new(device_bytes));
    Engine::format(&*device, &FormatOptions { segment_bytes, uuid: [6; 16] }).unwrap();
    let options = Options { recent_bytes: 0, cache_bytes: 1 << 20, index_bytes: 2 << 20, ..Options::default() };
    Arc::new(Engine::open(device as Arc<dyn Device>, options).unwrap())
}

/// `count` changes, in transactions of some.
pub fn fill(store: &dyn ObjectStore, collection: &'static str, count: u64, change: impl Fn(u64) -> (ObjectId, Change)) {
    store.submit(Transaction::new().create_collection(&Collection::from(collection))).wait().unwrap();
    let (mut txn, mut bytes) = (Transaction::with(Durability::Applied), 0);
    for number in 0..count {
        let (object, change) = change(number);
        if let Change::Write { data, .. } | Change::OmapSet { value: data, .. } | Change::SlotSet { value: data, .. } =
            &change
        {
            bytes += data.len();
        }
        txn.push(&object, change);
        if txn.ops.len() >= 20 || bytes >= 400 << 10 {
            bytes = 0;
            store.submit(std::mem::replace(&mut txn, Transaction::with(Durability::Applied))).wait().unwrap();
        }
    }
    store.submit(txn).wait().unwrap();
}

/// The next transactions of a generator, some of which are meant to be refused.
pub fn history(store: &dyn ObjectStore, generator: &mut Generator, steps: usize) {
    for _ in 0..steps {
        // Those that clone what is not there, or whose guards do not hold.
        let _ = store.submit(generator.next()).wait();
    }
}

fn name(rng: &mut Rng) -> ObjectId {
    let collection = Collection::new(format!("collection {}", rng.u8(..4)));
    ObjectId::new(collection, format!("object {}", rng.u8(..5)))
}

fn value(rng: &mut Rng) -> Bytes {
    let len = if rng.u8(..4) == 0 { rng.usize(..40_000) } else { rng.usize(..100) };
    vec![rng.u8(..3); len].into()
}

fn change(rng: &mut Rng) -> Change {
    let offset = |rng: &mut Rng| rng.u64(..5 << 20);
    let len = |rng: &mut Rng| if rng.u8(..4) == 0 { rng.u64(..2 << 20) } else { rng.u64(..5_000) };
    let key = |rng: &mut Rng| Bytes::from(format!("{}", rng.u8(..)).repeat(rng.usize(0..3)));
    let index = |rng: &mut Rng| match rng.u8(..10) {
        0 => u64::MAX - rng.u64(..3),
        1 => rng.u64(..),
        _ => rng.u64(..200),
    };
    match rng.u8(..40) {
        0 => Change::Remove,
        1 => Change::Touch,
        2..8 => Change::Write { offset: offset(rng), data: vec![rng.u8(..3); len(rng) as usize].into() },
        8..11 => Change::Zero { offset: offset(rng), len: len(rng) },
        11..13 => Change::Truncate { size: offset(rng) },
        13..16 => Change::XattrSet { name: vec![rng.u8(..6)].into(), value: value(rng) },
        16 => Change::XattrRemove { name: vec![rng.u8(..6)].into() },
        17..27 => Change::OmapSet { key: key(rng), value: value(rng) },
        27 => Change::OmapRemove { key: key(rng) },
        28 => {
            let (one, other) = (key(rng), key(rng));
            Change::OmapRemoveRange { start: one.clone().min(other.clone()), end: Some(one.max(other)) }
        }
        29 if rng.u8(..4) == 0 => Change::OmapClear,
        29..38 => Change::SlotSet { index: index(rng), value: value(rng) },
        38 => Change::SlotRemove { index: index(rng) },
        _ => {
            let start = rng.u64(..200);
            Change::SlotRemoveRange { start, end: start + rng.u64(..20) }
        }
    }
}

/// Steps of a random history of all spaces: small enough that much is overwritten, large enough for several pages.
pub fn wild(store: &dyn ObjectStore, rng: &mut Rng, steps: usize) {
    for _ in 0..steps {
        let mut txn = Transaction::with(Durability::Applied);
        let object = name(rng);
        if rng.u8(..12) == 0 {
            // Refused where it holds something.
            match store.submit(txn.remove_collection(object.collection())).wait() {
                Ok(_) | Err(Error::NotEmpty { .. }) => continue,
                Err(error) => panic!("{error}"),
            }
        }
        txn = txn.create_collection(object.collection());
        for _ in 0..rng.u8(1..20) {
            txn.push(&object, change(rng));
        }
        store.submit(txn).wait().unwrap();
    }
}

/// Compares everything through every read.
pub fn same(one: &dyn ObjectStore, other: &dyn ObjectStore, what: &str) {
    let collections = one.collections().wait().unwrap();
    assert_eq!(collections, other.collections().wait().unwrap(), "{what}: collections");
    for collection in &collections {
        let names = |store: &dyn ObjectStore| {
            prefix::names(store, collection, b"", None).collect::<esker_store::Result<Vec<_>>>().unwrap()
        };
        assert_eq!(names(one), names(other), "{what}: {collection}");
        assert_eq!(one.list(collection, None, 2).wait().unwrap(), other.list(collection, None, 2).wait().unwrap());
        for name in names(one) {
            same_object(one, other, &ObjectId::new(collection.clone(), name), what);
        }
    }
}

fn same_object(one: &dyn ObjectStore, other: &dyn ObjectStore, object: &ObjectId, what: &str) {
    let both = [one, other];
    let [stat, other_stat] = both.map(|store| store.stat(object).wait().unwrap());
    assert_eq!(stat, other_stat, "{what}: {object}");
    let [size, other_size] = both.map(|store| store.size(object).wait().unwrap());
    assert_eq!(size, other_size, "{what}: {object}: size");
    let size = size.unwrap();
    let [runs, other_runs] = both.map(|store| store.extents(object, 0..u64::MAX).wait().unwrap());
    assert_eq!(runs, other_runs, "{what}: {object}: holes");
    for run in runs {
        // A little around it as well.
        let range = run.offset.saturating_sub(10)..size.min(run.offset + run.len + 10);
        for start in range.clone().step_by(1 << 20) {
            let range = start..range.end.min(start + (1 << 20));
            let [data, other_data] = both.map(|store| store.read(object, range.clone()).wait().unwrap());
            assert!(data == other_data, "{what}: {object}: bytes {range:?}");
        }
    }
    let [xattrs, other_xattrs] = both.map(|store| store.xattrs(object).wait().unwrap());
    assert_eq!(xattrs, other_xattrs, "{what}: {object}");
    for (name, value) in xattrs {
        assert_eq!(other.xattr(object, &name).wait().unwrap(), Some(value), "{what}: {object}");
    }
    let [omap, other_omap] = both.map(|store| {
        let scan = OmapScan { limit: 1_000, ..OmapScan::default() };
        prefix::omap(store, object, scan).collect::<esker_store::Result<Vec<_>>>().unwrap()
    });
    let keys = |entries: &[(Bytes, Bytes)]| entries.iter().map(|(key, _)| key.clone()).collect::<Vec<_>>();
    assert_eq!(keys(&omap), keys(&other_omap), "{what}: {object}: keys");
    assert!(omap == other_omap, "{what}: {object}: values");
    for (key, value) in omap.iter().take(20) {
        assert_eq!(other.omap_get(object, key).wait().unwrap().as_ref(), Some(value), "{what}: {object}");
    }
    let [slots, other_slots] = both.map(|store| {
        let pages = prefix::pages(|last: Option<&(u64, Bytes)>| {
            let start = match last {
                Some((u64::MAX, _)) => return Ok(Vec::new()),
                last => last.map_or(0, |(index, _)| index + 1),
            };
            let scan = SlotScan { range: start..u64::MAX, reverse: false, limit: 1_000, keys_only: false };
            store.slot_scan(object, &scan).wait()
        });
        prefix::each(pages).collect::<esker_store::Result<Vec<_>>>().unwrap()
    });
    let indexes = |slots: &[(u64, Bytes)]| slots.iter().map(|(index, _)| *index).collect::<Vec<_>>();
    assert_eq!(indexes(&slots), indexes(&other_slots), "{what}: {object}: slots");
    assert!(slots == other_slots, "{what}: {object}: values of slots");
    for (index, value) in slots.iter().take(20) {
        assert_eq!(other.slot_get(object, *index).wait().unwrap().as_ref(), Some(value), "{what}: {object}");
    }
}
