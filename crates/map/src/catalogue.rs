//! The catalogue on the waist: namespaces, schemas, and what is being removed.
//!
//! name → schema (JSON in the catalogue's omap) → [`Table`] · every change raises the generation in the table's head,
//! in the same transaction
//!
//! Invariants:
//! 1. A schema that is kept here may be old; every write by it guards its generation.
//! 2. What a dropped table, a truncated one or a dropped index leaves is noted before, and removed by [`Waist::work`]
//!    or at once; its number is never used again.

use std::sync::Arc;

use bytes::Bytes;
use esker_store::number::number;
use esker_store::registry::remove_objects;
use esker_store::{Attempt, Change, Collection, ObjectId, Retry, Transaction, change_guarded, prefix, submit_guarded};

use crate::guards::guarded;
use crate::names::{self, GENERATION};
use crate::ops::TableName;
use crate::schema::Alter;
use crate::schema::check_name;
use crate::waist::Waist;
use crate::{Error, Result, Schema, Table};

fn set_schema(txn: &mut Transaction, name: &TableName, table: &Table) -> Result<()> {
    let json = serde_json::to_vec(table).map_err(|error| Error::invalid("schema", error.to_string()))?;
    names::tables().set(txn, &names::table_name(name), json.into());
    txn.push(&names::head(table.id), Change::number(GENERATION, table.generation));
    Ok(())
}

impl Waist {
    /// What stands in the catalogue for a namespace: the number of the table that was made in it last.
    pub(crate) fn last_made(&self, namespace: &str) -> Result<Bytes> {
        let found = names::namespaces().find(&*self.store, namespace).wait()?;
        found.ok_or_else(|| Error::missing("namespace", namespace))
    }

    pub(crate) fn make_namespace(&self, namespace: &str) -> Result<()> {
        check_name("namespace name", namespace)?;
        let (registry, mut txn) = (names::namespaces(), Transaction::new());
        txn.guards.push(registry.is_free(namespace));
        registry.set(&mut txn, namespace, Bytes::new());
        match submit_guarded(&*self.store, txn)? {
            None => Ok(()),
            Some(_) => Err(Error::Exists { what: "namespace", name: namespace.into() }),
        }
    }

    pub(crate) fn remove_namespace(&self, namespace: &str) -> Result<()> {
        change_guarded(
            &*self.store,
            || format!("namespace {namespace}"),
            || {
                let made = self.last_made(namespace)?;
                if let Some(table) = self.names_of(namespace)?.first() {
                    return Err(Error::invalid(
                        "namespace",
                        format!("{namespace} has tables, {table} among them: drop them first"),
                    ));
                }
                let (registry, mut txn) = (names::namespaces(), Transaction::new());
                txn.guards.push(registry.leads_to(namespace, made));
                registry.unset(&mut txn, namespace);
                Ok(Attempt::Submit(txn, ()))
            },
        )
    }

    pub(crate) fn all_namespaces(&self) -> Result<Vec<String>> {
        Ok(names::namespaces().names(&*self.store, "", None, usize::MAX).collect::<esker_store::Result<_>>()?)
    }

    pub(crate) fn names_of(&self, namespace: &str) -> Result<Vec<String>> {
        let tables = names::tables().names(&*self.store, &names::tables_of(namespace), None, usize::MAX);
        Ok(tables.collect::<esker_store::Result<_>>()?)
    }

    /// The schema as it is now.
    pub(crate) fn load(&self, name: &TableName) -> Result<Arc<Table>> {
        let Some(json) = names::tables().find(&*self.store, &names::table_name(name)).wait()? else {
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
        Ok(names::tables().new_id(&*self.store, &Transaction::new().giving_back(), |_, _| ())?)
    }

    pub(crate) fn make_table(&self, name: &TableName, schema: &Schema) -> Result<()> {
        check_name("table name", &name.table)?;
        self.last_made(&name.namespace)?;
        let table = schema.build(self.new_id()?)?;
        let (registry, mut retry) = (names::namespaces(), Retry::default());
        loop {
            retry.attempt(|| format!("namespace {}", name.namespace))?;
            let made = self.last_made(&name.namespace)?;
            let mut txn = Transaction::new();
            txn.guards.push(names::tables().is_free(&names::table_name(name)));
            txn.guards.push(registry.leads_to(&name.namespace, made));
            // A client that removes the namespace, and saw no table in it, learns of this one: numbers are never
            // given twice.
            registry.set(&mut txn, &name.namespace, number(table.id));
            set_schema(&mut txn, name, &table)?;
            match submit_guarded(&*self.store, txn)? {
                None => return Ok(()),
                Some(0) => return Err(Error::Exists { what: "table", name: name.to_string() }),
                Some(_) => {}
            }
        }
    }

    /// Changes a schema, with what belongs to it in the same transaction.
    pub(crate) fn change_table(
        &self,
        name: &TableName,
        mut change: impl FnMut(&mut Table, &mut Transaction) -> Result<()>,
    ) -> Result<Table> {
        let next = change_guarded(
            &*self.store,
            || format!("the schema of table {name}"),
            || {
                let table = self.load(name)?;
                let mut next = (*table).clone();
                let mut txn = Transaction::new();
                guarded(&mut txn, &table);
                change(&mut next, &mut txn)?;
                next.generation += 1;
                set_schema(&mut txn, name, &next)?;
                Ok::<_, Error>(Attempt::Submit(txn, next))
            },
        )?;
        // It is as this says, whether or not that could be looked at now.
        self.tables.lock().insert(name.clone(), Arc::new(next.clone()));
        Ok(next)
    }

    pub(crate) fn alter(&self, name: &TableName, change: &Alter) -> Result<()> {
        self.change_table(name, |table, _| table.alter(change))?;
        Ok(())
    }

    pub(crate) fn remove_table(&self, name: &TableName) -> Result<()> {
        change_guarded(
            &*self.store,
            || format!("table {name}"),
            || {
                let table = self.load(name)?;
                let (registry, mut txn) = (names::tables(), Transaction::new().giving_back());
                guarded(&mut txn, &table);
                txn.push(&names::head(table.id), Change::Remove);
                registry.unset(&mut txn, &names::table_name(name));
                registry.note(&mut txn, table.id, &[], Bytes::new());
                Ok::<_, Error>(Attempt::Submit(txn, ()))
            },
        )?;
        self.tables.lock().remove(name);
        self.collect();
        Ok(())
    }

    /// The rows get another number, which no other table has; those of the old number go.
    pub(crate) fn truncate(&self, name: &TableName) -> Result<()> {
        let id = self.new_id()?;
        self.change_table(name, |table, txn| {
            txn.gives_back = true;
            txn.push(&names::head(table.id), Change::Remove);
            names::tables().note(txn, table.id, &[], Bytes::new());
            table.id = id;
            Ok(())
        })?;
        self.collect();
        Ok(())
    }

    pub(crate) fn rename(&self, name: &TableName, to: &str) -> Result<()> {
        check_name("table name", to)?;
        let new = TableName::new(name.namespace.clone(), to);
        let (registry, mut retry) = (names::tables(), Retry::default());
        loop {
            retry.attempt(|| format!("table {name}"))?;
            let table = self.load(name)?;
            let mut next = (*table).clone();
            next.generation += 1;
            let mut txn = Transaction::new();
            txn.guards.push(registry.is_free(&names::table_name(&new)));
            guarded(&mut txn, &table);
            registry.unset(&mut txn, &names::table_name(name));
            set_schema(&mut txn, &new, &next)?;
            match submit_guarded(&*self.store, txn)? {
                None => {
                    self.tables.lock().remove(name);
                    return Ok(());
                }
                Some(0) => return Err(Error::Exists { what: "table", name: new.to_string() }),
                Some(_) => {}
            }
        }
    }

    /// Removes what was left of something that is gone already: an error of it is no error of that.
    /// [`Sweeper`](crate::Sweeper) comes to the rest, and so does who drops something next.
    pub(crate) fn collect(&self) {
        self.work().map_or_else(drop, drop);
    }

    /// Removes what dropped tables, truncated ones and dropped indexes have left. Returns the number of objects.
    ///
    /// # Errors
    /// The store's; what is left then is removed next time.
    pub fn work(&self) -> Result<u64> {
        let (registry, mut removed) = (names::tables(), 0);
        'left: for left in registry.leftovers(&*self.store) {
            let left = left?;
            let prefixes = match left.part[..] {
                [] => vec![names::partition_prefix(left.id), names::indexes_prefix(left.id)],
                [high, low] => vec![names::index_prefix(left.id, u16::from_be_bytes([high, low]))],
                // Whatever it is of, it is not ours to remove.
                _ => continue,
            };
            for prefix in prefixes {
                let mut gone = 0;
                let for_good = remove_objects(&*self.store, self.objects(&prefix, None), &mut |so_far| {
                    gone = so_far;
                    true
                })?;
                removed += gone;
                if !for_good {
                    continue 'left;
                }
            }
            let mut txn = Transaction::new();
            registry.forget(&mut txn, left.id, &left.part);
            self.store.submit(txn).wait()?;
        }
        Ok(removed)
    }

    /// Objects whose names begin with `prefix`, in order, above `after`.
    pub(crate) fn objects(
        &self,
        prefix: &[u8],
        after: Option<&[u8]>,
    ) -> impl Iterator<Item = esker_store::Result<ObjectId>> + use<'_> {
        prefix::objects(&*self.store, &Collection::from(names::COLLECTION), prefix, after)
    }
}
