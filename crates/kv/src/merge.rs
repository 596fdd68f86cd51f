//! Merging: what a scan finds in several objects, in the order of the keys.
//!
//! objects → a few keys of each, all at once → keys in order, up to the end of the shortest part → their values,
//! for as many as one answer may hold
//!
//! Invariants:
//! 1. What is asked of all objects together is bounded, whatever the values are: keys by [`SCAN_BYTES_MAX`] (or one of
//!    each object, if that is more); values by [`SCAN_BYTES_MAX`] if they are about as large as those before, and by
//!    [`TURN_VALUES_MAX`] in any case: one GiB, if all of them are suddenly the largest there may be.
//! 2. Keys that are left for the next page are behind all that this one shows.

use bytes::Bytes;
use esker_store::limits::SCAN_BYTES_MAX;
use esker_store::prefix::just_above;
use esker_store::{Barrier, Completion, Error, ObjectId, OmapScan, Result};

use crate::{KEY_BYTES_MAX, Key, Namespace, OwnedKey};

/// Keys of one object that are asked for, at least.
const PART_KEYS: usize = 32;
/// Values that a walk asks for first, of whose length nothing is known: 64 MiB at most.
const FIRST_VALUES: usize = 4;
/// Values that a walk asks for at once.
const TURN_VALUES_MAX: usize = 64;

/// Reads of a walk, which may have to wait for no value that is not in memory.
#[derive(Default)]
pub(crate) struct Reads {
    /// They wait for none.
    pub hurry: bool,
    /// What they would have waited for.
    pub awaited: Option<Completion<()>>,
}

impl Reads {
    /// What was read, if it is here or may be waited for.
    pub(crate) fn here<T: Send + 'static>(&mut self, read: Completion<T>, barrier: &mut Option<Barrier>) -> Result<T> {
        if self.hurry && !read.is_here() {
            self.awaited = Some(read.map(drop));
            return Err(Error::Closed);
        }
        read.applied(barrier)
    }
}

/// A walk over several objects.
#[derive(Default)]
pub(crate) struct Merge {
    /// Bytes of a value, as of late; `None` before one was read.
    mean: Option<usize>,
}

/// A page of a merge.
pub(crate) struct Merged {
    /// What was found, without values where keys alone were asked for.
    pub entries: Vec<(OwnedKey, Bytes)>,
    /// The last key that the page has dealt with, though it may be gone meanwhile.
    pub passed: OwnedKey,
}

impl Merge {
    /// The next page of what a scan of these objects finds; `None` at the end.
    pub(crate) fn page(
        &mut self,
        namespace: &Namespace,
        objects: &[ObjectId],
        scan: &OmapScan,
        reads: &mut Reads,
        barrier: &mut Option<Barrier>,
    ) -> Result<Option<Merged>> {
        let mut scan = scan.clone();
        if let Some(mean) = self.mean.filter(|_| !scan.keys_only) {
            scan.limit = scan.limit.min((SCAN_BYTES_MAX / mean.max(1)).max(1));
        }
        let keys = keys(namespace, objects, &scan, reads, barrier)?;
        let Some(last) = keys.last() else { return Ok(None) };
        if scan.keys_only {
            let passed = last.clone();
            let entries = keys.into_iter().map(|key| (key, Bytes::new())).collect();
            return Ok(Some(Merged { entries, passed }));
        }
        self.values(namespace, &keys, reads, barrier).map(Some)
    }

    /// The values of the first of these keys: of as many as one answer may hold.
    fn values(
        &mut self,
        namespace: &Namespace,
        keys: &[OwnedKey],
        reads: &mut Reads,
        barrier: &mut Option<Barrier>,
    ) -> Result<Merged> {
        let (mut entries, mut bytes, mut done) = (Vec::new(), 0, 0);
        // Once values were larger by far than those before, until the page ends.
        let mut careful = false;
        while done < keys.len() && (done == 0 || bytes < SCAN_BYTES_MAX) {
            let fit = match self.mean {
                Some(mean) if !careful => {
                    (SCAN_BYTES_MAX.saturating_sub(bytes) / mean.max(1)).clamp(1, TURN_VALUES_MAX)
                }
                _ => FIRST_VALUES,
            };
            let turn = &keys[done..keys.len().min(done + fit)];
            let asked: Vec<Key<'_>> = turn.iter().map(OwnedKey::as_key).collect();
            let read = namespace.placement().get_many(&namespace.shared().store, namespace.kind(), &asked, fit);
            let stored = match reads.here(read, barrier) {
                Err(Error::TooLarge { .. }) if fit > FIRST_VALUES => {
                    careful = true;
                    continue;
                }
                stored => stored?,
            };
            let len: usize = stored.iter().flatten().map(Bytes::len).sum();
            self.mean = len.checked_div(stored.iter().flatten().count()).or(self.mean);
            (bytes, done) = (bytes + len, done + turn.len());
            // What is not there any more was removed since the keys were read.
            let there = turn.iter().zip(stored).filter_map(|(key, stored)| Some((key.clone(), stored?)));
            entries.extend(there);
        }
        Ok(Merged { entries, passed: keys[done - 1].clone() })
    }
}

/// The first keys of all objects, in order: of each a part is asked for, and what is behind the end of the shortest
/// part is left for the next call.
fn keys(
    namespace: &Namespace,
    objects: &[ObjectId],
    scan: &OmapScan,
    reads: &mut Reads,
    barrier: &mut Option<Barrier>,
) -> Result<Vec<OwnedKey>> {
    let share = 2 * scan.limit.div_ceil(objects.len().max(1));
    let fit = SCAN_BYTES_MAX / objects.len().max(1) / KEY_BYTES_MAX;
    let (all_max, limit) = (scan.limit, scan.limit.min(share.max(PART_KEYS)).min(fit.max(1)));
    let scan = &OmapScan { limit, keys_only: true, ..scan.clone() };
    let parts = scanned(namespace, objects.iter().map(|object| (object, scan.clone())), reads, barrier)?;
    // An object may answer with less than it holds. Those that did not fill their part are asked for one more.
    let short: Vec<usize> = (0..parts.len()).filter(|at| (1..limit).contains(&parts[*at].len())).collect();
    let behind = short.iter().map(|at| {
        let mut rest = OmapScan { limit: 1, ..scan.clone() };
        match parts[*at].last() {
            Some(last) if scan.reverse => rest.end = Some(last.clone()),
            Some(last) => rest.start = Some(just_above(last)),
            None => {}
        }
        (&objects[*at], rest)
    });
    let more = scanned(namespace, behind, reads, barrier)?;
    let mut is_whole: Vec<bool> = parts.iter().map(Vec::is_empty).collect();
    for (at, more) in short.into_iter().zip(more) {
        is_whole[at] = more.is_empty();
    }
    let ends = parts.iter().zip(is_whole).filter(|(_, is_whole)| !is_whole).filter_map(|(part, _)| part.last());
    let before = |one: &Bytes, other: &Bytes| if scan.reverse { other.cmp(one) } else { one.cmp(other) };
    let end = ends.min_by(|one, other| before(one, other)).cloned();
    let mut all: Vec<Bytes> = parts.into_iter().flatten().collect();
    all.retain(|key| end.as_ref().is_none_or(|end| before(key, end).is_le()));
    all.sort_unstable_by(before);
    all.truncate(all_max);
    Ok(all.into_iter().map(|key| namespace.placement().byte_key(key)).collect())
}

/// The keys that each of these scans finds; all are begun before one is waited for.
fn scanned<'o>(
    namespace: &Namespace,
    scans: impl Iterator<Item = (&'o ObjectId, OmapScan)>,
    reads: &mut Reads,
    barrier: &mut Option<Barrier>,
) -> Result<Vec<Vec<Bytes>>> {
    let store = namespace.store();
    let bare = |found: Vec<(Bytes, Bytes)>| found.into_iter().map(|(key, _)| key).collect();
    let begun = scans.map(|(object, scan)| store.omap_scan(object, &scan).map(bare)).collect();
    reads.here(Completion::all(begun), barrier)
}
