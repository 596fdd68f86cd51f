//! The server over real sockets: bad input, slow clients, limits, authentication, TLS, expiry, durability.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use esker_kv::{Kv, ManualClock, SystemClock};
use esker_memory::MemoryStore;
use esker_server::front::TlsFiles;
use esker_server::resp::{Address, Config, EngineInfo, Error, Health, InfoLine, NoEngineInfo, Server};
use support::{Client, PATIENCE, Running, config, encode, eventually};

#[test]
fn half_frames_are_put_together() {
    let server = Running::start(config());
    let mut client = server.client();
    let bytes = [encode(&["SET", "key", "a value"]), encode(&["GET", "key"]), b"PING\r\n".to_vec()].concat();
    for byte in bytes {
        client.send(&[byte]);
    }
    for expected in ["+OK\r\n", "$7\r\na value\r\n", "+PONG\r\n"] {
        assert_eq!(client.reply().unwrap(), expected.as_bytes());
    }
}

#[test]
fn pipelines_are_answered_in_order_whatever_their_length() {
    let server = Running::start(config());
    let mut client = server.client();
    let commands = 20_000;
    let mut writer = client.stream.try_clone().unwrap();
    let sender = std::thread::spawn(move || {
        for n in 0..commands {
            let command = if n % 2 == 0 { encode(&["INCR", "counter"]) } else { encode(&["ECHO", &n.to_string()]) };
            writer.write_all(&command).unwrap();
        }
    });
    for n in 0..commands {
        let expected =
            if n % 2 == 0 { format!(":{}\r\n", n / 2 + 1) } else { format!("${}\r\n{n}\r\n", n.to_string().len()) };
        assert_eq!(String::from_utf8(client.reply().unwrap()).unwrap(), expected);
    }
    sender.join().unwrap();
}

#[test]
fn large_values_pass_and_larger_ones_are_refused_by_name() {
    let server = Running::start(config());
    let mut client = server.client();
    let largest = vec![b'x'; esker_kv::VALUE_BYTES_MAX];
    assert_eq!(client.call(&[b"SET", &b"k"[..], &largest]), b"+OK\r\n");
    assert_eq!(client.call(&["GET", "k"]).len(), largest.len() + 13);
    assert!(client.run("APPEND k y").starts_with("-ERR string exceeds maximum allowed size"));
    let key = vec![b'k'; esker_kv::KEY_BYTES_MAX + 1];
    for command in [&[&b"SET"[..], &key, b"v"][..], &[b"GET", &key], &[b"HSET", &key, b"f", b"v"], &[b"DEL", &key]] {
        let reply = String::from_utf8(client.call(command)).unwrap();
        assert!(reply.starts_with("-ERR") && reply.contains("KEY_BYTES_MAX"), "{reply}");
    }
    client.check("MULTI", "+OK\r\n");
    client.check("SET other 1", "+QUEUED\r\n");
    client.call(&[&b"SET"[..], &key, b"v"]);
    let reply = String::from_utf8(client.call(&["EXEC"])).unwrap();
    assert!(reply.starts_with("*2\r\n+OK\r\n-ERR key of"), "{reply}");
    client.send(format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n${}\r\n", largest.len() + 1).as_bytes());
    assert_eq!(client.expect_end(), b"-ERR Protocol error: invalid bulk length\r\n");
}

#[test]
fn announced_lengths_take_no_memory() {
    let server = Running::start(config());
    let clients: Vec<_> = (0..200)
        .map(|_| {
            let mut client = server.client();
            client.send(b"*1000000\r\n$16000000\r\nx");
            client
        })
        .collect();
    let mut probe = server.client();
    eventually("all connected", || probe.run("INFO clients").contains("connected_clients:201"));
    let info = probe.run("INFO memory");
    let used: u64 = info.lines().find_map(|line| line.strip_prefix("used_memory:")).unwrap().parse().unwrap();
    assert!(used < 1 << 30, "{used} bytes for 200 announcements");
    drop(clients);
}

#[test]
fn a_client_that_does_not_read_is_not_read_from_and_harms_nobody() {
    let server = Running::start(Config { output_bytes_soft: 64 << 10, ..config() });
    let mut slow = server.client();
    let value = "v".repeat(100_000);
    slow.call(&["SET", "big", &value]);
    // Long, so that few of them fill what the sockets hold.
    let command = encode(&["MGET", "big", &"k".repeat(4_000)]);
    slow.stream.set_nonblocking(true).unwrap();
    // What is asked for goes on being asked until the server stops reading: no reply is read meanwhile.
    let (mut asked, started) = (0usize, Instant::now());
    let mut refused_since: Option<Instant> = None;
    let many = command.repeat(1_000);
    let mut at = 0;
    while refused_since.is_none_or(|since| since.elapsed() < Duration::from_millis(500)) {
        assert!(started.elapsed() < PATIENCE, "the server takes everything");
        match slow.stream.write(&many[at..]) {
            Ok(len) => {
                asked += len;
                at = (at + len) % many.len();
                refused_since = None;
            }
            Err(_) => {
                refused_since.get_or_insert_with(Instant::now);
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }
    let mut other = server.client();
    other.check("PING", "+PONG\r\n");
    let info = other.run("INFO clients");
    let held: usize =
        info.lines().find_map(|line| line.strip_prefix("client_recent_max_output_buffer:")).unwrap().parse().unwrap();
    assert!(held < 1 << 20, "{held} bytes held for a client that does not read");
    // Then it reads, and gets every reply.
    slow.stream.set_nonblocking(false).unwrap();
    for _ in 0..asked / command.len() {
        assert_eq!(slow.reply().unwrap().len(), value.len() + 20);
    }
}

#[test]
fn clients_that_hold_more_than_all_may_are_disconnected_and_others_are_not() {
    let server = Running::start(Config { clients_bytes_max: 16 << 20, ..config() });
    let mut other = server.client();
    other.check("SET k v", "+OK\r\n");
    other.call(&["SET", "big", &"v".repeat(1 << 20)]);
    // A hundred that ask and never read.
    let command = encode(&["MGET", "big", "big", "big", "big"]);
    let _silent: Vec<_> = (0..100)
        .map(|_| {
            let mut client = server.client();
            // It may be disconnected while it sends.
            let _ = client.stream.write_all(&command.repeat(4));
            client
        })
        .collect();
    eventually("some are gone", || {
        let info = other.run("INFO stats");
        let figure = |name: &str| {
            let line = info.lines().find_map(|line| line.strip_prefix(name)).expect("INFO tells");
            line.trim_start_matches(':').trim().parse::<usize>().unwrap()
        };
        figure("evicted_clients") > 0 && figure("clients_held_bytes") <= 16 << 20
    });
    other.check("GET k", "$1\r\nv\r\n");
}

#[test]
fn a_reply_above_the_limit_is_refused() {
    let server = Running::start(Config { output_bytes_soft: 10_000, output_bytes_max: 100_000, ..config() });
    let mut client = server.client();
    let value = "v".repeat(60_000);
    client.call(&["MSET", "a", &value, "b", &value]);
    let reply = client.run("MGET a b");
    assert!(reply.starts_with("-ERR output of") && reply.contains("output_bytes_max = 100000"), "{reply}");
    client.check("MULTI", "+OK\r\n");
    client.run("SET c 1");
    client.run("GET a");
    client.run("GET b");
    assert!(client.run("EXEC").starts_with("-ERR output of"));
    client.check("EXISTS c", ":0\r\n");
}

#[test]
fn a_command_above_the_query_limit_ends_the_connection() {
    let server = Running::start(Config { command_bytes_max: 10_000, ..config() });
    let mut client = server.client();
    let mut bytes = b"*100\r\n".to_vec();
    for _ in 0..100 {
        bytes.extend_from_slice(b"$1000\r\n");
        bytes.extend_from_slice(&[b'x'; 1_000]);
        bytes.extend_from_slice(b"\r\n");
    }
    // The server may close before it has read all.
    let _ = client.stream.write_all(&bytes);
    client.expect_end();
    let mut other = server.client();
    other.check("MULTI", "+OK\r\n");
    let value = "v".repeat(4_000);
    other.call(&["SET", "a", &value]);
    other.call(&["SET", "b", &value]);
    assert!(other.run(&format!("SET c {value}")).contains("command_bytes_max"));
    assert!(other.run("EXEC").starts_with("-EXECABORT"));
}

#[test]
fn clients_above_the_limit_are_told_so() {
    let server = Running::start(Config { clients_max: 3, ..config() });
    let mut clients: Vec<_> = (0..3).map(|_| server.client()).collect();
    for client in &mut clients {
        client.check("PING", "+PONG\r\n");
    }
    assert_eq!(server.client().expect_end(), b"-ERR max number of clients reached\r\n");
    clients.pop();
    eventually("a place is free again", || {
        let mut client = server.client();
        client.stream.write_all(b"PING\r\n").is_ok() && client.reply().is_some_and(|reply| reply == b"+PONG\r\n")
    });
    clients[0].check("CONFIG SET maxclients 100", "+OK\r\n");
    let more: Vec<_> = (0..50).map(|_| server.client()).collect();
    for mut client in more {
        client.check("PING", "+PONG\r\n");
    }
}

#[test]
fn idle_clients_are_disconnected() {
    let server = Running::start(Config { idle_seconds: 1, ..config() });
    let mut idle = server.client();
    let mut half = server.client();
    half.send(b"*2\r\n$3\r\nGE");
    let mut busy = server.client();
    let started = Instant::now();
    while started.elapsed() < Duration::from_millis(3_500) {
        busy.check("PING", "+PONG\r\n");
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(idle.expect_end().is_empty());
    assert!(half.expect_end().is_empty());
    busy.check("PING", "+PONG\r\n");
}

#[test]
fn many_clients_count_to_the_same_number() {
    let server = Running::start(config());
    let (clients, rounds) = (64, 100);
    let address = server.address();
    let threads: Vec<_> = (0..8)
        .map(|_| {
            std::thread::spawn(move || {
                let mut clients: Vec<_> = (0..clients / 8).map(|_| Client::connect(address)).collect();
                for _ in 0..rounds {
                    for client in &mut clients {
                        client.send(&[encode(&["INCR", "n"]), encode(&["HINCRBY", "h", "n", "1"])].concat());
                    }
                    for client in &mut clients {
                        client.reply().unwrap();
                        client.reply().unwrap();
                    }
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    let mut client = server.client();
    let total = (clients * rounds).to_string();
    client.check("GET n", &format!("${}\r\n{total}\r\n", total.len()));
    client.check("HGET h n", &format!("${}\r\n{total}\r\n", total.len()));
    client.check("HLEN h", ":1\r\n");
}

#[test]
fn watched_keys_make_read_and_write_one() {
    let server = Running::start(config());
    let address = server.address();
    let rounds = 50;
    let threads: Vec<_> = (0..4)
        .map(|_| {
            std::thread::spawn(move || {
                let mut client = Client::connect(address);
                let mut done = 0;
                while done < rounds {
                    client.check("WATCH n", "+OK\r\n");
                    let reply = client.run("GET n");
                    let value: u64 = reply.lines().nth(1).map_or(0, |value| value.parse().unwrap());
                    client.send(
                        &[encode(&["MULTI"]), encode(&["SET", "n", &(value + 1).to_string()]), encode(&["EXEC"])]
                            .concat(),
                    );
                    client.reply().unwrap();
                    client.reply().unwrap();
                    done += u64::from(client.reply().unwrap() == b"*1\r\n+OK\r\n");
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    let total = (4 * rounds).to_string();
    server.client().check("GET n", &format!("${}\r\n{total}\r\n", total.len()));
}

#[test]
fn a_watched_key_that_expires_has_changed() {
    let clock = Arc::new(ManualClock::new(1_000_000));
    let server =
        Running::start_on(Arc::new(MemoryStore::new()), config(), Arc::clone(&clock) as _, Arc::new(NoEngineInfo));
    let mut client = server.client();
    client.check("SET k v PX 1000", "+OK\r\n");
    client.check("WATCH k", "+OK\r\n");
    clock.advance(1_000);
    client.check("MULTI", "+OK\r\n");
    client.check("PING", "+QUEUED\r\n");
    client.check("EXEC", "*-1\r\n");
    // Watched when it is gone already, it stays as it is.
    client.check("WATCH k", "+OK\r\n");
    client.check("MULTI", "+OK\r\n");
    client.check("PING", "+QUEUED\r\n");
    client.check("EXEC", "*1\r\n+PONG\r\n");
}

#[test]
fn expiry_is_exact_and_takes_fields_along() {
    let clock = Arc::new(ManualClock::new(1_000_000));
    let store = Arc::new(MemoryStore::new());
    let server = Running::start_on(Arc::clone(&store), config(), Arc::clone(&clock) as _, Arc::new(NoEngineInfo));
    let mut client = server.client();
    client.check("SET s v PX 500", "+OK\r\n");
    client.check("HSET h a 1 b 2", ":2\r\n");
    client.check("PEXPIRE h 500", ":1\r\n");
    client.check("HSET moved a 1", ":1\r\n");
    client.check("PEXPIRE moved 500", ":1\r\n");
    client.check("RENAME moved kept", "+OK\r\n");
    client.check("PERSIST kept", ":1\r\n");
    client.check("HSET later a 1", ":1\r\n");
    client.check("PEXPIRE later 100", ":1\r\n");
    client.check("PEXPIRE later 100000", ":1\r\n");
    client.check("RENAME later latest", "+OK\r\n");
    clock.advance(499);
    client.check("EXISTS s h", ":2\r\n");
    client.check("PTTL h", ":1\r\n");
    clock.advance(1);
    client.check("EXISTS s h", ":0\r\n");
    client.check("HGETALL h", "*0\r\n");
    client.check("HLEN h", ":0\r\n");
    eventually("expired keys are removed", || client.run("DBSIZE") == ":2\r\n");
    client.check("HGETALL kept", "*2\r\n$1\r\na\r\n$1\r\n1\r\n");
    client.check("HGET latest a", "$1\r\n1\r\n");
    let kv = Kv::open(store, Arc::new(SystemClock)).unwrap();
    let fields = kv.namespace("db0.fields", esker_kv::Kind::Bytes).unwrap();
    // One field each of two hashes, and the expiry of one.
    eventually("fields are removed", || fields.len().wait().unwrap() == 3);
}

#[test]
fn hashes_leave_nothing_behind() {
    let store = Arc::new(MemoryStore::new());
    let server = Running::start_on(Arc::clone(&store), config(), Arc::new(SystemClock), Arc::new(NoEngineInfo));
    let mut client = server.client();
    for (nth, end) in
        ["DEL h", "SET h v", "MSET h v g w", "GETSET-", "RENAME s h", "HDEL h a b", "SET h v EX 100", "SET h x PXAT 1"]
            .iter()
            .enumerate()
    {
        client.run("DEL h");
        client.run("SET s v");
        client.check("HSET h a 1 b 2", ":2\r\n");
        if nth % 2 == 0 {
            client.check("EXPIRE h 1000", ":1\r\n");
        }
        client.run(end);
    }
    client.run("DEL h");
    client.run("HSET h a 1");
    client.run("EXPIRE h 100");
    client.run("COPY h copy");
    client.run("MOVE copy 1");
    client.run("FLUSHDB");
    let kv = Kv::open(server.stop(), Arc::new(SystemClock)).unwrap();
    let len = |name: &str| kv.namespace(name, esker_kv::Kind::Bytes).unwrap().len().wait().unwrap();
    assert_eq!(len("db0.fields"), 0);
    assert_eq!(len("db1.fields"), 2);
}

/// A plain SET looks only at keys that may hold a hash: whatever made one there has to have said so.
#[test]
fn a_plain_set_finds_every_hash_in_its_way() {
    let store = Arc::new(MemoryStore::new());
    let start = |store| Running::start_on(store, config(), Arc::new(SystemClock), Arc::new(NoEngineInfo));
    let server = start(store);
    let mut client = server.client();
    client.check("SET s v", "+OK\r\n");
    for made in [
        "HSET h a 1",
        "HSETNX h a 1",
        "HINCRBY h a 1",
        "HINCRBYFLOAT h a 1.5",
        "HSET g a 1;RENAME g h",
        "HSET g a 1;RENAMENX g h",
        "HSET g a 1;COPY g h;DEL g",
        "HSET g a 1;SELECT 1;DEL h;SELECT 0;COPY g h DB 1;DEL g;SELECT 1",
        "SELECT 0;HSET h a 1;SELECT 1;DEL h;SELECT 0;MOVE h 1;SELECT 1",
        "SELECT 0;MULTI;HSET h a 1;EXEC",
        "HSET g a 1;MULTI;RENAME g h;EXEC",
    ] {
        made.split(';').for_each(|command| drop(client.run(command)));
        client.check("TYPE h", "+hash\r\n");
        client.check("SET h v", "+OK\r\n");
        client.check("GET h", "$1\r\nv\r\n");
        client.check("HGETALL h", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n");
        client.run("DEL h");
    }
    client.run("SELECT 0");
    client.check("HSET old a 1", ":1\r\n");
    client.check("HSET twice a 1", ":1\r\n");
    client.run("SELECT 1");
    client.check("HSET other a 1", ":1\r\n");
    drop(client);
    // Started again, the server has not seen which keys hold one.
    let server = start(server.stop());
    let mut client = server.client();
    for value in ["1", "2", "3"] {
        client.check(&format!("SET s {value}"), "+OK\r\n");
        client.check("GET s", &format!("$1\r\n{value}\r\n"));
    }
    // What was seen of a key in one database says nothing of that key in another.
    client.check("SET other v", "+OK\r\n");
    client.check("SELECT 1", "+OK\r\n");
    client.check("TYPE other", "+hash\r\n");
    client.check("SET other v", "+OK\r\n");
    client.check("SELECT 0", "+OK\r\n");
    // Nor does what a transaction has written, and not committed yet, of what is stored.
    client.check("MSET twice 1 twice 2", "+OK\r\n");
    client.check("RENAME old s", "+OK\r\n");
    client.check("SET s v", "+OK\r\n");
    drop(client);
    let kv = Kv::open(server.stop(), Arc::new(SystemClock)).unwrap();
    for name in ["db0.fields", "db1.fields"] {
        let fields = kv.namespace(name, esker_kv::Kind::Bytes).unwrap();
        assert_eq!(fields.len().wait().unwrap(), 0, "{name}");
    }
}

#[test]
fn real_time_expires_keys() {
    let server = Running::start(config());
    let mut client = server.client();
    client.check("SET k v PX 80", "+OK\r\n");
    client.check("GET k", "$1\r\nv\r\n");
    std::thread::sleep(Duration::from_millis(100));
    client.check("GET k", "$-1\r\n");
    eventually("it is removed", || client.run("DBSIZE") == ":0\r\n");
    eventually("it is counted", || client.run("INFO stats").contains("expired_keys:1\r\n"));
}

#[test]
fn scans_show_every_key_once_while_others_come_and_go() {
    for int_databases in [vec![], vec![0]] {
        let server = Running::start(Config { int_databases, ..config() });
        let mut client = server.client();
        for n in 0..500 {
            client.send(
                &[encode(&["SET", &format!("key:{n}"), "v"]), encode(&["SET", &(n * 7).to_string(), "v"])].concat(),
            );
        }
        for n in 0..300 {
            client.send(&encode(&["HSET", "hash", &format!("field:{n}"), "v"]));
        }
        for _ in 0..1_300 {
            client.reply().unwrap();
        }
        let mut other = server.client();
        for (command, expected) in [("SCAN", 1_001), ("HSCAN hash", 300)] {
            let (mut cursor, mut found, mut calls) = ("0".to_owned(), Vec::new(), 0);
            loop {
                let reply = client.run(&format!("{command} {cursor} COUNT 17"));
                let texts: Vec<&str> = reply.lines().filter(|line| !line.starts_with(['*', '$'])).collect();
                cursor = texts[0].to_owned();
                let step = if command == "SCAN" { 1 } else { 2 };
                found.extend(texts[1..].iter().step_by(step).map(|text| (*text).to_owned()));
                other.run(&format!("SET new:{calls} v"));
                other.run(&format!("DEL new:{}", calls - 1));
                other.run(&format!("HSET hash new:{calls} v"));
                other.run(&format!("HDEL hash new:{}", calls - 1));
                calls += 1;
                if cursor == "0" {
                    break;
                }
            }
            assert!(calls > 15, "{calls} calls of {command}");
            found.retain(|key| !key.starts_with("new:"));
            found.sort();
            let shown = found.len();
            found.dedup();
            assert_eq!((shown, found.len()), (expected, expected), "{command}");
        }
        // Any number of 53 bits is one, as any of 64 is in Redis.
        assert!(client.run("SCAN 123456789 COUNT 1").starts_with("*2\r\n"));
        client.check("SCAN 18446744073709551615", "-ERR invalid cursor\r\n");
        client.check("HSCAN hash x", "-ERR invalid cursor\r\n");
    }
}

#[test]
fn shutdown_ends_the_server_and_databases_survive_it() {
    let store = Arc::new(MemoryStore::new());
    let start = |databases: Vec<u8>| {
        let config = Config { int_databases: databases, ..config() };
        Running::start_on(Arc::clone(&store), config, Arc::new(SystemClock), Arc::new(NoEngineInfo))
    };
    let server = start(vec![0]);
    let mut client = server.client();
    for line in ["SET 7 seven", "SET seven 7", "HSET h f v", "SELECT 9", "SET nine 9"] {
        client.run(line);
    }
    client.send(&encode(&["SHUTDOWN"]));
    assert!(client.expect_end().is_empty());
    server.join();

    let server = start(vec![0]);
    let mut client = server.client();
    client.check("MGET 7 seven", "*2\r\n$5\r\nseven\r\n$1\r\n7\r\n");
    client.check("HGET h f", "$1\r\nv\r\n");
    // A new hash does not find fields of an old one.
    client.check("HSET h2 g w", ":1\r\n");
    client.check("HGETALL h2", "*2\r\n$1\r\ng\r\n$1\r\nw\r\n");
    client.check("SET h string", "+OK\r\n");
    client.check("SELECT 9", "+OK\r\n");
    client.check("GET nine", "$1\r\n9\r\n");
    server.stop();

    let kv = Kv::open(store.clone(), Arc::new(SystemClock)).unwrap();
    let refused = Server::bind(config(), kv, Arc::new(NoEngineInfo)).err().unwrap().to_string();
    assert!(refused.contains("database 0 holds int keys"), "{refused}");
}

#[test]
fn passwords_are_asked_for_and_changed() {
    let server = Running::start(Config { password: Some("secret".into()), ..config() });
    let mut client = server.client();
    client.check("GET k", "-NOAUTH Authentication required.\r\n");
    client.check("AUTH nonsense", "-WRONGPASS invalid username-password pair or user is disabled.\r\n");
    client.check("AUTH secret", "+OK\r\n");
    client.check("GET k", "$-1\r\n");
    client.check("CONFIG SET requirepass other", "+OK\r\n");
    let mut second = server.client();
    second.check("AUTH secret", "-WRONGPASS invalid username-password pair or user is disabled.\r\n");
    second.check("AUTH default other", "+OK\r\n");
}

#[test]
fn open_addresses_need_a_password() {
    let kv = Kv::open(Arc::new(MemoryStore::new()), Arc::new(SystemClock)).unwrap();
    let open = Config { listen: vec![SocketAddr::from(([0, 0, 0, 0], 0))], ..config() };
    assert!(matches!(Server::bind(open, kv, Arc::new(NoEngineInfo)), Err(Error::NoPassword(_))));
    let server = Running::start(Config {
        listen: vec![SocketAddr::from(([0, 0, 0, 0], 0))],
        password: Some("x".into()),
        ..config()
    });
    let mut client = Client::connect(SocketAddr::from(([127, 0, 0, 1], server.address().port())));
    client.check("AUTH x", "+OK\r\n");
    assert!(
        String::from_utf8(client.call(&["CONFIG", "SET", "requirepass", ""])).unwrap().contains("needs a password")
    );
}

#[test]
fn tls_clients_are_served_and_others_are_not() {
    let folder = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
    let files = TlsFiles {
        certificate: folder.path().join("cert.pem"),
        key: folder.path().join("key.pem"),
        client_authorities: None,
    };
    std::fs::write(&files.certificate, made.cert.pem()).unwrap();
    std::fs::write(&files.key, made.signing_key.serialize_pem()).unwrap();
    let server = Running::start(Config {
        listen: Vec::new(),
        tls_listen: vec![SocketAddr::from(([127, 0, 0, 1], 0))],
        tls: Some(files.clone()),
        ..config()
    });
    let Address::Tls(address) = server.addresses[0] else { panic!("{:?}", server.addresses) };

    let mut roots = rustls::RootCertStore::empty();
    roots.add(made.cert.der().clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let client_config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = rustls::pki_types::ServerName::try_from("localhost").unwrap();
    let connect = || {
        let tls = rustls::ClientConnection::new(Arc::new(client_config.clone()), name.clone()).unwrap();
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Client::over(rustls::StreamOwned::new(tls, stream))
    };
    let mut client = connect();
    client.check("PING", "+PONG\r\n");
    let value = "v".repeat(3 << 20);
    assert_eq!(client.call(&["SET", "big", &value]), b"+OK\r\n");
    assert_eq!(client.call(&["GET", "big"]).len(), value.len() + 12);
    let pipeline = encode(&["INCR", "n"]).repeat(2_000);
    client.send(&pipeline);
    for n in 1..=2_000 {
        assert_eq!(client.reply().unwrap(), format!(":{n}\r\n").as_bytes());
    }

    let mut plain = TcpStream::connect(address).unwrap();
    plain.set_read_timeout(Some(PATIENCE)).unwrap();
    plain.write_all(b"PING\r\nPING\r\nPING\r\n").unwrap();
    let mut answer = Vec::new();
    // An alert or a reset; no reply in any case.
    let _ = plain.read_to_end(&mut answer);
    assert!(!answer.windows(4).any(|part| part == b"PONG"));
    connect().check("DBSIZE", ":2\r\n");

    let missing = TlsFiles { key: folder.path().join("nothing.pem"), ..files };
    let kv = Kv::open(Arc::new(MemoryStore::new()), Arc::new(SystemClock)).unwrap();
    let bad = Config { tls_listen: vec![SocketAddr::from(([127, 0, 0, 1], 0))], tls: Some(missing), ..config() };
    assert!(matches!(Server::bind(bad, kv, Arc::new(NoEngineInfo)), Err(Error::Tls { .. })));
}

#[test]
fn unix_sockets_are_served_and_cleaned_up() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("esker.sock");
    for _ in 0..2 {
        let server = Running::start(Config { unix_socket: Some(path.clone()), ..config() });
        let stream = UnixStream::connect(&path).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Client::over(stream).check("PING", "+PONG\r\n");
        server.stop();
        assert!(!path.exists());
        // One that was left behind by a crash is replaced.
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    }
}

#[test]
fn replies_reach_a_client_that_closed_its_side() {
    let server = Running::start(config());
    let mut client = server.client();
    client.send(&[encode(&["SET", "k", "v"]), encode(&["GET", "k"])].concat());
    client.stream.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(client.expect_end(), b"+OK\r\n$1\r\nv\r\n");
}

#[test]
fn killed_clients_are_gone() {
    let server = Running::start(config());
    let (mut one, mut two) = (server.client(), server.client());
    let id = two.run("CLIENT ID").trim_start_matches(':').trim().to_owned();
    one.check(&format!("CLIENT KILL ID {id}"), ":1\r\n");
    assert!(two.expect_end().is_empty());
    assert!(!one.run("CLIENT LIST").contains(&format!("id={id} ")));
    one.run("CLIENT SETNAME me");
    assert!(one.run("CLIENT INFO").contains("name=me"));
    assert_eq!(one.run("CLIENT SETINFO lib-name redis-py"), "+OK\r\n");
}

struct Engine(parking_lot::Mutex<String>);

impl EngineInfo for Engine {
    fn info(&self) -> Vec<InfoLine> {
        vec![InfoLine { section: "Engine".into(), key: "segments".into(), value: "12".into() }]
    }
    fn settings(&self) -> Vec<(String, String)> {
        vec![("commit-policy".into(), self.0.lock().clone())]
    }
    fn set(&self, name: &str, value: &str) -> Result<bool, String> {
        match (name, value) {
            ("commit-policy", "bad") => Err("no such policy".into()),
            ("commit-policy", _) => {
                *self.0.lock() = value.into();
                Ok(true)
            }
            _ => Ok(false),
        }
    }
}

#[test]
fn the_engine_is_seen_and_set_through_info_and_config() {
    let engine = Arc::new(Engine(parking_lot::Mutex::new("batch".into())));
    let server = Running::start_on(Arc::new(MemoryStore::new()), config(), Arc::new(SystemClock), engine);
    let mut client = server.client();
    assert!(client.run("INFO engine").contains("# Engine\r\nsegments:12\r\n"));
    client.check("CONFIG SET commit-policy group", "+OK\r\n");
    client.check("CONFIG GET commit-*", "*2\r\n$13\r\ncommit-policy\r\n$5\r\ngroup\r\n");
    assert!(client.run("CONFIG SET commit-policy bad").contains("no such policy"));
    for mode in ["everysec", "no", "always"] {
        client.check(&format!("CONFIG SET appendfsync {mode}"), "+OK\r\n");
        client.check("CONFIG GET appendfsync", &format!("*2\r\n$11\r\nappendfsync\r\n${}\r\n{mode}\r\n", mode.len()));
    }
}

#[test]
fn racing_strings_and_hashes_leave_no_fields_behind() {
    let seed = std::env::var("ESKER_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(7);
    println!("ESKER_SEED={seed}");
    for round in 0..4 {
        let server = Running::start(config());
        let address = server.address();
        let threads: Vec<_> = (0..4)
            .map(|nth| {
                std::thread::spawn(move || {
                    let mut random = fastrand::Rng::with_seed(seed + round * 10 + nth);
                    let mut client = Client::connect(address);
                    for _ in 0..40 {
                        let mut pipeline = Vec::new();
                        for _ in 0..16 {
                            let mut key = || format!("k{}", random.u8(..4));
                            let (a, b) = (key(), key());
                            let command: &[&str] = match random.u8(..9) {
                                8 => &["COPY", &a, &b, "REPLACE"],
                                0 | 1 => &["SET", &a, "v"],
                                2 | 3 => &["HSET", &a, "f", "v", "g", "w"],
                                4 => &["DEL", &a],
                                5 => &["RENAME", &a, &b],
                                6 => &["PEXPIRE", &a, "1"],
                                _ => &["HDEL", &a, "f"],
                            };
                            pipeline.extend(encode(command));
                        }
                        client.send(&pipeline);
                        for _ in 0..16 {
                            client.reply().unwrap();
                        }
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        let mut client = server.client();
        // Keys that expire now go by themselves, with their fields, even under names that are taken again.
        client.run("DEL k0 k1 k2 k3");
        let kv = Kv::open(Arc::clone(&server.store) as _, Arc::new(SystemClock)).unwrap();
        let fields = kv.namespace("db0.fields", esker_kv::Kind::Bytes).unwrap();
        eventually("no field is left", || fields.len().wait().unwrap() == 0);
    }
}

/// Failure: connections that never gave the password took the places of clients. Fix: they have places of their own,
/// make room for those that come, and have a deadline.
#[test]
fn connections_without_the_password_keep_no_client_out() {
    let password = Some("secret".to_string());
    let limits = Config { password, clients_max: 2, strangers_max: 4, stranger_seconds: 2, ..config() };
    let server = Running::start(limits);
    let enter = || {
        let mut client = server.client();
        let answer = client.run("AUTH secret");
        (client, answer)
    };
    let (mut first, answer) = enter();
    assert_eq!(answer, "+OK\r\n");
    let silent: Vec<Client<TcpStream>> = (0..30).map(|_| server.client()).collect();
    let (mut second, answer) = enter();
    assert_eq!(answer, "+OK\r\n");
    assert!(second.run("INFO clients").contains("connected_clients:"));
    // All but as many as may stay made room; those that stay have two seconds, whatever they say.
    let mut silent = silent.into_iter();
    silent.by_ref().take(20).for_each(|mut client| assert_eq!(client.expect_end(), b""));
    let mut talker = server.client();
    let began = Instant::now();
    while talker.stream.write_all(b"PING\r\n").is_ok() && began.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(began.elapsed() < PATIENCE, "a stranger may stay for ever");
    silent.for_each(|mut client| assert_eq!(client.expect_end(), b""));
    // Clients that gave it may be silent, and are the ones that are counted.
    assert_eq!((first.run("PING"), second.run("PING")), ("+PONG\r\n".into(), "+PONG\r\n".into()));
    let (mut third, answer) = enter();
    assert_eq!(answer, "-ERR max number of clients reached\r\n");
    assert_eq!(third.expect_end(), b"");
    drop(first);
    eventually("a place is free again", || enter().1 == "+OK\r\n");
}

/// Failure: a cursor was invalid after a restart, and after 8,192 others. Fix: it holds where its key begins.
#[test]
fn a_scan_goes_on_after_a_restart_and_leaves_nothing_out() {
    let store = Arc::new(MemoryStore::new());
    for databases in [vec![], vec![0]] {
        let start = || {
            let config = Config { int_databases: databases.clone(), ..config() };
            Running::start_on(Arc::clone(&store), config, Arc::new(SystemClock), Arc::new(NoEngineInfo))
        };
        let server = start();
        let mut client = server.client();
        client.check("FLUSHALL", "+OK\r\n");
        let mut wanted: Vec<String> =
            (0..60).map(|n| format!("{}:with a long name {n}", ["a", "b", "c"][n % 3])).collect();
        wanted.extend((0..20).map(|n| format!("s{n}")));
        wanted.extend((0..20).map(|n| (n * 7).to_string()));
        wanted.extend((0..20u64).map(|n| (u64::MAX / 20 * n).to_string()));
        wanted.sort();
        wanted.dedup();
        for key in &wanted {
            assert_eq!(client.call(&["SET", key, "v"]), b"+OK\r\n");
            client.call(&["HSET", "z:a hash", key, "v"]);
        }
        drop((client, server));
        for (command, more) in [("SCAN", 1), ("HSCAN", 0)] {
            let (mut cursor, mut found, mut calls) = ("0".to_owned(), Vec::new(), 0);
            while calls == 0 || cursor != "0" {
                // A server for every few calls: a call behind a restart may show some again, but the next goes on.
                let server = start();
                let mut client = server.client();
                for _ in 0..4 {
                    let reply = match more {
                        1 => client.call(&["SCAN", &cursor, "COUNT", "17"]),
                        _ => client.call(&["HSCAN", "z:a hash", &cursor, "COUNT", "17"]),
                    };
                    let reply = String::from_utf8(reply).unwrap();
                    let texts: Vec<&str> = reply.lines().filter(|line| !line.starts_with(['*', '$'])).collect();
                    cursor = texts[0].to_owned();
                    found.extend(texts[1..].iter().step_by(2 - more).map(|text| (*text).to_owned()));
                    calls += 1;
                    assert!(calls < 500, "{command} does not end");
                    if cursor == "0" {
                        break;
                    }
                }
            }
            found.sort();
            found.dedup();
            found.retain(|key| key != "z:a hash");
            assert_eq!(found, wanted, "{command}");
        }
    }
}

/// What a test says of the engine.
#[derive(Default)]
struct Said(parking_lot::Mutex<Health>);

impl EngineInfo for Said {
    fn health(&self) -> Health {
        self.0.lock().clone()
    }

    fn info(&self) -> Vec<InfoLine> {
        Vec::new()
    }

    fn settings(&self) -> Vec<(String, String)> {
        Vec::new()
    }

    fn set(&self, _: &str, _: &str) -> Result<bool, String> {
        Ok(false)
    }
}

/// Failure: a server whose store had stopped after a failed sync said `ok` in INFO, took BGSAVE, and told a later
/// LASTSAVE. Cause: those were literals. Fix: the engine is asked.
#[test]
fn a_stopped_store_is_told_and_not_saved() {
    let said = Arc::new(Said::default());
    let store = Arc::new(MemoryStore::new());
    let clock = Arc::new(ManualClock::new(1_700_000_000_000));
    let server = Running::start_on(store, config(), Arc::clone(&clock) as _, Arc::clone(&said) as _);
    let mut client = server.client();
    let has = |client: &mut Client<TcpStream>, lines: &[&str]| {
        let info = client.run("INFO persistence");
        assert!(lines.iter().all(|line| info.lines().any(|have| have == *line)), "{lines:?} in {info}");
    };
    has(
        &mut client,
        &["engine_state:running", "engine_cause:", "aof_last_write_status:ok", "rdb_last_bgsave_status:ok"],
    );
    clock.set(1_700_000_100_000);
    client.check("BGSAVE", "+Background saving started\r\n");
    client.check("LASTSAVE", ":1700000100\r\n");
    *said.0.lock() = Health::Full;
    has(&mut client, &["engine_state:full", "aof_last_write_status:ok"]);
    *said.0.lock() = Health::Stopped("the sync failed:\nno medium".into());
    clock.set(1_700_000_200_000);
    for command in ["BGSAVE", "SAVE", "BGREWRITEAOF"] {
        let answer = client.run(command);
        assert!(answer.starts_with("-MISCONF") && answer.contains("the sync failed"), "{command}: {answer}");
    }
    client.check("LASTSAVE", ":1700000100\r\n");
    has(
        &mut client,
        &[
            "engine_state:stopped",
            "engine_cause:the sync failed: no medium",
            "aof_last_write_status:err",
            "rdb_last_bgsave_status:err",
        ],
    );
    client.check("PING", "+PONG\r\n");
}
