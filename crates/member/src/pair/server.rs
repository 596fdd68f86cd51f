//! A server of a pair, for as long as its process runs.
//!
//! ```text
//! [`Pair::start`] → what its store may be → thread: [`Desk::turn`], again and again → [`Pair::stop`]
//! calls of the other server and of operators → the same state, one at a time
//! ```
//!
//! Invariant: a role changes under the lock of the state, and the view of it is told before that is given up.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use esker_chain::{ChainStore, Incarnation, Place, ServerId, Standing};
use esker_cluster::{Served, ServerRecord};
use esker_peers::{Asked, Peers};
use esker_store::ObjectStore;
use esker_wire::proto::chain as proto;
use parking_lot::{Condvar, Mutex, MutexGuard};
use tokio::runtime::Runtime;

use crate::error::{Error, Result};
use crate::pair::calls::Calls;
use crate::pair::fencing::{Asking, refusal};
use crate::pair::follower::Follower;
use crate::pair::ground::{CHAIN, CLUSTER, Ground, Mode, PairConfig};
use crate::pair::offline::{Start, promoted};
use crate::pair::primary::{Deposed, Primary};
use crate::pair::promotion::{Candidate, Fenced};
use crate::pair::record::{Record, Role};
use crate::pair::service::{Answer, Answers, routes};
use crate::pair::stand::Stand;
use crate::view::{Peer, View};

/// The other is asked, and looked after, so often.
const EVERY: Duration = Duration::from_millis(200);
/// From a failure to the next try.
const AGAIN: Duration = Duration::from_secs(1);
/// A primary that is fenced sends what it has still within this time, or its standby is not promoted.
const REST: Duration = Duration::from_secs(10);
/// A primary that ends waits so long, at most, for a standby that is there.
const SETTLE: Duration = Duration::from_secs(2);

/// What this server is now.
enum Now {
    Primary(Box<Primary>),
    Follower(Box<Follower>),
    Deposed(Box<Deposed>),
    /// The node of a primary has failed: another is begun with what its store holds.
    Failed(String),
    /// It has ended.
    Ended,
}

struct Shown {
    view: Arc<View>,
    turn: u64,
    ended: Option<Arc<Error>>,
}

/// What the thread of the server and those who call share.
struct Desk {
    /// Set before anything asks for it.
    ground: OnceLock<Ground>,
    now: Mutex<Now>,
    told: Mutex<Shown>,
    changed: Condvar,
    wanted: Mutex<bool>,
    wanting: Condvar,
    stops: AtomicBool,
    runtime: Runtime,
}

impl Asked for Desk {
    fn refresh(&self) {
        self.wake();
    }

    fn in_step(&self, _: ServerId, _: u64) {
        self.wake();
    }
}

/// A server of a pair.
pub struct Pair {
    desk: Arc<Desk>,
    peers: Arc<Peers>,
    runs: Mutex<Option<JoinHandle<()>>>,
}

impl Pair {
    /// Listens to the other server, and is what the store's record and the configuration say. The store must be this
    /// process's alone.
    ///
    /// # Errors
    /// [`Error::Deposed`], [`Error::IsStandby`], [`Error::Part`], [`Error::Holds`]; [`Error::Peers`],
    /// [`Error::Store`], [`Error::Io`]. What its primary says later, is told by [`Pair::wait`].
    pub fn start(store: Arc<dyn ObjectStore>, mut config: PairConfig) -> Result<Self> {
        let mut start = Start::of(&*store, config.follow.as_deref(), config.replaces)?;
        let standing = Standing::read(&*store, &config.fresh)?;
        let (Start::Primary(record) | Start::Standby(record)) = &mut start;
        if record.role == Role::Primary && !record.goes_on(&*store)? {
            // The number of its last operation says nothing of that life: it may have been changed since.
            record.life = Bytes::new();
        }
        let mut random = fastrand::Rng::with_seed(config.seed);
        let me = ServerId(random.u32(1..BY.0));
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("esker-pair-calls")
            .enable_all()
            .build()?;
        let told = Shown { view: Arc::default(), turn: 0, ended: None };
        let desk = Arc::new(Desk {
            ground: OnceLock::new(),
            now: Mutex::new(Now::Ended),
            told: Mutex::new(told),
            changed: Condvar::new(),
            wanted: Mutex::new(false),
            wanting: Condvar::new(),
            stops: AtomicBool::new(false),
            runtime,
        });
        let listen = esker_peers::Config { cluster: CLUSTER.into(), me, ..config.peers.clone() };
        let peers = Arc::new(Peers::bind_beside(listen, routes(&desk))?);
        if config.served.peer.is_empty() {
            config.served.peer = peers.address().to_string();
        }
        let asked = Arc::downgrade(&desk);
        let ground = desk.ground.get_or_init(|| Ground {
            store: Arc::clone(&store),
            peers: Arc::clone(&peers),
            me,
            config,
            asked: Arc::new(Waking(asked)),
            random: Mutex::new(random),
        });
        let begun = match start {
            Start::Standby(mut record) => {
                if record.peer.is_empty() {
                    record.peer = ground.config.follow.clone().unwrap_or_default();
                }
                Now::Follower(Box::new(Follower::new(ground, record, &standing)))
            }
            Start::Primary(record) => {
                desk.ask_before(ground, &record)?;
                Now::Primary(Box::new(Primary::begin(ground, record, &standing)?))
            }
        };
        let mut now = desk.now.lock();
        *now = begun;
        desk.tell(&now);
        drop(now);
        let own = Arc::clone(&desk);
        let runs = std::thread::Builder::new().name("esker-pair".into()).spawn(move || own.run())?;
        Ok(Self { desk, peers, runs: Mutex::new(Some(runs)) })
    }

    /// How the pair stands, as chains do.
    pub fn view(&self) -> Arc<View> {
        Arc::clone(&self.desk.told.lock().view)
    }

    /// How this server stands in it; `None` at its end.
    pub fn stand(&self) -> Option<Stand> {
        self.desk.stand().ok().and_then(Stand::decoded)
    }

    /// Where the other server reaches this one.
    pub fn peer_address(&self) -> std::net::SocketAddr {
        self.peers.address()
    }

    /// Waits up to `within` for a view of another turn than `turn`: another role or start. Its turn, and it.
    ///
    /// # Errors
    /// Why this server is none of the pair any more.
    pub fn wait(&self, turn: u64, within: Duration) -> std::result::Result<(u64, Arc<View>), Arc<Error>> {
        let mut told = self.desk.told.lock();
        if told.turn == turn && told.ended.is_none() {
            self.desk.changed.wait_for(&mut told, within);
        }
        match &told.ended {
            Some(error) => Err(Arc::clone(error)),
            None => Ok((told.turn, Arc::clone(&told.view))),
        }
    }

    /// What the primary serves; `None`: this server is none.
    pub fn store(&self) -> Option<ChainStore> {
        match &*self.desk.now.lock() {
            Now::Primary(primary) => Some(primary.served()),
            _ => None,
        }
    }

    /// Has a standby that is there take what it lacks, for a while at most, and ends. Does nothing the second time.
    pub fn stop(&self) {
        self.desk.stops.store(true, Ordering::SeqCst);
        self.desk.wake();
        if let Some(runs) = self.runs.lock().take()
            && runs.join().is_err()
        {
            tracing::error!("the thread of a pair panicked");
        }
        self.peers.stop();
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        self.stop();
    }
}

/// What nodes wake the server by: their links do not keep it alive.
struct Waking(Weak<Desk>);

impl Asked for Waking {
    fn refresh(&self) {
        self.0.upgrade().into_iter().for_each(|desk| desk.refresh());
    }

    fn in_step(&self, server: ServerId, version: u64) {
        self.0.upgrade().into_iter().for_each(|desk| desk.in_step(server, version));
    }
}

/// What is asked of the other server in a turn.
enum Ask {
    Nothing,
    /// As a standby.
    Follow(proto::FollowRequest),
    /// As a primary that has to tell the one before it.
    Fence(String, proto::FenceRequest),
}

impl Desk {
    fn ground(&self) -> Answer<&Ground> {
        self.ground.get().ok_or_else(|| "this server starts still".into())
    }

    fn wake(&self) {
        *self.wanted.lock() = true;
        self.wanting.notify_all();
    }

    fn run(&self) {
        let Ok(ground) = self.ground() else { return };
        let (mut calls, mut fenced) = (None, Instant::now());
        while !self.stops.load(Ordering::SeqCst) {
            let pause = match self.turn(ground, &mut calls, &mut fenced) {
                Ok(pause) => pause,
                Err(error) => {
                    tracing::error!(%error, "this server is none of its pair any more");
                    self.told.lock().ended = Some(Arc::new(error));
                    self.changed.notify_all();
                    break;
                }
            };
            let mut wanted = self.wanted.lock();
            if !*wanted {
                self.wanting.wait_for(&mut wanted, pause);
            }
            *wanted = false;
        }
        self.end(ground);
    }

    fn end(&self, ground: &Ground) {
        let mut now = self.now.lock();
        match std::mem::replace(&mut *now, Now::Ended) {
            Now::Primary(primary) => primary.end(ground, SETTLE),
            Now::Deposed(deposed) => deposed.running.end(ground),
            Now::Follower(follower) => drop(follower.end(ground)),
            Now::Failed(_) | Now::Ended => {}
        }
        self.tell(&now);
    }

    /// One turn; how long to pause after it.
    fn turn(&self, ground: &Ground, calls: &mut Option<Calls>, fenced: &mut Instant) -> Result<Duration> {
        match self.prepare(ground, fenced)? {
            Ask::Nothing => Ok(EVERY),
            Ask::Follow(request) => self.follow_primary(ground, calls, request),
            Ask::Fence(address, request) => {
                self.fence_before(ground, &address, request);
                Ok(EVERY)
            }
        }
    }

    /// Looks after what needs no other server.
    fn prepare(&self, ground: &Ground, fenced: &mut Instant) -> Result<Ask> {
        let mut now = self.now.lock();
        let mut ask = Ask::Nothing;
        match &mut *now {
            Now::Primary(primary) => {
                if let Some(error) = primary.running.node.failure() {
                    let Now::Primary(primary) = std::mem::replace(&mut *now, Now::Failed(error.to_string())) else {
                        return Ok(Ask::Nothing);
                    };
                    self.tell(&now);
                    primary.running.end(ground);
                    *fenced = Instant::now();
                    return Ok(Ask::Nothing);
                }
                if let Err(error) = primary.look(ground) {
                    // Nothing is told that is not kept: the next turn tries again.
                    tracing::error!(%error, "that the standby is in step cannot be kept");
                }
                let Record { fences, pair, epoch, .. } = &primary.record;
                if !fences.is_empty() && fenced.elapsed() >= AGAIN {
                    *fenced = Instant::now();
                    let request = fence(ground, pair, *epoch, &primary.store);
                    ask = Ask::Fence(fences.clone(), request);
                }
            }
            Now::Follower(follower) => ask = Ask::Follow(follower.request(ground)?),
            Now::Failed(_) if fenced.elapsed() >= AGAIN => {
                *fenced = Instant::now();
                match Self::again(ground) {
                    Ok(primary) => *now = Now::Primary(Box::new(primary)),
                    Err(error) => *now = Now::Failed(error.to_string()),
                }
            }
            Now::Failed(_) | Now::Deposed(_) | Now::Ended => {}
        }
        self.tell(&now);
        Ok(ask)
    }

    /// A primary with what the store holds.
    fn again(ground: &Ground) -> Result<Primary> {
        let standing = Standing::read(&*ground.store, &ground.config.fresh)?;
        match Start::of(&*ground.store, None, false)? {
            Start::Primary(record) | Start::Standby(record) => Primary::begin(ground, record, &standing),
        }
    }

    /// The standby asks its primary.
    fn follow_primary(
        &self,
        ground: &Ground,
        calls: &mut Option<Calls>,
        request: proto::FollowRequest,
    ) -> Result<Duration> {
        let Some(address) = ground.config.follow.as_deref() else { return Ok(EVERY) };
        let start = request.start;
        let tls = ground.config.peers.tls.as_ref();
        let answer = self.runtime.block_on(async {
            let mut client = match calls.take() {
                Some(client) => client,
                None => Calls::connect(address, tls).await.map_err(|why| (why, None))?,
            };
            let others = self.other(&mut client).await.map_err(|why| (why, None))?;
            if let Some(error) = others.and_then(|(epoch, theirs)| {
                let is_newer = !ground.config.replaces && theirs <= epoch;
                is_newer.then(|| Error::Newer { epoch, theirs, address: address.to_owned() })
            }) {
                return Err((String::new(), Some(error)));
            }
            let answer = client.follow(request).await;
            *calls = Some(client);
            answer.map_err(|why| (why, None))
        });
        let mut now = self.now.lock();
        let Now::Follower(follower) = &mut *now else { return Ok(Duration::ZERO) };
        if follower.start != start {
            return Ok(Duration::ZERO);
        }
        let pause = match answer {
            Ok(answer) => {
                let before = follower.start;
                match follower.hear(ground, address, answer) {
                    Ok(()) if follower.start != before => Duration::ZERO,
                    Ok(()) => EVERY,
                    Err(error @ Error::OtherPair { .. }) => return Err(error),
                    Err(error) => {
                        follower.trouble = Some(error.to_string());
                        AGAIN
                    }
                }
            }
            Err((_, Some(error))) => return Err(error),
            Err((why, None)) => {
                let trouble = format!("the primary at {address}: {why}");
                if follower.trouble.as_ref() != Some(&trouble) {
                    tracing::warn!(trouble, "this standby is not told anything");
                }
                (follower.trouble, *calls) = (Some(trouble), None);
                EVERY
            }
        };
        self.tell(&now);
        Ok(pause)
    }

    /// Of a store that is a primary's still: its epoch, and that of the server that it is to follow.
    async fn other(&self, client: &mut Calls) -> std::result::Result<Option<(u64, u64)>, String> {
        let record = match &*self.now.lock() {
            Now::Follower(follower) if follower.record.role == Role::Primary => follower.record.clone(),
            _ => return Ok(None),
        };
        let theirs = client.stand().await?.record;
        let is_ours = theirs.pair == record.pair;
        Ok(is_ours.then_some((record.epoch, theirs.epoch)))
    }

    /// Before a store is a primary's again: the other may have been promoted meanwhile.
    fn ask_before(&self, ground: &Ground, record: &Record) -> Result<()> {
        let tls = ground.config.peers.tls.as_ref();
        for address in [&record.peer, &record.fences].into_iter().filter(|address| !address.is_empty()) {
            let stand = self.runtime.block_on(async { Calls::connect(address, tls).await?.stand().await });
            match stand {
                Ok(Stand { record: theirs, .. }) if theirs.pair == record.pair && theirs.epoch > record.epoch => {
                    let by = if theirs.role == Role::Primary { address.clone() } else { theirs.peer };
                    let next = Record { role: Role::Deposed, epoch: theirs.epoch, peer: by.clone(), ..record.clone() };
                    Record { fences: String::new(), in_step: false, ..next }.write(&*ground.store)?;
                    return Err(Error::Deposed { epoch: theirs.epoch, by });
                }
                Ok(_) => {}
                Err(why) => tracing::info!(address, why, "the other server of this pair is not asked"),
            }
        }
        Ok(())
    }

    /// Tells the primary before this one that it is none.
    fn fence_before(&self, ground: &Ground, address: &str, request: proto::FenceRequest) {
        let (epoch, tls) = (request.epoch, ground.config.peers.tls.as_ref());
        let asked = self.runtime.block_on(async {
            let mut calls = Calls::connect(address, tls).await?;
            let stand = calls.stand().await?;
            if stand.record.pair != request.pair {
                return Err("it is of another pair".to_owned());
            }
            if stand.record.epoch > epoch {
                return Ok(stand.record);
            }
            let told = calls.fence(request).await?;
            // That of the same epoch: what has heard of it keeps it, and is no primary.
            let has_heard = told.epoch >= epoch && Role::decoded(told.role).is_some_and(|role| role != Role::Primary);
            if has_heard { Ok(Record { epoch, ..stand.record }) } else { Err("it does not keep that".into()) }
        });
        let theirs = match asked {
            Ok(theirs) => theirs,
            Err(why) => return tracing::debug!(address, why, "the primary before is not told yet"),
        };
        let mut now = self.now.lock();
        let Now::Primary(primary) = &mut *now else { return };
        if primary.record.epoch != epoch {
            return;
        }
        if theirs.epoch > epoch {
            let by = if theirs.role == Role::Primary { address.to_owned() } else { theirs.peer };
            // It answers nothing, whether that could be kept or not.
            let (pair, epoch) = (theirs.pair, theirs.epoch);
            let told = proto::FenceRequest { pair, epoch, peer: by, ..proto::FenceRequest::default() };
            let _ = self.depose(ground, &mut now, &told);
            return;
        }
        let next = Record { fences: String::new(), ..primary.record.clone() };
        match next.write(&*ground.store) {
            Ok(()) => primary.record = next,
            Err(error) => tracing::warn!(%error, "that the primary before was told cannot be kept"),
        }
        tracing::info!(address, "the primary before this one was told that it is none");
    }

    /// This primary is none any more; the last operation that it has applied.
    fn depose(&self, ground: &Ground, now: &mut MutexGuard<'_, Now>, fence: &proto::FenceRequest) -> Answer<u64> {
        let primary = match std::mem::replace(&mut **now, Now::Ended) {
            Now::Primary(primary) => primary,
            other => {
                **now = other;
                return Err("this server is no primary".into());
            }
        };
        let (deposed, kept) = primary.depose(ground, fence);
        let applied = deposed.running.node.progress().0;
        **now = Now::Deposed(Box::new(deposed));
        self.tell(now);
        kept.map(|()| applied).map_err(|error| format!("it answers nothing any more, and could not keep that: {error}"))
    }

    /// Tells how this server stands.
    fn tell(&self, now: &Now) {
        let Some(ground) = self.ground.get() else { return };
        let view = view(ground, now);
        let mut told = self.told.lock();
        let stands = |view: &View| (view.version, view.head, view.heads, view.place, view.incarnation);
        let has_turned = stands(&told.view) != stands(&view);
        told.view = Arc::new(view);
        if has_turned {
            told.turn += 1;
            drop(told);
            self.changed.notify_all();
        }
    }

    /// Waits until this standby has what its primary had when it was fenced.
    fn await_rest(&self, applied: u64) {
        let until = Instant::now() + REST;
        while Instant::now() < until {
            let node = match &*self.now.lock() {
                Now::Follower(follower) => follower.node().cloned(),
                _ => return,
            };
            if node.is_none_or(|node| node.progress().0 >= applied) {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// What the primary that has deposed this one is called: its number is not known.
const BY: ServerId = ServerId(u32::MAX);

/// What a primary of this epoch tells the one before it.
fn fence(ground: &Ground, pair: &Bytes, epoch: u64, store: &str) -> proto::FenceRequest {
    let Served { peer, resp, nbd, grpc, thrift, .. } = ground.config.served.clone();
    let (pair, store) = (pair.clone(), store.into());
    proto::FenceRequest { pair, epoch, peer, store, resp, nbd, grpc, thrift, ..proto::FenceRequest::default() }
}

fn other(server: u32, place: Place, served: Served) -> Peer {
    let record = ServerRecord { incarnation: Incarnation(0), served };
    Peer { server: ServerId(server), place: Some(place), record: Some(record) }
}

fn view(ground: &Ground, now: &Now) -> View {
    let mut view = View::default();
    match now {
        Now::Primary(primary) => {
            let node = &primary.running.node;
            (view.version, view.head, view.heads) = (primary.version(), Some(ground.me), true);
            (view.place, view.incarnation) = (Some(Place::Serving), Some(primary.start));
            (view.applied, view.committed) = node.progress();
            view.kept_bytes = node.look().map_or(0, |(_, _, _, kept)| kept as u64);
            view.lease_ms = node.lease_left().as_millis() as u64;
            view.peers = vec![other(ground.me.0, Place::Serving, ground.config.served.clone())];
        }
        Now::Follower(follower) => {
            view.version = follower.version();
            if let Some(primary) = &follower.primary {
                let served = Served {
                    store: String::new(),
                    peer: follower.record.peer.clone(),
                    resp: primary.resp.clone(),
                    grpc: primary.grpc.clone(),
                    nbd: primary.nbd.clone(),
                    http: None,
                    thrift: primary.thrift.clone(),
                };
                view.head = Some(ServerId(primary.server));
                view.peers.push(other(primary.server, Place::Serving, served));
            }
            view.place = Some(Place::Syncing);
            view.incarnation = Some(Incarnation(follower.start));
            if let Some(node) = follower.node() {
                (view.applied, view.committed) = node.progress();
            }
            view.copied_bytes = ground.peers.copied_bytes(CHAIN);
            view.trouble.clone_from(&follower.trouble);
        }
        Now::Deposed(deposed) => {
            if let Some(served) = &deposed.primary {
                view.head = Some(BY);
                view.peers.push(other(BY.0, Place::Serving, served.clone()));
            }
            view.incarnation = Some(deposed.start);
            view.trouble = Some("this server was deposed: another was promoted".into());
        }
        Now::Failed(why) => view.trouble = Some(why.clone()),
        Now::Ended => {}
    }
    view
}

impl Answers for Desk {
    fn follow(&self, request: proto::FollowRequest) -> Answer<proto::FollowResponse> {
        let ground = self.ground()?;
        let mut now = self.now.lock();
        match &mut *now {
            Now::Primary(primary) if request.epoch > primary.record.epoch && request.pair == primary.record.pair => {
                let epoch = request.epoch;
                let fence = proto::FenceRequest { pair: request.pair, epoch, ..proto::FenceRequest::default() };
                self.depose(ground, &mut now, &fence)?;
                Err(format!("this server has a lower epoch than {epoch}: it is not the primary any more"))
            }
            Now::Primary(primary) => {
                let answer = primary.follow(ground, &request);
                self.tell(&now);
                answer
            }
            Now::Follower(_) => Err("this server is a standby itself".into()),
            Now::Deposed(deposed) => {
                let by = Some(&deposed.record.peer).filter(|by| !by.is_empty());
                let by = by.map_or_else(String::new, |by| format!(": the primary is grpc://{by}"));
                Err(format!("this server was deposed{by}"))
            }
            Now::Failed(why) => Err(why.clone()),
            Now::Ended => Err("this server starts, or stops".into()),
        }
    }

    fn fence(&self, request: proto::FenceRequest) -> Answer<proto::FenceResponse> {
        let ground = self.ground()?;
        let mut now = self.now.lock();
        let (epoch, role) = (request.epoch, Role::Deposed.encoded());
        match &mut *now {
            Now::Primary(primary) => {
                let record = &primary.record;
                if !record.heeds(&request) {
                    let (own, theirs) = (record.epoch, request.epoch);
                    return Err(format!("this primary is of another pair, or its epoch {own} is not below {theirs}"));
                }
                let (node, life) = (Arc::clone(&primary.running.node), record.life.clone());
                // What it has applied does not change any more from here on.
                node.give_up();
                if let Some(why) = refusal(&request, &life, node.progress().0, node.first_kept()) {
                    primary.renew();
                    return Err(why);
                }
                let applied = self.depose(ground, &mut now, &request)?;
                Ok(proto::FenceResponse { role, epoch, applied, life })
            }
            Now::Deposed(deposed) => {
                if !deposed.record.heeds(&request) {
                    let epoch = deposed.record.epoch;
                    return Err(format!("this server was deposed already, by another server with epoch {epoch}"));
                }
                let (node, life) = (&deposed.running.node, deposed.record.life.clone());
                let applied = node.progress().0;
                if let Some(why) = refusal(&request, &life, applied, node.first_kept()) {
                    return Err(why);
                }
                deposed.hear(ground, &request).map_err(|error| error.to_string())?;
                Ok(proto::FenceResponse { role, epoch, applied, life })
            }
            Now::Follower(follower) => {
                let answer = follower.fence(ground, &request);
                self.tell(&now);
                answer
            }
            Now::Failed(why) => Err(why.clone()),
            Now::Ended => Err("this server starts, or stops".into()),
        }
    }

    fn stand(&self) -> Answer<proto::StandResponse> {
        let ground = self.ground()?;
        match &*self.now.lock() {
            Now::Primary(primary) => Ok(primary.stand(ground)),
            Now::Follower(follower) => Ok(follower.stand(ground)),
            Now::Deposed(deposed) => Ok(proto::StandResponse {
                record: Some(deposed.record.encoded()),
                sync: ground.config.mode == Mode::Sync,
                applied: deposed.running.node.progress().0,
                trouble: "this server was deposed: another was promoted".into(),
                ..proto::StandResponse::default()
            }),
            Now::Failed(why) => Err(why.clone()),
            Now::Ended => Err("this server starts, or stops".into()),
        }
    }

    fn promote(&self, force: bool) -> Answer<proto::PromoteResponse> {
        let ground = self.ground()?;
        let words = |error: Error| error.to_string();
        let (record, applied, takes, store) = match &*self.now.lock() {
            Now::Follower(follower) => {
                let takes = follower.node().is_some();
                let applied = follower.applied(ground).map_err(words)?;
                (follower.record.clone(), applied, takes, follower.store.clone())
            }
            Now::Primary(primary) => {
                return Err(format!("this server is the primary already, with epoch {}", primary.record.epoch));
            }
            Now::Deposed(_) => {
                let why = "this server was deposed: stop it; `esker standby promote --store PATH --force` makes its \
                           store the primary's again";
                return Err(why.into());
            }
            Now::Failed(_) | Now::Ended => return Err("this server is no standby".into()),
        };
        if record.role != Role::Standby {
            // It follows none yet: its store is a primary's still, or a deposed one's, and is promoted while shut.
            return Err(words(Error::NotStandby { role: record.role, epoch: record.epoch }));
        }
        let asking = Asking {
            candidate: Candidate { record: &record, applied },
            address: &record.peer,
            tls: ground.config.peers.tls.as_ref(),
            takes,
            force,
        };
        let request = fence(ground, &record.pair, record.epoch + 1, &store);
        let (fenced, epoch) = self.runtime.block_on(asking.fence(request)).map_err(words)?;
        if let Fenced::At(applied) = fenced {
            self.await_rest(applied);
        }
        let mut now = self.now.lock();
        if let (Now::Follower(follower), Fenced::At(theirs), false) = (&*now, fenced, force) {
            let lacks = theirs.saturating_sub(follower.has(ground).map_err(words)?.unwrap_or(0));
            if lacks > 0 {
                // It is sent that still: it may be promoted later.
                return Err(words(Error::Lacks { lacks }));
            }
        }
        let follower = match std::mem::replace(&mut *now, Now::Ended) {
            Now::Follower(follower) => follower,
            // Another promotion was asked for as well, or it stops.
            other => {
                *now = other;
                return Err("this server is no standby any more: see `esker standby status`".into());
            }
        };
        // Nothing comes any more that is not counted.
        let record = follower.end(ground);
        let standing = match Standing::read(&*ground.store, &ground.config.fresh) {
            Ok(standing) => standing,
            Err(error) => {
                *now = Now::Failed(error.to_string());
                return Err(error.to_string());
            }
        };
        let follow_on = |now: &mut Now| {
            *now = Now::Follower(Box::new(Follower::new(ground, record.clone(), &standing)));
            self.tell(now);
        };
        let promotion = match (Candidate { record: &record, applied: standing.applied }).decide(fenced, epoch, force) {
            Ok(promotion) => promotion,
            Err(error) => {
                follow_on(&mut now);
                return Err(words(error));
            }
        };
        let fences = if fenced == Fenced::Not { &record.peer[..] } else { "" };
        let next = promoted(&record, &promotion, fences);
        if let Err(error) = next.write(&*ground.store) {
            follow_on(&mut now);
            return Err(error.to_string());
        }
        match Primary::begin(ground, next, &standing) {
            Ok(primary) => *now = Now::Primary(Box::new(primary)),
            // It is the primary's: it is begun again.
            Err(error) => *now = Now::Failed(error.to_string()),
        }
        self.tell(&now);
        tracing::warn!(epoch = promotion.epoch, told = promotion.told, "this server was promoted");
        Ok(proto::PromoteResponse { epoch: promotion.epoch, lacks: promotion.lacks, told: promotion.told })
    }

    fn release(&self) -> Answer<proto::ReleaseResponse> {
        let ground = self.ground()?;
        let mut now = self.now.lock();
        let Now::Primary(primary) = &mut *now else { return Err("this server is no primary".into()) };
        let was_in_step = primary.release(ground).map_err(|error| error.to_string())?;
        self.tell(&now);
        Ok(proto::ReleaseResponse { was_in_step })
    }
}
