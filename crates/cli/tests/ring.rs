//! Slots that go from one chain to another on a real ZooKeeper, while clients write and servers are killed.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod chains;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use chains::by_thrift::{self, REPLY, text};
use chains::{Client, Ends, PATIENCE, Roaming, Servers, Writer, command, soon};
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
        let ends = Ends(&over);
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
        drop(ends);
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

/// The chain kept records of slots that were coming: it served what had come as its own, and the next plan removed what
/// its clients had put since, as left over.
#[test]
fn a_chain_that_was_to_join_is_by_itself_again_once_nothing_is_left_of_a_stopped_plan() {
    const VALUES: usize = 48;
    const VALUE_BYTES: usize = 512 << 10;
    let mut servers = Servers::of_chains(2, &["a"]);
    let folder = servers.folder.path().to_owned();
    servers.done(&["spread", "main=1"]);
    servers.done(&["--chain", "a", "init", "--servers", "2"]);
    servers.serve_in("main", &[1]);
    servers.serve_in("a", &[2]);
    let own = servers.further["a"][&2];
    let mut client = Roaming::new(vec![servers.addresses()[0]]);
    let until = || Instant::now() + PATIENCE;
    let value = "v".repeat(VALUE_BYTES);
    for number in 0..VALUES {
        assert_eq!(client.ask(&["SET", &format!("{{foo}}{number}"), &value], until()).as_deref(), Some("+OK"));
    }
    let log = || std::fs::read_to_string(folder.join("log2")).unwrap();
    let ask = |words: &[&str]| Client::connect(own).unwrap().call(words).unwrap();
    // The chain that gives is gone before its slot has been taken, and with it what would go on with the plan. It may
    // have been gone before anything had come.
    for attempt in 1.. {
        let mut moving = command(&folder).args(["ring", "move", "12182", "--to", "a"]).spawn().unwrap();
        soon("the move has begun", || log().matches("slots are to come").count() == attempt);
        std::thread::sleep(Duration::from_millis(20));
        servers.kill(1);
        moving.kill().unwrap();
        moving.wait().unwrap();
        ring_json(&folder, &["stop"]);
        soon("the other chain serves by itself", || {
            let left = ask(&["STRLEN", "{foo}0"]);
            assert!(!left.starts_with(':') || left == ":0", "{left}");
            ask(&["SET", "{foo}own", "1"]) == "+OK"
        });
        if log().contains("what they left is removed") {
            break;
        }
        assert!(attempt < 10, "nothing comes: {}", log());
        assert_eq!(ask(&["DEL", "{foo}own"]), ":1");
        servers.start(1);
        servers.serve_in("main", &[1]);
    }
    assert_eq!(ask(&["DBSIZE"]), ":1");

    servers.start(1);
    servers.serve_in("main", &[1]);
    let output = ring(&folder, &["move", "12182", "--to", "a", "--patience", "3s"]);
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
    let why = std::fs::read_to_string(folder.join("log1")).unwrap();
    assert!(why.contains("holds 1 keys"), "{why}");
    ring_json(&folder, &["stop"]);
    soon("its key is there", || ask(&["STRLEN", "{foo}own"]) == ":1");
    for number in 0..VALUES {
        let len = client.ask(&["STRLEN", &format!("{{foo}}{number}")], until());
        assert_eq!(len, Some(format!(":{VALUE_BYTES}")), "{number}");
    }
}

/// A client of Thrift's service, at whichever address takes it.
struct ByThrift {
    addresses: Vec<SocketAddr>,
    at: usize,
    client: Option<by_thrift::Client>,
}

impl ByThrift {
    fn new(addresses: &[SocketAddr], at: usize) -> Self {
        Self { addresses: addresses.to_vec(), at, client: None }
    }

    /// Calls until it is answered, and by no error; how often it was not.
    fn call(&mut self, method: &str, fields: &[u8]) -> (Vec<u8>, usize) {
        let (until, mut failed) = (Instant::now() + PATIENCE, 0);
        loop {
            let address = self.addresses[self.at % self.addresses.len()];
            let client = self.client.take().or_else(|| by_thrift::Client::reach(address).ok());
            let answer = client.and_then(|mut client| {
                let answer = client.try_call(method, fields).ok()?;
                self.client = Some(client);
                Some(answer)
            });
            match answer {
                Some((REPLY, answer)) => return (answer, failed),
                Some((_, why)) => assert!(Instant::now() < until, "{method}: {}", String::from_utf8_lossy(&why)),
                None => {
                    assert!(Instant::now() < until, "{method}: no answer");
                    self.at += 1;
                }
            }
            failed += 1;
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn get(&mut self, key: u64) -> u64 {
        let (answer, _) = self.call("get", &text(1, key.to_string().as_bytes()));
        let value = answer.get(4 + 4 + 3 + 4 + 7..answer.len() - 1).unwrap_or_default();
        std::str::from_utf8(value).unwrap().parse().unwrap_or(0)
    }

    /// Writes a value over the last one. A write whose answer is lost may be made later, and then must not count.
    fn count(&mut self, key: u64, last: u64, next: u64) {
        let (key_text, last_text, next_text) = (key.to_string(), last.to_string(), next.to_string());
        let fields = [text(1, key_text.as_bytes()), text(2, last_text.as_bytes()), text(3, next_text.as_bytes())];
        let (answer, failed) = self.call("compareAndSet", &fields.concat());
        let changed = answer[answer.len() - 2] == 1;
        assert!(changed || failed > 0 && self.get(key) == next, "{key}: {last} was acknowledged");
    }

    fn put(&mut self, key: u64, value: u64) {
        self.call("put", &[text(1, key.to_string().as_bytes()), text(2, value.to_string().as_bytes())].concat());
    }
}

#[test]
fn int_keys_by_thrift_go_by_range_while_heads_are_killed() {
    const CHAINS: [&str; 2] = ["main", "a"];
    const RANGES: u64 = 12;
    let mut servers = Servers::by_thrift(3, &CHAINS[1..]);
    servers.done(&["spread", "main=1,2,3", "a=2,3,1"]);
    CHAINS.iter().for_each(|chain| servers.serve_in(chain, &[1, 2, 3]));
    let folder = servers.folder.path().to_owned();
    let addresses: Vec<SocketAddr> = servers.thrift.values().flatten().copied().collect();
    // The first key of each of the first ranges, all of them at the chain main.
    let key = |range: u64| range * 65_536;
    let mut client = ByThrift::new(&addresses, 0);
    (0..RANGES).for_each(|range| client.put(key(range), 0));
    let registered = || {
        let value = ring_json(&folder, &["instances", "/data/zdb"]);
        let of = |row: &Value| (row["mark"].as_u64().unwrap(), row["address"].as_str().unwrap().to_owned());
        value["instances"].as_array().unwrap().iter().map(of).collect::<Vec<_>>()
    };
    let marks = |wanted: &[u64]| {
        soon("all have registered", || {
            let found = registered();
            found.len() == 3 * wanted.len() && found.iter().all(|(mark, _)| wanted.contains(mark))
        });
    };
    marks(&[8_192 * 65_536, 16_384 * 65_536]);

    let over = AtomicBool::new(false);
    let counted: BTreeMap<u64, u64> = std::thread::scope(|scope| {
        let ends = Ends(&over);
        let writers: Vec<_> = (0..3)
            .map(|writer: u64| {
                let (over, addresses) = (&over, &addresses);
                scope.spawn(move || {
                    let mut client = ByThrift::new(addresses, writer as usize);
                    let mut done = BTreeMap::new();
                    // Each writer has its own keys, so that it knows what became of an answer that was lost.
                    for range in (writer..RANGES).step_by(3).cycle() {
                        if over.load(Ordering::SeqCst) {
                            break;
                        }
                        let last = done.entry(key(range)).or_insert(0);
                        client.count(key(range), *last, *last + 1);
                        *last += 1;
                        assert_eq!(client.get(key(range)), *last, "{range}: what was acknowledged is read");
                    }
                    done
                })
            })
            .collect();
        let going = scope.spawn(|| ring_json(&folder, &["move", "3-7", "--to", "a"]));
        going.join().unwrap();
        marks(&[3 * 65_536, 8 * 65_536, 8_192 * 65_536, 16_384 * 65_536]);
        // It heads the chain that gives.
        let back = scope.spawn(|| ring_json(&folder, &["move", "0-11", "--to", "a"]));
        servers.kill(1);
        back.join().unwrap();
        servers.start(1);
        CHAINS.iter().for_each(|chain| servers.serve_in(chain, &[1, 2, 3]));
        // It heads the chain that takes.
        let back = scope.spawn(|| ring_json(&folder, &["move", "2-9", "--to", "main"]));
        servers.kill(2);
        back.join().unwrap();
        servers.start(2);
        CHAINS.iter().for_each(|chain| servers.serve_in(chain, &[1, 2, 3]));
        drop(ends);
        writers.into_iter().flat_map(|writer| writer.join().unwrap()).collect()
    });
    for (key, number) in &counted {
        assert_eq!(client.get(*key), *number, "{key}");
    }
    let (answer, _) = client.call("count", &[]);
    assert_eq!(answer[answer.len() - 2], RANGES as u8);
}
