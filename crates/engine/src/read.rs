//! Reading: the index under the object's lock, then values without it.
//!
//! lock → places → unlock → values from memory, cache or device → completion with the barrier to wait for
//!
//! Invariants:
//! 1. The places of one call are taken under one lock, so that they show one moment.
//! 2. What is missing because of a removal that is not durable waits for that removal.
//! 3. From the look at the index until the value is there the thread is pinned: no segment is used again meanwhile.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::{Bytes, BytesMut};
use esker_store::limits::{SCAN_BYTES_MAX, SCAN_ENTRIES_MAX, TRANSACTION_BYTES_MAX};
use esker_store::{Completion, Error, ObjectId, Result};

use crate::engine::Engine;
use crate::format::Loc;
use crate::index::{Extent, Missing};
use crate::objects::ObjectState;
use crate::pages::bring;
use crate::reader::{Asked, Sought};
use crate::segments::Lsn;
use crate::stages::sampled;

/// After so many pages were read for a call none may leave memory until it is done.
const PAGES_AT_LEISURE: usize = 4;
/// At most 2 to this many pages are read at a time.
const AHEAD_BITS_MAX: usize = 6;

impl Engine {
    /// Looks at an object; `absent` if there is none. Pages that are missing are read first; the caller is pinned if it
    /// looks at any.
    pub(crate) fn look<R>(
        &self,
        id: &ObjectId,
        absent: impl Fn(Lsn) -> R,
        look: impl Fn(&ObjectState) -> std::result::Result<R, Missing>,
    ) -> Result<R> {
        let began = sampled();
        let mut tries = 0;
        let mut gathering = None;
        loop {
            let mut outcome = None;
            let mut needs = None;
            let gone = self.objects.with(id, |object| {
                let Some(object) = object else {
                    let lsn = self.names_lsn.load(Ordering::Acquire);
                    outcome = Some(absent(lsn));
                    return false;
                };
                let state = object.state.read();
                if state.exists() {
                    match look(&state) {
                        Ok(found) => outcome = Some(found),
                        Err(missing) => needs = Some((Arc::clone(object), missing)),
                    }
                }
                state.unlinked
            });
            if let Some(outcome) = outcome {
                if gathering.take().is_some() {
                    self.index_has_grown();
                }
                self.times.lookup.add_since(began);
                return Ok(outcome);
            }
            if let Some((object, missing)) = needs {
                tries += 1;
                if tries == PAGES_AT_LEISURE {
                    gathering = Some(self.objects.gather());
                }
                // A call that needs many comes to the next ones too.
                let ahead = 1 << (tries / 2).min(AHEAD_BITS_MAX);
                let missing = object.state.read().spaces.missing_from(missing, ahead);
                bring(&self.reader, &self.objects, &object, &missing)?;
                if gathering.is_none() {
                    self.index_has_grown();
                }
            } else if gone {
                self.objects.forget(id);
            } else {
                // Made by a transaction that did not go through, or just removed: it leaves the table at once.
                std::thread::yield_now();
            }
        }
    }

    pub(crate) fn completion<T>(&self, value: Result<T>, wait_to: Lsn) -> Completion<T> {
        Completion::after(value, self.barrier(wait_to))
    }

    /// What was looked up, with the position that has to be durable before it is shown.
    pub(crate) fn shown<T>(&self, looked: Result<(T, Lsn)>) -> Completion<T> {
        match looked {
            Ok((value, wait_to)) => self.completion(Ok(value), wait_to),
            Err(error) => Completion::ready(Err(error)),
        }
    }

    pub(crate) fn value(&self, looked: Result<(Option<Loc>, Shown)>, what: Sought<'_>) -> Completion<Option<Bytes>> {
        let (loc, shown) = match looked {
            Ok(looked) => looked,
            Err(error) => return Completion::ready(Err(error)),
        };
        let Some(loc) = loc else { return self.completion(Ok(None), shown.absent) };
        match self.reader.fetch(loc, &Asked { object: shown.owner, what }, self.mark.durable()) {
            Ok(found) => self.completion(Ok(Some(found.value)), found.wait_to.max(shown.present)),
            Err(error) => Completion::ready(Err(error)),
        }
    }

    /// Values of which each is `what` says by its number.
    pub(crate) fn values<'k>(
        &self,
        looked: Result<(Vec<Option<Loc>>, Shown)>,
        what: impl Fn(usize) -> Sought<'k>,
    ) -> Completion<Vec<Option<Bytes>>> {
        let (places, shown) = match looked {
            Ok(looked) => looked,
            Err(error) => return Completion::ready(Err(error)),
        };
        let durable = self.mark.durable();
        let mut wait_to = shown.present;
        let mut values = Vec::with_capacity(places.len());
        for (number, place) in places.into_iter().enumerate() {
            let Some(loc) = place else {
                wait_to = wait_to.max(shown.absent);
                values.push(None);
                continue;
            };
            match self.reader.fetch(loc, &Asked { object: shown.owner, what: what(number) }, durable) {
                Ok(found) => {
                    wait_to = wait_to.max(found.wait_to);
                    values.push(Some(found.value));
                }
                Err(error) => return Completion::ready(Err(error)),
            }
        }
        self.completion(Ok(values), wait_to)
    }

    /// Values of scanned entries, cut where the answer has grown to `SCAN_BYTES_MAX`.
    pub(crate) fn entries<K>(
        &self,
        looked: Result<(Vec<(K, Loc)>, Shown)>,
        what: impl for<'k> Fn(&'k K) -> Sought<'k>,
        keys_only: bool,
    ) -> Completion<Vec<(K, Bytes)>> {
        let (places, shown) = match looked {
            Ok(looked) => looked,
            Err(error) => return Completion::ready(Err(error)),
        };
        let durable = self.mark.durable();
        let mut wait_to = shown.absent.max(shown.present);
        let mut bytes = 0;
        let mut entries = Vec::with_capacity(places.len());
        for (key, loc) in places {
            let value = if keys_only {
                wait_to = wait_to.max(self.segments.lsn_of(loc.offset()) + 1);
                Bytes::new()
            } else {
                match self.reader.fetch(loc, &Asked { object: shown.owner, what: what(&key) }, durable) {
                    Ok(found) => {
                        wait_to = wait_to.max(found.wait_to);
                        found.value
                    }
                    Err(error) => return Completion::ready(Err(error)),
                }
            };
            bytes += value.len()
                + match what(&key) {
                    Sought::Omap(key) => key.len(),
                    _ => size_of::<u64>(),
                };
            entries.push((key, value));
            if bytes >= SCAN_BYTES_MAX {
                break;
            }
        }
        self.completion(Ok(entries), wait_to)
    }

    /// Bytes of an object of `size`, from these extents, each with what is asked for at its place.
    pub(crate) fn read_range(
        &self,
        size: u64,
        parts: &[(u64, Extent, Asked<'static>)],
        range: &Range<u64>,
    ) -> Result<(Bytes, Lsn)> {
        let end = range.end.min(size);
        let len = end.saturating_sub(range.start);
        if len > TRANSACTION_BYTES_MAX as u64 {
            let max = TRANSACTION_BYTES_MAX as u64;
            return Err(Error::TooLarge { what: "read", len, limit: "TRANSACTION_BYTES_MAX", max });
        }
        let durable = self.mark.durable();
        if let [(offset, extent, asked)] = parts
            && *offset == range.start
            && u64::from(extent.len) == len
        {
            let found = self.reader.fetch_part(extent.loc, asked, extent.skip, extent.len, durable)?;
            return Ok((found.value, found.wait_to));
        }
        let mut bytes = BytesMut::zeroed(len as usize);
        let mut wait_to = 0;
        for (offset, extent, asked) in parts {
            let found = self.reader.fetch_part(extent.loc, asked, extent.skip, extent.len, durable)?;
            wait_to = wait_to.max(found.wait_to);
            let at = (offset - range.start) as usize;
            bytes[at..at + extent.len as usize].copy_from_slice(&found.value);
        }
        Ok((bytes.freeze(), wait_to))
    }
}

/// Positions that have to be durable before something is shown to be there, or not to be there.
#[derive(Clone, Copy)]
pub(crate) struct Shown {
    pub(crate) present: Lsn,
    pub(crate) absent: Lsn,
    /// The object number that values were written for, where that is known.
    pub(crate) owner: Option<u64>,
}

impl Shown {
    pub(crate) fn of(state: &ObjectState) -> Self {
        Self { present: state.copied_lsn, absent: state.removed_lsn, owner: state.owner(state.number) }
    }

    /// There is no object.
    pub(crate) fn none(lsn: Lsn) -> Self {
        Self { present: 0, absent: lsn, owner: None }
    }
}

pub(crate) fn scan_limit(limit: usize) -> usize {
    limit.min(SCAN_ENTRIES_MAX)
}
