//! The servers of a cluster, as one of them reaches the others.
//!
//! [`Peers::bind`] → [`Peers::know`] where they are → [`Peers::links`] for a node → [`Peers::join`]: it hears

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use esker_chain::{Links, Message, Node, Operation, ServerId};
use esker_store::ObjectStore;
use esker_wire::proto::chain as proto;
use esker_wire::proto::chain::letter::What;
use parking_lot::Mutex;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tonic::service::Routes;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Identity, ServerTlsConfig};

use crate::hub::Hub;
use crate::letters::{decoded, encoded};
use crate::reach::{Reach, channel};
use crate::service::{self, Service};
use crate::{Error, Result};

/// Threads of the runtime that moves bytes: with more, most of their time went into waking each other.
const THREADS: usize = 1;
/// From a copy that could not be made to the next.
const PAUSE: Duration = Duration::from_secs(2);
/// What is under way at the end is waited for so long.
const END: Duration = Duration::from_secs(1);

/// Certificates that servers of a cluster show each other, in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The chain, this server's own first.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// The authorities of all servers of the cluster.
    pub authorities: PathBuf,
}

/// How a server listens to its peers.
#[derive(Clone, Debug)]
pub struct Config {
    /// The cluster: servers of another are not listened to.
    pub cluster: String,
    /// This server.
    pub me: ServerId,
    /// Where it listens.
    pub listen: SocketAddr,
    /// Certificates; without them only loopback addresses are listened on.
    pub tls: Option<TlsFiles>,
    /// Bytes per second that a copy for this server takes, at most; 0: no limit.
    pub copy_bytes_per_s: u64,
    /// Bytes of letters that wait for one server, at most: more than a node keeps for it.
    pub waiting_bytes_max: usize,
}

/// What a node wants of its server.
pub trait Asked: Send + Sync {
    /// The table is to be read again, soon. Waits for nothing.
    fn refresh(&self);

    /// The node has brought a server up in this version of the table. Waits for nothing.
    fn in_step(&self, server: ServerId, version: u64);
}

/// This server among its peers.
pub struct Peers {
    hub: Arc<Hub>,
    /// `None` once it has stopped.
    runtime: Mutex<Option<Runtime>>,
    address: SocketAddr,
    stop: watch::Sender<bool>,
}

impl Peers {
    /// Listens. Letters are taken once a node has joined.
    ///
    /// # Errors
    /// [`Error::Open`], [`Error::Listen`], [`Error::Tls`], [`Error::Io`].
    pub fn bind(config: Config) -> Result<Self> {
        Self::bind_beside(config, Routes::default())
    }

    /// The same, and answers these calls of gRPC on the same address.
    ///
    /// # Errors
    /// Those of [`Peers::bind`].
    pub fn bind_beside(config: Config, beside: Routes) -> Result<Self> {
        let address = config.listen;
        if config.tls.is_none() && !address.ip().is_loopback() {
            return Err(Error::Open { address });
        }
        let tls = config.tls.as_ref().map(tls).transpose()?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(THREADS)
            .thread_name("esker-peers")
            .enable_all()
            .build()?;
        let listen = |source| Error::Listen { address, source };
        let socket = std::net::TcpListener::bind(address).map_err(listen)?;
        socket.set_nonblocking(true).map_err(listen)?;
        let address = socket.local_addr().map_err(listen)?;
        let (stop, stopping) = watch::channel(false);
        let (client_tls, server_tls) = tls.unzip();
        let reach = Arc::new(Reach::new(runtime.handle().clone(), client_tls));
        let hub =
            Arc::new(Hub::new(config.cluster, config.me, reach, (config.waiting_bytes_max, config.copy_bytes_per_s)));
        let own = Service::new(Arc::downgrade(&hub));
        service::start(&runtime, socket, server_tls, (own, beside), stopping)?;
        Ok(Self { hub, runtime: Mutex::new(Some(runtime)), address, stop })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where the peers of a chain listen, as `HOST:PORT`; those that are not named any more are not connected to for
    /// it.
    pub fn know(&self, chain: &str, servers: BTreeMap<ServerId, String>) {
        self.hub.reach.know(chain, servers);
    }

    /// What a node of this chain reaches others by.
    pub fn links(&self, chain: &str, asked: Arc<dyn Asked>) -> Arc<dyn Links> {
        Arc::new(ChainLinks { hub: Arc::clone(&self.hub), chain: chain.to_owned(), asked })
    }

    /// From now on this node hears what is sent for the chain; one that did before does not.
    pub fn join(&self, chain: &str, node: &Arc<Node>) {
        self.hub.join(chain, node);
    }

    /// No node hears what is sent for the chain, and no copy is pulled for it; waits until that is so.
    pub fn leave(&self, chain: &str) {
        self.hub.leave(chain);
    }

    /// Whether letters for this chain reach a server now.
    pub fn reaches(&self, chain: &str, server: ServerId) -> bool {
        self.hub.way(chain, server).is_open()
    }

    /// This server does not come back under its number: nothing is sent to it for this chain any more.
    pub fn forget(&self, chain: &str, server: ServerId) {
        self.hub.forget(chain, server);
    }

    /// Bytes that the copy which is pulled for this chain has looked at so far, if one is.
    pub fn copied_bytes(&self, chain: &str) -> Option<u64> {
        self.hub.pulling.progress(chain)
    }

    /// Ends what is offered of a chain in another version of its table than this, and what was not asked for lately.
    pub fn tidy(&self, chain: &str, version: u64) {
        for server in self.hub.copies.tidy(chain, version) {
            self.hub.begin_later(chain.to_owned(), server, PAUSE);
        }
    }

    /// Ends all streams, and what listens.
    pub fn stop(&self) {
        // What serves may have ended.
        let _ = self.stop.send(true);
        self.hub.stop();
        if let Some(runtime) = self.runtime.lock().take() {
            runtime.shutdown_timeout(END);
        }
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A node's way to the others.
struct ChainLinks {
    hub: Arc<Hub>,
    chain: String,
    asked: Arc<dyn Asked>,
}

impl Links for ChainLinks {
    fn send(&self, to: ServerId, message: Message<Operation>) {
        self.hub.way(&self.chain, to).send(message);
    }

    fn refresh(&self) {
        self.asked.refresh();
    }

    fn tell_in_step(&self, server: ServerId, version: u64) {
        self.asked.in_step(server, version);
    }

    fn encode(&self, operation: &Operation) -> Bytes {
        encoded(operation)
    }

    fn decode(&self, message: Bytes) -> esker_store::Result<Operation> {
        decoded(message).map_err(|what| esker_store::Error::Corrupt { offset: 0, what })
    }

    fn again(&self, server: ServerId) {
        self.hub.begin_later(self.chain.clone(), server, PAUSE);
    }

    fn copy(&self, to: ServerId, version: u64, seq: u64, store: Arc<dyn ObjectStore>) {
        let copy = self.hub.copies.offer(&self.chain, to, version, store);
        tracing::info!(chain = self.chain, server = %to, seq, "a copy is offered");
        self.hub.way(&self.chain, to).post(What::Copy(proto::Copy { version, seq, copy }));
    }
}

/// A connection to what listens for peers at `HOST:PORT`, for calls that are answered beside letters.
///
/// # Errors
/// Why there is none.
pub async fn connect(address: &str, files: Option<&TlsFiles>) -> std::result::Result<Channel, String> {
    let tls = files.map(tls).transpose().map_err(|error| error.to_string())?;
    channel(address, tls.map(|(client, _)| client)).await
}

fn tls(files: &TlsFiles) -> Result<(ClientTlsConfig, ServerTlsConfig)> {
    let read =
        |path: &Path| std::fs::read(path).map_err(|error| Error::Tls { path: path.to_owned(), why: error.to_string() });
    let identity = Identity::from_pem(read(&files.certificate)?, read(&files.key)?);
    let authorities = Certificate::from_pem(read(&files.authorities)?);
    let client = ClientTlsConfig::new().ca_certificate(authorities.clone()).identity(identity.clone());
    Ok((client, ServerTlsConfig::new().identity(identity).client_ca_root(authorities)))
}
