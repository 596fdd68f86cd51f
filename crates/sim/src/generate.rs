//! Random transactions over a few objects in four collections, one of which comes and goes.
//!
//! Invariants:
//! 1. A transaction has at most [`OPS_MAX`] operations and [`Taste::payload_bytes_max`] bytes of payload.
//! 2. Copies and renames are made only where the store can.

use bytes::Bytes;
use esker_store::{Change, Collection, Compression, Condition, Durability, ObjectId, Op, Transaction};

use crate::model::ModelState;

/// Most operations of a transaction.
pub const OPS_MAX: usize = 8;
/// Slots, omap keys and xattr names to choose from, each; three times as many while hoarding.
pub const KEYS: u64 = 12;
const KEY_TAIL_BYTES: usize = 300;
const COLLECTIONS: [&str; 4] = ["alpha", "beta", "gamma", "extra"];
const NAMES: [&str; 2] = ["one", "two"];
/// Objects stay below about this many bytes.
const OFFSET_MAX: u64 = 12_000;

/// The collections that always exist: made when a store is opened.
pub fn lasting_collections() -> impl Iterator<Item = Collection> {
    COLLECTIONS[..3].iter().map(|name| Collection::new(*name))
}

/// All objects that there can be.
pub fn objects() -> Vec<ObjectId> {
    let of = |collection: &'static str| NAMES.map(|name| ObjectId::new(Collection::new(collection), name));
    COLLECTIONS.into_iter().flat_map(of).collect()
}

/// What transactions are like.
#[derive(Clone, Copy, Debug)]
pub struct Taste {
    /// Values are large: segments fill quickly.
    pub large: bool,
    /// Nearly everything adds, and more keys are used: the device fills up.
    pub hoards: bool,
    /// The store can clone and rename.
    pub copies: bool,
    /// Payload of one transaction, in bytes.
    pub payload_bytes_max: usize,
}

/// A random object; more often one that exists.
pub fn object(rng: &mut fastrand::Rng, state: &ModelState) -> ObjectId {
    if rng.u8(0..3) != 0 && !state.objects.is_empty() {
        let number = rng.usize(0..state.objects.len());
        if let Some(id) = state.objects.keys().nth(number) {
            return id.clone();
        }
    }
    let all = objects();
    all[rng.usize(0..all.len())].clone()
}

/// A random omap key.
pub fn key(rng: &mut fastrand::Rng) -> Bytes {
    key_of(rng.u64(0..KEYS))
}

/// A random slot.
pub fn slot(rng: &mut fastrand::Rng) -> u64 {
    slot_of(rng.u64(0..KEYS))
}

/// A random xattr name.
pub fn name(rng: &mut fastrand::Rng) -> Bytes {
    name_of(rng.u64(0..KEYS))
}

/// So long that few keys fill a page of the index.
fn key_of(number: u64) -> Bytes {
    Bytes::from(format!("key{number:02}{}", "-".repeat(KEY_TAIL_BYTES)))
}

/// So far apart that an object has several pages of slots.
fn slot_of(number: u64) -> u64 {
    number / 4 * 512 + number % 4
}

fn name_of(number: u64) -> Bytes {
    Bytes::from(format!("name{number:02}"))
}

fn value(rng: &mut fastrand::Rng, large: bool, room: &mut usize) -> Bytes {
    let len = match rng.u8(0..20) {
        0..10 if large => rng.usize(4_000..12_000),
        0..=1 => rng.usize(4_000..9_000),
        2..=5 => rng.usize(100..900),
        _ => rng.usize(0..40),
    };
    let len = len.min(*room);
    *room -= len;
    let fill = rng.u8(..);
    // Half of them compress.
    let mask = if rng.bool() { 0xff } else { 0x07 };
    Bytes::from((0..len).map(|i| fill.wrapping_add((i ^ (i >> 8)) as u8 & mask)).collect::<Vec<_>>())
}

/// Offsets and lengths: often at or beside a block's border.
fn place(rng: &mut fastrand::Rng, max: u64) -> u64 {
    match rng.u8(0..4) {
        0 => (rng.u64(0..=max) / 4096 * 4096 + rng.u64(0..3)).saturating_sub(1).min(max),
        _ => rng.u64(0..=max),
    }
}

fn copy(rng: &mut fastrand::Rng, state: &ModelState, id: &ObjectId) -> Change {
    let to = match rng.u8(0..6) {
        0 => id.clone(),
        _ => object(rng, state),
    };
    match rng.u8(0..8) {
        0..2 => Change::CloneTo { to },
        2..4 => Change::Rename { to },
        // Inside one object, mostly with ranges that overlap.
        4 => {
            let from_offset = place(rng, OFFSET_MAX);
            let shift = place(rng, 3_000);
            let (from_offset, to_offset) =
                if rng.bool() { (from_offset, from_offset + shift) } else { (from_offset + shift, from_offset) };
            Change::CloneRange { to: id.clone(), from_offset, len: place(rng, 6_000), to_offset }
        }
        _ => {
            let (from_offset, to_offset) = (place(rng, OFFSET_MAX), place(rng, OFFSET_MAX));
            Change::CloneRange { to, from_offset, len: place(rng, 8_000), to_offset }
        }
    }
}

fn change(rng: &mut fastrand::Rng, state: &ModelState, taste: Taste, room: &mut usize, id: &ObjectId) -> Change {
    if taste.copies && rng.u8(0..if taste.hoards { 20 } else { 5 }) == 0 {
        return copy(rng, state, id);
    }
    if taste.hoards && rng.u8(0..8) != 0 {
        let number = rng.u64(0..3 * KEYS);
        let value = value(rng, true, room);
        return match rng.u8(0..8) {
            0..3 => Change::SlotSet { index: slot_of(number), value },
            3..6 => Change::OmapSet { key: key_of(number), value },
            6 => Change::XattrSet { name: name_of(number), value },
            _ => Change::Write { offset: place(rng, OFFSET_MAX), data: value },
        };
    }
    match rng.u8(0..100) {
        0..20 => Change::SlotSet { index: slot(rng), value: value(rng, taste.large, room) },
        20..40 => Change::OmapSet { key: key(rng), value: value(rng, taste.large, room) },
        40..48 => Change::XattrSet { name: name(rng), value: value(rng, taste.large, room) },
        48..64 => Change::Write { offset: place(rng, OFFSET_MAX), data: value(rng, taste.large, room) },
        64..68 => Change::Zero { offset: place(rng, OFFSET_MAX), len: place(rng, 5_000) },
        68..72 => Change::Truncate { size: place(rng, OFFSET_MAX + 2_000) },
        72..77 => Change::SlotRemove { index: slot(rng) },
        77..82 => Change::OmapRemove { key: key(rng) },
        82..86 => Change::XattrRemove { name: name(rng) },
        86..89 => {
            let start = key(rng);
            let end = rng.bool().then(|| key(rng)).filter(|end| *end >= start);
            Change::OmapRemoveRange { start, end }
        }
        89..92 => {
            let first = rng.u64(0..KEYS);
            let end = if rng.u8(0..4) == 0 { u64::MAX } else { slot_of(rng.u64(first..=KEYS)) };
            let start = slot_of(first);
            Change::SlotRemoveRange { start, end }
        }
        92..93 => Change::OmapClear,
        93..94 => Change::Truncate { size: 0 },
        96.. if !taste.hoards => Change::Remove,
        _ => Change::Touch,
    }
}

/// A random transaction, sometimes with a guard that holds. It may name what is missing: then it is to be refused.
pub fn transaction(rng: &mut fastrand::Rng, state: &ModelState, taste: Taste) -> Transaction {
    let durability = if rng.u8(0..4) == 0 { Durability::Applied } else { Durability::Durable };
    let mut txn = Transaction::with(durability).compress(Compression::ALL[rng.usize(..3)].0);
    let changes = match rng.u8(0..8) {
        0..4 => 1,
        4..7 => rng.usize(2..=4),
        _ => rng.usize(4..=OPS_MAX),
    };
    let mut room = taste.payload_bytes_max;
    // Several changes of one object are as good a test as changes of several.
    let mut id = object(rng, state);
    for _ in 0..changes {
        if txn.ops.len() + 2 > OPS_MAX {
            break;
        }
        if rng.u8(0..3) != 0 {
            id = object(rng, state);
        }
        match rng.u8(0..60) {
            0 => txn = txn.create_collection(id.collection()),
            1 => txn = txn.remove_collection(id.collection()),
            _ => {
                // The collection that comes and goes is made along with its objects.
                let missing = !state.collections.contains(id.collection());
                if missing && rng.u8(0..4) != 0 {
                    txn = txn.create_collection(id.collection());
                }
                let change = change(rng, state, taste, &mut room, &id);
                txn.push(&id, change);
            }
        }
    }
    if rng.u8(0..6) == 0 {
        let id = object(rng, state);
        txn = txn.guard(&id, true_condition(rng, state, &id));
    }
    txn
}

/// A condition that holds.
fn true_condition(rng: &mut fastrand::Rng, state: &ModelState, id: &ObjectId) -> Condition {
    let Some(object) = state.objects.get(id) else { return Condition::Absent };
    let (index, key, name) = (slot(rng), key(rng), name(rng));
    match rng.u8(0..5) {
        0 => Condition::Exists,
        1 => Condition::SizeEquals { size: object.bytes.len() as u64 },
        2 => match object.xattrs.get(&name) {
            Some(value) => Condition::XattrEquals { name, value: value.clone() },
            None => Condition::XattrAbsent { name },
        },
        3 => match object.slots.get(&index) {
            Some(entry) => Condition::SlotEquals { index, value: entry.value.clone() },
            None => Condition::SlotAbsent { index },
        },
        _ => match object.omap.get(&key) {
            Some(entry) => Condition::OmapEquals { key, value: entry.value.clone() },
            None => Condition::OmapAbsent { key },
        },
    }
}

/// A transaction that takes away: what a full store must still take.
pub fn removal(rng: &mut fastrand::Rng, state: &ModelState) -> Transaction {
    let id = object(rng, state);
    let change = match rng.u8(0..6) {
        0 => Change::SlotRemoveRange { start: 0, end: u64::MAX },
        1 => Change::OmapClear,
        2 => Change::Truncate { size: 0 },
        _ => Change::Remove,
    };
    Transaction::new().change(&id, change)
}

/// A transaction that writes one value of `len` bytes into an object of a lasting collection.
pub fn one_write(rng: &mut fastrand::Rng, len: usize) -> Transaction {
    let id = ObjectId::new(Collection::new(COLLECTIONS[rng.usize(0..3)]), NAMES[0]);
    let value = Bytes::from(vec![rng.u8(..); len]);
    let change = match rng.u8(0..3) {
        0 => Change::SlotSet { index: slot(rng), value },
        1 => Change::OmapSet { key: key(rng), value },
        _ => Change::Write { offset: place(rng, OFFSET_MAX), data: value },
    };
    Transaction::new().change(&id, change)
}

/// A transaction in words, with lengths in place of long values.
pub fn in_words(txn: &Transaction) -> String {
    fn cut(value: &mut Bytes) {
        if value.len() > 16 {
            *value = Bytes::from(format!("{} bytes", value.len()));
        }
    }
    let mut txn = txn.clone();
    for guard in &mut txn.guards {
        if let Condition::XattrEquals { value, .. }
        | Condition::OmapEquals { value, .. }
        | Condition::SlotEquals { value, .. } = &mut guard.condition
        {
            cut(value);
        }
    }
    for op in &mut txn.ops {
        if let Op::Object(
            _,
            Change::Write { data: value, .. }
            | Change::XattrSet { value, .. }
            | Change::OmapSet { value, .. }
            | Change::SlotSet { value, .. },
        ) = op
        {
            cut(value);
        }
    }
    format!("{txn:?}")
}
