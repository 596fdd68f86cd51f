//! gRPC: the shared logs and the map for programs of any language, and the objects for other processes of Esker.
//!
//! [`Server::bind`] → addresses are open → [`Server::run`] → HTTP/2 on a few threads, the store on others → [`Handle::shutdown`]
//!
//! Published as `.proto` files in the crate's folder `proto`, and by reflection. Health answers without a token.
//!
//! Invariants:
//! 1. Nothing is answered before it may be shown (see [`Config`] for what bounds how much waits).
//! 2. Only loopback addresses and a unix socket are listened on, unless connections are encrypted and clients show a certificate or a token.
//! 3. Who hands out positions of a log in this process does so for all clients: they do not depose each other.

mod append;
mod config;
mod convert;
mod follow;
mod listen;
mod log;
mod map;
mod names;
mod objects;
pub mod proto;
mod sequencer;
mod service;
mod status;
mod visitor;
mod waiting;

use std::sync::Arc;
use std::time::Duration;

use esker_log::Logs;
use esker_map::MapStorage;
use esker_store::ObjectStore;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tonic::service::Routes;
use tonic::transport::server::{Router, TlsConnectInfo};
use tonic::transport::{Certificate, Identity, ServerTlsConfig};
use tonic::{Request, Status};
use tonic_health::ServingStatus;

pub use config::{Config, Error, MAP_MESSAGE_BYTES_MAX, MESSAGE_BYTES_MAX, OBJECT_MESSAGE_BYTES_MAX, Result};
pub use listen::Address;
pub use sequencer::Sequencers;

use listen::Listeners;
use map::MapService;
use objects::ObjectService;
use proto::log::log_server::LogServer;
use proto::log::sequencer_server::SequencerServer;
use proto::map::map_server::MapServer;
use proto::store::objects_server::ObjectsServer;
use service::LogService;
use visitor::{Room, Standing};

use crate::front::strangers::Strangers;

/// How long calls have to finish when the server stops.
const GRACE: Duration = Duration::from_secs(3);
/// Health is looked at so often.
const HEALTH_EVERY: Duration = Duration::from_millis(200);

/// What is served.
#[derive(Clone, Default)]
pub struct Faces {
    /// The logs, as `esker.log.v1.Log`.
    pub logs: Option<Logs>,
    /// The map's tables, as `esker.map.v1.Map`.
    pub map: Option<Arc<dyn MapStorage>>,
    /// The store, as `esker.store.v1.Objects`; only where [`Config::objects`] says so.
    pub objects: Option<Arc<dyn ObjectStore>>,
    /// Sequencers, as `esker.log.v1.Sequencer`.
    pub sequencers: Option<Sequencers>,
    /// Whether writes are taken, for `grpc.health.v1`; `None`: always while the server runs. Asked five times a second.
    pub ready: Option<Ready>,
}

/// Whether what is served takes writes.
pub type Ready = Arc<dyn Fn() -> bool + Send + Sync>;

/// A server that listens; [`Server::run`] makes it answer.
pub struct Server {
    config: Config,
    faces: Faces,
    runtime: Runtime,
    listeners: Listeners,
    stop: Arc<watch::Sender<bool>>,
}

/// Stops a server from anywhere. Cloning gives another handle of the same server.
#[derive(Clone)]
pub struct Handle(Arc<watch::Sender<bool>>);

impl Handle {
    /// Makes [`Server::run`] return soon: calls under way have three seconds, streams are told that the server stops.
    pub fn shutdown(&self) {
        self.0.send_replace(true);
    }
}

/// Whether two tokens are the same, in a time that tells nothing about where they differ.
fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |sum, (a, b)| sum | (a ^ b)) == 0
}

/// Refuses calls without the token; a connection that has made one with it is a known client's.
#[derive(Clone)]
struct Guard {
    token: Option<Arc<str>>,
    /// Calls without the token are answered, but leave the connection a stranger's.
    anybody: bool,
}

impl Guard {
    fn has_token(&self, request: &Request<()>) -> bool {
        let Some(token) = &self.token else { return true };
        let sent = request.metadata().get("authorization").map(|sent| sent.as_bytes());
        sent.and_then(|sent| sent.strip_prefix(b"Bearer ")).is_some_and(|sent| same(sent, token.as_bytes()))
    }
}

impl tonic::service::Interceptor for Guard {
    fn call(&mut self, request: Request<()>) -> std::result::Result<Request<()>, Status> {
        if !self.has_token(&request) {
            if self.anybody {
                return Ok(request);
            }
            return Err(Status::unauthenticated("expected the server's token, as `authorization: Bearer TOKEN`"));
        }
        let extensions = request.extensions();
        let encrypted = || extensions.get::<TlsConnectInfo<Arc<Standing>>>().map(TlsConnectInfo::get_ref);
        if let Some(standing) = extensions.get::<Arc<Standing>>().or_else(encrypted) {
            match standing.admit() {
                // A health check is answered even while all places are taken.
                Err(told) if !self.anybody => return Err(told.into()),
                _ => {}
            }
        }
        Ok(request)
    }
}

impl Server {
    /// Listens.
    ///
    /// # Errors
    /// What [`Config::check`] refuses; [`Error::Listen`], [`Error::Tls`], [`Error::Serve`].
    pub fn bind(config: Config, faces: Faces) -> Result<Self> {
        config.check()?;
        let failed = |what| move |error: std::io::Error| Error::Serve { what, why: error.to_string() };
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(config.threads)
            .max_blocking_threads(config.waiting_threads_max)
            .thread_name("esker-grpc")
            .enable_all()
            .build()
            .map_err(failed("start threads"))?;
        tls(&config)?;
        let listeners = Listeners::open(&config, &runtime)?;
        Ok(Self { config, faces, runtime, listeners, stop: Arc::new(watch::Sender::new(false)) })
    }

    /// Where it listens, with the ports that were picked for port 0.
    pub fn addresses(&self) -> &[Address] {
        self.listeners.addresses()
    }

    /// What stops it.
    pub fn handle(&self) -> Handle {
        Handle(Arc::clone(&self.stop))
    }

    /// Answers clients until [`Handle::shutdown`]. Blocks.
    ///
    /// # Errors
    /// [`Error::Serve`] if serving fails; the server has stopped then.
    pub fn run(self) -> Result<()> {
        let Self { config, faces, runtime, listeners, stop } = self;
        for address in listeners.addresses() {
            tracing::info!(%address, objects = config.objects, "serving gRPC");
        }
        let stopping = stop.subscribe();
        let served = runtime.block_on(serve(&config, faces, listeners, stopping));
        stop.send_replace(true);
        runtime.shutdown_timeout(GRACE);
        served
    }
}

/// What TLS is made from; without files, nothing.
fn tls(config: &Config) -> Result<Option<ServerTlsConfig>> {
    let Some(files) = &config.tls else { return Ok(None) };
    // Says which file is wrong, and why, better than what is made from them below.
    crate::resp::tls_config(files).map_err(|error| Error::Tls(error.to_string()))?;
    let read = |path: &std::path::Path| {
        std::fs::read(path).map_err(|error| Error::Tls(format!("{}: {error}", path.display())))
    };
    let mut tls = ServerTlsConfig::new().identity(Identity::from_pem(read(&files.certificate)?, read(&files.key)?));
    if let Some(authorities) = &files.client_authorities {
        tls = tls.client_ca_root(Certificate::from_pem(read(authorities)?));
    }
    Ok(Some(tls))
}

/// All services, behind the token.
fn routes(config: &Config, faces: Faces, stopping: &watch::Receiver<bool>) -> Result<Routes> {
    let guard = Guard { token: config.token.as_deref().map(Arc::from), anybody: false };
    let failed = |error: tonic_reflection::server::Error| Error::Serve { what: "reflect", why: error.to_string() };
    let (health, health_service) = tonic_health::server::health_reporter();
    let health_guard = Guard { anybody: true, ..guard.clone() };
    let mut routes = Routes::new(tonic::service::interceptor::InterceptedService::new(health_service, health_guard));
    let mut names = Vec::new();
    if let Some(logs) = faces.logs {
        let service = LogService::new(logs, config.in_flight_max, config.followers_max, stopping.clone());
        let server = LogServer::new(service).max_decoding_message_size(MESSAGE_BYTES_MAX);
        routes = routes.add_service(tonic::service::interceptor::InterceptedService::new(server, guard.clone()));
        names.push("esker.log.v1.Log");
    }
    if let Some(map) = faces.map {
        let service = MapService::new(map, config.followers_max, stopping.clone());
        let server = MapServer::new(service).max_decoding_message_size(MAP_MESSAGE_BYTES_MAX);
        routes = routes.add_service(tonic::service::interceptor::InterceptedService::new(server, guard.clone()));
        names.push("esker.map.v1.Map");
    }
    if let Some(sequencers) = faces.sequencers {
        let server = SequencerServer::new(sequencers);
        routes = routes.add_service(tonic::service::interceptor::InterceptedService::new(server, guard.clone()));
        names.push("esker.log.v1.Sequencer");
    }
    if let (Some(store), true) = (faces.objects, config.objects) {
        let server = ObjectsServer::new(ObjectService::new(store, config.incarnation))
            .max_decoding_message_size(OBJECT_MESSAGE_BYTES_MAX);
        routes = routes.add_service(tonic::service::interceptor::InterceptedService::new(server, guard.clone()));
        names.push("esker.store.v1.Objects");
    }
    let reflection = || {
        let mut builder = tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(proto::DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
            .with_service_name("grpc.health.v1.Health");
        for name in &names {
            builder = builder.with_service_name(*name);
        }
        builder
    };
    // Clients of either age.
    let v1 = reflection().build_v1().map_err(failed)?;
    let v1alpha = reflection().build_v1alpha().map_err(failed)?;
    routes = routes
        .add_service(tonic::service::interceptor::InterceptedService::new(v1, guard.clone()))
        .add_service(tonic::service::interceptor::InterceptedService::new(v1alpha, guard));
    // The empty name is the server as a whole.
    names.push("");
    let ready = faces.ready;
    let mut stopping = stopping.clone();
    tokio::spawn(async move {
        let mut told = None;
        loop {
            let stops = *stopping.borrow();
            let serving = !stops && ready.as_ref().is_none_or(|ready| ready());
            if told != Some(serving) {
                told = Some(serving);
                let status = if serving { ServingStatus::Serving } else { ServingStatus::NotServing };
                for name in &names {
                    health.set_service_status(*name, status).await;
                }
            }
            if stops {
                return;
            }
            // One that is gone stops as well.
            let _ = tokio::time::timeout(HEALTH_EVERY, stopping.wait_for(|stopping| *stopping)).await;
        }
    });
    Ok(routes)
}

async fn serve(config: &Config, faces: Faces, listeners: Listeners, stopping: watch::Receiver<bool>) -> Result<()> {
    let failed = |error: tonic::transport::Error| Error::Serve { what: "serve", why: chain(&error) };
    let routes = routes(config, faces, &stopping)?;
    let router = |tls: Option<ServerTlsConfig>| -> Result<Router> {
        let mut builder = tonic::transport::Server::builder()
            .max_concurrent_streams(config.calls_max)
            .concurrency_limit_per_connection(config.calls_max as usize)
            .http2_keepalive_interval(Some(config.ping))
            .http2_keepalive_timeout(Some(config.ping))
            .tcp_nodelay(true);
        if let Some(tls) = tls {
            builder = builder.tls_config(tls).map_err(|error| Error::Tls(chain(&error)))?;
        }
        Ok(builder.add_routes(routes.clone()))
    };
    let stopped = |mut stopping: watch::Receiver<bool>| async move {
        // Nobody is left who could stop it otherwise.
        let _ = stopping.wait_for(|stopping| *stopping).await;
    };
    let strangers = Strangers::new(config.strangers_max, Duration::from_secs(config.stranger_seconds));
    let (tcp, unix) = listeners.incoming(&Room::new(strangers, config.connections_max), &stopping);
    let tcp = router(tls(config)?)?.serve_with_incoming_shutdown(tcp, stopped(stopping.clone()));
    let unix = router(None)?.serve_with_incoming_shutdown(unix, stopped(stopping.clone()));
    let both = async { tokio::try_join!(tcp, unix) };
    tokio::select! {
        served = both => served.map(|_| ()).map_err(failed),
        () = async { stopped(stopping.clone()).await; tokio::time::sleep(GRACE).await } => Ok(()),
    }
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
