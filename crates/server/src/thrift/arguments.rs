//! What of a call's arguments its method may want: kept as places in the message while that is gone through.
//!
//! [`Event`]s → [`Arguments::take`] → strings and numbers by field, keys and pairs of a list
//!
//! Invariant: at most [`BATCH_MAX`] keys or pairs are kept, and one number or string per field; what no method has is
//! passed over.

use super::shape::ValueKind;
use super::walk::{Event, Slice};

/// Most keys, or pairs of key and value, of one call.
pub const BATCH_MAX: usize = 4_096;
/// Fields that methods have, from 1 on.
const FIELDS: usize = 3;
/// Levels: of the arguments, of a list in them, and of a struct in that.
const ARGUMENTS: usize = 1;
const LIST: usize = 2;
const PAIR: usize = 3;

/// A pair, as far as it is there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Pair {
    pub(super) key: Option<Slice>,
    pub(super) value: Option<Slice>,
}

/// What was kept.
#[derive(Debug, Default)]
pub(super) struct Arguments {
    texts: [Option<Slice>; FIELDS],
    numbers: [Option<i64>; FIELDS],
    list: Option<List>,
    /// The field that comes next, in the arguments and in a pair.
    field: i16,
    part: i16,
}

/// The list of the first field.
#[derive(Debug, Default)]
pub(super) struct List {
    /// What its elements are; `None`: it has none.
    kind: Option<ValueKind>,
    pub(super) texts: Vec<Slice>,
    pub(super) pairs: Vec<Pair>,
    /// How many there were, with those that were not kept.
    pub(super) count: usize,
}

impl Arguments {
    /// Takes the next event, which has led to this depth.
    pub(super) fn take(&mut self, event: Event, depth: usize) {
        let at = self.field.checked_sub(1).and_then(|at| usize::try_from(at).ok()).filter(|at| *at < FIELDS);
        match (event, depth) {
            // The value of the field is a level of its own.
            (Event::Field(id), LIST) => {
                self.field = id;
                if id == 1 {
                    // Of a field that comes twice the last counts.
                    self.list = None;
                }
            }
            (Event::Field(id), depth) if depth == PAIR + 1 => self.part = id,
            (Event::Text(slice), ARGUMENTS) => at.into_iter().for_each(|at| self.texts[at] = Some(slice)),
            (Event::Number(number), ARGUMENTS) => at.into_iter().for_each(|at| self.numbers[at] = Some(number)),
            (Event::Elements(kind), LIST) if self.field == 1 => self.list = Some(List { kind, ..List::default() }),
            (Event::Text(slice), LIST) => {
                let list = self.list();
                list.into_iter().for_each(|list| list.add(|list| list.texts.push(slice)));
            }
            (Event::Struct, PAIR) => {
                self.part = 0;
                let list = self.list();
                list.into_iter().for_each(|list| list.add(|list| list.pairs.push(Pair::default())));
            }
            (Event::Text(slice), PAIR) => {
                let part = self.part;
                let Some(list) = self.list().filter(|list| list.count <= BATCH_MAX) else { return };
                match (list.pairs.last_mut(), part) {
                    (Some(pair), 1) => pair.key = Some(slice),
                    (Some(pair), 2) => pair.value = Some(slice),
                    _ => {}
                }
            }
            _ => {}
        }
    }

    /// The list, if that is what is gone through.
    fn list(&mut self) -> Option<&mut List> {
        if self.field == 1 { self.list.as_mut() } else { None }
    }

    /// The string of a field, counted from 1.
    pub(super) fn text(&self, field: usize) -> Option<Slice> {
        self.texts.get(field - 1).copied().flatten()
    }

    /// The number of a field.
    pub(super) fn number(&self, field: usize) -> Option<i64> {
        self.numbers.get(field - 1).copied().flatten()
    }

    /// The list of the first field.
    pub(super) fn first_list(&self) -> Option<&List> {
        self.list.as_ref()
    }
}

impl List {
    /// Whether all its elements are of this kind.
    pub(super) fn is_of(&self, kind: ValueKind) -> bool {
        self.kind.is_none_or(|own| own == kind)
    }

    fn add(&mut self, add: impl FnOnce(&mut Self)) {
        self.count += 1;
        if self.count <= BATCH_MAX {
            add(self);
        }
    }
}
