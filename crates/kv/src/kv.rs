//! A key-value face on a store: the catalogue of namespaces, the locks, the defaults.
//!
//! [`Kv::open`] → catalogue → [`Namespace`]s, which share one [`Shared`] with every [`Txn`]
//!
//! Catalogue: omap of object `namespaces` in collection `kv`, name → kind as one byte (1 int, 2 bytes), then, unless it is
//! none, compression as another (1 lz4, 2 zstd).
//!
//! Invariants:
//! 1. A namespace is in the catalogue before its first entry is written.
//! 2. Whoever holds the registry waits for no other lock of this crate; so it may be taken inside a transaction.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use esker_store::{
    Change, Collection, Compression, Durability, ObjectId, ObjectStore, OmapScan, Op, Transaction, limits,
};
use parking_lot::Mutex;

use crate::key::just_above;
use crate::locks::Locks;
use crate::namespace::{clear_in_parts, compression_from_stored, stored_compression};
use crate::shared::Shared;
use crate::{Clock, Error, Key, Kind, Namespace, Result, Txn};

/// Longest name of a namespace, in bytes. Shortest: 1. `/` is not allowed in it.
pub const NAMESPACE_NAME_BYTES_MAX: usize = 128;

/// Namespaces of keys on a store. Cloning costs reference counts; clones are the same face.
#[derive(Clone)]
pub struct Kv {
    shared: Arc<Shared>,
    registry: Arc<Mutex<BTreeMap<String, Namespace>>>,
    catalogue: ObjectId,
}

impl Kv {
    /// Opens the face, making collection `kv` if it is missing. One `Kv` per store at a time: its locks are its own.
    ///
    /// # Errors
    /// The store's; `Unsupported` where it is not atomic across objects; `Corrupt` for an unknown kind of namespace.
    pub fn open(store: Arc<dyn ObjectStore>, clock: Arc<dyn Clock>) -> Result<Self> {
        let capability = store.capability();
        if !capability.atomic_across_objects {
            return Err(esker_store::Error::Unsupported {
                backend: capability.backend,
                what: "change several objects atomically, which the key-value face needs",
            }
            .into());
        }
        let collection = Collection::from("kv");
        if !store.collections().wait()?.contains(&collection) {
            store.submit(Transaction::new().giving_back().create_collection(&collection)).wait()?;
        }
        let catalogue = ObjectId::new(collection.clone(), Bytes::from_static(b"namespaces"));
        let locks = Locks::new();
        let shared = Arc::new(Shared { store, clock, locks, applied_by_default: AtomicBool::new(false) });

        let mut registry = BTreeMap::new();
        let mut scan = OmapScan { limit: limits::SCAN_ENTRIES_MAX, ..OmapScan::default() };
        loop {
            let page = shared.store.omap_scan(&catalogue, &scan).wait()?;
            let Some((last, _)) = page.last() else { break };
            scan.start = Some(just_above(last));
            for (name, kind) in &page {
                let unreadable = || esker_store::Error::Corrupt {
                    offset: 0,
                    what: format!("namespace catalogue: {} of kind {kind:?}", name.escape_ascii()),
                };
                let name = std::str::from_utf8(name).map_err(|_| unreadable())?;
                let (kind, compression) = match &kind[..] {
                    [kind] => (*kind, 0),
                    [kind, compression] => (*kind, *compression),
                    _ => return Err(unreadable().into()),
                };
                let kind = Kind::from_stored(kind).ok_or_else(unreadable)?;
                let namespace = Namespace::new(&shared, &collection, name, kind);
                namespace.set_compression(compression_from_stored(compression).ok_or_else(unreadable)?);
                namespace.load()?;
                registry.insert(name.to_owned(), namespace);
            }
        }
        Ok(Self { shared, registry: Arc::new(Mutex::new(registry)), catalogue })
    }

    /// The store below.
    pub fn store(&self) -> &Arc<dyn ObjectStore> {
        &self.shared.store
    }

    /// The clock that decides what has expired.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.shared.clock
    }

    /// Opens the namespace `name`, creating it if it is missing.
    ///
    /// # Errors
    /// [`Error::WrongKind`] if it exists with the other kind; [`Error::InvalidName`] for a name that is empty, longer
    /// than [`NAMESPACE_NAME_BYTES_MAX`] or holds a `/`; the store's.
    pub fn namespace(&self, name: &str, kind: Kind) -> Result<Namespace> {
        self.namespace_with(name, kind, Compression::None)
    }

    /// As [`Kv::namespace`]; one that is made asks the store for this compression. One that is there keeps its own.
    ///
    /// # Errors
    /// As [`Kv::namespace`].
    pub fn namespace_with(&self, name: &str, kind: Kind, compression: Compression) -> Result<Namespace> {
        let mut registry = self.registry.lock();
        if let Some(namespace) = registry.get(name) {
            if namespace.kind() != kind {
                return Err(Error::WrongKind { name: name.to_owned(), found: namespace.kind(), wanted: kind });
            }
            return Ok(namespace.clone());
        }
        let invalid = |why: String| Error::InvalidName { name: name.to_owned(), why };
        if name.is_empty() {
            return Err(invalid("it is empty".into()));
        }
        if name.len() > NAMESPACE_NAME_BYTES_MAX {
            let max = NAMESPACE_NAME_BYTES_MAX;
            return Err(invalid(format!("{} bytes exceed NAMESPACE_NAME_BYTES_MAX = {max}", name.len())));
        }
        if name.contains('/') {
            return Err(invalid("it holds a /".into()));
        }
        let set = catalogue_entry(name, kind, compression);
        // A face that removes keys may have to open their namespace first.
        let made = self.shared.store.submit(Transaction::new().giving_back().change(&self.catalogue, set));
        let (seq, barrier) = made.into_parts();
        seq?;
        let namespace = Namespace::new(&self.shared, self.catalogue.collection(), name, kind);
        namespace.set_compression(compression);
        registry.insert(name.to_owned(), namespace.clone());
        drop(registry);
        if let Some(barrier) = barrier {
            barrier.wait()?;
        }
        Ok(namespace)
    }

    /// Has values that are written to a namespace from now on compressed, or no longer; what is there stays as it is. It is
    /// a hint: a store that cannot compress ([`Capability::compresses`](esker_store::Capability::compresses)), or a value
    /// that does not get smaller, is stored as it is. A transaction over several namespaces takes the first hint of those
    /// that it writes.
    ///
    /// # Errors
    /// [`Error::NoNamespace`]; the store's.
    pub fn set_compression(&self, name: &str, compression: Compression) -> Result<()> {
        let registry = self.registry.lock();
        let namespace = registry.get(name).ok_or_else(|| Error::NoNamespace { name: name.to_owned() })?;
        if namespace.compression() == compression {
            return Ok(());
        }
        let set = catalogue_entry(name, namespace.kind(), compression);
        let (seq, barrier) = self.shared.store.submit(Transaction::new().change(&self.catalogue, set)).into_parts();
        seq?;
        namespace.set_compression(compression);
        drop(registry);
        if let Some(barrier) = barrier {
            barrier.wait()?;
        }
        Ok(())
    }

    /// The namespaces with their kinds, in name order.
    ///
    /// # Errors
    /// None at present; the store's, should the catalogue ever leave memory.
    pub fn namespaces(&self) -> Result<Vec<(String, Kind)>> {
        Ok(self.registry.lock().iter().map(|(name, namespace)| (name.clone(), namespace.kind())).collect())
    }

    /// Removes a namespace with all its entries; handles of it answer with an error from then on. One transaction,
    /// unless it has over 100,000 ranges of int keys: then its entries go in several, its name with the last.
    ///
    /// # Errors
    /// [`Error::NoNamespace`]; the store's.
    pub fn remove_namespace(&self, name: &str) -> Result<()> {
        let held = self.shared.locks.all();
        let namespace = self.registry.lock().get(name).cloned();
        let namespace = namespace.ok_or_else(|| Error::NoNamespace { name: name.to_owned() })?;
        let last =
            Op::Object(self.catalogue.clone(), Change::OmapRemove { key: Bytes::copy_from_slice(name.as_bytes()) });
        let completion = clear_in_parts(&namespace, Durability::Durable, Some(last));
        let (done, barrier) = completion.into_parts();
        done?;
        namespace.mark_removed();
        self.registry.lock().remove(name);
        drop(held);
        if let Some(barrier) = barrier {
            barrier.wait()?;
        }
        Ok(())
    }

    /// What calls without an explicit durability use: [`Durability::Durable`] after opening.
    pub fn default_durability(&self) -> Durability {
        self.shared.default_durability()
    }

    /// Switches between safe and asynchronous mode, from the next call on, for all namespaces.
    pub fn set_default_durability(&self, durability: Durability) {
        self.shared.applied_by_default.store(durability == Durability::Applied, Ordering::Relaxed);
    }

    /// Begins a transaction that holds the stripes of `keys`: nobody else changes them before it ends. It may read
    /// other keys too, and write those whose other writers hold one of the same keys.
    ///
    /// On its own thread, call nothing that locks (writes of [`Namespace`], another `begin`) before it ends.
    pub fn begin(&self, keys: &[(&Namespace, Key<'_>)]) -> Txn<'_> {
        let held = self.shared.locks.many(keys.iter().map(|(namespace, key)| namespace.stripe(*key)));
        Txn::new(&self.shared, held)
    }

    /// Begins a transaction that keeps every other writer of this face out until it ends. The rule of [`Kv::begin`]
    /// about its thread holds here too.
    pub fn begin_exclusive(&self) -> Txn<'_> {
        Txn::new(&self.shared, self.shared.locks.all())
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
    }

    /// All namespaces at this moment.
    pub(crate) fn open_namespaces(&self) -> Vec<Namespace> {
        self.registry.lock().values().cloned().collect()
    }
}

fn catalogue_entry(name: &str, kind: Kind, compression: Compression) -> Change {
    let value = match compression {
        // As stores of before compression have it.
        Compression::None => Bytes::copy_from_slice(&[kind as u8]),
        _ => Bytes::copy_from_slice(&[kind as u8, stored_compression(compression)]),
    };
    Change::OmapSet { key: Bytes::copy_from_slice(name.as_bytes()), value }
}
