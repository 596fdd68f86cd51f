//! gRPC: the shared logs and the map for programs of any language, and the objects for other processes of Esker.
//!
//! [`Server::bind`] → addresses are open → [`Server::run`] → HTTP/2 on a few threads, the store on others →
//! [`Handle::shutdown`]
//!
//! Published as `.proto` files in `crates/wire/proto`, and by reflection. Health answers without a token.
//!
//! Invariants:
//! 1. Nothing is answered before it may be shown (see [`Config`] for what bounds how much waits).
//! 2. Only loopback addresses and a unix socket are listened on, unless connections are encrypted and clients show a
//!    certificate or a token.
//! 3. Who hands out positions of a log in this process does so for all clients: they do not depose each other.

mod append;
mod caller;
mod config;
mod counts;
mod follow;
mod lags;
mod listen;
mod log;
mod map;
mod names;
mod objects;
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
use esker_wire::proto;
use esker_wire::proto::log::log_server::LogServer;
use esker_wire::proto::log::sequencer_server::SequencerServer;
use esker_wire::proto::map::map_server::MapServer;
use esker_wire::proto::store::objects_server::ObjectsServer;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tonic::service::Routes;
use tonic_health::ServingStatus;

pub use config::{Config, Error, MAP_MESSAGE_BYTES_MAX, MESSAGE_BYTES_MAX, OBJECT_MESSAGE_BYTES_MAX, Result};
pub use listen::Address;
pub use sequencer::Sequencers;

use caller::{Guard, Service};
use counts::{CallCounts, Counting};
use listen::{Incoming, Listeners};
use map::MapService;
use objects::ObjectService;
use service::LogService;
use visitor::Room;

use crate::front::strangers::Strangers;
use crate::front::tls::Certificates;
use crate::front::users::{Face, Users};

/// What ALPN offers.
const HTTP2: &[&[u8]] = &[b"h2"];
/// Threads that wait for the store are waited for so long when the server has stopped.
const SHUTDOWN: Duration = Duration::from_secs(1);
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
    certificates: Option<Arc<Certificates>>,
    users: Arc<Users>,
    counts: Arc<CallCounts>,
}

/// Stops a server from anywhere. Cloning gives another handle of the same server.
#[derive(Clone)]
pub struct Handle {
    stop: Arc<watch::Sender<bool>>,
    certificates: Option<Arc<Certificates>>,
    users: Arc<Users>,
    counts: Arc<CallCounts>,
}

impl Handle {
    /// What was counted, for those who watch.
    pub fn figures(&self) -> Vec<crate::http::Figure> {
        self.counts.figures()
    }

    /// Reads its certificates anew; what is returned puts them into force for connections that come later, and, where
    /// there is no file of users, this token, if one is given.
    ///
    /// # Errors
    /// [`Error::Tls`]; then nothing changes.
    pub fn prepare(&self, token: Option<&str>) -> Result<Box<dyn FnOnce() + Send>> {
        let prepare = |certificates: &Arc<Certificates>| certificates.prepare();
        let certificates = self.certificates.as_ref().map(prepare).transpose();
        let certificates = certificates.map_err(|error| Error::Tls(error.to_string()))?;
        let (users, token) = (Arc::clone(&self.users), token.map(str::to_owned));
        Ok(Box::new(move || {
            certificates.into_iter().for_each(|apply| apply());
            if let (Some(token), false) = (&token, users.has_file()) {
                users.set_token(token);
            }
        }))
    }

    /// Makes [`Server::run`] return soon: calls under way have [`Config::linger`], streams are told that the server
    /// stops.
    pub fn shutdown(&self) {
        self.stop.send_replace(true);
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
        let open = |files| Certificates::open(files, HTTP2).map(Arc::new);
        let certificates = config.tls.as_ref().map(open).transpose().map_err(|error| Error::Tls(error.to_string()))?;
        let users = config.users.clone().unwrap_or_else(|| Users::alone(None, config.token.as_deref()));
        if config.is_reached_by_strangers() {
            users.close().map_err(Error::Config)?;
        }
        let listeners = Listeners::open(&config, &runtime)?;
        let stop = Arc::new(watch::Sender::new(false));
        let counts = Arc::default();
        Ok(Self { config, faces, runtime, listeners, stop, certificates, users, counts })
    }

    /// Where it listens, with the ports that were picked for port 0.
    pub fn addresses(&self) -> &[Address] {
        self.listeners.addresses()
    }

    /// What stops it.
    pub fn handle(&self) -> Handle {
        let (stop, users) = (Arc::clone(&self.stop), Arc::clone(&self.users));
        Handle { stop, certificates: self.certificates.clone(), users, counts: Arc::clone(&self.counts) }
    }

    /// Answers clients until [`Handle::shutdown`]. Blocks.
    ///
    /// # Errors
    /// [`Error::Serve`] if serving fails; the server has stopped then.
    pub fn run(self) -> Result<()> {
        let Self { config, faces, runtime, listeners, stop, certificates, users, counts } = self;
        for address in listeners.addresses() {
            tracing::info!(%address, objects = config.objects, "serving gRPC");
        }
        let stopping = stop.subscribe();
        let served = runtime.block_on(serve(&config, faces, listeners, (certificates, &users, &counts), stopping));
        stop.send_replace(true);
        runtime.shutdown_timeout(SHUTDOWN);
        served
    }
}

/// All services, behind their guards.
fn routes(
    config: &Config,
    faces: Faces,
    (users, counts): (&Arc<Users>, &CallCounts),
    stopping: &watch::Receiver<bool>,
) -> Result<Routes> {
    let guard = |service| Guard::new(users, service);
    let failed = |error: tonic_reflection::server::Error| Error::Serve { what: "reflect", why: error.to_string() };
    let (health, health_service) = tonic_health::server::health_reporter();
    let mut routes =
        Routes::new(tonic::service::interceptor::InterceptedService::new(health_service, guard(Service::Open)));
    let mut names = Vec::new();
    if let Some(logs) = faces.logs {
        let service = LogService::new(logs, config.in_flight_max, config.followers_max, stopping.clone());
        counts.tell_of(&service.names);
        let server = LogServer::new(service).max_decoding_message_size(MESSAGE_BYTES_MAX);
        routes = routes
            .add_service(tonic::service::interceptor::InterceptedService::new(server, guard(Service::Of(Face::Log))));
        names.push("esker.log.v1.Log");
    }
    if let Some(map) = faces.map {
        let service = MapService::new(map, config.followers_max, stopping.clone());
        let server = MapServer::new(service).max_decoding_message_size(MAP_MESSAGE_BYTES_MAX);
        routes = routes
            .add_service(tonic::service::interceptor::InterceptedService::new(server, guard(Service::Of(Face::Map))));
        names.push("esker.map.v1.Map");
    }
    if let Some(sequencers) = faces.sequencers {
        let server = SequencerServer::new(sequencers);
        routes = routes
            .add_service(tonic::service::interceptor::InterceptedService::new(server, guard(Service::Of(Face::Log))));
        names.push("esker.log.v1.Sequencer");
    }
    if let (Some(store), true) = (faces.objects, config.objects) {
        let server = ObjectsServer::new(ObjectService::new(store, config.incarnation))
            .max_decoding_message_size(OBJECT_MESSAGE_BYTES_MAX);
        routes =
            routes.add_service(tonic::service::interceptor::InterceptedService::new(server, guard(Service::Operators)));
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
        .add_service(tonic::service::interceptor::InterceptedService::new(v1, guard(Service::Users)))
        .add_service(tonic::service::interceptor::InterceptedService::new(v1alpha, guard(Service::Users)));
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

async fn serve(
    config: &Config,
    faces: Faces,
    listeners: Listeners,
    (certificates, users, counts): (Option<Arc<Certificates>>, &Arc<Users>, &Arc<CallCounts>),
    stopping: watch::Receiver<bool>,
) -> Result<()> {
    let failed = |error: tonic::transport::Error| Error::Serve { what: "serve", why: chain(&error) };
    let routes = routes(config, faces, (users, counts), &stopping)?;
    let router = || {
        tonic::transport::Server::builder()
            .max_concurrent_streams(config.calls_max)
            .concurrency_limit_per_connection(config.calls_max as usize)
            .http2_keepalive_interval(Some(config.ping))
            .http2_keepalive_timeout(Some(config.ping))
            .tcp_nodelay(true)
            .layer(Counting(Arc::clone(counts)))
            .add_routes(routes.clone())
    };
    let stopped = |mut stopping: watch::Receiver<bool>| async move {
        // Once the sender is gone no caller is left that could stop the server: it stops then, too.
        let _ = stopping.wait_for(|stopping| *stopping).await;
    };
    let strangers = Strangers::new(config.strangers_max, Duration::from_secs(config.stranger_seconds));
    let room = Room::new(strangers, config.connections_max);
    counts.watch(&room);
    let Incoming { tcp, tls, unix } = listeners.incoming(&room, certificates, &stopping);
    let tcp = router().serve_with_incoming_shutdown(tcp, stopped(stopping.clone()));
    let tls = router().serve_with_incoming_shutdown(tls, stopped(stopping.clone()));
    let unix = router().serve_with_incoming_shutdown(unix, stopped(stopping.clone()));
    let all = async { tokio::try_join!(tcp, tls, unix) };
    tokio::select! {
        served = all => served.map(|_| ()).map_err(failed),
        () = async { stopped(stopping.clone()).await; tokio::time::sleep(config.linger).await } => Ok(()),
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
