//! What the tests of transactions share: storages that are atomic over less than they could be, calls that fail or are
//! held up, numbers and times.

#![allow(dead_code, reason = "each test uses a part of it")]
#![allow(clippy::unwrap_used, reason = "tests fail")]

pub mod cassandra;
pub mod turns;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use esker_device::MemoryDevice;
use esker_engine::{Engine, FormatOptions, Options as EngineOptions};
use esker_map::{
    Alter, Atomicity, Clock, Completion, DataType, Durability, Error as MapError, Get, Key, MapCapability, MapStorage,
    Mutation, Order, Page, Record, Result, Scan, Schema, Table, TableName, Value, Waist,
};
use esker_memory::MemoryStore;
use esker_store::ObjectStore;
use esker_transaction::{Isolation, Options, Transactions};

/// Unix milliseconds, as the test has it.
#[derive(Clone, Default)]
pub struct Time(pub Arc<AtomicU64>);

impl Time {
    pub fn now(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }

    pub fn pass(&self, ms: u64) {
        self.0.fetch_add(ms, Ordering::SeqCst);
    }
}

pub fn waist(store: Arc<dyn ObjectStore>) -> Arc<dyn MapStorage> {
    let map = Waist::open(store, Arc::new(|| 0), [3; 32]).unwrap();
    map.create_namespace("ns").unwrap();
    Arc::new(map)
}

pub fn memory() -> Arc<dyn MapStorage> {
    waist(Arc::new(MemoryStore::new()))
}

pub fn engine() -> Arc<dyn MapStorage> {
    let device = Arc::new(MemoryDevice::new(256 << 20));
    Engine::format(&*device, &FormatOptions { segment_bytes: 1 << 20, uuid: [5; 16] }).unwrap();
    waist(Arc::new(Engine::open(device, EngineOptions::default()).unwrap()))
}

pub const ATOMICITIES: [Atomicity; 3] = [Atomicity::Storage, Atomicity::Partition, Atomicity::Record];

/// What becomes of a call.
pub enum Fate {
    Made,
    /// It fails, and was not made.
    Refused(MapError),
    /// It was made, and fails.
    Lost(MapError),
}

pub type Hook = Box<dyn Fn(bool) -> Fate + Send + Sync>;

/// A client's way to a storage: atomic over no more than said, each call at the mercy of a hook, which is told whether
/// it writes.
pub struct Tap {
    pub inner: Arc<dyn MapStorage>,
    pub atomicity: Atomicity,
    pub hook: Hook,
}

impl Tap {
    pub fn new(inner: Arc<dyn MapStorage>, atomicity: Atomicity) -> Self {
        Self { inner, atomicity, hook: Box::new(|_| Fate::Made) }
    }

    fn call<T>(&self, writes: bool, call: impl FnOnce() -> Result<T>) -> Result<T> {
        match (self.hook)(writes) {
            Fate::Made => call(),
            Fate::Refused(error) => Err(error),
            Fate::Lost(error) => {
                call().map(drop).ok();
                Err(error)
            }
        }
    }
}

impl MapStorage for Tap {
    fn capability(&self) -> MapCapability {
        MapCapability { atomicity: self.atomicity, ..self.inner.capability() }
    }
    fn create_namespace(&self, namespace: &str) -> Result<()> {
        self.inner.create_namespace(namespace)
    }
    fn drop_namespace(&self, namespace: &str) -> Result<()> {
        self.inner.drop_namespace(namespace)
    }
    fn namespaces(&self) -> Result<Vec<String>> {
        self.inner.namespaces()
    }
    fn create_table(&self, name: &TableName, schema: &Schema) -> Result<()> {
        self.inner.create_table(name, schema)
    }
    fn table(&self, name: &TableName) -> Result<Arc<Table>> {
        self.inner.table(name)
    }
    fn tables(&self, namespace: &str) -> Result<Vec<String>> {
        self.inner.tables(namespace)
    }
    fn drop_table(&self, name: &TableName) -> Result<()> {
        self.inner.drop_table(name)
    }
    fn truncate_table(&self, name: &TableName) -> Result<()> {
        self.inner.truncate_table(name)
    }
    fn rename_table(&self, name: &TableName, to: &str) -> Result<()> {
        self.inner.rename_table(name, to)
    }
    fn alter_table(&self, name: &TableName, change: &Alter) -> Result<()> {
        self.inner.alter_table(name, change)
    }
    fn create_index(&self, name: &TableName, column: &str) -> Result<()> {
        self.inner.create_index(name, column)
    }
    fn drop_index(&self, name: &TableName, column: &str) -> Result<()> {
        self.inner.drop_index(name, column)
    }
    fn get(&self, get: &Get) -> Result<Option<Record>> {
        self.call(false, || self.inner.get(get))
    }
    fn scan(&self, scan: &Scan) -> Result<Page> {
        self.call(false, || self.inner.scan(scan))
    }
    fn mutate(&self, mutations: &[Mutation], durability: Durability) -> Result<Completion<()>> {
        for mutation in &mutations[1..] {
            let (a, b) = (&mutations[0], mutation);
            let same = match self.atomicity {
                Atomicity::Storage => true,
                Atomicity::Record => false,
                Atomicity::Partition => {
                    let table = self.inner.table(&a.table)?;
                    let part = |mutation: &Mutation| -> Vec<Value> {
                        let columns = table.partition_key.iter().map(|id| table.columns.iter().find(|c| c.id == *id));
                        let find = |name: &str| mutation.key.0.iter().find(|(n, _)| n == name).unwrap().1.clone();
                        columns.map(|column| find(&column.unwrap().name)).collect()
                    };
                    a.table == b.table && part(a) == part(b)
                }
            };
            if !same {
                return Err(MapError::Unsupported { storage: "tap", what: "change so much at once" });
            }
        }
        self.call(true, || self.inner.mutate(mutations, durability))
    }
}

static NEXT: AtomicU64 = AtomicU64::new(1);

pub fn open(storage: Arc<dyn MapStorage>, time: &Time, options: Options) -> Transactions {
    let time = time.clone();
    open_by(storage, Arc::new(move || time.now()), options).unwrap()
}

/// The same under any clock, where opening may fail.
pub fn open_by(
    storage: Arc<dyn MapStorage>,
    clock: Clock,
    options: Options,
) -> esker_transaction::Result<Transactions> {
    let random = Arc::new(|| NEXT.fetch_add(1, Ordering::Relaxed).into());
    Transactions::open(storage, clock, random, options)
}

pub fn options(isolation: Isolation) -> Options {
    Options { isolation, ..Options::default() }
}

pub fn table() -> TableName {
    TableName::new("ns", "t")
}

/// Partition p, clustering c; x indexed, y.
pub fn schema() -> Schema {
    Schema::new()
        .column("p", DataType::Int)
        .column("c", DataType::Int)
        .column("x", DataType::BigInt)
        .column("y", DataType::Text)
        .partition("p")
        .clustering("c", Order::Asc)
        .index("x")
}

/// Makes the table, unless the storage has it from before.
pub fn make_table(transactions: &Transactions) {
    match transactions.create_table(&table(), &schema()) {
        Ok(()) | Err(esker_transaction::Error::Map(MapError::Exists { .. })) => {}
        Err(error) => panic!("{error}"),
    }
}

pub fn key(p: i32, c: i32) -> Key {
    Key::of("p", p).and("c", c)
}

pub fn x(value: i64) -> Vec<(String, Value)> {
    vec![("x".into(), value.into())]
}

pub fn x_of(record: &Record) -> i64 {
    match record.value("x") {
        Some(Value::BigInt(value)) => *value,
        other => panic!("x is {other:?}"),
    }
}
