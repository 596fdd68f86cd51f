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

use std::any::Any;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll};
use std::time::Instant;

use esker_store::{Barrier, Completion, promised};

use crate::resp::awaited::Elsewhere;
use crate::resp::commands::{Executor, Table};
use crate::resp::line::Turn;
use crate::resp::observer::Observer;
use crate::resp::queued::Queued;
use crate::resp::session::Session;
use crate::resp::shared::{Shared, Tally};

/// What makes the numbers of keys unknown to clients.
static HASHER: LazyLock<RandomState> = LazyLock::new(RandomState::new);

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

    /// Runs the command, in a thread beside the loops of this number.
    fn run(&mut self, queued: &Arc<Queued>, since: Instant, index: usize) {
        let Self { session: Some(session), shared, reply, barrier, tally } = self else { return };
        // What its user might when the command came, he may not any more.
        if !session.renew(shared) {
            return;
        }
        // The time in line is not the command's.
        session.began = session.began.map(|began| began + since.elapsed());
        session.again = Some(Arc::clone(queued));
        let mut executor = Executor {
            shared,
            table: Table::get(),
            before: queued.command,
            tally: Tally::default(),
            observer: Observer::new(shared, shared.loops.len() + index, Table::commands()),
            sends_away: false,
        };
        *barrier = executor.execute(session, queued.args(), reply);
        executor.observer.end_batch(session);
        *tally = executor.tally;
        session.again = None;
    }
}

impl Drop for Away {
    fn drop(&mut self) {
        if let Some(session) = &mut self.session {
            session.unwatch(&self.shared.keyspace);
        }
    }
}

/// What a connection has sent away; where that is dropped before a thread has taken it, it is freed.
struct Sent {
    back: Completion<Away>,
    _turn: Turn,
    bytes: usize,
}

impl Elsewhere for Sent {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.back.poll_arrived(cx)
    }

    fn bytes(&self) -> usize {
        self.bytes
    }

    fn back(self: Box<Self>) -> Option<Box<dyn Any>> {
        let away = self.back.into_parts().0.ok()?;
        Some(Box::new(away))
    }
}

/// Sends a session away to run this command.
pub(crate) fn send(shared: &Arc<Shared>, session: Session, queued: Arc<Queued>) -> Box<dyn Elsewhere> {
    let (promise, back) = promised("the thread that runs commands");
    let key = first_key(&session, &queued).map(|key| HASHER.hash_one((session.database, key)));
    let bytes = queued.bytes() + session.queue.as_ref().map_or(0, |queue| queue.bytes);
    let session = Some(Box::new(session));
    let mut away =
        Away { session, shared: Arc::clone(shared), reply: Vec::new(), barrier: None, tally: Tally::default() };
    let since = Instant::now();
    let work = move |index| {
        away.run(&queued, since, index);
        promise.fulfil((Ok(away), None));
    };
    Box::new(Sent { back, _turn: shared.line.enter(key, Box::new(work)), bytes })
}

/// The first key that a command names, or those that EXEC runs.
fn first_key<'k>(session: &'k Session, queued: &'k Queued) -> Option<&'k [u8]> {
    fn of(queued: &Queued) -> Option<&[u8]> {
        Table::commands()[queued.command].keys_of(queued.args()).next()
    }
    of(queued).or_else(|| session.queue.iter().flat_map(|queue| &queue.commands).find_map(of))
}
