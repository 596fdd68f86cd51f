//! Managers over servers that renew, on a real ZooKeeper.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::time::{Duration, Instant};

use esker_chain::{Incarnation, Place, ServerId, Table};
use esker_cluster::{Coordinator, Freshness, Manager, Progress, Renewed};
use support::{ZooKeeper, served};
use tokio::sync::watch;
use tokio::task::JoinHandle;

const PERIOD: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(60);

/// A task that renews as a server would, and says who is in step while it serves.
struct Server {
    incarnation: Incarnation,
    stop: watch::Sender<bool>,
    /// Ends with the time before which its last renewal was taken.
    task: JoinHandle<Instant>,
}

impl Server {
    async fn start(coordinator: &Coordinator, server: u32, store: &str) -> Self {
        let (server, coordinator) = (ServerId(server), coordinator.clone());
        let incarnation = coordinator.register("c", server, &served(store)).await.unwrap();
        let (stop, stopped) = watch::channel(false);
        let task = tokio::spawn(async move {
            let mut last = Instant::now();
            while !*stopped.borrow() {
                // Before the chain is made there is nothing to renew.
                if let Ok((table, stamp)) = coordinator.table("c", Freshness::Any).await {
                    let sent = Instant::now();
                    if coordinator.renew("c", server, incarnation, stamp, Progress::default()).await.unwrap()
                        == Renewed::Taken
                    {
                        last = sent;
                    }
                    let serves = table.start(server, incarnation).is_some_and(|me| me.place == Place::Serving);
                    let syncing = table.members.iter().find(|member| member.place == Place::Syncing);
                    if let (true, Some(member)) = (serves, syncing) {
                        coordinator.tell_in_step("c", member.server, table.version).await.unwrap();
                    }
                }
                tokio::time::sleep(PERIOD / 10).await;
            }
            last
        });
        Self { incarnation, stop, task }
    }

    /// Ends it without a word. A time before which its last renewal was sent and taken.
    async fn stop(self) -> Instant {
        self.stop.send(true).unwrap();
        self.task.await.unwrap()
    }
}

struct Office {
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Office {
    fn open(coordinator: &Coordinator, server: u32) -> Self {
        let (stop, stopped) = watch::channel(false);
        let manager = Manager::new(coordinator.clone(), ServerId(server), PERIOD);
        Self { stop, task: tokio::spawn(manager.run(stopped)) }
    }

    async fn close(self) {
        self.stop.send(true).unwrap();
        self.task.await.unwrap();
    }
}

async fn table(coordinator: &Coordinator) -> Table {
    coordinator.table("c", Freshness::Latest).await.unwrap().0
}

/// Waits until the server stands so.
async fn until(coordinator: &Coordinator, server: u32, place: Place) -> Table {
    let began = Instant::now();
    loop {
        let table = table(coordinator).await;
        if table.member(ServerId(server)).is_some_and(|member| member.place == place) {
            return table;
        }
        assert!(began.elapsed() < PATIENCE, "server {server} should be {place:?}: {table:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Stops a server, and sees that it is taken out in time and not before.
async fn taken_out(coordinator: &Coordinator, server: u32, running: Server, place: Place) {
    let last = running.stop().await;
    until(coordinator, server, place).await;
    let after = last.elapsed();
    assert!(after >= PERIOD, "server {server} was taken out {after:?} after its last renewal");
    // Two periods, and some for a machine that has other things to do.
    assert!(after < PERIOD * 4, "server {server} was taken out only {after:?} after its last renewal");
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_go_and_come_back_and_the_last_is_waited_for() {
    let zookeeper = ZooKeeper::start();
    let coordinator = zookeeper.coordinator();
    let one = Server::start(&coordinator, 1, "s1").await;
    let two = Server::start(&coordinator, 2, "s2").await;
    let three = Server::start(&coordinator, 3, "s3").await;
    let first = Table::first([1, 2, 3].map(|server| (ServerId(server), Incarnation(1))));
    let stores = [1, 2, 3].map(|server| (ServerId(server), format!("s{server}"))).into();
    coordinator.init_chain("c", &first, &stores).await.unwrap();
    // Two of one session hold the office both, and one waits for it.
    let shared = zookeeper.coordinator();
    let both = [Office::open(&shared, 1), Office::open(&shared, 2)];
    tokio::time::sleep(PERIOD / 4).await;
    let waits = Office::open(&zookeeper.coordinator(), 3);

    tokio::time::sleep(PERIOD * 2).await;
    assert_eq!(table(&coordinator).await, first, "all are there");
    taken_out(&coordinator, 3, three, Place::Offline).await;
    assert_eq!(table(&coordinator).await.version, 2);
    taken_out(&coordinator, 2, two, Place::Offline).await;
    taken_out(&coordinator, 1, one, Place::LastServing).await;

    // Another manager goes on, and finds a lease that stands and is of no server that is there.
    for office in both {
        office.close().await;
    }
    let three = Server::start(&coordinator, 3, "s3").await;
    until(&coordinator, 3, Place::Waiting).await;
    let replaced = Server::start(&coordinator, 1, "another disk").await;
    tokio::time::sleep(PERIOD * 3).await;
    let still = table(&coordinator).await;
    assert_eq!(still.members.last().map(|member| (member.server.0, member.place)), Some((1, Place::LastServing)));
    assert!(still.serving().next().is_none(), "{still:?}");
    replaced.stop().await;

    let one = Server::start(&coordinator, 1, "s1").await;
    let back = until(&coordinator, 1, Place::Serving).await;
    assert_eq!(back.head().map(|head| (head.server.0, head.incarnation)), Some((1, one.incarnation)));
    assert_eq!(one.incarnation, Incarnation(3));
    let whole = until(&coordinator, 3, Place::Serving).await;
    let serving: Vec<_> = whole.serving().map(|member| (member.server.0, member.incarnation)).collect();
    assert_eq!(serving, [(1, one.incarnation), (3, three.incarnation)]);

    // One that is started anew at once is brought up anew, on whatever disk it has while another serves.
    three.stop().await;
    let three = Server::start(&coordinator, 3, "a third disk").await;
    let began = Instant::now();
    loop {
        let table = table(&coordinator).await;
        if table.serving().any(|member| (member.server.0, member.incarnation) == (3, three.incarnation)) {
            break;
        }
        assert!(began.elapsed() < PATIENCE, "{table:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(coordinator.stores("c").await.unwrap()[&ServerId(3)], "a third disk");

    // Giving a lease up costs no wait.
    let incarnation = three.incarnation;
    three.stop().await;
    let began = Instant::now();
    coordinator.give_up("c", ServerId(3), incarnation).await.unwrap();
    until(&coordinator, 3, Place::Offline).await;
    assert!(began.elapsed() < PERIOD, "{:?}", began.elapsed());
    one.stop().await;
    waits.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outage_of_the_coordinator_takes_out_no_server_that_renews_after_it() {
    let mut zookeeper = ZooKeeper::start();
    let coordinator = zookeeper.coordinator();
    let first = Table::first([(ServerId(1), Incarnation(1)), (ServerId(2), Incarnation(1))]);
    let stores = [1, 2].map(|server| (ServerId(server), format!("s{server}"))).into();
    coordinator.init_chain("c", &first, &stores).await.unwrap();
    for server in [1, 2] {
        coordinator.register("c", ServerId(server), &served(&format!("s{server}"))).await.unwrap();
    }
    let renewing = zookeeper.hasty_coordinator().await;
    let servers = tokio::spawn(async move {
        loop {
            for server in [1, 2].map(ServerId) {
                if let Ok((_, stamp)) = renewing.table("c", Freshness::Any).await {
                    // An outage is what this is for.
                    let _ = renewing.renew("c", server, Incarnation(1), stamp, Progress::default()).await;
                }
            }
            tokio::time::sleep(PERIOD / 10).await;
        }
    });
    let manager = zookeeper.hasty_coordinator().await;
    let office = Office::open(&manager, 1);
    tokio::time::sleep(PERIOD * 2).await;
    zookeeper.kill();
    tokio::time::sleep(PERIOD * 3).await;
    zookeeper.resume();
    tokio::time::sleep(PERIOD * 5).await;
    assert_eq!(table(&coordinator).await, first);
    assert!(manager.stand_for_manager(ServerId(1)).await.unwrap(), "it is in office again");
    servers.abort();
    until(&coordinator, 2, Place::LastServing).await;
    office.close().await;
}
