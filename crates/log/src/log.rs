//! A log as its users hold it: the view as last seen, its stripes, what followers are woken by.
//!
//! Invariants:
//! 1. The view that is kept only ever becomes newer. It may be old: whatever is done by it is guarded in the objects.
//! 2. Handles of one [`Logs`](crate::Logs) share the leader, so that they do not depose each other.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use arc_swap::{ArcSwap, ArcSwapOption, Guard};
use bytes::Bytes;
use esker_store::{Barrier, ObjectId, ObjectStore, Retry, Transaction, Verdict};
use event_listener::EventListener;
use parking_lot::Mutex;

use crate::cells::{self, Found, Guarded, Guards};
use crate::format::{self, Streams, newer_absent};
use crate::nonce::Nonce;
use crate::recent::Recent;
use crate::sequencer::Leader;
use crate::session::{End, Inner, Names, Opened};
use crate::view::{Stripe, View};
use crate::{Error, Options, Result, head};

/// What is kept for followers is answered without a look at the head for so long.
const LOOK_OUT: Duration = Duration::from_millis(500);

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
            head: format::head(id),
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
            openings: Mutex::default(),
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
        self.has_looked();
        Ok(self.met(view))
    }

    fn has_looked(&self) {
        *self.inner.shared.looked.lock() = Instant::now();
    }

    /// Looks at the head, if that was not done for [`LOOK_OUT`]: another process may have trimmed what is kept here.
    pub(crate) fn look_out(&self) -> Result<()> {
        {
            let mut looked = self.inner.shared.looked.lock();
            if looked.elapsed() < LOOK_OUT {
                return Ok(());
            }
            // Of several that find it due one looks.
            *looked = Instant::now();
        }
        self.current_view().map(drop)
    }

    /// Whether [`Log::look_out`] would look.
    pub(crate) fn is_to_look_out(&self) -> bool {
        self.inner.shared.looked.lock().elapsed() >= LOOK_OUT
    }

    /// Keeps `view` if it is newer than what is kept.
    pub(crate) fn met(&self, view: View) -> Arc<View> {
        if view.trimmed > self.peek().trimmed {
            self.inner.shared.recent.trim(view.trimmed);
        }
        let view = Arc::new(view);
        self.inner.view.rcu(|kept| if kept.version >= view.version { Arc::clone(kept) } else { Arc::clone(&view) });
        self.view()
    }

    /// Numbers for the next `count` entries of this session, by the first: they count on, and no other entry has them.
    pub(crate) fn next_nonces(&self, count: usize) -> Nonce {
        Nonce { writer: self.inner.writer, number: self.inner.number.fetch_add(count as u64, Ordering::Relaxed) }
    }

    /// Refuses to write where the view says that this handle may not.
    pub(crate) fn check_writer(&self, view: &View) -> Result<()> {
        if let Some(tail) = view.sealed {
            return Err(Error::Sealed { log: self.inner.name.clone(), tail });
        }
        match view.fence().verdict(self.inner.held) {
            Verdict::Open => Ok(()),
            Verdict::Owned | Verdict::Lost => Err(self.fenced(view)),
        }
    }

    pub(crate) fn fenced(&self, view: &View) -> Error {
        let (log, owner) = (self.inner.name.clone(), view.owner.clone());
        Error::Fenced { log, held: self.inner.held, found: view.epoch, owner }
    }

    /// The view as it is now: what was seen last, if its version is still the head's.
    pub(crate) fn current_view(&self) -> Result<Arc<View>> {
        let version = self.store().xattr(&self.inner.head, format::VERSION).wait()?;
        let view = self.view();
        if version.as_deref().and_then(format::number_from) == Some(view.version) {
            self.has_looked();
            return Ok(view);
        }
        self.refresh()
    }

    /// Adds stripes until position `end` has a place. Does nothing if another writer did it first.
    ///
    /// id taken in the head → objects made under it → stripe published, if the epoch is still the same and no other
    /// writer was faster
    pub(crate) fn grow(&self, end: u64) -> Result<()> {
        let _one = self.inner.growing.lock();
        let mut retry = Retry::default();
        loop {
            retry.attempt(|| format!("growing log {}", self.inner.name))?;
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

    /// Tells followers that positions up to `end` are decided.
    pub(crate) fn wrote(&self, end: u64) {
        let shared = &self.inner.shared;
        shared.seen.fetch_max(end, Ordering::SeqCst);
        self.tell();
    }

    /// Tells followers, here and in other processes, that there is something to look for.
    pub(crate) fn tell(&self) {
        self.inner.shared.waking.wake();
        if self.inner.capability.watches {
            self.inner.store.notify(&self.inner.head);
        }
    }

    /// Has the store tell of what other processes do, for who follows here. Waits for the store.
    pub(crate) fn watch_head(&self) {
        if self.inner.capability.watches {
            self.inner.shared.waking.watch(self.store(), &self.inner.head);
        }
    }

    /// Whether the log has followers, for which recent entries are kept.
    pub(crate) fn followed(&self) -> bool {
        self.inner.shared.followers.load(Ordering::Relaxed) > 0
    }

    /// One above the highest position that is known here: handed out by this handle, written by this process, or found
    /// written by it; 0 if none is. Reads nothing: where others write too, the log may be longer.
    pub fn seen_tail(&self) -> u64 {
        let (shared, view) = (&self.inner.shared, self.peek());
        let found = shared.seen.load(Ordering::Relaxed).max(shared.written.load(Ordering::Relaxed)).max(view.trimmed);
        self.leader(&view).map_or(found, |leader| found.max(leader.tail().position))
    }

    pub(crate) fn keep(&self, position: u64, found: Found, barrier: Option<Barrier>) {
        if self.followed() {
            self.inner.shared.recent.keep(position, Recent { found, barrier });
        }
    }

    pub(crate) fn recent(&self, position: u64) -> Option<Recent> {
        self.inner.shared.recent.get(position)
    }

    /// Whether something below `position` is kept, so that `position` would be if it had just been written.
    pub(crate) fn keeps_below(&self, position: u64) -> bool {
        self.inner.shared.recent.lowest().is_some_and(|lowest| lowest < position)
    }

    pub(crate) fn drop_recent(&self, position: u64) {
        self.inner.shared.recent.forget(position);
    }

    /// Wakes when something was written by this process, or the view changed; and while there are followers here, when
    /// another process has done so, where the store tells of it. Look again after asking for it, before waiting.
    pub fn listen(&self) -> EventListener {
        self.inner.shared.waking.listen()
    }

    /// What a refused guard of a write means.
    pub(crate) fn refused(&self, guards: &[Guarded], index: usize) -> Guarded {
        guards.get(index).copied().unwrap_or(Guarded::Other)
    }
}

/// Makes the objects of a stripe whose id no other writer took: however late one of these calls comes, if the stripe is
/// published it was answered before, and if not, no reader ever looks at the object.
pub(crate) fn make_stripe(store: &dyn ObjectStore, log: u64, view: &View, stripe: &Stripe) -> Result<()> {
    let capability = store.capability();
    let mut guards = Guards::default();
    for column in 0..stripe.width {
        let object = view.object(log, stripe, column);
        guards.add(&object, Guarded::Epoch, newer_absent(view.epoch));
        guards.txn.push(&object, cells::seal_change(view.epoch));
        if !capability.atomic_across_objects || column + 1 == stripe.width {
            let mut txn: Transaction = std::mem::take(&mut guards.txn);
            // A view that no crash takes back is to lead to them.
            txn.be_relied_on();
            guards.meaning.clear();
            match store.submit(txn).wait() {
                // A writer of a newer epoch was here: publishing this stripe will fail.
                Ok(_) | Err(esker_store::Error::GuardFailed { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(())
}
