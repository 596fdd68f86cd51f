//! A multi-dimensional map: records addressed by partition key, clustering key and column, with conditional writes,
//! over swappable storages (the face of Apollo Storage, which lives on as ScalarDB).
//!
//! caller → [`MapStorage`] → ([`Waist`]) partition's object, row's omap value → one transaction that guards what the condition was looked at on → `Completion`
//!
//! Invariants:
//! 1. A list of mutations is applied whole or not at all, as far as the storage is atomic
//!    ([`MapCapability::atomicity`]).
//! 2. A mutation whose condition does not hold changes nothing, and its caller gets the row that it met.
//! 3. Secondary indexes change with their rows.
//!
//! Format: docs/format.md#what-the-map-face-keeps-in-the-store   Source: Apollo Storage (2017); ScalarDB's storage
//! interface; docs/decisions/0012-map.md
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use std::sync::Arc;
//! use esker_map::{Condition, DataType, Durability, Get, Key, MapStorage, Mutation, Order, Scan, Schema, TableName,
//! Waist};
//!
//! let map = Waist::open(Arc::new(esker_memory::MemoryStore::new()), Arc::new(|| 0), [7; 32])?;
//! map.create_namespace("shop")?;
//! let orders = TableName::new("shop", "orders");
//! let schema = Schema::new()
//!     .column("customer", DataType::Int)
//!     .column("at", DataType::BigInt)
//!     .column("item", DataType::Text)
//!     .partition("customer")
//!     .clustering("at", Order::Desc);
//! map.create_table(&orders, &schema)?;
//! let key = Key::of("customer", 1).and("at", 20i64);
//! let put = Mutation::put(&orders, key.clone(), vec![("item".into(), "tea".into())]).when(Condition::NotExists);
//! map.mutate(std::slice::from_ref(&put), Durability::Durable)?.wait()?;
//! assert!(map.mutate(&[put], Durability::Durable).is_err());
//! let record = map.get(&Get::new(&orders, key))?.ok_or("no such row")?;
//! assert_eq!(record.value("item"), Some(&"tea".into()));
//! assert_eq!(map.scan(&Scan::partition(&orders, Key::of("customer", 1)))?.records, [record]);
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

mod building;
mod catalogue;
#[cfg(feature = "contract")]
pub mod contract;
mod error;
mod expiry;
mod filter;
mod guards;
mod key;
mod multi;
mod names;
mod ops;
mod page;
pub mod parts;
mod record;
mod row;
mod scan;
mod schema;
mod storage;
mod value;
mod waist;

pub use error::{Error, Result};
pub use esker_store::{Completion, Durability};
pub use expiry::{Sweeper, Swept};
pub use filter::{Compare, Filter};
pub use key::Order;
pub use multi::{Multi, MultiBuilder};
pub use ops::{
    Bound, Change, Condition, Get, Key, MUTATIONS_MAX, Mutation, Over, Page, PageToken, Scan, TableName, Values,
};
pub use page::{LOOK_MAX, PAGE_BYTES, SORT_BYTES_MAX, SORT_ROWS_MAX};
pub use record::{NEVER_MS, Record};
pub use row::{BEFORE_PREFIX, ROW_BYTES_MAX};
pub use schema::{Alter, COLUMNS_MAX, Column, Index, KEY_BYTES_MAX, NAME_BYTES_MAX, Schema, Table, check_name};
pub use storage::{Atomicity, MapCapability, MapStorage};
pub use value::{DAY_NANOS, DataType, Value};
pub use waist::{Clock, Waist};
