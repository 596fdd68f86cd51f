//! What all tests of the face use: a store, a face on it, keys.

use std::sync::Arc;

use bytes::Bytes;
use esker_kv::{Key, Kind, Kv, ManualClock, Namespace, OwnedKey};
use esker_memory::MemoryStore;
use esker_store::{Collection, ObjectId, ObjectStore, OmapScan, prefix};

/// Where the clock of [`fresh`] stands.
pub const NOON_MS: u64 = 1_700_000_000_000;

pub struct Fresh {
    pub kv: Kv,
    pub clock: Arc<ManualClock>,
    pub store: Arc<dyn ObjectStore>,
}

pub fn fresh() -> Fresh {
    Fresh::on(Arc::new(MemoryStore::new()))
}

fn open(store: &Arc<dyn ObjectStore>, clock: &Arc<ManualClock>) -> Kv {
    let open = if crate::PARTED { Kv::open_in_partitions } else { Kv::open };
    open(store.clone(), clock.clone()).unwrap()
}

impl Fresh {
    pub fn on(store: Arc<dyn ObjectStore>) -> Self {
        let clock = Arc::new(ManualClock::new(NOON_MS));
        Self { kv: open(&store, &clock), clock, store }
    }

    /// A second face on the same store and clock, as after a restart.
    pub fn reopen(&mut self) {
        self.kv = open(&self.store, &self.clock);
    }

    pub fn namespace(&self, kind: Kind) -> Namespace {
        self.kv.namespace(&format!("of {kind}"), kind).unwrap()
    }

    /// Keys in the expiry index of a namespace.
    pub fn index_len(&self, name: &str) -> usize {
        let kv = Collection::from("kv");
        let objects = prefix::objects(&*self.store, &kv, format!("{name}/").as_bytes(), None);
        let is_index = |object: &ObjectId| crate::PARTED || object.name().ends_with(b"/expiry");
        let all = objects.map(|object| object.unwrap()).filter(is_index);
        let places = |object| {
            prefix::omap(&*self.store, &object, OmapScan::of(if crate::PARTED { "x" } else { "" }).keys()).count()
        };
        all.map(places).sum()
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
