//! A map of keys for what is mostly few: searched by a tag of each key, without memory of its own for the first.
//!
//! up to [`FEW_MAX`] keys → a list in the order of their coming, the first [`INLINE`] of them in place, and a list of
//! their tags;   more → the same list, and a tree that says where each key stands
//!
//! A place in the list is good until [`Few::take`].
//!
//! Invariants:
//! 1. A key stands in the list once, and never moves there.
//! 2. Up to [`FEW_MAX`] keys there are as many tags, in the order of the list, and no tree; above there are no tags,
//!    and the tree has all keys.

use std::collections::BTreeMap;

use smallvec::SmallVec;

use crate::locks::spread;
use crate::pieces::Pieces;
use crate::{Key, OwnedKey};

/// Keys that need no memory beside the map.
const INLINE: usize = 1;
/// Keys that are found by passing tags: up to so many that costs less than a tree.
const FEW_MAX: usize = 128;
/// Tags that need no memory beside the map.
const TAGS: usize = 16;
/// Keys that there is room for once more than [`INLINE`] came.
const ROOM: usize = 16;

/// A map from keys to `V`.
pub(crate) struct Few<V> {
    tags: SmallVec<[u32; TAGS]>,
    list: SmallVec<[(OwnedKey, V); INLINE]>,
    tree: BTreeMap<OwnedKey, usize>,
    /// Where the key stands that was found last: it is often asked for again.
    last: usize,
    pieces: Pieces,
}

/// Keys of other tags are other keys.
fn tag_of(key: Key<'_>) -> u32 {
    (spread(0, key) >> 32) as u32
}

impl<V> Few<V> {
    pub(crate) fn new() -> Self {
        let (tags, list, tree) = (SmallVec::new(), SmallVec::new(), BTreeMap::new());
        Self { tags, list, tree, last: 0, pieces: Pieces::default() }
    }

    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    /// The memory that keys share, for the entries that belong to them.
    pub(crate) fn pieces(&mut self) -> &mut Pieces {
        &mut self.pieces
    }

    fn is_at(&self, at: usize, key: Key<'_>) -> bool {
        self.list.get(at).is_some_and(|(own, _)| own.as_key() == key)
    }

    fn find_tag(&self, key: Key<'_>, tag: u32) -> Option<usize> {
        let find = |from: usize, tags: &[u32]| {
            let mut same = tags.iter().enumerate().filter(|(_, own)| **own == tag);
            same.find(|(at, _)| self.is_at(from + at, key)).map(|(at, _)| from + at)
        };
        // Eight at once, which the processor does together: mostly none of them is it.
        let (eights, rest) = self.tags.as_chunks::<8>();
        let among = |eight: &[u32; 8]| eight.iter().fold(false, |among, own| among | (*own == tag));
        let mut likely = eights.iter().enumerate().filter(|(_, eight)| among(eight));
        likely.find_map(|(number, eight)| find(number * 8, eight)).or_else(|| find(eights.len() * 8, rest))
    }

    /// Where a key stands.
    pub(crate) fn find(&self, key: Key<'_>) -> Option<usize> {
        if self.is_at(self.last, key) {
            return Some(self.last);
        }
        if self.tree.is_empty() { self.find_tag(key, tag_of(key)) } else { self.tree.get(&key.to_owned_key()).copied() }
    }

    pub(crate) fn get(&self, key: Key<'_>) -> Option<&V> {
        self.find(key).map(|at| &self.list[at].1)
    }

    /// Where a key stands, with the default if it was not there.
    pub(crate) fn place(&mut self, key: Key<'_>) -> usize
    where
        V: Default,
    {
        if self.is_at(self.last, key) {
            return self.last;
        }
        self.last = if self.tree.is_empty() {
            let tag = tag_of(key);
            match self.find_tag(key, tag) {
                Some(at) => at,
                None => self.push(key, tag),
            }
        } else {
            match self.tree.get(&key.to_owned_key()) {
                Some(at) => *at,
                None => self.push(key, 0),
            }
        };
        self.last
    }

    fn push(&mut self, key: Key<'_>, tag: u32) -> usize
    where
        V: Default,
    {
        let at = self.list.len();
        if at == INLINE {
            self.list.reserve(ROOM);
        }
        if at == FEW_MAX {
            self.tags.clear();
            self.tree.extend(self.list.iter().enumerate().map(|(at, (key, _))| (key.clone(), at)));
        }
        let own = match key {
            Key::Int(key) => OwnedKey::Int(key),
            Key::Bytes(key) => OwnedKey::Bytes(self.pieces.of(key, &[])),
        };
        self.list.push((own, V::default()));
        if at < FEW_MAX {
            self.tags.push(tag);
        } else {
            self.tree.insert(self.list[at].0.clone(), at);
        }
        at
    }

    /// The keys that came after so many others, in the order of their coming.
    pub(crate) fn keys_from(&self, at: usize) -> impl ExactSizeIterator<Item = &OwnedKey> {
        self.list[at..].iter().map(|(key, _)| key)
    }

    /// The key at a place.
    pub(crate) fn key_at(&self, at: usize) -> &OwnedKey {
        &self.list[at].0
    }

    /// What stands at a place.
    pub(crate) fn at(&self, at: usize) -> &V {
        &self.list[at].1
    }

    /// What stands at a place.
    pub(crate) fn at_mut(&mut self, at: usize) -> &mut V {
        &mut self.list[at].1
    }

    /// All, in the order of their coming.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&OwnedKey, &V)> {
        self.list.iter().map(|(key, value)| (key, value))
    }

    /// All, in the order of their coming.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (&OwnedKey, &mut V)> {
        self.list.iter_mut().map(|(key, value)| (&*key, value))
    }

    /// Takes all out, in the order of their coming.
    pub(crate) fn take(&mut self) -> impl Iterator<Item = (OwnedKey, V)> + use<V> {
        self.tags.clear();
        self.tree.clear();
        std::mem::take(&mut self.list).into_iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_holds_what_a_tree_holds_however_many_there_are() {
        for len in [0, 1, INLINE + 1, TAGS, TAGS + 1, FEW_MAX, FEW_MAX + 1, 1_000] {
            let (mut few, mut tree, mut order) = (Few::<u64>::new(), BTreeMap::new(), Vec::new());
            // Each key twice, in no order, of both kinds.
            for step in 0..2 * len as u64 {
                let int = step * 7919 % len as u64;
                let text = int.to_string();
                let key = if int.is_multiple_of(2) { Key::Int(int) } else { Key::from(text.as_str()) };
                assert_eq!(few.get(key), tree.get(&key.to_owned_key()), "{len} keys, step {step}");
                if few.find(key).is_none() {
                    order.push(key.to_owned_key());
                }
                let at = few.place(key);
                assert_eq!((few.place(key), few.find(key)), (at, Some(at)), "{len} keys, step {step}");
                let expected = tree.entry(key.to_owned_key()).or_default();
                assert_eq!(few.at(at), expected);
                (*few.at_mut(at), *expected) = (step, step);
                assert_eq!(
                    (few.tags.len(), few.tree.len()),
                    if few.len() > FEW_MAX { (0, few.len()) } else { (few.len(), 0) }
                );
            }
            assert_eq!(few.len(), tree.len());
            few.iter_mut().chain(&mut tree).for_each(|(_, value)| *value += 1);
            assert!(few.iter().map(|(key, _)| key).eq(&order), "{len} keys");
            assert!(few.iter().collect::<BTreeMap<_, _>>().into_iter().eq(&tree), "{len} keys");
            assert!(few.take().collect::<BTreeMap<_, _>>().into_iter().eq(tree), "{len} keys");
            assert_eq!((few.len(), few.get(Key::Int(0))), (0, None));
        }
    }

    #[test]
    fn keys_of_one_tag_are_told_apart() {
        // What the second word adds takes back what the first word was: all of the hash is the same.
        let of_first = |first: u64| spread(0, Key::Int(first)).rotate_left(5);
        let text = |first: u64, second: u64| [first.to_le_bytes(), second.to_le_bytes()].concat();
        let (one, other) = (text(1, 7), text(2, 7 ^ of_first(1) ^ of_first(2)));
        let (one, other) = (Key::Bytes(&one), Key::Bytes(&other));
        assert_eq!(tag_of(one), tag_of(other));
        let mut few = Few::<u64>::new();
        let at = few.place(one);
        *few.at_mut(at) = 1;
        assert_eq!(few.get(other), None);
        let at = few.place(other);
        *few.at_mut(at) = 2;
        assert_eq!((few.get(one), few.get(other)), (Some(&1), Some(&2)));
    }
}
