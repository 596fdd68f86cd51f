//! What is served of a store, from when it listens: the Redis protocol, disks, gRPC, Thrift; and the engine as clients
//! see it.
//!
//! store, configurations → [`Started::new`] → [`Started::tell`] → [`Started::run`] → ended
//!
//! Invariant: the figures and settings of the engine reach clients only through [`EngineInfo`].

use std::path::PathBuf;
use std::sync::Arc;

use esker::engine::Engine;
use esker::kv::{Kv, SystemClock};
use esker_server::http::Running;
use esker_server::resp::{Address, Config, EngineInfo, Health, InfoLine, Loading, NoEngineInfo, Server};
use esker_server::thrift::{Ring, Sharing};

use super::disks::Disks;
use super::rpc::Rpc;
use super::seat::{Protocols, Seat, Serving};
use super::shared::failure;
use super::stopping::Stopping;
use super::thrift::Thrift;
use super::watched;
use crate::commands::backup::Backups;
use crate::commands::tasks::Tasks;
use crate::exit::Failure;

/// What is served, by which configuration.
#[derive(Clone)]
pub struct Parts {
    /// The Redis protocol.
    pub resp: Config,
    /// Disks.
    pub disks: Option<esker_server::nbd::Config>,
    /// Logs and map.
    pub rpc: Option<esker_server::grpc::Config>,
    /// A namespace of keys.
    pub thrift: Option<esker_server::thrift::Config>,
    /// The chains that its keys may be shared with.
    pub ring: Option<Arc<dyn Ring>>,
    /// The node of the coordinator below which the server registers for it; empty: it does not.
    pub registry: String,
    /// The folder that clients may have backups made in.
    pub backups: Option<PathBuf>,
}

/// What listens, and answers once it runs.
pub struct Started {
    server: Server,
    disks: Option<Disks>,
    rpc: Option<Rpc>,
    thrift: Option<Thrift>,
}

impl Started {
    /// Listens, on the sockets that are bound already where there are such; and tells the person at the terminal where,
    /// and of the store `announced`, if that is given.
    pub fn new(
        store: &esker::Store,
        (loading, announced): (Option<Loading>, Option<&esker::Store>),
        parts: Parts,
        stopping: &Arc<Stopping>,
    ) -> Result<Self, Failure> {
        let Parts { resp, disks, rpc, thrift, ring, registry: _, backups } = parts;
        let kv = match &resp.reading {
            Some(_) => Kv::to_read(store.objects(), Arc::new(SystemClock)),
            None => store.kv()?,
        };
        let engine = engine(store, backups, stopping)?;
        let server = match loading {
            Some(loading) => Server::on(loading, resp, kv, engine),
            None => Server::bind(resp, kv, engine),
        };
        let server = server.map_err(failure)?;
        announced.into_iter().for_each(|store| announce(store, &server));
        let mut started = Self { server, disks: None, rpc: None, thrift: None };
        match started.start(store, (disks, rpc, thrift), ring) {
            Ok(()) => Ok(started),
            Err(failure) => {
                started.abandon();
                Err(failure)
            }
        }
    }

    /// Starts the other protocols.
    fn start(
        &mut self,
        store: &esker::Store,
        (disks, rpc, thrift): (
            Option<esker_server::nbd::Config>,
            Option<esker_server::grpc::Config>,
            Option<esker_server::thrift::Config>,
        ),
        ring: Option<Arc<dyn Ring>>,
    ) -> Result<(), Failure> {
        let handle = self.server.handle();
        if let Some(config) = disks {
            let handle = handle.clone();
            let alone = !store.is_shared() && !rpc.as_ref().is_some_and(|rpc| rpc.objects);
            self.disks = Some(Disks::start(store, config, alone, move || handle.shutdown())?);
        }
        if let Some(config) = rpc {
            let stop = handle.clone();
            self.rpc = Some(Rpc::start(store, config, watched::ready(&handle), move || stop.shutdown())?);
        }
        let sharing = ring.map(|ring| Sharing { moving: handle.moving(), ring });
        self.thrift = thrift.map(|config| Thrift::start(store, config, sharing)).transpose()?;
        Ok(())
    }

    /// Ends what has begun to answer, and what moves slots: it does not come to be served.
    pub fn abandon(self) {
        self.server.handle().shutdown();
        let ended = [
            self.disks.map_or(Ok(()), Disks::stop),
            self.rpc.map_or(Ok(()), Rpc::stop),
            self.thrift.map_or(Ok(()), Thrift::stop),
        ];
        for failure in ended.into_iter().filter_map(Result::err) {
            tracing::warn!(%failure, "what is not served ended with an error");
        }
    }

    /// What is served, for those who watch and those who stop it.
    pub fn tell(&self, store: &esker::Store, seat: &Seat, http: Option<&Running>) -> Protocols {
        let resp = self.server.handle();
        let (nbd, grpc) = (self.disks.as_ref().map(Disks::handle), self.rpc.as_ref().map(Rpc::handle));
        let thrift = self.thrift.as_ref().map(Thrift::handle);
        seat.tell(Serving {
            resp: resp.clone(),
            store: store.clone(),
            nbd: nbd.clone(),
            grpc: grpc.clone(),
            thrift: thrift.clone(),
        });
        Protocols { resp, nbd, grpc, thrift, http: http.map(Running::handle) }
    }

    /// Answers until all of it was told to stop.
    pub fn run(self) -> Result<(), Failure> {
        let served = self.server.run().map_err(failure);
        // All were told to stop at once; here their ends are waited for.
        let served = served.and(self.disks.map_or(Ok(()), Disks::stop)).and(self.rpc.map_or(Ok(()), Rpc::stop));
        served.and(self.thrift.map_or(Ok(()), Thrift::stop))
    }
}

/// The engine as clients see it.
fn engine(
    store: &esker::Store,
    backups: Option<PathBuf>,
    stopping: &Arc<Stopping>,
) -> Result<Arc<dyn EngineInfo>, Failure> {
    Ok(match store.engine() {
        Some(engine) => {
            let (engine, backups) = (Arc::clone(engine), backups.map(Backups::new));
            let (store, stopping) = (store.clone(), Arc::clone(stopping));
            Arc::new(Wired { engine, store, backups, tasks: Tasks::default(), stopping })
        }
        None if backups.is_some() => {
            let why = format!("backup_folder: backups need a store on a device; this one is {}", store.backend());
            return Err(Failure::usage(why));
        }
        None => Arc::new(Bare { stopping: Arc::clone(stopping) }),
    })
}

/// Says where everything is, for the person who has just started it.
fn announce(store: &esker::Store, server: &Server) {
    match (store.path(), store.engine()) {
        (Some(path), Some(engine)) => {
            let recovery = engine.recovery();
            let age = if store.created() {
                let len = std::fs::metadata(path).map(|metadata| metadata.len()).unwrap_or(0);
                format!("made just now, {}", esker::ByteSize(len))
            } else if recovery.clean {
                format!("closed cleanly, opened in {} ms", recovery.elapsed.as_millis())
            } else {
                format!("recovered {} transactions in {} ms", recovery.records, recovery.elapsed.as_millis())
            };
            say!("store      {} ({age}, policy {})", path.display(), engine.policy());
        }
        (Some(path), None) => {
            let age = if store.created() { "made just now" } else { "opened" };
            say!("store      {}:{} ({age})", store.backend(), path.display());
        }
        _ => say!("store      in memory: gone when this process ends"),
    }
    for address in server.addresses() {
        say!("listening  {address}");
    }
    if let Some(address) = server.addresses().first() {
        say!("try        redis-cli {} set greeting hello", reach(address));
    }
}

/// The options with which redis-cli reaches an address of this machine.
fn reach(address: &Address) -> String {
    let (address, encrypted) = match address {
        Address::Unix(path) => return format!("-s {}", path.display()),
        Address::Tcp(address) => (address, ""),
        Address::Tls(address) => (address, " --tls"),
    };
    let host = match address.ip() {
        ip if ip.is_unspecified() || ip == std::net::Ipv4Addr::LOCALHOST => String::new(),
        ip => format!("-h {ip} "),
    };
    format!("{host}-p {}{encrypted}", address.port())
}

/// The section of INFO with the times of each stage.
pub const STAGES_SECTION: &str = "Esker_stages";

/// The engine as the server's clients see it.
struct Wired {
    engine: Arc<Engine>,
    store: esker::Store,
    backups: Option<Backups>,
    tasks: Tasks,
    stopping: Arc<Stopping>,
}

/// A store that is no engine: nothing is told of it.
struct Bare {
    stopping: Arc<Stopping>,
}

impl EngineInfo for Bare {
    fn reload(&self) -> Result<(), String> {
        self.stopping.reload()
    }

    fn give_memory_back(&self) {
        esker::give_kept_memory_back();
    }

    fn info(&self) -> Vec<InfoLine> {
        NoEngineInfo.info()
    }

    fn settings(&self) -> Vec<(String, String)> {
        NoEngineInfo.settings()
    }

    fn set(&self, name: &str, value: &str) -> Result<bool, String> {
        NoEngineInfo.set(name, value)
    }
}

impl EngineInfo for Wired {
    fn reload(&self) -> Result<(), String> {
        self.stopping.reload()
    }

    fn give_memory_back(&self) {
        esker::give_kept_memory_back();
    }

    fn health(&self) -> Health {
        match self.engine.health() {
            esker::engine::Health::Running => Health::Running,
            esker::engine::Health::Full => Health::Full,
            esker::engine::Health::Stopped(cause) => Health::Stopped(cause.to_string()),
        }
    }

    fn info(&self) -> Vec<InfoLine> {
        let line =
            |section: &str, key: &str, value: String| InfoLine { section: section.into(), key: key.into(), value };
        let mut lines = vec![line("Esker", "commit_policy", self.engine.policy().to_string())];
        lines.extend(self.engine.stats().entries().into_iter().map(|(name, value)| line("Esker", name, value)));
        for (name, uses) in self.engine.cache_uses() {
            let counts = format!("hits={},misses={}", uses.hits, uses.misses);
            lines.push(line("Esker", &format!("cache_uses_{}", name.replace(':', "\\x3a")), counts));
        }
        let recovery = self.engine.recovery();
        for (name, value) in [
            ("recovery_clean", u64::from(recovery.clean)),
            ("recovery_segments", recovery.segments),
            ("recovery_records", recovery.records),
            ("recovery_bytes", recovery.bytes),
            ("recovery_torn_bytes", recovery.torn_bytes),
            ("recovery_checkpoints_passed_over", recovery.checkpoints_passed_over),
            ("recovery_ms", recovery.elapsed.as_millis() as u64),
        ] {
            lines.push(line("Esker", name, value.to_string()));
        }
        for (name, value) in self.backups.iter().flat_map(Backups::figures) {
            lines.push(line("Esker", name, value));
        }
        let swept = self.store.sweep_figures();
        for (name, value) in [
            ("map_sweep_rate", swept.rate),
            ("map_swept_rows", swept.removed),
            ("map_sweep_renewed", swept.renewed),
            ("map_sweep_steps", swept.steps),
            ("map_sweep_failures", swept.failures),
        ] {
            lines.push(line("Esker", name, value.to_string()));
        }
        lines.extend(self.tasks.figures().map(|(name, value)| line("Esker", &name, value)));
        for (name, times) in self.engine.stages() {
            let us = |percent| times.at_most_ns(percent) as f64 / 1e3;
            let max = times.max_ns as f64 / 1e3;
            let (p50, p99, p999) = (us(50), us(99), times.at_most_permille_ns(999) as f64 / 1e3);
            let figures =
                format!("timed={} p50_us={p50:.1} p99_us={p99:.1} p999_us={p999:.1} max_us={max:.1}", times.count());
            lines.push(line(STAGES_SECTION, name, figures));
            lines.push(line(STAGES_SECTION, &format!("{name}_histogram"), times.to_string()));
        }
        lines
    }

    fn check(&self, deep: bool) -> Result<(), String> {
        self.tasks.check(&self.engine, deep)
    }

    fn check_report(&self) -> String {
        self.tasks.check_report()
    }

    fn scrub(&self) -> Result<(), String> {
        self.tasks.scrub(&self.engine)
    }

    fn scrub_report(&self) -> String {
        self.tasks.scrub_report()
    }

    fn compact(&self) -> Result<(), String> {
        self.tasks.compact(&self.engine)
    }

    fn compact_report(&self) -> String {
        self.tasks.compact_report()
    }

    fn grow(&self) -> Result<(), String> {
        self.tasks.grow(&self.engine)
    }

    fn backup(&self) -> Result<(), String> {
        let none = "the server was started without --backup-folder, and so makes no backups";
        self.backups.as_ref().ok_or(none)?.start(&self.engine)
    }

    fn settings(&self) -> Vec<(String, String)> {
        let rate = esker::ByteSize(self.engine.scrub_status().rate).to_string();
        vec![("policy".into(), self.engine.policy().to_string()), ("scrub".into(), rate)]
    }

    fn set(&self, name: &str, value: &str) -> Result<bool, String> {
        match name {
            "policy" => {
                self.engine.set_policy(value.parse().map_err(|error: esker::engine::PolicyError| error.to_string())?);
                tracing::info!(policy = value, "commit policy changed");
                Ok(true)
            }
            "scrub" => {
                let rate: esker::ByteSize = value.parse().map_err(|error| format!("{error}"))?;
                self.engine.set_scrub_rate(rate.0);
                tracing::info!(bytes_per_s = rate.0, "scrub rate changed");
                Ok(true)
            }
            // The server has made `always` the default durability; a policy that acknowledges earlier would undo it.
            "appendfsync" => {
                if value.eq_ignore_ascii_case("always") && self.engine.policy().acknowledges_applied() {
                    self.engine.set_policy(esker::CommitPolicy::default());
                }
                Ok(true)
            }
            _ => Ok(false),
        }
    }
}
