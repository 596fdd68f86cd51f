//! Positions of consumers, kept with the log: where to go on.
//!
//! Invariant: a consumer's position only changes by its own calls; the log does not look at it (trimming does not wait
//! for consumers).

use bytes::Bytes;
use esker_store::{Change, Condition, OmapScan, Transaction, prefix, submit_guarded};

use crate::format::{self, LABEL, number, number_from};
use crate::log::Log;
use crate::{Error, Result};

impl Log {
    /// Notes where `consumer` goes on, as durably as the store's commit policy says.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a bad name; [`Error::NoLog`] if the log was deleted; the store's.
    pub fn set_consumer(&self, consumer: &str, position: u64) -> Result<()> {
        format::check_name("consumer", consumer, LABEL)?;
        let change = Change::OmapSet { key: format::consumer_key(consumer), value: number(position) };
        self.change_head(change)
    }

    /// Forgets a consumer.
    ///
    /// # Errors
    /// As [`Log::set_consumer`].
    pub fn remove_consumer(&self, consumer: &str) -> Result<()> {
        self.change_head(Change::OmapRemove { key: format::consumer_key(consumer) })
    }

    fn change_head(&self, change: Change) -> Result<()> {
        let head = format::head(self.inner.id);
        // What all consumers have seen may be trimmed.
        let txn = Transaction::new().giving_back().guard(&head, Condition::Exists).change(&head, change);
        match submit_guarded(self.store(), txn)? {
            None => Ok(()),
            Some(_) => Err(Error::NoLog { name: self.inner.name.clone() }),
        }
    }

    /// Where `consumer` goes on.
    ///
    /// # Errors
    /// The store's.
    pub fn consumer(&self, consumer: &str) -> Result<Option<u64>> {
        let found = self.store().omap_get(&format::head(self.inner.id), &format::consumer_key(consumer)).wait()?;
        Ok(found.as_deref().and_then(number_from))
    }

    /// All consumers with their positions, by name.
    ///
    /// # Errors
    /// The store's.
    pub fn consumers(&self) -> Result<Vec<(String, u64)>> {
        let read = |(key, value): (Bytes, Bytes)| {
            Some((String::from_utf8_lossy(&key[1..]).into_owned(), number_from(&value)?))
        };
        let found = prefix::omap(self.store(), &format::head(self.inner.id), OmapScan::of(b"c"));
        found.filter_map(|entry| entry.map(read).transpose()).map(|read| Ok(read?)).collect()
    }
}
