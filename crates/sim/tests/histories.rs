//! Histories of real threads: eight writers and four readers, each a session of its own, on an engine that works as it
//! does in earnest, while sequencers are deposed and lost, processes paused between any two calls, stripes reshaped,
//! and the store killed and reopened.
//!
//! threads → events, timed by one counter → [`esker_sim::logs::history::check`]. `ESKER_SECONDS` says for how long
//! (default 3).
//!
//! Invariant: an event's begin is taken before its first call, and its end after its answer, so that what did not
//! overlap is ordered.

#![allow(clippy::unwrap_used, reason = "a test that fails")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use esker_device::Device;
use esker_engine::{CommitPolicy, Engine, FormatOptions, Options as EngineOptions};
use esker_log::{
    Connect, Delivery, Error, Follow, Follower, Found, GapKind, Log, Logs, Options, Sequencer, Session, Start, Tail,
    Token,
};
use esker_sim::fault::{FaultyDevice, Image, Shape, Survival};
use esker_sim::logs::history::{Act, Appended, Event, Seen, check};
use esker_store::ObjectStore;
use esker_store::contract::{Call, PerObject, Watch, Watched};
use parking_lot::Mutex;

const WRITERS: usize = 8;
const READERS: usize = 4;
const DEVICE_BYTES: u64 = 64 << 20;
/// Where the sequencer is.
const ADDRESS: &str = "desk";

/// The world that all threads share.
struct World {
    time: AtomicU64,
    payloads: AtomicU64,
    /// One above the highest position acknowledged.
    known: AtomicU64,
    stop: AtomicBool,
    store: Mutex<(u64, Arc<dyn ObjectStore>)>,
    paused: Vec<AtomicBool>,
    desk: Mutex<Option<Log>>,
    nonces: AtomicU64,
}

/// Pauses a process at its next call.
struct Pauses(Arc<World>, usize);

impl Watch for Pauses {
    fn before(&self, _: Call<'_>) -> esker_store::Result<()> {
        while self.0.paused[self.1].load(Ordering::SeqCst) && !self.0.stop.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }
    fn after(&self, _: bool) -> esker_store::Result<()> {
        self.before(Call::Read(None))
    }
}

impl World {
    fn now(&self) -> u64 {
        self.time.fetch_add(1, Ordering::SeqCst)
    }

    fn session(self: &Arc<Self>, common: bool) -> Session {
        let began = Instant::now();
        let nonce = self.nonces.fetch_add(1, Ordering::SeqCst).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let connect = common.then(|| Arc::new(Directions(Arc::clone(self))) as Arc<dyn Connect>);
        let clock = Arc::new(move || began.elapsed().as_millis() as u64);
        Session { connect, lease_ms: 100, ..Session::new(clock, nonce) }
    }

    /// The log, as a process sees it that begins now; with the number of the store's life.
    fn open(self: &Arc<Self>, me: usize, common: bool) -> (u64, Option<Log>) {
        let (life, store) = self.store.lock().clone();
        let watch = Arc::new(Pauses(Arc::clone(self), me));
        let store = Arc::new(PerObject(Watched { store, watch }));
        let log = Logs::open(store, self.session(common)).and_then(|logs| logs.log("log")).ok();
        if log.is_none() {
            std::thread::sleep(Duration::from_millis(5));
        }
        (life, log)
    }

    fn is_over(&self, life: u64) -> bool {
        self.store.lock().0 != life
    }
}

/// The common sequencer.
struct Directions(Arc<World>);

impl Connect for Directions {
    fn connect(&self, _: &str) -> Result<Arc<dyn Sequencer>, Error> {
        Ok(Arc::new(Self(Arc::clone(&self.0))))
    }
}

impl Directions {
    fn ask<T>(&self, epoch: u64, answer: impl FnOnce(&esker_log::Leader) -> Result<T, Error>) -> Result<T, Error> {
        let refused = |error: Error| Error::NoSequencer { log: "log".into(), why: error.to_string() };
        let mut desk = self.0.desk.lock();
        let log = match desk.take() {
            Some(log) => log,
            None => {
                let (_, store) = self.0.store.lock().clone();
                Logs::open(store, self.0.session(false)).and_then(|logs| logs.log("log")).map_err(refused)?
            }
        };
        let mut leader = log.lead(ADDRESS).map_err(refused)?;
        if leader.epoch() < epoch {
            log.refresh().map_err(refused)?;
            leader = log.lead(ADDRESS).map_err(refused)?;
        }
        *desk = Some(log);
        answer(&leader)
    }
}

impl Sequencer for Directions {
    fn next(&self, _: u64, epoch: u64, count: u32, expected: Option<u64>) -> Result<Token, Error> {
        self.ask(epoch, |leader| leader.next(count, expected))
    }
    fn tail(&self, _: u64, epoch: u64) -> Result<Tail, Error> {
        self.ask(epoch, |leader| Ok(leader.tail()))
    }
}

/// Checks that a process that did nothing wrong may be told of it.
fn excused(error: &Error) {
    let fault =
        matches!(error, Error::Damaged { .. } | Error::Invalid { .. } | Error::NoLog { .. } | Error::Exists { .. });
    assert!(!fault, "{error}");
}

fn write(world: &Arc<World>, me: usize) -> Vec<Event> {
    let mut events = Vec::new();
    // Most ask the common sequencer, one takes over by itself.
    let common = me != 0;
    let (mut life, mut log) = world.open(me, common);
    while !world.stop.load(Ordering::SeqCst) {
        if log.is_none() || world.is_over(life) {
            (life, log) = world.open(me, common);
        }
        let Some(log) = &log else { continue };
        let payload = 2 * world.payloads.fetch_add(1, Ordering::SeqCst);
        let begin = world.now();
        let (result, answered) = match log.append(Bytes::copy_from_slice(&payload.to_le_bytes())) {
            Ok(done) => match done.wait() {
                Ok(position) => (Appended::At(position), true),
                Err(_) => (Appended::Unknown, false),
            },
            Err(Error::Uncertain { position, nonce, .. }) => match log.resolve(position, nonce) {
                Ok(true) if log.read(position).is_ok_and(|found| found.wait().is_ok()) => {
                    (Appended::At(position), true)
                }
                Ok(false) => (Appended::Refused, true),
                _ => (Appended::Unknown, false),
            },
            Err(error) => {
                excused(&error);
                (Appended::Refused, true)
            }
        };
        let end = if answered { world.now() } else { u64::MAX };
        if let Appended::At(position) = result {
            world.known.fetch_max(position + 1, Ordering::SeqCst);
        }
        let act = Act::Append { payloads: vec![payload], durable: true, number: None, under: 0, result };
        events.push(Event { process: me, begin, end, act });
        std::thread::sleep(Duration::from_millis(if common { 4 } else { 150 }));
    }
    events
}

fn seen(found: &Found) -> Seen {
    match found {
        Found::Entry(entry) => Seen::Entry(u64::from_le_bytes(entry.data[..8].try_into().unwrap())),
        Found::Filled => Seen::Filled,
        Found::Trimmed => Seen::Trimmed,
        Found::Hole | Found::BeyondTail => Seen::Nothing,
        Found::Lost(why) => panic!("data loss: {why}"),
    }
}

fn read(world: &Arc<World>, me: usize) -> Vec<Event> {
    let mut events = Vec::new();
    let (mut life, mut log) = world.open(me, true);
    let mut next = 0;
    let mut follower: Option<Follower> = None;
    while !world.stop.load(Ordering::SeqCst) {
        if log.is_none() || world.is_over(life) {
            (follower, (life, log)) = (None, world.open(me, true));
        }
        let Some(log) = &log else { continue };
        let how = Follow { fill_after_ms: Some(50), look_ms: 2, ..Follow::default() };
        if follower.is_none() {
            follower = log.follow(Start::Position(next), how).ok();
        }
        let Some(reader) = &mut follower else { continue };
        let begin = world.now();
        match reader.next(Duration::from_millis(20)) {
            Ok(None) => {}
            Ok(Some(delivery)) => {
                let end = world.now();
                let (positions, seen) = match delivery {
                    Delivery::Entry(entry) => (entry.position..entry.position + 1, seen(&Found::Entry(entry))),
                    Delivery::Gap { positions, kind: GapKind::Filled } => (positions, Seen::Filled),
                    Delivery::Gap { positions, kind: GapKind::Trimmed } => (positions, Seen::Trimmed),
                    other => panic!("{other:?}"),
                };
                assert_eq!(positions.start, next, "reader {me} was handed {positions:?}");
                next = positions.end;
                for position in positions {
                    events.push(Event {
                        process: me,
                        begin,
                        end,
                        act: Act::Read { position, seen: seen.clone(), keeps: true },
                    });
                }
            }
            Err(error) => {
                excused(&error);
                follower = None;
            }
        }
        if events.len().is_multiple_of(7) {
            let begin = world.now();
            if let Ok(tail) = log.tail() {
                events.push(Event { process: me, begin, end: world.now(), act: Act::Tail(tail.position) });
            }
        }
    }
    events
}

/// What goes wrong meanwhile.
fn disturb(world: &Arc<World>, mut device: Arc<FaultyDevice>, mut rng: fastrand::Rng) -> (Vec<Event>, [u32; 5]) {
    let me = WRITERS + READERS;
    let (mut events, mut done) = (Vec::new(), [0; 5]);
    while !world.stop.load(Ordering::SeqCst) {
        std::thread::sleep(Duration::from_millis(rng.u64(20..120)));
        let what = rng.usize(0..12);
        match what {
            // The sequencer is gone; the next one finds the tail.
            0..3 => {
                *world.desk.lock() = None;
                done[0] += 1;
            }
            3..7 => {
                let one = &world.paused[rng.usize(0..WRITERS + READERS)];
                one.store(true, Ordering::SeqCst);
                std::thread::sleep(Duration::from_millis(rng.u64(1..80)));
                one.store(false, Ordering::SeqCst);
                done[1] += 1;
            }
            7..9 => {
                if let (_, Some(log)) = world.open(me, false)
                    && log.reshape(rng.u32(1..5), rng.u32(8..300)).is_ok()
                {
                    done[2] += 1;
                }
            }
            9..11 => {
                let to = world.known.load(Ordering::SeqCst).saturating_sub(rng.u64(50..2_000));
                if let (_, Some(log)) = world.open(me, false) {
                    let begin = world.now();
                    let trimmed = log.trim_to(to).is_ok();
                    let end = if trimmed { world.now() } else { u64::MAX };
                    events.push(Event { process: me, begin, end, act: Act::Trim { from: 0, to, done: trimmed } });
                    done[3] += 1;
                }
            }
            _ => {
                device.cut_power();
                let now = world.now();
                events.push(Event { process: me, begin: now, end: now, act: Act::PowerLoss });
                let survivals = [Survival::None, Survival::All, Survival::Prefix, Survival::Writes, Survival::Sectors];
                let image = device.image_after_power_cut(survivals[rng.usize(0..survivals.len())]);
                device = Arc::new(FaultyDevice::new(image, rng.u64(..)));
                let opened = open(&device);
                let mut store = world.store.lock();
                *store = (store.0 + 1, opened);
                drop(store);
                *world.desk.lock() = None;
                done[4] += 1;
            }
        }
    }
    (events, done)
}

fn open(device: &Arc<FaultyDevice>) -> Arc<dyn ObjectStore> {
    let options = EngineOptions { policy: CommitPolicy::Batch, ..EngineOptions::default() };
    Arc::new(Engine::open(Arc::clone(device) as Arc<dyn Device>, options).unwrap())
}

#[test]
fn a_history_of_writers_and_readers_among_failures_is_that_of_a_log() {
    let seconds = std::env::var("ESKER_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(3);
    let seed = std::env::var("ESKER_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    println!("ESKER_SEED={seed} ESKER_SECONDS={seconds} (threads are not the seed's choice)");
    let device = Arc::new(FaultyDevice::new(Image::blank(Shape::plain(DEVICE_BYTES)), seed));
    Engine::format(&*device, &FormatOptions { segment_bytes: 1 << 20, uuid: [3; 16] }).unwrap();
    let store = open(&device);
    let world = Arc::new(World {
        time: AtomicU64::new(1),
        payloads: AtomicU64::new(1),
        known: AtomicU64::new(0),
        stop: AtomicBool::new(false),
        store: Mutex::new((0, Arc::clone(&store))),
        paused: (0..=WRITERS + READERS).map(|_| AtomicBool::new(false)).collect(),
        desk: Mutex::new(None),
        nonces: AtomicU64::new(1),
    });
    let options = Options { width: 3, slots: 100, ..Options::default() };
    Logs::open(store, world.session(false)).unwrap().create("log", options).unwrap();
    Directions(Arc::clone(&world)).tail(0, 0).unwrap();
    let mut events = Vec::new();
    let mut done = [0; 5];
    std::thread::scope(|scope| {
        let world = &world;
        let mut all: Vec<_> = (0..WRITERS).map(|me| scope.spawn(move || write(world, me))).collect();
        all.extend((WRITERS..WRITERS + READERS).map(|me| scope.spawn(move || read(world, me))));
        let nemesis = scope.spawn(move || disturb(world, device, fastrand::Rng::with_seed(seed)));
        std::thread::sleep(Duration::from_secs(seconds));
        world.stop.store(true, Ordering::SeqCst);
        for thread in all {
            events.extend(thread.join().unwrap());
        }
        let (disturbed, counts) = nemesis.join().unwrap();
        events.extend(disturbed);
        done = counts;
    });
    let (_, log) = world.open(WRITERS + READERS, false);
    let log = log.unwrap();
    let tail = log.tail().unwrap().position;
    for position in log.refresh().unwrap().trimmed..tail + 1 {
        let begin = world.now();
        let seen = seen(&log.read(position).unwrap().wait().unwrap());
        events.push(Event { process: 99, begin, end: world.now(), act: Act::Read { position, seen, keeps: false } });
    }
    let appended = |event: &&Event| matches!(event.act, Act::Append { result: Appended::At(_), .. });
    let acknowledged = events.iter().filter(appended).count();
    let unknown = events.iter().filter(|event| event.end == u64::MAX).count();
    let [sequencers, pauses, shapes, trims, kills] = done;
    println!(
        "{} events, {acknowledged} appends acknowledged, {unknown} without an answer; {sequencers} sequencers lost, {pauses} pauses, {shapes} changes of shape, {trims} trims, {kills} kills of the store; tail {tail}",
        events.len(),
    );
    check(&events).unwrap();
    assert_eq!(log.check(true, |_, _| true).unwrap().problems, Vec::<String>::new());
    assert!(acknowledged > 100, "{acknowledged} appends in {seconds} s");
}
