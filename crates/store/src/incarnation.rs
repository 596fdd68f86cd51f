//! Lives of a store that may be restarted under its user.
//!
//! Invariant: lives are told apart by numbers that are never used again.

/// One life of a store: from its opening to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Incarnation(pub u64);

impl Incarnation {
    /// The life of a store that ends with its user.
    pub const LOCAL: Self = Self(0);
}
