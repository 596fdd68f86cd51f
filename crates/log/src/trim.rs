//! Giving up: filling holes, trimming one position or all below one, and retention.
//!
//! fill: a mark where nothing stands · trim: a mark instead of the entry · trim-to: whole stripes' objects go, the
//! first that stays refuses what is below
//!
//! Invariants:
//! 1. What was given up never holds an entry again: marks stay until their object goes, and an object goes only after
//!    the view says that its positions are trimmed.
//! 2. A mark is written under the epoch under which the position was known to be below the tail, so that it never takes
//!    a place that is given anew.
//! 3. Deleting objects may stop at any point: the next trim-to goes on.

use esker_store::registry::remove_objects;
use esker_store::{Change, Condition, Error as StoreError, Retry, submit_guarded};

use crate::cells::{self, Found, Guarded, Guards};
use crate::format::{self, Kind, Placed, Stored, TRIM};
use crate::log::Log;
use crate::sequencer::Tail;
use crate::view::{Stripe, View};
use crate::{Error, Result, head};

/// Positions that one call of [`Log::retain`] gives up for their age, at most.
pub const RETAIN_POSITIONS: u64 = 1 << 20;
/// Positions in a row that one call of [`Log::retain`] passes over, to be filled if an old entry follows.
const HOLES_MAX: usize = 4_096;
/// Positions of an object that are trimmed in one transaction, where each may have bytes of its own.
const TRIM_AT_ONCE: u64 = 4_096;
/// Samples per stripe where the bytes of a log are estimated.
const SAMPLES: u64 = 16;

impl Log {
    /// Gives a position below the tail up that holds nothing: it never will.
    ///
    /// # Errors
    /// [`Error::Taken`] if something stands there (filled already: no error); [`Error::Trimmed`]; [`Error::PastTail`];
    /// the store's.
    pub fn fill(&self, position: u64) -> Result<()> {
        let mut retry = Retry::default();
        loop {
            retry.attempt(|| format!("filling position {position}"))?;
            let tail = self.handed_tail()?;
            if position >= tail.position {
                return Err(Error::PastTail { position, tail: tail.position });
            }
            match self.fill_under(tail, position) {
                // A new epoch: the tail may be another.
                Err(Error::Deposed { .. }) => drop(self.refresh()?),
                other => return other,
            }
        }
    }

    /// Fills a position that is below a tail, under the tail's epoch. [`Error::Deposed`] if that is over.
    pub(crate) fn fill_under(&self, tail: Tail, position: u64) -> Result<()> {
        let mut view = self.view();
        if view.epoch < tail.epoch || position >= view.end() {
            view = self.refresh()?;
        }
        if position < view.trimmed {
            return Err(Error::Trimmed { position });
        }
        let Some(stripe) = view.stripe(position) else {
            // Handed out, but the writer that got it has not made its stripe: nothing stands there before it is made.
            self.grow(position)?;
            return self.fill_under(tail, position);
        };
        let (column, local) = stripe.locate(position);
        let object = view.object(self.inner.id, &stripe, column);
        let layout = view.options.layout;
        let mut guards = Guards::default();
        guards.epoch(&object, tail.epoch);
        guards.untrimmed(&object, local);
        guards.absent(&object, layout, local);
        let mark = Stored::mark(Kind::Filled, position, self.now_ms());
        guards.txn.push(&object, cells::set(layout, local, mark.encode()));
        let (filled, barrier) = self.inner.store.submit(guards.txn).into_parts();
        match filled {
            Ok(_) => {
                self.keep(position, Found::Filled, barrier.clone());
                self.wrote(position + 1);
                barrier.map_or(Ok(()), |barrier| barrier.wait())?;
                Ok(())
            }
            Err(StoreError::GuardFailed { index }) => match self.refused(&guards.meaning, index) {
                Guarded::Trim => Err(Error::Trimmed { position }),
                Guarded::Epoch => {
                    let view = self.refresh()?;
                    if position < view.trimmed {
                        return Err(Error::Trimmed { position });
                    }
                    self.check_made(position, &object)?;
                    Err(Error::Deposed { held: tail.epoch, found: view.epoch })
                }
                _ => match self.read(position)?.wait()? {
                    Found::Filled => Ok(()),
                    Found::Trimmed => Err(Error::Trimmed { position }),
                    _ => Err(Error::Taken { position }),
                },
            },
            Err(error) => Err(error.into()),
        }
    }

    /// Gives the entry at a position up, with its space; an unwritten position below the tail is given up as well.
    /// Trimming again does nothing. A reader that keeps the entry already may still see it.
    ///
    /// # Errors
    /// [`Error::PastTail`]; the store's.
    pub fn trim(&self, position: u64) -> Result<()> {
        let mut retry = Retry::default();
        loop {
            retry.attempt(|| format!("trimming position {position}"))?;
            let tail = self.handed_tail()?;
            if position >= tail.position {
                return Err(Error::PastTail { position, tail: tail.position });
            }
            let view = self.refresh()?;
            if position < view.trimmed {
                // The client that said so in the view may not have come to the objects yet, where readers with an older
                // view look.
                return self.trim_to(position + 1).map(|_| ());
            }
            let Some(stripe) = view.stripe(position) else {
                self.grow(position)?;
                continue;
            };
            let (column, local) = stripe.locate(position);
            let object = view.object(self.inner.id, &stripe, column);
            let layout = view.options.layout;
            let (mut stands, _) = cells::get_each(self.store(), layout, &object, &[local])?;
            let mut mark = Stored::mark(Kind::Trimmed, position, self.now_ms());
            let mut guards = Guards::default();
            guards.txn.gives_back = true;
            guards.epoch(&object, tail.epoch);
            guards.untrimmed(&object, local);
            match stands.pop() {
                Some(Ok(Some(bytes))) => match Stored::decode(position, &bytes) {
                    Ok(stored) if stored.kind == Kind::Trimmed => return Ok(()),
                    Ok(stored) => {
                        // So that its writer still knows it, if the answer was lost.
                        mark.nonce = stored.nonce;
                        if stored.kind == Kind::Placed
                            && let Some(placed) = Placed::decode(&stored.body)
                        {
                            let (offset, len) = (placed.offset, u64::from(placed.len));
                            guards.txn.push(&object, Change::Zero { offset, len });
                        }
                        // The keys of its streams stay, so that who follows one is told of the gap.
                    }
                    // What it was cannot be known: only the mark is left of it.
                    Err(_) => {}
                },
                Some(Ok(None)) => guards.absent(&object, layout, local),
                Some(Err(_)) | None => {}
            }
            guards.txn.push(&object, cells::set(layout, local, mark.encode()));
            if submit_guarded(self.store(), guards.txn)?.is_none() {
                self.drop_recent(position);
                self.wrote(position + 1);
                return Ok(());
            }
            self.check_made(position, &object)?;
        }
    }

    /// Gives up all positions below `position` with their space, while the log is in use. Returns the number of objects
    /// that went.
    ///
    /// When it returns no read in this process gives an entry below. In another process a read of the store gives none;
    /// one that is answered from what is kept there for its followers may for half a second more: so often the head is
    /// looked at.
    ///
    /// # Errors
    /// [`Error::PastTail`] above the tail; the store's. After an error positions are trimmed, but space may not be
    /// back: call it again.
    pub fn trim_to(&self, position: u64) -> Result<u64> {
        let view = self.trim_view(position)?;
        self.met(view.clone());
        self.tell();
        // In the order of positions: a crash leaves whole objects behind that the next call finds.
        self.remember_writers(view.first_stripe())?;
        let removed = self.remove_objects(view.first_stripe())?;
        for stripe in view.stripes().take_while(|stripe| stripe.start < view.trimmed) {
            self.trim_stripe(&view, &stripe)?;
        }
        self.forget_ends(view.first_stripe());
        Ok(removed)
    }

    /// Says in the view that all below `position` is trimmed, under the epoch under which it is known to be no higher
    /// than the tail: under a newer one the tail may be lower, and entries would come to stand below what is trimmed.
    fn trim_view(&self, position: u64) -> Result<View> {
        let mut retry = Retry::default();
        loop {
            retry.attempt(|| format!("trimming to position {position}"))?;
            let tail = self.handed_tail()?;
            if position > tail.position {
                return Err(Error::PastTail { position, tail: tail.position });
            }
            if position > self.view().end() {
                // The tail was handed out, but nothing was written there yet: its stripe has to be there.
                self.grow(position)?;
            }
            let changed = head::change(self.store(), self.inner.id, &self.inner.name, |view| {
                if position <= view.trimmed {
                    return Ok(false);
                }
                if view.epoch != tail.epoch {
                    return Err(Error::Deposed { held: tail.epoch, found: view.epoch });
                }
                view.trimmed = position;
                view.drop_trimmed();
                Ok(true)
            });
            match changed {
                Err(Error::Deposed { .. }) => drop(self.refresh()?),
                other => return other,
            }
        }
    }

    /// Removes what lies below the trimmed positions of one stripe.
    fn trim_stripe(&self, view: &View, stripe: &Stripe) -> Result<()> {
        let layout = view.options.layout;
        for column in 0..stripe.width {
            let below = stripe.locals_below(column, view.trimmed);
            let object = view.object(self.inner.id, stripe, column);
            let trimmed =
                self.store().xattr(&object, TRIM).wait()?.as_deref().and_then(format::number_from).unwrap_or(0);
            let mut from = trimmed;
            while from < below {
                // Each entry may be a change of its own, and a store takes so many of them at once.
                let (to, runs) = match layout {
                    crate::Layout::Stream => {
                        let to = below.min(from + TRIM_AT_ONCE);
                        (to, self.placed_below(stripe, column, from..to)?)
                    }
                    _ => (below, Vec::new()),
                };
                // Others may have trimmed further meanwhile: what is trimmed never becomes less.
                let mut guards = Guards::default();
                guards.untrimmed(&object, to);
                guards.txn.be_relied_on();
                let mut txn = guards
                    .txn
                    .giving_back()
                    .guard(&object, Condition::Exists)
                    .change(&object, Change::number(TRIM, to))
                    .change(&object, cells::remove_below(layout, to));
                for (offset, len) in runs {
                    txn.push(&object, Change::Zero { offset, len });
                }
                // A guard that fails: trimmed further meanwhile, and gone.
                submit_guarded(self.store(), txn)?;
                from = to;
            }
        }
        Ok(())
    }

    /// Where the data of some positions of an object stands in its bytes, joined.
    fn placed_below(&self, stripe: &Stripe, column: u32, range: std::ops::Range<u64>) -> Result<Vec<(u64, u64)>> {
        let object = format::data(self.inner.id, stripe.id, column);
        let mut runs: Vec<(u64, u64)> = Vec::new();
        let mut at = range.start;
        while at < range.end {
            let page = cells::scan(self.store(), crate::Layout::Stream, &object, at..range.end, 4_096, false)?;
            let Some((last, _)) = page.last() else { break };
            at = last + 1;
            for (local, bytes) in &page {
                let Some(position) = stripe.position(column, *local) else { continue };
                if let Ok(Stored { kind: Kind::Placed, body, .. }) = Stored::decode(position, bytes)
                    && let Some(placed) = Placed::decode(&body)
                {
                    runs.push((placed.offset, u64::from(placed.len)));
                }
            }
        }
        runs.sort_unstable();
        let mut joined: Vec<(u64, u64)> = Vec::new();
        for (offset, len) in runs {
            match joined.last_mut() {
                Some((start, length)) if *start + *length == offset => *length += len,
                _ => joined.push((offset, len)),
            }
        }
        Ok(joined)
    }

    /// Removes the data objects of stripes below `first`.
    pub(crate) fn remove_objects(&self, first: u64) -> Result<u64> {
        let mut removed = 0;
        remove_objects(self.store(), self.objects_below(first), &mut |gone| {
            removed = gone;
            true
        })?;
        Ok(removed)
    }

    /// Trims what the log's options no longer keep: by time at most [`RETAIN_POSITIONS`] positions in one call, and
    /// none from the first on whose entry is younger. Returns the position that it is trimmed to.
    ///
    /// # Errors
    /// The store's.
    pub fn retain(&self) -> Result<u64> {
        let view = self.refresh()?;
        let options = &view.options;
        let tail = self.tail()?.position;
        let mut to = view.trimmed;
        if options.retain_positions > 0 {
            to = to.max(tail.saturating_sub(options.retain_positions));
        }
        if options.retain_ms > 0 {
            to = self.first_young(to, tail, self.now_ms().saturating_sub(options.retain_ms))?;
        }
        if options.retain_bytes > 0 {
            to = to.max(self.position_of_bytes(&view, tail, options.retain_bytes)?);
        }
        let to = to.min(tail);
        if to > view.trimmed {
            self.trim_to(to)?;
        }
        Ok(to)
    }

    /// The first position from `from` on, below `tail`, whose entry is of `time_ms` or later, or that is undecided; it
    /// looks at so many as one call trims. Writers' clocks differ: one that is old may stand above one that is young,
    /// so all are looked at. A position below an entry that is older was handed out before that was written: if nothing
    /// stands there yet it is filled.
    fn first_young(&self, from: u64, tail: u64, time_ms: u64) -> Result<u64> {
        let end = tail.min(from.saturating_add(RETAIN_POSITIONS));
        let (mut at, mut holes) = (from, Vec::new());
        while at < end {
            for found in self.read_range(at..end, 1 << 20)?.wait()? {
                match found {
                    Found::Entry(entry) if entry.time_ms < time_ms => {
                        for hole in holes.drain(..) {
                            match self.fill(hole) {
                                Ok(()) | Err(Error::Trimmed { .. }) => {}
                                // Written meanwhile: the next call looks at how old it is.
                                Err(Error::Taken { .. }) => return Ok(hole),
                                Err(error) => return Err(error),
                            }
                        }
                    }
                    Found::Filled | Found::Trimmed | Found::Lost(_) => {}
                    Found::Hole if holes.len() < HOLES_MAX => holes.push(at),
                    Found::Entry(_) | Found::Hole | Found::BeyondTail => {
                        return Ok(holes.first().copied().unwrap_or(at));
                    }
                }
                at += 1;
            }
        }
        Ok(holes.first().copied().unwrap_or(at))
    }

    /// From where on about `bytes` of data stand below the tail, by samples of each stripe.
    fn position_of_bytes(&self, view: &View, tail: u64, bytes: u64) -> Result<u64> {
        let mut left = bytes;
        for stripe in view.stripes_from_last() {
            let (start, end) = (stripe.start.max(view.trimmed), stripe.end.min(tail));
            if start >= end {
                continue;
            }
            let (mut sampled, mut met) = (0u64, 0u64);
            for number in 0..SAMPLES.min(end - start) {
                let position = start + (end - start) * number / SAMPLES.min(end - start);
                if let Found::Entry(entry) = self.read(position)?.wait()? {
                    sampled += entry.data.len() as u64;
                    met += 1;
                }
            }
            let each = sampled.checked_div(met).unwrap_or(0).max(1);
            if each.saturating_mul(end - start) > left {
                return Ok(end - left / each);
            }
            left -= each * (end - start);
        }
        Ok(view.trimmed)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use esker_store::ObjectStore;

    use super::*;
    use crate::{Layout, Logs, Options, Session};

    #[test]
    fn what_a_trim_has_answered_is_gone_for_all_though_another_trim_has_only_come_to_the_view() {
        for (layout, name) in Layout::ALL {
            let store: Arc<dyn ObjectStore> = Arc::new(esker_memory::MemoryStore::new());
            let process = |nonce| Logs::open(Arc::clone(&store), Session::new(Arc::new(|| 1_000), nonce)).unwrap();
            let [owner, late, reader] = [process(1), process(2), process(3)];
            let options = Options { layout, width: 3, slots: 4, ..Options::default() };
            let log = owner.create("log", options).unwrap();
            for position in 0..10 {
                assert_eq!(log.append(vec![7]).unwrap().wait().unwrap(), position);
            }
            let (late, reader) = (late.log("log").unwrap(), reader.log("log").unwrap());
            assert!(matches!(reader.read(9).unwrap().wait().unwrap(), Found::Entry(_)));
            // As far as a process comes that is killed in the middle of `trim_to`.
            log.trim_view(8).unwrap();
            late.trim(5).unwrap();
            assert_eq!(reader.read(5).unwrap().wait().unwrap(), Found::Trimmed, "layout {name}");
        }
    }
}
