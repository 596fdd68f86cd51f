//! Moving: batches of copies on their way from the keeper, which gathers them, to the thread that moves them.
//!
//! Invariants:
//! 1. One batch moves and one waits; they move in order.
//! 2. Until a batch has moved, neither the segment that it comes from is made free nor the cold segments that it was
//!    copied to, though nothing may point to them: see [`Moving::flying`].

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use esker_store::{Error, Result};
use parking_lot::{Condvar, Mutex};

use super::rests::own_time;
use crate::clean::Batch;
use crate::cold::Writes;
use crate::segments::Usage;

/// Copies, and what is to be known of them until they have moved.
pub(super) struct Job {
    pub batch: Batch,
    pub copies: Writes,
    pub from: Origin,
}

/// Where copies come from.
#[derive(Clone, Copy)]
pub(super) struct Origin {
    /// Generation of the segment.
    pub victim: u32,
    /// None of the copies stands in a cold segment of a generation below this.
    pub oldest: u32,
    /// What lives there, in bytes.
    pub lives: u64,
    /// Length of the segment in bytes: no more becomes free with it.
    pub len: u64,
}

#[derive(Default)]
struct State {
    waiting: Option<Job>,
    moving: Option<Origin>,
    /// By the generation of their segments.
    failed: Vec<(u32, Error)>,
    /// Bytes that will be free when a segment is, by its generation: what was copied of it, and what of the rest has
    /// gone with that.
    promised: HashMap<u32, u64>,
    /// The thread has begun.
    runs: bool,
    ended: bool,
}

impl State {
    /// Small values take more as copies, so that what is gained in proportion to them may come to more than there is.
    fn promise(&mut self, from: &Origin, bytes: u64) {
        let promised = self.promised.entry(from.victim).or_default();
        *promised = (*promised + bytes).min(from.len);
    }
}

/// What is on its way to the places of copies.
#[derive(Default)]
pub(super) struct Moving {
    state: Mutex<State>,
    changed: Condvar,
    /// Bytes copied and not handed on.
    gathered: AtomicU64,
    /// Processor time of the thread that moves, in nanoseconds.
    worked: AtomicU64,
}

/// Segments that are to stay until batches have moved.
pub(super) struct Flying {
    victims: HashSet<u32>,
    oldest: u32,
}

impl Flying {
    /// Whether a batch comes from this segment or may have copies in it.
    pub fn touches(&self, usage: &Usage) -> bool {
        self.victims.contains(&usage.generation) || usage.cold && usage.generation >= self.oldest
    }
}

impl Moving {
    pub fn flying(&self) -> Flying {
        let state = self.state.lock();
        let all = state.waiting.iter().map(|job| &job.from).chain(&state.moving);
        let mut flying = Flying { victims: HashSet::new(), oldest: u32::MAX };
        for from in all {
            flying.victims.insert(from.victim);
            flying.oldest = flying.oldest.min(from.oldest);
        }
        flying
    }

    /// The caller that gives a batch from now on moves it itself.
    pub fn end(&self) {
        self.state.lock().ended = true;
        self.changed.notify_all();
    }

    /// The thread begins to take batches.
    pub fn begin(&self) {
        self.state.lock().runs = true;
    }

    /// So many bytes are copied and not handed on.
    pub fn note_gathered(&self, bytes: u64) {
        self.gathered.store(bytes, Ordering::Relaxed);
    }

    /// Called by the thread that moves, now and then.
    pub fn note_worked(&self) {
        self.worked.store(own_time().as_nanos() as u64, Ordering::Relaxed);
    }

    /// Processor time of the thread that moves, until it last said so.
    pub fn worked(&self) -> Duration {
        Duration::from_nanos(self.worked.load(Ordering::Relaxed))
    }

    /// Gives a batch to the thread; back if there is none yet, or any more.
    pub fn hand(&self, job: Job) -> Option<Job> {
        let mut state = self.state.lock();
        self.gathered.store(0, Ordering::Relaxed);
        state.promise(&job.from, job.batch.bytes);
        while state.waiting.is_some() && !state.ended {
            self.changed.wait(&mut state);
        }
        if state.ended || !state.runs {
            return Some(job);
        }
        state.waiting = Some(job);
        self.changed.notify_all();
        None
    }

    /// Waits until nothing is on its way.
    pub fn wait(&self) {
        let mut state = self.state.lock();
        while state.waiting.is_some() || state.moving.is_some() {
            self.changed.wait(&mut state);
        }
    }

    /// A segment is free, or is not to be counted on.
    pub fn forget(&self, victim: u32) {
        self.state.lock().promised.remove(&victim);
    }

    /// No segment is to be counted on.
    pub fn forget_all(&self) {
        self.gathered.store(0, Ordering::Relaxed);
        self.state.lock().promised.clear();
    }

    /// Bytes that become free as soon as what was copied has moved.
    pub fn promised(&self) -> u64 {
        let state = self.state.lock();
        state.promised.values().sum::<u64>() + self.gathered.load(Ordering::Relaxed)
    }

    /// The next batch, for the thread.
    pub fn take(&self) -> Option<Job> {
        let mut state = self.state.lock();
        while state.waiting.is_none() && !state.ended {
            self.changed.wait(&mut state);
        }
        let job = state.waiting.take()?;
        state.moving = Some(job.from);
        self.changed.notify_all();
        Some(job)
    }

    /// The batch that was taken has moved, with what it gains, or not; whether no other waits.
    pub fn moved(&self, outcome: Result<u64>) -> bool {
        let mut state = self.state.lock();
        if let Some(from) = state.moving.take() {
            match outcome {
                Ok(gained) => state.promise(&from, gained),
                Err(error) => {
                    state.promised.remove(&from.victim);
                    state.failed.push((from.victim, error));
                }
            }
        }
        self.changed.notify_all();
        state.waiting.is_none()
    }

    /// The thread has ended with this error: nothing moves any more.
    pub fn break_off(&self, error: Error) {
        self.end();
        self.state.lock().waiting = None;
        self.moved(Err(error));
    }

    /// Why what was copied of a segment could not be moved, if it could not.
    pub fn take_failure(&self, victim: u32) -> Option<Error> {
        let mut state = self.state.lock();
        let failed = state.failed.iter().position(|(failed, _)| *failed == victim);
        failed.map(|at| state.failed.remove(at).1)
    }

    /// The same of all segments.
    pub fn take_failed(&self) -> Vec<(u32, Error)> {
        std::mem::take(&mut self.state.lock().failed)
    }
}
