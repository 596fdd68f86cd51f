//! Commands on a store that is on the other side of a network: threads beside the event loops run them, so that a loop
//! waits for no answer from there.
//!
//! loop → the session and its command → line of the command's key → thread → run → the session and its reply → the
//! loop is woken
//!
//! Invariants:
//! 1. A session is in one place. While it is away its connection has a stand-in, runs no command and sends what was
//!    ready before.
//! 2. A session that finds its connection gone watches nothing any more.
//! 3. Of the commands of one key one is run at a time, so that those that wait for a busy key hold no thread. At most
//!    one command of a connection waits.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

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

struct Job {
    away: Away,
    queued: Arc<Queued>,
    /// Of the command's first key.
    key: Option<u64>,
    promise: Promise<Away>,
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
    pub(crate) fn send(&self, shared: &Arc<Shared>, session: Session, queued: Arc<Queued>) -> Completion<Away> {
        let (promise, back) = promised("the thread that runs commands");
        let key = first_key(&session, &queued).map(|key| self.hasher.hash_one((session.database, key)));
        let (session, shared) = (Some(Box::new(session)), Arc::clone(shared));
        let away = Away { session, shared, reply: Vec::new(), barrier: None, tally: Tally::default() };
        let job = Job { away, queued, key, promise };
        let mut state = self.state.lock();
        if state.is_over {
            // Its server has stopped: the connection is told so, as the promise is dropped.
            drop(state);
            return back;
        }
        if state.enter(job) {
            drop(state);
            self.changed.notify_one();
        }
        back
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
    while let Some(Job { mut away, queued, key, promise }) = shared.line.next(done) {
        // A connection that is gone has no commands any more.
        if promise.is_wanted()
            && let Some(session) = &mut away.session
        {
            session.again = Some(Arc::clone(&queued));
            executor.observer.begin_batch();
            away.barrier = executor.execute(session, queued.args(), &mut away.reply);
            executor.observer.end_batch(session);
            session.again = None;
            away.tally = std::mem::take(&mut executor.tally);
        }
        promise.fulfil((Ok(away), None));
        done = key;
    }
}
