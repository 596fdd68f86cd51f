//! Keeping a tree in shape: a full page splits, an underfull one joins a neighbour, an empty one goes.
//!
//! Invariant: a neighbour that is not in memory stays as it is.

use triomphe::Arc;

use super::Tree;
use super::node::{Body, INNER_KEYS_MIN, Inner, JOINED_BYTES_MAX, Kept, PAGE_BYTES, PageId, UNDERFULL_BYTES, hot_mut};
use super::page::{Page, common_prefix_len};

impl<V: Kept> Tree<V> {
    #[cold]
    #[inline(never)]
    pub(super) fn insert_in_full(&mut self, id: PageId, at: usize, key: &[u8], value: V) {
        let (mut path, _) = self.path_to(key);
        let (len, middle) = self.hot(id).map_or((0, 0), |page| (page.len(), page.middle()));
        let cut = if at == len || at == 0 { at } else { middle };
        let mut right = self.with_leaf(id, |page| {
            let right = page.split_off(cut);
            if at == len {
                page.shrink();
            }
            right
        });
        if at == 0 || (at < cut && cut < len) {
            // The old number keeps the left part: cutting at 0 moved all entries to the right.
            self.with_leaf(id, |page| page.insert_at(at, key, value));
        } else {
            right.insert_at(at - cut, key, value);
        }
        let left_last = self.page_mut(id);
        let left_last = left_last.key(left_last.len() - 1);
        let right_first = right.key(0);
        let mut separator = right_first[..common_prefix_len(left_last, right_first) + 1].to_vec();
        let next = self.leaves[id as usize].next;
        let mut child = self.add_leaf(right, id, next);
        while let Some((parent, nth)) = path.pop() {
            let page = &self.inners[parent as usize].page;
            if page.used_bytes_with(separator.len()) <= PAGE_BYTES || page.len() < INNER_KEYS_MIN {
                self.with_inner(parent, |page, _| page.insert_at(nth, &separator, child));
                return;
            }
            // The separator at `cut` goes up; those before it stay, those after it go right.
            let cut = if nth == page.len() { page.len() - 1 } else { page.middle() };
            let up = page.key(cut).to_vec();
            let (mut right, first) = self.with_inner(parent, |page, _| {
                let mut right = page.split_off(cut);
                let first = right.remove_at(0);
                if nth <= cut {
                    page.insert_at(nth, &separator, child);
                }
                (right, first)
            });
            if nth > cut {
                right.insert_at(nth - cut - 1, &separator, child);
            }
            child = self.add_inner(Inner { page: Arc::new(right), first });
            separator = up;
        }
        let mut page = Page::new();
        page.insert_at(0, &separator, child);
        self.root = self.add_inner(Inner { page: Arc::new(page), first: self.root });
        self.height += 1;
    }

    /// After entries went: joins the leaf of `key` with a neighbour when it is underfull, frees it when empty, and
    /// the same up the tree.
    #[cold]
    #[inline(never)]
    pub(super) fn refill(&mut self, key: &[u8]) {
        let (mut path, id) = self.path_to(key);
        let Some(page) = self.hot(id) else { return };
        if page.used_bytes() >= UNDERFULL_BYTES {
            return;
        }
        let Some((parent, nth)) = path.pop() else {
            if page.len() == 0 {
                let dirty = std::mem::take(&mut self.dirty);
                *self = Self { dirty, ..Self::new() };
                self.mark_dirty(id);
            } else if page.heap_bytes() > 2 * page.used_bytes() + 64 {
                self.with_leaf(id, Page::shrink);
            }
            return;
        };
        if page.len() == 0 {
            self.free_leaf(id);
            self.drop_child(parent, nth, path);
            return;
        }
        let inner = &self.inners[parent as usize];
        // A neighbour that is not in memory stays as it is.
        let used = |id: u32| match &self.leaves[id as usize].body {
            Body::Hot(page) => page.used_bytes(),
            Body::Cold(_) => JOINED_BYTES_MAX + 1,
        };
        for right_nth in [nth + 1, nth] {
            if right_nth == 0 || right_nth > inner.page.len() {
                continue;
            }
            let (left, right) = (inner.child(right_nth - 1), inner.child(right_nth));
            if used(left) + used(right) <= JOINED_BYTES_MAX {
                let taken = hot_mut(&mut self.leaves[right as usize].body);
                let page = std::mem::replace(taken, Arc::new(Page::new()));
                self.page_bytes -= page.heap_bytes();
                self.with_leaf(left, |into| into.append(&page));
                self.mark_dirty(left);
                self.free_leaf(right);
                self.drop_child(parent, right_nth, path);
                return;
            }
        }
        if self.hot(id).is_some_and(|page| page.heap_bytes() > PAGE_BYTES) {
            self.with_leaf(id, Page::shrink);
        }
    }

    /// Takes child `nth` out of an inner page, then joins or frees that page when it has become small.
    fn drop_child(&mut self, mut parent: u32, mut nth: usize, mut path: Vec<(u32, usize)>) {
        loop {
            if self.inners[parent as usize].page.len() > 0 {
                self.with_inner(parent, |page, first| match nth {
                    0 => *first = page.remove_at(0),
                    nth => drop(page.remove_at(nth - 1)),
                });
                break;
            }
            // Its only child went, so it goes too. The root always has two children.
            self.free_inner(parent);
            (parent, nth) = path.pop().expect("the root of a tree with inner pages has two children");
        }
        while self.inners[parent as usize].page.used_bytes() < UNDERFULL_BYTES {
            let Some((above, nth)) = path.pop() else { break };
            let inner = &self.inners[above as usize];
            let used = |id: u32| self.inners[id as usize].page.used_bytes();
            let joined =
                [nth + 1, nth].into_iter().filter(|right| (1..=inner.page.len()).contains(right)).find(|right| {
                    used(inner.child(right - 1)) + used(inner.child(*right)) + inner.page.key(right - 1).len()
                        <= JOINED_BYTES_MAX
                });
            let Some(right_nth) = joined else { break };
            let (left, right) = (inner.child(right_nth - 1), inner.child(right_nth));
            let separator = inner.page.key(right_nth - 1).to_vec();
            let right = self.free_inner(right);
            self.with_inner(left, |page, _| {
                page.insert_at(page.len(), &separator, right.first);
                page.append(&right.page);
            });
            self.with_inner(above, |page, _| page.remove_at(right_nth - 1));
            parent = above;
        }
        while self.height > 0 && self.inners[self.root as usize].page.len() == 0 {
            let root = self.free_inner(self.root);
            self.root = root.first;
            self.height -= 1;
        }
    }
}
