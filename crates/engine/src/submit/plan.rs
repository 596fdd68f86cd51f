//! From a transaction's operations to what the record will hold.
//!
//! Invariant: planning changes nothing but the next number of objects.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use esker_store::{Change, Collection, Error, ObjectId, Op, Result, Transaction};
use parking_lot::RwLockWriteGuard;
use smallvec::SmallVec;

use crate::engine::Engine;
use crate::format::{
    Kind, OP_FLAG_APPLIED, OP_FLAG_COMPRESSED, OP_FLAG_SHORT, OpHeader, Payload, clone_range_payload, encode_name,
};
use crate::objects::{Names, ObjectState};

/// Key of a planned operation: the caller's, or made here.
pub(super) enum Key<'t> {
    Given(&'t [u8]),
    Made(SmallVec<[u8; 64]>),
}

impl Key<'_> {
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Given(bytes) => bytes,
            Self::Made(bytes) => bytes,
        }
    }
}

/// A payload as it will stand in the record, made before any lock is taken.
#[derive(Default)]
pub(super) struct Ready {
    pub sums: Payload,
    /// If that is worth it.
    pub packed: Option<Vec<u8>>,
}

/// Payload of a planned operation: the caller's and what was made of it before, or a number.
pub(super) enum Body<'t> {
    Given(&'t [u8], &'t Ready),
    Word([u8; 8]),
    Words([u8; 32]),
    Short(&'t [u8]),
}

impl Body<'_> {
    /// What is stored.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Given(_, Ready { packed: Some(packed), .. }) => packed,
            Self::Given(bytes, _) | Self::Short(bytes) => bytes,
            Self::Word(word) => word,
            Self::Words(words) => words,
        }
    }

    /// Length of what was given.
    pub fn raw_len(&self) -> u32 {
        if let Self::Given(bytes, _) = self { bytes.len() as u32 } else { self.bytes().len() as u32 }
    }

    pub fn is_packed(&self) -> bool {
        matches!(self, Self::Given(_, Ready { packed: Some(_), .. }))
    }
}

/// One operation that will go into the record.
pub(super) struct Planned<'t> {
    pub kind: Kind,
    pub target: usize,
    /// Where a clone or rename goes, else `target`.
    pub to: usize,
    pub object: u64,
    pub argument: u64,
    pub key: Key<'t>,
    pub body: Body<'t>,
}

/// Key and payload of an operation that has a short header beside others are at least so long, in bytes. A copy of it
/// takes eight bytes more: where all of a segment is such operations, cleaning that gains nothing is to be the
/// exception, as it is with long headers. A record of one operation gains its own header when it is copied.
const SHORT_BESIDE_BYTES_MIN: usize = 20;

impl Planned<'_> {
    /// The operation's header, but for what [`encode_operation`](crate::format::encode_operation) fills in; `alone`:
    /// its record holds no other.
    pub fn header(&self, applied_only: bool, alone: bool) -> OpHeader {
        let flag = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
        let short = alone || self.key.bytes().len() + self.body.bytes().len() >= SHORT_BESIDE_BYTES_MIN;
        let flags = flag(applied_only, OP_FLAG_APPLIED)
            | flag(self.body.is_packed(), OP_FLAG_COMPRESSED)
            | flag(short, OP_FLAG_SHORT);
        OpHeader {
            kind: self.kind,
            flags,
            key_len: 0,
            payload_len: 0,
            object: self.object,
            argument: self.argument,
            payload_crc: 0,
        }
    }

    /// What it takes in the record, in bytes.
    pub fn bytes(&self, alone: bool) -> u64 {
        self.header(false, alone).bytes_with(self.key.bytes().len(), self.body.bytes().len())
    }
}

/// The transaction's view of names that it changes itself.
#[derive(Default)]
struct NameChanges {
    collections: BTreeMap<Collection, bool>,
    objects: BTreeMap<Collection, i64>,
}

impl NameChanges {
    fn exists(&self, names: &Names, collection: &Collection) -> bool {
        self.collections.get(collection).copied().unwrap_or_else(|| names.contains_key(collection))
    }

    fn objects(&self, names: &Names, collection: &Collection) -> i64 {
        names.get(collection).map_or(0, |objects| objects.len() as i64)
            + self.objects.get(collection).copied().unwrap_or(0)
    }
}

impl Engine {
    /// What the record will hold: the operations that change something, with what they imply.
    pub(super) fn plan<'t>(
        &self,
        txn: &'t Transaction,
        ready: &'t [Ready],
        ids: &[&ObjectId],
        states: &[RwLockWriteGuard<'_, ObjectState>],
        names: &Names,
    ) -> Result<SmallVec<[Planned<'t>; 2]>> {
        let mut plan = SmallVec::with_capacity(txn.ops.len());
        let mut numbers: SmallVec<[u64; 4]> = states.iter().map(|state| state.number).collect();
        let mut changes = NameChanges::default();
        for (op, ready) in txn.ops.iter().zip(ready) {
            match op {
                Op::CreateCollection(collection) => {
                    if !changes.exists(names, collection) {
                        changes.collections.insert(collection.clone(), true);
                        plan.push(collection_op(Kind::CreateCollection, collection));
                    }
                }
                Op::RemoveCollection(collection) => {
                    if changes.exists(names, collection) {
                        if changes.objects(names, collection) != 0 {
                            return Err(Error::NotEmpty { collection: collection.to_string() });
                        }
                        changes.collections.insert(collection.clone(), false);
                        plan.push(collection_op(Kind::RemoveCollection, collection));
                    }
                }
                Op::Object(id, change) => {
                    let target = target_of(ids, id);
                    if let Some(to_id) = destination(change) {
                        if numbers[target] == 0 {
                            return Err(Error::NoObject { object: id.to_string() });
                        }
                        let to = target_of(ids, to_id);
                        if numbers[to] == 0 && !changes.exists(names, to_id.collection()) {
                            return Err(Error::NoCollection { collection: to_id.collection().to_string() });
                        }
                        self.plan_copy(&mut plan, &mut numbers, &mut changes, (target, id), (to, to_id), change)?;
                        continue;
                    }
                    if numbers[target] == 0 {
                        if !change.creates() {
                            continue;
                        }
                        if !changes.exists(names, id.collection()) {
                            return Err(Error::NoCollection { collection: id.collection().to_string() });
                        }
                        self.plan_creation(&mut plan, &mut numbers, &mut changes, target, id);
                    }
                    if matches!(change, Change::Remove) {
                        *changes.objects.entry(id.collection().clone()).or_default() -= 1;
                    }
                    if let Some(planned) = plan_change(target, numbers[target], change, ready) {
                        plan.push(planned);
                    }
                    if matches!(change, Change::Remove) {
                        numbers[target] = 0;
                    }
                }
            }
        }
        Ok(plan)
    }

    fn plan_creation(
        &self,
        plan: &mut SmallVec<[Planned<'_>; 2]>,
        numbers: &mut [u64],
        changes: &mut NameChanges,
        target: usize,
        id: &ObjectId,
    ) {
        *changes.objects.entry(id.collection().clone()).or_default() += 1;
        let number = self.next_number.fetch_add(1, Ordering::Relaxed);
        numbers[target] = number;
        plan.push(create_object(target, number, id));
    }

    /// Plans a clone, a clone-range or a rename of an object that is there.
    fn plan_copy(
        &self,
        plan: &mut SmallVec<[Planned<'_>; 2]>,
        numbers: &mut [u64],
        changes: &mut NameChanges,
        (from, from_id): (usize, &ObjectId),
        (to, to_id): (usize, &ObjectId),
        change: &Change,
    ) -> Result<()> {
        match change {
            Change::Rename { .. } => {
                if numbers[to] != 0 {
                    return Err(Error::Invalid { what: "rename", why: format!("object {to_id} exists") });
                }
                let key = Key::Made(encode_name(to_id));
                plan.push(Planned { kind: Kind::Rename, key, ..made_clone(from, to, numbers[from]) });
                *changes.objects.entry(from_id.collection().clone()).or_default() -= 1;
                *changes.objects.entry(to_id.collection().clone()).or_default() += 1;
                numbers[to] = std::mem::take(&mut numbers[from]);
            }
            // An object is its own copy already.
            Change::CloneTo { .. } if from == to => {}
            Change::CloneTo { .. } => {
                // The copy is a new object, whatever its name held before.
                if numbers[to] != 0 {
                    let object = numbers[to];
                    plan.push(Planned { kind: Kind::RemoveObject, ..made_clone(to, to, object) });
                    *changes.objects.entry(to_id.collection().clone()).or_default() -= 1;
                }
                self.plan_creation(plan, numbers, changes, to, to_id);
                let copy = Planned { argument: numbers[to], ..made_clone(from, to, numbers[from]) };
                plan.push(copy);
            }
            Change::CloneRange { from_offset, len, to_offset, .. } => {
                if numbers[to] == 0 {
                    self.plan_creation(plan, numbers, changes, to, to_id);
                }
                if *len > 0 {
                    let words = clone_range_payload([numbers[to], *from_offset, *len, *to_offset]);
                    let copy = made_clone(from, to, numbers[from]);
                    plan.push(Planned { kind: Kind::CloneRange, body: Body::Words(words), ..copy });
                }
            }
            _ => {}
        }
        Ok(())
    }
}

fn made_clone(target: usize, to: usize, object: u64) -> Planned<'static> {
    Planned { kind: Kind::Clone, target, to, object, argument: 0, key: Key::Given(&[]), body: Body::Short(&[]) }
}

fn collection_op(kind: Kind, collection: &Collection) -> Planned<'_> {
    Planned {
        kind,
        target: 0,
        to: 0,
        object: 0,
        argument: 0,
        key: Key::Given(collection.name()),
        body: Body::Short(&[]),
    }
}

fn create_object(target: usize, number: u64, id: &ObjectId) -> Planned<'static> {
    Planned {
        kind: Kind::CreateObject,
        target,
        to: target,
        object: number,
        argument: 0,
        key: Key::Made(encode_name(id)),
        body: Body::Short(&[]),
    }
}

pub(super) fn plan_change<'t>(target: usize, object: u64, change: &'t Change, ready: &'t Ready) -> Option<Planned<'t>> {
    let empty: &[u8] = &[];
    let (kind, argument, key, body) = match change {
        Change::Touch | Change::CloneTo { .. } | Change::CloneRange { .. } | Change::Rename { .. } => return None,
        Change::Write { data, .. } if data.is_empty() => return None,
        Change::Zero { len: 0, .. } => return None,
        Change::Write { offset, data } => (Kind::Write, *offset, empty, Body::Given(data, ready)),
        Change::Zero { offset, len } => (Kind::Zero, *offset, empty, Body::Word(len.to_le_bytes())),
        Change::Truncate { size } => (Kind::Truncate, *size, empty, Body::Short(empty)),
        Change::Remove => (Kind::RemoveObject, 0, empty, Body::Short(empty)),
        Change::XattrSet { name, value } => (Kind::XattrSet, 0, &name[..], Body::Given(value, ready)),
        Change::XattrRemove { name } => (Kind::XattrRemove, 0, &name[..], Body::Short(empty)),
        Change::OmapSet { key, value } => (Kind::OmapSet, 0, &key[..], Body::Given(value, ready)),
        Change::OmapRemove { key } => (Kind::OmapRemove, 0, &key[..], Body::Short(empty)),
        Change::OmapRemoveRange { start, end } => {
            let body = Body::Short(end.as_deref().unwrap_or(empty));
            (Kind::OmapRemoveRange, u64::from(end.is_some()), &start[..], body)
        }
        Change::OmapClear => (Kind::OmapClear, 0, empty, Body::Short(empty)),
        Change::SlotSet { index, value } => (Kind::SlotSet, *index, empty, Body::Given(value, ready)),
        Change::SlotRemove { index } => (Kind::SlotRemove, *index, empty, Body::Short(empty)),
        Change::SlotRemoveRange { start, end } => (Kind::SlotRemoveRange, *start, empty, Body::Word(end.to_le_bytes())),
    };
    Some(Planned { kind, target, to: target, object, argument, key: Key::Given(key), body })
}

/// Whether the operation frees space and takes none but its own record: these go on when the device is full.
pub(super) fn takes_away(op: &Op) -> bool {
    match op {
        Op::CreateCollection(_) => false,
        Op::RemoveCollection(_) => true,
        Op::Object(_, change) => matches!(
            change,
            Change::Remove
                | Change::Truncate { .. }
                | Change::Zero { .. }
                | Change::XattrRemove { .. }
                | Change::OmapRemove { .. }
                | Change::OmapRemoveRange { .. }
                | Change::OmapClear
                | Change::SlotRemove { .. }
                | Change::SlotRemoveRange { .. }
        ),
    }
}

/// Where a clone, clone-range or rename goes.
fn destination(change: &Change) -> Option<&ObjectId> {
    match change {
        Change::CloneTo { to } | Change::CloneRange { to, .. } | Change::Rename { to } => Some(to),
        _ => None,
    }
}

/// The objects of a transaction, in order, each once.
pub(super) fn target_ids(txn: &Transaction) -> SmallVec<[&ObjectId; 4]> {
    let mut ids: SmallVec<[&ObjectId; 4]> = SmallVec::new();
    let mut note = |id| {
        // Mostly it is one of the last two.
        if !ids.iter().rev().take(2).any(|last| *last == id) {
            ids.push(id);
        }
    };
    txn.guards.iter().for_each(|guard| note(&guard.object));
    for op in &txn.ops {
        if let Op::Object(id, change) = op {
            note(id);
            if let Some(to) = destination(change) {
                note(to);
            }
        }
    }
    if ids.len() > 1 {
        ids.sort_unstable();
        ids.dedup();
    }
    ids
}

pub(super) fn target_of(ids: &[&ObjectId], id: &ObjectId) -> usize {
    if ids.len() == 1 { 0 } else { ids.binary_search(&id).expect("every object of the transaction is a target") }
}
