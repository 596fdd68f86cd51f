//! The records of a segment that is in memory, in order, and the operations of a record.

use esker_store::{Error, Result};

use crate::format::{OpHeader, RecordHeader, SHORT_RECORD_HEADER_BYTES, round_up, verify_payload};

/// A whole segment in memory, and what its records are verified with.
pub struct SegmentView<'a> {
    /// Its bytes.
    pub bytes: &'a [u8],
    /// Where it starts on the device.
    pub base: u64,
    /// Its generation: what stands there of an earlier life is passed over.
    pub generation: u32,
    /// Where the log left it, as an offset in it.
    pub end: u64,
    /// Block size in bytes.
    pub block: u64,
    /// Seed of all checksums.
    pub seed: u32,
}

impl<'a> SegmentView<'a> {
    /// Its records in order: header, device offset, and what follows the header. Where no record stands the walk goes
    /// on at the next block.
    pub fn records(&self) -> impl Iterator<Item = (RecordHeader, u64, &'a [u8])> {
        let Self { bytes, base, generation, end, block, seed } = *self;
        let mut at = block;
        std::iter::from_fn(move || {
            while at + SHORT_RECORD_HEADER_BYTES as u64 <= end {
                let record = RecordHeader::decode(&bytes[at as usize..], seed, base + at);
                let fits = |record: &RecordHeader| record.generation == generation && u64::from(record.len) <= end - at;
                if let Some(record) = record.filter(fits) {
                    let start = at;
                    at += u64::from(record.len);
                    let body = &bytes[start as usize + record.header_bytes()..at as usize];
                    return Some((record, base + start, body));
                }
                at = round_up(at + 1, block);
            }
            None
        })
    }
}

/// Walks the operations of a record's body, verifying each: `f(header, operation bytes, device offset)`.
///
/// # Errors
/// [`Error::Corrupt`] for the first that does not hold; errors of `f`.
pub fn each_operation(
    record: &RecordHeader,
    offset: u64,
    operations: &[u8],
    store_seed: u32,
    mut f: impl FnMut(&OpHeader, &[u8], u64) -> Result<()>,
) -> Result<()> {
    let bad = |offset: u64, what: &str| Error::Corrupt { offset, what: what.into() };
    let mut rest = operations;
    let mut at = offset + record.header_bytes() as u64;
    for _ in 0..record.op_count {
        let header = OpHeader::decode(rest, store_seed, record.generation, at)
            .ok_or_else(|| bad(at, "operation header checksum mismatch"))?;
        let total = header.total_bytes() as usize;
        if total > rest.len() || !verify_payload(&header, rest) {
            return Err(bad(at, "payload checksum mismatch"));
        }
        f(&header, &rest[..total], at)?;
        rest = &rest[total..];
        at += total as u64;
    }
    if rest.is_empty() { Ok(()) } else { Err(bad(at, "record is longer than its operations")) }
}
