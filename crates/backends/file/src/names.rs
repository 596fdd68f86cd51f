//! The dry run of a transaction over names: whether each operation finds the collections and objects it needs.
//!
//! Once limits and guards hold, only names can refuse a transaction. They are tried first, against the table and what
//! the operations before did, so that nothing of a refused transaction is applied or journalled.
//!
//! Invariant: the dry run changes nothing.

use std::collections::HashMap;

use esker_store::{Change, Collection, Error, ObjectId, Op, Result};

use crate::table::{self, Read};

#[derive(Clone, Copy, Default)]
struct Counts {
    made: u64,
    removed: u64,
}

struct DryRun<'a, T> {
    table: &'a T,
    collections: HashMap<&'a Collection, bool>,
    objects: HashMap<&'a ObjectId, bool>,
    counts: HashMap<&'a Collection, Counts>,
}

/// Whether `ops` find the names that they need.
///
/// # Errors
/// Those of a refused transaction, and those of reading.
pub fn try_names<T: Read>(table: &T, ops: &[Op]) -> Result<()> {
    let mut run = DryRun { table, collections: HashMap::new(), objects: HashMap::new(), counts: HashMap::new() };
    ops.iter().try_for_each(|op| run.op(op))
}

impl<'a, T: Read> DryRun<'a, T> {
    fn has_collection(&mut self, collection: &'a Collection) -> Result<bool> {
        if let Some(has) = self.collections.get(collection) {
            return Ok(*has);
        }
        let has = table::has_collection(self.table, collection)?;
        self.collections.insert(collection, has);
        Ok(has)
    }

    fn has_object(&mut self, id: &'a ObjectId) -> Result<bool> {
        if let Some(has) = self.objects.get(id) {
            return Ok(*has);
        }
        let has = table::head(self.table, id)?.is_some();
        self.objects.insert(id, has);
        Ok(has)
    }

    fn is_empty(&self, collection: &Collection) -> Result<bool> {
        let Counts { made, removed } = self.counts.get(collection).copied().unwrap_or_default();
        // More than were removed need not be counted: the collection is not empty then.
        let before = table::count_objects(self.table, collection, removed.saturating_add(1))?;
        Ok(before + made == removed)
    }

    fn create(&mut self, id: &'a ObjectId) -> Result<()> {
        if self.has_object(id)? {
            return Ok(());
        }
        if !self.has_collection(id.collection())? {
            return Err(Error::NoCollection { collection: id.collection().to_string() });
        }
        self.objects.insert(id, true);
        self.counts.entry(id.collection()).or_default().made += 1;
        Ok(())
    }

    fn remove(&mut self, id: &'a ObjectId) -> Result<()> {
        if self.has_object(id)? {
            self.objects.insert(id, false);
            self.counts.entry(id.collection()).or_default().removed += 1;
        }
        Ok(())
    }

    fn source(&mut self, id: &'a ObjectId) -> Result<()> {
        if self.has_object(id)? { Ok(()) } else { Err(Error::NoObject { object: id.to_string() }) }
    }

    fn op(&mut self, op: &'a Op) -> Result<()> {
        match op {
            Op::CreateCollection(collection) => {
                self.collections.insert(collection, true);
            }
            Op::RemoveCollection(collection) => {
                if !self.is_empty(collection)? {
                    return Err(Error::NotEmpty { collection: collection.to_string() });
                }
                self.collections.insert(collection, false);
            }
            Op::Object(id, Change::Remove) => self.remove(id)?,
            Op::Object(id, Change::CloneTo { to } | Change::CloneRange { to, .. }) => {
                self.source(id)?;
                self.create(to)?;
            }
            Op::Object(id, Change::Rename { to }) => {
                self.source(id)?;
                if self.has_object(to)? {
                    return Err(Error::Invalid { what: "rename", why: format!("object {to} exists") });
                }
                self.remove(id)?;
                self.create(to)?;
            }
            Op::Object(id, change) if change.creates() => self.create(id)?,
            Op::Object(..) => {}
        }
        Ok(())
    }
}
