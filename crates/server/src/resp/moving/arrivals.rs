//! Moves that have begun at the chain that slots come to.

use std::collections::{BTreeMap, HashMap};

use parking_lot::Mutex;

/// Moves to this chain.
#[derive(Default)]
pub(crate) struct Arrivals {
    /// Held while one begins, which takes long: what another put meanwhile would be removed.
    pub(crate) beginning: Mutex<()>,
    /// Those that have begun, by what they are called.
    pub(crate) begun: Mutex<HashMap<u64, Arrival>>,
}

/// A move.
pub(crate) struct Arrival {
    /// The chain that keeps the slots.
    pub(crate) from: String,
    /// Those that are still to be taken, with their epochs then.
    pub(crate) slots: BTreeMap<u16, u64>,
    /// How often a database had been cleared when the first keys of a batch were put.
    pub(crate) clears: u64,
}
