//! Two servers of a pair in one process, where one has an epoch that only stores can bring about.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use esker_chain::{ServerId, Standing};
use esker_cluster::Served;
use esker_memory::MemoryStore;
use esker_store::{Capability, Change, CommitSeq, Completion, ObjectStore, Op, Transaction};

use crate::error::Error;
use crate::pair::{Calls, Mode, Pair, PairConfig, Promotion, Record, Role, promote};

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
    let served =
        Served { store: none.clone(), peer: none, resp: None, grpc: None, nbd: None, http: None, thrift: None };
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

/// Two stores, and the servers of those that run.
struct Two {
    stores: [Arc<MemoryStore>; 2],
    primary: Pair,
    standby: Pair,
}

const NOWHERE: &str = "127.0.0.1:1";

fn begin(store: &Arc<MemoryStore>, seed: u64, follow: Option<&Pair>) -> Pair {
    let follow = follow.map(|primary| primary.peer_address().to_string());
    Pair::start(Arc::clone(store) as _, config(seed, follow)).unwrap()
}

fn write(pair: &Pair, name: &'static str) {
    let txn = Transaction::new().create_collection(&name.into());
    pair.store().unwrap().submit(txn).wait().unwrap();
}

impl Two {
    /// A primary, and a standby that has what it has.
    fn begin() -> Self {
        let stores = [(); 2].map(|()| Arc::new(MemoryStore::new()));
        let primary = begin(&stores[0], 1, None);
        let standby = begin(&stores[1], 2, Some(&primary));
        let two = Self { stores, primary, standby };
        write(&two.primary, "one");
        two.caught_up();
        two
    }

    fn caught_up(&self) {
        soon("the standby has caught up", || {
            let (theirs, own) = (self.primary.stand().unwrap(), self.standby.stand().unwrap());
            !own.part && own.applied == theirs.applied && own.lag() == Some(0) && theirs.lag() == Some(0)
        });
    }
}

fn blocking<T>(call: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(call)
}

/// A store that is shut is promoted, where the primary is told at this server.
fn promote_shut(store: &MemoryStore, primary: &Pair, force: bool) -> Result<Promotion, Error> {
    let address = primary.peer_address().to_string();
    blocking(promote(store, Some(&address), None, force))
}

/// A standby that runs is promoted.
fn promote_running(standby: &Pair, force: bool) -> Result<Promotion, String> {
    let address = standby.peer_address().to_string();
    blocking(async { Calls::connect(&address, None).await?.promote(force).await })
}

fn role(store: &MemoryStore) -> (Role, u64) {
    let record = Record::read(store).unwrap().unwrap();
    (record.role, record.epoch)
}

#[test]
fn a_primary_of_another_life_is_not_fenced_but_by_force() {
    let Two { stores: [first, second], primary, standby } = Two::begin();
    standby.stop();
    primary.stop();
    // As a lone server writes: with no number.
    first.submit(Transaction::new().create_collection(&"beside".into())).wait().unwrap();
    let primary = begin(&first, 3, None);
    assert_eq!(primary.stand().unwrap().applied, 1, "the numbers are the same");
    let refused = promote_shut(&second, &primary, false).unwrap_err();
    assert!(matches!(refused, Error::OtherLife { .. }), "{refused}");
    // Nor one that runs, and has not followed it yet.
    let cut_off = config(4, Some(NOWHERE.to_owned()));
    let mut record = Record::read(&*second).unwrap().unwrap();
    record.peer = primary.peer_address().to_string();
    record.write(&*second).unwrap();
    let standby = Pair::start(Arc::clone(&second) as _, cut_off).unwrap();
    let refused = promote_running(&standby, false).unwrap_err();
    assert!(refused.contains("not known"), "{refused}");
    standby.stop();
    assert_eq!((role(&first), role(&second)), ((Role::Primary, 1), (Role::Standby, 1)));
    write(&primary, "it answers still");
    let forced = promote_shut(&second, &primary, true).unwrap();
    assert_eq!((forced.epoch, forced.lacks), (2, None));
    assert_eq!((role(&first), role(&second)), ((Role::Deposed, 2), (Role::Primary, 2)));
}

#[test]
fn a_standby_that_was_just_started_says_what_its_store_has() {
    let Two { stores: [first, second], primary, standby } = Two::begin();
    standby.stop();
    let mut record = Record::read(&*second).unwrap().unwrap();
    record.peer = primary.peer_address().to_string();
    record.write(&*second).unwrap();
    let standby = Pair::start(Arc::clone(&second) as _, config(3, Some(NOWHERE.to_owned()))).unwrap();
    assert_eq!(standby.stand().unwrap().applied, 1);
    // What it lacks it is not sent: the primary is not fenced for nothing.
    write(&primary, "two");
    let refused = promote_running(&standby, false).unwrap_err();
    assert!(refused.contains("lacks 1 operations"), "{refused}");
    assert_eq!(role(&first), (Role::Primary, 1));
    standby.stop();
    let standby = begin(&second, 4, Some(&primary));
    let two = Two { stores: [Arc::clone(&first), Arc::clone(&second)], primary, standby };
    two.caught_up();
    two.standby.stop();
    let standby = Pair::start(Arc::clone(&second) as _, config(5, Some(NOWHERE.to_owned()))).unwrap();
    assert_eq!(promote_running(&standby, false).unwrap().lacks, Some(0));
    assert_eq!((role(&first), role(&second)), ((Role::Deposed, 2), (Role::Primary, 2)));
}

#[test]
fn a_primary_that_runs_as_a_standby_keeps_that_it_was_fenced() {
    let Two { stores: [first, second], primary, standby } = Two::begin();
    standby.stop();
    primary.stop();
    let follower = Pair::start(Arc::clone(&first) as _, config(3, Some(NOWHERE.to_owned()))).unwrap();
    let promoted = promote_shut(&second, &follower, false).unwrap();
    assert_eq!((promoted.epoch, promoted.lacks), (2, Some(0)));
    assert_eq!(role(&first), (Role::Deposed, 2));
    follower.stop();
    assert!(matches!(Pair::start(first as _, config(4, None)).map(drop), Err(Error::Deposed { epoch: 2, .. })));
}

#[test]
fn a_standby_is_no_primary_that_was_told() {
    let Two { stores: [_, second], primary, standby } = Two::begin();
    // Another standby of this primary, or this one by a wrong address.
    let third = Arc::new(MemoryStore::new());
    Standing::read(&*third, &"three".into()).unwrap();
    Record::read(&*second).unwrap().unwrap().write(&*third).unwrap();
    let refused = promote_shut(&third, &standby, false).unwrap_err();
    assert!(matches!(refused, Error::NotFenced { .. }), "{refused}");
    assert_eq!(promote_shut(&third, &standby, true).unwrap().lacks, None);
    primary.stop();
}

#[test]
fn a_server_of_another_pair_is_not_taken_for_the_primary_before() {
    let [first, second] = [(); 2].map(|()| Arc::new(MemoryStore::new()));
    let other = begin(&first, 1, None);
    Standing::read(&*second, &"two".into()).unwrap();
    let fences = other.peer_address().to_string();
    Record { epoch: 2, pair: "p".into(), fences: fences.clone(), ..Record::new(Role::Primary) }
        .write(&*second)
        .unwrap();
    let primary = begin(&second, 2, None);
    std::thread::sleep(Duration::from_millis(1_500));
    assert_eq!(Record::read(&*second).unwrap().unwrap().fences, fences, "that one goes on being told");
    assert_eq!(other.stand().unwrap().record.role, Role::Primary);
    primary.stop();
}

#[test]
fn a_primary_before_may_be_gone_back_to_by_force() {
    let Two { stores: [first, second], primary, standby } = Two::begin();
    promote_running(&standby, false).unwrap();
    assert!(promote_running(&primary, true).unwrap_err().contains("promote --store PATH --force"));
    primary.stop();
    let refused = promote_shut(&first, &standby, false).unwrap_err();
    assert!(matches!(refused, Error::WasPrimary { epoch: 2 }), "{refused}");
    let again = promote_shut(&first, &standby, true).unwrap();
    assert_eq!(again.epoch, 3);
    assert!(again.told.contains("everything that it acknowledged"), "{}", again.told);
    assert_eq!((role(&first), role(&second)), ((Role::Primary, 3), (Role::Deposed, 3)));
    begin(&first, 3, None).stop();
}

#[test]
fn another_promotion_is_refused_or_has_a_higher_epoch() {
    let Two { stores: [first, second], primary, standby } = Two::begin();
    let third = Arc::new(MemoryStore::new());
    third.submit(Transaction::new().create_collection(&"three".into())).wait().unwrap();
    Standing::read(&*third, &"three".into()).unwrap();
    Record::read(&*second).unwrap().unwrap().write(&*third).unwrap();
    assert_eq!(promote_running(&standby, false).unwrap().epoch, 2);
    let refused = promote_shut(&third, &primary, false).unwrap_err();
    assert!(matches!(refused, Error::Promoted { epoch: 2 }), "{refused}");
    assert_eq!((role(&first), role(&third)), ((Role::Deposed, 2), (Role::Standby, 1)));
    assert_eq!(promote_shut(&third, &primary, true).unwrap().epoch, 3);
    assert_eq!(role(&first), (Role::Deposed, 3));
}

/// A store that does not keep the record of a pair, for a while.
struct Forgetful {
    store: Arc<dyn ObjectStore>,
    refuses: AtomicBool,
}

impl ObjectStore for Forgetful {
    fn capability(&self) -> Capability {
        self.store.capability()
    }
    fn submit(&self, txn: Transaction) -> Completion<CommitSeq> {
        let is_record = |op: &Op| matches!(op, Op::Object(_, Change::XattrSet { name, .. }) if name == "pair");
        if self.refuses.load(Ordering::SeqCst) && txn.ops.iter().any(is_record) {
            return Completion::ready(Err(esker_store::Error::Closed));
        }
        self.store.submit(txn)
    }
    esker_store::forward_reads!(store);
}

#[test]
fn a_standby_that_could_not_keep_whose_it_is_begins_again() {
    let primary = begin(&Arc::new(MemoryStore::new()), 1, None);
    write(&primary, "one");
    let store = Arc::new(Forgetful { store: Arc::new(MemoryStore::new()), refuses: true.into() });
    let follow = primary.peer_address().to_string();
    let standby = Pair::start(Arc::clone(&store) as _, config(2, Some(follow))).unwrap();
    soon("it says that it keeps nothing", || !standby.stand().unwrap().trouble.is_empty());
    assert!(standby.stand().unwrap().part, "it takes nothing");
    store.refuses.store(false, Ordering::SeqCst);
    soon("it is brought up", || {
        let stand = standby.stand().unwrap();
        !stand.part && stand.applied == 1 && stand.record.epoch == 1
    });
    let kept = Record::read(&*store).unwrap().unwrap();
    assert_eq!((kept.role, kept.pair), (Role::Standby, primary.stand().unwrap().record.pair));
}

#[test]
fn promotions_that_are_asked_for_at_once_leave_one_primary_that_answers() {
    for _ in 0..4 {
        let Two { stores: [_, second], primary, standby } = Two::begin();
        let promoted = std::thread::scope(|scope| {
            let asked = [(); 3].map(|()| scope.spawn(|| promote_running(&standby, false)));
            asked.map(|asked| asked.join().unwrap().is_ok())
        });
        assert!(promoted.contains(&true), "{promoted:?}");
        assert_eq!(role(&second), (Role::Primary, 2));
        soon("it answers", || standby.view().heads);
        write(&standby, "two");
        primary.stop();
    }
}
