//! Submitting what adds entries: only to namespaces that are there, whichever process removes them.
//!
//! transaction → guard: each object that it writes to exists, where no guard of the caller's says so → submit; an
//! object that is missing is made under a guard of the namespace's record instead. Where the store changes one object
//! at a time, that of a partition is made empty first, and written to once the record was looked at: who removes the
//! namespace changes the record first, and then removes each object that there is.
//!
//! Invariants:
//! 1. A write that was acknowledged went to a namespace that was not removed yet; where a removal in several steps has
//!    begun, to one whose object was not removed yet, and goes with it.
//! 2. The guards that the caller has set come first, and their failure is the caller's.
//! 3. No object of a partition stays that was made after its namespace was removed, but an empty one where its maker is
//!    killed: opening the face removes it.

use esker_store::{
    Barrier, Change, CommitSeq, Completion, Condition, Error, Guard, ObjectId, Op, Result, Retry, Transaction,
};
use smallvec::SmallVec;

use crate::catalogue::{self, Record};
use crate::placement::Placement;
use crate::shared::Shared;
use crate::{ACROSS_PARTITIONS, Kind};

/// A namespace that is written to.
#[derive(Clone, Copy)]
pub(crate) struct Target<'a> {
    pub name: &'a str,
    pub kind: Kind,
    pub placement: &'a Placement,
}

/// Submits what `build` fills an empty transaction with: writes of entries in these namespaces. It is called again when
/// objects have to be made.
///
/// A failed guard of its own is [`Error::GuardFailed`]; a namespace that is gone is `Invalid`.
pub(crate) fn submit(
    shared: &Shared,
    targets: &[Target<'_>],
    build: impl Fn(&mut Transaction) -> Result<()>,
) -> Completion<CommitSeq> {
    let mut txn = Transaction::new();
    if let Err(error) = build(&mut txn) {
        return Completion::ready(Err(error));
    }
    if targets.iter().any(|target| target.placement.is_parted())
        && let Err(error) = one_object(shared, &txn)
    {
        return Completion::ready(Err(error));
    }
    let own = txn.guards.len();
    let objects = written(targets, &txn);
    guard_exist(&mut txn, objects);
    let done = shared.store.submit(txn);
    if matches!(done.outcome(), Some(Ok(_))) {
        // The commonest outcome goes on as it is.
        return done;
    }
    let (outcome, barrier) = done.into_parts();
    match outcome {
        Err(Error::GuardFailed { index }) if index >= own => make(shared, targets, own, build).behind(barrier),
        outcome => Completion::after(outcome, barrier),
    }
}

/// As [`submit`], of a transaction that is there already, and which [`one_object`] has let pass. Where a namespace's
/// object was there when it was last written to, no copy is kept: if it is gone all the same the outcome is
/// `GuardFailed`, and the caller begins anew; unless `runs_once` says that it must not.
pub(crate) fn submit_whole(
    shared: &Shared,
    targets: &[Target<'_>],
    mut txn: Transaction,
    runs_once: bool,
) -> Completion<CommitSeq> {
    let own = txn.guards.len();
    let objects = written(targets, &txn);
    let is_made =
        |target: &Target<'_>| target.kind == Kind::Bytes && !target.placement.is_parted() && target.placement.is_made();
    let all_made = targets.iter().all(is_made);
    let copy = (!objects.is_empty() && (runs_once || !all_made)).then(|| txn.clone());
    guard_exist(&mut txn, objects);
    let done = shared.store.submit(txn);
    if matches!(done.outcome(), Some(Ok(_))) {
        targets.iter().for_each(|target| target.placement.note_made());
        return done;
    }
    let (outcome, barrier) = done.into_parts();
    match outcome {
        Err(Error::GuardFailed { index }) if index >= own => match copy {
            Some(copy) => {
                let build = |txn: &mut Transaction| {
                    *txn = copy.clone();
                    Ok(())
                };
                make(shared, targets, own, build).behind(barrier)
            }
            None => {
                targets.iter().for_each(|target| target.placement.forget_made());
                Completion::after(Err(Error::GuardFailed { index }), barrier)
            }
        },
        outcome => Completion::after(outcome, barrier),
    }
}

/// Refuses what reaches over several objects, of keys in partitions, where the store changes one at a time.
pub(crate) fn one_object(shared: &Shared, txn: &Transaction) -> Result<()> {
    let capability = shared.store.capability();
    let changed = txn.ops.iter().filter_map(|op| if let Op::Object(object, _) = op { Some(object) } else { None });
    let mut objects = changed.chain(txn.guards.iter().map(|guard| &guard.object));
    let first = objects.next();
    if capability.atomic_across_objects || objects.all(|object| Some(object) == first) {
        return Ok(());
    }
    Err(Error::Unsupported { backend: capability.backend, what: ACROSS_PARTITIONS })
}

/// What a clear answers that has come so far through the objects of these namespaces, and no further.
pub(crate) fn cleared_in_part(names: &[&str], done: usize, objects: usize, error: Error) -> Error {
    if done == 0 {
        return error;
    }
    let names = names.join(" and ");
    Error::Unknown { cause: format!("{done} of {objects} objects of {names} are cleared, the others not: {error}") }
}

fn guard_exist(txn: &mut Transaction, objects: SmallVec<[ObjectId; 2]>) {
    txn.guards.extend(objects.into_iter().map(|object| Guard { object, condition: Condition::Exists }));
}

/// The objects that entries are written to, each once where that is cheap to know, without those of which a guard says
/// that they are there.
fn written(targets: &[Target<'_>], txn: &Transaction) -> SmallVec<[ObjectId; 2]> {
    let mut objects: SmallVec<[ObjectId; 2]> = SmallVec::new();
    for op in &txn.ops {
        let Op::Object(object, change) = op else { continue };
        let adds = change.creates() && targets.iter().any(|target| target.placement.is_entries(object));
        if adds && objects.last() != Some(object) {
            objects.push(object.clone());
        }
    }
    if objects.len() > 2 {
        objects.sort_unstable();
        objects.dedup();
    }
    let is_there = |guard: &Guard| {
        matches!(
            guard.condition,
            Condition::OmapEquals { .. }
                | Condition::OmapPresent { .. }
                | Condition::SlotEquals { .. }
                | Condition::SlotPresent { .. }
        )
    };
    objects.retain(|object| !txn.guards.iter().any(|guard| guard.object == *object && is_there(guard)));
    objects
}

/// Submits under guards of the namespaces' records, which let objects be made.
fn make(
    shared: &Shared,
    targets: &[Target<'_>],
    own: usize,
    build: impl Fn(&mut Transaction) -> Result<()>,
) -> Completion<CommitSeq> {
    let (mut retry, mut barrier) = (Retry::default(), None);
    loop {
        let done = guarded(shared, targets, &build, &mut barrier)
            .and_then(|txn| shared.store.submit(txn).applied(&mut barrier));
        let again = match done {
            Err(Error::GuardFailed { index }) if index >= own => retry.again(|| "the catalogue of namespaces".into()),
            done => return Completion::after(done, barrier),
        };
        if let Err(error) = again {
            return Completion::after(Err(error), barrier);
        }
    }
}

/// The transaction, under the guards that each namespace is there, and counting that objects of ranges are made. Where
/// the store changes one object at a time, objects of partitions are made before.
fn guarded(
    shared: &Shared,
    targets: &[Target<'_>],
    build: impl Fn(&mut Transaction) -> Result<()>,
    barrier: &mut Option<Barrier>,
) -> Result<Transaction> {
    let mut txn = Transaction::new();
    build(&mut txn)?;
    let store = &*shared.store;
    let alone = |target: &Target<'_>| target.placement.is_parted() && !store.capability().atomic_across_objects;
    for target in targets {
        if alone(target) {
            make_parts(shared, target, &txn, barrier)?;
            continue;
        }
        let record = live(shared, target, barrier)?;
        txn.guards.push(record.still(target.name));
        if target.kind == Kind::Int {
            catalogue::count_made(&mut txn, store, target.name, barrier)?;
        }
    }
    let made_before = targets.iter().filter(|target| alone(target)).copied();
    let objects = written(&made_before.collect::<SmallVec<[_; 2]>>(), &txn);
    guard_exist(&mut txn, objects);
    Ok(txn)
}

/// The record of a namespace that is there, and is the one that is written to.
fn live(shared: &Shared, target: &Target<'_>, barrier: &mut Option<Barrier>) -> Result<Record> {
    let Target { name, kind, placement } = target;
    let record = catalogue::find(&*shared.store, name).applied(barrier)?.filter(|record| !record.removing);
    let record = record.ok_or_else(|| catalogue::gone(name))?;
    if record.kind != *kind {
        return Err(catalogue::wrong_kind(name, *kind, "namespace", record.kind));
    }
    if record.layout != placement.layout() {
        return Err(catalogue::gone(name));
    }
    Ok(record)
}

/// Makes the objects of partitions that are written to, empty, and removes them again if their namespace is gone.
fn make_parts(shared: &Shared, target: &Target<'_>, txn: &Transaction, barrier: &mut Option<Barrier>) -> Result<()> {
    let objects = written(std::slice::from_ref(target), txn);
    for object in &objects {
        // A process that removes the namespace finds what there is: it is there for good before the record is looked
        // at.
        let mut made = Transaction::with(esker_store::Durability::Always);
        made.push(object, Change::Touch);
        shared.store.submit(made).wait()?;
    }
    let found = live(shared, target, barrier);
    if matches!(found, Err(Error::Invalid { .. })) {
        for object in &objects {
            let mut gone = Transaction::with(esker_store::Durability::Applied);
            gone.push(object, Change::Remove);
            shared.store.submit(gone).wait()?;
        }
    }
    found.map(drop)
}
