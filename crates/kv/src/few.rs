//! A map of keys for what is mostly few: sorted in place, without memory of its own for the first.
//!
//! up to [`FEW_MAX`] keys → a sorted list, the first [`INLINE`] of them in place;   more → a tree
//!
//! Invariants:
//! 1. One of the two holds all keys, and the other none.
//! 2. Keys come in their order.

use std::collections::BTreeMap;

use smallvec::SmallVec;

use crate::{Key, OwnedKey};

/// Keys that need no memory beside the map.
const INLINE: usize = 2;
/// Keys of a list: up to so many, moving them costs less than a tree.
const FEW_MAX: usize = 16;

/// A map from keys to `V`.
pub(crate) struct Few<V> {
    list: SmallVec<[(OwnedKey, V); INLINE]>,
    tree: BTreeMap<OwnedKey, V>,
}

impl<V> Few<V> {
    pub(crate) fn new() -> Self {
        Self { list: SmallVec::new(), tree: BTreeMap::new() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty() && self.tree.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.list.len() + self.tree.len()
    }

    fn place(&self, key: Key<'_>) -> Result<usize, usize> {
        self.list.binary_search_by(|(own, _)| own.as_key().cmp(&key))
    }

    pub(crate) fn get(&self, key: Key<'_>) -> Option<&V> {
        if self.tree.is_empty() {
            return self.place(key).ok().map(|at| &self.list[at].1);
        }
        self.tree.get(&key.to_owned_key())
    }

    /// What stands under the key, `value` if nothing stood there.
    pub(crate) fn or_insert(&mut self, key: Key<'_>, value: V) -> &mut V {
        if self.tree.is_empty() {
            match self.place(key) {
                Ok(at) => return &mut self.list[at].1,
                Err(at) if self.list.len() < FEW_MAX => {
                    self.list.insert(at, (key.to_owned_key(), value));
                    return &mut self.list[at].1;
                }
                Err(_) => self.tree.extend(self.list.drain(..)),
            }
        }
        self.tree.entry(key.to_owned_key()).or_insert(value)
    }

    /// Puts `value` there, over what stood there.
    pub(crate) fn insert(&mut self, key: Key<'_>, value: V) {
        match self.place(key) {
            Ok(at) => self.list[at].1 = value,
            Err(at) if self.tree.is_empty() && self.list.len() < FEW_MAX => {
                self.list.insert(at, (key.to_owned_key(), value));
            }
            Err(_) => {
                self.tree.extend(self.list.drain(..));
                self.tree.insert(key.to_owned_key(), value);
            }
        }
    }

    pub(crate) fn retain(&mut self, keep: impl Fn(&OwnedKey) -> bool) {
        self.list.retain(|(key, _)| keep(key));
        self.tree.retain(|key, _| keep(key));
    }

    pub(crate) fn clear(&mut self) {
        self.list.clear();
        self.tree.clear();
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&OwnedKey, &V)> {
        self.list.iter().map(|(key, value)| (key, value)).chain(&self.tree)
    }

    /// Takes all out.
    pub(crate) fn take(&mut self) -> impl Iterator<Item = (OwnedKey, V)> + use<V> {
        std::mem::take(&mut self.list).into_iter().chain(std::mem::take(&mut self.tree))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_holds_what_a_tree_holds_however_many_there_are() {
        for len in [0, 1, INLINE, INLINE + 1, FEW_MAX, FEW_MAX + 1, 100] {
            let (mut few, mut tree) = (Few::new(), BTreeMap::new());
            // Each key twice, in no order, of both kinds.
            for step in 0..2 * len as u64 {
                let int = step * 7919 % len as u64;
                let text = int.to_string();
                let key = if int.is_multiple_of(2) { Key::Int(int) } else { Key::from(text.as_str()) };
                assert_eq!(few.get(key), tree.get(&key.to_owned_key()), "{len} keys, step {step}");
                if step % 3 == 0 {
                    assert_eq!(few.or_insert(key, step), tree.entry(key.to_owned_key()).or_insert(step));
                } else {
                    few.insert(key, step);
                    tree.insert(key.to_owned_key(), step);
                }
                assert!(few.list.is_empty() || few.tree.is_empty());
            }
            assert_eq!(few.is_empty(), tree.is_empty());
            assert!(few.iter().eq(&tree), "{len} keys");
            let keep = |key: &OwnedKey| key.as_int().is_some();
            few.retain(keep);
            tree.retain(|key, _| keep(key));
            assert!(few.take().eq(tree), "{len} keys");
            assert!(few.is_empty());
        }
    }
}
