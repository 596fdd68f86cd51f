//! The Thrift server at its limits: strangers, slow clients, memory, stores that keep a call waiting, its end.
//!
//! What every method does, in every protocol, the clients in `clients/thrift` show.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use esker_kv::{Kind, Kv, SystemClock};
use esker_memory::MemoryStore;
use esker_server::http::Value;
use esker_server::thrift::{Address, Config, Handle, Server};
use esker_store::{
    Applied, Collection, CommitSeq, Completion, Error, Forward, ObjectId, ObjectStore, Promise, Stall, Transaction,
    WhenBusy, promised,
};
use parking_lot::Mutex;
use support::PATIENCE;
use support::by_thrift::{Client, EXCEPTION, REPLY, contains, framed, message, text};

/// The least that a server may have: 48 MiB for messages, 65 MiB for answers, 80 MiB for what is read.
const MEMORY_MIN: usize = 193 << 20;

/// A value that is waited for, and what it is once it comes.
type Awaited = (Promise<Option<Bytes>>, Applied<Option<Bytes>>);

/// A store in memory whose values come, and which has room, when the test says so.
#[derive(Default)]
struct Late {
    store: MemoryStore,
    held: Mutex<bool>,
    waits: Mutex<Vec<Awaited>>,
    busy: Mutex<bool>,
    /// Held by a test, it keeps the thread that writes or lists objects.
    gate: Mutex<()>,
    rooms: Mutex<Vec<Promise<()>>>,
}

impl Late {
    fn give(&self) {
        *self.held.lock() = false;
        self.waits.lock().drain(..).for_each(|(promise, value)| promise.fulfil(value));
    }

    /// Gives what is waited for now, and nothing that is read later: it does not stay in memory.
    fn give_once(&self) {
        let until = Instant::now() + PATIENCE;
        while self.waits.lock().is_empty() {
            assert!(Instant::now() < until, "nothing is read");
            std::thread::sleep(Duration::from_millis(1));
        }
        self.waits.lock().drain(..).for_each(|(promise, value)| promise.fulfil(value));
    }

    fn make_room(&self) {
        *self.busy.lock() = false;
        self.rooms.lock().drain(..).for_each(|promise| promise.fulfil((Ok(()), None)));
    }
}

impl Forward for Late {
    fn behind(&self) -> &dyn ObjectStore {
        &self.store
    }

    fn submit(&self, txn: Transaction) -> Completion<CommitSeq> {
        drop(self.gate.lock());
        if *self.busy.lock() {
            assert!(matches!(txn.when_busy, WhenBusy::Refuse(_)), "a thread that answers would sleep");
            return Completion::ready(Err(Error::Busy { stall: Stall::Backlog }));
        }
        self.store.submit(txn)
    }

    fn list(&self, collection: &Collection, after: Option<&[u8]>, limit: usize) -> Completion<Vec<Bytes>> {
        drop(self.gate.lock());
        self.store.list(collection, after, limit)
    }

    fn room(&self, _: Stall) -> Completion<()> {
        let busy = self.busy.lock();
        if !*busy {
            return Completion::ready(Ok(()));
        }
        let (promise, completion) = promised("room");
        self.rooms.lock().push(promise);
        completion
    }

    fn omap_get(&self, object: &ObjectId, key: &[u8]) -> Completion<Option<Bytes>> {
        let value = self.store.omap_get(object, key);
        if !*self.held.lock() || !key.ends_with(b"cold") {
            return value;
        }
        let (promise, completion) = promised("a value");
        self.waits.lock().push((promise, value.into_parts()));
        completion
    }
}

struct Running {
    store: Arc<Late>,
    address: SocketAddr,
    handle: Handle,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    /// One thread that answers, so that a call which held it up would hold up all.
    fn start(config: Config) -> Self {
        let store = Arc::new(Late::default());
        let kv = Kv::open(Arc::clone(&store) as Arc<dyn ObjectStore>, Arc::new(SystemClock)).unwrap();
        let listen = vec![SocketAddr::from(([127, 0, 0, 1], 0))];
        let server = Server::bind(Config { listen, threads: 1, ..config }, kv, None).unwrap();
        let Address::Tcp(address) = server.addresses()[0] else { panic!("{:?}", server.addresses()) };
        let handle = server.handle();
        Self { store, address, handle, thread: Some(std::thread::spawn(move || server.run())) }
    }

    fn client(&self) -> Client {
        Client::connect(self.address)
    }

    fn figure(&self, name: &str) -> f64 {
        let figure = self.handle.figures().into_iter().find(|figure| figure.name == name);
        match figure.unwrap_or_else(|| panic!("no figure {name}")).value {
            Value::Gauge(value) | Value::Counter(value) => value,
            other => panic!("{other:?}"),
        }
    }

    fn eventually(&self, name: &str, holds: impl Fn(f64) -> bool) {
        let until = Instant::now() + PATIENCE;
        while !holds(self.figure(name)) {
            assert!(Instant::now() < until, "{name} is still {}", self.figure(name));
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.store.give();
        self.store.make_room();
        self.handle.shutdown();
        if let Some(thread) = self.thread.take()
            && !std::thread::panicking()
        {
            thread.join().unwrap();
        }
    }
}

#[test]
fn a_stranger_who_says_nothing_goes_and_takes_no_place_of_the_known() {
    let config = Config { strangers_max: 2, stranger_seconds: 1, connections_max: 1, ..Config::default() };
    let running = Running::start(config);
    let mut known = running.client();
    known.put("k", b"v");
    let mut silent: Vec<Client> = (0..3).map(|_| running.client()).collect();
    // The oldest made room for the third; the others' time comes.
    running.eventually("esker_thrift_strangers", |strangers| strangers == 2.0);
    silent[0].ends();
    assert!(silent[1].ends() + silent[2].ends() < Duration::from_secs(10));
    assert_eq!(running.figure("esker_thrift_strangers_sent_away"), 3.0);
    assert_eq!(known.get("k"), b"v");
    // There is no second place: the client is told, and by which limit.
    let mut second = running.client();
    let (kind, answer) = second.call("has", &text(1, b"k"));
    assert!(kind == EXCEPTION && contains(&answer, "thrift_connections"), "{answer:?}");
    second.ends();
    drop(known);
    running.eventually("esker_thrift_connections", |connections| connections == 0.0);
    assert_eq!(running.client().get("k"), b"v");
}

#[test]
fn half_a_message_holds_what_has_come_of_it_and_not_for_long() {
    let running = Running::start(Config { message_seconds: 2, ..Config::default() });
    let whole = message(1, "put", &[text(1, b"k"), text(2, &vec![b'v'; 8 << 20])].concat());
    for unframed in [false, true] {
        let mut slow = running.client();
        // It says that there is much, and sends little.
        let sent = if unframed { &whole[..1 << 20] } else { &framed(&whole)[..1 << 20] };
        slow.0.write_all(sent).unwrap();
        running.eventually("esker_thrift_memory_bytes", |bytes| bytes > (1 << 19) as f64);
        assert!(running.figure("esker_thrift_memory_bytes") <= (3 << 20) as f64);
        assert!(slow.ends() < Duration::from_secs(10));
        running.eventually("esker_thrift_memory_bytes", |bytes| bytes == 0.0);
    }
    // The end of a connection ends that as well.
    let mut gone = running.client();
    gone.0.write_all(&whole[..100_000]).unwrap();
    running.eventually("esker_thrift_memory_bytes", |bytes| bytes > 0.0);
    drop(gone);
    running.eventually("esker_thrift_memory_bytes", |bytes| bytes == 0.0);
    // One that has nothing under way may be silent.
    let mut idle = running.client();
    assert_eq!(idle.get("k"), b"missing");
    std::thread::sleep(Duration::from_millis(2_500));
    assert_eq!(idle.get("k"), b"missing");
}

#[test]
fn answers_that_are_not_taken_hold_bounded_memory_and_not_for_long() {
    let running = Running::start(Config { message_seconds: 6, memory_bytes_max: MEMORY_MIN, ..Config::default() });
    let mut client = running.client();
    client.put("k", &vec![b'v'; 15 << 20]);
    let mut slow: Vec<Client> = (0..4).map(|_| running.client()).collect();
    slow.iter_mut().for_each(|client| client.send("get", &text(1, b"k")));
    // An answer that has begun to come has its memory; one that is still read could leave it to a later one.
    slow.iter_mut().for_each(|client| assert_eq!(client.0.peek(&mut [0]).unwrap(), 1));
    running.eventually("esker_thrift_memory_bytes", |bytes| bytes >= (4 * (15 << 20)) as f64);
    // There is no more for this one; short answers need none.
    let (kind, answer) = client.call("get", &text(1, b"k"));
    assert!(kind == EXCEPTION && contains(&answer, "thrift_memory"), "{kind}");
    client.put("short", b"v");
    assert_eq!(client.get("short"), b"v");
    running.eventually("esker_thrift_memory_bytes", |bytes| bytes == 0.0);
    assert_eq!(client.get("k").len(), 15 << 20);
}

#[test]
fn long_messages_that_come_at_once_do_not_wait_for_each_other_for_ever() {
    let running = Running::start(Config { memory_bytes_max: MEMORY_MIN, ..Config::default() });
    let sent = framed(&message(1, "put", &[text(1, b"k"), text(2, &vec![b'v'; 14 << 20])].concat()));
    std::thread::scope(|scope| {
        for _ in 0..20 {
            scope.spawn(|| {
                let mut client = running.client();
                client.0.write_all(&sent).unwrap();
                assert_eq!(client.answer().0, REPLY);
            });
        }
    });
    running.eventually("esker_thrift_memory_bytes", |bytes| bytes == 0.0);
}

#[test]
fn a_message_that_finds_no_memory_in_time_is_told_so() {
    let running = Running::start(Config { message_seconds: 3, memory_bytes_max: MEMORY_MIN, ..Config::default() });
    let sent = framed(&message(1, "put", &[text(1, b"k"), text(2, &vec![b'v'; 14 << 20])].concat()));
    let (mut first, mut second) = (running.client(), running.client());
    first.0.write_all(&sent[..1 << 20]).unwrap();
    running.eventually("esker_thrift_memory_bytes", |bytes| bytes > (1 << 20) as f64);
    std::thread::sleep(Duration::from_millis(500));
    second.0.write_all(&sent[..12 << 20]).unwrap();
    // It has the memory of the one message that needs nothing else; the first has to wait for that, in vain.
    running.eventually("esker_thrift_memory_bytes", |bytes| bytes > (44 << 20) as f64);
    first.0.write_all(&sent[1 << 20..5 << 20]).unwrap();
    let (kind, answer) = first.answer();
    assert!(kind == EXCEPTION && contains(&answer, "thrift_memory"), "{}", String::from_utf8_lossy(&answer));
    first.ends();
    second.ends();
    running.eventually("esker_thrift_memory_bytes", |bytes| bytes == 0.0);
}

#[test]
fn what_may_be_read_has_memory_before_it_is_read() {
    let running = Running::start(Config { message_seconds: 1, memory_bytes_max: MEMORY_MIN, ..Config::default() });
    let mut client = running.client();
    client.put("cold", b"v");
    *running.store.held.lock() = true;
    let mut waiting: Vec<Client> = (0..5).map(|_| running.client()).collect();
    waiting.iter_mut().for_each(|client| client.send("get", &text(1, b"cold")));
    running.eventually("esker_thrift_memory_bytes", |bytes| bytes >= (79 << 20) as f64);
    let (kind, answer) = client.call("get", &text(1, b"cold"));
    assert!(kind == EXCEPTION && contains(&answer, "thrift_memory"), "{}", String::from_utf8_lossy(&answer));
    assert_eq!(running.store.waits.lock().len(), 5);
    client.put("k", b"v");
    running.store.give();
    assert!(waiting.iter_mut().all(|client| client.answer().0 == REPLY));
    running.eventually("esker_thrift_memory_bytes", |bytes| bytes == 0.0);
    // Several values are read in parts, and no further than they may be answered with.
    client.put("k", &vec![b'v'; 15 << 20]);
    let keys =
        |count: u32| [&[15, 0, 1, 11][..], &count.to_be_bytes(), &b"\0\0\0\x01k".repeat(count as usize)].concat();
    assert_eq!(client.call("multiGet", &keys(4)).0, REPLY);
    let (kind, answer) = client.call("multiGet", &keys(4_096));
    assert!(kind == EXCEPTION && contains(&answer, "ANSWER_BYTES_MAX"), "{}", String::from_utf8_lossy(&answer));
}

#[test]
fn the_mode_that_a_client_has_set_outlives_a_server_that_is_bound_anew() {
    let config = Config { listen: Vec::new(), ..Config::default() };
    let first = Running::start(config.clone());
    let mode = [8, 0, 1, 0, 0, 0, 2];
    assert_eq!(first.client().call("setMode", &mode).0, REPLY);
    drop(first);
    let second = Running::start(config);
    assert_eq!(second.figure("esker_thrift_asynchronous"), 1.0);
    assert!(second.client().call("mode", &[]).1.ends_with(&[8, 0, 0, 0, 0, 0, 2, 0]));
    // Another configuration has its own.
    assert_eq!(Running::start(Config::default()).figure("esker_thrift_asynchronous"), 0.0);
}

#[test]
fn a_call_that_waits_for_the_store_holds_up_no_other() {
    let running = Running::start(Config::default());
    let mut client = running.client();
    client.put("cold", b"v");
    client.put("k", b"v");
    *running.store.held.lock() = true;
    let mut waiting: Vec<Client> = (0..4).map(|_| running.client()).collect();
    waiting[0].send("get", &text(1, b"cold"));
    waiting[1].send("has", &text(1, b"cold"));
    waiting[2].send("update", &[text(1, b"cold"), text(2, b"new")].concat());
    waiting[3].send("add", &[text(1, b"other cold"), text(2, b"new")].concat());
    running.eventually("esker_thrift_connections", |connections| connections == 5.0);
    let until = Instant::now() + PATIENCE;
    while running.store.waits.lock().len() < 4 {
        assert!(Instant::now() < until);
        client.put("k", b"v");
        assert_eq!(client.get("k"), b"v");
    }
    assert_eq!(client.get("k"), b"v");
    running.store.give();
    let answers: Vec<_> = waiting.iter_mut().map(|client| client.answer().0).collect();
    assert_eq!(answers, [REPLY; 4]);
    assert_eq!((client.get("cold"), client.get("other cold")), (b"new".to_vec(), b"new".to_vec()));
}

#[test]
fn a_value_that_does_not_stay_is_read_three_times_and_its_key_holds_up_no_thread_that_answers() {
    let running = Running::start(Config::default());
    let mut client = running.client();
    client.put("cold", b"v");
    *running.store.held.lock() = true;
    let (mut updating, mut putting) = (running.client(), running.client());
    updating.send("update", &[text(1, b"cold"), text(2, b"new")].concat());
    running.store.give_once();
    running.store.give_once();
    // The third time a thread waits for it, and holds the key meanwhile.
    let until = Instant::now() + PATIENCE;
    while running.store.waits.lock().is_empty() {
        assert!(Instant::now() < until);
    }
    putting.send("put", &[text(1, b"cold"), text(2, b"last")].concat());
    std::thread::sleep(Duration::from_millis(100));
    client.put("k", b"v");
    assert_eq!(client.get("k"), b"v");
    running.store.give_once();
    assert_eq!((updating.answer().0, putting.answer().0), (REPLY, REPLY));
    running.store.give();
    assert_eq!(client.get("cold"), b"last");
}

#[test]
fn counts_and_large_writes_take_no_thread_that_answers() {
    let running = Running::start(Config { kind: Kind::Int, namespace: "numbers".into(), ..Config::default() });
    let mut client = running.client();
    client.put("1", b"v");
    let store = Arc::clone(&running.store);
    let gate = store.gate.lock();
    let (mut counting, mut putting) = (running.client(), running.client());
    counting.send("count", &[]);
    putting.send("put", &[text(1, b"2"), text(2, &vec![b'v'; 1 << 20])].concat());
    running.eventually("esker_thrift_connections", |connections| connections == 3.0);
    for _ in 0..50 {
        assert_eq!(client.get("1"), b"v");
        std::thread::sleep(Duration::from_millis(2));
    }
    drop(gate);
    assert_eq!((counting.answer().0, putting.answer().0), (REPLY, REPLY));
}

#[test]
fn writes_wait_for_room_and_no_thread_waits_with_them() {
    let running = Running::start(Config::default());
    let mut client = running.client();
    client.put("k", b"v");
    *running.store.busy.lock() = true;
    let mut writers: Vec<Client> = (0..8).map(|_| running.client()).collect();
    for (number, writer) in writers.iter_mut().enumerate() {
        writer.send("put", &[text(1, format!("k{number}").as_bytes()), text(2, b"v")].concat());
    }
    let until = Instant::now() + PATIENCE;
    while running.store.rooms.lock().len() < 8 {
        assert!(Instant::now() < until && client.get("k") == b"v");
    }
    running.store.make_room();
    assert!(writers.iter_mut().all(|writer| writer.answer().0 == REPLY));
    assert_eq!(client.get("k7"), b"v");
}

#[test]
fn a_server_that_stops_answers_what_is_under_way_and_ends_the_idle_at_once() {
    let running = Running::start(Config::default());
    let (mut idle, mut busy) = (running.client(), running.client());
    idle.put("cold", b"v");
    *running.store.held.lock() = true;
    busy.send("get", &text(1, b"cold"));
    let until = Instant::now() + PATIENCE;
    while running.store.waits.lock().is_empty() {
        assert!(Instant::now() < until);
    }
    running.handle.shutdown();
    assert!(idle.ends() < Duration::from_secs(2));
    running.store.give();
    assert_eq!(busy.answer().0, REPLY);
    busy.ends();
}

#[test]
fn what_is_no_call_is_told_so_and_ends_the_connection() {
    let running = Running::start(Config::default());
    for (sent, expected) in [
        (framed(&message(2, "get", &[])), "no call"),
        (framed(&message(3, "get", &[])), "no call"),
        (framed(&message(1, "get", &[11, 0, 1, 0x7f, 0, 0, 0])), "MESSAGE_BYTES_MAX"),
        (0x7fff_ffff_u32.to_be_bytes().to_vec(), "2147483647"),
    ] {
        let mut client = running.client();
        client.put("k", b"v");
        client.0.write_all(&sent).unwrap();
        let (kind, answer) = client.answer();
        assert!(kind == EXCEPTION && contains(&answer, expected), "{}", String::from_utf8_lossy(&answer));
        client.ends();
    }
    assert_eq!(running.figure("esker_thrift_connections_malformed"), 2.0);
}

#[test]
fn calls_that_come_together_are_answered_in_their_order() {
    let running = Running::start(Config { kind: Kind::Int, namespace: "numbers".into(), ..Config::default() });
    let mut client = running.client();
    let mut sent = Vec::new();
    for number in 0..500 {
        let key = number.to_string();
        sent.extend(framed(&message(1, "put", &[text(1, key.as_bytes()), text(2, key.as_bytes())].concat())));
        sent.extend(framed(&message(1, "get", &text(1, key.as_bytes()))));
        // Not answered.
        sent.extend(framed(&message(4, "remove", &text(1, key.as_bytes()))));
    }
    let mut writer = Client(client.0.try_clone().unwrap());
    let writing = std::thread::spawn(move || writer.0.write_all(&sent).unwrap());
    for number in 0..500 {
        assert_eq!(client.answer().0, REPLY);
        assert!(contains(&client.answer().1, &number.to_string()));
    }
    writing.join().unwrap();
    assert!(client.call("count", &[]).1.ends_with(&[10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]));
}
