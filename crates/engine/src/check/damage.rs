//! What checking and scrubbing find.

/// A place that does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Device offset.
    pub offset: u64,
    /// What is wrong, and what it held as far as known.
    pub what: String,
}
