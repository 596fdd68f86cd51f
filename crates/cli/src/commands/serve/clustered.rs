//! `esker serve --cluster`: a server that is one of several which hold the same.
//!
//! ```text
//! host → for each store, in a thread of its own: it is opened → member of its chain
//!                   → it waits, or is brought up: clients are told where the head is
//!                   → it serves: beside that, those who ask for it read at this replica
//!                   → it heads it: the faces over the chain, until it does not any more → …
//! ```
//!
//! Invariant: the end of the process hands each chain over before its store closes.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::panic::resume_unwind;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use clap::Args;
use esker_chain::{ChainStore, Place, ServerId};
use esker_cluster::{Location, Served};
use esker_member::{Announced, Host, HostConfig, Member, View};
use esker_server::http::{Figure, Value};
use esker_server::resp::Cluster;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::keyring::{self, KeyRing};
use super::nodes::{Nodes, Ring, TLS};
use super::opening;
use super::plan::{self, BesideServing, Plan, Whole};
use super::shared::addresses;
use super::started::Parts;
use super::terms::{Doors, Heads, Terms};
use crate::config::{ClusterSettings, ReplicaSettings};
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
    /// Hold a replica of a further chain as well, such as chain=users,store=users.esker,listen=127.0.0.1:6380; listen,
    /// tls-listen, nbd, grpc and thrift may be given several times in it, and the flag for each chain
    #[arg(long = "replica", value_name = "KEY=VALUE,…", value_parser = replica)]
    replicas: Vec<ReplicaSettings>,
}

/// A further replica, as the flag has it.
fn replica(text: &str) -> Result<ReplicaSettings, String> {
    let mut replica = ReplicaSettings::default();
    for part in text.split(',') {
        let (key, value) = part.split_once('=').ok_or_else(|| format!("{part:?}: expected KEY=VALUE"))?;
        let value = value.to_owned();
        match key {
            "chain" => replica.chain = value,
            "store" => replica.location = value,
            "listen" => replica.listen.push(value),
            "tls-listen" => replica.tls_listen.push(value),
            "nbd" => replica.nbd_listen.push(value),
            "grpc" => replica.grpc_listen.push(value),
            "thrift" => replica.thrift_listen.push(value),
            "backup-folder" => replica.backup_folder = value,
            _ => {
                return Err(format!(
                    "{key:?}: expected chain, store, listen, tls-listen, nbd, grpc, thrift or backup-folder"
                ));
            }
        }
    }
    Ok(replica)
}

impl ClusterFlags {
    /// Puts the flags over the configuration.
    pub fn apply(self, cluster: &mut ClusterSettings, replicas: &mut Vec<ReplicaSettings>) {
        replicas.extend(self.replicas);
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

/// What this process is in its cluster, and what each of its stores is in its chain.
pub struct Clustered {
    host: HostConfig,
    members: Vec<(esker_member::Config, Doors)>,
}

/// What this process is in its cluster; `None`: it stands alone.
pub fn config(plans: &mut [Plan]) -> Result<Option<Clustered>, Failure> {
    let ClusterSettings { location, server_id, lease, .. } = &plans[0].settings.cluster;
    let registry = &plans[0].settings.serve.thrift_registry;
    if location.is_empty() {
        if !registry.is_empty() {
            let why = format!("thrift_registry = {registry:?}: a server registers in a cluster: give --cluster");
            return Err(Failure::usage(why));
        }
        return Ok(None);
    }
    if !registry.is_empty() {
        let path = esker_cluster::check_service(registry);
        path.map_err(|error| Failure::usage(format!("thrift_registry: {error}")))?;
    }
    let location: Location = location.parse().map_err(|error| Failure::usage(format!("cluster: {error}")))?;
    let server = u32::try_from(*server_id).ok().filter(|server| *server > 0);
    let server = server.ok_or_else(|| {
        Failure::usage(format!("server_id = {server_id}: expected this server's own number, from 1 to {}", u32::MAX))
    })?;
    if lease.0.0 < LEASE_MIN {
        return Err(Failure::usage(format!("lease = {}: expected 200ms or more", lease.0)));
    }
    let (server, period) = (ServerId(server), lease.0.0);
    let mut peers = peers(&plans[0].settings.cluster, server, location.root())?;
    if peers.copy_bytes_per_s > 0 {
        peers.copy_bytes_per_s = (peers.copy_bytes_per_s / plans.len() as u64).max(1);
    }
    let host = HostConfig { location, server, period, peers };
    let members = plans.iter_mut().map(member).collect::<Result<_, _>>()?;
    Ok(Some(Clustered { host, members }))
}

/// What a store is in its chain, and what is listened on for it.
fn member(plan: &mut Plan) -> Result<(esker_member::Config, Doors), Failure> {
    let ClusterSettings { chain, .. } = &plan.settings.cluster;
    let kept_bytes_max = kept(&plan.settings.cluster);
    // Of which chain a store is stands in its name.
    let fresh = [chain.as_bytes(), &b":"[..], &fresh()?].concat().into();
    let served = served(plan)?;
    check_thrift(plan, &served)?;
    let config = esker_member::Config { chain: chain.clone(), served, fresh, kept_bytes_max };
    Ok((config, Doors::open(plan, false)?))
}

/// Refuses Thrift where chains could not share its keys, or could not be found.
fn check_thrift(plan: &Plan, served: &Served) -> Result<(), Failure> {
    let Some(thrift) = &plan.thrift else { return Ok(()) };
    if served.resp.is_none() {
        let chain = &plan.settings.cluster.chain;
        let why = "chains share the keys of Thrift by their addresses of the Redis protocol: give listen or tls_listen";
        return Err(Failure::usage(format!("the chain {chain} is to serve Thrift: {why}")));
    }
    match thrift.listen.iter().find(|address| address.port() == 0) {
        Some(address) if !plan.settings.serve.thrift_registry.is_empty() => Err(Failure::usage(format!(
            "thrift_listen = {address}: a server that others know of has the same port always"
        ))),
        _ => Ok(()),
    }
}

/// Where others reach this server, and its clients do.
pub(super) fn served(plan: &Plan) -> Result<Served, Failure> {
    let Plan { settings, resp, disks, rpc, thrift, .. } = plan;
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
        grpc: announced(rpc.as_ref().and_then(|rpc| rpc.listen.first())),
        nbd: announced(disks.as_ref().and_then(|disks| disks.listen.first())),
        http: None,
        thrift: announced(thrift.as_ref().and_then(|thrift| thrift.listen.first())),
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
    plans: Vec<Plan>,
    clustered: Clustered,
    (http, stopping): BesideServing<'_>,
) -> Result<plan::Served, Failure> {
    let Clustered { host, members } = clustered;
    let server = host.server;
    let told = stopping.listen(Signals::new([SIGINT, SIGTERM, SIGHUP])?)?;
    let host = Host::start(host).map_err(|error| Failure::of(Code::Failure, &error))?;
    let chains: Vec<_> = members.iter().map(|(config, _)| config.chain.as_str()).collect();
    let of = if chains.len() == 1 { "the chain" } else { "the chains" };
    say!("peers      {} (server {server} of {of} {})", host.peer_address(), chains.join(", "));
    let served = std::thread::scope(|scope| {
        let mut http = http;
        let mut serving = Vec::new();
        for (plan, member) in plans.into_iter().zip(members) {
            // It is told of beside the first.
            let (host, http) = (&host, http.take());
            serving.push(scope.spawn(move || {
                // Whatever ends one ends the process.
                let _ends = AtEnd(|| stopping.stop());
                serve_store(plan, member, host, (http, stopping))
            }));
        }
        let ended = serving.into_iter().map(|one| one.join().unwrap_or_else(|panic| resume_unwind(panic)));
        // All are waited for.
        ended.collect::<Vec<_>>().into_iter().fold(Ok(()), Result::and)
    });
    host.stop();
    Ok((served, told))
}

/// Does this at its end, also where a panic is that.
struct AtEnd<F: Fn()>(F);

impl<F: Fn()> Drop for AtEnd<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// Opens a store, serves its chain, and closes it: no other chain waits for that.
fn serve_store(
    plan: Plan,
    member: (esker_member::Config, Doors),
    host: &Arc<Host>,
    (http, stopping): BesideServing<'_>,
) -> Result<(), Failure> {
    let builder = plan.builder()?;
    let location = (plan.settings.store.location.as_str(), plan.seat.chain());
    let mut ends = || stopping.ends().then(|| "as it was told to".to_owned());
    // A thread that opens the store still ends with the process: as after a crash, nothing is lost by that.
    let opened = opening::open_until(&plan.resp, builder.clone(), location, &mut ends)?;
    let Some((loading, store)) = opened else { return Ok(()) };
    let whole = Whole::new(plan, builder, loading, &store);
    let served = plan::check_alone(&store).and_then(|()| serve_chain(whole, member, host, (http, stopping)));
    // Even if the server failed, what it acknowledged must end up in a clean store.
    served.and(store.close().map_err(Failure::from))
}

/// Serves one chain until the end of the process, or until this server is no member of it any more.
fn serve_chain(
    whole: Whole<'_>,
    (config, doors): (esker_member::Config, Doors),
    host: &Arc<Host>,
    (http, stopping): BesideServing<'_>,
) -> Result<(), Failure> {
    let Whole { store, builder, loading, mut parts, seat } = whole;
    let chain = config.chain.clone();
    let thrift_address = config.served.thrift.clone();
    let ring = Ring { chain: chain.clone(), host: Arc::clone(host) };
    let nodes = Nodes::new(host.server(), config.served.resp.clone(), Some(ring)).map_err(Failure::usage)?;
    parts.resp.cluster = nodes.clone().map(|nodes| nodes as Arc<dyn Cluster>);
    parts.resp.thrift_namespace = parts.thrift.as_ref().map(|thrift| (thrift.namespace.clone(), thrift.kind));
    parts.ring = nodes.clone().map(|nodes| KeyRing { nodes, host: Arc::clone(host) }.shared());
    let member = Member::join(host, store.objects(), config).map_err(|error| Failure::of(Code::Failure, &error))?;
    let member = Arc::new(member);
    let _announced = announced(host, &member, nodes.as_ref(), &parts, thrift_address);
    let _hands_over = AtEnd(|| member.stop());
    let told_of = Arc::clone(&member);
    seat.beside(Box::new(move || figures(&told_of.view())), {
        let told_of = Arc::clone(&member);
        Box::new(move || ready(&told_of.view()))
    });
    let terms = Terms {
        store,
        heads: &member,
        alone: false,
        nodes: nodes.as_deref(),
        ring: Some((&chain, host)),
        parts,
        doors,
        builder,
        seat: &seat,
        http,
        stopping,
    };
    terms.run(loading)
}

/// Registers the server as instances of its service by Thrift, if it is to; where it serves in its chain.
fn announced(
    host: &Arc<Host>,
    member: &Arc<Member>,
    nodes: Option<&Arc<Nodes>>,
    parts: &Parts,
    address: Option<String>,
) -> Option<Announced> {
    let (kind, address) = (parts.thrift.as_ref()?.kind, address?);
    let (member, nodes) = (Arc::clone(member), Arc::clone(nodes?));
    let wanted = move || match Member::view(&member).place {
        Some(Place::Serving) => keyring::instances(&address, kind, &nodes.sight(), nodes.is_only()),
        _ => BTreeSet::new(),
    };
    (!parts.registry.is_empty()).then(|| host.announce(&parts.registry, Arc::new(wanted)))
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
        let (chain, version) = (self.chain(), view.version);
        match (view.heads, view.head) {
            (true, _) => format!("head       this server heads the chain {chain} (table {version})"),
            (false, Some(head)) => format!("{is}    server {head} heads the chain {chain} (table {version})"),
            (false, None) => format!("{is}    the chain {chain} has no head yet"),
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
