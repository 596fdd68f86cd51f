//! The server of a run: the engine on a device that loses power, opened again under its clients.
//!
//! format → open → calls … power cut at any I/O, failed sync, or stop → what survives → open, as another life
//!
//! Invariant: lives are numbered from 1, and a number is never used again.

use std::sync::Arc;

use esker_device::Device;
use esker_engine::{CommitPolicy, Engine, FormatOptions, Options};
use parking_lot::Mutex;

use crate::fault::{Faults, FaultyDevice, Image, Shape, Survival};
use crate::kind::{self, SEGMENT_BYTES};
use crate::outcome::maintain;

/// Segments of the device: enough for all that a run writes, few enough to be copied often.
const SEGMENTS: u64 = 32;

/// How a life of the server ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// What was not durable may be gone.
    PowerLoss,
    /// Everything was made durable.
    Stop,
}

/// The server.
pub(crate) struct Server {
    state: Mutex<Open>,
}

struct Open {
    device: Arc<FaultyDevice>,
    engine: Arc<Engine>,
    life: u64,
    rng: fastrand::Rng,
    trace: u64,
    /// Of 100 lives, so many end at one of their I/Os.
    cuts: u8,
}

/// An engine without threads that acknowledges nothing before its sync.
fn options(rng: &mut fastrand::Rng) -> Options {
    Options { policy: CommitPolicy::Batch, ..kind::options(rng) }
}

fn open(device: &Arc<FaultyDevice>, options: Options) -> Result<Arc<Engine>, String> {
    let engine = Engine::open(Arc::clone(device) as Arc<dyn Device>, options);
    engine.map(Arc::new).map_err(|error| format!("opening: {error}"))
}

impl Server {
    /// A server with an empty store.
    pub(crate) fn new(rng: &mut fastrand::Rng) -> Result<Self, String> {
        let mut rng = fastrand::Rng::with_seed(rng.u64(..));
        let device = FaultyDevice::new(Image::blank(Shape::plain(SEGMENTS * SEGMENT_BYTES)), rng.u64(..));
        let format = FormatOptions { segment_bytes: SEGMENT_BYTES, uuid: [7; 16] };
        Engine::format(&device, &format).map_err(|error| format!("formatting: {error}"))?;
        let device = Arc::new(device);
        let engine = open(&device, options(&mut rng))?;
        let cuts = rng.choice([0, 30, 70]).unwrap_or(0);
        Ok(Self { state: Mutex::new(Open { device, engine, life: 1, rng, trace: 0, cuts }) })
    }

    /// The engine of this life.
    pub(crate) fn engine(&self) -> Arc<Engine> {
        Arc::clone(&self.state.lock().engine)
    }

    /// The number of this life.
    pub(crate) fn life(&self) -> u64 {
        self.state.lock().life
    }

    /// Whether this life has ended: power went, or a sync failed.
    pub(crate) fn is_down(&self) -> bool {
        self.state.lock().device.has_failed()
    }

    /// Lets this life end at one of its I/Os, in some runs.
    pub(crate) fn endanger(&self) {
        let state = &mut *self.state.lock();
        let mut faults = Faults::default();
        if state.rng.u8(0..100) < state.cuts {
            let at = state.rng.u64(1..120);
            if state.rng.u8(0..6) == 0 {
                faults.failed_sync_at = Some(at / 2 + 1);
            } else {
                faults.power_cut_at = Some(at);
            }
        }
        state.device.set_faults(faults);
    }

    /// Lets nothing end this life any more.
    pub(crate) fn calm(&self) {
        self.state.lock().device.set_faults(Faults::default());
    }

    /// Cleaning, a checkpoint, or pages of the index that leave memory.
    pub(crate) fn maintain(&self) -> Result<(), String> {
        let state = &mut *self.state.lock();
        match maintain(&state.engine, &mut state.rng) {
            Err(error) if !state.device.has_failed() => Err(format!("maintenance: {error}")),
            _ => Ok(()),
        }
    }

    /// Ends this life and begins another; how it ended.
    ///
    /// # Errors
    /// The store does not open any more.
    pub(crate) fn restart(&self, end: End) -> Result<End, String> {
        let state = &mut *self.state.lock();
        let stopped = end == End::Stop && !state.device.has_failed() && state.engine.close().is_ok();
        let (end, survival) = if stopped {
            (End::Stop, Survival::None)
        } else {
            state.device.cut_power();
            let all = [Survival::None, Survival::All, Survival::Prefix, Survival::Writes, Survival::Sectors];
            (End::PowerLoss, all[state.rng.usize(0..all.len())])
        };
        let image = state.device.image_after_power_cut(survival);
        state.trace = state.trace.rotate_left(7) ^ state.device.counts().trace;
        state.device = Arc::new(FaultyDevice::new(image, state.rng.u64(..)));
        state.engine = open(&state.device, options(&mut state.rng))?;
        state.life += 1;
        Ok(end)
    }

    /// Hash of every I/O.
    pub(crate) fn trace(&self) -> u64 {
        let state = self.state.lock();
        state.trace.rotate_left(7) ^ state.device.counts().trace
    }
}
