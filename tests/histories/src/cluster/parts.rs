//! The parts of the slots of keys that chains keep, and keys for each.
//!
//! place → part, in turn → the first tag whose slot is in that part
//!
//! Invariant: keys of one place are of one chain, so that several can be written at once.

use esker::kv::{SLOTS, slot_of};

/// As `esker cluster spread` shares the slots out: evenly, in order.
#[derive(Clone, Copy, Debug)]
pub struct Parts(pub u64);

impl Parts {
    /// The part that keeps the keys of this place, from 0.
    pub fn of(self, place: u64) -> usize {
        (place % self.0) as usize
    }

    /// What stands between the braces of all keys of this place: its number, with another behind it where that alone is
    /// of another part.
    pub fn tag(self, place: u64) -> String {
        let mut tag = place.to_string();
        let mut tried = 0;
        while self.keeps(&tag) != self.of(place) {
            tried += 1;
            tag = format!("{place}.{tried}");
        }
        tag
    }

    /// The part that keeps the slot of this tag.
    fn keeps(self, tag: &str) -> usize {
        let slot = u64::from(slot_of(tag.as_bytes()));
        // Part `at` begins with the slot `at * SLOTS / self.0`.
        (((slot + 1) * self.0 - 1) / SLOTS) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_place_has_a_tag_in_its_part_and_one_chain_keeps_all() {
        // As `CLUSTER KEYSLOT` of redis-server 7.0 tells them: 12739 and 12182.
        assert_eq!(["123456789", "foo"].map(|tag| Parts(3).keeps(tag)), [2, 2]);
        let ends: Vec<_> = [(5_460, 0), (5_461, 1), (10_921, 1), (10_922, 2), (16_383, 2)].into();
        for (slot, part) in ends {
            let tag = (0..u64::MAX).map(|tag| tag.to_string()).find(|tag| slot_of(tag.as_bytes()) == slot);
            assert_eq!(tag.map(|tag| Parts(3).keeps(&tag)), Some(part), "{slot}");
        }
        for place in 0..100 {
            let tag = Parts(3).tag(place);
            assert_eq!(Parts(3).keeps(&tag), Parts(3).of(place), "{tag}");
            assert!(tag == place.to_string() || tag.starts_with(&format!("{place}.")), "{tag}");
            assert_eq!(Parts(1).tag(place), place.to_string());
        }
    }
}
