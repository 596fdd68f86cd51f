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
use crate::entry::{Entry, Seen, decode, encode_as, peek};
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
    /// Of values that were written.
    bytes: usize,
    held: Held<'a>,
}

/// What became of [`Txn::read_ahead`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadAhead {
    /// What it read is known.
    Known,
    /// One of the keys is not in memory: nothing is known.
    NotHere,
    /// It is too much, the store refuses it at once, an entry is damaged, or the transaction has cleared the namespace
    /// or a range of it.
    Nothing,
}

/// What was read of one namespace, and what is to become of it.
struct Part {
    namespace: Namespace,
    /// The keys that were read or written.
    keys: Few<Known>,
    cleared: bool,
    ranges: Vec<Bounds>,
    /// Entries that were moved into the transaction.
    wrote: usize,
    /// Expiries met while reading, whose index keys need not outlive their entries.
    seen: Vec<(OwnedKey, u64)>,
    /// Of the values that were found.
    found_bytes: usize,
}

/// What is known of a key.
#[derive(Default)]
struct Known {
    /// What the store held when it was first read, if it was.
    found: Option<Found>,
    /// What is to become of it, if it is written: `None` removes it.
    own: Option<Option<Written>>,
}

/// What the store held under a key.
enum Found {
    Nothing,
    /// An entry, which was not read.
    Some,
    Entry(Bytes),
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

/// What is known of a key, as the transaction left it.
enum Stands<'p> {
    /// This is written, or was found; its time may have come.
    Entry(&'p Bytes),
    Nothing,
    /// The store holds an entry, which was not read.
    Unread,
    /// It was not read yet.
    Unknown,
}

impl Part {
    fn new(namespace: &Namespace) -> Self {
        let (keys, cleared, ranges, wrote, seen) = (Few::new(), false, Vec::new(), 0, Vec::new());
        Self { namespace: namespace.clone(), keys, cleared, ranges, wrote, seen, found_bytes: 0 }
    }

    /// What is known of the key at this place.
    fn stands(&self, at: usize, key: Key<'_>) -> Stands<'_> {
        let stored = match self.keys.at(at) {
            Known { own: Some(own), .. } => own.as_ref().map(|own| &own.stored),
            _ if self.may_hide() && self.hides(&key.to_owned_key()) => None,
            Known { found: Some(Found::Some), .. } => return Stands::Unread,
            Known { found: Some(Found::Entry(stored)), .. } => Some(stored),
            Known { found: Some(Found::Nothing), .. } => None,
            _ => return Stands::Unknown,
        };
        stored.map_or(Stands::Nothing, Stands::Entry)
    }

    /// Remembers what the store holds under the key at this place, and an expiry that it has.
    fn note(&mut self, at: usize, stored: Option<Bytes>) -> StoreResult<()> {
        let expires_ms = stored.as_deref().map(peek).transpose()?.and_then(|seen| seen.expires_ms);
        self.seen.extend(expires_ms.map(|expires_ms| (self.keys.key_at(at).clone(), expires_ms)));
        let found = &mut self.keys.at_mut(at).found;
        // What was found first counts, since that is what is guarded: where there was an entry and is none, the commit
        // will fail.
        if found.is_none() || matches!((&found, &stored), (Some(Found::Some), Some(_))) {
            self.found_bytes += stored.as_ref().map_or(0, Bytes::len);
            *found = Some(stored.map_or(Found::Nothing, Found::Entry));
        }
        Ok(())
    }

    /// Remembers whether the store holds an entry under the key at this place.
    fn note_whether(&mut self, at: usize, is_there: bool) {
        let found = &mut self.keys.at_mut(at).found;
        found.get_or_insert(if is_there { Found::Some } else { Found::Nothing });
    }

    /// Writes over what stands under a key.
    fn set(&mut self, key: Key<'_>, own: Option<Written>) {
        let at = self.keys.place(key);
        self.keys.at_mut(at).own = Some(own);
    }

    /// Whether it was written to the key, or the key was removed.
    fn has_written(&self, key: Key<'_>) -> bool {
        self.keys.get(key).is_some_and(|known| known.own.is_some())
            || self.may_hide() && self.hides(&key.to_owned_key())
    }

    fn may_hide(&self) -> bool {
        self.cleared || !self.ranges.is_empty()
    }

    /// Whether what the store holds under this key is removed by a clear or a range.
    fn hides(&self, key: &OwnedKey) -> bool {
        self.cleared || self.ranges.iter().any(|range| range.contains(key))
    }

    /// Whether nothing is written.
    fn is_read_only(&self) -> bool {
        !self.cleared && self.ranges.is_empty() && self.written().next().is_none()
    }

    /// What is written, in no order.
    fn written(&self) -> impl Iterator<Item = (&OwnedKey, &Option<Written>)> {
        self.keys.iter().filter_map(|(key, known)| Some((key, known.own.as_ref()?)))
    }

    /// Forgets what is written under keys that `of` names.
    fn forget(&mut self, of: impl Fn(&OwnedKey) -> bool) {
        self.keys.iter_mut().filter(|(key, _)| of(key)).for_each(|(_, known)| known.own = None);
    }

    /// Whether nothing is written that would have to go with a clear. To be asked once what was written is moved.
    fn only_clears(&self) -> bool {
        self.ranges.is_empty() && self.wrote == 0
    }

    /// Whether entries are written.
    fn adds(&self) -> bool {
        self.written().any(|(_, written)| written.is_some())
    }

    /// Moves what was read, as guards, and what was written into a transaction.
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
            let new = self.keys.get(key.as_key()).and_then(|known| known.own.as_ref());
            if new.is_some_and(|new| new.as_ref().and_then(|new| new.expires_ms) != Some(*at)) {
                placement.index_remove(txn, key.as_key(), *at);
            }
        }
        for (key, Known { found, own }) in self.keys.take() {
            match found {
                Some(Found::Some) => placement.guard_present(txn, key.clone()),
                Some(Found::Entry(stored)) => placement.guard(txn, key.clone(), Some(stored)),
                Some(Found::Nothing) => placement.guard(txn, key.clone(), None),
                None => {}
            }
            self.wrote += usize::from(own.is_some());
            match own {
                None => {}
                Some(None) => placement.remove(txn, key),
                Some(Some(Written { stored, expires_ms })) => {
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
        let (when_busy, bytes) = (WhenBusy::Wait, 0);
        Self { shared, now_ms, parts, barrier, failed, gives_back, runs_once, hurries, awaited, when_busy, bytes, held }
    }

    /// Holds the stripes of these keys as well, as [`Kv::begin`](crate::Kv::begin) does, if no other holds them:
    /// nothing is waited for. False: another holds one of them.
    pub fn try_hold(&mut self, keys: &[(&Namespace, Key<'_>)]) -> bool {
        let stripes = keys.iter().map(|(namespace, key)| namespace.stripe(*key));
        self.shared.locks.try_more(&mut self.held, stripes)
    }

    /// Bytes of the values that were written so far, with those that were written over since.
    pub fn written_bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes of the values that were found so far, all of which are held and compared again by [`Txn::commit`].
    pub fn found_bytes(&self) -> usize {
        self.parts.iter().map(|part| part.found_bytes).sum()
    }

    /// Whether a write could not be, so that [`Txn::commit`] will fail.
    pub fn has_failed(&self) -> bool {
        self.failed.is_some()
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
        let at = self.part_at(namespace);
        &mut self.parts[at]
    }

    /// Where the part of a namespace stands, which is made if there is none.
    fn part_at(&mut self, namespace: &Namespace) -> usize {
        self.parts.iter().position(|part| part.namespace.is(namespace)).unwrap_or_else(|| {
            if self.parts.is_empty() {
                self.parts.reserve_exact(NAMESPACES);
            }
            self.parts.push(Part::new(namespace));
            self.parts.len() - 1
        })
    }

    fn behind(&self, barrier: Option<Barrier>) {
        if barrier.is_some() {
            self.barrier.replace_with(|own| Barrier::later(own.take(), barrier));
        }
    }

    /// Reads a key that is not known yet, and says in which part and at what place it stands.
    fn read(&mut self, namespace: &Namespace, key: Key<'_>) -> Result<(usize, usize)> {
        namespace.check_key(key)?;
        let of = self.part_at(namespace);
        let part = &mut self.parts[of];
        let at = part.keys.place(key);
        if let Stands::Unknown | Stands::Unread = part.stands(at, key) {
            let stored = self.here(namespace.placement().get(namespace.store(), key))?;
            self.parts[of].note(at, stored)?;
        }
        Ok((of, at))
    }

    /// What stands at a place, if it is live.
    fn live<T>(
        &self,
        (of, at): (usize, usize),
        key: Key<'_>,
        take: impl FnOnce(&Bytes, Seen<'_>) -> T,
    ) -> Result<Option<T>> {
        let Stands::Entry(stored) = self.parts[of].stands(at, key) else { return Ok(None) };
        let seen = peek(stored)?;
        let is_live = seen.expires_ms.is_none_or(|at| at > self.now_ms());
        Ok(is_live.then(|| take(stored, seen)))
    }

    /// The entry of a key, as this transaction left it; `None` if absent or expired. A key that was read before is not
    /// read again: it is guarded.
    ///
    /// # Errors
    /// The store's; `TooLarge` or `Invalid` for a key that the namespace cannot hold.
    pub fn get<'k>(&mut self, namespace: &Namespace, key: impl Into<Key<'k>>) -> Result<Option<Entry>> {
        let key = key.into();
        let place = self.read(namespace, key)?;
        self.live(place, key, Seen::of)
    }

    /// As [`Txn::get`], where a look at the entry is enough: nothing is copied.
    ///
    /// # Errors
    /// Those of [`Txn::get`].
    pub fn look<'k, T>(
        &mut self,
        namespace: &Namespace,
        key: impl Into<Key<'k>>,
        look: impl FnOnce(Seen<'_>) -> T,
    ) -> Result<Option<T>> {
        let key = key.into();
        let place = self.read(namespace, key)?;
        self.live(place, key, |_, seen| look(seen))
    }

    /// Whether this transaction has written or removed the key: what [`Txn::get`] says of it is not stored yet.
    ///
    /// # Errors
    /// The store's.
    pub fn has_written<'k>(&self, namespace: &Namespace, key: impl Into<Key<'k>>) -> Result<bool> {
        Ok(self.part_of(namespace).is_some_and(|part| part.has_written(key.into())))
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
        let of = self.part_at(namespace);
        let part = &mut self.parts[of];
        let places: Vec<usize> = keys.iter().map(|key| part.keys.place(*key)).collect();
        let all = || places.iter().zip(keys);
        let unknown =
            |(at, key): &(&usize, &Key<'_>)| matches!(part.stands(**at, **key), Stands::Unknown | Stands::Unread);
        let wanted: Vec<(usize, Key<'_>)> = all().filter(unknown).map(|(at, key)| (*at, *key)).collect();
        if !wanted.is_empty() {
            let stored = self.here(namespace.get_stored(&wanted.iter().map(|(_, key)| *key).collect::<Vec<_>>()))?;
            for ((at, _), stored) in wanted.into_iter().zip(stored) {
                self.parts[of].note(at, stored)?;
            }
        }
        places.iter().zip(keys).map(|(at, key)| self.live((of, *at), *key, Seen::of)).collect()
    }

    /// Whether entries stand under several keys, in their order, as this transaction left them: also such whose time
    /// has come. Where the store can tell without, no value is read; what is there is guarded to be there, whatever it
    /// holds.
    ///
    /// # Errors
    /// Those of [`Txn::get`].
    pub fn has_many(&mut self, namespace: &Namespace, keys: &[Key<'_>]) -> Result<Vec<bool>> {
        for key in keys {
            namespace.check_key(*key)?;
        }
        let of = self.part_at(namespace);
        let part = &mut self.parts[of];
        let places: SmallVec<[usize; 16]> = keys.iter().map(|key| part.keys.place(*key)).collect();
        let all = || places.iter().zip(keys);
        let unknown = |(at, key): &(&usize, &Key<'_>)| matches!(part.stands(**at, **key), Stands::Unknown);
        let wanted: SmallVec<[usize; 16]> = all().filter(unknown).map(|(at, _)| *at).collect();
        if !wanted.is_empty() {
            let there = self.here(namespace.are_stored(wanted.iter().map(|at| self.parts[of].keys.key_at(*at))))?;
            wanted.iter().zip(there).for_each(|(at, there)| self.parts[of].note_whether(*at, there));
        }
        let part = &self.parts[of];
        Ok(all().map(|(at, key)| matches!(part.stands(*at, *key), Stands::Entry(_) | Stands::Unread)).collect())
    }

    /// Reads keys that will be asked for, as far as that needs no wait: in one look all that this transaction has not
    /// come upon yet. What is found is guarded as what [`Txn::get`] finds, or [`Txn::has_many`] where no values are
    /// wanted. Values of more than `bytes_max` bytes together are not kept.
    pub fn read_ahead(&mut self, namespace: &Namespace, keys: &[Key<'_>], values: bool, bytes_max: usize) -> ReadAhead {
        let of = self.part_at(namespace);
        let part = &mut self.parts[of];
        if part.may_hide() {
            return ReadAhead::Nothing;
        }
        let from = part.keys.len();
        keys.iter().filter(|key| namespace.check_key(**key).is_ok()).for_each(|key| _ = part.keys.place(*key));
        if part.keys.len() == from {
            return ReadAhead::Known;
        }
        // What is wrong is told by who reads it.
        if values {
            let read = namespace.get_stored_of(part.keys.keys_from(from));
            let Some(read) = self.if_here(read) else { return ReadAhead::NotHere };
            let Ok(stored) = read else { return ReadAhead::Nothing };
            if stored.iter().flatten().map(Bytes::len).sum::<usize>() > bytes_max {
                return ReadAhead::Nothing;
            }
            let part = &mut self.parts[of];
            let known = (from..).zip(stored).all(|(at, stored)| part.note(at, stored).is_ok());
            return if known { ReadAhead::Known } else { ReadAhead::Nothing };
        }
        let read = namespace.are_stored(part.keys.keys_from(from));
        let Some(read) = self.if_here(read) else { return ReadAhead::NotHere };
        let Ok(there) = read else { return ReadAhead::Nothing };
        (from..).zip(there).for_each(|(at, there)| self.parts[of].note_whether(at, there));
        ReadAhead::Known
    }

    /// What was read, if it is here.
    fn if_here<T: Send + 'static>(&self, read: Completion<T>) -> Option<StoreResult<T>> {
        if !read.is_here() {
            return None;
        }
        let (found, barrier) = read.into_parts();
        self.behind(barrier);
        Some(found)
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
        let checked = namespace.check_key(key);
        let part = self.part(namespace);
        let join = |header: &[u8], value: &[u8]| part.keys.pieces().of(header, value);
        match checked.and_then(|()| encode_as(value, expires_ms, tag, join)) {
            Ok(stored) => {
                let len = stored.len();
                part.set(key, Some(Written { stored, expires_ms }));
                self.bytes += len;
            }
            Err(error) => self.fail(error),
        }
    }

    /// Removes a key.
    pub fn remove<'k>(&mut self, namespace: &Namespace, key: impl Into<Key<'k>>) {
        let key = key.into();
        match namespace.check_key(key) {
            Ok(()) => self.part(namespace).set(key, None),
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
        part.forget(|key| range.contains(key));
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
        part.forget(|_| true);
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
        let own = part.into_iter().flat_map(Part::written);
        let mut own: VecDeque<(&OwnedKey, &Option<Written>)> = own.filter(|(key, _)| bounds.contains(key)).collect();
        own.make_contiguous().sort_unstable_by_key(|(key, _)| *key);
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
        for (key, written) in part.written() {
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
        let keys = self.parts.iter().map(|part| part.keys.len() + 1).sum();
        txn.guards.reserve_exact(keys);
        txn.ops.reserve(keys);
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
