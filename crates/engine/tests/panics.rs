//! A panic in any thread of the store: all callers that wait are told, nothing hangs, and what was acknowledged is
//! there when the store is opened again.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "support/hooked.rs"]
mod hooked;

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Wake, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use esker_device::{Device, MemoryDevice};
use esker_engine::{CommitPolicy, Engine, FormatOptions, Options};
use esker_store::{Change, Collection, Durability, Error, ObjectId, ObjectStore, Transaction};
use hooked::{Call, Hooked};

const SEGMENT_BYTES: u64 = 64 << 10;
const WRITERS: u64 = 3;
const KEYS: u64 = 500;
const WRITES: u64 = 2_000;
/// Long enough for any machine; what hangs, hangs for ever.
const HANGS: Duration = Duration::from_secs(120);
const INJECTED: &str = "injected";

fn object(writer: u64) -> ObjectId {
    ObjectId::new(Collection::from("c"), writer.to_string())
}

fn value(key: u64, round: u64) -> Bytes {
    Bytes::from(format!("{round} {key} ").repeat(80))
}

fn formatted(device: &MemoryDevice) {
    Engine::format(device, &FormatOptions { segment_bytes: SEGMENT_BYTES, uuid: [4; 16] }).unwrap();
}

/// Panics that are meant are not printed.
fn quietly() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if panic.payload_as_str() != Some(INJECTED) {
            before(panic);
        }
    }));
}

/// The last round of each key that a writer was told to be durable, and how it ended.
type Ended = (u64, Vec<u64>, Result<(), Error>);

fn write(engine: &Engine, writer: u64) -> Ended {
    let mut rounds = vec![0; KEYS as usize];
    for round in 1..=WRITES {
        let key = round * 7 % KEYS;
        let set = Change::SlotSet { index: key, value: value(key, round) };
        let written = engine.submit(Transaction::new().change(&object(writer), set)).wait();
        if let Err(error) = written {
            return (writer, rounds, Err(error));
        }
        rounds[key as usize] = round;
    }
    (writer, rounds, Ok(()))
}

/// One life in which the thread of this name (without one: any other) panics at its call number `at` of the device. How
/// many writers were told.
fn life(thread: &'static str, at: u64) -> u64 {
    let device = MemoryDevice::new(80 * SEGMENT_BYTES);
    formatted(&device);
    let calls = Arc::new(AtomicU64::new(0));
    let armed = Arc::new(AtomicBool::new(false));
    let (counted, is_armed) = (Arc::clone(&calls), Arc::clone(&armed));
    let before = move |call| {
        let name = std::thread::current().name().unwrap_or_default().to_owned();
        let is_meant = if thread.is_empty() {
            name.starts_with("writer") && !matches!(call, Call::Read(_))
        } else {
            name == thread
        };
        if is_meant && is_armed.load(Ordering::Relaxed) && counted.fetch_add(1, Ordering::Relaxed) == at {
            panic!("{INJECTED}");
        }
        Ok(())
    };
    let hooked = Arc::new(Hooked { device, before });
    let options = Options { recent_bytes: 0, cache_bytes: 0, scrub_bytes_per_s: 0, ..Options::default() };
    let engine = Arc::new(Engine::open(Arc::clone(&hooked) as Arc<dyn Device>, options).unwrap());
    engine.submit(Transaction::new().create_collection(&Collection::from("c"))).wait().unwrap();
    armed.store(true, Ordering::Relaxed);
    let (tell, ended) = mpsc::channel();
    for writer in 0..WRITERS {
        let (engine, tell) = (Arc::clone(&engine), tell.clone());
        let run = move || tell.send(write(&engine, writer)).unwrap();
        std::thread::Builder::new().name(format!("writer {writer}")).spawn(run).unwrap();
    }
    let ended: Vec<Ended> = (0..WRITERS)
        .map(|_| ended.recv_timeout(HANGS).unwrap_or_else(|_| panic!("{thread:?} {at}: a writer hangs")))
        .collect();
    let (tell, closed) = mpsc::channel();
    let closing = Arc::clone(&engine);
    std::thread::spawn(move || tell.send(closing.close()).unwrap());
    let closed = closed.recv_timeout(HANGS).unwrap_or_else(|_| panic!("{thread:?} {at}: closing hangs"));
    let mut told = 0;
    for (writer, _, outcome) in &ended {
        if let Err(error) = outcome {
            let Error::Stopped { cause } = error else { panic!("{thread:?} {at}: writer {writer}: {error}") };
            assert!(cause.contains("panicked") && cause.contains(INJECTED), "{thread:?} {at}: {cause}");
            assert!(closed.is_err(), "{thread:?} {at}: closed well");
            told += 1;
        }
    }
    drop(engine);
    let options = Options { commit_thread: false, ..Options::default() };
    let engine = Engine::open(Arc::new(hooked.device.snapshot()) as Arc<dyn Device>, options).unwrap();
    for (writer, rounds, _) in ended {
        for (key, round) in (0..).zip(rounds).filter(|(_, round)| *round > 0) {
            let found = engine.slot_get(&object(writer), key).wait().unwrap().unwrap();
            // A later one may have been written, and not been acknowledged.
            let later = (round..=WRITES).any(|round| found == value(key, round));
            assert!(later, "{thread:?} {at}: writer {writer}, key {key} of round {round}");
        }
    }
    told
}

#[test]
fn a_panic_in_any_thread_is_told_to_everybody_and_costs_nothing_acknowledged() {
    quietly();
    for thread in ["esker-commit", "esker-prepare", "esker-clean", "esker-move", ""] {
        let told: u64 = [0, 1, 2, 5, 12].into_iter().map(|at| life(thread, at)).sum();
        assert!(told > 0, "no panic of {thread:?} was told to a caller");
    }
}

struct Panics;

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        panic!("{INJECTED}");
    }
}

/// Is told that it was woken.
struct Woken(mpsc::Sender<()>);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.send(()).unwrap();
    }
}

/// Others who wait are woken although a waker panics, and the store says why it has stopped.
#[test]
fn a_waker_that_panics_keeps_nobody_waiting() {
    quietly();
    let device = MemoryDevice::new(80 * SEGMENT_BYTES);
    formatted(&device);
    // Syncs wait for the end of the window: by then both tasks wait.
    let policy = CommitPolicy::Group { window: Duration::from_secs(1) };
    let engine = Engine::open(Arc::new(device) as Arc<dyn Device>, Options { policy, ..Options::default() }).unwrap();
    engine.submit(Transaction::new().create_collection(&Collection::from("c"))).wait().unwrap();
    let (tell, woken) = mpsc::channel();
    let wakers = [Waker::from(Arc::new(Panics)), Waker::from(Arc::new(Woken(tell)))];
    let mut waiting = wakers.map(|waker| {
        let set = Change::SlotSet { index: 1, value: value(1, 1) };
        let mut written = engine.submit(Transaction::new().change(&object(0), set));
        let polled = Pin::new(&mut written).poll(&mut Context::from_waker(&waker));
        assert!(polled.is_pending(), "it was durable at once");
        written
    });
    woken.recv_timeout(HANGS).expect("a task is not woken");
    // What was synced before the panic is durable.
    for written in &mut waiting {
        assert!(Pin::new(written).poll(&mut Context::from_waker(Waker::noop())).is_ready());
    }
    let outcome = write(&engine, 1).2;
    assert!(matches!(&outcome, Err(Error::Stopped { cause }) if cause.contains(INJECTED)), "{outcome:?}");
}

/// Failure: of ten keys that had been answered half a second before, a kill lost six, at a policy of 50 ms. Cause: the
/// commit thread slept for another time while nothing was pending. Fix: it never sleeps for longer than the policy
/// says.
#[test]
fn what_is_not_waited_for_is_durable_after_the_interval_of_the_policy() {
    let device = MemoryDevice::new(80 * SEGMENT_BYTES);
    formatted(&device);
    let policy = CommitPolicy::Periodic { interval: Duration::from_millis(50) };
    let hour = Duration::from_secs(3600);
    let options = Options { policy, async_flush: hour, ..Options::default() };
    let engine = Engine::open(Arc::new(device) as Arc<dyn Device>, options).unwrap();
    engine.submit(Transaction::new().create_collection(&Collection::from("c"))).wait().unwrap();
    let mut shortest = HANGS;
    for round in 0..10 {
        // Idle by now.
        std::thread::sleep(Duration::from_millis(120));
        let set = Change::SlotSet { index: round, value: value(round, 1) };
        let (began, syncs) = (Instant::now(), engine.stats().syncs);
        let written = engine.submit(Transaction::with(Durability::Applied).change(&object(0), set));
        written.wait().unwrap();
        while engine.stats().syncs == syncs {
            assert!(began.elapsed() < HANGS, "round {round}: nothing makes it durable");
            std::thread::sleep(Duration::from_millis(5));
        }
        shortest = shortest.min(began.elapsed());
    }
    // However busy the machine is, it is not for so long each time.
    assert!(shortest < Duration::from_millis(500), "{shortest:?}");
}
