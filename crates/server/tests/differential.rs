//! The same commands to a real redis-server 7 and to this server: the replies have to be the same bytes.
//!
//! Needs `redis-server`; the README's test command installs it. Known differences, compared more loosely or left out:
//! order of fields and keys (here sorted), cursors of unfinished scans, ids and texts of CLIENT, INFO and COMMAND, the
//! last digits of large INCRBYFLOAT sums, DBSIZE after a SET that expires in the past (Redis counts the key until it
//! looks), limits of keys and values, a stricter end of bulk strings.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "support/afar.rs"]
mod afar;
mod scripts;
mod support;

use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use afar::Afar;
use esker_kv::SystemClock;
use esker_memory::MemoryStore;
use esker_server::resp::{Cluster, ClusterNode, ClusterView, Config, NoEngineInfo, SlotRange};
use scripts::{ACL, CLUSTER, HASHES, KEYS, NUMBERS, SERVER, STRINGS, TRANSACTIONS};
use support::{Client, Running, config, elements, eventually};

/// A redis-server of its own, ended when dropped.
struct Redis {
    child: Child,
    address: SocketAddr,
    _folder: tempfile::TempDir,
}

impl Redis {
    fn start(extra: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let mut command = Command::new("redis-server");
        command.args([
            "--port",
            &address.port().to_string(),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--appendonly",
            "no",
        ]);
        command.arg("--dir").arg(folder.path()).args(extra).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap_or_else(|error| {
            panic!("redis-server cannot be started ({error}): install it, as the README's test command does")
        });
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let ready = lines.any(|line| line.is_ok_and(|line| line.contains("Ready to accept connections")));
        assert!(ready, "redis-server ended before it was ready");
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, address, _folder: folder }
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn args(line: &str) -> Vec<Vec<u8>> {
    let arg = |word: &str| if word == "\"\"" { Vec::new() } else { word.replace("\\s", " ").into_bytes() };
    line.split_whitespace().map(arg).collect()
}

fn same(kind: char, ours: &[u8], theirs: &[u8]) -> bool {
    match kind {
        '~' => {
            let sorted = |reply| {
                let mut elements = elements(reply);
                elements.sort();
                elements
            };
            ours[0] == theirs[0] && sorted(ours) == sorted(theirs)
        }
        '=' => {
            let number = |reply: &[u8]| std::str::from_utf8(&reply[1..]).unwrap().trim().parse::<i64>().unwrap();
            ours[0] == b':' && theirs[0] == b':' && (number(ours) - number(theirs)).abs() <= 2_000
        }
        '?' => ours[0] == theirs[0],
        _ => ours == theirs,
    }
}

/// Sends all lines to both, in this version of the protocol.
fn compare(name: &str, script: &str, resp3: bool) {
    let redis = Redis::start(&[]);
    let esker = Running::start(config());
    compare_with(name, script, resp3, redis.address, esker.address());
}

fn compare_with(name: &str, script: &str, resp3: bool, theirs: SocketAddr, ours: SocketAddr) {
    let mut theirs = Client::connect(theirs);
    let mut ours = Client::connect(ours);
    theirs.foreign = true;
    if resp3 {
        theirs.call(&["HELLO", "3"]);
        ours.call(&["HELLO", "3"]);
    }
    let mut different = Vec::new();
    for line in script.lines().filter(|line| !line.is_empty()) {
        let kind = line.chars().next().filter(|kind| "~=?".contains(*kind)).unwrap_or(' ');
        let args = args(line.trim_start_matches(['~', '=', '?']));
        let (a, b) = (ours.call(&args), theirs.call(&args));
        if !same(kind, &a, &b) {
            different.push(format!("{line}\n  esker {}\n  redis {}", a.escape_ascii(), b.escape_ascii()));
        }
        // After a HELLO that was refused both speak what they spoke before.
        if args[0].eq_ignore_ascii_case(b"hello") || args[0].eq_ignore_ascii_case(b"reset") {
            let hello = ["HELLO", if resp3 { "3" } else { "2" }];
            theirs.call(&hello);
            ours.call(&hello);
        }
    }
    assert!(different.is_empty(), "{name}, resp3 {resp3}: {} differ\n{}", different.len(), different.join("\n"));
}

#[test]
fn strings_answer_as_redis_does() {
    compare("strings", STRINGS, false);
    compare("strings", STRINGS, true);
}

#[test]
fn numbers_answer_as_redis_does() {
    compare("numbers", NUMBERS, false);
    compare("numbers", NUMBERS, true);
}

#[test]
fn keys_answer_as_redis_does() {
    compare("keys", KEYS, false);
    compare("keys", KEYS, true);
}

#[test]
fn hashes_answer_as_redis_does() {
    compare("hashes", HASHES, false);
    compare("hashes", HASHES, true);
}

#[test]
fn transactions_answer_as_redis_does() {
    compare("transactions", TRANSACTIONS, false);
    compare("transactions", TRANSACTIONS, true);
}

#[test]
fn users_are_told_what_redis_tells_them() {
    compare("acl", ACL, false);
    compare("acl", ACL, true);
}

#[test]
fn server_commands_answer_as_redis_does() {
    compare("server", SERVER, false);
    compare("server", SERVER, true);
}

struct Known(Arc<ClusterView>);

impl Cluster for Known {
    fn view(&self) -> Arc<ClusterView> {
        Arc::clone(&self.0)
    }
}

/// What Redis says of itself the server here is told of itself.
#[test]
fn a_node_of_a_cluster_answers_as_redis_does() {
    let bus = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let redis = Redis::start(&["--cluster-enabled", "yes", "--cluster-port", &bus]);
    let mut client = Client::connect(redis.address);
    for range in ["0 99", "100 16383"] {
        client.check(&format!("CLUSTER ADDSLOTSRANGE {range}"), "+OK\r\n");
    }
    // A node that has met none does not know its own address.
    client.check("CONFIG SET cluster-announce-ip 127.0.0.1", "+OK\r\n");
    eventually("the cluster of Redis is ready", || client.run("CLUSTER INFO").contains("cluster_state:ok"));
    let id = client.run("CLUSTER MYID").split("\r\n").nth(1).unwrap().to_owned();
    let port = redis.address.port();
    let node = ClusterNode { id: id.clone(), host: "127.0.0.1".into(), port, tls_port: None, is_up: true };
    let ranges = vec![SlotRange { first: 0, last: 16_383, head: Some(0), replicas: Vec::new(), epoch: 0 }];
    let known = Known(Arc::new(ClusterView::new(0, &id, vec![node], ranges).unwrap()));
    let esker = Running::start(Config { cluster: Some(Arc::new(known)), ..config() });
    for resp3 in [false, true] {
        client.check("FLUSHALL", "+OK\r\n");
        esker.client().check("FLUSHALL", "+OK\r\n");
        compare_with("cluster", CLUSTER, resp3, redis.address, esker.address());
    }
    let lines = |reply: String, kept: &[&str]| {
        reply.lines().filter(|line| kept.iter().any(|kept| line.starts_with(kept))).collect::<Vec<_>>().join("\n")
    };
    let kept =
        ["cluster_state", "cluster_slots", "cluster_known_nodes", "cluster_size", "cluster_enabled", "redis_mode"];
    let mut ours = esker.client();
    for command in ["CLUSTER INFO", "INFO"] {
        assert_eq!(lines(ours.run(command), &kept), lines(client.run(command), &kept), "{command}");
    }
    // The port of the bus aside, the line of the one node is the same.
    let line = |reply: String| reply.split("\r\n").nth(1).unwrap().replace(&format!("@{bus}"), "@0");
    assert_eq!(line(ours.run("CLUSTER NODES")), line(client.run("CLUSTER NODES")));
}

/// Everything again with keys that are numbers, in a database that keeps those in slots.
#[test]
fn int_keys_answer_as_redis_does() {
    let numbered = |script: &str| {
        let word = |word: &str| match word {
            "k" | "a" | "h" | "n" => format!("{}", 1 + word.as_bytes()[0]),
            other => other.to_owned(),
        };
        let line = |line: &str| line.split(' ').map(word).collect::<Vec<_>>().join(" ");
        script.lines().map(line).collect::<Vec<_>>().join("\n")
    };
    for script in [STRINGS, NUMBERS, KEYS, HASHES, TRANSACTIONS] {
        let redis = Redis::start(&[]);
        let esker = Running::start(esker_server::resp::Config { int_databases: vec![0, 1], ..config() });
        compare_with("int", &numbered(script), false, redis.address, esker.address());
    }
}

/// Everything again on a store that is on the other side of a network, whose commands other threads run.
#[test]
fn commands_that_are_run_elsewhere_answer_as_redis_does() {
    for script in [STRINGS, NUMBERS, KEYS, HASHES, TRANSACTIONS, ACL, SERVER] {
        differ_afar(script);
    }
}

fn differ_afar(script: &str) {
    let redis = Redis::start(&[]);
    let store = Arc::new(MemoryStore::new());
    let seen = Afar::new(Arc::clone(&store) as _);
    let esker = Running::start_over(store, seen, config(), Arc::new(SystemClock), Arc::new(NoEngineInfo));
    compare_with("afar", script, false, redis.address, esker.address());
}

/// Bytes that are not the protocol: the same error, then the end of the connection.
#[test]
fn bad_requests_are_refused_as_redis_does() {
    let redis = Redis::start(&[]);
    let esker = Running::start(config());
    let long = [&b"*1\r\n$"[..], &[b'1'; 70_000]].concat();
    let cases: &[&[u8]] = &[
        b"*x\r\n",
        b"*99999999999999\r\n",
        b"*1\r\n+OK\r\n",
        b"*1\r\n$-1\r\n",
        b"*1\r\n$abc\r\n",
        b"*1\r\n$99999999999\r\n",
        b"*2\r\n$3\r\nGET\r\n:1\r\n",
        b"SET \"a\r\n",
        b"SET 'a'b\r\n",
        &[b'a'; 70_000],
        &[&b"*"[..], &[b'1'; 70_000]].concat(),
        &long,
        b"PING\r\n*1\r\n!\r\nPING\r\n",
    ];
    for case in cases {
        let answer = |address| {
            let mut client = Client::connect(address);
            client.send(case);
            client.expect_end()
        };
        let (ours, theirs) = (answer(esker.address()), answer(redis.address));
        let shown = case[..case.len().min(40)].escape_ascii();
        assert_eq!(ours.escape_ascii().to_string(), theirs.escape_ascii().to_string(), "{shown}");
    }
    let inline: &[&[u8]] = &[
        b"PING\r\n",
        b"  PING  \n",
        b"SET k \"a b\\x41\"\r\n",
        b"GET k\r\n",
        b"*0\r\nPING\r\n",
        b"\r\nPING\r\n",
        b"*-1\r\nGET 'k'\n",
    ];
    for case in inline {
        let answer = |address| {
            let mut client = Client::connect(address);
            client.send(case);
            client.reply().unwrap()
        };
        assert_eq!(answer(esker.address()), answer(redis.address), "{}", case.escape_ascii());
    }
}

#[test]
fn strangers_are_refused_as_redis_does() {
    let redis = Redis::start(&["--requirepass", "secret"]);
    let esker = Running::start(esker_server::resp::Config { password: Some("secret".into()), ..config() });
    let script = r#"
PING
GET a
NOSUCH
GET
HELLO 3
HELLO 2
HELLO 2 AUTH default wrong
AUTH wrong
AUTH default wrong
AUTH other secret
MULTI
?HELLO 2 AUTH default secret
PING
RESET
PING
AUTH secret
PING
QUIT
"#;
    let mut ours = Client::connect(esker.address());
    let mut theirs = Client::connect(redis.address);
    for line in script.lines().filter(|line| !line.is_empty()) {
        let kind = if line.starts_with('?') { '?' } else { ' ' };
        let args = args(line.trim_start_matches('?'));
        let (a, b) = (ours.call(&args), theirs.call(&args));
        (ours.resp3, theirs.resp3) = (false, false);
        assert!(same(kind, &a, &b), "{line}: esker {} redis {}", a.escape_ascii(), b.escape_ascii());
    }
    for case in [&b"*11\r\n"[..], b"*2\r\n$3\r\nGET\r\n$16385\r\n"] {
        let answer = |address| {
            let mut client = Client::connect(address);
            client.send(case);
            client.expect_end().escape_ascii().to_string()
        };
        assert_eq!(answer(esker.address()), answer(redis.address), "{}", case.escape_ascii());
    }
}

/// Commands with secrets, bytes of all kinds, errors and transactions, for what shows commands to operators. AUTH with
/// too many arguments is left out: Redis shows those.
fn noted_commands() -> Vec<Vec<Vec<u8>>> {
    let long = format!("MGET {}", (0..40).map(|n| format!("key{n}")).collect::<Vec<_>>().join(" "));
    let lines = [
        "GET k",
        "get K",
        "INCR k",
        "AUTH pw",
        "AUTH default pw",
        "HELLO 2 AUTH default pw",
        "HELLO 2 SETNAME me",
        "CONFIG SET requirepass \"\"",
        "CONFIG GET save",
        "CLIENT SETNAME you",
        "CLIENT LIST",
        "NOSUCH x",
        "GET",
        "SELECT 3",
        "SET \"\" 1",
        "MULTI",
        "INCR n",
        "GET",
        "EXEC",
        "MULTI",
        "INCR n",
        "SELECT 1",
        "APPEND n x",
        "INCR n",
        "EXEC",
        "MULTI",
        "PING",
        "DISCARD",
        "SLOWLOG LEN",
        "LATENCY LATEST",
        "EXISTS a b",
        &long,
        "WATCH n",
        "UNWATCH",
        "TTL n",
    ];
    let mut commands = vec![
        vec![b"SET".to_vec(), b"k".to_vec(), (0..=255).collect()],
        vec![b"SET".to_vec(), b"long".to_vec(), vec![b'x'; 300]],
    ];
    commands.extend(lines.map(args));
    commands
}

/// What a monitor is told, without times and addresses.
#[test]
fn monitors_are_told_the_same_as_by_redis() {
    let redis = Redis::start(&[]);
    let esker = Running::start(config());
    let told = |address| {
        let (mut monitor, mut client) = (Client::connect(address), Client::connect(address));
        (monitor.foreign, client.foreign) = (true, true);
        assert_eq!(monitor.call(&["MONITOR"]), b"+OK\r\n");
        for command in noted_commands() {
            client.call(&command);
        }
        client.call(&["ECHO", "the end"]);
        let own = client.stream.local_addr().unwrap().to_string();
        let mut lines = Vec::new();
        while !lines.last().is_some_and(|line: &String| line.contains("the end")) {
            let line = String::from_utf8(monitor.reply().unwrap()).unwrap();
            let (time, rest) = line.split_once(' ').unwrap();
            let (seconds, micros) = time[1..].split_once('.').unwrap();
            assert!(seconds.parse::<u64>().unwrap() > 1_600_000_000 && micros.len() == 6, "{line}");
            lines.push(rest.replace(&own, "ADDRESS"));
        }
        lines
    };
    assert_eq!(told(esker.address()), told(redis.address));
}

/// Arguments and names of clients, newest first.
#[test]
fn the_slow_log_keeps_the_same_as_that_of_redis() {
    let redis = Redis::start(&[]);
    let esker = Running::start(config());
    let kept = |address| {
        let mut client = Client::connect(address);
        client.foreign = true;
        assert_eq!(client.call(&["CONFIG", "SET", "slowlog-log-slower-than", "0"]), b"+OK\r\n");
        for command in noted_commands() {
            client.call(&command);
        }
        let entries = elements(&client.call(&["SLOWLOG", "GET", "-1"]));
        let shown = |entry: &Vec<u8>| {
            let fields = elements(entry);
            assert!(fields.len() == 6 && fields[..3].iter().all(|field| field[0] == b':') && fields[4][0] == b'$');
            format!("{} {} {}", fields[0].escape_ascii(), fields[3].escape_ascii(), fields[5].escape_ascii())
        };
        entries.iter().map(shown).collect::<Vec<_>>()
    };
    assert_eq!(kept(esker.address()), kept(redis.address));
}

/// Calls, refusals and failures of commands without subcommands, which Redis counts apart.
#[test]
fn commands_are_counted_as_by_redis() {
    let redis = Redis::start(&[]);
    let esker = Running::start(config());
    let counted = |address| {
        let mut client = Client::connect(address);
        client.foreign = true;
        for command in noted_commands() {
            client.call(&command);
        }
        let info = client.run("INFO commandstats");
        let containers = ["client", "config", "slowlog", "latency"];
        let mut lines: Vec<String> = info
            .lines()
            .filter_map(|line| line.strip_prefix("cmdstat_")?.split_once(":calls="))
            .filter(|(name, _)| !containers.contains(&name.split('|').next().unwrap()))
            .map(|(name, rest)| {
                let fields: Vec<&str> = rest.split(',').collect();
                assert!(fields.len() == 5 && fields[1].starts_with("usec=") && fields[2].contains("usec_per_call="));
                format!("{name} {} {} {}", fields[0], fields[3], fields[4])
            })
            .collect();
        lines.sort();
        lines
    };
    assert_eq!(counted(esker.address()), counted(redis.address));
}

/// A random command on few keys, so that they meet; `~`, `=` as in the scripts. Inside MULTI only what is compared
/// exactly.
fn random_command(random: &mut fastrand::Rng, in_multi: bool) -> String {
    let mut key = || format!("k{}", random.u8(..6));
    let (a, b, c) = (key(), key(), key());
    let number = ["0", "1", "-3", "7", "100", "4294967296", "abc", "1.5", ""][random.usize(..8)];
    let float = ["0.5", "-1.5", "2", "0.25", "10", "x"][random.usize(..6)];
    let field = ["f", "g", "h", "\"\""][random.usize(..4)];
    let value = ["v", "1", "22", "hello", "3.5", "\"\"", "-7"][random.usize(..7)];
    let option = ["", "NX", "XX", "GET", "KEEPTTL", "EX 100", "NX GET", "XX KEEPTTL", "PXAT 1"][random.usize(..9)];
    let condition = ["", "NX", "XX", "GT", "LT"][random.usize(..5)];
    let seconds = ["100", "1000", "5000", "-1", "0"][random.usize(..5)];
    let exact = [
        format!("SET {a} {value} {option}"),
        format!("SET {a} {value}"),
        format!("GET {a}"),
        format!("INCRBY {a} {number}x").replace('x', ""),
        format!("DECR {a}"),
        format!("INCRBYFLOAT {a} {float}"),
        format!("APPEND {a} {value}"),
        format!("GETRANGE {a} {} {}", random.i8(-5..5), random.i8(-5..5)),
        format!("SETRANGE {a} {} {value}", random.u8(..9)),
        format!("STRLEN {a}"),
        format!("MSET {a} {value} {b} x {c} y"),
        format!("MSETNX {a} {value} {b} x"),
        format!("MGET {a} {b} {c}"),
        format!("GETSET {a} {value}"),
        format!("GETDEL {a}"),
        format!("GETEX {a} PERSIST"),
        format!("GETEX {a} EX 200"),
        format!("SETNX {a} {value}"),
        format!("DEL {a} {b}"),
        format!("EXISTS {a} {b} {a}"),
        format!("TYPE {a}"),
        format!("EXPIRE {a} {seconds} {condition}"),
        format!("EXPIREAT {a} 9999999999 {condition}"),
        format!("EXPIRETIME {c}").replace("EXPIRETIME", "PERSIST"),
        format!("PERSIST {a}"),
        format!("RENAME {a} {b}"),
        format!("RENAMENX {a} {b}"),
        format!("COPY {a} {b}"),
        format!("COPY {a} {b} REPLACE"),
        format!("HSET {a} {field} {value}"),
        format!("HSET {a} {field} {value} g {value} {field} z"),
        format!("HSETNX {a} {field} {value}"),
        format!("HGET {a} {field}"),
        format!("HMGET {a} f g h"),
        format!("HDEL {a} {field} g"),
        format!("HDEL {a} {field}"),
        format!("HLEN {a}"),
        format!("HEXISTS {a} {field}"),
        format!("HSTRLEN {a} {field}"),
        format!("HINCRBY {a} {field} {number}"),
        format!("HINCRBYFLOAT {a} {field} {float}"),
        format!("SETEX {a} {seconds} {value}"),
        format!("UNLINK {a}"),
        "MULTI".to_owned(),
        if in_multi { "EXEC".to_owned() } else { format!("WATCH {a} {b}") },
        if in_multi { "EXEC".to_owned() } else { "UNWATCH".to_owned() },
        if in_multi { "EXEC".to_owned() } else { format!("~HGETALL {a}") },
        if in_multi { "DISCARD".to_owned() } else { format!("~HKEYS {a}") },
        if in_multi { "NOSUCH".to_owned() } else { format!("~HVALS {a}") },
        if in_multi { "EXEC".to_owned() } else { "~KEYS *".to_owned() },
        if in_multi { "EXEC".to_owned() } else { format!("=TTL {a}") },
        if in_multi { "EXEC".to_owned() } else { format!("=PTTL {a}") },
        if random.u8(..20) == 0 { "FLUSHDB".to_owned() } else { format!("GET {b}") },
    ];
    exact[random.usize(..exact.len())].clone()
}

#[test]
fn random_commands_answer_as_redis_does() {
    let seed = std::env::var("ESKER_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    let redis = Redis::start(&[]);
    for seed in seed..seed + 8 {
        let esker = Running::start(config());
        let mut random = fastrand::Rng::with_seed(seed);
        // Two connections, so that watched keys change under their watcher.
        let mut pairs: Vec<_> = (0..2)
            .map(|_| {
                let (mut ours, mut theirs) = (Client::connect(esker.address()), Client::connect(redis.address));
                theirs.foreign = true;
                let hello = ["HELLO", if seed % 2 == 0 { "3" } else { "2" }];
                ours.call(&hello);
                theirs.call(&hello);
                (ours, theirs, false)
            })
            .collect();
        pairs[0].1.call(&["FLUSHALL"]);
        let mut history = Vec::new();
        for _ in 0..3_000 {
            let nth = random.usize(..2);
            let (ours, theirs, in_multi) = &mut pairs[nth];
            let line = random_command(&mut random, *in_multi);
            history.push(format!("{nth}: {line}"));
            let kind = line.chars().next().filter(|kind| "~=".contains(*kind)).unwrap_or(' ');
            let args = args(line.trim_start_matches(['~', '=']));
            let (a, b) = (ours.call(&args), theirs.call(&args));
            let equal = match kind {
                '~' if a[0] == b'-' || b[0] == b'-' => a == b,
                '=' if line.starts_with("=TTL") => {
                    let seconds =
                        |reply: &[u8]| std::str::from_utf8(&reply[1..]).unwrap().trim().parse::<i64>().unwrap();
                    (seconds(&a) - seconds(&b)).abs() <= i64::from(seconds(&b) > 0)
                }
                kind => same(kind, &a, &b),
            };
            assert!(
                equal,
                "ESKER_SEED={seed}: {line}\n  esker {}\n  redis {}\nafter\n{}",
                a.escape_ascii(),
                b.escape_ascii(),
                history[history.len().saturating_sub(40)..].join("\n")
            );
            match line.as_str() {
                "MULTI" => *in_multi = true,
                "EXEC" | "DISCARD" => *in_multi = false,
                _ => {}
            }
        }
    }
}
