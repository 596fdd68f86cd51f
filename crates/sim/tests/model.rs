//! The simulation's model against the memory backend, which is the simplest reading of the store's documentation.

#![allow(clippy::unwrap_used, reason = "a test that fails")]

use std::sync::Arc;

use esker_memory::MemoryStore;
use esker_sim::generate::{Taste, lasting_collections, one_write, removal, transaction};
use esker_sim::history::{Probe, commit_order, whole_state};
use esker_sim::model::{ModelState, difference};
use esker_store::{Error, ObjectStore, Transaction};

/// Submits to both, and compares everything.
fn step(store: &MemoryStore, state: &mut Arc<ModelState>, order: &mut u64, txn: &Transaction) -> Result<bool, String> {
    let mut tried = *order;
    let expected = state.after(txn, &mut tried);
    let found = store.submit(txn.clone()).wait();
    let applied = expected.is_ok();
    match (expected, found) {
        (Ok(after), Ok(_)) => (*state, *order) = (Arc::new(after), tried),
        (Err(refusal), Err(error)) if refusal.is(&error) => {}
        (expected, found) => return Err(format!("expected {:?}, found {found:?}", expected.map(|_| ()))),
    }
    let shown = whole_state(store).map_err(|unread| unread.to_string())?;
    if let Some(difference) = difference(state, &shown) {
        return Err(difference);
    }
    for collection in &state.collections {
        let found = commit_order(store, collection, 7).map_err(|unread| unread.to_string())?;
        if found != state.commit_order(collection) {
            return Err(format!("commit order of {collection} differs"));
        }
    }
    Ok(applied)
}

#[test]
fn the_model_does_what_the_memory_backend_does() {
    let (mut applied, mut refused) = (0, 0);
    for seed in 0..60 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let taste = Taste { large: seed % 3 == 0, hoards: seed % 5 == 0, copies: true, payload_bytes_max: 36 << 10 };
        let store = MemoryStore::new();
        let (mut state, mut order) = (Arc::new(ModelState::default()), 0);
        let mut txn = Transaction::new();
        for collection in lasting_collections() {
            txn = txn.create_collection(&collection);
        }
        for number in 0..80 {
            match step(&store, &mut state, &mut order, &txn) {
                Ok(true) => applied += 1,
                Ok(false) => refused += 1,
                Err(difference) => panic!("seed {seed}, transaction {number}: {difference}\n{txn:?}"),
            }
            let probe = Probe::random(&mut rng, &state);
            assert_eq!(probe.read(&store).wait().unwrap(), probe.expected(&state), "seed {seed}: {probe:?}");
            if let Some((object, condition)) = probe.false_guard(&state) {
                let outcome = store.submit(Transaction::new().guard(&object, condition)).wait();
                assert!(matches!(outcome, Err(Error::GuardFailed { index: 0 })), "seed {seed}: {probe:?}: {outcome:?}");
            }
            txn = match rng.u8(0..12) {
                0 => removal(&mut rng, &state),
                1 => one_write(&mut rng, 8_000),
                _ => transaction(&mut rng, &state, taste),
            };
        }
    }
    assert!(applied > 3_000 && refused > 100, "{applied} applied, {refused} refused");
}
