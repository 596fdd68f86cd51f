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
//! 1. Where there is a token, a client that does not send it is told by `/livez` and `/readyz` no more than the status,
//!    and no figures. Addresses that other machines reach are listened on only encrypted, with a token or client certificates.
//! 2. Nothing here waits for the store: all that is told is known without it.
//! 3. At most [`CONNECTIONS_MAX`] connections of those who are not known by the token are open by each address, each
//!    for one request and ten seconds at most, the handshake of TLS included; for one more the oldest is closed. Those
//!    who are known have ten seconds as well.

mod config;
mod figures;
mod times;

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;
use std::{fmt, io};

use arc_swap::ArcSwapOption;
use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{ALLOW, AUTHORIZATION, CACHE_CONTROL, CONTENT_TYPE, HeaderMap, HeaderValue, WWW_AUTHENTICATE};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use sha2::{Digest, Sha256};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{oneshot, watch};
use tokio_rustls::TlsAcceptor;

pub use config::{Config, Error};
pub use figures::{Figure, Source, Value};
pub(crate) use times::Times;

use crate::front::listen::{self, AGAIN, Bound, Endpoint, Listening};
use crate::front::strangers::{PATIENCE, Stranger, Strangers};
use crate::front::tls::Certificates;

/// Most connections at once by one address.
pub const CONNECTIONS_MAX: usize = 64;

/// An address that is listened on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// Where it is.
    pub endpoint: Endpoint,
    /// Whether clients speak TLS there.
    pub encrypted: bool,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.endpoint, self.encrypted) {
            (Endpoint::Tcp(address), false) => write!(f, "http://{address}"),
            (Endpoint::Tcp(address), true) => write!(f, "https://{address}"),
            (Endpoint::Unix(path), _) => write!(f, "http+unix:{}", path.display()),
        }
    }
}

/// A server that listens.
pub struct Server {
    listeners: Vec<Listener>,
    handle: Handle,
}

/// A server that answers.
pub struct Running {
    handle: Handle,
    stop: watch::Sender<bool>,
    thread: JoinHandle<()>,
}

/// What of a server can be taken anew. Cloning gives another handle of the same server.
#[derive(Clone)]
pub struct Handle {
    certificates: Option<Arc<Certificates>>,
    /// The digest of the token.
    token: Arc<ArcSwapOption<[u8; 32]>>,
}

impl Handle {
    /// Reads the certificates anew; what is returned puts them into force for connections that come later, and this
    /// token, if there is one already and one is given.
    ///
    /// # Errors
    /// [`Error::Tls`]; then nothing changes.
    pub fn prepare(&self, token: Option<&str>) -> Result<Box<dyn FnOnce() + Send>, Error> {
        let certificates = self.certificates.as_ref().map(Certificates::prepare).transpose();
        let certificates = certificates.map_err(|error| Error::Tls(error.to_string()))?;
        let (own, digest) = (Arc::clone(&self.token), token.map(digest));
        Ok(Box::new(move || {
            certificates.into_iter().for_each(|apply| apply());
            if let (Some(digest), true) = (digest, own.load().is_some()) {
                own.store(Some(Arc::new(digest)));
            }
        }))
    }

    /// Whether there is a token.
    fn asks(&self) -> bool {
        self.token.load().is_some()
    }

    /// Whether this client may be told everything.
    fn knows(&self, headers: &HeaderMap) -> bool {
        let Some(token) = self.token.load_full() else { return true };
        let sent = headers.get(AUTHORIZATION).and_then(|value| value.as_bytes().split_at_checked(7));
        // How long digests take to compare tells nothing of the token.
        sent.is_some_and(|(kind, sent)| kind.eq_ignore_ascii_case(b"bearer ") && digest(sent) == *token)
    }
}

fn digest(token: impl AsRef<[u8]>) -> [u8; 32] {
    Sha256::digest(token.as_ref()).into()
}

struct Listener {
    bound: Bound,
    encrypted: bool,
}

impl Server {
    /// Listens. Port 0 picks a free one.
    ///
    /// # Errors
    /// What [`Config::check`] refuses; [`Error::Listen`]; [`Error::Tls`].
    pub fn bind(config: &Config) -> Result<Self, Error> {
        config.check()?;
        let certificates = match &config.tls {
            Some(files) if !config.tls_listen.is_empty() || !config.tls_passed.is_empty() => {
                let opened = Certificates::open(files, &[]).map_err(|error| Error::Tls(error.to_string()))?;
                Some(Arc::new(opened))
            }
            _ => None,
        };
        let failed = |(address, source): listen::Failed| Error::Listen { address, source };
        let plain = listen::open(&config.listen, None, &config.passed).map_err(failed)?;
        let encrypted = listen::open(&config.tls_listen, None, &config.tls_passed).map_err(failed)?;
        let listener = |encrypted| move |bound| Listener { bound, encrypted };
        let listeners = plain.into_iter().map(listener(false)).chain(encrypted.into_iter().map(listener(true)));
        let token = Arc::new(ArcSwapOption::from(config.token.as_deref().map(|token| Arc::new(digest(token)))));
        Ok(Self { listeners: listeners.collect(), handle: Handle { certificates, token } })
    }

    /// Where it listens, with the ports that were picked for port 0.
    pub fn addresses(&self) -> Vec<Address> {
        let address = |one: &Listener| Address { endpoint: one.bound.place.clone(), encrypted: one.encrypted };
        self.listeners.iter().map(address).collect()
    }

    /// Answers on a thread of its own.
    ///
    /// # Errors
    /// [`Error::Io`] if there is no thread to be had.
    pub fn start(self, source: Arc<dyn Source>) -> Result<Running, Error> {
        let (stop, stopping) = watch::channel(false);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let doors = {
            let _inside = runtime.enter();
            self.listeners.into_iter().map(|one| Door::of(one, &self.handle)).collect::<io::Result<Vec<_>>>()?
        };
        let handle = self.handle.clone();
        let thread = std::thread::Builder::new().name("esker-http".into()).spawn(move || {
            runtime.block_on(async {
                for door in doors {
                    // Each door has its own, so that clients at one address keep none from another.
                    let strangers = Strangers::new(CONNECTIONS_MAX, PATIENCE);
                    let answers = Arc::new(Answers { source: Arc::clone(&source), handle: handle.clone() });
                    tokio::spawn(accept(door, strangers, answers));
                }
                let mut stopping = stopping;
                // One that is gone stops as well.
                let _ = stopping.wait_for(|stopping| *stopping).await;
            });
            // What is under way is no more than a line.
            runtime.shutdown_background();
        })?;
        Ok(Running { handle: self.handle, stop, thread })
    }
}

impl Running {
    /// What of it can be taken anew.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Answers no more.
    pub fn stop(self) {
        self.stop.send_replace(true);
        if self.thread.join().is_err() {
            tracing::error!("the thread that answers HTTP panicked");
        }
    }
}

/// What connections come through.
enum Door {
    Tcp(TcpListener, Option<Arc<Certificates>>),
    Unix(UnixListener),
}

impl Door {
    fn of(listener: Listener, handle: &Handle) -> io::Result<Self> {
        let certificates = handle.certificates.clone().filter(|_| listener.encrypted);
        match listener.bound.socket {
            Listening::Tcp(socket) => Ok(Self::Tcp(TcpListener::from_std(socket)?, certificates)),
            Listening::Unix(socket) => Ok(Self::Unix(UnixListener::from_std(socket)?)),
        }
    }

    /// The next connection: what answers it.
    async fn next(&self, answers: &Arc<Answers>, known: &Arc<AtomicBool>) -> io::Result<Conversation> {
        let answers = (Arc::clone(answers), Arc::clone(known));
        Ok(match self {
            Self::Unix(socket) => {
                let (stream, _) = socket.accept().await?;
                Box::pin(converse(stream, answers))
            }
            Self::Tcp(socket, certificates) => {
                let (stream, _) = socket.accept().await?;
                listen::tune(&stream)?;
                match certificates {
                    None => Box::pin(converse(stream, answers)),
                    Some(certificates) => {
                        let acceptor = TlsAcceptor::from(certificates.current());
                        Box::pin(async move {
                            match acceptor.accept(stream).await {
                                Ok(stream) => converse(stream, answers).await,
                                Err(error) => tracing::debug!(%error, "a TLS handshake failed"),
                            }
                        })
                    }
                }
            }
        })
    }
}

/// Answers one connection.
type Conversation = std::pin::Pin<Box<dyn Future<Output = ()> + Send>>;

/// What is told, and which clients are told it.
struct Answers {
    source: Arc<dyn Source>,
    handle: Handle,
}

async fn accept(door: Door, strangers: Arc<Strangers>, answers: Arc<Answers>) {
    loop {
        let known = Arc::new(AtomicBool::new(false));
        match door.next(&answers, &known).await {
            Ok(conversation) => {
                let (end, ended) = oneshot::channel();
                let stranger = strangers.enter(Instant::now(), move || {
                    // One that is gone already needs no end.
                    let _ = end.send(());
                });
                tokio::spawn(within(conversation, known, ended, stranger));
            }
            Err(error) if listen::is_about_one(&error) => {}
            Err(error) => {
                tracing::debug!(%error, "cannot accept; trying again soon");
                tokio::time::sleep(AGAIN).await;
            }
        }
    }
}

async fn within(
    mut conversation: Conversation,
    known: Arc<AtomicBool>,
    ended: oneshot::Receiver<()>,
    stranger: Stranger,
) {
    let until = tokio::time::sleep_until(stranger.until().into());
    tokio::pin!(until);
    tokio::select! {
        () = &mut conversation => {}
        // It makes room for another, unless it has shown the token by now.
        _ = ended => {
            if known.load(Ordering::Relaxed) {
                tokio::select! {
                    () = conversation => {}
                    () = until => {}
                }
            }
        }
        () = &mut until => {}
    }
    drop(stranger);
}

async fn converse(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    (answers, known): (Arc<Answers>, Arc<AtomicBool>),
) {
    let service = service_fn(move |request: Request<Incoming>| {
        let trusted = answers.handle.asks() && answers.handle.knows(request.headers());
        known.store(trusted, Ordering::Relaxed);
        let answer = answer(&request, &answers);
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

fn answer<B>(request: &Request<B>, answers: &Answers) -> Response<Full<Bytes>> {
    const TEXT: &str = "text/plain; charset=utf-8";
    let (source, known) = (&answers.source, answers.handle.knows(request.headers()));
    let (status, kind, body) = match (request.method(), request.uri().path()) {
        (&Method::GET | &Method::HEAD, "/livez") => (StatusCode::OK, TEXT, "alive\n".into()),
        (&Method::GET | &Method::HEAD, "/readyz") => match source.ready() {
            Ok(()) => (StatusCode::OK, TEXT, "ready\n".into()),
            Err(why) if known => (StatusCode::SERVICE_UNAVAILABLE, TEXT, format!("not ready: {why}\n")),
            Err(_) => (StatusCode::SERVICE_UNAVAILABLE, TEXT, "not ready\n".into()),
        },
        (&Method::GET | &Method::HEAD, "/metrics") if !known => {
            (StatusCode::UNAUTHORIZED, TEXT, "the figures are told to those who send the token\n".into())
        }
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
    if status == StatusCode::UNAUTHORIZED {
        headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    if status == StatusCode::METHOD_NOT_ALLOWED {
        headers.insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
    }
    response
}
