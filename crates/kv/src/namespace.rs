//! A namespace: the calls on one key, on several, and on all.
//!
//! read: check key → one store read → header off, expired or not
//! blind write: check → encode → stripe → one transaction;   dependent write: stripe → read (applied) → one transaction
//!
//! Invariants:
//! 1. Every changing call is one store transaction (but see [`Namespace::clear`] for huge int namespaces).
//! 2. Dependent writes read the applied half of their read and answer behind its barrier, so that a pipeline of
//!    them needs one sync. They stand under a guard of what they read, and begin anew where another process was faster.
//! 3. A stored entry with an expiry has its key in the expiry index; a writer that rewrites it without reading leaves
//!    the old index key to be dropped when its time comes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use bytes::Bytes;
use esker_store::{
    Barrier, Completion, Compression, Durability, Error, ObjectStore, Result, Transaction, WhenBusy, retried,
};

use crate::catalogue::{self, compression_from_stored, stored_compression};
use crate::entry::{Entry, check_value, decode, decode_owned, encode};
use crate::key::KEY_BYTES_MAX;
use crate::locks::stripe_of;
use crate::many::FIRST_KEYS;
use crate::placement::Placement;
use crate::shared::Shared;
use crate::submit::{Target, cleared_in_part, one_object, submit};
use crate::{Key, Kind, OwnedKey};

/// A set of keys in a [`Kv`](crate::Kv). Cloning costs one reference count.
///
/// Calls return [`Completion`]s: applied when they return, to be shown to others once waited for. Their errors are
/// the store's, and `TooLarge` or `Invalid` for a key or value that this namespace cannot take, or once it was removed.
#[derive(Clone)]
pub struct Namespace(Arc<Inner>);

struct Inner {
    shared: Arc<Shared>,
    name: String,
    kind: Kind,
    seed: u64,
    removed: AtomicBool,
    /// As in the catalogue: see [`stored_compression`].
    compression: AtomicU8,
    placement: Placement,
}

impl std::fmt::Debug for Namespace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Namespace").field("name", &self.0.name).field("kind", &self.0.kind).finish()
    }
}

/// `?` for functions that return a completion: an error is the answer, behind what was read so far.
macro_rules! attempt {
    ($result:expr, $barrier:expr) => {
        match $result {
            Ok(value) => value,
            Err(error) => return Completion::after(Err(error), $barrier),
        }
    };
}

impl Namespace {
    pub(crate) fn new(shared: &Arc<Shared>, name: &str, kind: Kind, placement: Placement) -> Self {
        let seed = placement.seed();
        let (shared, name) = (Arc::clone(shared), name.to_owned());
        let (removed, compression) = (AtomicBool::new(false), AtomicU8::new(0));
        Self(Arc::new(Inner { shared, name, kind, seed, removed, compression, placement }))
    }

    pub(crate) fn set_compression(&self, compression: Compression) {
        self.0.compression.store(stored_compression(compression), Ordering::Relaxed);
    }

    /// An empty transaction with this namespace's hint.
    pub(crate) fn transaction(&self, durability: Durability) -> Transaction {
        let mut txn = Transaction::new();
        self.begin(&mut txn, durability);
        txn
    }

    /// Gives an empty transaction this durability and this namespace's hint.
    fn begin(&self, txn: &mut Transaction, durability: Durability) {
        txn.durability = durability;
        txn.compression = self.compression();
        txn.once = true;
    }

    pub(crate) fn mark_removed(&self) {
        self.0.removed.store(true, Ordering::Release);
    }

    pub(crate) fn placement(&self) -> &Placement {
        &self.0.placement
    }

    pub(crate) fn store(&self) -> &dyn ObjectStore {
        &*self.0.shared.store
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.0.shared
    }

    pub(crate) fn stripe(&self, key: Key<'_>) -> usize {
        stripe_of(self.0.seed, key)
    }

    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    pub(crate) fn check(&self) -> Result<()> {
        if self.0.removed.load(Ordering::Acquire) {
            return Err(catalogue::gone(&self.0.name));
        }
        Ok(())
    }

    /// As what it is written to.
    pub(crate) fn target(&self) -> Target<'_> {
        Target { name: &self.0.name, kind: self.0.kind, placement: &self.0.placement }
    }

    pub(crate) fn check_key(&self, key: Key<'_>) -> Result<()> {
        self.check()?;
        if key.kind() != self.0.kind {
            return Err(self.wrong_kind("key", key.kind()));
        }
        if let Key::Bytes(key) = key
            && key.len() > KEY_BYTES_MAX
        {
            return Err(Error::TooLarge {
                what: "key",
                len: key.len() as u64,
                limit: "esker_kv::KEY_BYTES_MAX",
                max: KEY_BYTES_MAX as u64,
            });
        }
        Ok(())
    }

    pub(crate) fn wrong_kind(&self, what: &'static str, kind: Kind) -> Error {
        catalogue::wrong_kind(&self.0.name, self.0.kind, what, kind)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The kind of its keys.
    pub fn kind(&self) -> Kind {
        self.0.kind
    }

    /// The number of the partition that a byte key is in, and how many bits such numbers have; `None` where the
    /// namespace lies whole, or holds int keys.
    pub fn partition(&self, key: &[u8]) -> Option<(u64, u32)> {
        self.0.placement.partition_bits().map(|bits| (self.0.placement.part_of(Key::Bytes(key)), bits))
    }

    /// The compression that the store is asked for when values are written: see
    /// [`Kv::set_compression`](crate::Kv::set_compression).
    pub fn compression(&self) -> Compression {
        compression_from_stored(self.0.compression.load(Ordering::Relaxed)).unwrap_or_default()
    }

    fn default_durability(&self) -> Durability {
        self.0.shared.default_durability()
    }

    /// The entry if it has not expired; the clock is read only for entries that can.
    fn live(&self, stored: Option<Bytes>) -> Result<Option<Entry>> {
        let Some(stored) = stored else { return Ok(None) };
        let entry = decode_owned(stored)?;
        let expired = entry.expires_ms.is_some_and(|at| at <= self.0.shared.clock.now_ms());
        Ok(if expired { None } else { Some(entry) })
    }

    /// The value of a key.
    pub fn get<'k>(&self, key: impl Into<Key<'k>>) -> Completion<Option<Bytes>> {
        self.found(key.into(), |entry| entry.value)
    }

    /// The value of a key with its expiry and tag.
    pub fn entry<'k>(&self, key: impl Into<Key<'k>>) -> Completion<Option<Entry>> {
        self.found(key.into(), |entry| entry)
    }

    /// What `part` takes of the entry of a key.
    fn found<T: 'static>(&self, key: Key<'_>, part: impl Fn(Entry) -> T + Send + 'static) -> Completion<Option<T>> {
        attempt!(self.check_key(key), None);
        let found = self.0.placement.get(self.store(), key);
        if found.is_here() {
            let (stored, barrier) = found.into_parts();
            return Completion::after(stored.and_then(|stored| Ok(self.live(stored)?.map(part))), barrier);
        }
        let own = self.clone();
        found.then(move |stored| Ok(own.live(stored?)?.map(part)))
    }

    /// Whether the key is there.
    pub fn has<'k>(&self, key: impl Into<Key<'k>>) -> Completion<bool> {
        self.entry(key).map(|entry| entry.is_some())
    }

    /// See [`Kv::will_get`](crate::Kv::will_get). Keys that the namespace cannot hold are passed over.
    pub(crate) fn will_get(&self, keys: &[Key<'_>]) {
        self.0.placement.will_get(self.store(), self.0.kind, keys);
    }

    /// The values of several keys, at one moment; of keys in several ranges or partitions, as far as other processes do
    /// not write meanwhile. Those that are not in memory are read at the same time; of partitions, in a few turns. All
    /// values together have [`GET_MANY_BYTES_MAX`](esker_store::limits::GET_MANY_BYTES_MAX) at most, else the answer
    /// is `TooLarge`.
    pub fn get_many(&self, keys: &[Key<'_>]) -> Completion<Vec<Option<Bytes>>> {
        self.entries(keys).map(|entries| entries.into_iter().map(|entry| entry.map(|entry| entry.value)).collect())
    }

    /// As [`Namespace::get_many`], with expiries and tags.
    pub fn entries(&self, keys: &[Key<'_>]) -> Completion<Vec<Option<Entry>>> {
        for key in keys {
            attempt!(self.check_key(*key), None);
        }
        // The store answers for one object at one moment; where keys are in several, writers are kept out instead.
        let part = |key: &Key<'_>| self.0.placement.part_of(*key);
        let several = keys.windows(2).any(|pair| part(&pair[0]) != part(&pair[1]));
        let held = several.then(|| self.0.shared.locks.many(keys.iter().map(|key| self.stripe(*key))));
        let found = self.get_stored(keys);
        if held.is_some() || found.is_here() {
            let (stored, barrier) = found.into_parts();
            drop(held);
            return Completion::after(stored.and_then(|stored| self.all_live(stored)), barrier);
        }
        let own = self.clone();
        found.then(move |stored| own.all_live(stored?))
    }

    /// What is stored under several keys, live or expired.
    pub(crate) fn get_stored(&self, keys: &[Key<'_>]) -> Completion<Vec<Option<Bytes>>> {
        self.0.placement.get_many(&self.0.shared.store, self.0.kind, keys, FIRST_KEYS)
    }

    /// The same of keys that are owned, whose memory is shared.
    pub(crate) fn get_stored_of<'k>(&self, keys: impl Iterator<Item = &'k OwnedKey>) -> Completion<Vec<Option<Bytes>>> {
        self.0.placement.get_owned(&self.0.shared.store, self.0.kind, keys)
    }

    /// Whether something is stored under several keys, live or expired.
    pub(crate) fn are_stored<'k>(&self, keys: impl Iterator<Item = &'k OwnedKey>) -> Completion<Vec<bool>> {
        self.0.placement.has_owned(&self.0.shared.store, self.0.kind, keys)
    }

    fn all_live(&self, stored: Vec<Option<Bytes>>) -> Result<Vec<Option<Entry>>> {
        stored.into_iter().map(|stored| self.live(stored)).collect()
    }

    /// Writes a value, without expiry and with tag 0, whatever was there.
    pub fn put<'k>(&self, key: impl Into<Key<'k>>, value: impl AsRef<[u8]>) -> Completion<()> {
        self.put_when(key, value, WhenBusy::Wait)
    }

    /// As [`Namespace::put`], and what is done where the store has no room now. With [`WhenBusy::Refuse`] the error is
    /// `Busy`, and [`Kv::room`](crate::Kv::room) what to await.
    pub fn put_when<'k>(
        &self,
        key: impl Into<Key<'k>>,
        value: impl AsRef<[u8]>,
        when_busy: WhenBusy,
    ) -> Completion<()> {
        let value = value.as_ref();
        self.write(key.into(), || encode(value, None, 0), None, self.default_durability(), when_busy)
    }

    /// Writes an entry, whatever was there.
    pub fn put_with<'k>(&self, key: impl Into<Key<'k>>, entry: Entry, durability: Durability) -> Completion<()> {
        self.write(key.into(), || entry.encode(), entry.expires_ms, durability, WhenBusy::Wait)
    }

    fn write(
        &self,
        key: Key<'_>,
        stored: impl Fn() -> Result<Bytes>,
        expires_ms: Option<u64>,
        durability: Durability,
        when_busy: WhenBusy,
    ) -> Completion<()> {
        attempt!(self.check_key(key), None);
        let inner = &*self.0;
        let _held = inner.shared.locks.one(self.stripe(key));
        let build = |txn: &mut Transaction| {
            self.begin(txn, durability);
            txn.when_busy = when_busy;
            inner.placement.set(txn, key, stored()?);
            if let Some(at) = expires_ms {
                inner.placement.index_set(txn, key, at);
            }
            Ok(())
        };
        submit(&inner.shared, &[self.target()], build).map(|_| ())
    }

    /// Reads the entry under the stripe of `key`, lets `decide` say what becomes of it, and does that; again if another
    /// process changed the entry meanwhile.
    ///
    /// `decide` is given the live entry. `None` changes nothing and answers false.
    fn modify(
        &self,
        key: Key<'_>,
        durability: Durability,
        decide: impl Fn(Option<Entry>) -> Option<Become>,
    ) -> Completion<bool> {
        attempt!(self.check_key(key), None);
        let _held = self.0.shared.locks.one(self.stripe(key));
        retried(|| format!("a key of namespace {}", self.0.name), || self.modify_once(key, durability, &decide))
    }

    fn modify_once(
        &self,
        key: Key<'_>,
        durability: Durability,
        decide: impl Fn(Option<Entry>) -> Option<Become>,
    ) -> Completion<bool> {
        let placement = &self.0.placement;
        let (stored, barrier) = placement.get(self.store(), key).into_parts();
        let stored = attempt!(stored, barrier);
        let old = attempt!(stored.as_ref().map(decode).transpose(), barrier);
        let old_expiry = old.as_ref().and_then(|entry| entry.expires_ms);
        let expired = old_expiry.is_some_and(|at| at <= self.0.shared.clock.now_ms());
        let Some(new) = decide(old.filter(|_| !expired)) else {
            return Completion::after(Ok(false), barrier);
        };
        let build = |txn: &mut Transaction| {
            self.begin(txn, durability);
            placement.guard(txn, key, stored.clone());
            let new_expiry = match &new {
                Become::Gone => {
                    placement.remove(txn, key);
                    None
                }
                Become::Entry(entry) => {
                    placement.set(txn, key, entry.encode()?);
                    entry.expires_ms
                }
            };
            placement.index_replace(txn, key, old_expiry, new_expiry);
            Ok(())
        };
        submit(&self.0.shared, &[self.target()], build).map(|_| true).behind(barrier)
    }

    /// Removes a key, and says whether it was there.
    pub fn remove<'k>(&self, key: impl Into<Key<'k>>) -> Completion<bool> {
        self.remove_with(key, self.default_durability())
    }

    /// [`Namespace::remove`] with this durability.
    pub fn remove_with<'k>(&self, key: impl Into<Key<'k>>, durability: Durability) -> Completion<bool> {
        self.modify(key.into(), durability, |old| old.map(|_| Become::Gone))
    }

    /// Writes a value, if the key is absent, and says whether it did.
    pub fn add<'k>(&self, key: impl Into<Key<'k>>, value: Bytes) -> Completion<bool> {
        self.add_with(key, Entry::new(value), self.default_durability())
    }

    /// [`Namespace::add`] of an entry with this durability.
    pub fn add_with<'k>(&self, key: impl Into<Key<'k>>, entry: Entry, durability: Durability) -> Completion<bool> {
        attempt!(check_value(&entry.value), None);
        self.modify(key.into(), durability, |old| match old {
            Some(_) => None,
            None => Some(Become::Entry(entry.clone())),
        })
    }

    /// Writes a value, if the key is present, keeping expiry and tag, and says whether it did.
    pub fn update<'k>(&self, key: impl Into<Key<'k>>, value: Bytes) -> Completion<bool> {
        self.update_with(key, value, self.default_durability())
    }

    /// [`Namespace::update`] with this durability.
    pub fn update_with<'k>(&self, key: impl Into<Key<'k>>, value: Bytes, durability: Durability) -> Completion<bool> {
        attempt!(check_value(&value), None);
        self.modify(key.into(), durability, |old| old.map(|old| Become::Entry(Entry { value: value.clone(), ..old })))
    }

    /// Writes a value, if the present one is `expected` (`None`: if the key is absent), keeping expiry and tag, and
    /// says whether it did.
    pub fn compare_and_set<'k>(
        &self,
        key: impl Into<Key<'k>>,
        expected: Option<&[u8]>,
        value: Bytes,
    ) -> Completion<bool> {
        self.compare_and_set_with(key, expected, value, self.default_durability())
    }

    /// [`Namespace::compare_and_set`] with this durability.
    pub fn compare_and_set_with<'k>(
        &self,
        key: impl Into<Key<'k>>,
        expected: Option<&[u8]>,
        value: Bytes,
        durability: Durability,
    ) -> Completion<bool> {
        attempt!(check_value(&value), None);
        self.modify(key.into(), durability, |old| {
            if old.as_ref().map(|old| &old.value[..]) != expected {
                return None;
            }
            Some(Become::Entry(Entry { value: value.clone(), ..old.unwrap_or_default() }))
        })
    }

    /// Sets when the key expires (unix milliseconds; `None`: never), and says whether it was there. A time that has
    /// come already hides it at once.
    pub fn expire_at<'k>(&self, key: impl Into<Key<'k>>, expires_ms: Option<u64>) -> Completion<bool> {
        self.expire_at_with(key, expires_ms, self.default_durability())
    }

    /// [`Namespace::expire_at`] with this durability.
    pub fn expire_at_with<'k>(
        &self,
        key: impl Into<Key<'k>>,
        expires_ms: Option<u64>,
        durability: Durability,
    ) -> Completion<bool> {
        self.modify(key.into(), durability, |old| old.map(|old| Become::Entry(old.expiring(expires_ms))))
    }

    /// Writes several values, without expiry, all or none; of one key given twice the last counts.
    pub fn put_many(&self, entries: &[(Key<'_>, Bytes)]) -> Completion<()> {
        self.put_many_with(entries, self.default_durability())
    }

    /// [`Namespace::put_many`] with this durability.
    pub fn put_many_with(&self, entries: &[(Key<'_>, Bytes)], durability: Durability) -> Completion<()> {
        let mut encoded = Vec::with_capacity(entries.len());
        for (key, value) in entries {
            attempt!(self.check_key(*key), None);
            encoded.push(attempt!(encode(value, None, 0), None));
        }
        if entries.is_empty() {
            return Completion::ready(Ok(()));
        }
        let _held = self.0.shared.locks.many(entries.iter().map(|(key, _)| self.stripe(*key)));
        let build = |txn: &mut Transaction| {
            self.begin(txn, durability);
            for ((key, _), stored) in entries.iter().zip(&encoded) {
                self.0.placement.set(txn, *key, stored.clone());
            }
            Ok(())
        };
        submit(&self.0.shared, &[self.target()], build).map(|_| ())
    }

    /// Removes several keys, all or none, and says how many were there. One that another process meanwhile replaces by
    /// an entry that is past its expiry counts.
    pub fn remove_many(&self, keys: &[Key<'_>]) -> Completion<u64> {
        self.remove_many_with(keys, self.default_durability())
    }

    /// [`Namespace::remove_many`] with this durability.
    pub fn remove_many_with(&self, keys: &[Key<'_>], durability: Durability) -> Completion<u64> {
        for key in keys {
            attempt!(self.check_key(*key), None);
        }
        let mut keys: Vec<OwnedKey> = keys.iter().map(|key| key.to_owned_key()).collect();
        keys.sort_unstable();
        keys.dedup();
        let keys: Vec<Key<'_>> = keys.iter().map(OwnedKey::as_key).collect();
        let _held = self.0.shared.locks.many(keys.iter().map(|key| self.stripe(*key)));
        retried(|| format!("keys of namespace {}", self.0.name), || self.remove_once(&keys, durability))
    }

    fn remove_once(&self, keys: &[Key<'_>], durability: Durability) -> Completion<u64> {
        let placement = &self.0.placement;
        let (stored, mut barrier) = self.get_stored(keys).into_parts();
        let at_once = !matches!(stored, Err(Error::TooLarge { .. }));
        let stored = match stored {
            // Each is read by itself; what is found stands under guards.
            Err(Error::TooLarge { .. }) => keys
                .iter()
                .map(|key| placement.get(self.store(), *key).applied(&mut barrier))
                .collect::<Result<Vec<_>>>(),
            stored => stored,
        };
        let stored = attempt!(stored, barrier);
        let now_ms = self.0.shared.clock.now_ms();
        let mut txn = self.transaction(durability);
        let mut removed = 0;
        for (key, stored) in keys.iter().zip(stored) {
            let Some(stored) = stored else {
                // What is counted is of one moment: no writer has put it meanwhile.
                placement.guard(&mut txn, *key, None);
                continue;
            };
            let entry = attempt!(decode(&stored), barrier);
            let expired = entry.is_expired(now_ms);
            removed += u64::from(!expired);
            if expired {
                placement.guard(&mut txn, *key, Some(stored.clone()));
            } else {
                // Whatever its value is by then, it is there, and goes.
                placement.guard_present(&mut txn, *key);
            }
            placement.remove(&mut txn, *key);
            if let Some(at) = entry.expires_ms {
                placement.index_remove(&mut txn, *key, at);
            }
        }
        if txn.ops.is_empty() {
            // In one object all of them were absent when they were read; in several, at different moments.
            if at_once && txn.guards.windows(2).all(|pair| pair[0].object == pair[1].object) {
                return Completion::after(Ok(0), barrier);
            }
            txn.durability = Durability::Applied;
        }
        if placement.is_parted() {
            attempt!(one_object(self.shared(), &txn), barrier);
        }
        self.store().submit(txn).map(move |_| removed).behind(barrier)
    }

    /// How many entries are stored: exact, with those that have expired and were not removed yet.
    pub fn len(&self) -> Completion<u64> {
        attempt!(self.check(), None);
        let (len, barrier) = self.0.placement.len(self.store(), self.0.kind);
        Completion::after(len, barrier)
    }

    /// Whether [`Namespace::len`] is 0.
    pub fn is_empty(&self) -> Completion<bool> {
        self.len().map(|len| len == 0)
    }

    /// Removes all entries. One transaction, unless it is an int namespace of over 100,000 ranges (fewer on a small
    /// store): then several, which other calls of this process do not see between, but other processes and a power cut
    /// may. In partitions, one for each.
    ///
    /// The error is the store's, and nothing was removed then; `Unknown` where some partitions are cleared and the
    /// others are not: clearing again does the rest.
    pub fn clear(&self) -> Completion<()> {
        self.clear_with(self.default_durability())
    }

    /// [`Namespace::clear`] with this durability.
    pub fn clear_with(&self, durability: Durability) -> Completion<()> {
        attempt!(self.check(), None);
        let _held = self.0.shared.locks.all();
        retried(
            || format!("the ranges of namespace {}", self.0.name),
            || {
                let mut barrier = None;
                let done = self.clear_once(durability, &mut barrier);
                Completion::after(done, barrier)
            },
        )
    }

    /// Clears each object of a namespace in partitions.
    fn clear_parts(&self, durability: Durability, barrier: &mut Option<Barrier>) -> Result<()> {
        let (placement, store) = (&self.0.placement, self.store());
        let objects = placement.objects(store, self.0.kind, barrier)?;
        for (done, object) in objects.iter().enumerate() {
            let mut txn = Transaction::with(durability);
            placement.clear(&mut txn, std::slice::from_ref(object));
            let cleared = store.submit(txn).applied(barrier);
            cleared.map_err(|error| cleared_in_part(&[&self.0.name], done, objects.len(), error))?;
        }
        Ok(())
    }

    fn clear_once(&self, durability: Durability, barrier: &mut Option<Barrier>) -> Result<()> {
        let (placement, store) = (&self.0.placement, self.store());
        if placement.is_parted() {
            return self.clear_parts(durability, barrier);
        }
        placement.forget_made();
        // Counted before they are listed: an object that is made meanwhile may hold what was written before this call.
        let made = match self.0.kind {
            Kind::Int => Some(catalogue::ranges_made(store, &self.0.name).applied(barrier)?),
            Kind::Bytes => None,
        };
        let most = objects_max(store, &self.0.name);
        let objects = placement.objects(store, self.0.kind, barrier)?;
        let mut whole = Transaction::with(durability);
        placement.clear(&mut whole, &objects);
        let mut ops = whole.ops.into_iter();
        loop {
            let mut part = Transaction::with(durability).once();
            part.guards.extend(made.map(|made| catalogue::none_made(&self.0.name, made)));
            part.ops.extend(ops.by_ref().take(most));
            store.submit(part).applied(barrier)?;
            if ops.len() == 0 {
                return Ok(());
            }
        }
    }
}

/// What becomes of an entry.
enum Become {
    Gone,
    Entry(Entry),
}

/// Objects that one transaction clears or removes, at most.
const OBJECTS_MAX: usize = 100_000;
/// Bytes that an operation takes beside the object's name, more or less.
const OPERATION_BYTES: u64 = 128;

/// How many objects of a namespace this store clears or removes in one transaction.
pub(crate) fn objects_max(store: &dyn ObjectStore, name: &str) -> usize {
    let bytes = store.capability().transaction_bytes_max / (OPERATION_BYTES + name.len() as u64);
    (bytes as usize).clamp(16, OBJECTS_MAX)
}
