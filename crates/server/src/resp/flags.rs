//! What is said of a command in the table: bits of its flags.

/// Changes data.
pub(crate) const WRITE: u16 = 1;
/// Reads data.
pub(crate) const READ: u16 = 2;
/// Takes about constant time.
pub(crate) const FAST: u16 = 4;
/// For operators.
pub(crate) const ADMIN: u16 = 8;
/// Allowed before authentication.
pub(crate) const NO_AUTH: u16 = 16;
/// Refused inside MULTI.
pub(crate) const NO_MULTI: u16 = 32;
/// Run, not queued, inside MULTI.
pub(crate) const NOT_QUEUED: u16 = 64;
/// May make a hash of each of its keys.
pub(crate) const MAKES_HASH: u16 = 128;
/// Gives space back, or says when it will: goes on where the store is full.
pub(crate) const GIVES: u16 = 256;
/// Removes so much that it is noted as what operators do is.
pub(crate) const SWEEPS: u16 = 512;
/// Takes about a microsecond where its value is short and in memory, and is never begun anew: several that follow one
/// another in a pipeline are timed together.
pub(crate) const BRIEF: u16 = 1_024;
/// Writes keys that it names and no others: with others of its pipeline it goes as one transaction.
pub(crate) const JOINS: u16 = 4_096;
/// May wait for the store, though it is run without a transaction around it.
pub(crate) const ASKS: u16 = 2_048;
