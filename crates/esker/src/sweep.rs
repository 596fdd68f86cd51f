//! Removing what has expired in the background: keys as often as asked for, rows of the map no faster than asked for.
//!
//! [`Store::kv`](crate::Store::kv), [`Store::map`](crate::Store::map) → a thread ([`Repeated`]) → a step → the pause
//! that it asks for → the next step
//!
//! Invariants:
//! 1. On average no more rows are looked at per second than the rate; nothing due, a look a second.
//! 2. The threads end before the store closes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use esker_kv::Kv;
use esker_map::{Sweeper, Waist};

/// Expired keys that are removed in one go; while there are more, the next go follows at once.
const EXPIRE_KEYS: usize = 1_000;
/// Most rows of a step.
const STEP_ROWS: u64 = 256;
/// How long it rests when nothing is due.
const IDLE: Duration = Duration::from_secs(1);
/// How long it rests after an error.
const AFTER_ERROR: Duration = Duration::from_secs(10);

/// What the removal of expired rows has done since the map of a store was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SweepFigures {
    /// Most rows per second; 0: there is none.
    pub rate: u64,
    /// Rows removed.
    pub removed: u64,
    /// Rows that were written between being found and being removed, and so stayed.
    pub renewed: u64,
    /// Steps that found something, each of one table and at most 256 rows.
    pub steps: u64,
    /// Steps that failed; the log says why.
    pub failures: u64,
}

#[derive(Default)]
struct Counters {
    removed: AtomicU64,
    renewed: AtomicU64,
    steps: AtomicU64,
    failures: AtomicU64,
}

/// A thread that does something again and again. Nothing depends on it: a system without another thread to give goes on
/// without one.
pub(crate) struct Repeated {
    what: &'static str,
    stop: Sender<()>,
    thread: JoinHandle<()>,
}

impl Repeated {
    /// Starts it with a pause; `step` says how long the next is.
    fn start(
        name: &str,
        what: &'static str,
        mut pause: Duration,
        mut step: impl FnMut() -> Duration + Send + 'static,
    ) -> Option<Self> {
        let (stop, stopped) = channel::<()>();
        let run = move || {
            while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(pause) {
                pause = step();
            }
        };
        match std::thread::Builder::new().name(name.into()).spawn(run) {
            Ok(thread) => Some(Self { what, stop, thread }),
            Err(error) => {
                tracing::warn!(%error, "no thread for removing {what}");
                None
            }
        }
    }

    pub fn stop(self) {
        drop(self.stop);
        if self.thread.join().is_err() {
            tracing::error!("the thread that removes {} panicked", self.what);
        }
    }
}

/// Removes expired keys every `interval`.
pub(crate) fn expire(kv: Kv, interval: Duration) -> Option<Repeated> {
    Repeated::start("esker-expire", "expired keys", interval, move || match kv.expire_due(EXPIRE_KEYS) {
        Ok(removed) if removed >= EXPIRE_KEYS => Duration::ZERO,
        Ok(_) => interval,
        Err(error) => {
            tracing::warn!(%error, "removing expired keys failed; trying again later");
            interval.max(AFTER_ERROR)
        }
    })
}

/// The removal of expired rows.
pub(crate) struct Sweep {
    rate: u64,
    counters: Arc<Counters>,
    thread: Repeated,
}

impl Sweep {
    /// Starts it. `rate` is above 0.
    pub fn start(map: Waist, rate: u64) -> Option<Self> {
        let counters = Arc::new(Counters::default());
        let (counted, mut sweeper) = (Arc::clone(&counters), Sweeper::new(map));
        let step = move || step(&mut sweeper, rate, &counted);
        let thread = Repeated::start("esker-sweep", "expired rows", Duration::ZERO, step)?;
        Some(Self { rate, counters, thread })
    }

    pub fn figures(&self) -> SweepFigures {
        let Counters { removed, renewed, steps, failures } = &*self.counters;
        let [removed, renewed, steps, failures] =
            [removed, renewed, steps, failures].map(|count| count.load(Ordering::Relaxed));
        SweepFigures { rate: self.rate, removed, renewed, steps, failures }
    }

    pub fn stop(self) {
        self.thread.stop();
    }
}

/// A step, and how long to rest after it.
fn step(sweeper: &mut Sweeper, rate: u64, counters: &Counters) -> Duration {
    match sweeper.step(STEP_ROWS.min(rate) as usize) {
        Ok(swept) if swept.looked == 0 => IDLE,
        Ok(swept) => {
            counters.removed.fetch_add(swept.removed, Ordering::Relaxed);
            counters.renewed.fetch_add(swept.renewed, Ordering::Relaxed);
            counters.steps.fetch_add(1, Ordering::Relaxed);
            Duration::from_secs_f64(swept.looked as f64 / rate as f64)
        }
        Err(error) => {
            counters.failures.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(%error, "removing expired rows failed; trying again later");
            AFTER_ERROR
        }
    }
}
