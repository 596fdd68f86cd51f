//! A store of the process, as one of those that it serves: what is served of it now.
//!
//! seats, one for each store → [`Seat::serve`] at each term → those who watch, and those who stop it
//!
//! Invariant: what is served of a seat is told and stopped with it, and not with another.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use esker_server::http::Figure;
use esker_server::{grpc, http, nbd, resp, thrift};
use parking_lot::{Mutex, RwLock};

/// What is served, to be stopped.
pub struct Protocols {
    /// The Redis protocol.
    pub resp: resp::Handle,
    /// Disks.
    pub nbd: Option<nbd::Handle>,
    /// Logs and map.
    pub grpc: Option<grpc::Handle>,
    /// A namespace of keys.
    pub thrift: Option<thrift::Handle>,
    /// Figures.
    pub http: Option<http::Handle>,
}

impl Protocols {
    /// Stops them, at once.
    pub fn stop(&self) {
        self.resp.shutdown();
        self.nbd.iter().for_each(nbd::Handle::shutdown);
        self.grpc.iter().for_each(grpc::Handle::shutdown);
        self.thrift.iter().for_each(thrift::Handle::shutdown);
    }
}

/// What is served, to be told of.
pub struct Serving {
    /// The Redis protocol.
    pub resp: resp::Handle,
    /// The store.
    pub store: esker::Store,
    /// Disks.
    pub nbd: Option<nbd::Handle>,
    /// Logs and map.
    pub grpc: Option<grpc::Handle>,
    /// A namespace of keys.
    pub thrift: Option<thrift::Handle>,
}

/// Figures that do not change with what is served.
pub type Figures = Box<dyn Fn() -> Vec<Figure> + Send + Sync>;
/// What has to be ready beside what is served.
pub type Ready = Box<dyn Fn() -> Result<(), String> + Send + Sync>;

/// What is told of a store beside what is served of it.
pub struct Beside {
    /// Its figures.
    pub figures: Figures,
    /// Whether it is ready.
    pub ready: Ready,
}

/// A store of the process.
#[derive(Default)]
pub struct Seat {
    /// The chain that the store is a replica of, where the process has several; empty: it has one store.
    chain: String,
    /// `None` until it is served, and between two terms.
    protocols: Mutex<Option<Arc<Protocols>>>,
    was_served: AtomicBool,
    /// What was served last.
    serving: RwLock<Option<Arc<Serving>>>,
    beside: OnceLock<Beside>,
}

impl Seat {
    /// The seat of this chain's store; of the only store, where it is empty.
    pub fn new(chain: &str) -> Self {
        Self { chain: chain.to_owned(), ..Self::default() }
    }

    /// The chain, where the process has several.
    pub fn chain(&self) -> Option<&str> {
        Some(self.chain.as_str()).filter(|chain| !chain.is_empty())
    }

    /// Begins to tell of this.
    pub fn tell(&self, serving: Serving) {
        *self.serving.write() = Some(Arc::new(serving));
    }

    /// Begins to tell of this as well.
    pub fn beside(&self, figures: Figures, ready: Ready) {
        // Told once.
        let _ = self.beside.set(Beside { figures, ready });
    }

    /// What is told of it beside what is served.
    pub fn told_beside(&self) -> Option<&Beside> {
        self.beside.get()
    }

    /// What was served last; `None`: nothing yet.
    pub fn serving(&self) -> Option<Arc<Serving>> {
        self.serving.read().clone()
    }

    /// This is what is served from now on.
    pub fn serve(&self, protocols: &Arc<Protocols>) {
        *self.protocols.lock() = Some(Arc::clone(protocols));
        self.was_served.store(true, Ordering::SeqCst);
    }

    /// What is served now.
    pub fn protocols(&self) -> Option<Arc<Protocols>> {
        self.protocols.lock().clone()
    }

    /// Whether it was served before.
    pub fn was_served(&self) -> bool {
        self.was_served.load(Ordering::SeqCst)
    }

    /// Whether this is what is served now.
    pub fn serves(&self, protocols: &Arc<Protocols>) -> bool {
        self.protocols.lock().as_ref().is_some_and(|now| Arc::ptr_eq(now, protocols))
    }

    /// Stops what is served, for something else to take its place.
    pub fn change(&self) {
        let protocols = self.protocols.lock().take();
        protocols.iter().for_each(|protocols| protocols.stop());
    }
}
