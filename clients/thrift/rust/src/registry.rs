//! The node of a service in ZooKeeper, read whenever it changes, by a thread of its own.
//!
//! change of the node's children → [`Table`] → calls that wait for one
//!
//! Invariants:
//! 1. The last table stays while ZooKeeper is gone.
//! 2. Nothing is written.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use esker_cluster::{Coordinator, InstanceChanges, Location, Options};
use parking_lot::{Condvar, Mutex};
use tokio::sync::oneshot;

use crate::error::{Error, Result};
use crate::table::Table;

/// Of the session, and of calls in it.
const OPTIONS: Options = Options { session: Duration::from_secs(10), call: Duration::from_secs(5) };
/// After how long ZooKeeper is asked again.
const RETRY: Duration = Duration::from_millis(200);

/// What is told of each new table.
type Told = Box<dyn Fn(&Table) + Send>;

pub(crate) struct Registry {
    shared: Arc<Shared>,
    /// The thread ends when it is dropped.
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Clone)]
struct State {
    table: Arc<Table>,
    /// Why the table may be old; empty if nothing is known against it.
    trouble: String,
}

impl Registry {
    /// Reads the children of `node`, and tells `told` each table before others see it.
    pub fn new(location: &Location, node: &str, told: Told) -> Result<Self> {
        let changes = Coordinator::new(location.clone(), OPTIONS).instance_changes(node)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Error::Thread)?;
        let state = State { table: Arc::default(), trouble: "its registry was not read yet".to_owned() };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() });
        let (end, ended) = oneshot::channel();
        let known = Arc::clone(&shared);
        let run = move || runtime.block_on(follow(changes, &known, told, ended));
        let thread: io::Result<_> = std::thread::Builder::new().name("registry".to_owned()).spawn(run);
        Ok(Self { shared, end: Some(end), thread: Some(thread.map_err(Error::Thread)?) })
    }

    pub fn table(&self) -> Arc<Table> {
        Arc::clone(&self.shared.state.lock().table)
    }

    /// Why the table may be old; empty if nothing is known against it.
    pub fn trouble(&self) -> String {
        self.shared.state.lock().trouble.clone()
    }

    /// Waits until the table is another than this, a moment at most, and no longer than until then.
    pub fn wait(&self, seen: &Arc<Table>, until: Instant) {
        let mut state = self.shared.state.lock();
        if Arc::ptr_eq(&state.table, seen) {
            // How it ended is seen by what is there.
            let _ = self.shared.changed.wait_until(&mut state, until.min(Instant::now() + RETRY));
        }
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        drop(self.end.take());
        // A thread that has panicked is over as well.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

async fn follow(mut changes: InstanceChanges, shared: &Shared, told: Told, mut ended: oneshot::Receiver<()>) {
    loop {
        let next = tokio::select! {
            next = changes.next() => next,
            _ = &mut ended => return,
        };
        match next {
            Ok(instances) => {
                let table = Arc::new(Table::new(instances));
                told(&table);
                *shared.state.lock() = State { table, trouble: String::new() };
                shared.changed.notify_all();
            }
            Err(error) => {
                shared.state.lock().trouble = error.to_string();
                tokio::select! {
                    () = tokio::time::sleep(RETRY) => {}
                    _ = &mut ended => return,
                }
            }
        }
    }
}
