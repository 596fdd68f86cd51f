//! The index: key → place in the log, made of pages that know whether they changed.
//!
//! Invariant: the index holds no payload; everything in it can be rebuilt from the log.

// Pages know what changed since the last checkpoint before checkpoints exist to ask: parts of these interfaces wait
// for them, and are tested beside their code.
#[allow(dead_code, reason = "page bookkeeping is laid down before its first user, the checkpoint")]
mod extents;
#[allow(dead_code, reason = "see above")]
mod loc;
#[allow(dead_code, reason = "see above")]
mod slots;
#[allow(dead_code, reason = "see above")]
mod tree;

pub use extents::{Extent, Extents};
pub use loc::{DEVICE_BYTES_MAX, Loc};
pub use slots::Slots;
pub use tree::Tree;
