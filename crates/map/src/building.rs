//! Building an index over rows that are there: building → entries of all rows → live.
//!
//! Invariants:
//! 1. While an index is built every mutation keeps it, and no scan uses it; it is live only when each row has its
//!    entry.
//! 2. It is made live only under the schema by which the entries were written: a table that was dropped and made again
//!    may have an index of the same number.
//! 3. One that cannot be built is dropped. One whose building was interrupted stays as building, and is gone on with by
//!    adding it again.

use std::sync::Arc;

use bytes::Bytes;
use esker_store::{Durability, Error as StoreError, Retry, Transaction, Unsynced};

use crate::guards::guarded;
use crate::names;
use crate::ops::TableName;
use crate::waist::{Place, Touched, Waist, decode};
use crate::{Error, Result, Table};

/// How often an entry is written again whose answer was lost.
const UNKNOWN_MAX: u32 = 5;

impl Waist {
    /// Adds an index, and returns when it is live. Several that build one at once each write all entries, and all
    /// return then.
    pub(crate) fn build_index(&self, name: &TableName, column: &str) -> Result<()> {
        let mut begun = None;
        let mut retry = Retry::default();
        loop {
            retry.attempt(|| format!("the schema of table {name}"))?;
            let table = self.load(name)?;
            let wanted = table.column(column)?.id;
            // Numbers of indexes are a table's own: of one that was made again, whatever is there counts.
            let counts = |id| begun.is_none_or(|begun: (u64, u16)| begun.0 != table.id || begun.1 == id);
            let there = table.index_of(wanted).filter(|index| counts(index.id)).cloned();
            // A schema that is as it should be is not changed: other builders would have to begin anew.
            let (id, table) = match there {
                Some(index) if index.building => (index.id, table),
                Some(_) if begun.is_some() => return Ok(()),
                Some(_) => return Err(Error::Exists { what: "index", name: column.into() }),
                None if begun.is_some() => return Err(Error::missing("index", column)),
                None => {
                    let mut id = 0;
                    let begin = |table: &mut Table, _: &mut Transaction| {
                        id = table.begin_index(column)?;
                        Ok(())
                    };
                    let table = self.change_table(name, begin)?;
                    (id, Arc::new(table))
                }
            };
            begun = Some((table.id, id));
            match self.fill_index(&table) {
                // The schema changed: perhaps the rows have another number. Or what was written may be lost.
                Ok(false) => continue,
                Err(error) if self.give_up(name, column, (table.id, id)) => return Err(error),
                // The rows that it was about are gone: those that are there now may be another matter.
                Err(_) => continue,
                Ok(true) => {}
            }
            let mut changed = false;
            let live = self.change_table(name, |now, _| {
                changed = (now.id, now.generation) != (table.id, table.generation);
                let index = now.indexes.iter_mut().find(|index| index.id == id && !changed);
                index.ok_or_else(|| Error::missing("index", column))?.building = false;
                Ok(())
            });
            if !changed {
                return live.map(drop);
            }
        }
    }

    /// Drops what could not be built, if it is there still. `of` are the numbers of the table and of the index. Whether
    /// the table is the one that it was; false means that it was dropped, and perhaps another made of its name.
    fn give_up(&self, name: &TableName, column: &str, of: (u64, u16)) -> bool {
        let mut is_another = false;
        let gone = self.change_table(name, |table, txn| {
            is_another = table.id != of.0;
            let (id, building) = table.index_of(table.column(column)?.id).map_or((0, false), |it| (it.id, it.building));
            if is_another || id != of.1 || !building {
                return Err(Error::missing("index", column));
            }
            table.drop_index(column)?;
            txn.gives_back = true;
            names::tables().note(txn, table.id, &id.to_be_bytes(), Bytes::new());
            Ok(())
        });
        match gone {
            // What it leaves is removed now, or when something is dropped next.
            Ok(_) => self.collect(),
            Err(Error::Missing { what: "table", .. }) => return false,
            Err(_) => {}
        }
        !is_another
    }

    /// Writes the entries of indexes for the rows that are there. False if it has to be done again: the schema changed,
    /// or the store was
    /// restarted, and what was written before that may be gone. Mutations by this schema write their own entries.
    fn fill_index(&self, table: &Arc<Table>) -> Result<bool> {
        let (mut same, unsynced) = (true, Unsynced::default());
        // Rows that are gone need no entry, as long as they stay gone.
        unsynced.begin(&*self.store).applied();
        let done = self.for_each_row(table, |place, bytes| {
            let row = decode(table, place, bytes)?;
            let _lock = self.lock(std::iter::once(place.partition.hash64()));
            let (mut retry, mut unknown) = (Retry::default(), 0);
            loop {
                // Nothing of it is shown, so the builder does not wait under the lock until it is durable.
                let (now, _) = self.store.omap_get(&place.partition, &place.key.clustering).into_parts();
                let Some(now) = now? else { break };
                let mut txn = Transaction::with(Durability::Applied);
                guarded(&mut txn, table);
                let row = if now == *bytes { row.clone() } else { decode(table, place, &now)? };
                let touched = Touched { table: Arc::clone(table), before: Some(now), found: None, now: Some(row) };
                self.write(&mut txn, place, touched).map_err(|error| of_row(table, place, error))?;
                if txn.ops.is_empty() {
                    break;
                }
                let written = unsynced.begin(&*self.store);
                match self.store.submit(txn).wait() {
                    Ok(_) => {
                        written.applied();
                        break;
                    }
                    // Written again, it does no harm.
                    Err(error) if error.is_unknown() && unknown < UNKNOWN_MAX => {
                        unknown += 1;
                        written.applied();
                    }
                    Err(StoreError::GuardFailed { .. }) => {
                        if !self.is_current(table)? {
                            same = false;
                            // It ends the looking at rows; what it says is not told.
                            return Err(Error::invalid("index", "the schema has changed"));
                        }
                    }
                    Err(error) => return Err(error.into()),
                }
                retry.again(|| format!("rows of table {}", table.id))?;
            }
            Ok(())
        });
        if !same {
            return Ok(false);
        }
        done?;
        match unsynced.sync(&*self.store) {
            Ok(()) => Ok(true),
            Err(StoreError::Restarted) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

/// Which row it was.
fn of_row(table: &Table, place: &Place, error: Error) -> Error {
    let Error::Invalid { what, why } = error else { return error };
    let key = crate::parts::record(table, &place.key, &crate::parts::Row::default(), &[]);
    let key: Vec<String> = key.columns.iter().map(|(name, value)| format!("{name} = {value:?}")).collect();
    Error::Invalid { what, why: format!("{why} (row {})", key.join(", ")) }
}
