//! Guards and changes of one object as compound operations.
//!
//! ```text
//! the object is there    one operation: guards that RADOS knows, changes; or a look, and one under its version
//! it is missing          nascent, with a token → its name is added → one operation under the token: shows, changes
//! it is removed          one operation: empty and nascent → its name is dropped → it is removed under the token
//! ```
//!
//! Invariants:
//! 1. What a transaction does shows by one operation on its object, or not at all.
//! 2. A nascent object counts as missing everywhere. Who finds one takes it over with a token of his own, and the one
//!    before fails.
//! 3. A guard is told as failed only after a look at which it failed.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::time::{Duration, Instant};

use bytes::Bytes;
use esker_store::{Compare as Order, Condition, Error, Guard, ObjectId, Result};

use crate::encode::{self, NASCENT, Xattr};
use crate::fold::{Data, Fold};
use crate::link::{Link, code, error, write_error};
use crate::names;
use crate::native::{Compare, Failed, Write};

/// A transaction is tried so long while others change its object.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// Who finds an object nascent under the same token for so long takes it over: its maker is slow, or was killed. Each
/// time it has come to nothing, twice as long, up to the patience there is.
const TAKEN_OVER_AFTER: Duration = Duration::from_millis(200);
/// Longest wait before another attempt.
const WAIT_MAX: Duration = Duration::from_millis(50);
/// Parts of one operation, at most: RADOS counts them in 16 bits, and takes what is above for fewer.
const PARTS_MAX: usize = 16_384;

/// What an object was at one moment, as far as guards ask.
struct Looked {
    version: u64,
    size: u64,
    /// By their encoded names.
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    omap: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// What came of a try.
enum Tried {
    Done,
    /// It is missing, and nascent under this token.
    Missing(Option<Vec<u8>>),
    /// Another client changed it meanwhile.
    Again,
}

/// What the one operation of a transaction has told, which was done before all else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum First {
    /// The object is missing.
    Missing,
    /// A guard fails, or another client makes or removes the object.
    Refused,
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

/// Applies a transaction's part of an object, of which [`at_once`] may have told something already.
///
/// # Errors
/// As [`ObjectStore::submit`](esker_store::ObjectStore::submit).
pub(crate) fn change(
    link: &Link,
    id: &ObjectId,
    guards: &[Guard],
    fold: &Fold,
    mut first: Option<First>,
) -> Result<()> {
    let object = encode::object(id);
    let began = Instant::now();
    let (mut attempts, mut nascent): (u32, Option<(Vec<u8>, Instant)>) = (0, None);
    let mut taken_over_after = TAKEN_OVER_AFTER;
    while began.elapsed() < PATIENCE {
        attempts += 1;
        if attempts > 2 {
            // Apart from others who try the same.
            let longest = (Duration::from_millis(1) * (1 << attempts.min(10))).min(WAIT_MAX);
            std::thread::sleep(longest.mul_f64(fastrand::f64()));
            link.check_there()?;
        }
        let tried = match (first.take(), at_once(guards, fold)) {
            (Some(First::Missing), _) => Some(Tried::Missing(None)),
            (Some(First::Refused), _) | (None, None) => None,
            (None, Some(write)) => try_at_once(link, &object, write)?,
        };
        let tried = match tried {
            Some(tried) => tried,
            None => try_under_version(link, id, &object, guards, fold)?,
        };
        match tried {
            Tried::Done => return Ok(()),
            Tried::Again => continue,
            Tried::Missing(token) => {
                if let Some(index) = guards.iter().position(|guard| !holds_of_missing(&guard.condition)) {
                    return Err(Error::GuardFailed { index });
                }
                if fold.only_takes_away() {
                    return Ok(());
                }
                if let Some(token) = &token {
                    let (known, since) = nascent.get_or_insert_with(|| (token.clone(), Instant::now()));
                    if known != token {
                        (*known, *since) = (token.clone(), Instant::now());
                    }
                    if since.elapsed() < taken_over_after {
                        continue;
                    }
                }
                if make(link, id, &object, token, fold)? {
                    return Ok(());
                }
                taken_over_after = (taken_over_after * 2).min(PATIENCE / 4);
            }
        }
    }
    Err(Error::Contended { what: format!("object {id}"), attempts })
}

/// Parts of the largest operation that a transaction's part of an object comes to.
fn parts_of(guards: &[Guard], fold: &Fold) -> usize {
    // Those of its own, three of a comparison of a number, two of zeros.
    8 + 3 * guards.len() + 2 * fold.data.len() + fold.xattrs.len() + fold.ranges.len()
}

/// The operation for an object that is there, if RADOS can decide its guards.
pub(crate) fn at_once(guards: &[Guard], fold: &Fold) -> Option<Write> {
    if fold.ends_missing() {
        return None;
    }
    let mut write = Write::new();
    write.assert_exists();
    write.compare_xattr(NASCENT, Compare::Equal, b"");
    guards.iter().all(|guard| compare(&mut write, &guard.condition)).then_some(())?;
    put(&mut write, fold);
    Some(write)
}

/// `None`: a guard fails, or another client makes or removes the object: a look tells.
fn try_at_once(link: &Link, object: &CStr, write: Write) -> Result<Option<Tried>> {
    match link.write(object, write) {
        Ok(_) => Ok(Some(Tried::Done)),
        Err(Failed { code: code::NOT_THERE, .. }) => Ok(Some(Tried::Missing(None))),
        Err(Failed { code: code::CANCELED, .. }) => Ok(None),
        Err(failed) => Err(write_error(failed, object)),
    }
}

/// Looks at the object, decides the guards, and changes it if no other client has changed it since.
fn try_under_version(link: &Link, id: &ObjectId, object: &CStr, guards: &[Guard], fold: &Fold) -> Result<Tried> {
    let looked = match look(link, object, guards)? {
        Ok(looked) => looked,
        Err(token) => return Ok(Tried::Missing(token)),
    };
    if let Some(index) = guards.iter().position(|guard| !looked.holds(&guard.condition)) {
        return Err(Error::GuardFailed { index });
    }
    if fold.is_empty() {
        return Ok(Tried::Done);
    }
    let mut write = Write::new();
    write.assert_version(looked.version);
    let removal = if fold.ends_missing() {
        let (name, token) = (names::token_of(link, id)?, names::token()?);
        write.remove();
        write.create(false);
        write.set_xattr(NASCENT, &token);
        Some((name, token))
    } else {
        put(&mut write, fold);
        None
    };
    match link.write(object, write) {
        Ok(_) => {}
        Err(Failed { code: code::NOT_THERE | code::OTHER_VERSION | code::LATER_VERSION, .. }) => {
            return Ok(Tried::Again);
        }
        Err(failed) => return Err(write_error(failed, object)),
    }
    if let Some((name, token)) = removal {
        // The object shows no more. Where what follows fails, what is left counts as missing.
        if let Some(name) = name {
            names::drop_name(link, id, &name);
        }
        let mut write = Write::new();
        write.compare_xattr(NASCENT, Compare::Equal, &token);
        write.remove();
        let _ = link.write(object, write);
    }
    Ok(Tried::Done)
}

/// Makes a missing object with what a transaction leaves in it; false if another client was first.
fn make(link: &Link, id: &ObjectId, object: &CStr, found: Option<Vec<u8>>, fold: &Fold) -> Result<bool> {
    let token = names::token()?;
    let mut write = Write::new();
    match &found {
        None => write.create(true),
        Some(found) => write.compare_xattr(NASCENT, Compare::Equal, found),
    }
    write.set_xattr(NASCENT, &token);
    match link.write(object, write) {
        Ok(_) => {}
        Err(Failed { code: code::THERE | code::CANCELED | code::NOT_THERE, .. }) => {
            // With a token in its way, a look tells which.
            return Ok(false);
        }
        // Nothing shows.
        Err(failed) => return Err(error(failed, "writing", object)),
    }
    if let Err(error) = names::add(link, id, &token) {
        let mut write = Write::new();
        write.compare_xattr(NASCENT, Compare::Equal, &token);
        write.remove();
        let _ = link.write(object, write);
        return Err(error);
    }
    let mut write = Write::new();
    write.compare_xattr(NASCENT, Compare::Equal, &token);
    write.remove_xattr(NASCENT);
    put(&mut write, &Fold { removed: false, ..fold.clone() });
    match link.write(object, write) {
        Ok(_) => Ok(true),
        Err(Failed { code: code::CANCELED | code::NOT_THERE, .. }) => Ok(false),
        Err(failed) => Err(write_error(failed, object)),
    }
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

/// Adds a guard; false if RADOS cannot decide it.
fn compare(write: &mut Write, condition: &Condition) -> bool {
    let omap = |write: &mut Write, key: Vec<u8>, compare, value: &[u8]| {
        write.compare_omap(&key, compare, value);
        true
    };
    match condition {
        Condition::Exists => true,
        Condition::Absent | Condition::SizeEquals { .. } => false,
        Condition::XattrEquals { name, value } => match encode::xattr(name) {
            Xattr::Own(name) => {
                write.compare_xattr(&name, Compare::Equal, &encode::xattr_value(value));
                true
            }
            Xattr::Omap(key) => omap(write, key, Compare::Equal, &encode::xattr_value(value)),
        },
        Condition::XattrAbsent { name } => match encode::xattr(name) {
            Xattr::Own(name) => {
                write.compare_xattr(&name, Compare::Equal, b"");
                true
            }
            Xattr::Omap(key) => omap(write, key, Compare::Equal, b""),
        },
        Condition::XattrCompare { name, compare, value, absent_holds } => {
            let Xattr::Own(name) = encode::xattr(name) else { return false };
            let number = encode::number_value(*value);
            // The argument stands on the left; what is absent is less than every number.
            let (argument, absent_passes) = match compare {
                Order::Less => (Compare::Greater, true),
                Order::LessOrEqual => (Compare::AtLeast, true),
                Order::Equal => (Compare::Equal, false),
                Order::GreaterOrEqual => (Compare::AtMost, false),
                Order::Greater => (Compare::Less, false),
            };
            if *absent_holds && !absent_passes {
                return false;
            }
            write.compare_xattr(&name, argument, &number);
            if absent_passes && !absent_holds {
                write.compare_xattr(&name, Compare::NotEqual, b"");
            }
            if matches!(compare, Order::GreaterOrEqual | Order::Greater) {
                write.compare_xattr(&name, Compare::Greater, encode::ABOVE_NUMBERS);
            }
            true
        }
        Condition::OmapAbsent { key } => omap(write, encode::omap(key), Compare::Equal, b""),
        Condition::OmapPresent { key } => omap(write, encode::omap(key), Compare::Greater, b""),
        Condition::OmapEquals { key, value } => omap(write, encode::omap(key), Compare::Equal, &encode::value(value)),
        Condition::SlotAbsent { index } => omap(write, encode::slot(*index), Compare::Equal, b""),
        Condition::SlotPresent { index } => omap(write, encode::slot(*index), Compare::Greater, b""),
        Condition::SlotEquals { index, value } => {
            omap(write, encode::slot(*index), Compare::Equal, &encode::value(value))
        }
    }
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
fn key_of(condition: &Condition) -> Option<Vec<u8>> {
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

/// What guards ask of an object; the token that it is nascent under, if it is missing.
fn look(link: &Link, object: &CStr, guards: &[Guard]) -> Result<std::result::Result<Looked, Option<Vec<u8>>>> {
    let keys: Vec<Vec<u8>> = guards.iter().filter_map(|guard| key_of(&guard.condition)).collect();
    let found = link.read(object, |read| {
        read.stat();
        read.xattrs();
        if !keys.is_empty() {
            read.omap_keys(&keys.iter().map(Vec::as_slice).collect::<Vec<_>>());
        }
    });
    let found = match found {
        Ok(found) => found,
        Err(Failed { code: code::NOT_THERE, .. }) => return Ok(Err(None)),
        Err(failed) => return Err(error(failed, "reading", object)),
    };
    let mut xattrs: BTreeMap<_, _> = found.xattrs.into_iter().collect();
    if let Some(token) = xattrs.remove(NASCENT.to_bytes()) {
        return Ok(Err(Some(token)));
    }
    let omap = found.omap.into_iter().collect();
    Ok(Ok(Looked { version: found.version, size: found.size, xattrs, omap }))
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
