//! Who may write an image: the exclusive lock that this server holds for its clients while any of them is attached.
//!
//! first client → lock → [`Attached`], one handle for all connections → last client leaves → unlock
//!
//! An image that is locked already has an owner: clients may only read it then. The server breaks a lock only where no
//! owner can be behind it: it is this server's own, being given back just now; or it is that of a server or an import,
//! and no other process can have the store open ([`Locking::alone`]), so that process was killed. A lock that a person
//! took (`esker volume lock add`) is never broken here.
//!
//! Invariants:
//! 1. All connections of one server that write an image are one owner, so a flush and a fence mean the same to all of
//!    them.
//! 2. A handle whose lock was lost is handed out no more; a client that has it is refused every write, for good.
//! 3. A lock is broken by the epoch that was seen, never one that came later.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use esker_store::{CommitSeq, Completion, Error as StoreError};
use esker_volume::{Error, IMPORT_OWNER, Image, Result, Volumes};
use parking_lot::Mutex;

/// How the names begin that servers lock images under. People are asked to leave it to them.
pub const SERVER_OWNER: &str = "nbd/";
/// How often a lock is tried for while others come and go.
const ATTEMPTS_MAX: u32 = 100;
/// Above so many seats those without a client are cleared away.
const SEATS_KEPT: usize = 1_024;

/// How a server locks the images that its clients write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Locking {
    /// Its name as an owner: begins with [`SERVER_OWNER`], and no other server has it.
    pub owner: String,
    /// No other process can have the store open: then the locks of other servers are those of processes that are gone,
    /// and do not count.
    pub alone: bool,
}

/// An image that clients write through one handle.
pub(crate) struct Attached {
    pub(crate) image: Image,
    locked: bool,
    lost: AtomicBool,
    /// The store's server was restarted since something was written and not flushed: no flush by this handle succeeds
    /// any more, whichever client
    /// asks for it.
    restarted: AtomicBool,
}

/// Where the handle of an image is found by the clients that come later.
type Seat = Arc<Mutex<Weak<Attached>>>;

/// The locks of a server.
pub(crate) struct Attachments {
    locking: Locking,
    seats: Mutex<HashMap<u64, Seat>>,
    /// Of clients that write without a lock.
    unlocked: Mutex<HashMap<u64, Weak<Attached>>>,
}

impl Attachments {
    pub(crate) fn new(locking: Locking) -> Self {
        Self { locking, seats: Mutex::default(), unlocked: Mutex::default() }
    }

    /// An image for one more client: by the handle that the others have, or by a new one that took the lock.
    ///
    /// # Errors
    /// [`Error::Locked`] if another owner has it; those of opening and locking an image.
    pub(crate) fn attach(&self, volumes: &Volumes, name: &str) -> Result<Arc<Attached>> {
        let image = volumes.image(name)?;
        if !volumes.abilities().locks {
            return Ok(self.unlocked(image));
        }
        let seat = self.seat(image.id());
        // Held while the lock is taken: others that come for the same image wait for the same.
        let mut seat = seat.lock();
        if let Some(attached) = seat.upgrade().filter(|attached| attached.is_good()) {
            // Another process may have made it larger.
            attached.image.refresh()?;
            return Ok(attached);
        }
        let epoch = match self.take(&image) {
            // The store takes no writes: a client that attaches only reads, and needs no lock.
            Err(Error::Store(StoreError::ReadOnly)) => return Ok(Arc::new(Attached::unlocked(image))),
            other => other?,
        };
        tracing::info!(image = name, owner = self.locking.owner, epoch, "locked");
        let mut attached = Attached::unlocked(image);
        attached.locked = true;
        let attached = Arc::new(attached);
        *seat = Arc::downgrade(&attached);
        Ok(attached)
    }

    /// The handle that all clients share who write `image` without its lock: a flush by one covers what the others
    /// wrote.
    pub(crate) fn unlocked(&self, image: Image) -> Arc<Attached> {
        let mut unlocked = self.unlocked.lock();
        if let Some(attached) = unlocked.get(&image.id()).and_then(Weak::upgrade).filter(|attached| attached.is_good())
            // A look at a header: another process may have made it larger.
            && attached.image.refresh().is_ok()
        {
            return attached;
        }
        if unlocked.len() > SEATS_KEPT {
            unlocked.retain(|_, attached| attached.strong_count() > 0);
        }
        let id = image.id();
        let attached = Arc::new(Attached::unlocked(image));
        unlocked.insert(id, Arc::downgrade(&attached));
        attached
    }

    /// The handle that clients write `image` through, if any do.
    pub(crate) fn of(&self, image: &Image) -> Option<Arc<Attached>> {
        let seat = Arc::clone(self.seats.lock().get(&image.id())?);
        let attached = seat.lock().upgrade();
        attached.filter(|attached| attached.is_good())
    }

    fn seat(&self, id: u64) -> Seat {
        let mut seats = self.seats.lock();
        if seats.len() > SEATS_KEPT {
            // A client that is about to take its seat has a clone of it.
            seats.retain(|_, seat| Arc::strong_count(seat) > 1 || seat.lock().strong_count() > 0);
        }
        Arc::clone(seats.entry(id).or_default())
    }

    fn take(&self, image: &Image) -> Result<u64> {
        let mut attempts = 0;
        loop {
            let error = match image.lock(&self.locking.owner) {
                Ok(epoch) => return Ok(epoch),
                Err(error) => error,
            };
            attempts += 1;
            let Error::Locked { owner, epoch, .. } = &error else { return Err(error) };
            let own = *owner == self.locking.owner;
            let of_process = owner.starts_with(SERVER_OWNER) || owner == IMPORT_OWNER;
            let left = own || (self.locking.alone && of_process);
            if !left || attempts == ATTEMPTS_MAX {
                return Err(error);
            }
            match image.break_lock(*epoch) {
                Ok(()) if own => {}
                Ok(()) => {
                    tracing::warn!(image = image.name(), owner, epoch, "broke the lock that a killed process left");
                }
                // It was given back meanwhile.
                Err(Error::Refused { .. }) => {}
                Err(error) => return Err(error),
            }
        }
    }
}

impl Attached {
    /// A handle that writes as long as no owner locks the image.
    pub(crate) fn unlocked(image: Image) -> Self {
        Self { image, locked: false, lost: AtomicBool::new(false), restarted: AtomicBool::new(false) }
    }

    /// Whether clients that come later may have it.
    fn is_good(&self) -> bool {
        !self.lost.load(Ordering::Acquire) && !self.restarted.load(Ordering::Acquire)
    }

    /// Has everything that was written made durable.
    pub(crate) fn flush(&self) -> Completion<CommitSeq> {
        let (flushed, barrier) = self.image.flush().into_parts();
        let flushed = flushed.inspect_err(|error| self.note_store(error));
        let restarted = self.restarted.load(Ordering::Acquire);
        Completion::after(flushed.and_then(|seq| if restarted { Err(StoreError::Restarted) } else { Ok(seq) }), barrier)
    }

    fn note_store(&self, error: &StoreError) {
        if matches!(error, StoreError::Restarted) && !self.restarted.swap(true, Ordering::AcqRel) {
            let image = self.image.name();
            tracing::error!(image, "the store was restarted: what clients had written and not flushed may be lost");
        }
    }

    /// Notes what a call says about the lock, and about the store.
    pub(crate) fn note(&self, error: &Error) {
        if let Error::Store(error) = error {
            self.note_store(error);
        }
        if let Error::Fenced { image, held, found } = error
            && !self.lost.swap(true, Ordering::AcqRel)
        {
            tracing::error!(
                image,
                held,
                found,
                "the lock was taken over or broken: this server refuses the writes of all clients that are attached; \
                 detach them, and attach again once the lock is free"
            );
        }
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        if !self.locked {
            return;
        }
        let image = self.image.name();
        match self.image.unlock() {
            Ok(()) => tracing::info!(image, "unlocked"),
            Err(error @ Error::Fenced { .. }) => self.note(&error),
            Err(error) => tracing::warn!(image, %error, "the lock could not be given back"),
        }
    }
}
