//! Reading: the index under the object's lock, then values without it.
//!
//! lock → places → unlock → values from memory, cache or device → completion with the barrier to wait for
//!
//! Invariants:
//! 1. The places of one call are taken under one lock, so that they show one moment.
//! 2. What is missing because of a removal that is not durable waits for that removal.
//! 3. From the look at the index until the value is there the thread is pinned: no segment is used again meanwhile.

use std::ops::{Bound, Range};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::{Bytes, BytesMut};
use esker_store::limits::{SCAN_BYTES_MAX, SCAN_ENTRIES_MAX, TRANSACTION_BYTES_MAX};
use esker_store::{
    Capability, Collection, CommitCursor, CommitEntry, CommitSeq, Completion, DataRun, Error, ObjectId, ObjectStore,
    OmapScan, Result, SlotScan, Snapshot, Stat, Transaction,
};

use crate::format::Loc;
use crate::index::{Extent, Missing};
use crate::objects::ObjectState;
use crate::open::Engine;
use crate::pages::bring;
use crate::segments::Lsn;
use crate::stages::sampled;
use crate::view::{VIEW_CACHE_BYTES, VIEW_INDEX_BYTES};

/// After so many pages were read for a call none may leave memory until it is done.
const PAGES_AT_LEISURE: usize = 4;
/// At most 2 to this many pages are read at a time.
const AHEAD_BITS_MAX: usize = 6;

impl Engine {
    /// Looks at an object; `absent` if there is none. Pages that are missing are read first; the caller is pinned if it
    /// looks at any.
    fn look<R>(
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

    fn completion<T>(&self, value: Result<T>, wait_to: Lsn) -> Completion<T> {
        Completion::after(value, self.barrier(wait_to))
    }

    /// What was looked up, with the position that has to be durable before it is shown.
    fn shown<T>(&self, looked: Result<(T, Lsn)>) -> Completion<T> {
        match looked {
            Ok((value, wait_to)) => self.completion(Ok(value), wait_to),
            Err(error) => Completion::ready(Err(error)),
        }
    }

    fn value(&self, looked: Result<(Option<Loc>, Shown)>) -> Completion<Option<Bytes>> {
        let (loc, shown) = match looked {
            Ok(looked) => looked,
            Err(error) => return Completion::ready(Err(error)),
        };
        let Some(loc) = loc else { return self.completion(Ok(None), shown.absent) };
        match self.reader.fetch(loc, self.mark.durable()) {
            Ok(found) => self.completion(Ok(Some(found.value)), found.wait_to.max(shown.present)),
            Err(error) => Completion::ready(Err(error)),
        }
    }

    fn values(&self, looked: Result<(Vec<Option<Loc>>, Shown)>) -> Completion<Vec<Option<Bytes>>> {
        let (places, shown) = match looked {
            Ok(looked) => looked,
            Err(error) => return Completion::ready(Err(error)),
        };
        let durable = self.mark.durable();
        let mut wait_to = shown.present;
        let mut values = Vec::with_capacity(places.len());
        for place in places {
            let Some(loc) = place else {
                wait_to = wait_to.max(shown.absent);
                values.push(None);
                continue;
            };
            match self.reader.fetch(loc, durable) {
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
    fn entries<K>(
        &self,
        looked: Result<(Vec<(K, Loc)>, Shown)>,
        key_len: impl Fn(&K) -> usize,
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
                match self.reader.fetch(loc, durable) {
                    Ok(found) => {
                        wait_to = wait_to.max(found.wait_to);
                        found.value
                    }
                    Err(error) => return Completion::ready(Err(error)),
                }
            };
            bytes += key_len(&key) + value.len();
            entries.push((key, value));
            if bytes >= SCAN_BYTES_MAX {
                break;
            }
        }
        self.completion(Ok(entries), wait_to)
    }

    fn read_range(&self, size: u64, parts: &[(u64, Extent)], range: &Range<u64>) -> Result<(Bytes, Lsn)> {
        let end = range.end.min(size);
        let len = end.saturating_sub(range.start);
        if len > TRANSACTION_BYTES_MAX as u64 {
            let max = TRANSACTION_BYTES_MAX as u64;
            return Err(Error::TooLarge { what: "read", len, limit: "TRANSACTION_BYTES_MAX", max });
        }
        let durable = self.mark.durable();
        if let [(offset, extent)] = parts
            && *offset == range.start
            && u64::from(extent.len) == len
        {
            let found = self.reader.fetch_part(extent.loc, extent.skip, extent.len, durable)?;
            return Ok((found.value, found.wait_to));
        }
        let mut bytes = BytesMut::zeroed(len as usize);
        let mut wait_to = 0;
        for (offset, extent) in parts {
            let found = self.reader.fetch_part(extent.loc, extent.skip, extent.len, durable)?;
            wait_to = wait_to.max(found.wait_to);
            let at = (offset - range.start) as usize;
            bytes[at..at + extent.len as usize].copy_from_slice(&found.value);
        }
        Ok((bytes.freeze(), wait_to))
    }
}

/// Positions that have to be durable before something is shown to be there, or not to be there.
#[derive(Clone, Copy)]
struct Shown {
    present: Lsn,
    absent: Lsn,
}

impl Shown {
    fn of(state: &ObjectState) -> Self {
        Self { present: state.copied_lsn, absent: state.removed_lsn }
    }

    /// There is no object.
    fn none(lsn: Lsn) -> Self {
        Self { present: 0, absent: lsn }
    }
}

fn scan_limit(limit: usize) -> usize {
    limit.min(SCAN_ENTRIES_MAX)
}

impl ObjectStore for Engine {
    fn capability(&self) -> Capability {
        Capability {
            backend: "esker",
            atomic_across_objects: true,
            atomic_across_collections: true,
            native_slots: true,
            commit_order: true,
            clone: true,
            cheap_clone: true,
            persistent: true,
            compresses: true,
            transaction_bytes_max: self.transaction_bytes_max(),
        }
    }

    fn submit(&self, txn: Transaction) -> Completion<CommitSeq> {
        self.submit_transaction(&txn)
    }

    fn sync(&self) -> Completion<CommitSeq> {
        let Some(log) = &self.log else { return Completion::ready(Ok(CommitSeq(0))) };
        let end = log.end();
        self.completion(Ok(CommitSeq(log.last_seq())), end)
    }

    fn stat(&self, object: &ObjectId) -> Completion<Option<Stat>> {
        let looked = self.look(object, |lsn| (None, lsn), |state| Ok((state.stat(), state.changed_lsn)));
        self.shown(looked)
    }

    fn read(&self, object: &ObjectId, range: Range<u64>) -> Completion<Bytes> {
        let _pinned = self.segments.pin();
        if range.start > range.end {
            let why = format!("{}..{} ends before it starts", range.start, range.end);
            return Completion::ready(Err(Error::Invalid { what: "byte range", why }));
        }
        let looked = self.look(
            object,
            |lsn| (0, Vec::new(), lsn, lsn),
            |state| {
                let wanted = range.start..range.end.min(state.size).max(range.start);
                let parts: Vec<_> = state.extents.lookup(wanted).collect::<std::result::Result<_, _>>()?;
                Ok((state.size, parts, state.changed_lsn, state.copied_lsn))
            },
        );
        let (size, parts, changed, copied) = match looked {
            Ok(looked) => looked,
            Err(error) => return Completion::ready(Err(error)),
        };
        match self.read_range(size, &parts, &range) {
            // Holes and the end may come from a change that is not durable; data carries its own place.
            Ok((bytes, wait_to)) => {
                let data: u64 = parts.iter().map(|(_, extent)| u64::from(extent.len)).sum();
                let whole = data == range.end - range.start;
                self.completion(Ok(bytes), if whole { wait_to.max(copied) } else { wait_to.max(changed) })
            }
            Err(error) => Completion::ready(Err(error)),
        }
    }

    fn extents(&self, object: &ObjectId, range: Range<u64>) -> Completion<Vec<DataRun>> {
        let _pinned = self.segments.pin();
        let looked = self.look(
            object,
            |lsn| (Vec::new(), lsn),
            |state| {
                let end = range.end.min(state.size);
                if range.start >= end {
                    return Ok((Vec::new(), state.changed_lsn));
                }
                let runs = state.extents.runs(range.start..end)?;
                let runs = runs.into_iter().map(|(offset, len)| DataRun { offset, len }).collect();
                Ok((runs, state.changed_lsn))
            },
        );
        self.shown(looked)
    }

    fn xattr(&self, object: &ObjectId, name: &[u8]) -> Completion<Option<Bytes>> {
        let looked =
            self.look(object, |lsn| (None, lsn), |state| Ok((state.xattrs.get(name).cloned(), state.xattr_lsn)));
        self.shown(looked)
    }

    fn xattrs(&self, object: &ObjectId) -> Completion<Vec<(Bytes, Bytes)>> {
        let looked = self.look(
            object,
            |lsn| (Vec::new(), lsn),
            |state| {
                let all = state.xattrs.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
                Ok((all, state.xattr_lsn))
            },
        );
        self.shown(looked)
    }

    fn omap_get(&self, object: &ObjectId, key: &[u8]) -> Completion<Option<Bytes>> {
        let _pinned = self.segments.pin();
        let look = |state: &ObjectState| Ok((state.omap.get(key)?, Shown::of(state)));
        self.value(self.look(object, |lsn| (None, Shown::none(lsn)), look))
    }

    fn omap_get_many(&self, object: &ObjectId, keys: &[Bytes]) -> Completion<Vec<Option<Bytes>>> {
        let _pinned = self.segments.pin();
        self.values(self.look(
            object,
            |lsn| (vec![None; keys.len()], Shown::none(lsn)),
            |state| {
                let places = keys.iter().map(|key| state.omap.get(key)).collect::<std::result::Result<_, _>>()?;
                Ok((places, Shown::of(state)))
            },
        ))
    }

    fn omap_scan(&self, object: &ObjectId, scan: &OmapScan) -> Completion<Vec<(Bytes, Bytes)>> {
        let _pinned = self.segments.pin();
        let start = scan.start.as_deref().map_or(Bound::Unbounded, Bound::Included);
        let end = scan.end.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        let empty = matches!((&scan.start, &scan.end), (Some(start), Some(end)) if start >= end);
        let looked = self.look(
            object,
            |lsn| (Vec::new(), Shown::none(lsn)),
            |state| {
                if empty {
                    return Ok((Vec::new(), Shown::none(0)));
                }
                let found = state.omap.scan(start, end, scan.reverse).take(scan_limit(scan.limit));
                let found = found.map(|entry| entry.map(|(key, loc)| (Bytes::copy_from_slice(key), loc)));
                Ok((found.collect::<std::result::Result<_, _>>()?, Shown::of(state)))
            },
        );
        self.entries(looked, Bytes::len, scan.keys_only)
    }

    fn slot_get(&self, object: &ObjectId, index: u64) -> Completion<Option<Bytes>> {
        let _pinned = self.segments.pin();
        let look = |state: &ObjectState| Ok((state.slots.get(index)?, Shown::of(state)));
        self.value(self.look(object, |lsn| (None, Shown::none(lsn)), look))
    }

    fn slot_get_many(&self, object: &ObjectId, indexes: &[u64]) -> Completion<Vec<Option<Bytes>>> {
        let _pinned = self.segments.pin();
        self.values(self.look(
            object,
            |lsn| (vec![None; indexes.len()], Shown::none(lsn)),
            |state| {
                let places = indexes.iter().map(|index| state.slots.get(*index));
                Ok((places.collect::<std::result::Result<_, _>>()?, Shown::of(state)))
            },
        ))
    }

    fn slot_scan(&self, object: &ObjectId, scan: &SlotScan) -> Completion<Vec<(u64, Bytes)>> {
        let _pinned = self.segments.pin();
        let looked = self.look(
            object,
            |lsn| (Vec::new(), Shown::none(lsn)),
            |state| {
                let found = state.slots.scan(scan.range.clone(), scan.reverse).take(scan_limit(scan.limit));
                Ok((found.collect::<std::result::Result<_, _>>()?, Shown::of(state)))
            },
        );
        self.entries(looked, |_| 8, scan.keys_only)
    }

    fn commit_scan(
        &self,
        collection: &Collection,
        name_prefix: &[u8],
        after: CommitCursor,
        limit: usize,
    ) -> Completion<(Vec<CommitEntry>, Option<CommitCursor>)> {
        match self.walk(collection, name_prefix, after, scan_limit(limit)) {
            Ok((entries, cursor, wait_to)) => self.completion(Ok((entries, cursor)), wait_to),
            Err(error) => Completion::ready(Err(error)),
        }
    }

    fn collections(&self) -> Completion<Vec<Collection>> {
        let collections = self.objects.names.read().keys().cloned().collect();
        self.completion(Ok(collections), self.names_lsn.load(Ordering::Acquire))
    }

    fn list(&self, collection: &Collection, after: Option<&[u8]>, limit: usize) -> Completion<Vec<Bytes>> {
        let names = self.objects.names.read();
        let Some(objects) = names.get(collection) else {
            let error = Error::NoCollection { collection: collection.to_string() };
            return self.completion(Err(error), self.names_lsn.load(Ordering::Acquire));
        };
        let start = after.map_or(Bound::Unbounded, |after| Bound::Excluded(Bytes::copy_from_slice(after)));
        let found = objects.range::<Bytes, _>((start, Bound::Unbounded));
        let list = found.take(scan_limit(limit)).map(|(name, _)| name.clone()).collect();
        self.completion(Ok(list), self.names_lsn.load(Ordering::Acquire))
    }

    fn snapshot(&self) -> Result<Snapshot> {
        let (seq, view) = self.view(VIEW_CACHE_BYTES, VIEW_INDEX_BYTES)?;
        Ok(Snapshot { seq, store: Arc::new(view) })
    }
}
