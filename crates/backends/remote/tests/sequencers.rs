//! Positions over the network: many writers share one sequencer, and its loss costs nothing but time.

#![allow(clippy::unwrap_used, reason = "a test that fails")]

mod support;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use esker_log::{Connect, Error, Found, Log, Logs, Options, Session};
use esker_memory::MemoryStore;
use esker_remote::Sequencers;
use esker_server::grpc;
use esker_store::ObjectStore;
use support::Running;

const LEASE: Duration = Duration::from_millis(500);

fn now_ms() -> u64 {
    use std::sync::LazyLock;
    static BEGAN: LazyLock<Instant> = LazyLock::new(Instant::now);
    1_700_000_000_000 + BEGAN.elapsed().as_millis() as u64
}

/// A writer as of a process of its own, that asks sequencers over the network.
fn writer(store: &Arc<dyn ObjectStore>, nonce: u64) -> Log {
    let connect: Arc<dyn Connect> = Arc::new(Sequencers::new(esker_remote::Options::default(), LEASE));
    let session = Session { connect: Some(connect), ..Session::new(Arc::new(now_ms), nonce) };
    Logs::open(Arc::clone(store), session).unwrap().log("log").unwrap()
}

/// A sequencer of the log that serves at a free port.
fn lead(store: &Arc<dyn ObjectStore>, nonce: u64) -> (Running, grpc::Sequencers, Log) {
    let sequencers = grpc::Sequencers::default();
    let server = Running::start(0, None, Some(sequencers.clone()));
    let logs = Logs::open(Arc::clone(store), Session::new(Arc::new(now_ms), nonce)).unwrap();
    let log = logs.log_or_create("log", Options::default()).unwrap();
    let leader = log.lead(&server.address.to_string()).unwrap();
    sequencers.lead(log.id(), leader);
    (server, sequencers, log)
}

#[test]
fn many_writers_share_a_sequencer_and_do_not_depose_it() {
    let store: Arc<dyn ObjectStore> = Arc::new(MemoryStore::new());
    let (_server, _, log) = lead(&store, 1);
    let epoch = log.view().epoch;
    let threads: Vec<_> = (0..8u64)
        .map(|number| {
            let log = writer(&store, 100 + number);
            std::thread::spawn(move || {
                let append = |at| log.append(format!("{number}:{at}")).unwrap().wait().unwrap();
                (0..100).map(append).collect::<Vec<_>>()
            })
        })
        .collect();
    let positions: BTreeSet<u64> = threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
    assert_eq!(positions.into_iter().collect::<Vec<_>>(), (0..800).collect::<Vec<_>>());
    assert_eq!(log.refresh().unwrap().epoch, epoch, "another writer took over");
    let asking = writer(&store, 999);
    assert_eq!(asking.tail().unwrap().position, 800);
    assert_eq!(asking.append_at(800, &["at the tail".into()]).unwrap().wait().unwrap(), 800);
    assert!(matches!(asking.append_at(800, &["late".into()]), Err(Error::NotTail { expected: 800, tail: 801 })));
}

#[test]
fn another_sequencer_takes_over_and_no_append_is_lost_or_doubled() {
    let store: Arc<dyn ObjectStore> = Arc::new(MemoryStore::new());
    let (mut first, ..) = lead(&store, 1);
    let threads: Vec<_> = (0..4u64)
        .map(|number| {
            let log = writer(&store, 100 + number);
            std::thread::spawn(move || {
                let append = |at| log.append(format!("{number}:{at}")).unwrap().wait().unwrap();
                (0..400).map(append).collect::<Vec<_>>()
            })
        })
        .collect();
    std::thread::sleep(Duration::from_millis(100));
    first.stop();
    let began = Instant::now();
    let (_second, sequencers, log) = lead(&store, 2);
    println!("taken over in {:?}", began.elapsed());
    let mut expected = BTreeSet::new();
    for (number, thread) in threads.into_iter().enumerate() {
        for (at, position) in thread.join().unwrap().into_iter().enumerate() {
            assert!(expected.insert((position, format!("{number}:{at}"))));
        }
    }
    assert_eq!(expected.len(), 1_600);
    for (position, text) in &expected {
        let Found::Entry(entry) = log.read(*position).unwrap().wait().unwrap() else { panic!("{position} is lost") };
        assert_eq!(&entry.data, text);
    }
    // Each stands once.
    let tail = log.tail().unwrap().position;
    let mut at = 0;
    let mut entries = 0;
    while at < tail {
        let found = log.read_range(at..tail, 1 << 20).unwrap().wait().unwrap();
        at += found.len() as u64;
        entries += found.iter().filter(|one| matches!(one, Found::Entry(_))).count();
    }
    assert_eq!(entries, 1_600);
    drop(sequencers);
}

#[test]
fn a_sequencer_that_was_deposed_refuses_who_knows_better() {
    let store: Arc<dyn ObjectStore> = Arc::new(MemoryStore::new());
    let (server, ..) = lead(&store, 1);
    let connect = Sequencers::new(esker_remote::Options::default(), LEASE);
    let sequencer = connect.connect(&server.address.to_string()).unwrap();
    let id = writer(&store, 9).id();
    let token = sequencer.next(id, 0, 3, None).unwrap();
    assert_eq!(sequencer.next(id, token.epoch, 1, None).unwrap().position, token.position + 3);
    let known = sequencer.next(id, token.epoch + 1, 1, None).unwrap_err();
    assert!(matches!(&known, Error::NoSequencer { why, .. } if why.contains("deposed")), "{known}");
    assert!(matches!(sequencer.next(id + 1, 0, 1, None), Err(Error::NoSequencer { .. })));
    assert!(matches!(sequencer.next(id, 0, 0, None), Err(Error::Invalid { .. })));
    assert!(matches!(sequencer.next(id, 0, u32::MAX, None), Err(Error::Invalid { .. })));
    assert!(matches!(sequencer.tail(id, token.epoch + 1), Err(Error::NoSequencer { .. })));
}

#[test]
fn a_silent_sequencer_is_given_up_after_the_lease() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let connect = Sequencers::new(esker_remote::Options::default(), LEASE);
    let sequencer = connect.connect(&silent.local_addr().unwrap().to_string()).unwrap();
    let began = Instant::now();
    assert!(matches!(sequencer.next(1, 0, 1, None), Err(Error::NoSequencer { .. })));
    assert!(matches!(sequencer.tail(1, 0), Err(Error::NoSequencer { .. })));
    assert!(began.elapsed() < 8 * LEASE, "{:?}", began.elapsed());
    assert!(connect.connect("nowhere").is_err());
}
