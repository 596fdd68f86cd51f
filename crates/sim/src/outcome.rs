//! What runs of all kinds have in common: what they did, and the maintenance between their transactions.

use esker_engine::Engine;
use esker_store::Error;

/// What a run did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Transactions applied.
    pub transactions: u64,
    /// Transactions refused for what they name, as the model says.
    pub refused: u64,
    /// Transactions refused because the device was full.
    pub full: u64,
    /// Times that maintenance did something.
    pub maintained: u64,
    /// Power cuts and failures survived.
    pub crashes: u64,
    /// Transactions that a crash took back, none of them acknowledged.
    pub taken_back: u64,
    /// Most zones that were partly written at once.
    pub open_zones: u64,
    /// Stores that did not open any more, for damage.
    pub refused_to_open: u64,
    /// Of stores with damage: what was read and right.
    pub served: u64,
    /// Of stores with damage: what was answered with an error that names it.
    pub named: u64,
    /// Hash of every I/O of the run.
    pub trace: u64,
}

/// Maintenance between two transactions, at the run's choice: half of the time one segment is cleaned, else a
/// checkpoint is written or pages of the index leave memory. Whether anything was done.
///
/// The one place where runs ask for it. With `Ok(false)` for a body they do without.
///
/// # Errors
/// The engine's.
pub(crate) fn maintain(engine: &Engine, rng: &mut fastrand::Rng) -> Result<bool, Error> {
    match rng.u8(0..4) {
        0..2 => engine.clean(),
        2 => engine.checkpoint().map(|()| true),
        _ => Ok(engine.drop_index_pages() > 0),
    }
}
