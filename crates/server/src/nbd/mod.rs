//! The NBD protocol: disks for Linux, QEMU, libnbd and fio. Fixed newstyle negotiation, structured replies, TLS by
//! STARTTLS.
//!
//! [`Server::bind`] → addresses are open → [`Server::run`] → a thread per connection, more while it has work →
//! [`Handle::shutdown`]
//!
//! What is served are [`Export`]s, handed out by name by [`Exports`]: [`VolumeExports`] hands out images, and their
//! snapshots read-only as `image@snapshot`. [`Client`] is the other side, as small as measuring and testing needs it.
//!
//! Invariants:
//! 1. A write is answered when it is applied, and durable when a FLUSH that came after the answer, or its own FUA, is
//!    answered; on whichever connection (multi-conn).
//! 2. No connection takes more memory or threads than [`Config`] says, and none waits for another.
//! 3. An image that clients may write is locked by this server, unless [`Config::unlocked`] names it.
//! 4. Only loopback addresses and a unix socket are listened on, unless client certificates are required.
//!
//! Not there: extended headers. They allow longer requests than 4 GiB, which helps only BLOCK_STATUS and WRITE_ZEROES
//! of huge holes, and clients have them from libnbd 1.18 and QEMU 8.2 on. Keys shared beforehand (TLS-PSK): rustls has
//! none.

mod attach;
mod client;
mod client_tls;
mod config;
mod counts;
mod export;
mod forward;
mod listen;
mod memory;
mod negotiate;
mod options;
mod pending;
mod reads;
mod reply;
mod request;
mod sending;
mod stream;
mod transmission;
mod volumes;
pub mod wire;

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::net::Shutdown;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

pub use attach::{Locking, SERVER_OWNER};
pub use client::{Client, ClientError, Place, Reply};
pub use client_tls::Tls;
pub use config::{Config, Error, PAYLOAD_BYTES_MAX, Result, TlsMode};
pub use export::{BlockSizes, Done, Export, Exports, Extent, Fault, OpenError, Outcome, Piece};
pub use forward::{Forwarded, ForwardedDisk};
pub use listen::Address;
pub use memory::{MemoryDisk, MemoryDisks};
pub use volumes::VolumeExports;

use counts::RequestCounts;
use listen::Listeners;
use negotiate::Negotiation;
use stream::{Input, Output, Socket};
use transmission::Transmission;

use crate::front::strangers::{Stranger, Strangers};
use crate::front::tls::Certificates;
use crate::http::{Figure, Value};

/// How long accepting waits for the threads of strangers that had to make room.
const MAKING_ROOM: Duration = Duration::from_secs(1);

/// A server that listens; [`Server::run`] makes it answer.
pub struct Server {
    shared: Arc<Shared>,
    listeners: Listeners,
    addresses: Vec<Address>,
}

/// Stops a server from anywhere. Cloning gives another handle of the same server.
#[derive(Clone)]
pub struct Handle(Arc<Shared>);

/// What a server has counted since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Connections now.
    pub connections: u64,
    /// Connections so far.
    pub accepted: u64,
    /// Connections that were refused because there were too many attached clients, or closed to make room for others.
    pub rejected: u64,
}

struct Shared {
    config: Config,
    exports: Arc<dyn Exports>,
    strangers: Arc<Strangers>,
    tls: Option<Arc<Certificates>>,
    stopping: AtomicBool,
    waker: mio::Waker,
    accepted: AtomicU64,
    rejected: AtomicU64,
    requests: RequestCounts,
    open: Mutex<Open>,
    closed: Condvar,
}

/// The connections.
#[derive(Default)]
struct Open {
    /// Sockets by the numbers of their connections.
    sockets: HashMap<u64, Arc<Socket>>,
    /// Those of them whose clients are attached to an export.
    attached: HashSet<u64>,
}

impl Handle {
    /// Makes [`Server::run`] return soon: what is under way is answered, within [`Config::linger`].
    pub fn shutdown(&self) {
        self.0.stop();
    }

    /// Reads its certificates anew; what is returned puts them into force, for connections that come later.
    ///
    /// # Errors
    /// [`Error::Tls`]; then nothing changes.
    pub fn prepare(&self) -> Result<Box<dyn FnOnce() + Send>> {
        let Some(tls) = &self.0.tls else { return Ok(Box::new(|| ())) };
        tls.prepare().map_err(|error| Error::Tls(error.to_string()))
    }

    /// What was counted, for those who watch.
    pub fn figures(&self) -> Vec<Figure> {
        let counts = self.counts();
        let figure = |name: &str, help: &str, value| Figure::new(format!("esker_nbd_{name}"), help, value);
        let mut figures = vec![
            figure("connections", "Connections open", Value::Gauge(counts.connections as f64)),
            figure("connections_accepted", "Connections accepted", Value::Counter(counts.accepted as f64)),
            figure("connections_rejected", "Connections refused or sent away", Value::Counter(counts.rejected as f64)),
        ];
        figures.extend(self.0.requests.figures());
        figures
    }

    /// What was counted.
    pub fn counts(&self) -> Counts {
        Counts {
            connections: self.0.open.lock().sockets.len() as u64,
            accepted: self.0.accepted.load(Ordering::Relaxed),
            rejected: self.0.rejected.load(Ordering::Relaxed) + self.0.strangers.sent_away(),
        }
    }
}

impl Server {
    /// Listens.
    ///
    /// # Errors
    /// What [`Config::check`] refuses; [`Error::Listen`], [`Error::Tls`].
    pub fn bind(config: Config, exports: Arc<dyn Exports>) -> Result<Self> {
        config.check()?;
        let tls = match &config.tls {
            Some(files) => {
                Some(Arc::new(Certificates::open(files, &[]).map_err(|error| Error::Tls(error.to_string()))?))
            }
            None => None,
        };
        let listeners = Listeners::open(&config)?;
        let addresses = listeners.addresses();
        let waker = listeners.waker()?;
        let patience = Duration::from_secs(config.negotiation_seconds);
        let shared = Arc::new(Shared {
            strangers: Strangers::new(config.strangers_max, patience),
            config,
            exports,
            tls,
            stopping: AtomicBool::new(false),
            waker,
            accepted: AtomicU64::new(0),
            rejected: AtomicU64::new(0),
            requests: RequestCounts::default(),
            open: Mutex::default(),
            closed: Condvar::new(),
        });
        Ok(Self { shared, listeners, addresses })
    }

    /// Where it listens, with the ports that were picked for port 0.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// What stops it.
    pub fn handle(&self) -> Handle {
        Handle(Arc::clone(&self.shared))
    }

    /// Answers clients until [`Handle::shutdown`]. Blocks.
    ///
    /// # Errors
    /// [`Error::Io`] if waiting for connections fails; the server has stopped then.
    pub fn run(mut self) -> Result<()> {
        for address in &self.addresses {
            tracing::info!(%address, "serving disks");
        }
        let shared = &self.shared;
        let outcome = self.listeners.run(&shared.stopping, |socket, peer| shared.serve(socket, peer));
        shared.stop();
        shared.drain();
        outcome
    }
}

impl Shared {
    fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        // A listener that cannot be woken has ended.
        let _ = self.waker.wake();
    }

    /// Waits for the connections to finish, then ends them.
    fn drain(&self) {
        let mut how = Shutdown::Read;
        let mut open = self.open.lock();
        loop {
            open.sockets.values().for_each(|socket| socket.shutdown(how));
            let until = Instant::now() + self.config.linger;
            while !open.sockets.is_empty() && !self.closed.wait_until(&mut open, until).timed_out() {}
            if open.sockets.is_empty() || how == Shutdown::Both {
                return;
            }
            how = Shutdown::Both;
        }
    }

    /// Starts a connection on a thread of its own.
    fn serve(self: &Arc<Self>, socket: Socket, peer: String) {
        let socket = Arc::new(socket);
        let number = self.accepted.fetch_add(1, Ordering::Relaxed);
        {
            // Strangers that had to make room end soon: their threads are waited for, so that these are bounded.
            let max = self.config.connections_max + 2 * self.config.strangers_max;
            let until = Instant::now() + MAKING_ROOM;
            let mut open = self.open.lock();
            while open.sockets.len() >= max && !self.closed.wait_until(&mut open, until).timed_out() {}
            if open.sockets.len() >= max {
                self.rejected.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(peer, max, "too many connections");
                return;
            }
            open.sockets.insert(number, Arc::clone(&socket));
        }
        let ended = Arc::clone(&socket);
        let stranger = self.strangers.enter(Instant::now(), move || ended.shutdown(Shutdown::Both));
        let shared = Arc::clone(self);
        let started = std::thread::Builder::new().name("esker-nbd".into()).spawn(move || {
            // A defect there must not keep the server from stopping.
            if catch_unwind(AssertUnwindSafe(|| shared.converse(number, &socket, &peer, stranger))).is_err() {
                tracing::error!(peer, "a connection panicked");
            }
            socket.shutdown(Shutdown::Both);
            shared.forget(number);
        });
        if let Err(error) = started {
            tracing::warn!(%error, "cannot start a thread for a connection");
            self.forget(number);
        }
    }

    fn forget(&self, number: u64) {
        let mut open = self.open.lock();
        open.sockets.remove(&number);
        open.attached.remove(&number);
        drop(open);
        self.closed.notify_all();
    }

    /// Takes a place of an attached client, unless the connection has one; false if there is none.
    fn admit(&self, number: u64) -> bool {
        let mut open = self.open.lock();
        let admitted = open.attached.contains(&number) || open.attached.len() < self.config.connections_max;
        if admitted {
            open.attached.insert(number);
        } else {
            self.rejected.fetch_add(1, Ordering::Relaxed);
        }
        admitted
    }

    /// A connection from its greeting to its end.
    fn converse(&self, number: u64, socket: &Arc<Socket>, peer: &str, stranger: Stranger) {
        let output = Arc::new(Output::new(Arc::clone(socket)));
        let mut input = Input::new(Arc::clone(socket), Arc::clone(&output));
        let (time, until) = (Duration::from_secs(self.config.negotiation_seconds), stranger.until());
        let stranger = Cell::new(Some(stranger));
        let negotiation = Negotiation {
            config: &self.config,
            exports: &*self.exports,
            tls: self.tls.as_ref().map(|tls| tls.current()),
            socket,
            output: &output,
            peer,
            admit: &|| {
                let admitted = self.admit(number);
                if admitted {
                    // From here on it makes room for no other stranger; attaching may take its time.
                    stranger.take();
                }
                admitted
            },
            dismiss: &|| {
                self.open.lock().attached.remove(&number);
            },
        };
        let chosen = socket
            .write_within(Some(time))
            .and_then(|()| input.until(Some(until)))
            .and_then(|()| negotiation.run(&mut input));
        let chosen = chosen.and_then(|chosen| {
            input.until(None)?;
            socket.write_within(None)?;
            Ok(chosen)
        });
        match chosen {
            Ok(Some(chosen)) => {
                tracing::info!(peer, export = chosen.name, encrypted = input.is_encrypted(), "attached");
                let name = chosen.name.clone();
                let _attached = self.requests.attach(&name);
                Transmission::new((&self.config, &self.requests), chosen, input, &output).run();
                tracing::info!(peer, export = name, "detached");
            }
            Ok(None) => {}
            Err(error) => tracing::debug!(peer, %error, "negotiation failed"),
        }
        output.close();
    }
}
