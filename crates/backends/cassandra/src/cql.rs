//! A table as Cassandra has it: names, texts of statements, values in its types. Pure: nothing here talks to a server.
//!
//! [`Stored`] (schema, keyspace) → CREATE TABLE, SELECT, UPDATE … IF version · [`Value`] ↔ [`CqlValue`] · row of
//! Cassandra → [`Found`]
//!
//! Invariants:
//! 1. Statements hold names made of numbers and types only; whatever users name or store is bound, never written into a
//!    text.
//! 2. A column's name says its type, so that a column that is given a wider type gets another one, and what is in the
//!    old one is still read.

use std::collections::{BTreeMap, BTreeSet};

use esker_map::parts::{Between, Row, RowKey};
use esker_map::{DataType, Order, Table, Value};
use scylla::value::{CqlDate, CqlTime, CqlTimestamp, CqlValue, MaybeUnset};
use serde::{Deserialize, Serialize};

/// A bound value: unset leaves the column as it is, `None` makes it null.
pub(crate) type Cell = MaybeUnset<Option<CqlValue>>;
/// A row as it comes from Cassandra.
pub(crate) type Cells = Vec<Option<CqlValue>>;

pub(crate) fn set(value: CqlValue) -> Cell {
    MaybeUnset::Set(Some(value))
}

pub(crate) fn text(value: impl Into<String>) -> Cell {
    set(CqlValue::Text(value.into()))
}

/// What the catalogue says of a table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Stored {
    pub keyspace: String,
    pub table: Table,
    /// Types that columns had before the ones that they have, oldest first: rows may still have values in those.
    #[serde(default)]
    pub older: BTreeMap<u16, Vec<DataType>>,
}

/// A row that was found, and how it stands in Cassandra.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Found {
    pub key: RowKey,
    pub row: Row,
    pub version: Option<Vec<u8>>,
    /// The columns of Cassandra that are not null.
    pub filled: BTreeSet<(u16, u8)>,
    pub bytes: usize,
}

fn type_name(data_type: DataType) -> &'static str {
    match data_type {
        // Cassandra has one type for both; the catalogue says which it is.
        DataType::Timestamp | DataType::TimestampTz => "timestamp",
        other => other.name(),
    }
}

pub(crate) fn column_name(id: u16, data_type: DataType) -> String {
    format!("c{id}_{}", data_type.name())
}

pub(crate) fn to_cql(value: &Value) -> CqlValue {
    match value {
        Value::Boolean(value) => CqlValue::Boolean(*value),
        Value::Int(value) => CqlValue::Int(*value),
        Value::BigInt(value) => CqlValue::BigInt(*value),
        Value::Float(value) => CqlValue::Float(*value),
        Value::Double(value) => CqlValue::Double(*value),
        Value::Text(value) => CqlValue::Text(value.clone()),
        Value::Blob(value) => CqlValue::Blob(value.to_vec()),
        // Cassandra counts days from 2^31 before 1970-01-01.
        Value::Date(value) => CqlValue::Date(CqlDate(*value as u32 ^ 1 << 31)),
        Value::Time(value) => CqlValue::Time(CqlTime(*value)),
        Value::Timestamp(value) | Value::TimestampTz(value) => CqlValue::Timestamp(CqlTimestamp(*value)),
    }
}

pub(crate) fn from_cql(value: CqlValue, data_type: DataType) -> Option<Value> {
    Some(match (value, data_type) {
        (CqlValue::Boolean(value), DataType::Boolean) => Value::Boolean(value),
        (CqlValue::Int(value), DataType::Int) => Value::Int(value),
        (CqlValue::BigInt(value), DataType::BigInt) => Value::BigInt(value),
        (CqlValue::Float(value), DataType::Float) => Value::Float(value),
        (CqlValue::Double(value), DataType::Double) => Value::Double(value),
        (CqlValue::Text(value), DataType::Text) => Value::Text(value),
        (CqlValue::Blob(value), DataType::Blob) => Value::Blob(value.into()),
        (CqlValue::Date(CqlDate(days)), DataType::Date) => Value::Date((days ^ 1 << 31) as i32),
        (CqlValue::Time(CqlTime(nanos)), DataType::Time) => Value::Time(nanos),
        (CqlValue::Timestamp(CqlTimestamp(millis)), DataType::Timestamp) => Value::Timestamp(millis),
        (CqlValue::Timestamp(CqlTimestamp(millis)), DataType::TimestampTz) => Value::TimestampTz(millis),
        _ => return None,
    })
}

fn size(value: &CqlValue) -> usize {
    match value {
        CqlValue::Text(text) => text.len(),
        CqlValue::Blob(bytes) => bytes.len(),
        CqlValue::Set(values) => 8 * values.len(),
        _ => 8,
    }
}

/// Whether Cassandra orders a value as we do where it is part of a key: it takes all values that are no number for one,
/// above all others.
pub(crate) fn is_number(value: &Value) -> bool {
    !matches!(value, Value::Float(value) if value.is_nan()) && !matches!(value, Value::Double(value) if value.is_nan())
}

impl Stored {
    /// The table with its keyspace.
    pub fn name(&self) -> String {
        format!("{}.t{}", self.keyspace, self.table.id)
    }

    pub fn index_name(&self, index: u16) -> String {
        format!("t{}_i{index}", self.table.id)
    }

    fn column(&self, id: u16) -> String {
        self.table.column_numbered(id).map_or_else(String::new, |column| column_name(id, column.data_type))
    }

    fn partition(&self) -> Vec<String> {
        self.table.partition_key.iter().map(|id| self.column(*id)).collect()
    }

    fn clustering(&self) -> Vec<String> {
        self.table.clustering_key.iter().map(|(id, _)| self.column(*id)).collect()
    }

    /// All columns outside the key, in all types that they have had: the newest first.
    fn physical(&self) -> Vec<(u16, DataType)> {
        let others = self.table.columns.iter().filter(|column| !self.table.is_key(column.id));
        others
            .flat_map(|column| {
                let older = self.older.get(&column.id).into_iter().flatten().rev().copied();
                std::iter::once(column.data_type).chain(older).map(|data_type| (column.id, data_type))
            })
            .collect()
    }

    pub fn create_table(&self) -> String {
        let columns =
            self.table.columns.iter().map(|column| {
                format!("{} {}, ", column_name(column.id, column.data_type), type_name(column.data_type))
            });
        let columns: String = columns.collect();
        let mut key = format!("({})", self.partition().join(", "));
        let mut order = Vec::new();
        for (id, way) in &self.table.clustering_key {
            let column = self.column(*id);
            key = format!("{key}, {column}");
            order.push(format!("{column} {}", if *way == Order::Desc { "DESC" } else { "ASC" }));
        }
        let order =
            if order.is_empty() { String::new() } else { format!(" WITH CLUSTERING ORDER BY ({})", order.join(", ")) };
        format!(
            "CREATE TABLE IF NOT EXISTS {} ({columns}version blob, expires bigint, nulls frozen<set<int>>, PRIMARY KEY ({key})){order}",
            self.name()
        )
    }

    pub fn add_column(&self, id: u16, data_type: DataType) -> String {
        format!("ALTER TABLE {} ADD IF NOT EXISTS {} {}", self.name(), column_name(id, data_type), type_name(data_type))
    }

    /// Drops a column in all types that it has had.
    pub fn drop_column(&self, id: u16) -> String {
        let columns = self.physical().into_iter().filter(|(column, _)| *column == id);
        let names: Vec<_> = columns.map(|(id, data_type)| column_name(id, data_type)).collect();
        format!("ALTER TABLE {} DROP IF EXISTS ({})", self.name(), names.join(", "))
    }

    pub fn create_index(&self, index: u16, column: u16) -> String {
        format!("CREATE INDEX IF NOT EXISTS {} ON {} ({})", self.index_name(index), self.name(), self.column(column))
    }

    fn select(&self) -> String {
        let mut columns = self.partition();
        columns.extend(self.clustering());
        columns.extend(self.physical().into_iter().map(|(id, data_type)| column_name(id, data_type)));
        format!("SELECT {}, version, expires, nulls FROM {}", columns.join(", "), self.name())
    }

    fn equal(columns: Vec<String>) -> Vec<String> {
        columns.into_iter().map(|column| format!("{column} = ?")).collect()
    }

    fn key_equal(&self) -> String {
        Self::equal([self.partition(), self.clustering()].concat()).join(" AND ")
    }

    pub fn select_row(&self) -> String {
        format!("{} WHERE {}", self.select(), self.key_equal())
    }

    pub fn select_all(&self) -> String {
        self.select()
    }

    pub fn select_indexed(&self, column: u16) -> String {
        format!("{} WHERE {} = ?", self.select(), self.column(column))
    }

    /// Rows of a partition between bounds, with the values to bind.
    pub fn select_partition(&self, partition: &[Value], between: &Between, reverse: bool) -> (String, Vec<Cell>) {
        let mut terms = Self::equal(self.partition());
        let mut cells: Vec<Cell> = partition.iter().chain(&between.equal).map(|value| set(to_cql(value))).collect();
        let clustering = self.clustering();
        terms.extend(Self::equal(clustering[..between.equal.len().min(clustering.len())].to_vec()));
        if let Some(column) = clustering.get(between.equal.len()) {
            for (bound, sign) in [(&between.low, '>'), (&between.high, '<')] {
                if let Some((value, inclusive)) = bound {
                    terms.push(format!("{column} {sign}{} ?", if *inclusive { "=" } else { "" }));
                    cells.push(set(to_cql(value)));
                }
            }
        }
        let mut cql = format!("{} WHERE {}", self.select(), terms.join(" AND "));
        if reverse && !clustering.is_empty() {
            let turned = clustering
                .iter()
                .zip(&self.table.clustering_key)
                .map(|(column, (_, order))| format!("{column} {}", if *order == Order::Desc { "ASC" } else { "DESC" }));
            cql = format!("{cql} ORDER BY {}", turned.collect::<Vec<_>>().join(", "));
        }
        (cql, cells)
    }

    /// The values of a key, to bind.
    pub fn key_cells(&self, key: &RowKey) -> Option<Vec<Cell>> {
        let (partition, clustering) = key.values(&self.table)?;
        Some(partition.iter().chain(&clustering).map(|value| set(to_cql(value))).collect())
    }

    /// Binds: TTL, the columns of [`Stored::physical`], version, expires, nulls, the key, the version that it has to
    /// have.
    pub fn update(&self) -> String {
        let names = self.physical().into_iter().map(|(id, data_type)| column_name(id, data_type));
        let fixed = ["version", "expires", "nulls"].map(str::to_owned);
        let columns = Self::equal(names.chain(fixed).collect()).join(", ");
        format!("UPDATE {} USING TTL ? SET {columns} WHERE {} IF version = ?", self.name(), self.key_equal())
    }

    /// What [`Stored::update`] binds to turn a row that was found into `now`, which is written by `version` and lives
    /// for `ttl_seconds` (0: for ever).
    pub fn update_cells(
        &self,
        key: &RowKey,
        found: Option<&Found>,
        now: &Row,
        version: &[u8],
        ttl_seconds: i32,
    ) -> Option<Vec<Cell>> {
        let before = found.map(|found| &found.row);
        // A TTL is of the single column, so a row that has one, or had one, is written whole.
        let whole = now.expires_ms.is_some() || before.is_some_and(|row| row.expires_ms.is_some());
        let mut cells = vec![set(CqlValue::Int(ttl_seconds))];
        for (id, data_type) in self.physical() {
            let newest = self.table.column_numbered(id).is_some_and(|column| column.data_type == data_type);
            let filled = found.is_some_and(|found| found.filled.contains(&(id, data_type as u8)));
            let value = if newest { now.column(&self.table, id).flatten() } else { None };
            let same = !whole && before.and_then(|row| row.columns.get(&id)).is_some_and(|was| *was == value);
            cells.push(match value {
                Some(_) if same && filled => MaybeUnset::Unset,
                Some(value) => set(to_cql(&value)),
                None if filled => MaybeUnset::Set(None),
                None => MaybeUnset::Unset,
            });
        }
        cells.push(set(CqlValue::Blob(version.to_vec())));
        cells.push(MaybeUnset::Set(now.expires_ms.map(|millis| CqlValue::BigInt(millis as i64))));
        let nulls = now.columns.iter().filter(|(_, value)| value.is_none()).map(|(id, _)| CqlValue::Int((*id).into()));
        let nulls: Vec<_> = nulls.collect();
        cells.push(MaybeUnset::Set((!nulls.is_empty()).then_some(CqlValue::Set(nulls))));
        cells.extend(self.key_cells(key)?);
        cells.push(MaybeUnset::Set(found.and_then(|found| found.version.clone()).map(CqlValue::Blob)));
        Some(cells)
    }

    /// A row of [`Stored::select`].
    pub fn decode(&self, cells: Cells) -> Result<Found, String> {
        let bytes = cells.iter().flatten().map(size).sum();
        let mut cells = cells.into_iter();
        let mut key = |ids: &mut dyn Iterator<Item = u16>| -> Result<Vec<Value>, String> {
            ids.map(|id| {
                let data_type = self.table.column_numbered(id).map(|column| column.data_type);
                let value =
                    cells.next().flatten().zip(data_type).and_then(|(cell, data_type)| from_cql(cell, data_type));
                value.ok_or_else(|| format!("column {} of the key has no value of its type", self.column(id)))
            })
            .collect()
        };
        let partition = key(&mut self.table.partition_key.iter().copied())?;
        let clustering = key(&mut self.table.clustering_key.iter().map(|(id, _)| *id))?;
        let mut found =
            Found { key: RowKey::from_values(&self.table, &partition, &clustering), bytes, ..Found::default() };
        for (id, data_type) in self.physical() {
            let Some(cell) = cells.next().flatten() else { continue };
            let value = from_cql(cell, data_type)
                .ok_or_else(|| format!("column {} has no value of its type", column_name(id, data_type)))?;
            found.filled.insert((id, data_type as u8));
            // The newest type comes first.
            found.row.columns.entry(id).or_insert(Some(value));
        }
        found.version = match cells.next().flatten() {
            Some(CqlValue::Blob(version)) => Some(version),
            None => None,
            Some(other) => return Err(format!("version {other:?}")),
        };
        found.row.expires_ms = match cells.next().flatten() {
            Some(CqlValue::BigInt(millis)) => Some(millis as u64),
            None => None,
            Some(other) => return Err(format!("expires {other:?}")),
        };
        if let Some(CqlValue::Set(nulls)) = cells.next().flatten() {
            for null in nulls {
                let CqlValue::Int(id) = null else { return Err(format!("nulls with {null:?}")) };
                let id = u16::try_from(id).map_err(|_| format!("nulls with {id}"))?;
                found.row.columns.entry(id).or_insert(None);
            }
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use esker_map::{Alter, Key, Schema};

    use super::*;

    fn stored() -> Stored {
        let mut table = Schema::new()
            .column("p", DataType::Text)
            .column("Q; DROP", DataType::Blob)
            .column("a", DataType::Int)
            .column("b", DataType::TimestampTz)
            .column("x", DataType::BigInt)
            .column("y", DataType::Text)
            .partition("p")
            .partition("Q; DROP")
            .clustering("a", Order::Asc)
            .clustering("b", Order::Desc)
            .build(5)
            .unwrap();
        table.alter(&Alter::RenameColumn("y".into(), "z".into())).unwrap();
        Stored { keyspace: "k_n1".into(), table, older: BTreeMap::from([(4, vec![DataType::Int])]) }
    }

    fn key(stored: &Stored) -> RowKey {
        let key = Key::of("p", "p").and("Q; DROP", bytes::Bytes::from_static(b"q")).and("a", -1);
        RowKey::of(&stored.table, &key.and("b", Value::TimestampTz(7))).unwrap()
    }

    #[test]
    fn statements_name_columns_by_number_and_type() {
        let stored = stored();
        assert_eq!(
            stored.create_table(),
            "CREATE TABLE IF NOT EXISTS k_n1.t5 (c0_text text, c1_blob blob, c2_int int, c3_timestamptz timestamp, c4_bigint bigint, c5_text text, \
             version blob, expires bigint, nulls frozen<set<int>>, PRIMARY KEY ((c0_text, c1_blob), c2_int, c3_timestamptz)) \
             WITH CLUSTERING ORDER BY (c2_int ASC, c3_timestamptz DESC)"
        );
        assert_eq!(
            stored.update(),
            "UPDATE k_n1.t5 USING TTL ? SET c4_bigint = ?, c4_int = ?, c5_text = ?, version = ?, expires = ?, nulls = ? \
             WHERE c0_text = ? AND c1_blob = ? AND c2_int = ? AND c3_timestamptz = ? IF version = ?"
        );
        let between = Between { equal: vec![1.into()], low: None, high: Some((Value::TimestampTz(3), true)) };
        let (cql, cells) = stored.select_partition(&["p".into(), Value::Blob(b"q".to_vec().into())], &between, true);
        assert!(
            cql.ends_with(
                " WHERE c0_text = ? AND c1_blob = ? AND c2_int = ? AND c3_timestamptz <= ? ORDER BY c2_int DESC, c3_timestamptz ASC"
            ),
            "{cql}"
        );
        assert_eq!(cells.len(), 4);
        assert_eq!(stored.drop_column(4), "ALTER TABLE k_n1.t5 DROP IF EXISTS (c4_bigint, c4_int)");
    }

    #[test]
    fn a_row_is_read_as_it_was_written_and_older_types_are_kept_until_the_next_write() {
        let stored = stored();
        let key_cells: Cells =
            [&Value::from("p"), &Value::Blob(b"q".to_vec().into()), &(-1).into(), &Value::TimestampTz(7)]
                .map(|value| Some(to_cql(value)))
                .to_vec();
        let found = |cells: [Option<CqlValue>; 6]| stored.decode([key_cells.clone(), cells.to_vec()].concat()).unwrap();
        let version = || Some(CqlValue::Blob(vec![1; 16]));
        let old =
            found([None, Some(CqlValue::Int(9)), None, version(), None, Some(CqlValue::Set(vec![CqlValue::Int(5)]))]);
        assert_eq!(old.key, key(&stored));
        assert_eq!(old.row.columns, BTreeMap::from([(4, Some(Value::Int(9))), (5, None)]));
        let mut now = old.row.clone();
        now.columns.insert(5, Some("text".into()));
        let cells = stored.update_cells(&old.key, Some(&old), &now, &[2; 16], 0).unwrap();
        let value = |at: usize| match &cells[at] {
            MaybeUnset::Unset => "unset".to_owned(),
            MaybeUnset::Set(value) => format!("{value:?}"),
        };
        assert_eq!((value(1).as_str(), value(2).as_str()), ("Some(BigInt(9))", "None"), "it moves to the newer column");
        assert_eq!(value(3), "Some(Text(\"text\"))");
        assert_eq!(value(6), "None", "nothing is null now");
        assert!(value(11).contains("Blob([1, 1"), "on the version that was read");
        // With the newer column filled, what is left in the older one does not count.
        let new = found([Some(CqlValue::BigInt(8)), Some(CqlValue::Int(9)), None, version(), None, None]);
        assert_eq!(new.row.columns, BTreeMap::from([(4, Some(Value::BigInt(8)))]));
    }

    #[test]
    fn rows_that_make_no_sense_are_refused() {
        let stored = stored();
        assert!(stored.decode(Vec::new()).is_err());
        assert!(stored.decode(vec![None; 10]).is_err());
        let wrong = vec![Some(CqlValue::Int(1)); 10];
        assert!(stored.decode(wrong).is_err());
    }
}
