//! An ordered map from byte strings to small values, made of pages of about 4 KiB that know whether they changed.
//!
//! A B+tree: leaf pages hold keys and values and are linked both ways; inner pages hold separators, cut to the
//! bytes that tell two neighbours apart, and the leaves' numbers. A checkpoint needs the leaves only: the inner
//! pages follow from them.
//!
//! ```text
//! get     root → inner … → leaf, one search each
//! insert  the same; a full leaf splits: in half, or at the new key when that comes first or last in its leaf,
//!         so that ascending keys leave full pages behind
//! remove  the same; a leaf less than a quarter full joins a neighbour under the same parent, an empty one goes
//! ```
//!
//! Invariants:
//! 1. Leaves are all at depth `height`; only a tree with no key has no root.
//! 2. No leaf is empty. An inner page has at least one child; separators are above every key to their left and
//!    not above any key to their right.
//! 3. A page above `PAGE_BYTES` has few entries (long keys): at most `LEAF_KEYS_MIN` or `INNER_KEYS_MIN`.
//! 4. Every leaf whose entries changed since [`Tree::clear_dirty`], freed ones included, is dirty.
//! 5. A leaf may be cold, not in memory; inner pages never are. A writer that changes something has seen to it that no
//!    leaf it needs is ([`Tree::missing_at`], [`Tree::missing_between`]).

mod balance;
mod node;
mod page;
mod saved;
mod scan;

use smallvec::SmallVec;
use triomphe::Arc;

use self::node::{
    Body, INNER_KEYS_MIN, Inner, LEAF_KEYS_MIN, Leaf, NONE, PAGE_BYTES, READIED, UNDERFULL_BYTES, hot_mut, unshared,
};
pub use self::node::{Kept, PageId, TREE_KEY_BYTES_MAX};
use self::page::{Page, common_prefix_len};
pub use self::saved::{SavedLeaf, SavedPage};
use super::shared_vec::SharedVec;
use super::{Dropped, Missing, Used};
use crate::format::Loc;
use crate::prefetch::prefetch_one;

/// Keys of which each takes a step before any takes the next.
const TOGETHER: usize = 16;

/// The map. See the module. A clone shares all pages with its original until one of the two changes them;
/// making one takes a moment for each 128 pages.
#[derive(Clone)]
pub struct Tree<V> {
    leaves: SharedVec<Leaf<V>>,
    free_leaves: Vec<u32>,
    inners: SharedVec<Inner>,
    free_inners: Vec<u32>,
    root: u32,
    /// Inner pages above each leaf.
    height: u32,
    first_leaf: PageId,
    last_leaf: PageId,
    len: u64,
    /// Heap bytes of all leaves in memory.
    page_bytes: usize,
    /// Heap bytes of all inner pages.
    inner_bytes: usize,
    /// Leaves that are not in memory.
    cold: u64,
    /// One bit for each leaf.
    dirty: Vec<u64>,
}

impl<V: Kept> Default for Tree<V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<V: Kept> Tree<V> {
    /// An empty tree; takes no heap memory.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            leaves: SharedVec::new(),
            free_leaves: Vec::new(),
            inners: SharedVec::new(),
            free_inners: Vec::new(),
            root: NONE,
            height: 0,
            first_leaf: NONE,
            last_leaf: NONE,
            len: 0,
            page_bytes: 0,
            inner_bytes: 0,
            cold: 0,
            dirty: Vec::new(),
        }
    }

    /// Number of keys; exact.
    #[inline]
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// No key at all.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Number of leaf pages.
    #[must_use]
    pub fn page_count(&self) -> usize {
        self.leaves.len() - self.free_leaves.len()
    }

    /// Memory the tree holds, in bytes, itself included; exact up to the allocator's own rounding.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        size_of::<Self>()
            + self.page_bytes
            + self.inner_bytes
            + self.leaves.heap_bytes()
            + self.inners.heap_bytes()
            + (self.free_leaves.capacity() + self.free_inners.capacity()) * size_of::<u32>()
            + self.dirty.capacity() * size_of::<u64>()
    }

    /// Heap bytes of the leaves that are in memory.
    #[inline]
    #[must_use]
    pub fn page_bytes(&self) -> usize {
        self.page_bytes
    }

    /// Number of leaves that are not in memory.
    #[inline]
    #[must_use]
    pub fn cold_pages(&self) -> u64 {
        self.cold
    }

    /// The value of `key`.
    ///
    /// # Errors
    /// [`Missing`]: its leaf is not in memory.
    #[inline]
    pub fn get(&self, key: &[u8]) -> Result<Option<V>, Missing> {
        let id = self.descend(key);
        if id == NONE {
            return Ok(None);
        }
        let page = self.page(id)?;
        Ok(page.find(key).map(|at| page.value(at)))
    }

    /// The values of several keys, in their order, as [`Tree::get`] finds them. All keys take one step before any takes
    /// the next, so that the processor fetches what that needs for many at a time.
    ///
    /// # Errors
    /// [`Missing`]: a leaf is not in memory.
    pub fn get_many<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<Option<V>>, Missing> {
        let mut values = Vec::with_capacity(keys.len());
        if self.root == NONE {
            values.resize_with(keys.len(), || None);
            return Ok(values);
        }
        for keys in keys.chunks(TOGETHER) {
            let leaf_of = |key: &K| {
                let id = self.descend(key.as_ref());
                prefetch_one(&self.leaves[id as usize]);
                id
            };
            let ids: SmallVec<[PageId; TOGETHER]> = keys.iter().map(leaf_of).collect();
            let hot = || ids.iter().filter_map(|id| self.page(*id).ok());
            hot().for_each(prefetch_one);
            hot().for_each(Page::prefetch_heads);
            let mut places = SmallVec::<[(&Page<V>, Option<usize>); TOGETHER]>::new();
            for (key, id) in keys.iter().zip(ids) {
                let page = self.page(id)?;
                places.push((page, page.candidate(key.as_ref())));
            }
            let found = places
                .iter()
                .zip(keys)
                .map(|((page, at), key)| page.find_from((*at)?, key.as_ref()).map(|at| page.value(at)));
            values.extend(found);
        }
        Ok(values)
    }

    /// The leaf that has the place of `key`, if it is not in memory.
    #[inline]
    #[must_use]
    pub fn missing_at(&self, key: &[u8]) -> Option<Missing> {
        if self.cold == 0 {
            return None;
        }
        self.missing_page(self.descend(key))
    }

    /// The leaves from `id` on, in key order, that are not in memory, up to `max` of them or to one that is.
    pub fn missing_after(&self, id: PageId, max: usize) -> Vec<Missing> {
        let mut found = Vec::new();
        let mut next = id;
        while next != NONE && found.len() < max {
            let Some(missing) = self.missing_page(next) else { break };
            found.push(missing);
            next = self.leaves[next as usize].next;
        }
        found
    }

    /// The leaves that are not in memory from the one before `start` (`None`: the first) to the one after `end`
    /// (`None`: the last).
    pub fn missing_between(&self, start: Option<&[u8]>, end: Option<&[u8]>, out: &mut Vec<Missing>) {
        if self.cold == 0 {
            return;
        }
        let previous = |id: PageId| match self.leaves[id as usize].previous {
            NONE => id,
            previous => previous,
        };
        let mut id = start.map_or(self.first_leaf, |key| previous(self.descend(key)));
        let last = end.map_or(self.last_leaf, |key| self.leaves[self.descend(key) as usize].next);
        while id != NONE {
            out.extend(self.missing_page(id));
            if id == last {
                break;
            }
            id = self.leaves[id as usize].next;
        }
    }

    /// The value of `key`, to change in place; its page becomes dirty.
    pub fn get_mut(&mut self, key: &[u8]) -> Option<&mut V> {
        let id = self.descend(key);
        let at = self.hot(id)?.find(key)?;
        self.mark_dirty(id);
        Some(self.page_mut(id).value_mut(at))
    }

    /// The entry with the greatest key not above `key`.
    #[must_use]
    pub fn floor(&self, key: &[u8]) -> Option<(&[u8], V)> {
        let id = self.descend(key);
        let (id, at) = match (self.hot(id)?.position(key), self.leaves[id as usize].previous) {
            (Ok(at), _) => (id, at),
            (Err(0), previous) => (previous, self.hot(previous)?.len() - 1),
            (Err(at), _) => (id, at - 1),
        };
        self.hot(id).map(|page| (page.key(at), page.value(at)))
    }

    /// The entry with the greatest key, if its leaf is in memory.
    #[must_use]
    pub fn last(&self) -> Option<(&[u8], V)> {
        let leaf = self.leaves.get(self.last_leaf as usize)?;
        let Body::Hot(page) = &leaf.body else { return None };
        Some((page.key(page.len() - 1), page.value(page.len() - 1)))
    }

    /// Sets `key` to `value` and says what it was. Over a key that is there nothing is allocated.
    ///
    /// # Panics
    /// When `key` is longer than [`TREE_KEY_BYTES_MAX`].
    #[inline]
    pub fn insert(&mut self, key: &[u8], value: V) -> Option<V> {
        assert!(key.len() <= TREE_KEY_BYTES_MAX, "key of {} bytes is above TREE_KEY_BYTES_MAX", key.len());
        if self.root == NONE {
            self.root = self.add_leaf(Page::new(), NONE, NONE);
        }
        let id = self.descend(key);
        self.mark_dirty(id);
        let page_bytes = &mut self.page_bytes;
        let page = unshared(hot_mut(&mut self.leaves[id as usize].body), page_bytes);
        match page.position(key) {
            Ok(at) => return Some(std::mem::replace(page.value_mut(at), value)),
            Err(at) if page.used_bytes_with(key.len()) <= PAGE_BYTES || page.len() < LEAF_KEYS_MIN => {
                let before = page.heap_bytes();
                page.insert_at(at, key, value);
                *page_bytes += page.heap_bytes() - before;
            }
            Err(at) => self.insert_in_full(id, at, key, value),
        }
        self.len += 1;
        None
    }

    /// Takes `key` out and says what its value was.
    #[inline]
    pub fn remove(&mut self, key: &[u8]) -> Option<V> {
        let id = self.descend(key);
        let at = self.hot(id)?.find(key)?;
        let value = self.page_mut(id).remove_at(at);
        self.len -= 1;
        self.mark_dirty(id);
        if self.page_mut(id).used_bytes() < UNDERFULL_BYTES {
            self.refill(key);
        }
        Some(value)
    }

    /// Takes out every key from `start` up to but without `end` (`None`: to the last), calls `gone` for each in
    /// order, and returns how many there were.
    pub fn remove_range(&mut self, start: &[u8], end: Option<&[u8]>, mut gone: impl FnMut(&[u8], V)) -> u64 {
        let before = self.len;
        while let Some(((id, at), _)) = self.seek(start) {
            let Some(page) = self.hot(id) else { break };
            let until = match end.map(|end| page.position(end)) {
                None => page.len(),
                Some(Ok(until) | Err(until)) => until,
            };
            if until <= at {
                break;
            }
            (at..until).for_each(|each| gone(page.key(each), page.value(each)));
            let finished = until < page.len();
            // A key of the leaf leads back to it, also when it is empty by then.
            let underfull = page.used_bytes() * (page.len() - (until - at)) / page.len() < UNDERFULL_BYTES;
            let way_back = underfull.then(|| page.key(at).to_vec());
            self.page_mut(id).remove(at..until);
            self.len -= (until - at) as u64;
            self.mark_dirty(id);
            if let Some(key) = way_back {
                self.refill(&key);
            }
            if finished {
                break;
            }
        }
        before - self.len
    }

    /// Takes out every key. All pages become dirty.
    pub fn clear(&mut self) {
        let mut dirty = std::mem::take(&mut self.dirty);
        for (id, _) in self.leaves.iter().enumerate().filter(|(_, leaf)| leaf.in_use()) {
            set_bit(&mut dirty, id as PageId);
        }
        *self = Self { dirty, ..Self::new() };
    }

    /// Numbers of the leaves that changed since [`Self::clear_dirty`], ascending; freed ones too, which have no
    /// entries.
    pub fn dirty_pages(&self) -> impl Iterator<Item = PageId> + '_ {
        self.dirty.iter().enumerate().flat_map(|(word, bits)| {
            (0..u64::BITS).filter(move |bit| bits >> bit & 1 == 1).map(move |bit| word as u32 * u64::BITS + bit)
        })
    }

    /// Makes one leaf count as changed, if it is in use and in memory.
    pub fn mark_page_dirty(&mut self, id: PageId) {
        if self.leaves.get(id as usize).is_some_and(|leaf| leaf.in_use() && leaf.cold().is_none()) {
            self.mark_dirty(id);
        }
    }

    /// Makes every page clean.
    pub fn clear_dirty(&mut self) {
        self.dirty.clear();
    }

    /// The entries of a leaf, which is in memory, ascending; none when it is free or was never there.
    pub fn page_entries(&self, id: PageId) -> impl Iterator<Item = (&[u8], V)> {
        self.hot(id).into_iter().flat_map(|page| (0..page.len()).map(|at| (page.key(at), page.value(at))))
    }

    /// Where the last checkpoint has a leaf that is not in memory.
    #[must_use]
    pub fn cold_page(&self, id: PageId) -> Option<Loc> {
        self.leaves.get(id as usize)?.cold()
    }

    /// Takes a leaf out of memory that the last checkpoint has at `loc`, unless it has changed or was just used.
    pub fn drop_page(&mut self, id: PageId, loc: Loc) -> Dropped {
        let dirty = self.dirty.get((id / u64::BITS) as usize).is_some_and(|bits| bits >> (id % u64::BITS) & 1 == 1);
        match self.leaves.get(id as usize) {
            Some(leaf) if leaf.in_use() && leaf.cold().is_none() && !dirty => {
                if leaf.used.take() {
                    return Dropped::Used;
                }
                let body = &mut self.leaves[id as usize].body;
                let Body::Hot(page) = std::mem::replace(body, Body::Cold(loc)) else { return Dropped::Stays };
                self.page_bytes -= page.heap_bytes();
                self.cold += 1;
                Dropped::Freed(page.heap_bytes())
            }
            _ => Dropped::Stays,
        }
    }

    /// Puts back a leaf that left memory. Nothing happens when it is there again. False unless it fits where it was.
    pub fn restore(&mut self, id: PageId, at: Loc, saved: SavedLeaf<V>) -> bool {
        let Some(leaf) = self.leaves.get(id as usize).filter(|leaf| leaf.cold() == Some(at)) else { return true };
        let mut page = saved.0;
        let Some(last) = page.len().checked_sub(1) else { return false };
        let (previous, next) = (leaf.previous, leaf.next);
        if self.descend(page.key(0)) != id || self.descend(page.key(last)) != id {
            return false;
        }
        let beside = |id: PageId, fits: &dyn Fn(&Page<V>) -> bool| match self.leaves.get(id as usize) {
            Some(Leaf { body: Body::Hot(page), .. }) => fits(page),
            _ => true,
        };
        if !beside(previous, &|before| before.key(before.len() - 1) < page.key(0))
            || !beside(next, &|after| after.key(0) > page.key(last))
        {
            return false;
        }
        page.shrink();
        self.page_bytes += page.heap_bytes();
        self.cold -= 1;
        let leaf = &mut self.leaves[id as usize];
        leaf.body = Body::Hot(Arc::new(page));
        leaf.used.note();
        true
    }

    /// One more than the highest number of a leaf: the length of a table of leaves.
    #[must_use]
    pub fn page_numbers(&self) -> PageId {
        self.leaves.len() as PageId
    }

    /// A tree of leaves that were saved with their numbers, in any order; every page is clean. `None` unless the
    /// leaves fit together: keys ascending from leaf to leaf, numbers below `numbers` and each once.
    #[must_use]
    pub fn from_leaves(mut saved: Vec<(PageId, SavedPage<V>)>, numbers: PageId) -> Option<Self> {
        if saved.iter().any(|(id, _)| *id >= numbers) {
            return None;
        }
        if saved.is_empty() {
            return Some(Self::new());
        }
        saved.sort_by(|(_, a), (_, b)| a.first.cmp(&b.first));
        let mut tree = Self::new();
        (0..numbers).for_each(|_| tree.leaves.push(Leaf::new(Page::new(), NONE, NONE)));
        let mut level: Vec<(Vec<u8>, u32)> = Vec::with_capacity(saved.len());
        let mut previous: Option<(PageId, Vec<u8>)> = None;
        for (id, page) in saved {
            let separator = match &previous {
                None => Vec::new(),
                Some((_, before)) if *before >= page.first => return None,
                Some((_, before)) => page.first[..common_prefix_len(before, &page.first) + 1].to_vec(),
            };
            let leaf = tree.leaves.get_mut(id as usize).filter(|leaf| !leaf.in_use())?;
            tree.len += page.len;
            match &page.body {
                Body::Hot(page) => tree.page_bytes += page.heap_bytes(),
                Body::Cold(_) => tree.cold += 1,
            }
            let before = previous.as_ref().map_or(NONE, |(id, _)| *id);
            *leaf = Leaf { body: page.body, previous: before, next: NONE, used: Used::new() };
            match before {
                NONE => tree.first_leaf = id,
                before => tree.leaves[before as usize].next = id,
            }
            level.push((separator, id));
            previous = Some((id, page.last));
        }
        let previous = previous.map_or(NONE, |(id, _)| id);
        tree.last_leaf = previous;
        tree.free_leaves = (0..numbers).filter(|id| !tree.leaves[*id as usize].in_use()).collect();
        // Inner pages, level by level: the first separator of each page goes up.
        while level.len() > 1 {
            let mut above = Vec::new();
            let mut rest = level.into_iter().peekable();
            while let Some((separator, first)) = rest.next() {
                let mut page = Page::new();
                while let Some((key, child)) = rest
                    .next_if(|(key, _)| page.used_bytes_with(key.len()) <= PAGE_BYTES || page.len() < INNER_KEYS_MIN)
                {
                    page.insert_at(page.len(), &key, child);
                }
                // A page with one child only is left alone at the end: allowed, it joins a neighbour when it shrinks.
                above.push((separator, tree.add_inner(Inner { page: Arc::new(page), first })));
            }
            level = above;
            tree.height += 1;
        }
        tree.root = level[0].1;
        Some(tree)
    }

    /// A leaf to look something up in; it has been used then.
    #[inline]
    fn page(&self, id: PageId) -> Result<&Page<V>, Missing> {
        let leaf = &self.leaves[id as usize];
        leaf.used.note();
        match &leaf.body {
            Body::Hot(page) => Ok(page),
            Body::Cold(loc) => Err(Missing { space: V::SPACE, page: id.into(), loc: *loc }),
        }
    }

    #[inline]
    fn missing_page(&self, id: PageId) -> Option<Missing> {
        let loc = self.leaves.get(id as usize)?.cold()?;
        Some(Missing { space: V::SPACE, page: id.into(), loc })
    }

    /// A leaf on the way of a change; `None` if there is none of this number.
    #[inline]
    fn hot(&self, id: PageId) -> Option<&Page<V>> {
        match &self.leaves.get(id as usize)?.body {
            Body::Hot(page) => Some(page),
            Body::Cold(_) => unreachable!("{READIED}"),
        }
    }

    /// The leaf that has the place of `key`; `NONE` without a root.
    #[inline]
    fn descend(&self, key: &[u8]) -> PageId {
        let mut id = self.root;
        for _ in 0..self.height {
            let inner = &self.inners[id as usize];
            id = inner.child(inner.child_of(key));
        }
        id
    }

    /// The place of the least key not below `key`, and whether it is that key.
    fn seek(&self, key: &[u8]) -> Option<((PageId, usize), bool)> {
        let id = self.descend(key);
        match self.hot(id)?.position(key) {
            Ok(at) => Some(((id, at), true)),
            Err(at) => Some((self.normalised(id, at)?, false)),
        }
    }

    /// A place behind the last entry of a leaf is the first of the next leaf.
    fn normalised(&self, id: PageId, at: usize) -> Option<(PageId, usize)> {
        if at < self.hot(id)?.len() {
            return Some((id, at));
        }
        let next = self.leaves[id as usize].next;
        if next == NONE { None } else { Some((next, 0)) }
    }

    #[inline]
    fn mark_dirty(&mut self, id: PageId) {
        set_bit(&mut self.dirty, id);
    }

    fn add_leaf(&mut self, page: Page<V>, previous: PageId, next: PageId) -> PageId {
        self.page_bytes += page.heap_bytes();
        let leaf = Leaf::new(page, previous, next);
        let id = place_in(&mut self.leaves, &mut self.free_leaves, leaf);
        if previous == NONE {
            self.first_leaf = id
        } else {
            self.leaves[previous as usize].next = id
        }
        if next == NONE {
            self.last_leaf = id
        } else {
            self.leaves[next as usize].previous = id
        }
        self.mark_dirty(id);
        id
    }

    fn free_leaf(&mut self, id: PageId) {
        let leaf = std::mem::replace(&mut self.leaves[id as usize], Leaf::new(Page::new(), NONE, NONE));
        if let Body::Hot(page) = &leaf.body {
            self.page_bytes -= page.heap_bytes();
        }
        let (previous, next) = (leaf.previous, leaf.next);
        if previous == NONE {
            self.first_leaf = next
        } else {
            self.leaves[previous as usize].next = next
        }
        if next == NONE {
            self.last_leaf = previous
        } else {
            self.leaves[next as usize].previous = previous
        }
        self.free_leaves.push(id);
        self.mark_dirty(id);
    }

    fn add_inner(&mut self, inner: Inner) -> u32 {
        self.inner_bytes += inner.page.heap_bytes();
        place_in(&mut self.inners, &mut self.free_inners, inner)
    }

    fn free_inner(&mut self, id: u32) -> Inner {
        let empty = Inner { page: Arc::new(Page::new()), first: NONE };
        let inner = std::mem::replace(&mut self.inners[id as usize], empty);
        self.inner_bytes -= inner.page.heap_bytes();
        self.free_inners.push(id);
        inner
    }

    /// Changes a leaf and keeps `page_bytes` right.
    fn with_leaf<T>(&mut self, id: PageId, change: impl FnOnce(&mut Page<V>) -> T) -> T {
        let page = unshared(hot_mut(&mut self.leaves[id as usize].body), &mut self.page_bytes);
        let before = page.heap_bytes();
        let result = change(page);
        self.page_bytes = self.page_bytes - before + page.heap_bytes();
        result
    }

    /// The same for an inner page and its first child.
    fn with_inner<T>(&mut self, id: u32, change: impl FnOnce(&mut Page<u32>, &mut u32) -> T) -> T {
        let inner = &mut self.inners[id as usize];
        let page = unshared(&mut inner.page, &mut self.inner_bytes);
        let before = page.heap_bytes();
        let result = change(page, &mut inner.first);
        self.inner_bytes = self.inner_bytes - before + page.heap_bytes();
        result
    }

    /// A leaf's page, no longer shared with a clone, to change without changing its heap memory by much.
    #[inline]
    fn page_mut(&mut self, id: PageId) -> &mut Page<V> {
        unshared(hot_mut(&mut self.leaves[id as usize].body), &mut self.page_bytes)
    }

    /// The inner pages from the root down to the leaf of `key`, each with the child taken.
    fn path_to(&self, key: &[u8]) -> (Vec<(u32, usize)>, PageId) {
        let mut path = Vec::with_capacity(self.height as usize);
        let mut id = self.root;
        for _ in 0..self.height {
            let inner = &self.inners[id as usize];
            let nth = inner.child_of(key);
            path.push((id, nth));
            id = inner.child(nth);
        }
        (path, id)
    }
}

#[inline]
fn set_bit(bits: &mut Vec<u64>, at: u32) {
    let word = (at / u64::BITS) as usize;
    if word >= bits.len() {
        bits.resize(word + 1, 0);
    }
    bits[word] |= 1 << (at % u64::BITS);
}

fn place_in<T: Clone>(arena: &mut SharedVec<T>, free: &mut Vec<u32>, item: T) -> u32 {
    if let Some(id) = free.pop() {
        arena[id as usize] = item;
        return id;
    }
    arena.push(item);
    let id = u32::try_from(arena.len() - 1).expect("an arena has fewer than 2^32 pages");
    assert!(id != NONE, "an arena has fewer than 2^32 pages");
    id
}

#[cfg(test)]
mod tests;
