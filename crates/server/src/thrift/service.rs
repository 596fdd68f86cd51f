//! What calls do to the namespace.
//!
//! [`Asked`] → room among what is not durable, for an asynchronous write → the face of keys, on the thread that
//! answers where it waits for nothing → what is on its way is awaited → the barrier of everything that was read or
//! written → [`Given`]
//!
//! Invariants:
//! 1. No thread that answers sleeps, waits for a sync, for keys that another holds, or reads a device; none is held by
//!    a write that waits.
//! 2. Nothing is answered before it may be shown: in safe mode a write when it is durable, in asynchronous mode when it
//!    is applied, within the bounds of [`Dirty`]; what a read shows, when its writer was answered.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use esker_kv::{
    Barrier, Completion, Durability, Entry, Error as KvError, Key, Kind, Kv, Namespace, OwnedKey, Scan, Txn,
    VALUE_BYTES_MAX,
};
use esker_store::{ATTEMPTS_MAX, Error as StoreError, WhenBusy};

use super::call::{Asked, WriteMode, cursor_behind, cursor_of_commit, text_of};
use super::config::KeptMode;
use super::dirty::{Dirty, Reserved, Weight};
use super::encode::{Effect, Exception, Given};
use super::memory::ANSWER_BYTES_MAX;
use super::ring::{Sharing, Stand};

/// Keys of a call that are read at first, of which nothing is known: the largest values of so many fit one answer. And
/// how many times as many a part has as the one before, at most.
const FIRST_KEYS: usize = ANSWER_BYTES_MAX / (VALUE_BYTES_MAX + 16);
const GROWTH: usize = 4;
/// A page ends behind the pair with which it holds so many bytes.
pub(super) const PAGE_BYTES: usize = 4 << 20;
/// Calls about more keys, or of more bytes of values, are made on a thread of their own.
const KEYS_AT_ONCE: usize = 256;
const BYTES_AT_ONCE: usize = 256 << 10;
/// How often a thread that answers begins a call for values that are not in memory; then one waits for them, since they
/// may not stay there until they are read.
const READS_AT_ONCE: usize = 2;
/// Attempts that follow each other at once where others are faster, and how long is waited before each further one.
const AT_ONCE: u32 = 4;
const PAUSE: Duration = Duration::from_millis(1);
/// Lower bits of an int key that count within one object of its namespace.
const RANGE_BITS: u32 = 16;
/// Backends that apply a transaction in memory before `submit` returns. The others do their I/O in the call.
const APPLY_AT_ONCE: &[&str] = &["esker", "memory"];

/// A namespace, and how it is written.
pub(super) struct KeyService {
    kv: Kv,
    namespace: Namespace,
    /// Its store may be called by a thread that answers.
    at_once: bool,
    mode: KeptMode,
    dirty: Arc<Dirty>,
    sharing: Option<Sharing>,
}

/// Why a call was not done.
#[derive(Debug)]
pub(super) enum Stopped {
    /// What its client is told.
    Told(Exception),
    /// A key is of a slot that another chain keeps by now, or that is going. Nothing was done.
    Gone,
}

impl From<Exception> for Stopped {
    fn from(exception: Exception) -> Self {
        Self::Told(exception)
    }
}

/// How an attempt is committed.
#[derive(Clone, Copy)]
struct How {
    when_busy: WhenBusy,
    durability: Durability,
}

/// What an attempt came to.
enum Attempted<T> {
    /// What it reads is on its way.
    Awaits(Option<Completion<()>>),
    /// It cannot be.
    Failed(KvError),
    /// Its keys are another chain's.
    Gone,
    /// It is made, if it could be.
    Made(T, Completion<()>),
}

impl KeyService {
    pub(super) fn new(kv: Kv, namespace: Namespace, mode: KeptMode, dirty: Dirty, sharing: Option<Sharing>) -> Self {
        let at_once = !kv.is_afar() && APPLY_AT_ONCE.contains(&kv.store().capability().backend);
        Self { kv, namespace, at_once, mode, dirty: Arc::new(dirty), sharing }
    }

    /// The same, whose writes are acknowledged when they are durable.
    pub(super) fn in_safe_mode(&self) -> Arc<Self> {
        let (kv, namespace, sharing) = (self.kv.clone(), self.namespace.clone(), self.sharing.clone());
        let dirty = Arc::clone(&self.dirty);
        Arc::new(Self { kv, namespace, at_once: self.at_once, mode: KeptMode::default(), dirty, sharing })
    }

    /// What keys are shared with other chains by.
    pub(super) fn sharing(&self) -> Option<&Sharing> {
        self.sharing.as_ref()
    }

    /// Whether these keys, of which the caller holds the locks, are this chain's.
    fn keeps(&self, keys: &[OwnedKey]) -> bool {
        let Some(sharing) = &self.sharing else { return true };
        let slots = keys.iter().map(|key| key.as_key().slot());
        matches!(sharing.stand(slots, false), Stand::Here)
    }

    /// Puts a value, and notes its key for those who move its slot.
    fn put(&self, txn: &mut Txn<'_>, of: &Namespace, key: &OwnedKey, value: &Bytes, kept: (Option<u64>, u8)) {
        if let Some(sharing) = &self.sharing {
            sharing.note(key);
        }
        txn.put_value(of, key, value, kept.0, kept.1);
    }

    /// What is acknowledged and not durable.
    pub(super) fn dirty(&self) -> &Dirty {
        &self.dirty
    }

    /// Keeps what is acknowledged and not durable within its bounds. Does not return; while it does not run, no
    /// asynchronous write goes on that waits.
    pub(super) async fn keep_durable(self: Arc<Self>) {
        let own = Arc::clone(&self);
        self.dirty.keep(move || Arc::clone(&own).sync()).await;
    }

    /// Has everything made durable that is applied.
    async fn sync(self: Arc<Self>) -> Result<(), StoreError> {
        let at_once = self.at_once;
        let flush = move || self.dirty.unsynced().flush(&**self.kv.store()).into_parts();
        let (synced, barrier) = if at_once {
            flush()
        } else {
            match tokio::task::spawn_blocking(flush).await {
                Ok(synced) => synced,
                Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
                Err(_) => return Err(StoreError::Closed),
            }
        };
        // Where what an earlier life of the store had is lost, what this one has is synced all the same.
        durable(barrier).await?;
        synced.map(drop)
    }

    /// The namespace's name.
    pub(super) fn name(&self) -> &str {
        self.namespace.name()
    }

    /// Its name and the kind of its keys.
    pub(super) fn told(&self) -> String {
        format!("{}:{}", self.name(), self.kind())
    }

    /// The kind of its keys.
    pub(super) fn kind(&self) -> Kind {
        self.namespace.kind()
    }

    /// When writes are acknowledged now.
    pub(super) fn mode(&self) -> WriteMode {
        self.mode.get()
    }

    /// Room for a write that is acknowledged before it is durable; `None`: it is not, in safe mode and where it is
    /// larger than all that may be so.
    async fn reserve(&self, weight: Weight) -> Result<Option<Reserved<'_>>, Exception> {
        let is_early = self.mode() == WriteMode::Asynchronous && weight.bytes <= self.dirty.bytes_max();
        if weight.keys == 0 || !is_early {
            return Ok(None);
        }
        let reserved = self.dirty.reserve(weight.bytes, &**self.kv.store()).await;
        let reserved = reserved.map_err(|error| stuck("not written", "wait for room (thrift_async_bytes)", &error))?;
        // Who has made it safe meanwhile is answered when all that had room before is durable, and this had none.
        Ok(Some(reserved).filter(|_| self.mode() == WriteMode::Asynchronous))
    }

    /// Does what is asked for, of keys that this chain keeps.
    pub(super) async fn run(self: &Arc<Self>, asked: Asked) -> Result<Given, Stopped> {
        match asked {
            Asked::Get(key) => {
                let value = self.read(move |namespace| namespace.get(&key)).await?;
                Ok(value.map_or(Given::Nothing, Given::Text))
            }
            Asked::Has(key) => Ok(Given::Bool(self.read(move |namespace| namespace.has(&key)).await?)),
            Asked::MultiGet(keys) => self.get_many(keys).await,
            Asked::Put(key, value) => {
                let (keys, bytes) = (vec![key.clone()], value.len());
                let weight = Weight::of(key_bytes(&key), bytes);
                let own = Arc::clone(self);
                let put = move |txn: &mut Txn<'_>, of: &Namespace| {
                    own.put(txn, of, &key, &value, (None, 0));
                    Ok(((), weight))
                };
                self.write(keys, bytes, weight, put).await?;
                Ok(Given::I32(0))
            }
            Asked::MultiPut(pairs) => {
                let keys = pairs.iter().map(|(key, _)| key.clone()).collect();
                let bytes = pairs.iter().map(|(_, value)| value.len()).sum();
                let weight = pairs.iter().map(|(key, value)| Weight::of(key_bytes(key), value.len())).sum();
                let own = Arc::clone(self);
                let put = move |txn: &mut Txn<'_>, of: &Namespace| {
                    pairs.iter().for_each(|(key, value)| own.put(txn, of, key, value, (None, 0)));
                    Ok(((), weight))
                };
                self.write(keys, bytes, weight, put).await?;
                Ok(Given::Nothing)
            }
            Asked::Remove(key) => {
                let removed = self.remove_many(vec![key]).await?;
                // As a status: 0 is success.
                Ok(Given::I32(if removed == 0 { 1 } else { 0 }))
            }
            Asked::RemoveMany(keys) => Ok(Given::I64(self.remove_many(keys).await?)),
            Asked::Add(key, value) => self.write_if(key, value, |there| there.is_none()).await,
            Asked::Update(key, value) => self.write_if(key, value, |there| there.is_some()).await,
            Asked::CompareAndSet(key, expected, value) => {
                self.write_if(key, value, move |there| there == expected.as_ref()).await
            }
            Asked::Iterate { after, limit } => self.page(after, limit).await,
            Asked::IterateInserted { after, limit } => {
                let namespace = self.namespace.clone();
                // It reads segments, so not on a thread that answers.
                let (page, barrier) = waiting(move || namespace.insertion_page(after, limit).into_parts()).await?;
                reached(barrier).await?;
                let (entries, cursor) = page.map_err(told_of_store)?;
                let pairs = entries.into_iter().map(|(key, entry)| (text_of(key), entry.value)).collect();
                Ok(Given::Page(pairs, cursor.map(cursor_of_commit)))
            }
            Asked::Count => {
                let namespace = self.namespace.clone();
                // Of int keys it goes through all ranges, so not on a thread that answers.
                let (count, barrier) = waiting(move || namespace.len().into_parts()).await?;
                reached(barrier).await?;
                let count = count.map_err(undone)?;
                Ok(Given::I64(i64::try_from(count).unwrap_or(i64::MAX)))
            }
            Asked::Mode => Ok(Given::I32(self.mode() as i32)),
            Asked::SetMode(mode) => {
                self.mode.set(mode);
                tracing::info!(namespace = self.name(), ?mode, "writes are acknowledged anew");
                if mode == WriteMode::Safe {
                    // From this answer on nothing that was acknowledged can be lost.
                    let settled = self.dirty.settled().await;
                    settled.map_err(|error| stuck("the mode is SAFE", "are not durable", &error))?;
                }
                Ok(Given::Nothing)
            }
        }
    }

    /// A read that is one call of the face.
    async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Namespace) -> Completion<T> + Send + 'static,
    ) -> Result<T, Exception> {
        let (value, barrier) = if self.at_once {
            read(&self.namespace).arrived().await
        } else {
            let namespace = self.namespace.clone();
            waiting(move || read(&namespace).into_parts()).await?
        };
        reached(barrier).await?;
        value.map_err(undone)
    }

    /// The pairs that are there of these keys.
    async fn get_many(self: &Arc<Self>, keys: Vec<OwnedKey>) -> Result<Given, Stopped> {
        let asked = keys.clone();
        let values: Vec<Option<Bytes>> = if keys.len() <= FIRST_KEYS && self.are_in_one_object(&keys) {
            self.read(move |namespace| namespace.get_many(&as_keys(&asked))).await?
        } else {
            let read = move |txn: &mut Txn<'_>, of: &Namespace| read_in_parts(txn, of, &asked);
            let entries = self.transact(keys.clone(), read).await?;
            entries.into_iter().map(|entry| entry.map(|entry| entry.value)).collect()
        };
        let pairs: Vec<(Bytes, Bytes)> =
            keys.into_iter().zip(values).filter_map(|(key, value)| Some((text_of(key), value?))).collect();
        let bytes: usize = pairs.iter().map(|(key, value)| key.len() + value.len()).sum();
        if bytes > ANSWER_BYTES_MAX {
            return Err(too_large(bytes).into());
        }
        Ok(Given::Pairs(pairs))
    }

    /// Whether one call of the store reads all of these.
    fn are_in_one_object(&self, keys: &[OwnedKey]) -> bool {
        match self.kind() {
            Kind::Bytes => self.namespace.partition(b"").is_none(),
            Kind::Int => {
                let range = |key: &OwnedKey| key.as_int().map(|key| key >> RANGE_BITS);
                keys.windows(2).all(|pair| range(&pair[0]) == range(&pair[1]))
            }
        }
    }

    /// How many of these keys were there, and are removed.
    async fn remove_many(self: &Arc<Self>, mut keys: Vec<OwnedKey>) -> Result<i64, Stopped> {
        keys.sort_unstable();
        keys.dedup();
        let asked = keys.clone();
        let of_key = |key: &OwnedKey| Weight::of(key_bytes(key), 0);
        let weight = keys.iter().map(of_key).sum();
        let remove = move |txn: &mut Txn<'_>, of: &Namespace| {
            let there = read_in_parts(txn, of, &asked)?;
            let found = asked.iter().zip(there).filter(|(_, there)| there.is_some());
            let removed: Weight = found.map(|(key, _)| (txn.remove(of, key), of_key(key)).1).sum();
            Ok((removed.keys as i64, removed))
        };
        self.write(keys, 0, weight, remove).await
    }

    /// Writes a value, keeping an expiry that is there, if what is there is as it has to be.
    async fn write_if(
        self: &Arc<Self>,
        key: OwnedKey,
        value: Bytes,
        holds: impl Fn(Option<&Bytes>) -> bool + Send + Sync + 'static,
    ) -> Result<Given, Stopped> {
        let (keys, bytes, own) = (vec![key.clone()], value.len(), Arc::clone(self));
        let weight = Weight::of(key_bytes(&key), bytes);
        let write = move |txn: &mut Txn<'_>, of: &Namespace| {
            let there = txn.get(of, &key)?;
            if !holds(there.as_ref().map(|entry| &entry.value)) {
                return Ok((false, Weight::default()));
            }
            let kept = there.map_or((None, 0), |entry| (entry.expires_ms, entry.tag));
            own.put(txn, of, &key, &value, kept);
            Ok((true, weight))
        };
        self.write(keys, bytes, weight, write).await.map(Given::Bool)
    }

    /// A page in the order of keys.
    async fn page(self: &Arc<Self>, after: Option<OwnedKey>, limit: usize) -> Result<Given, Stopped> {
        let (found, next) = self.scan(after, limit).await?;
        let next = next.map(|next| cursor_behind(&next));
        Ok(Given::Page(found.into_iter().map(|(key, value)| (text_of(key), value)).collect(), next))
    }

    /// Pairs in the order of keys, and the key behind which there may be more.
    pub(super) async fn scan(
        self: &Arc<Self>,
        after: Option<OwnedKey>,
        limit: usize,
    ) -> Result<(Vec<(OwnedKey, Bytes)>, Option<OwnedKey>), Stopped> {
        let scan = Scan { after, limit, bytes_max: PAGE_BYTES, ..Scan::all() };
        let found = self.transact(Vec::new(), move |txn, of| txn.scan(of, &scan)).await?;
        let bytes: usize = found.iter().map(|(key, entry)| key_bytes(key) + entry.value.len()).sum();
        let cut = found.len() >= limit || bytes >= PAGE_BYTES;
        let next = found.last().filter(|_| cut).map(|(key, _)| key.clone());
        Ok((found.into_iter().map(|(key, entry)| (key, entry.value)).collect(), next))
    }

    /// Runs `read` in a transaction that holds these keys; see [`KeyService::write`].
    async fn transact<T: Send + 'static>(
        self: &Arc<Self>,
        keys: Vec<OwnedKey>,
        read: impl Fn(&mut Txn<'_>, &Namespace) -> Result<T, KvError> + Send + Sync + 'static,
    ) -> Result<T, Stopped> {
        self.write(keys, 0, Weight::default(), move |txn, of| Ok((read(txn, of)?, Weight::default()))).await
    }

    /// Runs `change` in a transaction that holds these keys, and commits it; again from the beginning where another
    /// process changed what it read, once what it reads is in memory, and once there is room. It writes values of so
    /// many bytes, and no more than `weight` says; what it has written it says itself.
    async fn write<T: Send + 'static>(
        self: &Arc<Self>,
        keys: Vec<OwnedKey>,
        bytes: usize,
        weight: Weight,
        change: impl Fn(&mut Txn<'_>, &Namespace) -> Result<(T, Weight), KvError> + Send + Sync + 'static,
    ) -> Result<T, Stopped> {
        let is_large = keys.len() > KEYS_AT_ONCE || bytes > BYTES_AT_ONCE;
        let made = Arc::new((keys, change));
        let (mut waits, mut waited, mut attempts) = (esker_store::Waits::default(), 0, 0);
        loop {
            let may_wait = !self.at_once || waited >= READS_AT_ONCE;
            // For this attempt: what has to wait, waits without it.
            let reserved = self.reserve(weight).await?;
            // Safe also where the store's commit policy would acknowledge it earlier.
            let durability = if reserved.is_some() { Durability::Applied } else { Durability::Always };
            let how = How { when_busy: WhenBusy::Refuse(waits), durability };
            let at_once = if may_wait || is_large { None } else { self.attempt_at_once(&made.0, how, &made.1) };
            let attempted = match at_once {
                Some(attempted) => attempted,
                None => {
                    let (own, made) = (Arc::clone(self), Arc::clone(&made));
                    waiting(move || own.attempt(&made.0, may_wait, how, &made.1)).await?
                }
            };
            let ((value, wrote), committed) = match attempted {
                Attempted::Awaits(awaited) => {
                    drop(reserved);
                    waited += 1;
                    if let Some(awaited) = awaited {
                        // An error of it is met again when it is read.
                        let _ = awaited.arrived().await;
                    }
                    continue;
                }
                Attempted::Failed(KvError::Store(error)) => return Err(undone(error).into()),
                Attempted::Failed(error) => return Err(told(error).into()),
                Attempted::Gone => return Err(Stopped::Gone),
                Attempted::Made(value, committed) => (value, committed),
            };
            let (committed, barrier) = committed.arrived().await;
            match committed {
                Err(StoreError::Busy { stall }) => {
                    drop(reserved);
                    waits.note(stall);
                    // Whether there is room now, the next attempt finds out.
                    let _ = self.kv.room(stall).await;
                }
                Err(StoreError::GuardFailed { .. }) if attempts < ATTEMPTS_MAX => {
                    drop(reserved);
                    attempts += 1;
                    if attempts <= AT_ONCE {
                        tokio::task::yield_now().await;
                    } else {
                        tokio::time::sleep(PAUSE).await;
                    }
                }
                Err(StoreError::GuardFailed { .. }) => {
                    let what = format!("keys of namespace {}", self.name());
                    return Err(told_of_store(StoreError::Contended { what, attempts }).into());
                }
                Err(error) => {
                    reached(barrier).await?;
                    return Err(undone(error).into());
                }
                Ok(()) => {
                    let outcome = if let Some(reserved) = reserved {
                        reserved.applied(wrote);
                        "written, and may be lost"
                    } else {
                        "written, and durable"
                    };
                    // That of what it has read, too.
                    reached(barrier).await?;
                    if wrote.keys == 0 {
                        return Ok(value);
                    }
                    // Before a safe one is answered as well: others that came later may have been answered early.
                    let in_time = self.dirty.in_time().await;
                    let late = |error| Exception {
                        effect: Effect::Unknown,
                        ..stuck(outcome, "are too old (thrift_async_age)", &error)
                    };
                    return in_time.map(|()| value).map_err(|error| late(error).into());
                }
            }
        }
    }

    /// On a thread that answers: `None` where another holds these keys, which may take until it has read them.
    fn attempt_at_once<T>(
        &self,
        keys: &[OwnedKey],
        how: How,
        change: &impl Fn(&mut Txn<'_>, &Namespace) -> Result<T, KvError>,
    ) -> Option<Attempted<T>> {
        let txn = self.kv.try_begin(&self.held(keys))?;
        Some(if self.keeps(keys) { self.go_on(txn, false, how, change) } else { Attempted::Gone })
    }

    /// On a thread that may wait, for these keys at least.
    fn attempt<T>(
        &self,
        keys: &[OwnedKey],
        may_wait: bool,
        how: How,
        change: &impl Fn(&mut Txn<'_>, &Namespace) -> Result<T, KvError>,
    ) -> Attempted<T> {
        let txn = self.kv.begin(&self.held(keys));
        if self.keeps(keys) { self.go_on(txn, may_wait, how, change) } else { Attempted::Gone }
    }

    fn held<'k>(&'k self, keys: &'k [OwnedKey]) -> Vec<(&'k Namespace, Key<'k>)> {
        keys.iter().map(|key| (&self.namespace, key.as_key())).collect()
    }

    fn go_on<T>(
        &self,
        mut txn: Txn<'_>,
        may_wait: bool,
        how: How,
        change: &impl Fn(&mut Txn<'_>, &Namespace) -> Result<T, KvError>,
    ) -> Attempted<T> {
        txn.when_busy(how.when_busy);
        if !may_wait {
            txn.do_not_wait();
        }
        match change(&mut txn, &self.namespace) {
            Err(KvError::OnItsWay) => Attempted::Awaits(txn.take_awaited()),
            Err(error) => Attempted::Failed(error),
            Ok(value) => Attempted::Made(value, txn.commit(how.durability)),
        }
    }
}

/// The entries of several keys, of a size that one answer may have: read in parts, each of as many as fit if they are
/// no larger than those before, so that little more than that is ever in memory.
fn read_in_parts(txn: &mut Txn<'_>, of: &Namespace, keys: &[OwnedKey]) -> Result<Vec<Option<Entry>>, KvError> {
    let mut found = Vec::with_capacity(keys.len());
    let (mut rest, mut part, mut bytes, mut largest) = (keys, FIRST_KEYS, 0, 1);
    while !rest.is_empty() {
        let (now, later) = rest.split_at(part.clamp(1, rest.len()));
        let entries = txn.get_many(of, &as_keys(now))?;
        for value in entries.iter().flatten().map(|entry| entry.value.len()) {
            bytes += value;
            largest = largest.max(value);
        }
        if bytes > ANSWER_BYTES_MAX {
            return Err(too_many(bytes));
        }
        found.extend(entries);
        part = (GROWTH * now.len()).min((ANSWER_BYTES_MAX - bytes) / largest);
        rest = later;
    }
    Ok(found)
}

/// A call asks for so many bytes: its client is to ask for fewer keys at once.
fn too_many(bytes: usize) -> KvError {
    let (what, limit) = ("values of the keys of one call", "ANSWER_BYTES_MAX");
    KvError::Store(StoreError::TooLarge { what, len: bytes as u64, limit, max: ANSWER_BYTES_MAX as u64 })
}

/// The same, as a client is told it.
pub(super) fn too_large(bytes: usize) -> Exception {
    told(too_many(bytes))
}

fn as_keys(keys: &[OwnedKey]) -> Vec<Key<'_>> {
    keys.iter().map(OwnedKey::as_key).collect()
}

fn key_bytes(key: &OwnedKey) -> usize {
    key.as_bytes().map_or(size_of::<u64>(), Bytes::len)
}

/// Does `work` on a thread that may wait; of a call whose connection ends, what has begun goes on to its end.
async fn waiting<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Exception> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => Ok(done),
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        Err(_) => Err(Exception::internal("the server stops")),
    }
}

/// Awaits a barrier, as one more client that waits for a sync.
async fn durable(barrier: Option<Barrier>) -> Result<(), StoreError> {
    let Some(barrier) = barrier else { return Ok(()) };
    if barrier.state().is_none() {
        barrier.want_for(1);
    }
    barrier.await
}

async fn reached(barrier: Option<Barrier>) -> Result<(), Exception> {
    durable(barrier).await.map_err(told_of_store)
}

/// Of asynchronous writes that were answered before a call this is so, and their sync has failed.
fn stuck(outcome: &str, what: &str, error: &StoreError) -> Exception {
    Exception::internal(format!("{outcome}; asynchronous writes beside it {what}: {}", with_causes(error)))
}

fn told(error: KvError) -> Exception {
    match error {
        KvError::Store(error) => told_of_store(error),
        error => Exception::internal(error.to_string()),
    }
}

/// Of a call that was not applied: where that is because the chain has no head now, it may be soon.
fn undone(error: StoreError) -> Exception {
    let is_undone = matches!(error, StoreError::NotServing { .. });
    let told = told_of_store(error);
    if is_undone { Exception { effect: Effect::None, ..told } } else { told }
}

fn told_of_store(error: StoreError) -> Exception {
    match error {
        // What was asked for is at fault.
        StoreError::TooLarge { .. } | StoreError::Invalid { .. } | StoreError::Unsupported { .. } => {
            Exception::refused(error.to_string())
        }
        StoreError::Stopped { .. } => {
            Exception::unknown(format!("{}; it is not known whether a write was done", with_causes(&error)))
        }
        error if error.is_unknown() => Exception::unknown(with_causes(&error)),
        error => Exception::internal(with_causes(&error)),
    }
}

fn with_causes(error: &StoreError) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
