//! Why a file store could not be opened.
//!
//! Invariant: one variant per thing that a caller does differently.

use std::path::PathBuf;

/// An error of opening. Reads and writes fail with [`esker_store::Error`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no store, and none was to be made. Fix the path, or let it be created.
    #[error("there is no store at {path}")]
    NotFound {
        /// The folder.
        path: PathBuf,
    },
    /// Another process has the store open. Stop that process.
    #[error("the store {path} is in use by another process")]
    InUse {
        /// The folder.
        path: PathBuf,
    },
    /// The folder holds something else. Choose another folder.
    #[error("{path} is no file store: found {found}, expected the file STORE of a file store, or an empty folder")]
    Foreign {
        /// The folder.
        path: PathBuf,
        /// What is in it.
        found: String,
    },
    /// The store was made by a later version. Use that version.
    #[error("the store {path} has version {found}, this program knows versions up to {known}")]
    Newer {
        /// The folder.
        path: PathBuf,
        /// Its version.
        found: u32,
        /// The newest that is known.
        known: u32,
    },
    /// The making of the store was interrupted, and it was not to be made. Nothing was ever in it: let it be created.
    #[error("the store {path} is half made: its making was interrupted before anything was stored")]
    HalfMade {
        /// The folder.
        path: PathBuf,
    },
    /// The operating system refused. The cause says what to do.
    #[error("{what} {path}: {source}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// Where.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// What is stored could not be read, or does not hold.
    #[error(transparent)]
    Store(#[from] esker_store::Error),
}
