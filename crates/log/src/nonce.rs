//! What tells an append from every other.

/// Who wrote an entry: a retried append knows its own by it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nonce {
    /// The writer: of a session a random number, of a named writer a hash of its name.
    pub writer: u64,
    /// Its number for the entry.
    pub number: u64,
}
