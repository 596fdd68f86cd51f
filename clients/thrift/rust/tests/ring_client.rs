//! The client that knows the ring, with a real ZooKeeper and real servers: `clients/thrift/test rust` runs these.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use esker_ring::{DataType, Error, Kind, Options, Result, Ring, connect};
use support::{Chains, Relay, free_port, soon};

const RANGE_KEYS: u64 = 65_536;
const SLOTS: u64 = 16_384;
const NONSENSE: [&str; 4] = ["http_1:h:80", "nonsense", "thriftbinary_7:h:70000", "thriftbinary_x:h:1"];

fn key(range: u64) -> String {
    (range * RANGE_KEYS).to_string()
}

fn ports(ring: &Ring, key: &str) -> Vec<u16> {
    ring.servers_of(key).unwrap().iter().map(|address| address.port).collect()
}

fn pairs(found: &[DataType]) -> Vec<(&str, &str)> {
    found.iter().map(|pair| (pair.key.as_str(), pair.value.as_str())).collect()
}

fn patient(patience: Duration) -> Options {
    Options { patience, ..Options::default() }
}

#[test]
#[ignore = "starts servers: clients/thrift/test rust"]
fn each_call_goes_to_the_chain_that_keeps_its_keys() {
    let mut chains = Chains::of("users:int", ["a=1", "b=1"], 1);
    let [a, b] = chains.thrift[&1];
    let far = key(SLOTS / 2);
    let opened = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&opened);
    let connector = Box::new(move |address: &esker_ring::Address| {
        noted.lock().unwrap().push(address.port);
        connect(address)
    });
    let ring = chains.ring(Kind::Int, Options { connector, ..Options::default() });
    soon("both have registered", || (ports(&ring, "7"), ports(&ring, &far)) == (vec![a], vec![b]));
    // Behind the last mark the ring begins anew.
    assert_eq!(ports(&ring, "18446744072635809799"), [a]);
    assert_eq!(*opened.lock().unwrap(), [0; 0]);
    ring.put("7", "Ada").unwrap();
    ring.multi_put(&[("8", "7"), ("8", "eight")]).unwrap();
    assert_eq!(*opened.lock().unwrap(), [a], "the connection is used again");
    ring.multi_put(&[("7", "Ada"), (&far, "far")]).unwrap();
    assert_eq!(*opened.lock().unwrap(), [a, b]);
    assert_eq!((ring.get("7").unwrap().as_deref(), ring.get("9").unwrap()), (Some("Ada"), None));
    assert_eq!((ring.has("8").unwrap(), ring.has("9").unwrap()), (true, false));
    // In the order in which they were asked for, each as often, as one server answers.
    let found = ring.multi_get(&[&far, "9", "7", &far, "8", "7"]).unwrap();
    assert_eq!(pairs(&found), [(&*far, "far"), ("7", "Ada"), (&*far, "far"), ("8", "eight"), ("7", "Ada")]);
    assert_eq!(ring.multi_get(&[]).unwrap(), []);
    assert_eq!(
        [ring.add("7", "x"), ring.update("7", "y"), ring.update("9", "y")].map(Result::unwrap),
        [false, true, false]
    );
    let set = [("7", Some("y"), "z"), ("7", Some("y"), "q"), ("10", None, "ten"), ("10", None, "two")];
    assert_eq!(
        set.map(|(key, expected, value)| ring.compare_and_set(key, expected, value).unwrap()),
        [true, false, true, false]
    );
    assert_eq!([ring.remove("10"), ring.remove("10")].map(Result::unwrap), [true, false]);
    assert!(matches!(ring.get("x7"), Err(Error::Key(key)) if key == "x7"));
    assert!(matches!(ring.multi_get(&["7", "07"]), Err(Error::Key(key)) if key == "07"));

    // More than one call may have, at both.
    let many: Vec<(String, String)> = (0..9_000)
        .map(|number| ((1_000 + number % 2 * RANGE_KEYS * SLOTS / 2 + number).to_string(), format!("v{number}")))
        .collect();
    let many: Vec<(&str, &str)> = many.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
    ring.multi_put(&many).unwrap();
    let mut keys: Vec<&str> = many.iter().map(|(key, _)| *key).collect();
    assert_eq!(pairs(&ring.multi_get(&keys).unwrap()), many);
    keys.extend_from_within(..10);
    keys.push("11");
    assert_eq!(ring.remove_many(&keys).unwrap(), 9_000);

    chains.esker(&["ring", "move", "0-9", "--to", "b"]);
    assert_eq!(pairs(&ring.multi_get(&["8", "7"]).unwrap()), [("8", "eight"), ("7", "z")]);
    soon("the ring follows", || ports(&ring, "7") == [b]);
    assert_eq!(ports(&ring, &key(10)), [a]);

    let hasty = chains.ring(Kind::Int, patient(Duration::from_millis(300)));
    soon("it has read the registry", || !ports(&hasty, "7").is_empty());
    chains.kill(1);
    for error in [hasty.get("7").map(drop), hasty.put("7", "n")] {
        let error = error.unwrap_err();
        assert!(matches!(&error, Error::Unreachable { key, .. } if key == "7"), "{error}");
    }
}

#[test]
#[ignore = "starts servers: clients/thrift/test rust"]
fn byte_keys_go_by_their_hash() {
    let chains = Chains::of("users:bytes", ["a=1", "b=1"], 1);
    let [a, b] = chains.thrift[&1];
    let ring = chains.ring(Kind::Bytes, Options::default());
    // foo is of slot 12182, bar of 5061.
    soon("both have registered", || (ports(&ring, "bar"), ports(&ring, "foo")) == (vec![a], vec![b]));
    let written = [("foo", "1"), ("bar", "2"), ("ключ", "3"), ("{foo}1", "4"), ("x{bar}", "5")];
    ring.multi_put(&written).unwrap();
    assert_eq!(pairs(&ring.multi_get(&written.map(|(key, _)| key)).unwrap()), written);
    assert_eq!((ports(&ring, "{foo}1"), ports(&ring, "x{bar}")), (vec![b], vec![a]));
    let error = ring.get(&"x".repeat(5_000)).unwrap_err();
    assert!(matches!(&error, Error::Refused(why) if why.message.contains("KEY_BYTES_MAX")), "{error}");
    assert_eq!(ring.get("foo").unwrap().as_deref(), Some("1"));
    // Together more than the largest frame that the crate itself would read.
    let large = "v".repeat(700 << 10);
    let keys: Vec<String> = (0..26).map(|number| format!("{{foo}}large{number}")).collect();
    for key in &keys {
        ring.put(key, &large).unwrap();
    }
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    let found = ring.multi_get(&keys).unwrap();
    assert!(found.len() == 26 && found.iter().all(|pair| pair.value == large));
}

/// Writes a value over the last one. A write whose answer is lost may be done later, and then must not count.
fn set_from(ring: &Ring, key: &str, last: Option<&str>, next: &str) {
    let (mut unknown, mut done) = (false, false);
    soon("it is written", || match ring.compare_and_set(key, last, next) {
        Ok(did) => {
            done = did;
            true
        }
        // The head is gone.
        Err(Error::Unknown { .. } | Error::Refused(_)) => {
            unknown = true;
            false
        }
        Err(error) => panic!("{key}: {error}"),
    });
    assert!(done || unknown && read(ring, key).as_deref() == Some(next), "{last:?} was acknowledged for {key}");
}

fn read(ring: &Ring, key: &str) -> Option<String> {
    let mut value = None;
    soon("it is read", || match ring.get(key) {
        Ok(found) => {
            value = found;
            true
        }
        Err(Error::Refused(_)) => false,
        Err(error) => panic!("{key}: {error}"),
    });
    value
}

#[test]
#[ignore = "starts servers: clients/thrift/test rust"]
fn a_server_is_killed_while_clients_read_and_write() {
    let mut chains = Chains::of("users:int", ["a=1,2", "b=2,1"], 2);
    NONSENSE.iter().for_each(|name| chains.register(name));
    // It looks like an instance, and is none.
    chains.register(&format!("thriftbinary_{}:127.0.0.1:{}", key(2), free_port()));
    let [a, b] = chains.thrift[&2];
    let ring = chains.ring(Kind::Int, patient(Duration::from_secs(30)));
    let (near, far) = (key(3), key(SLOTS / 2));
    soon("all have registered", || (ports(&ring, &near).len(), ports(&ring, &far).len()) == (2, 2));
    assert_eq!(ring.strange(), NONSENSE);
    let (over, written) = (AtomicBool::new(false), AtomicUsize::new(0));
    let count = |writer: u64| {
        let mut counted = BTreeMap::new();
        // Each writer has keys of its own, so that it knows what became of an answer that was lost.
        let keys = [key(writer), key(10 + writer), key(SLOTS / 2 + writer)];
        for key in keys.iter().cycle() {
            if over.load(Ordering::SeqCst) {
                break;
            }
            let last: u64 = counted.get(key).copied().unwrap_or(0);
            let (before, next) = ((last > 0).then(|| last.to_string()), (last + 1).to_string());
            set_from(&ring, key, before.as_deref(), &next);
            counted.insert(key.clone(), last + 1);
            written.fetch_add(1, Ordering::SeqCst);
            assert_eq!(read(&ring, key), Some(next), "{key}: what was acknowledged is read");
        }
        counted
    };
    let more = |what: &str| {
        let before = written.load(Ordering::SeqCst);
        soon(what, || written.load(Ordering::SeqCst) > before + 100);
    };
    let counted: BTreeMap<String, u64> = std::thread::scope(|scope| {
        struct Ends<'o>(&'o AtomicBool);
        impl Drop for Ends<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::SeqCst);
            }
        }
        let ends = Ends(&over);
        let count = &count;
        let writers: Vec<_> = (0..3).map(|writer| scope.spawn(move || count(writer))).collect();
        more("they write");
        // It heads the chain a, and answers for b.
        chains.kill(1);
        more("they write again");
        soon("the killed server is gone from the registry", || {
            (ports(&ring, &near), ports(&ring, &far)) == (vec![a], vec![b])
        });
        more("they go on");
        drop(ends);
        writers.into_iter().flat_map(|writer| writer.join().unwrap()).collect()
    });
    let keys: Vec<&str> = counted.keys().map(String::as_str).collect();
    let found = ring.multi_get(&keys).unwrap();
    let found: BTreeMap<String, u64> = found.into_iter().map(|pair| (pair.key, pair.value.parse().unwrap())).collect();
    assert_eq!(found, counted);
}

#[test]
#[ignore = "starts servers: clients/thrift/test rust"]
fn a_write_whose_answer_is_lost_is_not_sent_again() {
    let mut chains = Chains::none();
    let server = chains.alone();
    let relays = [Relay::before(server), Relay::before(server)];
    NONSENSE.iter().for_each(|name| chains.register(name));
    relays.iter().for_each(|relay| chains.register(&format!("thriftbinary_16384:127.0.0.1:{}", relay.port())));
    let ring = chains.ring(Kind::Bytes, Options::default());
    soon("both are found", || ports(&ring, "k").len() == 2);
    let [first, second] = relays;
    let (asked, spare) = if ports(&ring, "k")[0] == first.port() { (first, second) } else { (second, first) };
    asked.loses(true);
    let writes: [&dyn Fn() -> Result<()>; 7] = [
        &|| ring.put("k", "1"),
        &|| ring.add("added", "1").map(drop),
        &|| ring.update("k", "2").map(drop),
        &|| ring.compare_and_set("k", Some("2"), "3").map(drop),
        &|| ring.multi_put(&[("m", "1"), ("n", "2")]),
        &|| ring.remove("added").map(drop),
        &|| ring.remove_many(&["m", "n"]).map(drop),
    ];
    for (number, write) in writes.iter().enumerate() {
        let told = write();
        assert!(matches!(told, Err(Error::Unknown { .. })), "{number}: {told:?}");
        assert_eq!((asked.calls(), spare.calls()), (1, 0), "{number}");
    }
    // What reads is asked of the other; and each write was done once.
    assert_eq!((ring.get("k").unwrap().as_deref(), ring.has("k").unwrap()), (Some("3"), true));
    assert_eq!(pairs(&ring.multi_get(&["m", "k", "added"]).unwrap()), [("k", "3")]);
    assert_eq!((asked.calls(), spare.calls()), (3, 3));
    // One that is not reached was asked for nothing: a write goes to the other.
    drop(asked);
    ring.put("k", "4").unwrap();
    assert_eq!(spare.calls(), 1);
    spare.loses(true);
    assert!(matches!(ring.put("k", "5"), Err(Error::Unknown { .. })));
    spare.loses(false);
    assert_eq!(ring.get("k").unwrap().as_deref(), Some("5"));
}

#[test]
#[ignore = "starts servers: clients/thrift/test rust"]
fn a_registry_that_loses_all_is_followed_again() {
    let mut chains = Chains::none();
    let server = chains.alone();
    let name = format!("thriftbinary_16384:127.0.0.1:{server}");
    let ring = chains.ring(Kind::Bytes, patient(Duration::from_secs(30)));
    assert_eq!(ports(&ring, "k"), [0; 0]);
    std::thread::scope(|scope| {
        // A call waits for the first that registers.
        let early = scope.spawn(|| ring.put("k", "1"));
        chains.register(&name);
        early.join().unwrap().unwrap();
    });
    chains.zookeeper.lose();
    assert_eq!(ring.get("k").unwrap().as_deref(), Some("1"), "the last table stays");
    chains.zookeeper.resume();
    soon("it sees that there is none", || ports(&ring, "k").is_empty());
    chains.register(&name);
    soon("it sees it again", || ports(&ring, "k") == [server]);
    chains.unregister(&name);
    soon("it sees that it is gone", || ports(&ring, "k").is_empty());
    let none = chains.ring(Kind::Bytes, patient(Duration::from_millis(1)));
    let error = none.get("k").unwrap_err();
    assert!(matches!(&error, Error::Unreachable { last, .. } if last.contains("none is registered")), "{error}");
    // Their threads end with them, also where ZooKeeper is gone.
    chains.zookeeper.kill();
    drop((ring, none));
    for node in ["data", "", "/"] {
        let told = Ring::new(&chains.zookeeper.location(), node, Kind::Bytes, Options::default());
        assert!(matches!(told, Err(Error::Registry(_))), "{node}");
    }
}
