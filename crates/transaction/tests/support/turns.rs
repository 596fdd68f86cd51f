//! Clients that take turns: each call to the storage waits until a seeded choice falls on its client, so that the same
//! seed gives the same interleaving.
//!
//! all clients wait → one is chosen → it runs until its next call → …
//!
//! Clients also die: at a call of their choice, which is made or not, and all calls after it fail. Then they begin
//! anew, as another process would.
//!
//! Invariant: at most one client runs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use esker_map::{Atomicity, Error as MapError, MapStorage};
use esker_transaction::{Options, Transactions};
use parking_lot::{Condvar, Mutex};

use super::{Fate, Tap, Time, open};

struct State {
    rng: fastrand::Rng,
    /// Of each client whether it waits; `None`: it has ended.
    waits: Vec<Option<bool>>,
    turn: Option<usize>,
    /// Calls so far.
    step: u64,
}

pub struct Turns {
    state: Mutex<State>,
    changed: Condvar,
    time: Time,
}

impl Turns {
    pub fn new(clients: usize, seed: u64, time: &Time) -> Arc<Self> {
        let rng = fastrand::Rng::with_seed(seed);
        let state = Mutex::new(State { rng, waits: vec![Some(false); clients], turn: None, step: 0 });
        Arc::new(Self { state, changed: Condvar::new(), time: time.clone() })
    }

    fn choose(&self, state: &mut State) {
        let waiting: Vec<usize> = (0..state.waits.len()).filter(|client| state.waits[*client] == Some(true)).collect();
        if state.waits.contains(&Some(false)) || waiting.is_empty() {
            return;
        }
        let number = state.rng.usize(..waiting.len());
        state.turn = Some(waiting[number]);
        self.changed.notify_all();
    }

    /// Waits for the client's turn. A millisecond passes.
    pub fn wait(&self, client: usize) {
        let mut state = self.state.lock();
        state.waits[client] = Some(true);
        self.choose(&mut state);
        while state.turn != Some(client) {
            self.changed.wait(&mut state);
        }
        state.turn = None;
        state.waits[client] = Some(false);
        state.step += 1;
        self.time.pass(1);
    }

    pub fn step(&self) -> u64 {
        self.state.lock().step
    }

    fn end(&self, client: usize) {
        let mut state = self.state.lock();
        state.waits[client] = None;
        self.choose(&mut state);
    }
}

/// How often things go wrong: one call in so many, 0 is never.
#[derive(Clone, Copy)]
pub struct Faults {
    pub dies: u32,
    pub unknown: u32,
}

/// A client as one process: it lives until a call at which it dies.
pub struct Life {
    pub transactions: Transactions,
    pub dead: Arc<AtomicBool>,
}

/// A client, which has one life after another.
pub struct Client {
    pub number: usize,
    pub rng: fastrand::Rng,
    pub turns: Arc<Turns>,
    pub storage: Arc<dyn MapStorage>,
    pub atomicity: Atomicity,
    pub faults: Faults,
    pub options: Options,
}

fn unknown(what: &str) -> MapError {
    MapError::Unknown { cause: what.into() }
}

impl Client {
    pub fn live(&mut self) -> Life {
        let dead = Arc::new(AtomicBool::new(false));
        let rng = Mutex::new(self.rng.fork());
        let (turns, number, faults, died) = (Arc::clone(&self.turns), self.number, self.faults, Arc::clone(&dead));
        // Opening is not under test.
        let opened = Arc::new(AtomicBool::new(false));
        let in_hook = Arc::clone(&opened);
        let hook = Box::new(move |writes| {
            if !in_hook.load(Ordering::SeqCst) {
                return Fate::Made;
            }
            if died.load(Ordering::SeqCst) {
                return Fate::Refused(unknown("the client is dead"));
            }
            turns.wait(number);
            let mut rng = rng.lock();
            let mut one_in = |times: u32| times > 0 && rng.u32(..times) == 0;
            if one_in(faults.dies) {
                died.store(true, Ordering::SeqCst);
                let error = unknown("the client dies");
                return if one_in(2) { Fate::Refused(error) } else { Fate::Lost(error) };
            }
            if writes && one_in(faults.unknown) {
                let error = unknown("no answer came");
                return if one_in(2) { Fate::Refused(error) } else { Fate::Lost(error) };
            }
            Fate::Made
        });
        let storage = Arc::new(Tap { inner: Arc::clone(&self.storage), atomicity: self.atomicity, hook });
        let transactions = open(storage, &self.turns.time, self.options.clone());
        opened.store(true, Ordering::SeqCst);
        Life { transactions, dead }
    }
}

/// Runs clients to their ends, and returns what they return.
pub fn run<T: Send>(clients: Vec<Client>, work: impl Fn(Client) -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let running: Vec<_> = clients
            .into_iter()
            .map(|client| {
                let (turns, number, work) = (Arc::clone(&client.turns), client.number, &work);
                scope.spawn(move || {
                    // A client that fails must not keep the others waiting.
                    struct End(Arc<Turns>, usize);
                    impl Drop for End {
                        fn drop(&mut self) {
                            self.0.end(self.1);
                        }
                    }
                    let _end = End(turns, number);
                    work(client)
                })
            })
            .collect();
        running.into_iter().map(|client| client.join().unwrap()).collect()
    })
}
