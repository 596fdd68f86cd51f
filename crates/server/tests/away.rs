//! A store on the other side of a network: commands that wait for it hold up no loop, keep their order, and end well
//! whatever becomes of their clients.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "support/afar.rs"]
mod afar;
mod support;

use std::net::TcpStream;
use std::sync::Arc;

use afar::Afar;
use esker_kv::SystemClock;
use esker_memory::MemoryStore;
use esker_server::resp::{Config, NoEngineInfo};
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

fn start(threads: usize, reads_block: bool) -> (Running, Ends) {
    let store = Arc::new(MemoryStore::new());
    let seen = Afar::new(Arc::clone(&store), reads_block);
    let config = Config { threads: 1, afar_threads: threads, ..config() };
    let running =
        Running::start_over(store, Arc::clone(&seen) as _, config, Arc::new(SystemClock), Arc::new(NoEngineInfo));
    (running, Ends(seen))
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
    let (server, store) = start(2, false);
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
    let (server, store) = start(2, false);
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
    let (server, _store) = start(8, false);
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
fn where_reads_are_waited_for_too_they_hold_up_no_loop() {
    let (server, store) = start(1, true);
    let mut waits = server.client();
    waits.check("SET a 1", "+OK\r\n");
    store.hold_reads();
    begin(&mut waits, "GET a");
    eventually("the read hangs", || store.hanging() == 1);
    server.client().check("PING", "+PONG\r\n");
    store.let_go();
    assert_eq!(answer(&mut waits), "$1\r\n1\r\n");
}

#[test]
fn a_client_that_leaves_while_its_command_is_away_leaves_nothing_behind() {
    let (server, store) = start(1, false);
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
    let (server, store) = start(1, false);
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
    let (server, store) = start(2, false);
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
    let (server, store) = start(1, false);
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
    let (server, store) = start(1, false);
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
