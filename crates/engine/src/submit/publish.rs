//! Publishing: what a record says is shown by names and index.
//!
//! Invariant: nothing here can fail, because the record is in the log already.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use esker_store::Collection;
use parking_lot::RwLockWriteGuard;

use super::plan::Planned;
use crate::engine::Engine;
use crate::format::{Kind, clone_range_words};
use crate::index::Loc;
use crate::objects::{Names, Object, ObjectState, Step};
use crate::segments::Lsn;

impl Engine {
    /// Changes the index.
    #[expect(clippy::too_many_arguments, reason = "one call site; most arguments are the locks that are held")]
    pub(super) fn publish(
        &self,
        plan: &[Planned<'_>],
        places: &[Loc],
        targets: &[Arc<Object>],
        states: &mut [RwLockWriteGuard<'_, ObjectState>],
        mut names: Option<&mut Names>,
        readers_wait_to: Lsn,
        epoch: u32,
    ) {
        for (op, loc) in plan.iter().zip(places) {
            let key = op.key.bytes();
            match (op.kind, names.as_deref_mut()) {
                (Kind::CreateCollection, Some(names)) => {
                    let collection = Collection::new(key.to_vec());
                    self.objects.note_collection(&collection, true, epoch);
                    names.entry(collection).or_default();
                }
                (Kind::RemoveCollection, Some(names)) => {
                    let collection = Collection::new(key.to_vec());
                    self.objects.note_collection(&collection, false, epoch);
                    names.remove(&collection);
                }
                (Kind::CreateObject, Some(names)) => {
                    let object = &targets[op.target];
                    let state = &mut states[op.target];
                    state.number = op.object;
                    self.objects.set_number(op.object, Some(object));
                    state.touched = epoch;
                    // What the name held before may be gone through a removal that is not durable yet.
                    state.removed_at_least(self.names_lsn.load(Ordering::Acquire));
                    if let Some(collection) = names.get_mut(object.id.collection()) {
                        collection.insert(object.id.name().clone(), Arc::clone(object));
                    }
                }
                (Kind::RemoveObject, Some(names)) => {
                    self.objects.set_number(op.object, None);
                    let id = &targets[op.target].id;
                    if let Some(collection) = names.get_mut(id.collection()) {
                        collection.remove(id.name());
                    }
                }
                (Kind::Rename, Some(names)) => {
                    let (from, to) = (&targets[op.target].id, &targets[op.to]);
                    if let Some(collection) = names.get_mut(from.collection()) {
                        collection.remove(from.name());
                    }
                    if let Some(collection) = names.get_mut(to.id.collection()) {
                        collection.insert(to.id.name().clone(), Arc::clone(to));
                    }
                    let mut moved = ObjectState::default();
                    states[op.target].move_to(&mut moved);
                    moved.move_to(&mut states[op.to]);
                    states[op.target].removed_at_least(readers_wait_to);
                    states[op.to].copied_at_least(readers_wait_to);
                    self.objects.set_number(op.object, Some(to));
                }
                _ => {}
            }
            match op.kind {
                Kind::Clone => {
                    let mut copy = states[op.target].spaces.clone();
                    copy.shares = true;
                    states[op.target].lent = true;
                    let source = &states[op.target];
                    let changed = source.changed_lsn.max(source.removed_lsn).max(source.copied_lsn);
                    let to = &mut states[op.to];
                    to.put(copy, &self.segments);
                    to.copied_at_least(changed.max(readers_wait_to));
                }
                Kind::CloneRange => {
                    let Some([_, from, len, to]) = clone_range_words(op.body.bytes()) else { continue };
                    let parts = states[op.target].extents.lookup(from..from.saturating_add(len));
                    let parts: Vec<_> = parts.flatten().collect();
                    let changed = states[op.target].changed_lsn.max(states[op.target].copied_lsn);
                    let shifted = states[op.target].shifted;
                    states[op.target].lent = true;
                    let state = &mut states[op.to];
                    state.take_range((&parts, shifted), from, len, to, readers_wait_to, &self.segments);
                    // A hole may be the work of a change of the source that is not durable yet.
                    state.changed_lsn = state.changed_lsn.max(changed);
                    state.copied_lsn = state.copied_lsn.max(changed);
                }
                _ => {}
            }
            let names_changed = matches!(
                op.kind,
                Kind::CreateCollection
                    | Kind::RemoveCollection
                    | Kind::CreateObject
                    | Kind::RemoveObject
                    | Kind::Rename
            );
            if names_changed {
                self.names_lsn.fetch_max(readers_wait_to, Ordering::AcqRel);
            }
            if matches!(op.kind, Kind::CreateCollection | Kind::RemoveCollection) {
                continue;
            }
            let (payload, payload_len) = (op.body.bytes(), op.body.raw_len());
            let step = Step { kind: op.kind, argument: op.argument, key, payload, payload_len, loc: *loc };
            states[op.target].apply(&step, readers_wait_to, &self.segments);
        }
    }
}
