//! Reads of one object: of one operation each where that is enough, which is begun and not waited for.
//!
//! Slots stand the other way round, so that the last is found first; a scan from low to high looks at ranges of them
//! that grow, each from its end.
//!
//! Invariant: what a call answers with comes from one operation, and so from one moment; what it finds empty on the way
//! there may be of moments before.

use std::ffi::{CStr, CString};
use std::ops::Range;

use bytes::Bytes;
use esker_store::limits::{SCAN_BYTES_MAX, SCAN_ENTRIES_MAX, TRANSACTION_BYTES_MAX, Together};
use esker_store::{Completion, DataRun, Error, ObjectId, OmapScan, Result, SlotScan, Stat, promised};

use crate::encode::{self, NASCENT, Xattr, kind};
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

/// Begins a read; `take` makes the answer of what it has found, or of a missing object.
fn begin<T: Send + 'static>(
    link: &Link,
    id: &ObjectId,
    parts: impl FnOnce(&mut Read),
    take: impl FnOnce(Option<Found>) -> Result<T> + Send + 'static,
) -> Completion<T> {
    let object = encode::object(id);
    let mut read = Read::new();
    read.compare_xattr(NASCENT, Compare::Equal, b"");
    parts(&mut read);
    let (promise, completion) = promised("a read from Ceph");
    let name = object.clone();
    link.pool.read(&object, read, move |found| {
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
        let size = match link.look(&encode::object(id), |read| read.stat()) {
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

/// Blocks of a range that are not all zeros, joined.
pub(crate) fn extents(link: &Link, id: &ObjectId, range: Range<u64>, object_bytes_max: u64) -> Result<Vec<DataRun>> {
    let object = encode::object(id);
    let mut runs: Vec<DataRun> = Vec::new();
    let mut at = range.start / BLOCK * BLOCK;
    // An OSD reads nothing behind the largest object.
    while at < range.end.min(object_bytes_max) {
        let len = CHUNK.min((object_bytes_max - at) as usize);
        let Some(found) = link.look(&object, |read| read.data(at, len))? else { return Ok(runs) };
        for (number, block) in found.data.chunks(BLOCK as usize).enumerate() {
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
        if found.data.len() < CHUNK {
            break;
        }
        at += CHUNK as u64;
    }
    Ok(runs)
}

/// What an object is: all its keys are counted.
pub(crate) fn stat(link: &Link, id: &ObjectId) -> Result<Option<Stat>> {
    let object = encode::object(id);
    loop {
        let mut after = CString::default();
        let mut stat = Stat::default();
        let mut version = None;
        loop {
            let found = link.look(&object, |read| {
                read.stat();
                read.xattrs();
                read.omap_names(&after, PAGE);
            })?;
            let Some(found) = found else { return Ok(None) };
            if *version.get_or_insert(found.version) != found.version {
                // Of another moment: once more.
                break;
            }
            (stat.size, stat.xattrs) = (found.size, stat.xattrs.max(own_xattrs(&found) as u64));
            let count = |kind: u8| found.omap.iter().filter(|(key, _)| key.first() == Some(&kind)).count() as u64;
            stat.omap_keys += count(kind::OMAP);
            stat.slots += count(kind::SLOT);
            let long = count(kind::XATTR);
            let Some((last, _)) = found.omap.last().filter(|_| found.more) else {
                stat.xattrs = own_xattrs(&found) as u64 + long + (stat.xattrs - own_xattrs(&found) as u64);
                return Ok(Some(stat));
            };
            stat.xattrs += long;
            after = CString::new(last.clone()).unwrap_or_default();
        }
    }
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
    let object = encode::object(id);
    let mut after = encode::first_of(kind::XATTR);
    let mut all = Vec::new();
    loop {
        let found = link.look(&object, |read| {
            read.xattrs();
            read.omap(&after, PAGE);
        })?;
        let Some(found) = found else { return Ok(Vec::new()) };
        for (key, value) in &found.omap {
            all.push((encode::key_of(key), value_of(value)?));
        }
        match found.omap.last().filter(|_| found.more) {
            Some((last, _)) => after = CString::new(last.clone()).unwrap_or_default(),
            None => {
                for (name, value) in &found.xattrs {
                    if let Some(name) = encode::xattr_name(name) {
                        all.push((name, value_of(value)?));
                    }
                }
                all.sort_unstable();
                return Ok(all);
            }
        }
    }
}

/// The value under an encoded omap key.
pub(crate) fn value(link: &Link, id: &ObjectId, key: &[u8]) -> Completion<Option<Bytes>> {
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
    if keys.is_empty() {
        return Completion::ready(Ok(Vec::new()));
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
    if limit == 0 || after.as_bytes() >= end.as_slice() {
        return Completion::ready(Ok(Vec::new()));
    }
    if scan.reverse {
        return Completion::ready(omap_reversed(link, id, after, &end, limit, scan.keys_only));
    }
    let keys_only = scan.keys_only;
    begin(
        link,
        id,
        |read| part(read, &after, (limit as u64).min(PAGE), keys_only),
        move |found| {
            let Some(found) = found else { return Ok(Vec::new()) };
            let inside = found.omap.iter().take_while(|(key, _)| *key < end).map(|entry| decoded(entry, keys_only));
            cut(inside, limit, Bytes::len)
        },
    )
}

/// All of a range are passed: the last of them is the first of the answer.
fn omap_reversed(
    link: &Link,
    id: &ObjectId,
    mut after: CString,
    end: &[u8],
    limit: usize,
    keys_only: bool,
) -> Result<Vec<(Bytes, Bytes)>> {
    let object = encode::object(id);
    let mut before: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
    let mut version = None;
    loop {
        let found = link.look(&object, |read| part(read, &after, PAGE, keys_only))?;
        let Some(found) = found else { return Ok(Vec::new()) };
        if *version.get_or_insert(found.version) != found.version {
            // What was passed is of another moment: the last page is right by itself.
            version = Some(found.version);
            before.clear();
        }
        let more = found.more;
        let page: Vec<_> = found.omap.into_iter().take_while(|(key, _)| key.as_slice() < end).collect();
        let whole = page.len() < PAGE as usize || !more;
        if page.is_empty() || whole {
            before.extend(page);
            let last = before.iter().rev().map(|entry| decoded(entry, keys_only));
            return cut(last, limit, Bytes::len);
        }
        after = page.last().and_then(|(last, _)| CString::new(last.clone()).ok()).unwrap_or_default();
        // More than a page is never needed of what was passed.
        before = page;
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
    if limit == 0 {
        return Completion::ready(Ok(Vec::new()));
    }
    if !scan.reverse {
        return Completion::ready(slots_upwards(link, id, start, last, limit, scan.keys_only));
    }
    let keys_only = scan.keys_only;
    let after = encode::before_slot(last);
    begin(
        link,
        id,
        |read| part(read, &after, (limit as u64).min(PAGE), keys_only),
        move |found| {
            let found = found.map(|found| found.omap).unwrap_or_default();
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

/// The lowest filled slots of a range, those of one operation.
struct Lowest {
    version: u64,
    /// In their order.
    slots: Vec<(u64, Bytes)>,
    /// Slots up to this one are told, and filled only if they are among those.
    told: u64,
}

/// `None` if there is no object.
fn lowest(link: &Link, object: &CStr, start: u64, end: u64, keys_only: bool) -> Result<Option<Lowest>> {
    let mut told = end;
    loop {
        let found = link.look(object, |read| part(read, &encode::before_slot(told), PAGE, keys_only))?;
        let Some(found) = found else { return Ok(None) };
        let inside = found.omap.iter().map_while(|entry| slot_in(entry, start, keys_only).transpose());
        let mut slots: Vec<(u64, Bytes)> = inside.collect::<Result<_>>()?;
        match slots.last() {
            // Others may stand below.
            Some((lowest, _)) if *lowest > start && slots.len() == found.omap.len() && found.more => told = lowest - 1,
            _ => {
                slots.reverse();
                return Ok(Some(Lowest { version: found.version, slots, told }));
            }
        }
    }
}

fn slots_upwards(
    link: &Link,
    id: &ObjectId,
    mut start: u64,
    last: u64,
    limit: usize,
    keys_only: bool,
) -> Result<Vec<(u64, Bytes)>> {
    let object = encode::object(id);
    let mut width = (limit as u64).clamp(1, PAGE);
    let (mut all, mut bytes, mut version) = (Vec::new(), 0, None);
    loop {
        let end = start.saturating_add(width - 1).min(last);
        let Some(found) = lowest(link, &object, start, end, keys_only)? else { return Ok(all) };
        // What was found before is of one moment, and this is not.
        if version.replace(found.version).is_some_and(|version| version != found.version) && !all.is_empty() {
            return Ok(all);
        }
        if found.slots.is_empty() {
            width = width.saturating_mul(WIDER);
        }
        for (index, value) in found.slots {
            bytes += size_of::<u64>() + value.len();
            all.push((index, value));
            if all.len() == limit || bytes >= SCAN_BYTES_MAX {
                return Ok(all);
            }
        }
        if found.told == last {
            return Ok(all);
        }
        start = found.told + 1;
    }
}
