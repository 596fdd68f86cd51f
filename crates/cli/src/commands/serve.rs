//! `esker serve`: a store behind the Redis protocol, its volumes behind NBD, and its logs behind gRPC.
//!
//! settings under flags → addresses → store → servers; a signal → servers stop → store closes cleanly
//!
//! Invariant: the store closes after the last client was answered, whatever ends the server.

/// Prints a line for the person at the terminal; if nothing reads it any more, the server goes on without.
macro_rules! say {
    ($($words:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stdout(), $($words)*);
    }};
}

mod clustered;
mod descriptors;
pub mod disks;
mod opening;
mod paired;
mod passed;
mod relay;
pub mod rpc;
mod shared;
mod started;
mod stopping;
mod terms;
mod watched;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use esker_server::front::Passed;
use esker_server::http::Running;
use esker_server::resp::{Config, Loading};
use signal_hook::iterator::Signals;

use self::clustered::ClusterFlags;
use self::disks::NbdFlags;
use self::paired::PairFlags;
pub use self::paired::address as pair_address;
pub use self::passed::Sockets;
use self::rpc::GrpcFlags;
use self::shared::Front;
pub use self::shared::{addresses, password};
pub use self::started::STAGES_SECTION;
use self::started::{Parts, Started};
use self::stopping::{Anew, Stopping, Told};
use self::terms::Doors;
use self::watched::Watched;
use super::builder;
use super::server::password_from_environment;
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
    #[command(flatten)]
    cluster: ClusterFlags,
    #[command(flatten)]
    pair: PairFlags,
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
        let replaces = self.pair.replaces();
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
        let clustered = match clustered::config(&settings, &config, disks.as_ref(), rpc.as_ref())? {
            Some(member) => Some((member, Doors::open(&mut config, disks.as_mut(), rpc.as_mut(), false)?)),
            None => None,
        };
        let paired = match paired::config(&settings, replaces, &config, disks.as_ref(), rpc.as_ref())? {
            Some(pair) => {
                let loses = paired::loses(&pair);
                Some((pair, Doors::open(&mut config, disks.as_mut(), rpc.as_mut(), loses)?))
            }
            None => None,
        };
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
        let Some((loading, store, signals)) = opening::open(&config, builder.clone(), &location)? else {
            // The thread that opens the store ends with the process: as after a crash, nothing is lost by that.
            std::process::exit(0);
        };
        let backups = Some(settings.serve.backup_folder.as_str()).filter(|folder| !folder.is_empty());
        let secrets = settings.serve.clone();
        let stopping = Stopping::new(front, move |front| reread(&secrets, front));
        let parts = Parts { resp: config, disks, rpc, backups: backups.map(PathBuf::from) };
        let shown = (&*watched, &http);
        let began = (loading, signals);
        let served = match (clustered, paired) {
            (None, Some(config)) => paired::serve(&store, began, parts, config, builder, shown, &stopping),
            (clustered, _) => paired::check_alone(&store).and_then(|()| match clustered {
                Some(config) => clustered::serve(&store, began, parts, config, builder, shown, &stopping),
                None => serve(&store, began, parts, shown, &stopping),
            }),
        };
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
        self.cluster.apply(&mut settings.cluster);
        self.pair.apply(&mut settings.standby);
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
    (loading, signals): (Loading, Signals),
    parts: Parts,
    (watched, http): (&Watched, &Option<Running>),
    stopping: &Arc<Stopping>,
) -> Result<(Result<(), Failure>, Told), Failure> {
    let started = Started::new(store, (Some(loading), Some(store)), parts, stopping)?;
    let protocols = started.tell(store, watched, http);
    let told = stopping.begin(protocols, signals)?;
    Ok((started.run(), told))
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
            cluster: ClusterFlags::default(),
            pair: PairFlags::default(),
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
