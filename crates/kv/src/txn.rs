//! Transactions over several keys and namespaces: reads see its own writes, one store transaction at the end.
//!
//! begin (locks) → reads, merged with own writes → commit: clear, ranges, entries per namespace → one submit → unlock
//!
//! Keys and values are copied once, where they come in, and moved from there into the transaction of the store.
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
use std::collections::VecDeque;

use bytes::Bytes;
use esker_store::prefix::prefix_end;
use esker_store::{
    Barrier, Completion, Compression, Durability, Error, ObjectId, Op, Result as StoreResult, Transaction, WhenBusy,
};
use smallvec::SmallVec;

use crate::catalogue;
use crate::entry::{Entry, decode, decode_owned, encode};
use crate::few::Few;
use crate::locks::Held;
use crate::scan::{Bounds, Scan, Walk};
use crate::shared::Shared;
use crate::submit::{Target, cleared_in_part, one_object, submit_whole};
use crate::{Key, Kind, Namespace, OwnedKey, Result};

/// Store entries fetched at once where a scan merges: enough to hide a call, few enough to waste little.
const MERGE_ENTRIES: usize = 256;
/// Keys fetched at once where they are only counted.
const COUNT_ENTRIES: usize = 4_096;
/// Namespaces that most transactions have, at most.
const NAMESPACES: usize = 2;

/// A transaction, from [`Kv::begin`](crate::Kv::begin) or [`Kv::begin_exclusive`](crate::Kv::begin_exclusive).
/// Dropping it without [`Txn::commit`] changes nothing.
#[must_use = "a transaction changes nothing before it is committed"]
pub struct Txn<'a> {
    shared: &'a Shared,
    now_ms: Cell<Option<u64>>,
    parts: Vec<Part>,
    barrier: RefCell<Option<Barrier>>,
    failed: Option<Error>,
    gives_back: bool,
    runs_once: bool,
    /// It waits for no value that is not in memory.
    hurries: bool,
    /// What it would have waited for.
    awaited: Option<Completion<()>>,
    when_busy: WhenBusy,
    held: Held<'a>,
}

/// What was read of one namespace, and what is to become of it.
struct Part {
    namespace: Namespace,
    /// The keys that were read, each with what the store held when it was first read.
    found: Few<Option<Bytes>>,
    cleared: bool,
    ranges: Vec<Bounds>,
    entries: Few<Option<Written>>,
    /// Entries that were moved into the transaction.
    wrote: usize,
    /// Expiries met while reading, whose index keys need not outlive their entries.
    seen: Vec<(OwnedKey, u64)>,
}

/// An entry as it will be stored.
struct Written {
    stored: Bytes,
    expires_ms: Option<u64>,
}

impl Written {
    fn is_expired(&self, now_ms: u64) -> bool {
        self.expires_ms.is_some_and(|at| at <= now_ms)
    }
}

/// What the own writes say about a key.
enum Own {
    Entry(Entry),
    Removed,
    Nothing,
}

impl Part {
    fn new(namespace: &Namespace) -> Self {
        let (found, entries) = (Few::new(), Few::new());
        let (cleared, ranges, wrote, seen) = (false, Vec::new(), 0, Vec::new());
        Self { namespace: namespace.clone(), found, cleared, ranges, entries, wrote, seen }
    }

    fn own(&self, key: Key<'_>) -> StoreResult<Own> {
        Ok(match self.entries.get(key) {
            Some(Some(written)) => Own::Entry(decode(&written.stored)?),
            Some(None) => Own::Removed,
            None if self.cleared || !self.ranges.is_empty() && self.hides(&key.to_owned_key()) => Own::Removed,
            None => Own::Nothing,
        })
    }

    /// Whether what the store holds under this key is removed by a clear or a range.
    fn hides(&self, key: &OwnedKey) -> bool {
        self.cleared || self.ranges.iter().any(|range| range.contains(key))
    }

    /// Whether nothing is written.
    fn is_read_only(&self) -> bool {
        !self.cleared && self.ranges.is_empty() && self.entries.is_empty()
    }

    /// Whether nothing is written that would have to go with a clear. To be asked once what was written is moved.
    fn only_clears(&self) -> bool {
        self.ranges.is_empty() && self.wrote == 0
    }

    /// Whether entries are written.
    fn adds(&self) -> bool {
        self.entries.iter().any(|(_, written)| written.is_some())
    }

    /// Moves what was written into a transaction.
    fn push(&mut self, txn: &mut Transaction, barrier: &mut Option<Barrier>) -> StoreResult<()> {
        let placement = self.namespace.placement();
        if self.cleared {
            let (kind, store) = (self.namespace.kind(), self.namespace.store());
            // Where the store changes one object at a time, a transaction that clears cannot have guards.
            if kind == Kind::Int && store.capability().atomic_across_objects {
                let name = self.namespace.name();
                let made = catalogue::ranges_made(store, name).applied(barrier)?;
                txn.guards.push(catalogue::none_made(name, made));
            }
            placement.clear(txn, &placement.objects(store, kind, barrier)?);
            placement.forget_made();
        }
        for range in &self.ranges {
            if let Bounds::Bytes { start, end } = range {
                let range = (start.clone(), end.clone());
                placement.remove_range(txn, self.namespace.store(), range, barrier)?;
            }
        }
        for (key, at) in &self.seen {
            let new = self.entries.get(key.as_key());
            if new.is_some_and(|new| new.as_ref().and_then(|new| new.expires_ms) != Some(*at)) {
                placement.index_remove(txn, key.as_key(), *at);
            }
        }
        self.wrote = self.entries.len();
        for (key, written) in self.entries.take() {
            match written {
                None => placement.remove(txn, key),
                Some(Written { stored, expires_ms }) => {
                    if let Some(at) = expires_ms {
                        placement.index_set(txn, key.as_key(), at);
                    }
                    placement.set(txn, key, stored);
                }
            }
        }
        Ok(())
    }
}

/// Clears namespaces object by object, where the store changes one at a time.
fn clear_each(shared: &Shared, names: &[&str], mut txn: Transaction, mut barrier: Option<Barrier>) -> Completion<()> {
    // What belongs together in an object, as keys and those of a companion, goes together.
    txn.ops.sort_by(|one, next| object_of(one).cmp(&object_of(next)));
    let parts: Vec<&[Op]> = txn.ops.chunk_by(|one, next| object_of(one) == object_of(next)).collect();
    for (done, part) in parts.iter().enumerate() {
        let mut clear = Transaction { durability: txn.durability, gives_back: true, ..Transaction::new() };
        clear.ops.extend(part.iter().cloned());
        if let Err(error) = shared.store.submit(clear).applied(&mut barrier) {
            return Completion::after(Err(cleared_in_part(names, done, parts.len(), error)), barrier);
        }
    }
    Completion::after(Ok(()), barrier)
}

fn object_of(op: &Op) -> Option<&ObjectId> {
    if let Op::Object(object, _) = op { Some(object) } else { None }
}

/// Bytes that a key takes.
fn key_bytes(key: &OwnedKey) -> usize {
    key.as_bytes().map_or(size_of::<u64>(), Bytes::len)
}

impl<'a> Txn<'a> {
    pub(crate) fn new(shared: &'a Shared, held: Held<'a>) -> Self {
        let (now_ms, barrier, parts) = (Cell::new(None), RefCell::new(None), Vec::new());
        let (failed, gives_back, runs_once, hurries, awaited) = (None, false, false, false, None);
        let when_busy = WhenBusy::Wait;
        Self { shared, now_ms, parts, barrier, failed, gives_back, runs_once, hurries, awaited, when_busy, held }
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

    fn part_of(&self, namespace: &Namespace) -> Option<&Part> {
        self.parts.iter().find(|part| part.namespace.is(namespace))
    }

    fn part(&mut self, namespace: &Namespace) -> &mut Part {
        let at = self.parts.iter().position(|part| part.namespace.is(namespace)).unwrap_or_else(|| {
            if self.parts.is_empty() {
                self.parts.reserve_exact(NAMESPACES);
            }
            self.parts.push(Part::new(namespace));
            self.parts.len() - 1
        });
        &mut self.parts[at]
    }

    fn own(&self, namespace: &Namespace, key: Key<'_>) -> StoreResult<Own> {
        self.part_of(namespace).map_or(Ok(Own::Nothing), |part| part.own(key))
    }

    fn behind(&self, barrier: Option<Barrier>) {
        if barrier.is_some() {
            self.barrier.replace_with(|own| Barrier::later(own.take(), barrier));
        }
    }

    /// The entry if it is live; remembers what was found, and an expiry that it has.
    fn live(&mut self, namespace: &Namespace, key: Key<'_>, stored: Option<Bytes>) -> Result<Option<Entry>> {
        let part = self.part(namespace);
        // What was found first counts, since that is what is guarded: in between it may have been something else.
        let Some(stored) = part.found.or_insert(key, stored).clone() else { return Ok(None) };
        let entry = decode_owned(stored)?;
        let Some(at) = entry.expires_ms else { return Ok(Some(entry)) };
        part.seen.push((key.to_owned_key(), at));
        Ok(if at <= self.now_ms() { None } else { Some(entry) })
    }

    /// The entry of a key, as this transaction left it; `None` if absent or expired.
    ///
    /// # Errors
    /// The store's; `TooLarge` or `Invalid` for a key that the namespace cannot hold.
    pub fn get<'k>(&mut self, namespace: &Namespace, key: impl Into<Key<'k>>) -> Result<Option<Entry>> {
        let key = key.into();
        namespace.check_key(key)?;
        match self.own(namespace, key)? {
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

    /// Whether this transaction has written or removed the key: what [`Txn::get`] says of it is not stored yet.
    ///
    /// # Errors
    /// The store's.
    pub fn has_written<'k>(&self, namespace: &Namespace, key: impl Into<Key<'k>>) -> Result<bool> {
        Ok(!matches!(self.own(namespace, key.into())?, Own::Nothing))
    }

    /// The entries of several keys, in their order; with at most
    /// [`GET_MANY_BYTES_MAX`](esker_store::limits::GET_MANY_BYTES_MAX) of values, in however many objects they stand.
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
            match self.own(namespace, *key)? {
                Own::Entry(entry) => found[at] = Some(entry).filter(|entry| !entry.is_expired(self.now_ms())),
                Own::Removed => {}
                Own::Nothing => {
                    places.push(at);
                    wanted.push(*key);
                }
            }
        }
        if !wanted.is_empty() {
            let stored = self.here(namespace.get_stored(&wanted))?;
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

    /// For what does more than write, and must not begin anew: [`Txn::commit`] fails with `GuardFailed` only where a
    /// key that was read is another one, or ranges of a namespace of numbers that it clears. Without this word it also
    /// may where another process has cleared a namespace; with it a commit costs a copy of what is written.
    pub fn run_once(&mut self) {
        self.runs_once = true;
    }

    fn fail(&mut self, error: Error) {
        self.failed.get_or_insert(error);
    }

    /// Writes an entry. A key or entry that cannot be makes [`Txn::commit`] fail.
    pub fn put<'k>(&mut self, namespace: &Namespace, key: impl Into<Key<'k>>, entry: Entry) {
        self.put_value(namespace, key, &entry.value, entry.expires_ms, entry.tag);
    }

    /// As [`Txn::put`], of a value that is copied once only.
    pub fn put_value<'k>(
        &mut self,
        namespace: &Namespace,
        key: impl Into<Key<'k>>,
        value: &[u8],
        expires_ms: Option<u64>,
        tag: u8,
    ) {
        let key = key.into();
        match namespace.check_key(key).and_then(|()| encode(value, expires_ms, tag)) {
            Ok(stored) => self.part(namespace).entries.insert(key, Some(Written { stored, expires_ms })),
            Err(error) => self.fail(error),
        }
    }

    /// Removes a key.
    pub fn remove<'k>(&mut self, namespace: &Namespace, key: impl Into<Key<'k>>) {
        let key = key.into();
        match namespace.check_key(key) {
            Ok(()) => self.part(namespace).entries.insert(key, None),
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
        let part = self.part(namespace);
        part.entries.retain(|key| !range.contains(key));
        if !part.cleared {
            part.ranges.push(range);
        }
    }

    /// Removes all entries of a namespace. Keep other writers out: begin exclusively. On a store that changes one
    /// object at a time, a transaction that does nothing but clear does so partition by partition, which others may
    /// see.
    pub fn clear(&mut self, namespace: &Namespace) {
        if let Err(error) = namespace.check() {
            return self.fail(error);
        }
        let part = self.part(namespace);
        part.cleared = true;
        part.ranges.clear();
        part.entries.clear();
        part.seen.clear();
    }

    /// The entries that `scan` asks for, as this transaction left them. An answer shorter than its limit holds the
    /// last of them.
    ///
    /// # Errors
    /// The store's; `Invalid` for bounds of the other kind.
    pub fn scan(&mut self, namespace: &Namespace, scan: &Scan) -> Result<Vec<(OwnedKey, Entry)>> {
        let now_ms = self.now_ms();
        let bounds = Bounds::of(namespace, scan)?;
        let part = self.part_of(namespace);
        let own = part.into_iter().flat_map(|part| part.entries.iter());
        let mut own: VecDeque<(&OwnedKey, &Option<Written>)> = own.filter(|(key, _)| bounds.contains(key)).collect();
        if scan.reverse {
            own.make_contiguous().reverse();
        }
        let mut walk = match part {
            Some(part) if part.cleared => None,
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
                if let Some((key, Some(written))) = own.pop_front()
                    && !written.is_expired(now_ms)
                {
                    let entry = if scan.keys_only { Entry::default() } else { decode(&written.stored)? };
                    bytes += key_bytes(key) + entry.value.len();
                    found.push((key.clone(), entry));
                }
            } else if let Some((key, entry)) = page.pop_front()
                && !part.is_some_and(|part| part.hides(&key))
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
        let Some(part) = self.part_of(namespace) else { return stored_len(self) };
        let mut len = if part.cleared { 0 } else { stored_len(self)? };
        for (nth, range) in part.ranges.iter().enumerate() {
            // Ranges may overlap; what an earlier one holds is counted there.
            let mut walk = Walk::over_stored(namespace, range.clone());
            loop {
                let (page, barrier) = walk.page(COUNT_ENTRIES, None);
                self.behind(barrier);
                let Some(page) = page? else { break };
                let earlier = |key: &OwnedKey| part.ranges[..nth].iter().any(|range| range.contains(key));
                len -= page.iter().filter(|(key, _)| !earlier(key)).count() as u64;
            }
        }
        for (key, written) in part.entries.iter() {
            let before = if part.hides(key) {
                false
            } else {
                let (stored, barrier) = placement.get(store, key.as_key()).into_parts();
                self.behind(barrier);
                stored?.is_some()
            };
            match (before, written.is_some()) {
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
        self.failed.is_none() && self.parts.iter().all(Part::is_read_only)
    }

    /// Ends the transaction: applies its writes as one store transaction, if there are any, and unlocks. What it
    /// answers waits for everything that was read, too.
    ///
    /// A transaction that writes nothing shows what it read at several moments, if other processes write meanwhile.
    /// Guarded is each key that was read by itself; of a scan, only what [`Txn::get`] read as well.
    ///
    /// # Errors
    /// `GuardFailed` if another process changed a key that was read, or cleared a namespace: begin anew. `Busy` after
    /// [`Txn::when_busy`]. The store's; `TooLarge` or `Invalid` if one of its writes could not be. Nothing was applied
    /// then, save for the store's `Stopped` and `Unknown`: the latter too where it clears partition by partition, and
    /// some were cleared before one could not be.
    pub fn commit(mut self, durability: Durability) -> Completion<()> {
        let mut barrier = self.barrier.take();
        if let Some(error) = self.failed {
            return Completion::after(Err(error), barrier);
        }
        if self.is_read_only() {
            return Completion::after(Ok(()), barrier);
        }
        // One hint for all of it: of what is written in several namespaces, the first that asks for something.
        let written = self.parts.iter().filter(|part| !part.is_read_only());
        let mut hints = written.map(|part| part.namespace.compression());
        let hint = hints.find(|hint| *hint != Compression::None).unwrap_or_default();
        let mut txn = Transaction::new();
        (txn.durability, txn.compression, txn.once) = (durability, hint, true);
        (txn.gives_back, txn.when_busy) = (self.gives_back, self.when_busy);
        let adding: SmallVec<[bool; NAMESPACES]> = self.parts.iter().map(Part::adds).collect();
        // And one for the object of each namespace.
        txn.guards.reserve_exact(self.parts.iter().map(|part| part.found.len() + 1).sum());
        for part in &mut self.parts {
            for (key, found) in part.found.take() {
                part.namespace.placement().guard(&mut txn, key, found);
            }
        }
        for part in &mut self.parts {
            if let Err(error) = part.push(&mut txn, &mut barrier) {
                return Completion::after(Err(error), barrier);
            }
        }
        let parted = |part: &Part| part.namespace.placement().is_parted();
        if self.parts.iter().any(parted)
            && let Err(error) = one_object(self.shared, &txn)
        {
            let clears = txn.guards.is_empty() && self.parts.iter().all(Part::only_clears);
            if !clears {
                return Completion::after(Err(error), barrier);
            }
            let cleared = self.parts.iter().filter(|part| part.cleared);
            let mut names: Vec<&str> = cleared.map(|part| part.namespace.name()).collect();
            names.dedup();
            return clear_each(self.shared, &names, txn, barrier);
        }
        let adding = self.parts.iter().zip(adding).filter(|(_, adds)| *adds);
        let targets: SmallVec<[Target<'_>; NAMESPACES]> = adding.map(|(part, _)| part.namespace.target()).collect();
        let done = submit_whole(self.shared, &targets, txn, self.runs_once);
        drop(self.held);
        done.map(|_| ()).behind(barrier)
    }
}
