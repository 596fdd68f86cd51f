//! A line to Cassandra that breaks: requests that do not arrive and answers that are lost. Needs a real node, as `tests/map.rs`.
//!
//! driver → [`Line`] (forwards, and now and then breaks off, before a request is passed on or after) → node
//!
//! Invariant: a writer that is alone and is told `Ok` or that a condition failed has been told the truth.

#![allow(clippy::unwrap_used, reason = "a test that fails")]

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
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
}

/// Whether these bytes are an EXECUTE or BATCH that is to be serial: version 4, opcode 10 or 13, and somewhere the version that we write.
fn is_conditional(bytes: &[u8], handle: &[u8]) -> bool {
    matches!(bytes.get(4), Some(10 | 13)) && bytes.windows(handle.len()).any(|window| window == handle)
}

impl Line {
    fn open(node: SocketAddr, handle: [u8; 8]) -> (Self, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let line = Self { next: Arc::default(), broken: Arc::default() };
        let accepting = line.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
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

#[test]
#[ignore = "needs a node: scripts/cassandra run"]
fn a_lone_writer_is_told_the_truth_over_a_line_that_breaks() {
    let node: SocketAddr = std::env::var("ESKER_CASSANDRA").expect("ESKER_CASSANDRA=address:port").parse().unwrap();
    let seed = u64::from(std::process::id());
    println!("seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let handle = rng.u64(..).to_be_bytes();
    let (line, address) = Line::open(node, handle);
    let prefix = format!("f{:016x}", rng.u64(..));
    let place = Place { nodes: vec![address.to_string()], prefix };
    let options = Options { timeout: Duration::from_secs(5), ..Options::default() };
    let random = Random { secret: [1; 32], handle };
    let map = Cassandra::open(&place, options, Arc::new(|| 1_700_000_000_000), random).unwrap();
    map.create_namespace("ns").unwrap();
    let table = TableName::new("ns", "t");
    let schema = Schema::new().column("p", DataType::Int).column("x", DataType::Int).partition("p");
    map.create_table(&table, &schema).unwrap();
    let key = || Key::of("p", 1);
    let x = || loop {
        match map.get(&Get::new(&table, key())) {
            Ok(row) => break row.and_then(|row| row.value("x").cloned()),
            Err(Error::Unavailable { .. }) => std::thread::sleep(Duration::from_millis(50)),
            Err(error) => panic!("{error}"),
        }
    };
    let (mut told, mut unknown, mut unavailable) = (0, 0, 0);
    for round in 0..40 {
        let was = x();
        let next = match &was {
            Some(Value::Int(was)) => was + 1,
            _ => 0,
        };
        // One round in eight deletes the row: a late copy of the write that made it must not bring it back.
        let delete = was.is_some() && rng.u8(..8) == 0;
        let same = match was.clone() {
            Some(was) => Condition::If(Filter::Compare("x".into(), Compare::Equal, was)),
            None => Condition::NotExists,
        };
        let change = if delete {
            Mutation::delete(&table, key())
        } else {
            Mutation::put(&table, key(), vec![("x".into(), next.into())])
        };
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
            Err(error) => panic!("round {round}: {error}, though nobody else writes"),
        }
    }
    let broken = line.broken.load(Ordering::SeqCst);
    println!("{told} told, {unknown} unknown, {unavailable} unavailable, {broken} times broken off");
    assert!(broken >= 10, "the line broke {broken} times only");
    assert!(told >= 30, "only {told} of 40 were told that it was done");
    map.drop_table(&table).unwrap();
    map.drop_namespace("ns").unwrap();
}
