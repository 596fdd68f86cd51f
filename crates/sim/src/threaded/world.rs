//! What one client's objects should hold, in the plainest form: numbers of values at places, never bytes.
//!
//! change → [`World`] after it; store → [`found`] → numbers again, each checked byte for byte
//!
//! A value is its number, over and over, so a byte of another value or of another object is seen wherever it stands.
//!
//! Invariant: a world never changes; worlds share the objects that are the same in both.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use esker_store::{Change, Collection, ObjectId, ObjectStore, SlotScan};

/// Bytes of a piece: what is written and cloned at once is a whole number of them. Not a multiple of any block.
pub(super) const PIECE_BYTES: u64 = 1_000;

/// One object: the number of the value in each piece, 0 for a hole, and in each slot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Thing {
    pub pieces: Vec<u32>,
    pub slots: BTreeMap<u64, u32>,
}

/// All objects of a client.
pub(super) type World = BTreeMap<String, Arc<Thing>>;

/// A value of so many bytes.
pub(super) fn value(number: u32, len: u64) -> Bytes {
    number.to_le_bytes().into_iter().cycle().take(len as usize).collect()
}

/// How long the value of this number is in a slot.
pub(super) fn slot_len(number: u32) -> u64 {
    let number = u64::from(number);
    if number.is_multiple_of(5) { 4 + number * 7 % 60 } else { 300 + number * 137 % 6_000 }
}

/// Which value the bytes are.
pub(super) fn number_of(bytes: &[u8]) -> Result<u32, String> {
    let first = bytes.first_chunk::<4>().ok_or("a value is shorter than its number")?;
    match bytes.iter().zip(first.iter().cycle()).position(|(a, b)| a != b) {
        None => Ok(u32::from_le_bytes(*first)),
        Some(at) => Err(format!("a value is {first:?} at first, and something else at {at} of {}", bytes.len())),
    }
}

/// A change of a client's objects, of which the store has heard as [`Step::txn`] says.
#[derive(Clone, Debug)]
pub(super) enum Step {
    Write { name: String, piece: usize, number: u32, pieces: usize },
    Set { name: String, slot: u64, number: u32 },
    Unset { name: String, slot: u64 },
    Zero { name: String, piece: usize, pieces: usize },
    Truncate { name: String, pieces: usize },
    Remove { name: String },
    Clone { name: String, to: String },
    CloneRange { name: String, to: String, from: usize, pieces: usize, at: usize },
    Rename { name: String, to: String },
}

impl Step {
    /// The object, and what the store is asked to do with it.
    pub fn change(&self, collection: &Collection) -> (ObjectId, Change) {
        let id = |name: &String| ObjectId::new(collection.clone(), name.clone());
        let bytes = |pieces: &usize| *pieces as u64 * PIECE_BYTES;
        match self {
            Self::Write { name, piece, number, pieces } => {
                (id(name), Change::Write { offset: bytes(piece), data: value(*number, bytes(pieces)) })
            }
            Self::Set { name, slot, number } => {
                (id(name), Change::SlotSet { index: *slot, value: value(*number, slot_len(*number)) })
            }
            Self::Unset { name, slot } => (id(name), Change::SlotRemove { index: *slot }),
            Self::Zero { name, piece, pieces } => (id(name), Change::Zero { offset: bytes(piece), len: bytes(pieces) }),
            Self::Truncate { name, pieces } => (id(name), Change::Truncate { size: bytes(pieces) }),
            Self::Remove { name } => (id(name), Change::Remove),
            Self::Clone { name, to } => (id(name), Change::CloneTo { to: id(to) }),
            Self::CloneRange { name, to, from, pieces, at } => {
                let (from_offset, len, to_offset) = (bytes(from), bytes(pieces), bytes(at));
                (id(name), Change::CloneRange { to: id(to), from_offset, len, to_offset })
            }
            Self::Rename { name, to } => (id(name), Change::Rename { to: id(to) }),
        }
    }

    /// Whether a store that is full must let it through.
    pub fn takes_away(&self) -> bool {
        matches!(self, Self::Remove { .. } | Self::Unset { .. })
    }

    /// The world after it. The objects that it copies are there.
    pub fn after(&self, world: &World) -> World {
        let mut world = world.clone();
        let put = |thing: &mut Thing, at: usize, numbers: &[u32]| {
            let end = thing.pieces.len().max(at + numbers.len());
            thing.pieces.resize(end, 0);
            thing.pieces[at..at + numbers.len()].copy_from_slice(numbers);
        };
        match self {
            Self::Write { name, piece, number, pieces } => {
                put(Arc::make_mut(world.entry(name.clone()).or_default()), *piece, &vec![*number; *pieces]);
            }
            Self::Set { name, slot, number } => {
                Arc::make_mut(world.entry(name.clone()).or_default()).slots.insert(*slot, *number);
            }
            Self::Unset { name, slot } => {
                if let Some(thing) = world.get_mut(name) {
                    Arc::make_mut(thing).slots.remove(slot);
                }
            }
            Self::Zero { name, piece, pieces } => {
                put(Arc::make_mut(world.entry(name.clone()).or_default()), *piece, &vec![0; *pieces]);
            }
            Self::Truncate { name, pieces } => {
                Arc::make_mut(world.entry(name.clone()).or_default()).pieces.resize(*pieces, 0);
            }
            Self::Remove { name } => {
                world.remove(name);
            }
            Self::Clone { name, to } => {
                let source = Arc::clone(&world[name]);
                world.insert(to.clone(), source);
            }
            Self::CloneRange { name, to, from, pieces, at } => {
                let source = Arc::clone(&world[name]);
                let part = (*from..from + pieces).map(|piece| source.pieces.get(piece).copied().unwrap_or(0));
                let part: Vec<u32> = part.collect();
                put(Arc::make_mut(world.entry(to.clone()).or_default()), *at, &part);
            }
            Self::Rename { name, to } => {
                if let Some(thing) = world.remove(name) {
                    world.insert(to.clone(), thing);
                }
            }
        }
        world
    }
}

/// Why a store could not be read: its error, or what makes no sense.
pub(super) enum Misread {
    Refused(esker_store::Error),
    Nonsense(String),
}

impl From<esker_store::Error> for Misread {
    fn from(error: esker_store::Error) -> Self {
        Self::Refused(error)
    }
}

impl std::fmt::Display for Misread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Refused(error) => error.fmt(f),
            Self::Nonsense(why) => f.write_str(why),
        }
    }
}

/// What the store has of one object.
pub(super) fn thing(store: &dyn ObjectStore, id: &ObjectId) -> Result<Option<Thing>, Misread> {
    let Some(stat) = store.stat(id).wait()? else { return Ok(None) };
    let named = |why: String| Misread::Nonsense(format!("{id}: {why}"));
    let bytes = store.read(id, 0..u64::MAX).wait()?;
    if bytes.len() as u64 != stat.size || !stat.size.is_multiple_of(PIECE_BYTES) {
        return Err(named(format!("{} bytes, its size is {}", bytes.len(), stat.size)));
    }
    let mut pieces = Vec::with_capacity(bytes.len() / PIECE_BYTES as usize);
    for (at, piece) in bytes.chunks(PIECE_BYTES as usize).enumerate() {
        pieces.push(number_of(piece).map_err(|why| named(format!("piece {at}: {why}")))?);
    }
    let scan = SlotScan { range: 0..u64::MAX, reverse: false, limit: usize::MAX, keys_only: false };
    let mut slots = BTreeMap::new();
    for (slot, value) in store.slot_scan(id, &scan).wait()? {
        let number = number_of(&value).map_err(|why| named(format!("slot {slot}: {why}")))?;
        if value.len() as u64 != slot_len(number) {
            return Err(named(format!("slot {slot}: {} bytes of value {number}", value.len())));
        }
        slots.insert(slot, number);
    }
    Ok(Some(Thing { pieces, slots }))
}

/// What the store has of a client.
pub(super) fn found(store: &dyn ObjectStore, collection: &Collection) -> Result<World, Misread> {
    let mut world = World::new();
    // It may be gone with what a crash took back.
    if !store.collections().wait()?.contains(collection) {
        return Ok(world);
    }
    for name in store.list(collection, None, usize::MAX).wait()? {
        let id = ObjectId::new(collection.clone(), name.clone());
        let Some(thing) = thing(store, &id)? else {
            return Err(Misread::Nonsense(format!("{id} is listed, but does not exist")));
        };
        world.insert(String::from_utf8_lossy(&name).into_owned(), Arc::new(thing));
    }
    Ok(world)
}

/// Where two worlds first differ, in words.
pub(super) fn difference(expected: &World, found: &World) -> Option<String> {
    let name = expected.keys().chain(found.keys()).find(|name| expected.get(*name) != found.get(*name))?;
    let (Some(expected), Some(found)) = (expected.get(name), found.get(name)) else {
        let is = if found.contains_key(name) { "should not exist" } else { "is missing" };
        return Some(format!("{name} {is}"));
    };
    let (len, found_len) = (expected.pieces.len(), found.pieces.len());
    if len != found_len {
        return Some(format!("{name} has {found_len} pieces, expected {len}"));
    }
    if let Some(at) = (0..len).find(|at| expected.pieces[*at] != found.pieces[*at]) {
        let (expected, found) = (expected.pieces[at], found.pieces[at]);
        return Some(format!("{name}: piece {at} is value {found}, expected {expected}"));
    }
    let slots = expected.slots.keys().chain(found.slots.keys());
    let slot = slots.copied().find(|slot| expected.slots.get(slot) != found.slots.get(slot))?;
    let (expected, found) = (expected.slots.get(&slot), found.slots.get(&slot));
    Some(format!("{name}: slot {slot} is {found:?}, expected {expected:?}"))
}
