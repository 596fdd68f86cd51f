//! Transactions as messages.
//!
//! Invariant: each object stands in the message once; guards and steps name it by its place.

use std::collections::HashMap;

use esker_store::{Change, Compare, Compression, Condition, Durability, ObjectId, Op, Transaction};

use crate::proto::store as proto;

/// An object by its name.
pub(crate) fn object(object: &ObjectId) -> proto::ObjectId {
    proto::ObjectId { collection: object.collection().name().clone(), name: object.name().clone() }
}

/// The objects of a message.
#[derive(Default)]
struct Listed {
    all: Vec<proto::ObjectId>,
    places: HashMap<ObjectId, u32>,
}

impl Listed {
    fn place(&mut self, id: &ObjectId) -> u32 {
        if let Some(place) = self.places.get(id) {
            return *place;
        }
        // Fewer than TRANSACTION_OPS_MAX steps and guards, twice.
        let place = self.all.len() as u32;
        self.all.push(object(id));
        self.places.insert(id.clone(), place);
        place
    }
}

/// A transaction.
pub(crate) fn transaction(txn: Transaction) -> proto::SubmitRequest {
    let mut listed = Listed::default();
    let guards = txn
        .guards
        .into_iter()
        .map(|guard| proto::Guard { object: listed.place(&guard.object), condition: Some(condition(guard.condition)) });
    let guards = guards.collect();
    let ops = txn.ops.into_iter().map(|op| match op {
        Op::CreateCollection(collection) => {
            proto::Op { object: 0, op: Some(proto::op::Op::CreateCollection(collection.name().clone())) }
        }
        Op::RemoveCollection(collection) => {
            proto::Op { object: 0, op: Some(proto::op::Op::RemoveCollection(collection.name().clone())) }
        }
        Op::Object(object, change) => {
            proto::Op { object: listed.place(&object), op: Some(self::change(change, &mut listed)) }
        }
    });
    let ops = ops.collect();
    let compression = match txn.compression {
        Compression::None => proto::Compression::None,
        Compression::Lz4 => proto::Compression::Lz4,
        Compression::Zstd => proto::Compression::Zstd,
    };
    proto::SubmitRequest {
        objects: listed.all,
        guards,
        ops,
        applied_only: txn.durability == Durability::Applied,
        always: txn.durability == Durability::Always,
        compression: compression.into(),
        gives_back: txn.gives_back,
    }
}

fn condition(condition: Condition) -> proto::guard::Condition {
    use proto::guard::Condition as Is;
    match condition {
        Condition::Exists => Is::Exists(proto::Nothing {}),
        Condition::Absent => Is::Absent(proto::Nothing {}),
        Condition::XattrEquals { name, value } => Is::XattrEquals(proto::Pair { key: name, value }),
        Condition::XattrAbsent { name } => Is::XattrAbsent(name),
        Condition::XattrCompare { name, compare, value, absent_holds } => {
            let compare = match compare {
                Compare::Less => proto::Compare::Less,
                Compare::LessOrEqual => proto::Compare::LessOrEqual,
                Compare::Equal => proto::Compare::Equal,
                Compare::GreaterOrEqual => proto::Compare::GreaterOrEqual,
                Compare::Greater => proto::Compare::Greater,
            };
            Is::XattrCompare(proto::XattrCompare { name, compare: compare.into(), value, absent_holds })
        }
        Condition::OmapAbsent { key } => Is::OmapAbsent(key),
        Condition::OmapPresent { key } => Is::OmapPresent(key),
        Condition::OmapEquals { key, value } => Is::OmapEquals(proto::Pair { key, value }),
        Condition::SlotAbsent { index } => Is::SlotAbsent(index),
        Condition::SlotPresent { index } => Is::SlotPresent(index),
        Condition::SlotEquals { index, value } => Is::SlotEquals(proto::Slot { index, value }),
        Condition::SizeEquals { size } => Is::SizeEquals(size),
    }
}

fn change(change: Change, listed: &mut Listed) -> proto::op::Op {
    use proto::op::Op as Does;
    match change {
        Change::Touch => Does::Touch(proto::Nothing {}),
        Change::Write { offset, data } => Does::Write(proto::Write { offset, data }),
        Change::Zero { offset, len } => Does::Zero(proto::Span { offset, len }),
        Change::Truncate { size } => Does::Truncate(size),
        Change::Remove => Does::Remove(proto::Nothing {}),
        Change::XattrSet { name, value } => Does::XattrSet(proto::Pair { key: name, value }),
        Change::XattrRemove { name } => Does::XattrRemove(name),
        Change::OmapSet { key, value } => Does::OmapSet(proto::Pair { key, value }),
        Change::OmapRemove { key } => Does::OmapRemove(key),
        Change::OmapRemoveRange { start, end } => Does::OmapRemoveRange(proto::KeyRange { start, end }),
        Change::OmapClear => Does::OmapClear(proto::Nothing {}),
        Change::SlotSet { index, value } => Does::SlotSet(proto::Slot { index, value }),
        Change::SlotRemove { index } => Does::SlotRemove(index),
        Change::SlotRemoveRange { start, end } => Does::SlotRemoveRange(proto::SlotRange { start, end }),
        Change::CloneTo { to } => Does::CloneTo(listed.place(&to)),
        Change::CloneRange { to, from_offset, len, to_offset } => {
            Does::CloneRange(proto::CloneRange { to: listed.place(&to), from_offset, len, to_offset })
        }
        Change::Rename { to } => Does::Rename(listed.place(&to)),
    }
}
