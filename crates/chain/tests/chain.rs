//! What a chain of nodes promises: what is acknowledged is on all of them, and those that are left go on with it.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use esker_chain::{ChainStore, Incarnation, Member, Place, ServerId, Table};
use esker_memory::MemoryStore;
use esker_store::{
    Change, CommitSeq, Completion, Condition, Durability, Error, Forward, ObjectId, ObjectStore, OmapScan, Transaction,
};
use parking_lot::Mutex;
use support::{Chain, eventually};

fn object(name: &'static str) -> ObjectId {
    ObjectId::new("c".into(), name)
}

fn three() -> (Vec<Arc<MemoryStore>>, Chain) {
    let stores: Vec<_> = (0..3).map(|_| Arc::new(MemoryStore::new())).collect();
    let chain = Chain::over(stores.iter().map(|store| Arc::clone(store) as _).collect());
    chain.store(0).submit(Transaction::new().create_collection(&"c".into())).wait().unwrap();
    (stores, chain)
}

fn set(name: &'static str, key: &'static str, value: &str) -> Transaction {
    let (key, value) = (Bytes::from(key), Bytes::from(value.to_owned()));
    Transaction::new().change(&object(name), Change::OmapSet { key, value })
}

fn get(store: &dyn ObjectStore, name: &'static str, key: &str) -> Option<Bytes> {
    store.omap_get(&object(name), key.as_bytes()).wait().unwrap()
}

/// The table after one in which these servers serve no more.
fn without(table: &Table, gone: &[u32]) -> Table {
    let mut next = table.clone();
    next.version += 1;
    for member in &mut next.members {
        if gone.contains(&member.server.0) {
            (member.place, member.since) = (Place::Offline, next.version);
        }
    }
    next.arrange();
    next
}

/// Waits in another thread, for as long as the test says.
fn begun(store: &ChainStore, txn: Transaction) -> std::thread::JoinHandle<esker_store::Result<CommitSeq>> {
    let store = store.clone();
    std::thread::spawn(move || store.submit(txn).wait())
}

#[test]
fn what_is_acknowledged_is_on_every_replica() {
    let (stores, chain) = three();
    for number in 0..100 {
        chain.store(0).submit(set("o", "k", &number.to_string())).wait().unwrap();
        for store in &stores {
            assert_eq!(get(&**store, "o", "k").unwrap(), number.to_string());
        }
    }
    // Readers at any of them see it, at once or when they are told that it is acknowledged.
    for number in 0..3 {
        assert_eq!(get(chain.store(number), "o", "k").unwrap(), "99");
    }
    let applied: Vec<_> = chain.nodes.iter().map(|running| running.node.progress().0).collect();
    assert_eq!(applied, [101, 101, 101]);
}

#[test]
fn a_guard_that_fails_changes_no_replica() {
    let (stores, chain) = three();
    chain.store(0).submit(set("o", "k", "1")).wait().unwrap();
    let guarded = set("o", "k", "2").guard(&object("o"), Condition::OmapAbsent { key: "k".into() });
    let refused = chain.store(0).submit(guarded).wait();
    assert!(matches!(refused, Err(Error::GuardFailed { index: 0 })), "{refused:?}");
    chain.store(0).submit(set("o", "l", "3")).wait().unwrap();
    for store in &stores {
        let all = store.omap_scan(&object("o"), &OmapScan::of("")).wait().unwrap();
        assert_eq!(all, [("k".into(), "1".into()), ("l".into(), "3".into())]);
    }
}

#[test]
fn nothing_is_acknowledged_or_shown_that_the_tail_does_not_have() {
    let (stores, chain) = three();
    chain.store(0).submit(set("o", "k", "old")).wait().unwrap();
    chain.cut(2);
    let writing = begun(chain.store(0), set("o", "k", "new"));
    eventually("it is applied before the tail", || get(&*stores[1], "o", "k").unwrap() == "new");
    // Who reads it waits, at the head and behind it; what else there is is read.
    let readers = [0, 1].map(|number| {
        let store = chain.store(number).clone();
        std::thread::spawn(move || store.omap_get(&object("o"), b"k").wait())
    });
    for number in 0..2 {
        assert_eq!(get(chain.store(number), "other", "k"), None);
        assert_eq!(get(chain.store(number), "o", "another key"), None);
    }
    let scanned = chain.store(1).clone();
    let scanning = std::thread::spawn(move || scanned.omap_scan(&object("o"), &OmapScan::of("")).wait());
    // So does who is refused by it, and one that is content with applied does not.
    let guard = Condition::OmapEquals { key: "k".into(), value: "old".into() };
    let refused = begun(chain.store(0), set("o", "k", "x").guard(&object("o"), guard));
    let applied = Transaction { durability: Durability::Applied, ..set("p", "k", "1") };
    chain.store(0).submit(applied).wait().unwrap();
    assert_eq!(get(chain.store(0), "p", "k").unwrap(), "1");
    std::thread::sleep(Duration::from_millis(200));
    assert!(!writing.is_finished() && !refused.is_finished() && !readers.iter().any(|reader| reader.is_finished()));
    assert!(!scanning.is_finished(), "what is not acknowledged is among it");
    assert_eq!(get(&*stores[2], "o", "k").unwrap(), "old");

    chain.go_by(&without(&chain.table, &[2]));
    writing.join().unwrap().unwrap();
    assert!(matches!(refused.join().unwrap(), Err(Error::GuardFailed { index: 0 })));
    for reader in readers {
        assert_eq!(reader.join().unwrap().unwrap().unwrap(), "new");
    }
    assert_eq!(scanning.join().unwrap().unwrap(), [("k".into(), "new".into())]);
}

#[test]
fn nothing_is_applied_behind_the_head_while_a_reader_holds_its_moment() {
    let (stores, chain) = three();
    let moment = chain.store(1).moment();
    let held = moment.read();
    let writing = begun(chain.store(0), set("o", "k", "v"));
    eventually("the head has it", || get(&*stores[0], "o", "k").is_some());
    std::thread::sleep(Duration::from_millis(50));
    assert!(!writing.is_finished() && get(&*stores[1], "o", "k").is_none());
    // Nor does such a reader wait for what waits for it, where this replica may not answer any more.
    chain.nodes[1].node.give_up();
    let (asked, store) = (std::sync::mpsc::channel(), chain.store(1).clone());
    std::thread::spawn(move || asked.0.send(store.omap_get(&object("o"), b"k").wait()));
    let answered = asked.1.recv_timeout(Duration::from_secs(10)).unwrap();
    assert!(matches!(answered, Err(Error::NotServing { .. })), "{answered:?}");
    chain.nodes[1].node.renewed(chain.table.version, chain.nodes[1].node.now(), support::PERIOD);
    drop(held);
    writing.join().unwrap().unwrap();
    assert_eq!(get(&*stores[1], "o", "k").unwrap(), "v");
}

#[test]
fn who_is_left_goes_on_with_all_that_was_acknowledged() {
    for gone in [vec![0], vec![1], vec![2], vec![0, 1], vec![1, 2], vec![0, 2]] {
        let (stores, chain) = three();
        for number in 0..20 {
            chain.store(0).submit(set("o", "k", &number.to_string())).wait().unwrap();
        }
        for server in &gone {
            chain.cut(*server as usize);
            chain.nodes[*server as usize].node.give_up();
        }
        let table = without(&chain.table, &gone);
        chain.go_by(&table);
        let head = table.head().unwrap().server.0 as usize;
        let store = chain.store(head);
        assert_eq!(get(store, "o", "k").unwrap(), "19", "{gone:?} gone");
        store.submit(set("o", "k", "after")).wait().unwrap();
        for member in table.serving() {
            assert_eq!(get(&*stores[member.server.0 as usize], "o", "k").unwrap(), "after");
        }
        for server in gone {
            let refused = chain.store(server as usize).omap_get(&object("o"), b"k").wait();
            assert!(matches!(refused, Err(Error::NotServing { .. })), "{refused:?}");
            let refused = chain.store(server as usize).submit(set("o", "k", "old")).wait();
            assert!(matches!(refused, Err(Error::NotServing { .. })), "{refused:?}");
        }
    }
}

#[test]
fn what_a_lost_head_had_sent_on_is_kept_and_what_it_had_not_is_not() {
    let (stores, chain) = three();
    chain.cut(2);
    let sent = begun(chain.store(0), set("o", "k", "sent"));
    eventually("the next has it", || get(&*stores[1], "o", "k").is_some());
    chain.cut(0);
    let unsent = begun(chain.store(0), set("o", "k", "unsent"));
    eventually("the head has it", || get(&*stores[0], "o", "k").unwrap() == "unsent");
    chain.go_by(&without(&chain.table, &[0, 2]));
    assert_eq!(get(chain.store(1), "o", "k").unwrap(), "sent");
    chain.nodes[0].node.end();
    assert!(chain.store(0).submit(set("o", "k", "ended")).wait().is_err());
    assert_eq!(get(&*stores[0], "o", "k").unwrap(), "unsent");
    for writing in [sent, unsent] {
        let error = writing.join().unwrap().unwrap_err();
        assert!(error.is_unknown(), "others may have acknowledged it: {error}");
    }
}

#[test]
fn others_than_the_head_decide_nothing_and_name_it() {
    let (_stores, chain) = three();
    let refused = chain.store(1).submit(set("o", "k", "1")).wait().unwrap_err().to_string();
    assert!(refused.contains("server 0"), "{refused}");
    let own = ObjectId::new("esker.chain".into(), "state");
    let refused = chain.store(0).submit(Transaction::new().change(&own, Change::Touch)).wait();
    assert!(matches!(refused, Err(Error::Invalid { .. })), "{refused:?}");
    assert_eq!(chain.store(0).collections().wait().unwrap(), ["c".into()]);
    assert!(matches!(chain.store(0).list(&"esker.chain".into(), None, 1).wait(), Err(Error::NoCollection { .. })));
}

#[test]
fn a_lease_that_has_run_out_ends_all_answers() {
    let (_stores, chain) = three();
    chain.store(0).submit(set("o", "k", "1")).wait().unwrap();
    let node = &chain.nodes[0].node;
    node.renewed(chain.table.version, node.now(), Duration::from_millis(100));
    eventually("it runs out", || chain.store(0).omap_get(&object("o"), b"k").wait().is_err());
    let refused = chain.store(0).submit(set("o", "k", "2")).wait().unwrap_err().to_string();
    assert!(refused.contains("lease"), "{refused}");
    // One of another version is none.
    node.renewed(chain.table.version + 1, node.now(), support::PERIOD);
    assert!(chain.store(0).stat(&object("o")).wait().is_err());
    node.renewed(chain.table.version, node.now(), support::PERIOD);
    assert_eq!(get(chain.store(0), "o", "k").unwrap(), "1");
    // Those behind it answer meanwhile, under their own.
    assert_eq!(get(chain.store(2), "o", "k").unwrap(), "1");
}

#[test]
fn nodes_that_are_started_again_go_on_where_their_stores_are() {
    let stores: Vec<_> = (0..3).map(|_| Arc::new(MemoryStore::new())).collect();
    let over = || Chain::over(stores.iter().map(|store| Arc::clone(store) as _).collect());
    let chain = over();
    chain.store(0).submit(Transaction::new().create_collection(&"c".into())).wait().unwrap();
    for _ in 0..10 {
        chain.store(0).submit(set("o", "k", "1")).wait().unwrap();
    }
    drop(chain);
    let chain = over();
    assert_eq!(chain.nodes[2].node.progress().0, 11);
    chain.store(0).submit(set("o", "k", "2")).wait().unwrap();
    assert_eq!(get(&*stores[2], "o", "k").unwrap(), "2");
    assert_eq!(chain.nodes[2].node.progress().0, 12);
}

#[test]
fn a_reconnect_sends_again_what_was_lost_and_nothing_twice() {
    let (stores, chain) = three();
    chain.cut(1);
    let writing: Vec<_> = ["a", "b", "c"].map(|key| begun(chain.store(0), set("o", key, key))).into();
    eventually("the head has them", || chain.nodes[0].node.progress().0 == 4);
    assert_eq!(get(&*stores[1], "o", "a"), None);
    chain.heal();
    chain.nodes[0].node.reconnected(ServerId(1));
    chain.nodes[1].node.reconnected(ServerId(0));
    for writing in writing {
        writing.join().unwrap().unwrap();
    }
    for running in &chain.nodes {
        assert_eq!(running.node.progress().0, 4);
        (0..3).for_each(|server| running.node.reconnected(ServerId(server)));
    }
    chain.store(0).submit(set("o", "d", "d")).wait().unwrap();
    assert_eq!(chain.nodes[2].node.progress().0, 5);
}

#[test]
fn many_writers_leave_the_same_state_everywhere() {
    let (stores, chain) = three();
    std::thread::scope(|scope| {
        for writer in 0..8_u64 {
            let store = chain.store(0).clone();
            scope.spawn(move || {
                for turn in 0..200 {
                    let key = Bytes::from(format!("{}", (writer + turn) % 16));
                    let value = Bytes::from(format!("{writer} {turn}"));
                    let (object, change) = (object("o"), Change::OmapSet { key, value });
                    store.submit(Transaction::new().change(&object, change)).wait().unwrap();
                }
            });
        }
    });
    let state = |store: &MemoryStore| store.omap_scan(&object("o"), &OmapScan::of("")).wait().unwrap();
    let first = state(&stores[0]);
    assert_eq!(first.len(), 16);
    assert_eq!((state(&stores[1]), state(&stores[2])), (first.clone(), first));
}

#[test]
fn a_message_of_a_start_that_is_gone_changes_nothing() {
    let (stores, chain) = three();
    // Server 1 was started again and its table does not know it: it hears nothing.
    let other = Member { server: ServerId(1), incarnation: Incarnation(2), place: Place::Serving, since: 2 };
    let mut table = chain.table.clone();
    (table.version, table.members[1]) = (2, other);
    chain.nodes[1].node.go_by(table);
    assert_eq!(chain.nodes[1].node.place(), None);
    let writing = begun(chain.store(0), set("o", "k", "1"));
    eventually("the head has it", || get(&*stores[0], "o", "k").is_some());
    std::thread::sleep(Duration::from_millis(100));
    assert!(!writing.is_finished() && get(&*stores[1], "o", "k").is_none());
    chain.nodes[0].node.end();
    assert!(writing.join().unwrap().is_err());
}

#[test]
fn only_the_head_syncs() {
    let (_stores, chain) = three();
    chain.cut(1);
    let applied = Transaction { durability: Durability::Applied, ..set("o", "k", "1") };
    chain.store(0).submit(applied).wait().unwrap();
    assert!(matches!(chain.store(1).sync().wait(), Err(Error::NotServing { .. })));
    let store = chain.store(0).clone();
    let syncing = std::thread::spawn(move || store.sync().wait());
    std::thread::sleep(Duration::from_millis(100));
    assert!(!syncing.is_finished(), "the others do not have it");
    chain.go_by(&without(&chain.table, &[1]));
    syncing.join().unwrap().unwrap();
}

#[test]
fn what_refuses_an_operation_is_told_like_what_is_read() {
    let (_stores, chain) = three();
    chain.store(0).submit(set("a", "k", "1")).wait().unwrap();
    chain.cut(2);
    let making = begun(chain.store(0), set("b", "k", "1"));
    eventually("the head has it", || chain.nodes[0].node.progress().0 == 3);
    let refused = begun(chain.store(0), Transaction::new().change(&object("a"), Change::Rename { to: object("b") }));
    std::thread::sleep(Duration::from_millis(100));
    assert!(!refused.is_finished() && !making.is_finished());
    chain.go_by(&without(&chain.table, &[2]));
    assert!(refused.join().unwrap().is_err());
    making.join().unwrap().unwrap();
}

#[test]
fn an_acknowledgement_that_was_lost_is_sent_again_by_who_had_sent_it() {
    let (stores, chain) = three();
    chain.mute(2);
    let writing = begun(chain.store(0), set("o", "k", "1"));
    eventually("the tail has it", || get(&*stores[2], "o", "k").is_some());
    std::thread::sleep(Duration::from_millis(100));
    assert!(!writing.is_finished());
    chain.heal();
    chain.nodes[2].node.reconnected(ServerId(1));
    writing.join().unwrap().unwrap();
}

#[test]
fn a_change_of_the_table_leaves_no_moment_without_a_lease() {
    let (_stores, chain) = three();
    chain.store(0).submit(set("o", "k", "0")).wait().unwrap();
    let ended = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    while !ended.load(std::sync::atomic::Ordering::Relaxed) {
                        chain.store(0).omap_get(&object("o"), b"k").wait().unwrap();
                    }
                })
            })
            .collect();
        let mut table = chain.table.clone();
        for _ in 0..200 {
            table.version += 1;
            let node = &chain.nodes[0].node;
            node.go_by_renewed(table.clone(), node.now(), support::PERIOD);
            std::thread::yield_now();
        }
        ended.store(true, std::sync::atomic::Ordering::Relaxed);
        readers.into_iter().for_each(|reader| reader.join().unwrap());
    });
}

/// A store that does this once, before it decides the next transaction.
struct Late {
    store: MemoryStore,
    then: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Forward for Late {
    fn behind(&self) -> &dyn ObjectStore {
        &self.store
    }

    fn submit(&self, txn: Transaction) -> Completion<CommitSeq> {
        let then = self.then.lock().take();
        then.into_iter().for_each(|then| then());
        self.store.submit(txn)
    }
}

/// Failure: a head whose lease ran out while its store was still to decide told what it had refused, and what guards
/// alone had found, by a state that another head may have changed. Cause: it looked at its lease before only. Fix: it
/// looks again once the store has decided.
#[test]
fn what_is_refused_or_guarded_under_a_lease_that_ran_out_meanwhile_is_no_answer() {
    let late = Arc::new(Late { store: MemoryStore::new(), then: Mutex::default() });
    let chain = Chain::over(vec![Arc::clone(&late) as _, Arc::new(MemoryStore::new())]);
    chain.store(0).submit(Transaction::new().create_collection(&"c".into())).wait().unwrap();
    chain.store(0).submit(set("o", "k", "1")).wait().unwrap();
    let guard = |value: &'static str| Condition::OmapEquals { key: "k".into(), value: value.into() };
    let (node, object) = (&chain.nodes[0].node, object("o"));
    let refused = set("o", "k", "2").guard(&object, guard("other"));
    let guarded = Transaction::new().guard(&object, guard("1"));
    for txn in [&refused, &guarded] {
        let own = Arc::clone(node);
        *late.then.lock() = Some(Box::new(move || own.give_up()));
        let told = chain.store(0).submit(txn.clone()).wait();
        assert!(matches!(told, Err(Error::NotServing { .. })), "{told:?}");
        node.renewed(chain.table.version, node.now(), support::PERIOD);
    }
    assert!(matches!(chain.store(0).submit(refused).wait(), Err(Error::GuardFailed { index: 0 })));
    chain.store(0).submit(guarded).wait().unwrap();
    chain.store(0).submit(set("o", "k", "3")).wait().unwrap();
    assert_eq!(get(chain.store(1), "o", "k").unwrap(), "3");
}
