//! What every store under comparison has to be able to do.
//!
//! [`crate::peers::Kind::open`] → [`Peer::session`], one per thread → put, get → [`Peer::settle`] → [`Peer::close`]
//!
//! Invariants:
//! 1. A put that returned is readable by all sessions, and, under [`Sync::Each`], survives power loss.
//! 2. A get ends with the whole value in memory that belongs to the reader: copied into the reader's buffer exactly
//!    once, or, where the peer's only call returns its own fresh copy, that copy.

use std::path::Path;

use anyhow::Result;

/// What an acknowledged write means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sync {
    /// The page cache or the process's memory has it; no client waits for the device.
    None,
    /// The device has it.
    Each,
}

/// What a peer is told when it is opened.
#[derive(Clone, Copy, Debug)]
pub struct Settings<'a> {
    /// An empty folder for the peer alone.
    pub dir: &'a Path,
    /// How many keys will be written at most.
    pub keys: u32,
    /// Size of every value in bytes, at least 4.
    pub value_bytes: usize,
    /// Memory for the peer's read cache, in bytes; the memory map of a peer that maps its file.
    pub cache_bytes: u64,
    /// What an acknowledged write means.
    pub sync: Sync,
    /// `Options::pending_bytes_max` of Esker, where not its default.
    pub esker_pending_bytes: Option<u64>,
}

impl Settings<'_> {
    /// Bytes of all values and keys.
    pub fn data_bytes(&self) -> u64 {
        u64::from(self.keys) * (self.value_bytes as u64 + 4)
    }
}

/// An open store.
pub trait Peer: Send + std::marker::Sync {
    /// A handle for the calling thread.
    fn session(&self) -> Result<Box<dyn Session + '_>>;

    /// Brings the store into the shape in which it reads best (flushes, compacts), however long it takes.
    fn settle(&self) -> Result<()>;

    /// Closes the store.
    fn close(self: Box<Self>) -> Result<()>;
}

/// One thread's handle on a store.
pub trait Session {
    /// Writes a value; returns when it is acknowledged.
    fn put(&mut self, key: u32, value: &[u8]) -> Result<()>;

    /// Reads a value and shows it to `look`; false if there is none. What the peer hands out to keep (its copy, a pin)
    /// is shown in place; what is only valid until its next call or transaction is first copied to `buffer`.
    fn get(&mut self, key: u32, buffer: &mut [u8], look: &mut dyn FnMut(&[u8])) -> Result<bool>;
}

/// Copies a value to the reader's buffer.
///
/// # Errors
/// A value longer than the buffer is none that was written.
pub fn land<'a>(value: &[u8], buffer: &'a mut [u8]) -> Result<&'a [u8]> {
    anyhow::ensure!(
        value.len() <= buffer.len(),
        "a value of {} bytes where {} were written",
        value.len(),
        buffer.len()
    );
    let place = &mut buffer[..value.len()];
    place.copy_from_slice(value);
    Ok(place)
}
