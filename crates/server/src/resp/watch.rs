//! WATCH: who wants to know that a key changed, and whether it did.
//!
//! WATCH (under the key's stripe) → [`Watches`] ← writers (under the key's stripe, before they commit)
//!
//! Invariants:
//! 1. A writer tells watchers while it holds the stripe that the watcher held when it registered: a watcher that
//!    read the old value is told, before EXEC can get its own lock.
//! 2. EXEC compares what watched keys hold with what WATCH saw: so it finds what another process has changed, which
//!    tells no watcher here, unless that process took it back or changed a hash's field.
//! 3. Writers that take no transaction ask [`Keyspace::blindly`](crate::resp::keyspace::Keyspace::blindly) first, whose
//!    lock a watcher takes to announce itself.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use esker_kv::Entry;
use parking_lot::Mutex;

use crate::resp::config::DATABASES;

/// The flags of those who watch a key.
type Watchers = Vec<Arc<AtomicBool>>;

/// All watched keys of the server.
pub(crate) struct Watches {
    databases: [Mutex<HashMap<Vec<u8>, Watchers>>; DATABASES],
    count: AtomicUsize,
    seeds: RandomState,
}

impl Watches {
    pub(crate) fn new() -> Self {
        Self {
            databases: std::array::from_fn(|_| Mutex::default()),
            count: AtomicUsize::new(0),
            seeds: RandomState::new(),
        }
    }

    /// A digest of what a key holds; of a hash, of its head.
    pub(crate) fn seen(&self, entry: Option<&Entry>) -> u64 {
        self.seeds.hash_one(entry.map(|entry| (entry.tag, entry.expires_ms, &entry.value[..])))
    }

    /// Tells watchers of the key that it changes.
    pub(crate) fn touch(&self, database: u8, key: &[u8]) {
        if self.count.load(Ordering::SeqCst) == 0 {
            return;
        }
        for dirty in self.databases[usize::from(database)].lock().get(key).into_iter().flatten() {
            dirty.store(true, Ordering::SeqCst);
        }
    }

    /// The watched keys of a database.
    pub(crate) fn keys(&self, database: u8) -> Vec<Vec<u8>> {
        if self.count.load(Ordering::SeqCst) == 0 {
            return Vec::new();
        }
        self.databases[usize::from(database)].lock().keys().cloned().collect()
    }

    pub(crate) fn add(&self, database: u8, key: &[u8], dirty: &Arc<AtomicBool>) {
        self.count.fetch_add(1, Ordering::SeqCst);
        self.databases[usize::from(database)].lock().entry(key.to_vec()).or_default().push(Arc::clone(dirty));
    }

    pub(crate) fn remove(&self, database: u8, key: &[u8], dirty: &Arc<AtomicBool>) {
        let mut keys = self.databases[usize::from(database)].lock();
        let Some(watchers) = keys.get_mut(key) else { return };
        let Some(at) = watchers.iter().position(|other| Arc::ptr_eq(other, dirty)) else { return };
        watchers.swap_remove(at);
        if watchers.is_empty() {
            keys.remove(key);
        }
        self.count.fetch_sub(1, Ordering::SeqCst);
    }
}
