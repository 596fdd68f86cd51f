//! What can go wrong with logs beyond what goes wrong in the store: one variant per thing that a caller does
//! differently.
//!
//! Invariant: an append that returns an error has no entry in the log, save for [`Error::Uncertain`], which names where
//! to look. An epoch that grew stale is not an error: it is met inside by reading the view again.

use crate::nonce::Nonce;

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of the log face.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The store said no; see there for what to do.
    #[error(transparent)]
    Store(#[from] esker_store::Error),
    /// There is no such log (any more). Create it, or fix the name.
    #[error("log {name} does not exist")]
    NoLog {
        /// The missing log.
        name: String,
    },
    /// The name is taken. Choose another.
    #[error("log {name} exists already")]
    Exists {
        /// The log.
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
    /// The log was sealed: it takes no more entries. Write to another.
    #[error("log {log} is sealed at position {tail}")]
    Sealed {
        /// The log.
        log: String,
        /// Its last position and one.
        tail: u64,
    },
    /// Another writer took the log over as its only writer. Stop writing, or take it over again.
    #[error("log {log} was taken over: this writer holds epoch {held}, the log is at {found} (owner {owner:?})")]
    Fenced {
        /// The log.
        log: String,
        /// Epoch that this writer holds; 0 if it never held the log.
        held: u64,
        /// Epoch of the log.
        found: u64,
        /// Who owns it now; empty if it has no owner.
        owner: String,
    },
    /// The position holds an entry already. Read it, or append elsewhere.
    #[error("position {position} is taken")]
    Taken {
        /// The position.
        position: u64,
    },
    /// The position was trimmed. It is never used again.
    #[error("position {position} is trimmed")]
    Trimmed {
        /// The position.
        position: u64,
    },
    /// A conditional append did not find the tail where it was expected. Read what came before, and decide anew.
    #[error("the tail is at {tail}, not at {expected}")]
    NotTail {
        /// Where it was expected.
        expected: u64,
        /// Where it is.
        tail: u64,
    },
    /// The position lies past what the log has handed out. Fix the position.
    #[error("position {position} is past the tail at {tail}")]
    PastTail {
        /// The position.
        position: u64,
        /// The tail.
        tail: u64,
    },
    /// The store did not answer, so it is not known whether the entry is there. `Log::resolve` with position and nonce
    /// finds out.
    #[error("it is not known whether the entry at position {position} was written: {cause}")]
    Uncertain {
        /// Where it would be.
        position: u64,
        /// Who wrote it: of the first entry, if they are several.
        nonce: Nonce,
        /// What the store said.
        cause: esker_store::Error,
    },
    /// The command of a replicated state is in the log, and is applied by every replica that comes to it; what it gave
    /// is not known
    /// here. Do not propose it again: read the state.
    #[error("the command stands at position {position}, and what it gave is not known: {cause}")]
    Proposed {
        /// Where it stands.
        position: u64,
        /// Why this replica did not apply it.
        cause: Box<Error>,
    },
    /// The sequencer does not answer, or is not the log's. Ask again: who appends takes over where none stands by.
    #[error("no sequencer for log {log}: {why}")]
    NoSequencer {
        /// The log.
        log: String,
        /// What was tried.
        why: String,
    },
    /// The log's sequencer was deposed by a newer epoch. Take over again if positions are still to be handed out here.
    #[error("the sequencer of epoch {held} was deposed, the log is at epoch {found}")]
    Deposed {
        /// Epoch that was held.
        held: u64,
        /// Epoch found.
        found: u64,
    },
    /// This backend lacks what the call needs. Use another backend, or another layout.
    #[error("{backend} cannot {what}")]
    Unsupported {
        /// Name of the backend.
        backend: &'static str,
        /// What is missing.
        what: &'static str,
    },
    /// What stands in the store does not make sense. Run a check; restore from a copy.
    #[error("damaged {what}: {why}")]
    Damaged {
        /// What is damaged.
        what: String,
        /// What is wrong with it.
        why: String,
    },
}

impl Error {
    pub(crate) fn invalid(what: &'static str, why: impl Into<String>) -> Self {
        Self::Invalid { what, why: why.into() }
    }

    pub(crate) fn damaged(what: impl Into<String>, why: impl Into<String>) -> Self {
        Self::Damaged { what: what.into(), why: why.into() }
    }
}
