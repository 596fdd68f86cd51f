//! The file backend: an [`ObjectStore`](esker_store::ObjectStore) on plain files of a file system, as Ceph's FileStore
//! was.
//!
//! submit → group → journal (write, sync) → table rows and object files → answer; later: sync files → journal anew
//!
//! Bytes of objects are plain files in hashed folders; names, attributes, ordered keys, slots and the runs of data are
//! rows of one small embedded table (redb). A write-ahead journal makes a transaction over both one: every byte is
//! written twice.
//!
//! Invariants:
//! 1. What was acknowledged survives power loss; after any crash the state is that after a prefix of commit order.
//! 2. Nothing is applied before its journal record is durable: no reader is ever shown what a crash could take back.
//! 3. After a failed write or sync nothing is written any more, and every writer is told the first cause.
//!
//! Why so, and what it costs: docs/decisions/0006-file-backend.md. Format: docs/format.md#the-file-backend

#![forbid(unsafe_code)]

mod apply;
mod codec;
mod commit;
mod data;
mod error;
pub mod files;
mod journal;
mod marker;
mod names;
mod options;
mod store;
mod table;
mod table_file;

pub use error::Error;
pub use marker::{KIND, MARKER, Marker, VERSION};
pub use options::Options;
pub use store::FileStore;
