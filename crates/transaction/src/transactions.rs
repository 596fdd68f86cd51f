//! All transactions of one storage: what they share, tables made for them, and what becomes of those whose clients have died.
//!
//! A row that is found prepared is settled by whoever finds it: its transaction's record says committed → forward; aborted → back; nothing, and it was prepared
//! long ago → the finder puts an aborted record, and goes by what is then decided; nothing, and not long ago → it is let alone, and what was before is what counts.
//!
//! Invariants:
//! 1. A row goes forward or back only after the record of its transaction was read or written.
//! 2. Settling is never needed for a read to be right: what it cannot write, the next one does.

use std::collections::HashMap;
use std::sync::Arc;

use esker_map::{
    Alter, Clock, Durability, Error as MapError, Get, MapCapability, MapStorage, Mutation, Over, Scan, Schema,
    TableName, Value,
};
use parking_lot::Mutex;

use crate::coordinator::Coordinator;
use crate::layout::{self, Layout, State};
use crate::row::{self, Image, Row};
use crate::transaction::Transaction;
use crate::{Error, Result};

/// Numbers that never come twice, in any process that uses the storage: 128 random bits.
pub type Random = Arc<dyn Fn() -> u128 + Send + Sync>;

/// What transactions may see of each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Isolation {
    /// Everything that was read was there at one instant, and what is written was not written by others since. Two transactions that each read what the
    /// other writes may both commit (write skew).
    Snapshot,
    /// As if one came after another, in an order that agrees with time: scans included.
    #[default]
    Serializable,
}

/// How transactions are run. Those of one storage should agree on all of it but the isolation.
#[derive(Clone, Debug)]
pub struct Options {
    /// For [`Transactions::begin`]. Default: serializable.
    pub isolation: Isolation,
    /// A transaction that has had rows prepared for so long may be aborted by others, in milliseconds. Default: 15,000. Clocks that differ cost no more
    /// than commits that are refused.
    pub expire_ms: u64,
    /// A transaction is not committed when it is older, in milliseconds; deleted rows leave a trace for twice as long ([`Transactions::sweep`]). Default: 600,000.
    /// Clocks must not differ by more than this.
    pub lifetime_ms: u64,
    /// Namespace of the coordinator's table. Default: `coordinator`.
    pub namespace: String,
}

impl Default for Options {
    fn default() -> Self {
        let namespace = "coordinator".into();
        Self { isolation: Isolation::default(), expire_ms: 15_000, lifetime_ms: 600_000, namespace }
    }
}

pub(crate) struct Shared {
    pub storage: Arc<dyn MapStorage>,
    pub capability: MapCapability,
    pub coordinator: Coordinator,
    pub options: Options,
    clock: Clock,
    random: Random,
    layouts: Mutex<HashMap<TableName, Arc<Layout>>>,
}

/// A prepared row, settled as far as that can be.
pub(crate) enum Settled {
    /// This is committed.
    Now(Option<Image>),
    /// A transaction that may yet commit has it prepared; so far this is committed.
    Under(Option<Image>),
}

impl Settled {
    pub(crate) fn into_image(self) -> Option<Image> {
        match self {
            Self::Now(image) | Self::Under(image) => image,
        }
    }
}

impl Shared {
    pub(crate) fn now_ms(&self) -> i64 {
        (self.clock)().try_into().unwrap_or(i64::MAX)
    }

    /// How the table looks now.
    pub(crate) fn layout(&self, name: &TableName) -> Result<Arc<Layout>> {
        let table = self.storage.table(name)?;
        let seen = self.layouts.lock().get(name).cloned();
        if let Some(layout) = seen
            && (layout.id, layout.generation) == (table.id, table.generation)
        {
            return Ok(layout);
        }
        let layout = Arc::new(Layout::new(name, &table)?);
        self.layouts.lock().insert(name.clone(), Arc::clone(&layout));
        Ok(layout)
    }

    pub(crate) fn fetch(&self, layout: &Layout, key: &[Value]) -> Result<Option<Row>> {
        let found = self.storage.get(&Get::new(&layout.name, layout.key_of(key)))?;
        found.map(|record| Row::read(layout, &record)).transpose()
    }

    /// What is committed of a row that was read.
    pub(crate) fn settle(&self, layout: &Layout, key: &[Value], row: Row) -> Result<Settled> {
        self.settle_with(layout, key, row, Durability::Applied)
    }

    fn settle_with(&self, layout: &Layout, key: &[Value], row: Row, durability: Durability) -> Result<Settled> {
        let id = match &row.image.id {
            Some(id) if row.is_prepared() => id,
            _ => return Ok(Settled::Now(Some(row.image))),
        };
        let now_ms = self.now_ms();
        let decision = match self.coordinator.read(id)? {
            Some(decision) => decision,
            None => {
                let age_ms = row.image.prepared_ms.map_or(i64::MAX, |prepared| now_ms.saturating_sub(prepared));
                if age_ms < self.options.expire_ms.try_into().unwrap_or(i64::MAX) {
                    return Ok(Settled::Under(row.before));
                }
                self.coordinator.decide(id, false, now_ms)?
            }
        };
        let (mutation, image) = if decision.committed {
            let mutation = row::forward(layout, key, id, row.state, decision.at_ms);
            (mutation, Some(row.forward(decision.at_ms)))
        } else {
            (row::back(layout, key, id, row.state, row.before.as_ref()), row.before)
        };
        let done = self.storage.mutate(&[mutation], durability);
        if durability == Durability::Durable {
            match done {
                // Another was faster.
                Err(MapError::ConditionFailed { .. }) => {}
                done => done?.wait().map_err(MapError::from)?,
            }
        }
        Ok(Settled::Now(image))
    }

    /// Mutations of one group at once, or else one by one: each that can be made is. What remains is for those who read the rows.
    pub(crate) fn mutate_each(&self, mutations: &[Mutation]) {
        if self.storage.mutate(mutations, Durability::Applied).is_err() && mutations.len() > 1 {
            for mutation in mutations {
                let _ = self.storage.mutate(std::slice::from_ref(mutation), Durability::Applied);
            }
        }
    }

    /// Rows in the storage's order, until `visit` returns false; whether it never did. A row that is found by an index may come twice: by its value and by
    /// that of its before-image, in this order: whoever prepares or settles it between the two does not hide it.
    pub(crate) fn each_row(
        &self,
        layout: &Layout,
        over: &Over,
        reverse: bool,
        limit: usize,
        visit: &mut dyn FnMut(Vec<Value>, Row) -> Result<bool>,
    ) -> Result<bool> {
        let mut scan = Scan { reverse, limit, ..Scan::new(&layout.name, over.clone()) };
        loop {
            let page = self.storage.scan(&scan)?;
            for record in page.records {
                let row = Row::read(layout, &record)?;
                if !visit(layout.key_in(&record)?, row)? {
                    return Ok(false);
                }
            }
            scan.page = page.next;
            if scan.page.is_some() {
                continue;
            }
            match &mut scan.over {
                Over::Index(column, _) if layout.columns.contains(column) => *column = layout::before(column),
                _ => return Ok(true),
            }
        }
    }
}

/// Transactions over the tables of one storage. Cloning costs a reference count.
#[derive(Clone)]
pub struct Transactions {
    shared: Arc<Shared>,
}

impl Transactions {
    /// Opens a storage for transactions, and makes the coordinator's table if it is missing. `clock` tells unix milliseconds.
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
        let id = format!("{:032x}", (self.shared.random)());
        Transaction::new(Arc::clone(&self.shared), id, isolation)
    }

    /// Runs a transaction: begins it, calls `work`, commits it; all of that again while it fails with what [may be retried](Error::is_retryable), `attempts_max` times at most.
    /// It does not wait in between. What a dead client has prepared is in the way of writers until [`Options::expire_ms`] have passed.
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
    /// Those of [`MapStorage::create_table`]; [`Invalid`](MapError::Invalid) for a column that begins with [`METADATA_PREFIX`](crate::METADATA_PREFIX) or
    /// [`BEFORE_PREFIX`](crate::BEFORE_PREFIX).
    pub fn create_table(&self, name: &TableName, schema: &Schema) -> Result<()> {
        Ok(self.shared.storage.create_table(name, &layout::extend(schema)?)?)
    }

    /// Changes a table's columns and those of the before-images: two changes. No transactions should write the table meanwhile; those that do are refused. If it
    /// fails in between, it can be called again.
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

    /// Whether a transaction was committed, of which [`Error::Unknown`] said that the coordinator can be asked. If nothing was decided yet, this decides that it
    /// was not.
    ///
    /// # Errors
    /// The storage's; ask again.
    pub fn outcome(&self, transaction: &str) -> Result<bool> {
        Ok(self.shared.coordinator.decide(transaction, false, self.shared.now_ms())?.committed)
    }

    /// Tidies up in all tables of transactions: settles what dead transactions have left, removes the traces of rows that were deleted longer ago than twice
    /// [`Options::lifetime_ms`], and the coordinator's records of that age. To be called now and then, by one at a time, and not while
    /// tables are renamed. Returns how many rows and records were removed.
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
                        let now = shared.settle_with(&layout, &key, row, Durability::Durable)?;
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
        // A row that is still prepared may be of a transaction with an old record only if it was prepared since it was looked at: the next sweep finds it.
        if settled {
            removed += shared.coordinator.forget(old_ms)?;
        }
        Ok(removed)
    }
}
