//! Why a store has no room now, and how often a transaction has waited for it.

use std::fmt;

/// Why a store has no room for a transaction now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stall {
    /// The index has to take less memory.
    Memory,
    /// What is written has to reach the device first, or the cleaner to free some of it.
    Backlog,
    /// What the transaction looks at, or changes, has to be read from the device first.
    Reading {
        /// Which reading it is, in this life of the store.
        number: u64,
    },
    /// The device is full, unless the cleaner finds more to free than it did last.
    Full,
}

impl fmt::Display for Stall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Memory => "its index has to take less memory",
            Self::Backlog => "what is written has to reach the device, or the cleaner to free some of it",
            Self::Reading { .. } => "what a transaction needs of it has to be read first",
            Self::Full => "it is full, unless the cleaner finds more to free",
        })
    }
}

/// How often a writer has awaited room for one transaction. While a store paces its writers, those who have waited for
/// its log go before those who come now. A writer waits for memory once; and where the store is full it is told so
/// ([`Error::Full`](crate::Error::Full)) once the cleaner has looked often enough, or could not for some seconds. One
/// who has waited some times for what has to be read may find it gone again; then the store reads while the caller
/// waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    backlog: u32,
    memory: u32,
    reading: u32,
    full: u32,
}

impl Waits {
    /// One more, for this reason.
    pub fn note(&mut self, stall: Stall) {
        self.backlog = self.backlog.saturating_add(u32::from(stall == Stall::Backlog));
        self.memory = self.memory.saturating_add(u32::from(stall == Stall::Memory));
        self.reading = self.reading.saturating_add(u32::from(matches!(stall, Stall::Reading { .. })));
        self.full = self.full.saturating_add(u32::from(stall == Stall::Full));
    }

    /// For the log.
    pub fn backlog(self) -> u32 {
        self.backlog
    }

    /// For memory.
    pub fn memory(self) -> u32 {
        self.memory
    }

    /// For what has to be read.
    pub fn reading(self) -> u32 {
        self.reading
    }

    /// Of a store that was full.
    pub fn full(self) -> u32 {
        self.full
    }

    /// The same, and no more for memory or reading, nor of a store that is full: it is to say so.
    pub fn told_if_full(self) -> Self {
        Self { memory: u32::MAX, reading: u32::MAX, full: u32::MAX, ..self }
    }
}
