//! Scans on the waist: partitions, indexes, everything.
//!
//! scan → range of clustering keys (or entries of an index, or all partitions) → rows → [`Gathered`] → page, with a
//! token if there may be more
//!
//! Invariants:
//! 1. A scan reads rows of one table in the order of their keys, and an index's entries only to find them.
//! 2. The rows that one page of a scan has of a partition are of one moment; pages, partitions, and rows that an index
//!    leads to, are of different moments.
//! 3. A page is read by the schema that its table has all the while ([`Waist::by_schema`]).

use std::sync::Arc;

use bytes::Bytes;
use esker_store::prefix::{just_above, prefix_end};
use esker_store::{ObjectId, OmapScan, prefix};

use crate::key::{self, Order};
use crate::names;
use crate::ops::{Bound, Over, Page, Scan};
use crate::parts::{self, Between, Gathered, RowKey};
use crate::value::Value;
use crate::waist::{Place, Waist, decode, index_value};
use crate::{Error, Result, Table};

/// Rows read at once.
const STEP: usize = 512;
/// Rows of a partition that one page looks at, at most; with a filter, or where the page may be small, fewer: what is
/// read and not returned
/// is read again for the next page.
const PARTITION_STEP: usize = 1_024;
/// A read that gave so many bytes may have been cut short by the store.
const WHOLE_BYTES: usize = 1 << 20;

/// The key range of a partition scan.
type KeyRange = (Option<Bytes>, Option<Bytes>);

impl Waist {
    /// All rows of a table as they are stored, expired ones too.
    pub(crate) fn for_each_row(&self, table: &Table, mut row: impl FnMut(&Place, &Bytes) -> Result<()>) -> Result<()> {
        let prefix = names::partition_prefix(table.id);
        for partition in self.objects(&prefix, None) {
            let partition = partition?;
            let partition_key = partition.name().slice(prefix.len()..);
            for entry in prefix::omap(&*self.store, &partition, OmapScan::of(b"").at_once(STEP)) {
                let (clustering, bytes) = entry?;
                let key = RowKey { partition: partition_key.clone(), clustering };
                row(&Place { partition: partition.clone(), key }, &bytes)?;
            }
        }
        Ok(())
    }

    /// A page by this schema.
    pub(crate) fn scan_table(&self, table: &Arc<Table>, scan: &Scan) -> Result<Page> {
        parts::check_scan(table, scan)?;
        if !scan.order_by.is_empty() {
            return parts::sorted(table, scan, |scan| self.scan_table(table, scan));
        }
        let read = |token| parts::read_token(&self.secret, table, scan, token);
        let after = scan.page.as_ref().map(read).transpose()?;
        let mut gathered = Gathered::new(table, scan, self.now_ms());
        let end = match &scan.over {
            Over::Partition { key, low, high } => {
                let partition_key = parts::encode_partition(table, key)?;
                let range = bounds(table, low.as_ref(), high.as_ref())?;
                let partition = names::partition(table.id, &partition_key);
                self.scan_partition(table, &partition, &partition_key, range, scan.reverse, after, &mut gathered)?
            }
            Over::Index(name, value) => self.scan_index(table, name, value, after, &mut gathered)?,
            Over::All => self.scan_all(table, after, &mut gathered)?,
        };
        let next = end.map(|last| parts::token(&self.secret, table, scan, &last));
        Ok(Page { records: gathered.into_records(), next })
    }

    /// Returns where the page ends, if there may be more.
    #[allow(clippy::too_many_arguments, reason = "each is another part of where the scan is")]
    fn scan_partition(
        &self,
        table: &Table,
        partition: &ObjectId,
        partition_key: &Bytes,
        (mut start, mut end): KeyRange,
        reverse: bool,
        after: Option<Bytes>,
        gathered: &mut Gathered<'_>,
    ) -> Result<Option<Bytes>> {
        match after {
            Some(after) if reverse => end = Some(after),
            Some(after) => start = Some(just_above(&after)),
            None => {}
        }
        if let (Some(start), Some(end)) = (&start, &end)
            && start >= end
        {
            return Ok(None);
        }
        // One read, so that what one page has of a partition is of one moment.
        let limit = gathered.step(if gathered.returns_all() { PARTITION_STEP } else { STEP });
        let scan = OmapScan { start: start.clone(), end: end.clone(), reverse, limit, keys_only: false };
        let found = self.store.omap_scan(partition, &scan).wait()?;
        let Some((last, _)) = found.last().cloned() else { return Ok(None) };
        let bytes: usize = found.iter().map(|(key, row)| key.len() + row.len()).sum();
        let cut = found.len() >= limit || bytes >= WHOLE_BYTES;
        for (clustering, bytes) in found {
            let key = RowKey { partition: partition_key.clone(), clustering };
            let place = Place { partition: partition.clone(), key };
            let row = decode(table, &place, &bytes)?;
            if gathered.take(&place.key, &row, bytes.len()) {
                return Ok(Some(place.key.clustering));
            }
        }
        if cut {
            return Ok(Some(last));
        }
        // A store may give fewer than there are: it has given all if nothing follows.
        let (start, end) = match reverse {
            true => (start, Some(last.clone())),
            false => (Some(just_above(&last)), end),
        };
        let rest = OmapScan { start, end, reverse, limit: 1, keys_only: true };
        let more = self.store.omap_scan(partition, &rest).wait()?;
        Ok((!more.is_empty()).then_some(last))
    }

    fn scan_index(
        &self,
        table: &Table,
        name: &str,
        value: &Value,
        after: Option<Bytes>,
        gathered: &mut Gathered<'_>,
    ) -> Result<Option<Bytes>> {
        let (column, index) = parts::indexed(table, name, value)?;
        let object = names::index(table.id, index.id, &parts::encode_indexed(value)?);
        let mut start = after.map(|after| just_above(&after));
        loop {
            let limit = gathered.step(STEP);
            let scan = OmapScan { start: start.clone(), limit, keys_only: true, ..OmapScan::default() };
            let found = self.store.omap_scan(&object, &scan).wait()?;
            let Some((last, _)) = found.last().cloned() else { return Ok(None) };
            for (entry, _) in found {
                let (partition_key, clustering) = names::split_index_key(&entry)
                    .ok_or_else(|| Error::damaged(format!("index {object}"), format!("entry {entry:?}")))?;
                let partition = names::partition(table.id, &partition_key);
                // Another writer may have changed the row after the entry was read: the row decides.
                let Some(bytes) = self.store.omap_get(&partition, &clustering).wait()? else { continue };
                let place = Place { partition, key: RowKey { partition: partition_key, clustering } };
                let row = decode(table, &place, &bytes)?;
                if index_value(table, &place.key, &row, column.id).as_ref() != Some(value) {
                    continue;
                }
                if gathered.take(&place.key, &row, bytes.len()) {
                    return Ok(Some(entry));
                }
            }
            start = Some(just_above(&last));
        }
    }

    /// The place in a scan of all: length of the partition key, that, the clustering key.
    fn scan_all(&self, table: &Table, after: Option<Bytes>, gathered: &mut Gathered<'_>) -> Result<Option<Bytes>> {
        let prefix = names::partition_prefix(table.id);
        let mut before: Option<Bytes> = None;
        if let Some(after) = after {
            let (partition_key, clustering) =
                names::split_index_key(&after).ok_or_else(|| Error::invalid("page token", "it is malformed"))?;
            let partition = names::partition(table.id, &partition_key);
            let end = self.scan_partition(
                table,
                &partition,
                &partition_key,
                (None, None),
                false,
                Some(clustering),
                gathered,
            )?;
            if let Some(clustering) = end {
                return Ok(Some(names::index_key(&partition_key, &clustering)));
            }
            before = Some(partition.name().clone());
        }
        for partition in self.objects(&prefix, before.as_deref()) {
            let partition = partition?;
            let partition_key = partition.name().slice(prefix.len()..);
            let end = self.scan_partition(table, &partition, &partition_key, (None, None), false, None, gathered)?;
            if let Some(clustering) = end {
                return Ok(Some(names::index_key(&partition_key, &clustering)));
            }
        }
        Ok(None)
    }
}

/// The range of clustering keys between two bounds on values.
fn bounds(table: &Table, low: Option<&Bound>, high: Option<&Bound>) -> Result<KeyRange> {
    let Between { equal, low, high } = Between::of(table, low, high)?;
    if low.is_none() && high.is_none() {
        return Ok((None, None));
    }
    let mut prefix = Vec::new();
    for (value, (_, order)) in equal.iter().zip(&table.clustering_key) {
        key::push(&mut prefix, value, *order);
    }
    let order = table.clustering_key.get(equal.len()).map_or(Order::Asc, |(_, order)| *order);
    let whole = |value: &Value| {
        let mut key = prefix.clone();
        key::push(&mut key, value, order);
        Bytes::from(key)
    };
    // Rows of the prefix, whose last column is anything.
    let mut start = Some(Bytes::copy_from_slice(&prefix));
    let mut end = prefix_end(&prefix);
    let (first, last) = if order == Order::Desc { (&high, &low) } else { (&low, &high) };
    if let Some((value, inclusive)) = first {
        // From its first key on if it is included, else from after its last.
        start = if *inclusive { Some(whole(value)) } else { prefix_end(&whole(value)) };
        if start.is_none() {
            // Nothing follows the greatest of all keys. No start would be the least.
            return Ok((Some(Bytes::new()), Some(Bytes::new())));
        }
    }
    if let Some((value, inclusive)) = last {
        let until = if *inclusive { prefix_end(&whole(value)) } else { Some(whole(value)) };
        end = until.or(end);
    }
    Ok((start, end))
}
