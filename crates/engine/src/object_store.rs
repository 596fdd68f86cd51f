//! The waist: [`ObjectStore`] on the engine, which is looks at the index, then values ([`crate::read`]).
//!
//! Invariant: from the look at the index until the value is there the call is pinned: no segment is used again
//! meanwhile.

use std::ops::{Bound, Range};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use esker_store::limits::OBJECT_BYTES_MAX;
use esker_store::{
    Capability, Collection, CommitCursor, CommitEntry, CommitSeq, Completion, DataRun, Error, ObjectId, ObjectStore,
    OmapScan, Parts, Result, SlotScan, Snapshot, Soon, Stall, Stat, Transaction, Waits,
};

use crate::engine::Engine;
use crate::format::Loc;
use crate::objects::ObjectState;
use crate::read::{Shown, scan_limit};
use crate::reader::{Asked, Sought};
use crate::view::{VIEW_CACHE_BYTES, VIEW_INDEX_BYTES};

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
            transaction_ops_max: esker_store::limits::TRANSACTION_OPS_MAX as u64,
            object_bytes_max: OBJECT_BYTES_MAX,
            exact_extents: true,
            reverse_scans: true,
            watches: false,
            sessions: false,
            afar: false,
        }
    }

    fn submit(&self, txn: Transaction) -> Completion<CommitSeq> {
        self.submit_transaction(&txn)
    }

    fn room(&self, stall: Stall) -> Completion<()> {
        if let Stall::Reading { number } = stall {
            return self.readings.end_of(number);
        }
        match (&self.rooms, &self.log) {
            (Some(rooms), _) => rooms.room(stall),
            // Without threads waiting is doing it.
            (None, Some(log)) => Completion::ready(log.wait_for_room()),
            (None, None) => Completion::ready(Ok(())),
        }
    }

    fn stall(&self, waits: Waits) -> Option<Stall> {
        self.rooms.as_ref()?.stall(waits)
    }

    fn sync(&self) -> Completion<CommitSeq> {
        let Some(log) = &self.log else { return Completion::ready(Ok(CommitSeq(0))) };
        let end = log.end();
        self.completion(Ok(CommitSeq(log.last_seq())), end)
    }

    fn stat(&self, object: &ObjectId) -> Completion<Option<Stat>> {
        let (stat, wait_to) = self.look_at(object, |lsn| (None, lsn), |_, state| (state.stat(), state.changed_lsn));
        self.completion(Ok(stat), wait_to)
    }

    fn read(&self, object: &ObjectId, range: Range<u64>) -> Completion<Bytes> {
        let pinned = self.pin_with_room();
        if range.start > range.end {
            let why = format!("{}..{} ends before it starts", range.start, range.end);
            return Completion::ready(Err(Error::Invalid { what: "byte range", why }));
        }
        let looked = self.look(
            object,
            |lsn| (0, Vec::new(), lsn, lsn),
            |state| {
                let wanted = range.start..range.end.min(state.size).max(range.start);
                let parts = state.extents.lookup(wanted).map(|part| {
                    let (at, extent) = part?;
                    let what = Sought::Data(state.written_at(at, &extent));
                    Ok((at, extent, Asked { object: state.owner(state.number), what }))
                });
                let parts: Vec<_> = parts.collect::<std::result::Result<_, _>>()?;
                Ok((state.size, parts, state.changed_lsn, state.copied_lsn))
            },
        );
        let Some(looked) = looked else {
            drop(pinned);
            let object = object.clone();
            return self.later(move |twin| twin.read(&object, range));
        };
        let (size, parts, changed, copied) = match looked {
            Ok(looked) => looked,
            Err(error) => return Completion::ready(Err(error)),
        };
        // Holes and the end may come from a change that is not durable; data carries its own place.
        let data: u64 = parts.iter().map(|(_, extent, _)| u64::from(extent.len)).sum();
        let floor = if data == range.end - range.start { copied } else { changed };
        self.read_range(pinned, size, parts, &range, floor)
    }

    fn extents(&self, object: &ObjectId, range: Range<u64>) -> Completion<Vec<DataRun>> {
        let pinned = self.pin_with_room();
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
        let Some(looked) = looked else {
            drop(pinned);
            let object = object.clone();
            return self.later(move |twin| twin.extents(&object, range));
        };
        match looked {
            Ok((runs, wait_to)) => self.completion(Ok(runs), wait_to),
            Err(error) => Completion::ready(Err(error)),
        }
    }

    fn xattr(&self, object: &ObjectId, name: &[u8]) -> Completion<Option<Bytes>> {
        let look = |_: &_, state: &ObjectState| (state.xattrs.get(name).cloned(), state.xattr_lsn);
        let (value, wait_to) = self.look_at(object, |lsn| (None, lsn), look);
        self.completion(Ok(value), wait_to)
    }

    fn xattrs(&self, object: &ObjectId) -> Completion<Vec<(Bytes, Bytes)>> {
        let (all, wait_to) = self.look_at(
            object,
            |lsn| (Vec::new(), lsn),
            |_, state| {
                let all = state.xattrs.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
                (all, state.xattr_lsn)
            },
        );
        self.completion(Ok(all), wait_to)
    }

    fn omap_get(&self, object: &ObjectId, key: &[u8]) -> Completion<Option<Bytes>> {
        let pinned = self.pin_with_room();
        let look = |state: &ObjectState| Ok((state.omap.get(key)?, Shown::of(state)));
        let looked = self.look(object, |lsn| (None, Shown::none(lsn)), look);
        let Some(looked) = looked else {
            drop(pinned);
            let (object, key) = (object.clone(), Bytes::copy_from_slice(key));
            return self.later(move |twin| twin.omap_get(&object, &key));
        };
        self.value(pinned, looked, Sought::Omap(key))
    }

    fn omap_get_many(&self, object: &ObjectId, keys: &[Bytes]) -> Completion<Vec<Option<Bytes>>> {
        let pinned = self.pin_with_room();
        let looked = self.look(
            object,
            |lsn| (vec![None; keys.len()], Shown::none(lsn)),
            |state| {
                let places = state.omap.get_many(keys)?;
                // They are read once the lock is given back.
                places.iter().flatten().for_each(|loc| self.reader.prefetch(*loc));
                Ok((places, Shown::of(state)))
            },
        );
        let Some(looked) = looked else {
            drop(pinned);
            let (object, keys) = (object.clone(), keys.to_vec());
            return self.later(move |twin| twin.omap_get_many(&object, &keys));
        };
        self.values(pinned, looked, |number| Sought::Omap(&keys[number]))
    }

    fn omap_has_many(&self, object: &ObjectId, keys: &[Bytes]) -> Completion<Vec<bool>> {
        let pinned = self.pin_with_room();
        let looked = self.look(
            object,
            |lsn| (vec![None; keys.len()], Shown::none(lsn), 0),
            |state| Ok((state.omap.get_many(keys)?, Shown::of(state), state.changed_lsn)),
        );
        let Some(looked) = looked else {
            drop(pinned);
            let (object, keys) = (object.clone(), keys.to_vec());
            return self.later(move |twin| twin.omap_has_many(&object, &keys));
        };
        let (places, shown, changed) = match looked {
            Ok(looked) => looked,
            Err(error) => return Completion::ready(Err(error)),
        };
        // Whether its writer waited for a sync stands in the record, which is not read: then at most for one of the
        // object's last change that did.
        let since = |loc: Loc| changed.min(self.segments.lsn_of(loc.offset()) + 1).max(shown.present);
        let wait_to = places.iter().map(|place| place.map_or(shown.absent, since)).max().unwrap_or(0);
        self.completion(Ok(places.iter().map(Option::is_some).collect()), wait_to)
    }

    fn omap_scan(&self, object: &ObjectId, scan: &OmapScan) -> Completion<Vec<(Bytes, Bytes)>> {
        let pinned = self.pin_with_room();
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
        let Some(looked) = looked else {
            drop(pinned);
            let (object, scan) = (object.clone(), scan.clone());
            return self.later(move |twin| twin.omap_scan(&object, &scan));
        };
        self.entries(pinned, looked, |key| Sought::Omap(key), scan.keys_only)
    }

    fn slot_get(&self, object: &ObjectId, index: u64) -> Completion<Option<Bytes>> {
        let pinned = self.pin_with_room();
        let look = |state: &ObjectState| Ok((state.slots.get(index)?, Shown::of(state)));
        let looked = self.look(object, |lsn| (None, Shown::none(lsn)), look);
        let Some(looked) = looked else {
            drop(pinned);
            let object = object.clone();
            return self.later(move |twin| twin.slot_get(&object, index));
        };
        self.value(pinned, looked, Sought::Slot(index))
    }

    fn slot_get_many(&self, object: &ObjectId, indexes: &[u64]) -> Completion<Vec<Option<Bytes>>> {
        let pinned = self.pin_with_room();
        let looked = self.look(
            object,
            |lsn| (vec![None; indexes.len()], Shown::none(lsn)),
            |state| {
                let places = indexes.iter().map(|index| state.slots.get(*index));
                let places = places.collect::<std::result::Result<Vec<_>, _>>()?;
                places.iter().flatten().for_each(|loc| self.reader.prefetch(*loc));
                Ok((places, Shown::of(state)))
            },
        );
        let Some(looked) = looked else {
            drop(pinned);
            let (object, indexes) = (object.clone(), indexes.to_vec());
            return self.later(move |twin| twin.slot_get_many(&object, &indexes));
        };
        self.values(pinned, looked, |number| Sought::Slot(indexes[number]))
    }

    fn will_get(&self, object: &ObjectId, soon: Soon<'_>) {
        self.begin_soon(object, soon);
    }

    fn bring(&self, parts: &mut dyn Parts) -> bool {
        self.bring_parts(parts)
    }

    fn slot_scan(&self, object: &ObjectId, scan: &SlotScan) -> Completion<Vec<(u64, Bytes)>> {
        let pinned = self.pin_with_room();
        let looked = self.look(
            object,
            |lsn| (Vec::new(), Shown::none(lsn)),
            |state| {
                let found = state.slots.scan(scan.range.clone(), scan.reverse).take(scan_limit(scan.limit));
                Ok((found.collect::<std::result::Result<_, _>>()?, Shown::of(state)))
            },
        );
        let Some(looked) = looked else {
            drop(pinned);
            let (object, scan) = (object.clone(), scan.clone());
            return self.later(move |twin| twin.slot_scan(&object, &scan));
        };
        self.entries(pinned, looked, |slot| Sought::Slot(*slot), scan.keys_only)
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
        let share = 1 + self.keeper()?.holds().0;
        let (seq, view) = self.view(VIEW_CACHE_BYTES / share, VIEW_INDEX_BYTES / share)?;
        Ok(Snapshot { seq, store: Arc::new(view) })
    }
}
