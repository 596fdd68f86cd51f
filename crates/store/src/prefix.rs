//! Going over what begins alike: keys of an omap, names of objects, page by page, never more at once than one answer.
//!
//! prefix → [`OmapScan`] or [`names`] → pages → entries, until the store has none left
//!
//! Invariants:
//! 1. Each page begins right above the last entry of the one before, so that what was there throughout is met once, and
//!    what is removed behind the walk does not stop it.
//! 2. A page that fails is the last.

use std::ops::Range;

use bytes::Bytes;

use crate::{Collection, ObjectId, ObjectStore, OmapScan, Result, SlotScan, limits};

/// Names of objects that are asked for at once.
const PAGE_NAMES: usize = 1_024;

/// The least key above `key`.
pub fn just_above(key: &[u8]) -> Bytes {
    [key, &[0]].concat().into()
}

/// The least key above all that begin with `prefix`; `None` if there is none.
pub fn prefix_end(prefix: &[u8]) -> Option<Bytes> {
    let last = prefix.iter().rposition(|byte| *byte != u8::MAX)?;
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    Some(end.into())
}

impl OmapScan {
    /// All entries whose keys begin with `prefix`, in order, as many at once as a store gives.
    pub fn of(prefix: impl AsRef<[u8]>) -> Self {
        let prefix = prefix.as_ref();
        let start = (!prefix.is_empty()).then(|| Bytes::copy_from_slice(prefix));
        Self { start, end: prefix_end(prefix), limit: limits::SCAN_ENTRIES_MAX, ..Self::default() }
    }

    /// The keys alone.
    pub fn keys(self) -> Self {
        Self { keys_only: true, ..self }
    }

    /// At most so many at once.
    pub fn at_once(self, limit: usize) -> Self {
        Self { limit, ..self }
    }
}

/// Pages of something ordered. `next` is given the last entry of the page before, and returns none at the end.
pub fn pages<T: Clone>(mut next: impl FnMut(Option<&T>) -> Result<Vec<T>>) -> impl Iterator<Item = Result<Vec<T>>> {
    let (mut last, mut ended) = (None, false);
    std::iter::from_fn(move || {
        if ended {
            return None;
        }
        let page = next(last.as_ref());
        last = page.as_ref().ok().and_then(|page| page.last().cloned());
        ended = last.is_none();
        page.map(|page| (!page.is_empty()).then_some(page)).transpose()
    })
}

/// What stands on pages, one after the other.
pub fn each<T>(pages: impl Iterator<Item = Result<Vec<T>>>) -> impl Iterator<Item = Result<T>> {
    pages.flat_map(|page| {
        let (page, failed) = page.map_or_else(|error| (Vec::new(), Some(Err(error))), |page| (page, None));
        page.into_iter().map(Ok).chain(failed)
    })
}

/// The last entry of an omap that `scan` asks for, whichever way it goes. Where scans do not go backwards, all that
/// stand before it are passed.
///
/// # Errors
/// The store's.
pub fn last_omap(store: &dyn ObjectStore, object: &ObjectId, scan: OmapScan) -> Result<Option<(Bytes, Bytes)>> {
    if store.capability().reverse_scans {
        let found = store.omap_scan(object, &OmapScan { reverse: true, limit: 1, ..scan }).wait()?;
        return Ok(found.into_iter().next());
    }
    let forward = OmapScan { reverse: false, limit: limits::SCAN_ENTRIES_MAX, ..scan };
    omap(store, object, forward).last().transpose()
}

/// The last filled slot of a range, in the same way.
///
/// # Errors
/// The store's.
pub fn last_slot(store: &dyn ObjectStore, object: &ObjectId, mut range: Range<u64>) -> Result<Option<u64>> {
    if store.capability().reverse_scans {
        let scan = SlotScan { range, reverse: true, limit: 1, keys_only: true };
        return Ok(store.slot_scan(object, &scan).wait()?.first().map(|(index, _)| *index));
    }
    let mut last = None;
    loop {
        let scan = SlotScan { range: range.clone(), reverse: false, limit: limits::SCAN_ENTRIES_MAX, keys_only: true };
        let Some((index, _)) = store.slot_scan(object, &scan).wait()?.last().cloned() else { return Ok(last) };
        last = Some(index);
        let Some(next) = index.checked_add(1) else { return Ok(last) };
        range.start = next;
    }
}

/// The omap entries that `scan` asks for, page by page: its limit is that of one page.
pub fn omap_pages<'a>(
    store: &'a dyn ObjectStore,
    object: &ObjectId,
    mut scan: OmapScan,
) -> impl Iterator<Item = Result<Vec<(Bytes, Bytes)>>> + use<'a> {
    let object = object.clone();
    pages(move |last: Option<&(Bytes, Bytes)>| {
        match last {
            Some((last, _)) if scan.reverse => scan.end = Some(last.clone()),
            Some((last, _)) => scan.start = Some(just_above(last)),
            None => {}
        }
        store.omap_scan(&object, &scan).wait()
    })
}

/// The omap entries that `scan` asks for, one after the other.
pub fn omap<'a>(
    store: &'a dyn ObjectStore,
    object: &ObjectId,
    scan: OmapScan,
) -> impl Iterator<Item = Result<(Bytes, Bytes)>> + use<'a> {
    each(omap_pages(store, object, scan))
}

/// The names of the objects of a collection that begin with `prefix`, in order, above `after`.
pub fn names<'a>(
    store: &'a dyn ObjectStore,
    collection: &Collection,
    prefix: &[u8],
    after: Option<&[u8]>,
) -> impl Iterator<Item = Result<Bytes>> + use<'a> {
    let (collection, prefix) = (collection.clone(), Bytes::copy_from_slice(prefix));
    // Cut short it sorts before all that begin with it, an object of that very name among them.
    let first = after.or(prefix.split_last().map(|(_, cut)| cut)).filter(|first| !first.is_empty());
    let first = first.map(Bytes::copy_from_slice);
    let (ours, begun) = (prefix.clone(), prefix);
    let list = move |last: Option<&Bytes>| {
        let after = last.or(first.as_ref()).map(|name| &name[..]);
        store.list(&collection, after, PAGE_NAMES).wait()
    };
    each(pages(list))
        .skip_while(move |name| name.as_ref().is_ok_and(|name| *name < begun))
        .take_while(move |name| name.as_ref().map_or(true, |name| name.starts_with(&ours)))
}

/// As [`names`]: the objects.
pub fn objects<'a>(
    store: &'a dyn ObjectStore,
    collection: &Collection,
    prefix: &[u8],
    after: Option<&[u8]>,
) -> impl Iterator<Item = Result<ObjectId>> + use<'a> {
    let own = collection.clone();
    names(store, collection, prefix, after).map(move |name| Ok(ObjectId::new(own.clone(), name?)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;

    #[test]
    fn pages_follow_each_other_until_one_is_empty_or_fails() {
        let upto = |end: u32, fails: u32| {
            let next = move |last: Option<&u32>| match last.map_or(0, |last| last + 1) {
                from if from >= fails => Err(Error::Closed),
                from => Ok((from..end.min(from + 3)).collect()),
            };
            each(pages(next)).map(|found| found.ok()).collect::<Vec<_>>()
        };
        assert_eq!(upto(7, 100), (0..7).map(Some).collect::<Vec<_>>());
        assert_eq!(upto(0, 100), []);
        assert_eq!(upto(7, 3), [Some(0), Some(1), Some(2), None]);
    }

    #[test]
    fn what_follows_a_prefix_is_above_all_that_begin_with_it() {
        let check = |prefix: &[u8], end: Option<&[u8]>| assert_eq!(prefix_end(prefix).as_deref(), end);
        check(b"a", Some(b"b"));
        check(b"a\xff", Some(b"b"));
        check(b"\xff\xff", None);
        check(b"", None);
        assert_eq!(OmapScan::of(b"n").start.as_deref(), Some(&b"n"[..]));
        assert_eq!(OmapScan::of(b"").start, None);
        assert!(just_above(b"n") > b"n"[..] && just_above(b"n") < b"n\x01"[..]);
    }
}
