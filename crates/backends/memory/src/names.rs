//! The dry run of a transaction over names: whether each operation finds the collections and objects it needs.
//!
//! Once limits and guards hold, only names can refuse a transaction: a missing collection, a collection that is not
//! empty, a missing source, a rename onto an object. So names are tried first, and then nothing can fail half-way.
//!
//! Invariant: the dry run changes nothing; it sees the operations before each in the same transaction.

use std::collections::BTreeMap;

use bytes::Bytes;
use esker_store::{Change, Collection, Error, ObjectId, Op, Result};

use crate::object::Object;

/// Collections, and in each the objects by name.
pub type Collections = BTreeMap<Collection, BTreeMap<Bytes, Object>>;

/// What the transaction has done to names so far.
struct DryRun<'a> {
    state: &'a Collections,
    collections: BTreeMap<&'a Collection, bool>,
    objects: BTreeMap<&'a ObjectId, bool>,
    /// How many objects more (or less) than in `state`.
    counts: BTreeMap<&'a Collection, i64>,
}

impl<'a> DryRun<'a> {
    fn has_collection(&self, collection: &Collection) -> bool {
        self.collections.get(collection).copied().unwrap_or_else(|| self.state.contains_key(collection))
    }

    fn has_object(&self, id: &ObjectId) -> bool {
        self.objects
            .get(id)
            .copied()
            .unwrap_or_else(|| self.state.get(id.collection()).is_some_and(|objects| objects.contains_key(id.name())))
    }

    fn count(&self, collection: &Collection) -> i64 {
        let before = self.state.get(collection).map_or(0, |objects| objects.len() as i64);
        before + self.counts.get(collection).copied().unwrap_or(0)
    }

    fn create(&mut self, id: &'a ObjectId) -> Result<()> {
        if self.has_object(id) {
            return Ok(());
        }
        if !self.has_collection(id.collection()) {
            return Err(Error::NoCollection { collection: id.collection().to_string() });
        }
        self.objects.insert(id, true);
        *self.counts.entry(id.collection()).or_default() += 1;
        Ok(())
    }

    fn remove(&mut self, id: &'a ObjectId) {
        if self.has_object(id) {
            self.objects.insert(id, false);
            *self.counts.entry(id.collection()).or_default() -= 1;
        }
    }

    fn source(&self, id: &ObjectId) -> Result<()> {
        if self.has_object(id) { Ok(()) } else { Err(Error::NoObject { object: id.to_string() }) }
    }

    fn op(&mut self, op: &'a Op) -> Result<()> {
        match op {
            Op::CreateCollection(collection) => {
                self.collections.insert(collection, true);
            }
            Op::RemoveCollection(collection) => {
                if self.count(collection) != 0 {
                    return Err(Error::NotEmpty { collection: collection.to_string() });
                }
                self.collections.insert(collection, false);
            }
            Op::Object(id, Change::Remove) => self.remove(id),
            Op::Object(id, Change::CloneTo { to } | Change::CloneRange { to, .. }) => {
                self.source(id)?;
                self.create(to)?;
            }
            Op::Object(id, Change::Rename { to }) => {
                self.source(id)?;
                if self.has_object(to) {
                    return Err(Error::Invalid { what: "rename", why: format!("object {to} exists") });
                }
                self.remove(id);
                self.create(to)?;
            }
            Op::Object(id, change) if change.creates() => self.create(id)?,
            Op::Object(..) => {}
        }
        Ok(())
    }
}

/// Whether `ops` find the names that they need in `state`.
pub fn try_names(state: &Collections, ops: &[Op]) -> Result<()> {
    let mut run = DryRun { state, collections: BTreeMap::new(), objects: BTreeMap::new(), counts: BTreeMap::new() };
    ops.iter().try_for_each(|op| run.op(op))
}
