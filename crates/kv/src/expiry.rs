//! Expiry: removing what no reader is shown any more, so that it gives back its space.
//!
//! expiry indexes → what is due, oldest first → stripe → entry still has that expiry? → remove both; else the index key
//! only
//!
//! Invariants:
//! 1. The index may hold keys whose entry was since overwritten or removed; they are dropped when their time comes.
//! 2. A removal is guarded by the stored bytes it was decided on: a transaction that writes a key under another
//!    key's stripe loses nothing.
//! 3. Removals are `Applied`: a power cut may bring an expired entry back into the store, but never into an answer.

use bytes::Bytes;
use esker_store::{Completion, Durability, Error, ObjectId, Transaction, due};

use crate::entry::decode;
use crate::{Key, Kind, Kv, Namespace, Result};

/// Index keys looked at per round and namespace.
const ROUND_KEYS: usize = 1_024;
/// Indexes that are asked at once.
const INDEXES_AT_ONCE: usize = 64;

struct Due {
    at_ms: u64,
    namespace: Namespace,
    index: ObjectId,
    key: Bytes,
    entry: Bytes,
}

fn damaged(namespace: &Namespace, key: &str, len: usize) -> Error {
    Error::Corrupt { offset: 0, what: format!("expiry index of namespace {}: {key} of {len} bytes", namespace.name()) }
}

impl Kv {
    /// Removes up to `limit` entries whose time has come, oldest first, and returns how many: fewer than `limit`
    /// only when none is left. Meant to be called now and then by a thread in the background; what it leaves is not
    /// shown either, it only takes room.
    ///
    /// # Errors
    /// The store's; what was removed before stays removed.
    pub fn expire_due(&self, limit: usize) -> Result<usize> {
        let now_ms = self.clock().now_ms();
        let mut removed = 0;
        while removed < limit {
            let round = (limit - removed).min(ROUND_KEYS);
            let due = self.due(now_ms, round)?;
            if due.is_empty() {
                break;
            }
            for due in due.into_iter().take(round) {
                removed += usize::from(self.expire(&due)?);
            }
        }
        Ok(removed)
    }

    fn due(&self, now_ms: u64, limit: usize) -> Result<Vec<Due>> {
        let mut due = Vec::new();
        let store = &**self.store();
        for namespace in self.open_namespaces()? {
            let placement = namespace.placement();
            if !placement.is_parted() && !self.is_whole() {
                // It cannot be changed here.
                continue;
            }
            for indexes in placement.indexes(store, &mut None)?.chunks(INDEXES_AT_ONCE) {
                let begun = indexes.iter().map(|index| placement.due(store, index, now_ms, None, limit)).collect();
                let (pages, _) = Completion::all(begun).into_parts();
                for (index, page) in indexes.iter().zip(pages?) {
                    for entry in page {
                        let split = due::split(&entry);
                        let (at_ms, key) = split.ok_or_else(|| damaged(&namespace, "a key", entry.len()))?;
                        due.push(Due { at_ms, namespace: namespace.clone(), index: index.clone(), key, entry });
                    }
                }
                due.sort_by_key(|due| due.at_ms);
                due.truncate(limit.max(1));
            }
        }
        Ok(due)
    }

    /// Whether an entry was removed, and not just a key of the index.
    fn expire(&self, due: &Due) -> Result<bool> {
        let placement = due.namespace.placement();
        let key = match due.namespace.kind() {
            Kind::Bytes => Key::Bytes(&due.key),
            Kind::Int => {
                let int = due.key[..].try_into().map(u64::from_be_bytes);
                Key::Int(int.map_err(|_| damaged(&due.namespace, "an int key", due.key.len()))?)
            }
        };
        let _held = self.shared().locks.one(due.namespace.stripe(key));
        let (stored, _) = placement.get(&**self.store(), key).into_parts();
        let stored = stored?;
        let matches = match &stored {
            Some(stored) => decode(stored)?.expires_ms == Some(due.at_ms),
            None => false,
        };
        let mut txn = Transaction::with(Durability::Applied);
        placement.guard(&mut txn, key, stored);
        if matches {
            placement.remove(&mut txn, key);
        }
        placement.forget_due(&mut txn, &due.index, &due.entry);
        match self.store().submit(txn).into_parts().0 {
            Ok(_) => Ok(matches),
            // The key was written a moment ago; the next round decides anew.
            Err(Error::GuardFailed { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}
