//! A store that is filled and emptied through its faces, while the device or the file system under it is full.
//!
//! keys, disks and a log → written until it is refused → taken away, written, crash at any write → opened, equal to
//! what was answered? → … → everything taken away through the same faces → writes again
//!
//! Checked in every run:
//! - What gives back (a removed key, a discard, a lock that one needs, a trim, a removed snapshot, image, log or
//!   namespace) is never refused with `Full` for good.
//! - Opening works, however full the device and the file system are.
//! - `acknowledged_writes_survive`, place by place; what was refused with `Full` has changed nothing.
//! - Writes resume after deletes; and, where the file system has more room again, without them.
//! - The deep check finds nothing.
//!
//! In most runs the engine's threads run, in all with a full file system: then the seed gives the operations, not the
//! schedule. File systems only ever get more room here: what another user of the file system takes of what is kept back
//! cannot be promised (decision 0016).
//!
//! Invariant: [`known::Known`] is told of a change before the store is.

mod known;
mod steps;

use std::sync::Arc;
use std::time::{Duration, Instant};

use esker_device::Device;
use esker_engine::{Engine, FormatOptions};
use esker_kv::{Kind as KeyKind, Kv, ManualClock, Namespace};
use esker_log::{Log, Logs, Session};
use esker_store::{Error as StoreError, ObjectStore};
use esker_volume::{Image as Disk, Volumes};

use crate::fault::{Faults, FaultyDevice, Image, Shape, Survival};
use crate::kind::{self, SEGMENT_BYTES};
use crate::outcome::{Outcome, maintain};
use crate::threaded::{self, Ended, bounded, undamaged};
use known::Known;

/// What gives back and is refused for so long is refused for good.
const REFUSED_FOR_GOOD: Duration = Duration::from_secs(12);
/// So often without threads, each time after maintenance.
const TRIES: u32 = 6;
/// The write that an emptied store must take.
const ONE_WRITE_BYTES: u64 = 6_000;
/// Names of the disks.
const DISKS: [&str; 2] = ["disk0", "disk1"];
const LOG: &str = "log";
/// Names of the namespaces, of byte keys and of integers.
const SPACES: [(&str, KeyKind); 2] = [("keys", KeyKind::Bytes), ("numbers", KeyKind::Int)];

/// Why a face did not do it.
#[derive(Debug)]
enum Fail {
    Store(StoreError),
    /// It is not there.
    Missing,
    Other(String),
}

impl From<StoreError> for Fail {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl From<esker_kv::Error> for Fail {
    fn from(error: esker_kv::Error) -> Self {
        match error {
            esker_kv::Error::Store(error) => Self::Store(error),
            esker_kv::Error::NoNamespace { .. } => Self::Missing,
            other => Self::Other(other.to_string()),
        }
    }
}

impl From<esker_volume::Error> for Fail {
    fn from(error: esker_volume::Error) -> Self {
        match error {
            esker_volume::Error::Store(error) => Self::Store(error),
            esker_volume::Error::NoImage { .. } | esker_volume::Error::NoSnapshot { .. } => Self::Missing,
            other => Self::Other(other.to_string()),
        }
    }
}

impl From<esker_log::Error> for Fail {
    fn from(error: esker_log::Error) -> Self {
        match error {
            esker_log::Error::Store(error) => Self::Store(error),
            esker_log::Error::Uncertain { cause, .. } => Self::Store(cause),
            esker_log::Error::NoLog { .. } => Self::Missing,
            other => Self::Other(other.to_string()),
        }
    }
}

impl std::fmt::Display for Fail {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Store(error) => error.fmt(f),
            Self::Missing => f.write_str("it is not there"),
            Self::Other(why) => f.write_str(why),
        }
    }
}

/// How a step ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Done,
    Full,
    /// The store has stopped, because the device failed.
    Stopped,
}

/// The store of one life, and its faces as far as they are there.
struct Open {
    engine: Arc<Engine>,
    device: Arc<FaultyDevice>,
    kv: Kv,
    spaces: [Option<Namespace>; 2],
    volumes: Volumes,
    disks: [Option<Disk>; 2],
    logs: Logs,
    log: Option<Log>,
}

struct Filled {
    rng: fastrand::Rng,
    /// The engine's threads run.
    threads: bool,
    known: Known,
    number: u32,
    nonce: u64,
    outcome: Outcome,
    told: Vec<String>,
}

/// Runs one seed.
///
/// # Errors
/// The promise that was broken.
pub(crate) fn run(seed: u64) -> Result<Outcome, String> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let thin = rng.bool();
    let segments = rng.u64(34..52);
    let shape = Shape {
        space_bytes: thin.then(|| segments * SEGMENT_BYTES),
        ..Shape::plain(if thin { segments * 2 } else { segments } * SEGMENT_BYTES)
    };
    let blank = FaultyDevice::new(Image::blank(shape), rng.u64(..));
    let format = FormatOptions { segment_bytes: SEGMENT_BYTES, uuid: [seed as u8; 16] };
    Engine::format(&blank, &format).map_err(|error| format!("formatting: {error}"))?;
    let mut image = blank.image_after_power_cut(Survival::None);
    // Without its thread the engine does not look in time which blocks the file system still has.
    let threads = thin || rng.u8(0..3) == 0;
    let mut run = Filled {
        rng,
        threads,
        known: Known::default(),
        number: 0,
        nonce: 0,
        outcome: Outcome::default(),
        told: Vec::new(),
    };
    for life in 0..run.rng.u64(1..=3) {
        image = run.life(image).map_err(|broken| run.in_words(&format!("life {life}: {broken}")))?;
    }
    run.end(image).map_err(|broken| run.in_words(&format!("at the end: {broken}")))?;
    if run.threads {
        run.outcome.trace = 0;
    }
    Ok(run.outcome)
}

impl Filled {
    fn in_words(&self, broken: &str) -> String {
        let last = self.told.len().saturating_sub(16);
        let threads = if self.threads { "with" } else { "without" };
        format!("{threads} threads: {broken}\n  before that: {}", self.told[last..].join("; "))
    }

    fn open(&mut self, device: Arc<FaultyDevice>) -> Result<Open, String> {
        let options = if self.threads { threaded::options(&mut self.rng) } else { kind::options(&mut self.rng) };
        // What was answered is durable: the faces ask for that.
        let policy = if options.policy.acknowledges_applied() { Default::default() } else { options.policy };
        let options = esker_engine::Options { policy, ..options };
        let engine = if self.threads {
            threaded::open(&device, options, "a full store")?
        } else {
            let opened = Engine::open(Arc::clone(&device) as Arc<dyn Device>, options);
            opened.map_err(|error| format!("opening a full store failed: {error}"))?
        };
        let engine = Arc::new(engine);
        let store = Arc::clone(&engine) as Arc<dyn ObjectStore>;
        self.nonce += 1;
        let words = |what: &str, error: Fail| format!("opening {what}: {error}");
        let kv = Kv::open(Arc::clone(&store), Arc::new(ManualClock::new(1_000)));
        let kv = kv.map_err(|error| words("keys", error.into()))?;
        let volumes = Volumes::open(Arc::clone(&store)).map_err(|error| words("disks", error.into()))?;
        let logs = Logs::open(store, Session::new(Arc::new(|| 1_000), self.nonce));
        let logs = logs.map_err(|error| words("logs", error.into()))?;
        let mut open = Open { engine, device, kv, spaces: [None, None], volumes, disks: [None, None], logs, log: None };
        self.compared(&mut open).map_err(|broken| format!("acknowledged_writes_survive: {broken}"))?;
        Ok(open)
    }

    fn life(&mut self, image: Image) -> Result<Image, String> {
        let device = Arc::new(FaultyDevice::new(image, self.rng.u64(..)));
        if self.rng.u8(0..8) == 0 {
            undamaged(&device, "before opening")?;
        }
        self.told.push(format!("opened with {} bytes taken of {:?}", device.used_bytes(), device.shape().space_bytes));
        let mut open = self.open(Arc::clone(&device))?;
        let power_cut_at = (self.rng.u8(0..6) > 0).then(|| self.rng.u64(1..900));
        device.set_faults(Faults { power_cut_at, ..Faults::default() });
        self.lives(&mut open)?;
        self.outcome.crashes += u64::from(device.power_is_off());
        let survival = threaded::survival(&mut self.rng);
        if !device.power_is_off() && self.rng.bool() {
            // A clean stop; should it fail for want of room, it is none.
            self.ends(open)?;
            return Ok(device.image_after_power_cut(survival));
        }
        device.cut_power();
        let image = device.image_after_power_cut(survival);
        self.ends(open)?;
        Ok(image)
    }

    /// Closes the store.
    fn ends(&mut self, open: Open) -> Result<(), String> {
        let Open { engine, device, .. } = open;
        let closing = move || engine.close();
        let closed = if self.threads {
            match bounded("closing", closing)? {
                Ended::Returned(closed) => closed,
                Ended::Panicked => return Err("closing panicked".into()),
            }
        } else {
            closing()
        };
        self.outcome.trace = self.outcome.trace.rotate_left(7) ^ device.counts().trace;
        match closed {
            Err(error) if !device.has_failed() => Err(format!("closing: {error}")),
            _ => Ok(()),
        }
    }

    /// Fills the store until it refuses; then does this and that, and is now and then given more room.
    fn lives(&mut self, open: &mut Open) -> Result<(), String> {
        let mut refused = 0;
        for _ in 0..self.rng.u32(100..900) {
            match self.adds(open)? {
                Answer::Done => {}
                Answer::Full => refused += 1,
                Answer::Stopped => return Ok(()),
            }
            if refused > 3 {
                break;
            }
        }
        for _ in 0..self.rng.u32(5..120) {
            let answer = if self.rng.u8(0..5) < 3 { self.adds(open)? } else { self.gives_back(open)? };
            if answer == Answer::Stopped {
                return Ok(());
            }
            if let Some(space) = open.device.shape().space_bytes
                && self.rng.u8(0..60) == 0
            {
                open.device.set_space(Some(space + SEGMENT_BYTES * self.rng.u64(1..4)));
                self.told.push("the file system has more room".into());
            }
        }
        // The device is asked for blocks once a second: few runs wait for that.
        if self.threads && self.rng.u8(0..40) == 0 && open.device.shape().space_bytes.is_some() {
            return self.room_is_found(open);
        }
        Ok(())
    }

    /// A store that has filled its file system takes writes again when that has more room.
    fn room_is_found(&mut self, open: &mut Open) -> Result<(), String> {
        for _ in 0..400 {
            match self.adds(open)? {
                Answer::Done => {}
                Answer::Full => break,
                Answer::Stopped => return Ok(()),
            }
        }
        let space = open.device.shape().space_bytes.unwrap_or(0);
        open.device.set_space(Some(space + 16 * SEGMENT_BYTES));
        let began = Instant::now();
        loop {
            match self.writes_one(open)? {
                Answer::Full if began.elapsed() < REFUSED_FOR_GOOD => std::thread::sleep(Duration::from_millis(5)),
                Answer::Full => return Err(self.stuck(open, "room of the file system is not found")),
                _ => return Ok(()),
            }
        }
    }

    fn stuck(&self, open: &Open, what: &str) -> String {
        let stats = open.engine.stats();
        let shape = open.device.shape();
        format!(
            "full_device_recovers: {what}; {} of {} segments free, {} bare, {} bytes live, gate {}, {} bytes taken of {:?}",
            stats.free_segments,
            stats.segments,
            stats.bare_segments,
            stats.live_bytes,
            stats.gate,
            open.device.used_bytes(),
            shape.space_bytes
        )
    }

    /// Between two tries of what gives back: threads clean by themselves.
    fn helps(&mut self, open: &Open) {
        if self.threads {
            std::thread::sleep(Duration::from_millis(1));
            return;
        }
        for _ in 0..2 * open.engine.stats().segments {
            // Where it cannot, the next try says why.
            let done = maintain(&open.engine, &mut self.rng);
            self.outcome.maintained += u64::from(done.unwrap_or(false));
        }
        let _ = open.engine.sync().wait();
    }

    /// Everything is taken away through the faces, and then there is room.
    fn end(&mut self, image: Image) -> Result<(), String> {
        let device = Arc::new(FaultyDevice::new(image, self.rng.u64(..)));
        let mut open = self.open(Arc::clone(&device))?;
        self.empties(&mut open)?;
        let room = device.shape().space_bytes.unwrap_or(device.shape().len).min(device.shape().len);
        let mut bytes = 0;
        let mut tries = 0;
        let mut began = Instant::now();
        while bytes < room / 4 {
            match self.writes_one(&mut open)? {
                Answer::Done => {
                    bytes += ONE_WRITE_BYTES;
                    (tries, began) = (0, Instant::now());
                }
                Answer::Stopped => return Err("an undisturbed store has stopped".into()),
                Answer::Full => {
                    tries += 1;
                    if if self.threads { began.elapsed() > REFUSED_FOR_GOOD } else { tries > TRIES } {
                        return Err(self.stuck(&open, &format!("emptied, it takes {bytes} bytes, then no more")));
                    }
                    self.helps(&open);
                }
            }
        }
        self.compared(&mut open)?;
        self.ends(open)?;
        undamaged(&device, "at the end")
    }
}
