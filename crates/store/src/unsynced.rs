//! What a writer has to sync, and in which life of the store it was written.
//!
//! [`Unsynced::begin`] → submit → applied → [`Written::applied`] … [`Unsynced::sync`]: the same life still? else
//! [`Error::Restarted`]
//!
//! A store keeps what it has applied until it is synced or dies. Who writes without syncing, and syncs later, needs
//! both from one life: a sync of the next one succeeds and covers nothing of what was lost.
//!
//! Invariants:
//! 1. A sync that succeeds covers every write of the same [`Unsynced`] that was noted as applied before it began.
//! 2. A loss is told to every sync of the same [`Unsynced`] that began before the first that tells it has ended, and to
//!    no later one:
//!    each writer keeps its own.

use parking_lot::Mutex;

use crate::incarnation::Incarnation;
use crate::{CommitSeq, Completion, Error, ObjectStore, Result};

/// What one writer has had applied since its last sync.
#[derive(Debug, Default)]
pub struct Unsynced {
    noted: Mutex<Noted>,
}

/// The writes that are still to be synced: by the life in which they were begun, the number of the last.
#[derive(Clone, Debug, Default)]
struct Noted {
    lives: Vec<(Incarnation, u64)>,
    writes: u64,
}

impl Noted {
    /// Forgets what `synced`, an earlier state of this, had. A life with later writes stays.
    fn forget(&mut self, synced: &Self) {
        self.lives.retain(|life| !synced.lives.contains(life));
    }
}

/// A write that was begun.
#[must_use = "a write that was applied has to be noted"]
#[derive(Debug)]
pub struct Written<'a> {
    unsynced: &'a Unsynced,
    life: Incarnation,
}

impl Unsynced {
    /// To be called before a transaction is submitted that need not be durable when it is answered.
    pub fn begin(&self, store: &dyn ObjectStore) -> Written<'_> {
        Written { unsynced: self, life: store.incarnation() }
    }

    /// Has everything synced that was noted.
    ///
    /// # Errors
    /// [`Error::Restarted`] if the store was restarted since the first of it; those of [`ObjectStore::sync`], after
    /// which it still is to be synced.
    pub fn sync(&self, store: &dyn ObjectStore) -> Result<()> {
        self.flush(store).wait().map(drop)
    }

    /// As [`Unsynced::sync`], without waiting for the device where the store does not.
    ///
    /// # Errors
    /// As there. If the completion fails later the store has stopped, for all its writers.
    pub fn flush(&self, store: &dyn ObjectStore) -> Completion<CommitSeq> {
        // It stays noted until it is synced: another flush that begins meanwhile has to cover it too.
        let noted = self.noted.lock().clone();
        let (synced, barrier) = store.sync().into_parts();
        let told = synced.and_then(|seq| {
            // A life was looked at before its first write; the store's answer to the sync came after the last.
            let present = store.incarnation();
            let lost = noted.lives.iter().any(|(life, _)| *life != present);
            self.noted.lock().forget(&noted);
            if lost { Err(Error::Restarted) } else { Ok(seq) }
        });
        Completion::after(told, barrier)
    }
}

impl Written<'_> {
    /// The transaction was applied, or may have been.
    pub fn applied(self) {
        if self.life == Incarnation::LOCAL {
            // It ends with its user.
            return;
        }
        let mut noted = self.unsynced.noted.lock();
        noted.writes += 1;
        let number = noted.writes;
        match noted.lives.iter_mut().find(|(life, _)| *life == self.life) {
            Some((_, last)) => *last = number,
            None => noted.lives.push((self.life, number)),
        }
    }
}
