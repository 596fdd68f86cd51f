//! Entries on their way, and the opening of the named writer that they are written under.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use esker_store::Durability;

use crate::format;
use crate::log::{Log, Record};
use crate::nonce::Nonce;
use crate::session::Opening;
use crate::{Error, Result};

/// Entries on their way.
pub(crate) struct Batch<'a> {
    pub records: &'a [Record],
    /// Of the first; the others count on.
    pub nonce: Nonce,
    /// The named writer's opening: entries can be found by their nonce later, and are not written once it was opened
    /// again.
    pub fence: Option<&'a Fence>,
    pub durability: Durability,
    pub time_ms: u64,
    /// Set when the entry was found where an unanswered write of it had been tried: of a named writer's, another
    /// process may have written it.
    pub found: Cell<bool>,
}

impl Batch<'_> {
    pub(crate) fn nonce(&self, number: usize) -> Nonce {
        Nonce { number: self.nonce.number + number as u64, ..self.nonce }
    }
}

/// The opening of a named writer.
pub(crate) struct Fence {
    pub key: Bytes,
    pub name: String,
    /// The head's version with it.
    pub version: u64,
    pub epoch: u64,
    /// The last opening of the name by the same handle: under one epoch the head is not asked again.
    pub latest: Arc<Opening>,
    /// Up to this epoch it is known to be the last.
    pub verified: AtomicU64,
}

impl Fence {
    /// What is answered once the writer was opened again.
    pub(crate) fn fenced(&self, log: &Log, found: u64) -> Error {
        Error::Fenced { log: log.name().to_owned(), held: self.epoch, found, owner: self.name.clone() }
    }

    /// Refuses to write under `epoch` if the writer was opened again since.
    pub(crate) fn check(&self, log: &Log, epoch: u64) -> Result<()> {
        if epoch <= self.verified.load(Ordering::SeqCst) {
            return Ok(());
        }
        let noted = log.store().omap_get(&format::head(log.id()), &self.key).wait()?;
        if noted.as_deref().and_then(format::number_from) != Some(self.version) {
            return Err(self.fenced(log, epoch));
        }
        self.verified.fetch_max(epoch, Ordering::SeqCst);
        Ok(())
    }
}
