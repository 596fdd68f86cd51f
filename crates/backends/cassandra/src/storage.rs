//! The storage: what callers hold, and the trait.
//!
//! call → lock of its partition in this process → [`ask`] the cluster → answer
//!
//! Invariant: writers in this process that want one partition come one after another; those of others are met by
//! versions.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use esker_map::{
    Alter, Atomicity, Clock, Completion, Durability, Error, Get, MapCapability, MapStorage, Mutation, Page, Record,
    Result, Scan, Schema, Table, TableName, parts,
};
use parking_lot::Mutex;

use crate::cql::Stored;
use crate::link::{Link, Read, ask};
use crate::options::{Consistency, Options, Random};
use crate::place::Place;

pub(crate) const NAME: &str = "cassandra";
/// Locks that partitions share.
const STRIPES: usize = 1_024;

/// The storage. Cloning costs a reference count.
#[derive(Clone)]
pub struct Cassandra {
    inner: Arc<Inner>,
    read: Consistency,
}

pub(crate) struct Inner {
    pub link: Link,
    pub prefix: String,
    pub replication: u32,
    pub options: Options,
    pub secret: [u8; 32],
    pub tables: Mutex<HashMap<TableName, Arc<Stored>>>,
    clock: Clock,
    handle: [u8; 8],
    count: AtomicU64,
    stripes: Box<[Mutex<()>]>,
}

impl Inner {
    pub fn now_ms(&self) -> u64 {
        (self.clock)()
    }

    /// A version that no other call writes.
    pub fn version(&self) -> [u8; 16] {
        let mut version = [0; 16];
        version[..8].copy_from_slice(&self.handle);
        version[8..].copy_from_slice(&self.count.fetch_add(1, Ordering::Relaxed).to_be_bytes());
        version
    }

    /// A number that differs between handles and from call to call.
    pub fn spread(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        (self.handle, self.count.fetch_add(1, Ordering::Relaxed)).hash(&mut hasher);
        hasher.finish()
    }
}

/// There is no runtime, so nothing was asked.
fn unavailable(error: &std::io::Error) -> Error {
    Error::Unavailable { storage: NAME, cause: error.to_string() }
}

impl Cassandra {
    /// Connects to a cluster, and makes the catalogue if there is none.
    ///
    /// # Errors
    /// [`crate::Error::Unreachable`]; [`crate::Error::Map`] if the catalogue cannot be made or read.
    pub fn open(place: &Place, options: Options, clock: Clock, random: Random) -> crate::Result<Self> {
        let place = place.clone();
        let opened = ask(async move {
            let link = Link::connect(&place, &options).await?;
            let nodes = u32::try_from(link.nodes()).unwrap_or(u32::MAX);
            let replication = if options.replication == 0 { nodes.clamp(1, 3) } else { options.replication };
            let mut inner = Inner {
                link,
                prefix: place.prefix,
                replication,
                options,
                secret: random.secret,
                tables: Mutex::default(),
                clock,
                handle: random.handle,
                count: AtomicU64::new(0),
                stripes: (0..STRIPES).map(|_| Mutex::new(())).collect(),
            };
            inner.prepare(random.secret).await?;
            Ok::<_, crate::Error>(inner)
        });
        let inner = opened.map_err(|error| unavailable(&error))??;
        Ok(Self { inner: Arc::new(inner), read: Consistency::default() })
    }

    /// The same storage, whose reads are of this consistency. Conditions are always looked at on what was acknowledged,
    /// and written as one.
    pub fn at(&self, consistency: Consistency) -> Self {
        Self { read: consistency, ..self.clone() }
    }

    fn read(&self) -> Read {
        match self.read {
            Consistency::Eventual => Read::One,
            Consistency::Acknowledged => Read::Quorum,
            Consistency::Serial => Read::Serial,
        }
    }

    fn ask<T>(&self, call: impl Future<Output = Result<T>>) -> Result<T> {
        ask(call).unwrap_or_else(|error| Err(unavailable(&error)))
    }
}

impl MapStorage for Cassandra {
    fn capability(&self) -> MapCapability {
        MapCapability {
            storage: NAME,
            atomicity: Atomicity::Partition,
            indexes: true,
            filters: true,
            expiry: true,
            persistent: true,
        }
    }

    fn create_namespace(&self, namespace: &str) -> Result<()> {
        self.ask(self.inner.create_namespace(namespace))
    }

    fn drop_namespace(&self, namespace: &str) -> Result<()> {
        self.ask(self.inner.drop_namespace(namespace))
    }

    fn namespaces(&self) -> Result<Vec<String>> {
        self.ask(self.inner.namespaces())
    }

    fn create_table(&self, name: &TableName, schema: &Schema) -> Result<()> {
        self.ask(self.inner.create_table(name, schema))
    }

    fn table(&self, name: &TableName) -> Result<Arc<Table>> {
        Ok(Arc::new(self.ask(self.inner.load(name))?.table.clone()))
    }

    fn tables(&self, namespace: &str) -> Result<Vec<String>> {
        self.ask(self.inner.tables(namespace))
    }

    fn drop_table(&self, name: &TableName) -> Result<()> {
        self.ask(self.inner.drop_table(name))
    }

    fn truncate_table(&self, name: &TableName) -> Result<()> {
        self.ask(self.inner.truncate(name))
    }

    fn rename_table(&self, name: &TableName, to: &str) -> Result<()> {
        self.ask(self.inner.rename(name, to))
    }

    fn alter_table(&self, name: &TableName, change: &Alter) -> Result<()> {
        self.ask(self.inner.alter(name, change))
    }

    fn create_index(&self, name: &TableName, column: &str) -> Result<()> {
        self.ask(self.inner.create_index(name, column))
    }

    fn drop_index(&self, name: &TableName, column: &str) -> Result<()> {
        self.ask(self.inner.drop_index(name, column))
    }

    fn get(&self, get: &Get) -> Result<Option<Record>> {
        self.ask(self.inner.get(get, self.read()))
    }

    fn scan(&self, scan: &Scan) -> Result<Page> {
        if !scan.order_by.is_empty() {
            let table = self.table(&scan.table)?;
            parts::check_scan(&table, scan)?;
            return parts::sorted(&table, scan, |scan| self.scan(scan));
        }
        self.ask(self.inner.scan(scan, self.read()))
    }

    /// Durable as the cluster's `commitlog_sync` says, whichever `durability` is asked for: in a majority of the
    /// replicas.
    fn mutate(&self, mutations: &[Mutation], _durability: Durability) -> Result<Completion<()>> {
        parts::check_list(mutations)?;
        let first = &mutations[0];
        if mutations.iter().any(|mutation| mutation.table != first.table) {
            return Err(Error::Unsupported { storage: NAME, what: "change rows of several tables at once" });
        }
        // Without a schema that was seen no writer waits: versions are enough, locks only save attempts.
        let seen = self.inner.tables.lock().get(&first.table).cloned();
        let partition =
            seen.and_then(|stored| parts::RowKey::of(&stored.table, &first.key).ok()).map(|key| key.partition);
        let mut hasher = DefaultHasher::new();
        (&first.table, partition).hash(&mut hasher);
        let stripe = (hasher.finish() % STRIPES as u64) as usize;
        let _lock = self.inner.stripes[stripe].lock();
        self.ask(self.inner.mutate(mutations))?;
        Ok(Completion::ready(Ok(())))
    }
}
