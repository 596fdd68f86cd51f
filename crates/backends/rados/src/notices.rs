//! Notices: who watches an object is told that it has changed.
//!
//! ```text
//! notify → note of its object → a notify of RADOS, if none is under way → who watches has answered, or is late
//!                                │ others come: one more behind it, after BUSY, or IDLE if no watch was there
//! watch  → look → a watch on an OSD → notified → `changed`
//!                  │ lost: not live, `changed` → watched again, each RETRY → live, `changed`
//! ```
//!
//! What is due later is begun by one thread of the store, which the first notify or watch starts.
//!
//! Invariants:
//! 1. No caller waits for a notify. Behind each call of [`Notices::notify`] one of its object begins: when the one
//!    before it was answered, or is [`LATE`], after its time, and where fewer than [`UNDER_WAY_MAX`] are under way.
//! 2. An object that is not watched costs a notify each [`IDLE_MAX`] while it is written to, some more at first, and
//!    none otherwise.
//! 3. Nothing is locked while the library is called, or who watches.
//! 4. Threads of librados, and the store's, wait for nothing here. OSDs may never answer what is begun here: who waits
//!    for that ([`Notices::watch`], [`Notices::close`]) does so for a time.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::CString;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use esker_store::{Changed, Error, ObjectId, Result, Watching};
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::encode;
use crate::link::{Link, code, error};
use crate::native::{Ear, Failed, Heard, Pool, Watch};
use crate::options::Options;

thread_local! {
    static WORKS: Cell<bool> = const { Cell::new(false) };
}

/// After a notify that was heard the next of its object waits for so long: each has all who watch look, which would
/// cost more than the writes do where these follow one another.
const BUSY: Duration = Duration::from_millis(10);
/// After one that was not heard the next waits for so long, and twice as long after each that was not heard either, up
/// to [`IDLE_MAX`]: who begins to watch looks, and the first notify that is heard ends this.
const IDLE: Duration = Duration::from_millis(20);
const IDLE_MAX: Duration = Duration::from_millis(500);
/// An object that is not notified of for so long is forgotten, and with it how long the next waits.
const REST: Duration = Duration::from_secs(2);
/// Who asks for a watching waits for so long until it is there; it may come later.
const FIRST: Duration = Duration::from_secs(1);
/// Seconds that a watch has to answer a notify.
const ANSWER_S: u32 = 1;
/// A notify that is under way for so long holds up the next of its object no more: one who watches was killed, and OSDs
/// wait for its answer until they take it for gone, whereas others who watch are there.
const LATE: Duration = Duration::from_millis(50);
/// Notifies of an object that are under way, at most.
const UNDER_WAY_MAX: usize = 20;
/// Seconds after which OSDs take a client for gone that they do not hear of, and drop its watches. The library asks for
/// each watch every 5 s.
const KEEP_S: u32 = 15;
/// How often a watch that was lost is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// One who watches.
struct Watched {
    number: u64,
    object: ObjectId,
    changed: Changed,
    live: AtomicBool,
    /// It was dropped.
    ended: AtomicBool,
}

impl Watched {
    fn call(&self) {
        if !self.ended.load(Ordering::SeqCst) {
            (self.changed)();
        }
    }
}

/// What librados tells of a watch.
struct Hears {
    notices: Weak<Notices>,
    watched: Arc<Watched>,
    /// Which of its watches.
    asking: u64,
}

impl Ear for Hears {
    fn notified(&self) {
        self.watched.call();
    }

    fn lost(&self) {
        if let Some(notices) = self.notices.upgrade() {
            notices.lost(&self.watched, self.asking);
        }
    }
}

/// What the user holds.
struct Held {
    notices: Weak<Notices>,
    watched: Arc<Watched>,
}

impl Watching for Held {
    fn is_live(&self) -> bool {
        self.watched.live.load(Ordering::SeqCst)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.watched.ended.store(true, Ordering::SeqCst);
        if let Some(notices) = self.notices.upgrade() {
            notices.work_on(self.watched.number);
        }
    }
}

/// An object that was notified of a moment ago.
#[derive(Default)]
struct Note {
    /// The number of the last notify, if that is under way and not late.
    sent: Option<u64>,
    /// Notifies that are, late ones too.
    under_way: usize,
    /// There was a call since that was begun.
    pending: bool,
    /// When it is looked at: none begins before, and one that is under way is late then.
    due: Option<Instant>,
    /// It is remembered only, and one may begin.
    rests: bool,
    /// How long the next waits if this one is not heard.
    idle: Duration,
}

/// Where a watch is.
enum Stage {
    /// Asked for. `lost`: before the answer was there.
    Asked {
        lost: bool,
    },
    On(Watch),
    /// Lost, and to be asked for again then.
    Off(Option<Instant>),
}

struct Kept {
    watched: Arc<Watched>,
    stage: Stage,
    /// The number of the watch that was asked for last: one before it may be told of as lost later.
    asking: u64,
    /// Who waits for it to be watched for the first time.
    waits: Option<Sender<std::result::Result<(), Failed>>>,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    Note(ObjectId),
    Watch(u64),
}

#[derive(Default)]
struct State {
    notes: HashMap<ObjectId, Note>,
    watches: BTreeMap<u64, Kept>,
    due: BTreeSet<(Instant, Due)>,
    /// Of notifies and of those who watch.
    last_number: u64,
    thread: Option<JoinHandle<()>>,
    started: bool,
    closed: bool,
}

impl State {
    fn next_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }
}

/// The notices of a store.
pub(crate) struct Notices {
    link: Link,
    state: Mutex<State>,
    /// Something is due earlier, or the store is closed.
    turned: Condvar,
    /// How long is waited for OSDs.
    timeout: OnceLock<Duration>,
}

impl Notices {
    pub(crate) fn new(link: Link) -> Arc<Self> {
        Arc::new(Self { link, state: Mutex::default(), turned: Condvar::new(), timeout: OnceLock::new() })
    }

    /// OSDs have to answer within this.
    pub(crate) fn set_timeout(&self, timeout: Duration) {
        let _ = self.timeout.set(timeout);
    }

    fn timeout(&self) -> Duration {
        self.timeout.get().copied().unwrap_or_else(|| Options::default().timeout)
    }

    fn pool(&self, object: &ObjectId) -> &Pool {
        &self.link.of(object).pool
    }

    fn start_thread(self: &Arc<Self>, state: &mut State) {
        if state.started {
            return;
        }
        state.started = true;
        let own = Arc::clone(self);
        match std::thread::Builder::new().name("rados-notices".into()).spawn(move || own.work()) {
            Ok(thread) => state.thread = Some(thread),
            Err(error) => {
                // The next notify or watch tries again.
                state.started = false;
                tracing::warn!("no thread for notices on Ceph, who follows is told of less: {error}");
            }
        }
    }

    /// Tells those who watch an object that it has changed.
    pub(crate) fn notify(self: &Arc<Self>, object: &ObjectId) {
        let mut state = self.state.lock();
        if state.closed {
            return;
        }
        let started = state.started;
        match state.notes.get_mut(object) {
            Some(note) if note.pending && started => return,
            Some(note) => note.pending = true,
            None => {
                state.notes.insert(object.clone(), Note { pending: true, ..Note::default() });
            }
        }
        self.start_thread(&mut state);
        self.go_on(state, object);
    }

    /// Begins the notify of an object that is wanted, if it may begin now.
    fn go_on(self: &Arc<Self>, mut state: MutexGuard<'_, State>, object: &ObjectId) {
        let closed = state.closed;
        let Some(note) = state.notes.get_mut(object) else { return };
        if !note.pending || !closed && (note.due.is_some() && !note.rests || note.under_way >= UNDER_WAY_MAX) {
            return;
        }
        (note.pending, note.rests) = (false, false);
        note.under_way += 1;
        let number = state.next_number();
        if let Some(note) = state.notes.get_mut(object) {
            note.sent = Some(number);
        }
        self.set_due(&mut state, object, Instant::now() + LATE);
        drop(state);
        let (own, told) = (Arc::clone(self), object.clone());
        let name = encode::object(object);
        self.pool(object).notify(&name, ANSWER_S, move |outcome| own.answered(&told, number, outcome));
    }

    fn answered(self: &Arc<Self>, object: &ObjectId, number: u64, outcome: std::result::Result<Heard, Failed>) {
        let mut state = self.state.lock();
        let Some(note) = state.notes.get_mut(object) else { return };
        note.under_way -= 1;
        if note.sent == Some(number) {
            note.sent = None;
            let is_watched = outcome.is_ok_and(|heard| heard.answered > 0 || heard.silent > 0);
            let wait = if is_watched { BUSY } else { note.idle.clamp(IDLE, IDLE_MAX) };
            note.idle = if is_watched { IDLE } else { wait * 2 };
            self.set_due(&mut state, object, Instant::now() + wait);
        } else if note.due.is_none() {
            self.set_due(&mut state, object, Instant::now());
        }
    }

    /// An object is looked at then, and not before.
    fn set_due(&self, state: &mut State, object: &ObjectId, at: Instant) {
        let Some(note) = state.notes.get_mut(object) else { return };
        if let Some(before) = note.due.replace(at) {
            state.due.remove(&(before, Due::Note(object.clone())));
        }
        state.due.insert((at, Due::Note(object.clone())));
        if state.due.first().is_some_and(|(first, _)| *first == at) {
            self.turned.notify_all();
        }
    }

    /// Has `changed` called after notifies of an object, from when it is watched; what is returned tells whether it is.
    pub(crate) fn watch(self: &Arc<Self>, object: &ObjectId, changed: Changed) -> Result<Box<dyn Watching>> {
        let missing = || Error::NoObject { object: object.to_string() };
        let name = encode::object(object);
        // A tomb can be watched, and is no object.
        self.link.of(object).look(&name, |_| ())?.ok_or_else(missing)?;
        let (tell, told) = channel();
        let mut state = self.state.lock();
        if state.closed {
            return Err(Error::Closed);
        }
        self.start_thread(&mut state);
        let number = state.next_number();
        let (live, ended) = (AtomicBool::new(false), AtomicBool::new(false));
        let watched = Arc::new(Watched { number, object: object.clone(), changed, live, ended });
        let (stage, asking) = (Stage::Asked { lost: false }, number);
        let kept = Kept { watched: Arc::clone(&watched), stage, asking, waits: Some(tell) };
        state.watches.insert(number, kept);
        drop(state);
        let held = Held { notices: Arc::downgrade(self), watched };
        self.ask(&held.watched, asking, name);
        let give_up = || {
            if let Some(kept) = self.state.lock().watches.get_mut(&number) {
                kept.waits = None;
            }
        };
        match answer(&told, self.timeout().min(FIRST), give_up) {
            Some(Ok(())) => Ok(Box::new(held)),
            Some(Err(Failed { code: code::NOT_THERE, .. })) => Err(missing()),
            Some(Err(failed)) => Err(error(failed, "watching", &encode::object(object))),
            // It comes later, as after a loss.
            None => Ok(Box::new(held)),
        }
    }

    /// Asks an OSD for a watch.
    fn ask(self: &Arc<Self>, watched: &Arc<Watched>, asking: u64, name: CString) {
        let ear = Hears { notices: Arc::downgrade(self), watched: Arc::clone(watched), asking };
        let (own, told) = (Arc::clone(self), Arc::clone(watched));
        self.pool(&watched.object).watch(&name, KEEP_S, Arc::new(ear), move |outcome| own.asked(&told, outcome));
    }

    fn asked(self: &Arc<Self>, watched: &Watched, outcome: std::result::Result<Watch, Failed>) {
        let mut state = self.state.lock();
        let closed = state.closed;
        let is_ended = closed || watched.ended.load(Ordering::SeqCst);
        let Some(kept) = state.watches.get_mut(&watched.number).filter(|_| !is_ended) else {
            state.watches.remove(&watched.number);
            drop(state);
            if let Ok(watch) = outcome {
                self.pool(&watched.object).unwatch(watch);
            }
            return;
        };
        let waits = kept.waits.take();
        let was_lost = matches!(kept.stage, Stage::Asked { lost: true });
        let mut unneeded = None;
        match outcome {
            Ok(watch) if was_lost => {
                unneeded = Some(watch);
                self.put_off(&mut state, watched.number, Instant::now() + RETRY);
            }
            Ok(watch) => {
                kept.stage = Stage::On(watch);
                watched.live.store(true, Ordering::SeqCst);
            }
            // Who asked for it is there still, and is told.
            Err(failed) if waits.as_ref().is_some_and(|waits| waits.send(Err(failed)).is_ok()) => {
                state.watches.remove(&watched.number);
                return;
            }
            // This client is shut out for good.
            Err(Failed { code: code::SHUT_OUT, .. }) => kept.stage = Stage::Off(None),
            Err(_) => self.put_off(&mut state, watched.number, Instant::now() + RETRY),
        }
        let is_on = watched.live.load(Ordering::SeqCst);
        drop(state);
        if let Some(watch) = unneeded {
            self.pool(&watched.object).unwatch(watch);
        }
        let is_told = waits.is_some_and(|waits| waits.send(Ok(())).is_ok());
        if !is_told && is_on {
            watched.call();
        }
    }

    /// A watch that was lost is asked for again, then.
    fn put_off(&self, state: &mut State, number: u64, at: Instant) {
        if let Some(kept) = state.watches.get_mut(&number) {
            kept.stage = Stage::Off(Some(at));
            state.due.insert((at, Due::Watch(number)));
            self.turned.notify_all();
        }
    }

    fn lost(self: &Arc<Self>, watched: &Watched, asking: u64) {
        let mut state = self.state.lock();
        let Some(kept) = state.watches.get_mut(&watched.number).filter(|kept| kept.asking == asking) else { return };
        watched.live.store(false, Ordering::SeqCst);
        let mut over = None;
        match std::mem::replace(&mut kept.stage, Stage::Asked { lost: true }) {
            Stage::On(watch) => {
                over = Some(watch);
                self.put_off(&mut state, watched.number, Instant::now());
            }
            // The answer is still to come.
            Stage::Asked { .. } => {}
            off @ Stage::Off(_) => kept.stage = off,
        }
        drop(state);
        if let Some(watch) = over {
            self.pool(&watched.object).unwatch(watch);
        }
        watched.call();
    }

    /// Has the thread look at a watch now.
    fn work_on(&self, number: u64) {
        let mut state = self.state.lock();
        state.due.insert((Instant::now(), Due::Watch(number)));
        self.turned.notify_all();
    }

    /// Whether this is the thread of a store that works on notices.
    pub(crate) fn works() -> bool {
        WORKS.get()
    }

    fn work(self: Arc<Self>) {
        WORKS.set(true);
        let mut state = self.state.lock();
        while !state.closed {
            let Some((at, _)) = state.due.first() else {
                self.turned.wait(&mut state);
                continue;
            };
            let at = *at;
            if at > Instant::now() {
                self.turned.wait_until(&mut state, at);
                continue;
            }
            let Some((_, due)) = state.due.pop_first() else { continue };
            match due {
                Due::Note(object) => self.note_is_due(state, &object),
                Due::Watch(number) => self.watch_is_due(state, number),
            }
            state = self.state.lock();
        }
    }

    fn note_is_due(self: &Arc<Self>, mut state: MutexGuard<'_, State>, object: &ObjectId) {
        let Some(note) = state.notes.get_mut(object) else { return };
        (note.due, note.sent) = (None, None);
        if !note.pending && note.under_way == 0 {
            if note.rests {
                state.notes.remove(object);
            } else {
                note.rests = true;
                self.set_due(&mut state, object, Instant::now() + REST);
            }
            return;
        }
        self.go_on(state, object);
    }

    fn watch_is_due(self: &Arc<Self>, mut state: MutexGuard<'_, State>, number: u64) {
        let Some(kept) = state.watches.get_mut(&number) else { return };
        let watched = Arc::clone(&kept.watched);
        let is_ended = watched.ended.load(Ordering::SeqCst);
        match &kept.stage {
            // The answer finds that it has ended.
            Stage::Asked { .. } => {}
            Stage::On(_) | Stage::Off(_) if is_ended => {
                let kept = state.watches.remove(&number);
                drop(state);
                if let Some(Kept { stage: Stage::On(watch), .. }) = kept {
                    self.pool(&watched.object).unwatch(watch);
                }
            }
            Stage::Off(Some(at)) if *at <= Instant::now() => {
                kept.stage = Stage::Asked { lost: false };
                let asking = state.next_number();
                if let Some(kept) = state.watches.get_mut(&number) {
                    kept.asking = asking;
                }
                drop(state);
                self.ask(&watched, asking, encode::object(&watched.object));
            }
            Stage::On(_) | Stage::Off(_) => {}
        }
    }

    /// Ends the thread and all watches, begins the notifies that are left, and waits until all are answered, or for the
    /// time that OSDs have.
    pub(crate) fn close(self: &Arc<Self>) {
        let mut state = self.state.lock();
        state.closed = true;
        state.due.clear();
        let thread = state.thread.take();
        let watches = std::mem::take(&mut state.watches);
        let pending: Vec<_> =
            state.notes.iter().filter(|(_, note)| note.pending).map(|(object, _)| object.clone()).collect();
        self.turned.notify_all();
        drop(state);
        for Kept { watched, stage, .. } in watches.into_values() {
            watched.live.store(false, Ordering::SeqCst);
            if let Stage::On(watch) = stage {
                self.pool(&watched.object).unwatch(watch);
            }
        }
        for object in pending {
            self.go_on(self.state.lock(), &object);
        }
        // What it drops last may be a `changed` that holds the store.
        if let Some(thread) = thread
            && thread.thread().id() != std::thread::current().id()
            && thread.join().is_err()
        {
            tracing::error!("the thread of notices on Ceph panicked");
        }
        self.link.wait_until(Instant::now() + self.timeout());
    }
}

/// What is told within a time, or before `give_up` has ended: after that it is told no more.
fn answer<T>(told: &Receiver<T>, wait: Duration, give_up: impl FnOnce()) -> Option<T> {
    told.recv_timeout(wait).ok().or_else(|| {
        give_up();
        told.try_recv().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    // Failure: a watch that no object was there for was told as one that comes later, and never came. Cause: its answer
    // came while the caller gave up. Fix: the caller looks once more.
    #[test]
    fn an_answer_that_comes_while_the_caller_gives_up_is_heard() {
        let (tell, told) = channel();
        assert_eq!(answer(&told, Duration::ZERO, || tell.send(7).unwrap()), Some(7));
        assert_eq!(answer(&told, Duration::ZERO, || ()), None);
    }

    #[test]
    fn the_loss_of_an_earlier_watch_takes_no_later_one_down() {
        let notices = Notices::new(Link::new(Pool::nowhere()));
        let (live, ended) = (AtomicBool::new(true), AtomicBool::new(false));
        let object = ObjectId::new("c".into(), "o");
        let watched = Arc::new(Watched { number: 1, object, changed: Arc::new(|| ()), live, ended });
        let stage = Stage::Asked { lost: false };
        let kept = Kept { watched: Arc::clone(&watched), stage, asking: 5, waits: None };
        notices.state.lock().watches.insert(1, kept);
        let is_lost = || matches!(notices.state.lock().watches[&1].stage, Stage::Asked { lost: true });
        notices.lost(&watched, 4);
        assert!(watched.live.load(Ordering::SeqCst) && !is_lost());
        notices.lost(&watched, 5);
        assert!(!watched.live.load(Ordering::SeqCst) && is_lost());
    }
}
