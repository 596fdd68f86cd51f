//! Removing expired rows of the map in the background, no faster than asked for.
//!
//! [`Store::map`](crate::Store::map) → a thread → [`Sweeper`], a step at a time → a pause as long as the step's rows may take → the next step
//!
//! Invariants:
//! 1. On average no more rows are looked at per second than the rate; nothing due, a look a second.
//! 2. The thread ends before the store closes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use esker_map::{Sweeper, Waist};

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

/// The thread.
pub(crate) struct Sweep {
    rate: u64,
    counters: Arc<Counters>,
    stop: Sender<()>,
    thread: JoinHandle<()>,
}

impl Sweep {
    /// Starts it; a system without another thread to give goes on without one, since nothing depends on it. `rate` is above 0.
    pub fn start(map: Waist, rate: u64) -> Option<Self> {
        let (stop, stopped) = channel::<()>();
        let counters = Arc::new(Counters::default());
        let counted = Arc::clone(&counters);
        let run = move || {
            let mut sweeper = Sweeper::new(map);
            let mut pause = Duration::ZERO;
            while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(pause) {
                pause = step(&mut sweeper, rate, &counted);
            }
        };
        match std::thread::Builder::new().name("esker-sweep".into()).spawn(run) {
            Ok(thread) => Some(Self { rate, counters, stop, thread }),
            Err(error) => {
                tracing::warn!(%error, "no thread for removing expired rows");
                None
            }
        }
    }

    pub fn figures(&self) -> SweepFigures {
        let Counters { removed, renewed, steps, failures } = &*self.counters;
        let [removed, renewed, steps, failures] =
            [removed, renewed, steps, failures].map(|count| count.load(Ordering::Relaxed));
        SweepFigures { rate: self.rate, removed, renewed, steps, failures }
    }

    pub fn stop(self) {
        drop(self.stop);
        if self.thread.join().is_err() {
            tracing::error!("the thread that removes expired rows panicked");
        }
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
