//! Rows with their metadata: reading them, and the mutations that take a row from one state to the next.
//!
//! ```text
//! absent ──prepare──▶ prepared ──forward──▶ committed ──prepare──▶ prepared, with before-image ──back──▶ committed as before
//!            ◀──back──                                └─prepare──▶ deleted, with before-image ──forward──▶ gone
//! ```
//!
//! Invariants:
//! 1. Every mutation has a condition on the transaction that the row is of, and once prepared on the state too: none is
//!    made twice, or on what another wrote.
//! 2. Going back leaves the before-images as they are, so that the index of a before-image finds a row as long as its
//!    committed value stays the same.

use std::collections::BTreeMap;

use esker_map::{Change, Compare, Condition, Filter, Mutation, Record, Value};

use crate::layout::{self, COMMITTED_AT, ID, Layout, PREPARED_AT, STATE, State, VERSION, before};
use crate::{Error, Result};

/// What is committed under a key.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Image {
    /// `None`: written around transactions.
    pub id: Option<String>,
    pub version: i32,
    /// It was deleted.
    pub gone: bool,
    pub prepared_ms: Option<i64>,
    pub committed_ms: Option<i64>,
    /// The user's columns, in the layout's order.
    pub columns: Vec<Option<Value>>,
}

/// What tells a committed image from any other that stood, or stands later, under the same key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Identity {
    /// There is nothing, and as far as is known there never was.
    Absent,
    /// Written, or deleted, by this transaction.
    Of(Option<String>),
}

pub(crate) fn identity(image: Option<&Image>) -> Identity {
    image.map_or(Identity::Absent, |image| Identity::Of(image.id.clone()))
}

/// A row as it stands in the storage.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub state: State,
    /// As it is, or as it will be if it is prepared.
    pub image: Image,
    /// Of a prepared row: as it was; `None` if there was nothing.
    pub before: Option<Image>,
}

/// What a transaction does to a row.
#[derive(Clone, Debug, Default)]
pub(crate) struct Write {
    /// Removes it, or has removed it before it is put again.
    pub fresh: bool,
    /// Columns to set by number; `None`: the row is deleted.
    pub set: Option<BTreeMap<usize, Option<Value>>>,
}

impl Write {
    /// The columns afterwards; `None`: deleted.
    pub(crate) fn after(&self, layout: &Layout, image: Option<&Image>) -> Option<Vec<Option<Value>>> {
        let set = self.set.as_ref()?;
        let mut columns = match image {
            Some(image) if !image.gone && !self.fresh => image.columns.clone(),
            _ => vec![None; layout.columns.len()],
        };
        for (number, value) in set {
            columns[*number].clone_from(value);
        }
        Some(columns)
    }
}

fn number(record: &Record, name: &str) -> Option<i64> {
    match record.value(name) {
        Some(Value::BigInt(number)) => Some(*number),
        Some(Value::Int(number)) => Some((*number).into()),
        _ => None,
    }
}

impl Row {
    pub(crate) fn read(layout: &Layout, record: &Record) -> Result<Self> {
        let damaged = |why: String| Error::damaged(format!("row of table {}", layout.name), why);
        let image = |state: State, name: &dyn Fn(&str) -> String| Image {
            id: match record.value(&name(ID)) {
                Some(Value::Text(id)) => Some(id.clone()),
                _ => None,
            },
            version: number(record, &name(VERSION)).unwrap_or(0) as i32,
            gone: matches!(state, State::Gone | State::Deleted),
            prepared_ms: number(record, &name(PREPARED_AT)),
            committed_ms: number(record, &name(COMMITTED_AT)),
            columns: layout.columns.iter().map(|column| record.value(&name(column)).cloned()).collect(),
        };
        let state = |name: &str| -> Result<Option<State>> {
            let Some(number) = number(record, name) else { return Ok(None) };
            let state = State::from_number(number as i32).filter(|state| *state != State::Aborted);
            state.map(Some).ok_or_else(|| damaged(format!("{name} is {number}")))
        };
        // A row that was written around transactions has no state: it is as it is.
        let now = state(STATE)?.unwrap_or(State::Committed);
        let mut row = Self { state: now, image: image(now, &str::to_owned), before: None };
        if row.is_prepared() {
            if row.image.id.is_none() {
                return Err(damaged("it is prepared, and names no transaction".into()));
            }
            row.before = state(&before(STATE))?.map(|state| image(state, &before));
        }
        Ok(row)
    }

    pub(crate) fn is_prepared(&self) -> bool {
        matches!(self.state, State::Prepared | State::Deleted)
    }

    /// The row once its transaction has committed.
    pub(crate) fn forward(&self, committed_ms: i64) -> Image {
        let mut image = self.image.clone();
        image.committed_ms = Some(committed_ms);
        if image.gone {
            image.columns.iter_mut().for_each(|column| *column = None);
        }
        image
    }
}

fn text(value: &str) -> Option<Value> {
    Some(Value::from(value))
}

fn int(value: i32) -> Option<Value> {
    Some(Value::Int(value))
}

fn bigint(value: Option<i64>) -> Option<Value> {
    value.map(Value::BigInt)
}

fn mutation(layout: &Layout, key: &[Value], columns: Vec<(String, Option<Value>)>, condition: Condition) -> Mutation {
    let change = Change::Put { columns, expires_ms: None };
    Mutation { table: layout.name.clone(), key: layout.key_of(key), change, condition }
}

fn is(column: &str, value: Value) -> Filter {
    Filter::Compare(column.into(), Compare::Equal, value)
}

/// The row is still what it was found to be.
pub(crate) fn unchanged(image: Option<&Image>) -> Condition {
    match image.map(|image| &image.id) {
        None => Condition::NotExists,
        Some(Some(id)) => Condition::If(is(ID, Value::from(id.as_str()))),
        Some(None) => Condition::If(Filter::IsNull(ID.into())),
    }
}

fn prepared_by(id: &str, state: State) -> Condition {
    Condition::If(Filter::All(vec![is(ID, Value::from(id)), is(STATE, Value::Int(state as i32))]))
}

/// Sets what of the user's columns is not as it was.
fn differing(
    layout: &Layout,
    image: Option<&Image>,
    after: Vec<Option<Value>>,
    columns: &mut Vec<(String, Option<Value>)>,
) {
    for (number, value) in after.into_iter().enumerate() {
        let was = image.and_then(|image| image.columns[number].as_ref());
        if value.as_ref() != was {
            columns.push((layout.columns[number].clone(), value));
        }
    }
}

fn next_version(image: Option<&Image>) -> i32 {
    image.map_or(0, |image| image.version).wrapping_add(1)
}

/// Prepares a write on what was found, with the before-image.
pub(crate) fn prepare(
    layout: &Layout,
    key: &[Value],
    image: Option<&Image>,
    write: &Write,
    id: &str,
    now_ms: i64,
) -> Mutation {
    let after = write.after(layout, image);
    let state = if after.is_some() { State::Prepared } else { State::Deleted };
    let mut columns = vec![
        (ID.into(), text(id)),
        (VERSION.into(), int(next_version(image))),
        (STATE.into(), int(state as i32)),
        (PREPARED_AT.into(), bigint(Some(now_ms))),
        (COMMITTED_AT.into(), None),
    ];
    if let Some(image) = image {
        let state = if image.gone { State::Gone } else { State::Committed };
        columns.extend([
            (before(ID), image.id.as_deref().and_then(text)),
            (before(VERSION), int(image.version)),
            (before(STATE), int(state as i32)),
            (before(PREPARED_AT), bigint(image.prepared_ms)),
            (before(COMMITTED_AT), bigint(image.committed_ms)),
        ]);
        columns.extend(layout.columns.iter().zip(&image.columns).map(|(name, value)| (before(name), value.clone())));
    }
    if let Some(after) = after {
        differing(layout, image, after, &mut columns);
    }
    mutation(layout, key, columns, unchanged(image))
}

/// Writes a row as committed at once.
pub(crate) fn direct(
    layout: &Layout,
    key: &[Value],
    image: Option<&Image>,
    write: &Write,
    id: &str,
    now_ms: i64,
) -> Mutation {
    let after = write.after(layout, image);
    let state = if after.is_some() { State::Committed } else { State::Gone };
    let mut columns = vec![
        (ID.into(), text(id)),
        (VERSION.into(), int(next_version(image))),
        (STATE.into(), int(state as i32)),
        (PREPARED_AT.into(), bigint(Some(now_ms))),
        (COMMITTED_AT.into(), bigint(Some(now_ms))),
    ];
    let after = after.unwrap_or_else(|| vec![None; layout.columns.len()]);
    differing(layout, image, after, &mut columns);
    mutation(layout, key, columns, unchanged(image))
}

fn clear_before(layout: &Layout, columns: &mut Vec<(String, Option<Value>)>) {
    let metadata = [ID, VERSION, STATE, PREPARED_AT, COMMITTED_AT];
    let users = layout.columns.iter().map(String::as_str);
    columns.extend(metadata.into_iter().chain(users).map(|name| (layout::before(name), None)));
}

/// Makes a prepared row what its transaction committed.
pub(crate) fn forward(layout: &Layout, key: &[Value], id: &str, state: State, committed_ms: i64) -> Mutation {
    let next = if state == State::Deleted { State::Gone } else { State::Committed };
    let mut columns = vec![(STATE.into(), int(next as i32)), (COMMITTED_AT.into(), bigint(Some(committed_ms)))];
    clear_before(layout, &mut columns);
    if next == State::Gone {
        columns.extend(layout.columns.iter().map(|name| (name.clone(), None)));
    }
    mutation(layout, key, columns, prepared_by(id, state))
}

/// Makes a prepared row what it was before.
pub(crate) fn back(layout: &Layout, key: &[Value], id: &str, state: State, image: Option<&Image>) -> Mutation {
    let condition = prepared_by(id, state);
    let Some(image) = image else {
        return Mutation { condition, ..Mutation::delete(&layout.name, layout.key_of(key)) };
    };
    let was = if image.gone { State::Gone } else { State::Committed };
    let mut columns = vec![
        (ID.into(), image.id.as_deref().and_then(text)),
        (VERSION.into(), int(image.version)),
        (STATE.into(), int(was as i32)),
        (PREPARED_AT.into(), bigint(image.prepared_ms)),
        (COMMITTED_AT.into(), bigint(image.committed_ms)),
    ];
    columns.extend(layout.columns.iter().cloned().zip(image.columns.iter().cloned()));
    mutation(layout, key, columns, condition)
}

/// Does nothing, if the row is what it was found to be; to stand beside writes in one mutation.
pub(crate) fn look(layout: &Layout, key: &[Value], image: Option<&Image>) -> Mutation {
    let condition = unchanged(image);
    match image {
        Some(_) => mutation(layout, key, Vec::new(), condition),
        None => Mutation { condition, ..Mutation::delete(&layout.name, layout.key_of(key)) },
    }
}

/// Removes a row that has been gone for long.
pub(crate) fn bury(layout: &Layout, key: &[Value], image: &Image) -> Mutation {
    let filters = vec![
        image.id.as_deref().map_or_else(|| Filter::IsNull(ID.into()), |id| is(ID, Value::from(id))),
        is(STATE, Value::Int(State::Gone as i32)),
    ];
    let condition = Condition::If(Filter::All(filters));
    Mutation { condition, ..Mutation::delete(&layout.name, layout.key_of(key)) }
}
