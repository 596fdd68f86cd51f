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
    /// The folder holds a store of another backend, or something else. Use the URL of that backend, or another folder.
    #[error("{path}: found {found}, expected a store of kind {expected}")]
    OtherBackend {
        /// The folder.
        path: PathBuf,
        /// What was found in it.
        found: String,
        /// The backend that was asked for.
        expected: &'static str,
    },
    /// The making of the store was interrupted before anything was stored. Let it be created.
    #[error(
        "the store {path} is half made: its making was interrupted before anything was stored; expected a whole store"
    )]
    HalfMade {
        /// The folder.
        path: PathBuf,
    },
    /// The store was made by a later version. Use that version.
    #[error("the store {path} has format version {found}; this program knows up to {known}")]
    Newer {
        /// The folder.
        path: PathBuf,
        /// Its version.
        found: u32,
        /// The newest that is known.
        known: u32,
    },
    /// The backend is not part of this program. Build it with the feature.
    #[error(
        "this program was built without {scheme}: build it with `cargo build --release -p esker-cli --features {feature}`"
    )]
    NotBuilt {
        /// The backend's name in URLs.
        scheme: &'static str,
        /// The cargo feature that brings it.
        feature: &'static str,
    },
    /// The server whose store this is cannot be used. Start it, or fix the address or the token.
    #[error(transparent)]
    Remote(#[from] esker_remote::Error),
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
    /// The target of a copy holds something. Choose an empty one.
    #[error("the target is not empty and no half copy: it holds the collection {found}")]
    TargetNotEmpty {
        /// One of its collections.
        found: String,
    },
    /// The target is a half copy of something else. Go on from that source, or choose an empty target.
    #[error("the target is a half copy of {found}, not of {expected}")]
    OtherCopy {
        /// The source that was copied before.
        found: String,
        /// The source that was given.
        expected: String,
    },
    /// The store is a half copy itself. End that copy first, or use its source.
    #[error("the source is a half copy: end that copy first")]
    HalfCopy,
    /// The store is not a copy that came to its end. Copy first.
    #[error("this is no copy to compare: the copying did not come to its end, or was compared before")]
    NoCopy,
    /// Source and copy are not the same: the source has changed since, or a store is damaged. Copy again into an empty
    /// target.
    #[error("source and copy differ: {what}")]
    CopyDiffers {
        /// The first difference.
        what: String,
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
    /// The log face refused or failed.
    #[error(transparent)]
    Log(#[from] esker_log::Error),
    /// The operating system gave no random bytes. Stop.
    #[error("no random bytes: {why}")]
    Random {
        /// What the system said.
        why: String,
    },
    /// The map face refused or failed.
    #[error(transparent)]
    Map(#[from] esker_map::Error),
    /// The map on Cassandra cannot be opened; see there for what to do.
    #[cfg(feature = "cassandra")]
    #[error(transparent)]
    Cassandra(#[from] esker_cassandra::Error),
    /// Transactions said no; see there for what to do.
    #[error(transparent)]
    Transaction(#[from] esker_transaction::Error),
    /// The volume face refused or failed.
    #[error(transparent)]
    Volume(#[from] esker_volume::Error),
}
