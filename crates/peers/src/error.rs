//! What keeps a server from its peers.

use std::net::SocketAddr;
use std::path::PathBuf;

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Why peers cannot be listened to or reached.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The address cannot be listened on. Choose another, or end what listens there.
    #[error("listening for peers on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// Others than this machine could connect without showing who they are. Give certificates, or listen on loopback.
    #[error("peers are not listened to on {address} without certificates (peer_tls_cert, peer_tls_key, peer_tls_ca)")]
    Open {
        /// The address.
        address: SocketAddr,
    },
    /// A file of certificates or keys cannot be used. Fix it.
    #[error("TLS file {path}: {why}")]
    Tls {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// Threads or sockets cannot be had. Try again.
    #[error("starting what connects to peers: {0}")]
    Io(#[from] std::io::Error),
}
