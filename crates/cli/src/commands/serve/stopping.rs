//! The life of a server after its start: signals, taking anew what was read, and its end.
//!
//! SIGHUP → [`Stopping::reload`]; SIGTERM, SIGINT, SHUTDOWN → all protocols stop at once → `drain` → the store
//! closes → twice `drain` and a second after the signal the process ends in any case
//!
//! Invariants:
//! 1. A second signal ends the process at once; a device that does not answer does not keep it.
//! 2. What cannot be read anew changes nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use signal_hook::consts::SIGHUP;
use signal_hook::iterator::{Handle, Signals};

use super::seat::{Protocols, Seat};
use super::shared::Front;
use crate::exit::{Code, Failure};

/// What was read anew.
pub struct Anew {
    /// What puts the users into force.
    pub users: Box<dyn FnOnce() + Send>,
    /// What puts the mode of Thrift into force.
    pub mode: Box<dyn FnOnce() + Send>,
    /// The password, where a file holds it.
    pub password: Option<String>,
    /// The token of gRPC, and of HTTP.
    pub token: Option<String>,
    pub http_token: Option<String>,
}

/// What the protocols of a store go by, as it was read last.
struct Secrets {
    password: Option<String>,
    token: Option<String>,
    http_token: Option<String>,
}

/// Puts something into force.
type Apply = Box<dyn FnOnce() + Send>;

impl Secrets {
    /// What puts them into force in these protocols, and what they read themselves, such as certificates.
    fn prepare(&self, protocols: &Protocols) -> Result<Vec<Apply>, String> {
        let mut all = Vec::new();
        all.push(protocols.resp.prepare(self.password.as_deref()).map_err(|error| error.to_string())?);
        if let Some(nbd) = &protocols.nbd {
            all.push(nbd.prepare().map_err(|error| error.to_string())?);
        }
        if let Some(grpc) = &protocols.grpc {
            all.push(grpc.prepare(self.token.as_deref()).map_err(|error| error.to_string())?);
        }
        if let Some(thrift) = &protocols.thrift {
            all.push(thrift.prepare().map_err(|error| error.to_string())?);
        }
        if let Some(http) = &protocols.http {
            all.push(http.prepare(self.http_token.as_deref()).map_err(|error| error.to_string())?);
        }
        Ok(all)
    }
}

/// What reads it.
type Reread = Box<dyn Fn(&Front) -> Result<Anew, Failure> + Send + Sync>;

/// The end of a server, and what it is told before.
pub struct Stopping {
    front: Front,
    reread: Reread,
    /// What is served, by store.
    seats: Vec<Arc<Seat>>,
    /// The process is to end.
    ends: AtomicBool,
    /// What was taken anew last: also what is served later goes by it. Held while something is.
    anew: Mutex<Option<Secrets>>,
    closed: Mutex<bool>,
    changed: Condvar,
}

/// The threads that listen to signals and wait for the end.
pub struct Told {
    signals: Handle,
    listening: JoinHandle<()>,
    waiting: Option<JoinHandle<()>>,
}

impl Told {
    /// Ends them: the server has stopped.
    pub fn end(self) {
        self.signals.close();
        for thread in std::iter::once(self.listening).chain(self.waiting) {
            if thread.join().is_err() {
                tracing::error!("a thread that waits for the end panicked");
            }
        }
    }
}

impl Stopping {
    /// Nothing is served yet.
    pub fn new(
        front: Front,
        seats: Vec<Arc<Seat>>,
        reread: impl Fn(&Front) -> Result<Anew, Failure> + Send + Sync + 'static,
    ) -> Arc<Self> {
        let reread: Reread = Box::new(reread);
        let (anew, closed, changed) = (Mutex::new(None), Mutex::new(false), Condvar::new());
        let ends = AtomicBool::new(false);
        Arc::new(Self { front, reread, seats, ends, anew, closed, changed })
    }

    /// Takes certificates, passwords, tokens, users and the mode of Thrift anew; what is not served now goes by them
    /// once it is.
    ///
    /// # Errors
    /// What cannot be read.
    pub fn reload(&self) -> Result<(), String> {
        let mut last = self.anew.lock();
        let served: Vec<_> = self.seats.iter().filter_map(|seat| seat.protocols()).collect();
        // All is read before any of it counts.
        let anew = (self.reread)(&self.front).map_err(|failure| failure.to_string())?;
        let Anew { users, mode, password, token, http_token } = anew;
        let secrets = Secrets { password, token, http_token };
        let mut all = vec![users, mode];
        for protocols in &served {
            all.extend(secrets.prepare(protocols)?);
        }
        all.into_iter().for_each(|apply| apply());
        served.iter().for_each(|protocols| protocols.resp.wake());
        *last = Some(secrets);
        tracing::info!("certificates, passwords, tokens, users and thrift_mode are taken anew");
        Ok(())
    }

    /// Begins to listen to signals, and to wait for the end of what is served of this store.
    pub fn begin(self: &Arc<Self>, seat: &Arc<Seat>, protocols: Protocols, signals: Signals) -> Result<Told, Failure> {
        let waiting = self.serve(seat, protocols)?;
        let told = Told { waiting: Some(waiting), ..self.listen(signals)? };
        Ok(told)
    }

    /// Begins to listen to signals.
    pub fn listen(self: &Arc<Self>, mut signals: Signals) -> Result<Told, Failure> {
        let (handle, own) = (signals.handle(), Arc::clone(self));
        let listening = std::thread::Builder::new().name("esker-signals".into()).spawn(move || {
            let mut stops = false;
            for signal in &mut signals {
                if signal == SIGHUP {
                    supervisor::reloading();
                    if let Err(why) = own.reload() {
                        tracing::error!(why, "nothing was taken anew");
                    }
                    supervisor::ready();
                } else if stops {
                    tracing::warn!(signal, "a second signal: ending at once");
                    std::process::exit(Code::Failure as i32);
                } else {
                    stops = true;
                    tracing::info!(signal, "stopping");
                    own.stop();
                }
            }
        })?;
        if let Some(within) = supervisor::watchdog() {
            let own = Arc::clone(self);
            std::thread::Builder::new().name("esker-watchdog".into()).spawn(move || own.watch(within))?;
        }
        Ok(Told { signals: handle, listening, waiting: None })
    }

    /// This is what is served of a store from now on. Whatever of it stops, stops the rest and ends the process, unless
    /// [`Seat::change`] has stopped it.
    pub fn serve(self: &Arc<Self>, seat: &Arc<Seat>, protocols: Protocols) -> Result<JoinHandle<()>, Failure> {
        let protocols = Arc::new(protocols);
        let last = self.anew.lock();
        if let Some(secrets) = &*last {
            // Its configuration is that of the start.
            let all = secrets.prepare(&protocols).map_err(|why| Failure::new(Code::Failure, why))?;
            all.into_iter().for_each(|apply| apply());
        }
        seat.serve(&protocols);
        drop(last);
        if self.ends() {
            // A signal came before there was something to stop.
            protocols.stop();
        }
        let (own, seat) = (Arc::clone(self), Arc::clone(seat));
        let waiting = std::thread::Builder::new().name("esker-end".into()).spawn(move || {
            protocols.resp.wait_stopping();
            // What is served now is another's, where this was to change.
            if seat.serves(&protocols) {
                own.stop();
            }
        })?;
        if self.seats.iter().all(|seat| seat.was_served()) {
            supervisor::ready();
        }
        Ok(waiting)
    }

    /// Whether the process is to end.
    pub fn ends(&self) -> bool {
        self.ends.load(Ordering::SeqCst)
    }

    /// Stops everything, at once; the process ends in time.
    pub fn stop(self: &Arc<Self>) {
        self.ends.store(true, Ordering::SeqCst);
        supervisor::stopping();
        self.seats.iter().filter_map(|seat| seat.protocols()).for_each(|protocols| protocols.stop());
        self.limit("stopping");
    }

    /// Ends the process if the store is not closed in time: after the time to drain, and as long again.
    fn limit(self: &Arc<Self>, what: &'static str) {
        let (own, within) = (Arc::clone(self), self.front.linger * 2 + Duration::from_secs(1));
        let until = Instant::now() + within;
        let limited = std::thread::Builder::new().name("esker-limit".into()).spawn(move || {
            let mut closed = own.closed.lock();
            while !*closed && !own.changed.wait_until(&mut closed, until).timed_out() {}
            if !*closed {
                let seconds = within.as_secs();
                tracing::error!(
                    what,
                    seconds,
                    "the store is not closed: ending as after a crash; nothing acknowledged is lost"
                );
                std::process::exit(Code::Failure as i32);
            }
        });
        if let Err(error) = limited {
            tracing::warn!(%error, "the end has no limit");
        }
    }

    /// Tells the supervisor that all is well while the loops that answer go round, until the end.
    pub fn watch(&self, within: Duration) {
        while !self.ends() {
            let served: Vec<_> = self.seats.iter().filter_map(|seat| seat.protocols()).collect();
            // Between two that are served, all is well.
            if served.iter().all(|protocols| protocols.resp.goes_round(within / 2)) {
                supervisor::alive();
            }
            std::thread::sleep((within / 4).clamp(Duration::from_millis(10), Duration::from_secs(5)));
        }
    }

    /// The store is closed.
    pub fn closed(&self) {
        *self.closed.lock() = true;
        self.changed.notify_all();
    }
}

/// What a supervisor such as systemd is told, if there is one.
pub mod supervisor {
    use std::time::Duration;

    use sd_notify::NotifyState;

    fn tell(states: &[NotifyState<'_>]) {
        // Without a supervisor nothing is told; one that cannot be told is no reason to stop.
        if let Err(error) = sd_notify::notify(states) {
            tracing::debug!(%error, "the supervisor cannot be told");
        }
    }

    /// The server answers.
    pub fn ready() {
        tell(&[NotifyState::Ready, NotifyState::Status("serving")]);
    }

    /// Opening goes on, and needs so much longer.
    pub fn opening(words: &str, more: Duration) {
        tell(&[NotifyState::Status(words), NotifyState::ExtendTimeoutUsec(more.as_micros() as u32)]);
    }

    /// Files are read anew.
    pub fn reloading() {
        // Systemd wants the time with it.
        match NotifyState::monotonic_usec_now() {
            Ok(now) => tell(&[NotifyState::Reloading, now]),
            Err(_) => tell(&[NotifyState::Reloading]),
        }
    }

    /// It stops.
    pub fn stopping() {
        tell(&[NotifyState::Stopping, NotifyState::Status("stopping")]);
    }

    /// All is well: told within each half of the time that the supervisor allows.
    pub fn alive() {
        tell(&[NotifyState::Watchdog]);
    }

    /// The time after which a supervisor that heard nothing ends the process.
    pub fn watchdog() -> Option<Duration> {
        sd_notify::watchdog_enabled()
    }
}
