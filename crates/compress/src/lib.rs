//! Codecs that a unit of bytes may go through on its way to the device and back.
//!
//! unit of raw bytes → [`compress`] → fewer bytes, or `None` → … → [`decompress`] → the unit
//!
//! A crate of its own because one of the codecs is a library in C. What stands on the device around a unit is the
//! engine's affair; this crate knows neither headers nor limits.
//!
//! Invariants:
//! 1. [`decompress`] writes into the slice that it is given and nowhere else, whatever bytes it is fed, and allocates
//!    nothing that those bytes could make large.
//! 2. The numbers of codecs are persisted and never reused.

#![forbid(unsafe_code)]

use std::cell::RefCell;

/// Level of zstd: the fastest of the ordinary ones. What it costs and gains: docs/decisions/0005-compression.md.
const ZSTD_LEVEL: i32 = 1;

/// A way to compress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Codec {
    /// LZ4's block format: quick both ways.
    Lz4 = 1,
    /// A Zstandard frame: smaller, slower to write.
    Zstd = 2,
}

impl Codec {
    /// The codec with this number.
    pub fn from_stored(number: u8) -> Option<Self> {
        match number {
            1 => Some(Self::Lz4),
            2 => Some(Self::Zstd),
            _ => None,
        }
    }
}

/// Contexts and room that a thread uses again: making them anew would cost as much as a small unit does.
#[derive(Default)]
struct Scratch {
    room: Vec<u8>,
    compressor: Option<zstd::bulk::Compressor<'static>>,
    decompressor: Option<zstd::bulk::Decompressor<'static>>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// Appends `raw` to `out` in fewer than `below` bytes and says in how many; `None`, and `out` as it was, if it takes as
/// many or the codec fails.
pub fn compress(codec: Codec, raw: &[u8], below: usize, out: &mut Vec<u8>) -> Option<usize> {
    SCRATCH.with_borrow_mut(|scratch| {
        let Scratch { room, compressor, .. } = scratch;
        let len = match codec {
            Codec::Lz4 => {
                room.resize(lz4_flex::block::get_maximum_output_size(raw.len()), 0);
                lz4_flex::block::compress_into(raw, room).ok()?
            }
            Codec::Zstd => {
                // With less room the library stops as soon as it is used up.
                room.resize(below.max(1), 0);
                if compressor.is_none() {
                    let mut made = zstd::bulk::Compressor::new(ZSTD_LEVEL).ok()?;
                    // Length and checksum stand elsewhere.
                    made.include_contentsize(false).ok()?;
                    made.include_dictid(false).ok()?;
                    *compressor = Some(made);
                }
                compressor.as_mut()?.compress_to_buffer(raw, &mut room[..]).ok()?
            }
        };
        (len < below).then(|| {
            out.extend_from_slice(&room[..len]);
            len
        })
    })
}

/// Fills `raw` from what [`compress`] made of it; false if `stored` does not hold exactly so many bytes.
#[must_use]
pub fn decompress(codec: Codec, stored: &[u8], raw: &mut [u8]) -> bool {
    match codec {
        Codec::Lz4 => lz4_flex::block::decompress_into(stored, raw).is_ok_and(|len| len == raw.len()),
        Codec::Zstd => SCRATCH.with_borrow_mut(|scratch| {
            if scratch.decompressor.is_none() {
                scratch.decompressor = zstd::bulk::Decompressor::new().ok();
            }
            let Some(decompressor) = &mut scratch.decompressor else { return false };
            decompressor.decompress_to_buffer(stored, raw).is_ok_and(|len| len == raw.len())
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CODECS: [Codec; 2] = [Codec::Lz4, Codec::Zstd];

    fn text(rng: &mut fastrand::Rng, len: usize) -> Vec<u8> {
        let words = ["esker", "gravel", " lays ", "everything", "down", "once,", "in order", "\n"];
        std::iter::repeat_with(|| words[rng.usize(..words.len())].bytes()).flatten().take(len).collect()
    }

    #[test]
    fn a_unit_survives_the_round_trip() {
        let mut rng = fastrand::Rng::with_seed(7);
        for codec in CODECS {
            for len in [1, 2, 100, 512, 4096, 65_536, 1 << 20] {
                let raw = text(&mut rng, len);
                let mut stored = vec![9];
                let Some(packed) = compress(codec, &raw, len.max(64), &mut stored) else {
                    assert!(len < 100, "{codec:?} does not compress {len} bytes of text");
                    continue;
                };
                assert_eq!((stored[0], stored.len()), (9, packed + 1));
                let mut back = vec![0; len];
                assert!(decompress(codec, &stored[1..], &mut back), "{codec:?} {len}");
                assert_eq!(back, raw);
            }
        }
    }

    #[test]
    fn what_does_not_get_smaller_is_left_alone() {
        let mut rng = fastrand::Rng::with_seed(8);
        let raw: Vec<u8> = std::iter::repeat_with(|| rng.u8(..)).take(60_000).collect();
        for codec in CODECS {
            let mut out = vec![1, 2];
            assert_eq!(compress(codec, &raw, raw.len(), &mut out), None);
            assert_eq!(out, [1, 2]);
        }
    }

    #[test]
    fn a_wrong_length_and_any_damage_are_told_or_stay_inside() {
        for seed in 0..2_000 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let len = rng.usize(1..3_000);
            let raw = text(&mut rng, len);
            for codec in CODECS {
                let mut stored = Vec::new();
                if compress(codec, &raw, raw.len() + 64, &mut stored).is_none() {
                    continue;
                }
                for wrong in [0, len - 1, len + 1, 2 * len] {
                    assert!(wrong == len || !decompress(codec, &stored, &mut vec![0; wrong]), "seed {seed}");
                }
                for _ in 0..4 {
                    let mut bad = stored.clone();
                    let at = rng.usize(..bad.len());
                    bad[at] ^= 1 << rng.u8(..8);
                    bad.truncate(rng.usize(..=bad.len()));
                    // Checksums are another's affair: that it returns is all.
                    let _ = decompress(codec, &bad, &mut vec![0; len]);
                }
            }
        }
    }
}
