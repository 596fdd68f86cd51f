//! All transactions of one storage: opening, the tables made for them, and the sweep of what dead clients left.
//!
//! Invariant: a sweep removes a transaction's record only after it settled every row that the transaction prepared.

use std::sync::Arc;

use esker_map::{Alter, Clock, Durability, Error as MapError, MapStorage, Over, Schema, TableName};
use parking_lot::Mutex;

use crate::coordinator::{Coordinator, Wish};
use crate::layout::{self, State};
use crate::row;
use crate::shared::{Isolation, Options, Random, Settled, Shared};
use crate::transaction::Transaction;
use crate::{Error, Result};

/// Transactions over the tables of one storage. Cloning costs a reference count.
#[derive(Clone)]
pub struct Transactions {
    shared: Arc<Shared>,
}

impl Transactions {
    /// Opens a storage for transactions, and makes the coordinator's table if it is missing. `clock` tells unix
    /// milliseconds.
    ///
    /// # Errors
    /// The storage's.
    pub fn open(storage: Arc<dyn MapStorage>, clock: Clock, random: Random, options: Options) -> Result<Self> {
        let coordinator = Coordinator::open(Arc::clone(&storage), &options.namespace)?;
        let capability = storage.capability();
        let shared = Shared { storage, capability, coordinator, options, clock, random, layouts: Mutex::default() };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// The storage below. Who writes to a table of transactions there is not seen by them.
    pub fn storage(&self) -> &Arc<dyn MapStorage> {
        &self.shared.storage
    }

    /// Begins a transaction. It costs nothing until it reads or is committed.
    pub fn begin(&self) -> Transaction {
        self.begin_with(self.shared.options.isolation)
    }

    /// Begins one with an isolation.
    pub fn begin_with(&self, isolation: Isolation) -> Transaction {
        Transaction::new(Arc::clone(&self.shared), isolation)
    }

    /// Runs a transaction: begins it, calls `work`, commits it; all of that again while it fails with what [may be
    /// retried](Error::is_retryable), `attempts_max` times at most. It does not wait in between. What a dead client has
    /// prepared is in the way of writers until [`Options::expire_ms`] have passed.
    ///
    /// # Errors
    /// What `work` returns, and what the last commit did.
    pub fn run<T>(&self, attempts_max: u32, mut work: impl FnMut(&mut Transaction) -> Result<T>) -> Result<T> {
        let mut attempt = 1;
        loop {
            let mut transaction = self.begin();
            let done = work(&mut transaction).and_then(|value| transaction.commit().map(|()| value));
            match done {
                Err(error) if error.is_retryable() && attempt < attempts_max => attempt += 1,
                done => return done,
            }
        }
    }

    /// Makes a table for transactions: the schema's columns, and metadata beside them.
    ///
    /// # Errors
    /// Those of [`MapStorage::create_table`]; [`Invalid`](MapError::Invalid) for a column that begins with
    /// [`METADATA_PREFIX`](crate::METADATA_PREFIX) or [`BEFORE_PREFIX`](crate::BEFORE_PREFIX).
    pub fn create_table(&self, name: &TableName, schema: &Schema) -> Result<()> {
        Ok(self.shared.storage.create_table(name, &layout::extend(schema)?)?)
    }

    /// Changes a table's columns and those of the before-images: two changes. No transactions should write the table
    /// meanwhile; those that do are refused. If it fails in between, it can be called again.
    ///
    /// # Errors
    /// Those of [`MapStorage::alter_table`].
    pub fn alter_table(&self, name: &TableName, change: &Alter) -> Result<()> {
        let before = match change {
            Alter::AddColumn(column, data_type) => Alter::AddColumn(layout::before(column), *data_type),
            Alter::DropColumn(column) => Alter::DropColumn(layout::before(column)),
            Alter::RenameColumn(from, to) => {
                layout::check_column(to)?;
                Alter::RenameColumn(layout::before(from), layout::before(to))
            }
            Alter::ChangeType(column, data_type) => Alter::ChangeType(layout::before(column), *data_type),
        };
        let (Alter::AddColumn(column, _)
        | Alter::DropColumn(column)
        | Alter::RenameColumn(column, _)
        | Alter::ChangeType(column, _)) = change;
        layout::check_column(column)?;
        let storage = &self.shared.storage;
        let table = storage.table(name)?;
        if matches!(table.column(column), Ok(found) if table.is_key(found.id)) {
            // The storage knows what of a key may be changed; it has no before-image.
            return Ok(storage.alter_table(name, change)?);
        }
        match storage.alter_table(name, &before) {
            // Done by an earlier call.
            Err(MapError::Exists { .. }) if matches!(change, Alter::AddColumn(..)) => {}
            Err(MapError::Missing { what: "column", .. }) if !matches!(change, Alter::AddColumn(..)) => {}
            altered => altered?,
        }
        Ok(storage.alter_table(name, change)?)
    }

    /// Indexes a column, and its before-image.
    ///
    /// # Errors
    /// Those of [`MapStorage::create_index`].
    pub fn create_index(&self, name: &TableName, column: &str) -> Result<()> {
        let layout = self.shared.layout(name)?;
        if layout.columns.iter().any(|one| one == column) {
            match self.shared.storage.create_index(name, &layout::before(column)) {
                Err(MapError::Exists { .. }) => {}
                made => made?,
            }
        }
        Ok(self.shared.storage.create_index(name, column)?)
    }

    /// Drops a column's index, and that of its before-image.
    ///
    /// # Errors
    /// Those of [`MapStorage::drop_index`].
    pub fn drop_index(&self, name: &TableName, column: &str) -> Result<()> {
        let layout = self.shared.layout(name)?;
        self.shared.storage.drop_index(name, column)?;
        if layout.columns.iter().any(|one| one == column) {
            self.shared.storage.drop_index(name, &layout::before(column))?;
        }
        Ok(())
    }

    /// Whether a transaction was committed, of which [`Error::Unknown`] said that the coordinator can be asked. If
    /// nothing
    /// was decided yet, this decides that it was not.
    ///
    /// # Errors
    /// [`Error::Unknown`] if it began so long ago that a sweep may have removed its record: read what it would have
    /// written. The storage's; ask again.
    pub fn outcome(&self, transaction: &str) -> Result<bool> {
        Ok(self.shared.outcome(transaction, Wish::Bury)?.committed)
    }

    /// Tidies up in all tables of transactions: settles what dead transactions have left, removes the traces of rows
    /// that were deleted longer ago than twice [`Options::lifetime_ms`], and the coordinator's records of that age. To
    /// be called now and then, by one at a time, and not while tables are renamed. Returns how many rows and records
    /// were removed. The record of a transaction whose client was taken for dead stays until that client has seen it,
    /// which a dead one never does.
    ///
    /// # Errors
    /// The storage's; no record was removed then.
    pub fn sweep(&self) -> Result<u64> {
        let shared = &self.shared;
        let old_ms = shared.now_ms().saturating_sub((shared.options.lifetime_ms as i64).saturating_mul(2));
        let mut removed = 0;
        let mut settled = true;
        for namespace in shared.storage.namespaces()? {
            for table in shared.storage.tables(&namespace)? {
                let layout = match shared.layout(&TableName::new(&namespace, table)) {
                    Ok(layout) => layout,
                    Err(Error::NotTransactional { .. }) => continue,
                    Err(error) => return Err(error),
                };
                shared.each_row(&layout, &Over::All, false, 0, &mut |key, row| {
                    if row.is_prepared() {
                        let now = shared.settle_with(&layout, &key, row, Durability::Always)?;
                        settled &= matches!(now, Settled::Now(_));
                    } else if row.state == State::Gone && row.image.committed_ms.is_none_or(|at| at < old_ms) {
                        match shared.storage.mutate(&[row::bury(&layout, &key, &row.image)], Durability::Applied) {
                            Ok(_) => removed += 1,
                            Err(MapError::ConditionFailed { .. }) => {}
                            Err(error) => return Err(error.into()),
                        }
                    }
                    Ok(true)
                })?;
            }
        }
        // A row that is still prepared may be of a transaction with an old record only if it was prepared since it was
        // looked at: the next sweep finds it.
        if settled {
            removed += shared.coordinator.forget(old_ms)?;
        }
        Ok(removed)
    }
}
