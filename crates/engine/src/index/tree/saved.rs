//! Leaves on their way from a checkpoint into a tree.
//!
//! Invariant: the keys of a leaf are ascending, whatever the bytes were that it was read from.

use triomphe::Arc;

use super::node::{Body, Kept, TREE_KEY_BYTES_MAX};
use super::page::Page;
use crate::format::Loc;

/// A leaf that is filled from what a checkpoint has of it, see [`Tree::from_leaves`](super::Tree::from_leaves) and
/// [`Tree::restore`](super::Tree::restore).
pub struct SavedLeaf<V>(pub(super) Page<V>);

impl<V: Kept> SavedLeaf<V> {
    /// An empty one.
    #[must_use]
    pub fn new() -> Self {
        Self(Page::new())
    }

    /// Adds an entry; false, and nothing is added, unless its key is above all others and not too long.
    pub fn push(&mut self, key: &[u8], value: V) -> bool {
        let at = self.0.len();
        let ascending = at == 0 || self.0.key(at - 1) < key;
        let fits = key.len() <= TREE_KEY_BYTES_MAX && at < usize::from(u16::MAX) / 8;
        if ascending && fits && self.0.used_bytes_with(key.len()) < usize::from(u16::MAX) {
            self.0.insert_at(at, key, value);
            return true;
        }
        false
    }

    /// Heap bytes.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        self.0.heap_bytes()
    }

    /// Its entries, ascending.
    pub fn entries(&self) -> impl Iterator<Item = (&[u8], V)> {
        (0..self.0.len()).map(|at| (self.0.key(at), self.0.value(at)))
    }

    /// The whole leaf, which stays in memory unless `cold` says where the checkpoint has it. `None` without an entry.
    #[must_use]
    pub fn finish(mut self, cold: Option<Loc>) -> Option<SavedPage<V>> {
        let last = self.0.len().checked_sub(1)?;
        let (first_key, last_key, last_value) = (self.0.key(0).to_vec(), self.0.key(last).to_vec(), self.0.value(last));
        self.0.shrink();
        let body = cold.map_or_else(|| Body::Hot(Arc::new(self.0)), Body::Cold);
        Some(SavedPage { first: first_key, last: last_key, last_value, len: last as u64 + 1, body })
    }
}

/// A whole leaf for [`Tree::from_leaves`](super::Tree::from_leaves), in memory or not.
pub struct SavedPage<V> {
    pub(super) first: Vec<u8>,
    pub(super) last: Vec<u8>,
    pub(super) last_value: V,
    pub(super) len: u64,
    pub(super) body: Body<V>,
}

impl<V: Kept> SavedPage<V> {
    /// The least key, the greatest and its value.
    pub fn ends(&self) -> (&[u8], &[u8], V) {
        (&self.first, &self.last, self.last_value)
    }
}
