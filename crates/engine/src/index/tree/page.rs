//! One page of the tree: sorted keys, kept whole and in order in one buffer, with a value each.
//!
//! ```text
//! heads   [i32]  four bytes of each key after the page's common prefix, order-preserving
//! ends    [u16]  end of each key in `data`; empty while all keys have one length
//! values  [V]
//! data    [u8]   the keys, one after another, in order: no garbage, no padding
//! ```
//!
//! A search counts the cache lines of heads that end below the wanted one, then the heads below it within one
//! line, and compares whole keys only where heads are equal. The counts have no branch and read their lines in
//! parallel. Tried and slower: counting all heads (more instructions than a cache miss takes), binary search (each
//! step waits for the miss of the one before).
//!
//! Invariants:
//! 1. Keys are strictly ascending; `heads.len() == values.len()`.
//! 2. The first `prefix_len` bytes are the same in every key; it may be less than the longest common prefix.
//! 3. `key_len != MIXED`: all keys have this length and `ends` is empty. Otherwise `ends.len() == heads.len()`.

use std::cmp::Ordering;
use std::ops::Range;

use crate::prefetch::{prefetch, prefetch_one};

const MIXED: u16 = u16::MAX;
/// Heads in a cache line.
const LINE_HEADS: usize = 16;

/// See the module.
#[derive(Clone)]
pub(super) struct Page<V> {
    heads: Vec<i32>,
    ends: Vec<u16>,
    values: Vec<V>,
    data: Vec<u8>,
    prefix_len: u16,
    key_len: u16,
}

/// The first four bytes of `tail` as an integer that sorts like them.
#[inline]
fn head_of(tail: &[u8]) -> i32 {
    let word = match tail.first_chunk::<4>() {
        Some(chunk) => u32::from_be_bytes(*chunk),
        None => tail.iter().enumerate().fold(0, |word, (at, byte)| word | u32::from(*byte) << (24 - 8 * at)),
    };
    // The sign bit is flipped: signed compares are what vector units without unsigned ones have.
    (word ^ 0x8000_0000) as i32
}

/// How many bytes `a` and `b` have in common at their start.
pub(super) fn common_prefix_len(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(x, y)| x == y).count()
}

/// Room for `more` elements, growing by a quarter: doubling would leave a third of the memory unused.
#[inline]
fn make_room<T>(vec: &mut Vec<T>, more: usize) {
    if vec.capacity() - vec.len() < more {
        vec.reserve_exact(more.max(vec.len() / 4).max(4));
    }
}

#[inline]
fn insert_in<T>(vec: &mut Vec<T>, at: usize, item: T) {
    make_room(vec, 1);
    vec.insert(at, item);
}

impl<V: Copy> Page<V> {
    /// Bytes an entry takes besides its key.
    const ENTRY_BYTES: usize = size_of::<i32>() + size_of::<u16>() + size_of::<V>();

    pub(super) fn new() -> Self {
        Self { heads: vec![], ends: vec![], values: vec![], data: vec![], prefix_len: 0, key_len: MIXED }
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.heads.len()
    }

    /// Bytes in use.
    #[inline]
    pub(super) fn used_bytes(&self) -> usize {
        self.data.len() + self.heads.len() * Self::ENTRY_BYTES
    }

    /// Bytes in use once a key of `key_len` bytes is added.
    #[inline]
    pub(super) fn used_bytes_with(&self, key_len: usize) -> usize {
        self.used_bytes() + key_len + Self::ENTRY_BYTES
    }

    /// Bytes held on the heap.
    #[inline]
    pub(super) fn heap_bytes(&self) -> usize {
        self.heads.capacity() * size_of::<i32>()
            + self.ends.capacity() * size_of::<u16>()
            + self.values.capacity() * size_of::<V>()
            + self.data.capacity()
    }

    #[inline]
    fn key_start(&self, at: usize) -> usize {
        if self.key_len != MIXED {
            at * usize::from(self.key_len)
        } else if at == 0 {
            0
        } else {
            usize::from(self.ends[at - 1])
        }
    }

    #[inline]
    pub(super) fn key(&self, at: usize) -> &[u8] {
        if self.key_len != MIXED {
            let len = usize::from(self.key_len);
            return &self.data[at * len..(at + 1) * len];
        }
        let start = if at == 0 { 0 } else { usize::from(self.ends[at - 1]) };
        &self.data[start..usize::from(self.ends[at])]
    }

    #[inline]
    pub(super) fn value(&self, at: usize) -> V {
        self.values[at]
    }

    #[inline]
    pub(super) fn value_mut(&mut self, at: usize) -> &mut V {
        &mut self.values[at]
    }

    /// How many heads are below `head`.
    #[inline]
    fn heads_below(&self, head: i32) -> usize {
        let (lines, rest) = self.heads.as_chunks::<LINE_HEADS>();
        let before: usize = lines.iter().map(|line| usize::from(line[LINE_HEADS - 1] < head)).sum();
        let line = lines.get(before).map_or(rest, |line| &line[..]);
        before * LINE_HEADS + line.iter().map(|have| i32::from(*have < head)).sum::<i32>() as usize
    }

    /// Where exactly this key is. A key outside the common prefix meets no equal key, so the prefix is not looked at.
    #[inline]
    pub(super) fn find(&self, key: &[u8]) -> Option<usize> {
        let head = head_of(key.get(usize::from(self.prefix_len)..)?);
        let at = self.heads_below(head);
        if *self.heads.get(at)? != head {
            return None;
        }
        if self.key(at) == key { Some(at) } else { self.search_equal_heads(at, head, key).ok() }
    }

    /// Has the processor fetch what [`Self::candidate`] looks at.
    #[inline]
    pub(super) fn prefetch_heads(&self) {
        prefetch(&self.heads);
    }

    /// The first place whose head is that of the key, if there is one; what [`Self::find_from`] looks at there is being
    /// fetched.
    #[inline]
    pub(super) fn candidate(&self, key: &[u8]) -> Option<usize> {
        let head = head_of(key.get(usize::from(self.prefix_len)..)?);
        let at = self.heads_below(head);
        if *self.heads.get(at)? != head {
            return None;
        }
        prefetch_one(&self.values[at]);
        if self.key_len == MIXED {
            prefetch_one(&self.ends[at]);
        } else {
            prefetch(self.key(at));
        }
        Some(at)
    }

    /// Where exactly this key is, of which [`Self::candidate`] said `at`.
    #[inline]
    pub(super) fn find_from(&self, at: usize, key: &[u8]) -> Option<usize> {
        if self.key(at) == key { Some(at) } else { self.search_equal_heads(at, self.heads[at], key).ok() }
    }

    /// `Ok`: the place of the key. `Err`: the place it would have.
    #[inline]
    pub(super) fn position(&self, key: &[u8]) -> Result<usize, usize> {
        let prefix_len = usize::from(self.prefix_len);
        let Some((_, tail)) = key.split_at_checked(prefix_len).filter(|(start, _)| *start == &self.data[..prefix_len])
        else {
            return Err(if key < &self.data[..prefix_len] { 0 } else { self.len() });
        };
        let head = head_of(tail);
        let at = self.heads_below(head);
        match self.heads.get(at) {
            Some(have) if *have == head && self.key(at) == key => Ok(at),
            Some(have) if *have == head => self.search_equal_heads(at, head, key),
            _ => Err(at),
        }
    }

    /// Binary search among the keys whose head is `head`; `from` is the first of them.
    fn search_equal_heads(&self, from: usize, head: i32, key: &[u8]) -> Result<usize, usize> {
        let (mut low, mut high) = (from, from + self.heads[from..].partition_point(|have| *have == head));
        while low < high {
            let middle = low.midpoint(high);
            match self.key(middle).cmp(key) {
                Ordering::Less => low = middle + 1,
                Ordering::Greater => high = middle,
                Ordering::Equal => return Ok(middle),
            }
        }
        Err(low)
    }

    /// Adds an entry at the place [`Self::position`] gave as `Err`.
    #[inline]
    pub(super) fn insert_at(&mut self, at: usize, key: &[u8], value: V) {
        if self.heads.is_empty() {
            self.prefix_len = key.len() as u16;
            self.key_len = key.len() as u16;
            self.ends.clear();
        } else {
            let prefix_len = usize::from(self.prefix_len);
            if key.len() < prefix_len || key[..prefix_len] != self.data[..prefix_len] {
                self.set_prefix(common_prefix_len(&self.data[..prefix_len], key));
            }
        }
        if self.key_len != MIXED && usize::from(self.key_len) != key.len() {
            let step = self.key_len;
            self.ends.clear();
            self.ends.reserve_exact(self.heads.len() + 4);
            self.ends.extend((1..=self.heads.len() as u16).map(|nth| nth * step));
            self.key_len = MIXED;
        }
        let start = self.key_start(at);
        if self.key_len == MIXED {
            let key_len = key.len() as u16;
            insert_in(&mut self.ends, at, start as u16 + key_len);
            self.ends[at + 1..].iter_mut().for_each(|end| *end += key_len);
        }
        insert_in(&mut self.heads, at, head_of(&key[usize::from(self.prefix_len)..]));
        insert_in(&mut self.values, at, value);
        make_room(&mut self.data, key.len());
        let old_len = self.data.len();
        self.data.extend_from_slice(key);
        if start < old_len {
            self.data.copy_within(start..old_len, start + key.len());
            self.data[start..start + key.len()].copy_from_slice(key);
        }
    }

    /// Takes out the entries at `range`.
    pub(super) fn remove(&mut self, range: Range<usize>) {
        if range.is_empty() {
            return;
        }
        let (start, end) = (self.key_start(range.start), self.key_start(range.end));
        if self.key_len == MIXED {
            self.ends.drain(range.clone());
            let gone = (end - start) as u16;
            self.ends[range.start..].iter_mut().for_each(|end| *end -= gone);
        }
        self.data.drain(start..end);
        self.heads.drain(range.clone());
        self.values.drain(range);
        if self.heads.is_empty() {
            (self.prefix_len, self.key_len) = (0, MIXED);
            self.ends.clear();
        }
    }

    /// Takes out the entry at `at`.
    #[inline]
    pub(super) fn remove_at(&mut self, at: usize) -> V {
        let value = self.values[at];
        self.remove(at..at + 1);
        value
    }

    /// The place that leaves about half of the bytes before it; at least one entry stands on either side.
    pub(super) fn middle(&self) -> usize {
        let half = self.used_bytes() / 2;
        let (mut low, mut high) = (1, self.len() - 1);
        while low < high {
            let middle = low.midpoint(high);
            if self.key_start(middle) + middle * Self::ENTRY_BYTES < half { low = middle + 1 } else { high = middle }
        }
        low
    }

    /// Moves the entries from `at` on to a new page.
    pub(super) fn split_off(&mut self, at: usize) -> Self {
        let start = self.key_start(at);
        let mut right = Self::new();
        right.heads = self.heads[at..].to_vec();
        right.values = self.values[at..].to_vec();
        right.data = self.data[start..].to_vec();
        if self.key_len == MIXED {
            right.ends = self.ends[at..].iter().map(|end| end - start as u16).collect();
        }
        (right.prefix_len, right.key_len) = (self.prefix_len, self.key_len);
        self.heads.truncate(at);
        self.values.truncate(at);
        self.data.truncate(start);
        self.ends.truncate(at);
        self.tighten();
        right.tighten();
        right
    }

    /// Adds all entries of `right`, whose keys are all above the ones here.
    pub(super) fn append(&mut self, right: &Self) {
        if right.len() == 0 {
            return;
        }
        if self.key_len != right.key_len || self.key_len == MIXED {
            let base = self.data.len() as u16;
            let mut ends = Vec::with_capacity(self.len() + right.len());
            ends.extend((1..=self.len()).map(|nth| self.key_end(nth) as u16));
            ends.extend((1..=right.len()).map(|nth| base + right.key_end(nth) as u16));
            (self.ends, self.key_len) = (ends, MIXED);
        }
        self.values.reserve_exact(right.len());
        self.values.extend_from_slice(&right.values);
        self.data.reserve_exact(right.data.len());
        self.data.extend_from_slice(&right.data);
        // Placeholders; the prefix is found anew over all keys.
        self.heads.reserve_exact(right.len());
        self.heads.extend_from_slice(&right.heads);
        self.prefix_len = MIXED;
        self.tighten();
    }

    fn key_end(&self, nth: usize) -> usize {
        if self.key_len == MIXED { usize::from(self.ends[nth - 1]) } else { nth * usize::from(self.key_len) }
    }

    /// Gives memory back that entries no longer need.
    pub(super) fn shrink(&mut self) {
        self.heads.shrink_to_fit();
        self.ends.shrink_to_fit();
        self.values.shrink_to_fit();
        self.data.shrink_to_fit();
    }

    /// Finds the longest common prefix and whether all keys have one length.
    fn tighten(&mut self) {
        let Some(last) = self.len().checked_sub(1) else {
            *self = Self::new();
            return;
        };
        if self.key_len == MIXED {
            let len = self.ends[0];
            if len != MIXED && self.ends.iter().zip(1u32..).all(|(end, nth)| u32::from(*end) == nth * u32::from(len)) {
                self.key_len = len;
                self.ends = vec![];
            }
        }
        let prefix_len = common_prefix_len(self.key(0), self.key(last));
        if usize::from(self.prefix_len) != prefix_len {
            self.set_prefix(prefix_len);
        }
    }

    fn set_prefix(&mut self, prefix_len: usize) {
        self.prefix_len = prefix_len as u16;
        for at in 0..self.heads.len() {
            self.heads[at] = head_of(&self.key(at)[prefix_len..]);
        }
    }

    #[cfg(test)]
    pub(super) fn check(&self) {
        assert_eq!(self.heads.len(), self.values.len());
        let prefix_len = usize::from(self.prefix_len);
        for at in 0..self.len() {
            assert_eq!(self.key(at)[..prefix_len], self.key(0)[..prefix_len]);
            assert_eq!(self.heads[at], head_of(&self.key(at)[prefix_len..]));
            assert!(at == 0 || self.key(at - 1) < self.key(at));
        }
        match self.key_len {
            MIXED => assert_eq!(self.ends.len(), self.len()),
            len => assert!(self.ends.is_empty() && self.data.len() == self.len() * usize::from(len)),
        }
    }
}
