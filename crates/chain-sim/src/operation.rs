//! What goes down a chain here: the name of a write, and what it weighs.
//!
//! write by a client → guards at the head → [`Write`] → applied by every replica

use esker_chain::Weight;

/// What an operation takes beside its payload, in bytes.
pub const STEP_BYTES: usize = 64;

/// A write, decided. What it does is noted in the history, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Write {
    /// Unique in the run, from 1.
    pub id: u32,
    /// Of its payload.
    pub bytes: u32,
}

impl Weight for Write {
    fn weight(&self) -> usize {
        STEP_BYTES + self.bytes as usize
    }
}
