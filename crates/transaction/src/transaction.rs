//! One transaction: what it has read, and what it will write.
//!
//! get, scan → what is committed, as first read → overlaid with the transaction's own writes · put, delete → kept here
//! until commit
//!
//! Invariants:
//! 1. A row that was read once is not read again: it looks the same until the end, own writes apart.
//! 2. Nothing is written before [`Transaction::commit`]; a transaction that is dropped has cost nothing.
//! 3. Everything that was read is kept with what identifies it, rows that were not there and rows that a filter did not
//!    let through included.

use std::collections::BTreeMap;
use std::sync::Arc;

use esker_map::{Change, Condition, Error as MapError, Get, Key, Mutation, Over, Record, TableName, Value, Values};

use crate::layout::{Layout, Place};
use crate::row::{Identity, Image, Write, identity};
use crate::shared::{self, Isolation, Shared};
use crate::{Error, Result};

/// Most rows that a transaction reads and writes.
pub const ROWS_MAX: usize = 1 << 20;

/// A row that was read.
pub(crate) struct Read {
    pub image: Option<Image>,
    /// By its key; otherwise by scans only, which are looked at again as a whole.
    pub by_key: bool,
}

/// A range that was read.
pub(crate) struct Scanned {
    pub layout: Arc<Layout>,
    pub over: Over,
    pub reverse: bool,
    /// The rows in it, in order.
    pub rows: Vec<(Vec<Value>, Identity)>,
    /// The row at which it stopped, which need not have been committed; `None`: it was read to its end.
    pub until: Option<Vec<Value>>,
}

/// A transaction. What it reads is only known to fit together once it was committed, read-only ones too.
pub struct Transaction {
    pub(crate) shared: Arc<Shared>,
    pub(crate) id: String,
    pub(crate) isolation: Isolation,
    pub(crate) began_ms: i64,
    pub(crate) layouts: BTreeMap<TableName, Arc<Layout>>,
    pub(crate) reads: BTreeMap<Place, Read>,
    pub(crate) writes: BTreeMap<Place, Write>,
    pub(crate) scans: Vec<Scanned>,
    pub(crate) scanned_rows: usize,
}

impl Transaction {
    pub(crate) fn new(shared: Arc<Shared>, isolation: Isolation) -> Self {
        let began_ms = shared.now_ms();
        let id = shared::id(began_ms, (shared.random)());
        Self {
            shared,
            id,
            isolation,
            began_ms,
            layouts: BTreeMap::new(),
            reads: BTreeMap::new(),
            writes: BTreeMap::new(),
            scans: Vec::new(),
            scanned_rows: 0,
        }
    }

    /// What identifies it, in all processes.
    pub fn id(&self) -> &str {
        &self.id
    }

    pub(crate) fn layout(&mut self, name: &TableName) -> Result<Arc<Layout>> {
        if let Some(layout) = self.layouts.get(name) {
            return Ok(Arc::clone(layout));
        }
        let layout = self.shared.layout(name)?;
        self.layouts.insert(name.clone(), Arc::clone(&layout));
        Ok(layout)
    }

    pub(crate) fn check_room(&self) -> Result<()> {
        if self.reads.len() + self.writes.len() + self.scanned_rows >= ROWS_MAX {
            return Err(Error::invalid("transaction", format!("it has more than {ROWS_MAX} rows (ROWS_MAX)")));
        }
        Ok(())
    }

    /// Keeps what was read. It must be what was read before.
    pub(crate) fn remember(&mut self, place: &Place, image: Option<Image>, by_key: bool) -> Result<()> {
        if let Some(read) = self.reads.get_mut(place) {
            if identity(read.image.as_ref()) != identity(image.as_ref()) {
                return Err(Error::conflict(format!("{place} changed since it was read")));
            }
            read.by_key |= by_key;
            return Ok(());
        }
        self.check_room()?;
        self.reads.insert(place.clone(), Read { image, by_key });
        Ok(())
    }

    /// Reads what is committed of a row, once.
    pub(crate) fn look(&mut self, layout: &Layout, place: &Place) -> Result<()> {
        if !self.reads.contains_key(place) {
            let image = match self.shared.fetch(layout, &place.key)? {
                Some(row) => self.shared.settle(layout, &place.key, row)?.into_image(),
                None => None,
            };
            self.remember(place, image, true)?;
        }
        Ok(())
    }

    /// A row's columns as the transaction sees them, given what is committed.
    pub(crate) fn seen(&self, layout: &Layout, place: &Place, image: Option<&Image>) -> Option<Vec<Option<Value>>> {
        match self.writes.get(place) {
            Some(write) => write.after(layout, image),
            None => image.filter(|image| !image.gone).map(|image| image.columns.clone()),
        }
    }

    fn row(&mut self, layout: &Layout, place: &Place) -> Result<Option<Record>> {
        let alone = self.writes.get(place).is_some_and(|write| write.fresh);
        if !alone {
            self.look(layout, place)?;
        }
        let image = self.reads.get(place).and_then(|read| read.image.as_ref());
        Ok(self.seen(layout, place, image).map(|columns| layout.record(&place.key, &columns)))
    }

    /// Reads a row: all columns are there, null where nothing was written.
    ///
    /// # Errors
    /// [`Error::Map`]; [`Error::NotTransactional`].
    pub fn get(&mut self, get: &Get) -> Result<Option<Record>> {
        let layout = self.layout(&get.table)?;
        get.filter.check(&layout.users)?;
        get.columns.iter().try_for_each(|name| layout.users.column(name).map(drop))?;
        let place = Place { table: get.table.clone(), key: layout.key_values(&get.key)? };
        let record = self.row(&layout, &place)?;
        let record = record.filter(|record| get.filter.matches(record));
        Ok(record.map(|record| layout.project(record, &get.columns)))
    }

    /// Sets columns of a row, and leaves the others as they are; makes the row if it is missing.
    ///
    /// # Errors
    /// As [`Transaction::mutate`].
    pub fn put(&mut self, table: &TableName, key: Key, columns: Values) -> Result<()> {
        self.mutate(&Mutation::put(table, key, columns))
    }

    /// Removes a row; does nothing if it is missing.
    ///
    /// # Errors
    /// As [`Transaction::mutate`].
    pub fn delete(&mut self, table: &TableName, key: Key) -> Result<()> {
        self.mutate(&Mutation::delete(table, key))
    }

    /// Changes a row, if what the transaction sees of it meets the condition.
    ///
    /// # Errors
    /// [`Error::Map`] with [`ConditionFailed`](MapError::ConditionFailed) and the row, after which the transaction may
    /// go on; [`Error::Map`] for bad input, expiry among it; [`Error::NotTransactional`].
    pub fn mutate(&mut self, mutation: &Mutation) -> Result<()> {
        let layout = self.layout(&mutation.table)?;
        let place = Place { table: mutation.table.clone(), key: layout.key_values(&mutation.key)? };
        let mut set = BTreeMap::new();
        if let Change::Put { columns, expires_ms } = &mutation.change {
            if expires_ms.is_some() {
                return Err(Error::invalid("put", "rows of transactions do not expire: delete them"));
            }
            for (name, value) in columns {
                let number = layout.number(name)?;
                if let Some(value) = value {
                    layout.users.check_value(layout.users.column(name)?, value)?;
                }
                if set.insert(number, value.clone()).is_some() {
                    return Err(Error::invalid("put", format!("column {name} is there twice")));
                }
            }
        }
        if mutation.condition != Condition::Always {
            if let Condition::If(filter) = &mutation.condition {
                filter.check(&layout.users)?;
            }
            let current = self.row(&layout, &place)?;
            let holds = match (&mutation.condition, &current) {
                (Condition::Always | Condition::Exists, Some(_)) | (Condition::Always | Condition::NotExists, None) => {
                    true
                }
                (Condition::If(filter), Some(record)) => filter.matches(record),
                _ => false,
            };
            if !holds {
                return Err(MapError::ConditionFailed { mutation: 0, current: current.map(Box::new) }.into());
            }
        }
        if !self.writes.contains_key(&place) {
            self.check_room()?;
        }
        let write = self.writes.entry(place).or_default();
        match mutation.change {
            Change::Delete => *write = Write { fresh: true, set: None },
            Change::Put { .. } => write.set.get_or_insert_default().extend(set),
        }
        Ok(())
    }

    /// Forgets the transaction. Dropping it does the same.
    pub fn rollback(self) {}
}
