//! The catalogue on the waist: namespaces, schemas, and what is being removed.
//!
//! name → schema (JSON in the catalogue's omap) → [`Table`] · every change raises the generation in the table's head, in the same transaction
//!
//! Invariants:
//! 1. A schema that is kept here may be old; whoever writes by it guards its generation.
//! 2. What a dropped table, a truncated one or a dropped index leaves is noted before, and removed by [`Waist::work`] or at once; its number is never used again.

use std::sync::Arc;

use bytes::Bytes;
use esker_store::{
    Change, Collection, Compare, Condition, Error as StoreError, ObjectId, OmapScan, Transaction, limits,
};

use crate::guards::{ATTEMPTS_MAX, guarded};
use crate::names::{self, GENERATION, LAST_ID};
use crate::ops::TableName;
use crate::schema::Alter;
use crate::schema::check_name;
use crate::waist::Waist;
use crate::{Error, Result, Schema, Table};

/// Objects removed in one transaction.
const REMOVE_OPS: usize = 512;

fn number(value: u64) -> Bytes {
    Bytes::copy_from_slice(&value.to_le_bytes())
}

fn set_schema(txn: &mut Transaction, name: &TableName, table: &Table) -> Result<()> {
    let json = serde_json::to_vec(table).map_err(|error| Error::invalid("schema", error.to_string()))?;
    let key = names::table_key(&name.namespace, &name.table);
    txn.push(&names::catalogue(), esker_store::Change::OmapSet { key, value: json.into() });
    let value = number(table.generation);
    txn.push(&names::head(table.id), Change::XattrSet { name: Bytes::from_static(GENERATION), value });
    Ok(())
}

impl Waist {
    fn submit(&self, txn: Transaction) -> Result<bool> {
        match self.store.submit(txn).wait() {
            Ok(_) => Ok(true),
            Err(StoreError::GuardFailed { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// What stands in the catalogue for a namespace: the number of the table that was made in it last.
    pub(crate) fn last_made(&self, namespace: &str) -> Result<Bytes> {
        let found = self.store.omap_get(&names::catalogue(), &names::namespace_key(namespace)).wait()?;
        found.ok_or_else(|| Error::missing("namespace", namespace))
    }

    pub(crate) fn make_namespace(&self, namespace: &str) -> Result<()> {
        check_name("namespace name", namespace)?;
        let key = names::namespace_key(namespace);
        let catalogue = names::catalogue();
        let txn = Transaction::new()
            .guard(&catalogue, Condition::OmapAbsent { key: key.clone() })
            .change(&catalogue, Change::OmapSet { key, value: Bytes::new() });
        if self.submit(txn)? {
            return Ok(());
        }
        Err(Error::Exists { what: "namespace", name: namespace.into() })
    }

    pub(crate) fn remove_namespace(&self, namespace: &str) -> Result<()> {
        let catalogue = names::catalogue();
        for _ in 0..ATTEMPTS_MAX {
            let made = self.last_made(namespace)?;
            let tables = self.names_of(namespace)?;
            if let Some(table) = tables.first() {
                return Err(Error::invalid(
                    "namespace",
                    format!("{namespace} has tables, {table} among them: drop them first"),
                ));
            }
            let key = names::namespace_key(namespace);
            let txn = Transaction::new().guard(&catalogue, Condition::OmapEquals { key: key.clone(), value: made });
            if self.submit(txn.change(&catalogue, Change::OmapRemove { key }))? {
                return Ok(());
            }
        }
        Err(Error::Contended { what: format!("namespace {namespace}"), attempts: ATTEMPTS_MAX })
    }

    fn keys(&self, prefix: Bytes) -> Result<Vec<Bytes>> {
        let mut scan = OmapScan {
            end: crate::key::after_prefix(&prefix).map(Bytes::from),
            start: Some(prefix),
            limit: limits::SCAN_ENTRIES_MAX,
            keys_only: true,
            ..OmapScan::default()
        };
        let mut all = Vec::new();
        loop {
            let page = self.store.omap_scan(&names::catalogue(), &scan).wait()?;
            let Some((last, _)) = page.last() else { return Ok(all) };
            scan.start = Some([last, &[0][..]].concat().into());
            all.extend(page.into_iter().map(|(key, _)| key));
        }
    }

    pub(crate) fn all_namespaces(&self) -> Result<Vec<String>> {
        let keys = self.keys(Bytes::from_static(b"n"))?;
        Ok(keys.iter().map(|key| String::from_utf8_lossy(&key[1..]).into_owned()).collect())
    }

    pub(crate) fn names_of(&self, namespace: &str) -> Result<Vec<String>> {
        let prefix = names::tables_prefix(namespace);
        let keys = self.keys(prefix.clone())?;
        Ok(keys.iter().map(|key| String::from_utf8_lossy(&key[prefix.len()..]).into_owned()).collect())
    }

    /// The schema as it is now.
    pub(crate) fn load(&self, name: &TableName) -> Result<Arc<Table>> {
        let key = names::table_key(&name.namespace, &name.table);
        let Some(json) = self.store.omap_get(&names::catalogue(), &key).wait()? else {
            self.tables.lock().remove(name);
            return Err(Error::missing("table", name.to_string()));
        };
        let table: Table = serde_json::from_slice(&json)
            .map_err(|error| Error::damaged(format!("schema of table {name}"), error.to_string()))?;
        let table = Arc::new(table);
        self.tables.lock().insert(name.clone(), Arc::clone(&table));
        Ok(table)
    }

    /// The schema as last seen.
    pub(crate) fn seen(&self, name: &TableName) -> Result<Arc<Table>> {
        if let Some(table) = self.tables.lock().get(name) {
            return Ok(Arc::clone(table));
        }
        self.load(name)
    }

    fn new_id(&self) -> Result<u64> {
        let catalogue = names::catalogue();
        for _ in 0..ATTEMPTS_MAX {
            let last = self.store.xattr(&catalogue, LAST_ID).wait()?;
            let last = last.and_then(|last| last[..].try_into().ok().map(u64::from_le_bytes)).unwrap_or(0);
            let name = Bytes::from_static(LAST_ID);
            let same = Condition::XattrCompare {
                name: name.clone(),
                compare: Compare::Equal,
                value: last,
                absent_holds: last == 0,
            };
            let change = Change::XattrSet { name, value: number(last + 1) };
            let txn = Transaction::new().giving_back().guard(&catalogue, same).change(&catalogue, change);
            if self.submit(txn)? {
                return Ok(last + 1);
            }
        }
        Err(Error::Contended { what: "the catalogue".into(), attempts: ATTEMPTS_MAX })
    }

    pub(crate) fn make_table(&self, name: &TableName, schema: &Schema) -> Result<()> {
        check_name("table name", &name.table)?;
        self.last_made(&name.namespace)?;
        let table = schema.build(self.new_id()?)?;
        let catalogue = names::catalogue();
        let key = names::namespace_key(&name.namespace);
        for _ in 0..ATTEMPTS_MAX {
            let made = self.last_made(&name.namespace)?;
            let mut txn = Transaction::new()
                .guard(&catalogue, Condition::OmapAbsent { key: names::table_key(&name.namespace, &name.table) })
                .guard(&catalogue, Condition::OmapEquals { key: key.clone(), value: made })
                // A client that removes the namespace, and saw no table in it, learns of this one: numbers are never
                // given twice.
                .change(&catalogue, Change::OmapSet { key: key.clone(), value: number(table.id) });
            set_schema(&mut txn, name, &table)?;
            match self.store.submit(txn).wait() {
                Ok(_) => return Ok(()),
                Err(StoreError::GuardFailed { index: 0 }) => {
                    return Err(Error::Exists { what: "table", name: name.to_string() });
                }
                Err(StoreError::GuardFailed { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(Error::Contended { what: format!("namespace {}", name.namespace), attempts: ATTEMPTS_MAX })
    }

    /// Changes a schema, with what belongs to it in the same transaction.
    pub(crate) fn change_table(
        &self,
        name: &TableName,
        mut change: impl FnMut(&mut Table, &mut Transaction) -> Result<()>,
    ) -> Result<Table> {
        for _ in 0..ATTEMPTS_MAX {
            let table = self.load(name)?;
            let mut next = (*table).clone();
            let mut txn = Transaction::new();
            guarded(&mut txn, &table);
            change(&mut next, &mut txn)?;
            next.generation += 1;
            set_schema(&mut txn, name, &next)?;
            if self.submit(txn)? {
                self.load(name)?;
                return Ok(next);
            }
        }
        Err(Error::Contended { what: format!("the schema of table {name}"), attempts: ATTEMPTS_MAX })
    }

    pub(crate) fn alter(&self, name: &TableName, change: &Alter) -> Result<()> {
        self.change_table(name, |table, _| table.alter(change))?;
        Ok(())
    }

    pub(crate) fn remove_table(&self, name: &TableName) -> Result<()> {
        for _ in 0..ATTEMPTS_MAX {
            let table = self.load(name)?;
            let catalogue = names::catalogue();
            let mut txn = Transaction::new();
            guarded(&mut txn, &table);
            txn.gives_back = true;
            txn.push(&names::head(table.id), Change::Remove);
            txn.push(&catalogue, Change::OmapRemove { key: names::table_key(&name.namespace, &name.table) });
            txn.push(&catalogue, Change::OmapSet { key: names::garbage_key(table.id, None), value: Bytes::new() });
            if self.submit(txn)? {
                self.tables.lock().remove(name);
                self.work()?;
                return Ok(());
            }
        }
        Err(Error::Contended { what: format!("table {name}"), attempts: ATTEMPTS_MAX })
    }

    /// The rows get another number, which nobody else has; those of the old number go.
    pub(crate) fn truncate(&self, name: &TableName) -> Result<()> {
        let id = self.new_id()?;
        self.change_table(name, |table, txn| {
            txn.gives_back = true;
            txn.push(&names::head(table.id), Change::Remove);
            let garbage = Change::OmapSet { key: names::garbage_key(table.id, None), value: Bytes::new() };
            txn.push(&names::catalogue(), garbage);
            table.id = id;
            Ok(())
        })?;
        self.work()?;
        Ok(())
    }

    pub(crate) fn rename(&self, name: &TableName, to: &str) -> Result<()> {
        check_name("table name", to)?;
        let new = TableName::new(name.namespace.clone(), to);
        for _ in 0..ATTEMPTS_MAX {
            let table = self.load(name)?;
            let mut next = (*table).clone();
            next.generation += 1;
            let catalogue = names::catalogue();
            let mut txn = Transaction::new()
                .guard(&catalogue, Condition::OmapAbsent { key: names::table_key(&new.namespace, &new.table) });
            guarded(&mut txn, &table);
            txn.push(&catalogue, Change::OmapRemove { key: names::table_key(&name.namespace, &name.table) });
            set_schema(&mut txn, &new, &next)?;
            match self.store.submit(txn).wait() {
                Ok(_) => {
                    self.tables.lock().remove(name);
                    return Ok(());
                }
                Err(StoreError::GuardFailed { index: 0 }) => {
                    return Err(Error::Exists { what: "table", name: new.to_string() });
                }
                Err(StoreError::GuardFailed { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(Error::Contended { what: format!("table {name}"), attempts: ATTEMPTS_MAX })
    }

    /// Removes what dropped tables, truncated ones and dropped indexes have left. Returns the number of objects.
    ///
    /// # Errors
    /// The store's; what is left then is removed next time.
    pub fn work(&self) -> Result<u64> {
        let mut removed = 0;
        for key in self.keys(Bytes::from_static(b"g"))? {
            let (Some(table), index) = (key.get(1..9), key.get(9..11)) else { continue };
            let table = table.try_into().map_or(0, u64::from_be_bytes);
            let prefixes = match index.and_then(|index| index.try_into().ok().map(u16::from_be_bytes)) {
                Some(index) => vec![names::index_prefix(table, index)],
                None => vec![names::partition_prefix(table), names::indexes_prefix(table)],
            };
            for prefix in prefixes {
                removed += self.remove_all(&prefix)?;
            }
            self.submit(Transaction::new().change(&names::catalogue(), Change::OmapRemove { key }))?;
        }
        Ok(removed)
    }

    fn remove_all(&self, prefix: &[u8]) -> Result<u64> {
        let mut removed = 0;
        loop {
            let objects = self.objects(prefix, None, REMOVE_OPS)?;
            if objects.is_empty() {
                return Ok(removed);
            }
            removed += objects.len() as u64;
            let mut txn = Transaction::with(esker_store::Durability::Applied);
            for object in &objects {
                txn.push(object, Change::Remove);
            }
            self.store.submit(txn).wait()?;
        }
    }

    /// Objects whose names begin with `prefix`, in order, above `after`.
    pub(crate) fn objects(&self, prefix: &[u8], after: Option<&[u8]>, limit: usize) -> Result<Vec<ObjectId>> {
        let collection = Collection::from(names::COLLECTION);
        // The prefix ends in a slash: without it, it sorts right before all that begin with it.
        let first = &prefix[..prefix.len() - 1];
        let names = self.store.list(&collection, Some(after.unwrap_or(first)), limit).wait()?;
        let ours = names.into_iter().take_while(|name| name.starts_with(prefix));
        Ok(ours.map(|name| ObjectId::new(collection.clone(), name)).collect())
    }
}
