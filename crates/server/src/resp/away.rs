//! Commands on a store that is on the other side of a network: threads beside the event loops run them, so that a loop
//! waits for no answer from there.
//!
//! loop → the session and its command → line of the command's key → thread → run → the session and its reply
//! → the loop is woken
//!
//! Invariants:
//! 1. A session is in one place. While it is away its connection has a stand-in, runs no command and sends what was
//!    ready before.
//! 2. A session that finds its connection gone watches nothing any more.
//! 3. Of the commands whose first key is the same one is run at a time, so that those that wait for a busy key hold no
//!    thread. Others do: as many as there are threads wait for the store, and the next for them.
//! 4. At most one command of a connection waits, and none of one that is closed.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use esker_store::{Barrier, Completion, Promise, promised};
use parking_lot::{Condvar, Mutex};

use crate::resp::commands::{Executor, Table};
use crate::resp::observer::Observer;
use crate::resp::queued::Queued;
use crate::resp::session::Session;
use crate::resp::shared::{Shared, Tally};

/// A session that is away, and what its command has come to.
pub(crate) struct Away {
    session: Option<Box<Session>>,
    shared: Arc<Shared>,
    /// Its reply, if it has one already.
    pub(crate) reply: Vec<u8>,
    /// What the reply waits for.
    pub(crate) barrier: Option<Barrier>,
    pub(crate) tally: Tally,
}

impl Away {
    /// The session, which is back.
    pub(crate) fn take(&mut self) -> Option<Session> {
        self.session.take().map(|session| *session)
    }
}

impl Drop for Away {
    fn drop(&mut self) {
        if let Some(session) = &mut self.session {
            session.unwatch(&self.shared.keyspace);
        }
    }
}

/// What a job runs; taken by the thread that runs it, or by the connection's end.
struct Load {
    away: Away,
    queued: Arc<Queued>,
    since: Instant,
}

struct Job {
    load: Arc<Mutex<Option<Load>>>,
    /// Of the command's first key.
    key: Option<u64>,
    promise: Promise<Away>,
}

/// What a connection has sent away; where that is dropped before a thread has taken it, it is freed.
pub(crate) struct Sent {
    back: Completion<Away>,
    load: Arc<Mutex<Option<Load>>>,
    /// Memory that it holds, in bytes.
    pub(crate) bytes: usize,
}

impl Sent {
    /// Ready once the session is back; the task of `cx` is woken then.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.back.poll_arrived(cx)
    }

    /// The session, which is back; `None`: it is lost.
    pub(crate) fn take(&mut self) -> Option<Away> {
        let nothing = Completion::ready(Err(esker_store::Error::Stopped { cause: "taken".into() }));
        std::mem::replace(&mut self.back, nothing).into_parts().0.ok()
    }
}

impl Drop for Sent {
    fn drop(&mut self) {
        let load = self.load.lock().take();
        drop(load);
    }
}

#[derive(Default)]
struct State {
    /// What can be run.
    ready: VecDeque<Job>,
    /// By key of which a command is ready or being run: those that come after it.
    behind: HashMap<u64, VecDeque<Job>>,
    is_over: bool,
}

/// The lines of a server, and its threads' work.
pub(crate) struct Line {
    state: Mutex<State>,
    changed: Condvar,
    hasher: RandomState,
    threads: usize,
}

impl Line {
    /// For so many threads; with none every command is run by its loop.
    pub(crate) fn new(threads: usize) -> Self {
        Self { state: Mutex::default(), changed: Condvar::new(), hasher: RandomState::new(), threads }
    }

    /// Threads that are to call [`serve`].
    pub(crate) fn threads(&self) -> usize {
        self.threads
    }

    /// Whether commands are sent here.
    #[inline]
    pub(crate) fn is_used(&self) -> bool {
        self.threads > 0
    }

    /// Sends a session away to run this command.
    pub(crate) fn send(&self, shared: &Arc<Shared>, session: Session, queued: Arc<Queued>) -> Sent {
        let (promise, back) = promised("the thread that runs commands");
        let key = first_key(&session, &queued).map(|key| self.hasher.hash_one((session.database, key)));
        let bytes = queued.bytes() + session.queue.as_ref().map_or(0, |queue| queue.bytes);
        let (session, shared) = (Some(Box::new(session)), Arc::clone(shared));
        let away = Away { session, shared, reply: Vec::new(), barrier: None, tally: Tally::default() };
        let load = Arc::new(Mutex::new(Some(Load { away, queued, since: Instant::now() })));
        let job = Job { load: Arc::clone(&load), key, promise };
        let mut state = self.state.lock();
        // Once its server has stopped, the connection is told so as the promise is dropped.
        if !state.is_over && state.enter(job) {
            drop(state);
            self.changed.notify_one();
        }
        Sent { back, load, bytes }
    }

    /// What is to be run now; `None` once the line has ended. Of the key of the command that this thread has run the
    /// next has its turn, behind those of other keys.
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

    /// Ends the threads, each once its command is run. Those that wait are not run any more.
    fn end(&self) {
        let mut state = self.state.lock();
        let State { ready, behind, .. } = std::mem::replace(&mut *state, State { is_over: true, ..State::default() });
        drop(state);
        self.changed.notify_all();
        // Not under the lock: the promises wake those who wait for them.
        drop((ready, behind));
    }
}

/// The first key that a command names, or those that EXEC runs.
fn first_key<'k>(session: &'k Session, queued: &'k Queued) -> Option<&'k [u8]> {
    fn of(queued: &Queued) -> Option<&[u8]> {
        Table::commands()[queued.command].keys_of(queued.args()).next()
    }
    of(queued).or_else(|| session.queue.iter().flat_map(|queue| &queue.commands).find_map(of))
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
                // Those of connections that are closed need not be kept until their turn.
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

    /// A command of this key was run. Who calls takes a command next, so that there is no thread to wake.
    fn leave(&mut self, key: u64) {
        let Some(behind) = self.behind.get_mut(&key) else { return };
        match behind.pop_front() {
            Some(job) => self.ready.push_back(job),
            None => drop(self.behind.remove(&key)),
        }
    }
}

/// Runs commands until the line ends. `index` counts the threads.
pub(crate) fn serve(shared: &Arc<Shared>, index: usize) {
    let observer = Observer::new(shared, shared.loops.len() + index, Table::commands());
    let mut executor =
        Executor { shared, table: Table::get(), before: 0, tally: Tally::default(), observer, sends_away: false };
    let mut done = None;
    while let Some(Job { load, key, promise }) = shared.line.next(done) {
        done = key;
        let taken = load.lock().take();
        // A connection that is closed has no commands any more.
        let Some(Load { mut away, queued, since }) = taken else { continue };
        if let Some(session) = &mut away.session
            // What its user might when the command came, he may not any more.
            && session.renew(shared)
        {
            // The time in line is not the command's.
            session.began = session.began.map(|began| began + since.elapsed());
            session.again = Some(Arc::clone(&queued));
            executor.observer.begin_batch();
            away.barrier = executor.execute(session, queued.args(), &mut away.reply);
            executor.observer.end_batch(session);
            session.again = None;
            away.tally = std::mem::take(&mut executor.tally);
        }
        promise.fulfil((Ok(away), None));
    }
}
