//! From changes to planned operations.

use esker_store::{Change, Collection, ObjectId, Op};

use super::{Body, Key, Planned, Ready};
use crate::format::{Kind, encode_name};

pub(super) fn made_clone(target: usize, to: usize, object: u64) -> Planned<'static> {
    Planned { kind: Kind::Clone, target, to, object, argument: 0, key: Key::Given(&[]), body: Body::Short(&[]) }
}

pub(super) fn collection_op(kind: Kind, collection: &Collection) -> Planned<'_> {
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

pub(super) fn create_object(target: usize, number: u64, id: &ObjectId) -> Planned<'static> {
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
pub(super) fn destination(change: &Change) -> Option<&ObjectId> {
    match change {
        Change::CloneTo { to } | Change::CloneRange { to, .. } | Change::Rename { to } => Some(to),
        _ => None,
    }
}
