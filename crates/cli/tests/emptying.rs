//! A full store behind `esker serve`: every face empties it, over the protocols that strangers use, after a kill too.

#![allow(clippy::unwrap_used, reason = "a test that fails")]

#[path = "../../esker/tests/support/emptying.rs"]
mod emptying;
#[path = "support/resp.rs"]
mod resp;
mod support;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

use emptying::{every_face_can_be_emptied, fill};
use esker::Store;
use esker_server::nbd::{Client, Place, wire::command};
use support::{esker, send, setting, soon};

const WITHIN: Option<Duration> = Some(Duration::from_secs(20));

/// `esker serve` of `folder`/data with all its doors, ended when dropped.
struct Running {
    child: Child,
    grpc: String,
    disks: String,
    _printed: BufReader<std::process::ChildStdout>,
}

impl Running {
    fn start(folder: &Path) -> Self {
        let doors = ["--listen", "127.0.0.1:0", "--nbd", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--grpc-objects"];
        let mut child =
            esker(folder).args(["serve", "--store", "data"]).args(doors).stdout(Stdio::piped()).spawn().unwrap();
        let mut printed = BufReader::new(child.stdout.take().unwrap());
        let (mut grpc, mut disks) = (None, None);
        while grpc.is_none() || disks.is_none() {
            let mut line = String::new();
            assert!(printed.read_line(&mut line).unwrap() > 0, "the server ended");
            let word = |name: &str| line.strip_prefix(name).and_then(|rest| rest.split_whitespace().next());
            grpc = grpc.or_else(|| word("grpc ").map(str::to_owned));
            disks = disks.or_else(|| word("disks ").map(str::to_owned));
        }
        Self { child, grpc: grpc.unwrap(), disks: disks.unwrap(), _printed: printed }
    }

    fn store(&self) -> Store {
        Store::open(&format!("grpc://{}", self.grpc)).unwrap()
    }

    fn kill(&mut self) {
        send(&self.child, "-KILL");
        self.child.wait().unwrap();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn format(folder: &Path, size: &str) {
    std::fs::create_dir(folder.join("data")).unwrap();
    let formatted = esker(folder).args(["format", "data/store.esker", "--size", size, "--segment", "1m"]).output();
    assert!(formatted.unwrap().status.success());
}

#[test]
fn every_face_of_a_server_can_be_emptied_where_the_store_is_full() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    format(folder, "40m");
    let mut server = Running::start(folder);
    let first = server.store();
    every_face_can_be_emptied(first, &mut |store| {
        drop(store);
        server.kill();
        server = Running::start(folder);
        server.store()
    });
}

#[test]
fn a_disk_on_a_full_store_is_attached_trimmed_and_detached() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    format(folder, "40m");
    let mut server = Running::start(folder);
    let (mut store, mut next) = (server.store(), 0);
    let volumes = store.volumes().unwrap();
    volumes.create("disk", 16 << 20, esker::volume::Layout::default(), 0).unwrap();
    let locked = |store: &Store| store.volumes().unwrap().image("disk").unwrap().lock_info().is_some();
    for round in 0..3u8 {
        let attach = |server: &Running| {
            let (address, export) =
                server.disks.strip_prefix("nbd://").unwrap_or(&server.disks).split_once('/').unwrap();
            assert!(export.is_empty());
            let place = Place::new(esker_server::nbd::Address::Tcp(address.parse().unwrap()), "disk");
            Client::connect(&place, WITHIN).unwrap()
        };
        let mut client = attach(&server);
        // Less each time than what the trim before has made free.
        client.write(0, &vec![round; (4 - usize::from(round)) << 20], true).unwrap();
        fill(&store, &mut next);
        drop(client);
        soon("a client that leaves on a full store gives its lock back", || !locked(&store));
        server.kill();
        server = Running::start(folder);
        store = server.store();
        fill(&store, &mut next);
        let mut client = attach(&server);
        assert_eq!(client.read(0, 4096).unwrap(), vec![round; 4096]);
        for (command, offset) in [(command::WRITE_ZEROES, 0), (command::TRIM, 4096), (command::TRIM, 0)] {
            fill(&store, &mut next);
            let len = if offset == 0 && command == command::TRIM { 16 << 20 } else { 4096 };
            client.send(command, 0, offset, len, &[]).unwrap();
            assert_eq!(client.receive().unwrap().error, 0, "round {round}, command {command} at {offset}");
        }
        // What was trimmed can be written again, by the same client.
        soon("there is room again", || client.write(1 << 20, &vec![round; 256 << 10], true).is_ok());
    }
}

/// Sets keys until the store is full, with smaller and smaller values; how many there are.
fn fill_with_keys(client: &mut resp::Client, from: u64) -> u64 {
    let mut next = from;
    for bytes in [20_000, 1_000, 10] {
        let value = "v".repeat(bytes);
        let mut refused = 0;
        while refused < 3 {
            match client.call(&["SET", &format!("key{next}"), &value]).as_str() {
                "+OK" => next += 1,
                answer => {
                    assert!(answer.contains("full"), "{answer}");
                    refused += 1;
                }
            }
        }
    }
    next
}

#[test]
fn a_server_on_a_full_store_starts_every_time_and_is_emptied() {
    for (round, segment) in ["1m", "256k", "4m"].into_iter().enumerate() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        std::fs::create_dir(folder.join("data")).unwrap();
        let formatted =
            esker(folder).args(["format", "data/store.esker", "--size", "64m", "--segment", segment]).output();
        assert!(formatted.unwrap().status.success());
        let start = || resp::Running::start(folder, &["--store", "data"]);
        let mut server = start();
        let mut client = server.client();
        assert_eq!(client.call(&["HSET", "hash", "a", "1", "b", "2"]), ":2");
        assert_eq!(client.call(&["SET", "gone", "x"]), "+OK");
        let mut keys = 0;
        for time in 0..setting("ESKER_STARTS", 12) {
            keys = fill_with_keys(&mut client, keys);
            server.signal(if time % 5 == round as u64 { "-TERM" } else { "-KILL" });
            server = start();
            client = server.client();
            // A little goes, so that the log has something to say: the store stays as full as it was.
            assert_eq!(client.call(&["DEL", &format!("key{}", time * 3)]), ":1", "{segment}, start {time}");
        }
        keys = fill_with_keys(&mut client, keys);
        assert_eq!(client.call(&["EXPIRE", "gone", "1"]), ":1");
        assert_eq!(client.call(&["HDEL", "hash", "a"]), ":1");
        fill_with_keys(&mut client, keys);
        assert_eq!(client.call(&["MULTI"]), "+OK");
        assert_eq!(client.call(&["HDEL", "hash", "b"]), "+QUEUED");
        assert_eq!(client.call(&["EXPIRE", "key1", "100"]), "+QUEUED");
        assert_eq!(client.call(&["EXEC"]), "*2");
        assert_eq!((client.reply(), client.reply()), (":1".into(), ":1".into()));
        soon("what expires is removed from a full store", || client.call(&["EXISTS", "gone"]) == ":0");
        assert_eq!(client.call(&["FLUSHALL"]), "+OK");
        let value = "v".repeat(20_000);
        for key in 0..1_000 {
            assert_eq!(client.call(&["SET", &format!("key{key}"), &value]), "+OK", "{segment}, key {key}");
        }
        assert_eq!(server.signal("-TERM"), 0);
    }
}
