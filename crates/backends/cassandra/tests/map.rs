//! The map's promises on a real Cassandra, whose address is in `ESKER_CASSANDRA`: `scripts/cassandra run cargo test -p
//! esker-cassandra -- --ignored`.

#![allow(clippy::unwrap_used, reason = "a test that fails")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use esker_cassandra::{Cassandra, Consistency, Options, Place, Random};
use esker_map::contract::{Harness, Opened};
use esker_map::{
    Change, Condition, DataType, Durability, Error, Filter, Get, Key, MapCapability, MapStorage, Mutation, Order, Over,
    Scan, Schema, TableName,
};

fn address() -> String {
    std::env::var("ESKER_CASSANDRA")
        .expect("ESKER_CASSANDRA=host:port says where a Cassandra is: scripts/cassandra run …")
}

/// Numbers that are not drawn twice, by this process or one before it on the same node.
fn number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let started = std::env::temp_dir().metadata().and_then(|of| of.modified()).ok();
    let nanos =
        started.and_then(|at| at.duration_since(std::time::UNIX_EPOCH).ok()).map_or(0, |since| since.as_nanos());
    u64::from(std::process::id()) << 32 ^ (nanos as u64) << 16 ^ NEXT.fetch_add(1, Ordering::SeqCst)
}

struct OnCassandra;

struct Node {
    place: Place,
    options: Options,
    time: Arc<AtomicU64>,
    map: Cassandra,
}

fn connect(place: &Place, options: &Options, time: &Arc<AtomicU64>) -> Cassandra {
    let time = Arc::clone(time);
    let random = Random { secret: [7; 32], handle: number().to_be_bytes() };
    Cassandra::open(place, options.clone(), Arc::new(move || time.load(Ordering::SeqCst)), random).unwrap()
}

fn fresh(options: Options) -> Node {
    let place = Place { nodes: vec![address()], prefix: format!("t{:016x}", number()) };
    let time = Arc::default();
    Node { map: connect(&place, &options, &time), place, options, time }
}

impl Harness for OnCassandra {
    fn fresh(&self) -> Box<dyn Opened> {
        Box::new(fresh(Options::default()))
    }

    fn rounds(&self) -> u64 {
        300
    }
}

impl Opened for Node {
    fn storage(&self) -> Arc<dyn MapStorage> {
        Arc::new(self.map.clone())
    }

    fn another(&self) -> Arc<dyn MapStorage> {
        Arc::new(connect(&self.place, &self.options, &self.time))
    }

    fn now_ms(&self) -> u64 {
        self.time.load(Ordering::SeqCst)
    }

    fn set_ms(&self, now_ms: u64) {
        self.time.store(now_ms, Ordering::SeqCst);
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // What a failed test left does not matter: the node goes with its folder.
        for namespace in self.map.namespaces().unwrap_or_default() {
            for table in self.map.tables(&namespace).unwrap_or_default() {
                let _ = self.map.drop_table(&TableName::new(namespace.as_str(), table));
            }
            let _ = self.map.drop_namespace(&namespace);
        }
    }
}

esker_map::map_suite!(OnCassandra; #[ignore = "needs a node: scripts/cassandra run"]);

fn table() -> TableName {
    TableName::new("ns", "t")
}

fn with_table(options: Options) -> Node {
    let node = fresh(options);
    node.map.create_namespace("ns").unwrap();
    let schema = Schema::new()
        .column("p", DataType::Text)
        .column("c", DataType::Double)
        .column("x", DataType::Blob)
        .partition("p")
        .clustering("c", Order::Asc);
    node.map.create_table(&table(), &schema).unwrap();
    node
}

fn key(p: &str, c: f64) -> Key {
    Key::of("p", p).and("c", c)
}

fn put(map: &dyn MapStorage, key: Key, bytes: usize) {
    let put = Mutation::put(&table(), key, vec![("x".into(), esker_map::Value::Blob(vec![7; bytes].into()))]);
    map.mutate(&[put], Durability::Durable).unwrap().wait().unwrap();
}

#[test]
#[ignore = "needs a node: scripts/cassandra run"]
fn what_it_can_do_is_told_in_a_line() {
    let line = fresh(Options::default()).map.capability().to_string();
    println!("{}\n{line}", MapCapability::HEADING);
    assert_eq!(line.split_whitespace().collect::<Vec<_>>(), ["cassandra", "partition", "yes", "yes", "yes", "yes"]);
}

#[test]
#[ignore = "needs a node: scripts/cassandra run"]
fn what_cassandra_cannot_have_is_refused_by_name() {
    let node = with_table(Options::default());
    let refused = |result: Result<(), Error>, named: &str| {
        let error = result.unwrap_err();
        assert!(matches!(error, Error::Unsupported { storage: "cassandra", .. }), "{error}");
        assert!(error.to_string().contains(named), "{error} does not name {named}");
    };
    let mutate = |list: &[Mutation]| node.map.mutate(list, Durability::Durable).map(drop);
    let put = |p: &str, c: f64| Mutation::put(&table(), key(p, c), Vec::new());
    refused(mutate(&[put("", 1.0)]), "empty partition key");
    refused(mutate(&[put("p", f64::NAN)]), "not-a-number");
    refused(mutate(&[put("p", 1.0), put("q", 1.0)]), "several partitions");
    refused(node.map.create_index(&table(), "c"), "index a column of the key");
    assert!(node.map.scan(&Scan::new(&table(), Over::All)).unwrap().records.is_empty(), "nothing was written");
}

#[test]
#[ignore = "needs a node: scripts/cassandra run"]
fn pages_of_long_rows_stay_short_and_lose_none() {
    let node = with_table(Options::default());
    for c in 0..24 {
        put(&node.map, key("p", f64::from(c)), 1 << 20);
    }
    for filter in [Filter::always(), Filter::IsNotNull("x".into())] {
        for over in [Over::All, Over::Partition { key: Key::of("p", "p").0, low: None, high: None }] {
            let mut scan = Scan { filter: filter.clone(), ..Scan::new(&table(), over) };
            let (mut found, mut pages) = (0, 0);
            loop {
                let page = node.map.scan(&scan).unwrap();
                assert!(page.records.len() <= 5, "{} rows of 1 MiB in a page", page.records.len());
                (found, pages) = (found + page.records.len(), pages + 1);
                scan.page = page.next;
                if scan.page.is_none() {
                    break;
                }
            }
            assert_eq!(found, 24);
            assert!(pages > 4);
        }
    }
}

#[test]
#[ignore = "needs a node: scripts/cassandra run"]
fn cassandra_itself_removes_what_expired() {
    let node = with_table(Options { forget: Duration::from_secs(1), ..Options::default() });
    node.set_ms(1_700_000_000_000);
    let change = Change::Put { columns: vec![("x".into(), None)], expires_ms: Some(node.now_ms() + 1_000) };
    let put = Mutation { table: table(), key: key("p", 1.0), change, condition: Condition::Always };
    node.map.mutate(&[put], Durability::Durable).unwrap().wait().unwrap();
    // Our clock stands still: only Cassandra can take it away.
    let get = Get::new(&table(), key("p", 1.0));
    assert!(node.map.get(&get).unwrap().is_some());
    let started = Instant::now();
    while node.map.get(&get).unwrap().is_some() {
        assert!(started.elapsed() < Duration::from_secs(20), "it is still there");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
#[ignore = "needs a node: scripts/cassandra run"]
fn reads_of_every_consistency_see_what_was_written() {
    let node = with_table(Options::default());
    put(&node.map, key("p", 1.0), 3);
    for consistency in [Consistency::Eventual, Consistency::Acknowledged, Consistency::Serial] {
        let map = node.map.at(consistency);
        assert!(map.get(&Get::new(&table(), key("p", 1.0))).unwrap().is_some(), "{consistency:?}");
        for over in [Over::All, Over::Partition { key: Key::of("p", "p").0, low: None, high: None }] {
            assert_eq!(map.scan(&Scan::new(&table(), over)).unwrap().records.len(), 1, "{consistency:?}");
        }
    }
}

#[test]
fn a_cluster_that_is_away_is_an_error_that_names_it() {
    // No server listens on a port that was just let go of.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let place: Place = format!("127.0.0.1:{port}/p").parse().unwrap();
    let options = Options { timeout: Duration::from_secs(2), ..Options::default() };
    let opened = Cassandra::open(&place, options, Arc::new(|| 0), Random { secret: [0; 32], handle: [0; 8] });
    match opened.map(drop) {
        Err(error @ esker_cassandra::Error::Unreachable { .. }) => {
            assert!(error.to_string().contains(&port.to_string()))
        }
        other => panic!("{other:?}"),
    }
}
