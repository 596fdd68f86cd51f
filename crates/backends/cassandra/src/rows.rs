//! Rows of one partition: read, looked at, and written as one lightweight transaction.
//!
//! keys → rows and the schema's generation, at once → conditions → statements that guard the versions read → applied
//! → not applied (another writer was faster): read again
//! → unknown: read the version, which says whose write it is
//!
//! Invariants:
//! 1. A call writes one version, drawn for it; a row that has it was written by that call, whatever the answer was.
//! 2. A write whose outcome is unknown is sent again only on the versions that it was made for. A copy of it that is
//!    still under way can then be applied only if the second one was not.
//! 3. A deleted row keeps its version for [`Options::forget`](crate::Options::forget), so that a late copy of a write
//!    does not bring it back.

use std::sync::Arc;
use std::time::Duration;

use esker_map::parts::{self, Row, RowKey};
use esker_map::{Error, Mutation, Record, Result, TableName, Value};

use crate::cql::{Cell, Found, Stored};
use crate::link::{Fault, Read};
use crate::storage::{Inner, NAME};

/// How often a list is tried again because another writer was faster.
const ATTEMPTS_MAX: u32 = 1_000;
/// How often it is asked what became of a write, for about ten seconds in all if each attempt fails at once.
const ASKED_MAX: u32 = 24;
/// The longest pause before it is asked again.
const ASK_PAUSE_MAX: Duration = Duration::from_millis(500);
/// Rows read at once.
const AT_ONCE: usize = 64;
/// The last second that Cassandra's expiry knows, in unix time (2038).
const LAST_SECOND: i64 = i32::MAX as i64 - 1;
/// The longest TTL of Cassandra, 20 years.
const TTL_SECONDS_MAX: i64 = 20 * 365 * 86_400;

/// What a row that was deleted holds: it has expired since the beginning of time.
fn deleted() -> Row {
    Row { expires_ms: Some(0), ..Row::default() }
}

/// How long Cassandra keeps a row, in seconds: some time longer than reads show it. 0: for ever.
pub(crate) fn ttl_seconds(expires_ms: Option<u64>, now_ms: u64, forget: Duration) -> i32 {
    let Some(expires_ms) = expires_ms else { return 0 };
    let forget = i64::try_from(forget.as_secs()).unwrap_or(TTL_SECONDS_MAX).max(1);
    let left = expires_ms.saturating_sub(now_ms).div_ceil(1_000);
    let seconds = i64::try_from(left).unwrap_or(i64::MAX).saturating_add(forget);
    let last = LAST_SECOND.saturating_sub(i64::try_from(now_ms / 1_000).unwrap_or(i64::MAX));
    // What it cannot count stays, and reads do not show it.
    if left > 0 && seconds > TTL_SECONDS_MAX.min(last) { 0 } else { seconds.min(TTL_SECONDS_MAX) as i32 }
}

/// A row under mutation.
struct Touched {
    key: RowKey,
    found: Option<Found>,
    now: Option<Row>,
}

pub(crate) fn damaged(stored: &Stored, why: impl Into<String>) -> Error {
    Error::Damaged { what: format!("row of table {}", stored.name()), why: why.into() }
}

/// A read that failed changed nothing.
pub(crate) fn failed_read(fault: Fault) -> Error {
    match fault {
        Fault::Refused(cause) | Fault::Unavailable(cause) | Fault::Unknown(cause) => {
            Error::Unavailable { storage: NAME, cause }
        }
    }
}

impl Inner {
    async fn read_row(&self, stored: &Stored, key: &RowKey, read: Read) -> std::result::Result<Option<Found>, Trouble> {
        let cells = stored.key_cells(key).ok_or_else(|| damaged(stored, "a key of another schema"))?;
        let mut rows = self.link.page(&stored.select_row(), cells, read, 1, None).await.map_err(Trouble::Fault)?.rows;
        let found = rows.pop().map(|cells| stored.decode(cells)).transpose();
        Ok(found.map_err(|why| damaged(stored, why))?)
    }

    /// Reads rows, a few at a time.
    async fn read_rows(
        &self,
        stored: &Stored,
        keys: &[RowKey],
        read: Read,
    ) -> std::result::Result<Vec<Option<Found>>, Trouble> {
        let mut all = Vec::with_capacity(keys.len());
        for some in keys.chunks(AT_ONCE) {
            let reads = some.iter().map(|key| self.read_row(stored, key, read));
            all.extend(futures_util::future::try_join_all(reads).await?);
        }
        Ok(all)
    }

    /// Reads rows by the schema as it is: what was seen last, if the catalogue, asked at the same time, still says so.
    pub async fn current<T>(
        &self,
        name: &TableName,
        mut with: impl AsyncFnMut(&Stored) -> std::result::Result<T, Trouble>,
    ) -> Result<(Arc<Stored>, T)> {
        for _ in 0..ATTEMPTS_MAX {
            let stored = self.seen(name).await?;
            let (generation, result) = tokio::join!(self.generation(name), with(&stored));
            if generation? != Some(stored.table.generation) {
                self.load(name).await?;
                continue;
            }
            return match result {
                Ok(result) => Ok((stored, result)),
                Err(Trouble::Error(error)) => Err(error),
                Err(Trouble::Fault(Fault::Refused(_))) if self.reload(name, &stored).await? => continue,
                Err(Trouble::Fault(fault)) => Err(failed_read(fault)),
            };
        }
        Err(Error::Contended { what: format!("the schema of table {name}"), attempts: ATTEMPTS_MAX })
    }

    pub async fn get(&self, get: &esker_map::Get, read: Read) -> Result<Option<Record>> {
        let with = async |stored: &Stored| {
            let table = &stored.table;
            get.filter.check(table)?;
            get.columns.iter().try_for_each(|name| table.column(name).map(drop))?;
            let key = RowKey::of(table, &get.key)?;
            self.refuse_key(stored, &key)?;
            self.read_row(stored, &key, read).await
        };
        let (stored, found) = self.current(&get.table, with).await?;
        let Some(Found { key, row, .. }) = found else { return Ok(None) };
        let matches = !row.expired(self.now_ms()) && parts::filtered(&stored.table, &key, &get.filter, &row);
        Ok(matches.then(|| parts::record(&stored.table, &key, &row, &get.columns)))
    }

    /// Refuses what Cassandra cannot have in a key.
    pub fn refuse_key(&self, stored: &Stored, key: &RowKey) -> Result<()> {
        let Some((partition, clustering)) = key.values(&stored.table) else {
            return Err(Error::invalid("key", "it is of another schema"));
        };
        if !clustering.iter().all(crate::cql::is_number) {
            return Err(Error::Unsupported { storage: NAME, what: "have not-a-number in a clustering key" });
        }
        self.refuse_partition(&partition)
    }

    /// Refuses a partition key that Cassandra cannot have: a single column that is empty.
    pub fn refuse_partition(&self, partition: &[Value]) -> Result<()> {
        let empty = match partition {
            [Value::Text(text)] => text.is_empty(),
            [Value::Blob(bytes)] => bytes.is_empty(),
            _ => false,
        };
        if empty {
            return Err(Error::Unsupported { storage: NAME, what: "have an empty partition key" });
        }
        Ok(())
    }

    /// Makes the changes of a list, in memory.
    fn evaluate(&self, stored: &Stored, mutations: &[Mutation], places: &[usize], rows: &mut [Touched]) -> Result<()> {
        for (number, (mutation, place)) in mutations.iter().zip(places).enumerate() {
            let touched = &mut rows[*place];
            if !parts::holds(&stored.table, &touched.key, &mutation.condition, touched.now.as_ref()) {
                let record = |row: &Row| Box::new(parts::record(&stored.table, &touched.key, row, &[]));
                let current = touched.now.as_ref().map(record);
                return Err(Error::ConditionFailed { mutation: number, current });
            }
            parts::change(&stored.table, mutation, &mut touched.now)?;
        }
        Ok(())
    }

    fn writes(
        &self,
        stored: &Stored,
        rows: &[Touched],
        version: &[u8],
        now_ms: u64,
    ) -> Result<Vec<(String, Vec<Cell>)>> {
        let cql = stored.update();
        rows.iter()
            .map(|touched| {
                let gone = deleted();
                let now = touched.now.as_ref().unwrap_or(&gone);
                let ttl = ttl_seconds(now.expires_ms, now_ms, self.options.forget);
                let cells = stored
                    .update_cells(&touched.key, touched.found.as_ref(), now, version, ttl)
                    .ok_or_else(|| damaged(stored, "a key of another schema"))?;
                Ok((cql.clone(), cells))
            })
            .collect()
    }

    pub async fn mutate(&self, mutations: &[Mutation]) -> Result<()> {
        let name = &mutations[0].table;
        let version = self.version();
        for attempt in 0..ATTEMPTS_MAX {
            let with = async |stored: &Stored| {
                let mut keys: Vec<RowKey> = Vec::new();
                let mut places = Vec::with_capacity(mutations.len());
                let mut known = std::collections::HashMap::new();
                for mutation in mutations {
                    parts::check_mutation(&stored.table, mutation)?;
                    let key = RowKey::of(&stored.table, &mutation.key)?;
                    self.refuse_key(stored, &key)?;
                    if keys.first().is_some_and(|first| first.partition != key.partition) {
                        let what = "change rows of several partitions at once";
                        return Err(Error::Unsupported { storage: NAME, what }.into());
                    }
                    places.push(*known.entry(key.clone()).or_insert_with(|| {
                        keys.push(key);
                        keys.len() - 1
                    }));
                }
                let found = self.read_rows(stored, &keys, Read::Quorum).await?;
                Ok((keys, places, found))
            };
            let (stored, (keys, places, found)) = match self.current(name, with).await {
                // The schema that was seen may be old.
                Err(Error::Missing { .. } | Error::Invalid { .. }) if attempt == 0 => {
                    self.load(name).await?;
                    continue;
                }
                other => other?,
            };
            if found.iter().flatten().any(|found| found.version.as_deref() == Some(&version)) {
                // An attempt before this one was said to have failed, and was applied after all.
                return Ok(());
            }
            let now_ms = self.now_ms();
            let mut rows: Vec<Touched> = keys
                .into_iter()
                .zip(found)
                .map(|(key, found)| {
                    let now = found.as_ref().map(|found| found.row.clone()).filter(|row| !row.expired(now_ms));
                    Touched { key, found, now }
                })
                .collect();
            let before = rows[0].now.clone();
            self.evaluate(&stored, mutations, &places, &mut rows)?;
            if rows.len() == 1 && rows[0].now == before {
                // The row is as it should be, by one read of it; several need the transaction to tell that they are so
                // together.
                return Ok(());
            }
            self.check_indexed(&stored, &rows)?;
            let writes = self.writes(&stored, &rows, &version, now_ms)?;
            match self.link.conditional(writes.clone()).await {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(Fault::Unknown(cause)) => {
                    tracing::debug!(%name, cause, "a conditional write was not answered");
                    if self.settle(&stored, &rows[0], writes, &version, cause).await? {
                        return Ok(());
                    }
                }
                Err(Fault::Unavailable(cause)) => return Err(Error::Unavailable { storage: NAME, cause }),
                Err(Fault::Refused(cause)) => {
                    if !self.reload(name, &stored).await? {
                        return Err(Error::Unavailable { storage: NAME, cause });
                    }
                }
            }
            self.pause(attempt).await;
        }
        Err(Error::Contended { what: format!("rows of table {name}"), attempts: ATTEMPTS_MAX })
    }

    /// Values that are indexed have a limit, on every storage.
    fn check_indexed(&self, stored: &Stored, rows: &[Touched]) -> Result<()> {
        for index in &stored.table.indexes {
            let values = rows.iter().filter_map(|touched| touched.now.as_ref()?.column(&stored.table, index.column)?);
            for value in values {
                parts::encode_indexed(&value)?;
            }
        }
        Ok(())
    }

    /// Finds out what became of a write: true if it was applied, false if it was not and never will be.
    async fn settle(
        &self,
        stored: &Stored,
        first: &Touched,
        writes: Vec<(String, Vec<Cell>)>,
        version: &[u8],
        mut cause: String,
    ) -> Result<bool> {
        let expected = first.found.as_ref().and_then(|found| found.version.clone());
        let mut dead = false;
        for asked in 0..ASKED_MAX {
            tokio::time::sleep(Duration::from_millis(10 << asked.min(6)).min(ASK_PAUSE_MAX)).await;
            // A serial read finishes what was under way on the servers.
            let found = match self.read_row(stored, &first.key, Read::Serial).await {
                Ok(found) => found.and_then(|found| found.version),
                Err(Trouble::Error(error)) => return Err(error),
                Err(Trouble::Fault(Fault::Refused(said) | Fault::Unavailable(said) | Fault::Unknown(said))) => {
                    cause = said;
                    continue;
                }
            };
            if found.as_deref() == Some(version) {
                return Ok(true);
            }
            if found != expected {
                // Another client wrote after us, or instead of us.
                return Err(Error::Unknown { cause });
            }
            if dead {
                return Ok(false);
            }
            match self.link.conditional(writes.clone()).await {
                Ok(true) => return Ok(true),
                // If the row still has its old version, another row of the list has changed: no copy of it can be
                // applied any more.
                Ok(false) => dead = true,
                Err(Fault::Refused(said) | Fault::Unavailable(said) | Fault::Unknown(said)) => cause = said,
            }
        }
        Err(Error::Unknown { cause })
    }

    /// Waits a little, longer after each attempt, and not as long as others who failed at the same time.
    async fn pause(&self, attempt: u32) {
        let most = 1u64 << attempt.min(6);
        tokio::time::sleep(Duration::from_micros(500 * (1 + self.spread() % most))).await;
    }
}

/// What ends an attempt to read.
pub(crate) enum Trouble {
    Error(Error),
    Fault(Fault),
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cassandra_keeps_a_row_some_time_longer_than_reads_show_it() {
        let hour = Duration::from_secs(3_600);
        let now = 1_700_000_000_000;
        assert_eq!(ttl_seconds(None, now, hour), 0);
        assert_eq!(ttl_seconds(Some(now + 1), now, hour), 3_601);
        assert_eq!(ttl_seconds(Some(now + 10_000), now, hour), 3_610);
        assert_eq!(ttl_seconds(Some(now), now, hour), 3_600);
        assert_eq!(ttl_seconds(deleted().expires_ms, now, hour), 3_600);
        assert_eq!(ttl_seconds(Some(now), now, Duration::ZERO), 1, "0 would be for ever");
        // Past what Cassandra can count.
        assert_eq!(ttl_seconds(Some(u64::MAX), now, hour), 0);
        assert_eq!(ttl_seconds(Some(2_147_483_000_000), now, hour), 0);
    }
}
