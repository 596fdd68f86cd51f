//! Runs in which all threads of the engine work: commit, preparer, cleaner, mover, scrubber, watch.
//!
//! seed → device, options, clients ([`client`]) with their operations → crash, panic or clean stop → reopened → each
//! client's objects are what a prefix of its transactions leaves ([`world`])
//!
//! The seed says what the clients do and which of its calls the device fails; which thread comes when is the machine's
//! to say. A failure may not come again with the same seed: repeat it a few times. The trace of such runs is 0.
//!
//! Invariant: nothing is waited for without a bound: what takes longer than [`HANGS`] hangs, and is a violation.

mod client;
pub(crate) mod clones;
pub(crate) mod panics;
mod world;

use std::sync::{Arc, mpsc};
use std::time::Duration;

use esker_device::Device;
use esker_engine::{CommitPolicy, Engine, FormatOptions, Options, check};
use esker_store::Error;

use crate::fault::{FaultyDevice, Image, Shape, Survival};
use crate::kind::SEGMENT_BYTES;

/// Long enough for any machine; what hangs, hangs for ever.
pub(crate) const HANGS: Duration = Duration::from_secs(25);

/// What an injected panic says.
const INJECTED: &str = "a panic that the simulator has injected";

/// What a call in a thread of its own comes to.
pub(crate) enum Ended<T> {
    /// It has returned.
    Returned(T),
    /// It has panicked.
    Panicked,
}

/// Runs `call` in a thread of its own and waits for it, for [`HANGS`] at most.
///
/// # Errors
/// It hangs; the thread is left alone then.
pub(crate) fn bounded<T: Send + 'static>(
    what: &str,
    call: impl FnOnce() -> T + Send + 'static,
) -> Result<Ended<T>, String> {
    begin(what, call)?.end(what)
}

/// A call that has begun in a thread of its own.
pub(crate) struct Begun<T>(mpsc::Receiver<T>);

/// Begins `call` in a thread of this name.
///
/// # Errors
/// The thread cannot be started.
pub(crate) fn begin<T: Send + 'static>(
    name: &str,
    call: impl FnOnce() -> T + Send + 'static,
) -> Result<Begun<T>, String> {
    let (tell, told) = mpsc::sync_channel(1);
    let run = move || {
        // After a hang no thread listens any more.
        let _ = tell.send(call());
    };
    let started = std::thread::Builder::new().name(name.into()).spawn(run);
    started.map(|_| Begun(told)).map_err(|error| format!("{name}: no thread: {error}"))
}

impl<T> Begun<T> {
    /// Waits for its end.
    ///
    /// # Errors
    /// It hangs.
    pub(crate) fn end(self, what: &str) -> Result<Ended<T>, String> {
        match self.0.recv_timeout(HANGS) {
            Ok(value) => Ok(Ended::Returned(value)),
            Err(mpsc::RecvTimeoutError::Disconnected) => Ok(Ended::Panicked),
            Err(mpsc::RecvTimeoutError::Timeout) => Err(format!("{what} hangs: no answer in {HANGS:?}")),
        }
    }
}

/// A store on a device of so many segments, formatted.
fn formatted(segments: u64, seed: u64) -> Result<Image, String> {
    let blank = FaultyDevice::new(Image::blank(Shape::plain(segments * SEGMENT_BYTES)), seed);
    let format = FormatOptions { segment_bytes: SEGMENT_BYTES, uuid: [seed as u8; 16] };
    Engine::format(&blank, &format).map_err(|error| format!("formatting: {error}"))?;
    Ok(blank.image_after_power_cut(Survival::None))
}

/// Random options of an engine with threads.
pub(crate) fn options(rng: &mut fastrand::Rng) -> Options {
    let policy = match rng.u8(0..6) {
        0 => CommitPolicy::Periodic { interval: Duration::from_millis(rng.u64(1..20)) },
        1 => CommitPolicy::Group { window: Duration::from_micros(rng.u64(20..400)) },
        2..4 => CommitPolicy::Batch,
        _ => CommitPolicy::Adaptive,
    };
    let scrubs = rng.u8(0..3) == 0;
    Options {
        policy,
        recent_bytes: if rng.bool() { 0 } else { 1 << 20 },
        cache_bytes: if rng.bool() { 0 } else { 1 << 20 },
        index_bytes: rng.choice([0, u64::MAX]).unwrap_or(0),
        async_flush: Duration::from_millis(rng.u64(1..100)),
        pending_bytes_max: rng.choice([32 << 10, 4 * SEGMENT_BYTES, 16 << 20]).unwrap_or(1 << 20),
        scrub_bytes_per_s: if scrubs { 64 << 20 } else { 0 },
        scrub_after: Duration::ZERO,
        // A short time has checkpoints written all the while.
        recovery_time: rng.choice([1, 10, 3_000]).map_or(Duration::from_secs(3), Duration::from_millis),
        ..Options::default()
    }
}

/// A random survival of what was not synced.
pub(crate) fn survival(rng: &mut fastrand::Rng) -> Survival {
    let all = [Survival::None, Survival::All, Survival::Prefix, Survival::Writes, Survival::Sectors];
    all[rng.usize(0..all.len())]
}

/// Opens the store.
///
/// # Errors
/// It does not open, or opening hangs or panics.
pub(crate) fn open(device: &Arc<FaultyDevice>, options: Options, when: &str) -> Result<Engine, String> {
    let device = Arc::clone(device) as Arc<dyn Device>;
    match bounded("opening", move || Engine::open(device, options))? {
        Ended::Returned(Ok(engine)) => Ok(engine),
        Ended::Returned(Err(error)) => Err(format!("opening {when} failed: {error}")),
        Ended::Panicked => Err(format!("opening {when} panicked")),
    }
}

/// Ends the store, which may have stopped before.
///
/// # Errors
/// Closing hangs or panics.
fn close(engine: Arc<Engine>) -> Result<Result<(), Error>, String> {
    let call = move || {
        let closed = engine.close();
        drop(engine);
        closed
    };
    match bounded("closing", call)? {
        Ended::Returned(closed) => Ok(closed),
        Ended::Panicked => Err("closing panicked".into()),
    }
}

/// A deep check finds nothing.
///
/// # Errors
/// What it finds.
pub(crate) fn undamaged(device: &Arc<FaultyDevice>, when: &str) -> Result<(), String> {
    let report = check(Arc::clone(device) as Arc<dyn Device>, true, &mut |_, _| {})
        .map_err(|error| format!("the check {when}: {error}"))?;
    match report.damage.first() {
        None => Ok(()),
        Some(damage) => Err(format!("the check {when} finds at {}: {}", damage.offset, damage.what)),
    }
}
