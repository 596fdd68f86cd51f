//! Target `record`: every decoder of the on-disk format, on damaged pieces of a real store.
//!
//! Half of the inputs have their record header's checksum made right again, so that the damage behind it is reached.

use esker_engine::format::{RecordHeader, SHORT_NUMBER_END, short_flag};

use crate::Target;
use crate::mutate::mutate;
use crate::recovery::real_image;

/// Inputs are pieces of this length at most, in bytes.
const PIECE_BYTES_MAX: usize = 4_096;

pub struct Record {
    image: Vec<u8>,
    /// Offsets at which something begins.
    starts: Vec<usize>,
}

impl Record {
    pub fn new() -> Self {
        let image = real_image();
        let magics: [&[u8]; 4] = [b"ESKERSUP", b"ESKERSEG", b"ESKR", &[0xE5]];
        let starts = (0..image.len())
            .step_by(8)
            .filter(|at| magics.iter().any(|magic| image[*at..].starts_with(magic)))
            .collect();
        Self { image, starts }
    }
}

impl Target for Record {
    fn input(&mut self, random: &mut fastrand::Rng) -> Vec<u8> {
        let start = self.starts[random.usize(0..self.starts.len())];
        let end = (start + 1 + random.usize(0..PIECE_BYTES_MAX)).min(self.image.len());
        let mut piece = self.image[start..end].to_vec();
        mutate(&mut piece, random);
        if random.bool() {
            let (len, op_count) = ((piece.len() as u32).next_multiple_of(8), random.u32(0..8));
            let short = short_flag(random.bool(), op_count as usize, len.into());
            let numbers = if short > 0 { SHORT_NUMBER_END } else { u64::MAX };
            let header = RecordHeader {
                len,
                seq: random.u64(0..numbers),
                group: random.u64(0..numbers),
                generation: random.u32(..),
                op_count: if short > 0 || random.bool() { op_count } else { random.u32(..) },
                flags: short | random.u32(0..if short > 0 { 2 } else { 4 }),
            };
            let mut bytes = vec![0; header.header_bytes()];
            header.encode(&mut bytes, 0, 0);
            let keep = bytes.len().min(piece.len());
            piece[..keep].copy_from_slice(&bytes[..keep]);
        }
        piece
    }

    fn run(&mut self, input: &[u8]) -> bool {
        esker_engine::fuzz_decode(input);
        RecordHeader::decode(input, 0, 0).is_some()
    }
}
