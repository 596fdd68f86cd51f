//! Objects of bytes in an erasure-coded pool, all others in a replicated one.
//!
//! CEPH_CONF names the configuration of a cluster with pools `bench` and `coded`: ESKER_CEPH_OSDS=3 scripts/ceph.

#![cfg(feature = "librados")]
#![allow(clippy::unwrap_used, reason = "a test that fails")]

mod support;

use std::process::Command;

use bytes::Bytes;
use esker_rados::{DataPool, OpenError, Options, RadosStore};
use esker_store::{
    Change, Collection, Condition, DataRun, Error, ObjectId, ObjectStore, OmapScan, SlotScan, Transaction,
};

fn collection() -> Collection {
    Collection::from("volume")
}

fn object(name: &str) -> ObjectId {
    ObjectId::new(collection(), name.to_owned())
}

fn options(data: Option<&str>) -> Options {
    let file = std::env::var_os("CEPH_CONF").expect("CEPH_CONF names no cluster");
    let data = data.map(|pool| DataPool { pool: pool.into(), holds: vec![(collection(), b"d/".to_vec())] });
    Options { conf: Some(file.into()), data, ..Options::default() }
}

fn store(name: &str) -> RadosStore {
    let store = RadosStore::connect(&format!("bench/{name}"), &options(Some("coded"))).unwrap();
    store.submit(Transaction::new().create_collection(&collection())).wait().unwrap();
    store
}

fn names_in(pool: &str, namespace: &str) -> Vec<String> {
    let output = Command::new("rados").args(["-p", pool, "-N", namespace, "ls"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
}

fn change(of: &str, change: Change) -> Transaction {
    Transaction::new().change(&object(of), change)
}

#[test]
fn bytes_stand_in_the_data_pool_and_all_else_beside() {
    let name = support::namespace();
    let store = store(&name);
    let write = |offset, data: &'static [u8]| Change::Write { offset, data: Bytes::from_static(data) };
    store.submit(change("h/1", Change::OmapSet { key: "k".into(), value: "v".into() })).wait().unwrap();
    store.submit(change("d/1", write(10_000, b"first"))).wait().unwrap();
    store.submit(change("d/1", write(10_002, b"over"))).wait().unwrap();
    store
        .submit(change("d/1", Change::Zero { offset: 0, len: 20_000 }).change(&object("d/1"), write(9_999, b"+")))
        .wait()
        .unwrap();
    store.submit(change("d/1", Change::number(b"seq", 7))).wait().unwrap();
    let newer = Condition::compare(b"seq", esker_store::Compare::Greater, 7, false);
    let refused = store.submit(Transaction::new().guard(&object("d/1"), newer).change(&object("d/1"), Change::Remove));
    assert!(matches!(refused.wait(), Err(Error::GuardFailed { index: 0 })));
    let same = Condition::compare(b"seq", esker_store::Compare::Equal, 7, false);
    store.submit(Transaction::new().guard(&object("d/1"), same).change(&object("d/1"), write(3, b"3"))).wait().unwrap();

    let is_data = |name: &String| name.starts_with("ovolume") && name.contains("d/");
    assert!(names_in("coded", &name).iter().any(is_data) && !names_in("bench", &name).iter().any(is_data));
    assert!(!names_in("coded", &name).iter().any(|name| name.contains("h/")));

    // A client that opens it later need not say where its data is.
    let other = RadosStore::connect(&format!("bench/{name}"), &options(None)).unwrap();
    for store in [&store, &other] {
        let mut bytes = vec![0; 20_000];
        (bytes[3], bytes[9_999]) = (b'3', b'+');
        assert_eq!(store.read(&object("d/1"), 0..u64::MAX).wait().unwrap(), bytes);
        assert_eq!(store.size(&object("d/1")).wait().unwrap(), Some(20_000));
        let found = store.stat(&object("d/1")).wait().unwrap().unwrap();
        assert_eq!((found.size, found.xattrs, found.omap_keys, found.slots), (20_000, 1, 0, 0));
        assert_eq!(
            store.xattrs(&object("d/1")).wait().unwrap(),
            [(Bytes::from("seq"), Bytes::from(7u64.to_le_bytes().to_vec()))]
        );
        let runs = store.extents(&object("d/1"), 0..20_000).wait().unwrap();
        assert_eq!(runs, [DataRun { offset: 0, len: 4_096 }, DataRun { offset: 8_192, len: 4_096 }]);
        assert_eq!(store.list(&collection(), None, 10).wait().unwrap(), ["d/1", "h/1"]);
        assert_eq!(store.omap_scan(&object("d/1"), &OmapScan::default()).wait().unwrap(), []);
        let all = SlotScan { range: 0..u64::MAX, reverse: false, limit: 10, keys_only: false };
        assert_eq!(store.slot_scan(&object("d/1"), &all).wait().unwrap(), []);
        assert_eq!(store.omap_get_many(&object("d/1"), &["k".into(), "l".into()]).wait().unwrap(), [None, None]);
    }
    assert!(matches!(
        store.submit(Transaction::new().remove_collection(&collection())).wait(),
        Err(Error::NotEmpty { .. })
    ));
    other.submit(change("d/1", Change::Remove)).wait().unwrap();
    store.submit(change("h/1", Change::Remove)).wait().unwrap();
    assert_eq!(store.size(&object("d/1")).wait().unwrap(), None);
    store.submit(Transaction::new().remove_collection(&collection())).wait().unwrap();
    assert!(!names_in("coded", &name).iter().any(is_data));
}

#[test]
fn many_objects_are_made_at_once_and_made_anew_in_place() {
    let name = support::namespace();
    let store = store(&name);
    let data = |byte: u8| Change::Write { offset: 0, data: vec![byte; 4_096].into() };
    for round in 0..2u8 {
        let begun: Vec<_> = (0..200).map(|n| store.submit(change(&format!("d/{n:03}"), data(round)))).collect();
        begun.into_iter().try_for_each(|done| done.wait().map(|_| ())).unwrap();
        let names = store.list(&collection(), None, 1_000).wait().unwrap();
        assert!(
            names.iter().map(|name| name.to_vec()).eq((0..200).map(|n| format!("d/{n:03}").into_bytes())),
            "{names:?}"
        );
        for n in [0, 77, 199] {
            assert_eq!(store.read(&object(&format!("d/{n:03}")), 0..10).wait().unwrap(), vec![round; 10]);
        }
    }
    let anew = change("d/000", Change::Remove).change(&object("d/000"), Change::Truncate { size: 3 });
    store.submit(anew).wait().unwrap();
    assert_eq!(store.read(&object("d/000"), 0..9).wait().unwrap(), vec![0; 3]);
    store.submit(change("d/000", Change::Remove)).wait().unwrap();
    assert_eq!(store.list(&collection(), None, 1).wait().unwrap(), ["d/001"]);
}

#[test]
fn keys_in_a_data_pool_and_pools_that_do_not_fit_are_refused_by_name() {
    let name = support::namespace();
    let store = store(&name);
    let keys = [
        Change::OmapSet { key: "k".into(), value: "v".into() },
        Change::SlotSet { index: 1, value: "v".into() },
        Change::OmapClear,
        Change::XattrSet { name: vec![b'n'; 200].into(), value: "v".into() },
    ];
    for key in keys {
        let refused = store.submit(change("d/1", key)).wait();
        assert!(matches!(refused, Err(Error::Unsupported { .. })), "{refused:?}");
    }
    let guarded = Transaction::new().guard(&object("d/1"), Condition::OmapAbsent { key: "k".into() });
    assert!(matches!(store.submit(guarded).wait(), Err(Error::Unsupported { .. })));

    let opened = |name: &str, data: Option<&str>| RadosStore::connect(&format!("bench/{name}"), &options(data));
    let Err(OpenError::Store(other)) = opened(&name, Some("bench")) else { panic!("it has another data pool") };
    assert!(other.to_string().contains("\"coded\"") && other.to_string().contains("\"bench\""), "{other}");
    let plain = support::namespace();
    drop(opened(&plain, None).unwrap());
    let Err(OpenError::Store(none)) = opened(&plain, Some("coded")) else { panic!("it was made without one") };
    assert!(none.to_string().contains("none"), "{none}");
    assert!(matches!(opened(&support::namespace(), Some("nosuch")), Err(OpenError::Connect(_))));

    // The pool of the store itself is none, and the name is as good as before.
    let own = support::namespace();
    let Err(OpenError::Store(refused)) = opened(&own, Some("bench")) else { panic!("it is its own pool") };
    assert!(refused.to_string().contains("itself"), "{refused}");
    drop(opened(&own, None).unwrap());

    // Stores of one name in two pools would have the same objects in the data pool.
    let other = format!("other-{}", std::process::id());
    let made = Command::new("ceph").args(["osd", "pool", "create", &other, "8", "8"]).status();
    assert!(made.unwrap().success());
    let again = RadosStore::connect(&format!("{other}/{name}"), &options(Some("coded")));
    let Err(OpenError::Store(refused)) = again else { panic!("another store has its data there") };
    assert!(refused.to_string().contains("of the store of this name in pool number"), "{refused}");
    // And what holds the data of one is no store.
    let replicated = support::namespace();
    drop(RadosStore::connect(&format!("{other}/{replicated}"), &options(Some("bench"))).unwrap());
    let Err(OpenError::Store(refused)) = opened(&replicated, None) else { panic!("it holds another's data") };
    assert!(refused.to_string().contains("holds the data of disks"), "{refused}");
    let beside = RadosStore::connect(&format!("{other}/{own}"), &options(Some("bench")));
    let Err(OpenError::Store(refused)) = beside else { panic!("a store of this name is there") };
    assert!(refused.to_string().contains("a store of this name itself"), "{refused}");
    drop(opened(&own, None).unwrap());

    let rigid = format!("rigid-{}", std::process::id());
    let made = Command::new("ceph").args(["osd", "pool", "create", &rigid, "8", "8", "erasure", "two-one"]).status();
    assert!(made.unwrap().success());
    let Err(OpenError::Store(refused)) = opened(&support::namespace(), Some(&rigid)) else {
        panic!("a pool that takes no overwrites")
    };
    assert!(refused.to_string().contains("allow_ec_overwrites"), "{refused}");
    assert_eq!(store.collections().wait().unwrap(), [collection()]);
}
