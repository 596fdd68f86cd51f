//! Which chain keeps which slots of keys, where several chains share them.
//!
//! chains, in order → even parts of the slots → JSON → node → JSON → checked → parts
//!
//! Invariant: each slot is in one part, and parts stand in the order of their slots.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::records::{decoded, encoded};

/// How many slots there are: those of Redis Cluster, by CRC16 of the key or of its tag.
pub const SLOTS: u16 = 16_384;

/// A part of the slots, and the chain that keeps it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChainSlots {
    /// The first slot.
    pub first: u16,
    /// The last slot.
    pub last: u16,
    /// The name of the chain.
    pub chain: String,
}

/// All slots, in parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slots(Vec<ChainSlots>);

#[derive(Serialize, Deserialize)]
struct SlotsJson {
    ranges: Vec<ChainSlots>,
}

impl Slots {
    /// An even part of the slots for each of these chains, in their order; `None`: for so many there are not enough, or
    /// there is no chain.
    pub fn even(chains: &[&str]) -> Option<Self> {
        let count = u16::try_from(chains.len()).ok().filter(|count| (1..=SLOTS).contains(count))?;
        // Sixteen bits are too few for the product.
        let begins = |at: usize| (at as u64 * u64::from(SLOTS) / u64::from(count)) as u16;
        let part = |(at, chain): (usize, &&str)| ChainSlots {
            first: begins(at),
            last: begins(at + 1) - 1,
            chain: (*chain).to_owned(),
        };
        Some(Self(chains.iter().enumerate().map(part).collect()))
    }

    /// The parts, in the order of their slots.
    pub fn parts(&self) -> &[ChainSlots] {
        &self.0
    }

    /// Whether this chain keeps some.
    pub fn are_kept_by(&self, chain: &str) -> bool {
        self.0.iter().any(|part| part.chain == chain)
    }

    pub(crate) fn encoded(&self, node: &str) -> Result<Vec<u8>> {
        encoded(node, &SlotsJson { ranges: self.0.clone() })
    }

    pub(crate) fn decoded(node: &str, data: &[u8]) -> Result<Self> {
        let SlotsJson { ranges } = decoded(node, data)?;
        let mut next = 0;
        for part in &ranges {
            if part.first != next || part.last < part.first || part.last >= SLOTS {
                let reason = format!("slots {} to {} do not come after {next}", part.first, part.last);
                return Err(Error::Damaged { node: node.to_owned(), reason });
            }
            next = part.last + 1;
        }
        if next != SLOTS {
            return Err(Error::Damaged { node: node.to_owned(), reason: format!("slot {next} is in no part") });
        }
        Ok(Self(ranges))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod tests {
    use super::*;

    #[test]
    fn parts_are_even_and_come_back_as_they_were() {
        let slots = Slots::even(&["a", "b", "c"]).unwrap();
        let ends: Vec<_> = slots.parts().iter().map(|part| (part.first, part.last, part.chain.as_str())).collect();
        assert_eq!(ends, [(0, 5_460, "a"), (5_461, 10_921, "b"), (10_922, 16_383, "c")]);
        assert_eq!(Slots::decoded("/s", &slots.encoded("/s").unwrap()).unwrap(), slots);
        assert!(slots.are_kept_by("b") && !slots.are_kept_by("d"));
        let most: Vec<_> = (0..SLOTS).map(|chain| chain.to_string()).collect();
        let most: Vec<_> = most.iter().map(String::as_str).collect();
        assert!(Slots::even(&most).unwrap().parts().iter().all(|part| part.first == part.last));
        assert_eq!((Slots::even(&[]), Slots::even(&[most, vec!["x"]].concat())), (None, None));
    }

    #[test]
    fn what_does_not_hold_each_slot_once_is_an_error_that_names_the_slot() {
        for (ranges, why) in [
            ("", "slot 0 is in no part"),
            (r#"{"first":0,"last":9,"chain":"a"}"#, "slot 10 is in no part"),
            (r#"{"first":1,"last":16383,"chain":"a"}"#, "slots 1 to 16383"),
            (r#"{"first":0,"last":16384,"chain":"a"}"#, "slots 0 to 16384"),
            (r#"{"first":0,"last":9,"chain":"a"},{"first":9,"last":16383,"chain":"b"}"#, "slots 9 to 16383"),
            (r#"{"first":0,"last":9,"chain":"a"},{"first":10,"last":5,"chain":"b"}"#, "slots 10 to 5"),
        ] {
            let error = Slots::decoded("/s", format!(r#"{{"ranges":[{ranges}]}}"#).as_bytes()).unwrap_err();
            assert!(error.to_string().contains(why) && error.to_string().contains("/s"), "{error}");
        }
    }
}
