//! What can go wrong at the waist: one variant per thing that a caller does differently.
//!
//! Invariant: an error of `submit` means that nothing of the transaction was applied, save for
//! [`Error::Stopped`], after which its fate is known only on reopening.

use std::any::Any;
use std::sync::Arc;

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

    /// An [`Error::Io`] that names what was tried.
    pub fn io(what: impl Into<String>, source: std::io::Error) -> Self {
        Self::Io { what: what.into(), source: Arc::new(source) }
    }
}
