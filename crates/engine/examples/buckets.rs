//! Compares two ways to keep keys that are strings: `cargo run --release -p esker-engine --example buckets -- FILE KEYS
//! BITS`.
//!
//! Each puts KEYS keys of 20 bytes with values of 100 bytes in no order, overwrites a tenth of them, and gets some that
//! are there and some that are not: in the tree that stands in the index (`omap`), and in the buckets of Zing Database:
//! a key's hash (Jenkins, one at a time) is one of 2^BITS integer keys, whose value is the list of all pairs with that
//! hash. The paper has 27 bits. It says what a put and a get take, what is written for a put, and what the index takes.
//! FILE is made, and removed at the end.
//!
//! Source: T. T. Nguyen, M. H. Nguyen: Zing Database: high-performance key-value store for large-scale storage service
//! (2015), section 2.8.

#![allow(clippy::unwrap_used, reason = "a measurement that cannot go on ends")]

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use esker_device::{Device, FileDevice, OpenMode};
use esker_engine::{Engine, FormatOptions, Options};
use esker_store::{Change, Collection, Durability, ObjectId, ObjectStore, Transaction};

/// Integer keys of an object.
const RANGE: u64 = 1 << 20;
const KEY_BYTES: usize = 20;
const VALUE_BYTES: usize = 100;
const GETS: u64 = 500_000;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [path, keys, bits] = &arguments[..] else { panic!("FILE KEYS BITS") };
    let (keys, bits): (u64, u32) = (keys.parse().expect("KEYS"), bits.parse().expect("BITS"));
    measure("tree", path, keys, &Tree);
    measure("buckets", path, keys, &Buckets { mask: (1 << bits) - 1 });
}

trait Way {
    fn put(&self, engine: &Engine, key: &[u8], value: &Bytes);
    fn get(&self, engine: &Engine, key: &[u8]) -> Option<Bytes>;
}

struct Tree;

struct Buckets {
    mask: u64,
}

impl Way for Tree {
    fn put(&self, engine: &Engine, key: &[u8], value: &Bytes) {
        let change = Change::OmapSet { key: Bytes::copy_from_slice(key), value: value.clone() };
        submit(engine, &object(last_digit(key)), change);
    }

    fn get(&self, engine: &Engine, key: &[u8]) -> Option<Bytes> {
        engine.omap_get(&object(last_digit(key)), key).wait().unwrap()
    }
}

impl Buckets {
    /// The bucket of a key: its object, its slot, and the pairs that are there.
    fn bucket(&self, engine: &Engine, key: &[u8]) -> (ObjectId, u64, Option<Bytes>) {
        let hash = u64::from(one_at_a_time(key)) & self.mask;
        let (object, slot) = (object(hash / RANGE), hash % RANGE);
        let pairs = engine.slot_get(&object, slot).wait().unwrap();
        (object, slot, pairs)
    }
}

impl Way for Buckets {
    fn put(&self, engine: &Engine, key: &[u8], value: &Bytes) {
        let (object, index, pairs) = self.bucket(engine, key);
        let others = pairs.iter().flat_map(|pairs| pairs.chunks(KEY_BYTES + VALUE_BYTES));
        let mut all: Vec<u8> = others.filter(|pair| !pair.starts_with(key)).flatten().copied().collect();
        all.extend_from_slice(key);
        all.extend_from_slice(value);
        submit(engine, &object, Change::SlotSet { index, value: all.into() });
    }

    fn get(&self, engine: &Engine, key: &[u8]) -> Option<Bytes> {
        let pairs = self.bucket(engine, key).2?;
        let at = pairs.chunks(KEY_BYTES + VALUE_BYTES).position(|pair| pair.starts_with(key))?;
        let start = at * (KEY_BYTES + VALUE_BYTES) + KEY_BYTES;
        Some(pairs.slice(start..start + VALUE_BYTES))
    }
}

/// Ten objects share the keys.
fn last_digit(key: &[u8]) -> u64 {
    key.last().copied().unwrap_or(0).into()
}

fn measure(name: &str, path: &str, keys: u64, way: &dyn Way) {
    let len = (keys * 4 * 300).next_multiple_of(64 << 20) + (4 << 30);
    let device: Arc<dyn Device> = Arc::new(FileDevice::open(path, OpenMode::Create { len }).unwrap());
    Engine::format(&*device, &FormatOptions::new([9; 16])).unwrap();
    let engine = Engine::open(device, Options { recent_bytes: 4 << 30, ..Options::default() }).unwrap();
    engine.submit(Transaction::new().create_collection(&Collection::from("c"))).wait().unwrap();
    let value = Bytes::from(vec![7; VALUE_BYTES]);
    let each = |count: u64, f: &mut dyn FnMut(u64)| {
        let began = Instant::now();
        (0..count).for_each(f);
        began.elapsed().as_nanos() as f64 / count as f64
    };
    let put_ns = each(keys, &mut |nth| way.put(&engine, &key(nth), &value));
    let before = engine.stats();
    let index = (before.omap_index_bytes + before.slot_index_bytes) as f64 / keys as f64;
    let mut rng = fastrand::Rng::with_seed(24);
    let overwrites = keys / 10;
    let over_ns = each(overwrites, &mut |_| way.put(&engine, &key(rng.u64(..keys)), &value));
    let written = (engine.stats().record_bytes - before.record_bytes) as f64 / overwrites as f64;
    let get_ns = each(GETS, &mut |_| assert!(way.get(&engine, &key(rng.u64(..keys))).is_some()));
    let miss_ns = each(GETS, &mut |_| assert!(way.get(&engine, &key(keys + rng.u64(..keys))).is_none()));
    println!(
        "{name}: {put_ns:.0} ns a put, {over_ns:.0} of one that is there, {written:.0} bytes of log for it, \
         {get_ns:.0} ns a get, {miss_ns:.0} of one that is not there, {index:.1} bytes of index a key"
    );
    engine.close().unwrap();
    std::fs::remove_file(path).unwrap();
}

fn submit(engine: &Engine, object: &ObjectId, change: Change) {
    engine.submit(Transaction::with(Durability::Applied).change(object, change)).wait().unwrap();
}

fn object(number: u64) -> ObjectId {
    ObjectId::new(Collection::from("c"), number.to_be_bytes().to_vec())
}

/// The keys stand in no order: neighbours differ in all digits.
fn key(nth: u64) -> [u8; KEY_BYTES] {
    let mut key = [b'0'; KEY_BYTES];
    let mut left = nth.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for digit in &mut key {
        *digit = b'0' + (left % 10) as u8;
        left /= 10;
    }
    key
}

/// Source: R. J. Jenkins Jr., Hash functions, Dr. Dobb's Journal, September 1997.
fn one_at_a_time(key: &[u8]) -> u32 {
    let mut hash = 0u32;
    for byte in key {
        hash = hash.wrapping_add(u32::from(*byte));
        hash = hash.wrapping_add(hash << 10);
        hash ^= hash >> 6;
    }
    hash = hash.wrapping_add(hash << 3);
    hash ^= hash >> 11;
    hash.wrapping_add(hash << 15)
}
