//! What keeps a server from being a member.

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a server is no member of its chain.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The coordinator cannot be used, or says no.
    #[error(transparent)]
    Coordinator(#[from] esker_cluster::Error),
    /// Peers cannot be listened to.
    #[error(transparent)]
    Peers(#[from] esker_peers::Error),
    /// The store cannot be read or written.
    #[error(transparent)]
    Store(#[from] esker_store::Error),
    /// Another process has registered as this server: end it, or choose another number.
    #[error("another process has registered as server {server}: it is served once")]
    Superseded {
        /// Which.
        server: u32,
    },
    /// Threads cannot be had. Try again.
    #[error("starting the threads of a member: {0}")]
    Io(#[from] std::io::Error),
}
