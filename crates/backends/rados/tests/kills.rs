//! The OSD is killed under load, and started again: what was acknowledged is there, once, and nothing else.
//!
//! CEPH_CONF names the configuration of a cluster that `scripts/ceph` has started, whose OSD may be killed.

#![cfg(feature = "librados")]
#![allow(clippy::unwrap_used, reason = "a test that fails")]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use esker_store::contract::Harness;
use esker_store::{Change, Collection, Compare, Condition, Error, ObjectId, SlotScan, Transaction};

const WRITERS: u64 = 4;
const OBJECTS: u64 = 3;

fn stripe(position: u64) -> ObjectId {
    ObjectId::new(Collection::from("c"), format!("stripe {}", position % OBJECTS))
}

/// Ends the writers, also where the test fails.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn what_was_acknowledged_is_there_once_though_the_osd_is_killed() {
    let conf = PathBuf::from(std::env::var_os("CEPH_CONF").expect("CEPH_CONF names no cluster"));
    let cluster = conf.parent().unwrap().to_path_buf();
    let opened = support::Rados.fresh();
    let store = opened.store();
    store.submit(Transaction::new().create_collection(&Collection::from("c"))).wait().unwrap();
    let (next, over) = (AtomicU64::new(0), AtomicBool::new(false));
    // Who was told that a position is his, and who does not know.
    let (told, unknown) = (Mutex::new(BTreeMap::<u64, u64>::new()), Mutex::new(BTreeSet::<(u64, u64)>::new()));
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (next, over, told, unknown) = (&next, &over, &told, &unknown);
            scope.spawn(move || {
                while !over.load(Ordering::SeqCst) {
                    // Two writers want each position.
                    let position = next.fetch_add(1, Ordering::SeqCst) / 2;
                    let object = stripe(position);
                    let value = [writer.to_le_bytes(), position.to_le_bytes()].concat();
                    let txn = Transaction::new()
                        .guard(&object, Condition::SlotAbsent { index: position })
                        .guard(&object, Condition::compare(b"epoch", Compare::LessOrEqual, 1, true))
                        .change(&object, Change::SlotSet { index: position, value: value.into() })
                        .change(&object, Change::number(b"epoch", 1));
                    match store.submit(txn).wait() {
                        Ok(_) => {
                            let before = told.lock().unwrap().insert(position, writer);
                            assert_eq!(before, None, "position {position} was given twice");
                        }
                        Err(Error::GuardFailed { index: 0 }) => {}
                        Err(error) if error.is_unknown() => {
                            unknown.lock().unwrap().insert((position, writer));
                        }
                        // A look timed out: nothing was written.
                        Err(Error::Io { .. }) => {}
                        Err(error) => panic!("position {position}: {error}"),
                    }
                }
            });
        }
        let _ends = Ends(&over);
        let began = Instant::now();
        for _ in 0..2 {
            std::thread::sleep(Duration::from_secs(3));
            support::kill(&cluster);
        }
        std::thread::sleep(Duration::from_secs(3));
        over.store(true, Ordering::SeqCst);
        assert!(began.elapsed() < Duration::from_secs(300));
    });
    let (told, unknown) = (told.into_inner().unwrap(), unknown.into_inner().unwrap());
    assert!(told.len() > 100, "{} were written", told.len());
    let mut found = BTreeMap::new();
    for number in 0..OBJECTS {
        let mut start = 0;
        loop {
            let scan = SlotScan { range: start..u64::MAX, reverse: false, limit: 1_000, keys_only: false };
            let page = store.slot_scan(&stripe(number), &scan).wait().unwrap();
            let Some((last, _)) = page.last() else { break };
            start = last + 1;
            for (position, value) in page {
                assert_eq!(value[8..], position.to_le_bytes(), "another position's value");
                found.insert(position, u64::from_le_bytes(value[..8].try_into().unwrap()));
            }
        }
    }
    for (position, writer) in &told {
        assert_eq!(found.get(position), Some(writer), "position {position} was acknowledged");
    }
    for (position, writer) in &found {
        let known = told.get(position) == Some(writer) || unknown.contains(&(*position, *writer));
        assert!(known, "position {position} holds what {writer} was told is not there");
    }
    println!("{} acknowledged, {} not known, {} found", told.len(), unknown.len(), found.len());
}
