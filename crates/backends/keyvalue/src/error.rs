//! What can go wrong when a store is opened. Errors of an open store are those of the waist.

use std::path::PathBuf;

/// Result of opening.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a folder was not opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The folder holds a store of another kind. Name the right kind.
    #[error("{path} holds a store of kind {found}, expected {expected}")]
    OtherKind {
        /// The folder.
        path: PathBuf,
        /// The kind that it holds.
        found: String,
        /// The kind that was asked for.
        expected: &'static str,
    },
    /// The folder holds something else, or its kind file is damaged. Choose another folder.
    #[error("{path} holds no store: {why}")]
    NoStore {
        /// The folder.
        path: PathBuf,
        /// What is there instead.
        why: String,
    },
    /// A newer version wrote the store. Use that version.
    #[error("{path} has format version {found}, newer than {newest}, the newest that is known here")]
    NewerVersion {
        /// The folder.
        path: PathBuf,
        /// The version found.
        found: u32,
        /// [`FORMAT_VERSION`](crate::FORMAT_VERSION).
        newest: u32,
    },
    /// The store was made with strips of another length. Leave the option out, or make another store.
    #[error("{path} was made with strip {found}, not {expected}")]
    OtherStrip {
        /// The folder.
        path: PathBuf,
        /// What it was made with.
        found: crate::StripLen,
        /// What was asked for.
        expected: crate::StripLen,
    },
    /// An option is out of range. Fix it.
    #[error("strip {found}: expected none, or a power of two from {min} to {max} bytes")]
    BadStrip {
        /// What was asked for.
        found: u64,
        /// [`STRIP_BYTES_MIN`](crate::STRIP_BYTES_MIN).
        min: u64,
        /// [`STRIP_BYTES_MAX`](crate::STRIP_BYTES_MAX).
        max: u64,
    },
    /// Another process has the store open. Stop that process.
    #[error("the store {path} is in use by another process")]
    InUse {
        /// The folder.
        path: PathBuf,
    },
    /// There is no store at this place, and it was not to be made. Fix the path, or let it be created.
    #[error("there is no store at {path}")]
    NotFound {
        /// The folder.
        path: PathBuf,
    },
    /// The ordered store did not open. Its own words say why.
    #[error("{path}: {why}")]
    Engine {
        /// The folder.
        path: PathBuf,
        /// RocksDB's or LevelDB's words.
        why: String,
    },
    /// What stands in the ordered store does not hold. Restore from a copy.
    #[error(transparent)]
    Store(#[from] esker_store::Error),
    /// The operating system refused something. Its words say what.
    #[error("{path}")]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
}
