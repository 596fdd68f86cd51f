//! Heads and the directory: reads and changes views, finds logs by name.
//!
//! load → change → compare-and-set by the view's version → again if somebody was faster
//!
//! Invariants:
//! 1. A view is only ever replaced by one made from it: the version is guarded in the same transaction.
//! 2. Everything here touches one object per transaction, so that stores which are atomic per object only will do.
//! 3. A head stands before a name leads to it; it goes before its data. Ids are never given twice.

use bytes::Bytes;
use esker_store::{Change, Compare, Condition, Error as StoreError, ObjectStore, Transaction};

use crate::format::{self, LAST_ID, VERSION, VIEW, number, number_from};
use crate::view::View;
use crate::{Error, Result};

/// How often something is tried again because somebody else changed it meanwhile.
pub(crate) const ATTEMPTS_MAX: u32 = 1_000;

pub(crate) fn load(store: &dyn ObjectStore, log: u64, name: &str) -> Result<View> {
    match store.xattr(&format::head(log), VIEW).wait()? {
        Some(bytes) => View::decode(name, &bytes),
        None => Err(Error::NoLog { name: name.to_owned() }),
    }
}

fn version_is(version: u64) -> Condition {
    let name = Bytes::from_static(VERSION);
    Condition::XattrCompare { name, compare: Compare::Equal, value: version, absent_holds: false }
}

fn put(txn: &mut Transaction, log: u64, view: &View) {
    let head = format::head(log);
    txn.push(&head, Change::XattrSet { name: Bytes::from_static(VERSION), value: number(view.version) });
    txn.push(&head, Change::XattrSet { name: Bytes::from_static(VIEW), value: view.encode() });
}

/// Makes the head of a new log.
pub(crate) fn create(store: &dyn ObjectStore, log: u64, view: &View) -> Result<()> {
    let mut txn = Transaction::new().guard(&format::head(log), Condition::Absent);
    put(&mut txn, log, view);
    store.submit(txn).wait()?;
    Ok(())
}

/// Replaces view `from` by `to`, durably. False if it is not the view any more.
pub(crate) fn replace(store: &dyn ObjectStore, log: u64, from: &View, to: &mut View) -> Result<bool> {
    replace_with(store, log, from, to, None)
}

/// As [`replace`]; in the same transaction key `note` of the head becomes the new version.
fn replace_with(store: &dyn ObjectStore, log: u64, from: &View, to: &mut View, note: Option<&Bytes>) -> Result<bool> {
    to.version = from.version + 1;
    to.check_labels()?;
    // Before anything is trimmed the tail has to be known, for which views change.
    let mut txn = Transaction::new().giving_back().guard(&format::head(log), version_is(from.version));
    put(&mut txn, log, to);
    if let Some(key) = note {
        txn.push(&format::head(log), Change::OmapSet { key: key.clone(), value: number(to.version) });
    }
    match store.submit(txn).wait() {
        Ok(_) => Ok(true),
        Err(StoreError::GuardFailed { .. }) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Changes the view until it holds; `change` may refuse, or say that nothing needs to change.
pub(crate) fn change(
    store: &dyn ObjectStore,
    log: u64,
    name: &str,
    change: impl FnMut(&mut View) -> Result<bool>,
) -> Result<View> {
    change_with(store, log, name, None, change)
}

/// As [`change`]; in the same transaction key `note` of the head becomes the new version.
pub(crate) fn change_with(
    store: &dyn ObjectStore,
    log: u64,
    name: &str,
    note: Option<&Bytes>,
    mut change: impl FnMut(&mut View) -> Result<bool>,
) -> Result<View> {
    for _ in 0..ATTEMPTS_MAX {
        let view = load(store, log, name)?;
        let mut next = view.clone();
        if !change(&mut next)? {
            return Ok(view);
        }
        if replace_with(store, log, &view, &mut next, note)? {
            return Ok(next);
        }
    }
    Err(Error::Contended { what: format!("the view of log {name}"), attempts: ATTEMPTS_MAX })
}

/// The id of a log by its name.
pub(crate) fn find(store: &dyn ObjectStore, name: &str) -> Result<Option<u64>> {
    let found = store.omap_get(&format::directory(), &format::name_key(name)).wait()?;
    found
        .map(|id| number_from(&id).ok_or_else(|| Error::damaged("directory of logs", format!("id of {name}"))))
        .transpose()
}

/// Gives a new id, noted as unfinished.
pub(crate) fn new_id(store: &dyn ObjectStore, now_ms: u64) -> Result<u64> {
    let directory = format::directory();
    for _ in 0..ATTEMPTS_MAX {
        let last = store.xattr(&directory, LAST_ID).wait()?.as_deref().and_then(number_from).unwrap_or(0);
        let name = Bytes::from_static(LAST_ID);
        let same = Condition::XattrCompare {
            name: name.clone(),
            compare: Compare::Equal,
            value: last,
            absent_holds: last == 0,
        };
        let txn = Transaction::new()
            .guard(&directory, same)
            .change(&directory, Change::XattrSet { name, value: number(last + 1) })
            .change(&directory, Change::OmapSet { key: format::unfinished_key(last + 1), value: number(now_ms) });
        match store.submit(txn).wait() {
            Ok(_) => return Ok(last + 1),
            Err(StoreError::GuardFailed { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(Error::Contended { what: "the directory of logs".into(), attempts: ATTEMPTS_MAX })
}

/// Lets `name` lead to `log`.
pub(crate) fn link(store: &dyn ObjectStore, log: u64, name: &str) -> Result<()> {
    let directory = format::directory();
    let key = format::name_key(name);
    let txn = Transaction::new()
        .guard(&directory, Condition::OmapAbsent { key: key.clone() })
        .guard(&directory, Condition::OmapPresent { key: format::unfinished_key(log) })
        .change(&directory, Change::OmapSet { key, value: number(log) })
        .change(&directory, Change::OmapRemove { key: format::unfinished_key(log) });
    match store.submit(txn).wait() {
        Ok(_) => Ok(()),
        Err(StoreError::GuardFailed { .. }) => Err(Error::Exists { name: name.to_owned() }),
        Err(error) => Err(error.into()),
    }
}

/// Takes the name away and notes that the log is to be removed.
pub(crate) fn unlink(store: &dyn ObjectStore, log: u64, name: &str, now_ms: u64) -> Result<()> {
    let directory = format::directory();
    let key = format::name_key(name);
    let txn = Transaction::new()
        .giving_back()
        .guard(&directory, Condition::OmapEquals { key: key.clone(), value: number(log) })
        .change(&directory, Change::OmapRemove { key })
        .change(&directory, Change::OmapSet { key: format::unfinished_key(log), value: number(now_ms) });
    match store.submit(txn).wait() {
        Ok(_) => Ok(()),
        Err(StoreError::GuardFailed { .. }) => Err(Error::NoLog { name: name.to_owned() }),
        Err(error) => Err(error.into()),
    }
}

/// Gives a log another name.
pub(crate) fn rename(store: &dyn ObjectStore, from: &str, to: &str) -> Result<()> {
    let directory = format::directory();
    for _ in 0..ATTEMPTS_MAX {
        let log = find(store, from)?.ok_or_else(|| Error::NoLog { name: from.to_owned() })?;
        let (old, new) = (format::name_key(from), format::name_key(to));
        let txn = Transaction::new()
            .guard(&directory, Condition::OmapEquals { key: old.clone(), value: number(log) })
            .guard(&directory, Condition::OmapAbsent { key: new.clone() })
            .change(&directory, Change::OmapRemove { key: old })
            .change(&directory, Change::OmapSet { key: new, value: number(log) });
        match store.submit(txn).wait() {
            Ok(_) => return Ok(()),
            Err(StoreError::GuardFailed { index: 1 }) => return Err(Error::Exists { name: to.to_owned() }),
            Err(StoreError::GuardFailed { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(Error::Contended { what: format!("the name {from}"), attempts: ATTEMPTS_MAX })
}
