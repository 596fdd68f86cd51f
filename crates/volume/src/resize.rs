//! Resizing: growing changes the header; shrinking also takes away what lies past the end, which may be interrupted and
//! goes on later.
//!
//! shrink → header (size, and how far data may still lie) → discard from the new end on → header (nothing lies there)
//!
//! Invariants:
//! 1. Nothing that shrinking took away is ever read again: an image grows only when what lay past its end is gone.
//! 2. Shrinking below data needs the caller's word.

use esker_store::{Durability, Error as StoreError, Retry};

use crate::progress::Progress;
use crate::volumes::check_size;
use crate::write::Writer;
use crate::{Error, Image, Result};

impl Image {
    /// Makes the image `size` bytes large, at most [`IMAGE_BYTES_MAX`](crate::IMAGE_BYTES_MAX). An image that another
    /// handle
    /// has locked grows too; it is made smaller only by the handle with the lock, or without one. Data past a smaller
    /// size is lost: that is refused
    /// unless `allow_loss`. Snapshots keep their size and data. Others should not write there meanwhile: what they
    /// write past the new end is lost too, and not always looked at before. What lay past the new end is removed on
    /// return, or where that fails by [`Volumes::work`](crate::Volumes::work).
    ///
    /// # Errors
    /// [`Error::Refused`] names the first data past the new end; [`Error::Invalid`] for a size too large; those of
    /// [`Image::write`].
    pub fn resize(&self, size: u64, allow_loss: bool) -> Result<()> {
        check_size(size)?;
        self.refresh()?;
        self.finish_shrinking(&mut |_, _| true)?;
        let old = self.size();
        if size < old
            && !allow_loss
            && let Some(offset) = self.first_data(size, old)?
        {
            let why = format!("image {} has data at {offset}, past the new end at {size}", self.inner.name);
            return Err(Error::refused(why));
        }
        self.change(|state, txn| {
            // Who has the lock is not disturbed by more room: its next write sees it.
            if size < state.size {
                self.check_lock(state)?
            } else {
                self.check_fence(state)?
            }
            txn.gives_back = size < old;
            if state.rollback != 0 || state.dirty_end > state.size || state.size != old {
                return Err(Error::refused(format!("image {} was changed meanwhile; try again", self.inner.name)));
            }
            if size < state.size {
                state.dirty_end = state.size;
            }
            state.size = size;
            if let Some(parent) = &mut state.parent {
                parent.overlap = parent.overlap.min(size);
            }
            Ok(())
        })?;
        match self.finish_shrinking(&mut |_, _| true) {
            // What this handle wrote before may be lost, and that is told once.
            Err(error @ Error::Store(StoreError::Restarted)) => Err(error),
            // It has its new size; what lies past the end goes now, or later.
            _ => Ok(()),
        }
    }

    /// Offset of the first data from `start` to `end`.
    fn first_data(&self, start: u64, end: u64) -> Result<Option<u64>> {
        let live = self.live();
        let mut found = None;
        self.each_candidate(&live.point, true, &mut |number| {
            let prefix = live.point.layout.prefix(number, start);
            let len = live.point.layout.prefix(number, end) - prefix;
            if len > 0 {
                for run in crate::source::extents(self.store(), &live.point, number, prefix, len)? {
                    for (offset, _) in live.point.layout.image_runs(number, run.offset, run.len) {
                        found = Some(found.map_or(offset, |found: u64| found.min(offset)));
                    }
                }
            }
            Ok(true)
        })?;
        Ok(found)
    }

    /// Takes away what an earlier shrinking left past the end. Returns false if `progress` stopped it.
    pub(crate) fn finish_shrinking(&self, progress: Progress<'_>) -> Result<bool> {
        let mut retry = Retry::default();
        loop {
            retry.attempt(|| format!("the size of image {}", self.inner.name))?;
            let live = self.live();
            let (size, end) = (live.state.size, live.state.dirty_end);
            if end <= size {
                return Ok(true);
            }
            self.relies_on_what_is_there();
            let mut done = 0;
            let finished = self.each_own(&mut |number| {
                let prefix = live.point.layout.prefix(number, size);
                let len = live.point.layout.prefix(number, end) - prefix;
                if len > 0 {
                    let act = crate::write::Act::Zero(vec![(prefix, len)]);
                    let acts = std::collections::BTreeMap::from([(number, act)]);
                    self.apply(&acts, Durability::Applied, Writer::Trim(size))?;
                }
                done += 1;
                Ok(progress(done, done))
            })?;
            if !finished {
                return Ok(false);
            }
            self.flush().wait()?;
            let mut outdated = false;
            let cleared = self.change(|state, txn| {
                txn.gives_back = true;
                // Others may have grown and shrunk it to the same size meanwhile: then more lies there than was looked
                // at.
                outdated = state.generation != live.state.generation;
                if outdated {
                    return Err(Error::refused("the image was changed meanwhile"));
                }
                self.check_lock(state)?;
                state.dirty_end = 0;
                Ok(())
            });
            if !outdated {
                return cleared.map(|()| true);
            }
            self.refresh()?;
        }
    }
}
