//! A panic at any call of the device, in any thread that makes one: while the store is opened, works, or is closed.
//!
//! clients → the call that the seed says panics → each client is answered → the store says why it has stopped →
//! reopened from what the process had written, or what a power cut leaves of that
//!
//! Checked in every run, beside what [`client`](super::client) checks:
//! - No thread waits for ever: clients, the call after the panic, closing and dropping end in bounded time.
//! - After a panic in a thread that writing needs, every later write says `Stopped`, with what the panic said. A sync
//!   says so too, or what it says is true: that everything is durable.
//! - A panic in a call that a client makes itself ends that client; the others go on, or are told why not.
//! - No client is told of a failure of the store before the panic.
//! - `acknowledged_writes_survive`, on the device as a killed process leaves it and as a power cut does.
//!
//! The seed gives the operations and the number of the call, not the schedule: see [`super`].

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Once};
use std::time::{Duration, Instant};

use esker_device::{Device, Geometry};
use esker_engine::{Engine, Options};
use esker_store::{Collection, Error, ObjectId, ObjectStore, Transaction};
use parking_lot::Mutex;

use super::client::{Client, Excuse, Manner};
use super::clones::all_live;
use super::{Ended, INJECTED, bounded, close, formatted, open, options, survival, undamaged};
use crate::fault::{FaultyDevice, Image};
use crate::outcome::Outcome;

/// The threads without which the store cannot write.
const NEEDED: [&str; 4] = ["esker-commit", "esker-prepare", "esker-clean", "esker-move"];
/// A store that has not stopped for so long after a panic of a thread that it needs does not stop.
const STOPS: Duration = Duration::from_secs(10);

/// Whose call panics.
#[derive(Clone, Copy, Debug)]
enum Whose {
    /// Any thread's.
    Any,
    /// The thread of this name.
    Thread(&'static str),
    /// A client's, if it changes the device.
    Client,
}

/// A device one of whose calls panics.
struct Panicking {
    device: Arc<FaultyDevice>,
    whose: Whose,
    /// Calls that are let through first.
    spared: AtomicU64,
    armed: AtomicBool,
    /// Whose call it was, and which.
    fired: Mutex<Option<(String, &'static str)>>,
}

impl Panicking {
    /// Before each call.
    fn before(&self, call: &'static str) {
        if !self.armed.load(Ordering::Acquire) {
            return;
        }
        let thread = std::thread::current();
        let name = thread.name().unwrap_or_default();
        let meant = match self.whose {
            Whose::Any => true,
            Whose::Thread(meant) => name == meant,
            Whose::Client => name.starts_with("client") && call != "read",
        };
        let spend = |left: u64| left.checked_sub(1);
        if meant && self.spared.fetch_update(Ordering::AcqRel, Ordering::Acquire, spend).is_err() {
            let mut fired = self.fired.lock();
            if fired.is_some() {
                return;
            }
            *fired = Some((name.to_owned(), call));
            panic!("{INJECTED}");
        }
    }

    /// What broke, and after which panic.
    fn blamed(&self, broken: String) -> String {
        match &*self.fired.lock() {
            Some((thread, call)) => format!("after a panic of {thread:?} in its {call}: {broken}"),
            None => broken,
        }
    }

    fn has_fired(&self) -> bool {
        self.fired.lock().is_some()
    }
}

impl Device for Panicking {
    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }
    fn read(&self, offset: u64, buffer: &mut [u8]) -> esker_device::Result<()> {
        self.before("read");
        self.device.read(offset, buffer)
    }
    fn write(&self, offset: u64, data: &[u8]) -> esker_device::Result<()> {
        self.before("write");
        self.device.write(offset, data)
    }
    fn sync(&self) -> esker_device::Result<()> {
        self.before("sync");
        self.device.sync()
    }
    fn reserve(&self, offset: u64, len: u64) -> esker_device::Result<()> {
        self.before("reserve");
        self.device.reserve(offset, len)
    }
    fn prefill(&self, offset: u64, len: u64) -> esker_device::Result<()> {
        self.before("prefill");
        self.device.prefill(offset, len)
    }
    fn discard(&self, offset: u64, len: u64) -> esker_device::Result<()> {
        self.before("discard");
        self.device.discard(offset, len)
    }
    fn name(&self) -> String {
        self.device.name()
    }
}

/// Panics that are meant are not printed.
fn quietly() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if panic.payload_as_str() != Some(INJECTED) {
                before(panic);
            }
        }));
    });
}

/// Runs one seed.
///
/// # Errors
/// The promise that was broken.
pub(crate) fn run(seed: u64) -> Result<Outcome, String> {
    quietly();
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut image = formatted(rng.u64(40..72), seed)?;
    let mut clients: Vec<Client> = (0..rng.u64(1..=3)).map(|number| Client::new(number, &mut rng)).collect();
    let mut outcome = Outcome::default();
    let mut told = Vec::new();
    for life in 0..rng.u64(1..=3) {
        let lived = one_life(&mut rng, image, clients, &mut outcome, &mut told);
        (image, clients) = lived.map_err(|broken| format!("life {life}: {broken}\n  panics: {}", told.join("; ")))?;
    }
    ends_well(&mut rng, image, clients, &mut outcome)
        .map_err(|broken| format!("at the end: {broken}\n  panics: {}", told.join("; ")))?;
    Ok(outcome)
}

/// The store is opened, holds what it must, and is closed; without panics.
fn ends_well(
    rng: &mut fastrand::Rng,
    image: Image,
    mut clients: Vec<Client>,
    outcome: &mut Outcome,
) -> Result<(), String> {
    let device = Arc::new(FaultyDevice::new(image, rng.u64(..)));
    let engine = Arc::new(open(&device, options(rng), "without panics")?);
    for client in &mut clients {
        client.recovered(&engine)?;
        outcome.transactions += client.transactions;
        outcome.full += client.full;
        outcome.taken_back += client.taken_back;
    }
    close(engine)?.map_err(|error| format!("closing: {error}"))?;
    undamaged(&device, "after it was closed")
}

/// A panic of a device, as errors tell of it.
fn tells(error: &Error) -> bool {
    matches!(error, Error::Stopped { cause } if cause.contains(INJECTED))
}

fn one_life(
    rng: &mut fastrand::Rng,
    image: Image,
    mut clients: Vec<Client>,
    outcome: &mut Outcome,
    told: &mut Vec<String>,
) -> Result<(Image, Vec<Client>), String> {
    let device = Arc::new(FaultyDevice::new(image, rng.u64(..)));
    let (whose, most) = match rng.u8(0..8) {
        0..3 => (Whose::Any, 600),
        3..7 => (Whose::Thread(NEEDED[rng.usize(..NEEDED.len())]), 60),
        _ => (Whose::Client, 8),
    };
    let spared = AtomicU64::new(if rng.bool() { rng.u64(..most) } else { rng.u64(..most / 8) });
    // One life in four panics while the store is opened, if it comes to that.
    let early = rng.u8(0..4) == 0;
    let fired = Mutex::new(None);
    let panicking =
        Arc::new(Panicking { device: Arc::clone(&device), whose, spared, armed: AtomicBool::new(early), fired });
    let options = Options { slow_io: Duration::from_secs(3_600), ..options(rng) };
    let acknowledges_applied = options.policy.acknowledges_applied();
    let opening = Arc::clone(&panicking) as Arc<dyn Device>;
    let engine = match bounded("opening", move || Engine::open(opening, options))? {
        Ended::Returned(Ok(engine)) => Arc::new(engine),
        Ended::Returned(Err(error)) if tells(&error) => {
            told.push(panicking.blamed("opening said so".into()));
            return Ok((left(rng, &device), clients));
        }
        Ended::Panicked if panicking.has_fired() => {
            told.push(panicking.blamed("opening panicked".into()));
            return Ok((left(rng, &device), clients));
        }
        Ended::Returned(Err(error)) => return Err(format!("opening failed: {error}")),
        Ended::Panicked => return Err("opening panicked".into()),
    };
    // Looking is not to panic: what there is has to be known. A store that has stopped shows it all the same.
    panicking.armed.store(false, Ordering::Release);
    for client in &mut clients {
        client.recovered(&engine).map_err(|broken| panicking.blamed(broken))?;
    }
    if panicking.has_fired() {
        return the_store_ends(rng, engine, &panicking, clients, outcome, told);
    }
    panicking.armed.store(true, Ordering::Release);
    let excuse: Excuse = {
        let panicking = Arc::clone(&panicking);
        Arc::new(move |error| panicking.has_fired() && tells(error))
    };
    let snapshots = rng.u8(0..3) == 0;
    let manner = Manner { steps: rng.usize(40..300), level: 60, snapshots, excuse, acknowledges_applied };
    let clients = all_live(&engine, clients, &manner).map_err(|broken| panicking.blamed(broken))?;
    outcome.crashes += u64::from(panicking.has_fired());
    the_store_ends(rng, engine, &panicking, clients, outcome, told)
}

/// What the process leaves behind when it ends now.
fn left(rng: &mut fastrand::Rng, device: &FaultyDevice) -> Image {
    if rng.bool() { device.image() } else { device.image_after_power_cut(survival(rng)) }
}

/// The store says that it has stopped, if it must; is closed, and leaves the device.
fn the_store_ends(
    rng: &mut fastrand::Rng,
    engine: Arc<Engine>,
    panicking: &Panicking,
    mut clients: Vec<Client>,
    outcome: &mut Outcome,
    told: &mut Vec<String>,
) -> Result<(Image, Vec<Client>), String> {
    let fired = panicking.fired.lock().clone();
    if let Some((thread, _)) = fired {
        let needed = NEEDED.contains(&thread.as_str());
        let asked = Arc::clone(&engine);
        let synced = match bounded("a call after a panic", move || has_stopped(&asked, needed)) {
            Ok(Ended::Returned(stopped)) => stopped,
            Ok(Ended::Panicked) => Err("a later call panicked".into()),
            Err(hangs) => Err(hangs),
        };
        let synced = synced.map_err(|broken| panicking.blamed(broken))?;
        told.push(panicking.blamed(format!("a sync said {synced}")));
        if synced {
            clients.iter_mut().for_each(Client::is_owed_everything);
        }
        outcome.refused += u64::from(needed);
    }
    // Before it is closed, or after.
    let before = rng.bool().then(|| left(rng, &panicking.device));
    match close(engine).map_err(|broken| panicking.blamed(broken))? {
        Err(error) if !(panicking.has_fired() && tells(&error)) => {
            return Err(panicking.blamed(format!("closing: {error}")));
        }
        _ => {}
    }
    let image = before.unwrap_or_else(|| left(rng, &panicking.device));
    Ok((image, clients))
}

/// Later calls are answered; by a store that must have stopped with the reason. Whether a sync says that everything is
/// durable.
fn has_stopped(engine: &Engine, must: bool) -> Result<bool, String> {
    let began = Instant::now();
    let late = ObjectId::new(Collection::from("late"), "late");
    loop {
        let txn = Transaction::new().create_collection(late.collection());
        let outcome = engine.submit(txn).wait();
        match outcome {
            Err(error) if tells(&error) => break,
            Ok(_) | Err(Error::Full { .. }) if !must => break,
            // Its thread may not have come so far.
            Ok(_) | Err(Error::Full { .. }) if began.elapsed() < STOPS => {
                std::thread::sleep(Duration::from_millis(1));
            }
            other => return Err(format!("a later call: {other:?}")),
        }
    }
    let synced = match engine.sync().wait() {
        Err(error) if tells(&error) => false,
        Ok(_) => true,
        other => return Err(format!("a later sync: {other:?}")),
    };
    // Reads still work, or say why not.
    match engine.stat(&late).wait() {
        Err(error) if !tells(&error) => Err(format!("a later read: {error}")),
        _ => Ok(synced),
    }
}
