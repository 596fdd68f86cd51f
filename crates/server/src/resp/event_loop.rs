//! An event loop: one thread, one poll, many connections.
//!
//! poll → turn of each ready connection → replies that wait for nothing are sent at once → the others' barrier is
//! registered, one for the whole loop → the commit wakes the poll once → all that it covers is sent
//!
//! Invariants:
//! 1. At most one waker is registered with the store per loop: that of the lowest barrier that a connection waits
//!    for. The highest is asked for, so that the next group is under way meanwhile.
//! 2. The first loop accepts; connections are dealt out in turn and stay where they are.

use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Wake};
use std::time::{Duration, Instant};

use esker_kv::Barrier;
use mio::{Events, Poll, Token, Waker};
use parking_lot::Mutex;

use crate::front::strangers::Stranger;
use crate::front::users::Face;
use crate::resp::clients::ClientEntry;
use crate::resp::commands::connection::TOO_MANY_CLIENTS;
use crate::resp::commands::{Executor, Table};
use crate::resp::config::{Error, Result};
use crate::resp::connection::{Connection, Fate};
use crate::resp::listen::{Accepted, Listener};
use crate::resp::observer::Observer;
use crate::resp::session::Session;
use crate::resp::shared::{Shared, Tally};
use crate::resp::transport::Transport;

const WAKE: Token = Token(usize::MAX);
/// Tokens from here on are listeners'.
const LISTENERS: usize = usize::MAX / 2;
const EVENTS: usize = 1_024;
const READ_BYTES: usize = 64 << 10;
/// Idle clients and settings are looked at so often.
const TICK: Duration = Duration::from_secs(1);
/// Connections accepted before others have their turn.
const ACCEPTS_PER_TURN: usize = 256;

/// Connections on their way from the accepting loop to theirs.
pub(crate) type Inboxes = Arc<Vec<Mutex<Vec<(Transport, Arc<ClientEntry>, Option<Stranger>)>>>>;

/// Wakes a poll when a barrier is reached.
struct WakePoll(Arc<Waker>);

impl Wake for WakePoll {
    fn wake(self: Arc<Self>) {
        // It fails only once the loop is gone, and then no connection waits.
        let _ = self.0.wake();
    }
}

/// Connections of a loop whose values have arrived, and what wakes its poll.
struct Arrivals {
    connections: Mutex<Vec<Arc<WakeConnection>>>,
    waker: Arc<Waker>,
}

/// Wakes a poll when what a connection waits for has arrived.
struct WakeConnection {
    arrivals: Arc<Arrivals>,
    at: usize,
    /// It is among the arrivals.
    is_told: AtomicBool,
}

impl Wake for WakeConnection {
    fn wake(self: Arc<Self>) {
        if self.is_told.swap(true, Ordering::SeqCst) {
            return;
        }
        let mut connections = self.arrivals.connections.lock();
        connections.push(Arc::clone(&self));
        let is_first = connections.len() == 1;
        drop(connections);
        if is_first {
            // It fails only once the loop is gone, and its connections with it.
            let _ = self.arrivals.waker.wake();
        }
    }
}

/// One loop.
pub(crate) struct EventLoop {
    index: usize,
    shared: Arc<Shared>,
    poll: Poll,
    task: std::task::Waker,
    listeners: Vec<Listener>,
    accept_again: bool,
    inboxes: Inboxes,
    next_loop: usize,
    connections: Vec<Option<Box<Connection>>>,
    free: Vec<usize>,
    /// Connections with more to do at once.
    again: Vec<usize>,
    /// Connections that have waited; the place of one may be another's by now.
    arrivals: Arc<Arrivals>,
    /// Connections that are told every command.
    monitoring: Vec<usize>,
    /// Connections that wait for a barrier.
    waiting: Vec<usize>,
    /// The barrier that wakes this loop.
    registered: Option<Barrier>,
    /// The highest barrier that was not asked for yet.
    unasked: Option<Barrier>,
    /// Connections that have begun to wait since the last time.
    arrived: u64,
    kills: u64,
    /// That of the users when connections looked last.
    generation: u64,
    space: Box<[u8]>,
}

impl EventLoop {
    /// Makes loop `index`, with the waker that others wake it by. `listeners` are the first loop's.
    pub(crate) fn new(
        index: usize,
        shared: Arc<Shared>,
        poll: Poll,
        waker: Arc<Waker>,
        mut listeners: Vec<Listener>,
        inboxes: Inboxes,
    ) -> Result<Self> {
        for (at, listener) in listeners.iter_mut().enumerate() {
            let registered = listener.register(poll.registry(), Token(LISTENERS + at));
            registered.map_err(|source| Error::Io { what: "register a listener", source })?;
        }
        Ok(Self {
            index,
            shared,
            poll,
            arrivals: Arc::new(Arrivals { connections: Mutex::default(), waker: Arc::clone(&waker) }),
            task: Arc::new(WakePoll(waker)).into(),
            listeners,
            accept_again: false,
            inboxes,
            next_loop: 0,
            connections: Vec::new(),
            free: Vec::new(),
            again: Vec::new(),
            monitoring: Vec::new(),
            waiting: Vec::new(),
            registered: None,
            unasked: None,
            arrived: 0,
            kills: 0,
            generation: 0,
            space: vec![0; READ_BYTES].into(),
        })
    }

    /// A poll and its waker.
    pub(crate) fn poll() -> Result<(Poll, Arc<Waker>)> {
        let failed = |what| move |source| Error::Io { what, source };
        let poll = Poll::new().map_err(failed("make a poll"))?;
        let waker = Waker::new(poll.registry(), WAKE).map_err(failed("make a waker"))?;
        Ok((poll, Arc::new(waker)))
    }

    /// Runs until the server stops.
    pub(crate) fn run(mut self) -> Result<()> {
        let mut events = Events::with_capacity(EVENTS);
        let shared = Arc::clone(&self.shared);
        let observer = Observer::new(&shared, self.index, Table::commands());
        let mut executor = Executor {
            shared: &shared,
            table: Table::get(),
            before: 0,
            tally: Tally::default(),
            observer,
            sends_away: shared.line.is_used(),
        };
        let mut tick = Instant::now() + TICK;
        while !shared.is_stopping() {
            let wait = if self.again.is_empty() { TICK } else { Duration::ZERO };
            self.wait(&mut events, wait)?;
            let now = Instant::now();
            self.serve(&events, &mut executor, now);
            if now >= tick {
                tick = now + TICK;
                let since = now.saturating_duration_since(shared.started);
                shared.loops[self.index].round_ms.store(since.as_millis() as u64, Ordering::Relaxed);
                self.close_idle(now);
                if self.accept_again {
                    self.accept_all(now);
                }
            }
        }
        self.drain(&mut events, &mut executor)
    }

    fn wait(&mut self, events: &mut Events, wait: Duration) -> Result<()> {
        match self.poll.poll(events, Some(wait)) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {
                events.clear();
                Ok(())
            }
            other => other.map_err(|source| Error::Io { what: "wait for sockets", source }),
        }
    }

    /// One round: what is ready, what came in, what had more to do, what became durable.
    fn serve(&mut self, events: &Events, executor: &mut Executor<'_>, now: Instant) {
        let mut woken = false;
        for event in events {
            match event.token() {
                WAKE => woken = true,
                Token(at) if at >= LISTENERS => self.accept_all(now),
                Token(at) => {
                    let Some(connection) = self.connections.get_mut(at).and_then(Option::as_mut) else { continue };
                    if event.is_readable() || event.is_read_closed() || event.is_error() {
                        connection.note_readable(event.is_read_closed() || event.is_error());
                    }
                    self.turn(at, executor, now);
                }
            }
        }
        if woken {
            self.take_inbox(executor, now);
            for at in self.take_arrivals() {
                self.turn(at, executor, now);
            }
            for at in std::mem::take(&mut self.monitoring) {
                let Some(connection) = self.connections.get_mut(at).and_then(Option::as_mut) else { continue };
                connection.monitoring = false;
                self.turn(at, executor, now);
            }
        }
        for at in std::mem::take(&mut self.again) {
            self.turn(at, executor, now);
        }
        self.settle(executor, now);
        let tally = std::mem::take(&mut executor.tally);
        if tally.commands > 0 || tally.output_bytes > 0 {
            self.shared.loops[self.index].add(tally);
        }
        self.look_at_users(executor, now);
        let kills = self.shared.kills.load(Ordering::SeqCst);
        if kills != self.kills {
            self.kills = kills;
            let killed = |connection: &Connection| connection.session.client.killed.load(Ordering::SeqCst);
            self.close_where(killed);
        }
    }

    /// Connections that have something to look at; what arrives from now on is told again.
    fn take_arrivals(&self) -> Vec<usize> {
        let arrived = std::mem::take(&mut *self.arrivals.connections.lock());
        let at = |task: Arc<WakeConnection>| {
            task.is_told.store(false, Ordering::SeqCst);
            task.at
        };
        arrived.into_iter().map(at).collect()
    }

    /// Has each connection look what has become of its user, if users have changed.
    fn look_at_users(&mut self, executor: &mut Executor<'_>, now: Instant) {
        let generation = self.shared.users.generation();
        if std::mem::replace(&mut self.generation, generation) == generation {
            return;
        }
        for at in 0..self.connections.len() {
            let Some(connection) = self.connections[at].as_mut() else { continue };
            // One that is away looks when it is back.
            if !connection.session.is_away() && !connection.session.renew(&self.shared) {
                self.turn(at, executor, now);
            }
        }
    }

    /// Disconnects the clients that hold most, where all together hold more than they may.
    /// Its own connections at once, so that the next command of a round finds their memory free. Whether there were
    /// any.
    fn keep_within_memory(&mut self) -> bool {
        let shared = Arc::clone(&self.shared);
        let max = shared.settings.clients_bytes_max.load(Ordering::Relaxed);
        if shared.clients.held_bytes() <= max {
            return false;
        }
        for client in shared.clients.largest_above(max) {
            tracing::warn!(client = %client.address, held = client.held_bytes(), max, "disconnecting a client: all \
                clients together hold more memory than they may (clients_bytes_max)");
            client.killed.store(true, Ordering::SeqCst);
            shared.evicted.fetch_add(1, Ordering::Relaxed);
            if client.event_loop != self.index {
                shared.kills.fetch_add(1, Ordering::SeqCst);
                shared.wake(client.event_loop);
            }
        }
        self.close_where(|connection| connection.session.client.killed.load(Ordering::SeqCst));
        true
    }

    fn turn(&mut self, at: usize, executor: &mut Executor<'_>, now: Instant) {
        let Some(connection) = self.connections.get_mut(at).and_then(Option::as_mut) else { return };
        match connection.turn(executor, &mut self.space, now) {
            Fate::Close => return self.close(at),
            Fate::Again => self.again.push(at),
            Fate::Wait => {}
        }
        if self.keep_within_memory() && self.connections[at].is_none() {
            return;
        }
        let Some(connection) = self.connections.get_mut(at).and_then(Option::as_mut) else { return };
        if connection.session.monitor.is_some() && !connection.monitoring {
            connection.monitoring = true;
            self.monitoring.push(at);
        }
        if let Some(last) = connection.output.last_barrier() {
            if self.unasked.as_ref().is_none_or(|unasked| unasked.position() < last.position()) {
                self.unasked = Some(last.clone());
            }
            if !connection.waiting {
                connection.waiting = true;
                self.arrived += 1;
                self.waiting.push(at);
            }
        }
    }

    /// Sends what has become durable, asks for what has not, and has itself woken by the first of it.
    fn settle(&mut self, executor: &mut Executor<'_>, now: Instant) {
        loop {
            if let Some(unasked) = self.unasked.take() {
                unasked.want_for(std::mem::take(&mut self.arrived));
            }
            if self.registered.as_ref().is_some_and(|registered| registered.state().is_none()) {
                return;
            }
            self.registered = None;
            for at in std::mem::take(&mut self.waiting) {
                let Some(connection) = self.connections.get_mut(at).and_then(Option::as_mut) else { continue };
                connection.waiting = false;
                // Its turn sends what may be sent, and goes on with commands that waited for that.
                self.turn(at, executor, now);
            }
            let lowest = self.waiting.iter().filter_map(|at| self.connections[*at].as_ref()?.output.first_barrier());
            let Some(lowest) = lowest.min_by_key(|barrier| barrier.position()).cloned() else { return };
            if lowest.poll(&mut Context::from_waker(&self.task)).is_pending() {
                self.registered = Some(lowest);
            }
        }
    }

    fn accept_all(&mut self, now: Instant) {
        self.accept_again = false;
        for at in 0..self.listeners.len() {
            for turn in 0.. {
                if turn == ACCEPTS_PER_TURN {
                    // The next round deals with the rest: the poll would not tell of it again.
                    self.accept_again = true;
                    break;
                }
                match self.listeners[at].accept() {
                    Ok(accepted) => self.deal_out(accepted, now),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) if is_about_one(&error) => {}
                    Err(error) => {
                        tracing::warn!(address = %self.listeners[at].address, %error, "cannot accept; trying again soon");
                        self.accept_again = true;
                        break;
                    }
                }
            }
        }
    }

    fn deal_out(&mut self, accepted: Accepted, now: Instant) {
        let Accepted { mut transport, address, local_address } = accepted;
        let target = self.next_loop;
        let max = self.shared.settings.clients_max.load(Ordering::Relaxed);
        let is_tls = matches!(transport, Transport::Tls(..));
        let client = self.shared.clients.add(address, local_address, is_tls, target, now);
        let stranger = if is_tls || self.shared.users.nobody(Face::Kv).is_none() {
            Some(self.enter(&client, now))
        } else if self.shared.clients.admit(&client, max) {
            None
        } else {
            self.shared.clients.remove(client.id);
            self.shared.rejected.fetch_add(1, Ordering::Relaxed);
            // A client that is refused may not read why.
            let _ = transport.write(format!("-{TOO_MANY_CLIENTS}\r\n").as_bytes());
            return;
        };
        self.next_loop = (self.next_loop + 1) % self.inboxes.len();
        self.shared.connections.fetch_add(1, Ordering::Relaxed);
        self.inboxes[target].lock().push((transport, client, stranger));
        if let Some(waker) = self.shared.wakers.get().and_then(|wakers| wakers.get(target)) {
            // A loop that cannot be woken has ended, because the server stops.
            let _ = waker.wake();
        }
    }

    /// A place among the strangers for a client; it is disconnected if it has to make room.
    fn enter(&self, client: &Arc<ClientEntry>, now: Instant) -> Stranger {
        let (shared, client) = (Arc::clone(&self.shared), Arc::clone(client));
        self.shared.strangers.enter(now, move || {
            if client.is_known() {
                return;
            }
            client.killed.store(true, Ordering::SeqCst);
            shared.kills.fetch_add(1, Ordering::SeqCst);
            if let Some(waker) = shared.wakers.get().and_then(|wakers| wakers.get(client.event_loop)) {
                // A loop that cannot be woken has ended, because the server stops.
                let _ = waker.wake();
            }
        })
    }

    fn take_inbox(&mut self, executor: &mut Executor<'_>, now: Instant) {
        let arrived = std::mem::take(&mut *self.inboxes[self.index].lock());
        for (mut transport, client, stranger) in arrived {
            if client.killed.load(Ordering::SeqCst) {
                // It had to make room before it came here.
                self.shared.clients.remove(client.id);
                continue;
            }
            let at = self.free.pop().unwrap_or_else(|| {
                self.connections.push(None);
                self.connections.len() - 1
            });
            if let Err(error) = transport.register(self.poll.registry(), Token(at)) {
                tracing::warn!(client = %client.address, %error, "cannot register a connection");
                self.shared.clients.remove(client.id);
                self.free.push(at);
                continue;
            }
            let mut session = Session::new(client, stranger);
            session.become_nobody(&self.shared);
            let task = WakeConnection { arrivals: Arc::clone(&self.arrivals), at, is_told: AtomicBool::new(false) };
            let task = Arc::new(task);
            let connection = Connection::new(transport, session, task.into(), now);
            self.connections[at] = Some(Box::new(connection));
            self.turn(at, executor, now);
        }
    }

    fn close(&mut self, at: usize) {
        let Some(mut connection) = self.connections[at].take() else { return };
        // First, so that nothing is begun for a client that sees its connection closed.
        connection.session.awaited = None;
        connection.transport().close();
        connection.session.unwatch(&self.shared.keyspace);
        self.shared.clients.remove(connection.session.client.id);
        self.free.push(at);
    }

    fn close_where(&mut self, over: impl Fn(&Connection) -> bool) {
        for at in 0..self.connections.len() {
            if self.connections[at].as_ref().is_some_and(|connection| over(connection)) {
                self.close(at);
            }
        }
    }

    fn close_idle(&mut self, now: Instant) {
        for connection in self.connections.iter().flatten() {
            connection.session.client.touch(connection.active);
        }
        self.close_where(|connection| {
            // A client whose password is being checked has done its part.
            let checked = connection.session.logging_in.is_some() && connection.session.awaited.is_some();
            let late = connection.session.stranger.as_ref().is_some_and(|stranger| now >= stranger.until());
            let late = late && !checked;
            if late {
                connection.session.stranger.iter().for_each(Stranger::took_too_long);
            }
            late
        });
        let idle_seconds = self.shared.settings.idle_seconds.load(Ordering::Relaxed);
        if idle_seconds > 0 {
            let idle = Duration::from_secs(idle_seconds);
            self.close_where(|connection| {
                let busy =
                    connection.waiting || connection.session.awaited.is_some() || connection.session.monitor.is_some();
                !busy && now.duration_since(connection.active) >= idle
            });
        }
    }

    /// Sends the last replies, for a while, and closes everything.
    fn drain(mut self, events: &mut Events, executor: &mut Executor<'_>) -> Result<()> {
        self.listeners.clear();
        let until = Instant::now() + self.shared.config.linger;
        for connection in self.connections.iter_mut().flatten() {
            connection.session.closing = true;
        }
        loop {
            let now = Instant::now();
            // All have a turn.
            self.take_arrivals();
            for at in 0..self.connections.len() {
                self.turn(at, executor, now);
            }
            self.settle(executor, now);
            if self.connections.iter().all(Option::is_none) || now >= until {
                break;
            }
            self.wait(events, Duration::from_millis(100))?;
        }
        self.close_where(|_| true);
        for (_, client, _) in std::mem::take(&mut *self.inboxes[self.index].lock()) {
            self.shared.clients.remove(client.id);
        }
        Ok(())
    }
}

/// Errors of accept that concern the connection, not the listener.
fn is_about_one(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset | ErrorKind::Interrupted | ErrorKind::NotConnected
    )
}
