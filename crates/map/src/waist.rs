//! The map on any object store: a partition is an object, a row one omap value under its clustering key, a list of
//! mutations one transaction.
//!
//! mutations → locks of their partitions → rows as they are → conditions → one transaction that guards those rows and
//! the schemas → applied → a guard fails (another process was faster): read again
//!
//! The condition is looked at here and guarded there, so a conditional write costs a read in memory and one record in
//! the log.
//!
//! Invariants:
//! 1. A row is written only if it is, in the transaction, what the condition was looked at on.
//! 2. An entry of an index, that of expiry among them, is written and removed in the transaction of its row, so an
//!    index is never stale.
//! 3. Writers in this process that want one partition come one after another (fair locks); those of other processes are
//!    met by guards.
//! 4. What a failed condition shows is durable, or was written by a client that did not ask for that.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use esker_store::registry::open_collection;
use esker_store::{
    Barrier, Change as StoreChange, Completion, Condition as Guarded, Durability, Error as StoreError, Guard, Held,
    ObjectId, ObjectStore, Retry, Stripes, Transaction, due, submit_guarded,
};
use parking_lot::Mutex;

use crate::guards::guarded;
use crate::names::{self, COLLECTION, SECRET};
use crate::ops::{Get, Key, Mutation, Page, Scan, TableName};
use crate::parts::{self, RowKey};
use crate::record::Record;
use crate::row::Row;
use crate::schema::Alter;
use crate::storage::{Atomicity, MapCapability, MapStorage};
use crate::value::Value;
use crate::{Error, Result, Schema, Table};

/// The time in unix milliseconds.
pub type Clock = Arc<dyn Fn() -> u64 + Send + Sync>;
/// Locks that partitions share.
const STRIPES: usize = 1_024;
/// The storage on the waist. Cloning costs a few reference counts.
#[derive(Clone)]
pub struct Waist {
    pub(crate) store: Arc<dyn ObjectStore>,
    pub(crate) clock: Clock,
    pub(crate) secret: Arc<[u8; 32]>,
    pub(crate) tables: Arc<Mutex<HashMap<TableName, Arc<Table>>>>,
    stripes: Arc<Stripes>,
}

/// A row's place.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub partition: ObjectId,
    pub key: RowKey,
}

/// A row under mutation.
pub(crate) struct Touched {
    pub table: Arc<Table>,
    pub before: Option<Bytes>,
    /// As found, expired or not: what its index entries stand for.
    pub found: Option<Row>,
    pub now: Option<Row>,
}

impl Waist {
    /// Opens the storage, making collection `map` if it is missing. `random` becomes the key of page tokens, if there
    /// is none yet.
    ///
    /// # Errors
    /// The store's.
    pub fn open(store: Arc<dyn ObjectStore>, clock: Clock, random: [u8; 32]) -> Result<Self> {
        open_collection(&*store, &COLLECTION.into(), Transaction::new())?;
        let catalogue = names::catalogue();
        let read = || -> Result<Option<[u8; 32]>> {
            let found = store.xattr(&catalogue, SECRET).wait()?;
            Ok(found.and_then(|found| found[..].try_into().ok()))
        };
        let secret = match read()? {
            Some(secret) => secret,
            None => {
                let name = Bytes::from_static(SECRET);
                let value = Bytes::copy_from_slice(&random);
                let txn = Transaction::with(Durability::Always)
                    .giving_back()
                    .guard(&catalogue, Guarded::XattrAbsent { name: name.clone() })
                    .change(&catalogue, StoreChange::XattrSet { name, value });
                match submit_guarded(&*store, txn)? {
                    None => random,
                    Some(_) => read()?.unwrap_or(random),
                }
            }
        };
        let stripes = Arc::new(Stripes::new(STRIPES));
        Ok(Self { store, clock, secret: Arc::new(secret), tables: Arc::default(), stripes })
    }

    /// The store below.
    pub fn store(&self) -> &Arc<dyn ObjectStore> {
        &self.store
    }

    pub(crate) fn now_ms(&self) -> u64 {
        (self.clock)()
    }

    /// The schema as it is now: what was seen last, if the table's head still says so.
    pub(crate) fn current(&self, name: &TableName) -> Result<Arc<Table>> {
        let table = self.seen(name)?;
        if self.is_current(&table)? { Ok(table) } else { self.load(name) }
    }

    /// What `read` finds by the schema that the table has at the same moment: the one that was seen last, if the
    /// table's head still says so behind it; else again by the next. Its errors count as little as its answers by an
    /// old one.
    pub(crate) fn by_schema<T>(&self, name: &TableName, read: impl Fn(&Arc<Table>) -> Result<T>) -> Result<T> {
        let (mut table, mut retry) = (self.seen(name)?, Retry::default());
        loop {
            retry.attempt(|| format!("the schema of table {name}"))?;
            let found = read(&table);
            // Generations only ever rise, so it was this one all the time.
            if self.is_current(&table)? {
                return found;
            }
            table = self.load(name)?;
        }
    }

    pub(crate) fn is_current(&self, table: &Table) -> Result<bool> {
        let now = self.store.xattr(&names::head(table.id), names::GENERATION).wait()?;
        Ok(now.as_deref() == Some(&table.generation.to_le_bytes()[..]))
    }

    /// Whether any schema by which these rows were read is not its table's any more.
    fn have_changed(&self, places: &[(Place, Arc<Table>)]) -> Result<bool> {
        let mut looked: Vec<u64> = Vec::new();
        for (_, table) in places {
            if !looked.contains(&table.id) {
                looked.push(table.id);
                if !self.is_current(table)? {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Lists of several partitions, schemas of another object, indexes: all of it needs transactions over several
    /// objects.
    fn whole(&self) -> bool {
        self.store.capability().atomic_across_objects
    }

    pub(crate) fn lock(&self, places: impl Iterator<Item = u64>) -> Held<'_> {
        self.stripes.many(places.map(|hash| self.stripes.of(hash)))
    }

    fn try_mutate(&self, mutations: &[Mutation], durability: Durability) -> Result<Option<Completion<()>>> {
        let mut places = Vec::with_capacity(mutations.len());
        // One schema for each table: another thread may load a later one meanwhile.
        let mut tables: Vec<(&TableName, Arc<Table>)> = Vec::new();
        for mutation in mutations {
            let known = tables.iter().find(|(name, _)| **name == mutation.table).map(|(_, table)| Arc::clone(table));
            let table = match known {
                Some(table) => table,
                None => {
                    let table = self.seen(&mutation.table)?;
                    tables.push((&mutation.table, Arc::clone(&table)));
                    table
                }
            };
            parts::check_mutation(&table, mutation)?;
            places.push((place(&table, &mutation.key)?, table));
        }
        let locks = self.lock(places.iter().map(|(place, _)| place.partition.hash64()));
        let now_ms = self.now_ms();
        let mut rows: BTreeMap<Place, Touched> = BTreeMap::new();
        let mut seen: Option<Barrier> = None;
        for (number, (mutation, (place, table))) in mutations.iter().zip(&places).enumerate() {
            if !rows.contains_key(place) {
                let (before, barrier) = self.store.omap_get(&place.partition, &place.key.clustering).into_parts();
                seen = Barrier::later(seen, barrier);
                let before = before?;
                let found = before.as_ref().map(|bytes| decode(table, place, bytes)).transpose()?;
                let now = found.clone().filter(|row| !row.expired(now_ms));
                rows.insert(place.clone(), Touched { table: Arc::clone(table), before, found, now });
            }
            let Some(touched) = rows.get_mut(place) else { continue };
            if !parts::holds(table, &place.key, &mutation.condition, touched.now.as_ref()) {
                let current = touched.now.as_ref().map(|row| Box::new(parts::record(table, &place.key, row, &[])));
                // The rows before it were read at other moments: that it is the first that fails is said of one.
                let one_moment = rows.len() == 1 || !self.whole() || self.are_now(&rows)?;
                drop(locks);
                // By an old schema it may be another condition, of another row.
                if !one_moment || self.have_changed(&places)? {
                    mutations.iter().try_for_each(|mutation| self.load(&mutation.table).map(drop))?;
                    return Ok(None);
                }
                // What is shown must not be taken back by a power cut.
                if let Some(barrier) = seen {
                    barrier.wait()?;
                }
                return Err(Error::ConditionFailed { mutation: number, current });
            }
            parts::change(table, mutation, &mut touched.now)?;
        }
        let mut txn = Transaction::with(durability).giving_back();
        // Those of schemas first, so that a guard that fails tells which of both it was.
        let mut schemas: Vec<u64> = Vec::new();
        for touched in rows.values() {
            if !schemas.contains(&touched.table.id) {
                schemas.push(touched.table.id);
                guarded(&mut txn, &touched.table);
            }
        }
        let number = rows.len();
        for (place, touched) in rows {
            self.write(&mut txn, &place, touched)?;
        }
        let shows_only = txn.ops.is_empty();
        if shows_only {
            // Everything is as it should be. Of one row that was so when it was read; several were read at different
            // moments, and the guards alone say whether they are so at one.
            if number > 1 && self.whole() {
                txn.durability = Durability::Applied;
            } else {
                // Only the schemas have to be what was gone by. They only ever change to others, so that is looked at
                // without the locks.
                drop(locks);
                if self.have_changed(&places)? {
                    mutations.iter().try_for_each(|mutation| self.load(&mutation.table).map(drop))?;
                    return Ok(None);
                }
                return Ok(Some(Completion::after(Ok(()), seen)));
            }
        }
        let submitted = self.store.submit(txn);
        drop(locks);
        match submitted.into_parts() {
            // A list that changes nothing says what its rows are; one that writes waits for what it wrote alone.
            (Ok(_), barrier) => {
                let barrier = if shows_only { Barrier::later(seen, barrier) } else { barrier };
                Ok(Some(Completion::after(Ok(()), barrier)))
            }
            (Err(StoreError::GuardFailed { index }), _) => {
                if index < schemas.len() {
                    mutations.iter().try_for_each(|mutation| self.load(&mutation.table).map(drop))?;
                }
                Ok(None)
            }
            (Err(error), _) if error.is_unknown() => Err(Error::Unknown { cause: error.to_string() }),
            (Err(error), _) => Err(error.into()),
        }
    }

    /// Whether all these rows are what was read of them, at one moment.
    fn are_now(&self, rows: &BTreeMap<Place, Touched>) -> Result<bool> {
        let mut txn = Transaction::with(Durability::Applied);
        txn.guards.extend(rows.iter().map(|(place, touched)| is_still(place, touched.before.as_ref())));
        let (done, _) = self.store.submit(txn).into_parts();
        match done {
            Ok(_) => Ok(true),
            Err(StoreError::GuardFailed { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Adds what turns a row into what it is to be, with one guard of it, and the entries of its indexes and of its
    /// expiry.
    pub(crate) fn write(&self, txn: &mut Transaction, place: &Place, touched: Touched) -> Result<()> {
        let Touched { table, before, found, now } = touched;
        let key = place.key.clustering.clone();
        txn.guards.push(is_still(place, before.as_ref()));
        let after = now.as_ref().map(Row::encode);
        if let (Some(row), Some(value)) = (&now, &after) {
            row.check_len(&table, value.len())?;
        }
        match after {
            Some(value) if before.as_ref() != Some(&value) => {
                txn.gives_back &= before.as_ref().is_some_and(|before| value.len() < before.len());
                txn.push(&place.partition, StoreChange::OmapSet { key, value });
            }
            None if before.is_some() => txn.push(&place.partition, StoreChange::OmapRemove { key }),
            // It is as it should be; the guard says that it still is.
            _ => {}
        }
        let (old, new) = (expiry_entry(place, found.as_ref()), expiry_entry(place, now.as_ref()));
        due::replace(txn, &names::expiry(table.id), old, new);
        for index in &table.indexes {
            let entry = |row: &Row| -> Result<Option<ObjectId>> {
                let Some(value) = index_value(&table, &place.key, row, index.column) else { return Ok(None) };
                Ok(Some(names::index(table.id, index.id, &parts::encode_indexed(&value)?)))
            };
            // What is too long for an index was written before there was one, and has no entry to be removed.
            let old = found.as_ref().and_then(|row| entry(row).ok().flatten());
            let new = now.as_ref().map(entry).transpose()?.flatten();
            if old == new {
                continue;
            }
            let key = names::index_key(&place.key.partition, &place.key.clustering);
            if let Some(old) = old {
                txn.push(&old, StoreChange::OmapRemove { key: key.clone() });
            }
            if let Some(new) = new {
                txn.push(&new, StoreChange::OmapSet { key, value: Bytes::new() });
            }
        }
        Ok(())
    }
}

/// The guard that a row is what was read of it.
pub(crate) fn is_still(place: &Place, before: Option<&Bytes>) -> Guard {
    let key = place.key.clustering.clone();
    Guard { object: place.partition.clone(), condition: Guarded::omap_is(key, before.cloned()) }
}

/// Where the expiry index says that a row goes.
fn expiry_entry(place: &Place, row: Option<&Row>) -> Option<Bytes> {
    let at_ms = row?.expiry()?;
    Some(names::expiry_key(at_ms, &place.key.partition, &place.key.clustering))
}

/// A row from what is stored.
pub(crate) fn decode(table: &Table, place: &Place, bytes: &Bytes) -> Result<Row> {
    Row::decode(bytes).map_err(|why| Error::damaged(format!("row of table {} in {}", table.id, place.partition), why))
}

/// What a row is found by in an index.
pub(crate) fn index_value(table: &Table, key: &RowKey, row: &Row, column: u16) -> Option<Value> {
    if !table.is_key(column) {
        return row.column(table, column).flatten();
    }
    let name = &table.column_numbered(column)?.name;
    parts::record(table, key, row, &[]).value(name).cloned()
}

/// Where a row stands.
pub(crate) fn place(table: &Table, key: &Key) -> Result<Place> {
    let key = RowKey::of(table, key)?;
    Ok(Place { partition: names::partition(table.id, &key.partition), key })
}

impl MapStorage for Waist {
    fn capability(&self) -> MapCapability {
        let store = self.store.capability();
        MapCapability {
            storage: store.backend,
            atomicity: if self.whole() { Atomicity::Storage } else { Atomicity::Record },
            indexes: self.whole(),
            filters: true,
            expiry: true,
            persistent: store.persistent,
        }
    }

    fn create_namespace(&self, namespace: &str) -> Result<()> {
        self.make_namespace(namespace)
    }

    fn drop_namespace(&self, namespace: &str) -> Result<()> {
        self.remove_namespace(namespace)
    }

    fn namespaces(&self) -> Result<Vec<String>> {
        self.all_namespaces()
    }

    fn create_table(&self, name: &TableName, schema: &Schema) -> Result<()> {
        if !self.whole() {
            return Err(Error::Unsupported {
                storage: self.store.capability().backend,
                what: "keep tables: rows, schemas and indexes change together, and its transactions are of one object",
            });
        }
        self.make_table(name, schema)
    }

    fn table(&self, name: &TableName) -> Result<Arc<Table>> {
        self.load(name)
    }

    fn tables(&self, namespace: &str) -> Result<Vec<String>> {
        self.last_made(namespace)?;
        self.names_of(namespace)
    }

    fn drop_table(&self, name: &TableName) -> Result<()> {
        self.remove_table(name)
    }

    fn truncate_table(&self, name: &TableName) -> Result<()> {
        self.truncate(name)
    }

    fn rename_table(&self, name: &TableName, to: &str) -> Result<()> {
        self.rename(name, to)
    }

    fn alter_table(&self, name: &TableName, change: &Alter) -> Result<()> {
        self.alter(name, change)
    }

    fn create_index(&self, name: &TableName, column: &str) -> Result<()> {
        self.build_index(name, column)
    }

    fn drop_index(&self, name: &TableName, column: &str) -> Result<()> {
        self.change_table(name, |table, txn| {
            txn.gives_back = true;
            let index = table.drop_index(column)?;
            names::tables().note(txn, table.id, &index.to_be_bytes(), Bytes::new());
            Ok(())
        })?;
        self.collect();
        Ok(())
    }

    fn get(&self, get: &Get) -> Result<Option<Record>> {
        self.by_schema(&get.table, |table| {
            get.filter.check(table)?;
            get.columns.iter().try_for_each(|name| table.column(name).map(drop))?;
            let place = place(table, &get.key)?;
            let found = self.store.omap_get(&place.partition, &place.key.clustering).wait()?;
            let Some(bytes) = found else { return Ok(None) };
            let row = decode(table, &place, &bytes)?;
            let matches = !row.expired(self.now_ms()) && parts::filtered(table, &place.key, &get.filter, &row);
            Ok(matches.then(|| parts::record(table, &place.key, &row, &get.columns)))
        })
    }

    fn scan(&self, scan: &Scan) -> Result<Page> {
        self.by_schema(&scan.table, |table| self.scan_table(table, scan))
    }

    fn mutate(&self, mutations: &[Mutation], durability: Durability) -> Result<Completion<()>> {
        parts::check_list(mutations)?;
        let (mut looked, mut retry) = (false, Retry::default());
        loop {
            retry.attempt(|| format!("rows of table {}", mutations[0].table))?;
            match self.try_mutate(mutations, durability) {
                Ok(Some(done)) => return Ok(done),
                Ok(None) => {}
                // The schema that was seen may be old.
                Err(Error::Missing { .. } | Error::Invalid { .. }) if !looked => {
                    looked = true;
                    mutations.iter().try_for_each(|mutation| self.load(&mutation.table).map(drop))?;
                }
                Err(error) => return Err(error),
            }
        }
    }
}
