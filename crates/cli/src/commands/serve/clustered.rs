//! `esker serve --cluster`: a server that is one of several which hold the same.
//!
//! ```text
//! the store is open → member of its chain → it waits, or is brought up: clients are told where the head is
//!                   → it serves: beside that, those who ask for it read at this replica
//!                   → it heads it: the faces over the chain, until it does not any more → …
//! ```
//!
//! Invariant: the end of the process hands the chain over before the store closes.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use clap::Args;
use esker_chain::{ChainStore, Place, ServerId};
use esker_cluster::{Location, Served};
use esker_member::{Member, View};
use esker_server::http::{Figure, Running, Value};
use esker_server::resp::{Cluster, Config, Loading};
use signal_hook::iterator::Signals;

use super::shared::addresses;
use super::started::Parts;
use super::stopping::{Stopping, Told};
use super::terms::{Doors, Heads, Nodes, TLS, Terms};
use super::watched::Watched;
use crate::config::{ClusterSettings, Settings};
use crate::exit::{Code, Failure};

/// The flags of `esker serve` about other servers.
#[derive(Args, Default)]
pub struct ClusterFlags {
    /// Be one of several servers that hold the same: the coordinator and the cluster's root in it, such as
    /// zk://h1,h2,h3/esker
    #[arg(long = "cluster", value_name = "URL")]
    cluster: Option<String>,
    /// This server's number, from 1: the same for as long as it keeps its store
    #[arg(long, value_name = "N", requires = "cluster")]
    server_id: Option<u64>,
    /// The chain that this server holds a replica of
    #[arg(long, value_name = "NAME", requires = "cluster")]
    chain: Option<String>,
    /// Address to listen on for the other servers
    #[arg(long, value_name = "ADDRESS")]
    peer_listen: Option<String>,
    /// The host by which clients reach this server
    #[arg(long, value_name = "HOST")]
    announce: Option<String>,
}

impl ClusterFlags {
    /// Puts the flags over the configuration.
    pub fn apply(self, cluster: &mut ClusterSettings) {
        let over = |target: &mut String, flag: Option<String>| {
            if let Some(value) = flag {
                *target = value;
            }
        };
        over(&mut cluster.location, self.cluster);
        over(&mut cluster.chain, self.chain);
        over(&mut cluster.peer_listen, self.peer_listen);
        over(&mut cluster.announce, self.announce);
        cluster.server_id = self.server_id.unwrap_or(cluster.server_id);
    }
}

/// Shortest lease: below it a pause of the machine is taken for the end of a server.
const LEASE_MIN: Duration = Duration::from_millis(200);

/// What this server is in its cluster; `None`: it stands alone.
pub fn config(
    settings: &Settings,
    resp: &Config,
    disks: Option<&esker_server::nbd::Config>,
    rpc: Option<&esker_server::grpc::Config>,
) -> Result<Option<esker_member::Config>, Failure> {
    let ClusterSettings { location, server_id, chain, lease, .. } = &settings.cluster;
    if location.is_empty() {
        return Ok(None);
    }
    let location: Location = location.parse().map_err(|error| Failure::usage(format!("cluster: {error}")))?;
    let server = u32::try_from(*server_id).ok().filter(|server| *server > 0);
    let server = server.ok_or_else(|| {
        Failure::usage(format!("server_id = {server_id}: expected this server's own number, from 1 to {}", u32::MAX))
    })?;
    if lease.0.0 < LEASE_MIN {
        return Err(Failure::usage(format!("lease = {}: expected 200ms or more", lease.0)));
    }
    let me = ServerId(server);
    let peers = peers(&settings.cluster, me, location.root())?;
    let served = served(settings, resp, disks, rpc)?;
    Ok(Some(esker_member::Config {
        location,
        chain: chain.clone(),
        server: me,
        period: lease.0.0,
        peers,
        served,
        fresh: fresh()?,
        kept_bytes_max: kept(&settings.cluster),
    }))
}

/// Where others reach this server, and its clients do.
pub(super) fn served(
    settings: &Settings,
    resp: &Config,
    disks: Option<&esker_server::nbd::Config>,
    rpc: Option<&esker_server::grpc::Config>,
) -> Result<Served, Failure> {
    if let Some(address) = resp.listen.iter().chain(&resp.tls_listen).find(|address| address.port() == 0) {
        return Err(Failure::usage(format!(
            "listen = {address}: a server that others know of has the same port always"
        )));
    }
    let announced = |address: Option<&SocketAddr>| {
        let address = address?;
        let host = match settings.cluster.announce.as_str() {
            "" => address.ip().to_string(),
            host => host.to_owned(),
        };
        Some(if host.contains(':') {
            format!("[{host}]:{}", address.port())
        } else {
            format!("{host}:{}", address.port())
        })
    };
    let plain = announced(resp.listen.first());
    let resp = plain.or_else(|| announced(resp.tls_listen.first()).map(|address| format!("{TLS}{address}")));
    Ok(Served {
        store: String::new(),
        peer: settings.cluster.peer_announce.clone(),
        resp: resp.filter(|_| settings.serve.resp),
        grpc: announced(rpc.and_then(|rpc| rpc.listen.first())),
        nbd: announced(disks.and_then(|disks| disks.listen.first())),
        http: None,
    })
}

/// A name for a store, as no other has it.
pub(super) fn fresh() -> Result<Bytes, Failure> {
    let mut fresh = [0; 16];
    getrandom::fill(&mut fresh).map_err(|error| Failure::new(Code::Failure, format!("random bytes: {error}")))?;
    Ok(fresh.iter().map(|byte| format!("{byte:02x}")).collect::<String>().into())
}

/// Bytes of operations that are kept for a server.
pub(super) fn kept(settings: &ClusterSettings) -> usize {
    usize::try_from(settings.kept.0.0).unwrap_or(usize::MAX)
}

/// Bytes of letters that wait for a server: all that is kept, and what comes beside it.
fn waiting_bytes_max(kept_bytes_max: usize) -> usize {
    kept_bytes_max.saturating_mul(2).saturating_add(128 << 20)
}

/// Where other servers are listened to.
pub(super) fn peers(settings: &ClusterSettings, me: ServerId, root: &str) -> Result<esker_peers::Config, Failure> {
    let listen = addresses(std::slice::from_ref(&settings.peer_listen))?;
    let listen = listen.into_iter().next().ok_or_else(|| Failure::usage("peer_listen: it names no address"))?;
    let path = |text: &str| (!text.is_empty()).then(|| PathBuf::from(text));
    let files = [&settings.peer_tls_cert, &settings.peer_tls_key, &settings.peer_tls_ca].map(|file| path(file));
    let tls = match files {
        [None, None, None] => None,
        [Some(certificate), Some(key), Some(authorities)] => {
            Some(esker_peers::TlsFiles { certificate, key, authorities })
        }
        _ => return Err(Failure::usage("peer_tls_cert, peer_tls_key and peer_tls_ca are only of use together")),
    };
    Ok(esker_peers::Config {
        cluster: root.to_owned(),
        me,
        listen,
        tls,
        copy_bytes_per_s: settings.copy_rate.0.0,
        waiting_bytes_max: waiting_bytes_max(kept(settings)),
    })
}

/// Serves until the end of the process.
pub(super) fn serve(
    store: &esker::Store,
    (loading, signals): (Loading, Signals),
    mut parts: Parts,
    (config, doors): (esker_member::Config, Doors),
    builder: esker::Builder,
    (watched, http): (&Watched, &Option<Running>),
    stopping: &Arc<Stopping>,
) -> Result<(Result<(), Failure>, Told), Failure> {
    let nodes = Nodes::new(config.server, config.served.resp.clone()).map_err(Failure::usage)?;
    parts.resp.cluster = nodes.clone().map(|nodes| nodes as Arc<dyn Cluster>);
    let (chain, server) = (config.chain.clone(), config.server);
    let member = Member::start(store.objects(), config).map_err(|error| Failure::of(Code::Failure, &error))?;
    let member = Arc::new(member);
    let told_of = Arc::clone(&member);
    watched.beside(Box::new(move || figures(&told_of.view())), {
        let told_of = Arc::clone(&member);
        Box::new(move || ready(&told_of.view()))
    });
    say!("peers      {} (server {server} of the chain {chain})", member.peer_address());
    let told = stopping.listen(signals)?;
    let terms = Terms {
        store,
        heads: &member,
        alone: false,
        nodes: nodes.as_deref(),
        parts,
        doors,
        builder,
        watched,
        http,
        stopping,
    };
    let served = terms.run(loading);
    member.stop();
    Ok((served, told))
}

impl Heads for Member {
    fn view(&self) -> Arc<View> {
        Member::view(self)
    }

    fn wait(&self, turn: u64, within: Duration) -> Result<(u64, Arc<View>), Failure> {
        Member::wait(self, turn, within).map_err(|error| Failure::of(Code::Failure, &*error))
    }

    fn store(&self) -> Option<ChainStore> {
        Member::store(self)
    }

    fn line(&self, view: &View) -> String {
        let is = if view.place == Some(Place::Serving) { "replica" } else { "standby" };
        match (view.heads, view.head) {
            (true, _) => format!("head       this server heads the chain (table {})", view.version),
            (false, Some(head)) => format!("{is}    server {head} heads the chain (table {})", view.version),
            (false, None) => format!("{is}    the chain has no head yet"),
        }
    }
}

/// Whether this server holds what the chain holds.
fn ready(view: &View) -> Result<(), String> {
    match view.place {
        Some(Place::Serving) if view.heads && view.lease_ms == 0 => {
            Err("this server heads its chain, and has no lease: the coordinator does not answer".into())
        }
        Some(Place::Serving) => Ok(()),
        Some(Place::Syncing) => Err("this server is being brought up to its chain".into()),
        Some(place) => Err(format!("this server waits to be brought up to its chain ({place:?})")),
        None => Err("this server is not in its chain yet".into()),
    }
}

/// How the chain stands, for those who watch.
fn figures(view: &View) -> Vec<Figure> {
    let gauge =
        |name: &str, help: &str, value: f64| Figure::new(format!("esker_chain_{name}"), help, Value::Gauge(value));
    let is = |is: bool| f64::from(u8::from(is));
    let places = [
        ("serving", Place::Serving),
        ("syncing", Place::Syncing),
        ("waiting", Place::Waiting),
        ("offline", Place::Offline),
        ("last_serving", Place::LastServing),
    ];
    let mut figures: Vec<_> = places
        .into_iter()
        .map(|(name, place)| {
            let help = "1 for how this server stands in its chain";
            gauge("place", help, is(view.place == Some(place))).labelled("place", name)
        })
        .collect();
    let lag = view.applied.saturating_sub(view.committed);
    figures.extend([
        gauge("heads", "1 where this server heads its chain", is(view.heads)),
        gauge("table_version", "Version of the chain's table that this server has read", view.version as f64),
        gauge("start", "Which start of this server it is", view.incarnation.map_or(0.0, |start| start.0 as f64)),
        gauge("applied", "Number of the last operation that is applied here", view.applied as f64),
        gauge("committed", "Number of the last operation that is known here to be acknowledged", view.committed as f64),
        gauge("lag", "Operations that are applied here and not known to be acknowledged", lag as f64),
        gauge("kept_bytes", "Bytes of operations that are kept for the server behind", view.kept_bytes as f64),
        gauge("lease_seconds", "How long the lease of this server lasts still", view.lease_ms as f64 / 1e3),
        gauge(
            "copied_bytes",
            "Bytes that the copy for this server has gone through",
            view.copied_bytes.unwrap_or(0) as f64,
        ),
    ]);
    figures
}
