//! Tests of the key-value face on the memory backend, one file per promise or group of calls.
//!
//! Every test makes its own store with [`fresh`]; those that restart open a second `Kv` on the same store.

#![allow(missing_docs, clippy::unwrap_used)]

mod barriers;
mod calls;
mod compression;
mod expiry;
mod limits;
mod model;
mod races;
mod scans;
mod several;
mod slow;
mod transactions;

use std::sync::Arc;

use bytes::Bytes;
use esker_kv::{Key, Kind, Kv, ManualClock, Namespace, OwnedKey};
use esker_memory::MemoryStore;
use esker_store::ObjectStore;

/// Where the clock of [`fresh`] stands.
pub const NOON_MS: u64 = 1_700_000_000_000;

pub struct Fresh {
    pub kv: Kv,
    pub clock: Arc<ManualClock>,
    pub store: Arc<dyn ObjectStore>,
}

pub fn fresh() -> Fresh {
    let clock = Arc::new(ManualClock::new(NOON_MS));
    let store: Arc<dyn ObjectStore> = Arc::new(MemoryStore::new());
    Fresh { kv: Kv::open(store.clone(), clock.clone()).unwrap(), clock, store }
}

impl Fresh {
    /// A second face on the same store and clock, as after a restart.
    pub fn reopen(&mut self) {
        self.kv = Kv::open(self.store.clone(), self.clock.clone()).unwrap();
    }

    pub fn namespace(&self, kind: Kind) -> Namespace {
        self.kv.namespace(&format!("of {kind}"), kind).unwrap()
    }
}

/// The `n`-th key of a kind: in key order, and for ints spread over several range objects.
pub fn nth(kind: Kind, n: u64) -> OwnedKey {
    match kind {
        Kind::Int => OwnedKey::Int(n * 700_001),
        Kind::Bytes => OwnedKey::Bytes(format!("key:{n:05}").into()),
    }
}

pub const KINDS: [Kind; 2] = [Kind::Int, Kind::Bytes];

pub fn bytes(text: impl AsRef<[u8]>) -> Bytes {
    Bytes::copy_from_slice(text.as_ref())
}

pub fn keys(owned: &[OwnedKey]) -> Vec<Key<'_>> {
    owned.iter().map(OwnedKey::as_key).collect()
}

/// The number in a decimal value, 0 if absent.
pub fn number(value: Option<&[u8]>) -> u64 {
    value.map_or(0, |value| std::str::from_utf8(value).unwrap().parse().unwrap())
}
