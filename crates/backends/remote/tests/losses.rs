//! Answers that are lost, servers that are away, strangers at the address.

#![allow(clippy::unwrap_used, reason = "a test that fails")]

mod support;

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use esker_log::{Found, Logs, Options, Session};
use esker_memory::MemoryStore;
use esker_remote::{Place, RemoteStore};
use esker_store::{Change, Condition, Durability, Error, ObjectId, ObjectStore, Transaction, Unsynced};
use support::{Running, Wire, open};

fn object() -> ObjectId {
    ObjectId::new("home".into(), "object")
}

#[test]
fn a_lost_answer_is_an_error_of_unknown_fate_and_a_guard_tells_it() {
    let server = Running::start(0, Some(Arc::new(MemoryStore::new())), None);
    let wire = Wire::to(&server);
    let store = open(Place::Tcp(wire.address.clone()));
    store.submit(Transaction::new().create_collection(&"home".into())).wait().unwrap();
    let write = || {
        Transaction::new()
            .guard(&object(), Condition::SlotAbsent { index: 1 })
            .change(&object(), Change::SlotSet { index: 1, value: "once".into() })
    };
    wire.lose.store(1, Ordering::SeqCst);
    let lost = store.submit(write()).wait();
    assert!(wire.lost.load(Ordering::SeqCst), "no answer was lost: {lost:?}");
    assert!(matches!(lost, Err(Error::Unknown { .. })), "{lost:?}");
    // It connects again by itself, and what was guarded was done once.
    let again = loop {
        match store.submit(write()).wait() {
            // It may have been sent before the broken connection was found out: of unknown fate as well.
            Err(Error::Unknown { .. }) => {}
            other => break other,
        }
    };
    assert!(matches!(again, Err(Error::GuardFailed { index: 0 })), "{again:?}");
    assert_eq!(store.slot_get(&object(), 1).wait().unwrap().unwrap(), "once");
    // A read whose answer is lost is asked again.
    wire.lost.store(false, Ordering::SeqCst);
    wire.lose.store(1, Ordering::SeqCst);
    assert_eq!(store.slot_get(&object(), 1).wait().unwrap().unwrap(), "once");
    assert!(wire.lost.load(Ordering::SeqCst), "no answer was lost");
}

#[test]
fn an_append_whose_answer_is_lost_is_in_the_log_once() {
    let server = Running::start(0, Some(Arc::new(MemoryStore::new())), None);
    let wire = Wire::to(&server);
    let session = Session::new(Arc::new(|| 1_700_000_000_000), 5);
    let logs = Logs::open(Arc::new(open(Place::Tcp(wire.address.clone()))), session).unwrap();
    let log = logs.create("log", Options::default()).unwrap();
    log.append("first").unwrap().wait().unwrap();
    for number in 0..10 {
        wire.lose.store(1, Ordering::SeqCst);
        wire.lost.store(false, Ordering::SeqCst);
        let position = log.append(format!("number {number}")).unwrap().wait().unwrap();
        assert!(wire.lost.load(Ordering::SeqCst), "no answer was lost");
        assert_eq!(position, number + 1);
        let Found::Entry(entry) = log.read(position).unwrap().wait().unwrap() else { panic!("no entry") };
        assert_eq!(entry.data, format!("number {number}"));
    }
    assert_eq!(log.tail().unwrap().position, 11);
}

#[test]
fn a_server_that_was_away_is_found_again() {
    let memory: Arc<dyn ObjectStore> = Arc::new(MemoryStore::new());
    let mut server = Running::start(0, Some(Arc::clone(&memory)), None);
    let store = open(server.place());
    store.submit(Transaction::new().create_collection(&"home".into())).wait().unwrap();
    let port = server.address.port();
    server.stop();
    let away = store.submit(Transaction::new().change(&object(), Change::Touch)).wait();
    assert!(matches!(away, Err(Error::Unknown { .. })), "{away:?}");
    let _server = Running::start(port, Some(memory), None);
    let began = Instant::now();
    while store.submit(Transaction::new().change(&object(), Change::Touch)).wait().is_err() {
        assert!(began.elapsed() < Duration::from_secs(20), "not found again");
    }
    assert!(store.stat(&object()).wait().unwrap().is_some());
}

#[test]
fn whoever_is_no_server_of_objects_is_named() {
    let options = esker_remote::Options { timeout: Duration::from_secs(2), ..Default::default() };
    let connect = |address: String| RemoteStore::connect(address.parse().unwrap(), &options).unwrap_err().to_string();
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    assert!(connect(format!("grpc://{closed}")).contains(&closed.to_string()));
    let other = Running::start(0, None, None);
    assert!(connect(other.address.to_string()).contains("--grpc-objects"));
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let began = Instant::now();
    let told = connect(silent.local_addr().unwrap().to_string());
    assert!(began.elapsed() < Duration::from_secs(20), "{told}");
    for bad in ["grpc://", "localhost", "grpc://host:port", "grpc://host:1/x", ":80"] {
        assert!(bad.parse::<Place>().is_err(), "{bad}");
    }
}

#[test]
fn a_sync_after_a_restart_does_not_cover_what_was_written_before_it() {
    let device = support::device();
    let engine = support::engine(&device);
    let mut server = Running::start(0, Some(Arc::clone(&engine) as _), None);
    let (store, other) = (open(server.place()), Unsynced::default());
    store.submit(Transaction::new().create_collection(&"home".into())).wait().unwrap();
    let unsynced = Unsynced::default();
    let write = |unsynced: &Unsynced, index| {
        let written = unsynced.begin(&store);
        let change = Change::SlotSet { index, value: "not synced".into() };
        store.submit(Transaction::with(Durability::Applied).change(&object(), change)).wait().unwrap();
        written.applied();
    };
    // Within one life a sync covers it.
    write(&unsynced, 1);
    unsynced.sync(&store).unwrap();
    let synced = Arc::new(device.snapshot());
    write(&unsynced, 2);
    write(&other, 3);
    let port = server.address.port();
    server.stop();
    drop(engine);
    // As after a power cut: what was not synced is gone.
    let engine = support::engine(&synced);
    let _server = Running::start(port, Some(Arc::clone(&engine) as _), None);
    while store.stat(&object()).wait().is_err() {}
    assert_eq!(store.slot_get(&object(), 1).wait().unwrap().unwrap(), "not synced");
    assert_eq!(store.slot_get(&object(), 2).wait().unwrap(), None);
    assert!(matches!(unsynced.sync(&store), Err(Error::Restarted)));
    // Each writer is told once, also the second, who asks after the first was told.
    assert!(matches!(other.sync(&store), Err(Error::Restarted)));
    write(&unsynced, 4);
    unsynced.sync(&store).unwrap();
    other.sync(&store).unwrap();
}
