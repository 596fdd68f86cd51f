//! The configuration file: one list of keys, each with its default and a line of documentation.
//!
//! `settings!` → the structs that TOML is read into, and the text that `esker config` prints, from the same lines.
//!
//! Invariants:
//! 1. Every key has a default and a documentation line; the printed file, read back, is the default configuration.
//! 2. A key that does not exist is an error that names it.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::exit::Failure;
use crate::logging::LogFormat;

/// A value of the configuration that TOML can hold.
trait Setting {
    /// The value as TOML.
    fn toml(&self) -> String;
}

impl Setting for String {
    fn toml(&self) -> String {
        toml::Value::String(self.clone()).to_string()
    }
}

impl Setting for u64 {
    fn toml(&self) -> String {
        self.to_string()
    }
}

impl Setting for f64 {
    fn toml(&self) -> String {
        toml::Value::Float(*self).to_string()
    }
}

impl Setting for bool {
    fn toml(&self) -> String {
        self.to_string()
    }
}

impl Setting for Vec<String> {
    fn toml(&self) -> String {
        let items: Vec<_> = self.iter().map(Setting::toml).collect();
        format!("[{}]", items.join(", "))
    }
}

impl Setting for Vec<u64> {
    fn toml(&self) -> String {
        let items: Vec<_> = self.iter().map(Setting::toml).collect();
        format!("[{}]", items.join(", "))
    }
}

/// A setting that is written as text and parsed, such as a size. Its own type says what it expects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Text<T>(pub T);

impl<T: fmt::Display> Setting for Text<T> {
    fn toml(&self) -> String {
        self.0.to_string().toml()
    }
}

impl<'de, T: std::str::FromStr<Err: fmt::Display>> Deserialize<'de> for Text<T> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map(Text).map_err(serde::de::Error::custom)
    }
}

/// Declares a section: a struct with `Default` and `Deserialize`, and how it is printed with its documentation.
macro_rules! settings {
    ($(#[doc = $about:literal])* $name:ident { $($(#[doc = $doc:literal])+ $key:ident: $kind:ty = $default:expr,)* }) => {
        $(#[doc = $about])*
        #[derive(Clone, Debug, PartialEq, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct $name {
            $($(#[doc = $doc])+ pub $key: $kind,)*
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($key: $default,)* }
            }
        }

        impl $name {
            fn print(&self, out: &mut String) {
                $(
                    $(out.push('#'); out.push_str($doc); out.push('\n');)+
                    out.push_str(concat!(stringify!($key), " = "));
                    out.push_str(&self.$key.toml());
                    out.push('\n');
                )*
            }
        }
    };
}

settings! {
    /// The section `[store]`: which store, and how it is opened.
    StoreSettings {
        /// The store: a folder, a file, a block device, or memory: (created on demand, block devices excepted).
        location: String = "./esker-data".into(),
        /// Length of a store that is created; 0 means 64g, or 90 % of the free disk if that is less.
        size: Text<esker::ByteSize> = Text(esker::ByteSize(0)),
        /// Memory for the stores of the process, at least 64m each, shared out among the settings below that are 0;
        /// what clients hold (clients_memory, thrift_memory) is beside it; 0 means that each of them has its own
        /// default.
        memory: Text<esker::MemorySize> = Text(esker::MemorySize::default()),
        /// Segment size of a store that is created, a power of two from 1m to 1g; 0 means 64m, or a 64th of
        /// memory, or of what there is, if that is less; a small store has smaller ones.
        segment: Text<esker::ByteSize> = Text(esker::ByteSize(0)),
        /// When commits are synced: adaptive, batch, group:WINDOW (such as group:2ms) or periodic:INTERVAL (such as
        /// periodic:1s).
        policy: Text<esker::CommitPolicy> = Text(esker::CommitPolicy::default()),
        /// Memory for data that was just written, which has what the cache does not use beside it; 0, here and below,
        /// means what fits into the cgroup's limit or the machine's memory: 128m at most.
        recent: Text<esker::ByteSize> = Text(esker::ByteSize(0)),
        /// Memory for data that was read from the device; 0 means 256m at most.
        cache: Text<esker::ByteSize> = Text(esker::ByteSize(0)),
        /// Which of that data stays when there is more of it: clock, lru, arc, s3-fifo or w-tinylfu.
        cache_policy: Text<esker::CachePolicy> = Text(esker::CachePolicy::default()),
        /// Memory for pages of the index, at least 1m: above it pages leave memory and are read back; 0 means a third
        /// of the memory there is, an eighth of less than 8g.
        index: Text<esker::ByteSize> = Text(esker::ByteSize(0)),
        /// Bytes that writers may be ahead of the device; 0 means 256m at most.
        pending: Text<esker::ByteSize> = Text(esker::ByteSize(0)),
        /// Memory that values which are being sent may keep beside what was just written; 0 means 256m at most.
        pinned: Text<esker::ByteSize> = Text(esker::ByteSize(0)),
        /// Longest time that an asynchronous write that no client waits for stays unsynced.
        async_flush: Text<esker::Period> = Text(esker::Period(esker::engine::Options::default().async_flush)),
        /// How long opening after a crash may take: checkpoints keep it so; a shorter time writes more.
        recovery: Text<esker::Period> = Text(esker::Period(esker::engine::Options::default().recovery_time)),
        /// Bytes per second that are read and verified in the background while the store is open; 0 is off.
        scrub: Text<esker::ByteSize> = Text(esker::ByteSize(esker::engine::Options::default().scrub_bytes_per_s)),
    }
}

settings! {
    /// The section `[serve]`: the servers of the Redis protocol and of NBD.
    ServeSettings {
        /// Whether the Redis protocol is served at all.
        resp: bool = true,
        /// Addresses to listen on; without a password only loopback addresses are allowed.
        listen: Vec<String> = vec!["127.0.0.1:6379".into()],
        /// The password that clients give with AUTH; empty means none.
        password: String = String::new(),
        /// A file whose first line is the password; empty means none.
        password_file: String = String::new(),
        /// A file of users (TOML): their roles, faces, names, passwords, tokens and certificates; empty means one user
        /// that may do everything. Read again at SIGHUP and `esker reload`.
        users_file: String = String::new(),
        /// Addresses that speak TLS; if empty and there is a certificate, those of listen do.
        tls_listen: Vec<String> = Vec::new(),
        /// A unix socket to listen on as well; empty means none.
        unix_socket: String = String::new(),
        /// Permissions of the unix sockets, in octal such as 660; empty means what the umask leaves.
        unix_socket_mode: String = String::new(),
        /// Group of the unix sockets, by name or number; empty means that of the process.
        unix_socket_group: String = String::new(),
        /// Certificate chain (PEM) for TLS; empty means no TLS.
        tls_cert: String = String::new(),
        /// Private key (PEM) for TLS; empty means no TLS.
        tls_key: String = String::new(),
        /// Authorities (PEM) of client certificates; if given, TLS clients must show one.
        tls_client_ca: String = String::new(),
        /// The same for NBD alone: empty means tls_client_ca, none that no certificate is asked for.
        nbd_tls_client_ca: String = String::new(),
        /// The same for gRPC.
        grpc_tls_client_ca: String = String::new(),
        /// The same for Thrift.
        thrift_tls_client_ca: String = String::new(),
        /// How long clients have to take what is under way when the server stops, from 1s; after twice that and a
        /// second it ends, closed or not.
        drain: Text<esker::Period> = Text(esker::Period(std::time::Duration::from_secs(8))),
        /// Databases (0 to 15) whose plain u64 keys are kept in slots: 2 to 8 bytes of index per key.
        int_databases: Vec<u64> = Vec::new(),
        /// Compression of values written to the databases from now on: none, lz4 or zstd; empty leaves each database as
        /// it was.
        compress: String = String::new(),
        /// Most clients at the same time, from 1.
        max_clients: u64 = 10_000,
        /// Memory held for all clients of the Redis protocol together: above it those who hold most are disconnected; 0
        /// means an eighth of memory, or of what there is, 64m to 1g. One reply may take a quarter of it, 256m at most.
        clients_memory: Text<esker::ByteSize> = Text(esker::ByteSize(0)),
        /// A client that says nothing for so long is closed; 0 means never.
        idle_timeout: Text<esker::Period> = Text(esker::Period::default()),
        /// Addresses of loopback to tell how the server stands on, by HTTP: /livez, /readyz and, for Prometheus,
        /// /metrics.
        http_listen: Vec<String> = Vec::new(),
        /// Addresses to tell the same on by HTTPS, with tls_cert and tls_key; other than loopback only with a token or
        /// client certificates (tls_client_ca).
        https_listen: Vec<String> = Vec::new(),
        /// A file whose first line clients of HTTP have to send as "authorization: Bearer TOKEN" to be told the
        /// figures; empty means that none is asked for.
        http_token_file: String = String::new(),
        /// The folder that ESKER.BACKUP makes backups in; empty means that clients cannot ask for any.
        backup_folder: String = String::new(),
        /// Addresses to serve the store's volumes on as disks by NBD; other than loopback only where client
        /// certificates are required.
        nbd_listen: Vec<String> = Vec::new(),
        /// A unix socket to serve disks on; empty means none.
        nbd_unix_socket: String = String::new(),
        /// With tls_cert and tls_key, whether NBD clients must use TLS: required, allowed or off. Never over the unix
        /// socket.
        nbd_tls: String = "required".into(),
        /// Exports whose writes are acknowledged only when durable; "*" means all. Others are durable at FLUSH or FUA.
        nbd_durable: Vec<String> = Vec::new(),
        /// Exports that refuse writes; "*" means all.
        nbd_read_only: Vec<String> = Vec::new(),
        /// Exports that are written without their exclusive lock, for clients that share a disk over several servers;
        /// "*" means all.
        nbd_unlocked: Vec<String> = Vec::new(),
        /// Most NBD clients attached at the same time, from 1 to 10000; others are refused.
        nbd_connections: u64 = 256,
        /// Most requests of an NBD connection that wait for a sync, from 1 to 65536; above it nothing more of it is
        /// read.
        nbd_in_flight: u64 = 1_024,
        /// Most payload of large requests under way on an NBD connection, from 32m; above it nothing more of it is
        /// read.
        nbd_in_flight_bytes: Text<esker::ByteSize> = Text(esker::ByteSize(64 << 20)),
        /// Most threads of an NBD connection, from 2 to 64; they start when there is work for them. 0: 8, or 64 where
        /// the store is behind a network and they wait for it.
        nbd_threads: u64 = 0,
        /// Addresses to serve the store's logs and its map on by gRPC; with TLS where there is a certificate. Other
        /// than loopback only with TLS and, of its clients, a certificate or the token.
        grpc_listen: Vec<String> = Vec::new(),
        /// A unix socket to serve gRPC on; empty means none.
        grpc_unix_socket: String = String::new(),
        /// A file whose first line gRPC clients have to send as "authorization: Bearer TOKEN"; empty means that none is
        /// asked for.
        grpc_token_file: String = String::new(),
        /// Whether gRPC serves the objects below all faces as well: every client that reaches them may change
        /// everything.
        grpc_objects: bool = false,
        /// Authorities (PEM) that certificates of the logs' sequencers are checked with; empty means that they are
        /// reached without TLS. They are sent the token.
        grpc_sequencer_authorities: String = String::new(),
        /// Most gRPC connections at the same time of clients that have made a request, from 1 to 10000; others are
        /// refused.
        grpc_connections: u64 = 1_024,
        /// Most appends of a gRPC stream that wait to be durable, from 1 to 65536; above it nothing more of the stream
        /// is read.
        grpc_in_flight: u64 = 1_024,
        /// Most gRPC followers of logs at the same time, and most scans of the map, each from 1 to 65536.
        grpc_followers: u64 = 1_024,
        /// Addresses to serve a namespace of keys on by Thrift (clients/thrift/zdb.thrift); with TLS where there is a
        /// certificate. Other than loopback only where client certificates are required.
        thrift_listen: Vec<String> = Vec::new(),
        /// A unix socket to serve Thrift on; empty means none.
        thrift_unix_socket: String = String::new(),
        /// The namespace that is served by Thrift, as NAME, NAME:bytes or, for keys that are decimal numbers, NAME:int;
        /// made if it is missing.
        thrift_namespace: String = esker_server::thrift::NAMESPACE.into(),
        /// The node of ZooKeeper below which this server registers where it serves Thrift and which keys its chain has,
        /// as clients of Zing Database look for them: such as /data/zdb. In a cluster; empty means that it does not.
        thrift_registry: String = String::new(),
        /// When writes by Thrift are acknowledged at first: safe, when they are durable, or asynchronous, when they are
        /// applied: a crash takes back no more than thrift_async_bytes and thrift_async_age say. Operators change it by
        /// setMode until the server is started anew; SIGHUP and `esker reload` do if it has changed in this file.
        thrift_mode: String = "safe".into(),
        /// Bytes of asynchronous writes that may be acknowledged and not durable, from 1k to 1g: keys and values, and
        /// 64 for each key. A write above it waits until enough is durable, in a chain on all its servers; one that is
        /// larger by itself is acknowledged when it is durable.
        thrift_async_bytes: Text<esker::ByteSize> = Text(esker::ByteSize(64 << 20)),
        /// How long such a write may stay so, from 10ms to 1h: after half of it it is synced, whatever async_flush and
        /// the policy say, and if it is not durable in time no other is acknowledged until it is.
        thrift_async_age: Text<esker::Period> = Text(esker::Period(std::time::Duration::from_secs(2))),
        /// With tls_cert and tls_key, whether Thrift clients must use TLS: required or off. Never over the unix socket.
        thrift_tls: String = "required".into(),
        /// Most Thrift connections at the same time of clients that have begun a call, from 1 to 10000; others are
        /// refused.
        thrift_connections: u64 = 1_024,
        /// Memory of all Thrift clients together, from 193m: a quarter for long messages, a quarter for long answers,
        /// the rest for values that are read, of which each call takes as many as it may read (get: 16m). Messages and
        /// calls wait for it, answers that find none are refused. What is read and written for clients of other chains
        /// that share the keys has as much again, and what each of these chains is asked a quarter, 108m at least.
        thrift_memory: Text<esker::ByteSize> = Text(esker::ByteSize(512 << 20)),
        /// Expired rows of the map that are removed per second in the background, at most; 0 means none. Where gRPC is
        /// served.
        map_sweep: u64 = 10_000,
        /// Threads that serve clients of the Redis protocol, and as many that serve Thrift, up to 64; 0 means 1 to 4:
        /// for Redis one less than there are processors, for Thrift as many.
        threads: u64 = 0,
        /// Threads that run commands of the Redis protocol where the store is behind a network, from 1 to 1024: so many
        /// of them wait for it at the same time, beside reads.
        afar_threads: u64 = 64,
    }
}

settings! {
    /// The section `[cluster]`: how `esker serve` is one of several servers that hold the same.
    ClusterSettings {
        /// The coordinator and the cluster's root in it, such as zk://h1,h2,h3/esker; empty means that this server
        /// stands alone.
        location: String = String::new(),
        /// This server's number, from 1: the same for as long as it keeps its store.
        server_id: u64 = 0,
        /// The chain that this server holds a replica of.
        chain: String = "main".into(),
        /// Address to listen on for the other servers; other than loopback only with peer_tls_cert, peer_tls_key and
        /// peer_tls_ca.
        peer_listen: String = "127.0.0.1:7600".into(),
        /// Where the other servers reach it, as HOST:PORT; empty means at peer_listen, which then names one address.
        peer_announce: String = String::new(),
        /// The host by which clients reach this server; empty means that of the addresses that it listens on.
        announce: String = String::new(),
        /// How long a lease lasts: a server that is gone is replaced after it, and one that is cut off from the
        /// coordinator answers for half of it. The same for all servers; from 200ms.
        lease: Text<esker::Period> = Text(esker::Period(std::time::Duration::from_secs(3))),
        /// Certificate chain (PEM) that this server shows others; empty means no TLS between servers.
        peer_tls_cert: String = String::new(),
        /// Its private key (PEM).
        peer_tls_key: String = String::new(),
        /// The authorities (PEM) of all servers of the cluster.
        peer_tls_ca: String = String::new(),
        /// Bytes per second that this server is brought up with, at most, so that clients of the others are served
        /// meanwhile; of several chains each has an even part of it. 0 means no limit.
        copy_rate: Text<esker::ByteSize> = Text(esker::ByteSize(32 << 20)),
        /// Writes of a chain that are kept for a server that is brought up, or slow: above it the one is sent another
        /// copy, and writers wait for the other.
        kept: Text<esker::ByteSize> = Text(esker::ByteSize(64 << 20)),
    }
}

settings! {
    /// One of the sections `[[replica]]`: a further chain that a server of a cluster holds a replica of, in a store of
    /// its own and at addresses of its own. All else is as for the first.
    ReplicaSettings {
        /// The chain.
        chain: String = String::new(),
        /// Its store: a folder, a file or a block device that no other chain has.
        location: String = String::new(),
        /// Addresses to serve its keys on by the Redis protocol; by TLS where there is a certificate, and no tls_listen
        /// of its own.
        listen: Vec<String> = Vec::new(),
        /// The same by TLS, with tls_cert and tls_key of `[serve]`.
        tls_listen: Vec<String> = Vec::new(),
        /// Addresses to serve its volumes on by NBD.
        nbd_listen: Vec<String> = Vec::new(),
        /// Addresses to serve its logs and tables on by gRPC.
        grpc_listen: Vec<String> = Vec::new(),
        /// Addresses to serve its keys of thrift_namespace on by Thrift.
        thrift_listen: Vec<String> = Vec::new(),
        /// The folder that ESKER.BACKUP makes backups of it in; empty means that clients cannot ask for any.
        backup_folder: String = String::new(),
    }
}

settings! {
    /// The section `[standby]`: one warm copy of a server that stands alone. Beside it peer_listen, peer_announce,
    /// announce, peer_tls_cert, peer_tls_key, peer_tls_ca, copy_rate and kept of `[cluster]` count.
    StandbySettings {
        /// As the primary: async (writes never wait for the standby) or sync (from when a standby is in step, a write
        /// is acknowledged once it is durable on both, and waits while the standby is away: `esker standby release`
        /// ends that); empty means that this server takes no standby.
        mode: String = String::new(),
        /// As the standby: where the primary listens for it (its peer_listen), such as grpc://HOST:7600; empty means
        /// that this server is none.
        follow: String = String::new(),
    }
}

settings! {
    /// The section `[log]`: what the server writes to stderr. Other commands write warnings only.
    LogSettings {
        /// What serve logs: error, warn, info, debug, trace, or a filter such as esker_engine=debug,info. RUST_LOG and
        /// --log go before it.
        level: String = "info".into(),
        /// How lines look, of all commands: text, or json for one object a line. --log-format goes before it.
        format: Text<LogFormat> = Text(LogFormat::Text),
    }
}

settings! {
    /// The section `[otlp]`: traces and figures of the server, sent to a collector of OpenTelemetry by OTLP over gRPC.
    OtlpSettings {
        /// The collector, such as http://127.0.0.1:4317 or https://HOST:4317; empty means none. Only in programs built
        /// with the feature otlp. OTEL_EXPORTER_OTLP_HEADERS gives credentials: by https, or to loopback.
        endpoint: String = String::new(),
        /// The share of requests that are traced, 0 to 1. Of calls by gRPC whose callers send a traceparent, those that
        /// it says are sampled.
        traces: f64 = 0.01,
        /// The figures of /metrics are sent so often; 0 means never.
        metrics_interval: Text<esker::Period> = Text(esker::Period(std::time::Duration::from_secs(30))),
    }
}

/// The whole configuration.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// `[store]`
    pub store: StoreSettings,
    /// `[serve]`
    pub serve: ServeSettings,
    /// `[cluster]`
    pub cluster: ClusterSettings,
    /// `[[replica]]`, once for each further chain.
    pub replica: Vec<ReplicaSettings>,
    /// `[standby]`
    pub standby: StandbySettings,
    /// `[log]`
    pub log: LogSettings,
    /// `[otlp]`
    pub otlp: OtlpSettings,
    /// How many stores the process has beside the one that these are for.
    #[serde(skip)]
    pub other_stores: u64,
    /// The file that they were read from.
    #[serde(skip)]
    pub file: Option<PathBuf>,
}

impl Settings {
    /// Reads a configuration file; without one, the defaults.
    ///
    /// # Errors
    /// [`Failure::usage`] with the file, the line and the key.
    pub fn load(path: Option<&Path>) -> Result<Self, Failure> {
        let Some(path) = path else { return Ok(Self::default()) };
        let text = std::fs::read_to_string(path)
            .map_err(|error| Failure::usage(format!("configuration {}: {error}", path.display())))?;
        let settings = Self::parse(&text).map_err(|error| {
            let hint = Self::right_section(&error.to_string()).unwrap_or_default();
            Failure::usage(format!("configuration {}: {error}{hint}", path.display()))
        })?;
        Ok(Self { file: Some(path.to_path_buf()), ..settings })
    }

    /// Memory for the store that these are for, in bytes, where something is said of it.
    pub fn memory_bytes(&self) -> Option<u64> {
        let bytes = self.store.memory.0.0.0 / (self.other_stores + 1);
        Some(bytes).filter(|bytes| *bytes > 0)
    }

    /// Where the key belongs that an error says is unknown where it stands, if it is known elsewhere.
    fn right_section(error: &str) -> Option<String> {
        let key = error.split("unknown field `").nth(1)?.split('`').next()?;
        let printed = Self::default().print();
        let mut section = "";
        printed.lines().find_map(|line| {
            if line.starts_with('[') {
                section = line;
            }
            let found = line.split_once(" = ").is_some_and(|(known, _)| known == key);
            found.then(|| format!("{key} is a key of another section: it belongs in {section}\n"))
        })
    }

    /// The settings by store: these, and for each further replica these with its own over them.
    ///
    /// # Errors
    /// [`Failure::usage`] where two are of one chain or one store, where one names none, where there is no cluster, and
    /// where memory is too little for so many stores.
    pub fn by_store(self) -> Result<Vec<Self>, Failure> {
        if !self.replica.is_empty() && self.cluster.location.is_empty() {
            return Err(Failure::usage("replicas are of a cluster: give --cluster, or location in [cluster]"));
        }
        let replicas = self.replica.clone();
        let first = Self { other_stores: replicas.len() as u64, replica: Vec::new(), ..self };
        if let Some(bytes) = first.memory_bytes().filter(|bytes| *bytes < esker::MemorySize::MIN.0) {
            return Err(Failure::usage(format!(
                "memory = {} is {} for each of {} stores: at least {}",
                first.store.memory.0,
                esker::ByteSize(bytes),
                first.other_stores + 1,
                esker::MemorySize::MIN
            )));
        }
        let mut all = vec![first.clone()];
        for replica in replicas {
            let ReplicaSettings { chain, location, listen, tls_listen, nbd_listen, grpc_listen, .. } = replica;
            let (thrift_listen, backup_folder) = (replica.thrift_listen, replica.backup_folder);
            for (key, value) in [("chain", &chain), ("location", &location)] {
                if value.is_empty() {
                    return Err(Failure::usage(format!("a replica of a further chain has no {key}")));
                }
            }
            let same = |other: &&Self| other.cluster.chain == chain || other.store.location == location;
            if let Some(other) = all.iter().find(same) {
                return Err(Failure::usage(format!(
                    "the chain {chain} in {location}, and the chain {} in {}: each replica is of another chain, in \
                     another store",
                    other.cluster.chain, other.store.location
                )));
            }
            let mut own = first.clone();
            (own.cluster.chain, own.store.location) = (chain, location);
            let serve = &mut own.serve;
            serve.resp = !listen.is_empty() || !tls_listen.is_empty();
            (serve.listen, serve.tls_listen) = (listen, tls_listen);
            (serve.nbd_listen, serve.grpc_listen, serve.backup_folder) = (nbd_listen, grpc_listen, backup_folder);
            serve.thrift_listen = thrift_listen;
            let sockets = [&mut serve.nbd_unix_socket, &mut serve.grpc_unix_socket, &mut serve.thrift_unix_socket];
            sockets.into_iter().chain([&mut serve.unix_socket]).for_each(String::clear);
            all.push(own);
        }
        Ok(all)
    }

    fn parse(text: &str) -> Result<Self, toml::de::Error> {
        toml::from_str(text)
    }

    /// The configuration as a file with documentation.
    pub fn print(&self) -> String {
        let mut out =
            String::from("# Configuration of Esker. Every key may be left out; what stands here is the default.\n");
        out.push_str("\n[store]\n");
        self.store.print(&mut out);
        out.push_str("\n[serve]\n");
        self.serve.print(&mut out);
        out.push_str("\n[cluster]\n");
        self.cluster.print(&mut out);
        // There may be none, or several.
        let mut replica = String::from("[[replica]]\n");
        ReplicaSettings::default().print(&mut replica);
        out.push('\n');
        replica.lines().for_each(|line| out.push_str(&format!("#{line}\n")));
        out.push_str("\n[standby]\n");
        self.standby.print(&mut out);
        out.push_str("\n[log]\n");
        self.log.print(&mut out);
        out.push_str("\n[otlp]\n");
        self.otlp.print(&mut out);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_printed_default_file_reads_back_as_the_default() {
        let printed = Settings::default().print();
        assert_eq!(Settings::parse(&printed).unwrap(), Settings::default(), "{printed}");
    }

    #[test]
    fn the_book_has_what_is_printed() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/operate/configuration.md");
        let page = std::fs::read_to_string(page).unwrap();
        let printed = Settings::default().print();
        assert!(page.contains(&format!("```toml\n{printed}```\n")), "what `esker config` prints stands in the page");
    }

    #[test]
    fn the_package_has_a_file_that_is_read() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/esker.toml");
        let settings = Settings::parse(&std::fs::read_to_string(file).unwrap()).unwrap();
        assert_eq!(settings, Settings::default(), "what it says is as it is without it, until it is changed");
    }

    #[test]
    fn every_key_is_printed_under_a_line_that_explains_it() {
        let printed = Settings::default().print();
        let lines: Vec<_> = printed.lines().collect();
        let keys = lines.windows(2).filter(|pair| pair[1].contains(" = ")).count();
        let explained = lines
            .windows(2)
            .filter(|pair| pair[1].contains(" = ") && pair[0].trim_start_matches('#').starts_with(' '))
            .count();
        assert_eq!(keys, explained, "{printed}");
        assert!(keys > 15, "{printed}");
    }

    #[test]
    fn further_replicas_have_what_is_theirs_and_all_else_of_the_first() {
        let text = "[store]\nlocation = 'a'\n[serve]\nmax_clients = 7\nunix_socket = 's'\n[cluster]\nlocation = 'zk://h'\n\
                    [[replica]]\nchain = 'users'\nlocation = 'b'\nlisten = ['127.0.0.1:1']\n";
        let all = Settings::parse(text).unwrap().by_store().unwrap();
        let shown = |at: usize| (all[at].cluster.chain.as_str(), all[at].store.location.as_str());
        assert_eq!((shown(0), shown(1), all.len()), (("main", "a"), ("users", "b"), 2));
        assert_eq!((all[1].serve.max_clients, all[1].serve.listen.len(), all[0].other_stores), (7, 1, 1));
        assert_eq!((all[0].serve.unix_socket.as_str(), all[1].serve.unix_socket.as_str()), ("s", ""));
        let refused = |from: &str, to: &str| {
            assert!(text.contains(from), "{from}");
            Settings::parse(&text.replace(from, to)).unwrap().by_store().unwrap_err().to_string()
        };
        assert!(refused("'b'", "'a'").contains("another store"));
        assert!(refused("'users'", "'main'").contains("another chain"));
        assert!(refused("chain = 'users'\n", "").contains("no chain"));
        assert!(refused("'zk://h'", "''").contains("--cluster"));
        let little = refused("location = 'a'", "location = 'a'\nmemory = '100m'");
        assert!(little.contains("100m") && little.contains("2 stores") && little.contains("64m"), "{little}");
        // What is printed of a replica is one, once a sign is taken away from each line.
        let printed = Settings::default().print();
        let from = printed.find("#[[replica]]").unwrap();
        let section = printed[from..].split("\n\n").next().unwrap();
        let plain: Vec<_> = section.lines().map(|line| &line[1..]).collect();
        assert_eq!(Settings::parse(&plain.join("\n")).unwrap().replica, [ReplicaSettings::default()]);
    }

    #[test]
    fn an_unknown_key_is_an_error_that_names_it() {
        for (text, name) in [
            ("[store]\npath = 'x'\n", "path"),
            ("[serve]\nport = 6379\n", "port"),
            ("colour = 'red'\n", "colour"),
            ("[stroe]\n", "stroe"),
        ] {
            let error = Settings::parse(text).unwrap_err().to_string();
            assert!(error.contains(name) && error.contains("unknown field"), "{error}");
        }
    }

    #[test]
    fn a_bad_value_is_an_error_that_says_what_is_expected() {
        for (text, expected) in [
            ("[store]\nsize = '12 parsecs'\n", "64m"),
            ("[store]\nmemory = '8m'\n", "at least 64m"),
            ("[store]\npolicy = 'sometimes'\n", "batch"),
            ("[store]\ncache_policy = 'mru'\n", "expected clock, lru, arc, s3-fifo or w-tinylfu"),
            ("[serve]\nidle_timeout = 'never'\n", "10ms"),
            ("[serve]\nmax_clients = -1\n", "u64"),
            ("[log]\nformat = 'xml'\n", "json"),
            ("[otlp]\ntraces = 'all'\n", "f64"),
        ] {
            let error = Settings::parse(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
