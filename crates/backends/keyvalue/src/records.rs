//! What stands in the values: heads of objects, strips, extents. Little-endian, fixed widths.
//!
//! ```text
//! head    xattrs, omap, slots, bytes (the spaces' numbers), size, xattrs, omap keys, slots (how many)     8 × 8 bytes
//! strip   number of runs (4), then offset in the object (8) and length (8) of each, then their data
//! extent  length, file, first byte in the file                                                            3 × 8 bytes
//! meta    last commit, next number                                                                        2 × 8 bytes
//! ```
//!
//! Invariants:
//! 1. Whatever does not decode is [`Error::Corrupt`] with the key, never a panic.
//! 2. Runs of a strip are in order, not empty, and apart from each other by at least one byte.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use esker_store::{Error, Result, Stat};

/// A value that does not decode.
pub fn corrupt(what: &str, key: &[u8]) -> Error {
    Error::Corrupt { offset: 0, what: format!("{what} under the key {}", key.escape_ascii()) }
}

fn numbers<const N: usize>(what: &str, key: &[u8], value: &[u8]) -> Result<[u64; N]> {
    let mut found = [0; N];
    if value.len() != 8 * N {
        return Err(corrupt(what, key));
    }
    for (number, bytes) in found.iter_mut().zip(value.chunks_exact(8)) {
        *number = u64::from_le_bytes(bytes.try_into().expect("chunks of eight"));
    }
    Ok(found)
}

fn packed(numbers: &[u64]) -> Bytes {
    let mut bytes = BytesMut::with_capacity(8 * numbers.len());
    numbers.iter().for_each(|number| bytes.put_u64_le(*number));
    bytes.freeze()
}

/// What an object is: where its spaces stand, and how much is in them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Number of the space of xattrs.
    pub xattrs: u64,
    /// Number of the omap.
    pub omap: u64,
    /// Number of the space of slots.
    pub slots: u64,
    /// Number of the bytes.
    pub bytes: u64,
    /// Size and counts.
    pub stat: Stat,
}

impl Head {
    /// An empty object.
    pub fn new(number: u64) -> Self {
        Self { xattrs: number, omap: number, slots: number, bytes: number, stat: Stat::default() }
    }

    /// Whether another head names the same spaces.
    pub fn same_spaces(&self, other: &Self) -> bool {
        (self.xattrs, self.omap, self.slots, self.bytes) == (other.xattrs, other.omap, other.slots, other.bytes)
    }

    /// As it is stored.
    pub fn encode(&self) -> Bytes {
        let Stat { size, omap_keys, slots, xattrs } = self.stat;
        packed(&[self.xattrs, self.omap, self.slots, self.bytes, size, xattrs, omap_keys, slots])
    }

    /// From what is stored under `key`.
    pub fn decode(key: &[u8], value: &[u8]) -> Result<Self> {
        let [xattrs, omap, slots, bytes, size, xattr_count, omap_keys, slot_count] =
            numbers("object head", key, value)?;
        Ok(Self { xattrs, omap, slots, bytes, stat: Stat { size, omap_keys, slots: slot_count, xattrs: xattr_count } })
    }
}

/// Bytes of an object that stand in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// First byte in the object.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
    /// Number of the file.
    pub file: u64,
    /// First byte in the file.
    pub file_offset: u64,
}

impl Extent {
    /// First byte behind it.
    pub fn end(&self) -> u64 {
        self.offset.saturating_add(self.len)
    }

    /// As it is stored; the offset is in the key.
    pub fn encode(&self) -> Bytes {
        packed(&[self.len, self.file, self.file_offset])
    }

    /// From what is stored under `key`.
    pub fn decode(key: &[u8], value: &[u8]) -> Result<Self> {
        let [len, file, file_offset] = numbers("extent", key, value)?;
        let offset = crate::keys::rest_number(key).ok_or_else(|| corrupt("extent", key))?;
        Ok(Self { offset, len, file, file_offset })
    }

    /// The part of it that is in `start..end`, which it meets.
    pub fn cut(&self, start: u64, end: u64) -> Self {
        let (start, end) = (start.max(self.offset), end.min(self.end()));
        Self { offset: start, len: end - start, file: self.file, file_offset: self.file_offset + (start - self.offset) }
    }
}

/// The record of the last commit.
pub fn encode_meta(seq: u64, next_number: u64) -> Bytes {
    packed(&[seq, next_number])
}

/// Last commit and next number.
pub fn decode_meta(value: &[u8]) -> Result<(u64, u64)> {
    numbers("meta record", crate::keys::META, value).map(|[seq, number]| (seq, number))
}

/// One number.
pub fn encode_number(number: u64) -> Bytes {
    packed(&[number])
}

/// One number.
pub fn decode_number(key: &[u8], value: &[u8]) -> Result<u64> {
    numbers("number", key, value).map(|[number]| number)
}

/// Data of one strip: runs by their offset in the object.
#[derive(Clone, Debug, Default)]
pub struct Strip {
    runs: Vec<(u64, Bytes)>,
}

impl Strip {
    /// From what is stored under `key`.
    pub fn decode(key: &[u8], mut value: Bytes) -> Result<Self> {
        let bad = || corrupt("strip", key);
        let count = value.try_get_u32_le().map_err(|_| bad())? as usize;
        if value.len() / 16 < count {
            return Err(bad());
        }
        let mut table = value.split_to(16 * count);
        let (mut runs, mut end) = (Vec::with_capacity(count), 0u64);
        while table.has_remaining() {
            let (offset, len) = (table.get_u64_le(), table.get_u64_le());
            if offset < end || len == 0 || len > value.len() as u64 {
                return Err(bad());
            }
            end = offset.checked_add(len).ok_or_else(bad)?;
            runs.push((offset, value.split_to(len as usize)));
        }
        if !value.is_empty() {
            return Err(bad());
        }
        Ok(Self { runs })
    }

    /// As it is stored, or `None` if nothing is left of it. Runs that touch become one.
    pub fn encode(&self) -> Option<Bytes> {
        if self.runs.is_empty() {
            return None;
        }
        let mut table: Vec<(u64, u64)> = Vec::with_capacity(self.runs.len());
        for (offset, data) in &self.runs {
            match table.last_mut() {
                Some((start, len)) if *start + *len == *offset => *len += data.len() as u64,
                _ => table.push((*offset, data.len() as u64)),
            }
        }
        let mut value = BytesMut::with_capacity(4 + 16 * table.len() + self.data_bytes());
        value.put_u32_le(table.len() as u32);
        for (offset, len) in table {
            value.put_u64_le(offset);
            value.put_u64_le(len);
        }
        self.runs.iter().for_each(|(_, data)| value.put_slice(data));
        Some(value.freeze())
    }

    /// Data in it, in bytes.
    pub fn data_bytes(&self) -> usize {
        self.runs.iter().map(|(_, data)| data.len()).sum()
    }

    /// The runs, by offset in the object.
    pub fn runs(&self) -> &[(u64, Bytes)] {
        &self.runs
    }

    /// Lays `data` (not empty) over what is there.
    pub fn write(&mut self, offset: u64, data: Bytes) {
        self.punch(offset, offset + data.len() as u64);
        let at = self.runs.partition_point(|(start, _)| *start < offset);
        self.runs.insert(at, (offset, data));
    }

    /// Takes away what is in `start..end`.
    pub fn punch(&mut self, start: u64, end: u64) {
        let first = self.runs.partition_point(|(at, data)| at + data.len() as u64 <= start);
        let last = self.runs.partition_point(|(at, _)| *at < end);
        if first >= last {
            return;
        }
        let mut kept = Vec::new();
        let (at, data) = &self.runs[first];
        if *at < start {
            kept.push((*at, data.slice(..(start - at) as usize)));
        }
        let (at, data) = &self.runs[last - 1];
        if at + data.len() as u64 > end {
            kept.push((end, data.slice((end - at) as usize..)));
        }
        self.runs.splice(first..last, kept);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_strip_is_what_was_written_and_not_punched() {
        let mut strip = Strip::default();
        strip.write(100, Bytes::from_static(b"abcdefgh"));
        strip.punch(102, 104);
        strip.write(106, Bytes::from_static(b"XYZ"));
        let stored = strip.encode().unwrap();
        assert_eq!(stored.len(), 4 + 2 * 16 + 7);
        let strip = Strip::decode(b"k", stored).unwrap();
        let runs: Vec<_> = strip.runs().iter().map(|(at, data)| (*at, &data[..])).collect();
        assert_eq!(runs, [(100, &b"ab"[..]), (104, &b"efXYZ"[..])]);
    }

    #[test]
    fn what_is_no_record_is_an_error() {
        let mut strip = Strip::default();
        strip.write(3, Bytes::from_static(b"data"));
        strip.write(30, Bytes::from_static(b"data"));
        let good = strip.encode().unwrap();
        for len in 0..good.len() {
            assert!(Strip::decode(b"k", good.slice(..len)).is_err(), "cut at {len}");
        }
        for seed in 0..2_000 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let mut bad = good.to_vec();
            for _ in 0..rng.usize(1..4) {
                let at = rng.usize(..bad.len());
                bad[at] = rng.u8(..);
            }
            if let Ok(strip) = Strip::decode(b"k", bad.into()) {
                assert!(strip.data_bytes() <= good.len(), "seed {seed}");
            }
        }
        for len in [0, 63, 65] {
            assert!(matches!(Head::decode(b"k", &vec![1; len]), Err(Error::Corrupt { .. })));
        }
        assert!(decode_meta(b"short").is_err());
    }
}
