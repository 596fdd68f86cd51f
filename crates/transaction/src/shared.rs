//! What the transactions of one storage share: how they are run, and what becomes of rows whose clients have died.
//!
//! A reader that finds a prepared row settles it: its transaction's record says committed → forward; aborted → back;
//! nothing, and it was prepared long ago → the reader puts an aborted record, and goes by what is then decided;
//! nothing, and not long ago → the row stays, and what was before is what counts.
//!
//! Invariants:
//! 1. A row goes forward or back only after the record of its transaction was read or written.
//! 2. Settling is never needed for a read to be right: what it cannot write, the next one does.

use std::collections::HashMap;
use std::sync::Arc;

use esker_map::{
    Clock, Durability, Error as MapError, Get, MapCapability, MapStorage, Mutation, Over, Scan, TableName, Value,
};
use parking_lot::Mutex;

use crate::coordinator::{Coordinator, Decision, Wish};
use crate::layout::{self, Layout};
use crate::row::{self, Image, Row};
use crate::{Error, Result};

/// Numbers that never come twice, in any process that uses the storage: 128 random bits.
pub type Random = Arc<dyn Fn() -> u128 + Send + Sync>;

/// What transactions may see of each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Isolation {
    /// Everything that was read was there at one instant, and what is written was not written by others since. Two
    /// transactions that each read what the other writes may both commit (write skew).
    Snapshot,
    /// As if one came after another, in an order that agrees with time: scans included.
    #[default]
    Serializable,
}

/// How transactions are run. Those of one storage should agree on all of it but the isolation.
#[derive(Clone, Debug)]
pub struct Options {
    /// For [`Transactions::begin`](crate::Transactions::begin). Default: serializable.
    pub isolation: Isolation,
    /// A transaction that has had rows prepared for so long may be aborted by others, in milliseconds. Default: 15,000.
    /// Clocks that differ cost no more than commits that are refused.
    pub expire_ms: u64,
    /// A transaction is not committed when it is older, in milliseconds; deleted rows leave a trace for twice as long
    /// ([`Transactions::sweep`](crate::Transactions::sweep)). Default: 600,000. Clocks must not differ by more than
    /// this.
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
    pub clock: Clock,
    pub random: Random,
    pub layouts: Mutex<HashMap<TableName, Arc<Layout>>>,
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

/// Bits of a transaction's id that are random; those above them say when it began.
const RANDOM_BITS: u32 = 80;

/// The id of a transaction that begins now: 32 hexadecimal digits, 12 of them unix milliseconds.
pub(crate) fn id(began_ms: i64, random: u128) -> String {
    let time = u128::from(began_ms.max(0) as u64) << RANDOM_BITS;
    format!("{:032x}", time | random & ((1 << RANDOM_BITS) - 1))
}

/// When a transaction began, by its id. One with an id of before ids told that, random bits, has most likely not begun
/// yet.
fn began_ms(id: &str) -> i64 {
    u128::from_str_radix(id, 16).map_or(i64::MAX, |bits| (bits >> RANDOM_BITS) as i64)
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

    pub(crate) fn settle_with(
        &self,
        layout: &Layout,
        key: &[Value],
        row: Row,
        durability: Durability,
    ) -> Result<Settled> {
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
                self.coordinator.decide(id, Wish::Bury, now_ms)?
            }
        };
        let (mutation, image) = if decision.committed {
            let mutation = row::forward(layout, key, id, row.state, decision.at_ms);
            (mutation, Some(row.forward(decision.at_ms)))
        } else {
            (row::back(layout, key, id, row.state, row.before.as_ref()), row.before)
        };
        let done = self.storage.mutate(&[mutation], durability);
        if durability == Durability::Always {
            match done {
                // Another was faster.
                Err(MapError::ConditionFailed { .. }) => {}
                done => done?.wait().map_err(MapError::from)?,
            }
        }
        Ok(Settled::Now(image))
    }

    /// What was decided about a transaction, or is decided by this because nothing was.
    ///
    /// # Errors
    /// [`Error::Unknown`] if its record may have been swept: that it is not there says nothing then.
    pub(crate) fn outcome(&self, id: &str, wish: Wish) -> Result<Decision> {
        let decision = self.coordinator.decide(id, wish, self.now_ms())?;
        // Looked at afterwards: a record that was removed before this one was put was removed after that was raised.
        if !decision.committed && began_ms(id) < self.coordinator.forgotten_ms()? {
            let cause = "it began so long ago that its record may have been swept".into();
            return Err(Error::Unknown { transaction: id.into(), asked_of_coordinator: false, cause });
        }
        Ok(decision)
    }

    /// Mutations of one group at once, or else one by one: each that can be made is. What remains is for those who read
    /// the rows.
    pub(crate) fn mutate_each(&self, mutations: &[Mutation]) {
        if self.storage.mutate(mutations, Durability::Applied).is_err() && mutations.len() > 1 {
            for mutation in mutations {
                let _ = self.storage.mutate(std::slice::from_ref(mutation), Durability::Applied);
            }
        }
    }

    /// Rows in the storage's order, until `visit` returns false; whether it never did. A row that is found by an index
    /// may come twice: by its value and by that of its before-image, in this order: a client that prepares or settles
    /// it between the two does not hide it.
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
