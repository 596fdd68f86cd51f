//! How peers are reached: where they are, and a connection to one.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use esker_chain::ServerId;
use esker_wire::proto::chain::replication_client::ReplicationClient;
use parking_lot::RwLock;
use tokio::runtime::Handle;
use tonic::transport::{Channel, ClientTlsConfig, Endpoint};

/// Longest message, in bytes: a transaction, or a part of a copy.
pub(crate) const MESSAGE_BYTES_MAX: usize = 96 << 20;
/// A peer that says nothing is asked whether it is there so often, and is gone after as long again.
pub(crate) const ALIVE_EVERY: Duration = Duration::from_secs(1);
/// Letters on their way that were not taken, in bytes, on a stream and on a connection.
pub(crate) const WINDOW_BYTES: u32 = 4 << 20;
/// How long a connection may take to be made.
const CONNECT: Duration = Duration::from_secs(3);

/// The way to peers.
pub(crate) struct Reach {
    /// Where bytes are moved.
    pub(crate) runtime: Handle,
    tls: Option<ClientTlsConfig>,
    /// By chain: a server may have told one of them another place already.
    servers: RwLock<HashMap<String, BTreeMap<ServerId, String>>>,
}

impl Reach {
    pub(crate) fn new(runtime: Handle, tls: Option<ClientTlsConfig>) -> Self {
        Self { runtime, tls, servers: RwLock::default() }
    }

    /// Where the peers of a chain listen, as `HOST:PORT`.
    pub(crate) fn know(&self, chain: &str, servers: BTreeMap<ServerId, String>) {
        self.servers.write().insert(chain.to_owned(), servers);
    }

    /// A connection to a peer, for a chain.
    ///
    /// # Errors
    /// Why there is none.
    pub(crate) async fn connect(&self, chain: &str, to: ServerId) -> Result<ReplicationClient<Channel>, String> {
        let address = self.servers.read().get(chain).and_then(|servers| servers.get(&to)).cloned();
        let address = address.ok_or_else(|| "it is not said where it is".to_owned())?;
        let client = ReplicationClient::new(channel(&address, self.tls.clone()).await?);
        Ok(client.max_decoding_message_size(MESSAGE_BYTES_MAX).max_encoding_message_size(MESSAGE_BYTES_MAX))
    }
}

/// A connection to what listens for peers at `HOST:PORT`.
pub(crate) async fn channel(address: &str, tls: Option<ClientTlsConfig>) -> Result<Channel, String> {
    let scheme = if tls.is_some() { "https" } else { "http" };
    let endpoint = Endpoint::from_shared(format!("{scheme}://{address}")).map_err(|error| error.to_string())?;
    let mut endpoint = endpoint
        .connect_timeout(CONNECT)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(ALIVE_EVERY)
        .keep_alive_timeout(ALIVE_EVERY)
        .keep_alive_while_idle(true)
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES);
    if let Some(tls) = tls {
        endpoint = endpoint.tls_config(tls).map_err(|error| error.to_string())?;
    }
    endpoint.connect().await.map_err(|error| {
        let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}")).unwrap_or_default();
        format!("{error}{cause}")
    })
}
