//! Walking a tree in order, leaf by leaf.
//!
//! Invariant: a leaf that is not in memory is told once, and ends the scan.

use std::ops::{Bound, Range};

use super::Tree;
use super::node::{Kept, NONE, PageId};
use super::page::Page;
use crate::index::Missing;

/// Entries in order, up to a leaf that is not in memory. See [`Tree::scan`].
pub struct Scan<'a, 'k, V> {
    tree: &'a Tree<V>,
    start: Bound<&'k [u8]>,
    end: Bound<&'k [u8]>,
    reverse: bool,
    /// The leaf to go on with after `here`.
    next: PageId,
    here: Option<(&'a Page<V>, Range<usize>)>,
    failed: Option<Missing>,
}

impl<V: Kept> Tree<V> {
    /// The entries between two bounds, ascending, or descending when `reverse`. Bounds that leave nothing between
    /// them, crossed ones too, give an empty scan.
    #[must_use]
    pub fn scan<'k>(&self, start: Bound<&'k [u8]>, end: Bound<&'k [u8]>, reverse: bool) -> Scan<'_, 'k, V> {
        let next = match if reverse { end } else { start } {
            Bound::Unbounded if reverse => self.last_leaf,
            Bound::Unbounded => self.first_leaf,
            Bound::Included(key) | Bound::Excluded(key) => self.descend(key),
        };
        Scan { tree: self, start, end, reverse, next, here: None, failed: None }
    }

    /// The entries from the greatest key not above `key` on, ascending to the last; all when every key is above it.
    #[must_use]
    pub fn scan_from_floor(&self, key: &[u8]) -> Scan<'_, 'static, V> {
        let all = Bound::Unbounded;
        let mut scan = Scan { tree: self, start: all, end: all, reverse: false, next: NONE, here: None, failed: None };
        scan.failed = scan.begin_at_floor(key).err();
        scan
    }
}

impl<'a, V: Kept> Scan<'a, '_, V> {
    fn begin_at_floor(&mut self, key: &[u8]) -> Result<(), Missing> {
        let tree = self.tree;
        let id = tree.descend(key);
        let Some(leaf) = tree.leaves.get(id as usize) else { return Ok(()) };
        let page = tree.page(id)?;
        let from = match page.position(key) {
            Ok(at) => at,
            Err(0) if leaf.previous != NONE => {
                let page = tree.page(leaf.previous)?;
                self.here = Some((page, page.len() - 1..page.len()));
                self.next = id;
                return Ok(());
            }
            Err(at) => at.saturating_sub(1),
        };
        self.here = Some((page, from..page.len()));
        self.next = leaf.next;
        Ok(())
    }

    /// Goes on to the next leaf.
    fn enter(&mut self) -> Result<(), Missing> {
        let id = std::mem::replace(&mut self.next, NONE);
        let page = self.tree.page(id)?;
        let from = match self.start {
            Bound::Unbounded => 0,
            Bound::Included(key) => page.position(key).unwrap_or_else(|at| at),
            Bound::Excluded(key) => page.position(key).map_or_else(|at| at, |at| at + 1),
        };
        let until = match self.end {
            Bound::Unbounded => page.len(),
            Bound::Included(key) => page.position(key).map_or_else(|at| at, |at| at + 1),
            Bound::Excluded(key) => page.position(key).unwrap_or_else(|at| at),
        };
        let leaf = &self.tree.leaves[id as usize];
        match self.reverse {
            false if until == page.len() => self.next = leaf.next,
            true if from == 0 => self.next = leaf.previous,
            _ => {}
        }
        self.here = Some((page, from..until));
        Ok(())
    }
}

impl<'a, V: Kept> Iterator for Scan<'a, '_, V> {
    type Item = Result<(&'a [u8], V), Missing>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some((page, range)) = &mut self.here {
                let at = if self.reverse { range.next_back() } else { range.next() };
                if let Some(at) = at {
                    return Some(Ok((page.key(at), page.value(at))));
                }
                self.here = None;
            }
            if let Some(missing) = self.failed.take() {
                self.next = NONE;
                return Some(Err(missing));
            }
            if self.next == NONE {
                return None;
            }
            self.failed = self.enter().err();
        }
    }
}
