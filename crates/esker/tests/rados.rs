//! A store on Ceph by its URL, with a log on it.
//!
//! CEPH_CONF names the configuration of a cluster with pools `bench` and `coded`: ESKER_CEPH_OSDS=3 scripts/ceph.

#![cfg(feature = "rados")]
#![allow(clippy::unwrap_used, reason = "a test that fails")]

use esker::kv::{Durability, Entry, Kind, Scan};
use esker::log::{Found, Layout as Stands, Options};
use esker::volume::{Image, Layout};
use esker::{Error, Store, copy, verify_copy};

fn place(name: &str) -> String {
    let conf = std::env::var("CEPH_CONF").expect("CEPH_CONF names no cluster");
    format!("rados:bench/{name}-{}?conf={conf}&timeout=30s", std::process::id())
}

#[test]
fn a_log_on_ceph_is_there_when_it_is_opened_again() {
    for layout in [Stands::Omap, Stands::Stream, Stands::Slots] {
        let place = place(&format!("log-{layout:?}"));
        let store = Store::open(&place).unwrap();
        let log = store.logs().unwrap().create("orders", Options { layout, ..Options::default() }).unwrap();
        for number in 0..20u64 {
            assert_eq!(log.append(format!("order {number}")).unwrap().wait().unwrap(), number);
        }
        log.trim_to(5).unwrap();
        drop((log, store));
        let store = Store::open(&place).unwrap();
        let log = store.logs().unwrap().log("orders").unwrap();
        assert_eq!(log.tail().unwrap().position, 20, "{layout:?}");
        assert_eq!(log.append("more").unwrap().wait().unwrap(), 20);
        for number in 5..20u64 {
            let Found::Entry(entry) = log.read(number).unwrap().wait().unwrap() else { panic!("{layout:?} {number}") };
            assert_eq!(entry.data, format!("order {number}"));
        }
        assert!(!matches!(log.read(4).unwrap().wait().unwrap(), Found::Entry(_)), "{layout:?}");
    }
}

#[test]
fn what_is_no_place_on_ceph_is_named() {
    // With all its causes, as programs show it.
    let told = |place: &str| {
        let (mut told, failed) = (String::new(), Store::open(place).err());
        let mut cause = failed.as_ref().map(|error| error as &dyn std::error::Error);
        while let Some(error) = cause {
            told += &format!("{error}: ");
            cause = error.source();
        }
        told
    };
    assert!(matches!(Store::open("rados:bench"), Err(Error::Location { .. })));
    assert!(told("rados:bench/x?size=1g").contains("size"));
    assert!(told("rados:bench/x?conf=/nowhere/ceph.conf").contains("/nowhere/ceph.conf"));
}

#[test]
fn keys_on_ceph_are_those_of_all_who_have_the_store_open() {
    let place = place("keys");
    let (here, there) = (Store::open(&place).unwrap(), Store::open(&place).unwrap());
    let [ours, theirs] = [&here, &there].map(|store| store.kv().unwrap().namespace("n", Kind::Bytes).unwrap());
    std::thread::scope(|scope| {
        for (store, namespace) in [(&here, &ours), (&there, &theirs)] {
            scope.spawn(move || {
                for n in 0..50 {
                    let one = |txn: &mut esker::kv::Txn<'_>| -> esker::kv::Result<()> {
                        let old = txn.get(namespace, "{c}sum")?.map_or(0, |entry| entry.value.len());
                        txn.put(namespace, "{c}sum", Entry::new(vec![1; old + 1]));
                        txn.put(namespace, format!("{{c}}{n}").as_str(), Entry::new("v"));
                        Ok(())
                    };
                    let kv = store.kv().unwrap();
                    kv.transact(&[(namespace, "{c}sum".into())], Durability::Durable, one).unwrap();
                }
            });
        }
    });
    assert_eq!(ours.get("{c}sum").wait().unwrap().unwrap().len(), 100);
    for n in 0..200 {
        ours.put(format!("key {n:03}").as_str(), "v").wait().unwrap();
    }
    let found = theirs.scan(&Scan::prefix("key ")).wait().unwrap();
    assert!(found.iter().map(|(key, _)| key.clone()).eq((0..200).map(|n| format!("key {n:03}").as_str().into())));
    assert_eq!(theirs.len().wait().unwrap(), 251);
    let refused = ours.put_many(&[("a".into(), "1".into()), ("b".into(), "2".into())]).wait();
    assert!(matches!(refused, Err(esker::objects::Error::Unsupported { what: esker::kv::ACROSS_PARTITIONS, .. })));
    there.kv().unwrap().remove_namespace("n").unwrap();
    assert!(ours.put("late", "v").wait().is_err());
    assert_eq!(ours.get("key 000").wait().unwrap(), None);
}

#[test]
fn who_has_lost_the_lock_of_a_disk_on_ceph_writes_no_more_and_goes_on_elsewhere() {
    let place = place("lock");
    let (one, other) = (Store::open(&place).unwrap(), Store::open(&place).unwrap());
    let layout = Layout { object_bytes: 1 << 20, stripe_unit: 1 << 20, ..Layout::default() };
    one.volumes().unwrap().create("disk", 8 << 20, layout, 0).unwrap();
    let [mut old, mut new] = [&one, &other].map(|store| store.volumes().unwrap().image("disk").unwrap());
    // A lock that is found may be that of a process that lives.
    assert!(one.is_shared());
    old.lock("one").unwrap();
    for round in 0..3u8 {
        let durable = esker::volume::Durability::Durable;
        let fill = |image: &Image, byte: u8| -> Result<(), esker::volume::Error> {
            for block in 0..8u64 {
                image.write(block << 20, vec![byte; 4_096].into(), durable)?.wait()?;
            }
            Ok(())
        };
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let late = &old;
            let writer = scope.spawn(move || {
                for turn in 0u64.. {
                    if let Err(error) = fill(late, 100 + round) {
                        return (turn, error);
                    }
                    let _ = tell.send(());
                }
                unreachable!("it loses its lock")
            });
            told.recv().unwrap();
            new.take_over("other").unwrap();
            fill(&new, 1 + round).unwrap();
            let (_, error) = writer.join().unwrap();
            let is_stopped = matches!(&error, esker::volume::Error::Store(error) if error.is_unknown());
            assert!(is_stopped || matches!(error, esker::volume::Error::Fenced { .. }), "{error}");
        });
        let late = old.write(0, "late".into(), durable).err().unwrap();
        assert!(matches!(late, esker::volume::Error::Fenced { .. }), "{late}");
        for block in 0..8u64 {
            assert_eq!(old.read_bytes(block << 20, 4_096).unwrap(), vec![1 + round; 4_096], "{block}");
        }
        std::mem::swap(&mut old, &mut new);
    }
    // Only what was written under the lock is refused.
    for store in [&one, &other] {
        let keys = store.kv().unwrap().namespace("keys", Kind::Bytes).unwrap();
        keys.put("key", "v").wait().unwrap();
    }
    old.unlock().unwrap();
    let third = one.volumes().unwrap().image("disk").unwrap();
    third.lock("three").unwrap();
    third.write(0, "third".into(), esker::volume::Durability::Durable).unwrap().wait().unwrap();
}

#[test]
fn a_disk_on_ceph_holds_what_was_written_and_its_store_is_copied_there_and_back() {
    disk(&place("disk"));
}

#[test]
fn a_disk_on_an_erasure_coded_pool_holds_what_was_written() {
    let place = place("coded") + "&data_pool=coded";
    disk(&place);
    let other = place.replace("data_pool=coded", "data_pool=bench");
    let refused = Store::open(&other).err().unwrap().to_string();
    assert!(refused.contains("coded") && refused.contains("bench"), "{refused}");
    let missing = self::place("missing") + "&data_pool=nosuch";
    let refused = Store::open(&missing).err().unwrap();
    let mut causes = std::iter::successors(std::error::Error::source(&refused), |error| error.source());
    assert!(causes.any(|error| error.to_string().contains("nosuch")), "{refused:?}");
}

fn disk(place: &str) {
    let mut model = vec![0u8; 4 << 20];
    let store = Store::open(place).unwrap();
    let layout = Layout { object_bytes: 1 << 20, stripe_unit: 1 << 20, ..Layout::default() };
    let image = store.volumes().unwrap().create("disk", model.len() as u64, layout, 0).unwrap();
    let mut rng = 1u64;
    let mut random = |below: u64| {
        rng = rng.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (rng >> 33) % below
    };
    let durable = esker::volume::Durability::Durable;
    let mut begun = Vec::new();
    for step in 0..200u64 {
        let offset = random(model.len() as u64 - 70_000);
        let len = 1 + random(65_536);
        let range = offset as usize..(offset + len) as usize;
        if step % 5 == 0 {
            begun.push(image.discard(offset, len, durable).unwrap());
            model[range].fill(0);
        } else {
            let data = vec![1 + (step % 250) as u8; len as usize];
            begun.push(image.write(offset, data.clone().into(), durable).unwrap());
            model[range].copy_from_slice(&data);
        }
    }
    begun.into_iter().for_each(|done| done.wait().unwrap());
    assert!(image.read_bytes(0, model.len() as u64).unwrap() == model);
    image.resize(1 << 20, true).unwrap();
    image.resize(4 << 20, false).unwrap();
    model[1 << 20..].fill(0);
    drop((image, store));

    let folder = tempfile::tempdir().unwrap();
    let from = Store::open(place).unwrap();
    let back = Store::open(&format!("esker:{}?size=256m", folder.path().join("back").display())).unwrap();
    let again_place = format!("{}again", place.split('?').next().unwrap()) + "?" + place.split_once('?').unwrap().1;
    let again = Store::open(&again_place).unwrap();
    for (from, to) in [(&from, &back), (&back, &again)] {
        copy(&*from.objects(), &*to.objects(), "the one before", &mut |_| {}).unwrap();
        verify_copy(&*from.objects(), &*to.objects(), &mut |_| {}).unwrap();
        let image = to.volumes().unwrap().image("disk").unwrap();
        assert!(image.read_bytes(0, model.len() as u64).unwrap() == model);
    }
}
