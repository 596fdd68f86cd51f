//! Heads: reads and changes views.
//!
//! load → change → compare-and-set by the view's version → again if another writer was faster
//!
//! Invariants:
//! 1. A view is only ever replaced by one made from it: the version is guarded in the same transaction.
//! 2. Everything here touches one object per transaction, so that stores which are atomic per object only will do.
//! 3. No view that was read is taken back by a crash, whatever the store's commit policy.
//! 4. A head stands before a name leads to it; it goes before its data.

use bytes::Bytes;
use esker_store::{Change, Compare, Condition, ObjectStore, Retry, Transaction, submit_guarded};

use crate::format::{self, VERSION, VIEW, number};
use crate::view::View;
use crate::{Error, Result};

pub(crate) fn load(store: &dyn ObjectStore, log: u64, name: &str) -> Result<View> {
    match store.xattr(&format::head(log), VIEW).wait()? {
        Some(bytes) => View::decode(name, &bytes),
        None => Err(Error::NoLog { name: name.to_owned() }),
    }
}

fn version_is(version: u64) -> Condition {
    Condition::compare(VERSION, Compare::Equal, version, false)
}

fn put(txn: &mut Transaction, log: u64, view: &View) {
    let head = format::head(log);
    txn.be_relied_on();
    txn.push(&head, Change::number(VERSION, view.version));
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
    Ok(submit_guarded(store, txn)?.is_none())
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
    let mut retry = Retry::default();
    loop {
        retry.attempt(|| format!("the view of log {name}"))?;
        let view = load(store, log, name)?;
        let mut next = view.clone();
        if !change(&mut next)? {
            return Ok(view);
        }
        if replace_with(store, log, &view, &mut next, note)? {
            return Ok(next);
        }
    }
}
