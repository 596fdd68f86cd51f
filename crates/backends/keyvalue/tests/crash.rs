//! SIGKILL of a real process that writes: what was acknowledged is there, and what is there is a prefix.
//!
//! the test → itself as a child (told by the environment) → the child writes and prints what was acknowledged → SIGKILL
//! → the test opens the store and looks
//!
//! `ESKER_CRASH_ROUNDS` sets the rounds for each kind (4 by default), `ESKER_CRASH_SEED` the first seed.

#![cfg(any(feature = "rocksdb", feature = "leveldb"))]
#![allow(clippy::unwrap_used, reason = "a test that fails")]

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use esker_keyvalue::{KeyValueStore, Kind, Options};
use esker_store::{Change, Durability, ObjectId, ObjectStore, SlotScan, Transaction};

const WRITERS: usize = 4;
const KINDS: [Kind; 3] = [Kind::RocksDb, Kind::LevelDb, Kind::NewStore];
/// Transactions that a writer has under way.
const IN_FLIGHT: usize = 4;
/// An object's bytes wrap around here, so that there are overwrites.
const IMAGE_BYTES: u64 = 300_000;

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

fn options() -> Options {
    Options { cache_bytes: 8 << 20, large_bytes: 16 << 10, ..Options::default() }
}

fn object(writer: usize) -> ObjectId {
    ObjectId::new("objects".into(), format!("writer {writer}"))
}

fn twin(writer: usize) -> ObjectId {
    ObjectId::new("twins".into(), format!("writer {writer}"))
}

/// What transaction `number` of a writer writes, and where: small, or (rarely) large.
fn written(writer: usize, number: u64) -> (u64, Vec<u8>) {
    let mut rng = fastrand::Rng::with_seed(number << 8 | writer as u64);
    let len = if number % 7 == 3 { rng.usize(16 << 10..60 << 10) } else { rng.usize(1..6_000) };
    let mut data = vec![0; len];
    rng.fill(&mut data);
    (rng.u64(..IMAGE_BYTES), data)
}

/// Transaction `number` of a writer. Its slot holds what it knew to be applied of all writers.
fn transaction(writer: usize, number: u64, known: &[u64; WRITERS]) -> Transaction {
    let (offset, data) = written(writer, number);
    let known: Vec<u8> = known.iter().flat_map(|number| number.to_le_bytes()).collect();
    let durability = if number.is_multiple_of(5) { Durability::Applied } else { Durability::Durable };
    let txn = Transaction::with(durability)
        .change(&object(writer), Change::SlotSet { index: number, value: known.into() })
        .change(&object(writer), Change::Write { offset, data: data.into() })
        .change(&twin(writer), Change::XattrSet { name: "n".into(), value: number.to_le_bytes().to_vec().into() });
    if number % 10 == 9 {
        // The log is trimmed, and an object comes and goes.
        let gone = ObjectId::new("objects".into(), format!("passing {writer}"));
        let trim = Change::SlotRemoveRange { start: 0, end: number - 9 };
        return txn.change(&object(writer), trim).change(&gone, Change::Touch).change(&gone, Change::Remove);
    }
    txn
}

/// The child: writes until it is killed.
#[test]
fn child() {
    let Ok(place) = std::env::var("ESKER_CRASH_CHILD") else { return };
    let (kind, path) = place.split_once(':').unwrap();
    let kind = KINDS.into_iter().find(|known| known.name() == kind).unwrap();
    let store = KeyValueStore::open(kind, Path::new(path), &options()).unwrap();
    let create = Transaction::new().create_collection(&"objects".into()).create_collection(&"twins".into());
    store.submit(create).wait().unwrap();
    let applied: [AtomicU64; WRITERS] = Default::default();
    for (writer, applied) in applied.iter().enumerate() {
        applied.store(last(&store, writer), Ordering::SeqCst);
    }
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (store, applied) = (&store, &applied);
            scope.spawn(move || {
                let mut under_way = VecDeque::new();
                for number in applied[writer].load(Ordering::SeqCst) + 1.. {
                    let known = std::array::from_fn(|at| applied[at].load(Ordering::SeqCst));
                    let (outcome, barrier) = store.submit(transaction(writer, number, &known)).into_parts();
                    outcome.unwrap();
                    applied[writer].store(number, Ordering::SeqCst);
                    under_way.push_back((number, barrier));
                    while under_way.len() >= IN_FLIGHT {
                        let (number, barrier) = under_way.pop_front().unwrap();
                        // Applied transactions have no barrier and are acknowledged with the durable one behind them.
                        if let Some(barrier) = barrier {
                            barrier.wait().unwrap();
                            // One write, so that a kill leaves whole lines.
                            std::io::stderr()
                                .write_all(format!("acknowledged {writer} {number}\n").as_bytes())
                                .unwrap();
                        }
                    }
                }
            });
        }
    });
}

fn last(store: &KeyValueStore, writer: usize) -> u64 {
    let stored = store.xattr(&twin(writer), b"n").wait().unwrap();
    stored.map_or(0, |stored| u64::from_le_bytes(stored[..].try_into().unwrap()))
}

/// Kills a child after a while; the last acknowledged transaction of each writer.
fn kill_one(kind: Kind, path: &Path, after: Duration) -> [u64; WRITERS] {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--nocapture", "--test-threads=1"])
        .env("ESKER_CRASH_CHILD", format!("{}:{}", kind.name(), path.display()))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let reader = std::thread::spawn(move || {
        let mut acknowledged = [0; WRITERS];
        for line in lines.map_while(Result::ok) {
            if let Some((writer, number)) = line.strip_prefix("acknowledged ").and_then(|rest| rest.split_once(' ')) {
                let (writer, number): (usize, u64) = (writer.parse().unwrap(), number.parse().unwrap());
                acknowledged[writer] = acknowledged[writer].max(number);
            } else {
                println!("child: {line}");
            }
        }
        acknowledged
    });
    std::thread::sleep(after);
    child.kill().unwrap();
    child.wait().unwrap();
    reader.join().unwrap()
}

fn check(store: &KeyValueStore, acknowledged: &[u64; WRITERS], context: &str) -> u64 {
    let found: [u64; WRITERS] = std::array::from_fn(|writer| last(store, writer));
    for writer in 0..WRITERS {
        let n = found[writer];
        assert!(
            n >= acknowledged[writer],
            "{context}: writer {writer}: {} was acknowledged, {n} found",
            acknowledged[writer]
        );
        let first = if n >= 9 { (n - 9) / 10 * 10 } else { 1 }.max(1);
        let scan = SlotScan { range: 0..u64::MAX, reverse: false, limit: 1_000, keys_only: false };
        let slots = store.slot_scan(&object(writer), &scan).wait().unwrap();
        let indexes: Vec<u64> = slots.iter().map(|(index, _)| *index).collect();
        assert_eq!(indexes, (first..=n).collect::<Vec<_>>(), "{context}: writer {writer}, last {n}: slots");
        for (index, known) in slots {
            for (other, known) in known.chunks_exact(8).enumerate() {
                let known = u64::from_le_bytes(known.try_into().unwrap());
                assert!(
                    found[other] >= known,
                    "{context}: {writer}'s {index} came after {other}'s {known}, which is gone"
                );
            }
        }
        let mut image = vec![0; IMAGE_BYTES as usize + (64 << 10)];
        let mut size = 0;
        for number in 1..=n {
            let (offset, data) = written(writer, number);
            image[offset as usize..][..data.len()].copy_from_slice(&data);
            size = size.max(offset as usize + data.len());
        }
        let stored = store.read(&object(writer), 0..u64::MAX).wait().unwrap();
        assert_eq!(stored.len(), size, "{context}: writer {writer}: size");
        let wrong = stored.iter().zip(&image).position(|(found, expected)| found != expected);
        assert_eq!(wrong, None, "{context}: writer {writer}, last {n}: the first byte that differs");
        let passing = ObjectId::new("objects".into(), format!("passing {writer}"));
        assert_eq!(store.stat(&passing).wait().unwrap(), None, "{context}: an object that was removed");
    }
    found.iter().sum()
}

#[test]
fn acknowledged_writes_survive_a_kill_and_what_is_left_is_a_prefix() {
    let (rounds, seed) = (setting("ESKER_CRASH_ROUNDS", 4), setting("ESKER_CRASH_SEED", 1));
    for kind in KINDS.into_iter().filter(|kind| kind.is_built_in()) {
        let folder = tempfile::tempdir().unwrap();
        let mut before = 0;
        for round in 0..rounds {
            let mut rng = fastrand::Rng::with_seed(seed + round);
            let after = Duration::from_millis(rng.u64(200..1_200));
            let context = format!("{}, seed {}, killed after {after:?}", kind.name(), seed + round);
            let acknowledged = kill_one(kind, folder.path(), after);
            let store = KeyValueStore::open(kind, folder.path(), &options()).unwrap();
            if store.collections().wait().unwrap().is_empty() {
                continue;
            }
            let found = check(&store, &acknowledged, &context);
            println!("{context}: {found} transactions, acknowledged {acknowledged:?}");
            assert!(found >= before, "{context}");
            before = found;
        }
        assert!(before > 0, "{}: no round wrote anything", kind.name());
    }
}
