//! Submitting: guards, then one record, then the index, all on the caller's thread.
//!
//! compress and checksum payloads → lock names (only if names change) and objects → guards → plan → reserve → encode → apply → unlock
//!
//! Invariants:
//! 1. Nothing changes before the reservation is given; nothing can fail after it.
//! 2. An object that does not exist leaves no trace in the table when the call returns.
//! 3. A guard that looks at a missing object holds the names' lock, so that the object cannot appear meanwhile.

mod missing;
mod net;
mod plan;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use bytes::Bytes;
use esker_store::{
    Barrier, Change, Collection, CommitSeq, Completion, Compression, Condition, Durability, Error, Guard, ObjectId, Op,
    Result, Transaction, limits,
};
use parking_lot::RwLockWriteGuard;
use smallvec::SmallVec;

use crate::commit::{Class, Log, Refused, Reservation, record_header};
use crate::engine::Engine;
use crate::format::{
    Kind, OP_FLAG_APPLIED, OP_FLAG_COMPRESSED, OpHeader, Payload, RECORD_HEADER_BYTES, checksum_payload,
    clone_range_words, encode_name, encode_operation, operation_bytes, place_of,
};
use crate::index::{Loc, Missing};
use crate::objects::{Names, Object, ObjectState, Step};
use crate::pages::bring;
use crate::reader::{Asked, Sought};
use crate::segments::Lsn;
use crate::spaces::walk_ns;
use crate::stages::sampled;

use missing::{missing_of, missing_pages};
use plan::{collection_op, create_object, destination, made_clone, plan_change, takes_away};

/// Key of a planned operation: the caller's, or made here.
enum Key<'t> {
    Given(&'t [u8]),
    Made(SmallVec<[u8; 64]>),
}

impl Key<'_> {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Given(bytes) => bytes,
            Self::Made(bytes) => bytes,
        }
    }
}

/// A payload as it will stand in the record, made before any lock is taken.
#[derive(Default)]
struct Ready {
    sums: Payload,
    /// If that is worth it.
    packed: Option<Vec<u8>>,
}

/// Payload of a planned operation: the caller's and what was made of it before, or a number.
enum Body<'t> {
    Given(&'t [u8], &'t Ready),
    Word([u8; 8]),
    Words([u8; 32]),
    Short(&'t [u8]),
}

impl Body<'_> {
    /// What is stored.
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Given(_, Ready { packed: Some(packed), .. }) => packed,
            Self::Given(bytes, _) | Self::Short(bytes) => bytes,
            Self::Word(word) => word,
            Self::Words(words) => words,
        }
    }

    /// Length of what was given.
    fn raw_len(&self) -> u32 {
        if let Self::Given(bytes, _) = self { bytes.len() as u32 } else { self.bytes().len() as u32 }
    }

    fn is_packed(&self) -> bool {
        matches!(self, Self::Given(_, Ready { packed: Some(_), .. }))
    }
}

/// One operation that will go into the record.
struct Planned<'t> {
    kind: Kind,
    target: usize,
    /// Where a clone or rename goes, else `target`.
    to: usize,
    object: u64,
    argument: u64,
    key: Key<'t>,
    body: Body<'t>,
}

/// What a transaction has to be told before it can be decided.
enum Verdict {
    Holds,
    Fails(usize, Lsn),
    /// The value that this guard looks at is not in memory: read it without locks, then try again.
    Fetch(Loc, usize, Option<u64>),
    /// An index page of this target is not in memory.
    Bring(usize, Missing),
    /// What a guard looks at is damaged.
    Wrong(Error),
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

type Fetched = SmallVec<[(Loc, Bytes); 1]>;

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
    pub(crate) fn submit_transaction(&self, txn: &Transaction) -> Completion<CommitSeq> {
        let log = match self.writable(txn) {
            Ok(log) => log,
            Err(error) => return Completion::ready(Err(error)),
        };
        if let Some(keeper) = &self.keeper {
            keeper.wait_for_index_room();
        }
        let began = sampled();
        let hint = self.compress.hint(txn.compression);
        let ready: SmallVec<[Ready; 2]> = txn.ops.iter().map(|op| self.ready(op, hint)).collect();
        let prepared = began.map(|began| {
            let now = Instant::now();
            self.times.prepare.add(now - began);
            now
        });
        if let ([], [Op::Object(id, change)], [ready]) = (&txn.guards[..], &txn.ops[..], &ready[..])
            && let Some(completion) = self.attempt_one(log, id, change, ready, txn.durability)
        {
            self.index_has_grown();
            self.times.apply.add_since(prepared);
            return completion;
        }
        let mut fetched = Fetched::new();
        // Places that guards look at stay what they are for as long as this is held.
        let mut pinned = Some(self.segments.pin());
        let mut looked_again = false;
        let (mut gathering, mut brought) = (None, 0);
        loop {
            match self.attempt(log, txn, &ready, &fetched) {
                Attempt::Full if !looked_again => {
                    // Perhaps something was removed since the cleaner looked last.
                    looked_again = true;
                    fetched.clear();
                    pinned = None;
                    log.look_again();
                    pinned = pinned.or_else(|| Some(self.segments.pin()));
                }
                Attempt::Full => {
                    let error = Error::Full { needed: self.record_bytes_max.min(txn_bytes(txn)), free: 0 };
                    return Completion::ready(Err(error));
                }
                Attempt::Done(completion) => {
                    drop(gathering.take());
                    self.index_has_grown();
                    self.times.apply.add_since(prepared);
                    return completion;
                }
                Attempt::Bring(pages) => {
                    brought += 1;
                    if brought == 3 || pages.iter().map(|(_, missing)| missing.len()).sum::<usize>() > 4 {
                        // Until it has them all none may leave.
                        gathering.get_or_insert_with(|| self.objects.gather());
                    }
                    for (object, missing) in pages {
                        if let Err(error) = bring(&self.reader, &self.objects, &object, &missing) {
                            return Completion::ready(Err(error));
                        }
                    }
                }
                Attempt::Retry => {}
                Attempt::Busy => {
                    fetched.clear();
                    drop(pinned.take());
                    if let Err(error) = log.wait_for_room() {
                        return Completion::ready(Err(error));
                    }
                    pinned = Some(self.segments.pin());
                }
                Attempt::Fetch(loc, guard, object) => {
                    let asked = Asked { object, what: sought_by(&txn.guards[guard].condition) };
                    match self.reader.fetch(loc, &asked, self.mark.durable()) {
                        Ok(found) => fetched.push((loc, found.value)),
                        Err(error) => return Completion::ready(Err(error)),
                    }
                }
            }
        }
    }

    /// Compresses and checksums the payload of an operation.
    fn ready(&self, op: &Op, hint: Compression) -> Ready {
        let (payload, hint) = match op {
            Op::Object(_, Change::Write { data: payload, .. })
            | Op::Object(_, Change::OmapSet { value: payload, .. })
            | Op::Object(_, Change::SlotSet { value: payload, .. }) => (payload, hint),
            // Attributes stay in memory.
            Op::Object(_, Change::XattrSet { value, .. }) => (value, Compression::None),
            _ => return Ready::default(),
        };
        let packed = self.compress.pack(hint, payload);
        Ready { sums: checksum_payload(packed.as_deref().unwrap_or(payload)), packed }
    }

    fn writable(&self, txn: &Transaction) -> Result<&Arc<Log>> {
        txn.check()?;
        if self.full_since_open {
            return Err(Error::Full { needed: self.segments.segment_bytes, free: 0 });
        }
        let log = self.log.as_ref().ok_or(Error::ReadOnly)?;
        if let Some(failure) = self.mark.failure() {
            return Err(failure);
        }
        Ok(log)
    }

    /// The commonest transaction by a shorter way: one value set in an object that is there, without guards.
    /// `None`: it is another one, or the log is busy.
    fn attempt_one(
        &self,
        log: &Log,
        id: &ObjectId,
        change: &Change,
        ready: &Ready,
        durability: Durability,
    ) -> Option<Completion<CommitSeq>> {
        if !matches!(change, Change::SlotSet { .. } | Change::OmapSet { .. } | Change::Write { .. }) {
            return None;
        }
        let applied_only = durability == Durability::Applied || log.acknowledges_applied();
        let (seq, lsn_end) = self.objects.with(id, |object| {
            let mut state = object?.state.write();
            if !state.exists() {
                return None;
            }
            let op = plan_change(0, state.number, change, ready)?;
            let (key_len, payload_len) = (op.key.bytes().len(), op.body.bytes().len());
            let len = RECORD_HEADER_BYTES as u64 + operation_bytes(key_len, payload_len);
            if len > self.record_bytes_max || !missing_of(&state, &op).is_empty() {
                return None;
            }
            let reservation =
                log.reserve(len, (key_len + payload_len) as u64, op.kind.replay_ns(), Class::Write).ok()?;
            let (seq, lsn_end) = (CommitSeq(reservation.seq), reservation.lsn + len);
            self.objects.enter(id, &mut state, reservation.epoch);
            let mut loc = None;
            self.fill(reservation, std::slice::from_ref(&op), applied_only, |place| loc = Some(place));
            let payload = op.body.bytes();
            let step = Step {
                kind: op.kind,
                argument: op.argument,
                key: op.key.bytes(),
                payload,
                payload_len: op.body.raw_len(),
                loc: loc?,
            };
            state.apply(&step, if applied_only { 0 } else { lsn_end }, &self.segments);
            self.objects.count(&mut state);
            Some((seq, lsn_end))
        })?;
        let barrier = (!applied_only).then(|| Barrier::new(&self.mark, lsn_end));
        Some(Completion::after(Ok(seq), barrier))
    }

    /// Writes the record into its reservation and ends that; says where each operation stands.
    fn fill(
        &self,
        mut reservation: Reservation<'_>,
        plan: &[Planned<'_>],
        applied_only: bool,
        mut placed: impl FnMut(Loc),
    ) {
        let header = record_header(&reservation, plan.len(), applied_only);
        let (generation, offset) = (reservation.generation, reservation.device_offset);
        let bytes = reservation.bytes();
        header.encode(bytes, self.seed, offset);
        let mut at = RECORD_HEADER_BYTES;
        for op in plan {
            let header = OpHeader {
                kind: op.kind,
                flags: u8::from(applied_only) * OP_FLAG_APPLIED + u8::from(op.body.is_packed()) * OP_FLAG_COMPRESSED,
                key_len: 0,
                payload_len: 0,
                object: op.object,
                argument: op.argument,
                payload_crc: 0,
            };
            let place = offset + at as u64;
            let (key, payload) = (op.key.bytes(), op.body.bytes());
            let made;
            let sums = match &op.body {
                Body::Given(_, ready) => &ready.sums,
                Body::Word(_) | Body::Words(_) | Body::Short(_) => {
                    made = checksum_payload(payload);
                    &made
                }
            };
            let len = encode_operation(header, key, payload, sums, &mut bytes[at..], self.seed, generation, place);
            placed(place_of(&header, payload, place, len));
            at += len as usize;
        }
    }

    fn attempt<'t>(&self, log: &Log, txn: &'t Transaction, ready: &'t [Ready], fetched: &Fetched) -> Attempt {
        let ids = target_ids(txn);
        let mut targets: SmallVec<[Arc<Object>; 2]> = SmallVec::new();
        let mut changes_names = false;
        for id in &ids {
            match self.objects.get(id) {
                Some(object) => targets.push(object),
                None => changes_names = true,
            }
        }
        changes_names |= txn.ops.iter().any(|op| match op {
            Op::Object(_, change) => {
                matches!(change, Change::Remove | Change::CloneTo { .. } | Change::Rename { .. })
            }
            Op::CreateCollection(_) | Op::RemoveCollection(_) => true,
        });
        let mut names = changes_names.then(|| self.objects.names.write());
        if changes_names {
            targets = ids.iter().map(|id| self.objects.get_or_insert(id)).collect();
        }
        let mut states: SmallVec<[RwLockWriteGuard<'_, ObjectState>; 2]> =
            targets.iter().map(|object| object.state.write()).collect();
        if !changes_names && states.iter().any(|state| !state.exists()) {
            // Somebody with the names' lock is about to create it, or has failed to: to us it is missing, so we need that lock as well.
            drop(states);
            changes_names = true;
            names = Some(self.objects.names.write());
            targets = ids.iter().map(|id| self.objects.get_or_insert(id)).collect();
            states = targets.iter().map(|object| object.state.write()).collect();
        }
        if states.iter().any(|state| state.unlinked) {
            ids.iter().for_each(|id| self.objects.forget(id));
            drop_absent(self, &ids, &mut states, changes_names);
            return Attempt::Retry;
        }
        let outcome = self.attempt_locked(log, txn, ready, fetched, &ids, &targets, &mut states, names.as_deref_mut());
        drop_absent(self, &ids, &mut states, changes_names);
        outcome
    }

    #[expect(clippy::too_many_arguments, reason = "one call site; the arguments are the locks that are held")]
    fn attempt_locked<'t>(
        &self,
        log: &Log,
        txn: &'t Transaction,
        ready: &'t [Ready],
        fetched: &Fetched,
        ids: &[&ObjectId],
        targets: &[Arc<Object>],
        states: &mut [RwLockWriteGuard<'_, ObjectState>],
        names: Option<&mut Names>,
    ) -> Attempt {
        match self.guards_hold(&txn.guards, ids, states, fetched) {
            Verdict::Holds => {}
            Verdict::Fetch(loc, guard, object) => return Attempt::Fetch(loc, guard, object),
            Verdict::Wrong(error) => return Attempt::Done(Completion::ready(Err(error))),
            Verdict::Bring(target, missing) => {
                return Attempt::Bring(vec![(Arc::clone(&targets[target]), vec![missing])]);
            }
            Verdict::Fails(index, lsn) => {
                let barrier = self.barrier(lsn);
                return Attempt::Done(Completion::after(Err(Error::GuardFailed { index }), barrier));
            }
        }
        let empty = Names::new();
        let plan = match self.plan(txn, ready, ids, states, names.as_deref().unwrap_or(&empty)) {
            Ok(plan) => plan,
            Err(error) => {
                // It tells what there is, and what there is not.
                let lsn = states.iter().map(|state| self.shown_lsn(state)).max().unwrap_or(0);
                let lsn = lsn.max(self.names_lsn.load(Ordering::Acquire));
                return Attempt::Done(Completion::after(Err(error), self.barrier(lsn)));
            }
        };
        if plan.is_empty() {
            // Nothing to do: whatever this depends on is in the objects' last changes.
            let lsn = states.iter().map(|state| self.shown_lsn(state)).max().unwrap_or(0);
            return Attempt::Done(Completion::after(Ok(CommitSeq(log.last_seq())), self.barrier(lsn)));
        }
        let (mut len, mut payload_bytes, mut replay_ns) = (RECORD_HEADER_BYTES as u64, 0, 0);
        for op in &plan {
            let (key_len, payload_len) = (op.key.bytes().len(), op.body.bytes().len());
            len += operation_bytes(key_len, payload_len);
            payload_bytes += (key_len + payload_len) as u64;
            replay_ns += op.kind.replay_ns() + states.get(op.target).map_or(0, |state| walk_ns(op.kind, &state.spaces));
        }
        if len > self.record_bytes_max {
            return Attempt::Done(Completion::ready(Err(Error::TooLarge {
                what: "transaction",
                len,
                limit: "the segment's room for one record",
                max: self.record_bytes_max,
            })));
        }
        let missing = missing_pages(&plan, targets, states);
        if !missing.is_empty() {
            return Attempt::Bring(missing);
        }
        let class = if txn.ops.iter().all(takes_away) {
            Class::TakeAway
        } else if txn.gives_back && len <= limits::GIVING_BACK_BYTES_MAX && !net::copies(&plan, states) {
            Class::GiveBack
        } else {
            Class::Write
        };
        let keeper = self.keeper.as_ref();
        let mut reserved = log.reserve(len, payload_bytes, replay_ns, class);
        if matches!(reserved, Err(Refused::Error(Error::Full { .. })))
            && class != Class::TakeAway
            && self.segments.sharing.all_known()
            && net::gives_back(&plan, states, &|loc| {
                keeper.is_some_and(|keeper| keeper.is_held(self.segments.segment_of(loc.offset())))
            })
        {
            reserved = log.reserve(len, payload_bytes, replay_ns, Class::TakeAway);
        }
        let reservation = match reserved {
            Ok(reservation) => reservation,
            Err(Refused::Busy) => return Attempt::Busy,
            Err(Refused::Error(Error::Full { .. })) => return Attempt::Full,
            Err(Refused::Error(error)) => return Attempt::Done(Completion::ready(Err(error))),
        };
        let applied_only = txn.durability == Durability::Applied || log.acknowledges_applied();
        let lsn_end = reservation.lsn + len;
        let readers_wait_to = if applied_only { 0 } else { lsn_end };
        let seq = CommitSeq(reservation.seq);
        let epoch = reservation.epoch;
        for (object, state) in targets.iter().zip(states.iter_mut()) {
            self.objects.enter(&object.id, state, epoch);
        }
        for op in plan.iter().filter(|op| op.kind == Kind::CreateObject) {
            self.objects.note(op.object, epoch);
        }
        let mut places: SmallVec<[Loc; 2]> = SmallVec::new();
        self.fill(reservation, &plan, applied_only, |place| places.push(place));
        // The record is whole: readers may learn of it.
        self.publish(&plan, &places, targets, states, names, readers_wait_to, epoch);
        states.iter_mut().for_each(|state| self.objects.count(state));
        let barrier = (!applied_only).then(|| Barrier::new(&self.mark, lsn_end));
        Attempt::Done(Completion::after(Ok(seq), barrier))
    }

    /// Changes the index.
    #[expect(clippy::too_many_arguments, reason = "one call site; most arguments are the locks that are held")]
    fn publish(
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

    /// The barrier of a position, if it is not durable yet.
    pub(crate) fn barrier(&self, lsn: Lsn) -> Option<Barrier> {
        (lsn > self.mark.durable()).then(|| Barrier::new(&self.mark, lsn))
    }

    fn guards_hold(
        &self,
        guards: &[Guard],
        ids: &[&ObjectId],
        states: &[RwLockWriteGuard<'_, ObjectState>],
        fetched: &Fetched,
    ) -> Verdict {
        for (index, guard) in guards.iter().enumerate() {
            let target = target_of(ids, &guard.object);
            let state = &states[target];
            let compared = match &guard.condition {
                Condition::Exists => Ok(state.exists()),
                Condition::Absent => Ok(!state.exists()),
                Condition::SizeEquals { size } => Ok(state.exists() && state.size == *size),
                Condition::XattrAbsent { name } => Ok(!state.xattrs.contains_key(name)),
                Condition::XattrEquals { name, value } => Ok(state.xattrs.get(name) == Some(value)),
                Condition::XattrCompare { name, compare, value, absent_holds } => Ok(match state.xattrs.get(name) {
                    None => *absent_holds,
                    Some(stored) => <[u8; 8]>::try_from(&stored[..])
                        .is_ok_and(|stored| compare.holds(u64::from_le_bytes(stored), *value)),
                }),
                Condition::OmapAbsent { key } => state.omap.get(key).map(|loc| loc.is_none()).map_err(Unknown::Page),
                Condition::OmapPresent { key } => state.omap.get(key).map(|loc| loc.is_some()).map_err(Unknown::Page),
                Condition::SlotAbsent { index } => {
                    state.slots.get(*index).map(|loc| loc.is_none()).map_err(Unknown::Page)
                }
                Condition::SlotPresent { index } => {
                    state.slots.get(*index).map(|loc| loc.is_some()).map_err(Unknown::Page)
                }
                Condition::OmapEquals { key, value } => self.equals(state, state.omap.get(key), guard, value, fetched),
                Condition::SlotEquals { index, value } => {
                    self.equals(state, state.slots.get(*index), guard, value, fetched)
                }
            };
            let holds = match compared {
                Ok(holds) => holds,
                Err(Unknown::Value(loc)) => return Verdict::Fetch(loc, index, state.owner(state.number)),
                Err(Unknown::Wrong(error)) => return Verdict::Wrong(error),
                Err(Unknown::Page(missing)) => return Verdict::Bring(target, missing),
            };
            if !holds {
                return Verdict::Fails(index, self.shown_lsn(state));
            }
        }
        Verdict::Holds
    }

    /// Position that has to be durable before anything about the object is told. That an object is missing is the
    /// work of the last change of names.
    fn shown_lsn(&self, state: &ObjectState) -> Lsn {
        if state.exists() { state.changed_lsn } else { self.names_lsn.load(Ordering::Acquire) }
    }

    /// Whether the value at a place is this one, if that can be told from memory.
    fn equals(
        &self,
        state: &ObjectState,
        loc: std::result::Result<Option<Loc>, Missing>,
        guard: &Guard,
        value: &Bytes,
        fetched: &Fetched,
    ) -> std::result::Result<bool, Unknown> {
        let Some(loc) = loc? else { return Ok(false) };
        let asked = Asked { object: state.owner(state.number), what: sought_by(&guard.condition) };
        if let Some(found) = self.reader.peek(loc, &asked, Lsn::MAX).map_err(Unknown::Wrong)? {
            return Ok(found.value == *value);
        }
        match fetched.iter().find(|(at, _)| *at == loc) {
            Some((_, found)) => Ok(found == value),
            None => Err(Unknown::Value(loc)),
        }
    }

    /// What the record will hold: the operations that change something, with what they imply.
    fn plan<'t>(
        &self,
        txn: &'t Transaction,
        ready: &'t [Ready],
        ids: &[&ObjectId],
        states: &[RwLockWriteGuard<'_, ObjectState>],
        names: &Names,
    ) -> Result<SmallVec<[Planned<'t>; 2]>> {
        let mut plan = SmallVec::new();
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
                    let mut words = [0; 32];
                    let numbers_to = [numbers[to], *from_offset, *len, *to_offset];
                    for (word, value) in words.chunks_mut(8).zip(numbers_to) {
                        word.copy_from_slice(&value.to_le_bytes());
                    }
                    let copy = made_clone(from, to, numbers[from]);
                    plan.push(Planned { kind: Kind::CloneRange, body: Body::Words(words), ..copy });
                }
            }
            _ => {}
        }
        Ok(())
    }
}

enum Attempt {
    Done(Completion<CommitSeq>),
    Retry,
    Busy,
    Full,
    Fetch(Loc, usize, Option<u64>),
    /// Index pages that are not in memory.
    Bring(Vec<(Arc<Object>, Vec<Missing>)>),
}

/// The value that a condition compares.
fn sought_by(condition: &Condition) -> Sought<'_> {
    match condition {
        Condition::SlotEquals { index, .. } => Sought::Slot(*index),
        Condition::OmapEquals { key, .. } => Sought::Omap(key),
        _ => unreachable!("no other condition compares a value that stands on the device"),
    }
}

fn drop_absent(
    engine: &Engine,
    ids: &[&ObjectId],
    states: &mut [RwLockWriteGuard<'_, ObjectState>],
    changes_names: bool,
) {
    if !changes_names {
        return;
    }
    for (id, state) in ids.iter().zip(states) {
        if !state.exists() && !state.unlinked {
            engine.objects.unlink(id, state);
        }
    }
}

/// About how much a transaction takes, for an error message.
fn txn_bytes(txn: &Transaction) -> u64 {
    let payload = |op: &Op| match op {
        Op::Object(_, Change::Write { data, .. }) => data.len(),
        Op::Object(_, Change::OmapSet { value, .. } | Change::SlotSet { value, .. }) => value.len(),
        _ => 0,
    };
    txn.ops.iter().map(|op| operation_bytes(64, payload(op))).sum()
}

/// The objects of a transaction, in order, each once.
fn target_ids(txn: &Transaction) -> SmallVec<[&ObjectId; 2]> {
    let mut ids: SmallVec<[&ObjectId; 2]> = txn.guards.iter().map(|guard| &guard.object).collect();
    for op in &txn.ops {
        if let Op::Object(id, change) = op {
            ids.push(id);
            ids.extend(destination(change));
        }
    }
    if ids.len() > 1 {
        ids.sort_unstable();
        ids.dedup();
    }
    ids
}

fn target_of(ids: &[&ObjectId], id: &ObjectId) -> usize {
    if ids.len() == 1 { 0 } else { ids.binary_search(&id).expect("every object of the transaction is a target") }
}
