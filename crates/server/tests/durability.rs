//! What a reply means: it waits for the sync that covers everything it was made from, and one sync covers many.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use esker_kv::{Kv, SystemClock};
use esker_memory::MemoryStore;
use esker_server::resp::{NoEngineInfo, Server};
use esker_store::{
    Barrier, Capability, Collection, CommitCursor, CommitEntry, CommitSeq, Completion, DataRun, Durability,
    DurableMark, Error, ObjectId, ObjectStore, OmapScan, SlotScan, Stat, Transaction,
};
use support::{Client, PATIENCE, config, encode, eventually};

/// A store in memory whose writes become durable when the test says so. All reads wait for all writes before them.
struct Delayed {
    inner: MemoryStore,
    mark: Arc<DurableMark>,
    written: AtomicU64,
    /// Until the server is up, everything is durable at once.
    at_once: AtomicBool,
}

impl Delayed {
    fn new() -> Arc<Self> {
        let mark = DurableMark::new(0, Box::new(|| {}));
        Arc::new(Self { inner: MemoryStore::new(), mark, written: AtomicU64::new(0), at_once: AtomicBool::new(true) })
    }

    fn sync_now(&self) {
        self.mark.advance(self.written.load(Ordering::SeqCst));
    }

    /// Whether a key of database 0 is there, durable or not.
    fn holds(&self, key: &[u8]) -> bool {
        let keys = ObjectId::new("kv".into(), "db0/bytes");
        self.inner.omap_get(&keys, key).wait().unwrap().is_some()
    }

    fn barrier(&self) -> Option<Barrier> {
        let position = self.written.load(Ordering::SeqCst);
        (self.mark.durable() < position).then(|| Barrier::new(&self.mark, position))
    }

    fn behind<T>(&self, completion: Completion<T>) -> Completion<T> {
        completion.behind(self.barrier())
    }
}

impl ObjectStore for Delayed {
    fn capability(&self) -> Capability {
        self.inner.capability()
    }
    fn submit(&self, txn: Transaction) -> Completion<CommitSeq> {
        let durability = txn.durability;
        let (done, _) = self.inner.submit(txn).into_parts();
        if done.is_err() || durability == Durability::Applied {
            return Completion::ready(done);
        }
        let position = self.written.fetch_add(1, Ordering::SeqCst) + 1;
        if self.at_once.load(Ordering::SeqCst) {
            self.mark.advance(position);
        }
        Completion::after(done, Some(Barrier::new(&self.mark, position)))
    }
    fn sync(&self) -> Completion<CommitSeq> {
        // What was only applied counts, too.
        let position = self.written.fetch_add(1, Ordering::SeqCst) + 1;
        Completion::after(self.inner.sync().wait(), Some(Barrier::new(&self.mark, position)))
    }
    fn stat(&self, object: &ObjectId) -> Completion<Option<Stat>> {
        self.behind(self.inner.stat(object))
    }
    fn read(&self, object: &ObjectId, range: Range<u64>) -> Completion<Bytes> {
        self.behind(self.inner.read(object, range))
    }
    fn extents(&self, object: &ObjectId, range: Range<u64>) -> Completion<Vec<DataRun>> {
        self.behind(self.inner.extents(object, range))
    }
    fn xattr(&self, object: &ObjectId, name: &[u8]) -> Completion<Option<Bytes>> {
        self.behind(self.inner.xattr(object, name))
    }
    fn xattrs(&self, object: &ObjectId) -> Completion<Vec<(Bytes, Bytes)>> {
        self.behind(self.inner.xattrs(object))
    }
    fn omap_get(&self, object: &ObjectId, key: &[u8]) -> Completion<Option<Bytes>> {
        self.behind(self.inner.omap_get(object, key))
    }
    fn omap_get_many(&self, object: &ObjectId, keys: &[Bytes]) -> Completion<Vec<Option<Bytes>>> {
        self.behind(self.inner.omap_get_many(object, keys))
    }
    fn omap_scan(&self, object: &ObjectId, scan: &OmapScan) -> Completion<Vec<(Bytes, Bytes)>> {
        self.behind(self.inner.omap_scan(object, scan))
    }
    fn slot_get(&self, object: &ObjectId, index: u64) -> Completion<Option<Bytes>> {
        self.behind(self.inner.slot_get(object, index))
    }
    fn slot_get_many(&self, object: &ObjectId, indexes: &[u64]) -> Completion<Vec<Option<Bytes>>> {
        self.behind(self.inner.slot_get_many(object, indexes))
    }
    fn slot_scan(&self, object: &ObjectId, scan: &SlotScan) -> Completion<Vec<(u64, Bytes)>> {
        self.behind(self.inner.slot_scan(object, scan))
    }
    fn commit_scan(
        &self,
        collection: &Collection,
        name_prefix: &[u8],
        after: CommitCursor,
        limit: usize,
    ) -> Completion<(Vec<CommitEntry>, Option<CommitCursor>)> {
        self.behind(self.inner.commit_scan(collection, name_prefix, after, limit))
    }
    fn collections(&self) -> Completion<Vec<Collection>> {
        self.behind(self.inner.collections())
    }
    fn list(&self, collection: &Collection, after: Option<&[u8]>, limit: usize) -> Completion<Vec<Bytes>> {
        self.behind(self.inner.list(collection, after, limit))
    }
}

/// A server on such a store, running, with nothing durable any more unless the test says so.
fn start() -> (Arc<Delayed>, std::net::SocketAddr, impl Drop) {
    struct Stop(esker_server::resp::Handle, Arc<Delayed>, Option<std::thread::JoinHandle<()>>);
    impl Drop for Stop {
        fn drop(&mut self) {
            self.1.at_once.store(true, Ordering::SeqCst);
            self.1.sync_now();
            self.0.shutdown();
            let _ = self.2.take().map(std::thread::JoinHandle::join);
        }
    }
    let store = Delayed::new();
    let kv = Kv::open(Arc::clone(&store) as _, Arc::new(SystemClock)).unwrap();
    let server = Server::bind(config(), kv, Arc::new(NoEngineInfo)).unwrap();
    let esker_server::resp::Address::Tcp(address) = server.addresses()[0] else { panic!("no TCP address") };
    let handle = server.handle();
    let thread = std::thread::spawn(move || server.run().unwrap());
    store.at_once.store(false, Ordering::SeqCst);
    (Arc::clone(&store), address, Stop(handle, store, Some(thread)))
}

/// Asserts that no reply comes for a while.
fn expect_silence(client: &mut Client<std::net::TcpStream>) {
    client.stream.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let mut byte = [0];
    let read = client.stream.peek(&mut byte);
    assert!(read.is_err(), "a reply came before its sync: {read:?}");
    client.stream.set_read_timeout(Some(PATIENCE)).unwrap();
}

#[test]
fn acknowledged_means_synced() {
    let (store, address, _stop) = start();
    let mut client = Client::connect(address);
    client.send(&encode(&["SET", "k", "v"]));
    expect_silence(&mut client);
    store.sync_now();
    assert_eq!(client.reply().unwrap(), b"+OK\r\n");
}

#[test]
fn one_sync_covers_a_pipeline_of_dependent_commands() {
    let (store, address, _stop) = start();
    let mut client = Client::connect(address);
    let commands = 200;
    client.send(
        &[encode(&["PING"]), encode(&["INCR", "n"]).repeat(commands), encode(&["HINCRBY", "h", "f", "1"])].concat(),
    );
    assert_eq!(client.reply().unwrap(), b"+PONG\r\n", "what depends on nothing waits for nothing");
    expect_silence(&mut client);
    // Its last command is run last.
    eventually("all are applied and asked for", || {
        store.holds(b"h") && store.mark.wanted() == store.written.load(Ordering::SeqCst)
    });
    store.sync_now();
    for n in 1..=commands {
        assert_eq!(client.reply().unwrap(), format!(":{n}\r\n").as_bytes());
    }
    assert_eq!(client.reply().unwrap(), b":1\r\n");
}

#[test]
fn nobody_is_shown_what_a_crash_could_take_back() {
    let (store, address, _stop) = start();
    let (mut writer, mut reader, mut other) =
        (Client::connect(address), Client::connect(address), Client::connect(address));
    writer.send(&encode(&["HSET", "k", "f", "v"]));
    eventually("it is applied", || store.mark.wanted() > store.mark.durable());
    // A value, a count, an error, and a transaction: all of them tell of the hash.
    for command in [&["HGET", "k", "f"][..], &["EXISTS", "k"], &["GET", "k"], &["DBSIZE"], &["KEYS", "*"]] {
        reader.send(&encode(command));
    }
    reader.send(&[encode(&["MULTI"]), encode(&["TYPE", "k"]), encode(&["EXEC"])].concat());
    expect_silence(&mut reader);
    other.check("PING", "+PONG\r\n");
    store.sync_now();
    let expected = [
        "$1\r\nv\r\n",
        ":1\r\n",
        "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n",
        ":1\r\n",
        "*1\r\n$1\r\nk\r\n",
        "+OK\r\n",
        "+QUEUED\r\n",
        "*1\r\n+hash\r\n",
    ];
    for expected in expected {
        assert_eq!(String::from_utf8(reader.reply().unwrap()).unwrap(), expected);
    }
    assert_eq!(writer.reply().unwrap(), b":1\r\n");
}

/// Commands of one name in a pipeline look together: all of them wait for what any of them shows.
#[test]
fn what_a_pipeline_looks_at_together_is_shown_once_it_is_durable() {
    let (store, address, _stop) = start();
    let (mut writer, mut reader, mut other) =
        (Client::connect(address), Client::connect(address), Client::connect(address));
    writer.send(&[encode(&["SET", "k", "v"]), encode(&["HSET", "h", "f", "v"])].concat());
    eventually("both are applied", || store.holds(b"h") && store.mark.wanted() == store.written.load(Ordering::SeqCst));
    reader.send(&[encode(&["GET", "none"]), encode(&["GET", "k"]), encode(&["GET", "k"])].concat());
    other.send(&encode(&["HSETNX", "h", "f", "w"]).repeat(3));
    expect_silence(&mut reader);
    expect_silence(&mut other);
    store.sync_now();
    for expected in ["$-1\r\n", "$1\r\nv\r\n", "$1\r\nv\r\n"] {
        assert_eq!(String::from_utf8(reader.reply().unwrap()).unwrap(), expected);
    }
    for _ in 0..3 {
        assert_eq!(other.reply().unwrap(), b":0\r\n");
    }
}

#[test]
fn relaxed_mode_waits_only_when_asked_to() {
    let (store, address, _stop) = start();
    let mut client = Client::connect(address);
    client.check("CONFIG SET appendfsync everysec", "+OK\r\n");
    client.check("SET k v", "+OK\r\n");
    client.check("INCR n", ":1\r\n");
    for command in [&["WAIT", "0", "0"][..], &["SAVE"], &["WAITAOF", "1", "0", "0"]] {
        client.send(&encode(command));
        expect_silence(&mut client);
        eventually("the sync is asked for", || store.mark.wanted() > store.mark.durable());
        store.sync_now();
        client.reply().unwrap();
    }
    client.check("CONFIG SET appendfsync always", "+OK\r\n");
    client.send(&encode(&["SET", "k", "w"]));
    expect_silence(&mut client);
    store.sync_now();
    client.reply().unwrap();
}

#[test]
fn a_failed_sync_is_an_error_for_everybody_who_waits() {
    let (store, address, _stop) = start();
    let mut clients: Vec<_> = (0..4).map(|_| Client::connect(address)).collect();
    for client in &mut clients {
        client.send(&[encode(&["PING"]), encode(&["INCR", "n"]), encode(&["PING"])].concat());
        assert_eq!(client.reply().unwrap(), b"+PONG\r\n");
    }
    eventually("all are applied", || store.mark.wanted() >= store.mark.durable() + 4);
    store.mark.fail(Error::Stopped { cause: "the device is gone".into() });
    for client in &mut clients {
        for _ in 0..2 {
            let reply = String::from_utf8(client.reply().unwrap()).unwrap();
            assert!(reply.starts_with("-MISCONF") && reply.contains("the device is gone"), "{reply}");
        }
    }
}

/// Replies of commands that went as one transaction, with others around them: each becomes the error, and no more.
#[test]
fn a_failed_sync_is_an_error_for_each_command_of_a_pipeline() {
    let (store, address, _stop) = start();
    let mut client = Client::connect(address);
    let counts = encode(&["INCR", "n"]).repeat(100);
    let (ping, wrong) = (encode(&["PING"]), encode(&["INCRBY", "n", "x"]));
    let last = encode(&["HSET", "last", "f", "v"]);
    client.send(&[ping.clone(), counts.clone(), wrong, ping.clone(), counts, last, ping].concat());
    assert_eq!(client.reply().unwrap(), b"+PONG\r\n", "what depends on nothing waits for nothing");
    expect_silence(&mut client);
    eventually("all are applied", || store.holds(b"last"));
    store.mark.fail(Error::Stopped { cause: "the device is gone".into() });
    for nth in 0..204 {
        let reply = String::from_utf8(client.reply().unwrap()).unwrap();
        assert!(reply.starts_with("-MISCONF") && reply.contains("the device is gone"), "{nth}: {reply}");
    }
    assert!(client.run("GET n").starts_with('-'), "nothing of it is shown");
    client.check("PING", "+PONG\r\n");
}

#[test]
fn many_clients_share_syncs() {
    let (store, address, _stop) = start();
    let syncing = Arc::new(AtomicBool::new(true));
    let syncs = Arc::new(AtomicU64::new(0));
    let syncer = {
        let (store, syncing, syncs) = (Arc::clone(&store), Arc::clone(&syncing), Arc::clone(&syncs));
        std::thread::spawn(move || {
            while syncing.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(5));
                if store.mark.wanted() > store.mark.durable() {
                    syncs.fetch_add(1, Ordering::SeqCst);
                    store.sync_now();
                }
            }
        })
    };
    let started = Instant::now();
    let (clients, rounds) = (32, 20);
    let mut all: Vec<_> = (0..clients).map(|_| Client::connect(address)).collect();
    for round in 0..rounds {
        for (nth, client) in all.iter_mut().enumerate() {
            client.send(&encode(&["SET", &format!("key:{nth}"), &round.to_string()]));
        }
        for client in &mut all {
            assert_eq!(client.reply().unwrap(), b"+OK\r\n");
        }
    }
    syncing.store(false, Ordering::SeqCst);
    syncer.join().unwrap();
    let syncs = syncs.load(Ordering::SeqCst);
    assert!(syncs <= rounds * 4, "{syncs} syncs for {rounds} rounds of {clients} clients in {:?}", started.elapsed());
}
