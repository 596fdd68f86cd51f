//! The mark of a half copy: from where, and how far.
//!
//! Invariant: the mark is changed by the transaction that brings what it covers, or by a later one; never by an
//! earlier. Format: docs/format.md#half-copies

use bytes::{Buf, BufMut, Bytes};
use esker_store::{Change, Collection, Durability, ObjectId, ObjectStore, Op, Transaction};

use crate::{Error, Result};

/// The collection that only a half copy has.
pub const COLLECTION: &str = "\0esker-copy";
const OBJECT: &str = "mark";
const SOURCE: &str = "source";
const PLACE: &str = "place";
const VERSION: u8 = 1;

/// What of an object is being copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Space {
    /// Nothing of it yet, or size and attributes.
    #[default]
    Begin = 0,
    /// Bytes, up to an offset.
    Bytes = 1,
    /// Ordered keys, up to one.
    Omap = 2,
    /// Slots, up to one.
    Slots = 3,
    /// The object is done, and those before it.
    Done = 4,
    /// Everything is.
    All = 5,
}

/// How far a copy is. Everything in an earlier collection or object is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub collection: Collection,
    pub name: Bytes,
    pub space: Space,
    /// Where in the space: an offset or a slot (8 bytes), or a key.
    pub at: Bytes,
}

impl Default for Place {
    fn default() -> Self {
        Self { collection: Collection::new(Bytes::new()), name: Bytes::new(), space: Space::Begin, at: Bytes::new() }
    }
}

/// A mark.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    pub source: String,
    pub place: Place,
}

fn object() -> ObjectId {
    ObjectId::new(Collection::from(COLLECTION), OBJECT)
}

fn set(name: &'static str, value: impl Into<Bytes>) -> Op {
    Op::Object(object(), Change::XattrSet { name: name.into(), value: value.into() })
}

impl Place {
    /// The offset or slot that it is at.
    pub fn offset(&self) -> u64 {
        <[u8; 8]>::try_from(&self.at[..]).map_or(0, u64::from_le_bytes)
    }

    /// Adds the mark's change to a transaction.
    pub fn put(&self, txn: &mut Transaction) {
        let mut value = vec![VERSION, self.space as u8];
        for part in [self.collection.name(), &self.name, &self.at] {
            value.put_u32_le(part.len() as u32);
            value.put_slice(part);
        }
        txn.ops.push(set(PLACE, value));
    }

    fn parse(mut value: Bytes) -> Option<Self> {
        if value.len() < 2 || value.get_u8() != VERSION {
            return None;
        }
        let space = match value.get_u8() {
            0 => Space::Begin,
            1 => Space::Bytes,
            2 => Space::Omap,
            3 => Space::Slots,
            4 => Space::Done,
            5 => Space::All,
            _ => return None,
        };
        let mut part = || {
            let len = value.try_get_u32_le().ok()? as usize;
            (len <= value.len()).then(|| value.split_to(len))
        };
        Some(Self { collection: Collection::new(part()?), name: part()?, space, at: part()? })
    }
}

impl Mark {
    /// The mark of a store, if it is a half copy.
    pub fn read(store: &dyn ObjectStore) -> Result<Option<Self>> {
        if !store.collections().wait()?.contains(&Collection::from(COLLECTION)) {
            return Ok(None);
        }
        if store.size(&object()).wait()?.is_none() {
            // Interrupted before it was one, or after it was a whole one.
            return Ok(None);
        }
        let source = store.xattr(&object(), SOURCE.as_bytes()).wait()?.unwrap_or_default();
        let place = store.xattr(&object(), PLACE.as_bytes()).wait()?.and_then(Place::parse);
        let Some(place) = place else {
            return Err(Error::OtherCopy { found: "a mark of another version".into(), expected: "version 1".into() });
        };
        Ok(Some(Self { source: String::from_utf8_lossy(&source).into_owned(), place }))
    }

    /// Makes an empty store a half copy.
    pub fn begin(&self, store: &dyn ObjectStore) -> Result<()> {
        let mut txn = Transaction::new().create_collection(&Collection::from(COLLECTION));
        txn.ops.push(set(SOURCE, self.source.clone().into_bytes()));
        self.place.put(&mut txn);
        store.submit(txn).wait()?;
        Ok(())
    }

    /// Ends a half copy, durably.
    pub fn end(store: &dyn ObjectStore) -> Result<()> {
        let mut txn = Transaction::with(Durability::Durable).change(&object(), Change::Remove);
        if !store.capability().atomic_across_collections {
            store.submit(std::mem::replace(&mut txn, Transaction::with(Durability::Durable))).wait()?;
        }
        store.submit(txn.remove_collection(&Collection::from(COLLECTION))).wait()?;
        store.sync().wait()?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_read_back_and_a_damaged_one_is_none() {
        let place = Place { collection: "c".into(), name: "object".into(), space: Space::Omap, at: "key".into() };
        let mut txn = Transaction::new();
        place.put(&mut txn);
        let Op::Object(_, Change::XattrSet { value, .. }) = &txn.ops[0] else { panic!("{txn:?}") };
        assert_eq!(Place::parse(value.clone()), Some(place));
        for len in 0..value.len() {
            assert_eq!(Place::parse(value.slice(..len)), None);
        }
        assert_eq!(Place::parse([&[9u8][..], &value[1..]].concat().into()), None);
    }
}
