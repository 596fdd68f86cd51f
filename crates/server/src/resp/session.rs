//! What a connection is to the commands: its database, protocol version, rights, queue and watched keys.
//!
//! Invariant: a session that ends, or whose MULTI ends, watches nothing any more.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use esker_store::Waits;

use crate::front::strangers::Stranger;
use crate::front::users::{Face, User};
use crate::resp::awaited::Awaited;
use crate::resp::clients::ClientEntry;
use crate::resp::keyspace::Keyspace;
use crate::resp::monitors::Monitor;
use crate::resp::queued::{Begun, Queued, Ran};
use crate::resp::rights::Rights;
use crate::resp::shared::Shared;
use crate::trace::Traced;

/// What MULTI collects.
#[derive(Default)]
pub(crate) struct Queue {
    pub(crate) commands: Vec<Queued>,
    pub(crate) bytes: usize,
    /// A command was refused: EXEC will be too.
    pub(crate) broken: bool,
}

/// A watched key, until when the entry lasts that was seen, and its digest.
pub(crate) struct Watched {
    pub(crate) database: u8,
    pub(crate) key: Vec<u8>,
    pub(crate) expires_ms: Option<u64>,
    pub(crate) seen: u64,
}

/// State of one connection.
pub(crate) struct Session {
    pub(crate) client: Arc<ClientEntry>,
    pub(crate) database: u8,
    pub(crate) resp3: bool,
    /// It has sent READONLY.
    pub(crate) reads_replicas: bool,
    /// What its user may do; `None` before he is known.
    pub(crate) rights: Option<Arc<Rights>>,
    /// The name of the user whose password is being checked.
    pub(crate) logging_in: Option<String>,
    /// That of the users when the rights were looked up.
    generation: u64,
    /// Its place among those who have not shown yet that they may be served.
    pub(crate) stranger: Option<Stranger>,
    pub(crate) queue: Option<Queue>,
    pub(crate) watched: Vec<Watched>,
    pub(crate) dirty: Arc<AtomicBool>,
    /// A reply whose values are on their way: no command is run before it is written.
    pub(crate) awaited: Option<Awaited>,
    /// How often the command under way was begun anew for what it reads.
    pub(crate) waits: u32,
    /// How often it has waited for room.
    pub(crate) room_waits: Waits,
    /// The command under way, if it was kept to be run again.
    pub(crate) again: Option<Arc<Queued>>,
    /// Set by a command that has to be run elsewhere: it, until the session has gone with it.
    pub(crate) leaves: Option<Arc<Queued>>,
    /// When the command began that is run again.
    pub(crate) began: Option<Instant>,
    /// The command that `awaited` answers.
    pub(crate) begun: Option<Begun>,
    /// The span of the command under way, or of the one that was just answered, if it is traced.
    pub(crate) traced: Option<Traced>,
    /// What EXEC has run and is not noted yet.
    pub(crate) ran: Vec<Ran>,
    /// It is told every command.
    pub(crate) monitor: Option<Monitor>,
    /// What a command under way draws by, in each of its runs the same.
    pub(crate) seeds: Option<std::hash::RandomState>,
    /// How many commands of this run of the command have drawn by them.
    pub(crate) draws: u64,
    /// Generation of the gate when it was looked whose the keys of the command under way are.
    pub(crate) slots_seen: u64,
    /// Close the connection once the replies so far are sent.
    pub(crate) closing: bool,
}

impl Session {
    pub(crate) fn new(client: Arc<ClientEntry>, stranger: Option<Stranger>) -> Self {
        Self {
            client,
            database: 0,
            resp3: false,
            reads_replicas: false,
            rights: None,
            logging_in: None,
            generation: 0,
            stranger,
            queue: None,
            watched: Vec::new(),
            dirty: Arc::default(),
            awaited: None,
            waits: 0,
            room_waits: Waits::default(),
            again: None,
            leaves: None,
            began: None,
            begun: None,
            traced: None,
            ran: Vec::new(),
            monitor: None,
            seeds: None,
            draws: 0,
            slots_seen: 0,
            closing: false,
        }
    }

    /// What stands in for it while it is away: what is told of it stays as it was.
    pub(crate) fn stand_in(&self) -> Self {
        let Self { database, resp3, reads_replicas, .. } = *self;
        Self { database, resp3, reads_replicas, ..Self::new(Arc::clone(&self.client), None) }
    }

    /// Whether it stands in for one that is away.
    pub(crate) fn is_away(&self) -> bool {
        matches!(self.awaited, Some(Awaited::Away(..)))
    }

    /// Whether its user is known.
    pub(crate) fn is_authenticated(&self) -> bool {
        self.rights.is_some()
    }

    /// It is this user's from now on; he was found when users had this generation.
    pub(crate) fn become_user(&mut self, user: Arc<User>, generation: u64) {
        self.generation = generation;
        user.name().clone_into(&mut self.client.names.lock().user);
        self.rights = Some(Rights::of(user));
    }

    /// It is the user's of clients that say no name, if he needs no password; else it has no user.
    pub(crate) fn become_nobody(&mut self, shared: &Shared) {
        // Before the look, so that a change meanwhile is seen.
        let generation = shared.users.generation();
        (self.generation, self.rights) = (generation, None);
        if let Some(user) = shared.users.nobody(Face::Kv) {
            self.become_user(user, generation);
        }
    }

    /// Looks its user up again, if users have changed. False if he is gone, or may not log in any more: then it has to
    /// go.
    #[inline]
    pub(crate) fn renew(&mut self, shared: &Shared) -> bool {
        let generation = shared.users.generation();
        self.generation == generation || self.renew_to(generation, shared)
    }

    #[cold]
    fn renew_to(&mut self, generation: u64, shared: &Shared) -> bool {
        self.generation = generation;
        let Some(rights) = &self.rights else {
            // It may need no password any more.
            self.become_nobody(shared);
            return true;
        };
        match shared.users.find(rights.user.name()) {
            Some(user) if user.uses(Face::Kv) => {
                self.become_user(user, generation);
                let monitors = self.monitor.is_some();
                let goes = monitors && self.rights.as_ref().is_some_and(|rights| !rights.may_monitor());
                self.closing |= goes;
                !goes
            }
            _ => {
                // Nor does it do with the rights that he had what it does before it goes.
                (self.closing, self.rights) = (true, None);
                false
            }
        }
    }

    /// Takes a place among the clients, if it is a stranger that has shown that it may be served. False if there is
    /// none: then it has to go.
    #[inline]
    pub(crate) fn admit(&mut self, shared: &Shared) -> bool {
        self.stranger.is_none() || !self.is_authenticated() || self.admit_stranger(shared)
    }

    #[cold]
    fn admit_stranger(&mut self, shared: &Shared) -> bool {
        let admitted = shared.clients.admit(&self.client, shared.settings.clients_max.load(Ordering::Relaxed));
        if admitted {
            self.stranger = None;
        } else {
            shared.rejected.fetch_add(1, Ordering::Relaxed);
            self.rights = None;
            self.closing = true;
        }
        admitted
    }

    pub(crate) fn unwatch(&mut self, keyspace: &Keyspace) {
        for watched in self.watched.drain(..) {
            keyspace.watches.remove(watched.database, &watched.key, &self.dirty);
            keyspace.forget_watcher(&watched.key);
        }
        self.dirty.store(false, Ordering::SeqCst);
    }

    /// Lets others see how it stands.
    pub(crate) fn publish(&self) {
        let client = &self.client;
        if let Some(awaited) = self.awaited.as_ref().filter(|_| self.is_away()) {
            client.queued_bytes.store(awaited.queued_bytes(), Ordering::Relaxed);
            return;
        }
        client.database.store(self.database, Ordering::Relaxed);
        client.resp.store(if self.resp3 { 3 } else { 2 }, Ordering::Relaxed);
        let queued = self.queue.as_ref().map_or(-1, |queue| queue.commands.len() as i64);
        client.queued.store(queued, Ordering::Relaxed);
        client.watched.store(self.watched.len(), Ordering::Relaxed);
        let queued_bytes = self.queue.as_ref().map_or(0, |queue| queue.bytes);
        let waits_bytes = self.awaited.as_ref().map_or(0, Awaited::queued_bytes);
        client.queued_bytes.store(queued_bytes + waits_bytes, Ordering::Relaxed);
        client.monitors.store(self.monitor.is_some(), Ordering::Relaxed);
    }
}
