//! Esker keeps data in one append-only log with a small index in memory, and lets many writers share one sync.
//! This crate is the one to depend on: it opens a store by path or URL and hands out faces.
//!
//! # A first store
//!
//! ```
//! use esker::Store;
//! use esker::kv::Kind;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("data");
//! # let path = path.to_str().unwrap();
//! // Makes ./data/store.esker the first time. (Here `path` is "data".)
//! let store = Store::open(path)?;
//! let users = store.kv()?.namespace("users", Kind::Bytes)?;
//!
//! // `wait` returns when the write is durable: a power cut after this line cannot take it back.
//! users.put("ada", "countess").wait()?;
//! assert_eq!(users.get("ada").wait()?.as_deref(), Some(&b"countess"[..]));
//!
//! store.close()?;
//! # Ok(())
//! # }
//! ```
//!
//! A location is a path, `esker:PATH`, `file:PATH` for a store on plain files, `grpc://HOST:PORT` for the store of a
//! running server, or `memory:` for one that is gone with the process. Options follow a question mark:
//! `data?size=10g&policy=group:2ms`; [`Builder`] lists them. A store has one owner: a second process that opens it gets
//! [`Error::InUse`].
//!
//! # Completions: now, or together
//!
//! Every call returns a [`Completion`]. A write is *applied* when the call returns, and *durable* when the completion
//! is waited for; waiting once for several writes costs one sync instead of several. A completion is also a `Future`.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let store = esker::Store::open("memory:")?;
//! # let log = store.kv()?.namespace("log", esker::kv::Kind::Int)?;
//! let pending: Vec<_> = (0..100u64).map(|line| log.put(line, format!("line {line}"))).collect();
//! for completion in pending {
//!     completion.wait()?; // the first wait syncs, the others find it done
//! }
//! # Ok(())
//! # }
//! ```
//!
//! A writer that can afford to lose its last moments in a power cut says so, per write or as the default:
//!
//! ```
//! use esker::Durability;
//! use esker::kv::Entry;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let store = esker::Store::open("memory:")?;
//! # let hits = store.kv()?.namespace("hits", esker::kv::Kind::Bytes)?;
//! let entry = Entry { value: "1".into(), expires_ms: None, tag: 0 };
//! hits.put_with("/index.html", entry, Durability::Applied).wait()?; // does not wait for the device
//! # Ok(())
//! # }
//! ```
//!
//! # Several keys, one transaction
//!
//! [`Kv::begin`](kv::Kv::begin) names the keys, reads see the transaction's own writes, and [`commit`](kv::Txn::commit)
//! applies all of it or nothing, whatever happens to the power.
//!
//! ```
//! use esker::Durability;
//! use esker::kv::{Entry, Key, Kind};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let store = esker::Store::open("memory:")?;
//! let kv = store.kv()?;
//! let accounts = kv.namespace("accounts", Kind::Int)?;
//! accounts.put(1, "100").wait()?;
//! accounts.put(2, "20").wait()?;
//!
//! let mut txn = kv.begin(&[(&accounts, Key::Int(1)), (&accounts, Key::Int(2))]);
//! for (account, change) in [(1, -30), (2, 30)] {
//!     let entry = txn.get(&accounts, account)?.ok_or("no such account")?;
//!     let balance: i32 = std::str::from_utf8(&entry.value)?.parse()?;
//!     let value = (balance + change).to_string().into();
//!     txn.put(&accounts, account, Entry { value, ..entry });
//! }
//! txn.commit(Durability::Durable).wait()?;
//!
//! assert_eq!(accounts.get(2).wait()?.as_deref(), Some(&b"50"[..]));
//! # Ok(())
//! # }
//! ```
//!
//! # Where to go on
//!
//! - [`kv::Namespace`]: everything one can do with keys: compare-and-set, expiry, scans either way, insertion order.
//! - [`Store::logs`]: shared logs: totally ordered, write-once, followed by many.
//! - [`Store::map`]: tables of records with conditional writes, expiry, filters and indexes; [`OpenMap`] by location,
//!   on Cassandra too.
//! - [`Store::transactions`]: transactions over such tables, snapshot or serializable.
//! - [`Store::volumes`]: virtual disks with snapshots and clones.
//! - [`Store::objects`]: the objects below the faces, with transactions over bytes, attributes, ordered maps and slots.
//! - [`Store::engine`]: figures, the commit policy (which may be changed while running), what recovery did.
//! - The folder `examples/`: a counter, a session cache with expiry, a queue that survives crashes, states replicated
//!   over a log, transfers by transactions.

#![forbid(unsafe_code)]

mod backend;
mod builder;
mod copy;
mod error;
mod location;
mod maps;
mod memory;
mod place;
mod releasable;
mod store;
mod sweep;
mod units;

pub use builder::Builder;
pub use bytes::Bytes;
pub use copy::{CHUNK_BYTES, CopyProgress, CopyReport, VerifyReport, copy, verify_copy};
pub use error::{Error, Result};
pub use esker_engine::{CachePolicy, CommitPolicy, CompressOptions};
pub use esker_kv::Kv;
pub use esker_store::{Completion, Compression, Durability, ObjectStore};
pub use maps::OpenMap;
pub use memory::{
    MemorySize, MemorySizeError, default_segment_bytes, engine_options, give_kept_memory_back, heed_memory_limit,
    memory_bytes,
};
pub use place::{DEVICE_BYTES_DEFAULT, DEVICE_FILE, FREE_PERCENT_MAX, Made, SEGMENTS_MIN};
pub use store::Store;
pub use sweep::SweepFigures;
pub use units::{ByteSize, Period, UnitError};

#[cfg(feature = "cassandra")]
pub use esker_cassandra as cassandra;
pub use esker_device as device;
pub use esker_engine as engine;
pub use esker_keyvalue as keyvalue;
pub use esker_kv as kv;
pub use esker_log as log;
pub use esker_map as map;
pub use esker_remote as remote;
#[doc(no_inline)]
pub use esker_store as objects;
pub use esker_transaction as transaction;
pub use esker_volume as volume;
