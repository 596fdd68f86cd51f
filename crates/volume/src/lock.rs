//! The exclusive lock of an image: an owner, an epoch, and the fence that refuses late writers.
//!
//! lock | take over | break → the header's epoch and generation grow → writes built before fail their guard →
//! [`Error::Fenced`]
//!
//! The fence needs no message to the old owner and no clock: his next write, whenever it reaches the store, carries a
//! generation that is gone. Where a write cannot guard the header, since the store changes one object at a time, the
//! owner writes through a session of its own, whose name the header holds; who takes the lock over, or breaks it, first
//! has the store shut that session out. There the fence is for owners of locks: a handle without one that has not
//! looked at the image since it was locked still writes.
//!
//! Invariants:
//! 1. An epoch is held by one handle (and its clones) at most, and never given twice.
//! 2. While an image is locked no other handle writes to it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use esker_store::names::check_name;
use esker_store::{Change, Error as StoreError, ObjectStore, Verdict};

use crate::format::{self, GENERATION, OWNER_BYTES_MAX, SESSION, State};
use crate::image::Held;
use crate::{Error, Image, LockInfo, Result, header};

const NEEDS: &str =
    "guard a write of one object by another, nor shut others out: the exclusive lock of an image needs it";

impl Image {
    /// Takes the exclusive lock for this handle, under the name `owner` (1 to [`OWNER_BYTES_MAX`] bytes). Returns its
    /// epoch.
    ///
    /// # Errors
    /// [`Error::Locked`] if any handle has it, also under the same name; `Unsupported` where the backend is not atomic
    /// across objects and has no sessions; the store's.
    pub fn lock(&self, owner: &str) -> Result<u64> {
        self.take_lock(owner, false)
    }

    /// Takes the lock, even if another client has it: what that client writes from now on is refused. Returns its
    /// epoch.
    ///
    /// # Errors
    /// As [`Image::lock`], but never [`Error::Locked`].
    pub fn take_over(&self, owner: &str) -> Result<u64> {
        self.take_lock(owner, true)
    }

    fn take_lock(&self, owner: &str, over: bool) -> Result<u64> {
        self.require(self.inner.capability.atomic_across_objects || self.fences_by_session(), NEEDS)?;
        check_name(owner, ("OWNER_BYTES_MAX", OWNER_BYTES_MAX), |_| false)
            .map_err(|why| Error::Invalid { what: "lock owner", why })?;
        let session = self.fences_by_session().then(|| self.store().session()).transpose()?;
        let mut taken = 0;
        let next = header::change(self.store(), self.inner.id, &self.inner.name, |state, txn| {
            // Without this no client discards where others lock.
            txn.gives_back = true;
            if !over && !state.lock_owner.is_empty() {
                return Err(self.locked(state));
            }
            if let Some(session) = &session {
                // By the client that will write: the store refuses late writes of others before its own. And by that
                // which reads: what it has read no late write changes.
                self.shut_owner_out(Some(&*session.store), state)?;
                let set = Change::XattrSet { name: Bytes::from_static(SESSION), value: session.name.clone() };
                txn.push(&format::header(self.inner.id), set);
            }
            state.lock_owner = owner.to_owned();
            state.lock_epoch += 1;
            taken = state.lock_epoch;
            Ok(())
        })?;
        if let Some(session) = session {
            *self.inner.session.write() = Some(Held { epoch: taken, session, outcomes: Arc::default() });
        }
        self.inner.held.store(taken, Ordering::Release);
        // The lock is taken, whatever is seen of it: a handle that finds a state older than it looks again.
        let _ = self.changed(next);
        Ok(taken)
    }

    /// Gives the lock of this handle back. Does nothing without one.
    ///
    /// # Errors
    /// [`Error::Fenced`] if it was lost; the store's.
    pub fn unlock(&self) -> Result<()> {
        let held = self.held();
        if held == 0 {
            return Ok(());
        }
        // Waits for the writes that are under way, and keeps others until it is given back.
        let mut session = self.inner.session.write();
        let mut is_out = false;
        if let Some(Held { session, outcomes, .. }) = &*session {
            let ended = session.store.sync().wait().is_ok();
            if !ended || outcomes.unknown.load(Ordering::SeqCst) || outcomes.unasked.load(Ordering::SeqCst) > 0 {
                // What has no outcome that is known must not be done after another has the lock.
                self.store().shut_out(&session.name)?;
                is_out = true;
            }
        }
        let next = header::change(self.store(), self.inner.id, &self.inner.name, |state, txn| {
            txn.gives_back = true;
            if !state.fence().is_held(held) {
                return Err(self.fenced(state));
            }
            if session.is_some() && !is_out {
                let name = Bytes::from_static(SESSION);
                txn.push(&format::header(self.inner.id), Change::XattrRemove { name });
            }
            state.lock_owner.clear();
            Ok(())
        })?;
        *session = None;
        drop(session);
        self.inner.held.store(0, Ordering::Release);
        self.changed(next)
    }

    /// Breaks the lock that has this epoch, without taking it: its owner's writes are refused from now on. For
    /// operators.
    ///
    /// # Errors
    /// [`Error::Refused`] if that epoch does not hold the lock (any more); the store's.
    pub fn break_lock(&self, epoch: u64) -> Result<()> {
        self.change(|state, txn| {
            txn.gives_back = true;
            if !state.fence().is_held(epoch) {
                let why = format!("epoch {epoch} does not hold the lock of image {}", self.inner.name);
                return Err(Error::refused(why));
            }
            if self.fences_by_session() {
                self.shut_owner_out(None, state)?;
            }
            state.lock_owner.clear();
            state.lock_epoch += 1;
            Ok(())
        })
    }

    /// Has the store shut out the session that the header names by `state`. The header goes on naming it until a handle
    /// takes the lock and shuts it out again, since only a client that does so knows that it is out. If the header is
    /// another by now this does nothing: then the caller's transaction fails by its guard, and this is called again.
    /// `writer`: the client that is to write from now on, if it is not that of this handle.
    fn shut_owner_out(&self, writer: Option<&dyn ObjectStore>, state: &State) -> Result<()> {
        let header = format::header(self.inner.id);
        let Some(session) = self.store().xattr(&header, SESSION).wait()? else { return Ok(()) };
        // It is that of the state's owner, or of the one before, if the state stands after it was read.
        let generation = self.store().xattr(&header, GENERATION).wait()?.as_deref().and_then(format::number_from);
        if generation != Some(state.generation) {
            return Ok(());
        }
        for client in writer.into_iter().chain([self.store()]) {
            match client.shut_out(&session) {
                // Of a store that this one is a copy of.
                Ok(()) | Err(StoreError::Invalid { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Who has the image locked, as last seen (see [`Image::refresh`]).
    pub fn lock_info(&self) -> Option<LockInfo> {
        let live = self.live();
        let (owner, epoch) = (live.state.lock_owner.clone(), live.state.lock_epoch);
        (!owner.is_empty()).then_some(LockInfo { owner, epoch })
    }

    fn locked(&self, state: &State) -> Error {
        let (owner, epoch) = (state.lock_owner.clone(), state.lock_epoch);
        Error::Locked { image: self.inner.name.clone(), owner, epoch }
    }

    fn fenced(&self, state: &State) -> Error {
        Error::Fenced { image: self.inner.name.clone(), held: self.held(), found: state.lock_epoch }
    }

    /// Whether this handle may make, protect and remove snapshots by the lock in `state`: they leave the image as it
    /// is, so any handle may that has not lost a lock. The owner's next write fails its guard and sees them.
    pub(crate) fn check_fence(&self, state: &State) -> Result<()> {
        if self.held() == 0 { Ok(()) } else { self.check_lock(state) }
    }

    /// Whether this handle may change the image by the lock in `state`.
    pub(crate) fn check_lock(&self, state: &State) -> Result<()> {
        match state.fence().verdict(self.held()) {
            Verdict::Open => Ok(()),
            Verdict::Owned => Err(self.locked(state)),
            Verdict::Lost => Err(self.fenced(state)),
        }
    }
}
