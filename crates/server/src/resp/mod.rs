//! The Redis protocol, RESP2 and RESP3, over the key-value face.
//!
//! [`Server::bind`] → addresses are open → [`Server::run`] → event loops → [`Handle::shutdown`]
//!
//! A connection stays on one event loop; a loop reads, parses and runs whatever is ready, and sends replies once
//! what they tell is durable, if durability was asked for. Commands are those of Redis 7 on strings, hashes, keys,
//! expiry, transactions and the server, with its replies and errors.
//!
//! Invariants:
//! 1. One commit of the store answers everything that was submitted before it, however many clients and commands.
//! 2. Without a password nothing but loopback addresses and a unix socket is listened on.

mod ahead;
mod awaited;
mod away;
pub(crate) mod clients;
mod cluster;
mod command_stats;
pub(crate) mod commands;
mod config;
mod connection;
mod cursors;
mod denials;
mod engine;
mod event_loop;
mod figures;
mod flags;
mod foreseen;
mod gets;
mod joint;
pub(crate) mod keyspace;
mod kinds;
mod line;
mod listen;
mod loading;
mod moment;
mod monitors;
pub(crate) mod moving;
mod number;
mod observer;
mod output;
mod parse;
mod queued;
mod refusal;
mod reply;
mod rights;
mod saves;
mod secrets;
mod session;
mod shared;
mod slowlog;
mod spikes;
mod transport;
mod watch;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use esker_kv::Kv;
use parking_lot::{Condvar, Mutex};

pub use cluster::{Cluster, ClusterNode, ClusterView, SlotRange};
pub use config::{Config, DATABASES, Error, Result};
pub use engine::{EngineInfo, Health, InfoLine, NoEngineInfo};
pub use listen::Address;
pub use loading::Loading;
pub use moment::Moment;
pub use moving::{Closed, MoveError, Moving, SlotEpoch, SlotRecord, SlotRecords, SlotState};
pub use parse::{
    ARGS_MAX, Args, LINE_BYTES_MAX, Limits, OwnedArgs, Parser, ProtocolError, Step, UNAUTHENTICATED_ARG_BYTES_MAX,
    UNAUTHENTICATED_ARGS_MAX, parse,
};

use denials::Denials;
use event_loop::{EventLoop, Inboxes};
use keyspace::Keyspace;
use listen::Listener;
use saves::Saves;
use shared::{LoopStats, Settings, Shared};

use crate::front::logins::Logins;
use crate::front::strangers::Strangers;
use crate::http::Figure;

/// Most event loops that `threads = 0` starts.
const LOOPS_MAX_BY_DEFAULT: usize = 4;
/// Expired keys are removed so often, and so many at once.
const EXPIRE_EVERY: Duration = Duration::from_millis(100);
const EXPIRE_KEYS: usize = 10_000;
/// So often where each look is a request to every partition.
const EXPIRE_AFAR_EVERY: Duration = Duration::from_secs(1);
/// Memory that clients have given up since the last time, above which the allocator is to give it back.
const GIVE_BACK_BYTES: usize = 32 << 20;

/// A server that listens; [`Server::run`] makes it answer.
pub struct Server {
    shared: Arc<Shared>,
    addresses: Vec<Address>,
    loops: Vec<EventLoop>,
}

/// Stops a server from anywhere. Cloning gives another handle of the same server.
#[derive(Clone)]
pub struct Handle(Arc<Shared>);

impl Handle {
    /// How the engine stands, and whether the server stops.
    pub fn health(&self) -> Health {
        if self.0.is_stopping() {
            return Health::Stopped("the server is stopping".into());
        }
        self.0.engine.health()
    }

    /// What was counted, for those who watch.
    pub fn figures(&self) -> Vec<Figure> {
        figures::of(&self.0)
    }

    /// Reads its certificates anew; what is returned puts them into force for connections that come later, and, where
    /// there is no file of users, this password of `default`, if one is given.
    ///
    /// # Errors
    /// [`Error::Tls`]; then nothing changes.
    pub fn prepare(&self, password: Option<&str>) -> Result<Box<dyn FnOnce() + Send>> {
        let certificates = self.0.certificates.as_ref().map(|certificates| certificates.prepare()).transpose()?;
        let (shared, password) = (Arc::clone(&self.0), password.map(str::to_owned));
        Ok(Box::new(move || {
            certificates.into_iter().for_each(|apply| apply());
            if let (Some(password), false) = (&password, shared.users.has_file()) {
                // With a password he is closed.
                let _ = shared.users.set_password(Some(password));
            }
            shared.wake_all();
        }))
    }

    /// Has all clients' users looked up again, where they have changed.
    pub fn wake(&self) {
        self.0.wake_all();
    }

    /// Whether the server is to stop.
    pub fn is_stopping(&self) -> bool {
        self.0.is_stopping()
    }

    /// Whether every event loop has gone round within this time, of at least two seconds.
    pub fn goes_round(&self, within: Duration) -> bool {
        let within = within.max(Duration::from_secs(2)).as_millis() as u64;
        let now = self.0.started.elapsed().as_millis() as u64;
        self.0.loops.iter().all(|stats| now.saturating_sub(stats.round_ms.load(Ordering::Relaxed)) <= within)
    }

    /// What moves slots from and to the chain that this server heads.
    pub fn moving(&self) -> Moving {
        Moving(Arc::clone(&self.0))
    }

    /// Blocks until the server is to stop, whatever the cause.
    pub fn wait_stopping(&self) {
        let mut held = self.0.stop_lock.lock();
        while !self.0.is_stopping() {
            self.0.stopped.wait(&mut held);
        }
    }

    /// Makes [`Server::run`] return soon: replies under way are sent, within [`Config::linger`].
    pub fn shutdown(&self) {
        self.0.stop();
    }
}

impl Server {
    /// Opens the databases in `kv` and listens. Replies wait for what [`Kv::default_durability`] says at the time.
    ///
    /// # Errors
    /// What [`Config::check`] refuses; [`Error::Listen`], [`Error::Tls`]; the key-value face's.
    pub fn bind(config: Config, kv: Kv, info: Arc<dyn EngineInfo>) -> Result<Self> {
        config.check()?;
        Self::with(Listener::open_all(&config)?, config, kv, info)
    }

    /// The same, on the sockets that are bound already, by this configuration.
    ///
    /// # Errors
    /// As [`Server::bind`].
    pub fn on(loading: Loading, config: Config, kv: Kv, info: Arc<dyn EngineInfo>) -> Result<Self> {
        Self::with(loading.into_listeners()?, config, kv, info)
    }

    fn with(listeners: Vec<Listener>, config: Config, kv: Kv, info: Arc<dyn EngineInfo>) -> Result<Self> {
        let addresses: Vec<Address> = listeners.iter().map(|listener| listener.address.clone()).collect();
        let certificates = listeners.iter().find_map(Listener::tls).cloned();
        let users = config.users();
        if config.is_reached_by_others() {
            users.close().map_err(Error::Config)?;
        }
        commands::Table::get();
        users.understand(rights::is_rule).map_err(Error::Config)?;
        let port = addresses.iter().find_map(|address| match address {
            Address::Tcp(address) | Address::Tls(address) => Some(address.port()),
            Address::Unix(_) => None,
        });
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = match config.threads {
            _ if config.off => 1,
            0 => loops_by_default(processors),
            threads => threads,
        };
        let afar_threads = if kv.is_afar() { config.afar_threads } else { 0 };
        let now_ms = kv.clock().now_ms();
        let keyspace = Keyspace::open(kv, &config)?;
        let shared = Arc::new(Shared {
            settings: Settings::new(&config),
            clients: clients::Clients::default(),
            strangers: Strangers::new(config.strangers_max, Duration::from_secs(config.stranger_seconds)),
            cursors: cursors::Cursors::default(),
            engine: info,
            started: Instant::now(),
            port: port.unwrap_or(0),
            run_id: format!("{:020x}{:020x}", now_ms, keyspace.epoch()),
            saves: Saves::new(now_ms / 1_000),
            connections: AtomicU64::new(0),
            rejected: AtomicU64::new(0),
            evicted: AtomicU64::new(0),
            expired: AtomicU64::new(0),
            kills: AtomicU64::new(0),
            loops: (0..threads).map(|_| LoopStats::default()).collect(),
            command_stats: command_stats::CommandStats::new(threads + afar_threads, commands::Table::commands().len()),
            line: line::Line::new(afar_threads),
            slowlog: slowlog::Slowlog::default(),
            spikes: spikes::Spikes::default(),
            monitors: monitors::Monitors::new(config.output_bytes_max),
            wakers: OnceLock::new(),
            stopping: AtomicBool::new(false),
            stop_lock: Mutex::new(()),
            stopped: Condvar::new(),
            users,
            logins: Logins::default(),
            denials: Denials::default(),
            keyspace,
            cluster_number: config.cluster.as_ref().map_or(0, |cluster| cluster.begin()),
            coming: moving::arrivals::Arrivals::default(),
            certificates,
            config,
        });
        if let Some(cluster) = &shared.config.cluster {
            cluster.tell(shared.cluster_number, &shared.keyspace.gate.records());
        }
        let inboxes: Inboxes = Arc::new((0..threads).map(|_| Mutex::default()).collect());
        let (mut loops, mut wakers) = (Vec::new(), Vec::new());
        let mut listeners = Some(listeners);
        for index in 0..threads {
            let (poll, waker) = EventLoop::poll()?;
            wakers.push(Arc::clone(&waker));
            let own = listeners.take().unwrap_or_default();
            loops.push(EventLoop::new(index, Arc::clone(&shared), poll, waker, own, Arc::clone(&inboxes))?);
        }
        // Set once, here.
        let _ = shared.wakers.set(wakers);
        Ok(Self { shared, addresses, loops })
    }

    /// Where it listens, with the ports that were picked for port 0.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// What stops it.
    pub fn handle(&self) -> Handle {
        Handle(Arc::clone(&self.shared))
    }

    /// Answers clients until SHUTDOWN or [`Handle::shutdown`]. Blocks.
    ///
    /// # Errors
    /// [`Error::Io`] if a poll fails; the server has stopped then.
    pub fn run(self) -> Result<()> {
        let shared = &self.shared;
        for address in &self.addresses {
            tracing::info!(%address, "listening");
        }
        std::thread::scope(|scope| {
            // What is begun ends, whatever cannot be begun.
            let stop = StopOnDrop(shared);
            let _end = line::EndOnDrop(&shared.line);
            scope.spawn(|| expire(shared));
            for index in 0..shared.line.threads() {
                scope.spawn(move || {
                    let _stop = StopOnPanic(shared);
                    shared.line.serve(index);
                });
            }
            let mut loops = self.loops.into_iter();
            let first = loops.next();
            let others: Vec<_> = loops
                .map(|event_loop| {
                    scope.spawn(move || {
                        let _stop = StopOnDrop(shared);
                        event_loop.run()
                    })
                })
                .collect();
            let mut outcome = first.map_or(Ok(()), EventLoop::run);
            drop(stop);
            for other in others {
                // A panic there is a defect; it goes on here, as it would in a single thread.
                let ended = other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                outcome = outcome.and(ended);
            }
            outcome
        })
    }
}

/// Event loops where none are asked for: a processor is left to the commit thread and to what the kernel does for both.
/// Fewer loops also find more to do each time they wake (0049).
fn loops_by_default(processors: usize) -> usize {
    processors.saturating_sub(1).clamp(1, LOOPS_MAX_BY_DEFAULT)
}

/// A loop that ends, ends the server.
struct StopOnDrop<'s>(&'s Shared);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// A thread that panics ends the server: a command may have been done by half.
struct StopOnPanic<'s>(&'s Shared);

impl Drop for StopOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.stop();
        }
    }
}

/// Removes what has expired, and has memory given back that clients held, until the server stops.
fn expire(shared: &Shared) {
    let (mut failing, mut peak) = (false, 0);
    let every = if shared.keyspace.kv.is_whole() { EXPIRE_EVERY } else { EXPIRE_AFAR_EVERY };
    loop {
        let mut held = shared.stop_lock.lock();
        if !shared.is_stopping() {
            shared.stopped.wait_for(&mut held, every);
        }
        drop(held);
        if shared.is_stopping() {
            return;
        }
        let held = shared.clients.held_bytes();
        peak = held.max(peak);
        if peak - held > GIVE_BACK_BYTES {
            peak = held;
            shared.engine.give_memory_back();
        }
        if shared.is_follower() || shared.config.reading.is_some() {
            // What has expired is removed by the node that heads its slot.
            continue;
        }
        let swept = shared.keyspace.sweep();
        let removed = shared.keyspace.kv.expire_due(EXPIRE_KEYS).and_then(|removed| swept.map(|()| removed));
        match removed {
            Ok(removed) => {
                shared.expired.fetch_add(removed as u64, Ordering::Relaxed);
                failing = false;
            }
            Err(error) if !failing => {
                tracing::warn!(%error, "cannot remove expired keys; they stay hidden");
                failing = true;
            }
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::loops_by_default;

    #[test]
    fn a_processor_is_left_to_what_is_beside_the_loops() {
        assert_eq!([0, 1, 2, 3, 4, 5, 64].map(loops_by_default), [1, 1, 1, 2, 3, 4, 4]);
    }
}
