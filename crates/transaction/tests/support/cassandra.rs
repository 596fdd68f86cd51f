//! Storages on a real Cassandra, whose address is in `ESKER_CASSANDRA`: `scripts/cassandra run cargo test -p
//! esker-transaction -- --ignored`.

use std::cell::OnceCell;
use std::sync::Arc;
use std::time::Duration;

use esker_cassandra::{Cassandra, Options, Place, Random};
use esker_map::{Durability, Key, MapStorage, Mutation, Over, Scan, TableName};
use parking_lot::Mutex;

use super::table;

fn random<const N: usize>() -> [u8; N] {
    std::array::from_fn(|_| fastrand::u8(..))
}

/// Where nothing is yet.
pub fn place() -> Place {
    let address = std::env::var("ESKER_CASSANDRA")
        .expect("ESKER_CASSANDRA=host:port says where a Cassandra is: scripts/cassandra run …");
    Place { nodes: vec![address], prefix: format!("x{}", random::<8>().map(|byte| format!("{byte:02x}")).concat()) }
}

/// A client of its own, with connections of its own.
pub fn connect(place: &Place, timeout: Duration) -> esker_cassandra::Result<Arc<dyn MapStorage>> {
    let options = Options { timeout, ..Options::default() };
    let random = Random { secret: [3; 32], handle: random() };
    // Nothing in tables of transactions expires.
    Ok(Arc::new(Cassandra::open(place, options, Arc::new(|| 1_700_000_000_000), random)?))
}

/// A storage that this thread has to itself until it ends.
struct Own(Arc<dyn MapStorage>);

/// Those that no thread has.
static FREE: Mutex<Vec<Arc<dyn MapStorage>>> = Mutex::new(Vec::new());

impl Drop for Own {
    fn drop(&mut self) {
        FREE.lock().push(Arc::clone(&self.0));
    }
}

/// A storage with no rows in the test's table. It is one that was used before if there is one, with its tables:
/// Cassandra is slow to make them.
pub fn fresh() -> Arc<dyn MapStorage> {
    thread_local! {
        static OWN: OnceCell<Own> = const { OnceCell::new() };
    }
    OWN.with(|own| {
        let Own(storage) = own.get_or_init(|| {
            let used = FREE.lock().pop();
            Own(used.unwrap_or_else(|| {
                let storage = connect(&place(), Duration::from_secs(20)).unwrap();
                storage.create_namespace("ns").unwrap();
                storage
            }))
        });
        empty(&**storage, &table(), &["p", "c"]);
        // Each test begins at the same time, and what an earlier one has forgotten is no concern of it.
        empty(&**storage, &TableName::new("coordinator", "state"), &["tx_id"]);
        Arc::clone(storage)
    })
}

fn empty(storage: &dyn MapStorage, table: &TableName, keys: &[&str]) {
    if storage.table(table).is_err() {
        return;
    }
    let mut scan = Scan::new(table, Over::All);
    loop {
        let page = storage.scan(&scan).unwrap();
        for record in page.records {
            let key = keys.iter().map(|name| ((*name).to_owned(), record.value(name).unwrap().clone())).collect();
            storage.mutate(&[Mutation::delete(table, Key(key))], Durability::Durable).unwrap().wait().unwrap();
        }
        match page.next {
            Some(next) => scan.page = Some(next),
            None => return,
        }
    }
}
