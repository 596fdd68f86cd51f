//! What can go wrong when a store is opened or used through this library.
//!
//! Invariant: one variant per thing that a caller does differently; the errors of the layers below pass through with
//! their text unchanged.

use std::path::PathBuf;

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of the library. Those of reading and writing are inside [`Error::Kv`] and [`Error::Store`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The location is not understood. Fix the text.
    #[error("location {found:?} is not understood: expected {expected}")]
    Location {
        /// What was given.
        found: String,
        /// What is understood.
        expected: &'static str,
    },
    /// An option of the location does not exist. Fix the text.
    #[error("unknown option {key:?}: expected one of {expected}")]
    UnknownOption {
        /// The option's name.
        key: String,
        /// The names that exist.
        expected: String,
    },
    /// An option's value is not understood, or out of range. Fix the text.
    #[error("option {key}={found}: {why}")]
    BadOption {
        /// The option's name.
        key: String,
        /// The value that was given.
        found: String,
        /// What is wrong with it.
        why: String,
    },
    /// There is no store at this place, and it was not to be made. Fix the path, or let it be created.
    #[error("there is no store at {path}")]
    NotFound {
        /// Where the store was looked for.
        path: PathBuf,
    },
    /// Another process has the store open. Stop that process.
    #[error("the store {path} is in use by another process")]
    InUse {
        /// The store's device.
        path: PathBuf,
    },
    /// A store cannot be repaired into itself. Choose another path.
    #[error("{path} is the damaged store itself: the repaired one needs another place")]
    SameStore {
        /// Its device.
        path: PathBuf,
    },
    /// What is to be made exists already. Choose another path, or force it.
    #[error("{path} exists already")]
    Exists {
        /// The path.
        path: PathBuf,
    },
    /// The disk has too little room for a store. Free space or name a size.
    #[error("{path}: {free} bytes are free, a store needs at least {needed}; give a size, or free some space")]
    NoRoom {
        /// Where the store should go.
        path: PathBuf,
        /// Bytes free.
        free: u64,
        /// Bytes that the smallest store needs.
        needed: u64,
    },
    /// The operating system refused. The cause says what to do.
    #[error("{what} {path}: {source}")]
    Io {
        /// What was tried: `create`, `open`, `rename`…
        what: &'static str,
        /// The path.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// This needs the engine, and the store is of another kind. Use another location.
    #[error("{what} needs a store on a device; this one is {backend}")]
    NoEngine {
        /// What was wanted.
        what: &'static str,
        /// The backend that the store has.
        backend: &'static str,
    },
    /// The device failed.
    #[error(transparent)]
    Device(#[from] esker_device::Error),
    /// The store refused or failed.
    #[error(transparent)]
    Store(#[from] esker_store::Error),
    /// The key-value face refused or failed.
    #[error(transparent)]
    Kv(#[from] esker_kv::Error),
}
