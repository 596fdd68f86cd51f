//! What can go wrong at the waist: one variant per thing that a caller does differently.
//!
//! Invariant: an error of `submit` for which [`Error::is_unknown`] is false means that nothing of the transaction was
//! applied.

use std::any::Any;
use std::sync::Arc;

use crate::Stall;

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of an object store. Cheap to clone, since one failure may answer many waiters.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A guard did not hold; nothing was applied. Read again and retry, or report the conflict.
    #[error("guard {index} of the transaction does not hold")]
    GuardFailed {
        /// Which guard, counted from 0: the first that failed.
        index: usize,
    },
    /// The object that a clone or rename starts from does not exist. Fix the input.
    #[error("object {object} does not exist")]
    NoObject {
        /// The missing object.
        object: String,
    },
    /// The collection does not exist. Create it first.
    #[error("collection {collection} does not exist")]
    NoCollection {
        /// The missing collection.
        collection: String,
    },
    /// A collection to be removed still holds objects. Remove them first.
    #[error("collection {collection} is not empty")]
    NotEmpty {
        /// The collection.
        collection: String,
    },
    /// A name, key, value or transaction exceeds a limit. Fix the input.
    #[error("{what} of {len} bytes exceeds {limit} = {max}")]
    TooLarge {
        /// What is too large.
        what: &'static str,
        /// Its length in bytes (or entries, for `TRANSACTION_OPS_MAX`).
        len: u64,
        /// Name of the limit, as in [`crate::limits`].
        limit: &'static str,
        /// The limit.
        max: u64,
    },
    /// The input makes no sense. Fix the input.
    #[error("invalid {what}: {why}")]
    Invalid {
        /// What is invalid.
        what: &'static str,
        /// Why.
        why: String,
    },
    /// This backend lacks a capability. Use another backend.
    #[error("{backend} cannot {what}")]
    Unsupported {
        /// Name of the backend.
        backend: &'static str,
        /// The missing capability.
        what: &'static str,
    },
    /// The device has no room for this transaction; nothing was applied. Delete something or grow the device.
    #[error("the device is full: {needed} bytes needed, {free} bytes free")]
    Full {
        /// Bytes that the transaction needs.
        needed: u64,
        /// Bytes free for it.
        free: u64,
    },
    /// The store has no room for this transaction now, and was told not to wait for it
    /// ([`WhenBusy::Refuse`](crate::WhenBusy)); nothing was applied. Await
    /// [`ObjectStore::room`](crate::ObjectStore::room) and submit it again.
    #[error("the store has no room for this now: {stall}")]
    Busy {
        /// What to await.
        stall: Stall,
    },
    /// The store was opened read-only. Open it for writing.
    #[error("the store is open read-only")]
    ReadOnly,
    /// Stored bytes do not match their checksum. Restore this piece from a copy; other data is unharmed.
    #[error("corrupt data at device offset {offset}: {what}")]
    Corrupt {
        /// Byte offset on the device, or 0 where a backend has no offsets.
        offset: u64,
        /// What was wrong with it and what it held, as far as known.
        what: String,
    },
    /// Reading failed. Retry may help.
    #[error("{what} failed")]
    Io {
        /// What was tried, with its place.
        what: String,
        /// The operating system's cause.
        #[source]
        source: Arc<std::io::Error>,
    },
    /// A write or sync failed earlier and the store takes no further writes. Stop, mend the device, reopen.
    #[error("the store stopped writing after a failure: {cause}")]
    Stopped {
        /// The first cause.
        cause: Arc<str>,
    },
    /// This store answers nothing now, as a replica without a lease; nothing was applied. Another replica may answer,
    /// or this one later: find out which does, and ask again.
    #[error("nothing was done: {cause}")]
    NotServing {
        /// Why it does not.
        cause: Arc<str>,
    },
    /// The answer was lost on the way: the store applied the transaction, or will, or never does. Look at what it would
    /// have changed, or submit it again under a guard that holds once only, or pass the error on by this name.
    #[error("it is not known whether the transaction was applied: {cause}")]
    Unknown {
        /// How the answer was lost.
        cause: String,
    },
    /// The store was restarted after it had applied something that this writer has not synced since; that may be gone.
    /// Write again what was written since the last sync that succeeded.
    #[error("the store was restarted since it was last synced: what was written in between may be lost")]
    Restarted,
    /// Others changed what was read each time before it could be written. Nothing was applied; try again later.
    #[error("gave up on {what} after {attempts} attempts: others changed it each time")]
    Contended {
        /// What was to be changed.
        what: String,
        /// How often it was tried.
        attempts: u32,
    },
    /// The store was closed. Stop using it.
    #[error("the store is closed")]
    Closed,
}

impl Error {
    /// What stops a store after a panic: whose it was, and what it said.
    pub fn panicked(who: &str, panic: &(dyn Any + Send)) -> Self {
        let said = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        Self::Stopped { cause: format!("{who} panicked: {}", said.unwrap_or("without a message")).into() }
    }

    /// Whether a transaction that was answered so may have been applied, now or later.
    ///
    /// [`Error::Stopped`] is among these: it is also the answer where the store failed between applying and syncing.
    pub fn is_unknown(&self) -> bool {
        matches!(self, Self::Unknown { .. } | Self::Stopped { .. })
    }

    /// An [`Error::Io`] that names what was tried.
    pub fn io(what: impl Into<String>, source: std::io::Error) -> Self {
        Self::Io { what: what.into(), source: Arc::new(source) }
    }
}
