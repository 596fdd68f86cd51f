//! Running generated transactions against a store and the model at once.
//!
//! transaction → model and store → same outcome → (often) the touched objects, (sometimes) everything → (now and then)
//! reopen
//!
//! Invariant: a failure panics with the seed, the step and the transaction.

use super::{Generator, GeneratorOptions, Model, same_error};
use crate::contract::Harness;
use crate::{Change, CommitSeq, ObjectId, Op, Transaction};

/// Everything is compared every so many steps, and at the end; the touched objects are after every step.
const FULL_STEPS: usize = 8;

/// Runs `steps` transactions from `seed` on a fresh store of `harness`.
///
/// # Panics
/// With the seed, when the store does anything that the model does not.
pub fn run(seed: u64, steps: usize, harness: &dyn Harness) {
    run_with(seed, steps, harness, GeneratorOptions::default());
}

/// Like [`run`], with limits on what is generated. What the store cannot do by its capability is left out.
///
/// # Panics
/// With the seed, when the store does anything that the model does not.
pub fn run_with(seed: u64, steps: usize, harness: &dyn Harness, options: GeneratorOptions) {
    let mut opened = harness.fresh();
    let capability = opened.store().capability();
    let options = GeneratorOptions {
        clone: options.clone && capability.clone,
        several: options.several && capability.atomic_across_objects,
        object_bytes_max: options.object_bytes_max.min(capability.object_bytes_max),
        ..options
    };
    let mut generator = Generator::new(seed, options);
    // Apart from the generator, so that the transactions of a seed do not depend on the capability.
    let mut choices = fastrand::Rng::with_seed(seed ^ 0x9e37_79b9_7f4a_7c15);
    let mut model = Model::new();
    let mut last = CommitSeq(0);
    for step in 0..steps {
        let txn = generator.next();
        let fail = |why: String| -> ! {
            panic!("model test failed: seed {seed}, step {step} of {steps}, {}: {why}\n{txn:#?}", capability.backend)
        };
        let expected = model.apply(&txn);
        let (outcome, barrier) = opened.store().submit(txn.clone()).into_parts();
        // A writer that asked for durable does not always wait at once.
        if choices.u8(..4) != 0
            && let Some(barrier) = &barrier
            && let Err(error) = barrier.wait()
        {
            fail(format!("waiting for durability: {error}"));
        }
        match (&expected, &outcome) {
            (Ok(()), Ok(seq)) if *seq >= last => last = *seq,
            (Ok(()), Ok(seq)) => fail(format!("{seq:?} comes after {last:?}")),
            (Err(expected), Err(error)) if same_error(expected, error) => {}
            (expected, outcome) => fail(format!("expected {expected:?}, found {outcome:?}")),
        }
        let difference = if step % FULL_STEPS == 0 || step + 1 == steps {
            model.diff(opened.store())
        } else {
            model.diff_objects(opened.store(), &objects_of(&txn))
        };
        if let Some(difference) = difference {
            fail(difference);
        }
        if capability.persistent && choices.u8(..20) == 0 {
            if let Err(error) = opened.store().sync().wait() {
                fail(format!("sync: {error}"));
            }
            opened.reopen();
            if let Some(difference) = model.diff(opened.store()) {
                fail(format!("after reopening: {difference}"));
            }
        }
    }
}

fn objects_of(txn: &Transaction) -> Vec<ObjectId> {
    let mut ids: Vec<ObjectId> = Vec::new();
    for op in &txn.ops {
        if let Op::Object(id, change) = op {
            ids.push(id.clone());
            ids.extend(change_target(change).cloned());
        }
    }
    ids.extend(txn.guards.iter().map(|guard| guard.object.clone()));
    ids.sort();
    ids.dedup();
    // Names that no transaction may hold cannot exist either.
    ids.retain(|id| !id.name().is_empty() && id.name().len() <= crate::limits::OBJECT_NAME_BYTES_MAX);
    ids
}

fn change_target(change: &Change) -> Option<&ObjectId> {
    match change {
        Change::CloneTo { to } | Change::CloneRange { to, .. } | Change::Rename { to } => Some(to),
        _ => None,
    }
}
