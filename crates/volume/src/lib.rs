//! Virtual disks striped over the objects of any [`ObjectStore`](esker_store::ObjectStore): images, snapshots, clones
//! (the face of RBD).
//!
//! caller → [`Image`] (offsets of a disk) → data objects → one store transaction → `Completion`
//!
//! An image is thin: what was never written takes no space and reads as zeros. A write is applied when the call
//! returns; it is durable after [`Image::flush`], or when its completion says so if it was asked to be
//! [`Durability::Durable`].
//!
//! Invariants:
//! 1. Every write carries the generation of the image's header as guard: no client writes by an outdated size, set of
//!    snapshots or lock.
//! 2. Making a snapshot or a clone changes headers only. The first write of an object after it keeps the object for it,
//!    in one transaction.
//! 3. Cost of reading and writing does not depend on how many snapshots there are.
//!
//! Format: docs/format.md#what-the-volume-face-keeps-in-the-store   Source: RBD; docs/decisions/0009-volumes.md
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use std::sync::Arc;
//! use esker_volume::{Durability, Layout, Volumes};
//!
//! let volumes = Volumes::open(Arc::new(esker_memory::MemoryStore::new()))?;
//! let disk = volumes.create("disk", 1 << 30, Layout::default(), 0)?;
//! disk.write(512, "boot".into(), Durability::Applied)?.wait()?;
//! disk.snapshot_create("fresh", 0)?;
//! disk.write(512, "root".into(), Durability::Applied)?.wait()?;
//! disk.flush().wait()?;
//! assert_eq!(disk.read_bytes(512, 4)?, "root");
//! assert_eq!(disk.snapshot("fresh")?.read_bytes(512, 4)?, "boot");
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

mod bring;
mod clone;
mod diff;
mod error;
mod export;
pub mod format;
mod header;
mod image;
mod layout;
mod lock;
mod progress;
mod resize;
mod snapshot;
mod source;
mod volumes;
mod write;

pub use bring::Ranges;
pub use diff::DIFF_BLOCK_BYTES;
pub use error::{Error, Result};
pub use esker_store::{Barrier, Completion, Durability};
pub use export::{CHUNK_BYTES_MAX, EXPORT_VERSION, ExportHead, IMPORT_OWNER, Transferred};
pub use format::{COLLECTION, DATA_NAMES, NAME_BYTES_MAX, OWNER_BYTES_MAX};
pub use image::{Chunk, Extent, Image, Info, LockInfo, REQUEST_BYTES_MAX};
pub use layout::{
    IMAGE_BYTES_MAX, Layout, OBJECT_BYTES_DEFAULT, OBJECT_BYTES_MAX, OBJECT_BYTES_MIN, STRIPE_COUNT_MAX,
    STRIPE_UNIT_BYTES_MIN,
};
pub use progress::Progress;
pub use snapshot::{Snapshot, SnapshotInfo};
pub use source::CHAIN_DEPTH_MAX;
pub use volumes::{Abilities, Volumes};
pub use write::ATOMIC_BYTES_MAX;

/// Every structure of this face with its fields: name, offset, bytes. docs/format.md repeats them, and a test compares.
pub fn layouts() -> Vec<(&'static str, format::Described)> {
    vec![
        ("volume state", format::STATE_LAYOUT),
        ("volume snapshot", format::SNAP_LAYOUT),
        ("volume export", export::EXPORT_LAYOUT),
        ("volume chunk", export::CHUNK_LAYOUT),
    ]
}
