//! Servers of a chain in one process, over a real ZooKeeper: one hands over, one is there twice.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "../../cluster/tests/support/mod.rs"]
mod support;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use esker_chain::{Incarnation, Place, ServerId, Table};
use esker_cluster::{Coordinator, Options, Served, Slots};
use esker_member::{Config, Error, Host, HostConfig, Member, View};
use esker_memory::MemoryStore;
use esker_store::{Change, ObjectId, ObjectStore, Transaction};
use support::ZooKeeper;

const PERIOD: Duration = Duration::from_secs(1);
const CHAIN: &str = "c";

fn host(zookeeper: &ZooKeeper, server: u32) -> Arc<Host> {
    let me = ServerId(server);
    let peers = esker_peers::Config {
        cluster: "test".into(),
        me,
        listen: "127.0.0.1:0".parse().unwrap(),
        tls: None,
        copy_bytes_per_s: 0,
        waiting_bytes_max: 64 << 20,
    };
    Host::start(HostConfig { location: zookeeper.location(), server: me, period: PERIOD, peers }).unwrap()
}

fn join(host: &Arc<Host>, chain: &str, store: &Arc<MemoryStore>, name: &str) -> Member {
    let served = Served {
        store: String::new(),
        peer: String::new(),
        resp: None,
        grpc: None,
        nbd: None,
        http: None,
        thrift: None,
    };
    let (chain, fresh) = (chain.to_owned(), Bytes::from(format!("store {name}")));
    Member::join(host, Arc::clone(store) as _, Config { chain, served, fresh, kept_bytes_max: 1 << 20 }).unwrap()
}

/// A member of the chain, in a process of its own.
fn start(zookeeper: &ZooKeeper, server: u32, store: &Arc<MemoryStore>) -> Member {
    join(&host(zookeeper, server), CHAIN, store, &server.to_string())
}

/// A table of these servers, of which the first is waited for.
fn first(servers: &[u32]) -> Table {
    let mut table = Table::first(servers.iter().map(|server| (ServerId(*server), Incarnation(0))));
    for member in &mut table.members {
        member.place = if member.server == ServerId(servers[0]) { Place::LastServing } else { Place::Offline };
    }
    table.arrange();
    table
}

fn ask<T>(zookeeper: &ZooKeeper, ask: impl AsyncFnOnce(&Coordinator) -> T) -> T {
    let options = Options { session: PERIOD, call: Duration::from_secs(5) };
    let coordinator = Coordinator::new(zookeeper.location(), options);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(ask(&coordinator))
}

/// A chain of these servers, of which the first is waited for.
fn init(zookeeper: &ZooKeeper, servers: u32) {
    let table = first(&(1..=servers).collect::<Vec<_>>());
    ask(zookeeper, async |coordinator| coordinator.init_chain(CHAIN, &table, &BTreeMap::new()).await.unwrap());
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
    let start = |number: usize| start(&zookeeper, number as u32 + 1, &stores[number]);
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
    let first = start(&zookeeper, 1, &Arc::new(MemoryStore::new()));
    eventually("it serves", || serves(&first.view()).then_some(()));
    let second = start(&zookeeper, 1, &Arc::new(MemoryStore::new()));
    let ended = eventually("the first is told", || first.wait(0, Duration::from_millis(10)).err());
    assert!(matches!(*ended, Error::Superseded { server: 1 }), "{ended}");
    assert!(first.store().unwrap().submit(set("late")).wait().is_err());
    drop(second);
}

#[test]
fn processes_hold_several_chains_each_with_a_start_of_its_own() {
    let zookeeper = ZooKeeper::start();
    let (tables, none) = ([("a", first(&[1, 2])), ("b", first(&[2, 1]))], BTreeMap::new());
    let chains: Vec<_> = tables.iter().map(|(name, table)| (*name, table, &none)).collect();
    let slots = Slots::even(&["a", "b"]).unwrap();
    ask(&zookeeper, async |coordinator| {
        coordinator.init_chains(&chains, Some(&slots)).await.unwrap();
        let again = coordinator.init_chains(&[("c", &tables[0].1, &none)], Some(&slots)).await;
        assert!(matches!(again, Err(esker_cluster::Error::SlotsExist)), "{again:?}");
        assert_eq!(coordinator.chains().await.unwrap(), ["a", "b"], "nothing of it was made");
    });
    let hosts = [host(&zookeeper, 1), host(&zookeeper, 2)];
    let store = || Arc::new(MemoryStore::new());
    let stores = [[store(), store()], [store(), store()]];
    let members: Vec<Vec<_>> = (0..2)
        .map(|at| {
            let member =
                |(chain, name): (usize, &&str)| join(&hosts[at], name, &stores[at][chain], &format!("{name} {at}"));
            ["a", "b"].iter().enumerate().map(member).collect()
        })
        .collect();
    eventually("all serve", || members.iter().flatten().all(|member| serves(&member.view())).then_some(()));
    let heads = |at: usize| members[at].iter().map(|member| member.view().heads).collect::<Vec<_>>();
    assert_eq!((heads(0), heads(1)), (vec![true, false], vec![false, true]));
    members[0][0].store().unwrap().submit(set("of a")).wait().unwrap();
    members[1][1].store().unwrap().submit(set("of b")).wait().unwrap();
    for stores in &stores {
        assert!(has(&*stores[0], "of a") && has(&*stores[1], "of b"));
        assert!(!has(&*stores[0], "of b") && !has(&*stores[1], "of a"));
    }
    let seen = eventually("both are seen", || {
        let seen = hosts[0].seen()?;
        seen.chains.values().all(|chain| chain.table.serving().count() == 2).then_some(seen)
    });
    assert_eq!((seen.slots.as_ref(), seen.chains.len()), (Some(&slots), 2));

    // One member goes, with its chain alone: the other of its process has a start and a lease of its own.
    let start_before = members[0][1].view().incarnation;
    members[0][0].stop();
    eventually("the other heads it", || members[1][0].view().heads.then_some(()));
    assert_eq!((members[0][1].view().place, members[0][1].view().incarnation), (Some(Place::Serving), start_before));
    members[1][0].store().unwrap().submit(set("later")).wait().unwrap();
    members[1][1].store().unwrap().submit(set("later")).wait().unwrap();
    assert!(has(&*stores[0][1], "later") && !has(&*stores[0][0], "later"));
    members.iter().flatten().for_each(Member::stop);
    hosts.iter().for_each(|host| host.stop());
}
