//! Room for callers that must not wait for it: a thread waits in their place.
//!
//! submit, refused as busy → [`Rooms::room`] → the thread looks whether there is some → completion → submitted again
//!
//! Invariants:
//! 1. Who waits is answered, also when the store stops or the thread ends.
//! 2. The thread holds nothing while it waits, and no call of the store waits for it.
//! 3. Who waits for one thing is not kept waiting by what others wait for.
//! 4. Who is told that the log has room goes before those who come now, until all who were told have come: for a
//!    millisecond at most.
//! 5. A look of the cleaner answers those who asked before it began, unless two seconds have done so before.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use esker_store::{Completion, Promise, Stall, Waits, promised};
use parking_lot::{Condvar, Mutex};

use crate::commit::{GIVING_LOOKS, Log, waited_enough};
use crate::keeper::{CrowdedSince, Keeper};

/// So many of those who wait for the log are told at once that it has room: all of them would only take it from each
/// other, and do the work of their transactions for nothing.
const TOLD_AT_ONCE: usize = 64;
/// How long those have for it before more are told, unless they have all come before.
const TURN: Duration = Duration::from_millis(1);
/// The thread looks so often whether there is room: at most this passes until it sees something that it was not told.
const LOOK_EVERY: Duration = Duration::from_millis(5);

#[derive(Default)]
struct Waiting {
    /// Index pages take too much memory, since then.
    memory: Vec<(CrowdedSince, Promise<()>)>,
    /// The log takes no more now: since when, in the order in which they came.
    backlog: VecDeque<(Instant, Promise<()>)>,
    /// The store is full: the look that was asked for, and when.
    full: Vec<(u64, Instant, Promise<()>)>,
    /// They stand in the log's queue.
    queues: bool,
    /// No caller waits for room any more.
    over: bool,
}

impl Waiting {
    fn is_empty(&self) -> bool {
        self.memory.is_empty() && self.backlog.is_empty() && self.full.is_empty()
    }

    fn take_all(&mut self) -> Vec<Promise<()>> {
        let memory = self.memory.drain(..).map(|(_, promise)| promise);
        let full = self.full.drain(..).map(|(_, _, promise)| promise);
        let backlog = self.backlog.drain(..).map(|(_, promise)| promise);
        memory.chain(backlog).chain(full).collect()
    }

    /// Takes those out who have given up.
    fn prune(&mut self) {
        self.memory.retain(|(_, promise)| promise.is_wanted());
        self.backlog.retain(|(_, promise)| promise.is_wanted());
        self.full.retain(|(_, _, promise)| promise.is_wanted());
    }
}

/// See the module.
pub struct Rooms {
    log: Arc<Log>,
    keeper: Arc<Keeper>,
    waiting: Mutex<Waiting>,
    asked: Condvar,
}

/// Answers those who wait when the thread ends, however it does.
struct Ends<'a>(&'a Rooms);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.stop();
        let left = {
            let mut waiting = self.0.waiting.lock();
            self.0.queue(&mut waiting, false);
            self.0.log.expect(0);
            waiting.take_all()
        };
        answer(left);
    }
}

/// What is wrong, if anything, the next submit says.
pub(crate) fn answer(promises: Vec<Promise<()>>) {
    for promise in promises {
        // It wakes a task of the caller's, whose fault is not to be that of all who write.
        let told = catch_unwind(AssertUnwindSafe(|| promise.fulfil((Ok(()), None))));
        if told.is_err() {
            tracing::error!("a program that waited for room has panicked when it was told");
        }
    }
}

impl Rooms {
    /// For this log and its keeper.
    pub fn new(log: &Arc<Log>, keeper: &Arc<Keeper>) -> Arc<Self> {
        let (waiting, asked) = (Mutex::default(), Condvar::new());
        Arc::new(Self { log: Arc::clone(log), keeper: Arc::clone(keeper), waiting, asked })
    }

    /// Ready when there may be room of this kind.
    pub fn room(&self, stall: Stall) -> Completion<()> {
        let mut waiting = self.waiting.lock();
        let is_there = match stall {
            Stall::Memory => !self.keeper.is_crowded(),
            Stall::Backlog => waiting.backlog.is_empty() && self.log.has_room(false),
            Stall::Full => false,
            // The readings tell of it.
            Stall::Reading { .. } => true,
        };
        if is_there || waiting.over || self.is_over() {
            return Completion::ready(Ok(()));
        }
        let (promise, completion) = promised("the thread that waits for room");
        match stall {
            Stall::Memory => waiting.memory.push((self.keeper.crowded_since(), promise)),
            Stall::Backlog => waiting.backlog.push_back((Instant::now(), promise)),
            Stall::Reading { .. } => {}
            Stall::Full => waiting.full.push((self.log.ask_for_look(), Instant::now(), promise)),
        }
        drop(waiting);
        self.asked.notify_one();
        completion
    }

    /// Whether the log takes no more, or will not.
    fn is_over(&self) -> bool {
        self.log.has_stopped() || self.log.mark().failure().is_some()
    }

    /// See [`ObjectStore::stall`](esker_store::ObjectStore::stall).
    pub fn stall(&self, waits: Waits) -> Option<Stall> {
        if self.is_over() {
            return None;
        }
        let waited = waits.backlog() > 0;
        if waits.memory() == 0 && self.keeper.is_crowded() {
            Some(Stall::Memory)
        } else if self.log.is_full() {
            // What gives back goes on all the same, and is not to wait for room that never comes.
            let busy = self.log.is_busy_when_full().then_some(Stall::Backlog);
            if waits.full() < GIVING_LOOKS { Some(Stall::Full) } else { busy }
        } else {
            self.log.is_busy(waited).then_some(Stall::Backlog)
        }
    }

    /// No caller waits from now on, and the thread ends.
    pub fn stop(&self) {
        self.waiting.lock().over = true;
        self.asked.notify_one();
    }

    /// Whether those who wait for the log are to be in its queue.
    fn queue(&self, waiting: &mut Waiting, queues: bool) {
        if waiting.queues != queues {
            self.log.queue(queues);
            waiting.queues = queues;
        }
    }

    /// The thread's life.
    pub fn run(&self) {
        let _ends = Ends(self);
        // The turn of those who were told that the log has room, and the last look for such as have given up.
        let (mut told_at, mut pruned_at) = (None::<Instant>, Instant::now());
        loop {
            let (told, left, queues) = {
                let mut waiting = self.waiting.lock();
                while waiting.is_empty() && !waiting.queues && told_at.is_none() && !waiting.over {
                    self.asked.wait(&mut waiting);
                }
                if waiting.over {
                    break;
                }
                if pruned_at.elapsed() >= LOOK_EVERY {
                    waiting.prune();
                    pruned_at = Instant::now();
                }
                if told_at.is_some_and(|at| at.elapsed() >= TURN || !self.log.expects()) {
                    self.log.expect(0);
                    told_at = None;
                }
                let mut told = self.take_told(&mut waiting);
                if told_at.is_none() {
                    let before = told.len();
                    self.take_turn(&mut waiting, &mut told);
                    if told.len() > before {
                        self.log.expect((told.len() - before) as u64);
                        told_at = Some(Instant::now());
                    }
                }
                let queues = !waiting.backlog.is_empty();
                self.queue(&mut waiting, queues);
                (told, told_at.is_some() || !waiting.is_empty(), queues)
            };
            answer(told);
            if left {
                // A turn that is over by now is not waited for.
                let longest = told_at.map_or(LOOK_EVERY, |at| TURN.saturating_sub(at.elapsed()));
                if !longest.is_zero() {
                    self.log.wait_a_moment(longest, queues);
                }
            }
        }
    }

    /// If the log has room, the thread takes out the writers whose turn it is.
    fn take_turn(&self, waiting: &mut Waiting, told: &mut Vec<Promise<()>>) {
        if waiting.backlog.is_empty() || !self.log.has_room(true) {
            return;
        }
        let before = told.len();
        while told.len() < before + TOLD_AT_ONCE
            && let Some((since, promise)) = waiting.backlog.pop_front()
        {
            if promise.is_wanted() {
                self.log.note_room(since.elapsed());
                told.push(promise);
            }
        }
    }

    /// The thread takes out the writers that waited for memory, or for a look of the cleaner, and may submit again; all
    /// writers once the log has stopped.
    fn take_told(&self, waiting: &mut Waiting) -> Vec<Promise<()>> {
        if self.is_over() {
            return waiting.take_all();
        }
        if !waiting.memory.is_empty() {
            self.keeper.wake();
        }
        let fewer = waiting.memory.extract_if(.., |(since, _)| !self.keeper.is_crowded_still(*since));
        let mut told: Vec<_> = fewer.map(|(_, promise)| promise).collect();
        let looked = |(asked, since, _): &mut (u64, Instant, _)| self.log.is_looked(*asked) || waited_enough(*since);
        told.extend(waiting.full.extract_if(.., looked).map(|(_, _, promise)| promise));
        told
    }
}
