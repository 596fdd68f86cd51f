//! `esker serve --cluster`: a server that is one of several which hold the same.
//!
//! ```text
//! the store is open → member of its chain → it waits, or is brought up: clients are told where the head is
//!                   → it serves: beside that, those who ask for it read at this replica
//!                   → it heads it: the faces over the chain, until it does not any more → …
//! ```
//!
//! Invariants:
//! 1. Faces are opened where this server heads the chain, over the chain; none outlives that. Elsewhere only that of
//!    keys is, to read, where this server serves, and for as long.
//! 2. Clients are told that this server heads the chain only by faces that write to it.
//! 3. The end of the process hands the chain over before the store closes.

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use clap::Args;
use esker_chain::{Incarnation, Place, ServerId};
use esker_cluster::{Location, Served};
use esker_member::{Member, Peer, View};
use esker_server::front::Passed;
use esker_server::http::{Figure, Running, Value};
use esker_server::resp::{Cluster, ClusterNode, ClusterView, Config, Loading, Moment, SlotRange};
use signal_hook::iterator::Signals;

use super::relay::{Head, Relay};
use super::shared::addresses;
use super::started::{Parts, Started};
use super::stopping::{Stopping, Told};
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
    #[arg(long, value_name = "ADDRESS", requires = "cluster")]
    peer_listen: Option<String>,
    /// The host by which clients reach this server
    #[arg(long, value_name = "HOST", requires = "cluster")]
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
/// Changes of the chain are looked for so often while nothing tells of them.
const LOOK: Duration = Duration::from_millis(100);
/// The last slot of Redis Cluster.
const SLOT_LAST: u16 = 16_383;

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
    if let Some(address) = resp.listen.iter().chain(&resp.tls_listen).find(|address| address.port() == 0) {
        return Err(Failure::usage(format!("listen = {address}: a server of a cluster has the same port always")));
    }
    let me = ServerId(server);
    let peers = peers(&settings.cluster, me, location.root())?;
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
    let served = Served {
        store: String::new(),
        peer: settings.cluster.peer_announce.clone(),
        resp: resp.filter(|_| settings.serve.resp),
        grpc: announced(rpc.and_then(|rpc| rpc.listen.first())),
        nbd: announced(disks.and_then(|disks| disks.listen.first())),
        http: None,
    };
    let mut fresh = [0; 16];
    getrandom::fill(&mut fresh).map_err(|error| Failure::new(Code::Failure, format!("random bytes: {error}")))?;
    let fresh = fresh.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    Ok(Some(esker_member::Config {
        location,
        chain: chain.clone(),
        server: me,
        period: lease.0.0,
        peers,
        served,
        fresh: Bytes::from(fresh),
        kept_bytes_max: kept(&settings.cluster),
    }))
}

/// Bytes of operations that are kept for a server.
fn kept(settings: &ClusterSettings) -> usize {
    usize::try_from(settings.kept.0.0).unwrap_or(usize::MAX)
}

/// Bytes of letters that wait for a server: all that is kept, and what comes beside it.
fn waiting_bytes_max(kept_bytes_max: usize) -> usize {
    kept_bytes_max.saturating_mul(2).saturating_add(128 << 20)
}

/// Before an address that speaks TLS only.
const TLS: &str = "tls://";

fn peers(settings: &ClusterSettings, me: ServerId, root: &str) -> Result<esker_peers::Config, Failure> {
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

/// Sockets that are listened on while terms come and go: who connects between two of them waits.
pub struct Doors {
    nbd: Vec<TcpListener>,
    grpc: Vec<TcpListener>,
}

impl Doors {
    /// Listens on what the configurations name, and passes that to them.
    pub fn open(
        resp: &mut Config,
        disks: Option<&mut esker_server::nbd::Config>,
        rpc: Option<&mut esker_server::grpc::Config>,
    ) -> Result<Self, Failure> {
        let mut open = Vec::new();
        bind(&mut resp.listen, &mut resp.passed)?;
        bind(&mut resp.tls_listen, &mut resp.tls_passed)?;
        if let Some(disks) = disks {
            // A write that was answered and is lost with the head would be durable by a flush at the next one.
            disks.durable = vec!["*".into()];
            disks.cut_when_gone = true;
            open = bind(&mut disks.listen, &mut disks.passed)?;
        }
        let nbd = std::mem::take(&mut open);
        if let Some(rpc) = rpc {
            open = bind(&mut rpc.listen, &mut rpc.passed)?;
        }
        Ok(Self { nbd, grpc: open })
    }
}

/// The sockets of these addresses, which are passed as well.
fn bind(listen: &mut Vec<SocketAddr>, passed: &mut Vec<Passed>) -> Result<Vec<TcpListener>, Failure> {
    let mut own = Vec::new();
    for address in listen.drain(..) {
        let socket = TcpListener::bind(address).and_then(|socket| {
            socket.set_nonblocking(true)?;
            own.push(socket.try_clone()?);
            Passed::tcp(socket)
        });
        let failed = |error| Failure::new(Code::Failure, format!("listening on {address}: {error}"));
        passed.push(socket.map_err(failed)?);
    }
    Ok(own)
}

/// The servers of the chain as nodes of Redis Cluster.
struct Nodes {
    me: ServerId,
    own: Option<String>,
    view: ArcSwap<ClusterView>,
}

fn id(server: ServerId) -> String {
    format!("{:040x}", server.0)
}

fn node(server: ServerId, address: &str, is_up: bool) -> Option<ClusterNode> {
    let (address, is_tls) = match address.strip_prefix(TLS) {
        Some(address) => (address, true),
        None => (address, false),
    };
    let (host, port) = address.rsplit_once(':')?;
    let (host, port) = (host.trim_matches(['[', ']']).to_owned(), port.parse().ok()?);
    let (port, tls_port) = if is_tls { (0, Some(port)) } else { (port, None) };
    Some(ClusterNode { id: id(server), host, port, tls_port, is_up })
}

impl Nodes {
    fn new(me: ServerId, own: Option<String>) -> Result<Option<Arc<Self>>, String> {
        // Without the Redis protocol there is nothing to tell.
        let Some(address) = own.clone() else { return Ok(None) };
        let view = Self::made(me, &address, &View::default())?;
        Ok(Some(Arc::new(Self { me, own, view: ArcSwap::from_pointee(view) })))
    }

    fn made(me: ServerId, own: &str, view: &View) -> Result<ClusterView, String> {
        let mut nodes = Vec::new();
        let (mut head, mut replicas) = (None, Vec::new());
        let is_up = |peer: &Peer| matches!(peer.place, Some(Place::Serving | Place::Syncing | Place::Waiting));
        for peer in &view.peers {
            let address = peer.record.as_ref().and_then(|record| record.served.resp.as_deref());
            let address = if peer.server == me { Some(own) } else { address };
            let Some(node) = address.and_then(|address| node(peer.server, address, is_up(peer))) else { continue };
            if view.head == Some(peer.server) {
                // One that is not in office yet, or any more, is no head of its own.
                head = Some(nodes.len()).filter(|_| peer.server != me || view.heads);
            } else if peer.place.is_some() {
                replicas.push(nodes.len());
            }
            nodes.push(node);
        }
        if !nodes.iter().any(|node| node.id == id(me)) {
            nodes.extend(node(me, own, true));
        }
        ClusterView::new(view.version, &id(me), nodes, vec![SlotRange { first: 0, last: SLOT_LAST, head, replicas }])
    }

    fn update(&self, view: &View) {
        let Some(own) = &self.own else { return };
        match Self::made(self.me, own, view) {
            Ok(view) => self.view.store(Arc::new(view)),
            Err(why) => tracing::warn!(why, "clients are not told of a change of the cluster"),
        }
    }
}

impl Cluster for Nodes {
    fn view(&self) -> Arc<ClusterView> {
        self.view.load_full()
    }
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
    let terms =
        Terms { store, member: &member, nodes: nodes.as_deref(), parts, doors, builder, watched, http, stopping };
    let served = terms.run(loading);
    member.stop();
    Ok((served, told))
}

/// What a server is for its clients, in one start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// It heads the chain: all faces.
    Head(Option<Incarnation>),
    /// It serves behind the head: it answers readers of keys.
    Replica(Option<Incarnation>),
    /// It tells where the head is.
    Standby,
}

impl Role {
    fn of(view: &View) -> Self {
        match view.place {
            _ if view.heads => Self::Head(view.incarnation),
            Some(Place::Serving) => Self::Replica(view.incarnation),
            _ => Self::Standby,
        }
    }
}

/// What clients of this term are told of what is seen in it: never that this server has come to head the chain, which
/// the faces of the next term do. Those of this one have another store.
fn told(term: &View, seen: &View) -> View {
    View { heads: seen.heads && term.heads && seen.incarnation == term.incarnation, ..seen.clone() }
}

/// What this server is, one term after the other.
struct Terms<'t> {
    store: &'t esker::Store,
    member: &'t Arc<Member>,
    nodes: Option<&'t Nodes>,
    parts: Parts,
    doors: Doors,
    builder: esker::Builder,
    watched: &'t Watched,
    http: &'t Option<Running>,
    stopping: &'t Arc<Stopping>,
}

impl Terms<'_> {
    fn run(&self, loading: Loading) -> Result<(), Failure> {
        let (mut loading, mut turn, mut announced) = (Some(loading), 0, false);
        while !self.stopping.ends() {
            let (now, view) = self.member.wait(turn, Duration::ZERO).map_err(ended)?;
            turn = now;
            self.update(&view);
            match self.term(&view, loading.take(), &mut turn, &mut announced) {
                Ok(true) => {}
                Ok(false) => return Ok(()),
                // The chain may have a new head since.
                Err(failure) if Role::of(&view) != Role::Standby && !self.stopping.ends() => {
                    tracing::warn!(%failure, "the faces cannot be opened; trying again");
                    std::thread::sleep(LOOK);
                }
                Err(failure) => return Err(failure),
            }
        }
        Ok(())
    }

    /// What passes connections on to the head.
    fn relays(&self) -> Result<Vec<Relay>, Failure> {
        let head = |address: fn(&Served) -> Option<&String>| -> Head {
            let member = Arc::clone(self.member);
            Arc::new(move || {
                let view = member.view();
                let head = view.peers.iter().find(|peer| Some(peer.server) == view.head)?;
                address(&head.record.as_ref()?.served).cloned()
            })
        };
        let nbd = self.doors.nbd.iter().map(|door| ("nbd", door, head(|served| served.nbd.as_ref())));
        let grpc = self.doors.grpc.iter().map(|door| ("grpc", door, head(|served| served.grpc.as_ref())));
        nbd.chain(grpc).map(|(what, door, head)| Ok(Relay::start(what, door.try_clone()?, head)?)).collect()
    }

    /// Clients are told of this view.
    fn update(&self, view: &View) {
        self.nodes.iter().for_each(|nodes| nodes.update(view));
    }

    /// The faces over the chain, which are opened as they are asked for; and what holds what they read at one moment.
    fn over_chain(&self) -> Result<(esker::Store, Moment), Failure> {
        let chain = self.member.store().ok_or_else(|| Failure::new(Code::Failure, "no node of the chain"))?;
        let (path, moment) = (self.store.path().unwrap_or(Path::new("")), Moment(chain.moment()));
        Ok((self.builder.clone().over(Arc::new(chain), self.store.engine().cloned(), path), moment))
    }

    /// What a server that does not head the chain serves itself.
    fn parts_of_keys(&self) -> Parts {
        Parts { disks: None, rpc: None, backups: None, ..self.parts.clone() }
    }

    /// As the head of the chain, or not, until that changes: then true; false if it ended otherwise.
    fn term(
        &self,
        view: &View,
        loading: Option<Loading>,
        turn: &mut u64,
        announced: &mut bool,
    ) -> Result<bool, Failure> {
        let role = Role::of(view);
        let heads = matches!(role, Role::Head(_));
        let (store, parts) = match role {
            Role::Head(_) => (self.over_chain()?.0, self.parts.clone()),
            Role::Replica(_) => {
                let (store, moment) = self.over_chain()?;
                let mut parts = self.parts_of_keys();
                parts.resp.reading = Some(moment);
                (store, parts)
            }
            Role::Standby => {
                (esker::Store::builder().expire_interval(Duration::ZERO).open("memory:")?, self.parts_of_keys())
            }
        };
        let told_of = (!std::mem::replace(announced, true)).then_some(self.store);
        let started = Started::new(&store, (loading, told_of), parts, self.stopping)?;
        let relays = if heads { Vec::new() } else { self.relays()? };
        match (role, view.head) {
            (Role::Head(_), _) => say!("head       this server heads the chain (table {})", view.version),
            (Role::Replica(_), Some(head)) => say!("replica    server {head} heads the chain (table {})", view.version),
            (_, Some(head)) => say!("standby    server {head} heads the chain (table {})", view.version),
            (_, None) => say!("standby    the chain has no head yet"),
        }
        let protocols = started.tell(&store, self.watched, self.http);
        let waiting = self.stopping.serve(protocols)?;
        let (over, changed) = (AtomicBool::new(false), AtomicBool::new(false));
        let mut now = *turn;
        let served = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::SeqCst) {
                    let is_over = match self.member.wait(now, LOOK) {
                        Ok((next, seen)) => {
                            if next != now {
                                self.update(&told(view, &seen));
                            }
                            now = next;
                            Role::of(&seen) != role
                        }
                        Err(_) => true,
                    };
                    if is_over {
                        changed.store(true, Ordering::SeqCst);
                        self.stopping.change();
                        return;
                    }
                }
            });
            let served = started.run();
            over.store(true, Ordering::SeqCst);
            served
        });
        drop(relays);
        *turn = now;
        if waiting.join().is_err() {
            tracing::error!("a thread that waits for the end of a term panicked");
        }
        // Its faces end with it; what they failed to write is the next head's.
        if let Err(error) = store.close() {
            tracing::info!(%error, "the faces of a term were closed");
        }
        served.map(|()| changed.into_inner() && !self.stopping.ends())
    }
}

fn ended(error: Arc<esker_member::Error>) -> Failure {
    Failure::of(Code::Failure, &*error)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faces_that_are_not_over_the_chain_are_never_said_to_answer_for_it() {
        let view = |heads, start| View { heads, incarnation: Some(Incarnation(start)), ..View::default() };
        let heads = |term: &View, seen: &View| told(term, seen).heads;
        assert!(heads(&view(true, 1), &view(true, 1)));
        assert!(!heads(&view(false, 1), &view(true, 1)), "it has come to head it: these faces have an empty store");
        assert!(!heads(&view(true, 1), &view(true, 2)), "it heads it in another start");
        assert!(!heads(&view(true, 1), &view(false, 1)));
    }
}
