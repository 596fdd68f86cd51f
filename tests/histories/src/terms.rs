//! Words that all files use: the faces, the ways of making a history wrong, and what went wrong.

use clap::ValueEnum;

/// A face of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Face {
    /// Namespaces of keys.
    Kv,
    /// Tables.
    Map,
    /// Shared logs.
    Log,
    /// Virtual disks.
    Volume,
}

impl Face {
    /// Its name, as files are called.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kv => "kv",
            Self::Map => "map",
            Self::Log => "log",
            Self::Volume => "volume",
        }
    }
}

/// What makes a history wrong on purpose, as a store with that fault would: so that a test can see it found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Breakage {
    /// A get is sometimes answered with what the same key held before (kv).
    Stale,
    /// A put is sometimes acknowledged and never made (kv).
    Lost,
    /// A put is sometimes made again later, as by a request that is replayed (kv).
    Twice,
    /// A compare-and-set that was made is sometimes told as refused (kv).
    Refused,
    /// An outcome that is unknown is told as an error that changed nothing (all faces).
    Forgotten,
}

/// Whatever went wrong.
pub type Failure = Box<dyn std::error::Error>;
