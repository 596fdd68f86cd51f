//! The index: key → place in the log, made of pages that know whether they changed.
//!
//! Invariant: the index holds no payload; everything in it can be rebuilt from the log.

mod extents;
mod slots;
mod tree;

pub use extents::{Extent, Extents};
pub use slots::Slots;
pub use tree::{PageId, SavedLeaf, Tree};

pub use crate::format::Loc;
