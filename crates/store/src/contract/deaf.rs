//! A store whose reads fail behind its first write: a change that is made, and the look after it that is lost.
//!
//! Invariant: what is written reaches the store behind, and is answered, whatever becomes of reads.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use crate::{CommitSeq, Completion, Error, Forward, ObjectId, ObjectStore, Result, Transaction};

/// Goes deaf when it is told to.
pub struct Deaf {
    store: Arc<dyn ObjectStore>,
    /// Writes after which no read is answered; negative: all are.
    writes_left: AtomicI64,
}

impl Deaf {
    /// In front of a store; it answers every read.
    pub fn over(store: Arc<dyn ObjectStore>) -> Arc<Self> {
        Arc::new(Self { store, writes_left: AtomicI64::new(-1) })
    }

    /// Answers no read any more once so many writes more are made.
    pub fn after_writes(&self, writes: u32) {
        self.writes_left.store(i64::from(writes), Ordering::SeqCst);
    }

    /// Answers every read again.
    pub fn hears(&self) {
        self.writes_left.store(-1, Ordering::SeqCst);
    }

    /// Whether reads are not answered.
    pub fn is_deaf(&self) -> bool {
        self.writes_left.load(Ordering::SeqCst) == 0
    }
}

impl Forward for Deaf {
    fn behind(&self) -> &dyn ObjectStore {
        &*self.store
    }

    fn submit(&self, txn: Transaction) -> Completion<CommitSeq> {
        let done = Completion::ready(self.store.submit(txn).wait());
        if self.writes_left.load(Ordering::SeqCst) > 0 {
            self.writes_left.fetch_sub(1, Ordering::SeqCst);
        }
        done
    }

    fn before(&self, _: Option<&ObjectId>) -> Result<()> {
        if self.is_deaf() {
            return Err(Error::io("asking", std::io::Error::other("no answer")));
        }
        Ok(())
    }
}
