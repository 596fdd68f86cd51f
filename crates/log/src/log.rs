//! A log as its users hold it: the view as last seen, where positions come from, what followers are woken by.
//!
//! Invariants:
//! 1. The view that is kept only ever becomes newer. It may be old: whatever is done by it is guarded in the objects.
//! 2. Handles of one [`Logs`](crate::Logs) share the leader, so that they do not depose each other.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption, Guard};
use bytes::Bytes;
use esker_store::{Barrier, Capability, ObjectId, ObjectStore, Transaction};
use event_listener::{Event, EventListener};
use parking_lot::Mutex;

use crate::cells::{self, Found, Guarded, Guards};
use crate::format::{self, Nonce, Streams};
use crate::recent::{Recent, Recents};
use crate::seal::{Reach, TakenOver};
use crate::sequencer::{Connect, Leader, Sequencer, Tail, Token};
use crate::view::{Stripe, View};
use crate::{Error, Options, Result, head};

/// Leases that a log whose sequencer is silent waits for another one: who stands by takes over after one.
const LEASES_WAITED: u64 = 4;

/// The time in unix milliseconds.
pub type Clock = Arc<dyn Fn() -> u64 + Send + Sync>;

/// What logs take from outside.
#[derive(Clone)]
pub struct Session {
    /// The time; entries carry it, and holes are filled by it.
    pub clock: Clock,
    /// A number that no other session has: random. Entries carry it, so that a retried append knows its own.
    pub nonce: u64,
    /// Finds sequencers of other processes; without it every session hands out positions itself, taking over from whoever did.
    pub connect: Option<Arc<dyn Connect>>,
    /// How long a sequencer may be silent before it is given up, in milliseconds. Sessions that hand out positions themselves and depose each other
    /// let each other go on for a fiftieth of it. A log whose sequencer is silent for four of it, and that nobody took over, is taken over by
    /// whoever writes. Default: 500.
    pub lease_ms: u64,
    /// Bytes of recent entries kept for followers, per log. Default: 16 MiB.
    pub cache_bytes: u64,
}

impl Session {
    /// A session without sequencers of other processes.
    pub fn new(clock: Clock, nonce: u64) -> Self {
        Self { clock, nonce, connect: None, lease_ms: 500, cache_bytes: 16 << 20 }
    }
}

/// What is appended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// The entry's data.
    pub data: Bytes,
    /// The streams it belongs to.
    pub streams: Streams,
}

impl<T: Into<Bytes>> From<T> for Record {
    fn from(data: T) -> Self {
        Self { data: data.into(), streams: Streams::new() }
    }
}

impl Record {
    /// Makes the entry belong to `stream` as well.
    pub fn stream(mut self, stream: impl Into<Bytes>) -> Self {
        self.streams.push(stream.into());
        self
    }
}

/// What all handles of one log in a process share.
pub(crate) struct Shared {
    /// Told of every position that is decided here, and of new views.
    pub applied: Event,
    /// One above the highest position written or met here.
    pub seen: AtomicU64,
    /// Followers there are: recent entries are kept only for them.
    pub followers: AtomicUsize,
    recent: Recents,
}

impl Shared {
    pub(crate) fn new(cache_bytes: u64) -> Self {
        Self {
            applied: Event::new(),
            seen: AtomicU64::new(0),
            followers: AtomicUsize::new(0),
            recent: Recents::new(cache_bytes),
        }
    }
}

/// Where the bytes of an object end, once known; held while something is appended to them.
pub(crate) type End = Arc<Mutex<Option<u64>>>;

pub(crate) struct Inner {
    pub store: Arc<dyn ObjectStore>,
    pub capability: Capability,
    pub id: u64,
    pub name: String,
    pub session: Session,
    pub shared: Arc<Shared>,
    view: ArcSwap<View>,
    names: ArcSwap<Names>,
    leader: ArcSwapOption<Leader>,
    leading: Mutex<()>,
    remote: Mutex<Option<(String, Arc<dyn Sequencer>)>>,
    writer: u64,
    number: AtomicU64,
    /// The epoch at which this handle became the only writer; 0 if it did not.
    pub held: u64,
    /// Where the bytes of data objects end (layout stream).
    ends: Mutex<HashMap<(u64, u32), End>>,
    pub growing: Mutex<()>,
}

/// Names of a stripe's objects, by column: making one takes as long as finding it in the store.
#[derive(Default)]
struct Names {
    stripe: u64,
    objects: Box<[ObjectId]>,
}

/// What a handle is made of.
pub(crate) struct Opened<'a> {
    pub store: &'a Arc<dyn ObjectStore>,
    pub id: u64,
    pub name: &'a str,
    pub session: &'a Session,
    /// Its number in the entries that it writes.
    pub writer: u64,
    pub shared: Arc<Shared>,
}

/// A log. Cloning costs a reference count; clones are the same handle.
#[derive(Clone)]
pub struct Log {
    pub(crate) inner: Arc<Inner>,
}

impl std::fmt::Debug for Log {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Log").field("name", &self.inner.name).field("id", &self.inner.id).finish()
    }
}

impl Log {
    pub(crate) fn new(opened: Opened<'_>, view: View, held: Option<Arc<Leader>>) -> Self {
        let Opened { store, id, name, session, writer, shared } = opened;
        let inner = Inner {
            capability: store.capability(),
            store: Arc::clone(store),
            id,
            name: name.to_owned(),
            session: session.clone(),
            shared,
            view: ArcSwap::from_pointee(view),
            names: ArcSwap::default(),
            held: held.as_ref().map_or(0, |leader| leader.epoch()),
            leader: ArcSwapOption::new(held),
            leading: Mutex::new(()),
            remote: Mutex::new(None),
            writer,
            number: AtomicU64::new(0),
            ends: Mutex::default(),
            growing: Mutex::new(()),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Its name when it was opened.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Its id: as long as the log lives, whatever it is called.
    pub fn id(&self) -> u64 {
        self.inner.id
    }

    /// The view as last seen.
    pub fn view(&self) -> Arc<View> {
        self.inner.view.load_full()
    }

    /// As [`Log::view`], for a short look: threads that append do not meet at its reference count.
    pub(crate) fn peek(&self) -> Guard<Arc<View>> {
        self.inner.view.load()
    }

    /// An object of a stripe. The names of the newest stripe that was asked for are kept.
    pub(crate) fn object(&self, stripe: &Stripe, column: u32) -> ObjectId {
        let id = self.inner.id;
        let kept = self.inner.names.load();
        if kept.stripe == stripe.id
            && let Some(object) = kept.objects.get(column as usize)
        {
            return object.clone();
        }
        if kept.stripe <= stripe.id {
            let objects = (0..stripe.width).map(|column| format::data(id, stripe.id, column)).collect();
            self.inner.names.store(Arc::new(Names { stripe: stripe.id, objects }));
        }
        format::data(id, stripe.id, column)
    }

    /// The options as last seen.
    pub fn options(&self) -> Options {
        self.view().options.clone()
    }

    pub(crate) fn store(&self) -> &dyn ObjectStore {
        &*self.inner.store
    }

    pub(crate) fn now_ms(&self) -> u64 {
        (self.inner.session.clock)()
    }

    /// Reads the view again.
    ///
    /// # Errors
    /// [`Error::NoLog`] if the log was deleted; the store's.
    pub fn refresh(&self) -> Result<Arc<View>> {
        let view = head::load(self.store(), self.inner.id, &self.inner.name)?;
        Ok(self.met(view))
    }

    /// Keeps `view` if it is newer than what is kept.
    pub(crate) fn met(&self, view: View) -> Arc<View> {
        let view = Arc::new(view);
        self.inner.view.rcu(|kept| if kept.version >= view.version { Arc::clone(kept) } else { Arc::clone(&view) });
        self.view()
    }

    /// A number for the next entry of this session.
    pub(crate) fn next_nonce(&self) -> Nonce {
        Nonce { writer: self.inner.writer, number: self.inner.number.fetch_add(1, Ordering::Relaxed) }
    }

    /// Refuses to write where the view says that this handle may not.
    pub(crate) fn check_writer(&self, view: &View) -> Result<()> {
        if let Some(tail) = view.sealed {
            return Err(Error::Sealed { log: self.inner.name.clone(), tail });
        }
        let held = self.inner.held;
        let mine = if held == 0 { view.owner.is_empty() } else { view.epoch == held };
        if !mine {
            let (log, owner) = (self.inner.name.clone(), view.owner.clone());
            return Err(Error::Fenced { log, held, found: view.epoch, owner });
        }
        Ok(())
    }

    /// The leader here, if it is the log's at this view.
    pub(crate) fn leader(&self, view: &View) -> Option<Arc<Leader>> {
        self.inner.leader.load_full().filter(|leader| leader.epoch() == view.epoch)
    }

    /// Whether positions are handed out by this handle, as far as it knows: then an append waits for nobody else.
    pub fn leads(&self) -> bool {
        self.leader(&self.view()).is_some()
    }

    /// The leader here, if it is the log's and this handle may write.
    fn ready_leader(&self) -> Option<Guard<Option<Arc<Leader>>>> {
        let view = self.peek();
        let leader = self.inner.leader.load();
        let leads = leader.as_ref().is_some_and(|leader| leader.epoch() == view.epoch);
        (leads && self.check_writer(&view).is_ok()).then_some(leader)
    }

    /// Positions for `count` entries, taking over where nobody else hands them out.
    pub(crate) fn token(&self, count: u32, expected: Option<u64>) -> Result<Token> {
        let mut began = None;
        loop {
            if let Some(leader) = self.ready_leader().as_deref().and_then(Option::as_ref) {
                return leader.next(count, expected);
            }
            let view = self.view();
            self.check_writer(&view).or_else(|error| {
                // What was seen may be old: an owner may have let go.
                let view = self.refresh()?;
                self.check_writer(&view).map_err(|_| error)
            })?;
            let view = self.view();
            if let Some(leader) = self.leader(&view) {
                return leader.next(count, expected);
            }
            match (&self.inner.session.connect, view.sequencer.is_empty()) {
                (Some(connect), false) => {
                    let asked = self
                        .remote(&**connect, &view.sequencer)
                        .and_then(|sequencer| sequencer.next(self.inner.id, view.epoch, count, expected));
                    match asked {
                        Ok(token) => {
                            if token.epoch > view.epoch {
                                self.refresh()?;
                            }
                            return Ok(token);
                        }
                        Err(Error::NoSequencer { .. } | Error::Deposed { .. }) => {
                            self.inner.remote.lock().take();
                            self.await_sequencer(&mut began, &view)?;
                        }
                        Err(error) => return Err(error),
                    }
                }
                _ => {
                    if self.inner.leader.load().is_some() {
                        // Deposed: whoever did it gets on with what it wants before it is deposed in turn.
                        std::thread::sleep(Duration::from_millis(self.inner.session.lease_ms / 50));
                    }
                    self.lead_after(&view)?;
                }
            }
        }
    }

    fn remote(&self, connect: &dyn Connect, address: &str) -> Result<Arc<dyn Sequencer>> {
        let mut remote = self.inner.remote.lock();
        match &*remote {
            Some((at, sequencer)) if at == address => Ok(Arc::clone(sequencer)),
            _ => {
                let sequencer = connect.connect(address)?;
                *remote = Some((address.to_owned(), Arc::clone(&sequencer)));
                Ok(sequencer)
            }
        }
    }

    /// Waits a little for another sequencer to take over. If none did within [`LEASES_WAITED`] leases, nobody stands by: this handle takes over, and
    /// from then on whoever writes hands out positions, until a sequencer is there again.
    fn await_sequencer(&self, began: &mut Option<u64>, before: &View) -> Result<()> {
        let now = self.now_ms();
        let since = *began.get_or_insert(now);
        let lease = self.inner.session.lease_ms;
        let view = self.refresh()?;
        if view.version != before.version {
            return Ok(());
        }
        if now.saturating_sub(since) > lease.saturating_mul(LEASES_WAITED) {
            *began = None;
            return self.lead_after(before);
        }
        std::thread::sleep(Duration::from_millis((lease / 20).max(1)));
        Ok(())
    }

    /// Becomes the one who hands out positions, under a new epoch; `address` is where others find this (empty: nowhere).
    /// Whoever did so before is deposed. If this handle leads already, at the same address, it goes on.
    ///
    /// # Errors
    /// [`Error::Sealed`], [`Error::Fenced`]; the store's.
    pub fn lead(&self, address: &str) -> Result<Arc<Leader>> {
        self.lead_from(address, None)
    }

    /// Becomes the one who hands out positions, naming nobody, if the log still names whom it named in `before`. Otherwise somebody was named since, and
    /// is asked and not deposed; with many writers he would be, time and again.
    fn lead_after(&self, before: &View) -> Result<()> {
        match self.lead_from("", Some(&before.sequencer)) {
            Err(Error::Deposed { .. }) => self.refresh().map(drop),
            led => led.map(drop),
        }
    }

    fn lead_from(&self, address: &str, from: Option<&str>) -> Result<Arc<Leader>> {
        let _one = self.inner.leading.lock();
        let view = self.view();
        if let Some(leader) = self.leader(&view)
            && view.sequencer == address
        {
            return Ok(leader);
        }
        if self.inner.held != 0 {
            return Err(Error::Fenced {
                log: self.inner.name.clone(),
                held: self.inner.held,
                found: view.epoch,
                owner: view.owner.clone(),
            });
        }
        let held = view.epoch;
        let TakenOver { view, tail, .. } = self.take_over(Reach::Tail, None, |view| {
            self.check_writer(view)?;
            if from.is_some_and(|from| view.sequencer != from && view.sequencer != address) {
                return Err(Error::Deposed { held, found: view.epoch });
            }
            view.sequencer = address.to_owned();
            Ok(())
        })?;
        let leader = Leader::new(view.epoch, tail);
        self.met(view);
        self.lead_with(&leader);
        Ok(leader)
    }

    pub(crate) fn lead_with(&self, leader: &Arc<Leader>) {
        self.inner.leader.store(Some(Arc::clone(leader)));
        self.inner.shared.applied.notify(usize::MAX);
    }

    /// The view as it is now: what was seen last, if its version is still the head's.
    pub(crate) fn current_view(&self) -> Result<Arc<View>> {
        let version = self.store().xattr(&format::head(self.inner.id), format::VERSION).wait()?;
        let view = self.view();
        if version.as_deref().and_then(format::number_from) == Some(view.version) {
            return Ok(view);
        }
        self.refresh()
    }

    /// The tail: the position that is handed out next. Asks whoever hands them out; where nobody does, looks for the last entry.
    /// Everything whose append returned before the call stands below.
    ///
    /// # Errors
    /// [`Error::NoLog`] if the log was deleted; the store's.
    pub fn tail(&self) -> Result<Tail> {
        // A leader that was deposed does not know it: the head does.
        let view = self.current_view()?;
        if let Some(leader) = self.leader(&view) {
            return Ok(leader.tail());
        }
        if let Some(position) = view.sealed {
            return Ok(Tail { epoch: view.epoch, position });
        }
        if let (Some(connect), false) = (&self.inner.session.connect, view.sequencer.is_empty())
            && let Ok(sequencer) = self.remote(&**connect, &view.sequencer)
        {
            match sequencer.tail(self.inner.id, view.epoch) {
                Ok(tail) => return Ok(tail),
                Err(_) => drop(self.inner.remote.lock().take()),
            }
        }
        self.written_tail(&view)
    }

    /// The tail as known to whoever hands out positions; if nobody does, this handle begins to. What is at or above it was not handed out
    /// under its epoch, so that nothing can come there but by a new token.
    pub(crate) fn led_tail(&self) -> Result<Tail> {
        let mut began = None;
        loop {
            let view = self.refresh()?;
            if let Some(leader) = self.leader(&view) {
                return Ok(leader.tail());
            }
            if let Some(position) = view.sealed {
                return Ok(Tail { epoch: view.epoch, position });
            }
            let Some(connect) = self.inner.session.connect.as_ref().filter(|_| !view.sequencer.is_empty()) else {
                self.lead_after(&view)?;
                continue;
            };
            let told = self
                .remote(&**connect, &view.sequencer)
                .and_then(|sequencer| sequencer.tail(self.inner.id, view.epoch));
            match told {
                Err(Error::NoSequencer { .. } | Error::Deposed { .. }) => {
                    self.inner.remote.lock().take();
                    self.await_sequencer(&mut began, &view)?;
                }
                told => {
                    if told.is_err() {
                        self.inner.remote.lock().take();
                    }
                    return told;
                }
            }
        }
    }

    /// One above the last entry, by looking.
    pub(crate) fn written_tail(&self, view: &View) -> Result<Tail> {
        let mut position = view.trimmed;
        for stripe in view.stripes_from_last() {
            if let Some(last) = self.last_in(view, &stripe)? {
                position = position.max(last + 1);
                break;
            }
        }
        // What was trimmed away meanwhile was not met, but the head was told of it before.
        position = position.max(self.current_view()?.trimmed);
        Ok(Tail { epoch: view.epoch, position })
    }

    pub(crate) fn last_in(&self, view: &View, stripe: &Stripe) -> Result<Option<u64>> {
        let mut last = None;
        for column in 0..stripe.width {
            let object = view.object(self.inner.id, stripe, column);
            let local = cells::last(self.store(), view.options.layout, &object)?;
            last = last.max(local.and_then(|local| stripe.position(column, local)));
        }
        Ok(last)
    }

    /// Adds stripes until position `end` has a place. Does nothing if somebody else did it first.
    ///
    /// id taken in the head → objects made under it → stripe published, if the epoch is still the same and nobody was faster
    pub(crate) fn grow(&self, end: u64) -> Result<()> {
        let _one = self.inner.growing.lock();
        for _ in 0..head::ATTEMPTS_MAX {
            let view = if self.view().end() > end { self.view() } else { self.refresh()? };
            if view.end() > end {
                return Ok(());
            }
            let mut taken = None;
            let before = self.change(|view| {
                taken = None;
                if view.end() > end {
                    return Ok(false);
                }
                self.check_writer(view)?;
                taken = Some(view.take_stripe());
                Ok(true)
            })?;
            let mut next = before.clone();
            let Some(id) = taken else {
                self.met(before);
                continue;
            };
            let Some(stripe) = next.add_stripe(id) else { continue };
            self.make(&next, &stripe)?;
            let after = self.change(|view| {
                // What was made stands under this epoch, and has this width; both change together.
                let same = view.epoch == before.epoch && view.options.width == stripe.width;
                Ok(same && view.end() <= end && view.add_stripe(id).is_some())
            })?;
            self.met(after);
        }
        Err(Error::Contended { what: format!("growing log {}", self.inner.name), attempts: head::ATTEMPTS_MAX })
    }

    fn change(&self, change: impl FnMut(&mut View) -> Result<bool>) -> Result<View> {
        head::change(self.store(), self.inner.id, &self.inner.name, change)
    }

    /// Makes the objects of a stripe at the view's epoch.
    pub(crate) fn make(&self, view: &View, stripe: &Stripe) -> Result<()> {
        make_stripe(self.store(), self.inner.id, view, stripe)
    }

    /// Where the bytes of an object end.
    pub(crate) fn end_of(&self, stripe: u64, column: u32) -> End {
        Arc::clone(self.inner.ends.lock().entry((stripe, column)).or_default())
    }

    /// Forgets where the bytes of objects below stripe `first` end.
    pub(crate) fn forget_ends(&self, first: u64) {
        self.inner.ends.lock().retain(|(stripe, _), _| *stripe >= first);
    }

    /// Tells followers that positions up to `end` are decided, and keeps what was written for them.
    pub(crate) fn wrote(&self, end: u64) {
        let shared = &self.inner.shared;
        shared.seen.fetch_max(end, Ordering::SeqCst);
        shared.applied.notify(usize::MAX);
    }

    /// Whether there is anybody for whom recent entries are kept.
    pub(crate) fn followed(&self) -> bool {
        self.inner.shared.followers.load(Ordering::Relaxed) > 0
    }

    pub(crate) fn keep(&self, position: u64, found: Found, barrier: Option<Barrier>) {
        if self.followed() {
            self.inner.shared.recent.keep(position, Recent { found, barrier });
        }
    }

    pub(crate) fn recent(&self, position: u64) -> Option<Recent> {
        self.inner.shared.recent.get(position)
    }

    pub(crate) fn drop_recent(&self, position: u64) {
        self.inner.shared.recent.forget(position);
    }

    /// Wakes when something was written by this process, or the view changed. Look again after asking for it, before waiting.
    pub fn listen(&self) -> EventListener {
        self.inner.shared.applied.listen()
    }

    /// What a refused guard of a write means.
    pub(crate) fn refused(&self, guards: &[Guarded], index: usize) -> Guarded {
        guards.get(index).copied().unwrap_or(Guarded::Other)
    }
}

/// Makes the objects of a stripe whose id nobody else took: however late one of these calls comes, if the stripe is published it was
/// answered before, and if not, nobody ever looks at the object.
pub(crate) fn make_stripe(store: &dyn ObjectStore, log: u64, view: &View, stripe: &Stripe) -> Result<()> {
    let capability = store.capability();
    let mut guards = Guards::default();
    for column in 0..stripe.width {
        let object = view.object(log, stripe, column);
        guards.add(&object, Guarded::Epoch, newer_absent(view.epoch));
        guards.txn.push(&object, cells::seal_change(view.epoch));
        if !capability.atomic_across_objects || column + 1 == stripe.width {
            let txn: Transaction = std::mem::take(&mut guards.txn);
            guards.meaning.clear();
            match store.submit(txn).wait() {
                // Somebody of a newer epoch was here: publishing this stripe will fail.
                Ok(_) | Err(esker_store::Error::GuardFailed { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(())
}

/// No newer epoch has been at the object; it may be missing.
pub(crate) fn newer_absent(epoch: u64) -> esker_store::Condition {
    esker_store::Condition::XattrCompare {
        name: Bytes::from_static(format::EPOCH),
        compare: esker_store::Compare::LessOrEqual,
        value: epoch,
        absent_holds: true,
    }
}
