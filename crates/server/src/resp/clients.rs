//! Who is connected: what CLIENT LIST shows and CLIENT KILL needs.
//!
//! Invariant: the event loop of a client updates its figures after each batch of commands, not after each command;
//! others only read them, rename nothing and may at most mark it for disconnection.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use parking_lot::Mutex;

/// Names that a client gave itself.
#[derive(Clone, Debug, Default)]
pub(super) struct Names {
    pub(crate) name: String,
    pub(crate) library: String,
    pub(crate) library_version: String,
    /// Its user's; empty before he is known.
    pub(crate) user: String,
}

/// One connected client.
#[derive(Debug)]
pub(crate) struct ClientEntry {
    pub(crate) id: u64,
    pub(crate) address: String,
    pub(crate) local_address: String,
    /// Whether it speaks TLS.
    pub(crate) is_tls: bool,
    pub(crate) event_loop: usize,
    created: Instant,
    pub(super) names: Mutex<Names>,
    pub(crate) killed: AtomicBool,
    /// It has a place of those who may be served.
    known: AtomicBool,
    pub(crate) database: AtomicU8,
    pub(crate) resp: AtomicU8,
    /// Commands queued by MULTI, or -1.
    pub(crate) queued: AtomicI64,
    pub(crate) watched: AtomicUsize,
    pub(crate) input_bytes: AtomicUsize,
    pub(crate) output_bytes: AtomicUsize,
    /// Memory that input and output take, used or not.
    pub(crate) input_capacity: AtomicUsize,
    pub(crate) output_capacity: AtomicUsize,
    /// Memory of what MULTI queued.
    pub(crate) queued_bytes: AtomicUsize,
    /// What of its memory is counted among all clients'.
    counted: AtomicUsize,
    /// It is told every command.
    pub(crate) monitors: AtomicBool,
    /// Name of the last command, as an index into the command table.
    pub(crate) last_command: AtomicUsize,
    /// Milliseconds from `created` to the last bytes.
    active_ms: AtomicU64,
}

impl ClientEntry {
    /// Whether it has a place of those who may be served.
    pub(crate) fn is_known(&self) -> bool {
        self.known.load(Ordering::SeqCst)
    }

    pub(crate) fn touch(&self, now: Instant) {
        self.active_ms.store(now.duration_since(self.created).as_millis() as u64, Ordering::Relaxed);
    }

    /// Memory held for it: commands that are not whole or wait, queued ones, replies.
    pub(crate) fn held_bytes(&self) -> usize {
        let load = |figure: &AtomicUsize| figure.load(Ordering::Relaxed);
        load(&self.input_capacity) + load(&self.output_capacity) + load(&self.queued_bytes)
    }

    /// One line, as CLIENT LIST has it.
    pub(crate) fn line(&self, command: &str) -> String {
        let names = self.names.lock().clone();
        let age_ms = self.created.elapsed().as_millis() as u64;
        let idle_s = age_ms.saturating_sub(self.active_ms.load(Ordering::Relaxed)) / 1_000;
        let queued = self.queued.load(Ordering::Relaxed);
        let load = |figure: &AtomicUsize| figure.load(Ordering::Relaxed);
        let (input, queued_bytes) = (load(&self.input_bytes), load(&self.queued_bytes));
        let (input_capacity, output_capacity) = (load(&self.input_capacity), load(&self.output_capacity));
        let flags = match (self.monitors.load(Ordering::Relaxed), queued >= 0) {
            (true, _) => "O",
            (false, true) => "x",
            (false, false) => "N",
        };
        let mut line = String::new();
        let _ = write!(
            line,
            "id={} addr={} laddr={} fd={} name={} age={} idle={idle_s} flags={} db={} sub=0 psub=0 ssub=0 multi={queued} \
             watch={} qbuf={input} qbuf-free={} argv-mem=0 multi-mem={queued_bytes} rbs=0 rbp=0 obl={} oll=0 \
             omem={output_capacity} tot-mem={} events=r cmd={} user={} redir=-1 resp={} lib-name={} lib-ver={}",
            self.id,
            self.address,
            self.local_address,
            self.id,
            names.name,
            age_ms / 1_000,
            flags,
            self.database.load(Ordering::Relaxed),
            self.watched.load(Ordering::Relaxed),
            input_capacity.saturating_sub(input),
            load(&self.output_bytes),
            input_capacity + output_capacity + queued_bytes + size_of::<Self>(),
            command,
            if names.user.is_empty() { "default" } else { &names.user },
            self.resp.load(Ordering::Relaxed),
            names.library,
            names.library_version,
        );
        line
    }
}

/// All connected clients.
#[derive(Default)]
pub(crate) struct Clients {
    connected: Mutex<BTreeMap<u64, Arc<ClientEntry>>>,
    /// Those who have a place.
    count: AtomicUsize,
    last_id: AtomicU64,
    /// Memory held for all of them.
    held: AtomicUsize,
}

impl Clients {
    /// Registers a client.
    pub(crate) fn add(
        &self,
        address: String,
        local_address: String,
        is_tls: bool,
        event_loop: usize,
        now: Instant,
    ) -> Arc<ClientEntry> {
        let id = self.last_id.fetch_add(1, Ordering::SeqCst) + 1;
        let client = Arc::new(ClientEntry {
            id,
            address,
            local_address,
            is_tls,
            event_loop,
            created: now,
            names: Mutex::default(),
            killed: AtomicBool::new(false),
            known: AtomicBool::new(false),
            database: AtomicU8::new(0),
            resp: AtomicU8::new(2),
            queued: AtomicI64::new(-1),
            watched: AtomicUsize::new(0),
            input_bytes: AtomicUsize::new(0),
            output_bytes: AtomicUsize::new(0),
            input_capacity: AtomicUsize::new(0),
            output_capacity: AtomicUsize::new(0),
            queued_bytes: AtomicUsize::new(0),
            counted: AtomicUsize::new(0),
            monitors: AtomicBool::new(false),
            last_command: AtomicUsize::new(usize::MAX),
            active_ms: AtomicU64::new(0),
        });
        self.connected.lock().insert(id, Arc::clone(&client));
        client
    }

    /// Takes a place of those who may be served for a client that is registered, unless it has one; false if all `max`
    /// are taken.
    pub(crate) fn admit(&self, client: &ClientEntry, max: usize) -> bool {
        if client.known.load(Ordering::SeqCst) {
            return true;
        }
        if self.count.fetch_add(1, Ordering::SeqCst) >= max {
            self.count.fetch_sub(1, Ordering::SeqCst);
            return false;
        }
        client.known.store(true, Ordering::SeqCst);
        true
    }

    pub(crate) fn remove(&self, id: u64) {
        let removed = self.connected.lock().remove(&id);
        let Some(client) = removed else { return };
        self.held.fetch_sub(client.counted.swap(0, Ordering::Relaxed), Ordering::Relaxed);
        if client.known.load(Ordering::SeqCst) {
            self.count.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Counts what is held for a client now. Its event loop calls it.
    pub(crate) fn count(&self, client: &ClientEntry) {
        let held = client.held_bytes();
        let counted = client.counted.swap(held, Ordering::Relaxed);
        if held >= counted {
            self.held.fetch_add(held - counted, Ordering::Relaxed);
        } else {
            self.held.fetch_sub(counted - held, Ordering::Relaxed);
        }
    }

    /// Memory held for all clients.
    pub(crate) fn held_bytes(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// The clients that hold most, as many as have to go so that the others hold no more than `max`.
    pub(crate) fn largest_above(&self, max: usize) -> Vec<Arc<ClientEntry>> {
        let mut all = self.all();
        all.retain(|client| !client.killed.load(Ordering::SeqCst));
        all.sort_by_key(|client| std::cmp::Reverse(client.counted.load(Ordering::Relaxed)));
        let mut held: usize = all.iter().map(|client| client.counted.load(Ordering::Relaxed)).sum();
        let mut gone = Vec::new();
        for client in all {
            if held <= max {
                break;
            }
            held -= client.counted.load(Ordering::Relaxed).min(held);
            gone.push(client);
        }
        gone
    }

    /// Clients by id.
    pub(crate) fn all(&self) -> Vec<Arc<ClientEntry>> {
        self.connected.lock().values().cloned().collect()
    }
}
