//! Keys on several chains by Apache Thrift: each call goes to a server of the chain that keeps its keys.
//!
//! registry in ZooKeeper, watched → marks → key → the first mark behind it → a server that has it → call
//!
//! ```no_run
//! use esker_ring::{Kind, Options, Ring};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // esker serve --thrift-registry /data/zdb
//! let ring = Ring::new(&"zk://127.0.0.1:2181".parse()?, "/data/zdb", Kind::Int, Options::default())?;
//! ring.put("7", "Ada")?;
//! assert_eq!(ring.get("7")?.as_deref(), Some("Ada"));
//! # Ok(())
//! # }
//! ```
//!
//! Any server answers for all keys, so a ring that has heard of a change late costs a hop and no more, and where no
//! server of a chain is reached the others are asked. Threads may share a ring; its calls block.
//!
//! Invariants:
//! 1. A write that was sent and not answered is not sent again: [`Error::Unknown`]. What only reads is asked of another
//!    server.
//! 2. What others write into the registry is passed over, and told by [`Ring::strange`].

#![forbid(unsafe_code)]

mod address;
mod connections;
mod error;
mod frames;
mod registry;
mod ring;
mod table;

/// What Debian's compiler makes of `zdb.thrift`, for clients that know no ring as well.
#[allow(missing_docs, clippy::all, clippy::unwrap_used, reason = "it is generated")]
#[rustfmt::skip]
pub mod generated {
    pub mod zdb;
}

pub use address::Address;
pub use connections::{Connector, Halves, connect};
pub use error::{Error, Result};
pub use esker_cluster::Location;
pub use esker_kv::Kind;
pub use generated::zdb::DataType;
pub use ring::{Options, Ring};
