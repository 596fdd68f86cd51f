//! What of a transaction's payloads is compressed, and whether that is kept.
//!
//! hint of the transaction → payload large enough? → units compressed, on the caller's thread → small enough? → kept
//!
//! Invariants:
//! 1. A payload that does not get small enough is stored as it came: a hint never costs space.
//! 2. No lock is held meanwhile.

use std::sync::atomic::{AtomicU64, Ordering};

use esker_store::{Compression, Error, Result};

use crate::format::{Codec, UNIT_BYTES_MAX, UNIT_BYTES_MIN, compress_payload};

/// What is compressed of transactions that ask for it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CompressOptions {
    /// The hint of transactions that come without one. None by default.
    pub default: Compression,
    /// Smaller payloads are left alone, in bytes. 512 by default.
    pub bytes_min: u32,
    /// Raw bytes that are compressed together, which is what the smallest read decompresses: a power of two from 4 KiB
    /// to 1 MiB. 64 KiB by default.
    pub unit_bytes: u32,
    /// A compressed payload is kept if it takes at most this part of the raw one. Above 0, up to 1; 0.875 by default.
    pub ratio_max: f64,
}

impl Default for CompressOptions {
    fn default() -> Self {
        Self { default: Compression::None, bytes_min: 512, unit_bytes: 64 << 10, ratio_max: 0.875 }
    }
}

/// Compresses by these options, and counts.
#[derive(Debug)]
pub struct Compress {
    options: CompressOptions,
    /// Payloads that were kept compressed.
    pub kept: AtomicU64,
    /// Payloads that did not get small enough.
    pub refused: AtomicU64,
    /// Raw bytes of those kept.
    pub raw_bytes: AtomicU64,
    /// Bytes that those take, their tables included.
    pub stored_bytes: AtomicU64,
}

impl Compress {
    /// The options.
    pub fn options(&self) -> CompressOptions {
        self.options
    }

    /// Checks the options.
    ///
    /// # Errors
    /// [`Error::Invalid`] names the one that does not fit.
    pub fn new(options: CompressOptions) -> Result<Self> {
        let invalid = |why: String| Err(Error::Invalid { what: "compression option", why });
        let unit = options.unit_bytes;
        if !unit.is_power_of_two() || !(UNIT_BYTES_MIN..=UNIT_BYTES_MAX).contains(&unit) {
            return invalid(format!(
                "unit_bytes is {unit}: expected a power of two from UNIT_BYTES_MIN = {UNIT_BYTES_MIN} to UNIT_BYTES_MAX = {UNIT_BYTES_MAX}"
            ));
        }
        if !(options.ratio_max > 0.0 && options.ratio_max <= 1.0) {
            return invalid(format!("ratio_max is {}: expected a number above 0, at most 1", options.ratio_max));
        }
        let [kept, refused, raw_bytes, stored_bytes] = [const { AtomicU64::new(0) }; 4];
        Ok(Self { options, kept, refused, raw_bytes, stored_bytes })
    }

    /// The hint that counts for a transaction with this one.
    pub fn hint(&self, hint: Compression) -> Compression {
        if hint == Compression::None { self.options.default } else { hint }
    }

    /// The payload compressed as the hint says, if that is worth it.
    pub fn pack(&self, hint: Compression, payload: &[u8]) -> Option<Vec<u8>> {
        let codec = match hint {
            Compression::None => return None,
            Compression::Lz4 => Codec::Lz4,
            Compression::Zstd => Codec::Zstd,
        };
        if payload.len() < self.options.bytes_min as usize {
            return None;
        }
        let bytes_max = (payload.len() as f64 * self.options.ratio_max) as usize;
        let packed = compress_payload(codec, self.options.unit_bytes, payload, bytes_max);
        let Some(packed) = packed else {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return None;
        };
        self.kept.fetch_add(1, Ordering::Relaxed);
        self.raw_bytes.fetch_add(payload.len() as u64, Ordering::Relaxed);
        self.stored_bytes.fetch_add(packed.len() as u64, Ordering::Relaxed);
        Some(packed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_small_or_does_not_get_small_enough_is_left_alone() {
        let compress = Compress::new(CompressOptions::default()).unwrap();
        let text = b"gravel ".repeat(1_000);
        assert_eq!(compress.pack(Compression::None, &text), None);
        assert_eq!(compress.pack(Compression::Zstd, &text[..511]), None);
        assert!(compress.pack(Compression::Zstd, &text[..512]).is_some());
        assert_eq!(compress.refused.load(Ordering::Relaxed), 0);
        let mut rng = fastrand::Rng::with_seed(1);
        // A fifth of it is zeros: 0.8 of the length is just small enough, a tenth is not.
        let mut noise: Vec<u8> = std::iter::repeat_with(|| rng.u8(..)).take(100_000).collect();
        noise[..10_000].fill(0);
        for codec in [Compression::Lz4, Compression::Zstd] {
            assert_eq!(compress.pack(codec, &noise), None);
        }
        noise[..20_000].fill(0);
        for codec in [Compression::Lz4, Compression::Zstd] {
            assert!(compress.pack(codec, &noise).is_some_and(|packed| packed.len() <= 87_500));
        }
        assert_eq!(compress.refused.load(Ordering::Relaxed), 2);
        assert_eq!(compress.kept.load(Ordering::Relaxed), 3);
        assert_eq!(compress.raw_bytes.load(Ordering::Relaxed), 200_512);
    }

    #[test]
    fn options_out_of_range_are_refused_by_name() {
        let default = CompressOptions::default();
        for (options, name) in [
            (CompressOptions { unit_bytes: 5_000, ..default }, "unit_bytes is 5000"),
            (CompressOptions { unit_bytes: 2 << 20, ..default }, "UNIT_BYTES_MAX"),
            (CompressOptions { ratio_max: 0.0, ..default }, "ratio_max is 0"),
            (CompressOptions { ratio_max: f64::NAN, ..default }, "ratio_max is NaN"),
        ] {
            let error = Compress::new(options).unwrap_err().to_string();
            assert!(error.contains(name), "{error}");
        }
    }
}
