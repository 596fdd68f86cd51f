//! Clearing partitions: what is told where only some were cleared.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use esker_kv::{Durability, Kind, Kv, ManualClock};
use esker_memory::MemoryStore;
use esker_store::contract::PerObject;
use esker_store::{CommitSeq, Completion, Error as StoreError, Forward, ObjectStore, Transaction};

use crate::{KINDS, NOON_MS, nth};

/// A store that changes one object at a time, and refuses to after so many times.
struct Failing {
    store: PerObject<MemoryStore>,
    left: AtomicU64,
}

impl Forward for Failing {
    fn behind(&self) -> &dyn ObjectStore {
        &self.store
    }

    fn submit(&self, txn: Transaction) -> Completion<CommitSeq> {
        if self.left.load(Ordering::SeqCst) == 0 {
            return Completion::ready(Err(StoreError::Full { needed: 1, free: 0 }));
        }
        self.left.fetch_sub(1, Ordering::SeqCst);
        Forward::submit(&self.store, txn)
    }
}

/// Failure: a clear that failed after 29 partitions answered with the error of the 30th, which says that nothing was
/// applied.
#[test]
fn a_clear_that_fails_half_way_is_told_as_one_and_one_that_did_nothing_as_it_is() {
    for kind in KINDS {
        for (in_txn, cleared) in [(false, 0), (false, 29), (true, 0), (true, 29)] {
            let failing = Arc::new(Failing { store: PerObject(MemoryStore::new()), left: AtomicU64::new(u64::MAX) });
            let clock = Arc::new(ManualClock::new(NOON_MS));
            let kv = Kv::open(Arc::clone(&failing) as Arc<dyn ObjectStore>, clock).unwrap();
            let namespace = kv.namespace("n", kind).unwrap();
            // Each number is in a range of its own, and each partition has some of the byte keys.
            let keys = if kind == Kind::Int { 64 } else { 2_000 };
            (0..keys).for_each(|n| namespace.put(&nth(kind, n), "v").wait().unwrap());
            let clear = || {
                if !in_txn {
                    return namespace.clear().wait();
                }
                let mut txn = kv.begin_exclusive();
                txn.clear(&namespace);
                txn.commit(Durability::Durable).wait()
            };
            failing.left.store(cleared, Ordering::SeqCst);
            let failed = clear();
            failing.left.store(u64::MAX, Ordering::SeqCst);
            let left = namespace.len().wait().unwrap();
            match failed {
                Err(StoreError::Full { .. }) => assert_eq!((cleared, left), (0, keys)),
                Err(StoreError::Unknown { cause }) => {
                    assert!(cause.starts_with("29 of 64 objects of n are cleared"), "{cause}");
                    assert!(cleared == 29 && 0 < left && left < keys, "{left} left");
                }
                other => panic!("{other:?}, {cleared} cleared, in a transaction: {in_txn}"),
            }
            clear().unwrap();
            assert_eq!(namespace.len().wait().unwrap(), 0);
        }
    }
}
