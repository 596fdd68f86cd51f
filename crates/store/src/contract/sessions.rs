//! A store whose openings can be shut out, as clients of Ceph can.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};

use crate::{Capability, CommitSeq, Completion, Error, Forward, ObjectStore, Result, Session, Transaction};

/// An opening of the store behind.
pub struct Sessions {
    store: Arc<dyn ObjectStore>,
    own: u64,
    shared: Arc<Shared>,
    /// Sessions that were shut out through this opening: what it reads no late write of theirs changes.
    knows: Mutex<BTreeSet<u64>>,
}

#[derive(Default)]
struct Shared {
    last: AtomicU64,
    /// Held over each submit, so that none is under way when one is shut out.
    out: RwLock<BTreeSet<u64>>,
}

impl Sessions {
    /// The first opening.
    pub fn new(store: Arc<dyn ObjectStore>) -> Self {
        Self { store, own: 0, shared: Arc::default(), knows: Mutex::default() }
    }

    /// Whether every session that is shut out was shut out through this opening too.
    #[must_use]
    pub fn knows_all(&self) -> bool {
        *self.knows.lock() == *self.shared.out.read()
    }
}

impl Forward for Sessions {
    fn behind(&self) -> &dyn ObjectStore {
        &*self.store
    }

    fn capability(&self) -> Capability {
        Capability { sessions: true, ..self.store.capability() }
    }

    fn submit(&self, txn: Transaction) -> Completion<CommitSeq> {
        let out = self.shared.out.read();
        if out.contains(&self.own) {
            let cause = format!("session {} is shut out", self.own).into();
            return Completion::ready(Err(Error::Stopped { cause }));
        }
        self.store.submit(txn)
    }

    fn session(&self) -> Result<Session> {
        let own = 1 + self.shared.last.fetch_add(1, Ordering::SeqCst);
        let (store, shared) = (Arc::clone(&self.store), Arc::clone(&self.shared));
        let store = Self { store, own, shared, knows: Mutex::default() };
        Ok(Session { store: Arc::new(store), name: Bytes::from(own.to_string()) })
    }

    fn shut_out(&self, session: &[u8]) -> Result<()> {
        let number = std::str::from_utf8(session).ok().and_then(|text| text.parse().ok());
        let number =
            number.ok_or_else(|| Error::Invalid { what: "session", why: session.escape_ascii().to_string() })?;
        self.shared.out.write().insert(number);
        self.knows.lock().insert(number);
        Ok(())
    }
}
