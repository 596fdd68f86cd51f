//! [`Model`]: what a store should hold, kept in the plainest way; a transaction is tried on a copy.
//!
//! Invariant: a refused transaction leaves the model as it was, because the copy is thrown away.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::object::{Object, holds};
use crate::{Change, Collection, Error, ObjectId, Op, Transaction};

/// What a store should hold. Cloning is cheap: objects are shared until changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Model {
    pub(super) collections: BTreeSet<Collection>,
    pub(super) objects: BTreeMap<ObjectId, Arc<Object>>,
}

impl Model {
    /// The model of an empty store.
    pub fn new() -> Self {
        Self::default()
    }

    /// Applies a transaction, or says why it is refused and changes nothing.
    ///
    /// # Errors
    /// Those that a store with every capability and endless room gives.
    pub fn apply(&mut self, txn: &Transaction) -> Result<(), Error> {
        txn.check()?;
        for (index, guard) in txn.guards.iter().enumerate() {
            if !holds(&guard.condition, self.objects.get(&guard.object).map(|object| &**object)) {
                return Err(Error::GuardFailed { index });
            }
        }
        let mut tried = self.clone();
        for op in &txn.ops {
            tried.op(op)?;
        }
        *self = tried;
        Ok(())
    }

    /// Payload bytes held, at most: bytes count in whole pages of 4 KiB.
    pub fn live_bytes(&self) -> u64 {
        self.objects.values().map(|object| object.live_bytes()).sum()
    }

    /// The objects that exist, in order.
    pub fn objects(&self) -> impl Iterator<Item = &ObjectId> {
        self.objects.keys()
    }

    /// The collections that exist, in order.
    pub fn collections(&self) -> impl Iterator<Item = &Collection> {
        self.collections.iter()
    }

    /// One operation. Where it is refused, those before it stay: for copies that are thrown away.
    pub(super) fn op(&mut self, op: &Op) -> Result<(), Error> {
        match op {
            Op::CreateCollection(collection) => {
                self.collections.insert(collection.clone());
            }
            Op::RemoveCollection(collection) => {
                if self.objects.keys().any(|id| id.collection() == collection) {
                    return Err(Error::NotEmpty { collection: collection.to_string() });
                }
                self.collections.remove(collection);
            }
            Op::Object(id, change) => self.change(id, change)?,
        }
        Ok(())
    }

    fn change(&mut self, id: &ObjectId, change: &Change) -> Result<(), Error> {
        match change {
            Change::Remove => {
                self.objects.remove(id);
            }
            Change::CloneTo { to } => {
                let copy = Object::clone(&*self.source(id)?);
                *self.make(to)? = copy;
            }
            Change::CloneRange { to, from_offset, len, to_offset } => {
                let source = self.source(id)?;
                self.make(to)?.copy_range(&source, *from_offset, *len, *to_offset);
            }
            Change::Rename { to } => {
                let object = self.source(id)?;
                if self.objects.contains_key(to) {
                    return Err(Error::Invalid { what: "rename", why: format!("object {to} exists") });
                }
                self.make(to)?;
                self.objects.remove(id);
                self.objects.insert(to.clone(), object);
            }
            Change::XattrRemove { .. }
            | Change::OmapRemove { .. }
            | Change::OmapRemoveRange { .. }
            | Change::OmapClear
            | Change::SlotRemove { .. }
            | Change::SlotRemoveRange { .. }
            | Change::Truncate { size: 0 } => {
                if self.objects.contains_key(id) {
                    self.make(id)?.apply(change);
                }
            }
            Change::Touch
            | Change::Write { .. }
            | Change::Zero { .. }
            | Change::Truncate { .. }
            | Change::XattrSet { .. }
            | Change::OmapSet { .. }
            | Change::SlotSet { .. } => self.make(id)?.apply(change),
        }
        Ok(())
    }

    fn source(&self, id: &ObjectId) -> Result<Arc<Object>, Error> {
        self.objects.get(id).cloned().ok_or_else(|| Error::NoObject { object: id.to_string() })
    }

    fn make(&mut self, id: &ObjectId) -> Result<&mut Object, Error> {
        if !self.collections.contains(id.collection()) {
            return Err(Error::NoCollection { collection: id.collection().to_string() });
        }
        Ok(Arc::make_mut(self.objects.entry(id.clone()).or_default()))
    }
}

/// Whether two errors are the same kind and blame the same thing.
pub fn same_error(a: &Error, b: &Error) -> bool {
    match (a, b) {
        (Error::GuardFailed { index: a }, Error::GuardFailed { index: b }) => a == b,
        (Error::NoObject { object: a }, Error::NoObject { object: b }) => a == b,
        (Error::NoCollection { collection: a }, Error::NoCollection { collection: b })
        | (Error::NotEmpty { collection: a }, Error::NotEmpty { collection: b }) => a == b,
        (Error::TooLarge { limit: a, .. }, Error::TooLarge { limit: b, .. }) => a == b,
        _ => std::mem::discriminant(a) == std::mem::discriminant(b),
    }
}
