//! What can go wrong before there is a storage; everything after that is an [`esker_map::Error`].

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of opening.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The location is not understood. Fix it.
    #[error("{found:?} is no place of a map on Cassandra: {why}")]
    Place {
        /// What was given.
        found: String,
        /// What is wrong with it.
        why: String,
    },
    /// No node can be reached or lets us in. Look at the addresses, the nodes, the user and the password, and whether
    /// they insist on TLS: then they break off.
    #[error("no node of {nodes} can be used without TLS: {why}")]
    Unreachable {
        /// The nodes that were tried.
        nodes: String,
        /// What came instead of an answer.
        why: String,
    },
    /// The catalogue cannot be read or made.
    #[error(transparent)]
    Map(#[from] esker_map::Error),
}
