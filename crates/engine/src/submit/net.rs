//! What a transaction leaves of space: whether more goes by it than it adds.
//!
//! Invariant: what is counted as going does go from the device once the plan is applied and cleaned, each place once.

use std::collections::HashSet;

use parking_lot::RwLockWriteGuard;

use super::plan::Planned;
use crate::format::{Kind, WEIGHT_WHOLE};
use crate::index::{Loc, Missing};
use crate::objects::ObjectState;
use crate::spaces::word;

/// What goes has to be so many times what is added: a device on which writes of one size for the other went on would
/// have to be cleaned for ever.
const GAIN: u64 = 2;
/// The cleaner's copy of what is added takes so much more, at most, in bytes.
const COPY_BYTES: u64 = 8;

/// Whether what objects point to and the plan takes away is worth at least [`GAIN`] times what the plan adds. What
/// stands in index pages that are not in memory counts for nothing, nor does what ranges of omap keys hold, nor what
/// objects have whose data others may share, nor what snapshots keep where it `stays`.
pub(super) fn gives_back(
    plan: &[Planned<'_>],
    states: &[RwLockWriteGuard<'_, ObjectState>],
    stays: &dyn Fn(Loc) -> bool,
) -> bool {
    let mut added = 0;
    for op in plan {
        match op.kind {
            Kind::Clone | Kind::CloneRange | Kind::Rename => return false,
            Kind::CreateObject
            | Kind::CreateCollection
            | Kind::Write
            | Kind::XattrSet
            | Kind::OmapSet
            | Kind::SlotSet => added += op.bytes(plan.len() == 1) + COPY_BYTES,
            _ => {}
        }
    }
    if added == 0 {
        return true;
    }
    let mut going = Going { wanted: added.saturating_mul(GAIN), bytes: 0, met: HashSet::new(), stays };
    // A page that is not in memory ends the looking at one operation.
    plan.iter().any(|op| states.get(op.target).is_some_and(|state| going.by(op, state).unwrap_or(false)))
}

/// Whether the plan makes the index grow by what is not known here: a clone, but for the only one of a source that is
/// emptied in the same plan.
pub(super) fn copies(plan: &[Planned<'_>], states: &[RwLockWriteGuard<'_, ObjectState>]) -> bool {
    let emptied = |target: usize| {
        // What is truncated may keep keys and slots.
        let bytes_only = states.get(target).is_some_and(|state| state.omap.is_empty() && state.slots.is_empty());
        let empties = |op: &Planned<'_>| match (op.kind, op.argument) {
            (Kind::RemoveObject, _) => op.target == target,
            (Kind::Truncate, 0) => op.target == target && bytes_only,
            _ => false,
        };
        plan.iter().any(empties)
    };
    let clones = |target: usize| plan.iter().filter(|op| op.kind == Kind::Clone && op.target == target).count();
    plan.iter().any(|op| match op.kind {
        Kind::Clone => clones(op.target) > 1 || !emptied(op.target),
        Kind::CloneRange => true,
        _ => false,
    })
}

struct Going<'a> {
    wanted: u64,
    bytes: u64,
    met: HashSet<u64>,
    stays: &'a dyn Fn(Loc) -> bool,
}

impl Going<'_> {
    fn add(&mut self, loc: Loc, bytes: u64) -> bool {
        if !(self.stays)(loc) && self.met.insert(loc.offset()) {
            self.bytes += bytes;
        }
        self.bytes >= self.wanted
    }

    /// Counts what an operation takes away; true as soon as it is enough.
    fn by(&mut self, op: &Planned<'_>, state: &ObjectState) -> Result<bool, Missing> {
        if state.counts_again() {
            return Ok(false);
        }
        let key = op.key.bytes();
        let one = |loc: Option<Loc>, going: &mut Self| loc.is_some_and(|loc| going.add(loc, loc.span_bytes()));
        match op.kind {
            Kind::OmapSet | Kind::OmapRemove => Ok(one(state.omap.get(key)?, self)),
            Kind::SlotSet | Kind::SlotRemove => Ok(one(state.slots.get(op.argument)?, self)),
            Kind::SlotRemoveRange => self.slots(state, op.argument, word(op.body.bytes())),
            Kind::Write => self.extents(state, op.argument, u64::from(op.body.raw_len())),
            Kind::Zero => self.extents(state, op.argument, word(op.body.bytes())),
            Kind::Truncate => self.extents(state, op.argument, u64::MAX),
            Kind::RemoveObject => Ok(self.extents(state, 0, u64::MAX)? || self.slots(state, 0, u64::MAX)?),
            _ => Ok(false),
        }
    }

    fn slots(&mut self, state: &ObjectState, start: u64, end: u64) -> Result<bool, Missing> {
        for found in state.slots.scan(start..end, false) {
            let (_, loc) = found?;
            if self.add(loc, loc.span_bytes()) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn extents(&mut self, state: &ObjectState, offset: u64, len: u64) -> Result<bool, Missing> {
        for piece in state.extents.lookup(offset..offset.saturating_add(len)) {
            let (_, extent) = piece?;
            // Of a value that is cut into, the rest stays.
            if self.add(extent.loc, u64::from(extent.len) * extent.loc.weight() / WEIGHT_WHOLE) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
