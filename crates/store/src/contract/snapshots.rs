//! Snapshots: a read-only view of the whole store at one moment.

use std::sync::atomic::{AtomicBool, Ordering};

use super::Harness;
use super::actions::*;
use crate::{Change, Collection, CommitCursor, CommitSeq, Error, ObjectId, ObjectStore, Snapshot, Transaction};

/// A snapshot, or `None` where the store says that it cannot make any.
#[track_caller]
fn taken(store: &dyn ObjectStore) -> Option<Snapshot> {
    match store.snapshot() {
        Ok(snapshot) => Some(snapshot),
        Err(Error::Unsupported { backend, what }) => {
            println!("skipped: {backend} cannot {what}");
            None
        }
        Err(error) => panic!("snapshot: {error}"),
    }
}

/// Whatever happens to the store afterwards, a snapshot shows what it showed at first.
pub fn a_snapshot_stays_as_it_was(harness: &dyn Harness) {
    let opened = furnished(harness);
    let store = opened.store();
    for number in 0..40u64 {
        let object = object_in(if number % 2 == 0 { HOME } else { AWAY }, &format!("o{}", number % 6));
        let large = vec![number as u8; 9_000];
        change(
            store,
            &object,
            [
                slot_set(number * 700, format!("slot {number}")),
                omap_set(format!("key {number}"), &large),
                xattr_set(&format!("name {}", number % 3), number.to_le_bytes()),
                write(number * 5_000, &large),
            ],
        );
    }
    let Some(taken) = taken(store) else { return };
    let before = snapshot(store);
    assert!(taken.seq > CommitSeq(0));
    assert!(snapshot(&*taken.store) == before, "what the store shows");
    for number in 0..6u64 {
        let object = object_in(if number % 2 == 0 { HOME } else { AWAY }, &format!("o{number}"));
        match number {
            0 => change(store, &object, [Change::Remove]),
            1 => change(store, &object, [Change::OmapClear, Change::Truncate { size: 3 }]),
            2 => change(store, &object, [Change::SlotRemoveRange { start: 0, end: u64::MAX }, write(0, "new")]),
            _ => change(
                store,
                &object,
                [omap_set("key 3", "other"), slot_set(2_100, "other"), xattr_set("name 0", "other")],
            ),
        };
    }
    ok(store, Transaction::new().create_collection(&"new".into()));
    change(store, &object_in("new", "made later"), [slot_set(1, "x")]);
    if store.capability().clone {
        change(store, &object_in(AWAY, "o3"), [Change::Rename { to: object_in(HOME, "moved") }]);
    }
    assert!(snapshot(&*taken.store) == before, "the store has changed, the snapshot has not");
    assert!(snapshot(store) != before);
    if store.capability().commit_order {
        let page = taken.store.commit_scan(&HOME.into(), b"", CommitCursor::default(), 1_000);
        let (entries, _) = got(page);
        assert_eq!(entries.len(), 40, "slots and keys of twenty changes");
    }
    let later = self::taken(store).expect("a second one");
    assert!(later.seq > taken.seq);
    assert!(snapshot(&*later.store) == snapshot(store));
    drop(taken);
    assert!(snapshot(&*later.store) == snapshot(store));
}

/// A snapshot takes no changes, and one of a snapshot is the same.
pub fn a_snapshot_is_read_only(harness: &dyn Harness) {
    let opened = furnished(harness);
    let store = opened.store();
    let o = object("o");
    change(store, &o, [slot_set(1, "a")]);
    let Some(taken) = taken(store) else { return };
    match taken.store.submit(changes(&o, [slot_set(1, "b")])).wait() {
        Err(Error::ReadOnly) => {}
        other => panic!("a change of a snapshot: {other:?}"),
    }
    assert_eq!(got(taken.store.slot_get(&o, 1)), Some(bytes("a")));
    assert_eq!(got(store.slot_get(&o, 1)), Some(bytes("a")));
}

/// Transactions over several objects are in a snapshot as a whole or not at all, and it outlives nothing it needs.
pub fn a_snapshot_shows_one_moment(harness: &dyn Harness) {
    let opened = furnished(harness);
    let store = opened.store();
    if !store.capability().atomic_across_objects {
        println!("skipped: {} is not atomic across objects", store.capability().backend);
        return;
    }
    let objects: Vec<_> = (0..6).map(|number| object(&format!("o{number}"))).collect();
    let set = |round: u64| {
        objects.iter().fold(Transaction::new(), |txn, object| {
            txn.change(object, slot_set(0, round.to_le_bytes())).change(object, omap_set("k", round.to_le_bytes()))
        })
    };
    ok(store, set(0));
    if taken(store).is_none() {
        return;
    }
    let collections = store.capability().atomic_across_collections;
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1..400 {
                ok(store, set(round));
                if collections {
                    // Made with what is in it, and removed with it.
                    let name = Collection::new(format!("made{}", round % 3));
                    let inside = ObjectId::new(name.clone(), "inside");
                    let txn = Transaction::new();
                    ok(
                        store,
                        match round / 3 % 2 {
                            0 => txn.create_collection(&name).change(&inside, Change::Touch),
                            _ => txn.change(&inside, Change::Remove).remove_collection(&name),
                        },
                    );
                }
            }
            done.store(true, Ordering::Release);
        });
        let mut last = 0;
        loop {
            let finished = done.load(Ordering::Acquire);
            let taken = taken(store).expect("it could before");
            let numbers: Vec<u64> = objects
                .iter()
                .flat_map(|object| {
                    let slot = got(taken.store.slot_get(object, 0)).expect("the slot is there");
                    let key = got(taken.store.omap_get(object, b"k")).expect("the key is there");
                    [slot, key].map(|value| u64::from_le_bytes(value[..].try_into().expect("eight bytes")))
                })
                .collect();
            for collection in got(taken.store.collections()) {
                let made = collection.name().starts_with(b"made");
                let list = got(taken.store.list(&collection, None, 10));
                assert!(!made || list.len() == 1, "{collection} has {} objects: half a transaction", list.len());
            }
            assert!(numbers.iter().all(|number| *number == numbers[0]), "half a transaction: {numbers:?}");
            assert!(numbers[0] >= last, "a later snapshot shows an earlier moment");
            last = numbers[0];
            if finished {
                assert_eq!(last, 399);
                return;
            }
        }
    });
}
