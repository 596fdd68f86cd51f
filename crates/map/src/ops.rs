//! What is asked of a storage: gets, scans, mutations, and what they are made of.

use crate::filter::Filter;
use crate::key::Order;
use crate::record::Record;
use crate::value::Value;

/// Most mutations in a list.
pub const MUTATIONS_MAX: usize = 16_384;

/// A table by its names.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TableName {
    /// The namespace.
    pub namespace: String,
    /// The table in it.
    pub table: String,
}

impl TableName {
    /// Names a table.
    pub fn new(namespace: impl Into<String>, table: impl Into<String>) -> Self {
        Self { namespace: namespace.into(), table: table.into() }
    }
}

impl std::fmt::Display for TableName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.namespace, self.table)
    }
}

/// Columns with values, by name.
pub type Values = Vec<(String, Value)>;

/// A row's key: all columns of the partition key, and all of the clustering key, in any order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Key(pub Values);

impl Key {
    /// A key of one column.
    pub fn of(name: impl Into<String>, value: impl Into<Value>) -> Self {
        Self::default().and(name, value)
    }

    /// With another column.
    pub fn and(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.0.push((name.into(), value.into()));
        self
    }
}

/// Reads one row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Get {
    /// The table.
    pub table: TableName,
    /// The row.
    pub key: Key,
    /// Columns to return; none: all. Key columns come with any.
    pub columns: Vec<String>,
    /// The row is returned only if this holds.
    pub filter: Filter,
}

impl Get {
    /// All columns of a row.
    pub fn new(table: &TableName, key: Key) -> Self {
        Self { table: table.clone(), key, columns: Vec::new(), filter: Filter::always() }
    }
}

/// Where a scan begins or ends: values of the first clustering columns. Of the last of them it is a bound, the others
/// must be equal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bound {
    /// Values by name.
    pub values: Values,
    /// Whether rows with exactly these are included.
    pub inclusive: bool,
}

/// Which rows a scan goes over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Over {
    /// One partition, by all columns of its key, between bounds on clustering columns: by their values, whichever way
    /// they rise.
    Partition {
        /// The partition key.
        key: Values,
        /// The low bound.
        low: Option<Bound>,
        /// The high bound.
        high: Option<Bound>,
    },
    /// Rows whose column, which has an index, has this value.
    Index(String, Value),
    /// All rows, partition after partition.
    All,
}

/// Reads rows in order: within a partition by clustering key; over all, partition after partition in the storage's
/// order of them (on the waist by partition key, on Cassandra by its hash).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scan {
    /// The table.
    pub table: TableName,
    /// Which rows.
    pub over: Over,
    /// Against the order of the clustering key (partitions only).
    pub reverse: bool,
    /// Columns to return; none: all. Key columns come with any.
    pub columns: Vec<String>,
    /// Only rows for which this holds.
    pub filter: Filter,
    /// Another order than the storage's: rows are gathered and sorted, null and absent first; then there are no pages.
    pub order_by: Vec<(String, Order)>,
    /// At most so many rows; 0: as many as fit a page.
    pub limit: usize,
    /// Where an earlier page of the same scan ended.
    pub page: Option<PageToken>,
}

impl Scan {
    /// All of these rows.
    pub fn new(table: &TableName, over: Over) -> Self {
        Self {
            table: table.clone(),
            over,
            reverse: false,
            columns: Vec::new(),
            filter: Filter::always(),
            order_by: Vec::new(),
            limit: 0,
            page: None,
        }
    }

    /// All rows of a partition.
    pub fn partition(table: &TableName, key: Key) -> Self {
        Self::new(table, Over::Partition { key: key.0, low: None, high: None })
    }
}

/// Where a scan goes on: opaque, made by the storage for one scan, valid after restarts too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageToken(pub Vec<u8>);

/// A part of a scan's rows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// The rows.
    pub records: Vec<Record>,
    /// Where to go on; `None` at the end. There may be a token and no rows, where a filter let none through.
    pub next: Option<PageToken>,
}

/// What must hold of the row before a mutation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Condition {
    /// Nothing.
    #[default]
    Always,
    /// The row exists.
    Exists,
    /// It does not.
    NotExists,
    /// It exists, and this holds.
    If(Filter),
}

/// What is done to a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Sets columns, and leaves the others as they are; makes the row if it is missing.
    Put {
        /// Columns with values; `None` sets null.
        columns: Vec<(String, Option<Value>)>,
        /// When the row goes by itself, in unix milliseconds, or [`NEVER_MS`](crate::NEVER_MS); `None` leaves that as
        /// it is.
        expires_ms: Option<u64>,
    },
    /// Removes the row; does nothing if it is missing.
    Delete,
}

/// A change of one row, with its condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mutation {
    /// The table.
    pub table: TableName,
    /// The row.
    pub key: Key,
    /// What is done.
    pub change: Change,
    /// What must hold before.
    pub condition: Condition,
}

impl Mutation {
    /// Sets columns.
    pub fn put(table: &TableName, key: Key, columns: Values) -> Self {
        let columns = columns.into_iter().map(|(name, value)| (name, Some(value))).collect();
        let change = Change::Put { columns, expires_ms: None };
        Self { table: table.clone(), key, change, condition: Condition::Always }
    }

    /// Removes a row.
    pub fn delete(table: &TableName, key: Key) -> Self {
        Self { table: table.clone(), key, change: Change::Delete, condition: Condition::Always }
    }

    /// Under a condition.
    pub fn when(self, condition: Condition) -> Self {
        Self { condition, ..self }
    }
}
