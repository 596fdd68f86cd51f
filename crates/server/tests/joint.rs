//! Commands of one pipeline that go as one transaction: their clients and all others see what they would see of
//! commands that are run one by one.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use esker_kv::SystemClock;
use esker_memory::MemoryStore;
use esker_server::resp::{Config, NoEngineInfo};
use esker_store::{
    CommitSeq, Completion, Error, Forward, ObjectId, ObjectStore, Op, Promise, Stall, Transaction, WhenBusy, promised,
};
use parking_lot::Mutex;
use support::{Client, PATIENCE, Running, config, encode, eventually};

/// What a store refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refuses {
    Nothing,
    /// Transactions of many operations: they are too large for it.
    Large,
    /// Every third transaction: there is no room.
    Busy,
    /// Every third transaction: what was read is another value by now.
    Guards,
    /// Nothing, but takes its time.
    Slowly,
}

/// A store in memory that counts what it is given, refuses what the test says, and has one value come late.
struct Watched {
    store: Arc<MemoryStore>,
    refuses: Mutex<Refuses>,
    /// Transactions that write to databases.
    submits: AtomicUsize,
    refused: AtomicUsize,
    /// Most guards of a transaction.
    guards: AtomicUsize,
    /// Looks at databases, and keys that were looked at.
    looks: AtomicUsize,
    looked: AtomicUsize,
    /// Reads of the key `cold` wait.
    holds: AtomicBool,
    waiting: Mutex<Vec<(Promise<Option<Bytes>>, Bytes)>>,
    /// Those that read it with others have no answer.
    never: Mutex<Vec<Promise<Vec<Option<Bytes>>>>>,
}

impl Watched {
    fn give(&self) {
        self.holds.store(false, Ordering::SeqCst);
        for (promise, key) in self.waiting.lock().drain(..) {
            promise.fulfil(self.store.omap_get(&ObjectId::new("kv".into(), "db0/bytes"), &key).into_parts());
        }
    }

    fn waits(&self) -> bool {
        !self.waiting.lock().is_empty()
    }

    fn count(&self, object: &ObjectId, keys: usize) {
        if object.name().starts_with(b"db") {
            self.looks.fetch_add(1, Ordering::SeqCst);
            self.looked.fetch_add(keys, Ordering::SeqCst);
        }
    }

    /// Looks since it was asked last, and keys that they looked at.
    fn take_looks(&self) -> (usize, usize) {
        (self.looks.swap(0, Ordering::SeqCst), self.looked.swap(0, Ordering::SeqCst))
    }
}

impl Forward for Watched {
    fn behind(&self) -> &dyn ObjectStore {
        &*self.store
    }

    fn submit(&self, txn: Transaction) -> Completion<CommitSeq> {
        let of_database = |op: &&Op| matches!(op, Op::Object(object, _) if object.name().starts_with(b"db"));
        let values = txn.ops.iter().filter(of_database).count();
        let nth = self.submits.fetch_add(usize::from(values > 0), Ordering::SeqCst);
        self.guards.fetch_max(txn.guards.len(), Ordering::SeqCst);
        let refuses = *self.refuses.lock();
        if refuses == Refuses::Slowly {
            std::thread::sleep(Duration::from_millis(40));
        }
        // No command by itself does so much.
        let several = values > 6;
        // The first that writes to an object is given twice: it has to be made.
        let some = values > 0 && nth.is_multiple_of(3) && matches!(txn.when_busy, WhenBusy::Refuse(_));
        let error = match refuses {
            Refuses::Large if several => Error::TooLarge { what: "transaction", len: 9, limit: "the test's", max: 1 },
            Refuses::Busy if some => Error::Busy { stall: Stall::Backlog },
            Refuses::Guards if some => Error::GuardFailed { index: 0 },
            _ => return self.store.submit(txn),
        };
        self.refused.fetch_add(1, Ordering::SeqCst);
        Completion::ready(Err(error))
    }

    fn omap_get_many(&self, object: &ObjectId, keys: &[Bytes]) -> Completion<Vec<Option<Bytes>>> {
        self.count(object, keys.len());
        if self.holds.load(Ordering::SeqCst) && keys.iter().any(|key| &key[..] == b"cold") {
            let (promise, completion) = promised("values");
            self.never.lock().push(promise);
            return completion;
        }
        self.store.omap_get_many(object, keys)
    }

    fn omap_has_many(&self, object: &ObjectId, keys: &[Bytes]) -> Completion<Vec<bool>> {
        self.count(object, keys.len());
        self.store.omap_has_many(object, keys)
    }

    fn omap_get(&self, object: &ObjectId, key: &[u8]) -> Completion<Option<Bytes>> {
        self.count(object, 1);
        if key == b"cold" && self.holds.load(Ordering::SeqCst) {
            let (promise, completion) = promised("a value");
            self.waiting.lock().push((promise, Bytes::copy_from_slice(key)));
            return completion;
        }
        self.store.omap_get(object, key)
    }
}

/// A server on such a store, with one loop, so that a client that holds it up holds up all.
fn start() -> (Arc<Watched>, Running) {
    let store = Arc::new(MemoryStore::new());
    let watched = Arc::new(Watched {
        store: Arc::clone(&store),
        refuses: Mutex::new(Refuses::Nothing),
        submits: AtomicUsize::new(0),
        refused: AtomicUsize::new(0),
        guards: AtomicUsize::new(0),
        looks: AtomicUsize::new(0),
        looked: AtomicUsize::new(0),
        holds: AtomicBool::new(false),
        waiting: Mutex::default(),
        never: Mutex::default(),
    });
    let config = Config { threads: 1, ..config() };
    let server =
        Running::start_over(store, Arc::clone(&watched) as _, config, Arc::new(SystemClock), Arc::new(NoEngineInfo));
    (watched, server)
}

fn commands(lines: &[&str]) -> Vec<u8> {
    lines.iter().flat_map(|line| encode(&line.split(' ').collect::<Vec<_>>())).collect()
}

fn replies(client: &mut Client<TcpStream>, count: usize) -> Vec<String> {
    (0..count).map(|_| String::from_utf8(client.reply().unwrap()).unwrap()).collect()
}

/// What all keys hold.
fn contents(client: &mut Client<TcpStream>) -> Vec<String> {
    let mut all = Vec::new();
    for key in ["a", "b", "c", "d", "n", "m", "h", "g"] {
        let hash = client.run(&format!("TYPE {key}")).contains("hash");
        let mut found = vec![client.run(&format!("{} {key}", if hash { "HGETALL" } else { "GET" }))];
        if hash {
            found = found[0].split("\r\n").map(String::from).collect();
            found.sort_unstable();
        }
        let lasts = client.run(&format!("PTTL {key}")) == ":-1\r\n";
        all.push(format!("{key} {found:?} {lasts}"));
    }
    all
}

/// The same numbers for the same seed (a linear congruential generator).
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound
    }

    fn command(&mut self) -> String {
        let key = ["a", "b", "c", "d", "n", "m", "h", "g"][self.below(8)];
        let other = ["a", "b", "n", "h"][self.below(4)];
        let number = self.below(100);
        match self.below(30) {
            0..4 => format!("SET {key} {number}"),
            4..8 => format!("INCR {key}"),
            8 => format!("INCRBYFLOAT {key} 0.5"),
            9 => format!("APPEND {key} {number}"),
            10..13 => format!("HSET {key} f{} {number}", self.below(5)),
            13 => format!("HSET {key} f 1 g {number}"),
            14 => format!("HINCRBY {key} f {number}"),
            15 => format!("HSETNX {key} f {number}"),
            16 => format!("MSET {key} {number} {other} x"),
            17 => format!("MSETNX {key} {number} {other} x"),
            18 => format!("SETNX {key} {number}"),
            19 => format!("SETEX {key} 100 {number}"),
            20 => format!("SET {key} {number} KEEPTTL GET"),
            21 => format!("SETRANGE {key} 3 {number}"),
            22 => format!("GETSET {key} {number}"),
            // Those that may not go with others.
            23 => format!("DEL {key}"),
            24 => format!("GET {key}"),
            25 => format!("HDEL {key} f"),
            // Those that are refused: by their handlers, by their number of arguments, for their syntax.
            26 => format!("INCRBY {key} x"),
            27 => format!("HSET {key} f"),
            28 => format!("SET {key} 1 NX XX"),
            _ => format!("NOSUCH {key}"),
        }
    }
}

impl Dice {
    /// A command, or some of one name, which are looked at together.
    fn commands(&mut self) -> Vec<String> {
        let kind = self.below(14);
        let alike = |dice: &mut Self| {
            let key = ["a", "b", "c", "d", "n", "m", "h", "g"][dice.below(8)];
            let number = dice.below(100);
            match kind {
                0 | 1 => format!("GET {key}"),
                2 => format!("INCR {key}"),
                3 => format!("HSET {key} f{} {number}", number % 5),
                4 => format!("APPEND {key} {number}"),
                5 => format!("SETNX {key} {number}"),
                _ => dice.command(),
            }
        };
        (0..1 + self.below(if kind < 6 { 20 } else { 1 })).map(|_| alike(self)).collect()
    }
}

/// Pipelines answer, and leave behind, what the same commands do one by one; whatever the store refuses.
#[test]
fn a_pipeline_is_its_commands_one_by_one() {
    let mut refused = [0; 4];
    for (seed, refuses) in (0..40)
        .flat_map(|seed| [Refuses::Nothing, Refuses::Large, Refuses::Busy, Refuses::Guards].map(|why| (seed, why)))
    {
        let (store, server) = start();
        let (_, alone) = start();
        let (mut client, mut other) = (server.client(), alone.client());
        *store.refuses.lock() = refuses;
        let mut dice = Dice(seed);
        for round in 0..4 {
            let lines: Vec<String> = (0..1 + dice.below(40)).flat_map(|_| dice.commands()).collect();
            let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
            client.send(&commands(&lines));
            let (got, wanted) = (replies(&mut client, lines.len()), lines.iter().map(|line| other.run(line)));
            for ((got, wanted), line) in got.iter().zip(wanted).zip(&lines) {
                assert_eq!(*got, wanted, "seed {seed}, {refuses:?}, round {round}: {line} of {lines:?}");
            }
            assert_eq!(contents(&mut client), contents(&mut other), "seed {seed}, {refuses:?}: {lines:?}");
        }
        refused[refuses as usize] += store.refused.load(Ordering::SeqCst);
    }
    assert!(refused[0] == 0 && refused[1..].iter().all(|times| *times > 40), "{refused:?}");
}

#[test]
fn a_pipeline_is_few_transactions_and_is_counted_once() {
    for refuses in [Refuses::Nothing, Refuses::Large, Refuses::Guards] {
        let (store, server) = start();
        let mut client = server.client();
        client.check("HSET h f v", ":1\r\n");
        *store.refuses.lock() = refuses;
        store.submits.store(0, Ordering::SeqCst);
        let counts: Vec<String> = (0..60).map(|nth| format!("INCR n{nth}")).collect();
        let mut lines: Vec<&str> = counts.iter().map(String::as_str).collect();
        lines.extend(["INCR h", "HSET h f w", "SET n0 5", "GET n0"]);
        client.send(&commands(&lines));
        let got = replies(&mut client, 64);
        assert!(got[..60].iter().all(|reply| reply == ":1\r\n"), "{got:?}");
        assert!(got[60].starts_with("-WRONGTYPE"), "{got:?}");
        assert_eq!(got[61..], [":0\r\n", "+OK\r\n", "$1\r\n5\r\n"]);
        let submits = store.submits.load(Ordering::SeqCst);
        assert!(if refuses == Refuses::Nothing { submits < 10 } else { submits >= 62 }, "{submits}, {refuses:?}");
        let info = client.run("INFO commandstats");
        for (name, calls, failed) in [("incr", 61, 1), ("hset", 2, 0), ("set", 1, 0), ("get", 1, 0)] {
            let line = info.lines().find(|line| line.starts_with(&format!("cmdstat_{name}:"))).unwrap();
            let told = |figure: String| line.split([':', ',']).any(|part| part == figure);
            assert!(told(format!("calls={calls}")) && told(format!("failed_calls={failed}")), "{refuses:?}: {line}");
        }
        // With the first HSET and INFO.
        let stats = client.run("INFO stats");
        let processed = stats.lines().find(|line| line.starts_with("total_commands_processed:"));
        assert_eq!(processed, Some("total_commands_processed:66"), "{refuses:?}");
    }
}

/// A value that is not in memory: what is joined with its command is undone, and holds no lock meanwhile.
#[test]
fn a_pipeline_that_waits_for_a_value_keeps_no_key_from_others() {
    let (store, server) = start();
    let (mut one, mut other) = (server.client(), server.client());
    one.check("MSET cold 5 a 1 b 1", "+OK\r\n");
    store.holds.store(true, Ordering::SeqCst);
    one.send(&commands(&["INCR a", "APPEND b x", "HSET h f v", "INCR cold", "INCR a", "SET b y", "HSET h f w"]));
    eventually("the value is asked for", || store.waits());
    // What stands before it is done, what stands behind it is not, and all keys are free.
    other.check("INCR a", ":3\r\n");
    other.check("APPEND b z", ":3\r\n");
    other.check("HGET h f", "$1\r\nv\r\n");
    other.check("MSET a 10 c 1", "+OK\r\n");
    store.give();
    let got = replies(&mut one, 7);
    assert_eq!(got, [":2\r\n", ":2\r\n", ":1\r\n", ":6\r\n", ":11\r\n", "+OK\r\n", ":0\r\n"]);
    one.check("GET b", "$1\r\ny\r\n");
}

#[test]
fn pipelines_on_the_same_keys_in_any_order_all_end() {
    let server = Running::start(Config { threads: 3, ..config() });
    let (address, rounds) = (server.address(), 150);
    let ended = Arc::new(AtomicU64::new(0));
    let threads: Vec<_> = (0..6)
        .map(|nth| {
            let ended = Arc::clone(&ended);
            std::thread::spawn(move || {
                let mut client = Client::connect(address);
                let mut dice = Dice(nth);
                for _ in 0..rounds {
                    let mut keys: Vec<usize> = (0..40).collect();
                    (1..40).for_each(|at| keys.swap(at, dice.below(at + 1)));
                    let lines: Vec<String> = keys
                        .iter()
                        .map(|key| match key % 4 {
                            0 => format!("HINCRBY h{key} f 1"),
                            1 => format!("MSET x{key} {nth} x{} {nth}", (key + 4) % 40),
                            _ => format!("INCR n{key}"),
                        })
                        .collect();
                    client.send(&commands(&lines.iter().map(String::as_str).collect::<Vec<_>>()));
                    replies(&mut client, 40).iter().for_each(|reply| assert!(!reply.starts_with('-'), "{reply}"));
                }
                ended.fetch_add(1, Ordering::SeqCst);
            })
        })
        .collect();
    let started = std::time::Instant::now();
    let mut all = Client::connect(address);
    while ended.load(Ordering::SeqCst) < 6 && started.elapsed() < PATIENCE {
        // These keep every key to themselves for a moment, and watch some.
        all.run("COPY n2 copy REPLACE");
        all.run("WATCH n3 h4");
        all.run("UNWATCH");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(ended.load(Ordering::SeqCst), 6, "some pipelines wait for each other");
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let total = (6 * rounds).to_string();
    for key in 0..40 {
        match key % 4 {
            0 => all.check(&format!("HGET h{key} f"), &format!("${}\r\n{total}\r\n", total.len())),
            1 => {}
            _ => all.check(&format!("GET n{key}"), &format!("${}\r\n{total}\r\n", total.len())),
        }
    }
}

/// WATCH of another client beside a pipeline: each of its keys is told.
#[test]
fn who_watches_any_key_of_a_pipeline_is_told() {
    let server = Running::start(config());
    let (mut watcher, mut writer) = (server.client(), server.client());
    for key in ["a", "b", "h", "m1", "m2", "left"] {
        writer.check("DEL h", if key == "a" { ":0\r\n" } else { ":1\r\n" });
        writer.check("HSET h f v", ":1\r\n");
        watcher.check(&format!("WATCH {key}"), "+OK\r\n");
        writer.send(&commands(&["SET a 1", "SET b 1", "INCR n", "HSET h f w", "MSET m1 x m2 y"]));
        replies(&mut writer, 5);
        watcher.check("MULTI", "+OK\r\n");
        watcher.check("PING", "+QUEUED\r\n");
        watcher.check("EXEC", if key == "left" { "*1\r\n+PONG\r\n" } else { "*-1\r\n" });
    }
}

/// What is queued, what a user may not do, and what changes the session, in the midst of a pipeline.
#[test]
fn what_stands_between_commands_of_a_pipeline_comes_between_them() {
    let server = Running::start(config());
    let mut client = server.client();
    client.send(&commands(&[
        "INCR n", "INCR n", "MULTI", "INCR n", "INCR x", "EXEC", "INCR n", "SELECT 1", "INCR n", "INCR n", "SELECT 0",
        "INCR n",
    ]));
    let exec = "*2\r\n:3\r\n:1\r\n";
    let expected = [
        ":1\r\n",
        ":2\r\n",
        "+OK\r\n",
        "+QUEUED\r\n",
        "+QUEUED\r\n",
        exec,
        ":4\r\n",
        "+OK\r\n",
        ":1\r\n",
        ":2\r\n",
        "+OK\r\n",
        ":5\r\n",
    ];
    assert_eq!(replies(&mut client, 12), expected);
    client.check("ACL SETUSER some on nopass +incr +set ~k*", "+OK\r\n");
    client.send(&commands(&[
        "INCR k1",
        "INCR k1",
        "AUTH some any",
        "INCR k1",
        "INCR n",
        "SET k2 v",
        "GET k2",
        "INCR k1",
    ]));
    let got = replies(&mut client, 8);
    assert_eq!(got[..4], [":1\r\n", ":2\r\n", "+OK\r\n", ":3\r\n"]);
    assert!(got[4].starts_with("-NOPERM") && got[6].starts_with("-NOPERM"), "{got:?}");
    assert_eq!((&got[5][..], &got[7][..]), ("+OK\r\n", ":4\r\n"));
    // A stream that is no protocol any more behind commands that are: these are done and answered.
    let mut broken = server.client();
    broken.send(&[commands(&["INCR n", "INCR n"]), b"*1\r\n!".to_vec()].concat());
    let got = String::from_utf8(broken.expect_end()).unwrap();
    assert!(got.starts_with(":6\r\n:7\r\n-ERR Protocol error"), "{got}");
    // A monitor is told each of them.
    let mut monitor = server.client();
    monitor.check("MONITOR", "+OK\r\n");
    let mut client = server.client();
    client.send(&commands(&["SET a 1", "SET a 2", "INCR a"]));
    replies(&mut client, 3);
    for told in ["\"SET\" \"a\" \"1\"", "\"SET\" \"a\" \"2\"", "\"INCR\" \"a\""] {
        let line = String::from_utf8(monitor.reply().unwrap()).unwrap();
        assert!(line.contains(told), "{line}");
    }
}

/// Long keys and values, which are refused by their lengths, beside others of their pipeline.
#[test]
fn a_command_that_is_too_long_touches_none_beside_it() {
    let server = Running::start(config());
    let mut client = server.client();
    let (key, field) = ("k".repeat(5_000), "f".repeat(5_000));
    let pipeline = [
        encode(&["INCR", "n"]),
        encode(&["SET", &key, "v"]),
        encode(&["INCR", "n"]),
        encode(&["HSET", "h", &field, "v"]),
        encode(&["HSET", "h", "f", "v"]),
        encode(&["INCR", &key]),
        encode(&["APPEND", "s", &"x".repeat(300_000)]),
        encode(&["APPEND", "s", "y"]),
        encode(&["APPEND", "s", "z"]),
        encode(&["INCR", "n"]),
    ];
    client.send(&pipeline.concat());
    let got = replies(&mut client, pipeline.len());
    let errors: Vec<bool> = got.iter().map(|reply| reply.starts_with('-')).collect();
    assert_eq!(errors, [false, true, false, true, false, true, false, false, false, false], "{got:?}");
    assert_eq!((&got[0][..], &got[2][..], &got[9][..]), (":1\r\n", ":2\r\n", ":3\r\n"));
    assert_eq!(got[8], ":300002\r\n");
    client.check("HLEN h", ":1\r\n");
}

#[test]
fn hashes_that_are_new_are_written_together() {
    let (store, server) = start();
    let mut client = server.client();
    client.check("SET k v", "+OK\r\n");
    store.submits.store(0, Ordering::SeqCst);
    let lines: Vec<String> = (0..60).map(|nth| format!("HSET h{nth} f v")).collect();
    client.send(&commands(&lines.iter().map(String::as_str).collect::<Vec<_>>()));
    assert!(replies(&mut client, 60).iter().all(|reply| reply == ":1\r\n"));
    let submits = store.submits.load(Ordering::SeqCst);
    assert!(submits < 10, "{submits}");
    client.check("SET h7 v", "+OK\r\n");
    client.check("TYPE h8", "+hash\r\n");
}

/// What is found stands under guards, which are compared at the commit: of large values few at a time.
#[test]
fn commands_that_find_much_do_not_go_together() {
    let (store, server) = start();
    let mut client = server.client();
    for nth in 0..60 {
        let large = encode(&["SET", &format!("large{nth}"), &"x".repeat(100_000)]);
        client.send(&large);
        assert_eq!(replies(&mut client, 1), ["+OK\r\n"]);
    }
    // However far it looked ahead before: what is much is not kept for those behind.
    client.send(&commands(&["INCR other"; 40]));
    replies(&mut client, 40);
    store.guards.store(0, Ordering::SeqCst);
    let large: Vec<String> = (0..60).map(|nth| format!("SETNX large{nth} x")).collect();
    let lines: Vec<&str> = ["SETNX fresh x"].into_iter().chain(large.iter().map(String::as_str)).collect();
    client.send(&commands(&lines));
    let got = replies(&mut client, 61);
    assert!(got[0] == ":1\r\n" && got[1..].iter().all(|reply| reply == ":0\r\n"), "{got:?}");
    let guards = store.guards.load(Ordering::SeqCst);
    assert!((1..8).contains(&guards), "{guards}");
    store.guards.store(0, Ordering::SeqCst);
    let lines: Vec<String> = (0..60).map(|nth| format!("SETNX large{nth} x")).chain(["INCR n".into()]).collect();
    client.send(&commands(&lines.iter().map(String::as_str).collect::<Vec<_>>()));
    let got = replies(&mut client, 61);
    assert!(got[..60].iter().all(|reply| reply == ":0\r\n") && got[60] == ":1\r\n", "{got:?}");
    let guards = store.guards.load(Ordering::SeqCst);
    assert!((1..8).contains(&guards), "{guards}");
}

#[test]
fn one_command_that_was_slow_is_told_whole_though_others_might_have_joined_it() {
    let (store, server) = start();
    let mut client = server.client();
    client.check("CONFIG SET slowlog-log-slower-than 20000", "+OK\r\n");
    *store.refuses.lock() = Refuses::Slowly;
    client.send(&commands(&["SETRANGE k 3 value", "GET k"]));
    assert_eq!(replies(&mut client, 2), [":8\r\n", "$8\r\n\0\0\0value\r\n"]);
    let slow = client.run("SLOWLOG GET -1").to_lowercase();
    assert!(slow.contains("*4\r\n$8\r\nsetrange\r\n$1\r\nk\r\n$1\r\n3\r\n$5\r\nvalue\r\n"), "{slow}");
}

/// GETs of one pipeline: one look at many keys, and what each by itself would have been told, and counted.
#[test]
fn gets_that_follow_one_another_are_few_looks() {
    let (store, server) = start();
    let mut client = server.client();
    client.check("MSET k0 v0 k1 v1 k2 v2 k3 v3", "+OK\r\n");
    client.check("HSET k4 f v", ":1\r\n");
    client.check("SET k5 v PX 1", "+OK\r\n");
    eventually("the key expires", || client.run("GET k5") == "$-1\r\n");
    client.check("CONFIG RESETSTAT", "+OK\r\n");
    store.take_looks();
    let lines: Vec<String> = (0..60).map(|nth| format!("GET k{}", nth % 7)).collect();
    client.send(&commands(&lines.iter().map(String::as_str).collect::<Vec<_>>()));
    for (nth, reply) in replies(&mut client, 60).into_iter().enumerate() {
        match nth % 7 {
            4 => assert!(reply.starts_with("-WRONGTYPE"), "{nth}: {reply}"),
            5 | 6 => assert_eq!(reply, "$-1\r\n", "{nth}"),
            key => assert_eq!(reply, format!("$2\r\nv{key}\r\n"), "{nth}"),
        }
    }
    let (looks, looked) = store.take_looks();
    assert!(looks < 10 && looked == 60, "{looks} looks at {looked} keys");
    let line = |info: String, name: &str| info.lines().find(|line| line.starts_with(name)).unwrap().to_owned();
    let told = line(client.run("INFO commandstats"), "cmdstat_get:");
    assert!(told.contains("calls=60,") && told.contains("failed_calls=8"), "{told}");
    assert_eq!(line(client.run("INFO stats"), "keyspace_hits:"), "keyspace_hits:36");
    assert_eq!(line(client.run("INFO stats"), "keyspace_misses:"), "keyspace_misses:16");
    // Commands behind them, a half one, and another's write between two pipelines.
    let all = commands(&["GET k0", "GET k1", "SET k0 w", "GET k0", "GET k0", "INCR n", "GET n", "GET n"]);
    let (first, rest) = all.split_at(all.len() - 9);
    client.send(first);
    let mut got = replies(&mut client, 7);
    client.send(rest);
    got.extend(replies(&mut client, 1));
    let expected = ["$2\r\nv0\r\n", "$2\r\nv1\r\n", "+OK\r\n", "$1\r\nw\r\n", "$1\r\nw\r\n", ":1\r\n"];
    assert_eq!(got[..6], expected);
    assert_eq!(got[6..], ["$1\r\n1\r\n", "$1\r\n1\r\n"]);
}

/// Counters and hashes of one pipeline are looked at together, each key once, and nothing is read for them alone.
#[test]
fn what_commands_of_a_pipeline_read_is_few_looks() {
    let (store, server) = start();
    let mut client = server.client();
    let counts: Vec<String> = (0..60).map(|nth| format!("INCR n{}", nth % 40)).collect();
    let fields: Vec<String> = (0..60).map(|nth| format!("HSET h{} f {nth}", nth % 40)).collect();
    for (lines, first, then) in [(counts, ":1\r\n", ":3\r\n"), (fields, ":1\r\n", ":0\r\n")] {
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        for round in 0..3 {
            store.take_looks();
            client.send(&commands(&lines));
            let got = replies(&mut client, 60);
            let (looks, looked) = store.take_looks();
            match round {
                0 => assert_eq!(got[0], first),
                // Until then more and more are looked at.
                1 => assert_eq!(got[0], then),
                _ => assert!(looks <= 8 && looked <= 2 * 45, "{looks} looks at {looked} keys for {}", lines[0]),
            }
        }
    }
}

/// Of large values few are looked at together, so that none is looked at again and again for commands before it.
#[test]
fn large_values_are_not_looked_at_for_others() {
    let (store, server) = start();
    let mut client = server.client();
    for nth in 0..60 {
        client.send(&encode(&["SET", &format!("large{nth}"), &"x".repeat(100_000)]));
        assert_eq!(replies(&mut client, 1), ["+OK\r\n"]);
    }
    for (name, rest) in [("GET", ""), ("SETNX", " x"), ("APPEND", " x")] {
        store.take_looks();
        let lines: Vec<String> = (0..60).map(|nth| format!("{name} large{nth}{rest}")).collect();
        client.send(&commands(&lines.iter().map(String::as_str).collect::<Vec<_>>()));
        let got = replies(&mut client, 60);
        assert!(got.iter().all(|reply| !reply.starts_with('-')), "{name}");
        let (_, looked) = store.take_looks();
        assert!(looked <= 2 * 60, "{name}: {looked} keys were looked at for 60 commands");
    }
}

/// A value that is not in memory among GETs: those before and behind it are answered in their order, and no other
/// client waits.
#[test]
fn gets_that_wait_for_a_value_are_answered_in_order() {
    let (store, server) = start();
    let (mut one, mut other) = (server.client(), server.client());
    one.check("MSET cold 5 a 1 b 2", "+OK\r\n");
    store.holds.store(true, Ordering::SeqCst);
    one.send(&commands(&["GET a", "GET b", "GET cold", "GET a", "GET b", "INCR a"]));
    eventually("the value is asked for", || store.waits());
    other.check("GET b", "$1\r\n2\r\n");
    other.check("SET b 3", "+OK\r\n");
    store.give();
    let got = replies(&mut one, 6);
    assert_eq!(got[..4], ["$1\r\n1\r\n", "$1\r\n2\r\n", "$1\r\n5\r\n", "$1\r\n1\r\n"]);
    assert_eq!(got[4..], ["$1\r\n3\r\n", ":2\r\n"]);
}
