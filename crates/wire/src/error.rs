//! What can be wrong with a message.
//!
//! Invariant: an error names the field, as `Message.field` of the published files, so that who wrote the message finds
//! it.

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// A message that makes no sense. Who wrote it has to fix it: the same message is refused again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A field says what its reader does not understand, or says nothing where it must. Fix the message.
    #[error("{field}: {why}")]
    Malformed {
        /// The field: `Message.field`.
        field: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// A list is longer than it may be. Send several messages.
    #[error("{field}: {len} exceed {limit} = {max}")]
    TooMany {
        /// The field: `Message.field`.
        field: &'static str,
        /// Entries in the list.
        len: u64,
        /// Name of the limit.
        limit: &'static str,
        /// The limit.
        max: u64,
    },
}

impl Error {
    /// An [`Error::Malformed`].
    pub(crate) fn malformed(field: &'static str, why: impl Into<String>) -> Self {
        Self::Malformed { field, why: why.into() }
    }
}

/// Checks the length of a list.
pub(crate) fn at_most(field: &'static str, len: usize, limit: &'static str, max: usize) -> Result<()> {
    if len > max {
        return Err(Error::TooMany { field, len: len as u64, limit, max: max as u64 });
    }
    Ok(())
}
