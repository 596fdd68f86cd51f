//! Instances of a service on a real ZooKeeper: found by others, gone with their server, whatever stands beside them.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use esker_cluster::{Coordinator, Error, Instance};
use support::{OUTAGE, ZooKeeper};

const SERVICE: &str = "/data/zdb";

fn instances(texts: &[&str]) -> BTreeSet<Instance> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

/// Writes a node as a stranger would.
async fn write(zookeeper: &ZooKeeper, node: &str) {
    let client = zookeeper_client::Client::connect(&zookeeper.location().servers()).await.unwrap();
    let acls = zookeeper_client::Acls::anyone_all();
    let persistent = zookeeper_client::CreateMode::Persistent.with_acls(acls);
    client.create(node, b"x", &persistent).await.unwrap();
}

async fn found(coordinator: &Coordinator) -> BTreeSet<Instance> {
    coordinator.instances(SERVICE).await.unwrap().found.into_iter().collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn instances_stand_for_as_long_as_their_server() {
    let zookeeper = ZooKeeper::start();
    let (one, two) = (zookeeper.hasty_coordinator().await, zookeeper.coordinator());
    assert_eq!(found(&one).await, BTreeSet::new());
    let none = BTreeSet::new();
    let of_one = instances(&["thriftbinary_100:h1:9901", "thriftbinary_300:h1:9901"]);
    let of_two = instances(&["thriftbinary_200:h2:9901"]);
    one.announce(SERVICE, &of_one, &none).await.unwrap();
    two.announce(SERVICE, &of_two, &none).await.unwrap();
    let marks = |found: BTreeSet<Instance>| found.into_iter().map(|instance| instance.mark).collect::<Vec<_>>();
    assert_eq!(marks(found(&two).await), [100, 200, 300]);
    // Its keys have become others.
    let later = instances(&["thriftbinary_150:h1:9901", "thriftbinary_300:h1:9901"]);
    one.announce(SERVICE, &later, &of_one).await.unwrap();
    one.announce(SERVICE, &later, &later).await.unwrap();
    assert_eq!(marks(found(&two).await), [150, 200, 300]);

    // What others write there is named, and left where it is.
    write(&zookeeper, &format!("{SERVICE}/nonsense")).await;
    write(&zookeeper, &format!("{SERVICE}/thriftbinary_x:h1:9901")).await;
    one.announce(SERVICE, &later, &later).await.unwrap();
    let seen = two.instances(SERVICE).await.unwrap();
    let strange: Vec<String> = seen.strange.iter().map(ToString::to_string).collect();
    assert_eq!((seen.found.len(), strange.len()), (3, 2), "{strange:?}");
    assert!(strange.iter().any(|why| why.contains("\"nonsense\"")), "{strange:?}");

    // Another start of the same server, whose last session has not ended yet.
    let again = zookeeper.coordinator();
    again.announce(SERVICE, &later, &none).await.unwrap();
    assert_eq!(marks(found(&two).await), [150, 200, 300]);
    drop(one);
    let until = Instant::now() + OUTAGE.session + Duration::from_secs(1);
    while Instant::now() < until {
        assert_eq!(marks(found(&two).await), [150, 200, 300], "it went with the session of a start before");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    again.announce(SERVICE, &none, &later).await.unwrap();
    assert_eq!(marks(found(&two).await), [200]);
    assert!(matches!(two.announce("data", &of_two, &none).await, Err(Error::Refused { .. })));
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_of_what_stands_there_are_told() {
    let mut zookeeper = ZooKeeper::start();
    let (one, watching) = (zookeeper.hasty_coordinator().await, zookeeper.hasty_coordinator().await);
    let mut changes = watching.instance_changes(SERVICE).unwrap();
    let none = BTreeSet::new();
    assert_eq!(changes.next().await.unwrap().found, [], "there is no such node");
    let of_one = instances(&["thriftbinary_100:h1:9901"]);
    let found = |told: &esker_cluster::Instances| told.found.iter().map(|instance| instance.mark).collect::<Vec<_>>();
    // The node is made before what stands below it, and told apart from it or not.
    let (told, ()) = tokio::join!(
        async {
            loop {
                let told = changes.next().await.unwrap();
                if !told.found.is_empty() {
                    break told;
                }
            }
        },
        async { one.announce(SERVICE, &of_one, &none).await.unwrap() }
    );
    assert_eq!(found(&told), [100]);
    // What changes while nothing waits is told by the next.
    let later = instances(&["thriftbinary_150:h1:9901"]);
    one.announce(SERVICE, &later, &of_one).await.unwrap();
    write(&zookeeper, &format!("{SERVICE}/nonsense")).await;
    let told = changes.next().await.unwrap();
    assert_eq!((found(&told), told.strange[0].text()), (vec![150], "nonsense"));

    // One that has forgotten all, which no session outlives.
    zookeeper.lose();
    zookeeper.resume();
    let began = Instant::now();
    let told = loop {
        match changes.next().await {
            Ok(told) => break told,
            Err(error) => assert!(began.elapsed() < Duration::from_secs(60), "{error}"),
        }
    };
    assert_eq!((found(&told), told.strange.len()), (vec![], 0));
    assert!(matches!(watching.instance_changes("data"), Err(Error::Refused { .. })));
}
