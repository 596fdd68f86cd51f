//! Which key is the n-th: counting up, or the same keys in an order that looks random.
//!
//! Invariant: the first `count` keys are exactly 0..count in either order, each once.

/// Order in which keys are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Order {
    /// 0, 1, 2 …, as an auto-increment column gives them.
    Sequential,
    /// A permutation.
    Random,
}

/// The keys of one data set.
#[derive(Clone, Copy, Debug)]
pub struct Keys {
    count: u32,
    order: Order,
    half_bits: u32,
    seed: u64,
}

impl Keys {
    /// `count` keys, at least one.
    pub fn new(count: u32, order: Order, seed: u64) -> Self {
        let bits = 32 - (count.max(4) - 1).leading_zeros();
        Self { count, order, half_bits: bits.div_ceil(2), seed }
    }

    /// The key that is written `index`-th, `index` below the count.
    pub fn key(&self, index: u32) -> u32 {
        match self.order {
            Order::Sequential => index,
            // Walks the permutation of the next power of four until it is back inside.
            Order::Random => {
                let mut key = u64::from(index);
                loop {
                    key = self.permute(key);
                    if key < u64::from(self.count) {
                        return key as u32;
                    }
                }
            }
        }
    }

    /// Four Feistel rounds over `2 * half_bits` bits: a bijection, whatever the round function is.
    fn permute(&self, value: u64) -> u64 {
        let mask = (1 << self.half_bits) - 1;
        let (mut left, mut right) = (value >> self.half_bits, value & mask);
        for round in 1..=4 {
            let mixed = (right ^ self.seed.wrapping_mul(round)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 29;
            (left, right) = (right, left ^ (mixed & mask));
        }
        left << self.half_bits | right
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_comes_once_in_either_order() {
        for count in [1, 2, 3, 5, 1_000, 4_097, 70_000] {
            for order in [Order::Sequential, Order::Random] {
                let keys = Keys::new(count, order, 7);
                let mut seen = vec![false; count as usize];
                for index in 0..count {
                    let key = keys.key(index) as usize;
                    assert!(!std::mem::replace(&mut seen[key], true), "{order:?} {count}: {key} twice");
                }
            }
        }
    }
}
