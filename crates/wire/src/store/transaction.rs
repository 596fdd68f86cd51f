//! Transactions as messages and back.
//!
//! Invariants:
//! 1. Each object stands in the message once; guards and steps name it by its place.
//! 2. What a message names by its place is looked up before it is used.

use std::collections::HashMap;

use esker_store::{Change, Collection, Compare, Compression, Condition, Guard, ObjectId, Op, Transaction, limits};

use super::object::{decode_object, encode_object};
use crate::durability::{decode_durability, encode_durability};
use crate::error::at_most;
use crate::proto::store as proto;
use crate::{Error, Result};

/// The objects that a message lists while it is made.
#[derive(Default)]
struct Listing {
    all: Vec<proto::ObjectId>,
    places: HashMap<ObjectId, u32>,
}

impl Listing {
    fn place(&mut self, id: &ObjectId) -> u32 {
        if let Some(place) = self.places.get(id) {
            return *place;
        }
        // Fewer than TRANSACTION_OPS_MAX steps and guards, twice.
        let place = self.all.len() as u32;
        self.all.push(encode_object(id));
        self.places.insert(id.clone(), place);
        place
    }
}

/// The objects that a message lists, looked up by their place.
struct Listed(Vec<ObjectId>);

impl Listed {
    fn at(&self, field: &'static str, place: u32) -> Result<ObjectId> {
        let found = self.0.get(place as usize);
        let why = || format!("object {place} of {}", self.0.len());
        found.cloned().ok_or_else(|| Error::malformed(field, why()))
    }
}

/// A transaction. That it is to be applied once, and what is done where the store is busy, concern the store on this
/// side and are left out.
pub fn encode_transaction(txn: Transaction) -> proto::SubmitRequest {
    let mut listing = Listing::default();
    let guard = |guard: Guard| proto::Guard {
        object: listing.place(&guard.object),
        condition: Some(encode_condition(guard.condition)),
    };
    let guards = txn.guards.into_iter().map(guard).collect();
    let ops = txn.ops.into_iter().map(|op| encode_op(op, &mut listing)).collect();
    let (applied_only, always) = encode_durability(txn.durability);
    proto::SubmitRequest {
        objects: listing.all,
        guards,
        ops,
        applied_only,
        always,
        compression: encode_compression(txn.compression).into(),
        gives_back: txn.gives_back,
    }
}

/// A transaction; [`Transaction::check`] is the store's to call.
///
/// # Errors
/// [`Error::TooMany`] above [`limits::TRANSACTION_OPS_MAX`] guards or steps; [`Error::Malformed`] if a guard or a step
/// says nothing or names an object that is not listed, and if `applied_only` and `always` are both set.
pub fn decode_transaction(message: proto::SubmitRequest) -> Result<Transaction> {
    const LIMIT: (&str, usize) = ("TRANSACTION_OPS_MAX", limits::TRANSACTION_OPS_MAX);
    at_most("SubmitRequest.guards", message.guards.len(), LIMIT.0, LIMIT.1)?;
    at_most("SubmitRequest.ops", message.ops.len(), LIMIT.0, LIMIT.1)?;
    let compression = decode_compression(message.compression());
    let durability = decode_durability("SubmitRequest.always", message.applied_only, message.always)?;
    let mut txn = Transaction { gives_back: message.gives_back, ..Transaction::with(durability).compress(compression) };
    let object = |one| decode_object("SubmitRequest.objects", Some(one));
    let listed = Listed(message.objects.into_iter().map(object).collect::<Result<_>>()?);
    for guard in message.guards {
        let condition = guard.condition.ok_or_else(|| Error::malformed("Guard.condition", "it has no condition"))?;
        let object = listed.at("Guard.object", guard.object)?;
        txn.guards.push(Guard { object, condition: decode_condition(condition)? });
    }
    for op in message.ops {
        txn.ops.push(decode_op(op, &listed)?);
    }
    Ok(txn)
}

fn encode_compression(compression: Compression) -> proto::Compression {
    match compression {
        Compression::None => proto::Compression::None,
        Compression::Lz4 => proto::Compression::Lz4,
        Compression::Zstd => proto::Compression::Zstd,
    }
}

/// A hint: one that is not known here is none, as its message says by its default.
fn decode_compression(compression: proto::Compression) -> Compression {
    match compression {
        proto::Compression::None => Compression::None,
        proto::Compression::Lz4 => Compression::Lz4,
        proto::Compression::Zstd => Compression::Zstd,
    }
}

fn encode_compare(compare: Compare) -> i32 {
    let compare = match compare {
        Compare::Less => proto::Compare::Less,
        Compare::LessOrEqual => proto::Compare::LessOrEqual,
        Compare::Equal => proto::Compare::Equal,
        Compare::GreaterOrEqual => proto::Compare::GreaterOrEqual,
        Compare::Greater => proto::Compare::Greater,
    };
    compare.into()
}

fn decode_compare(number: i32) -> Result<Compare> {
    match proto::Compare::try_from(number) {
        Ok(proto::Compare::Equal) => Ok(Compare::Equal),
        Ok(proto::Compare::Less) => Ok(Compare::Less),
        Ok(proto::Compare::LessOrEqual) => Ok(Compare::LessOrEqual),
        Ok(proto::Compare::GreaterOrEqual) => Ok(Compare::GreaterOrEqual),
        Ok(proto::Compare::Greater) => Ok(Compare::Greater),
        Err(_) => Err(Error::malformed("XattrCompare.compare", format!("comparison {number} is not known"))),
    }
}

fn encode_condition(condition: Condition) -> proto::guard::Condition {
    use proto::guard::Condition as Is;
    match condition {
        Condition::Exists => Is::Exists(proto::Nothing {}),
        Condition::Absent => Is::Absent(proto::Nothing {}),
        Condition::XattrEquals { name, value } => Is::XattrEquals(proto::Pair { key: name, value }),
        Condition::XattrAbsent { name } => Is::XattrAbsent(name),
        Condition::XattrCompare { name, compare, value, absent_holds } => {
            Is::XattrCompare(proto::XattrCompare { name, compare: encode_compare(compare), value, absent_holds })
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

fn decode_condition(message: proto::guard::Condition) -> Result<Condition> {
    use proto::guard::Condition as Is;
    Ok(match message {
        Is::Exists(_) => Condition::Exists,
        Is::Absent(_) => Condition::Absent,
        Is::XattrEquals(pair) => Condition::XattrEquals { name: pair.key, value: pair.value },
        Is::XattrAbsent(name) => Condition::XattrAbsent { name },
        Is::XattrCompare(message) => {
            let (name, value, absent_holds) = (message.name, message.value, message.absent_holds);
            Condition::XattrCompare { name, compare: decode_compare(message.compare)?, value, absent_holds }
        }
        Is::OmapAbsent(key) => Condition::OmapAbsent { key },
        Is::OmapPresent(key) => Condition::OmapPresent { key },
        Is::OmapEquals(pair) => Condition::OmapEquals { key: pair.key, value: pair.value },
        Is::SlotAbsent(index) => Condition::SlotAbsent { index },
        Is::SlotPresent(index) => Condition::SlotPresent { index },
        Is::SlotEquals(slot) => Condition::SlotEquals { index: slot.index, value: slot.value },
        Is::SizeEquals(size) => Condition::SizeEquals { size },
    })
}

fn encode_op(op: Op, listing: &mut Listing) -> proto::Op {
    use proto::op::Op as Does;
    let (object, does) = match op {
        Op::CreateCollection(collection) => (0, Does::CreateCollection(collection.name().clone())),
        Op::RemoveCollection(collection) => (0, Does::RemoveCollection(collection.name().clone())),
        Op::Object(object, change) => (listing.place(&object), encode_change(change, listing)),
    };
    proto::Op { object, op: Some(does) }
}

fn decode_op(message: proto::Op, listed: &Listed) -> Result<Op> {
    use proto::op::Op as Does;
    let place = message.object;
    let of = |change| Ok(Op::Object(listed.at("Op.object", place)?, change));
    match message.op.ok_or_else(|| Error::malformed("Op.op", "it is empty"))? {
        Does::CreateCollection(name) => Ok(Op::CreateCollection(Collection::new(name))),
        Does::RemoveCollection(name) => Ok(Op::RemoveCollection(Collection::new(name))),
        Does::Touch(_) => of(Change::Touch),
        Does::Write(write) => of(Change::Write { offset: write.offset, data: write.data }),
        Does::Zero(span) => of(Change::Zero { offset: span.offset, len: span.len }),
        Does::Truncate(size) => of(Change::Truncate { size }),
        Does::Remove(_) => of(Change::Remove),
        Does::XattrSet(pair) => of(Change::XattrSet { name: pair.key, value: pair.value }),
        Does::XattrRemove(name) => of(Change::XattrRemove { name }),
        Does::OmapSet(pair) => of(Change::OmapSet { key: pair.key, value: pair.value }),
        Does::OmapRemove(key) => of(Change::OmapRemove { key }),
        Does::OmapRemoveRange(range) => of(Change::OmapRemoveRange { start: range.start, end: range.end }),
        Does::OmapClear(_) => of(Change::OmapClear),
        Does::SlotSet(slot) => of(Change::SlotSet { index: slot.index, value: slot.value }),
        Does::SlotRemove(index) => of(Change::SlotRemove { index }),
        Does::SlotRemoveRange(range) => of(Change::SlotRemoveRange { start: range.start, end: range.end }),
        Does::CloneTo(to) => of(Change::CloneTo { to: listed.at("Op.clone_to", to)? }),
        Does::CloneRange(range) => of(Change::CloneRange {
            to: listed.at("CloneRange.to", range.to)?,
            from_offset: range.from_offset,
            len: range.len,
            to_offset: range.to_offset,
        }),
        Does::Rename(to) => of(Change::Rename { to: listed.at("Op.rename", to)? }),
    }
}

fn encode_change(change: Change, listing: &mut Listing) -> proto::op::Op {
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
        Change::CloneTo { to } => Does::CloneTo(listing.place(&to)),
        Change::CloneRange { to, from_offset, len, to_offset } => {
            Does::CloneRange(proto::CloneRange { to: listing.place(&to), from_offset, len, to_offset })
        }
        Change::Rename { to } => Does::Rename(listing.place(&to)),
    }
}
