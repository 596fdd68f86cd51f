//! Headers: reads and changes the state of an image and the records of its snapshots.
//!
//! load → change in memory, with the operations that belong to it → one transaction, guarded by the generation → again
//! if another client was faster
//!
//! Invariants:
//! 1. Every change of a state raises its generation, in the same transaction. So a writer that guards the generation
//!    acts on the state that it knows.
//! 2. What a change returns, and what is read of a state, is durable, whatever the store's commit policy: no crash
//!    takes back a lock or a snapshot under those who have seen it.

use bytes::Bytes;
use esker_store::{
    Attempt, Change, Compare, Condition, ObjectId, ObjectStore, OmapScan, Transaction, change_guarded, prefix,
};

use crate::format::{self, GENERATION, ParentLink, STATE, SnapRecord, State};
use crate::{Error, Result};

pub(crate) fn load(store: &dyn ObjectStore, image: u64) -> Result<Option<State>> {
    let found = store.xattr(&format::header(image), STATE).wait()?;
    found.map(|bytes| State::decode(image, &bytes)).transpose()
}

pub(crate) fn snapshot(store: &dyn ObjectStore, image: u64, snap: u64) -> Result<Option<SnapRecord>> {
    let found = store.omap_get(&format::header(image), &format::snap_key(snap)).wait()?;
    found.map(|bytes| SnapRecord::decode(image, snap, &bytes)).transpose()
}

/// The newest snapshot below `below`, with its record.
pub(crate) fn snapshot_before(store: &dyn ObjectStore, image: u64, below: u64) -> Result<Option<u64>> {
    let scan = OmapScan {
        start: Some(format::snap_key(0)),
        end: Some(format::snap_key(below)),
        keys_only: true,
        ..OmapScan::default()
    };
    let found = prefix::last_omap(store, &format::header(image), scan)?;
    Ok(found.and_then(|(key, _)| format::key_number(&key)))
}

/// All omap entries of an object whose keys start with `prefix`.
pub(crate) fn entries(
    store: &dyn ObjectStore,
    object: &ObjectId,
    prefix: u8,
    keys_only: bool,
) -> Result<Vec<(Bytes, Bytes)>> {
    let scan = OmapScan { keys_only, ..OmapScan::of([prefix]) };
    prefix::omap(store, object, scan).map(|entry| Ok(entry?)).collect()
}

/// The guard that every write carries.
pub(crate) fn guarded(txn: Transaction, image: u64, generation: u64) -> Transaction {
    txn.guard(&format::header(image), Condition::compare(GENERATION, Compare::Equal, generation, false))
}

/// Adds what writes `state`.
pub(crate) fn put(txn: &mut Transaction, image: u64, state: &State) {
    let header = format::header(image);
    txn.be_relied_on();
    txn.push(&header, Change::number(GENERATION, state.generation));
    txn.push(&header, Change::XattrSet { name: Bytes::from_static(STATE), value: state.encode() });
}

/// What errors call the header of an image.
pub(crate) fn called(image: &str) -> String {
    format!("the header of image {image}")
}

/// Changes the state of an image: `change` gets what is stored and adds to the transaction what belongs to it, guards
/// too (the first is the generation's). It is called again when the header, or anything it guards, was changed
/// meanwhile.
pub(crate) fn change(
    store: &dyn ObjectStore,
    image: u64,
    name: &str,
    mut change: impl FnMut(&mut State, &mut Transaction) -> Result<()>,
) -> Result<State> {
    change_guarded(
        store,
        || called(name),
        || {
            let state = load(store, image)?.filter(|state| !state.removing);
            let state = state.ok_or_else(|| Error::NoImage { name: name.to_owned() })?;
            let mut next = state.clone();
            // If the answer to a change is lost, the header does not tell the client whether it was this one that was
            // applied.
            let mut txn = guarded(Transaction::new().once(), image, state.generation);
            change(&mut next, &mut txn)?;
            next.generation += 1;
            put(&mut txn, image, &next);
            Ok(Attempt::Submit(txn, next))
        },
    )
}

/// What holds as long as no client changed the record of a snapshot.
pub(crate) fn same_record(snap: u64, record: &SnapRecord) -> Condition {
    Condition::OmapEquals { key: format::snap_key(snap), value: record.encode() }
}

/// Adds what takes `child` off the list of a snapshot's children, if it is on it.
pub(crate) fn push_forget(
    store: &dyn ObjectStore,
    txn: &mut Transaction,
    parent: ParentLink,
    child: u64,
) -> Result<()> {
    let header = format::header(parent.image);
    let key = format::child_key(parent.snap, child);
    if store.omap_get(&header, &key).wait()?.is_none() {
        return Ok(());
    }
    txn.push_guard(&header, Condition::OmapPresent { key: key.clone() });
    if let Some(record) = snapshot(store, parent.image, parent.snap)? {
        txn.push_guard(&header, same_record(parent.snap, &record));
        let next = SnapRecord { children: record.children.saturating_sub(1), ..record };
        txn.push(&header, Change::OmapSet { key: format::snap_key(parent.snap), value: next.encode() });
    }
    txn.push(&header, Change::OmapRemove { key });
    Ok(())
}
