//! Several servers that hold the same, on a real ZooKeeper, while their operator changes who they are.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod chains;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use chains::zookeeper::ZooKeeper;
use chains::{
    Client, Ends, LEASE, PATIENCE, PLANNED_MAX, Roaming, Servers, Writer, cluster, command, configure, done, json, soon,
};
use serde_json::Value;
use tempfile::TempDir;

#[test]
fn nothing_that_was_acknowledged_is_lost_while_the_operator_changes_the_chain() {
    let mut servers = Servers::new(4);
    servers.done(&["init", "--servers", "1,2,3"]);
    servers.serve(&[1, 2, 3]);
    let writer = Writer::start(servers.addresses());
    let planned = |servers: &Servers, arguments: &[&str], head: u64, serving: &[u64]| {
        writer.gap();
        servers.done(arguments);
        let gap = writer.gap();
        println!("{arguments:?}: {} ms without a write", gap.as_millis());
        assert!(gap < PLANNED_MAX, "{arguments:?}: {gap:?}");
        servers.serve(serving);
        assert_eq!(servers.head(), head, "{arguments:?}");
        servers.have_all(&writer, arguments[0]);
    };
    planned(&servers, &["promote", "2"], 2, &[1, 2, 3]);
    // The last of the chain: the one before it has to leave as well.
    let last = servers.status()["servers"].as_array().unwrap()[2]["server"].to_string();
    planned(&servers, &["promote", &last], last.parse().unwrap(), &[1, 2, 3]);
    planned(&servers, &["promote", "2"], 2, &[1, 2, 3]);
    planned(&servers, &["promote", "1"], 1, &[1, 2, 3]);
    planned(&servers, &["add", "4"], 1, &[1, 2, 3, 4]);
    planned(&servers, &["promote", "4"], 4, &[1, 2, 3, 4]);
    planned(&servers, &["promote", "1"], 1, &[1, 2, 3, 4]);
    // Of the head, and of another; the head after it is the next.
    planned(&servers, &["remove", "4"], 1, &[1, 2, 3]);
    servers.done(&["remove", "1"]);
    servers.serve(&[2, 3]);
    servers.have_all(&writer, "remove of the head");
    let head = servers.head();
    planned(&servers, &["move", "2", "1"], if head == 2 { 3 } else { head }, &[1, 3]);
    planned(&servers, &["add", "2"], 3, &[1, 2, 3]);
    // One that is drained stays away, as another process as well.
    planned(&servers, &["drain", "3"], servers.status()["servers"][1]["server"].as_u64().unwrap(), &[1, 2]);
    servers.kill(3);
    servers.start(3);
    soon("server 3 has registered anew", || {
        let status = servers.status();
        let rows = status["servers"].as_array().unwrap();
        rows.iter().any(|row| row["server"] == 3 && row["place"] == "offline" && row["lease"] == "held")
    });
    std::thread::sleep(LEASE / 2);
    servers.serve(&[1, 2]);
    // It is not waited for.
    assert!(servers.done(&["status", "--wait", "30s"]).contains("offline"));
    let head = servers.head();
    planned(&servers, &["undrain", "3"], head, &[1, 2, 3]);
    let status = servers.status();
    assert_eq!(status["asked"], serde_json::json!({"remove": [], "drain": [], "promote": null}), "{status:#}");

    // The head is killed: others go on once its lease has run out.
    let killed = u32::try_from(head).unwrap();
    writer.gap();
    servers.kill(killed);
    soon("another heads the chain", || servers.status()["head"].as_u64().is_some_and(|now| now != head));
    println!("killed: {} ms without a write", writer.gap().as_millis());
    servers.have_all(&writer, "the end of a head");
    servers.start(killed);
    servers.serve(&[1, 2, 3]);
    servers.have_all(&writer, "its return");
    planned(&servers, &["promote", &head.to_string()], head, &[1, 2, 3]);
    // One that is killed and there again before its lease has run out.
    let head = u32::try_from(servers.head()).unwrap();
    let before = servers.since(head);
    servers.kill(head);
    servers.start(head);
    // It does not say so of the start that is gone, which the table still has for a while.
    servers.done(&["status", "--wait", "60s"]);
    assert_ne!(servers.since(head), before);
    servers.have_all(&writer, "a short absence");
    soon("the table knows of the new start", || servers.since(head) != before);
    servers.serve(&[1, 2, 3]);
    servers.have_all(&writer, "the return from it");

    let status = servers.status();
    for row in status["servers"].as_array().unwrap() {
        for figure in ["applied", "committed", "lease_left_ms", "renewed_ms_ago", "start"] {
            assert!(row[figure].is_u64(), "{figure}: {row:#}");
        }
        assert_eq!(row["place"] == "serving", row["server"] != 4, "{row:#}");
    }
    let chains = json(servers.folder.path(), &["chains"]);
    assert_eq!((&chains[0]["chain"], &chains[0]["serving"]), (&"main".into(), &3.into()));
    println!("{} writes were acknowledged", writer.acknowledged().len());
}

#[test]
fn replicas_show_what_is_acknowledged_and_nothing_older_or_in_parts() {
    let mut servers = Servers::new(3);
    servers.done(&["init", "--servers", "1,2,3"]);
    servers.serve(&[1, 2, 3]);
    let replicas = |servers: &Servers| {
        let head = servers.head();
        let others = servers.addresses.iter().filter(|(server, _)| u64::from(**server) != head);
        others.map(|(_, (clients, _))| *clients).collect::<Vec<_>>()
    };
    let head = Roaming::new(servers.addresses());
    let (writer, of_two) = (Mutex::new(head), Mutex::new(Roaming::new(servers.addresses())));
    let write = |words: &[&str]| writer.lock().unwrap().ask(words, Instant::now() + PATIENCE).unwrap();
    assert_eq!(write(&["SET", "counted", "0"]), "+OK");
    assert_eq!(write(&["SET", "this", "1"]), "+OK");
    for round in 0..2 {
        for address in replicas(&servers) {
            // One that has just begun to serve may still send readers on.
            soon("it answers readers", || !Client::of_replica(address).value(&["GET", "counted"]).starts_with('-'));
        }
        let (over, torn) = (AtomicBool::new(false), AtomicBool::new(false));
        std::thread::scope(|scope| {
            // One of the two is there always.
            scope.spawn(|| {
                let mut two = of_two.lock().unwrap();
                while !over.load(Ordering::SeqCst) {
                    for new in ["that", "this"] {
                        let old = if new == "that" { "this" } else { "that" };
                        two.ask(&["RENAME", old, new], Instant::now() + PATIENCE).unwrap();
                    }
                }
            });
            for address in replicas(&servers) {
                let (over, torn) = (&over, &torn);
                scope.spawn(move || {
                    let mut client = Client::of_replica(address);
                    while !over.load(Ordering::SeqCst) {
                        torn.fetch_or(client.value(&["EXISTS", "this", "that"]) != ":1", Ordering::SeqCst);
                    }
                });
            }
            let mut clients: Vec<_> = replicas(&servers).into_iter().map(Client::of_replica).collect();
            let mut wrong = Vec::new();
            for number in 0..300 {
                let number = format!("{round}-{number}");
                write(&["SET", "counted", &number]);
                let seen = clients.iter_mut().map(|client| client.value(&["GET", "counted"]));
                wrong.extend(seen.filter(|seen| *seen != number).map(|seen| (seen, number.clone())));
            }
            over.store(true, Ordering::SeqCst);
            assert!(wrong.is_empty(), "what was read, after what was acknowledged: {wrong:?}");
        });
        assert!(!torn.load(Ordering::SeqCst), "part of what one command changed was shown");
        let refused = Client::of_replica(replicas(&servers)[0]).value(&["SET", "counted", "x"]);
        assert!(refused.starts_with("-MOVED "), "{refused}");
        // The same with another head, and with one that was brought up.
        let head = u32::try_from(servers.head()).unwrap();
        servers.kill(head);
        soon("another heads the chain", || servers.status()["head"].as_u64().is_some_and(|now| now != u64::from(head)));
        servers.start(head);
        servers.serve(&[1, 2, 3]);
        assert_eq!(write(&["STRLEN", "counted"]), format!(":{}", format!("{round}-299").len()));
    }
}

#[test]
fn keys_are_spread_over_chains_and_each_server_heads_one() {
    const CHAINS: [&str; 3] = ["main", "a", "b"];
    let mut servers = Servers::of_chains(3, &CHAINS[1..]);
    let all_serve = |servers: &Servers| CHAINS.iter().for_each(|chain| servers.serve_in(chain, &[1, 2, 3]));
    let heads = [servers.addresses[&1].0, servers.further["a"][&2], servers.further["b"][&3]];
    // Each of those that will head a chain is asked to write, from before there is one: none takes another's keys.
    let over = AtomicBool::new(false);
    let early: Vec<String> = std::thread::scope(|scope| {
        let ends = Ends(&over);
        let write = |head: SocketAddr| {
            let over = &over;
            move || {
                let (mut client, mut taken) = (None, Vec::new());
                for number in 0_u64.. {
                    if over.load(Ordering::SeqCst) {
                        break;
                    }
                    let key = format!("early{number}:{head}");
                    // A server that begins does not listen yet, and one that begins a term cuts its clients.
                    client = client.or_else(|| Client::connect(head).ok());
                    match client.as_mut().map(|client: &mut Client| client.call(&["SET", &key, "x"])) {
                        Some(Ok(reply)) => taken.extend((reply == "+OK").then_some(key)),
                        _ => client = None,
                    }
                }
                taken
            }
        };
        let writing: Vec<_> = heads.into_iter().map(|head| scope.spawn(write(head))).collect();
        let made = servers.done(&["spread", "main=1,2,3", "a=2,3,1", "b=3,1,2"]);
        assert!(made.contains("made the chain a: it keeps the slots 5461 to 10921"), "{made}");
        all_serve(&servers);
        std::thread::sleep(LEASE / 4);
        drop(ends);
        writing.into_iter().flat_map(|writing| writing.join().unwrap()).collect()
    });
    assert!(early.len() > 100, "{}", early.len());
    let chains = json(servers.folder.path(), &["chains"]);
    let shown: Vec<_> = chains.as_array().unwrap().iter().map(|chain| (&chain["head"], &chain["slots"])).collect();
    let slots = |first: u16, last: u16| serde_json::json!([[first, last]]);
    assert_eq!(
        shown,
        [(&2.into(), &slots(5_461, 10_921)), (&3.into(), &slots(10_922, 16_383)), (&1.into(), &slots(0, 5_460))]
    );

    let every = |servers: &Servers| {
        let further = servers.further.values().flat_map(BTreeMap::values);
        servers.addresses().into_iter().chain(further.copied()).collect::<Vec<_>>()
    };
    // None is served by a head that keeps other slots, and none is told to be elsewhere than where it is kept.
    let mut kept = [0; 3];
    for (at, head) in heads.iter().enumerate() {
        soon("the others' heads are known", || {
            let told = Client::connect(*head).unwrap().call(&["SET", "{foo}", "x"]).unwrap();
            told == "+OK" || told.starts_with("-MOVED ")
        });
        for number in 0..100 {
            let key = format!("only{number}");
            let told = Client::connect(*head).unwrap().call(&["SET", &key, &key]).unwrap();
            assert!(told == "+OK" || heads.iter().any(|head| told.ends_with(&format!(" {head}"))), "{key}: {told}");
            kept[at] += u32::from(told == "+OK");
        }
    }
    assert_eq!(kept.iter().sum::<u32>(), 100, "{kept:?}");
    assert!(kept.iter().all(|kept| *kept > 10), "{kept:?}");
    // foo is of slot 12182, bar of 5061.
    let apart = Client::connect(heads[0]).unwrap().call(&["MSET", "foo", "1", "bar", "2"]).unwrap();
    assert!(apart.starts_with("-CROSSSLOT"), "{apart}");

    let (writer, mut client) = (Writer::start(every(&servers)), Roaming::new(every(&servers)));
    for key in &early {
        let reply = client.ask(&["EXISTS", key], Instant::now() + PATIENCE);
        assert_eq!(reply.as_deref(), Some(":1"), "{key} was acknowledged before all served");
    }
    let mut has_all = |after: &str| {
        for key in writer.acknowledged() {
            let reply = client.ask(&["EXISTS", &key], Instant::now() + PATIENCE);
            assert_eq!(reply.as_deref(), Some(":1"), "after {after}: {key}");
        }
    };
    writer.gap();
    // With it goes the head of one chain, and a replica of each other.
    servers.kill(2);
    soon("another heads the chain", || {
        json(servers.folder.path(), &["--chain", "a", "status"])["head"].as_u64().is_some_and(|head| head != 2)
    });
    println!("killed: {} ms without a write", writer.gap().as_millis());
    has_all("the end of a server");
    servers.start(2);
    all_serve(&servers);
    has_all("its return");
    writer.gap();
    servers.done(&["--chain", "a", "promote", "2"]);
    println!("promoted: {} ms without a write", writer.gap().as_millis());
    has_all("a head by choice");
    drop(writer);

    // The stores of two chains, one in the other's place.
    servers.kill(3);
    let folder = servers.folder.path();
    std::fs::rename(folder.join("a3"), folder.join("c3")).unwrap();
    std::fs::rename(folder.join("b3"), folder.join("a3")).unwrap();
    std::fs::rename(folder.join("c3"), folder.join("b3")).unwrap();
    servers.start(3);
    let mut child = servers.running.remove(&3).unwrap();
    assert!(!child.wait().unwrap().success());
    let log = std::fs::read_to_string(servers.folder.path().join("log3")).unwrap();
    // Whichever is found first ends the process.
    let told = |of, other| log.contains(&format!("the store of the chain {of} holds a replica of the chain {other}"));
    assert!(told("a", "b") || told("b", "a"), "{log}");
}

#[test]
fn a_password_that_was_taken_anew_counts_at_the_next_head_too() {
    let mut servers = Servers::new(2);
    servers.done(&["init", "--servers", "1,2"]);
    let (config, password) = (servers.folder.path().join("esker.toml"), servers.folder.path().join("password"));
    let section = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, format!("[serve]\npassword_file = 'password'\n{section}")).unwrap();
    std::fs::write(&password, "old\n").unwrap();
    for server in [1, 2] {
        servers.kill(server);
        servers.start(server);
    }
    servers.serve(&[1, 2]);
    let takes = |servers: &Servers, server: u32, password: &str| {
        let client = Client::connect(servers.addresses[&server].0);
        client.and_then(|mut client| client.call(&["AUTH", password])).is_ok_and(|reply| reply == "+OK")
    };
    soon("the old one is taken", || takes(&servers, 1, "old") && takes(&servers, 2, "old"));
    std::fs::write(&password, "new\n").unwrap();
    for child in servers.running.values() {
        assert!(Command::new("kill").args(["-HUP", &child.id().to_string()]).status().unwrap().success());
    }
    soon("the new one is taken", || takes(&servers, 1, "new") && takes(&servers, 2, "new"));
    let next = 3 - servers.head();
    servers.done(&["promote", &next.to_string()]);
    servers.serve(&[1, 2]);
    for server in [1, 2] {
        soon("the new one is taken in another term", || takes(&servers, server, "new"));
        assert!(!takes(&servers, server, "old"), "server {server} takes the password that was replaced");
    }
}

/// The table says of the last server that it serves, also when it is gone: its lease tells.
#[test]
fn a_server_that_is_gone_is_waited_for_whatever_the_table_says() {
    let mut servers = Servers::new(1);
    servers.done(&["init", "--servers", "1"]);
    servers.done(&["status", "--wait", "60s"]);
    servers.kill(1);
    assert_eq!(servers.status()["servers"][0]["place"], "serving");
    let output = cluster(servers.folder.path(), &["status", "--wait", "3s"]);
    let complained = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{complained}");
    assert!(complained.contains("after 3s these do not serve: server 1 (its lease is not renewed)"), "{complained}");
    servers.start(1);
    servers.done(&["status", "--wait", "60s"]);
}

#[test]
fn what_cannot_be_is_refused_and_says_why() {
    let (folder, zookeeper) = (TempDir::new().unwrap(), ZooKeeper::start());
    configure(folder.path(), &zookeeper);
    let refused = |code: i32, said: &str, arguments: &[&str]| {
        let output = cluster(folder.path(), arguments);
        let complained = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {complained}");
        assert!(complained.contains(said), "{arguments:?}: {complained}");
    };
    assert!(done(folder.path(), &["chains"]).contains("no chains"));
    refused(2, "no place of a coordinator", &["--cluster", "http://h", "status"]);
    refused(3, "no chain `main`", &["status"]);
    refused(3, "no chain `main`", &["promote", "1"]);
    refused(2, "5 at most", &["init", "--servers", "1,2,3,4,5,6"]);
    refused(2, "named twice", &["init", "--servers", "1,2,1"]);
    refused(2, "the chain a is named twice", &["spread", "a=1", "a=2"]);
    refused(2, "expected CHAIN=SERVER", &["spread", "a=1,0"]);
    refused(2, "cannot be a chain's name", &["--chain", "a/b", "init", "--servers", "1"]);
    done(folder.path(), &["init", "--servers", "1,2,3"]);
    refused(2, "already", &["init", "--servers", "1"]);
    refused(2, "there is a chain `main` already", &["spread", "a=1", "main=1"]);
    assert!(done(folder.path(), &["chains"]).contains("all, alone"));
    done(folder.path(), &["spread", "a=1", "b=2"]);
    refused(2, "shared out already", &["spread", "c=1", "d=2"]);
    refused(2, "invalid value '0'", &["add", "0"]);
    refused(2, "a member of the chain main already: offline", &["add", "2"]);
    refused(3, "server 7 is no member of the chain main", &["remove", "7"]);
    refused(3, "server 7 is no member of the chain main", &["drain", "7"]);
    refused(3, "server 7 is no member of the chain main", &["undrain", "7"]);
    refused(3, "server 7 is no member of the chain main", &["move", "7", "8"]);
    refused(2, "--no-wait", &["move", "2", "8", "--no-wait"]);
    for arguments in [&["remove", "1"][..], &["drain", "1"], &["move", "1", "8"]] {
        refused(1, "is the last that served", arguments);
    }
    refused(1, "server 2 is offline: only one that serves can head the chain main", &["promote", "2"]);
    // No server runs.
    refused(
        1,
        "after 300ms these do not serve: server 2 (offline), server 3 (offline), server 1",
        &["status", "--wait", "300ms"],
    );
    refused(1, "server 4 is offline: is it running?", &["add", "4", "--patience", "300ms"]);
    let added = json(folder.path(), &["add", "5", "--no-wait"]);
    assert_eq!((&added["done"], &added["place"]), (&false.into(), &"offline".into()));
    refused(2, "has 5 servers, and a chain has 5 at most", &["add", "6"]);
    let asked = json(folder.path(), &["remove", "5", "--no-wait"]);
    assert_eq!(asked["done"], false);
    let status = json(folder.path(), &["status"]);
    assert_eq!((&status["asked"]["remove"], &status["head"]), (&serde_json::json!([5]), &Value::Null));
    // What watches prints again.
    let mut child =
        command(folder.path()).args(["cluster", "status", "--watch", "--json"]).stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().take(2);
    let versions: Vec<Value> =
        lines.map(|line| serde_json::from_str::<Value>(&line.unwrap()).unwrap()["version"].clone()).collect();
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(versions, [status["version"].clone(), status["version"].clone()]);
}
