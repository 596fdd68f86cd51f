//! What faces share of the store: prefixes, names that lead to ids, what is being made and removed, and changes under
//! guards.

#![allow(clippy::unwrap_used, reason = "a test that fails")]

use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use esker_memory::MemoryStore;
use esker_store::number::number;
use esker_store::prefix::{names, objects, omap, omap_pages};
use esker_store::registry::{Directory, Leftover, Renamed, open_collection, remove_objects};
use esker_store::{
    Attempt, Change, Collection, Condition, Error, Forward, Incarnation, ObjectId, ObjectStore, OmapScan, Registry,
    Transaction, change_guarded, submit_guarded,
};

const HOME: &str = "home";

fn store() -> MemoryStore {
    let store = MemoryStore::new();
    for _ in 0..2 {
        open_collection(&store, &HOME.into(), Transaction::new()).unwrap();
    }
    store
}

fn object(name: &str) -> ObjectId {
    ObjectId::new(HOME.into(), name.as_bytes().to_vec())
}

fn registry() -> Registry {
    let directory =
        Directory { object: object("directory"), what: "directory of things", names: b"n", ids: Some(b'i') };
    Registry { directory, last_id: b"last", left: b'u' }
}

fn make(store: &MemoryStore, name: &str) -> u64 {
    let registry = registry();
    let id = registry.new_id(store, &Transaction::new(), |txn, id| registry.note(txn, id, &[], number(7))).unwrap();
    assert!(registry.link(store, name, id, number(7)).unwrap());
    id
}

fn all_names(store: &MemoryStore, after: Option<&str>) -> Vec<String> {
    registry().names(store, "", after, usize::MAX).map(|name| name.unwrap()).collect()
}

#[test]
fn ids_are_given_once_whatever_becomes_of_what_has_them() {
    let (store, registry) = (store(), registry());
    assert_eq!((make(&store, "a"), make(&store, "b")), (1, 2));
    let mut txn = Transaction::new();
    registry.unlink(&mut txn, "b", 2, number(0));
    registry.forget(&mut txn, 2, &[]);
    assert_eq!(submit_guarded(&store, txn).unwrap(), None);
    assert_eq!(make(&store, "b"), 3);
    // Two that read the same last id: the second is refused.
    let [mut first, mut second] = [Transaction::new(), Transaction::new()];
    assert_eq!([&mut first, &mut second].map(|txn| registry.give_id(&store, txn).unwrap()), [4, 4]);
    assert_eq!(submit_guarded(&store, first).unwrap(), None);
    assert_eq!(submit_guarded(&store, second).unwrap(), Some(0));
}

#[test]
fn what_is_made_is_noted_until_a_name_leads_to_it_and_what_is_removed_until_it_is_gone() {
    let (store, registry) = (store(), registry());
    let left = || registry.leftovers(&store).map(|left| left.unwrap()).collect::<Vec<_>>();
    let note = |txn: &mut Transaction, id| registry.note(txn, id, &[], number(7));
    let id = registry.new_id(&store, &Transaction::new(), note).unwrap();
    assert_eq!(left(), [Leftover { id, part: Bytes::new(), value: number(7) }]);
    assert_eq!(registry.id(&store, "a").unwrap(), None);
    assert!(registry.link(&store, "a", id, number(7)).unwrap());
    assert_eq!((left(), registry.id(&store, "a").unwrap()), (vec![], Some(id)));
    assert_eq!(registry.name(&store, id).unwrap().as_deref(), Some(&b"a"[..]));

    let other = registry.new_id(&store, &Transaction::new(), note).unwrap();
    assert!(!registry.link(&store, "a", other, number(7)).unwrap(), "the name is taken");
    assert!(!registry.link(&store, "b", 99, number(7)).unwrap(), "it was collected");
    // Who collects and who finishes it meet: one of both comes too late.
    let left_behind = left().pop().unwrap();
    assert!(registry.condemn(&store, &left_behind, number(0)).unwrap());
    assert!(!registry.link(&store, "b", other, number(7)).unwrap(), "it was condemned");
    assert!(!registry.condemn(&store, &left_behind, number(0)).unwrap());
    let made = registry.new_id(&store, &Transaction::new(), note).unwrap();
    let left_behind = Leftover { id: made, ..left_behind };
    assert!(registry.link(&store, "c", made, number(7)).unwrap());
    assert!(!registry.condemn(&store, &left_behind, number(0)).unwrap(), "a name leads to it");
    let mut txn = Transaction::new();
    registry.unlink(&mut txn, "c", made, Bytes::new());
    registry.forget(&mut txn, made, &[]);
    assert_eq!(submit_guarded(&store, txn).unwrap(), None);

    let mut txn = Transaction::new();
    registry.unlink(&mut txn, "a", id, Bytes::new());
    assert_eq!(submit_guarded(&store, txn.clone()).unwrap(), None);
    assert_eq!(submit_guarded(&store, txn).unwrap(), Some(0), "the name does not lead to it any more");
    assert_eq!(left().iter().map(|left| left.id).collect::<Vec<_>>(), [id, other]);
    assert_eq!((registry.id(&store, "a").unwrap(), registry.name(&store, id).unwrap()), (None, None));
    let mut txn = Transaction::new();
    registry.note(&mut txn, id, &[0, 5], Bytes::new());
    registry.forget(&mut txn, id, &[]);
    registry.forget(&mut txn, other, &[]);
    store.submit(txn).wait().unwrap();
    assert_eq!(left(), [Leftover { id, part: Bytes::from_static(&[0, 5]), value: Bytes::new() }]);
}

#[test]
fn names_are_listed_in_order_and_renamed_to_free_ones() {
    let (store, registry) = (store(), registry());
    for name in ["b", "a", "ab", "c"] {
        make(&store, name);
    }
    assert_eq!(all_names(&store, None), ["a", "ab", "b", "c"]);
    assert_eq!(all_names(&store, Some("a")), ["ab", "b", "c"]);
    let some =
        |first, after, limit| registry.names(&store, first, after, limit).map(|name| name.unwrap()).collect::<Vec<_>>();
    assert_eq!(some("a", None, usize::MAX), ["", "b"]);
    assert_eq!(some("a", Some(""), usize::MAX), ["b"]);
    assert_eq!((some("", None, 2), some("", None, 0)), (vec!["a".to_string(), "ab".into()], vec![]));
    assert_eq!(registry.rename(&store, "a", "b").unwrap(), Renamed::Taken);
    assert_eq!(registry.rename(&store, "x", "y").unwrap(), Renamed::Missing);
    assert_eq!(registry.rename(&store, "a", "z").unwrap(), Renamed::Done);
    assert_eq!(all_names(&store, None), ["ab", "b", "c", "z"]);
    assert_eq!(registry.name(&store, 2).unwrap().as_deref(), Some(&b"z"[..]));
}

#[test]
fn a_directory_that_makes_no_sense_is_damaged_and_gives_nothing() {
    let (store, registry) = (store(), registry());
    let name = Bytes::from_static(b"last");
    for value in [Bytes::from_static(b"short"), number(u64::MAX)] {
        store
            .submit(Transaction::new().change(&registry.object, Change::XattrSet { name: name.clone(), value }))
            .wait()
            .unwrap();
        let given = registry.new_id(&store, &Transaction::new(), |_, _| ());
        assert!(matches!(given, Err(Error::Corrupt { .. })), "{given:?}");
    }
    let key = registry.key("a");
    store
        .submit(Transaction::new().change(&registry.object, Change::OmapSet { key, value: "?".into() }))
        .wait()
        .unwrap();
    assert!(matches!(registry.id(&store, "a"), Err(Error::Corrupt { .. })));
}

#[test]
fn a_prefix_is_walked_whole_though_it_shrinks_meanwhile() {
    let store = store();
    let mut txn = Transaction::new();
    for number in 0..2_500 {
        txn.push(&object(&format!("d/1/{number:04}")), Change::Touch);
        txn.push(&object("o"), Change::OmapSet { key: format!("k{number:04}").into(), value: Bytes::new() });
    }
    // Neighbours, and an object of the prefix's own name.
    for name in ["d/1", "d/1.", "d/1/", "d/2/0", "d"] {
        txn.push(&object(name), Change::Touch);
    }
    for key in ["j", "l"] {
        txn.push(&object("o"), Change::OmapSet { key: key.into(), value: Bytes::new() });
    }
    store.submit(txn).wait().unwrap();
    let home = Collection::from(HOME);
    let found =
        |after: Option<&[u8]>| names(&store, &home, b"d/1/", after).map(|name| name.unwrap()).collect::<Vec<_>>();
    assert_eq!((found(None).len(), &found(None)[0][..]), (2_501, &b"d/1/"[..]));
    assert_eq!(found(Some(b"d/1/2497")), ["d/1/2498", "d/1/2499"]);
    assert_eq!(names(&store, &home, b"", None).count(), 2_506);

    let scan = OmapScan::of(b"k").at_once(100);
    assert_eq!(omap(&store, &object("o"), scan.clone()).count(), 2_500);
    let reverse = OmapScan { reverse: true, ..scan.clone() };
    let back: Vec<_> = omap(&store, &object("o"), reverse).map(|entry| entry.unwrap().0).collect();
    assert_eq!((back.len(), &back[0][..], &back[2_499][..]), (2_500, &b"k2499"[..], &b"k0000"[..]));
    for page in omap_pages(&store, &object("o"), scan.clone()) {
        let mut txn = Transaction::new();
        page.unwrap().into_iter().for_each(|(key, _)| txn.push(&object("o"), Change::OmapRemove { key }));
        store.submit(txn).wait().unwrap();
    }
    assert_eq!(omap(&store, &object("o"), OmapScan::of(b"")).count(), 2);

    let all = || names(&store, &home, b"d/1/", None).map(|name| Ok(ObjectId::new(HOME.into(), name?)));
    assert!(!remove_objects(&store, all(), &mut |gone| gone < 1_000).unwrap(), "stopped");
    let mut last = 0;
    assert!(
        remove_objects(&store, all(), &mut |gone| {
            last = gone;
            true
        })
        .unwrap()
    );
    assert_eq!((last, names(&store, &home, b"", None).count()), (2_501 - 1_024, 5));
}

#[test]
fn a_change_reads_again_when_another_was_faster() {
    let store = store();
    let (counter, mut attempts) = (object("counter"), 0);
    let value = change_guarded(
        &store,
        || "a counter".into(),
        || {
            attempts += 1;
            let now = store.omap_get(&counter, b"n").wait()?;
            if attempts < 4 {
                // Another changes it between the read and the write.
                let other = Change::OmapSet { key: "n".into(), value: number(attempts) };
                store.submit(Transaction::new().change(&counter, other)).wait()?;
            }
            let txn = Transaction::new().guard(&counter, Condition::omap_is("n".into(), now));
            let set = Change::OmapSet { key: "n".into(), value: number(100) };
            Ok::<_, Error>(Attempt::Submit(txn.change(&counter, set), attempts))
        },
    );
    assert_eq!(value.unwrap(), 4);
    assert_eq!(store.omap_get(&counter, b"n").wait().unwrap(), Some(number(100)));
}

/// A store that is restarted whenever a caller asks which life it is in.
struct Restarting {
    behind: MemoryStore,
    lives: AtomicU64,
}

impl Forward for Restarting {
    fn behind(&self) -> &dyn ObjectStore {
        &self.behind
    }

    fn incarnation(&self) -> Incarnation {
        Incarnation(self.lives.fetch_add(1, Ordering::Relaxed) + 1)
    }
}

/// Failure: a sweeper that met a name which is no text met it again at each step, for ever. Cause: the directory told
/// it as another text. Fix: the directory tells it as damage.
#[test]
fn a_name_that_is_no_text_is_damage() {
    let (store, registry) = (store(), registry());
    make(&store, "a");
    let change = Change::OmapSet { key: Bytes::from_static(b"n\xff"), value: number(9) };
    ObjectStore::submit(&store, Transaction::new().change(&registry.object, change)).wait().unwrap();
    let told: Vec<_> = registry.names(&store, "", None, 10).collect();
    assert!(matches!(&told[..], [Ok(name), Err(Error::Corrupt { .. })] if name == "a"), "{told:?}");
}

/// What was removed before a restart may be there again after it: logs and tables forgot it all the same, and its space
/// was lost for good.
#[test]
fn what_may_have_come_back_in_a_restart_is_not_taken_for_gone() {
    let store = Restarting { behind: store(), lives: AtomicU64::new(0) };
    ObjectStore::submit(&store, Transaction::new().change(&object("d/1/0"), Change::Touch)).wait().unwrap();
    let all = || objects(&store, &HOME.into(), b"d/1/", None);
    assert!(!remove_objects(&store, all(), &mut |_| true).unwrap());
    // Nor is what is found gone already: the client that removed it may not have had it synced before the restart.
    assert!(!remove_objects(&store, all(), &mut |_| true).unwrap());
    let settled = store.behind;
    assert!(remove_objects(&settled, objects(&settled, &HOME.into(), b"d/1/", None), &mut |_| true).unwrap());
}
