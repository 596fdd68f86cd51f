//! What a tree is made of: leaves, which may be cold, and inner pages.

use triomphe::Arc;

use super::page::Page;
use crate::format::{Loc, Space};
use crate::index::Used;

/// Longest key, in bytes.
pub const TREE_KEY_BYTES_MAX: usize = 4096;
/// Size at which a page with enough entries splits, in bytes of keys, heads and values.
pub const PAGE_BYTES: usize = 4096;

/// A leaf page of a [`Tree`](super::Tree); numbers of freed pages are used again.
pub type PageId = u32;

pub(super) const NONE: PageId = PageId::MAX;
pub(super) const READIED: &str = "a caller that needs a cold leaf has it read first";
pub(super) const LEAF_KEYS_MIN: usize = 4;
pub(super) const INNER_KEYS_MIN: usize = 8;
pub(super) const UNDERFULL_BYTES: usize = PAGE_BYTES / 4;
pub(super) const JOINED_BYTES_MAX: usize = PAGE_BYTES / 4 * 3;

/// What a tree keeps: it says which space of an object the tree is.
pub trait Kept: Copy {
    /// The space.
    const SPACE: Space;
}

impl Kept for Loc {
    const SPACE: Space = Space::Omap;
}

#[derive(Clone)]
pub(super) enum Body<V> {
    Hot(Arc<Page<V>>),
    /// Where the last checkpoint has it; it has entries.
    Cold(Loc),
}

#[derive(Clone)]
pub(super) struct Leaf<V> {
    pub body: Body<V>,
    pub previous: PageId,
    pub next: PageId,
    pub used: Used,
}

impl<V: Kept> Leaf<V> {
    pub fn new(page: Page<V>, previous: PageId, next: PageId) -> Self {
        Self { body: Body::Hot(Arc::new(page)), previous, next, used: Used::new() }
    }

    /// In the tree, not freed.
    pub fn in_use(&self) -> bool {
        match &self.body {
            Body::Hot(page) => page.len() > 0,
            Body::Cold(_) => true,
        }
    }

    pub fn cold(&self) -> Option<Loc> {
        match self.body {
            Body::Cold(loc) => Some(loc),
            Body::Hot(_) => None,
        }
    }
}

/// Child 0 is `first`, child `n` is the value of separator `n - 1`.
#[derive(Clone)]
pub(super) struct Inner {
    pub page: Arc<Page<u32>>,
    pub first: u32,
}

impl Inner {
    #[inline]
    pub fn child(&self, nth: usize) -> u32 {
        if nth == 0 { self.first } else { self.page.value(nth - 1) }
    }

    /// Which child has the place of `key`.
    #[inline]
    pub fn child_of(&self, key: &[u8]) -> usize {
        match self.page.position(key) {
            Ok(at) => at + 1,
            Err(at) => at,
        }
    }
}

/// A page to change: copied first if a clone of the tree shares it. `page_bytes` is what the tree holds in all.
#[inline]
pub(super) fn unshared<'a, V: Copy>(page: &'a mut Arc<Page<V>>, page_bytes: &mut usize) -> &'a mut Page<V> {
    if !page.is_unique() {
        let copy = Page::clone(page);
        *page_bytes = *page_bytes - page.heap_bytes() + copy.heap_bytes();
        *page = Arc::new(copy);
    }
    Arc::get_mut(page).expect("no other tree shares the page")
}

#[inline]
pub(super) fn hot_mut<V>(body: &mut Body<V>) -> &mut Arc<Page<V>> {
    match body {
        Body::Hot(page) => page,
        Body::Cold(_) => unreachable!("{READIED}"),
    }
}
