//! The faces of a server that heads its chain at one time and not at another: what is served, one term after the
//! other.
//!
//! heads → the faces over the chain · serves behind the head → those who ask for it read keys at this replica
//! · neither → clients are told where the head is · changes → the next term
//!
//! Invariants:
//! 1. Faces are opened where this server heads the chain, over the chain; none outlives that. Elsewhere only that of
//!    keys is, to read, where this server serves, and for as long.
//! 2. Clients are told that this server heads the chain only by faces that write to it.

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use esker_chain::{ChainStore, Incarnation, Place};
use esker_cluster::Served;
use esker_member::{Host, View};
use esker_server::front::Passed;
use esker_server::http::Running;
use esker_server::resp::{Loading, Moment};

use super::keyring::Answers;
use super::mover::Moves;
use super::nodes::Nodes;
use super::plan::Plan;
use super::relay::{Head, Relay};
use super::seat::Seat;
use super::started::{Parts, Started};
use super::stopping::Stopping;
use crate::exit::{Code, Failure};

/// Changes of the chain are looked for so often while nothing tells of them.
const LOOK: Duration = Duration::from_millis(100);

/// What says whether this server heads its chain.
pub(super) trait Heads: Send + Sync + 'static {
    /// How the chain stands.
    fn view(&self) -> Arc<View>;

    /// Waits up to `within` for a view of another turn than `turn`. Its turn, and it.
    ///
    /// # Errors
    /// It never says so any more.
    fn wait(&self, turn: u64, within: Duration) -> Result<(u64, Arc<View>), Failure>;

    /// The chain, where this server heads it.
    fn store(&self) -> Option<ChainStore>;

    /// What the person at the terminal is told of a term.
    fn line(&self, view: &View) -> String;
}

/// Sockets that are listened on while terms come and go: a client that connects between two of them waits.
pub struct Doors {
    nbd: Vec<TcpListener>,
    grpc: Vec<TcpListener>,
    thrift: Vec<TcpListener>,
}

impl Doors {
    /// Listens on what the plan's configurations name, and passes that to them. `loses`: what was acknowledged may be
    /// lost where another server heads the chain.
    pub fn open(plan: &mut Plan, loses: bool) -> Result<Self, Failure> {
        let Plan { resp, disks, rpc, thrift, .. } = plan;
        let mut open = Vec::new();
        bind(&mut resp.listen, &mut resp.passed)?;
        bind(&mut resp.tls_listen, &mut resp.tls_passed)?;
        if let Some(disks) = disks {
            if !loses {
                // A write that was answered and is lost with the head would be durable by a flush at the next one.
                disks.durable = vec!["*".into()];
            }
            disks.cut_when_gone = true;
            open = bind(&mut disks.listen, &mut disks.passed)?;
        }
        let nbd = std::mem::take(&mut open);
        if let Some(rpc) = rpc {
            open = bind(&mut rpc.listen, &mut rpc.passed)?;
        }
        let grpc = std::mem::take(&mut open);
        if let Some(thrift) = thrift {
            open = bind(&mut thrift.listen, &mut thrift.passed)?;
        }
        Ok(Self { nbd, grpc, thrift: open })
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

/// What is beside the servers of a term, as long as it is there.
struct Opened {
    waiting: JoinHandle<()>,
    relays: Vec<Relay>,
    moves: Option<Moves>,
    answers: Option<Answers>,
}

/// The faces of a term end with it; what they failed to write is the next head's.
fn end_faces(store: &esker::Store) {
    if let Err(error) = store.close() {
        tracing::info!(%error, "the faces of a term were closed");
    }
}

/// What this server is, one term after the other.
pub(super) struct Terms<'t, H> {
    pub store: &'t esker::Store,
    pub heads: &'t Arc<H>,
    /// Where it heads the chain, it answers the Redis protocol as a server that stands alone.
    pub alone: bool,
    pub nodes: Option<&'t Nodes>,
    /// The chain, and what it shares the slots of keys by; `None`: with no other.
    pub ring: Option<(&'t str, &'t Arc<Host>)>,
    pub parts: Parts,
    pub doors: Doors,
    pub builder: esker::Builder,
    pub seat: &'t Arc<Seat>,
    pub http: Option<&'t Running>,
    pub stopping: &'t Arc<Stopping>,
}

impl<H: Heads> Terms<'_, H> {
    /// Serves until the end of the process.
    pub(super) fn run(&self, loading: Loading) -> Result<(), Failure> {
        let (mut loading, mut turn, mut announced) = (Some(loading), 0, false);
        while !self.stopping.ends() {
            let (now, view) = self.heads.wait(turn, Duration::ZERO)?;
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
            let heads = Arc::clone(self.heads);
            Arc::new(move || {
                let view = heads.view();
                let head = view.peers.iter().find(|peer| Some(peer.server) == view.head)?;
                address(&head.record.as_ref()?.served).cloned()
            })
        };
        let nbd = self.doors.nbd.iter().map(|door| ("nbd", door, head(|served| served.nbd.as_ref())));
        let grpc = self.doors.grpc.iter().map(|door| ("grpc", door, head(|served| served.grpc.as_ref())));
        let thrift = self.doors.thrift.iter().map(|door| ("thrift", door, head(|served| served.thrift.as_ref())));
        nbd.chain(grpc)
            .chain(thrift)
            .map(|(what, door, head)| Ok(Relay::start(what, door.try_clone()?, head)?))
            .collect()
    }

    /// Opens what is beside the servers of a term.
    fn open(&self, started: &Started, store: &esker::Store, view: &View) -> Result<Opened, Failure> {
        let heads = matches!(Role::of(view), Role::Head(_));
        let relays = if heads { Vec::new() } else { self.relays()? };
        say!("{}", self.heads.line(view));
        let protocols = started.tell(store, self.seat, self.http);
        let ring = self.ring.filter(|_| heads && self.nodes.is_some());
        let moving = protocols.resp.moving();
        let answers = protocols.thrift.clone().zip(ring);
        let waiting = self.stopping.serve(self.seat, protocols)?;
        let moves = ring.map(|(chain, host)| Moves::begin(chain, host, moving)).transpose()?;
        let answers = answers.map(|(thrift, (chain, host))| Answers::begin(chain, host, thrift));
        Ok(Opened { waiting, relays, moves, answers })
    }

    /// Clients are told of this view.
    fn update(&self, view: &View) {
        self.nodes.iter().for_each(|nodes| nodes.update(view));
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
        let mut parts = self.parts.clone();
        if !heads {
            (parts.disks, parts.rpc, parts.thrift, parts.backups) = (None, None, None, None);
        }
        let store = if role == Role::Standby {
            esker::Store::builder().expire_interval(Duration::ZERO).open("memory:")?
        } else {
            let chain = self.heads.store().ok_or_else(|| Failure::new(Code::Failure, "no node of the chain"))?;
            let path = self.store.path().unwrap_or(Path::new(""));
            parts.resp.reading = (!heads).then(|| Moment(chain.moment()));
            self.builder.clone().over(Arc::new(chain), self.store.engine().cloned(), path)
        };
        if heads && self.alone {
            parts.resp.cluster = None;
        }
        let told_of = (!std::mem::replace(announced, true)).then_some(self.store);
        let started = Started::new(&store, (loading, told_of), parts, self.stopping)?;
        let opened = match self.open(&started, &store, view) {
            Ok(opened) => opened,
            Err(failure) => {
                // Nothing of it goes on beside the next attempt, and its end is not that of the process.
                self.seat.change();
                started.abandon();
                end_faces(&store);
                return Err(failure);
            }
        };
        let (over, changed) = (AtomicBool::new(false), AtomicBool::new(false));
        let mut now = *turn;
        let served = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::SeqCst) {
                    let is_over = match self.heads.wait(now, LOOK) {
                        Ok((next, seen)) => {
                            if next != now {
                                self.update(&told(view, &seen));
                            }
                            self.nodes.iter().for_each(|nodes| nodes.look());
                            now = next;
                            Role::of(&seen) != role
                        }
                        Err(_) => true,
                    };
                    if is_over {
                        changed.store(true, Ordering::SeqCst);
                        self.seat.change();
                        return;
                    }
                }
            });
            let served = started.run();
            over.store(true, Ordering::SeqCst);
            served
        });
        let Opened { waiting, relays, moves, answers } = opened;
        drop((relays, moves, answers));
        *turn = now;
        if waiting.join().is_err() {
            tracing::error!("a thread that waits for the end of a term panicked");
        }
        end_faces(&store);
        served.map(|()| changed.into_inner() && !self.stopping.ends())
    }
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
