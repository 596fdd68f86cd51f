//! What can go wrong with volumes beyond what goes wrong in the store: one variant per thing that a caller does
//! differently.
//!
//! Invariant: a call that returns an error changed nothing, unless its docs say that it works in several transactions
//! (large writes, discards, resizing, background work): then what was done stays, and doing it again goes on.

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of the volume face.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The store said no; see there for what to do.
    #[error(transparent)]
    Store(#[from] esker_store::Error),
    /// There is no such image. Create it, or fix the name.
    #[error("image {name} does not exist")]
    NoImage {
        /// The missing image.
        name: String,
    },
    /// The image is being imported, or its import was interrupted. Wait for the import, or remove the image and import
    /// it
    /// again.
    #[error(
        "image {name} is not all there: it is being imported, or its import was interrupted; if so, remove it and \
             import it again"
    )]
    Unfinished {
        /// The image.
        name: String,
    },
    /// The image has no such snapshot (any more). Fix the name.
    #[error("image {image} has no snapshot {name}")]
    NoSnapshot {
        /// The image.
        image: String,
        /// The missing snapshot.
        name: String,
    },
    /// The name is taken. Choose another.
    #[error("{what} {name} exists already")]
    Exists {
        /// `image` or `snapshot`.
        what: &'static str,
        /// Its name.
        name: String,
    },
    /// The input makes no sense or exceeds a limit. Fix the input.
    #[error("invalid {what}: {why}")]
    Invalid {
        /// What is invalid.
        what: &'static str,
        /// Why, with the limit.
        why: String,
    },
    /// The request reaches past the end of the image. Fix the request, or grow the image.
    #[error("{len} bytes at {offset} reach past the end of the image at {size}")]
    PastEnd {
        /// First byte asked for.
        offset: u64,
        /// Bytes asked for.
        len: u64,
        /// Size of the image in bytes.
        size: u64,
    },
    /// The state of the image forbids it. Do first what the reason names.
    #[error("refused: {why}")]
    Refused {
        /// The reason, and what would help.
        why: String,
    },
    /// Another client holds the exclusive lock. Wait for its owner, or take over.
    #[error("image {image} is locked by {owner} (epoch {epoch})")]
    Locked {
        /// The image.
        image: String,
        /// Who holds it.
        owner: String,
        /// Epoch of the lock.
        epoch: u64,
    },
    /// This handle's lock was taken over or broken; its writes are refused for good. Stop writing, open the image
    /// again.
    #[error("the lock of image {image} with epoch {held} was lost; the epoch is {found} now")]
    Fenced {
        /// The image.
        image: String,
        /// Epoch that this handle had.
        held: u64,
        /// Epoch of the image.
        found: u64,
    },
    /// What the store holds for this face cannot be read. Restore it from a copy.
    #[error("damaged {what}: {why}")]
    Damaged {
        /// Which object or record.
        what: String,
        /// What is wrong with it.
        why: String,
    },
    /// A later version of Esker wrote this. Use that.
    #[error("{what} has version {found}; this program reads up to {max}")]
    Newer {
        /// What has it.
        what: &'static str,
        /// Its version.
        found: u32,
        /// The highest known.
        max: u32,
    },
    /// A stream that is exported to or imported from failed. Mend it and begin again.
    #[error("{what} failed")]
    Stream {
        /// What was tried, with its place.
        what: String,
        /// The operating system's cause.
        #[source]
        source: std::sync::Arc<std::io::Error>,
    },
}

impl Error {
    pub(crate) fn refused(why: impl Into<String>) -> Self {
        Self::Refused { why: why.into() }
    }

    pub(crate) fn stream(what: impl Into<String>, source: std::io::Error) -> Self {
        Self::Stream { what: what.into(), source: std::sync::Arc::new(source) }
    }
}
