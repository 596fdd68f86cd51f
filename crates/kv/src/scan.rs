//! Scans: entries in key order, by prefix and range, forward and back; and in the order of their last writes.
//!
//! [`Scan`] → [`Bounds`] → [`Walk`], page by page, one store call each → answer, iterator, or merge with a transaction
//!
//! Invariants:
//! 1. After a page the bounds exclude what it held, so that the next call goes on behind it whatever was written since.
//! 2. No expired entry is shown.
//! 3. Where keys alone are asked for, values are read only of those that the expiry index says to be due, and of all
//! where it says so of very many: the expiry stands before the value.

use std::collections::{HashSet, VecDeque};

use bytes::Bytes;
use esker_store::prefix::{just_above, prefix_end};
use esker_store::{
    Barrier, CommitCursor, CommitEntry, Completion, Error, ObjectId, OmapScan, Result as StoreResult, SlotScan, limits,
};

use crate::entry::{Entry, decode};
use crate::{Key, Kind, Namespace, OwnedKey, Result};

/// Entries that an iterator fetches at once, if they fit [`limits::SCAN_BYTES_MAX`].
const ITER_ENTRIES: usize = 512;
/// With more keys that are due and not removed yet, a scan of keys alone reads all values.
const DUE_KEYS_MAX: usize = 1_024;
/// A walk goes by what was due for so many milliseconds, and then looks again.
const DUE_FOR_MS: u64 = 1_000;

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
    due: Option<Due>,
    /// It waits for no value that is not in memory.
    hurries: bool,
    /// What it would have waited for.
    awaited: Option<Completion<()>>,
    /// Bytes of an entry, as of late, where several objects are merged.
    mean: usize,
}

/// Bytes that an entry is held to have before any were read.
const FIRST_MEAN: usize = 8 << 10;

/// The keys that the expiry index said to be due, at a moment; `None` if they are very many.
struct Due {
    now_ms: u64,
    keys: Option<HashSet<OwnedKey>>,
}

/// One answer of the store: live entries, perhaps none of them; `None` at the end.
pub(crate) type Page = Option<Vec<(OwnedKey, Entry)>>;

impl Walk {
    pub(crate) fn new(namespace: &Namespace, bounds: Bounds, reverse: bool, keys_only: bool) -> Self {
        Self {
            namespace: namespace.clone(),
            bounds,
            reverse,
            keys_only,
            with_expired: false,
            due: None,
            hurries: false,
            awaited: None,
            mean: FIRST_MEAN,
        }
    }

    /// A walk over the keys of all that is stored, live or expired.
    pub(crate) fn over_stored(namespace: &Namespace, bounds: Bounds) -> Self {
        Self {
            namespace: namespace.clone(),
            bounds,
            reverse: false,
            keys_only: true,
            with_expired: true,
            due: None,
            hurries: false,
            awaited: None,
            mean: FIRST_MEAN,
        }
    }

    /// A walk that does not wait: where it would, its page is an error and [`Walk::take_awaited`] what to await.
    pub(crate) fn hurrying(self, hurries: bool) -> Self {
        Self { hurries, ..self }
    }

    /// What the last page would have waited for.
    pub(crate) fn take_awaited(&mut self) -> Option<Completion<()>> {
        self.awaited.take()
    }

    /// What was read, if it is here or may be waited for.
    fn here<T: Send + 'static>(&mut self, read: Completion<T>, barrier: &mut Option<Barrier>) -> StoreResult<T> {
        if self.hurries && !read.is_here() {
            self.awaited = Some(read.map(drop));
            return Err(esker_store::Error::Closed);
        }
        read.applied(barrier)
    }

    /// The next entries, at most `limit` of them, live at `now_ms` (the clock's reading if `None`).
    pub(crate) fn page(&mut self, limit: usize, now_ms: Option<u64>) -> (StoreResult<Page>, Option<Barrier>) {
        let mut barrier = None;
        let page = self.page_behind(limit.clamp(1, limits::SCAN_ENTRIES_MAX), now_ms, &mut barrier);
        (page, barrier)
    }

    fn page_behind(&mut self, limit: usize, now_ms: Option<u64>, barrier: &mut Option<Barrier>) -> StoreResult<Page> {
        // Before the keys: what is removed in between is not among them any more.
        if self.keys_only && !self.with_expired {
            self.look_for_due(now_ms, barrier)?;
        }
        let by_index = self.due.as_ref().is_some_and(|due| due.keys.is_some());
        let bare = self.keys_only && (self.with_expired || by_index);
        let stored = self.fetch(limit, bare, barrier)?;
        let Some((last, _)) = stored.last() else { return Ok(None) };
        let mut bounds = std::mem::replace(&mut self.bounds, Bounds::Empty);
        bounds.pass(last, self.reverse);
        self.bounds = bounds;
        if bare {
            let gone = self.gone(stored.iter().map(|(key, _)| key), barrier)?;
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

    /// Has the index tell what is due: for the walk, or anew after a while.
    fn look_for_due(&mut self, now_ms: Option<u64>, barrier: &mut Option<Barrier>) -> StoreResult<()> {
        let now_ms = now_ms.unwrap_or_else(|| self.namespace.shared().clock.now_ms());
        if self.due.as_ref().is_none_or(|due| now_ms.abs_diff(due.now_ms) > DUE_FOR_MS) {
            let keys = self.due(now_ms, barrier)?;
            self.due = Some(Due { now_ms, keys });
        }
        Ok(())
    }

    /// Those of the keys that are due and have expired, or are not there any more.
    fn gone<'k>(
        &self,
        keys: impl Iterator<Item = &'k OwnedKey>,
        barrier: &mut Option<Barrier>,
    ) -> StoreResult<HashSet<OwnedKey>> {
        let Some(Due { now_ms, keys: Some(due), .. }) = &self.due else { return Ok(HashSet::new()) };
        let doubtful: Vec<&OwnedKey> = keys.filter(|key| due.contains(*key)).collect();
        if doubtful.is_empty() {
            return Ok(HashSet::new());
        }
        let asked: Vec<Key<'_>> = doubtful.iter().map(|key| key.as_key()).collect();
        let stored = self.namespace.get_stored(&asked).applied(barrier)?;
        let mut gone = HashSet::new();
        for (key, stored) in doubtful.into_iter().zip(stored) {
            let entry = stored.map(|stored| decode(&stored)).transpose()?;
            if entry.is_none_or(|entry| entry.is_expired(*now_ms)) {
                gone.insert(key.clone());
            }
        }
        Ok(gone)
    }

    /// The keys that the expiry index says to have expired by now: some of them may have been given more time since.
    /// `None` if there are more than [`DUE_KEYS_MAX`].
    fn due(&self, now_ms: u64, barrier: &mut Option<Barrier>) -> StoreResult<Option<HashSet<OwnedKey>>> {
        let (store, placement) = (self.namespace.store(), self.namespace.placement());
        let mut due = Vec::new();
        // Of all indexes at once; again behind the last of each, until there is none: an answer may be short.
        let mut open: Vec<(ObjectId, Option<Bytes>)> =
            placement.indexes(store, barrier)?.into_iter().map(|index| (index, None)).collect();
        while !open.is_empty() {
            let limit = DUE_KEYS_MAX + 1 - due.len();
            let begun = open.iter().map(|(index, after)| placement.due(store, index, now_ms, after.as_ref(), limit));
            let pages = Completion::all(begun.collect()).applied(barrier)?;
            for ((_, after), page) in open.iter_mut().zip(&pages) {
                *after = page.last().cloned();
            }
            open.retain(|(_, after)| after.is_some());
            due.extend(pages.into_iter().flatten());
            if due.len() > DUE_KEYS_MAX {
                return Ok(None);
            }
        }
        let key = |entry: Bytes| match self.namespace.kind() {
            // What is not a number belongs to no key; checking the store finds it.
            Kind::Int => entry.get(8..)?.try_into().ok().map(|key| OwnedKey::Int(u64::from_be_bytes(key))),
            Kind::Bytes => (entry.len() >= 8).then(|| OwnedKey::Bytes(entry.slice(8..))),
        };
        Ok(Some(due.into_iter().filter_map(key).collect()))
    }

    fn fetch(
        &mut self,
        limit: usize,
        keys_only: bool,
        barrier: &mut Option<Barrier>,
    ) -> StoreResult<Vec<(OwnedKey, Bytes)>> {
        let namespace = self.namespace.clone();
        let (store, placement) = (namespace.store(), namespace.placement());
        let reverse = self.reverse;
        if reverse && !store.capability().reverse_scans {
            return Err(Error::Unsupported { backend: store.capability().backend, what: "scan keys backwards" });
        }
        match self.bounds.clone() {
            Bounds::Empty => Ok(Vec::new()),
            Bounds::Bytes { start, end } => {
                let objects = placement.objects_between(store, &start, end.as_ref(), barrier)?;
                let scan = OmapScan { reverse, limit, keys_only, ..placement.omap_scan(start, end) };
                let page = match &objects[..] {
                    [object] => self.here(store.omap_scan(object, &scan), barrier)?,
                    _ => self.merged(&objects, &scan, barrier)?,
                };
                Ok(page.into_iter().map(|(key, stored)| (placement.byte_key(key), stored)).collect())
            }
            Bounds::Int { first, last } => {
                let ((mut low, low_index), (mut high, high_index)) = (placement.split(first), placement.split(last));
                let (first_range, last_range) = (low, high);
                while let Some((range, object)) = placement.next_range(store, (low, high), reverse, barrier)? {
                    let start = if range == first_range { low_index } else { 0 };
                    let end = if range == last_range { high_index + 1 } else { placement.range_len() };
                    let scan = SlotScan { range: start..end, reverse, limit, keys_only };
                    let page = self.here(store.slot_scan(&object, &scan), barrier)?;
                    if !page.is_empty() {
                        let key = |index| OwnedKey::Int(placement.join(range, index));
                        return Ok(page.into_iter().map(|(index, stored)| (key(index), stored)).collect());
                    }
                    match reverse {
                        true if range > low => high = range - 1,
                        false if range < high => low = range + 1,
                        _ => break,
                    }
                }
                Ok(Vec::new())
            }
        }
    }
}

/// Entries of one object that are asked for where several are merged, at least.
const PART_ENTRIES: usize = 32;

impl Walk {
    /// What a scan finds in several objects, in order: of each a part is asked for, and what is behind the end of
    /// the shortest part is left for the next call.
    fn merged(
        &mut self,
        objects: &[ObjectId],
        scan: &OmapScan,
        barrier: &mut Option<Barrier>,
    ) -> StoreResult<Vec<(Bytes, Bytes)>> {
        let share = 2 * scan.limit.div_ceil(objects.len().max(1));
        // All parts together are about as long as one answer of the store may be.
        let fit = limits::SCAN_BYTES_MAX / objects.len().max(1) / self.mean.max(1);
        let limit = scan.limit.min(share.max(PART_ENTRIES)).min(fit.max(1));
        let first = objects.iter().map(|object| (object, OmapScan { limit, ..scan.clone() }));
        let pages = self.pages(first, barrier)?;
        // An object may answer with less than it holds. Those that did not fill their part are asked for one more.
        let short: Vec<usize> = (0..pages.len()).filter(|at| (1..limit).contains(&pages[*at].len())).collect();
        let behind = short.iter().map(|at| {
            let mut rest = OmapScan { limit: 1, keys_only: true, ..scan.clone() };
            match pages[*at].last() {
                Some((last, _)) if scan.reverse => rest.end = Some(last.clone()),
                Some((last, _)) => rest.start = Some(just_above(last)),
                None => {}
            }
            (&objects[*at], rest)
        });
        let more = self.pages(behind.collect::<Vec<_>>().into_iter(), barrier)?;
        let mut is_whole: Vec<bool> = pages.iter().map(Vec::is_empty).collect();
        for (at, more) in short.into_iter().zip(more) {
            is_whole[at] = more.is_empty();
        }
        let ends = pages.iter().zip(is_whole).filter(|(_, is_whole)| !is_whole).filter_map(|(page, _)| page.last());
        let before = |one: &Bytes, other: &Bytes| if scan.reverse { other.cmp(one) } else { one.cmp(other) };
        let end = ends.map(|(last, _)| last.clone()).min_by(before);
        let mut all: Vec<(Bytes, Bytes)> = pages.into_iter().flatten().collect();
        let bytes: usize = all.iter().map(|(key, value)| key.len() + value.len()).sum();
        self.mean = bytes.checked_div(all.len()).unwrap_or(self.mean);
        all.retain(|(key, _)| end.as_ref().is_none_or(|end| before(key, end).is_le()));
        all.sort_unstable_by(|(one, _), (other, _)| before(one, other));
        all.truncate(scan.limit);
        Ok(all)
    }

    /// What each of these scans finds; all are begun before one is waited for.
    fn pages<'o>(
        &mut self,
        scans: impl Iterator<Item = (&'o ObjectId, OmapScan)>,
        barrier: &mut Option<Barrier>,
    ) -> StoreResult<Vec<Vec<(Bytes, Bytes)>>> {
        let namespace = self.namespace.clone();
        let begun = scans.map(|(object, scan)| namespace.store().omap_scan(object, &scan)).collect();
        self.here(Completion::all(begun), barrier)
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
        self.namespace.check()?;
        let placement = self.namespace.placement();
        if placement.is_parted() {
            let backend = self.namespace.store().capability().backend;
            return Err(Error::Unsupported { backend, what: "tell in which order keys in partitions were written" });
        }
        let answer =
            self.namespace.store().commit_scan(placement.collection(), placement.prefix(), cursor, ITER_ENTRIES);
        let (entries, cursor) = answer.wait()?;
        for entry in entries {
            match entry {
                CommitEntry::Slot(object, index, stored) => {
                    if let Some(range) = placement.range_of(object.name()) {
                        self.page.push_back((OwnedKey::Int(placement.join(range, index)), stored));
                    }
                }
                CommitEntry::Omap(object, key, stored) => {
                    if placement.is_entries(&object) {
                        self.page.push_back((OwnedKey::Bytes(key), stored));
                    }
                }
            }
        }
        self.cursor = cursor;
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
