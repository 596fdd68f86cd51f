//! HTTP for monitors: whether the server lives, whether it takes writes, and its figures.
//!
//! [`Server::bind`] → addresses are open → [`Server::start`] → a thread answers → [`Running::stop`]
//!
//! | path | answer |
//! |---|---|
//! | `/livez` | 200 as long as the process answers |
//! | `/readyz` | 200 while writes are taken; else 503 and why |
//! | `/metrics` | the figures, for Prometheus |
//!
//! Invariants:
//! 1. Only loopback addresses are listened on: there is no credential, and figures tell much.
//! 2. Nothing here waits for the store: all that is told is known without it.
//! 3. At most [`CONNECTIONS_MAX`] connections are open, each for one request and ten seconds at most; for one more the
//! oldest    is closed.

mod figures;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{oneshot, watch};

pub use figures::{Figure, Source, Value};

use crate::front::strangers::{PATIENCE, Strangers};

/// Most connections at once.
pub const CONNECTIONS_MAX: usize = 64;
/// When the system gives no more connections, accepting starts again after this.
const AGAIN: Duration = Duration::from_millis(100);

/// Why nothing can be served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Figures are told to everybody who reaches the address. Listen on loopback, and let a proxy ask for a credential.
    #[error("refusing to serve HTTP on {0}: it has no credential, so only loopback addresses are served")]
    Open(SocketAddr),
    /// The address cannot be listened on. Choose another, or stop the program that has it.
    #[error("cannot listen on {address}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The operating system's cause.
        #[source]
        source: std::io::Error,
    },
    /// The system gives no thread or poll. Stop.
    #[error("serving HTTP: {0}")]
    Io(#[from] std::io::Error),
}

/// A server that listens.
pub struct Server {
    listeners: Vec<std::net::TcpListener>,
    addresses: Vec<SocketAddr>,
}

/// A server that answers.
pub struct Running {
    stop: watch::Sender<bool>,
    thread: JoinHandle<()>,
}

impl Server {
    /// Listens. Port 0 picks a free one.
    ///
    /// # Errors
    /// [`Error::Open`] for other addresses than those of loopback; [`Error::Listen`].
    pub fn bind(listen: &[SocketAddr]) -> Result<Self, Error> {
        let (mut listeners, mut addresses) = (Vec::new(), Vec::new());
        for address in listen {
            if !address.ip().is_loopback() {
                return Err(Error::Open(*address));
            }
            let failed = |source| Error::Listen { address: *address, source };
            let listener = std::net::TcpListener::bind(address).map_err(failed)?;
            listener.set_nonblocking(true).map_err(failed)?;
            addresses.push(listener.local_addr().map_err(failed)?);
            listeners.push(listener);
        }
        Ok(Self { listeners, addresses })
    }

    /// Where it listens, with the ports that were picked for port 0.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Answers on a thread of its own.
    ///
    /// # Errors
    /// [`Error::Io`] if there is no thread to be had.
    pub fn start(self, source: Arc<dyn Source>) -> Result<Running, Error> {
        let (stop, stopping) = watch::channel(false);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let listeners = {
            let _inside = runtime.enter();
            self.listeners.into_iter().map(TcpListener::from_std).collect::<std::io::Result<Vec<_>>>()?
        };
        let thread = std::thread::Builder::new().name("esker-http".into()).spawn(move || {
            runtime.block_on(async {
                let strangers = Strangers::new(CONNECTIONS_MAX, PATIENCE);
                for listener in listeners {
                    tokio::spawn(accept(listener, Arc::clone(&strangers), Arc::clone(&source)));
                }
                let mut stopping = stopping;
                // One that is gone stops as well.
                let _ = stopping.wait_for(|stopping| *stopping).await;
            });
            // What is under way is no more than a line.
            runtime.shutdown_background();
        })?;
        Ok(Running { stop, thread })
    }
}

impl Running {
    /// Answers no more.
    pub fn stop(self) {
        self.stop.send_replace(true);
        if self.thread.join().is_err() {
            tracing::error!("the thread that answers HTTP panicked");
        }
    }
}

async fn accept(listener: TcpListener, strangers: Arc<Strangers>, source: Arc<dyn Source>) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let (end, ended) = oneshot::channel();
                let stranger = strangers.enter(Instant::now(), move || {
                    // One that is gone already needs no end.
                    let _ = end.send(());
                });
                let source = Arc::clone(&source);
                tokio::spawn(async move {
                    let until = stranger.until();
                    tokio::select! {
                        () = converse(stream, source) => {}
                        _ = ended => {}
                        () = tokio::time::sleep_until(until.into()) => {}
                    }
                    drop(stranger);
                });
            }
            Err(error) => {
                tracing::debug!(%error, "cannot accept; trying again soon");
                tokio::time::sleep(AGAIN).await;
            }
        }
    }
}

async fn converse(stream: TcpStream, source: Arc<dyn Source>) {
    let service = service_fn(move |request| {
        let answer = answer(&request, &source);
        async move { Ok::<_, Infallible>(answer) }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(PATIENCE)
        .keep_alive(false)
        .max_buf_size(16 << 10)
        .serve_connection(TokioIo::new(stream), service)
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "a client of HTTP left");
    }
}

fn answer<B>(request: &Request<B>, source: &Arc<dyn Source>) -> Response<Full<Bytes>> {
    const TEXT: &str = "text/plain; charset=utf-8";
    let (status, kind, body) = match (request.method(), request.uri().path()) {
        (&Method::GET | &Method::HEAD, "/livez") => (StatusCode::OK, TEXT, "alive\n".into()),
        (&Method::GET | &Method::HEAD, "/readyz") => match source.ready() {
            Ok(()) => (StatusCode::OK, TEXT, "ready\n".into()),
            Err(why) => (StatusCode::SERVICE_UNAVAILABLE, TEXT, format!("not ready: {why}\n")),
        },
        (&Method::GET | &Method::HEAD, "/metrics") => match figures::text(source) {
            Ok(text) => (StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", text),
            Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, TEXT, format!("{error}\n")),
        },
        (&Method::GET | &Method::HEAD, _) => {
            (StatusCode::NOT_FOUND, TEXT, "there are /livez, /readyz and /metrics\n".into())
        }
        _ => (StatusCode::METHOD_NOT_ALLOWED, TEXT, "only GET and HEAD\n".into()),
    };
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if status == StatusCode::METHOD_NOT_ALLOWED {
        headers.insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
    }
    response
}
