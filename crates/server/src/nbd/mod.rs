//! The NBD protocol: disks for Linux, QEMU, libnbd and fio. Fixed newstyle negotiation, structured replies, TLS by STARTTLS.
//!
//! [`Server::bind`] → addresses are open → [`Server::run`] → a thread per connection, more while it has work → [`Handle::shutdown`]
//!
//! What is served are [`Export`]s, handed out by name by [`Exports`]: [`VolumeExports`] hands out images, and their snapshots read-only
//! as `image@snapshot`. [`Client`] is the other side, as small as measuring and testing needs it.
//!
//! Invariants:
//! 1. A write is answered when it is applied, and durable when a FLUSH that came after the answer, or its own FUA, is answered; on
//!    whichever connection (multi-conn).
//! 2. No connection takes more memory or threads than [`Config`] says, and none waits for another.
//! 3. An image that clients may write is locked by this server, unless [`Config::unlocked`] names it.
//! 4. Only loopback addresses and a unix socket are listened on, unless client certificates are required.
//!
//! Not there: extended headers. They allow longer requests than 4 GiB, which helps only BLOCK_STATUS and WRITE_ZEROES of huge holes,
//! and clients have them from libnbd 1.18 and QEMU 8.2 on. Keys shared beforehand (TLS-PSK): rustls has none.

mod attach;
mod client;
mod config;
mod export;
mod listen;
mod memory;
mod negotiate;
mod options;
mod reply;
mod request;
mod stream;
mod transmission;
mod volumes;
pub mod wire;

use std::collections::HashMap;
use std::net::Shutdown;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustls::ServerConfig;

pub use attach::{Locking, SERVER_OWNER};
pub use client::{Client, ClientError, Place, Reply};
pub use config::{Config, Error, PAYLOAD_BYTES_MAX, Result, TlsMode};
pub use export::{BlockSizes, Done, Export, Exports, Extent, Fault, OpenError, Outcome, Piece};
pub use listen::Address;
pub use memory::{MemoryDisk, MemoryDisks};
pub use volumes::VolumeExports;

use listen::Listeners;
use negotiate::Negotiation;
use stream::{Input, Output, Socket};
use transmission::Transmission;

/// How long connections have to finish what is under way when the server stops.
const GRACE: Duration = Duration::from_secs(3);

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
    /// Connections that were closed at once because there were too many.
    pub rejected: u64,
}

struct Shared {
    config: Config,
    exports: Arc<dyn Exports>,
    tls: Option<Arc<ServerConfig>>,
    stopping: AtomicBool,
    waker: mio::Waker,
    accepted: AtomicU64,
    rejected: AtomicU64,
    /// Sockets of the connections by their numbers.
    open: Mutex<HashMap<u64, Arc<Socket>>>,
    closed: Condvar,
}

impl Handle {
    /// Makes [`Server::run`] return soon: what is under way is answered, up to three seconds long.
    pub fn shutdown(&self) {
        self.0.stop();
    }

    /// What was counted.
    pub fn counts(&self) -> Counts {
        Counts {
            connections: self.0.open.lock().len() as u64,
            accepted: self.0.accepted.load(Ordering::Relaxed),
            rejected: self.0.rejected.load(Ordering::Relaxed),
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
            Some(files) => Some(crate::resp::tls_config(files).map_err(|error| Error::Tls(error.to_string()))?),
            None => None,
        };
        let listeners = Listeners::open(&config)?;
        let addresses = listeners.addresses();
        let waker = listeners.waker()?;
        let shared = Arc::new(Shared {
            config,
            exports,
            tls,
            stopping: AtomicBool::new(false),
            waker,
            accepted: AtomicU64::new(0),
            rejected: AtomicU64::new(0),
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
            open.values().for_each(|socket| socket.shutdown(how));
            let until = Instant::now() + GRACE;
            while !open.is_empty() && !self.closed.wait_until(&mut open, until).timed_out() {}
            if open.is_empty() || how == Shutdown::Both {
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
            let mut open = self.open.lock();
            if open.len() >= self.config.connections_max {
                self.rejected.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(peer, max = self.config.connections_max, "too many connections");
                return;
            }
            open.insert(number, Arc::clone(&socket));
        }
        let shared = Arc::clone(self);
        let started = std::thread::Builder::new().name("esker-nbd".into()).spawn(move || {
            // A defect there must not keep the server from stopping.
            if catch_unwind(AssertUnwindSafe(|| shared.converse(&socket, &peer))).is_err() {
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
        self.open.lock().remove(&number);
        self.closed.notify_all();
    }

    /// A connection from its greeting to its end.
    fn converse(&self, socket: &Arc<Socket>, peer: &str) {
        let output = Arc::new(Output::new(Arc::clone(socket)));
        let mut input = Input::new(Arc::clone(socket), Arc::clone(&output));
        let time = Duration::from_secs(self.config.negotiation_seconds);
        let negotiation = Negotiation {
            config: &self.config,
            exports: &*self.exports,
            tls: self.tls.as_ref(),
            socket,
            output: &output,
        };
        let chosen = socket
            .write_within(Some(time))
            .and_then(|()| input.until(Some(Instant::now() + time)))
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
                Transmission::new(&self.config, chosen, input, &output).run();
                tracing::info!(peer, export = name, "detached");
            }
            Ok(None) => {}
            Err(error) => tracing::debug!(peer, %error, "negotiation failed"),
        }
        output.close();
    }
}
