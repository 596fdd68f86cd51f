//! Scans on the waist: partitions, indexes, everything; filters and other orders; page tokens.
//!
//! scan → range of clustering keys (or entries of an index, or all partitions) → rows → filter → columns → page, with a token if there may be more
//!
//! A page ends when it has as many rows as asked for, or has looked at [`LOOK_MAX`] rows or [`PAGE_BYTES`] bytes, so that a filter that lets nothing
//! through does not keep a caller waiting for ever.
//!
//! Invariant: a token is good for the scan that it was made for, and no other: it carries a code over both that only this store can make.

use std::collections::BinaryHeap;
use std::sync::Arc;

use bytes::Bytes;
use esker_store::{ObjectId, OmapScan};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::key::{self, Order, after_prefix};
use crate::names;
use crate::ops::{Bound, Over, Page, PageToken, Scan};
use crate::record::Record;
use crate::value::Value;
use crate::waist::{Place, Waist, decode, encode_partition, record};
use crate::{Error, Result, Table};

/// Most rows that one page looks at.
pub const LOOK_MAX: usize = 65_536;
/// A page ends at about so many bytes.
pub const PAGE_BYTES: usize = 4 << 20;
/// Most rows that are sorted for another order than the storage's; with a limit only that many are kept.
pub const SORT_ROWS_MAX: usize = 1 << 20;
/// Most bytes of the rows that are kept for sorting (256 MiB).
pub const SORT_BYTES_MAX: usize = 256 << 20;
/// Bytes of a token's code.
const CODE_BYTES: usize = 16;
/// Rows read at once.
const STEP: usize = 512;

/// The key range of a partition scan.
type KeyRange = (Option<Bytes>, Option<Bytes>);

impl Waist {
    /// All rows of a table as they are stored, expired ones too.
    pub(crate) fn for_each_row(&self, table: &Table, mut row: impl FnMut(&Place, &Bytes) -> Result<()>) -> Result<()> {
        let prefix = names::partition_prefix(table.id);
        let mut after: Option<Bytes> = None;
        loop {
            let objects = self.objects(&prefix, after.as_deref(), STEP)?;
            let Some(last) = objects.last() else { return Ok(()) };
            after = Some(last.name().clone());
            for partition in objects {
                let partition_key = partition.name().slice(prefix.len()..);
                let mut scan = OmapScan { limit: STEP, ..OmapScan::default() };
                loop {
                    let found = self.store.omap_scan(&partition, &scan).wait()?;
                    let Some((last, _)) = found.last() else { break };
                    scan.start = Some([last, &[0][..]].concat().into());
                    for (clustering, bytes) in found {
                        let (partition, partition_key) = (partition.clone(), partition_key.clone());
                        row(&Place { partition, partition_key, clustering }, &bytes)?;
                    }
                }
            }
        }
    }

    pub(crate) fn scan_table(&self, table: &Arc<Table>, scan: &Scan) -> Result<Page> {
        scan.filter.check(table)?;
        for name in scan.columns.iter().chain(scan.order_by.iter().map(|(name, _)| name)) {
            table.column(name)?;
        }
        if !scan.order_by.is_empty() {
            return self.sorted(table, scan);
        }
        let after = scan.page.as_ref().map(|token| self.read_token(table, scan, token)).transpose()?;
        let mut gathered = Gathered::new(table, scan, self.now_ms());
        let end = match &scan.over {
            Over::Partition { key, low, high } => {
                let partition_key = encode_partition(table, key)?;
                if let Some((extra, _)) = key
                    .iter()
                    .find(|(name, _)| !table.column(name).is_ok_and(|column| table.partition_key.contains(&column.id)))
                {
                    return Err(Error::invalid("partition key", format!("column {extra} is not part of it")));
                }
                let range = bounds(table, low.as_ref(), high.as_ref())?;
                let partition = names::partition(table.id, &partition_key);
                self.scan_partition(&partition, &partition_key, range, scan.reverse, after, &mut gathered)?
            }
            Over::Index(name, value) => {
                refuse_reverse(scan)?;
                self.scan_index(table, name, value, after, &mut gathered)?
            }
            Over::All => {
                refuse_reverse(scan)?;
                self.scan_all(table, after, &mut gathered)?
            }
        };
        let next = end.map(|last| self.token(table, scan, &last));
        Ok(Page { records: gathered.records, next })
    }

    /// Returns where the page ends, if there may be more.
    fn scan_partition(
        &self,
        partition: &ObjectId,
        partition_key: &Bytes,
        (mut start, mut end): KeyRange,
        reverse: bool,
        after: Option<Bytes>,
        gathered: &mut Gathered<'_>,
    ) -> Result<Option<Bytes>> {
        match after {
            Some(after) if reverse => end = Some(after),
            Some(after) => start = Some([&after[..], &[0]].concat().into()),
            None => {}
        }
        loop {
            if let (Some(start), Some(end)) = (&start, &end)
                && start >= end
            {
                return Ok(None);
            }
            let limit = gathered.step();
            let scan = OmapScan { start: start.clone(), end: end.clone(), reverse, limit, keys_only: false };
            let found = self.store.omap_scan(partition, &scan).wait()?;
            let Some((last, _)) = found.last().cloned() else { return Ok(None) };
            for (clustering, bytes) in found {
                let place = Place { partition: partition.clone(), partition_key: partition_key.clone(), clustering };
                if gathered.take(&place, &bytes)? {
                    return Ok(Some(place.clustering));
                }
            }
            if reverse {
                end = Some(last);
            } else {
                start = Some([&last[..], &[0]].concat().into());
            }
        }
    }

    fn scan_index(
        &self,
        table: &Table,
        name: &str,
        value: &Value,
        after: Option<Bytes>,
        gathered: &mut Gathered<'_>,
    ) -> Result<Option<Bytes>> {
        let column = table.column(name)?;
        let index = table.index_of(column.id).ok_or_else(|| Error::missing("index", name))?;
        table.check_value(column, value)?;
        let mut bytes = Vec::new();
        key::push(&mut bytes, value, Order::Asc);
        let object = names::index(table.id, index.id, &bytes);
        let mut start = after.map(|after| Bytes::from([&after[..], &[0]].concat()));
        loop {
            let limit = gathered.step();
            let scan = OmapScan { start: start.clone(), limit, keys_only: true, ..OmapScan::default() };
            let found = self.store.omap_scan(&object, &scan).wait()?;
            let Some((last, _)) = found.last().cloned() else { return Ok(None) };
            for (entry, _) in found {
                let (partition_key, clustering) = names::split_index_key(&entry)
                    .ok_or_else(|| Error::damaged(format!("index {object}"), format!("entry {entry:?}")))?;
                let (partition_key, clustering) = (entry.slice_ref(partition_key), entry.slice_ref(clustering));
                let partition = names::partition(table.id, &partition_key);
                // Between the entry and the row somebody may have changed it: the row decides.
                let Some(row) = self.store.omap_get(&partition, &clustering).wait()? else { continue };
                let place = Place { partition, partition_key, clustering };
                if decode(table, &place, &row)?.column(table, column.id).flatten().as_ref() != Some(value) {
                    continue;
                }
                if gathered.take(&place, &row)? {
                    return Ok(Some(entry));
                }
            }
            start = Some([&last[..], &[0]].concat().into());
        }
    }

    /// The place in a scan of all: length of the partition key, that, the clustering key.
    fn scan_all(&self, table: &Table, after: Option<Bytes>, gathered: &mut Gathered<'_>) -> Result<Option<Bytes>> {
        let prefix = names::partition_prefix(table.id);
        let mut before: Option<Bytes> = None;
        if let Some(after) = after {
            let (partition_key, clustering) =
                names::split_index_key(&after).ok_or_else(|| Error::invalid("page token", "it is malformed"))?;
            let (partition_key, clustering) = (after.slice_ref(partition_key), after.slice_ref(clustering));
            let partition = names::partition(table.id, &partition_key);
            let end =
                self.scan_partition(&partition, &partition_key, (None, None), false, Some(clustering), gathered)?;
            if let Some(clustering) = end {
                return Ok(Some(names::index_key(&partition_key, &clustering)));
            }
            before = Some(partition.name().clone());
        }
        loop {
            let objects = self.objects(&prefix, before.as_deref(), STEP)?;
            let Some(last) = objects.last() else { return Ok(None) };
            before = Some(last.name().clone());
            for partition in objects {
                let partition_key = partition.name().slice(prefix.len()..);
                let end = self.scan_partition(&partition, &partition_key, (None, None), false, None, gathered)?;
                if let Some(clustering) = end {
                    return Ok(Some(names::index_key(&partition_key, &clustering)));
                }
            }
        }
    }

    /// All rows of a scan, sorted; with a limit only as many are kept as are returned.
    fn sorted(&self, table: &Arc<Table>, scan: &Scan) -> Result<Page> {
        if scan.page.is_some() {
            return Err(Error::invalid("page token", "a scan in another order has one page"));
        }
        let all = Scan { order_by: Vec::new(), limit: 0, columns: Vec::new(), page: None, ..scan.clone() };
        let keep = if scan.limit == 0 { SORT_ROWS_MAX } else { scan.limit.min(SORT_ROWS_MAX) };
        let mut heap: BinaryHeap<Sorted> = BinaryHeap::new();
        let mut page = None;
        let (mut number, mut bytes) = (0, 0);
        loop {
            let found = self.scan_table(table, &Scan { page, ..all.clone() })?;
            for record in found.records {
                let by = scan.order_by.iter().map(|(name, order)| (record.value(name).cloned(), *order)).collect();
                // What is equal stays in the storage's order.
                number += 1;
                bytes += bytes_of(&record);
                heap.push(Sorted { by, number, record });
                if heap.len() > keep {
                    if scan.limit == 0 {
                        let why = format!("more than {SORT_ROWS_MAX} rows to sort (SORT_ROWS_MAX): give a limit");
                        return Err(Error::invalid("order", why));
                    }
                    bytes -= heap.pop().map_or(0, |last| bytes_of(&last.record));
                }
                if bytes > SORT_BYTES_MAX {
                    let why =
                        format!("the rows to sort exceed {SORT_BYTES_MAX} bytes (SORT_BYTES_MAX): give a lower limit");
                    return Err(Error::invalid("order", why));
                }
            }
            page = found.next;
            if page.is_none() {
                break;
            }
        }
        let mut records: Vec<Record> = heap.into_sorted_vec().into_iter().map(|sorted| sorted.record).collect();
        for record in &mut records {
            let wanted = |name: &str| {
                scan.columns.is_empty()
                    || scan.columns.iter().any(|column| column == name)
                    || table.column(name).is_ok_and(|column| table.is_key(column.id))
            };
            record.columns.retain(|(name, _)| wanted(name));
        }
        Ok(Page { records, next: None })
    }

    fn code(&self, table: &Table, scan: &Scan, last: &[u8]) -> [u8; CODE_BYTES] {
        // The key may have any length.
        let mut mac = Hmac::<Sha256>::new_from_slice(&*self.secret).expect("any length of key will do");
        let Scan { over, reverse, filter, .. } = scan;
        mac.update(format!("{} {} {over:?} {reverse} {filter:?}", table.id, table.generation).as_bytes());
        mac.update(&[0]);
        mac.update(last);
        let code = mac.finalize().into_bytes();
        let mut short = [0; CODE_BYTES];
        short.copy_from_slice(&code[..CODE_BYTES]);
        short
    }

    fn token(&self, table: &Table, scan: &Scan, last: &[u8]) -> PageToken {
        PageToken([&self.code(table, scan, last)[..], last].concat())
    }

    fn read_token(&self, table: &Table, scan: &Scan, token: &PageToken) -> Result<Bytes> {
        let (code, last) = token
            .0
            .split_first_chunk::<CODE_BYTES>()
            .ok_or_else(|| Error::invalid("page token", format!("{} bytes, too few", token.0.len())))?;
        let expected = self.code(table, scan, last);
        // All bytes are compared, whichever differ.
        if code.iter().zip(expected).fold(0, |differ, (a, b)| differ | (a ^ b)) != 0 {
            let why = "it is not of this scan, or the table has changed since: begin anew";
            return Err(Error::invalid("page token", why));
        }
        Ok(Bytes::copy_from_slice(last))
    }
}

/// About how much memory a row takes.
fn bytes_of(record: &Record) -> usize {
    let value = |value: &Option<Value>| match value {
        Some(Value::Text(text)) => text.len(),
        Some(Value::Blob(bytes)) => bytes.len(),
        _ => 0,
    };
    record.columns.iter().map(|(name, found)| 64 + name.len() + value(found)).sum()
}

fn refuse_reverse(scan: &Scan) -> Result<()> {
    if scan.reverse {
        return Err(Error::invalid("scan", "only a partition is scanned in reverse; order_by sorts others"));
    }
    Ok(())
}

struct Sorted {
    by: Vec<(Option<Value>, Order)>,
    number: u64,
    record: Record,
}

impl Ord for Sorted {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        for ((a, order), (b, _)) in self.by.iter().zip(&other.by) {
            let by = match (a, b) {
                (Some(a), Some(b)) => a.compare(b).unwrap_or(std::cmp::Ordering::Equal),
                (a, b) => a.is_some().cmp(&b.is_some()),
            };
            let by = if *order == Order::Desc { by.reverse() } else { by };
            if by.is_ne() {
                return by;
            }
        }
        self.number.cmp(&other.number)
    }
}

impl PartialOrd for Sorted {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Sorted {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Sorted {}

/// A page while it is filled.
struct Gathered<'a> {
    table: &'a Table,
    scan: &'a Scan,
    now_ms: u64,
    records: Vec<Record>,
    looked: usize,
    bytes: usize,
}

impl<'a> Gathered<'a> {
    fn new(table: &'a Table, scan: &'a Scan, now_ms: u64) -> Self {
        Self { table, scan, now_ms, records: Vec::new(), looked: 0, bytes: 0 }
    }

    /// How many rows to read next.
    fn step(&self) -> usize {
        let all = self.scan.filter == crate::Filter::always();
        match self.scan.limit {
            0 => STEP,
            limit if all => (limit - self.records.len()).clamp(1, STEP),
            _ => STEP,
        }
    }

    /// Looks at a row; whether the page ends with it.
    fn take(&mut self, place: &Place, bytes: &Bytes) -> Result<bool> {
        let row = decode(self.table, place, bytes)?;
        self.looked += 1;
        if !row.expired(self.now_ms) {
            let whole = record(self.table, place, &row, &[]);
            if self.scan.filter.matches(&whole) {
                self.bytes += place.clustering.len() + bytes.len();
                self.records.push(if self.scan.columns.is_empty() {
                    whole
                } else {
                    record(self.table, place, &row, &self.scan.columns)
                });
            }
        }
        let full = self.scan.limit > 0 && self.records.len() >= self.scan.limit;
        Ok(full || self.looked >= LOOK_MAX || self.bytes >= PAGE_BYTES)
    }
}

/// The range of clustering keys between two bounds on values.
fn bounds(table: &Table, low: Option<&Bound>, high: Option<&Bound>) -> Result<KeyRange> {
    let low = low.map(|bound| cut(table, bound)).transpose()?;
    let high = high.map(|bound| cut(table, bound)).transpose()?;
    if let (Some(low), Some(high)) = (&low, &high)
        && (low.prefix != high.prefix || low.column != high.column)
    {
        let why = "low and high bound must name the same columns, with equal values in all but the last";
        return Err(Error::invalid("bound", why));
    }
    let Some(any) = low.as_ref().or(high.as_ref()) else { return Ok((None, None)) };
    // Rows of the prefix, whose last column is anything.
    let mut start = Some(any.prefix.clone());
    let mut end = after_prefix(&any.prefix);
    let falling = any.order == Order::Desc;
    let (first, last) = if falling { (&high, &low) } else { (&low, &high) };
    if let Some(first) = first {
        // From its first key on if it is included, else from after its last.
        start = if first.inclusive { Some(first.whole.clone()) } else { after_prefix(&first.whole) };
        if start.is_none() {
            start = end.clone();
        }
    }
    if let Some(last) = last {
        let until = if last.inclusive { after_prefix(&last.whole) } else { Some(last.whole.clone()) };
        end = until.or(end);
    }
    Ok((start.map(Bytes::from), end.map(Bytes::from)))
}

/// A bound as bytes: the key of its equal columns, and that with its last.
struct Cut {
    prefix: Vec<u8>,
    whole: Vec<u8>,
    column: u16,
    order: Order,
    inclusive: bool,
}

fn cut(table: &Table, bound: &Bound) -> Result<Cut> {
    if bound.values.is_empty() {
        return Err(Error::invalid("bound", "it names no column"));
    }
    let mut cut =
        Cut { prefix: Vec::new(), whole: Vec::new(), column: 0, order: Order::Asc, inclusive: bound.inclusive };
    for (name, _) in &bound.values {
        let column = table.column(name)?;
        let number = table.clustering_key.iter().position(|(id, _)| *id == column.id);
        if number.is_none_or(|number| number >= bound.values.len()) {
            let why = format!("column {name} is not among the first {} of the clustering key", bound.values.len());
            return Err(Error::invalid("bound", why));
        }
    }
    for (id, order) in table.clustering_key.iter().take(bound.values.len()) {
        let Some(column) = table.column_numbered(*id) else { continue };
        let found = bound.values.iter().find(|(name, _)| *name == column.name);
        let (_, value) = found.ok_or_else(|| Error::invalid("bound", format!("column {} is missing", column.name)))?;
        table.check_value(column, value)?;
        cut.prefix = cut.whole.clone();
        key::push(&mut cut.whole, value, *order);
        (cut.column, cut.order) = (*id, *order);
    }
    Ok(cut)
}
