//! How a table of transactions looks: the user's columns, the metadata beside them, and a before-image of each.
//!
//! | column | type | what it is |
//! |---|---|---|
//! | `tx_id` | text | transaction that wrote the row |
//! | `tx_version` | int | 1 when the row is made, then one more with each write |
//! | `tx_state` | int | [`State`] |
//! | `tx_prepared_at`, `tx_committed_at` | bigint | unix milliseconds |
//! | `before_` and the name of any of these or of a user's column outside the key | its | what it was before the transaction that has the row prepared |
//!
//! Invariants:
//! 1. A user's column never begins with `tx_` or `before_`.
//! 2. Every column outside the key has its before-image's column, of the same type.

use std::sync::Arc;

use esker_map::{DataType, Key, Order, Record, Schema, Table, TableName, Value, Values};

use crate::{Error, Result};

pub(crate) const ID: &str = "tx_id";
pub(crate) const VERSION: &str = "tx_version";
pub(crate) const STATE: &str = "tx_state";
pub(crate) const PREPARED_AT: &str = "tx_prepared_at";
pub(crate) const COMMITTED_AT: &str = "tx_committed_at";

/// Columns of users must not begin like this.
pub const METADATA_PREFIX: &str = "tx_";
/// Nor like this.
pub use esker_map::BEFORE_PREFIX;

const METADATA: [(&str, DataType); 5] = [
    (ID, DataType::Text),
    (VERSION, DataType::Int),
    (STATE, DataType::Int),
    (PREPARED_AT, DataType::BigInt),
    (COMMITTED_AT, DataType::BigInt),
];

/// What `tx_state` says of a row, and of a transaction in the coordinator's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub(crate) enum State {
    /// Row: a transaction will have written it if its record says so.
    Prepared = 1,
    /// Row: the same for one that will have deleted it.
    Deleted = 2,
    /// Row or transaction.
    Committed = 3,
    /// Transaction: its own client knows that it is not committed.
    Aborted = 4,
    /// Row: deleted. It stays for a while, so that a client which found nothing here before can tell that a row came
    /// and went.
    Gone = 5,
    /// Transaction: others took its client for dead. The record stays until that client has seen it.
    TakenForDead = 6,
}

impl State {
    pub(crate) fn from_number(number: i32) -> Option<Self> {
        [Self::Prepared, Self::Deleted, Self::Committed, Self::Aborted, Self::Gone]
            .into_iter()
            .find(|state| *state as i32 == number)
    }
}

/// Name of a column's before-image.
pub(crate) fn before(name: &str) -> String {
    format!("{BEFORE_PREFIX}{name}")
}

fn is_metadata(name: &str) -> bool {
    name.starts_with(METADATA_PREFIX) || name.starts_with(BEFORE_PREFIX)
}

/// Refuses names that metadata has.
pub(crate) fn check_column(name: &str) -> Result<()> {
    if is_metadata(name) {
        let why = format!("{name:?} begins with {METADATA_PREFIX:?} or {BEFORE_PREFIX:?}, as metadata does");
        return Err(Error::invalid("column name", why));
    }
    Ok(())
}

/// The schema with metadata.
pub(crate) fn extend(schema: &Schema) -> Result<Schema> {
    let mut whole = schema.clone();
    for (name, data_type) in schema.columns() {
        check_column(name)?;
        if !schema.is_key(name) {
            whole = whole.column(before(name), *data_type);
        }
    }
    for (name, data_type) in METADATA {
        whole = whole.column(name, data_type).column(before(name), data_type);
    }
    for name in schema.indexes().iter().filter(|name| !schema.is_key(name)) {
        whole = whole.index(before(name));
    }
    Ok(whole)
}

/// A part of the key.
pub(crate) struct KeyColumn {
    pub name: String,
    pub order: Order,
}

/// A table as transactions see it.
pub(crate) struct Layout {
    pub name: TableName,
    /// The schema's generation that this was made from.
    pub generation: u64,
    /// The number of the table: another after it was truncated or made anew.
    pub id: u64,
    /// The table without metadata.
    pub users: Table,
    /// Columns of the key, those of the partition key first.
    pub key: Vec<KeyColumn>,
    pub partition_columns: usize,
    /// The user's columns outside the key.
    pub columns: Vec<String>,
}

impl Layout {
    pub(crate) fn new(name: &TableName, table: &Arc<Table>) -> Result<Self> {
        let not = |why: String| Error::NotTransactional { table: name.to_string(), why };
        let has = |column: &str, data_type: DataType| -> Result<()> {
            match table.column(column) {
                Ok(found) if found.data_type == data_type => Ok(()),
                Ok(found) => Err(not(format!("column {column} is {}, not {data_type}", found.data_type))),
                Err(_) => Err(not(format!("it has no column {column}"))),
            }
        };
        for (column, data_type) in METADATA {
            has(column, data_type)?;
            has(&before(column), data_type)?;
        }
        let mut users = Table::clone(table);
        users.columns.retain(|column| !is_metadata(&column.name));
        users.indexes.retain(|index| users.columns.iter().any(|column| column.id == index.column));
        let mut columns = Vec::new();
        for column in users.columns.iter().filter(|column| !table.is_key(column.id)) {
            has(&before(&column.name), column.data_type)?;
            columns.push(column.name.clone());
        }
        let parts = table.partition_key.iter().map(|id| (*id, Order::Asc)).chain(table.clustering_key.iter().copied());
        let key = parts.filter_map(|(id, order)| {
            let column = users.columns.iter().find(|column| column.id == id)?;
            Some(KeyColumn { name: column.name.clone(), order })
        });
        let key = key.collect();
        let (generation, id, partition_columns) = (table.generation, table.id, table.partition_key.len());
        Ok(Self { name: name.clone(), generation, id, users, key, partition_columns, columns })
    }

    /// The key's values in the table's order.
    pub(crate) fn key_values(&self, key: &Key) -> Result<Vec<Value>> {
        if let Some((name, _)) = key.0.iter().find(|(name, _)| !self.key.iter().any(|column| column.name == *name)) {
            return Err(Error::invalid("key", format!("column {name} is not part of it")));
        }
        if key.0.len() > self.key.len() {
            return Err(Error::invalid("key", "a column is there twice"));
        }
        self.key.iter().map(|column| self.one_value(&key.0, &column.name, "key")).collect()
    }

    /// The value of a column, checked.
    pub(crate) fn one_value(&self, values: &Values, name: &str, what: &'static str) -> Result<Value> {
        let found = values.iter().find(|(column, _)| column == name);
        let (_, value) = found.ok_or_else(|| Error::invalid(what, format!("column {name} is missing")))?;
        self.users.check_value(self.users.column(name)?, value)?;
        Ok(value.clone())
    }

    /// The key as the storage takes it.
    pub(crate) fn key_of(&self, values: &[Value]) -> Key {
        Key(self.key.iter().zip(values).map(|(column, value)| (column.name.clone(), value.clone())).collect())
    }

    /// The key's values of a row that was read.
    pub(crate) fn key_in(&self, record: &Record) -> Result<Vec<Value>> {
        let value = |column: &KeyColumn| record.value(&column.name).cloned();
        let values: Option<Vec<Value>> = self.key.iter().map(value).collect();
        values.ok_or_else(|| Error::damaged(format!("row of table {}", self.name), "a part of its key is missing"))
    }

    /// Which of the user's columns a name is.
    pub(crate) fn number(&self, name: &str) -> Result<usize> {
        if let Some(number) = self.columns.iter().position(|column| column == name) {
            return Ok(number);
        }
        self.users.column(name)?;
        Err(Error::invalid("put", format!("column {name} is part of the key")))
    }

    /// A row as users see it: the key, then all other columns, null where nothing is.
    pub(crate) fn record(&self, key: &[Value], columns: &[Option<Value>]) -> Record {
        let key = self.key.iter().zip(key).map(|(column, value)| (column.name.clone(), Some(value.clone())));
        let others = self.columns.iter().cloned().zip(columns.iter().cloned());
        // A transaction's rows do not expire.
        Record { columns: key.chain(others).collect(), expires_ms: None }
    }

    /// A record of the columns that were asked for, and of the key.
    pub(crate) fn project(&self, mut record: Record, columns: &[String]) -> Record {
        if !columns.is_empty() {
            let keyed = self.key.len();
            let mut number = 0;
            record.columns.retain(|(name, _)| {
                number += 1;
                number <= keyed || columns.contains(name)
            });
        }
        record
    }

    /// The storage's order of two keys.
    pub(crate) fn compare(&self, a: &[Value], b: &[Value]) -> std::cmp::Ordering {
        for (column, (a, b)) in self.key.iter().zip(a.iter().zip(b)) {
            let order = a.compare(b).unwrap_or(std::cmp::Ordering::Equal);
            let order = if column.order == Order::Desc { order.reverse() } else { order };
            if order.is_ne() {
                return order;
            }
        }
        std::cmp::Ordering::Equal
    }
}

/// A row, wherever it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub table: TableName,
    pub key: Vec<Value>,
}

impl Ord for Place {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.table.cmp(&other.table).then_with(|| {
            for (a, b) in self.key.iter().zip(&other.key) {
                // Keys of one table have values of one type in each place.
                let order = a.compare(b).unwrap_or_else(|| (a.data_type() as u8).cmp(&(b.data_type() as u8)));
                if order.is_ne() {
                    return order;
                }
            }
            self.key.len().cmp(&other.key.len())
        })
    }
}

impl PartialOrd for Place {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "row (")?;
        for (number, value) in self.key.iter().enumerate() {
            write!(f, "{}{value}", if number == 0 { "" } else { ", " })?;
        }
        write!(f, ") of table {}", self.table)
    }
}
