//! Traces: which key is used when, made from a seed.

use std::fmt;

/// A scan reads so many keys in a row before the next one begins elsewhere.
const SCAN_KEYS: u32 = 10_000;
/// Of the uses in a trace with scans, so many in ten belong to one.
const SCANNED_IN_TEN: u32 = 1;

/// What a trace is made of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// The key of rank n is used in proportion to n to the power of minus `skew`; beside that, scans.
    Zipf {
        /// From 0, where all keys are used alike.
        skew: f64,
        /// Whether one use in ten belongs to a scan.
        scans: bool,
    },
    /// The same keys in the same order again and again: so many thousandths of all.
    Loop {
        /// Thousandths of the keys.
        thousandths: u32,
    },
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Zipf { skew, scans: false } => write!(f, "zipf {skew:.1}"),
            Self::Zipf { skew, scans: true } => write!(f, "zipf {skew:.1}, scans"),
            Self::Loop { thousandths } => write!(f, "loop over {} %", f64::from(*thousandths) / 10.0),
        }
    }
}

/// `uses` keys of `keys`.
pub fn trace(kind: Kind, keys: u32, uses: usize, seed: u64) -> Vec<u32> {
    let mut rng = fastrand::Rng::with_seed(seed);
    match kind {
        Kind::Loop { thousandths } => {
            let round = (u64::from(keys) * u64::from(thousandths) / 1_000).max(1) as u32;
            (0..round).cycle().take(uses).collect()
        }
        Kind::Zipf { skew, scans } => {
            // Sums of the weights up to each rank; which key has which rank is left to chance.
            let mut sum = 0.0;
            let sums: Vec<f64> = (1..=keys)
                .map(|rank| {
                    sum += f64::from(rank).powf(-skew);
                    sum
                })
                .collect();
            let mut by_rank: Vec<u32> = (0..keys).collect();
            rng.shuffle(&mut by_rank);
            let (mut scanned, mut left) = (0, 0);
            (0..uses)
                .map(|_| {
                    if scans && rng.u32(..10) < SCANNED_IN_TEN {
                        if left == 0 {
                            (scanned, left) = (rng.u32(..keys), SCAN_KEYS);
                        }
                        (scanned, left) = ((scanned + 1) % keys, left - 1);
                        return scanned;
                    }
                    let at = rng.f64() * sum;
                    by_rank[sums.partition_point(|sum| *sum < at).min(by_rank.len() - 1)]
                })
                .collect()
        }
    }
}

/// What a key's value weighs in bytes, if values differ: from 256 to 64 Ki, each power of two alike.
pub fn mixed_weight(key: u32) -> u32 {
    let power = (u64::from(key).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 60) % 9;
    256 << power
}
