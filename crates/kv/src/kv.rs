//! A key-value face on a store: namespaces by name, the locks, the defaults.
//!
//! [`Kv::open`] → catalogue → [`Namespace`]s, which share one [`Shared`] with every [`Txn`]
//!
//! Removing: record says *removing* → objects, by listing → record; who finds it half done goes on
//!
//! Invariants:
//! 1. A namespace is in the catalogue before its first entry is written.
//! 2. What is kept here of the catalogue only saves making handles anew: each call that names a namespace looks at its
//!    record.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use esker_store::registry::open_collection;
use esker_store::{
    Change, Collection, Completion, Compression, Durability, Error as StoreError, ObjectId, ObjectStore,
    Result as StoreResult, Retry, Stall, Transaction, Waits, prefix, registry, submit_guarded,
};
use parking_lot::Mutex;

use crate::catalogue::{self, COLLECTION, Record};
use crate::clock::Steady;
use crate::layout::Layout;
use crate::locks::Locks;
use crate::namespace::objects_max;
use crate::placement::{Placement, id_in, parts};
use crate::shared::Shared;
use crate::{Clock, Error, Key, Kind, Namespace, Result, Txn};

/// The collection that a store has while it is a half copy. Format: docs/format.md#half-copies
const HALF_COPY: &str = "\0esker-copy";

/// Objects listed at once where a namespace is removed.
const REMOVE_OBJECTS: usize = 16_384;

/// Longest name of a namespace, in bytes. Shortest: 1. `/` is not allowed in it.
pub const NAMESPACE_NAME_BYTES_MAX: usize = esker_store::names::NAME_BYTES_MAX;

/// Namespaces of keys on a store. Cloning costs reference counts; clones are the same face.
#[derive(Clone)]
pub struct Kv {
    shared: Arc<Shared>,
    /// Handles by name, so that those of one name share what they keep.
    handles: Arc<Mutex<BTreeMap<String, Namespace>>>,
}

impl Kv {
    /// Opens the face, making collection `kv` if it is missing. Any number of them, in this process or others, may work
    /// on one store.
    ///
    /// # Errors
    /// The store's; `Corrupt` for an unknown kind of namespace.
    pub fn open(store: Arc<dyn ObjectStore>, clock: Arc<dyn Clock>) -> Result<Self> {
        let parted = !store.capability().atomic_across_objects;
        Self::open_with(store, clock, parted)
    }

    /// As [`Kv::open`]; namespaces that are made lie in partitions though the store can do without, so that they can be
    /// copied to one that cannot.
    ///
    /// # Errors
    /// As [`Kv::open`].
    pub fn open_in_partitions(store: Arc<dyn ObjectStore>, clock: Arc<dyn Clock>) -> Result<Self> {
        Self::open_with(store, clock, true)
    }

    /// The face to read what other faces write to the store, by a store that takes no writes: nothing is made, nor is
    /// what was removed by half removed. Nothing is read before the first call, so that it may be had of a store that
    /// does not answer yet.
    pub fn to_read(store: Arc<dyn ObjectStore>, clock: Arc<dyn Clock>) -> Self {
        Self::over(store, clock, false)
    }

    fn over(store: Arc<dyn ObjectStore>, clock: Arc<dyn Clock>, parted: bool) -> Self {
        let clock: Arc<dyn Clock> = Arc::new(Steady::new(clock));
        let (locks, applied_by_default) = (Locks::new(), AtomicBool::new(false));
        let shared = Shared { store, clock, locks, applied_by_default, parted };
        Self { shared: Arc::new(shared), handles: Arc::default() }
    }

    fn open_with(store: Arc<dyn ObjectStore>, clock: Arc<dyn Clock>, parted: bool) -> Result<Self> {
        open_collection(&*store, &COLLECTION.into(), Transaction::new().once())?;
        let kv = Self::over(store, clock, parted);
        // Nothing is removed from a half copy: what says whose an object is may still be to come.
        let is_half = kv.shared.store.collections().wait()?.contains(&HALF_COPY.into());
        if parted && !is_half {
            // As below: nothing shows it.
            let _ = kv.collect_left();
        }
        // What cannot be read is told now, not by the first call.
        for (name, record) in catalogue::all(&*kv.shared.store)? {
            if !record.removing {
                kv.handle(&name, record);
            } else if !is_half {
                // Its removal was interrupted. Where it cannot be done now, as in a view, nothing shows what is left.
                let _ = kv.finish_removing(&name, record);
            }
        }
        Ok(kv)
    }

    /// Whether keys of several partitions, or namespaces, can be changed at once: not on a store that changes one
    /// object at a time.
    pub fn is_whole(&self) -> bool {
        self.shared.store.capability().atomic_across_objects
    }

    /// Whether the store is on the other side of a network, so that a caller that may not wait has others call.
    pub fn is_afar(&self) -> bool {
        self.shared.store.capability().afar
    }

    /// Removes what is left of namespaces in partitions that are removed: a writer that had begun to make an object,
    /// and was killed, left it empty. Only objects of ids that the catalogue has given are taken for left: where it is
    /// not there, or is older than they are, it does not know whose they are.
    fn collect_left(&self) -> Result<()> {
        let (store, collection) = (&*self.shared.store, Collection::from(COLLECTION));
        let Some(last_given) = catalogue::last_given(store).wait()? else { return Ok(()) };
        let mut after: Option<Bytes> = None;
        while let Some(name) = store.list(&collection, after.as_deref(), 1).wait()?.pop() {
            let Some((namespace, id)) = id_in(&name) else {
                after = Some(name);
                continue;
            };
            // The record is made before the first object, and its id is never given again.
            let record = catalogue::find(store, &namespace).wait()?;
            let held =
                record.is_some_and(|record| matches!(record.layout, Layout::Parted { id: own, .. } if own == id));
            let of_id = [&parts(&namespace)[..], &id.to_be_bytes(), b"/"].concat();
            if !held && id <= last_given {
                self.remove_parts(&of_id)?;
            }
            // Names that begin with it are all below this one, which is none.
            after = prefix::prefix_end(&of_id);
        }
        Ok(())
    }

    /// Removes all objects of a namespace in partitions, one after the other.
    fn remove_parts(&self, prefix: &[u8]) -> Result<()> {
        let (store, collection) = (&*self.shared.store, Collection::from(COLLECTION));
        loop {
            let objects = prefix::objects(store, &collection, prefix, Some(prefix));
            // Where the store was restarted meanwhile, some may be there again.
            if registry::remove_objects(store, objects, &mut |_| true)? {
                return Ok(());
            }
        }
    }

    /// The store below.
    pub fn store(&self) -> &Arc<dyn ObjectStore> {
        &self.shared.store
    }

    /// Ready when a write that was refused as busy may be tried again: see [`ObjectStore::room`].
    pub fn room(&self, stall: Stall) -> Completion<()> {
        self.shared.store.room(stall)
    }

    /// Why a write would be refused as busy now: see [`ObjectStore::stall`].
    pub fn stall(&self, waits: Waits) -> Option<Stall> {
        self.shared.store.stall(waits)
    }

    /// The clock that decides what has expired: the one that was given, but for steps back.
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
        check_name(name)?;
        let (store, mut retry) = (&*self.shared.store, Retry::default());
        loop {
            match catalogue::find(store, name).wait()? {
                Some(record) if record.removing => self.finish_removing(name, record)?,
                Some(record) if record.kind != kind => {
                    return Err(Error::WrongKind { name: name.to_owned(), found: record.kind, wanted: kind });
                }
                Some(record) if record.layout == Layout::Whole && !self.is_whole() => {
                    let what =
                        "use a namespace that lies in several objects: its keys go through `kv scan` and `kv load`";
                    return Err(StoreError::Unsupported { backend: store.capability().backend, what }.into());
                }
                Some(record) => return Ok(self.handle(name, record)),
                None => {
                    // A face that removes keys may have to open their namespace first.
                    let mut txn = Transaction::new().giving_back().once();
                    let layout = if self.shared.parted {
                        Layout::parted(kind, catalogue::give_id(&mut txn, store)?)
                    } else {
                        Layout::Whole
                    };
                    let record = Record { kind, compression, removing: false, layout };
                    txn.guards.push(catalogue::directory().is_free(name));
                    catalogue::directory().set(&mut txn, name, record.encode());
                    if submit_guarded(store, txn)?.is_none() {
                        // Those of before are of a namespace that was removed.
                        if let Some(old) = self.handles.lock().remove(name) {
                            old.mark_removed();
                        }
                        return Ok(self.handle(name, record));
                    }
                    retry.again(|| format!("namespace {name}"))?;
                }
            }
        }
    }

    /// Opens the namespace `name`, if it is there, and waits for nothing.
    ///
    /// # Errors
    /// [`Error::OnItsWay`]: what the catalogue says of it is not in memory, or may be lost yet.
    /// [`Error::NoNamespace`]; [`Error::WrongKind`] if it is of the other kind; the store's.
    pub fn existing(&self, name: &str, kind: Kind) -> Result<Namespace> {
        let found = catalogue::find(&*self.shared.store, name);
        if !found.is_here() {
            return Err(Error::OnItsWay);
        }
        let (record, barrier) = found.into_parts();
        if barrier.is_some() {
            return Err(Error::OnItsWay);
        }
        let record = live(name, record?)?;
        if record.kind != kind {
            return Err(Error::WrongKind { name: name.to_owned(), found: record.kind, wanted: kind });
        }
        Ok(self.handle(name, record))
    }

    /// A handle of a namespace that the catalogue has.
    fn handle(&self, name: &str, record: Record) -> Namespace {
        let mut handles = self.handles.lock();
        let known = handles.get(name).filter(|known| {
            known.kind() == record.kind && known.placement().layout() == record.layout && known.check().is_ok()
        });
        let namespace = known.cloned().unwrap_or_else(|| {
            let placement = Placement::new(&Collection::from(COLLECTION), name, record.kind, record.layout);
            let made = Namespace::new(&self.shared, name, record.kind, placement);
            handles.insert(name.to_owned(), made.clone());
            made
        });
        namespace.set_compression(record.compression);
        namespace
    }

    /// A second set of byte keys in the objects of a namespace of byte keys that lies in partitions: what is kept under
    /// them can change together with keys of the namespace. Each begins with a number of 8 bytes, big-endian, whose
    /// lower bits say its partition: see [`Namespace::partition`]. It comes and goes with the namespace; clearing one
    /// leaves the other; its entries do not expire. `None` of another namespace.
    pub fn companion(&self, namespace: &Namespace) -> Option<Namespace> {
        let placement = namespace.placement();
        let parted = placement.is_parted() && namespace.kind() == Kind::Bytes;
        parted.then(|| {
            let placement = placement.companion(namespace.name());
            let made = Namespace::new(&self.shared, namespace.name(), Kind::Bytes, placement);
            made.set_compression(namespace.compression());
            made
        })
    }

    /// Has values that are written to a namespace from now on compressed, or no longer; what is there stays as it is.
    /// It is a hint: a store that cannot compress ([`Capability::compresses`](esker_store::Capability::compresses)), or
    /// a value that does not get smaller, is stored as it is. A transaction over several namespaces takes the first
    /// hint of those that it writes. Other processes take it up when they next open the namespace.
    ///
    /// # Errors
    /// [`Error::NoNamespace`]; the store's.
    pub fn set_compression(&self, name: &str, compression: Compression) -> Result<()> {
        let mut retry = Retry::default();
        loop {
            let record = self.live(name)?;
            let next = Record { compression, ..record };
            if next == record || self.replace(name, record, next)? {
                self.handle(name, next);
                return Ok(());
            }
            retry.again(|| format!("namespace {name}"))?;
        }
    }

    fn live(&self, name: &str) -> Result<Record> {
        live(name, catalogue::find(&*self.shared.store, name).wait()?)
    }

    /// Replaces a record; false if it is another by now.
    fn replace(&self, name: &str, from: Record, to: Record) -> Result<bool> {
        // Removing, the only change that a full store needs, gives space back.
        let mut txn = Transaction { gives_back: to.removing, once: true, ..Transaction::new() };
        txn.guards.push(from.still(name));
        catalogue::directory().set(&mut txn, name, to.encode());
        Ok(submit_guarded(&*self.shared.store, txn)?.is_none())
    }

    /// The namespaces with their kinds, in name order.
    ///
    /// # Errors
    /// The store's.
    pub fn namespaces(&self) -> Result<Vec<(String, Kind)>> {
        let live = catalogue::all(&*self.shared.store)?.into_iter().filter(|(_, record)| !record.removing);
        Ok(live.map(|(name, record)| (name, record.kind)).collect())
    }

    /// Removes a namespace with all its entries; what is written to it later answers with an error, in other processes
    /// too. Its name is free when this returns. One transaction, unless it is an int namespace of over 100,000 ranges
    /// (fewer on a small store): then several, and a write to a range that is not removed yet may still be
    /// acknowledged, and goes with it. Stopped between two of them, the namespace is gone already; opening the face, or
    /// the name, or removing it again, does the rest.
    ///
    /// # Errors
    /// [`Error::NoNamespace`]; the store's. [`StoreError::Unknown`] where the namespace is gone, and what it held only
    /// in part: removing it again does the rest.
    pub fn remove_namespace(&self, name: &str) -> Result<()> {
        let (store, mut retry) = (&*self.shared.store, Retry::default());
        loop {
            let known = self.handles.lock().get(name).cloned();
            let found = catalogue::find(store, name).wait()?;
            let record = found.ok_or_else(|| Error::NoNamespace { name: name.to_owned() })?;
            if record.layout == Layout::Whole && !self.is_whole() {
                let what = "remove a namespace that lies in several objects";
                return Err(StoreError::Unsupported { backend: store.capability().backend, what }.into());
            }
            let removing = Record { removing: true, ..record };
            let at_once = !record.removing && record.layout == Layout::Whole;
            let whole = if at_once { self.removal(name, record)? } else { None };
            let at_once = whole.is_some();
            let begun = match whole {
                Some(txn) => submit_guarded(store, txn)?.is_none(),
                None => record.removing || self.replace(name, record, removing)?,
            };
            if begun {
                if let Some(known) = known {
                    // One that was made since is of the next namespace of that name.
                    self.handles.lock().retain(|_, handle| !handle.is(&known));
                    known.mark_removed();
                }
                if at_once {
                    return Ok(());
                }
                // It is gone, whatever becomes of what it held.
                let left =
                    |error| StoreError::Unknown { cause: format!("{name} is gone, but not all it held: {error}") };
                return self.finish_removing(name, removing).map_err(|error| left(error).into());
            }
            retry.again(|| format!("namespace {name}"))?;
        }
    }

    /// Up to `limit` objects of a namespace, by name.
    fn objects(&self, name: &str, limit: usize) -> Result<Vec<ObjectId>> {
        let (collection, prefix) = (Collection::from(COLLECTION), format!("{name}/"));
        // None is called so: the names of others that sort before, as those of `db-old` before `db/`, are passed over.
        let after = Some(prefix.as_bytes());
        let ours = prefix::objects(&*self.shared.store, &collection, prefix.as_bytes(), after);
        Ok(ours.take(limit).collect::<StoreResult<_>>()?)
    }

    /// What removes a namespace at once; `None` if it is too large for that.
    fn removal(&self, name: &str, record: Record) -> Result<Option<Transaction>> {
        // Counted before they are listed.
        let made = match record.kind {
            Kind::Int => Some(catalogue::ranges_made(&*self.shared.store, name).wait()?),
            Kind::Bytes => None,
        };
        let most = objects_max(&*self.shared.store, name);
        let mut objects = self.objects(name, most)?;
        if objects.len() == most {
            return Ok(None);
        }
        // These are not counted, and may be made meanwhile.
        let placement = Placement::new(&Collection::from(COLLECTION), name, record.kind, record.layout);
        for object in placement.uncounted() {
            if !objects.contains(&object) {
                objects.push(object);
            }
        }
        let mut txn = Transaction::new().once();
        txn.guards.push(record.still(name));
        txn.guards.extend(made.map(|made| catalogue::none_made(name, made)));
        objects.iter().for_each(|object| txn.push(object, Change::Remove));
        catalogue::forget(&mut txn, name);
        Ok(Some(txn))
    }

    /// Removes what is left of a namespace whose record says that it is being removed, and the record. Others may do
    /// the same at
    /// once.
    fn finish_removing(&self, name: &str, record: Record) -> Result<()> {
        let (store, mut retry) = (&*self.shared.store, Retry::default());
        if let Layout::Parted { id, .. } = record.layout {
            // Its id is of no other namespace: a process that removes it late removes nothing else.
            self.remove_parts(&[&parts(name)[..], &id.to_be_bytes(), b"/"].concat())?;
            let mut txn = Transaction::with(Durability::Always).once();
            txn.guards.push(record.still(name));
            catalogue::forget(&mut txn, name);
            // Another has done it where the guard fails.
            submit_guarded(store, txn)?;
            return Ok(());
        }
        loop {
            if catalogue::find(store, name).wait()? != Some(record) {
                // Another has done the rest.
                return Ok(());
            }
            let made = catalogue::ranges_made(store, name).wait()?;
            let objects = self.objects(name, objects_max(store, name).min(REMOVE_OBJECTS))?;
            // That none is left is seen in the next step: no crash is to bring any back behind that.
            let mut txn = Transaction::with(Durability::Always).once();
            txn.guards.push(record.still(name));
            objects.iter().for_each(|object| txn.push(object, Change::Remove));
            let last = objects.is_empty();
            if last {
                // The same record may be of a later namespace of that name, which has objects.
                txn.guards.push(catalogue::none_made(name, made));
                catalogue::forget(&mut txn, name);
            }
            match submit_guarded(store, txn)? {
                None if last => return Ok(()),
                None => {}
                Some(_) => retry.again(|| format!("namespace {name}"))?,
            }
        }
    }

    /// What calls without an explicit durability use: [`Durability::Durable`] after opening.
    pub fn default_durability(&self) -> Durability {
        self.shared.default_durability()
    }

    /// Switches between safe and asynchronous mode, from the next call on, for all namespaces; always durable counts as
    /// durable.
    pub fn set_default_durability(&self, durability: Durability) {
        self.shared.applied_by_default.store(durability == Durability::Applied, Ordering::Relaxed);
    }

    /// Tells the store that these keys will be read soon, so that it may begin to bring into memory what is not there.
    /// A hint: it waits for nothing. A store heeds the first of many, and one that keeps nothing in memory heeds none.
    pub fn will_get(&self, keys: &[(&Namespace, Key<'_>)]) {
        let mut rest = keys.to_vec();
        while let Some((namespace, _)) = rest.first().copied() {
            let (own, others): (Vec<_>, Vec<_>) = rest.into_iter().partition(|(of, _)| of.is(namespace));
            namespace.will_get(&own.into_iter().map(|(_, key)| key).collect::<Vec<_>>());
            rest = others;
        }
    }

    /// Begins a transaction that holds the stripes of `keys`: no other writer of this process changes them before it
    /// ends, so that it seldom has to be begun anew. It may read and write other keys too.
    ///
    /// On its own thread, call nothing that locks (writes of [`Namespace`], another `begin`) before it ends.
    pub fn begin(&self, keys: &[(&Namespace, Key<'_>)]) -> Txn<'_> {
        let held = self.shared.locks.many(keys.iter().map(|(namespace, key)| namespace.stripe(*key)));
        Txn::new(&self.shared, held)
    }

    /// As [`Kv::begin`], for callers that must not sleep: `None` where another holds one of these stripes now.
    pub fn try_begin(&self, keys: &[(&Namespace, Key<'_>)]) -> Option<Txn<'_>> {
        let held = self.shared.locks.try_many(keys.iter().map(|(namespace, key)| namespace.stripe(*key)));
        held.map(|held| Txn::new(&self.shared, held))
    }

    /// Runs `change` in a transaction that holds the stripes of `keys`, commits it, and waits; from the beginning
    /// again, with what is stored then, where another process changed a key that it had read.
    ///
    /// # Errors
    /// Those of `change`, which end it with nothing applied; those of [`Txn::commit`]; [`StoreError::Contended`] after
    /// [`ATTEMPTS_MAX`](esker_store::ATTEMPTS_MAX) attempts.
    pub fn transact<T, E: From<StoreError>>(
        &self,
        keys: &[(&Namespace, Key<'_>)],
        durability: Durability,
        mut change: impl FnMut(&mut Txn<'_>) -> std::result::Result<T, E>,
    ) -> std::result::Result<T, E> {
        let mut retry = Retry::default();
        loop {
            let mut txn = self.begin(keys);
            let value = change(&mut txn)?;
            match txn.commit(durability).wait() {
                Ok(()) => return Ok(value),
                Err(StoreError::GuardFailed { .. }) => retry.again(|| "a transaction of keys".into())?,
                Err(error) => return Err(error.into()),
            }
        }
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
    pub(crate) fn open_namespaces(&self) -> Result<Vec<Namespace>> {
        let live = catalogue::all(&*self.shared.store)?.into_iter().filter(|(_, record)| !record.removing);
        Ok(live.map(|(name, record)| self.handle(&name, record)).collect())
    }
}

/// The record of a namespace that is there, and is not being removed.
fn live(name: &str, found: Option<Record>) -> Result<Record> {
    found.filter(|record| !record.removing).ok_or_else(|| Error::NoNamespace { name: name.to_owned() })
}

fn check_name(name: &str) -> Result<()> {
    let limit = ("NAMESPACE_NAME_BYTES_MAX", NAMESPACE_NAME_BYTES_MAX);
    let checked = esker_store::names::check_name(name, limit, |c| c == '/');
    checked.map_err(|why| Error::InvalidName { name: name.to_owned(), why })
}
