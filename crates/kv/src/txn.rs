//! Transactions over several keys and namespaces: reads see its own writes, one store transaction at the end.
//!
//! begin (locks) → reads, merged with own writes → commit: clear, ranges, entries per namespace → one submit → unlock
//!
//! Invariants:
//! 1. Nothing is in the store before [`Txn::commit`]; dropping a transaction undoes it.
//! 2. Own writes are kept in three layers, the later over the earlier: cleared, ranges removed, entries. A removal
//!    of a range or of all takes the entries of its keys with it, so that what is left was written after it.
//! 3. The first write that cannot be (key too long, wrong kind) makes commit fail with nothing applied.
//! 4. The answer waits for the barriers of all that was read.
//! 5. What is written stands under a guard of every key that was read: another process that changed one makes it fail
//!    whole. A key that is read again by itself is what it was the first time; what scans show is not guarded.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use esker_store::prefix::prefix_end;
use esker_store::{
    Barrier, Change, Completion, Compression, Durability, Error, Result as StoreResult, Transaction, WhenBusy,
};
use smallvec::SmallVec;

use crate::catalogue;
use crate::entry::{Entry, TAG_MAX, check_value, decode_owned};
use crate::locks::Held;
use crate::scan::{Bounds, Scan, Walk};
use crate::shared::Shared;
use crate::submit::{Target, submit};
use crate::{Key, Kind, Namespace, OwnedKey, Result};

/// Store entries fetched at once where a scan merges: enough to hide a call, few enough to waste little.
const MERGE_ENTRIES: usize = 256;
/// Keys fetched at once where they are only counted.
const COUNT_ENTRIES: usize = 4_096;

/// A transaction, from [`Kv::begin`](crate::Kv::begin) or [`Kv::begin_exclusive`](crate::Kv::begin_exclusive).
/// Dropping it without [`Txn::commit`] changes nothing.
#[must_use = "a transaction changes nothing before it is committed"]
pub struct Txn<'a> {
    shared: &'a Shared,
    now_ms: Cell<Option<u64>>,
    writes: Vec<Writes>,
    barrier: RefCell<Option<Barrier>>,
    /// What was found in the store, by key.
    reads: Vec<Reads>,
    failed: Option<Error>,
    gives_back: bool,
    /// It waits for no value that is not in memory.
    hurries: bool,
    /// What it would have waited for.
    awaited: Option<Completion<()>>,
    when_busy: WhenBusy,
    held: Held<'a>,
}

/// What is to become of one namespace.
struct Writes {
    namespace: Namespace,
    cleared: bool,
    ranges: Vec<Bounds>,
    entries: BTreeMap<OwnedKey, Option<Entry>>,
    /// Expiries met while reading, whose index keys need not outlive their entries.
    seen: Vec<(OwnedKey, u64)>,
}

/// The keys of one namespace that were read, each with what the store held when it was first read.
struct Reads {
    namespace: Namespace,
    found: BTreeMap<OwnedKey, Option<Bytes>>,
}

/// What the own writes say about a key.
enum Own {
    Entry(Entry),
    Removed,
    Nothing,
}

impl Writes {
    fn own(&self, key: Key<'_>) -> Own {
        if self.entries.is_empty() && !self.cleared && self.ranges.is_empty() {
            return Own::Nothing;
        }
        let key = key.to_owned_key();
        match self.entries.get(&key) {
            Some(Some(entry)) => Own::Entry(entry.clone()),
            Some(None) => Own::Removed,
            None if self.hides(&key) => Own::Removed,
            None => Own::Nothing,
        }
    }

    /// Whether what the store holds under this key is removed by a clear or a range.
    fn hides(&self, key: &OwnedKey) -> bool {
        self.cleared || self.ranges.iter().any(|range| range.contains(key))
    }

    fn push(&self, txn: &mut Transaction, barrier: &mut Option<Barrier>) -> StoreResult<()> {
        let placement = self.namespace.placement();
        if self.cleared {
            let (kind, store) = (self.namespace.kind(), self.namespace.store());
            if kind == Kind::Int {
                let name = self.namespace.name();
                let made = catalogue::ranges_made(store, name).applied(barrier)?;
                txn.guards.push(catalogue::none_made(name, made));
            }
            placement.clear(txn, &placement.objects(store, kind, barrier)?);
        }
        for range in &self.ranges {
            if let Bounds::Bytes { start, end } = range {
                txn.push(&placement.bytes, Change::OmapRemoveRange { start: start.clone(), end: end.clone() });
            }
        }
        for (key, at) in &self.seen {
            let new = self.entries.get(key);
            if new.is_some_and(|new| new.as_ref().and_then(|new| new.expires_ms) != Some(*at)) {
                placement.index_remove(txn, key.as_key(), *at);
            }
        }
        for (key, entry) in &self.entries {
            match entry {
                None => placement.remove(txn, key.as_key()),
                Some(entry) => {
                    placement.set(txn, key.as_key(), entry.encode()?);
                    if let Some(at) = entry.expires_ms {
                        placement.index_set(txn, key.as_key(), at);
                    }
                }
            }
        }
        Ok(())
    }
}

/// Bytes that a key takes.
fn key_bytes(key: &OwnedKey) -> usize {
    key.as_bytes().map_or(size_of::<u64>(), Bytes::len)
}

impl<'a> Txn<'a> {
    pub(crate) fn new(shared: &'a Shared, held: Held<'a>) -> Self {
        let (now_ms, barrier) = (Cell::new(None), RefCell::new(None));
        let (writes, reads) = (Vec::new(), Vec::new());
        let (failed, gives_back, hurries, awaited) = (None, false, false, None);
        let when_busy = WhenBusy::Wait;
        Self { shared, now_ms, writes, barrier, reads, failed, gives_back, hurries, awaited, when_busy, held }
    }

    /// The time of this transaction in unix milliseconds: one reading of the clock, at first need.
    pub fn now_ms(&self) -> u64 {
        self.now_ms.get().unwrap_or_else(|| {
            let now_ms = self.shared.clock.now_ms();
            self.now_ms.set(Some(now_ms));
            now_ms
        })
    }

    /// Makes reads of what is not in memory fail with [`Error::OnItsWay`](crate::Error::OnItsWay) in place of waiting:
    /// for callers that must not sleep. Such a read has begun then, and [`Txn::take_awaited`] is what to await.
    pub fn do_not_wait(&mut self) {
        self.hurries = true;
    }

    /// Makes reads wait again, after [`Txn::do_not_wait`].
    pub fn do_wait(&mut self) {
        self.hurries = false;
    }

    /// What [`Txn::commit`] does where the store has no room now: with [`WhenBusy::Refuse`] it fails with
    /// [`Error::Busy`], and [`Kv::room`](crate::Kv::room) is what to await before the transaction is begun anew.
    pub fn when_busy(&mut self, when_busy: WhenBusy) {
        self.when_busy = when_busy;
    }

    /// What a read would have waited for.
    pub fn take_awaited(&mut self) -> Option<Completion<()>> {
        self.awaited.take()
    }

    /// What was read, if it is here or may be waited for.
    fn here<T: Send + 'static>(&mut self, read: Completion<T>) -> Result<T> {
        if self.hurries && !read.is_here() {
            self.awaited = Some(read.map(drop));
            return Err(crate::Error::OnItsWay);
        }
        let (stored, barrier) = read.into_parts();
        self.behind(barrier);
        Ok(stored?)
    }

    fn writes(&mut self, namespace: &Namespace) -> &mut Writes {
        let at = self.writes.iter().position(|writes| writes.namespace.is(namespace)).unwrap_or_else(|| {
            self.writes.push(Writes {
                namespace: namespace.clone(),
                cleared: false,
                ranges: Vec::new(),
                entries: BTreeMap::new(),
                seen: Vec::new(),
            });
            self.writes.len() - 1
        });
        &mut self.writes[at]
    }

    fn own(&self, namespace: &Namespace, key: Key<'_>) -> Own {
        let writes = self.writes.iter().find(|writes| writes.namespace.is(namespace));
        writes.map_or(Own::Nothing, |writes| writes.own(key))
    }

    fn behind(&self, barrier: Option<Barrier>) {
        if barrier.is_some() {
            self.barrier.replace_with(|own| Barrier::later(own.take(), barrier));
        }
    }

    /// The entry if it is live; remembers what was found, and an expiry that it has.
    fn live(&mut self, namespace: &Namespace, key: Key<'_>, stored: Option<Bytes>) -> Result<Option<Entry>> {
        let at = self.reads.iter().position(|reads| reads.namespace.is(namespace)).unwrap_or_else(|| {
            self.reads.push(Reads { namespace: namespace.clone(), found: BTreeMap::new() });
            self.reads.len() - 1
        });
        // What was found first counts, since that is what is guarded: in between it may have been something else.
        let found = self.reads[at].found.entry(key.to_owned_key()).or_insert(stored);
        let Some(stored) = found.clone() else { return Ok(None) };
        let entry = decode_owned(stored)?;
        let Some(at) = entry.expires_ms else { return Ok(Some(entry)) };
        self.writes(namespace).seen.push((key.to_owned_key(), at));
        Ok(if at <= self.now_ms() { None } else { Some(entry) })
    }

    /// The entry of a key, as this transaction left it; `None` if absent or expired.
    ///
    /// # Errors
    /// The store's; `TooLarge` or `Invalid` for a key that the namespace cannot hold.
    pub fn get<'k>(&mut self, namespace: &Namespace, key: impl Into<Key<'k>>) -> Result<Option<Entry>> {
        let key = key.into();
        namespace.check_key(key)?;
        match self.own(namespace, key) {
            Own::Entry(entry) => {
                Ok(if entry.expires_ms.is_some_and(|at| at <= self.now_ms()) { None } else { Some(entry) })
            }
            Own::Removed => Ok(None),
            Own::Nothing => {
                let stored = self.here(namespace.placement().get(namespace.store(), key))?;
                self.live(namespace, key, stored)
            }
        }
    }

    /// The entries of several keys, in their order; of one object of the store with at most
    /// [`GET_MANY_BYTES_MAX`](esker_store::limits::GET_MANY_BYTES_MAX) of values.
    ///
    /// # Errors
    /// Those of [`Txn::get`].
    pub fn get_many(&mut self, namespace: &Namespace, keys: &[Key<'_>]) -> Result<Vec<Option<Entry>>> {
        for key in keys {
            namespace.check_key(*key)?;
        }
        let mut found = vec![None; keys.len()];
        let (mut places, mut wanted) = (Vec::new(), Vec::new());
        for (at, key) in keys.iter().enumerate() {
            match self.own(namespace, *key) {
                Own::Entry(entry) => found[at] = Some(entry).filter(|entry| !entry.is_expired(self.now_ms())),
                Own::Removed => {}
                Own::Nothing => {
                    places.push(at);
                    wanted.push(*key);
                }
            }
        }
        if !wanted.is_empty() {
            let read = namespace.placement().get_many(namespace.store(), namespace.kind(), &wanted);
            let stored = self.here(read)?;
            for ((at, key), stored) in places.into_iter().zip(wanted).zip(stored) {
                found[at] = self.live(namespace, key, stored)?;
            }
        }
        Ok(found)
    }

    /// Says that space is given back by it, or because of it: see
    /// [`Transaction::gives_back`](esker_store::Transaction::gives_back).
    pub fn give_back(&mut self) {
        self.gives_back = true;
    }

    fn fail(&mut self, error: Error) {
        self.failed.get_or_insert(error);
    }

    /// Writes an entry. A key or entry that cannot be makes [`Txn::commit`] fail.
    pub fn put<'k>(&mut self, namespace: &Namespace, key: impl Into<Key<'k>>, entry: Entry) {
        let key = key.into();
        if let Err(error) = namespace.check_key(key).and_then(|()| check_value(&entry.value)) {
            return self.fail(error);
        }
        if entry.tag > TAG_MAX {
            let why = format!("{} is above TAG_MAX = {TAG_MAX}", entry.tag);
            return self.fail(Error::Invalid { what: "entry tag", why });
        }
        self.writes(namespace).entries.insert(key.to_owned_key(), Some(entry));
    }

    /// Removes a key.
    pub fn remove<'k>(&mut self, namespace: &Namespace, key: impl Into<Key<'k>>) {
        let key = key.into();
        match namespace.check_key(key) {
            Ok(()) => {
                self.writes(namespace).entries.insert(key.to_owned_key(), None);
            }
            Err(error) => self.fail(error),
        }
    }

    /// Removes all byte keys that start with `prefix`. In an int namespace it makes [`Txn::commit`] fail.
    pub fn remove_prefix(&mut self, namespace: &Namespace, prefix: &[u8]) {
        if prefix.is_empty() && namespace.kind() == Kind::Bytes {
            return self.clear(namespace);
        }
        if let Err(error) = namespace.check_key(Key::Bytes(prefix)) {
            return self.fail(error);
        }
        let range = Bounds::Bytes { start: Bytes::copy_from_slice(prefix), end: prefix_end(prefix) };
        let writes = self.writes(namespace);
        writes.entries.retain(|key, _| !range.contains(key));
        if !writes.cleared {
            writes.ranges.push(range);
        }
    }

    /// Removes all entries of a namespace. Keep other writers out: begin exclusively.
    pub fn clear(&mut self, namespace: &Namespace) {
        if let Err(error) = namespace.check() {
            return self.fail(error);
        }
        let writes = self.writes(namespace);
        writes.cleared = true;
        writes.ranges.clear();
        writes.entries.clear();
        writes.seen.clear();
    }

    /// The entries that `scan` asks for, as this transaction left them. An answer shorter than its limit holds the
    /// last of them.
    ///
    /// # Errors
    /// The store's; `Invalid` for bounds of the other kind.
    pub fn scan(&mut self, namespace: &Namespace, scan: &Scan) -> Result<Vec<(OwnedKey, Entry)>> {
        let now_ms = self.now_ms();
        let bounds = Bounds::of(namespace, scan)?;
        let writes = self.writes.iter().find(|writes| writes.namespace.is(namespace));
        let own = writes.map(|writes| &writes.entries).into_iter().flatten();
        let mut own: VecDeque<(&OwnedKey, &Option<Entry>)> = own.filter(|(key, _)| bounds.contains(key)).collect();
        if scan.reverse {
            own.make_contiguous().reverse();
        }
        let mut walk = match writes {
            Some(writes) if writes.cleared => None,
            _ => Some(Walk::new(namespace, bounds, scan.reverse, scan.keys_only).hurrying(self.hurries)),
        };
        let mut page: VecDeque<(OwnedKey, Entry)> = VecDeque::new();
        let (mut found, mut bytes) = (Vec::new(), 0);
        while found.len() < scan.limit && bytes < scan.bytes_max {
            while page.is_empty()
                && let Some(under_way) = &mut walk
            {
                let more = (scan.limit - found.len()).saturating_add(own.len()).min(MERGE_ENTRIES);
                let (answer, barrier) = under_way.page(more, Some(now_ms));
                self.behind(barrier);
                if let Some(awaited) = under_way.take_awaited() {
                    self.awaited = Some(awaited);
                    return Err(crate::Error::OnItsWay);
                }
                match answer? {
                    Some(answer) => page = answer.into(),
                    None => walk = None,
                }
            }
            let own_first = match (own.front(), page.front()) {
                (None, None) => break,
                (Some(_), None) => true,
                (None, Some(_)) => false,
                (Some((own, _)), Some((stored, _))) => {
                    if *own == stored {
                        page.pop_front();
                        continue;
                    }
                    (*own < stored) != scan.reverse
                }
            };
            if own_first {
                if let Some((key, Some(entry))) = own.pop_front()
                    && !entry.is_expired(now_ms)
                {
                    bytes += key_bytes(key) + if scan.keys_only { 0 } else { entry.value.len() };
                    found.push((key.clone(), if scan.keys_only { Entry::default() } else { entry.clone() }));
                }
            } else if let Some((key, entry)) = page.pop_front()
                && !writes.is_some_and(|writes| writes.hides(&key))
            {
                bytes += key_bytes(&key) + if scan.keys_only { 0 } else { entry.value.len() };
                found.push((key, if scan.keys_only { Entry::default() } else { entry }));
            }
        }
        Ok(found)
    }

    /// How many entries the namespace holds as this transaction left it, with those that have expired and were not
    /// removed yet. Costs one read per key written and a scan of each range removed.
    ///
    /// # Errors
    /// The store's.
    pub fn len(&mut self, namespace: &Namespace) -> Result<u64> {
        namespace.check()?;
        let (placement, store, kind) = (namespace.placement(), namespace.store(), namespace.kind());
        let stored_len = |txn: &Self| -> Result<u64> {
            let (len, barrier) = placement.len(store, kind);
            txn.behind(barrier);
            Ok(len?)
        };
        let Some(writes) = self.writes.iter().find(|writes| writes.namespace.is(namespace)) else {
            return stored_len(self);
        };
        let mut len = if writes.cleared { 0 } else { stored_len(self)? };
        for (nth, range) in writes.ranges.iter().enumerate() {
            // Ranges may overlap; what an earlier one holds is counted there.
            let mut walk = Walk::over_stored(namespace, range.clone());
            loop {
                let (page, barrier) = walk.page(COUNT_ENTRIES, None);
                self.behind(barrier);
                let Some(page) = page? else { break };
                let earlier = |key: &OwnedKey| writes.ranges[..nth].iter().any(|range| range.contains(key));
                len -= page.iter().filter(|(key, _)| !earlier(key)).count() as u64;
            }
        }
        for (key, entry) in &writes.entries {
            let before = if writes.hides(key) {
                false
            } else {
                let (stored, barrier) = placement.get(store, key.as_key()).into_parts();
                self.behind(barrier);
                stored?.is_some()
            };
            match (before, entry.is_some()) {
                (true, false) => len -= 1,
                (false, true) => len += 1,
                (true, true) | (false, false) => {}
            }
        }
        Ok(len)
    }

    /// Whether [`Txn::len`] is 0.
    ///
    /// # Errors
    /// The store's.
    pub fn is_empty(&mut self, namespace: &Namespace) -> Result<bool> {
        Ok(self.len(namespace)? == 0)
    }

    /// Whether anything would be written.
    pub fn is_read_only(&self) -> bool {
        self.failed.is_none()
            && self.writes.iter().all(|writes| !writes.cleared && writes.ranges.is_empty() && writes.entries.is_empty())
    }

    /// Ends the transaction: applies its writes as one store transaction, if there are any, and unlocks. What it
    /// answers waits for everything that was read, too.
    ///
    /// A transaction that writes nothing shows what it read at several moments, if other processes write meanwhile.
    /// Guarded is each key that was read by itself; of a scan, only what [`Txn::get`] read as well.
    ///
    /// # Errors
    /// `GuardFailed` if another process changed a key that was read: begin anew. `Busy` after [`Txn::when_busy`]. The
    /// store's; `TooLarge` or `Invalid` if one of its writes could not be. Nothing was applied then.
    pub fn commit(self, durability: Durability) -> Completion<()> {
        let barrier = self.barrier.take();
        if let Some(error) = self.failed {
            return Completion::after(Err(error), barrier);
        }
        if self.is_read_only() {
            return Completion::after(Ok(()), barrier);
        }
        // One hint for all of it: of what is written in several namespaces, the first that asks for something.
        let hints = self.writes.iter().map(|writes| writes.namespace.compression());
        let hint = hints.into_iter().find(|hint| *hint != Compression::None).unwrap_or_default();
        // What it takes to know which objects a clear removes.
        let listed = RefCell::new(None);
        let build = |txn: &mut Transaction| {
            (txn.durability, txn.compression, txn.once) = (durability, hint, true);
            txn.gives_back = self.gives_back;
            txn.when_busy = self.when_busy;
            for reads in &self.reads {
                for (key, found) in &reads.found {
                    reads.namespace.placement().guard(txn, key.as_key(), found.clone());
                }
            }
            let mut behind = listed.take();
            let pushed = self.writes.iter().try_for_each(|writes| writes.push(txn, &mut behind));
            listed.replace(behind);
            pushed
        };
        let writing = self.writes.iter().filter(|writes| writes.entries.values().any(Option::is_some));
        let targets: SmallVec<[Target<'_>; 4]> = writing.map(|writes| writes.namespace.target()).collect();
        let done = submit(self.shared, &targets, build);
        drop(self.held);
        done.map(|_| ()).behind(barrier).behind(listed.take())
    }
}
