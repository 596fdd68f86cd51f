//! How the bytes of an object are cut, and how a person writes that down.

use std::fmt;
use std::str::FromStr;

/// How the bytes of an object are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StripLen {
    /// Into strips of so many bytes: a power of two from [`STRIP_BYTES_MIN`](crate::STRIP_BYTES_MIN) to
    /// [`STRIP_BYTES_MAX`](crate::STRIP_BYTES_MAX).
    Bytes(u64),
    /// Not at all: one value holds all of them, and is read and written whole.
    None,
}

impl fmt::Display for StripLen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => write!(f, "{bytes}"),
            Self::None => write!(f, "none"),
        }
    }
}

impl FromStr for StripLen {
    type Err = std::num::ParseIntError;

    /// `none`, or a number of bytes.
    fn from_str(text: &str) -> std::result::Result<Self, Self::Err> {
        if text == "none" { Ok(Self::None) } else { text.parse().map(Self::Bytes) }
    }
}
