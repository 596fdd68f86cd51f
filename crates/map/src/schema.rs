//! Schemas: tables, their columns by number, keys and indexes; what a change may do.
//!
//! Invariants:
//! 1. A column's number is never used again, so that what stands in rows under it is never taken for another column's.
//! 2. Every change raises the table's generation; every mutation guards it.

pub use esker_store::names::NAME_BYTES_MAX;
use serde::{Deserialize, Serialize};

use crate::key::Order;
use crate::value::{DataType, Value};
use crate::{Error, Result};

/// Most columns of a table.
pub const COLUMNS_MAX: usize = 1_024;
/// Longest encoded partition key, or clustering key, in bytes.
pub const KEY_BYTES_MAX: usize = 900;

/// A column.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Column {
    /// Its number in rows.
    pub id: u16,
    /// Its name.
    pub name: String,
    /// Its type.
    #[serde(rename = "type")]
    pub data_type: DataType,
}

/// A secondary index: rows by the value of one column.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Index {
    /// Its number.
    pub id: u16,
    /// The column's number.
    pub column: u16,
    /// Its entries are still being written: every mutation keeps it, no scan may use it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub building: bool,
}

/// A table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Table {
    /// Its number: as long as its rows live, whatever it is called.
    pub id: u64,
    /// Grows with every change.
    pub generation: u64,
    /// The columns in the order that they were named.
    pub columns: Vec<Column>,
    /// Numbers of the columns of the partition key.
    pub partition_key: Vec<u16>,
    /// Numbers of the columns of the clustering key, and how each rises.
    pub clustering_key: Vec<(u16, Order)>,
    /// The secondary indexes.
    pub indexes: Vec<Index>,
    /// The next column's or index's number.
    pub next: u16,
}

/// A table to be made: names, types, keys.
#[derive(Clone, Debug, Default)]
pub struct Schema {
    columns: Vec<(String, DataType)>,
    partition_key: Vec<String>,
    clustering_key: Vec<(String, Order)>,
    indexes: Vec<String>,
}

impl Schema {
    /// A schema without columns.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a column.
    pub fn column(mut self, name: impl Into<String>, data_type: DataType) -> Self {
        self.columns.push((name.into(), data_type));
        self
    }

    /// Makes a column the next part of the partition key.
    pub fn partition(mut self, name: impl Into<String>) -> Self {
        self.partition_key.push(name.into());
        self
    }

    /// Makes a column the next part of the clustering key.
    pub fn clustering(mut self, name: impl Into<String>, order: Order) -> Self {
        self.clustering_key.push((name.into(), order));
        self
    }

    /// Indexes a column.
    pub fn index(mut self, name: impl Into<String>) -> Self {
        self.indexes.push(name.into());
        self
    }

    /// The columns with their types, as named so far.
    pub fn columns(&self) -> &[(String, DataType)] {
        &self.columns
    }

    /// Names of the columns of the partition key.
    pub fn partition_key(&self) -> &[String] {
        &self.partition_key
    }

    /// The columns of the clustering key, and how each rises.
    pub fn clustering_key(&self) -> &[(String, Order)] {
        &self.clustering_key
    }

    /// Names of the columns with an index.
    pub fn indexes(&self) -> &[String] {
        &self.indexes
    }

    /// Whether a column was made part of the key.
    pub fn is_key(&self, name: &str) -> bool {
        self.partition_key.iter().chain(self.clustering_key.iter().map(|(column, _)| column)).any(|key| key == name)
    }

    /// The table of this number, in its first generation.
    ///
    /// # Errors
    /// [`Error::Invalid`] without a partition key, with a name twice or beyond a limit; [`Error::Missing`] for a key's
    /// column that there is not.
    pub fn build(&self, id: u64) -> Result<Table> {
        let mut table = Table {
            id,
            generation: 1,
            columns: Vec::new(),
            partition_key: Vec::new(),
            clustering_key: Vec::new(),
            indexes: Vec::new(),
            next: 0,
        };
        for (name, data_type) in &self.columns {
            table.add_column(name, *data_type)?;
        }
        for name in &self.partition_key {
            let column = table.key_column(name)?;
            table.partition_key.push(column);
        }
        for (name, order) in &self.clustering_key {
            let column = table.key_column(name)?;
            table.clustering_key.push((column, *order));
        }
        if table.partition_key.is_empty() {
            return Err(Error::invalid("schema", "no partition key: at least one column has to be of it"));
        }
        for name in &self.indexes {
            table.add_index(name)?;
        }
        Ok(table)
    }
}

/// Refuses a name that is empty, longer than [`NAME_BYTES_MAX`], or has control characters; `what` says whose it is.
///
/// # Errors
/// [`Error::Invalid`].
pub fn check_name(what: &'static str, name: &str) -> Result<()> {
    let checked = esker_store::names::check_name(name, ("NAME_BYTES_MAX", NAME_BYTES_MAX), char::is_control);
    checked.map_err(|why| Error::invalid(what, why))
}

impl Table {
    /// A column by its name.
    ///
    /// # Errors
    /// [`Error::Missing`].
    pub fn column(&self, name: &str) -> Result<&Column> {
        let found = self.columns.iter().find(|column| column.name == name);
        found.ok_or_else(|| Error::missing("column", name))
    }

    /// A column by its number.
    pub fn column_numbered(&self, id: u16) -> Option<&Column> {
        self.columns.iter().find(|column| column.id == id)
    }

    /// Whether a column is part of the key.
    pub fn is_key(&self, id: u16) -> bool {
        self.partition_key.contains(&id) || self.clustering_key.iter().any(|(column, _)| *column == id)
    }

    /// The index over a column.
    pub fn index_of(&self, column: u16) -> Option<&Index> {
        self.indexes.iter().find(|index| index.column == column)
    }

    fn key_column(&self, name: &str) -> Result<u16> {
        let id = self.column(name)?.id;
        if self.is_key(id) {
            return Err(Error::invalid("schema", format!("column {name} is twice in the key")));
        }
        Ok(id)
    }

    fn number(&mut self) -> Result<u16> {
        let id = self.next;
        self.next = id.checked_add(1).ok_or_else(|| Error::invalid("table", "all numbers of columns were used"))?;
        Ok(id)
    }

    pub(crate) fn add_column(&mut self, name: &str, data_type: DataType) -> Result<()> {
        check_name("column name", name)?;
        if self.column(name).is_ok() {
            return Err(Error::Exists { what: "column", name: name.into() });
        }
        if self.columns.len() == COLUMNS_MAX {
            return Err(Error::invalid("table", format!("more than {COLUMNS_MAX} columns (COLUMNS_MAX)")));
        }
        let id = self.number()?;
        self.columns.push(Column { id, name: name.into(), data_type });
        Ok(())
    }

    pub(crate) fn drop_column(&mut self, name: &str) -> Result<u16> {
        let id = self.column(name)?.id;
        if self.is_key(id) {
            return Err(Error::invalid("column", format!("{name} is part of the key: it cannot be dropped")));
        }
        if self.index_of(id).is_some() {
            return Err(Error::invalid("column", format!("{name} has an index: drop that first")));
        }
        self.columns.retain(|column| column.id != id);
        Ok(id)
    }

    pub(crate) fn rename_column(&mut self, from: &str, to: &str) -> Result<()> {
        check_name("column name", to)?;
        let id = self.column(from)?.id;
        if self.column(to).is_ok() {
            return Err(Error::Exists { what: "column", name: to.into() });
        }
        self.columns.iter_mut().filter(|column| column.id == id).for_each(|column| column.name = to.into());
        Ok(())
    }

    pub(crate) fn change_type(&mut self, name: &str, to: DataType) -> Result<()> {
        let column = self.column(name)?.clone();
        if self.is_key(column.id) || self.index_of(column.id).is_some() {
            return Err(Error::invalid("column", format!("{name} is part of the key or has an index: its type stays")));
        }
        if !column.data_type.widens_to(to) {
            return Err(Error::invalid(
                "type",
                format!("{} of column {name} cannot become {to} without loss", column.data_type),
            ));
        }
        self.columns.iter_mut().filter(|one| one.id == column.id).for_each(|one| one.data_type = to);
        Ok(())
    }

    /// Makes a change, its generation left as it is.
    ///
    /// # Errors
    /// [`Error::Missing`], [`Error::Exists`], [`Error::Invalid`] where it would lose something.
    pub fn alter(&mut self, change: &Alter) -> Result<()> {
        match change {
            Alter::AddColumn(column, data_type) => self.add_column(column, *data_type),
            Alter::DropColumn(column) => self.drop_column(column).map(drop),
            Alter::RenameColumn(from, to) => self.rename_column(from, to),
            Alter::ChangeType(column, data_type) => self.change_type(column, *data_type),
        }
    }

    /// Adds an index of a table without rows, and returns its number.
    ///
    /// # Errors
    /// [`Error::Missing`], [`Error::Exists`].
    pub fn add_index(&mut self, name: &str) -> Result<u16> {
        let column = self.column(name)?.id;
        if self.index_of(column).is_some() {
            return Err(Error::Exists { what: "index", name: name.into() });
        }
        let id = self.number()?;
        self.indexes.push(Index { id, column, building: false });
        Ok(id)
    }

    /// Adds an index of which entries are to be written before it is used, or finds the one that another caller began;
    /// returns its number.
    ///
    /// # Errors
    /// [`Error::Missing`], [`Error::Exists`].
    pub fn begin_index(&mut self, name: &str) -> Result<u16> {
        let column = self.column(name)?.id;
        if let Some(index) = self.indexes.iter().find(|index| index.column == column && index.building) {
            return Ok(index.id);
        }
        let id = self.add_index(name)?;
        self.indexes.iter_mut().filter(|index| index.id == id).for_each(|index| index.building = true);
        Ok(id)
    }

    /// Drops a column's index, and returns its number.
    ///
    /// # Errors
    /// [`Error::Missing`].
    pub fn drop_index(&mut self, name: &str) -> Result<u16> {
        let column = self.column(name)?.id;
        let id = self.index_of(column).ok_or_else(|| Error::missing("index", name))?.id;
        self.indexes.retain(|index| index.id != id);
        Ok(id)
    }

    /// Refuses a value that is not of the column's type, or out of its range.
    ///
    /// # Errors
    /// [`Error::Invalid`].
    pub fn check_value(&self, column: &Column, value: &Value) -> Result<()> {
        if value.data_type() != column.data_type {
            let why = format!("column {} is {}, not {}", column.name, column.data_type, value.data_type());
            return Err(Error::invalid("value", why));
        }
        if let Value::Time(nanos) = value
            && !(0..crate::value::DAY_NANOS).contains(nanos)
        {
            return Err(Error::invalid(
                "value",
                format!("time {nanos} of column {}: expected nanoseconds of a day", column.name),
            ));
        }
        Ok(())
    }
}

/// A change of a table's schema.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Alter {
    /// Adds a column, absent in all rows.
    AddColumn(String, DataType),
    /// Drops a column with what it holds.
    DropColumn(String),
    /// Gives a column another name.
    RenameColumn(String, String),
    /// Gives a column a wider type: int to bigint or double, float to double, anything to text (a blob as hexadecimal
    /// digits).
    ChangeType(String, DataType),
}

/// A type by the name that schemas write.
impl std::str::FromStr for DataType {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let found = Self::ALL.iter().find(|(_, known)| known.eq_ignore_ascii_case(name)).map(|(one, _)| *one);
        let names: Vec<_> = Self::ALL.iter().map(|(_, name)| *name).collect();
        found.ok_or_else(|| Error::invalid("type", format!("{name:?}: expected one of {}", names.join(", "))))
    }
}
