//! Threads that answer: each has an event loop, and the connections that it was given.
//!
//! [`Workers::start`] → [`Workers::run`];   a connection that comes → [`Crew::place`] → the worker with the fewest
//!
//! Invariant: a connection stays with its worker. So no thread is woken for what another could do, which costs more
//! than it gains where each call is short.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::watch;

use super::SHUTDOWN;
use super::config::{Error, Result};

/// Event loops that wait for [`Workers::run`].
pub(super) struct Workers {
    first: Runtime,
    others: Vec<JoinHandle<()>>,
    crew: Arc<Crew>,
    /// The others go on until it is dropped.
    end: watch::Sender<()>,
}

/// Who a connection may be given to.
pub(super) struct Crew {
    workers: Vec<Worker>,
}

struct Worker {
    handle: Handle,
    connections: AtomicUsize,
}

/// A worker's count of a connection, which goes with it.
pub(super) struct Seat {
    crew: Arc<Crew>,
    at: usize,
}

impl Workers {
    /// `threads` of them, of which the first is the thread that calls [`Workers::run`]. Together they have at most about
    /// `waiting_max` threads that wait for the store.
    pub(super) fn start(threads: usize, waiting_max: usize) -> Result<Self> {
        let failed = |source| Error::Threads { what: "start threads", source };
        let waiting = waiting_max.div_ceil(threads.max(1)).max(1);
        let event_loop = || {
            let mut builder = Builder::new_current_thread();
            builder.enable_all().max_blocking_threads(waiting).thread_name("esker-thrift-wait").build().map_err(failed)
        };
        let first = event_loop()?;
        let mut workers = vec![Worker::of(&first)];
        let (end, ended) = watch::channel(());
        let mut others = Vec::new();
        for _ in 1..threads {
            let (runtime, mut ended) = (event_loop()?, ended.clone());
            workers.push(Worker::of(&runtime));
            let life = move || {
                // It is dropped, and never sent to.
                let _ = runtime.block_on(ended.changed());
                runtime.shutdown_timeout(SHUTDOWN);
            };
            others.push(thread::Builder::new().name("esker-thrift".into()).spawn(life).map_err(failed)?);
        }
        Ok(Self { first, others, crew: Arc::new(Crew { workers }), end })
    }

    /// The first of them, which has what is no connection.
    pub(super) fn first(&self) -> &Runtime {
        &self.first
    }

    pub(super) fn crew(&self) -> Arc<Crew> {
        Arc::clone(&self.crew)
    }

    /// Does `work` on this thread, and then ends them all, with what is still under way.
    pub(super) fn run(self, work: impl Future<Output = ()>) {
        let Self { first, others, end, .. } = self;
        first.block_on(work);
        drop(end);
        first.shutdown_timeout(SHUTDOWN);
        for other in others {
            // A panic of a connection stays with it; there is nothing else to panic.
            let _ = other.join();
        }
    }
}

impl Worker {
    fn of(runtime: &Runtime) -> Self {
        Self { handle: runtime.handle().clone(), connections: AtomicUsize::new(0) }
    }
}

impl Crew {
    /// A place at the worker with the fewest connections.
    pub(super) fn place(self: &Arc<Self>) -> Seat {
        let fewest =
            self.workers.iter().enumerate().min_by_key(|(_, worker)| worker.connections.load(Ordering::Relaxed));
        let at = fewest.map_or(0, |(at, _)| at);
        self.workers[at].connections.fetch_add(1, Ordering::Relaxed);
        Seat { crew: Arc::clone(self), at }
    }
}

impl Seat {
    /// Has the worker do what `connection` comes to.
    pub(super) fn serve<F: Future<Output = ()> + Send + 'static>(
        self,
        connection: impl FnOnce() -> F + Send + 'static,
    ) {
        let handle = self.crew.workers[self.at].handle.clone();
        handle.spawn(async move {
            connection().await;
            drop(self);
        });
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.crew.workers[self.at].connections.fetch_sub(1, Ordering::Relaxed);
    }
}
