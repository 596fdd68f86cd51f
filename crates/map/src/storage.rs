//! The trait that swappable storages implement.

use std::sync::Arc;

use esker_store::{Completion, Durability};

use crate::ops::{Get, Mutation, Page, Scan, TableName};
use crate::schema::Alter;
use crate::{Record, Result, Schema, Table};

/// How far a list of mutations is atomic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Atomicity {
    /// One row.
    Record,
    /// Rows of one partition.
    Partition,
    /// Everything in the storage.
    Storage,
}

/// What a storage can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapCapability {
    /// Its name, for messages.
    pub storage: &'static str,
    /// How far [`MapStorage::mutate`] is atomic.
    pub atomicity: Atomicity,
    /// Secondary indexes that are never stale.
    pub indexes: bool,
    /// Filters and other orders are evaluated in the storage.
    pub filters: bool,
    /// Rows may expire.
    pub expiry: bool,
    /// What was acknowledged as durable survives the process.
    pub persistent: bool,
}

impl Atomicity {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Record => "record",
            Self::Partition => "partition",
            Self::Storage => "storage",
        }
    }
}

impl MapCapability {
    /// What stands above the lines that capabilities are shown as.
    pub const HEADING: &'static str = "storage          atomic over  indexes  filters  expiry  persistent";
}

/// A line of the table that [`MapCapability::HEADING`] begins.
impl std::fmt::Display for MapCapability {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let yes = |yes: bool| if yes { "yes" } else { "no" };
        let Self { storage, atomicity, indexes, filters, expiry, persistent } = *self;
        let (indexes, filters, expiry) = (yes(indexes), yes(filters), yes(expiry));
        write!(f, "{storage:<17}{:<13}{indexes:<9}{filters:<9}{expiry:<8}{}", atomicity.name(), yes(persistent))
    }
}

/// Tables of rows, addressed by partition key, clustering key and column.
pub trait MapStorage: Send + Sync {
    /// What this storage is called and what it can do.
    fn capability(&self) -> MapCapability;

    /// Makes a namespace.
    ///
    /// # Errors
    /// [`Error::Exists`](crate::Error::Exists), [`Error::Invalid`](crate::Error::Invalid).
    fn create_namespace(&self, namespace: &str) -> Result<()>;

    /// Removes a namespace without tables.
    ///
    /// # Errors
    /// [`Error::Missing`](crate::Error::Missing); [`Error::Invalid`](crate::Error::Invalid) if it has tables.
    fn drop_namespace(&self, namespace: &str) -> Result<()>;

    /// All namespaces, by name.
    ///
    /// # Errors
    /// The storage's.
    fn namespaces(&self) -> Result<Vec<String>>;

    /// Makes a table.
    ///
    /// # Errors
    /// [`Error::Missing`](crate::Error::Missing) namespace, [`Error::Exists`](crate::Error::Exists),
    /// [`Error::Invalid`](crate::Error::Invalid) schema.
    fn create_table(&self, name: &TableName, schema: &Schema) -> Result<()>;

    /// A table's schema.
    ///
    /// # Errors
    /// [`Error::Missing`](crate::Error::Missing).
    fn table(&self, name: &TableName) -> Result<Arc<Table>>;

    /// Names of a namespace's tables, in order.
    ///
    /// # Errors
    /// [`Error::Missing`](crate::Error::Missing) namespace.
    fn tables(&self, namespace: &str) -> Result<Vec<String>>;

    /// Removes a table with its rows.
    ///
    /// # Errors
    /// [`Error::Missing`](crate::Error::Missing).
    fn drop_table(&self, name: &TableName) -> Result<()>;

    /// Removes all rows of a table.
    ///
    /// # Errors
    /// [`Error::Missing`](crate::Error::Missing).
    fn truncate_table(&self, name: &TableName) -> Result<()>;

    /// Gives a table another name in its namespace.
    ///
    /// # Errors
    /// [`Error::Missing`](crate::Error::Missing), [`Error::Exists`](crate::Error::Exists).
    fn rename_table(&self, name: &TableName, to: &str) -> Result<()>;

    /// Changes a table's columns.
    ///
    /// # Errors
    /// [`Error::Missing`](crate::Error::Missing), [`Error::Exists`](crate::Error::Exists),
    /// [`Error::Invalid`](crate::Error::Invalid) where it would lose something.
    fn alter_table(&self, name: &TableName, change: &Alter) -> Result<()>;

    /// Indexes a column, rows that there are included.
    ///
    /// # Errors
    /// As [`MapStorage::alter_table`]; [`Error::Unsupported`](crate::Error::Unsupported).
    fn create_index(&self, name: &TableName, column: &str) -> Result<()>;

    /// Drops a column's index.
    ///
    /// # Errors
    /// [`Error::Missing`](crate::Error::Missing).
    fn drop_index(&self, name: &TableName, column: &str) -> Result<()>;

    /// Reads one row.
    ///
    /// # Errors
    /// [`Error::Missing`](crate::Error::Missing), [`Error::Invalid`](crate::Error::Invalid); the storage's.
    fn get(&self, get: &Get) -> Result<Option<Record>>;

    /// Reads rows in order, a page of them.
    ///
    /// # Errors
    /// As [`MapStorage::get`]; [`Error::Invalid`](crate::Error::Invalid) for a token of another scan.
    fn scan(&self, scan: &Scan) -> Result<Page>;

    /// Changes rows, all of them or none. Of two mutations of one row the later sees what the earlier did. Applied when
    /// it returns, and as durable as asked when the completion says so.
    ///
    /// # Errors
    /// [`Error::ConditionFailed`](crate::Error::ConditionFailed) with the row;
    /// [`Error::Missing`](crate::Error::Missing), [`Error::Invalid`](crate::Error::Invalid);
    /// [`Error::Unsupported`](crate::Error::Unsupported) for more than [`MapCapability::atomicity`];
    /// [`Error::Unknown`](crate::Error::Unknown); the storage's.
    fn mutate(&self, mutations: &[Mutation], durability: Durability) -> Result<Completion<()>>;
}
