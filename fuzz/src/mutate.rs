//! Mutations: small damages that keep most of an input what it was.
//!
//! Invariant: an input never grows above [`INPUT_BYTES_MAX`].

/// Inputs are cut to this.
pub const INPUT_BYTES_MAX: usize = 1 << 20;

/// Values at which lengths and counts break.
const EDGES: &[u64] = &[
    0,
    1,
    7,
    8,
    0x7f,
    0x80,
    0xff,
    0x100,
    0x7fff,
    0x8000,
    0xffff,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    u64::MAX / 2,
    u64::MAX,
];

/// Applies 1 to 8 mutations.
pub fn mutate(input: &mut Vec<u8>, random: &mut fastrand::Rng) {
    for _ in 0..1 + random.usize(0..8) {
        once(input, random);
    }
    input.truncate(INPUT_BYTES_MAX);
}

fn once(input: &mut Vec<u8>, random: &mut fastrand::Rng) {
    if input.is_empty() {
        input.push(random.u8(..));
        return;
    }
    let at = random.usize(0..input.len());
    let len = 1 + random.usize(0..64.min(input.len() - at));
    match random.u8(0..10) {
        0..=1 => input[at] ^= 1 << random.u8(0..8),
        2 => input[at] = random.u8(..),
        3 => overwrite(input, at, &EDGES[random.usize(0..EDGES.len())].to_le_bytes()[..1 << random.usize(0..4)]),
        4 => input.truncate(at),
        5 => {
            let piece = input[at..at + len].to_vec();
            let to = random.usize(0..input.len());
            overwrite(input, to, &piece);
        }
        6 => {
            let piece = input[at..at + len].to_vec();
            input.splice(at..at, piece);
        }
        7 => drop(input.drain(at..at + len)),
        8 => input[at..at + len].fill(0),
        _ => {
            let digits = random.u64(..).to_string();
            overwrite(input, at, digits.as_bytes());
        }
    }
}

/// Copies `piece` over the input from `at`, as far as it reaches.
pub fn overwrite(input: &mut [u8], at: usize, piece: &[u8]) {
    let len = piece.len().min(input.len() - at);
    input[at..at + len].copy_from_slice(&piece[..len]);
}
