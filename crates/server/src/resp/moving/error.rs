//! Why slots do not go to another chain.

use std::time::Duration;

/// Why a step of a move was not taken.
#[derive(Debug, thiserror::Error)]
pub enum MoveError {
    /// The store's, or that of the face of keys.
    #[error(transparent)]
    Kv(#[from] esker_kv::Error),
    /// Not a slot.
    #[error("slot {0}: expected one below 16384")]
    NoSlot(u32),
    /// The chain that a slot was to come to keeps it.
    #[error("this chain keeps slot {slot}, in epoch {epoch} and newer")]
    Kept {
        /// The slot.
        slot: u16,
        /// The epoch in which it was to come.
        epoch: u64,
    },
    /// A slot that was to come has not left this chain altogether.
    #[error("slot {0} is leaving this chain still")]
    Leaving(u16),
    /// The chain that slots were to come to has not heard that it shares any.
    #[error("this chain has not heard yet that it shares slots with others")]
    Alone,
    /// The chain that slots were to come to has keys of clients of its own.
    #[error("this chain shares no slots yet, and holds {0} keys of clients of its own: empty it first")]
    HasKeys(u64),
    /// A namespace with keys that no server of this chain serves: they would stay behind.
    #[error(
        "this chain holds keys of namespace {0:?}, which this server does not serve: set thrift_namespace, or empty it"
    )]
    Unserved(String),
    /// The chains serve different namespaces by Thrift.
    #[error("this chain serves {own:?} by Thrift, and the other {theirs:?}: set the same thrift_namespace for both")]
    Thrift {
        /// That of the chain that slots were to come from.
        theirs: String,
        /// That of this one; empty: none.
        own: String,
    },
    /// It was never begun here, or is over, or another head has taken over since.
    #[error("no move {0:016x} is under way here")]
    NoMove(u64),
    /// A key of a slot that was not to come.
    #[error("a key of slot {0}, which is not to come")]
    OtherSlot(u16),
    /// What was put makes no sense.
    #[error("{0}")]
    Malformed(&'static str),
    /// Reads of the slots that had begun did not end.
    #[error("reads of keys had begun before their slots were closed, and have not ended within {0:?}")]
    Readers(Duration),
    /// The server stops, or the plan is another.
    #[error("it is not to go on")]
    Over,
}

impl From<esker_store::Error> for MoveError {
    fn from(error: esker_store::Error) -> Self {
        Self::Kv(error.into())
    }
}
