//! A server as a member of a chain, for as long as its process runs.
//!
//! [`Member::join`] → task: lives, one after the other → [`Member::stop`]

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use esker_chain::{ChainStore, ServerId};
use esker_cluster::Served;
use esker_peers::Asked;
use esker_store::ObjectStore;
use parking_lot::{Condvar, Mutex};
use tokio::sync::{Notify, watch};

use crate::error::{Error, Result};
use crate::host::Host;
use crate::life::{Birth, Life, Round};
use crate::view::View;

/// Leases are renewed so often in one period.
const RENEWALS: u32 = 8;
/// From a failure to the next try, at most.
const AGAIN_MAX: Duration = Duration::from_secs(1);
/// What a server is in a chain.
#[derive(Clone, Debug)]
pub struct Config {
    /// The chain.
    pub chain: String,
    /// Where others reach this server; the store's name is put in.
    pub served: Served,
    /// What the store is called if it has no name yet: as no other store is. One that begins with a chain's name and
    /// `:` is a store of that chain, and is not taken for another's.
    pub fresh: Bytes,
    /// Bytes of operations that are kept for a server that is brought up.
    pub kept_bytes_max: usize,
}

struct State {
    view: Arc<View>,
    /// The node of the present life.
    node: Option<Arc<esker_chain::Node>>,
    /// Changes with each change of the view's version, head or place.
    turn: u64,
    /// It goes on no more, and why.
    ended: Option<Arc<Error>>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    /// The table is to be read at once.
    asked: Notify,
}

impl Shared {
    /// It goes on no more, for this reason.
    fn end(&self, error: Error) {
        self.state.lock().ended = Some(Arc::new(error));
        self.changed.notify_all();
    }
}

impl Asked for Shared {
    fn refresh(&self) {
        self.asked.notify_one();
    }

    fn in_step(&self, _: ServerId, _: u64) {
        self.asked.notify_one();
    }
}

/// A server in its chain.
pub struct Member {
    chain: String,
    shared: Arc<Shared>,
    /// It ends after this.
    _host: Arc<Host>,
    stop: watch::Sender<bool>,
    runs: Mutex<Option<JoinHandle<()>>>,
}

impl Member {
    /// Becomes a member once the coordinator answers. The store must be this process's alone, and of this chain alone.
    ///
    /// # Errors
    /// [`Error::Io`]. What the coordinator refuses later is told by [`Member::view`].
    pub fn join(host: &Arc<Host>, store: Arc<dyn ObjectStore>, mut config: Config) -> Result<Self> {
        if config.served.peer.is_empty() {
            config.served.peer = host.peer_address().to_string();
        }
        let state = State { view: Arc::default(), node: None, turn: 0, ended: None };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new(), asked: Notify::new() });
        let ((stop, stopping), chain) = (watch::channel(false), config.chain.clone());
        let task = Task { shared: Arc::clone(&shared), host: Arc::clone(host), store, config };
        let runs = std::thread::Builder::new().name("esker-member".into()).spawn(move || task.run(stopping));
        Ok(Self { chain, shared, _host: Arc::clone(host), stop, runs: Mutex::new(Some(runs?)) })
    }

    /// The chain.
    pub fn chain(&self) -> &str {
        &self.chain
    }

    /// How the chain stands.
    pub fn view(&self) -> Arc<View> {
        Arc::clone(&self.shared.state.lock().view)
    }

    /// Waits up to `within` for a view of another turn than `turn`: another version, head or place. Its turn, and it.
    ///
    /// # Errors
    /// Why this server is no member any more.
    pub fn wait(&self, turn: u64, within: Duration) -> std::result::Result<(u64, Arc<View>), Arc<Error>> {
        let mut state = self.shared.state.lock();
        if state.turn == turn && state.ended.is_none() {
            self.shared.changed.wait_for(&mut state, within);
        }
        match &state.ended {
            Some(error) => Err(Arc::clone(error)),
            None => Ok((state.turn, Arc::clone(&state.view))),
        }
    }

    /// The chain as a store, through the node of the present life; `None` before the first.
    pub fn store(&self) -> Option<ChainStore> {
        self.shared.state.lock().node.clone().map(ChainStore::new)
    }

    /// Hands over to others, and ends. Does nothing the second time.
    pub fn stop(&self) {
        // It may have ended by itself.
        let _ = self.stop.send(true);
        if let Some(runs) = self.runs.lock().take()
            && runs.join().is_err()
        {
            tracing::error!("the thread of a member panicked");
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.stop();
    }
}

struct Task {
    shared: Arc<Shared>,
    host: Arc<Host>,
    store: Arc<dyn ObjectStore>,
    config: Config,
}

/// Tells at the end of a member's thread where a panic is that end.
struct Ends<'t> {
    shared: &'t Shared,
    chain: &'t str,
}

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.shared.end(Error::Panicked { chain: self.chain.to_owned() });
        }
    }
}

impl Task {
    fn run(self, stopping: watch::Receiver<bool>) {
        let _ends = Ends { shared: &self.shared, chain: &self.config.chain };
        self.host.runtime().block_on(async {
            if let Err(error) = self.lives(stopping).await {
                tracing::error!(chain = self.config.chain, %error, "this server is no member of its chain any more");
                self.shared.end(error);
            }
        });
    }

    fn period(&self) -> Duration {
        self.host.config.period
    }

    /// Lives, one after the other, until this server is to stop.
    async fn lives(&self, mut stopping: watch::Receiver<bool>) -> Result<()> {
        let mut pause = self.period() / RENEWALS;
        while !*stopping.borrow_and_update() {
            let life = match self.begin().await {
                Ok(life) => life,
                Err(error @ Error::OtherChain { .. }) => return Err(error),
                Err(error) => {
                    self.tell_trouble(&error);
                    tokio::select! {
                        () = tokio::time::sleep(pause) => {}
                        _ = stopping.changed() => {}
                    }
                    pause = (pause * 2).min(AGAIN_MAX);
                    continue;
                }
            };
            pause = self.period() / RENEWALS;
            self.shared.state.lock().node = Some(Arc::clone(&life.node));
            self.live(life, &mut stopping).await?;
        }
        Ok(())
    }

    async fn begin(&self) -> Result<Life> {
        let peers = &self.host.peers;
        let links = peers.links(&self.config.chain, Arc::clone(&self.shared) as Arc<dyn Asked>);
        let birth = Birth {
            coordinator: &self.host.coordinator,
            peers,
            store: &self.store,
            chain: &self.config.chain,
            server: self.host.config.server,
            fresh: &self.config.fresh,
            kept_bytes_max: self.config.kept_bytes_max,
            links,
        };
        Life::begin(birth, self.config.served.clone()).await
    }

    /// One life, to its end.
    async fn live(&self, mut life: Life, stopping: &mut watch::Receiver<bool>) -> Result<()> {
        let mut changes = self.host.coordinator.changes(&self.config.chain)?;
        let every = self.period() / RENEWALS;
        loop {
            let mut view = View::clone(&self.shared.state.lock().view);
            view.trouble = None;
            let round = life.round(&mut view, self.period()).await;
            life.look(&mut view);
            match round {
                Ok(Round::Goes) => self.tell(view),
                Ok(Round::Again) => {
                    self.tell(view);
                    continue;
                }
                Ok(over @ (Round::Over | Round::Failed | Round::Leaves)) => {
                    let failed = matches!(over, Round::Failed);
                    let hands_over = view.heads && matches!(over, Round::Leaves);
                    (view.heads, view.place) = (false, None);
                    self.tell(view);
                    if hands_over {
                        life.settle().await;
                    }
                    life.end(failed || matches!(over, Round::Leaves)).await;
                    if failed {
                        // What has failed is not tried again at once.
                        tokio::time::sleep(self.period()).await;
                    }
                    return Ok(());
                }
                Err(error @ Error::Superseded { .. }) => {
                    (view.heads, view.place) = (false, None);
                    self.tell(view);
                    life.end(false).await;
                    return Err(error);
                }
                Err(error) => {
                    view.trouble = Some(error.to_string());
                    self.tell(view);
                }
            }
            tokio::select! {
                () = tokio::time::sleep(every) => {}
                () = self.shared.asked.notified() => {}
                told = changes.next() => if told.is_err() {
                    tokio::time::sleep(every).await;
                },
                _ = stopping.changed() => {
                    let mut view = View::clone(&self.shared.state.lock().view);
                    let hands_over = view.heads;
                    (view.heads, view.place) = (false, None);
                    self.tell(view);
                    if hands_over {
                        life.settle().await;
                    }
                    life.end(true).await;
                    return Ok(());
                }
            }
        }
    }

    fn tell_trouble(&self, error: &Error) {
        let mut view = View::clone(&self.shared.state.lock().view);
        if view.trouble.is_none() {
            tracing::warn!(chain = self.config.chain, %error, "this server is not in its chain yet");
        }
        view.trouble = Some(error.to_string());
        self.tell(view);
    }

    fn tell(&self, view: View) {
        let mut state = self.shared.state.lock();
        let stands = |view: &View| (view.version, view.head, view.heads, view.place, view.incarnation);
        let has_turned = stands(&state.view) != stands(&view);
        state.view = Arc::new(view);
        if has_turned {
            state.turn += 1;
            drop(state);
            self.shared.changed.notify_all();
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod tests {
    use super::*;

    #[test]
    fn a_member_whose_thread_panics_is_told_of_as_ended() {
        // Failure: faces waited for ever for a server that was in no chain. Fix: a guard tells those that wait.
        let state = State { view: Arc::default(), node: None, turn: 0, ended: None };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new(), asked: Notify::new() });
        let own = Arc::clone(&shared);
        let thread = std::thread::spawn(move || {
            let _ends = Ends { shared: &own, chain: "c" };
            panic!("as a defect may");
        });
        thread.join().unwrap_err();
        let ended = shared.state.lock().ended.clone();
        assert!(matches!(&*ended.unwrap(), Error::Panicked { chain } if chain == "c"));
    }
}
