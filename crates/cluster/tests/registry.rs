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
