//! What can go wrong with a call, by what a caller does about it.
//!
//! Invariant: whether a write was done is left open only by [`Error::Unknown`], and by an [`Error::Refused`] of the
//! kind `InternalError` that says so. Of a batch, what is of other chains may be done before any error.

use std::time::Duration;

use crate::address::Address;

/// What a call came to.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A key that is none: fix it.
    #[error("key {0:?}: expected a decimal number up to 18446744073709551615 without leading zeros")]
    Key(String),
    /// A server has answered that it does not do it, or could not: its message says what to fix, or whether a write was
    /// done.
    #[error("{}", .0.message)]
    Refused(thrift::ApplicationError),
    /// A write was sent and not answered: whether it was done is not known. It was not sent again.
    #[error("whether it was written is not known: {server}: {source}")]
    Unknown {
        /// The server that has not answered.
        server: Address,
        /// What came instead.
        source: thrift::Error,
    },
    /// No server was reached, and nothing was done: try again later.
    #[error("for {patience:?} no server of key {key:?} was reached; the last: {last}")]
    Unreachable {
        /// The key, or the first of its batch.
        key: String,
        /// For how long one was looked for.
        patience: Duration,
        /// What became of the last attempt, and of the registry where that is not read.
        last: String,
    },
    /// The node of the registry can be none: fix it.
    #[error(transparent)]
    Registry(#[from] esker_cluster::Error),
    /// The thread that watches the registry cannot be started.
    #[error("the registry cannot be watched")]
    Thread(#[source] std::io::Error),
}
