//! Reading positions: by one, by many.
//!
//! position → view → object and local position → stored bytes → [`Found`]; nothing there: hole, or past the tail?
//!
//! Invariants:
//! 1. What is damaged is told as [`Found::Lost`], for that position only; it is never a wrong value, and never left
//!    out.
//! 2. A position below what is trimmed reads as trimmed, whether or not its object is gone already.

use std::ops::Range;
use std::sync::atomic::Ordering;

use esker_store::{Barrier, Completion, Error as StoreError};

use crate::cells::{self, Found};
use crate::format;
use crate::log::Log;
use crate::view::{POSITIONS_MAX, Stripe};
use crate::{Error, Result};

/// Most positions that one call of [`Log::read_range`] returns.
pub const RANGE_MAX: usize = 4_096;

impl Log {
    /// What stands at a position.
    ///
    /// # Errors
    /// The store's; damage is not an error but [`Found::Lost`].
    pub fn read(&self, position: u64) -> Result<Completion<Found>> {
        if position >= POSITIONS_MAX {
            return Ok(Completion::ready(Ok(Found::BeyondTail)));
        }
        let (mut found, mut barrier) = self.read_kept(position..position + 1)?;
        let mut found = found.pop().unwrap_or(Found::BeyondTail);
        if found == Found::Hole {
            (found, barrier) = self.settle(position, barrier)?;
        }
        Ok(Completion::after(Ok(found), barrier))
    }

    /// What stands at the positions of a range, in order: all of them, or at least the first; at most [`RANGE_MAX`],
    /// and about `bytes_max` of data. The last may be followed by more.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a range that ends before it starts; the store's.
    pub fn read_range(&self, range: Range<u64>, bytes_max: usize) -> Result<Completion<Vec<Found>>> {
        if range.end < range.start {
            return Err(Error::invalid("range", format!("{}..{} ends before it starts", range.start, range.end)));
        }
        let (mut all, mut latest, mut bytes) = (Vec::new(), None, 0usize);
        let mut at = range.start;
        let (mut tail, mut most) = (None, RANGE_MAX);
        let range_end = range.end.min(POSITIONS_MAX);
        while at < range_end && all.len() < RANGE_MAX && bytes < bytes_max {
            // The first answer tells how large entries are.
            let step = if bytes == 0 { 16 } else { (bytes_max - bytes) * all.len() / bytes.max(1) };
            let end = range_end.min(at + step.min(most).clamp(1, RANGE_MAX - all.len()) as u64);
            let (found, barrier) = match self.read_kept(at..end) {
                // They are larger than those before: fewer at once.
                Err(Error::Store(StoreError::TooLarge { .. })) if end - at > 1 => {
                    most = (end - at) as usize / 2;
                    continue;
                }
                read => read?,
            };
            latest = Barrier::later(latest, barrier);
            if found.is_empty() {
                break;
            }
            for one in found {
                let one = match one {
                    Found::Hole => {
                        let tail = match tail {
                            Some(tail) => tail,
                            None => *tail.insert(self.handed_tail()?.position),
                        };
                        if at < tail {
                            let (settled, barrier) = self.settle(at, None)?;
                            latest = Barrier::later(latest, barrier);
                            settled
                        } else {
                            Found::BeyondTail
                        }
                    }
                    other => other,
                };
                bytes += match &one {
                    Found::Entry(entry) => entry.data.len() + 64,
                    _ => 1,
                };
                all.push(one);
                at += 1;
            }
        }
        Ok(Completion::after(Ok(all), latest))
    }

    /// The positions of a range, or of its first part: what was just written, or what the store has. Nothing there is a
    /// hole, here.
    pub(crate) fn read_kept(&self, range: Range<u64>) -> Result<(Vec<Found>, Option<Barrier>)> {
        let (mut all, mut latest) = (Vec::new(), None);
        if self.inner.shared.followers.load(Ordering::Relaxed) > 0 {
            self.look_out()?;
            for position in range.clone() {
                let Some(recent) = self.recent(position) else { break };
                latest = Barrier::later(latest, recent.barrier);
                all.push(recent.found);
            }
            if !all.is_empty() {
                return Ok((all, latest));
            }
        }
        self.read_stored(range)
    }

    /// As far as the first stripe of the range goes.
    pub(crate) fn read_stored(&self, range: Range<u64>) -> Result<(Vec<Found>, Option<Barrier>)> {
        let mut view = self.view();
        if range.start < view.trimmed {
            let end = range.end.min(view.trimmed);
            return Ok((vec![Found::Trimmed; (end - range.start) as usize], None));
        }
        if range.start >= view.end() {
            view = self.refresh()?;
            if range.start < view.trimmed {
                return Ok((vec![Found::Trimmed], None));
            }
        }
        let Some(stripe) = view.stripe(range.start) else { return Ok((vec![Found::BeyondTail], None)) };
        let end = range.end.min(stripe.end);
        let layout = view.options.layout;
        let mut all = vec![Found::Hole; (end - range.start) as usize];
        let mut latest = None;
        for column in 0..stripe.width {
            let (positions, locals) = of_column(&stripe, column, range.start..end);
            if locals.is_empty() {
                continue;
            }
            let object = format::data(self.inner.id, stripe.id, column);
            let (values, barrier) = cells::get_each(self.store(), layout, &object, &locals)?;
            latest = Barrier::later(latest, barrier);
            for ((position, local), value) in positions.into_iter().zip(&locals).zip(values) {
                let slot = &mut all[(position - range.start) as usize];
                match value {
                    Ok(None) => {}
                    Ok(Some(bytes)) => {
                        let (mut found, barrier) = cells::understand(self.store(), &object, position, &bytes)?;
                        latest = Barrier::later(latest, barrier);
                        if matches!(found, Found::Lost(_)) {
                            // Its data may have been trimmed away between the two reads: then something else stands
                            // here now.
                            let (mut again, _) = cells::get_each(self.store(), layout, &object, &[*local])?;
                            match again.pop() {
                                Some(Ok(None)) => found = Found::Hole,
                                Some(Ok(Some(now))) if now != bytes => {
                                    let (now, barrier) = cells::understand(self.store(), &object, position, &now)?;
                                    latest = Barrier::later(latest, barrier);
                                    found = now;
                                }
                                _ => {}
                            }
                        }
                        *slot = found;
                    }
                    Err(why) => *slot = Found::Lost(why),
                }
            }
        }
        Ok((all, latest))
    }

    /// A position where nothing was found: trimmed meanwhile, a hole, or past the tail.
    fn settle(&self, position: u64, barrier: Option<Barrier>) -> Result<(Found, Option<Barrier>)> {
        let tail = self.handed_tail()?;
        if position >= tail.position {
            return Ok((Found::BeyondTail, barrier));
        }
        let view = self.refresh()?;
        if position < view.trimmed {
            return Ok((Found::Trimmed, barrier));
        }
        // The place may have changed with the view, and the position may have been decided since.
        let (found, later) = self.read_stored(position..position + 1)?;
        let found = found.into_iter().next().unwrap_or(Found::Hole);
        if found == Found::Hole && self.is_trimmed_in_object(position)? {
            return Ok((Found::Trimmed, later));
        }
        Ok((found, Barrier::later(barrier, later)))
    }

    fn is_trimmed_in_object(&self, position: u64) -> Result<bool> {
        let view = self.view();
        let Some(stripe) = view.stripe(position) else { return Ok(false) };
        let (column, local) = stripe.locate(position);
        let object = view.object(self.inner.id, &stripe, column);
        let trim = self.store().xattr(&object, format::TRIM).wait()?;
        Ok(trim.as_deref().and_then(format::number_from).is_some_and(|trim| local < trim))
    }

    /// The first position from `from` on, below `end`, at which nothing stands; `end` if there is none. Reads no
    /// entries.
    pub(crate) fn first_hole(&self, from: u64, end: u64) -> Result<u64> {
        let view = self.view();
        let mut at = from.max(view.trimmed);
        while at < end {
            let Some(stripe) = view.stripe(at) else { return Ok(at) };
            let until = end.min(stripe.end);
            let mut hole = until;
            for column in 0..stripe.width {
                let (positions, locals) = of_column(&stripe, column, at..hole);
                let (Some(first), Some(last)) = (locals.first(), locals.last()) else { continue };
                let object = view.object(self.inner.id, &stripe, column);
                let mut expected = *first;
                'object: while expected <= *last {
                    let limit = esker_store::limits::SCAN_ENTRIES_MAX;
                    let layout = view.options.layout;
                    let page = cells::scan(self.store(), layout, &object, expected..last + 1, limit, true)?;
                    if page.is_empty() {
                        break;
                    }
                    for (local, _) in page {
                        if local != expected {
                            break 'object;
                        }
                        expected += 1;
                    }
                }
                if expected <= *last {
                    hole = hole.min(positions[(expected - first) as usize]);
                }
            }
            if hole < until {
                return Ok(hole);
            }
            at = until;
        }
        Ok(at.max(from))
    }

    /// The first position whose entry is of `time_ms` or later, by the writers' clocks; the tail if there is none.
    /// Where clocks went back, one of several such positions.
    ///
    /// # Errors
    /// The store's.
    pub fn position_at(&self, time_ms: u64) -> Result<u64> {
        let tail = self.tail()?.position;
        let (mut low, mut high) = (self.refresh()?.trimmed, tail);
        while low < high {
            let middle = low + (high - low) / 2;
            // The first entry from the middle on that tells a time.
            let mut at = middle;
            let mut time = None;
            while at < high && time.is_none() {
                let found = self.read_range(at..high.min(at + 64), 1 << 20)?.wait()?;
                let entries = found.iter().filter_map(|one| match one {
                    Found::Entry(entry) => Some(entry),
                    _ => None,
                });
                time = entries.map(|entry| (entry.position, entry.time_ms)).next();
                at += found.len().max(1) as u64;
            }
            match time {
                Some((position, time)) if time < time_ms => low = position + 1,
                _ => high = middle,
            }
        }
        Ok(low)
    }
}

/// The positions of a range that stand in a column, and where in it.
pub(crate) fn of_column(stripe: &Stripe, column: u32, range: Range<u64>) -> (Vec<u64>, Vec<u64>) {
    let width = u64::from(stripe.width);
    let (first, _) = stripe.locate(range.start);
    let skip = (u64::from(column) + width - u64::from(first)) % width;
    let positions: Vec<u64> = (range.start + skip..range.end).step_by(width as usize).collect();
    let locals = positions.iter().map(|position| stripe.locate(*position).1).collect();
    (positions, locals)
}
