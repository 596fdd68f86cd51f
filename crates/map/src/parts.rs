//! What every storage does alike, whatever it keeps rows in: keys checked and encoded, conditions looked at, changes
//! made, columns named, bounds read. For those who implement [`MapStorage`](crate::MapStorage).
//!
//! key → [`RowKey`] · row and mutation → [`change`] → row · row → [`record`] · bounds → [`Between`]
//!
//! Invariant: nothing here knows where rows are kept, so all storages refuse the same input with the same words.

use bytes::Bytes;

use crate::filter::Filter;
use crate::key::{self, Order};
use crate::ops::{Bound, Change, Condition, Key, Mutation, Scan, Values};
pub use crate::page::{Gathered, Mark, read_token, sorted, token};
pub use crate::row::Row;
use crate::schema::KEY_BYTES_MAX;
use crate::value::Value;
use crate::{Error, Result, Table};

/// A row's key as bytes whose order is that of the values.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RowKey {
    /// The partition key.
    pub partition: Bytes,
    /// The clustering key.
    pub clustering: Bytes,
}

impl RowKey {
    /// Encodes a key, whose columns may be in any order.
    ///
    /// # Errors
    /// [`Error::Missing`] column; [`Error::Invalid`] for a column that is not of the key, is there twice or missing, of
    /// another type, or too long.
    pub fn of(table: &Table, key: &Key) -> Result<Self> {
        for (number, (name, _)) in key.0.iter().enumerate() {
            let column = table.column(name)?;
            if !table.is_key(column.id) {
                return Err(Error::invalid("key", format!("column {name} is not part of it")));
            }
            if key.0[..number].iter().any(|(other, _)| other == name) {
                return Err(Error::invalid("key", format!("column {name} is there twice")));
            }
        }
        let partition = encode(table, partition_columns(table), &key.0, "partition key")?;
        let clustering = encode(table, table.clustering_key.iter().copied(), &key.0, "clustering key")?;
        Ok(Self { partition, clustering })
    }

    /// Encodes the values of a key in the order of the schema, as a storage has them.
    pub fn from_values(table: &Table, partition: &[Value], clustering: &[Value]) -> Self {
        let mut key = (Vec::new(), Vec::new());
        partition.iter().for_each(|value| key::push(&mut key.0, value, Order::Asc));
        for (value, (_, order)) in clustering.iter().zip(&table.clustering_key) {
            key::push(&mut key.1, value, *order);
        }
        Self { partition: key.0.into(), clustering: key.1.into() }
    }

    /// The values of the partition key and of the clustering key, in the order of the schema; `None` where the bytes
    /// are of another schema.
    pub fn values(&self, table: &Table) -> Option<(Vec<Value>, Vec<Value>)> {
        let mut clustering = &self.clustering[..];
        let pop = |(id, order): &(u16, Order)| key::pop(&mut clustering, table.column_numbered(*id)?.data_type, *order);
        let second = table.clustering_key.iter().map(pop).collect::<Option<_>>()?;
        Some((decode_partition(table, &self.partition)?, second))
    }
}

/// The values of a partition key, in the order of the schema; `None` where the bytes are of another schema.
pub fn decode_partition(table: &Table, mut bytes: &[u8]) -> Option<Vec<Value>> {
    let pop = |id: &u16| key::pop(&mut bytes, table.column_numbered(*id)?.data_type, Order::Asc);
    table.partition_key.iter().map(pop).collect()
}

fn partition_columns(table: &Table) -> impl Iterator<Item = (u16, Order)> {
    table.partition_key.iter().map(|id| (*id, Order::Asc))
}

/// The key's columns in the order of the schema, as bytes.
fn encode(
    table: &Table,
    columns: impl Iterator<Item = (u16, Order)>,
    values: &Values,
    what: &'static str,
) -> Result<Bytes> {
    let mut bytes = Vec::new();
    for (id, order) in columns {
        let Some(column) = table.column_numbered(id) else { continue };
        let found = values.iter().find(|(name, _)| *name == column.name);
        let (_, value) = found.ok_or_else(|| Error::invalid(what, format!("column {} is missing", column.name)))?;
        table.check_value(column, value)?;
        key::push(&mut bytes, value, order);
    }
    if bytes.len() > KEY_BYTES_MAX {
        return Err(Error::invalid(what, format!("{} bytes exceed KEY_BYTES_MAX = {KEY_BYTES_MAX}", bytes.len())));
    }
    Ok(bytes.into())
}

/// Encodes a whole partition key and nothing else.
///
/// # Errors
/// As [`RowKey::of`].
pub fn encode_partition(table: &Table, values: &Values) -> Result<Bytes> {
    let partition = encode(table, partition_columns(table), values, "partition key")?;
    let foreign = |name: &str| !table.column(name).is_ok_and(|column| table.partition_key.contains(&column.id));
    if let Some((extra, _)) = values.iter().find(|(name, _)| foreign(name)) {
        return Err(Error::invalid("partition key", format!("column {extra} is not part of it")));
    }
    Ok(partition)
}

/// A value's bytes in an index.
///
/// # Errors
/// [`Error::Invalid`] if they exceed [`KEY_BYTES_MAX`].
pub fn encode_indexed(value: &Value) -> Result<Bytes> {
    let mut bytes = Vec::new();
    key::push(&mut bytes, value, Order::Asc);
    if bytes.len() > KEY_BYTES_MAX {
        let why = format!("an indexed value of {} bytes exceeds KEY_BYTES_MAX = {KEY_BYTES_MAX}", bytes.len());
        return Err(Error::invalid("value", why));
    }
    Ok(bytes.into())
}

/// A row with its names: the key's columns, then the others that are there and asked for (none: all).
pub fn record(table: &Table, key: &RowKey, row: &Row, columns: &[String]) -> crate::Record {
    let wanted = |name: &str| columns.is_empty() || columns.iter().any(|column| column == name);
    let mut record = crate::Record { columns: Vec::new(), expires_ms: row.expiry() };
    let (mut partition, mut clustering) = (&key.partition[..], &key.clustering[..]);
    for id in &table.partition_key {
        if let Some(column) = table.column_numbered(*id) {
            let value = key::pop(&mut partition, column.data_type, Order::Asc);
            record.columns.push((column.name.clone(), value));
        }
    }
    for (id, order) in &table.clustering_key {
        if let Some(column) = table.column_numbered(*id) {
            let value = key::pop(&mut clustering, column.data_type, *order);
            record.columns.push((column.name.clone(), value));
        }
    }
    for column in &table.columns {
        if !table.is_key(column.id)
            && wanted(&column.name)
            && let Some(value) = row.column(table, column.id)
        {
            record.columns.push((column.name.clone(), value));
        }
    }
    record
}

/// Whether a filter lets a row through.
pub fn filtered(table: &Table, key: &RowKey, filter: &Filter, row: &Row) -> bool {
    if *filter == Filter::always() {
        return true;
    }
    let record = record(table, key, row, &[]);
    filter.holds(&|name| record.get(name).map(|value| value.cloned()))
}

/// Whether a condition holds of a row as it is (`None`: there is none).
pub fn holds(table: &Table, key: &RowKey, condition: &Condition, row: Option<&Row>) -> bool {
    match (condition, row) {
        (Condition::Always, _) | (Condition::Exists, Some(_)) | (Condition::NotExists, None) => true,
        (Condition::If(filter), Some(row)) => filtered(table, key, filter, row),
        _ => false,
    }
}

/// Makes a mutation's change, its condition left aside.
///
/// # Errors
/// [`Error::Missing`] column.
pub fn change(table: &Table, mutation: &Mutation, row: &mut Option<Row>) -> Result<()> {
    match &mutation.change {
        Change::Delete => *row = None,
        Change::Put { columns, expires_ms } => {
            let row = row.get_or_insert_default();
            row.columns.retain(|id, _| table.column_numbered(*id).is_some());
            for (name, value) in columns {
                row.columns.insert(table.column(name)?.id, value.clone());
            }
            row.expires_ms = expires_ms.or(row.expires_ms);
        }
    }
    Ok(())
}

/// Refuses a list of mutations that is empty or too long.
///
/// # Errors
/// [`Error::Invalid`] with the limit.
pub fn check_list(mutations: &[Mutation]) -> Result<()> {
    if mutations.is_empty() || mutations.len() > crate::MUTATIONS_MAX {
        let why = format!("{}: expected 1 to {} (MUTATIONS_MAX)", mutations.len(), crate::MUTATIONS_MAX);
        return Err(Error::invalid("number of mutations", why));
    }
    Ok(())
}

/// Refuses a mutation with an empty condition, or of columns that there are not, are of the key, named twice, or of
/// another type. The key is looked at by [`RowKey::of`].
///
/// # Errors
/// [`Error::Missing`], [`Error::Invalid`].
pub fn check_mutation(table: &Table, mutation: &Mutation) -> Result<()> {
    if let Condition::If(filter) = &mutation.condition {
        if *filter == Filter::always() {
            return Err(Error::invalid("condition", "it is empty: say what must hold, or that the row must exist"));
        }
        filter.check(table)?;
    }
    let Change::Put { columns, .. } = &mutation.change else { return Ok(()) };
    for (number, (name, value)) in columns.iter().enumerate() {
        let column = table.column(name)?;
        if table.is_key(column.id) {
            return Err(Error::invalid("put", format!("column {name} is part of the key")));
        }
        if columns[..number].iter().any(|(other, _)| other == name) {
            return Err(Error::invalid("put", format!("column {name} is there twice")));
        }
        if let Some(value) = value {
            table.check_value(column, value)?;
        }
    }
    Ok(())
}

/// Refuses a scan that names columns that there are not, filters by another type, or goes over more than a partition in
/// reverse.
///
/// # Errors
/// [`Error::Missing`], [`Error::Invalid`].
pub fn check_scan(table: &Table, scan: &Scan) -> Result<()> {
    scan.filter.check(table)?;
    for name in scan.columns.iter().chain(scan.order_by.iter().map(|(name, _)| name)) {
        table.column(name)?;
    }
    if scan.reverse && !matches!(scan.over, crate::Over::Partition { .. }) {
        return Err(Error::invalid("scan", "only a partition is scanned in reverse; order_by sorts others"));
    }
    if scan.page.is_some() && !scan.order_by.is_empty() {
        return Err(Error::invalid("page token", "a scan in another order has one page"));
    }
    Ok(())
}

/// The column of an index scan, if it has an index that is not being built any more and the value is of its type.
///
/// # Errors
/// [`Error::Missing`], [`Error::Invalid`].
pub fn indexed<'a>(table: &'a Table, name: &str, value: &Value) -> Result<(&'a crate::Column, &'a crate::Index)> {
    let column = table.column(name)?;
    let index = table.index_of(column.id).ok_or_else(|| Error::missing("index", name))?;
    if index.building {
        let why =
            format!("that of column {name} is being built, or building it was interrupted: adding it again goes on");
        return Err(Error::invalid("index", why));
    }
    table.check_value(column, value)?;
    Ok((column, index))
}

/// The rows of a partition between two bounds: equal in the first clustering columns, and with the next one between two
/// values, by value and whichever way it rises.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Between {
    /// Values of the first clustering columns.
    pub equal: Vec<Value>,
    /// The next column's low bound, and whether it is included.
    pub low: Option<(Value, bool)>,
    /// Its high bound.
    pub high: Option<(Value, bool)>,
}

impl Between {
    /// Reads the bounds of a scan.
    ///
    /// # Errors
    /// [`Error::Missing`], [`Error::Invalid`].
    pub fn of(table: &Table, low: Option<&Bound>, high: Option<&Bound>) -> Result<Self> {
        let cut = |bound: Option<&Bound>| -> Result<Option<Cut>> {
            let Some(bound) = bound else { return Ok(None) };
            let mut values = bound_values(table, bound)?;
            let last = values.pop().ok_or_else(|| Error::invalid("bound", "it names no column"))?;
            Ok(Some((values, (last, bound.inclusive))))
        };
        Ok(match (cut(low)?, cut(high)?) {
            (Some((equal, low)), Some((same, high))) => {
                if equal != same {
                    let why = "low and high bound must name the same columns, with equal values in all but the last";
                    return Err(Error::invalid("bound", why));
                }
                Self { equal, low: Some(low), high: Some(high) }
            }
            (Some((equal, low)), None) => Self { equal, low: Some(low), high: None },
            (None, Some((equal, high))) => Self { equal, low: None, high: Some(high) },
            (None, None) => Self::default(),
        })
    }
}

/// Values of the columns that have to be equal, and the last one with whether it is included.
type Cut = (Vec<Value>, (Value, bool));

/// A bound's values, in the order of the clustering key.
fn bound_values(table: &Table, bound: &Bound) -> Result<Vec<Value>> {
    for (name, _) in &bound.values {
        let column = table.column(name)?;
        let number = table.clustering_key.iter().position(|(id, _)| *id == column.id);
        if number.is_none_or(|number| number >= bound.values.len()) {
            let why = format!("column {name} is not among the first {} of the clustering key", bound.values.len());
            return Err(Error::invalid("bound", why));
        }
    }
    let mut values = Vec::new();
    for (id, _) in table.clustering_key.iter().take(bound.values.len()) {
        let Some(column) = table.column_numbered(*id) else { continue };
        let found = bound.values.iter().find(|(name, _)| *name == column.name);
        let (_, value) = found.ok_or_else(|| Error::invalid("bound", format!("column {} is missing", column.name)))?;
        table.check_value(column, value)?;
        values.push(value.clone());
    }
    Ok(values)
}
