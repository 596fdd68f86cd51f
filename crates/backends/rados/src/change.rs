//! Guards and changes of one object as compound operations.
//!
//! ```text
//! the object is there    one operation: guards that RADOS knows, changes; or a look, and one under its version
//! it is missing          an entry for its name → one operation: makes it, with what a transaction leaves in it
//! it is removed          a look → one operation under its version → its entry is dropped
//! ```
//!
//! Where a tomb is, an object is missing: who makes it puts it in the place of the tomb, and who removes it leaves a
//! tomb again, since a maker who is late may still come.
//!
//! Invariants:
//! 1. What a transaction does shows by one operation on its object, or not at all.
//! 2. An object names its entry, which was there before it ([`crate::names`]).
//! 3. A guard is told as failed only after a look at which it failed, and where no operation was refused late
//!    ([`Link::sure`]).

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use esker_store::{Compare as Order, Condition, Error, Guard, ObjectId, Result};

use crate::encode::{self, Entry, NAMED, TOMB, Xattr};
use crate::entries::Entries;
use crate::fold::{Data, Fold};
use crate::link::{Link, code, error, write_error};
use crate::names;
use crate::native::{Compare, Failed, Read, Write};

/// A transaction is tried so long while others change its object.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// Longest wait before another attempt.
const WAIT_MAX: Duration = Duration::from_millis(50);
/// Guards whose values are larger together are looked at: an OSD takes no operation above 90 MB (`osd_max_write_size`).
const GUARD_BYTES_MAX: usize = 16 << 20;
/// Parts of one operation, at most: RADOS counts them in 16 bits, and takes what is above for fewer.
const PARTS_MAX: usize = 16_384;
/// Parts of each operation beside those of guards and changes.
const OWN_PARTS: usize = 8;
/// Parts that one guard comes to, at most: a comparison of a number. A change comes to two, of zeros.
const GUARD_PARTS: usize = 3;
/// So many guards and changes, together, are taken whatever they are.
pub(crate) const OPS_MAX: usize = (PARTS_MAX - OWN_PARTS) / GUARD_PARTS;

/// What an object was at one moment, as far as guards ask.
struct Looked {
    version: u64,
    /// As it is stored.
    named: Vec<u8>,
    size: u64,
    /// By their encoded names.
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// By their encoded keys; an empty string for those that no guard compares.
    omap: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// What came of a try.
enum Tried {
    Done,
    /// It is missing; with the token of its tomb, if there is one.
    Missing(Option<Vec<u8>>),
    /// Another client changed it meanwhile.
    Again,
}

/// Whether RADOS takes it.
///
/// # Errors
/// [`Error::TooLarge`].
pub(crate) fn check(guards: &[Guard], fold: &Fold) -> Result<()> {
    let parts = parts_of(guards, fold);
    if parts > PARTS_MAX {
        let (len, max) = (parts as u64, PARTS_MAX as u64);
        return Err(Error::TooLarge { what: "number of guards and changes", len, limit: "PARTS_MAX", max });
    }
    Ok(())
}

/// Applies a transaction's part of an object, however many operations it takes. `tried`: the entry under which it was
/// to be made, where something was found in its place.
///
/// # Errors
/// As [`ObjectStore::submit`](esker_store::ObjectStore::submit).
pub(crate) fn change(
    link: &Link,
    entries: &Arc<Entries>,
    id: &ObjectId,
    guards: &[Guard],
    fold: &Fold,
    tried: Option<Entry>,
) -> Result<()> {
    let (base, link, object) = (link, link.of(id), encode::object(id));
    if let Some(entry) = tried
        && is_made(link, entries, id, &object, entry)?
    {
        return Ok(());
    }
    let began = Instant::now();
    let mut attempts = 0;
    while began.elapsed() < PATIENCE {
        attempts += 1;
        if attempts > 2 {
            // Apart from others who try the same.
            let longest = (Duration::from_millis(1) * (1 << attempts.min(10))).min(WAIT_MAX);
            std::thread::sleep(longest.mul_f64(fastrand::f64()));
            base.check_there()?;
        }
        match try_under_version(link, entries, id, &object, guards, fold)? {
            Tried::Done => return Ok(()),
            Tried::Again => {}
            Tried::Missing(tomb) => {
                if let Some(done) = of_missing(guards, fold) {
                    return done;
                }
                if make(link, entries, id, &object, tomb, fold)? {
                    return Ok(());
                }
            }
        }
    }
    Err(Error::Contended { what: format!("object {id}"), attempts })
}

/// Why it is not known whether a transaction was done though an operation of it was answered as one that was not.
pub(crate) fn doubtful(id: &ObjectId) -> Error {
    Error::Unknown { cause: format!("Ceph refused a write of {id} late, and may have done it before") }
}

/// What a transaction does to an object that is missing, if it makes none.
pub(crate) fn of_missing(guards: &[Guard], fold: &Fold) -> Option<Result<()>> {
    match guards.iter().position(|guard| !holds_of_missing(&guard.condition)) {
        Some(index) => Some(Err(Error::GuardFailed { index })),
        None => fold.only_takes_away().then_some(Ok(())),
    }
}

/// Parts of the largest operation that a transaction's part of an object comes to.
pub(crate) fn parts_of(guards: &[Guard], fold: &Fold) -> usize {
    OWN_PARTS + GUARD_PARTS * guards.len() + 2 * fold.data.len() + fold.xattrs.len() + fold.ranges.len()
}

/// Bytes that a guard compares with.
fn compared(condition: &Condition) -> usize {
    match condition {
        Condition::XattrEquals { value, .. }
        | Condition::OmapEquals { value, .. }
        | Condition::SlotEquals { value, .. } => value.len(),
        _ => 0,
    }
}

/// Bytes that guards compare with.
pub(crate) fn guard_bytes(guards: &[Guard]) -> usize {
    guards.iter().map(|guard| compared(&guard.condition)).sum()
}

/// Whether what a transaction changes decides whether a guard of a later one holds.
pub(crate) fn touches(fold: &Fold, condition: &Condition) -> bool {
    match condition {
        Condition::XattrEquals { name, .. }
        | Condition::XattrAbsent { name }
        | Condition::XattrCompare { name, .. } => fold.xattrs.contains_key(name),
        Condition::Exists => false,
        // RADOS decides none of these.
        Condition::Absent | Condition::SizeEquals { .. } => true,
        _ => key_of(condition).is_none_or(|key| fold.omap.contains_key(&key)),
    }
}

/// Whether one operation decides the guards and does the changes, of an object that is there and stays.
pub(crate) fn goes_at_once(guards: &[Guard], fold: &Fold) -> bool {
    !fold.removed && guards.iter().all(|guard| is_decided(&guard.condition)) && guard_bytes(guards) <= GUARD_BYTES_MAX
}

/// Whether RADOS decides a guard.
fn is_decided(condition: &Condition) -> bool {
    match condition {
        Condition::Absent | Condition::SizeEquals { .. } => false,
        Condition::XattrCompare { name, compare, absent_holds, .. } => {
            // What is absent is less than every number.
            let absent_passes = matches!(compare, Order::Less | Order::LessOrEqual);
            matches!(encode::xattr(name), Xattr::Own(_)) && (absent_passes || !absent_holds)
        }
        _ => true,
    }
}

/// The operation for an object that is there, of what [`goes_at_once`].
pub(crate) fn at_once(guards: &[Guard], fold: &Fold) -> Write {
    let mut write = Write::new();
    write.assert_exists();
    write.compare_xattr(TOMB, Compare::Equal, b"");
    for guard in guards {
        compare(&mut write, &guard.condition);
    }
    put(&mut write, fold);
    write
}

/// Looks at the object, decides the guards, and changes it if no other client has changed it since.
fn try_under_version(
    link: &Link,
    entries: &Entries,
    id: &ObjectId,
    object: &CStr,
    guards: &[Guard],
    fold: &Fold,
) -> Result<Tried> {
    let looked = match look(link, object, guards)? {
        Ok(looked) => looked,
        Err(tomb) => return Ok(Tried::Missing(tomb)),
    };
    if let Some(index) = guards.iter().position(|guard| !looked.holds(&guard.condition)) {
        return Err(Error::GuardFailed { index });
    }
    if fold.is_empty() {
        return Ok(Tried::Done);
    }
    let entry = Entry::decode(&looked.named).ok_or_else(|| Error::Corrupt {
        offset: 0,
        what: format!("object {id} on Ceph: its name stands at {:?}", looked.named.escape_ascii().to_string()),
    })?;
    let mut write = Write::new();
    write.assert_version(looked.version);
    if fold.ends_missing() {
        write.remove();
        if entry.on_tomb {
            write.create(false);
            write.set_xattr(TOMB, &names::token()?);
        }
    } else {
        put(&mut write, fold);
        if fold.removed {
            write.set_xattr(NAMED, &looked.named);
        }
    }
    let begun = Instant::now();
    match link.write(object, write) {
        Ok(_) => {}
        Err(Failed { code: code::NOT_THERE | code::OTHER_VERSION | code::LATER_VERSION, .. }) => {
            return if begun.elapsed() > link.sure() { Err(doubtful(id)) } else { Ok(Tried::Again) };
        }
        Err(failed) => return Err(write_error(failed, object)),
    }
    if fold.ends_missing() {
        // Where it fails an entry without an object is left.
        entries.drop_and_wait(id, entry);
    }
    Ok(Tried::Done)
}

/// Makes a missing object with what a transaction leaves in it; false if another client was first.
fn make(
    link: &Link,
    entries: &Arc<Entries>,
    id: &ObjectId,
    object: &CStr,
    tomb: Option<Vec<u8>>,
    fold: &Fold,
) -> Result<bool> {
    let entry = entries.add_and_wait(id)?;
    let begun = Instant::now();
    match link.write(object, making(entry, tomb.as_deref(), fold)) {
        Ok(_) => Ok(true),
        Err(failed) if failed.is_unknown() => Err(write_error(failed, object)),
        Err(Failed { code: code::THERE | code::CANCELED | code::NOT_THERE, .. }) => {
            let is_late = begun.elapsed() > link.sure();
            let is_made = is_made(link, entries, id, object, entry)?;
            if is_late && !is_made { Err(doubtful(id)) } else { Ok(is_made) }
        }
        Err(failed) => {
            entries.drop_and_wait(id, entry);
            Err(write_error(failed, object))
        }
    }
}

/// Whether the object that stands in the place of one that was to be made is that one: the library sends an operation
/// again whose answer was lost, and an OSD may have forgotten by then that it has done it. Else drops the entry.
fn is_made(link: &Link, entries: &Entries, id: &ObjectId, object: &CStr, entry: Entry) -> Result<bool> {
    let named = match link.read(object, Read::xattrs) {
        Ok(found) => found.xattrs.into_iter().find(|(name, _)| name == NAMED.to_bytes()),
        Err(failed) if failed.code == code::NOT_THERE => None,
        Err(failed) => return Err(write_error(failed, object)),
    };
    let is_made = named.and_then(|(_, stored)| Entry::decode(&stored)).is_some_and(|found| found.token == entry.token);
    if !is_made {
        entries.drop_and_wait(id, entry);
    }
    Ok(is_made)
}

/// The operation that makes a missing object, with an entry of its name, with what a transaction leaves in it.
pub(crate) fn making(entry: Entry, tomb: Option<&[u8]>, fold: &Fold) -> Write {
    let mut write = Write::new();
    match tomb {
        None => write.create(true),
        Some(tomb) => {
            write.compare_xattr(TOMB, Compare::Equal, tomb);
            write.remove_xattr(TOMB);
        }
    }
    write.set_xattr(NAMED, &Entry { on_tomb: tomb.is_some(), ..entry }.encode());
    put(&mut write, &Fold { removed: false, ..fold.clone() });
    write
}

/// Adds what a transaction does.
fn put(write: &mut Write, fold: &Fold) {
    if fold.removed {
        write.remove();
        write.create(false);
    }
    for (from, end) in &fold.ranges {
        write.remove_omap_range(from, end);
    }
    let mut sets: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
    let mut gone: Vec<Vec<u8>> = Vec::new();
    for (place, value) in fold.placed_xattrs() {
        match (place, value) {
            (Xattr::Own(name), Some(value)) => write.set_xattr(&name, &encode::xattr_value(value)),
            (Xattr::Own(name), None) => write.remove_xattr(&name),
            (Xattr::Omap(key), Some(value)) => sets.push((key, encode::xattr_value(value))),
            (Xattr::Omap(key), None) => gone.push(key),
        }
    }
    for (key, value) in &fold.omap {
        match value {
            Some(value) => sets.push((key.clone(), value.clone())),
            None => gone.push(key.clone()),
        }
    }
    if !gone.is_empty() {
        write.remove_omap(&gone.iter().map(Vec::as_slice).collect::<Vec<_>>());
    }
    if !sets.is_empty() {
        write.set_omap(&sets.iter().map(|(key, value)| (&key[..], &value[..])).collect::<Vec<_>>());
    }
    for step in &fold.data {
        match step {
            Data::Write { offset, data } => write.write(*offset, data),
            Data::Zero { offset, len } => {
                write.zero(*offset, *len);
                // It may have cut the end off, and does nothing behind it: the last of the zeros is written. A write of
                // nothing would grow the object too, but 16.2 then keeps a checksum of what it was, and loses it.
                write.write(offset + len - 1, &[0]);
            }
            Data::Truncate { size } => write.truncate(*size),
        }
    }
}

/// Adds a guard, one that [`is_decided`].
fn compare(write: &mut Write, condition: &Condition) {
    let (key, compare, value) = match condition {
        Condition::Exists | Condition::Absent | Condition::SizeEquals { .. } => return,
        Condition::XattrEquals { name, value } => match encode::xattr(name) {
            Xattr::Own(name) => return write.compare_xattr(&name, Compare::Equal, &encode::xattr_value(value)),
            Xattr::Omap(key) => (key, Compare::Equal, encode::xattr_value(value)),
        },
        Condition::XattrAbsent { name } => match encode::xattr(name) {
            Xattr::Own(name) => return write.compare_xattr(&name, Compare::Equal, b""),
            Xattr::Omap(key) => (key, Compare::Equal, Vec::new()),
        },
        Condition::XattrCompare { name, compare, value, absent_holds } => {
            let Xattr::Own(name) = encode::xattr(name) else { return };
            // The argument stands on the left; what is absent is less than every number.
            let (argument, absent_passes) = match compare {
                Order::Less => (Compare::Greater, true),
                Order::LessOrEqual => (Compare::AtLeast, true),
                Order::Equal => (Compare::Equal, false),
                Order::GreaterOrEqual => (Compare::AtMost, false),
                Order::Greater => (Compare::Less, false),
            };
            write.compare_xattr(&name, argument, &encode::number_value(*value));
            if absent_passes && !absent_holds {
                write.compare_xattr(&name, Compare::NotEqual, b"");
            }
            if matches!(compare, Order::GreaterOrEqual | Order::Greater) {
                write.compare_xattr(&name, Compare::Greater, encode::ABOVE_NUMBERS);
            }
            return;
        }
        Condition::OmapAbsent { key } => (encode::omap(key), Compare::Equal, Vec::new()),
        Condition::OmapPresent { key } => (encode::omap(key), Compare::Greater, Vec::new()),
        Condition::OmapEquals { key, value } => (encode::omap(key), Compare::Equal, encode::value(value)),
        Condition::SlotAbsent { index } => (encode::slot(*index), Compare::Equal, Vec::new()),
        Condition::SlotPresent { index } => (encode::slot(*index), Compare::Greater, Vec::new()),
        Condition::SlotEquals { index, value } => (encode::slot(*index), Compare::Equal, encode::value(value)),
    };
    write.compare_omap(&key, compare, &value);
}

/// Whether a guard holds of an object that is missing.
fn holds_of_missing(condition: &Condition) -> bool {
    match condition {
        Condition::Absent
        | Condition::XattrAbsent { .. }
        | Condition::OmapAbsent { .. }
        | Condition::SlotAbsent { .. } => true,
        Condition::XattrCompare { absent_holds, .. } => *absent_holds,
        _ => false,
    }
}

/// The encoded omap key that a guard looks at.
pub(crate) fn key_of(condition: &Condition) -> Option<Vec<u8>> {
    match condition {
        Condition::OmapAbsent { key } | Condition::OmapPresent { key } | Condition::OmapEquals { key, .. } => {
            Some(encode::omap(key))
        }
        Condition::SlotAbsent { index } | Condition::SlotPresent { index } | Condition::SlotEquals { index, .. } => {
            Some(encode::slot(*index))
        }
        Condition::XattrEquals { name, .. }
        | Condition::XattrAbsent { name }
        | Condition::XattrCompare { name, .. } => match encode::xattr(name) {
            Xattr::Omap(key) => Some(key),
            Xattr::Own(_) => None,
        },
        Condition::Exists | Condition::Absent | Condition::SizeEquals { .. } => None,
    }
}

/// Whether a guard compares a value; else it asks only whether there is one.
fn needs_value(condition: &Condition) -> bool {
    matches!(
        condition,
        Condition::XattrEquals { .. }
            | Condition::XattrCompare { .. }
            | Condition::OmapEquals { .. }
            | Condition::SlotEquals { .. }
    )
}

/// What guards ask of an object; the token of its tomb, if it is missing.
fn look(link: &Link, object: &CStr, guards: &[Guard]) -> Result<std::result::Result<Looked, Option<Vec<u8>>>> {
    let (mut keys, mut names) = (Vec::new(), Vec::new());
    for Guard { condition, .. } in guards {
        if let Some(key) = key_of(condition) {
            let asked = if needs_value(condition) { &mut keys } else { &mut names };
            asked.push(key);
        }
    }
    let found = link.read(object, |read| {
        read.stat();
        read.xattrs();
        if !keys.is_empty() {
            read.omap_keys(&keys.iter().map(Vec::as_slice).collect::<Vec<_>>());
        }
        names.iter().for_each(|name| read.omap_name_behind(&encode::before(name)));
    });
    let found = match found {
        Ok(found) => found,
        Err(Failed { code: code::NOT_THERE, .. }) => return Ok(Err(None)),
        Err(failed) => return Err(error(failed, "reading", object)),
    };
    let mut xattrs: BTreeMap<_, _> = found.xattrs.into_iter().collect();
    if let Some(token) = xattrs.remove(TOMB.to_bytes()) {
        return Ok(Err(Some(token)));
    }
    let named = xattrs.remove(NAMED.to_bytes()).unwrap_or_default();
    let mut omap: BTreeMap<_, _> = found.omap.into_iter().collect();
    for (name, behind) in names.into_iter().zip(found.behind) {
        if behind.as_ref() == Some(&name) {
            omap.entry(name).or_insert_with(|| vec![encode::VALUE]);
        }
    }
    Ok(Ok(Looked { version: found.version, named, size: found.size, xattrs, omap }))
}

impl Looked {
    fn xattr(&self, name: &[u8]) -> Option<Bytes> {
        let stored = match encode::xattr(name) {
            Xattr::Own(name) => self.xattrs.get(name.to_bytes()),
            Xattr::Omap(key) => self.omap.get(&key),
        };
        stored.and_then(|stored| encode::value_of(stored))
    }

    fn holds(&self, condition: &Condition) -> bool {
        let stored = || key_of(condition).and_then(|key| self.omap.get(&key)).and_then(|value| encode::value_of(value));
        match condition {
            Condition::Exists => true,
            Condition::Absent => false,
            Condition::SizeEquals { size } => self.size == *size,
            Condition::XattrEquals { name, value } => self.xattr(name).is_some_and(|stored| stored == *value),
            Condition::XattrAbsent { name } => self.xattr(name).is_none(),
            Condition::XattrCompare { name, compare, value, absent_holds } => match self.xattr(name) {
                None => *absent_holds,
                Some(stored) => {
                    let number = <[u8; 8]>::try_from(&stored[..]).ok().map(u64::from_le_bytes);
                    number.is_some_and(|number| compare.holds(number, *value))
                }
            },
            Condition::OmapAbsent { .. } | Condition::SlotAbsent { .. } => stored().is_none(),
            Condition::OmapPresent { .. } | Condition::SlotPresent { .. } => stored().is_some(),
            Condition::OmapEquals { value, .. } | Condition::SlotEquals { value, .. } => {
                stored().is_some_and(|stored| stored == *value)
            }
        }
    }
}
