//! Two servers without a coordinator: a primary, and a standby that holds what it holds.
//!
//! ```text
//! store's record, settings → Primary: a table of its own → writes → the standby
//!                          → Follower: asks the primary what it is → copied, sent to
//! operator: promote → the primary is fenced, sends what it has still → Follower → Primary, one epoch later
//! ```
//!
//! Invariants:
//! 1. Of two primaries of a pair the one with the lower epoch answers nothing once it has heard of the other.
//! 2. No store is promoted that holds part of a copy.
//! 3. Operators alone decide which server is the primary.

mod calls;
mod fencing;
mod follower;
mod ground;
mod offline;
mod primary;
mod promotion;
mod record;
mod server;
mod service;
mod stand;
#[cfg(test)]
mod tests;

pub use calls::Calls;
pub use ground::{Mode, PairConfig};
pub use offline::{Start, check_alone, dissolve, promote};
pub use promotion::Promotion;
pub use record::{Record, Role};
pub use server::Pair;
pub use stand::Stand;
