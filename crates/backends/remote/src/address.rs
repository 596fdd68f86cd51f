//! Where a server is, and how it is reached: a channel that connects by itself, again after every loss.
//!
//! place, options → [`Channel`] · a thread's question → task on the process's runtime → answer
//!
//! Invariants:
//! 1. A thread that asks needs no runtime of its own, and may be one of another runtime that is allowed to wait.
//! 2. A token goes to another machine by TLS only.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::runtime::Runtime;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Request, Status};

/// Threads that talk to servers, for all stores and sequencers of the process.
const THREADS: usize = 2;

/// How a server is reached.
#[derive(Clone)]
pub struct Options {
    /// What the server asks for as its token. Default: none.
    pub token: Option<String>,
    /// Authorities (PEM) that the server's certificate is checked with; with them TLS is spoken. Default: none, and no
    /// TLS.
    pub authorities: Option<PathBuf>,
    /// Certificate chain and key (PEM) that the server is shown; only of use with authorities. Default: none.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// How long a call may take, and a connection to be made. Default: 30 s.
    pub timeout: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self { token: None, authorities: None, identity: None, timeout: Duration::from_secs(30) }
    }
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The token must not appear in logs.
        f.debug_struct("Options").field("timeout", &self.timeout).finish_non_exhaustive()
    }
}

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// `HOST:PORT`.
    Tcp(String),
    /// A unix socket.
    Unix(PathBuf),
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "grpc://{address}"),
            Self::Unix(path) => write!(f, "grpc+unix:{}", path.display()),
        }
    }
}

impl std::str::FromStr for Place {
    type Err = Error;

    /// Reads `HOST:PORT`, `grpc://HOST:PORT` or `grpc+unix:PATH`.
    fn from_str(text: &str) -> Result<Self> {
        if let Some(path) = text.strip_prefix("grpc+unix:") {
            return Ok(Self::Unix(path.into()));
        }
        let address = text.strip_prefix("grpc://").unwrap_or(text);
        let ported =
            address.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
        if !ported || address.contains('/') {
            return Err(Error::Address { found: text.into() });
        }
        Ok(Self::Tcp(address.into()))
    }
}

/// Result of opening.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a server cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The address is not understood. Fix it.
    #[error("address {found:?}: expected grpc://HOST:PORT or grpc+unix:PATH")]
    Address {
        /// What was given.
        found: String,
    },
    /// The token, the authorities or the certificate cannot be used. Fix them.
    #[error("{what}: {why}")]
    Option {
        /// Which.
        what: &'static str,
        /// What is wrong.
        why: String,
    },
    /// The server does not answer, or does not let us in. Start it with `--grpc-objects`, or give the token.
    #[error("{place}: {why}")]
    Unreachable {
        /// Where it was looked for.
        place: Place,
        /// What came instead of an answer.
        why: String,
    },
}

/// The process's runtime for talking to servers.
pub(crate) fn runtime() -> std::io::Result<&'static Runtime> {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    if let Some(runtime) = RUNTIME.get() {
        return Ok(runtime);
    }
    let made = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(THREADS)
        .thread_name("esker-remote")
        .enable_all()
        .build()?;
    Ok(RUNTIME.get_or_init(|| made))
}

/// Does `future` on the process's runtime and waits for it.
pub(crate) fn ask<T: Send + 'static>(future: impl Future<Output = T> + Send + 'static) -> std::io::Result<T> {
    let (sender, receiver) = std::sync::mpsc::sync_channel(1);
    runtime()?.spawn(async move {
        // Who asked waits for it.
        let _ = sender.send(future.await);
    });
    receiver.recv().map_err(|_| std::io::Error::other("the task that asks the server panicked"))
}

/// Adds the token to every call.
#[derive(Clone)]
pub(crate) struct WithToken(Option<MetadataValue<Ascii>>);

impl tonic::service::Interceptor for WithToken {
    fn call(&mut self, mut request: Request<()>) -> std::result::Result<Request<()>, Status> {
        if let Some(token) = &self.0 {
            request.metadata_mut().insert("authorization", token.clone());
        }
        Ok(request)
    }
}

/// A channel that carries the token.
pub(crate) type Tokened = tonic::service::interceptor::InterceptedService<Channel, WithToken>;

/// A channel to `place`. Connects when it is first used.
pub(crate) fn channel(place: &Place, options: &Options) -> Result<Tokened> {
    let wrong = |what, why: String| Error::Option { what, why };
    let token = match &options.token {
        None => None,
        Some(token) => {
            let value = format!("Bearer {token}").parse();
            Some(value.map_err(|_| wrong("token", "it holds something else than visible ASCII".into()))?)
        }
    };
    let _inside = runtime().map_err(|error| wrong("threads", error.to_string()))?.enter();
    let scheme = if options.authorities.is_some() { "https" } else { "http" };
    let uri = match place {
        Place::Tcp(address) => format!("{scheme}://{address}"),
        Place::Unix(_) => "http://localhost".into(),
    };
    let endpoint = Endpoint::from_shared(uri).map_err(|_| Error::Address { found: place.to_string() })?;
    let mut endpoint = endpoint
        .connect_timeout(options.timeout)
        .tcp_nodelay(true)
        .tcp_keepalive(Some(Duration::from_secs(60)))
        .http2_keep_alive_interval(Duration::from_secs(20))
        .keep_alive_timeout(Duration::from_secs(20));
    if options.identity.is_some() && options.authorities.is_none() {
        return Err(wrong("certificate", "it is shown by TLS only: give authorities as well".into()));
    }
    if let (Some(path), Place::Tcp(_)) = (&options.authorities, place) {
        let authorities = read(path).map_err(|why| wrong("authorities", why))?;
        let mut tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(authorities));
        if let Some((certificate, key)) = &options.identity {
            let certificate = read(certificate).map_err(|why| wrong("certificate", why))?;
            tls = tls.identity(Identity::from_pem(certificate, read(key).map_err(|why| wrong("key", why))?));
        }
        endpoint = endpoint.tls_config(tls).map_err(|error| wrong("authorities", error.to_string()))?;
    }
    let channel = match place {
        Place::Tcp(address) => {
            // A name that leads nowhere is told now, and not as a failure of the first call.
            let found = address
                .to_socket_addrs()
                .map_err(|error| Error::Unreachable { place: place.clone(), why: error.to_string() });
            let found: Arc<[SocketAddr]> = found?.collect();
            if options.token.is_none() || options.authorities.is_some() {
                endpoint.connect_lazy()
            } else {
                if found.is_empty() || found.iter().any(|address| !address.ip().is_loopback()) {
                    let why = format!("it would go to {place} in the clear: give the authorities of its certificate");
                    return Err(wrong("token", why));
                }
                // The name may lead elsewhere later: only what was looked at is connected to.
                endpoint.connect_with_connector_lazy(tower::service_fn(move |_| {
                    let found = Arc::clone(&found);
                    async move {
                        let stream = tokio::net::TcpStream::connect(&found[..]).await?;
                        stream.set_nodelay(true)?;
                        Ok::<_, std::io::Error>(hyper_util::rt::TokioIo::new(stream))
                    }
                }))
            }
        }
        Place::Unix(path) => {
            let path = path.clone();
            endpoint.connect_with_connector_lazy(tower::service_fn(move |_| {
                let path = path.clone();
                async move { tokio::net::UnixStream::connect(path).await.map(hyper_util::rt::TokioIo::new) }
            }))
        }
    };
    Ok(Tokened::new(channel, WithToken(token)))
}

fn read(path: &Path) -> std::result::Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))
}
