//! Guards of values that are not in memory: looked at together, and the first that fails is the one that is named.

#![allow(clippy::unwrap_used, reason = "a test that fails")]

#[path = "support/counted.rs"]
mod counted;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use counted::Counted;
use esker_device::{Device, MemoryDevice};
use esker_engine::{Engine, FormatOptions, Options};
use esker_store::{Change, Compression, Condition, Error, ObjectId, ObjectStore, Transaction};

fn object() -> ObjectId {
    ObjectId::new("c".into(), "o")
}

fn value(index: u64) -> Bytes {
    Bytes::from(format!("{index:08}").repeat(150))
}

fn equals(index: u64) -> Condition {
    Condition::SlotEquals { index, value: value(index) }
}

/// Failure: each value that was not in memory, as compressed ones never are, cost a whole new look at all guards before
/// it, under the
/// object's lock: removing 10,000 keys by one call took 10^8 comparisons. Fix: one look names all that it needs.
#[test]
fn many_guards_of_cold_values_are_read_once_and_the_first_that_fails_is_named() {
    const KEYS: u64 = 3_000;
    for compression in [Compression::None, Compression::Zstd] {
        let device = Arc::new(Counted::new(MemoryDevice::new(64 << 20)));
        Engine::format(&*device, &FormatOptions { segment_bytes: 1 << 20, uuid: [4; 16] }).unwrap();
        let options = || Options { recent_bytes: 0, cache_bytes: 0, ..Options::default() };
        let engine = Engine::open(Arc::clone(&device) as Arc<dyn Device>, options()).unwrap();
        engine.submit(Transaction::new().create_collection(&"c".into())).wait().unwrap();
        for first in (0..KEYS).step_by(500) {
            let mut txn = Transaction::new().compress(compression);
            (first..first + 500).for_each(|index| txn.push(&object(), Change::SlotSet { index, value: value(index) }));
            engine.submit(txn).wait().unwrap();
        }
        engine.close().unwrap();
        let engine = Engine::open(Arc::clone(&device) as Arc<dyn Device>, options()).unwrap();
        let guarded = |conditions: &[Condition]| {
            let mut txn = Transaction::new().change(&object(), Change::SlotRemove { index: KEYS - 1 });
            conditions.iter().for_each(|condition| txn = std::mem::take(&mut txn).guard(&object(), condition.clone()));
            txn
        };
        let mut all: Vec<Condition> = (0..KEYS).map(equals).collect();
        // A guard that fails by what is in memory stands behind one that fails by what is not.
        all[700] = Condition::SlotEquals { index: 700, value: value(701) };
        all[900] = Condition::SlotAbsent { index: 900 };
        let refused = engine.submit(guarded(&all)).wait();
        assert!(matches!(refused, Err(Error::GuardFailed { index: 700 })), "{refused:?}");
        all[700] = equals(700);
        let refused = engine.submit(guarded(&all)).wait();
        assert!(matches!(refused, Err(Error::GuardFailed { index: 900 })), "{refused:?}");
        all[900] = equals(900);
        let before = device.reads.load(Ordering::SeqCst);
        engine.submit(guarded(&all)).wait().unwrap();
        let reads = device.reads.load(Ordering::SeqCst) - before;
        assert!(reads <= KEYS + 100, "{reads} reads of {KEYS} values");
        assert_eq!(engine.slot_get(&object(), KEYS - 1).wait().unwrap(), None);
    }
}
