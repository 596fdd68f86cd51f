//! Which index pages a plan needs that are not in memory: they are read before anything is reserved.
//!
//! Invariant: what is named is enough for all operations of the plan, one after another.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::RwLockWriteGuard;

use super::plan::Planned;
use crate::format::{Kind, clone_range_words};
use crate::index::Missing;
use crate::objects::{Object, ObjectState};
use crate::spaces::Spaces;

/// The pages that an operation on its target needs and that are not in memory.
pub(super) fn missing_of(spaces: &Spaces, op: &Planned<'_>) -> Vec<Missing> {
    let mut missing = Vec::new();
    if spaces.cold_pages() > 0 {
        let payload = op.body.bytes();
        spaces.missing(op.kind, op.argument, op.key.bytes(), payload, op.body.raw_len().into(), &mut missing);
    }
    missing
}

/// The index pages that a plan needs and that are not in memory, by object. What an object is made from by a clone or
/// a rename earlier in the plan is looked at for the operations on it too.
pub(super) fn missing_pages(
    plan: &[Planned<'_>],
    targets: &[Arc<Object>],
    states: &[RwLockWriteGuard<'_, ObjectState>],
) -> Vec<(Arc<Object>, Vec<Missing>)> {
    if states.iter().all(|state| state.cold_pages() == 0) {
        return Vec::new();
    }
    let mut needed: BTreeMap<usize, Vec<Missing>> = BTreeMap::new();
    let mut came_from: Vec<Vec<usize>> = (0..targets.len()).map(|target| vec![target]).collect();
    for op in plan {
        for target in &came_from[op.target] {
            let missing = needed.entry(*target).or_default();
            missing.extend(missing_of(&states[*target], op));
            if op.kind == Kind::OmapRemove && plan.len() > 1 {
                // Its leaf may go when it is emptied: what follows meets the leaves beside it.
                let key = op.key.bytes();
                states[*target].omap.missing_between(Some(key), Some(key), missing);
            }
        }
        match op.kind {
            Kind::Clone | Kind::Rename => {
                let sources = came_from[op.target].clone();
                let all = &mut came_from[op.to];
                all.extend(sources);
                // Names may be changed back and forth many times.
                all.sort_unstable();
                all.dedup();
            }
            Kind::CloneRange => {
                let Some([_, _, len, to]) = clone_range_words(op.body.bytes()) else { continue };
                for target in &came_from[op.to] {
                    states[*target].extents.missing_for(to, len, needed.entry(*target).or_default());
                }
            }
            _ => {}
        }
    }
    needed.retain(|_, missing| !missing.is_empty());
    needed.into_iter().map(|(target, missing)| (Arc::clone(&targets[target]), missing)).collect()
}
