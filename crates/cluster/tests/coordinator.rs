//! What the coordinator takes and what it refuses, on a real ZooKeeper.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use esker_chain::{Incarnation, Place, ServerId, Table};
use esker_cluster::{Coordinator, Error, Freshness, Progress, Renewed, TableStamp};
use support::{OUTAGE, ZooKeeper, served};

const ONE: ServerId = ServerId(1);
const TWO: ServerId = ServerId(2);
const FIRST: Incarnation = Incarnation(1);

/// A chain `c` of servers 1 and 2, which have registered once.
async fn with_chain(coordinator: &Coordinator) -> (Table, TableStamp) {
    for (server, store) in [(ONE, "s1"), (TWO, "s2")] {
        coordinator.register("c", server, &served(store)).await.unwrap();
    }
    let stores = BTreeMap::from([(ONE, "s1".to_string()), (TWO, "s2".to_string())]);
    coordinator.init_chain("c", &Table::first([(ONE, FIRST), (TWO, FIRST)]), &stores).await.unwrap();
    coordinator.table("c", Freshness::Latest).await.unwrap()
}

/// The table after this one, without server 2.
fn without_two(table: &Table) -> Table {
    let mut next = table.clone();
    next.version += 1;
    let member = next.members.iter_mut().find(|member| member.server == TWO).unwrap();
    (member.place, member.since) = (Place::Offline, next.version);
    next
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chain_is_made_once() {
    let zookeeper = ZooKeeper::start();
    let coordinator = zookeeper.coordinator();
    assert_eq!(coordinator.chains().await.unwrap(), [""; 0]);
    assert!(matches!(coordinator.table("c", Freshness::Any).await, Err(Error::NoChain(name)) if name == "c"));
    let first = Table::first([(ONE, FIRST), (TWO, FIRST)]);
    let one_store = BTreeMap::from([(ONE, "s1".to_string())]);
    assert!(matches!(coordinator.init_chain("c", &first, &one_store).await, Err(Error::Damaged { .. })));
    for name in ["", ".", "a/b", "ä", &"x".repeat(101)] {
        assert!(matches!(coordinator.init_chain(name, &first, &one_store).await, Err(Error::Name(_))), "{name}");
    }
    let (table, _) = with_chain(&coordinator).await;
    assert_eq!(table, first);
    let other = Table::first([(ONE, Incarnation(5))]);
    assert!(matches!(coordinator.init_chain("c", &other, &one_store).await, Err(Error::Exists(_))));
    // Another session sees the first, and all of it.
    let coordinator = zookeeper.coordinator();
    assert_eq!(coordinator.table("c", Freshness::Latest).await.unwrap().0, first);
    assert_eq!(coordinator.chains().await.unwrap(), ["c"]);
    assert_eq!((coordinator.leases("c").await.unwrap().len(), coordinator.in_step("c").await.unwrap()), (2, None));
    let stores = coordinator.stores("c").await.unwrap();
    assert_eq!(stores, BTreeMap::from([(ONE, "s1".to_string()), (TWO, "s2".to_string())]));
}

#[tokio::test(flavor = "multi_thread")]
async fn each_start_has_a_higher_number() {
    let zookeeper = ZooKeeper::start();
    let coordinator = zookeeper.coordinator();
    assert_eq!(coordinator.servers("c").await.unwrap().len(), 0);
    for number in 1..=3 {
        let store = format!("store {number}");
        assert_eq!(coordinator.register("c", ONE, &served(&store)).await.unwrap(), Incarnation(number));
        let record = coordinator.servers("c").await.unwrap().remove(&ONE).unwrap();
        assert_eq!((record.incarnation, record.served), (Incarnation(number), served(&store)));
    }
    assert_eq!(coordinator.register("c", TWO, &served("x")).await.unwrap(), FIRST);
    let mut at_once = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let coordinator = zookeeper.coordinator();
        at_once.spawn(async move { coordinator.register("c", ONE, &served("y")).await.unwrap().0 });
    }
    assert_eq!(BTreeSet::from_iter(at_once.join_all().await), BTreeSet::from([4, 5, 6, 7]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_is_taken_only_after_the_last_and_while_renewals_stand() {
    let zookeeper = ZooKeeper::start();
    let (coordinator, other) = (zookeeper.coordinator(), zookeeper.coordinator());
    let (table, stamp) = with_chain(&coordinator).await;
    let next = without_two(&table);
    for version in [0, 1, 3] {
        let wrong = Table { version, ..next.clone() };
        let error = coordinator.change("c", stamp, &wrong, &[], &[]).await.unwrap_err();
        assert!(matches!(error, Error::NotNext { last: 1, given } if given == version), "{error}");
    }
    let seen = coordinator.leases("c").await.unwrap()[&TWO].renewal;
    assert_eq!(other.renew("c", TWO, FIRST, stamp, Progress::default()).await.unwrap(), Renewed::Taken);
    assert!(!coordinator.change("c", stamp, &next, &[(TWO, Some(seen))], &[]).await.unwrap(), "it has moved on");
    assert!(!coordinator.change("c", stamp, &next, &[(TWO, Some(u64::MAX))], &[]).await.unwrap());
    assert!(!coordinator.change("c", stamp, &next, &[(TWO, None)], &[]).await.unwrap(), "it has renewed");
    let unchanged = coordinator.table("c", Freshness::Latest).await.unwrap();
    assert_eq!((&unchanged.0, unchanged.1), (&table, stamp), "a refused change leaves nothing");
    assert_eq!(coordinator.stores("c").await.unwrap().len(), 2);
    // Server 9 has never renewed, and 8 has no store noted yet.
    let standing = [(ONE, Some(0)), (TWO, Some(seen + 1)), (ServerId(9), None)];
    let stores = [(TWO, "t2".to_string()), (ServerId(8), "s8".to_string())];
    assert!(coordinator.change("c", stamp, &next, &standing, &stores).await.unwrap());
    assert!(!coordinator.change("c", stamp, &next, &[], &[]).await.unwrap(), "the stamp is stale");
    let (now, _) = other.table("c", Freshness::Latest).await.unwrap();
    assert_eq!(now, next);
    let stores: Vec<_> = other.stores("c").await.unwrap().into_values().collect();
    assert_eq!(stores, ["s1", "t2", "s8"]);
    assert!(!other.leases("c").await.unwrap().contains_key(&ServerId(9)));
    let absent = coordinator.change("none", stamp, &next, &[], &[]).await;
    assert!(matches!(absent, Err(Error::NoChain(_))), "{absent:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_is_taken_only_under_the_last_table() {
    let zookeeper = ZooKeeper::start();
    let coordinator = zookeeper.coordinator();
    let (table, stamp) = with_chain(&coordinator).await;
    let stranger = ServerId(7);
    for server in [stranger, ServerId(8)] {
        coordinator.register("c", server, &served("s")).await.unwrap();
    }
    for number in 0..3 {
        assert_eq!(coordinator.renew("c", stranger, FIRST, stamp, Progress::default()).await.unwrap(), Renewed::Taken);
        let lease = coordinator.leases("c").await.unwrap()[&stranger];
        assert_eq!((lease.renewal, lease.incarnation, lease.gave_up, lease.table_version), (number, FIRST, false, 1));
    }
    assert!(coordinator.change("c", stamp, &without_two(&table), &[], &[]).await.unwrap());
    for server in [ONE, stranger, ServerId(8)] {
        let before = coordinator.leases("c").await.unwrap();
        assert_eq!(
            coordinator.renew("c", server, FIRST, stamp, Progress::default()).await.unwrap(),
            Renewed::TableChanged
        );
        assert_eq!(coordinator.leases("c").await.unwrap(), before);
    }
    let (_, stamp) = coordinator.table("c", Freshness::Any).await.unwrap();
    assert_eq!(coordinator.renew("c", ONE, FIRST, stamp, Progress::default()).await.unwrap(), Renewed::Taken);
    let held = coordinator.leases("c").await.unwrap()[&ONE];
    // Another start, and a server that has none, give nothing up.
    coordinator.give_up("c", ONE, Incarnation(2)).await.unwrap();
    coordinator.give_up("c", ServerId(8), FIRST).await.unwrap();
    assert_eq!(coordinator.leases("c").await.unwrap()[&ONE], held);
    coordinator.give_up("c", ONE, FIRST).await.unwrap();
    let given_up = coordinator.leases("c").await.unwrap()[&ONE];
    assert_eq!((given_up.gave_up, given_up.renewal), (true, held.renewal + 1));
    assert_eq!(coordinator.renew("c", ONE, FIRST, stamp, Progress::default()).await.unwrap(), Renewed::Taken);
    assert!(!coordinator.leases("c").await.unwrap()[&ONE].gave_up);
    // Servers register for a chain before it is made.
    coordinator.register("none", ONE, &served("s")).await.unwrap();
    assert!(matches!(coordinator.renew("none", ONE, FIRST, stamp, Progress::default()).await, Err(Error::NoChain(_))));
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_start_that_has_registered_last_renews() {
    let zookeeper = ZooKeeper::start();
    let (old, new) = (zookeeper.coordinator(), zookeeper.coordinator());
    let (_, stamp) = with_chain(&old).await;
    assert_eq!(old.renew("c", ONE, FIRST, stamp, Progress::default()).await.unwrap(), Renewed::Taken);
    // Another coordinator may renew for it as well, which has to read first what stands there.
    assert_eq!(new.renew("c", ONE, FIRST, stamp, Progress::default()).await.unwrap(), Renewed::Taken);
    let second = new.register("c", ONE, &served("s1")).await.unwrap();
    let before = new.leases("c").await.unwrap()[&ONE];
    for _ in 0..2 {
        assert_eq!(old.renew("c", ONE, FIRST, stamp, Progress::default()).await.unwrap(), Renewed::Superseded);
    }
    assert_eq!(new.renew("c", ONE, FIRST, stamp, Progress::default()).await.unwrap(), Renewed::Superseded);
    assert_eq!(
        old.renew("c", ServerId(9), FIRST, stamp, Progress::default()).await.unwrap(),
        Renewed::Superseded,
        "it never registered"
    );
    assert_eq!(new.leases("c").await.unwrap()[&ONE], before, "nothing was renewed");
    for coordinator in [&new, &old] {
        assert_eq!(coordinator.renew("c", ONE, second, stamp, Progress::default()).await.unwrap(), Renewed::Taken);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_are_told_and_who_is_in_step_only_goes_forward() {
    let zookeeper = ZooKeeper::start();
    let (coordinator, other) = (zookeeper.coordinator(), zookeeper.coordinator());
    let (table, stamp) = with_chain(&coordinator).await;
    let mut changes = other.changes("c").unwrap();
    changes.next().await.unwrap();
    let quiet = |ms| Duration::from_millis(ms);
    assert!(tokio::time::timeout(quiet(300), changes.next()).await.is_err(), "nothing has changed");
    coordinator.renew("c", ONE, FIRST, stamp, Progress::default()).await.unwrap();
    assert!(tokio::time::timeout(quiet(300), changes.next()).await.is_err(), "a renewal changes no table");
    // One that comes while none waits is told, too.
    assert!(coordinator.change("c", stamp, &without_two(&table), &[], &[]).await.unwrap());
    tokio::time::timeout(quiet(5_000), changes.next()).await.unwrap().unwrap();
    let waits = tokio::spawn(async move {
        changes.next().await.unwrap();
        changes
    });
    tokio::time::sleep(quiet(200)).await;
    assert!(!waits.is_finished());
    coordinator.tell_in_step("c", TWO, 2).await.unwrap();
    tokio::time::timeout(quiet(5_000), waits).await.unwrap().unwrap();
    coordinator.tell_in_step("c", ONE, 1).await.unwrap();
    assert_eq!(coordinator.in_step("c").await.unwrap(), Some((TWO, 2)));
    coordinator.tell_in_step("c", ONE, 3).await.unwrap();
    assert_eq!(coordinator.in_step("c").await.unwrap(), Some((ONE, 3)));
}

#[tokio::test(flavor = "multi_thread")]
async fn one_session_holds_the_office() {
    let zookeeper = ZooKeeper::start();
    let (first, second) = (zookeeper.coordinator(), zookeeper.coordinator());
    assert!(first.stand_for_manager(ONE).await.unwrap());
    assert!(!second.stand_for_manager(TWO).await.unwrap() && first.stand_for_manager(ONE).await.unwrap());
    second.resign().await.unwrap();
    assert!(!second.stand_for_manager(TWO).await.unwrap(), "only who holds it gives it up");
    first.resign().await.unwrap();
    assert!(second.stand_for_manager(TWO).await.unwrap() && !first.stand_for_manager(ONE).await.unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outage_ends_calls_in_time_and_is_outlasted() {
    let mut zookeeper = ZooKeeper::start();
    let (table, mut stamp) = with_chain(&zookeeper.coordinator()).await;
    let coordinator = zookeeper.hasty_coordinator().await;
    let mut changes = coordinator.changes("c").unwrap();
    changes.next().await.unwrap();
    // Shorter than a session lasts, and longer.
    for outage in [Duration::ZERO, OUTAGE.session * 3 / 2] {
        zookeeper.kill();
        let began = Instant::now();
        loop {
            let called = Instant::now();
            let read = coordinator.table("c", Freshness::Any).await;
            assert!(matches!(read, Err(Error::Unreachable { .. } | Error::Unknown { .. })), "{read:?}");
            let renewed = coordinator.renew("c", ONE, FIRST, stamp, Progress::default()).await;
            assert!(matches!(renewed, Err(Error::Unreachable { .. } | Error::Unknown { .. })), "{renewed:?}");
            let (took, bound) = (called.elapsed(), 2 * OUTAGE.call + Duration::from_millis(500));
            assert!(took < bound, "two calls took {took:?}");
            if began.elapsed() >= outage {
                break;
            }
        }
        let registered = coordinator.register("c", ONE, &served("s1")).await;
        assert!(matches!(registered, Err(Error::Unreachable { .. })), "{registered:?}");
        zookeeper.resume();
        let began = Instant::now();
        let read = loop {
            match coordinator.table("c", Freshness::Latest).await {
                Ok((read, now)) => {
                    stamp = now;
                    break read;
                }
                Err(error) => assert!(began.elapsed() < Duration::from_secs(30), "it does not come back: {error}"),
            }
        };
        assert_eq!(read, table, "what was acknowledged is there");
        assert_eq!(coordinator.renew("c", ONE, FIRST, stamp, Progress::default()).await.unwrap(), Renewed::Taken);
    }
    // Whether the session ended or not, each change that comes after a telling is told.
    assert!(coordinator.change("c", stamp, &without_two(&table), &[], &[]).await.unwrap());
    let telling = async {
        if changes.next().await.is_err() {
            changes.next().await.unwrap();
        }
        coordinator.tell_in_step("c", TWO, 2).await.unwrap();
        changes.next().await.unwrap();
    };
    tokio::time::timeout(Duration::from_secs(5), telling).await.unwrap();
}
