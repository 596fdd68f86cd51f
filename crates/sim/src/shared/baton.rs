//! Who runs: of all processes one at a time, and the run's randomness says which, at every call of the store.
//!
//! call → [`Baton::step`] → on, or wait while others run, or be gone (killed, or the whole store stopped)
//!
//! Invariants:
//! 1. One process runs at a time, and what is drawn is drawn by who runs: the same seed gives the same order of calls.
//! 2. Who is told to be gone makes no further call: it unwinds with [`Gone`].

use parking_lot::{Condvar, Mutex};

/// What a process unwinds with.
pub(crate) struct Gone;

/// How restless the processes are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Temper {
    /// Of 100 steps, so many go on with the same process.
    pub stay: u8,
    /// Of 10,000 steps, so many kill the process.
    pub kill: u32,
    /// Of 10,000 steps, so many let it pause.
    pub pause: u32,
    /// Steps after which each process goes on alone until it is done. Processes that depose each other time and again
    /// may need that; one that does
    /// not end when it is alone never does.
    pub alone_after: u64,
    /// Steps after which all stop.
    pub steps_max: u64,
}

struct State {
    rng: fastrand::Rng,
    temper: Temper,
    running: usize,
    alive: Vec<bool>,
    pauses_until: Vec<u64>,
    step: u64,
    time: u64,
    kills: u64,
    stopped: bool,
    trace: u64,
}

/// The right to run.
pub(crate) struct Baton {
    state: Mutex<State>,
    turns: Vec<Condvar>,
}

/// No process runs.
const NOBODY: usize = usize::MAX;

impl Baton {
    pub(crate) fn new(processes: usize, temper: Temper, time: u64, seed: u64) -> Self {
        let state = State {
            rng: fastrand::Rng::with_seed(seed),
            temper,
            running: NOBODY,
            alive: vec![true; processes],
            pauses_until: vec![0; processes],
            step: 0,
            time,
            kills: 0,
            stopped: false,
            trace: 0,
        };
        Self { state: Mutex::new(state), turns: (0..=processes).map(|_| Condvar::new()).collect() }
    }

    /// Lets one begin, and waits until all are gone.
    pub(crate) fn run(&self) {
        let mut state = self.state.lock();
        self.pass(&mut state);
        while state.alive.iter().any(|alive| *alive) {
            self.turns[self.turns.len() - 1].wait(&mut state);
        }
    }

    /// Waits for the first turn.
    pub(crate) fn enter(&self, me: usize) {
        let mut state = self.state.lock();
        while state.running != me {
            self.turns[me].wait(&mut state);
        }
    }

    /// Is gone for good.
    pub(crate) fn leave(&self, me: usize) {
        let mut state = self.state.lock();
        state.alive[me] = false;
        self.pass(&mut state);
    }

    /// Lets a process run, perhaps the same as before.
    fn pass(&self, state: &mut State) {
        let ready =
            |state: &State, each: usize| state.alive[each] && (state.stopped || state.pauses_until[each] <= state.step);
        let all: Vec<usize> = (0..state.alive.len()).filter(|each| ready(state, *each)).collect();
        let next = match all.len() {
            0 => (0..state.alive.len()).filter(|each| state.alive[*each]).min_by_key(|each| state.pauses_until[*each]),
            count => Some(all[state.rng.usize(0..count)]),
        };
        state.running = next.unwrap_or(NOBODY);
        self.turns[next.unwrap_or(self.turns.len() - 1)].notify_one();
    }

    /// A step of the process that runs; `what` goes into the trace. False: it is to be gone.
    pub(crate) fn step(&self, me: usize, what: u64) -> bool {
        let mut state = self.state.lock();
        state.step += 1;
        state.time += 1;
        state.trace = (state.trace.rotate_left(5) ^ (me as u64) ^ (what << 8)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        if state.step >= state.temper.steps_max {
            state.stopped = true;
        }
        if state.stopped {
            return false;
        }
        let Temper { stay, kill, pause, alone_after, .. } = state.temper;
        if state.step > alone_after {
            return true;
        }
        if state.rng.u32(0..10_000) < kill {
            state.kills += 1;
            return false;
        }
        if state.rng.u32(0..10_000) < pause {
            state.pauses_until[me] = state.step + state.rng.u64(1..400);
        } else if state.rng.u8(0..100) < stay {
            return true;
        }
        self.pass(&mut state);
        while state.running != me {
            self.turns[me].wait(&mut state);
        }
        !state.stopped
    }

    /// Stops all processes at their next step.
    pub(crate) fn stop(&self) {
        self.state.lock().stopped = true;
    }

    pub(crate) fn stopped(&self) -> bool {
        self.state.lock().stopped
    }

    /// A random number below `end`.
    pub(crate) fn draw(&self, end: u64) -> u64 {
        self.state.lock().rng.u64(0..end)
    }

    /// The time: it passes with every step, and with every look at it.
    pub(crate) fn time(&self) -> u64 {
        let mut state = self.state.lock();
        state.time += 1;
        state.time
    }

    /// Steps made, processes killed, hash of all steps.
    pub(crate) fn told(&self) -> (u64, u64, u64) {
        let state = self.state.lock();
        (state.step, state.kills, state.trace)
    }
}
