//! The index: key → place in the log, made of pages that know whether they changed.
//!
//! A page that the last checkpoint has can leave memory: its place is kept instead, it is *cold*. Looking something up
//! answers [`Missing`] when that needs a cold page; a writer that changes something sees to it first that no page it
//! needs is cold. The index itself reads no pages from the device: its callers do.
//!
//! Invariants:
//! 1. The index holds no payload; everything in it can be rebuilt from the log.
//! 2. A cold page has not changed since the checkpoint that wrote it.

mod extents;
mod shared_vec;
mod slots;
mod tree;

use std::sync::atomic::{AtomicBool, Ordering};

pub use extents::{Extent, Extents, hold as extents_hold, offset_of};
pub use slots::{SLOT_WIDTH_MAX, SlotPage, Slots};
pub use tree::{PageId, SavedLeaf, Tree};

pub use crate::format::Loc;
use crate::format::Space;

/// A page that is needed and not in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Missing {
    /// The space it belongs to.
    pub space: Space,
    /// Its number.
    pub page: u64,
    /// Where the last checkpoint has it.
    pub loc: Loc,
}

/// What came of asking a page to leave memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dropped {
    /// It left; so many bytes are free again.
    Freed(usize),
    /// It was used since the last time it was asked; it may leave next time.
    Used,
    /// It has changed since the checkpoint, is not there, or has left before.
    Stays,
}

/// Whether a page was used since it was last asked to leave: the one bit of the clock algorithm.
/// Source: Corbató, A Paging Experiment with the Multics System (1968).
#[derive(Default)]
pub(crate) struct Used(AtomicBool);

impl Used {
    const fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    /// Notes a use. Looks first: many readers then share the cache line.
    #[inline]
    fn note(&self) {
        if !self.0.load(Ordering::Relaxed) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    fn take(&self) -> bool {
        self.0.swap(false, Ordering::Relaxed)
    }
}

impl Clone for Used {
    fn clone(&self) -> Self {
        Self(AtomicBool::new(self.0.load(Ordering::Relaxed)))
    }
}
