//! The Redis protocol on a store that changes one object at a time: what works, and what is refused as a cluster of
//! Redis refuses it.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::sync::Arc;
use std::time::Duration;

use esker_kv::{Clock, ManualClock};
use esker_memory::MemoryStore;
use esker_server::resp::NoEngineInfo;
use esker_store::contract::PerObject;
use esker_store::{Forward, ObjectStore};
use support::{Running, config, eventually};

const CROSS: &str = "-CROSSSLOT Keys in request don't hash to the same slot\r\n";

struct Beside(Arc<MemoryStore>);

impl Forward for Beside {
    fn behind(&self) -> &dyn ObjectStore {
        &*self.0
    }
}

fn start(store: &Arc<MemoryStore>, clock: &Arc<ManualClock>) -> Running {
    let seen = Arc::new(PerObject(Beside(Arc::clone(store))));
    let clock = Arc::clone(clock) as Arc<dyn Clock>;
    Running::start_over(Arc::clone(store), seen, config(), clock, Arc::new(NoEngineInfo))
}

fn fresh() -> (Arc<MemoryStore>, Arc<ManualClock>) {
    (Arc::new(MemoryStore::new()), Arc::new(ManualClock::new(1_700_000_000_000)))
}

#[test]
fn commands_on_one_key_do_what_they_do_and_so_do_those_on_keys_of_one_slot() {
    let (store, clock) = fresh();
    for restarted in [false, true] {
        let server = start(&store, &clock);
        let mut client = server.client();
        if !restarted {
            client.check("SET a 1", "+OK\r\n");
            client.check("INCR a", ":2\r\n");
            client.check("APPEND a 3", ":2\r\n");
            client.check("SET n 5 EX 100", "+OK\r\n");
            client.check("HSET h f 1 g 2", ":2\r\n");
            client.check("HINCRBY h f 4", ":5\r\n");
            client.check("HDEL h g none", ":1\r\n");
            client.check("MSET {u}a 1 {u}b 2", "+OK\r\n");
            client.check("HSET {u}h x 1 y 2 z 3", ":3\r\n");
            client.check("RENAME {u}h {u}moved", "+OK\r\n");
            client.check("COPY {u}moved {u}copy", ":1\r\n");
            client.check("HDEL {u}copy y", ":1\r\n");
        }
        client.check("GET a", "$2\r\n23\r\n");
        client.check("TTL n", ":100\r\n");
        client.check("HGETALL h", "*2\r\n$1\r\nf\r\n$1\r\n5\r\n");
        client.check("MGET {u}a {u}b a none", "*4\r\n$1\r\n1\r\n$1\r\n2\r\n$2\r\n23\r\n$-1\r\n");
        client.check("HKEYS {u}moved", "*3\r\n$1\r\nx\r\n$1\r\ny\r\n$1\r\nz\r\n");
        client.check("HKEYS {u}copy", "*2\r\n$1\r\nx\r\n$1\r\nz\r\n");
        client.check("DBSIZE", ":7\r\n");
        assert_eq!(client.run("KEYS *").matches('$').count(), 7);
        assert_eq!(client.run("SCAN 0 COUNT 100").matches('$').count(), 8);
        assert!(client.run("RANDOMKEY").starts_with('$'));
        client.check("MULTI", "+OK\r\n");
        for command in ["INCR {u}a", "DECR {u}a", "HSET {u}moved x 1"] {
            client.check(command, "+QUEUED\r\n");
        }
        client.check("EXEC", "*3\r\n:2\r\n:1\r\n:0\r\n");
        client.check("WATCH {u}b", "+OK\r\n");
        client.check("MULTI", "+OK\r\n");
        client.check("SET {u}c 1", "+QUEUED\r\n");
        client.check("DEL {u}c", "+QUEUED\r\n");
        client.check("EXEC", "*2\r\n+OK\r\n:1\r\n");
    }
}

#[test]
fn commands_across_slots_are_refused_as_in_a_cluster_and_change_nothing() {
    let (store, clock) = fresh();
    let server = start(&store, &clock);
    let mut client = server.client();
    client.check("SET a 1", "+OK\r\n");
    client.check("HSET h f 1", ":1\r\n");
    for command in ["MSET b 1 c 2", "DEL a h", "RENAME a b", "RENAME h g", "COPY h g", "MSETNX b 1 c 2", "UNLINK a h"] {
        client.check(command, CROSS);
    }
    client.check("MULTI", "+OK\r\n");
    client.check("SET b 1", "+QUEUED\r\n");
    client.check("SET c 1", "+QUEUED\r\n");
    let refused = client.run("EXEC");
    assert!(refused.contains("CROSSSLOT"), "{refused}");
    client.check("DBSIZE", ":2\r\n");
    client.check("GET a", "$1\r\n1\r\n");
    client.check("HGET h f", "$1\r\n1\r\n");
    client.check("EXISTS a h b", ":2\r\n");
    client.check("FLUSHDB", "+OK\r\n");
    client.check("DBSIZE", ":0\r\n");
    client.check("HLEN h", ":0\r\n");
    client.check("HSET h f 2", ":1\r\n");
    client.check("HGETALL h", "*2\r\n$1\r\nf\r\n$1\r\n2\r\n");
}

#[test]
fn hashes_expire_with_all_their_fields_wherever_they_are() {
    let (store, clock) = fresh();
    let server = start(&store, &clock);
    let mut client = server.client();
    for n in 0..40 {
        client.check(&format!("HSET h{n} f 1 g 2"), ":2\r\n");
        client.check(&format!("PEXPIRE h{n} {}", 100 + n), ":1\r\n");
    }
    client.check("HSET stays f 1", ":1\r\n");
    client.check("PERSIST h39", ":1\r\n");
    clock.advance(1_000);
    client.check("EXISTS h0 h38 h39 stays", ":2\r\n");
    eventually("expired fields go", || {
        let left = esker_store::prefix::objects(&*store, &"kv".into(), b"db0/parts/", None);
        let fields =
            |object| esker_store::prefix::omap(&*store, &object, esker_store::OmapScan::of("f").keys()).count();
        left.map(|object| fields(object.unwrap())).sum::<usize>() == 3
    });
    std::thread::sleep(Duration::from_millis(1));
    client.check("HGETALL h39", "*4\r\n$1\r\nf\r\n$1\r\n1\r\n$1\r\ng\r\n$1\r\n2\r\n");
}

#[test]
fn int_keys_beside_others_are_refused_by_name() {
    let (store, clock) = fresh();
    let seen = Arc::new(PerObject(Beside(store)));
    let kv = esker_kv::Kv::open(seen, clock).unwrap();
    let int = esker_server::resp::Config { int_databases: vec![0], ..config() };
    let Err(error) = esker_server::resp::Server::bind(int, kv, Arc::new(NoEngineInfo)) else { panic!("it was bound") };
    assert!(error.to_string().contains("keep int keys beside others in a database"), "{error}");
}
