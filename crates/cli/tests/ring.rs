//! Slots that go from one chain to another on a real ZooKeeper, while clients write and servers are killed.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod chains;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use chains::{Client, PATIENCE, Roaming, Servers, Writer, command, soon};
use serde_json::Value;

/// Counters that are counted up meanwhile.
const COUNTERS: usize = 32;

fn ring(folder: &Path, arguments: &[&str]) -> std::process::Output {
    command(folder).arg("ring").args(arguments).output().unwrap()
}

fn ring_json(folder: &Path, arguments: &[&str]) -> Value {
    let output = ring(folder, &[arguments, &["--json"]].concat());
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {}: {complained}", output.status);
    serde_json::from_slice(&output.stdout).unwrap()
}

/// How many slots each of these chains keeps.
fn shares(value: &Value, chains: [&str; 3]) -> [u64; 3] {
    let rows = value["chains"].as_array().unwrap();
    chains.map(|chain| rows.iter().find(|row| row["chain"] == chain).map_or(0, |row| row["slots"].as_u64().unwrap()))
}

#[test]
fn nothing_is_lost_while_slots_go_to_other_chains_and_heads_are_killed() {
    const CHAINS: [&str; 3] = ["main", "a", "b"];
    let mut servers = Servers::of_chains(3, &CHAINS[1..]);
    servers.done(&["spread", "main=1,2,3", "a=2,3,1"]);
    // Of a chain that is made by itself clients are told that it keeps all slots.
    servers.done(&["--chain", "b", "init", "--servers", "3,1,2"]);
    CHAINS.iter().for_each(|chain| servers.serve_in(chain, &[1, 2, 3]));
    let folder = servers.folder.path().to_owned();
    let every: Vec<SocketAddr> = {
        let further = ["a"].iter().flat_map(|chain| servers.further[*chain].values());
        servers.addresses().into_iter().chain(further.copied()).chain(servers.further["b"].values().copied()).collect()
    };
    let first = servers.addresses()[0];
    let known: Vec<SocketAddr> = every.clone();
    let mut client = Roaming::new(known.clone());
    let until = || Instant::now() + PATIENCE;
    for number in 0..500 {
        let (key, value) = (format!("hash{number}"), format!("value{number}"));
        client.ask(&["HSET", &key, "f", &value], until()).unwrap();
    }

    let planned = ring_json(&folder, &["rebalance", "main", "a", "b", "--plan"]);
    assert_eq!((planned["due"].as_u64(), shares(&planned, CHAINS)), (Some(5_461), [8_192, 8_192, 0]));
    assert_eq!(ring_json(&folder, &["status"])["due"], 0, "it was told, no more");

    let over = AtomicBool::new(false);
    let counted: Vec<u64> = std::thread::scope(|scope| {
        let counters: Vec<_> = (0..2)
            .map(|writer| {
                let (over, known) = (&over, known.clone());
                scope.spawn(move || {
                    let (mut client, mut done) = (Roaming::new(known), vec![0_u64; COUNTERS]);
                    for number in (writer..).step_by(2) {
                        if over.load(Ordering::SeqCst) {
                            break;
                        }
                        // Each writer has its own, so that it knows what became of an answer that was lost.
                        let at = number % COUNTERS / 2 * 2 + writer;
                        let (key, next) = (format!("counter{at}"), (done[at] + 1).to_string());
                        while client.ask(&["SET", &key, &next], Instant::now() + Duration::from_secs(2)).is_none() {}
                        done[at] += 1;
                    }
                    done
                })
            })
            .collect();
        let writer = Writer::start(known.clone());
        writer.gap();
        let even = scope.spawn(|| ring_json(&folder, &["rebalance", "main", "a", "b"]));
        soon("some slots are gone", || ring_json(&folder, &["status"])["due"] != 0);
        // It heads the chain that gives.
        servers.kill(1);
        soon("the rest goes on", || ring_json(&folder, &["status"])["due"] == 0);
        servers.start(1);
        let even = even.join().unwrap();
        let after = shares(&even, CHAINS);
        assert!(after.iter().all(|share| (5_461..=5_462).contains(share)), "{after:?}");
        CHAINS.iter().for_each(|chain| servers.serve_in(chain, &[1, 2, 3]));
        println!("even shares, a head killed: {} ms without a write", writer.gap().as_millis());

        // The head of the chain that takes.
        let merged = scope.spawn(|| ring_json(&folder, &["merge", "a", "--to", "b"]));
        soon("some slots are gone", || ring_json(&folder, &["status"])["due"] != 0);
        servers.kill(3);
        soon("the rest goes on", || ring_json(&folder, &["status"])["due"] == 0);
        servers.start(3);
        assert_eq!(shares(&merged.join().unwrap(), CHAINS)[1], 0);
        CHAINS.iter().for_each(|chain| servers.serve_in(chain, &[1, 2, 3]));
        println!("merged, a head killed: {} ms without a write", writer.gap().as_millis());
        over.store(true, Ordering::SeqCst);
        let mut counted = vec![0; COUNTERS];
        for counter in counters {
            counted.iter_mut().zip(counter.join().unwrap()).for_each(|(sum, done)| *sum += done);
        }
        for key in writer.acknowledged() {
            assert_eq!(client.ask(&["EXISTS", &key], until()).as_deref(), Some(":1"), "{key}");
        }
        counted
    });
    for (at, count) in counted.iter().enumerate() {
        let len = format!(":{}", count.to_string().len());
        let key = format!("counter{at}");
        assert_eq!(client.ask(&["STRLEN", &key], until()), Some(if *count == 0 { ":0".into() } else { len }), "{key}");
    }
    for number in 0..500 {
        let (key, len) = (format!("hash{number}"), format!("value{number}").len());
        assert_eq!(client.ask(&["HSTRLEN", &key, "f"], until()), Some(format!(":{len}")), "{key}");
    }
    // What is gone is not shown where it was: no key is there twice.
    let mut keys = BTreeMap::new();
    for chain in CHAINS {
        let addresses =
            if chain == "main" { servers.addresses() } else { servers.further[chain].values().copied().collect() };
        let count: u64 = addresses
            .iter()
            .filter_map(|address| Client::connect(*address).ok()?.call(&["DBSIZE"]).ok())
            .filter_map(|reply| reply.strip_prefix(':')?.parse().ok())
            .max()
            .unwrap();
        keys.insert(chain, count);
    }
    assert_eq!(keys["a"], 0, "{keys:?}");
    assert!(keys["main"] > 0 && keys["b"] > 0, "{keys:?}");
    assert!(every.contains(&first));
}

#[test]
fn what_cannot_be_is_refused_and_a_plan_is_stopped() {
    let servers = Servers::of_chains(1, &["a"]);
    let folder = servers.folder.path();
    let refused = |code: i32, what: &str, arguments: &[&str]| {
        let output = ring(folder, arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
        assert!(said.contains(what), "{arguments:?}: {said}");
    };
    refused(3, "no chains share the slots", &["status"]);
    servers.done(&["spread", "main=1"]);
    servers.done(&["--chain", "a", "init", "--servers", "1"]);
    ["main", "a"].iter().for_each(|chain| servers.serve_in(chain, &[1]));
    refused(3, "no chain `c`", &["move", "0-9", "--to", "c"]);
    refused(2, "from 0 to 16383", &["move", "9-0", "--to", "a"]);
    refused(2, "from 0 to 16383", &["move", "16384", "--to", "a"]);

    // A chain with keys of its own takes none.
    let own = servers.further["a"][&1];
    soon("the chain has its head", || {
        Client::connect(own).and_then(|mut client| client.call(&["SET", "own", "1"])).is_ok_and(|said| said == "+OK")
    });
    refused(1, "are still to go", &["move", "0-16383", "--to", "a", "--patience", "3s"]);
    let log = std::fs::read_to_string(folder.join("log1")).unwrap();
    assert!(log.contains("holds 1 keys"), "{log}");
    let stopped = ring_json(folder, &["stop"]);
    assert_eq!((&stopped["due"], &stopped["chains"][0]["slots"]), (&0.into(), &16_384.into()));
    // The other is by itself again, with what it had.
    soon("its keys are reached", || {
        Client::connect(own).and_then(|mut client| client.call(&["STRLEN", "own"])).is_ok_and(|said| said == ":1")
    });
    let mut client = Roaming::new(servers.addresses());
    assert_eq!(client.ask(&["SET", "foo", "1"], Instant::now() + PATIENCE).as_deref(), Some("+OK"));
}
