//! Reads of one object: of one operation each where that is enough, which is begun and not waited for.
//!
//! Slots stand the other way round, so that the last is found first; a scan from low to high looks at windows of them
//! that grow, each from its end, and halves the first that holds something.
//!
//! Invariant: what a call answers with is of one moment. What takes several operations is begun anew where the object
//! changed between them; where it goes on changing ([`ANEW_MAX`]), counts, extents of more than [`CHUNK`], xattrs where
//! more than [`PAGE`] have long names, and slots that were found empty on the way, may be of several moments.

use std::collections::VecDeque;
use std::ffi::{CStr, CString};
use std::ops::Range;

use bytes::Bytes;
use esker_store::limits::{SCAN_BYTES_MAX, SCAN_ENTRIES_MAX, TRANSACTION_BYTES_MAX, Together};
use esker_store::{Completion, DataRun, Error, ObjectId, OmapScan, Result, SlotScan, Stat, promised};

use crate::encode::{self, TOMB, Xattr, kind};
use crate::link::{Link, PAGE, found_in};
use crate::native::{Compare, Found, Read};

/// What is read at once where an object is looked through, in bytes.
const CHUNK: usize = 8 << 20;
/// Bytes that are data or a hole together.
const BLOCK: u64 = 4 << 10;
/// A range of slots that is looked at is so many times as wide as the one before it, which was empty.
const WIDER: u64 = 64;

fn corrupt(what: String) -> Error {
    Error::Corrupt { offset: 0, what }
}

fn value_of(encoded: &[u8]) -> Result<Bytes> {
    encode::value_of(encoded)
        .ok_or_else(|| corrupt(format!("value on Ceph: {}", encoded[..encoded.len().min(16)].escape_ascii())))
}

/// Begins a read; `take` makes the answer of what it has found, or of a missing object. A tomb has nothing to be found
/// in it: who asks whether the object is there has to look for one.
fn begin<T: Send + 'static>(
    link: &Link,
    id: &ObjectId,
    parts: impl FnOnce(&mut Read),
    take: impl FnOnce(Option<Found>) -> Result<T> + Send + 'static,
) -> Completion<T> {
    let object = encode::object(id);
    let mut read = Read::new();
    parts(&mut read);
    let (promise, completion) = promised("a read from Ceph");
    let name = object.clone();
    link.of(id).pool.read(&object, read, move |found| {
        promise.fulfil((found_in(found, &name).and_then(take), None));
    });
    completion
}

/// Bytes of a range.
pub(crate) fn bytes(link: &Link, id: &ObjectId, range: Range<u64>, object_bytes_max: u64) -> Completion<Bytes> {
    if range.start > range.end {
        let why = format!("{}..{} ends before it starts", range.start, range.end);
        return Completion::ready(Err(Error::Invalid { what: "byte range", why }));
    }
    let mut end = range.end.min(object_bytes_max);
    if end.saturating_sub(range.start) > TRANSACTION_BYTES_MAX as u64 {
        let size = match link.of(id).look(&encode::object(id), |read| read.stat()) {
            Ok(found) => found.map_or(0, |found| found.size),
            Err(error) => return Completion::ready(Err(error)),
        };
        end = end.min(size);
        let (len, max) = (end.saturating_sub(range.start), TRANSACTION_BYTES_MAX as u64);
        if len > max {
            let error = Error::TooLarge { what: "read", len, limit: "TRANSACTION_BYTES_MAX", max };
            return Completion::ready(Err(error));
        }
    }
    if range.start >= end {
        return Completion::ready(Ok(Bytes::new()));
    }
    let len = (end - range.start) as usize;
    begin(
        link,
        id,
        |read| read.data(range.start, len),
        |found| Ok(found.map_or_else(Bytes::new, |found| found.data.into())),
    )
}

/// Looks at an object in several operations, all of one version unless others go on changing it. `look` does them, and
/// asks of each version that it meets whether to go on: else it is called anew, with nothing.
fn of_one_moment<T>(mut look: impl FnMut(&mut dyn FnMut(u64) -> bool) -> Result<Option<T>>) -> Result<T> {
    let mut anew = 0;
    loop {
        let mut first = None;
        let mut goes_on = |version| {
            let is_same = *first.get_or_insert(version) == version;
            is_same || anew >= ANEW_MAX
        };
        if let Some(found) = look(&mut goes_on)? {
            return Ok(found);
        }
        anew += 1;
    }
}

/// Blocks of a range that are not all zeros, joined.
pub(crate) fn extents(link: &Link, id: &ObjectId, range: Range<u64>, object_bytes_max: u64) -> Result<Vec<DataRun>> {
    let (link, object) = (link.of(id), encode::object(id));
    of_one_moment(|goes_on| {
        let mut runs: Vec<DataRun> = Vec::new();
        let mut at = range.start / BLOCK * BLOCK;
        // An OSD reads nothing behind the largest object.
        while at < range.end.min(object_bytes_max) {
            let len = CHUNK.min((object_bytes_max - at) as usize);
            let Some(found) = link.look(&object, |read| read.data(at, len))? else { return Ok(Some(Vec::new())) };
            if !goes_on(found.version) {
                return Ok(None);
            }
            add_runs(&mut runs, at, &found.data, &range);
            if found.data.len() < CHUNK {
                break;
            }
            at += CHUNK as u64;
        }
        Ok(Some(runs))
    })
}

/// Adds the blocks of data that stands at an offset, as far as they are in the range.
fn add_runs(runs: &mut Vec<DataRun>, at: u64, data: &[u8], range: &Range<u64>) {
    for (number, block) in data.chunks(BLOCK as usize).enumerate() {
        if block.iter().all(|byte| *byte == 0) {
            continue;
        }
        let first = at + number as u64 * BLOCK;
        let offset = first.max(range.start);
        let end = (first + block.len() as u64).min(range.end);
        if offset >= end {
            continue;
        }
        match runs.last_mut() {
            Some(last) if last.offset + last.len == offset => last.len += end - offset,
            _ => runs.push(DataRun { offset, len: end - offset }),
        }
    }
}

/// How often what takes several operations is begun anew because the object changed between them.
const ANEW_MAX: u32 = 8;

/// What an object is: all its keys are counted, of one moment unless others go on changing it.
pub(crate) fn stat(link: &Link, id: &ObjectId) -> Result<Option<Stat>> {
    let (link, object) = (link.of(id), encode::object(id));
    let mut anew = 0;
    'anew: loop {
        let (mut after, mut version) = (CString::default(), None);
        let (mut omap_keys, mut slots, mut long) = (0, 0, 0);
        loop {
            let found = link.look(&object, |read| {
                read.stat();
                read.xattrs();
                if link.has_keys {
                    read.omap_names(&after, PAGE);
                }
            })?;
            let Some(found) = found else { return Ok(None) };
            if *version.get_or_insert(found.version) != found.version && anew < ANEW_MAX {
                anew += 1;
                continue 'anew;
            }
            let count = |kind: u8| found.omap.iter().filter(|(key, _)| key.first() == Some(&kind)).count() as u64;
            omap_keys += count(kind::OMAP);
            slots += count(kind::SLOT);
            long += count(kind::XATTR);
            match next_page(&found) {
                Some(next) => after = next,
                None => {
                    let (size, xattrs) = (found.size, own_xattrs(&found) as u64 + long);
                    return Ok(Some(Stat { size, xattrs, omap_keys, slots }));
                }
            }
        }
    }
}

/// Behind what was found, if there is more.
fn next_page(found: &Found) -> Option<CString> {
    let (last, _) = found.omap.last().filter(|_| found.more)?;
    CString::new(last.clone()).ok()
}

/// The size of an object: one operation, however many keys it has.
pub(crate) fn size(link: &Link, id: &ObjectId) -> Completion<Option<u64>> {
    let parts = |read: &mut Read| {
        read.compare_xattr(TOMB, Compare::Equal, b"");
        read.stat();
    };
    begin(link, id, parts, |found| Ok(found.map(|found| found.size)))
}

fn own_xattrs(found: &Found) -> usize {
    found.xattrs.iter().filter(|(name, _)| encode::xattr_name(name).is_some()).count()
}

/// The value of an xattr.
pub(crate) fn xattr(link: &Link, id: &ObjectId, name: &[u8]) -> Completion<Option<Bytes>> {
    match encode::xattr(name) {
        Xattr::Own(own) => begin(link, id, Read::xattrs, move |found| {
            let all = found.into_iter().flat_map(|found| found.xattrs);
            all.into_iter().find(|(name, _)| name == own.as_bytes()).map(|(_, value)| value_of(&value)).transpose()
        }),
        Xattr::Omap(key) => value(link, id, &key),
    }
}

/// All xattrs, by name.
pub(crate) fn xattrs(link: &Link, id: &ObjectId) -> Result<Vec<(Bytes, Bytes)>> {
    let (link, object) = (link.of(id), encode::object(id));
    of_one_moment(|goes_on| {
        let mut after = encode::first_of(kind::XATTR);
        let mut all = Vec::new();
        loop {
            let found = link.look(&object, |read| {
                read.xattrs();
                if link.has_keys {
                    read.omap(&after, PAGE);
                }
            })?;
            let Some(found) = found else { return Ok(Some(Vec::new())) };
            if !goes_on(found.version) {
                return Ok(None);
            }
            for (key, value) in &found.omap {
                all.push((encode::key_of(key), value_of(value)?));
            }
            if let Some(next) = next_page(&found) {
                after = next;
                continue;
            }
            for (name, value) in &found.xattrs {
                if let Some(name) = encode::xattr_name(name) {
                    all.push((name, value_of(value)?));
                }
            }
            all.sort_unstable();
            return Ok(Some(all));
        }
    })
}

/// The value under an encoded omap key.
pub(crate) fn value(link: &Link, id: &ObjectId, key: &[u8]) -> Completion<Option<Bytes>> {
    if !link.of(id).has_keys {
        return Completion::ready(Ok(None));
    }
    begin(
        link,
        id,
        |read| read.omap_keys(&[key]),
        |found| {
            let entry = found.and_then(|found| found.omap.into_iter().next());
            entry.map(|(_, value)| value_of(&value)).transpose()
        },
    )
}

/// The values under encoded omap keys, in their order.
pub(crate) fn values(link: &Link, id: &ObjectId, keys: Vec<Vec<u8>>) -> Completion<Vec<Option<Bytes>>> {
    if keys.is_empty() || !link.of(id).has_keys {
        return Completion::ready(Ok(vec![None; keys.len()]));
    }
    let asked: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
    let parts = |read: &mut Read| read.omap_keys(&asked);
    begin(link, id, parts, {
        let keys = keys.clone();
        move |found| {
            let found: std::collections::HashMap<Vec<u8>, Vec<u8>> =
                found.map(|found| found.omap.into_iter().collect()).unwrap_or_default();
            Together::gather(keys.iter().map(|key| found.get(key).map(|value| value_of(value)).transpose()))
        }
    })
}

fn part(read: &mut Read, after: &CStr, limit: u64, keys_only: bool) {
    if keys_only { read.omap_names(after, limit) } else { read.omap(after, limit) }
}

/// Entries up to `limit` and up to what a scan may answer with.
fn cut<K>(
    entries: impl Iterator<Item = Result<(K, Bytes)>>,
    limit: usize,
    key_len: impl Fn(&K) -> usize,
) -> Result<Vec<(K, Bytes)>> {
    let (mut cut, mut bytes) = (Vec::new(), 0);
    for entry in entries {
        if cut.len() == limit || bytes >= SCAN_BYTES_MAX {
            break;
        }
        let (key, value) = entry?;
        bytes += key_len(&key) + value.len();
        cut.push((key, value));
    }
    Ok(cut)
}

fn decoded((key, value): &(Vec<u8>, Vec<u8>), keys_only: bool) -> Result<(Bytes, Bytes)> {
    Ok((encode::key_of(key), if keys_only { Bytes::new() } else { value_of(value)? }))
}

/// Omap entries in key order.
pub(crate) fn omap(link: &Link, id: &ObjectId, scan: &OmapScan) -> Completion<Vec<(Bytes, Bytes)>> {
    let limit = scan.limit.min(SCAN_ENTRIES_MAX);
    let after = scan.start.as_ref().map_or_else(|| encode::first_of(kind::OMAP), |start| encode::before_omap(start));
    let end = scan.end.as_ref().map_or_else(|| encode::end_of(kind::OMAP), |end| encode::before_omap(end).into_bytes());
    if limit == 0 || after.as_bytes() >= end.as_slice() || !link.of(id).has_keys {
        return Completion::ready(Ok(Vec::new()));
    }
    if scan.reverse {
        return Completion::ready(omap_reversed(link, id, after, &end, limit, scan.keys_only));
    }
    let (keys_only, own, object) = (scan.keys_only, link.clone(), encode::object(id));
    let at_once = link.at_once(&object, limit, keys_only);
    begin(
        link,
        id,
        |read| part(read, &after, at_once, keys_only),
        move |found| {
            let Some(found) = found else { return Ok(Vec::new()) };
            own.note_values(&object, &found);
            let inside = found.omap.iter().take_while(|(key, _)| *key < end).map(|entry| decoded(entry, keys_only));
            cut(inside, limit, Bytes::len)
        },
    )
}

/// All of a range are passed: the last of them is the first of the answer.
fn omap_reversed(
    link: &Link,
    id: &ObjectId,
    start: CString,
    end: &[u8],
    limit: usize,
    keys_only: bool,
) -> Result<Vec<(Bytes, Bytes)>> {
    let object = encode::object(id);
    // Values are read once it is known where the last keys stand.
    // One fewer than an OSD gives at once: what stands behind them tells that they are the last.
    let (mut anew, wanted) = (0, link.at_once(&object, limit, keys_only).min(PAGE - 1) as usize);
    loop {
        let Some((from, version)) = last_page(link, &object, start.clone(), end, wanted)? else {
            return Ok(Vec::new());
        };
        let found = link.look(&object, |read| part(read, &from, wanted as u64 + 1, keys_only))?;
        let Some(found) = found else { return Ok(Vec::new()) };
        if !keys_only {
            link.note_values(&object, &found);
        }
        let inside: Vec<_> = found.omap.iter().take_while(|(key, _)| key.as_slice() < end).collect();
        let is_whole = inside.len() < found.omap.len() || !found.more;
        // Of another moment, or more than an OSD gives at once: only what stands at the end is of use.
        if (found.version != version || !is_whole || inside.is_empty()) && anew < ANEW_MAX {
            anew += 1;
            continue;
        }
        if !is_whole || inside.is_empty() {
            return Err(Error::Contended { what: format!("reading {id} backwards"), attempts: anew });
        }
        return cut(inside.into_iter().rev().map(|entry| decoded(entry, keys_only)), limit, Bytes::len);
    }
}

/// Behind which key the last `wanted` of a range stand, and the version at which that was so; `None` if there are none.
fn last_page(link: &Link, object: &CStr, start: CString, end: &[u8], wanted: usize) -> Result<Option<(CString, u64)>> {
    let mut anew = 0;
    'anew: loop {
        let (mut after, mut version) = (start.clone(), None);
        let mut last: VecDeque<Vec<u8>> = VecDeque::new();
        loop {
            let Some(found) = link.look(object, |read| read.omap_names(&after, PAGE))? else { return Ok(None) };
            let version = *version.get_or_insert(found.version);
            if version != found.version && anew < ANEW_MAX {
                anew += 1;
                continue 'anew;
            }
            let inside = found.omap.iter().take_while(|(key, _)| key.as_slice() < end).count();
            last.extend(found.omap[..inside].iter().map(|(key, _)| key.clone()));
            // One more than is wanted: behind it the page begins.
            while last.len() > wanted + 1 {
                last.pop_front();
            }
            match next_page(&found).filter(|_| inside == found.omap.len()) {
                Some(next) => after = next,
                None if last.is_empty() => return Ok(None),
                None if last.len() <= wanted => return Ok(Some((start, version))),
                None => return Ok(Some((CString::new(last[0].clone()).unwrap_or_default(), version))),
            }
        }
    }
}

/// Filled slots.
pub(crate) fn slots(link: &Link, id: &ObjectId, scan: &SlotScan) -> Completion<Vec<(u64, Bytes)>> {
    let limit = scan.limit.min(SCAN_ENTRIES_MAX);
    let Range { start, end } = scan.range;
    let Some(last) = (if end == u64::MAX { Some(end) } else { end.checked_sub(1) }).filter(|last| *last >= start)
    else {
        return Completion::ready(Ok(Vec::new()));
    };
    if limit == 0 || !link.of(id).has_keys {
        return Completion::ready(Ok(Vec::new()));
    }
    if !scan.reverse {
        return Completion::ready(slots_upwards(link, id, start, last, limit, scan.keys_only));
    }
    let (keys_only, own, object) = (scan.keys_only, link.clone(), encode::object(id));
    let (after, at_once) = (encode::before_slot(last), link.at_once(&object, limit, keys_only));
    begin(
        link,
        id,
        |read| part(read, &after, at_once, keys_only),
        move |found| {
            let Some(found) = found else { return Ok(Vec::new()) };
            own.note_values(&object, &found);
            let found = found.omap;
            let inside = found.iter().map_while(|entry| slot_in(entry, start, keys_only).transpose());
            cut(inside, limit, |_| size_of::<u64>())
        },
    )
}

/// The slot of an entry, if it is one from `start` on.
fn slot_in((key, value): &(Vec<u8>, Vec<u8>), start: u64, keys_only: bool) -> Result<Option<(u64, Bytes)>> {
    let Some(index) = encode::slot_of(key).filter(|index| *index >= start) else { return Ok(None) };
    Ok(Some((index, if keys_only { Bytes::new() } else { value_of(value)? })))
}

/// Whether a slot of `first..=last` is filled, and the version at which that was so; `None` if there is no object.
fn any_filled(link: &Link, object: &CStr, first: u64, last: u64) -> Result<Option<(bool, u64)>> {
    let found = link.look(object, |read| read.omap_names(&encode::before_slot(last), 1))?;
    let filled =
        |found: &Found| found.omap.first().and_then(|(key, _)| encode::slot_of(key)).is_some_and(|at| at >= first);
    Ok(found.map(|found| (filled(&found), found.version)))
}

/// Slots from `start` on, low ones first, though they stand the other way round: windows that grow are looked at until
/// one holds something, and that is halved until what it holds is read at once.
fn slots_upwards(
    link: &Link,
    id: &ObjectId,
    start: u64,
    last: u64,
    limit: usize,
    keys_only: bool,
) -> Result<Vec<(u64, Bytes)>> {
    let object = encode::object(id);
    // A window of so many slots is read at once, if no more of them are filled than are asked for.
    let mut narrow = link.likely(&object, limit, keys_only);
    let mut page = link.at_once(&object, limit, keys_only);
    let (mut all, mut bytes): (Vec<(u64, Bytes)>, usize) = (Vec::new(), 0);
    let (mut at, mut version, mut anew) = (start, None, 0);
    let mut width = narrow;
    // Up to this slot there is a filled one.
    let mut filled_to: Option<u64> = None;
    loop {
        let end = match filled_to {
            Some(end) if end - at < narrow => end,
            Some(end) => at + (end - at) / 2,
            None => at.saturating_add(width - 1).min(last),
        };
        let is_narrow = end - at < narrow;
        let (seen, filled, slots) = if is_narrow {
            let found =
                link.look(&object, |read| part(read, &encode::before_slot(end), page.min(end - at + 1), keys_only))?;
            let Some(found) = found else { return Ok(all) };
            if !keys_only {
                link.note_values(&object, &found);
            }
            let inside = found.omap.iter().map_while(|entry| slot_in(entry, at, keys_only).transpose());
            let slots = inside.collect::<Result<Vec<_>>>()?;
            if slots.len() == found.omap.len() && found.more && slots.last().is_none_or(|(index, _)| *index > at) {
                // More are filled than were asked for, or than the OSD gives at once.
                let next = link.at_once(&object, limit, keys_only);
                if next <= page {
                    narrow = (narrow / 2).min(page).max(1);
                    width = narrow;
                }
                page = next;
                continue;
            }
            (found.version, !slots.is_empty(), slots)
        } else {
            let Some((filled, seen)) = any_filled(link, &object, at, end)? else { return Ok(all) };
            (seen, filled, Vec::new())
        };
        if *version.get_or_insert(seen) != seen {
            // What was found before is of one moment, and this is not.
            if !all.is_empty() {
                return Ok(all);
            }
            version = Some(seen);
            if anew < ANEW_MAX {
                anew += 1;
                (at, version, width, filled_to) = (start, None, narrow, None);
                continue;
            }
        }
        if filled && !is_narrow {
            filled_to = Some(end);
            continue;
        }
        for (index, value) in slots.into_iter().rev() {
            bytes += size_of::<u64>() + value.len();
            all.push((index, value));
            if all.len() == limit || bytes >= SCAN_BYTES_MAX {
                return Ok(all);
            }
        }
        if end == last {
            return Ok(all);
        }
        at = end + 1;
        if filled {
            // As many as are likely to fit what is left.
            let mean = (bytes / all.len()).max(1);
            let fit = (SCAN_BYTES_MAX - bytes) / mean;
            narrow = fit.clamp(1, (limit - all.len()).min(PAGE as usize)) as u64;
            page = link.at_once(&object, limit, keys_only);
            (width, filled_to) = (narrow, None);
        } else {
            width = width.saturating_mul(WIDER);
            filled_to = filled_to.filter(|to| *to >= at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_changes_between_two_operations_is_looked_at_anew_a_few_times() {
        let mut versions = [1, 1, 2, 3, 3, 3].into_iter();
        let looked = of_one_moment(|goes_on| {
            let of: Vec<u64> = (0..3).map_while(|_| versions.next().filter(|version| goes_on(*version))).collect();
            Ok((of.len() == 3).then_some(of))
        });
        assert_eq!(looked.unwrap(), [3, 3, 3]);
        // It is changed again and again.
        let mut version = 0;
        let looked = of_one_moment(|goes_on| {
            version += 2;
            Ok((goes_on(version) && goes_on(version + 1)).then_some(version))
        });
        assert_eq!(looked.unwrap(), 2 * (u64::from(ANEW_MAX) + 1));
    }
}
