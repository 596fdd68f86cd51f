//! Answers of a connection that the store has only begun: told in the order in which they come.
//!
//! completion → polled with a waker → arrives → queue → the thread that tells
//!
//! Invariant: each that was put in is taken out once, when it has arrived.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::task::{Context, Wake, Waker};

use esker_store::{Barrier, Completion, Result};
use parking_lot::{Condvar, Mutex};

/// What an answer is told of, and what is to be told.
type Entry<T> = (Completion<()>, T);

struct State<T> {
    /// Those that have not arrived.
    begun: HashMap<u64, Entry<T>>,
    /// Those that a thread looks at, and whether they were woken meanwhile.
    looked_at: HashMap<u64, bool>,
    last: u64,
    closed: bool,
}

/// Numbers of those that have arrived.
#[derive(Default)]
struct Arrivals {
    queue: Mutex<VecDeque<u64>>,
    changed: Condvar,
}

struct Arrives(Arc<Arrivals>, u64);

impl Wake for Arrives {
    fn wake(self: Arc<Self>) {
        self.0.queue.lock().push_back(self.1);
        self.0.changed.notify_all();
    }
}

/// The answers of a connection that are on their way.
pub(crate) struct Pending<T> {
    state: Mutex<State<T>>,
    arrivals: Arc<Arrivals>,
}

impl<T> Pending<T> {
    pub(crate) fn new() -> Self {
        let state = State { begun: HashMap::new(), looked_at: HashMap::new(), last: 0, closed: false };
        Self { state: Mutex::new(state), arrivals: Arc::default() }
    }

    /// How many have not arrived.
    pub(crate) fn len(&self) -> usize {
        let state = self.state.lock();
        state.begun.len() + state.looked_at.len()
    }

    pub(crate) fn put(&self, completion: Completion<()>, told: T) {
        let mut state = self.state.lock();
        state.last += 1;
        let number = state.last;
        state.begun.insert(number, (completion, told));
        drop(state);
        // Looked at once, which has it woken from then on.
        Arc::new(Arrives(Arc::clone(&self.arrivals), number)).wake();
    }

    /// The next that has arrived. `None` once it is closed and none is left; also if none has arrived, where `waits` is
    /// false.
    pub(crate) fn next(&self, waits: bool) -> Option<(Result<()>, Option<Barrier>, T)> {
        loop {
            let number = self.arrived(waits)?;
            let (mut completion, told) = {
                let mut state = self.state.lock();
                if let Some(woken) = state.looked_at.get_mut(&number) {
                    *woken = true;
                    continue;
                }
                let Some(entry) = state.begun.remove(&number) else { continue };
                state.looked_at.insert(number, false);
                entry
            };
            let waker = Waker::from(Arc::new(Arrives(Arc::clone(&self.arrivals), number)));
            // With no lock: what is polled may wake at once.
            let polled = completion.poll_arrived(&mut Context::from_waker(&waker));
            let mut state = self.state.lock();
            let woken = state.looked_at.remove(&number).unwrap_or_default();
            if polled.is_ready() {
                let is_closed = state.closed;
                drop(state);
                if is_closed {
                    // It may have been the last that another waits for.
                    drop(self.arrivals.queue.lock());
                    self.arrivals.changed.notify_all();
                }
                let (result, barrier) = completion.into_parts();
                return Some((result, barrier, told));
            }
            state.begun.insert(number, (completion, told));
            drop(state);
            if woken {
                waker.wake();
            }
        }
    }

    /// The number of one that was woken.
    fn arrived(&self, waits: bool) -> Option<u64> {
        let mut queue = self.arrivals.queue.lock();
        loop {
            if let Some(number) = queue.pop_front() {
                return Some(number);
            }
            let state = self.state.lock();
            if !waits || state.closed && state.begun.is_empty() && state.looked_at.is_empty() {
                return None;
            }
            drop(state);
            self.arrivals.changed.wait(&mut queue);
        }
    }

    /// No more is put in.
    pub(crate) fn close(&self) {
        // With the queue's lock: who has looked waits by now.
        let queue = self.arrivals.queue.lock();
        self.state.lock().closed = true;
        drop(queue);
        self.arrivals.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use esker_store::{Error, promised};

    #[test]
    fn answers_are_told_as_they_arrive_and_the_last_after_closing() {
        let pending = Pending::new();
        let mut promises = Vec::new();
        for number in 0..3 {
            let (promise, completion) = promised("a test");
            pending.put(completion, number);
            promises.push(promise);
        }
        pending.put(Completion::ready(Ok(())), 3);
        assert_eq!(pending.next(true).map(|(_, _, number)| number), Some(3));
        assert!(pending.next(false).is_none());
        let mut told = Vec::new();
        std::thread::scope(|scope| {
            let teller = scope.spawn(|| {
                let mut all = Vec::new();
                while let Some((result, _, number)) = pending.next(true) {
                    all.push((number, result.is_ok()));
                }
                all
            });
            let last = promises.pop();
            last.into_iter().for_each(|promise| promise.fulfil((Ok(()), None)));
            while pending.len() > 2 {
                std::thread::yield_now();
            }
            pending.close();
            let refused = promises.pop();
            refused.into_iter().for_each(|promise| promise.fulfil((Err(Error::Closed), None)));
            // A promise that is dropped unfulfilled is told of too.
            while pending.len() > 1 {
                std::thread::yield_now();
            }
            promises.clear();
            told = teller.join().unwrap();
        });
        assert_eq!(told, [(2, true), (1, false), (0, false)]);
    }
}
