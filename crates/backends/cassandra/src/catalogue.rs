//! The catalogue in Cassandra: namespaces, schemas, and what is to be removed.
//!
//! keyspace PREFIX, table `catalogue`: (namespace, name) → generation, record
//!
//! | namespace | name | record |
//! |---|---|---|
//! | a namespace | empty | its keyspace; the generation changes when a table of it comes or goes |
//! | a namespace | a table | the schema, as JSON |
//! | a namespace | 0, a number | `table` or `keyspace` or `index`, a space and its name: to be removed |
//! | 0 | `last` | the generation is the last number given |
//! | 0 | `secret` | the key of page tokens, in hexadecimal digits |
//!
//! A partition of it is a namespace, so a change of names is one lightweight transaction.
//!
//! Invariants:
//! 1. A generation is a number that is given once, so a schema that was seen is told from every other that had or will
//!    have its name.
//! 2. Cassandra's table has a column before the catalogue names it, and loses it after.
//! 3. What is to be dropped is noted in the transaction that takes its name away.

use std::sync::Arc;

use esker_map::{Alter, Error, Result, Schema, Table, TableName, check_name};
use scylla::value::{CqlValue, MaybeUnset};

use crate::cql::{Cell, Stored, set, text};
use crate::link::{Fault, Read};
use crate::rows::failed_read;
use crate::storage::{Inner, NAME};

/// The partition of what is of no namespace. No name has control characters.
const OURS: &str = "\u{0}";
const ATTEMPTS_MAX: u32 = 100;
/// How often it is asked whether an index is built, with a pause between.
const BUILT_ASKED_MAX: u32 = 1_200;

/// One row of a change: the generation that it has to have, and what it is to be.
struct Swap {
    name: String,
    expected: Option<i64>,
    to: Option<(i64, String)>,
}

/// A row of the catalogue.
#[derive(Clone, Debug, PartialEq)]
struct Entry {
    namespace: String,
    name: String,
    generation: i64,
    record: String,
}

fn entry(mut cells: Vec<Option<CqlValue>>) -> Option<Entry> {
    let mut next = || (!cells.is_empty()).then(|| cells.remove(0)).flatten();
    match (next()?, next()?, next()?, next()?) {
        (CqlValue::Text(namespace), CqlValue::Text(name), CqlValue::BigInt(generation), CqlValue::Text(record)) => {
            Some(Entry { namespace, name, generation, record })
        }
        _ => None,
    }
}

/// An error of a change of schema.
fn failed(fault: Fault) -> Error {
    match fault {
        Fault::Unknown(cause) => Error::Unknown { cause },
        other => failed_read(other),
    }
}

fn contended(what: &TableName) -> Error {
    Error::Contended { what: format!("the schema of table {what}"), attempts: ATTEMPTS_MAX }
}

impl Inner {
    fn catalogue(&self) -> String {
        format!("{}.catalogue", self.prefix)
    }

    /// Makes the catalogue, and the key of page tokens if there is none.
    pub async fn prepare(&mut self, random: [u8; 32]) -> Result<()> {
        self.define_keyspace(&self.prefix.clone()).await?;
        let table = format!(
            "CREATE TABLE IF NOT EXISTS {} (namespace text, name text, generation bigint, record text, PRIMARY KEY (namespace, name))",
            self.catalogue()
        );
        self.link.define(&table).await.map_err(failed)?;
        let hex: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
        if self.one(OURS, "secret").await?.is_none() {
            self.swap(OURS, vec![Swap { name: "secret".into(), expected: None, to: Some((0, hex)) }]).await?;
        }
        let found = self.one(OURS, "secret").await?.map(|entry| entry.record).unwrap_or_default();
        let digits = found.as_bytes().chunks_exact(2).map(|pair| std::str::from_utf8(pair).ok());
        let bytes: Option<Vec<u8>> = digits.map(|pair| u8::from_str_radix(pair?, 16).ok()).collect();
        let secret = bytes.and_then(|bytes| <[u8; 32]>::try_from(bytes).ok());
        self.secret =
            secret.ok_or_else(|| Error::damaged("the key of page tokens", "it is no 64 hexadecimal digits"))?;
        Ok(())
    }

    async fn define_keyspace(&self, name: &str) -> Result<()> {
        let cql = format!(
            "CREATE KEYSPACE IF NOT EXISTS {name} WITH replication = {{'class': 'NetworkTopologyStrategy', 'replication_factor': {}}}",
            self.replication
        );
        self.link.define(&cql).await.map_err(failed)
    }

    async fn select(&self, terms: &str, cells: Vec<Cell>, read: Read) -> Result<Vec<Entry>> {
        let cql = format!("SELECT namespace, name, generation, record FROM {}{terms}", self.catalogue());
        let (mut all, mut next) = (Vec::new(), None::<Vec<u8>>);
        loop {
            let page = self.link.page(&cql, cells.clone(), read, 1_000, next.as_deref()).await.map_err(failed_read)?;
            for cells in page.rows {
                all.push(entry(cells).ok_or_else(|| Error::damaged("the catalogue", "a row that is not whole"))?);
            }
            next = page.next;
            if next.is_none() {
                return Ok(all);
            }
        }
    }

    async fn one(&self, namespace: &str, name: &str) -> Result<Option<Entry>> {
        let cells = vec![text(namespace), text(name)];
        Ok(self.select(" WHERE namespace = ? AND name = ?", cells, Read::Serial).await?.pop())
    }

    /// Changes rows of a namespace if all have the generations that are expected.
    async fn swap(&self, namespace: &str, swaps: Vec<Swap>) -> Result<bool> {
        let writes: Vec<_> = swaps
            .iter()
            .map(|swap| {
                let expected = MaybeUnset::Set(swap.expected.map(CqlValue::BigInt));
                let place = [text(namespace), text(swap.name.as_str()), expected];
                let rest = "WHERE namespace = ? AND name = ? IF generation = ?";
                match &swap.to {
                    Some((generation, record)) => {
                        let cells = [set(CqlValue::BigInt(*generation)), text(record.as_str())];
                        (
                            format!("UPDATE {} SET generation = ?, record = ? {rest}", self.catalogue()),
                            [&cells[..], &place].concat(),
                        )
                    }
                    None => (format!("DELETE FROM {} {rest}", self.catalogue()), place.to_vec()),
                }
            })
            .collect();
        match self.link.conditional(writes).await {
            Ok(applied) => Ok(applied),
            Err(Fault::Unknown(cause)) => {
                // A generation is given once: where one of ours stands, it was us.
                for swap in &swaps {
                    if let Some((generation, record)) = &swap.to {
                        let found = self
                            .one(namespace, &swap.name)
                            .await
                            .map_err(|_| Error::Unknown { cause: cause.clone() })?;
                        if found.is_some_and(|found| found.generation == *generation && found.record == *record) {
                            return Ok(true);
                        }
                    }
                }
                Err(Error::Unknown { cause })
            }
            Err(fault) => Err(failed_read(fault)),
        }
    }

    /// A number that no other client gets.
    async fn number(&self) -> Result<i64> {
        for attempt in 0..ATTEMPTS_MAX {
            let last = self.one(OURS, "last").await?.map(|entry| entry.generation);
            let next = last.unwrap_or(0) + 1;
            // Who drew it is part of the row: an unknown outcome is not taken for another's success.
            let whose: String = self.version().iter().map(|byte| format!("{byte:02x}")).collect();
            let swap = Swap { name: "last".into(), expected: last, to: Some((next, whose)) };
            match self.swap(OURS, vec![swap]).await {
                Ok(true) => return Ok(next),
                // A number that no client uses does no harm.
                Ok(false) | Err(Error::Unknown { .. }) => {
                    tokio::time::sleep(std::time::Duration::from_millis(u64::from(attempt.min(20)))).await
                }
                Err(error) => return Err(error),
            }
        }
        Err(Error::Contended { what: "the catalogue".into(), attempts: ATTEMPTS_MAX })
    }

    async fn namespace(&self, namespace: &str) -> Result<Entry> {
        self.one(namespace, "").await?.ok_or_else(|| Error::missing("namespace", namespace))
    }

    pub async fn create_namespace(&self, namespace: &str) -> Result<()> {
        check_name("namespace name", namespace)?;
        let exists = || Error::Exists { what: "namespace", name: namespace.into() };
        if self.one(namespace, "").await?.is_some() {
            return Err(exists());
        }
        let number = self.number().await?;
        let keyspace = format!("{}_n{number}", self.prefix);
        self.define_keyspace(&keyspace).await?;
        let swap = Swap { name: String::new(), expected: None, to: Some((number, keyspace.clone())) };
        if self.swap(namespace, vec![swap]).await? {
            return Ok(());
        }
        self.link.define(&format!("DROP KEYSPACE IF EXISTS {keyspace}")).await.map_err(failed)?;
        Err(exists())
    }

    pub async fn drop_namespace(&self, namespace: &str) -> Result<()> {
        let found = self.namespace(namespace).await?;
        if let Some(table) = self.tables(namespace).await?.first() {
            let why = format!("{namespace} has tables, {table} among them: drop them first");
            return Err(Error::invalid("namespace", why));
        }
        let number = self.number().await?;
        let keyspace = Swap {
            name: format!("\u{0}{number}"),
            expected: None,
            to: Some((number, format!("keyspace {}", found.record))),
        };
        let marker = Swap { name: String::new(), expected: Some(found.generation), to: None };
        if !self.swap(namespace, vec![keyspace, marker]).await? {
            return Err(Error::invalid("namespace", format!("{namespace} was changed meanwhile: try again")));
        }
        self.work(namespace).await
    }

    pub async fn namespaces(&self) -> Result<Vec<String>> {
        let all = self.select("", Vec::new(), Read::Quorum).await?;
        let ours = all.into_iter().filter(|entry| entry.name.is_empty() && entry.namespace != OURS);
        let mut names: Vec<_> = ours.map(|entry| entry.namespace).collect();
        names.sort_unstable();
        Ok(names)
    }

    async fn of_namespace(&self, namespace: &str) -> Result<Vec<Entry>> {
        self.select(" WHERE namespace = ?", vec![text(namespace)], Read::Serial).await
    }

    pub async fn tables(&self, namespace: &str) -> Result<Vec<String>> {
        self.namespace(namespace).await?;
        let all = self.of_namespace(namespace).await?;
        Ok(all
            .into_iter()
            .map(|entry| entry.name)
            .filter(|name| !name.is_empty() && !name.starts_with('\u{0}'))
            .collect())
    }

    /// Removes what tables, indexes and namespaces that are gone have left in Cassandra.
    async fn work(&self, namespace: &str) -> Result<()> {
        for entry in self.of_namespace(namespace).await? {
            if !entry.name.starts_with('\u{0}') {
                continue;
            }
            let known = ["table", "keyspace", "index"];
            let Some((kind, name)) = entry.record.split_once(' ').filter(|(kind, _)| known.contains(kind)) else {
                return Err(Error::damaged("the catalogue", format!("{:?} is to be removed", entry.record)));
            };
            let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_' || c == '.';
            if !name.chars().all(plain) {
                return Err(Error::damaged("the catalogue", format!("{name:?} is to be removed")));
            }
            match self.link.define(&format!("DROP {kind} IF EXISTS {name}")).await {
                // Its keyspace may be gone before it.
                Ok(()) | Err(Fault::Refused(_)) => {}
                Err(fault) => return Err(failed(fault)),
            }
            let swap = Swap { name: entry.name, expected: Some(entry.generation), to: None };
            self.swap(namespace, vec![swap]).await?;
        }
        Ok(())
    }

    /// The generation of a table's schema now.
    pub async fn generation(&self, name: &TableName) -> Result<Option<u64>> {
        let cql = format!("SELECT generation FROM {} WHERE namespace = ? AND name = ?", self.catalogue());
        let cells = vec![text(name.namespace.as_str()), text(name.table.as_str())];
        let mut page = self.link.page(&cql, cells, Read::Quorum, 1, None).await.map_err(failed_read)?;
        Ok(match page.rows.pop().and_then(|mut row| row.pop()).flatten() {
            Some(CqlValue::BigInt(generation)) => Some(generation as u64),
            _ => None,
        })
    }

    /// The schema as it is now.
    pub async fn load(&self, name: &TableName) -> Result<Arc<Stored>> {
        let missing = || Error::missing("table", name.to_string());
        check_name("table name", &name.table).map_err(|_| missing())?;
        let Some(entry) = self.one(&name.namespace, &name.table).await? else {
            self.tables.lock().remove(name);
            return Err(missing());
        };
        let stored: Stored = serde_json::from_str(&entry.record)
            .map_err(|error| Error::damaged(format!("schema of table {name}"), error.to_string()))?;
        let stored = Arc::new(stored);
        self.tables.lock().insert(name.clone(), Arc::clone(&stored));
        Ok(stored)
    }

    /// The schema as last seen.
    pub async fn seen(&self, name: &TableName) -> Result<Arc<Stored>> {
        let seen = self.tables.lock().get(name).cloned();
        match seen {
            Some(stored) => Ok(stored),
            None => self.load(name).await,
        }
    }

    /// Whether the schema is another now.
    pub async fn reload(&self, name: &TableName, seen: &Stored) -> Result<bool> {
        Ok(self.load(name).await?.table.generation != seen.table.generation)
    }

    fn record(stored: &Stored) -> Result<String> {
        serde_json::to_string(stored).map_err(|error| Error::invalid("schema", error.to_string()))
    }

    pub async fn create_table(&self, name: &TableName, schema: &Schema) -> Result<()> {
        check_name("table name", &name.table)?;
        let exists = || Error::Exists { what: "table", name: name.to_string() };
        let mut marker = self.namespace(&name.namespace).await?;
        if self.one(&name.namespace, &name.table).await?.is_some() {
            return Err(exists());
        }
        let number = self.number().await?;
        let mut table = schema.build(number as u64)?;
        table.generation = number as u64;
        let stored = Stored { keyspace: marker.record.clone(), table, older: Default::default() };
        for index in &stored.table.indexes {
            refuse_index(&stored, index.column)?;
        }
        self.define_table(&stored).await?;
        for _ in 0..ATTEMPTS_MAX {
            let swaps = vec![
                Swap {
                    name: String::new(),
                    expected: Some(marker.generation),
                    to: Some((self.number().await?, marker.record.clone())),
                },
                Swap { name: name.table.clone(), expected: None, to: Some((number, Self::record(&stored)?)) },
            ];
            if self.swap(&name.namespace, swaps).await? {
                return Ok(());
            }
            let again = self.one(&name.namespace, "").await?;
            let taken = self.one(&name.namespace, &name.table).await?.is_some();
            match again {
                Some(found) if !taken && found.record == marker.record => marker = found,
                found => {
                    self.link.define(&format!("DROP TABLE IF EXISTS {}", stored.name())).await.map_err(failed)?;
                    return Err(if taken || found.is_some() {
                        exists()
                    } else {
                        Error::missing("namespace", &name.namespace)
                    });
                }
            }
        }
        Err(contended(name))
    }

    async fn define_table(&self, stored: &Stored) -> Result<()> {
        self.link.define(&stored.create_table()).await.map_err(failed)?;
        for index in &stored.table.indexes {
            self.define_index(stored, index.id, index.column).await?;
        }
        Ok(())
    }

    /// Makes an index, and waits until all nodes can be asked by it.
    async fn define_index(&self, stored: &Stored, index: u16, column: u16) -> Result<()> {
        self.link.define(&stored.create_index(index, column)).await.map_err(failed)?;
        for _ in 0..BUILT_ASKED_MAX {
            if self.link.index_is_built(&stored.keyspace, &stored.index_name(index)).await.map_err(failed_read)? {
                return Ok(());
            }
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
        Err(Error::Unavailable {
            storage: NAME,
            cause: format!("index {} is still being built", stored.index_name(index)),
        })
    }

    /// Changes a schema, and notes what is to be removed. `change` says that, after it has made in Cassandra what the
    /// new schema needs.
    async fn change(
        &self,
        name: &TableName,
        mut change: impl AsyncFnMut(&mut Stored, i64) -> Result<Option<String>>,
    ) -> Result<Stored> {
        for _ in 0..ATTEMPTS_MAX {
            let stored = self.load(name).await?;
            let number = self.number().await?;
            let mut next = (*stored).clone();
            let garbage = change(&mut next, number).await?;
            next.table.generation = number as u64;
            let to = Some((number, Self::record(&next)?));
            let mut swaps = vec![Swap { name: name.table.clone(), expected: Some(stored.table.generation as i64), to }];
            if let Some(garbage) = garbage {
                swaps.push(Swap { name: format!("\u{0}{number}"), expected: None, to: Some((number, garbage)) });
            }
            if self.swap(&name.namespace, swaps).await? {
                self.load(name).await?;
                return Ok(next);
            }
        }
        Err(contended(name))
    }

    pub async fn drop_table(&self, name: &TableName) -> Result<()> {
        for _ in 0..ATTEMPTS_MAX {
            let stored = self.load(name).await?;
            let marker = self.namespace(&name.namespace).await?;
            let number = self.number().await?;
            let swaps = vec![
                Swap { name: String::new(), expected: Some(marker.generation), to: Some((number, marker.record)) },
                Swap { name: name.table.clone(), expected: Some(stored.table.generation as i64), to: None },
                Swap {
                    name: format!("\u{0}{number}"),
                    expected: None,
                    to: Some((number, format!("table {}", stored.name()))),
                },
            ];
            if self.swap(&name.namespace, swaps).await? {
                self.tables.lock().remove(name);
                return self.work(&name.namespace).await;
            }
        }
        Err(contended(name))
    }

    /// The rows get another table; that of the old ones goes.
    pub async fn truncate(&self, name: &TableName) -> Result<()> {
        self.change(name, async |stored, number| {
            let old = format!("table {}", stored.name());
            stored.table.id = number as u64;
            // No row of the new table is of an older type.
            stored.older.clear();
            self.define_table(stored).await?;
            Ok(Some(old))
        })
        .await?;
        self.work(&name.namespace).await
    }

    pub async fn rename(&self, name: &TableName, to: &str) -> Result<()> {
        check_name("table name", to)?;
        for _ in 0..ATTEMPTS_MAX {
            let mut stored = (*self.load(name).await?).clone();
            if self.one(&name.namespace, to).await?.is_some() {
                let name = TableName::new(name.namespace.as_str(), to).to_string();
                return Err(Error::Exists { what: "table", name });
            }
            let (number, expected) = (self.number().await?, Some(stored.table.generation as i64));
            stored.table.generation = number as u64;
            let swaps = vec![
                Swap { name: to.into(), expected: None, to: Some((number, Self::record(&stored)?)) },
                Swap { name: name.table.clone(), expected, to: None },
            ];
            if self.swap(&name.namespace, swaps).await? {
                self.tables.lock().remove(name);
                return Ok(());
            }
        }
        Err(contended(name))
    }

    pub async fn alter(&self, name: &TableName, change: &Alter) -> Result<()> {
        let mut dropped = None;
        self.change(name, async |stored, _| {
            let before = stored.clone();
            stored.table.alter(change)?;
            match change {
                Alter::AddColumn(column, data_type) => {
                    let id = stored.table.column(column)?.id;
                    self.link.define(&stored.add_column(id, *data_type)).await.map_err(failed)?;
                }
                Alter::ChangeType(column, data_type) => {
                    let was = before.table.column(column)?;
                    if was.data_type != *data_type {
                        self.link.define(&stored.add_column(was.id, *data_type)).await.map_err(failed)?;
                        stored.older.entry(was.id).or_default().push(was.data_type);
                    }
                }
                Alter::DropColumn(column) => {
                    let id = before.table.column(column)?.id;
                    stored.older.remove(&id);
                    dropped = Some(before.drop_column(id));
                }
                Alter::RenameColumn(..) => {}
            }
            Ok(None)
        })
        .await?;
        match dropped {
            // No client reads it any more; a writer with the old schema is refused, and reads the new one.
            Some(cql) => self.link.define(&cql).await.map_err(failed),
            None => Ok(()),
        }
    }

    pub async fn create_index(&self, name: &TableName, column: &str) -> Result<()> {
        self.load(name).await?;
        self.work(&name.namespace).await?;
        self.change(name, async |stored, _| {
            let index = stored.table.add_index(column)?;
            let id = stored.table.column(column)?.id;
            refuse_index(stored, id)?;
            self.define_index(stored, index, id).await?;
            Ok(None)
        })
        .await?;
        Ok(())
    }

    pub async fn drop_index(&self, name: &TableName, column: &str) -> Result<()> {
        self.change(name, async |stored, _| {
            let index = stored.table.drop_index(column)?;
            Ok(Some(format!("index {}.{}", stored.keyspace, stored.index_name(index))))
        })
        .await?;
        self.work(&name.namespace).await
    }
}

/// Refuses an index that Cassandra's columns do not allow.
fn refuse_index(stored: &Stored, column: u16) -> Result<()> {
    let table: &Table = &stored.table;
    if table.is_key(column) {
        return Err(Error::Unsupported { storage: NAME, what: "index a column of the key" });
    }
    if stored.older.contains_key(&column) {
        return Err(Error::Unsupported { storage: NAME, what: "index a column whose type was changed" });
    }
    Ok(())
}
