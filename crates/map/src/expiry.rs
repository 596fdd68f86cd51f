//! Expiry: removing rows that no reader is shown any more, so that they give back their space.
//!
//! table after table → its expiry index → what is due, oldest first → rows as they are → one transaction that removes
//! them, each guarded → one was written meanwhile: the same without it
//!
//! Invariants:
//! 1. A row is removed only if it is, in the transaction, what was found to have expired: one that was renewed
//!    meanwhile stays.
//! 2. What indexes say of a row goes in the transaction that removes it.
//! 3. Removals are `Applied`: a power cut may bring a row back into the store, but never into an answer.
//! 4. Nothing is read under a lock, and nothing is waited for.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use esker_store::{Change, Durability, Error as StoreError, Transaction, due};

use crate::guards::guarded;
use crate::names;
use crate::ops::TableName;
use crate::parts::RowKey;
use crate::row::Row;
use crate::waist::{Place, Touched, Waist, decode, is_still};
use crate::{Error, Result, Table};

/// Most rows that one transaction removes.
const ROWS_MAX: usize = 256;
/// Rows are not gathered beyond so many bytes: what is found of each stands in its guard.
const BYTES_MAX: usize = 4 << 20;

/// What removing expired rows has come to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Entries of expiry indexes, or rows, that were due and looked at.
    pub looked: u64,
    /// Rows that were removed.
    pub removed: u64,
    /// Rows that were written between being found and being removed, and so stay for now.
    pub renewed: u64,
}

impl Swept {
    fn add(&mut self, other: Self) {
        self.looked += other.looked;
        self.removed += other.removed;
        self.renewed += other.renewed;
    }
}

/// Something that is due, and what stands there.
struct Due {
    place: Place,
    before: Option<Bytes>,
    found: Option<Row>,
    /// An entry that is not the row's: it goes, and the row stays.
    stray: Option<Bytes>,
}

/// Goes over the tables of a map again and again, a step at a time, and removes what has expired. Meant for a thread in
/// the background.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use std::sync::Arc;
/// use esker_map::{Sweeper, Waist};
///
/// let map = Waist::open(Arc::new(esker_memory::MemoryStore::new()), Arc::new(|| 0), [7; 32])?;
/// let mut sweeper = Sweeper::new(map);
/// assert_eq!(sweeper.step(100)?.looked, 0, "nothing is due in any table");
/// # Ok(())
/// # }
/// ```
pub struct Sweeper {
    map: Waist,
    after: Option<TableName>,
    /// Of tables with rows that cannot be read: the last such entry of their expiry index, until what is due behind it
    /// has been looked at.
    past: HashMap<TableName, Bytes>,
}

impl Sweeper {
    /// Begins with the first table.
    pub fn new(map: Waist) -> Self {
        Self { map, after: None, past: HashMap::new() }
    }

    /// Removes at most `rows` expired rows of the next table that has any, oldest first. Nothing was looked at: no
    /// table has any. Behind the last table it removes what is left of tables and indexes that were dropped.
    ///
    /// # Errors
    /// The store's; [`Error::Damaged`] for a row that cannot be read, when the others of the step were removed. The
    /// next step goes on with another table, if there is one, and the next one of this table behind that row; it is
    /// looked at again when the rest is done.
    pub fn step(&mut self, rows: usize) -> Result<Swept> {
        let first = self.after.clone();
        let mut again = first.is_none();
        loop {
            self.after = self.map.table_after(self.after.as_ref())?;
            let Some(name) = self.after.clone() else {
                self.map.work()?;
                if again {
                    return Ok(Swept::default());
                }
                again = true;
                continue;
            };
            if again && first.as_ref().is_some_and(|first| name > *first) {
                return Ok(Swept::default());
            }
            let mut past = self.past.remove(&name);
            let swept = self.map.sweep_due(&name, rows, &mut past);
            if let Some(past) = past {
                self.past.insert(name, past);
            }
            let swept = swept?;
            if swept.looked > 0 {
                return Ok(swept);
            }
        }
    }
}

impl Waist {
    /// Removes the rows of a table that have expired, by looking at all of its rows: also those that were written
    /// before there was an index of them. Reads do not show them before either. Returns their number.
    ///
    /// # Errors
    /// [`Error::Missing`]; the store's.
    pub fn sweep(&self, name: &TableName) -> Result<u64> {
        let table = self.load(name)?;
        let now_ms = self.now_ms();
        let (mut swept, mut due, mut gathered) = (Swept::default(), Vec::new(), 0);
        self.for_each_row(&table, |place, bytes| {
            let row = decode(&table, place, bytes)?;
            if row.expired(now_ms) {
                gathered += bytes.len();
                due.push(Due { place: place.clone(), before: Some(bytes.clone()), found: Some(row), stray: None });
            }
            if due.len() >= ROWS_MAX || gathered >= BYTES_MAX {
                gathered = 0;
                swept.add(self.remove(name, &table, std::mem::take(&mut due))?);
            }
            Ok(())
        })?;
        swept.add(self.remove(name, &table, due)?);
        Ok(swept.removed)
    }

    /// The table whose names come next, if there is one.
    fn table_after(&self, after: Option<&TableName>) -> Result<Option<TableName>> {
        let after = after.map(names::table_name);
        let Some(name) = names::tables().names(&*self.store, "", after.as_deref(), 1).next().transpose()? else {
            return Ok(None);
        };
        let damaged = || Error::damaged("catalogue", format!("table {name:?}"));
        names::table_of(&name).map(Some).ok_or_else(damaged)
    }

    /// Removes up to `rows` expired rows of a table, as its expiry index says, behind the entry `past`, which becomes
    /// the last one that is damaged, and nothing at the end of what is due: else what is damaged, and so stays, would
    /// keep the rest from being removed.
    fn sweep_due(&self, name: &TableName, rows: usize, past: &mut Option<Bytes>) -> Result<Swept> {
        let table = match self.current(name) {
            // It was dropped a moment ago.
            Err(Error::Missing { .. }) => return Ok(Swept::default()),
            other => other?,
        };
        let (index, limit) = (names::expiry(table.id), rows.clamp(1, ROWS_MAX));
        // What is read here is not shown to a client, so nothing waits until it is durable.
        let (entries, _) = due::due(&*self.store, &index, self.now_ms(), past.as_deref(), limit).into_parts();
        let (mut due, mut damaged, mut looked, mut gathered) = (Vec::new(), None, 0, 0);
        let entries = entries?;
        if entries.is_empty() {
            *past = None;
        }
        for entry in entries {
            looked += 1;
            match self.look(&table, &entry) {
                Ok(one) => {
                    gathered += one.before.as_ref().map_or(0, Bytes::len);
                    due.push(one);
                }
                Err(error @ Error::Damaged { .. }) => {
                    damaged = Some(error);
                    *past = Some(entry);
                }
                Err(error) => return Err(error),
            }
            if gathered >= BYTES_MAX {
                break;
            }
        }
        let swept = Swept { looked, ..self.remove(name, &table, due)? };
        damaged.map_or(Ok(swept), Err)
    }

    /// The row that an entry of the expiry index is of.
    fn look(&self, table: &Table, entry: &Bytes) -> Result<Due> {
        let split = |entry| due::split(entry).and_then(|(at_ms, of)| Some((at_ms, names::split_index_key(&of)?)));
        let (at_ms, (partition_key, clustering)) = split(entry)
            .ok_or_else(|| Error::damaged(format!("expiry index of table {}", table.id), format!("entry {entry:?}")))?;
        let partition = names::partition(table.id, &partition_key);
        let (before, _) = self.store.omap_get(&partition, &clustering).into_parts();
        let before = before?;
        let place = Place { partition, key: RowKey { partition: partition_key, clustering } };
        let found = before.as_ref().map(|bytes| decode(table, &place, bytes)).transpose()?;
        let ours = found.as_ref().is_some_and(|row| row.expires_ms == Some(at_ms));
        Ok(Due { place, before, found, stray: (!ours).then(|| entry.clone()) })
    }

    /// Removes rows, each only if it is still what was found.
    fn remove(&self, name: &TableName, table: &Arc<Table>, mut due: Vec<Due>) -> Result<Swept> {
        let mut swept = Swept { looked: due.len() as u64, ..Swept::default() };
        while !due.is_empty() {
            let mut txn = Transaction::with(Durability::Applied);
            guarded(&mut txn, table);
            for Due { place, before, found, stray } in &due {
                let Some(entry) = stray else {
                    let table = Arc::clone(table);
                    let touched = Touched { table, before: before.clone(), found: found.clone(), now: None };
                    self.write(&mut txn, place, touched)?;
                    continue;
                };
                txn.guards.push(is_still(place, before.as_ref()));
                txn.push(&names::expiry(table.id), Change::OmapRemove { key: entry.clone() });
            }
            // So that no writer in this process is met by a guard of its own.
            let locks = self.lock(due.iter().map(|due| due.place.partition.hash64()));
            let (submitted, _) = self.store.submit(txn).into_parts();
            drop(locks);
            match submitted {
                Ok(_) => {
                    swept.removed += due.iter().filter(|due| due.stray.is_none()).count() as u64;
                    break;
                }
                Err(StoreError::GuardFailed { index: 0 }) => {
                    // The schema has changed; what is due is found again by the new one.
                    self.load(name).map(drop).or_else(|error| match error {
                        Error::Missing { .. } => Ok(()),
                        error => Err(error),
                    })?;
                    break;
                }
                Err(StoreError::GuardFailed { index }) => {
                    // One guard for each, behind that of the schema.
                    due.remove(index - 1);
                    swept.renewed += 1;
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(swept)
    }
}
