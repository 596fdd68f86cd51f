//! What can go wrong in this face beyond what goes wrong in the store.
//!
//! Invariant: a call that returns an error changed nothing, save for the store's `Stopped` and `Unknown`: the latter is
//! also the answer of a removal or a clear that was done in part. Checks of keys and values answer with the store's own
//! `TooLarge` and `Invalid`, so that completions need one error type.

use crate::Kind;

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// What the store's `Unsupported` says where keys of several partitions were to be changed at once, or one changed
/// because of what others hold, on a store that changes one object at a time.
pub const ACROSS_PARTITIONS: &str = "change keys of several partitions at once";

/// An error of the key-value face.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The store said no; see there for what to do.
    #[error(transparent)]
    Store(#[from] esker_store::Error),
    /// The namespace exists with the other kind. Open it with that, or choose another name.
    #[error("namespace {name} holds {found} keys, not {wanted} keys")]
    WrongKind {
        /// The namespace.
        name: String,
        /// The kind it has.
        found: Kind,
        /// The kind that was asked for.
        wanted: Kind,
    },
    /// Something that was read is on its way, and the transaction does not wait: see
    /// [`Txn::do_not_wait`](crate::Txn::do_not_wait). Drop it, await what it gives, and begin anew.
    #[error("a value is on its way, and the transaction does not wait")]
    OnItsWay,
    /// There is no such namespace. Create it first.
    #[error("namespace {name} does not exist")]
    NoNamespace {
        /// The missing namespace.
        name: String,
    },
    /// The name cannot be a namespace's. Choose another.
    #[error("invalid namespace name {name:?}: {why}")]
    InvalidName {
        /// The name.
        name: String,
        /// Why not.
        why: String,
    },
}
