//! Keys: a number or bytes, borrowed on the way in, owned on the way out.
//!
//! Invariant: within a namespace one kind of key occurs, and its order is the order of scans.

use std::fmt;

use bytes::Bytes;
use esker_store::due;
use esker_store::limits::OMAP_KEY_BYTES_MAX;

/// Longest byte key, in bytes: an omap key less room for the expiry index and for what faces put before keys.
/// The empty key is allowed.
pub const KEY_BYTES_MAX: usize = OMAP_KEY_BYTES_MAX - 8 - 64;

/// Which keys a namespace holds. The numbers are stored and never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// `u64` keys, kept in slots.
    Int = 1,
    /// Byte keys of up to [`KEY_BYTES_MAX`] bytes, kept in an ordered omap.
    Bytes = 2,
}

impl Kind {
    pub(crate) fn from_stored(byte: u8) -> Option<Self> {
        match byte {
            1 => Some(Self::Int),
            2 => Some(Self::Bytes),
            _ => None,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Int => "int",
            Self::Bytes => "bytes",
        })
    }
}

/// A key as passed to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key<'a> {
    /// Of an `int` namespace.
    Int(u64),
    /// Of a `bytes` namespace.
    Bytes(&'a [u8]),
}

impl Key<'_> {
    /// A copy that owns its bytes.
    pub fn to_owned_key(self) -> OwnedKey {
        match self {
            Self::Int(key) => OwnedKey::Int(key),
            Self::Bytes(key) => OwnedKey::Bytes(Bytes::copy_from_slice(key)),
        }
    }

    /// The kind of namespace that it fits.
    pub fn kind(self) -> Kind {
        match self {
            Self::Int(_) => Kind::Int,
            Self::Bytes(_) => Kind::Bytes,
        }
    }

    /// The key after the time in the expiry index.
    pub(crate) fn index_key(self, expires_ms: u64) -> Bytes {
        match self {
            Self::Int(int) => due::entry(expires_ms, &int.to_be_bytes()),
            Self::Bytes(bytes) => due::entry(expires_ms, bytes),
        }
    }
}

impl From<u64> for Key<'_> {
    fn from(key: u64) -> Self {
        Self::Int(key)
    }
}

impl<'a> From<&'a [u8]> for Key<'a> {
    fn from(key: &'a [u8]) -> Self {
        Self::Bytes(key)
    }
}

impl<'a, const N: usize> From<&'a [u8; N]> for Key<'a> {
    fn from(key: &'a [u8; N]) -> Self {
        Self::Bytes(key)
    }
}

impl<'a> From<&'a str> for Key<'a> {
    fn from(key: &'a str) -> Self {
        Self::Bytes(key.as_bytes())
    }
}

impl<'a> From<&'a Bytes> for Key<'a> {
    fn from(key: &'a Bytes) -> Self {
        Self::Bytes(key)
    }
}

impl<'a> From<&'a Vec<u8>> for Key<'a> {
    fn from(key: &'a Vec<u8>) -> Self {
        Self::Bytes(key)
    }
}

impl<'a> From<&'a OwnedKey> for Key<'a> {
    fn from(key: &'a OwnedKey) -> Self {
        key.as_key()
    }
}

/// A key as returned by a call. Cloning copies no bytes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OwnedKey {
    /// Of an `int` namespace.
    Int(u64),
    /// Of a `bytes` namespace.
    Bytes(Bytes),
}

impl OwnedKey {
    /// The key, borrowed.
    pub fn as_key(&self) -> Key<'_> {
        match self {
            Self::Int(key) => Key::Int(*key),
            Self::Bytes(key) => Key::Bytes(key),
        }
    }

    /// The bytes of a byte key.
    pub fn as_bytes(&self) -> Option<&Bytes> {
        match self {
            Self::Int(_) => None,
            Self::Bytes(key) => Some(key),
        }
    }

    /// The number of an int key.
    pub fn as_int(&self) -> Option<u64> {
        match self {
            Self::Int(key) => Some(*key),
            Self::Bytes(_) => None,
        }
    }
}

impl From<u64> for OwnedKey {
    fn from(key: u64) -> Self {
        Self::Int(key)
    }
}

impl From<Bytes> for OwnedKey {
    fn from(key: Bytes) -> Self {
        Self::Bytes(key)
    }
}

impl From<&str> for OwnedKey {
    fn from(key: &str) -> Self {
        Self::Bytes(Bytes::copy_from_slice(key.as_bytes()))
    }
}

impl From<&[u8]> for OwnedKey {
    fn from(key: &[u8]) -> Self {
        Self::Bytes(Bytes::copy_from_slice(key))
    }
}

impl From<Key<'_>> for OwnedKey {
    fn from(key: Key<'_>) -> Self {
        key.to_owned_key()
    }
}
