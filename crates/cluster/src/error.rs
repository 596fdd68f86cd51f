//! What can go wrong with the coordinator, by what a caller does about it.
//!
//! Invariant: only [`Error::Unknown`] leaves open whether something was written; after every other error nothing was.

use std::time::Duration;

/// What a call came to.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a call to the coordinator failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The coordinator did not answer in time, and nothing was written: try again later.
    #[error("{location} did not answer within {bound:?}: {reason}")]
    Unreachable {
        /// Where it should be.
        location: String,
        /// How long was waited, at most.
        bound: Duration,
        /// What the last attempt said.
        reason: String,
    },
    /// The answer to a write was lost. It may be carried out, even later: read again before anything rests on it.
    #[error("whether {node} was written is not known: {reason}")]
    Unknown {
        /// The node, or the first of those that are written together.
        node: String,
        /// What became of the answer.
        reason: String,
    },
    /// There is a chain of this name.
    #[error("there is a chain `{0}` already")]
    Exists(String),
    /// Chains share the slots of keys already: others cannot be made to share them.
    #[error("the slots of keys are shared out already; `esker cluster chains` shows among which chains")]
    SlotsExist,
    /// No chains share the slots of keys.
    #[error("no chains share the slots of keys: `esker cluster spread` makes chains that do")]
    NoSlots,
    /// There is no chain of this name.
    #[error("there is no chain `{0}`")]
    NoChain(String),
    /// A name that cannot be a chain's.
    #[error("`{0}` cannot be a chain's name: 1 to 100 of the letters a-z, A-Z, 0-9, `-`, `_` and `.`, no `.` first")]
    Name(String),
    /// A table that does not come next: its version has to be one more than that of the table in place.
    #[error("a table of version {given} cannot follow version {last}")]
    NotNext {
        /// The version in place.
        last: u64,
        /// The version that was to follow.
        given: u64,
    },
    /// A node holds what this program cannot have written, or what a newer one has.
    #[error("{node} makes no sense: {reason}")]
    Damaged {
        /// Which node.
        node: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The coordinator will not do it, now or later: rights, quotas, its version.
    #[error("the coordinator refuses {node}: {reason}")]
    Refused {
        /// Which node.
        node: String,
        /// What it said.
        reason: String,
    },
}
