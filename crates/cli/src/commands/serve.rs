//! `esker serve`: a store behind the Redis protocol, its volumes behind NBD, its logs behind gRPC, and a namespace of
//! its keys behind Thrift.
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
mod keyring;
mod keys;
mod mover;
mod nodes;
mod opening;
mod paired;
mod passed;
mod plan;
mod relay;
pub mod rpc;
mod seat;
mod shared;
mod started;
mod stopping;
mod terms;
mod thrift;
mod watched;

use std::sync::Arc;

use clap::Args;
use esker_member::pair::PairConfig;
use esker_server::http::Running;
use signal_hook::iterator::Signals;

use self::clustered::ClusterFlags;
use self::disks::NbdFlags;
use self::paired::PairFlags;
pub use self::paired::address as pair_address;
pub use self::passed::Sockets;
use self::plan::{BesideServing, Plan, Served, Whole};
use self::rpc::GrpcFlags;
use self::shared::Front;
pub use self::shared::{addresses, password};
pub use self::started::STAGES_SECTION;
use self::started::Started;
use self::stopping::{Anew, Stopping, Told};
use self::terms::Doors;
use self::thrift::{ModeOfFile, ThriftFlags};
use self::watched::Watched;
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
    /// How long clients have to take what is under way when the server stops, such as 8s; after twice that and
    /// a second it ends, closed or not
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
    /// Memory for the stores of the process, such as 8g, shared out among what was written, what was read, and the
    /// index; without it each has its own setting
    #[arg(long, value_name = "SIZE")]
    memory: Option<esker::MemorySize>,
    /// Memory for data that was read, such as 1g
    #[arg(long, value_name = "SIZE")]
    cache_bytes: Option<esker::ByteSize>,
    /// Which of that data stays when there is more of it: clock, lru, arc, s3-fifo or w-tinylfu
    #[arg(long, value_name = "POLICY")]
    cache_policy: Option<esker::CachePolicy>,
    /// Memory for pages of the index, such as 1g: above it pages leave memory and are read back
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
    /// Threads that serve clients; 0 means one less than there are processors, from 1 to 4
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
    thrift: ThriftFlags,
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
        let (replaces, mode_is_flag) = (self.pair.replaces(), self.thrift.give_mode());
        self.apply(&mut settings);
        let front = Front::of(&settings.serve)?;
        let watching = watched::config(&settings.serve, &front, &sockets)?;
        let given = settings.clone();
        let mut plans = plan::plans(settings, &front, sockets)?;
        let modes = plans.iter().filter_map(|plan| Some(plan.thrift.as_ref()?.mode.clone())).collect();
        let mode = ModeOfFile::of(&given, mode_is_flag, modes)?;
        for lowered in plan::fit(&mut plans, watching.doors()) {
            say!("limits     {lowered}");
        }
        let clustered = clustered::config(&mut plans)?;
        let paired = paired::config(&mut plans[0], replaces)?;
        let seats: Vec<_> = plans.iter().map(|plan| Arc::clone(&plan.seat)).collect();
        let watched = Arc::new(Watched::new(seats.clone()));
        let http = watched::start(&watching, &watched)?;
        if let Some(about) = exporting.tell(Arc::clone(&watched) as _) {
            say!("otlp       {about}");
        }
        let stopping = Stopping::new(front, seats, move |front| reread(&given.serve, mode.as_ref(), front));
        let beside = (http.as_ref(), &stopping);
        let served = match clustered {
            Some(clustered) => clustered::serve(plans, clustered, beside),
            None => serve_one(plans.swap_remove(0), paired, beside),
        };
        // Served until every client was answered.
        http.into_iter().for_each(Running::stop);
        let (served, told) = match served {
            Ok((served, told)) => (served, Some(told)),
            Err(failure) => (Err(failure), None),
        };
        stopping.closed();
        exporting.stop();
        // Until here a signal ends the process at once.
        told.into_iter().for_each(Told::end);
        served
    }

    /// What is said of the memory for all stores, by the flag or in the configuration.
    pub fn memory_bytes(&self, settings: &Settings) -> Option<u64> {
        self.memory.map_or_else(|| settings.memory_bytes(), |memory| Some(memory.0.0).filter(|bytes| *bytes > 0))
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
        over(&mut settings.store.memory, self.memory.map(Text));
        over(&mut settings.store.cache, self.cache_bytes.map(Text));
        over(&mut settings.store.cache_policy, self.cache_policy.map(Text));
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
        self.thrift.apply(serve);
        self.cluster.apply(&mut settings.cluster, &mut settings.replica);
        self.pair.apply(&mut settings.standby);
    }
}

/// Serves a store that is the only one of the process.
fn serve_one(plan: Plan, paired: Option<(PairConfig, Doors)>, beside: BesideServing<'_>) -> Result<Served, Failure> {
    let builder = plan.builder()?;
    let Some(((loading, store), signals)) = opening::open(&plan.resp, builder.clone(), &plan.settings.store.location)?
    else {
        // The thread that opens the store ends with the process: as after a crash, nothing is lost by that.
        std::process::exit(0);
    };
    let whole = Whole::new(plan, builder, loading, &store);
    let served = match paired {
        Some(config) => paired::serve(whole, signals, config, beside),
        None => plan::check_alone(&store).and_then(|()| serve(whole, signals, beside)),
    };
    // Even if the server failed, what it acknowledged must end up in a clean store.
    let closed = store.close().map_err(Failure::from);
    served.map(|(served, told)| (served.and(closed), told))
}

fn serve(whole: Whole<'_>, signals: Signals, (http, stopping): BesideServing<'_>) -> Result<Served, Failure> {
    let Whole { store, loading, parts, seat, .. } = whole;
    let started = Started::new(store, (Some(loading), Some(store)), parts, stopping)?;
    let protocols = started.tell(store, &seat, http);
    let told = stopping.begin(&seat, protocols, signals)?;
    Ok((started.run(), told))
}

/// Users, password, token and the mode of Thrift, where files hold them, as they are now.
fn reread(settings: &ServeSettings, mode: Option<&ModeOfFile>, front: &Front) -> Result<Anew, Failure> {
    let (password, token) = (password(settings)?, rpc::token(&settings.grpc_token_file)?);
    let http_token = rpc::token(&settings.http_token_file)?;
    let users = match &front.users {
        None => Box::new(|| ()) as Box<dyn FnOnce() + Send>,
        Some(users) => {
            let read = users.prepare(password.as_deref(), token.as_deref());
            read.map_err(|error| Failure::of(Code::Usage, &error))?
        }
    };
    let mode = match mode {
        None => Box::new(|| ()) as Box<dyn FnOnce() + Send>,
        Some(mode) => mode.prepare()?,
    };
    // A password that is a setting itself stays as CONFIG SET left it.
    let password = password.filter(|_| !settings.password_file.is_empty());
    Ok(Anew { users, mode, password, token, http_token })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

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
            memory: Some("1g".parse().unwrap()),
            cache_bytes: None,
            cache_policy: Some(esker::CachePolicy::Arc),
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
            thrift: ThriftFlags::default(),
            cluster: ClusterFlags::default(),
            pair: PairFlags::default(),
        };
        serve.apply(&mut settings);
        assert_eq!(settings.store.location, "elsewhere");
        assert_eq!(settings.store.policy.0.to_string(), "group:2ms");
        assert_eq!(settings.store.cache_policy.0, esker::CachePolicy::Arc);
        assert_eq!(settings.memory_bytes(), Some(1 << 30));
        let config = keys::config(&settings, &Front::of(&settings.serve).unwrap(), &Sockets::default()).unwrap();
        assert_eq!(config.password.as_deref(), Some("from the file"));
        assert_eq!((config.clients_max, config.idle_seconds), (5, 2));
        assert_eq!(config.int_databases, [3]);
        assert_eq!(config.compression, Some(esker::Compression::Zstd));
    }
}
