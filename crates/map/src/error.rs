//! What can go wrong with maps beyond what goes wrong in the store: one variant per thing that a caller does
//! differently.
//!
//! Invariant: a mutation that returns an error changed nothing, save for [`Error::Unknown`], whose outcome a read
//! tells.

use crate::record::Record;

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of the map face.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The store said no; see there for what to do.
    #[error(transparent)]
    Store(esker_store::Error),
    /// There is no such namespace, table, column or index. Create it, or fix the name.
    #[error("{what} {name} does not exist")]
    Missing {
        /// `namespace`, `table`, `column` or `index`.
        what: &'static str,
        /// Its name.
        name: String,
    },
    /// The name is taken. Choose another.
    #[error("{what} {name} exists already")]
    Exists {
        /// `namespace`, `table`, `column` or `index`.
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
    /// The condition of a mutation does not hold; nothing was changed. Look at the row, and decide anew.
    #[error("the condition of mutation {mutation} does not hold")]
    ConditionFailed {
        /// Which mutation of the list, counted from 0.
        mutation: usize,
        /// The row as it is now, if there is one.
        current: Option<Box<Record>>,
    },
    /// Others were faster, time and again. Retry.
    #[error("gave up on {what} after {attempts} attempts: others changed it each time")]
    Contended {
        /// What was tried.
        what: String,
        /// How often.
        attempts: u32,
    },
    /// The storage did not say what became of the mutation. Read before trying again.
    #[error("it is not known whether the mutation was applied: {cause}")]
    Unknown {
        /// What the storage said.
        cause: String,
    },
    /// The storage cannot be reached, or is too slow; nothing was changed. Try again later.
    #[error("{storage} is not available: {cause}")]
    Unavailable {
        /// Name of the storage.
        storage: &'static str,
        /// What it said, or what came instead.
        cause: String,
    },
    /// This storage lacks what the call needs. Use another storage.
    #[error("{storage} cannot {what}")]
    Unsupported {
        /// Name of the storage.
        storage: &'static str,
        /// What is missing.
        what: &'static str,
    },
    /// What stands in the storage does not make sense. Run a check; restore from a copy.
    #[error("damaged {what}: {why}")]
    Damaged {
        /// What is damaged.
        what: String,
        /// What is wrong with it.
        why: String,
    },
}

impl From<esker_store::Error> for Error {
    fn from(error: esker_store::Error) -> Self {
        match error {
            esker_store::Error::Contended { what, attempts } => Self::Contended { what, attempts },
            error => Self::Store(error),
        }
    }
}

impl Error {
    /// An [`Error::Invalid`].
    pub fn invalid(what: &'static str, why: impl Into<String>) -> Self {
        Self::Invalid { what, why: why.into() }
    }

    /// An [`Error::Missing`].
    pub fn missing(what: &'static str, name: impl Into<String>) -> Self {
        Self::Missing { what, name: name.into() }
    }

    /// An [`Error::Damaged`].
    pub fn damaged(what: impl Into<String>, why: impl Into<String>) -> Self {
        Self::Damaged { what: what.into(), why: why.into() }
    }
}
