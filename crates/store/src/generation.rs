//! Generations: numbers by which writers guard that something is still what they have read of it.
//!
//! A server that is restarted takes back what was not durable yet. If each change only counted, the next change would
//! get the number of the one that was taken back, and the guard of a client that has read the old state would hold.

/// Two generations are so far apart at most. Thousands of millions of changes fit.
const APART_BITS: u32 = 31;

/// The generation behind `now` of what is stored as `changed`: larger than `now`, by 2^31 at most. Two changes of one
/// state get the same one with a chance of 1 in 2^31.
pub fn next_generation(now: u64, changed: &[u8]) -> u64 {
    now + 1 + u64::from(crc32c::crc32c(changed) >> (u32::BITS - APART_BITS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generations_grow_and_differ_by_what_was_changed() {
        let next = [&b"a"[..], b"b", b"", b"ab"].map(|changed| next_generation(7, changed));
        assert!(next.iter().all(|next| (8..8 + (1 << APART_BITS)).contains(next)), "{next:?}");
        assert_eq!(next.iter().collect::<std::collections::BTreeSet<_>>().len(), next.len());
        assert_eq!(next_generation(7, b"a"), next[0], "it is drawn from nothing else");
    }
}
