//! Guards: whether what a transaction relies on holds, as far as memory tells.
//!
//! Invariants:
//! 1. A guard that needs something from the device names it, and is looked at again when it was read.
//! 2. What all guards up to the first that fails need is named at once, so that many of them cost one more look.
//! 3. Of what was read only the outcome is kept: memory does not grow with what is stored.

use std::collections::HashMap;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use esker_store::{Condition, Error, Guard, ObjectId};
use parking_lot::RwLockWriteGuard;

use super::plan::target_of;
use crate::engine::Engine;
use crate::index::{Loc, Missing};
use crate::objects::ObjectState;
use crate::reader::{Asked, Sought};
use crate::segments::Lsn;

/// What a transaction has to be told before it can be decided.
pub(super) enum Verdict {
    Holds,
    Fails(usize, Lsn),
    /// Values that guards look at are not in memory: read them without locks, then try again.
    Fetch(Vec<Wanted>),
    /// Index pages are not in memory, of these targets.
    Bring(Vec<(usize, Vec<Missing>)>),
    /// What a guard looks at is damaged.
    Wrong(Error),
}

/// A value that a guard looks at.
pub(super) struct Wanted {
    pub loc: Loc,
    /// Index of the guard.
    pub guard: usize,
    /// Owner of the object that the value is of.
    pub object: Option<u64>,
}

/// Why a value could not be compared yet.
enum Unknown {
    Value(Loc),
    Page(Missing),
    Wrong(Error),
}

impl From<Missing> for Unknown {
    fn from(missing: Missing) -> Self {
        Self::Page(missing)
    }
}

/// Of guards whose value was read: where it stood, and whether it is the one compared with.
pub(super) type Fetched = HashMap<usize, (Loc, bool)>;

impl Engine {
    pub(super) fn guards_hold(
        &self,
        guards: &[Guard],
        ids: &[&ObjectId],
        states: &[RwLockWriteGuard<'_, ObjectState>],
        fetched: &Fetched,
    ) -> Verdict {
        let (mut values, mut pages) = (Vec::new(), Vec::<(usize, Vec<Missing>)>::new());
        for (index, guard) in guards.iter().enumerate() {
            let target = target_of(ids, &guard.object);
            let state = &states[target];
            let holds = match self.holds(state, &guard.condition, fetched.get(&index)) {
                Ok(holds) => holds,
                Err(Unknown::Value(loc)) => {
                    values.push(Wanted { loc, guard: index, object: state.owner(state.number) });
                    continue;
                }
                Err(Unknown::Wrong(error)) => return Verdict::Wrong(error),
                Err(Unknown::Page(missing)) => {
                    match pages.iter_mut().find(|(of, _)| *of == target) {
                        Some((_, all)) => all.push(missing),
                        None => pages.push((target, vec![missing])),
                    }
                    continue;
                }
            };
            if !holds && values.is_empty() && pages.is_empty() {
                return Verdict::Fails(index, self.shown_lsn(state));
            }
            if !holds {
                // One before it may fail too, and is the one to be named then.
                break;
            }
        }
        match (pages.is_empty(), values.is_empty()) {
            (true, true) => Verdict::Holds,
            (true, false) => Verdict::Fetch(values),
            (false, _) => Verdict::Bring(pages),
        }
    }

    /// Whether a guard on an object holds, if that can be told from memory and from what was read for it.
    fn holds(
        &self,
        state: &ObjectState,
        condition: &Condition,
        fetched: Option<&(Loc, bool)>,
    ) -> std::result::Result<bool, Unknown> {
        Ok(match condition {
            Condition::Exists => state.exists(),
            Condition::Absent => !state.exists(),
            Condition::SizeEquals { size } => state.exists() && state.size == *size,
            Condition::XattrAbsent { name } => !state.xattrs.contains_key(name),
            Condition::XattrEquals { name, value } => state.xattrs.get(name) == Some(value),
            Condition::XattrCompare { name, compare, value, absent_holds } => match state.xattrs.get(name) {
                None => *absent_holds,
                Some(stored) => <[u8; 8]>::try_from(&stored[..])
                    .is_ok_and(|stored| compare.holds(u64::from_le_bytes(stored), *value)),
            },
            Condition::OmapAbsent { key } => state.omap.get(key)?.is_none(),
            Condition::OmapPresent { key } => state.omap.get(key)?.is_some(),
            Condition::SlotAbsent { index } => state.slots.get(*index)?.is_none(),
            Condition::SlotPresent { index } => state.slots.get(*index)?.is_some(),
            Condition::OmapEquals { key, value } => {
                self.equals(state, state.omap.get(key)?, condition, value, fetched)?
            }
            Condition::SlotEquals { index, value } => {
                self.equals(state, state.slots.get(*index)?, condition, value, fetched)?
            }
        })
    }

    /// Whether memory tells that these guards, all of them on this object, hold.
    pub(super) fn hold_here(&self, state: &ObjectState, guards: &[Guard]) -> bool {
        guards.iter().all(|guard| matches!(self.holds(state, &guard.condition, None), Ok(true)))
    }

    /// Position that has to be durable before anything about the object is told. That an object is missing is the
    /// work of the last change of names.
    pub(super) fn shown_lsn(&self, state: &ObjectState) -> Lsn {
        if state.exists() { state.changed_lsn } else { self.names_lsn.load(Ordering::Acquire) }
    }

    /// Whether the value at a place is this one, if that can be told from memory.
    fn equals(
        &self,
        state: &ObjectState,
        loc: Option<Loc>,
        condition: &Condition,
        value: &Bytes,
        fetched: Option<&(Loc, bool)>,
    ) -> std::result::Result<bool, Unknown> {
        let Some(loc) = loc else { return Ok(false) };
        let asked = Asked { object: state.owner(state.number), what: sought_by(condition) };
        if let Some(equal) = self.reader.is_here(loc, &asked, value).map_err(Unknown::Wrong)? {
            return Ok(equal);
        }
        match fetched {
            Some((at, equal)) if *at == loc => Ok(*equal),
            _ => Err(Unknown::Value(loc)),
        }
    }
}

/// The value that a condition compares.
pub(super) fn sought_by(condition: &Condition) -> Sought<'_> {
    match condition {
        Condition::SlotEquals { index, .. } => Sought::Slot(*index),
        Condition::OmapEquals { key, .. } => Sought::Omap(key),
        _ => unreachable!("no other condition compares a value that stands on the device"),
    }
}
