//! The map on Apache Cassandra: a [`MapStorage`](esker_map::MapStorage) whose rows are rows of Cassandra, in columns of
//! its own types.
//!
//! mutations of one partition → rows as they are → conditions looked at here → one conditional batch (`IF version = …`
//! for each row) → done, or read again
//!
//! | of the map | of Cassandra |
//! |---|---|
//! | namespace | keyspace `PREFIX_nNUMBER`; keyspace `PREFIX` holds the catalogue |
//! | table | table `tNUMBER`; partition key, clustering key and its order are Cassandra's |
//! | column | column `cNUMBER_TYPE`; timestamp and timestamptz are both `timestamp` |
//! | null, absent | both null; the numbers of those that are null stand in `nulls` |
//! | expiry | milliseconds in `expires`, which reads go by, and a TTL some time after it, which removes the row |
//! | secondary index | an index of Cassandra, which each replica changes together with its rows |
//! | a row is there | `version` says who wrote it last: the guard of every conditional write |
//!
//! Invariants:
//! 1. Every write of a row is a lightweight transaction on the version that its conditions were looked at on.
//! 2. A version is written by one call only, so that who does not hear the outcome can read it.
//! 3. What Cassandra cannot do as one (rows of several partitions) is refused before anything is sent.
//!
//! Source: docs/decisions/0013-map-on-cassandra.md

#![forbid(unsafe_code)]

mod catalogue;
mod cql;
mod error;
mod link;
mod options;
mod place;
mod rows;
mod scan;
mod storage;

pub use error::{Error, Result};
pub use options::{Consistency, Options, Random};
pub use place::{PREFIX_BYTES_MAX, Place};
pub use storage::Cassandra;
