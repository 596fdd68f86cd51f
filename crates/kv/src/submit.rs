//! Submitting what adds entries: only to namespaces that are there, whichever process removes them.
//!
//! transaction → guard: each object that it writes to exists, where no guard of the caller's says so → submit; an object
//! that is missing is made under a guard of the namespace's record instead
//!
//! Invariants:
//! 1. A write that was acknowledged went to a namespace that was not removed yet; where a removal in several steps has
//!    begun, to one whose object was not removed yet, and goes with it.
//! 2. The guards that the caller has set come first, and their failure is the caller's.

use esker_store::{Barrier, CommitSeq, Completion, Condition, Error, Guard, ObjectId, Op, Result, Retry, Transaction};
use smallvec::SmallVec;

use crate::Kind;
use crate::catalogue;
use crate::placement::Placement;
use crate::shared::Shared;

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

/// As [`submit`], of a transaction that is there already. Where a namespace's object was there when it was last written
/// to, no copy is kept: if it is gone all the same the outcome is `GuardFailed`, and the caller begins anew; unless
/// `runs_once` says that it must not.
pub(crate) fn submit_whole(
    shared: &Shared,
    targets: &[Target<'_>],
    mut txn: Transaction,
    runs_once: bool,
) -> Completion<CommitSeq> {
    let own = txn.guards.len();
    let objects = written(targets, &txn);
    let all_made = targets.iter().all(|target| target.kind == Kind::Bytes && target.placement.is_made());
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

/// The transaction, under the guards that each namespace is there, and counting that objects of ranges are made.
fn guarded(
    shared: &Shared,
    targets: &[Target<'_>],
    build: impl Fn(&mut Transaction) -> Result<()>,
    barrier: &mut Option<Barrier>,
) -> Result<Transaction> {
    let mut txn = Transaction::new();
    build(&mut txn)?;
    let store = &*shared.store;
    for Target { name, kind, .. } in targets {
        let record = catalogue::find(store, name).applied(barrier)?.filter(|record| !record.removing);
        let record = record.ok_or_else(|| catalogue::gone(name))?;
        if record.kind != *kind {
            return Err(catalogue::wrong_kind(name, *kind, "namespace", record.kind));
        }
        txn.guards.push(record.still(name));
        if *kind == Kind::Int {
            catalogue::count_made(&mut txn, store, name, barrier)?;
        }
    }
    Ok(txn)
}
