//! Servers of a chain in one process, over a real ZooKeeper: one hands over, one is there twice.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "../../cluster/tests/support/mod.rs"]
mod support;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use esker_chain::{Incarnation, Place, ServerId, Table};
use esker_cluster::{Coordinator, Options, Served};
use esker_member::{Config, Error, Member, View};
use esker_memory::MemoryStore;
use esker_store::{Change, ObjectId, ObjectStore, Transaction};
use support::ZooKeeper;

const PERIOD: Duration = Duration::from_secs(1);
const CHAIN: &str = "c";

fn config(zookeeper: &ZooKeeper, server: u32) -> Config {
    let me = ServerId(server);
    let peers = esker_peers::Config {
        cluster: "test".into(),
        me,
        listen: "127.0.0.1:0".parse().unwrap(),
        tls: None,
        copy_bytes_per_s: 0,
        waiting_bytes_max: 64 << 20,
    };
    let served = Served { store: String::new(), peer: String::new(), resp: None, grpc: None, nbd: None, http: None };
    let (location, chain, fresh) = (zookeeper.location(), CHAIN.to_owned(), Bytes::from(format!("store {server}")));
    Config { location, chain, server: me, period: PERIOD, peers, served, fresh, kept_bytes_max: 1 << 20 }
}

/// A chain of these servers, of which the first is waited for.
fn init(zookeeper: &ZooKeeper, servers: u32) {
    let mut table = Table::first((1..=servers).map(|server| (ServerId(server), Incarnation(0))));
    for member in &mut table.members {
        member.place = if member.server == ServerId(1) { Place::LastServing } else { Place::Offline };
    }
    table.arrange();
    let options = Options { session: PERIOD, call: Duration::from_secs(5) };
    let coordinator = Coordinator::new(zookeeper.location(), options);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(coordinator.init_chain(CHAIN, &table, &BTreeMap::new())).unwrap();
}

fn eventually<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(began.elapsed() < Duration::from_secs(30), "{what}: not yet");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn serves(view: &View) -> bool {
    view.place == Some(Place::Serving)
}

fn set(key: &'static str) -> Transaction {
    let change = Change::OmapSet { key: key.into(), value: "v".into() };
    Transaction::new().create_collection(&"c".into()).change(&ObjectId::new("c".into(), "o"), change)
}

fn has(store: &dyn ObjectStore, key: &str) -> bool {
    store.omap_get(&ObjectId::new("c".into(), "o"), key.as_bytes()).wait().unwrap().is_some()
}

#[test]
fn a_head_that_ends_hands_over_and_comes_back_behind_the_others() {
    let zookeeper = ZooKeeper::start();
    init(&zookeeper, 3);
    let stores: Vec<_> = (0..3).map(|_| Arc::new(MemoryStore::new())).collect();
    // What the first holds is what the chain holds, and what another holds goes.
    stores[0].submit(set("before")).wait().unwrap();
    stores[1].submit(set("of another")).wait().unwrap();
    let start =
        |number: usize| Member::start(Arc::clone(&stores[number]) as _, config(&zookeeper, number as u32 + 1)).unwrap();
    let mut members: Vec<_> = (0..3).map(start).collect();
    eventually("all serve", || members.iter().all(|member| serves(&member.view())).then_some(()));
    assert!(members[0].view().heads);
    members[0].store().unwrap().submit(set("first")).wait().unwrap();
    for store in &stores {
        assert!(has(&**store, "before") && has(&**store, "first") && !has(&**store, "of another"));
    }

    let head = members.remove(0);
    let began = Instant::now();
    head.stop();
    let next = eventually("another heads", || members.iter().position(|member| member.view().heads));
    // Its lease was given up: it is not waited for.
    assert!(began.elapsed() < PERIOD * 10, "{:?}", began.elapsed());
    members[next].store().unwrap().submit(set("second")).wait().unwrap();
    members.push(start(0));
    eventually("it is back", || serves(&members[2].view()).then_some(()));
    assert!(!members[2].view().heads);
    members[next].store().unwrap().submit(set("third")).wait().unwrap();
    assert!(has(&*stores[0], "second") && has(&*stores[0], "third"));
}

#[test]
fn a_server_that_is_there_twice_is_served_by_the_last_start() {
    let zookeeper = ZooKeeper::start();
    init(&zookeeper, 1);
    let first = Member::start(Arc::new(MemoryStore::new()), config(&zookeeper, 1)).unwrap();
    eventually("it serves", || serves(&first.view()).then_some(()));
    let second = Member::start(Arc::new(MemoryStore::new()), config(&zookeeper, 1)).unwrap();
    let ended = eventually("the first is told", || first.wait(0, Duration::from_millis(10)).err());
    assert!(matches!(*ended, Error::Superseded { server: 1 }), "{ended}");
    assert!(first.store().unwrap().submit(set("late")).wait().is_err());
    drop(second);
}
