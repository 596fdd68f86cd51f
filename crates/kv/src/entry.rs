//! Entries: a value with expiry and tag, and the header that stands before the value in the store.
//!
//! stored = flags: u8 | expires_ms: u64 LE (if flags bit 0) | value
//!
//! flags bit 0: an expiry follows; bits 1..=3: zero; bits 4..=7: tag. Format: docs/format.md#kv
//!
//! Invariants:
//! 1. What [`encode`] makes, [`decode`] takes apart without copying the value.
//! 2. Unknown flags are an error, never guessed at.

use bytes::{Buf, Bytes};
use esker_store::{Error, Result};

use crate::pieces;

/// Largest value, in bytes: 16 MiB less room for the header.
pub const VALUE_BYTES_MAX: usize = (16 << 20) - 16;
/// Largest tag.
pub const TAG_MAX: u8 = 15;

const HAS_EXPIRY: u8 = 1;
const UNKNOWN: u8 = 0b1110;

/// A value and what goes with it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// The value: up to [`VALUE_BYTES_MAX`] bytes.
    pub value: Bytes,
    /// From this unix millisecond on the entry is gone; `None` keeps it.
    pub expires_ms: Option<u64>,
    /// Free for the face above: 0 to [`TAG_MAX`].
    pub tag: u8,
}

impl Entry {
    /// An entry that does not expire, with tag 0.
    pub fn new(value: impl Into<Bytes>) -> Self {
        Self { value: value.into(), expires_ms: None, tag: 0 }
    }

    /// With this expiry.
    pub fn expiring(self, expires_ms: Option<u64>) -> Self {
        Self { expires_ms, ..self }
    }

    /// With this tag.
    pub fn tagged(self, tag: u8) -> Self {
        Self { tag, ..self }
    }

    /// Whether it is gone at `now_ms`.
    pub fn is_expired(&self, now_ms: u64) -> bool {
        self.expires_ms.is_some_and(|at| at <= now_ms)
    }

    pub(crate) fn encode(&self) -> Result<Bytes> {
        encode(&self.value, self.expires_ms, self.tag)
    }
}

/// An entry that is looked at where it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen<'a> {
    /// The value.
    pub value: &'a [u8],
    /// From this unix millisecond on it is gone; `None` keeps it.
    pub expires_ms: Option<u64>,
    /// Its tag.
    pub tag: u8,
}

impl Seen<'_> {
    /// The entry, which shares what it was seen in.
    pub(crate) fn of(stored: &Bytes, seen: Seen<'_>) -> Entry {
        Entry { value: stored.slice_ref(seen.value), expires_ms: seen.expires_ms, tag: seen.tag }
    }
}

/// Header and value in one buffer.
pub(crate) fn encode(value: &[u8], expires_ms: Option<u64>, tag: u8) -> Result<Bytes> {
    encode_as(value, expires_ms, tag, pieces::alone)
}

/// The same, in what `join` makes of header and value.
pub(crate) fn encode_as(
    value: &[u8],
    expires_ms: Option<u64>,
    tag: u8,
    join: impl FnOnce(&[u8], &[u8]) -> Bytes,
) -> Result<Bytes> {
    check_value(value)?;
    if tag > TAG_MAX {
        return Err(Error::Invalid { what: "entry tag", why: format!("{tag} is above TAG_MAX = {TAG_MAX}") });
    }
    let mut header = [0; 9];
    header[0] = tag << 4;
    let Some(at) = expires_ms else { return Ok(join(&header[..1], value)) };
    header[0] |= HAS_EXPIRY;
    header[1..].copy_from_slice(&at.to_le_bytes());
    Ok(join(&header, value))
}

pub(crate) fn check_value(value: &[u8]) -> Result<()> {
    if value.len() > VALUE_BYTES_MAX {
        return Err(Error::TooLarge {
            what: "value",
            len: value.len() as u64,
            limit: "esker_kv::VALUE_BYTES_MAX",
            max: VALUE_BYTES_MAX as u64,
        });
    }
    Ok(())
}

/// The entry, expired or not; its value shares the stored buffer.
pub(crate) fn decode(stored: &Bytes) -> Result<Entry> {
    decode_owned(stored.clone())
}

/// As [`decode`], and cheaper: the header is cut off without another reference to the buffer.
pub(crate) fn decode_owned(mut stored: Bytes) -> Result<Entry> {
    let Seen { value, expires_ms, tag } = peek(&stored)?;
    let header_len = stored.len() - value.len();
    stored.advance(header_len);
    Ok(Entry { value: stored, expires_ms, tag })
}

/// The entry where it stands, expired or not.
pub(crate) fn peek(stored: &[u8]) -> Result<Seen<'_>> {
    let bad = |what: &str| Error::Corrupt { offset: 0, what: format!("key-value entry header: {what}") };
    let (flags, rest) = stored.split_first().ok_or_else(|| bad("empty"))?;
    if flags & UNKNOWN != 0 {
        return Err(bad(&format!("unknown flags {flags:#04x}")));
    }
    let tag = flags >> 4;
    if flags & HAS_EXPIRY == 0 {
        return Ok(Seen { value: rest, expires_ms: None, tag });
    }
    let (at, value) = rest.split_first_chunk().ok_or_else(|| bad("cut off in the expiry"))?;
    Ok(Seen { value, expires_ms: Some(u64::from_le_bytes(*at)), tag })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_entries_have_these_bytes() {
        let check = |entry: Entry, bytes: &[u8]| {
            let stored = entry.encode().unwrap();
            assert_eq!(&stored[..], bytes);
            assert_eq!(decode(&stored).unwrap(), entry);
        };
        check(Entry::new("ab"), b"\x00ab");
        check(Entry::new("").tagged(15), b"\xf0");
        check(Entry::new("v").tagged(2).expiring(Some(0x0102)), b"\x21\x02\x01\0\0\0\0\0\0v");
    }

    #[test]
    fn damaged_headers_are_errors() {
        for bad in [&b""[..], b"\x02x", b"\x0f", b"\x01\0\0\0\0\0\0\0"] {
            assert!(matches!(decode(&Bytes::copy_from_slice(bad)), Err(Error::Corrupt { .. })), "{bad:?}");
        }
        assert!(matches!(Entry::new("").tagged(16).encode(), Err(Error::Invalid { .. })));
    }
}
