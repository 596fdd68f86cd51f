//! Pages: rows gathered until one is full, other orders than the storage's, and tokens to go on with.
//!
//! rows → [`Gathered`] (filter, columns, limits) → page · pages → [`sorted`] · place → [`token`] → place
//!
//! A page ends when it has as many rows as asked for, or has looked at [`LOOK_MAX`] rows or [`PAGE_BYTES`] bytes, so
//! that a filter that lets nothing through does not keep a caller waiting for ever.
//!
//! Invariant: a token is good for the scan that it was made for, and no other: it carries a code over both that only
//! who has the secret can make.

use std::collections::BinaryHeap;

use bytes::Bytes;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::key::Order;
use crate::ops::{Page, PageToken, Scan};
use crate::parts::{RowKey, record};
use crate::record::Record;
use crate::row::Row;
use crate::value::Value;
use crate::{Error, Result, Table};

/// Most rows that one page looks at; one of a partition, whose rows are of one moment, ends earlier.
pub const LOOK_MAX: usize = 65_536;
/// A page ends at about so many bytes.
pub const PAGE_BYTES: usize = 4 << 20;
/// Most rows that are sorted for another order than the storage's; with a limit only that many are kept.
pub const SORT_ROWS_MAX: usize = 1 << 20;
/// Most bytes of the rows that are kept for sorting (256 MiB).
pub const SORT_BYTES_MAX: usize = 256 << 20;
/// Bytes of a token's code.
const CODE_BYTES: usize = 16;

/// A page while it is filled.
pub struct Gathered<'a> {
    table: &'a Table,
    scan: &'a Scan,
    now_ms: u64,
    records: Vec<Record>,
    looked: usize,
    bytes: usize,
}

/// How far a page was filled.
#[derive(Clone, Copy, Debug)]
pub struct Mark {
    records: usize,
    looked: usize,
    bytes: usize,
}

impl<'a> Gathered<'a> {
    /// An empty page; rows that have expired by `now_ms` (unix milliseconds) do not get into it.
    pub fn new(table: &'a Table, scan: &'a Scan, now_ms: u64) -> Self {
        Self { table, scan, now_ms, records: Vec::new(), looked: 0, bytes: 0 }
    }

    /// How many rows to read next: at most `most`.
    pub fn step(&self, most: usize) -> usize {
        match self.scan.limit {
            0 => most,
            limit if self.returns_all() => (limit - self.records.len()).clamp(1, most),
            _ => most,
        }
    }

    /// Whether every row that is looked at is returned, unless it has expired.
    pub fn returns_all(&self) -> bool {
        self.scan.filter == crate::Filter::always()
    }

    /// Looks at a row that takes `bytes` where it is kept; whether the page ends with it.
    pub fn take(&mut self, key: &RowKey, row: &Row, bytes: usize) -> bool {
        self.looked += 1;
        if !row.expired(self.now_ms) {
            let whole = record(self.table, key, row, &[]);
            if self.scan.filter.holds(&|name| whole.get(name).map(|value| value.cloned())) {
                self.bytes += key.clustering.len() + bytes;
                let asked = &self.scan.columns;
                self.records.push(if asked.is_empty() { whole } else { record(self.table, key, row, asked) });
            }
        }
        let full = self.scan.limit > 0 && self.records.len() >= self.scan.limit;
        full || self.looked >= LOOK_MAX || self.bytes >= PAGE_BYTES
    }

    /// How far it is filled.
    pub fn mark(&self) -> Mark {
        Mark { records: self.records.len(), looked: self.looked, bytes: self.bytes }
    }

    /// Gives back what was taken since.
    pub fn back_to(&mut self, mark: Mark) {
        self.records.truncate(mark.records);
        (self.looked, self.bytes) = (mark.looked, mark.bytes);
    }

    /// The rows of the page.
    pub fn into_records(self) -> Vec<Record> {
        self.records
    }
}

/// All rows of a scan with an order of its own, sorted: `next` reads the pages of one without. With a limit only as
/// many rows are kept as are returned.
///
/// # Errors
/// [`Error::Invalid`] if more rows than [`SORT_ROWS_MAX`] would be returned, or beyond [`SORT_BYTES_MAX`]; those of
/// `next`.
pub fn sorted(table: &Table, scan: &Scan, mut next: impl FnMut(&Scan) -> Result<Page>) -> Result<Page> {
    let all = Scan { order_by: Vec::new(), limit: 0, columns: Vec::new(), page: None, ..scan.clone() };
    let keep = if scan.limit == 0 { SORT_ROWS_MAX } else { scan.limit.min(SORT_ROWS_MAX) };
    let mut heap: BinaryHeap<Sorted> = BinaryHeap::new();
    let mut page = None;
    let (mut number, mut bytes) = (0, 0);
    loop {
        let found = next(&Scan { page, ..all.clone() })?;
        for record in found.records {
            let by = scan.order_by.iter().map(|(name, order)| (record.value(name).cloned(), *order)).collect();
            // What is equal stays in the storage's order.
            number += 1;
            bytes += bytes_of(&record);
            heap.push(Sorted { by, number, record });
            if heap.len() > keep {
                if scan.limit == 0 || scan.limit > SORT_ROWS_MAX {
                    let why = format!("more than {SORT_ROWS_MAX} rows to sort (SORT_ROWS_MAX): give a lower limit");
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

fn code(secret: &[u8; 32], table: &Table, scan: &Scan, last: &[u8]) -> [u8; CODE_BYTES] {
    // The key may have any length.
    let mut mac = Hmac::<Sha256>::new_from_slice(secret).expect("any length of key will do");
    let Scan { over, reverse, filter, .. } = scan;
    mac.update(format!("{} {} {over:?} {reverse} {filter:?}", table.id, table.generation).as_bytes());
    mac.update(&[0]);
    mac.update(last);
    let code = mac.finalize().into_bytes();
    let mut short = [0; CODE_BYTES];
    short.copy_from_slice(&code[..CODE_BYTES]);
    short
}

/// The token of a scan that has come to a place, which `last` says to the storage.
pub fn token(secret: &[u8; 32], table: &Table, scan: &Scan, last: &[u8]) -> PageToken {
    PageToken([&code(secret, table, scan, last)[..], last].concat())
}

/// The place that a token says.
///
/// # Errors
/// [`Error::Invalid`] if it is not of this scan of this table as it is.
pub fn read_token(secret: &[u8; 32], table: &Table, scan: &Scan, token: &PageToken) -> Result<Bytes> {
    let (found, last) = token
        .0
        .split_first_chunk::<CODE_BYTES>()
        .ok_or_else(|| Error::invalid("page token", format!("{} bytes, too few", token.0.len())))?;
    let expected = code(secret, table, scan, last);
    // All bytes are compared, whichever differ.
    if found.iter().zip(expected).fold(0, |differ, (a, b)| differ | (a ^ b)) != 0 {
        let why = "it is not of this scan, or the table has changed since: begin anew";
        return Err(Error::invalid("page token", why));
    }
    Ok(Bytes::copy_from_slice(last))
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
