//! Several clients on one store, what takes several operations, and limits.
//!
//! CEPH_CONF names the configuration of a cluster with a pool `bench`, in which more pools may be made.

#![cfg(feature = "librados")]
#![allow(clippy::unwrap_used, reason = "a test that fails")]

mod support;

use std::collections::BTreeSet;
use std::ffi::CString;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use bytes::Bytes;
use esker_rados::{OpenError, Options, RadosStore, Write};
use esker_store::{
    Change, Collection, CommitSeq, Condition, Error, ObjectId, ObjectStore, OmapScan, SlotScan, Transaction, prefix,
};

fn collection() -> Collection {
    Collection::from("c")
}

fn object(name: &str) -> ObjectId {
    ObjectId::new(collection(), name.to_owned())
}

fn with_collection(namespace: &str) -> RadosStore {
    let store = support::store(namespace);
    store.submit(Transaction::new().create_collection(&collection())).wait().unwrap();
    store
}

fn slot(index: u64, value: &str) -> Change {
    Change::SlotSet { index, value: Bytes::copy_from_slice(value.as_bytes()) }
}

fn upwards(limit: usize) -> SlotScan {
    SlotScan { range: 0..u64::MAX, reverse: false, limit, keys_only: false }
}

fn all_slots(store: &dyn ObjectStore, of: &ObjectId) -> Vec<(u64, Bytes)> {
    let mut all: Vec<(u64, Bytes)> = Vec::new();
    loop {
        let start = all.last().map_or(0, |(last, _)| last + 1);
        let page = store.slot_scan(of, &SlotScan { range: start..u64::MAX, ..upwards(10_000) }).wait().unwrap();
        if page.is_empty() {
            return all;
        }
        all.extend(page);
    }
}

fn ceph(arguments: &[&str]) {
    let output = Command::new("ceph").args(arguments).output().unwrap();
    assert!(output.status.success(), "ceph {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn many_clients_that_make_one_object_all_come_to_it() {
    let namespace = support::namespace();
    let store = with_collection(&namespace);
    std::thread::scope(|scope| {
        for client in 0..16 {
            let namespace = &namespace;
            scope.spawn(move || {
                let store = support::store(namespace);
                for name in 0..4 {
                    let txn = Transaction::new().change(&object(&name.to_string()), slot(client, "v"));
                    store.submit(txn).wait().unwrap();
                }
            });
        }
    });
    for name in 0..4 {
        let all = upwards(100);
        let found = store.slot_scan(&object(&name.to_string()), &all).wait().unwrap();
        assert_eq!(found.iter().map(|(index, _)| *index).collect::<Vec<_>>(), (0..16).collect::<Vec<_>>());
    }
    assert_eq!(store.list(&collection(), None, 100).wait().unwrap(), ["0", "1", "2", "3"]);
}

#[test]
fn what_shows_is_listed_though_others_make_and_remove_its_collection() {
    let namespace = support::namespace();
    drop(with_collection(&namespace));
    let over = AtomicBool::new(false);
    // Names that are there for good, as their makers were told.
    let made = Mutex::new(BTreeSet::new());
    let removed = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            let (namespace, over, removed) = (&namespace, &over, &removed);
            scope.spawn(move || {
                let store = support::store(namespace);
                while !over.load(Ordering::SeqCst) {
                    match store.submit(Transaction::new().remove_collection(&collection())).wait() {
                        Ok(_) => drop(removed.fetch_add(1, Ordering::SeqCst)),
                        Err(Error::NotEmpty { .. } | Error::Contended { .. } | Error::Unknown { .. }) => {}
                        Err(error) => panic!("removing: {error}"),
                    }
                    store.submit(Transaction::new().create_collection(&collection())).wait().unwrap();
                }
            });
        }
        for maker in 0..3 {
            let (namespace, over, made) = (&namespace, &over, &made);
            scope.spawn(move || {
                let store = support::store(namespace);
                for number in 0.. {
                    if over.load(Ordering::SeqCst) {
                        break;
                    }
                    let name = format!("{maker}-{number}");
                    match store.submit(Transaction::new().change(&object(&name), slot(0, "v"))).wait() {
                        Ok(_) => {
                            made.lock().unwrap().insert(name.clone());
                            // It stays for a while, and goes: only then the collection can.
                            std::thread::sleep(Duration::from_millis(number % 7));
                            made.lock().unwrap().remove(&name);
                            store.submit(Transaction::new().change(&object(&name), Change::Remove)).wait().unwrap();
                        }
                        Err(Error::NoCollection { .. }) => {}
                        Err(error) => panic!("making: {error}"),
                    }
                }
            });
        }
        let store = support::store(&namespace);
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(15) {
            let before = made.lock().unwrap().clone();
            let listed = store.list(&collection(), None, 1_000).wait();
            let after = made.lock().unwrap().clone();
            // There all the time: in a collection that is there, and listed.
            let whole: Vec<_> = before.intersection(&after).cloned().collect();
            match listed {
                Ok(listed) => {
                    let listed: BTreeSet<_> =
                        listed.iter().map(|name| String::from_utf8_lossy(name).into_owned()).collect();
                    let missing: Vec<_> = whole.iter().filter(|name| !listed.contains(*name)).collect();
                    assert!(missing.is_empty(), "{missing:?} are there and not listed");
                }
                Err(Error::NoCollection { .. }) => {}
                Err(error) => panic!("listing: {error}"),
            }
        }
        over.store(true, Ordering::SeqCst);
    });
    assert!(removed.load(Ordering::SeqCst) > 3, "{removed:?} removals");
    let store = with_collection(&namespace);
    assert_eq!(store.list(&collection(), None, 1_000).wait().unwrap(), Vec::<Bytes>::new());
    store.submit(Transaction::new().change(&object("last"), slot(0, "v"))).wait().unwrap();
    assert_eq!(store.list(&collection(), None, 1_000).wait().unwrap(), ["last"]);
}

#[test]
fn the_last_key_is_found_while_another_client_changes_the_object() {
    let namespace = support::namespace();
    let store = with_collection(&namespace);
    let (of, over) = (object("o"), AtomicBool::new(false));
    // As many keys as an OSD lists at once, and something behind them.
    let mut txn = Transaction::new();
    (0..1_024).for_each(|n| txn.push(&of, Change::OmapSet { key: format!("k{n:04}").into(), value: "v".into() }));
    (0..5).for_each(|n| txn.push(&of, slot(n, "v")));
    txn.push(&of, Change::OmapSet { key: "z".into(), value: "behind".into() });
    store.submit(txn).wait().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let other = support::store(&namespace);
            for n in 0.. {
                if over.load(Ordering::SeqCst) {
                    break;
                }
                other.submit(Transaction::new().change(&of, Change::number(b"epoch", n))).wait().unwrap();
            }
        });
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(5) {
            let last = prefix::last_omap(&store, &of, OmapScan::of("k")).unwrap();
            assert_eq!(last, Some(("k1023".into(), "v".into())));
            let scan = OmapScan { reverse: true, limit: 3, ..OmapScan::of("k") };
            let keys: Vec<_> = store.omap_scan(&of, &scan).wait().unwrap().into_iter().map(|(key, _)| key).collect();
            assert_eq!(keys, ["k1023", "k1022", "k1021"]);
            let stat = store.stat(&of).wait().unwrap().unwrap();
            assert_eq!((stat.omap_keys, stat.slots), (1_025, 5));
        }
        over.store(true, Ordering::SeqCst);
    });
}

#[test]
fn slots_are_scanned_upwards_wherever_they_are_and_however_large_their_values() {
    let store = with_collection(&support::namespace());
    let of = object("o");
    let far = [7, 1_000_000, 1_000_001, 1 << 40, (1 << 40) + 5, u64::MAX - 1];
    let mut txn = Transaction::new();
    far.iter().for_each(|index| txn.push(&of, slot(*index, &index.to_string())));
    store.submit(txn).wait().unwrap();
    for limit in [1, 2, 5, 1_000] {
        for keys_only in [false, true] {
            let scan = SlotScan { keys_only, ..upwards(limit) };
            let found = store.slot_scan(&of, &scan).wait().unwrap();
            let wanted: Vec<_> = far.iter().take(limit).copied().collect();
            assert_eq!(found.iter().map(|(index, _)| *index).collect::<Vec<_>>(), wanted, "limit {limit}");
            assert!(found.iter().all(|(index, value)| keys_only || *value == index.to_string()));
        }
    }
    // Trimmed below, full above.
    let dense = object("dense");
    for part in 0..5 {
        let mut txn = Transaction::new();
        (0..1_000).for_each(|n| txn.push(&dense, slot(5_000_000 + part * 1_000 + n, "v")));
        store.submit(txn).wait().unwrap();
    }
    let scan = upwards(3);
    let found: Vec<_> = store.slot_scan(&dense, &scan).wait().unwrap().into_iter().map(|(index, _)| index).collect();
    assert_eq!(found, [5_000_000, 5_000_001, 5_000_002]);
    let mut all = all_slots(&store, &dense).into_iter().map(|(index, _)| index);
    assert!((5_000_000..5_005_000).all(|index| all.next() == Some(index)) && all.next().is_none());
    // A scan that may give 16 MiB gives about that, of values of 1 MiB.
    let large = object("large");
    for index in 0..40 {
        let value = Bytes::from(vec![7; 1 << 20]);
        store.submit(Transaction::new().change(&large, Change::SlotSet { index, value })).wait().unwrap();
    }
    let all: Vec<_> = all_slots(&store, &large);
    assert!(all.iter().map(|(index, _)| *index).eq(0..40) && all.iter().all(|(_, value)| value.len() == 1 << 20));
}

#[test]
fn an_operation_of_too_many_parts_is_refused_by_its_number_and_one_of_the_most_is_done() {
    let store = with_collection(&support::namespace());
    let of = object("o");
    let zeros = |count: u64| {
        let mut txn = Transaction::new();
        (0..count).for_each(|n| txn.push(&of, Change::Zero { offset: 2 * n, len: 1 }));
        store.submit(txn).wait()
    };
    match zeros(33_000) {
        Err(Error::TooLarge { len: 66_008, limit: "PARTS_MAX", max: 16_384, .. }) => {}
        other => panic!("{other:?}"),
    }
    assert_eq!(store.size(&of).wait().unwrap(), None);
    zeros(500).unwrap();
    assert_eq!(store.size(&of).wait().unwrap(), Some(999));
    let guarded = |count: u64| {
        let mut txn = Transaction::new();
        (0..count).for_each(|index| txn = std::mem::take(&mut txn).guard(&of, Condition::SlotAbsent { index }));
        store.submit(txn.change(&of, slot(5_000, "v"))).wait()
    };
    assert!(matches!(guarded(70_000), Err(Error::TooLarge { .. })));
    guarded(5_001).unwrap();
    // Its last part counts.
    assert!(matches!(guarded(5_001), Err(Error::GuardFailed { index: 5_000 })));
}

#[test]
fn submits_that_are_not_waited_for_are_done_in_their_order_and_a_sync_waits_for_them() {
    let namespace = support::namespace();
    let (store, other) = (with_collection(&namespace), support::store(&namespace));
    for round in 0..5 {
        let of = object(&format!("o{round}"));
        // The first of them makes the object.
        let begun: Vec<_> = (0..200u64)
            .map(|n| store.submit(Transaction::new().change(&of, Change::number(b"n", n)).change(&of, slot(n, "v"))))
            .collect();
        store.sync().wait().unwrap();
        // Another client sees the last of them before the writer has waited for one.
        assert_eq!(other.xattr(&of, b"n").wait().unwrap().as_deref(), Some(&199u64.to_le_bytes()[..]));
        let seqs: Vec<_> = begun.into_iter().map(|done| done.wait().unwrap()).collect();
        assert_eq!(seqs.iter().collect::<BTreeSet<_>>().len(), 200);
        assert_eq!(store.stat(&of).wait().unwrap().unwrap().slots, 200);
    }
}

#[test]
fn a_pool_that_is_deleted_or_erasure_coded_or_has_no_store_is_told_so() {
    let file = std::env::var_os("CEPH_CONF").expect("CEPH_CONF names no cluster");
    let options = |create| Options { conf: Some(file.clone().into()), create, ..Options::default() };
    let place = format!("bench/{}", support::namespace());
    assert!(matches!(RadosStore::connect(&place, &options(false)), Err(OpenError::Missing { .. })));
    drop(RadosStore::connect(&place, &options(true)).unwrap());
    drop(RadosStore::connect(&place, &options(false)).unwrap());
    assert!(matches!(RadosStore::connect("nosuch/n", &options(true)), Err(OpenError::Connect(_))));

    let name = format!("short-{}", std::process::id());
    ceph(&["osd", "pool", "create", &name, "8", "8"]);
    ceph(&["osd", "pool", "set", &name, "size", "1", "--yes-i-really-mean-it"]);
    let store = RadosStore::connect(&format!("{name}/n"), &options(true)).unwrap();
    store.submit(Transaction::new().create_collection(&collection())).wait().unwrap();
    store.submit(Transaction::new().change(&object("o"), slot(1, "v"))).wait().unwrap();
    ceph(&["config", "set", "mon", "mon_allow_pool_delete", "true"]);
    ceph(&["osd", "pool", "delete", &name, &name, "--yes-i-really-really-mean-it"]);
    let began = Instant::now();
    let refused = loop {
        match store.submit(Transaction::new().change(&object("new"), slot(1, "v"))).wait() {
            // The client has not heard of it yet.
            Ok(_) if began.elapsed() < Duration::from_secs(20) => {}
            other => break other,
        }
    };
    assert!(matches!(refused, Err(Error::Stopped { .. } | Error::Io { .. })), "{refused:?}");
    assert!(began.elapsed() < Duration::from_secs(40));
    assert!(store.collections().wait().is_err());

    let name = format!("coded-{}", std::process::id());
    ceph(&["osd", "erasure-code-profile", "set", &name, "k=2", "m=1", "crush-failure-domain=osd"]);
    ceph(&["osd", "pool", "create", &name, "4", "4", "erasure", &name]);
    let coded = Options { timeout: Duration::from_secs(3), ..options(true) };
    match RadosStore::connect(&format!("{name}/n"), &coded) {
        Err(OpenError::Store(Error::Invalid { what: "pool of Ceph", .. })) => {}
        // With one OSD its placement groups are not active, and the first look is not answered: nothing was written.
        Err(OpenError::Store(Error::Io { source, .. })) => assert_eq!(source.kind(), std::io::ErrorKind::TimedOut),
        other => panic!("{:?}", other.err()),
    }
    ceph(&["osd", "pool", "delete", &name, &name, "--yes-i-really-really-mean-it"]);
}

#[test]
fn what_is_begun_on_a_missing_object_is_done_in_order_whatever_it_needs() {
    let store = with_collection(&support::namespace());
    for round in 0..20 {
        let of = object(&format!("o{round}"));
        let change = |change| Transaction::new().change(&of, change);
        // Set, then removed; made, then guarded; made, then gone.
        let begun = [
            store.submit(change(slot(1, "v"))),
            store.submit(change(Change::SlotRemove { index: 1 })),
            store.submit(Transaction::new().guard(&of, Condition::Exists).change(&of, slot(2, "w"))),
        ];
        begun.into_iter().for_each(|done| assert!(done.wait().unwrap() > CommitSeq(0)));
        assert_eq!(store.slot_get(&of, 1).wait().unwrap(), None);
        assert_eq!(store.slot_get(&of, 2).wait().unwrap(), Some("w".into()));
        let of = object(&format!("gone{round}"));
        let begun = [
            store.submit(Transaction::new().change(&of, slot(1, "v"))),
            store.submit(Transaction::new().change(&of, Change::Remove)),
        ];
        begun.into_iter().for_each(|done| assert!(done.wait().unwrap() > CommitSeq(0)));
        assert_eq!(store.size(&of).wait().unwrap(), None);
    }
}

#[test]
fn the_last_of_exactly_a_page_are_found_with_something_behind_them() {
    let store = with_collection(&support::namespace());
    for count in [1_023, 1_024, 1_025, 2_048] {
        let of = object(&count.to_string());
        let mut txn = Transaction::new().change(&of, slot(1, "v"));
        (0..count).for_each(|n| txn.push(&of, Change::OmapSet { key: format!("k{n:04}").into(), value: "v".into() }));
        store.submit(txn).wait().unwrap();
        for keys_only in [false, true] {
            let scan = OmapScan { reverse: true, limit: 2_000, keys_only, ..OmapScan::of("k") };
            let found = store.omap_scan(&of, &scan).wait().unwrap();
            assert!(!found.is_empty());
            let wanted = (0..count).rev().map(|n| format!("k{n:04}"));
            assert!(found.iter().zip(wanted).all(|((key, _), wanted)| *key == wanted), "{count} keys");
        }
    }
}

fn wait<T>(begin: impl FnOnce(Box<dyn FnOnce(T) + Send>)) -> T
where
    T: Send + 'static,
{
    let (tell, told) = channel();
    begin(Box::new(move |outcome| {
        let _ = tell.send(outcome);
    }));
    told.recv().unwrap()
}

#[test]
fn a_maker_who_is_late_makes_nothing_in_a_later_collection_of_the_name() {
    let namespace = support::namespace();
    let store = with_collection(&namespace);
    // Who has added an entry, and is paused before it makes the object.
    let pool = support::client().pool("bench", &namespace).unwrap();
    let key = [&b"nlate\x01\x01"[..], b"00000000000000000000000000000abc"].concat();
    let mut write = Write::new();
    write.assert_exists();
    write.set_omap(&[(&key, b"\x01")]);
    wait(|told| pool.write(c"ic\x01\x0305", write, 0, told)).unwrap();
    let late = || {
        let mut write = Write::new();
        write.create(true);
        write.set_xattr(c"named", b"n0500000000000000000000000000000abc");
        wait(|told| pool.write(c"oc\x01\x03late", write, 0, told)).map_err(|failed| failed.code)
    };
    assert_eq!(store.list(&collection(), None, 10).wait().unwrap(), Vec::<Bytes>::new());
    store.submit(Transaction::new().remove_collection(&collection())).wait().unwrap();
    assert_eq!(late(), Err(17), "in the collection that is gone");
    store.submit(Transaction::new().create_collection(&collection())).wait().unwrap();
    assert_eq!(late(), Err(17), "in the later one");
    // Nor once the object was there and is gone.
    for value in ["v", "w"] {
        let of = object("late");
        assert_eq!(store.stat(&of).wait().unwrap(), None);
        assert_eq!(store.size(&of).wait().unwrap(), None);
        assert_eq!(store.read(&of, 0..10).wait().unwrap(), "");
        assert_eq!(store.xattrs(&of).wait().unwrap(), []);
        assert_eq!(store.xattr(&of, b"tomb").wait().unwrap(), None);
        assert_eq!(store.omap_scan(&of, &OmapScan::default()).wait().unwrap(), []);
        assert_eq!(store.omap_get(&of, b"k").wait().unwrap(), None);
        assert_eq!((all_slots(&store, &of), store.extents(&of, 0..10).wait().unwrap()), (vec![], vec![]));
        store.submit(Transaction::new().change(&object("late"), slot(1, value))).wait().unwrap();
        assert_eq!(store.slot_get(&object("late"), 1).wait().unwrap().as_deref(), Some(value.as_bytes()));
        assert_eq!(store.list(&collection(), None, 10).wait().unwrap(), ["late"]);
        store.submit(Transaction::new().change(&object("late"), Change::Remove)).wait().unwrap();
        assert_eq!(late(), Err(17));
        assert_eq!(store.list(&collection(), None, 10).wait().unwrap(), Vec::<Bytes>::new());
    }
}

#[test]
fn who_makes_a_shard_late_gives_no_object_a_name_in_a_collection_that_is_gone() {
    let namespace = support::namespace();
    let (store, other) = (with_collection(&namespace), support::store(&namespace));
    // It knows the collection's token.
    other.submit(Transaction::new().change(&object("o"), Change::Touch)).wait().unwrap();
    other.submit(Transaction::new().change(&object("o"), Change::Remove)).wait().unwrap();
    let pool = support::client().pool("bench", &namespace).unwrap();
    let shards = || (0..16).map(|n| CString::new(format!("ic\x01\x03{n:02}")).unwrap());
    store.submit(Transaction::new().remove_collection(&collection())).wait().unwrap();
    for shard in shards() {
        let mut write = Write::new();
        write.create(true);
        assert_eq!(wait(|told| pool.write(&shard, write, 0, told)).unwrap_err().code, 17, "{shard:?}");
    }
    for _ in 0..20 {
        let made = other.submit(Transaction::new().change(&object("o"), Change::Touch)).wait();
        assert!(matches!(made, Err(Error::NoCollection { .. })), "{made:?}");
    }
    store.submit(Transaction::new().create_collection(&collection())).wait().unwrap();
    other.submit(Transaction::new().change(&object("o"), Change::Touch)).wait().unwrap();
    assert_eq!(store.list(&collection(), None, 10).wait().unwrap(), ["o"]);
}

#[test]
fn objects_that_others_write_to_all_the_time_keep_none_waiting() {
    let store = with_collection(&support::namespace());
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // More than there are threads for what takes several operations: each object is made and removed all the time.
        let busy: Vec<_> = (0..40)
            .map(|name| {
                let (store, over, of) = (&store, &over, object(&format!("busy{name}")));
                scope.spawn(move || {
                    while !over.load(Ordering::SeqCst) {
                        let txn = || Transaction::new().change(&of, Change::Remove).change(&of, Change::Touch);
                        let [one, other] = [txn(), txn()].map(|txn| store.submit(txn));
                        one.wait().unwrap();
                        other.wait().unwrap();
                    }
                })
            })
            .collect();
        let began = Instant::now();
        for round in 0..3 {
            let removed = Transaction::new().change(&object("o"), Change::Touch).change(&object("o"), Change::Remove);
            store.submit(removed).wait().unwrap();
            assert!(began.elapsed() < Duration::from_secs(30), "round {round}");
        }
        over.store(true, Ordering::SeqCst);
        busy.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

#[test]
fn submits_that_go_together_come_to_what_each_comes_to_by_itself() {
    let (store, model) = (with_collection(&support::namespace()), esker_memory::MemoryStore::new());
    model.submit(Transaction::new().create_collection(&collection())).wait().unwrap();
    let mut rng = fastrand::Rng::with_seed(7);
    let mut compared = 0;
    'rounds: for round in 0..6 {
        let objects = [object(&format!("a{round}")), object(&format!("b{round}"))];
        for of in &objects {
            for store in [&store as &dyn ObjectStore, &model] {
                store.submit(Transaction::new().change(of, Change::number(b"n", 0))).wait().unwrap();
            }
        }
        let mut last = [0u64; 2];
        let txns: Vec<_> = (1..400u64)
            .map(|step| {
                let which = rng.usize(0..2);
                let of = &objects[which];
                let number = |value: u64| Condition::compare(b"n", esker_store::Compare::Equal, value, false);
                let index = rng.u64(0..300);
                let txn = Transaction::new();
                match rng.u8(0..10) {
                    // Each needs what the one before has changed.
                    0..3 => {
                        let before = std::mem::replace(&mut last[which], step);
                        txn.guard(of, number(before)).change(of, Change::number(b"n", step))
                    }
                    // Holds or fails by what earlier ones have set.
                    3..6 => txn.guard(of, Condition::SlotAbsent { index }).change(of, slot(index, &step.to_string())),
                    6..8 => {
                        txn.change(of, Change::Write { offset: rng.u64(0..5_000), data: vec![step as u8; 700].into() })
                    }
                    8 => {
                        txn.change(of, Change::SlotRemove { index: 1_000 + index }).change(of, slot(1_000 + step, "v"))
                    }
                    // Refused, and those that went with it are not.
                    _ if round % 2 == 0 => txn
                        .guard(of, Condition::XattrEquals { name: "none".into(), value: "v".into() })
                        .change(of, slot(5_000 + step, "never")),
                    _ => txn.change(of, Change::OmapSet { key: step.to_string().into(), value: "v".into() }),
                }
            })
            .collect();
        let begun: Vec<_> = txns.iter().map(|txn| store.submit(txn.clone())).collect();
        for (step, (txn, begun)) in txns.into_iter().zip(begun).enumerate() {
            let shown = format!("{txn:?}");
            let (told, expected) = (begun.wait().map(|_| ()), model.submit(txn).wait().map(|_| ()));
            let same = match (&told, &expected) {
                (Ok(()), Ok(())) => true,
                // Refused late, with those that went together: on a machine that is busy. The next round has others.
                (Err(Error::Unknown { .. }), _) => continue 'rounds,
                (Err(Error::GuardFailed { index }), Err(Error::GuardFailed { index: other })) => index == other,
                _ => false,
            };
            assert!(same, "round {round}, {step}: {told:?}, not {expected:?}: {shown}");
        }
        for of in &objects {
            assert_eq!(all_slots(&store, of), all_slots(&model, of), "round {round}");
            let (found, wanted) =
                (store.read(of, 0..10_000).wait().unwrap(), model.read(of, 0..10_000).wait().unwrap());
            assert!(found == wanted, "round {round}: bytes of {of}");
            assert_eq!(store.stat(of).wait().unwrap(), model.stat(of).wait().unwrap());
        }
        compared += 1;
    }
    assert!(compared > 0, "the cluster is too slow: each round had a late refusal");
}
