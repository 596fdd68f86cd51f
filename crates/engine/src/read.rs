//! Reading: the index under the object's lock, then values without it.
//!
//! ```text
//! lock → places → unlock → values from memory, or what the device gives at once → completion with the barrier to wait
//! for
//!                        → the others: reading pool, or the waiting caller: begun ahead → the same, later
//! ```
//!
//! Invariants:
//! 1. The places of one call are taken under one lock, so that they show one moment.
//! 2. What is missing because of a removal that is not durable waits for that removal.
//! 3. From the look at the index until the value is there the call is pinned: no segment is used again meanwhile.
//! 4. A caller waits neither for the device, nor to tell it of a read, nor for memory. A call that needs index pages
//!    which are not in memory is made again as a whole by the thread that waits for it, or by a pool: it shows a moment
//!    after it began.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::{Bytes, BytesMut};
use esker_store::limits::{SCAN_BYTES_MAX, SCAN_ENTRIES_MAX, TRANSACTION_BYTES_MAX, Together};
use esker_store::{Applied, Barrier, Completion, DurableMark, Error, ObjectId, Parts, Result, Soon, deferred};
use parking_lot::Mutex;
use smallvec::SmallVec;

use crate::engine::Engine;
use crate::format::Loc;
use crate::index::{Extent, Missing};
use crate::keeper::Held;
use crate::objects::{Object, ObjectState};
use crate::pages::bring;
use crate::reader::{Asked, Found, Reader, Sought};
use crate::readers::{Pinned, StillPinned};
use crate::segments::{Lsn, Segments};
use crate::stages::sampled;

/// After so many pages were read for a call none may leave memory until it is done.
const PAGES_AT_LEISURE: usize = 4;
/// A call tells the device of so many values that are not in memory before it waits for the first: enough to keep the
/// device busy, and few enough for the page cache.
const AHEAD: usize = 128;
/// A part that stands in more places than this is not brought.
const PLACES_TOGETHER_MAX: usize = 64;
/// At most 2 to this many pages are read at a time.
const AHEAD_BITS_MAX: usize = 6;

impl Engine {
    /// Looks at an object; `absent` if there is none. `None` if pages are missing, which the twin reads first; the
    /// caller is pinned if it looks at any.
    pub(crate) fn look<R>(
        &self,
        id: &ObjectId,
        absent: impl Fn(Lsn) -> R,
        look: impl Fn(&ObjectState) -> std::result::Result<R, Missing>,
    ) -> Option<Result<R>> {
        let began = sampled();
        let mut tries = 0;
        let mut gathering = None;
        loop {
            let found = self.look_at(
                id,
                |lsn| Ok(absent(lsn)),
                |object, state| look(state).map_err(|missing| (Arc::clone(object), missing)),
            );
            let (object, missing) = match found {
                Ok(found) => {
                    if gathering.take().is_some() {
                        self.index_has_grown();
                    }
                    self.times.lookup.add_since(began);
                    return Some(Ok(found));
                }
                Err(_) if self.twin.is_some() => return None,
                Err(needed) => needed,
            };
            tries += 1;
            if tries == PAGES_AT_LEISURE {
                gathering = Some(self.objects.gather());
            }
            // A call that needs many comes to the next ones too.
            let ahead = 1 << (tries / 2).min(AHEAD_BITS_MAX);
            let missing = object.state.read().spaces.missing_from(missing, ahead);
            if let Err(error) = bring(&self.reader, &self.objects, &object, &missing) {
                return Some(Err(error));
            }
            if gathering.is_none() {
                self.index_has_grown();
            }
        }
    }

    /// Looks at what of an object is always in memory, or at what else is; `absent` if there is none.
    #[inline]
    pub(crate) fn look_at<R>(
        &self,
        id: &ObjectId,
        absent: impl Fn(Lsn) -> R,
        look: impl Fn(&Arc<Object>, &ObjectState) -> R,
    ) -> R {
        loop {
            let mut outcome = None;
            let gone = self.objects.with(id, |object| {
                let Some(object) = object else {
                    let lsn = self.names_lsn.load(Ordering::Acquire);
                    outcome = Some(absent(lsn));
                    return false;
                };
                let state = object.state.read();
                if state.exists() {
                    outcome = Some(look(object, &state));
                }
                state.unlinked
            });
            if let Some(outcome) = outcome {
                return outcome;
            }
            if gone {
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

    /// Does the rest of a call, which has to wait for the device: on the thread that waits for it, or on one of the
    /// reading pool.
    ///
    /// `begin` tells the device of its reads, `places` of them, once: a call of several does so before it reads, every
    /// other where one is read before it.
    fn defer<T: Send + 'static>(
        &self,
        (places, begin): (usize, impl FnOnce() + Send + 'static),
        work: impl FnOnce() -> Applied<T> + Send + 'static,
    ) -> Completion<T> {
        let Some(pool) = &self.pool else {
            if places > 1 {
                begin();
            }
            let (value, barrier) = work();
            return Completion::after(value, barrier);
        };
        let begin = Arc::new(Mutex::new(Some(begin)));
        let once = move || {
            let begin = begin.lock().take();
            if let Some(begin) = begin {
                begin();
            }
        };
        let (task, completion) = deferred("reading", Some(pool.runner()), {
            let (pool, once) = (Arc::clone(pool), once.clone());
            move || {
                if places > 1 {
                    once();
                }
                pool.begin_others(once);
                work()
            }
        });
        pool.offer(task, Some((places, Box::new(once))));
        completion
    }

    /// What tells the device of these places.
    fn telling(&self, places: impl Iterator<Item = Loc>) -> (usize, impl FnOnce() + Send + 'static) {
        let places: Vec<Loc> = places.take(AHEAD).collect();
        let reader = Arc::clone(&self.reader);
        (places.len(), move || places.into_iter().for_each(|loc| reader.begin(loc)))
    }

    /// The same of parts of places.
    fn telling_parts(&self, parts: &[Extent]) -> (usize, impl FnOnce() + Send + 'static) {
        let (parts, reader) = (parts.to_vec(), Arc::clone(&self.reader));
        (parts.len(), move || parts.into_iter().for_each(|part| reader.begin_part(part.loc, part.skip, part.len)))
    }

    /// Has a thread of the pool tell the device of what will be asked for, as far as its place is known and it is not
    /// in memory.
    pub(crate) fn begin_soon(&self, object: &ObjectId, soon: Soon<'_>) {
        let Some(pool) = self.pool.as_ref().filter(|_| self.reads_ahead) else { return };
        // Those whose pages are missing are left to their readers.
        let cold = |place: std::result::Result<Option<Loc>, Missing>| {
            place.ok().flatten().filter(|loc| !self.reader.is_in_memory(*loc))
        };
        let places: Vec<Loc> = self.look_at(
            object,
            |_| Vec::new(),
            |_, state| match soon {
                Soon::Omap(keys) => keys.iter().filter_map(|key| cold(state.omap.get(key))).take(AHEAD).collect(),
                Soon::Slots(all) => all.iter().filter_map(|index| cold(state.slots.get(*index))).take(AHEAD).collect(),
            },
        );
        if places.is_empty() {
            return;
        }
        // Nothing is pinned: a place that means something else meanwhile is read for nothing.
        let (reader, count, mut places) = (Arc::clone(&self.reader), places.len(), places.into_iter());
        pool.hint(count, move || places.next().map(|loc| reader.begin_hinted(loc)).is_some());
    }

    /// Brings what its caller reads next of objects, as far as its place is known and it is not in memory. Whether
    /// reads of this store are ever waited for.
    pub(crate) fn bring_parts(&self, parts: &mut dyn Parts) -> bool {
        if !self.reads_ahead {
            return false;
        }
        // Nothing is pinned: what is brought is of one life of its segment, and its reader asks for that.
        let parts = std::cell::RefCell::new(parts);
        let mut next = || {
            let (object, range) = parts.borrow_mut().next()?;
            let places = |state: &ObjectState| {
                let wanted = range.start..range.end.min(state.size).max(range.start);
                // Those whose pages are missing are left to their readers.
                let known = state.extents.lookup(wanted).map_while(std::result::Result::ok);
                let part = |extent: Extent| (extent.loc, self.reader.generation(extent.loc), extent.skip, extent.len);
                known.map(|(_, extent)| part(extent)).collect::<SmallVec<[_; 2]>>()
            };
            let mut places = self.look_at(&object, |_| SmallVec::new(), |_, state| places(state));
            if places.len() > PLACES_TOGETHER_MAX {
                // They would push others out before they are read.
                places.clear();
            }
            Some(places)
        };
        self.reader.bring(&mut next, &mut || parts.borrow_mut().waits(), &mut |number| parts.borrow_mut().came(number));
        true
    }

    /// Has the twin make a call that needs index pages: on the thread that waits for it, or on one of its pool.
    pub(crate) fn later<T: Send + 'static>(
        &self,
        call: impl FnOnce(&Self) -> Completion<T> + Send + 'static,
    ) -> Completion<T> {
        let (Some(twin), Some(pool)) = (&self.twin, &self.page_pool) else { return call(self) };
        let (task, completion) = deferred("reading the index", Some(pool.runner()), {
            let (twin, values) = (Arc::clone(twin), self.pool.clone());
            move || {
                if let Some(values) = values {
                    values.begin_others(|| {});
                }
                call(&twin).into_parts()
            }
        });
        // If its caller never comes for it, closing the store does it: else it would keep the store open.
        pool.offer(task, None);
        completion
    }

    /// What a call takes with it that goes on later.
    fn carry(&self, pinned: Pinned<'_>) -> Carried {
        Carried {
            reader: Arc::clone(&self.reader),
            mark: Arc::clone(&self.mark),
            _kept: self.segments.keep_pinned(pinned),
            _held: self.held.clone(),
        }
    }

    /// A value that is in memory, or anywhere if no other thread can read it later.
    fn fetch_now(&self, loc: Loc, asked: &Asked<'_>, durable: Lsn) -> Result<Option<Found>> {
        if self.reads_ahead {
            self.reader.fetch_now(loc, asked, durable)
        } else {
            self.reader.fetch(loc, asked, durable).map(Some)
        }
    }

    pub(crate) fn value(
        &self,
        pinned: Pinned<'_>,
        looked: Result<(Option<Loc>, Shown)>,
        what: Sought<'_>,
    ) -> Completion<Option<Bytes>> {
        let (loc, shown) = match looked {
            Ok(looked) => looked,
            Err(error) => return Completion::ready(Err(error)),
        };
        let Some(loc) = loc else { return self.completion(Ok(None), shown.absent) };
        let durable = self.mark.durable();
        match self.fetch_now(loc, &Asked { object: shown.owner, what }, durable) {
            Ok(Some(found)) => self.completion(Ok(Some(found.value)), found.wait_to.max(shown.present)),
            Ok(None) => {
                let (carried, what) = (self.carry(pinned), what.keep());
                self.defer(self.telling(std::iter::once(loc)), move || {
                    let asked = Asked { object: shown.owner, what: what.sought() };
                    let found = carried.reader.fetch(loc, &asked, durable);
                    carried.applied(found.map(|found| (Some(found.value), found.wait_to.max(shown.present))))
                })
            }
            Err(error) => Completion::ready(Err(error)),
        }
    }

    /// Values of which each is `what` says by its number. Those that are not in memory are begun [`AHEAD`] before they
    /// are waited for.
    pub(crate) fn values<'k>(
        &self,
        pinned: Pinned<'_>,
        looked: Result<(Vec<Option<Loc>>, Shown)>,
        what: impl Fn(usize) -> Sought<'k>,
    ) -> Completion<Vec<Option<Bytes>>> {
        let (places, shown) = match looked {
            Ok(looked) => looked,
            Err(error) => return Completion::ready(Err(error)),
        };
        let durable = self.mark.durable();
        let mut values =
            Values { values: Vec::with_capacity(places.len()), wait_to: shown.present, bytes: Together::default() };
        let mut cold = Vec::new();
        for (number, place) in places.into_iter().enumerate() {
            values.values.push(None);
            let Some(loc) = place else {
                values.wait_to = values.wait_to.max(shown.absent);
                continue;
            };
            let asked = Asked { object: shown.owner, what: what(number) };
            // Once one is not there, asking the device for each would cost a call of it in vain.
            let found = if cold.is_empty() {
                self.fetch_now(loc, &asked, durable)
            } else {
                self.reader.peek(loc, &asked, durable)
            };
            match found.and_then(|found| found.map(|found| values.set(number, found)).transpose()) {
                Ok(Some(())) => {}
                Ok(None) => cold.push((number, loc, what(number).keep())),
                Err(error) => return Completion::ready(Err(error)),
            }
        }
        if cold.is_empty() {
            return self.completion(Ok(values.values), values.wait_to);
        }
        let carried = self.carry(pinned);
        self.defer(self.telling(cold.iter().map(|(_, loc, _)| *loc)), move || {
            let all = cold.iter().enumerate().try_for_each(|(at, (number, loc, what))| {
                if let Some((_, next, _)) = cold.get(at + AHEAD) {
                    carried.reader.begin(*next);
                }
                let asked = Asked { object: shown.owner, what: what.sought() };
                values.set(*number, carried.reader.fetch(*loc, &asked, durable)?)
            });
            carried.applied(all.map(|()| (values.values, values.wait_to)))
        })
    }

    /// Values of scanned entries, cut where the answer has grown to `SCAN_BYTES_MAX`.
    pub(crate) fn entries<K: Send + 'static>(
        &self,
        pinned: Pinned<'_>,
        looked: Result<(Vec<(K, Loc)>, Shown)>,
        what: for<'k> fn(&'k K) -> Sought<'k>,
        keys_only: bool,
    ) -> Completion<Vec<(K, Bytes)>> {
        let (places, shown) = match looked {
            Ok(looked) => looked,
            Err(error) => return Completion::ready(Err(error)),
        };
        let durable = self.mark.durable();
        let entries = Vec::with_capacity(places.len());
        let mut page = Page { what, bytes: 0, wait_to: shown.absent.max(shown.present), entries };
        let mut places = places.into_iter();
        while let Some((key, loc)) = places.next() {
            let found = if keys_only {
                Some(Found { value: Bytes::new(), wait_to: self.segments.lsn_of(loc.offset()) + 1 })
            } else {
                match self.fetch_now(loc, &Asked { object: shown.owner, what: what(&key) }, durable) {
                    Ok(found) => found,
                    Err(error) => return Completion::ready(Err(error)),
                }
            };
            let Some(found) = found else {
                let mut begun = page.bytes;
                let first = std::iter::once(loc).chain(places.as_slice().iter().map(|(_, loc)| *loc));
                // With the one that fills the page.
                let first = self.telling(first.take_while(|loc| {
                    let fits = begun < SCAN_BYTES_MAX;
                    begun += loc.span_bytes() as usize;
                    fits
                }));
                let carried = self.carry(pinned);
                let ahead: Vec<Loc> = places.as_slice().iter().skip(AHEAD - 1).map(|(_, loc)| *loc).collect();
                return self.defer(first, move || {
                    let cold = std::iter::once((key, loc)).chain(places).enumerate();
                    let whole = cold.into_iter().try_for_each(|(at, (key, loc))| {
                        if page.is_full() {
                            return Ok(());
                        }
                        if let Some(next) = ahead.get(at) {
                            carried.reader.begin(*next);
                        }
                        let asked = Asked { object: shown.owner, what: what(&key) };
                        let found = carried.reader.fetch(loc, &asked, durable)?;
                        page.push(key, found);
                        Ok(())
                    });
                    carried.applied(whole.map(|()| (page.entries, page.wait_to)))
                });
            };
            page.push(key, found);
            if page.is_full() {
                break;
            }
        }
        self.completion(Ok(page.entries), page.wait_to)
    }

    /// Bytes of an object of `size`, from these extents, each with what is asked for at its place; shown once `floor`
    /// and what they need is durable.
    pub(crate) fn read_range(
        &self,
        pinned: Pinned<'_>,
        size: u64,
        parts: Vec<(u64, Extent, Asked<'static>)>,
        range: &Range<u64>,
        floor: Lsn,
    ) -> Completion<Bytes> {
        let end = range.end.min(size);
        let len = end.saturating_sub(range.start);
        if len > TRANSACTION_BYTES_MAX as u64 {
            let max = TRANSACTION_BYTES_MAX as u64;
            let error = Error::TooLarge { what: "read", len, limit: "TRANSACTION_BYTES_MAX", max };
            return Completion::ready(Err(error));
        }
        let durable = self.mark.durable();
        let now = |extent: &Extent, asked: &Asked<'_>| {
            let Extent { loc, skip, len } = *extent;
            if self.reads_ahead {
                self.reader.fetch_part_now(loc, asked, skip, len, durable)
            } else {
                self.reader.fetch_part(loc, asked, skip, len, durable).map(Some)
            }
        };
        if let [(offset, extent, asked)] = &parts[..]
            && *offset == range.start
            && u64::from(extent.len) == len
        {
            let (extent, asked) = (*extent, *asked);
            return match now(&extent, &asked) {
                Ok(Some(found)) => self.completion(Ok(found.value), found.wait_to.max(floor)),
                Ok(None) => {
                    let carried = self.carry(pinned);
                    self.defer(self.telling_parts(&[extent]), move || {
                        let found = carried.reader.fetch_part(extent.loc, &asked, extent.skip, extent.len, durable);
                        carried.applied(found.map(|found| (found.value, found.wait_to.max(floor))))
                    })
                }
                Err(error) => Completion::ready(Err(error)),
            };
        }
        let mut bytes = BytesMut::zeroed(len as usize);
        let (mut wait_to, start) = (floor, range.start);
        let place = move |bytes: &mut BytesMut, offset: u64, value: &Bytes| {
            let at = (offset - start) as usize;
            bytes[at..at + value.len()].copy_from_slice(value);
        };
        let mut cold = Vec::new();
        for (offset, extent, asked) in parts {
            match now(&extent, &asked) {
                Ok(Some(found)) => {
                    wait_to = wait_to.max(found.wait_to);
                    place(&mut bytes, offset, &found.value);
                }
                Ok(None) => cold.push((offset, extent, asked)),
                Err(error) => return Completion::ready(Err(error)),
            }
        }
        if cold.is_empty() {
            return self.completion(Ok(bytes.freeze()), wait_to);
        }
        let carried = self.carry(pinned);
        let first: Vec<Extent> = cold.iter().map(|(_, extent, _)| *extent).take(AHEAD).collect();
        self.defer(self.telling_parts(&first), move || {
            let all = cold.iter().enumerate().try_for_each(|(at, (offset, extent, asked))| {
                if let Some((_, next, _)) = cold.get(at + AHEAD) {
                    carried.reader.begin_part(next.loc, next.skip, next.len);
                }
                let found = carried.reader.fetch_part(extent.loc, asked, extent.skip, extent.len, durable)?;
                wait_to = wait_to.max(found.wait_to);
                place(&mut bytes, *offset, &found.value);
                Ok(())
            });
            carried.applied(all.map(|()| (bytes.freeze(), wait_to)))
        })
    }
}

/// The answer of a call that asks for several values, as far as it has come.
struct Values {
    values: Vec<Option<Bytes>>,
    wait_to: Lsn,
    bytes: Together,
}

impl Values {
    fn set(&mut self, number: usize, found: Found) -> Result<()> {
        self.bytes.add(found.value.len())?;
        self.wait_to = self.wait_to.max(found.wait_to);
        self.values[number] = Some(found.value);
        Ok(())
    }
}

/// What a call takes with it that goes on when it has returned.
struct Carried {
    reader: Arc<Reader>,
    mark: Arc<DurableMark>,
    /// No segment that it reads is used again before.
    _kept: StillPinned<Arc<Segments>>,
    /// Of a snapshot: nor is one of those that stay for it.
    _held: Option<Arc<Held>>,
}

impl Carried {
    /// A value, and the position that has to be durable before it is shown.
    fn applied<T>(self, value: Result<(T, Lsn)>) -> Applied<T> {
        match value {
            Ok((value, wait_to)) => {
                let barrier = (wait_to > self.mark.durable()).then(|| Barrier::new(&self.mark, wait_to));
                (Ok(value), barrier)
            }
            Err(error) => (Err(error), None),
        }
    }
}

/// The answer of a scan, as far as it has come.
struct Page<K> {
    what: for<'k> fn(&'k K) -> Sought<'k>,
    bytes: usize,
    wait_to: Lsn,
    entries: Vec<(K, Bytes)>,
}

impl<K> Page<K> {
    fn is_full(&self) -> bool {
        self.bytes >= SCAN_BYTES_MAX
    }

    fn push(&mut self, key: K, found: Found) {
        self.wait_to = self.wait_to.max(found.wait_to);
        let key_bytes = match (self.what)(&key) {
            Sought::Omap(key) => key.len(),
            _ => size_of::<u64>(),
        };
        self.bytes += found.value.len() + key_bytes;
        self.entries.push((key, found.value));
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
