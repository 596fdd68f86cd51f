//! Several storages behind one: each namespace, and each table that is named, is kept in one of them.
//!
//! table → the storage named for it, else for its namespace, else the first → that storage
//!
//! Invariants:
//! 1. A table is looked for in one storage only, which never depends on what is there.
//! 2. A list of mutations is handed to one storage whole, or refused before anything is changed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use esker_store::{Completion, Durability};

use crate::ops::{Get, Mutation, Page, Scan, TableName};
use crate::schema::Alter;
use crate::storage::{Atomicity, MapCapability, MapStorage};
use crate::{Error, Record, Result, Schema, Table};

/// Which storage keeps what. Made by [`Multi::builder`].
pub struct MultiBuilder {
    storages: Vec<Arc<dyn MapStorage>>,
    namespaces: BTreeMap<String, usize>,
    tables: BTreeMap<TableName, usize>,
}

impl MultiBuilder {
    /// Keeps a namespace's tables in `storage`. What was said of it before is forgotten.
    pub fn namespace(mut self, namespace: impl Into<String>, storage: &Arc<dyn MapStorage>) -> Self {
        let number = self.number(storage);
        self.namespaces.insert(namespace.into(), number);
        self
    }

    /// Keeps one table in `storage`, wherever the others of its namespace are.
    pub fn table(mut self, name: &TableName, storage: &Arc<dyn MapStorage>) -> Self {
        let number = self.number(storage);
        self.tables.insert(name.clone(), number);
        self
    }

    fn number(&mut self, storage: &Arc<dyn MapStorage>) -> usize {
        let known = self.storages.iter().position(|known| Arc::ptr_eq(known, storage));
        known.unwrap_or_else(|| {
            self.storages.push(Arc::clone(storage));
            self.storages.len() - 1
        })
    }

    /// The storage of storages.
    pub fn build(self) -> Multi {
        Multi { storages: self.storages, namespaces: self.namespaces, tables: self.tables }
    }
}

/// Several storages behind one. What it can do is what all of them can; a list of mutations may go over one of them
/// only, and since a caller does not see which tables are kept together, it is atomic over a partition at most.
///
/// A namespace is made in every storage that may have tables of it.
pub struct Multi {
    storages: Vec<Arc<dyn MapStorage>>,
    namespaces: BTreeMap<String, usize>,
    tables: BTreeMap<TableName, usize>,
}

const NAME: &str = "multi";

impl Multi {
    /// Begins with the storage for everything that is not kept elsewhere.
    pub fn builder(other: Arc<dyn MapStorage>) -> MultiBuilder {
        MultiBuilder { storages: vec![other], namespaces: BTreeMap::new(), tables: BTreeMap::new() }
    }

    fn number(&self, table: &TableName) -> usize {
        let named = self.tables.get(table).or_else(|| self.namespaces.get(&table.namespace));
        named.copied().unwrap_or(0)
    }

    /// The storage of a table.
    pub fn storage(&self, table: &TableName) -> &Arc<dyn MapStorage> {
        &self.storages[self.number(table)]
    }

    /// The storages that may have tables of a namespace: its own first.
    fn storages_of(&self, namespace: &str) -> Vec<usize> {
        let mut numbers = vec![self.namespaces.get(namespace).copied().unwrap_or(0)];
        let named = self.tables.iter().filter(|(name, _)| name.namespace == namespace).map(|(_, number)| *number);
        for number in named {
            if !numbers.contains(&number) {
                numbers.push(number);
            }
        }
        numbers
    }
}

impl MapStorage for Multi {
    fn capability(&self) -> MapCapability {
        let all: Vec<_> = self.storages.iter().map(|storage| storage.capability()).collect();
        let most = if all.len() > 1 { Atomicity::Partition } else { Atomicity::Storage };
        MapCapability {
            storage: NAME,
            atomicity: all.iter().map(|one| one.atomicity).fold(most, Atomicity::min),
            indexes: all.iter().all(|one| one.indexes),
            filters: all.iter().all(|one| one.filters),
            expiry: all.iter().all(|one| one.expiry),
            persistent: all.iter().all(|one| one.persistent),
        }
    }

    fn create_namespace(&self, namespace: &str) -> Result<()> {
        let numbers = self.storages_of(namespace);
        for (at, number) in numbers.iter().enumerate() {
            match self.storages[*number].create_namespace(namespace) {
                Ok(()) => {}
                // The first one decides whether it is there. In the others it may be left from a call that was
                // interrupted.
                Err(Error::Exists { .. }) if at > 0 => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn drop_namespace(&self, namespace: &str) -> Result<()> {
        if let Some(table) = self.tables(namespace)?.first() {
            let why = format!("{namespace} has tables, {table} among them: drop them first");
            return Err(Error::invalid("namespace", why));
        }
        // The one that decides goes last, so that what was interrupted can be done again.
        for number in self.storages_of(namespace).into_iter().rev() {
            match self.storages[number].drop_namespace(namespace) {
                Ok(()) | Err(Error::Missing { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn namespaces(&self) -> Result<Vec<String>> {
        let mut all = BTreeSet::new();
        for (number, storage) in self.storages.iter().enumerate() {
            let ours = storage.namespaces()?.into_iter();
            all.extend(ours.filter(|namespace| self.storages_of(namespace).first() == Some(&number)));
        }
        Ok(all.into_iter().collect())
    }

    fn create_table(&self, name: &TableName, schema: &Schema) -> Result<()> {
        self.storage(name).create_table(name, schema)
    }

    fn table(&self, name: &TableName) -> Result<Arc<Table>> {
        self.storage(name).table(name)
    }

    fn tables(&self, namespace: &str) -> Result<Vec<String>> {
        let mut all = BTreeSet::new();
        for number in self.storages_of(namespace) {
            let names = self.storages[number].tables(namespace)?.into_iter();
            all.extend(names.filter(|table| self.number(&TableName::new(namespace, table.as_str())) == number));
        }
        Ok(all.into_iter().collect())
    }

    fn drop_table(&self, name: &TableName) -> Result<()> {
        self.storage(name).drop_table(name)
    }

    fn truncate_table(&self, name: &TableName) -> Result<()> {
        self.storage(name).truncate_table(name)
    }

    fn rename_table(&self, name: &TableName, to: &str) -> Result<()> {
        if self.number(name) != self.number(&TableName::new(name.namespace.as_str(), to)) {
            return Err(Error::Unsupported {
                storage: NAME,
                what: "rename a table to a name that is kept in another storage",
            });
        }
        self.storage(name).rename_table(name, to)
    }

    fn alter_table(&self, name: &TableName, change: &Alter) -> Result<()> {
        self.storage(name).alter_table(name, change)
    }

    fn create_index(&self, name: &TableName, column: &str) -> Result<()> {
        self.storage(name).create_index(name, column)
    }

    fn drop_index(&self, name: &TableName, column: &str) -> Result<()> {
        self.storage(name).drop_index(name, column)
    }

    fn get(&self, get: &Get) -> Result<Option<Record>> {
        self.storage(&get.table).get(get)
    }

    fn scan(&self, scan: &Scan) -> Result<Page> {
        self.storage(&scan.table).scan(scan)
    }

    fn mutate(&self, mutations: &[Mutation], durability: Durability) -> Result<Completion<()>> {
        crate::parts::check_list(mutations)?;
        let number = self.number(&mutations[0].table);
        if mutations.iter().any(|mutation| self.number(&mutation.table) != number) {
            return Err(Error::Unsupported { storage: NAME, what: "change tables of several storages at once" });
        }
        self.storages[number].mutate(mutations, durability)
    }
}
