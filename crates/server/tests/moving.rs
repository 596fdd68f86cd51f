//! Slots of keys that go from one chain to another: two servers, each with a store of its own, as heads of two chains.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::collections::BTreeSet;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use esker_kv::{SLOTS, SystemClock, slot_of};
use esker_server::resp::{ClusterNode, ClusterView, MoveError, SlotEpoch, SlotRange, SlotState};
use support::Client;
use support::two::{Two, name};

/// Of `foo`, `bar` and `hello`.
const FOO: u16 = 12_182;
const BAR: u16 = 5_061;
const HELLO: u16 = 866;

/// A command whose reply is waited for by a thread.
fn later(mut client: Client<TcpStream>, line: &'static str) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || client.run(line))
}

/// It has had the time to be answered, and was not.
fn waits(thread: &std::thread::JoinHandle<String>) {
    std::thread::sleep(Duration::from_millis(100));
    assert!(!thread.is_finished());
}

#[test]
fn slots_go_with_all_that_their_keys_hold() {
    let two = Two::start();
    let (mut a, mut b) = (two.client(0), two.client(1));
    a.check("SET foo string", "+OK\r\n");
    a.check("SET {foo}late gone PX 3600000", "+OK\r\n");
    a.check("SET hello stays", "+OK\r\n");
    a.check("HSET {foo}hash one 1 two 2", ":2\r\n");
    a.check("EXPIRE {foo}hash 1000", ":1\r\n");
    for number in 0..3_000 {
        a.call(&["HSET", "bar", &format!("field{number}"), &format!("value{number}")]);
    }
    a.call(&["SET", "{bar}large", &"x".repeat(3 << 20)]);
    a.check("SELECT 1", "+OK\r\n");
    a.check("SET 7 int", "+OK\r\n");
    a.check("SET foo other", "+OK\r\n");
    let seven = slot_of(b"7");
    b.check("GET foo", &two.moved(FOO, 0));
    two.go(0, &[(BAR, 1), (FOO, 1), (seven, 1)]);

    a.check("GET foo", &two.moved(FOO, 1));
    a.check("SELECT 0", "+OK\r\n");
    a.check("HGET bar field1", &two.moved(BAR, 1));
    a.check("KEYS *", "*1\r\n$5\r\nhello\r\n");
    a.check("GET hello", "$5\r\nstays\r\n");
    b.check("GET hello", &two.moved(HELLO, 0));
    b.check("GET foo", "$6\r\nstring\r\n");
    b.check("HGETALL {foo}hash", "*4\r\n$3\r\none\r\n$1\r\n1\r\n$3\r\ntwo\r\n$1\r\n2\r\n");
    b.check("HLEN bar", ":3000\r\n");
    b.check("HGET bar field2999", "$9\r\nvalue2999\r\n");
    b.check("STRLEN {bar}large", ":3145728\r\n");
    let ttl = |client: &mut Client<TcpStream>, key: &str| {
        let reply = client.run(&format!("PTTL {key}"));
        reply.trim_start_matches(':').trim_end().parse::<i64>().unwrap()
    };
    assert!((3_000_000..=3_600_000).contains(&ttl(&mut b, "{foo}late")));
    assert!((500_000..=1_000_000).contains(&ttl(&mut b, "{foo}hash")));
    b.check("PTTL foo", ":-1\r\n");
    b.check("SELECT 1", "+OK\r\n");
    b.check("GET 7", "$3\r\nint\r\n");
    b.check("GET foo", "$5\r\nother\r\n");

    // And back, as they are by then.
    b.check("SELECT 0", "+OK\r\n");
    b.check("HDEL {foo}hash one", ":1\r\n");
    b.check("DEL bar", ":1\r\n");
    two.go(1, &[(BAR, 2), (FOO, 2)]);
    a.check("HGETALL {foo}hash", "*2\r\n$3\r\ntwo\r\n$1\r\n2\r\n");
    a.check("EXISTS bar", ":0\r\n");
    b.check("GET foo", &two.moved(FOO, 0));
    b.check("DBSIZE", ":0\r\n");
}

#[test]
fn commands_of_a_slot_that_is_closed_wait_and_are_sent_on() {
    let two = Two::start();
    let mut a = two.client(0);
    a.check("MSET foo 1 bar 2", "+OK\r\n");
    let called = two.begin(0, &[(FOO, 1)]);
    let mut queued = two.client(0);
    queued.check("MULTI", "+OK\r\n");
    queued.check("INCR foo", "+QUEUED\r\n");
    let mut watching = two.client(0);
    watching.check("WATCH foo", "+OK\r\n");
    watching.check("MULTI", "+OK\r\n");
    watching.check("INCR bar", "+QUEUED\r\n");
    let closed = two.moving(0).close(&[(FOO, 1)], "b").unwrap();
    let waiting = ["SET foo 3", "GET foo", "MGET bar foo", "FLUSHALL", "HSET foo f v", "DEL foo"];
    let waiting: Vec<_> = waiting.into_iter().map(|line| later(two.client(0), line)).collect();
    let executed = later(queued, "EXEC");
    // Other slots are served, and the other chain does not know of it.
    a.check("GET bar", "$1\r\n2\r\n");
    a.check("DBSIZE", ":2\r\n");
    two.client(1).check("GET foo", &two.moved(FOO, 0));
    waiting.iter().for_each(waits);
    waits(&executed);
    two.put(0, called, &closed);
    assert!(two.moving(1).take(called, &[(FOO, 1)]).unwrap());
    waiting.iter().for_each(|thread| assert!(!thread.is_finished()));
    two.moving(0).give(&closed).unwrap();
    let replies: Vec<_> = waiting.into_iter().map(|thread| thread.join().unwrap()).collect();
    let foo = two.moved(FOO, 1);
    let apart = "-CROSSSLOT Keys in request don't hash to the same slot\r\n";
    assert_eq!(replies, [&foo, &foo, apart, "+OK\r\n", &foo, &foo]);
    assert_eq!(executed.join().unwrap(), foo);
    // What was watched is here no more.
    watching.check("EXEC", "*-1\r\n");
    // The flush was of what the chain keeps.
    a.check("EXISTS bar", ":0\r\n");
    two.client(1).check("GET foo", "$1\r\n1\r\n");
}

#[test]
fn keys_that_come_to_be_while_slots_are_gathered_go_too() {
    let two = Two::start();
    let mut a = two.client(0);
    a.check("SET foo 1", "+OK\r\n");
    let called = two.begin(0, &[(FOO, 1)]);
    a.check("SET {foo}new 2", "+OK\r\n");
    a.check("HSET {foo}hash f v", ":1\r\n");
    a.check("RENAME foo {foo}renamed", "+OK\r\n");
    a.check("SET hello 3", "+OK\r\n");
    let closed = two.moving(0).close(&[(FOO, 1)], "b").unwrap();
    assert_eq!(closed.keys(), 4, "with the one that is gone");
    two.put(0, called, &closed);
    assert!(two.moving(1).take(called, &[(FOO, 1)]).unwrap());
    two.moving(0).give(&closed).unwrap();
    let mut b = two.client(1);
    b.check("MGET {foo}new {foo}renamed foo", "*3\r\n$1\r\n2\r\n$1\r\n1\r\n$-1\r\n");
    b.check("HGET {foo}hash f", "$1\r\nv\r\n");
    a.check("KEYS *", "*1\r\n$5\r\nhello\r\n");
}

#[test]
fn what_was_not_taken_is_opened_again_and_is_not_taken_later() {
    let two = Two::start();
    let mut a = two.client(0);
    a.check("SET foo 1", "+OK\r\n");
    let called = two.begin(0, &[(FOO, 1)]);
    let closed = two.moving(0).close(&[(FOO, 1)], "b").unwrap();
    two.put(0, called, &closed);
    let waiting = later(two.client(0), "INCR foo");
    assert_eq!(two.moving(1).settle(&[(FOO, 1)]).unwrap(), []);
    waits(&waiting);
    two.moving(0).reopen(&[(FOO, 1)], "b").unwrap();
    assert_eq!(waiting.join().unwrap(), ":2\r\n");
    // What was sent before comes late.
    assert!(matches!(two.moving(1).take(called, &[(FOO, 1)]), Err(MoveError::NoMove(of)) if of == called));
    assert!(matches!(two.moving(1).put(called, true, &[]), Err(MoveError::NoMove(_))));
    two.client(1).check("GET foo", &two.moved(FOO, 0));
    // The next time nothing of that is in the way.
    a.check("DEL foo", ":1\r\n");
    two.go(0, &[(FOO, 1)]);
    two.client(1).check("EXISTS foo", ":0\r\n");
    two.client(1).check("DBSIZE", ":0\r\n");
}

#[test]
fn the_next_head_goes_on_from_what_was_closed() {
    for taken in [false, true] {
        let mut two = Two::start();
        two.client(0).check("MSET foo 1 {foo}more 2 hello 3", "+OK\r\n");
        let called = two.begin(0, &[(FOO, 1), (BAR, 1)]);
        let closed = two.moving(0).close(&[(FOO, 1), (BAR, 1)], "b").unwrap();
        two.put(0, called, &closed);
        if taken {
            assert!(two.moving(1).take(called, &[(FOO, 1), (BAR, 1)]).unwrap());
        }
        two.fail_over(0);
        let waiting = later(two.client(0), "GET foo");
        waits(&waiting);
        let mut left = two.moving(0).left_closed();
        let (to, slots) = left.pop().unwrap();
        assert_eq!((to.as_str(), &slots[..], left.len()), ("b", &[(BAR, 1), (FOO, 1)][..], 0));
        assert_eq!(two.moving(1).settle(&slots).unwrap(), if taken { slots.clone() } else { Vec::new() });
        if taken {
            let found = two.moving(0).find(slots, to, &|| true).unwrap();
            assert_eq!(found.keys(), 2);
            two.moving(0).give(&found).unwrap();
            assert_eq!(waiting.join().unwrap(), two.moved(FOO, 1));
            two.client(1).check("MGET foo {foo}more", "*2\r\n$1\r\n1\r\n$1\r\n2\r\n");
            two.client(0).check("DBSIZE", ":1\r\n");
            // Both know it after the next change of heads as well.
            two.fail_over(0);
            two.fail_over(1);
            two.client(0).check("GET foo", &two.moved(FOO, 1));
            two.client(1).check("GET foo", "$1\r\n1\r\n");
        } else {
            two.moving(0).reopen(&slots, "b").unwrap();
            assert_eq!(waiting.join().unwrap(), "$1\r\n1\r\n");
            two.client(1).check("GET foo", &two.moved(FOO, 0));
        }
    }
}

/// `ring stop` left a chain with records of slots that were coming: it served what had come of them as its own, and of
/// what its clients then put the next plan removed what was in these slots as left over.
#[test]
fn a_plan_that_is_stopped_takes_no_key_from_the_clients_of_a_chain_that_was_to_join() {
    const DOWN: &str = "-CLUSTERDOWN The cluster is down\r\n";
    for takes_over in [false, true] {
        let mut two = Two::start();
        two.client(0).check("MSET foo 1 bar 2 hello 3", "+OK\r\n");
        two.client(0).check("HSET {foo}hash f v", ":1\r\n");
        let called = two.begin(0, &[(BAR, 1), (FOO, 1)]);
        let closed = two.moving(0).close(&[(FOO, 1)], "b").unwrap();
        two.put(0, called, &closed);
        assert_eq!(two.moving(1).give_up().unwrap(), 0, "a plan stands");
        two.known[1].share(false);
        if takes_over {
            two.fail_over(1);
        }
        // Nothing is answered, or taken, while anything is left.
        let mut b = two.client(1);
        for command in ["GET foo", "SET foo own", "SET hello own", "DBSIZE", "FLUSHALL"] {
            b.check(command, DOWN);
        }
        assert_eq!(two.moving(1).give_up().unwrap(), 2);
        // What was under way takes nothing any more.
        assert!(matches!(two.moving(1).put(called, false, &[]), Err(MoveError::NoMove(_))));
        assert!(matches!(two.moving(1).take(called, &[(FOO, 1)]), Err(MoveError::NoMove(_))));
        assert_eq!(two.moving(1).settle(&[(FOO, 1)]).unwrap(), []);
        two.moving(0).reopen(&[(FOO, 1)], "b").unwrap();
        two.client(0).check("MGET foo bar hello", "*3\r\n$1\r\n1\r\n$1\r\n2\r\n$1\r\n3\r\n");
        b.check("DBSIZE", ":0\r\n");
        if takes_over {
            two.fail_over(1);
            b = two.client(1);
        }
        assert!(two.moving(1).records().is_empty());
        b.check("MSET foo own hello own", "+OK\r\n");
        assert_eq!(two.moving(1).give_up().unwrap(), 0);

        // The next plan takes none of that, and its chain has it again when that is stopped too.
        two.known[1].share(true);
        let error = two.moving(1).begin(7, ("a", ""), &[(FOO, 1)]).unwrap_err();
        assert!(matches!(error, MoveError::HasKeys(2)), "{error}");
        two.known[1].share(false);
        b.check("MGET foo hello {foo}hash", "*3\r\n$3\r\nown\r\n$3\r\nown\r\n$-1\r\n");
        b.check("DEL foo hello", ":2\r\n");
        two.known[1].share(true);
        two.go(0, &[(FOO, 1)]);
        two.client(1).check("GET foo", "$1\r\n1\r\n");
        two.known[1].share(false);
        assert_eq!(two.moving(1).give_up().unwrap(), 0, "what it keeps is its own, whatever the coordinator says");
        two.client(1).check("SET hello own", DOWN);
    }
}

#[test]
fn keys_that_no_move_has_left_are_not_removed_by_one_that_begins_again() {
    let two = Two::start();
    two.client(0).check("SET foo 1", "+OK\r\n");
    let called = two.begin(0, &[(FOO, 1), (BAR, 1)]);
    let closed = two.moving(0).close(&[(FOO, 1)], "b").unwrap();
    two.put(0, called, &closed);
    let kv = esker_kv::Kv::open(two.servers[1].store.clone(), Arc::new(SystemClock)).unwrap();
    let database = kv.namespace("db0", esker_kv::Kind::Bytes).unwrap();
    database.put("hello", "own").wait().unwrap();
    for slot in [FOO, HELLO] {
        let error = two.moving(1).begin(7, ("a", ""), &[(slot, 1)]).unwrap_err();
        assert!(matches!(error, MoveError::HasKeys(1)), "{slot}: {error}");
        assert!(database.get("hello").wait().unwrap().is_some());
    }
    database.remove("hello").wait().unwrap();
    two.moving(0).reopen(closed.slots(), "b").unwrap();
    two.client(0).check("DEL foo", ":1\r\n");
    two.go(0, &[(FOO, 1), (HELLO, 1)]);
    two.client(1).check("DBSIZE", ":0\r\n");
}

/// Where a plan was stopped while its move began, what a client put before the records were made was left over by them.
#[test]
fn a_move_that_begins_as_its_plan_is_stopped_takes_no_key_from_clients() {
    let two = Two::start();
    let (mut b, mut rng, mut both) = (two.client(1), fastrand::Rng::with_seed(7), [0, 0]);
    for round in 0..500 {
        two.known[1].share(true);
        let moving = two.moving(1);
        let begins = std::thread::spawn(move || moving.begin(round, ("a", ""), &[(FOO, 1)]));
        std::thread::sleep(Duration::from_micros(rng.u64(0..400)));
        two.known[1].share(false);
        let written = b.run("SET foo own") == "+OK\r\n";
        let begun = begins.join().unwrap().is_ok();
        two.moving(1).give_up().unwrap();
        b.check("GET foo", if written { "$3\r\nown\r\n" } else { "$-1\r\n" });
        b.run("DEL foo");
        both[usize::from(begun)] += 1;
    }
    println!("{both:?} did not begin, and did");
}

#[test]
fn a_head_that_took_over_takes_nothing_that_was_begun_before() {
    let mut two = Two::start();
    two.client(0).check("SET foo 1", "+OK\r\n");
    let called = two.begin(0, &[(FOO, 1)]);
    let closed = two.moving(0).close(&[(FOO, 1)], "b").unwrap();
    two.put(0, called, &closed);
    two.fail_over(1);
    assert!(matches!(two.moving(1).take(called, &[(FOO, 1)]), Err(MoveError::NoMove(_))));
    assert_eq!(two.moving(1).settle(&[(FOO, 1)]).unwrap(), []);
    two.moving(0).reopen(&[(FOO, 1)], "b").unwrap();
    two.client(0).check("GET foo", "$1\r\n1\r\n");
}

#[test]
fn keys_are_put_again_where_their_chain_was_cleared_meanwhile() {
    let two = Two::start();
    two.client(0).check("SET foo 1", "+OK\r\n");
    let called = two.begin(0, &[(FOO, 1)]);
    let closed = two.moving(0).close(&[(FOO, 1)], "b").unwrap();
    two.put(0, called, &closed);
    // It heads a slot, or it would not clear anything.
    two.client(0).check("SET bar 2", "+OK\r\n");
    let other = two.begin(0, &[(BAR, 1)]);
    let bar = two.moving(0).close(&[(BAR, 1)], "b").unwrap();
    two.put(0, other, &bar);
    assert!(two.moving(1).take(other, &[(BAR, 1)]).unwrap());
    two.moving(0).give(&bar).unwrap();
    two.client(1).check("FLUSHALL", "+OK\r\n");
    assert!(!two.moving(1).take(called, &[(FOO, 1)]).unwrap());
    two.put(0, called, &closed);
    assert!(two.moving(1).take(called, &[(FOO, 1)]).unwrap());
    two.moving(0).give(&closed).unwrap();
    two.client(1).check("GET foo", "$1\r\n1\r\n");
    two.client(1).check("DBSIZE", ":1\r\n");
}

#[test]
fn slots_that_come_and_others_that_go_meanwhile_are_all_known() {
    const SLOTS_EACH: u16 = 100;
    let two = Two::start();
    let come: Vec<SlotEpoch> = (SLOTS_EACH..2 * SLOTS_EACH).map(|slot| (slot, 1)).collect();
    two.go(0, &come);
    std::thread::scope(|scope| {
        scope.spawn(|| (0..SLOTS_EACH).for_each(|slot| two.go(0, &[(slot, 1)])));
        scope.spawn(|| (SLOTS_EACH..2 * SLOTS_EACH).for_each(|slot| two.go(1, &[(slot, 2)])));
    });
    for (index, known) in two.known.iter().enumerate() {
        let records = two.moving(index).records();
        assert_eq!(known.records.load().len(), usize::from(2 * SLOTS_EACH));
        for slot in 0..2 * SLOTS_EACH {
            let goes = slot < SLOTS_EACH;
            let state = if goes == (index == 0) { SlotState::Gone } else { SlotState::Here };
            let record = &records[&slot];
            assert_eq!((record.state, record.epoch), (state, 2 - u64::from(goes)), "{slot} at {}", name(index));
        }
    }
}

#[test]
fn what_makes_no_sense_is_refused_by_name() {
    let two = Two::start();
    let told = |error: MoveError, part: &str| assert!(error.to_string().contains(part), "{error}");
    // A chain that keeps a slot does not take it.
    told(two.moving(0).begin(7, ("b", ""), &[(FOO, 0)]).unwrap_err(), "keeps slot 12182, in epoch 0");
    // Nor does one that shares no slots, and has keys of clients of its own, in whichever slots.
    let kv = esker_kv::Kv::open(two.servers[1].store.clone(), Arc::new(SystemClock)).unwrap();
    kv.namespace("db0", esker_kv::Kind::Bytes).unwrap().put("foo", "own").wait().unwrap();
    told(two.moving(1).begin(7, ("a", ""), &[(HELLO, 1)]).unwrap_err(), "holds 1 keys");
    // Nor before it has heard that it is to share any.
    let nodes = two.known[1].view.load().clone();
    let alone = SlotRange { first: 0, last: SLOTS as u16 - 1, head: Some(0), replicas: Vec::new(), epoch: 0 };
    let node = ClusterNode { id: "b".repeat(40), host: "h".into(), port: 1, tls_port: None, is_up: true };
    two.known[1].view.store(Arc::new(ClusterView::new(1, &node.id.clone(), vec![node], vec![alone]).unwrap()));
    told(two.moving(1).begin(7, ("a", ""), &[(HELLO, 1)]).unwrap_err(), "has not heard yet");
    two.known[1].view.store(nodes);
    kv.namespace("db0", esker_kv::Kind::Bytes).unwrap().remove("foo").wait().unwrap();
    // Keys that no server of the chain serves would stay behind.
    let other = kv.namespace("other", esker_kv::Kind::Int).unwrap();
    other.put(7_u64, "v").wait().unwrap();
    told(two.moving(1).begin(7, ("a", ""), &[(BAR, 1)]).unwrap_err(), "namespace \"other\"");
    told(two.moving(1).gather(&[BAR], &|| true).unwrap_err(), "namespace \"other\"");
    other.remove(7_u64).wait().unwrap();
    two.moving(1).begin(7, ("a", ""), &[(BAR, 1)]).unwrap();
    let part = |key: &'static str, database, what| esker_wire::proto::chain::KeyPart {
        database,
        key: key.into(),
        expires_ms: None,
        what,
    };
    let value = || Some(esker_wire::proto::chain::key_part::What::Value("v".into()));
    let more = esker_wire::proto::chain::HashFields { more: true, pairs: Vec::new() };
    let more = Some(esker_wire::proto::chain::key_part::What::Fields(more));
    let put = |part| two.moving(1).put(7, true, &[part]).unwrap_err();
    told(put(part("foo", 0, value())), "slot 12182, which is not to come");
    told(put(part("bar", 16, value())), "KeyPart.database");
    told(put(part("bar", 0, None)), "KeyPart.what");
    told(put(part("bar", 0, more)), "HashFields.more");
    told(two.moving(1).take(7, &[(BAR, 2)]).unwrap_err(), "slot 5061");
    told(two.moving(1).take(8, &[(BAR, 1)]).unwrap_err(), "no move 0000000000000008");
    // A slot does not come back before all of it is gone.
    two.begin(0, &[(BAR, 1)]);
    let closed = two.moving(0).close(&[(BAR, 1)], "b").unwrap();
    told(two.moving(0).begin(7, ("b", ""), &[(BAR, 2)]).unwrap_err(), "slot 5061 is leaving");
    two.moving(0).reopen(closed.slots(), "b").unwrap();
    two.moving(0).end_gathering();
    assert!(two.moving(0).gather(&[FOO], &|| false).is_err_and(|error| matches!(error, MoveError::Over)));
}

#[test]
fn nothing_is_lost_or_done_twice_while_slots_go_to_and_fro() {
    const KEYS: usize = 64;
    const LONG: u64 = 200;
    let two = Arc::new(Two::start());
    let keys: Vec<String> = (0..KEYS).map(|number| format!("counter{number}")).collect();
    let slots: BTreeSet<u16> = keys.iter().map(|key| slot_of(key.as_bytes())).collect();
    let over = Arc::new(AtomicBool::new(false));
    // A transaction that takes long, between its look at the slot and its commit.
    let long = {
        let (two, over) = (Arc::clone(&two), Arc::clone(&over));
        std::thread::spawn(move || {
            let (mut clients, mut to, mut done) = ([two.client(0), two.client(1)], 0, 0);
            while !over.load(Ordering::SeqCst) {
                let client = &mut clients[to];
                client.check("MULTI", "+OK\r\n");
                let queued = (0..LONG).map(|_| client.run("INCR counter0")).all(|reply| reply == "+QUEUED\r\n");
                if queued && client.call(&["EXEC"]).starts_with(b"*") {
                    done += LONG;
                    continue;
                }
                if !queued {
                    client.call(&["DISCARD"]);
                }
                to = 1 - to;
            }
            done
        })
    };
    let writers: Vec<_> = (0..4)
        .map(|writer| {
            let (two, over, keys) = (Arc::clone(&two), Arc::clone(&over), keys.clone());
            std::thread::spawn(move || {
                let mut clients = [two.client(0), two.client(1)];
                let mut done = vec![0_u64; KEYS];
                let (mut at, mut redirected) = (writer * 16, 0_u64);
                while !over.load(Ordering::SeqCst) {
                    at = (at + 7) % KEYS;
                    let mut to = 0;
                    loop {
                        let hash = at % 2 == 1;
                        let words: &[&str] =
                            if hash { &["HINCRBY", &keys[at], "f", "1"] } else { &["INCR", &keys[at]] };
                        let reply = clients[to].call(words);
                        if reply.starts_with(b":") {
                            done[at] += 1;
                            break;
                        }
                        assert!(reply.starts_with(b"-MOVED"), "{}", String::from_utf8_lossy(&reply));
                        (to, redirected) = (1 - to, redirected + 1);
                    }
                }
                (done, redirected)
            })
        })
        .collect();
    let mut epoch = 0;
    for round in 0..12_usize {
        epoch += 1;
        for slot in &slots {
            two.go(round % 2, &[(*slot, epoch)]);
        }
    }
    over.store(true, Ordering::SeqCst);
    let mut sums = vec![0; KEYS];
    sums[0] = long.join().unwrap();
    let mut redirected = 0;
    for writer in writers {
        let (done, to) = writer.join().unwrap();
        sums.iter_mut().zip(done).for_each(|(sum, done)| *sum += done);
        redirected += to;
    }
    let mut a = two.client(0);
    for (at, key) in keys.iter().enumerate() {
        let reply = if at % 2 == 1 { a.call(&["HGET", key, "f"]) } else { a.call(&["GET", key]) };
        let reply = String::from_utf8(reply).unwrap();
        assert_eq!(reply.lines().nth(1), Some(sums[at].to_string().as_str()), "{key}");
    }
    let b = esker_kv::Kv::open(two.servers[1].store.clone(), Arc::new(SystemClock)).unwrap();
    assert!(b.namespace("db0", esker_kv::Kind::Bytes).unwrap().is_empty().wait().unwrap());
    assert!(redirected > 0);
}

#[test]
fn a_move_that_begins_late_takes_back_no_slot_that_has_just_come() {
    let two = Two::start();
    two.client(0).check("SET foo 1", "+OK\r\n");
    let called = two.begin(0, &[(FOO, 1)]);
    let closed = two.moving(0).close(&[(FOO, 1)], "b").unwrap();
    two.put(0, called, &closed);
    let writing = two.known[1].writing.lock();
    let takes = {
        let moving = two.moving(1);
        std::thread::spawn(move || moving.take(called, &[(FOO, 1)]))
    };
    while two.known[1].waiting.load(Ordering::SeqCst) == 0 {
        std::thread::yield_now();
    }
    // A head before had sent it. It gets as far as it can.
    let begins = {
        let (moving, thrift) = (two.moving(1), two.moving(0).thrift());
        std::thread::spawn(move || moving.begin(1_000_000, ("a", &thrift), &[(FOO, 1)]))
    };
    std::thread::sleep(Duration::from_millis(100));
    drop(writing);
    assert!(takes.join().unwrap().unwrap());
    let begun = begins.join().unwrap();
    assert!(matches!(begun, Err(MoveError::Kept { slot: FOO, epoch: 1 })), "{begun:?}");
    two.moving(0).give(&closed).unwrap();
    two.client(0).check("GET foo", &two.moved(FOO, 1));
    two.client(1).check("GET foo", "$1\r\n1\r\n");
}

#[test]
fn of_two_batches_that_were_left_the_one_that_was_taken_goes_and_the_other_is_opened() {
    let mut two = Two::start();
    two.client(0).check("MSET foo 1 bar 2", "+OK\r\n");
    let called = two.begin(0, &[(BAR, 1), (FOO, 1)]);
    for (slot, taken) in [(BAR, true), (FOO, false)] {
        let closed = two.moving(0).close(&[(slot, 1)], "b").unwrap();
        two.put(0, called, &closed);
        if taken {
            assert!(two.moving(1).take(called, &[(slot, 1)]).unwrap());
        }
    }
    two.fail_over(0);
    let (to, left) = two.moving(0).left_closed().pop().unwrap();
    assert_eq!(left, [(BAR, 1), (FOO, 1)]);
    // However often it is asked.
    for _ in 0..2 {
        assert_eq!(two.moving(1).settle(&left).unwrap(), [(BAR, 1)]);
    }
    assert!(matches!(two.moving(1).take(called, &[(FOO, 1)]), Err(MoveError::NoMove(_))));
    two.moving(0).reopen(&[(FOO, 1)], "b").unwrap();
    let found = two.moving(0).find(vec![(BAR, 1)], to, &|| true).unwrap();
    two.moving(0).give(&found).unwrap();
    two.client(0).check("GET foo", "$1\r\n1\r\n");
    two.client(0).check("GET bar", &two.moved(BAR, 1));
    two.client(1).check("GET bar", "$1\r\n2\r\n");
}
