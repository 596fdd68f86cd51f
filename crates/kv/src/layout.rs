//! Layouts: how a namespace lies in objects, and which partition a byte key belongs to.
//!
//! byte key → its hash slot, of [`SLOTS`], as Redis Cluster's: CRC-16/XMODEM of the key, or of what stands between
//! its first `{` and the next `}` if that is not empty → partition: the upper bits of the slot
//!
//! Invariant: a layout is chosen when the namespace is made, and its record keeps it: where a key is never changes.

use crc::{CRC_16_XMODEM, Crc, Table};

use crate::key::{Key, Kind};

/// Number of hash slots of byte keys, as in Redis Cluster.
pub const SLOTS: u64 = 1 << SLOT_BITS;
const SLOT_BITS: u32 = 14;
/// Bits of the slot that choose the partition of a byte key in a namespace that is made: 64 partitions, each of which
/// stays below the 200,000 keys of an object at which Ceph warns up to about ten million keys.
const PARTITION_BITS: u8 = 6;
/// Bits of an int key within its range, in a namespace of partitions that is made: below 200,000 too.
const RANGE_BITS: u8 = 16;
/// Bits of an int key within its range, in a namespace that lies whole.
pub(crate) const WHOLE_RANGE_BITS: u8 = 20;

const SUM: Crc<u16, Table<16>> = Crc::<u16, Table<16>>::new(&CRC_16_XMODEM);

/// How a namespace lies in objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// Byte keys in one object, int keys in an object for each range of 2^20, expiries in another: for stores that
    /// change several objects at once.
    Whole,
    /// Keys in partitions, each an object, with the expiries of its keys.
    Parted {
        /// Given to no other namespace, so that nothing of an earlier one of its name is taken for its own.
        id: u64,
        /// Byte keys: upper bits of the slot that choose the partition. Int keys: bits of a key within its range.
        bits: u8,
    },
}

impl Layout {
    /// The layout in partitions of a namespace that is made.
    pub(crate) fn parted(kind: Kind, id: u64) -> Self {
        let bits = match kind {
            Kind::Int => RANGE_BITS,
            Kind::Bytes => PARTITION_BITS,
        };
        Self::Parted { id, bits }
    }

    /// Whether a namespace of this kind can have it.
    pub(crate) fn fits(self, kind: Kind) -> bool {
        match (self, kind) {
            (Self::Whole, _) => true,
            (Self::Parted { bits, .. }, Kind::Int) => (1..=32).contains(&bits),
            (Self::Parted { bits, .. }, Kind::Bytes) => u32::from(bits) <= SLOT_BITS,
        }
    }

    pub(crate) fn is_parted(self) -> bool {
        matches!(self, Self::Parted { .. })
    }
}

/// The hash slot of a byte key, below [`SLOTS`], as Redis Cluster has it: of what stands between its first `{` and the
/// next `}`, if that is not empty, else of the whole key.
pub fn slot_of(key: &[u8]) -> u16 {
    let tag = key.iter().position(|byte| *byte == b'{').and_then(|open| {
        let behind = &key[open + 1..];
        let len = behind.iter().position(|byte| *byte == b'}')?;
        behind.get(..len).filter(|tag| !tag.is_empty())
    });
    SUM.checksum(tag.unwrap_or(key)) & (SLOTS - 1) as u16
}

/// Int keys that follow each other and are of one slot.
pub const RANGE_KEYS: u64 = 1 << RANGE_BITS;

/// The slot of an int key, below [`SLOTS`]: keys of one range of [`RANGE_KEYS`] are of one slot, the next range is of
/// the next slot, and what follows the last slot is of the first one again.
pub fn slot_of_int(key: u64) -> u16 {
    (key >> RANGE_BITS & (SLOTS - 1)) as u16
}

impl Key<'_> {
    /// Its slot, below [`SLOTS`](crate::SLOTS): see [`slot_of`] and [`slot_of_int`].
    pub fn slot(self) -> u16 {
        match self {
            Self::Int(key) => slot_of_int(key),
            Self::Bytes(key) => slot_of(key),
        }
    }
}

/// The partition of a slot, by this many of its bits.
pub(crate) fn partition_of(slot: u16, bits: u8) -> u64 {
    u64::from(slot) >> (SLOT_BITS - u32::from(bits))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_redis_cluster() {
        // As `CLUSTER KEYSLOT` of redis-server 7.0 tells them.
        for (key, slot) in [
            ("123456789", 12_739),
            ("", 0),
            ("foo", 12_182),
            ("somekey", 11_058),
            ("foo{hash_tag}", 2_515),
            ("bar{hash_tag}", 2_515),
        ] {
            assert_eq!(slot_of(key.as_bytes()), slot, "{key}");
        }
        let same = |one: &str, other: &str| assert_eq!(slot_of(one.as_bytes()), slot_of(other.as_bytes()));
        same("{user1000}.following", "{user1000}.followers");
        same("foo{bar}{zap}", "bar");
        same("foo{{bar}}zap", "{bar");
        // An empty tag is none, nor is one without an end.
        assert_ne!(slot_of(b"foo{}{bar}"), slot_of(b"bar"));
        assert_ne!(slot_of(b"foo{bar"), slot_of(b"bar"));
    }

    #[test]
    fn slots_of_int_keys_are_ranges_that_follow_each_other() {
        let round = SLOTS << RANGE_BITS;
        for (key, slot) in [(0, 0), (65_535, 0), (65_536, 1), (round - 1, 16_383), (round, 0), (u64::MAX, 16_383)] {
            assert_eq!(slot_of_int(key), slot, "{key}");
        }
    }

    #[test]
    fn partitions_share_the_slots_out_in_order() {
        for bits in 0..=14 {
            let last = (SLOTS - 1) as u16;
            assert_eq!((partition_of(0, bits), partition_of(last, bits)), (0, (1 << bits) - 1));
            assert!((1..=last).all(|slot| partition_of(slot - 1, bits) <= partition_of(slot, bits)));
        }
    }
}
