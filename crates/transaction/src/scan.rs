//! Scans of a transaction: the storage's rows with the transaction's own writes among them, and the same scan again
//! when it is validated.
//!
//! A filter is evaluated here and not in the storage: what keeps a row out must still keep it out when the transaction
//! commits, so every row of the range counts.
//!
//! Invariants:
//! 1. What identifies every row that a scan has passed is kept, in order, up to where it stopped.
//! 2. What an index finds is kept row by row, as if each had been read by its key. What it does not find leaves nothing
//!    that could be looked at again: a storage reads an index and the rows one after another, and a row may pass from
//!    one value to the next in between. So that is not a scan, but [`Transaction::look_up`].

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::sync::Arc;

use esker_map::{Bound, Compare, Filter, Order, Over, Record, SORT_ROWS_MAX, Scan, TableName, Value};

use crate::layout::{Layout, Place};
use crate::row::{Identity, Image, Row, identity};
use crate::shared::Settled;
use crate::transaction::{Scanned, Transaction};
use crate::{Error, Result};

/// Rows of a scan as they are gathered.
struct Gathered {
    layout: Arc<Layout>,
    filter: Filter,
    limit: usize,
    rows: Vec<(Vec<Value>, Record)>,
}

impl Gathered {
    /// Adds a row if it is let through; whether there is room for more.
    fn add(&mut self, key: &[Value], columns: Option<Vec<Option<Value>>>) -> bool {
        if let Some(columns) = columns {
            let record = self.layout.record(key, &columns);
            if self.filter.matches(&record) {
                self.rows.push((key.to_vec(), record));
            }
        }
        self.limit == 0 || self.rows.len() < self.limit
    }
}

impl Transaction {
    /// Reads rows, all of them: there are no pages, and a limit of 0 is none.
    ///
    /// Rows are in the storage's order, or in that of `order_by`, at most [`SORT_ROWS_MAX`] then.
    ///
    /// # Errors
    /// [`Error::Map`]; [`Error::NotTransactional`]; [`Error::Conflict`] if rows that were read before have changed.
    pub fn scan(&mut self, scan: &Scan) -> Result<Vec<Record>> {
        let layout = self.layout(&scan.table)?;
        scan.filter.check(&layout.users)?;
        for name in scan.columns.iter().chain(scan.order_by.iter().map(|(name, _)| name)) {
            layout.users.column(name)?;
        }
        if scan.page.is_some() {
            return Err(Error::invalid("scan", "scans of transactions have no pages"));
        }
        match &scan.over {
            Over::Index(column, _) => {
                let why = format!("by the index of {column}: look it up, or scan all with a filter");
                return Err(Error::invalid("scan", why));
            }
            Over::Partition { key, low, high } => {
                for column in &layout.key[..layout.partition_columns] {
                    layout.one_value(key, &column.name, "partition key")?;
                }
                for (name, _) in low.iter().chain(high).flat_map(|bound| &bound.values) {
                    layout.users.column(name)?;
                }
            }
            Over::All => {}
        }
        let limit = if scan.order_by.is_empty() { scan.limit } else { 0 };
        let gathered = Gathered { layout: Arc::clone(&layout), filter: scan.filter.clone(), limit, rows: Vec::new() };
        let mut rows = self.gather(scan, gathered)?;
        if !scan.order_by.is_empty() {
            if rows.len() > SORT_ROWS_MAX {
                let why = format!("more than {SORT_ROWS_MAX} rows to sort (SORT_ROWS_MAX)");
                return Err(Error::invalid("order", why));
            }
            rows.sort_by(|(_, a), (_, b)| ordered(&scan.order_by, a, b));
            if scan.limit > 0 {
                rows.truncate(scan.limit);
            }
        }
        Ok(rows.into_iter().map(|(_, record)| layout.project(record, &scan.columns)).collect())
    }

    /// Finds rows by a column with an index: those with the value, in the order of their keys.
    ///
    /// Each row that is found is as if it had been read by its key: it has the value at the instant of the commit. But
    /// rows that are not found may be there: made by a transaction that comes before this one and was committed while
    /// the index was read. Where that matters, [`Transaction::scan`] all with a filter.
    ///
    /// # Errors
    /// As [`Transaction::scan`]; [`Missing`](esker_map::Error::Missing) if the column has no index.
    pub fn look_up(&mut self, table: &TableName, column: &str, value: &Value) -> Result<Vec<Record>> {
        let layout = self.layout(table)?;
        let filter = Filter::Compare(column.into(), Compare::Equal, value.clone());
        filter.check(&layout.users)?;
        let shared = Arc::clone(&self.shared);
        let mut places: BTreeSet<Place> = self.writes.keys().filter(|place| place.table == *table).cloned().collect();
        let over = Over::Index(column.into(), value.clone());
        shared.each_row(&layout, &over, false, 0, &mut |key, row| {
            let image = shared.settle(&layout, &key, row)?.into_image();
            let found = image.as_ref().filter(|image| !image.gone);
            if found.is_some_and(|image| filter.matches(&layout.record(&key, &image.columns))) {
                let place = Place { table: table.clone(), key };
                self.remember(&place, image, true)?;
                places.insert(place);
            }
            Ok(true)
        })?;
        let mut gathered = Gathered { layout: Arc::clone(&layout), filter, limit: 0, rows: Vec::new() };
        for place in places {
            // One that is only written may be there with another value.
            self.look(&layout, &place)?;
            let image = self.reads.get(&place).and_then(|read| read.image.as_ref());
            gathered.add(&place.key, self.seen(&layout, &place, image));
        }
        gathered.rows.sort_by(|(a, _), (b, _)| layout.compare(a, b));
        Ok(gathered.rows.into_iter().map(|(_, record)| record).collect())
    }

    fn gather(&mut self, scan: &Scan, mut gathered: Gathered) -> Result<Vec<(Vec<Value>, Record)>> {
        let layout = Arc::clone(&gathered.layout);
        let toward = |a: &[Value], b: &[Value]| {
            let order = layout.compare(a, b);
            if scan.reverse { order.reverse() } else { order }
        };
        let ours =
            self.writes.keys().filter(|place| place.table == scan.table && within(&layout, &scan.over, &place.key));
        let mut ours: Vec<Place> = ours.cloned().collect();
        ours.sort_by(|a, b| toward(&a.key, &b.key));
        // Only partitions are in the order of their keys on every storage; elsewhere own rows are put in at the end.
        let sorted = matches!(scan.over, Over::Partition { .. });
        let limit = gathered.limit;
        if !sorted && !ours.is_empty() {
            gathered.limit = 0;
        }
        let mut ours = ours.into_iter().peekable();
        let mut late: BTreeSet<Place> = if sorted { BTreeSet::new() } else { ours.by_ref().collect() };
        let mut rows: Vec<(Vec<Value>, Identity)> = Vec::new();
        let mut until = None;
        let shared = Arc::clone(&self.shared);
        let whole = shared.each_row(&layout, &scan.over, scan.reverse, gathered.limit, &mut |key, row| {
            let image = shared.settle(&layout, &key, row)?.into_image();
            let place = Place { table: scan.table.clone(), key };
            if image.is_some() {
                self.remember(&place, image.clone(), false)?;
                self.check_room()?;
                self.scanned_rows += 1;
                rows.push((place.key.clone(), identity(image.as_ref())));
            }
            let mut room = true;
            while room && let Some(own) = ours.next_if(|own| toward(&own.key, &place.key) == Ordering::Less) {
                room = gathered.add(&own.key, self.seen(&layout, &own, None));
            }
            ours.next_if(|own| own.key == place.key);
            late.remove(&place);
            room = room && gathered.add(&place.key, self.seen(&layout, &place, image.as_ref()));
            if !room {
                until = Some(place.key);
            }
            Ok(room)
        })?;
        let (over, reverse) = (scan.over.clone(), scan.reverse);
        self.scans.push(Scanned { layout: Arc::clone(&layout), over, reverse, rows, until });
        if whole {
            for own in ours {
                if !gathered.add(&own.key, self.seen(&layout, &own, None)) {
                    break;
                }
            }
        }
        if !sorted && limit != gathered.limit || !late.is_empty() {
            for own in late {
                let image = self.reads.get(&own).and_then(|read| read.image.as_ref());
                gathered.add(&own.key, self.seen(&layout, &own, image));
            }
            gathered.rows.sort_by(|(a, _), (b, _)| layout.compare(a, b));
            if limit > 0 {
                gathered.rows.truncate(limit);
            }
        }
        Ok(gathered.rows)
    }

    /// What is committed of a row, own ones before the transaction; `None` if another has it prepared and that must not
    /// be.
    fn committed(&self, layout: &Layout, key: &[Value], row: Row, strict: bool) -> Result<Option<Option<Image>>> {
        if row.is_prepared() && row.image.id.as_ref() == Some(&self.id) {
            return Ok(Some(row.before));
        }
        Ok(match self.shared.settle(layout, key, row)? {
            Settled::Under(_) if strict => None,
            settled => Some(settled.into_image()),
        })
    }

    /// Whether a row is committed as it was read; under `strict`, no other transaction may have it prepared either.
    pub(crate) fn holds(&self, layout: &Layout, place: &Place, read: &Identity, strict: bool) -> Result<bool> {
        let now = match self.shared.fetch(layout, &place.key)? {
            Some(row) => self.committed(layout, &place.key, row, strict)?,
            None => Some(None),
        };
        Ok(now.is_some_and(|image| identity(image.as_ref()) == *read))
    }

    /// Whether a scan would pass the same rows again.
    pub(crate) fn holds_scan(&self, scanned: &Scanned, strict: bool) -> Result<bool> {
        let layout = &scanned.layout;
        let mut expected = scanned.rows.iter();
        let mut holds = true;
        let sorted = matches!(scanned.over, Over::Partition { .. });
        let limit = if scanned.until.is_none() { 0 } else { scanned.rows.len() };
        self.shared.each_row(layout, &scanned.over, scanned.reverse, limit, &mut |key, row| {
            let past = scanned.until.as_ref().map(|until| {
                let order = layout.compare(&key, until);
                if scanned.reverse { order.reverse() } else { order }
            });
            if sorted && past == Some(Ordering::Greater) {
                return Ok(false);
            }
            holds = match self.committed(layout, &key, row, strict)? {
                None => false,
                // Prepared on nothing.
                Some(None) => true,
                Some(image) => {
                    expected.next().is_some_and(|(was, read)| *was == key && *read == identity(image.as_ref()))
                }
            };
            let last = if sorted { past == Some(Ordering::Equal) } else { past.is_some() && expected.len() == 0 };
            Ok(holds && !last)
        })?;
        Ok(holds && expected.len() == 0)
    }
}

/// Whether a row is among those that a scan goes over, by its key.
fn within(layout: &Layout, over: &Over, key: &[Value]) -> bool {
    let Over::Partition { key: partition, low, high } = over else { return true };
    let columns = layout.key.iter().zip(key);
    let in_partition = columns
        .clone()
        .take(layout.partition_columns)
        .all(|(column, value)| partition.iter().any(|(name, wanted)| *name == column.name && wanted == value));
    let clustering: Vec<_> = columns.skip(layout.partition_columns).collect();
    let inside = |bound: &Bound, wanted: Ordering| {
        let count = bound.values.len();
        clustering.iter().take(count).enumerate().all(|(number, (column, value))| {
            let Some((_, at)) = bound.values.iter().find(|(name, _)| *name == column.name) else { return false };
            let order = value.compare(at);
            order == Some(Ordering::Equal) && (number + 1 < count || bound.inclusive)
                || number + 1 == count && order == Some(wanted)
        })
    };
    in_partition
        && low.as_ref().is_none_or(|bound| inside(bound, Ordering::Greater))
        && high.as_ref().is_none_or(|bound| inside(bound, Ordering::Less))
}

/// Null comes first.
fn ordered(by: &[(String, Order)], a: &Record, b: &Record) -> Ordering {
    for (name, order) in by {
        let by = match (a.value(name), b.value(name)) {
            (Some(a), Some(b)) => a.compare(b).unwrap_or(Ordering::Equal),
            (a, b) => a.is_some().cmp(&b.is_some()),
        };
        let by = if *order == Order::Desc { by.reverse() } else { by };
        if by.is_ne() {
            return by;
        }
    }
    Ordering::Equal
}
