//! A store that says it is on the other side of a network, and whose writes of a test's choice hang.
#![allow(dead_code, reason = "each test file uses its own part")]

use std::sync::Arc;

use bytes::Bytes;
use esker_store::{
    Barrier, Capability, Change, CommitSeq, Completion, Forward, ObjectId, ObjectStore, Op, Result, Transaction,
};
use parking_lot::{Condvar, Mutex};

#[derive(Default)]
struct Held {
    /// Transactions that write these bytes hang.
    marks: Vec<&'static [u8]>,
    /// Reads hang too.
    reads: bool,
    hanging: usize,
}

/// The store.
pub struct Afar {
    store: Arc<dyn ObjectStore>,
    held: Mutex<Held>,
    changed: Condvar,
}

fn writes(txn: &Transaction, mark: &[u8]) -> bool {
    let has = |bytes: &Bytes| bytes.windows(mark.len()).any(|window| window == mark);
    txn.ops.iter().any(|op| match op {
        Op::Object(_, Change::OmapSet { value, .. }) => has(value),
        _ => false,
    })
}

impl Afar {
    pub fn new(store: Arc<dyn ObjectStore>) -> Arc<Self> {
        Arc::new(Self { store, held: Mutex::default(), changed: Condvar::new() })
    }

    /// Has writes of values with these bytes hang.
    pub fn hold(&self, mark: &'static [u8]) {
        self.held.lock().marks.push(mark);
    }

    /// Has reads hang.
    pub fn hold_reads(&self) {
        self.held.lock().reads = true;
    }

    /// What hangs, hangs no more.
    pub fn let_go(&self) {
        let mut held = self.held.lock();
        held.marks.clear();
        held.reads = false;
        self.changed.notify_all();
    }

    /// Calls that hang.
    pub fn hanging(&self) -> usize {
        self.held.lock().hanging
    }

    fn hang_while(&self, hangs: impl Fn(&Held) -> bool) {
        let mut held = self.held.lock();
        if !hangs(&held) {
            return;
        }
        held.hanging += 1;
        while hangs(&held) {
            self.changed.wait(&mut held);
        }
        held.hanging -= 1;
    }
}

impl Forward for Afar {
    fn behind(&self) -> &dyn ObjectStore {
        &*self.store
    }

    fn capability(&self) -> Capability {
        Capability { afar: true, ..self.store.capability() }
    }

    fn before(&self, _: Option<&ObjectId>) -> Result<()> {
        self.hang_while(|held| held.reads);
        Ok(())
    }

    fn after(&self) -> Result<Option<Barrier>> {
        Ok(None)
    }

    fn submit(&self, txn: Transaction) -> Completion<CommitSeq> {
        self.hang_while(|held| held.marks.iter().any(|mark| writes(&txn, mark)));
        self.store.submit(txn)
    }
}
