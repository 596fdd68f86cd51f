//! Submitting: guards, then one record, then the index, all on the caller's thread.
//!
//! compress and checksum payloads → lock names (only if names change) and objects → guards → plan → reserve → encode →
//! publish → unlock
//! of one value: … → reserve → publish → unlock → encode; readers wait for that (`Segments::with_whole`)
//!
//! Invariants:
//! 1. Nothing changes before the reservation is given; nothing can fail after it.
//! 2. An object that does not exist leaves no trace in the table when the call returns.
//! 3. A guard that looks at a missing object holds the names' lock, so that the object cannot appear meanwhile.

mod guards;
mod missing;
mod net;
mod plan;
mod publish;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use bytes::Bytes;
use esker_store::{
    Barrier, Change, CommitSeq, Completion, Compression, Condition, Error, ObjectId, Op, Result, Stall, Transaction,
    Waits, WhenBusy, limits,
};
use parking_lot::RwLockWriteGuard;
use smallvec::SmallVec;

use self::guards::{Fetched, Verdict, Wanted, sought_by};
use self::missing::{missing_of, missing_pages};
use self::plan::{Body, Planned, Ready, plan_change, takes_away, target_ids};
use crate::commit::{Class, GIVING_LOOKS, Log, Refused, Reservation, record_header, waited_enough};
use crate::engine::Engine;
use crate::format::{
    Kind, RecordHeader, checksum_payload, encode_operation, operation_bytes, place_of, record_bytes, short_flag,
};
use crate::index::{Loc, Missing};
use crate::objects::{Names, Object, ObjectState, Step};
use crate::pages::bring;
use crate::reader::Asked;
use crate::readers::Pinned;
use crate::readings::READINGS_MAX;
use crate::segments::Lsn;
use crate::spaces::walk_ns;
use crate::stages::sampled;

impl Engine {
    pub(crate) fn submit_transaction(&self, txn: &Transaction) -> Completion<CommitSeq> {
        let log = match self.writable(txn) {
            Ok(log) => log,
            Err(error) => return Completion::ready(Err(error)),
        };
        let busy = |stall| Completion::ready(Err(Error::Busy { stall }));
        let waits = match txn.when_busy {
            WhenBusy::Wait => None,
            WhenBusy::Refuse(waits) => Some(waits),
        };
        if let Some(waits) = waits {
            let waited = waits.backlog() > 0;
            let class = if !txn.gives_back && !txn.ops.iter().all(takes_away) { Class::Write } else { Class::TakeAway };
            // Before the work that it would be to find that out again.
            if log.is_busy_for(class, waited) {
                return busy(Stall::Backlog);
            }
            // Who has waited for that goes on, also where it is not less.
            if waits.memory() == 0 && self.keeper.as_ref().is_some_and(|keeper| keeper.is_crowded()) {
                return busy(Stall::Memory);
            }
            log.note_waited(waited);
        } else if let Some(keeper) = &self.keeper {
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
        if let ([Op::Object(id, change)], [ready]) = (&txn.ops[..], &ready[..])
            && txn.guards.iter().all(|guard| guard.object == *id)
            && let Some(completion) = self.attempt_one(log, txn, id, change, ready)
        {
            self.index_has_grown();
            self.times.apply.add_since(prepared);
            return completion;
        }
        let mut fetched = Fetched::new();
        // Places that guards look at stay what they are for as long as this is held.
        let mut pinned = Some(self.segments.pin());
        let gives = txn.gives_back || txn.ops.iter().all(takes_away);
        let (mut looks, mut full_since) = (if gives { GIVING_LOOKS } else { 1 }, None);
        let (mut gathering, mut brought) = (None, 0);
        let full = |engine: &Self| {
            let needed = engine.record_bytes_max.min(txn_bytes(txn));
            Completion::ready(Err(Error::Full { needed, free: 0 }))
        };
        loop {
            match self.attempt(log, txn, &ready, &fetched) {
                Attempt::Full if waits.is_some_and(|waits| waits.full() < looks) => return busy(Stall::Full),
                Attempt::Full if waits.is_some() => return full(self),
                Attempt::Busy if waits.is_some() => return busy(Stall::Backlog),
                Attempt::Full if looks > 0 && !full_since.is_some_and(waited_enough) => {
                    // Perhaps something was removed since the cleaner looked last.
                    looks -= 1;
                    fetched.clear();
                    pinned = None;
                    log.look_again(*full_since.get_or_insert_with(Instant::now));
                    pinned = pinned.or_else(|| Some(self.segments.pin()));
                }
                Attempt::Full => return full(self),
                Attempt::Done(completion) => {
                    drop(gathering.take());
                    self.index_has_grown();
                    self.times.apply.add_since(prepared);
                    return completion;
                }
                Attempt::Bring(pages) if self.reads_for(waits) => {
                    let (reader, objects) = (Arc::clone(&self.reader), Arc::clone(&self.objects));
                    let keeper = self.keeper.clone();
                    return self.refuse_until_read(pinned, move || {
                        // What fails is told by the attempt that reads on its own thread.
                        let _ =
                            pages.iter().try_for_each(|(object, missing)| bring(&reader, &objects, object, missing));
                        keeper.iter().for_each(|keeper| keeper.index_has_grown());
                    });
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
                Attempt::Fetch(wanted) if self.reads_for(waits) => {
                    let cold = match self.compare(txn, wanted, &mut fetched, true) {
                        Ok(cold) => cold,
                        Err(error) => return Completion::ready(Err(error)),
                    };
                    if cold.is_empty() {
                        continue;
                    }
                    let (reader, durable) = (Arc::clone(&self.reader), self.mark.durable());
                    let sought = |wanted: Wanted| {
                        let what = sought_by(&txn.guards[wanted.guard].condition).keep();
                        (wanted.loc, wanted.object, what)
                    };
                    let cold: Vec<_> = cold.into_iter().map(sought).collect();
                    return self.refuse_until_read(pinned, move || {
                        for (loc, object, what) in &cold {
                            let asked = Asked { object: *object, what: what.sought() };
                            // As above.
                            let _ = reader.fetch(*loc, &asked, durable);
                        }
                    });
                }
                Attempt::Fetch(wanted) => {
                    if let Err(error) = self.compare(txn, wanted, &mut fetched, false) {
                        return Completion::ready(Err(error));
                    }
                }
            }
        }
    }

    /// Whether what a writer needs is read by others, and the writer refused meanwhile.
    fn reads_for(&self, waits: Option<Waits>) -> bool {
        self.pool.is_some() && waits.is_some_and(|waits| waits.reading() < READINGS_MAX)
    }

    /// Refuses a writer until the reading pool has read what it needs; what that looks at stays where it is.
    fn refuse_until_read(
        &self,
        pinned: Option<Pinned<'_>>,
        read: impl FnOnce() + Send + 'static,
    ) -> Completion<CommitSeq> {
        let kept = pinned.map(|pinned| self.segments.keep_pinned(pinned));
        let (number, reading) = self.readings.begin(move || {
            let _kept = kept;
            read();
        });
        self.pool.iter().for_each(|pool| pool.give(Arc::clone(&reading)));
        Completion::ready(Err(Error::Busy { stall: Stall::Reading { number } }))
    }

    /// Reads values that guards look at, up to the first that is another, and notes what each guard says of it. Those
    /// that are left, since the device would have to be waited for, if it is to be done `now`.
    fn compare(&self, txn: &Transaction, wanted: Vec<Wanted>, fetched: &mut Fetched, now: bool) -> Result<Vec<Wanted>> {
        // The same value may be compared again and again.
        let mut last: Option<(Loc, Bytes)> = None;
        let mut cold = Vec::new();
        for one in wanted {
            let Wanted { loc, guard, object } = one;
            let condition = &txn.guards[guard].condition;
            let value = match &last {
                Some((at, value)) if *at == loc => value.clone(),
                _ => {
                    let (asked, durable) = (Asked { object, what: sought_by(condition) }, self.mark.durable());
                    let found = match now {
                        true => self.reader.fetch_now(loc, &asked, durable)?,
                        false => Some(self.reader.fetch(loc, &asked, durable)?),
                    };
                    let Some(found) = found else {
                        cold.push(one);
                        continue;
                    };
                    found.value
                }
            };
            let equal = matches!(condition,
                Condition::SlotEquals { value: compared, .. } | Condition::OmapEquals { value: compared, .. }
                    if *compared == value);
            fetched.insert(guard, (loc, equal));
            if !equal {
                break;
            }
            last = Some((loc, value));
        }
        Ok(cold)
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

    /// The commonest transaction by a shorter way: one value set in an object that is there, under guards on that
    /// object of which memory tells that they hold. `None`: it is another one, or the log is busy.
    fn attempt_one(
        &self,
        log: &Log,
        txn: &Transaction,
        id: &ObjectId,
        change: &Change,
        ready: &Ready,
    ) -> Option<Completion<CommitSeq>> {
        if !matches!(change, Change::SlotSet { .. } | Change::OmapSet { .. } | Change::Write { .. }) {
            return None;
        }
        let applied_only = log.is_applied_only(txn.durability);
        let (seq, lsn_end) = self.objects.with(id, |object| {
            let mut state = object?.state.write();
            if !state.exists() || !self.hold_here(&state, &txn.guards) {
                return None;
            }
            let op = plan_change(0, state.number, change, ready)?;
            let (key_len, payload_len) = (op.key.bytes().len(), op.body.bytes().len());
            let short = log.has_short_headers();
            let len = record_bytes(short, 1, op.bytes(true));
            if len > self.record_bytes_max || !missing_of(&state, &op).is_empty() {
                return None;
            }
            let reservation =
                log.reserve(len, (key_len + payload_len) as u64, op.kind.replay_ns(), Class::Write).ok()?;
            let (seq, lsn_end) = (CommitSeq(reservation.seq), reservation.lsn + len);
            self.objects.enter(id, &mut state, reservation.epoch);
            let payload = op.body.bytes();
            let at = header_of(&reservation, 1, applied_only, short).header_bytes() as u64;
            let loc = place_of(&op.header(applied_only, true), payload, reservation.device_offset + at, op.bytes(true));
            let step = Step {
                kind: op.kind,
                argument: op.argument,
                key: op.key.bytes(),
                payload,
                payload_len: op.body.raw_len(),
                loc,
            };
            state.apply(&step, if applied_only { 0 } else { lsn_end }, &self.segments);
            self.objects.count(&mut state);
            drop(state);
            // Readers that have found the place wait for this.
            let op = std::slice::from_ref(&op);
            self.fill(reservation, op, applied_only, short, |place| debug_assert_eq!(place, loc));
            Some((seq, lsn_end))
        })?;
        let barrier = (!applied_only).then(|| Barrier::new(&self.mark, lsn_end));
        Some(Completion::after(Ok(seq), barrier))
    }

    /// Writes the record into its reservation, whose length says which header it has if that `may_be_short`, and ends
    /// the reservation; says where each operation stands.
    fn fill(
        &self,
        mut reservation: Reservation<'_>,
        plan: &[Planned<'_>],
        applied_only: bool,
        may_be_short: bool,
        mut placed: impl FnMut(Loc),
    ) {
        #[cfg(test)]
        tests::before_filling();
        let header = header_of(&reservation, plan.len(), applied_only, may_be_short);
        let (generation, offset) = (reservation.generation, reservation.device_offset);
        let bytes = reservation.bytes();
        header.encode(bytes, self.seed, offset);
        let mut at = header.header_bytes();
        for op in plan {
            let header = op.header(applied_only, plan.len() == 1);
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
        reservation.whole();
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
            // A writer with the names' lock is about to create it, or has failed to: to us it is missing, so we need
            // that lock as well.
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
            Verdict::Fetch(wanted) => return Attempt::Fetch(wanted),
            Verdict::Wrong(error) => return Attempt::Done(Completion::ready(Err(error))),
            Verdict::Bring(pages) => {
                let of_object = |(target, missing): (usize, _)| (Arc::clone(&targets[target]), missing);
                return Attempt::Bring(pages.into_iter().map(of_object).collect());
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
            // Nothing to do: what this depends on is in the last changes of the objects, and in those of names. A
            // collection that is there, or an object that is not, may be so by a change that is not durable yet.
            let lsn = states.iter().map(|state| self.shown_lsn(state)).max().unwrap_or(0);
            let lsn = lsn.max(self.names_lsn.load(Ordering::Acquire));
            return Attempt::Done(Completion::after(Ok(CommitSeq(log.last_seq())), self.barrier(lsn)));
        }
        let (mut operations, mut payload_bytes, mut replay_ns) = (0, 0, 0);
        for op in &plan {
            let (key_len, payload_len) = (op.key.bytes().len(), op.body.bytes().len());
            operations += op.bytes(plan.len() == 1);
            payload_bytes += (key_len + payload_len) as u64;
            replay_ns += op.kind.replay_ns() + states.get(op.target).map_or(0, |state| walk_ns(op.kind, &state.spaces));
        }
        let short = log.has_short_headers();
        let len = record_bytes(short, plan.len(), operations);
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
        let applied_only = log.is_applied_only(txn.durability);
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
        let mut places: SmallVec<[Loc; 2]> = SmallVec::with_capacity(plan.len());
        self.fill(reservation, &plan, applied_only, short, |place| places.push(place));
        // The record is whole: readers may learn of it.
        self.publish(&plan, &places, targets, states, names, readers_wait_to, epoch);
        states.iter_mut().for_each(|state| self.objects.count(state));
        let barrier = (!applied_only).then(|| Barrier::new(&self.mark, lsn_end));
        Attempt::Done(Completion::after(Ok(seq), barrier))
    }

    /// The barrier of a position, if it is not durable yet.
    pub(crate) fn barrier(&self, lsn: Lsn) -> Option<Barrier> {
        (lsn > self.mark.durable()).then(|| Barrier::new(&self.mark, lsn))
    }
}

/// The header of the record in this reservation, whose length says which it is if that `may_be_short`.
fn header_of(reservation: &Reservation<'_>, operations: usize, applied_only: bool, may_be_short: bool) -> RecordHeader {
    let short = short_flag(may_be_short, operations, reservation.len as u64);
    record_header(reservation, operations, applied_only, short)
}

enum Attempt {
    Done(Completion<CommitSeq>),
    Retry,
    Busy,
    Full,
    Fetch(Vec<Wanted>),
    /// Index pages that are not in memory.
    Bring(Vec<(Arc<Object>, Vec<Missing>)>),
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

#[cfg(test)]
pub(crate) mod tests {
    use std::cell::RefCell;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::time::Duration;

    use esker_device::{Device, MemoryDevice};
    use esker_store::{Condition, Durability, Guard, ObjectStore};

    use super::*;
    use crate::{FormatOptions, Options};

    thread_local! {
        /// What the next writer of this thread does when it has a range, and before it fills it.
        static BEFORE_FILLING: RefCell<Option<Box<dyn FnOnce()>>> = const { RefCell::new(None) };
    }

    pub(super) fn before_filling() {
        if let Some(hook) = BEFORE_FILLING.take() {
            hook();
        }
    }

    /// A store in memory of small segments, with one object.
    pub(crate) fn with_object() -> (Arc<dyn Device>, Engine) {
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(64 << 20));
        Engine::format(&*device, &FormatOptions { segment_bytes: 1 << 20, uuid: [6; 16] }).unwrap();
        let engine = Engine::open(Arc::clone(&device), Options::default()).unwrap();
        engine.submit(Transaction::new().create_collection(&"c".into())).wait().unwrap();
        engine.submit(set(0, "before").change(&object(), slot(1, "kept"))).wait().unwrap();
        (device, engine)
    }

    pub(crate) fn object() -> ObjectId {
        ObjectId::new("c".into(), "o")
    }

    fn slot(index: u64, value: &str) -> Change {
        Change::SlotSet { index, value: Bytes::copy_from_slice(value.as_bytes()) }
    }

    fn set(index: u64, value: &str) -> Transaction {
        Transaction::new().change(&object(), slot(index, value))
    }

    fn get(engine: &Engine, at: u64) -> Result<Option<Bytes>> {
        engine.slot_get(&object(), at).wait()
    }

    /// A transaction that is applied, of one value, which is shown in its object before it is copied, or of two, which
    /// are copied before.
    pub(crate) fn applied(index: u64, value: &str, of_one: bool) -> Transaction {
        let txn = Transaction { durability: Durability::Applied, ..set(index, value) };
        if of_one { txn } else { txn.change(&object(), Change::SlotRemove { index: 1 << 40 }) }
    }

    /// Submits it, and stops between the moment when it has its range and that when it fills it. Then says so, and goes
    /// on when it is told to, or panics.
    pub(crate) fn submit_in_two_steps(engine: &Engine, txn: Transaction, stands: Sender<()>, goes_on: Receiver<bool>) {
        BEFORE_FILLING.set(Some(Box::new(move || {
            stands.send(()).unwrap();
            assert!(goes_on.recv().unwrap(), "a test asked for it");
        })));
        let done = catch_unwind(AssertUnwindSafe(|| engine.submit(txn).wait()));
        BEFORE_FILLING.set(None);
        drop(done);
    }

    #[test]
    fn a_record_whose_writer_panicked_is_never_read_and_never_written() {
        for of_one in [true, false] {
            let (device, engine) = with_object();
            let ((stands, _stood), (go, goes_on)) = (channel(), channel());
            go.send(false).unwrap();
            submit_in_two_steps(&engine, applied(0, "after", of_one), stands, goes_on);
            for _ in 0..2 {
                match get(&engine, 0) {
                    Err(Error::Stopped { cause }) if of_one => assert!(cause.contains("panicked"), "{cause}"),
                    Ok(Some(found)) if !of_one => assert_eq!(found, "before"),
                    other => panic!("{of_one}: {other:?}"),
                }
                assert_eq!(get(&engine, 1).unwrap().unwrap(), "kept");
                // Whatever the commit thread does meanwhile, nothing of it is whole.
                let refused = engine.submit(set(1, "more")).wait();
                assert!(matches!(refused, Err(Error::Stopped { .. })), "{refused:?}");
                engine.log.as_ref().unwrap().commit(true);
            }
            drop(engine);
            let engine = Engine::open(device, Options::default()).unwrap();
            assert_eq!(get(&engine, 0).unwrap().unwrap(), "before");
            assert_eq!(get(&engine, 1).unwrap().unwrap(), "kept");
        }
    }

    /// What waits already when the writer goes on, or panics: readers, a guard under the object's lock, the commit
    /// thread, a checkpoint.
    #[test]
    fn all_that_need_a_value_wait_until_it_is_whole_or_will_never_be() {
        for panics in [false, true] {
            let (device, engine) = with_object();
            let ((stands, stood), (go, goes_on)) = (channel(), channel());
            let (ended, ends) = channel();
            std::thread::scope(|scope| {
                scope.spawn(|| submit_in_two_steps(&engine, applied(0, "after", true), stands, goes_on));
                stood.recv().unwrap();
                let engine = &engine;
                let waits = |what: &'static str, call: fn(&Engine) -> Result<String>| {
                    let ended = ended.clone();
                    scope.spawn(move || ended.send((what, call(engine))).unwrap());
                };
                waits("get", |engine| get(engine, 0).map(|found| String::from_utf8(found.unwrap().to_vec()).unwrap()));
                waits("guard", |engine| {
                    let condition = Condition::SlotEquals { index: 0, value: "after".into() };
                    let mut guarded = set(2, "guarded");
                    guarded.guards.push(Guard { object: object(), condition });
                    engine.submit(guarded).wait().map(|_| String::new())
                });
                waits("commit", |engine| {
                    engine.log.as_ref().unwrap().commit(true);
                    engine.mark.failure().map_or(Ok(String::new()), Err)
                });
                waits("checkpoint", |engine| engine.checkpoint().map(|()| String::new()));
                let early = ends.recv_timeout(Duration::from_millis(200));
                // Let go before anything is said of it: what waits would wait for ever.
                go.send(!panics).unwrap();
                assert!(early.is_err(), "{early:?} did not wait");
                for _ in 0..4 {
                    match ends.recv_timeout(Duration::from_secs(60)).unwrap() {
                        ("get", Ok(found)) if !panics => assert_eq!(found, "after"),
                        (_, Ok(_)) if !panics => {}
                        (_, Err(Error::Stopped { .. })) if panics => {}
                        other => panic!("{panics}: {other:?}"),
                    }
                }
            });
            drop(engine);
            let engine = Engine::open(device, Options::default()).unwrap();
            let expected = if panics { ("before", None) } else { ("after", Some("guarded".into())) };
            assert_eq!((get(&engine, 0).unwrap().unwrap(), get(&engine, 2).unwrap()), (expected.0.into(), expected.1));
        }
    }
}
