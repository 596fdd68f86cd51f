//! A list whose clones share it in pieces, so that a clone of a long one is quick.
//!
//! up to [`PIECE`] items → a list of its own, which every clone copies;   more → pieces of as many behind it, each
//! shared until one of the clones changes it
//!
//! Invariant: `rest` has a piece only where `first` is full, and a piece only where the one before it is.

use std::ops::{Index, IndexMut};

use smallvec::SmallVec;
use triomphe::Arc;

/// Items of a piece.
const PIECE: usize = 128;

type Piece<T> = Arc<SmallVec<[T; PIECE]>>;

/// See the module. An item that is changed copies its piece if a clone shares it.
#[derive(Clone)]
pub(super) struct SharedVec<T> {
    first: Vec<T>,
    rest: Vec<Piece<T>>,
}

impl<T> SharedVec<T> {
    /// Takes no heap memory.
    pub const fn new() -> Self {
        Self { first: Vec::new(), rest: Vec::new() }
    }

    #[inline]
    pub fn len(&self) -> usize {
        match self.rest.last() {
            None => self.first.len(),
            Some(last) => self.rest.len() * PIECE + last.len(),
        }
    }

    /// Heap memory of the list itself, in bytes.
    pub fn heap_bytes(&self) -> usize {
        self.first.capacity() * size_of::<T>()
            + self.rest.capacity() * size_of::<Piece<T>>()
            + self.rest.len() * (size_of::<SmallVec<[T; PIECE]>>() + size_of::<usize>())
    }

    #[inline]
    pub fn get(&self, at: usize) -> Option<&T> {
        match at.checked_sub(PIECE) {
            None => self.first.get(at),
            Some(at) => self.rest.get(at / PIECE)?.get(at % PIECE),
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.first.iter().chain(self.rest.iter().flat_map(|piece| piece.iter()))
    }
}

impl<T: Clone> SharedVec<T> {
    #[inline]
    pub fn get_mut(&mut self, at: usize) -> Option<&mut T> {
        match at.checked_sub(PIECE) {
            None => self.first.get_mut(at),
            Some(at) => Arc::make_mut(self.rest.get_mut(at / PIECE)?).get_mut(at % PIECE),
        }
    }

    pub fn push(&mut self, item: T) {
        if self.first.len() < PIECE {
            if self.first.len() == self.first.capacity() {
                // Most lists stay short, and there are many of them.
                let more = (self.first.len() / 4).max(1);
                self.first.reserve_exact(more.min(PIECE - self.first.len()));
            }
            return self.first.push(item);
        }
        if self.rest.last().is_none_or(|last| last.len() == PIECE) {
            self.rest.push(Arc::new(SmallVec::new()));
        }
        if let Some(last) = self.rest.last_mut() {
            Arc::make_mut(last).push(item);
        }
    }
}

impl<T> Index<usize> for SharedVec<T> {
    type Output = T;

    #[inline]
    fn index(&self, at: usize) -> &T {
        match at.checked_sub(PIECE) {
            None => &self.first[at],
            Some(at) => &self.rest[at / PIECE][at % PIECE],
        }
    }
}

impl<T: Clone> IndexMut<usize> for SharedVec<T> {
    #[inline]
    fn index_mut(&mut self, at: usize) -> &mut T {
        match at.checked_sub(PIECE) {
            None => &mut self.first[at],
            Some(at) => &mut Arc::make_mut(&mut self.rest[at / PIECE])[at % PIECE],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clones_are_apart_at_any_length() {
        for len in [0, 1, 2, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE, 2 * PIECE + 1, 5 * PIECE] {
            let mut list = SharedVec::new();
            for at in 0..len {
                assert_eq!((list.len(), list.get(at)), (at, None));
                list.push(at);
            }
            let (mut clone, before) = (list.clone(), list.clone());
            for at in (0..len).step_by(3) {
                clone[at] += 1_000;
                *list.get_mut(at).unwrap() += 2_000;
            }
            clone.push(7);
            assert_eq!((list.len(), clone.len()), (len, len + 1));
            assert!(list.get_mut(len).is_none() && clone[len] == 7);
            let changed = |by: usize| (0..len).map(move |at| if at % 3 == 0 { at + by } else { at });
            assert!(before.iter().copied().eq(changed(0)));
            assert!(list.iter().copied().eq(changed(2_000)));
            assert!(clone.iter().copied().eq(changed(1_000).chain([7])));
            assert!((0..len).all(|at| before[at] == at && before.get(at) == Some(&at)));
        }
    }

    #[test]
    fn a_clone_copies_only_what_is_changed() {
        let mut list = SharedVec::new();
        (0..10 * PIECE).for_each(|at| list.push(at));
        let clone = list.clone();
        list[3 * PIECE + 1] = 0;
        let shared = list.rest.iter().zip(&clone.rest).map(|(one, other)| Arc::ptr_eq(one, other));
        assert!(shared.enumerate().all(|(at, is_shared)| is_shared == (at != 2)));
        // What is looked at stays shared.
        drop(clone);
        assert!(list.rest.iter().all(Arc::is_unique));
    }
}
