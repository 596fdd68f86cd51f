//! What can go wrong with transactions beyond what goes wrong in the storage: one variant per thing that a caller does
//! differently.
//!
//! Invariant: a transaction whose commit returns an error changed nothing and never will, save for [`Error::Unknown`].

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of transactions.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The storage said no; see there for what to do. A condition that does not hold for what the transaction sees is
    /// [`ConditionFailed`](esker_map::Error::ConditionFailed), and the transaction may go on.
    #[error(transparent)]
    Map(#[from] esker_map::Error),
    /// Another transaction was faster. Begin a new one and do it all again.
    #[error("the transaction conflicts with another: {what}")]
    Conflict {
        /// Where they met.
        what: String,
    },
    /// The transaction took too long. Begin a new one, with less to do, or raise the limit.
    #[error("the transaction is {age_ms} ms old, at most {limit_ms} ms are allowed (lifetime_ms)")]
    Expired {
        /// How old it was when it was to be committed.
        age_ms: u64,
        /// [`Options::lifetime_ms`](crate::Options::lifetime_ms).
        limit_ms: u64,
    },
    /// The storage did not say what became of the commit. Ask [`Transactions::outcome`](crate::Transactions::outcome)
    /// if `asked_of_coordinator`, else read what it would have written, before trying again.
    #[error("it is not known whether transaction {transaction} was committed: {cause}")]
    Unknown {
        /// The transaction.
        transaction: String,
        /// It has a record in the coordinator's table, or will be found to have none; otherwise it was one mutation of
        /// the storage.
        asked_of_coordinator: bool,
        /// What the storage said.
        cause: String,
    },
    /// The table was not made for transactions. Make it with
    /// [`Transactions::create_table`](crate::Transactions::create_table).
    #[error("table {table} is not one of transactions: {why}")]
    NotTransactional {
        /// The table.
        table: String,
        /// What it lacks.
        why: String,
    },
    /// What stands in the storage does not make sense. Restore from a copy.
    #[error("damaged {what}: {why}")]
    Damaged {
        /// What is damaged.
        what: String,
        /// What is wrong with it.
        why: String,
    },
}

impl Error {
    pub(crate) fn conflict(what: impl Into<String>) -> Self {
        Self::Conflict { what: what.into() }
    }

    pub(crate) fn damaged(what: impl Into<String>, why: impl Into<String>) -> Self {
        Self::Damaged { what: what.into(), why: why.into() }
    }

    pub(crate) fn invalid(what: &'static str, why: impl Into<String>) -> Self {
        Self::Map(esker_map::Error::Invalid { what, why: why.into() })
    }

    /// Whether the same transaction, begun anew, may succeed; nothing of this one was committed.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Conflict { .. } | Self::Expired { .. } | Self::Map(esker_map::Error::Contended { .. }))
    }
}
