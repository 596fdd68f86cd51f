//! The index's memory budget: pages that were not used lately leave memory.
//!
//! A hand goes round over the pages that the last checkpoint has. A page that was used since the hand came by last
//! stays this time; one that was not, and has not changed since the checkpoint, leaves: its place is kept instead.
//!
//! Invariants:
//! 1. Only pages leave that stand, as they are, in the checkpoint that the superblock names.
//! 2. No page leaves while a call gathers many: it would never have them all at once.
//! 3. An object's lock is held for no more than [`PAGES_AT_ONCE`] pages.
//!
//! Source: Corbató, A Paging Experiment with the Multics System (1968).

use crate::checkpoint::Saved;
use crate::format::Space;
use crate::index::Dropped;
use crate::objects::Objects;

/// So many pages are looked at under one lock.
const PAGES_AT_ONCE: usize = 64;

/// The page that is looked at next: object, space, page.
#[derive(Clone, Copy, Debug, Default)]
pub struct Hand {
    number: u64,
    space: usize,
    page: u64,
}

impl Hand {
    /// Has pages leave until the index takes no more than `bytes`, in two rounds at most. How many left.
    pub fn sweep(&mut self, saved: &Saved, objects: &Objects, bytes: u64) -> u64 {
        let mut dropped = 0;
        let mut rounds = 0;
        while rounds < 3 && objects.page_bytes() > bytes && !objects.is_gathering() {
            // The first round begins in the middle.
            match saved.spaces.range(self.number..).next() {
                None => {
                    rounds += 1;
                    *self = Self::default();
                    if saved.spaces.is_empty() {
                        break;
                    }
                }
                Some((number, spaces)) => {
                    if *number != self.number {
                        *self = Self { number: *number, space: 0, page: 0 };
                    }
                    let space = Space::ALL[self.space];
                    let pages = spaces[self.space].as_ref().filter(|_| saved.knows(*number));
                    let some: Vec<_> = pages
                        .map(|saved| saved.pages.range(self.page..).take(PAGES_AT_ONCE).collect())
                        .unwrap_or_default();
                    if let Some(object) = objects.numbered(*number).filter(|_| !some.is_empty()) {
                        let mut state = object.state.write();
                        // It may have been removed or renamed since.
                        let same = state.number == *number;
                        for (page, loc) in some.iter().filter(|_| same) {
                            if let Dropped::Freed(_) = state.spaces.drop_page(space, **page, **loc) {
                                dropped += 1;
                            }
                        }
                        objects.count(&mut state);
                    }
                    match some.last() {
                        Some((last, _)) if some.len() == PAGES_AT_ONCE && **last < u64::MAX => self.page = **last + 1,
                        _ if self.space + 1 < Space::ALL.len() => (self.space, self.page) = (self.space + 1, 0),
                        _ => *self = Self { number: number.saturating_add(1), space: 0, page: 0 },
                    }
                }
            }
        }
        dropped
    }
}
