//! Numbers as faces store them: little-endian in values, big-endian in keys, so that byte order is number order.
//!
//! Pure encode and decode, no I/O. What is too short, or of another length, is no number, and never a panic.
//!
//! Invariant: these bytes stand in stores; they never change.

use bytes::Bytes;

/// A number as a value: 8 bytes, little-endian.
pub fn number(value: u64) -> Bytes {
    Bytes::copy_from_slice(&value.to_le_bytes())
}

/// The number that a value is; `None` if it is not 8 bytes.
pub fn number_from(value: &[u8]) -> Option<u64> {
    value.try_into().ok().map(u64::from_le_bytes)
}

/// The little-endian number of 4 bytes at an offset; 0 past the end.
pub fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |word| u32::from_le_bytes(*word))
}

/// The little-endian number of 8 bytes at an offset; 0 past the end.
pub fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |word| u64::from_le_bytes(*word))
}

/// A key: one byte that says of what kind it is, then the rest.
pub fn prefixed(prefix: u8, rest: &[u8]) -> Bytes {
    [&[prefix], rest].concat().into()
}

/// A key: one byte that says of what kind it is, then a number.
pub fn numbered(prefix: u8, number: u64) -> Bytes {
    prefixed(prefix, &number.to_be_bytes())
}

/// The number in a key behind its first byte.
pub fn first_number(key: &[u8]) -> Option<u64> {
    key.get(1..)?.first_chunk().map(|first| u64::from_be_bytes(*first))
}

/// The number at the end of a key.
pub fn last_number(key: &[u8]) -> Option<u64> {
    key.last_chunk().map(|last| u64::from_be_bytes(*last))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back_and_have_these_bytes() {
        assert_eq!(&number(0x0102)[..], [2, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(&numbered(b'i', 0x0102)[..], [b'i', 0, 0, 0, 0, 0, 0, 1, 2]);
        for value in [0, 1, 255, 256, u64::MAX] {
            assert_eq!(number_from(&number(value)), Some(value));
            assert_eq!(
                (first_number(&numbered(b'i', value)), last_number(&numbered(b'i', value))),
                (Some(value), Some(value))
            );
            assert_eq!(u64_at(&[&[7][..], &number(value)].concat(), 1), value);
        }
        assert_eq!(u32_at(&[9, 1, 0, 0, 0], 1), 1);
        assert!(numbered(b'i', 255) < numbered(b'i', 256));
    }

    #[test]
    fn what_is_no_number_is_none() {
        for len in [0, 7, 9] {
            assert_eq!(number_from(&vec![0; len]), None);
        }
        assert_eq!((first_number(b"i123"), last_number(b"1234567"), first_number(b"")), (None, None, None));
        assert_eq!((u32_at(b"abc", 0), u64_at(b"abc", 2), u64_at(b"abc", 9)), (0, 0, 0));
    }
}
