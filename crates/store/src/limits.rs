//! Limits that every store keeps, checked where a transaction enters and quoted by name in errors and docs.
//! A backend may be tighter; it then says so in its [`Capability`](crate::Capability).

use bytes::Bytes;

use crate::{Error, Result};

/// Longest collection name, in bytes.
pub const COLLECTION_BYTES_MAX: usize = 255;
/// Longest object name, in bytes.
pub const OBJECT_NAME_BYTES_MAX: usize = 1_024;
/// Longest omap key, in bytes. The empty key is allowed.
pub const OMAP_KEY_BYTES_MAX: usize = 4_096;
/// Longest xattr name, in bytes.
pub const XATTR_NAME_BYTES_MAX: usize = 255;
/// Largest xattr value, in bytes.
pub const XATTR_VALUE_BYTES_MAX: usize = 65_536;
/// Largest omap or slot value, and largest single write, in bytes (36 MiB). Faces let a value of theirs have 16 MiB:
/// the map keeps a row and its before-image in one.
pub const VALUE_BYTES_MAX: usize = 36 << 20;
/// Largest transaction, in bytes of names, keys and payload together (40 MiB).
pub const TRANSACTION_BYTES_MAX: usize = 40 << 20;
/// Most bytes that the guards of one transaction compare, names and keys included. What is compared is not written, but
/// is held
/// in memory (256 MiB). A store beyond a network takes less: what fits a message with the transaction.
pub const GUARDS_BYTES_MAX: usize = 256 << 20;
/// Largest record of a transaction that goes on where the store is full because its writer says that it
/// [gives back](crate::Transaction::gives_back), in bytes (64 KiB).
pub const GIVING_BACK_BYTES_MAX: u64 = 64 << 10;
/// Most operations in one transaction.
pub const TRANSACTION_OPS_MAX: usize = 1 << 20;
/// Largest object, in bytes: offsets stay below this (1 EiB).
pub const OBJECT_BYTES_MAX: u64 = 1 << 60;
/// Most entries that one scan call returns, whatever limit was asked for.
pub const SCAN_ENTRIES_MAX: usize = 65_536;
/// A scan call ends early once it holds this many bytes of keys and values (16 MiB) and at least one entry.
pub const SCAN_BYTES_MAX: usize = 16 << 20;
/// Most bytes of values, together, that one call answers with that asks for several by key or index (256 MiB).
pub const GET_MANY_BYTES_MAX: usize = 256 << 20;

/// The bytes of the values that one call has gathered for its answer.
#[derive(Clone, Copy, Debug, Default)]
pub struct Together(u64);

impl Together {
    /// Counts a value of so many bytes.
    ///
    /// # Errors
    /// [`Error::TooLarge`] above [`GET_MANY_BYTES_MAX`].
    pub fn add(&mut self, bytes: usize) -> Result<()> {
        self.0 += bytes as u64;
        let (len, max) = (self.0, GET_MANY_BYTES_MAX as u64);
        if len > max {
            return Err(Error::TooLarge { what: "values", len, limit: "GET_MANY_BYTES_MAX", max });
        }
        Ok(())
    }

    /// Passes values on, and counts them.
    ///
    /// # Errors
    /// As [`Together::add`]; those of `values`.
    pub fn gather(values: impl Iterator<Item = Result<Option<Bytes>>>) -> Result<Vec<Option<Bytes>>> {
        let mut together = Self::default();
        values
            .map(|value| {
                let value = value?;
                together.add(value.as_ref().map_or(0, Bytes::len))?;
                Ok(value)
            })
            .collect()
    }
}
