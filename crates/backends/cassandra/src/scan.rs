//! Scans on Cassandra: a SELECT, read part by part, filtered here.
//!
//! scan → SELECT … WHERE → part of the rows → [`Gathered`] → page; a page that ends inside a part is read again so that
//! it ends with one
//!
//! Where a scan goes on is Cassandra's own paging state, which says a key: it outlives rows that go, servers that
//! restart and the process. A page of ours therefore always ends where a part of Cassandra's does.
//!
//! Invariants:
//! 1. At most one part is in memory beside the page; its size follows the rows' length, so that it stays about
//!    [`PAGE_BYTES`].
//! 2. No row is skipped or shown twice between pages, whatever is written meanwhile.

use esker_map::parts::{self, Between, Gathered};
use esker_map::{Error, Over, PAGE_BYTES, Page, Result, Scan};

use crate::cql::{Cell, Found, Stored, is_number, set, to_cql};
use crate::link::{Read, Rows};
use crate::rows::{Trouble, damaged};
use crate::storage::{Inner, NAME};

/// Rows of the first part.
const STEP_FIRST: usize = 64;
/// Most rows of a part.
const STEP_MAX: usize = 1_024;

/// How many rows to read after a part with so many rows and bytes.
fn step(rows: usize, bytes: usize) -> usize {
    let each = (bytes / rows.max(1)).max(1);
    (PAGE_BYTES / each).clamp(1, STEP_MAX)
}

impl Inner {
    fn statement(&self, stored: &Stored, scan: &Scan) -> Result<(String, Vec<Cell>)> {
        let table = &stored.table;
        Ok(match &scan.over {
            Over::Partition { key, low, high } => {
                let between = Between::of(table, low.as_ref(), high.as_ref())?;
                let partition = parts::encode_partition(table, key)?;
                let values = parts::decode_partition(table, &partition)
                    .ok_or_else(|| Error::invalid("partition key", "it is of another schema"))?;
                self.refuse_partition(&values)?;
                let bounds = [&between.low, &between.high];
                let mut named = between.equal.iter().chain(bounds.into_iter().flatten().map(|(value, _)| value));
                if !named.all(is_number) {
                    return Err(Error::Unsupported { storage: NAME, what: "have not-a-number in a bound" });
                }
                stored.select_partition(&values, &between, scan.reverse)
            }
            Over::Index(name, value) => {
                let (column, _) = parts::indexed(table, name, value)?;
                parts::encode_indexed(value)?;
                (stored.select_indexed(column.id), vec![set(to_cql(value))])
            }
            Over::All => (stored.select_all(), Vec::new()),
        })
    }

    /// A page of a scan by a schema that is known.
    async fn page_of(&self, stored: &Stored, scan: &Scan, read: Read) -> std::result::Result<Page, Trouble> {
        parts::check_scan(&stored.table, scan)?;
        let (cql, cells) = self.statement(stored, scan)?;
        // Only reads of one partition can be serial.
        let read =
            if read == Read::Serial && !matches!(scan.over, Over::Partition { .. }) { Read::Quorum } else { read };
        let token = scan.page.as_ref().map(|token| parts::read_token(&self.secret, &stored.table, scan, token));
        let mut from = token.transpose()?.map(|place| place.to_vec());
        let mut gathered = Gathered::new(&stored.table, scan, self.now_ms());
        let mut size = gathered.step(STEP_FIRST);
        loop {
            let part = self.link.page(&cql, cells.clone(), read, size, from.as_deref());
            let Rows { rows, next } = part.await.map_err(Trouble::Fault)?;
            let mark = gathered.mark();
            let (count, mut bytes) = (rows.len(), 0);
            let mut end = None;
            for (number, cells) in rows.into_iter().enumerate() {
                let found = stored.decode(cells).map_err(|why| damaged(stored, why))?;
                bytes += found.bytes;
                if stands_for(stored, scan, &found) && gathered.take(&found.key, &found.row, found.bytes) {
                    end = Some(number + 1);
                    break;
                }
            }
            match end {
                Some(end) if end < count => {
                    gathered.back_to(mark);
                    size = end;
                    continue;
                }
                Some(_) => {
                    let next = next.map(|place| parts::token(&self.secret, &stored.table, scan, &place));
                    return Ok(Page { records: gathered.into_records(), next });
                }
                None if next.is_none() => return Ok(Page { records: gathered.into_records(), next: None }),
                None => from = next,
            }
            size = gathered.step(step(count, bytes));
        }
    }

    /// A page of a scan.
    pub async fn scan(&self, scan: &Scan, read: Read) -> Result<Page> {
        let (_, page) = self.current(&scan.table, async |stored| self.page_of(stored, scan, read).await).await?;
        Ok(page)
    }
}

/// What an index found is looked at again: it takes all values that are no number for one.
fn stands_for(stored: &Stored, scan: &Scan, found: &Found) -> bool {
    let Over::Index(name, value) = &scan.over else { return true };
    let column = stored.table.column(name).ok();
    column.and_then(|column| found.row.column(&stored.table, column.id)).flatten().as_ref() == Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_as_long_as_memory_allows() {
        assert_eq!(step(64, 64 * 100), STEP_MAX);
        assert_eq!(step(64, 64 << 20), 4);
        assert_eq!(step(1, 100 << 20), 1);
        assert_eq!(step(0, 0), STEP_MAX);
    }
}
