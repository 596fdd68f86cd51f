//! Stores on the cluster that CEPH_CONF names, for the tests of this folder.
#![allow(clippy::unwrap_used, reason = "a test that fails")]
#![allow(dead_code, reason = "each test file uses its own part")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use esker_rados::{Cluster, Pool, RadosStore};
use esker_store::ObjectStore;
use esker_store::contract::{Harness, Opened};

/// Stores in namespaces of their own.
pub struct Rados;

/// A store that is open.
struct OpenRados {
    pool: Pool,
    store: RadosStore,
}

/// A client of its own.
pub fn client() -> Arc<Cluster> {
    let file = std::env::var_os("CEPH_CONF").expect("CEPH_CONF names no cluster");
    Cluster::connect(None, Some(&PathBuf::from(file)), &[("rados_osd_op_timeout", "30")]).unwrap()
}

/// A namespace that no other test has.
pub fn namespace() -> String {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    format!("test-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed))
}

/// A store there, of a client of its own.
pub fn store(namespace: &str) -> RadosStore {
    opened(client().pool("bench", namespace).unwrap())
}

/// On a busy machine an OSD may take seconds for an answer; and it forgets nothing here meanwhile.
fn opened(pool: Pool) -> RadosStore {
    let store = RadosStore::open(pool, true, None).unwrap().unwrap();
    store.set_sure_within(Duration::from_secs(30));
    store
}

fn pool() -> Pool {
    static CLUSTER: OnceLock<Arc<Cluster>> = OnceLock::new();
    let cluster = CLUSTER.get_or_init(client);
    cluster.pool("bench", &namespace()).unwrap()
}

/// Kills the OSD, and starts it again.
pub fn kill(cluster: &Path) {
    let pid = std::fs::read_to_string(cluster.join("run/osd.0.pid")).unwrap();
    assert!(Command::new("kill").args(["-9", pid.trim()]).status().unwrap().success());
    let began = Instant::now();
    let status = format!("/proc/{}/status", pid.trim());
    while std::fs::read_to_string(&status).is_ok_and(|status| !status.contains("State:\tZ")) {
        assert!(began.elapsed() < Duration::from_secs(60), "the OSD does not end");
        std::thread::sleep(Duration::from_millis(50));
    }
    std::thread::sleep(Duration::from_millis(500));
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../scripts/ceph");
    assert!(Command::new(script).arg("up").arg(cluster).status().unwrap().success(), "the OSD does not come back");
}

impl Harness for Rados {
    fn fresh(&self) -> Box<dyn Opened> {
        let pool = pool();
        let store = opened(pool.clone());
        Box::new(OpenRados { pool, store })
    }
}

impl Opened for OpenRados {
    fn store(&self) -> &dyn ObjectStore {
        &self.store
    }

    fn reopen(&mut self) {
        self.store = opened(self.pool.clone());
    }
}
