//! What this backend asks of an ordered key-value store.
//!
//! Keys order as bytes. The first byte of a key says which family it belongs to (see the module `keys`), so that an
//! engine with column families can keep each in its own; no scan crosses families.
//!
//! Invariants:
//! 1. A batch is applied whole or not at all, also across a crash, and after the batches before it.
//! 2. A cursor shows the moment at which it was made. It looks for its first entry when that is asked for: making one
//!    is cheap, as it is done under a lock.
//! 3. A write with `sync` returns when it and every write before it survive power loss.

use bytes::Bytes;
use esker_store::Result;

/// Changes that are made together: first the ranges go, then the entries are set or removed.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// Ranges of keys to remove, `start <= key < end`, each within one family. Only where
    /// [`Ordered::removes_ranges`] is true.
    pub ranges: Vec<(Bytes, Bytes)>,
    /// Keys with their new values; `None` removes.
    pub entries: Vec<(Bytes, Option<Bytes>)>,
}

/// One entry that a cursor stands on.
pub type Entry<'a> = (&'a [u8], &'a [u8]);

/// Walks over a range.
pub trait Cursor {
    /// The next entry, or `None` at the end.
    ///
    /// # Errors
    /// [`esker_store::Error::Corrupt`] or [`esker_store::Error::Io`] with the engine's own words.
    fn next(&mut self) -> Result<Option<Entry<'_>>>;
}

/// An ordered key-value store.
pub trait Ordered: Send + Sync {
    /// The value of a key.
    ///
    /// # Errors
    /// [`esker_store::Error::Corrupt`] or [`esker_store::Error::Io`] with the engine's own words.
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>>;

    /// Entries with `start <= key < end`, from low to high or, with `reverse`, from high to low. Both ends are in one
    /// family.
    ///
    /// # Errors
    /// As for [`Ordered::get`].
    fn cursor(&self, start: &[u8], end: &[u8], reverse: bool) -> Result<Box<dyn Cursor + '_>>;

    /// Applies a batch.
    ///
    /// # Errors
    /// As for [`Ordered::get`]; whether the batch was applied is then known only on reopening.
    fn write(&self, batch: &Batch, sync: bool) -> Result<()>;

    /// Whether [`Batch::ranges`] costs the same for any number of keys.
    fn removes_ranges(&self) -> bool;

    /// Rewrites a range of which most was removed, so that scans do not step over what is gone. May take long.
    fn compact(&self, start: &[u8], end: &[u8]);

    /// Whether what was written is there when the store is opened again.
    fn persistent(&self) -> bool;
}
