//! How clients of gRPC and NBD reach a cluster: by any of its servers, with TLS and a certificate of their own.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// What is not answered within this is given up: what becomes of it is not known.
pub const ANSWER: Duration = Duration::from_secs(4);
/// Where a call fails, the next one waits.
pub const AFTER_ERROR: Duration = Duration::from_millis(20);

/// Servers that pass connections on to the one that heads the chain.
#[derive(Clone, Debug)]
pub struct Door {
    /// Where they listen; at least one.
    pub nodes: Vec<SocketAddr>,
    /// A folder with `ca-cert.pem`, `client-cert.pem` and `client-key.pem`.
    pub certificates: PathBuf,
    /// What the certificates of all servers name.
    pub host: String,
}

impl Door {
    /// One of them, by chance.
    pub fn node(&self, rng: &mut fastrand::Rng) -> SocketAddr {
        self.nodes[rng.usize(0..self.nodes.len())]
    }
}
