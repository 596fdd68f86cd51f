//! Jobs in line for threads: those of one key one after the other.
//!
//! [`Line::enter`] → the key's line → ready → a thread of [`Line::serve`]
//!
//! Invariants:
//! 1. Of the jobs of one key one is run at a time; those behind it hold no thread, and go behind those of other keys.
//! 2. A job whose [`Turn`] is dropped before its turn is freed at once, and not run.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

/// What is run, by the thread of this number.
type Work = Box<dyn FnOnce(usize) + Send>;

type Load = Arc<Mutex<Option<Work>>>;

struct Job {
    load: Load,
    key: Option<u64>,
}

/// A turn that is to come.
pub(crate) struct Turn(Load);

impl Drop for Turn {
    fn drop(&mut self) {
        let load = self.0.lock().take();
        drop(load);
    }
}

#[derive(Default)]
struct State {
    /// What can be run.
    ready: VecDeque<Job>,
    /// By key of which a job is ready or being run: those that come after it.
    behind: HashMap<u64, VecDeque<Job>>,
    is_over: bool,
}

/// The line of a server.
pub(crate) struct Line {
    state: Mutex<State>,
    changed: Condvar,
    threads: usize,
}

impl Line {
    /// For so many threads.
    pub(crate) fn new(threads: usize) -> Self {
        Self { state: Mutex::default(), changed: Condvar::new(), threads }
    }

    /// Threads that are to call [`Line::serve`].
    pub(crate) fn threads(&self) -> usize {
        self.threads
    }

    /// Whether there are any.
    #[inline]
    pub(crate) fn is_used(&self) -> bool {
        self.threads > 0
    }

    /// Puts work in line; where the line has ended it is dropped.
    pub(crate) fn enter(&self, key: Option<u64>, work: Work) -> Turn {
        let load = Arc::new(Mutex::new(Some(work)));
        let job = Job { load: Arc::clone(&load), key };
        let mut state = self.state.lock();
        if state.is_over {
            drop(state);
            drop(load.lock().take());
        } else if state.enter(job) {
            drop(state);
            self.changed.notify_one();
        }
        Turn(load)
    }

    /// Runs jobs until the line ends, as the thread of this number.
    pub(crate) fn serve(&self, index: usize) {
        let mut done = None;
        while let Some(Job { load, key }) = self.next(done) {
            done = key;
            let work = load.lock().take();
            if let Some(work) = work {
                work(index);
            }
        }
    }

    /// What is to be run now; `None` once the line has ended. Of the key of the job that this thread has run the next
    /// has its turn, behind those of other keys.
    fn next(&self, done: Option<u64>) -> Option<Job> {
        let mut state = self.state.lock();
        if let Some(key) = done {
            state.leave(key);
        }
        loop {
            if state.is_over {
                return None;
            }
            match state.ready.pop_front() {
                Some(job) => return Some(job),
                None => self.changed.wait(&mut state),
            }
        }
    }

    /// Ends the threads, each once its job is run. Those that wait are not run any more.
    fn end(&self) {
        let mut state = self.state.lock();
        let State { ready, behind, .. } = std::mem::replace(&mut *state, State { is_over: true, ..State::default() });
        drop(state);
        self.changed.notify_all();
        for job in ready.into_iter().chain(behind.into_values().flatten()) {
            let load = job.load.lock().take();
            drop(load);
        }
    }
}

/// Ends a line when it is dropped.
pub(crate) struct EndOnDrop<'l>(pub(crate) &'l Line);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

impl State {
    /// Whether it can be run.
    fn enter(&mut self, job: Job) -> bool {
        if let Some(key) = job.key {
            if let Some(behind) = self.behind.get_mut(&key) {
                // Those that are freed need not be kept until their turn.
                while behind.front().is_some_and(|job| job.load.lock().is_none()) {
                    behind.pop_front();
                }
                behind.push_back(job);
                return false;
            }
            self.behind.insert(key, VecDeque::new());
        }
        self.ready.push_back(job);
        true
    }

    /// A job of this key was run. Who calls takes one next, so that there is no thread to wake.
    fn leave(&mut self, key: u64) {
        let Some(behind) = self.behind.get_mut(&key) else { return };
        match behind.pop_front() {
            Some(job) => self.ready.push_back(job),
            None => drop(self.behind.remove(&key)),
        }
    }
}
