//! Thrift: the service of Zing Database over a namespace of keys, for programs of any language.
//!
//! [`Server::bind`] → addresses are open → [`Server::run`] → a task per connection on a few threads →
//! [`Handle::shutdown`]
//!
//! Published as `clients/thrift/zdb.thrift`: `ZDBService` is that of the paper (Listing 1), `EskerKeys` extends it. The
//! binary protocol, strict and as it first was, and the compact protocol, each framed and unframed: the first bytes of
//! a connection say which. The codec ([`Decoder`], [`encode`]) reads no socket. See docs/decisions/0031-thrift.md.
//!
//! Invariants:
//! 1. Nothing is answered before it may be shown; see [`WriteMode`].
//! 2. What a client sends is within the limits before it is kept: lengths, counts, depth; and all clients together hold
//!    no more memory than [`Config`] says.
//! 3. Only loopback addresses and a unix socket are listened on, unless client certificates are required.
//!
//! Source: Zing Database: high-performance key-value store for large-scale storage service (2015), 2.9.

mod arguments;
mod call;
mod carried;
mod config;
mod connection;
mod counts;
mod decode;
mod dirty;
mod encode;
mod guest;
mod kept;
mod listen;
mod memory;
mod ring;
mod service;
mod shape;
mod shares;
mod spread;
mod unreadable;
mod walk;
mod workers;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use esker_kv::Kv;
use esker_wire::proto::chain::{AskKeysRequest, AskKeysResponse};
use tokio::sync::{Semaphore, mpsc, watch};

pub use arguments::BATCH_MAX;
pub use call::{PAGE_MAX, WriteMode};
pub use config::{Config, Error, KeptMode, NAMESPACE, Result};
pub use decode::{Decoded, Decoder, Message};
pub use dirty::DIRTY_KEY_BYTES;
pub use encode::{Exception, ExceptionKind, Given, encode};
pub use listen::Address;
pub use memory::ANSWER_BYTES_MAX;
pub use ring::{AskError, Asking, Keeper, Keepers, Ring, Sharing, Sight};
pub use shape::{Dialect, MessageKind, Shape};
pub use unreadable::{DEPTH_MAX, MESSAGE_BYTES_MAX, METHOD_BYTES_MAX, Unreadable};

use call::Asked;
use connection::{Common, UnderWay};
use dirty::Dirty;
use kept::Kept;
use listen::{Hall, ThriftDoors};
use memory::ThriftMemory;
use service::KeyService;
use shares::Shares;
use workers::{Crew, Workers};

use crate::front::strangers::Strangers;
use crate::front::tls::Certificates;
use crate::http::{Figure, Value};

/// A call that another chain's server passes on waits here so long for closed slots, as many are that have few keys;
/// then it waits there, and is passed on again. So calls about slots that are closed for long do not take the places
/// that calls have between two servers.
const CLOSED: Duration = Duration::from_millis(20);

/// A server that listens; [`Server::run`] makes it answer.
pub struct Server {
    workers: Workers,
    doors: ThriftDoors,
    handle: Handle,
}

/// Stops a server from anywhere. Cloning gives another handle of the same server.
#[derive(Clone)]
pub struct Handle {
    common: Arc<Common>,
    strangers: Arc<Strangers>,
    certificates: Option<Arc<Certificates>>,
    stop: Arc<watch::Sender<bool>>,
    crew: Arc<Crew>,
}

impl Handle {
    /// Makes [`Server::run`] return soon: calls under way have [`Config::linger`].
    pub fn shutdown(&self) {
        self.stop.send_replace(true);
    }

    /// Reads its certificates anew; what is returned puts them into force, for connections that come later.
    ///
    /// # Errors
    /// [`Error::Tls`]; then nothing changes.
    pub fn prepare(&self) -> Result<Box<dyn FnOnce() + Send>> {
        let Some(certificates) = &self.certificates else { return Ok(Box::new(|| ())) };
        certificates.prepare().map_err(|error| Error::Tls(error.to_string()))
    }

    /// Does what a server of another chain asks for on behalf of a client of its own, who may do it: keys of this chain
    /// alone. In a cluster of several chains.
    pub async fn answer(&self, request: AskKeysRequest) -> AskKeysResponse {
        if *self.stop.borrow() {
            // Another server heads the chain soon.
            return carried::response(Ok(Kept::Elsewhere));
        }
        let common = Arc::clone(&self.common);
        // On the threads of this server, whatever asks.
        let answering = self.crew.place().serve(move || async move { answer(&common, request).await });
        let stopped =
            |_| carried::response(Err(Exception::unknown("the server stops; it is not known whether it was done")));
        answering.await.unwrap_or_else(stopped)
    }

    /// What was counted, for those who watch.
    pub fn figures(&self) -> Vec<Figure> {
        let common = &self.common;
        let max = common.config.connections_max;
        let gauge = |name: &str, help: &str, value: usize| {
            Figure::new(format!("esker_thrift_{name}"), help, Value::Gauge(value as f64))
        };
        let is_asynchronous = common.service.mode() == WriteMode::Asynchronous;
        let held = common.memory.held_bytes() + common.passed_on.held_bytes() + common.shares.held_bytes();
        let dirty = common.service.dirty();
        let weight = dirty.weight();
        let known = max - common.known.available_permits().min(max);
        let mut figures = vec![
            gauge("connections", "Connections of clients that have begun a call", known),
            gauge("connections_max", "Most of them (thrift_connections)", max),
            gauge("strangers", "Connections without such a call yet", self.strangers.len()),
            gauge("memory_bytes", "Memory that long messages, calls that read and long answers hold", held),
            gauge("asynchronous", "1 where writes are acknowledged when applied", usize::from(is_asynchronous)),
            gauge("dirty_keys", "Keys of asynchronous writes that are not known to be durable", weight.keys as usize),
            gauge("dirty_bytes", "Their bytes, with those of values and 64 for each", weight.bytes as usize),
            gauge("async_bytes_max", "Most of these bytes (thrift_async_bytes)", dirty.bytes_max() as usize),
            gauge("async_waiting", "Calls that wait for asynchronous writes to be durable", dirty.waiting()),
        ];
        let sent_away = Value::Counter(self.strangers.sent_away() as f64);
        let help = "Connections closed before such a call, to make room or for their time";
        figures.push(Figure::new("esker_thrift_strangers_sent_away", help, sent_away));
        figures.extend(common.counts.figures());
        figures
    }
}

/// What the head of another chain asks for.
async fn answer(common: &Common, request: AskKeysRequest) -> AskKeysResponse {
    common.counts.taken_on.fetch_add(1, Ordering::Relaxed);
    let _under_way = common.under_way.begin();
    let (until, bytes_max) = (Instant::now() + CLOSED, usize::try_from(request.bytes_max).unwrap_or(usize::MAX));
    let answered = async {
        let own = common.service.told();
        if request.namespace != own {
            let why = format!("by Thrift another chain serves {own:?}, and not {:?}", request.namespace);
            return Err(Exception::internal(format!("{why}: the same thrift_namespace is to be set for both")));
        }
        let (asked, mode) = carried::asked(request, common.service.kind())?;
        let patience = Duration::from_secs(common.config.message_seconds);
        // What it writes is in memory already, and counts so that others wait.
        let bytes = asked.read_bytes_max().max(asked.written_bytes());
        let _held = common.passed_on.to_read(bytes, patience).await?;
        // It is acknowledged early only where both servers do: what has been made safe here meanwhile counts.
        let service = if mode == WriteMode::Safe && asked.writes() {
            common.service.in_safe_mode()
        } else {
            Arc::clone(&common.service)
        };
        Ok(match asked {
            Asked::Iterate { after, limit } => carried::page_response(service.page_kept(after, limit, until).await?),
            Asked::Count | Asked::SetMode(_) => carried::response(service.run_alone(asked).await.map(Kept::Done)),
            asked => carried::bounded(service.run_kept(asked, until).await, bytes_max),
        })
    };
    answered.await.unwrap_or_else(|exception| carried::response(Err(exception)))
}

impl Server {
    /// Opens the namespace in `kv`, which makes it if it is missing, and listens. `sharing`: keys may be shared with
    /// other chains of a cluster; then the namespace is in the store of the databases whose slots it moves.
    ///
    /// # Errors
    /// What [`Config::check`] refuses; [`Error::Kv`], [`Error::Listen`], [`Error::Tls`], [`Error::Threads`].
    pub fn bind(config: Config, kv: Kv, sharing: Option<Sharing>) -> Result<Self> {
        config.check()?;
        let open = |files| Certificates::open(files, &[]).map(Arc::new);
        let certificates = config.tls.as_ref().map(open).transpose().map_err(|error| Error::Tls(error.to_string()))?;
        // Its locks are those that who moves slots waits for.
        let kv = sharing.as_ref().map_or(kv, |sharing| sharing.moving.kv().clone());
        let namespace = kv.namespace(&config.namespace, config.kind)?;
        let workers = Workers::start(config.threads, config.waiting_threads_max)?;
        let doors = ThriftDoors::open(&config, workers.first())?;
        let strangers = Strangers::new(config.strangers_max, Duration::from_secs(config.stranger_seconds));
        let dirty = Dirty::new(config.async_bytes_max, config.async_age_max);
        let common = Arc::new(Common {
            service: Arc::new(KeyService::new(kv, namespace, config.mode.clone(), dirty, sharing)),
            counts: Arc::default(),
            known: Arc::new(Semaphore::new(config.connections_max)),
            memory: Arc::new(ThriftMemory::of(config.memory_bytes_max)),
            shares: Arc::new(Shares::of(config.memory_bytes_max)),
            passed_on: ThriftMemory::of(config.memory_bytes_max),
            under_way: UnderWay::default(),
            config,
        });
        let (stop, crew) = (Arc::new(watch::Sender::new(false)), workers.crew());
        let handle = Handle { common, strangers, certificates, stop, crew };
        Ok(Self { workers, doors, handle })
    }

    /// Where it listens, with the ports that were picked for port 0.
    pub fn addresses(&self) -> &[Address] {
        self.doors.addresses()
    }

    /// What stops it.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Answers clients until [`Handle::shutdown`]. Blocks.
    pub fn run(self) {
        let Self { workers, doors, handle } = self;
        for address in doors.addresses() {
            let service = &handle.common.service;
            tracing::info!(%address, namespace = service.name(), mode = ?service.mode(), "serving Thrift");
        }
        let Handle { common, strangers, certificates, stop, crew } = handle;
        let (linger, mut stopping) = (common.config.linger, stop.subscribe());
        let common_of_peers = Arc::clone(&common);
        let service = Arc::clone(&common.service);
        workers.run(async move {
            tokio::spawn(service.keep_durable());
            let (open, mut closed) = mpsc::channel(1);
            let hall = Hall { common, strangers, certificates, stopping: stopping.clone(), crew, open };
            doors.serve(&hall);
            drop(hall);
            // One that is gone stops as well.
            let _ = stopping.wait_for(|stopping| *stopping).await;
            // Those that have nothing under way end now; nothing is ever sent.
            let ended = async {
                closed.recv().await;
                common_of_peers.under_way.ended().await;
            };
            let _ = tokio::time::timeout(linger, ended).await;
        });
    }
}

#[cfg(test)]
mod tests;
