//! What of a scan's keys is due: who walks over keys alone learns from the expiry index which of them to read.
//!
//! objects of a page → their indexes, a few at once → [`DueKeys`], for a while → of the keys of pages, those that
//! are gone
//!
//! Invariants:
//! 1. An index is looked at for the objects that a page reads, and no other is: a walk over many ranges looks at each
//!    once, when it comes there.
//! 2. A look is good for [`DUE_FOR_MS`] from its end on, so that a slow one is not made anew for each page.

use std::collections::HashSet;

use bytes::Bytes;
use esker_store::{Barrier, Completion, Error, ObjectId, Result, due};

use crate::entry::decode;
use crate::{Key, Kind, Namespace, OwnedKey};

/// With more keys that are due and not removed yet, a scan of keys alone reads all values.
const DUE_KEYS_MAX: usize = 1_024;
/// A walk goes by what was due for so many milliseconds, and then looks again.
const DUE_FOR_MS: u64 = 1_000;
/// Indexes that are asked at once.
const INDEXES_AT_ONCE: usize = 64;
/// Places that each of several indexes is asked for, at least.
const PLACES_MIN: usize = 32;

/// The keys that the expiry indexes of some objects said to be due, at a moment.
pub(crate) struct DueKeys {
    indexes: Vec<ObjectId>,
    /// The moment.
    now_ms: u64,
    /// The time when they had said so.
    looked_ms: u64,
    /// `None` if they are very many.
    keys: Option<HashSet<OwnedKey>>,
}

impl DueKeys {
    /// Looks at the indexes of these objects, for what is due at `now_ms` (the clock's reading if `None`).
    pub(crate) fn look(
        namespace: &Namespace,
        objects: &[ObjectId],
        now_ms: Option<u64>,
        barrier: &mut Option<Barrier>,
    ) -> Result<Self> {
        let time = || now_ms.unwrap_or_else(|| namespace.shared().clock.now_ms());
        let (indexes, now_ms) = (namespace.placement().indexes_of(objects), time());
        let keys = due_keys(namespace, &indexes, now_ms, barrier)?;
        Ok(Self { indexes, now_ms, looked_ms: time(), keys })
    }

    /// Whether it says still what is due of these objects.
    pub(crate) fn holds(&self, namespace: &Namespace, objects: &[ObjectId], now_ms: Option<u64>) -> bool {
        let covers = match namespace.placement().is_parted() {
            true => objects.iter().all(|object| self.indexes.contains(object)),
            false => true,
        };
        let time = || now_ms.unwrap_or_else(|| namespace.shared().clock.now_ms());
        covers && time().abs_diff(self.looked_ms) <= DUE_FOR_MS
    }

    /// Whether the keys that are due are few enough to be known.
    pub(crate) fn is_known(&self) -> bool {
        self.keys.is_some()
    }

    /// Those of the keys that are due and have expired, or are not there any more.
    pub(crate) fn gone<'k>(
        &self,
        namespace: &Namespace,
        keys: impl Iterator<Item = &'k OwnedKey>,
        barrier: &mut Option<Barrier>,
    ) -> Result<HashSet<OwnedKey>> {
        let mut gone = HashSet::new();
        let Some(due) = &self.keys else { return Ok(gone) };
        let doubtful: Vec<&OwnedKey> = keys.filter(|key| due.contains(*key)).collect();
        if doubtful.is_empty() {
            return Ok(gone);
        }
        let mut judge = |key: &OwnedKey, stored: Option<Bytes>| -> Result<()> {
            let entry = stored.map(|stored| decode(&stored)).transpose()?;
            if entry.is_none_or(|entry| entry.is_expired(self.now_ms)) {
                gone.insert(key.clone());
            }
            Ok(())
        };
        let asked: Vec<Key<'_>> = doubtful.iter().map(|key| key.as_key()).collect();
        match namespace.get_stored(&asked).applied(barrier) {
            // What stands before the values is wanted only: each is read by itself, and let go of.
            Err(Error::TooLarge { .. }) => {
                for key in doubtful {
                    let stored = namespace.placement().get(namespace.store(), key.as_key()).applied(barrier)?;
                    judge(key, stored)?;
                }
            }
            stored => {
                for (key, stored) in doubtful.into_iter().zip(stored?) {
                    judge(key, stored)?;
                }
            }
        }
        Ok(gone)
    }
}

/// The keys that the indexes say to have expired by now: some of them may have been given more time since. `None` if
/// there are more than [`DUE_KEYS_MAX`].
fn due_keys(
    namespace: &Namespace,
    indexes: &[ObjectId],
    now_ms: u64,
    barrier: &mut Option<Barrier>,
) -> Result<Option<HashSet<OwnedKey>>> {
    let (store, placement) = (namespace.store(), namespace.placement());
    let mut found = Vec::new();
    for indexes in indexes.chunks(INDEXES_AT_ONCE) {
        // Again behind the last of each, until there is none: an answer may be short.
        let mut open: Vec<(&ObjectId, Option<Bytes>)> = indexes.iter().map(|index| (index, None)).collect();
        while !open.is_empty() {
            let wanted = DUE_KEYS_MAX + 1 - found.len();
            let limit = wanted.min(wanted.div_ceil(open.len()).max(PLACES_MIN));
            let begun = open.iter().map(|(index, after)| placement.due(store, index, now_ms, after.as_ref(), limit));
            let pages = Completion::all(begun.collect()).applied(barrier)?;
            for ((_, after), page) in open.iter_mut().zip(&pages) {
                *after = page.last().cloned();
            }
            open.retain(|(_, after)| after.is_some());
            found.extend(pages.into_iter().flatten());
            if found.len() > DUE_KEYS_MAX {
                return Ok(None);
            }
        }
    }
    let key = |place: Bytes| {
        let (_, key) = due::split(&place)?;
        match namespace.kind() {
            // What is not a number belongs to no key; checking the store finds it.
            Kind::Int => key[..].try_into().ok().map(|key| OwnedKey::Int(u64::from_be_bytes(key))),
            Kind::Bytes => Some(OwnedKey::Bytes(key)),
        }
    };
    Ok(Some(found.into_iter().filter_map(key).collect()))
}
