//! What a writer has to sync, and in which life of the store it was written.
//!
//! [`Unsynced::begin`] → submit → applied → [`Written::applied`] … [`Unsynced::sync`]: the same life still? else [`Error::Restarted`]
//!
//! A store keeps what it has applied until it is synced or dies. Who writes without syncing, and syncs later, needs both from one life:
//! a sync of the next one succeeds and covers nothing of what was lost.
//!
//! Invariants:
//! 1. A sync that succeeds covers every write of the same [`Unsynced`] that was noted as applied before it began.
//! 2. A loss is told once per [`Unsynced`]: each writer keeps its own.

use parking_lot::Mutex;

use crate::incarnation::Incarnation;
use crate::{Error, ObjectStore, Result};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Noted {
    /// Everything is synced.
    #[default]
    Nothing,
    /// All of it was begun when this life had answered last.
    In(Incarnation),
    /// Of more than one life: no sync covers all.
    Mixed,
}

impl Noted {
    fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Nothing, one) | (one, Self::Nothing) => one,
            (Self::In(a), Self::In(b)) if a == b => self,
            _ => Self::Mixed,
        }
    }
}

/// What one writer has had applied since its last sync.
#[derive(Debug, Default)]
pub struct Unsynced {
    noted: Mutex<Noted>,
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
    /// [`Error::Restarted`] if the store was restarted since the first of it; those of [`ObjectStore::sync`], after which it still is to
    /// be synced.
    pub fn sync(&self, store: &dyn ObjectStore) -> Result<()> {
        let noted = std::mem::take(&mut *self.noted.lock());
        if let Err(error) = store.sync().wait() {
            let mut now = self.noted.lock();
            *now = noted.and(*now);
            return Err(error);
        }
        match noted {
            Noted::Nothing => Ok(()),
            // It was looked at before the first write; the store's answer to the sync came after the last.
            Noted::In(life) if life == store.incarnation() => Ok(()),
            Noted::In(_) | Noted::Mixed => Err(Error::Restarted),
        }
    }
}

impl Written<'_> {
    /// The transaction was applied, or may have been.
    pub fn applied(self) {
        let mut noted = self.unsynced.noted.lock();
        *noted = noted.and(Noted::In(self.life));
    }
}
