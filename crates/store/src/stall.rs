//! Why a store has no room now, and how often a transaction has waited for it.

use std::fmt;

/// Why a store has no room for a transaction now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stall {
    /// The index has to take less memory.
    Memory,
    /// What is written has to reach the device first, or the cleaner to free some of it.
    Backlog,
    /// The device is full, unless the cleaner finds more to free than it did last.
    Full,
}

impl fmt::Display for Stall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Memory => "its index has to take less memory",
            Self::Backlog => "what is written has to reach the device, or the cleaner to free some of it",
            Self::Full => "it is full, unless the cleaner finds more to free",
        })
    }
}

/// How often room was awaited for one transaction. Those who have waited go before those who come now; and a store that is
/// full to a transaction says so ([`Error::Full`]) once it has looked often enough for it whether it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    all: u32,
    full: u32,
}

impl Waits {
    /// One more, for this reason.
    pub fn note(&mut self, stall: Stall) {
        self.all = self.all.saturating_add(1);
        self.full = self.full.saturating_add(u32::from(stall == Stall::Full));
    }

    /// Of any kind.
    pub fn all(self) -> u32 {
        self.all
    }

    /// Of these, of a store that was full.
    pub fn full(self) -> u32 {
        self.full
    }

    /// The same, and no more of a store that is full: it is to say so.
    pub fn told_if_full(self) -> Self {
        Self { full: u32::MAX, ..self }
    }
}
