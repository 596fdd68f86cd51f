//! Target `compressed`: the decoder of compressed payloads, which is given what a checksum would have let through.
//!
//! Some inputs have their table made right again, so that the damage behind it is reached.

use esker_engine::format::{
    COMPRESSED_HEADER_BYTES, Codec, Compressed, RAW_BYTES_MAX, compress_payload, decompress_payload,
};

use crate::Target;
use crate::mutate::mutate;

/// Raw bytes of the payloads that inputs are made from, at most.
const RAW_LEN_MAX: usize = 40_000;

pub struct CompressedPayload;

impl CompressedPayload {
    pub fn new() -> Self {
        Self
    }
}

impl Target for CompressedPayload {
    fn input(&mut self, random: &mut fastrand::Rng) -> Vec<u8> {
        let len = random.usize(1..RAW_LEN_MAX);
        let mask = random.u8(..);
        let raw: Vec<u8> =
            (0..len).map(|at| if at % 700 < 300 { random.u8(..) & mask } else { at as u8 & 7 }).collect();
        let codec = if random.bool() { Codec::Lz4 } else { Codec::Zstd };
        let mut payload = compress_payload(codec, 4096 << random.u8(0..3), &raw, usize::MAX).unwrap_or_default();
        let head = Compressed::head_bytes(&payload).unwrap_or(COMPRESSED_HEADER_BYTES).min(payload.len());
        if random.bool() {
            let mut units = payload.split_off(head);
            let len = units.len();
            mutate(&mut units, random);
            // As long as before: else the table tells.
            units.resize(len, 0);
            payload.extend(units);
        } else {
            mutate(&mut payload, random);
        }
        payload
    }

    fn run(&mut self, input: &[u8]) -> bool {
        let Some(raw) = decompress_payload(input) else { return false };
        assert!(raw.len() <= RAW_BYTES_MAX);
        let table = Compressed::decode(input, input.len()).expect("it was decoded a moment ago");
        for unit in 0..table.unit_count() {
            let (place, whole) = (table.stored_range(unit..unit + 1), table.raw_range(unit..unit + 1));
            let part = table.unpack(unit..unit + 1, &input[place.start as usize..place.end as usize]);
            assert_eq!(part.as_deref(), Some(&raw[whole.start as usize..whole.end as usize]));
            let cut = table.cut(unit..unit + 1, input);
            assert_eq!(decompress_payload(&cut), part, "a unit that was moved");
        }
        true
    }
}
