//! Sealing: taking over, changing the shape of stripes at the tail, closing a log for good, owning it.
//!
//! epoch + 1 in the view → every object from the last back to the last that holds something refuses older epochs → the
//! tail is what they hold, or what the head says is trimmed, asked for afterwards
//!
//! Invariants:
//! 1. An epoch is taken by one: the view is replaced by compare-and-set.
//! 2. The tail is read after the seal, so no entry of an older epoch can come to stand at or above it.
//! 3. Only the handle that sealed an epoch hands out positions under it, and only after that; where a new shape is
//!    published, under the one after it.
//! 4. Where nothing of an older epoch may come any more, below the tail either, every object is sealed
//!    ([`Reach::All`]).

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use esker_store::{ATTEMPTS_MAX, Barrier, Condition, Durability, Error as StoreError, ObjectId, Transaction};

use crate::cells;
use crate::format::{LABEL, newer_absent};
use crate::log::Log;
use crate::sequencer::Leader;
use crate::session::Opened;
use crate::view::View;
use crate::{Error, Result, format, head};

/// A log under a new epoch.
pub(crate) struct TakenOver {
    pub view: View,
    /// Every entry stands below.
    pub tail: u64,
    /// The version at which the epoch was raised.
    pub version: u64,
}

/// Which objects are sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Those that may hold the tail: a late write of an older epoch may still come to a hole below them.
    Tail,
    /// All: no write of an older epoch comes any more.
    All,
}

impl Log {
    /// Raises the epoch, with what `change` adds, and seals; the view then, and the tail at which the new epoch begins.
    /// Key `note` of the head becomes the version at which the epoch was raised.
    pub(crate) fn take_over(
        &self,
        reach: Reach,
        note: Option<&Bytes>,
        mut change: impl FnMut(&mut View) -> Result<()>,
    ) -> Result<TakenOver> {
        let mut attempts = 0;
        loop {
            let began = Instant::now();
            let raised = head::change_with(self.store(), self.inner.id, &self.inner.name, note, |view| {
                change(view)?;
                view.epoch += 1;
                Ok(true)
            })?;
            let version = raised.version;
            if let Some((view, tail)) = self.seal_objects(&raised, reach)? {
                return Ok(TakenOver { view, tail, version });
            }
            // Another handle took over from us before we were done.
            self.step_back("taking over", &mut attempts, began)?;
        }
    }

    /// Leaves those who were faster alone for a while that grows and differs from handle to handle, so that of several
    /// who depose each other time and again one gets done: at first for as long as the attempt took that began at
    /// `began`, a 2,000th of the lease at least, later up to 64 times that, and never longer than the lease. After
    /// [`ATTEMPTS_MAX`] attempts it gives up.
    fn step_back(&self, what: &str, attempts: &mut u32, began: Instant) -> Result<()> {
        let attempt = *attempts;
        *attempts += 1;
        if *attempts >= ATTEMPTS_MAX {
            let what = format!("{what} log {}", self.inner.name);
            return Err(StoreError::Contended { what, attempts: *attempts }.into());
        }
        let lease_us = self.inner.session.lease_ms.saturating_mul(1_000);
        let took_us = began.elapsed().as_micros() as u64;
        let most_us = (took_us.max(lease_us / 2_000).saturating_mul(1 << attempt.min(6))).min(lease_us);
        if most_us > 0 {
            let own = self.next_nonces(1);
            std::thread::sleep(Duration::from_micros(mix(own.writer ^ mix(own.number)) % most_us));
        }
        Ok(())
    }

    /// Seals at the view's epoch what may still be written to; the view now and the tail, or `None` if a newer epoch
    /// was there before.
    fn seal_objects(&self, view: &View, reach: Reach) -> Result<Option<(View, u64)>> {
        let mut last = None;
        for stripe in view.stripes_from_last() {
            let mut barrier = None;
            for column in 0..stripe.width {
                match self.seal_object(view, &view.object(self.inner.id, &stripe, column))? {
                    Some(sealed) => barrier = Barrier::later(barrier, sealed),
                    None => return Ok(None),
                }
            }
            if let Some(barrier) = barrier {
                barrier.wait()?;
            }
            if last.is_none() {
                last = self.last_in(view, &stripe)?;
            }
            if last.is_some() && reach == Reach::Tail {
                break;
            }
        }
        if reach == Reach::All {
            // What the view has let go is still written to by views of old.
            let mut sealed = true;
            self.each_object(view.first_stripe(), |object| {
                match self.seal_object(view, object)? {
                    Some(Some(barrier)) => barrier.wait()?,
                    Some(None) => {}
                    None => sealed = false,
                }
                Ok(())
            })?;
            if !sealed {
                return Ok(None);
            }
        }
        // What was trimmed away meanwhile was not met, but the head was told of it before.
        let now = head::load(self.store(), self.inner.id, &self.inner.name)?;
        if now.epoch != view.epoch {
            return Ok(None);
        }
        let tail = now.trimmed.max(last.map_or(0, |last| last + 1));
        Ok(Some((now, tail)))
    }

    fn seal_object(&self, view: &View, object: &ObjectId) -> Result<Option<Option<Barrier>>> {
        // A crash that opened it again would let in what comes late under an older epoch.
        let txn = Transaction::with(Durability::Always)
            .giving_back()
            .guard(object, Condition::Exists)
            .guard(object, newer_absent(view.epoch))
            .change(object, cells::seal_change(view.epoch));
        let (sealed, barrier) = self.inner.store.submit(txn).into_parts();
        match sealed {
            Ok(_) => Ok(Some(barrier)),
            // Trimmed away meanwhile: nothing can be written to it.
            Err(StoreError::GuardFailed { index: 0 }) => Ok(Some(None)),
            Err(StoreError::GuardFailed { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Changes how the log goes on: from the tail on, positions go round `width` objects of `slots` each. Writers go on
    /// by themselves.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a shape out of range; [`Error::Sealed`]; [`Error::Fenced`]; the store's.
    pub fn reshape(&self, width: u32, slots: u32) -> Result<()> {
        crate::Options::shape(width, slots)?;
        self.new_stripe(|view| {
            view.options.width = width;
            view.options.slots = slots;
        })
    }

    /// Changes what can be changed without touching positions: limits and retention.
    ///
    /// # Errors
    /// [`Error::Invalid`] for options out of range, and for a change of layout, width or slots; the store's.
    pub fn set_options(&self, options: &crate::Options) -> Result<()> {
        options.check()?;
        let options = &options.clone().within(&self.store().capability())?;
        let view = head::change(self.store(), self.inner.id, &self.inner.name, |view| {
            let now = &view.options;
            if (options.layout, options.width, options.slots) != (now.layout, now.width, now.slots) {
                return Err(Error::invalid(
                    "options",
                    "layout, width and slots are changed by reshaping, the layout never",
                ));
            }
            let changed = *now != *options;
            view.options = options.clone();
            Ok(changed)
        })?;
        self.met(view);
        Ok(())
    }

    /// Begins a stripe at the tail because an object of the last one is large enough. Does nothing if another writer
    /// did so already.
    pub(crate) fn begin_stripe(&self, seen: &View) -> Result<()> {
        let Some(_one) = self.inner.growing.try_lock() else { return Ok(()) };
        if self.view().next_stripe != seen.next_stripe {
            return Ok(());
        }
        if self.inner.held != 0 {
            // Its epoch is its title: it goes on to the end of the stripe instead.
            return Ok(());
        }
        self.new_stripe(|_| {})
    }

    fn new_stripe(&self, mut change: impl FnMut(&mut View)) -> Result<()> {
        if self.inner.held != 0 {
            let why = "the only writer of a log cannot reshape it; release it first";
            return Err(Error::invalid("call", why));
        }
        let leads = self.leader(&self.view()).is_some();
        let mut attempts = 0;
        loop {
            let began = Instant::now();
            let mut id = 0;
            let TakenOver { view, tail, .. } = self.take_over(Reach::Tail, None, |view| {
                self.check_writer(view)?;
                id = view.take_stripe();
                Ok(())
            })?;
            let mut next = view.clone();
            change(&mut next);
            // Who saw the view between the seal and this takes no position for one of the shape that was: there is none
            // under the epoch of the seal.
            next.epoch += 1;
            next.cut(tail);
            // Otherwise another writer's stripe came to stand there since.
            let added = next.add_stripe(id);
            next.check_labels()?;
            if let Some(stripe) = &added {
                self.make(&next, stripe)?;
            }
            if added.is_some() && head::replace(self.store(), self.inner.id, &view, &mut next)? {
                let leader = Leader::new(next.epoch, tail);
                let nobody = next.sequencer.is_empty();
                self.met(next);
                if leads || nobody {
                    self.lead_with(&leader);
                }
                return Ok(());
            }
            self.step_back("reshaping", &mut attempts, began)?;
        }
    }

    /// Closes the log for good at its tail, which is returned: it takes no more entries. Sealing again does nothing.
    ///
    /// # Errors
    /// [`Error::Fenced`]; the store's.
    pub fn seal(&self) -> Result<u64> {
        let mut attempts = 0;
        loop {
            let began = Instant::now();
            if let Some(tail) = self.refresh()?.sealed {
                return Ok(tail);
            }
            let taken = self.take_over(Reach::All, None, |view| self.check_writer(view));
            let TakenOver { view, tail, .. } = match taken {
                Err(Error::Sealed { tail, .. }) => return Ok(tail),
                other => other?,
            };
            let mut next = view.clone();
            next.sealed = Some(tail);
            if head::replace(self.store(), self.inner.id, &view, &mut next)? {
                self.met(next);
                self.tell();
                return Ok(tail);
            }
            self.step_back("sealing", &mut attempts, began)?;
        }
    }

    /// Becomes the log's only writer, under the name `owner`: every earlier writer is refused from now on, with
    /// [`Error::Fenced`], however late it comes. The handle that is returned writes; its epoch is the fencing token.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a bad name; [`Error::Sealed`]; the store's.
    pub fn own(&self, owner: &str) -> Result<Self> {
        format::check_name("owner", owner, LABEL)?;
        let TakenOver { view, tail, .. } = self.take_over(Reach::All, None, |view| {
            view.sealed.map_or(Ok(()), |tail| Err(Error::Sealed { log: self.inner.name.clone(), tail }))?;
            view.owner = owner.to_owned();
            view.sequencer.clear();
            Ok(())
        })?;
        let leader = Leader::new(view.epoch, tail);
        self.met(view.clone());
        let (inner, writer) = (&self.inner, self.next_nonces(1));
        // Apart from the session's own numbers, and from those of other owners in it.
        let writer = mix(writer.writer ^ mix(writer.number.wrapping_add(view.epoch)));
        let (store, session, shared) = (&inner.store, &inner.session, Arc::clone(&inner.shared));
        let opened = Opened { store, id: inner.id, name: &inner.name, session, writer, shared };
        Ok(Self::new(opened, view, Some(leader)))
    }

    /// The fencing token of an only writer; 0 for others.
    pub fn fencing_token(&self) -> u64 {
        self.inner.held
    }

    /// Lets all handles write again. This handle is refused from now on.
    ///
    /// # Errors
    /// [`Error::Fenced`] if it is not the only writer (any more); the store's.
    pub fn release(&self) -> Result<()> {
        let view = head::change(self.store(), self.inner.id, &self.inner.name, |view| {
            if !view.fence().is_held(self.inner.held) {
                return Err(self.fenced(view));
            }
            view.owner.clear();
            view.epoch += 1;
            Ok(true)
        })?;
        self.met(view);
        Ok(())
    }
}

/// Spreads the bits of a number (splitmix64).
pub(crate) fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
