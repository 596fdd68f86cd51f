//! A line to Cassandra that breaks: requests that do not arrive and answers that are lost. Needs a real node, as
//! `tests/map.rs`.
//!
//! driver → [`Line`] (forwards, and now and then breaks off, before a request is passed on or after) → node
//!
//! Invariant: a writer that is alone and is told `Ok` or that a condition failed has been told the truth.

#![allow(clippy::unwrap_used, reason = "a test that fails")]

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use esker_cassandra::{Cassandra, Options, Place, Random};
use esker_map::{
    Compare, Condition, DataType, Durability, Error, Filter, Get, Key, MapStorage, Mutation, Schema, TableName, Value,
};

/// What happens to the next conditional write.
const PASS: u32 = 0;
const LOSE_REQUEST: u32 = 1;
const LOSE_ANSWER: u32 = 2;

#[derive(Clone)]
struct Line {
    next: Arc<AtomicU32>,
    broken: Arc<AtomicU64>,
    /// While the test holds this, no client is connected anew.
    open: Arc<Mutex<()>>,
}

/// Whether these bytes are an EXECUTE or BATCH that is to be serial: version 4, opcode 10 or 13, and somewhere the
/// version that we write.
fn is_conditional(bytes: &[u8], handle: &[u8]) -> bool {
    matches!(bytes.get(4), Some(10 | 13)) && bytes.windows(handle.len()).any(|window| window == handle)
}

impl Line {
    fn open(node: SocketAddr, handle: [u8; 8]) -> (Self, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let line = Self { next: Arc::default(), broken: Arc::default(), open: Arc::default() };
        let accepting = line.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                drop(accepting.open.lock().unwrap());
                let Ok(server) = TcpStream::connect(node) else { continue };
                let (mut from_server, mut to_client) = (server.try_clone().unwrap(), client.try_clone().unwrap());
                std::thread::spawn(move || {
                    let _ = std::io::copy(&mut from_server, &mut to_client);
                    let _ = to_client.shutdown(Shutdown::Both);
                });
                let line = accepting.clone();
                std::thread::spawn(move || line.forward(client, server, &handle));
            }
        });
        (line, address)
    }

    fn forward(&self, mut client: TcpStream, mut server: TcpStream, handle: &[u8]) {
        let mut buffer = vec![0; 1 << 16];
        while let Ok(count @ 1..) = client.read(&mut buffer) {
            let bytes = &buffer[..count];
            let fault = if is_conditional(bytes, handle) { self.next.swap(PASS, Ordering::SeqCst) } else { PASS };
            if fault != PASS {
                self.broken.fetch_add(1, Ordering::SeqCst);
                // The way back is closed first, so that no answer slips through.
                let _ = client.shutdown(Shutdown::Both);
            }
            if fault == LOSE_REQUEST || server.write_all(bytes).is_err() {
                break;
            }
            if fault == LOSE_ANSWER {
                // The node has time to do it.
                std::thread::sleep(Duration::from_millis(200));
                break;
            }
        }
        let _ = client.shutdown(Shutdown::Both);
        let _ = server.shutdown(Shutdown::Both);
    }
}

fn table() -> TableName {
    TableName::new("ns", "t")
}

fn key() -> Key {
    Key::of("p", 1)
}

fn put(x: i32) -> Mutation {
    Mutation::put(&table(), key(), vec![("x".into(), x.into())])
}

fn x_is(x: Value) -> Condition {
    Condition::If(Filter::Compare("x".into(), Compare::Equal, x))
}

fn node() -> SocketAddr {
    std::env::var("ESKER_CASSANDRA").expect("ESKER_CASSANDRA=address:port").parse().unwrap()
}

fn connect(place: &Place, handle: [u8; 8]) -> Cassandra {
    let options = Options { timeout: Duration::from_secs(5), ..Options::default() };
    let random = Random { secret: [1; 32], handle };
    Cassandra::open(place, options, Arc::new(|| 1_700_000_000_000), random).unwrap()
}

/// A map behind a line of its own, with an empty table.
fn through_a_line(rng: &mut fastrand::Rng) -> (Line, Place, Cassandra) {
    let handle = rng.u64(..).to_be_bytes();
    let (line, address) = Line::open(node(), handle);
    let place = Place { nodes: vec![address.to_string()], prefix: format!("f{:016x}", rng.u64(..)) };
    let map = connect(&place, handle);
    map.create_namespace("ns").unwrap();
    let schema = Schema::new().column("p", DataType::Int).column("x", DataType::Int).partition("p");
    map.create_table(&table(), &schema).unwrap();
    (line, place, map)
}

fn x_of(map: &Cassandra) -> Option<Value> {
    loop {
        match map.get(&Get::new(&table(), key())) {
            Ok(row) => break row.and_then(|row| row.value("x").cloned()),
            Err(Error::Unavailable { .. }) => std::thread::sleep(Duration::from_millis(50)),
            Err(error) => panic!("{error}"),
        }
    }
}

fn clear(map: &Cassandra) {
    map.drop_table(&table()).unwrap();
    map.drop_namespace("ns").unwrap();
}

#[test]
#[ignore = "needs a node: scripts/cassandra run"]
fn a_lone_writer_is_told_the_truth_over_a_line_that_breaks() {
    let seed = u64::from(std::process::id());
    println!("seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let (line, _, map) = through_a_line(&mut rng);
    let x = || x_of(&map);
    let (mut told, mut unknown, mut unavailable) = (0, 0, 0);
    for round in 0..40 {
        let was = x();
        let next = match &was {
            Some(Value::Int(was)) => was + 1,
            _ => 0,
        };
        // One round in eight deletes the row: a late copy of the write that made it must not bring it back.
        let delete = was.is_some() && rng.u8(..8) == 0;
        let same = was.clone().map_or(Condition::NotExists, x_is);
        let change = if delete { Mutation::delete(&table(), key()) } else { put(next) };
        let expected = if delete { None } else { Some(Value::Int(next)) };
        line.next.store(rng.u32(PASS..=LOSE_ANSWER), Ordering::SeqCst);
        match map.mutate(&[change.when(same)], Durability::Durable).map(drop) {
            Ok(()) => {
                told += 1;
                assert_eq!(x(), expected, "round {round}: told that it was done");
            }
            Err(Error::Unavailable { .. }) => {
                unavailable += 1;
                assert_eq!(x(), was, "round {round}: told that nothing was done");
            }
            Err(Error::Unknown { .. }) => unknown += 1,
            Err(error) => panic!("round {round}: {error}, though no other client writes"),
        }
    }
    let broken = line.broken.load(Ordering::SeqCst);
    println!("{told} told, {unknown} unknown, {unavailable} unavailable, {broken} times broken off");
    assert!(broken >= 10, "the line broke {broken} times only");
    assert!(told >= 30, "only {told} of 40 were told that it was done");
    clear(&map);
}

/// Its answer is lost, and before it can ask, another one writes what makes its condition hold once more.
#[test]
#[ignore = "needs a node: scripts/cassandra run"]
fn a_write_that_was_overtaken_before_it_was_settled_is_unknown_and_not_done_again() {
    let seed = u64::from(std::process::id()) + 1;
    println!("seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let (line, place, map) = through_a_line(&mut rng);
    let direct = Place { nodes: vec![node().to_string()], ..place };
    let other = connect(&direct, rng.u64(..).to_be_bytes());
    let done = |map: &Cassandra, put: Mutation| map.mutate(&[put], Durability::Durable).map(drop);
    done(&map, put(0)).unwrap();
    for round in 0..3 {
        let told = std::thread::scope(|scope| {
            let closed = line.open.lock().unwrap();
            line.next.store(LOSE_ANSWER, Ordering::SeqCst);
            let writer = scope.spawn(|| done(&map, put(1).when(x_is(0.into()))));
            while x_of(&other) != Some(1.into()) {
                assert!(!writer.is_finished(), "round {round}: nothing was written");
                std::thread::sleep(Duration::from_millis(5));
            }
            done(&other, put(0).when(x_is(1.into()))).unwrap();
            drop(closed);
            writer.join().unwrap()
        });
        assert!(matches!(told, Err(Error::Unknown { .. })), "round {round}: told {told:?}");
        assert_eq!(x_of(&other), Some(0.into()), "round {round}: what was overtaken is not done again");
        assert_eq!(x_of(&map), Some(0.into()), "round {round}");
    }
    assert_eq!(line.broken.load(Ordering::SeqCst), 3);
    clear(&map);
}
