//! Values that are on their way: their client waits, and nobody else; commands of one client are answered in order.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use esker_kv::{Kv, SystemClock};
use esker_memory::MemoryStore;
use esker_server::resp::{Config, NoEngineInfo, Server};
use esker_store::{Applied, Completion, Error, Forward, ObjectId, ObjectStore, Promise, promised};
use parking_lot::Mutex;
use support::{Client, PATIENCE, config, encode, eventually};

/// What is to be given later, and to whom.
enum Waits {
    One(Promise<Option<Bytes>>, Applied<Option<Bytes>>),
    Several(Promise<Vec<Option<Bytes>>>, Applied<Vec<Option<Bytes>>>),
}

impl Waits {
    fn is_wanted(&self) -> bool {
        match self {
            Self::One(promise, _) => promise.is_wanted(),
            Self::Several(promise, _) => promise.is_wanted(),
        }
    }

    fn give(self) {
        match self {
            Self::One(promise, value) => promise.fulfil(value),
            Self::Several(promise, values) => promise.fulfil(values),
        }
    }
}

/// A store in memory whose values come when the test says so.
#[derive(Default)]
struct Late {
    store: MemoryStore,
    held: Mutex<bool>,
    waits: Mutex<Vec<Waits>>,
}

impl Late {
    fn hold(&self, hold: bool) {
        *self.held.lock() = hold;
        if !hold {
            self.waits.lock().drain(..).for_each(Waits::give);
        }
    }

    fn waiting(&self) -> usize {
        self.waits.lock().iter().filter(|waits| waits.is_wanted()).count()
    }
}

impl Forward for Late {
    fn behind(&self) -> &dyn ObjectStore {
        &self.store
    }

    fn omap_get(&self, object: &ObjectId, key: &[u8]) -> Completion<Option<Bytes>> {
        let value = self.store.omap_get(object, key);
        if !*self.held.lock() {
            return value;
        }
        let (promise, completion) = promised("a value");
        self.waits.lock().push(Waits::One(promise, value.into_parts()));
        completion
    }

    fn omap_get_many(&self, object: &ObjectId, keys: &[Bytes]) -> Completion<Vec<Option<Bytes>>> {
        let values = self.store.omap_get_many(object, keys);
        if !*self.held.lock() {
            return values;
        }
        let (promise, completion) = promised("values");
        self.waits.lock().push(Waits::Several(promise, values.into_parts()));
        completion
    }
}

struct Running {
    store: Arc<Late>,
    address: std::net::SocketAddr,
    handle: esker_server::resp::Handle,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Running {
    /// One loop, so that whoever holds it up holds up everybody.
    fn start() -> Self {
        let store = Arc::new(Late::default());
        let kv = Kv::open(Arc::clone(&store) as _, Arc::new(SystemClock)).unwrap();
        let server = Server::bind(Config { threads: 1, ..config() }, kv, Arc::new(NoEngineInfo)).unwrap();
        let esker_server::resp::Address::Tcp(address) = server.addresses()[0] else { panic!("no TCP address") };
        let handle = server.handle();
        let thread = Some(std::thread::spawn(move || server.run().unwrap()));
        Self { store, address, handle, thread }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.store.hold(false);
        self.handle.shutdown();
        let _ = self.thread.take().map(std::thread::JoinHandle::join);
    }
}

/// What a command takes until its value is here is its time, and no time of the commands behind it.
#[test]
fn the_time_of_a_command_ends_when_its_values_are_here() {
    let server = Running::start();
    let (mut one, mut other) = (Client::connect(server.address), Client::connect(server.address));
    other.check("SET a 1", "+OK\r\n");
    other.check("CONFIG SET slowlog-log-slower-than 40000", "+OK\r\n");
    server.store.hold(true);
    one.send(&[encode(&["ECHO", "x"]), encode(&["GET", "a"]), encode(&["ECHO", "y"])].concat());
    eventually("it waits", || server.store.waiting() == 1);
    assert!(!other.run("INFO commandstats").contains("cmdstat_get:"), "it is counted before it ended");
    std::thread::sleep(Duration::from_millis(60));
    server.store.hold(false);
    for expected in ["$1\r\nx\r\n", "$1\r\n1\r\n", "$1\r\ny\r\n"] {
        assert_eq!(one.reply().unwrap(), expected.as_bytes());
    }
    let info = other.run("INFO commandstats");
    let us = |command: &str| {
        let line = info.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:"))).unwrap();
        line.split(',').find_map(|part| part.strip_prefix("usec=")).unwrap().parse::<u64>().unwrap()
    };
    assert!(us("get") >= 60_000 && us("echo") < 40_000, "{info}");
    let slow = other.run("SLOWLOG GET");
    assert!(slow.starts_with("*1\r\n") && slow.contains("$3\r\nGET\r\n$1\r\na\r\n"), "{slow}");
}

fn expect_silence(client: &mut Client<std::net::TcpStream>) {
    client.stream.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    assert!(client.stream.peek(&mut [0]).is_err(), "a reply came before its value");
    client.stream.set_read_timeout(Some(PATIENCE)).unwrap();
}

#[test]
fn who_waits_for_a_value_holds_up_nobody_and_is_answered_in_order() {
    let server = Running::start();
    let (mut one, mut several, mut other) =
        (Client::connect(server.address), Client::connect(server.address), Client::connect(server.address));
    other.check("MSET a 1 b 2 c 3", "+OK\r\n");
    other.check("HSET h f v", ":1\r\n");
    for round in 0..20 {
        server.store.hold(true);
        one.send(
            &[encode(&["PING"]), encode(&["GET", "a"]), encode(&["ECHO", "x"]), encode(&["GET", "none"])].concat(),
        );
        assert_eq!(one.reply().unwrap(), b"+PONG\r\n");
        // More comes while it waits, in pieces.
        let more = encode(&["MGET", "b", "h", "a"]);
        one.send(&more[..9]);
        several.send(&encode(&["MGET", "a", "none", "h", "c"]));
        eventually("both wait", || server.store.waiting() == 2);
        one.send(&more[9..]);
        // Nobody else does: what needs no value is answered.
        other.check("PING", "+PONG\r\n");
        other.check("ECHO hello", "$5\r\nhello\r\n");
        expect_silence(&mut one);
        expect_silence(&mut several);
        assert_eq!(server.store.waiting(), 2, "a command overtook the one before it, round {round}");
        server.store.hold(false);
        for expected in ["$1\r\n1\r\n", "$1\r\nx\r\n", "$-1\r\n", "*3\r\n$1\r\n2\r\n$-1\r\n$1\r\n1\r\n"] {
            assert_eq!(String::from_utf8(one.reply().unwrap()).unwrap(), expected);
        }
        let expected = "*4\r\n$1\r\n1\r\n$-1\r\n$-1\r\n$1\r\n3\r\n";
        assert_eq!(String::from_utf8(several.reply().unwrap()).unwrap(), expected);
    }
    server.store.hold(true);
    one.send(&[encode(&["GET", "h"]), encode(&["PING"])].concat());
    eventually("it waits", || server.store.waiting() == 1);
    server.store.hold(false);
    let refused = "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n";
    assert_eq!(String::from_utf8(one.reply().unwrap()).unwrap(), refused);
    assert_eq!(one.reply().unwrap(), b"+PONG\r\n");
}

/// Failure: a client that was alone on its loop was never answered. Cause: what it waited for was looked at only with the next
/// event of its connection. Fix: at once, which has the loop woken.
#[test]
fn a_client_that_is_alone_is_answered() {
    let server = Running::start();
    let mut client = Client::connect(server.address);
    client.check("MSET a 1 b 2", "+OK\r\n");
    for _ in 0..20 {
        for (command, reply) in
            [(&["GET", "a"][..], "$1\r\n1\r\n"), (&["MGET", "b", "a"], "*2\r\n$1\r\n2\r\n$1\r\n1\r\n")]
        {
            server.store.hold(true);
            client.send(&encode(command));
            eventually("it waits", || server.store.waiting() == 1);
            // As long as no event comes to its connection any more.
            std::thread::sleep(Duration::from_millis(5));
            server.store.hold(false);
            assert_eq!(String::from_utf8(client.reply().unwrap()).unwrap(), reply);
        }
    }
}

#[test]
fn a_value_that_cannot_be_read_is_an_error_and_the_connection_goes_on() {
    let server = Running::start();
    let mut client = Client::connect(server.address);
    client.check("SET a 1", "+OK\r\n");
    server.store.hold(true);
    client.send(&[encode(&["GET", "a"]), encode(&["PING"])].concat());
    eventually("it waits", || server.store.waiting() == 1);
    let Some(Waits::One(promise, _)) = server.store.waits.lock().pop() else { panic!("not a GET") };
    promise.fulfil((Err(Error::Corrupt { offset: 4096, what: "a test".into() }), None));
    let reply = String::from_utf8(client.reply().unwrap()).unwrap();
    assert!(reply.starts_with('-') && reply.contains("4096"), "{reply}");
    assert_eq!(client.reply().unwrap(), b"+PONG\r\n");
    // One that nobody will ever give.
    client.send(&encode(&["GET", "a"]));
    eventually("it waits", || server.store.waiting() == 1);
    server.store.waits.lock().clear();
    assert!(client.reply().unwrap().starts_with(b"-"));
}

#[test]
fn a_client_that_leaves_is_not_read_for_and_a_server_that_stops_answers() {
    let server = Running::start();
    let (mut leaves, mut stays) = (Client::connect(server.address), Client::connect(server.address));
    stays.check("SET a 1", "+OK\r\n");
    let id = {
        leaves.send(&encode(&["CLIENT", "ID"]));
        String::from_utf8(leaves.reply().unwrap()).unwrap()
    };
    server.store.hold(true);
    leaves.send(&encode(&["GET", "a"]));
    eventually("it waits", || server.store.waiting() == 1);
    stays.check(&format!("CLIENT KILL ID {}", id.trim_start_matches(':').trim()), ":1\r\n");
    eventually("nobody waits any more", || server.store.waiting() == 0);
    stays.send(&encode(&["GET", "a"]));
    eventually("it waits", || server.store.waiting() == 1);
    server.handle.shutdown();
    std::thread::sleep(Duration::from_millis(50));
    server.store.hold(false);
    assert_eq!(stays.reply().unwrap(), b"$1\r\n1\r\n");
}
