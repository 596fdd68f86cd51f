//! What all event loops share: the keyspace, settings that change at run time, statistics, how to stop.
//!
//! Invariant: nothing here is locked while a command runs, save for the moment of a look-up.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use esker_kv::{Barrier, Durability};
use parking_lot::{Condvar, Mutex};

use crate::front::logins::Logins;
use crate::front::strangers::Strangers;
use crate::front::tls::Certificates;
use crate::front::users::Users;
use crate::resp::clients::Clients;
use crate::resp::command_stats::CommandStats;
use crate::resp::config::Config;
use crate::resp::cursors::Cursors;
use crate::resp::denials::Denials;
use crate::resp::engine::{EngineInfo, Health};
use crate::resp::keyspace::Keyspace;
use crate::resp::line::Line;
use crate::resp::monitors::Monitors;
use crate::resp::moving::arrivals::Arrivals;
use crate::resp::saves::Saves;
use crate::resp::slowlog::Slowlog;
use crate::resp::spikes::Spikes;

/// How `appendfsync` of Redis is understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fsync {
    /// Replies wait for the log: durable.
    Always,
    /// Replies wait for nothing; the log is synced soon.
    EverySecond,
    /// As `everysec`.
    No,
}

impl Fsync {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Always => "always",
            Self::EverySecond => "everysec",
            Self::No => "no",
        }
    }
}

/// Settings that CONFIG SET changes.
pub(crate) struct Settings {
    pub(crate) clients_max: AtomicUsize,
    pub(crate) clients_bytes_max: AtomicUsize,
    pub(crate) idle_seconds: AtomicU64,
    pub(crate) arg_bytes_max: AtomicUsize,
    pub(crate) command_bytes_max: AtomicUsize,
    relaxed_fsync: AtomicU8,
}

impl Settings {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            clients_max: AtomicUsize::new(config.clients_max),
            clients_bytes_max: AtomicUsize::new(config.clients_bytes_max),
            idle_seconds: AtomicU64::new(config.idle_seconds),
            arg_bytes_max: AtomicUsize::new(config.arg_bytes_max),
            command_bytes_max: AtomicUsize::new(config.command_bytes_max),
            relaxed_fsync: AtomicU8::new(0),
        }
    }
}

/// What an event loop counts; written by it alone.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct LoopStats {
    pub(crate) commands: AtomicU64,
    pub(crate) hits: AtomicU64,
    pub(crate) misses: AtomicU64,
    pub(crate) errors: AtomicU64,
    pub(crate) input_bytes: AtomicU64,
    pub(crate) output_bytes: AtomicU64,
    /// Milliseconds from the server's start to the last tick.
    pub(crate) round_ms: AtomicU64,
}

/// Counts of one batch, added to [`LoopStats`] after it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) commands: u64,
    pub(crate) hits: u64,
    pub(crate) misses: u64,
    pub(crate) errors: u64,
    pub(crate) input_bytes: u64,
    pub(crate) output_bytes: u64,
}

impl Tally {
    /// Counts what was counted elsewhere.
    pub(crate) fn add(&mut self, other: Self) {
        self.commands += other.commands;
        self.hits += other.hits;
        self.misses += other.misses;
        self.errors += other.errors;
        self.input_bytes += other.input_bytes;
        self.output_bytes += other.output_bytes;
    }
}

impl LoopStats {
    pub(crate) fn add(&self, tally: Tally) {
        // One writer: plain loads and stores suffice.
        let add =
            |counter: &AtomicU64, more: u64| counter.store(counter.load(Ordering::Relaxed) + more, Ordering::Relaxed);
        add(&self.commands, tally.commands);
        add(&self.hits, tally.hits);
        add(&self.misses, tally.misses);
        add(&self.errors, tally.errors);
        add(&self.input_bytes, tally.input_bytes);
        add(&self.output_bytes, tally.output_bytes);
    }
}

/// Shared by all threads of a server.
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) settings: Settings,
    pub(crate) users: Arc<Users>,
    pub(crate) logins: Logins,
    pub(crate) denials: Denials,
    /// What connections over TLS are made from.
    pub(crate) certificates: Option<Arc<Certificates>>,
    pub(crate) keyspace: Keyspace,
    /// Which server of the cluster's chain it is.
    pub(crate) cluster_number: u64,
    /// Moves of slots to this chain.
    pub(crate) coming: Arrivals,
    pub(crate) clients: Clients,
    pub(crate) strangers: Arc<Strangers>,
    pub(crate) cursors: Cursors,
    pub(crate) engine: Arc<dyn EngineInfo>,
    pub(crate) started: Instant,
    pub(crate) port: u16,
    pub(crate) run_id: String,
    pub(crate) saves: Saves,
    pub(crate) connections: AtomicU64,
    pub(crate) rejected: AtomicU64,
    /// Clients disconnected for the memory of all.
    pub(crate) evicted: AtomicU64,
    pub(crate) expired: AtomicU64,
    /// How often a client was marked to be disconnected by its own loop.
    pub(crate) kills: AtomicU64,
    pub(crate) loops: Vec<LoopStats>,
    pub(crate) command_stats: CommandStats,
    pub(crate) slowlog: Slowlog,
    pub(crate) spikes: Spikes,
    pub(crate) monitors: Arc<Monitors>,
    /// Wakes each event loop.
    pub(crate) wakers: OnceLock<Vec<Arc<mio::Waker>>>,
    /// Commands that wait for a store which is far away.
    pub(crate) line: Line,
    pub(crate) stopping: AtomicBool,
    pub(crate) stop_lock: Mutex<()>,
    pub(crate) stopped: Condvar,
}

impl Shared {
    /// Makes all threads of the server end.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        drop(self.stop_lock.lock());
        self.stopped.notify_all();
        self.wake_all();
    }

    /// Whether it is a node of a cluster that heads no slot: it leaves data to others.
    pub(crate) fn is_follower(&self) -> bool {
        self.config.cluster.as_ref().is_some_and(|cluster| !cluster.view().heads_any())
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    pub(crate) fn wake_all(&self) {
        for waker in self.wakers.get().into_iter().flatten() {
            // A loop that cannot be woken is one that has ended.
            let _ = waker.wake();
        }
    }

    /// Wakes one event loop.
    pub(crate) fn wake(&self, event_loop: usize) {
        if let Some(waker) = self.wakers.get().and_then(|wakers| wakers.get(event_loop)) {
            // A loop that cannot be woken is one that has ended.
            let _ = waker.wake();
        }
    }

    pub(crate) fn durability(&self) -> Durability {
        self.keyspace.kv.default_durability()
    }

    pub(crate) fn fsync(&self) -> Fsync {
        match (self.durability(), self.settings.relaxed_fsync.load(Ordering::Relaxed)) {
            (Durability::Durable | Durability::Always, _) => Fsync::Always,
            (Durability::Applied, 0) => Fsync::EverySecond,
            (Durability::Applied, _) => Fsync::No,
        }
    }

    pub(crate) fn set_fsync(&self, fsync: Fsync) {
        self.settings.relaxed_fsync.store(u8::from(fsync == Fsync::No), Ordering::Relaxed);
        let durability = if fsync == Fsync::Always { Durability::Durable } else { Durability::Applied };
        self.keyspace.kv.set_default_durability(durability);
    }

    /// Asks for everything written so far to be made durable; the barrier says when it is.
    pub(crate) fn save(&self) -> esker_store::Result<Option<Barrier>> {
        if let Health::Stopped(cause) = self.engine.health() {
            self.saves.refused();
            return Err(esker_store::Error::Stopped { cause: cause.into() });
        }
        if self.config.reading.is_some() {
            // What it was sent is made durable without being asked.
            self.saves.began(None, self.keyspace.kv.clock().now_ms() / 1_000);
            return Ok(None);
        }
        let (saved, barrier) = self.keyspace.kv.store().sync().into_parts();
        if let Err(error) = saved {
            self.saves.refused();
            return Err(error);
        }
        if let Some(barrier) = &barrier {
            barrier.want();
        }
        self.saves.began(barrier.clone(), self.keyspace.kv.clock().now_ms() / 1_000);
        Ok(barrier)
    }
}
