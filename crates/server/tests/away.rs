//! A store on the other side of a network: commands that wait for it hold up no loop, keep their order, and end well
//! whatever becomes of their clients.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "support/afar.rs"]
mod afar;
mod support;

use std::io::{ErrorKind, Read};
use std::net::TcpStream;
use std::sync::Arc;

use afar::Afar;
use esker_kv::SystemClock;
use esker_memory::MemoryStore;
use esker_server::resp::{Config, NoEngineInfo};
use esker_store::contract::PerObject;
use esker_store::{Forward, ObjectStore};
use support::{Client, Running, config, encode, eventually};

/// The store, of which nothing hangs any more when a test has ended.
struct Ends(Arc<Afar>);

impl std::ops::Deref for Ends {
    type Target = Afar;

    fn deref(&self) -> &Afar {
        &self.0
    }
}

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.let_go();
    }
}

fn start(threads: usize) -> (Running, Ends) {
    let store = Arc::new(MemoryStore::new());
    let seen = Afar::new(Arc::clone(&store) as _);
    let config = Config { threads: 1, afar_threads: threads, ..config() };
    let running =
        Running::start_over(store, Arc::clone(&seen) as _, config, Arc::new(SystemClock), Arc::new(NoEngineInfo));
    (running, Ends(seen))
}

/// Over keys in partitions, as on Ceph.
fn start_parted(threads: usize) -> (Running, Ends) {
    let store = Arc::new(MemoryStore::new());
    let seen = Afar::new(Arc::new(PerObject(Beside(Arc::clone(&store)))));
    let config = Config { threads: 1, afar_threads: threads, ..config() };
    let over = Arc::clone(&seen) as _;
    let running = Running::start_over(store, over, config, Arc::new(SystemClock), Arc::new(NoEngineInfo));
    (running, Ends(seen))
}

struct Beside(Arc<MemoryStore>);

impl Forward for Beside {
    fn behind(&self) -> &dyn ObjectStore {
        &*self.0
    }
}

fn begin(client: &mut Client<TcpStream>, line: &str) {
    client.send(&encode(&line.split(' ').collect::<Vec<_>>()));
}

fn answer(client: &mut Client<TcpStream>) -> String {
    String::from_utf8(client.reply().unwrap()).unwrap()
}

fn info(client: &mut Client<TcpStream>, key: &str) -> String {
    let info = client.run("INFO all");
    let line = info.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("no {key} in {info}")).to_owned()
}

#[test]
fn who_waits_for_a_write_holds_up_no_other_and_is_answered_in_order() {
    let (server, store) = start(2);
    let (mut waits, mut other) = (server.client(), server.client());
    store.hold(b"slow");
    for line in ["SET a slow", "INCR n", "GET a", "SET a x", "GET a"] {
        begin(&mut waits, line);
    }
    eventually("the write hangs", || store.hanging() == 1);
    other.check("PING", "+PONG\r\n");
    other.check("GET a", "$-1\r\n");
    other.check("SET b 1", "+OK\r\n");
    other.check("HSET h f 1", ":1\r\n");
    other.check("MULTI", "+OK\r\n");
    other.check("INCR b", "+QUEUED\r\n");
    other.check("EXEC", "*1\r\n:2\r\n");
    // Nothing behind the write was run.
    other.check("GET n", "$-1\r\n");
    store.let_go();
    for expected in ["+OK\r\n", ":1\r\n", "$4\r\nslow\r\n", "+OK\r\n", "$1\r\nx\r\n"] {
        assert_eq!(answer(&mut waits), expected);
    }
    let counted = |name: &str| info(&mut server.client(), &format!("cmdstat_{name}"));
    assert!(counted("set").starts_with("calls=3,"), "{}", counted("set"));
    assert!(counted("incr").starts_with("calls=2,"), "{}", counted("incr"));
}

#[test]
fn commands_of_a_busy_key_hold_one_thread() {
    let (server, store) = start(2);
    store.hold(b"slow");
    let mut waiting: Vec<_> = (0..5).map(|_| server.client()).collect();
    for client in &mut waiting {
        begin(client, "SET hot slow");
    }
    for line in ["MULTI", "INCR hot", "EXEC"] {
        begin(&mut waiting[4], line);
    }
    eventually("the first hangs", || store.hanging() == 1);
    let mut other = server.client();
    for number in 0..20 {
        other.check(&format!("SET cold{number} {number}"), "+OK\r\n");
    }
    assert_eq!(store.hanging(), 1);
    store.let_go();
    for client in &mut waiting {
        assert_eq!(answer(client), "+OK\r\n");
    }
    for expected in ["+OK\r\n", "+QUEUED\r\n", "*1\r\n-ERR value is not an integer or out of range\r\n"] {
        assert_eq!(answer(&mut waiting[4]), expected);
    }
}

#[test]
fn the_commands_of_many_clients_are_each_done_once() {
    let (server, _store) = start(8);
    std::thread::scope(|scope| {
        for number in 0..16 {
            let mut client = server.client();
            scope.spawn(move || {
                for turn in 0..50 {
                    client.send(&[encode(&["INCR", "all"]), encode(&["HINCRBY", "h", "f", "1"])].concat());
                    assert!(answer(&mut client).starts_with(':'));
                    assert!(answer(&mut client).starts_with(':'));
                    client.check(&format!("SET own{number} {turn}"), "+OK\r\n");
                    client.check(&format!("GET own{number}"), &format!("${}\r\n{turn}\r\n", turn.to_string().len()));
                }
            });
        }
    });
    let mut client = server.client();
    client.check("GET all", "$3\r\n800\r\n");
    client.check("HGET h f", "$3\r\n800\r\n");
}

#[test]
fn a_client_that_leaves_while_its_command_is_away_leaves_nothing_behind() {
    let (server, store) = start(1);
    store.hold(b"slow");
    let mut first = server.client();
    begin(&mut first, "SET a slow");
    eventually("the write hangs", || store.hanging() == 1);
    // Two whose commands wait: one is killed, one leaves.
    let (mut other, mut killed, mut leaves) = (server.client(), server.client(), server.client());
    begin(&mut leaves, "WATCH w");
    drop(leaves);
    killed.check("CLIENT SETNAME killed", "+OK\r\n");
    begin(&mut killed, "SET k 1");
    let line = |list: &str| {
        list.lines().find(|line| line.contains("name=killed") && line.contains("cmd=set")).map(str::to_owned)
    };
    eventually("it waits", || line(&other.run("CLIENT LIST")).is_some());
    let line = line(&other.run("CLIENT LIST")).unwrap();
    let id = line.split_once("id=").unwrap().1.split(' ').next().unwrap();
    other.check(&format!("CLIENT KILL ID {id}"), ":1\r\n");
    assert!(killed.reply().is_none());
    drop(first);
    store.let_go();
    eventually("the write is done", || other.run("GET a") == "$4\r\nslow\r\n");
    // The command of a connection that was gone before its turn is not run.
    other.check("SET b 1", "+OK\r\n");
    other.check("GET k", "$-1\r\n");
    eventually("nothing is watched", || info(&mut server.client(), "total_watched_keys") == "0");
    eventually("they are gone", || info(&mut server.client(), "connected_clients") == "2");
}

#[test]
fn a_client_that_watched_before_it_left_watches_no_more() {
    let (server, store) = start(1);
    let mut client = server.client();
    client.check("WATCH w", "+OK\r\n");
    assert_eq!(info(&mut server.client(), "total_watched_keys"), "1");
    store.hold(b"slow");
    begin(&mut client, "SET a slow");
    eventually("the write hangs", || store.hanging() == 1);
    server.client().run("CLIENT KILL SKIPME yes");
    assert!(client.reply().is_none());
    // Its command is being run still.
    assert_eq!((store.hanging(), info(&mut server.client(), "total_watched_keys").as_str()), (1, "1"));
    store.let_go();
    eventually("nothing is watched", || info(&mut server.client(), "total_watched_keys") == "0");
}

#[test]
fn a_watched_key_that_changes_while_exec_is_away_is_seen() {
    let (server, store) = start(2);
    let (mut client, mut other) = (server.client(), server.client());
    client.check("WATCH w", "+OK\r\n");
    store.hold(b"slow");
    begin(&mut other, "SET w slow");
    eventually("the write hangs", || store.hanging() == 1);
    for line in ["MULTI", "SET seen 1", "EXEC"] {
        begin(&mut client, line);
    }
    assert_eq!(answer(&mut client), "+OK\r\n");
    assert_eq!(answer(&mut client), "+QUEUED\r\n");
    store.let_go();
    assert_eq!(answer(&mut client), "*-1\r\n");
    assert_eq!(answer(&mut other), "+OK\r\n");
    other.check("GET seen", "$-1\r\n");
}

#[test]
fn a_user_that_is_closed_while_away_is_answered_and_goes() {
    let (server, store) = start(1);
    let mut admin = server.client();
    admin.check("ACL SETUSER bob on >pass ~* +@all", "+OK\r\n");
    let mut bob = server.client();
    bob.check("AUTH bob pass", "+OK\r\n");
    store.hold(b"slow");
    begin(&mut bob, "SET a slow");
    begin(&mut bob, "SET after 1");
    eventually("the write hangs", || store.hanging() == 1);
    admin.check("ACL SETUSER bob off", "+OK\r\n");
    assert!(admin.run("CLIENT LIST").contains("user=bob"));
    store.let_go();
    assert_eq!(answer(&mut bob), "+OK\r\n");
    assert!(bob.reply().is_none());
    admin.check("GET after", "$-1\r\n");
}

#[test]
fn a_server_that_stops_answers_what_is_away() {
    let (server, store) = start(1);
    let (mut runs, mut waits) = (server.client(), server.client());
    store.hold(b"slow");
    begin(&mut runs, "SET a slow");
    eventually("the write hangs", || store.hanging() == 1);
    begin(&mut waits, "SET b 1");
    server.handle.shutdown();
    std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(300));
        store.let_go();
    });
    assert_eq!(answer(&mut runs), "+OK\r\n");
    assert!(runs.reply().is_none());
    drop(waits.reply());
    drop(server.join());
}

#[test]
fn reads_of_several_partitions_hold_up_no_loop() {
    let (server, store) = start_parted(4);
    let (mut waits, mut reads, mut other) = (server.client(), server.client(), server.client());
    store.hold(b"slow");
    begin(&mut waits, "SET a slow");
    eventually("the write hangs", || store.hanging() == 1);
    begin(&mut reads, "MGET a b c");
    other.check("PING", "+PONG\r\n");
    other.check("GET b", "$-1\r\n");
    other.check("SELECT 0", "+OK\r\n");
    assert!(other.run("INFO all").contains("# Keyspace"));
    store.let_go();
    assert_eq!(answer(&mut waits), "+OK\r\n");
    assert!(answer(&mut reads).starts_with("*3\r\n"));
}

#[test]
fn who_waits_for_a_thread_holds_up_none_that_needs_none() {
    let (server, store) = start(1);
    let (mut first, mut second, mut other) = (server.client(), server.client(), server.client());
    store.hold(b"slow");
    begin(&mut first, "SET a slow");
    eventually("the write hangs", || store.hanging() == 1);
    begin(&mut second, "SET b 1");
    for line in ["PING", "GET b", "SELECT 0", "INFO", "CLIENT LIST", "ACL WHOAMI", "TIME", "CONFIG GET maxclients"] {
        assert!(!other.run(line).starts_with('-'), "{line}");
    }
    store.let_go();
    assert_eq!((answer(&mut first), answer(&mut second)), ("+OK\r\n".into(), "+OK\r\n".into()));
}

#[test]
fn a_user_that_is_closed_while_in_line_writes_no_more() {
    let (server, store) = start(1);
    let (mut admin, mut first, mut bob) = (server.client(), server.client(), server.client());
    admin.check("ACL SETUSER bob on >pass ~* +@all", "+OK\r\n");
    bob.check("AUTH bob pass", "+OK\r\n");
    store.hold(b"slow");
    begin(&mut first, "SET a slow");
    eventually("the write hangs", || store.hanging() == 1);
    begin(&mut bob, "SET k 1");
    eventually("it waits", || {
        admin.run("CLIENT LIST").lines().any(|line| line.contains("user=bob") && line.contains("cmd=set"))
    });
    admin.check("ACL SETUSER bob off", "+OK\r\n");
    store.let_go();
    assert!(bob.reply().is_none());
    assert_eq!(answer(&mut first), "+OK\r\n");
    admin.check("GET k", "$-1\r\n");
}

/// The memory of the process tells.
#[test]
fn what_closed_connections_had_in_line_is_freed() {
    let (server, store) = start(1);
    let mut first = server.client();
    store.hold(b"slow");
    begin(&mut first, "SET a slow");
    eventually("the write hangs", || store.hanging() == 1);
    let resident = || {
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
        statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4_096
    };
    let value = "x".repeat(8 << 20);
    let before = resident();
    for _ in 0..40 {
        let mut client = server.client();
        client.check("CLIENT SETNAME big", "+OK\r\n");
        begin(&mut client, &format!("SET a {value}"));
        let waits = |line: &str| line.contains("name=big") && line.contains("cmd=set");
        eventually("it waits", || server.client().run("CLIENT LIST").lines().any(waits));
        server.client().run("CLIENT KILL SKIPME yes");
        // The first is closed as well; its write goes on.
        let end = client.stream.read(&mut [0; 16]);
        assert!(
            end.as_ref().is_ok_and(|len| *len == 0)
                || end.is_err_and(|error| error.kind() == ErrorKind::ConnectionReset)
        );
    }
    assert!(resident() < before + (160 << 20), "{} MiB more are held", (resident() - before) >> 20);
    store.let_go();
}

#[test]
fn a_stop_without_saving_waits_for_no_store() {
    let (server, store) = start(1);
    let mut first = server.client();
    store.hold(b"slow");
    begin(&mut first, "SET a slow");
    eventually("the write hangs", || store.hanging() == 1);
    let mut other = server.client();
    begin(&mut other, "SHUTDOWN NOSAVE");
    eventually("it stops", || server.handle.is_stopping());
    store.let_go();
    assert_eq!(answer(&mut first), "+OK\r\n");
    drop(server.join());
}
