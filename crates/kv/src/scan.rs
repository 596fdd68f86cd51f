//! Scans: entries in key order, by prefix and range, forward and back; and in the order of their last writes.
//!
//! [`Scan`] → [`Bounds`] → [`Walk`], page by page, one store call each, or a few where keys of several partitions
//! are [merged](crate::merge) → answer, iterator, or merge with a transaction
//!
//! Invariants:
//! 1. After a page the bounds exclude what it held, so that the next call goes on behind it whatever was written since.
//! 2. No expired entry is shown.
//! 3. Where keys alone are asked for, values are read only of those that the expiry index says to be [due](crate::due),
//!    and of all where it says so of very many: the expiry stands before the value.

use std::collections::{HashSet, VecDeque};

use bytes::Bytes;
use esker_store::prefix::{just_above, prefix_end};
use esker_store::{
    Barrier, CommitCursor, CommitEntry, Completion, Error, ObjectId, OmapScan, Result as StoreResult, SlotScan, limits,
};

use crate::due::DueKeys;
use crate::entry::{Entry, decode};
use crate::merge::{Merge, Merged, Reads};
use crate::{Kind, Namespace, OwnedKey, Result};

/// Entries that an iterator fetches at once, if they fit [`limits::SCAN_BYTES_MAX`].
const ITER_ENTRIES: usize = 512;
/// Which entries a scan returns, and in which order. Bounds combine: an entry must be inside all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scan {
    /// Only keys at or above this.
    pub start: Option<OwnedKey>,
    /// Only keys below this.
    pub end: Option<OwnedKey>,
    /// Only keys that start with this; byte keys only.
    pub prefix: Option<Bytes>,
    /// From high keys to low ones.
    pub reverse: bool,
    /// At most so many entries; without bound by default. An answer is held in memory whole.
    pub limit: usize,
    /// Ends behind the entry with which an answer of [`Txn::scan`](crate::Txn::scan) holds so many bytes of keys and
    /// values; without bound by default. Then an answer shorter than `limit` need not hold the last of them: only an
    /// empty one is the end. Other scans take no heed of it.
    pub bytes_max: usize,
    /// Leave entries empty (no value, expiry or tag): keys are enough. A key that has expired is left out as well, save
    /// one that is written and removed by others while the scan looks.
    pub keys_only: bool,
    /// Only keys behind this one in the order of the scan: the last key of the page before.
    pub after: Option<OwnedKey>,
}

impl Default for Scan {
    fn default() -> Self {
        let (limit, bytes_max) = (usize::MAX, usize::MAX);
        Self { start: None, end: None, prefix: None, reverse: false, limit, bytes_max, keys_only: false, after: None }
    }
}

impl Scan {
    /// All entries.
    pub fn all() -> Self {
        Self::default()
    }

    /// Those whose byte keys start with `prefix`.
    pub fn prefix(prefix: impl Into<Bytes>) -> Self {
        Self { prefix: Some(prefix.into()), ..Self::default() }
    }

    /// Those from `start` on, up to but without `end`.
    pub fn range(start: impl Into<OwnedKey>, end: impl Into<OwnedKey>) -> Self {
        Self { start: Some(start.into()), end: Some(end.into()), ..Self::default() }
    }

    /// From high keys to low ones.
    pub fn reversed(self) -> Self {
        Self { reverse: true, ..self }
    }

    /// At most `limit` of them.
    pub fn limited(self, limit: usize) -> Self {
        Self { limit, ..self }
    }

    /// Behind `key`.
    pub fn after(self, key: impl Into<OwnedKey>) -> Self {
        Self { after: Some(key.into()), ..self }
    }

    /// Without their entries.
    pub fn keys(self) -> Self {
        Self { keys_only: true, ..self }
    }
}

/// The keys that a scan still has before it.
#[derive(Clone, Debug)]
pub(crate) enum Bounds {
    /// None.
    Empty,
    /// These, both included.
    Int { first: u64, last: u64 },
    /// `start <= key < end`.
    Bytes { start: Bytes, end: Option<Bytes> },
}

impl Bounds {
    pub(crate) fn of(namespace: &Namespace, scan: &Scan) -> StoreResult<Self> {
        namespace.check()?;
        let wrong = || namespace.wrong_kind("scan bound", other(namespace.kind()));
        let mut bounds = match namespace.kind() {
            Kind::Int => {
                if scan.prefix.is_some() {
                    return Err(wrong());
                }
                let int = |key: &Option<OwnedKey>| key.as_ref().map(|key| key.as_int().ok_or_else(wrong)).transpose();
                let first = int(&scan.start)?.unwrap_or(0);
                match int(&scan.end)? {
                    None => Self::Int { first, last: u64::MAX },
                    Some(end) if end <= first => Self::Empty,
                    Some(end) => Self::Int { first, last: end - 1 },
                }
            }
            Kind::Bytes => {
                let bytes = |key: &Option<OwnedKey>| {
                    key.as_ref().map(|key| key.as_bytes().cloned().ok_or_else(wrong)).transpose()
                };
                let mut start = bytes(&scan.start)?.unwrap_or_default();
                let mut end = bytes(&scan.end)?;
                if let Some(prefix) = &scan.prefix {
                    start = start.max(prefix.clone());
                    end = [end, prefix_end(prefix)].into_iter().flatten().min();
                }
                Self::Bytes { start, end }.or_empty()
            }
        };
        if let Some(after) = &scan.after {
            if after.as_key().kind() != namespace.kind() {
                return Err(wrong());
            }
            bounds.pass(after, scan.reverse);
        }
        Ok(bounds)
    }

    fn or_empty(self) -> Self {
        match self {
            Self::Int { first, last } if first > last => Self::Empty,
            Self::Bytes { start, end: Some(end) } if start >= end => Self::Empty,
            bounds => bounds,
        }
    }

    /// Leaves out `key` and whatever the scan meets before it.
    pub(crate) fn pass(&mut self, key: &OwnedKey, reverse: bool) {
        let rest = match (std::mem::replace(self, Self::Empty), key) {
            (Self::Int { first, last }, OwnedKey::Int(key)) => {
                match (reverse, key.checked_sub(1), key.checked_add(1)) {
                    (true, Some(below), _) => Self::Int { first, last: last.min(below) },
                    (false, _, Some(above)) => Self::Int { first: first.max(above), last },
                    _ => Self::Empty,
                }
            }
            (Self::Bytes { start, end }, OwnedKey::Bytes(key)) if reverse => {
                let end = end.map_or_else(|| key.clone(), |end| end.min(key.clone()));
                Self::Bytes { start, end: Some(end) }
            }
            (Self::Bytes { start, end }, OwnedKey::Bytes(key)) => {
                Self::Bytes { start: start.max(just_above(key)), end }
            }
            (_, _) => Self::Empty,
        };
        *self = rest.or_empty();
    }

    pub(crate) fn contains(&self, key: &OwnedKey) -> bool {
        match (self, key) {
            (Self::Int { first, last }, OwnedKey::Int(key)) => first <= key && key <= last,
            (Self::Bytes { start, end }, OwnedKey::Bytes(key)) => {
                start <= key && end.as_ref().is_none_or(|end| key < end)
            }
            (_, _) => false,
        }
    }
}

fn other(kind: Kind) -> Kind {
    match kind {
        Kind::Int => Kind::Bytes,
        Kind::Bytes => Kind::Int,
    }
}

/// A scan under way over what the store holds.
pub(crate) struct Walk {
    namespace: Namespace,
    bounds: Bounds,
    reverse: bool,
    keys_only: bool,
    /// Whether expired entries count too.
    with_expired: bool,
    /// What was due when it was looked last, where keys alone are walked over.
    due: Option<DueKeys>,
    reads: Reads,
    merge: Merge,
}

/// One answer of the store: live entries, perhaps none of them; `None` at the end.
pub(crate) type Page = Option<Vec<(OwnedKey, Entry)>>;

/// What the store holds under the next keys.
struct Fetched {
    entries: Vec<(OwnedKey, Bytes)>,
    /// The last key that was dealt with.
    passed: OwnedKey,
    /// Without values.
    bare: bool,
}

impl Fetched {
    fn of(entries: Vec<(OwnedKey, Bytes)>, bare: bool) -> Option<Self> {
        let passed = entries.last()?.0.clone();
        Some(Self { entries, passed, bare })
    }
}

impl Walk {
    pub(crate) fn new(namespace: &Namespace, bounds: Bounds, reverse: bool, keys_only: bool) -> Self {
        let (namespace, with_expired, due) = (namespace.clone(), false, None);
        let (reads, merge) = (Reads::default(), Merge::default());
        Self { namespace, bounds, reverse, keys_only, with_expired, due, reads, merge }
    }

    /// A walk over the keys of all that is stored, live or expired.
    pub(crate) fn over_stored(namespace: &Namespace, bounds: Bounds) -> Self {
        Self { with_expired: true, ..Self::new(namespace, bounds, false, true) }
    }

    /// A walk that does not wait: where it would, its page is an error and [`Walk::take_awaited`] what to await.
    pub(crate) fn hurrying(mut self, hurry: bool) -> Self {
        self.reads.hurry = hurry;
        self
    }

    /// What the last page would have waited for.
    pub(crate) fn take_awaited(&mut self) -> Option<Completion<()>> {
        self.reads.awaited.take()
    }

    /// The next entries, at most `limit` of them, live at `now_ms` (the clock's reading if `None`).
    pub(crate) fn page(&mut self, limit: usize, now_ms: Option<u64>) -> (StoreResult<Page>, Option<Barrier>) {
        let mut barrier = None;
        let page = self.page_behind(limit.clamp(1, limits::SCAN_ENTRIES_MAX), now_ms, &mut barrier);
        (page, barrier)
    }

    fn page_behind(&mut self, limit: usize, now_ms: Option<u64>, barrier: &mut Option<Barrier>) -> StoreResult<Page> {
        let Some(fetched) = self.fetch(limit, now_ms, barrier)? else { return Ok(None) };
        let mut bounds = std::mem::replace(&mut self.bounds, Bounds::Empty);
        bounds.pass(&fetched.passed, self.reverse);
        self.bounds = bounds;
        let stored = fetched.entries;
        if fetched.bare {
            let keys = stored.iter().map(|(key, _)| key);
            let gone = match &self.due {
                Some(due) => due.gone(&self.namespace, keys, barrier)?,
                None => HashSet::new(),
            };
            let page =
                stored.into_iter().filter(|(key, _)| !gone.contains(key)).map(|(key, _)| (key, Entry::default()));
            return Ok(Some(page.collect()));
        }
        let mut now_ms = now_ms;
        let mut page = Vec::with_capacity(stored.len());
        for (key, stored) in stored {
            let entry = decode(&stored)?;
            if entry.expires_ms.is_some() {
                let now_ms = *now_ms.get_or_insert_with(|| self.namespace.shared().clock.now_ms());
                if entry.is_expired(now_ms) {
                    continue;
                }
            }
            page.push((key, if self.keys_only { Entry::default() } else { entry }));
        }
        Ok(Some(page))
    }

    /// Whether the keys of these objects are enough. Where expired ones do not count, the index tells what is due, now
    /// and then anew; before the keys are read: what is removed in between is not among them any more.
    fn is_bare(
        &mut self,
        objects: &[ObjectId],
        now_ms: Option<u64>,
        barrier: &mut Option<Barrier>,
    ) -> StoreResult<bool> {
        if !self.keys_only || self.with_expired {
            return Ok(self.keys_only);
        }
        if !self.due.as_ref().is_some_and(|due| due.holds(&self.namespace, objects, now_ms)) {
            self.due = Some(DueKeys::look(&self.namespace, objects, now_ms, barrier)?);
        }
        Ok(self.due.as_ref().is_some_and(DueKeys::is_known))
    }

    fn fetch(
        &mut self,
        limit: usize,
        now_ms: Option<u64>,
        barrier: &mut Option<Barrier>,
    ) -> StoreResult<Option<Fetched>> {
        let namespace = self.namespace.clone();
        let (store, placement) = (namespace.store(), namespace.placement());
        let reverse = self.reverse;
        if reverse && !store.capability().reverse_scans {
            return Err(Error::Unsupported { backend: store.capability().backend, what: "scan keys backwards" });
        }
        match self.bounds.clone() {
            Bounds::Empty => Ok(None),
            Bounds::Bytes { start, end } => {
                let objects = placement.objects_between(store, &start, end.as_ref(), barrier)?;
                let bare = self.is_bare(&objects, now_ms, barrier)?;
                let scan = OmapScan { reverse, limit, keys_only: bare, ..placement.omap_scan(start, end) };
                let [object] = &objects[..] else {
                    let merged = self.merge.page(&namespace, &objects, &scan, &mut self.reads, barrier)?;
                    return Ok(merged.map(|Merged { entries, passed }| Fetched { entries, passed, bare }));
                };
                let found = self.reads.here(store.omap_scan(object, &scan), barrier)?;
                let entries = found.into_iter().map(|(key, stored)| (placement.byte_key(key), stored));
                Ok(Fetched::of(entries.collect(), bare))
            }
            Bounds::Int { first, last } => {
                let ((mut low, low_index), (mut high, high_index)) = (placement.split(first), placement.split(last));
                let (first_range, last_range) = (low, high);
                while let Some((range, object)) = placement.next_range(store, (low, high), reverse, barrier)? {
                    let bare = self.is_bare(std::slice::from_ref(&object), now_ms, barrier)?;
                    let start = if range == first_range { low_index } else { 0 };
                    let end = if range == last_range { high_index + 1 } else { placement.range_len() };
                    let scan = SlotScan { range: start..end, reverse, limit, keys_only: bare };
                    let found = self.reads.here(store.slot_scan(&object, &scan), barrier)?;
                    let key = |index| OwnedKey::Int(placement.join(range, index));
                    let entries = found.into_iter().map(|(index, stored)| (key(index), stored)).collect();
                    if let Some(fetched) = Fetched::of(entries, bare) {
                        return Ok(Some(fetched));
                    }
                    match reverse {
                        true if range > low => high = range - 1,
                        false if range < high => low = range + 1,
                        _ => break,
                    }
                }
                Ok(None)
            }
        }
    }
}

impl Namespace {
    /// The entries that `scan` asks for. An answer shorter than its limit holds the last of them; else go on with
    /// [`Scan::after`] the last key. A long answer takes several store calls, and may show writes made between them;
    /// within a [`Txn`](crate::Txn) that is exclusive it does not.
    pub fn scan(&self, scan: &Scan) -> Completion<Vec<(OwnedKey, Entry)>> {
        let mut barrier = None;
        let found = self.scan_behind(scan, &mut barrier);
        Completion::after(found, barrier)
    }

    fn scan_behind(&self, scan: &Scan, barrier: &mut Option<Barrier>) -> StoreResult<Vec<(OwnedKey, Entry)>> {
        let mut walk = Walk::new(self, Bounds::of(self, scan)?, scan.reverse, scan.keys_only);
        let mut found = Vec::new();
        while found.len() < scan.limit {
            let (page, behind) = walk.page(scan.limit - found.len(), None);
            *barrier = Barrier::later(barrier.take(), behind);
            let Some(page) = page? else { break };
            found.extend(page);
        }
        Ok(found)
    }

    /// A key that has not expired, chosen by this number among the first keys of a partition of byte keys; `None` if
    /// there is none. Of large partitions others are never chosen.
    pub fn some_key(&self, random: u64) -> Completion<Option<OwnedKey>> {
        let mut barrier = None;
        let found = self.some_key_behind(random, &mut barrier);
        Completion::after(found, barrier)
    }

    fn some_key_behind(&self, random: u64, barrier: &mut Option<Barrier>) -> StoreResult<Option<OwnedKey>> {
        self.check()?;
        let (store, placement) = (self.store(), self.placement());
        if self.kind() == Kind::Int {
            return Err(self.wrong_kind("key", Kind::Bytes));
        }
        let objects = placement.objects(store, Kind::Bytes, barrier)?;
        let (parts, random) = (objects.len().max(1) as u64, random as usize);
        let scan = OmapScan { limit: ITER_ENTRIES, keys_only: true, ..placement.omap_scan(Bytes::new(), None) };
        for turn in 0..objects.len() {
            let object = &objects[(random % parts as usize + turn) % objects.len()];
            let page = store.omap_scan(object, &scan).applied(barrier)?;
            let len = page.len();
            for at in 0..len {
                let key = placement.byte_key(page[(random / parts as usize + at) % len].0.clone());
                if self.has(key.as_key()).applied(barrier)? {
                    return Ok(Some(key));
                }
            }
        }
        Ok(None)
    }

    /// The entries that `scan` asks for, fetched as they are asked for. Waits for what it shows.
    pub fn iter(&self, scan: Scan) -> ScanIter {
        let (walk, failed) = match Bounds::of(self, &scan) {
            Ok(bounds) => (Some(Walk::new(self, bounds, scan.reverse, scan.keys_only)), None),
            Err(error) => (None, Some(error)),
        };
        ScanIter { walk, failed, page: VecDeque::new(), left: scan.limit }
    }

    /// All entries in the order in which they were last written. Waits for what it shows. An entry that is written
    /// while the iterator is under way may be met again, later.
    ///
    /// # Errors
    /// The store's `Unsupported` where it keeps no commit order.
    pub fn insertion_iter(&self) -> InsertionIter {
        InsertionIter { namespace: self.clone(), cursor: Some(CommitCursor::default()), page: VecDeque::new() }
    }
}

/// Entries of a page in the order of their last writes, and where the next page begins; the end without.
pub type InsertionPage = (Vec<(OwnedKey, Entry)>, Option<CommitCursor>);

impl Namespace {
    /// Up to about `limit` entries in the order in which they were last written, from this cursor on, the first page
    /// from the default one. A page may be empty though others follow; an entry that is written meanwhile comes again,
    /// later. The store may read on the caller's thread.
    ///
    /// The error is the store's `Unsupported` where it keeps no commit order, or the namespace lies in partitions.
    pub fn insertion_page(&self, after: CommitCursor, limit: usize) -> Completion<InsertionPage> {
        let own = self.clone();
        self.stored_in_order(after, limit).then(move |page| {
            let (stored, cursor) = page?;
            let now_ms = own.shared().clock.now_ms();
            let decoded = stored.into_iter().map(|(key, stored)| Ok((key, decode(&stored)?)));
            let live = decoded.filter(|entry| !entry.as_ref().is_ok_and(|(_, entry)| entry.is_expired(now_ms)));
            Ok((live.collect::<StoreResult<_>>()?, cursor))
        })
    }

    /// The same as they are stored, those that have expired too.
    fn stored_in_order(&self, after: CommitCursor, limit: usize) -> Completion<StoredPage> {
        if let Err(error) = self.check() {
            return Completion::ready(Err(error));
        }
        let placement = self.placement();
        if placement.is_parted() {
            let backend = self.store().capability().backend;
            let what = "tell in which order keys in partitions were written";
            return Completion::ready(Err(Error::Unsupported { backend, what }));
        }
        let own = self.clone();
        let answer = self.store().commit_scan(placement.collection(), placement.prefix(), after, limit);
        answer.map(move |(entries, cursor)| {
            let placement = own.placement();
            let own = |entry| match entry {
                CommitEntry::Slot(object, index, stored) => {
                    let range = placement.range_of(object.name())?;
                    Some((OwnedKey::Int(placement.join(range, index)), stored))
                }
                CommitEntry::Omap(object, key, stored) => {
                    placement.is_entries(&object).then_some((OwnedKey::Bytes(key), stored))
                }
            };
            (entries.into_iter().filter_map(own).collect(), cursor)
        })
    }
}

/// Entries as they are stored, and where the next begin.
type StoredPage = (Vec<(OwnedKey, Bytes)>, Option<CommitCursor>);

/// Entries in key order; ends after an error. From [`Namespace::iter`].
pub struct ScanIter {
    walk: Option<Walk>,
    failed: Option<Error>,
    page: VecDeque<(OwnedKey, Entry)>,
    left: usize,
}

impl Iterator for ScanIter {
    type Item = Result<(OwnedKey, Entry)>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(error) = self.failed.take() {
            return Some(Err(error.into()));
        }
        if self.left == 0 {
            return None;
        }
        while self.page.is_empty() {
            let walk = self.walk.as_mut()?;
            let (page, barrier) = walk.page(self.left.min(ITER_ENTRIES), None);
            match Completion::after(page, barrier).wait() {
                Ok(Some(page)) => self.page = page.into(),
                Ok(None) => self.walk = None,
                Err(error) => {
                    self.walk = None;
                    return Some(Err(error.into()));
                }
            }
        }
        self.left -= 1;
        self.page.pop_front().map(Ok)
    }
}

/// Entries in the order of their last writes; ends after an error. From [`Namespace::insertion_iter`].
pub struct InsertionIter {
    namespace: Namespace,
    cursor: Option<CommitCursor>,
    page: VecDeque<(OwnedKey, Bytes)>,
}

impl InsertionIter {
    /// Whether there is a next page; its entries, if so, are in `page`.
    fn fetch(&mut self) -> StoreResult<bool> {
        let Some(cursor) = self.cursor.take() else { return Ok(false) };
        let (page, cursor) = self.namespace.stored_in_order(cursor, ITER_ENTRIES).wait()?;
        (self.page, self.cursor) = (page.into(), cursor);
        Ok(true)
    }
}

impl Iterator for InsertionIter {
    type Item = Result<(OwnedKey, Entry)>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let Some((key, stored)) = self.page.pop_front() else {
                match self.fetch() {
                    Ok(true) => continue,
                    Ok(false) => return None,
                    Err(error) => return Some(Err(error.into())),
                }
            };
            match decode(&stored) {
                Ok(entry) if entry.expires_ms.is_some() && entry.is_expired(self.namespace.shared().clock.now_ms()) => {
                }
                Ok(entry) => return Some(Ok((key, entry))),
                Err(error) => {
                    (self.cursor, self.page) = (None, VecDeque::new());
                    return Some(Err(error.into()));
                }
            }
        }
    }
}
