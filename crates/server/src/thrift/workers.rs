//! Threads that answer: each has an event loop, and the connections that it was given.
//!
//! [`Workers::start`] → [`Workers::run`];   a connection, or a call of another server → [`Crew::place`] → the
//! worker with the fewest
//!
//! Invariant: a connection stays with its worker, so that none is woken for what another has begun.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::config::{Error, Result};

/// Threads that wait for the store are waited for so long when the server has stopped.
const SHUTDOWN: Duration = Duration::from_secs(1);
/// Where the number of threads is not said, there are no more, however many processors.
const THREADS_MAX_BY_DEFAULT: usize = 4;

/// Event loops that wait for [`Workers::run`].
pub(super) struct Workers {
    first: Runtime,
    others: Vec<thread::JoinHandle<()>>,
    crew: Arc<Crew>,
    /// The others go on until it is dropped.
    end: watch::Sender<()>,
}

/// Who a connection or call may be given to.
pub(super) struct Crew {
    workers: Vec<Worker>,
}

struct Worker {
    handle: Handle,
    /// With calls of other servers.
    connections: AtomicUsize,
}

/// A worker's count of a connection or call, which goes with it.
pub(super) struct Seat {
    crew: Arc<Crew>,
    at: usize,
}

impl Workers {
    /// `threads` of them, or with 0 one per processor, at most 4; the first is the thread that calls [`Workers::run`].
    /// They have some `waiting_max` threads together that wait for the store.
    pub(super) fn start(threads: usize, waiting_max: usize) -> Result<Self> {
        let threads = match threads {
            0 => thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX_BY_DEFAULT),
            threads => threads,
        };
        let failed = |source| Error::Threads { what: "start threads", source };
        let waiting = waiting_max.div_ceil(threads);
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
    /// Has the worker do what `work` comes to, which it begins itself: sockets belong to the loop that made them.
    pub(super) fn serve<F>(self, work: impl FnOnce() -> F + Send + 'static) -> JoinHandle<F::Output>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        let handle = self.crew.workers[self.at].handle.clone();
        handle.spawn(async move {
            let done = work().await;
            drop(self);
            done
        })
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.crew.workers[self.at].connections.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn what_comes_is_shared_out_and_all_workers_end() {
        let workers = Workers::start(3, 4).unwrap();
        let crew = workers.crew();
        let seats: Vec<Seat> = (0..6).map(|_| crew.place()).collect();
        assert!(crew.workers.iter().all(|worker| worker.connections.load(Ordering::Relaxed) == 2));
        let under_way = crew.place();
        workers.run(async move {
            let doing = seats.into_iter().map(|seat| seat.serve(|| async { thread::current().id() }));
            let mut threads = HashSet::new();
            for done in doing.collect::<Vec<_>>() {
                threads.insert(done.await.unwrap());
            }
            assert_eq!(threads.len(), 3);
            // It ends with its worker.
            drop(under_way.serve(std::future::pending::<()>));
        });
        assert!(crew.workers.iter().all(|worker| worker.connections.load(Ordering::Relaxed) == 0));
    }
}
