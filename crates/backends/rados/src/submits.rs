//! Submits under way: begun and not waited for.
//!
//! ```text
//! submit → one operation, if that can decide it → told by a thread of librados
//!              else, or if it says that the object is missing, or that a guard may have failed:
//!          lane of its object → a thread of our own, one submit after the other
//! ```
//!
//! Invariants:
//! 1. Submits of one object are done in the order in which they were begun: one that takes several operations waits
//!    until those before it are told of, and those that come later wait behind it. Those that are under way already
//!    when it turns out to need them are not called back: where another client makes the object at that moment, they
//!    come first.
//! 2. A sync is done when all submits are that were begun before it: what is acknowledged is durable.
//! 3. Threads of librados only tell: they wait for nothing.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use esker_store::{CommitSeq, Completion, Error, Guard, ObjectId, Promise, Result, promised};
use parking_lot::{Condvar, Mutex};

use crate::change::{self, First};
use crate::encode;
use crate::fold::Fold;
use crate::link::{Link, code, write_error};
use crate::native::{Failed, flags};

/// Threads that do what takes several operations, at most.
const THREADS_MAX: usize = 32;

/// A submit of one object.
struct Job {
    ticket: u64,
    object: ObjectId,
    guards: Vec<Guard>,
    fold: Fold,
    /// What came of its one operation, if there was one.
    first: Option<First>,
    began: Instant,
    promise: Promise<CommitSeq>,
}

/// The submits of one object that are under way.
#[derive(Default)]
struct Lane {
    /// Begun as one operation, and not told of.
    begun: BTreeSet<u64>,
    /// Those that take several, by their tickets.
    jobs: BTreeMap<u64, Job>,
    /// A thread has it, or is to take it up.
    taken: bool,
    /// A job has run: what was told of others before is of no use.
    ran: bool,
}

impl Lane {
    /// Whether the first of its jobs may run.
    fn is_ready(&self) -> bool {
        let first = self.jobs.first_key_value().map(|(ticket, _)| *ticket);
        first.is_some_and(|first| self.begun.first().is_none_or(|begun| *begun > first))
    }
}

#[derive(Default)]
struct State {
    lanes: HashMap<ObjectId, Lane>,
    /// Lanes that no thread has taken up.
    ready: VecDeque<ObjectId>,
    threads: Vec<JoinHandle<()>>,
    idle: usize,
    closed: bool,
    last_ticket: u64,
    under_way: BTreeSet<u64>,
    /// Those who wait for all up to a ticket.
    syncs: Vec<(u64, Promise<CommitSeq>)>,
}

/// The submits of a store.
pub(crate) struct Submits {
    link: Link,
    state: Mutex<State>,
    given: Condvar,
    last_seq: AtomicU64,
}

impl Submits {
    pub(crate) fn new(link: Link) -> Arc<Self> {
        Arc::new(Self { link, state: Mutex::default(), given: Condvar::new(), last_seq: AtomicU64::new(0) })
    }

    /// The next number: later than all of this client, and than those of clients whose clocks were not ahead.
    #[allow(clippy::disallowed_methods, reason = "numbers of a client come after those of clients before it")]
    pub(crate) fn next_seq(&self) -> CommitSeq {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
        let last = self.last_seq.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |last| Some(now.max(last + 1)));
        CommitSeq(now.max(last.unwrap_or(0) + 1))
    }

    /// Begins a submit of one object.
    pub(crate) fn begin(self: &Arc<Self>, object: ObjectId, guards: Vec<Guard>, fold: Fold) -> Completion<CommitSeq> {
        if guards.is_empty() && fold.is_empty() {
            return Completion::ready(Ok(self.next_seq()));
        }
        if let Err(error) = change::check(&guards, &fold) {
            return Completion::ready(Err(error));
        }
        let write = change::at_once(&guards, &fold);
        let (promise, completion) = promised("a write to Ceph");
        let mut state = self.state.lock();
        state.last_ticket += 1;
        let ticket = state.last_ticket;
        state.under_way.insert(ticket);
        let job = Job { ticket, object, guards, fold, first: None, began: Instant::now(), promise };
        let lane = state.lanes.entry(job.object.clone()).or_default();
        let Some(write) = write.filter(|_| lane.jobs.is_empty() && !lane.taken) else {
            self.give(&mut state, job);
            return completion;
        };
        lane.begun.insert(ticket);
        // One that cannot be begun is told of at once.
        drop(state);
        let (own, name) = (Arc::clone(self), encode::object(&job.object));
        self.link.pool.write(&name, write, flags::FULL_TRY, move |outcome| own.told(job, outcome));
        completion
    }

    fn told(self: Arc<Self>, mut job: Job, outcome: std::result::Result<u64, Failed>) {
        let first = match outcome {
            Ok(_) => Ok(None),
            Err(Failed { code: code::NOT_THERE, .. }) => Ok(Some(First::Missing)),
            Err(Failed { code: code::CANCELED, .. }) => Ok(Some(First::Refused)),
            Err(failed) => Err(write_error(failed, &encode::object(&job.object))),
        };
        let mut state = self.state.lock();
        if let Some(lane) = state.lanes.get_mut(&job.object) {
            lane.begun.remove(&job.ticket);
        }
        if let Ok(Some(first)) = first {
            job.first = Some(first);
            self.give(&mut state, job);
            return;
        }
        self.go_on(&mut state, &job.object);
        drop(state);
        self.end(job.ticket, job.promise, first.map(drop));
    }

    /// Puts a submit into the lane of its object.
    fn give(self: &Arc<Self>, state: &mut State, job: Job) {
        let object = job.object.clone();
        state.lanes.entry(object.clone()).or_default().jobs.insert(job.ticket, job);
        self.go_on(state, &object);
    }

    /// Has a thread take the lane up, if it is ready, and forgets it if it is empty.
    fn go_on(self: &Arc<Self>, state: &mut State, object: &ObjectId) {
        let Some(lane) = state.lanes.get_mut(object) else { return };
        if lane.taken {
            return;
        }
        if lane.jobs.is_empty() && lane.begun.is_empty() {
            state.lanes.remove(object);
            return;
        }
        if !lane.is_ready() {
            return;
        }
        lane.taken = true;
        state.ready.push_back(object.clone());
        if state.idle > 0 {
            state.idle -= 1;
            self.given.notify_one();
        } else if state.threads.len() < THREADS_MAX {
            let own = Arc::clone(self);
            match std::thread::Builder::new().name("esker-ceph".into()).spawn(move || own.work()) {
                Ok(thread) => state.threads.push(thread),
                Err(error) if state.threads.is_empty() => {
                    tracing::error!(%error, "no thread can be started for writing to Ceph: what needs one waits");
                }
                // Those that there are come to it.
                Err(_) => {}
            }
        }
    }

    fn work(self: Arc<Self>) {
        let mut state = self.state.lock();
        loop {
            let Some(object) = state.ready.pop_front() else {
                if state.closed {
                    return;
                }
                state.idle += 1;
                self.given.wait(&mut state);
                continue;
            };
            while let Some(lane) = state.lanes.get_mut(&object).filter(|lane| lane.is_ready()) {
                let Some((_, mut job)) = lane.jobs.pop_first() else { break };
                if std::mem::replace(&mut lane.ran, true) {
                    job.first = None;
                }
                drop(state);
                self.run(job);
                state = self.state.lock();
            }
            if let Some(lane) = state.lanes.get_mut(&object) {
                lane.taken = false;
            }
            self.go_on(&mut state, &object);
        }
    }

    fn run(&self, job: Job) {
        let Job { ticket, object, guards, fold, first, began, promise } = job;
        // A waker that panics, or a drop, is no reason to write no more.
        let run = AssertUnwindSafe(|| {
            let done = if began.elapsed() < change::PATIENCE {
                change::change(&self.link, &object, &guards, &fold, first)
            } else {
                // It was never begun.
                let cause = std::io::Error::from(std::io::ErrorKind::TimedOut);
                Err(Error::io(format!("writing {object} to Ceph, behind others that were not answered"), cause))
            };
            self.end(ticket, promise, done);
        });
        if catch_unwind(run).is_err() {
            tracing::error!("a waker of a write panicked");
        }
    }

    fn end(&self, ticket: u64, promise: Promise<CommitSeq>, outcome: Result<()>) {
        let seq = self.next_seq();
        // Whatever a waker does, the ticket goes; and only then a sync can be told that it is done.
        let _ended = Ended { submits: self, ticket, seq };
        promise.fulfil((outcome.map(|()| seq), None));
    }

    /// Ends once all that is under way has ended.
    pub(crate) fn sync(&self) -> Completion<CommitSeq> {
        let mut state = self.state.lock();
        if state.under_way.is_empty() {
            return Completion::ready(Ok(CommitSeq(self.last_seq.load(Ordering::SeqCst))));
        }
        let (promise, completion) = promised("a sync of Ceph");
        let upto = state.last_ticket;
        state.syncs.push((upto, promise));
        completion
    }

    /// Ends the threads when they have done what they were given.
    pub(crate) fn close(&self) {
        let mut state = self.state.lock();
        (state.closed, state.idle) = (true, 0);
        let threads = std::mem::take(&mut state.threads);
        drop(state);
        self.given.notify_all();
        for thread in threads {
            // A waker that drops a store may run on one of these, which cannot wait for itself.
            if thread.thread().id() != std::thread::current().id() && thread.join().is_err() {
                tracing::error!("a thread that writes to Ceph panicked");
            }
        }
    }
}

/// Takes a ticket out, and tells the syncs that waited for it.
struct Ended<'s> {
    submits: &'s Submits,
    ticket: u64,
    seq: CommitSeq,
}

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        let mut state = self.submits.state.lock();
        state.under_way.remove(&self.ticket);
        let first = state.under_way.first().copied().unwrap_or(u64::MAX);
        let done: Vec<_> = state.syncs.extract_if(.., |(upto, _)| *upto < first).collect();
        drop(state);
        for (_, sync) in done {
            sync.fulfil((Ok(self.seq), None));
        }
    }
}
