//! Two servers of a pair in one process, where one has an epoch that only stores can bring about.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use esker_chain::{ServerId, Standing};
use esker_cluster::Served;
use esker_memory::MemoryStore;
use esker_store::ObjectStore;

use crate::error::Error;
use crate::pair::{Mode, Pair, PairConfig, Record, Role};

fn config(seed: u64, follow: Option<String>) -> PairConfig {
    let peers = esker_peers::Config {
        cluster: String::new(),
        me: ServerId(0),
        listen: "127.0.0.1:0".parse().unwrap(),
        tls: None,
        copy_bytes_per_s: 0,
        waiting_bytes_max: 1 << 20,
    };
    let none = String::new();
    let served = Served { store: none.clone(), peer: none, resp: None, grpc: None, nbd: None, http: None };
    let fresh = format!("store {seed}").into();
    PairConfig { mode: Mode::Async, follow, replaces: false, peers, served, fresh, kept_bytes_max: 1 << 20, seed }
}

fn soon(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(20), "not so: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_primary_that_hears_a_higher_epoch_from_a_standby_answers_no_more() {
    let (first, second) = (Arc::new(MemoryStore::new()), Arc::new(MemoryStore::new()));
    let primary = Pair::start(Arc::clone(&first) as Arc<dyn ObjectStore>, config(1, None)).unwrap();
    let served = primary.store().unwrap();
    served.collections().wait().unwrap();
    let address = primary.peer_address().to_string();
    // It has followed a newer primary, and is told to follow the old one.
    let pair = primary.stand().unwrap().record.pair;
    Record { epoch: 5, pair, ..Record::new(Role::Standby) }.write(&*second).unwrap();
    let standby = Pair::start(Arc::clone(&second) as _, config(2, Some(address.clone()))).unwrap();
    soon("it is deposed", || primary.stand().unwrap().record.role == Role::Deposed);
    assert!(primary.store().is_none() && !primary.view().heads);
    assert!(served.collections().wait().is_err(), "what was opened before is not answered either");
    soon("the standby says so", || standby.stand().unwrap().trouble.contains(&address));
    assert_eq!(Record::read(&*second).unwrap().unwrap().epoch, 5, "it follows no primary of a lower one");
    primary.stop();
    let again = Pair::start(first as _, config(3, None)).map(drop).unwrap_err();
    assert!(matches!(again, Error::Deposed { epoch: 5, .. }), "{again}");
}

#[test]
fn a_standby_of_another_pair_is_turned_away_and_says_so() {
    let (first, second) = (Arc::new(MemoryStore::new()), Arc::new(MemoryStore::new()));
    let primary = Pair::start(first as _, config(1, None)).unwrap();
    Standing::read(&*second, &"two".into()).unwrap();
    Record { epoch: 9, pair: "another".into(), ..Record::new(Role::Standby) }.write(&*second).unwrap();
    let standby = Pair::start(second as _, config(2, Some(primary.peer_address().to_string()))).unwrap();
    soon("it is turned away", || standby.stand().unwrap().trouble.contains("another pair"));
    assert_eq!(primary.stand().unwrap().record.role, Role::Primary, "an epoch of another pair says nothing");
}
