//! A store that is filled to the brim before every step, and what each face must be able to do there.
#![allow(dead_code, reason = "each test file uses its own part")]

use esker::kv::{Entry, Key as KvKey, Kind};
use esker::log::{Layout as LogLayout, Options as LogOptions};
use esker::map::{DataType, Key, MapStorage, Mutation, Schema, TableName};
use esker::objects::{Change, Collection, Condition, Error, ObjectId, Transaction};
use esker::volume::Layout;
use esker::{Bytes, Durability, Store};

const KIB: usize = 1 << 10;

/// Fills what is left with values of a namespace of its own, large ones first, until the smallest is refused.
pub fn fill(store: &Store, next: &mut u64) {
    let filler = store.kv().unwrap().namespace("filler", Kind::Int).unwrap();
    for bytes in [64 * KIB, 4 * KIB, 256, 16] {
        let mut refused = 0;
        while refused < 3 {
            match filler.put(*next, Bytes::from(vec![*next as u8; bytes])).wait() {
                Ok(()) => *next += 1,
                Err(Error::Full { .. }) => refused += 1,
                Err(error) => panic!("filling: {error}"),
            }
        }
    }
}

fn row(p: i32) -> Key {
    Key::of("p", p)
}

/// Puts something into every face, fills the store, opens it again, and takes everything out again, with the store full
/// before every step. What was taken out last can be written again.
pub fn every_face_can_be_emptied(mut store: Store, reopen: &mut dyn FnMut(Store) -> Store) {
    let mut next = 0;
    // What there is before.
    let kv = store.kv().unwrap();
    let keys = kv.namespace("keys", Kind::Bytes).unwrap();
    let expiring = |value: usize| Entry { value: vec![7; value].into(), expires_ms: Some(u64::MAX / 2), tag: 0 };
    for key in 0..100 {
        keys.put_with(format!("key{key}").as_str(), expiring(4 * KIB), Durability::Durable).wait().unwrap();
    }
    let logs = store.logs().unwrap();
    for (layout, name) in LogLayout::ALL {
        for name in [format!("{name}-trimmed"), format!("{name}-deleted")] {
            let log = logs.create(&name, LogOptions { layout, width: 2, slots: 64, ..LogOptions::default() }).unwrap();
            for entry in 0..300u64 {
                log.append(vec![entry as u8; KIB]).unwrap().wait().unwrap();
            }
        }
    }
    drop(logs);
    let map = store.map().unwrap();
    map.create_namespace("ns").unwrap();
    let schema = Schema::new()
        .column("p", DataType::Int)
        .column("x", DataType::Int)
        .column("y", DataType::Text)
        .partition("p")
        .index("x");
    let tables = ["rows", "truncated", "dropped"].map(|name| TableName::new("ns", name));
    let text = "y".repeat(KIB);
    for table in &tables {
        map.create_table(table, &schema).unwrap();
        for p in 0..100 {
            let values = vec![("x".into(), (p % 7).into()), ("y".into(), text.as_str().into())];
            map.mutate(&[Mutation::put(table, row(p), values)], Durability::Durable).unwrap().wait().unwrap();
        }
    }
    let volumes = store.volumes().unwrap();
    for name in ["disk", "snapped", "removed"] {
        let image = volumes.create(name, 16 << 20, Layout::default(), 0).unwrap();
        image.write(0, vec![9; 1 << 20].into(), Durability::Durable).unwrap().wait().unwrap();
        if name == "snapped" {
            image.snapshot_create("before", 0).unwrap();
            image.snapshot_protect("before").unwrap();
            image.write(0, vec![8; 1 << 20].into(), Durability::Durable).unwrap().wait().unwrap();
        }
    }
    let collection = Collection::from("own");
    let object = |name: &str| ObjectId::new(collection.clone(), name.to_owned());
    let objects = store.objects();
    let write = || Change::Write { offset: 0, data: vec![5; 256 * KIB].into() };
    let txn = Transaction::new().create_collection(&collection);
    let txn = txn.change(&object("data"), write()).change(&object("kept"), Change::Touch);
    objects.submit(txn).wait().unwrap();
    drop((kv, keys, map, volumes, objects));

    fill(&store, &mut next);
    store = reopen(store);

    // Keys that expire, one by one, and then all.
    let kv = store.kv().unwrap();
    let keys = kv.namespace("keys", Kind::Bytes).unwrap();
    for key in 0..50 {
        assert!(keys.remove(format!("key{key}").as_str()).wait().unwrap(), "key {key}");
    }
    fill(&store, &mut next);
    let mut txn = kv.begin(&[(&keys, KvKey::Bytes(b"key50"))]);
    assert!(txn.get(&keys, "key50").unwrap().is_some());
    txn.remove(&keys, "key50");
    txn.commit(Durability::Durable).wait().unwrap();
    fill(&store, &mut next);
    kv.remove_namespace("keys").unwrap();

    // Logs: a position, all up to one, the whole, for all layouts.
    for (_, layout) in LogLayout::ALL {
        let logs = store.logs().unwrap();
        fill(&store, &mut next);
        let name = format!("{layout}-trimmed");
        let log = logs.log(&name).unwrap();
        log.trim(7).unwrap_or_else(|error| panic!("trimming a position of {name}: {error}"));
        fill(&store, &mut next);
        log.trim_to(250).unwrap_or_else(|error| panic!("trimming {name}: {error}"));
        fill(&store, &mut next);
        log.set_consumer("c", 290).unwrap_or_else(|error| panic!("a consumer of {name}: {error}"));
        fill(&store, &mut next);
        for name in [format!("{layout}-deleted"), name] {
            logs.delete(&name).unwrap_or_else(|error| panic!("deleting {name}: {error}"));
            fill(&store, &mut next);
        }
    }

    // Tables: a column, rows with their index, all rows, the table.
    let map = store.map().unwrap();
    let less = Mutation {
        change: esker::map::Change::Put { columns: vec![("y".into(), None)], expires_ms: None },
        ..Mutation::delete(&tables[0], row(1))
    };
    map.mutate(&[less], Durability::Durable).unwrap().wait().unwrap();
    for p in 0..50 {
        map.mutate(&[Mutation::delete(&tables[0], row(p))], Durability::Durable).unwrap().wait().unwrap();
    }
    fill(&store, &mut next);
    map.truncate_table(&tables[1]).unwrap();
    fill(&store, &mut next);
    map.drop_table(&tables[2]).unwrap();
    fill(&store, &mut next);

    // Disks: with the lock that attaching takes, a discard and zeros in parts and whole, a smaller size, the lock given
    // back; a protected snapshot; the whole.
    let volumes = store.volumes().unwrap();
    for name in ["disk", "snapped"] {
        let image = volumes.image(name).unwrap();
        fill(&store, &mut next);
        image.lock("owner").unwrap_or_else(|error| panic!("attaching {name}: {error}"));
        fill(&store, &mut next);
        image.discard(4096, 8192, Durability::Durable).unwrap().wait().unwrap();
        image.zero(0, 4096, false, Durability::Durable).unwrap().wait().unwrap();
        fill(&store, &mut next);
        image.discard(0, 16 << 20, Durability::Durable).unwrap().wait().unwrap();
        fill(&store, &mut next);
        image.resize(8 << 20, true).unwrap_or_else(|error| panic!("shrinking {name}: {error}"));
        fill(&store, &mut next);
        image.unlock().unwrap_or_else(|error| panic!("detaching {name}: {error}"));
    }
    fill(&store, &mut next);
    let snapped = volumes.image("snapped").unwrap();
    snapped.snapshot_unprotect("before").unwrap();
    fill(&store, &mut next);
    snapped.snapshot_remove("before").unwrap();
    fill(&store, &mut next);
    for name in ["snapped", "removed", "disk"] {
        volumes.remove(name).unwrap_or_else(|error| panic!("removing {name}: {error}"));
        fill(&store, &mut next);
        assert!(volumes.work(&mut |_, _| true).unwrap());
        fill(&store, &mut next);
    }

    // Objects: a transaction that takes more than it adds; what adds more is refused, and changes nothing.
    let objects = store.objects();
    let mark = |bytes: usize| Change::XattrSet { name: Bytes::from_static(b"gone"), value: vec![1; bytes].into() };
    let adds = Transaction::new().change(&object("kept"), write());
    assert!(matches!(objects.submit(adds).wait(), Err(Error::Full { .. })));
    let same = Transaction::new().change(&object("data"), write());
    assert!(matches!(objects.submit(same).wait(), Err(Error::Full { .. })), "one value for another of its size");
    let takes = Transaction::new().guard(&object("data"), Condition::Exists).change(&object("data"), Change::Remove);
    objects.submit(takes.change(&object("kept"), mark(1000))).wait().unwrap();

    // All is out but what has filled it: that goes as well, and writes go on.
    let kv = store.kv().unwrap();
    kv.remove_namespace("filler").unwrap();
    let again = kv.namespace("filler", Kind::Int).unwrap();
    for key in 0..200u64 {
        again.put(key, Bytes::from(vec![1; 64 * KIB])).wait().unwrap();
    }
    drop((kv, keys, again, map, volumes, snapped, objects));
    store = reopen(store);
    let again = store.kv().unwrap().namespace("filler", Kind::Int).unwrap();
    assert_eq!(again.get(199).wait().unwrap().map(|value| value.len()), Some(64 * KIB));
}

/// Locks and unlocks a disk on a full store, over and over: what that writes makes room for itself.
pub fn a_full_store_is_attached_to_for_ever(store: &Store, times: u64) {
    let volumes = store.volumes().unwrap();
    let image = volumes.create("disk", 16 << 20, Layout::default(), 0).unwrap();
    let mut next = 0;
    fill(store, &mut next);
    for time in 0..times {
        image.lock("owner").unwrap_or_else(|error| panic!("attaching for the {time}th time: {error}"));
        image.unlock().unwrap_or_else(|error| panic!("detaching for the {time}th time: {error}"));
    }
    fill(store, &mut next);
    let filler = store.kv().unwrap().namespace("filler", Kind::Int).unwrap();
    for key in 0..next {
        assert!(filler.remove(key).wait().unwrap(), "key {key} of {next}");
    }
    image.write(0, vec![1; 1 << 20].into(), Durability::Durable).unwrap().wait().unwrap();
}
