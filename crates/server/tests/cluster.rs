//! Servers that are nodes of one cluster: what each answers itself, and which node it sends clients to.
//!
//! Needs `redis-cli`; the README's test command installs it.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use esker_kv::{Clock, Kind, Kv, ManualClock, SystemClock};
use esker_memory::MemoryStore;
use esker_server::front::TlsFiles;
use esker_server::resp::{Address, Cluster, ClusterNode, ClusterView, Config, Moment, NoEngineInfo, SlotRange};
use esker_store::ObjectStore;
use support::{Client, PATIENCE, Running, config, encode, eventually};

const DOWN: &str = "-CLUSTERDOWN The cluster is down\r\n";
const CROSS: &str = "-CROSSSLOT Keys in request don't hash to the same slot\r\n";
const ABORTED: &str = "-EXECABORT Transaction discarded because of previous errors.\r\n";
/// Commands that look at, or change, keys that they do not name.
const OF_ALL_KEYS: [&str; 6] = ["SCAN 0", "KEYS *", "DBSIZE", "RANDOMKEY", "FLUSHDB", "FLUSHALL ASYNC"];

/// What a server knows of its cluster.
struct Known(ArcSwap<ClusterView>);

impl Cluster for Known {
    fn view(&self) -> Arc<ClusterView> {
        self.0.load_full()
    }
}

fn id(index: usize) -> String {
    format!("{:040x}", 0xa0 + index)
}

fn node(index: usize, port: u16) -> ClusterNode {
    ClusterNode { id: id(index), host: "127.0.0.1".into(), port, tls_port: None, is_up: true }
}

/// Slots with this head; the other servers are its replicas.
fn range(first: u16, last: u16, head: Option<usize>) -> SlotRange {
    let replicas = (0..3).filter(|index| Some(*index) != head).collect();
    SlotRange { first, last, head, replicas, epoch: 0 }
}

/// Three servers on one store.
struct Three {
    servers: Vec<Running>,
    known: Vec<Arc<Known>>,
    nodes: Vec<ClusterNode>,
    epoch: u64,
}

impl Three {
    /// Started with this configuration; the first heads all slots.
    fn start(config: &Config) -> Self {
        Self::start_at(config, &(Arc::new(SystemClock) as Arc<dyn Clock>))
    }

    fn start_at(config: &Config, clock: &Arc<dyn Clock>) -> Self {
        Self::start_reading(config, clock, None)
    }

    /// But for the first, they answer readers.
    fn start_reading(config: &Config, clock: &Arc<dyn Clock>, reading: Option<&Moment>) -> Self {
        let store = Arc::new(MemoryStore::new());
        let (mut servers, mut known, mut nodes) = (Vec::new(), Vec::new(), Vec::new());
        for index in 0..3 {
            let view = ClusterView::new(0, &id(index), vec![node(index, 1)], Vec::new()).unwrap();
            let own = Arc::new(Known(ArcSwap::from_pointee(view)));
            let reading = reading.filter(|_| index > 0).cloned();
            let cluster = Some(Arc::clone(&own) as Arc<dyn Cluster>);
            let config = Config { cluster, reading, ..config.clone() };
            let server = Running::start_on(Arc::clone(&store), config, Arc::clone(clock), Arc::new(NoEngineInfo));
            nodes.push(node(index, server.address().port()));
            servers.push(server);
            known.push(own);
        }
        let mut three = Self { servers, known, nodes, epoch: 0 };
        three.elect(Some(0));
        three
    }

    /// From now on this server heads all slots.
    fn elect(&mut self, head: Option<usize>) {
        self.tell(&[range(0, 16_383, head)]);
    }

    fn tell(&mut self, ranges: &[SlotRange]) {
        self.epoch += 1;
        for (index, known) in self.known.iter().enumerate() {
            let view = ClusterView::new(self.epoch, &id(index), self.nodes.clone(), ranges.to_vec()).unwrap();
            known.0.store(Arc::new(view));
        }
    }

    fn client(&self, index: usize) -> Client<TcpStream> {
        self.servers[index].client()
    }

    fn port(&self, index: usize) -> u16 {
        self.nodes[index].port
    }

    fn moved(&self, slot: u16, index: usize) -> String {
        format!("-MOVED {slot} 127.0.0.1:{}\r\n", self.port(index))
    }
}

#[test]
fn followers_send_clients_to_the_head_which_serves() {
    let three = Three::start(&config());
    let mut head = three.client(0);
    head.check("MSET foo 1 bar 2", "+OK\r\n");
    head.check("MGET foo bar", "*2\r\n$1\r\n1\r\n$1\r\n2\r\n");
    for (index, resp3) in [(1, false), (2, true)] {
        let mut follower = three.client(index);
        if resp3 {
            follower.call(&["HELLO", "3"]);
        }
        let foo = three.moved(12_182, 0);
        for command in ["GET foo", "SET foo 2", "MGET foo bar", "DEL foo", "OBJECT ENCODING foo", "WATCH foo"] {
            follower.check(command, &foo);
        }
        follower.check("EXISTS bar foo", &three.moved(5_061, 0));
        follower.check("GET {foo}.other", &foo);
        follower.check("HSET 123456789 f v", &three.moved(12_739, 0));
        for command in OF_ALL_KEYS {
            follower.check(command, &three.moved(0, 0));
        }
        // READONLY is taken, and yet a head alone serves.
        follower.check("READONLY", "+OK\r\n");
        follower.check("GET foo", &foo);
        follower.check("READWRITE", "+OK\r\n");
        follower.check("ASKING", "+OK\r\n");
        follower.check("GET foo", &foo);
        for (command, expected) in [
            ("PING", "+PONG\r\n"),
            ("ECHO x", "$1\r\nx\r\n"),
            ("SELECT 3", "+OK\r\n"),
            ("UNWATCH", "+OK\r\n"),
            ("EXEC", "-ERR EXEC without MULTI\r\n"),
            ("GET", "-ERR wrong number of arguments for 'get' command\r\n"),
            ("CONFIG GET nosuch", if resp3 { "%0\r\n" } else { "*0\r\n" }),
            ("ACL WHOAMI", "$7\r\ndefault\r\n"),
            ("CLIENT SETNAME n", "+OK\r\n"),
            ("COMMAND INFO nosuch", if resp3 { "*1\r\n_\r\n" } else { "*1\r\n$-1\r\n" }),
        ] {
            follower.check(command, expected);
        }
        assert!(follower.run("OBJECT HELP").starts_with('*'));
        let role = format!("*5\r\n$5\r\nslave\r\n$9\r\n127.0.0.1\r\n:{}\r\n$9\r\nconnected\r\n:0\r\n", three.port(0));
        follower.check("ROLE", &role);
        let info = follower.run("INFO");
        let port = format!("master_port:{}\r\n", three.port(0));
        for line in ["redis_mode:cluster\r\n", "cluster_enabled:1\r\n", "role:slave\r\n", &port] {
            assert!(info.contains(line), "{line} in {info}");
        }
        let hello = follower.run("HELLO");
        assert!(hello.contains("mode\r\n$7\r\ncluster\r\n") && hello.contains("$7\r\nreplica\r\n"), "{hello}");
    }
    head.check("GET foo", "$1\r\n1\r\n");
    head.check("DBSIZE", ":2\r\n");
    assert!(head.run("INFO replication").contains("role:master\r\n"));
    assert!(head.run("HELLO").contains("$6\r\nmaster\r\n"));
}

#[test]
fn replicas_answer_readers_who_ask_for_it_and_write_nothing() {
    let moment = Moment(Arc::default());
    let clock = Arc::new(SystemClock) as Arc<dyn Clock>;
    let three = Three::start_reading(&config(), &clock, Some(&moment));
    let (mut head, mut replica) = (three.client(0), three.client(1));
    head.check("MSET foo 1 bar 2", "+OK\r\n");
    head.check("HSET hash f v g w", ":2\r\n");
    let foo = three.moved(12_182, 0);
    replica.check("GET foo", &foo);
    replica.check("READONLY", "+OK\r\n");
    for (command, expected) in [
        ("GET foo", "$1\r\n1\r\n"),
        ("MGET foo bar none", "*3\r\n$1\r\n1\r\n$1\r\n2\r\n$-1\r\n"),
        ("HGETALL hash", "*4\r\n$1\r\nf\r\n$1\r\nv\r\n$1\r\ng\r\n$1\r\nw\r\n"),
        ("TYPE hash", "+hash\r\n"),
        ("TTL foo", ":-1\r\n"),
        ("STRLEN foo", ":1\r\n"),
        ("SAVE", "+OK\r\n"),
        ("HGET hash g", "$1\r\nw\r\n"),
        ("WAIT 0 0", "-ERR WAIT cannot be used with replica instances.\r\n"),
        ("WAITAOF 1 0 0", "-ERR WAITAOF cannot be used with replica instances.\r\n"),
    ] {
        replica.check(command, expected);
    }
    for command in ["SET foo 2", "DEL foo", "GETDEL foo", "GETEX foo", "WATCH foo", "EXPIRE foo 1", "INCR foo"] {
        replica.check(command, &foo);
    }
    // What MULTI collects has to be of one moment with what it writes.
    replica.check("MULTI", "+OK\r\n");
    replica.check("GET foo", &foo);
    replica.check("EXEC", ABORTED);
    // What names no keys is of the node that is asked, by any client.
    let mut other = three.client(2);
    for client in [&mut replica, &mut other] {
        client.check("DBSIZE", ":3\r\n");
        client.check("KEYS f*", "*1\r\n$3\r\nfoo\r\n");
        assert!(client.run("SCAN 0").contains("foo"));
        client.check("FLUSHDB", &three.moved(0, 0));
    }
    // So is one that may hold keys elsewhere by the head's configuration.
    let kv = Kv::open(Arc::clone(&three.servers[0].store) as Arc<dyn ObjectStore>, Arc::new(SystemClock)).unwrap();
    kv.namespace("db9.int", Kind::Int).unwrap();
    for database in ["db9", "db9.fields"] {
        kv.namespace(database, Kind::Bytes).unwrap();
    }
    replica.check("SELECT 9", "+OK\r\n");
    replica.check("GET foo", &foo);
    // A database that its head has not made is his.
    replica.check("SELECT 7", "+OK\r\n");
    replica.check("GET foo", &foo);
    head.check("SELECT 7", "+OK\r\n");
    head.check("SET foo 7", "+OK\r\n");
    replica.check("GET foo", "$1\r\n7\r\n");
    replica.check("READWRITE", "+OK\r\n");
    replica.check("GET foo", &foo);
    replica.check("READONLY", "+OK\r\n");
    replica.check("RESET", "+RESET\r\n");
    replica.check("GET foo", &foo);

    // Commands that read more than once wait until what is being applied is, others do not.
    replica.check("READONLY", "+OK\r\n");
    let applying = moment.0.write();
    replica.check("GET foo", "$1\r\n1\r\n");
    replica.send(&encode(&["HGET", "hash", "f"]));
    replica.stream.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let early = replica.stream.peek(&mut [0]).map_err(|error| error.kind());
    assert_eq!(early, Err(ErrorKind::WouldBlock), "it has read part of what is applied");
    drop(applying);
    replica.stream.set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(replica.reply().unwrap(), b"$1\r\nv\r\n");
}

/// What a move has left at a chain that shares no slots, since the move was given up, was read at its replicas.
#[test]
fn replicas_of_a_chain_beside_others_answer_for_no_slot_that_was_to_come() {
    let moment = Moment(Arc::default());
    let clock = Arc::new(SystemClock) as Arc<dyn Clock>;
    let three = Three::start_reading(&config(), &clock, Some(&moment));
    for (index, known) in three.known.iter().enumerate() {
        let view = ClusterView::new(2, &id(index), three.nodes.clone(), vec![range(0, 16_383, Some(0))]).unwrap();
        known.0.store(Arc::new(view.among_others()));
    }
    three.client(0).check("MSET foo 1 bar 2", "+OK\r\n");
    let mut replica = three.client(1);
    replica.check("READONLY", "+OK\r\n");
    replica.check("MGET foo bar", "*2\r\n$1\r\n1\r\n$1\r\n2\r\n");
    // The record of slot 12182: it is coming, in epoch 1, from the chain b.
    let kv = Kv::open(Arc::clone(&three.servers[0].store) as Arc<dyn ObjectStore>, Arc::new(SystemClock)).unwrap();
    let server = kv.namespace("server", Kind::Bytes).unwrap();
    let record = [b"slot/".as_slice(), &12_182_u16.to_be_bytes()].concat();
    server.put(&record[..], b"\x03\x01\0\0\0\0\0\0\0b").wait().unwrap();
    replica.check("GET foo", &three.moved(12_182, 0));
    replica.check("GET bar", "$1\r\n2\r\n");
    server.remove(&record[..]).wait().unwrap();
    replica.check("GET foo", "$1\r\n1\r\n");
}

#[test]
fn a_transaction_with_a_key_of_another_node_is_aborted() {
    let three = Three::start(&config());
    let mut follower = three.client(1);
    for refused in ["SET foo 1", "SCAN 0"] {
        follower.check("MULTI", "+OK\r\n");
        follower.check("PING", "+QUEUED\r\n");
        assert!(follower.run(refused).starts_with("-MOVED "), "{refused}");
        follower.check("EXEC", ABORTED);
        follower.check("EXEC", "-ERR EXEC without MULTI\r\n");
    }
    follower.check("MULTI", "+OK\r\n");
    follower.check("WATCH foo", &three.moved(12_182, 0));
    follower.check("DISCARD", "+OK\r\n");
    follower.check("MULTI", "+OK\r\n");
    follower.check("PING", "+QUEUED\r\n");
    follower.check("EXEC", "*1\r\n+PONG\r\n");
    let mut head = three.client(0);
    head.check("WATCH foo", "+OK\r\n");
    head.check("MULTI", "+OK\r\n");
    head.check("INCR foo", "+QUEUED\r\n");
    head.check("INCR bar", "+QUEUED\r\n");
    head.check("EXEC", "*2\r\n:1\r\n:1\r\n");
}

#[test]
fn the_head_changes_while_clients_are_connected() {
    let mut three = Three::start(&config());
    let (mut first, mut second) = (three.client(0), three.client(1));
    first.check("SET foo 1", "+OK\r\n");
    first.check("WATCH foo", "+OK\r\n");
    first.check("MULTI", "+OK\r\n");
    first.check("INCR foo", "+QUEUED\r\n");
    first.check("INCR bar", "+QUEUED\r\n");
    let mut of_all = three.client(0);
    of_all.check("MULTI", "+OK\r\n");
    of_all.check("DBSIZE", "+QUEUED\r\n");

    three.elect(Some(1));
    // What was queued is not run here any more, and the transaction is over.
    first.check("EXEC", &three.moved(12_182, 1));
    first.check("EXEC", "-ERR EXEC without MULTI\r\n");
    of_all.check("EXEC", &three.moved(0, 1));
    first.check("GET foo", &three.moved(12_182, 1));
    second.check("GET foo", "$1\r\n1\r\n");
    second.check("INCR foo", ":2\r\n");
    second.check("EXISTS bar", ":0\r\n");

    three.elect(None);
    for client in [&mut first, &mut second] {
        for command in ["GET foo", "SET foo 1", "WATCH foo"].iter().chain(&OF_ALL_KEYS) {
            client.check(command, DOWN);
        }
        client.check("PING", "+PONG\r\n");
        client.check("CLUSTER SLOTS", "*0\r\n");
        assert!(client.run("CLUSTER INFO").contains("cluster_state:fail\r\n"));
        client.check("ROLE", "*5\r\n$5\r\nslave\r\n$0\r\n\r\n:0\r\n$7\r\nconnect\r\n:0\r\n");
        client.check("MULTI", "+OK\r\n");
        client.check("GET foo", DOWN);
        client.check("EXEC", ABORTED);
    }
    three.elect(Some(0));
    second.check("GET foo", &three.moved(12_182, 0));
    first.check("GET foo", "$1\r\n2\r\n");
    // What it selected as a follower it serves as the head.
    let mut third = three.client(2);
    third.check("SELECT 5", "+OK\r\n");
    three.elect(Some(2));
    third.check("GET foo", "$-1\r\n");
    third.check("SET foo 1", "+OK\r\n");
}

#[test]
fn several_slots_of_one_head_are_served_and_keys_of_different_heads_are_not() {
    let mut three = Three::start(&config());
    // hello is of slot 866, bar of 5061, foo of 12182.
    three.tell(&[range(0, 4_999, Some(0)), range(5_000, 9_999, Some(1)), range(10_000, 16_000, Some(0))]);
    let (mut first, mut second, mut third) = (three.client(0), three.client(1), three.client(2));
    first.check("MSET foo 1 hello 2", "+OK\r\n");
    first.check("MGET hello foo", "*2\r\n$1\r\n2\r\n$1\r\n1\r\n");
    first.check("GET bar", &three.moved(5_061, 1));
    second.check("SET bar 1", "+OK\r\n");
    second.check("MGET hello foo", &three.moved(866, 0));
    for client in [&mut first, &mut second, &mut third] {
        client.check("MGET foo bar", CROSS);
        client.check("RENAME bar hello", CROSS);
    }
    // A node that heads any slot tells of its keys; others send to the head of the first.
    assert!(second.run("DBSIZE").starts_with(':'));
    third.check("DBSIZE", &three.moved(0, 0));
    first.check("MULTI", "+OK\r\n");
    first.check("MGET foo bar", CROSS);
    first.check("EXEC", ABORTED);

    let node =
        |index: usize| format!("*4\r\n$9\r\n127.0.0.1\r\n:{}\r\n$40\r\n{}\r\n*0\r\n", three.port(index), id(index));
    let (a, b, c) = (node(0), node(1), node(2));
    third.check(
        "CLUSTER SLOTS",
        &format!(
            "*3\r\n*5\r\n:0\r\n:4999\r\n{a}{b}{c}*5\r\n:5000\r\n:9999\r\n{b}{a}{c}\
             *5\r\n:10000\r\n:16000\r\n{a}{b}{c}"
        ),
    );
    third.check("CLUSTER MYID", &format!("$40\r\n{}\r\n", id(2)));
    let nodes = third.run("CLUSTER NODES");
    let [a, b, c] = [0, 1, 2].map(|index| format!("{} 127.0.0.1:{}@0", id(index), three.port(index)));
    let lines = [
        format!("{a} master - 0 0 2 connected 0-4999 10000-16000"),
        format!("{b} master - 0 0 2 connected 5000-9999"),
        format!("{c} myself,slave {} 0 0 2 connected", id(0)),
    ];
    assert_eq!(nodes.split("\r\n").nth(1).unwrap().lines().collect::<Vec<_>>(), lines);
    let info = third.run("CLUSTER INFO");
    for line in ["state:fail", "slots_assigned:16001", "slots_ok:16001", "slots_fail:0", "size:2", "current_epoch:2"] {
        assert!(info.contains(&format!("cluster_{line}\r\n")), "{line} in {info}");
    }
}

#[test]
fn shards_are_told_with_their_nodes_and_what_cannot_be_reached() {
    let mut three = Three::start(&config());
    three.nodes[0].tls_port = Some(7_001);
    three.nodes[1].is_up = false;
    three.tell(&[
        SlotRange { first: 0, last: 0, head: Some(0), replicas: vec![1], epoch: 0 },
        SlotRange { first: 2, last: 16_383, head: Some(0), replicas: vec![1], epoch: 0 },
    ]);
    let mut client = three.client(0);
    let node = |index: usize, tls: &str, role: &str, health: &str, fields: usize| {
        format!(
            "*{fields}\r\n$2\r\nid\r\n$40\r\n{}\r\n$4\r\nport\r\n:{}\r\n{tls}$2\r\nip\r\n$9\r\n127.0.0.1\r\n\
             $8\r\nendpoint\r\n$9\r\n127.0.0.1\r\n$4\r\nrole\r\n${}\r\n{role}\r\n\
             $18\r\nreplication-offset\r\n:0\r\n$6\r\nhealth\r\n${}\r\n{health}\r\n",
            id(index),
            three.port(index),
            role.len(),
            health.len()
        )
    };
    let shards = format!(
        "*2\r\n*4\r\n$5\r\nslots\r\n*4\r\n:0\r\n:0\r\n:2\r\n:16383\r\n$5\r\nnodes\r\n*2\r\n{}{}\
         *4\r\n$5\r\nslots\r\n*0\r\n$5\r\nnodes\r\n*1\r\n{}",
        node(0, "$8\r\ntls-port\r\n:7001\r\n", "master", "online", 16),
        node(1, "", "replica", "fail", 14),
        node(2, "", "master", "online", 14),
    );
    client.check("CLUSTER SHARDS", &shards);
    let nodes = client.run("CLUSTER NODES");
    assert!(nodes.contains(&format!("{}@0 slave,fail {} 0 0 2 disconnected\n", three.port(1), id(0))), "{nodes}");
    assert!(nodes.contains("@0 myself,master - 0 0 2 connected 0 2-16383\n"), "{nodes}");
    assert!(!client.run("CLUSTER SLOTS").contains(&id(1)), "a replica that cannot be reached");
    client.check("SET {1}foo 1", "+OK\r\n");
    client.check("CLUSTER COUNTKEYSINSLOT 5", "-ERR keys are not counted by slot\r\n");
    assert!(client.run("CLUSTER HELP").contains("+KEYSLOT <key>\r\n"));
}

#[test]
fn who_may_not_learns_nothing_of_the_cluster() {
    const NOAUTH: &str = "-NOAUTH Authentication required.\r\n";
    let three = Three::start(&Config { password: Some("secret".into()), ..config() });
    let mut follower = three.client(1);
    for command in ["GET foo", "SCAN 0", "WATCH foo", "CLUSTER SLOTS", "READONLY", "ASKING", "MULTI"] {
        follower.check(command, NOAUTH);
    }
    follower.check("AUTH secret", "+OK\r\n");
    follower.check("GET foo", &three.moved(12_182, 0));
    follower.check("ACL SETUSER bob on >pass ~foo -@all +get +scan +cluster|slots", "+OK\r\n");
    let mut bob = three.client(1);
    bob.check("AUTH bob pass", "+OK\r\n");
    bob.check("GET foo", &three.moved(12_182, 0));
    bob.check("SCAN 0", &three.moved(0, 0));
    assert!(bob.run("CLUSTER SLOTS").starts_with("*1\r\n"));
    for command in ["GET bar", "SET foo 1", "DBSIZE", "CLUSTER NODES", "READONLY"] {
        assert!(bob.run(command).starts_with("-NOPERM "), "{command}");
    }
}

#[test]
fn clients_that_speak_tls_are_sent_to_the_port_with_tls() {
    let folder = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
    let files = TlsFiles {
        certificate: folder.path().join("cert.pem"),
        key: folder.path().join("key.pem"),
        client_authorities: None,
    };
    std::fs::write(&files.certificate, made.cert.pem()).unwrap();
    std::fs::write(&files.key, made.signing_key.serialize_pem()).unwrap();
    let tls_listen = vec![SocketAddr::from(([127, 0, 0, 1], 0))];
    let mut three = Three::start(&Config { tls_listen, tls: Some(files), ..config() });
    three.nodes[0].tls_port = Some(7_443);
    three.elect(Some(0));
    let tls = three.servers[1].addresses.iter().find_map(|at| if let Address::Tls(at) = at { Some(*at) } else { None });

    let mut roots = rustls::RootCertStore::empty();
    roots.add(made.cert.der().clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let client = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = rustls::pki_types::ServerName::try_from("localhost").unwrap();
    let stream = TcpStream::connect(tls.unwrap()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let connection = rustls::ClientConnection::new(Arc::new(client), name).unwrap();
    let mut secret = Client::over(rustls::StreamOwned::new(connection, stream));
    secret.check("GET foo", "-MOVED 12182 127.0.0.1:7443\r\n");
    secret.check("SCAN 0", "-MOVED 0 127.0.0.1:7443\r\n");
    assert!(secret.run("CLUSTER SLOTS").contains(":7443\r\n"));
    assert!(secret.run("CLUSTER NODES").contains("127.0.0.1:7443@0"));
    let mut open = three.client(1);
    open.check("GET foo", &three.moved(12_182, 0));
    assert!(!open.run("CLUSTER SLOTS").contains(":7443\r\n"));
}

#[test]
fn keys_that_have_expired_are_removed_by_the_head_alone() {
    let clock = Arc::new(ManualClock::new(1_700_000_000_000));
    let mut three = Three::start_at(&config(), &(Arc::clone(&clock) as Arc<dyn Clock>));
    let mut head = three.client(0);
    for n in 0..20 {
        head.check(&format!("SET key{n} 1 PX 1000"), "+OK\r\n");
    }
    three.elect(None);
    // A round that was begun as the head is over by then.
    std::thread::sleep(Duration::from_millis(500));
    clock.advance(1_000);
    std::thread::sleep(Duration::from_millis(500));
    let expired = |three: &Three, index: usize| {
        let info = three.client(index).run("INFO stats");
        info.split("\r\n").find_map(|line| line.strip_prefix("expired_keys:").map(str::to_owned)).unwrap()
    };
    assert_eq!([0, 1, 2].map(|index| expired(&three, index)), ["0", "0", "0"]);
    three.elect(Some(1));
    eventually("the new head removes them", || expired(&three, 1) == "20");
    assert_eq!([expired(&three, 0), expired(&three, 2)], ["0", "0"]);
}

/// What redis-cli prints that follows redirections, for one command to this port.
fn redis_cli(port: u16, command: &[&str]) -> String {
    let mut program = Command::new("redis-cli");
    program.args(["-c", "-h", "127.0.0.1", "-p", &port.to_string()]).args(command);
    let done = program.output().unwrap_or_else(|error| {
        panic!("redis-cli cannot be started ({error}): install it, as the README's test command does")
    });
    assert!(done.status.success(), "{command:?}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8_lossy(&done.stdout).trim().to_owned()
}

#[test]
fn redis_cli_reaches_the_head_through_any_node() {
    let mut three = Three::start(&config());
    assert_eq!(redis_cli(three.port(1), &["SET", "foo", "bar"]), "OK");
    assert_eq!(redis_cli(three.port(2), &["GET", "foo"]), "bar");
    assert_eq!(redis_cli(three.port(2), &["DBSIZE"]), "1");
    assert_eq!(redis_cli(three.port(0), &["GET", "foo"]), "bar");
    three.elect(Some(2));
    assert_eq!(redis_cli(three.port(0), &["APPEND", "foo", "t"]), "4");
    three.client(2).check("GET foo", "$4\r\nbart\r\n");
}
