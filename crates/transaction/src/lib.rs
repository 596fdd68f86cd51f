//! Transactions over the tables of any [`MapStorage`](esker_map::MapStorage): rows of any tables and partitions change
//! together or not at all, and what a transaction has read is still there when it commits.
//!
//! begin → get, scan, put, delete → commit: in one mutation where the storage is atomic over all of it; otherwise rows
//! are prepared with their before-images, what was read is looked at again, one record of the coordinator decides, and
//! rows go forward: the first client that comes to one moves it.
//!
//! Invariants:
//! 1. A transaction is committed whole or not at all, wherever its client dies; a client that meets what it left
//!    settles it.
//! 2. Serializable transactions are as if one came after another, in an order that agrees with time.
//! 3. What a transaction did not read committed, it does not show.
//!
//! Limits: at most [`ROWS_MAX`] rows in a transaction. Null and absent are one: both are shown as null. Who writes to
//! a table of transactions around them is not seen.
//!
//! Source: Apollo Transaction (2017), ScalarDB's Consensus Commit; docs/decisions/0014-transactions.md
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use std::sync::Arc;
//! use std::sync::atomic::{AtomicU64, Ordering};
//! use esker_map::{DataType, Get, Key, Schema, TableName, Value, Waist};
//! use esker_transaction::{Options, Transactions};
//!
//! let map = Waist::open(Arc::new(esker_memory::MemoryStore::new()), Arc::new(|| 0), [7; 32])?;
//! esker_map::MapStorage::create_namespace(&map, "bank")?;
//! let next = AtomicU64::new(0); // Random bits, in a program.
//! let random = Arc::new(move || next.fetch_add(1, Ordering::Relaxed).into());
//! let transactions = Transactions::open(Arc::new(map), Arc::new(|| 0), random, Options::default())?;
//!
//! let accounts = TableName::new("bank", "accounts");
//! let schema = Schema::new().column("id", DataType::Int).column("balance", DataType::BigInt).partition("id");
//! transactions.create_table(&accounts, &schema)?;
//! let mut opening = transactions.begin();
//! opening.put(&accounts, Key::of("id", 1), vec![("balance".into(), 100i64.into())])?;
//! opening.put(&accounts, Key::of("id", 2), vec![("balance".into(), 0i64.into())])?;
//! opening.commit()?;
//!
//! // Begun anew as long as others are in the way, ten times at most.
//! transactions.run(10, |transfer| {
//!     for (id, amount) in [(1, -30), (2, 30)] {
//!         let account = transfer.get(&Get::new(&accounts, Key::of("id", id)))?;
//!         let Some(Value::BigInt(balance)) = account.as_ref().and_then(|row| row.value("balance")) else { continue };
//!         transfer.put(&accounts, Key::of("id", id), vec![("balance".into(), (balance + amount).into())])?;
//!     }
//!     Ok(())
//! })?;
//! let account = transactions.begin().get(&Get::new(&accounts, Key::of("id", 2)))?.ok_or("no such account")?;
//! assert_eq!(account.value("balance"), Some(&30i64.into()));
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

mod commit;
mod coordinator;
mod error;
mod layout;
mod row;
mod scan;
mod shared;
mod transaction;
mod transactions;

pub use error::{Error, Result};
pub use layout::{BEFORE_PREFIX, METADATA_PREFIX};
pub use shared::{Isolation, Options, Random};
pub use transaction::{ROWS_MAX, Transaction};
pub use transactions::Transactions;
