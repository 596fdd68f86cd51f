//! `esker serve`: a store behind the Redis protocol, its volumes behind NBD, and its logs behind gRPC.
//!
//! settings under flags → addresses → store → servers; a signal → servers stop → store closes cleanly
//!
//! Invariants:
//! 1. The store closes after the last client was answered, whatever ends the server.
//! 2. The figures and settings of the engine reach clients only through [`EngineInfo`].

/// Prints a line for the person at the terminal; if nothing reads it any more, the server goes on without.
macro_rules! say {
    ($($words:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stdout(), $($words)*);
    }};
}

mod descriptors;
pub mod disks;
mod opening;
mod passed;
pub mod rpc;
mod shared;
mod stopping;
mod watched;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use esker::engine::Engine;
use esker_server::front::Passed;
use esker_server::http::Running;
use esker_server::resp::{Address, Config, EngineInfo, Health, InfoLine, Loading, NoEngineInfo, Server};
use signal_hook::iterator::Signals;

use self::disks::{Disks, NbdFlags};
pub use self::passed::Sockets;
use self::rpc::{GrpcFlags, Rpc};
use self::shared::{Front, failure};
pub use self::shared::{addresses, password};
use self::stopping::{Anew, Protocols, Stopping, Told};
use self::watched::{Serving, Watched};
use super::backup::Backups;
use super::builder;
use super::server::password_from_environment;
use super::tasks::Tasks;
use crate::config::{OtlpSettings, ServeSettings, Settings, Text};
use crate::exit::{Code, Failure};
use crate::otlp::Exporting;

/// The arguments of `esker serve`. What is not given comes from the configuration.
#[derive(Args)]
pub struct Serve {
    /// The store: a folder, a file, a block device, or a URL such as `file:PATH` or `memory:`; made if it does not
    /// exist
    #[arg(long, short, value_name = "PATH")]
    store: Option<String>,
    /// Do not serve the Redis protocol
    #[arg(long, conflicts_with_all = ["listen", "tls_listen", "unix_socket"])]
    no_resp: bool,
    /// Address to listen on; may be given several times
    #[arg(long, short, value_name = "ADDRESS")]
    listen: Vec<String>,
    /// Address that speaks TLS; may be given several times
    #[arg(long, value_name = "ADDRESS")]
    tls_listen: Vec<String>,
    /// Unix socket to listen on as well
    #[arg(long, value_name = "PATH")]
    unix_socket: Option<String>,
    /// Password that clients give with AUTH; better in a file, since others see arguments
    ///
    /// The variable ESKER_PASSWORD gives it where no flag does.
    #[arg(long, value_name = "PASSWORD")]
    password: Option<String>,
    /// File whose first line is the password
    #[arg(long, value_name = "FILE", conflicts_with = "password")]
    password_file: Option<String>,
    /// File of users (TOML), with their roles and what they may reach; without it there is one, who may do everything
    #[arg(long, value_name = "FILE")]
    users_file: Option<String>,
    /// How long clients have to take what is under way when the server stops, such as 8s; the store then has twice
    /// that to close
    #[arg(long, value_name = "TIME")]
    drain: Option<esker::Period>,
    /// Certificate chain (PEM); without --tls-listen all addresses speak TLS then
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<String>,
    /// Private key (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<String>,
    /// When commits are synced: adaptive, batch, group:WINDOW or periodic:INTERVAL
    #[arg(long)]
    policy: Option<esker::CommitPolicy>,
    /// Database (0 to 15) whose plain u64 keys are kept in slots; may be given several times
    #[arg(long, value_name = "N")]
    int_db: Vec<u64>,
    /// Compression of values written to the databases from now on: none, lz4 or zstd; each database remembers it
    #[arg(long, value_name = "CODEC")]
    compress: Option<esker::Compression>,
    /// Memory for data that was read, such as 1g
    #[arg(long, value_name = "SIZE")]
    cache_bytes: Option<esker::ByteSize>,
    /// Memory for pages of the index, such as 1g; without it all of the index stays in memory
    #[arg(long, value_name = "SIZE")]
    index_bytes: Option<esker::ByteSize>,
    /// Most clients at the same time
    #[arg(long)]
    max_clients: Option<u64>,
    /// A client that says nothing for so long is closed, such as 5m; 0 means never
    #[arg(long, value_name = "TIME")]
    idle_timeout: Option<esker::Period>,
    /// Loopback address that answers /livez, /readyz and /metrics by HTTP; may be given several times
    #[arg(long, value_name = "ADDRESS")]
    http: Vec<String>,
    /// Address that answers the same by HTTPS; other than loopback only with a token or client certificates; may be
    /// given several times
    #[arg(long, value_name = "ADDRESS")]
    https: Vec<String>,
    /// File whose first line clients of HTTP have to send as `authorization: Bearer TOKEN` to be told the figures
    #[arg(long, value_name = "FILE")]
    http_token_file: Option<String>,
    /// Folder that the command ESKER.BACKUP makes backups in; without it clients cannot ask for any
    #[arg(long, value_name = "FOLDER")]
    backup_folder: Option<String>,
    /// Threads that serve clients; 0 means one per processor, at most 4
    #[arg(long)]
    threads: Option<u64>,
    /// Collector of OpenTelemetry to send traces and figures to, such as http://127.0.0.1:4317; only in programs built
    /// with the feature otlp
    #[arg(long, value_name = "ENDPOINT")]
    otlp: Option<String>,
    #[command(flatten)]
    nbd: NbdFlags,
    #[command(flatten)]
    grpc: GrpcFlags,
}

impl Serve {
    /// What is exported: the flag over the configuration.
    pub fn otlp<'s>(&self, settings: &'s mut Settings) -> &'s OtlpSettings {
        if let Some(endpoint) = &self.otlp {
            settings.otlp.endpoint.clone_from(endpoint);
        }
        &settings.otlp
    }

    /// Runs the command until a signal or SHUTDOWN.
    pub fn run(self, mut settings: Settings, exporting: Exporting, sockets: Sockets) -> Result<(), Failure> {
        self.apply(&mut settings);
        let front = Front::of(&settings.serve)?;
        let watching = watched::config(&settings.serve, &front, &sockets)?;
        let mut config = config(&settings.serve, &front, &sockets)?;
        let mut disks = disks::config(&settings.serve, &settings.store.location, &front, sockets.nbd)?;
        let mut rpc = rpc::config(&settings.serve, &front, sockets.grpc)?;
        if config.off && disks.is_none() && rpc.is_none() {
            return Err(Failure::usage("nothing is served: resp = false, and no address of NBD or gRPC"));
        }
        let doors = watching.doors();
        let lowered = descriptors::fit(descriptors::raise(), &mut config, disks.as_mut(), rpc.as_mut(), doors);
        if let Some(lowered) = lowered {
            say!("limits     {lowered}");
        }
        let location = settings.store.location.clone();
        // Keys are expired by the server itself.
        let mut builder = builder(&settings).expire_interval(Duration::ZERO).map_sweep(settings.serve.map_sweep);
        if let Some(options) = rpc::sequencers(&settings.serve)? {
            builder = builder.sequencers(options);
        }
        let watched = Arc::new(Watched::default());
        let http = watched::start(&watching, &watched)?;
        if let Some(about) = exporting.tell(Arc::clone(&watched) as _) {
            say!("otlp       {about}");
        }
        let Some((loading, store, signals)) = opening::open(&config, builder, &location)? else {
            // The thread that opens the store ends with the process: as after a crash, nothing is lost by that.
            std::process::exit(0);
        };
        let backups = Some(settings.serve.backup_folder.as_str()).filter(|folder| !folder.is_empty());
        let secrets = settings.serve.clone();
        let stopping = Stopping::new(front, move |front| reread(&secrets, front));
        let served = serve(
            &store,
            (loading, config, signals),
            (disks, rpc),
            backups.map(PathBuf::from),
            (&watched, &http),
            &stopping,
        );
        // Told until everybody was answered.
        http.into_iter().for_each(Running::stop);
        // Even if the server failed, what it acknowledged must end up in a clean store.
        let (served, told) = match served {
            Ok((served, told)) => (served, Some(told)),
            Err(failure) => (Err(failure), None),
        };
        let closed = store.close().map_err(Failure::from);
        stopping.closed();
        exporting.stop();
        // Until here a signal ends the process at once.
        told.into_iter().for_each(Told::end);
        served.and(closed)
    }

    /// Puts the flags over the configuration.
    fn apply(self, settings: &mut Settings) {
        fn over<T>(target: &mut T, flag: Option<T>) {
            if let Some(value) = flag {
                *target = value;
            }
        }
        over(&mut settings.store.location, self.store);
        over(&mut settings.store.policy, self.policy.map(Text));
        over(&mut settings.store.cache, self.cache_bytes.map(Text));
        over(&mut settings.store.index, self.index_bytes.map(Text));
        let serve = &mut settings.serve;
        // A password from the command line, or the environment, replaces the file's, however the file gave it.
        let from_environment = || password_from_environment().filter(|_| self.password_file.is_none());
        let given = self.password.or_else(from_environment);
        if given.is_some() || self.password_file.is_some() {
            serve.password = given.unwrap_or_default();
            serve.password_file = self.password_file.unwrap_or_default();
        }
        serve.resp &= !self.no_resp;
        over(&mut serve.listen, Some(self.listen).filter(|listen| !listen.is_empty()));
        over(&mut serve.tls_listen, Some(self.tls_listen).filter(|listen| !listen.is_empty()));
        over(&mut serve.unix_socket, self.unix_socket);
        over(&mut serve.users_file, self.users_file);
        over(&mut serve.drain, self.drain.map(Text));
        over(&mut serve.tls_cert, self.tls_cert);
        over(&mut serve.tls_key, self.tls_key);
        over(&mut serve.int_databases, Some(self.int_db).filter(|databases| !databases.is_empty()));
        over(&mut serve.compress, self.compress.map(|codec| codec.to_string()));
        over(&mut serve.max_clients, self.max_clients);
        over(&mut serve.idle_timeout, self.idle_timeout.map(Text));
        over(&mut serve.http_listen, Some(self.http).filter(|listen| !listen.is_empty()));
        over(&mut serve.https_listen, Some(self.https).filter(|listen| !listen.is_empty()));
        over(&mut serve.http_token_file, self.http_token_file);
        over(&mut serve.backup_folder, self.backup_folder);
        over(&mut serve.threads, self.threads);
        self.nbd.apply(serve);
        self.grpc.apply(serve);
    }
}

/// Least and most memory for all clients where nothing is said.
const CLIENTS_BYTES: (u64, u64) = (64 << 20, 1 << 30);

/// The server's configuration.
fn config(settings: &ServeSettings, front: &Front, sockets: &Sockets) -> Result<Config, Failure> {
    let path = |text: &str| (!text.is_empty()).then(|| PathBuf::from(text));
    let tls = front.tls.clone();
    let (mut listen, mut tls_listen) = (addresses(&settings.listen)?, addresses(&settings.tls_listen)?);
    if tls.is_some() && tls_listen.is_empty() {
        std::mem::swap(&mut listen, &mut tls_listen);
    }
    let (mut plain, mut encrypted) = (sockets.resp.clone(), sockets.resp_tls.clone());
    if tls.is_some() && settings.tls_listen.is_empty() {
        // As the addresses that they stand for. TLS is not spoken over unix sockets.
        let tcp: Vec<Passed>;
        (tcp, plain) = plain.into_iter().partition(|socket| socket.address().is_some());
        encrypted.extend(tcp);
    }
    let passed = !plain.is_empty() || !encrypted.is_empty();
    if !settings.resp && passed {
        return Err(Failure::usage("resp = false, and yet a socket was passed for it"));
    }
    // A supervisor that passes sockets for a protocol says where that is listened on.
    let own = settings.resp && !passed;
    let (listen, tls_listen) = if own { (listen, tls_listen) } else { (Vec::new(), Vec::new()) };
    let number = |value: u64| usize::try_from(value).unwrap_or(usize::MAX);
    let compression = match settings.compress.as_str() {
        "" => None,
        name => Some(name.parse().map_err(|error| Failure::usage(format!("compress: {error}")))?),
    };
    let clients_bytes_max = match settings.clients_memory.0.0 {
        0 => (esker::memory_bytes().unwrap_or(u64::MAX) / 8).clamp(CLIENTS_BYTES.0, CLIENTS_BYTES.1),
        given => given,
    };
    let clients_bytes_max = number(clients_bytes_max);
    let config = Config {
        clients_bytes_max,
        output_bytes_max: Config::default().output_bytes_max.min((clients_bytes_max / 4).max(1 << 20)),
        listen,
        tls_listen,
        tls,
        passed: plain,
        tls_passed: encrypted,
        off: !settings.resp,
        unix_socket: path(&settings.unix_socket).filter(|_| own),
        unix_access: front.unix.clone(),
        password: password(settings)?,
        users: front.users.clone(),
        linger: front.linger,
        threads: number(settings.threads),
        afar_threads: number(settings.afar_threads),
        clients_max: number(settings.max_clients),
        idle_seconds: settings.idle_timeout.0.0.as_millis().div_ceil(1_000) as u64,
        int_databases: settings.int_databases.iter().map(|index| u8::try_from(*index).unwrap_or(u8::MAX)).collect(),
        compression,
        ..Config::default()
    };
    config.check().map_err(|error| Failure::usage(error.to_string()))?;
    Ok(config)
}

fn serve(
    store: &esker::Store,
    (loading, config, signals): (Loading, Config, Signals),
    (disks, rpc): (Option<esker_server::nbd::Config>, Option<esker_server::grpc::Config>),
    backups: Option<PathBuf>,
    (watched, http): (&Watched, &Option<Running>),
    stopping: &Arc<Stopping>,
) -> Result<(Result<(), Failure>, Told), Failure> {
    let kv = store.kv()?;
    let engine: Arc<dyn EngineInfo> = match store.engine() {
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
    };
    let server = Server::on(loading, config, kv, engine).map_err(failure)?;
    announce(store, &server);
    let handle = server.handle();
    let disks = match disks {
        Some(config) => {
            let handle = handle.clone();
            let alone = !store.is_shared() && !rpc.as_ref().is_some_and(|rpc| rpc.objects);
            Some(Disks::start(store, config, alone, move || handle.shutdown())?)
        }
        None => None,
    };
    let rpc = match rpc {
        Some(config) => {
            let handle = handle.clone();
            Some(Rpc::start(store, config, watched::ready(&handle), {
                let handle = handle.clone();
                move || handle.shutdown()
            })?)
        }
        None => None,
    };
    let (nbd, grpc) = (disks.as_ref().map(Disks::handle), rpc.as_ref().map(Rpc::handle));
    watched.serve(Serving { resp: handle.clone(), store: store.clone(), nbd: nbd.clone(), grpc: grpc.clone() });
    let http = http.as_ref().map(Running::handle);
    let told = stopping.begin(Protocols { resp: handle, nbd, grpc, http }, signals)?;
    let served = server.run().map_err(failure);
    // All were told to stop at once; here their ends are waited for.
    let served = served.and(disks.map_or(Ok(()), Disks::stop)).and(rpc.map_or(Ok(()), Rpc::stop));
    Ok((served, told))
}

/// Users, password and token, where files hold them, as they are now.
fn reread(settings: &ServeSettings, front: &Front) -> Result<Anew, Failure> {
    let (password, token) = (password(settings)?, rpc::token(&settings.grpc_token_file)?);
    let http_token = rpc::token(&settings.http_token_file)?;
    let users = match &front.users {
        None => Box::new(|| ()) as Box<dyn FnOnce() + Send>,
        Some(users) => {
            let read = users.prepare(password.as_deref(), token.as_deref());
            read.map_err(|error| Failure::of(Code::Usage, &error))?
        }
    };
    // A password that is a setting itself stays as CONFIG SET left it.
    let password = password.filter(|_| !settings.password_file.is_empty());
    Ok(Anew { users, password, token, http_token })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_go_over_the_configuration() {
        let mut settings = Settings::default();
        settings.serve.password = "from the file".into();
        let serve = Serve {
            no_resp: false,
            store: Some("elsewhere".into()),
            listen: vec!["127.0.0.1:0".into()],
            tls_listen: Vec::new(),
            unix_socket: None,
            password: None,
            password_file: None,
            users_file: None,
            drain: None,
            tls_cert: None,
            tls_key: None,
            policy: Some("group:2ms".parse().unwrap()),
            int_db: vec![3],
            compress: Some(esker::Compression::Zstd),
            cache_bytes: None,
            index_bytes: None,
            max_clients: Some(5),
            idle_timeout: Some(esker::Period(Duration::from_millis(1_500))),
            http: Vec::new(),
            https: Vec::new(),
            http_token_file: None,
            backup_folder: None,
            threads: None,
            otlp: None,
            nbd: NbdFlags::default(),
            grpc: GrpcFlags::default(),
        };
        serve.apply(&mut settings);
        assert_eq!(settings.store.location, "elsewhere");
        assert_eq!(settings.store.policy.0.to_string(), "group:2ms");
        let config = config(&settings.serve, &Front::of(&settings.serve).unwrap(), &Sockets::default()).unwrap();
        assert_eq!(config.password.as_deref(), Some("from the file"));
        assert_eq!((config.clients_max, config.idle_seconds), (5, 2));
        assert_eq!(config.int_databases, [3]);
        assert_eq!(config.compression, Some(esker::Compression::Zstd));
    }

    #[test]
    fn what_cannot_be_served_is_refused_with_the_reason() {
        let check = |change: fn(&mut ServeSettings), expected: &str| {
            let mut settings = ServeSettings::default();
            change(&mut settings);
            let error = Front::of(&settings)
                .and_then(|front| config(&settings, &front, &Sockets::default()))
                .unwrap_err()
                .to_string();
            assert!(error.contains(expected), "{error}");
        };
        check(|settings| settings.listen = vec!["0.0.0.0:6379".into()], "password");
        check(|settings| settings.listen = vec!["6379".into()], "HOST:PORT");
        check(|settings| settings.tls_cert = "cert.pem".into(), "together");
        check(|settings| settings.int_databases = vec![16], "int_databases");
        check(|settings| settings.max_clients = 0, "clients_max");
        check(|settings| settings.password_file = "/nonexistent".into(), "password file");
    }
}
