//! An open image: its state as last seen, reading, and what both reading and writing need.
//!
//! caller → [`Image`] → pieces per data object → store
//!
//! Any number of handles, in any number of processes, may have an image open; all methods take `&self` and may be
//! called from many threads. The state seen is a copy: a write that was built on an old one is refused by its guard,
//! and built again.
//!
//! Invariants:
//! 1. No lock of a handle is held over I/O, but for the session of an image that is locked: who gives it back waits for
//!    the writes that are under way.
//! 2. Reading never changes anything.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::{Bytes, BytesMut};
use esker_store::{
    Barrier, Capability, CommitSeq, Completion, Durability, Error as StoreError, ObjectId, ObjectStore,
    Result as StoreResult, Retry, Session, Transaction, Unsynced,
};
use parking_lot::RwLock;

use crate::format::{self, GENERATION, ParentLink, State};
use crate::source::{self, Parent, Point};
use crate::{Error, Layout, Ranges, Result, bring, header};

/// Most bytes of one call of [`Image::read`] or [`Image::write`] (64 MiB).
pub const REQUEST_BYTES_MAX: u64 = 64 << 20;

/// A piece of what was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Chunk {
    /// Bytes.
    Data(Bytes),
    /// So many zeros that are not stored.
    Zeros(u64),
}

impl Chunk {
    /// Length in bytes.
    pub fn len(&self) -> u64 {
        match self {
            Self::Data(bytes) => bytes.len() as u64,
            Self::Zeros(len) => *len,
        }
    }

    /// Whether it is of no length.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A run of an image that is either all data or all hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// First byte.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
    /// Data is stored for it; else it reads as zeros.
    pub data: bool,
}

/// Who has an image locked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockInfo {
    /// The owner's name.
    pub owner: String,
    /// Epoch of the lock; it grows with every taking, taking over and breaking.
    pub epoch: u64,
}

/// What an image is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Info {
    /// Its name.
    pub name: String,
    /// Its id: never reused, kept when it is renamed.
    pub id: u64,
    /// Size in bytes.
    pub size: u64,
    /// How it is cut into objects.
    pub layout: Layout,
    /// When it was made, in unix milliseconds.
    pub created_ms: u64,
    /// Image and snapshot that it is a clone of, and the first so many bytes for which that holds.
    pub parent: Option<(String, String, u64)>,
    /// Images that it stands on.
    pub depth: usize,
    /// Its exclusive lock.
    pub lock: Option<LockInfo>,
    /// Snapshot that a rollback has begun to and not finished.
    pub rollback: Option<String>,
}

/// The state of an image as a handle saw it last.
pub(crate) struct Live {
    pub(crate) state: State,
    pub(crate) point: Point,
}

pub(crate) struct Inner {
    pub(crate) store: Arc<dyn ObjectStore>,
    pub(crate) capability: Capability,
    pub(crate) id: u64,
    pub(crate) name: String,
    /// Its header.
    header: ObjectId,
    live: RwLock<Arc<Live>>,
    /// Epoch of the lock that this handle holds, 0 without.
    pub(crate) held: AtomicU64,
    /// Where the store fences by sessions: the one that writes under the lock go through, and its epoch.
    pub(crate) session: RwLock<Option<Held>>,
    /// The session may have been shut out: the next write looks who has the lock.
    pub(crate) outdated: AtomicBool,
    /// What was written through this handle and is still to be flushed.
    pub(crate) unsynced: Unsynced,
}

impl Inner {
    /// Notes what came of a write through a session.
    fn note_outcome(&self, outcomes: &Outcomes, outcome: &StoreResult<CommitSeq>) {
        if outcome.as_ref().is_err_and(StoreError::is_unknown) {
            outcomes.unknown.store(true, Ordering::SeqCst);
            self.outdated.store(true, Ordering::SeqCst);
        }
    }
}

fn given_back() -> StoreError {
    StoreError::Stopped { cause: "the lock of the image was given back meanwhile".into() }
}

/// A session that writes under a lock go through.
pub(crate) struct Held {
    /// The lock's.
    pub(crate) epoch: u64,
    pub(crate) session: Session,
    pub(crate) outcomes: Arc<Outcomes>,
}

/// What is known of the writes through a session.
#[derive(Default)]
pub(crate) struct Outcomes {
    /// The outcome of one is not known: it may still be done.
    pub(crate) unknown: AtomicBool,
    /// So many were begun whose outcome no caller has asked for yet.
    pub(crate) unasked: AtomicU64,
}

/// An open image. Cloning costs a reference count; clones are one handle, with one lock.
#[derive(Clone)]
pub struct Image {
    pub(crate) inner: Arc<Inner>,
}

impl std::fmt::Debug for Image {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Image").field("name", &self.inner.name).field("id", &self.inner.id).finish_non_exhaustive()
    }
}

impl Image {
    pub(crate) fn open(store: &Arc<dyn ObjectStore>, id: u64, name: &str) -> Result<Self> {
        Ok(Self::with(store, id, name, load(&**store, id, name)?))
    }

    /// The image in this state.
    pub(crate) fn with(store: &Arc<dyn ObjectStore>, id: u64, name: &str, live: Live) -> Self {
        let inner = Inner {
            store: Arc::clone(store),
            capability: store.capability(),
            id,
            name: name.to_owned(),
            header: format::header(id),
            live: RwLock::new(Arc::new(live)),
            held: AtomicU64::new(0),
            session: RwLock::new(None),
            outdated: AtomicBool::new(false),
            unsynced: Unsynced::default(),
        };
        Self { inner: Arc::new(inner) }
    }

    pub(crate) fn store(&self) -> &dyn ObjectStore {
        &*self.inner.store
    }

    /// Called before work that leaves out what it finds done: another handle may have done it, and not flushed it. So
    /// the next flush covers the life
    /// of the store from here on.
    pub(crate) fn relies_on_what_is_there(&self) {
        self.inner.unsynced.begin(self.store()).applied();
    }

    /// Whether the lock fences by a session that is shut out, since a write cannot guard the header.
    pub(crate) fn fences_by_session(&self) -> bool {
        self.inner.capability.sessions && !self.inner.capability.atomic_across_objects
    }

    /// Submits a transaction, and notes if it is still to be flushed. `held`: epoch of the lock that allows it, 0
    /// without.
    pub(crate) fn submit(&self, txn: Transaction, held: u64) -> (StoreResult<CommitSeq>, Option<Barrier>) {
        if held == 0 || !self.fences_by_session() {
            return self.submit_to(self.store(), txn);
        }
        match &*self.inner.session.read() {
            Some(Held { epoch, session, outcomes }) if *epoch == held => {
                let (submitted, barrier) = self.submit_to(&*session.store, txn);
                self.inner.note_outcome(outcomes, &submitted);
                (submitted, barrier)
            }
            _ => (Err(given_back()), None),
        }
    }

    /// As [`Image::submit`], of a transaction that no guard can fail, and does not wait for it. What it may have
    /// applied the next flush covers.
    pub(crate) fn begin(&self, txn: Transaction, held: u64) -> Completion<CommitSeq> {
        if txn.durability == Durability::Applied {
            self.inner.unsynced.begin(self.store()).applied();
        }
        if held == 0 || !self.fences_by_session() {
            return self.store().submit(txn);
        }
        let (begun, outcomes) = match &*self.inner.session.read() {
            Some(Held { epoch, session, outcomes }) if *epoch == held => {
                outcomes.unasked.fetch_add(1, Ordering::SeqCst);
                (session.store.submit(txn), Arc::clone(outcomes))
            }
            _ => return Completion::ready(Err(given_back())),
        };
        let inner = Arc::clone(&self.inner);
        begun.then(move |outcome| {
            inner.note_outcome(&outcomes, &outcome);
            outcomes.unasked.fetch_sub(1, Ordering::SeqCst);
            outcome
        })
    }

    fn submit_to(&self, store: &dyn ObjectStore, txn: Transaction) -> (StoreResult<CommitSeq>, Option<Barrier>) {
        let written = (txn.durability == Durability::Applied).then(|| self.inner.unsynced.begin(self.store()));
        let (submitted, barrier) = store.submit(txn).into_parts();
        if let Some(written) = written
            && submitted.as_ref().map_or_else(StoreError::is_unknown, |_| true)
        {
            written.applied();
        }
        (submitted, barrier)
    }

    /// The state as last seen.
    pub(crate) fn live(&self) -> Arc<Live> {
        Arc::clone(&self.inner.live.read())
    }

    /// Epoch of the lock that this handle holds, 0 without.
    pub(crate) fn held(&self) -> u64 {
        self.inner.held.load(Ordering::Acquire)
    }

    pub(crate) fn require(&self, has: bool, what: &'static str) -> Result<()> {
        let backend = self.inner.capability.backend;
        if has { Ok(()) } else { Err(StoreError::Unsupported { backend, what }.into()) }
    }

    /// Changes the state in the store, and sees it.
    pub(crate) fn change(&self, change: impl FnMut(&mut State, &mut Transaction) -> Result<()>) -> Result<()> {
        self.changed(header::change(self.store(), self.inner.id, &self.inner.name, change)?)
    }

    /// Sees a state that this handle has written, or a later one. It is changed, whether or not it can be looked at
    /// now.
    pub(crate) fn changed(&self, next: State) -> Result<()> {
        self.refresh().or_else(|error| if self.see(next) { Ok(()) } else { Err(self.unseen(&error)) })
    }

    /// What is told of a change that was made, and of which more has to be looked at than can be.
    pub(crate) fn unseen(&self, error: &Error) -> Error {
        let cause = format!("image {} is changed, and cannot be looked at: {error}", self.inner.name);
        StoreError::Unknown { cause }.into()
    }

    /// Takes a state as seen that this handle has written; false if it stands on a parent of which more has to be
    /// looked up.
    fn see(&self, next: State) -> bool {
        let mut live = self.inner.live.write();
        if next.generation < live.state.generation {
            return true;
        }
        let same = |one: ParentLink, other: ParentLink| (one.image, one.snap) == (other.image, other.snap);
        let parent = match (next.parent, live.state.parent, &live.point.parent) {
            (None, ..) => None,
            (Some(new), Some(old), Some(parent)) if same(new, old) => {
                Some(Arc::new(Parent { overlap: new.overlap, ..Parent::clone(parent) }))
            }
            _ => return false,
        };
        let point = Point { size: next.size, layout: next.layout, parent, ..live.point.clone() };
        *live = Arc::new(Live { state: next, point });
        true
    }

    /// Looks at the state in the store: sizes, locks and snapshots that other handles changed. Writes do it by
    /// themselves where it matters.
    ///
    /// # Errors
    /// [`Error::NoImage`] if it was removed; the store's.
    pub fn refresh(&self) -> Result<()> {
        let next = Arc::new(load(self.store(), self.inner.id, &self.inner.name)?);
        let mut live = self.inner.live.write();
        // Of two that refresh at once the later state stays.
        if next.state.generation >= live.state.generation {
            *live = next;
        }
        Ok(())
    }

    /// Name that it was opened by.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Its id in the store.
    pub fn id(&self) -> u64 {
        self.inner.id
    }

    /// Size in bytes, as last seen.
    pub fn size(&self) -> u64 {
        self.live().state.size
    }

    /// How it is cut into objects.
    pub fn layout(&self) -> Layout {
        self.live().state.layout
    }

    /// Reads `len` bytes at `offset`, any alignment, at most [`REQUEST_BYTES_MAX`]. The chunks follow each other and
    /// are `len` bytes together. The completion waits until what was read is as durable as its writers asked for.
    ///
    /// # Errors
    /// [`Error::PastEnd`], [`Error::Invalid`] for a length above the limit, [`Error::Refused`] during a rollback,
    /// [`Error::NoImage`], the store's.
    pub fn read(&self, offset: u64, len: u64) -> Result<Completion<Vec<Chunk>>> {
        self.steady(|live| read(self.store(), &live.point, offset, len))
    }

    /// Brings ranges into memory that the thread that calls reads next, many under way at the same time, and tells of
    /// each as it comes: see [`ObjectStore::bring`]. A hint, by the state as last seen. False, and nothing was asked
    /// for, where the store does not do this, and of an image with a parent.
    pub fn bring(&self, ranges: &mut dyn Ranges) -> bool {
        let live = self.live();
        live.point.parent.is_none() && self.store().bring(&mut bring::Pieces::new(&live.point, ranges))
    }

    /// What `look` finds by the state as last seen; if that turns out to be old, by the next. So nothing is read by an
    /// outdated size or from a parent that the image stands on no longer, and nothing while it is rolled back.
    fn steady<T>(&self, look: impl Fn(&Live) -> Result<T>) -> Result<T> {
        let mut retry = Retry::default();
        loop {
            retry.attempt(|| header::called(&self.inner.name))?;
            let live = self.live();
            let found = self.check_rollback(&live.state).and_then(|()| look(&live));
            // Where no transaction spans objects there are neither parents nor rollbacks, and a look may cost a round
            // trip.
            let certain = if self.inner.capability.atomic_across_objects {
                let (generation, _) = self.store().xattr(&self.inner.header, GENERATION).into_parts();
                generation?.as_deref().and_then(format::number_from) == Some(live.state.generation)
            } else {
                !matches!(found, Err(Error::PastEnd { .. })) || !self.refreshed(live.state.generation)?
            };
            if certain {
                return found;
            }
            self.refresh()?;
        }
    }

    /// Looks at the state in the store; whether it is another than the one of this generation.
    fn refreshed(&self, generation: u64) -> Result<bool> {
        self.refresh()?;
        Ok(self.live().state.generation != generation)
    }

    /// As [`Image::read`], as one buffer, waited for.
    ///
    /// # Errors
    /// As [`Image::read`].
    pub fn read_bytes(&self, offset: u64, len: u64) -> Result<Bytes> {
        Ok(joined(self.read(offset, len)?.wait()?))
    }

    /// What of `len` bytes at `offset` is data and what is hole: runs that follow each other and cover it all.
    ///
    /// # Errors
    /// As [`Image::read`], for any length.
    pub fn extents(&self, offset: u64, len: u64) -> Result<Vec<Extent>> {
        self.steady(|live| extents(self.store(), &live.point, offset, len))
    }

    /// Completes when every write that was applied before the call is durable.
    ///
    /// # Errors
    /// The store's; [`Restarted`](StoreError::Restarted) where the store's server was restarted since something was
    /// written through this handle that was not flushed: it may be gone.
    pub fn flush(&self) -> Completion<CommitSeq> {
        self.inner.unsynced.flush(&*self.inner.store)
    }
}

fn load(store: &dyn ObjectStore, id: u64, name: &str) -> Result<Live> {
    let mut retry = Retry::default();
    loop {
        retry.attempt(|| header::called(name))?;
        let missing = || Error::NoImage { name: name.to_owned() };
        let state = header::load(store, id)?.filter(|state| !state.removing).ok_or_else(missing)?;
        match Point::head(store, id, &state) {
            Ok(point) => return Ok(Live { state, point }),
            Err(error) => {
                // Flattened, and the parent removed, between the two looks?
                let again = header::load(store, id)?.ok_or_else(missing)?;
                if again.generation == state.generation {
                    return Err(error);
                }
            }
        }
    }
}

pub(crate) fn check_range(offset: u64, len: u64, size: u64) -> Result<()> {
    match offset.checked_add(len) {
        Some(end) if end <= size => Ok(()),
        _ => Err(Error::PastEnd { offset, len, size }),
    }
}

pub(crate) fn check_request(len: u64) -> Result<()> {
    if len > REQUEST_BYTES_MAX {
        let why = format!("{len} bytes exceed REQUEST_BYTES_MAX = {REQUEST_BYTES_MAX}");
        return Err(Error::Invalid { what: "length", why });
    }
    Ok(())
}

pub(crate) fn read(store: &dyn ObjectStore, point: &Point, offset: u64, len: u64) -> Result<Completion<Vec<Chunk>>> {
    check_range(offset, len, point.size)?;
    check_request(len)?;
    let mut chunks: Vec<Chunk> = Vec::new();
    let mut barrier: Option<Barrier> = None;
    let zeros = |chunks: &mut Vec<Chunk>, len: u64| match chunks.last_mut() {
        _ if len == 0 => {}
        Some(Chunk::Zeros(last)) => *last += len,
        _ => chunks.push(Chunk::Zeros(len)),
    };
    for piece in point.layout.pieces(offset, len) {
        let (data, at) = source::read(store, point, piece.object, piece.object_offset, piece.len)?;
        barrier = Barrier::later(barrier, at);
        let found = data.as_ref().map_or(0, |data| data.len() as u64);
        chunks.extend(data.map(Chunk::Data));
        zeros(&mut chunks, piece.len - found);
    }
    Ok(source::behind(chunks, barrier))
}

pub(crate) fn joined(mut chunks: Vec<Chunk>) -> Bytes {
    if let [Chunk::Data(_)] = &chunks[..]
        && let Some(Chunk::Data(bytes)) = chunks.pop()
    {
        return bytes;
    }
    let mut out = BytesMut::with_capacity(chunks.iter().map(Chunk::len).sum::<u64>() as usize);
    for chunk in chunks {
        match chunk {
            Chunk::Data(bytes) => out.extend_from_slice(&bytes),
            Chunk::Zeros(len) => out.resize(out.len() + len as usize, 0),
        }
    }
    out.freeze()
}

pub(crate) fn extents(store: &dyn ObjectStore, point: &Point, offset: u64, len: u64) -> Result<Vec<Extent>> {
    check_range(offset, len, point.size)?;
    let mut all: Vec<Extent> = Vec::new();
    let mut at = offset;
    let mut add = |offset: u64, len: u64, data: bool| match all.last_mut() {
        _ if len == 0 => {}
        Some(last) if last.data == data => last.len += len,
        _ => all.push(Extent { offset, len, data }),
    };
    while at < offset + len {
        // A set of objects at a time, so that what is kept at once is bounded.
        let set = point.layout.set_bytes();
        let end = (at / set + 1).saturating_mul(set).min(offset + len);
        for piece in point.layout.pieces(at, end - at) {
            let runs = source::extents(store, point, piece.object, piece.object_offset, piece.len)?;
            let mut inside = 0;
            for run in runs {
                let start = run.offset - piece.object_offset;
                add(piece.image_offset + inside, start - inside, false);
                add(piece.image_offset + start, run.len, true);
                inside = start + run.len;
            }
            add(piece.image_offset + inside, piece.len - inside, false);
        }
        at = end;
    }
    Ok(all)
}
